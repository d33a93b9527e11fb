//! The transfer function: what one instruction does to an abstract state.

use alloc::vec::Vec;

use super::interned::{ComputationKind, Id, Interned, pair, unpair};
use super::link::SymbolLink;
use super::live::Live;
use super::problem::{FoundValue, MemoryKind, Problem};
use super::refine::refine;
use super::scalar::Scalar;
use super::state::{AbstractFrame, AbstractState, Number, Pointee, Value};
use super::tnum::Bits;
use crate::cost::{Cost, is_slow};
use crate::isa::{
    AluOp, AtomicOp, Condition, Instruction, Operand, Register, Size, Wide, Width, compare,
};
use crate::limits::{FRAME_BYTES, FRAMES_MAX, Limits};
use crate::program::Program;

/// Greatest distance of an address from the start of its memory, so that arithmetic on it does not overflow.
const FAR: i64 = 1 << 29;

/// The successor of an instruction.
pub(super) enum Next {
    /// The next instruction.
    Through,
    /// This slot.
    At(usize),
    /// Both this slot, in the state [`Stepper::jumped`], and the next instruction.
    Either(usize),
    /// The program has ended.
    End,
}

/// The facts that are restored when a summarization is abandoned.
#[derive(Clone, Copy, Default)]
pub(super) struct FactsOfAll {
    /// Greatest number of bytes of parameters read.
    pub(super) context_bytes: u64,
    /// Greatest number of frames in use.
    pub(super) frames: usize,
    /// Whether some path ends.
    pub(super) ends: bool,
}

/// Facts collected over all paths.
#[derive(Default)]
pub(super) struct Facts {
    pub(super) of_all: FactsOfAll,
    /// Slots that some path reaches.
    pub(super) reached: Vec<bool>,
    /// The memory areas that each slot accesses, as bits.
    pub(super) places: Vec<u8>,
    /// Slots that copy an uninitialised register.
    pub(super) undefined: Vec<usize>,
    /// Join points. This and the next are known before any path is explored.
    pub(super) meetings: Vec<bool>,
    /// Live registers and stack slots.
    pub(super) live: Live,
}

impl Facts {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            of_all: FactsOfAll { frames: 1, ..FactsOfAll::default() },
            reached: alloc::vec![false; slots],
            places: alloc::vec![0; slots],
            ..Self::default()
        }
    }
}

/// The transfer function.
pub(super) struct Stepper {
    pub(super) program: Program,
    pub(super) limits: Limits,
    pub(super) facts: Facts,
    /// The cost of the instructions since the caller last took it.
    pub(super) cost: Cost,
    pub(super) at: usize,
    /// Whether an earlier path reached the present slot.
    was_reached: bool,
    /// The last symbol of a link.
    symbols: u32,
    /// Sets of numbers of all states.
    pub(super) known: Interned,
    /// Whether numbers in stack slots that appear dead are dropped.
    pub(super) forgets: bool,
    /// Whether one was dropped.
    pub(super) has_forgotten: bool,
    /// Whether faint numbers were dropped. They still matter in one way: an address must stay near its memory even if
    /// it is not used.
    pub(super) has_forgotten_faint: bool,
    /// Whether the walk was cut short because some path has no end that could be proven, and whether it may not be:
    /// where the fixpoint finds something wrong, the pairs of numbers that the walk comes to may be fewer than those
    /// of ranges.
    pub(super) was_cut: bool,
    pub(super) is_patient: bool,
    /// Whether the exploration widens the registers that a loop without a known bound changes, and the problem found
    /// before.
    pub(super) widens: bool,
    pub(super) refused: Option<(usize, Problem)>,
    /// Whether loops may be summarized.
    pub(super) counts: bool,
    /// The state at the target of the last jump with two successors.
    pub(super) jumped: Option<AbstractState>,
    /// Unused states, kept to reuse their memory.
    pub(super) spare: Vec<AbstractState>,
}

