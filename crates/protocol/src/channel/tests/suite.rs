//! The cases common to all channels: every kind and shape, messages of all lengths, releases in any order, and a network
//! that carries out requests in any order that the channel permits.

extern crate std;

use super::super::canary::ChannelMutant;
use super::super::half::{Content, HalfRefusal, HeldMessage, Payload, Received};
use super::super::kind::{Family, Kind};
use super::super::machine::Receiver;
use super::super::shape::{Acknowledge, DeviceWords, Shape, Signal};
use super::network::{Network, OWN, PostedVerb};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory as _, Random, RegionId};
use std::format;
use std::string::String;
use std::vec::Vec;

pub(crate) const SHAPE: Shape = Shape {
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

/// The channels whose receivers fetch messages.
fn pulled() -> impl Iterator<Item = Kind> {
    Kind::ALL.into_iter().filter(|kind| kind.receiver_names_destination())
}

/// Every valid combination of acknowledgement, signal and mapping.
fn shapes(kind: Kind) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for acknowledge in Acknowledge::ALL {
        for signal in Signal::ALL {
            for mirrored in [false, true] {
                let ring = matches!(kind.family(), Family::Ring | Family::SharedRing);
                // A mirrored ring has at least a page.
                let (ring_bytes, slots) = if mirrored { (4096, 64) } else { (256, 4) };
                let shape = Shape { acknowledge, signal, mirrored, ring_bytes, slots, ..SHAPE };
                let second = kind.has_second_channel() || signal == Signal::Message;
                if (ring || !mirrored) && second && shape.check(kind).is_ok() {
                    shapes.push(shape);
                }
            }
        }
    }
    shapes
}

/// The content of a sender's message.
fn content(kind: Kind, from: usize, number: u32) -> Vec<u8> {
    if kind == Kind::SendBufferless {
        return (number << 8 | from as u32).to_le_bytes().to_vec();
    }
    let bytes = (number * 7 + from as u32 * 13) % 41;
    (0..bytes).map(|at| (number + at) as u8 | ((from as u8) << 6)).collect()
}

#[test]
fn messages_come_in_order_through_a_network_in_order() {
    for kind in Kind::ALL {
        for shape in shapes(kind) {
            let case = format!("{kind} {shape:?}");
            let mut net = Network::all(kind, shape, 1);
            for number in 0..60_u32 {
                let message = content(kind, 0, number);
                let gather = kind != Kind::SendBufferless && number % 2 == 1;
                let send = |net: &mut Network| match gather {
                    true => net.gather(0, &message),
                    false => net.send(0, &message),
                };
                let mut sent = send(&mut net);
                for _ in 0..8 {
                    if sent.is_ok() {
                        break;
                    }
                    // A receiver that names a place, or a sender that asks for the tail.
                    let nothing = net.found(0).unwrap();
                    assert_eq!(nothing, None, "{case}");
                    net.run();
                    sent = send(&mut net);
                }
                let sent = sent.expect(&case);
                if kind.family() == Family::SendReceive {
                    assert_eq!(net.senders[0].half.is_done(sent), !gather, "{case}");
                    assert_eq!(net.requests[0], number as usize + 1, "one request a message");
                }
                net.run();
                // An idle sender that is READ asks for acknowledgements, and announces what it could not before.
                for _ in 0..2 {
                    net.advance(0).unwrap();
                    net.run();
                }
                let taken = net.take_any();
                assert_eq!(taken, Ok(message), "{case}");
                assert!(net.found(0).unwrap().is_none(), "{case}");
                net.acknowledge();
                assert!(gather || net.senders[0].half.is_done(sent), "{case}");
            }
        }
    }
}

