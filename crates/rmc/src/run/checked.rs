//! The checked interpreter: a dynamic oracle for the verifier, with no verified facts assumed.
//!
//! It checks that every read is of initialised data, that addresses are used as such and stay in their area, and that
//! only numbers leave. The verifier's claims are tested against it.

use alloc::boxed::Box;

use super::call::{self, Called};
use super::fast::atomic;
use super::machine::{Machine, frame_pointer};
use super::memory::Lent;
use super::shadow::{Shadow, ShadowValue};
use super::{Fault, FaultKind, Near, Outcome, Resource, Stop};
use crate::decode::{Area, wide_value};
use crate::helpers::{Argument, Helper};
use crate::isa::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Register, Size, Wide, Width, alu, byte_swap,
    compare, sign_extend,
};
use crate::limits::FRAMES_MAX;
use crate::program::Program;

/// What an instruction did.
enum Step {
    Next,
    Goto(i64),
    End(Outcome),
}

pub(super) fn run(
    machine: &mut Machine,
    program: &Program,
    lent: Lent<'_>,
    near: &mut impl Near,
) -> Outcome {
    let mut shadow = machine.shadow.take().unwrap_or_else(|| Box::new(Shadow::new(program)));
    let outcome = loop {
        let slot = machine.at;
        let Some(instruction) = program.code.get(slot).copied() else {
            break fault(slot, FaultKind::LostControl);
        };
        if let Some(stopped) = mark(machine, &shadow) {
            break stopped;
        }
        machine.executed += 1;
        // Charged programs end by their meter, others (also unverified ones) here.
        if machine.executed > EXECUTED_MAX {
            break Outcome::Stopped(Stop::Budget { slot, resource: Resource::Instructions });
        }
        let mut run = CheckedRun { machine, program, shadow: &mut shadow };
        let lent = Lent { own: &mut *lent.own, shared: &mut *lent.shared };
        let step = match instruction {
            Instruction::CallHelper { number } => run.helper(number, lent, near),
            _ => run.step(instruction, lent),
        };
        match step {
            Ok(Step::Next) => {
                machine.at += instruction.slots();
                if program.function_at(machine.at) != program.function_at(slot) {
                    break fault(slot, FaultKind::LostControl);
                }
            }
            Ok(Step::Goto(target)) => match usize::try_from(target) {
                Ok(target) => machine.at = target,
                Err(_) => break fault(slot, FaultKind::LostControl),
            },
            Ok(Step::End(outcome)) => break outcome,
            Err(kind) => break fault(slot, kind),
        }
        if machine.meter.spent() {
            machine.paused = true;
            break Outcome::Paused;
        }
    };
    machine.shadow = Some(shadow);
    outcome
}

/// A last bound, far over every budget.
const EXECUTED_MAX: u64 = 1 << 40;

fn fault(slot: usize, kind: FaultKind) -> Outcome {
    Outcome::Stopped(Stop::Fault(Fault { slot, kind }))
}

/// Pays what the present slot costs because it is marked.
fn mark(machine: &mut Machine, shadow: &Shadow) -> Option<Outcome> {
    match shadow.charges.mark(machine.at) {
        0 => None,
        cost => charge(machine, cost),
    }
}

fn charge(machine: &mut Machine, cost: u32) -> Option<Outcome> {
    if !machine.charged {
        return None;
    }
    let meter = &mut machine.meter;
    meter.instructions -= i64::from(cost);
    let over = meter.instructions + meter.instructions_aside < 0;
    let (slot, resource) = (machine.at, Resource::Instructions);
    over.then_some(Outcome::Stopped(Stop::Budget { slot, resource }))
}

struct CheckedRun<'a> {
    machine: &'a mut Machine,
    program: &'a Program,
    shadow: &'a mut Shadow,
}

