//! Sums and copies that wait until somebody reads them.

use super::super::ops::{Code, Op, ZERO};

/// The first register that outlives calls.
pub(super) const FIRST_KEPT: usize = 6;

/// What a register will hold when somebody reads it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Later {
    Number(i32),
    /// A register's home plus a number.
    Sum(u8, i32),
}

impl Later {
    /// Whether it is the same behind a call that destroys what calls destroy.
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

/// What R1 to R5 will hold, where they do not hold it yet.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Waiting([Option<Later>; FIRST_KEPT]);

impl Waiting {
    /// What a register will hold, if it waits.
    pub(super) fn of(&self, register: usize) -> Option<Later> {
        self.0.get(register).copied().flatten()
    }

    /// What R1 and R2 will hold, or do hold.
    pub(super) fn arguments(&self) -> [Later; 2] {
        [1, 2].map(|at| self.0[at].unwrap_or(Later::Sum(at as u8, 0)))
    }

    /// Whether the operation is one of those that wait for somebody who reads their result.
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

    /// Bits of the registers that have to be made before an instruction that reads and writes these: what is
    /// read, and what its result would destroy. What it writes itself waits no more.
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

    /// Takes out what is made for a register now.
    pub(super) fn take(&mut self, register: usize) -> Option<Later> {
        self.0.get_mut(register).and_then(Option::take)
    }

    /// Takes out what is made for these registers.
    pub(super) fn drop(&mut self, registers: u16) {
        (0..FIRST_KEPT).filter(|at| registers >> at & 1 == 1).for_each(|at| self.0[at] = None);
    }
}
