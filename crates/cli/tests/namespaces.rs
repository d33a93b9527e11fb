//! Three hosts as network namespaces on one bridge, with agents and nodes on each, and partitions of one host.
//! Needs root; otherwise the tests report that they are skipped, and pass.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, check_demo, check_left_out, output, report, text, use_applications};
use farside::{Config, GlobalAddress, Node, NodeId, Session};
use farside_bootstrap::Security;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use rustix::process::Signal;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The variable with the address of the program that a child process runs.
const PROGRAM: &str = "FARSIDE_TEST_PROGRAM";

/// Runs `ip` with these words, and returns whether it succeeded.
fn ip(words: &str) -> bool {
    let run = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Three namespaces, and a fourth with the bridge between them; deleted on drop.
struct Network {
    hosts: Vec<String>,
    bridge: String,
}

impl Network {
    /// Creates the network; `None` without the privilege.
    #[allow(clippy::print_stdout, reason = "a test that cannot run says why")]
    fn new(number: u32) -> Option<Self> {
        let unique = format!("{}x{number}", std::process::id() % 100_000);
        let hosts = (1..=3).map(|host| format!("fsh{unique}h{host}")).collect();
        let network = Self { hosts, bridge: format!("fsh{unique}b") };
        if network.make() {
            return Some(network);
        }
        println!("SKIPPED: no network namespaces here (they need root and `ip`)");
        None
    }

    fn make(&self) -> bool {
        let bridge = &self.bridge;
        let host = |(number, host): (usize, &String)| {
            ip(&format!("netns add {host}"))
                && ip(&format!(
                    "-n {bridge} link add to{number} type veth peer name eth0 netns {host}"
                ))
                && ip(&format!("-n {bridge} link set to{number} master middle"))
                && ip(&format!("-n {bridge} link set to{number} up"))
                && ip(&format!("-n {host} addr add 10.77.0.{number}/24 dev eth0"))
                && ip(&format!("-n {host} link set eth0 up"))
                && ip(&format!("-n {host} link set lo up"))
        };
        ip(&format!("netns add {bridge}"))
            && ip(&format!("-n {bridge} link add middle type bridge"))
            && ip(&format!("-n {bridge} link set middle up"))
            && (1..).zip(&self.hosts).all(host)
    }

    /// Returns the wrapper that runs a command on a host, 1 to 3.
    fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.hosts[host - 1]]
    }

    /// Sets a host's port of the bridge up or down; the host's device does not notice it.
    fn plug(&self, host: usize, how: &str) {
        assert!(ip(&format!("-n {} link set to{host} {how}", self.bridge)));
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for space in self.hosts.iter().chain([&self.bridge]) {
            ip(&format!("netns del {space}"));
        }
    }
}

#[test]
fn process_agents_of_three_hosts_run_demo_and_wordcount() {
    let Some(network) = Network::new(0) else { return };
    let folder = Folder::new();
    let key = folder.key("key");
    let agents: Vec<_> = (1..=3)
        .map(|host| {
            let at = format!("10.77.0.{host}:7401");
            Running::agent(&network.on(host), &["--listen", &at, "--key", &key])
        })
        .collect();
    let on: Vec<_> = agents.iter().map(|(_, at)| at.clone()).collect();
    let places = ["--on", &on.join(","), "--key", &key];
    let size = ["--records", "1500", "--operations", "1500"];
    let demo = [&["--json", "demo"][..], &size, &places].concat();
    let shown = report(&output(&network.on(1), &demo));
    check_demo(&shown, "tcp", 1500);
    check_left_out(&shown, "at agents");
    let (file, expected) = folder.text();
    let counted = output(&network.on(2), &[&["wordcount", &file], &places[..]].concat());
    assert!(counted.status.success(), "{}", text(&counted.stderr));
    assert!(text(&counted.stdout) == expected);
    let channel = ["bench", "channels", "--json", "--windows", "8", "--pattern", "1:1"];
    let one = ["--channel", "ring-immediate", "--bytes", "64"];
    let far = ["--on", "10.77.0.2:7401", "--key", &key];
    let found = report(&output(&network.on(3), &[&channel[..], &one, &far].concat()));
    assert_eq!(found["failed"], 0, "{found}");
}

