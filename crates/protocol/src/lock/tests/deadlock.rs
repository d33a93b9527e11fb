//! Cycles of waiters, over one line and over homes and delegates, and who has to give way.

use super::*;

scenarios! {
    two_lines_of_one_home []
    a_cycle_over_two_homes_finds_its_youngest [ProbeNotForwarded OldestIsVictim]
    a_cycle_over_three_homes_finds_its_youngest [ProbeNotForwarded OldestIsVictim]
    a_cycle_over_delegates_is_found_when_they_return []
    a_probe_whose_sender_returns_its_delegation_is_sent_again [ReturnNotProbed]
    a_cycle_within_a_delegate []
    a_cycle_through_the_queue_of_one_line []
    a_cycle_through_an_upgrade []
    every_cycle_through_a_waiter_is_broken [OneCycleEach]
    a_second_cycle_behind_the_first_victim_is_found []
    a_probe_finds_a_lock_whose_upgrade_is_taken_back []
    a_chain_is_no_cycle []
    waiter_outside_a_cycle_is_not_a_victim []
    an_edge_that_vanishes_in_time_saves_everybody []
    the_older_of_two_wins_in_the_end [VictimForgetsAge]
    locking_against_oneself_fails_at_once []
    many_paths_cost_little []
    every_order_of_messages_finds_every_ring []
}

/// Sessions 1, 2, ... of nodes 1, 2, ... each take the line of their node, oldest first.
fn take_lines(cluster: &mut LockNetwork, homes: &[u16]) {
    for (place, home) in homes.iter().enumerate() {
        cluster.nodes[place].birth_last = 1_000 + 10 * place as u64;
        let held = cluster.lock(member(place), line(*home, place as u64), ALL, W);
        assert!(cluster.is_locked(held));
    }
}

/// The session at a position of a ring; positions are in order of age.
fn member(place: usize) -> SessionId {
    session(place as u16, 1)
}

/// Closes a ring over the lines of `homes`: each member waits for the next one's line. Returns the waits by member.
fn close_ring(cluster: &mut LockNetwork, homes: &[u16], order: &[usize]) -> Vec<u64> {
    let mut waits = std::vec![0; homes.len()];
    for place in order {
        let next = (place + 1) % homes.len();
        waits[*place] = cluster.done(member(*place), line(homes[next], next as u64), ALL, lock(W));
    }
    waits
}

/// Exactly the youngest fails; when it releases its lock, the others are granted one by one.
fn check_ring(cluster: &mut LockNetwork, homes: &[u16], waits: &[u64]) {
    let last = homes.len() - 1;
    assert_eq!(cluster.failure(waits[last]), Some(ErrorCode::Deadlock), "the youngest");
    let others = &waits[..last];
    assert!(others.iter().all(|wait| cluster.waits(*wait)), "and no other wait");
    cluster.unlock(member(last), line(homes[last], last as u64), ALL, W);
    for place in (0..last).rev() {
        assert!(cluster.is_locked(waits[place]));
        let next = place + 1;
        cluster.unlock(member(place), line(homes[next], next as u64), ALL, W);
        cluster.unlock(member(place), line(homes[place], place as u64), ALL, W);
    }
}

fn two_lines_of_one_home(setup: ScenarioSetup) {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
        take_lines(&mut cluster, &[0, 0]);
        let waits = close_ring(&mut cluster, &[0, 0], &order);
        check_ring(&mut cluster, &[0, 0], &waits);
    }
}

fn a_cycle_over_two_homes_finds_its_youngest(setup: ScenarioSetup) {
    for order in [[0, 1], [1, 0]] {
        let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
        take_lines(&mut cluster, &[2, 3]);
        let waits = close_ring(&mut cluster, &[2, 3], &order);
        check_ring(&mut cluster, &[2, 3], &waits);
    }
}

