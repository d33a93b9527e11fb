//! Bad input: of callers, which gets an error, and of peers, which changes nothing.

use super::*;
use crate::lock::{Delegation, Probe, ProbedWait};
use farside_base::Ticket;

scenarios! {
    ranges_that_are_none_are_refused []
    lines_that_are_not_allocated_are_refused []
    a_session_of_another_node_is_a_violation []
    a_request_must_be_sound []
    answers_must_have_been_asked []
    home_refuses_messages_sent_by_homes []
    locks_that_were_never_granted_are_violations []
    a_delegation_must_be_recalled_and_returned_in_step []
    a_recall_needs_a_delegation []
    probes_must_be_possible []
    any_message_at_any_time_never_panics []
}

fn ranges_that_are_none_are_refused(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let cases = [
        (range(0, 0), ErrorCode::ZeroSize),
        (range(64, 0), ErrorCode::ZeroSize),
        (range(0, 65), ErrorCode::OutOfBounds),
        (range(64, 1), ErrorCode::OutOfBounds),
        (range(63, 2), ErrorCode::OutOfBounds),
        (range(u32::MAX, u32::MAX), ErrorCode::OutOfBounds),
        (range(1, u32::MAX), ErrorCode::OutOfBounds),
    ];
    for home in [0, 1] {
        for (range, code) in cases {
            for action in [lock(R), try_lock(W), UPGRADE] {
                let refused = cluster.done(session(1, 1), line(home, 0), range, action);
                assert_eq!(cluster.failure(refused), Some(code), "{range:?}");
            }
        }
        assert!(cluster.nodes[1].lines.is_empty());
    }
}

fn lines_that_are_not_allocated_are_refused(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.bytes = 16;
    for node in [0, 1] {
        let past = cluster.lock(session(node, 1), at, range(8, 9), R);
        assert_eq!(cluster.failure(past), Some(ErrorCode::OutOfBounds));
        let within = cluster.lock(session(node, 1), at, range(8, 8), R);
        assert!(cluster.is_locked(within));
        cluster.unlock(session(node, 1), at, range(8, 8), R);
    }
    for _ in 0..2 {
        cluster.lock(session(1, 1), at, range(8, 8), R);
        cluster.unlock(session(1, 1), at, range(8, 8), R);
    }
    assert!(cluster.is_delegate(1, at));
    let past = cluster.lock(session(1, 1), at, range(8, 9), R);
    assert_eq!(cluster.failure(past), Some(ErrorCode::OutOfBounds), "the delegate knows");
    cluster.bytes = 0;
    for node in [0, 1] {
        let nowhere = cluster.lock(session(node, 1), line(0, 5), ALL, R);
        assert_eq!(cluster.failure(nowhere), Some(ErrorCode::Unallocated));
    }
    let foreign = cluster.lock(session(1, 1), line(8, 0), ALL, R);
    assert_eq!(cluster.failure(foreign), Some(ErrorCode::ForeignAddress));
}

fn a_session_of_another_node_is_a_violation(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let (operation, session) = (OperationId(1), session(1, 1));
    let request = LockRequest { line: line(0, 0), range: ALL, action: lock(W) };
    let events = [
        LockEvent::Issue { operation, session, request, here: Here { bytes: 64 }, on_loan: false },
        LockEvent::Cancel { operation, session, line: line(0, 0) },
        LockEvent::Close { session },
    ];
    for event in events {
        assert!(cluster.step(0, event).is_err(), "{event:?}");
    }
}

fn request(at: LineAddress, range: Range, session: SessionId, ticket: u64) -> LockMessage {
    let ask = Ask::Lock { mode: W, patience: Patience::Wait };
    let (ticket, birth, holds) = (Ticket(ticket), 1, false);
    LockMessage::Request { line: at, range, ask, session, ticket, birth, holds }
}

fn a_request_must_be_sound(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    let unsound = [
        request(line(2, 0), ALL, session(1, 1), 1),
        request(at, range(0, 0), session(1, 1), 1),
        request(at, range(0, 65), session(1, 1), 1),
        request(at, range(u32::MAX, 2), session(1, 1), 1),
        request(at, ALL, session(2, 1), 1),
        request(at, ALL, session(1, 1), 0),
    ];
    for message in unsound {
        assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
    }
    assert!(cluster.forge(0, 0, request(at, ALL, session(0, 1), 1)).is_err(), "from itself");
    assert!(cluster.forge(8, 0, request(at, ALL, session(8, 1), 1)).is_err(), "unknown node");
    assert_eq!(cluster.forge(1, 0, request(at, ALL, session(1, 1), 1)), Ok(()));
    let again = cluster.forge(1, 0, request(at, ALL, session(1, 1), 1));
    assert!(again.is_err(), "a ticket twice");
}

