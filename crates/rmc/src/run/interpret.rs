//! Runs of a machine by either interpreter: to the end, or for a slice.

use super::machine::Machine;
use super::memory::Lent;
use super::{Fault, FaultKind, Near, Outcome, Span, Stop, checked, fast};
use crate::program::Program;
use crate::verify::Verified;

impl Machine {
    /// Runs until the program returns, is stopped or has to wait. `verified` and `lent` must be those of the start, or
    /// copies of them at another site.
    #[inline]
    pub fn run(&mut self, verified: &Verified, lent: Lent<'_>, near: &mut impl Near) -> Outcome {
        if self.proven != Some(verified.identity()) {
            self.proven = None;
        }
        let Lent { own, shared } = lent;
        if !self.ready() {
            let lent = Lent { own: &mut *own, shared: &mut *shared };
            if let Some(outcome) = self.go_on_long(verified.program(), lent) {
                return outcome;
            }
        }
        fast::run(self, verified, Lent { own, shared }, near)
    }

    /// As [`Machine::run`], but checks everything and needs no verification. Many times slower.
    pub fn run_checked(
        &mut self,
        program: &Program,
        lent: Lent<'_>,
        near: &mut impl Near,
    ) -> Outcome {
        // The program cannot be identified here.
        self.proven = None;
        let Lent { own, shared } = lent;
        if !self.ready() {
            let lent = Lent { own: &mut *own, shared: &mut *shared };
            if let Some(outcome) = self.go_on_long(program, lent) {
                return outcome;
            }
        }
        let outcome = checked::run(self, program, Lent { own, shared }, near);
        self.running = matches!(outcome, Outcome::Suspended(_) | Outcome::Paused);
        outcome
    }

    /// As [`Machine::run`], but pauses after a slice: a number of instructions, or of bytes that helpers move.
    ///
    /// It returns [`Outcome::Paused`], and the next run continues there, by any engine. The effects of the call, and
    /// the budget left at the end, do not depend on the slices.
    ///
    /// A slice is exceeded by the work up to the next safepoint: some 256 instructions, of which a helper counts as
    /// 16 and a division or an atomic as 8. Pure helpers that move more than a slice are carried out a slice at a
    /// time. Other calls run in between, so a program that hashes or compresses shared variables that they change
    /// must take a lock. Programs that end within [`crate::Limits::unpaused_max`] instructions pause at helpers only.
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

    /// Continues the long helper of a machine that is not ready. `None` if the call continues after the helper.
    #[cold]
    pub(super) fn go_on_long(&mut self, program: &Program, lent: Lent<'_>) -> Option<Outcome> {
        let long = if self.running { self.long.take() } else { None };
        let Some(mut long) = long else { return Some(self.why_not()) };
        // An empty slice makes progress too.
        let units =
            self.slice.map_or(usize::MAX, |slice| usize::try_from(slice).unwrap_or(usize::MAX));
        let Lent { own, shared } = lent;
        let (view, _) = self.view(program, Lent { own: &mut *own, shared: &mut *shared });
        let kind = match long.step(&view, units.max(1)) {
            Ok(None) => {
                self.long = Some(long);
                return Some(Outcome::Paused);
            }
            Ok(Some(result)) => {
                let (request, made) = (&long.request, long.made(result));
                let lent = Lent { own, shared };
                if self.settle(program, lent, request, result, made).is_ok() {
                    self.paused |= self.slice.is_some();
                    return self.slice.map(|_| Outcome::Paused);
                }
                let Span { address, length } = request.output.unwrap_or_default();
                FaultKind::OutOfBounds { address, length }
            }
            Err(kind) => kind,
        };
        self.running = false;
        Some(Outcome::Stopped(Stop::Fault(Fault { slot: self.at, kind })))
    }
}
