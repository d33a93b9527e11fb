//! Helpers on remote memory: each access becomes one-sided requests, and the call continues when they have
//! completed (003 §5.2).

use super::lent_region::RegionSite;
use super::regions::RegionTable;
use super::{
    AccessDenied, BYTES_PER_ACCESS, HelperMemory, HelperResult, RegionAddress, VectorPiece,
    chunked, perform, region_address,
};
use farside_base::{
    Access, LinkId, LocalSlice, Operation, RegionId, RemoteRegionId, RemoteSlice, Source, Work,
    WorkFlags, WorkId,
};
use farside_fabric::Arena;
use farside_rmc::helpers::{BUFFER_BYTES_MAX, Call, Hashing, status};
use farside_rmc::run::{Buffers, Request};
use std::ops::Range;

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
    kind: RequestKind,
}

#[derive(Clone, Copy, Debug)]
enum RequestKind {
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
        let operation = match self.kind {
            RequestKind::Read => Operation::Read { into: &slices, from: remote },
            RequestKind::Write => {
                Operation::Write { source: Source::Gather(&slices), to: remote, immediate: None }
            }
            RequestKind::FetchAdd(add) => Operation::FetchAdd { at: remote, add, into: slice },
            RequestKind::CompareSwap(expected, new) => {
                Operation::CompareSwap { at: remote, expected, new, into: slice }
            }
        };
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        post(Work { id, link: self.link, flags, operation })
    }
}

/// The regions of a call that are remote. Accesses append their requests to `requests`; outgoing bytes are copied into
/// `block`, where incoming ones will be.
struct RemoteMemory<'a> {
    regions: &'a RegionTable,
    block: &'a Arena,
    requests: &'a mut Vec<MemoryRequest>,
}

impl RemoteMemory<'_> {
    /// Copies outgoing bytes to the beginning of the block.
    fn put(&self, bytes: &[u8]) -> Result<(), AccessDenied> {
        self.block.write(0, bytes).map_err(|_| AccessDenied::NotPermitted)
    }

    /// Appends a request for the bytes of a region that are `range` of the block, if it is permitted.
    fn request(
        &mut self,
        (region, offset): RegionAddress,
        range: Range<usize>,
        kind: RequestKind,
    ) -> Result<Option<u64>, AccessDenied> {
        let access = match kind {
            RequestKind::Read => Access::READ,
            RequestKind::Write => Access::WRITE,
            RequestKind::FetchAdd(_) | RequestKind::CompareSwap(..) => Access::ATOMIC,
        };
        if access == Access::ATOMIC && !offset.is_multiple_of(8) {
            return Err(AccessDenied::NotPermitted);
        }
        match self.regions.region(region, offset, range.len() as u64, access)?.site {
            RegionSite::Remote(link, region) => {
                let (at, bytes) = (range.start as u64, range.len() as u32);
                self.requests.push(MemoryRequest { link, region, offset, at, bytes, kind });
                Ok(None)
            }
            RegionSite::Lost => Err(AccessDenied::Lost),
            RegionSite::Local(_) => Err(AccessDenied::NotLocal),
        }
    }

    /// Appends a request for each piece that is not empty.
    fn vector(
        &mut self,
        region: u64,
        (pieces, bytes): (&[u8], usize),
        kind: RequestKind,
    ) -> Result<Option<u64>, AccessDenied> {
        for VectorPiece { offset, range } in VectorPiece::all(pieces, bytes)? {
            if !range.is_empty() {
                self.request((region, offset), range, kind)?;
            }
        }
        Ok(None)
    }
}

