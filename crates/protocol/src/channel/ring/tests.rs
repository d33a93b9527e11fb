//! Both ways of sending write the same bytes, and joined WRITEs equal the WRITEs that they were made of.

use super::*;
use crate::channel::effects::{Effects, InlineWrite, Peer};
use crate::channel::half::{Content, HalfRefusal, Own, Payload, PeerRegions};
use crate::channel::outbound::PROGRESS;
use crate::channel::shape::Signal;
use crate::channel::tests::network::{OWN, Plain};
use crate::channel::tests::suite;
use crate::channel::{Half as _, Receiver, Sender};
use alloc::format;
use alloc::vec::Vec;
use farside_base::{Memory, Operation, RemoteRegionId, Source};

const PEER: PeerRegions = PeerRegions {
    buffer: RemoteRegionId(0),
    bells: RemoteRegionId(1),
    counters: RemoteRegionId(1),
    number: Peer::ONLY,
};
const KINDS: [Kind; 4] =
    [Kind::RingDetached, Kind::RingImmediate, Kind::RingInlinedZeroing, Kind::RingInlined];

fn shape(mirrored: bool) -> Shape {
    Shape {
        message_bytes_max: 100,
        slots: 16,
        ring_bytes: 4096,
        peers_max: 1,
        mirrored,
        signal: Signal::Word,
        ..suite::SHAPE
    }
}

fn sender(kind: Kind, shape: &Shape, own: Own<'_, Plain>) -> Sender {
    let mut sender = Sender::new(kind, shape, OWN);
    sender.connected(Peer::ONLY, PEER, own, &mut Effects::new(0)).unwrap();
    sender
}

fn head(sender: &Sender) -> u64 {
    let Sender::Ring(half) = sender else { panic!("{sender:?}") };
    half.head_for_tests()
}

fn tail(receiver: &Receiver) -> u64 {
    let Receiver::Ring(half) = receiver else { panic!("{receiver:?}") };
    half.tail_for_tests()
}

