//! Short reads of host memory into the stack, word by word in place from the region that was used last.
//!
//! Each is checked: its region is the last one, it is in bounds, it consists of whole aligned words (so that none of
//! them tears), and the budget covers it. If one of these fails, the helper is called, which reports the reason.

use super::compiler::{Cold, CompileError, Compiler, R10Value, SlowRead, home};
use super::emit::{MemoryOperand, R10, RAX, RBP, RCX, When};
use super::entry::{AREAS, BYTES_LEFT, CALLS_LEFT, LAST_BASE, LAST_NUMBER, LAST_WORDS};
use super::later::{Later, PendingRegisters};
use crate::decode::{Area, Code, Op};

/// Bytes of the longest read that is carried out in place.
const BYTES_MAX: i32 = 64;

impl Compiler<'_> {
    /// Compiles the helper `read` if it reads a few whole words into the stack. Returns false otherwise.
    pub(super) fn read_in_place(&mut self, op: Op, slot: usize) -> bool {
        let waiting = self.state.later;
        let (Some(Later::Sum(10, to)), Some(Later::Number(bytes))) = (waiting.of(3), waiting.of(4))
        else {
            return false;
        };
        if op.code != Code::HelperRead || !(8..=BYTES_MAX).contains(&bytes) || bytes % 8 != 0 {
            return false;
        }
        let [region, offset] = waiting.arguments();
        self.compare(region, MemoryOperand::at(RBP, LAST_NUMBER));
        let other = self.out.jump_if(When::NOT_EQUAL);
        let known = self.out.code.len();
        self.make(RCX, offset);
        let out = &mut self.out;
        let mut outside = [None; 5];
        // An offset in the region is far from the greatest number, so that the sum with it does not overflow.
        out.memory(true, &[0x3b], RCX.0, MemoryOperand::at(RBP, LAST_WORDS));
        outside[0] = Some(out.jump_if(When::ABOVE_EQUAL));
        if bytes > 8 {
            out.sum(R10, RCX, bytes - 8);
            out.memory(true, &[0x3b], R10.0, MemoryOperand::at(RBP, LAST_WORDS));
            outside[1] = Some(out.jump_if(When::ABOVE_EQUAL));
        }
        out.memory(true, &[0x03], RCX.0, MemoryOperand::at(RBP, LAST_BASE));
        out.test_low(RCX, 7);
        outside[2] = Some(out.jump_if(When::NOT_EQUAL));
        let costs = [(CALLS_LEFT, 1), (BYTES_LEFT, bytes as i8)];
        for (hole, (left, cost)) in outside[3..].iter_mut().zip(costs) {
            out.compare_short(MemoryOperand::at(RBP, left), cost);
            *hole = Some(out.jump_if(When::LESS));
        }
        costs
            .into_iter()
            .for_each(|(left, cost)| out.subtract_short(MemoryOperand::at(RBP, left), cost));
        out.load(R10, MemoryOperand::at(RBP, AREAS + Area::Stack as i32 * 8));
        for at in (0..bytes).step_by(8) {
            out.load(RAX, MemoryOperand::at(RCX, at));
            out.store(MemoryOperand::sum(R10, home(10), to + at), RAX);
        }
        out.clear(RAX);
        let done = out.code.len();
        self.cold.push(Cold::Read(SlowRead { other, outside, slot, waiting, known, done }));
        self.state.later = PendingRegisters::default();
        self.state.last = None;
        self.state.held = R10Value::Nothing;
        true
    }

    /// Where a read's region is another one, or it cannot be carried out in place.
    pub(super) fn cold_read(&mut self, asked: SlowRead) -> Result<(), CompileError> {
        let SlowRead { other, outside, slot, waiting, known, done } = asked;
        let asks = self.out.code.len();
        outside.into_iter().flatten().for_each(|hole| self.out.here(hole));
        self.state.later = waiting;
        self.now(u16::MAX);
        self.helper(slot)?;
        let end = self.out.jump();
        self.fill(end, done)?;
        self.out.here(other);
        self.make(RCX, waiting.arguments()[0]);
        let unknown = self.other_region();
        self.fill(unknown, asks)?;
        let end = self.out.jump();
        self.fill(end, known)
    }
}
