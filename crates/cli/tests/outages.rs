//! How soon a cluster between hosts is as fast as before when a link comes back: three nodes of a guest with
//! RDMA devices in software, a process in each. The first writes to lines that the third is home of, more
//! than it can cache, while the third one's link is away for less than a lease and for longer.
//! `cargo xtask rdma-guest --nodes 3 --tests -p farside-cli --test outages -- --nocapture` shows the
//! figures; elsewhere the test says so and passes.
//!
//! `FARSIDE_OUTAGES_MS=300,1000` names other times, `FARSIDE_LEASES_MS=3000,1000` other leases: the
//! fabric's and the nodes'. `FARSIDE_OUTAGES_OVER=tcp` measures the TCP fabric in their place.
#![forbid(unsafe_code)]

use farside::{Config, GlobalAddress, Node, NodeId};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_fabric_verbs::{Options, VerbsFabric};
use std::io::{BufRead, BufReader, Lines, Read};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Longer than everything that is waited for, on however slow a machine.
const WATCHDOG: Duration = Duration::from_secs(120);
/// What a process of this program is, and where the founder is reached.
const ROLE: &str = "FARSIDE_OUTAGES_ROLE";
/// Of throughput.
const WINDOW: Duration = Duration::from_millis(50);
/// Windows that are looked at together.
const TOGETHER: usize = 5;
/// Windows of the longest run.
const WINDOWS_MAX: usize = 20 * 60 * 5;
/// Windows after each outage in which it may become as fast again; what the load does by itself scatters.
const LOOKED: usize = 100;
/// Windows before each outage that say how fast it was.
const BEFORE: usize = 40;
/// Who write at the same time, so that it is the processors that they wait for and not each other's
/// sleep, and to how many lines each: more than the cache has room for.
const WRITERS: u64 = 8;
const LINES: u64 = 256;
const LINE_BYTES: u64 = 512;
/// Writes under way at a time.
const BATCH: u64 = 8;

fn list(name: &str, usual: &str) -> Vec<u64> {
    let text = std::env::var(name).unwrap_or_else(|_| usual.to_owned());
    text.split(',').map(|number| number.parse().expect("a number")).collect()
}

fn config() -> Config {
    let leases = list("FARSIDE_LEASES_MS", "1000,4000");
    Config::new("outages")
        .memory_bytes(8 << 20)
        .cache_bytes(64 << 10)
        .cache_shares([0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0])
        .lease_ns(leases[1] * 1_000_000)
}

/// The fabric of the node of the guest in which this process is.
fn fabric(hosts: Vec<Endpoint>) -> Arc<dyn Fabric> {
    let own = |name: &str| std::env::var(name).expect("a node of the guest");
    let listen = Some(format!("{}:0", own("RDMA_ADDRESS")).parse().expect("an endpoint"));
    let lease = Duration::from_millis(list("FARSIDE_LEASES_MS", "1000,4000")[0]);
    if is("FARSIDE_OUTAGES_OVER", "tcp") {
        let options = TcpOptions { listen, hosts, lease, ..TcpOptions::default() };
        return Arc::new(TcpFabric::new(options).expect("a fabric"));
    }
    let mut options = Options::new(Security::open());
    options.device = Some(own("RDMA_DEVICE"));
    (options.listen, options.hosts, options.lease) = (listen, hosts, lease);
    Arc::new(VerbsFabric::open(options).expect("the device"))
}

/// Whether a variable has this value.
fn is(name: &str, value: &str) -> bool {
    std::env::var(name).is_ok_and(|has| has == value)
}

