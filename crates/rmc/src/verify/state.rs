//! Abstract states: the values of registers and stack of every frame at one program point, with their partial
//! order ([`AbstractState::contains`]) and join ([`AbstractState::merge`]).

use alloc::vec::Vec;
use core::ops::Range;

use super::induction::Count;
use super::interned::{Id, Interned};
use super::link::{Renaming, SymbolLink};
use super::relation::Relation;
use super::scalar::Scalar;
use crate::isa::{Instruction, Register};
use crate::limits::FRAME_BYTES;

pub(super) use super::link::Number;

/// Memory that an address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pointee {
    Constants,
    Own,
    Shared,
    Context,
    /// The stack of the frame at this depth.
    Stack(u8),
}

/// Most values that a proof keeps at a time: some 25 MB with the sets that they name, whatever a hostile
/// program does.
pub(super) const CELLS_MAX: usize = 1 << 18;

/// Whether all numbers of a set are in another one.
#[inline]
fn set_contains(set: Id, other: Id, known: &Interned) -> bool {
    set == other || known.get(set).contains(known.get(other))
}

/// What a register or a slot of the stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Uninitialised or of unknown kind; must not be read.
    Nothing,
    Number(Number),
    /// An address at a signed offset from the start of its memory.
    Address(Pointee, Number),
    /// A declared state.
    Handle(u32),
}

impl Value {
    pub(super) const UNKNOWN: Self = Self::Number(Number::UNKNOWN);

    #[inline]
    fn contains(&self, other: &Self, links: &mut Renaming, known: &Interned) -> bool {
        self.may_contain(other, known)
            && match (self, other) {
                (Self::Number(a), Self::Number(b)) | (Self::Address(_, a), Self::Address(_, b)) => {
                    links.holds(a.link, b.link)
                }
                _ => true,
            }
    }

    /// The same, whatever other values the two are linked to.
    #[inline]
    fn may_contain(&self, other: &Self, known: &Interned) -> bool {
        match (self, other) {
            (Self::Nothing, _) => true,
            (Self::Number(a), Self::Number(b)) => set_contains(a.id, b.id, known),
            (Self::Address(at, a), Self::Address(place, b)) => {
                at == place && set_contains(a.id, b.id, known)
            }
            (Self::Handle(a), Self::Handle(b)) => a == b,
            _ => false,
        }
    }

    /// What holds of both, by `join` for numbers and offsets.
    fn merge(&self, other: &Self, join: Join<'_>) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => Self::Number(join(*a, *b)),
            (Self::Address(at, a), Self::Address(place, b)) if at == place => {
                Self::Address(*at, join(*a, *b))
            }
            (Self::Handle(a), Self::Handle(b)) if a == b => *self,
            _ => Self::Nothing,
        }
    }

    /// A number or address with this set of numbers or offsets.
    pub(super) fn with_set(self, id: Id) -> Self {
        match self {
            Self::Address(place, _) => Self::Address(place, Number::unlinked(id)),
            _ => Self::Number(Number::unlinked(id)),
        }
    }

    fn leads_to_frame(&self, depth: u8) -> bool {
        matches!(self, Self::Address(Pointee::Stack(at), _) if *at >= depth)
    }

    /// The number, or the offset of the address.
    pub(super) fn number(&self) -> Option<Number> {
        match self {
            Self::Number(number) | Self::Address(_, number) => Some(*number),
            Self::Nothing | Self::Handle(_) => None,
        }
    }
}

/// What two numbers are joined by.
type Join<'a> = &'a mut dyn FnMut(Number, Number) -> Number;

/// Slots of a frame: eight aligned bytes each.
const SLOTS: usize = FRAME_BYTES as usize / 8;

/// The bytes of a frame.
#[derive(Clone, Debug)]
struct Stack {
    /// A bit for each byte that may be read as a number.
    readable: [u64; SLOTS / 8],
    /// Slots of which more is known: what all eight bytes together hold, in the order of the slots.
    held: Vec<(u8, Value)>,
    /// The least slot that was touched.
    least: u8,
}

impl Stack {
    const EMPTY: Self = Self { readable: [0; SLOTS / 8], held: Vec::new(), least: SLOTS as u8 };

