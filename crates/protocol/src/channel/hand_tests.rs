//! Support for tests of halves: plain memory, and a wire that carries each request on command.

extern crate std;

mod memory;

use super::effects::{Effects, PostRequest, Posting};
use super::half::{
    Arrival, Completed, Content, Half, HalfRefusal, HeldMessage, Own, OwnRegions, Payload, Peer,
    PeerRegions, Received, Sending,
};
use super::kind::Kind;
use super::machine::{Receiver, Sender};
use super::shape::{MemoryPlan, Shape};
use crate::wire::Violation;
use farside_base::{
    LocalSlice, Memory as _, Operation, RegionId, RemoteRegionId, RemoteSlice, Source,
};
use memory::Plain;
use std::collections::VecDeque;
use std::vec::Vec;

pub(super) const OWN: OwnRegions = OwnRegions { buffer: RegionId(0), bells: RegionId(1) };
/// The program's own region, the source of gathered messages.
const USER: RegionId = RegionId(2);

/// One half with its memory and effects.
#[derive(Debug)]
pub(super) struct TestHalf<H> {
    pub(super) half: H,
    pub(super) effects: Effects,
    pub(super) buffer: Plain,
    pub(super) bells: Plain,
    user: Plain,
    receives: Vec<Posting>,
}

impl<H> TestHalf<H> {
    fn new(half: H, plan: MemoryPlan) -> Self {
        Self {
            half,
            effects: Effects::new(0),
            buffer: Plain::new(plan.buffer_bytes),
            bells: Plain::new(plan.bells_bytes),
            user: Plain::new(256),
            receives: Vec::new(),
        }
    }

    fn region(&self, number: u32) -> &Plain {
        match number {
            0 => &self.buffer,
            1 => &self.bells,
            _ => &self.user,
        }
    }

    pub(super) fn parts(&mut self) -> (&mut H, Own<'_, Plain>, &mut Effects) {
        // None of the channels tested with these has counters.
        let own = Own { buffer: &self.buffer, bells: &self.bells, counters: &self.bells };
        (&mut self.half, own, &mut self.effects)
    }

    fn bytes(&self, source: &Source<'_>) -> Vec<u8> {
        match source {
            Source::Inline(bytes) => bytes.to_vec(),
            Source::Gather(slices) => {
                let part = |slice: &LocalSlice| {
                    let mut bytes = std::vec![0; slice.bytes as usize];
                    self.region(slice.region.0).read(slice.offset, &mut bytes).unwrap();
                    bytes
                };
                slices.iter().flat_map(part).collect()
            }
        }
    }

    /// The requests since the last call.
    fn take(&mut self) -> Vec<(PostRequest, TestWork)> {
        self.receives.extend(self.effects.postings());
        self.effects.receives_posted();
        let mut works = Vec::new();
        for request in self.effects.requests() {
            let work = match self.effects.operation(request) {
                Operation::Write { source, to, immediate } => {
                    TestWork::Write(self.bytes(&source), to, immediate)
                }
                Operation::Send { source, immediate } => {
                    TestWork::Send(self.bytes(&source), immediate)
                }
                Operation::Read { into, from } => TestWork::Read(into[0], from),
                other => panic!("{other:?}"),
            };
            works.push((*request, work));
        }
        self.effects.posted(usize::MAX);
        works
    }

    /// Delivers a message: takes its receive.
    fn arrival(
        &mut self,
        peer: Peer,
        bytes: &[u8],
        length: u32,
        immediate: Option<u32>,
    ) -> Arrival {
        assert!(!self.receives.is_empty(), "a message meets an empty queue");
        let posting = self.receives.remove(0);
        assert!(bytes.len() <= posting.into.bytes as usize, "a message longer than its receive");
        self.region(posting.into.region.0).write(posting.into.offset, bytes).unwrap();
        Arrival { peer, name: posting.name, bytes: length, immediate }
    }
}

/// A request with its bytes.
#[derive(Clone, Debug)]
pub(super) enum TestWork {
    Write(Vec<u8>, RemoteSlice, Option<u32>),
    Send(Vec<u8>, Option<u32>),
    Read(LocalSlice, RemoteSlice),
}

/// A request in flight: of a sender, or to it.
#[derive(Clone, Debug)]
pub(super) struct RequestInFlight {
    pub(super) sender: usize,
    pub(super) to_receiver: bool,
    pub(super) request: PostRequest,
    pub(super) work: TestWork,
}

