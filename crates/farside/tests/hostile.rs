//! Peers that speak another version, send junk, or break the protocol: they get a typed error, and other
//! nodes are unaffected. The bad peer is a correct node with a fabric that changes its messages.

mod fabrics;

use fabrics::{Make, named};
use farside::{Config, ErrorCode, Generation, GlobalAddress, MemoryId, Node, NodeId};
use farside_base::{LinkId, Operation, ReceiveQueueId, Source, Work};
use farside_fabric::{Fabric, FabricError, Port, PortSpec, Posted};
use farside_protocol::member::{Join, Keeps, PROTOCOL_VERSION};
use farside_protocol::wire::Family;
use farside_testkit::WATCHDOG;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm => (
    peer_of_another_version_gets_version_mismatch
    junk_instead_of_a_hello_is_refused
    peer_that_breaks_the_protocol_is_dropped_alone
    joiner_that_breaks_the_protocol_is_dropped_alone
    allocation_outside_of_the_memory_of_its_home_is_refused
)}

/// A change of a message that a [`Liar`]'s node sends.
type Lie = fn(&mut Vec<u8>);

fn honest(_: &mut Vec<u8>) {}

/// Changes hellos always, and messages while `lies` is not zero, which counts them down.
struct Liar {
    inner: Arc<dyn Fabric>,
    hello: Lie,
    message: Lie,
    lies: Arc<AtomicU32>,
}

struct LiarPort {
    inner: Box<dyn Port>,
    hello: Lie,
    message: Lie,
    lies: Arc<AtomicU32>,
}

impl Fabric for Liar {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let lies = Arc::clone(&self.lies);
        let inner = self.inner.open(spec)?;
        Ok(Box::new(LiarPort { inner, hello: self.hello, message: self.message, lies }))
    }
}

impl Port for LiarPort {
    farside_fabric::forward!(
        common,
        post_receives,
        poll,
        link_events,
        arm,
        waiter,
        import,
        close,
        may_land
    );

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        if let [
            Work {
                operation: Operation::Send { source: Source::Inline(bytes), immediate }, ..
            },
        ] = work
            && self.lies.load(Ordering::SeqCst) > 0
        {
            let mut lie = bytes.to_vec();
            (self.message)(&mut lie);
            let source = Source::Inline(&lie);
            let operation = Operation::Send { source, immediate: *immediate };
            let posted = self.inner.post(&[Work { operation, ..work[0] }]);
            // Otherwise the message is posted again.
            self.lies.fetch_sub(u32::from(posted.accepted > 0), Ordering::SeqCst);
            return posted;
        }
        self.inner.post(work)
    }
    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        let mut lie = hello.to_vec();
        (self.hello)(&mut lie);
        self.inner.connect(to, &lie, receives)
    }
}

fn config(name: &str, fabric: &str) -> Config {
    let name = format!("{name}-{fabric}-{}", std::process::id());
    Config::new(name).memory_bytes(4 << 20).cache_bytes(8 << 20)
}

fn liar(inner: Arc<dyn Fabric>, hello: Lie, message: Lie) -> (Arc<dyn Fabric>, Arc<AtomicU32>) {
    let lies = Arc::new(AtomicU32::new(0));
    (Arc::new(Liar { inner, hello, message, lies: Arc::clone(&lies) }), lies)
}

/// Checks that a correct node can join, and that the memory of the first works.
fn assert_undisturbed(first: &Node, config: &Config, make: &Make) {
    let second = Node::join_on(config, make()).unwrap();
    first.wait_for_members(2, Duration::from_secs(10)).unwrap();
    let mut session = first.session().unwrap();
    let address = session.alloc_on(64, second.id()).unwrap();
    session.write_u64(address, 5).unwrap();
    session.fence().unwrap();
    assert_eq!(second.session().unwrap().read_u64(address), Ok(5));
}

