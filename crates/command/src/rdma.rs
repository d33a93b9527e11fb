//! Reports of the RDMA devices of this machine.

use farside_bootstrap::Security;
use farside_fabric_verbs::{Choice, DeviceReport, LIBRARY, Limits, Options, VerbsFabric};
use serde_json::{Value, json};

/// Returns a device's limits; `None` if libibverbs is missing or cannot query it.
pub fn limits(device: &str) -> Option<Limits> {
    limits_by(LIBRARY, device)
}

/// Like [`limits`], through the given library.
pub fn limits_by(library: &str, device: &str) -> Option<Limits> {
    VerbsFabric::limits(library, device).ok()
}

/// Returns the devices of this machine; none if libibverbs is missing.
pub fn devices() -> Vec<DeviceReport> {
    VerbsFabric::devices(&Options::new(Security::open())).unwrap_or_default()
}

/// Returns a device choice as JSON.
pub fn choice_value(choice: &Choice) -> Value {
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
pub fn device_value(report: &DeviceReport) -> Value {
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
pub fn device_lines(report: &DeviceReport) -> Vec<String> {
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
