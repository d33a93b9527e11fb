//! Files as the memory of one call, with counts of its accesses.

use super::states::States;
use crate::settings::Memory;
use farside_command::failure::Failure;
use farside_command::{input_file, result_file};
use farside_rmc::Program;
use farside_rmc::helpers::{Call, Helper, PIECE_BYTES, crc32c, status, xxhash64};
use farside_rmc::run::{Buffers, Near, Reply, Request};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// A region and its file.
struct Region {
    /// Path in the arguments.
    file: PathBuf,
    /// Canonical path.
    canonical: PathBuf,
    bytes: Vec<u8>,
    /// Contents of the file.
    original: Vec<u8>,
}

/// Accesses and helper calls of a program.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    /// Accesses to regions. As one-sided requests each is a round trip, since the next one depends on its answer; the
    /// pieces of a vectored access share one.
    pub(super) accesses: u64,
    /// Equivalent one-sided requests: one for each piece.
    pub(super) requests: u64,
    /// Bytes of regions read, or hashed in place.
    pub(super) bytes_read: u64,
    /// Bytes of regions written.
    pub(super) bytes_written: u64,
    /// Helper calls without a one-sided equivalent: state, waits, notifications and time.
    pub(super) other_calls: u64,
    /// Calls by helper.
    pub(super) helpers: BTreeMap<&'static str, u64>,
}

/// Memory, states and counts of one call.
pub(super) struct Files {
    regions: BTreeMap<u64, Region>,
    states: States,
    started: Instant,
    pub(super) counts: Counts,
}

impl Files {
    pub(super) fn open(memory: &[Memory], program: &Program) -> Result<Self, Failure> {
        let mut regions: BTreeMap<u64, Region> = BTreeMap::new();
        for Memory { region, file } in memory {
            let bytes = input_file::read_region(file)?;
            // A pipe of the shell (`<(...)`) has no canonical path.
            let canonical = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
            if let Some(number) =
                regions.keys().find(|number| regions[number].canonical == canonical)
            {
                return Err(Failure::usage(format!(
                    "{}: it is region {number} already: a file is one region",
                    file.display()
                )));
            }
            let original = bytes.clone();
            let new = Region { file: file.clone(), canonical, bytes, original };
            if let Some(other) = regions.insert(*region, new) {
                return Err(Failure::usage(format!(
                    "region {region} is {} already: give {} another number",
                    other.file.display(),
                    file.display()
                )));
            }
        }
        let states = States::new(&program.states);
        Ok(Self { regions, states, started: Instant::now(), counts: Counts::default() })
    }

    /// Writes changed regions to their files, each atomically; returns the files written.
    pub(super) fn write_back(&self) -> Result<Vec<String>, Failure> {
        let changed = self.regions.values().filter(|region| region.bytes != region.original);
        let write = |region: &Region| {
            result_file::write(&region.file, &region.bytes)
                .map(|()| region.file.display().to_string())
        };
        changed.map(write).collect()
    }

    fn bytes(&mut self, region: u64, offset: u64, length: u64) -> Option<&mut [u8]> {
        let region = self.regions.get_mut(&region)?;
        let from = usize::try_from(offset).ok()?;
        region.bytes.get_mut(from..from.checked_add(usize::try_from(length).ok()?)?)
    }

    fn word<const N: usize>(&mut self, region: u64, offset: u64) -> Option<&mut [u8; N]> {
        self.bytes(region, offset, N as u64)?.try_into().ok()
    }

    /// Returns the word of an atomic; `None` if it is misaligned, as adapters require.
    fn atomic(&mut self, region: u64, offset: u64) -> Option<&mut [u8; 8]> {
        self.word(region, offset).filter(|_| offset.is_multiple_of(8))
    }

    fn count(&mut self, requests: u64, read: u64, written: u64) {
        self.counts.accesses += 1;
        self.counts.requests += requests;
        self.counts.bytes_read += read;
        self.counts.bytes_written += written;
    }

    fn called(&mut self, call: Call) {
        let name = Helper::with_number(call as u32).map_or("unknown", |helper| helper.name);
        *self.counts.helpers.entry(name).or_default() += 1;
    }

    /// Carries out a helper that returns a word; `None` if it is refused or returns a status.
    fn words(&mut self, request: &Request) -> Option<u64> {
        let [region, offset, c, d, _] = request.arguments;
        match request.call {
            Call::LoadU32 => {
                self.count(1, 4, 0);
                self.word(region, offset).map(|word| u64::from(u32::from_le_bytes(*word)))
            }
            Call::StoreU32 => {
                self.count(1, 0, 4);
                let [a, b, c, d, ..] = c.to_le_bytes();
                self.word(region, offset).map(|word| *word = [a, b, c, d]).map(|()| 0)
            }
            Call::StoreU64 => {
                self.count(1, 0, 8);
                self.word(region, offset).map(|word| *word = c.to_le_bytes()).map(|()| 0)
            }
            Call::CompareSwap => {
                self.count(1, 8, 8);
                let word = self.atomic(region, offset)?;
                let old = u64::from_le_bytes(*word);
                if old == c {
                    *word = d.to_le_bytes();
                }
                Some(old)
            }
            Call::FetchAdd => {
                self.count(1, 8, 8);
                let word = self.atomic(region, offset)?;
                let old = u64::from_le_bytes(*word);
                *word = old.wrapping_add(c).to_le_bytes();
                Some(old)
            }
            Call::Crc32cOf => {
                self.count(1, c, 0);
                // Helper arguments have 64 bits; a CRC has 32.
                let [p, q, r, s, ..] = d.to_le_bytes();
                let previous = u32::from_le_bytes([p, q, r, s]);
                self.bytes(region, offset, c).map(|bytes| u64::from(crc32c(bytes, previous)))
            }
            Call::Xxhash64Of => {
                self.count(1, c, 0);
                self.bytes(region, offset, c).map(|bytes| xxhash64(bytes, d))
            }
            Call::CounterAdd => {
                self.counts.other_calls += 1;
                self.states.add(region, offset, c)
            }
            _ => None,
        }
    }

