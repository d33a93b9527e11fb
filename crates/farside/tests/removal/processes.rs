//! Processes that are stopped under load for so long that they are removed, and then continue.
//!
//! The stopped process records the start time of each of its successful operations, by the system's clock,
//! which all processes share. None of them may have started after the others had removed it, and no read
//! may have returned data that was overwritten before it started.

use farside::{
    AllocationHint, AllocationSpec, Config, ErrorCode, GlobalAddress, Joining, Limits, LineSize,
    Node, NodeId, Session,
};
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_testkit::{Process, Signal, await_parent, say, until};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, SystemTime};

const LEASE: Duration = Duration::from_millis(200);
const LEASE_OF_JOINERS: Duration = Duration::from_secs(20);
const THREADS: usize = 4;

/// The system's clock.
fn now_ns() -> u64 {
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).expect("after 1970");
    u64::try_from(time.as_nanos()).expect("before 2554")
}

fn config(cluster: &str) -> Config {
    config_with(cluster, LEASE)
}

fn config_with(cluster: &str, lease: Duration) -> Config {
    let lease_ns = u64::try_from(lease.as_nanos()).expect("a lease");
    // With room for lines of every size.
    Config::new(cluster).memory_bytes(4 << 20).cache_bytes(64 << 20).lease_ns(lease_ns)
}

/// Joiners are configured with longer leases than the founder's, which apply to them nevertheless.
fn tcp(founder: Option<SocketAddr>) -> Arc<dyn Fabric> {
    let lease = if founder.is_some() { LEASE_OF_JOINERS } else { LEASE };
    let options = TcpOptions {
        listen: Some("127.0.0.1:0".parse().expect("an address")),
        hosts: founder.into_iter().map(Into::into).collect(),
        lease,
        request_timeout: lease,
        ..TcpOptions::default()
    };
    Arc::new(TcpFabric::new(options).expect("a fabric"))
}

/// The node that a member joins.
#[derive(Clone, Copy, Debug)]
enum Founder {
    /// Over TCP, the node at this address.
    Host(SocketAddr),
    /// On this machine, the founder of the cluster.
    Local,
    /// None: the member founds the cluster itself, on this machine.
    Itself,
}

impl Founder {
    fn word(self) -> String {
        match self {
            Self::Host(host) => host.to_string(),
            Self::Local => "local".to_owned(),
            Self::Itself => "itself".to_owned(),
        }
    }

    /// A node of the cluster with the founder of this [`Founder::word`].
    fn node(cluster: &str, founder: &str) -> Node {
        let shm = || Arc::new(ShmFabric::new().expect("a fabric"));
        let node = match founder {
            "itself" => Node::create_on(&config(cluster), shm()),
            "local" => Node::join_on(&config(cluster), shm()),
            host => {
                let fabric = tcp(Some(host.parse().expect("an address")));
                Node::join_on(&config_with(cluster, LEASE_OF_JOINERS), fabric)
            }
        };
        node.expect("a node")
    }
}

/// The observations of one thread of the stopped process.
#[derive(Clone, Copy, Default)]
struct Found {
    /// The start of the last successful operation.
    acknowledged_ns: u64,
    /// The start of the last read that returned the value from before the removal.
    old_ns: u64,
    operations: u64,
}

/// Uses cached, owned and home lines until this process knows that it was removed.
fn use_all(
    session: &mut Session,
    has: [GlobalAddress; 3],
    works: &AtomicUsize,
) -> (Found, ErrorCode) {
    let [shared, owned, own] = has;
    let mut found = Found::default();
    let error = loop {
        let start = now_ns();
        let done = match found.operations % 6 {
            read @ (0 | 3) => {
                session.set_direct_reads(read == 3 && found.operations % 12 < 6);
                session.read_u64(shared).map(|value| {
                    if value == 1 {
                        found.old_ns = start;
                    }
                })
            }
            1 => session.write_u64(owned, start).and_then(|()| session.fence()),
            2 => session.fetch_add(own, 1).map(drop),
            4 => session.read_u64(owned).map(drop),
            _ => session.lock_write(owned, 64).and_then(farside::LockGuard::unlock),
        };
        match done {
            Ok(()) => found.acknowledged_ns = start,
            Err(error) => break error.code,
        }
        found.operations += 1;
        if found.operations == 100 {
            works.fetch_add(1, Ordering::SeqCst);
        }
    };
    (found, error)
}

