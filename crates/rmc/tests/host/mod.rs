//! Executors for tests: one with memory and state, one that answers zero to everything.
#![allow(dead_code, reason = "each test takes what it needs")]

use std::collections::HashMap;

use farside_rmc::Program;
use farside_rmc::helpers::{Call, StateKind, crc32c, status, xxhash64};
use farside_rmc::run::{Buffers, Near, Outcome, Reply, Request, Stop};

/// Regions of memory, and states by handle.
#[derive(Clone, Default)]
pub(crate) struct TestHost {
    pub(crate) regions: Vec<Vec<u8>>,
    /// The global memory, of node 0 in lines of any size.
    pub(crate) global: Vec<u8>,
    states: Vec<DeclaredState>,
    clock_ns: u64,
}

#[derive(Clone)]
enum DeclaredState {
    Array(Vec<Vec<u8>>),
    Counters(Vec<u64>),
    Map(HashMap<Vec<u8>, Vec<u8>>, usize),
    Locks(Vec<bool>),
}

impl TestHost {
    pub(crate) fn new(regions: Vec<Vec<u8>>) -> Self {
        Self { regions, ..Self::default() }
    }

    pub(crate) fn for_program(regions: Vec<Vec<u8>>, program: &Program) -> Self {
        let states = program.states.iter().map(|state| {
            let entries = state.entries as usize;
            match state.kind {
                StateKind::Array => {
                    DeclaredState::Array(vec![vec![0; state.value_bytes as usize]; entries])
                }
                StateKind::Counters => DeclaredState::Counters(vec![0; entries]),
                StateKind::Map => DeclaredState::Map(HashMap::new(), entries),
                StateKind::Locks => DeclaredState::Locks(vec![false; entries]),
            }
        });
        Self { regions, states: states.collect(), ..Self::default() }
    }

    fn bytes(&mut self, region: u64, offset: u64, length: u64) -> Option<&mut [u8]> {
        let region = self.regions.get_mut(usize::try_from(region).ok()?)?;
        let from = usize::try_from(offset).ok()?;
        region.get_mut(from..from.checked_add(usize::try_from(length).ok()?)?)
    }

    fn word(&mut self, region: u64, offset: u64) -> Option<u64> {
        let bytes = self.bytes(region, offset, 8)?;
        Some(u64::from_le_bytes((&*bytes).try_into().ok()?))
    }

    /// Words: `None` is refused.
    fn words(&mut self, request: &Request) -> Option<u64> {
        let [a, b, c, d, _] = request.arguments;
        Some(match request.call {
            Call::LoadU64 => self.word(a, b)?,
            Call::LoadU32 => {
                let bytes = self.bytes(a, b, 4)?;
                u64::from(u32::from_le_bytes((&*bytes).try_into().ok()?))
            }
            Call::StoreU64 => {
                self.bytes(a, b, 8)?.copy_from_slice(&c.to_le_bytes());
                0
            }
            Call::StoreU32 => {
                self.bytes(a, b, 4)?.copy_from_slice(&(c as u32).to_le_bytes());
                0
            }
            Call::CompareSwap => {
                let old = self.word(a, b)?;
                if old == c {
                    self.bytes(a, b, 8)?.copy_from_slice(&d.to_le_bytes());
                }
                old
            }
            Call::FetchAdd => {
                let old = self.word(a, b)?;
                self.bytes(a, b, 8)?.copy_from_slice(&old.wrapping_add(c).to_le_bytes());
                old
            }
            Call::Crc32cOf => u64::from(crc32c(self.bytes(a, b, c)?, d as u32)),
            Call::Xxhash64Of => xxhash64(self.bytes(a, b, c)?, d),
            Call::CounterAdd => match self.states.get_mut(a as usize)? {
                DeclaredState::Counters(counters) => {
                    let counter = counters.get_mut(usize::try_from(b).ok()?)?;
                    *counter = counter.wrapping_add(c);
                    *counter
                }
                _ => return None,
            },
            _ => return None,
        })
    }

