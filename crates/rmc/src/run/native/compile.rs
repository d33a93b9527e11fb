//! A template compiler: the machine code of each instruction.
//!
//! R0 to R10 and the meter are kept in registers of the processor throughout. RBP points to the frame, R10 and RCX are
//! scratch registers. R6 to R10 are in registers that the calling convention preserves.
//!
//! Sums and copies into R1 to R5, mostly arguments, are evaluated lazily ([`PendingRegisters`]): helpers that load words use
//! them directly, and values that a call clobbers are never computed.

use alloc::vec::Vec;

use super::super::machine::frame_pointer;
use super::compiler::{
    Cold, CompileError, CompileState, Compiler, HOMES, Paid, R10Value, condition,
    condition_or_jump, home, leaves, word_bytes,
};
use super::emit::{
    Emitter, Hole, MemoryOperand, R10, R11, RAX, RBP, RCX, RDI, RDX, RSI, Reg, When,
};
use super::entry::{
    AREAS, ENDED, HELP, KEPT, KEPT_BACK, KEPT_BYTES, KEPT_R6, LAST_BASE, LEFT, METER, REGISTERS,
    RETURNED, SLOT,
};
use super::later::{FIRST_KEPT, Later, PendingRegisters};
use crate::cost::Charges;
use crate::decode::{Area, Code, Op, ZERO, uses};
use crate::isa::{AtomicOp, Instruction, Width};
use crate::limits::FRAME_BYTES;
use crate::verify::Verified;

/// Where the instructions that are left live.
const METER_HOME: Reg = R11;
/// The code of a program.
pub(super) struct Compiled {
    pub(super) code: Vec<u8>,
    /// Where a start of the program enters.
    pub(super) first: usize,
    /// Where the code of each slot starts that can be entered.
    pub(super) places: Vec<Option<u32>>,
}

/// The code of a program. It starts with the way in for all slots but the first.
pub(super) fn compile(verified: &Verified) -> Result<Compiled, CompileError> {
    let ops = verified.ops();
    let mut compiler = Compiler {
        ops,
        verified,
        out: Emitter::with_room(512 + ops.len() * 24),
        places: Vec::with_capacity(ops.len()),
        meetings: verified.meetings(),
        pauses: pauses(verified),
        relied: alloc::vec![None; ops.len()],
        live: verified.live(),
        behind_one: behind_one(verified),
        state: CompileState::default(),
        group: None,
        careful: false,
        copied: None,
        jumps: Vec::new(),
        cold: Vec::new(),
        tables: Vec::new(),
        help: 0,
        leave: 0,
        recursive: ops.iter().any(|op| op.code == Code::Call && op.offset == 0),
        used: used(verified),
        kept: Vec::new(),
    };
    compiler.rely_in_loops();
    compiler.choose_kept();
    compiler.ways_in_and_out();
    let first = compiler.first();
    for slot in 0..ops.len() {
        compiler.slot(slot)?;
    }
    compiler.finish()?;
    let places = compiler.places.iter().map(|(_, entry)| *entry).collect();
    Ok(Compiled { code: compiler.out.code, first, places })
}

