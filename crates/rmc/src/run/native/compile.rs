//! Templates: what each instruction becomes.
//!
//! R0 to R10 live in registers of the processor throughout, and so does the meter. RBP is the frame, R10 and
//! RCX are for the moment. Code of a slot can be entered at its start, with all registers in the frame.

use alloc::vec::Vec;

use super::super::ops::{Code, Op, ZERO};
use super::CompileError;
use super::emit::{
    Emitter, Hole, Place, R8, R9, R10, R11, R12, R13, R14, R15, RAX, RBP, RBX, RCX, RDI, RDX, RSI,
    Reg, When,
};
use super::entry::{AREAS, METER, REGION_COUNT, REGION_SHIFT, REGIONS, REGISTERS, SLOT};
use crate::verify::Verified;

/// Where R0 to R10 live.
const HOMES: [Reg; 11] = [RAX, RDI, RSI, RDX, R9, R8, RBX, R13, R14, R15, R12];
/// Where the instructions that are left live.
const METER_HOME: Reg = R11;
/// What the convention wants kept.
const KEPT: [Reg; 6] = [RBX, RBP, R12, R13, R14, R15];

struct Compiler<'a> {
    ops: &'a [Op],
    verified: &'a Verified,
    out: Emitter,
    places: Vec<u32>,
    /// Jumps to slots.
    jumps: Vec<(Hole, usize)>,
    /// Jumps to code that leaves at a slot, and what is to be paid back to the meter there.
    leaves: Vec<(Hole, usize, u32)>,
    /// Where registers go back to the frame.
    leave: usize,
}

/// The code of a program, and where that of each slot starts.
pub(super) fn compile(verified: &Verified) -> Result<(Vec<u8>, Vec<u32>), CompileError> {
    let mut compiler = Compiler {
        ops: verified.ops(),
        verified,
        out: Emitter::default(),
        places: Vec::with_capacity(verified.ops().len()),
        jumps: Vec::new(),
        leaves: Vec::new(),
        leave: 0,
    };
    compiler.frame_code();
    for slot in 0..compiler.ops.len() {
        let place = u32::try_from(compiler.out.code.len()).map_err(|_| CompileError::TooLarge)?;
        compiler.places.push(place);
        // Nobody comes to the second slot of a wide load but by falling through.
        let second = slot > 0 && compiler.ops[slot - 1].code == Code::LoadWide;
        if !second {
            compiler.slot(slot);
        }
    }
    compiler.finish()?;
    Ok((compiler.out.code, compiler.places))
}