/// Memory lent on one host is used from another.
#[test]
fn process_memory_lent_on_one_host_is_used_from_another() {
    let Some(network) = Network::new(9) else { return };
    let folder = Folder::new();
    let key = folder.key("key");
    let lend = ["--json", "lend", "--bytes", "1M", "--listen", "10.77.0.1:7601", "--key", &key];
    let mut server = Running::start(&network.on(1), &lend);
    let address = server.event("lending")["address"].as_str().unwrap().to_owned();
    let bench = ["--json", "bench", "vector", &address, "--windows", "1", "--key", &key];
    let figures = report(&output(&network.on(2), &bench));
    assert_eq!(figures.as_array().unwrap().len(), 2 * 4 * 5 * 3);
    // Without the key, the server admits none.
    let stranger = output(&network.on(3), &bench[..6]);
    assert!(!stranger.status.success());

    let mut servers = Vec::new();
    let hosts = [&network.on(2)[..], &network.on(3)];
    use_applications(&folder, hosts, &["--key", &key], |name, bytes| {
        let at = format!("10.77.0.1:{}", 7602 + servers.len());
        let lend =
            ["--json", "lend", "--bytes", bytes, "--name", name, "--listen", &at, "--key", &key];
        let mut server = Running::start(&network.on(1), &lend);
        let address = server.event("lending")["address"].as_str().unwrap().to_owned();
        servers.push(server);
        address
    });
}

#[test]
fn process_partition_fails_a_command_and_leaves_no_process() {
    let Some(network) = Network::new(2) else { return };
    let folder = Folder::new();
    let key = folder.key("key");
    let start = |host: usize| {
        let at = format!("10.77.0.{host}:7401");
        Running::agent(&network.on(host), &["--listen", &at, "--key", &key])
    };
    let ((mut near, at_near), (mut far, at_far)) = (start(1), start(3));
    let on = format!("{at_near},{at_far}");
    let places = ["--nodes", "2", "--on", &on, "--key", &key];
    let demo = [&["demo", "--records", "200000"][..], &places].concat();
    let mut demo = Running::start(&network.on(1), &demo);
    assert!(demo.line().contains("200,000 records"));
    network.plug(3, "down");
    let (code, said) = demo.end();
    assert_eq!(code, Some(1), "{said}");
    // Either the command detects the lost agent first, or a node the lost peer.
    assert!(
        said.contains("out of reach") || said.contains("NodeLost") || said.contains("Isolated"),
        "{said}"
    );
    for agent in [&mut near, &mut far] {
        assert!(agent.event("ended")["how"].as_str().unwrap().contains("signal: 9"));
    }
    network.plug(3, "up");
    let (file, expected) = folder.text();
    let counted = output(&network.on(1), &[&["wordcount", &file], &places[..]].concat());
    assert!(counted.status.success(), "{}", text(&counted.stderr));
    assert!(text(&counted.stdout) == expected);
}

#[test]
fn process_partitioned_host_joins_again() {
    let Some(network) = Network::new(1) else { return };
    let folder = Folder::new();
    let key = folder.key("key");
    let join = "10.77.0.1:7400,10.77.0.2:7400,10.77.0.3:7400";
    let fixed = ["--key", &key, "--lease", "0.5"];
    let start = |host: usize| {
        let at = format!("10.77.0.{host}:7400");
        // The founder has no --join, and learns the addresses of the others when they join.
        let others = if host == 1 { &[][..] } else { &["--join", join] };
        let own = [&["--listen", &at][..], others].concat();
        let mut node = Running::node(&network.on(host), &[&own[..], &fixed].concat());
        assert_eq!(node.started().0, host as u64 - 1);
        node
    };
    let (mut one, mut two, mut three) = (start(1), start(2), start(3));
    for node in [&mut one, &mut two] {
        node.event_of("member_joined", 2);
    }
    network.plug(3, "down");
    for node in [&mut one, &mut two] {
        node.event_of("member_lost", 2);
    }
    assert_eq!(three.event("isolated")["rejoins"], true);
    // While the link is down it reports the hosts that it cannot reach.
    assert_eq!(three.event("waiting")["hosts"].as_array().unwrap().len(), 2);
    network.plug(3, "up");
    assert_eq!(three.started().0, 3);
    for node in [&mut one, &mut two] {
        node.event_of("member_joined", 3);
    }
    // The founder is partitioned too, and joins the cluster that it founded.
    network.plug(1, "down");
    for node in [&mut two, &mut three] {
        node.event_of("member_lost", 0);
    }
    one.event("isolated");
    network.plug(1, "up");
    assert_eq!(one.started().0, 4);
    two.event_of("member_joined", 4);
    for node in [one, two, three] {
        node.signal(Signal::INT);
        assert_eq!(node.end().0, Some(0));
    }
}