impl Compiler<'_> {
    fn choose_kept(&mut self) {
        self.kept.push(RBP);
        let homes = HOMES.iter().enumerate().skip(FIRST_KEPT);
        let used = self.used;
        self.kept.extend(homes.filter(|(at, _)| used >> at & 1 == 1).map(|(_, home)| *home));
        if self.kept.len() % 2 == 1 {
            self.kept.push(RCX);
        }
    }

    /// Code is passed the frame, a place to go to, the meter and the parameters' length.
    fn enter(&mut self) {
        self.kept.iter().for_each(|reg| self.out.push(*reg));
        self.out.copy(true, RBP, RDI);
        self.out.copy(true, METER_HOME, RDX);
    }

    fn leave(&mut self, how: u64) {
        if how == RETURNED {
            self.out.clear(RDX);
        } else {
            self.out.set(RDX, how);
        }
        self.kept.iter().rev().for_each(|reg| self.out.pop(*reg));
        self.out.ret();
    }

    /// Homes of registers that are used.
    fn homes(&self) -> impl Iterator<Item = (usize, Reg)> + use<> {
        let used = self.used;
        HOMES.into_iter().enumerate().filter(move |(at, _)| used >> at & 1 == 1)
    }

    /// Stores all registers and the meter into the frame.
    fn store_all(&mut self) {
        for (at, home) in HOMES.into_iter().enumerate() {
            if self.used >> at & 1 == 1 {
                self.out.store(register(at), home);
            } else {
                self.out.store_number(register(at), 0);
            }
        }
        self.out.store(MemoryOperand::at(RBP, METER), METER_HOME);
    }

    fn ways_in_and_out(&mut self) {
        self.enter();
        self.out.copy(true, RCX, RSI);
        for (at, home) in self.homes() {
            self.out.load(home, register(at));
        }
        self.out.jump_to(RCX);

        self.leave = self.out.code.len();
        self.store_all();
        self.out.load(RAX, MemoryOperand::at(RBP, SLOT));
        self.leave(LEFT);

        // Calls the helper of the slot in R10. Afterwards, registers that a call clobbers hold no values of the host.
        self.help = self.out.code.len();
        self.store_all();
        let out = &mut self.out;
        out.store(MemoryOperand::at(RBP, SLOT), R10);
        out.copy(true, RDI, RBP);
        out.copy(true, RSI, R10);
        out.call_at(MemoryOperand::at(RBP, HELP));
        out.test(true, RAX, RAX);
        let ends = out.jump_if(When::EQUAL);
        out.load(RAX, register(0));
        out.load(METER_HOME, MemoryOperand::at(RBP, METER));
        HOMES[1..FIRST_KEPT].iter().for_each(|home| out.clear(*home));
        out.ret();
        out.here(ends);
        // What would have been returned to.
        out.pop(RCX);
        out.load(RAX, MemoryOperand::at(RBP, SLOT));
        self.leave(ENDED);
    }

    /// The entry at the first slot; its code follows.
    fn first(&mut self) -> usize {
        let first = self.out.code.len();
        let set = self.set_at_first();
        self.enter();
        for (at, home) in self.homes().filter(|(at, _)| set >> at & 1 == 0) {
            match at {
                1 => self.out.set(home, Area::Context.base()),
                2 => self.out.copy(true, home, RCX),
                10 => self.out.set(home, frame_pointer(0)),
                _ => self.out.clear(home),
            }
        }
        first
    }

    /// Registers that are set before any read, as bits, if their results are not evaluated lazily.
    fn set_at_first(&self) -> u16 {
        let simple = |(slot, op): &(usize, &Op)| {
            op.code < Code::Atomic
                && (*slot == 0 || !self.meetings[*slot] && !self.is_marked(*slot))
        };
        let first = self.ops.iter().enumerate().take_while(simple);
        let code = &self.verified.program().code;
        let set = first.fold(0, |set, (slot, _)| set | uses(code[slot]).1);
        set & !((1 << FIRST_KEPT) - 1) | set & 1
    }

    fn finish(&mut self) -> Result<(), CompileError> {
        // Careful code has separate rare code.
        while !self.cold.is_empty() {
            core::mem::take(&mut self.cold).into_iter().try_for_each(|cold| self.cold(cold))?;
        }
        for (hole, slot) in core::mem::take(&mut self.jumps) {
            let (place, _) = *self.places.get(slot).ok_or(CompileError::TooLarge)?;
            self.fill(hole, place as usize)?;
        }
        if self.tables.is_empty() {
            return Ok(());
        }
        let table = self.out.code.len();
        for (place, _) in &self.places {
            let distance = i64::from(*place) - table as i64;
            self.out.code.extend_from_slice(&distance.to_le_bytes());
        }
        let tables = core::mem::take(&mut self.tables);
        tables.into_iter().try_for_each(|hole| self.fill(hole, table))
    }

    pub(super) fn fill(&mut self, hole: Hole, to: usize) -> Result<(), CompileError> {
        if self.out.fill(hole, to) { Ok(()) } else { Err(CompileError::TooLarge) }
    }

    fn cold(&mut self, cold: Cold) -> Result<(), CompileError> {
        match cold {
            Cold::Leave { from, slot, cost } => {
                self.out.here(from);
                if cost > 0 {
                    self.out.with_number(true, 0, METER_HOME, cost as i32);
                }
                self.leave_at(slot)
            }
            Cold::Entry { slot, region, copy, to } => {
                let place = u32::try_from(self.out.code.len());
                self.places[slot].1 = Some(place.map_err(|_| CompileError::TooLarge)?);
                if let Some(region) = region {
                    self.make(RCX, region);
                    let unknown = self.other_region();
                    self.out.here(unknown);
                    self.out.load(R10, MemoryOperand::at(RBP, LAST_BASE));
                }
                if let Some(copy) = copy {
                    self.out.copy(true, copy, RAX);
                }
                let end = self.out.jump();
                self.fill(end, to)
            }
            Cold::Word { other, outside, slot, arguments, known, done, to } => {
                self.cold_word((other, outside), (slot, arguments), (known, done), to)
            }
            Cold::Read(asked) => self.cold_read(asked),
            Cold::Careful(careful) => self.careful_group(careful),
            Cold::Other { from, region, to } => {
                self.out.here(from);
                self.make(RCX, region);
                let unknown = self.other_region();
                self.out.here(unknown);
                let end = self.out.jump();
                self.fill(end, to)
            }
            Cold::Way { from, paid, relied, target } => {
                self.out.here(from);
                if let Some(paid) = paid {
                    self.pay(paid);
                }
                if let Some(relied) = relied {
                    self.rely(relied.region);
                }
                let end = self.out.jump();
                self.jumps.push((end, target));
                Ok(())
            }
        }
    }

    /// Leaves at a slot, at once.
    pub(super) fn leave_at(&mut self, slot: usize) -> Result<(), CompileError> {
        self.out.store_number(MemoryOperand::at(RBP, SLOT), slot as i32);
        let hole = self.out.jump();
        self.fill(hole, self.leave)
    }

    /// Calls the helper of a slot.
    pub(super) fn helper(&mut self, slot: usize) -> Result<(), CompileError> {
        self.out.set(R10, slot as u64);
        if self.out.call(self.help) { Ok(()) } else { Err(CompileError::TooLarge) }
    }

    fn slot(&mut self, slot: usize) -> Result<(), CompileError> {
        let meets = self.meetings.get(slot).copied().unwrap_or(true);
        let marked = self.is_marked(slot);
        if meets || marked || self.is_entered(slot) {
            self.now(u16::MAX);
        }
        // An entry from outside establishes regions only.
        if self.pauses[slot] && matches!(self.state.held, R10Value::Area(_)) {
            self.state.held = R10Value::Nothing;
        }
        if meets {
            let comes = slot.checked_sub(1).is_none_or(|before| !leaves(self.ops[before]));
            self.arrive(slot, comes);
        }
        let (place, copied) = (self.place()?, self.copied.take());
        // An entry within a group has not checked the group, so it goes to the careful code.
        let around = self.group.is_some_and(|group| group.is_around(slot));
        let entered = self.is_entered(slot) && !around;
        let entry = if entered { self.entry(slot, place, copied) } else { None };
        self.places.push((place, entry));
        if marked {
            let paid = Paid { slot, cost: self.mark(slot), mark: 0 };
            self.pay(paid);
        }
        self.instructions(slot, copied.is_some())
    }

    /// What a slot costs because it is marked.
    fn mark(&self, slot: usize) -> u32 {
        self.verified.charges().map_or(0, |charges| charges.mark(slot))
    }

    pub(super) fn is_marked(&self, slot: usize) -> bool {
        self.mark(slot) > 0
    }

    pub(super) fn place(&self) -> Result<u32, CompileError> {
        u32::try_from(self.out.code.len()).map_err(|_| CompileError::TooLarge)
    }

    /// Whether a helper is called right before a slot.
    fn is_helped(&self, slot: usize) -> bool {
        let before = slot.checked_sub(1).map(|before| self.ops[before].code);
        matches!(before, Some(Code::HelperLoad | Code::HelperRead | Code::Helper))
    }

    /// Whether a call may start or continue at a slot.
    pub(super) fn is_entered(&self, slot: usize) -> bool {
        slot == 0 || self.pauses[slot] || self.is_helped(slot)
    }

    /// Where code is entered that starts at a place; `None` if it is not known yet.
    pub(super) fn entry(&mut self, slot: usize, place: u32, copied: Option<Reg>) -> Option<u32> {
        match (self.state.last, copied) {
            (None, None) => Some(place),
            // An entry here must establish the region first, or has not copied R0 yet.
            (region, copy) => {
                self.cold.push(Cold::Entry { slot, region, copy, to: place as usize });
                None
            }
        }
    }

    /// The instructions of a slot, unless all that it does has been done.
    pub(super) fn instructions(&mut self, slot: usize, done: bool) -> Result<(), CompileError> {
        // The second slot of a wide load is reached by falling through only.
        let second = slot.checked_sub(1).is_some_and(|at| self.ops[at].code == Code::LoadWide);
        if done || second {
            return Ok(());
        }
        let op = self.ops[slot];
        let instruction = self.verified.program().code[slot];
        if self.state.later.takes(op) || self.read_in_place(op, slot) {
            return Ok(());
        }
        let word = word_bytes(op);
        if word.is_none() && op.code != Code::Exit {
            let (read, written) = uses(instruction);
            self.prepare(op, read, written);
            self.forget(op, written);
        }
        if self.arithmetic(op, instruction) || self.memory(op, slot) || self.jump(op, slot)? {
            return Ok(());
        }
        match op.code {
            Code::LoadWide => {
                let value = u64::from(op.extra) << 32 | u64::from(op.immediate as u32);
                self.out.set(home(op.dst), value);
            }
            Code::Atomic => self.atomic(instruction, slot),
            Code::HelperLoad | Code::HelperRead | Code::Helper => match word {
                Some(bytes) => self.load_word(slot, bytes == 8)?,
                None => self.helper(slot)?,
            },
            Code::Call => self.call(op, slot)?,
            Code::Exit => self.exit(slot),
            _ => self.leave_at(slot)?,
        }
        Ok(())
    }

    /// Makes what an instruction reads, and what its result would destroy.
    fn prepare(&mut self, op: Op, read: u16, written: u16) {
        let steps = matches!(op.code, Code::Jump | Code::Call | Code::Atomic | Code::Trap)
            || condition(op.code).is_some();
        let due = self.state.later.due(if steps { u16::MAX } else { read }, written);
        self.now(due);
    }

    /// Drops the knowledge of the last region that an instruction invalidates.
    fn forget(&mut self, op: Op, written: u16) {
        let calls = matches!(op.code, Code::HelperRead | Code::Helper | Code::Call | Code::Atomic);
        if calls || self.state.last.is_some_and(|last| last.changes_with(written)) {
            self.state.last = None;
        }
        // Divisions and whatever leaves the code use R10 for themselves.
        let keeps = op.code < Code::Atomic && op.code != Code::Rare;
        if !keeps && !condition_or_jump(op.code) {
            self.state.held = R10Value::Nothing;
        }
    }

    /// Makes what waits for these registers.
    pub(super) fn now(&mut self, registers: u16) {
        for (at, home) in HOMES.into_iter().enumerate().take(FIRST_KEPT) {
            if registers >> at & 1 == 1
                && let Some(later) = self.state.later.take(at)
            {
                self.make(home, later);
            }
        }
    }

    pub(super) fn make(&mut self, to: Reg, later: Later) {
        match later {
            Later::Number(number) => self.out.set(to, i64::from(number) as u64),
            Later::Sum(base, number) => self.out.sum(to, home(base), number),
        }
    }

    /// Loads into R10 what is added to `base + offset` to get a native address.
    fn area(&mut self, slot: usize, base: Reg, offset: i32) {
        let area = match self.verified.places(slot) {
            1 => Some(1u8),
            2 => Some(2),
            4 => Some(3),
            8 => Some(4),
            16 => Some(5),
            _ => None,
        };
        let held = area.map_or(R10Value::Nothing, R10Value::Area);
        if held == self.state.held && held != R10Value::Nothing {
            return;
        }
        self.state.held = held;
        if let Some(area) = area {
            self.out.load(R10, MemoryOperand::at(RBP, AREAS + i32::from(area) * 8));
            return;
        }
        // Several areas: the upper half of the address selects one. The base alone may be outside of it.
        self.out.sum(R10, base, offset);
        self.out.shift_by(true, 5, R10, 32);
        self.out.with_number(false, 4, R10, 7);
        let place = MemoryOperand { base: RBP, index: Some(R10), eights: true, offset: AREAS };
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
        self.area(slot, base, op.offset);
        self.out.memory(wide, opcode, home(op.dst).0, MemoryOperand::sum(R10, base, op.offset));
        true
    }

    fn store(&mut self, op: Op, slot: usize) {
        let base = home(op.dst);
        self.area(slot, base, op.offset);
        let place = MemoryOperand::sum(R10, base, op.offset);
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

    /// Compiles an atomic instruction. The call has exclusive access to the memory while it runs, so no lock prefix is
    /// needed.
    fn atomic(&mut self, instruction: Instruction, slot: usize) {
        let Instruction::Atomic { width, op, fetch, base, offset, src } = instruction else {
            return;
        };
        let (wide, offset) = (width == Width::Double, i32::from(offset));
        let (base, src) = (home(base.number()), home(src.number()));
        self.area(slot, base, offset);
        let place = MemoryOperand::sum(R10, base, offset);
        let out = &mut self.out;
        if op == AtomicOp::CompareExchange {
            out.memory(wide, &[0x0f, 0xb1], src.0, place);
            if !wide {
                out.copy(false, RAX, RAX);
            }
            return;
        }
        if fetch {
            out.memory(wide, &[0x8b], RCX.0, place);
        }
        let opcode = match op {
            AtomicOp::Add => 0x01,
            AtomicOp::Or => 0x09,
            AtomicOp::And => 0x21,
            AtomicOp::Xor => 0x31,
            AtomicOp::Exchange | AtomicOp::CompareExchange => 0x89,
        };
        out.memory(wide, &[opcode], src.0, place);
        if fetch {
            out.copy(wide, src, RCX);
        }
    }

    fn jump(&mut self, op: Op, slot: usize) -> Result<bool, CompileError> {
        let target = op.offset as usize;
        let paid = self.paid(op, slot);
        if op.code == Code::Jump {
            paid.into_iter().for_each(|paid| self.pay(paid));
            self.depart(slot, target);
            let hole = self.out.jump();
            self.lead(hole, None, target);
            return Ok(true);
        }
        let Some((wide, when)) = condition(op.code) else {
            return Ok(false);
        };
        // Jumps backwards are mostly taken: they are paid beforehand, and it is given back otherwise. Others are
        // paid on their way.
        let (before, after) = if target <= slot { (paid, None) } else { (None, paid) };
        before.into_iter().for_each(|paid| self.pay(paid));
        self.depart(slot, target);
        let sets = matches!(op.code, Code::Set | Code::Set32);
        let (first, second) = (home(op.dst), op.src);
        match (sets, second == ZERO) {
            (false, true) if op.immediate == 0 => self.out.test(wide, first, first),
            (false, true) => self.out.with_number(wide, 7, first, op.immediate),
            (false, false) => self.out.pair(wide, &[0x39], home(second).0, first),
            (true, true) => {
                self.out.pair(wide, &[0xf7], 0, first);
                self.out.word(op.immediate);
            }
            (true, false) => self.out.test(wide, home(second), first),
        }
        let hole = self.out.jump_if(when);
        self.lead(hole, after, target);
        if let Some(before) = before {
            self.out.with_number(true, 0, METER_HOME, before.cost as i32);
        }
        Ok(true)
    }

    /// What a jump or call costs, if it does.
    fn paid(&self, op: Op, slot: usize) -> Option<Paid> {
        (op.extra > 0).then(|| Paid { slot, cost: op.extra, mark: self.mark(slot) })
    }

    /// Charges a slot. If the meter is empty, leaves before the slot with nothing charged.
    fn pay(&mut self, Paid { slot, cost, mark }: Paid) {
        self.out.with_number(true, 5, METER_HOME, cost as i32);
        let from = self.out.jump_if(When::BELOW);
        self.cold.push(Cold::Leave { from, slot, cost: cost + mark });
    }

    /// Calls a function of the program. That there is a frame left has been proven.
    fn call(&mut self, op: Op, slot: usize) -> Result<(), CompileError> {
        self.paid(op, slot).into_iter().for_each(|paid| self.pay(paid));
        let out = &mut self.out;
        out.load(RCX, MemoryOperand::at(RBP, KEPT));
        out.with_number(true, 0, RCX, KEPT_BYTES);
        out.store(MemoryOperand::at(RBP, KEPT), RCX);
        out.memory(false, &[0xc7], 0, MemoryOperand::at(RCX, KEPT_BACK));
        out.word(slot as i32 + 1);
        for (at, home) in HOMES[FIRST_KEPT..10].iter().enumerate() {
            out.store(MemoryOperand::at(RCX, KEPT_R6 + at as i32 * 8), *home);
        }
        out.with_number(true, 0, HOMES[10], FRAME_BYTES as i32);
        let hole = out.jump();
        self.jumps.push((hole, op.offset as usize));
        Ok(())
    }

    /// Returns from a function, or from the program.
    fn exit(&mut self, slot: usize) {
        self.state.later = PendingRegisters::default();
        let first = self.verified.program().first_slots();
        if slot < first {
            let out = &mut self.out;
            // The lower half of R10 identifies the frame.
            let inner = self.recursive.then(|| {
                out.with_number(false, 7, HOMES[10], frame_pointer(0) as i32);
                out.jump_if(When::NOT_EQUAL)
            });
            self.leave(RETURNED);
            match inner {
                Some(inner) => self.out.here(inner),
                None => return,
            }
        }
        let out = &mut self.out;
        out.load(RCX, MemoryOperand::at(RBP, KEPT));
        out.memory(false, &[0x8b], R10.0, MemoryOperand::at(RCX, KEPT_BACK));
        for (at, home) in HOMES[FIRST_KEPT..10].iter().enumerate() {
            out.load(*home, MemoryOperand::at(RCX, KEPT_R6 + at as i32 * 8));
        }
        out.with_number(true, 5, RCX, KEPT_BYTES);
        out.store(MemoryOperand::at(RBP, KEPT), RCX);
        out.with_number(true, 5, HOMES[10], FRAME_BYTES as i32);
        self.tables.push(out.table(RCX));
        let place = MemoryOperand { base: RCX, index: Some(R10), eights: true, offset: 0 };
        out.memory(true, &[0x03], RCX.0, place);
        out.jump_to(RCX);
    }
}

