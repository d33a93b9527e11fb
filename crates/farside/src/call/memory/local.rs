//! Helpers on local memory: loads and stores instead of work requests.

use crate::call::executor::state::{Declared, Done, Holder};
use crate::call::memory::chunked::{self, WHOLE_BYTES};
use crate::call::memory::global::{GlobalMemory, MissSession, is_global, orders};
use crate::call::memory::regions::{AccessDenied, RegionTable};
use farside_base::Access;
use farside_fabric::Arena;
use farside_rmc::helpers::{Call, Hashing, PIECE_BYTES, status};
use farside_rmc::run::{Buffers, Near, Reply, Request};
use std::sync::atomic::Ordering;

/// Bytes that cost as much as an access.
pub(crate) const BYTES_PER_ACCESS: usize = 64;

/// Most bytes of a notification, and most notifications that have not been sent yet.
const NOTICE_BYTES_MAX: usize = 4096;
const NOTICES_MAX: usize = 256;

/// A notification for subscribers of a topic.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Notification {
    pub(crate) topic: u64,
    pub(crate) bytes: Vec<u8>,
}

/// The resources that a call can access during a slice.
pub(crate) struct Beside<'a> {
    pub(crate) memory: &'a RegionTable,
    pub(crate) own: &'a mut Declared,
    pub(crate) shared: &'a mut Declared,
    /// Time since the executor started.
    pub(crate) now_ns: u64,
    /// Accesses that the slice has left; later ones wait for the next slice.
    pub(crate) left: usize,
    pub(crate) holder: Holder,
    pub(crate) notifications: &'a mut Vec<Notification>,
    /// The global memory, if calls may access it.
    pub(crate) global: Option<&'a mut GlobalMemory>,
    /// The call's session, while it has operations pending in the global memory.
    pub(crate) miss: Option<&'a mut MissSession>,
    /// Why the last request was deferred, if it was.
    pub(crate) deferral: Option<Deferral>,
}

/// Why a request was not answered at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Deferral {
    /// The slice is over.
    Slice,
    /// Its buffer is long; it proceeds in chunks.
    Chunked,
    /// The memory is remote.
    Remote,
    /// Another call holds the lock.
    Lock,
    /// The word is unchanged.
    Word,
    /// The access to the global memory misses, or must wait for writes of the call.
    Global,
}