/// The program of a child process: it joins without memory and, for each line on standard input, adds one to a counter
/// at each server, and prints the sums and the members.
#[test]
#[expect(clippy::print_stdout, reason = "the parent process reads it")]
fn program() {
    let Ok(listen) = std::env::var(PROGRAM) else { return };
    let options = TcpOptions {
        listen: Some(listen.parse().unwrap()),
        hosts: vec!["10.77.0.1:7400".parse().unwrap()],
        security: Security::open(),
        ..TcpOptions::default()
    };
    let config = Config::new("outages").memory_bytes(0).cache_bytes(4 << 20);
    let node = Node::join_on(&config, Arc::new(TcpFabric::new(options).unwrap())).unwrap();
    let mut session = node.session().unwrap();
    let counters: Vec<GlobalAddress> = match std::env::var("FARSIDE_TEST_COUNTERS") {
        Ok(list) => list.split(' ').map(|address| address.parse().unwrap()).collect(),
        Err(_) => (0..3).map(|home| session.alloc_on(8, NodeId(home)).unwrap()).collect(),
    };
    let addresses: Vec<String> = counters.iter().map(ToString::to_string).collect();
    println!("\nSAYS {}", addresses.join(" "));
    for _ in std::io::stdin().lines() {
        let sums: Result<Vec<u64>, farside::Error> =
            counters.iter().map(|counter| add(&mut session, *counter)).collect();
        let alive = node.members().into_iter().filter(|member| member.alive);
        let members: Vec<u16> = alive.map(|member| member.node.0).collect();
        println!("\nSAYS {sums:?} {members:?}");
    }
}

fn add(session: &mut Session, counter: GlobalAddress) -> Result<u64, farside::Error> {
    session.fetch_add(counter, 1).map(|before| before + 1)
}

/// A program on a host; killed on drop.
struct Program {
    child: Child,
    input: ChildStdin,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Program {
    fn start(network: &Network, host: usize, counters: Option<&str>) -> (Self, String) {
        let on = network.on(host);
        let mut command = Command::new(on[0]);
        command.args(&on[1..]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", "program", "--nocapture"]);
        command.env(PROGRAM, format!("10.77.0.{host}:0"));
        command.envs(counters.map(|list| ("FARSIDE_TEST_COUNTERS", list)));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut program = Self { input: child.stdin.take().unwrap(), child, lines };
        let addresses = program.says();
        (program, addresses)
    }

    fn says(&mut self) -> String {
        let said = self.lines.find_map(|line| Some(line.ok()?.strip_prefix("SAYS ")?.to_owned()));
        said.expect("a line of the running program")
    }

    /// Lets it add one to each counter, and returns its output: the sums and the members.
    fn add(&mut self) -> String {
        self.input.write_all(b"\n").unwrap();
        self.says()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Time between outages. A host whose link is back resolves the addresses of its neighbours once a second (Linux,
/// `retrans_time_ms`), so it may take that long until packets pass; then its links are dialled.
const APART: Duration = Duration::from_secs(3);

/// Outages of 1 to 1.5 s of one host after the other, with leases of 2 s in all and a program on each host: no member
/// is removed, and no operation fails or is executed twice. `FARSIDE_RUNS` is the number of outages.
#[test]
#[allow(
    clippy::disallowed_methods,
    reason = "the duration of outages and the time between them is tested"
)]
fn process_outages_shorter_than_the_lease_remove_no_member() {
    let Some(network) = Network::new(3) else { return };
    let runs = std::env::var("FARSIDE_RUNS").map_or(2, |runs| runs.parse().unwrap());
    let join = "10.77.0.1:7400,10.77.0.2:7400,10.77.0.3:7400";
    let mut servers = Vec::new();
    for host in 1..=3 {
        let at = format!("10.77.0.{host}:7400");
        let fixed = ["--listen", &at, "--cluster", "outages", "--lease", "2", "--insecure"];
        let others = if host == 1 { &[][..] } else { &["--join", join] };
        let mut server = Running::node(&network.on(host), &[&fixed[..], others].concat());
        server.started();
        servers.push(server);
    }
    let (first, counters) = Program::start(&network, 1, None);
    let mut programs = vec![first];
    programs.extend((2..=3).map(|host| Program::start(&network, host, Some(&counters)).0));
    let mut sum = 0;
    for run in 0..runs {
        let host = 1 + run % 3;
        network.plug(host, "down");
        std::thread::sleep(Duration::from_millis(1000 + (run as u64 * 137) % 500));
        network.plug(host, "up");
        let back = Instant::now();
        for (index, program) in programs.iter_mut().enumerate() {
            sum += 1;
            let expected = format!("Ok([{sum}, {sum}, {sum}]) [0, 1, 2, 3, 4, 5]");
            let said = program.add();
            if said != expected {
                let events = servers.iter_mut().map(|server| server.said().join("\n"));
                panic!(
                    "outage {run} of host {host}, program {index}: {said} instead of {expected}\n{}",
                    events.collect::<Vec<_>>().join("\n\n")
                );
            }
        }
        std::thread::sleep(APART.saturating_sub(back.elapsed()));
    }
}
