//! Counts of requests, the joint of a ring, and words that no correct peer writes.

extern crate std;

use super::super::half::{Arrival, HalfRefusal};
use super::super::shape::{Shape, Signal};
use super::super::tests::network::Network;
use super::super::tests::suite::SHAPE;
use super::super::{Kind, Name, Peer};
use super::sequence;
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RegionId};
use std::vec::Vec;

const PREFETCHED: Shape = Shape { prefetch_bytes: 120, ..SHAPE };

#[test]
fn each_takes_the_requests_that_the_paper_counts() {
    let words = Shape { signal: Signal::Word, ..SHAPE };
    // READs for one message, for three at once; WRITEs and SENDs of the sender for each batch.
    for (kind, shape, one, three, sender) in [
        (Kind::ReadRingDetached, SHAPE, 2, 2, [0, 0]),
        (Kind::ReadRingInlined, SHAPE, 2, 4, [0, 0]),
        (Kind::ReadRingInlined, PREFETCHED, 1, 1, [0, 0]),
        (Kind::ReadRingNotify, SHAPE, 1, 1, [0, 1]),
        (Kind::ReadRingNotify, words, 1, 1, [1, 0]),
    ] {
        let mut net = Network::reader(kind, &shape);
        for (batch, reads) in [(1, one), (3, three)] {
            let before = net.senders[0].posted;
            for _ in 0..batch {
                net.put(0, b"hello").unwrap();
            }
            net.flush(0);
            net.settle().unwrap();
            assert_eq!(net.senders[0].posted[1..3], [before[1] + sender[0], before[2] + sender[1]]);
            let before = net.receivers[0].posted[0];
            for _ in 0..batch {
                assert_eq!(net.take_any().unwrap(), b"hello");
            }
            let taken = net.receivers[0].posted[0] - before;
            // While messages keep arriving, one READ ahead may be in flight.
            assert!(taken == reads || taken == reads + 1 && batch > 1, "{kind}: {taken}");
        }
    }
}

#[test]
fn records_pass_the_end_of_the_ring() {
    for shape in [SHAPE, PREFETCHED] {
        for kind in [Kind::ReadRingDetached, Kind::ReadRingInlined, Kind::ReadRingNotify] {
            let mut net = Network::reader(kind, &shape);
            for bytes in (0..=60).chain(0..=60) {
                let message: Vec<_> = (0..bytes).map(|at| at ^ 0x55).collect();
                net.send(0, &message).unwrap();
                net.settle().unwrap();
                assert_eq!(net.take_any().unwrap(), message, "{kind}");
                net.acknowledge();
            }
        }
    }
}

#[test]
fn a_message_is_fetched_to_where_the_caller_named() {
    for (kind, shape, reads) in [
        (Kind::ReadRingDetached, SHAPE, 2),
        (Kind::ReadRingInlined, SHAPE, 2),
        (Kind::ReadRingInlined, PREFETCHED, 2),
        (Kind::ReadRingNotify, SHAPE, 1),
    ] {
        let mut net = Network::reader(kind, &shape);
        net.send(0, b"straight there").unwrap();
        net.settle().unwrap();
        let before = net.receivers[0].posted[0];
        let offer = net.offer();
        let into = LocalSlice { region: RegionId(2), offset: 5, bytes: offer.bytes_max };
        let short = LocalSlice { bytes: 13, ..into };
        let refusal = HalfRefusal::TooLong { bytes_max: 13 };
        assert_eq!(net.receive_into(offer.held, short), Err(refusal));
        assert_eq!(net.receive_into(offer.held, into), Ok(()));
        net.settle().unwrap();
        assert_eq!(net.fetched(offer.held), Some(14), "{kind}");
        let slice = LocalSlice { bytes: 14, ..into };
        assert_eq!(net.receivers[0].get(&slice), b"straight there");
        assert_eq!(net.receivers[0].posted[0] - before, reads, "{kind}");
    }
}

