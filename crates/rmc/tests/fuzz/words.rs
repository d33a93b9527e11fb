//! Words of host memory: regions of the executor, and pieces of programs that search them.

use farside_rmc::helpers::Call;
use farside_rmc::isa::{AluOp, Condition, Operand, Size};

use super::{Maker, R};

/// Regions of the executor, with all words different.
pub(super) const REGIONS: [&[u8]; 4] =
    [&counted::<300>(3), &counted::<13>(7), &[9; 7], &counted::<200>(1)];

const fn counted<const BYTES: usize>(step: usize) -> [u8; BYTES] {
    let mut bytes = [0; BYTES];
    let mut at = 0;
    while at < BYTES {
        // Every other word is small, as offsets are.
        bytes[at] = if at % 8 < 1 + at / 8 % 2 * 7 { (at * step + at / 8) as u8 } else { 0 };
        at += 1;
    }
    bytes
}

impl Maker<'_> {
    /// Words of a region, as searches load them: some of them around one register.
    pub(super) fn words(&mut self) {
        let mut region = self.chance.of(&[7, 8, 9]);
        if self.chance.one_in(2) {
            let value = self.chance.of(&[0, 0, 1, 2, 3, 4, -1]);
            self.builder.set(R[region], value);
        }
        let mut offset = self.number();
        for _ in 0..1 + self.chance.below(5) {
            if self.chance.one_in(3) {
                offset = self.number();
            }
            if self.chance.one_in(8) {
                region = self.chance.of(&[7, 8, 9]);
            }
            if self.chance.one_in(3) {
                let mask = self.chance.of(&[127, 127, 255, 511]);
                self.builder.alu(AluOp::And, offset, Operand::Immediate(mask));
            }
            self.builder.copy(R[1], R[region]).copy(R[2], offset);
            if self.chance.one_in(2) {
                let more = Operand::Immediate(self.chance.of(&[8, 16, -8, 1, 120, 128, 136]));
                self.builder.alu(AluOp::Add, R[2], more);
            }
            if self.chance.one_in(4) {
                self.read_of_words();
                continue;
            }
            let call = self.chance.of(&[Call::LoadU64, Call::LoadU64, Call::LoadU32]);
            self.builder.call(call);
            if self.chance.one_in(3) {
                let kept = self.chance.of(&[7, 8, 9]);
                self.builder.copy(R[kept], R[0]);
            }
            if self.chance.one_in(4) {
                self.between_words();
            }
        }
        self.builder.alu(AluOp::And, R[7], Operand::Immediate(63));
    }

    /// A read into the stack of what R1 and R2 say, of which one word is kept.
    fn read_of_words(&mut self) {
        let bytes = self.chance.of(&[8, 16, 24, 24, 32, 64, 72, 12]);
        self.builder.copy(R[3], R[10]).alu(AluOp::Add, R[3], Operand::Immediate(-bytes));
        self.builder.set(R[4], i64::from(bytes)).call(Call::Read);
        let (kept, at) =
            (self.chance.of(&[7, 8, 9]), self.chance.of(&[8, 8, 16, 24]).min(bytes / 8 * 8));
        self.builder.load(Size::Double, R[kept], R[10], -at as i16);
        if self.chance.one_in(3) {
            self.builder.alu(AluOp::Add, R[kept], Operand::Register(R[0]));
        }
    }

    /// What a search does with a word before it loads the next one.
    fn between_words(&mut self) {
        match self.chance.below(4) {
            0 => {
                let over = self.builder.label();
                let (condition, value) = (self.chance.of(&Condition::ALL), self.chance.immediate());
                let other = self.number();
                self.builder.jump_if(condition, R[0], Operand::Immediate(value), over);
                self.builder.alu(AluOp::Add, other, Operand::Immediate(8));
                self.builder.place(over);
            }
            1 => {
                self.builder.store(Size::Double, R[10], -8, Operand::Register(R[0]));
            }
            2 => {
                let kept = self.chance.of(&[8, 9]);
                self.builder.alu(AluOp::Add, R[kept], Operand::Register(R[0]));
            }
            _ => {
                self.builder.alu(AluOp::Div, R[0], Operand::Immediate(3));
            }
        }
    }
}
