//! The authority over a line goes to the one node that uses it, and comes back.

use super::*;
use crate::lock::own::TOKENS_PER_DELEGATION;

scenarios! {
    a_line_used_by_one_node_is_delegated_to_it []
    a_delegate_locks_without_messages [TokenRepeated]
    another_node_gets_the_delegate_s_lock_when_it_is_released [ReturnsNoHolders]
    the_home_itself_recalls []
    waiters_of_the_delegate_come_first_and_keep_their_order [DelegateKeeps]
    a_stranger_is_not_starved_by_the_delegate_s_own [DelegateKeeps]
    a_try_at_a_delegated_line_is_never_queued [TryWaits]
    a_recall_that_overtakes_its_delegation_waits_for_it [RecallNumberIgnored]
    a_request_that_meets_its_own_delegation_is_decided_by_the_delegate [MovedForgotten]
    a_request_moved_to_a_delegation_that_is_gone_asks_again [MovedForgotten]
    a_release_that_overtakes_the_return_counts [EarlyReleaseDropped]
    a_cancellation_that_overtakes_the_return_counts [EarlyCancelDropped]
    a_release_from_before_the_delegation_means_nothing []
    idle_delegations_are_bounded [EndlessDelegations]
    a_delegation_offered_and_used_again_comes_back_with_its_locks [ReturnsNoHolders]
    an_offer_that_crosses_the_recall_means_nothing []
    a_delegate_out_of_tokens_gives_the_delegation_back []
    idle_own_lines_are_forgotten []
    two_nodes_in_turn_do_not_pass_delegations_around []
    a_waiting_upgrade_survives_the_return []
    a_retired_line_is_recalled []
}

fn a_line_used_by_one_node_is_delegated_to_it(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, W);
    assert!(!cluster.is_delegate(1, at), "one grant is no habit");
    let disjoint = cluster.lock(session(1, 2), at, range(0, 8), R);
    assert!(cluster.waits(disjoint));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_delegate(1, at));
}

fn a_delegate_locks_without_messages(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    let sent = cluster.sent;
    for number in 1..5 {
        let held = cluster.lock(session(1, number), at, range(0, 8), R);
        assert!(cluster.is_locked(held));
    }
    let writer = cluster.lock(session(1, 5), at, ALL, W);
    let busy = cluster.done(session(1, 6), at, ALL, try_lock(R));
    assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
    for number in 1..5 {
        assert!(cluster.waits(writer));
        cluster.unlock(session(1, number), at, range(0, 8), R);
    }
    assert!(cluster.is_locked(writer));
    assert_eq!(cluster.sent, sent);
}

/// V2: holders keep their locks when the authority moves.
fn another_node_gets_the_delegate_s_lock_when_it_is_released(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, range(0, 8), R);
    cluster.lock(session(1, 2), at, range(8, 8), W);
    let apart = cluster.lock(session(2, 1), at, range(16, 8), W);
    assert!(cluster.is_locked(apart));
    let reader = cluster.lock(session(2, 2), at, range(0, 4), R);
    assert!(cluster.is_locked(reader));
    let across = cluster.lock(session(2, 3), at, range(4, 8), W);
    cluster.unlock(session(1, 1), at, range(0, 8), R);
    assert!(cluster.waits(across));
    cluster.unlock(session(1, 2), at, range(8, 8), W);
    assert!(cluster.is_locked(across));
    assert!(!cluster.is_delegate(1, at));
}

fn the_home_itself_recalls(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    let own = cluster.issue(session(0, 1), at, ALL, lock(W));
    let second = cluster.issue(session(0, 2), at, ALL, lock(W));
    cluster.settle();
    assert!(cluster.waits(own) && cluster.waits(second));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_locked(own) && cluster.waits(second));
}

fn waiters_of_the_delegate_come_first_and_keep_their_order(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    let mut waiters: Vec<(SessionId, u64)> = Vec::new();
    for waiting in [session(1, 2), session(1, 3), session(2, 1), session(0, 1), session(1, 4)] {
        waiters.push((waiting, cluster.lock(waiting, at, ALL, W)));
    }
    cluster.unlock(session(1, 1), at, ALL, W);
    for (place, (holder, operation)) in waiters.iter().enumerate() {
        assert!(cluster.is_locked(*operation), "{holder:?}");
        assert!(waiters[place + 1..].iter().all(|(_, other)| cluster.waits(*other)));
        cluster.unlock(*holder, at, ALL, W);
    }
}

