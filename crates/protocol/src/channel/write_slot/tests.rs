extern crate std;

use super::super::half::HalfRefusal;
use super::super::kind::Kind;
use super::super::shape::{Acknowledge, Shape, Signal};
use super::super::tests::network::Network;
use super::super::tests::suite;
use super::{BELLS, CHOSEN, bell, immediate};
use crate::wire::Violation;
use farside_base::Memory as _;
use std::vec::Vec;

const SHAPE: Shape =
    Shape { message_bytes_max: 70, slots: 5, signal: Signal::Word, ..suite::SHAPE };

/// All channels with mailboxes of a single sender.
const WAYS: [(Kind, Signal); 4] = [
    (Kind::WriteSlotDetached, Signal::Word),
    (Kind::WriteSlotDetached, Signal::Message),
    (Kind::WriteSlotInlined, Signal::Word),
    (Kind::WriteSlotImmediate, Signal::Word),
];

fn each(then: impl Fn(Kind, Shape)) {
    for (kind, signal) in WAYS {
        for acknowledge in Acknowledge::ALL {
            then(kind, Shape { signal, acknowledge, ..SHAPE });
        }
    }
}

/// Sends as soon as there is room.
fn send(wire: &mut Network, message: &[u8]) {
    if wire.send(0, message) == Err(HalfRefusal::Full) {
        wire.run();
        wire.send(0, message).unwrap();
    }
}

#[test]
fn a_mailbox_serves_again_when_it_is_acknowledged() {
    each(|kind, shape| {
        let mut wire = Network::all(kind, shape, 1);
        for number in 0..5 {
            wire.send(0, &[number; 9]).unwrap();
        }
        assert_eq!(wire.send(0, &[9; 9]), Err(HalfRefusal::Full));
        wire.run();
        let held: Vec<_> = (0..5).map(|_| wire.receive().unwrap()).collect();
        for (held, _, _) in held[1..].iter().rev() {
            wire.release(*held).unwrap();
            assert_eq!(wire.release(*held), Err(HalfRefusal::NoSuch("held message")));
        }
        wire.acknowledge();
        assert_eq!(wire.send(0, &[9; 9]), Err(HalfRefusal::Full), "the oldest is held");
        wire.run();
        assert_eq!(held[0].2, [0; 9]);
        wire.release(held[0].0).unwrap();
        wire.acknowledge();
        for number in 0..5 {
            send(&mut wire, &[number + 100; 70]);
        }
        wire.run();
        for number in 0..5 {
            assert_eq!(wire.take().unwrap().1, [number + 100; 70]);
        }
    });
}

#[test]
fn a_batch_of_detached_bells_is_one_request() {
    let mut wire = Network::all(Kind::WriteSlotDetached, SHAPE, 1);
    for round in 0..6_u8 {
        for number in 0..3 {
            wire.put(0, &[round, number]).unwrap();
        }
        wire.run();
        assert_eq!(wire.take(), None, "nothing is announced");
        wire.flush(0);
        wire.run();
        for number in 0..3 {
            assert_eq!(wire.take(), Some((0, [round, number].to_vec())));
        }
        wire.acknowledge();
    }
    // Mailboxes 3, 4 and 0 are not all adjacent.
    assert_eq!(wire.requests[0], 18 + 6 + 2);
}

#[test]
fn a_sender_may_choose_its_mailbox() {
    each(|kind, shape| {
        let mut wire = Network::all(kind, shape, 1);
        wire.send(0, b"in turn").unwrap();
        for slot in [3, 1, 4] {
            wire.send_to(slot, &[slot as u8; 30]).unwrap();
        }
        assert_eq!(wire.send_to(3, b"again"), Err(HalfRefusal::Full));
        assert_eq!(wire.send_to(5, b"no slot"), Err(HalfRefusal::NoSuch("slot")));
        wire.send(0, b"the free one").unwrap();
        assert_eq!(wire.send(0, b"one more"), Err(HalfRefusal::Full));
        wire.run();
        assert_eq!(wire.take().unwrap().1, b"in turn");
        for slot in [3, 1, 4] {
            assert_eq!(wire.take().unwrap().1, [slot; 30], "in the order of sending: {kind}");
        }
        assert_eq!(wire.take().unwrap().1, b"the free one");
        wire.acknowledge();
        for round in 0..20 {
            let slot = round * 3 % 5;
            if wire.send_to(slot, &[round as u8; 8]) == Err(HalfRefusal::Full) {
                wire.run();
                wire.send_to(slot, &[round as u8; 8]).unwrap();
            }
            wire.run();
            assert_eq!(wire.take().unwrap().1, [round as u8; 8]);
            wire.acknowledge();
        }
    });
}

#[test]
fn inlined_messages_that_overtake_each_other_wait_for_their_turn() {
    let mut wire = Network::all(Kind::WriteSlotInlined, SHAPE, 1);
    wire.send_to(4, b"first").unwrap();
    wire.send_to(2, b"second").unwrap();
    // The word that enables choosing of mailboxes, and the first message, are delivered last.
    assert_eq!(wire.flying.len(), 3);
    wire.carry(2).unwrap();
    assert_eq!(wire.take(), None);
    wire.carry(0).unwrap();
    assert_eq!(wire.take(), None);
    wire.carry(0).unwrap();
    assert_eq!(wire.take().unwrap().1, b"first");
    assert_eq!(wire.take().unwrap().1, b"second");
}

