//! Checks of helper calls against the table of signatures.

use super::memory::{Reach, filled, readable};
use super::problem::{Problem, bad_argument};
use super::scalar::Scalar;
use super::state::{AbstractState, Number, Value};
use super::step::Stepper;
use crate::cost::is_counted;
use crate::helpers::{Argument, Extent, Helper};
use crate::isa::Register;

/// Bytes that an argument points to, at least and at most.
type Bytes = (u64, u64);

impl Stepper {
    pub(super) fn call_helper(
        &mut self,
        state: &mut AbstractState,
        number: u32,
    ) -> Result<(), Problem> {
        let helper = Helper::with_number(number).ok_or(Problem::UnknownHelper { number })?;
        let mut written: Option<(Reach, u64)> = None;
        let mut bytes = 0;
        for (at, argument) in helper.arguments.iter().enumerate() {
            let register = argument_register(at)?;
            let value = state.value(register);
            let bad = |stepper: &Self| bad_argument(helper, at, stepper.describe(&value));
            match (argument, &value) {
                (Argument::Number | Argument::Region, Value::Number(_)) => {}
                (Argument::Length(most), Value::Number(length)) => {
                    let length = self.known.get(length.id).most;
                    if length > u64::from(*most) {
                        return Err(bad(self));
                    }
                    bytes += length;
                }
                (Argument::State(kind), Value::Handle(handle)) => {
                    let state = self.program.states.get(*handle as usize);
                    state.filter(|state| state.kind == *kind).ok_or_else(|| bad(self))?;
                }
                (Argument::Readable(extent), Value::Address(place, offset)) => {
                    let (_, most) = self.extent(state, helper, *extent)?;
                    let end = self.end(state, *offset, *extent);
                    let at = (register, *place, *self.known.get(offset.id));
                    let reach = self.reach(at, (most, end), false)?;
                    readable(state, reach)?;
                    bytes += most;
                }
                (Argument::Writable(extent), Value::Address(place, offset)) => {
                    let (least, most) = self.extent(state, helper, *extent)?;
                    let end = self.end(state, *offset, *extent);
                    let at = (register, *place, *self.known.get(offset.id));
                    written = Some((self.reach(at, (most, end), true)?, least));
                    bytes += most;
                }
                _ => return Err(bad(self)),
            }
        }
        if let Some((reach, least)) = written {
            filled(state, reach, least)?;
        }
        if is_counted(helper.call) {
            self.cost.helper_calls = self.cost.helper_calls.saturating_add(1);
            self.cost.bytes = self.cost.bytes.saturating_add(bytes);
        } else {
            self.cost.words = self.cost.words.saturating_add(1);
        }
        let (least, most) = (helper.result_min, helper.result_max);
        let id = self.source(|| Scalar::signed_range(least, most));
        let registers = &mut state.frame_mut().registers;
        registers[0] = Value::Number(Number::unlinked(id));
        registers[1..6].fill(Value::Nothing);
        Ok(())
    }

    /// Where the bytes that an argument points to end at most, if offset and length are related.
    fn end(&mut self, state: &AbstractState, offset: Number, extent: Extent) -> Option<i64> {
        let Extent::Argument { index, each: 1, .. } = extent else { return None };
        match state.value(argument_register(usize::from(index)).ok()?) {
            Value::Number(length) => self.end_of(state, offset, length),
            _ => None,
        }
    }

    /// How many bytes an argument points to.
    fn extent(
        &self,
        state: &AbstractState,
        helper: &Helper,
        extent: Extent,
    ) -> Result<Bytes, Problem> {
        let declared = |of: fn(&crate::program::StateDeclaration) -> u32| {
            let Value::Handle(handle) = state.value(Register::R1) else {
                return Err(bad_argument(helper, 0, self.describe(&state.value(Register::R1))));
            };
            let declared = self.program.states.get(handle as usize);
            let bytes = declared.map_or(0, |declared| u64::from(of(declared)));
            Ok((bytes, bytes))
        };
        match extent {
            Extent::Argument { index, each, most } => {
                let at = usize::from(index);
                let value = state.value(argument_register(at)?);
                if let Value::Number(count) = value {
                    let (count, each) = (self.known.get(count.id), u64::from(each));
                    if count.most <= u64::from(most) {
                        return Ok((count.least * each, count.most * each));
                    }
                }
                // The number itself is what is wrong, so the message names its bound.
                Err(Problem::BadArgument {
                    helper: helper.name,
                    argument: index + 1,
                    expected: super::problem::Expected(Argument::Length(most)),
                    found: self.describe(&value),
                })
            }
            Extent::Key => declared(|state| state.key_bytes),
            Extent::Value => declared(|state| state.value_bytes),
        }
    }
}

fn argument_register(at: usize) -> Result<Register, Problem> {
    Register::new(at as u8 + 1).ok_or(Problem::NoSuchForm)
}
