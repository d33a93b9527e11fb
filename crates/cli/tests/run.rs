//! `farside run`: processes of one program share a cluster, and end together.

mod common;

use common::{Running, WATCHDOG, output, runs, signal, text};
use farside::launch;
use farside::prelude::*;
use rustix::process::Signal;
use std::io::Write;
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { shm tcp => (
    process_ranks_share_a_cluster_over_shm_and_tcp
)}

const PROCESSES: usize = 3;

/// Not a test by itself: the program that is launched.
#[test]
fn child() {
    let Ok(end) = std::env::var("FARSIDE_TEST_END") else {
        return;
    };
    let (node, process) = match end.as_str() {
        "leave" => Node::launched().unwrap(),
        _ => {
            let process = launch::process().unwrap().unwrap();
            let config = Config::new("").memory_bytes(4 << 20).cache_bytes(4 << 20);
            (process.open(&config.join_timeout_ns(WATCHDOG.as_nanos() as u64)).unwrap(), process)
        }
    };
    let mut out = std::io::stdout().lock();
    let (rank, size) = (process.rank, process.size);
    writeln!(out, "\nmember {rank} {size} {} {}", std::process::id(), node.cluster_id()).unwrap();
    out.flush().unwrap();
    match end.as_str() {
        "leave" => drop(node.leave().unwrap()),
        "fail" if rank == 1 => std::process::exit(7),
        // One more than there will be: until this process is ended.
        _ => node.wait_for_members(PROCESSES + 1, Duration::from_secs(3600)).unwrap(),
    }
}

/// `farside run` of this program, which ends as `end` says.
fn launch(end: &str, options: &[&str]) -> Running {
    let program = std::env::current_exe().unwrap().display().to_string();
    let end = format!("FARSIDE_TEST_END={end}");
    let processes = PROCESSES.to_string();
    let command = ["child", "--exact", "--nocapture", "--test-threads=1"];
    let run = [&["run", "-n", &processes], options, &[&program], &command].concat();
    Running::start(&["env", &end], &run)
}

/// The members by rank, as they report themselves: their process numbers.
fn members(run: &mut Running) -> Vec<u32> {
    let mut processes = vec![0; PROCESSES];
    let mut clusters = Vec::new();
    for _ in 0..PROCESSES {
        let line = loop {
            let line = run.line();
            if line.contains("] member ") {
                break line;
            }
        };
        let words: Vec<_> = line.split(' ').collect();
        let [prefix, _, rank, size, process, cluster] = words[..] else {
            panic!("{line}");
        };
        assert_eq!((prefix, size), (format!("[{rank}]").as_str(), "3"), "{line}");
        processes[rank.parse::<usize>().unwrap()] = process.parse().unwrap();
        clusters.push(cluster.to_owned());
    }
    clusters.dedup();
    assert_eq!(clusters.len(), 1, "{clusters:?}");
    assert!(!processes.contains(&0), "{processes:?}");
    processes
}

fn wait_for_end(processes: &[u32]) {
    let deadline = Instant::now() + WATCHDOG;
    while processes.iter().any(|process| runs(*process)) {
        assert!(Instant::now() < deadline, "a process continues: {processes:?}");
        std::thread::yield_now();
    }
}

fn process_ranks_share_a_cluster_over_shm_and_tcp(fabric: &str) {
    let mut run = launch("leave", &["--fabric", fabric]);
    let processes = members(&mut run);
    let (code, said) = run.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(processes.iter().all(|process| !runs(*process)));
}

#[test]
fn process_killed_rank_ends_the_others_and_gives_the_exit_code() {
    let mut run = launch("wait", &[]);
    let processes = members(&mut run);
    signal(processes[2], Signal::KILL);
    let (code, said) = run.end();
    assert_eq!(code, Some(128 + 9), "{said}");
    assert!(said.contains("process 2: signal: 9"), "{said}");
    assert!(processes.iter().all(|process| !runs(*process)));
}

#[test]
fn process_failed_rank_gives_the_exit_code() {
    let run = launch("fail", &["--fabric", "tcp"]);
    let (code, said) = run.end();
    assert_eq!(code, Some(7), "{said}");
    assert!(said.contains("process 1: exit status: 7"), "{said}");
}

#[test]
fn process_interrupt_ends_all_ranks() {
    let mut run = launch("wait", &[]);
    let processes = members(&mut run);
    run.signal(Signal::INT);
    let (code, said) = run.end();
    assert_eq!(code, Some(130), "{said}");
    assert!(processes.iter().all(|process| !runs(*process)));
}

#[test]
fn process_rank_that_ignores_the_interrupt_is_killed() {
    let script = "trap '' INT; echo ready; exec sleep 3600";
    let mut run = Running::start(&[], &["run", "-n", "1", "sh", "-c", script]);
    assert!(run.line().ends_with("ready"));
    run.signal(Signal::INT);
    assert_eq!(run.end().0, Some(130));
}

#[test]
fn process_ranks_end_with_a_launcher_that_is_killed() {
    let mut run = launch("wait", &[]);
    let processes = members(&mut run);
    run.signal(Signal::KILL);
    wait_for_end(&processes);
}

#[test]
fn process_run_reports_events_and_refuses_what_cannot_run() {
    let done =
        output(&[], &["--json", "run", "-n", "2", "sh", "-c", "echo $FARSIDE_LAUNCH; echo x >&2"]);
    let said = text(&done.stdout);
    assert!(done.status.success(), "{said}");
    let events: Vec<_> = said.lines().map(common::json).collect();
    assert_eq!(events[0]["event"], "started");
    assert_eq!(events[0]["processes"].as_array().unwrap().len(), 2);
    let lines = |stream: &str| {
        let of = |event: &&serde_json::Value| event["stream"] == stream;
        let mut lines: Vec<_> = events.iter().filter(of).map(|e| e["line"].to_string()).collect();
        lines.sort();
        lines
    };
    assert_eq!(lines("stderr"), ["\"x\"", "\"x\""]);
    let stdout = lines("stdout");
    assert!(stdout[0].starts_with("\"0/2 launch-") && stdout[1].starts_with("\"1/2 launch-"));
    assert!(stdout.iter().all(|line| line.ends_with(" shm\"")), "{stdout:?}");
    assert_eq!(events.last().unwrap()["event"], "ended");
    let absent = output(&[], &["run", "-n", "2", "/no-such-program"]);
    assert_eq!(absent.status.code(), Some(1));
    assert!(text(&absent.stderr).contains("/no-such-program"), "{}", text(&absent.stderr));
    for wrong in [&["run", "-n", "0", "true"][..], &["run", "-n", "2"], &["run", "true"]] {
        assert_eq!(output(&[], wrong).status.code(), Some(2), "{wrong:?}");
    }
}