/// The process that is stopped.
pub(super) fn member(cluster: &str, founder: &str) {
    let node = Founder::node(cluster, founder);
    say("member");
    let bits = await_parent().parse().expect("a number");
    let shared = GlobalAddress::from_bits(bits).expect("an address");
    let other = shared.home();
    let own = node.session().and_then(|mut s| s.alloc_on(64, node.id())).expect("memory");
    let works = AtomicUsize::new(0);
    let found: Vec<(Found, ErrorCode)> = std::thread::scope(|scope| {
        let works = &works;
        let threads: Vec<_> = (0..THREADS)
            .map(|_| {
                let mut session = node.session().expect("a session");
                session.set_direct_reads(false);
                session.read_u64(shared).expect("a member");
                let owned = session.alloc_on(64, other).expect("memory");
                scope.spawn(move || use_all(&mut session, [shared, owned, own], works))
            })
            .collect();
        until("all threads work", || works.load(Ordering::SeqCst) == THREADS);
        say("works");
        threads.into_iter().map(|thread| thread.join().expect("a thread")).collect()
    });
    let most = |which: fn(&Found) -> u64| found.iter().map(|(found, _)| which(found)).max();
    let (acknowledged, old) = (most(|found| found.acknowledged_ns), most(|found| found.old_ns));
    let operations: u64 = found.iter().map(|(found, _)| found.operations).sum();
    let codes: Vec<ErrorCode> = found.iter().map(|(_, code)| *code).collect();
    say(&format!(
        "found {} {} {operations} {codes:?}",
        acknowledged.unwrap_or(0),
        old.unwrap_or(0)
    ));
    // Until its parent has received it.
    await_parent();
}

fn member_process(cluster: &str, founder: Founder, role: &str) -> Process {
    Process::child(&format!("{cluster} {role} {}", founder.word()))
}

/// Stops and removes a process. Another member's write, which needs that process, waits until then and
/// succeeds; then the process continues.
fn stop(node: &Node, mut member: Process) {
    let mut session = node.session().expect("a session");
    let shared = session.alloc_on(64, node.id()).expect("memory");
    session.write_u64(shared, 1).expect("a write");
    session.fence().expect("a fence");
    member.say(&shared.to_bits().to_string());
    member.hear("works");
    member.stop();
    let alive = || node.members().iter().filter(|member| member.alive).count();
    let (removed_ns, overwritten_ns) = std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            // Waits until the cache of that process is reclaimed.
            session.write_u64(shared, 2).expect("a write");
            session.fence().expect("a fence");
            now_ns()
        });
        until("it is removed", || alive() == 1);
        (now_ns(), writer.join().expect("the writer"))
    });
    member.signal(Signal::CONT);
    let found = member.hear("found ");
    let mut numbers = found.split(' ').map_while(|text| text.parse::<u64>().ok());
    let mut number = || numbers.next().expect("three numbers");
    let (acknowledged_ns, old_ns, operations) = (number(), number(), number());
    assert!(operations > 0, "it did nothing before it was stopped: {found}");
    assert!(acknowledged_ns < removed_ns, "acknowledged after its removal: {found}");
    assert!(old_ns < overwritten_ns, "an old value was read: {found}");
    assert!(found.contains("NodeClosed") || found.contains("Isolated"), "{found}");
    assert_eq!(node.session().expect("a session").read_u64(shared), Ok(2));
}

pub(super) fn stop_over_tcp(number: u32) {
    let cluster = format!("stopped-{number}-{}", std::process::id());
    let fabric = tcp(None);
    let host = fabric.host().expect("a host");
    let node = Node::create_on(&config(&cluster), fabric).expect("a node");
    let member = member_process(&cluster, Founder::Host(host), "uses");
    stop(&node, member);
}

pub(super) fn stop_on_one_machine(number: u32) {
    let cluster = format!("stopped-shm-{number}-{}", std::process::id());
    let fabric = Arc::new(ShmFabric::new().expect("a fabric"));
    let node = Node::create_on(&config(&cluster), fabric).expect("a node");
    let mut member = member_process(&cluster, Founder::Local, "uses");
    member.hear("member");
    stop(&node, member);
    assert_eq!(node.stats().removals, 1);
}

