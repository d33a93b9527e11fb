//! Programs by chance, most of which nearly or just pass the verifier, and their judge: whatever was
//! accepted runs in the checked interpreter without a fault and within its worst case, and does the same
//! in the fast one, also when it is suspended at every request and moved as bytes.
#![allow(dead_code, reason = "each user takes what it needs")]

mod loops;
mod plain;
mod runs;
mod slices;
mod sums;
mod words;

use farside_rmc::assembler::Builder;
use farside_rmc::helpers::{Call, HELPERS, Helper, HelperEffect, StateKind};
use farside_rmc::isa::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Order, Register, Size, Wide, Width, decode,
    encode,
};
use farside_rmc::program::{Scope, StateDeclaration};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{Buffers, Near, Outcome, Reply, Request, Stop};
use farside_rmc::{Budget, Limits, Program, Verified, verify};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
use interpreted::{Compiled, NativeRegion};
use runs::{NativeMode, run_checked, run_fast, run_moved, run_native};
use words::REGIONS;

#[allow(unused_imports, reason = "each user takes what it needs")]
pub(crate) use plain::{bytes_of, plain};
#[allow(unused_imports, reason = "each user takes what it needs")]
pub(crate) use sums::sums;

/// The replacement for machine code on platforms without it.
#[cfg(not(all(target_arch = "x86_64", target_os = "linux")))]
mod interpreted {
    use farside_rmc::run::{Lent, Machine, Near, Outcome, StartError};
    use farside_rmc::{Budget, Verified};

    pub(crate) struct NativeRegion;

    impl NativeRegion {
        pub(crate) fn of(_: &[u8]) -> Self {
            Self
        }
    }

    pub(crate) struct Compiled(Verified);

    impl Compiled {
        pub(crate) fn new(verified: Verified) -> Result<Self, core::fmt::Error> {
            Ok(Self(verified))
        }

        pub(crate) fn verified(&self) -> &Verified {
            &self.0
        }

        pub(crate) fn run(
            &self,
            machine: &mut Machine,
            lent: Lent<'_>,
            _: &[NativeRegion],
            near: &mut impl Near,
        ) -> Outcome {
            machine.run(&self.0, lent, near)
        }

        pub(crate) fn run_slice(
            &self,
            machine: &mut Machine,
            instructions: u64,
            lent: Lent<'_>,
            _: &[NativeRegion],
            near: &mut impl Near,
        ) -> Outcome {
            machine.run_slice(&self.0, instructions, lent, near)
        }

        pub(crate) fn call(
            &self,
            machine: &mut Machine,
            context: &[u8],
            budget: Budget,
            lent: Lent<'_>,
            regions: &[NativeRegion],
            near: &mut impl Near,
        ) -> Result<Outcome, StartError> {
            machine.start(&self.0, context, budget)?;
            Ok(self.run(machine, lent, regions, near))
        }
    }
}

const R: [Register; 11] = [
    Register::R0,
    Register::R1,
    Register::R2,
    Register::R3,
    Register::R4,
    Register::R5,
    Register::R6,
    Register::R7,
    Register::R8,
    Register::R9,
    Register::R10,
];

/// Numbers by chance.
#[derive(Clone)]
pub(crate) struct FuzzRandom(u64);

impl FuzzRandom {
    pub(crate) fn new(seed: u64) -> Self {
        let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((mixed ^ (mixed >> 31)) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 32) % bound
    }

    fn one_in(&mut self, many: u64) -> bool {
        self.below(many) == 0
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        list[self.below(list.len() as u64) as usize]
    }

    /// Often near where something overflows.
    pub(crate) fn number(&mut self) -> u64 {
        const EDGES: [u64; 8] =
            [0, 1, 1 << 31, 1 << 32, 1 << 63, u64::MAX, u32::MAX as u64, i64::MAX as u64];
        match self.below(4) {
            0 => self.of(&EDGES).wrapping_add(self.below(9)).wrapping_sub(4),
            1 => self.below(80),
            2 => self.next() >> self.below(64),
            _ => ((self.next() as i64) >> self.below(64)) as u64,
        }
    }

    fn immediate(&mut self) -> i32 {
        match self.below(4) {
            0 => self.number() as i32,
            1 => (1 << self.below(31)) - self.below(3) as i32,
            _ => self.below(100) as i32 - 20,
        }
    }
}

