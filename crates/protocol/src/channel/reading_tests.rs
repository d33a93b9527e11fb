//! Randomized tests of both families with peers that READ the sender's memory: every channel and shape, messages of
//! all lengths, readers that connect late and disconnect, releases in any order, and an adversary that carries out
//! requests in any order and takes each word of a READ from any moment.

extern crate std;

use super::half::{Content, Half as _, HalfRefusal, HeldMessage, Payload};
use super::kind::Kind;
use super::plain::Net;
use super::shape::{Acknowledge, DeviceWords, Shape, Signal};
use farside_base::{LocalSlice, RegionId};
use std::format;
use std::string::String;
use std::vec::Vec;

pub(super) const KINDS: [Kind; 7] = [
    Kind::ReadSlotDetached,
    Kind::ReadSlotInlined,
    Kind::ReadSlotNotify,
    Kind::ReadSlotIndirect,
    Kind::ReadRingDetached,
    Kind::ReadRingInlined,
    Kind::ReadRingNotify,
];

pub(super) const SHAPE: Shape = Shape {
    message_bytes_max: 60,
    slots: 4,
    ring_bytes: 256,
    peers_max: 3,
    mirrored: false,
    prefetch_bytes: 0,
    acknowledge: Acknowledge::Word,
    signal: Signal::Message,
    device: DeviceWords::Nothing,
    piece_bytes: 1 << 16,
};

/// The expectations of a reader.
struct ExpectedReader {
    /// The next message.
    next: u64,
    held: Vec<HeldMessage>,
    /// An offer that is being fetched, and its destination.
    offer: Option<(HeldMessage, LocalSlice)>,
    /// It currently takes messages by offers.
    offers: bool,
    living: bool,
}

fn message(number: u64, max: u32) -> Vec<u8> {
    let bytes = (number * 29 % (u64::from(max) + 1)) as usize;
    (0..bytes).map(|at| (number * 31 + at as u64 * 7) as u8).collect()
}

struct ReadingRun {
    net: Net,
    readers: Vec<ExpectedReader>,
    sent: u64,
}

impl ReadingRun {
    fn fail<T>(&self, what: impl core::fmt::Debug) -> Result<T, String> {
        Err(format!("{:?} after {} messages", what, self.sent))
    }

    fn connect(&mut self) {
        let number = self.net.connect();
        assert_eq!(number, self.readers.len());
        let (held, next) = (Vec::new(), self.sent);
        self.readers.push(ExpectedReader { next, held, offer: None, offers: false, living: true });
    }

    fn send(&mut self) -> Result<(), String> {
        let bytes = message(self.sent, self.net.shape.message_bytes_max);
        let lend = self.net.chance.below(3) == 0;
        let result = self.net.sender(|half, own, effects| {
            if lend && let Some(slice) = half.loan(bytes.len() as u32, own) {
                farside_base::Memory::write(own.buffer, slice.offset, &bytes).unwrap();
                return half.send(Payload::Gather(&[slice]), own, effects);
            }
            half.send(Payload::Bytes(&bytes), own, effects)
        });
        match result {
            Ok(_) => self.sent += 1,
            Err(HalfRefusal::Full | HalfRefusal::Lost) => {}
            Err(refusal) => return self.fail(refusal),
        }
        // Readers that connect now do not get unannounced messages, but learn of them later: batches are left open at
        // random only while no reader connects.
        if self.readers.len() == 3 && self.net.chance.below(2) == 0 {
            return Ok(());
        }
        self.net.sender(|half, own, effects| half.flush(own, effects));
        Ok(())
    }

    fn expect(&mut self, number: usize, bytes: &[u8]) -> Result<(), String> {
        let next = self.readers[number].next;
        if next >= self.sent || bytes != message(next, self.net.shape.message_bytes_max) {
            return self.fail(format!("reader {number} has something else for message {next}"));
        }
        self.readers[number].next += 1;
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), String> {
        if self.readers[number].offers {
            return self.fetch(number);
        }
        let received = self.net.receiver(number, |half, own, effects| half.receive(own, effects));
        match received {
            Err(violation) => self.fail(violation),
            Ok(None) => Ok(()),
            Ok(Some(received)) => {
                let Content::Buffer { offset, bytes } = received.content else {
                    return self.fail("an integer");
                };
                let slice = LocalSlice { region: RegionId(0), offset, bytes };
                let bytes = self.net.readers[number].1.get(&slice);
                self.readers[number].held.push(received.held);
                self.expect(number, &bytes)
            }
        }
    }

