//! Whose call runs next: deficit round robin (Shreedhar and Varghese) over sessions, by weight.
//!
//! A session runs while it has credit. What a turn has cost is known only afterwards, so that credit
//! may become debt, which is paid by rounds that the session sits out. An executor that turns calls
//! for short slices thus gives each session its share to within a slice, in constant time a turn.

use super::canary::{Canary, Mutant};
use super::{Call, Session};
use alloc::collections::VecDeque;
use alloc::vec::Vec;

/// Debt is forgotten beyond so many rounds: it bounds how long one looks for whose turn it is.
const DEBT_ROUNDS_MAX: i64 = 64;
/// A tenant may use what it has saved for so long.
const BURST_NS: u64 = 10_000_000;

/// What becomes of a call after its turn.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Turn {
    /// It could go on.
    Ready,
    /// It waits for something.
    Waits,
    /// It has ended.
    Over,
}

/// A session that takes part.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Line {
    tenant: usize,
    weight: i64,
    credit_ns: i64,
    /// Slots whose calls could run.
    ready: VecDeque<u8>,
    /// Stands in the round.
    stands: bool,
    /// Stands first in it, and has had its credit for this round.
    at_turn: bool,
}

/// What a tenant may use of the processor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Allowance {
    ns_per_s: u64,
    /// Negative when more was used.
    left_ns: i64,
    at_ns: u64,
}

impl Allowance {
    fn renew(&mut self, now_ns: u64) {
        let passed = u128::from(now_ns.saturating_sub(self.at_ns));
        let gained = passed * u128::from(self.ns_per_s) / 1_000_000_000;
        if gained > 0 {
            let gained = i64::try_from(gained).unwrap_or(i64::MAX);
            let most = i64::try_from(BURST_NS).unwrap_or(i64::MAX);
            self.left_ns = self.left_ns.saturating_add(gained).min(most);
            self.at_ns = now_ns;
        }
    }

    /// When something is left again.
    fn ready_at_ns(&self) -> u64 {
        let missing = u128::from(self.left_ns.min(0).unsigned_abs()) + 1;
        let wait = missing * 1_000_000_000 / u128::from(self.ns_per_s.max(1)) + 1;
        self.at_ns.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
    }
}

/// Sessions, their calls that could run, and what they have used.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Schedule {
    quantum_ns: i64,
    /// By session number.
    lines: Vec<Line>,
    /// Sessions with calls that could run; the first is at turn.
    round: VecDeque<Session>,
    /// By tenant; `None` for those without a bound.
    allowances: Vec<Option<Allowance>>,
    canary: Canary,
}

impl Schedule {
    pub(super) fn new(quantum_ns: u64, canary: Canary) -> Self {
        let quantum_ns = i64::try_from(quantum_ns).unwrap_or(i64::MAX).clamp(1, 1 << 32);
        let (lines, allowances) = (Vec::new(), Vec::new());
        Self { quantum_ns, lines, round: VecDeque::new(), allowances, canary }
    }

    pub(super) fn add_tenant(&mut self, processor_ns_per_s: Option<u64>) {
        let burst = i64::try_from(BURST_NS).unwrap_or(i64::MAX);
        self.allowances.push(processor_ns_per_s.map(|ns_per_s| Allowance {
            ns_per_s,
            left_ns: burst,
            at_ns: 0,
        }));
    }

    pub(super) fn open(&mut self, session: Session, tenant: usize, weight: u32) {
        let at = session.0 as usize;
        if self.lines.len() <= at {
            self.lines.resize_with(at + 1, Line::default);
        }
        let line = &mut self.lines[at];
        // Whoever had the number before may still stand in the round, with nothing to run.
        let stands = line.stands;
        *line = Line { tenant, weight: i64::from(weight.max(1)), stands, ..Line::default() };
    }

    /// Nothing of a session runs any more.
    pub(super) fn close(&mut self, session: Session) {
        if let Some(line) = self.lines.get_mut(session.0 as usize) {
            line.ready.clear();
        }
    }

    /// A call could run: it has just begun, or what it waited for has come.
    pub fn ready(&mut self, call: Call) {
        let Some(line) = self.lines.get_mut(call.session.0 as usize) else {
            return;
        };
        line.ready.push_back(call.slot);
        if !core::mem::replace(&mut line.stands, true) {
            self.round.push_back(call.session);
        }
    }

