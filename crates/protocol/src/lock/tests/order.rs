//! Who is granted what, and when, where the home decides.

use super::*;

scenarios! {
    overlapping_ranges_conflict_and_disjoint_ones_do_not [EqualRangesOnly WholeLine]
    readers_share_and_a_writer_excludes []
    a_try_is_answered_in_one_round_trip [TryWaits]
    a_denied_try_changes_nothing [DeniedTryUndoes TryWaits]
    a_denied_try_upgrade_keeps_the_read_lock [DeniedTryUndoes]
    an_upgrade_waits_for_the_other_readers_only []
    a_second_upgrader_is_refused_at_once [UpgradersWait]
    upgraders_of_disjoint_ranges_both_wait []
    a_newcomer_never_overtakes_a_waiter_it_conflicts_with [Barging]
    a_reader_joins_the_readers_that_wait []
    a_reader_joins_only_where_it_waits_itself []
    a_writer_is_overtaken_a_bounded_number_of_times [EndlessBatch]
    granted_in_the_order_of_arrival []
    nodes_take_turns_whatever_their_numbers_of_waiters [NodesUnequal]
    request_that_waits_for_other_bytes_lets_none_pass []
    cancelled_waiter_wakes_later_waiters [CancelWakesNobody]
    cancelled_remote_waiter_wakes_later_waiters [CancelWakesNobody]
    a_lock_cancelled_while_it_is_granted_is_released []
    an_upgrade_cancelled_while_it_is_granted_is_a_read_lock_again []
    next_request_after_a_cancelled_grant_is_granted []
    tokens_rise_and_use_all_their_bits [ShortTokens]
    a_retired_line_has_no_waiters []
}

fn overlapping_ranges_conflict_and_disjoint_ones_do_not(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    let first = cluster.lock(session(0, 1), at, range(8, 8), W);
    assert!(cluster.is_locked(first));
    for (start, bytes) in [(0, 8), (16, 1), (63, 1)] {
        let apart = cluster.lock(session(1, 1), at, range(start, bytes), W);
        assert!(cluster.is_locked(apart), "{start}, {bytes} bytes");
    }
    for (start, bytes) in [(15, 1), (8, 1), (0, 64), (7, 2), (15, 8), (9, 2)] {
        let across = cluster.done(session(1, 2), at, range(start, bytes), try_lock(R));
        assert_eq!(cluster.failure(across), Some(ErrorCode::Busy), "{start}, {bytes} bytes");
    }
}

fn readers_share_and_a_writer_excludes(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    for node in 0..3 {
        let reader = cluster.lock(session(node, 1), at, ALL, R);
        assert!(cluster.is_locked(reader));
    }
    let writer = cluster.lock(session(2, 2), at, range(4, 4), W);
    for node in 0..3 {
        assert!(cluster.waits(writer));
        cluster.unlock(session(node, 1), at, ALL, R);
    }
    assert!(cluster.is_locked(writer));
}

fn a_try_is_answered_in_one_round_trip(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, R);
    cluster.lock(session(1, 1), at, ALL, W);
    for action in [try_lock(R), try_lock(W)] {
        let sent = cluster.sent;
        let busy = cluster.done(session(2, 1), at, ALL, action);
        assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy), "though a blocked writer waits");
        assert_eq!(cluster.sent, sent + 2);
    }
    let sent = cluster.sent;
    let apart = cluster.done(session(2, 1), line(0, 1), ALL, try_lock(W));
    assert!(cluster.is_locked(apart));
    assert_eq!(cluster.sent, sent + 2);
}

/// The part of the lock state that must be unchanged: counters of tickets and ages may advance.
fn outline(cluster: &LockNetwork) -> Vec<std::string::String> {
    let lines = cluster.nodes.iter().map(|node| std::format!("{:?}", node.lines));
    lines.collect()
}

fn a_denied_try_changes_nothing(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, R);
    cluster.lock(session(1, 1), at, range(0, 8), R);
    cluster.lock(session(1, 2), at, range(32, 8), R);
    let before = outline(&cluster);
    let tries = [
        (session(2, 1), range(0, 8), try_lock(W)),
        (session(0, 2), range(0, 8), try_lock(W)),
        (session(1, 1), range(0, 8), TRY_UPGRADE),
        (session(1, 2), range(32, 8), TRY_UPGRADE),
        (session(0, 1), ALL, TRY_UPGRADE),
    ];
    for (session, range, action) in tries {
        let busy = cluster.done(session, at, range, action);
        assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
        assert_eq!(outline(&cluster), before, "{action:?} of {session:?}");
    }
}