/// V12: sessions of the delegate that lock in turn do not starve others.
fn a_stranger_is_not_starved_by_the_delegate_s_own(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    cluster.lock(session(1, 2), at, ALL, W);
    let stranger = cluster.lock(session(0, 1), at, ALL, W);
    let mut grants = 0;
    while cluster.waits(stranger) {
        let (holder, next) = (session(1, 1 + grants % 2), session(1, 1 + (grants + 1) % 2));
        cluster.unlock(holder, at, ALL, W);
        assert!(cluster.waits(stranger) || grants > 0);
        if cluster.waits(stranger) {
            cluster.lock(holder, at, ALL, W);
        }
        grants += 1;
        assert!(grants < 3, "only who waited before, then {stranger}; {next:?}");
    }
}

fn a_try_at_a_delegated_line_is_never_queued(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, R);
    let writer = cluster.lock(session(1, 2), at, ALL, W);
    let sent = cluster.sent;
    let busy = cluster.done(session(2, 1), at, ALL, try_lock(R));
    assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
    // Request, recall, holder, waiter, returned, probe of the waiter, refusal.
    assert_eq!(cluster.sent, sent + 7);
    cluster.unlock(session(1, 1), at, ALL, R);
    assert!(cluster.is_locked(writer));
}

/// A recall travels in another class than the grant with the delegation.
fn a_recall_that_overtakes_its_delegation_waits_for_it(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, ALL, W);
    cluster.unlock(session(1, 1), at, ALL, W);
    let first = cluster.issue(session(1, 1), at, ALL, lock(W));
    cluster.deliver(1, 0, Class::Request);
    let second = cluster.issue(session(2, 1), at, ALL, lock(W));
    cluster.deliver(2, 0, Class::Request);
    let recall = cluster.deliver(0, 1, Class::Forward);
    assert!(matches!(recall, LockMessage::Recall { .. }));
    cluster.settle();
    assert!(cluster.is_locked(first) && cluster.waits(second));
    assert!(!cluster.is_delegate(1, at));
    cluster.unlock(session(1, 1), at, ALL, W);
    assert!(cluster.is_locked(second));
}

fn a_request_that_meets_its_own_delegation_is_decided_by_the_delegate(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, range(0, 8), W);
    let operations = [
        cluster.issue(session(1, 2), at, range(8, 8), lock(W)),
        cluster.issue(session(1, 3), at, range(8, 8), lock(W)),
        cluster.issue(session(1, 4), at, range(0, 8), try_lock(W)),
        cluster.issue(session(1, 5), at, range(0, 8), lock(W)),
    ];
    cluster.cancel(operations[3]);
    cluster.settle();
    assert!(cluster.is_delegate(1, at), "with the second grant");
    assert!(cluster.is_locked(operations[0]) && cluster.waits(operations[1]));
    assert_eq!(cluster.failure(operations[2]), Some(ErrorCode::Busy));
    cluster.unlock(session(1, 2), at, range(8, 8), W);
    assert!(cluster.is_locked(operations[1]));
}

fn a_request_moved_to_a_delegation_that_is_gone_asks_again(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, range(0, 8), W);
    let first = cluster.issue(session(1, 2), at, range(8, 8), lock(W));
    let second = cluster.issue(session(1, 3), at, range(8, 8), lock(W));
    cluster.deliver(1, 0, Class::Request);
    cluster.deliver(1, 0, Class::Request);
    let stranger = cluster.issue(session(2, 1), at, range(8, 8), lock(W));
    cluster.deliver(2, 0, Class::Request);
    // The delegation arrives, and is returned, before `Moved`.
    cluster.deliver(0, 1, Class::Forward);
    assert!(matches!(cluster.deliver(0, 1, Class::Reply), LockMessage::Granted { .. }));
    assert!(!cluster.is_delegate(1, at));
    cluster.settle();
    assert!(cluster.is_locked(first));
    cluster.unlock(session(1, 2), at, range(8, 8), W);
    assert!(cluster.is_locked(stranger) && cluster.waits(second));
    cluster.unlock(session(2, 1), at, range(8, 8), W);
    assert!(cluster.is_locked(second));
}

fn a_release_that_overtakes_the_return_counts(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    let stranger = cluster.issue(session(2, 1), at, ALL, lock(W));
    cluster.deliver(2, 0, Class::Request);
    cluster.deliver(0, 1, Class::Forward);
    cluster.issue(session(1, 1), at, ALL, Action::Unlock(W));
    assert!(matches!(cluster.deliver(1, 0, Class::Request), LockMessage::Release { .. }));
    cluster.settle();
    assert!(cluster.is_locked(stranger));
}