    /// Everything with a status: `None` where this host does not know it.
    fn statuses(&mut self, request: &Request, buffers: Buffers<'_>) -> Option<i64> {
        let [a, b, ..] = request.arguments;
        let Buffers { inputs, output } = buffers;
        if let Some(status) = self.regions_and_time(request, &inputs, output) {
            return Some(status);
        }
        let state = self.states.get_mut(a as usize)?;
        Some(match (request.call, state) {
            (Call::ArrayRead, DeclaredState::Array(values)) => match values.get(b as usize) {
                Some(value) => copied(value, output),
                None => status::OUT_OF_RANGE,
            },
            (Call::ArrayWrite, DeclaredState::Array(values)) => match values.get_mut(b as usize) {
                Some(value) => copied(inputs[0], value),
                None => status::OUT_OF_RANGE,
            },
            (Call::MapGet, DeclaredState::Map(map, _)) => match map.get(inputs[0]) {
                Some(value) => copied(value, output),
                None => status::NOT_FOUND,
            },
            (Call::MapPut, DeclaredState::Map(map, most)) => {
                if map.len() >= *most && !map.contains_key(inputs[0]) {
                    return Some(status::FULL);
                }
                map.insert(inputs[0].to_vec(), inputs[1].to_vec());
                status::OK
            }
            (Call::MapRemove, DeclaredState::Map(map, _)) => match map.remove(inputs[0]) {
                Some(_) => status::OK,
                None => status::NOT_FOUND,
            },
            (Call::Lock | Call::TryLock | Call::Unlock, DeclaredState::Locks(locks)) => {
                let takes = request.call != Call::Unlock;
                match locks.get_mut(b as usize) {
                    Some(true) if takes => status::BUSY,
                    Some(held) => {
                        *held = takes;
                        status::OK
                    }
                    None => status::OUT_OF_RANGE,
                }
            }
            _ => return None,
        })
    }

    fn regions_and_time(
        &mut self,
        request: &Request,
        inputs: &[&[u8]; 2],
        output: &mut [u8],
    ) -> Option<i64> {
        let [a, b, ..] = request.arguments;
        let refused = status::NOT_PERMITTED;
        Some(match request.call {
            Call::GlobalRead => {
                let (class, from) = (a >> 42 & 15, usize::try_from(a & ((1 << 42) - 1)).ok()?);
                let end = from.checked_add(output.len())?;
                match self.global.get(from..end).filter(|_| class <= 10 && a >> 46 == 0) {
                    Some(bytes) => copied(bytes, output),
                    None => refused,
                }
            }
            Call::Write => match self.bytes(a, b, inputs[0].len() as u64) {
                Some(bytes) => copied(inputs[0], bytes),
                None => refused,
            },
            Call::ReadVector => {
                let mut from = 0;
                for piece in inputs[0].chunks_exact(16) {
                    let offset = u64::from_le_bytes(piece[..8].try_into().ok()?);
                    let length = u32::from_le_bytes(piece[8..12].try_into().ok()?) as usize;
                    match self.bytes(a, offset, length as u64) {
                        Some(bytes) => output[from..from + length].copy_from_slice(bytes),
                        None => return Some(refused),
                    }
                    from += length;
                }
                status::OK
            }
            Call::WaitWord => match self.word(a, b) {
                Some(word) if word != request.arguments[2] => status::OK,
                Some(_) => status::TIMED_OUT,
                None => refused,
            },
            Call::Notify => status::OK,
            Call::TimeNs => {
                self.clock_ns += 10;
                self.clock_ns as i64
            }
            _ => return None,
        })
    }
}

fn copied(from: &[u8], to: &mut [u8]) -> i64 {
    to.copy_from_slice(from);
    status::OK
}

impl Near for TestHost {
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        self.word(region, offset).map_or(Reply::Refused, Reply::Now)
    }

    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        let status = match self.bytes(region, offset, out.len() as u64) {
            Some(bytes) => copied(bytes, out),
            None => status::NOT_PERMITTED,
        };
        Reply::Now(status as u64)
    }

    fn perform(&mut self, request: &Request, buffers: Buffers<'_>) -> Reply {
        if let Some(word) = self.words(request) {
            return Reply::Now(word);
        }
        match self.statuses(request, buffers) {
            Some(status) => Reply::Now(status as u64),
            None => Reply::Refused,
        }
    }
}

/// Answers zero to everything.
#[derive(Clone, Copy)]
pub(crate) struct Zero;

impl Near for Zero {
    fn load_u64(&mut self, _: u64, _: u64) -> Reply {
        Reply::Now(0)
    }

    fn read(&mut self, _: u64, _: u64, out: &mut [u8]) -> Reply {
        out.fill(0);
        Reply::Now(0)
    }

    fn perform(&mut self, _: &Request, _: Buffers<'_>) -> Reply {
        Reply::Now(0)
    }
}

pub(crate) fn is_fault(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::Stopped(Stop::Fault(_)))
}
