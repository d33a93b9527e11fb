//! RDMA devices: as commands name them, and what there is of them on this machine.

use crate::failure::Failure;
use clap::{Args, ValueEnum};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric_tcp::TcpOptions;
use farside_fabric_verbs::{
    Choice, DeviceReport, LIBRARY, Limits, OpenError, Options, VerbsFabric,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::fmt;
use std::str::FromStr;

/// A device with its port and the index of a GID, as far as they are named: `mlx5_0:1:3`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub(crate) struct DeviceName {
    device: String,
    port: Option<u8>,
    gid_index: Option<u32>,
}

impl FromStr for DeviceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let wrong =
            || format!("`{text}`: write DEVICE, DEVICE:PORT or DEVICE:PORT:GID, as mlx5_0:1:3");
        let mut parts = text.split(':');
        let device = parts.next().filter(|name| !name.is_empty()).ok_or_else(wrong)?.to_owned();
        let number = |part: Option<&str>| part.map(str::parse::<u8>).transpose();
        let port = number(parts.next()).map_err(|_| wrong())?;
        let gid_index = number(parts.next()).map_err(|_| wrong())?.map(u32::from);
        match (port, parts.next()) {
            (Some(0), _) | (_, Some(_)) => Err(wrong()),
            _ => Ok(Self { device, port, gid_index }),
        }
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
        name.to_string()
    }
}

impl fmt::Display for DeviceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.device)?;
        match (self.port, self.gid_index) {
            (None, _) => Ok(()),
            (Some(port), None) => write!(f, ":{port}"),
            (Some(port), Some(gid_index)) => write!(f, ":{port}:{gid_index}"),
        }
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

    fn apply(&self, options: &mut Options) {
        if let Some(name) = &self.device {
            options.device = Some(name.device.clone());
            options.port = name.port;
            options.gid_index = name.gid_index;
        }
        for option in &self.rdma {
            match option {
                RdmaOption::ConnectionManager => options.connection_manager = true,
                RdmaOption::OnDemandPaging => options.on_demand_paging = true,
                RdmaOption::MemoryWindows => options.memory_windows = true,
            }
        }
    }
}

fn failure(error: &OpenError) -> Failure {
    Failure::system(format!("verbs fabric: {error}"))
}

/// The verbs fabric as it is asked for, by default of the first device that can be used.
pub(crate) fn open(
    security: Security,
    listen: Option<Endpoint>,
    rdma: &Rdma,
) -> Result<VerbsFabric, Failure> {
    let mut options = Options::new(security);
    options.listen = listen;
    rdma.apply(&mut options);
    VerbsFabric::open(options).map_err(|error| failure(&error))
}

/// The same with all that a node between hosts needs.
pub(crate) fn open_between(between: TcpOptions, rdma: &Rdma) -> Result<VerbsFabric, Failure> {
    let mut options = Options::new(between.security);
    options.listen = between.listen;
    options.advertise = between.advertise;
    options.hosts = between.hosts;
    options.lease = between.lease;
    options.patience = options.patience.max(between.lease);
    rdma.apply(&mut options);
    VerbsFabric::open(options).map_err(|error| failure(&error))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_devices_are_read() {
        let name = |port, gid_index| DeviceName { device: "mlx5_0".to_owned(), port, gid_index };
        assert_eq!("mlx5_0".parse(), Ok(name(None, None)));
        assert_eq!("mlx5_0:2".parse(), Ok(name(Some(2), None)));
        assert_eq!("mlx5_0:1:3".parse(), Ok(name(Some(1), Some(3))));
        for text in ["mlx5_0", "mlx5_0:2", "mlx5_0:1:3"] {
            assert_eq!(
                text.parse::<DeviceName>().map(|name| name.to_string()),
                Ok(text.to_owned())
            );
        }
        for wrong in ["", ":1", "mlx5_0:", "mlx5_0:0", "mlx5_0:1:x", "mlx5_0:1:256", "a:1:2:3"] {
            assert!(wrong.parse::<DeviceName>().is_err(), "{wrong}");
        }
    }
}
