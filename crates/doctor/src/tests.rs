//! Tests every check on recorded machines, and on machines with random content.
//!
//! The recordings are in `crates/doctor/tests/recorded`; [`super::recorded`] describes their format.

use super::check::{Check, Group, Verdict};
use super::host::{Host, Refusal, Route};
use super::recorded::{Node, Recorded};
use super::report::{Counts, Report, fabrics, lines};
use super::subject::{DeviceLimits, Plan, Probe, Subject};
use super::{chosen, failing, label, rules};
use std::cell::Cell;

macro_rules! machine {
    ($name:literal) => {
        Recorded::parse(include_str!(concat!("../tests/recorded/", $name, ".txt")))
    };
}

const PLAN: Plan = Plan { nodes: 3, memory_bytes: 256 << 20, peer: None };

/// Returns successful probes of the shared-memory fabric.
fn probes() -> Vec<Probe> {
    let names = ["memfd", "huge_pages", "futex", "name_folder", "membarrier", "descriptors"];
    let probe = |name: &str| Probe {
        name: name.to_owned(),
        needed: true,
        works: true,
        finding: "as probed".to_owned(),
        remedy: String::new(),
    };
    names.map(probe).to_vec()
}

fn checked(host: &dyn Host, plan: Plan) -> Vec<Check> {
    let subject = Subject::new(host, plan, probes(), None);
    rules().flat_map(|rule| rule.checks(&subject)).collect()
}

/// Returns every check that is neither ok nor skipped, as `verdict name (of)`.
fn troubles(checks: &[Check]) -> Vec<String> {
    let reported = checks.iter().filter(|check| check.verdict > Verdict::Skipped);
    reported.map(|check| format!("{} {}", check.verdict.name(), label(check))).collect()
}

/// Returns the only check of this name, or of this name and device.
fn one<'a>(checks: &'a [Check], name: &str) -> &'a Check {
    let mut fitting = checks.iter().filter(|check| check.name == name || label(check) == name);
    let found = fitting.next().unwrap_or_else(|| panic!("no check {name}"));
    assert!(fitting.next().is_none(), "several: {name}");
    found
}

#[track_caller]
fn finds(checks: &[Check], name: &str, verdict: Verdict, parts: &[&str]) {
    let check = one(checks, name);
    assert_eq!(check.verdict, verdict, "{check:?}");
    let fix = check.fix.as_deref().unwrap_or_default();
    let text = format!("{}\n{}\n{fix}", check.found, check.details.join("\n"));
    for part in parts {
        assert!(text.contains(part), "{part}: {check:?}");
    }
}

#[test]
fn rules_have_unique_names_and_reasons() {
    let all: Vec<_> = rules().collect();
    assert!(all.len() >= 30, "{}", all.len());
    for (at, rule) in all.iter().enumerate() {
        assert!(all[..at].iter().all(|other| other.name != rule.name), "{}", rule.name);
        assert!(all[..at].iter().all(|other| other.why != rule.why), "{}", rule.name);
        assert!(!Group::ALL.iter().any(|group| group.name() == rule.name), "{}", rule.name);
    }
}

#[test]
fn rules_are_selected_by_name_and_group() {
    let names = |only: &[&str]| {
        let only: Vec<_> = only.iter().map(|name| (*name).to_owned()).collect();
        chosen(&only).map(|rules| rules.iter().map(|rule| rule.name).collect::<Vec<_>>())
    };
    assert_eq!(names(&["gid_table", "clock"]).unwrap(), ["clock", "gid_table"]);
    assert!(names(&["rdma_bus"]).unwrap().contains(&"iommu"));
    assert_eq!(names(&[]).unwrap().len(), rules().count());
    assert!(names(&["clock", "gid"]).unwrap_err().to_string().contains("`gid`"));
}

