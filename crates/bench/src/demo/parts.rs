//! What both parts of the demonstration do: load, run, verify, judge.

use crate::ycsb::{TableCluster, core, summary_row, summary_table};
use farside_apps::ycsb::CoreWorkload;
use farside_command::failure::Failure;
use farside_command::output::{Output, count};
use farside_launcher::latency::Summary;
use farside_launcher::worker::Verified;
use std::collections::BTreeMap;

/// Loads the records and runs workloads.
pub(super) fn work(
    table_cluster: &mut TableCluster,
    (records, operations): (u64, u64),
    all: &[CoreWorkload],
    output: Output,
) -> Result<(Summary, BTreeMap<String, Summary>), Failure> {
    let mut table = summary_table();
    let bar = output.bar("load", records);
    let load =
        table_cluster.load(&core(CoreWorkload::A, records, operations), |more| bar.inc(more))?;
    bar.finish_and_clear();
    summary_row(&mut table, "load", &load);
    let mut workloads = BTreeMap::new();
    for workload in all {
        let name = workload.to_string();
        let bar = output.bar(&format!("workload {name}"), operations);
        let properties = core(*workload, records, operations);
        let summary = table_cluster.run(&properties, None, |more| bar.inc(more))?;
        bar.finish_and_clear();
        summary_row(&mut table, &name, &summary);
        workloads.insert(name, summary);
    }
    output.line(table.text());
    output.line("");
    Ok((load, workloads))
}

/// Reads and checks every record.
pub(super) fn verify(
    table_cluster: &mut TableCluster,
    properties: &str,
    records: u64,
    output: Output,
) -> Result<Verified, Failure> {
    let bar = output.bar("verify", records);
    let found = table_cluster.verify(properties, |more| bar.inc(more))?;
    bar.finish_and_clear();
    Ok(found)
}

/// Describes what a check has found.
pub(super) fn found(verified: &Verified) -> String {
    let mut text = format!("{} records correct", count(verified.right));
    for (name, number) in &verified.errors {
        text.push_str(&format!(", {} {name}", count(*number)));
    }
    text.push_str(&format!(", {} wrong, {} missing", verified.wrong, verified.missing));
    text
}

/// Returns the number of records whose read failed.
pub(super) fn error_count(verified: &Verified) -> u64 {
    verified.errors.values().sum()
}

/// Checks that no operation failed, or read a wrong record or none.
pub(super) fn judge_workloads(workloads: &BTreeMap<String, Summary>) -> Result<(), Failure> {
    let has_failed = |summary: &Summary| summary.wrong + summary.absent + summary.errors > 0;
    match workloads.iter().find(|(_, summary)| has_failed(summary)) {
        None => Ok(()),
        Some((name, _)) => Err(Failure::check(format!(
            "workload {name}: an operation failed, or read a wrong record or none"
        ))),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use farside_launcher::worker::Ran;

    pub(in crate::demo) fn verified(right: u64, wrong: u64, missing: u64, lost: u64) -> Verified {
        let errors = if lost > 0 {
            BTreeMap::from([("NodeLost".to_owned(), lost)])
        } else {
            BTreeMap::new()
        };
        Verified { right, wrong, missing, errors, digest: right }
    }

    #[test]
    fn any_failure_of_a_workload_fails() {
        let judged =
            |ran: Ran| judge_workloads(&BTreeMap::from([("A".to_owned(), Summary::of(&[ran]))]));
        assert_eq!(judged(Ran::default()), Ok(()));
        for ran in [
            Ran { errors: 1, ..Ran::default() },
            Ran { wrong: 1, ..Ran::default() },
            Ran { absent: 1, ..Ran::default() },
        ] {
            assert!(judged(ran.clone()).is_err(), "{ran:?}");
        }
    }
}
