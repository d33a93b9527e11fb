//! Joins. Events at the cluster's name wake a sleeping coordinator. An evicted connection is retried;
//! requests without a link expire; regions end with their nodes.
#![forbid(unsafe_code)]

use farside::{Config, ErrorCode, Joining, Node, NodeId};
use farside_base::{
    Access, Incarnation, LinkId, MemberRegions, ReceiveQueueId, RegionId, RegionToken, RemoteKey,
    ViewNumber,
};
use farside_fabric::{
    Fabric, FabricError, LinkEvent, MemFabric, NotReached, Port, PortSpec, Region, RegionSpec,
    Waiter,
};
use farside_fabric_shm::ShmFabric;
use farside_protocol::member::{HelloAnswer, PROTOCOL_VERSION, PeerRequest};
use farside_testkit::until;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A test that takes longer is considered hung.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Counts how often a port wakes a thread that sleeps on another port.
struct Watched {
    inner: Arc<dyn Fabric>,
    wakes: Arc<AtomicU32>,
}

struct WatchedPort {
    inner: Box<dyn Port>,
    wakes: Arc<AtomicU32>,
}

struct WatchedWaiter {
    inner: Arc<dyn Waiter>,
    wakes: Arc<AtomicU32>,
}

impl Fabric for Watched {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, wakes) = (self.inner.open(spec)?, Arc::clone(&self.wakes));
        Ok(Box::new(WatchedPort { inner, wakes }))
    }
}

impl Port for WatchedPort {
    farside_fabric::forward!(
        common,
        post,
        post_receives,
        poll,
        link_events,
        arm,
        connect,
        import,
        close,
        may_land
    );

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        let wakes = Arc::clone(&self.wakes);
        self.inner.wake_also(Arc::new(WatchedWaiter { inner: waiter, wakes }));
    }
}

impl Waiter for WatchedWaiter {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        self.inner.wait(timeout)
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.inner.wake();
    }
}

#[test]
fn join_wakes_the_coordinator_and_its_successor() {
    let name = format!("joining-{}", std::process::id());
    let config = Config::new(name).memory_bytes(2 << 20).cache_bytes(4 << 20);
    let wakes: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
    let watched = |number: usize| {
        let inner: Arc<dyn Fabric> = Arc::new(ShmFabric::new().unwrap());
        Arc::new(Watched { inner, wakes: Arc::clone(&wakes[number]) })
    };
    let founder = Node::create_on(&config, watched(0)).unwrap();
    let heir = Node::join_on(&config, watched(1)).unwrap();
    assert!(wakes[0].load(Ordering::SeqCst) > 0, "the coordinator was woken");
    founder.leave().unwrap();
    // The name is free a moment before the heir binds it.
    let begun = Instant::now();
    let third = loop {
        match Node::join(&config) {
            Ok(node) => break node,
            Err(error) if error.code == ErrorCode::NoSuchCluster => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < WATCHDOG, "no node took the name");
    };
    assert!(wakes[1].load(Ordering::SeqCst) > 0, "its heir was woken");
    assert_eq!(third.members().iter().filter(|member| member.alive).count(), 2);
    drop(heir);
}

fn small(name: &str) -> Config {
    let name = format!("joining-{name}-{}", std::process::id());
    Config::new(name).memory_bytes(2 << 20).cache_bytes(4 << 20)
}

/// A fabric that loses its first connection before the hello is sent, and the second one after that.
struct Displaced {
    inner: Arc<dyn Fabric>,
    connections: Arc<AtomicU32>,
}

struct DisplacedPort {
    inner: Box<dyn Port>,
    connections: Arc<AtomicU32>,
    hung_up: Option<LinkId>,
}

impl Fabric for Displaced {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, connections) = (self.inner.open(spec)?, Arc::clone(&self.connections));
        Ok(Box::new(DisplacedPort { inner, connections, hung_up: None }))
    }
}

impl Port for DisplacedPort {
    farside_fabric::forward!(
        common,
        post,
        post_receives,
        poll,
        arm,
        waiter,
        import,
        close,
        may_land
    );

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        match self.connections.fetch_add(1, Ordering::SeqCst) {
            0 => Err(FabricError::PeerLost),
            1 => {
                self.hung_up = Some(LinkId(0));
                Ok(LinkId(0))
            }
            _ => self.inner.connect(to, hello, receives),
        }
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        match self.hung_up.take() {
            Some(link) => out.push(LinkEvent::NotReached { link, why: NotReached::HungUp }),
            None => self.inner.link_events(out),
        }
    }
}

#[test]
fn join_with_evicted_connection_is_repeated() {
    let config = small("displaced");
    let inner: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let _founder = Node::create_on(&config, Arc::clone(&inner)).unwrap();
    let connections = Arc::new(AtomicU32::new(0));
    let displaced = Displaced { inner, connections: Arc::clone(&connections) };
    let node = Node::join_on(&config, Arc::new(displaced)).unwrap();
    node.wait_for_members(2, WATCHDOG).unwrap();
    // Two lost connections, the join, and the link to the founder.
    assert!(connections.load(Ordering::SeqCst) >= 4);
}

