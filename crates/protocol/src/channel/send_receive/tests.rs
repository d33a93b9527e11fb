extern crate std;

use super::super::half::HalfRefusal;
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::super::tests::network::Network;
use super::super::tests::suite;
use crate::wire::Violation;
use std::vec::Vec;

const SHAPE: Shape = Shape { message_bytes_max: 20, slots: 6, ..suite::SHAPE };

#[test]
fn integers_need_no_memory() {
    let mut wire = Network::all(Kind::SendBufferless, SHAPE, 1);
    assert_eq!(super::plan_receiver(Kind::SendBufferless, &SHAPE).buffer_bytes, 0);
    for number in 0..40_u32 {
        wire.send(0, &number.to_le_bytes()).unwrap();
        wire.run();
        assert_eq!(wire.take(), Some((0, number.to_le_bytes().to_vec())));
    }
    let form = HalfRefusal::Form("exactly four bytes, a little-endian integer");
    assert_eq!(wire.send(0, &[1; 3]), Err(form));
    assert_eq!(wire.send(0, &[1; 5]), Err(HalfRefusal::TooLong { bytes_max: 4 }));
    assert_eq!(wire.gather(0, &[1; 4]), Err(HalfRefusal::Form("bytes, not slices")));
}

#[test]
fn sender_stops_without_credits_and_resumes_with_them() {
    for (kind, credits) in [(Kind::Send, 6), (Kind::SendShared, 2), (Kind::SendBufferless, 6)] {
        let mut wire = Network::all(kind, SHAPE, 1);
        for _ in 0..credits {
            wire.send(0, &[7; 4]).unwrap();
        }
        assert_eq!(wire.send(0, &[7; 4]), Err(HalfRefusal::Full));
        wire.run();
        assert_eq!(wire.send(0, &[7; 4]), Err(HalfRefusal::Full), "received is not released");
        let held: Vec<_> = (0..credits).map(|_| wire.receive().unwrap().0).collect();
        // In any order; half of them are acknowledged at once.
        for held in held.iter().rev() {
            assert_eq!(wire.release(*held), Ok(()));
            assert_eq!(wire.release(*held), Err(HalfRefusal::NoSuch("held message")));
        }
        wire.run();
        for _ in 0..credits {
            wire.send(0, &[8; 4]).unwrap();
        }
        assert_eq!(wire.send(0, &[8; 4]), Err(HalfRefusal::Full));
        wire.run();
        assert!(!wire.senders[0].half.is_drained());
    }
}

#[test]
fn too_long_message_is_refused_without_effect() {
    let mut wire = Network::all(Kind::Send, SHAPE, 1);
    assert_eq!(wire.send(0, &[0; 21]), Err(HalfRefusal::TooLong { bytes_max: 20 }));
    assert!(wire.flying.is_empty() && wire.senders[0].half.is_drained());
}

#[test]
fn senders_share_receives_and_have_credits_of_their_own() {
    let mut wire = Network::all(Kind::SendShared, SHAPE, 3);
    for sender in 0..3 {
        wire.send(sender, &[sender as u8; 9]).unwrap();
        wire.send(sender, &[sender as u8; 8]).unwrap();
        assert_eq!(wire.send(sender, &[1]), Err(HalfRefusal::Full));
    }
    wire.run();
    // The messages of one sender are released, which unblocks that one alone.
    let all: Vec<_> = (0..6).map(|_| wire.receive().unwrap()).collect();
    assert!(all.iter().all(|(_, from, bytes)| bytes.iter().all(|byte| u16::from(*byte) == *from)));
    for (held, ..) in all.iter().filter(|(_, from, _)| *from == 1) {
        wire.release(*held).unwrap();
    }
    wire.run();
    assert_eq!(wire.send(0, &[1]), Err(HalfRefusal::Full));
    wire.send(1, &[1]).unwrap();
    wire.run();
    assert_eq!(wire.take(), Some((1, [1].to_vec())));
    let bytes = |peers_max| super::plan_receiver(Kind::SendShared, &Shape { peers_max, ..SHAPE });
    assert_eq!(bytes(1), bytes(6), "memory does not grow with senders");
}

#[test]
fn messages_of_a_lost_sender_are_received_and_its_receives_serve_again() {
    let mut wire = Network::all(Kind::SendShared, SHAPE, 2);
    wire.send(0, &[1; 4]).unwrap();
    wire.send(0, &[2; 4]).unwrap();
    wire.run();
    let (held, ..) = wire.receive().unwrap();
    wire.lose(0);
    assert_eq!(wire.take(), Some((0, [2; 4].to_vec())));
    wire.reconnect(0);
    wire.release(held).unwrap();
    wire.run();
    assert!(wire.senders[0].half.is_drained(), "old releases are no credit of the new one");
    for round in 0..20_u8 {
        for sender in 0..2 {
            wire.send(sender, &[round; 5]).unwrap();
            wire.send(sender, &[round; 5]).unwrap();
        }
        wire.run();
        for _ in 0..4 {
            assert_eq!(wire.take().unwrap().1, [round; 5]);
        }
        wire.acknowledge();
    }
}

#[test]
fn invalid_messages_are_violations_and_cost_no_receive() {
    let mut wire = Network::all(Kind::SendShared, SHAPE, 2);
    let violation = |text| Err(Violation(text));
    for _ in 0..30 {
        assert_eq!(wire.intrude(1, 4, Some(3)), violation("an integer instead of a message"));
        assert_eq!(wire.intrude(1, 21, None), violation("a length that no message has"));
        assert_eq!(wire.intrude(7, 4, None), violation("a message from an unknown sender"));
    }
    assert_eq!(wire.intrude(1, 4, None), Ok(()));
    assert_eq!(wire.intrude(1, 4, None), Ok(()));
    assert_eq!(wire.intrude(1, 4, None), violation("more messages than receives"));
    wire.send(0, &[1; 4]).unwrap();
    wire.send(0, &[2; 4]).unwrap();
    wire.run();
    let mut wire = Network::all(Kind::SendBufferless, SHAPE, 1);
    assert_eq!(wire.intrude(0, 4, Some(3)), violation("bytes instead of an integer"));
    assert_eq!(wire.intrude(0, 0, None), violation("a message without its integer"));
}

#[cfg(canary)]
#[test]
#[should_panic(expected = "a message meets an empty queue")]
fn one_credit_too_many_meets_an_empty_queue() {
    let mutant = super::super::ChannelMutant::CreditOffByOne;
    let mut wire = Network::spoiled(Kind::Send, SHAPE, 1, mutant);
    for _ in 0..7 {
        wire.send(0, &[1; 4]).unwrap();
    }
    wire.run();
}