/// Senders that send, requests in any order, messages held and released in any order, deaths at any time with a partly
/// landed WRITE: every message of a living sender arrives, once and complete.
pub(crate) fn push_run(kind: Kind, shape: &Shape, seed: u64, messages: u32, deaths: usize) {
    let case = format!("{kind}, {shape:?}, seed {seed}");
    let mut dice = Random::new(seed);
    let senders = if kind.shares_receiver() { 3 } else { 1 };
    let mut net = Network::all(kind, *shape, senders as u16);
    net.chance = Random::new(seed + 1);
    let (mut sent, mut came) = ([0_u32; 3], [const { Vec::new() }; 3]);
    let mut living: Vec<usize> = (0..senders).collect();
    let mut holding: Vec<(Received, Vec<u8>)> = Vec::new();
    let mut steps = 0;
    while living.iter().any(|from| came[*from].len() < messages as usize) {
        steps += 1;
        assert!(steps < 200_000, "stuck after {sent:?}: {case}");
        let from = living[dice.index(living.len())];
        match dice.index(9) {
            0 | 1 if sent[from] < messages => {
                let bytes = content(kind, from, sent[from]);
                let gather = kind != Kind::SendBufferless && dice.index(2) == 0;
                let result = if gather { net.gather(from, &bytes) } else { net.put(from, &bytes) };
                sent[from] += u32::from(result.is_ok());
            }
            2 => {
                net.flush(from);
                net.advance(from).expect(&case);
            }
            3..=6 => net.carry_any().expect(&case),
            7 => {
                if let Some((received, bytes)) = net.found(0).expect(&case) {
                    let from = usize::from(received.peer.0);
                    let fits = |number: &u32| content(kind, from, *number) == bytes;
                    let number = (0..messages).filter(fits).find(|one| !came[from].contains(one));
                    came[from].push(number.expect(&case));
                    holding.push((received, bytes));
                }
            }
            _ if !holding.is_empty() && dice.index(4) > 0 => {
                let (received, bytes) = holding.swap_remove(dice.index(holding.len()));
                if let Content::Buffer { offset, bytes: length } = received.content {
                    let slice = LocalSlice { region: OWN.buffer, offset, bytes: length };
                    let now = net.receivers[0].get(&slice);
                    assert_eq!(now, bytes, "changed while it was held: {case}");
                }
                net.release(received.held).expect(&case);
            }
            _ if senders - living.len() < deaths && dice.index(messages as usize * 8) == 0 => {
                let flights = net.flights(from, true);
                if let Some(at) = flights.get(dice.index(flights.len() + 1))
                    && let PostedVerb::Write(bytes, to, _) = &net.flying[*at].verb
                    && to.region.0 == OWN.buffer.0
                {
                    let part = dice.index(bytes.len() / 8 + 1) * 8;
                    net.receivers[0].buffer.write(to.offset, &bytes[..part]).unwrap();
                }
                net.lose(from);
                living.retain(|other| *other != from);
            }
            _ => {}
        }
    }
}

#[test]
fn pushed_messages_come_once_and_whole_whatever_the_network_does() {
    for kind in Kind::ALL.into_iter().filter(|kind| !kind.receiver_names_destination()) {
        for shape in shapes(kind) {
            (1..12).for_each(|seed| push_run(kind, &shape, seed, 100, 0));
        }
    }
}

#[test]
fn acknowledgement_of_more_than_was_sent_is_a_violation() {
    for kind in [Kind::Send, Kind::WriteSlotInlined, Kind::RingInlined] {
        let mut net = Network::all(kind, SHAPE, 1);
        net.send(0, &[1; 4]).unwrap();
        net.senders[0].bells.store_word(0, 64).unwrap();
        assert_eq!(net.advance(0), Err(Violation("acknowledges more than was sent")), "{kind}");
    }
}

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

/// Why a run failed.
struct RunFailure(String);

impl<E: core::fmt::Debug> From<E> for RunFailure {
    fn from(what: E) -> Self {
        Self(format!("{what:?}"))
    }
}

struct ReadingRun {
    net: Network,
    readers: Vec<ExpectedReader>,
    sent: u64,
}

impl ReadingRun {
    fn connect(&mut self) {
        let number = self.net.connect();
        assert_eq!(number, self.readers.len());
        let (held, next) = (Vec::new(), self.sent);
        self.readers.push(ExpectedReader { next, held, offer: None, offers: false, living: true });
    }

