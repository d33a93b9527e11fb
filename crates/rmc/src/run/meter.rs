//! What a call may still use up, and what of it the present slice is.
//!
//! A slice is a part of the budget: what is kept back stands aside, so that a charge costs the same with
//! and without slices. Where a charge passes the slice and not the budget, the call pauses *behind* what
//! was charged (at the target of the jump, at the start of the function, behind the helper or the marked
//! instruction, see `charges.rs`). So every slice
//! gets on, however short it is, and nothing is done twice; and since what stood aside comes back when the
//! slice ends, a budget ends at the same charge however a call is cut into slices.

use super::charges::Charges;
use super::machine::Machine;
use super::memory::Lent;
use super::{Near, Outcome};
use crate::limits::Budget;
use crate::program::Program;
use crate::verify::Verified;

/// What is left of a budget; negative when a charge has passed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Meter {
    pub(super) instructions: i64,
    pub(super) helper_calls: i64,
    pub(super) bytes: i64,
    /// Of instructions and bytes, what is kept back from the present slice: nothing between runs.
    pub(super) instructions_aside: i64,
    pub(super) bytes_aside: i64,
}

impl Meter {
    /// A call's at its start.
    #[inline]
    pub(super) fn new(instructions: i64, budget: &Budget) -> Self {
        Self {
            instructions,
            helper_calls: signed(budget.helper_calls),
            bytes: signed(budget.bytes),
            instructions_aside: 0,
            bytes_aside: 0,
        }
    }

    /// Instructions of a verified program's call at its start. What is proven to end within the budget is
    /// charged for slices alone, by distances that may be more than what it executes: it must not be
    /// stopped.
    #[inline]
    pub(super) fn of_instructions(verified: &Verified, budget: &Budget) -> i64 {
        if verified.metered() { behind_start(budget, verified.start_cost()) } else { i64::MAX }
    }

    /// Those of any other program.
    pub(super) fn of_unverified(program: &Program, budget: &Budget) -> i64 {
        behind_start(budget, Charges::of(program).start(0))
    }

    /// Keeps back all but a slice.
    fn cut(&mut self, most: u64) {
        let most = i64::try_from(most).unwrap_or(i64::MAX);
        let keep = |left: &mut i64| {
            let slice = (*left).min(most);
            let aside = *left - slice;
            *left = slice;
            aside
        };
        self.instructions_aside = keep(&mut self.instructions);
        self.bytes_aside = keep(&mut self.bytes);
    }

    /// Takes back what was kept back.
    fn join(&mut self) {
        self.instructions += core::mem::take(&mut self.instructions_aside);
        self.bytes += core::mem::take(&mut self.bytes_aside);
    }

    /// Whether the bytes of a helper have passed the budget.
    pub(super) fn bytes_over(&self) -> bool {
        self.bytes < 0 && self.bytes + self.bytes_aside < 0
    }

    /// Whether the bytes of a helper have passed the slice. Asked behind a helper that was paid.
    pub(super) fn bytes_spent(&self) -> bool {
        self.bytes < 0
    }

    /// Whether what was charged has passed the slice and not the budget.
    pub(super) fn spent(&self) -> bool {
        let passed = |left: i64, aside: i64| left < 0 && aside > 0 && left + aside >= 0;
        passed(self.instructions, self.instructions_aside) || passed(self.bytes, self.bytes_aside)
    }
}

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The start of a program is paid as that of a function.
#[inline]
fn behind_start(budget: &Budget, cost: u32) -> i64 {
    signed(budget.instructions).saturating_sub_unsigned(u64::from(cost))
}

impl Machine {
    /// As [`Machine::run`], but pauses where so many instructions, or bytes that helpers move, are passed:
    /// [`Outcome::Paused`], and the next run goes on there, in any form. What the call does, and what of its
    /// budget is left at the end, does not depend on how it is cut.
    ///
    /// A slice is passed by what the program does until the next place where it can pause: some 256 instructions,
    /// of which a helper counts as 16 and a division or an atomic change as 8. Pure helpers that move more
    /// than a slice has are carried out a slice at a time: other calls run in between, so whoever hashes or
    /// compresses shared variables that these change takes a lock. Programs that end within
    /// [`crate::Limits::unpaused_max`] instructions pause at helpers alone.
    pub fn run_slice(
        &mut self,
        verified: &Verified,
        instructions: u64,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Outcome {
        self.sliced(instructions, |machine| machine.run(verified, lent, near))
    }

    /// As [`Machine::run_slice`], but checks everything and needs no verification.
    pub fn run_checked_slice(
        &mut self,
        program: &Program,
        instructions: u64,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Outcome {
        self.sliced(instructions, |machine| machine.run_checked(program, lent, near))
    }

    pub(super) fn sliced(&mut self, most: u64, run: impl FnOnce(&mut Self) -> Outcome) -> Outcome {
        self.meter.cut(most);
        self.slice = Some(most);
        let outcome = run(self);
        self.slice = None;
        self.meter.join();
        outcome
    }
}