impl Stepper {
    pub(super) fn new(program: Program, limits: &Limits, known: Interned) -> Self {
        Self {
            facts: Facts::new(program.code.len()),
            program,
            limits: *limits,
            cost: Cost::default(),
            at: 0,
            was_reached: false,
            symbols: 0,
            known,
            forgets: true,
            has_forgotten: false,
            has_forgotten_faint: false,
            was_cut: false,
            is_patient: false,
            widens: false,
            refused: None,
            counts: true,
            jumped: None,
            spare: Vec::new(),
        }
    }

    /// Resets it to the state before any path was explored. Returns the facts.
    pub(super) fn again(&mut self) -> Facts {
        let new = Facts {
            meetings: self.facts.meetings.clone(),
            live: core::mem::take(&mut self.facts.live),
            ..Facts::new(self.program.code.len())
        };
        self.known.clear();
        self.spare.clear();
        (self.cost, self.symbols, self.jumped) = (Cost::default(), 0, None);
        (self.has_forgotten, self.has_forgotten_faint) = (false, false);
        core::mem::replace(&mut self.facts, new)
    }

    /// Drops dead values from the state of a path at a join point.
    pub(super) fn forget_dead(&mut self, state: &mut AbstractState, at: usize) {
        let live = &self.facts.live;
        let frame = state.frame_mut();
        let mut dead = !live.registers[at] & ((1 << Register::R10.index()) - 1);
        while dead != 0 {
            frame.registers[dead.trailing_zeros() as usize] = Value::Nothing;
            dead &= dead - 1;
        }
        let mut faint = if self.forgets { live.registers[at] & !live.strongly[at] } else { 0 };
        self.has_forgotten_faint |= faint != 0;
        while faint != 0 {
            let value = &mut frame.registers[faint.trailing_zeros() as usize];
            if matches!(value, Value::Number(_)) {
                *value = Value::UNKNOWN;
            }
            faint &= faint - 1;
        }
        state.forget_counts(!live.registers[at]);
        if self.forgets {
            let frame = state.frame_mut();
            self.has_forgotten |= frame.forget(live.stack[at]);
        }
        if !state.relations.is_empty() {
            state.forget_relations(&self.known);
        }
    }

    pub(super) fn copy(&mut self, state: &AbstractState) -> AbstractState {
        let Some(mut copy) = self.spare.pop() else {
            return state.clone();
        };
        copy.copy_from(state);
        copy
    }

    /// Applies the instruction at `at` to `state`.
    pub(super) fn step(&mut self, state: &mut AbstractState, at: usize) -> Result<Next, Problem> {
        self.at = at;
        self.was_reached = core::mem::replace(&mut self.facts.reached[at], true);
        self.cost.instructions = self.cost.instructions.saturating_add(1);
        let slow = u64::from(is_slow(self.program.code[at]));
        self.cost.slow = self.cost.slow.saturating_add(slow);
        match self.program.code[at] {
            Instruction::Alu { width, op, dst, src } => {
                self.arithmetic(state, width, op, dst, src)?;
            }
            Instruction::Bytes { order, size, dst } => {
                let a = self.number(state, dst)?;
                let of = |a: &Scalar, _: &Scalar| Scalar::bytes(order, size, a);
                state.set(dst, Value::Number(self.result(a, Number::UNKNOWN, of)));
            }
            Instruction::LoadWide { dst, value } => {
                let value = self.wide(value);
                state.set(dst, value);
            }
            Instruction::Load { size, signed, dst, base, offset } => {
                let value = self.load(state, size, signed, (base, offset))?;
                state.set(dst, value);
            }
            Instruction::Store { size, base, offset, src } => {
                if let (Size::Double, Operand::Register(src)) = (size, src) {
                    self.link(state, src);
                }
                let value = self.operand(state, src)?;
                self.store(state, size, (base, offset), value)?;
            }
            Instruction::Atomic { width, op, fetch, base, offset, src } => {
                let size = if width == Width::Word { Size::Word } else { Size::Double };
                self.atomic(state, (op, fetch, size), (base, offset), src)?;
            }
            Instruction::Jump { .. } => return self.target().map(Next::At),
            Instruction::JumpIf { width, condition, dst, src, .. } => {
                return self.branch(state, width, condition, dst, src);
            }
            Instruction::CallHelper { number } => self.call_helper(state, number)?,
            Instruction::CallFunction { offset } => return self.call(state, offset),
            Instruction::Exit => return self.exit(state),
            Instruction::SecondHalf => return Err(Problem::NoSuchForm),
        }
        Ok(Next::Through)
    }

