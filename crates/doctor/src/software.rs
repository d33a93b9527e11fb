//! Checks of RDMA devices: drivers, libraries, permissions and limits.

use super::check::{Finding, Group, Rule, some};
use super::host::{Amount, Refusal, word};
use super::libraries::{find_library, find_provider};
use super::machine::cgroup_files;
use super::rdma::{Device, Software, Transport};
use super::subject::{DeviceLimits, Package, Subject};
use farside_command::output::bytes;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "rdma_devices",
        group: Group::RdmaSoftware,
        why: "nodes on different machines access each other's memory through RDMA devices",
        inspect: rdma_devices,
    },
    Rule {
        name: "rdma_adapters",
        group: Group::RdmaSoftware,
        why: "an adapter without its RDMA module is only a network card",
        inspect: rdma_adapters,
    },
    Rule {
        name: "rdma_modules",
        group: Group::RdmaSoftware,
        why: "programs access adapters through ib_uverbs, and connect through rdma_ucm",
        inspect: rdma_modules,
    },
    Rule {
        name: "uverbs_nodes",
        group: Group::RdmaSoftware,
        why: "a program opens this device node to use the adapter",
        inspect: uverbs_nodes,
    },
    Rule {
        name: "rdma_cm_node",
        group: Group::RdmaSoftware,
        why: "connections by IP address are made through this device node; iWARP has no others",
        inspect: rdma_cm_node,
    },
    Rule {
        name: "libibverbs",
        group: Group::RdmaSoftware,
        why: "verbs calls go through this library; it is loaded at run time, so machines without RDMA need none",
        inspect: |subject| library(subject, "libibverbs.so.1", Package::Verbs),
    },
    Rule {
        name: "librdmacm",
        group: Group::RdmaSoftware,
        why: "this library makes connections by IP address; it is loaded at run time",
        inspect: |subject| library(subject, "librdmacm.so.1", Package::ConnectionManager),
    },
    Rule {
        name: "provider_libraries",
        group: Group::RdmaSoftware,
        why: "libibverbs needs a provider library for each adapter model, else it does not list the device",
        inspect: provider_libraries,
    },
    Rule {
        name: "firmware",
        group: Group::RdmaSoftware,
        why: "an adapter's operations and bugs depend on its firmware version",
        inspect: firmware,
    },
    Rule {
        name: "device_limits",
        group: Group::RdmaSoftware,
        why: "a device refuses regions and queue pairs beyond its limits",
        inspect: device_limits,
    },
    Rule {
        name: "locked_memory",
        group: Group::RdmaSoftware,
        why: "registered memory is pinned, and the kernel counts it against the process",
        inspect: locked_memory,
    },
    Rule {
        name: "capabilities",
        group: Group::RdmaSoftware,
        why: "CAP_IPC_LOCK lifts the limit of locked memory; CAP_NET_RAW allows raw packets and is not needed",
        inspect: capabilities,
    },
    Rule {
        name: "cgroup_rdma",
        group: Group::RdmaSoftware,
        why: "the control group may allow fewer device handles and objects than the device has",
        inspect: cgroup_rdma,
    },
    Rule {
        name: "rdma_netns",
        group: Group::RdmaSoftware,
        why: "in exclusive mode a device is visible in one network namespace only",
        inspect: rdma_netns,
    },
    Rule {
        name: "soft_roce_kernel",
        group: Group::RdmaSoftware,
        why: "before Linux 7.1 soft-RoCE receives only in the initial network namespace: peers elsewhere time out",
        inspect: soft_roce_kernel,
    },
];

/// Reason to skip a check of RDMA devices.
pub(crate) const NO_DEVICE: &str = "no RDMA device";

/// Returns one finding for each device, adapter or software; [`NO_DEVICE`] if there is none.
pub(crate) fn each(subject: &Subject<'_>, inspect: impl Fn(&Device) -> Finding) -> Vec<Finding> {
    if subject.devices.is_empty() {
        return Finding::skipped(NO_DEVICE).one();
    }
    subject.devices.iter().map(|device| inspect(device).of(device.name.clone())).collect()
}

