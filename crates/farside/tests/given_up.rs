//! A removed member that continues (the ghost): what it has sent before and what it sends afterwards
//! reaches no memory of the other nodes, and none of its hellos opens a link again.

#[path = "hosts/proxy.rs"]
mod proxy;

use farside::{Config, ErrorCode, Node, NodeId};
use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, ReceiveQueueId,
    RegionKind, RegionToken, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, FabricError, LinkEvent, Port, PortSpec, Posted, Region, RegionSpec};
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::until;
use proxy::Proxy;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// The bytes that a WRITE of the ghost leaves.
const TRACE: u8 = 0xa5;
/// Bytes of one such WRITE.
const PIECE_BYTES: u32 = 64 << 10;
/// Marks the work ids of the ghost itself.
const MARK: u64 = 1 << 61;
const MEMORY_BYTES: u64 = 4 << 20;

/// The actions of the ghost besides those of its node.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Orders {
    Behave,
    /// Writes over all the memory that it ever imported, and repeats all messages that it ever sent.
    Write,
    /// The same, and keeps open the links that its node closes.
    Hold,
    /// Repeats all its hellos, and its join request to the founder.
    Knock,
}

/// The recorded actions of its node, and the results of its own.
#[derive(Default)]
struct Seen {
    orders: Option<Orders>,
    hellos: Vec<(String, Vec<u8>, ReceiveQueueId)>,
    imported: Vec<(LinkId, RegionToken, RemoteRegionId)>,
    messages: Vec<(LinkId, Vec<u8>)>,
    knocks: Vec<LinkId>,
    answers: Vec<LinkEvent>,
    posted: usize,
    writes: Vec<CompletionStatus>,
}

struct Ghost {
    inner: TcpFabric,
    founder: SocketAddr,
    source: Region,
    seen: Arc<Mutex<Seen>>,
}

struct GhostPort {
    inner: Box<dyn Port>,
    founder: SocketAddr,
    source: LocalSlice,
    seen: Arc<Mutex<Seen>>,
    events: Vec<LinkEvent>,
    /// Hellos are repeated by the port that sent them first.
    dials: bool,
}

fn lock(seen: &Mutex<Seen>) -> MutexGuard<'_, Seen> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Ghost {
    fn new(inner: TcpFabric, founder: SocketAddr) -> Self {
        let bytes = u64::from(PIECE_BYTES);
        let spec = RegionSpec { bytes, access: Access::NONE, kind: RegionKind::Memory };
        let source = inner.register(&spec).unwrap();
        source.arena.write(0, &vec![TRACE; PIECE_BYTES as usize]).unwrap();
        Self { inner, founder, source, seen: Arc::default() }
    }

    fn order(&self, orders: Orders) {
        lock(&self.seen).orders = Some(orders);
    }
}

impl Fabric for Ghost {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let source = LocalSlice { region: self.source.id, offset: 0, bytes: PIECE_BYTES };
        let (inner, seen) = (self.inner.open(spec)?, Arc::clone(&self.seen));
        let (founder, events) = (self.founder, Vec::new());
        Ok(Box::new(GhostPort { inner, founder, source, seen, events, dials: false }))
    }
}

impl GhostPort {
    /// Posts WRITEs over everything, and all messages again.
    fn write(&mut self, seen: &mut Seen) {
        let slices = [self.source];
        let flags = WorkFlags { signalled: true, ..WorkFlags::default() };
        for (link, token, region) in &seen.imported {
            for offset in (0..token.bytes).step_by(PIECE_BYTES as usize) {
                let to = RemoteSlice { region: *region, offset };
                let source = Source::Gather(&slices);
                let operation = Operation::Write { source, to, immediate: None };
                let work = Work { id: WorkId(MARK), link: *link, flags, operation };
                seen.posted += self.inner.post(&[work]).accepted;
            }
        }
        for (link, bytes) in &seen.messages {
            let operation = Operation::Send { source: Source::Inline(bytes), immediate: None };
            let work = Work { id: WorkId(MARK), link: *link, flags, operation };
            seen.posted += self.inner.post(&[work]).accepted;
        }
    }

    fn knock(&mut self, seen: &mut Seen) {
        for (to, hello, queue) in std::mem::take(&mut seen.hellos) {
            let to = if to.contains('/') { to } else { format!("{}/{to}", self.founder) };
            if let Ok(link) = self.inner.connect(&to, &hello, queue) {
                seen.knocks.push(link);
            }
        }
    }
}

impl Port for GhostPort {
    farside_fabric::forward!(common, post_receives, arm, waiter, may_land);

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let posted = self.inner.post(work);
        let sent = work[..posted.accepted].iter().filter_map(|work| match work.operation {
            Operation::Send { source: Source::Inline(bytes), .. } => {
                Some((work.link, bytes.to_vec()))
            }
            _ => None,
        });
        lock(&self.seen).messages.extend(sent);
        posted
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let shared = Arc::clone(&self.seen);
        let mut seen = lock(&shared);
        match seen.orders {
            Some(Orders::Write) if self.dials => {
                self.write(&mut seen);
                seen.orders = Some(Orders::Hold);
            }
            Some(Orders::Knock) if self.dials => {
                self.knock(&mut seen);
                seen.orders = Some(Orders::Hold);
            }
            _ => {}
        }
        let count = self.inner.poll(out);
        let mut kept = 0;
        for at in 0..count {
            if out[at].id == WorkId(MARK) {
                seen.writes.push(out[at].status);
            } else {
                out[kept] = out[at];
                kept += 1;
            }
        }
        kept
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.inner.link_events(&mut self.events);
        let mut seen = lock(&self.seen);
        for event in self.events.drain(..) {
            if seen.knocks.contains(&event.link()) {
                seen.answers.push(event);
            } else {
                out.push(event);
            }
        }
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        self.dials = true;
        lock(&self.seen).hellos.push((to.to_owned(), hello.to_vec(), receives));
        self.inner.connect(to, hello, receives)
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        let region = self.inner.import(link, token)?;
        lock(&self.seen).imported.push((link, *token, region));
        Ok(region)
    }

    fn close(&mut self, link: LinkId) {
        if lock(&self.seen).orders.is_none_or(|orders| orders == Orders::Behave) {
            self.inner.close(link);
        }
    }
}

