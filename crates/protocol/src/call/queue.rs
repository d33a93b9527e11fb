//! Start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996; for processors Goyal, Guo and Vin, OSDI 1996), of
//! tenants and of the sessions of each.
//!
//! Each flow has a *start tag*: the time that it has used, divided by its weight. The runnable flow with the smallest
//! tag runs next, and is charged after its run, since the cost is unknown before. So of two runnable flows the one
//! with the smaller tag runs first, and neither gets ahead of the other by more than one run of its own, of any
//! length.
//!
//! The *virtual time* of the queue is at most the tag of every runnable flow. A flow that becomes runnable starts at
//! the virtual time, unless its tag is greater: unused time is not saved up, and every flow keeps its *lag*, the
//! amount by which its tag exceeds the virtual time (`debt` in identifiers). The virtual time follows the smallest
//! tag of the runnable flows, at most twice as fast as the running flow is charged, and advances with real time while
//! no flow is runnable. So a lag does not vanish because other flows are idle for a moment. It is repaid while other
//! flows run, or forgiven to a flow that runs alone (or is idle with all others) for as long as the lag; a flow that
//! runs alone for longer ends with a lag of at most one run.
//!
//! A flow that becomes runnable with a lag of less than a quantum runs next all the same: in a round of many flows
//! with long runs, a short one would otherwise wait for all that have not run in this round.

use alloc::collections::VecDeque;

/// The maximum lag, per unit of a flow's weight. It exceeds any normal run, so that flows with long runs pay for
/// them; and a run during which the kernel descheduled the thread for minutes costs a flow its share for no longer
/// than a person notices.
pub(super) const DEBT_NS_MAX: u64 = 100_000_000;

/// The start tag of a flow.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Account {
    weight: u64,
    /// The start tag: nanoseconds used per unit of weight.
    at_ns: u64,
    /// Time used that is less than a whole nanosecond per unit of weight.
    rest_ns: u64,
    stands: bool,
}

impl Account {
    /// Creates the account of a flow that begins at `at_ns`, or at the virtual time if that is later.
    pub(super) fn new(weight: u32, at_ns: u64) -> Self {
        Self { weight: u64::from(weight.max(1)), at_ns, rest_ns: 0, stands: false }
    }

    /// Returns the charge for `used_ns`, divided by the weight.
    const fn share(&mut self, used_ns: u64) -> u64 {
        // Most weights are one, and a division takes longer than the rest of a charge.
        if self.weight == 1 {
            return used_ns;
        }
        let whole_ns = self.rest_ns.saturating_add(used_ns);
        self.rest_ns = whole_ns % self.weight;
        whole_ns / self.weight
    }

    pub(super) const fn at_ns(&self) -> u64 {
        self.at_ns
    }

    pub(super) const fn stands(&self) -> bool {
        self.stands
    }
}

/// The entry of a runnable flow.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct RunnableFlow {
    /// Its start tag, or the virtual time.
    at_ns: u64,
    /// It has run since it became runnable: of two flows with equal tags, the new one runs first.
    served: bool,
    who: u32,
}

impl RunnableFlow {
    const fn key(&self) -> (u64, bool) {
        (self.at_ns, self.served)
    }
}

/// Runnable flows. The owner of the queue keeps their accounts.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Queue {
    quantum_ns: u64,
    /// Sorted, the next flow first: allocates nothing once it has grown, and moves few entries at an insertion.
    places: VecDeque<RunnableFlow>,
    clock_ns: u64,
    /// When the last flow left.
    empty_since_ns: u64,
}