fn a_cycle_over_three_homes_finds_its_youngest(setup: ScenarioSetup) {
    for order in [[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]] {
        for homes in [[0, 1, 2], [1, 2, 0], [3, 4, 5], [2, 2, 0]] {
            let mut cluster = LockNetwork::with_limits(setup, 6, AT_HOME);
            take_lines(&mut cluster, &homes);
            let waits = close_ring(&mut cluster, &homes, &order);
            check_ring(&mut cluster, &homes, &waits);
        }
    }
}

/// The last edges of the cycle appear when delegations return.
fn a_cycle_over_delegates_is_found_when_they_return(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 4);
    let (one, two) = (line(2, 0), line(3, 0));
    cluster.make_delegate(0, one);
    cluster.make_delegate(1, two);
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(1, 1), two, ALL, W);
    let across = [
        cluster.issue(session(0, 1), two, ALL, lock(W)),
        cluster.issue(session(1, 1), one, ALL, lock(W)),
    ];
    cluster.settle();
    assert!(cluster.waits(across[0]));
    assert_eq!(cluster.failure(across[1]), Some(ErrorCode::Deadlock));
}

/// The delegate's probe is in flight when the delegate ceases to be the authority that knows it.
fn a_probe_whose_sender_returns_its_delegation_is_sent_again(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 4);
    let (one, two) = (line(2, 0), line(1, 0));
    cluster.make_delegate(0, one);
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(0, 2), two, ALL, W);
    let outer = cluster.lock(session(0, 1), two, ALL, W);
    let inner = cluster.issue(session(0, 2), one, ALL, lock(W));
    assert!(matches!(cluster.deliver(0, 1, Class::Reply), LockMessage::Visit { .. }));
    let stranger = cluster.issue(session(3, 1), one, ALL, lock(W));
    cluster.deliver(3, 2, Class::Request);
    cluster.deliver(2, 0, Class::Forward);
    cluster.settle();
    assert_eq!(cluster.failure(inner), Some(ErrorCode::Deadlock));
    assert!(cluster.waits(outer) && cluster.waits(stranger));
}

fn a_cycle_within_a_delegate(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let (one, two) = (line(0, 0), line(0, 1));
    cluster.make_delegate(1, one);
    cluster.make_delegate(1, two);
    cluster.lock(session(1, 1), one, ALL, W);
    cluster.lock(session(1, 2), two, ALL, W);
    let sent = cluster.sent;
    let older = cluster.lock(session(1, 1), two, ALL, W);
    let younger = cluster.lock(session(1, 2), one, ALL, W);
    assert!(cluster.waits(older));
    assert_eq!(cluster.failure(younger), Some(ErrorCode::Deadlock));
    assert_eq!(cluster.sent, sent, "without a message");
}

/// The waiter in the middle holds nothing: the cycle goes through the order of the queue.
fn a_cycle_through_the_queue_of_one_line(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    cluster.lock(session(0, 1), one, range(0, 8), R);
    cluster.lock(session(1, 1), two, ALL, W);
    let middle = cluster.lock(session(2, 1), one, range(0, 16), W);
    let behind = cluster.lock(session(1, 1), one, range(8, 8), R);
    assert!(cluster.waits(middle) && cluster.waits(behind), "no cycle yet");
    let closing = cluster.lock(session(0, 1), two, ALL, W);
    assert_eq!(cluster.failure(middle), Some(ErrorCode::Deadlock), "it came last");
    assert!(cluster.is_locked(behind), "nothing is in its way now");
    cluster.unlock(session(1, 1), one, range(8, 8), R);
    cluster.unlock(session(1, 1), two, ALL, W);
    assert!(cluster.is_locked(closing));
}

