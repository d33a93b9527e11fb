//! Counts of requests, the joint of a ring, and words that no correct peer writes.

extern crate std;

use super::super::half::{Arrival, Content, Half as _, HalfRefusal, Payload, Received};
use super::super::plain::Net;
use super::super::reading_tests::SHAPE;
use super::super::shape::{Shape, Signal};
use super::super::{Kind, Name, Peer};
use super::sequence;
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RegionId};
use std::vec::Vec;

const PREFETCHED: Shape = Shape { prefetch_bytes: 120, ..SHAPE };

fn net(kind: Kind, shape: &Shape) -> Net {
    let mut net = Net::new(kind, shape, 1);
    net.lags = false;
    net.connect();
    net.settle().unwrap();
    assert_eq!(receive(&mut net), Ok(None));
    net.settle().unwrap();
    net
}

fn send(net: &mut Net, message: &[u8]) -> Result<(), HalfRefusal> {
    net.sender(|half, own, effects| half.send(Payload::Bytes(message), own, effects)).map(|_| ())
}

fn flush(net: &mut Net) {
    net.sender(|half, own, effects| half.flush(own, effects));
    net.settle().unwrap();
}

fn receive(net: &mut Net) -> Result<Option<Received>, Violation> {
    net.receiver(0, |half, own, effects| half.receive(own, effects))
}

fn take(net: &mut Net) -> Result<Vec<u8>, Violation> {
    for _ in 0..8 {
        if let Some(received) = receive(net)? {
            let Content::Buffer { offset, bytes } = received.content else { panic!("bytes") };
            net.receiver(0, |half, own, effects| half.release(received.held, own, effects))
                .unwrap();
            return Ok(net.readers[0].1.get(&LocalSlice { region: RegionId(0), offset, bytes }));
        }
        net.settle()?;
    }
    panic!("no message")
}

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
        let mut net = net(kind, &shape);
        for (batch, reads) in [(1, one), (3, three)] {
            let before = net.at_sender.posted;
            for _ in 0..batch {
                send(&mut net, b"hello").unwrap();
            }
            flush(&mut net);
            assert_eq!(net.at_sender.posted, [0, before[1] + sender[0], before[2] + sender[1]]);
            let before = net.readers[0].1.posted[0];
            for _ in 0..batch {
                assert_eq!(take(&mut net).unwrap(), b"hello");
            }
            let taken = net.readers[0].1.posted[0] - before;
            // While messages keep arriving, one READ ahead may be in flight.
            assert!(taken == reads || taken == reads + 1 && batch > 1, "{kind}: {taken}");
        }
    }
}

