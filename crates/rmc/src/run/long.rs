//! Pure helpers with long buffers, carried out in pieces so that slices can end within them.
//!
//! A helper that moves more than a slice becomes a [`Long`] of its machine: the call pauses at the helper's slot, each
//! further slice works on it, and after the last one the call continues. Only then is memory of the call written. A
//! call that moves to another site keeps its progress as a count, and repeats that much work there.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::memory::{View, input};
use super::{FaultKind, Request, Span};
use crate::helpers::{Compressor, Hashing, Helper, HelperEffect, status};

/// The weight of a byte that a compressor examines: one without a match takes that much longer than one that is hashed
/// or moved.
const COMPRESSED_WEIGHT: usize = 4;

/// A pure helper in progress.
#[derive(Clone, Debug)]
pub(super) struct Long {
    pub(super) request: Request,
    /// Units that are done: bytes, or what a compressor counts.
    done: usize,
    /// `None` while nothing has been done here.
    work: Option<LongWork>,
}

#[derive(Clone, Debug)]
enum LongWork {
    Hash(Hashing),
    Compress(Box<Compress>),
}

/// Works on a copy, since its output may overlap its input.
#[derive(Clone, Debug)]
struct Compress {
    compressor: Compressor,
    bytes: Vec<u8>,
    out: Vec<u8>,
}

impl LongWork {
    fn of(request: &Request, view: &View<'_>) -> Result<Self, FaultKind> {
        if let Some(hashing) = Hashing::of(request.call, request.arguments[2]) {
            return Ok(Self::Hash(hashing));
        }
        let room = request.output.map_or(0, |span| span.length as usize);
        Ok(Self::Compress(Box::new(Compress {
            compressor: Compressor::new(),
            bytes: input(view, request.inputs[0])?.to_vec(),
            out: alloc::vec![0; room],
        })))
    }
}

impl Long {
    /// A helper whose first `done` units are redone at once.
    pub(super) fn new(request: Request, done: usize) -> Self {
        Self { request, done, work: None }
    }

    /// Units that are done.
    pub(super) const fn done(&self) -> usize {
        self.done
    }

    /// Works for `units` units. Returns the result at the end.
    pub(super) fn step(&mut self, view: &View<'_>, units: usize) -> Result<Option<u64>, FaultKind> {
        let again = if self.work.is_none() { self.done } else { 0 };
        let mut work = match self.work.take() {
            Some(work) => work,
            None => LongWork::of(&self.request, view)?,
        };
        let units = match &work {
            LongWork::Hash(_) => units,
            LongWork::Compress(_) => units.div_ceil(COMPRESSED_WEIGHT),
        };
        let end = match &mut work {
            LongWork::Hash(hashing) => {
                let span = self.request.inputs[0];
                let from = self.done - again;
                let until = self.done.saturating_add(units).min(span.length as usize);
                let piece = Span {
                    address: span.address.wrapping_add(from as u64),
                    length: (until - from) as u32,
                };
                hashing.take(input(view, piece)?);
                (until == span.length as usize).then(|| hashing.result())
            }
            LongWork::Compress(compress) => {
                let Compress { compressor, bytes, out } = &mut **compress;
                match compressor.step(bytes, out, again.saturating_add(units)) {
                    Ok(length) => length.map(|length| length as u64),
                    Err(_) => Some(status::FULL as u64),
                }
            }
        };
        self.done = self.done.saturating_add(units).min(self.request.inputs[0].length as usize);
        self.work = Some(work);
        Ok(end)
    }

    /// Bytes that it has made.
    pub(super) fn made(&self, result: u64) -> &[u8] {
        match &self.work {
            Some(LongWork::Compress(compress)) => {
                compress.out.get(..result as usize).unwrap_or(&[])
            }
            Some(LongWork::Hash(_)) | None => &[],
        }
    }
}

/// Whether a helper that moves `moved` bytes is carried out in pieces, given the bytes of a slice.
pub(super) fn is_long(helper: &Helper, moved: u64, slice: Option<u64>) -> bool {
    helper.effect == HelperEffect::Pure && slice.is_some_and(|slice| moved > slice)
}
