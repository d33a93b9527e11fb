//! YCSB workloads on a cluster of workers: the part that `farside demo` shares with `farside bench ycsb`, and the
//! latter.

mod parts;
mod replicated;
mod table_cluster;

pub(crate) use replicated::{ReplicatedTable, Restarted, why_not_replicated};
pub(crate) use table_cluster::TableCluster;

use crate::settings::BenchYcsb;
use farside::call::rmc::library::DhtLookup;
use farside_apps::ycsb::{CoreWorkload, Proportions, Workload};
use farside_command::failure::Failure;
use farside_command::input_file;
use farside_command::output::{Output, Table, count, time};
use farside_launcher::hosts::Hosts;
use farside_launcher::latency::Summary;
use farside_launcher::worker::workload;
use farside_launcher::worker::{LookupStats, NodeStats};
use serde::Serialize;

/// Returns the properties of a core workload with these numbers.
pub(crate) fn core(workload: CoreWorkload, records: u64, operations: u64) -> String {
    let core = match workload {
        CoreWorkload::A => "readproportion=0.5\nupdateproportion=0.5\nrequestdistribution=zipfian",
        CoreWorkload::B => {
            "readproportion=0.95\nupdateproportion=0.05\nrequestdistribution=zipfian"
        }
        CoreWorkload::C => "readproportion=1\nupdateproportion=0\nrequestdistribution=zipfian",
        CoreWorkload::D => {
            "readproportion=0.95\nupdateproportion=0\ninsertproportion=0.05\nrequestdistribution=latest"
        }
        CoreWorkload::F => {
            "readproportion=0.5\nupdateproportion=0\nreadmodifywriteproportion=0.5\nrequestdistribution=zipfian"
        }
    };
    format!("{core}\nrecordcount={records}\noperationcount={operations}\n")
}

/// Results with one table.
#[derive(Serialize)]
struct TableFigures {
    load: Summary,
    run: Summary,
    nodes: Vec<NodeStats>,
}

/// Runs `farside bench ycsb`: a workload, and its figures.
pub fn run(arguments: &BenchYcsb, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Whole {
        #[serde(flatten)]
        volatile: TableFigures,
        #[serde(skip_serializing_if = "Option::is_none")]
        logged: Option<TableFigures>,
        fabric: &'static str,
    }
    let hosts = Hosts::of(&arguments.places)?;
    if let Some(reason) = why_not_replicated(&hosts).filter(|_| arguments.logged) {
        return Err(Failure::usage(format!("--logged: {reason}")));
    }
    let properties = properties(arguments, output)?;
    let workload = workload(&properties)?;
    let threads = arguments.threads.map_or(workload.threads, u32::from);
    let threads =
        u16::try_from(threads).map_err(|_| Failure::usage("threadcount: at most 65535"))?;
    // Memory for the records that the run may insert.
    let inserts = if workload.proportions.insert > 0.0 { workload.operations } else { 0 };
    let (size, records) = ((arguments.nodes, threads), workload.insert_count + inserts);
    if arguments.by_call {
        check_calls(&workload, arguments.nodes)?;
    }
    let mut table_cluster = TableCluster::start(&hosts, "ycsb", size, records, arguments.seed)?;
    let volatile = measure(&mut table_cluster, arguments, &properties, output)?;
    table_cluster.cluster.leave()?;
    let logged = match arguments.logged {
        true => {
            let (what, seed) = ("ycsb-logged", arguments.seed);
            let mut replicated = ReplicatedTable::start(&hosts, what, size, records, seed)?;
            let logged = measure(&mut replicated.table, arguments, &properties, output)?;
            replicated.table.cluster.leave()?;
            Some(logged)
        }
        false => None,
    };
    print_figures(&volatile, logged.as_ref(), output);
    let all: Vec<_> = [&volatile].into_iter().chain(&logged).collect();
    let judgement = judge(&all);
    output.value(&Whole { volatile, logged, fabric: hosts.fabric() });
    judgement
}

/// Loads the records and runs the workload.
fn measure(
    table_cluster: &mut TableCluster,
    arguments: &BenchYcsb,
    properties: &str,
    output: Output,
) -> Result<TableFigures, Failure> {
    let workload = workload(properties)?;
    let bar = output.bar("load", workload.insert_count);
    let load = table_cluster.load(properties, |more| bar.inc(more))?;
    bar.finish_and_clear();
    if arguments.by_call {
        table_cluster.read_by_calls()?;
    }
    let bar = output.bar("run", workload.operations);
    let run = table_cluster.run(properties, arguments.history.as_deref(), |more| bar.inc(more))?;
    bar.finish_and_clear();
    let nodes = table_cluster.cluster.stats()?.into_iter().map(|(_, stats)| stats).collect();
    Ok(TableFigures { load, run, nodes })
}

