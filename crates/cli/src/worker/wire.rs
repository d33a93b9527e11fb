//! What a parent and its workers say to each other: one JSON object a line, commands on the
//! worker's standard input, events on its standard output.

use crate::arguments::{HostFabric, Protection};
use crate::bench::{Mode, Task};
use crate::choice;
use crate::failure::Failure;
use crate::hosts;
use crate::rdma::Rdma;
use farside::fabrics::FabricOptions;
use farside::{Config, LineSize, Stats};
use farside_apps::dht::Lookups;
use farside_bootstrap::Endpoint;
use farside_fabric::Fabric;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// After so long a silence a node of these clusters is out of reach: workers share processors with
/// others and may have to wait for theirs.
pub(crate) const LEASE: Duration = Duration::from_secs(3);

/// How a worker's node is set up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct NodeSpec {
    /// The cluster's name.
    pub(crate) cluster: String,
    /// Whether it starts the cluster; otherwise it joins.
    pub(crate) create: bool,
    pub(crate) memory_bytes: u64,
    pub(crate) cache_bytes: u64,
    /// `None` for the default.
    pub(crate) line_bytes: Option<u32>,
    /// Members that the cluster can have at a time; `None` for the default.
    #[serde(default)]
    pub(crate) nodes_max: Option<u16>,
    /// Shares of the cache by line size, smallest first; `None` for the default.
    pub(crate) cache_shares: Option<[u8; LineSize::CLASSES]>,
    /// How long its threads spin before they sleep; `None` for the default.
    pub(crate) spin_ns: Option<u64>,
    /// The processor that its threads are bound to, if any.
    pub(crate) processor: Option<usize>,
    /// How it is reached over TCP; `None` for shared memory.
    pub(crate) host: Option<HostSpec>,
    /// It does not remove stopped nodes of its machine.
    pub(crate) keep_stopped: bool,
}

/// A fabric between hosts, of a worker.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct HostSpec {
    /// Which.
    pub(crate) fabric: HostFabric,
    /// Over verbs, the device that was asked for, and how it is used.
    pub(crate) rdma: Rdma,
    /// Where it listens; port 0 is any that is free.
    pub(crate) listen: SocketAddr,
    /// Where nodes of the cluster are reached.
    pub(crate) hosts: Vec<SocketAddr>,
    /// What is protected, with the key that the worker was started with.
    pub(crate) protect: Option<Protection>,
}

impl HostSpec {
    /// The fabric, and where it is reached.
    pub(crate) fn fabric(
        &self,
        key: Option<&Path>,
        spin_ns: Option<u64>,
    ) -> Result<(Arc<dyn Fabric>, SocketAddr), Failure> {
        let usual = FabricOptions::new(self.fabric.scheme());
        let spin = spin_ns.map_or(usual.spin, Duration::from_nanos).min(usual.spin);
        let options = usual
            .listen(Some(Endpoint::from(self.listen)))
            .hosts(self.hosts.iter().copied().map(Endpoint::from).collect())
            .security(choice::host_security(self.fabric, key, self.protect)?)
            .lease(LEASE)
            .spin(spin);
        hosts::open(&self.rdma.apply(options))
    }
}

impl NodeSpec {
    /// A node for a measurement, of a cluster that nobody else uses.
    pub(crate) fn bench(what: &str, spin_ns: Option<u64>, processor: Option<usize>) -> Self {
        Self {
            cluster: format!("bench-{what}-{}", std::process::id()),
            create: true,
            memory_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            line_bytes: None,
            nodes_max: None,
            cache_shares: None,
            spin_ns,
            processor,
            host: None,
            keep_stopped: false,
        }
    }

    /// The facade's form.
    pub(crate) fn config(&self) -> Result<Config, Failure> {
        let mut config = Config::new(self.cluster.as_str());
        config.memory_bytes = self.memory_bytes;
        config.cache_bytes = self.cache_bytes;
        config.limits.nodes_max = self.nodes_max.unwrap_or(config.limits.nodes_max);
        if let Some(bytes) = self.line_bytes {
            let line = usize::try_from(bytes).ok().and_then(LineSize::from_bytes);
            config.line_size = line.ok_or_else(|| {
                Failure::from(farside::Error::new(farside::ErrorCode::BadLineSize))
            })?;
        }
        if let Some(shares) = self.cache_shares {
            config.cache_shares = shares;
        }
        if let Some(spin_ns) = self.spin_ns {
            config.spin_ns = spin_ns;
        }
        config.remove_stopped = !self.keep_stopped;
        Ok(config)
    }
}

/// A path, also one that is no UTF-8.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "PathForm", into = "PathForm")]
pub(crate) struct WirePath(pub(crate) PathBuf);

/// A path on the wire: its text, or the bytes of one that is no UTF-8.
#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum PathForm {
    Text(String),
    Bytes(Vec<u8>),
}