fn fabric(way: &Proxy, hosts: &[&Proxy], lease: Duration) -> TcpFabric {
    let fabric = TcpFabric::new(TcpOptions {
        listen: Some("127.0.0.1:0".parse().unwrap()),
        advertise: Some(way.at().into()),
        hosts: hosts.iter().map(|host| host.at().into()).collect(),
        lease,
        request_timeout: lease,
        ..TcpOptions::default()
    })
    .unwrap();
    way.leads_to(fabric.listens_at().unwrap().resolve().unwrap()[0]);
    fabric
}

/// Waits for a condition, with a deadline.
#[test]
fn removed_member_that_continues_reaches_no_memory() {
    let (short, long) = (Duration::from_millis(1000), Duration::from_secs(600));
    let name = format!("ghost-{}", std::process::id());
    let config = Config::new(name)
        .memory_bytes(MEMORY_BYTES)
        .cache_bytes(MEMORY_BYTES)
        .lease_ns(1_000_000_000);
    let ways: [Proxy; 4] = std::array::from_fn(|_| Proxy::new());
    let first = Node::create_on(&config, Arc::new(fabric(&ways[0], &[], short))).unwrap();
    let second = fabric(&ways[1], &[&ways[0]], short);
    let second = Node::join_on(&config, Arc::new(second)).unwrap();
    first.wait_for_members(2, Duration::from_secs(30)).unwrap();

    // Connections from now on are the ghost's, whose leases are long.
    let from = ways.each_ref().map(|way| way.connections() + 1);
    let ghost = Arc::new(Ghost::new(fabric(&ways[2], &[&ways[0]], long), ways[0].at()));
    let patient = config.clone().lease_ns(600_000_000_000);
    let third = Node::join_on(&patient, Arc::clone(&ghost) as Arc<dyn Fabric>).unwrap();
    for node in [&first, &second] {
        node.wait_for_members(3, Duration::from_secs(30)).unwrap();
    }
    let mut sessions = [first.session().unwrap(), second.session().unwrap()];
    let homes = [first.id(), second.id()];
    let words: Vec<_> =
        (0..64).map(|at| sessions[0].alloc_on(64, homes[at % 2]).unwrap()).collect();
    let mut there = third.session().unwrap();
    for word in &words {
        assert_eq!(there.fetch_add(*word, 1).unwrap(), 0);
    }
    drop(there);

    for (way, from) in ways.iter().zip(from) {
        way.silence_from(Some(from));
    }
    ghost.order(Orders::Write);
    until("it has written", || lock(&ghost.seen).orders == Some(Orders::Hold));
    let posted = lock(&ghost.seen).posted;
    assert!(posted > 100, "{posted}");
    for node in [&first, &second] {
        until("it is given up", || {
            node.members().iter().filter(|member| member.alive).count() == 2
        });
    }
    // Data that only the ghost had is lost with it; the rest of the memory is reused.
    let words: Vec<_> =
        (0..64).map(|at| sessions[0].alloc_on(64, homes[at % 2]).unwrap()).collect();
    for (at, word) in words.iter().enumerate() {
        sessions[at % 2].write_u64(*word, at as u64).unwrap();
    }
    for session in &mut sessions {
        session.fence().unwrap();
    }
    come_back(&ghost, &ways, posted);

    // The other members are unaffected, and a new node can join.
    let newcomer = fabric(&ways[3], &[&ways[0]], short);
    let newcomer = Node::join_on(&config, Arc::new(newcomer)).unwrap();
    assert_eq!(newcomer.id(), NodeId(3), "a number more than the ghost's");
    let mut fresh = newcomer.session().unwrap();
    for (at, word) in words.iter().enumerate() {
        for session in sessions.iter_mut().chain([&mut fresh]) {
            assert_eq!(session.read_u64(*word).unwrap(), at as u64);
        }
    }
    let error = third.session().and_then(|mut there| there.read_u64(words[0])).unwrap_err();
    assert!([ErrorCode::Isolated, ErrorCode::NodeClosed].contains(&error.code), "{error}");
}

/// Everything that it has sent in the meantime arrives, and it requests links by all its old hellos.
fn come_back(ghost: &Ghost, ways: &[Proxy], posted: usize) {
    for way in ways {
        way.silence(false);
    }
    until("its requests have ended", || lock(&ghost.seen).writes.len() == posted);
    ghost.order(Orders::Knock);
    until("its hellos are answered", || {
        let seen = lock(&ghost.seen);
        seen.orders == Some(Orders::Hold) && seen.answers.len() == seen.knocks.len()
    });
    let seen = lock(&ghost.seen);
    assert!(!seen.writes.contains(&CompletionStatus::Success), "{:?}", seen.writes);
    assert!(seen.knocks.len() >= 3, "join, and a link to each member: {:?}", seen.knocks);
    let let_in = seen.answers.iter().find(|event| matches!(event, LinkEvent::Connected { .. }));
    assert!(let_in.is_none(), "{let_in:?}");
}
