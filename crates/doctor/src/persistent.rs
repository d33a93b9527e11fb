//! Checks of persistent memory as the target of remote writes (paper 002): sockets, interleaving, persistence domain,
//! and Data Direct I/O (DDIO).

use super::check::{Finding, Group, Rule};
use super::host::word;
use super::pci::Config;
use super::subject::Subject;
use farside_command::output::bytes;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "persistent_regions",
        group: Group::RdmaBus,
        why: "writes from the other socket halve the bandwidth of persistent memory (002 H1)",
        inspect: regions,
    },
    Rule {
        name: "ddio",
        group: Group::RdmaBus,
        why: "with DDIO on, a WRITE ends in a cache: a READ behind it does not make it persistent (002 H3)",
        inspect: ddio,
    },
];

/// Regions and namespaces of persistent memory.
const DEVICES: &str = "/sys/bus/nd/devices";
/// Contents of `persistence_domain`.
const MEMORY_CONTROLLER: &str = "memory_controller";
const CACHES: &str = "cpu_cache";

/// Returns the names of the regions with memory.
fn region_names(subject: &Subject<'_>) -> Vec<String> {
    let size = |name: &String| subject.host.number(&format!("{DEVICES}/{name}/size"));
    let is_region = |name: &String| name.starts_with("region") && size(name).unwrap_or(0) > 0;
    subject.host.names(DEVICES).into_iter().filter(is_region).collect()
}

fn regions(subject: &Subject<'_>) -> Vec<Finding> {
    let names = region_names(subject);
    if names.is_empty() {
        return Finding::skipped("no region of persistent memory").one();
    }
    names.into_iter().map(|name| region(subject, &name).of(name)).collect()
}

/// Describes a region, and compares its socket with those of the adapters.
fn region(subject: &Subject<'_>, name: &str) -> Finding {
    let host = subject.host;
    let folder = format!("{DEVICES}/{name}");
    let size = host.number(&format!("{folder}/size")).unwrap_or(0);
    let dimms = match host.number(&format!("{folder}/mappings")) {
        Some(1) => "1 DIMM, not interleaved".to_owned(),
        Some(count) => format!("{count} DIMMs interleaved"),
        None => "DIMMs not known".to_owned(),
    };
    let domain = match host.value(&format!("{folder}/persistence_domain")).as_deref() {
        Some(CACHES) => "caches persist",
        Some(MEMORY_CONTROLLER) => "caches do not persist",
        Some(_) | None => "whether caches persist is not known",
    };
    let found = format!("{}, {dimms}, {domain}", bytes(size));
    let Some(node) = node_of(subject, &folder) else {
        return Finding::note(format!("{found}; the firmware reports no NUMA node"))
            .detail("TargetFacts::memory_socket stays unknown, and H1 cannot be followed");
    };
    let adapters = adapters(subject);
    let near: Vec<_> = adapters.iter().filter(|(_, at)| *at == Some(node)).collect();
    let far: Vec<_> = adapters.iter().filter(|(_, at)| at.is_some_and(|at| at != node)).collect();
    let names = |some: &[&(String, Option<u64>)]| {
        some.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let found = format!("{found}; node {node}");
    match (near.is_empty(), far.is_empty()) {
        (false, _) => Finding::ok(format!("{found}, as {}", names(&near))),
        (true, false) => Finding::warning(
            format!("{found}, but {} on another", names(&far)),
            "use persistent memory of the adapter's node, or an adapter in a slot of this node",
        ),
        (true, true) if adapters.is_empty() => Finding::ok(format!("{found}; no adapter")),
        (true, true) => Finding::note(format!("{found}; no adapter's node is known")),
    }
}

/// Returns the NUMA node of a folder in sysfs; `None` if the firmware does not report it.
fn node_of(subject: &Subject<'_>, folder: &str) -> Option<u64> {
    subject.host.value(&format!("{folder}/numa_node"))?.parse().ok()
}

/// Returns the adapters with their NUMA nodes; software devices are none.
fn adapters(subject: &Subject<'_>) -> Vec<(String, Option<u64>)> {
    let devices = subject.devices.iter();
    let on_bus = devices.filter_map(|device| Some((device.name.clone(), device.pci.as_ref()?)));
    on_bus.map(|(name, folder)| (name, node_of(subject, folder))).collect()
}

/// The processor, as far as DDIO is concerned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum DdioPlatform {
    /// Skylake and Cascade Lake servers: register `perfctrlsts_0` of each root port says it.
    RootPortRegister,
    /// A processor whose register is not known to this program.
    Other(&'static str),
}

fn platform(subject: &Subject<'_>) -> DdioPlatform {
    let text = subject.host.text("/proc/cpuinfo").unwrap_or_default();
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim().to_owned())
        })
    };
    let flags = value("flags").unwrap_or_default();
    if flags.split_whitespace().any(|flag| flag == "hypervisor") {
        return DdioPlatform::Other("a virtual machine does not show the registers of its host");
    }
    let (family, model) = (value("cpu family"), value("model"));
    match (value("vendor_id").as_deref(), family.as_deref(), model.as_deref()) {
        (Some("GenuineIntel"), Some("6"), Some("85")) => DdioPlatform::RootPortRegister,
        (Some("GenuineIntel"), ..) => DdioPlatform::Other(
            "the register is known for Intel model 85 (Skylake, Cascade Lake) alone",
        ),
        (Some("AuthenticAMD"), ..) => DdioPlatform::Other(
            "AMD has no DDIO, but documents no place where writes of adapters end",
        ),
        (Some(_), ..) => DdioPlatform::Other("the processor's vendor is not known"),
        (None, ..) => DdioPlatform::Other("/proc/cpuinfo names no vendor"),
    }
}

