//! YCSB workloads on a cluster of workers: the part that `farside demo` shares with `farside bench ycsb`, and the
//! latter.

mod parts;
mod replicated;

pub(crate) use replicated::{ReplicatedTable, Restarted, why_not_replicated};

use crate::settings::BenchYcsb;
use farside::call::rmc::library::DhtLookup;
use farside_apps::ycsb::{CoreWorkload, Proportions, Workload};
use farside_command::failure::Failure;
use farside_command::input_file;
use farside_command::output::{Output, Table, count, time};
use farside_command::result_file::{self, TemporaryFolder};
use farside_launcher::cluster::{Cluster, unexpected};
use farside_launcher::hosts::Hosts;
use farside_launcher::latency::Summary;
use farside_launcher::worker::workload;
use farside_launcher::worker::{
    Answer, Command, Executor, LookupStats, NodeSpec, NodeStats, Ran, Share, Verified, WirePath,
};
use serde::Serialize;
use std::path::Path;

/// Bytes of a record's line: 1 KB of fields, their names and the table's header.
const RECORD_LINE_BYTES: u32 = 2_048;
/// Memory for one record, with reserve: its line, its share of buckets, and rounding by the allocator.
const RECORD_BYTES: u64 = 3_072;
/// Least memory of a node.
const MEMORY_BYTES_MIN: u64 = 64 << 20;
/// Spin budget of threads that share processors: about the time of a wake-up.
const SPIN_SHARED_NS: u64 = 5_000;
/// Cache of a node.
const CACHE_BYTES: u64 = 128 << 20;

/// A cluster with a distributed hash table.
pub(crate) struct TableCluster {
    pub(crate) cluster: Cluster,
    /// The address of the table's root.
    root: u64,
    threads: u16,
    seed: u64,
    /// Records that each node has inserted in addition to the loaded ones.
    inserted: Vec<u64>,
    /// Executors for reads by calls; empty without `--by-call`.
    executors: Vec<Executor>,
}

impl TableCluster {
    /// Starts `nodes` nodes with memory for `records` records, and creates a table over all of them. `threads`
    /// is the number of client threads of each node.
    pub(crate) fn start(
        hosts: &Hosts,
        what: &str,
        (nodes, threads): (u16, u16),
        records: u64,
        seed: u64,
    ) -> Result<Self, Failure> {
        let memory = MEMORY_BYTES_MIN + records.saturating_mul(RECORD_BYTES) / u64::from(nodes);
        let spec = NodeSpec {
            cluster: format!("{what}-{}", std::process::id()),
            create: true,
            memory_bytes: memory,
            cache_bytes: CACHE_BYTES,
            line_bytes: None,
            nodes_max: None,
            spin_ns: spin_ns(hosts.workers_together(u64::from(nodes)) * u64::from(threads)),
            processor: None,
            host: None,
            keep_stopped: false,
            state: None,
            state_copies: Vec::new(),
        };
        let cluster = Cluster::start(hosts, &spec, usize::from(nodes))?;
        Self::create(cluster, (0, false), threads, seed)
    }

    /// Has a worker, `creator`, create a table over all nodes, in logged memory or not, and all others open it.
    fn create(
        mut cluster: Cluster,
        (creator, logged): (usize, bool),
        threads: u16,
        seed: u64,
    ) -> Result<Self, Failure> {
        let create = Command::CreateTable {
            nodes: (0..cluster.workers_count()).map(|index| cluster.node(index)).collect(),
            record_line_bytes: Some(RECORD_LINE_BYTES),
            logged,
        };
        let root = match cluster.ask(creator, create)? {
            Answer::Address(root) => root,
            other => return Err(unexpected(&other)),
        };
        let others = (0..cluster.workers_count())
            .filter(|index| *index != creator)
            .map(|index| (index, Command::OpenTable { root }))
            .collect();
        cluster.ask_all(others, |_| {})?.into_iter().collect::<Result<Vec<_>, _>>()?;
        Ok(Self { cluster, root, threads, seed, inserted: Vec::new(), executors: Vec::new() })
    }

    /// Starts executors at all nodes; later runs read by calls to them.
    fn read_by_calls(&mut self) -> Result<(), Failure> {
        let all = self.cluster.living().into_iter().map(|index| (index, Command::ServeCalls));
        let answers = self.cluster.ask_all(all.collect(), |_| {})?;
        let executor = |answer| match answer? {
            Answer::Executor(executor) => Ok(executor),
            other => Err(unexpected(&other)),
        };
        self.executors = answers.into_iter().map(executor).collect::<Result<_, _>>()?;
        Ok(())
    }

    /// Gives every living node its share of a command and returns their answers.
    fn ask_shares(
        &mut self,
        properties: &str,
        history: Option<&Path>,
        command: fn(Share) -> Command,
        progress: impl FnMut(u64),
    ) -> Result<Vec<Answer>, Failure> {
        let living = self.cluster.living();
        let parts = living.len() as u64;
        let share = |(part, index): (usize, &usize)| {
            let share = Share {
                properties: properties.to_owned(),
                part: part as u64,
                parts,
                threads: self.threads,
                seed: self.seed,
                history: history.map(|folder| WirePath(parts::part_of(folder, part))),
                inserted: self.inserted.clone(),
                executors: self.executors.clone(),
            };
            (*index, command(share))
        };
        let commands = living.iter().enumerate().map(share).collect();
        self.cluster.ask_all(commands, progress)?.into_iter().collect()
    }

