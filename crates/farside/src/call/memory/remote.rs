//! Helpers on remote memory: each access becomes one-sided requests, and the call continues when they have
//! completed (003 §5.2).

use crate::call::memory::chunked;
use crate::call::memory::local::{BYTES_PER_ACCESS, Piece};
use crate::call::memory::regions::{AccessDenied, RegionSite, RegionTable};
use farside_base::{
    Access, LinkId, LocalSlice, Operation, RegionId, RemoteRegionId, RemoteSlice, Source, Work,
    WorkFlags, WorkId,
};
use farside_fabric::Arena;
use farside_rmc::helpers::{BUFFER_BYTES_MAX, Call, Hashing, status};
use farside_rmc::run::Request;

/// Bytes of scratch memory of a waiting call: the longest buffer of a helper.
pub(crate) const BLOCK_BYTES: u64 = BUFFER_BYTES_MAX as u64;

/// One work request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemoryRequest {
    pub(crate) link: LinkId,
    region: RemoteRegionId,
    offset: u64,
    /// Offset within the block.
    at: u64,
    bytes: u32,
    what: What,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Read,
    Write,
    FetchAdd(u64),
    CompareSwap(u64, u64),
}

impl MemoryRequest {
    /// Posts it as a work request whose bytes are in the block at `block` of region `scratch`.
    pub(crate) fn post<R>(
        &self,
        id: WorkId,
        scratch: RegionId,
        block: u64,
        post: impl FnOnce(Work<'_>) -> R,
    ) -> R {
        let slice = LocalSlice { region: scratch, offset: block + self.at, bytes: self.bytes };
        let remote = RemoteSlice { region: self.region, offset: self.offset };
        let slices = [slice];
        let operation = match self.what {
            What::Read => Operation::Read { into: &slices, from: remote },
            What::Write => {
                Operation::Write { source: Source::Gather(&slices), to: remote, immediate: None }
            }
            What::FetchAdd(add) => Operation::FetchAdd { at: remote, add, into: slice },
            What::CompareSwap(expected, new) => {
                Operation::CompareSwap { at: remote, expected, new, into: slice }
            }
        };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        post(Work { id, link: self.link, flags, operation })
    }
}

/// An access in flight.
#[derive(Debug)]
pub(crate) struct RemoteAccess {
    request: Request,
    /// For a hash: its value so far, the bytes hashed, and the bytes hashed of the present block.
    hashing: Option<Hashing>,
    hashed: u64,
    of_block: usize,
}

/// Outcome of completed requests of an access.
#[derive(Debug)]
pub(crate) enum RemoteProgress {
    /// The helper's result; its output was appended to `bytes`.
    Answer(u64),
    /// More requests are needed, which were appended to `requests`.
    More,
    /// The slice is over.
    Slice,
    /// The awaited word is unchanged: read it again.
    Same,
}

impl RemoteAccess {
    /// Appends the requests of an access to `requests` and copies outgoing bytes into the block.
    pub(crate) fn begin(
        request: &Request,
        inputs: [&[u8]; 2],
        memory: &RegionTable,
        block: &Arena,
        requests: &mut Vec<MemoryRequest>,
    ) -> Result<Self, AccessDenied> {
        let hashing = Hashing::of(request.call, request.arguments[3]);
        let across = Self { request: *request, hashing, hashed: 0, of_block: 0 };
        across.requests(inputs, memory, block, requests)?;
        Ok(across)
    }

    fn requests(
        &self,
        inputs: [&[u8]; 2],
        memory: &RegionTable,
        block: &Arena,
        requests: &mut Vec<MemoryRequest>,
    ) -> Result<(), AccessDenied> {
        let [region, offset, third, fourth, _] = self.request.arguments;
        let request_for = |offset: u64, at: usize, bytes: usize, what: What| {
            request_to(memory, (region, offset), at, bytes, what)
        };
        let put =
            |at: u64, bytes: &[u8]| block.write(at, bytes).map_err(|_| AccessDenied::NotPermitted);
        let read_bytes = self.request.output.map_or(0, |span| span.length as usize);
        let pieces = |bytes, what, requests: &mut Vec<MemoryRequest>| -> Result<(), AccessDenied> {
            let pieces = Piece::all(inputs[0], bytes).ok_or(AccessDenied::NotPermitted)?;
            for one in pieces.filter(|piece| !piece.range.is_empty()) {
                requests.push(request_for(one.offset, one.range.start, one.range.len(), what)?);
            }
            Ok(())
        };
        let one = match self.request.call {
            Call::LoadU64 | Call::WaitWord => request_for(offset, 0, 8, What::Read),
            Call::LoadU32 => request_for(offset, 0, 4, What::Read),
            Call::StoreU64 => {
                put(0, &third.to_le_bytes())?;
                request_for(offset, 0, 8, What::Write)
            }
            Call::StoreU32 => {
                put(0, &(third as u32).to_le_bytes())?;
                request_for(offset, 0, 4, What::Write)
            }
            Call::FetchAdd => request_for(offset, 0, 8, What::FetchAdd(third)),
            Call::CompareSwap => request_for(offset, 0, 8, What::CompareSwap(third, fourth)),
            Call::Read if read_bytes == 0 => return Ok(()),
            Call::Write if inputs[0].is_empty() => return Ok(()),
            Call::Read => request_for(offset, 0, read_bytes, What::Read),
            Call::Write => {
                put(0, inputs[0])?;
                request_for(offset, 0, inputs[0].len(), What::Write)
            }
            Call::ReadVector => return pieces(read_bytes, What::Read, requests),
            Call::WriteVector => {
                put(0, inputs[1])?;
                return pieces(inputs[1].len(), What::Write, requests);
            }
            Call::Crc32cOf | Call::Xxhash64Of => {
                // The whole range must be permitted before the first byte is read.
                memory.region(region, offset, third, Access::READ)?;
                match self.block_bytes() {
                    0 => return Ok(()),
                    bytes => request_for(offset + self.hashed, 0, bytes, What::Read),
                }
            }
            _ => Err(AccessDenied::NotPermitted),
        };
        requests.push(one?);
        Ok(())
    }