/// Builds one program. R6 is the context, R7 a small number; R0, R8 and R9 are numbers; R1 to R5 are for
/// the moment.
struct Maker<'a> {
    chance: &'a mut FuzzRandom,
    builder: Builder,
    depth: u32,
    /// Bits of registers that count, which pieces mostly leave alone.
    reserved: u16,
}

/// A program that nearly or just passes.
pub(crate) fn program(chance: &mut FuzzRandom) -> Program {
    let mut maker = Maker { chance, builder: Builder::new("chance"), depth: 0, reserved: 0 };
    maker.data();
    maker.start();
    let count = 2 + maker.chance.below(9);
    (0..count).for_each(|_| maker.piece());
    maker.builder.exit();
    let mut program = maker.builder.build().unwrap_or_default();
    if chance.one_in(3) {
        mutate(chance, &mut program);
    }
    program
}

/// Changes a field of an instruction or two.
fn mutate(chance: &mut FuzzRandom, program: &mut Program) {
    for _ in 0..1 + chance.below(2) {
        let at = chance.below(program.code.len().max(1) as u64) as usize;
        let Some(instruction) = program.code.get(at).copied() else {
            return;
        };
        let Ok((first, None)) = encode(instruction) else {
            continue;
        };
        let changed = match chance.below(6) {
            0 => first ^ (1 << (8 + chance.below(4))),
            1 => first ^ (1 << (12 + chance.below(4))),
            2 => first ^ (1 << (16 + chance.below(9))),
            3 => first ^ (1 << (32 + chance.below(32))),
            4 => first ^ (1 << (4 + chance.below(4))),
            _ => first ^ (1 << chance.below(64)),
        };
        if let Ok(instruction) = decode(&[changed])
            && instruction.slots() == 1
        {
            program.code[at] = instruction;
        }
    }
}