fn rdma_devices(subject: &Subject<'_>) -> Vec<Finding> {
    if subject.devices.is_empty() {
        let found = "none: nodes on this machine use shared memory, nodes on others TCP";
        return Finding::note(found).one();
    }
    each(subject, |device| {
        let driver = device.driver.as_ref().map(|driver| format!(", {driver}")).unwrap_or_default();
        let found = format!("{}{driver}, {}", device.kind(), some(device.ports.len(), "port"));
        match (device.software, device.transport) {
            (Some(Software::SoftRoce | Software::SoftIwarp), _) => Finding::note(format!(
                "{found}: works, but in software"
            ))
            .detail("correct and useful for tests; slower than shared memory, and often slower than TCP"),
            (_, Transport::Efa) => Finding::note(found)
                .detail("it has no reliable connections, no atomics and no message order")
                .fix("farside channels --fabric efa    # the channels that fit it"),
            (_, Transport::Iwarp) => Finding::note(found).detail(
                "connections need rdma_cm; many iWARP adapters have no atomics",
            ),
            (_, Transport::InfiniBand | Transport::Roce) => Finding::ok(found),
            (_, Transport::Unknown) => Finding::skipped(format!("{found}: not understood")),
        }
    })
}

/// Network drivers of RDMA-capable adapters, each with its RDMA module.
const RDMA_MODULES: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5_ib"),
    ("mlx4_core", "mlx4_ib"),
    ("mlx4_en", "mlx4_ib"),
    ("ice", "irdma"),
    ("idpf", "irdma"),
    ("bnxt_en", "bnxt_re"),
    ("cxgb4", "iw_cxgb4"),
    ("qede", "qedr"),
    ("hns3", "hns_roce_hw_v2"),
    ("mana", "mana_ib"),
    ("be2net", "ocrdma"),
    ("ionic", "ionic_rdma"),
];

fn rdma_adapters(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let folder = "/sys/bus/pci/devices";
    let mut findings = Vec::new();
    for name in host.names(folder) {
        let path = format!("{folder}/{name}");
        let resolved = host.resolve(&path).unwrap_or_else(|| path.clone());
        let has_device = |device: &Device| device.pci.as_deref() == Some(resolved.as_str());
        if subject.devices.iter().any(has_device) {
            findings.push(Finding::ok("has an RDMA device").of(name));
            continue;
        }
        let driver = host.resolve(&format!("{path}/driver"));
        let driver = driver.as_deref().and_then(|path| Some(path.rsplit_once('/')?.1));
        let id = |file: &str| host.number(&format!("{path}/{file}"));
        let known = RDMA_MODULES.iter().find(|(name, _)| Some(*name) == driver);
        let module = match (known, id("vendor"), id("device"), id("class")) {
            (Some((_, module)), ..) => module,
            // Network functions of NVIDIA and Amazon (EFA) that have no driver bound.
            (None, Some(0x15b3), _, Some(0x02_0000..=0x02_ffff)) if driver.is_none() => "mlx5_ib",
            (None, Some(0x1d0f), Some(0xefa0..=0xefaf), _) if driver.is_none() => "efa",
            _ => continue,
        };
        let driver = driver.unwrap_or("no driver");
        let found = format!("{driver}, without an RDMA device");
        findings.push(Finding::note(found).fix(format!("sudo modprobe {module}")).of(name));
    }
    if findings.is_empty() {
        return Finding::skipped("no RDMA-capable adapter on the PCI bus").one();
    }
    findings
}

/// Required modules, each with a sysfs path that exists even if the module is built in.
const MODULES: [(&str, &str); 4] = [
    ("ib_core", "/sys/class/infiniband"),
    ("ib_uverbs", "/sys/class/infiniband_verbs"),
    ("rdma_cm", "/sys/class/misc/rdma_cm"),
    ("rdma_ucm", "/sys/class/misc/rdma_cm"),
];

fn rdma_modules(subject: &Subject<'_>) -> Vec<Finding> {
    if subject.devices.is_empty() {
        return Finding::skipped(NO_DEVICE).one();
    }
    let loaded = subject.host.text("/proc/modules").unwrap_or_default();
    let is_loaded = |(module, path): &(&str, &str)| {
        let listed = loaded.lines().any(|line| line.split(' ').next() == Some(*module));
        let shown = subject.host.exists(&format!("/sys/module/{module}"));
        listed || shown || subject.host.exists(path)
    };
    let missing: Vec<_> =
        MODULES.iter().filter(|module| !is_loaded(module)).map(|(module, _)| *module).collect();
    if missing.is_empty() {
        return Finding::ok(MODULES.map(|(module, _)| module).join(", ")).one();
    }
    let missing = missing.join(" ");
    Finding::failing(format!("not loaded: {missing}"), format!("sudo modprobe -a {missing}")).one()
}

