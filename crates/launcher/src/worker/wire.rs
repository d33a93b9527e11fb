//! Protocol between a parent and its workers: one JSON object a line, commands on the worker's standard input,
//! events on its standard output.

use crate::ends::pair::Mode;
use crate::ends::task::Task;
use farside::{Config, LineSize, Stats};
use farside_apps::dht::Lookups;
use farside_command::failure::Failure;
use farside_command::host_fabric::HostSpec;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::SocketAddr;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// How a worker's node is set up.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct NodeSpec {
    /// The cluster's name.
    pub cluster: String,
    /// Whether the node starts the cluster; otherwise it joins.
    pub create: bool,
    /// Global memory of the node.
    pub memory_bytes: u64,
    /// Cache of the node.
    pub cache_bytes: u64,
    /// `None` for the default.
    pub line_bytes: Option<u32>,
    /// Most members of the cluster at a time; `None` for the default.
    #[serde(default)]
    pub nodes_max: Option<u16>,
    /// Spin budget of its threads; `None` for the default.
    pub spin_ns: Option<u64>,
    /// The processor that its threads are bound to, if any.
    pub processor: Option<usize>,
    /// Its fabric between hosts; `None` for shared memory.
    pub host: Option<HostSpec>,
    /// Whether the node does not remove stopped nodes of its machine.
    pub keep_stopped: bool,
    /// The folder of its state, on its host; `None` for volatile memory or copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<WirePath>,
    /// Addresses of the copies of its state in lent memory; empty for volatile memory or a folder.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub state_copies: Vec<String>,
}

impl NodeSpec {
    /// Returns the spec of a node for a measurement, in a cluster of its own.
    pub fn bench(what: &str, spin_ns: Option<u64>, processor: Option<usize>) -> Self {
        Self {
            cluster: format!("bench-{what}-{}", std::process::id()),
            create: true,
            memory_bytes: 64 << 20,
            cache_bytes: 64 << 20,
            line_bytes: None,
            nodes_max: None,
            spin_ns,
            processor,
            host: None,
            keep_stopped: false,
            state: None,
            state_copies: Vec::new(),
        }
    }

    /// Returns the node's configuration for the facade.
    pub fn config(&self) -> Result<Config, Failure> {
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
        if let Some(spin_ns) = self.spin_ns {
            config.spin_ns = spin_ns;
        }
        config.remove_stopped = !self.keep_stopped;
        config.state = self.state.as_ref().map(|WirePath(folder)| folder.clone());
        config.state_copies.clone_from(&self.state_copies);
        Ok(config)
    }
}

/// A path, which need not be UTF-8.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(from = "PathForm", into = "PathForm")]
pub struct WirePath(pub PathBuf);

/// A path on the wire: text, or bytes if it is not UTF-8.
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

/// A command of a parent. The worker answers `Done` or `Failed`, possibly after `Progress`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
#[allow(missing_docs, reason = "the sentence of a command says what its fields are")]
pub enum Command {
    /// Start the node; the answer is its number.
    Start(NodeSpec),
    /// Wait until the cluster has `nodes` living members.
    Meet { nodes: usize },
    /// Return the node's counters.
    Stats,
    /// Allocate memory at this node; the answer is its address.
    Allocate { bytes: u64 },
    /// Write the first word of each of `lines` lines from `address` on.
    Touch { address: u64, lines: u64 },
    /// Run the other end of a link of the bare fabric, independent of any node. Answered when it listens.
    Serve { listen: String, mode: Mode, processor: Option<usize> },
    /// Run an end of a data channel, independent of any node. Answered when it listens, with its address, or
    /// when it has sent its connection request.
    Channel(Task),
    /// Stop that end. Answered when it has ended, with its failure if there was one.
    EndChannel,
    /// Create a hash table over these nodes, `logged` in memory of nodes with state; the answer is its root.
    CreateTable {
        nodes: Vec<u16>,
        record_line_bytes: Option<u32>,
        #[serde(default)]
        logged: bool,
    },
    /// Open the hash table with this root.
    OpenTable { root: u64 },
    /// Start an executor of calls on the node's memory; the answer is its address.
    ServeCalls,
    /// Insert one share of a workload's records.
    Load(Share),
    /// Run one share of a workload's operations.
    Run(Share),
    /// Read and check every record of a share.
    Verify(Share),
    /// Count the words of one share of the files in the hash table.
    Words { files: Vec<WirePath>, part: u32, parts: u32 },
    /// Receive more text to count; with `end`, count all of it. No word continues after that.
    Text { text: String, end: bool },
    /// Return every word of the hash table and its count.
    AllWords,
    /// Work on a graph that all nodes share.
    Graph(GraphTask),
    /// Leave the cluster and end.
    Leave,
}