/// V1: both sharers of a line try to upgrade; neither may, and both still read.
fn a_denied_try_upgrade_keeps_the_read_lock(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    for node in [1, 2] {
        cluster.lock(session(node, 1), at, ALL, R);
    }
    let tries = [1, 2].map(|node| cluster.issue(session(node, 1), at, ALL, TRY_UPGRADE));
    cluster.settle();
    for busy in tries {
        assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
    }
    let writer = cluster.lock(session(0, 1), at, ALL, W);
    for node in [1, 2] {
        assert!(cluster.waits(writer), "a reader is left");
        cluster.unlock(session(node, 1), at, ALL, R);
    }
    assert!(cluster.is_locked(writer));
}

fn an_upgrade_waits_for_the_other_readers_only(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, R);
    cluster.lock(session(2, 1), at, ALL, R);
    let writer = cluster.lock(session(0, 1), at, ALL, W);
    let upgrade = cluster.done(session(1, 1), at, ALL, UPGRADE);
    assert!(cluster.waits(upgrade));
    cluster.unlock(session(2, 1), at, ALL, R);
    assert!(cluster.is_locked(upgrade), "ahead of the writer, who waits for its read lock anyway");
    assert!(cluster.waits(writer));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_locked(writer));
}

/// V5: with two upgraders each would wait for the other's read lock.
fn a_second_upgrader_is_refused_at_once(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, range(0, 8), R);
    cluster.lock(session(1, 1), at, range(4, 8), R);
    let first = cluster.done(session(0, 1), at, range(0, 8), UPGRADE);
    let second = cluster.done(session(1, 1), at, range(4, 8), UPGRADE);
    assert_eq!(cluster.failure(second), Some(ErrorCode::UpgradeConflict));
    let third = cluster.done(session(1, 1), at, range(4, 8), TRY_UPGRADE);
    assert_eq!(cluster.failure(third), Some(ErrorCode::UpgradeConflict));
    assert!(cluster.waits(first));
    cluster.unlock(session(1, 1), at, range(4, 8), R);
    assert!(cluster.is_locked(first));
}

fn upgraders_of_disjoint_ranges_both_wait(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, range(0, 8), R);
    cluster.lock(session(1, 1), at, range(8, 8), R);
    cluster.lock(session(2, 1), at, range(0, 16), R);
    let upgrades = [
        cluster.done(session(0, 1), at, range(0, 8), UPGRADE),
        cluster.done(session(1, 1), at, range(8, 8), UPGRADE),
    ];
    cluster.unlock(session(2, 1), at, range(0, 16), R);
    assert!(upgrades.iter().all(|upgrade| cluster.is_locked(*upgrade)));
}

fn a_newcomer_never_overtakes_a_waiter_it_conflicts_with(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, R);
    let writer = cluster.lock(session(1, 1), at, ALL, W);
    let reader = cluster.lock(session(2, 1), at, ALL, R);
    assert!(cluster.waits(reader), "after the writer, though only a reader holds a lock");
    cluster.unlock(session(0, 1), at, ALL, R);
    assert!(cluster.is_locked(writer) && cluster.waits(reader));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_locked(reader));
}

fn a_reader_joins_the_readers_that_wait(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, W);
    let first = cluster.lock(session(1, 1), at, ALL, R);
    let writer = cluster.lock(session(1, 2), at, ALL, W);
    let second = cluster.lock(session(1, 3), at, range(0, 1), R);
    cluster.unlock(session(0, 1), at, ALL, W);
    assert!(cluster.is_locked(first) && cluster.is_locked(second), "one batch");
    assert!(cluster.waits(writer));
}