    /// A call runs no more, though it could.
    pub(super) fn forget(&mut self, call: Call) {
        if self.canary.is(Mutant::CancelledRuns) {
            return;
        }
        if let Some(line) = self.lines.get_mut(call.session.0 as usize) {
            line.ready.retain(|slot| *slot != call.slot);
        }
    }

    /// The call whose turn it is; tell [`Self::ran`] what it has used. `None` while none may run.
    pub fn next(&mut self, now_ns: u64) -> Option<Call> {
        // Sessions in a row that may not run before later.
        let mut barred = 0;
        while barred < self.round.len() {
            let session = *self.round.front()?;
            let alone = self.round.len() == 1;
            let line = &mut self.lines[session.0 as usize];
            if line.ready.is_empty() {
                self.round.pop_front();
                (line.stands, line.at_turn) = (false, false);
                line.credit_ns = line.credit_ns.min(0);
                continue;
            }
            if let Some(Some(allowance)) = self.allowances.get_mut(line.tenant) {
                allowance.renew(now_ns);
                if allowance.left_ns < 0 {
                    barred += 1;
                    self.round.rotate_left(1);
                    continue;
                }
            }
            let share = self.quantum_ns * line.weight;
            if !core::mem::replace(&mut line.at_turn, true) {
                line.credit_ns = if alone { share } else { line.credit_ns + share };
            }
            if line.credit_ns <= 0 {
                line.at_turn = false;
                self.round.rotate_left(1);
                barred = 0;
                continue;
            }
            let slot = line.ready.pop_front()?;
            return Some(Call { session, slot });
        }
        None
    }

    /// The call that was at turn has used so much, and goes on as `turn` says.
    pub fn ran(&mut self, call: Call, used_ns: u64, turn: Turn) {
        let Some(line) = self.lines.get_mut(call.session.0 as usize) else {
            return;
        };
        let used = i64::try_from(used_ns).unwrap_or(i64::MAX);
        if !self.canary.is(Mutant::NothingCharged) {
            let least = -(DEBT_ROUNDS_MAX * self.quantum_ns * line.weight);
            line.credit_ns = line.credit_ns.saturating_sub(used).max(least);
        }
        if let Some(Some(allowance)) = self.allowances.get_mut(line.tenant) {
            allowance.left_ns = allowance.left_ns.saturating_sub(used);
        }
        if turn == Turn::Ready {
            self.ready(call);
        }
    }

    /// Whether a call could run if its tenant had something left.
    pub fn is_idle(&self) -> bool {
        self.round.iter().all(|session| self.lines[session.0 as usize].ready.is_empty())
    }