    fn fetch(&mut self, number: usize) -> Result<(), String> {
        if let Some((held, into)) = self.readers[number].offer {
            let fetched =
                self.net.receiver(number, |half, own, effects| half.fetched(held, own, effects));
            let Some(bytes) = fetched else { return Ok(()) };
            self.readers[number].offer = None;
            let bytes = self.net.readers[number].1.get(&LocalSlice { bytes, ..into });
            return self.expect(number, &bytes);
        }
        let offer = self.net.receiver(number, |half, own, effects| half.offer(own, effects));
        let offer = match offer {
            Err(violation) => return self.fail(violation),
            Ok(None) => return Ok(()),
            Ok(Some(offer)) => offer,
        };
        let (region, offset) = match self.net.kind {
            Kind::ReadSlotIndirect => (RegionId(0), u64::from(self.net.shape.slots) * 64),
            _ => (RegionId(2), 24),
        };
        let into = LocalSlice { region, offset, bytes: offer.bytes_max };
        let result = self.net.receiver(number, |half, own, effects| {
            half.receive_into(offer.held, into, own, effects)
        });
        if let Err(refusal) = result {
            return self.fail(refusal);
        }
        self.readers[number].offer = Some((offer.held, into));
        Ok(())
    }

    fn release(&mut self, number: usize) -> Result<(), String> {
        let held = self.readers[number].held.len();
        if held == 0 {
            return Ok(());
        }
        let at = self.net.chance.below(held);
        let held = self.readers[number].held.swap_remove(at);
        let result =
            self.net.receiver(number, |half, own, effects| half.release(held, own, effects));
        result.or_else(|refusal| self.fail(refusal))
    }

    fn living(&mut self) -> Option<usize> {
        let living: Vec<_> =
            (0..self.readers.len()).filter(|at| self.readers[*at].living).collect();
        if living.is_empty() { None } else { Some(living[self.net.chance.below(living.len())]) }
    }

    fn step(&mut self) -> Result<(), String> {
        let act = self.net.chance.below(20);
        let reader = self.living();
        match (act, reader) {
            (0..=4, _) => self.send(),
            (5..=8, Some(number)) => self.receive(number),
            (9..=10, Some(number)) => self.release(number),
            (11, _) => {
                let result = self.net.sender(|half, own, effects| half.advance(own, effects));
                result.or_else(|violation| self.fail(violation))
            }
            (12, Some(number)) => {
                self.net.receiver(number, |half, own, effects| half.acknowledge(own, effects));
                // Indirect messages that were requested go to their requested destination.
                let quiet =
                    self.readers[number].offer.is_none() && self.net.kind != Kind::ReadSlotIndirect;
                if quiet && self.net.chance.below(4) == 0 {
                    self.switch(number);
                }
                Ok(())
            }
            _ => self.net.carry_any().or_else(|violation| self.fail(violation)),
        }
    }

    /// Switches between `receive` and offers, once everything fetched is taken.
    fn switch(&mut self, number: usize) {
        if self.net.kind.family() == super::kind::Family::ReadRing
            || self.readers[number].next == self.sent
        {
            self.readers[number].offers ^= true;
        }
    }

    /// Runs until every message is received and acknowledged.
    fn drain(&mut self) -> Result<(), String> {
        for _ in 0..20_000 {
            if self.sender_is_drained() {
                return Ok(());
            }
            self.net.sender(|half, own, effects| half.flush(own, effects));
            for number in 0..self.readers.len() {
                if self.readers[number].living {
                    self.receive(number)?;
                    self.release(number)?;
                    self.net.receiver(number, |half, own, effects| half.acknowledge(own, effects));
                }
            }
            let result = self.net.sender(|half, own, effects| half.advance(own, effects));
            result.or_else(|violation| self.fail(violation))?;
            self.net.carry_any().or_else(|violation| self.fail(violation))?;
        }
        let next: Vec<_> = self.readers.iter().map(|reader| reader.next).collect();
        self.fail(format!("stuck, readers at {next:?}"))
    }

    fn sender_is_drained(&self) -> bool {
        let all = |reader: &ExpectedReader| !reader.living || reader.next == self.sent;
        // By message, the last acknowledgements may be too small to be sent.
        let told = self.net.shape.acknowledge == Acknowledge::Message;
        (told || self.net.sender.is_drained()) && self.readers.iter().all(all)
    }
}

