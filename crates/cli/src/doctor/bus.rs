//! RDMA: how adapters are attached to processors and memory.

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
        look: pcie_link,
    },
    Rule {
        name: "pcie_read_request",
        group: Group::RdmaBus,
        why: "an adapter fetches what it sends in requests of this size",
        look: pcie_read_request,
    },
    Rule {
        name: "relaxed_ordering",
        group: Group::RdmaBus,
        why: "with it the bus may reorder an adapter's writes: faster on some processors, and flags may pass data",
        look: relaxed_ordering,
    },
    Rule {
        name: "acs",
        group: Group::RdmaBus,
        why: "access control services send traffic between devices of one switch through the processor",
        look: acs,
    },
    Rule {
        name: "iommu",
        group: Group::RdmaBus,
        why: "a translating IOMMU looks up every page that an adapter touches",
        look: iommu,
    },
    Rule {
        name: "numa_node",
        group: Group::RdmaBus,
        why: "each access from the other socket crosses the link between them",
        look: numa_node,
    },
];

/// One finding for each device on a PCI bus.
fn each_pci(subject: &Subject<'_>, look: impl Fn(&Device, &str) -> Finding) -> Vec<Finding> {
    each(subject, |device| match (&device.pci, device.software) {
        (Some(folder), _) => look(device, folder),
        (None, Some(_)) => Finding::skipped("software is on no bus"),
        (None, None) => Finding::skipped("not on a PCI bus"),
    })
}

/// The address of a PCI function, from its folder.
fn address(folder: &str) -> &str {
    folder.rsplit_once('/').map_or(folder, |(_, address)| address)
}

const NEEDS_ROOT: &str = "only root reads the whole PCI configuration";

/// Tenths of GT/s of `16.0 GT/s PCIe`, as older kernels write it `8 GT/s`.
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
            return Finding::skipped("the bus tells no speed, as in virtual machines");
        };
        let shown =
            |(speed, width): (u64, u64)| format!("{}.{} GT/s x{width}", speed / 10, speed % 10);
        if now.0 >= most.0 && now.1 >= most.1 {
            return Finding::ok(shown(now));
        }
        let found = format!("{} of {}", shown(now), shown(most));
        // From 8 GT/s on 128 of 130 bits are data, below 8 of 10; headers take some more.
        let tenths = if now.0 >= 80 { 9 } else { 7 };
        let carried = now.0.saturating_mul(now.1).saturating_mul(tenths) / 10;
        let rates = device.ports.iter().filter(|port| port.is_active());
        let rates = rates.filter_map(|port| deci_gigabits(&host.value(&port.file("rate"))?));
        let needed = rates.fold(0_u64, u64::saturating_add);
        if carried >= needed {
            return Finding::note(format!("{found}: enough for its ports"));
        }
        let fix = format!(
            "move it to a slot of {}; sudo lspci -vvs {} names what limits it",
            shown(most),
            word(address(folder))
        );
        let ports = format!("its ports carry {} Gb/s, the bus {}", needed / 10, carried / 10);
        Finding::warning(format!("{found}: {ports}"), fix)
    })
}

/// Runs `look` on the configuration of each device that has a PCI Express one and may be read.
fn each_config(
    subject: &Subject<'_>,
    look: impl Fn(&Device, &str, &Config) -> Option<Finding>,
) -> Vec<Finding> {
    each_pci(subject, |device, folder| {
        let bytes = device.pci_file("config").and_then(|file| subject.host.read(&file).ok());
        let config = Config::new(bytes.unwrap_or_default());
        if config.is_cut() {
            return Finding::skipped(NEEDS_ROOT);
        }
        look(device, folder, &config)
            .unwrap_or_else(|| Finding::skipped("no PCI Express capability"))
    })
}

/// Read requests below this take more round trips of the bus than they should.
const READ_REQUEST_BYTES_MIN: u64 = 512;

fn pcie_read_request(subject: &Subject<'_>) -> Vec<Finding> {
    each_config(subject, |_, folder, config| {
        let control = config.device_control()?;
        let (request, payload) = (control.read_request_bytes, control.payload_bytes);
        let found = format!("reads of {request}, writes of {payload} bytes");
        if request >= READ_REQUEST_BYTES_MIN {
            return Some(Finding::ok(found));
        }
        // Bits 14:12 of Device Control: 2 stands for 512, 5 for 4,096.
        let fix = format!("sudo setpci -s {} CAP_EXP+8.w=5000:7000", word(address(folder)));
        Some(Finding::warning(found, fix))
    })
}

fn relaxed_ordering(subject: &Subject<'_>) -> Vec<Finding> {
    each_config(subject, |_, _, config| {
        let finding = if config.device_control()?.relaxed_ordering {
            Finding::ok("allowed, for regions that ask for it")
        } else {
            Finding::ok("off")
        };
        Some(finding)
    })
}

/// The folders of the bridges above a PCI function.
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
            if config.is_cut() {
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
            .detail("matters only to devices that talk to each other, as adapter and GPU")
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
            Some("identity") => Finding::ok("on, and passes this device through"),
            Some(kind @ ("DMA" | "DMA-FQ")) => {
                let asked = line.split_whitespace().any(|word| word == "iommu=pt");
                let found = format!("translates each access ({kind})");
                let fix = "add iommu=pt to the kernel's command line    # then restart the machine";
                if asked {
                    let finding =
                        Finding::note(format!("{found}, although iommu=pt was asked for"));
                    finding.detail("untrusted devices are translated all the same")
                } else {
                    Finding::warning(found, fix)
                }
            }
            Some(other) => Finding::skipped(format!("not understood: `{other}`")),
            None => Finding::skipped("on; the kernel does not tell how"),
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
            return Finding::ok("the machine has one");
        }
        let node = host.value(&format!("{folder}/numa_node"));
        let Some(node) = node.and_then(|node| node.parse::<u64>().ok()) else {
            return Finding::note("the firmware does not tell");
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
                format!("node {node} (processors {}), this process is kept off it", shown(&local)),
                fix,
            ),
            (near, all) if near == all => Finding::ok(format!("node {node}, as this process")),
            (near, all) => Finding::note(format!(
                "node {node}: {near} of this process's {all} processors are near"
            ))
            .fix(fix),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds_of_old_and_new_kernels_are_read() {
        assert_eq!(deci_transfers("16.0 GT/s PCIe"), Some(160));
        assert_eq!(deci_transfers("8 GT/s"), Some(80));
        assert_eq!(deci_transfers("2.5 GT/s"), Some(25));
        assert_eq!(deci_transfers("Unknown"), None);
    }
}