fn a_cycle_through_an_upgrade(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    cluster.lock(session(0, 1), one, ALL, R);
    cluster.lock(session(1, 1), one, ALL, R);
    cluster.lock(session(1, 1), two, ALL, W);
    let upgrade = cluster.done(session(0, 1), one, ALL, UPGRADE);
    assert!(cluster.waits(upgrade));
    // Session 0 waits for 1 already.
    let other = cluster.done(session(2, 1), two, ALL, lock(R));
    let closing = cluster.done(session(1, 1), one, range(0, 8), lock(R));
    assert_eq!(cluster.failure(closing), Some(ErrorCode::Deadlock), "the upgrade is ahead");
    assert!(cluster.waits(upgrade) && cluster.waits(other));
    cluster.unlock(session(1, 1), one, ALL, R);
    assert!(cluster.is_locked(upgrade));
}

/// One waiter waits for two readers, each of which waits for it: two cycles, two victims.
fn every_cycle_through_a_waiter_is_broken(setup: ScenarioSetup) {
    for last in 0..3_usize {
        let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
        let (one, two) = (line(0, 0), line(3, 0));
        cluster.lock(session(0, 1), two, ALL, W);
        cluster.lock(session(1, 1), one, ALL, R);
        cluster.lock(session(2, 1), one, ALL, R);
        let steps = [(session(0, 1), one, W), (session(1, 1), two, R), (session(2, 1), two, R)];
        let mut waits = Vec::new();
        for place in (0..3).map(|step| (last + 1 + step) % 3) {
            let (waiting, at, mode) = steps[place];
            waits.push((place, cluster.lock(waiting, at, ALL, mode)));
        }
        for (place, wait) in waits {
            match place {
                0 => assert!(cluster.waits(wait), "the oldest"),
                _ => assert_eq!(cluster.failure(wait), Some(ErrorCode::Deadlock), "{place}"),
            }
        }
    }
}

/// Two paths lead from one waiter to another; the youngest is on only one of them.
fn a_second_cycle_behind_the_first_victim_is_found(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let (one, two, three) = (line(0, 0), line(1, 0), line(2, 0));
    let (first, last) = (session(0, 1), session(3, 1));
    cluster.lock(first, one, ALL, W);
    cluster.lock(last, two, ALL, W);
    cluster.lock(session(1, 1), three, ALL, R);
    cluster.lock(session(2, 1), three, ALL, R);
    // Both readers of `three` wait for `last`, which waits for `first`.
    let readers = [1, 2].map(|node| cluster.lock(session(node, 1), two, ALL, R));
    let back = cluster.lock(last, one, ALL, W);
    let closing = cluster.lock(first, three, ALL, W);
    let failed = [readers[0], readers[1], back, closing].map(|wait| cluster.failure(wait));
    let victim = Some(ErrorCode::Deadlock);
    assert_eq!(failed, [victim, victim, None, None], "each the youngest of its cycle");
    for node in [1, 2] {
        cluster.unlock(session(node, 1), three, ALL, R);
    }
    assert!(cluster.is_locked(closing));
}

/// The home has upgraded the lock, the session has cancelled that, and neither knows of the other.
fn a_probe_finds_a_lock_whose_upgrade_is_taken_back(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let (one, two) = (line(2, 0), line(1, 0));
    cluster.lock(session(1, 1), one, ALL, R);
    cluster.lock(session(1, 2), two, ALL, W);
    let across = cluster.lock(session(1, 2), one, ALL, W);
    let upgrade = cluster.issue(session(1, 1), one, ALL, UPGRADE);
    cluster.deliver(1, 2, Class::Request);
    cluster.cancel(upgrade);
    let closing = cluster.issue(session(1, 1), two, ALL, lock(W));
    assert!(matches!(cluster.deliver(1, 2, Class::Reply), LockMessage::Visit { .. }));
    cluster.settle();
    assert_eq!(cluster.failure(across), Some(ErrorCode::Deadlock));
    assert!(cluster.waits(closing));
    // And the reverse: the upgraded lock, known to both, comes back with a delegation.
    let mut cluster = LockNetwork::new(setup, 4);
    cluster.make_delegate(0, one);
    cluster.lock(session(0, 1), one, ALL, R);
    let upgrade = cluster.done(session(0, 1), one, ALL, UPGRADE);
    assert!(cluster.is_locked(upgrade));
    cluster.lock(session(1, 1), two, ALL, W);
    let first = cluster.lock(session(1, 1), one, ALL, W);
    let second = cluster.lock(session(0, 1), two, ALL, W);
    assert_eq!(cluster.failure(first).or(cluster.failure(second)), Some(ErrorCode::Deadlock));
    assert!(cluster.waits(first) != cluster.waits(second));
}

