//! The ring on one thread: every fill level, wrapping around, and values that a peer must not write.

use crate::layout::link;
use crate::mapping::OwnMemory;
use crate::options::SEND_BYTES_MAX;
use crate::ring::{Consumer, Geometry, NoPlace, Producer, RingMessageKind, SLOT_BYTES, Violation};
use farside_fabric::Arena;
use std::sync::atomic::Ordering;

const GEOMETRY: Geometry = Geometry { slots: 16, bulk: 64 << 10 };

struct Ring {
    producer: Producer<OwnMemory, OwnMemory>,
    consumer: Consumer<OwnMemory, OwnMemory>,
    sending: Arena,
    receiving: Arena,
    sent: u64,
    received: u64,
}

impl Ring {
    fn new() -> Self {
        let memory = || Arena::heap(GEOMETRY.bytes() as usize);
        let words = |memory: &Arena| OwnMemory::new(memory.clone());
        let (sending, receiving) = (memory(), memory());
        Self {
            producer: Producer::new(words(&sending), words(&receiving), GEOMETRY),
            consumer: Consumer::new(words(&receiving), words(&sending), GEOMETRY),
            sending,
            receiving,
            sent: 0,
            received: 0,
        }
    }

    fn pattern(number: u64, bytes: u32) -> Vec<u8> {
        (0..bytes).map(|at| (number * 31 + u64::from(at) * 7) as u8).collect()
    }

    fn send(&mut self, bytes: u32) -> Result<(), NoPlace> {
        let place = self.producer.reserve(bytes)?;
        let data = Self::pattern(self.sent, bytes);
        self.sending.write(place.payload, &data).expect("within the memory");
        let number = self.sent as u32;
        self.producer.publish(&place, RingMessageKind::SendImmediate, bytes, number);
        self.sent += 1;
        Ok(())
    }

    fn receive(&mut self) -> Option<u32> {
        let message = self.consumer.peek().expect("right headers")?;
        assert_eq!(message.kind, RingMessageKind::SendImmediate);
        assert_eq!(message.immediate, self.received as u32);
        let mut got = vec![0; message.bytes as usize];
        self.sending.read(message.payload, &mut got).expect("within the memory");
        assert_eq!(got, Self::pattern(self.received, message.bytes), "message {}", self.received);
        self.consumer.take(&message);
        self.consumer.settle(false);
        self.received += 1;
        Some(message.bytes)
    }

    /// Writes a header into the slot of the next message to be received.
    fn forge(&self, header: u64) {
        let slot = link::SLOTS + self.received % u64::from(GEOMETRY.slots) * 64;
        self.sending.store(slot, header, Ordering::Release).expect("a slot");
    }

    fn lap(&self) -> u64 {
        self.received / u64::from(GEOMETRY.slots) + 1
    }
}

#[test]
fn all_lengths_pass_in_order_while_the_ring_goes_round() {
    let mut ring = Ring::new();
    let lengths = [0, 1, 8, SLOT_BYTES, SLOT_BYTES + 1, 64, 100, 4096, SEND_BYTES_MAX];
    let mut full = 0;
    for round in 0..4000 {
        let bytes = lengths[(round * 7 + round / 9) % lengths.len()];
        while let Err(reason) = ring.send(bytes) {
            assert_eq!(reason, NoPlace::Full);
            full += 1;
            // Half of it, so that every fill level occurs.
            for _ in 0..=round % 8 {
                ring.receive();
            }
        }
    }
    while ring.receive().is_some() {}
    assert_eq!(ring.received, ring.sent);
    assert!(full > 100, "the ring was full now and then: {full}");
}

#[test]
fn whole_slots_pass_as_other_messages_do() {
    let mut ring = Ring::new();
    for round in 0..100 {
        let sent: Vec<_> =
            (0..round % 17).map(|at| Ring::pattern(round + at, SLOT_BYTES)).collect();
        for data in &sent {
            let whole = data.as_slice().try_into().expect("as many bytes");
            assert!(ring.producer.send_line(whole), "there is room");
        }
        assert!(sent.len() < 16 || !ring.producer.send_line(&[0; SLOT_BYTES as usize]));
        for data in &sent {
            let message = ring.consumer.peek().expect("right headers").expect("a message");
            assert_eq!((message.kind, message.bytes), (RingMessageKind::Send, SLOT_BYTES));
            let mut got = [0; SLOT_BYTES as usize];
            ring.sending.read(message.payload, &mut got).expect("within the memory");
            assert_eq!(got, data[..]);
            ring.consumer.take(&message);
        }
        ring.consumer.settle(false);
        assert_eq!(ring.consumer.peek(), Ok(None));
    }
}