#[test]
fn healthy_roce_host_has_no_warning() {
    let checks = checked(&machine!("connectx-roce"), PLAN);
    assert_eq!(troubles(&checks), ["note numa_node (mlx5_0)"]);
    finds(&checks, "gid_table", Verdict::Ok, &["index 3, 192.168.10.5: RoCE v2, routable"]);
    finds(
        &checks,
        "gid_table",
        Verdict::Ok,
        &[
            "index 0: fe80::e42:a1ff:fe8a:1c04 RoCE v1 enp59s0np0: rejected: RoCE v1 crosses",
            "index 1: fe80::e42:a1ff:fe8a:1c04 RoCE v2 enp59s0np0: rejected: link-local",
            "index 3: 192.168.10.5 RoCE v2 enp59s0np0: chosen",
            "index 5: 2001:db8:0:10::5 RoCE v2 enp59s0np0: rejected: both ends",
        ],
    );
    finds(&checks, "roce_mtu", Verdict::Ok, &["4096 (network device 9000)"]);
    finds(&checks, "port_rate", Verdict::Ok, &["100 Gb/sec (4X EDR)"]);
    finds(&checks, "pcie_link", Verdict::Ok, &["16.0 GT/s x16"]);
    finds(&checks, "pcie_read_request", Verdict::Ok, &["reads of 4096, writes of 256"]);
    finds(&checks, "relaxed_ordering", Verdict::Ok, &["allowed"]);
    finds(&checks, "iommu", Verdict::Ok, &["in passthrough for this device"]);
    finds(&checks, "acs", Verdict::Ok, &["no bridge above it redirects"]);
    finds(
        &checks,
        "flow_control",
        Verdict::Ok,
        &["ECN on for priorities 0,1,2", "np_cnp_sent 1204"],
    );
    finds(&checks, "firmware", Verdict::Ok, &["22.39.2048"]);
    finds(&checks, "provider_libraries", Verdict::Ok, &["libmlx5-rdmav57.so"]);
    finds(&checks, "device_limits", Verdict::Skipped, &["libibverbs was not queried"]);
    let subject_devices = super::rdma::devices(&machine!("connectx-roce"));
    let outlooks: Vec<_> = fabrics(&checks, &subject_devices).iter().map(|f| f.outlook).collect();
    assert_eq!(outlooks, ["ready", "ready", "ready"]);
}

#[test]
fn infiniband_port_that_is_down_fails_with_its_cause() {
    let checks = checked(&machine!("infiniband-down"), PLAN);
    assert_eq!(
        troubles(&checks),
        [
            "note frequency_governor",
            "FAILING port_state (mlx5_0/1)",
            "FAILING port_state (mlx5_1/1)",
            "FAILING subnet_manager (mlx5_1/1)",
        ]
    );
    finds(&checks, "port_state (mlx5_0/1)", Verdict::Failing, &["DOWN", "Polling", "cable"]);
    finds(&checks, "port_state (mlx5_1/1)", Verdict::Failing, &["INIT", "LinkUp", "opensm"]);
    finds(&checks, "subnet_manager (mlx5_1/1)", Verdict::Failing, &["LID 0", "opensm"]);
    finds(&checks, "gid_table (mlx5_0/1)", Verdict::Ok, &["index 0", "the port's first address"]);
    finds(&checks, "pcie_read_request (mlx5_0)", Verdict::Skipped, &["only root"]);
}

#[test]
fn spare_port_that_is_down_is_a_warning() {
    let mut host = machine!("infiniband-down");
    let port = "/sys/devices/pci0000:c0/0000:c0:01.1/0000:c1:00.1/infiniband/mlx5_1/ports/1";
    for (file, text) in [("state", "4: ACTIVE\n"), ("lid", "0x1d\n"), ("sm_lid", "0x1\n")] {
        host.nodes.insert(format!("{port}/{file}"), Node::File(text.as_bytes().to_vec()));
    }
    let checks = checked(&host, PLAN);
    assert_eq!(failing(&checks).count(), 0);
    finds(&checks, "port_state (mlx5_0/1)", Verdict::Warning, &["DOWN"]);
    finds(&checks, "subnet_manager (mlx5_1/1)", Verdict::Ok, &["LID 29, subnet manager at LID 1"]);
}