fn written(operation: &Operation<'_>) -> (u64, Vec<u8>, Option<u32>) {
    match operation {
        Operation::Write { source: Source::Inline(bytes), to, immediate } => {
            (to.offset, bytes.to_vec(), *immediate)
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn send_at_once_writes_the_same_bytes_as_send() {
    for (kind, mirrored) in KINDS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let shape = shape(mirrored);
        let bells = Plain::new(plan_sender(kind, &shape).bells_bytes);
        let own = Own { buffer: &bells, bells: &bells, counters: &bells };
        let mut plain = sender(kind, &shape, own);
        for number in 0..400_u32 {
            let message: Vec<u8> = (0..number * 37 % 101).map(|at| at as u8).collect();
            let (mut record, mut effects) = (InlineWrite::new(256), Effects::new(0));
            plain.advance(own, &mut effects).unwrap();
            let mut fast = plain.clone();
            let at_once = fast.send_at_once(&message, own, &mut record);
            let sent = plain.send(Payload::Bytes(&message), own, &mut effects);
            match (at_once, sent) {
                (Some(one), Ok(other)) => {
                    assert_eq!(one, other);
                    let [request] = effects.requests() else { panic!("one request") };
                    let expected = written(&effects.operation(request));
                    assert_eq!(written(&record.operation()), expected, "{kind} {number}");
                    assert_eq!(format!("{fast:?}"), format!("{plain:?}"));
                }
                // More than one WRITE, or a full ring.
                (None, Ok(_)) => assert!(kind == Kind::RingDetached || !mirrored, "{kind}"),
                (None, Err(HalfRefusal::Full)) => {
                    // The receiver has processed everything.
                    bells.store_word(PROGRESS, head(&plain)).unwrap();
                }
                other => panic!("{kind}: {other:?}"),
            }
        }
    }
}

fn content(image: &Plain, bytes: u64) -> Vec<u8> {
    let mut out = alloc::vec![0; bytes as usize];
    image.read(0, &mut out).unwrap();
    out
}

#[test]
fn messages_that_share_a_record_are_there_when_the_first_one_is() {
    // Zeroing by a receiver does not reach the second mapping of a mirrored ring in this test.
    let rings =
        [(Kind::RingInlinedZeroing, false), (Kind::RingInlined, false), (Kind::RingInlined, true)];
    for (kind, mirrored) in rings {
        let shape = shape(mirrored);
        let plan = plan_receiver(kind, &shape);
        let bells = Plain::new(plan_sender(kind, &shape).bells_bytes);
        let own = Own { buffer: &bells, bells: &bells, counters: &bells };
        let mut joined = sender(kind, &shape, own);
        let ring = shape.ring_bytes;
        let bytes = if mirrored { 2 * ring } else { plan.buffer_bytes };
        let (image, words) = (Plain::new(bytes), Plain::new(plan.bells_bytes));
        // Both mappings of a mirrored ring.
        let put = |offset: u64, word: &[u8]| {
            image.write(offset, word).unwrap();
            if mirrored {
                image.write((offset + ring) % (2 * ring), word).unwrap();
            }
        };
        let there = Own { buffer: &image, bells: &words, counters: &words };
        let mut receiver = Receiver::new(kind, &shape, OWN);
        let mut effects = Effects::new(0);
        receiver.connected(Peer::ONLY, PEER, there, &mut effects).unwrap();
        let (mut record, mut records, mut received) = (InlineWrite::new(300), 0, 0_u32);
        for number in 0..300_u32 {
            let message = alloc::vec![number as u8 | 1; (number * 13 % 60) as usize];
            while joined.send_at_once(&message, own, &mut record).is_none() {
                if record.is_empty() {
                    // It crosses the end of a ring that is not mirrored: more than one WRITE.
                    assert!(kind == Kind::RingInlined && !mirrored, "{kind} {number}");
                    let mut wanted = Effects::new(0);
                    joined.send(Payload::Bytes(&message), own, &mut wanted).unwrap();
                    for request in wanted.requests() {
                        let (offset, bytes, _) = written(&wanted.operation(request));
                        put(offset, &bytes);
                    }
                    break;
                }
                let (offset, bytes, immediate) = written(&record.operation());
                assert!(immediate.is_none() && bytes.len() <= 300);
                // Word by word in ascending order: a message with a visible bell is complete, and so are the others.
                for (at, word) in bytes.chunks_exact(8).enumerate() {
                    put(offset + 8 * at as u64, word);
                    received += take_whole(&mut receiver, there, received);
                }
                records += 1;
                record.clear();
                bells.store_word(PROGRESS, tail(&receiver)).unwrap();
            }
        }
        assert!(records > 20 && records * 3 < 300, "{kind}: {records}");
        assert!(received > 280, "{kind}: {received}");
    }
}

/// Receives all available messages, numbered from `first` on; returns their number.
fn take_whole(receiver: &mut Receiver, own: Own<'_, Plain>, first: u32) -> u32 {
    let (mut number, mut effects) = (first, Effects::new(0));
    while let Some(received) = receiver.receive(own, &mut effects).unwrap() {
        let Content::Buffer { offset, bytes } = received.content else { panic!("{received:?}") };
        assert_eq!(bytes, number * 13 % 60, "message {number}");
        let mut message = alloc::vec![0; bytes as usize];
        own.buffer.read(offset, &mut message).unwrap();
        assert!(message.iter().all(|byte| *byte == number as u8 | 1), "message {number}");
        receiver.release(received.held, own, &mut effects).unwrap();
        number += 1;
    }
    number - first
}

#[test]
fn joined_writes_put_the_same_bytes_down_in_the_same_order() {
    for kind in [Kind::RingDetached, Kind::RingInlinedZeroing] {
        let shape = shape(false);
        let plan = plan_receiver(kind, &shape);
        let bells = Plain::new(plan_sender(kind, &shape).bells_bytes);
        let own = Own { buffer: &bells, bells: &bells, counters: &bells };
        let (mut apart, mut joined) = (sender(kind, &shape, own), sender(kind, &shape, own));
        let images = [Plain::new(plan.buffer_bytes), Plain::new(plan.buffer_bytes)];
        let mut requests = [0; 2];
        for batch in 0..4 {
            let (mut one, mut other) = (Effects::new(0), Effects::new(300));
            for number in 0..8_u32 {
                let message = alloc::vec![batch as u8 + 1; (number * 13 % 60) as usize];
                apart.send(Payload::Bytes(&message), own, &mut one).unwrap();
                joined.send(Payload::Bytes(&message), own, &mut other).unwrap();
            }
            for ((effects, image), count) in [&one, &other].iter().zip(&images).zip(&mut requests) {
                for request in effects.requests() {
                    let (offset, bytes, immediate) = written(&effects.operation(request));
                    assert!(immediate.is_none() && bytes.len() <= 300);
                    image.write(offset, &bytes).unwrap();
                    *count += 1;
                }
            }
        }
        let contents = images.map(|image| content(&image, plan.buffer_bytes));
        assert_eq!(contents[0], contents[1], "{kind}");
        assert!(requests[1] * 3 < requests[0], "{kind}: {requests:?}");
        // And a receiver finds the messages.
        let image = Plain::new(plan.buffer_bytes);
        image.write(0, &contents[1]).unwrap();
        let words = Plain::new(plan.bells_bytes);
        words.store_word(HEAD, head(&joined)).unwrap();
        let own = Own { buffer: &image, bells: &words, counters: &words };
        let mut receiver = Receiver::new(kind, &shape, OWN);
        let mut effects = Effects::new(0);
        receiver.connected(Peer::ONLY, PEER, own, &mut effects).unwrap();
        let mut count = 0;
        while receiver.receive(own, &mut effects).unwrap().is_some() {
            count += 1;
        }
        assert_eq!(count, 32, "{kind}");
    }
}