/// Changes the version in a hello, as a peer of another version would send it.
fn other_version(hello: &mut [u8]) {
    let join = |version| {
        let cluster = String::new();
        let incarnation = farside_base::Incarnation(0);
        Join {
            version,
            cluster,
            limits: 0,
            incarnation,
            home_bytes: 0,
            witness: false,
            keeps: Keeps::Nothing,
            host: None,
        }
        .encode()
    };
    let (ours, theirs) = (join(PROTOCOL_VERSION), join(PROTOCOL_VERSION + 1));
    for at in (0..ours.len()).filter(|at| ours[*at] != theirs[*at]) {
        hello[at] = theirs[at];
    }
}

fn peer_of_another_version_gets_version_mismatch(fabric: &str) {
    let make = &*named(fabric);
    let config = config("version", fabric);
    let first = Node::create_on(&config, make()).unwrap();
    let (other, _) = liar(make(), |hello| other_version(hello), honest);
    let error = Node::join_on(&config, other).unwrap_err();
    assert_eq!(error.code, ErrorCode::VersionMismatch, "{error}");
    assert!(error.to_string().contains(&(PROTOCOL_VERSION + 1).to_string()), "{error}");
    assert_undisturbed(&first, &config, make);
}

fn junk_instead_of_a_hello_is_refused(fabric: &str) {
    let make = &*named(fabric);
    let lies: [Lie; 4] = [
        |hello| hello.clear(),
        |hello| hello.truncate(9),
        |hello| hello.iter_mut().for_each(|byte| *byte ^= 0x5a),
        |hello| hello.extend([0; 40]),
    ];
    let config = config("junk", fabric);
    let first = Node::create_on(&config, make()).unwrap();
    for lie in lies {
        let error = Node::join_on(&config, liar(make(), lie, honest).0).unwrap_err();
        assert_eq!(error.code, ErrorCode::ProtocolViolation, "{error}");
    }
    assert_undisturbed(&first, &config, make);
}

fn peer_that_breaks_the_protocol_is_dropped_alone(fabric: &str) {
    let make = &*named(fabric);
    let lies: [(&str, Lie); 6] = [
        ("cut", |message| message.truncate(20)),
        ("empty", |message| message.clear()),
        ("family", |message| message[0] = 99),
        ("sequence", |message| message[2] ^= 1),
        ("credits", |message| message[4] = 200),
        ("body", |message| message[8..].fill(0xff)),
    ];
    for (name, lie) in lies {
        let config = config(name, fabric);
        let first = Node::create_on(&config, make()).unwrap();
        let second = Node::join_on(&config, make()).unwrap();
        let (bad, armed) = liar(make(), honest, lie);
        let third = Node::join_on(&config, bad).unwrap();
        for node in [&first, &second, &third] {
            node.wait_for_members(3, Duration::from_secs(10)).unwrap();
        }
        let mut session = first.session().unwrap();
        let kept = session.alloc_on(64, NodeId(1)).unwrap();
        let gone = session.alloc_on(64, third.id()).unwrap();
        session.write_u64(kept, 7).unwrap();
        session.fence().unwrap();

        // The third node's next message is false, to any recipient.
        let mut liar = third.session().unwrap();
        liar.set_timeout(Some(Duration::from_secs(30)));
        armed.store(1, Ordering::SeqCst);
        let answer = liar.read_u64(kept);
        let code = answer.as_ref().map_err(|error| error.code);
        let states = || [&first, &second, &third].map(Node::describe).join("\n");
        assert!(code != Err(ErrorCode::TimedOut), "{name}: {}", states());
        assert!(code.is_err() || code == Ok(&7), "{name}: {answer:?}");
        drop(liar);

        let start = Instant::now();
        while first.members().iter().filter(|member| member.alive).count() > 2
            || second.members().iter().filter(|member| member.alive).count() > 2
        {
            assert!(start.elapsed() < Duration::from_secs(30), "{name}: {}", first.describe());
            std::thread::yield_now();
        }
        assert_eq!(session.read_u64(kept), Ok(7), "{name}");
        assert_eq!(second.session().unwrap().read_u64(kept), Ok(7), "{name}");
        let error = session.read_u64(gone).unwrap_err();
        assert_eq!(error.code, ErrorCode::NodeLost, "{name}: {error}");
    }
}