    /// Returns the bytes hashed next by one request.
    fn block_bytes(&self) -> usize {
        let left = self.request.arguments[2].saturating_sub(self.hashed);
        usize::try_from(left.min(BLOCK_BYTES)).unwrap_or(0)
    }

    /// Hashes of the block as much as the slice has `left`; returns whether that is all of it.
    fn hash(&mut self, block: &Arena, left: &mut usize) -> Result<bool, AccessDenied> {
        let bytes = self.block_bytes();
        let (from, most) = (self.of_block, left.saturating_mul(BYTES_PER_ACCESS));
        let piece = most.min(bytes - from);
        if let Some(hashing) = &mut self.hashing {
            let hashed = chunked::hash(hashing, block, from as u64, piece);
            hashed.map_err(|_| AccessDenied::NotPermitted)?;
        }
        *left = left.saturating_sub(1 + piece / BYTES_PER_ACCESS);
        self.of_block += piece;
        let whole = self.of_block == bytes;
        if whole {
            self.hashed += bytes as u64;
            self.of_block = 0;
        }
        Ok(whole)
    }

    /// Handles the completion of all requests of the last requests. Both lists are empty on entry. Continues as long
    /// as the slice has something `left`.
    pub(crate) fn come(
        &mut self,
        memory: &RegionTable,
        block: &Arena,
        left: &mut usize,
        bytes: &mut Vec<u8>,
        requests: &mut Vec<MemoryRequest>,
    ) -> Result<RemoteProgress, AccessDenied> {
        let third = self.request.arguments[2];
        let word = || {
            let mut word = [0; 8];
            block.read(0, &mut word).map(|()| u64::from_le_bytes(word)).unwrap_or(0)
        };
        let answer = |result| Ok(RemoteProgress::Answer(result));
        match self.request.call {
            Call::LoadU64 | Call::FetchAdd | Call::CompareSwap => answer(word()),
            Call::LoadU32 => answer(word() & u64::from(u32::MAX)),
            Call::WaitWord if word() == third => Ok(RemoteProgress::Same),
            Call::Read | Call::ReadVector => {
                bytes.resize(self.request.output.map_or(0, |span| span.length as usize), 0);
                block.read(0, bytes).map_err(|_| AccessDenied::NotPermitted)?;
                answer(status::OK as u64)
            }
            Call::Crc32cOf | Call::Xxhash64Of => {
                if !self.hash(block, left)? {
                    return Ok(RemoteProgress::Slice);
                }
                if self.hashed < third {
                    self.requests([&[], &[]], memory, block, requests)?;
                    return Ok(RemoteProgress::More);
                }
                answer(self.hashing.as_ref().map_or(0, Hashing::result))
            }
            _ => answer(status::OK as u64),
        }
    }
}

/// Returns a request for a range of a region, if this access is permitted.
fn request_to(
    memory: &RegionTable,
    (region, offset): (u64, u64),
    at: usize,
    bytes: usize,
    what: What,
) -> Result<MemoryRequest, AccessDenied> {
    let access = match what {
        What::Read => Access::READ,
        What::Write => Access::WRITE,
        What::FetchAdd(_) | What::CompareSwap(..) => Access::ATOMIC,
    };
    if access == Access::ATOMIC && !offset.is_multiple_of(8) {
        return Err(AccessDenied::NotPermitted);
    }
    match memory.region(region, offset, bytes as u64, access)?.site {
        RegionSite::Remote(link, region) => {
            let (at, bytes) = (at as u64, bytes as u32);
            Ok(MemoryRequest { link, region, offset, at, bytes, what })
        }
        RegionSite::Lost => Err(AccessDenied::Lost),
        RegionSite::Local(_) => Err(AccessDenied::NotLocal),
    }
}