impl Maker<'_> {
    fn data(&mut self) {
        self.builder.constants(&[7; 72]);
        self.builder.variables(false, &[1; 72]);
        self.builder.variables(true, &[0; 72]);
        let kinds = [
            (StateKind::Array, 0, 16),
            (StateKind::Counters, 0, 8),
            (StateKind::Map, 8, 24),
            (StateKind::Locks, 0, 0),
        ];
        for (at, (kind, key_bytes, value_bytes)) in kinds.into_iter().enumerate() {
            let (name, scope) = (format!("state{at}"), Scope::Shared);
            let entries = 4;
            self.builder.state(StateDeclaration {
                name,
                kind,
                key_bytes,
                value_bytes,
                entries,
                scope,
            });
        }
    }

    fn start(&mut self) {
        self.builder.copy(R[6], R[1]).copy(R[7], R[2]);
        self.builder.alu(AluOp::And, R[7], Operand::Immediate(63));
        for register in [0, 8, 9] {
            if self.chance.one_in(2) {
                let offset = self.chance.below(8) as i16 * 8;
                self.builder.load(Size::Double, R[register], R[6], offset);
            } else {
                let value = self.chance.number() as i64;
                self.builder.set(R[register], value);
            }
        }
        for slot in 1..10 {
            if !self.chance.one_in(64) {
                let src = self.number();
                self.builder.store(Size::Double, R[10], slot * -8, Operand::Register(src));
            }
        }
    }

    /// A register that holds a number.
    fn number(&mut self) -> Register {
        let register = self.chance.of(&[0, 7, 8, 9, 8, 9]);
        if self.reserved >> register & 1 == 1 && !self.chance.one_in(40) {
            R[0]
        } else {
            R[register]
        }
    }

    fn operand(&mut self) -> Operand {
        if self.chance.one_in(2) {
            Operand::Register(self.number())
        } else {
            Operand::Immediate(self.chance.immediate())
        }
    }

    fn width(&mut self) -> Width {
        self.chance.of(&[Width::Word, Width::Double, Width::Double])
    }

    fn piece(&mut self) {
        match self.chance.below(22) {
            21 => self.sum(),
            16 if self.depth < 3 && self.chance.one_in(2) => self.stretch(),
            16 | 17 => self.words(),
            18 => self.met(),
            19 | 20 if self.depth < 3 => self.register_loop(),
            0 | 1 => self.arithmetic(),
            2 => self.stack(),
            3 | 4 => self.masked(),
            5 | 6 => self.compared(),
            7 if self.depth < 3 => self.counted_loop(),
            8 if self.depth < 2 => self.endless_loop(),
            9 | 10 => self.helper(),
            11 => self.spill(),
            12 if self.depth == 0 => self.function(),
            13 => self.walk(),
            14 => self.atomic(),
            _ => self.branch(),
        }
    }

    /// So much straight code that a call can pause within.
    fn stretch(&mut self) {
        self.depth += 1;
        for _ in 0..self.chance.below(100) {
            match self.chance.below(16) {
                0 => self.words(),
                1 => self.branch(),
                2 => self.stack(),
                3 => self.atomic(),
                4 => self.spill(),
                _ => self.arithmetic(),
            }
        }
        self.depth -= 1;
    }

    fn arithmetic(&mut self) {
        for _ in 0..1 + self.chance.below(4) {
            let (width, dst, src) = (self.width(), self.number(), self.operand());
            if self.chance.one_in(12) {
                // Of a register that may hold nothing.
                let (to, from) =
                    (3 + self.chance.below(3) as usize, 1 + self.chance.below(5) as usize);
                let src = Operand::Register(R[from]);
                self.builder.push(Instruction::Alu { width, op: AluOp::Move, dst: R[to], src });
                continue;
            }
            if self.chance.one_in(8) {
                let order = self.chance.of(&[Order::Little, Order::Big, Order::Swapped]);
                let size = self.chance.of(&[Size::Half, Size::Word, Size::Double]);
                self.builder.push(Instruction::Bytes { order, size, dst });
                continue;
            }
            let op = self.chance.of(&AluOp::ALL);
            let src = match op {
                AluOp::Neg => Operand::Immediate(0),
                op if op.needs_register() => Operand::Register(self.number()),
                _ => src,
            };
            let instruction = Instruction::Alu { width, op, dst, src };
            if encode(instruction).is_ok() {
                self.builder.push(instruction);
            }
        }
    }

    fn stack(&mut self) {
        let size = self.chance.of(&Size::ALL);
        let offset = -(self.chance.below(64) as i16) - 8;
        let offset = if self.chance.one_in(2) { offset & !7 } else { offset };
        let dst = self.number();
        if self.chance.one_in(2) {
            let src = self.operand();
            self.builder.store(size, R[10], offset, src);
        } else {
            let signed = self.chance.one_in(3) && size != Size::Double;
            self.builder.push(Instruction::Load { size, signed, dst, base: R[10], offset });
        }
    }

    /// Puts the start of some memory into a register; how much may be touched from there, mostly with
    /// eight bytes to spare. Read-only memory where nothing will be written, mostly.
    fn base(&mut self, dst: Register, writes: bool) -> i32 {
        let read_only = !writes || self.chance.one_in(40);
        let count = if read_only { 5 } else { 3 };
        let (length, context) = match self.chance.below(count) {
            0 => {
                self.builder.copy(dst, R[10]).alu(AluOp::Add, dst, Operand::Immediate(-72));
                (72, false)
            }
            1 => {
                self.builder.load_wide(dst, Wide::Variable { shared: false, offset: 0 });
                (72, false)
            }
            2 => {
                self.builder.load_wide(dst, Wide::Variable { shared: true, offset: 0 });
                (72, false)
            }
            3 => {
                self.builder.load_wide(dst, Wide::Constant(0));
                (72, false)
            }
            _ => {
                self.builder.copy(dst, R[6]);
                (64, true)
            }
        };
        if self.chance.one_in(6) || context { length } else { length - 8 }
    }

    /// Loads or stores near an address that has just been made.
    fn touch(&mut self, base: Register, writes: bool) {
        let size = self.chance.of(&Size::ALL);
        let offset = if self.chance.one_in(12) { self.chance.below(10) as i16 - 2 } else { 0 };
        if writes {
            let src = self.operand();
            self.builder.store(size, base, offset, src);
        } else {
            let dst = self.number();
            self.builder.load(size, dst, base, offset);
        }
    }

    /// An index that a mask, shift or remainder bounds.
    fn masked(&mut self) {
        let (index, writes) = (self.number(), self.chance.one_in(3));
        self.builder.copy(R[2], index);
        let bound = self.base(R[3], writes);
        let op = self.chance.of(&[AluOp::And, AluOp::Mod, AluOp::ShiftRight, AluOp::And]);
        let by = match op {
            AluOp::And => self.chance.of(&[63, 63, 63, 7]) & !(self.chance.below(9) as i32),
            AluOp::Mod => bound - self.chance.below(9) as i32,
            _ => 58 + self.chance.below(4) as i32,
        };
        let width = self.width();
        self.builder.push(Instruction::Alu { width, op, dst: R[2], src: Operand::Immediate(by) });
        if self.chance.one_in(16) {
            self.builder.alu(AluOp::Mul, R[2], Operand::Immediate(2));
        }
        // The bits of an index in an aligned array are none of its address.
        let add = self.chance.of(&[AluOp::Add, AluOp::Add, AluOp::Add, AluOp::Or]);
        self.builder.alu(add, R[3], Operand::Register(R[2]));
        self.touch(R[3], writes);
    }

    /// An index that comparisons bound.
    fn compared(&mut self) {
        let index = self.number();
        let end = self.builder.label();
        let copy = self.chance.one_in(2);
        if copy {
            self.builder.copy(R[2], index);
        }
        let writes = self.chance.one_in(3);
        let bound = self.base(R[3], writes);
        // Mostly what bounds it is among the comparisons.
        if !self.chance.one_in(4) {
            let src = Operand::Immediate(bound - self.chance.of(&[0, 1, 7, 8, 8, 8]));
            let condition = self.chance.of(&[Condition::Greater, Condition::GreaterEqual]);
            self.builder.jump_if(condition, index, src, end);
        }
        for _ in 0..self.chance.below(3) {
            let (condition, width) = (self.chance.of(&Condition::ALL), self.width());
            let value = match self.chance.below(4) {
                0 => 0,
                1 => self.chance.immediate(),
                _ => bound - self.chance.below(10) as i32,
            };
            let src = Operand::Immediate(value);
            let jump = Instruction::JumpIf { width, condition, dst: index, src, offset: 0 };
            self.builder.push_to(jump, end);
        }
        let of = if copy { R[2] } else { index };
        let op = if self.chance.one_in(16) { AluOp::Sub } else { AluOp::Add };
        self.builder.alu(op, R[3], Operand::Register(of));
        self.touch(R[3], writes);
        self.builder.place(end);
    }

    fn branch(&mut self) {
        let end = self.builder.label();
        let (width, condition) = (self.width(), self.chance.of(&Condition::ALL));
        let (dst, src) = (self.number(), self.operand());
        let jump = Instruction::JumpIf { width, condition, dst, src, offset: 0 };
        self.builder.push_to(jump, end);
        self.depth += 1;
        for _ in 0..1 + self.chance.below(2) {
            self.piece();
        }
        self.depth -= 1;
        self.builder.place(end);
    }

    fn counted_loop(&mut self) {
        let slot = self.chance.of(&[-72i16, -80, -88]);
        let turns = 1 + self.chance.below(12) as i32;
        self.builder.store(Size::Double, R[10], slot, Operand::Immediate(0));
        let again = self.builder.label();
        self.builder.place(again);
        self.depth += 1;
        self.piece();
        self.depth -= 1;
        self.builder.load(Size::Double, R[1], R[10], slot);
        self.builder.alu(AluOp::Add, R[1], Operand::Immediate(1));
        self.builder.store(Size::Double, R[10], slot, Operand::Register(R[1]));
        self.builder.jump_if(Condition::Less, R[1], Operand::Immediate(turns), again);
    }

    fn endless_loop(&mut self) {
        let again = self.builder.label();
        self.builder.place(again);
        self.depth += 1;
        self.piece();
        self.depth -= 1;
        self.builder.copy(R[1], R[7]).copy(R[2], R[8]).call(Call::LoadU64);
        let condition = self.chance.of(&Condition::ALL);
        let value = self.chance.immediate();
        self.builder.jump_if(condition, R[0], Operand::Immediate(value), again);
    }

    fn helper(&mut self) {
        let helper = self.chance.of(HELPERS);
        for (at, argument) in helper.arguments.iter().enumerate() {
            use farside_rmc::helpers::Argument;
            let register = R[at + 1];
            match argument {
                Argument::Number | Argument::Region | Argument::Length(_) => {
                    if self.chance.one_in(3) {
                        self.builder.copy(register, R[7]);
                    } else {
                        let value = self.chance.of(&[0, 1, 2, 8, 16, 24, 64]);
                        self.builder.set(register, value);
                    }
                    // What compiled code adds up before it is used.
                    if self.chance.one_in(4) {
                        let more = Operand::Immediate(self.chance.of(&[-1, 1, 2, 8, 16]));
                        self.builder.alu(AluOp::Add, register, more);
                    }
                }
                Argument::State(kind) => {
                    let handle = match kind {
                        StateKind::Array => 0,
                        StateKind::Counters => 1,
                        StateKind::Map => 2,
                        StateKind::Locks => 3,
                    };
                    self.builder.load_wide(register, Wide::StateHandle(handle));
                }
                Argument::Readable(_) | Argument::Writable(_) => {
                    self.base(register, matches!(argument, Argument::Writable(_)));
                }
            }
        }
        self.builder.call(helper.call);
        if self.chance.one_in(3) {
            let kept = self.chance.of(&[8, 9]);
            self.builder.copy(R[kept], R[0]);
        }
    }

    /// Addresses and numbers through the stack.
    fn spill(&mut self) {
        let writes = self.chance.one_in(2);
        self.base(R[3], writes);
        let slot = self.chance.of(&[-96i16, -104, -96, -104, -96, -104, -8]);
        self.builder.store(Size::Double, R[10], slot, Operand::Register(R[3]));
        if self.chance.one_in(3) {
            self.piece();
        }
        self.builder.load(Size::Double, R[4], R[10], slot);
        self.touch(R[4], writes);
    }

    /// Calls a function placed in between.
    fn function(&mut self) {
        let (entry, after) = (self.builder.label(), self.builder.label());
        let _ = after;
        self.builder.copy(R[1], R[10]).alu(AluOp::Add, R[1], Operand::Immediate(-64));
        let number = self.number();
        self.builder.copy(R[2], number);
        self.builder.call_function(entry);
        // The code after the exit belongs to the function, so the rest of the program is its end.
        let result = self.chance.of(&[0usize, 8, 9]);
        self.builder.copy(R[result], R[0]);
        let number = self.number();
        self.builder.copy(R[0], number).exit();
        self.builder.function("callee", entry);
        self.builder.copy(R[6], R[1]).copy(R[8], R[2]);
        self.builder.set(R[0], 1).set(R[7], 5).set(R[9], 9);
        self.depth += 1;
    }

    /// A comparison that one path reaches with addresses, and another with numbers of the same sets: what is
    /// learnt of the ones must not be believed of the others.
    fn met(&mut self) {
        let [numbers, compare, small, used, end] = [(); 5].map(|()| self.builder.label());
        let (number, which) = (self.number(), self.chance.of(&[R[8], R[9]]));
        let mask = self.chance.of(&[0xf, 0xff, 0xf_ffff]);
        let least = self.chance.of(&[0, 1, mask / 2, mask - 7]);
        let end_of_range = self.chance.below(70) as i32;
        self.builder.copy(R[1], number).alu(AluOp::And, R[1], Operand::Immediate(mask));
        self.builder.alu(AluOp::Sub, R[1], Operand::Immediate(least));
        self.builder.jump_if(Condition::Equal, which, Operand::Immediate(0), numbers);
        self.builder.load_wide(R[3], Wide::Variable { shared: false, offset: 0 });
        self.builder.copy(R[4], R[3]).alu(AluOp::Add, R[3], Operand::Register(R[1]));
        self.builder.alu(AluOp::Add, R[4], Operand::Immediate(end_of_range));
        self.builder.jump(compare).place(numbers);
        self.builder.copy(R[3], R[1]).set(R[4], i64::from(end_of_range)).place(compare);
        let condition = self.chance.of(&Condition::ALL);
        self.builder.jump_if(condition, R[3], Operand::Register(R[4]), small);
        self.builder.jump_if(Condition::Equal, which, Operand::Immediate(0), used);
        self.builder.place(small).jump(end).place(used);
        let writes = self.chance.one_in(3);
        self.base(R[5], writes);
        let from = self.chance.of(&[0, 0, -end_of_range, -4]);
        self.builder.alu(AluOp::Add, R[5], Operand::Immediate(from));
        self.builder.alu(AluOp::Add, R[5], Operand::Register(R[3]));
        self.touch(R[5], writes);
        self.builder.place(end);
    }

    /// An address that walks to another.
    fn walk(&mut self) {
        let writes = self.chance.one_in(2);
        let bound = self.base(R[3], writes);
        self.builder.copy(R[4], R[3]);
        let steps = bound / 8 - self.chance.below(3) as i32;
        self.builder.alu(AluOp::Add, R[4], Operand::Immediate(steps * 8));
        let again = self.builder.label();
        self.builder.place(again);
        self.touch(R[3], writes);
        self.builder.alu(AluOp::Add, R[3], Operand::Immediate(8));
        let condition =
            self.chance.of(&[Condition::NotEqual, Condition::Less, Condition::SignedLess]);
        self.builder.jump_if(condition, R[3], Operand::Register(R[4]), again);
    }

    fn atomic(&mut self) {
        self.base(R[3], true);
        let (op, width) = (self.chance.of(&AtomicOp::ALL), self.width());
        let (src, fetch) = (self.number(), self.chance.one_in(2));
        let offset = self.chance.below(5) as i16 * self.chance.of(&[8, 8, 8, 8, 4]);
        let instruction = Instruction::Atomic { width, op, fetch, base: R[3], offset, src };
        if encode(instruction).is_ok() {
            self.builder.push(instruction);
        }
    }
}

