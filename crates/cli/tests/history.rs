//! `farside bench ycsb --history` while a node is killed: the history contains the operations of all nodes and is
//! linearizable.
#![forbid(unsafe_code)]

mod common;

use common::{Folder, farside, json, signal, text};
use farside_sim::linearizability::{ErrorMeans, KeyValue, read_history};
use rustix::process::Signal;
use serde_json::Value;
use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

const NODES: u64 = 3;
const THREADS: u64 = 2;
/// The node that is killed.
const KILLED: u64 = 1;
/// Bytes of the killed node's part of the history before the kill.
const PART_BYTES_MIN: u64 = 200_000;

/// Returns the children of a process, in the order of their start.
fn children(process: u32) -> Vec<u32> {
    let numbers = std::fs::read_dir("/proc")
        .unwrap()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<u32>().ok());
    let mut found: Vec<(u64, u32)> = numbers
        .filter_map(|number| {
            let status = std::fs::read_to_string(format!("/proc/{number}/stat")).ok()?;
            let fields: Vec<&str> = status.rsplit(") ").next()?.split(' ').collect();
            let started = fields.get(19)?.parse().ok()?;
            (fields.get(1)?.parse() == Ok(process)).then_some((started, number))
        })
        .collect();
    found.sort_unstable();
    found.into_iter().map(|(_, number)| number).collect()
}

/// Returns the folder in which a command collects the parts of a history, if it exists.
fn parts_of(temporary: &Path, command: u32) -> Option<PathBuf> {
    let own = format!("farside-{command}-");
    let names = std::fs::read_dir(temporary).unwrap().filter_map(|entry| Some(entry.ok()?.path()));
    let is_own = |path: &PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&own))
    };
    names.filter(is_own).find(|path| path.is_dir())
}

fn bytes_of(path: &Path) -> u64 {
    std::fs::metadata(path).map_or(0, |metadata| metadata.len())
}

fn process_of(line: &Value) -> u64 {
    line["process"].as_u64().unwrap()
}

#[test]
fn history_of_a_run_with_a_killed_node_is_complete_and_linearizable() {
    let folder = Folder::new();
    let history = folder.path("history");
    let temporary = PathBuf::from(folder.path("temporary"));
    std::fs::create_dir(&temporary).unwrap();
    let properties = folder.file(
        "properties",
        b"recordcount=200\noperationcount=100000000\nreadproportion=0.5\nupdateproportion=0.5\n\
          maxexecutiontime=3\nfieldlength=20\n",
    );
    let (nodes, threads) = (NODES.to_string(), THREADS.to_string());
    let mut run = farside(&[])
        .args(["bench", "ycsb", "--json", "--nodes", &nodes, "--threads", &threads])
        .args(["--properties", &properties, "--history", &history])
        .env("TMPDIR", &temporary)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + common::WATCHDOG;
    let part = loop {
        let part = parts_of(&temporary, run.id()).map(|at| at.join(format!("history.{KILLED}")));
        if let Some(part) = part.filter(|part| bytes_of(part) >= PART_BYTES_MIN) {
            break part;
        }
        assert!(Instant::now() < deadline && run.try_wait().unwrap().is_none());
        std::thread::park_timeout(Duration::from_millis(1));
    };
    let workers = children(run.id());
    assert_eq!(workers.len() as u64, NODES);
    // The lines in the file were written before the kill.
    let before = std::fs::read_to_string(&part).unwrap();
    signal(workers[KILLED as usize], Signal::KILL);
    let ended = run.wait_with_output().unwrap();
    assert_eq!(ended.status.code(), Some(1));
    let said = text(&ended.stdout) + &text(&ended.stderr);
    assert!(said.contains(&format!("node {KILLED}")) && said.contains("signal: 9"), "{said}");

    let whole = std::fs::read_to_string(&history).unwrap();
    assert_eq!(std::fs::read_dir(&temporary).unwrap().count(), 0, "the parts are removed");
    let lines: Vec<Value> = whole.lines().map(json).collect();
    let of = |process: u64| lines.iter().filter(move |line| process_of(line) == process);
    for process in 0..NODES * THREADS {
        assert!(of(process).count() > 10, "client {process} has completed operations");
        let starts: Vec<_> = of(process).map(|line| line["invoke_ns"].as_u64()).collect();
        assert!(starts.is_sorted_by(|one, next| one < next), "each operation has one line");
    }
    check_killed(&before, &whole, &lines);
    let parsed = read_history(&whole, ErrorMeans::MaybeEffect).unwrap();
    parsed.check(KeyValue::Unknown).holds().unwrap();
}

/// Checks that each operation that the killed node had completed is in the history as recorded, and that each of its
/// clients has at most one operation in flight, its last.
fn check_killed(before: &str, whole: &str, lines: &[Value]) {
    let mut in_flight = BTreeMap::new();
    let recorded: HashSet<&str> = whole.split_inclusive('\n').collect();
    for line in before.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
        if !json(line)["return_ns"].is_null() {
            assert!(recorded.contains(line), "{line}");
        }
    }
    for line in lines {
        let process = process_of(line);
        if process / THREADS == KILLED {
            assert_eq!(in_flight.get(&process), None, "no operation follows one in flight");
            if line["return_ns"].is_null() {
                let changes = !line["value"].is_null();
                assert_eq!(line["outcome"], if changes { "unknown" } else { "failed" });
                in_flight.insert(process, line.clone());
            }
        }
    }
    assert!(!in_flight.is_empty(), "clients always have an operation in flight");
}
