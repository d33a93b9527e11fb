//! What the parts of the template compiler share: a [`Compiler`] in progress, and properties of operations.

use alloc::vec::Vec;
use core::fmt;

use super::emit::{Emitter, Hole, R8, R9, R12, R13, R14, R15, RAX, RBX, RDI, RDX, RSI, Reg, When};
use super::entry::ROOM;
use super::later::{Later, PendingRegisters};
use crate::decode::{Code, Op};
use crate::helpers::Call;
use crate::verify::Verified;

/// Why there is no machine code.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum CompileError {
    /// The code would be larger than jumps reach.
    TooLarge,
    /// The system gives no memory for code.
    NoMemory,
}

impl fmt::Display for CompileError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::TooLarge => "the machine code would be too large: interpret the program",
            Self::NoMemory => "the system gives no memory for machine code: interpret the program",
        })
    }
}

impl core::error::Error for CompileError {}

/// Where R0 to R10 live.
pub(super) const HOMES: [Reg; 11] = [RAX, RDI, RSI, RDX, R9, R8, RBX, R13, R14, R15, R12];

/// Rarely executed code, placed after all other code.
pub(super) enum Cold {
    /// Leaves at a slot, and returns an amount to the meter.
    Leave { from: Hole, slot: usize, cost: u32 },
    /// Makes a region the last one, copies R0, and continues with the code of a slot.
    Entry { slot: usize, region: Option<Later>, copy: Option<Reg>, to: usize },
    /// A word of another region than the last one, or one that has to be asked for.
    Word {
        other: Option<Hole>,
        outside: Hole,
        slot: usize,
        arguments: [Later; 2],
        /// The positions where the region is known, and where the word is loaded.
        known: usize,
        done: usize,
        /// The register that gets the word besides R0.
        to: Reg,
    },
    /// A read of another region than the last one, or one that has to be asked for.
    Read(SlowRead),
    /// A group of words that has to be checked one by one.
    Careful(Careful),
    /// Makes a region the last one, and returns to a position of the code.
    Other { from: Hole, region: Later, to: usize },
    /// Charges a jump, if it costs something, establishes what the code of its target relies on, and continues there.
    Way { from: Hole, paid: Option<Paid>, relied: Option<Relied>, target: usize },
}

/// What a slot is charged before anything of it is done.
#[derive(Clone, Copy)]
pub(super) struct Paid {
    pub(super) slot: usize,
    /// Of the instruction, and of the mark too, which is paid already.
    pub(super) cost: u32,
    pub(super) mark: u32,
}

/// What is known of the program's and the processor's registers where code is added.
#[derive(Clone, Copy, Default)]
pub(super) struct CompileState {
    /// The pending values of R1 to R5.
    pub(super) later: PendingRegisters,
    /// The region that is certainly the last one.
    pub(super) last: Option<Later>,
    pub(super) held: R10Value,
}

/// What R10 of the processor has.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(super) enum R10Value {
    #[default]
    Nothing,
    /// Where the last region starts.
    Base,
    /// What is added to addresses of an area to get native ones.
    Area(u8),
}

/// A compilation in progress.
pub(super) struct Compiler<'a> {
    pub(super) ops: &'a [Op],
    pub(super) verified: &'a Verified,
    pub(super) out: Emitter,
    /// For each slot, the start of its code and its entry.
    pub(super) places: Vec<(u32, Option<u32>)>,
    /// Join points.
    pub(super) meetings: &'a [bool],
    /// Safepoints, except those after helpers.
    pub(super) pauses: Vec<bool>,
    /// What the code of a slot relies on. Every predecessor establishes it.
    pub(super) relied: Vec<Option<Relied>>,
    /// Live registers at each slot, as bits.
    pub(super) live: &'a [u16],
    /// Slots that one jump alone leads to, and no other way.
    pub(super) behind_one: Vec<bool>,
    pub(super) state: CompileState,
    /// Words that have been checked together, and whether the code that is added checks each for itself.
    pub(super) group: Option<Group>,
    pub(super) careful: bool,
    /// What R0 has been copied to already, which is all that the next slot does.
    pub(super) copied: Option<Reg>,
    /// Jumps to slots.
    pub(super) jumps: Vec<(Hole, usize)>,
    pub(super) cold: Vec<Cold>,
    /// Code that looks up a return address.
    pub(super) tables: Vec<Hole>,
    /// Code that calls a helper, and code that leaves.
    pub(super) help: usize,
    pub(super) leave: usize,
    /// Whether the program calls itself.
    pub(super) recursive: bool,
    /// Bits of the registers that the program has to do with.
    pub(super) used: u16,
    /// The used registers that the convention preserves, an even number for the alignment of calls.
    pub(super) kept: Vec<Reg>,
}

