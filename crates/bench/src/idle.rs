//! What a node costs in addition to its data: processor time while idle, and memory for each line.

use super::report::Report;
use farside::LineSize;
use farside_command::failure::Failure;
use farside_launcher::cluster::{Cluster, unexpected};
use farside_launcher::hosts::Hosts;
use farside_launcher::worker::{Answer, Command, NodeSpec};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How long the processor time of idle nodes is measured.
const IDLE: Duration = Duration::from_secs(2);
/// The share of a core that an idle node may take.
const IDLE_SHARE_MAX: f64 = 0.005;
/// Resident lines of the memory measurement.
const LINES: u64 = 131_072;
/// Target: bytes that a resident line takes in addition to its data.
const LINE_BYTES_MAX: f64 = 24.0;

/// Measures the share of a core that an idle node takes.
pub(super) fn time(report: &mut Report) -> Result<(), Failure> {
    if !report.wants("idle") {
        return Ok(());
    }
    let cluster = Cluster::start(&Hosts::Machine, &NodeSpec::bench("idle", None, None), 2)?;
    let busy = |cluster: &Cluster| {
        (0..cluster.workers_count()).map(|index| busy_ns(cluster.process(index))).sum::<u64>()
    };
    pause(Duration::from_millis(100));
    let before = busy(&cluster);
    pause(IDLE);
    let share = (busy(&cluster) - before) as f64 / 2.0 / IDLE.as_nanos() as f64;
    let met = if share < IDLE_SHARE_MAX { "met" } else { "MISSED" };
    report
        .remark(format!("an idle node takes {:.2}% of a core (target 0.5%: {met})", share * 100.0));
    cluster.leave()
}

/// Measures the private memory of a resident line at its home and at a node that caches it: the difference
/// between two clusters, one with many resident lines and one with 64.
pub(super) fn memory(report: &mut Report) -> Result<(), Failure> {
    if !report.wants("memory") {
        return Ok(());
    }
    let few = private_bytes(64)?;
    let many = private_bytes(LINES)?;
    let each = |at: usize| (many[at].saturating_sub(few[at])) as f64 / (LINES - 64) as f64;
    let (home, cache) = (each(0), each(1));
    let met = if home.max(cache) <= LINE_BYTES_MAX { "met" } else { "MISSED" };
    report.remark(format!(
        "memory in addition to the data: {home:.1} B for each line at its home, {cache:.1} B in a cache \
         (target 24 B: {met})"
    ));
    Ok(())
}

/// Returns the private memory of a home and of a node that caches `lines` of its lines.
fn private_bytes(lines: u64) -> Result<[u64; 2], Failure> {
    let data = lines * LineSize::DEFAULT.bytes() as u64;
    let home = NodeSpec {
        memory_bytes: data + (1 << 20),
        cache_bytes: 1 << 20,
        ..NodeSpec::bench("memory", None, None)
    };
    let user = NodeSpec { memory_bytes: 0, cache_bytes: data + (1 << 20), ..home.clone() };
    let mut cluster = Cluster::start_each(&Hosts::Machine, &[home, user])?;
    let address = match cluster.ask(0, Command::Allocate { bytes: data })? {
        Answer::Address(address) => address,
        other => return Err(unexpected(&other)),
    };
    cluster.ask(1, Command::Touch { address, lines })?;
    let taken = [0, 1].map(|index| anonymous_bytes(cluster.process(index)));
    cluster.leave()?;
    Ok(taken)
}

/// Returns the anonymous private memory of a process, without shared memory (regions) and files.
fn anonymous_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    let number = line.and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok());
    number.unwrap_or(0) * 1024
}

/// Returns the processor time of all threads of a process.
fn busy_ns(process: u32) -> u64 {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{process}/task")) else {
        return 0;
    };
    let of_thread = |path: std::path::PathBuf| {
        let text = std::fs::read_to_string(path.join("schedstat")).unwrap_or_default();
        text.split(' ').next().and_then(|word| word.parse::<u64>().ok()).unwrap_or(0)
    };
    threads.flatten().map(|thread| of_thread(thread.path())).sum()
}

/// Blocks this thread for `time`. For measurements of idle nodes only.
pub(super) fn pause(time: Duration) {
    let (sender, receiver) = channel::<()>();
    while receiver.recv_timeout(time) != Err(RecvTimeoutError::Timeout) {}
    drop(sender);
}