/// A fabric with a clock that the test advances.
struct Timed {
    inner: Arc<dyn Fabric>,
    ahead_ns: Arc<AtomicU64>,
}

impl Fabric for Timed {
    farside_fabric::forward!(
        name,
        host,
        lease_ns,
        capabilities,
        register,
        deregister,
        register_memory,
        open
    );

    fn time_ns(&self) -> u64 {
        self.inner.time_ns() + self.ahead_ns.load(Ordering::SeqCst)
    }
}

/// A founder that the test drives, the network, and how far its time is ahead.
fn timed(config: &Config) -> (Node, Arc<dyn Fabric>, Arc<AtomicU64>) {
    let inner: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let ahead_ns = Arc::new(AtomicU64::new(0));
    let fabric = Timed { inner: Arc::clone(&inner), ahead_ns: Arc::clone(&ahead_ns) };
    let founder = Node::create_driven(config, Arc::new(fabric)).unwrap();
    (founder, inner, ahead_ns)
}

fn alive(node: &Node) -> usize {
    node.members().iter().filter(|member| member.alive).count()
}

const HOUR_NS: u64 = 3_600_000_000_000;

#[test]
fn admitted_join_without_a_link_expires() {
    let config = small("silent");
    let (founder, inner, ahead_ns) = timed(&config);
    let _silent = Joining::start(&config, Arc::clone(&inner)).unwrap();
    until("it is admitted", || {
        founder.progress();
        alive(&founder) == 2
    });
    (0..100).for_each(|_| _ = founder.progress());
    assert_eq!(alive(&founder), 2, "a joiner has time");
    ahead_ns.store(HOUR_NS, Ordering::SeqCst);
    until("it is removed", || {
        founder.progress();
        alive(&founder) == 1
    });
    let mut next = Joining::start(&config, inner).unwrap();
    until("another node joins", || {
        founder.progress();
        next.poll().unwrap().is_some()
    });
    // Its link outlives the timeout of its join.
    ahead_ns.store(2 * HOUR_NS, Ordering::SeqCst);
    (0..100).for_each(|_| _ = founder.progress());
}

#[test]
fn request_naming_a_future_view_expires() {
    let config = small("future");
    let (founder, inner, ahead_ns) = timed(&config);
    let mut port = inner.open(&PortSpec::default()).unwrap();
    let queue = port.create_receive_queue(1).unwrap();
    let token =
        RegionToken { region: RegionId(0), key: RemoteKey(0), bytes: 0, access: Access::NONE };
    let hello = PeerRequest {
        version: PROTOCOL_VERSION,
        cluster: config.cluster.clone(),
        node: NodeId(1),
        incarnation: Incarnation(7),
        view: ViewNumber(1000),
        regions: MemberRegions { home: token, cache: token, fence: token, tags: None },
    };
    let name = format!("farside.{}.0-001", config.cluster);
    let link = port.connect(&name, &hello.encode(), queue).unwrap();
    let mut events = Vec::new();
    (0..100).for_each(|_| _ = founder.progress());
    port.link_events(&mut events);
    assert_eq!(events, [], "the view may come");
    ahead_ns.store(HOUR_NS, Ordering::SeqCst);
    until("it is answered", || {
        founder.progress();
        port.link_events(&mut events);
        !events.is_empty()
    });
    let [LinkEvent::Refused { link: refused, reason }] = &events[..] else {
        panic!("{events:?}");
    };
    let Ok(HelloAnswer::Refusal(refusal)) = HelloAnswer::decode(reason) else {
        panic!("{reason:?}")
    };
    assert_eq!((*refused, refusal.code), (link, ErrorCode::TimedOut));
}

/// A fabric that counts the regions of its nodes.
struct Counted {
    inner: Arc<dyn Fabric>,
    regions: Arc<AtomicU32>,
}

impl Fabric for Counted {
    farside_fabric::forward!(name, host, lease_ns, time_ns, capabilities, register_memory, open);

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.regions.fetch_add(1, Ordering::SeqCst);
        self.inner.register(spec)
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.regions.fetch_sub(1, Ordering::SeqCst);
        self.inner.deregister(region)
    }
}

/// A fabric may outlive its nodes: repeated joins and leaves once filled the memory.
#[test]
fn regions_end_with_their_nodes() {
    let config = small("regions");
    let inner: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let founder = Node::create_on(&config, Arc::clone(&inner)).unwrap();
    let regions = Arc::new(AtomicU32::new(0));
    let counted: Arc<dyn Fabric> = Arc::new(Counted { inner, regions: Arc::clone(&regions) });
    for _ in 0..3 {
        let node = Node::join_on(&config, Arc::clone(&counted)).unwrap();
        let mut session = node.session().unwrap();
        let address = session.alloc_on(64, founder.id()).unwrap();
        session.write_u64(address, 1).unwrap();
        assert!(regions.load(Ordering::SeqCst) > 0);
        drop(session);
        node.leave().unwrap();
        assert_eq!(regions.load(Ordering::SeqCst), 0, "after a leave");
    }
    // A node that is never admitted has regions too.
    drop(Joining::start(&config, counted).unwrap());
    assert_eq!(regions.load(Ordering::SeqCst), 0, "after a join that was given up");
}