    /// Inserts the workload's records.
    pub(crate) fn load(
        &mut self,
        properties: &str,
        progress: impl FnMut(u64),
    ) -> Result<Summary, Failure> {
        let answers = self.ask_shares(properties, None, Command::Load, progress)?;
        Ok(Summary::of(&ran(answers)?))
    }

    /// Runs the workload's operations.
    pub(crate) fn run(
        &mut self,
        properties: &str,
        history: Option<&Path>,
        progress: impl FnMut(u64),
    ) -> Result<Summary, Failure> {
        let count = self.cluster.living().len();
        let folder = history.map(|_| TemporaryFolder::new()).transpose()?;
        let folder = folder.as_ref().map(TemporaryFolder::path);
        let answers = self.ask_shares(properties, folder, Command::Run, progress);
        let joined = match (history, folder) {
            (Some(path), Some(folder)) => {
                if answers.is_err() {
                    // After an interrupt the workers still run: killed together, their histories end at once.
                    self.cluster.kill_all();
                }
                result_file::write_with(path, |whole| parts::join(folder, count, whole))
            }
            _ => Ok(()),
        };
        // The failure of the run is reported before that of its history.
        let shares = ran(answers?)?;
        joined?;
        let inserts = |share: &Ran| {
            share.latencies.get("INSERT").map_or(0, |counted| counted.iter().map(|one| one.1).sum())
        };
        let inserted: Vec<u64> = shares.iter().map(inserts).collect();
        if inserted.iter().sum::<u64>() > 0 {
            self.inserted = inserted;
        }
        Ok(Summary::of(&shares))
    }

    /// Returns the number of records that runs have inserted.
    pub(crate) fn inserted(&self) -> u64 {
        self.inserted.iter().sum()
    }

    /// Reads and checks every record; the living nodes share the work.
    pub(crate) fn verify(
        &mut self,
        properties: &str,
        progress: impl FnMut(u64),
    ) -> Result<Verified, Failure> {
        let mut all = Verified::default();
        for answer in self.ask_shares(properties, None, Command::Verify, progress)? {
            let Answer::Verified(found) = answer else {
                return Err(unexpected(&answer));
            };
            all = all.and(found);
        }
        Ok(all)
    }
}

/// Returns the spin budget: the default if each thread has its own processor, otherwise `SPIN_SHARED_NS`, since
/// spinning threads would delay the others.
fn spin_ns(threads: u64) -> Option<u64> {
    let processors = std::thread::available_parallelism().map_or(1, |n| n.get() as u64);
    (threads > processors).then_some(SPIN_SHARED_NS)
}

fn ran(answers: Vec<Answer>) -> Result<Vec<Ran>, Failure> {
    let one = |answer| match answer {
        Answer::Ran(ran) => Ok(ran),
        other => Err(unexpected(&other)),
    };
    answers.into_iter().map(one).collect()
}

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

/// Runs `farside bench ycsb`.
/// Runs a workload, and prints its figures.
pub fn run(arguments: &BenchYcsb, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Whole {
        load: Summary,
        run: Summary,
        nodes: Vec<NodeStats>,
        fabric: &'static str,
    }
    let hosts = Hosts::of(&arguments.places)?;
    let properties = properties(arguments, output)?;
    let workload = workload(&properties)?;
    let (records, operations) = (workload.insert_count, workload.operations);
    let threads = arguments.threads.map_or(workload.threads, u32::from);
    let threads =
        u16::try_from(threads).map_err(|_| Failure::usage("threadcount: at most 65535"))?;
    // Memory for the records that the run may insert.
    let inserts = if workload.proportions.insert > 0.0 { operations } else { 0 };
    let size = (arguments.nodes, threads);
    if arguments.by_call {
        check_calls(&workload, arguments.nodes)?;
    }
    let mut table_cluster =
        TableCluster::start(&hosts, "ycsb", size, records + inserts, arguments.seed)?;
    let bar = output.bar("load", records);
    let load = table_cluster.load(&properties, |more| bar.inc(more))?;
    bar.finish_and_clear();
    if arguments.by_call {
        table_cluster.read_by_calls()?;
    }
    let bar = output.bar("run", operations);
    let run = table_cluster.run(&properties, arguments.history.as_deref(), |more| bar.inc(more))?;
    bar.finish_and_clear();
    let nodes: Vec<_> =
        table_cluster.cluster.stats()?.into_iter().map(|(_, stats)| stats).collect();
    table_cluster.cluster.leave()?;
    let mut table = summary_table();
    summary_row(&mut table, "load", &load);
    summary_row(&mut table, "run", &run);
    output.line(table.text());
    if let Some(lookups) = &run.lookups {
        output.line(lookups_line(lookups));
    }
    let wrong = load.wrong + run.wrong;
    let failed = load.first_error.clone().or_else(|| run.first_error.clone());
    output.value(&Whole { load, run, nodes, fabric: hosts.fabric() });
    if wrong > 0 {
        return Err(Failure::check(format!("{wrong} reads found a value that was never written")));
    }
    match failed {
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
