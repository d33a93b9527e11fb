//! Layouts, counts of requests, and words that no correct peer writes.

extern crate std;

use super::super::Half as _;
use super::super::half::{Arrival, HalfRefusal, Payload};
use super::super::indirect::place_of;
use super::super::shape::{Shape, Signal};
use super::super::tests::network::Network;
use super::super::tests::suite::SHAPE;
use super::super::{Kind, Name, Peer};
use super::{Boxes, bell_of};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RegionId};

#[test]
fn each_takes_the_requests_that_the_paper_counts() {
    let words = Shape { signal: Signal::Word, ..SHAPE };
    // READs and WRITEs of the receiver; WRITEs and SENDs of the sender (001 Table 2).
    for (kind, shape, receiver, sender) in [
        (Kind::ReadSlotDetached, SHAPE, [2, 0], [0, 0]),
        (Kind::ReadSlotInlined, SHAPE, [1, 0], [0, 0]),
        (Kind::ReadSlotNotify, SHAPE, [1, 0], [0, 1]),
        (Kind::ReadSlotNotify, words, [1, 0], [1, 0]),
    ] {
        let mut net = Network::reader(kind, &shape);
        net.send(0, b"hello").unwrap();
        net.settle().unwrap();
        let before = (net.receivers[0].posted, net.senders[0].posted);
        let [reads, writes, ..] = before.0;
        assert_eq!(net.take_any().unwrap(), b"hello");
        let after = net.receivers[0].posted;
        assert_eq!([after[0] - reads, after[1] - writes], receiver, "{kind}");
        assert_eq!(net.senders[0].posted, [0, sender[0], sender[1], 0], "{kind}");
    }
}

#[test]
fn a_message_is_built_where_it_is_read() {
    for kind in [Kind::ReadSlotDetached, Kind::ReadSlotInlined] {
        let mut net = Network::reader(kind, &SHAPE);
        let slice = net.sender(|half, own, _| half.loan(20, own)).unwrap();
        net.senders[0].buffer.write(slice.offset, b"built in place").unwrap();
        let part = LocalSlice { bytes: 14, ..slice };
        let other = LocalSlice { offset: slice.offset + 8, ..part };
        let mut gather = |slices: &[LocalSlice]| {
            net.sender(|half, own, effects| half.send(Payload::Gather(slices), own, effects))
        };
        assert!(matches!(gather(&[other]), Err(HalfRefusal::Form(_))));
        assert!(matches!(gather(&[part, part]), Err(HalfRefusal::Form(_))));
        let sending = gather(&[part]).unwrap();
        assert!(matches!(gather(&[part]), Err(HalfRefusal::Form(_))), "the loan has ended");
        assert!(!net.senders[0].half.is_done(sending));
        net.take_any().unwrap();
        net.acknowledge();
        assert!(net.senders[0].half.is_done(sending) && net.senders[0].half.is_drained());
        assert_eq!(net.sender(|half, own, _| half.loan(61, own)), None, "too long");
    }
}

#[test]
fn the_slowest_reader_holds_the_sender_until_it_is_lost() {
    let mut net = Network::reader(Kind::ReadSlotDetached, &SHAPE);
    for _ in 0..4 {
        net.send(0, b"x").unwrap();
    }
    assert_eq!(net.send(0, b"x"), Err(HalfRefusal::Full));
    net.connect();
    net.lose_reader(0);
    net.send(0, b"x").unwrap();
    net.lose_reader(1);
    assert_eq!(net.send(0, b"x"), Err(HalfRefusal::Lost));
}

#[test]
fn bells_that_no_correct_sender_rings_are_violations() {
    for (kind, region) in [(Kind::ReadSlotDetached, 1), (Kind::ReadSlotInlined, 0)] {
        let at = if region == 1 { 64 } else { 0 };
        for (bell, text) in [
            (bell_of(0, 61), "a length that no message has"),
            (bell_of(1, 3), "a bell of another message"),
            (u64::MAX, "a bell of another message"),
        ] {
            let mut net = Network::reader(kind, &SHAPE);
            let sender = &net.senders[0];
            let memory = if region == 1 { &sender.bells } else { &sender.buffer };
            memory.store_word(at, bell).unwrap();
            assert_eq!(net.take_any(), Err(Violation(text)), "{kind}");
        }
    }
    // A bell with a message that does not match its checksum is READ once more, and not again.
    let mut net = Network::reader(Kind::ReadSlotInlined, &SHAPE);
    net.senders[0].buffer.store_word(0, bell_of(0, 5)).unwrap();
    let text = "a message with a wrong checksum";
    assert_eq!(net.take_any(), Err(Violation(text)));
}