/// Slots that something leads to that is charged. What a marked exit returns to is not among them.
fn pauses(verified: &Verified) -> Vec<bool> {
    let ops = verified.ops();
    let mut pauses = alloc::vec![false; ops.len()];
    let mut pause = |slot: usize| {
        if let Some(pauses) = pauses.get_mut(slot) {
            *pauses = true;
        }
    };
    let marks = verified.charges().into_iter().flat_map(Charges::marks).map(|(slot, _)| slot);
    for slot in marks {
        let op = ops[slot];
        if condition_or_jump(op.code) {
            pause(op.offset as usize);
        }
        if !leaves(op) {
            pause(slot + verified.program().code[slot].slots());
        }
    }
    for op in ops.iter().filter(|op| op.code == Code::Call || condition_or_jump(op.code)) {
        if op.extra > 0 {
            pause(op.offset as usize);
        }
    }
    pauses
}

/// Slots that one jump forward leads to, and that neither follow another slot nor start a function.
fn behind_one(verified: &Verified) -> Vec<bool> {
    let ops = verified.ops();
    let mut jumps = alloc::vec![0u32; ops.len()];
    for (slot, op) in ops.iter().enumerate().filter(|(_, op)| condition_or_jump(op.code)) {
        if let Some(count) = jumps.get_mut(op.offset as usize) {
            // The code of a back edge does not exist yet: counts as two.
            *count += 1 + u32::from(op.offset as usize <= slot);
        }
    }
    verified.program().functions.iter().for_each(|function| jumps[function.start] += 2);
    let alone = |slot: usize| slot > 0 && leaves(ops[slot - 1]) && jumps[slot] == 1;
    (0..ops.len()).map(alone).collect()
}

/// The registers that a program uses, as bits. Functions preserve those that outlive calls.
fn used(verified: &Verified) -> u16 {
    let code = &verified.program().code;
    let all = code.iter().map(|instruction| match instruction {
        Instruction::CallFunction { .. } => u16::MAX,
        Instruction::Atomic { .. } => {
            let (read, written) = uses(*instruction);
            read | written | 1
        }
        // What it destroys is not used.
        Instruction::CallHelper { .. } => uses(*instruction).0 | 1,
        _ => {
            let (read, written) = uses(*instruction);
            read | written
        }
    });
    all.fold(1, |used, of| used | of)
}

fn register(at: usize) -> MemoryOperand {
    MemoryOperand::at(RBP, REGISTERS + at as i32 * 8)
}