    fn target(&self) -> Result<usize, Problem> {
        let target = self.program.code[self.at].jump_target(self.at).unwrap_or(-1);
        usize::try_from(target).map_err(|_| Problem::JumpOutside { target })
    }

    fn arithmetic(
        &mut self,
        state: &mut AbstractState,
        width: Width,
        op: AluOp,
        dst: Register,
        src: Operand,
    ) -> Result<(), Problem> {
        if let (AluOp::Move | AluOp::MoveSigned32, Operand::Register(src)) = (op, src) {
            if (width, op) == (Width::Double, AluOp::Move) && self.is_undefined(state, src)? {
                state.set(dst, Value::Nothing);
                return Ok(());
            }
            self.link(state, src);
        }
        let op = if self.adds(state, (width, op), (dst, src)) { AluOp::Add } else { op };
        self.link_term(state, (width, op), (dst, src));
        let b = self.operand(state, src)?;
        let a = if op.is_move() { Value::UNKNOWN } else { value(state, dst)? };
        let double = width == Width::Double;
        let alu = |a: &Scalar, b: &Scalar| Scalar::alu(width, op, a, b);
        let result = match (op, a, b) {
            (AluOp::Move, _, Value::Number(b)) if double || self.is_short(b) => Value::Number(b),
            (_, Value::Number(a), Value::Number(b)) => {
                let result = self.result(a, b, alu);
                let result = self.linked(result, (width, op), (a, b));
                let result = self.halved(state, result);
                let result = self.scaled(state, (width, op), (a, b), result);
                Value::Number(self.related(state, (width, op), (dst, src), (a, b), result))
            }
            (AluOp::Move, _, b) if double => b,
            (AluOp::Add | AluOp::Sub, Value::Address(place, a), Value::Number(b))
            | (AluOp::Add, Value::Number(a), Value::Address(place, b))
                if double =>
            {
                let to = self.result(a, b, alu);
                let to = self.linked(to, (width, op), (a, b));
                let to = self.related(state, (width, op), (dst, src), (a, b), to);
                self.moved(place, to)?
            }
            (AluOp::Sub, Value::Address(at, a), Value::Address(place, b))
                if double && at == place =>
            {
                let result = self.result(a, b, alu);
                Value::Number(self.related(state, (width, op), (dst, src), (a, b), result))
            }
            _ => return Err(Problem::AddressArithmetic),
        };
        state.set(dst, result);
        Ok(())
    }

    /// Whether a copy is of a register that holds nothing, on all paths: clang makes such at -O1 of values that are
    /// not used on the first iteration. What it copies to holds nothing, and the instruction becomes a zero, so that
    /// no engine copies what it left in a register. A copy that is one of a value too is refused.
    fn is_undefined(&mut self, state: &AbstractState, src: Register) -> Result<bool, Problem> {
        let is_nothing = state.value(src) == Value::Nothing;
        let undefined = &mut self.facts.undefined;
        let was_nothing = !undefined.is_empty() && undefined.contains(&self.at);
        if is_nothing && !was_nothing && !self.was_reached {
            undefined.push(self.at);
            return Ok(true);
        }
        if is_nothing == was_nothing {
            Ok(is_nothing)
        } else {
            Err(Problem::Uninitialised { register: src })
        }
    }