fn ddio(subject: &Subject<'_>) -> Vec<Finding> {
    if region_names(subject).is_empty() {
        return Finding::skipped("no region of persistent memory").one();
    }
    let platform = platform(subject);
    let on_bus = subject.devices.iter().filter_map(|device| Some((device, device.pci.as_ref()?)));
    let findings: Vec<_> = on_bus
        .map(|(device, folder)| {
            match platform {
                DdioPlatform::RootPortRegister => root_port(subject, folder),
                DdioPlatform::Other(reason) => unknown(reason),
            }
            .of(device.name.clone())
        })
        .collect();
    if findings.is_empty() { Finding::skipped("no adapter").one() } else { findings }
}

/// A finding that decides nothing, and what follows from that.
fn unknown(reason: &str) -> Finding {
    Finding::note(format!("unknown, because {reason}"))
        .detail("assume that it is on, as firmware sets it: TargetFacts::ddio stays unknown, and no READ counts as persistent")
        .fix("use FLUSH or a RemoteStore at the target; else look into the firmware's settings for DDIO")
}

/// Reads the register of the root port above an adapter.
fn root_port(subject: &Subject<'_>, folder: &str) -> Finding {
    let above = folder.split('/').scan(String::new(), |path, part| {
        if !part.is_empty() {
            path.push('/');
            path.push_str(part);
        }
        Some(path.clone())
    });
    let port = above
        .filter(|path| path.starts_with("/sys/devices/pci") && path != folder)
        .find(|path| subject.host.exists(&format!("{path}/config")));
    let Some(port) = port else {
        return unknown("no root port is above the adapter");
    };
    let address = port.rsplit_once('/').map_or(port.as_str(), |(_, address)| address);
    let config = Config::new(subject.host.read(&format!("{port}/config")).unwrap_or_default());
    if config.is_truncated() {
        return unknown("only root reads the register of the root port")
            .fix("sudo farside doctor --only rdma_bus");
    }
    match config.allocating_writes() {
        Some(true) => Finding::note(format!("on, at root port {address}"))
            .detail("WRITEs end in the cache; large ones also amplify writes of the medium (002 Figure 11)")
            .fix(format!(
                "sudo setpci -s {} 180.b=00:80    # off until the next boot, for what is below it",
                word(address)
            )),
        Some(false) => Finding::ok(format!("off, at root port {address}")),
        None => unknown("the root port is not one of a Skylake or Cascade Lake processor"),
    }
}

#[cfg(test)]
#[path = "persistent_tests.rs"]
mod tests;