/// The stopped process is the coordinator.
pub(super) fn stop_coordinator_on_one_machine(number: u32) {
    let cluster = format!("stopped-first-{number}-{}", std::process::id());
    let mut member = member_process(&cluster, Founder::Itself, "uses");
    member.hear("member");
    let fabric = Arc::new(ShmFabric::new().expect("a fabric"));
    let node = Node::join_on(&config(&cluster), fabric).expect("a node");
    stop(&node, member);
    // It admits new members.
    let another = Arc::new(ShmFabric::new().expect("a fabric"));
    until("another one joins", || {
        let another: Arc<dyn Fabric> = Arc::clone(&another) as Arc<dyn Fabric>;
        Node::join_on(&config(&cluster), another).is_ok()
    });
}

/// Lines of the largest size, so that their copies take long.
const LONG: AllocationSpec =
    AllocationSpec::new(AllocationHint::On(NodeId(0))).line_size(Some(LineSize::MAX));

/// Lines that the process writes, of the 64 of its home.
const BLOCK_LINES: usize = 32;
/// How often it has written them before it is stopped.
const ROUNDS: u32 = 20;

/// The process that is stopped while it copies lines to their home.
pub(super) fn writer(cluster: &str, founder: &str) {
    let node = Founder::node(cluster, founder);
    say("member");
    let mut session = node.session().expect("a session");
    let bytes = vec![0xaa; BLOCK_LINES * LineSize::MAX.bytes()];
    let own = session.alloc_with(bytes.len() as u64, LONG).expect("memory");
    let mut rounds = 0;
    let error = loop {
        // Takes the lines, and returns them with their bytes.
        let done = session.write(own, &bytes).and_then(|()| session.fence());
        if let Err(error) = done {
            break error.code;
        }
        node.evict_all();
        rounds += 1;
        if rounds == ROUNDS {
            say(&format!("works {}", own.to_bits()));
        }
    };
    assert!(rounds >= ROUNDS, "{error:?}");
    say(&format!("found {error:?}"));
    await_parent();
}

/// Overwrites lines of which a removed member had the only copy: that heals them, unless the member may
/// still write there. Returns whether there are such lines.
fn overwrite_lost(session: &mut Session, block: GlobalAddress, is_held_back: bool) -> bool {
    let mut bytes = vec![0xcc; LineSize::MAX.bytes()];
    let mut any = false;
    for line in 0..BLOCK_LINES {
        let line = block.checked_add((line * bytes.len()) as u64).expect("within the allocation");
        if session.read(line, &mut bytes).is_ok() {
            continue;
        }
        bytes.fill(0xcc);
        let healed = session.write(line, &bytes);
        assert_eq!(healed.is_ok(), !is_held_back, "{healed:?}");
        any = true;
    }
    any
}

/// Tries whether a node can join now.
fn joins(config: &Config) -> Result<(), ErrorCode> {
    let fabric = Arc::new(ShmFabric::new().expect("a fabric"));
    let mut joining = Joining::start(config, fabric).expect("a node that asks");
    loop {
        match joining.poll() {
            Ok(None) => std::thread::yield_now(),
            Ok(Some(_)) => return Ok(()),
            Err(error) => return Err(error.code),
        }
    }
}

