//! Sessions: what they may hold, how they wait, how they end.

use super::*;

scenarios! {
    unlocking_what_is_not_held_fails [UnlockAnyMode]
    unlocking_needs_the_session_that_locked []
    closing_a_session_releases_everything []
    closing_a_session_at_a_delegate_releases_everything []
    a_session_waits_for_one_lock_at_a_time []
    a_deferred_request_can_be_cancelled []
    unlocking_ends_the_upgrade_that_waits []
    a_session_holds_a_bounded_number_of_locks []
    a_node_has_a_bounded_number_of_sessions []
    a_cancelled_wait_counts_no_more []
    the_memory_of_a_line_in_use_does_not_move []
}

fn unlocking_what_is_not_held_fails(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    for home in [0, 1] {
        let (at, own) = (line(home, 0), session(1, 1));
        let wrong = [(ALL, W), (ALL, R), (range(0, 8), R), (range(0, 16), W), (range(1, 7), W)];
        for (range, mode) in wrong {
            let never = cluster.done(own, at, range, Action::Unlock(mode));
            assert_eq!(cluster.failure(never), Some(ErrorCode::NotLocked));
        }
        cluster.lock(own, at, range(0, 8), W);
        for (range, mode) in wrong {
            let other = cluster.done(own, at, range, Action::Unlock(mode));
            assert_eq!(cluster.failure(other), Some(ErrorCode::NotLocked), "{range:?} {mode:?}");
        }
        let upgrade = cluster.done(own, at, range(0, 8), UPGRADE);
        assert_eq!(cluster.failure(upgrade), Some(ErrorCode::NotLocked), "it is no read lock");
        cluster.unlock(own, at, range(0, 8), W);
        let twice = cluster.done(own, at, range(0, 8), Action::Unlock(W));
        assert_eq!(cluster.failure(twice), Some(ErrorCode::NotLocked));
    }
}

fn unlocking_needs_the_session_that_locked(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, W);
    let other = cluster.done(session(1, 2), at, ALL, Action::Unlock(W));
    assert_eq!(cluster.failure(other), Some(ErrorCode::NotLocked));
    let remote = cluster.done(session(0, 1), at, ALL, Action::Unlock(W));
    assert_eq!(cluster.failure(remote), Some(ErrorCode::NotLocked));
}

fn closing_a_session_releases_everything(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    let closing = session(1, 1);
    cluster.lock(closing, one, range(0, 8), W);
    cluster.lock(closing, one, range(8, 8), R);
    cluster.lock(closing, two, ALL, W);
    cluster.lock(session(2, 1), one, range(16, 8), W);
    let waiting = cluster.lock(closing, one, range(16, 8), W);
    let deferred = cluster.lock(closing, one, range(24, 8), W);
    let others = [
        cluster.lock(session(0, 1), one, range(0, 16), W),
        cluster.lock(session(2, 2), two, ALL, W),
        cluster.lock(session(0, 2), one, range(16, 8), R),
    ];
    assert!(others.iter().all(|other| cluster.waits(*other)));
    cluster.close(closing);
    cluster.settle();
    for operation in [waiting, deferred] {
        assert!(matches!(cluster.result(operation), Some(LockEffect::Cancelled { .. })));
    }
    assert!(cluster.is_locked(others[0]) && cluster.is_locked(others[1]));
    cluster.unlock(session(2, 1), one, range(16, 8), W);
    assert!(cluster.is_locked(others[2]));
    cluster.close(closing);
}

fn closing_a_session_at_a_delegate_releases_everything(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, range(0, 8), R);
    cluster.lock(session(1, 1), at, range(0, 8), R);
    cluster.lock(session(1, 2), at, range(0, 16), R);
    let upgrade = cluster.done(session(1, 2), at, range(0, 16), UPGRADE);
    let writer = cluster.lock(session(1, 3), at, ALL, W);
    cluster.close(session(1, 1));
    assert!(cluster.is_locked(upgrade) && cluster.waits(writer));
    cluster.close(session(1, 2));
    assert!(cluster.is_locked(writer));
}

