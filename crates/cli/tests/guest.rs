//! The commands over verbs: three nodes of a guest with software RDMA devices, an agent on each.
//! `cargo xtask rdma-guest --nodes 3 --memory 3000 --tests -p farside-cli --test guest` runs the tests; elsewhere
//! they report that they are skipped, and pass.
#![forbid(unsafe_code)]

mod common;

use common::{
    Folder, Running, WATCHDOG, check_demo, check_left_out, json, output, report, text,
    use_applications,
};
use rustix::process::Signal;
use std::process::Command;
use std::time::Instant;

/// Runs a command in a node of the guest, 1 to 3, and returns its output.
fn on(node: usize, words: &str) -> String {
    let node = node.to_string();
    let run = Command::new("on").arg(&node).args(words.split(' ')).output().unwrap();
    assert!(run.status.success(), "on {node} {words}: {}", text(&run.stderr));
    text(&run.stdout)
}

/// An agent on each of three nodes.
struct Cluster {
    folder: Folder,
    key: String,
    on: String,
    _agents: Vec<Running>,
}

impl Cluster {
    /// Starts the agents; `None` outside of such a guest.
    #[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
    fn new() -> Option<Self> {
        let is = |name: &str, value: &str| std::env::var(name).is_ok_and(|has| has == value);
        if !is("RDMA_NODES", "3") || !is("RDMA_KIND", "rxe") {
            println!("skipped: no guest with three nodes on soft-RoCE (cargo xtask rdma-guest)");
            return None;
        }
        let folder = Folder::new();
        let key = folder.key("key");
        let agents = (1..=3).map(|node| {
            let (node, at) = (node.to_string(), format!("10.77.0.{node}:7401"));
            Running::agent(&["on", &node], &["--listen", &at, "--key", &key])
        });
        let (agents, addresses): (_, Vec<_>) = agents.unzip();
        Some(Self { folder, key, on: addresses.join(","), _agents: agents })
    }