    fn send(&mut self) -> Result<(), RunFailure> {
        let bytes = message(self.sent, self.net.shape.message_bytes_max);
        let lend = self.net.chance.index(3) == 0;
        let result = self.net.sender(|half, own, effects| {
            if lend && let Some(slice) = half.loan(bytes.len() as u32, own) {
                own.buffer.write(slice.offset, &bytes).unwrap();
                return half.send(Payload::Gather(&[slice]), own, effects);
            }
            half.send(Payload::Bytes(&bytes), own, effects)
        });
        match result {
            Ok(_) => self.sent += 1,
            Err(HalfRefusal::Full | HalfRefusal::Lost) => {}
            Err(refusal) => return Err(refusal.into()),
        }
        // Readers that connect now do not get unannounced messages, but learn of them later: batches are left open at
        // random only while no reader connects.
        if self.readers.len() == 3 && self.net.chance.index(2) == 0 {
            return Ok(());
        }
        self.net.flush(0);
        Ok(())
    }

    fn expect(&mut self, number: usize, bytes: &[u8]) -> Result<(), RunFailure> {
        let next = self.readers[number].next;
        if next >= self.sent || bytes != message(next, self.net.shape.message_bytes_max) {
            return Err(format!("reader {number} has something else for message {next}").into());
        }
        self.readers[number].next += 1;
        Ok(())
    }

    fn receive(&mut self, number: usize) -> Result<(), RunFailure> {
        if self.readers[number].offers {
            return self.fetch(number);
        }
        if let Some((received, bytes)) = self.net.found(number)? {
            self.readers[number].held.push(received.held);
            self.expect(number, &bytes)?;
        }
        Ok(())
    }

    fn fetch(&mut self, number: usize) -> Result<(), RunFailure> {
        if let Some((held, into)) = self.readers[number].offer {
            let fetched =
                self.net.receiver(number, |half, own, effects| half.fetched(held, own, effects));
            let Some(bytes) = fetched else { return Ok(()) };
            self.readers[number].offer = None;
            let bytes = self.net.receivers[number].get(&LocalSlice { bytes, ..into });
            return self.expect(number, &bytes);
        }
        let Some(offer) = self.net.receiver(number, Receiver::offer)? else { return Ok(()) };
        let (region, offset) = match self.net.kind {
            Kind::ReadSlotIndirect => (RegionId(0), u64::from(self.net.shape.slots) * 64),
            _ => (RegionId(2), 24),
        };
        let into = LocalSlice { region, offset, bytes: offer.bytes_max };
        self.net.receiver(number, |half, own, effects| {
            half.receive_into(offer.held, into, own, effects)
        })?;
        self.readers[number].offer = Some((offer.held, into));
        Ok(())
    }

    fn release(&mut self, number: usize) -> Result<(), RunFailure> {
        let held = self.readers[number].held.len();
        if held == 0 {
            return Ok(());
        }
        let at = self.net.chance.index(held);
        let held = self.readers[number].held.swap_remove(at);
        Ok(self.net.receiver(number, |half, own, effects| half.release(held, own, effects))?)
    }

    fn living(&mut self) -> Option<usize> {
        let living: Vec<_> =
            (0..self.readers.len()).filter(|at| self.readers[*at].living).collect();
        if living.is_empty() { None } else { Some(living[self.net.chance.index(living.len())]) }
    }

    fn run(&mut self, seed: u64) -> Result<(), RunFailure> {
        for at in 0..400 {
            self.step()?;
            let shared = self.net.kind.shares_sender() && self.readers.len() < 3;
            if shared && at % 130 == 100 {
                self.connect();
            }
            if self.readers.len() > 2 && at == 300 && seed.is_multiple_of(5) {
                self.net.lose_reader(0);
                self.readers[0].living = false;
            }
        }
        self.drain()
    }