impl Beside<'_> {
    /// Consumes the cost of this many bytes; returns whether the slice had any left.
    fn takes(&mut self, bytes: usize) -> bool {
        if self.left == 0 {
            self.deferral = Some(Deferral::Slice);
            return false;
        }
        self.left = self.left.saturating_sub(1 + bytes / BYTES_PER_ACCESS);
        true
    }

    fn later(&mut self, why: Deferral) -> Reply {
        self.deferral = Some(why);
        Reply::Later
    }

    /// Whether an access to local memory is too long for one step.
    fn is_long(&self, region: u64, bytes: usize) -> bool {
        bytes > WHOLE_BYTES && self.memory.is_here(region)
    }

    /// Returns the status of an access for a helper that returns one.
    fn status(&mut self, result: Result<(), AccessDenied>) -> Reply {
        match result {
            Ok(()) => Reply::Now(0),
            Err(AccessDenied::NotPermitted) => Reply::Now(status::NOT_PERMITTED as u64),
            Err(AccessDenied::NotLocal | AccessDenied::Lost) => self.later(Deferral::Remote),
        }
    }

    /// Returns the word of an access; ends the call if it is denied, for helpers without a status.
    fn word(&mut self, result: Result<u64, AccessDenied>) -> Reply {
        match result {
            Ok(word) => Reply::Now(word),
            Err(AccessDenied::NotPermitted) => Reply::Refused,
            Err(AccessDenied::NotLocal | AccessDenied::Lost) => self.later(Deferral::Remote),
        }
    }

    fn read_into(&self, region: u64, offset: u64, out: &mut [u8]) -> Result<(), AccessDenied> {
        let arena = self.memory.here(region, offset, out.len() as u64, Access::READ)?;
        arena.read(offset, out).map_err(|_| AccessDenied::NotPermitted)
    }

    fn write_from(&self, region: u64, offset: u64, bytes: &[u8]) -> Result<(), AccessDenied> {
        let arena = self.memory.here(region, offset, bytes.len() as u64, Access::WRITE)?;
        arena.write(offset, bytes).map_err(|_| AccessDenied::NotPermitted)
    }

    /// Passes each piece with its range of the buffer to `each`; all are checked before the first is moved.
    fn pieces(
        &self,
        region: u64,
        pieces: &[u8],
        bytes: usize,
        access: Access,
        mut each: impl FnMut(&Arena, u64, std::ops::Range<usize>),
    ) -> Result<(), AccessDenied> {
        let pieces = Piece::all(pieces, bytes).ok_or(AccessDenied::NotPermitted)?;
        for Piece { offset, range } in pieces.clone() {
            self.memory.here(region, offset, range.len() as u64, access)?;
        }
        for Piece { offset, range } in pieces {
            let arena = self.memory.here(region, offset, range.len() as u64, access)?;
            each(arena, offset, range);
        }
        Ok(())
    }

    fn hash(&self, request: &Request) -> Result<u64, AccessDenied> {
        let [region, offset, length, seed, _] = request.arguments;
        let arena = self.memory.here(region, offset, length, Access::READ)?;
        let mut hashing = Hashing::of(request.call, seed).ok_or(AccessDenied::NotPermitted)?;
        let bytes = usize::try_from(length).map_err(|_| AccessDenied::NotPermitted)?;
        let hashed = chunked::hash(&mut hashing, arena, offset, bytes);
        hashed.map(|()| hashing.result()).map_err(|_| AccessDenied::NotPermitted)
    }

    fn host(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let [region, offset, third, fourth, _] = request.arguments;
        let Buffers { inputs: [first, _], output } = &mut *buffers;
        let here = |access, bytes| self.memory.here(region, offset, bytes, access);
        match request.call {
            Call::StoreU64 => {
                let stored = here(Access::WRITE, 8).map(|arena| store(arena, offset, third));
                self.word(stored.map(|()| 0))
            }
            Call::LoadU32 => {
                let mut word = [0; 4];
                let read = self.read_into(region, offset, &mut word);
                self.word(read.map(|()| u32::from_le_bytes(word).into()))
            }
            Call::StoreU32 => {
                let bytes = (third as u32).to_le_bytes();
                let written = self.write_from(region, offset, &bytes);
                self.word(written.map(|()| 0))
            }
            Call::CompareSwap | Call::FetchAdd => {
                let swapped = here(Access::ATOMIC, 8).and_then(|arena| {
                    let before = match request.call {
                        Call::FetchAdd => arena.fetch_add(offset, third),
                        _ => arena.compare_swap(offset, third, fourth),
                    };
                    // Atomics on an unaligned word are refused, as over the network.
                    before.map_err(|_| AccessDenied::NotPermitted)
                });
                self.word(swapped)
            }
            Call::Read => {
                let read = self.read_into(region, offset, output);
                self.status(read)
            }
            Call::Write => {
                let written = self.write_from(region, offset, first);
                self.status(written)
            }
            Call::ReadVector | Call::WriteVector => self.vector(request, buffers),
            Call::Crc32cOf | Call::Xxhash64Of => {
                let hash = self.hash(request);
                self.word(hash)
            }
            Call::WaitWord => {
                let now = here(Access::READ, 8).map(|arena| load(arena, offset));
                match now {
                    Ok(word) if word == third => self.later(Deferral::Word),
                    other => self.status(other.map(|_| ())),
                }
            }
            _ => Reply::Refused,
        }
    }

    fn global(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let miss = self.miss.as_deref_mut();
        let global = self.global.as_mut();
        match global.and_then(|global| global.hit(miss, request, buffers)) {
            Some(result) => Reply::Now(result),
            None => self.later(Deferral::Global),
        }
    }

    fn vector(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let region = request.arguments[0];
        let Buffers { inputs: [first, second], output } = buffers;
        let done = if request.call == Call::ReadVector {
            let bytes = output.len();
            self.pieces(region, first, bytes, Access::READ, |arena, at, range| {
                let _ = arena.read(at, &mut output[range]);
            })
        } else {
            let bytes = second.len();
            self.pieces(region, first, bytes, Access::WRITE, |arena, at, range| {
                let _ = arena.write(at, &second[range]);
            })
        };
        self.status(done)
    }

    fn state(&mut self, request: &Request, buffers: &mut Buffers<'_>) -> Reply {
        let Buffers { inputs, output } = buffers;
        let mut perform = |states: &mut Declared| {
            states.perform(request.call, &request.arguments, *inputs, output, self.holder)
        };
        let done = match perform(self.own) {
            Done::Elsewhere => perform(self.shared),
            done => done,
        };
        // At most one allocation per slice bounds the delay of other calls.
        if self.own.take_made() | self.shared.take_made() {
            self.left = 0;
        }
        match done {
            Done::Result(result) => Reply::Now(result),
            Done::Held => self.later(Deferral::Lock),
            Done::Elsewhere => Reply::Now(status::NOT_PERMITTED as u64),
        }
    }
}

