//! Three hosts, as network namespaces on one bridge: agents and nodes on each, and a host that is cut
//! off for a while. Needs root; without, the tests say so and pass.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, Running, check_demo, output, report, text};
use rustix::process::Signal;
use std::process::{Command, Stdio};

/// Runs `ip` with these words; false when it fails.
fn ip(words: &str) -> bool {
    let run = Command::new("ip").args(words.split(' ')).stderr(Stdio::null()).status();
    run.is_ok_and(|status| status.success())
}

/// Three namespaces, and a fourth with the bridge between them. Gone when dropped.
struct Network {
    hosts: Vec<String>,
    bridge: String,
}

impl Network {
    /// `None` where this user may not have one.
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

    /// What runs a command on a host, 1 to 3.
    fn on(&self, host: usize) -> [&str; 4] {
        ["ip", "netns", "exec", &self.hosts[host - 1]]
    }

    /// Plugs a host's cable in or pulls it, at the bridge: the host does not see it.
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
fn process_agents_of_three_hosts_run_the_demonstration_and_count_words() {
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
    check_demo(&report(&output(&network.on(1), &demo)), "tcp", 1500);
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

#[test]
fn process_a_command_whose_host_is_cut_off_fails_and_leaves_nothing_behind() {
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
    // Whichever hears of it first: the command of the agent, or a node of the other.
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
fn process_a_host_that_was_cut_off_joins_again() {
    let Some(network) = Network::new(1) else { return };
    let folder = Folder::new();
    let key = folder.key("key");
    let join = "10.77.0.1:7400,10.77.0.2:7400,10.77.0.3:7400";
    let fixed = ["--key", &key, "--lease", "0.5"];
    let start = |host: usize| {
        let at = format!("10.77.0.{host}:7400");
        // The founder is told of nobody, and learns of the others as they come.
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
    // It names those that it does not reach while the cable is out.
    assert_eq!(three.event("waiting")["hosts"].as_array().unwrap().len(), 2);
    network.plug(3, "up");
    assert_eq!(three.started().0, 3);
    for node in [&mut one, &mut two] {
        node.event_of("member_joined", 3);
    }
    // The founder is cut off too, and joins the cluster that it founded.
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