#[test]
fn an_offered_message_is_given_back_unfetched_where_its_length_is_known() {
    for (kind, shape, known) in [
        (Kind::ReadRingDetached, SHAPE, false),
        (Kind::ReadRingInlined, SHAPE, true),
        (Kind::ReadRingInlined, PREFETCHED, true),
        (Kind::ReadRingNotify, SHAPE, false),
    ] {
        let mut net = Network::reader(kind, &shape);
        for round in 0..if known { 40_u8 } else { 1 } {
            net.send(0, &[round; 30]).unwrap();
            net.settle().unwrap();
            let offer = net.offer();
            let back = net.release(offer.held);
            assert_eq!((offer.place.is_some(), back.is_ok()), (known, known), "{kind}");
            if let Some(offset) = offer.place {
                let at = LocalSlice { region: RegionId(0), offset, bytes: offer.bytes_max };
                assert_eq!(net.senders[0].get(&at), [round; 30], "{kind}");
            }
            net.acknowledge();
        }
    }
}

#[test]
fn heads_and_bells_that_no_correct_sender_stores_are_violations() {
    for (head, text) in [
        (264, "a head out of range"),
        (12, "a head out of range"),
        (16, "a head before its message"),
    ] {
        let mut net = Network::reader(Kind::ReadRingDetached, &SHAPE);
        net.senders[0].bells.store_word(64, head).unwrap();
        assert_eq!(net.take_any(), Err(Violation(text)));
    }
    for (length, text) in [(62, "a length that no message has"), (10, "a message beyond the head")]
    {
        let mut net = Network::reader(Kind::ReadRingDetached, &SHAPE);
        net.senders[0].buffer.store_word(0, length).unwrap();
        net.senders[0].bells.store_word(64, 16).unwrap();
        assert_eq!(net.take_any(), Err(Violation(text)));
    }
    for (bell, text) in [
        (u64::MAX, "a bell of another message"),
        ((sequence(8) << 24) | 3, "a bell of another message"),
        ((sequence(0) << 24) | 61, "a length that no message has"),
        ((sequence(0) << 24) | 3, "a message with a wrong checksum"),
    ] {
        let mut net = Network::reader(Kind::ReadRingInlined, &PREFETCHED);
        net.senders[0].buffer.store_word(0, bell).unwrap();
        assert_eq!(net.take_any(), Err(Violation(text)));
    }
    let mut one = Network::reader(Kind::ReadRingInlined, &SHAPE);
    one.senders[0].buffer.store_word(0, u64::MAX).unwrap();
    assert_eq!(one.take_any(), Err(Violation("a length that no message has")));
}

#[test]
fn old_notices_are_old_and_wrong_ones_are_violations() {
    let arrival = |immediate| Arrival { peer: Peer::ONLY, name: Name(0), bytes: 0, immediate };
    let mut net = Network::reader(Kind::ReadRingNotify, &SHAPE);
    net.send(0, b"12345678").unwrap();
    net.settle().unwrap();
    assert_eq!(net.take_any().unwrap(), b"12345678");
    assert_eq!(net.arrive(arrival(Some(1))), Ok(()), "overtaken");
    assert_eq!(net.try_receive(), Ok(None));
    assert_eq!(net.arrive(arrival(Some(35))), Err(Violation("a head out of range")));
    assert_eq!(net.arrive(arrival(None)), Err(Violation("a message where none comes")));
}

#[test]
fn more_notices_than_receives_wait() {
    for signal in [Signal::Message, Signal::Word] {
        let shape = Shape { slots: 2, signal, ..SHAPE };
        let mut net = Network::reader(Kind::ReadRingNotify, &shape);
        for _ in 0..5 {
            net.send(0, b"x").unwrap();
            net.settle().unwrap();
        }
        assert_eq!(net.senders[0].posted.iter().sum::<usize>(), 2);
        for _ in 0..2 {
            net.take_any().unwrap();
        }
        net.settle().unwrap();
        net.advance(0).unwrap();
        net.settle().unwrap();
        for _ in 0..3 {
            net.take_any().unwrap();
        }
        assert_eq!(net.senders[0].posted.iter().sum::<usize>(), 3, "one notice for the rest");
    }
}