/// Makes one run; returns the failure.
pub(super) fn run(
    kind: Kind,
    shape: &Shape,
    seed: u64,
    spoil: impl FnOnce(&mut Net),
) -> Result<u64, String> {
    let mut net = Net::new(kind, shape, seed);
    spoil(&mut net);
    let mut run = ReadingRun { net, readers: Vec::new(), sent: 0 };
    run.connect();
    if seed % 3 == 1 && kind != Kind::ReadSlotIndirect {
        run.connect();
    }
    run.readers[0].offers = seed % 4 >= 2;
    for at in 0..400 {
        run.step()?;
        let shared = kind.shares_sender() && run.readers.len() < 3;
        if shared && at % 130 == 100 {
            run.connect();
        }
        if run.readers.len() > 2 && at == 300 && seed.is_multiple_of(5) {
            run.net.lose(0);
            run.readers[0].living = false;
        }
    }
    run.drain()?;
    Ok(run.sent)
}

pub(super) fn shapes(kind: Kind) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for acknowledge in [Acknowledge::Word, Acknowledge::Message, Acknowledge::ReadTail] {
        for signal in [Signal::Message, Signal::Word] {
            for (slots, ring_bytes, prefetch_bytes) in [(4, 256, 0), (1, 256, 40), (3, 512, 300)] {
                let shape =
                    Shape { acknowledge, signal, slots, ring_bytes, prefetch_bytes, ..SHAPE };
                if kind.has_second_channel() || signal == Signal::Message {
                    shapes.push(shape);
                }
            }
        }
    }
    shapes
}

#[test]
fn messages_come_in_order_whatever_the_wires_do() {
    for kind in KINDS {
        for shape in shapes(kind) {
            let mut all = 0;
            for seed in 0..24 {
                match run(kind, &shape, seed, |_| {}) {
                    Ok(sent) => all += sent,
                    Err(what) => panic!("{kind} {shape:?} seed {seed}: {what}"),
                }
            }
            assert!(all > 24 * 2, "{kind} {shape:?}: {all} sent");
        }
    }
}

#[test]
fn mirrored_rings_too() {
    let shape = Shape { mirrored: true, ring_bytes: 4096, message_bytes_max: 1500, ..SHAPE };
    for kind in [Kind::ReadRingDetached, Kind::ReadRingInlined, Kind::ReadRingNotify] {
        for prefetch_bytes in [0, 2000] {
            let shape = Shape { prefetch_bytes, ..shape };
            for seed in 0..3 {
                if let Err(what) = run(kind, &shape, seed, |_| {}) {
                    panic!("{kind} {shape:?} seed {seed}: {what}");
                }
            }
        }
    }
}

/// Each defect must show in some of many runs of the channels that can have it.
#[cfg(canary)]
#[test]
fn defects_are_caught() {
    use super::ChannelMutant::{
        BellBeforeData, ChecksumUnchecked, CreditOffByOne, NextBellNotUnset, StaleTail, WrongStart,
    };
    use Kind::{
        ReadRingDetached, ReadRingInlined, ReadRingNotify, ReadSlotDetached, ReadSlotIndirect,
        ReadSlotInlined, ReadSlotNotify,
    };
    let prefetched = Shape { prefetch_bytes: 120, ..SHAPE };
    let words = Shape { signal: Signal::Word, ..SHAPE };
    let passive = [
        (ReadSlotDetached, SHAPE),
        (ReadSlotInlined, SHAPE),
        (ReadSlotNotify, SHAPE),
        (ReadRingDetached, SHAPE),
        (ReadRingInlined, SHAPE),
        (ReadRingInlined, prefetched),
        (ReadRingNotify, SHAPE),
    ];
    let mut table = Vec::new();
    for (kind, shape) in passive {
        table.extend([StaleTail, WrongStart, CreditOffByOne].map(|one| (kind, shape, one)));
    }
    table.extend([
        (ReadSlotDetached, SHAPE, BellBeforeData),
        (ReadSlotIndirect, words, BellBeforeData),
        (ReadRingDetached, SHAPE, BellBeforeData),
        (ReadRingInlined, SHAPE, BellBeforeData),
        (ReadRingInlined, SHAPE, NextBellNotUnset),
        (ReadRingInlined, prefetched, NextBellNotUnset),
        (ReadSlotInlined, SHAPE, ChecksumUnchecked),
        (ReadRingInlined, prefetched, ChecksumUnchecked),
    ]);
    for (kind, shape, mutant) in table {
        let caught = (0..60).find(|seed| {
            let spoiled = |net: &mut Net| net.spoil(mutant);
            std::panic::catch_unwind(|| run(kind, &shape, *seed, spoiled))
                .is_ok_and(|result| result.is_err())
        });
        assert!(caught.is_some(), "{kind} {mutant:?} prefetch {}", shape.prefetch_bytes);
    }
}
