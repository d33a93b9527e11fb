//! The meter: what is left of a call's budget, and of the present slice.
//!
//! A slice is a part of the budget; the rest is reserved, so that a charge costs the same with and without slices. If a
//! charge exceeds the slice but not the budget, the call pauses *after* what was charged (at the target of the jump, at
//! the start of the function, after the helper or the marked instruction, see `cost/charges.rs`). So every slice makes
//! progress, however short, and nothing is executed twice. Since the reserve is returned when the slice ends, a budget
//! is exhausted at the same charge for any division into slices.

use crate::cost::Charges;
use crate::limits::Budget;
use crate::program::Program;
use crate::verify::Verified;

/// What is left of a budget; negative when a charge has passed it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct Meter {
    pub(super) instructions: i64,
    pub(super) helper_calls: i64,
    pub(super) bytes: i64,
    /// Instructions and bytes reserved for later slices: none between runs.
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

    /// Reserves all but a slice.
    pub(super) fn cut(&mut self, most: u64) {
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

    /// Returns the reserve to the budget.
    pub(super) fn join(&mut self) {
        self.instructions += core::mem::take(&mut self.instructions_aside);
        self.bytes += core::mem::take(&mut self.bytes_aside);
    }

    /// Whether the bytes of a helper have passed the budget.
    pub(super) fn bytes_over(&self) -> bool {
        self.bytes < 0 && self.bytes + self.bytes_aside < 0
    }

    /// Whether the bytes of a helper have exceeded the slice. Called after a helper that was charged.
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
