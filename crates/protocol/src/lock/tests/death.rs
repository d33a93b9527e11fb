//! What is left of a dead node's locks, waits and delegations.

use super::*;

scenarios! {
    locks_and_waits_of_a_dead_node_are_gone [DeadStillHold]
    a_dead_delegate_leaves_the_line_to_its_home [DeadDelegateKeeps]
    a_delegate_that_dies_while_it_returns_leaves_the_line_to_its_home [DeadDelegateKeeps]
    a_dead_home_voids_its_locks_and_fails_its_waiters []
    a_dead_home_voids_what_was_delegated []
    a_cycle_through_a_dead_node_is_none []
    messages_of_a_dead_node_are_ignored []
    upgrade_is_granted_when_the_other_reader_dies [DeadStillHold]
    next_writer_after_a_dead_holder_is_notified_once [AbandonedForgotten]
    next_holder_after_a_dead_delegate_is_notified [AbandonedForgotten DeadDelegateUnmarked]
    undone_lock_notifies_the_next_holder [UndoneTellsNobody]
    cancelled_grant_notifies_the_next_holder [UndoneTellsNobody]
    a_marked_line_is_neither_delegated_nor_lent []
    freed_memory_reports_no_dead_holder []
}

fn locks_and_waits_of_a_dead_node_are_gone(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, R);
    cluster.lock(session(2, 1), at, ALL, R);
    let dying = cluster.lock(session(1, 2), at, ALL, W);
    let reader = cluster.lock(session(3, 1), at, ALL, R);
    let writer = cluster.lock(session(0, 1), at, ALL, W);
    cluster.kill(1);
    cluster.settle();
    assert!(cluster.waits(dying) && cluster.is_locked(reader) && cluster.waits(writer));
    cluster.unlock(session(2, 1), at, ALL, R);
    cluster.unlock(session(3, 1), at, ALL, R);
    assert!(cluster.is_locked(writer));
}

fn a_dead_delegate_leaves_the_line_to_its_home(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    cluster.kill(1);
    let next = cluster.lock(session(2, 1), at, ALL, W);
    assert!(cluster.is_locked(next));
}

fn a_delegate_that_dies_while_it_returns_leaves_the_line_to_its_home(setup: ScenarioSetup) {
    // The number of messages of the return that arrived.
    for delivered in 0..4 {
        let mut cluster = LockNetwork::new(setup, 3);
        let at = line(0, 0);
        cluster.make_delegate(1, at);
        cluster.lock(session(1, 1), at, ALL, W);
        cluster.lock(session(1, 2), at, ALL, W);
        let remote = cluster.issue(session(2, 1), at, ALL, lock(W));
        cluster.deliver(2, 0, Class::Request);
        let own = cluster.issue(session(0, 1), at, ALL, lock(W));
        cluster.deliver(0, 1, Class::Forward);
        for _ in 0..delivered {
            cluster.deliver(1, 0, Class::Reply);
        }
        cluster.kill(1);
        cluster.settle();
        assert!(cluster.is_locked(remote) && cluster.waits(own), "after {delivered} messages");
        cluster.unlock(session(2, 1), at, ALL, W);
        assert!(cluster.is_locked(own));
    }
}

fn a_dead_home_voids_its_locks_and_fails_its_waiters(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, W);
    let waiters = [1, 2].map(|node| cluster.lock(session(node, 2), at, ALL, W));
    let cancelled = cluster.issue(session(2, 3), at, ALL, lock(W));
    cluster.cancel(cancelled);
    cluster.kill(0);
    for waiter in waiters {
        assert_eq!(cluster.failure(waiter), Some(ErrorCode::NodeLost));
    }
    for action in [Action::Unlock(W), lock(W), try_lock(R), UPGRADE] {
        let late = cluster.done(session(1, 1), at, ALL, action);
        assert_eq!(cluster.failure(late), Some(ErrorCode::NodeLost), "{action:?}");
    }
    let elsewhere = cluster.lock(session(1, 1), line(2, 0), ALL, W);
    assert!(cluster.is_locked(elsewhere));
}

fn a_dead_home_voids_what_was_delegated(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, R);
    let waiter = cluster.lock(session(1, 2), at, ALL, W);
    cluster.kill(0);
    assert_eq!(cluster.failure(waiter), Some(ErrorCode::NodeLost));
    assert!(!cluster.is_delegate(1, at));
    cluster.close(session(1, 1));
    assert!(cluster.nodes[1].lines.is_empty());
}

fn a_cycle_through_a_dead_node_is_none(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let (one, two) = (line(2, 0), line(3, 0));
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(1, 1), two, ALL, W);
    let first = cluster.issue(session(0, 1), two, ALL, lock(W));
    let second = cluster.issue(session(1, 1), one, ALL, lock(W));
    cluster.deliver(0, 3, Class::Request);
    cluster.deliver(1, 2, Class::Request);
    cluster.kill(1);
    cluster.settle();
    assert!(cluster.is_locked(first) && cluster.waits(second));
}

fn messages_of_a_dead_node_are_ignored(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    let request = LockMessage::Request {
        line: at,
        range: ALL,
        ask: Ask::Lock { mode: W, patience: Patience::Wait },
        session: session(1, 1),
        ticket: farside_base::Ticket(1),
        birth: 1,
        holds: false,
    };
    cluster.kill(1);
    assert_eq!(cluster.forge(1, 0, request), Ok(()));
    let own = cluster.lock(session(0, 1), at, ALL, W);
    assert!(cluster.is_locked(own));
}