/// Stops the process, perhaps during a copy into memory of its home. It is removed, and while it may still
/// write, no line that it had is healed and its number is not reused. The memory is freed, and all memory
/// that can be allocated is used otherwise; then the process continues, or is killed. Returns whether it
/// was inside a copy.
pub(super) fn stop_within_a_copy(number: u32) -> bool {
    let cluster = format!("stopped-copy-{number}-{}", std::process::id());
    let fabric = Arc::new(ShmFabric::new().expect("a fabric"));
    let limits = Limits { nodes_max: 2, ..Limits::DEFAULT };
    let config = config(&cluster).limits(limits);
    let node = Node::create_on(&config, fabric).expect("a node");
    let mut session = node.session().expect("a session");
    let mut member = member_process(&cluster, Founder::Local, "writes");
    let bits = member.hear("works ").parse().expect("a number");
    let theirs = GlobalAddress::from_bits(bits).expect("an address");
    member.stop();
    let alive = || node.members().iter().filter(|member| member.alive).count();
    until("it is removed", || alive() == 1);
    let is_held_back = node.stats().quarantined_members > 0;
    let any_lost = overwrite_lost(&mut session, theirs, is_held_back);
    // A process that is stopped as it announces its last copy holds back its number, but no memory.
    let is_memory_held_back = is_held_back && any_lost;
    if is_held_back {
        assert_eq!(joins(&config), Err(ErrorCode::Busy), "its number is given again");
    }
    session.free(theirs).expect("to free");
    let mut used = Vec::new();
    let mut bytes = vec![0xbb; LineSize::MAX.bytes()];
    while let Ok(address) = session.alloc_with(bytes.len() as u64, LONG) {
        session.write(address, &bytes).expect("a write");
        used.push(address);
    }
    let quarantined = node.stats();
    assert_eq!(quarantined.quarantined_bytes > 0, is_memory_held_back, "{quarantined:?}");
    if number.is_multiple_of(2) {
        member.signal(Signal::CONT);
        assert_eq!(member.hear("found "), "NodeClosed");
    } else {
        member.kill();
    }
    until("nothing is held back", || node.stats().quarantined_members == 0);
    assert_eq!(node.stats().quarantined_bytes, 0);
    for address in used {
        session.read(address, &mut bytes).expect("a read");
        assert!(bytes.iter().all(|byte| *byte == 0xbb), "{address} was written after its removal");
    }
    if is_memory_held_back {
        session.alloc_with(bytes.len() as u64, LONG).expect("what was held back");
    }
    until("its number is given again", || joins(&config).is_ok());
    is_held_back
}

/// The process that is stopped while it places its lines in the caches of others.
pub(super) fn server(cluster: &str, founder: &str) {
    let node = Founder::node(cluster, founder);
    let mut session = node.session().expect("a session");
    let spec = LONG.hint(AllocationHint::Local);
    let bytes = (READERS * LineSize::MAX.bytes()) as u64;
    let own = session.alloc_with(bytes, spec).expect("memory");
    say(&format!("serves {}", own.to_bits()));
    await_parent();
}

/// Threads that read what the process serves.
const READERS: usize = 12;

/// Stops the process, perhaps during a copy into the cache of this one, which reads its lines all the time.
/// All reads end, and withheld memory is usable again when the process continues or is killed. Returns
/// whether it was inside a copy.
pub(super) fn stop_server(number: u32) -> bool {
    let cluster = format!("stopped-server-{number}-{}", std::process::id());
    let fabric = Arc::new(ShmFabric::new().expect("a fabric"));
    let node = Node::create_on(&config(&cluster), fabric).expect("a node");
    let mut member = member_process(&cluster, Founder::Local, "serves");
    let bits = member.hear("serves ").parse().expect("a number");
    let theirs = GlobalAddress::from_bits(bits).expect("an address");
    let reads = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let threads: Vec<_> = (0..READERS as u64)
            .map(|number| {
                let mut session = node.session().expect("a session");
                session.set_direct_reads(false);
                let (node, reads) = (&node, &reads);
                let line = theirs.checked_add(number * LineSize::MAX.bytes() as u64);
                let line = line.expect("within the allocation");
                scope.spawn(move || {
                    let mut bytes = vec![0; LineSize::MAX.bytes()];
                    loop {
                        if let Err(error) = session.read(line, &mut bytes) {
                            return error.code;
                        }
                        reads.fetch_add(1, Ordering::Relaxed);
                        node.evict_all();
                    }
                })
            })
            .collect();
        until("all lines are read", || reads.load(Ordering::Relaxed) > 100);
        member.stop();
        for thread in threads {
            assert_eq!(thread.join().expect("a reader"), ErrorCode::NodeLost);
        }
    });
    let stats = node.stats();
    assert_eq!(stats.removals, 1);
    let is_held_back = stats.quarantined_bytes > 0;
    match number.is_multiple_of(2) {
        true => member.signal(Signal::CONT),
        false => member.signal(Signal::KILL),
    }
    until("nothing is held back", || node.stats().quarantined_members == 0);
    assert_eq!(node.stats().quarantined_bytes, 0);
    is_held_back
}