/// Work on a graph that all nodes share.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(missing_docs, reason = "the sentence of a task says what its fields are")]
pub enum GraphTask {
    /// Generate the graph, and share it as the member with number `rank` of `members`. Every member is asked at once.
    Build { scale: u32, edge_factor: u32, seed: u64, rank: usize, members: usize },
    /// Run a kernel on this process's own copy, for one thread; later checks compare with its result.
    Sequential(Kernel),
    /// Run a kernel on the shared graph. Every member is asked at once.
    Shared(Kernel, GraphForm),
    /// Compare the last result of the shared graph with that of the sequential kernel.
    Check(Kernel),
}

/// A kernel on a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kernel {
    /// Breadth-first search from the vertex with the most edges.
    Bfs,
    /// PageRank, with this number of iterations.
    PageRank(u32),
    /// Connected components.
    Components,
}

/// How a kernel accesses a shared graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GraphForm {
    /// Ranges.
    Bulk,
    /// Each element by itself.
    Words,
}

/// The size of a graph.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct GraphSize {
    /// Its vertices.
    pub vertices: u64,
    /// Its edges, without loops and repetitions.
    pub edges: u64,
}

/// One node's share of a workload.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Share {
    /// The workload, as lines of a property file of YCSB.
    pub properties: String,
    /// Number of this share.
    pub part: u64,
    /// Number of shares.
    pub parts: u64,
    /// Threads of this node.
    pub threads: u16,
    /// Seed of the random number generator.
    pub seed: u64,
    /// File to write every operation to, as a line of JSON.
    pub history: Option<WirePath>,
    /// Records that each share has inserted before, in addition to the loaded ones.
    pub inserted: Vec<u64>,
    /// Executors for reads by calls; empty if reads are done without.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub executors: Vec<Executor>,
}

/// The executor of calls of a node.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Executor {
    /// The node that it is part of.
    pub node: u16,
    /// Its address.
    pub address: String,
}

/// A message of a worker.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "event")]
pub(crate) enum Event {
    /// Units of work done since the last report.
    Progress { more: u64 },
    /// The command is done.
    Done { answer: Answer },
    /// The command failed; the node is as it was.
    Failed { failure: Failure },
}

/// The result of a command.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// No result.
    Nothing,
    /// The node's number, and its address if its fabric is between hosts.
    Node {
        /// Its number.
        number: u16,
        /// Its address, between hosts.
        at: Option<SocketAddr>,
    },
    /// The address that a fabric listens at if it is between hosts.
    Listens(Option<SocketAddr>),
    /// The node's executor of calls.
    Executor(Executor),
    /// The node's counters.
    Stats(NodeStats),
    /// An address, for example of the root of a hash table.
    Address(u64),
    /// Result of a share of a workload.
    Ran(Ran),
    /// Result of a check of records.
    Verified(Verified),
    /// Words and counts, in no order.
    Words(Vec<(String, u64)>),
    /// The size of a graph.
    Graph(GraphSize),
    /// The time that something took.
    ElapsedNs(u64),
}

impl Answer {
    /// Merges the answers of two threads.
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Nothing, one) | (one, Self::Nothing) => one,
            (Self::Ran(one), Self::Ran(two)) => Self::Ran(one.and(two)),
            (Self::Verified(one), Self::Verified(two)) => Self::Verified(one.and(two)),
            (one, _) => one,
        }
    }
}

/// Result of a share of a workload.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Ran {
    /// Time from the first operation to the end of the last.
    pub elapsed_ns: u64,
    /// Latencies by kind of operation: value in nanoseconds, and number of operations.
    pub latencies: BTreeMap<String, Vec<(u64, u64)>>,
    /// Operations that found no record.
    pub absent: u64,
    /// Operations that found a value that no operation had written.
    pub wrong: u64,
    /// Operations that failed.
    pub errors: u64,
    /// Why the first of them failed.
    pub first_error: Option<String>,
    /// Results of reads by calls, with `--by-call`.
    #[serde(default)]
    pub lookups: Option<LookupStats>,
}

/// How reads were done with `--by-call`, on the wire and in `--json`.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct LookupStats {
    /// By one call, in one round trip.
    pub answered: u64,
    /// Without a call: the bucket was at this node, or the key was too long.
    pub direct: u64,
    /// Repeated without a call, because the bucket had been split.
    pub moved: u64,
    /// Repeated without a call, because the record was replaced meanwhile.
    pub stale: u64,
    /// Repeated without a call, because the record was too large.
    pub large: u64,
    /// Repeated without a call, because the call failed.
    pub failed: u64,
    /// Why the last call failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
}

