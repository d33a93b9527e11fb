//! Loans: what is lent, and what comes back.

use super::super::own::TOKENS_LOW;
use super::super::{Hold, Loan};
use super::*;

scenarios! {
    a_loan_comes_back_with_its_lock [LoanForgetsHolder]
    tokens_of_a_loan_are_granted_once [LoanTokensAgain]
    only_an_idle_line_is_lent [LoanWhileHeld]
    a_line_that_a_deferred_request_names_is_not_lent [LoanDespiteDeferred]
    a_delegate_keeps_tokens_for_the_way_back []
    lent_lines_count_as_kept_and_stay []
    a_lock_on_loan_counts_when_it_comes_back [LoanForgetsHolder]
    a_cycle_through_locks_on_loan_has_a_victim []
    use_of_a_loan_is_use_by_this_node []
    a_loan_of_a_dead_home_s_line_ends_first []
}

/// Acts as a runtime with a loan.
struct Borrowed {
    node: u16,
    at: LineAddress,
    loan: Loan,
    used: u32,
    held: Option<Hold>,
}

impl Borrowed {
    fn new(cluster: &mut LockNetwork, node: u16, at: LineAddress) -> Self {
        let loan = cluster.nodes[usize::from(node)].lend(at).expect("an idle line");
        assert_eq!(cluster.nodes[usize::from(node)].invariants(), Ok(()));
        Self { node, at, loan, used: 0, held: None }
    }

    fn lock(&mut self, cluster: &mut LockNetwork, session: SessionId, range: Range, mode: Mode) {
        assert!(self.held.is_none() && self.used < self.loan.tokens);
        let token = self.loan.first.0 + u64::from(self.used);
        let last = cluster.tokens.insert(self.at, token).unwrap_or_default();
        assert!(token > last, "token {token} after {last}");
        self.used += 1;
        self.held = Some(Hold { session, range, mode });
        cluster.held.push(GrantedLock { session, line: self.at, range, mode });
    }

    fn unlock(&mut self, cluster: &mut LockNetwork) {
        let Hold { session, range, mode } = self.held.take().expect("locked before");
        cluster.held_no_more(GrantedLock { session, line: self.at, range, mode });
    }

    fn end(self, cluster: &mut LockNetwork) {
        let node = &mut cluster.nodes[usize::from(self.node)];
        node.take_back(self.at, self.used, self.held);
        assert_eq!(node.invariants(), Ok(()), "{node:#?}");
    }
}

/// An unused line for which node 1 arbitrates: its own, or delegated to it.
fn idle_line(cluster: &mut LockNetwork, home: u16, number: u64) -> LineAddress {
    let at = line(home, number);
    if home == 1 {
        cluster.lock(session(1, 7), at, ALL, W);
        cluster.unlock(session(1, 7), at, ALL, W);
    } else {
        cluster.make_delegate(1, at);
    }
    at
}

fn a_loan_comes_back_with_its_lock(setup: ScenarioSetup) {
    for home in [0, 1] {
        let mut cluster = LockNetwork::new(setup, 3);
        let at = idle_line(&mut cluster, home, 0);
        let mut borrowed = Borrowed::new(&mut cluster, 1, at);
        borrowed.lock(&mut cluster, session(1, 1), range(0, 8), W);
        borrowed.unlock(&mut cluster);
        borrowed.lock(&mut cluster, session(1, 2), range(8, 8), R);
        borrowed.end(&mut cluster);
        let reader = cluster.lock(session(2, 1), at, range(8, 8), R);
        let writer = cluster.lock(session(0, 1), at, ALL, W);
        assert!(cluster.is_locked(reader) && cluster.waits(writer));
        cluster.unlock(session(1, 2), at, range(8, 8), R);
        cluster.unlock(session(2, 1), at, range(8, 8), R);
        assert!(cluster.is_locked(writer));
    }
}

fn tokens_of_a_loan_are_granted_once(setup: ScenarioSetup) {
    for home in [0, 1] {
        let mut cluster = LockNetwork::new(setup, 2);
        let at = idle_line(&mut cluster, home, 0);
        for _ in 0..3 {
            let mut borrowed = Borrowed::new(&mut cluster, 1, at);
            for _ in 0..3 {
                borrowed.lock(&mut cluster, session(1, 1), ALL, W);
                borrowed.unlock(&mut cluster);
            }
            borrowed.end(&mut cluster);
            cluster.lock(session(1, 2), at, ALL, W);
            cluster.unlock(session(1, 2), at, ALL, W);
        }
    }
}

fn only_an_idle_line_is_lent(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let lendable =
        |cluster: &LockNetwork, at| [0, 1].map(|node| cluster.nodes[node].lendable(at).is_some());
    let at = line(1, 0);
    assert_eq!(lendable(&cluster, at), [false, false], "no node knows of it");
    cluster.lock(session(1, 1), at, range(0, 8), R);
    assert_eq!(lendable(&cluster, at), [false, false], "held");
    cluster.unlock(session(1, 1), at, range(0, 8), R);
    assert_eq!(lendable(&cluster, at), [false, true]);
    cluster.nodes[1].lend(at).expect("lendable");
    assert_eq!(lendable(&cluster, at), [false, false], "lent");
    cluster.nodes[1].take_back(at, 0, None);
    cluster.make_delegate(0, at);
    assert_eq!(lendable(&cluster, at), [true, false], "delegated");
    cluster.issue(session(1, 1), at, ALL, lock(W));
    assert_eq!(lendable(&cluster, at), [true, false], "recalled, which the delegate does not know");
    cluster.settle();
    cluster.unlock(session(1, 1), at, ALL, W);
    assert_eq!(lendable(&cluster, at), [false, true]);
    cluster.step(1, LockEvent::Retire { line: at }).unwrap();
    assert_eq!(lendable(&cluster, at), [false, false], "freed");
}

