//! The configuration of a node.

use crate::Error;
use crate::durable::StateOptions;
use crate::operation::WRITES_IN_FLIGHT_MOST;
use crate::setters::setters;
use farside_base::{ErrorCode, GlobalAddress, Limits, LineSize, NodeId, NodeSet};
use farside_protocol::allocate::StateNeeds;
use farside_protocol::member::Leases;
use std::path::PathBuf;

const MEMORY_BYTES_MAX: u64 = 1 << GlobalAddress::OFFSET_BITS;

/// The least `cache_bytes`.
const CACHE_BYTES_MIN: u64 = 4_096;

/// The cache has room for at least this many lines of the default size.
const CACHED_LINES_MIN: u64 = 8;

/// The configuration of a node. Start from [`Config::new`], and set fields or call the methods of their
/// names.
///
/// ```
/// use farside::Config;
///
/// let config = Config::new("lab").memory_bytes(4 << 20).cache_bytes(1 << 20);
/// assert!(config.check().is_ok());
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Config {
    /// The cluster's name: 1 to 64 letters, digits, `-`, `_` or `.`.
    pub cluster: String,
    /// Bytes of global memory that this node is home of; zero for a node that only uses the memory of
    /// others. The node is refused if the machine, its control groups or RLIMIT_AS leave less for it and
    /// the cache.
    pub memory_bytes: u64,
    /// Maximum bytes of other nodes' lines that this node caches: at least 8 lines of `line_size`. Lines of
    /// all sizes share it; a size without room for 8 lines is not cached, and access to it fails with
    /// `CacheFull`. What the node knows about each line takes up to 40 B more.
    pub cache_bytes: u64,
    /// The line size of allocations without an explicit one.
    pub line_size: LineSize,
    /// The cluster's limits; equal on all nodes, except for `nodes_max`, which joiners learn from the
    /// cluster.
    pub limits: Limits,
    /// How long a waiting thread spins before it sleeps.
    pub spin_ns: u64,
    /// Whether sessions read lines of other homes directly where the processor reaches them by loads (over
    /// `shm`), and lend this node's memory for that. If false, they get them by messages and cache them.
    pub direct_reads: bool,
    /// Between hosts: how long a lost link is redialled before its member counts as unreachable. Operations
    /// wait meanwhile, and continue when the link is back. The fabric first detects a silent member, after
    /// its own lease (1 s by default). The founder sets both; joiners learn them from the cluster
    /// ([`Node::lease`](crate::Node::lease)).
    ///
    /// *Guarantees*: an outage shorter than both leases together removes no member. *Cost*: if a member is
    /// silent for longer, operations on its memory fail after the sum of the fabric's lease, this lease, a
    /// quarter of the fabric's lease, one second in which hosts resolve each other's addresses once a cable
    /// is back (not on the loopback), one more dial (half this lease and 0.15 s), the vote (some round
    /// trips), and one and a quarter of the fabric's lease until the cache of the lost member is no longer
    /// trusted. With the defaults that is 4.9 to 5.2 s after the loss. The end of a process is detected at
    /// once if it has answered a membership query of this node within this lease (each node sends four in
    /// it); otherwise it counts as silent.
    ///
    /// If two members cannot reach each other and the coordinator reaches both, one of them is removed: the
    /// one with more such links, else a program without memory, else a witness, else the one that joined last.
    pub lease_ns: u64,
    /// On one machine: whether this node removes members that are stopped for `lease_ns`: their process or
    /// a thread of it is stopped by a signal or a debugger, or frozen. Otherwise operations wait until they
    /// continue: set it to false on all nodes to debug one of them.
    ///
    /// *Guarantees*: a removed member returns no stale data and acknowledges nothing when it continues. A
    /// member whose runnable threads get no processor is removed after eight such leases, and 8 s, at the
    /// earliest; one in another PID namespace after 2 s. Members that their callers drive
    /// ([`Joining`](crate::Joining)) are not removed for it.
    pub remove_stopped: bool,
    /// The default timeout of a session's calls, after which they fail with `TimedOut`; `None` for no
    /// bound. See [`Session::set_timeout`](crate::Session::set_timeout).
    pub timeout_ns: Option<u64>,
    /// The maximum age of the last write to an owned line of another home before it is written back.
    /// `None`: it is written back when another node wants it or its frame is needed.
    ///
    /// *Guarantees*: data that was fenced, or written under a lock that was released since, survives the
    /// death of this node, if its line was last written longer ago than this. The time extends by the
    /// home's time to answer (two messages each way); by half of this time and more while messages to the
    /// home wait for credits or for a link; while an atomic of several lines holds the line; while more
    /// than 64 KiB wait for it in one poll of the engine; and in a pause: if lines that were written back
    /// are written again so soon that requesting them takes more than a quarter of the time, write-back
    /// pauses until that is over and for 4 to 32 times this time more. Younger data is lost with this node,
    /// and older bytes of the same line with it: other nodes get `LineLost` until all of the line is
    /// overwritten ([`Session::write`](crate::Session::write)) or the memory is freed.
    /// *Cost*: four messages and the line's bytes for each line that goes unwritten for half of this time,
    /// and one round trip for its next write; nothing for hits, and one check by the engine in each half
    /// for lines that are written more often. A node that owns no line is not woken for it.
    pub write_back_ns: Option<u64>,
    /// The folder of this node's state: its memory is kept there and survives its process, and its addresses stay valid
    /// when a node with this state returns. `None`: its memory is volatile. One process uses a folder at a time.
    ///
    /// *Guarantees*: what was fenced is as durable as the folder's file system ([`durable::promise_of`]); what was not is
    /// there or not, each write within a line as a whole. No other node reads what is not durable. *Cost*: this node's
    /// memory a second time, a log of at most ten times its memory and mostly about twice what is allocated, and a group
    /// commit for each fence and each line that goes to another node.
    ///
    /// [`durable::promise_of`]: crate::durable::promise_of
    pub state: Option<PathBuf>,
    /// Whether the folder of `state` is on persistent memory, in a file system that is mounted with `-o dax`: the state is
    /// written by stores then, and a commit makes no system call. Elsewhere starting fails with `BadConfiguration`. See
    /// [`PersistentDevice`](crate::durable::PersistentDevice).
    pub persistent_memory: bool,
    /// Addresses of memory that other processes lend exclusively (`farside lend --exclusive`), and files of this machine
    /// (`file:PATH`): this node's state is kept there, a copy in each, and not in a folder. A node with this state can be
    /// started on any machine that reaches enough of them.
    ///
    /// *Guarantees*: what was fenced survives this node and all but one of the copies that are left; and a loss of power with
    /// a file on a disk, after which `state_copies_min` says that it is enough. Elsewhere the file is missing, so a standby on
    /// another machine needs `state_copies_min` too. A copy that is lost ends the node
    /// (`DeviceFailed`), unless `state_copies_min` lets it go on ([`Node::lost_copies`](crate::Node::lost_copies)); start it
    /// again with the others and a new one. *Cost*: a fence waits for one round trip more, and
    /// for a sync of each file. Each process lends at least [`copy_bytes`](Self::copy_bytes).
    pub state_copies: Vec<String>,
    /// The least copies to start with, if others are lost; `None`: all that the state had. With fewer, you guarantee that
    /// no node starts from the missing ones alone: all processes of the state say the same number. If it is more than half of
    /// the copies (two of three), the node also continues when copies are lost, as long as this number is left.
    pub state_copies_min: Option<usize>,
    /// Whether this node is a witness: a member that counts in the quorums of its cluster, and does nothing else. Two
    /// nodes that lend memory and a witness survive the loss of any one of the three, or of one link, if the witness was admitted last. It lends no memory
    /// and keeps no state; [`Node::session`](crate::Node::session) is refused. `cache_bytes` and `line_size` have no
    /// effect.
    ///
    /// *Guarantees*: a witness alone never removes a silent member that lends memory. *Cost*: a process that
    /// sleeps, and four membership queries, each answered, per lease and member. Between hosts only: over `shm` members do not vote,
    /// and starting one fails with `BadConfiguration`.
    pub witness: bool,
    /// How long calls that need a node with state wait for its return while it is away, before they fail with `HomeAway`:
    /// all accesses, allocations, names, and the forms of locking that wait. What was locked there when it crashed is not
    /// locked any more; a node that leaves waits for its locks. Allocations and names also wait for a member that is not
    /// linked yet.
    pub return_timeout_ns: u64,
    /// How long [`Node::open`](crate::Node::open) waits for a cluster that it does not found.
    pub join_timeout_ns: u64,
    /// The timeout of [`Node::leave`](crate::Node::leave), which waits for the other nodes; `None`: twice
    /// as long as the removal of a silent member takes, and at least 5 s. A node with state waits for half of it more, before
    /// that, until what is locked there is unlocked; locks that are still held end then. Keep that half shorter than
    /// `return_timeout_ns` of the others, who wait meanwhile.
    pub leave_timeout_ns: Option<u64>,
}

