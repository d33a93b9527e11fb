//! The processor's instructions as bytes.

use alloc::vec::Vec;

/// A register of the processor, by its number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Reg(pub(super) u8);

pub(super) const RAX: Reg = Reg(0);
pub(super) const RCX: Reg = Reg(1);
pub(super) const RDX: Reg = Reg(2);
pub(super) const RBX: Reg = Reg(3);
pub(super) const RBP: Reg = Reg(5);
pub(super) const RSI: Reg = Reg(6);
pub(super) const RDI: Reg = Reg(7);
pub(super) const R8: Reg = Reg(8);
pub(super) const R9: Reg = Reg(9);
pub(super) const R10: Reg = Reg(10);
pub(super) const R11: Reg = Reg(11);
pub(super) const R12: Reg = Reg(12);
pub(super) const R13: Reg = Reg(13);
pub(super) const R14: Reg = Reg(14);
pub(super) const R15: Reg = Reg(15);

/// Conditions of jumps, as encoded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct When(pub(super) u8);

impl When {
    pub(super) const BELOW: Self = Self(2);
    pub(super) const ABOVE_EQUAL: Self = Self(3);
    pub(super) const EQUAL: Self = Self(4);
    pub(super) const NOT_EQUAL: Self = Self(5);
    pub(super) const BELOW_EQUAL: Self = Self(6);
    pub(super) const ABOVE: Self = Self(7);
    pub(super) const LESS: Self = Self(12);
    pub(super) const GREATER_EQUAL: Self = Self(13);
    pub(super) const LESS_EQUAL: Self = Self(14);
    pub(super) const GREATER: Self = Self(15);
}

/// `[base + index + offset]`, or without an index.
#[derive(Clone, Copy)]
pub(super) struct MemoryOperand {
    pub(super) base: Reg,
    pub(super) index: Option<Reg>,
    /// The index counts eights.
    pub(super) eights: bool,
    pub(super) offset: i32,
}

impl MemoryOperand {
    pub(super) const fn at(base: Reg, offset: i32) -> Self {
        Self { base, index: None, eights: false, offset }
    }

    pub(super) const fn sum(base: Reg, index: Reg, offset: i32) -> Self {
        Self { base, index: Some(index), eights: false, offset }
    }
}

/// The position of a jump distance that is not known yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Hole(usize);

/// Code as it grows.
#[derive(Default)]
pub(super) struct Emitter {
    pub(super) code: Vec<u8>,
}

impl Emitter {
    pub(super) fn with_room(bytes: usize) -> Self {
        Self { code: Vec::with_capacity(bytes) }
    }

    pub(super) fn byte(&mut self, byte: u8) {
        self.code.push(byte);
    }

    pub(super) fn word(&mut self, word: i32) {
        self.code.extend_from_slice(&word.to_le_bytes());
    }

    /// A prefix, always there, so that bytes of every register can be named.
    fn rex(&mut self, wide: bool, reg: u8, index: u8, base: u8) {
        let bit = |set: bool, at: u8| u8::from(set) << at;
        self.byte(
            0x40 | bit(wide, 3) | (reg >> 3 & 1) << 2 | (index >> 3 & 1) << 1 | base >> 3 & 1,
        );
    }

    /// `opcode` on two registers; `reg` is the field of that name, which may also extend the opcode.
    pub(super) fn pair(&mut self, wide: bool, opcode: &[u8], reg: u8, rm: Reg) {
        self.rex(wide, reg, 0, rm.0);
        self.code.extend_from_slice(opcode);
        self.byte(0xc0 | (reg & 7) << 3 | rm.0 & 7);
    }

    /// `opcode` on a register and memory.
    pub(super) fn memory(&mut self, wide: bool, opcode: &[u8], reg: u8, place: MemoryOperand) {
        self.rex(wide, reg, place.index.map_or(0, |index| index.0), place.base.0);
        self.code.extend_from_slice(opcode);
        let short = i8::try_from(place.offset);
        // Without an offset two bases would mean something else.
        let mode = match short {
            Ok(0) if place.base.0 & 7 != 5 => 0,
            Ok(_) => 0x40,
            Err(_) => 0x80,
        };
        let (field, low) = ((reg & 7) << 3, place.base.0 & 7);
        match place.index {
            None if low != 4 => self.byte(mode | field | low),
            index => {
                self.byte(mode | field | 4);
                let scale = if place.eights { 0xc0 } else { 0 };
                self.byte(scale | (index.map_or(4, |index| index.0) & 7) << 3 | low);
            }
        }
        match (mode, short) {
            (0, _) => {}
            (0x40, Ok(short)) => self.byte(short as u8),
            _ => self.word(place.offset),
        }
    }

    /// `to = from`.
    pub(super) fn copy(&mut self, wide: bool, to: Reg, from: Reg) {
        self.pair(wide, &[0x89], from.0, to);
    }

    /// `to = number`.
    pub(super) fn set(&mut self, to: Reg, number: u64) {
        if let Ok(short) = u32::try_from(number) {
            self.rex(false, 0, 0, to.0);
            self.byte(0xb8 | to.0 & 7);
            self.word(short as i32);
        } else if let Ok(short) = i32::try_from(number as i64) {
            self.pair(true, &[0xc7], 0, to);
            self.word(short);
        } else {
            self.rex(true, 0, 0, to.0);
            self.byte(0xb8 | to.0 & 7);
            self.code.extend_from_slice(&number.to_le_bytes());
        }
    }