#[test]
fn records_pass_the_end_of_the_ring() {
    for shape in [SHAPE, PREFETCHED] {
        for kind in [Kind::ReadRingDetached, Kind::ReadRingInlined, Kind::ReadRingNotify] {
            let mut net = net(kind, &shape);
            for bytes in (0..=60).chain(0..=60) {
                let message: Vec<_> = (0..bytes).map(|at| at ^ 0x55).collect();
                send(&mut net, &message).unwrap();
                flush(&mut net);
                assert_eq!(take(&mut net).unwrap(), message, "{kind}");
                net.receiver(0, |half, own, effects| half.acknowledge(own, effects));
                net.settle().unwrap();
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
        let mut net = net(kind, &shape);
        send(&mut net, b"straight there").unwrap();
        flush(&mut net);
        let before = net.readers[0].1.posted[0];
        let ask = |net: &mut Net| {
            let offer = net.receiver(0, |half, own, effects| half.offer(own, effects)).unwrap();
            net.settle().unwrap();
            offer
        };
        let offer = ask(&mut net).or_else(|| ask(&mut net)).unwrap();
        let into = LocalSlice { region: RegionId(2), offset: 5, bytes: offer.bytes_max };
        let short = LocalSlice { bytes: 13, ..into };
        let result = net
            .receiver(0, |half, own, effects| half.receive_into(offer.held, short, own, effects));
        assert_eq!(result, Err(HalfRefusal::TooLong { bytes_max: 13 }));
        let result =
            net.receiver(0, |half, own, effects| half.receive_into(offer.held, into, own, effects));
        assert_eq!(result, Ok(()));
        net.settle().unwrap();
        let fetched = net.receiver(0, |half, own, effects| half.fetched(offer.held, own, effects));
        assert_eq!(fetched, Some(14), "{kind}");
        let slice = LocalSlice { bytes: 14, ..into };
        assert_eq!(net.readers[0].1.get(&slice), b"straight there");
        assert_eq!(net.readers[0].1.posted[0] - before, reads, "{kind}");
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
        let mut net = net(kind, &shape);
        for round in 0..if known { 40_u8 } else { 1 } {
            send(&mut net, &[round; 30]).unwrap();
            flush(&mut net);
            let offer = loop {
                let offered = net.receiver(0, |half, own, effects| half.offer(own, effects));
                net.settle().unwrap();
                if let Some(offer) = offered.unwrap() {
                    break offer;
                }
            };
            let back = net.receiver(0, |half, own, effects| half.release(offer.held, own, effects));
            assert_eq!((offer.place.is_some(), back.is_ok()), (known, known), "{kind}");
            if let Some(offset) = offer.place {
                let at = LocalSlice { region: RegionId(0), offset, bytes: offer.bytes_max };
                assert_eq!(net.at_sender.get(&at), [round; 30], "{kind}");
            }
            net.receiver(0, |half, own, effects| half.acknowledge(own, effects));
            net.settle().unwrap();
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
        let mut net = net(Kind::ReadRingDetached, &SHAPE);
        net.at_sender.regions[1].store_word(64, head).unwrap();
        assert_eq!(take(&mut net), Err(Violation(text)));
    }
    for (length, text) in [(62, "a length that no message has"), (10, "a message beyond the head")]
    {
        let mut net = net(Kind::ReadRingDetached, &SHAPE);
        net.at_sender.regions[0].store_word(0, length).unwrap();
        net.at_sender.regions[1].store_word(64, 16).unwrap();
        assert_eq!(take(&mut net), Err(Violation(text)));
    }
    for (bell, text) in [
        (u64::MAX, "a bell of another message"),
        ((sequence(8) << 24) | 3, "a bell of another message"),
        ((sequence(0) << 24) | 61, "a length that no message has"),
        ((sequence(0) << 24) | 3, "a message with a wrong checksum"),
    ] {
        let mut net = net(Kind::ReadRingInlined, &PREFETCHED);
        net.at_sender.regions[0].store_word(0, bell).unwrap();
        assert_eq!(take(&mut net), Err(Violation(text)));
    }
    let mut one = net(Kind::ReadRingInlined, &SHAPE);
    one.at_sender.regions[0].store_word(0, u64::MAX).unwrap();
    assert_eq!(take(&mut one), Err(Violation("a length that no message has")));
}

#[test]
fn old_notices_are_old_and_wrong_ones_are_violations() {
    let arrive = |net: &mut Net, immediate| {
        net.receiver(0, |half, own, effects| {
            let arrival = Arrival { peer: Peer::ONLY, name: Name(0), bytes: 0, immediate };
            half.arrived(arrival, own, effects)
        })
    };
    let mut net = net(Kind::ReadRingNotify, &SHAPE);
    send(&mut net, b"12345678").unwrap();
    flush(&mut net);
    assert_eq!(take(&mut net).unwrap(), b"12345678");
    assert_eq!(arrive(&mut net, Some(1)), Ok(()), "overtaken");
    assert_eq!(receive(&mut net), Ok(None));
    assert_eq!(arrive(&mut net, Some(35)), Err(Violation("a head out of range")));
    assert_eq!(arrive(&mut net, None), Err(Violation("a message where none comes")));
}

#[test]
fn more_notices_than_receives_wait() {
    for signal in [Signal::Message, Signal::Word] {
        let shape = Shape { slots: 2, signal, ..SHAPE };
        let mut net = net(Kind::ReadRingNotify, &shape);
        for _ in 0..5 {
            send(&mut net, b"x").unwrap();
            flush(&mut net);
        }
        assert_eq!(net.at_sender.posted.iter().sum::<usize>(), 2);
        for _ in 0..2 {
            take(&mut net).unwrap();
        }
        net.settle().unwrap();
        net.sender(|half, own, effects| half.advance(own, effects)).unwrap();
        net.settle().unwrap();
        for _ in 0..3 {
            take(&mut net).unwrap();
        }
        assert_eq!(net.at_sender.posted.iter().sum::<usize>(), 3, "one notice for the rest");
    }
}