/// What the code of a slot relies on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Relied {
    /// The last region.
    pub(super) region: Later,
    /// Whether R10 holds the start of the region.
    pub(super) base: bool,
}

/// A read with the slow path that calls its helper.
pub(super) struct SlowRead {
    /// Where its region is another one than the last.
    pub(super) other: Hole,
    /// Where it cannot be carried out in place.
    pub(super) outside: [Option<Hole>; 5],
    pub(super) slot: usize,
    pub(super) waiting: PendingRegisters,
    /// The positions where the region is known, and where the bytes are read.
    pub(super) known: usize,
    pub(super) done: usize,
}

/// Words of one region around one register that are loaded consecutively, without join point or mark in between.
#[derive(Clone, Copy, Debug)]
pub(super) struct Group {
    /// The slots of its first and its last call.
    pub(super) first: usize,
    pub(super) last: usize,
    pub(super) region: Later,
    /// The register, and the lowest offset from it.
    pub(super) base: u8,
    pub(super) least: i32,
}

impl Group {
    /// Whether it has begun before a slot and ends not before it.
    pub(super) fn is_around(&self, slot: usize) -> bool {
        self.first < slot && slot <= self.last
    }

    pub(super) fn has(&self, [region, offset]: [Later; 2]) -> bool {
        let within =
            |number: i32| (0..=ROOM).contains(&(i64::from(number) - i64::from(self.least)));
        region == self.region
            && matches!(offset, Later::Sum(base, number) if base == self.base && within(number))
    }
}

/// Code that continues if a group could not be checked as a whole.
pub(super) struct Careful {
    pub(super) from: [Option<Hole>; 2],
    pub(super) group: Group,
    pub(super) state: CompileState,
}

pub(super) fn home(register: u8) -> Reg {
    HOMES[usize::from(register).min(10)]
}

pub(super) fn condition_or_jump(code: Code) -> bool {
    code == Code::Jump || condition(code).is_some()
}

/// Whether a comparison is of 64 bits, and when it jumps.
pub(super) fn condition(code: Code) -> Option<(bool, When)> {
    Some(match code {
        Code::Equal => (true, When::EQUAL),
        Code::Greater => (true, When::ABOVE),
        Code::GreaterEqual => (true, When::ABOVE_EQUAL),
        Code::Set | Code::NotEqual => (true, When::NOT_EQUAL),
        Code::SignedGreater => (true, When::GREATER),
        Code::SignedGreaterEqual => (true, When::GREATER_EQUAL),
        Code::Less => (true, When::BELOW),
        Code::LessEqual => (true, When::BELOW_EQUAL),
        Code::SignedLess => (true, When::LESS),
        Code::SignedLessEqual => (true, When::LESS_EQUAL),
        Code::Equal32 => (false, When::EQUAL),
        Code::Greater32 => (false, When::ABOVE),
        Code::GreaterEqual32 => (false, When::ABOVE_EQUAL),
        Code::Set32 | Code::NotEqual32 => (false, When::NOT_EQUAL),
        Code::SignedGreater32 => (false, When::GREATER),
        Code::SignedGreaterEqual32 => (false, When::GREATER_EQUAL),
        Code::Less32 => (false, When::BELOW),
        Code::LessEqual32 => (false, When::BELOW_EQUAL),
        Code::SignedLess32 => (false, When::LESS),
        Code::SignedLessEqual32 => (false, When::LESS_EQUAL),
        _ => return None,
    })
}

/// Whether an operation never falls through to the next one.
pub(super) fn leaves(op: Op) -> bool {
    matches!(op.code, Code::Jump | Code::Exit)
}

/// Whether an operation may change the last region, or may not fall through.
pub(super) fn ends_group(op: Op) -> bool {
    matches!(
        op.code,
        Code::HelperLoad
            | Code::HelperRead
            | Code::Helper
            | Code::Call
            | Code::Atomic
            | Code::Jump
            | Code::Exit
    )
}

/// Bytes of the word that an operation loads from a region.
pub(super) fn word_bytes(op: Op) -> Option<u8> {
    match op.code {
        Code::HelperLoad => Some(8),
        Code::Helper if op.immediate == Call::LoadU32 as i32 => Some(4),
        _ => None,
    }
}
