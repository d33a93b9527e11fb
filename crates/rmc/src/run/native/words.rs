//! Words of host memory, loaded in place from the region that was used last.
//!
//! Each word is checked: its region is the last one, and it is in bounds. Words that a program loads consecutively
//! around the same register (the fields of a record) are a [`Group`], which is checked once for all of them. If that
//! fails (another region, the region's end, or a word that has to be requested), a second copy of the group's code
//! continues, which is *careful*: it checks each word separately. Entries in the middle of a group go there too.

use super::compiler::{
    Careful, Cold, CompileError, Compiler, Group, R10Value, condition, ends_group, home, word_bytes,
};
use super::emit::{Hole, MemoryOperand, R10, RAX, RBP, RCX, Reg, When};
use super::entry::{
    LAST_BASE, LAST_INNER, LAST_NUMBER, LAST_WORDS, REGION_COUNT, REGION_SHIFT, REGIONS, ROOM,
};
use super::later::{FIRST_KEPT, Later, PendingRegisters};
use crate::decode::{Code, uses};

impl Compiler<'_> {
    /// The group that begins with the word that a slot loads.
    fn group(&self, first: usize, [region, offset]: [Later; 2]) -> Option<Group> {
        let Later::Sum(base, number) = offset else {
            return None;
        };
        if !region.outlives_calls() || !offset.outlives_calls() {
            return None;
        }
        let mut group = Group { first, last: first, region, base, least: number };
        let (mut most, mut waiting) = (number, PendingRegisters::default());
        for slot in first + 1..self.ops.len() {
            let op = self.ops[slot];
            let (read, written) = uses(self.verified.program().code[slot]);
            if self.meetings[slot] || self.is_marked(slot) || self.pauses[slot] {
                break;
            }
            if word_bytes(op).is_some() {
                let (region, Later::Sum(base, number)) = waiting.arguments().into() else {
                    break;
                };
                let (least, more) = (group.least.min(number), most.max(number));
                let fits = i64::from(more) - i64::from(least) <= ROOM;
                if region != group.region || base != group.base || !fits {
                    break;
                }
                (group.last, group.least, most) = (slot, least, more);
                waiting = PendingRegisters::default();
                continue;
            }
            let changes = offset.changes_with(written) || region.changes_with(written);
            if changes || ends_group(op) {
                break;
            }
            if !waiting.takes(op) {
                let all = condition(op.code).is_some();
                let due = waiting.due(if all { u16::MAX } else { read }, written);
                waiting.drop(due);
            }
        }
        (group.last > first).then_some(group)
    }

    /// The helpers `load_u64` and `load_u32`: from a lent region in place, otherwise by calling them.
    pub(super) fn load_word(&mut self, slot: usize, wide: bool) -> Result<(), CompileError> {
        let arguments = self.state.later.arguments();
        if let Some(group) = self.group.filter(|group| group.is_around(slot)) {
            if !group.has(arguments) || self.state.last != Some(group.region) {
                debug_assert!(false, "{group:?} has not {arguments:?}");
                return self.leave_at(slot);
            }
            self.take_word(slot, wide, arguments);
            return Ok(());
        }
        self.group = if self.careful { None } else { self.group(slot, arguments) };
        if let Some(group) = self.group {
            self.check_group(group);
            self.take_word(slot, wide, arguments);
            return Ok(());
        }
        let other = self.check_region(arguments[0]);
        let known = self.out.code.len();
        self.compare(arguments[1], MemoryOperand::at(RBP, LAST_WORDS));
        let outside = self.out.jump_if(When::ABOVE_EQUAL);
        let to = self.take_word(slot, wide, arguments);
        let done = self.out.code.len();
        self.cold.push(Cold::Word { other, outside, slot, arguments, known, done, to });
        Ok(())
    }

    /// Jumps to the slow path if a region is not the last one.
    fn check_region(&mut self, region: Later) -> Option<Hole> {
        (self.state.last != Some(region)).then(|| {
            self.state.held = R10Value::Nothing;
            self.compare(region, MemoryOperand::at(RBP, LAST_NUMBER));
            self.out.jump_if(When::NOT_EQUAL)
        })
    }

    /// Checks all words of a group.
    fn check_group(&mut self, group: Group) {
        let state = self.state;
        let other = self.check_region(group.region);
        self.compare(Later::Sum(group.base, group.least), MemoryOperand::at(RBP, LAST_INNER));
        let outside = self.out.jump_if(When::ABOVE_EQUAL);
        self.cold.push(Cold::Careful(Careful { from: [other, Some(outside)], group, state }));
    }

    /// Loads a word that has been checked. Returns the register that gets it besides R0.
    fn take_word(&mut self, slot: usize, wide: bool, [region, offset]: [Later; 2]) -> Reg {
        self.state.later = PendingRegisters::default();
        if self.state.held != R10Value::Base {
            self.out.load(R10, MemoryOperand::at(RBP, LAST_BASE));
        }
        let place = match offset {
            Later::Number(_) => MemoryOperand::sum(R10, RCX, 0),
            Later::Sum(base, number) => MemoryOperand::sum(R10, home(base), number),
        };
        // Where the word is kept at once, it is loaded there: searches wait for each word, and a copy would
        // be another step of the way.
        self.copied = self.copy_behind(slot, region);
        let to = self.copied.unwrap_or(RAX);
        self.out.memory(wide, &[0x8b], to.0, place);
        let read = self.live.get(slot + 2).is_none_or(|live| live & 1 == 1);
        if to != RAX && read {
            self.out.copy(true, RAX, to);
        }
        // Values that the call has clobbered are no longer known.
        let stays = region.outlives_calls();
        self.state.last = stays.then_some(region);
        self.state.held = if stays { R10Value::Base } else { R10Value::Nothing };
        to
    }

    /// The home of the register to which the next slot copies R0, if that is all it does.
    fn copy_behind(&self, slot: usize, region: Later) -> Option<Reg> {
        let op = self
            .ops
            .get(slot + 1)
            .filter(|_| !self.meetings[slot + 1] && !self.is_marked(slot + 1))?;
        let kept = (FIRST_KEPT..10).contains(&usize::from(op.dst));
        let is_region = region.changes_with(1 << op.dst);
        (op.code == Code::Move && op.src == 0 && kept && !is_region).then(|| home(op.dst))
    }

    /// Compares a pending value with a word of memory, through RCX if it is in no register.
    pub(super) fn compare(&mut self, later: Later, with: MemoryOperand) {
        let reg = match later {
            Later::Sum(base, 0) => home(base),
            _ => {
                self.make(RCX, later);
                RCX
            }
        };
        self.out.memory(true, &[0x3b], reg.0, with);
    }

    /// The second copy of a group's code.
    pub(super) fn careful_group(&mut self, careful: Careful) -> Result<(), CompileError> {
        let Careful { from, group, state } = careful;
        from.into_iter().flatten().for_each(|hole| self.out.here(hole));
        self.state = state;
        self.careful = true;
        self.instructions(group.first, false)?;
        for slot in group.first + 1..=group.last {
            let (place, copied) = (self.place()?, self.copied.take());
            if self.is_entered(slot) {
                self.places[slot].1 = self.entry(slot, place, copied);
            }
            self.instructions(slot, copied.is_some())?;
        }
        self.careful = false;
        self.copied = None;
        let behind = self.places.get(group.last + 1).ok_or(CompileError::TooLarge)?.0;
        self.arrive(group.last + 1, true);
        let end = self.out.jump();
        self.fill(end, behind as usize)
    }

    /// Where a word's region is another one, or it is not there.
    pub(super) fn cold_word(
        &mut self,
        (other, outside): (Option<Hole>, Hole),
        (slot, arguments): (usize, [Later; 2]),
        (known, done): (usize, usize),
        to: Reg,
    ) -> Result<(), CompileError> {
        let asks = self.out.code.len();
        self.out.here(outside);
        for (at, argument) in arguments.into_iter().enumerate() {
            self.make(home(at as u8 + 1), argument);
        }
        self.helper(slot)?;
        self.out.load(R10, MemoryOperand::at(RBP, LAST_BASE));
        if to != RAX {
            self.out.copy(true, to, RAX);
        }
        let end = self.out.jump();
        self.fill(end, done)?;
        let Some(other) = other else {
            return Ok(());
        };
        self.out.here(other);
        self.make(RCX, arguments[0]);
        let unknown = self.other_region();
        self.fill(unknown, asks)?;
        let end = self.out.jump();
        self.fill(end, known)
    }

    /// Makes the region in RCX the last one. Where it is unknown it has no words.
    pub(super) fn other_region(&mut self) -> Hole {
        let out = &mut self.out;
        out.store(MemoryOperand::at(RBP, LAST_NUMBER), RCX);
        out.store_number(MemoryOperand::at(RBP, LAST_WORDS), 0);
        out.store_number(MemoryOperand::at(RBP, LAST_INNER), 0);
        out.memory(true, &[0x3b], RCX.0, MemoryOperand::at(RBP, REGION_COUNT));
        let unknown = out.jump_if(When::ABOVE_EQUAL);
        out.shift_by(true, 4, RCX, REGION_SHIFT);
        out.memory(true, &[0x03], RCX.0, MemoryOperand::at(RBP, REGIONS));
        out.load(R10, MemoryOperand::at(RCX, 0));
        out.store(MemoryOperand::at(RBP, LAST_BASE), R10);
        out.load(R10, MemoryOperand::at(RCX, 8));
        out.store(MemoryOperand::at(RBP, LAST_WORDS), R10);
        out.with_number(true, 5, R10, ROOM as i32);
        let narrow = out.jump_if(When::BELOW);
        out.store(MemoryOperand::at(RBP, LAST_INNER), R10);
        out.here(narrow);
        unknown
    }
}
