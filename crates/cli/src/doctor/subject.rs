//! What the checks judge: a machine, what is planned on it, and what others found out about it.

use super::host::Host;
use super::rdma::{Device, devices};
use serde::Serialize;

/// What is planned on the machine.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Plan {
    /// Node processes on it.
    pub(crate) nodes: u64,
    /// Global memory of each.
    pub(crate) memory_bytes: u64,
    /// A machine that nodes of this one will reach, by name or address.
    pub(crate) peer: Option<String>,
}

impl Plan {
    /// What one node registers with an adapter: its memory, its cache of others' lines, and buffers.
    pub(crate) fn pinned_bytes(&self) -> u64 {
        self.memory_bytes.saturating_add(CACHE_BYTES).saturating_add(BUFFER_BYTES)
    }
}

/// The cache that a node has unless it is told otherwise.
const CACHE_BYTES: u64 = 64 << 20;
/// Rings and slots of a node, roomily.
const BUFFER_BYTES: u64 = 64 << 20;

/// One thing that the shared-memory fabric rests on or likes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Tried {
    pub(crate) name: String,
    /// Whether nothing works without it.
    pub(crate) needed: bool,
    pub(crate) works: bool,
    pub(crate) finding: String,
    pub(crate) remedy: String,
}

impl From<farside_fabric_shm::Check> for Tried {
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

/// What a device query (`ibv_query_device`) says and sysfs does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct DeviceLimits {
    /// Largest memory region.
    pub(crate) max_mr_size: u64,
    /// Memory regions.
    pub(crate) max_mr: u64,
    /// Queue pairs.
    pub(crate) max_qp: u64,
    /// Completion queues.
    pub(crate) max_cq: u64,
    /// Shared receive queues.
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

/// Asks a device, by its name, for its limits; `None` when it cannot be asked.
pub(crate) type AskLimits<'a> = &'a dyn Fn(&str) -> Option<DeviceLimits>;

/// All that the checks may look at.
pub(crate) struct Subject<'a> {
    pub(crate) host: &'a dyn Host,
    pub(crate) plan: Plan,
    /// What the shared-memory fabric tried.
    pub(crate) tried: Vec<Tried>,
    /// Who answers for devices' limits; `None` when nobody was given.
    pub(crate) limits: Option<AskLimits<'a>>,
    /// The RDMA devices, read once.
    pub(crate) devices: Vec<Device>,
}

impl<'a> Subject<'a> {
    pub(crate) fn new(
        host: &'a dyn Host,
        plan: Plan,
        tried: Vec<Tried>,
        limits: Option<AskLimits<'a>>,
    ) -> Self {
        Self { host, plan, tried, limits, devices: devices(host) }
    }

    /// In which kind of container this process runs, as far as that can be seen.
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

    /// The line that installs packages on this distribution.
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

/// Packages by what they bring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Package {
    Verbs,
    ConnectionManager,
    Providers,
}

impl Package {
    /// Names on Debian, Fedora, Arch and Alpine.
    const fn names(self) -> [&'static str; 4] {
        match self {
            Self::Verbs => ["libibverbs1", "libibverbs", "rdma-core", "rdma-core"],
            Self::ConnectionManager => ["librdmacm1", "librdmacm", "rdma-core", "rdma-core"],
            Self::Providers => ["ibverbs-providers", "libibverbs", "rdma-core", "rdma-core"],
        }
    }
}