fn uverbs_nodes(subject: &Subject<'_>) -> Vec<Finding> {
    each(subject, |device| match &device.uverbs {
        None => Finding::failing("it has no device node", "sudo modprobe ib_uverbs"),
        Some(name) => {
            let remake = "sudo udevadm trigger --subsystem-match=infiniband_verbs";
            node(subject, &format!("/dev/infiniband/{name}"), remake)
        }
    })
}

fn rdma_cm_node(subject: &Subject<'_>) -> Vec<Finding> {
    if subject.devices.is_empty() {
        return Finding::skipped(NO_DEVICE).one();
    }
    let needed = subject.devices.iter().any(|device| device.transport == Transport::Iwarp);
    let remake = if subject.host.exists("/sys/class/misc/rdma_cm") {
        "sudo udevadm trigger --subsystem-match=misc"
    } else {
        "sudo modprobe rdma_ucm"
    };
    let finding = node(subject, "/dev/infiniband/rdma_cm", remake);
    if needed { finding.one() } else { finding.at_most_warning().one() }
}

/// Checks that a device node can be opened; `remake` is the command that creates a missing one.
fn node(subject: &Subject<'_>, path: &str, remake: &str) -> Finding {
    let withheld = || {
        let found = match subject.container() {
            Some(kind) => format!("{kind} does not expose {path} to this container"),
            None => format!("the device control group of this process does not allow {path}"),
        };
        let fix = match subject.container() {
            Some("kubernetes") => {
                "resources: { limits: { rdma/hca: 1 } }    # from an RDMA device plugin"
            }
            Some("podman") => {
                "podman run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ..."
            }
            Some(_) | None => {
                "docker run --device=/dev/infiniband --cap-add=IPC_LOCK --ulimit memlock=-1 ..."
            }
        };
        Finding::failing(found, fix)
    };
    match subject.host.open(path) {
        Ok(()) => Finding::ok(format!("{path} may be opened")),
        Err(Refusal::Missing) if subject.container().is_some() => withheld(),
        Err(Refusal::Missing) => Finding::failing(format!("{path} is missing"), remake),
        Err(Refusal::Permission) => withheld(),
        Err(Refusal::Access) => Finding::failing(
            format!("{path} may not be opened by this user"),
            format!("sudo chmod 666 {}    # as the udev rules of rdma-core do", word(path)),
        ),
        Err(Refusal::Invalid | Refusal::Other) => Finding::failing(
            format!("{path} cannot be opened"),
            "sudo dmesg | tail    # the driver logs the reason",
        ),
    }
}

fn library(subject: &Subject<'_>, name: &str, package: Package) -> Vec<Finding> {
    if subject.devices.is_empty() {
        return Finding::skipped(NO_DEVICE).one();
    }
    let finding = match find_library(subject.host, name) {
        Some(path) => Finding::ok(path),
        None => Finding::failing(
            format!("{name} is in no search path of the dynamic loader"),
            subject.install(package),
        ),
    };
    finding.one()
}

fn provider_libraries(subject: &Subject<'_>) -> Vec<Finding> {
    each(subject, |device| {
        let Some(provider) = device.provider() else {
            return Finding::skipped("its driver is not known");
        };
        let driver_file = format!("/etc/libibverbs.d/{provider}.driver");
        match (find_provider(subject.host, provider), subject.host.exists(&driver_file)) {
            (Some(path), _) => Finding::ok(path),
            (None, true) => Finding::warning(
                format!("{driver_file} names a library that is not in the providers' folder"),
                subject.install(Package::Providers),
            ),
            (None, false) => Finding::failing(
                format!("no lib{provider}-rdmav*.so"),
                subject.install(Package::Providers),
            ),
        }
    })
}

fn firmware(subject: &Subject<'_>) -> Vec<Finding> {
    each(subject, |device| match (&device.firmware, device.software) {
        (_, Some(_)) => Finding::skipped("a software device has none"),
        (Some(version), None) => Finding::ok(version.clone()),
        (None, None) => Finding::skipped("the device reports none"),
    })
}

/// Queue pairs that a node keeps to each other node, one for each direction.
const QUEUE_PAIRS_PER_PEER: u64 = 2;
/// Memory regions of a node: memory, cache, rings, slots, bells.
const REGIONS_OF_NODE: u64 = 16;