    fn copy_from(&mut self, other: &Self) {
        self.readable = other.readable;
        self.least = other.least;
        self.held.clear();
        self.held.extend_from_slice(&other.held);
    }

    /// Slots that it keeps.
    fn slots(&self) -> usize {
        SLOTS - usize::from(self.least)
    }

    fn place(&self, slot: u8) -> Result<usize, usize> {
        // There are few of them.
        match self.held.iter().position(|(at, _)| *at >= slot) {
            Some(at) if self.held[at].0 == slot => Ok(at),
            Some(at) => Err(at),
            None => Err(self.held.len()),
        }
    }

    /// Marks bytes as readable, or not.
    fn mark(&mut self, bytes: Range<usize>, readable: bool) {
        for (at, mask) in masks(bytes) {
            let word = &mut self.readable[at];
            *word = if readable { *word | mask } else { *word & !mask };
        }
    }

    fn hold(&mut self, slot: u8, value: Value) {
        let at = usize::from(slot) * 8;
        self.mark(at..at + 8, matches!(value, Value::Number(_)));
        match self.place(slot) {
            Ok(place) => self.held[place].1 = value,
            Err(place) => self.held.insert(place, (slot, value)),
        }
        self.least = self.least.min(slot);
    }

    fn contains(&self, other: &Self, links: &mut Renaming, known: &Interned) -> bool {
        let pairs = self.readable.iter().zip(&other.readable);
        // What holds a number is readable, so that this is needed of it too.
        if pairs.into_iter().any(|(mask, other)| mask & !other != 0) {
            return false;
        }
        let mut others = other.held.iter().peekable();
        self.held.iter().all(|(slot, value)| {
            while others.next_if(|(at, _)| at < slot).is_some() {}
            match (value, others.next_if(|(at, _)| at == slot)) {
                (_, Some((_, other))) => value.contains(other, links, known),
                (Value::Number(number), None) => {
                    set_contains(number.id, Id::UNKNOWN, known)
                        && links.holds(number.link, SymbolLink::NONE)
                }
                _ => false,
            }
        })
    }

    fn merge(&self, other: &Self, join: Join<'_>) -> Self {
        let mut merged = Self { least: self.least.max(other.least), ..Self::EMPTY };
        for (at, word) in merged.readable.iter_mut().enumerate() {
            *word = self.readable[at] & other.readable[at];
        }
        for (slot, value) in &self.held {
            if let Ok(at) = other.place(*slot) {
                let value = value.merge(&other.held[at].1, join);
                if value != Value::Nothing {
                    merged.held.push((*slot, value));
                }
            }
        }
        merged
    }
}

/// Words of a bitmap and which of their bits a range is.
fn masks(bits: Range<usize>) -> impl Iterator<Item = (usize, u64)> {
    let words = if bits.is_empty() { 0..0 } else { bits.start / 64..(bits.end - 1) / 64 + 1 };
    words.map(move |at| {
        let (from, to) = (bits.start.max(at * 64) - at * 64, bits.end.min(at * 64 + 64) - at * 64);
        (at, u64::MAX << from & u64::MAX >> (64 - to))
    })
}

/// One frame.
#[derive(Clone, Debug)]
pub(super) struct AbstractFrame {
    pub(super) registers: [Value; Register::COUNT],
    stack: Stack,
    /// The slot after the call that created it.
    pub(super) back: usize,
}

impl AbstractFrame {
    /// `end` is the offset of the end of a frame.
    pub(super) fn new(depth: u8, back: usize, end: Id) -> Self {
        let mut registers = [Value::Nothing; Register::COUNT];
        registers[10] = Value::Address(Pointee::Stack(depth), Number::unlinked(end));
        Self { registers, stack: Stack::EMPTY, back }
    }

    fn copy_from(&mut self, other: &Self) {
        self.registers = other.registers;
        self.stack.copy_from(&other.stack);
        self.back = other.back;
    }

    /// What the eight bytes at `offset` hold together, if that is known.
    pub(super) fn held(&self, offset: usize) -> Option<Value> {
        let at = self.stack.place((offset / 8) as u8).ok()?;
        Some(self.stack.held[at].1)
    }