    /// Carries out a helper that returns a status; `None` for other helpers.
    fn statuses(&mut self, request: &Request, buffers: Buffers<'_>) -> Option<i64> {
        let [a, b, c, ..] = request.arguments;
        let Buffers { inputs, output } = buffers;
        Some(match request.call {
            Call::Write => {
                self.count(1, 0, inputs[0].len() as u64);
                match self.bytes(a, b, inputs[0].len() as u64) {
                    Some(bytes) => {
                        bytes.copy_from_slice(inputs[0]);
                        status::OK
                    }
                    None => status::NOT_PERMITTED,
                }
            }
            Call::ReadVector => self.read_vector(a, inputs[0], output),
            Call::WriteVector => self.write_vector(a, inputs[0], inputs[1]),
            Call::WaitWord => {
                self.counts.other_calls += 1;
                match self.word(a, b).map(|word| u64::from_le_bytes(*word)) {
                    Some(word) if word != c => status::OK,
                    // No other call runs that could change it.
                    Some(_) => status::TIMED_OUT,
                    None => status::NOT_PERMITTED,
                }
            }
            Call::Notify => {
                self.counts.other_calls += 1;
                status::OK
            }
            Call::TimeNs => {
                self.counts.other_calls += 1;
                i64::try_from(self.started.elapsed().as_nanos()).unwrap_or(i64::MAX)
            }
            Call::GlobalRead | Call::GlobalWrite => {
                self.counts.other_calls += 1;
                status::NOT_PERMITTED
            }
            call => {
                let done = self.states.perform(call, [a, b], inputs, output);
                self.counts.other_calls += u64::from(done.is_some());
                done?
            }
        })
    }

    /// Returns the pieces of a vectored access; `None` if one is out of range. The machine has checked that their
    /// lengths add up to the buffer's.
    fn pieces(&mut self, region: u64, pieces: &[u8]) -> Option<Vec<(u64, usize)>> {
        let mut ranges = Vec::new();
        for piece in pieces.chunks_exact(PIECE_BYTES as usize) {
            let (offset, rest) = piece.split_first_chunk()?;
            let offset = u64::from_le_bytes(*offset);
            let length = u32::from_le_bytes(*rest.first_chunk()?);
            self.bytes(region, offset, u64::from(length))?;
            ranges.push((offset, usize::try_from(length).ok()?));
        }
        Some(ranges)
    }

    fn read_vector(&mut self, region: u64, pieces: &[u8], mut out: &mut [u8]) -> i64 {
        let requests = (pieces.len() / PIECE_BYTES as usize) as u64;
        self.count(requests, out.len() as u64, 0);
        let Some(ranges) = self.pieces(region, pieces) else {
            return status::NOT_PERMITTED;
        };
        for (offset, length) in ranges {
            let taken = std::mem::take(&mut out).split_at_mut_checked(length);
            let bytes = self.bytes(region, offset, length as u64);
            let (Some((part, rest)), Some(bytes)) = (taken, bytes) else {
                return status::NOT_PERMITTED;
            };
            part.copy_from_slice(bytes);
            out = rest;
        }
        status::OK
    }

    fn write_vector(&mut self, region: u64, pieces: &[u8], mut from: &[u8]) -> i64 {
        let requests = (pieces.len() / PIECE_BYTES as usize) as u64;
        self.count(requests, 0, from.len() as u64);
        let Some(ranges) = self.pieces(region, pieces) else {
            return status::NOT_PERMITTED;
        };
        for (offset, length) in ranges {
            let taken = from.split_at_checked(length);
            let bytes = self.bytes(region, offset, length as u64);
            let (Some((part, rest)), Some(bytes)) = (taken, bytes) else {
                return status::NOT_PERMITTED;
            };
            bytes.copy_from_slice(part);
            from = rest;
        }
        status::OK
    }
}

impl Near for Files {
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        self.called(Call::LoadU64);
        self.count(1, 8, 0);
        let word = self.word(region, offset).map(|word| u64::from_le_bytes(*word));
        word.map_or(Reply::Refused, Reply::Now)
    }

    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        self.called(Call::Read);
        self.count(1, out.len() as u64, 0);
        let status = match self.bytes(region, offset, out.len() as u64) {
            Some(bytes) => {
                out.copy_from_slice(bytes);
                status::OK
            }
            None => status::NOT_PERMITTED,
        };
        Reply::Now(status.cast_unsigned())
    }

    fn perform(&mut self, request: &Request, buffers: Buffers<'_>) -> Reply {
        self.called(request.call);
        if let Some(word) = self.words(request) {
            return Reply::Now(word);
        }
        match self.statuses(request, buffers) {
            Some(status) => Reply::Now(status.cast_unsigned()),
            None => Reply::Refused,
        }
    }
}