/// This program again, in a node of the guest.
fn in_node(number: u64, role: &str) -> Command {
    let mut command = Command::new("on");
    command.arg(number.to_string());
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["plays_its_role", "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// A member that only lends its memory, for as long as its standard input is open.
#[allow(clippy::print_stdout, reason = "says which member it is")]
fn lend(founder: &str) {
    let fabric = fabric(vec![founder.parse().expect("an endpoint")]);
    let node = Node::join_on(&config(), fabric).expect("to join");
    println!("node={}", node.id().0);
    let _ = std::io::stdin().read(&mut [0]);
}

/// A member in a process of its own, whose output is kept open: the harness says something now and then.
struct Lender {
    child: Child,
    node: NodeId,
    _said: Lines<BufReader<ChildStdout>>,
}

/// Starts a member in a node of the guest.
fn lender(number: u64, founder: &Endpoint) -> Lender {
    let mut command = in_node(number, &founder.to_string());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let found = lines.find_map(|line| {
        let line = line.expect("text");
        line.split_once("node=").map(|(_, number)| number.trim().parse().expect("a number"))
    });
    Lender { child, node: NodeId(found.expect("it joins")), _said: lines }
}

/// Writes in each window since the beginning.
struct Record {
    begun: Instant,
    windows: Vec<AtomicU32>,
    stopped: AtomicBool,
}

impl Record {
    fn new() -> Self {
        let windows = (0..WINDOWS_MAX).map(|_| AtomicU32::new(0)).collect();
        Self { begun: Instant::now(), windows, stopped: AtomicBool::new(false) }
    }

    /// Where a moment is, in windows.
    fn at(&self, moment: Instant) -> usize {
        (moment.duration_since(self.begun).as_nanos() / WINDOW.as_nanos()) as usize
    }

    fn note(&self, writes: u64) {
        if let Some(window) = self.windows.get(self.at(Instant::now())) {
            window.fetch_add(writes as u32, Ordering::Relaxed);
        }
    }

    /// What some windows from `at` on have together.
    fn sum(&self, at: usize) -> u32 {
        self.windows[at..at + TOGETHER].iter().map(|window| window.load(Ordering::Relaxed)).sum()
    }

    /// Waits until so many windows are over.
    fn wait_until(&self, windows: usize) {
        assert!(windows < WINDOWS_MAX, "too long");
        while self.at(Instant::now()) < windows {
            std::thread::park_timeout(WINDOW);
        }
    }

    /// Waits until writes are done again; in which window.
    fn wait_for_one(&self, after: usize) -> usize {
        let begun = Instant::now();
        loop {
            let now = self.at(Instant::now());
            let done = |at: &usize| self.windows[*at].load(Ordering::Relaxed) > 0;
            if let Some(first) = (after..now).find(done) {
                return first;
            }
            assert!(begun.elapsed() < WATCHDOG, "nothing is done any more");
            self.wait_until(now + 1);
        }
    }
}

/// One of the writers: writes to one of its lines after the other, and looks at the end whether all is
/// there; how often.
fn write(node: &Node, lines: GlobalAddress, writer: u64, record: &Record) -> u64 {
    let mut session = node.session().expect("a session");
    let line = |count: u64| {
        let at = writer * LINES + count % LINES;
        lines.checked_add(at * LINE_BYTES).expect("inside")
    };
    let mut count = 0;
    while !record.stopped.load(Ordering::Relaxed) {
        for _ in 0..BATCH {
            session.write_u64(line(count), count).expect("the home lives");
            count += 1;
        }
        session.fence().expect("the home lives");
        record.note(BATCH);
    }
    for last in count - LINES.min(count)..count {
        assert_eq!(session.read_u64(line(last)).expect("the home lives"), last, "a write was lost");
    }
    count
}

/// How a link goes away and comes back.
#[derive(Clone, Copy, Debug)]
enum Way {
    /// Not at all: what the load does by itself.
    Nothing,
    /// The network device of the node.
    Device,
    /// The port of the bridge that it is plugged into.
    Bridge,
    /// Every packet is lost, and nobody is told.
    Loss,
}

impl Way {
    /// Whether packets can be lost here: kernels without netem lose none.
    fn is_possible(self) -> bool {
        let tried = "tc -n node3 qdisc add dev eth0 root netem loss 0%";
        match self {
            Self::Loss if runs(tried) => runs("tc -n node3 qdisc del dev eth0 root"),
            Self::Loss => false,
            Self::Nothing | Self::Device | Self::Bridge => true,
        }
    }

    fn set(self, up: bool) {
        let state = if up { "up" } else { "down" };
        let words = match (self, up) {
            (Self::Nothing, _) => return,
            (Self::Device, _) => format!("ip -n node3 link set eth0 {state}"),
            (Self::Bridge, _) => format!("ip -n {BRIDGE} link set node3 {state}"),
            (Self::Loss, true) => "tc -n node3 qdisc del dev eth0 root".to_owned(),
            (Self::Loss, false) => "tc -n node3 qdisc add dev eth0 root netem loss 100%".to_owned(),
        };
        assert!(runs(&words), "{words}");
    }
}

/// Runs a command of the guest; whether it could do what it was asked for.
fn runs(words: &str) -> bool {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words).status().expect("a command of the guest").success()
}

/// The name under which the bridge's network namespace is known to all nodes.
const BRIDGE: &str = "outside";

/// The middle one.
fn median(mut numbers: Vec<u32>) -> u32 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// One outage: how fast it was before, in so many windows together; how long after the link's return
/// something was done; and after how long it was as fast as before but for a twentieth, if that was seen.
fn outage(record: &Record, way: Way, lasts: Duration) -> (u32, Duration, Option<Duration>) {
    let start = record.at(Instant::now()) + TOGETHER;
    let down_at = start + BEFORE;
    record.wait_until(down_at);
    let before = median((start..down_at - TOGETHER).map(|at| record.sum(at)).collect());
    way.set(false);
    record.wait_until(record.at(Instant::now() + lasts));
    way.set(true);
    let up = Instant::now();
    // From the first whole window on.
    let first = record.wait_for_one(record.at(up) + 1);
    let fast = (first..first + LOOKED).find(|window| {
        record.wait_until(window + TOGETHER);
        record.sum(*window) >= before - before / 20
    });
    let since = |window: usize| (record.begun + WINDOW * window as u32).duration_since(up);
    (before, since(first), fast.map(since))
}

/// The founder, which writes and is cut off from those that lend.
#[allow(clippy::print_stdout, reason = "shows the figures")]
fn write_through_outages() {
    let fabric = fabric(Vec::new());
    let here: Endpoint = fabric.host().expect("a host").into();
    let node = Node::create_on(&config(), fabric).expect("a founder");
    let (second, third) = (lender(2, &here), lender(3, &here));
    node.wait_for_members(3, WATCHDOG).expect("all members");
    let mut session = node.session().expect("a session");
    let lines = session.alloc_on(WRITERS * LINES * LINE_BYTES, third.node).expect("memory");
    let record = Record::new();
    let ways = [Way::Nothing, Way::Device, Way::Bridge, Way::Loss];
    let (ways, impossible): (Vec<_>, Vec<_>) = ways.into_iter().partition(|way| way.is_possible());
    impossible.iter().for_each(|way| println!("skipped: {way:?}, for want of netem"));
    let outages = list("FARSIDE_OUTAGES_MS", "300,1000,2000").into_iter();
    let outages =
        outages.flat_map(|ms| ways.iter().map(move |way| (*way, Duration::from_millis(ms))));
    let outages = outages.collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let (node, record) = (&node, &record);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(node, lines, writer, record)))
            .collect();
        for (way, lasts) in outages {
            let resumes = node.stats().resumes;
            let (before, first, fast) = outage(record, way, lasts);
            println!(
                "{way:?} away for {lasts:?}: before {before} in {:?}; back: first {first:?}, as fast {fast:?}, \
                 {} new links",
                WINDOW * TOGETHER as u32,
                node.stats().resumes - resumes,
            );
        }
        record.stopped.store(true, Ordering::Relaxed);
        let writes = writers.into_iter().map(|writer| writer.join().expect("no write fails"));
        println!("{} writes", writes.sum::<u64>());
    });
    assert!(node.members().iter().all(|member| member.alive), "{}", node.describe());
    for Lender { mut child, .. } in [second, third] {
        child.kill().expect("it lives");
        child.wait().expect("it has ended");
    }
}

/// Not a test by itself: what the other processes do.
#[test]
fn plays_its_role() {
    match std::env::var(ROLE).as_deref() {
        Ok("founder") => write_through_outages(),
        Ok(founder) => lend(founder),
        Err(_) => {}
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn throughput_is_back_after_a_links_return() {
    if !is("RDMA_NODES", "3") || !is("RDMA_KIND", "rxe") {
        println!("skipped: no guest with three nodes on soft-RoCE (cargo xtask rdma-guest)");
        return;
    }
    let own = std::process::id().to_string();
    let named = Command::new("ip").args(["netns", "attach", BRIDGE, &own]).status();
    assert!(named.expect("ip").success());
    let done = in_node(1, "founder").status().expect("a process");
    assert!(done.success());
}