    /// Records a value in the eight bytes at `offset`.
    pub(super) fn hold(&mut self, offset: usize, value: Value) {
        self.stack.hold((offset / 8) as u8, value);
    }

    /// Finds the first of these bytes that may not be read as a number.
    pub(super) fn unreadable(&self, bytes: Range<usize>) -> Option<usize> {
        masks(bytes).find_map(|(at, mask)| {
            let missing = mask & !self.stack.readable[at];
            (missing != 0).then(|| at * 64 + missing.trailing_zeros() as usize)
        })
    }

    /// Records that numbers are written to these bytes. What remains of an address there becomes unreadable.
    pub(super) fn write(&mut self, bytes: Range<usize>) {
        if bytes.is_empty() {
            return;
        }
        let slots = bytes.start / 8..(bytes.end - 1) / 8 + 1;
        self.stack.held.retain(|(slot, _)| !slots.contains(&usize::from(*slot)));
        self.stack.least = self.stack.least.min(slots.start as u8);
        self.stack.mark(bytes, true);
    }

    /// Drops the numbers of slots that have no bit in `live`. Returns whether there was one.
    pub(super) fn forget(&mut self, live: u64) -> bool {
        let before = self.stack.held.len();
        self.stack
            .held
            .retain(|(slot, value)| live >> slot & 1 == 1 || !matches!(value, Value::Number(_)));
        self.stack.held.len() < before
    }

    /// Drops the numbers that these bytes hold. Returns false if they hold something else.
    pub(super) fn blur(&mut self, bytes: Range<usize>) -> bool {
        let slots = bytes.start / 8..bytes.end.div_ceil(8);
        let mut numbers = true;
        self.stack.held.retain(|(slot, value)| {
            let hit = slots.contains(&usize::from(*slot));
            numbers &= !hit || !matches!(value, Value::Address(..) | Value::Handle(_));
            !hit || !matches!(value, Value::Number(_))
        });
        numbers
    }

    /// Registers that have a bit in `but` are left out.
    fn contains(&self, other: &Self, but: u16, links: &mut Renaming, known: &Interned) -> bool {
        let pairs = self.registers.iter().zip(&other.registers).enumerate();
        self.back == other.back
            && pairs
                .into_iter()
                .all(|(at, (a, b))| but >> at & 1 == 1 || a.contains(b, links, known))
            && self.stack.contains(&other.stack, links, known)
    }

    fn merge(&self, other: &Self, join: Join<'_>) -> Self {
        let mut registers = self.registers;
        for (value, other) in registers.iter_mut().zip(&other.registers) {
            *value = value.merge(other, join);
        }
        Self { registers, stack: self.stack.merge(&other.stack, join), back: self.back }
    }

    fn values(&mut self) -> impl Iterator<Item = &mut Value> {
        self.registers.iter_mut().chain(self.stack.held.iter_mut().map(|(_, value)| value))
    }
}

/// A location in a frame: a register, or a stack slot.
#[derive(Clone, Copy, Default)]
pub(super) struct Spot(u8);

impl Spot {
    /// The first slot of the stack.
    const STACK: u8 = Register::COUNT as u8;
}

/// All frames; the last one runs.
#[derive(Clone, Debug)]
pub(super) struct AbstractState {
    pub(super) frames: Vec<AbstractFrame>,
    /// Counts of the summarized loops that the path may return to, outer ones first.
    pub(super) counts: Vec<Count>,
    /// Sums that relate numbers with symbols, the oldest first.
    pub(super) relations: Vec<Relation>,
}

impl AbstractState {
    /// The state at the start of a program.
    pub(super) fn new(context_bytes_max: usize, known: &mut Interned) -> Self {
        let end = known.intern(&Scalar::constant(u64::from(FRAME_BYTES)));
        let mut frame = AbstractFrame::new(0, 0, end);
        let start = known.intern(&Scalar::constant(0));
        frame.registers[1] = Value::Address(Pointee::Context, Number::unlinked(start));
        let bytes = known.intern(&Scalar::range(0, context_bytes_max as u64));
        frame.registers[2] = Value::Number(Number::unlinked(bytes));
        Self { frames: alloc::vec![frame], counts: Vec::new(), relations: Vec::new() }
    }