    pub(super) fn load(&mut self, to: Reg, place: MemoryOperand) {
        self.memory(true, &[0x8b], to.0, place);
    }

    pub(super) fn store(&mut self, place: MemoryOperand, from: Reg) {
        self.memory(true, &[0x89], from.0, place);
    }

    /// Arithmetic with a number, by the extension of opcode 0x81.
    pub(super) fn with_number(&mut self, wide: bool, extension: u8, to: Reg, number: i32) {
        if let Ok(short) = i8::try_from(number) {
            self.pair(wide, &[0x83], extension, to);
            self.byte(short as u8);
        } else {
            self.pair(wide, &[0x81], extension, to);
            self.word(number);
        }
    }

    /// `to = base + number`, without touching flags.
    pub(super) fn sum(&mut self, to: Reg, base: Reg, number: i32) {
        if number != 0 {
            self.memory(true, &[0x8d], to.0, MemoryOperand::at(base, number));
        } else if to != base {
            self.copy(true, to, base);
        }
    }

    /// Compares a word of memory with a number.
    pub(super) fn compare_short(&mut self, place: MemoryOperand, number: i8) {
        self.memory(true, &[0x83], 7, place);
        self.byte(number as u8);
    }

    /// Subtracts a number from a word of memory.
    pub(super) fn subtract_short(&mut self, place: MemoryOperand, number: i8) {
        self.memory(true, &[0x83], 5, place);
        self.byte(number as u8);
    }

    /// Sets flags by bits of the lowest byte of a register.
    pub(super) fn test_low(&mut self, reg: Reg, bits: u8) {
        self.pair(false, &[0xf6], 0, reg);
        self.byte(bits);
    }

    /// Sets flags by the bits that both have.
    pub(super) fn test(&mut self, wide: bool, a: Reg, b: Reg) {
        self.pair(wide, &[0x85], a.0, b);
    }

    /// Shifts by a number, by the extension of opcode 0xc1.
    pub(super) fn shift_by(&mut self, wide: bool, extension: u8, to: Reg, count: u8) {
        self.pair(wide, &[0xc1], extension, to);
        self.byte(count);
    }

    /// Jumps to the address in a register.
    pub(super) fn jump_to(&mut self, reg: Reg) {
        self.pair(false, &[0xff], 4, reg);
    }

    /// Calls the function at an address in memory.
    pub(super) fn call_at(&mut self, place: MemoryOperand) {
        self.memory(false, &[0xff], 2, place);
    }

    /// `to` = a place of the code, which is filled in like a jump's.
    pub(super) fn table(&mut self, to: Reg) -> Hole {
        self.rex(true, to.0, 0, 0);
        self.byte(0x8d);
        self.byte((to.0 & 7) << 3 | 5);
        self.hole()
    }

    /// `to = 0`, which changes flags.
    pub(super) fn clear(&mut self, to: Reg) {
        self.pair(false, &[0x31], to.0, to);
    }

    /// Stores a number of 64 bits, sign-extended.
    pub(super) fn store_number(&mut self, place: MemoryOperand, number: i32) {
        self.memory(true, &[0xc7], 0, place);
        self.word(number);
    }

    /// Reverses the bytes of a register.
    pub(super) fn reverse(&mut self, wide: bool, to: Reg) {
        self.rex(wide, 0, 0, to.0);
        self.byte(0x0f);
        self.byte(0xc8 | to.0 & 7);
    }

    /// Reverses the lower two bytes of a register.
    pub(super) fn swap_half(&mut self, to: Reg) {
        self.byte(0x66);
        self.pair(false, &[0xc1], 0, to);
        self.byte(8);
    }

    /// Extends the sign of RAX over RDX.
    pub(super) fn extend_rax(&mut self, wide: bool) {
        self.rex(wide, 0, 0, 0);
        self.byte(0x99);
    }

    /// Calls code of the same mapping. Returns false if it is too far.
    pub(super) fn call(&mut self, to: usize) -> bool {
        self.byte(0xe8);
        let hole = self.hole();
        self.fill(hole, to)
    }

    pub(super) fn ret(&mut self) {
        self.byte(0xc3);
    }

    pub(super) fn jump_if(&mut self, when: When) -> Hole {
        self.byte(0x0f);
        self.byte(0x80 | when.0);
        self.hole()
    }

    pub(super) fn jump(&mut self) -> Hole {
        self.byte(0xe9);
        self.hole()
    }

    fn hole(&mut self) -> Hole {
        self.word(0);
        Hole(self.code.len() - 4)
    }

    /// Sets the target of a jump to a position of the code. Returns false if it is too far.
    pub(super) fn fill(&mut self, hole: Hole, to: usize) -> bool {
        let distance = to as i64 - (hole.0 as i64 + 4);
        match (i32::try_from(distance), self.code.get_mut(hole.0..hole.0 + 4)) {
            (Ok(distance), Some(place)) => {
                place.copy_from_slice(&distance.to_le_bytes());
                true
            }
            _ => false,
        }
    }

    /// Sets the target of a jump to the present position.
    pub(super) fn here(&mut self, hole: Hole) {
        let to = self.code.len();
        self.fill(hole, to);
    }

    pub(super) fn push(&mut self, reg: Reg) {
        self.rex(false, 0, 0, reg.0);
        self.byte(0x50 | reg.0 & 7);
    }

    pub(super) fn pop(&mut self, reg: Reg) {
        self.rex(false, 0, 0, reg.0);
        self.byte(0x58 | reg.0 & 7);
    }
}
