//! `farside demo`: three nodes, 300,000 records and the YCSB core workloads in about a minute. Then one node is
//! killed: the others still read the records that remain, and report errors for the lost ones. Then the same with
//! memory that survives, where a process in the place of the killed node brings all records back.

mod parts;
mod replicated;

use farside_command::failure::Failure;
use farside_command::output::{Output, Table, bytes, count};
use farside_command::settings::Places;
use farside_launcher::hosts::Hosts;
use farside_launcher::latency::Summary;

use crate::ycsb::{TableCluster, core, why_not_replicated};
use farside_apps::ycsb::CoreWorkload;
use farside_launcher::worker::{NodeStats, Verified};
use parts::{error_count, found, judge_workloads, verify, work};
use replicated::Replicated;
use serde::Serialize;
use std::collections::BTreeMap;

/// A demonstration: nodes, a workload, and a killed node.
#[derive(Debug)]
pub struct Demo {
    /// Number of records to load.
    pub records: u64,
    /// Operations of each workload, all nodes together.
    pub operations: u64,
    /// Node processes.
    pub nodes: u16,
    /// Threads of each node.
    pub threads: u16,
    /// Their hosts, and the fabric between them.
    pub places: Places,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Whole {
    #[serde(flatten)]
    volatile: Volatile,
    /// The second part.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicated: Option<Replicated>,
    /// Why there is none.
    #[serde(skip_serializing_if = "Option::is_none")]
    replicated_left_out: Option<&'static str>,
}

/// The results of the first part.
#[derive(Serialize)]
struct Volatile {
    records: u64,
    /// Records that workload D has inserted.
    inserted: u64,
    nodes: u16,
    fabric: &'static str,
    load: Summary,
    workloads: BTreeMap<String, Summary>,
    stats: Vec<NodeStats>,
    before: Verified,
    killed_node: u16,
    after: Verified,
}

/// Runs the demonstration.
pub fn run(arguments: &Demo, output: Output) -> Result<(), Failure> {
    let hosts = Hosts::of(&arguments.places)?;
    let volatile = run_volatile(arguments, &hosts, output)?;
    output.line("");
    let replicated_left_out = why_not_replicated(&hosts);
    let replicated = match replicated_left_out {
        None => {
            let Demo { records, operations, nodes, threads, .. } = *arguments;
            let (work, size) = ((records, operations), (nodes, threads));
            Some(replicated::run(&hosts, work, size, output)?)
        }
        Some(reason) => {
            output.line(format!(
                "second part left out (a killed node whose memory survives): {reason}"
            ));
            None
        }
    };
    output.line("");
    output.line(comparison(&volatile, replicated.as_ref()).text());
    let judgement = judge(&volatile);
    let judgement = judgement.and(replicated.as_ref().map_or(Ok(()), replicated::judge));
    output.value(&Whole { volatile, replicated, replicated_left_out });
    judgement
}

/// Runs the first part: the memory of a node ends with its process.
fn run_volatile(arguments: &Demo, hosts: &Hosts, output: Output) -> Result<Volatile, Failure> {
    let Demo { records, operations, nodes, threads, .. } = *arguments;
    // Workload D inserts one record in twenty operations.
    let mut table_cluster =
        TableCluster::start(hosts, "demo", (nodes, threads), records + operations / 16, 1)?;
    output.line(format!(
        "{nodes} node processes {}, {} records of 1 KB",
        hosts.describe(),
        count(records)
    ));
    let all = &CoreWorkload::ALL;
    let (load, workloads) = work(&mut table_cluster, (records, operations), all, output)?;
    let stats = node_table(&mut table_cluster, output)?;
    let properties = core(CoreWorkload::C, records, operations);
    let before = verify(&mut table_cluster, &properties, records, output)?;
    output.line(format!("all nodes alive:  {}", found(&before)));
    let victim = table_cluster.cluster.workers_count() - 1;
    let killed_node = table_cluster.cluster.node(victim);
    let how = table_cluster.cluster.kill(victim)?;
    output.line(format!("node {killed_node} killed ({how})"));
    let after = verify(&mut table_cluster, &properties, records, output)?;
    output.line(format!("one node dead:    {}", found(&after)));
    let inserted = table_cluster.inserted();
    table_cluster.cluster.leave()?;
    output.line("the other nodes have left: the cluster has ended");
    let fabric = hosts.fabric();
    Ok(Volatile {
        records,
        inserted,
        nodes,
        fabric,
        load,
        workloads,
        stats,
        before,
        killed_node,
        after,
    })
}

/// Compares what a killed node has cost in both parts.
fn comparison(volatile: &Volatile, replicated: Option<&Replicated>) -> Table {
    let mut table =
        Table::new(["memory", "records", "killed", "correct", "lost", "wrong", "missing"]).left(0);
    let mut row = |memory: &str, records, node: u16, after: &Verified| {
        table.row([
            memory.to_owned(),
            count(records),
            format!("node {node}"),
            count(after.right),
            count(error_count(after)),
            count(after.wrong),
            count(after.missing),
        ]);
    };
    let (records, node) = (volatile.records + volatile.inserted, volatile.killed_node);
    row("volatile", records, node, &volatile.after);
    if let Some(part) = replicated {
        row("replicated", part.records, part.killed_node, &part.after);
    }
    table
}

/// Prints the counters of each node.
fn node_table(table_cluster: &mut TableCluster, output: Output) -> Result<Vec<NodeStats>, Failure> {
    let heads = [
        "node",
        "hits",
        "misses",
        "direct reads",
        "hit rate",
        "invalidations",
        "evictions",
        "messages sent",
        "bytes placed",
    ];
    let mut table = Table::new(heads);
    let mut all = Vec::new();
    for (index, stats) in table_cluster.cluster.stats()? {
        let accesses = (stats.hits + stats.misses + stats.direct_reads).max(1);
        table.row([
            table_cluster.cluster.node(index).to_string(),
            count(stats.hits),
            count(stats.misses),
            count(stats.direct_reads),
            format!("{:.1}%", stats.hits as f64 * 100.0 / accesses as f64),
            count(stats.invalidations),
            count(stats.evictions),
            count(stats.messages_sent),
            bytes(stats.bytes_placed),
        ]);
        all.push(stats);
    }
    output.line(table.text());
    output.line("");
    Ok(all)
}

/// Checks the results of the first part: no wrong or missing record before and after the death of a node.
fn judge(results: &Volatile) -> Result<(), Failure> {
    let Volatile { workloads, before, after, .. } = results;
    let records = results.records + results.inserted;
    judge_workloads(workloads)?;
    if before.right != records || error_count(before) > 0 || before.wrong + before.missing > 0 {
        return Err(Failure::check("records were lost or changed while all nodes lived"));
    }
    if after.wrong + after.missing > 0 || after.right + error_count(after) != records {
        return Err(Failure::check("the living nodes read wrong records or none"));
    }
    if after.right == 0 {
        return Err(Failure::check("no record survived the death of one node"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::parts::tests::verified;
    use super::*;

    fn results(before: Verified, after: Verified) -> Volatile {
        Volatile {
            records: 90,
            inserted: 10,
            nodes: 3,
            fabric: "shm",
            load: Summary::of(&[]),
            workloads: BTreeMap::new(),
            stats: Vec::new(),
            before,
            killed_node: 2,
            after,
        }
    }

    #[test]
    fn lost_or_wrong_records_fail() {
        let whole = verified(100, 0, 0, 0);
        assert_eq!(judge(&results(whole.clone(), verified(60, 0, 0, 40))), Ok(()));
        for (before, after) in [
            (verified(99, 0, 1, 0), verified(60, 0, 0, 40)),
            (verified(99, 0, 0, 1), verified(60, 0, 0, 40)),
            (whole.clone(), verified(60, 1, 0, 39)),
            (whole.clone(), verified(60, 0, 1, 39)),
            (whole.clone(), verified(60, 0, 0, 39)),
            (whole.clone(), verified(0, 0, 0, 100)),
        ] {
            let judged = judge(&results(before.clone(), after.clone()));
            assert!(judged.is_err(), "{before:?} {after:?}");
        }
    }
}
