//! Commands that run node processes on this machine or at agents, and those about channels and the machine.

use super::LaunchFabric;
use super::Places;
use farside::channel::Requirements;
use farside_bootstrap::Endpoint;
use std::ffi::OsString;
use std::path::PathBuf;

/// A demonstration: nodes, a workload, and a killed node.
#[derive(Debug)]
pub(crate) struct Demo {
    pub(crate) records: u64,
    /// Operations of each workload, all nodes together.
    pub(crate) operations: u64,
    pub(crate) nodes: u16,
    /// Threads of each node.
    pub(crate) threads: u16,
    pub(crate) places: Places,
}

/// A local cluster that programs join by name.
#[derive(Debug)]
pub(crate) struct Up {
    pub(crate) nodes: u16,
    /// Maximum number of members, including programs that join.
    pub(crate) nodes_max: u16,
    /// The cluster's name.
    pub(crate) name: String,
    /// Global memory of each node.
    pub(crate) memory_bytes: u64,
    /// Cache of each node.
    pub(crate) cache_bytes: u64,
    /// `None` for the default.
    pub(crate) line_bytes: Option<u32>,
    /// Whether nodes whose process ends are replaced.
    pub(crate) restart: bool,
    /// Whether nodes whose process is stopped remain members.
    pub(crate) keep_stopped: bool,
    pub(crate) places: Places,
}

/// A count of the words of files.
#[derive(Debug)]
pub(crate) struct Wordcount {
    pub(crate) files: Vec<PathBuf>,
    pub(crate) nodes: u16,
    pub(crate) places: Places,
}

/// A program that runs as several processes of one cluster.
#[derive(Debug)]
pub(crate) struct RunProgram {
    pub(crate) processes: u32,
    pub(crate) fabric: LaunchFabric,
    /// The program, and its arguments.
    pub(crate) command: Vec<OsString>,
}

/// An agent, which starts workers for commands on other hosts.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) listen: Endpoint,
    /// The file with the cluster's key.
    pub(crate) key: Option<PathBuf>,
    pub(crate) workers_max: u16,
    /// Whether it may run without a key, on a loopback address.
    pub(crate) insecure: bool,
}

/// A check of this machine.
#[derive(Debug)]
pub(crate) struct Doctor {
    /// Number of node processes that are planned on this machine.
    pub(crate) nodes: u16,
    /// Global memory of each node.
    pub(crate) memory_bytes: u64,
    /// A machine to check the route to.
    pub(crate) peer: Option<String>,
    /// The checks or groups to run, in detail; all if empty.
    pub(crate) only: Vec<String>,
    /// Whether the checks are only listed.
    pub(crate) list: bool,
}

/// A request for advice on channels.
#[derive(Debug)]
pub(crate) struct ChannelAdvice {
    pub(crate) requirements: Requirements,
    pub(crate) fabric: FabricName,
}

/// A fabric whose capabilities the advisor knows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum FabricName {
    /// Processes of this machine.
    Shm,
    /// InfiniBand or RoCE.
    Infiniband,
    /// InfiniBand or RoCE with adaptive routing.
    Adaptive,
    /// The Elastic Fabric Adapter: SEND and READ of one packet, in any order.
    Efa,
    /// 1RMA: READ of one packet, in any order.
    OneRma,
}

impl FabricName {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Infiniband => "infiniband",
            Self::Adaptive => "adaptive",
            Self::Efa => "efa",
            Self::OneRma => "1rma",
        }
    }
}