fn a_chain_is_no_cycle(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let homes = [1, 2, 3, 0];
    take_lines(&mut cluster, &homes);
    let waits = close_ring(&mut cluster, &homes, &[2, 0, 1]);
    assert!(waits[..3].iter().all(|wait| cluster.waits(*wait)));
    for place in (1..4).rev() {
        cluster.unlock(member(place), line(homes[place], place as u64), ALL, W);
        assert!(cluster.is_locked(waits[place - 1]));
        if place < 3 {
            cluster.unlock(member(place), line(homes[place + 1], place as u64 + 1), ALL, W);
        }
    }
}

fn waiter_outside_a_cycle_is_not_a_victim(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 6, AT_HOME);
    take_lines(&mut cluster, &[2, 3]);
    cluster.lock(session(4, 1), line(4, 0), ALL, W);
    let mut ring = [0, 0];
    ring[0] = cluster.issue(member(0), line(3, 1), ALL, lock(W));
    ring[1] = cluster.issue(member(1), line(2, 0), ALL, lock(W));
    let behind = cluster.issue(session(4, 1), line(2, 0), ALL, lock(R));
    let further = cluster.issue(session(5, 1), line(4, 0), ALL, lock(R));
    cluster.settle();
    assert!(cluster.waits(ring[0]));
    assert_eq!(cluster.failure(ring[1]), Some(ErrorCode::Deadlock));
    assert!(cluster.waits(behind) && cluster.waits(further), "though they are younger");
}

/// The holder releases its lock while the probe is in flight to it.
fn an_edge_that_vanishes_in_time_saves_everybody(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 4, AT_HOME);
    let (one, two) = (line(2, 0), line(3, 0));
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(0, 1), one, range(0, 0), W);
    cluster.lock(session(1, 1), two, ALL, W);
    let first = cluster.issue(session(0, 1), two, ALL, lock(W));
    let second = cluster.issue(session(1, 1), one, ALL, lock(W));
    cluster.deliver(0, 3, Class::Request);
    cluster.deliver(1, 2, Class::Request);
    cluster.issue(session(0, 1), one, ALL, Action::Unlock(W));
    cluster.issue(session(1, 1), two, ALL, Action::Unlock(W));
    cluster.settle();
    assert!(cluster.is_locked(first) && cluster.is_locked(second));
}

/// A victim that starts over keeps its age, so the one that took its first lock later is the next victim.
fn the_older_of_two_wins_in_the_end(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 2, AT_HOME);
    let (one, two) = (line(0, 0), line(1, 0));
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(1, 1), two, ALL, W);
    let first = cluster.lock(session(0, 1), two, ALL, W);
    let victim = cluster.lock(session(1, 1), one, ALL, W);
    assert_eq!(cluster.failure(victim), Some(ErrorCode::Deadlock));
    cluster.unlock(session(1, 1), two, ALL, W);
    assert!(cluster.is_locked(first));
    cluster.unlock(session(0, 1), two, ALL, W);
    cluster.unlock(session(0, 1), one, ALL, W);
    // Both start over, the former victim last.
    cluster.lock(session(0, 1), one, ALL, W);
    cluster.lock(session(1, 1), two, ALL, W);
    let victim = cluster.lock(session(0, 1), two, ALL, W);
    let second = cluster.lock(session(1, 1), one, ALL, W);
    assert_eq!(cluster.failure(victim), Some(ErrorCode::Deadlock));
    assert!(cluster.waits(second));
}

