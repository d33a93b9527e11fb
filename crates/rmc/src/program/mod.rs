//! Unverified programs: linked code, constant data, declared state, and source lines. Made by the ELF loader or the
//! assembler, and consumed by the verifier.

mod btf;
mod elf;
mod refusal;
mod source;

use alloc::string::String;
use alloc::sync::Arc;
use alloc::vec::Vec;
use core::fmt;

use crate::helpers::StateKind;
use crate::isa::Instruction;

pub use elf::load;
pub use refusal::{LoadError, LoadProblem, StateProblem, Within};
pub use source::{ReadError, read};

/// Which calls share a state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub enum Scope {
    /// Those of one queue pair.
    QueuePair,
    /// Those of all queue pairs that registered the same program.
    Shared,
}

/// A state that a program declares, kept near the memory by the executor.
#[derive(Clone, PartialEq, Eq, Debug, Hash)]
pub struct StateDeclaration {
    /// As in the source.
    pub name: String,
    /// What it is.
    pub kind: StateKind,
    /// Bytes of a key; zero if there are none.
    pub key_bytes: u32,
    /// Bytes of a value; eight for counters, zero for locks.
    pub value_bytes: u32,
    /// Most entries.
    pub entries: u32,
    /// Who shares it.
    pub scope: Scope,
}

/// Bytes that an entry of a map takes besides its key and its value: what leads to it and to the next one,
/// and a part of its key's hash.
pub const MAP_ENTRY_BYTES: u64 = 12;
/// Bytes that a lock takes: its owner.
pub const LOCK_BYTES: u64 = 8;

impl StateDeclaration {
    /// Bytes it takes at an executor when it is full: what counts towards a tenant's quota, and what
    /// [`state_bytes_max`](crate::Limits::state_bytes_max) bounds.
    ///
    /// An executor takes up to two thousandths and a few hundred bytes more, and less until all of it was used.
    pub fn bytes(&self) -> u64 {
        let (key, value) = (u64::from(self.key_bytes), u64::from(self.value_bytes));
        let entry = match self.kind {
            StateKind::Array | StateKind::Counters => key + value,
            StateKind::Map => MAP_ENTRY_BYTES + key + value,
            StateKind::Locks => LOCK_BYTES,
        };
        entry * u64::from(self.entries)
    }

    /// Why it is invalid, if it is.
    pub(crate) fn problem(&self, bytes_max: u64) -> Option<&'static str> {
        let (key, value) = (self.key_bytes, self.value_bytes);
        let fits = match self.kind {
            StateKind::Array => key == 0 && value > 0,
            StateKind::Counters => key == 0 && value == 8,
            StateKind::Map => key > 0 && value > 0,
            StateKind::Locks => key == 0 && value == 0,
        };
        if !fits {
            Some("its key and value sizes do not fit its kind")
        } else if key > crate::limits::FRAME_BYTES || value > crate::helpers::BUFFER_BYTES_MAX {
            Some("its keys or values are too long")
        } else if self.entries == 0 {
            Some("it has no entries")
        } else if self.bytes() > bytes_max || self.entries > 1 << 24 {
            Some("it would take too much memory")
        } else {
            None
        }
    }
}

/// A function of a program: slots from `start` to before `end`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Function {
    /// As in the source.
    pub name: String,
    /// Its first slot.
    pub start: usize,
    /// The slot after its last.
    pub end: usize,
}

/// Where an instruction came from.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourcePosition {
    /// The first slot that came from there.
    pub slot: usize,
    /// The file.
    pub file: Arc<str>,
    /// Counted from one.
    pub line: u32,
}

/// Variables that outlive calls, as they are when a program is registered.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Variables {
    /// The variables of each queue pair.
    pub own: Vec<u8>,
    /// The variables that all queue pairs share.
    pub shared: Vec<u8>,
}

/// A linked program.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Program {
    /// As in the source.
    pub name: String,
    /// One entry a slot; the program's own function starts at slot zero.
    pub code: Vec<Instruction>,
    /// Its functions in order, without gaps; the first is the program itself.
    pub functions: Vec<Function>,
    /// Read-only data.
    pub constants: Vec<u8>,
    /// Variables as they are at first.
    pub variables: Variables,
    /// Declared states, by handle.
    pub states: Vec<StateDeclaration>,
    /// Sorted by slot; empty if the source is unknown.
    pub lines: Vec<SourcePosition>,
}

impl Program {
    /// A program of one function without data: what tests and small builders need.
    pub fn from_code(name: &str, code: Vec<Instruction>) -> Self {
        let functions = alloc::vec![Function { name: name.into(), start: 0, end: code.len() }];
        Self { name: name.into(), code, functions, ..Self::default() }
    }

    /// Slots of the program's own function.
    pub(crate) fn first_slots(&self) -> usize {
        self.functions.first().map_or(0, |function| function.end)
    }

    /// The function that has this slot.
    pub fn function_at(&self, slot: usize) -> Option<usize> {
        let after = self.functions.partition_point(|function| function.start <= slot);
        let at = after.checked_sub(1)?;
        (slot < self.functions[at].end).then_some(at)
    }

    /// Where a slot came from.
    pub fn line_at(&self, slot: usize) -> Option<&SourcePosition> {
        let after = self.lines.partition_point(|line| line.slot <= slot);
        let line = self.lines.get(after.checked_sub(1)?)?;
        (self.function_at(line.slot) == self.function_at(slot)).then_some(line)
    }
}

impl fmt::Display for SourcePosition {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.file, self.line)
    }
}
