//! Reads the RDMA devices and ports of a machine from sysfs
//! (Linux, `Documentation/ABI/stable/sysfs-class-infiniband`).

use super::host::Host;
use farside_base::{GidEntry, GidKind};
use std::net::Ipv6Addr;

const CLASS: &str = "/sys/class/infiniband";
/// Bounds on devices and ports read; no machine has more.
const DEVICES_MAX: usize = 64;
const PORTS_MAX: usize = 16;

/// Network type of a port.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Transport {
    InfiniBand,
    Roce,
    Iwarp,
    /// The Elastic Fabric Adapter: datagrams that are reliable but not ordered (SRD).
    Efa,
    Unknown,
}

impl Transport {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::InfiniBand => "InfiniBand",
            Self::Roce => "RoCE",
            Self::Iwarp => "iWARP",
            Self::Efa => "EFA",
            Self::Unknown => "of an unknown kind",
        }
    }
}

/// Kind of a device without hardware.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Software {
    /// `rdma_rxe`
    SoftRoce,
    /// `siw`
    SoftIwarp,
    /// Another device that is on no bus.
    Other,
}

impl Software {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::SoftRoce => "soft-RoCE (rxe)",
            Self::SoftIwarp => "soft-iWARP (siw)",
            Self::Other => "virtual",
        }
    }
}

/// An RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Device {
    pub(crate) name: String,
    pub(crate) transport: Transport,
    /// Kind of software device; `None` for an adapter.
    pub(crate) software: Option<Software>,
    /// Folder of its PCI function, with links resolved, if it has one.
    pub(crate) pci: Option<String>,
    /// The kernel module that drives the PCI function.
    pub(crate) driver: Option<String>,
    pub(crate) firmware: Option<String>,
    /// Name of its device node in `/dev/infiniband`.
    pub(crate) uverbs: Option<String>,
    pub(crate) ports: Vec<Port>,
}

/// A port of an RDMA device.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Port {
    /// Device and port number: `mlx5_0/1`.
    pub(crate) name: String,
    /// Its folder in sysfs.
    pub(crate) path: String,
    pub(crate) device: String,
    pub(crate) number: String,
    pub(crate) transport: Transport,
    pub(crate) software: bool,
    /// Number and name, from `4: ACTIVE`.
    pub(crate) state: Option<(u64, String)>,
    pub(crate) phys_state: Option<(u64, String)>,
    pub(crate) gids: Vec<Gid>,
    /// Its network device, if known.
    pub(crate) netdev: Option<String>,
    /// Whether the network device is in this network namespace, or the port needs none. If namespaces share RDMA
    /// devices, sysfs also lists those of other namespaces.
    pub(crate) here: bool,
}

/// A set entry of a GID table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Gid {
    pub(crate) index: u32,
    pub(crate) gid: [u8; 16],
    pub(crate) kind: GidKind,
    pub(crate) netdev: Option<String>,
    pub(crate) netdev_up: Option<bool>,
}

impl Gid {
    pub(crate) fn entry(&self) -> GidEntry<'_> {
        GidEntry {
            index: self.index,
            gid: self.gid,
            kind: self.kind,
            netdev: self.netdev.as_deref(),
            netdev_up: self.netdev_up,
        }
    }

    /// Formats the address; as IPv4 if it is an IPv4-mapped address.
    pub(crate) fn address(&self) -> String {
        let six = Ipv6Addr::from(self.gid);
        six.to_ipv4_mapped().map_or_else(|| six.to_string(), |four| four.to_string())
    }
}

impl Port {
    pub(crate) fn is_active(&self) -> bool {
        self.state.as_ref().is_some_and(|(number, _)| *number == 4)
    }

    /// Whether the port is active and usable from this network namespace.
    pub(crate) fn works_here(&self) -> bool {
        self.is_active() && self.here
    }

    /// Returns the path of a file of the port.
    pub(crate) fn file(&self, name: &str) -> String {
        format!("{}/{name}", self.path)
    }
}

impl Device {
    /// Returns the path of a file of its PCI function.
    pub(crate) fn pci_file(&self, name: &str) -> Option<String> {
        Some(format!("{}/{name}", self.pci.as_ref()?))
    }

    /// Returns a printable name of the device's kind.
    pub(crate) fn kind(&self) -> String {
        match self.software {
            Some(software) => software.name().to_owned(),
            None => self.transport.name().to_owned(),
        }
    }