impl HelperMemory for RemoteMemory<'_> {
    type Address = RegionAddress;
    type Failure = AccessDenied;

    fn decode(request: &Request) -> Result<(RegionAddress, [u64; 2]), AccessDenied> {
        Ok(region_address(request))
    }

    fn load(&mut self, at: RegionAddress, bytes: usize) -> HelperResult<Self> {
        self.request(at, 0..bytes, RequestKind::Read)
    }

    fn store(&mut self, at: RegionAddress, value: u64, bytes: usize) -> HelperResult<Self> {
        self.put(&value.to_le_bytes()[..bytes])?;
        self.request(at, 0..bytes, RequestKind::Write)
    }

    fn compare_swap(&mut self, at: RegionAddress, expected: u64, new: u64) -> HelperResult<Self> {
        self.request(at, 0..8, RequestKind::CompareSwap(expected, new))
    }

    fn fetch_add(&mut self, at: RegionAddress, add: u64) -> HelperResult<Self> {
        self.request(at, 0..8, RequestKind::FetchAdd(add))
    }

    fn read(&mut self, at: RegionAddress, output: &mut [u8]) -> HelperResult<Self> {
        match output.len() {
            0 => Ok(None),
            bytes => self.request(at, 0..bytes, RequestKind::Read),
        }
    }

    fn write(&mut self, at: RegionAddress, input: &[u8]) -> HelperResult<Self> {
        if input.is_empty() {
            return Ok(None);
        }
        self.put(input)?;
        self.request(at, 0..input.len(), RequestKind::Write)
    }

    fn read_vector(
        &mut self,
        (region, _): RegionAddress,
        pieces: &[u8],
        output: &mut [u8],
    ) -> HelperResult<Self> {
        self.vector(region, (pieces, output.len()), RequestKind::Read)
    }

    fn write_vector(
        &mut self,
        (region, _): RegionAddress,
        pieces: &[u8],
        input: &[u8],
    ) -> HelperResult<Self> {
        self.put(input)?;
        self.vector(region, (pieces, input.len()), RequestKind::Write)
    }

    /// Requests the first block of the range.
    fn hash(
        &mut self,
        (region, offset): RegionAddress,
        bytes: u64,
        _: Hashing,
    ) -> HelperResult<Self> {
        // The whole range must be permitted before the first byte is read.
        self.regions.region(region, offset, bytes, Access::READ)?;
        match block_bytes(bytes) {
            0 => Ok(None),
            bytes => self.request((region, offset), 0..bytes, RequestKind::Read),
        }
    }

    fn wait_word(&mut self, at: RegionAddress, _: u64) -> HelperResult<Self> {
        self.request(at, 0..8, RequestKind::Read)
    }
}

/// Returns the bytes that one request hashes if this many are left.
fn block_bytes(left: u64) -> usize {
    usize::try_from(left.min(BLOCK_BYTES)).unwrap_or(0)
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
}

impl RemoteAccess {
    /// Begins an access: appends its requests to `requests` and copies outgoing bytes into the block.
    pub(crate) fn begin(
        request: &Request,
        buffers: &mut Buffers<'_>,
        regions: &RegionTable,
        block: &Arena,
        requests: &mut Vec<MemoryRequest>,
    ) -> Result<Self, AccessDenied> {
        perform(&mut RemoteMemory { regions, block, requests }, request, buffers)?;
        let hashing = Hashing::of(request.call, request.arguments[3]);
        Ok(Self { request: *request, hashing, hashed: 0, of_block: 0 })
    }

    /// Hashes of the block as much as the slice has `left`; returns whether that is all of it.
    fn hash(&mut self, block: &Arena, left: &mut usize) -> Result<bool, AccessDenied> {
        let bytes = block_bytes(self.request.arguments[2].saturating_sub(self.hashed));
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

    /// Handles the completion of all its requests. Both lists are empty on entry. Continues as long as the slice has
    /// something `left`; a wait for a word that `is_late` is over.
    pub(crate) fn poll(
        &mut self,
        (regions, block): (&RegionTable, &Arena),
        (left, is_late): (&mut usize, bool),
        bytes: &mut Vec<u8>,
        requests: &mut Vec<MemoryRequest>,
    ) -> Result<RemoteProgress, AccessDenied> {
        let (at, [third, _]) = region_address(&self.request);
        let mut memory = RemoteMemory { regions, block, requests };
        let word = || {
            let mut word = [0; 8];
            block.read(0, &mut word).map(|()| u64::from_le_bytes(word)).unwrap_or(0)
        };
        let answer = |result| Ok(RemoteProgress::Answer(result));
        match self.request.call {
            Call::LoadU64 | Call::FetchAdd | Call::CompareSwap => answer(word()),
            Call::LoadU32 => answer(word() & u64::from(u32::MAX)),
            Call::WaitWord if word() == third && is_late => answer(status::TIMED_OUT as u64),
            Call::WaitWord if word() == third => {
                memory.wait_word(at, third)?;
                Ok(RemoteProgress::More)
            }
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
                    let next = (at.0, at.1 + self.hashed);
                    memory.request(next, 0..block_bytes(third - self.hashed), RequestKind::Read)?;
                    return Ok(RemoteProgress::More);
                }
                answer(self.hashing.as_ref().map_or(0, Hashing::result))
            }
            _ => answer(status::OK as u64),
        }
    }
}