fn a_line_that_a_deferred_request_names_is_not_lent(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let (busy, idle) = (line(1, 0), line(1, 1));
    cluster.lock(session(1, 1), busy, ALL, W);
    cluster.lock(session(1, 2), idle, ALL, W);
    let first = cluster.lock(session(1, 3), busy, ALL, W);
    let deferred = cluster.lock(session(1, 3), idle, ALL, W);
    assert!(cluster.waits(first) && cluster.waits(deferred));
    cluster.unlock(session(1, 2), idle, ALL, W);
    let loan = cluster.nodes[1].lend(idle);
    cluster.unlock(session(1, 1), busy, ALL, W);
    assert!(cluster.is_locked(first) && cluster.is_locked(deferred));
    assert_eq!(loan, None);
}

fn a_delegate_keeps_tokens_for_the_way_back(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = idle_line(&mut cluster, 0, 0);
    let sent = cluster.sent;
    while cluster.nodes[1].lendable(at).is_some() {
        let mut borrowed = Borrowed::new(&mut cluster, 1, at);
        assert!(borrowed.loan.tokens <= 1 << 10, "the runtime processes no arrivals meanwhile");
        for _ in 0..borrowed.loan.tokens {
            borrowed.lock(&mut cluster, session(1, 1), ALL, W);
            borrowed.unlock(&mut cluster);
        }
        borrowed.end(&mut cluster);
    }
    cluster.lock(session(1, 1), at, ALL, W);
    assert!(cluster.sent > sent, "it asks to be recalled");
    assert!(TOKENS_LOW > 1 && !cluster.is_delegate(1, at));
    cluster.unlock(session(1, 1), at, ALL, W);
}

fn lent_lines_count_as_kept_and_stay(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let most = u64::from(LIMITS.lock_delegations_max);
    let mut loans = Vec::new();
    for number in 0..most {
        let at = idle_line(&mut cluster, [0, 1][number as usize % 2], number);
        loans.push(Borrowed::new(&mut cluster, 1, at));
    }
    let other = idle_line(&mut cluster, 1, most);
    assert_eq!(cluster.nodes[1].lendable(other), None, "no room");
    assert_eq!(cluster.nodes[1].lines.len() as u64, most, "and none to remember it");
    for mut borrowed in loans {
        borrowed.lock(&mut cluster, session(1, 1), ALL, W);
        let at = borrowed.at;
        borrowed.end(&mut cluster);
        cluster.unlock(session(1, 1), at, ALL, W);
    }
}

fn a_lock_on_loan_counts_when_it_comes_back(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let own = session(1, 1);
    for number in 0..4 {
        let at = idle_line(&mut cluster, 1, number);
        let mut borrowed = Borrowed::new(&mut cluster, 1, at);
        borrowed.lock(&mut cluster, own, ALL, W);
        assert_eq!(cluster.nodes[1].locks_of(own), number as u32);
        borrowed.end(&mut cluster);
    }
    let more = cluster.lock(own, line(1, 4), ALL, R);
    assert_eq!(cluster.failure(more), Some(ErrorCode::TooManyLocks));
    let waiting = cluster.lock(session(1, 2), line(1, 0), ALL, R);
    assert!(cluster.waits(waiting));
    cluster.close(own);
    assert!(cluster.is_locked(waiting));
    assert_eq!(cluster.nodes[1].locks_of(own), 0);
}

fn a_cycle_through_locks_on_loan_has_a_victim(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let lines = [idle_line(&mut cluster, 0, 0), idle_line(&mut cluster, 1, 1)];
    let mut loans = lines.map(|at| Borrowed::new(&mut cluster, 1, at));
    for (number, borrowed) in loans.iter_mut().enumerate() {
        borrowed.lock(&mut cluster, session(1, number as u64), ALL, W);
    }
    let [first, second] = loans;
    second.end(&mut cluster);
    let older = cluster.lock(session(1, 0), lines[1], ALL, W);
    first.end(&mut cluster);
    let younger = cluster.lock(session(1, 1), lines[0], ALL, W);
    let failures = [older, younger].map(|wait| cluster.failure(wait));
    assert!(failures.contains(&Some(ErrorCode::Deadlock)) && failures.contains(&None));
}

fn use_of_a_loan_is_use_by_this_node(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = idle_line(&mut cluster, 1, 0);
    cluster.lock(session(0, 1), at, ALL, W);
    cluster.unlock(session(0, 1), at, ALL, W);
    let mut borrowed = Borrowed::new(&mut cluster, 1, at);
    borrowed.lock(&mut cluster, session(1, 1), ALL, W);
    borrowed.unlock(&mut cluster);
    borrowed.end(&mut cluster);
    cluster.lock(session(0, 1), at, ALL, W);
    assert!(!cluster.is_delegate(0, at), "the other node was not alone");
    cluster.unlock(session(0, 1), at, ALL, W);
}

fn a_loan_of_a_dead_home_s_line_ends_first(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = idle_line(&mut cluster, 0, 0);
    let mut borrowed = Borrowed::new(&mut cluster, 1, at);
    borrowed.lock(&mut cluster, session(1, 1), ALL, W);
    borrowed.end(&mut cluster);
    cluster.kill(0);
    assert_eq!(cluster.nodes[1].locks_of(session(1, 1)), 0);
    let never = cluster.done(session(1, 1), at, ALL, Action::Unlock(W));
    assert_eq!(cluster.failure(never), Some(ErrorCode::NodeLost));
}