/// The waiting reader waits for bytes that the new request does not lock.
fn a_reader_joins_only_where_it_waits_itself(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, range(0, 8), R);
    cluster.lock(session(0, 2), at, range(8, 8), W);
    let wide = cluster.lock(session(1, 1), at, range(0, 16), R);
    let writer = cluster.lock(session(1, 2), at, range(0, 8), W);
    let newcomer = cluster.lock(session(1, 3), at, range(0, 8), R);
    assert!(cluster.waits(newcomer), "after the writer");
    cluster.unlock(session(0, 2), at, range(8, 8), W);
    assert!(cluster.is_locked(wide) && cluster.waits(writer) && cluster.waits(newcomer));
}

/// V12: a stream of readers does not starve a writer.
fn a_writer_is_overtaken_a_bounded_number_of_times(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, W);
    let mut readers = Vec::from([cluster.lock(session(1, 1), at, ALL, R)]);
    let writer = cluster.lock(session(1, 2), at, ALL, W);
    for number in 3..7 {
        readers.push(cluster.lock(session(1, number), at, ALL, R));
    }
    cluster.unlock(session(0, 1), at, ALL, W);
    let batch: Vec<bool> = readers.iter().map(|reader| cluster.is_locked(*reader)).collect();
    assert_eq!(batch, [true, true, true, false, false], "two may overtake");
    for number in [1, 3, 4] {
        assert!(cluster.waits(writer));
        cluster.unlock(session(1, number), at, ALL, R);
    }
    assert!(cluster.is_locked(writer));
    cluster.unlock(session(1, 2), at, ALL, W);
    assert!(readers.iter().all(|reader| cluster.is_locked(*reader)));
}

fn granted_in_the_order_of_arrival(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    let mut waiters = Vec::new();
    for number in 0..9 {
        waiters
            .push((number, cluster.lock(session(number % 3, 1 + u64::from(number)), at, ALL, W)));
    }
    for (number, operation) in &waiters {
        assert!(cluster.is_locked(*operation), "in turn");
        let last = waiters.iter().filter(|(_, other)| cluster.is_locked(*other)).count();
        assert_eq!(last, usize::from(*number) + 1);
        cluster.unlock(session(number % 3, 1 + u64::from(*number)), at, ALL, W);
    }
}

fn cancelled_waiter_wakes_later_waiters(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 1, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, R);
    let writer = cluster.lock(session(0, 2), at, ALL, W);
    let reader = cluster.lock(session(0, 3), at, ALL, R);
    cluster.cancel(writer);
    assert!(matches!(cluster.result(writer), Some(LockEffect::Cancelled { .. })));
    assert!(cluster.is_locked(reader));
}

fn cancelled_remote_waiter_wakes_later_waiters(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, R);
    let writer = cluster.lock(session(1, 1), at, ALL, W);
    let reader = cluster.lock(session(2, 1), at, ALL, R);
    cluster.cancel(writer);
    assert!(matches!(cluster.result(writer), Some(LockEffect::Cancelled { .. })), "at once");
    cluster.settle();
    assert!(cluster.is_locked(reader));
}

fn a_lock_cancelled_while_it_is_granted_is_released(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let at = line(0, 0);
    let crossed = cluster.issue(session(1, 1), at, ALL, lock(W));
    cluster.deliver(1, 0, Class::Request);
    cluster.cancel(crossed);
    cluster.settle();
    assert!(matches!(cluster.result(crossed), Some(LockEffect::Cancelled { .. })));
    let free = cluster.lock(session(0, 1), at, ALL, W);
    assert!(cluster.is_locked(free));
    cluster.cancel(free);
    assert!(cluster.is_locked(free), "a result that is out is not taken back");
}

fn an_upgrade_cancelled_while_it_is_granted_is_a_read_lock_again(setup: ScenarioSetup) {
    for closes in [false, true] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        cluster.lock(session(1, 1), at, ALL, R);
        let crossed = cluster.issue(session(1, 1), at, ALL, UPGRADE);
        cluster.deliver(1, 0, Class::Request);
        let reader = cluster.issue(session(2, 1), at, ALL, lock(R));
        cluster.deliver(2, 0, Class::Request);
        if closes {
            cluster.close(session(1, 1));
        } else {
            cluster.cancel(crossed);
        }
        cluster.settle();
        assert!(cluster.is_locked(reader));
        let writer = cluster.lock(session(0, 1), at, ALL, W);
        cluster.unlock(session(2, 1), at, ALL, R);
        assert_eq!(cluster.waits(writer), !closes);
    }
}

