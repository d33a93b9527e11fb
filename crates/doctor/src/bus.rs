//! Checks of how RDMA adapters are attached: PCI Express link, ACS, IOMMU and NUMA node.

use super::check::{Finding, Group, Rule};
use super::host::word;
use super::lists::{overlap, parse, shown};
use super::pci::Config;
use super::ports::deci_gigabits;
use super::rdma::Device;
use super::software::each;
use super::subject::Subject;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "pcie_link",
        group: Group::RdmaBus,
        why: "an adapter in a narrow or slow slot does not reach the rate of its port",
        inspect: pcie_link,
    },
    Rule {
        name: "pcie_read_request",
        group: Group::RdmaBus,
        why: "an adapter fetches what it sends in requests of this size",
        inspect: pcie_read_request,
    },
    Rule {
        name: "relaxed_ordering",
        group: Group::RdmaBus,
        why: "lets the bus reorder an adapter's writes: faster on some processors, but a flag may overtake its data",
        inspect: relaxed_ordering,
    },
    Rule {
        name: "acs",
        group: Group::RdmaBus,
        why: "access control services redirect traffic between devices of one switch through the processor",
        inspect: acs,
    },
    Rule {
        name: "iommu",
        group: Group::RdmaBus,
        why: "a translating IOMMU looks up every page that an adapter accesses",
        inspect: iommu,
    },
    Rule {
        name: "numa_node",
        group: Group::RdmaBus,
        why: "each access from the other socket crosses the link between them",
        inspect: numa_node,
    },
];

/// Returns one finding for each device; devices without a PCI function are skipped.
fn each_pci(subject: &Subject<'_>, inspect: impl Fn(&Device, &str) -> Finding) -> Vec<Finding> {
    each(subject, |device| match (&device.pci, device.software) {
        (Some(folder), _) => inspect(device, folder),
        (None, Some(_)) => Finding::skipped("a software device is on no bus"),
        (None, None) => Finding::skipped("not on a PCI bus"),
    })
}

/// Returns the address of a PCI function, given its folder.
fn address(folder: &str) -> &str {
    folder.rsplit_once('/').map_or(folder, |(_, address)| address)
}

const NEEDS_ROOT: &str = "only root reads the whole PCI configuration";

/// Parses `16.0 GT/s PCIe`, or `8 GT/s` of older kernels, into tenths of GT/s.
fn deci_transfers(text: &str) -> Option<u64> {
    let (number, _) = text.split_once(" GT/s")?;
    let (whole, tenths) = number.split_once('.').unwrap_or((number, "0"));
    let (whole, tenths): (u64, u64) = (whole.parse().ok()?, tenths.parse().ok()?);
    whole.checked_mul(10)?.checked_add(tenths.min(9))
}

fn pcie_link(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    each_pci(subject, |device, folder| {
        let link = |which: &str| {
            let speed = host.value(&format!("{folder}/{which}_link_speed"))?;
            let width = host.number(&format!("{folder}/{which}_link_width"))?;
            Some((deci_transfers(&speed)?, width))
        };
        let (Some(now), Some(most)) = (link("current"), link("max")) else {
            return Finding::skipped("the bus reports no speed, as in virtual machines");
        };
        let shown =
            |(speed, width): (u64, u64)| format!("{}.{} GT/s x{width}", speed / 10, speed % 10);
        if now.0 >= most.0 && now.1 >= most.1 {
            return Finding::ok(shown(now));
        }
        let found = format!("{} of {}", shown(now), shown(most));
        // Line coding carries 128 of 130 bits from 8 GT/s on, 8 of 10 below; headers take a further share.
        let tenths = if now.0 >= 80 { 9 } else { 7 };
        let carried = now.0.saturating_mul(now.1).saturating_mul(tenths) / 10;
        let rates = device.ports.iter().filter(|port| port.is_active());
        let rates = rates.filter_map(|port| deci_gigabits(&host.value(&port.file("rate"))?));
        let needed = rates.fold(0_u64, u64::saturating_add);
        if carried >= needed {
            return Finding::note(format!("{found}: enough for its ports"));
        }
        let fix = format!(
            "move it to a slot of {}; sudo lspci -vvs {} shows what limits it",
            shown(most),
            word(address(folder))
        );
        let ports = format!("its ports carry {} Gb/s, the bus {}", needed / 10, carried / 10);
        Finding::warning(format!("{found}: {ports}"), fix)
    })
}

/// Runs `inspect` on the PCI Express configuration of each device; skips devices that have none or cannot be read.
fn each_config(
    subject: &Subject<'_>,
    inspect: impl Fn(&Device, &str, &Config) -> Option<Finding>,
) -> Vec<Finding> {
    each_pci(subject, |device, folder| {
        let bytes = device.pci_file("config").and_then(|file| subject.host.read(&file).ok());
        let config = Config::new(bytes.unwrap_or_default());
        if config.is_truncated() {
            return Finding::skipped(NEEDS_ROOT);
        }
        inspect(device, folder, &config)
            .unwrap_or_else(|| Finding::skipped("no PCI Express capability"))
    })
}

/// Smaller read requests need needlessly many round trips on the bus.
const READ_REQUEST_BYTES_MIN: u64 = 512;