fn device_limits(subject: &Subject<'_>) -> Vec<Finding> {
    let Some(query) = subject.limits else {
        let reason =
            if subject.devices.is_empty() { NO_DEVICE } else { "libibverbs was not queried" };
        return Finding::skipped(reason).one();
    };
    each(subject, |device| match query(&device.name) {
        None => Finding::skipped("it cannot be queried: see libibverbs and provider_libraries"),
        Some(limits) => judged(subject, &limits),
    })
}

fn judged(subject: &Subject<'_>, limits: &DeviceLimits) -> Finding {
    let nodes = subject.plan.nodes;
    let pairs = nodes.saturating_mul(nodes).saturating_mul(QUEUE_PAIRS_PER_PEER);
    let needs = [
        ("max_mr_size", limits.max_mr_size, subject.plan.memory_bytes, "--memory-bytes"),
        ("max_mr", limits.max_mr, nodes.saturating_mul(REGIONS_OF_NODE), "--nodes"),
        ("max_qp", limits.max_qp, pairs, "--nodes"),
        ("max_cq", limits.max_cq, nodes, "--nodes"),
    ];
    let finding = match needs.iter().find(|(_, has, need, _)| has < need) {
        Some((name, has, need, option)) => {
            Finding::failing(format!("{name} is {has}, {need} needed"), format!("reduce {option}"))
        }
        None if limits.max_srq == 0 => Finding::note("no shared receive queues"),
        None => Finding::ok("sufficient for the plan"),
    };
    let DeviceLimits { max_mr_size, max_mr, max_qp, max_cq, max_srq } = limits;
    finding.detail(format!(
        "max_mr_size {max_mr_size}, max_mr {max_mr}, max_qp {max_qp}, max_cq {max_cq}, max_srq {max_srq}"
    ))
}

/// Bits of capabilities in `CapEff` of `/proc/self/status`.
const CAP_NET_RAW: u32 = 13;
const CAP_IPC_LOCK: u32 = 14;

fn has_capability(subject: &Subject<'_>, bit: u32) -> Option<bool> {
    let text = subject.host.status("CapEff")?;
    Some(u64::from_str_radix(&text, 16).ok()? >> bit & 1 == 1)
}

/// Whether this process is in the initial user namespace, or the kernel has no others. Capabilities in other
/// namespaces do not lift the limit on pinned memory.
fn in_initial_user_namespace(subject: &Subject<'_>) -> bool {
    let map = subject.host.value("/proc/self/uid_map");
    map.is_none_or(|map| map == "0 0 4294967295")
}

fn locked_memory(subject: &Subject<'_>) -> Vec<Finding> {
    let Some((soft, hard)) = subject.host.limit("Max locked memory") else {
        return Finding::skipped("/proc/self/limits does not report locked memory").one();
    };
    let Amount::Of(most) = soft else {
        return Finding::ok("no limit").one();
    };
    if subject.devices.is_empty() {
        return Finding::ok(format!("{}; shared memory needs no locked memory", bytes(most))).one();
    }
    let need = subject.plan.pinned_bytes();
    let found = format!("{}, a node registers {}", bytes(most), bytes(need));
    if most >= need {
        return Finding::ok(found).one();
    }
    let capable = has_capability(subject, CAP_IPC_LOCK) == Some(true);
    if capable && in_initial_user_namespace(subject) {
        return Finding::ok(format!("{found}; CAP_IPC_LOCK lifts the limit")).one();
    }
    let fix = match (hard >= Amount::Of(need), subject.container()) {
        (true, _) => format!("ulimit -l {}", need.div_ceil(1_024)),
        (false, Some("kubernetes")) => {
            "securityContext: { capabilities: { add: [\"IPC_LOCK\"] } }".to_owned()
        }
        (false, Some(_)) => "docker run --ulimit memlock=-1 --cap-add=IPC_LOCK ...".to_owned(),
        (false, None) => {
            "echo \"$USER - memlock unlimited\" | sudo tee /etc/security/limits.d/90-rdma.conf    # log in again; services: LimitMEMLOCK=infinity"
                .to_owned()
        }
    };
    Finding::failing(found, fix).one()
}

fn capabilities(subject: &Subject<'_>) -> Vec<Finding> {
    let bits = [("CAP_IPC_LOCK", CAP_IPC_LOCK), ("CAP_NET_RAW", CAP_NET_RAW)];
    let mut parts = Vec::new();
    for (name, bit) in bits {
        match has_capability(subject, bit) {
            Some(true) => parts.push(format!("{name} yes")),
            Some(false) => parts.push(format!("{name} no")),
            None => {
                return Finding::skipped("/proc/self/status does not report capabilities").one();
            }
        }
    }
    let found = parts.join(", ");
    if in_initial_user_namespace(subject) {
        return Finding::ok(found).one();
    }
    let finding = Finding::note(format!("{found}, in a user namespace"));
    finding.detail("capabilities in a user namespace do not lift the limit of locked memory").one()
}