impl From<PathForm> for WirePath {
    fn from(form: PathForm) -> Self {
        Self(match form {
            PathForm::Text(text) => text.into(),
            PathForm::Bytes(bytes) => OsString::from_vec(bytes).into(),
        })
    }
}

impl From<WirePath> for PathForm {
    fn from(path: WirePath) -> Self {
        match path.0.into_os_string().into_string() {
            Ok(text) => Self::Text(text),
            Err(bytes) => Self::Bytes(bytes.into_vec()),
        }
    }
}

/// What a parent asks. Each is answered by `Done` or `Failed`, perhaps after `Progress`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
pub(crate) enum Command {
    /// Start the node; the answer is its number.
    Start(NodeSpec),
    /// Wait until so many nodes are alive.
    Meet { nodes: usize },
    /// Say what the node has done.
    Stats,
    /// Allocate so much at this node; the answer is its address.
    Allocate { bytes: u64 },
    /// Write the first word of so many lines from `address` on.
    Touch { address: u64, lines: u64 },
    /// Be the other end of a link of the bare fabric, beside any node. Answered when it listens.
    Serve { listen: String, mode: Mode, processor: Option<usize> },
    /// Be an end of a data channel, beside any node. Answered when it listens, with where it does, or
    /// asks to be connected.
    Channel(Task),
    /// Let that end go. Answered when it is gone, with what went wrong with it.
    EndChannel,
    /// Make a hash table over these nodes; the answer is its root.
    CreateTable { nodes: Vec<u16>, record_line_bytes: Option<u32> },
    /// Open the hash table with this root.
    OpenTable { root: u64 },
    /// Run calls of others on the node's memory; the answer is where.
    ServeCalls,
    /// Insert one share of a workload's records.
    Load(Share),
    /// Run one share of a workload's operations.
    Run(Share),
    /// Look every record of a share up and check what is found.
    Verify(Share),
    /// Count the words of one share of the files in the hash table.
    Words { files: Vec<WirePath>, part: u32, parts: u32 },
    /// Take more text to count; at `end`, count all that was taken. No word goes on after that.
    Text { text: String, end: bool },
    /// Tell every word of the hash table and its count.
    AllWords,
    /// Leave the cluster and end.
    Leave,
}

/// One node's share of a workload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Share {
    /// The workload, as lines of a property file of YCSB.
    pub(crate) properties: String,
    /// Which share of how many.
    pub(crate) part: u64,
    pub(crate) parts: u64,
    pub(crate) threads: u16,
    pub(crate) seed: u64,
    /// Where to write every operation as a line of JSON.
    pub(crate) history: Option<WirePath>,
    /// How many records each share has inserted before, beyond the loaded ones.
    pub(crate) inserted: Vec<u64>,
    /// Where reads go by calls, if they do.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) executors: Vec<Executor>,
}

/// An executor of calls that is part of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub(crate) struct Executor {
    pub(crate) node: u16,
    pub(crate) address: String,
}

/// What a worker answers.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(crate) enum Event {
    /// So much more of the work is done.
    Progress { more: u64 },
    /// The command is done.
    Done { answer: Answer },
    /// The command failed; the node is as it was.
    Failed { failure: Failure },
}

/// The result of a command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Answer {
    /// Nothing to tell.
    Nothing,
    /// The node's number, and where it is reached if others than this machine reach it.
    Node { number: u16, at: Option<SocketAddr> },
    /// Where a fabric listens if others than this machine reach it.
    Listens(Option<SocketAddr>),
    /// Where calls are run.
    Executor(Executor),
    /// What the node has done.
    Stats(NodeStats),
    /// An address, for example of the root of a hash table.
    Address(u64),
    /// What became of a share of a workload.
    Ran(Ran),
    /// What looking records up found.
    Verified(Verified),
    /// Words and counts, in no order.
    Words(Vec<(String, u64)>),
}

impl Answer {
    /// The answers of two threads as one.
    pub(crate) fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Ran(one), Self::Ran(two)) => Self::Ran(one.and(two)),
            (Self::Verified(one), Self::Verified(two)) => Self::Verified(one.and(two)),
            (one, _) => one,
        }
    }
}

/// What became of a share of a workload.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Ran {
    pub(crate) elapsed_ns: u64,
    /// For each kind of operation, its latencies: value in nanoseconds, how many.
    pub(crate) latencies: BTreeMap<String, Vec<(u64, u64)>>,
    /// Operations that found no record.
    pub(crate) absent: u64,
    /// Operations that found what nobody had written.
    pub(crate) wrong: u64,
    /// Operations that failed.
    pub(crate) errors: u64,
    /// Why the first of them did.
    pub(crate) first_error: Option<String>,
    /// What became of reads, where they went by calls.
    #[serde(default)]
    pub(crate) lookups: Option<Looked>,
}