#[test]
fn notices_and_starts_are_checked() {
    let arrival = |immediate| Arrival { peer: Peer::ONLY, name: Name(0), bytes: 0, immediate };
    let mut one = Network::reader(Kind::ReadSlotNotify, &SHAPE);
    assert_eq!(one.arrive(arrival(Some(61 << 2))), Err(Violation("a length that no message has")));
    assert_eq!(one.arrive(arrival(Some(5 << 2))), Ok(()));
    assert_eq!(one.arrive(arrival(Some(6 << 2))), Err(Violation("two notices of one mailbox")));
    assert_eq!(one.arrive(arrival(None)), Err(Violation("a message where none comes")));
    let three = Shape { slots: 3, ..SHAPE };
    let mut one = Network::reader(Kind::ReadSlotNotify, &three);
    assert_eq!(one.arrive(arrival(Some(3))), Err(Violation("a notice for an unknown mailbox")));
    let mut one = Network::reader(Kind::ReadSlotDetached, &SHAPE);
    assert_eq!(one.arrive(arrival(Some(1))), Err(Violation("a message where none comes")));

    let mut late = Network::new(Kind::ReadSlotDetached, &SHAPE, 1);
    late.lags = false;
    late.connect();
    late.senders[0].bells.store_word(0, u64::MAX).unwrap();
    let started = late.settle().and_then(|()| late.take_any().map(|_| ()));
    assert_eq!(started, Err(Violation("an invalid start")));
}

#[test]
fn places_that_no_correct_receiver_names_are_violations() {
    for (word, text) in [
        (place_of(0, 8 * 64 - 59), "a place outside of the buffer"),
        (place_of(1, 0), "a place of another message"),
    ] {
        let mut net = Network::reader(Kind::ReadSlotIndirect, &SHAPE);
        net.senders[0].bells.store_word(64, word).unwrap();
        assert_eq!(net.send(0, b"x"), Err(HalfRefusal::Full));
        assert_eq!(net.advance(0), Err(Violation(text)));
    }
    let mut one = Network::reader(Kind::ReadSlotDetached, &SHAPE);
    one.senders[0].bells.store_word(8, 1).unwrap();
    assert_eq!(one.advance(0), Err(Violation("acknowledges more than was sent")));
    assert_eq!(one.senders[0].half.accused(), Some(Peer(0)));
}

#[test]
fn an_indirect_message_waits_for_its_place() {
    for signal in [Signal::Message, Signal::Word] {
        let mut net = Network::reader(Kind::ReadSlotIndirect, &Shape { signal, ..SHAPE });
        assert_eq!(net.send(0, b"x"), Err(HalfRefusal::Full));
        let offer = net.offer();
        let mut into = |region, offset, bytes| {
            let into = LocalSlice { region: RegionId(region), offset, bytes };
            net.receive_into(offer.held, into)
        };
        assert!(matches!(into(2, 0, 60), Err(HalfRefusal::Form(_))), "another region");
        assert!(matches!(into(0, 8 * 64 - 59, 60), Err(HalfRefusal::Form(_))), "behind the end");
        assert_eq!(into(0, 0, 59), Err(HalfRefusal::TooLong { bytes_max: 59 }));
        assert_eq!(into(0, 4 * 64 + 3, 60), Ok(()));
        net.settle().unwrap();
        net.send(0, b"there").unwrap();
        net.settle().unwrap();
        assert_eq!(net.fetched(offer.held), Some(5));
        let slice = LocalSlice { region: RegionId(0), offset: 4 * 64 + 3, bytes: 5 };
        assert_eq!(net.receivers[0].get(&slice), b"there");
    }
}

#[test]
fn an_offered_message_is_given_back_unfetched() {
    for kind in [Kind::ReadSlotDetached, Kind::ReadSlotInlined, Kind::ReadSlotNotify] {
        let mut net = Network::reader(kind, &SHAPE);
        // More than there are mailboxes: each is free again when its message was released.
        for round in 0..40_u8 {
            net.send(0, &[round; 9]).unwrap();
            net.settle().unwrap();
            let offer = net.offer();
            let place = offer.place.expect("its length is known");
            let at = LocalSlice { region: RegionId(0), offset: place, bytes: offer.bytes_max };
            assert_eq!(net.senders[0].get(&at), [round; 9], "{kind}");
            assert_eq!(net.release(offer.held), Ok(()), "{kind}");
            assert_eq!(net.release(offer.held), Err(HalfRefusal::NoSuch("held message")), "{kind}");
            net.acknowledge();
        }
    }
}

#[test]
fn numbers_wrap_without_a_bell_that_is_zero() {
    let boxes = Boxes::new(0, &SHAPE);
    let turn = (1 << 40) - 1;
    for number in [0, 3, turn - 1, turn, turn + 1, 5 * turn - 2] {
        assert_ne!(bell_of(number, 0), 0);
        assert_eq!(boxes.rung(number, bell_of(number, 7)), Ok(Some(7)));
        assert_eq!(boxes.rung(number + 4, bell_of(number, 7)), Ok(None));
        assert!(boxes.rung(number + 8, bell_of(number, 7)).is_err());
    }
}

#[test]
fn a_notice_has_32_bits() {
    let long = Shape { message_bytes_max: (1 << 24) - 1, slots: 256, ..SHAPE };
    assert_eq!(long.check(Kind::ReadSlotNotify), Ok(()));
    let many = Shape { slots: 257, ..long };
    assert!(many.check(Kind::ReadSlotNotify).is_err());
    assert_eq!(Shape { signal: Signal::Word, ..many }.check(Kind::ReadSlotNotify), Ok(()));
    assert_eq!(many.check(Kind::ReadSlotDetached), Ok(()));
}
