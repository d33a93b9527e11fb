//! Messages as bytes.

use super::*;
use crate::lock::{Delegation, Probe, ProbedWait};
use crate::wire::BODY;
use farside_base::Ticket;

fn any_number(numbers: &mut Random) -> u64 {
    let small = numbers.below(12);
    match numbers.below(8) {
        0 => u64::MAX - small,
        1 => small << 32,
        2 => small << 16,
        _ => small,
    }
}

fn any_ask(numbers: &mut Random) -> Ask {
    let patience = [Patience::Try, Patience::Wait][numbers.below(2) as usize];
    match numbers.below(3) {
        0 => Ask::Upgrade { patience },
        1 => Ask::Lock { mode: R, patience },
        _ => Ask::Lock { mode: W, patience },
    }
}

/// A message about a line, with mostly valid and some invalid fields.
pub(super) fn any_message(numbers: &mut Random, line: LineAddress) -> LockMessage {
    let session = session(1, any_number(numbers));
    let (start, bytes) = (8 * numbers.below(3) as u32, 8 * numbers.below(3) as u32);
    let range = Range { start, bytes };
    let (ask, mode) = (any_ask(numbers), [R, W][numbers.below(2) as usize]);
    let (ticket, token) = (Ticket(any_number(numbers)), Token(any_number(numbers)));
    let (number, birth) = (Token(any_number(numbers)), any_number(numbers));
    let (holders, waiters) = (numbers.below(3) as u32, numbers.below(3) as u32);
    let youngest = ProbedWait { birth, node: NodeId(numbers.below(3) as u16), ticket };
    let origin = NodeId(numbers.below(3) as u16);
    let probe = Probe { origin, number: any_number(numbers), youngest };
    let code = ErrorCode::ALL[numbers.below(ErrorCode::ALL.len() as u64) as usize];
    let delegation = (numbers.below(2) == 0).then_some(Delegation { tokens: holders, bytes });
    let flag = numbers.below(2) == 0;
    match numbers.below(16) {
        0 => LockMessage::Request { line, range, ask, session, ticket, birth, holds: flag },
        1 => LockMessage::Release { line, token, untold: flag },
        2 => LockMessage::Aborted { line, number: birth },
        3 => LockMessage::Cancel { line, ticket },
        4 => LockMessage::Offer { line, number },
        5 => LockMessage::Recall { line, number },
        6 => LockMessage::Granted { line, ticket, token, delegation, abandoned: flag },
        7 => LockMessage::Refused { line, ticket, code },
        8 => LockMessage::Cancelled { line, ticket },
        9 => LockMessage::Moved { line, ticket },
        10 => LockMessage::Holder { line, session, range, mode, token },
        11 => LockMessage::Waiter {
            line,
            session,
            range,
            ask,
            ticket,
            birth,
            overtaken: start,
            holds: flag,
        },
        12 => LockMessage::Returned { line, number, holders, waiters },
        13 => LockMessage::Probe { line, token, probe },
        14 => LockMessage::Visit { line, ticket, probe },
        _ => LockMessage::Abort { line, ticket, number: birth },
    }
}

#[test]
fn every_message_comes_back() {
    let mut numbers = Random::new(1);
    for round in 0..20_000 {
        let at = line((numbers.below(4) * 80) as u16, numbers.below(1 << 30));
        let message = any_message(&mut numbers, at);
        let body = message.encode();
        assert_eq!(LockMessage::decode(&body), Ok(message), "round {round}");
        assert_eq!(message.line(), at);
    }
}

/// Every decoded message encodes to the same bytes: each message has one form, and no byte is ignored.
#[test]
fn no_bytes_are_ignored() {
    let mut numbers = Random::new(2);
    let mut decoded = 0;
    for round in 0..200_000 {
        let mut body = any_message(&mut numbers, line(1, 3)).encode();
        for _ in 0..=numbers.below(3) {
            body[numbers.below(BODY as u64) as usize] = numbers.below(256) as u8;
        }
        if let Ok(message) = LockMessage::decode(&body) {
            assert_eq!(message.encode(), body, "round {round}: {message:?}");
            decoded += 1;
        }
    }
    assert!(decoded > 1_000);
}

#[test]
fn invalid_bodies_are_refused() {
    let good = LockMessage::Release { line: line(1, 3), token: Token(7), untold: false }.encode();
    for tag in (0..=255).filter(|tag| !(1..=16).contains(tag)) {
        let mut body = good;
        body[0] = tag;
        assert!(LockMessage::decode(&body).is_err(), "tag {tag}");
    }
    for (place, byte) in [(1, 1), (6, 0xf0), (47, 1), (17, 2), (18, 1)] {
        let mut body = good;
        body[place] = byte;
        assert!(LockMessage::decode(&body).is_err(), "byte {place}");
    }
}

#[test]
fn classes_never_close_a_circle() {
    let mut numbers = Random::new(3);
    for _ in 0..1_000 {
        let message = any_message(&mut numbers, line(0, 0));
        let class = match message {
            LockMessage::Request { .. }
            | LockMessage::Release { .. }
            | LockMessage::Cancel { .. }
            | LockMessage::Offer { .. } => Class::Request,
            LockMessage::Recall { .. } => Class::Forward,
            _ => Class::Reply,
        };
        assert_eq!(message.class(), class, "{message:?}");
    }
}