    /// When a tenant that has used up what it may has something left again.
    pub fn wakes_at_ns(&self) -> Option<u64> {
        let waiting = self.round.iter().map(|session| &self.lines[session.0 as usize]);
        let waiting = waiting.filter(|line| !line.ready.is_empty());
        let allowances = waiting.filter_map(|line| self.allowances.get(line.tenant)?.as_ref());
        allowances.map(Allowance::ready_at_ns).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(session: u32, slot: u8) -> Call {
        Call { session: Session(session), slot }
    }

    fn schedule(weights: &[u32]) -> Schedule {
        let mut schedule = Schedule::new(100, Canary::default());
        schedule.add_tenant(None);
        for (session, weight) in (0..).zip(weights) {
            schedule.open(Session(session), 0, *weight);
        }
        schedule
    }

    /// What each of these sessions has used after so many turns of so much, all always ready.
    fn used(weights: &[u32], costs: &[u64], turns: usize) -> Vec<u64> {
        let mut schedule = schedule(weights);
        (0..).zip(weights).for_each(|(session, _)| schedule.ready(call(session, 0)));
        let mut used = alloc::vec![0; weights.len()];
        for _ in 0..turns {
            let call = schedule.next(0).unwrap();
            let at = call.session.0 as usize;
            used[at] += costs[at];
            schedule.ran(call, costs[at], Turn::Ready);
        }
        used
    }

    #[test]
    fn sessions_get_their_shares_whatever_their_turns_cost() {
        let used_by = used(&[1, 1, 2], &[10, 70, 300], 10_000);
        let (least, most) = (used_by[0].min(used_by[1]), used_by[0].max(used_by[1]));
        assert!(most - least <= 300, "{used_by:?}");
        assert!(used_by[2].abs_diff(2 * least) <= 1000, "{used_by:?}");
    }

    #[cfg(canary)]
    #[test]
    fn canary_a_schedule_that_charges_nothing_is_found() {
        let mut schedule = Schedule::new(100, Canary::new(Mutant::NothingCharged));
        schedule.add_tenant(None);
        let mut used = [0_u64; 2];
        for session in 0..2 {
            schedule.open(Session(session), 0, 1);
            schedule.ready(call(session, 0));
        }
        for _ in 0..1000 {
            let call = schedule.next(0).unwrap();
            used[call.session.0 as usize] += 70;
            schedule.ran(call, 70, Turn::Ready);
        }
        assert!(used[0].abs_diff(used[1]) > 300, "the test of shares would find it: {used:?}");
    }

    #[test]
    fn calls_of_one_session_take_turns() {
        let mut schedule = schedule(&[1]);
        schedule.ready(call(0, 1));
        schedule.ready(call(0, 2));
        for slot in [1, 2, 1, 2] {
            assert_eq!(schedule.next(0), Some(call(0, slot)));
            schedule.ran(call(0, slot), 1000, Turn::Ready);
        }
        schedule.forget(call(0, 1));
        assert_eq!(schedule.next(0), Some(call(0, 2)));
        schedule.ran(call(0, 2), 1, Turn::Over);
        assert_eq!((schedule.next(0), schedule.is_idle()), (None, true));
    }

    #[test]
    fn who_comes_waits_for_one_turn_of_the_others() {
        let mut schedule = schedule(&[1, 1]);
        schedule.ready(call(0, 0));
        for _ in 0..1000 {
            assert_eq!(schedule.next(0), Some(call(0, 0)));
            schedule.ran(call(0, 0), 150, Turn::Ready);
        }
        schedule.ready(call(1, 0));
        let mut others = 0;
        while schedule.next(0) != Some(call(1, 0)) {
            schedule.ran(call(0, 0), 150, Turn::Ready);
            others += 1;
        }
        assert!(others <= 1, "{others}");
    }

    #[test]
    fn short_calls_wait_for_one_turn_of_a_long_one_each_time() {
        let mut schedule = schedule(&[1, 1]);
        schedule.ready(call(0, 0));
        for _ in 0..1000 {
            schedule.ready(call(1, 0));
            let mut others = 0;
            while schedule.next(0) != Some(call(1, 0)) {
                schedule.ran(call(0, 0), 100, Turn::Ready);
                others += 1;
            }
            schedule.ran(call(1, 0), 10, Turn::Over);
            assert!(others <= 1, "{others}");
        }
    }

    #[test]
    fn debt_is_bounded_and_kept_by_who_leaves_and_comes_back() {
        let mut schedule = schedule(&[1, 1]);
        schedule.ready(call(0, 0));
        assert_eq!(schedule.next(0), Some(call(0, 0)));
        schedule.ran(call(0, 0), u64::MAX, Turn::Over);
        assert_eq!(schedule.next(0), None);
        schedule.ready(call(0, 0));
        schedule.ready(call(1, 0));
        let mut turns = 0;
        while schedule.next(0) == Some(call(1, 0)) {
            schedule.ran(call(1, 0), 100, Turn::Ready);
            turns += 1;
        }
        assert!((60..=66).contains(&turns), "{turns}");
    }

    #[test]
    fn a_tenant_that_has_used_up_its_time_waits_for_more() {
        let mut schedule = Schedule::new(100, Canary::default());
        schedule.add_tenant(Some(100_000_000));
        schedule.add_tenant(None);
        schedule.open(Session(0), 0, 1);
        schedule.open(Session(1), 1, 1);
        schedule.ready(call(0, 0));
        assert_eq!(schedule.next(0), Some(call(0, 0)));
        schedule.ran(call(0, 0), BURST_NS + 1_000_000, Turn::Ready);
        assert_eq!((schedule.next(0), schedule.is_idle()), (None, false));
        let at = schedule.wakes_at_ns().unwrap();
        assert!((10_000_000..10_000_100).contains(&at), "{at}: a tenth of the time");
        schedule.ready(call(1, 0));
        assert_eq!(schedule.next(0), Some(call(1, 0)), "others are not disturbed");
        schedule.ran(call(1, 0), 1, Turn::Over);
        assert_eq!(schedule.next(at), Some(call(0, 0)));
    }

    #[test]
    fn a_number_that_serves_again_has_nothing_of_its_former_session() {
        let mut schedule = schedule(&[1]);
        schedule.ready(call(0, 3));
        schedule.close(Session(0));
        schedule.open(Session(0), 0, 1);
        assert_eq!(schedule.next(0), None);
        schedule.ready(call(0, 1));
        assert_eq!(schedule.next(0), Some(call(0, 1)));
    }
}
