//! Access to the memory areas of a call, by virtual address.

use super::{FaultKind, Span};
use crate::program::Program;

/// Variables that the executor lends for the duration of a run. Their sizes are those of the program's
/// declaration.
#[derive(Debug, Default)]
pub struct Lent<'a> {
    /// Of the queue pair.
    pub own: &'a mut [u8],
    /// Shared between queue pairs.
    pub shared: &'a mut [u8],
}

/// All memory that a run can reach.
pub(crate) struct View<'a> {
    pub(crate) constants: &'a [u8],
    pub(crate) context: &'a [u8],
    pub(crate) stack: &'a mut [u8],
    pub(crate) own: &'a mut [u8],
    pub(crate) shared: &'a mut [u8],
}

impl<'a> View<'a> {
    #[inline(always)]
    pub(crate) fn of(
        program: &'a Program,
        (context, stack): (&'a [u8], &'a mut [u8]),
        lent: Lent<'a>,
    ) -> Self {
        Self { constants: &program.constants, context, stack, own: lent.own, shared: lent.shared }
    }
}

impl View<'_> {
    /// `length` bytes at `address`.
    #[inline(always)]
    pub(crate) fn get(&self, address: u64, length: usize) -> Option<&[u8]> {
        let offset = address as u32 as usize;
        let bytes: &[u8] = match address >> 32 {
            5 => self.stack,
            4 => self.context,
            1 => self.constants,
            2 => self.own,
            3 => self.shared,
            _ => return None,
        };
        bytes.get(offset..offset.checked_add(length)?)
    }

    /// `length` bytes at `address`, to be written.
    #[inline(always)]
    pub(crate) fn get_mut(&mut self, address: u64, length: usize) -> Option<&mut [u8]> {
        let offset = address as u32 as usize;
        let bytes: &mut [u8] = match address >> 32 {
            5 => self.stack,
            2 => self.own,
            3 => self.shared,
            _ => return None,
        };
        bytes.get_mut(offset..offset.checked_add(length)?)
    }

    #[inline(always)]
    pub(crate) fn load<const N: usize>(&self, address: u64) -> Option<[u8; N]> {
        self.get(address, N)?.try_into().ok()
    }

    #[inline(always)]
    pub(crate) fn store<const N: usize>(&mut self, address: u64, bytes: [u8; N]) -> Option<()> {
        let place: &mut [u8; N] = self.get_mut(address, N)?.try_into().ok()?;
        *place = bytes;
        Some(())
    }
}

fn out_of_bounds(span: Span) -> FaultKind {
    FaultKind::OutOfBounds { address: span.address, length: span.length }
}

pub(super) fn input<'v>(view: &'v View<'_>, span: Span) -> Result<&'v [u8], FaultKind> {
    if span.length == 0 {
        return Ok(&[]);
    }
    view.get(span.address, span.length as usize).ok_or(out_of_bounds(span))
}

pub(super) fn output<'v>(view: &'v mut View<'_>, span: Span) -> Result<&'v mut [u8], FaultKind> {
    if span.length == 0 {
        return Ok(&mut []);
    }
    view.get_mut(span.address, span.length as usize).ok_or(out_of_bounds(span))
}