    /// Returns the name of its provider library: `mlx5` for `libmlx5-rdmav34.so`.
    pub(crate) fn provider(&self) -> Option<&str> {
        match self.software {
            Some(Software::SoftRoce) => return Some("rxe"),
            Some(Software::SoftIwarp) => return Some("siw"),
            Some(Software::Other) | None => {}
        }
        let driver = self.driver.as_deref()?;
        let known = PROVIDERS.iter().find(|(name, _)| *name == driver);
        Some(known.map_or(driver, |(_, provider)| provider))
    }
}

/// PCI drivers whose provider library has another name.
const PROVIDERS: &[(&str, &str)] = &[
    ("mlx5_core", "mlx5"),
    ("mlx4_core", "mlx4"),
    ("ib_mthca", "mthca"),
    ("ice", "irdma"),
    ("i40e", "irdma"),
    ("idpf", "irdma"),
    ("bnxt_en", "bnxt_re"),
    ("qede", "qedr"),
    ("hns3", "hns"),
    ("hfi1", "hfi1verbs"),
    ("ib_qib", "ipathverbs"),
];

/// Returns all RDMA devices visible to this process.
pub(crate) fn devices(host: &dyn Host) -> Vec<Device> {
    let mut names = host.names(CLASS);
    names.truncate(DEVICES_MAX);
    names.into_iter().map(|name| device(host, name)).collect()
}

fn device(host: &dyn Host, name: String) -> Device {
    let path = format!("{CLASS}/{name}");
    let node_type = host.value(&format!("{path}/node_type")).unwrap_or_default();
    let node_type = node_type.split_once(": ").map_or("", |(_, name)| name);
    let software = software(host, &path, node_type);
    let resolved = host.resolve(&format!("{path}/device")).filter(|_| software.is_none());
    let pci = resolved.and_then(|folder| pci_function(host, &folder));
    let driver = pci.as_ref().and_then(|folder| host.resolve(&format!("{folder}/driver")));
    let driver = driver.and_then(|folder| Some(folder.rsplit_once('/')?.1.to_owned()));
    let mut ports = host.names(&format!("{path}/ports"));
    ports.truncate(PORTS_MAX);
    let ports: Vec<_> = ports
        .into_iter()
        .map(|number| {
            let layer = host.value(&format!("{path}/ports/{number}/link_layer"));
            let transport = transport(node_type, layer.as_deref(), driver.as_deref());
            port(host, &name, number, (transport, software.is_some()))
        })
        .collect();
    Device {
        transport: ports.first().map_or(Transport::Unknown, |port| port.transport),
        software,
        driver,
        firmware: host.value(&format!("{path}/fw_ver")),
        uverbs: uverbs(host, &name),
        ports,
        pci,
        name,
    }
}

/// Returns the PCI function that a device is, or that contains it (sub-functions).
fn pci_function(host: &dyn Host, folder: &str) -> Option<String> {
    let mut at = folder;
    while at.starts_with("/sys/devices/pci") {
        if host.exists(&format!("{at}/vendor")) && host.exists(&format!("{at}/config")) {
            return Some(at.to_owned());
        }
        at = at.rsplit_once('/')?.0;
    }
    None
}

/// Returns the kind of a software device; `None` for an adapter. Device names are arbitrary, and old kernels place
/// software devices below the PCI function of their network device; but only soft-RoCE has a `parent` file.
fn software(host: &dyn Host, path: &str, node_type: &str) -> Option<Software> {
    if host.name(&format!("{path}/parent")).is_some() {
        return Some(Software::SoftRoce);
    }
    let described = host.value(&format!("{path}/node_desc"));
    let siw = described.is_some_and(|text| text.starts_with("Software iWARP stack"));
    let on_a_bus = host.exists(&format!("{path}/device"));
    match (node_type, siw, on_a_bus) {
        ("RNIC", true, _) | ("RNIC", _, false) => Some(Software::SoftIwarp),
        (_, _, false) => Some(Software::Other),
        (_, _, true) => None,
    }
}

fn transport(node_type: &str, layer: Option<&str>, driver: Option<&str>) -> Transport {
    match (node_type, layer) {
        ("RNIC", _) => Transport::Iwarp,
        _ if driver == Some("efa") => Transport::Efa,
        ("CA", Some("InfiniBand")) => Transport::InfiniBand,
        ("CA", Some("Ethernet")) => Transport::Roce,
        _ => Transport::Unknown,
    }
}

fn uverbs(host: &dyn Host, device: &str) -> Option<String> {
    let class = "/sys/class/infiniband_verbs";
    let is_its = |name: &String| {
        host.value(&format!("{class}/{name}/ibdev")).is_some_and(|ibdev| ibdev == device)
    };
    host.names(class).into_iter().filter(|name| name.starts_with("uverbs")).find(is_its)
}