setters!(Config {
    memory_bytes: u64,
    cache_bytes: u64,
    line_size: LineSize,
    limits: Limits,
    spin_ns: u64,
    direct_reads: bool,
    lease_ns: u64,
    remove_stopped: bool,
    timeout_ns: Option<u64>,
    write_back_ns: Option<u64>,
    state: Option<PathBuf>,
    persistent_memory: bool,
    state_copies: Vec<String>,
    state_copies_min: Option<usize>,
    witness: bool,
    return_timeout_ns: u64,
    join_timeout_ns: u64,
    leave_timeout_ns: Option<u64>,
});

/// The default of `write_back_ns`.
const WRITE_BACK_NS: u64 = 1_000_000_000;
/// The default of `return_timeout_ns`.
const RETURN_TIMEOUT_NS: u64 = 10_000_000_000;
/// The default of `join_timeout_ns`.
const JOIN_TIMEOUT_NS: u64 = 10_000_000_000;

impl Config {
    /// The defaults: 256 MiB of memory, 64 MiB of cache, 512 B lines.
    pub fn new(cluster: impl Into<String>) -> Self {
        Self {
            cluster: cluster.into(),
            memory_bytes: 256 << 20,
            cache_bytes: 64 << 20,
            line_size: LineSize::DEFAULT,
            limits: Limits::DEFAULT,
            spin_ns: farside_base::waiting::NODE_SPIN_NS,
            direct_reads: true,
            lease_ns: 1_000_000_000,
            remove_stopped: true,
            timeout_ns: None,
            write_back_ns: Some(WRITE_BACK_NS),
            state: None,
            persistent_memory: false,
            state_copies: Vec::new(),
            state_copies_min: None,
            witness: false,
            return_timeout_ns: RETURN_TIMEOUT_NS,
            join_timeout_ns: JOIN_TIMEOUT_NS,
            leave_timeout_ns: None,
        }
    }

