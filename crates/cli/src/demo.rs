//! `farside demo`: everything in about a minute. Three nodes, 300,000 records, the YCSB core
//! workloads, then a killed node: the others answer what they still can, and say what they cannot.

use crate::arguments::Demo;
use crate::failure::Failure;
use crate::hosts::Hosts;
use crate::latency::Summary;
use crate::output::{Output, Table, bytes, count};
use crate::worker::{NodeStats, Verified};
use crate::ycsb::{Bed, core, summary_row, summary_table};
use farside_apps::ycsb::CoreWorkload;
use serde::Serialize;
use std::collections::BTreeMap;

/// What `--json` shows.
#[derive(Serialize)]
struct Whole {
    records: u64,
    /// Further ones, by workload D.
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

/// Shows it all.
pub(crate) fn run(arguments: &Demo, output: Output) -> Result<(), Failure> {
    let Demo { records, operations, nodes, threads, ref places } = *arguments;
    let hosts = Hosts::of(places)?;
    // Workload D inserts one record in twenty operations.
    let mut bed = Bed::start(&hosts, "demo", (nodes, threads), records + operations / 16, 1)?;
    output.line(format!(
        "{nodes} node processes {}, {} records of 1 KB",
        hosts.describe(),
        count(records)
    ));
    let (load, workloads) = work(&mut bed, records, operations, output)?;
    let stats = node_table(&mut bed, output)?;
    let properties = core(CoreWorkload::C, records, operations);
    let before = verify(&mut bed, &properties, records, output)?;
    output.line(format!("all nodes alive:  {}", found(&before)));
    let victim = bed.cluster.len() - 1;
    let killed_node = bed.cluster.node(victim);
    let how = bed.cluster.kill(victim)?;
    output.line(format!("node {killed_node} killed ({how})"));
    let after = verify(&mut bed, &properties, records, output)?;
    output.line(format!("one node dead:    {}", found(&after)));
    let inserted = bed.inserted();
    bed.cluster.leave()?;
    output.line("the other nodes have left; nothing remains");
    let judgement = judge(records + inserted, &workloads, &before, &after);
    output.value(&Whole {
        records,
        inserted,
        nodes,
        fabric: hosts.fabric(),
        load,
        workloads,
        stats,
        before,
        killed_node,
        after,
    });
    judgement
}

/// Loads the records and runs the workloads.
fn work(
    bed: &mut Bed,
    records: u64,
    operations: u64,
    output: Output,
) -> Result<(Summary, BTreeMap<String, Summary>), Failure> {
    let mut table = summary_table();
    let bar = output.bar("load", records);
    let load = bed.load(&core(CoreWorkload::A, records, operations), |more| bar.inc(more))?;
    bar.finish_and_clear();
    summary_row(&mut table, "load", &load);
    let mut workloads = BTreeMap::new();
    for workload in CoreWorkload::ALL {
        let name = workload.to_string();
        let bar = output.bar(&format!("workload {name}"), operations);
        let properties = core(workload, records, operations);
        let summary = bed.run(&properties, None, |more| bar.inc(more))?;
        bar.finish_and_clear();
        summary_row(&mut table, &name, &summary);
        workloads.insert(name, summary);
    }
    output.line(table.text());
    output.line("");
    Ok((load, workloads))
}

/// Looks every record up.
fn verify(
    bed: &mut Bed,
    properties: &str,
    records: u64,
    output: Output,
) -> Result<Verified, Failure> {
    let bar = output.bar("verify", records);
    let found = bed.verify(properties, |more| bar.inc(more))?;
    bar.finish_and_clear();
    Ok(found)
}

/// Shows what each node has done.
fn node_table(bed: &mut Bed, output: Output) -> Result<Vec<NodeStats>, Failure> {
    let heads = [
        "node",
        "hits",
        "misses",
        "hit rate",
        "invalidations",
        "evictions",
        "messages sent",
        "bytes placed",
    ];
    let mut table = Table::new(heads);
    let mut all = Vec::new();
    for (index, stats) in bed.cluster.stats()? {
        let accesses = (stats.hits + stats.misses).max(1);
        table.row([
            bed.cluster.node(index).to_string(),
            count(stats.hits),
            count(stats.misses),
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

fn found(verified: &Verified) -> String {
    let mut text = format!("{} records right", count(verified.right));
    for (name, number) in &verified.errors {
        text.push_str(&format!(", {} {name}", count(*number)));
    }
    text.push_str(&format!(", {} wrong, {} missing", verified.wrong, verified.missing));
    text
}

/// Whether everything was as promised.
fn judge(
    records: u64,
    workloads: &BTreeMap<String, Summary>,
    before: &Verified,
    after: &Verified,
) -> Result<(), Failure> {
    let errors = |verified: &Verified| verified.errors.values().sum::<u64>();
    for (name, summary) in workloads {
        if summary.wrong + summary.absent + summary.errors > 0 {
            return Err(Failure::check(format!(
                "workload {name} read wrong or no records, or failed"
            )));
        }
    }
    if before.right != records || errors(before) > 0 || before.wrong + before.missing > 0 {
        return Err(Failure::check("records were lost or changed while all nodes lived"));
    }
    if after.wrong + after.missing > 0 || after.right + errors(after) != records {
        return Err(Failure::check("the nodes that live gave wrong answers"));
    }
    if after.right == 0 {
        return Err(Failure::check("no record survived the death of one node"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn verified(right: u64, wrong: u64, missing: u64, lost: u64) -> Verified {
        let errors = if lost > 0 {
            BTreeMap::from([("NodeLost".to_owned(), lost)])
        } else {
            BTreeMap::new()
        };
        Verified { right, wrong, missing, errors }
    }

    #[test]
    fn only_what_was_promised_passes() {
        let none = BTreeMap::new();
        let whole = verified(100, 0, 0, 0);
        assert_eq!(judge(100, &none, &whole, &verified(60, 0, 0, 40)), Ok(()));
        for (before, after) in [
            (verified(99, 0, 1, 0), verified(60, 0, 0, 40)),
            (verified(99, 0, 0, 1), verified(60, 0, 0, 40)),
            (whole.clone(), verified(60, 1, 0, 39)),
            (whole.clone(), verified(60, 0, 1, 39)),
            (whole.clone(), verified(60, 0, 0, 39)),
            (whole.clone(), verified(0, 0, 0, 100)),
        ] {
            assert!(judge(100, &none, &before, &after).is_err(), "{before:?} {after:?}");
        }
    }
}
