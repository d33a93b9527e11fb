//! Accesses to the call's memory: bounds, initialised bytes, and addresses that must not be overwritten in part.

use super::problem::Problem;
use super::scalar::Scalar;
use super::state::{AbstractState, Number, Pointee, Value};
use super::step::{Stepper, memory};
use crate::isa::{Register, Size};
use crate::limits::FRAME_BYTES;

/// Which bytes an access may touch: it starts from `least` to `most`, has up to `length`, and ends before `end`.
#[derive(Clone, Copy)]
pub(super) struct Reach {
    pub(super) place: Pointee,
    pub(super) least: i64,
    pub(super) most: i64,
    pub(super) length: u64,
    /// The byte after the last one.
    end: i64,
}

impl Stepper {
    fn bound(&self, place: Pointee) -> u64 {
        match place {
            Pointee::Constants => self.program.constants.len() as u64,
            Pointee::Own => self.program.variables.own.len() as u64,
            Pointee::Shared => self.program.variables.shared.len() as u64,
            Pointee::Context => self.limits.context_bytes_max as u64,
            Pointee::Stack(_) => u64::from(FRAME_BYTES),
        }
    }

    /// Checks that an access stays inside, and notes what it touches. `end` is where it ends at most, if more is
    /// known of that than where it starts at most and how long it is at most.
    pub(super) fn reach(
        &mut self,
        (register, place, at): (Register, Pointee, Scalar),
        (length, end): (u64, Option<i64>),
        writes: bool,
    ) -> Result<Reach, Problem> {
        let (least, most) = (at.signed_least, at.signed_most);
        let last = most.saturating_add_unsigned(length);
        let end = end.map_or(last, |end| end.min(last));
        let reach = Reach { place, least, most, length, end };
        let bound = self.bound(place);
        let inside = reach.least >= 0 && i128::from(reach.end) <= i128::from(bound);
        if !inside {
            let (memory, least, most) = (memory(place), reach.least, reach.most);
            return Err(Problem::OutOfBounds { register, memory, least, most, length, bound });
        }
        if writes && matches!(place, Pointee::Constants | Pointee::Context) {
            return Err(Problem::ReadOnly { memory: memory(place) });
        }
        if place == Pointee::Context {
            let bytes = &mut self.facts.of_all.context_bytes;
            *bytes = (*bytes).max(reach.end.max(0) as u64);
        }
        let bit = match place {
            Pointee::Constants => 1,
            Pointee::Own => 2,
            Pointee::Shared => 4,
            Pointee::Context => 8,
            Pointee::Stack(_) => 16,
        };
        self.facts.places[self.at] |= bit;
        Ok(reach)
    }

    pub(super) fn load(
        &mut self,
        state: &AbstractState,
        size: Size,
        signed: bool,
        (base, offset): (Register, i16),
    ) -> Result<Value, Problem> {
        let length = size.bytes() as u64;
        let (place, at) = self.address(state, base, offset)?;
        let reach = self.reach((base, place, at), (length, None), false)?;
        let Pointee::Stack(depth) = reach.place else {
            return Ok(self.loaded(size, signed));
        };
        let aligned = reach.least == reach.most && reach.least % 8 == 0;
        if aligned && size == Size::Double {
            let frame = &state.frames[usize::from(depth)];
            if let Some(value) = frame.held(reach.least as usize) {
                return Ok(value);
            }
        }
        readable(state, reach)?;
        Ok(self.loaded(size, signed))
    }

    /// All values that a load of this size can return.
    fn loaded(&mut self, size: Size, signed: bool) -> Value {
        if size == Size::Double {
            return Value::UNKNOWN;
        }
        let id = self.source(|| Scalar::loaded(size, signed));
        Value::Number(Number::unlinked(id))
    }

    pub(super) fn store(
        &mut self,
        state: &mut AbstractState,
        size: Size,
        (base, offset): (Register, i16),
        value: Value,
    ) -> Result<(), Problem> {
        let length = size.bytes() as u64;
        let (place, at) = self.address(state, base, offset)?;
        let reach = self.reach((base, place, at), (length, None), true)?;
        let is_number = matches!(value, Value::Number(_));
        let Pointee::Stack(depth) = reach.place else {
            return if is_number {
                Ok(())
            } else {
                Err(Problem::AddressEscapes { memory: memory(reach.place) })
            };
        };
        let known = reach.least == reach.most;
        if known && reach.least % 8 == 0 && size == Size::Double {
            state.frames[usize::from(depth)].hold(reach.least as usize, value);
            return Ok(());
        }
        if !is_number {
            return Err(Problem::AddressInPieces);
        }
        if known {
            overwrite(state, reach, length);
            return Ok(());
        }
        maybe_overwrite(state, reach)
    }
}

/// Checks that all bytes that may be read are numbers.
pub(super) fn readable(state: &AbstractState, reach: Reach) -> Result<(), Problem> {
    let Pointee::Stack(depth) = reach.place else {
        return Ok(());
    };
    let bytes = reach.least as usize..reach.end.max(reach.least) as usize;
    match state.frames[usize::from(depth)].unreadable(bytes) {
        Some(at) => Err(Problem::UninitialisedStack { offset: at as i64 - i64::from(FRAME_BYTES) }),
        None => Ok(()),
    }
}

/// Records that numbers are written to the first `length` bytes, at a known offset. What remains of an address there
/// becomes unreadable.
pub(super) fn overwrite(state: &mut AbstractState, reach: Reach, length: u64) {
    let Pointee::Stack(depth) = reach.place else {
        return;
    };
    let end = reach.least.saturating_add_unsigned(length);
    state.frames[usize::from(depth)].write(reach.least as usize..end as usize);
}

/// Records that numbers may be written anywhere in reach: no byte becomes initialised, and the known values there are
/// dropped.
fn maybe_overwrite(state: &mut AbstractState, reach: Reach) -> Result<(), Problem> {
    let Pointee::Stack(depth) = reach.place else {
        return Ok(());
    };
    let bytes = reach.least as usize..reach.end.max(reach.least) as usize;
    let numbers = state.frames[usize::from(depth)].blur(bytes);
    if numbers { Ok(()) } else { Err(Problem::MayOverwriteAddress) }
}

/// A helper writes from `least_length` to `reach.length` bytes.
pub(super) fn filled(
    state: &mut AbstractState,
    reach: Reach,
    least_length: u64,
) -> Result<(), Problem> {
    if reach.length > 0 {
        maybe_overwrite(state, reach)?;
    }
    if reach.least == reach.most {
        overwrite(state, reach, least_length);
    }
    Ok(())
}