fn answers_must_have_been_asked(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    cluster.issue(session(1, 1), at, ALL, lock(W));
    let asked = cluster.nodes[1].sessions.get(session(1, 1)).unwrap().wait.unwrap().ticket;
    let delegation = Some(Delegation { tokens: u32::MAX, bytes: 64 });
    for ticket in [Ticket(0), Ticket(asked.0 + 1)] {
        let token = Token(1);
        let unasked = [
            LockMessage::Granted { line: at, ticket, token, delegation: None, abandoned: false },
            LockMessage::Refused { line: at, ticket, code: ErrorCode::Busy },
            LockMessage::Cancelled { line: at, ticket },
            LockMessage::Moved { line: at, ticket },
        ];
        for message in unasked {
            assert!(cluster.forge(0, 1, message).is_err(), "{message:?}");
        }
    }
    let ticket = asked;
    let unsound = [
        LockMessage::Cancelled { line: at, ticket },
        LockMessage::Granted {
            line: at,
            ticket,
            token: Token(u64::MAX),
            delegation,
            abandoned: false,
        },
        LockMessage::Granted { line: at, ticket, token: Token(0), delegation, abandoned: false },
        LockMessage::Granted {
            line: line(1, 0),
            ticket,
            token: Token(1),
            delegation: None,
            abandoned: false,
        },
    ];
    for message in unsound {
        assert!(cluster.forge(0, 1, message).is_err(), "{message:?}");
    }
    cluster.settle();
}

fn home_refuses_messages_sent_by_homes(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let (at, other) = (line(0, 0), line(1, 0));
    let ticket = Ticket(1);
    let told = |line| {
        [
            LockMessage::Recall { line, number: Token(1) },
            LockMessage::Granted {
                line,
                ticket,
                token: Token(1),
                delegation: None,
                abandoned: false,
            },
            LockMessage::Refused { line, ticket, code: ErrorCode::Busy },
            LockMessage::Cancelled { line, ticket },
            LockMessage::Moved { line, ticket },
        ]
    };
    for message in told(at) {
        assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
    }
    let asked = |line| {
        [
            request(line, ALL, session(1, 1), 1),
            LockMessage::Release { line, token: Token(1), untold: false },
            LockMessage::Cancel { line, ticket },
            LockMessage::Offer { line, number: Token(1) },
            LockMessage::Returned { line, number: Token(1), holders: 0, waiters: 0 },
        ]
    };
    for message in asked(other) {
        assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
    }
}

fn locks_that_were_never_granted_are_violations(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::with_limits(setup, 3, AT_HOME);
    let at = line(0, 0);
    cluster.lock(session(2, 1), at, ALL, W);
    for token in [Token(0), Token(cluster.nodes[0].token_next), Token(u64::MAX)] {
        let unsound = [
            LockMessage::Release { line: at, token, untold: false },
            LockMessage::Offer { line: at, number: token },
        ];
        for message in unsound {
            assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
        }
    }
    let token = Token(cluster.nodes[0].token_next - 1);
    let release = LockMessage::Release { line: at, token, untold: false };
    assert!(cluster.forge(1, 0, release).is_err(), "of another node");
    let busy = cluster.done(session(1, 1), at, ALL, try_lock(R));
    assert_eq!(cluster.failure(busy), Some(ErrorCode::Busy));
}