impl Queue {
    pub(super) const fn new(quantum_ns: u64) -> Self {
        Self { quantum_ns, places: VecDeque::new(), clock_ns: 0, empty_since_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// The flow that runs next.
    pub(super) fn first(&self) -> Option<u32> {
        self.places.front().map(|place| place.who)
    }

    /// Adds a flow that becomes runnable.
    pub(super) fn enter(&mut self, who: u32, account: &mut Account, now_ns: u64) {
        if self.places.is_empty() {
            let passed_ns = now_ns.saturating_sub(self.empty_since_ns);
            self.clock_ns = self.clock_ns.saturating_add(passed_ns);
        }
        account.at_ns = account.at_ns.max(self.clock_ns);
        account.stands = true;
        let owes_ns = (account.at_ns - self.clock_ns).saturating_mul(account.weight);
        let at_ns = if owes_ns < self.quantum_ns { self.clock_ns } else { account.at_ns };
        self.insert(RunnableFlow { at_ns, served: false, who });
    }

    /// Removes a flow that becomes idle. It keeps its lag.
    pub(super) fn leave(&mut self, who: u32, account: &mut Account, now_ns: u64) {
        if core::mem::replace(&mut account.stands, false) {
            self.remove(who);
            self.empty_since_ns = now_ns;
        }
    }

    /// Notes that a flow ran until now, though it may have left the queue already.
    pub(super) fn left_by(&mut self, now_ns: u64) {
        if self.places.is_empty() {
            self.empty_since_ns = now_ns.max(self.empty_since_ns);
        }
    }

    /// Charges a flow for time used, in its run or otherwise.
    pub(super) fn charge(&mut self, who: u32, account: &mut Account, used_ns: u64) {
        let before_ns = account.at_ns.max(self.clock_ns);
        let share_ns = account.share(used_ns);
        let most_ns = self.clock_ns.saturating_add(DEBT_NS_MAX);
        account.at_ns = before_ns.saturating_add(share_ns).min(most_ns);
        if account.stands {
            self.put_back(RunnableFlow { at_ns: account.at_ns, served: true, who });
        }
        // Not beyond the start of this run: a flow that enters now may have become runnable while the run was in
        // progress.
        let next_ns = self.places.front().map_or(before_ns, |place| place.at_ns);
        let twice_ns = self.clock_ns.saturating_add(share_ns).saturating_add(share_ns);
        self.clock_ns = self.clock_ns.max(twice_ns.min(before_ns).min(next_ns));
    }

    /// Moves a runnable flow to its current position.
    fn put_back(&mut self, place: RunnableFlow) {
        let before_all = self.places.get(1).is_none_or(|next| next.key() > place.key());
        match self.places.front_mut() {
            // Usually there is only one flow.
            Some(first) if first.who == place.who && before_all => *first = place,
            _ => {
                self.remove(place.who);
                self.insert(place);
            }
        }
    }

    fn insert(&mut self, place: RunnableFlow) {
        // Most flows that have run go to the back, and most new ones to the front.
        if self.places.back().is_none_or(|last| last.key() <= place.key()) {
            self.places.push_back(place);
        } else if self.places.front().is_some_and(|next| next.key() > place.key()) {
            self.places.push_front(place);
        } else {
            let at = self.places.partition_point(|other| other.key() <= place.key());
            self.places.insert(at, place);
        }
    }

    fn remove(&mut self, who: u32) {
        if self.places.front().is_some_and(|next| next.who == who) {
            self.places.pop_front();
        } else if let Some(at) = self.places.iter().position(|place| place.who == who) {
            self.places.remove(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A queue in which one flow of each of these weights is runnable.
    fn queue(weights: &[u32]) -> (Queue, Vec<Account>) {
        let mut queue = Queue::new(500);
        let mut accounts: Vec<_> = weights.iter().map(|weight| Account::new(*weight, 0)).collect();
        (0..).zip(&mut accounts).for_each(|(who, account)| queue.enter(who, account, 0));
        (queue, accounts)
    }

    #[test]
    fn of_accounts_alike_who_came_first_is_first_and_who_was_served_is_last() {
        let (mut queue, mut accounts) = queue(&[1, 1, 1]);
        assert_eq!(queue.first(), Some(0));
        queue.charge(0, &mut accounts[0], 0);
        assert_eq!(queue.first(), Some(1));
        queue.leave(1, &mut accounts[1], 0);
        assert_eq!(queue.first(), Some(2));
        queue.enter(1, &mut accounts[1], 0);
        queue.charge(2, &mut accounts[2], 0);
        assert_eq!(queue.first(), Some(1));
    }

    #[test]
    fn flow_with_lag_below_a_quantum_runs_next() {
        let (mut queue, mut accounts) = queue(&[1, 1, 1]);
        queue.leave(0, &mut accounts[0], 0);
        queue.charge(0, &mut accounts[0], 499);
        queue.charge(1, &mut accounts[1], 100);
        queue.charge(2, &mut accounts[2], 0);
        queue.enter(0, &mut accounts[0], 0);
        assert_eq!(queue.first(), Some(0));
        queue.charge(0, &mut accounts[0], 0);
        assert_eq!(queue.first(), Some(2));
        queue.leave(0, &mut accounts[0], 0);
        queue.charge(0, &mut accounts[0], 1);
        queue.enter(0, &mut accounts[0], 0);
        assert_eq!(queue.first(), Some(2));
    }

    #[test]
    fn remainder_of_a_weighted_charge_is_kept() {
        let (mut queue, mut accounts) = queue(&[1000]);
        (0..2500).for_each(|_| queue.charge(0, &mut accounts[0], 1));
        assert_eq!((accounts[0].at_ns, accounts[0].rest_ns), (2, 500));
    }

    #[test]
    fn lag_is_bounded_and_numbers_never_overflow() {
        let (mut queue, mut accounts) = queue(&[1, 7]);
        for _ in 0..3 {
            queue.charge(0, &mut accounts[0], u64::MAX);
            assert_eq!(accounts[0].at_ns, DEBT_NS_MAX);
        }
        queue.clock_ns = u64::MAX - 1;
        queue.charge(1, &mut accounts[1], u64::MAX);
        assert_eq!(accounts[1].at_ns, u64::MAX);
    }

    #[test]
    fn lag_is_forgiven_to_a_flow_alone_or_idle_for_that_long() {
        let (mut queue, mut accounts) = queue(&[1, 1]);
        queue.charge(0, &mut accounts[0], 50_000);
        queue.leave(1, &mut accounts[1], 0);
        let owes = |queue: &Queue, accounts: &[Account]| accounts[0].at_ns - queue.clock_ns;
        assert_eq!(owes(&queue, &accounts), 50_000);
        (0..20).for_each(|_| queue.charge(0, &mut accounts[0], 1000));
        assert_eq!(owes(&queue, &accounts), 30_000);
        (0..100).for_each(|_| queue.charge(0, &mut accounts[0], 1000));
        assert_eq!(owes(&queue, &accounts), 1000, "the run during which others may have entered");
        queue.charge(0, &mut accounts[0], 50_000);
        queue.leave(0, &mut accounts[0], 100);
        queue.enter(1, &mut accounts[1], 20_100);
        assert_eq!(owes(&queue, &accounts), 30_000);
    }
}
