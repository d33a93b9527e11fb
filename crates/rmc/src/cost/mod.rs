//! Costs of programs: what the verifier bounds ([`Cost`]) and what a meter charges ([`Charges`]).
//!
//! Both follow from the text of a program alone, so the verifier and every engine count the same.

mod charges;

pub(crate) use charges::Charges;

use crate::helpers::Call;
use crate::isa::{AluOp, Instruction};
use crate::limits::Budget;

/// The cost of a path: an upper bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Instructions.
    pub instructions: u64,
    /// Calls of helpers, those of single words not counted.
    pub helper_calls: u64,
    /// Bytes that those helpers move or hash.
    pub bytes: u64,
    /// Calls of helpers that load or store a single word.
    pub words: u64,
    /// Divisions and atomic changes of memory.
    pub slow: u64,
}

impl Cost {
    /// The cost of a program that has, or may have, a path without an end.
    pub(crate) const ENDLESS: Self = Self {
        instructions: u64::MAX,
        helper_calls: u64::MAX,
        bytes: u64::MAX,
        words: u64::MAX,
        slow: u64::MAX,
    };

    pub(crate) fn plus(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.saturating_add(other.instructions),
            helper_calls: self.helper_calls.saturating_add(other.helper_calls),
            bytes: self.bytes.saturating_add(other.bytes),
            words: self.words.saturating_add(other.words),
            slow: self.slow.saturating_add(other.slow),
        }
    }

    pub(crate) fn times(self, count: u64) -> Self {
        Self {
            instructions: self.instructions.saturating_mul(count),
            helper_calls: self.helper_calls.saturating_mul(count),
            bytes: self.bytes.saturating_mul(count),
            words: self.words.saturating_mul(count),
            slow: self.slow.saturating_mul(count),
        }
    }

    /// The component-wise maximum: a bound on either path.
    pub(crate) fn or(self, other: Self) -> Self {
        Self {
            instructions: self.instructions.max(other.instructions),
            helper_calls: self.helper_calls.max(other.helper_calls),
            bytes: self.bytes.max(other.bytes),
            words: self.words.max(other.words),
            slow: self.slow.max(other.slow),
        }
    }

    /// Whether a call of at most this cost ends within the budget.
    #[inline]
    pub(crate) fn within(&self, budget: &Budget) -> bool {
        self.instructions <= budget.instructions
            && self.helper_calls <= budget.helper_calls
            && self.bytes <= budget.bytes
    }
}

/// Whether an instruction is a division or an atomic change of memory.
pub(crate) fn is_slow(instruction: Instruction) -> bool {
    use AluOp::{Div, Mod, SignedDiv, SignedMod};
    match instruction {
        Instruction::Alu { op, .. } => matches!(op, Div | Mod | SignedDiv | SignedMod),
        Instruction::Atomic { .. } => true,
        _ => false,
    }
}

/// Whether calls of a helper are counted. Those of single words are not: instructions bound them already.
#[inline]
pub(crate) fn is_counted(call: Call) -> bool {
    !matches!(call, Call::LoadU64 | Call::LoadU32 | Call::StoreU64 | Call::StoreU32)
}
