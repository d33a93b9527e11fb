//! What is known at one place of a program: registers and stack of every frame.

use alloc::vec::Vec;

use super::scalar::Scalar;
use crate::isa::Register;
use crate::limits::FRAME_BYTES;

/// Memory that an address leads to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Constants,
    Own,
    Shared,
    Context,
    /// The stack of the frame at this depth.
    Stack(u8),
}

/// Most values that a proof keeps at a time: some 25 MB, whatever a hostile program does.
pub(super) const CELLS_MAX: usize = 1 << 18;

/// Which links of one state were found to be which of another: copies there must be copies here.
#[derive(Default)]
struct Links {
    /// The first ones, which need no memory of their own.
    first: [(u32, u32); 4],
    count: usize,
    more: Vec<(u32, u32)>,
}

impl Links {
    fn holds(&mut self, old: u32, new: u32) -> bool {
        if old == 0 {
            return true;
        }
        let mut all = self.first[..self.count].iter().chain(&self.more);
        match all.find(|(known, _)| *known == old) {
            Some((_, known)) => *known == new && new != 0,
            None => {
                match self.first.get_mut(self.count) {
                    Some(free) => {
                        *free = (old, new);
                        self.count += 1;
                    }
                    None => self.more.push((old, new)),
                }
                true
            }
        }
    }
}

/// What a register or a slot of the stack holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Value {
    /// Nobody knows; must not be read.
    Nothing,
    Number(Scalar),
    /// An address so far behind the start of its place, signed.
    Address(Place, Scalar),
    /// A declared state.
    Handle(u32),
}

impl Value {
    pub(super) const UNKNOWN: Self = Self::Number(Scalar::UNKNOWN);

    fn contains(&self, other: &Self, links: &mut Links) -> bool {
        match (self, other) {
            (Self::Nothing, _) => true,
            (Self::Number(a), Self::Number(b)) => a.contains(b) && links.holds(a.link, b.link),
            (Self::Address(at, a), Self::Address(place, b)) => at == place && a.contains(b),
            (Self::Handle(a), Self::Handle(b)) => a == b,
            _ => false,
        }
    }

    /// What holds of both, by `join` for numbers and offsets.
    fn merge(&self, other: &Self, join: &impl Fn(&Scalar, &Scalar) -> Scalar) -> Self {
        match (self, other) {
            (Self::Number(a), Self::Number(b)) => Self::Number(join(a, b)),
            (Self::Address(at, a), Self::Address(place, b)) if at == place => {
                Self::Address(*at, join(a, b))
            }
            (Self::Handle(a), Self::Handle(b)) if a == b => *self,
            _ => Self::Nothing,
        }
    }

    fn leads_to_frame(&self, depth: u8) -> bool {
        matches!(self, Self::Address(Place::Stack(at), _) if *at >= depth)
    }
}

/// Eight aligned bytes of the stack.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Slot {
    /// Those of the mask hold something, of which no more is known than that it is a number.
    Bytes(u8),
    /// All eight hold this.
    Held(Value),
}

impl Slot {
    const EMPTY: Self = Self::Bytes(0);

    /// The bytes that may be read as numbers.
    pub(super) fn readable(&self) -> u8 {
        match self {
            Self::Bytes(mask) => *mask,
            Self::Held(Value::Number(_)) => 0xff,
            Self::Held(_) => 0,
        }
    }

    fn contains(&self, other: &Self, links: &mut Links) -> bool {
        match (self, other) {
            (Self::Bytes(mask), other) => mask & !other.readable() == 0,
            (Self::Held(a), Self::Held(b)) => a.contains(b, links),
            (Self::Held(Value::Number(scalar)), Self::Bytes(0xff)) => {
                scalar.contains(&Scalar::UNKNOWN) && links.holds(scalar.link, 0)
            }
            (Self::Held(_), Self::Bytes(_)) => false,
        }
    }

    fn merge(&self, other: &Self, join: &impl Fn(&Scalar, &Scalar) -> Scalar) -> Self {
        if let (Self::Held(a), Self::Held(b)) = (self, other) {
            let merged = a.merge(b, join);
            if merged != Value::Nothing {
                return Self::Held(merged);
            }
        }
        Self::Bytes(self.readable() & other.readable())
    }
}

/// One frame.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Frame {
    pub(super) registers: [Value; Register::COUNT],
    /// From the end of the frame downwards; what is not there is empty.
    slots: Vec<Slot>,
    /// The slot behind the call that made it.
    pub(super) back: usize,
}

/// Slots of a frame.
const SLOTS: usize = FRAME_BYTES as usize / 8;

impl Frame {
    pub(super) fn new(depth: u8, back: usize) -> Self {
        let mut registers = [Value::Nothing; Register::COUNT];
        let end = Scalar::constant(u64::from(FRAME_BYTES));
        registers[10] = Value::Address(Place::Stack(depth), end);
        Self { registers, slots: Vec::new(), back }
    }

