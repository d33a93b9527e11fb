//! A cluster of workers with a distributed hash table, on which they run shares of workloads.

use super::parts;
use farside_command::failure::Failure;
use farside_command::result_file::{self, TemporaryFolder};
use farside_launcher::cluster::{Cluster, unexpected};
use farside_launcher::hosts::Hosts;
use farside_launcher::latency::Summary;
use farside_launcher::worker::{
    Answer, Command, Executor, NodeSpec, Ran, Share, Verified, WirePath,
};
use std::path::Path;

/// Bytes of a record's line: 1 KB of fields, their names and the table's header.
const RECORD_LINE_BYTES: u32 = 2_048;
/// Memory for one record, with reserve: its line, its share of buckets, and rounding by the allocator.
pub(super) const RECORD_BYTES: u64 = 3_072;
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
    pub(super) root: u64,
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
        let spec = node_spec(hosts, what, (nodes, threads), (memory, CACHE_BYTES));
        let cluster = Cluster::start(hosts, &spec, usize::from(nodes))?;
        Self::create(cluster, (0, false), threads, seed)
    }

    /// Has a worker, `creator`, create a table over all nodes, in logged memory or not, and all others open it.
    pub(super) fn create(
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
    pub(super) fn read_by_calls(&mut self) -> Result<(), Failure> {
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

/// Returns the settings of each of `nodes` nodes with this memory and cache, and with this many client threads.
pub(super) fn node_spec(
    hosts: &Hosts,
    what: &str,
    (nodes, threads): (u16, u16),
    (memory_bytes, cache_bytes): (u64, u64),
) -> NodeSpec {
    let spin_ns = spin_ns(hosts.workers_together(u64::from(nodes)) * u64::from(threads));
    let cluster = format!("{what}-{}", std::process::id());
    NodeSpec { cluster, memory_bytes, cache_bytes, ..NodeSpec::bench(what, spin_ns, None) }
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
