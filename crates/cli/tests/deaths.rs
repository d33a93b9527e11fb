//! Deaths of worker processes while a cluster starts, and while `farside up` serves.
#![forbid(unsafe_code)]

mod common;

use common::{Running, farside, is_stopped, name, runs, signal};
use farside::{Config, Node};
use rustix::process::Signal;
use serde_json::Value;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::Duration;

farside_testkit::on_each_fabric! { shm tcp => (
    replacement_of_a_dead_node_joins_the_cluster
)}

/// Returns the child processes of a process, in the order of their start.
fn children(process: u32) -> Vec<u32> {
    let path = format!("/proc/{process}/task/{process}/children");
    let children = std::fs::read_to_string(path).unwrap_or_default();
    children.split_whitespace().map(|number| number.parse().unwrap()).collect()
}

/// Waits until a command has `count` worker processes, and returns them.
fn workers(command: &mut Child, count: usize) -> Vec<u32> {
    loop {
        let found = children(command.id());
        // Before it runs its program a child still shares its parent's memory, and the parent waits (vfork(2)).
        let runs = |process: &u32| {
            let line = std::fs::read(format!("/proc/{process}/cmdline")).unwrap_or_default();
            line.split(|byte| *byte == 0).nth(1) == Some(b"worker")
        };
        if found.len() == count && found.iter().all(runs) {
            return found;
        }
        assert!(command.try_wait().unwrap().is_none(), "the command has ended");
        std::thread::yield_now();
    }
}

/// Starts a command, stops its last worker before that one's node can have joined, and returns both.
fn held_up(arguments: &[&str], count: usize) -> (Child, Vec<u32>) {
    let mut command = farside(&[]);
    command.args(arguments).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let workers = workers(&mut child, count);
    let last = *workers.last().unwrap();
    signal(last, Signal::STOP);
    while !is_stopped(last) {
        std::thread::yield_now();
    }
    (child, workers)
}

fn end(mut child: Child) -> (Option<i32>, String) {
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    (child.wait().unwrap().code(), said)
}

fn starting_commands() -> Vec<Vec<String>> {
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect();
    let name = name();
    let up = format!("up --nodes 4 --memory-bytes 16M --cache-bytes 4M --name {name}");
    let demo = "demo --nodes 4 --records 200 --operations 200";
    let bench = "bench ycsb --nodes 4 --records 200 --operations 200";
    [&*up, demo, bench].into_iter().map(words).collect()
}

/// Waits until a worker has a socket, that is, its node has begun to start.
fn wait_for_socket(process: u32) {
    loop {
        let descriptors = std::fs::read_dir(format!("/proc/{process}/fd")).unwrap();
        let links = descriptors.filter_map(|entry| std::fs::read_link(entry.ok()?.path()).ok());
        if links.into_iter().any(|link| link.to_string_lossy().starts_with("socket:")) {
            return;
        }
        assert!(runs(process));
        std::thread::yield_now();
    }
}

#[test]
fn death_of_a_started_node_during_startup_is_reported() {
    for arguments in starting_commands() {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (child, workers) = held_up(&arguments, 4);
        wait_for_socket(workers[1]);
        signal(workers[1], Signal::KILL);
        // The stopped worker never answers, so only the death can end the command.
        let (code, said) = end(child);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        let named = said.contains("the process of node ")
            || said.contains(&format!("worker process {} (2 of 4)", workers[1]));
        assert!(named && said.contains("signal: 9 (SIGKILL)"), "{arguments:?}: {said}");
        assert!(!workers.iter().any(|worker| runs(*worker)), "{arguments:?}");
    }
}

#[test]
fn death_before_joining_names_the_process() {
    for arguments in starting_commands() {
        let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
        let (child, workers) = held_up(&arguments, 4);
        signal(workers[3], Signal::KILL);
        let (code, said) = end(child);
        assert_eq!(code, Some(1), "{arguments:?}: {said}");
        let process = format!("worker process {} (4 of 4)", workers[3]);
        assert!(said.contains(&process) && said.contains("signal: 9"), "{arguments:?}: {said}");
    }
}

/// Starts `farside up`, and returns it with the members of its first event.
fn up(name: &str, nodes: &str, more: &[&str]) -> (Running, Vec<Value>) {
    let fixed = ["--json", "up", "--memory-bytes", "16M", "--cache-bytes", "4M"];
    let own = ["--name", name, "--nodes", nodes];
    let mut up = Running::start(&[], &[&fixed[..], &own, more].concat());
    let started = up.event("started");
    assert_eq!(started["cluster"], name);
    (up, started["nodes"].as_array().unwrap().clone())
}

fn process(member: &Value) -> u32 {
    u32::try_from(member["process"].as_u64().unwrap()).unwrap()
}

#[test]
fn cluster_continues_and_reports_a_dead_node() {
    let name = name();
    let (mut up, members) = up(&name, "3", &[]);
    signal(process(&members[1]), Signal::KILL);
    let ended = up.event("node_ended");
    assert_eq!((&ended["node"], &ended["process"]), (&members[1]["node"], &members[1]["process"]));
    assert_eq!((&ended["how"], &ended["restarts"]), (&"signal: 9 (SIGKILL)".into(), &false.into()));
    assert!(ended["time"].is_string(), "{ended}");
    let node = Node::join(&Config::new(name.as_str())).unwrap();
    node.leave().unwrap();
    up.signal(Signal::INT);
    up.event("ended");
    let (code, said) = up.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("node {} (process", members[1]["node"])), "{said}");
}

fn replacement_of_a_dead_node_joins_the_cluster(fabric: &str) {
    let name = name();
    let (mut up, members) = up(&name, "3", &["--restart", "--fabric", fabric]);
    // Also the node that created the cluster.
    for member in [&members[2], &members[0]] {
        signal(process(member), Signal::KILL);
        let ended = up.event("node_ended");
        assert_eq!((&ended["node"], &ended["restarts"]), (&member["node"], &true.into()));
        let joined = up.event("node_joined");
        assert_ne!(joined["process"], member["process"]);
        assert!(runs(process(&joined)), "{joined}");
        assert_eq!(joined["address"].is_string(), fabric == "tcp", "{joined}");
    }
    if fabric == "shm" {
        let node = Node::join(&Config::new(name.as_str())).unwrap();
        node.wait_for_members(4, Duration::from_secs(60)).unwrap();
        node.leave().unwrap();
    }
    up.signal(Signal::TERM);
    up.event("ended");
    assert_eq!(up.end().0, Some(0));
}

#[test]
fn cluster_ends_with_its_last_node() {
    let (up, members) = up(&name(), "1", &["--restart"]);
    signal(process(&members[0]), Signal::KILL);
    let (code, said) = up.end();
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("the last node") && said.contains("signal: 9 (SIGKILL)"), "{said}");
}