fn pcie_read_request(subject: &Subject<'_>) -> Vec<Finding> {
    each_config(subject, |_, folder, config| {
        let control = config.device_control()?;
        let (request, payload) = (control.read_request_bytes, control.payload_bytes);
        let found = format!("reads of {request}, writes of {payload} bytes");
        if request >= READ_REQUEST_BYTES_MIN {
            return Some(Finding::ok(found));
        }
        // Bits 14:12 of Device Control: 2 means 512 bytes, 5 means 4,096.
        let fix = format!("sudo setpci -s {} CAP_EXP+8.w=5000:7000", word(address(folder)));
        Some(Finding::warning(found, fix))
    })
}

fn relaxed_ordering(subject: &Subject<'_>) -> Vec<Finding> {
    each_config(subject, |_, _, config| {
        let finding = if config.device_control()?.relaxed_ordering {
            Finding::ok("allowed, for regions that request it")
        } else {
            Finding::ok("off")
        };
        Some(finding)
    })
}

/// Returns the folders of the bridges between a PCI function and its root complex.
fn bridges<'a>(subject: &Subject<'_>, folder: &'a str) -> Vec<&'a str> {
    let mut found = Vec::new();
    let mut at = folder;
    while let Some((above, _)) = at.rsplit_once('/') {
        if !above.starts_with("/sys/devices/pci")
            || !subject.host.exists(&format!("{above}/config"))
        {
            break;
        }
        found.push(above);
        at = above;
    }
    found
}

fn acs(subject: &Subject<'_>) -> Vec<Finding> {
    each_pci(subject, |_, folder| {
        let bridges = bridges(subject, folder);
        if bridges.is_empty() {
            return Finding::skipped("no bridge above it, as in virtual machines");
        }
        let mut redirecting = Vec::new();
        for bridge in bridges {
            let bytes = subject.host.read(&format!("{bridge}/config")).unwrap_or_default();
            let config = Config::new(bytes);
            if config.is_truncated() {
                return Finding::skipped(NEEDS_ROOT);
            }
            if config.acs_redirects() == Some(true) {
                redirecting.push(address(bridge));
            }
        }
        let Some(first) = redirecting.first() else {
            return Finding::ok("no bridge above it redirects");
        };
        let fix = format!(
            "sudo setpci -s {} ECAP_ACS+6.w=0000    # not while virtual machines own devices",
            word(first)
        );
        let finding = Finding::note(format!("redirected by {}", redirecting.join(", ")));
        finding
            .detail("affects only peer-to-peer traffic, such as between adapter and GPU")
            .fix(fix)
    })
}

fn iommu(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let line = host.text("/proc/cmdline").unwrap_or_default();
    each_pci(subject, |device, _| {
        let group = device.pci_file("iommu_group").and_then(|link| host.resolve(&link));
        let Some(group) = group else {
            return Finding::ok("none");
        };
        let kind = host.value(&format!("{group}/type"));
        match kind.as_deref() {
            Some("identity") => Finding::ok("on, in passthrough for this device"),
            Some(kind @ ("DMA" | "DMA-FQ")) => {
                let asked = line.split_whitespace().any(|word| word == "iommu=pt");
                let found = format!("translates each access ({kind})");
                let fix = "add iommu=pt to the kernel's command line    # then restart the machine";
                if asked {
                    let finding = Finding::note(format!("{found}, although iommu=pt is set"));
                    finding.detail("the kernel translates untrusted devices regardless")
                } else {
                    Finding::warning(found, fix)
                }
            }
            Some(other) => Finding::skipped(format!("not understood: `{other}`")),
            None => Finding::skipped("on; the kernel does not report its mode"),
        }
    })
}

fn numa_node(subject: &Subject<'_>) -> Vec<Finding> {
    let host = subject.host;
    let online = host.value("/sys/devices/system/node/online").as_deref().and_then(parse);
    let allowed =
        host.status("Cpus_allowed_list").and_then(|list| parse(&list)).unwrap_or_default();
    each_pci(subject, |_, folder| {
        if online.as_ref().is_none_or(|nodes| nodes.len() < 2) {
            return Finding::ok("the machine has one NUMA node");
        }
        let node = host.value(&format!("{folder}/numa_node"));
        let Some(node) = node.and_then(|node| node.parse::<u64>().ok()) else {
            return Finding::note("the firmware does not report it");
        };
        let local = host.value(&format!("/sys/devices/system/node/node{node}/cpulist"));
        let local = local.as_deref().and_then(parse).unwrap_or_default();
        if local.is_empty() {
            return Finding::note(format!("node {node}, which has no processors"));
        }
        let near = overlap(&allowed, &local);
        let fix = format!("numactl --cpunodebind={node} --membind={node} farside ...");
        match (near.len(), allowed.len()) {
            (0, _) => Finding::warning(
                format!(
                    "node {node} (processors {}), none allowed for this process",
                    shown(&local)
                ),
                fix,
            ),
            (near, all) if near == all => {
                Finding::ok(format!("node {node}, the same as this process"))
            }
            (near, all) => Finding::note(format!(
                "node {node}: {near} of this process's {all} processors are local to it"
            ))
            .fix(fix),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speed_parses_in_both_kernel_formats() {
        assert_eq!(deci_transfers("16.0 GT/s PCIe"), Some(160));
        assert_eq!(deci_transfers("8 GT/s"), Some(80));
        assert_eq!(deci_transfers("2.5 GT/s"), Some(25));
        assert_eq!(deci_transfers("Unknown"), None);
    }
}
