//! A home that leaves and will return.

use super::*;

scenarios! {
    draining_home_serves_holders_and_refuses_others [DrainGrantsQueue]
    draining_home_recalls_its_delegations [DrainEndsHeld]
    waiters_that_come_with_a_return_are_refused [DrainGrantsQueue]
    waiters_that_come_after_a_release_are_refused [DrainGrantsQueue]
    draining_home_waits_for_its_own_sessions [DrainEndsHeld]
    draining_home_grants_a_session_that_holds_a_lock_elsewhere []
    deadlock_at_a_draining_home_is_found [ProbeNotForwarded]
    closed_home_refuses_all_and_takes_no_lock []
    draining_home_lends_and_delegates_nothing []
    other_homes_are_served_while_a_home_drains []
}

impl LockNetwork {
    fn drain(&mut self) {
        self.step(0, LockEvent::Drain).unwrap();
        self.settle();
    }

    fn is_unused(&self) -> bool {
        self.nodes[0].is_home_unused()
    }
}

fn draining_home_serves_holders_and_refuses_others(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let (at, other) = (line(0, 0), line(0, 1));
    let holder = session(1, 1);
    cluster.lock(holder, at, ALL, R);
    let queued = cluster.lock(session(2, 1), at, ALL, W);
    cluster.drain();
    assert_eq!(cluster.failure(queued), Some(ErrorCode::HomeAway));
    for action in [lock(R), lock(W), try_lock(R)] {
        let late = cluster.done(session(3, 1), at, ALL, action);
        assert_eq!(cluster.failure(late), Some(ErrorCode::HomeAway));
    }
    let upgrade = cluster.done(holder, at, ALL, UPGRADE);
    let nested = cluster.lock(holder, other, ALL, W);
    assert!(cluster.is_locked(upgrade) && cluster.is_locked(nested));
    cluster.unlock(holder, at, ALL, W);
    assert!(!cluster.is_unused());
    cluster.unlock(holder, other, ALL, W);
    assert!(cluster.is_unused());
    let again = cluster.lock(holder, at, ALL, W);
    assert_eq!(cluster.failure(again), Some(ErrorCode::HomeAway), "it holds nothing any more");
}

fn draining_home_recalls_its_delegations(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let (used, idle) = (line(0, 0), line(0, 1));
    cluster.make_delegate(1, used);
    cluster.make_delegate(1, idle);
    cluster.lock(session(1, 1), used, ALL, W);
    cluster.step(0, LockEvent::Drain).unwrap();
    assert!(!cluster.is_unused(), "two delegations are elsewhere");
    cluster.settle();
    assert!(!cluster.is_delegate(1, used) && !cluster.is_delegate(1, idle));
    assert!(!cluster.is_unused(), "a lock is held");
    cluster.unlock(session(1, 1), used, ALL, W);
    assert!(cluster.is_unused());
}

fn waiters_that_come_with_a_return_are_refused(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, R);
    let waits = cluster.lock(session(1, 2), at, ALL, W);
    let limbo = cluster.issue(session(2, 1), at, ALL, lock(W));
    cluster.deliver(2, 0, Class::Request);
    let upgrade = cluster.issue(session(1, 1), at, ALL, UPGRADE);
    cluster.drain();
    assert_eq!(cluster.failure(waits), Some(ErrorCode::HomeAway));
    assert_eq!(cluster.failure(limbo), Some(ErrorCode::HomeAway));
    assert!(cluster.is_locked(upgrade));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_unused());
}

fn waiters_that_come_after_a_release_are_refused(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    let waits = cluster.lock(session(1, 2), at, ALL, W);
    cluster.step(0, LockEvent::Drain).unwrap();
    cluster.deliver(0, 1, Class::Forward);
    cluster.issue(session(1, 1), at, ALL, Action::Unlock(W));
    // The release overtakes the return.
    cluster.deliver(1, 0, Class::Request);
    cluster.settle();
    assert_eq!(cluster.failure(waits), Some(ErrorCode::HomeAway));
    assert!(cluster.is_unused());
}