    /// Whether `address | number` is their sum, in which form clang computes addresses in aligned arrays.
    ///
    /// Sound: every frame and area starts at a multiple of [`FRAME_BYTES`], so that the low bits of the address are
    /// those of its offset. The number has no other bits, and none that the offset may have.
    fn adds(
        &self,
        state: &AbstractState,
        (width, op): (Width, AluOp),
        (dst, src): (Register, Operand),
    ) -> bool {
        let (Width::Double, AluOp::Or) = (width, op) else { return false };
        let Value::Address(_, offset) = state.value(dst) else { return false };
        let number = match src {
            Operand::Register(src) => match state.value(src) {
                Value::Number(number) => self.known.get(number.id).bits,
                _ => return false,
            },
            Operand::Immediate(value) => Bits::constant(i64::from(value) as u64),
        };
        let Bits { value, mask } = self.known.get(offset.id).bits;
        let number = number.value | number.mask;
        number < u64::from(FRAME_BYTES) && number & (value | mask) == 0
    }

    /// Whether the upper half of a number is zero.
    fn is_short(&self, number: Number) -> bool {
        self.known.get(number.id).most <= u64::from(u32::MAX)
    }

    /// The result of the instruction for two numbers.
    fn result(
        &mut self,
        a: Number,
        b: Number,
        of: impl FnOnce(&Scalar, &Scalar) -> Scalar,
    ) -> Number {
        // Placeholders for the links of the operands, so that the result shows which of them it has.
        const LINKS: (u32, u32) = (1, 2);
        let [id, kept, ..] = match self.known.computed(self.at, ComputationKind::Result, a.id, b.id)
        {
            Some(known) => known,
            None => {
                let first = Scalar { link: LINKS.0, ..*self.known.get(a.id) };
                let second = Scalar { link: LINKS.1, ..*self.known.get(b.id) };
                let result = of(&first, &second);
                let kept = Id::of_link(result.link);
                let results = [self.known.intern(&result), kept, Id::UNKNOWN, Id::UNKNOWN];
                self.known.compute(self.at, ComputationKind::Result, (a.id, b.id), results);
                results
            }
        };
        let link = match kept.as_link() {
            1 => a.link,
            2 => b.link,
            _ => SymbolLink::NONE,
        };
        Number { id, link }
    }

    /// The immediate or result of an instruction without operands.
    pub(super) fn source(&mut self, of: impl FnOnce() -> Scalar) -> Id {
        match self.known.source(self.at) {
            Some(id) => id,
            None => {
                let id = self.known.intern(&of());
                self.known.is_source(self.at, id);
                id
            }
        }
    }

    /// A new symbol.
    pub(super) fn new_symbol(&mut self) -> SymbolLink {
        self.symbols += 1;
        SymbolLink::of(self.symbols)
    }

    /// Makes the next copy of a register known as one.
    pub(super) fn link(&mut self, state: &mut AbstractState, src: Register) {
        let last = state.frames.len() - 1;
        let value = &mut state.frames[last].registers[src.index()];
        let (Value::Number(number) | Value::Address(_, number)) = value else {
            return;
        };
        if number.link.is_none() && self.known.get(number.id).as_constant().is_none() {
            self.symbols += 1;
            number.link = SymbolLink::of(self.symbols);
        }
    }

    /// A result with the link that follows from those of its operands, unless it has one.
    fn linked(
        &mut self,
        result: Number,
        (width, op): (Width, AluOp),
        (a, b): (Number, Number),
    ) -> Number {
        if !result.link.is_none() || a.link.is_none() && b.link.is_none() {
            return result;
        }
        let constant = |number: Number| self.known.get(number.id).as_constant();
        let fits = |number: Number| self.known.get(number.id).most < 1 << 31;
        let link = match op {
            _ if op.is_move() => b.link.through(width, op, None, fits(b)),
            AluOp::Add if a.link.is_none() => b.link.through(width, op, constant(a), false),
            // What a value is above a multiple: clang's remainder by a constant.
            AluOp::Sub
                if width == Width::Double
                    && let Some(above) = a.link.above(b.link) =>
            {
                let met = self.known.get(result.id).meet(&above);
                let id = met.map_or(result.id, |met| self.known.intern(&met));
                return Number { id, ..result };
            }
            _ => a.link.through(width, op, constant(b), fits(a)),
        };
        Number { link, ..result }
    }