impl Compiler<'_> {
    /// The way in, at the start of the code, and the way out.
    fn frame_code(&mut self) {
        let out = &mut self.out;
        KEPT.iter().for_each(|reg| out.push(*reg));
        out.copy(true, RBP, RDI);
        out.copy(true, RCX, RSI);
        out.load(METER_HOME, Place::at(RBP, METER));
        out.load(R10, Place::at(RBP, REGISTERS));
        for (at, home) in HOMES.iter().enumerate() {
            out.load(*home, Place::at(R10, at as i32 * 8));
        }
        // jmp rcx
        out.pair(false, &[0xff], 4, RCX);
        self.leave = out.code.len();
        out.store(Place::at(RBP, METER), METER_HOME);
        out.load(R10, Place::at(RBP, REGISTERS));
        for (at, home) in HOMES.iter().enumerate() {
            out.store(Place::at(R10, at as i32 * 8), *home);
        }
        KEPT.iter().rev().for_each(|reg| out.pop(*reg));
        out.byte(0xc3);
    }

    /// Leaves at a slot, at once.
    fn leave_at(&mut self, slot: usize) {
        self.out.memory(true, &[0xc7], 0, Place::at(RBP, SLOT));
        self.out.word(slot as i32);
        let hole = self.out.jump();
        self.out.fill(hole, self.leave);
    }

    /// Leaves at an exit: behind it R0 alone is read, and what the caller has kept.
    fn exit(&mut self, slot: usize) {
        let out = &mut self.out;
        out.memory(true, &[0xc7], 0, Place::at(RBP, SLOT));
        out.word(slot as i32);
        out.store(Place::at(RBP, METER), METER_HOME);
        out.load(R10, Place::at(RBP, REGISTERS));
        out.store(Place::at(R10, 0), RAX);
        KEPT.iter().rev().for_each(|reg| out.pop(*reg));
        out.byte(0xc3);
    }

    fn finish(&mut self) -> Result<(), CompileError> {
        for (hole, slot, cost) in core::mem::take(&mut self.leaves) {
            self.out.here(hole);
            if cost > 0 {
                self.out.with_number(true, 0, METER_HOME, cost as i32);
            }
            self.leave_at(slot);
        }
        for (hole, slot) in core::mem::take(&mut self.jumps) {
            let place = *self.places.get(slot).ok_or(CompileError::TooLarge)?;
            if !self.out.fill(hole, place as usize) {
                return Err(CompileError::TooLarge);
            }
        }
        Ok(())
    }

    fn slot(&mut self, slot: usize) {
        let op = self.ops[slot];
        if self.arithmetic(op) || self.memory(op, slot) || self.jump(op, slot) {
            return;
        }
        match op.code {
            Code::LoadWide => {
                let value = u64::from(op.extra) << 32 | u64::from(op.immediate as u32);
                self.out.set(home(op.dst), value);
            }
            Code::HelperLoad => self.load_word(slot),
            Code::Exit => self.exit(slot),
            _ => self.leave_at(slot),
        }
    }

    /// Arithmetic that has a template; whether the operation was such.
    fn arithmetic(&mut self, op: Op) -> bool {
        let wide = matches!(
            op.code,
            Code::Add
                | Code::Sub
                | Code::Mul
                | Code::Or
                | Code::And
                | Code::Xor
                | Code::ShiftLeft
                | Code::ShiftRight
                | Code::ShiftRightSigned
                | Code::Move
        );
        let dst = |at: u8| home(at);
        match op.code {
            Code::Add | Code::Add32 => self.simple(op, wide, 0x01, 0),
            Code::Or | Code::Or32 => self.simple(op, wide, 0x09, 1),
            Code::And | Code::And32 => self.simple(op, wide, 0x21, 4),
            Code::Sub | Code::Sub32 => self.simple(op, wide, 0x29, 5),
            Code::Xor | Code::Xor32 => self.simple(op, wide, 0x31, 6),
            Code::Mul | Code::Mul32 => {
                let to = dst(op.dst);
                if op.src == ZERO {
                    self.out.pair(wide, &[0x69], to.0, to);
                    self.out.word(op.immediate);
                } else {
                    self.out.pair(wide, &[0x0f, 0xaf], to.0, home(op.src));
                }
            }
            Code::ShiftLeft | Code::ShiftLeft32 => self.shift(op, wide, 4),
            Code::ShiftRight | Code::ShiftRight32 => self.shift(op, wide, 5),
            Code::ShiftRightSigned | Code::ShiftRightSigned32 => self.shift(op, wide, 7),
            Code::Move | Code::Move32 => {
                let to = dst(op.dst);
                if op.src == ZERO {
                    let value = op.immediate as i64 as u64;
                    self.out.set(to, if wide { value } else { value & 0xffff_ffff });
                } else {
                    self.out.copy(wide, to, home(op.src));
                }
            }
            _ => return false,
        }
        true
    }

    fn simple(&mut self, op: Op, wide: bool, opcode: u8, extension: u8) {
        if op.src == ZERO {
            self.out.with_number(wide, extension, home(op.dst), op.immediate);
        } else {
            self.out.pair(wide, &[opcode], home(op.src).0, home(op.dst));
        }
    }

    /// Shifts: the processor takes counts modulo the width, as eBPF does.
    fn shift(&mut self, op: Op, wide: bool, extension: u8) {
        let to = home(op.dst);
        if op.src == ZERO {
            let mask = if wide { 63 } else { 31 };
            self.out.pair(wide, &[0xc1], extension, to);
            self.out.byte(op.immediate as u8 & mask);
            // A shift by zero leaves the upper half as it was.
            if !wide && op.immediate as u8 & mask == 0 {
                self.out.copy(false, to, to);
            }
        } else {
            self.out.copy(true, RCX, home(op.src));
            self.out.pair(wide, &[0xd3], extension, to);
            if !wide {
                self.out.copy(false, to, to);
            }
        }
    }

    /// Puts into R10 what turns addresses of `base` into the processor's.
    fn area(&mut self, slot: usize, base: Reg) {
        let area = match self.verified.places(slot) {
            1 => Some(1),
            2 => Some(2),
            4 => Some(3),
            8 => Some(4),
            16 => Some(5),
            _ => None,
        };
        if let Some(area) = area {
            self.out.load(R10, Place::at(RBP, AREAS + area * 8));
            return;
        }
        // Several areas: the upper half of the address says which.
        self.out.copy(true, R10, base);
        self.out.pair(true, &[0xc1], 5, R10);
        self.out.byte(32);
        self.out.with_number(false, 4, R10, 7);
        let place = Place { base: RBP, index: Some(R10), eights: true, offset: AREAS };
        self.out.load(R10, place);
    }

    fn memory(&mut self, op: Op, slot: usize) -> bool {
        let (wide, opcode): (bool, &[u8]) = match op.code {
            Code::Load8 => (false, &[0x0f, 0xb6]),
            Code::Load16 => (false, &[0x0f, 0xb7]),
            Code::Load32 => (false, &[0x8b]),
            Code::Load64 => (true, &[0x8b]),
            Code::LoadSigned8 => (true, &[0x0f, 0xbe]),
            Code::LoadSigned16 => (true, &[0x0f, 0xbf]),
            Code::LoadSigned32 => (true, &[0x63]),
            Code::Store8 | Code::Store16 | Code::Store32 | Code::Store64 => {
                self.store(op, slot);
                return true;
            }
            _ => return false,
        };
        let base = home(op.src);
        self.area(slot, base);
        self.out.memory(wide, opcode, home(op.dst).0, Place::sum(R10, base, op.offset));
        true
    }

    fn store(&mut self, op: Op, slot: usize) {
        let base = home(op.dst);
        self.area(slot, base);
        let place = Place::sum(R10, base, op.offset);
        let from = if op.src == ZERO {
            self.out.set(RCX, op.immediate as i64 as u64);
            RCX
        } else {
            home(op.src)
        };
        match op.code {
            Code::Store8 => self.out.memory(false, &[0x88], from.0, place),
            Code::Store16 => {
                self.out.byte(0x66);
                self.out.memory(false, &[0x89], from.0, place);
            }
            Code::Store32 => self.out.memory(false, &[0x89], from.0, place),
            _ => self.out.memory(true, &[0x89], from.0, place),
        }
    }

    fn jump(&mut self, op: Op, slot: usize) -> bool {
        if op.code == Code::Jump {
            self.take(op, slot);
            return true;
        }
        let Some((wide, when)) = condition(op.code) else {
            return false;
        };
        let sets = matches!(op.code, Code::Set | Code::Set32);
        let (first, second) = (home(op.dst), op.src);
        match (sets, second == ZERO) {
            (false, true) => self.out.with_number(wide, 7, first, op.immediate),
            (false, false) => self.out.pair(wide, &[0x39], home(second).0, first),
            (true, true) => {
                self.out.pair(wide, &[0xf7], 0, first);
                self.out.word(op.immediate);
            }
            (true, false) => self.out.pair(wide, &[0x85], home(second).0, first),
        }
        if op.extra == 0 {
            let hole = self.out.jump_if(when);
            self.jumps.push((hole, op.offset as usize));
        } else {
            let not = self.out.jump_if(when.not());
            self.take(op, slot);
            self.out.here(not);
        }
        true
    }

    /// Takes a jump and pays for it; where the meter is empty, leaves before it.
    fn take(&mut self, op: Op, slot: usize) {
        if op.extra > 0 {
            self.out.with_number(true, 5, METER_HOME, op.extra as i32);
            let empty = self.out.jump_if(When::SIGN);
            self.leaves.push((empty, slot, op.extra));
        }
        let hole = self.out.jump();
        self.jumps.push((hole, op.offset as usize));
    }

    /// The helper `load_u64`: from a lent region in place, otherwise by leaving.
    fn load_word(&mut self, slot: usize) {
        let (region, offset) = (RDI, RSI);
        let out = &mut self.out;
        out.memory(true, &[0x3b], region.0, Place::at(RBP, REGION_COUNT));
        let unknown = out.jump_if(When::ABOVE_EQUAL);
        out.copy(true, RCX, region);
        out.pair(true, &[0xc1], 4, RCX);
        out.byte(REGION_SHIFT);
        out.memory(true, &[0x03], RCX.0, Place::at(RBP, REGIONS));
        out.memory(true, &[0x3b], offset.0, Place::at(RCX, 8));
        let outside = out.jump_if(When::ABOVE_EQUAL);
        out.load(RCX, Place::at(RCX, 0));
        out.load(RAX, Place::sum(RCX, offset, 0));
        self.leaves.extend([(unknown, slot, 0), (outside, slot, 0)]);
    }
}