/// What became of reads of which some went by calls, as it travels and as `--json` shows it.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Looked {
    /// By one call, in one round trip.
    pub(crate) answered: u64,
    /// Without one: the bucket was at the own node, or the key too long.
    pub(crate) direct: u64,
    /// Again without one: the bucket was split,
    pub(crate) moved: u64,
    /// the record was replaced meanwhile,
    pub(crate) stale: u64,
    /// it was too large,
    pub(crate) large: u64,
    /// or the call failed.
    pub(crate) failed: u64,
    /// Why the last one did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) last_error: Option<String>,
}

impl Looked {
    /// Both together.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            answered: self.answered + other.answered,
            direct: self.direct + other.direct,
            moved: self.moved + other.moved,
            stale: self.stale + other.stale,
            large: self.large + other.large,
            failed: self.failed + other.failed,
            last_error: self.last_error.or(other.last_error),
        }
    }
}

impl From<&Lookups> for Looked {
    fn from(lookups: &Lookups) -> Self {
        let stats = lookups.stats();
        Self {
            answered: stats.answered,
            direct: stats.direct,
            moved: stats.moved,
            stale: stats.stale,
            large: stats.large,
            failed: stats.failed,
            last_error: lookups.last_error().map(ToString::to_string),
        }
    }
}

impl Ran {
    /// Both together; the longer one tells the time.
    fn and(mut self, other: Self) -> Self {
        self.elapsed_ns = self.elapsed_ns.max(other.elapsed_ns);
        for (kind, counted) in other.latencies {
            self.latencies.entry(kind).or_default().extend(counted);
        }
        self.absent += other.absent;
        self.wrong += other.wrong;
        self.errors += other.errors;
        self.first_error = self.first_error.or(other.first_error);
        self.lookups = match (self.lookups, other.lookups) {
            (Some(one), Some(two)) => Some(one.and(two)),
            (one, two) => one.or(two),
        };
        self
    }
}

/// What looking records up found.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Verified {
    /// Found, and what somebody had written.
    pub(crate) right: u64,
    /// Found, and nothing that anybody had written.
    pub(crate) wrong: u64,
    /// Not there, though nothing was lost.
    pub(crate) missing: u64,
    /// Answered by a typed error, by its name.
    pub(crate) errors: BTreeMap<String, u64>,
}

impl Verified {
    /// Both together.
    pub(crate) fn and(mut self, other: Self) -> Self {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missing += other.missing;
        add(&mut self.errors, other.errors);
        self
    }
}

/// Adds counts by name.
fn add(to: &mut BTreeMap<String, u64>, more: BTreeMap<String, u64>) {
    for (name, count) in more {
        *to.entry(name).or_default() += count;
    }
}

/// The facade's counters, as they travel and as `--json` shows them.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct NodeStats {
    pub(crate) hits: u64,
    pub(crate) misses: u64,
    pub(crate) invalidations: u64,
    pub(crate) evictions: u64,
    pub(crate) messages_sent: u64,
    pub(crate) messages_received: u64,
    pub(crate) bytes_placed: u64,
    pub(crate) work_requests: u64,
    pub(crate) doorbells: u64,
    pub(crate) sleeps: u64,
    pub(crate) locks: u64,
    pub(crate) removals: u64,
    pub(crate) quarantined_members: u64,
    pub(crate) quarantined_bytes: u64,
    pub(crate) memory_free_bytes: u64,
}

impl From<Stats> for NodeStats {
    fn from(stats: Stats) -> Self {
        Self {
            hits: stats.hits,
            misses: stats.misses,
            invalidations: stats.invalidations,
            evictions: stats.evictions,
            messages_sent: stats.messages_sent,
            messages_received: stats.messages_received,
            bytes_placed: stats.bytes_placed,
            work_requests: stats.work_requests,
            doorbells: stats.doorbells,
            sleeps: stats.sleeps,
            locks: stats.locks,
            removals: stats.removals,
            quarantined_members: stats.quarantined_members,
            quarantined_bytes: stats.quarantined_bytes,
            memory_free_bytes: stats.memory_free_bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_any_bytes_come_back() {
        let path = |bytes: &[u8]| WirePath(OsString::from_vec(bytes.to_vec()).into());
        for (bytes, line) in [(&b"a/b"[..], "\"a/b\""), (b"caf\xe9", "[99,97,102,233]")] {
            assert_eq!(serde_json::to_string(&path(bytes)).unwrap(), line);
            assert_eq!(serde_json::from_str::<WirePath>(line).unwrap(), path(bytes));
        }
    }

    #[test]
    fn lines_are_what_the_other_side_reads() {
        let command = Command::Meet { nodes: 3 };
        let line = serde_json::to_string(&command).unwrap();
        assert_eq!(line, r#"{"command":"meet","nodes":3}"#);
        assert_eq!(serde_json::from_str::<Command>(&line).unwrap(), command);
        let at = Some("127.0.0.1:7".parse().unwrap());
        let event = Event::Done { answer: Answer::Node { number: 2, at } };
        let line = serde_json::to_string(&event).unwrap();
        assert_eq!(serde_json::from_str::<Event>(&line).unwrap(), event);
    }
}