/// Senders, one receiver, and the requests in flight.
#[derive(Debug)]
pub(super) struct Wire {
    pub(super) senders: Vec<TestHalf<Sender>>,
    pub(super) receiver: TestHalf<Receiver>,
    pub(super) flying: VecDeque<RequestInFlight>,
    /// The number of requests by the halves, senders' first.
    pub(super) requests: [usize; 2],
}

impl Wire {
    /// All halves connected.
    pub(super) fn new(kind: Kind, shape: Shape, senders: u16) -> Self {
        Self::with(kind, shape, senders, |sender| sender, |receiver| receiver)
    }

    /// The same with modified halves.
    pub(super) fn with(
        kind: Kind,
        shape: Shape,
        senders: u16,
        change: impl Fn(Sender) -> Sender,
        change_receiver: impl Fn(Receiver) -> Receiver,
    ) -> Self {
        assert_eq!(shape.check(kind), Ok(()));
        let sender = || {
            let half = change(Sender::new(kind, &shape, OWN));
            TestHalf::new(half, Sender::plan(kind, &shape))
        };
        let half = change_receiver(Receiver::new(kind, &shape, OWN));
        let receiver = TestHalf::new(half, Receiver::plan(kind, &shape));
        let all = (0..senders).map(|_| sender()).collect();
        let mut wire = Self { senders: all, receiver, flying: VecDeque::new(), requests: [0; 2] };
        for number in 0..senders {
            wire.connect(number);
        }
        wire
    }

    fn connect(&mut self, number: u16) {
        let (buffer, bells) = (RemoteRegionId(0), RemoteRegionId(1));
        let (half, own, effects) = self.receiver.parts();
        let regions = PeerRegions { buffer, bells, counters: bells, number: Peer::ONLY };
        half.connected(Peer(number), regions, own, effects).unwrap();
        let (half, own, effects) = self.senders[usize::from(number)].parts();
        let regions = PeerRegions { buffer, bells, counters: bells, number: Peer(number) };
        half.connected(Peer::ONLY, regions, own, effects).unwrap();
        self.launch();
    }

    /// Connects a new sender under the number of a lost one.
    pub(super) fn reconnect(&mut self, number: u16, kind: Kind, shape: &Shape) {
        let half = Sender::new(kind, shape, OWN);
        self.senders[usize::from(number)] = TestHalf::new(half, Sender::plan(kind, shape));
        self.connect(number);
    }

    /// Puts the requests of the halves in flight.
    pub(super) fn launch(&mut self) {
        for (sender, side) in self.senders.iter_mut().enumerate() {
            for (request, work) in side.take() {
                self.requests[0] += 1;
                self.flying.push_back(RequestInFlight { sender, to_receiver: true, request, work });
            }
        }
        for (request, work) in self.receiver.take() {
            let sender = usize::from(request.peer.0);
            self.requests[1] += 1;
            self.flying.push_back(RequestInFlight { sender, to_receiver: false, request, work });
        }
    }

    /// Carries out the request at this index.
    pub(super) fn carry(&mut self, at: usize) -> Result<(), Violation> {
        let flight = self.flying.remove(at).unwrap();
        let (sender, back) = (&mut self.senders[flight.sender], Peer(flight.sender as u16));
        let receiver = &mut self.receiver;
        let (bytes, length, immediate) = match flight.work {
            TestWork::Write(bytes, to, immediate) => {
                let (left, right) = (sender.region(to.region.0), receiver.region(to.region.0));
                let memory = if flight.to_receiver { right } else { left };
                memory.write(to.offset, &bytes).unwrap();
                (Vec::new(), bytes.len() as u32, immediate.map(Some))
            }
            TestWork::Send(bytes, immediate) => {
                let length = bytes.len() as u32;
                (bytes, length, Some(immediate))
            }
            TestWork::Read(into, from) => {
                assert!(flight.to_receiver, "no receiver of these READs");
                let mut bytes = std::vec![0; into.bytes as usize];
                receiver.region(from.region.0).read(from.offset, &mut bytes).unwrap();
                sender.region(into.region.0).write(into.offset, &bytes).unwrap();
                (Vec::new(), 0, None)
            }
        };
        let name = flight.request.name;
        if let Some(immediate) = immediate {
            if flight.to_receiver {
                let arrival = receiver.arrival(back, &bytes, length, immediate);
                let (half, own, effects) = receiver.parts();
                half.arrived(arrival, own, effects)?;
            } else {
                let arrival = sender.arrival(Peer::ONLY, &bytes, length, immediate);
                let (half, own, effects) = sender.parts();
                half.arrived(arrival, own, effects)?;
            }
        }
        if flight.request.signalled && flight.to_receiver {
            let (half, own, effects) = sender.parts();
            half.completed(Completed { peer: Peer::ONLY, name }, own, effects)?;
        } else if flight.request.signalled {
            let (half, own, effects) = receiver.parts();
            half.completed(Completed { peer: back, name }, own, effects)?;
        }
        self.launch();
        Ok(())
    }