fn home(register: u8) -> Reg {
    HOMES[usize::from(register).min(10)]
}

/// Whether a comparison is of 64 bits, and when it jumps.
fn condition(code: Code) -> Option<(bool, When)> {
    Some(match code {
        Code::Equal => (true, When::EQUAL),
        Code::Greater => (true, When::ABOVE),
        Code::GreaterEqual => (true, When::ABOVE_EQUAL),
        Code::Set | Code::NotEqual => (true, When::NOT_EQUAL),
        Code::SignedGreater => (true, When::GREATER),
        Code::SignedGreaterEqual => (true, When::GREATER_EQUAL),
        Code::Less => (true, When::BELOW),
        Code::LessEqual => (true, When::BELOW_EQUAL),
        Code::SignedLess => (true, When::LESS),
        Code::SignedLessEqual => (true, When::LESS_EQUAL),
        Code::Equal32 => (false, When::EQUAL),
        Code::Greater32 => (false, When::ABOVE),
        Code::GreaterEqual32 => (false, When::ABOVE_EQUAL),
        Code::Set32 | Code::NotEqual32 => (false, When::NOT_EQUAL),
        Code::SignedGreater32 => (false, When::GREATER),
        Code::SignedGreaterEqual32 => (false, When::GREATER_EQUAL),
        Code::Less32 => (false, When::BELOW),
        Code::LessEqual32 => (false, When::BELOW_EQUAL),
        Code::SignedLess32 => (false, When::LESS),
        Code::SignedLessEqual32 => (false, When::LESS_EQUAL),
        _ => return None,
    })
}
