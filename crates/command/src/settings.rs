//! Fabrics of commands: which one, the device, what TLS protects, and the hosts of node processes.

use crate::failure::Failure;
use farside::fabrics::{Device, FabricOptions, Scheme};
use farside_bootstrap::Endpoint;
use farside_fabric_tcp::Congestion;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::str::FromStr;

/// The fabric of a command and its protection.
#[derive(Debug, Default)]
pub struct FabricSettings {
    /// `None` for the kind that fits the address.
    pub fabric: Option<FabricKind>,
    /// The file with the cluster's key.
    pub key: Option<PathBuf>,
    /// `None` for everything that the fabric can protect, if there is a key.
    pub protect: Option<Protection>,
    /// The device of the verbs fabric, and its options.
    pub rdma: Rdma,
    /// `None` for the default.
    pub congestion: Option<CongestionName>,
}

impl FabricSettings {
    /// Returns whether any setting is given.
    pub fn chooses(&self) -> bool {
        self.fabric.is_some()
            || self.key.is_some()
            || self.protect.is_some()
            || self.rdma.asks()
            || self.congestion.is_some()
    }
}

/// The hosts of a command's node processes, and the fabric between them.
#[derive(Clone, Debug, Default)]
pub struct Places {
    /// `None` for TCP with agents, otherwise shared memory.
    pub fabric: Option<WorkerFabric>,
    /// The agents that start the processes, round-robin; none for this machine.
    pub on: Vec<Endpoint>,
    /// Applied on each host.
    pub rdma: Rdma,
    /// The file with the cluster's key.
    pub key: Option<PathBuf>,
    /// `None` for everything, if there is a key.
    pub protect: Option<Protection>,
}

/// A fabric between processes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FabricKind {
    /// Processes of this machine.
    Shm,
    /// TCP, between machines.
    Tcp,
    /// InfiniBand or RoCE, between machines.
    Verbs,
}

/// A fabric between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum HostFabric {
    /// TCP.
    Tcp,
    /// InfiniBand or RoCE, by libibverbs.
    Verbs,
}

impl HostFabric {
    /// Returns its name.
    pub const fn name(self) -> &'static str {
        self.scheme().name()
    }

    /// The facade's form.
    pub const fn scheme(self) -> Scheme {
        match self {
            Self::Tcp => Scheme::Tcp,
            Self::Verbs => Scheme::Verbs,
        }
    }
}

/// A fabric between the processes of a command.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WorkerFabric {
    /// Shared memory of this machine.
    Shm,
    /// TCP, on the loopback or between hosts.
    Tcp,
    /// InfiniBand or RoCE, by libibverbs.
    Verbs,
}

/// A fabric between processes of one machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LaunchFabric {
    /// Shared memory.
    Shm,
    /// TCP on the loopback.
    Tcp,
}

impl LaunchFabric {
    /// Returns the facade's form.
    pub const fn scheme(self) -> Scheme {
        match self {
            Self::Shm => Scheme::Shm,
            Self::Tcp => Scheme::Tcp,
        }
    }
}

/// What TLS protects.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Protection {
    /// No authentication; all traffic is plain text.
    Nothing,
    /// Authentication and memory keys; data is plain text.
    Handshake,
    /// Authentication, memory keys and data.
    Everything,
}

/// The kernel's congestion control for TCP connections.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CongestionName {
    /// The system default, or cubic or reno if that is BBR, which arms a timer for every segment.
    Unpaced,
    /// The system default, also if it is BBR: for long routes that lose packets.
    System,
}

impl CongestionName {
    /// Returns the congestion control for TCP; an error if one is given for another fabric.
    pub fn of(asked: Option<Self>, over_tcp: bool) -> Result<Congestion, Failure> {
        match asked {
            Some(_) if !over_tcp => Err(Failure::usage("--congestion is for --fabric tcp")),
            None | Some(Self::Unpaced) => Ok(Congestion::Unpaced),
            Some(Self::System) => Ok(Congestion::System),
        }
    }
}

/// A device as messages between workers and their parent name it: `mlx5_0:1:3`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct DeviceName(Device);

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(Self)
    }
}

impl TryFrom<String> for DeviceName {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        text.parse()
    }
}

impl From<DeviceName> for String {
    fn from(name: DeviceName) -> Self {
        name.0.to_string()
    }
}

/// Options of the verbs fabric besides the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RdmaOption {
    /// Connect queue pairs through rdma_cm even if not required; must be the same at both peers.
    ConnectionManager,
    /// Do not pin memory: the adapter faults in pages on demand.
    OnDemandPaging,
    /// Issue separate memory keys per connection, by memory windows, if the device has them.
    MemoryWindows,
}

/// The device of the verbs fabric and its use.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Rdma {
    /// `None` for the one that the fabric chooses.
    pub device: Option<DeviceName>,
    /// Further options.
    pub rdma: Vec<RdmaOption>,
}

impl Rdma {
    /// Whether any option is given.
    pub fn asks(&self) -> bool {
        self.device.is_some() || !self.rdma.is_empty()
    }

    /// Returns an error if options are given for another fabric than verbs.
    pub fn check(&self, over_verbs: bool) -> Result<(), Failure> {
        match self.asks() && !over_verbs {
            true => Err(Failure::usage("--device and --rdma are for --fabric verbs")),
            false => Ok(()),
        }
    }

    /// Adds it to the options of a fabric.
    pub fn apply(&self, mut options: FabricOptions) -> FabricOptions {
        options.device = self.device.clone().map(|name| name.0);
        for option in &self.rdma {
            match option {
                RdmaOption::ConnectionManager => options.connection_manager = true,
                RdmaOption::OnDemandPaging => options.on_demand_paging = true,
                RdmaOption::MemoryWindows => options.memory_windows = true,
            }
        }
        options
    }
}