/// An executor with random answers, the same for the same seed, except for bytes of its regions.
#[derive(Clone)]
pub(crate) struct AnyHost {
    chance: FuzzRandom,
    /// All that was asked of it, in one number, but for words and reads of its regions.
    asked: u64,
}

impl AnyHost {
    fn new(chance: FuzzRandom) -> Self {
        Self { chance, asked: 0 }
    }

    fn note(&mut self, call: Call, arguments: &[u64]) {
        for number in [call as u64].iter().chain(arguments) {
            self.asked = (self.asked.rotate_left(5) ^ number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
    }

    fn bytes(region: u64, offset: u64, bytes: usize) -> Option<&'static [u8]> {
        let region = REGIONS.get(usize::try_from(region).ok()?)?;
        let from = usize::try_from(offset).ok()?;
        region.get(from..from.checked_add(bytes)?)
    }

    fn word<const N: usize>(region: u64, offset: u64) -> Option<[u8; N]> {
        Self::bytes(region, offset, N)?.try_into().ok()
    }

    fn result(&mut self, helper: &Helper) -> Reply {
        if helper.effect == HelperEffect::Word && self.chance.one_in(64) {
            return Reply::Refused;
        }
        let number = self.chance.number();
        if helper.returns(number) {
            return Reply::Now(number);
        }
        let span = helper.result_max.abs_diff(helper.result_min).saturating_add(1).max(1);
        let near = if self.chance.one_in(2) { 0 } else { number % span };
        Reply::Now(helper.result_max.wrapping_sub_unsigned(near) as u64)
    }
}

impl Near for AnyHost {
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        if let Some(word) = Self::word(region, offset) {
            return Reply::Now(u64::from_le_bytes(word));
        }
        self.note(Call::LoadU64, &[region, offset]);
        let row = Helper::with_number(Call::LoadU64 as u32);
        row.map_or(Reply::Later, |row| self.result(row))
    }

