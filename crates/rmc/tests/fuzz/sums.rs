//! Offsets and lengths that are bounded together, in the forms that compilers make of `offset + length <= size`, and some
//! that are nearly right: what the relations of the verifier are tested by.

use super::{FuzzRandom, Maker, R};
use farside_rmc::Program;
use farside_rmc::assembler::{Builder, Label};
use farside_rmc::helpers::Call;
use farside_rmc::isa::{AluOp, Condition, Instruction, Operand, Register, Size, Width};

const GREATER: [Condition; 2] = [Condition::Greater, Condition::SignedGreater];

/// A program of such pieces alone.
pub(crate) fn sums(chance: &mut FuzzRandom) -> Program {
    let mut maker = Maker { chance, builder: Builder::new("sums"), depth: 0, reserved: 0 };
    maker.data();
    maker.start();
    for _ in 0..1 + maker.chance.below(3) {
        maker.sum();
    }
    maker.builder.exit();
    maker.builder.build().unwrap_or_default()
}

impl Maker<'_> {
    /// The offset is in R2 and the length in R4, or the start in R2 and the end in R4; R1 and R5 are for the moment.
    pub(super) fn sum(&mut self) {
        let end = self.builder.label();
        let (offset, length) = (R[2], R[4]);
        let (first, second) = (self.chance.below(8) as i16, self.chance.below(8) as i16);
        let size = 72 - self.chance.of(&[0, 0, 0, 8, 40]);
        // Both may be counted in elements.
        let scale = if self.chance.one_in(6) { 1 + self.chance.below(2) as i32 } else { 0 };
        let elements = size >> scale;
        if self.reserved == 0 && self.chance.one_in(8) {
            self.chains(size, end);
            self.builder.place(end);
            return;
        }
        if self.chance.one_in(4) {
            self.builder.load(Size::Double, offset, R[6], first * 8);
            self.builder.load(Size::Double, length, R[6], second * 8);
            self.sum_of_halves((offset, length), elements, end);
            if scale > 0 {
                for register in [offset, length] {
                    self.scaled(register, scale);
                    if self.chance.one_in(2) {
                        self.extended(register);
                    }
                }
            }
            self.used((offset, length), size);
            self.builder.place(end);
            return;
        }
        self.unknown(offset, first);
        self.unknown(length, second);
        // Another path may bound each of them alone, or their sum by more, and then comes to the same place.
        let (apart, met) = (self.builder.label(), self.builder.label());
        let has_another = self.chance.one_in(3);
        if has_another {
            self.builder.load(Size::Byte, R[5], R[6], 56);
            self.skip_if(R[5], Operand::Immediate(40), apart);
        }
        for _ in 0..1 + self.chance.below(2) {
            match self.chance.below(6) {
                0 | 1 => self.sum_compared((offset, length), elements, end),
                2 | 3 => self.rest_compared((offset, length), elements, end),
                4 => self.difference((offset, length), elements, end),
                _ => self.ordered((offset, length), elements, end),
            }
            if self.chance.one_in(3) {
                self.copied(self.chance.clone().of(&[offset, length]));
            }
        }
        if has_another {
            self.builder.jump(met).place(apart);
            if self.chance.one_in(2) {
                let more = self.chance.of(&[0, 0, 8, 200]);
                self.sum_compared((offset, length), elements + more, end);
            }
            for register in [offset, length] {
                if !self.chance.one_in(8) {
                    let bound = self.near(elements);
                    self.builder.jump_if(Condition::Greater, register, bound, end);
                }
            }
            self.builder.place(met);
            (0..2).for_each(|_| self.diamond());
        }
        self.scaled(offset, scale);
        self.scaled(length, scale);
        self.used((offset, length), size);
        self.builder.place(end);
    }

    /// The same of lower halves: what is compared are extended copies, and arithmetic is of the wholes.
    fn sum_of_halves(&mut self, (offset, length): (Register, Register), size: i32, end: Label) {
        let (first, second) = (R[1], R[5]);
        for (copy, of) in [(first, offset), (second, length)] {
            self.builder.copy(copy, of);
            self.moved(copy);
            self.extended(copy);
            if !self.chance.one_in(3) {
                let bound = self.near(size);
                self.skip_if(copy, bound, end);
            }
            if self.chance.one_in(3) {
                self.skip_if(copy, Operand::Immediate(0), end);
            }
        }
        match self.chance.below(4) {
            0 => {
                let bound = self.near(size);
                self.builder.copy(R[1], offset).alu(AluOp::Add, R[1], Operand::Register(length));
                self.moved(R[1]);
                self.extended(R[1]);
                self.skip_if(R[1], bound, end);
            }
            1 | 2 => {
                let Operand::Immediate(whole) = self.near(size) else { return };
                self.builder.set(R[1], i64::from(whole));
                self.builder.alu(AluOp::Sub, R[1], Operand::Register(offset));
                self.moved(R[1]);
                self.extended(R[1]);
                self.skip_if(R[5], Operand::Register(R[1]), end);
            }
            _ => {
                self.skip_if(R[1], Operand::Register(R[5]), end);
                self.builder.alu(AluOp::Sub, length, Operand::Register(offset));
            }
        }
        for register in [offset, length] {
            if self.chance.one_in(3) {
                self.moved(register);
            }
            if !self.chance.one_in(12) {
                self.extended(register);
            }
        }
    }

    /// From elements to bytes, in most cases.
    fn scaled(&mut self, register: Register, scale: i32) {
        if scale == 0 {
            return;
        }
        let by = if self.chance.one_in(10) { 1 + self.chance.below(4) as i32 } else { scale };
        self.moved(register);
        self.builder.alu(AluOp::ShiftLeft, register, Operand::Immediate(by));
    }

    /// Two numbers, R8 and R9, of which the lower halves have equal sets, go through the same chain of additions, mostly
    /// farther from their symbols than a link may be; one of them is bounded, and either is an index.
    fn chains(&mut self, size: i32, end: Label) {
        let (wholes, terms, last) = ([R[8], R[9]], [R[1], R[2]], R[5]);
        for (at, register) in wholes.into_iter().chain(terms).chain([last]).enumerate() {
            let size = if at < wholes.len() { Size::Double } else { Size::Byte };
            self.builder.load(size, register, R[6], at as i16 * 8);
        }
        for whole in wholes {
            self.builder.copy(R[3], whole);
            self.extended(R[3]);
            self.builder.jump_if(Condition::Greater, R[3], Operand::Immediate(0xfff_ffff), end);
            if self.chance.one_in(2) {
                self.builder.copy(whole, R[3]);
            }
        }
        let mut distance = 0;
        for term in terms {
            let by = self.chance.of(&[16_384, 16_384, 9_000, 4_000, -16_384]);
            // A copy gives the term a symbol.
            self.builder.copy(R[0], term).alu(AluOp::Add, term, Operand::Immediate(by));
            distance += by;
            for whole in wholes {
                self.builder.alu(AluOp::Add, whole, Operand::Register(term));
            }
        }
        let (bounded, used) = self.chance.of(&[(R[8], R[9]), (R[8], R[9]), (R[9], R[9])]);
        for whole in wholes {
            self.builder.alu(AluOp::Sub, whole, Operand::Register(last));
        }
        let most = distance + size - 1;
        for (copy, of) in [(R[4], used), (R[0], bounded)] {
            self.builder.copy(copy, of);
            self.extended(copy);
        }
        let compared = self.chance.of(&[R[0], bounded]);
        self.builder.jump_if(Condition::Greater, compared, Operand::Immediate(most), end);
        self.builder.alu(AluOp::Add, R[4], Operand::Immediate(-distance));
        self.builder.jump_if(Condition::SignedLess, R[4], Operand::Immediate(0), end);
        self.base(R[3], false);
        self.builder.alu(AluOp::Add, R[3], Operand::Register(R[4]));
        self.builder.load(Size::Byte, R[0], R[3], 0);
    }

    /// Two paths to one place.
    fn diamond(&mut self) {
        let (joined, dst) = (self.builder.label(), self.number());
        self.builder.load(Size::Byte, R[5], R[6], 48);
        self.builder.jump_if(Condition::Greater, R[5], Operand::Immediate(30), joined);
        self.builder.set(dst, 1).place(joined);
    }

    /// A number of which little is known, not negative in most cases.
    fn unknown(&mut self, to: Register, word: i16) {
        let size = self.chance.of(&[Size::Byte, Size::Byte, Size::Half, Size::Word, Size::Double]);
        self.builder.load(size, to, R[6], word * 8);
        match self.chance.below(8) {
            0 => _ = self.builder.alu(AluOp::And, to, Operand::Immediate(127)),
            1 => _ = self.builder.alu(AluOp::ShiftLeft, to, Operand::Immediate(2)),
            2 => _ = self.builder.alu(AluOp::Sub, to, Operand::Immediate(3)),
            3 | 4 => self.extended(to),
            _ => {}
        }
    }

    /// The lower half of it, as on processors without an instruction for it.
    fn extended(&mut self, register: Register) {
        let right =
            self.chance.of(&[AluOp::ShiftRight, AluOp::ShiftRight, AluOp::ShiftRightSigned]);
        self.builder.alu(AluOp::ShiftLeft, register, Operand::Immediate(32));
        self.builder.alu(right, register, Operand::Immediate(32));
    }

    /// Through another register, and changed there or extended.
    fn copied(&mut self, register: Register) {
        self.builder.copy(R[5], register);
        match self.chance.below(5) {
            0 => self.extended(R[5]),
            1 => _ = self.builder.alu(AluOp::Add, R[5], Operand::Immediate(1)),
            2 => return,
            _ => {}
        }
        self.builder.copy(register, R[5]);
    }

    /// Farther by a constant, at times.
    fn moved(&mut self, register: Register) {
        if self.chance.one_in(3) {
            let by = self.chance.of(&[2, 4, 1, -1, -4]);
            self.builder.alu(AluOp::Add, register, Operand::Immediate(by));
        }
    }

    fn near(&mut self, size: i32) -> Operand {
        Operand::Immediate(size + self.chance.of(&[0, 0, 0, 0, -1, 1, -8, 8]))
    }

    fn skip_if(&mut self, dst: Register, src: Operand, end: Label) {
        let condition = match self.chance.below(12) {
            0 => self.chance.of(&Condition::ALL),
            1 => Condition::GreaterEqual,
            _ => self.chance.of(&GREATER),
        };
        let width = if self.chance.one_in(10) { Width::Word } else { Width::Double };
        self.builder.push_to(Instruction::JumpIf { width, condition, dst, src, offset: 0 }, end);
    }

    /// `if (offset + length + c > size) skip`
    fn sum_compared(&mut self, (offset, length): (Register, Register), size: i32, end: Label) {
        let (a, b) = if self.chance.one_in(2) { (offset, length) } else { (length, offset) };
        self.builder.copy(R[1], a).alu(AluOp::Add, R[1], Operand::Register(b));
        self.moved(R[1]);
        if self.chance.one_in(3) {
            self.extended(R[1]);
        }
        let bound = self.near(size);
        self.skip_if(R[1], bound, end);
    }

    /// `if (offset > size || length > size - offset) skip`
    fn rest_compared(&mut self, (offset, length): (Register, Register), size: i32, end: Label) {
        if !self.chance.one_in(4) {
            let bound = self.near(size);
            self.skip_if(offset, bound, end);
        }
        let Operand::Immediate(whole) = self.near(size) else { return };
        self.builder.set(R[1], i64::from(whole)).alu(AluOp::Sub, R[1], Operand::Register(offset));
        self.moved(R[1]);
        if self.chance.one_in(4) {
            self.builder.copy(length, R[1]);
        } else {
            self.skip_if(length, Operand::Register(R[1]), end);
        }
    }

    /// `if (start > end || end > size) skip; length = end - start`
    fn difference(&mut self, (start, to): (Register, Register), size: i32, end: Label) {
        let bound = self.near(size);
        self.builder.copy(R[1], start);
        self.moved(R[1]);
        if self.chance.one_in(2) {
            self.skip_if(to, bound, end);
            self.skip_if(R[1], Operand::Register(to), end);
        } else {
            self.skip_if(R[1], Operand::Register(to), end);
            self.skip_if(to, bound, end);
        }
        if self.chance.one_in(3) {
            self.builder.copy(start, R[1]);
        }
        self.builder.alu(AluOp::Sub, to, Operand::Register(start));
    }

    /// Each of them is compared with the other or with a bound.
    fn ordered(&mut self, (offset, length): (Register, Register), size: i32, end: Label) {
        let (a, b) = if self.chance.one_in(2) { (offset, length) } else { (length, offset) };
        self.skip_if(a, Operand::Register(b), end);
        let bound = self.near(size);
        self.skip_if(b, bound, end);
    }

    /// Memory from the offset on, as long as the length; or the byte where it ends.
    fn used(&mut self, (offset, length): (Register, Register), size: i32) {
        self.base(R[3], false);
        let behind = self.chance.of(&[0, 0, 72 - size, 72 - size + 1]);
        self.builder.alu(AluOp::Add, R[3], Operand::Register(offset));
        if behind > 0 {
            self.builder.alu(AluOp::Add, R[3], Operand::Immediate(behind));
        }
        match self.chance.below(3) {
            0 => {
                self.builder.alu(AluOp::Add, R[3], Operand::Register(length));
                self.builder.load(Size::Byte, R[0], R[3], self.chance.of(&[-1, -1, 0]));
            }
            1 => {
                self.builder.copy(R[1], R[3]).copy(R[2], length).call(Call::Emit);
            }
            _ => {
                self.builder.copy(R[1], R[3]).copy(R[2], length).set(R[3], 0).call(Call::Crc32c);
            }
        }
    }
}