/// Its messages may arrive before its link is known to be up.
fn joiner_that_breaks_the_protocol_is_dropped_alone(fabric: &str) {
    let make = &*named(fabric);
    let lies: [(&str, Lie); 3] = [
        ("early-cut", |message| message.truncate(20)),
        ("early-empty", |message| message.clear()),
        ("early-family", |message| message[0] = 99),
    ];
    for (name, lie) in lies {
        let config = config(name, fabric);
        let first = Node::create_on(&config, make()).unwrap();
        let (bad, armed) = liar(make(), honest, lie);
        armed.store(1, Ordering::SeqCst);
        // It may be linked before its first message is read, or say several things at a time, which are true.
        let joined = Node::join_on(&config, bad);
        let mut session = joined.as_ref().ok().and_then(|joined| joined.session().ok());
        let start = Instant::now();
        while first.members().iter().filter(|member| member.alive).count() > 1 {
            if let Some(session) = &mut session {
                session.set_timeout(Some(Duration::from_millis(100)));
                let _ = session.alloc_on(64, NodeId(0));
            }
            let states = || {
                let joined = joined.as_ref().map(Node::describe);
                let (session, lies) = (session.is_some(), armed.load(Ordering::SeqCst));
                format!("{}\n{joined:?}, session {session}, {lies} lies left", first.describe())
            };
            assert!(start.elapsed() < WATCHDOG, "{name}: {}", states());
            std::thread::yield_now();
        }
        drop((session, joined));
        assert_undisturbed(&first, &config, make);
    }
}

/// Changes the answer to an allocation, and nothing else.
fn change_allocation(message: &mut [u8], change: fn(GlobalAddress) -> GlobalAddress) {
    let is_allocated = message[0] == Family::Allocate as u8 && message[8] == 2;
    if is_allocated {
        let mut bits = [0; 8];
        bits.copy_from_slice(&message[17..25]);
        let address = GlobalAddress::from_bits(u64::from_le_bytes(bits)).unwrap();
        message[17..25].copy_from_slice(&change(address).to_bits().to_le_bytes());
    }
}

fn allocation_outside_of_the_memory_of_its_home_is_refused(fabric: &str) {
    let make = &*named(fabric);
    fn moved(address: GlobalAddress, node: NodeId, offset: u64) -> GlobalAddress {
        let memory = MemoryId::new(node, address.memory().generation()).unwrap();
        GlobalAddress::new_in(memory, address.line_size(), offset).unwrap()
    }
    let lies: [(&str, Lie); 5] = [
        ("of another home", |message| {
            change_allocation(message, |address| moved(address, NodeId(0), address.offset()));
        }),
        ("of a later generation", |message| {
            change_allocation(message, |address| {
                let memory = MemoryId::new(address.home(), Generation(9)).unwrap();
                GlobalAddress::new_in(memory, address.line_size(), address.offset()).unwrap()
            });
        }),
        ("behind the end", |message| {
            change_allocation(message, |address| moved(address, address.home(), 1 << 40));
        }),
        ("within a line", |message| {
            change_allocation(message, |address| {
                moved(address, address.home(), address.offset() + 8)
            });
        }),
        ("of other lines", |message| {
            if message[0] == Family::Allocate as u8 && message[8] == 2 {
                message[25] += 1;
            }
        }),
    ];
    for (number, (name, lie)) in lies.into_iter().enumerate() {
        let config = config(&format!("allocation-{number}"), fabric);
        let first = Node::create_on(&config, make()).unwrap();
        let (bad, armed) = liar(make(), honest, lie);
        let second = Node::join_on(&config, bad).unwrap();
        first.wait_for_members(2, Duration::from_secs(10)).unwrap();
        let mut session = first.session().unwrap();
        armed.store(u32::MAX, Ordering::SeqCst);
        let refused = session.alloc_on(64, second.id()).map_err(|error| error.code);
        assert_eq!(refused, Err(ErrorCode::NodeLost), "{name}");
        let own = session.alloc_on(64, first.id()).unwrap();
        session.write_u64(own, 3).unwrap();
        assert_eq!(session.read_u64(own), Ok(3), "{name}");
    }
}