    fn read(&mut self, region: u64, offset: u64, out: &mut [u8]) -> Reply {
        if let Some(bytes) = Self::bytes(region, offset, out.len()) {
            out.copy_from_slice(bytes);
            return Reply::Now(0);
        }
        self.note(Call::Read, &[region, offset, out.len() as u64]);
        for byte in out {
            *byte = self.chance.next() as u8;
        }
        Helper::with_number(Call::Read as u32).map_or(Reply::Later, |row| self.result(row))
    }

    fn perform(&mut self, request: &Request, buffers: Buffers<'_>) -> Reply {
        if request.call == Call::LoadU32
            && let Some(word) = Self::word(request.arguments[0], request.arguments[1])
        {
            return Reply::Now(u64::from(u32::from_le_bytes(word)));
        }
        self.note(request.call, &request.arguments);
        for byte in buffers.inputs.into_iter().flatten() {
            self.asked = (self.asked ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        }
        for byte in buffers.output {
            *byte = self.chance.next() as u8;
        }
        let row = Helper::with_number(request.call as u32);
        row.map_or(Reply::Later, |row| self.result(row))
    }
}

/// What became of a program.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FuzzVerdict {
    Refused,
    Accepted { metered: bool },
}

/// The state after a run.
type End = (Outcome, Vec<u8>, Vec<u8>, Vec<u8>);

