//! Who has had least goes next: start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM 1996; for
//! processors Goyal, Guo and Vin, OSDI 1996), of tenants and of the sessions of each.
//!
//! A member has an *account*: what it has used, divided by its weight. Of those that stand in the queue
//! the one with least goes next, and what its turn has cost is added afterwards, since nobody knows it
//! before. So of two that stand, the one behind goes first, and neither gets ahead of the other by more
//! than one turn of its own, however long turns are.
//!
//! The queue has a *clock*, which no account of who stands is behind. Who comes begins there, unless its
//! account is ahead: nobody saves up what it did not want, and everybody keeps its *debt*, which is what
//! an account is ahead of the clock. The clock follows the least account of those that stand, at most
//! twice as fast as the one at turn is charged, and goes on with time while nobody stands. So a debt is
//! never gone because the others happen to be absent at some moment. It is paid by what others get
//! meanwhile, or forgiven to who is alone (or idle, with all others) for as long as it owes; and who is
//! alone for longer comes to owe no more than one turn.
//!
//! Who comes and is ahead of the clock by less than a quantum goes next all the same: in a round of many
//! that have long turns, a short one would else wait for all those that have had nothing in this round.

use alloc::collections::VecDeque;

/// No debt is longer than this, for each of a member's weight. It is more than any turn takes, so that
/// whoever has long turns pays for them; and a turn in which the kernel took the processor away for
/// minutes keeps nobody from its share for longer than a person notices.
pub(super) const DEBT_NS_MAX: u64 = 100_000_000;

/// What a member has used.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Account {
    weight: u64,
    /// Of one nanosecond for each of its weight.
    at_ns: u64,
    /// What was used and has not made a whole nanosecond for each of its weight yet.
    rest_ns: u64,
    stands: bool,
}

impl Account {
    /// Of somebody of whom nothing is known but that it begins at `at_ns`, or at the clock if that is later.
    pub(super) fn new(weight: u32, at_ns: u64) -> Self {
        Self { weight: u64::from(weight.max(1)), at_ns, rest_ns: 0, stands: false }
    }

    /// What is to be charged for so much.
    const fn share(&mut self, used_ns: u64) -> u64 {
        // Most weights are one, and a division takes longer than all the rest of a charge.
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

/// Where somebody stands.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Place {
    /// Its account, or the clock.
    at_ns: u64,
    /// It has had a turn since it came: of two accounts alike, who has just come goes first.
    served: bool,
    who: u32,
}

impl Place {
    const fn key(&self) -> (u64, bool) {
        (self.at_ns, self.served)
    }
}

/// Members that want a turn. Their accounts are kept by whoever has the queue.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Queue {
    quantum_ns: u64,
    /// Sorted, who goes next first: needs no memory once it has grown, and moves little at an insertion.
    places: VecDeque<Place>,
    clock_ns: u64,
    /// When the last one left.
    empty_since_ns: u64,
}

impl Queue {
    pub(super) const fn new(quantum_ns: u64) -> Self {
        Self { quantum_ns, places: VecDeque::new(), clock_ns: 0, empty_since_ns: 0 }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.places.is_empty()
    }

    /// Whose turn it is.
    pub(super) fn first(&self) -> Option<u32> {
        self.places.front().map(|place| place.who)
    }

    /// Somebody wants turns who does not stand yet.
    pub(super) fn enter(&mut self, who: u32, account: &mut Account, now_ns: u64) {
        if self.places.is_empty() {
            let passed_ns = now_ns.saturating_sub(self.empty_since_ns);
            self.clock_ns = self.clock_ns.saturating_add(passed_ns);
        }
        account.at_ns = account.at_ns.max(self.clock_ns);
        account.stands = true;
        let owes_ns = (account.at_ns - self.clock_ns).saturating_mul(account.weight);
        let at_ns = if owes_ns < self.quantum_ns { self.clock_ns } else { account.at_ns };
        self.insert(Place { at_ns, served: false, who });
    }

    /// Somebody wants none any more. It keeps its debt.
    pub(super) fn leave(&mut self, who: u32, account: &mut Account, now_ns: u64) {
        if core::mem::replace(&mut account.stands, false) {
            self.remove(who);
            self.empty_since_ns = now_ns;
        }
    }

    /// Until now somebody had a turn, though he may not stand any more.
    pub(super) fn left_by(&mut self, now_ns: u64) {
        if self.places.is_empty() {
            self.empty_since_ns = now_ns.max(self.empty_since_ns);
        }
    }

    /// Somebody has used so much, at its turn or otherwise.
    pub(super) fn charge(&mut self, who: u32, account: &mut Account, used_ns: u64) {
        let before_ns = account.at_ns.max(self.clock_ns);
        let share_ns = account.share(used_ns);
        let most_ns = self.clock_ns.saturating_add(DEBT_NS_MAX);
        account.at_ns = before_ns.saturating_add(share_ns).min(most_ns);
        if account.stands {
            self.put_back(Place { at_ns: account.at_ns, served: true, who });
        }
        // Not past where this turn began: who comes now may have come while it went on.
        let next_ns = self.places.front().map_or(before_ns, |place| place.at_ns);
        let twice_ns = self.clock_ns.saturating_add(share_ns).saturating_add(share_ns);
        self.clock_ns = self.clock_ns.max(twice_ns.min(before_ns).min(next_ns));
    }

    /// Puts somebody who stands where it stands now.
    fn put_back(&mut self, place: Place) {
        let before_all = self.places.get(1).is_none_or(|next| next.key() > place.key());
        match self.places.front_mut() {
            // Most are alone.
            Some(first) if first.who == place.who && before_all => *first = place,
            _ => {
                self.remove(place.who);
                self.insert(place);
            }
        }
    }

    fn insert(&mut self, place: Place) {
        // Most that had a turn go to the end, and most that come to the front.
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

    /// A queue in which the first so many stand.
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
    fn who_comes_and_owes_less_than_a_quantum_goes_next() {
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
    fn what_a_weight_does_not_divide_is_charged_later() {
        let (mut queue, mut accounts) = queue(&[1000]);
        (0..2500).for_each(|_| queue.charge(0, &mut accounts[0], 1));
        assert_eq!((accounts[0].at_ns, accounts[0].rest_ns), (2, 500));
    }

    #[test]
    fn a_debt_is_bounded_and_no_number_overflows() {
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
    fn a_debt_is_forgiven_to_who_is_alone_or_idle_for_as_long() {
        let (mut queue, mut accounts) = queue(&[1, 1]);
        queue.charge(0, &mut accounts[0], 50_000);
        queue.leave(1, &mut accounts[1], 0);
        let owes = |queue: &Queue, accounts: &[Account]| accounts[0].at_ns - queue.clock_ns;
        assert_eq!(owes(&queue, &accounts), 50_000);
        (0..20).for_each(|_| queue.charge(0, &mut accounts[0], 1000));
        assert_eq!(owes(&queue, &accounts), 30_000);
        (0..100).for_each(|_| queue.charge(0, &mut accounts[0], 1000));
        assert_eq!(owes(&queue, &accounts), 1000, "the turn in which others may have come");
        queue.charge(0, &mut accounts[0], 50_000);
        queue.leave(0, &mut accounts[0], 100);
        queue.enter(1, &mut accounts[1], 20_100);
        assert_eq!(owes(&queue, &accounts), 30_000);
    }
}
