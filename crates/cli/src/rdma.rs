//! RDMA devices: command-line options, opening the verbs fabric, and reports of this machine's devices.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use farside::fabrics::{Device, FabricOptions};
use farside_bootstrap::Security;
use farside_fabric_verbs::{Choice, DeviceReport, LIBRARY, Limits, Options, VerbsFabric};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::str::FromStr;

/// A device as messages between workers and their parent name it: `mlx5_0:1:3`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct DeviceName(Device);

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
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RdmaOption {
    /// Connect queue pairs through rdma_cm even if not required; must be the same at both peers
    ConnectionManager,
    /// Do not pin memory: the adapter faults in pages on demand
    OnDemandPaging,
    /// Issue separate memory keys per connection, by memory windows, if the device has them
    MemoryWindows,
}

/// Command-line options for the device and its use.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rdma {
    /// Over verbs, the device, its port and GID index; omitted parts are chosen automatically
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    pub(crate) device: Option<DeviceName>,
    /// Over verbs, further options
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    pub(crate) rdma: Vec<RdmaOption>,
}

impl Rdma {
    /// Whether any option is given.
    pub(crate) fn asks(&self) -> bool {
        self.device.is_some() || !self.rdma.is_empty()
    }

    /// Returns an error if options are given for another fabric than verbs.
    pub(crate) fn check(&self, over_verbs: bool) -> Result<(), Failure> {
        match self.asks() && !over_verbs {
            true => Err(Failure::usage("--device and --rdma are for --fabric verbs")),
            false => Ok(()),
        }
    }

    /// Adds it to the options of a fabric.
    pub(crate) fn apply(&self, mut options: FabricOptions) -> FabricOptions {
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

/// Returns a device's limits; `None` if libibverbs is missing or cannot query it.
pub(crate) fn limits(device: &str) -> Option<Limits> {
    limits_by(LIBRARY, device)
}

/// Like [`limits`], through the given library.
pub(crate) fn limits_by(library: &str, device: &str) -> Option<Limits> {
    VerbsFabric::limits(library, device).ok()
}

/// Returns the devices of this machine; none if libibverbs is missing.
pub(crate) fn devices() -> Vec<DeviceReport> {
    VerbsFabric::devices(&Options::new(Security::open())).unwrap_or_default()
}

/// Returns a device choice as JSON.
pub(crate) fn choice_value(choice: &Choice) -> Value {
    json!({
        "device": choice.device,
        "port": choice.port,
        "device_reason": choice.device_reason,
        "network": choice.network,
        "up": choice.up,
        "mtu_bytes": choice.mtu_bytes,
        "gid_index": choice.gid_index,
        "gid": choice.gid.to_string(),
        "gid_reason": choice.gid_reason,
        "extended_posting": choice.extended_posting,
        "connecting": choice.connecting,
        "on_demand_paging": choice.on_demand_paging,
        "keys": choice.keys,
    })
}

/// Returns a device report as JSON.
pub(crate) fn device_value(report: &DeviceReport) -> Value {
    let facts = report.facts.as_ref().ok();
    json!({
        "name": report.name,
        "ports": report.ports,
        "lacks": lacks(report),
        "on_demand_paging": facts.map(|facts| facts.on_demand.to_string()),
        "memory_windows": facts.map(|facts| facts.windows),
    })
}

/// Returns a device report as text: a line for each port, then capabilities and missing features.
pub(crate) fn device_lines(report: &DeviceReport) -> Vec<String> {
    let lacks = lacks(report).map(|what| format!("{}: lacks {what}", report.name));
    let ports = report.ports.iter().map(|port| format!("{} {port}", report.name));
    let facts = report.facts.as_ref().ok();
    let more = facts.map(|facts| {
        let (name, pages, windows) = (&report.name, facts.on_demand, facts.windows);
        format!("{name}: on-demand paging of {pages}; {windows} memory windows of type 2B")
    });
    ports.chain(more).chain(lacks).collect()
}

/// Returns what the device lacks that the fabric requires, or why it cannot be queried.
fn lacks(report: &DeviceReport) -> Option<String> {
    match &report.facts {
        Ok(facts) => facts.capabilities().err().map(str::to_owned),
        Err(why) => Some(format!("an answer: {why}")),
    }
}