fn port(
    host: &dyn Host,
    device: &str,
    number: String,
    (transport, software): (Transport, bool),
) -> Port {
    let path = format!("{CLASS}/{device}/ports/{number}");
    let gids = gids(host, &path, transport);
    let of_gid = gids.iter().find_map(|gid| gid.netdev.clone());
    let netdev = of_gid.or_else(|| netdev(host, device, &number));
    let needs_netdev = matches!(transport, Transport::Roce | Transport::Iwarp);
    // A network device of the same name may exist in another network namespace.
    let is_there = |netdev: &String| host.exists(&format!("/sys/class/net/{netdev}"));
    Port {
        here: !needs_netdev
            || netdev.as_ref().is_some_and(is_there) && !has_foreign_address(host, &gids),
        name: format!("{device}/{number}"),
        device: device.to_owned(),
        transport,
        software,
        state: numbered(host.value(&format!("{path}/state"))),
        phys_state: numbered(host.value(&format!("{path}/phys_state"))),
        gids,
        netdev,
        number,
        path,
    }
}

/// Whether the GIDs contain IPv4 addresses, none of which is local to this network namespace. Returns `false` if
/// that cannot be determined.
fn has_foreign_address(host: &dyn Host, gids: &[Gid]) -> bool {
    let addresses = gids.iter().filter_map(|gid| Ipv6Addr::from(gid.gid).to_ipv4_mapped());
    let lines: Vec<_> = addresses.map(|address| format!("|-- {address}")).collect();
    let Some(text) = host.text("/proc/net/fib_trie").filter(|_| !lines.is_empty()) else {
        return false;
    };
    // A line with an address, then its role in each table: `/32 host LOCAL`.
    let mut of_ours = false;
    !text.lines().map(str::trim).any(|line| {
        if line.starts_with("|--") {
            of_ours = lines.iter().any(|own| own == line);
        }
        of_ours && line.ends_with("host LOCAL")
    })
}

/// Parses `4: ACTIVE`.
fn numbered(value: Option<String>) -> Option<(u64, String)> {
    let value = value?;
    let (number, name) = value.split_once(": ")?;
    Some((number.parse().ok()?, name.to_owned()))
}

/// Returns the network device of a port without GIDs: the one of the same PCI function and port, or soft-RoCE's
/// parent.
fn netdev(host: &dyn Host, device: &str, port: &str) -> Option<String> {
    let path = format!("{CLASS}/{device}");
    if let Some(parent) = host.name(&format!("{path}/parent")) {
        return Some(parent);
    }
    let port: u64 = port.parse().ok()?;
    let folder = format!("{path}/device/net");
    let is_its =
        |name: &String| host.number(&format!("{folder}/{name}/dev_port")) == port.checked_sub(1);
    host.names(&folder).into_iter().find(is_its)
}

fn gids(host: &dyn Host, port: &str, transport: Transport) -> Vec<Gid> {
    let indexes = host.names(&format!("{port}/gids")).into_iter();
    indexes.filter_map(|name| gid(host, port, transport, name.parse().ok()?)).collect()
}

/// Reads a GID entry; `None` if it is unset (all zero; reads of its type and network device then fail with EINVAL).
fn gid(host: &dyn Host, port: &str, transport: Transport, index: u32) -> Option<Gid> {
    let address: Ipv6Addr = host.value(&format!("{port}/gids/{index}"))?.parse().ok()?;
    if address.is_unspecified() {
        return None;
    }
    let kind = match (transport, host.value(&format!("{port}/gid_attrs/types/{index}")).as_deref())
    {
        (Transport::Iwarp, _) => GidKind::Iwarp,
        (Transport::Roce, Some("RoCE v2")) => GidKind::RoceV2,
        (Transport::Roce, _) => GidKind::RoceV1,
        (Transport::InfiniBand | Transport::Efa | Transport::Unknown, _) => GidKind::InfiniBand,
    };
    let netdev = host.name(&format!("{port}/gid_attrs/ndevs/{index}"));
    let netdev_up = netdev.as_ref().and_then(|name| is_up(host, name));
    Some(Gid { index, gid: address.octets(), kind, netdev, netdev_up })
}

/// Whether a network device in this network namespace is up and has a carrier; `None` if unknown.
pub(crate) fn is_up(host: &dyn Host, netdev: &str) -> Option<bool> {
    match host.value(&format!("/sys/class/net/{netdev}/operstate"))?.as_str() {
        "up" => Some(true),
        // Tunnels, bridges and loopback often report no state; IFF_UP in their flags decides.
        "unknown" => {
            host.number(&format!("/sys/class/net/{netdev}/flags")).map(|flags| flags & 1 == 1)
        }
        _ => Some(false),
    }
}