fn a_cancellation_that_overtakes_the_return_counts(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, R);
    let writer = cluster.issue(session(1, 2), at, ALL, lock(W));
    let reader = cluster.issue(session(2, 1), at, ALL, lock(R));
    cluster.deliver(2, 0, Class::Request);
    cluster.deliver(0, 1, Class::Forward);
    cluster.cancel(writer);
    assert!(matches!(cluster.deliver(1, 0, Class::Request), LockMessage::Cancel { .. }));
    cluster.settle();
    assert!(cluster.is_locked(reader), "nothing is left that it waits for");
}

fn a_release_from_before_the_delegation_means_nothing(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, range(0, 8), W);
    cluster.issue(session(1, 2), at, range(8, 8), lock(W));
    cluster.issue(session(1, 1), at, range(0, 8), Action::Unlock(W));
    assert!(matches!(cluster.deliver(1, 0, Class::Request), LockMessage::Request { .. }));
    let stranger = cluster.issue(session(2, 1), at, range(0, 8), lock(W));
    cluster.deliver(2, 0, Class::Request);
    // The delegation is returned and granted again, all ahead of the release.
    cluster.deliver(0, 1, Class::Reply);
    cluster.deliver(0, 1, Class::Forward);
    cluster.deliver(1, 0, Class::Reply);
    cluster.deliver(1, 0, Class::Reply);
    cluster.deliver(0, 2, Class::Reply);
    assert!(cluster.is_locked(stranger));
    assert!(matches!(cluster.deliver(1, 0, Class::Request), LockMessage::Release { .. }));
    cluster.settle();
    let other = cluster.done(session(0, 1), at, range(8, 8), try_lock(R));
    assert_eq!(cluster.failure(other), Some(ErrorCode::Busy));
}

fn idle_delegations_are_bounded(setup: ScenarioSetup) {
    let limits = Limits { lock_delegations_max: 3, ..LIMITS };
    let mut cluster = LockNetwork::with_limits(setup, 2, limits);
    for number in 0..6 {
        cluster.make_delegate(1, line(0, number));
        cluster.lock(session(1, 7), line(0, 0), ALL, R);
        cluster.unlock(session(1, 7), line(0, 0), ALL, R);
        let kept = (0..=number).filter(|at| cluster.is_delegate(1, line(0, *at))).count();
        assert!(kept <= 3);
    }
    let kept: Vec<u64> = (0..6).filter(|at| cluster.is_delegate(1, line(0, *at))).collect();
    assert_eq!(kept, [0, 4, 5], "the least recently used went");
}

fn a_delegation_offered_and_used_again_comes_back_with_its_locks(setup: ScenarioSetup) {
    let limits = Limits { lock_delegations_max: 1, ..LIMITS };
    let mut cluster = LockNetwork::with_limits(setup, 2, limits);
    cluster.make_delegate(1, line(0, 0));
    for _ in 0..2 {
        cluster.issue(session(1, 7), line(0, 1), ALL, lock(W));
        cluster.deliver(1, 0, Class::Request);
        cluster.deliver(0, 1, Class::Reply);
        cluster.issue(session(1, 7), line(0, 1), ALL, Action::Unlock(W));
        if cluster.is_delegate(1, line(0, 1)) {
            break;
        }
        cluster.deliver(1, 0, Class::Request);
    }
    let again = cluster.issue(session(1, 1), line(0, 0), ALL, lock(W));
    assert!(cluster.is_locked(again), "the delegate still decides");
    let offer = cluster.deliver(1, 0, Class::Request);
    assert!(matches!(offer, LockMessage::Offer { .. }));
    cluster.settle();
    assert!(!cluster.is_delegate(1, line(0, 0)));
    let busy = cluster.done(session(0, 1), line(0, 0), ALL, try_lock(R));
    assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
}