#[test]
fn bells_that_no_correct_sender_writes_are_violations() {
    let violation = |text| Err(Violation(text));
    for (kind, signal) in WAYS {
        let shape = Shape { signal, ..SHAPE };
        let table = [
            (bell(0, 71), "a length that no message has"),
            (bell(0, u32::MAX), "a length that no message has"),
            (1 << 32, "a length that no message has"),
            (bell(5, 1), "a message out of turn"),
            (bell(u64::MAX, 1), "a message out of turn"),
        ];
        for (word, text) in table {
            let mut wire = Network::all(kind, shape, 1);
            match kind {
                Kind::WriteSlotDetached if signal == Signal::Word => {
                    wire.receivers[0].bells.store_word(BELLS, word).unwrap();
                }
                Kind::WriteSlotInlined => wire.receivers[0].buffer.store_word(120, word).unwrap(),
                _ => continue,
            }
            assert_eq!(wire.try_receive(), violation(text), "{kind} {word:x}");
        }
    }
    let mut wire = Network::all(Kind::WriteSlotInlined, SHAPE, 1);
    wire.receivers[0].bells.store_word(CHOSEN, 9).unwrap();
    wire.receivers[0].buffer.store_word(2 * 128 - 8, bell(2, 8)).unwrap();
    wire.receivers[0].buffer.store_word(3 * 128 - 8, bell(2, 8)).unwrap();
    assert_eq!(wire.try_receive(), violation("a repeated message number"));
}

#[test]
fn announcements_that_no_correct_sender_makes_are_violations() {
    let violation = |text| Err(Violation(text));
    let mut wire = Network::all(Kind::WriteSlotImmediate, SHAPE, 1);
    assert_eq!(wire.intrude(0, 4, None), violation("a message where none comes"));
    let mut wire = Network::all(Kind::WriteSlotImmediate, SHAPE, 1);
    for _ in 0..20 {
        let slot = Some(immediate(0, 5));
        assert_eq!(wire.intrude(0, 4, slot), violation("a slot that does not exist"));
        let turn = Some(immediate(5, 0));
        assert_eq!(wire.intrude(0, 4, turn), violation("a message out of turn"));
        let long = Some(immediate(0, 0));
        assert_eq!(wire.intrude(0, 71, long), violation("a length that no message has"));
    }
    assert_eq!(wire.intrude(0, 4, Some(immediate(1, 1))), Ok(()));
    let again = "a slot that was not released";
    assert_eq!(wire.intrude(0, 4, Some(immediate(2, 1))), violation(again));
    let number = "a repeated message number";
    assert_eq!(wire.intrude(0, 4, Some(immediate(1, 2))), violation(number));

    let shape = Shape { signal: Signal::Message, ..SHAPE };
    let mut wire = Network::all(Kind::WriteSlotDetached, shape, 1);
    let before = violation("a bell before its message");
    assert_eq!(wire.intrude(0, 0, Some(immediate(1, 0))), before);
    wire.receivers[0].buffer.store_word(0, bell(0, 71)).unwrap();
    let long = violation("a length that no message has");
    assert_eq!(wire.intrude(0, 0, Some(immediate(0, 0))), long);
    wire.receivers[0].buffer.store_word(0, bell(0, 70)).unwrap();
    assert_eq!(wire.intrude(0, 0, Some(immediate(0, 0))), Ok(()));
}

#[cfg(canary)]
mod defects {
    use super::super::super::ChannelMutant;
    use super::*;

    fn with(kind: Kind, signal: Signal, mutant: ChannelMutant) -> Network {
        Network::spoiled(kind, Shape { signal, ..SHAPE }, 1, mutant)
    }

    #[test]
    fn a_mailbox_used_too_early_is_noticed() {
        for (kind, signal) in WAYS {
            let mut wire = with(kind, signal, ChannelMutant::SlotReusedEarly);
            for number in 0..5 {
                wire.send(0, &[number; 9]).unwrap();
                wire.run();
                wire.receive().unwrap();
            }
            wire.send(0, &[9; 9]).unwrap();
            let arrived = (0..wire.flying.len()).try_for_each(|_| wire.carry(0));
            assert!(arrived.and_then(|()| wire.try_receive().map(|_| ())).is_err(), "{kind}");
        }
    }

    #[test]
    fn a_bell_that_stays_is_noticed() {
        let mut wire = with(Kind::WriteSlotInlined, Signal::Word, ChannelMutant::BellNotCleared);
        for _ in 0..5 {
            wire.send(0, b"message").unwrap();
            wire.run();
            wire.take().unwrap();
        }
        assert!(wire.try_receive().is_err());
    }

    #[test]
    fn a_bell_before_its_message_is_noticed() {
        let mut wire =
            with(Kind::WriteSlotDetached, Signal::Message, ChannelMutant::BellBeforeData);
        wire.send(0, b"message").unwrap();
        assert!(wire.carry(0).is_err());
        let mut wire = with(Kind::WriteSlotDetached, Signal::Word, ChannelMutant::BellBeforeData);
        wire.send(0, b"message").unwrap();
        wire.carry(0).unwrap();
        assert_ne!(wire.take().unwrap().1, b"message");
    }
}