/// A batch is two requests: node 1 has many waiters, nodes 2 and 0 have few, and arrive last.
fn nodes_take_turns_whatever_their_numbers_of_waiters(setup: ScenarioSetup) {
    for many in [2, 5, 7] {
        let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
        let at = line(0, 0);
        let requests = (1..=many).map(|number| (1, number)).chain([(2, 1), (0, 1), (0, 2), (0, 3)]);
        let waits: Vec<_> = requests
            .map(|(node, number)| cluster.lock(session(node, number), at, ALL, W))
            .collect();
        let mut order = Vec::new();
        while let Some(&GrantedLock { session: holder, .. }) = cluster.held.first() {
            order.push(holder.node().0);
            cluster.unlock(holder, at, ALL, W);
        }
        let expected: &[u16] = match many {
            2 => &[1, 1, 2, 0, 0, 0],
            5 => &[1, 1, 1, 2, 0, 0, 1, 1, 0],
            _ => &[1, 1, 1, 2, 0, 0, 1, 1, 0, 1, 1],
        };
        assert_eq!(order, expected, "{many} waiters");
        assert!(waits.iter().all(|wait| cluster.is_locked(*wait)));
    }
}

/// The session sends its next request before its node knows that the cancelled one was granted.
fn next_request_after_a_cancelled_grant_is_granted(setup: ScenarioSetup) {
    for (first, second) in [(lock(W), try_lock(W)), (lock(R), lock(W)), (UPGRADE, TRY_UPGRADE)] {
        let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
        let (at, own) = (line(0, 0), session(1, 1));
        if first == UPGRADE {
            cluster.lock(own, at, ALL, R);
        }
        let crossed = cluster.issue(own, at, ALL, first);
        cluster.deliver(1, 0, Class::Request);
        cluster.cancel(crossed);
        let next = cluster.done(own, at, ALL, second);
        assert!(cluster.is_locked(next), "{second:?}");
        cluster.unlock(own, at, ALL, W);
        let free = cluster.done(session(0, 1), at, ALL, try_lock(W));
        assert!(cluster.is_locked(free), "{second:?}");
    }
    // Unlocked in between: the release names the token before the upgrade.
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let (at, own) = (line(0, 0), session(1, 1));
    cluster.lock(own, at, ALL, R);
    cluster.issue(own, at, ALL, UPGRADE);
    cluster.deliver(1, 0, Class::Request);
    cluster.issue(own, at, ALL, Action::Unlock(R));
    let next = cluster.done(own, at, ALL, try_lock(W));
    assert!(cluster.is_locked(next));
}

fn tokens_rise_and_use_all_their_bits(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    cluster.nodes[0].token_next = u64::from(u32::MAX) - 1;
    for _ in 0..4 {
        for node in [0, 1] {
            let next = cluster.lock(session(node, 1), line(0, 0), ALL, W);
            assert!(cluster.is_locked(next));
            cluster.unlock(session(node, 1), line(0, 0), ALL, W);
        }
    }
}

fn a_retired_line_has_no_waiters(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.lock(session(0, 1), at, ALL, W);
    let waiters = [1, 2].map(|node| cluster.lock(session(node, 1), at, ALL, R));
    cluster.bytes = 0;
    cluster.step(0, LockEvent::Retire { line: at }).unwrap();
    cluster.settle();
    for waiter in waiters {
        assert_eq!(cluster.failure(waiter), Some(ErrorCode::Unallocated));
    }
    cluster.unlock(session(0, 1), at, ALL, W);
}

/// A batch is two requests: two of node 1 wait for other bytes, so its third is the first for these.
fn request_that_waits_for_other_bytes_lets_none_pass(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    let (low, high) = (Range { start: 0, bytes: 8 }, Range { start: 8, bytes: 8 });
    cluster.lock(session(2, 1), at, low, W);
    cluster.lock(session(2, 2), at, high, W);
    cluster.lock(session(1, 1), at, high, W);
    cluster.lock(session(1, 2), at, high, W);
    let third = cluster.lock(session(1, 3), at, low, W);
    let later = cluster.lock(session(2, 3), at, low, W);
    cluster.unlock(session(2, 1), at, low, W);
    assert!(cluster.is_locked(third) && !cluster.is_locked(later));
}