#[test]
fn a_consumer_that_owes_is_idle_until_the_producer_waits() {
    let mut ring = Ring::new();
    let idle = |ring: &Ring| ring.consumer.seen().is_idle(ring.consumer.other());
    assert!(idle(&ring));
    ring.send(8).expect("room");
    assert!(!idle(&ring));
    assert_eq!(ring.receive(), Some(8));
    assert!(idle(&ring), "it owes one slot, for which the producer does not wait");
    for _ in 0..GEOMETRY.slots - 1 {
        ring.send(8).expect("room");
    }
    assert_eq!(ring.send(8), Err(NoPlace::Full));
    assert!(!idle(&ring));
    while ring.receive().is_some() {}
    assert_eq!(ring.send(8), Ok(()));
}

#[test]
fn ring_holds_as_many_as_it_has_slots() {
    let mut ring = Ring::new();
    for _ in 0..GEOMETRY.slots {
        ring.send(8).expect("room");
    }
    assert_eq!(ring.send(8), Err(NoPlace::Full));
    assert_eq!(ring.send(0), Err(NoPlace::Full));
    // A full sender is notified of the first free slot.
    assert_eq!(ring.receive(), Some(8));
    assert_eq!(ring.send(8), Ok(()));
    assert_eq!(ring.send(8), Err(NoPlace::Full));
}

#[test]
fn an_empty_ring_takes_the_longest_message_wherever_it_stands() {
    let mut ring = Ring::new();
    for step in 1..3000 {
        ring.send(57 + step % 5000).expect("an empty ring");
        assert!(ring.receive().is_some());
        ring.send(SEND_BYTES_MAX).expect("an empty ring");
        assert_eq!(ring.receive(), Some(SEND_BYTES_MAX));
    }
}

#[test]
fn lap_numbers_go_round_without_a_gap() {
    let mut ring = Ring::new();
    // One more than all 16-bit laps.
    for _ in 0..u64::from(GEOMETRY.slots) * 65_540 {
        ring.send(0).expect("room");
        assert_eq!(ring.receive(), Some(0));
    }
    assert_eq!(ring.receive(), None);
}

#[test]
fn impossible_headers_are_violations() {
    let mut ring = Ring::new();
    for _ in 0..20 {
        ring.send(8).expect("room");
        ring.receive();
    }
    let lap = ring.lap();
    let header = |kind: u64, bytes: u64, lap: u64| kind << 30 | bytes << 16 | lap;
    ring.forge(header(0, 8, lap - 1));
    assert_eq!(ring.consumer.peek(), Ok(None), "the lap before is no message");
    for (header, what) in [
        (header(0, 8, lap + 1), "a later lap"),
        (header(0, 8, 0), "no lap"),
        (header(0, 8, lap ^ 0x8000), "another lap"),
        (header(3, 8, lap), "no kind"),
        (header(0, u64::from(SEND_BYTES_MAX) + 1, lap), "too long"),
        (header(0, 0x3fff, lap), "far too long"),
        (header(2, 16, lap), "an immediate of another length"),
        (u64::MAX, "junk"),
    ] {
        ring.forge(header);
        assert_eq!(ring.consumer.peek(), Err(Violation), "{what}");
    }
    ring.forge(header(0, 8, lap));
    assert!(ring.consumer.peek().is_ok_and(|message| message.is_some()));
}

#[test]
fn impossible_counts_are_violations() {
    for (slots, bulk, what) in [
        (21, 0, "more than was sent"),
        (u64::MAX, 0, "all there is"),
        (3, 0, "less than before"),
        (4, 1, "bulk that was not sent"),
        (4, u64::MAX, "all bulk"),
    ] {
        let mut ring = Ring::new();
        for _ in 0..16 {
            ring.send(8).expect("room");
        }
        for _ in 0..4 {
            ring.receive();
        }
        // Learns that four were taken.
        for _ in 0..4 {
            ring.send(8).expect("room");
        }
        ring.receiving.store(link::SLOTS_TAKEN, slots, Ordering::Release).expect("a word");
        ring.receiving.store(link::BULK_TAKEN, bulk, Ordering::Release).expect("a word");
        assert_eq!(ring.send(8), Err(NoPlace::Violation), "{what}");
    }
}
