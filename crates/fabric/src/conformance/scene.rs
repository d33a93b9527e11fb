//! The setup of every case: some nodes, connected, each with a port, a region and a receive queue; and
//! the common way to wait: poll all ports, settle, check again.

use super::Subject;
use crate::{Fabric, LinkEvent, Port, PortSpec, Region, RegionSpec, Stop};
use farside_base::{
    Access, AtomicScope, Capabilities, Completion, CompletionKind, CompletionStatus, LinkId,
    LocalSlice, Operation, Receive, ReceiveQueueId, RegionKind, RemoteRegionId, RemoteSlice,
    Source, Work, WorkFlags, WorkId,
};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes of each node's region.
pub(super) const REGION_BYTES: u64 = 64 * 1024;
/// Receives that each node's queue holds.
pub(super) const QUEUE_DEPTH: usize = 64;
/// Lengths around the edges of words, cache lines and pages.
pub(super) const LENGTHS: [usize; 16] =
    [0, 1, 7, 8, 9, 15, 16, 17, 31, 33, 63, 64, 65, 4095, 4096, 4097];
/// How often `quiet` polls for events that must not occur.
const QUIET_POLLS: usize = 200;

pub(super) struct Scene<'s> {
    pub(super) subject: &'s dyn Subject,
    pub(super) capabilities: Capabilities,
    pub(super) nodes: Vec<TestNode>,
    next_id: u64,
    /// Set when a thread of the case has failed, so that no other waits for it forever.
    failed: Arc<AtomicBool>,
}

impl Drop for Scene<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.failed.store(true, Ordering::Release);
        }
    }
}

pub(super) struct TestNode {
    pub(super) fabric: Arc<dyn Fabric>,
    /// `None` once the case has dropped it.
    pub(super) port: Option<Box<dyn Port>>,
    pub(super) address: String,
    pub(super) region: Region,
    /// The queue of its first link, and of all others if queues can be shared.
    pub(super) queue: ReceiveQueueId,
    linked: bool,
    /// Polled and not yet used.
    pub(super) completions: VecDeque<Completion>,
    pub(super) events: VecDeque<LinkEvent>,
    /// The case forbids to poll this one.
    pub(super) passive: bool,
}

/// A link between two nodes, with both ends' names for it and for each other's region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wire {
    pub(super) from: usize,
    pub(super) to: usize,
    /// The link at `from`.
    pub(super) here: LinkId,
    /// The link at `to`.
    pub(super) there: LinkId,
    /// The region of `to`, as imported by `from`.
    pub(super) target: RemoteRegionId,
    /// The region of `from`, as imported by `to`.
    pub(super) back: RemoteRegionId,
    /// The receive queues of `from` and `to` for it.
    pub(super) queues: [ReceiveQueueId; 2],
}

impl Wire {
    /// Returns a slice of the target's region.
    pub(super) fn at(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { region: self.target, offset }
    }

    /// Returns the same link seen from its other end.
    pub(super) fn reversed(&self) -> Self {
        Self {
            from: self.to,
            to: self.from,
            here: self.there,
            there: self.here,
            target: self.back,
            back: self.target,
            queues: [self.queues[1], self.queues[0]],
        }
    }
}

impl TestNode {
    pub(super) fn new(fabric: Arc<dyn Fabric>, address: String) -> Self {
        let spec = PortSpec { listen: Some(address.clone()) };
        let mut port = fabric.open(&spec).expect("a port at a fresh address");
        let queue = port.create_receive_queue(QUEUE_DEPTH).expect("a receive queue");
        let region = register(&*fabric, REGION_BYTES, Access::ALL);
        Self {
            fabric,
            port: Some(port),
            address,
            region,
            queue,
            linked: false,
            completions: VecDeque::new(),
            events: VecDeque::new(),
            passive: false,
        }
    }

    pub(super) fn port(&mut self) -> &mut dyn Port {
        self.port.as_deref_mut().expect("a port that the case has not dropped")
    }

    /// Returns the bytes of this node's region.
    pub(super) fn slice(&self, offset: u64, bytes: usize) -> LocalSlice {
        slice(&self.region, offset, bytes)
    }

    pub(super) fn bytes_at(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut out = vec![0; bytes];
        self.region.arena.read(offset, &mut out).expect("within the region");
        out
    }

    pub(super) fn put(&self, offset: u64, bytes: &[u8]) {
        self.region.arena.write(offset, bytes).expect("within the region");
    }

    pub(super) fn poll(&mut self) {
        let Some(port) = &mut self.port else {
            return;
        };
        let mut events = Vec::new();
        let mut out = [Completion::BLANK; 32];
        port.link_events(&mut events);
        let count = port.poll(&mut out);
        self.events.extend(events);
        self.completions.extend(&out[..count]);
    }
}

