//! Mailboxes shared by senders.

extern crate std;

use super::super::half::HalfRefusal;
use super::super::kind::Kind;
use super::super::shape::{Shape, Signal};
use super::super::tests::network::Network;
use super::super::tests::suite;
use crate::wire::Violation;
use farside_base::Memory as _;
use std::vec::Vec;

const SHAPE: Shape = Shape { message_bytes_max: 70, signal: Signal::Word, ..suite::SHAPE };
const KIND: Kind = Kind::WriteSlotReserved;
const SIGNALS: [Signal; 2] = [Signal::Word, Signal::Message];

fn pool(signal: Signal, slots: u32, senders: u16) -> Network {
    Network::all(KIND, Shape { signal, slots, ..SHAPE }, senders)
}

/// Carries out all requests; those by words are seen when the receiver polls.
fn settle(wire: &mut Network) -> Option<(u16, Vec<u8>)> {
    wire.run();
    let mut found = wire.receive();
    for _ in 0..3 {
        wire.run();
        found = found.or_else(|| wire.receive());
    }
    let (held, from, bytes) = found?;
    wire.release(held).unwrap();
    wire.run();
    Some((from, bytes))
}

#[test]
fn a_message_takes_three_half_round_trips() {
    for signal in SIGNALS {
        let mut wire = pool(signal, 2, 1);
        for number in 0..40_u8 {
            let message: Vec<u8> = (0..number % 71).map(|byte| byte ^ number).collect();
            wire.requests = [0; 2];
            let sent = match number % 2 {
                0 => wire.send(0, &message).unwrap(),
                _ => wire.gather(0, &message).unwrap(),
            };
            assert_eq!(wire.send(0, &message), Err(HalfRefusal::Full), "one waits");
            assert_eq!(wire.senders[0].half.is_done(sent), number % 2 == 0);
            assert_eq!(settle(&mut wire), Some((0, message)), "{signal:?}");
            assert!(wire.senders[0].half.is_done(sent));
            assert_eq!(wire.requests, [2, 1], "request and message; grant");
        }
        assert!(!wire.senders[0].half.is_drained());
        wire.acknowledge();
        assert!(wire.senders[0].half.is_drained());
    }
}

#[test]
fn senders_are_granted_mailboxes_in_turn() {
    for signal in SIGNALS {
        let mut wire = pool(signal, 1, 3);
        let mut order = Vec::new();
        for _ in 0..12 {
            for sender in 0..3 {
                let _ = wire.send(sender, &[sender as u8; 30]);
            }
            let (from, bytes) = settle(&mut wire).unwrap();
            assert_eq!(bytes, [from as u8; 30]);
            order.push(from);
        }
        let turns = order.chunks(3).skip(1).map(|turn| turn.iter().sum::<u16>());
        assert!(turns.clone().all(|sum| sum == 3), "{signal:?} {order:?}");
    }
}

#[test]
fn sender_that_requests_and_never_writes_keeps_one_mailbox() {
    for signal in SIGNALS {
        let mut wire = pool(signal, 2, 2);
        wire.send(0, b"never").unwrap();
        wire.carry(0).unwrap();
        let _ = wire.receive();
        // The grant is never delivered.
        let grant = wire.flying.pop_front().unwrap();
        assert!(!grant.to_receiver);
        for number in 0..9_u8 {
            wire.send(1, &[number]).unwrap();
            assert_eq!(settle(&mut wire), Some((1, [number].to_vec())));
        }
    }
}

#[test]
fn mailboxes_of_a_lost_sender_serve_again() {
    for signal in SIGNALS {
        let mut wire = pool(signal, 1, 2);
        for round in 0..8 {
            wire.send(0, b"lost").unwrap();
            wire.send(1, b"waits").unwrap();
            if round % 4 > 0 {
                wire.carry(0).unwrap();
                assert_eq!(wire.receive(), None);
            }
            if round % 4 > 1 {
                let grant = wire.flying.iter().position(|flight| !flight.to_receiver).unwrap();
                let sender = wire.flying[grant].sender;
                assert_eq!(sender, 0);
                wire.carry(grant).unwrap();
                wire.advance(0).unwrap();
            }
            let whole = round % 4 > 2;
            if whole {
                let last = wire.flying.iter().rposition(|flight| flight.sender == 0).unwrap();
                wire.carry(last).unwrap();
            }
            wire.lose(0);
            if whole {
                let (held, from, bytes) = wire.receive().unwrap();
                assert_eq!((from, &bytes[..]), (0, &b"lost"[..]));
                wire.release(held).unwrap();
            }
            assert_eq!(settle(&mut wire), Some((1, b"waits".to_vec())), "{signal:?} {round}");
            wire.reconnect(0);
        }
    }
}