impl LookupStats {
    /// Adds both.
    pub fn and(self, other: Self) -> Self {
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

impl From<&Lookups> for LookupStats {
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
    /// Adds both; the elapsed time is the longer one.
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

/// Result of a check of records.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Verified {
    /// Records with a value that was written.
    pub right: u64,
    /// Records with a value that was never written.
    pub wrong: u64,
    /// Records that were not found, without an error.
    pub missing: u64,
    /// Records whose read failed, by the name of the error.
    pub errors: BTreeMap<String, u64>,
    /// Digest of the keys and values that were found: equal for equal records, in whichever order they were read.
    #[serde(default)]
    pub digest: u64,
}

impl Verified {
    /// Adds a record to the digest.
    pub(super) fn digest(&mut self, key: &[u8], value: &[u8]) {
        let mut hasher = DefaultHasher::new();
        (key, value).hash(&mut hasher);
        self.digest = self.digest.wrapping_add(hasher.finish());
    }

    /// Adds both.
    pub fn and(mut self, other: Self) -> Self {
        self.right += other.right;
        self.wrong += other.wrong;
        self.missing += other.missing;
        self.digest = self.digest.wrapping_add(other.digest);
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

/// The facade's counters, on the wire and in `--json`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct NodeStats {
    /// Line accesses served by a tag check and a copy.
    pub hits: u64,
    /// Line accesses that needed the engine.
    pub misses: u64,
    /// Lines of other homes read in their memory.
    pub direct_reads: u64,
    /// Cached lines lost to other nodes' writes.
    pub invalidations: u64,
    /// Cached lines that were replaced.
    pub evictions: u64,
    /// Messages to other nodes.
    pub messages_sent: u64,
    /// Messages from other nodes.
    pub messages_received: u64,
    /// Bytes of lines placed at other nodes.
    pub bytes_placed: u64,
    /// Posted work requests.
    pub work_requests: u64,
    /// Doorbells: `post` calls.
    pub doorbells: u64,
    /// Times a thread of this node went to sleep.
    pub sleeps: u64,
    /// Locks granted.
    pub locks: u64,
    /// Stopped members of this machine that this node has removed.
    pub removals: u64,
    /// Members removed during a copy into memory of this node that may still land.
    pub quarantined_members: u64,
    /// Bytes withheld until then: cache frames, and freed memory.
    pub quarantined_bytes: u64,
    /// Free bytes of its global memory.
    pub memory_free_bytes: u64,
}

impl From<Stats> for NodeStats {
    fn from(stats: Stats) -> Self {
        Self {
            hits: stats.hits,
            misses: stats.misses,
            direct_reads: stats.direct_reads,
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
    fn paths_of_any_bytes_decode_to_themselves() {
        let path = |bytes: &[u8]| WirePath(OsString::from_vec(bytes.to_vec()).into());
        for (bytes, line) in [(&b"a/b"[..], "\"a/b\""), (b"caf\xe9", "[99,97,102,233]")] {
            assert_eq!(serde_json::to_string(&path(bytes)).unwrap(), line);
            assert_eq!(serde_json::from_str::<WirePath>(line).unwrap(), path(bytes));
        }
    }

    #[test]
    fn digest_depends_on_records_and_not_on_their_order() {
        let of = |records: &[[&str; 2]]| {
            let mut found = Verified::default();
            for [key, value] in records {
                found.digest(key.as_bytes(), value.as_bytes());
            }
            found
        };
        let both = of(&[["a", "1"], ["b", "2"]]);
        assert_eq!(both, of(&[["b", "2"]]).and(of(&[["a", "1"]])));
        for other in [&[["a", "1"]][..], &[["a", "2"], ["b", "1"]], &[["a1", ""], ["b", "2"]]] {
            assert_ne!(of(other).digest, both.digest, "{other:?}");
        }
    }

    #[test]
    fn state_of_a_node_reaches_its_configuration() {
        let volatile = NodeSpec::bench("state", None, None);
        let line = serde_json::to_string(&volatile).unwrap();
        assert!(!line.contains("\"state"), "{line}");
        assert_eq!(serde_json::from_str::<NodeSpec>(&line).unwrap(), volatile);
        let state_copies = vec!["a".to_owned(), "b".to_owned()];
        let copied = NodeSpec { state_copies: state_copies.clone(), ..volatile.clone() };
        let kept = NodeSpec { state: Some(WirePath("folder".into())), ..volatile.clone() };
        for spec in [&volatile, &copied, &kept] {
            let line = serde_json::to_string(spec).unwrap();
            assert_eq!(serde_json::from_str::<NodeSpec>(&line).unwrap(), *spec);
        }
        assert_eq!(copied.config().unwrap().state_copies, state_copies);
        assert_eq!(kept.config().unwrap().state, Some("folder".into()));
        assert!(volatile.config().unwrap().state.is_none());
    }

    #[test]
    fn lines_decode_to_the_same_values() {
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