pub(super) fn register(fabric: &dyn Fabric, bytes: u64, access: Access) -> Region {
    let spec = RegionSpec { bytes, access, kind: RegionKind::Memory };
    fabric.register(&spec).expect("a region of ordinary size")
}

pub(super) fn slice(region: &Region, offset: u64, bytes: usize) -> LocalSlice {
    LocalSlice { region: region.id, offset, bytes: bytes as u32 }
}

/// Runs two sides concurrently, each on a thread with a scene of its own node only (node 0 there), and
/// puts the nodes back.
pub(super) fn together(
    scene: &mut Scene<'_>,
    near: impl FnOnce(&mut Scene<'_>) + Send,
    far: impl FnOnce(&mut Scene<'_>) + Send,
) {
    assert_eq!(scene.nodes.len(), 2, "one node a side");
    let mut sides = scene.split().into_iter();
    let (mut one, mut other) = (sides.next().expect("two"), sides.next().expect("two"));
    // Each thread owns its scene, whose drop notifies the other of a panic.
    let nodes = std::thread::scope(move |threads| {
        let other = threads.spawn(move || {
            far(&mut other);
            other.take_nodes()
        });
        near(&mut one);
        let far = other.join().expect("the far side to succeed");
        one.take_nodes().into_iter().chain(far).collect()
    });
    scene.nodes = nodes;
}

/// Returns bytes that are hardly ever equal by accident.
pub(super) fn pattern(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = farside_base::Random::new(seed);
    (0..bytes).map(|_| random.word() as u8).collect()
}

/// Returns a signaled request.
pub(super) fn work<'a>(id: u64, link: LinkId, operation: Operation<'a>) -> Work<'a> {
    Work {
        id: WorkId(id),
        link,
        flags: WorkFlags { signalled: true, fence: false, awaited: false },
        operation,
    }
}

/// Returns an unsignaled request.
pub(super) fn silent<'a>(id: u64, link: LinkId, operation: Operation<'a>) -> Work<'a> {
    Work { flags: WorkFlags::default(), ..work(id, link, operation) }
}

pub(super) fn write(slices: &[LocalSlice], to: RemoteSlice) -> Operation<'_> {
    Operation::Write { source: Source::Gather(slices), to, immediate: None }
}

pub(super) fn send(slices: &[LocalSlice]) -> Operation<'_> {
    Operation::Send { source: Source::Gather(slices), immediate: None }
}

/// Asserts the usual end of a request.
#[track_caller]
pub(super) fn succeeded(done: &Completion, kind: CompletionKind, bytes: usize) {
    assert_eq!(done.status, CompletionStatus::Success, "{done:?}");
    assert_eq!(done.kind, kind, "{done:?}");
    assert_eq!(done.bytes as usize, bytes, "bytes of {done:?}");
}

impl<'s> Scene<'s> {
    /// `count` nodes, not yet connected.
    pub(super) fn new(subject: &'s dyn Subject, count: usize) -> Self {
        let fabrics = subject.fabrics(count);
        assert_eq!(fabrics.len(), count, "a subject gives as many fabrics as asked");
        let capabilities = fabrics[0].capabilities();
        let node = |fabric| TestNode::new(fabric, subject.address());
        Self {
            subject,
            capabilities,
            nodes: fabrics.into_iter().map(node).collect(),
            next_id: 1 << 40,
            failed: Arc::default(),
        }
    }

    /// Takes the nodes out.
    pub(super) fn take_nodes(&mut self) -> Vec<TestNode> {
        std::mem::take(&mut self.nodes)
    }

    /// Takes the nodes out, each into a scene of its own.
    pub(super) fn split(&mut self) -> Vec<Self> {
        let nodes = self.take_nodes();
        let alone = |node| Self {
            subject: self.subject,
            capabilities: self.capabilities,
            nodes: vec![node],
            next_id: self.next_id,
            failed: Arc::clone(&self.failed),
        };
        nodes.into_iter().map(alone).collect()
    }

    /// Returns two nodes and a link from the first to the second.
    pub(super) fn pair(subject: &'s dyn Subject) -> (Self, Wire) {
        let mut scene = Self::new(subject, 2);
        let wire = scene.wire(0, 1);
        (scene, wire)
    }