    /// The bytes of the cache: a witness has one of the least size.
    pub(crate) const fn cache_size(&self) -> u64 {
        if self.witness { CACHE_BYTES_MIN } else { self.cache_bytes }
    }

    /// Returns the bytes that each process of [`state_copies`](Self#structfield.state_copies) has to lend: about ten times
    /// `memory_bytes`, and some for small memories.
    ///
    /// # Errors
    /// `BadConfiguration` for `memory_bytes` out of its range.
    pub fn copy_bytes(&self) -> Result<u64, Error> {
        StateOptions::in_copies(self.memory_bytes).copy_bytes()
    }

    /// Whether the memory survives the node's process.
    pub(crate) const fn has_state(&self) -> bool {
        self.state.is_some() || !self.state_copies.is_empty()
    }

    /// Checks that memory, state and `witness` are compatible.
    fn check_memory(&self) -> Result<(), Error> {
        let bad = |detail: String| Err(Error::with(ErrorCode::BadConfiguration, detail));
        if self.state.is_some() && !self.state_copies.is_empty() {
            return bad("state and state_copies: a node's state is in one of them".to_owned());
        }
        if self.persistent_memory && self.state.is_none() {
            return bad(
                "persistent_memory: it is the memory of the folder state; set state".to_owned()
            );
        }
        if self.witness && self.memory_bytes > 0 {
            return bad(format!(
                "witness: a witness lends no memory, and memory_bytes is {}: set it to 0",
                self.memory_bytes
            ));
        }
        if self.witness && self.has_state() {
            return bad(
                "witness: a witness has no state: leave out state and state_copies".to_owned()
            );
        }
        if self.has_state() && self.memory_bytes == 0 {
            return bad("state: a node without memory has none; set memory_bytes".to_owned());
        }
        Ok(())
    }

