//! Files as the memory of a call, which counts what is done with it.

use super::states::States;
use crate::arguments::Memory;
use crate::failure::Failure;
use crate::{input_file, result_file};
use farside_rmc::Program;
use farside_rmc::helpers::{Call, Helper, PIECE_BYTES, crc32c, status, xxhash64};
use farside_rmc::run::{Buffers, Near, Reply, Request};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

/// A region and its file.
struct Region {
    /// As it was given.
    file: PathBuf,
    /// Where that leads to.
    place: PathBuf,
    bytes: Vec<u8>,
    /// As the file is.
    before: Vec<u8>,
}

/// What a call has done outside of itself.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub(super) struct Counts {
    /// Accesses to regions: without a call beside the memory each is a round trip, since the next one
    /// depends on its answer. The pieces of a vectored access go out together.
    pub(super) accesses: u64,
    /// One-sided requests that these are: pieces are one each.
    pub(super) requests: u64,
    /// Bytes of regions that were read, or hashed where they are.
    pub(super) bytes_read: u64,
    /// Bytes of regions that were written.
    pub(super) bytes_written: u64,
    /// Calls of state, waits, notifications and time, which one-sided requests have nothing for.
    pub(super) other_calls: u64,
    /// All of them by helper.
    pub(super) helpers: BTreeMap<&'static str, u64>,
}

/// An executor for one call.
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
            // A pipe that the shell has made has no name of its own.
            let place = std::fs::canonicalize(file).unwrap_or_else(|_| file.clone());
            if let Some(number) = regions.keys().find(|number| regions[number].place == place) {
                return Err(Failure::usage(format!(
                    "{}: it is region {number} already: a file is one region",
                    file.display()
                )));
            }
            let before = bytes.clone();
            let new = Region { file: file.clone(), place, bytes, before };
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

    /// Writes changed regions to their files, each at once; which they were.
    pub(super) fn write_back(&self) -> Result<Vec<String>, Failure> {
        let changed = self.regions.values().filter(|region| region.bytes != region.before);
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

    /// The eight bytes of an atomic, which are aligned as adapters want them.
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

    /// Helpers that return a word: `None` is refused.
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
                // The helper's arguments are numbers of 64 bits; a CRC has 32.
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

    /// Helpers that return a status: `None` for those that are no such.
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
                    // Nobody else is here who would change it.
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

    /// The pieces of a vectored access, or `None` where one may not be accessed. Their lengths make the
    /// buffer: the machine has seen to that.
    fn pieces(&mut self, region: u64, pieces: &[u8]) -> Option<Vec<(u64, usize)>> {
        let mut places = Vec::new();
        for piece in pieces.chunks_exact(PIECE_BYTES as usize) {
            let (offset, rest) = piece.split_first_chunk()?;
            let offset = u64::from_le_bytes(*offset);
            let length = u32::from_le_bytes(*rest.first_chunk()?);
            self.bytes(region, offset, u64::from(length))?;
            places.push((offset, usize::try_from(length).ok()?));
        }
        Some(places)
    }

    fn read_vector(&mut self, region: u64, pieces: &[u8], mut out: &mut [u8]) -> i64 {
        let requests = (pieces.len() / PIECE_BYTES as usize) as u64;
        self.count(requests, out.len() as u64, 0);
        let Some(places) = self.pieces(region, pieces) else {
            return status::NOT_PERMITTED;
        };
        for (offset, length) in places {
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
        let Some(places) = self.pieces(region, pieces) else {
            return status::NOT_PERMITTED;
        };
        for (offset, length) in places {
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