    /// Copies another state, reusing the allocated memory.
    pub(super) fn copy_from(&mut self, other: &Self) {
        self.frames.truncate(other.frames.len());
        let (same, more) = other.frames.split_at(self.frames.len());
        for (frame, other) in self.frames.iter_mut().zip(same) {
            frame.copy_from(other);
        }
        self.frames.extend_from_slice(more);
        self.counts.clear();
        self.counts.extend_from_slice(&other.counts);
        self.relations.clear();
        self.relations.extend_from_slice(&other.relations);
    }

    /// The depth of the frame that runs.
    pub(super) fn depth(&self) -> u8 {
        (self.frames.len() - 1) as u8
    }

    pub(super) fn frame(&self) -> &AbstractFrame {
        &self.frames[self.frames.len() - 1]
    }

    pub(super) fn frame_mut(&mut self) -> &mut AbstractFrame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    pub(super) fn value(&self, register: Register) -> Value {
        self.frame().registers[register.index()]
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.frame_mut().registers[register.index()] = value;
    }

    /// Number of values kept, as a measure of its memory: some hundred bytes each.
    pub(super) fn cells(&self) -> usize {
        let frames = self.frames.iter().map(|frame| Register::COUNT + frame.stack.slots());
        frames.sum::<usize>() + self.relations.len() * 3
    }

    /// Partial order: whether it contains every concrete state of the other.
    pub(super) fn contains(&self, other: &Self, known: &Interned) -> bool {
        self.contains_but(0, other, known)
    }

    /// The same, ignoring the registers of the running frame that have a bit in `but`.
    pub(super) fn contains_but(&self, but: u16, other: &Self, known: &Interned) -> bool {
        let (mut links, last) = (Renaming::default(), self.frames.len() - 1);
        let mut pairs = self.frames.iter().zip(&other.frames).enumerate();
        self.frames.len() == other.frames.len()
            && pairs.all(|(at, (a, b))| {
                a.contains(b, if at == last { but } else { 0 }, &mut links, known)
            })
            && self.relations_follow_from(other, &mut links, known)
    }

    /// A hash that is equal for states with the same numbers in the registers of the running frame.
    pub(super) fn hash(&self, known: &Interned) -> u32 {
        let mix =
            |hash: u64, part: u64| (hash.rotate_left(5) ^ part).wrapping_mul(0x517c_c1b7_2722_0a95);
        let hash =
            self.frame().registers.iter().fold(
                self.frames.len() as u64,
                |hash, value| match value {
                    Value::Number(number) | Value::Address(_, number) => {
                        let scalar = known.get(number.id);
                        mix(mix(hash, scalar.least), scalar.most)
                    }
                    Value::Nothing | Value::Handle(_) => mix(hash, 1),
                },
            );
        (hash >> 32) as u32
    }

    /// The registers of the running frame that hold numbers, as bits.
    pub(super) fn numbers(&self) -> u16 {
        let registers = self.frame().registers.iter().enumerate();
        registers
            .fold(0, |bits, (at, value)| bits | u16::from(matches!(value, Value::Number(_))) << at)
    }

    /// The registers, as bits, that hold numbers in both, and in the other one a number outside of the set of this one.
    pub(super) fn changed(&self, other: &Self, known: &Interned) -> u16 {
        let pairs = self.frame().registers.iter().zip(&other.frame().registers).enumerate();
        pairs.fold(0, |bits, (at, pair)| {
            let (Value::Number(a), Value::Number(b)) = pair else { return bits };
            bits | u16::from(!set_contains(a.id, b.id, known)) << at
        })
    }

    /// Widens numbers in registers of the running frame that are not in the earlier state to any number, if nothing
    /// else differs and none of them has a bit in `bounded`.
    pub(super) fn widen(&mut self, earlier: &Self, bounded: u16, known: &Interned) {
        let changed = earlier.changed(self, known);
        if changed & bounded != 0 || !earlier.contains_but(changed, self, known) {
            return;
        }
        for (at, value) in self.frame_mut().registers.iter_mut().enumerate() {
            if changed >> at & 1 == 1 {
                *value = Value::UNKNOWN;
            }
        }
    }

