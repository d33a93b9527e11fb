//! Lazy evaluation of sums and copies: computed when an instruction reads the register.

use crate::decode::{Code, Op, ZERO};

/// The first register that outlives calls.
pub(super) const FIRST_KEPT: usize = 6;

/// The value of a register that is not computed yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Later {
    Number(i32),
    /// A register's home plus a number.
    Sum(u8, i32),
}

impl Later {
    /// Whether its value is the same after a call, which clobbers R0 to R5.
    pub(super) fn outlives_calls(self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Sum(base, _) => usize::from(base) >= FIRST_KEPT,
        }
    }

    /// Whether it is another value once these registers are written.
    pub(super) fn changes_with(self, written: u16) -> bool {
        matches!(self, Self::Sum(base, _) if written >> base & 1 == 1)
    }
}

/// The pending values of R1 to R5.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PendingRegisters([Option<Later>; FIRST_KEPT]);

impl PendingRegisters {
    /// The pending value of a register.
    pub(super) fn of(&self, register: usize) -> Option<Later> {
        self.0.get(register).copied().flatten()
    }

    /// What R1 and R2 will hold, or do hold.
    pub(super) fn arguments(&self) -> [Later; 2] {
        [1, 2].map(|at| self.0[at].unwrap_or(Later::Sum(at as u8, 0)))
    }

    /// Records the operation, if it is evaluated lazily. Returns whether it is.
    pub(super) fn takes(&mut self, op: Op) -> bool {
        let to = usize::from(op.dst);
        if to == 0 || to >= FIRST_KEPT {
            return false;
        }
        let of = |register: u8| match self.0.get(usize::from(register)) {
            Some(Some(known)) => Some(*known),
            _ => (!(1..FIRST_KEPT as u8).contains(&register)).then_some(Later::Sum(register, 0)),
        };
        let next = match op.code {
            Code::Move if op.src == ZERO => Some(Later::Number(op.immediate)),
            Code::Move => of(op.src),
            Code::Add if op.src == ZERO => match self.0[to] {
                Some(Later::Number(number)) => number.checked_add(op.immediate).map(Later::Number),
                Some(Later::Sum(base, number)) => {
                    number.checked_add(op.immediate).map(|number| Later::Sum(base, number))
                }
                None => None,
            },
            _ => None,
        };
        if next.is_some() {
            self.0[to] = next;
        }
        next.is_some()
    }

    /// The registers, as bits, to compute before an instruction that reads and writes these: those that are read, and
    /// those that depend on what it writes. Pending values that it overwrites are dropped.
    pub(super) fn due(&mut self, read: u16, written: u16) -> u16 {
        let mut due = 0;
        for (at, waits) in self.0.iter_mut().enumerate() {
            let bit = 1 << at;
            match waits {
                Some(_) if read & bit != 0 => due |= bit,
                Some(_) if written & bit != 0 => *waits = None,
                Some(later) if later.changes_with(written) => due |= bit,
                _ => {}
            }
        }
        due
    }

    /// Removes and returns the pending value of a register.
    pub(super) fn take(&mut self, register: usize) -> Option<Later> {
        self.0.get_mut(register).and_then(Option::take)
    }

    /// Drops the pending values of these registers.
    pub(super) fn drop(&mut self, registers: u16) {
        (0..FIRST_KEPT).filter(|at| registers >> at & 1 == 1).for_each(|at| self.0[at] = None);
    }
}