    /// Returns the words of a command with the options of the fabric and the hosts.
    fn words<'w>(&'w self, words: &[&'w str]) -> Vec<&'w str> {
        [words, &["--fabric", "verbs", "--on", &self.on, "--key", &self.key]].concat()
    }

    /// Counts words, and compares the result with the shell pipeline.
    fn count_words(&self) {
        let (file, expected) = self.folder.text();
        let counted = output(&[], &self.words(&["wordcount", &file]));
        assert!(counted.status.success(), "{}", text(&counted.stderr));
        assert!(text(&counted.stdout) == expected);
    }
}

#[test]
fn guest_demo_survives_a_killed_node() {
    let Some(cluster) = Cluster::new() else { return };
    let demo = ["--json", "demo", "--records", "1500", "--operations", "1500"];
    let shown = report(&output(&[], &cluster.words(&demo)));
    check_demo(&shown, "verbs", 1500);
    check_left_out(&shown, "at agents");
}

#[test]
fn guest_words_are_counted_with_loss_delay_and_reordering() {
    let Some(cluster) = Cluster::new() else { return };
    cluster.count_words();
    for node in 1..=3 {
        on(node, "tc qdisc add dev eth0 root netem loss 1% delay 1ms 1ms reorder 25%");
    }
    cluster.count_words();
    for node in 1..=3 {
        let said = on(node, "tc -s qdisc show dev eth0");
        assert!(!said.contains("dropped 0,"), "nothing was lost: {said}");
        on(node, "tc qdisc del dev eth0 root");
    }
}

#[test]
fn guest_supported_channels_are_measured() {
    let Some(cluster) = Cluster::new() else { return };
    let words = "--json bench channels --bytes 64 --pattern 1:1 --windows 8";
    let words: Vec<_> = words.split(' ').collect();
    let found = report(&output(&["on", "1"], &cluster.words(&words)));
    assert_eq!(found["failed"], 0, "{found}");
    let measured: std::collections::BTreeSet<_> =
        found["figures"].as_array().unwrap().iter().map(|row| row["channel"].to_string()).collect();
    // Four channels poll words at the end of a WRITE, whose order soft-RoCE does not guarantee.
    assert_eq!(measured.len(), 16, "{measured:?}");
}

/// Memory of one node, used from another: each way of vector IO moves pieces and has its number of requests.
#[test]
fn guest_lent_memory_is_used_from_another_node() {
    let Some(cluster) = Cluster::new() else { return };
    let verbs = ["--fabric", "verbs", "--key", &cluster.key];
    let lend = ["--json", "lend", "--bytes", "1M", "--listen", "10.77.0.1:7601"];
    let mut server = Running::start(&["on", "1"], &[&lend[..], &verbs].concat());
    let lending = server.event("lending");
    let address = lending["address"].as_str().unwrap();
    let bench = ["--json", "bench", "vector", address, "--windows", "1"];
    let figures = report(&output(&["on", "2"], &[&bench[..], &verbs].concat()));
    let figures = figures.as_array().unwrap();
    assert_eq!(figures.len(), 2 * 4 * 5 * 3);
    let of = |way: &'static str| figures.iter().filter(move |one| one["way"] == way);
    assert!(of("doorbell").all(|one| one["work_requests"] == one["pieces"]));
    assert!(of("stage").all(|one| one["work_requests"] == 1));

    let mut servers = Vec::new();
    use_applications(&Folder::new(), [&["on", "2"], &["on", "3"]], &verbs, |name, bytes| {
        let at = format!("10.77.0.1:{}", 7602 + servers.len());
        let lend = ["--json", "lend", "--bytes", bytes, "--name", name, "--listen", &at];
        let mut server = Running::start(&["on", "1"], &[&lend[..], &verbs].concat());
        let address = server.event("lending")["address"].as_str().unwrap().to_owned();
        servers.push(server);
        address
    });
}

/// Increments word 8, then waits until word 0 is not 0.
const WAITS: &str = "
.program waits
    r1 = 0
    r2 = 8
    r3 = 1
    call fetch_add
    r1 = 0
    r2 = 0
    r3 = 0
    r4 = -1
    call wait_word
    exit
";
/// Returns the word at the address in the first parameter.
const LOADS: &str = "
.program loads
    r2 = *(u64 *)(r1 + 0)
    r1 = 0
    call load_u64
    exit
";

#[test]
fn guest_calls_run_at_all_sites() {
    let Some(cluster) = Cluster::new() else { return };
    let verbs = ["--fabric", "verbs", "--key", &cluster.key];
    // A list of 16 nodes with keys 1 to 16 from offset 64 on; the other programs use the first words.
    let place = |at: u64| 64 + at * 7 % 16 * 24;
    let mut memory = vec![0; 64 + 16 * 24];
    for at in 0..16 {
        let next = if at < 15 { place(at + 1) } else { 0 };
        let node = [at + 1, 100 * (at + 1), next].map(u64::to_le_bytes).concat();
        memory[place(at) as usize..][..24].copy_from_slice(&node);
    }
    let region = format!("0={}", cluster.folder.file("memory.bin", &memory));
    let serve = |node: &str, at: &str, more: [&str; 2]| {
        let fixed = ["--json", "rmc", "serve", at];
        let mut server = Running::start(&["on", node], &[&fixed, &more[..], &verbs].concat());
        server.event("serving");
        server
    };
    let (host, near) = ("10.77.0.1:7501", "10.77.0.3:7501");
    let at_host = serve("1", host, ["--memory", &region]);
    let mut beside = serve("3", near, ["--beside", host]);
    let call = |at: &str, program: &str, parameters: &str, more: &[&str]| {
        let words = ["--json", "rmc", "call", at, program, "--parameters", parameters];
        output(&["on", "2"], &[&words[..], &verbs, more].concat())
    };
    for (at, more) in [(host, &[][..]), (near, &[]), (host, &["--here"])] {
        for key in [1_u64, 9, 16] {
            let parameters = format!("{},{key}", place(0));
            let called = report(&call(at, "list_search", &parameters, more));
            assert_eq!(called["returned"]["result"], 100 * key, "{at} {more:?} {called}");
            let path = called["path"].as_str().unwrap_or_default();
            assert!(path.contains("rxe"), "{called}");
        }
    }
    // The host dies while a call waits for a word of its memory.
    let waits = cluster.folder.file("waits.s", WAITS.as_bytes());
    let loads = cluster.folder.file("loads.s", LOADS.as_bytes());
    let waiting = ["--json", "rmc", "call", host, &waits];
    let waiting = Running::start(&["on", "2"], &[&waiting[..], &verbs].concat());
    while report(&call(host, &loads, "8", &[]))["returned"]["result"] != 1 {}
    at_host.signal(Signal::KILL);
    let (code, said) = waiting.end();
    assert!(code == Some(1), "{code:?} {said}");
    beside.event("host_lost");
    let lost = call(near, &loads, "8", &[]);
    let said = text(&lost.stdout);
    assert!(json(said.trim())["error"]["name"] == "PeerLost", "{said}");
    // When the host is back, the executor on its memory continues.
    let _host = serve("1", host, ["--memory", &region]);
    beside.event("host_found");
    assert_eq!(report(&call(near, &loads, "8", &[]))["returned"]["result"], 0);
}

/// Returns the number of bytes that node 3 has sent so far.
fn sent() -> u64 {
    on(3, "cat /sys/class/net/eth0/statistics/tx_bytes").trim().parse().unwrap()
}

/// Waits until node 3 has sent `bytes` more.
fn wait_for_bytes(bytes: u64) {
    let (begun, before) = (Instant::now(), sent());
    while sent() < before + bytes {
        assert!(begun.elapsed() < WATCHDOG, "node 3 sends nothing");
    }
}

#[test]
fn guest_short_link_outage_fails_no_operation() {
    let Some(cluster) = Cluster::new() else { return };
    let words = "--json bench ycsb --workload a --records 500 --operations 12000";
    let words: Vec<_> = words.split(' ').collect();
    let mut run = Running::start(&[], &cluster.words(&words));
    wait_for_bytes(2_000_000);
    for _ in 0..2 {
        // Shorter than the lease of nodes.
        let outage = "ip link set eth0 down; sleep 0.8; ip link set eth0 up";
        let run = Command::new("on").args(["3", "sh", "-c", outage]).status();
        assert!(run.unwrap().success());
        wait_for_bytes(200_000);
    }
    let done = common::json(&run.line());
    assert_eq!(done["run"]["errors"], 0, "{done}");
    assert_eq!((&done["run"]["absent"], &done["run"]["wrong"]), (&0.into(), &0.into()), "{done}");
    assert_eq!(done["run"]["operations"], 12_000);
    assert_eq!(run.end().0, Some(0));
}