    /// Propagates a refined number to all related ones.
    fn learn(&mut self, state: &mut AbstractState, learnt: Number) {
        self.learn_linked(state, learnt);
        if !state.relations.is_empty() {
            self.propagate(state, learnt.link);
        }
    }

    /// The same for numbers with the same symbol only.
    pub(super) fn learn_linked(&mut self, state: &mut AbstractState, learnt: Number) {
        if learnt.link.is_none() {
            return;
        }
        let known = &mut self.known;
        for number in state.numbers_mut().filter(|number| number.link.is_related(learnt.link)) {
            if number.link == learnt.link {
                *number = learnt;
                continue;
            }
            let implied = learnt.link.implied(known.get(learnt.id), number.link);
            // A contradiction means that no concrete path reaches this point, so any state is sound.
            let met = implied.and_then(|implied| known.get(number.id).meet(&implied));
            if let Some(met) = met {
                number.id = known.intern(&met);
            }
        }
    }

    fn branch(
        &mut self,
        state: &mut AbstractState,
        width: Width,
        condition: Condition,
        dst: Register,
        src: Operand,
    ) -> Result<Next, Problem> {
        let target = self.target()?;
        let relates = self.may_relate(state, (width, condition), (dst, src));
        let (a, b) = (value(state, dst)?, self.operand(state, src)?);
        let double = width == Width::Double;
        let ways = match (a, b) {
            (Value::Number(a), Value::Number(b)) => {
                let number = |id, of: Number| Value::Number(Number { id, ..of });
                let ways = self.ways(ComputationKind::Jump, (width, condition), (a.id, b.id));
                ways.map(|way| way.map(|(x, y)| (number(x, a), number(y, b))))
            }
            (Value::Address(at, x), Value::Address(place, y)) if double && at == place => {
                let compared = (width, of_offsets(condition)?);
                let number = |id, of: Number| Value::Address(at, Number { id, ..of });
                let ways = self.ways(ComputationKind::JumpOfOffsets, compared, (x.id, y.id));
                ways.map(|way| way.map(|(a, b)| (number(a, x), number(b, y))))
            }
            // No address is zero.
            (Value::Address(..), Value::Number(_)) if double && src == Operand::Immediate(0) => {
                match condition {
                    Condition::Equal => [None, Some((a, b))],
                    Condition::NotEqual => [Some((a, b)), None],
                    _ => return Err(Problem::AddressArithmetic),
                }
            }
            _ => return Err(Problem::AddressArithmetic),
        };
        let learn =
            |stepper: &mut Self, state: &mut AbstractState, (a, b): (Value, Value), holds: bool| {
                state.set(dst, a);
                if let Operand::Register(src) = src {
                    state.set(src, b);
                }
                for value in [a, b] {
                    if let Value::Number(learnt) | Value::Address(_, learnt) = value {
                        stepper.learn(state, learnt);
                    }
                }
                if let (true, Operand::Register(src)) = (relates, src) {
                    stepper.order(state, (condition, holds), (dst, src));
                }
            };
        match ways {
            [Some(taken), Some(not)] => {
                let mut jumped = self.copy(state);
                learn(self, &mut jumped, taken, true);
                learn(self, state, not, false);
                self.jumped = Some(jumped);
                Ok(Next::Either(target))
            }
            [Some(taken), None] => {
                learn(self, state, taken, true);
                Ok(Next::At(target))
            }
            [None, Some(not)] => {
                learn(self, state, not, false);
                Ok(Next::Through)
            }
            // No concrete state reaches this point; either successor is sound.
            [None, None] => Ok(Next::Through),
        }
    }