fn draining_home_waits_for_its_own_sessions(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    let holder = session(0, 1);
    cluster.lock(holder, at, ALL, W);
    let queued = cluster.lock(session(0, 2), at, ALL, W);
    cluster.drain();
    assert_eq!(cluster.failure(queued), Some(ErrorCode::HomeAway));
    let late = cluster.lock(session(0, 3), line(0, 1), ALL, W);
    assert_eq!(cluster.failure(late), Some(ErrorCode::HomeAway));
    assert!(!cluster.is_unused());
    cluster.close(holder);
    assert!(cluster.is_unused());
}

fn draining_home_grants_a_session_that_holds_a_lock_elsewhere(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let (here, elsewhere) = (line(0, 0), line(2, 0));
    let (one, other) = (session(1, 1), session(1, 2));
    cluster.lock(one, elsewhere, ALL, W);
    cluster.lock(other, here, ALL, W);
    let behind = cluster.lock(other, elsewhere, ALL, W);
    cluster.drain();
    // If it were refused, the session that the home waits for would wait for this one.
    let nested = cluster.lock(one, line(0, 1), ALL, W);
    assert!(cluster.is_locked(nested));
    cluster.unlock(one, line(0, 1), ALL, W);
    cluster.unlock(one, elsewhere, ALL, W);
    assert!(cluster.is_locked(behind));
    cluster.unlock(other, here, ALL, W);
    assert!(cluster.is_unused());
}

fn deadlock_at_a_draining_home_is_found(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let lines = [line(0, 0), line(0, 1)];
    let (old, young) = (session(1, 1), session(2, 1));
    cluster.lock(old, lines[0], ALL, W);
    cluster.lock(young, lines[1], ALL, W);
    let first = cluster.lock(old, lines[1], ALL, W);
    cluster.drain();
    assert!(cluster.waits(first), "it holds a lock");
    let second = cluster.lock(young, lines[0], ALL, W);
    assert_eq!(cluster.failure(second), Some(ErrorCode::Deadlock));
    cluster.unlock(young, lines[1], ALL, W);
    assert!(cluster.is_locked(first));
}

fn closed_home_refuses_all_and_takes_no_lock(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    let (one, other) = (session(1, 1), session(2, 1));
    cluster.lock(one, at, ALL, R);
    cluster.lock(other, at, ALL, R);
    cluster.drain();
    let upgrade = cluster.done(one, at, ALL, UPGRADE);
    assert!(cluster.waits(upgrade));
    cluster.step(0, LockEvent::CloseHome).unwrap();
    cluster.settle();
    assert_eq!(cluster.failure(upgrade), Some(ErrorCode::HomeAway));
    for action in [lock(W), try_lock(R), TRY_UPGRADE] {
        let at = if action == TRY_UPGRADE { at } else { line(0, 1) };
        let late = cluster.done(one, at, ALL, action);
        assert_eq!(cluster.failure(late), Some(ErrorCode::HomeAway));
    }
    cluster.unlock(one, at, ALL, R);
    cluster.unlock(other, at, ALL, R);
    assert!(cluster.is_unused());
}

fn draining_home_lends_and_delegates_nothing(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let (at, other) = (line(0, 0), line(0, 1));
    let (own, remote) = (session(0, 1), session(1, 1));
    cluster.lock(own, line(0, 2), ALL, W);
    cluster.lock(remote, line(0, 3), ALL, W);
    assert!(cluster.nodes[0].lendable(line(0, 2)).is_none(), "it is held");
    cluster.drain();
    for _ in 0..4 {
        cluster.lock(own, at, ALL, W);
        cluster.unlock(own, at, ALL, W);
        assert!(cluster.nodes[0].lendable(at).is_none());
        cluster.lock(remote, other, ALL, W);
        cluster.unlock(remote, other, ALL, W);
        assert!(!cluster.is_delegate(1, other));
    }
}

fn other_homes_are_served_while_a_home_drains(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(1, 0);
    cluster.make_delegate(0, at);
    cluster.drain();
    assert!(cluster.is_delegate(0, at) && cluster.is_unused());
    let (first, second) = (session(0, 1), session(1, 1));
    let here = cluster.lock(first, at, ALL, W);
    let there = cluster.lock(second, at, ALL, W);
    assert!(cluster.is_locked(here) && cluster.waits(there));
    cluster.unlock(first, at, ALL, W);
    assert!(cluster.is_locked(there));
}