impl Near for Beside<'_> {
    #[inline]
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        if !self.takes(8) {
            return Reply::Later;
        }
        let loaded = self.memory.here(region, offset, 8, Access::READ);
        self.word(loaded.map(|arena| load(arena, offset)))
    }

    #[inline]
    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        if self.is_long(region, out.len()) {
            return self.later(Deferral::Chunked);
        }
        if !self.takes(out.len()) {
            return Reply::Later;
        }
        let read = self.read_into(region, offset, out);
        self.status(read)
    }

    fn perform(&mut self, request: &Request, mut buffers: Buffers<'_>) -> Reply {
        let moved = chunked::moved(request);
        if self.is_long(request.arguments[0], moved) {
            return self.later(Deferral::Chunked);
        }
        let others = buffers.inputs.iter().map(|input| input.len()).sum::<usize>();
        if !self.takes(others.max(moved).max(buffers.output.len())) {
            return Reply::Later;
        }
        if orders(request.call) && self.miss.as_deref_mut().is_some_and(|miss| !miss.settle()) {
            return self.later(Deferral::Global);
        }
        match request.call {
            call if is_global(call) => self.global(request, &mut buffers),
            Call::LoadU64 => {
                let [region, offset, ..] = request.arguments;
                let loaded = self.memory.here(region, offset, 8, Access::READ);
                self.word(loaded.map(|arena| load(arena, offset)))
            }
            Call::ArrayRead
            | Call::ArrayWrite
            | Call::CounterAdd
            | Call::MapGet
            | Call::MapPut
            | Call::MapRemove
            | Call::Lock
            | Call::TryLock
            | Call::Unlock => self.state(request, &mut buffers),
            Call::TimeNs => Reply::Now(self.now_ns),
            Call::Notify if buffers.inputs[0].len() > NOTICE_BYTES_MAX => {
                Reply::Now(status::OUT_OF_RANGE as u64)
            }
            Call::Notify if self.notifications.len() >= NOTICES_MAX => self.later(Deferral::Slice),
            Call::Notify => {
                let bytes = buffers.inputs[0].to_vec();
                self.notifications.push(Notification { topic: request.arguments[0], bytes });
                Reply::Now(0)
            }
            _ => self.host(request, &mut buffers),
        }
    }
}

/// A piece of a vectored access: its offset in the region and its range of the buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Piece {
    pub(crate) offset: u64,
    pub(crate) range: std::ops::Range<usize>,
}

impl Piece {
    /// Decodes the pieces of a program; `None` unless their lengths sum to exactly `bytes`.
    pub(crate) fn all(pieces: &[u8], bytes: usize) -> Option<impl Iterator<Item = Self> + Clone> {
        let count = pieces.len() / PIECE_BYTES as usize;
        let pieces = pieces.chunks_exact(PIECE_BYTES as usize).scan(0_usize, |end, piece| {
            let (offset, rest) = piece.split_first_chunk::<8>()?;
            let (length, zero) = rest.split_first_chunk::<4>()?;
            let length = usize::try_from(u32::from_le_bytes(*length)).ok()?;
            let start = *end;
            *end = start.checked_add(length).filter(|_| *zero == [0; 4])?;
            Some(Self { offset: u64::from_le_bytes(*offset), range: start..*end })
        });
        let end = pieces.clone().last().map_or(0, |last| last.range.end);
        (end == bytes && pieces.clone().count() == count).then_some(pieces)
    }
}

/// VerificationQueue 8 bytes within bounds; not torn if aligned.
fn load(arena: &Arena, offset: u64) -> u64 {
    arena.load(offset, Ordering::Acquire).unwrap_or_else(|_| {
        let mut word = [0; 8];
        let _ = arena.read(offset, &mut word);
        u64::from_le_bytes(word)
    })
}

fn store(arena: &Arena, offset: u64, value: u64) {
    if arena.store(offset, value, Ordering::Release).is_err() {
        let _ = arena.write(offset, &value.to_le_bytes());
    }
}