    /// Refines two numbers for the path on which the condition holds, and for the other one.
    fn ways(
        &mut self,
        kind: ComputationKind,
        (width, condition): (Width, Condition),
        (a, b): (Id, Id),
    ) -> [Option<(Id, Id)>; 2] {
        if let Some([x, y, z, w]) = self.known.computed(self.at, kind, a, b) {
            return [unpair(x, y), unpair(z, w)];
        }
        let (first, second) = (self.known.get(a), self.known.get(b));
        if first.is_exact() && second.is_exact() {
            // The condition is decided, and nothing is refined.
            let holds = compare(width, condition, first.least, second.least);
            return [holds, !holds].map(|way| way.then_some((a, b)));
        }
        if let (Width::Double, Condition::Equal | Condition::NotEqual) = (width, condition)
            && second.is_exact()
            && first.has_within(second.least)
        {
            // Both paths are possible, and only one of them refines.
            let (same, other) = ((b, b), (a, b));
            let equal = condition == Condition::Equal;
            return (if equal { [same, other] } else { [other, same] }).map(Some);
        }
        let ways = [true, false].map(|holds| {
            let (first, second) = (self.known.get(a), self.known.get(b));
            let (first, second) = refine(width, condition, holds, first, second)?;
            Some((self.known.intern(&first), self.known.intern(&second)))
        });
        let ((x, y), (z, w)) = (pair(ways[0]), pair(ways[1]));
        self.known.compute(self.at, kind, (a, b), [x, y, z, w]);
        ways
    }

    fn call(&mut self, state: &mut AbstractState, offset: i32) -> Result<Next, Problem> {
        let target = self.at as i64 + 1 + i64::from(offset);
        let to = usize::try_from(target).map_err(|_| Problem::NoFunction { target })?;
        if state.frames.len() >= FRAMES_MAX {
            return Err(Problem::TooDeep { most: FRAMES_MAX });
        }
        let end = self.known.intern(&Scalar::constant(u64::from(FRAME_BYTES)));
        let mut frame = AbstractFrame::new(state.depth() + 1, self.at + 1, end);
        frame.registers[1..6].copy_from_slice(&state.frame().registers[1..6]);
        state.frame_mut().registers[0..6].fill(Value::Nothing);
        state.frames.push(frame);
        let frames = &mut self.facts.of_all.frames;
        *frames = (*frames).max(state.frames.len());
        Ok(Next::At(to))
    }

    fn exit(&mut self, state: &mut AbstractState) -> Result<Next, Problem> {
        let result = state.value(Register::R0);
        if state.frames.len() == 1 {
            self.facts.of_all.ends = true;
            return match result {
                Value::Number(_) => Ok(Next::End),
                Value::Nothing => Err(Problem::Uninitialised { register: Register::R0 }),
                found => Err(Problem::ResultIsNoNumber { found: self.describe(&found) }),
            };
        }
        if matches!(result, Value::Address(Pointee::Stack(depth), _) if depth == state.depth()) {
            return Err(Problem::Dangling);
        }
        let Some(left) = state.leave() else {
            return Err(Problem::BadFunctions);
        };
        state.set(Register::R0, result);
        Ok(Next::At(left.back))
    }

    fn atomic(
        &mut self,
        state: &mut AbstractState,
        (op, fetch, size): (AtomicOp, bool, Size),
        (base, offset): (Register, i16),
        src: Register,
    ) -> Result<(), Problem> {
        self.number(state, src)?;
        if op == AtomicOp::CompareExchange {
            self.number(state, Register::R0)?;
        }
        let (_, at) = self.address(state, base, offset)?;
        let mask = size.bytes() as u64 - 1;
        if (at.bits.value | at.bits.mask) & mask != 0 {
            return Err(Problem::Misaligned);
        }
        let old = match self.load(state, size, false, (base, offset))? {
            Value::Number(old) => old,
            found => {
                return Err(Problem::NotANumber { register: base, found: self.describe(&found) });
            }
        };
        self.store(state, size, (base, offset), Value::UNKNOWN)?;
        if fetch {
            let to = if op == AtomicOp::CompareExchange { Register::R0 } else { src };
            state.set(to, Value::Number(old));
        }
        Ok(())
    }

    /// An address after arithmetic.
    fn moved(&self, place: Pointee, offset: Number) -> Result<Value, Problem> {
        let to = self.known.get(offset.id);
        let (least, most) = (to.signed_least, to.signed_most);
        if least < -FAR || most > FAR {
            return Err(Problem::AddressTooFar { least, most });
        }
        Ok(Value::Address(place, offset))
    }

