//! The second part: the same table in memory that survives. A killed node returns with all of its records.

use super::parts::{error_count, found, judge_workloads, verify, work};
use crate::ycsb::{ReplicatedTable, Restarted, core};
use farside_apps::ycsb::CoreWorkload;
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes, count, time};
use farside_launcher::hosts::Hosts;
use farside_launcher::latency::Summary;
use farside_launcher::worker::Verified;
use serde::Serialize;
use std::collections::BTreeMap;

/// This part has a tenth of the first one's records, within these bounds: each is in memory several times.
const RECORDS_MIN: u64 = 2_000;
const RECORDS_MAX: u64 = 30_000;
/// Most nodes of this part.
const NODES_MAX: u16 = 3;

/// The results of this part.
#[derive(Serialize)]
pub(super) struct Replicated {
    pub(super) records: u64,
    nodes: u16,
    /// Copies of each node's memory.
    copies: u16,
    load: Summary,
    workloads: BTreeMap<String, Summary>,
    pub(super) before: Verified,
    /// The address of the table's root, before and after.
    root: String,
    pub(super) killed_node: u16,
    /// The number of the node that was started in its place.
    replacement_node: u16,
    /// From the kill until the replacement was a member.
    joined_ns: u64,
    /// From the kill until all records had been read and checked.
    verified_ns: u64,
    pub(super) after: Verified,
}

/// Returns the number of records of this part, for the number of the first one.
fn records_of(records: u64) -> u64 {
    (records / 10).clamp(RECORDS_MIN, RECORDS_MAX).min(records)
}

/// Runs this part, for the records, operations, nodes and threads of the first one.
pub(super) fn run(
    hosts: &Hosts,
    (records, operations): (u64, u64),
    (nodes, threads): (u16, u16),
    output: Output,
) -> Result<Replicated, Failure> {
    let (records, nodes) = (records_of(records), nodes.min(NODES_MAX));
    let operations = operations.min(records);
    let size = (nodes, threads);
    let mut replicated = ReplicatedTable::start(hosts, "demo-replicated", size, records, 1)?;
    let copies = ReplicatedTable::COPIES;
    output.line(format!(
        "{nodes} node processes {} with {copies} copies each of {} of memory, in another process on this machine; {} \
         records of 1 KB",
        hosts.describe(),
        bytes(replicated.memory_bytes()),
        count(records)
    ));
    let table = &mut replicated.table;
    let (load, workloads) = work(table, (records, operations), &[CoreWorkload::A], output)?;
    let properties = core(CoreWorkload::C, records, operations);
    let before = verify(&mut replicated.table, &properties, records, output)?;
    output.line(format!("all nodes alive:  {}", found(&before)));
    let restarted = replicated.kill_and_restart()?;
    let root = replicated.root()?.to_string();
    print_restart(&restarted, &root, output);
    let after = verify(&mut replicated.table, &properties, records, output)?;
    let verified_ns = restarted.at.elapsed().as_nanos() as u64;
    let unchanged = if before.digest == after.digest { "unchanged" } else { "CHANGED" };
    let node = restarted.nodes[1];
    output.line(format!("node {node} returned: {}; all bytes {unchanged}", found(&after)));
    let since = time(verified_ns as f64);
    output.line(format!("all records read and checked {since} after the kill"));
    replicated.table.cluster.leave()?;
    let [killed_node, replacement_node] = restarted.nodes;
    let joined_ns = restarted.joined.as_nanos() as u64;
    Ok(Replicated {
        records,
        nodes,
        copies,
        load,
        workloads,
        before,
        root,
        killed_node,
        replacement_node,
        joined_ns,
        verified_ns,
        after,
    })
}

fn print_restart(restarted: &Restarted, root: &str, output: Output) {
    let Restarted { nodes: [killed, replacement], how, joined, .. } = restarted;
    output.line(format!(
        "node {killed} killed ({how}), and a process started in its place with the same copies: node {replacement} after {}",
        time(joined.as_nanos() as f64)
    ));
    output.line(format!("the table's root is at the same address, {root}"));
}

/// Checks the results: the killed node has its number again, and no record was lost.
pub(super) fn judge(results: &Replicated) -> Result<(), Failure> {
    let Replicated { records, workloads, before, after, .. } = results;
    let is_whole = |found: &Verified| {
        found.right == *records && found.wrong + found.missing + error_count(found) == 0
    };
    judge_workloads(workloads)?;
    if !is_whole(before) {
        return Err(Failure::check(
            "memory with copies: records were lost or changed while all nodes lived",
        ));
    }
    let (killed, replacement) = (results.killed_node, results.replacement_node);
    if killed != replacement {
        return Err(Failure::check(format!(
            "memory with copies: node {killed} was killed, and returned as node {replacement}"
        )));
    }
    if !is_whole(after) {
        return Err(Failure::check(format!(
            "memory with copies: {} of {records} records after the return of node {killed}: {}",
            after.right,
            found(after)
        )));
    }
    if before.digest != after.digest {
        return Err(Failure::check(format!(
            "memory with copies: after the return of node {killed} records have earlier values"
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::parts::tests::verified;
    use farside_launcher::worker::Ran;

    fn results(after: Verified) -> Replicated {
        Replicated {
            records: 100,
            nodes: 3,
            copies: 2,
            load: Summary::of(&[]),
            workloads: BTreeMap::new(),
            before: verified(100, 0, 0, 0),
            root: String::new(),
            killed_node: 2,
            replacement_node: 2,
            joined_ns: 1,
            verified_ns: 2,
            after,
        }
    }

    #[test]
    fn any_loss_in_memory_with_copies_fails() {
        let whole = || verified(100, 0, 0, 0);
        assert_eq!(judge(&results(whole())), Ok(()));
        for after in [
            verified(99, 0, 0, 1),
            verified(99, 0, 1, 0),
            verified(99, 1, 0, 0),
            verified(99, 0, 0, 0),
            verified(101, 0, 0, 0),
            Verified { digest: 99, ..whole() },
        ] {
            assert!(judge(&results(after.clone())).is_err(), "{after:?}");
        }
        let failed = Summary::of(&[Ran { errors: 1, ..Ran::default() }]);
        let failed = BTreeMap::from([("A".to_owned(), failed)]);
        for wrong in [
            Replicated { before: verified(99, 0, 1, 0), ..results(whole()) },
            Replicated { replacement_node: 3, ..results(whole()) },
            Replicated { workloads: failed, ..results(whole()) },
        ] {
            assert!(judge(&wrong).is_err(), "{:?}", wrong.before);
        }
    }

    #[test]
    fn records_are_a_tenth_within_bounds() {
        let all = [100, 1_500, 20_000, 100_000, 300_000, 10_000_000];
        assert_eq!(all.map(records_of), [100, 1_500, 2_000, 10_000, 30_000, 30_000]);
    }
}