#[test]
fn roce_v1_with_small_mtu_is_a_warning() {
    let checks = checked(&machine!("roce-v1-small-mtu"), PLAN);
    assert_eq!(
        troubles(&checks),
        [
            "warning gid_table (mlx4_0/1)",
            "warning roce_mtu (mlx4_0/1)",
            "warning link_errors (mlx4_0/1)",
            "warning pcie_read_request (mlx4_0)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "gid_table", Verdict::Warning, &["index 1, 10.0.0.3: RoCE v1, routable"]);
    finds(&checks, "roce_mtu", Verdict::Warning, &["512 (network device 1000)", "ens3 mtu 1500"]);
    finds(&checks, "locked_memory", Verdict::Ok, &["64.0 KiB", "CAP_IPC_LOCK lifts"]);
    finds(
        &checks,
        "link_errors",
        Verdict::Warning,
        &["symbol_error 65535 of 100000", "down 3 times"],
    );
    finds(&checks, "pcie_read_request", Verdict::Warning, &["128", "setpci -s 0000:04:00.0"]);
}

#[test]
fn iwarp_needs_the_connection_manager() {
    let plan = Plan { peer: Some("10.0.4.2".to_owned()), ..PLAN };
    let checks = checked(&machine!("iwarp"), plan);
    assert_eq!(
        troubles(&checks),
        [
            "note rdma_devices (iwp59s0f0)",
            "FAILING rdma_modules",
            "FAILING rdma_cm_node",
            "FAILING librdmacm",
            "note retransmissions (iwp59s0f0/1)",
            "note pcie_link (iwp59s0f0)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "rdma_modules", Verdict::Failing, &["modprobe -a rdma_cm rdma_ucm"]);
    finds(&checks, "rdma_cm_node", Verdict::Failing, &["is missing", "sudo modprobe rdma_ucm"]);
    finds(&checks, "librdmacm", Verdict::Failing, &["sudo apt install librdmacm1"]);
    finds(&checks, "gid_table", Verdict::Ok, &["index 0", "iWARP connects by IP"]);
    finds(&checks, "port_netdev", Verdict::Ok, &["enp59s0f0 is up, MTU 1500"]);
    finds(&checks, "provider_libraries", Verdict::Ok, &["libirdma-rdmav57.so"]);
    finds(&checks, "roce_mtu", Verdict::Skipped, &["only RoCE"]);
    finds(&checks, "peer_route", Verdict::Ok, &["from 10.0.4.1"]);
}

#[test]
fn efa_device_lists_missing_operations() {
    let checks = checked(&machine!("efa"), PLAN);
    assert_eq!(troubles(&checks), ["note rdma_devices (rdmap0s6)", "FAILING locked_memory"]);
    finds(&checks, "rdma_devices", Verdict::Note, &["EFA, efa", "no reliable connections"]);
    finds(&checks, "locked_memory", Verdict::Failing, &["8.0 MiB", "384.0 MiB", "limits.d"]);
    finds(&checks, "pcie_link", Verdict::Skipped, &["virtual machines"]);
    finds(&checks, "port_netdev", Verdict::Skipped, &["only RoCE and iWARP"]);
    finds(&checks, "retransmissions", Verdict::Ok, &["none, 8123456 packets"]);
}

#[test]
fn soft_roce_is_reported_as_software_and_its_kernel_checked() {
    let checks = checked(&machine!("soft-roce"), Plan { nodes: 2, ..PLAN });
    assert_eq!(
        troubles(&checks),
        [
            "note rdma_devices (rxe0)",
            "warning soft_roce_kernel",
            "note roce_mtu (rxe0/1)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "rdma_devices", Verdict::Note, &["soft-RoCE (rxe)", "works, but in software"]);
    finds(&checks, "soft_roce_kernel", Verdict::Warning, &["Linux 6.12", "7.1"]);
    finds(&checks, "gid_table", Verdict::Ok, &["index 1, 10.99.0.2: RoCE v2, routable"]);
    finds(&checks, "roce_mtu", Verdict::Note, &["1024 (network device 1500)", "veth1 mtu 4200"]);
    finds(&checks, "provider_libraries", Verdict::Ok, &["librxe-rdmav57.so"]);
    finds(&checks, "pcie_link", Verdict::Skipped, &["a software device is on no bus"]);

    let mut initial = machine!("soft-roce");
    let link = Node::Link("net:[4026531840]".to_owned());
    initial.nodes.insert("/proc/self/ns/net".to_owned(), link);
    finds(&checked(&initial, PLAN), "soft_roce_kernel", Verdict::Note, &["keep soft-RoCE in it"]);
    let newer = Node::File(b"7.3.4-1-amd64\n".to_vec());
    initial.nodes.insert("/proc/sys/kernel/osrelease".to_owned(), newer);
    finds(&checked(&initial, PLAN), "soft_roce_kernel", Verdict::Ok, &["Linux 7.3"]);
}

#[test]
fn soft_iwarp_is_distinguished_from_an_adapter() {
    let checks = checked(&machine!("soft-iwarp"), Plan { nodes: 2, ..PLAN });
    assert_eq!(troubles(&checks), ["note rdma_devices (siw0)"]);
    finds(&checks, "rdma_devices", Verdict::Note, &["soft-iWARP (siw), 1 port", "software"]);
    finds(&checks, "gid_table", Verdict::Ok, &["index 0, 3a77:1f64:dc83::", "the only one"]);
    finds(&checks, "provider_libraries", Verdict::Ok, &["libsiw-rdmav34.so"]);
    finds(&checks, "soft_roce_kernel", Verdict::Skipped, &["no soft-RoCE"]);
    finds(&checks, "capabilities", Verdict::Ok, &["CAP_IPC_LOCK yes"]);
}

#[test]
fn devices_in_other_network_namespaces_are_notes() {
    let host = machine!("soft-roce-nodes");
    let plan = Plan { nodes: 2, peer: Some("10.77.0.2".to_owned()), ..PLAN };
    let checks = checked(&host, plan.clone());
    assert_eq!(
        troubles(&checks),
        [
            "note rdma_devices (rxe1)",
            "note rdma_devices (rxe2)",
            "note port_netdev (rxe2/1)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "port_netdev (rxe2/1)", Verdict::Note, &["e2 is in another"]);
    finds(&checks, "peer_route", Verdict::Ok, &["through rxe1/1: RoCE MTU 4096"]);

    // Network devices in several namespaces may have the same name.
    let mut alike = host.clone();
    for index in [0, 1] {
        let netdev =
            format!("/sys/devices/virtual/infiniband/rxe2/ports/1/gid_attrs/ndevs/{index}");
        alike.nodes.insert(netdev, Node::File(b"e1\n".to_vec()));
    }
    let addresses =
        b"Local:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 10.77.0.1\n        /32 host LOCAL\n     \
                      |-- 10.77.0.2\n        /32 link UNICAST\n";
    alike.nodes.insert("/proc/net/fib_trie".to_owned(), Node::File(addresses.to_vec()));
    let checks = checked(&alike, plan.clone());
    finds(&checks, "port_netdev (rxe1/1)", Verdict::Ok, &["e1 is up"]);
    finds(&checks, "port_netdev (rxe2/1)", Verdict::Note, &["e1 is in another"]);

    // If the local port is down, the port in the other namespace does not replace it.
    let mut alone = host;
    let state = "/sys/devices/virtual/infiniband/rxe1/ports/1/state".to_owned();
    alone.nodes.insert(state, Node::File(b"1: DOWN\n".to_vec()));
    let checks = checked(&alone, plan);
    finds(&checks, "port_state (rxe1/1)", Verdict::Failing, &["ip link set e1 up"]);
    finds(&checks, "port_netdev (rxe2/1)", Verdict::Failing, &["nsenter"]);
}

#[test]
fn container_without_permissions_fails_with_its_missing_options() {
    let checks = checked(&machine!("container"), PLAN);
    assert_eq!(
        troubles(&checks),
        [
            "FAILING memory",
            "warning cores",
            "FAILING processes",
            "note container",
            "FAILING uverbs_nodes (mlx5_0)",
            "warning rdma_cm_node",
            "FAILING libibverbs",
            "FAILING librdmacm",
            "FAILING provider_libraries (mlx5_0)",
            "FAILING locked_memory",
            "FAILING cgroup_rdma (mlx5_0)",
            "FAILING port_netdev (mlx5_0/1)",
            "note numa_node (mlx5_0)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "memory", Verdict::Failing, &["412.0 MiB", "by the control group"]);
    finds(&checks, "memory", Verdict::Failing, &["--nodes 3 --memory-bytes 68M"]);
    finds(&checks, "processes", Verdict::Failing, &["32, 48 needed", "--pids-limit"]);
    finds(&checks, "uverbs_nodes", Verdict::Failing, &["docker", "--device=/dev/infiniband"]);
    finds(&checks, "locked_memory", Verdict::Failing, &["64.0 KiB", "--ulimit memlock=-1"]);
    finds(&checks, "capabilities", Verdict::Ok, &["CAP_IPC_LOCK no, CAP_NET_RAW yes"]);
    finds(&checks, "cgroup_rdma", Verdict::Failing, &["hca_handle=2, 3 needed"]);
    finds(&checks, "port_netdev", Verdict::Failing, &["ens1np0 is in another network namespace"]);
    finds(&checks, "roce_mtu", Verdict::Skipped, &["not known"]);
}

#[test]
fn memory_is_bounded_by_both_cgroup_versions() {
    let left = |files: &[(&str, &str)]| {
        let mut host = machine!("laptop");
        for (path, text) in files {
            host.nodes.insert((*path).to_owned(), Node::File(text.as_bytes().to_vec()));
        }
        one(&checked(&host, PLAN), "memory").found.clone()
    };
    let newer = "/sys/fs/cgroup/a.slice";
    let found = left(&[
        ("/proc/self/cgroup", "0::/a.slice/b\n"),
        (&format!("{newer}/memory.max"), "1073741824\n"),
        (&format!("{newer}/memory.current"), "1073741824\n"),
        (&format!("{newer}/memory.stat"), "anon 1\nfile 3\ninactive_file 536870912\n"),
        (&format!("{newer}/b/memory.max"), "max\n"),
    ]);
    assert!(found.starts_with("512.0 MiB") && found.contains("control group"), "{found}");
    let older = "/sys/fs/cgroup/memory/x";
    let found = left(&[
        ("/proc/self/cgroup", "4:memory:/x\n0::/\n"),
        (&format!("{older}/memory.limit_in_bytes"), "2147483648\n"),
        (&format!("{older}/memory.usage_in_bytes"), "1073741824\n"),
        ("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
    ]);
    assert!(found.starts_with("1.0 GiB"), "{found}");
}

#[test]
fn laptop_without_rdma_runs_local_nodes() {
    let checks = checked(&machine!("laptop"), PLAN);
    assert_eq!(
        troubles(&checks),
        [
            "note frequency_governor",
            "FAILING open_files",
            "warning transparent_huge_pages",
            "note rdma_devices",
            "note io_uring",
        ]
    );
    finds(&checks, "open_files", Verdict::Failing, &["64 of at most 524288", "ulimit -n 88"]);
    finds(&checks, "locked_memory", Verdict::Ok, &["shared memory needs no locked memory"]);
    finds(&checks, "network_devices", Verdict::Ok, &["up, MTU 1500"]);
    finds(&checks, "tcp_congestion_control", Verdict::Ok, &["bbr", "uses cubic or reno instead"]);
    finds(&checks, "gid_table", Verdict::Skipped, &["no RDMA device"]);
    let outlooks: Vec<_> = fabrics(&checks, &[]).iter().map(|fabric| fabric.outlook).collect();
    assert_eq!(outlooks, ["fails", "absent", "fails"]);
}

#[test]
fn misplaced_adapter_is_found_by_bus_memory_and_counters() {
    let checks = checked(&machine!("roce-misplaced"), PLAN);
    assert_eq!(
        troubles(&checks),
        [
            "FAILING overcommit",
            "warning cpu_isolation",
            "warning clock",
            "note reserved_huge_pages",
            "note persistent_memory (namespace0.0)",
            "note persistent_memory (dax1.0)",
            "note rdma_adapters (0000:82:00.0)",
            "FAILING uverbs_nodes (mlx5_0)",
            "warning provider_libraries (mlx5_0)",
            "FAILING locked_memory",
            "note rdma_netns",
            "warning gid_table (mlx5_0/1)",
            "note roce_mtu (mlx5_0/1)",
            "note link_errors (mlx5_0/1)",
            "warning retransmissions (mlx5_0/1)",
            "warning flow_control (mlx5_0/1)",
            "warning pcie_link (mlx5_0)",
            "warning pcie_read_request (mlx5_0)",
            "note acs (mlx5_0)",
            "warning iommu (mlx5_0)",
            "warning numa_node (mlx5_0)",
            "note tcp_buffers",
        ]
    );
    finds(&checks, "persistent_memory (namespace0.0)", Verdict::Note, &["fsdax", "EOPNOTSUPP"]);
    finds(&checks, "persistent_memory (namespace1.0)", Verdict::Ok, &["devdax, 126.0 GiB"]);
    finds(&checks, "rdma_adapters (0000:82:00.0)", Verdict::Note, &["bnxt_en", "modprobe bnxt_re"]);
    finds(&checks, "locked_memory", Verdict::Failing, &["ulimit -l 393216"]);
    finds(&checks, "uverbs_nodes", Verdict::Failing, &["chmod 666 /dev/infiniband/uverbs0"]);
    finds(&checks, "gid_table", Verdict::Warning, &["link-local", "ip addr add"]);
    finds(&checks, "pcie_link", Verdict::Warning, &["16.0 GT/s x8 of 32.0 GT/s x16", "200 Gb/s"]);
    finds(&checks, "iommu", Verdict::Warning, &["DMA-FQ", "iommu=pt"]);
    finds(&checks, "numa_node", Verdict::Warning, &["node 1", "numactl --cpunodebind=1"]);
    finds(&checks, "acs", Verdict::Note, &["0000:80:01.0", "setpci"]);
    finds(&checks, "clock", Verdict::Warning, &["hpet", "echo tsc"]);
    finds(&checks, "retransmissions", Verdict::Warning, &["out_of_sequence 125000"]);
}

#[test]
fn peer_route_is_checked_by_address_and_mtu() {
    let host = machine!("connectx-roce");
    let to = |peer: &str| {
        let checks = checked(&host, Plan { peer: Some(peer.to_owned()), ..PLAN });
        one(&checks, "peer_route").clone()
    };
    let good = to("192.168.10.6");
    assert_eq!(good.verdict, Verdict::Ok, "{good:?}");
    assert!(good.found.contains("through mlx5_0/1: RoCE MTU 4096"), "{good:?}");
    let narrow = to("192.168.10.7");
    assert_eq!(narrow.verdict, Verdict::Warning, "{narrow:?}");
    assert!(
        narrow.found.contains("the port has RoCE MTU 4096, the route allows 1024"),
        "{narrow:?}"
    );
    let elsewhere = to("10.0.0.6");
    assert_eq!(elsewhere.verdict, Verdict::Warning, "{elsewhere:?}");
    assert!(elsewhere.found.contains("not through an RDMA port"), "{elsewhere:?}");
    let unknown = to("no;such");
    assert_eq!(unknown.verdict, Verdict::Failing, "{unknown:?}");
    assert!(unknown.fix.unwrap().contains("'no;such'"));
}

#[test]
fn device_limits_are_compared_with_the_plan() {
    let host = machine!("connectx-roce");
    let limits = DeviceLimits {
        max_mr_size: u64::MAX,
        max_mr: 16_777_216,
        max_qp: 131_072,
        max_cq: 16_777_216,
        max_srq: 8_388_608,
    };
    let judged = |limits: Option<DeviceLimits>| {
        let query = move |_: &str| limits;
        let subject = Subject::new(&host, PLAN, probes(), Some(&query));
        let rule = rules().find(|rule| rule.name == "device_limits").unwrap();
        rule.checks(&subject).remove(0)
    };
    assert_eq!(judged(Some(limits)).verdict, Verdict::Ok);
    let small = judged(Some(DeviceLimits { max_mr_size: 1 << 20, ..limits }));
    assert_eq!(small.verdict, Verdict::Failing);
    assert!(small.found.contains("max_mr_size is 1048576"), "{small:?}");
    assert_eq!(judged(Some(DeviceLimits { max_qp: 4, ..limits })).verdict, Verdict::Failing);
    assert_eq!(judged(Some(DeviceLimits { max_srq: 0, ..limits })).verdict, Verdict::Note);
    assert_eq!(judged(None).verdict, Verdict::Skipped);
}

#[test]
fn device_limits_are_queried_from_the_library() {
    let library = farside_fabric_verbs_fake::Fake::path().expect("the library next to the test");
    let library = library.to_string_lossy();
    let query = |device: &str| {
        let limits = farside_command::rdma::limits_by(&library, device);
        limits.map(DeviceLimits::from)
    };
    let limits = query("fake0").expect("a device with limits");
    assert_eq!((limits.max_qp, limits.max_cq, limits.max_srq), (4096, 1024, 1024));
    assert_eq!((limits.max_mr_size, limits.max_mr), (1 << 40, 1 << 16));
    assert_eq!(query("no-such-device"), None);
    assert_eq!(
        farside_command::rdma::limits_by("no-such-library", "fake0").map(DeviceLimits::from),
        None
    );
    let host = machine!("connectx-roce");
    let always = |_: &str| query("fake0");
    let subject = Subject::new(&host, PLAN, probes(), Some(&always));
    let rule = rules().find(|rule| rule.name == "device_limits").unwrap();
    let check = rule.checks(&subject).remove(0);
    assert_eq!(check.verdict, Verdict::Ok, "{check:?}");
}

#[test]
fn missing_required_probe_fails_and_optional_probe_warns() {
    let host = machine!("laptop");
    let mut probes = probes();
    for probe in &mut probes {
        probe.works = false;
        probe.remedy = "fix it".to_owned();
        probe.needed = probe.name == "memfd";
    }
    let subject = Subject::new(&host, PLAN, probes, None);
    let of_fabric = rules().filter(|rule| rule.group == Group::SharedMemory);
    let checks: Vec<_> = of_fabric.flat_map(|rule| rule.checks(&subject)).collect();
    finds(&checks, "memfd", Verdict::Failing, &["fix it"]);
    finds(&checks, "futex", Verdict::Warning, &["fix it"]);
}

/// Asserts the invariants of every result, for any content.
#[track_caller]
fn sound(host: &dyn Host) -> Vec<Check> {
    let checks = checked(host, Plan { peer: Some("peer".to_owned()), ..PLAN });
    for rule in rules() {
        assert!(checks.iter().any(|check| check.name == rule.name), "{} has no finding", rule.name);
    }
    for check in &checks {
        let grave = matches!(check.verdict, Verdict::Failing | Verdict::Warning);
        assert!(!grave || check.fix.as_ref().is_some_and(|fix| !fix.is_empty()), "{check:?}");
        assert!(!check.found.is_empty() && !check.why.is_empty(), "{check:?}");
    }
    let printed = lines(&checks, true);
    let control = |line: &String| line.chars().any(|c| c.is_control());
    assert!(!printed.iter().any(control), "{printed:?}");
    let report =
        Report { checks: &checks, fabrics: fabrics(&checks, &[]), counts: Counts::of(&checks) };
    serde_json::to_string(&report).unwrap();
    checks
}

#[test]
fn recorded_machines_satisfy_invariants() {
    for host in machines() {
        sound(&host);
    }
}

fn machines() -> Vec<Recorded> {
    vec![
        machine!("connectx-roce"),
        machine!("infiniband-down"),
        machine!("roce-v1-small-mtu"),
        machine!("iwarp"),
        machine!("efa"),
        machine!("soft-roce"),
        machine!("soft-roce-nodes"),
        machine!("soft-iwarp"),
        machine!("container"),
        machine!("laptop"),
        machine!("roce-misplaced"),
        machine!("hostile"),
    ]
}

#[test]
fn hostile_content_is_escaped_and_quoted() {
    let checks = sound(&machine!("hostile"));
    for check in &checks {
        let fix = check.fix.clone().unwrap_or_default();
        for hostile in ["$(reboot)", "eth0;reboot"] {
            let quoted = fix.matches(&format!("'{hostile}'")).count();
            let all = fix.matches(hostile).count();
            let inside = fix.matches(&format!("'{hostile} ")).count();
            assert_eq!(quoted + inside, all, "{check:?}");
        }
        assert!(!fix.contains("watchdog"), "{check:?}");
    }
    assert!(checks.iter().any(|check| check.of.as_deref() == Some("-rf")));
}

/// xorshift64*: sufficient for choosing bytes, and reproducible on every machine.
struct Random(Cell<u64>);

impl Random {
    fn new(seed: u64) -> Self {
        Self(Cell::new(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1))
    }

    fn next(&self) -> u64 {
        let mut x = self.0.get();
        x ^= x >> 12;
        x ^= x << 25;
        x ^= x >> 27;
        self.0.set(x);
        x.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 16
    }

    fn below(&self, bound: usize) -> usize {
        usize::try_from(self.next()).unwrap() % bound
    }

    fn pick<'a>(&self, among: &[&'a str]) -> &'a str {
        among[self.below(among.len())]
    }

    /// Returns bytes that are partly valid input of the parsers.
    fn bytes(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for _ in 0..self.below(12) {
            match self.below(4) {
                0 => bytes.extend(self.pick(PIECES).bytes()),
                1 => bytes.extend(self.next().to_string().bytes()),
                2 => {
                    bytes.push(self.pick(&[" ", "\n", ":", "-", ",", ".", "\t", "="]).as_bytes()[0])
                }
                _ => bytes.push(u8::try_from(self.next() & 0xff).unwrap()),
            }
        }
        if self.below(8) == 0 {
            bytes.resize(self.below(5_000), 0x10);
        }
        bytes
    }
}

/// Fragments of kernel files.
const PIECES: &[&str] = &[
    "4: ACTIVE",
    "5: LinkUp",
    "Ethernet",
    "InfiniBand",
    "RoCE v2",
    "IB/RoCE v1",
    "1: CA",
    "4: RNIC",
    "fe80::1",
    "0000:0000:0000:0000:0000:ffff:c0a8:0001",
    "Gb/sec (4X EDR)",
    "GT/s PCIe",
    "0-3,8",
    "max",
    "unlimited",
    "0x1f",
    "18446744073709551615",
    "-1",
    "Max open files ",
    "MemTotal: ",
    "HugePages_Total: ",
    "Hugepagesize: ",
    "MemAvailable: ",
    "[always]",
    "[",
    "]",
    "hca_handle=",
    "mlx5_0",
    "include /etc/*.conf",
    "0::/a/b/../c",
    "Cpus_allowed_list: ",
    "CapEff: ",
    "dax",
    "memory",
    "DMA-FQ",
    "Max locked memory ",
    "Max processes ",
    "kB",
    "x86_64",
    "Linux",
    "6.12.1",
];

/// A machine that answers every read with new random content.
struct Noise(Random);

impl Host for Noise {
    fn read(&self, _: &str) -> Result<Vec<u8>, Refusal> {
        match self.0.below(6) {
            0 => Err(Refusal::Missing),
            1 => Err(Refusal::Invalid),
            _ => Ok(self.0.bytes()),
        }
    }

    fn list(&self, _: &str) -> Vec<String> {
        let names = [
            "0",
            "1",
            "2",
            "255",
            "256",
            "99999999999",
            "mlx5_0",
            "..",
            "uverbs0",
            "cpu0",
            "lo",
            "namespace0.0",
            "dax0.0",
            "eth0;x",
            "a b",
            "lib-rdmav.so",
            "libmlx5-rdmav34.so",
            "x.conf",
        ];
        (0..self.0.below(4)).map(|_| self.0.pick(&names).to_owned()).collect()
    }

    fn link(&self, _: &str) -> Option<String> {
        (self.0.below(2) == 0).then(|| self.0.pick(&["net:[1]", "net:[2]"]).to_owned())
    }

    fn resolve(&self, path: &str) -> Option<String> {
        match self.0.below(4) {
            0 => None,
            1 => Some("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0".to_owned()),
            2 => {
                Some(self.0.pick(&["/", "", "/sys/bus/pci/drivers/efa", "/a/ice", "x"]).to_owned())
            }
            _ => Some(path.to_owned()),
        }
    }

    fn open(&self, path: &str) -> Result<(), Refusal> {
        self.read(path).map(drop)
    }

    fn variable(&self, _: &str) -> Option<String> {
        String::from_utf8(self.0.bytes()).ok()
    }

    fn route(&self, _: &str) -> Result<Route, String> {
        let address = |n: usize| std::net::IpAddr::from([10, 0, 0, u8::try_from(n).unwrap()]);
        match self.0.below(3) {
            0 => Err("none".to_owned()),
            _ => Ok(Route {
                to: address(self.0.below(3)),
                from: address(self.0.below(3)),
                mtu: u32::try_from(self.0.next() & 0xffff).unwrap(),
            }),
        }
    }
}

/// Runs `test` with many seeds, or with the one of `FARSIDE_SEED`; a panic names the seed.
fn seeded(runs: u64, test: impl Fn(u64)) {
    struct SeedReport(u64);
    impl Drop for SeedReport {
        fn drop(&mut self) {
            if std::thread::panicking() {
                let line = format!("run again with FARSIDE_SEED={}\n", self.0);
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
            }
        }
    }
    let given = std::env::var("FARSIDE_SEED").ok().and_then(|seed| seed.parse().ok());
    for seed in given.map_or(0..runs, |seed: u64| seed..seed + 1) {
        let report = SeedReport(seed);
        test(seed);
        drop(report);
    }
}

#[test]
fn checks_survive_random_content_in_recorded_machines() {
    let machines = machines();
    seeded(300, |seed| {
        let random = Random::new(seed);
        let mut host = machines[random.below(machines.len())].clone();
        let one_in = 1 + random.below(20);
        for node in host.nodes.values_mut() {
            if random.below(one_in) == 0 {
                *node = match random.below(8) {
                    0 => Node::Fails(Refusal::Other),
                    1 => Node::Link(random.pick(&["/", "..", "/sys/class/net", "x"]).to_owned()),
                    _ => Node::File(random.bytes()),
                };
            }
        }
        sound(&host);
    });
}

#[test]
fn random_machine_satisfies_invariants() {
    seeded(300, |seed| {
        sound(&Noise(Random::new(seed)));
    });
}