    /// Connects two nodes.
    pub(super) fn wire(&mut self, from: usize, to: usize) -> Wire {
        let address = self.nodes[to].address.clone();
        let queues = [from, to].map(|node| self.queue_for_link(node));
        let port = self.nodes[from].port();
        let here = port.connect(&address, b"hello", queues[0]);
        let here = here.expect("a listener to be found");
        let (there, hello) = self.requested(to);
        assert_eq!(hello, b"hello", "what the requester said");
        let port = self.nodes[to].port();
        port.accept(there, b"welcome", queues[1]).expect("a request to be accepted");
        self.connected(from, here);
        let target = self.import(from, here, to);
        let back = self.import(to, there, from);
        Wire { from, to, here, there, target, back, queues }
    }

    /// Returns the receive queue that a further link of `node` uses.
    pub(super) fn queue_for_link(&mut self, node: usize) -> ReceiveQueueId {
        let shared = self.capabilities.shared_receive_queue;
        let node = &mut self.nodes[node];
        if shared || !std::mem::replace(&mut node.linked, true) {
            return node.queue;
        }
        node.port().create_receive_queue(QUEUE_DEPTH).expect("a further receive queue")
    }

    /// Makes the region of `owner` usable on a link of `node`.
    pub(super) fn import(&mut self, node: usize, link: LinkId, owner: usize) -> RemoteRegionId {
        let token = self.nodes[owner].region.token;
        let imported = self.nodes[node].port().import(link, &token);
        imported.expect("a valid token to be imported")
    }

    /// Waits for a connection request at `node`.
    pub(super) fn requested(&mut self, node: usize) -> (LinkId, Vec<u8>) {
        match self.event(node) {
            LinkEvent::Requested { link, hello } => (link, hello),
            other => panic!("expected a request, got {other:?}"),
        }
    }

    /// Waits until `link` of `node` is connected. Returns the peer's reply.
    pub(super) fn connected(&mut self, node: usize, link: LinkId) -> Vec<u8> {
        match self.event(node) {
            LinkEvent::Connected { link: which, reply } if which == link => reply,
            other => panic!("expected {link:?} to be connected, got {other:?}"),
        }
    }

    /// Waits until `link` of `node` is lost.
    pub(super) fn lost(&mut self, node: usize, link: LinkId) {
        match self.event(node) {
            LinkEvent::Lost { link: which, .. } if which == link => {}
            other => panic!("expected {link:?} to be lost, got {other:?}"),
        }
    }

    /// Waits for the next link event of `node`.
    pub(super) fn event(&mut self, node: usize) -> LinkEvent {
        self.until("a link event", |scene| scene.nodes[node].events.pop_front())
    }

    /// Waits for the next completion of `node`.
    pub(super) fn completion(&mut self, node: usize) -> Completion {
        self.until("a completion", |scene| scene.nodes[node].completions.pop_front())
    }

    /// Waits for the next `count` completions of `node`.
    pub(super) fn completions(&mut self, node: usize, count: usize) -> Vec<Completion> {
        (0..count).map(|_| self.completion(node)).collect()
    }

    /// Polls until `ready` has a value.
    ///
    /// # Panics
    /// After `polls_max` empty polls.
    pub(super) fn until<T>(
        &mut self,
        what: &str,
        mut ready: impl FnMut(&mut Self) -> Option<T>,
    ) -> T {
        for count in 0..self.subject.polls_max() {
            if let Some(value) = ready(self) {
                return value;
            }
            self.poll();
            self.pause(count);
            let failed = self.failed.load(Ordering::Acquire);
            assert!(!failed, "another thread of the case failed");
        }
        panic!("waited for {what}: {} empty polls", self.subject.polls_max());
    }

