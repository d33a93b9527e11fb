//! Measures the recovery of throughput after a link outage: three nodes of a guest with software RDMA devices, a
//! process in each. The first writes to more lines than it can cache, whose home is the third, while the third one's
//! link is down for less than a lease and for longer.
//! `cargo xtask rdma-guest --nodes 3 --tests -p farside-cli --test outages -- --nocapture` prints the figures;
//! elsewhere the test reports that it is skipped, and passes.
//!
//! `FARSIDE_OUTAGES_MS=300,1000` sets other durations, `FARSIDE_LEASES_MS=3000,1000` other leases of the fabric and
//! of nodes. `FARSIDE_OUTAGES_OVER=tcp` measures the TCP fabric instead.
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

/// Time after which a wait counts as hung, even on a slow machine.
const WATCHDOG: Duration = Duration::from_secs(120);
/// The variable with the role of a child process: `founder`, or the founder's address.
const ROLE: &str = "FARSIDE_OUTAGES_ROLE";
/// The time unit of throughput.
const WINDOW: Duration = Duration::from_millis(50);
/// Windows that are summed to smooth the throughput.
const TOGETHER: usize = 5;
/// Maximum number of windows of a run.
const WINDOWS_MAX: usize = 20 * 60 * 5;
/// Windows after each outage in which the throughput may recover; the load itself varies.
const RECOVERY_WINDOWS: usize = 100;
/// Windows before each outage that give the reference throughput.
const BEFORE: usize = 40;
/// Concurrent writers, enough to be limited by processors and not by sleeping threads.
const WRITERS: u64 = 8;
/// Lines of each writer; those of all exceed the cache.
const LINES: u64 = 256;
const LINE_BYTES: u64 = 512;
/// Writes in flight per writer.
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
        .lease_ns(leases[1] * 1_000_000)
}

/// Opens the fabric of this process's node of the guest.
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

/// Returns whether an environment variable has this value.
fn is(name: &str, value: &str) -> bool {
    std::env::var(name).is_ok_and(|has| has == value)
}

/// Returns the command that runs this program with a role in a node of the guest.
fn in_node(number: u64, role: &str) -> Command {
    let mut command = Command::new("on");
    command.arg(number.to_string());
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["child_process", "--exact", "--nocapture"]).env(ROLE, role);
    command
}

/// Runs a member that only provides memory, until its standard input closes.
#[allow(clippy::print_stdout, reason = "prints the node number")]
fn run_server(founder: &str) {
    let fabric = fabric(vec![founder.parse().expect("an endpoint")]);
    let node = Node::join_on(&config(), fabric).expect("to join");
    println!("node={}", node.id().0);
    let _ = std::io::stdin().read(&mut [0]);
}

/// A member in a separate process; its output is kept open, since the test harness writes to it.
struct MemberProcess {
    child: Child,
    node: NodeId,
    _output: Lines<BufReader<ChildStdout>>,
}

/// Starts a member in a node of the guest.
fn start_server(number: u64, founder: &Endpoint) -> MemberProcess {
    let mut command = in_node(number, &founder.to_string());
    let mut child =
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("a process");
    let mut lines = BufReader::new(child.stdout.take().expect("its output")).lines();
    let found = lines.find_map(|line| {
        let line = line.expect("text");
        line.split_once("node=").map(|(_, number)| number.trim().parse().expect("a number"))
    });
    MemberProcess { child, node: NodeId(found.expect("it joins")), _output: lines }
}

/// The number of writes in each window since the start.
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

    /// Returns the window of a time.
    fn at(&self, moment: Instant) -> usize {
        (moment.duration_since(self.begun).as_nanos() / WINDOW.as_nanos()) as usize
    }

    fn add(&self, writes: u64) {
        if let Some(window) = self.windows.get(self.at(Instant::now())) {
            window.fetch_add(writes as u32, Ordering::Relaxed);
        }
    }

    /// Returns the sum of [`TOGETHER`] windows from `at` on.
    fn sum(&self, at: usize) -> u32 {
        self.windows[at..at + TOGETHER].iter().map(|window| window.load(Ordering::Relaxed)).sum()
    }

    /// Waits until `windows` have passed since the start.
    fn wait_until(&self, windows: usize) {
        assert!(windows < WINDOWS_MAX, "too long");
        while self.at(Instant::now()) < windows {
            std::thread::park_timeout(WINDOW);
        }
    }

    /// Waits for the first writes from window `after` on, and returns their window.
    fn wait_for_one(&self, after: usize) -> usize {
        let begun = Instant::now();
        loop {
            let now = self.at(Instant::now());
            let done = |at: &usize| self.windows[*at].load(Ordering::Relaxed) > 0;
            if let Some(first) = (after..now).find(done) {
                return first;
            }
            assert!(begun.elapsed() < WATCHDOG, "no write completes any more");
            self.wait_until(now + 1);
        }
    }
}