impl CheckedRun<'_> {
    fn value(&self, register: Register) -> u64 {
        self.machine.registers[register.index()]
    }

    fn set(&mut self, register: Register, value: u64, held: ShadowValue) -> Result<(), FaultKind> {
        if register == Register::R10 {
            return Err(FaultKind::FramePointer);
        }
        self.machine.registers[register.index()] = value;
        self.shadow.registers[register.index()] = held;
        Ok(())
    }

    fn operand(&self, operand: Operand) -> Result<(u64, ShadowValue), FaultKind> {
        match operand {
            Operand::Register(register) => Ok((self.value(register), self.shadow.held(register)?)),
            Operand::Immediate(value) => Ok((value as i64 as u64, ShadowValue::Number)),
        }
    }

    fn step(&mut self, instruction: Instruction, lent: Lent<'_>) -> Result<Step, FaultKind> {
        let at = self.machine.at;
        match instruction {
            Instruction::Alu { width, op, dst, src } => self.arithmetic(width, op, dst, src)?,
            Instruction::Bytes { order, size, dst } => {
                self.shadow.number(dst)?;
                let value = byte_swap(order, size, self.value(dst));
                self.set(dst, value, ShadowValue::Number)?;
            }
            Instruction::LoadWide { dst, value } => {
                let held = match value {
                    Wide::Value(_) => ShadowValue::Number,
                    Wide::Constant(_) => ShadowValue::Address(Area::Constants),
                    Wide::StateHandle(_) => ShadowValue::Handle,
                    Wide::Variable { shared: false, .. } => ShadowValue::Address(Area::Own),
                    Wide::Variable { shared: true, .. } => ShadowValue::Address(Area::Shared),
                };
                self.set(dst, wide_value(value), held)?;
            }
            Instruction::Load { size, signed, dst, base, offset } => {
                self.load((size, signed), dst, (base, offset), lent)?;
            }
            Instruction::Store { size, base, offset, src } => {
                self.store(size, (base, offset), src, lent)?;
            }
            Instruction::Atomic { .. } => self.atomic(instruction, lent)?,
            Instruction::Jump { offset } => return self.jump(at as i64 + 1 + i64::from(offset)),
            Instruction::JumpIf { width, condition, dst, src, offset } => {
                if self.holds(width, condition, dst, src)? {
                    return self.jump(at as i64 + 1 + i64::from(offset));
                }
            }
            Instruction::CallFunction { offset } => {
                return self.call(at as i64 + 1 + i64::from(offset));
            }
            Instruction::Exit => return self.exit(),
            Instruction::CallHelper { .. } | Instruction::SecondHalf => {
                return Err(FaultKind::LostControl);
            }
        }
        Ok(Step::Next)
    }

    fn arithmetic(
        &mut self,
        width: Width,
        op: AluOp,
        dst: Register,
        src: Operand,
    ) -> Result<(), FaultKind> {
        let (b, held_b) = self.operand(src)?;
        let (a, held_a) = if op.is_move() {
            (0, ShadowValue::Number)
        } else {
            (self.value(dst), self.shadow.held(dst)?)
        };
        let double = width == Width::Double;
        let held = match (op, held_a, held_b) {
            (_, ShadowValue::Number, ShadowValue::Number) => ShadowValue::Number,
            (AluOp::Move, _, held) if double => held,
            (
                AluOp::Add | AluOp::Sub | AluOp::Or,
                ShadowValue::Address(area),
                ShadowValue::Number,
            ) if double => ShadowValue::Address(area),
            (AluOp::Add, ShadowValue::Number, ShadowValue::Address(area)) if double => {
                ShadowValue::Address(area)
            }
            (AluOp::Sub, ShadowValue::Address(a), ShadowValue::Address(b)) if double && a == b => {
                ShadowValue::Number
            }
            _ => return Err(FaultKind::AddressAsNumber),
        };
        self.set(dst, alu(width, op, a, b), held)
    }

    fn holds(
        &self,
        width: Width,
        condition: Condition,
        dst: Register,
        src: Operand,
    ) -> Result<bool, FaultKind> {
        let (a, held_a) = (self.value(dst), self.shadow.held(dst)?);
        let (b, held_b) = self.operand(src)?;
        let double = width == Width::Double;
        let null = matches!(condition, Condition::Equal | Condition::NotEqual)
            && src == Operand::Immediate(0);
        let allowed = match (held_a, held_b) {
            (ShadowValue::Number, ShadowValue::Number) => true,
            (ShadowValue::Address(_), ShadowValue::Number) => double && null,
            (ShadowValue::Address(a), ShadowValue::Address(b)) => double && a == b,
            _ => false,
        };
        if !allowed {
            return Err(FaultKind::AddressAsNumber);
        }
        Ok(compare(width, condition, a, b))
    }

    fn load(
        &mut self,
        (size, signed): (Size, bool),
        dst: Register,
        (base, offset): (Register, i16),
        lent: Lent<'_>,
    ) -> Result<(), FaultKind> {
        let address = self.value(base).wrapping_add(offset as i64 as u64);
        let area = self.shadow.address(base, address)?;
        let length = size.bytes();
        let held = self.shadow.loaded(area, address, length, self.machine.depth)?;
        let (view, _) = self.machine.view(self.program, lent);
        let out = FaultKind::OutOfBounds { address, length: length as u32 };
        let bytes = view.get(address, length).ok_or(out)?;
        let mut word = [0; 8];
        word[..length].copy_from_slice(bytes);
        let value = u64::from_le_bytes(word);
        let value = if signed { sign_extend(size, value) } else { value };
        self.set(dst, value, held)
    }

    fn store(
        &mut self,
        size: Size,
        (base, offset): (Register, i16),
        src: Operand,
        lent: Lent<'_>,
    ) -> Result<(), FaultKind> {
        let (value, held) = self.operand(src)?;
        let address = self.value(base).wrapping_add(offset as i64 as u64);
        let area = self.shadow.address(base, address)?;
        let length = size.bytes();
        self.shadow.stored(area, address, length, held, self.machine.depth)?;
        let (mut view, _) = self.machine.view(self.program, lent);
        let out = FaultKind::OutOfBounds { address, length: length as u32 };
        let place = view.get_mut(address, length).ok_or(out)?;
        place.copy_from_slice(&value.to_le_bytes()[..length]);
        Ok(())
    }

    fn atomic(&mut self, instruction: Instruction, lent: Lent<'_>) -> Result<(), FaultKind> {
        let Instruction::Atomic { width, op, fetch, base, offset, src } = instruction else {
            return Err(FaultKind::LostControl);
        };
        self.shadow.number(src)?;
        if op == AtomicOp::CompareExchange {
            self.shadow.number(Register::R0)?;
        }
        let length = if width == Width::Word { 4 } else { 8 };
        let depth = self.machine.depth;
        let address = self.value(base).wrapping_add(offset as i64 as u64);
        self.shadow.writable(base, address, length, depth)?;
        self.shadow.readable(base, address, length, depth)?;
        if fetch && src == Register::R10 {
            return Err(FaultKind::FramePointer);
        }
        let (mut view, registers) = self.machine.view(self.program, lent);
        atomic(instruction, registers, &mut view)
    }

    fn jump(&mut self, target: i64) -> Result<Step, FaultKind> {
        let at = self.machine.at;
        let to = usize::try_from(target).map_err(|_| FaultKind::LostControl)?;
        if self.program.function_at(to) != self.program.function_at(at) {
            return Err(FaultKind::LostControl);
        }
        let cost = self.shadow.charges.jump(at, to);
        Ok(charge(self.machine, cost).map_or(Step::Goto(target), Step::End))
    }

    fn call(&mut self, target: i64) -> Result<Step, FaultKind> {
        let to = usize::try_from(target).map_err(|_| FaultKind::LostControl)?;
        let function = self.program.function_at(to).ok_or(FaultKind::LostControl)?;
        let function = &self.program.functions[function];
        if function.start != to {
            return Err(FaultKind::LostControl);
        }
        let cost = self.shadow.charges.start(to);
        if let Some(stopped) = charge(self.machine, cost) {
            return Ok(Step::End(stopped));
        }
        let machine = &mut *self.machine;
        let depth = machine.depth + 1;
        if depth >= FRAMES_MAX {
            return Err(FaultKind::TooDeep);
        }
        machine.depth = depth;
        machine.frames[depth].back = machine.at as u32 + 1;
        machine.frames[depth].kept.copy_from_slice(&machine.registers[6..10]);
        machine.registers[10] = frame_pointer(depth);
        self.shadow.enter(depth);
        Ok(Step::Goto(target))
    }

    fn exit(&mut self) -> Result<Step, FaultKind> {
        let depth = self.machine.depth;
        if depth == 0 {
            self.shadow.number(Register::R0)?;
            return Ok(Step::End(Outcome::Returned(self.machine.registers[0])));
        }
        let frame = self.machine.frames[depth];
        self.machine.depth = depth - 1;
        self.machine.registers[6..10].copy_from_slice(&frame.kept);
        self.machine.registers[10] = frame_pointer(depth - 1);
        self.shadow.leave(depth);
        Ok(Step::Goto(i64::from(frame.back)))
    }

    fn helper(
        &mut self,
        number: u32,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Result<Step, FaultKind> {
        let helper = Helper::with_number(number).ok_or(FaultKind::UnknownHelper(number))?;
        let request = call::request(helper, &self.machine.registers, call::states(self.program))?;
        self.arguments(helper, &request)?;
        let slot = self.machine.at;
        let (mut view, mut rest, _) = self.machine.parts(self.program, lent);
        let called = call::perform(helper, &request, &mut view, &mut rest, near, None)?;
        let call = request.call;
        Ok(match called {
            Called::Done(result) => {
                self.machine.registers[0] = result;
                self.shadow.called(&request);
                Step::Next
            }
            Called::Later => {
                self.machine.pending = Some(request);
                Step::End(Outcome::Suspended(request))
            }
            Called::Long => {
                self.machine.paused = true;
                Step::End(Outcome::Paused)
            }
            Called::Refused => Step::End(Outcome::Stopped(Stop::Refused { slot, call })),
            Called::BadReply => Step::End(Outcome::Stopped(Stop::BadReply { slot, call })),
            Called::Over(resource) => Step::End(Outcome::Stopped(Stop::Budget { slot, resource })),
        })
    }

    /// Checks what each argument of a helper is.
    fn arguments(&self, helper: &Helper, request: &super::Request) -> Result<(), FaultKind> {
        let depth = self.machine.depth;
        let mut inputs = request.inputs.iter();
        for (at, argument) in helper.arguments.iter().enumerate() {
            let register = Register::new(at as u8 + 1).ok_or(FaultKind::LostControl)?;
            match argument {
                Argument::Number | Argument::Region | Argument::Length(_) => {
                    self.shadow.number(register)?;
                }
                Argument::State(_) => match self.shadow.held(register)? {
                    ShadowValue::Handle => {}
                    _ => return Err(FaultKind::NumberAsAddress),
                },
                Argument::Readable(_) => {
                    let span = inputs.next().copied().unwrap_or_default();
                    let length = span.length as usize;
                    self.shadow.readable(register, span.address, length, depth)?;
                }
                Argument::Writable(_) => {
                    let span = request.output.unwrap_or_default();
                    let length = span.length as usize;
                    self.shadow.writable(register, span.address, length, depth)?;
                }
            }
        }
        Ok(())
    }
}