fn a_session_waits_for_one_lock_at_a_time(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    cluster.lock(session(0, 1), one, ALL, W);
    let first = cluster.lock(session(1, 1), one, ALL, W);
    let second = cluster.lock(session(1, 1), two, range(0, 8), W);
    let third = cluster.lock(session(1, 1), two, range(0, 8), W);
    let tried = cluster.done(session(1, 1), two, range(8, 8), try_lock(W));
    assert!(cluster.waits(first) && cluster.waits(second) && cluster.waits(third));
    assert!(cluster.is_locked(tried), "a try waits for nothing");
    cluster.unlock(session(0, 1), one, ALL, W);
    assert!(cluster.is_locked(first) && cluster.is_locked(second));
    assert_eq!(cluster.failure(third), Some(ErrorCode::Deadlock), "it has that lock");
}

fn a_deferred_request_can_be_cancelled(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    cluster.lock(session(0, 1), one, ALL, W);
    let first = cluster.lock(session(1, 1), one, ALL, W);
    let second = cluster.lock(session(1, 1), two, ALL, W);
    let third = cluster.lock(session(1, 1), two, range(0, 8), R);
    cluster.cancel(second);
    cluster.cancel(first);
    assert!(cluster.is_locked(third), "at once, though the home has not answered");
    cluster.settle();
    for operation in [first, second] {
        assert!(matches!(cluster.result(operation), Some(LockEffect::Cancelled { .. })));
    }
}

fn unlocking_ends_the_upgrade_that_waits(setup: ScenarioSetup) {
    for limits in [LIMITS, AT_HOME] {
        let mut cluster = LockNetwork::with_limits(setup, 2, limits);
        let at = line(0, 0);
        cluster.lock(session(1, 1), at, ALL, R);
        cluster.lock(session(1, 2), at, ALL, R);
        let upgrade = cluster.done(session(1, 1), at, ALL, UPGRADE);
        assert!(cluster.waits(upgrade));
        cluster.unlock(session(1, 1), at, ALL, R);
        assert_eq!(cluster.failure(upgrade), Some(ErrorCode::NotLocked));
        let other = cluster.done(session(1, 2), at, ALL, UPGRADE);
        assert!(cluster.is_locked(other));
    }
}

fn a_session_holds_a_bounded_number_of_locks(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let own = session(1, 1);
    for number in 0..4 {
        let held = cluster.lock(own, line(0, number), ALL, R);
        assert!(cluster.is_locked(held));
    }
    let more = cluster.lock(own, line(0, 4), ALL, R);
    assert_eq!(cluster.failure(more), Some(ErrorCode::TooManyLocks));
    let upgrade = cluster.done(own, line(0, 0), ALL, UPGRADE);
    assert!(cluster.is_locked(upgrade), "which adds none");
    cluster.unlock(own, line(0, 0), ALL, W);
    let more = cluster.lock(own, line(0, 4), ALL, R);
    assert!(cluster.is_locked(more));
}

fn a_node_has_a_bounded_number_of_sessions(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 1);
    for number in 0..9 {
        let next = cluster.lock(session(0, number), line(0, 0), ALL, R);
        assert_eq!(cluster.is_locked(next), number < 8);
        if number == 8 {
            assert_eq!(cluster.failure(next), Some(ErrorCode::TooManySessions));
        }
    }
    cluster.close(session(0, 3));
    let next = cluster.lock(session(0, 9), line(0, 0), ALL, R);
    assert!(cluster.is_locked(next));
}

fn a_cancelled_wait_counts_no_more(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    cluster.lock(session(0, 1), line(0, 0), ALL, W);
    for _ in 0..9 {
        let waiting = cluster.issue(session(1, 1), line(0, 0), ALL, lock(W));
        cluster.cancel(waiting);
    }
    cluster.settle();
    assert!(cluster.nodes[1].lines.is_empty());
}

/// The uncontended path allocates nothing: the memory of a line's entry is kept between uses.
fn the_memory_of_a_line_in_use_does_not_move(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    for node in [1, 0] {
        let before = std::format!("{:?}", cluster.nodes[usize::from(node)].lines.capacity());
        for _ in 0..9 {
            cluster.issue(session(node, 1), line(node, 0), ALL, lock(W));
            cluster.issue(session(node, 1), line(node, 0), ALL, Action::Unlock(W));
        }
        let after = std::format!("{:?}", cluster.nodes[usize::from(node)].lines.capacity());
        assert_eq!(before, after);
    }
}