    /// The slot with the byte `offset`, which is below the frame's size.
    pub(super) fn slot(&self, offset: usize) -> Slot {
        self.slots.get(SLOTS - 1 - offset / 8).copied().unwrap_or(Slot::EMPTY)
    }

    pub(super) fn set_slot(&mut self, offset: usize, slot: Slot) {
        let at = SLOTS - 1 - offset / 8;
        if self.slots.len() <= at {
            self.slots.resize(at + 1, Slot::EMPTY);
        }
        self.slots[at] = slot;
    }

    fn contains(&self, other: &Self, links: &mut Links) -> bool {
        let pairs = self.registers.iter().zip(&other.registers);
        let long = self.slots.len().max(other.slots.len());
        self.back == other.back
            && pairs.into_iter().all(|(a, b)| a.contains(b, links))
            && (0..long).all(|at| {
                let of = |frame: &Self| frame.slots.get(at).copied().unwrap_or(Slot::EMPTY);
                of(self).contains(&of(other), links)
            })
    }

    fn merge(&self, other: &Self, join: &impl Fn(&Scalar, &Scalar) -> Scalar) -> Self {
        let mut merged = self.clone();
        for (value, other) in merged.registers.iter_mut().zip(&other.registers) {
            *value = value.merge(other, join);
        }
        merged.slots.truncate(other.slots.len());
        for (slot, other) in merged.slots.iter_mut().zip(&other.slots) {
            *slot = slot.merge(other, join);
        }
        merged
    }
}

/// All frames; the last one runs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct State {
    pub(super) frames: Vec<Frame>,
}

impl State {
    /// At the start of a program.
    pub(super) fn new(context_bytes_max: usize) -> Self {
        let mut frame = Frame::new(0, 0);
        frame.registers[1] = Value::Address(Place::Context, Scalar::constant(0));
        frame.registers[2] = Value::Number(Scalar::range(0, context_bytes_max as u64));
        Self { frames: alloc::vec![frame] }
    }

    /// The depth of the frame that runs.
    pub(super) fn depth(&self) -> u8 {
        (self.frames.len() - 1) as u8
    }

    pub(super) fn frame(&self) -> &Frame {
        &self.frames[self.frames.len() - 1]
    }

    pub(super) fn frame_mut(&mut self) -> &mut Frame {
        let last = self.frames.len() - 1;
        &mut self.frames[last]
    }

    pub(super) fn value(&self, register: Register) -> Value {
        self.frame().registers[register.index()]
    }

    pub(super) fn set(&mut self, register: Register, value: Value) {
        self.frame_mut().registers[register.index()] = value;
    }

    /// How many values it keeps, as a measure of its memory: some hundred bytes each.
    pub(super) fn cells(&self) -> usize {
        self.frames.iter().map(|frame| Register::COUNT + frame.slots.len()).sum()
    }

    /// Whether it is true of whatever the other is true of.
    pub(super) fn contains(&self, other: &Self) -> bool {
        let mut links = Links::default();
        self.frames.len() == other.frames.len()
            && self.frames.iter().zip(&other.frames).all(|(a, b)| a.contains(b, &mut links))
    }

    /// The first register of the running frame that shows that [`State::contains`] is false, if one does.
    pub(super) fn differs_at(&self, other: &Self) -> Option<usize> {
        (0..Register::COUNT).find(|at| !self.may_contain_at(other, *at))
    }

    /// Whether a register of the running frame leaves it open that [`State::contains`] is true.
    pub(super) fn may_contain_at(&self, other: &Self, register: usize) -> bool {
        let of = |state: &Self| state.frame().registers[register];
        of(self).contains(&of(other), &mut Links::default())
    }

    /// What holds in either.
    pub(super) fn merge(&self, other: &Self, join: &impl Fn(&Scalar, &Scalar) -> Scalar) -> Self {
        let pairs = self.frames.iter().zip(&other.frames);
        Self { frames: pairs.map(|(a, b)| a.merge(b, join)).collect() }
    }

    /// Gives every number with this link what has been learnt of one of them.
    pub(super) fn learn(&mut self, learnt: Scalar) {
        if learnt.link == 0 {
            return;
        }
        let tell = |value: &mut Value| {
            if let Value::Number(scalar) = value
                && scalar.link == learnt.link
            {
                *scalar = learnt;
            }
        };
        for frame in &mut self.frames {
            frame.registers.iter_mut().for_each(tell);
            for slot in &mut frame.slots {
                if let Slot::Held(value) = slot {
                    tell(value);
                }
            }
        }
    }

    /// Removes the running frame, and every address of it on stacks; registers of callers hold none, since
    /// what they had in R0 to R5 went with the call.
    pub(super) fn leave(&mut self) -> Option<Frame> {
        let left = self.frames.pop()?;
        let depth = self.frames.len() as u8;
        for frame in &mut self.frames {
            for slot in &mut frame.slots {
                if matches!(slot, Slot::Held(value) if value.leads_to_frame(depth)) {
                    *slot = Slot::EMPTY;
                }
            }
        }
        Some(left)
    }
}