#[test]
fn replaced_sender_may_request_before_the_receiver_is_connected() {
    for earlier_requests in [false, true] {
        let mut wire = pool(Signal::Word, 2, 1);
        if earlier_requests {
            wire.send(0, b"lost").unwrap();
            wire.carry(0).unwrap();
        }
        wire.lose(0);
        wire.reconnect_with(0, |wire| {
            wire.send(0, b"early").unwrap();
            wire.carry(0).unwrap();
        });
        assert_eq!(settle(&mut wire), Some((0, b"early".to_vec())), "{earlier_requests}");
    }
}

#[test]
fn invalid_actions_of_a_sender_are_violations() {
    let violation = |text| Err(Violation(text));
    let mut wire = pool(Signal::Message, 2, 2);
    assert_eq!(wire.intrude(0, 0, Some(u32::MAX)), Ok(()));
    assert_eq!(wire.intrude(0, 0, Some(u32::MAX)), Ok(()), "the next one, before its message");
    let twice = violation("asks for two mailboxes");
    assert_eq!(wire.intrude(0, 0, Some(u32::MAX)), twice);
    let foreign = violation("a message into a mailbox that was not granted");
    assert_eq!(wire.intrude(0, 4, Some(1)), foreign);
    assert_eq!(wire.intrude(1, 4, Some(0)), foreign);
    assert_eq!(wire.intrude(0, 71, Some(0)), violation("a length that no message has"));
    assert_eq!(wire.intrude(0, 4, None), violation("a message where none comes"));

    for (offset, word, text) in [
        (64, 3, "asks for two mailboxes"),
        (64, u64::MAX, "asks for two mailboxes"),
        (128, 72, "a length that no message has"),
    ] {
        let mut wire = pool(Signal::Word, 2, 2);
        wire.send(0, b"good").unwrap();
        wire.send(1, b"good").unwrap();
        wire.run();
        assert_eq!(wire.try_receive(), Ok(None));
        match offset {
            64 => wire.receivers[0].bells.store_word(64, word).unwrap(),
            _ => wire.receivers[0].buffer.store_word(120, word).unwrap(),
        }
        assert_eq!(wire.try_receive(), Err(Violation(text)));
        wire.flying.retain(|flight| flight.sender == 1);
        assert_eq!(settle(&mut wire), Some((1, b"good".to_vec())), "the others go on");
        wire.lose(0);
        for number in 0..9 {
            wire.send(1, &[number]).unwrap();
            assert_eq!(settle(&mut wire), Some((1, [number].to_vec())));
        }
    }
}

#[test]
fn a_sender_does_not_trust_its_state() {
    for state in [2 << 48, 1 << 48 | 2 << 32, 1, 1 << 48 | 1] {
        let mut wire = pool(Signal::Word, 2, 1);
        wire.send(0, b"message").unwrap();
        wire.senders[0].bells.store_word(0, state).unwrap();
        assert!(wire.advance(0).is_err(), "{state:x}");
    }
}

#[cfg(canary)]
mod defects {
    use super::super::super::ChannelMutant;
    use super::*;

    fn with(signal: Signal, mutant: ChannelMutant) -> Network {
        Network::spoiled(KIND, Shape { signal, slots: 2, ..SHAPE }, 2, mutant)
    }

    #[test]
    fn a_mailbox_that_is_granted_twice_spoils_a_message() {
        let mut wire = with(Signal::Message, ChannelMutant::SlotGrantedTwice);
        wire.send(0, b"one").unwrap();
        wire.send(1, b"two").unwrap();
        let mut arrived = Ok(());
        while arrived.is_ok() && !wire.flying.is_empty() {
            arrived = wire.carry(0);
        }
        assert!(arrived.is_err() || wire.take().unwrap().1 != b"one");
    }

    #[test]
    fn a_bell_that_stays_is_a_message_that_came_twice() {
        let mut wire = with(Signal::Word, ChannelMutant::BellNotCleared);
        for number in 0..2_u8 {
            wire.send(0, &[number]).unwrap();
            assert_eq!(settle(&mut wire), Some((0, [number].to_vec())));
        }
        wire.send(0, &[2]).unwrap();
        wire.carry(0).unwrap();
        assert_eq!(wire.take(), None, "granted only now");
        assert_eq!(wire.take(), Some((0, [0].to_vec())), "and not written yet");
    }
}
