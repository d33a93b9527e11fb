//! Persistent memory of recorded machines.

use super::super::check::{Check, Verdict};
use super::super::recorded::{Node, Recorded};
use super::super::subject::Plan;
use super::*;

/// The root port above the adapter of the recorded host.
const PORT: &str = "/sys/devices/pci0000:3a/0000:3a:00.0";

/// A host with a ConnectX-5 at node 0, and these files too.
fn host(files: &[(&str, &str)]) -> Recorded {
    let mut host = Recorded::parse(include_str!("../tests/recorded/connectx-roce.txt"));
    for (path, text) in files {
        host.nodes.insert((*path).to_owned(), Node::File(format!("{text}\n").into_bytes()));
    }
    host
}

/// Six DIMMs at this node, and this processor.
fn optane(node: &str, processor: &str) -> Recorded {
    host(&[
        ("/sys/bus/nd/devices/region0/size", "811748818944"),
        ("/sys/bus/nd/devices/region0/mappings", "6"),
        ("/sys/bus/nd/devices/region0/numa_node", node),
        ("/sys/bus/nd/devices/region0/persistence_domain", "memory_controller"),
        ("/proc/cpuinfo", processor),
    ])
}

const CASCADE_LAKE: &str = "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 85\nflags\t\t: fpu clwb\n";

fn checks(host: &Recorded) -> Vec<Check> {
    let plan = Plan { nodes: 1, memory_bytes: 1 << 20, peer: None };
    let subject = Subject::new(host, plan, Vec::new(), None);
    RULES.iter().flat_map(|rule| rule.checks(&subject)).collect()
}

fn only(checks: Vec<Check>, name: &str) -> Check {
    let mut found = checks.into_iter().filter(|check| check.name == name);
    let check = found.next().unwrap();
    assert!(found.next().is_none());
    check
}

/// Puts a byte into the configuration of the root port.
fn set_register(host: &mut Recorded, byte: u8) {
    let Some(Node::File(bytes)) = host.nodes.get_mut(&format!("{PORT}/config")) else {
        panic!("no root port");
    };
    bytes[..4].copy_from_slice(&[0x86, 0x80, 0x30, 0x20]);
    bytes[0x180] = byte;
}

#[test]
fn machines_without_persistent_memory_are_skipped() {
    for check in checks(&host(&[])) {
        assert_eq!(check.verdict, Verdict::Skipped, "{check:?}");
    }
}

#[test]
fn regions_show_interleaving_domain_and_socket() {
    let check = only(checks(&optane("0", CASCADE_LAKE)), "persistent_regions");
    assert_eq!((check.verdict, check.of.as_deref()), (Verdict::Ok, Some("region0")));
    let expected = "756.0 GiB, 6 DIMMs interleaved, caches do not persist; node 0, as mlx5_0";
    assert_eq!(check.found, expected);
    let check = only(checks(&optane("1", CASCADE_LAKE)), "persistent_regions");
    assert_eq!(check.verdict, Verdict::Warning);
    assert!(check.found.ends_with("node 1, but mlx5_0 on another"), "{check:?}");
    let check = only(checks(&optane("-1", CASCADE_LAKE)), "persistent_regions");
    assert_eq!(check.verdict, Verdict::Note);
    assert!(check.found.contains("no NUMA node"), "{check:?}");
}

#[test]
fn empty_regions_and_missing_files_decide_nothing() {
    let empty = host(&[("/sys/bus/nd/devices/region0/size", "0")]);
    assert!(checks(&empty).iter().all(|check| check.verdict == Verdict::Skipped));
    let bare = host(&[("/sys/bus/nd/devices/region3/size", "4096")]);
    let check = only(checks(&bare), "persistent_regions");
    let found = "4.0 KiB, DIMMs not known, whether caches persist is not known";
    assert!(check.found.starts_with(found), "{check:?}");
}

#[test]
fn ddio_is_read_from_the_root_port_where_it_is_documented() {
    let mut host = optane("0", CASCADE_LAKE);
    set_register(&mut host, 0xd1);
    let check = only(checks(&host), "ddio");
    assert_eq!((check.verdict, check.of.as_deref()), (Verdict::Note, Some("mlx5_0")));
    assert_eq!(check.found, "on, at root port 0000:3a:00.0");
    assert!(check.fix.unwrap().contains("setpci -s 0000:3a:00.0 180.b=00:80"));
    set_register(&mut host, 0x51);
    let check = only(checks(&host), "ddio");
    assert_eq!(
        (check.verdict, check.found.as_str()),
        (Verdict::Ok, "off, at root port 0000:3a:00.0")
    );
}

#[test]
fn unknown_ddio_says_why_and_what_to_do() {
    let cases = [
        (CASCADE_LAKE.replace("85", "106"), "model 85 (Skylake, Cascade Lake) alone"),
        (CASCADE_LAKE.replace("clwb", "hypervisor"), "virtual machine"),
        (CASCADE_LAKE.replace("GenuineIntel", "AuthenticAMD"), "AMD has no DDIO"),
        (CASCADE_LAKE.replace("GenuineIntel", "Other"), "vendor is not known"),
        (String::new(), "names no vendor"),
    ];
    for (processor, reason) in cases {
        let check = only(checks(&optane("0", &processor)), "ddio");
        assert_eq!(check.verdict, Verdict::Note, "{check:?}");
        assert!(check.found.starts_with("unknown, because"), "{check:?}");
        assert!(check.found.contains(reason), "{check:?}");
        assert!(check.fix.unwrap().contains("FLUSH"));
    }
    // Without root, a user reads the header alone.
    let mut host = optane("0", CASCADE_LAKE);
    if let Some(Node::File(bytes)) = host.nodes.get_mut(&format!("{PORT}/config")) {
        bytes.truncate(64);
    }
    let check = only(checks(&host), "ddio");
    assert!(check.found.contains("only root reads"), "{check:?}");
    assert_eq!(check.fix.as_deref(), Some("sudo farside doctor --only rdma_bus"));
    // What another port has there says nothing: one of another vendor, or of Intel's chipset.
    for identity in [[0x22, 0x10, 0x30, 0x20], [0x86, 0x80, 0x90, 0xa1]] {
        let mut host = optane("0", CASCADE_LAKE);
        if let Some(Node::File(bytes)) = host.nodes.get_mut(&format!("{PORT}/config")) {
            bytes[..4].copy_from_slice(&identity);
        }
        let check = only(checks(&host), "ddio");
        assert!(check.found.contains("not one of a Skylake"), "{check:?}");
    }
}