/// Checks `rdma.max`, which has a line for each device: `mlx5_0 hca_handle=2 hca_object=max`.
fn cgroup_rdma(subject: &Subject<'_>) -> Vec<Finding> {
    let files = cgroup_files(subject, "rdma.max");
    if subject.devices.is_empty() || files.is_empty() {
        let reason = if subject.devices.is_empty() { NO_DEVICE } else { "no rdma control group" };
        return Finding::skipped(reason).one();
    }
    let nodes = subject.plan.nodes;
    let needs = [("hca_handle=", nodes), ("hca_object=", OBJECTS_OF_NODE.saturating_mul(nodes))];
    each(subject, |device| {
        for (key, need) in needs {
            let lines = files.iter().flat_map(|text| text.lines());
            let its = lines
                .filter_map(|line| line.split_once(' ').filter(|(name, _)| *name == device.name));
            let values = its
                .flat_map(|(_, pairs)| pairs.split(' '))
                .filter_map(|pair| pair.strip_prefix(key));
            let most = values.filter_map(|value| value.parse::<u64>().ok()).min();
            if let Some(most) = most.filter(|most| *most < need) {
                let found = format!("{key}{most}, {need} needed");
                let line = format!("{} hca_handle=max hca_object=max", device.name);
                let fix = format!("echo {} | sudo tee /sys/fs/cgroup/GROUP/rdma.max", word(&line));
                return Finding::failing(found, fix);
            }
        }
        Finding::ok("sufficient for the plan")
    })
}

/// Generous estimate of the objects (protection domains, queues, regions) of a node.
const OBJECTS_OF_NODE: u64 = 64;

fn rdma_netns(subject: &Subject<'_>) -> Vec<Finding> {
    let finding = match subject.host.value("/sys/module/ib_core/parameters/netns_mode").as_deref() {
        Some("Y" | "1") => Finding::ok("shared"),
        Some("N" | "0") if subject.devices.is_empty() => Finding::note(
            "exclusive: another network namespace may have devices",
        )
        .fix(
            "sudo rdma system set netns shared    # in the initial namespace, before others exist",
        ),
        Some("N" | "0") => {
            Finding::note("exclusive: these devices are not visible in other network namespaces")
        }
        Some(_) | None if subject.devices.is_empty() => Finding::skipped(NO_DEVICE),
        Some(_) | None => Finding::skipped("the kernel does not report it"),
    };
    finding.one()
}

/// Whether this is the initial network namespace; `None` if the links of process 1 may not be read.
fn in_initial_network_namespace(subject: &Subject<'_>) -> Option<bool> {
    let first = subject.host.link("/proc/1/ns/net")?;
    Some(first == subject.host.link("/proc/self/ns/net")?)
}

/// Checks the kernel release: soft-RoCE has sockets in every network namespace only since Linux 7.1.
fn soft_roce_kernel(subject: &Subject<'_>) -> Vec<Finding> {
    let soft = |device: &&Device| device.software == Some(Software::SoftRoce);
    if !subject.devices.iter().any(|device| soft(&device)) {
        return Finding::skipped("no soft-RoCE device").one();
    }
    let release = subject.host.value("/proc/sys/kernel/osrelease").unwrap_or_default();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u64>().ok());
    let (Some(Some(major)), Some(Some(minor))) = (numbers.next(), numbers.next()) else {
        return Finding::skipped(format!("release not understood: `{release}`")).one();
    };
    if (major, minor) >= (7, 1) {
        return Finding::ok(format!("Linux {major}.{minor}")).one();
    }
    let found = format!("Linux {major}.{minor}");
    // In a container, process 1 is in the container's namespace, so equality proves nothing.
    let initial = in_initial_network_namespace(subject).filter(|_| subject.container().is_none());
    if initial == Some(true) {
        let fine = "this is the initial network namespace; keep soft-RoCE in it";
        return Finding::note(format!("{found}: {fine}")).one();
    }
    let fix = "run in the initial network namespace (docker run --network=host), or on Linux 7.1 or later";
    Finding::warning(format!("{found}, perhaps outside the initial network namespace"), fix).one()
}