    /// Checks the values. What the machine has for them is checked when a node starts.
    ///
    /// # Errors
    /// `BadConfiguration`, which names the setting, its value and its range.
    pub fn check(&self) -> Result<(), Error> {
        let bad = |detail: String| Err(Error::with(ErrorCode::BadConfiguration, detail));
        let name_fits = (1..=64).contains(&self.cluster.len())
            && self.cluster.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(&b));
        if !name_fits {
            return bad(format!(
                "cluster: 1 to 64 letters, digits, '-', '_' or '.', and it is {:?}",
                self.cluster
            ));
        }
        self.check_memory()?;
        let ranges = [
            ("memory_bytes", self.memory_bytes, 0, MEMORY_BYTES_MAX, "at most 4 TiB"),
            ("cache_bytes", self.cache_bytes, CACHE_BYTES_MIN, 1 << 37, "4 KiB to 128 GiB"),
            (
                "lease_ns",
                self.lease_ns,
                Leases::MEMBER_MIN_NS,
                Leases::MAX_NS,
                "10 ms to 10 minutes",
            ),
        ];
        let optional = [
            ("join_timeout_ns", Some(self.join_timeout_ns), 0, "at most 10 minutes"),
            ("return_timeout_ns", Some(self.return_timeout_ns), 0, "at most 10 minutes"),
            ("write_back_ns", self.write_back_ns, 100_000, "100 us to 10 minutes, or None"),
            ("leave_timeout_ns", self.leave_timeout_ns, 0, "at most 10 minutes"),
        ];
        let optional = optional.into_iter().filter_map(|(name, value, least, range)| {
            Some((name, value?, least, 600_000_000_000, range))
        });
        for (name, value, least, most, range) in ranges.into_iter().chain(optional) {
            if !(least..=most).contains(&value) {
                return bad(format!("{name}: {range}, and it is {value}"));
            }
        }
        let (writes, most) = (self.limits.writes_in_flight_max, WRITES_IN_FLIGHT_MOST);
        if !(1..=most).contains(&writes) {
            return bad(format!("limits.writes_in_flight_max: 1 to {most}, and it is {writes}"));
        }
        let (nodes_max, most) = (self.limits.nodes_max, NodeSet::CAPACITY);
        if !(1..=most).contains(&nodes_max.into()) {
            return bad(format!("limits.nodes_max: 1 to {most}, and it is {nodes_max}"));
        }
        let (line, lines) = (self.line_size.bytes() as u64, CACHED_LINES_MIN);
        if self.cache_bytes / line < lines {
            return bad(format!(
                "cache_bytes: {} B have no room for {lines} lines of {line} B: raise cache_bytes to at \
                 least {}, or lower line_size",
                self.cache_bytes,
                line * lines
            ));
        }
        Ok(())
    }
}

/// Where an allocation is placed (004 §2.1).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AllocationHint {
    /// At this node, or if it is short of memory at the node with most free memory.
    #[default]
    Default,
    /// At this node only.
    Local,
    /// At the other node with most free memory.
    Remote,
    /// At the home of this address.
    Near(GlobalAddress),
    /// At the node with this number.
    On(NodeId),
}

/// What an allocation survives, besides the nodes that only use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// Nothing is asked: it is lost with its home, unless that has state. Homes without state are preferred.
    #[default]
    Volatile,
    /// The process of its home, and what the home's state survives besides: its home is a node with state
    /// ([`Config::state`]).
    Logged,
    /// The machine of its home: the home's state is in at least this many memories that other processes lend, when the
    /// allocation is made ([`Config::state_copies`]). Zero means the same as `Logged`.
    Replicated(u8),
    /// Both, and a loss of power: one of the home's copies is besides in a file that survives it.
    LoggedAndReplicated(u8),
}

impl Durability {
    /// What the home has to have.
    pub(crate) const fn needs(self) -> StateNeeds {
        let (state, copies, survives_power) = match self {
            Self::Volatile => (false, 0, false),
            Self::Logged => (true, 0, false),
            Self::Replicated(copies) => (true, copies, false),
            Self::LoggedAndReplicated(copies) => (true, copies, true),
        };
        StateNeeds { state, copies, survives_power }
    }
}

/// Options for an allocation.
///
/// ```
/// use farside::{AllocationHint, AllocationSpec, LineSize};
///
/// let spec = AllocationSpec::new(AllocationHint::Local).line_size(Some(LineSize::MAX));
/// assert_eq!(spec.hint, AllocationHint::Local);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct AllocationSpec {
    /// The placement.
    pub hint: AllocationHint,
    /// The line size; `None` for the node's default.
    pub line_size: Option<LineSize>,
    /// What it survives.
    pub durability: Durability,
}

impl AllocationSpec {
    /// An allocation with this placement, of lines of the node's default size.
    pub const fn new(hint: AllocationHint) -> Self {
        Self { hint, line_size: None, durability: Durability::Volatile }
    }

    /// Sets [`durability`](Self#structfield.durability).
    #[must_use]
    pub const fn durability(self, durability: Durability) -> Self {
        Self { durability, ..self }
    }

    /// Sets [`hint`](Self#structfield.hint).
    #[must_use]
    pub const fn hint(self, hint: AllocationHint) -> Self {
        Self { hint, ..self }
    }

    /// Sets [`line_size`](Self#structfield.line_size).
    #[must_use]
    pub const fn line_size(self, line_size: Option<LineSize>) -> Self {
        Self { line_size, ..self }
    }
}