    /// Carries out all requests, in order, and lets senders poll.
    pub(super) fn settle(&mut self) {
        self.launch();
        while !self.flying.is_empty() {
            self.carry(0).unwrap();
            for side in &mut self.senders {
                let (half, own, effects) = side.parts();
                half.advance(own, effects).unwrap();
            }
            self.launch();
        }
    }

    /// Sends without flushing.
    pub(super) fn put(&mut self, sender: usize, message: &[u8]) -> Result<Sending, HalfRefusal> {
        let (half, own, effects) = self.senders[sender].parts();
        half.send(Payload::Bytes(message), own, effects)
    }

    /// Sends a message and flushes.
    pub(super) fn send(&mut self, sender: usize, message: &[u8]) -> Result<Sending, HalfRefusal> {
        let sent = self.put(sender, message)?;
        self.flush(sender);
        Ok(sent)
    }

    /// Sends the bytes as two slices of the program's region.
    pub(super) fn gather(&mut self, sender: usize, message: &[u8]) -> Result<Sending, HalfRefusal> {
        let side = &mut self.senders[sender];
        let (first, second) = message.split_at(message.len() / 2);
        side.user.write(0, first).unwrap();
        side.user.write(128, second).unwrap();
        let slice =
            |offset, part: &[u8]| LocalSlice { region: USER, offset, bytes: part.len() as u32 };
        let slices = [slice(0, first), slice(128, second)];
        let (half, own, effects) = side.parts();
        let sent = half.send(Payload::Gather(&slices), own, effects)?;
        self.flush(sender);
        Ok(sent)
    }

    /// Sends into a slot and flushes.
    pub(super) fn send_to(&mut self, slot: u32, message: &[u8]) -> Result<Sending, HalfRefusal> {
        let (half, own, effects) = self.senders[0].parts();
        let sent = half.send_to(slot, Payload::Bytes(message), own, effects)?;
        self.flush(0);
        Ok(sent)
    }

    pub(super) fn flush(&mut self, sender: usize) {
        let (half, own, effects) = self.senders[sender].parts();
        half.flush(own, effects);
        self.launch();
    }

    pub(super) fn try_receive(&mut self) -> Result<Option<Received>, Violation> {
        let (half, own, effects) = self.receiver.parts();
        let received = half.receive(own, effects);
        self.launch();
        received
    }

    /// The next message: its name, its sender, and its bytes.
    pub(super) fn receive(&mut self) -> Option<(HeldMessage, u16, Vec<u8>)> {
        let Received { held, peer, content } = self.try_receive().unwrap()?;
        let bytes = match content {
            Content::Integer(integer) => integer.to_le_bytes().to_vec(),
            Content::Buffer { offset, bytes } => {
                let mut out = std::vec![0; bytes as usize];
                self.receiver.buffer.read(offset, &mut out).unwrap();
                out
            }
        };
        Some((held, peer.0, bytes))
    }

    pub(super) fn release(&mut self, held: HeldMessage) -> Result<(), HalfRefusal> {
        let (half, own, effects) = self.receiver.parts();
        let released = half.release(held, own, effects);
        self.launch();
        released
    }

    /// Receives a message and releases it; returns its sender and its bytes.
    pub(super) fn take(&mut self) -> Option<(u16, Vec<u8>)> {
        let (held, from, bytes) = self.receive()?;
        self.release(held).unwrap();
        Some((from, bytes))
    }

    pub(super) fn acknowledge(&mut self) {
        let (half, own, effects) = self.receiver.parts();
        half.acknowledge(own, effects);
        self.settle();
    }

    /// Delivers a message that no half has sent.
    pub(super) fn intrude(
        &mut self,
        sender: u16,
        bytes: u32,
        immediate: Option<u32>,
    ) -> Result<(), Violation> {
        let arrival = self.receiver.arrival(Peer(sender), &[], bytes, immediate);
        let (half, own, effects) = self.receiver.parts();
        let arrived = half.arrived(arrival, own, effects);
        self.launch();
        arrived
    }

    /// Drops a sender and its requests in flight.
    pub(super) fn lose(&mut self, sender: u16) {
        self.flying.retain(|flight| flight.sender != usize::from(sender));
        self.receiver.half.lost(Peer(sender));
    }
}