fn a_delegation_must_be_recalled_and_returned_in_step(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 3);
    let at = line(0, 0);
    cluster.make_delegate(1, at);
    let (own, token) = (session(1, 1), Token(1));
    let holder =
        |range, mode, token| LockMessage::Holder { line: at, session: own, range, mode, token };
    let ask = Ask::Lock { mode: W, patience: Patience::Wait };
    let waiter = |range, ask, ticket| LockMessage::Waiter {
        line: at,
        session: own,
        range,
        ask,
        ticket: Ticket(ticket),
        birth: 1,
        overtaken: 0,
        holds: false,
    };
    let number = Token(2);
    let returned =
        |number, holders, waiters| LockMessage::Returned { line: at, number, holders, waiters };
    for early in [holder(ALL, R, token), waiter(ALL, ask, 9), returned(number, 0, 0)] {
        assert!(cluster.forge(1, 0, early).is_err(), "not recalled: {early:?}");
    }
    cluster.issue(session(2, 1), at, ALL, lock(W));
    cluster.deliver(2, 0, Class::Request);
    for other in [holder(ALL, R, token), waiter(ALL, ask, 9), returned(number, 0, 0)] {
        assert!(cluster.forge(2, 0, other).is_err(), "not the delegate: {other:?}");
    }
    assert_eq!(cluster.forge(1, 0, holder(range(0, 8), R, token)), Ok(()));
    let try_ask = Ask::Lock { mode: R, patience: Patience::Try };
    let unsound = [
        holder(range(8, 8), R, token),
        holder(range(4, 8), W, Token(2)),
        holder(range(8, 8), R, Token(u64::MAX)),
        holder(range(60, 8), R, Token(2)),
        waiter(range(8, 8), try_ask, 9),
        waiter(range(8, 8), Ask::Upgrade { patience: Patience::Wait }, 9),
        returned(number, 0, 0),
        returned(number, 1, 1),
        returned(Token(1), 1, 0),
    ];
    for message in unsound {
        assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
    }
    let upgrade = Ask::Upgrade { patience: Patience::Wait };
    assert_eq!(cluster.forge(1, 0, waiter(range(0, 8), upgrade, 9)), Ok(()));
}

fn a_recall_needs_a_delegation(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let at = line(0, 0);
    let recall = |number| LockMessage::Recall { line: at, number: Token(number) };
    assert!(cluster.forge(0, 1, recall(1)).is_err());
    cluster.make_delegate(1, at);
    for other in [0, 1, 3, u64::MAX] {
        assert!(cluster.forge(0, 1, recall(other)).is_err(), "{other}");
    }
    let asked = line(0, 1);
    cluster.issue(session(1, 1), asked, ALL, lock(W));
    let recall = |number| LockMessage::Recall { line: asked, number: Token(number) };
    assert!(cluster.forge(0, 1, recall(2)).is_err(), "of the past");
    assert_eq!(cluster.forge(0, 1, recall(100_000)), Ok(()));
    assert!(cluster.forge(0, 1, recall(100_001)).is_err(), "one at a time");
}

fn probes_must_be_possible(setup: ScenarioSetup) {
    let mut cluster = LockNetwork::new(setup, 2);
    let probe = |origin, number, node, ticket| Probe {
        origin: NodeId(origin),
        number,
        youngest: ProbedWait { birth: 1, node: NodeId(node), ticket: Ticket(ticket) },
    };
    for probe in [probe(0, 9, 1, 1), probe(1, 1, 0, 9)] {
        let visit = LockMessage::Visit { line: line(0, 0), ticket: Ticket(1), probe };
        assert!(cluster.forge(1, 0, visit).is_err(), "{probe:?}");
        let probed = LockMessage::Probe { line: line(1, 0), token: Token(1), probe };
        assert!(cluster.forge(1, 0, probed).is_err(), "{probe:?}");
    }
    let unsound = [
        LockMessage::Abort { line: line(2, 0), ticket: Ticket(9), number: 1 },
        LockMessage::Aborted { line: line(0, 0), number: 9 },
    ];
    for message in unsound {
        assert!(cluster.forge(1, 0, message).is_err(), "{message:?}");
    }
    let vain = LockMessage::Visit { line: line(0, 0), ticket: Ticket(1), probe: probe(1, 1, 1, 1) };
    assert_eq!(cluster.forge(1, 0, vain), Ok(()));
}

/// Nodes send valid and, now and then, invalid messages: the receiving machine stays valid.
fn any_message_at_any_time_never_panics(setup: ScenarioSetup) {
    for seed in 1..200_u64 {
        let mut numbers = Random::new(seed);
        let limits = Limits { lock_delegate_after: 1 + (seed % 2) as u32, ..LIMITS };
        let mut cluster = LockNetwork::with_limits(setup, 2, limits);
        let mut refused = 0;
        for _ in 0..120 {
            let at = line(numbers.below(2) as u16, numbers.below(2));
            let own = session(0, 1 + numbers.below(3));
            let part = range(numbers.below(2) as u32 * 8, 8);
            let actions =
                [lock(R), lock(W), try_lock(W), UPGRADE, Action::Unlock(R), Action::Undo(W)];
            match numbers.below(3) {
                0 => {
                    cluster.issue(own, at, part, actions[numbers.below(6) as usize]);
                }
                _ => {
                    let message = wire::any_message(&mut numbers, at);
                    refused += usize::from(cluster.forge(1, 0, message).is_err());
                }
            }
            cluster.wires.clear();
            cluster.held.clear();
            cluster.tokens.clear();
        }
        assert!(refused > 0, "seed {seed}");
    }
}
