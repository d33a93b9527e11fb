//! RDMA devices: as commands name them, and what there is of them on this machine.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use farside::fabrics::{Device, FabricOptions};
use farside_bootstrap::Security;
use farside_fabric_verbs::{Choice, DeviceReport, LIBRARY, Limits, Options, VerbsFabric};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::str::FromStr;

/// A device as messages between workers and their parent name it.
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

/// What can be asked of the verbs fabric besides a device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum RdmaOption {
    /// Connect queue pairs by rdma_cm where that is not the only way; alike at both ends
    ConnectionManager,
    /// Do not pin memory: the adapter asks the system for pages that are not there
    OnDemandPaging,
    /// Give each link keys of memory of its own, by memory windows, where the device has them
    MemoryWindows,
}

/// Which device, and how it is used.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Rdma {
    /// Over verbs, this device, its port and GID index; what is left out is found out
    #[arg(long, value_name = "DEVICE[:PORT[:GID]]")]
    pub(crate) device: Option<DeviceName>,
    /// Over verbs, what else is asked of it
    #[arg(long, value_name = "OPTION", value_delimiter = ',')]
    pub(crate) rdma: Vec<RdmaOption>,
}

impl Rdma {
    /// Whether anything is asked for.
    pub(crate) fn asks(&self) -> bool {
        self.device.is_some() || !self.rdma.is_empty()
    }

    /// Refuses what is asked of verbs where another fabric is used.
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

/// A device's limits, if there is a library that can ask it.
pub(crate) fn limits(device: &str) -> Option<Limits> {
    limits_by(LIBRARY, device)
}

/// The same by a library that is named.
pub(crate) fn limits_by(library: &str, device: &str) -> Option<Limits> {
    VerbsFabric::limits(library, device).ok()
}

/// The devices of this machine; none where there is no library.
pub(crate) fn devices() -> Vec<DeviceReport> {
    VerbsFabric::devices(&Options::new(Security::open())).unwrap_or_default()
}

/// A choice for programs.
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

/// A device for programs.
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

/// A device for people, a line for each of its ports, and what it does besides.
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

/// What the device lacks that the fabric cannot do without, or why it cannot be asked.
fn lacks(report: &DeviceReport) -> Option<String> {
    match &report.facts {
        Ok(facts) => facts.capabilities().err().map(str::to_owned),
        Err(why) => Some(format!("an answer: {why}")),
    }
}
