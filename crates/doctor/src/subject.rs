//! Input of the checks: a machine, the planned nodes, and the probe results of the shared-memory fabric.

use super::host::Host;
use super::rdma::{Device, devices};
use serde::Serialize;

/// The planned deployment on the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Number of node processes.
    pub(crate) nodes: u64,
    /// Global memory of each node.
    pub(crate) memory_bytes: u64,
    /// Name or address of a machine that nodes on this one will connect to.
    pub(crate) peer: Option<String>,
}

impl Plan {
    /// Returns the bytes that one node registers with an adapter: global memory, cache of remote lines, and buffers.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(CACHE_BYTES).saturating_add(BUFFER_BYTES)
    }
}

/// Default cache size of a node.
const CACHE_BYTES: u64 = 64 << 20;
/// Generous estimate of the rings and slots of a node.
const BUFFER_BYTES: u64 = 64 << 20;

/// Result of one probe of the shared-memory fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Probe {
    pub(crate) name: String,
    /// Whether the fabric cannot work without it.
    pub(crate) needed: bool,
    pub(crate) works: bool,
    pub(crate) finding: String,
    pub(crate) remedy: String,
}

impl From<farside_fabric_shm::Check> for Probe {
    fn from(check: farside_fabric_shm::Check) -> Self {
        Self {
            name: check.name.replace(' ', "_"),
            needed: check.needed,
            works: check.works,
            finding: check.finding,
            remedy: check.remedy.unwrap_or_default().to_owned(),
        }
    }
}

/// Limits that `ibv_query_device` returns and sysfs does not show.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct DeviceLimits {
    /// Size of the largest memory region.
    pub(crate) max_mr_size: u64,
    /// Number of memory regions.
    pub(crate) max_mr: u64,
    /// Number of queue pairs.
    pub(crate) max_qp: u64,
    /// Number of completion queues.
    pub(crate) max_cq: u64,
    /// Number of shared receive queues.
    pub(crate) max_srq: u64,
}

impl From<farside_fabric_verbs::Limits> for DeviceLimits {
    fn from(limits: farside_fabric_verbs::Limits) -> Self {
        Self {
            max_mr_size: limits.region_bytes,
            max_mr: limits.regions,
            max_qp: limits.queue_pairs,
            max_cq: limits.completion_queues,
            max_srq: limits.shared_receive_queues,
        }
    }
}

/// Queries the limits of a device, given its name; `None` if the query fails.
pub(crate) type QueryLimits<'a> = &'a dyn Fn(&str) -> Option<DeviceLimits>;

/// Everything that the checks may inspect.
pub(crate) struct Subject<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) plan: Plan,
    /// Probe results of the shared-memory fabric.
    pub(crate) probes: Vec<Probe>,
    /// Query for device limits; `None` in tests without a verbs library.
    pub(crate) limits: Option<QueryLimits<'a>>,
    /// The RDMA devices, read once.
    pub(crate) devices: Vec<Device>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(
        host: &'a dyn Host,
        plan: Plan,
        probes: Vec<Probe>,
        limits: Option<QueryLimits<'a>>,
    ) -> Self {
        Self { host, plan, probes, limits, devices: devices(host) }
    }

    /// Returns the kind of container that this process runs in, if a marker file shows it.
    pub(crate) fn container(&self) -> Option<&'static str> {
        let marks = [
            ("/run/.containerenv", "podman"),
            ("/.dockerenv", "docker"),
            ("/var/run/secrets/kubernetes.io", "kubernetes"),
        ];
        let by_mark = marks.into_iter().find(|(path, _)| self.host.exists(path));
        by_mark.map(|(_, name)| name).or_else(|| {
            self.host.exists("/run/systemd/container").then_some("systemd-nspawn or lxc")
        })
    }

    /// Returns the command that installs a package on this distribution.
    pub(crate) fn install(&self, package: Package) -> String {
        let release = self.host.text("/etc/os-release").unwrap_or_default();
        let words: Vec<_> = release
            .lines()
            .filter_map(|line| line.strip_prefix("ID=").or(line.strip_prefix("ID_LIKE=")))
            .flat_map(|names| names.trim_matches('"').split_whitespace())
            .collect();
        let is = |names: &[&str]| words.iter().any(|word| names.contains(word));
        let (tool, at) = match () {
            () if is(&["debian", "ubuntu"]) => ("apt install", 0),
            () if is(&["fedora", "rhel", "centos", "amzn"]) => ("dnf install", 1),
            () if is(&["suse", "opensuse", "sles"]) => ("zypper install", 1),
            () if is(&["arch"]) => ("pacman -S", 2),
            () if is(&["alpine"]) => ("apk add", 3),
            () => return format!("install {} (rdma-core)", package.names()[0]),
        };
        format!("sudo {tool} {}", package.names()[at])
    }
}

/// Packages, by content.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Package {
    Verbs,
    ConnectionManager,
    Providers,
}

impl Package {
    /// Returns the package names on Debian, Fedora, Arch and Alpine.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Verbs => ["libibverbs1", "libibverbs", "rdma-core", "rdma-core"],
            Self::ConnectionManager => ["librdmacm1", "librdmacm", "rdma-core", "rdma-core"],
            Self::Providers => ["ibverbs-providers", "libibverbs", "rdma-core", "rdma-core"],
        }
    }
}