fn locking_against_oneself_fails_at_once(setup: ScenarioSetup) {
    for limits in [LIMITS, AT_HOME] {
        let mut cluster = LockNetwork::with_limits(setup, 2, limits);
        let at = line(0, 0);
        for node in [0, 1] {
            let own = session(node, 1);
            cluster.lock(own, at, range(0, 8), R);
            let sent = cluster.sent;
            for action in [lock(W), try_lock(W)] {
                let against = cluster.done(own, at, range(4, 8), action);
                assert_eq!(cluster.failure(against), Some(ErrorCode::Deadlock));
            }
            assert_eq!(cluster.sent, sent);
            let beside = cluster.lock(own, at, range(8, 8), W);
            assert!(cluster.is_locked(beside));
            let twice = cluster.lock(own, at, range(0, 8), R);
            assert!(cluster.is_locked(twice), "several read locks of a range");
            let upgrade = cluster.done(own, at, range(0, 8), UPGRADE);
            assert_eq!(cluster.failure(upgrade), Some(ErrorCode::Deadlock), "against the other");
            cluster.unlock(own, at, range(0, 8), R);
            cluster.unlock(own, at, range(0, 8), R);
            cluster.unlock(own, at, range(8, 8), W);
        }
    }
}

/// Readers of each line wait for the next line: the number of paths doubles with each.
fn many_paths_cost_little(setup: ScenarioSetup) {
    let limits = Limits { sessions_max: 64, ..AT_HOME };
    let mut cluster = LockNetwork::with_limits(setup, 3, limits);
    let reader = |at: u64, which: u64| session((at % 3) as u16, 2 * at + which + 1);
    for at in 0..12 {
        for which in 0..2 {
            cluster.lock(reader(at, which), line((at % 2) as u16, at), ALL, R);
        }
    }
    for at in (0..11).rev() {
        for which in 0..2 {
            let next = line(((at + 1) % 2) as u16, at + 1);
            cluster.lock(reader(at, which), next, range(8 * which as u32, 8), W);
        }
    }
    let sent = cluster.sent;
    let last = cluster.lock(session(2, 64), line(0, 0), ALL, W);
    assert!(cluster.waits(last));
    assert!(cluster.sent - sent < 200, "{} messages", cluster.sent - sent);
}

/// Rings of two to four over random homes, requested at once, delivered in random orders.
fn every_order_of_messages_finds_every_ring(setup: ScenarioSetup) {
    for seed in 1..300_u64 {
        let mut numbers = Random::new(seed);
        let limits = if seed % 2 == 0 { AT_HOME } else { LIMITS };
        let mut cluster = LockNetwork::with_limits(setup, 5, limits);
        let homes: Vec<u16> = (0..2 + numbers.below(3)).map(|_| numbers.below(5) as u16).collect();
        for (place, home) in homes.iter().enumerate() {
            if numbers.below(2) == 0 && limits == LIMITS && usize::from(*home) != place {
                cluster.make_delegate(place as u16, line(*home, place as u64));
            }
        }
        take_lines(&mut cluster, &homes);
        let waits: Vec<u64> = (0..homes.len())
            .map(|place| {
                let next = (place + 1) % homes.len();
                cluster.issue(member(place), line(homes[next], next as u64), ALL, lock(W))
            })
            .collect();
        loop {
            let wires = cluster.busy_wires();
            if wires.is_empty() {
                break;
            }
            let (from, to, class) = wires[numbers.below(wires.len() as u64) as usize];
            cluster.deliver(from, to, class);
        }
        let failed = waits.iter().filter(|wait| cluster.failure(**wait).is_some()).count();
        assert_eq!(failed, 1, "seed {seed}");
        let last = waits.len() - 1;
        assert_eq!(cluster.failure(waits[last]), Some(ErrorCode::Deadlock), "seed {seed}");
    }
}
