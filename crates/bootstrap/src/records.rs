//! What has come from the transport and was not looked at yet: the opening, then TLS records, which
//! are handed on one at a time (RFC 8446 §5.1), so that bytes behind the last one stay here.

use crate::{BootstrapError, opening};
use std::io::{ErrorKind, Read};

/// Type, version and length of a record.
const HEADER: usize = 5;
/// Most bytes of one: 2^14 and 256 for encryption (RFC 8446 §5.2).
const RECORD_MAX: usize = HEADER + (1 << 14) + 256;
/// While nobody knows who is there.
const SMALL: usize = RECORD_MAX;
/// Afterwards: some records for each call to the system.
const LARGE: usize = 4 * RECORD_MAX;

const _: () = assert!(SMALL >= opening::BYTES);

/// How a look at the transport ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Filled {
    Some,
    Blocked,
    Ended,
}

pub(crate) struct Incoming {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Incoming {
    pub(crate) fn new() -> Self {
        Self { buffer: vec![0; SMALL], start: 0, end: 0 }
    }

    /// Room for some records at once, or none at all for a stream without.
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

    /// Reads once. Whoever calls has taken all that was whole, so there is room.
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

    /// The opening, once it is there.
    pub(crate) fn opening(&mut self) -> Option<[u8; opening::BYTES]> {
        let bytes = self.buffer[self.start..self.end].first_chunk().copied()?;
        self.start += opening::BYTES;
        Some(bytes)
    }

    /// The next record, once it is there whole.
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

    /// Moves bytes out as they are.
    pub(crate) fn take(&mut self, out: &mut [u8]) -> usize {
        let bytes = out.len().min(self.len());
        out[..bytes].copy_from_slice(&self.buffer[self.start..self.start + bytes]);
        self.start += bytes;
        bytes
    }

    /// Whatever is left.
    pub(crate) fn into_rest(self) -> Vec<u8> {
        self.buffer[self.start..self.end].to_vec()
    }
}

/// Reads once; `None` when nothing is there yet.
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