/// Verifies a program and runs what is accepted. An error is a defect of this crate.
pub(crate) fn judge(program: Program, chance: &mut FuzzRandom) -> Result<FuzzVerdict, String> {
    let budget = if chance.one_in(16) {
        Budget { instructions: chance.below(60), helper_calls: 8, bytes: 300 }
    } else if chance.one_in(4) {
        Budget { instructions: 300, helper_calls: 8, bytes: 300 }
    } else {
        Budget { instructions: 5_000, helper_calls: 100, bytes: 10_000 }
    };
    let limits = Limits {
        budget,
        walked_max: 3_000,
        widened_max: 6_000,
        context_bytes_max: 64,
        unpaused_max: chance.of(&[0, 40, 4_096]),
        ..Limits::DEFAULT
    };
    let Ok(verified) = verify(program, &limits) else {
        return Ok(FuzzVerdict::Refused);
    };
    let compiled = Compiled::new(verified.clone()).map_err(|error| error.to_string())?;
    for _ in 0..2 {
        let mut context = [0; 64];
        for word in context.chunks_exact_mut(8) {
            word.copy_from_slice(&chance.number().to_le_bytes());
        }
        let host = AnyHost::new(FuzzRandom::new(chance.next()));
        let text = |why: &str| format!("{why}\n{:#?}\n{context:x?}", verified.program().code);
        let (checked, executed) = run_checked(&verified, &context, host.clone(), budget);
        if let Outcome::Stopped(Stop::Fault(_) | Stop::BadReply { .. }) = checked.0 {
            return Err(text(&format!("accepted, but {:?}", checked.0)));
        }
        // Straight code is not charged: a budget of less than the program stops it at its first jump.
        let most = verified.worst().instructions.max(verified.program().code.len() as u64);
        if executed > most {
            return Err(text(&format!("{executed} executed, over {:?}", verified.worst())));
        }
        within_worst(&verified, &context, &host, &checked).map_err(|why| text(&why))?;
        let fast = run_fast(&verified, &context, host.clone(), budget);
        if fast != checked {
            return Err(text(&format!("checked {:?}, fast {:?}", checked.0, fast.0)));
        }
        if let Some(whole) = slices::run_whole(&verified, &context, &host, budget) {
            slices::run_sliced(&compiled, &context, &host, budget, &whole, chance)
                .map_err(|why| text(&why))?;
        }
        for way in [NativeMode::Started, NativeMode::Called, NativeMode::Beside] {
            let native = run_native(&compiled, &context, host.clone(), budget, way);
            if native != checked {
                let text = text(&format!("checked {:?}, compiled {:?}", checked.0, native.0));
                return Err(format!("{way:?} {text}"));
            }
        }
        let moved =
            run_moved(&verified, &compiled, &context, host, budget).map_err(|why| text(&why))?;
        if moved != checked {
            return Err(text(&format!("checked {:?}, moved {:?}", checked.0, moved.0)));
        }
    }
    Ok(FuzzVerdict::Accepted { metered: verified.metered() })
}

/// How a call ends in the checked interpreter, and its output.
pub(crate) fn checked_end(
    verified: &Verified,
    context: &[u8],
    chance: &mut FuzzRandom,
) -> (Outcome, Vec<u8>) {
    let host = AnyHost::new(FuzzRandom::new(chance.next()));
    let ((outcome, output, ..), _) = run_checked(verified, context, host, verified.limits().budget);
    (outcome, output)
}

/// Whether a call that nothing meters comes to no more of anything than was said.
fn within_worst(
    verified: &Verified,
    context: &[u8],
    host: &AnyHost,
    checked: &End,
) -> Result<(), String> {
    if verified.metered() {
        return Ok(());
    }
    let worst = verified.worst();
    let least = Budget {
        instructions: worst.instructions,
        helper_calls: worst.helper_calls,
        bytes: worst.bytes,
    };
    let (within, _) = run_checked(verified, context, host.clone(), least);
    if within == *checked { Ok(()) } else { Err(format!("{:?} within {worst:?}", within.0)) }
}
