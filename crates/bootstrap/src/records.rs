//! Received bytes that were not processed yet: the opening, then TLS records, which are returned one at a
//! time (RFC 8446 §5.1), so that bytes after the last one stay here.

use crate::{BootstrapError, opening};
use std::io::{ErrorKind, Read};

/// Type, version and length of a record.
const HEADER: usize = 5;
/// Maximum bytes of a record: 2^14 and 256 for encryption (RFC 8446 §5.2).
const RECORD_MAX: usize = HEADER + (1 << 14) + 256;
/// The buffer before the peer has authenticated.
const SMALL: usize = RECORD_MAX;
/// The buffer afterwards: some records per system call.
const LARGE: usize = 4 * RECORD_MAX;

const _: () = assert!(SMALL >= opening::BYTES);

/// The outcome of one read of the transport.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    Some,
    Blocked,
    Ended,
}

pub(crate) struct IncomingRecords {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl IncomingRecords {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; SMALL], start: 0, end: 0 }
    }

    /// Sizes the buffer for several records, or none for a plaintext stream.
    pub(crate) fn settle(&mut self, records: bool) {
        if records {
            self.buffer.resize(LARGE, 0);
        } else if self.is_empty() {
            *self = Self { buffer: Vec::new(), start: 0, end: 0 };
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.end - self.start
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reads once. The caller has taken all whole records, so there is room.
    pub(crate) fn fill(&mut self, from: &mut impl Read) -> Result<Filled, BootstrapError> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = &mut self.buffer[self.end..];
        if room.is_empty() {
            return Err(BootstrapError::Malformed("record".to_owned()));
        }
        match receive(from, room)? {
            Some(0) => Ok(Filled::Ended),
            Some(bytes) => {
                self.end += bytes;
                Ok(Filled::Some)
            }
            None => Ok(Filled::Blocked),
        }
    }

    /// The opening, once it is complete.
    pub(crate) fn opening(&mut self) -> Option<[u8; opening::BYTES]> {
        let bytes = self.buffer[self.start..self.end].first_chunk().copied()?;
        self.start += opening::BYTES;
        Some(bytes)
    }

    /// The next record, once it is complete.
    pub(crate) fn record(&mut self) -> Result<Option<&[u8]>, BootstrapError> {
        let held = &self.buffer[self.start..self.end];
        let Some([_, _, _, high, low]) = held.first_chunk::<HEADER>() else {
            return Ok(None);
        };
        let whole = HEADER + usize::from(u16::from_be_bytes([*high, *low]));
        if whole > RECORD_MAX {
            return Err(BootstrapError::Malformed("length of a record".to_owned()));
        }
        if held.len() < whole {
            return Ok(None);
        }
        let start = self.start;
        self.start += whole;
        Ok(Some(&self.buffer[start..start + whole]))
    }

    /// Copies bytes out unparsed.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> usize {
        let bytes = out.len().min(self.len());
        out[..bytes].copy_from_slice(&self.buffer[self.start..self.start + bytes]);
        self.start += bytes;
        bytes
    }

    /// All remaining bytes.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.buffer[self.start..self.end].to_vec()
    }
}

/// Reads once; `None` if the transport has no bytes yet.
pub(crate) fn receive(
    from: &mut impl Read,
    out: &mut [u8],
) -> Result<Option<usize>, BootstrapError> {
    loop {
        match from.read(out) {
            Ok(bytes) => return Ok(Some(bytes)),
            Err(reason) if reason.kind() == ErrorKind::WouldBlock => return Ok(None),
            Err(reason) if reason.kind() == ErrorKind::Interrupted => {}
            Err(reason) => return Err(BootstrapError::Io(reason)),
        }
    }
}
