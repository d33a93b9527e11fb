//! Accesses with long buffers to local memory, in chunks, so that a slice can end within them.

use super::regions::RegionTable;
use super::{AccessDenied, BYTES_PER_ACCESS, VectorPiece};
use farside_base::Access;
use farside_fabric::Arena;
use farside_rmc::helpers::{Call, Hashing, status};
use farside_rmc::run::Request;
use std::ops::Range;

/// Buffers of at most this many bytes are moved in one step, uninterrupted.
pub(crate) const WHOLE_BYTES: usize = 1024;

/// Returns the bytes that a request moves between memory and the call, or hashes.
pub(crate) fn moved(request: &Request) -> usize {
    let [_, _, third, ..] = request.arguments;
    let length = |span: Option<farside_rmc::run::Span>| span.map_or(0, |span| span.length as usize);
    match request.call {
        Call::Read | Call::ReadVector => length(request.output),
        Call::Write => length(Some(request.inputs[0])),
        Call::WriteVector => length(Some(request.inputs[1])),
        Call::Crc32cOf | Call::Xxhash64Of => usize::try_from(third).unwrap_or(usize::MAX),
        _ => 0,
    }
}

/// A chunked access in progress.
#[derive(Debug)]
pub(crate) struct ChunkedAccess {
    done: usize,
    /// Bytes read up to the end of the last step, counted from `before`; and bytes done before that step.
    read: usize,
    before: usize,
    hashing: Option<Hashing>,
}

impl ChunkedAccess {
    /// Returns an access that has not begun.
    pub(crate) fn of(request: &Request) -> Self {
        let hashing = Hashing::of(request.call, request.arguments[3]);
        Self { done: 0, read: 0, before: 0, hashing }
    }

    /// Returns the bytes done before the last step, and how many were read in it.
    pub(crate) fn read(&self) -> (usize, usize) {
        (self.before, self.read)
    }

    /// Continues until the slice has nothing `left`; returns the helper's result once the access is complete. Bytes
    /// read are at the beginning of `piece`, which grows if it is too short. Nothing is moved unless the whole
    /// access is permitted.
    pub(crate) fn step(
        &mut self,
        request: &Request,
        inputs: [&[u8]; 2],
        memory: &RegionTable,
        left: &mut usize,
        piece: &mut Vec<u8>,
    ) -> Result<Option<u64>, AccessDenied> {
        let [region, offset, ..] = request.arguments;
        let (whole, access) = (moved(request), access(request.call)?);
        let vector = match request.call {
            Call::ReadVector | Call::WriteVector => Some(VectorPiece::all(inputs[0], whole)?),
            _ => None,
        };
        let one = vector.is_none().then_some(VectorPiece { offset, range: 0..whole });
        let pieces = vector.into_iter().flatten().chain(one);
        for VectorPiece { offset, range } in pieces.clone() {
            memory.local(region, offset, range.len() as u64, access)?;
        }
        let until = whole.min(self.done.saturating_add(left.saturating_mul(BYTES_PER_ACCESS)));
        self.read = 0;
        self.before = self.done;
        for VectorPiece { offset, range } in pieces {
            let (from, to) = (range.start.max(self.done), range.end.min(until));
            if from < to {
                let arena = memory.local(region, offset, range.len() as u64, access)?;
                let at = (offset + (from - range.start) as u64, from..to);
                self.carry(request, inputs, arena, at, piece)?;
            }
        }
        *left = left.saturating_sub(1 + (until - self.done) / BYTES_PER_ACCESS);
        self.done = until;
        let result = || self.hashing.as_ref().map_or(status::OK as u64, Hashing::result);
        Ok((until == whole).then(result))
    }

    /// Moves or hashes these bytes of the buffer at this offset of the region.
    fn carry(
        &mut self,
        request: &Request,
        inputs: [&[u8]; 2],
        arena: &Arena,
        (offset, range): (u64, Range<usize>),
        piece: &mut Vec<u8>,
    ) -> Result<(), AccessDenied> {
        let carried = match (request.call, &mut self.hashing) {
            (_, Some(hashing)) => hash(hashing, arena, offset, range.len()),
            (Call::Write, None) => arena.write(offset, &inputs[0][range]),
            (Call::WriteVector, None) => arena.write(offset, &inputs[1][range]),
            (_, None) => {
                let (from, end) = (range.start - self.before, range.end - self.before);
                if piece.len() < end {
                    piece.resize(end, 0);
                }
                self.read = end;
                arena.read(offset, &mut piece[from..end])
            }
        };
        carried.map_err(|_| AccessDenied::NotPermitted)
    }
}

/// Hashes this many bytes of memory.
pub(crate) fn hash(
    hashing: &mut Hashing,
    arena: &Arena,
    offset: u64,
    bytes: usize,
) -> Result<(), farside_fabric::OutOfBounds> {
    let mut piece = [0; WHOLE_BYTES];
    for from in (0..bytes).step_by(WHOLE_BYTES) {
        let piece = &mut piece[..WHOLE_BYTES.min(bytes - from)];
        arena.read(offset + from as u64, piece)?;
        hashing.take(piece);
    }
    Ok(())
}

fn access(call: Call) -> Result<Access, AccessDenied> {
    match call {
        Call::Read | Call::ReadVector | Call::Crc32cOf | Call::Xxhash64Of => Ok(Access::READ),
        Call::Write | Call::WriteVector => Ok(Access::WRITE),
        _ => Err(AccessDenied::NotPermitted),
    }
}
