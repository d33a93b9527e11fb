//! A node of a fabric with a simple interface: a port, a region and a receive queue full of receives.

use crate::WATCHDOG;
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec};
use std::sync::atomic::Ordering;
use std::time::Instant;

const REGION_BYTES: u64 = 1 << 20;
/// Bytes of every receive.
pub const RECEIVE_BYTES: u32 = 64;
/// Receives of every queue, and their offset.
const RECEIVES: u64 = 128;
const RECEIVES_AT: u64 = 65_536;

/// A port with a region and a receive queue full of receives.
#[expect(missing_docs, reason = "its parts by their names")]
pub struct TestNode<F> {
    pub fabric: F,
    pub port: Box<dyn Port>,
    pub region: Region,
    pub queue: ReceiveQueueId,
    pub events: Vec<LinkEvent>,
    pub completions: Vec<Completion>,
}

impl<F: Fabric> TestNode<F> {
    /// Opens a port, and a region that peers may access in these ways.
    pub fn new(fabric: F, listen: Option<&str>, access: Access) -> Self {
        let spec = RegionSpec { bytes: REGION_BYTES, access, kind: RegionKind::Memory };
        let region = fabric.register(&spec).expect("a region");
        let spec = PortSpec { listen: listen.map(str::to_owned) };
        let mut port = fabric.open(&spec).expect("a port");
        let queue = port.create_receive_queue(RECEIVES as usize).expect("a receive queue");
        let (events, completions) = (Vec::new(), Vec::new());
        let mut node = Self { fabric, port, region, queue, events, completions };
        (0..RECEIVES).for_each(|at| node.post_receive(at));
        node
    }

    /// Posts receive number `at`, which has memory of its own.
    pub fn post_receive(&mut self, at: u64) {
        let offset = RECEIVES_AT + at * u64::from(RECEIVE_BYTES);
        let into = self.slice(offset, RECEIVE_BYTES);
        let receive = Receive { id: WorkId(at), queue: self.queue, into };
        assert_eq!(self.port.post_receives(&[receive]).accepted, 1);
    }

    /// Returns a slice of the own region.
    pub fn slice(&self, offset: u64, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset, bytes }
    }

    /// Returns a word of the own region.
    pub fn word(&self, offset: u64) -> u64 {
        self.region.arena.load(offset, Ordering::Acquire).expect("in bounds")
    }

    /// Writes a word of the own region.
    pub fn put(&self, offset: u64, word: u64) {
        self.region.arena.write(offset, &word.to_ne_bytes()).expect("in bounds");
    }

    /// Polls once and keeps the results.
    pub fn poll(&mut self) {
        let mut out = [Completion::BLANK; 32];
        self.port.link_events(&mut self.events);
        let count = self.port.poll(&mut out);
        self.completions.extend_from_slice(&out[..count]);
    }

    /// Polls, asleep between, until `found` has a value.
    pub fn until<T>(&mut self, what: &str, mut found: impl FnMut(&mut Self) -> Option<T>) -> T {
        let waiter = self.port.waiter();
        loop {
            self.poll();
            if let Some(value) = found(self) {
                return value;
            }
            if !self.port.arm() {
                assert!(waiter.wait(Some(WATCHDOG)), "timed out waiting for {what}");
            }
            self.port.disarm();
        }
    }

    /// Returns the next event of a link.
    pub fn event(&mut self) -> LinkEvent {
        self.until("a link event", |node| (!node.events.is_empty()).then(|| node.events.remove(0)))
    }

    /// Returns the next completion.
    pub fn completion(&mut self) -> Completion {
        self.until("a completion", |node| {
            (!node.completions.is_empty()).then(|| node.completions.remove(0))
        })
    }

    /// Returns the word in a received message.
    pub fn word_of(&self, received: &Completion) -> u64 {
        assert_eq!(received.status, CompletionStatus::Success, "{received:?}");
        self.word(RECEIVES_AT + received.id.0 * u64::from(RECEIVE_BYTES))
    }

    /// Returns the word in the next message, and posts its receive again.
    pub fn message(&mut self) -> u64 {
        let received = self.completion();
        let word = self.word_of(&received);
        self.post_receive(received.id.0);
        word
    }

    /// Connects to a node that may still be starting; its reply is the token of its region.
    pub fn connect(&mut self, to: &str) -> (LinkId, RemoteRegionId) {
        let start = Instant::now();
        loop {
            let reason = match self.port.connect(to, b"test", self.queue) {
                Err(reason) => reason.to_string(),
                Ok(link) => match self.event() {
                    LinkEvent::Connected { link: same, reply } => {
                        assert_eq!(same, link);
                        let token = reply.as_slice().try_into().ok().and_then(RegionToken::decode);
                        let token = token.expect("the reply is a token");
                        return (link, self.port.import(link, &token).expect("a region"));
                    }
                    LinkEvent::NotReached { .. } => format!("{:?}", self.port.trouble(link)),
                    other => panic!("expected to be connected, got {other:?}"),
                },
            };
            assert!(start.elapsed() < WATCHDOG, "{to}: {reason}");
            std::thread::yield_now();
        }
    }

    /// Accepts the next request; the reply is the token of the own region.
    pub fn accept(&mut self) -> LinkId {
        match self.event() {
            LinkEvent::Requested { link, .. } => self.accept_link(link),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// Accepts a request; the reply is the token of the own region.
    pub fn accept_link(&mut self, link: LinkId) -> LinkId {
        let token = self.region.token.encode();
        self.port.accept(link, &token, self.queue).expect("to accept");
        link
    }

    /// Returns a signalled request.
    pub fn work<'a>(&self, link: LinkId, id: u64, operation: Operation<'a>) -> Work<'a> {
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        Work { id: WorkId(id), link, flags, operation }
    }

    /// Posts one request and returns its completion.
    pub fn perform(&mut self, link: LinkId, operation: Operation<'_>) -> Completion {
        let work = self.work(link, u64::MAX, operation);
        let posted = self.port.post(&[work]);
        assert_eq!((posted.accepted, posted.stop), (1, None));
        self.until("a completion of a request", |node| {
            let of_request = |done: &Completion| done.id == WorkId(u64::MAX);
            let at = node.completions.iter().position(of_request)?;
            Some(node.completions.remove(at))
        })
    }

    /// Sends a word. Returns false if the queue is full.
    pub fn try_send(&mut self, link: LinkId, word: u64) -> bool {
        let bytes = word.to_ne_bytes();
        let operation = Operation::Send { source: Source::Inline(&bytes), immediate: None };
        let mut work = self.work(link, 0, operation);
        work.flags.signalled = false;
        self.port.post(&[work]).accepted == 1
    }

    /// Writes a word to a peer's region, reads it back, and adds to it.
    pub fn works(&mut self, link: LinkId, region: RemoteRegionId) {
        let value = u64::from(link.0) << 32 | 0x5eed;
        self.put(0, value);
        let at = RemoteSlice { region, offset: 8 };
        let slices = [self.slice(0, 8)];
        let source = Source::Gather(&slices);
        let write = Operation::Write { source, to: at, immediate: None };
        assert_eq!(self.perform(link, write).status, CompletionStatus::Success);
        let slices = [self.slice(16, 8)];
        let read = Operation::Read { into: &slices, from: at };
        assert_eq!(self.perform(link, read).status, CompletionStatus::Success);
        assert_eq!(self.word(16), value);
        let add = Operation::FetchAdd { at, add: 1, into: self.slice(24, 8) };
        assert_eq!(self.perform(link, add).status, CompletionStatus::Success);
        assert_eq!(self.word(24), value);
    }
}