fn upgrade_is_granted_when_the_other_reader_dies(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, R);
    cluster.lock(session(2, 1), at, ALL, R);
    let upgrade = cluster.done(session(2, 1), at, ALL, UPGRADE);
    cluster.kill(1);
    cluster.settle();
    assert!(cluster.is_locked(upgrade));
}

/// Node 1 dies while it holds the range for writing.
fn abandon(cluster: &mut LockNetwork, at: LineAddress, range: Range) {
    let held = cluster.lock(session(1, 1), at, range, W);
    assert_eq!(cluster.was_notified(held), Some(false));
    cluster.kill(1);
    cluster.settle();
}

fn next_writer_after_a_dead_holder_is_notified_once(setup: ScenarioSetup) {
    for node in [0, 2] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        abandon(&mut cluster, at, range(8, 16));
        let mut told = |range, mode| {
            let operation = cluster.lock(session(node, 1), at, range, mode);
            cluster.unlock(session(node, 1), at, range, mode);
            cluster.was_notified(operation)
        };
        assert_eq!(told(range(0, 8), W), Some(false), "other bytes");
        assert_eq!(told(range(8, 8), R), Some(true), "a reader sees it");
        assert_eq!(told(range(8, 8), W), Some(true), "and takes nothing along");
        assert_eq!(told(range(8, 8), W), Some(false));
        assert_eq!(told(ALL, W), Some(true), "the rest");
        assert_eq!(told(ALL, W), Some(false));
    }
    // Readers leave no data partly changed; an upgrade may.
    for upgraded in [false, true] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        cluster.lock(session(1, 1), at, ALL, R);
        if upgraded {
            cluster.done(session(1, 1), at, ALL, UPGRADE);
        }
        cluster.kill(1);
        let reader = cluster.lock(session(2, 1), at, ALL, R);
        let writer = cluster.done(session(2, 1), at, ALL, UPGRADE);
        assert_eq!(cluster.was_notified(reader), Some(upgraded));
        assert_eq!(cluster.was_notified(writer), Some(upgraded));
        cluster.unlock(session(2, 1), at, ALL, W);
        let next = cluster.lock(session(0, 1), at, ALL, W);
        assert_eq!(cluster.was_notified(next), Some(false));
    }
}

fn next_holder_after_a_dead_delegate_is_notified(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, range(8, 8), W);
    cluster.kill(1);
    let next = cluster.lock(session(2, 1), at, ALL, W);
    assert_eq!(cluster.was_notified(next), Some(true));
}

fn undone_lock_notifies_the_next_holder(setup: ScenarioSetup) {
    for node in [0, 2] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        abandon(&mut cluster, at, ALL);
        for _ in 0..2 {
            let operation = cluster.lock(session(node, 1), at, ALL, W);
            assert_eq!(cluster.was_notified(operation), Some(true));
            cluster.done(session(node, 1), at, ALL, Action::Undo(W));
        }
    }
}

fn cancelled_grant_notifies_the_next_holder(setup: ScenarioSetup) {
    for upgrade in [false, true] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        abandon(&mut cluster, at, ALL);
        let action = if upgrade { UPGRADE } else { lock(W) };
        if upgrade {
            cluster.lock(session(2, 1), at, ALL, R);
        }
        let operation = cluster.issue(session(2, 1), at, ALL, action);
        cluster.deliver(2, 0, Class::Request);
        cluster.cancel(operation);
        cluster.settle();
        if upgrade {
            cluster.unlock(session(2, 1), at, ALL, R);
        }
        let next = cluster.lock(session(0, 1), at, ALL, W);
        assert_eq!(cluster.was_notified(next), Some(true));
    }
}

fn a_marked_line_is_neither_delegated_nor_lent(setup: ScenarioSetup) {
    let mut cluster =
        LockNetwork::with_limits(setup, 3, Limits { lock_delegate_after: 1, ..LIMITS });
    let at = line(0, 0);
    // Held by the home too, so that it is not delegated.
    cluster.lock(session(0, 1), at, range(0, 8), R);
    abandon(&mut cluster, at, range(8, 8));
    cluster.unlock(session(0, 1), at, range(0, 8), R);
    assert_eq!(cluster.nodes[0].lendable(at), None);
    cluster.lock(session(2, 1), at, range(0, 8), W);
    assert!(!cluster.is_delegate(2, at));
    let told = cluster.lock(session(2, 1), at, range(8, 8), W);
    assert!(cluster.was_notified(told) == Some(true) && !cluster.is_delegate(2, at));
    cluster.unlock(session(2, 1), at, range(0, 8), W);
    cluster.unlock(session(2, 1), at, range(8, 8), W);
    cluster.lock(session(2, 1), at, range(8, 8), W);
    assert!(cluster.is_delegate(2, at));
}

fn freed_memory_reports_no_dead_holder(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    abandon(&mut cluster, at, ALL);
    cluster.step(0, LockEvent::Retire { line: at }).unwrap();
    let next = cluster.lock(session(2, 1), at, ALL, W);
    assert_eq!(cluster.was_notified(next), Some(false));
}