/// Runs a writer: writes its lines round-robin, verifies them at the end, and returns the number of writes.
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
        record.add(BATCH);
    }
    for last in count - LINES.min(count)..count {
        assert_eq!(session.read_u64(line(last)).expect("the home lives"), last, "a write was lost");
    }
    count
}

/// A kind of link outage.
#[derive(Clone, Copy, Debug)]
enum LinkFault {
    /// None, to measure the variation of the load itself.
    Nothing,
    /// The network device of the node is down.
    Device,
    /// The node's port of the bridge is down.
    Bridge,
    /// All packets are dropped, without any indication.
    Loss,
}

impl LinkFault {
    /// Returns whether this kernel can inject the fault: dropping packets needs netem.
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

/// Runs a command of the guest, and returns whether it succeeded.
fn runs(words: &str) -> bool {
    let mut words = words.split(' ');
    let mut command = Command::new(words.next().expect("a command"));
    command.args(words).status().expect("a command of the guest").success()
}

/// The name of the bridge's network namespace in all nodes.
const BRIDGE: &str = "outside";

fn median(mut numbers: Vec<u32>) -> u32 {
    numbers.sort_unstable();
    numbers[numbers.len() / 2]
}

/// Runs one outage. Returns the writes in [`TOGETHER`] windows before it, the time from the link's return to the first
/// write, and the time until the throughput reached 95 % of the one before, if it did.
fn outage(
    record: &Record,
    fault: LinkFault,
    duration: Duration,
) -> (u32, Duration, Option<Duration>) {
    let start = record.at(Instant::now()) + TOGETHER;
    let down_at = start + BEFORE;
    record.wait_until(down_at);
    let before = median((start..down_at - TOGETHER).map(|at| record.sum(at)).collect());
    fault.set(false);
    record.wait_until(record.at(Instant::now() + duration));
    fault.set(true);
    let up = Instant::now();
    // The first full window.
    let first = record.wait_for_one(record.at(up) + 1);
    let fast = (first..first + RECOVERY_WINDOWS).find(|window| {
        record.wait_until(window + TOGETHER);
        record.sum(*window) >= before - before / 20
    });
    let since = |window: usize| (record.begun + WINDOW * window as u32).duration_since(up);
    (before, since(first), fast.map(since))
}

/// Runs the founder, which writes during outages of a member's link.
#[allow(clippy::print_stdout, reason = "prints the figures")]
fn write_through_outages() {
    let fabric = fabric(Vec::new());
    let local: Endpoint = fabric.host().expect("a host").into();
    let node = Node::create_on(&config(), fabric).expect("a founder");
    let (second, third) = (start_server(2, &local), start_server(3, &local));
    node.wait_for_members(3, WATCHDOG).expect("all members");
    let mut session = node.session().expect("a session");
    let lines = session.alloc_on(WRITERS * LINES * LINE_BYTES, third.node).expect("memory");
    let record = Record::new();
    let faults = [LinkFault::Nothing, LinkFault::Device, LinkFault::Bridge, LinkFault::Loss];
    let (faults, impossible): (Vec<_>, Vec<_>) =
        faults.into_iter().partition(|fault| fault.is_possible());
    impossible.iter().for_each(|fault| println!("skipped: {fault:?}, the kernel lacks netem"));
    let outages = list("FARSIDE_OUTAGES_MS", "300,1000,2000").into_iter();
    let outages =
        outages.flat_map(|ms| faults.iter().map(move |fault| (*fault, Duration::from_millis(ms))));
    let outages = outages.collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let (node, record) = (&node, &record);
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || write(node, lines, writer, record)))
            .collect();
        for (fault, duration) in outages {
            let resumes = node.stats().resumes;
            let (before, first, fast) = outage(record, fault, duration);
            println!(
                "{fault:?} for {duration:?}: {before} writes in {:?} before; after: first write {first:?}, \
                 recovered {fast:?}, {} new links",
                WINDOW * TOGETHER as u32,
                node.stats().resumes - resumes,
            );
        }
        record.stopped.store(true, Ordering::Relaxed);
        let writes = writers.into_iter().map(|writer| writer.join().expect("no write fails"));
        println!("{} writes", writes.sum::<u64>());
    });
    assert!(node.members().iter().all(|member| member.alive), "{}", node.describe());
    for MemberProcess { mut child, .. } in [second, third] {
        child.kill().expect("it lives");
        child.wait().expect("it has ended");
    }
}

/// The entry of child processes; passes in the test process.
#[test]
fn child_process() {
    match std::env::var(ROLE).as_deref() {
        Ok("founder") => write_through_outages(),
        Ok(founder) => run_server(founder),
        Err(_) => {}
    }
}

#[test]
#[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
fn throughput_recovers_after_a_link_outage() {
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