    fn step(&mut self) -> Result<(), RunFailure> {
        let act = self.net.chance.index(20);
        let reader = self.living();
        match (act, reader) {
            (0..=4, _) => self.send(),
            (5..=8, Some(number)) => self.receive(number),
            (9..=10, Some(number)) => self.release(number),
            (11, _) => Ok(self.net.advance(0)?),
            (12, Some(number)) => {
                self.net.receiver(number, Receiver::acknowledge);
                // Indirect messages that were requested go to their requested destination.
                let quiet =
                    self.readers[number].offer.is_none() && self.net.kind != Kind::ReadSlotIndirect;
                if quiet && self.net.chance.index(4) == 0 {
                    self.switch(number);
                }
                Ok(())
            }
            _ => Ok(self.net.carry_any()?),
        }
    }

    /// Switches between `receive` and offers, once everything fetched is taken.
    fn switch(&mut self, number: usize) {
        if self.net.kind.family() == Family::ReadRing || self.readers[number].next == self.sent {
            self.readers[number].offers ^= true;
        }
    }

    /// Runs until every message is received and acknowledged.
    fn drain(&mut self) -> Result<(), RunFailure> {
        for _ in 0..20_000 {
            if self.sender_is_drained() {
                return Ok(());
            }
            self.net.flush(0);
            for number in 0..self.readers.len() {
                if self.readers[number].living {
                    self.receive(number)?;
                    self.release(number)?;
                    self.net.receiver(number, Receiver::acknowledge);
                }
            }
            self.net.advance(0)?;
            self.net.carry_any()?;
        }
        let next: Vec<_> = self.readers.iter().map(|reader| reader.next).collect();
        Err(format!("stuck, readers at {next:?}").into())
    }

    fn sender_is_drained(&self) -> bool {
        let all = |reader: &ExpectedReader| !reader.living || reader.next == self.sent;
        // By message, the last acknowledgements may be too small to be sent.
        let case = self.net.shape.acknowledge == Acknowledge::Message;
        (case || self.net.senders[0].half.is_drained()) && self.readers.iter().all(all)
    }
}

/// Makes one run; returns the failure.
fn reading_run(
    kind: Kind,
    shape: &Shape,
    seed: u64,
    mutant: Option<ChannelMutant>,
) -> Result<u64, String> {
    let net = Network::planted(kind, shape, seed, mutant);
    let mut run = ReadingRun { net, readers: Vec::new(), sent: 0 };
    run.connect();
    if seed % 3 == 1 && kind != Kind::ReadSlotIndirect {
        run.connect();
    }
    run.readers[0].offers = seed % 4 >= 2;
    let RunFailure(what) = match run.run(seed) {
        Ok(()) => return Ok(run.sent),
        Err(failure) => failure,
    };
    Err(format!("{what} after {} messages", run.sent))
}

fn reading_shapes(kind: Kind) -> Vec<Shape> {
    let mut shapes = Vec::new();
    for acknowledge in Acknowledge::ALL {
        for signal in Signal::ALL {
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
fn readers_get_messages_in_order_whatever_the_network_does() {
    for kind in pulled() {
        for shape in reading_shapes(kind) {
            let mut all = 0;
            for seed in 0..24 {
                match reading_run(kind, &shape, seed, None) {
                    Ok(sent) => all += sent,
                    Err(what) => panic!("{kind} {shape:?} seed {seed}: {what}"),
                }
            }
            assert!(all > 24 * 2, "{kind} {shape:?}: {all} sent");
        }
    }
}

#[test]
fn readers_of_mirrored_rings_too() {
    let shape = Shape { mirrored: true, ring_bytes: 4096, message_bytes_max: 1500, ..SHAPE };
    for kind in [Kind::ReadRingDetached, Kind::ReadRingInlined, Kind::ReadRingNotify] {
        for prefetch_bytes in [0, 2000] {
            let shape = Shape { prefetch_bytes, ..shape };
            for seed in 0..3 {
                if let Err(what) = reading_run(kind, &shape, seed, None) {
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
    use ChannelMutant::{
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
            std::panic::catch_unwind(|| reading_run(kind, &shape, *seed, Some(mutant)))
                .is_ok_and(|result| result.is_err())
        });
        assert!(caught.is_some(), "{kind} {mutant:?} prefetch {}", shape.prefetch_bytes);
    }
}