    /// The first register or slot of the running frame that makes [`AbstractState::contains`] false.
    pub(super) fn differs_at(&self, other: &Self, known: &Interned) -> Option<Spot> {
        let registers = (0..Register::COUNT).map(|at| Spot(at as u8));
        let held = self.frame().stack.held.iter().map(|(slot, _)| Spot(Spot::STACK + slot));
        registers.chain(held).find(|spot| !self.may_contain_at(other, *spot, known))
    }

    /// Whether [`AbstractState::contains`] can be true as far as one register or slot of the running frame shows.
    #[inline]
    pub(super) fn may_contain_at(&self, other: &Self, spot: Spot, known: &Interned) -> bool {
        let (frame, other) = (self.frame(), other.frame());
        let Some(slot) = spot.0.checked_sub(Spot::STACK) else {
            let at = usize::from(spot.0);
            return frame.registers[at].may_contain(&other.registers[at], known);
        };
        let (stack, other) = (&frame.stack, &other.stack);
        let Ok(at) = stack.place(slot) else { return true };
        let of_other = other.place(slot).map_or(Value::UNKNOWN, |at| other.held[at].1);
        stack.held[at].1.may_contain(&of_other, known)
    }

    /// The join of two states.
    pub(super) fn merge(&self, other: &Self, join: Join<'_>) -> Self {
        let pairs = self.frames.iter().zip(&other.frames);
        let frames = pairs.map(|(a, b)| a.merge(b, join)).collect();
        let pairs = self.relations.iter().zip(&other.relations);
        let relations = pairs.filter_map(|(a, b)| a.merge(b, join)).collect();
        Self { frames, counts: Vec::new(), relations }
    }

    /// All numbers and offsets of all frames and relations.
    pub(super) fn numbers_mut(&mut self) -> impl Iterator<Item = &mut Number> {
        let values = self.frames.iter_mut().flat_map(AbstractFrame::values);
        let values = values.filter_map(|value| match value {
            Value::Number(number) | Value::Address(_, number) => Some(number),
            Value::Nothing | Value::Handle(_) => None,
        });
        values.chain(self.relations.iter_mut().flat_map(Relation::numbers_mut))
    }

    /// The first number in a register or stack slot that satisfies a predicate.
    pub(super) fn number_that(&self, is: impl Fn(Number) -> bool) -> Option<Number> {
        self.frames.iter().find_map(|frame| {
            let held = frame.stack.held.iter().map(|(_, value)| value);
            frame.registers.iter().chain(held).filter_map(Value::number).find(|number| is(*number))
        })
    }

    /// Whether some register or stack slot holds a number with the symbol of this link.
    pub(super) fn names(&self, link: SymbolLink) -> bool {
        self.number_that(|number| number.link.is_related(link)).is_some()
    }

    /// The indices of all sets that it refers to.
    pub(super) fn ids_mut(&mut self) -> impl Iterator<Item = &mut Id> {
        self.numbers_mut().map(|number| &mut number.id)
    }

    /// Applies the next instruction to the counts.
    #[inline]
    pub(super) fn count(&mut self, instruction: Instruction) {
        if !self.counts.is_empty() {
            self.count_it(instruction);
        }
    }

    /// Drops the counts of loops with a dead counter, by the bits of dead registers.
    pub(super) fn forget_counts(&mut self, dead: u16) {
        if !self.counts.is_empty() {
            let depth = self.depth();
            self.counts.retain(|count| count.depth != depth || count.counters & dead == 0);
        }
    }

    fn count_it(&mut self, instruction: Instruction) {
        let depth = self.depth();
        let leaves = instruction == Instruction::Exit;
        self.counts
            .retain_mut(|count| count.depth != depth || !leaves && count.follow(instruction));
    }

    /// Removes the running frame, and every address of it on stacks. Registers of callers hold none, since a call
    /// clobbers R0 to R5.
    pub(super) fn leave(&mut self) -> Option<AbstractFrame> {
        let left = self.frames.pop()?;
        let depth = self.frames.len() as u8;
        for frame in &mut self.frames {
            frame.stack.held.retain(|(_, value)| !value.leads_to_frame(depth));
        }
        Some(left)
    }
}