fn print_figures(volatile: &TableFigures, logged: Option<&TableFigures>, output: Output) {
    let mut table = summary_table();
    summary_row(&mut table, "load", &volatile.load);
    summary_row(&mut table, "run", &volatile.run);
    if let Some(logged) = logged {
        summary_row(&mut table, "load, logged", &logged.load);
        summary_row(&mut table, "run, logged", &logged.run);
    }
    output.line(table.text());
    if logged.is_some() {
        output.line(format!(
            "logged: {} copies of each node's memory, in another process on this machine; all operations are \
             durable at the end of each node's share",
            ReplicatedTable::COPIES
        ));
    }
    if let Some(lookups) = &volatile.run.lookups {
        output.line(lookups_line(lookups));
    }
}

/// Checks that no operation failed and no read was wrong.
fn judge(all: &[&TableFigures]) -> Result<(), Failure> {
    let summaries = || all.iter().flat_map(|figures| [&figures.load, &figures.run]);
    let wrong: u64 = summaries().map(|summary| summary.wrong).sum();
    if wrong > 0 {
        return Err(Failure::check(format!("{wrong} reads found a value that was never written")));
    }
    match summaries().find_map(|summary| summary.first_error.as_ref()) {
        Some(first) => Err(Failure::check(format!("operations failed, the first: {first}"))),
        None => Ok(()),
    }
}

/// Returns the workload's properties: those of a file or a core workload, then the command line's numbers, which
/// override them since the last line with a name counts.
fn properties(arguments: &BenchYcsb, output: Output) -> Result<String, Failure> {
    let mut text = match &arguments.properties {
        Some(path) => input_file::read_text(path)?,
        None => core(arguments.workload, 100_000, 100_000),
    };
    let parsed = Workload::from_properties(&text).map_err(|e| Failure::usage(e.to_string()))?;
    for (line, key) in &parsed.unknown {
        output.note(format!(
            "line {line}: `{key}` is no property of YCSB's core workload; it has no effect"
        ));
    }
    for (name, given) in
        [("recordcount", arguments.records), ("operationcount", arguments.operations)]
    {
        if let Some(number) = given {
            text.push_str(&format!("\n{name}={number}\n"));
        }
    }
    Ok(text)
}

/// Refuses `--by-call` if no read of the workload could be done by a call.
fn check_calls(workload: &Workload, nodes: u16) -> Result<(), Failure> {
    let refuse = |why: String| Err(Failure::usage(format!("--by-call: {why}")));
    if nodes < 2 {
        return refuse("one node has no other node to call: use --nodes 2 or more".to_owned());
    }
    let Proportions { read, read_modify_write, .. } = workload.proportions;
    if read + read_modify_write <= 0.0 {
        return refuse("the workload reads nothing".to_owned());
    }
    let least = workload.field_length.least();
    let (record, most) =
        (u64::from(workload.fields) * u64::from(least), DhtLookup::VALUE_BYTES_MAX);
    if record > most as u64 {
        return refuse(format!("a call returns at most {most} bytes, and records have {record}"));
    }
    let (mut key, most) = (Vec::new(), DhtLookup::KEY_BYTES_MAX);
    workload.key(0, &mut key);
    if key.len() > most {
        let found = key.len();
        return refuse(format!(
            "a call takes keys of at most {most} bytes, and these have {found}"
        ));
    }
    Ok(())
}

/// Formats how reads were done.
fn lookups_line(lookups: &LookupStats) -> String {
    let LookupStats { answered, direct, moved, stale, large, failed, last_error } = lookups;
    let repeated = moved + stale + large + failed;
    let why = last_error.as_ref().map(|error| format!(", the last: {error}")).unwrap_or_default();
    format!(
        "reads: {} by one call each, {} without a call, {} repeated without a call ({} of split buckets, {} of \
         replaced records, {} too large, {} failed{why})",
        count(*answered),
        count(*direct),
        count(repeated),
        count(*moved),
        count(*stale),
        count(*large),
        count(*failed),
    )
}

pub(crate) fn summary_table() -> Table {
    Table::new(["workload", "operations", "per second", "p50", "p99", "p99.9", "max", "errors"])
}

pub(crate) fn summary_row(table: &mut Table, name: &str, summary: &Summary) {
    let ns = |value: u64| time(value as f64);
    table.row([
        name.to_owned(),
        count(summary.operations),
        count(summary.operations_per_second as u64),
        ns(summary.all.p50_ns),
        ns(summary.all.p99_ns),
        ns(summary.all.p999_ns),
        ns(summary.all.max_ns),
        count(summary.errors),
    ]);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn properties_of_core_workloads_agree_with_ycsb() {
        for core_workload in CoreWorkload::ALL {
            let parsed = workload(&core(core_workload, 50, 70)).unwrap();
            assert_eq!(parsed, core_workload.workload(50, 70), "{core_workload}");
        }
    }
}
