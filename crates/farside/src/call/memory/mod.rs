//! Memory that calls access, by distance: [local](local), [remote](remote), or [global](global) and coherent.
//!
//! [`HelperMemory`] is what helpers need of a memory. [`perform`] decodes their requests for each kind of memory.

pub(crate) mod chunked;
pub(crate) mod direct_loads;
pub(crate) mod global;
pub(crate) mod lent_region;
pub(crate) mod local;
pub(crate) mod regions;
pub(crate) mod remote;

use crate::{Error, ErrorCode};
use farside_rmc::helpers::{Call, Hashing, PIECE_BYTES};
use farside_rmc::run::{Buffers, Request};

/// Bytes that cost as much as an access.
pub(crate) const BYTES_PER_ACCESS: usize = 64;

/// Why memory was not accessed. Programs see it as a `status` or as the end of the call.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessDenied {
    /// The region is unknown, too short or does not allow this access.
    NotPermitted,
    /// The region is remote.
    NotLocal,
    /// The region was remote, and its link is lost.
    Lost,
}

impl From<AccessDenied> for Error {
    fn from(_: AccessDenied) -> Self {
        Self::with(ErrorCode::NotPermitted, "the program may not access this memory")
    }
}

/// A helper's result, or `None` if its access is pending.
pub(crate) type HelperResult<M> = Result<Option<u64>, <M as HelperMemory>::Failure>;

/// Memory that helpers access. Each method performs a helper of its name, for one or several sizes of words.
///
/// A pending access completes later, or has to be begun at another memory; it has no effect on `output`.
pub(crate) trait HelperMemory {
    /// Position of a byte.
    type Address: Copy;
    /// Why an access fails.
    type Failure: From<AccessDenied>;

    /// Decodes the address of a request, and the two arguments after it.
    fn decode(request: &Request) -> Result<(Self::Address, [u64; 2]), Self::Failure>;

    fn load(&mut self, at: Self::Address, bytes: usize) -> HelperResult<Self>;

    fn store(&mut self, at: Self::Address, value: u64, bytes: usize) -> HelperResult<Self>;

    fn compare_swap(&mut self, at: Self::Address, expected: u64, new: u64) -> HelperResult<Self>;

    fn fetch_add(&mut self, at: Self::Address, add: u64) -> HelperResult<Self>;

    fn read(&mut self, at: Self::Address, output: &mut [u8]) -> HelperResult<Self>;

    fn write(&mut self, at: Self::Address, input: &[u8]) -> HelperResult<Self>;

    /// Reads the pieces of a region into consecutive bytes.
    fn read_vector(
        &mut self,
        _at: Self::Address,
        _pieces: &[u8],
        _output: &mut [u8],
    ) -> HelperResult<Self> {
        Err(AccessDenied::NotPermitted.into())
    }

    /// Writes consecutive bytes to the pieces of a region.
    fn write_vector(
        &mut self,
        _at: Self::Address,
        _pieces: &[u8],
        _input: &[u8],
    ) -> HelperResult<Self> {
        Err(AccessDenied::NotPermitted.into())
    }

    fn hash(&mut self, _at: Self::Address, _bytes: u64, _hashing: Hashing) -> HelperResult<Self> {
        Err(AccessDenied::NotPermitted.into())
    }

    /// Waits until a word differs from `old`.
    fn wait_word(&mut self, _at: Self::Address, _old: u64) -> HelperResult<Self> {
        Err(AccessDenied::NotPermitted.into())
    }
}

/// Performs a helper on a memory.
#[inline]
pub(crate) fn perform<M: HelperMemory>(
    memory: &mut M,
    request: &Request,
    buffers: &mut Buffers<'_>,
) -> HelperResult<M> {
    let (at, [third, fourth]) = M::decode(request)?;
    let Buffers { inputs: [input, vector_input], output } = buffers;
    match request.call {
        Call::LoadU64 | Call::GlobalLoadU64 => memory.load(at, 8),
        Call::LoadU32 => memory.load(at, 4),
        Call::StoreU64 | Call::GlobalStoreU64 => memory.store(at, third, 8),
        Call::StoreU32 => memory.store(at, third, 4),
        Call::CompareSwap | Call::GlobalCompareSwap => memory.compare_swap(at, third, fourth),
        Call::FetchAdd | Call::GlobalFetchAdd => memory.fetch_add(at, third),
        Call::Read | Call::GlobalRead => memory.read(at, output),
        Call::Write | Call::GlobalWrite => memory.write(at, input),
        Call::ReadVector => memory.read_vector(at, input, output),
        Call::WriteVector => memory.write_vector(at, input, vector_input),
        Call::WaitWord => memory.wait_word(at, third),
        call => match Hashing::of(call, fourth) {
            Some(hashing) => memory.hash(at, third, hashing),
            None => Err(AccessDenied::NotPermitted.into()),
        },
    }
}

/// A region's number and an offset in it.
pub(crate) type RegionAddress = (u64, u64);

/// Decodes a request on a region.
pub(crate) const fn region_address(request: &Request) -> (RegionAddress, [u64; 2]) {
    let [region, offset, third, fourth, _] = request.arguments;
    ((region, offset), [third, fourth])
}

/// A piece of a vectored access: its offset in the region and its range of the buffer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct VectorPiece {
    pub(crate) offset: u64,
    pub(crate) range: std::ops::Range<usize>,
}

impl VectorPiece {
    /// Decodes the pieces of a program; an error unless their lengths sum to exactly `bytes`.
    pub(crate) fn all(
        pieces: &[u8],
        bytes: usize,
    ) -> Result<impl Iterator<Item = Self> + Clone, AccessDenied> {
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
        let is_valid = end == bytes && pieces.clone().count() == count;
        is_valid.then_some(pieces).ok_or(AccessDenied::NotPermitted)
    }
}
