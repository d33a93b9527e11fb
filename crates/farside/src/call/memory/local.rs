//! Helpers on local memory: loads and stores.

use super::regions::RegionTable;
use super::{
    AccessDenied, HelperMemory, HelperResult, RegionAddress, VectorPiece, chunked, region_address,
};
use farside_base::Access;
use farside_fabric::Arena;
use farside_rmc::helpers::{Hashing, status};
use farside_rmc::run::Request;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The regions of a call; those that are remote are denied as [`AccessDenied::NotLocal`].
#[derive(Clone, Copy)]
pub(crate) struct LocalMemory<'a>(pub(crate) &'a RegionTable);

impl LocalMemory<'_> {
    /// Whether an access is too long for one step.
    pub(crate) fn is_long(&self, region: u64, bytes: usize) -> bool {
        bytes > chunked::WHOLE_BYTES && self.0.is_local(region)
    }

    #[inline]
    pub(crate) fn load_word(&self, (region, offset): RegionAddress) -> Result<u64, AccessDenied> {
        self.0.local(region, offset, 8, Access::READ).map(|arena| load(arena, offset))
    }

    #[inline]
    pub(crate) fn read_into(
        &self,
        (region, offset): RegionAddress,
        out: &mut [u8],
    ) -> Result<(), AccessDenied> {
        let arena = self.0.local(region, offset, out.len() as u64, Access::READ)?;
        arena.read(offset, out).map_err(|_| AccessDenied::NotPermitted)
    }

    /// Passes each piece with its range of the buffer to `each`; all are checked before the first is moved.
    fn vector(
        &self,
        region: u64,
        (pieces, bytes): (&[u8], usize),
        access: Access,
        mut each: impl FnMut(&Arena, u64, Range<usize>),
    ) -> Result<Option<u64>, AccessDenied> {
        let pieces = VectorPiece::all(pieces, bytes)?;
        for VectorPiece { offset, range } in pieces.clone() {
            self.0.local(region, offset, range.len() as u64, access)?;
        }
        for VectorPiece { offset, range } in pieces {
            let arena = self.0.local(region, offset, range.len() as u64, access)?;
            each(arena, offset, range);
        }
        DONE
    }
}

/// The result of helpers that return a status.
const DONE: Result<Option<u64>, AccessDenied> = Ok(Some(status::OK as u64));

impl HelperMemory for LocalMemory<'_> {
    type Address = RegionAddress;
    type Failure = AccessDenied;

    fn decode(request: &Request) -> Result<(RegionAddress, [u64; 2]), AccessDenied> {
        Ok(region_address(request))
    }

    fn load(&mut self, at: RegionAddress, bytes: usize) -> HelperResult<Self> {
        if bytes == 8 {
            return self.load_word(at).map(Some);
        }
        let mut word = [0; 8];
        self.read_into(at, &mut word[..bytes])?;
        Ok(Some(u64::from_le_bytes(word)))
    }

    fn store(
        &mut self,
        (region, offset): RegionAddress,
        value: u64,
        bytes: usize,
    ) -> HelperResult<Self> {
        let arena = self.0.local(region, offset, bytes as u64, Access::WRITE)?;
        if bytes < 8 || arena.store(offset, value, Ordering::Release).is_err() {
            let _ = arena.write(offset, &value.to_le_bytes()[..bytes]);
        }
        DONE
    }

    fn compare_swap(
        &mut self,
        (region, offset): RegionAddress,
        expected: u64,
        new: u64,
    ) -> HelperResult<Self> {
        let arena = self.0.local(region, offset, 8, Access::ATOMIC)?;
        let before = arena.compare_swap(offset, expected, new);
        // Atomics on an unaligned word are refused, as over the network.
        before.map(Some).map_err(|_| AccessDenied::NotPermitted)
    }

    fn fetch_add(&mut self, (region, offset): RegionAddress, add: u64) -> HelperResult<Self> {
        let arena = self.0.local(region, offset, 8, Access::ATOMIC)?;
        arena.fetch_add(offset, add).map(Some).map_err(|_| AccessDenied::NotPermitted)
    }

    fn read(&mut self, at: RegionAddress, output: &mut [u8]) -> HelperResult<Self> {
        self.read_into(at, output)?;
        DONE
    }

    fn write(&mut self, (region, offset): RegionAddress, input: &[u8]) -> HelperResult<Self> {
        let arena = self.0.local(region, offset, input.len() as u64, Access::WRITE)?;
        arena.write(offset, input).map_err(|_| AccessDenied::NotPermitted)?;
        DONE
    }

    fn read_vector(
        &mut self,
        (region, _): RegionAddress,
        pieces: &[u8],
        output: &mut [u8],
    ) -> HelperResult<Self> {
        let bytes = output.len();
        self.vector(region, (pieces, bytes), Access::READ, |arena, offset, range| {
            let _ = arena.read(offset, &mut output[range]);
        })
    }

    fn write_vector(
        &mut self,
        (region, _): RegionAddress,
        pieces: &[u8],
        input: &[u8],
    ) -> HelperResult<Self> {
        self.vector(region, (pieces, input.len()), Access::WRITE, |arena, offset, range| {
            let _ = arena.write(offset, &input[range]);
        })
    }

    fn hash(
        &mut self,
        (region, offset): RegionAddress,
        bytes: u64,
        mut hashing: Hashing,
    ) -> HelperResult<Self> {
        let arena = self.0.local(region, offset, bytes, Access::READ)?;
        let bytes = usize::try_from(bytes).map_err(|_| AccessDenied::NotPermitted)?;
        let hashed = chunked::hash(&mut hashing, arena, offset, bytes);
        hashed.map(|()| Some(hashing.result())).map_err(|_| AccessDenied::NotPermitted)
    }

    /// Pending while the word is unchanged.
    fn wait_word(&mut self, at: RegionAddress, old: u64) -> HelperResult<Self> {
        match self.load_word(at)? {
            word if word == old => Ok(None),
            _ => DONE,
        }
    }
}

/// Loads 8 bytes within bounds; not torn if aligned.
fn load(arena: &Arena, offset: u64) -> u64 {
    arena.load(offset, Ordering::Acquire).unwrap_or_else(|_| {
        let mut word = [0; 8];
        let _ = arena.read(offset, &mut word);
        u64::from_le_bytes(word)
    })
}