fn an_offer_that_crosses_the_recall_means_nothing(setup: ScenarioSetup) {
    let limits = Limits { lock_delegations_max: 0, ..LIMITS };
    let mut cluster = LockNetwork::with_limits(setup, 3, limits);
    let at = line(0, 0);
    cluster.lock(session(1, 1), at, range(0, 8), W);
    cluster.lock(session(1, 2), at, range(8, 8), W);
    assert!(cluster.is_delegate(1, at), "kept while it is used");
    cluster.issue(session(1, 1), at, range(0, 8), Action::Unlock(W));
    cluster.issue(session(1, 2), at, range(8, 8), Action::Unlock(W));
    let stranger = cluster.issue(session(2, 1), at, ALL, lock(W));
    cluster.deliver(2, 0, Class::Request);
    cluster.deliver(0, 1, Class::Forward);
    cluster.deliver(1, 0, Class::Reply);
    assert!(matches!(cluster.deliver(1, 0, Class::Request), LockMessage::Offer { .. }));
    cluster.settle();
    assert!(cluster.is_locked(stranger));
    cluster.unlock(session(2, 1), at, ALL, W);
}

fn a_delegate_out_of_tokens_gives_the_delegation_back(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    let tokens = u64::from(TOKENS_PER_DELEGATION);
    // Nothing is delivered: the offer stays in flight until no token is left.
    for _ in 0..tokens - 1 {
        let held = cluster.issue(session(1, 1), at, ALL, lock(W));
        assert!(cluster.is_locked(held));
        cluster.issue(session(1, 1), at, ALL, Action::Unlock(W));
    }
    let holder = cluster.issue(session(1, 1), at, ALL, lock(R));
    let waiter = cluster.issue(session(1, 2), at, ALL, lock(W));
    cluster.issue(session(1, 1), at, ALL, Action::Unlock(R));
    let reader = cluster.issue(session(1, 3), at, ALL, lock(R));
    assert!(cluster.is_locked(holder) && cluster.waits(waiter));
    cluster.settle();
    assert!(cluster.is_locked(waiter) && cluster.waits(reader));
    cluster.unlock(session(1, 2), at, ALL, W);
    assert!(cluster.is_locked(reader));
    assert!(cluster.is_delegate(1, at), "again");
}

fn idle_own_lines_are_forgotten(setup: ScenarioSetup) {
    let limits = Limits { lock_delegations_max: 3, ..LIMITS };
    let mut cluster = LockNetwork::with_limits(setup, 2, limits);
    for number in 0..9 {
        cluster.lock(session(0, 1), line(0, number), ALL, W);
        if number > 0 {
            cluster.unlock(session(0, 1), line(0, number), ALL, W);
        }
    }
    assert_eq!(cluster.nodes[0].lines.len(), 3);
    assert!(cluster.nodes[0].decides(line(0, 0)), "one that is held stays");
    cluster.lock(session(1, 1), line(0, 9), ALL, W);
    cluster.unlock(session(1, 1), line(0, 9), ALL, W);
    assert!(cluster.nodes[1].lines.is_empty(), "a requester keeps nothing");
}

fn two_nodes_in_turn_do_not_pass_delegations_around(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    for turn in 0..8 {
        let sent = cluster.sent;
        let next = session(1 + turn % 2, 1);
        cluster.lock(next, at, ALL, W);
        cluster.unlock(next, at, ALL, W);
        assert_eq!(cluster.sent, sent + 3, "request, grant, release");
    }
}

fn a_waiting_upgrade_survives_the_return(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, R);
    cluster.lock(session(1, 2), at, ALL, R);
    let upgrade = cluster.lock(session(1, 3), at, ALL, W);
    let first = cluster.done(session(1, 1), at, ALL, UPGRADE);
    let stranger = cluster.lock(session(2, 1), at, ALL, W);
    assert!(!cluster.is_delegate(1, at));
    cluster.unlock(session(1, 2), at, ALL, R);
    assert!(cluster.is_locked(first) && cluster.waits(upgrade) && cluster.waits(stranger));
    cluster.unlock(session(1, 1), at, ALL, W);
    cluster.unlock(session(1, 3), at, ALL, W);
    assert!(cluster.is_locked(stranger));
}

fn a_retired_line_is_recalled(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    cluster.lock(session(1, 1), at, ALL, W);
    let waiter = cluster.lock(session(1, 2), at, ALL, W);
    let apart = cluster.issue(session(0, 1), at, ALL, lock(R));
    cluster.bytes = 0;
    cluster.step(0, LockEvent::Retire { line: at }).unwrap();
    cluster.settle();
    assert_eq!(cluster.failure(waiter), Some(ErrorCode::Unallocated));
    assert_eq!(cluster.failure(apart), Some(ErrorCode::Unallocated));
    let next = cluster.lock(session(1, 3), at, ALL, W);
    assert_eq!(cluster.failure(next), Some(ErrorCode::Unallocated));
    cluster.unlock(session(1, 1), at, ALL, W);
}