    /// Pauses after poll number `count`: after many empty polls the processor, and the locks that a
    /// fabric may have, are left to the threads that are waited for.
    #[allow(
        clippy::disallowed_methods,
        reason = "leaves the processor to others; nothing is waited for by it"
    )]
    pub(super) fn pause(&self, count: u64) {
        self.subject.settle();
        if count > 1000 && count.is_multiple_of(100) {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }

    /// Polls every port once that the case does not forbid.
    pub(super) fn poll(&mut self) {
        let one_sided = self.capabilities.one_sided;
        for node in &mut self.nodes {
            if !(node.passive && one_sided) {
                node.poll();
            }
        }
    }

    /// Asserts that nothing more arrives at `node`.
    #[track_caller]
    pub(super) fn quiet(&mut self, node: usize) {
        for _ in 0..QUIET_POLLS {
            self.poll();
            self.subject.settle();
        }
        assert_eq!(self.nodes[node].completions, [], "nothing more completes");
        assert_eq!(self.nodes[node].events, [], "nothing more happens to links");
    }

    /// Returns a unique work id.
    pub(super) fn id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id
    }

    /// Posts until all is taken or something other than a lack of room stops it.
    pub(super) fn try_post(&mut self, node: usize, list: &[Work<'_>]) -> (usize, Option<Stop>) {
        let mut done = 0;
        self.until("room in the send queue", |scene| {
            let posted = scene.nodes[node].port().post(&list[done..]);
            assert!(posted.accepted <= list.len() - done, "takes at most what there is");
            done += posted.accepted;
            assert!(posted.stop.is_some() || done == list.len(), "says why it stopped");
            match posted.stop {
                Some(Stop::QueueFull) => None,
                stop => Some((done, stop)),
            }
        })
    }

    /// Posts all of a list; waits for room and receives if necessary.
    #[track_caller]
    pub(super) fn post(&mut self, node: usize, list: &[Work<'_>]) {
        let mut done = 0;
        self.until("a list to be taken", |scene| {
            let (accepted, stop) = scene.try_post(node, &list[done..]);
            done += accepted;
            match stop {
                None => Some(()),
                Some(Stop::ReceiverNotReady) => None,
                Some(stop) => panic!("request {done} of {}: {stop:?}", list.len()),
            }
        });
    }

    /// Posts one signaled request on a wire and waits for its completion.
    #[track_caller]
    pub(super) fn perform(&mut self, wire: &Wire, operation: Operation<'_>) -> Completion {
        let id = self.id();
        self.post(wire.from, &[work(id, wire.here, operation)]);
        let done = self.completion(wire.from);
        assert_eq!((done.id, done.link), (WorkId(id), wire.here), "{done:?}");
        done
    }

    /// Posts a receive of `bytes` at `offset` of the node's region, in its queue.
    #[track_caller]
    pub(super) fn receive(&mut self, node: usize, id: u64, offset: u64, bytes: usize) {
        self.receive_in(node, self.nodes[node].queue, id, offset, bytes);
    }

    /// The same in another queue of the node.
    #[track_caller]
    pub(super) fn receive_in(
        &mut self,
        node: usize,
        queue: ReceiveQueueId,
        id: u64,
        offset: u64,
        bytes: usize,
    ) {
        let receive =
            Receive { id: WorkId(id), queue, into: self.nodes[node].slice(offset, bytes) };
        let posted = self.nodes[node].port().post_receives(&[receive]);
        assert_eq!((posted.accepted, posted.stop), (1, None), "a receive within the depth");
    }

    /// Asserts the bytes of a completed WRITE in a node's memory, waiting for them if the fabric
    /// promises placement only later.
    #[track_caller]
    pub(super) fn memory_is(&mut self, node: usize, offset: u64, expected: &[u8]) {
        let here = |scene: &Self| scene.nodes[node].bytes_at(offset, expected.len());
        if !self.capabilities.completion_means_placed {
            self.until("bytes to be placed", |scene| (here(scene) == expected).then_some(()));
        }
        if here(self) != expected {
            let now = here(self);
            let at = now.iter().zip(expected).position(|(a, b)| a != b);
            panic!("memory of node {node} at {offset}: differs at byte {at:?} of {}", now.len());
        }
    }

    /// Asserts that a node's link still carries data both ways.
    #[track_caller]
    pub(super) fn works(&mut self, wire: &Wire) {
        for wire in [*wire, wire.reversed()] {
            let data = pattern(self.id(), 24);
            self.nodes[wire.from].put(0, &data);
            let slices = [self.nodes[wire.from].slice(0, 24)];
            let place = REGION_BYTES - 24;
            if self.capabilities.write {
                let done = self.perform(&wire, write(&slices, wire.at(place)));
                succeeded(&done, CompletionKind::Write, 24);
                self.memory_is(wire.to, place, &data);
            } else if self.capabilities.send {
                self.receive_in(wire.to, wire.queues[1], 1, place, 24);
                let done = self.perform(&wire, send(&slices));
                succeeded(&done, CompletionKind::Send, 24);
                succeeded(&self.completion(wire.to), CompletionKind::Receive, 24);
            }
        }
    }
}

/// Returns one atomic of each kind that the fabric has.
pub(super) fn atomics(
    has: &Capabilities,
    at: RemoteSlice,
    into: LocalSlice,
) -> Vec<Operation<'static>> {
    let (expected, new, add) = (0, 1, 1);
    let plain =
        [Operation::FetchAdd { at, add, into }, Operation::CompareSwap { at, expected, new, into }];
    let extended = [
        Operation::Swap { at, new, into },
        Operation::MaskedCompareSwap {
            at,
            expected,
            compare_mask: 0,
            new,
            swap_mask: u64::MAX,
            into,
        },
        Operation::MaskedFetchAdd { at, add, boundaries: 0, into },
    ];
    let mut list = Vec::new();
    if has.atomics > AtomicScope::None {
        list.extend(plain);
        list.extend(extended.into_iter().filter(|_| has.extended_atomics));
    }
    list
}