    /// The immediate of the instruction.
    fn constant(&mut self, value: u64) -> Id {
        self.source(|| Scalar::constant(value))
    }

    fn wide(&mut self, value: Wide) -> Value {
        let mut offset = |at: u32| Number::unlinked(self.constant(u64::from(at)));
        match value {
            Wide::Value(value) => Value::Number(Number::unlinked(self.constant(value))),
            Wide::Constant(at) => Value::Address(Pointee::Constants, offset(at)),
            Wide::StateHandle(number) => Value::Handle(number),
            Wide::Variable { shared: false, offset: at } => {
                Value::Address(Pointee::Own, offset(at))
            }
            Wide::Variable { shared: true, offset: at } => {
                Value::Address(Pointee::Shared, offset(at))
            }
        }
    }

    fn operand(&mut self, state: &AbstractState, operand: Operand) -> Result<Value, Problem> {
        match operand {
            Operand::Register(register) => value(state, register),
            Operand::Immediate(value) => {
                let id = self.constant(value as i64 as u64);
                Ok(Value::Number(Number::unlinked(id)))
            }
        }
    }

    fn number(&self, state: &AbstractState, register: Register) -> Result<Number, Problem> {
        match value(state, register)? {
            Value::Number(number) => Ok(number),
            found => Err(Problem::NotANumber { register, found: self.describe(&found) }),
        }
    }

    /// The memory and offset addressed by a register plus an offset.
    pub(super) fn address(
        &mut self,
        state: &AbstractState,
        base: Register,
        offset: i16,
    ) -> Result<(Pointee, Scalar), Problem> {
        match value(state, base)? {
            Value::Address(place, at) => {
                Ok((place, self.known.get(at.id).by(AluOp::Add, i64::from(offset) as u64)))
            }
            found => Err(Problem::NotAnAddress { register: base, found: self.describe(&found) }),
        }
    }

    /// Describes a value for a refusal.
    pub(super) fn describe(&self, value: &Value) -> FoundValue {
        match value {
            Value::Nothing => FoundValue::Nothing,
            Value::Number(number) => {
                let number = self.known.get(number.id);
                FoundValue::Number(number.signed_least, number.signed_most)
            }
            Value::Address(place, _) => FoundValue::Address(memory(*place)),
            Value::Handle(handle) => {
                // The structure of the program has been checked: there is such a state.
                let state = self.program.states.get(*handle as usize);
                state.map_or(FoundValue::Nothing, |state| FoundValue::Handle(state.kind))
            }
        }
    }
}

/// Unsigned comparisons of addresses of one memory are signed ones of their offsets, since addresses are
/// never near the ends of the numbers.
fn of_offsets(condition: Condition) -> Result<Condition, Problem> {
    Ok(match condition {
        Condition::Equal | Condition::NotEqual => condition,
        Condition::Less | Condition::SignedLess => Condition::SignedLess,
        Condition::LessEqual | Condition::SignedLessEqual => Condition::SignedLessEqual,
        Condition::Greater | Condition::SignedGreater => Condition::SignedGreater,
        Condition::GreaterEqual | Condition::SignedGreaterEqual => Condition::SignedGreaterEqual,
        Condition::Set => return Err(Problem::AddressArithmetic),
    })
}

/// Reads a register, which must be initialised.
pub(super) fn value(state: &AbstractState, register: Register) -> Result<Value, Problem> {
    match state.value(register) {
        Value::Nothing => Err(Problem::Uninitialised { register }),
        value => Ok(value),
    }
}

/// Describes a memory for a refusal.
pub(super) fn memory(place: Pointee) -> MemoryKind {
    match place {
        Pointee::Constants => MemoryKind::Constants,
        Pointee::Own => MemoryKind::Own,
        Pointee::Shared => MemoryKind::Shared,
        Pointee::Context => MemoryKind::Context,
        Pointee::Stack(_) => MemoryKind::Stack,
    }
}
