//! Options of a verbs fabric, and why it cannot be opened.

use crate::wire::LEASE_MS;
use farside_bootstrap::{Endpoint, Security};
use std::fmt;
use std::time::Duration;

/// Options of a [`VerbsFabric`](crate::VerbsFabric).
#[derive(Clone, Debug)]
pub struct Options {
    /// The device, `mlx5_0` for example; `None` for the first one with a port that is up.
    pub device: Option<String>,
    /// The device's port, from 1; `None` for the first that is up.
    pub port: Option<u8>,
    /// The index of the port's GID; `None` for the best by the rule of `farside_base::choose_gid`.
    pub gid_index: Option<u32>,
    /// Where peers dial; port 0 lets the system choose. `None` for a fabric that only connects.
    pub listen: Option<Endpoint>,
    /// The endpoint that peers dial, if it differs from `listen`. Without it a fabric that listens at
    /// all addresses of a host announces the IPv4 address of its RDMA port, if that has one.
    pub advertise: Option<Endpoint>,
    /// Endpoints searched for names that are no full addresses, after this fabric's own ports.
    pub hosts: Vec<Endpoint>,
    /// Which peers are trusted with remote keys. The adapter's packets are plain text in any case.
    pub security: Security,
    /// How long a peer may be silent before its links are `Unreachable`; 50 ms to 10 minutes. The
    /// peer's may differ: each end sends keepalives often enough for the shorter of both.
    pub lease: Duration,
    /// How long a SEND waits for a live peer that posts no receive; at least the lease.
    pub patience: Duration,
    /// Most links that peers of one host may request, so that one host cannot take all queue pairs.
    pub links_per_host_max: usize,
    /// Largest requested packet, in bytes (256 to 4096); both ends use the smaller one.
    pub packet_bytes_max: u32,
    /// The service level of packets (InfiniBand) or their priority (RoCE): 0 to 7.
    pub service_level: u8,
    /// The traffic class of packets that carry a GID: on RoCE v2 the bits of DSCP and ECN.
    pub traffic_class: u8,
    /// Post by `ibv_post_send` even if the extended interface is available. For comparison.
    pub plain_posting: bool,
    /// Connect queue pairs by rdma_cm on devices other than iWARP, which always need it. Peers need the
    /// same setting.
    pub connection_manager: bool,
    /// Register memory without pinning it (`IBV_ACCESS_ON_DEMAND`): the adapter requests a page from
    /// the system when it needs one that is not present, at the cost of that page fault. By default
    /// memory is pinned. Refused if the device lacks it for an operation that the fabric uses, or
    /// declares it and loses bytes on trial (soft-RoCE).
    pub on_demand_paging: bool,
    /// Give each peer rkeys that are valid on its own link alone, by memory windows of type 2B, if the
    /// device has them. Otherwise, and by default, an rkey is valid on every link of this fabric,
    /// whichever peer received it. Not the default: a bind is a work request that waits for those in
    /// flight. If a SEND waits for a receive of the peer, whose program waits for its import, neither
    /// makes progress until the import fails after two leases; channels with notifications that take
    /// receives may run into that. Import before the peer may send.
    pub memory_windows: bool,
    /// The library: a name that the loader finds, or a path.
    pub library: String,
    /// The library of rdma_cm, which is opened if it is needed.
    pub connection_manager_library: String,
}

impl Options {
    /// Returns the defaults: everything discovered, no listener, and `security`.
    pub fn new(security: Security) -> Self {
        Self {
            device: None,
            port: None,
            gid_index: None,
            listen: None,
            advertise: None,
            hosts: Vec::new(),
            security,
            lease: Duration::from_secs(1),
            patience: Duration::from_secs(10),
            links_per_host_max: 2048,
            packet_bytes_max: 4096,
            service_level: 0,
            traffic_class: 0,
            plain_posting: false,
            connection_manager: false,
            on_demand_paging: false,
            memory_windows: false,
            library: crate::ffi::LIBRARY.to_owned(),
            connection_manager_library: crate::ffi::CONNECTION_MANAGER.to_owned(),
        }
    }

    /// Returns the name of the first option that is out of its range.
    pub(crate) fn wrong(&self) -> Option<&'static str> {
        let [least, most] = [LEASE_MS.start(), LEASE_MS.end()];
        let time = |ms: &u32| Duration::from_millis(u64::from(*ms));
        let lease = time(least)..=time(most);
        let table = [
            (!lease.contains(&self.lease), "lease"),
            (self.patience < self.lease, "patience"),
            (self.links_per_host_max == 0, "links_per_host_max"),
            (mtu_of(self.packet_bytes_max).is_none(), "packet_bytes_max"),
            (self.service_level > 7, "service_level"),
            (self.port == Some(0), "port"),
        ];
        table.into_iter().find(|(wrong, _)| *wrong).map(|(_, name)| name)
    }
}

/// Returns the largest `ibv_mtu` of at most this many bytes.
pub(crate) fn mtu_of(bytes: u32) -> Option<u8> {
    (1..=5).rev().find(|mtu| mtu_bytes(*mtu) <= bytes)
}

/// Returns the bytes of a packet, by `ibv_mtu`.
pub(crate) fn mtu_bytes(mtu: u8) -> u32 {
    128 << mtu
}

/// Why a fabric cannot be opened.
#[derive(Debug)]
#[non_exhaustive]
pub enum OpenError {
    /// libibverbs is not installed, or not such a library.
    NoLibrary {
        /// The library that was requested.
        library: String,
        /// The loader's words.
        reason: String,
    },
    /// The machine has no RDMA device.
    NoDevices,
    /// There is no device of that name.
    NoSuchDevice {
        /// The requested name.
        asked: String,
        /// The existing devices.
        devices: Vec<String>,
    },
    /// No port is up.
    NoPort {
        /// The checked devices, each with the state of its port.
        looked_at: Vec<String>,
    },
    /// The port has no address that a connection could name.
    NoGid {
        /// Device and port.
        port: String,
        /// Why.
        reason: String,
    },
    /// The device lacks something that this fabric needs.
    Lacks {
        /// Its name.
        device: String,
        /// What it lacks.
        what: &'static str,
    },
    /// Queue pairs are to be connected by rdma_cm, which is not to be had.
    NoManager {
        /// The device.
        device: String,
        /// Why rdma_cm: the device requires it, or it was requested.
        because: &'static str,
        /// What is missing.
        reason: String,
    },
    /// An option is out of its range; its name.
    Option(&'static str),
    /// `Protect::Everything` was requested, and the adapter's packets cannot be protected.
    CannotProtect,
    /// The system refused: the operation, and its reason.
    System(&'static str, std::io::Error),
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoLibrary { library, reason } => write!(
                f,
                "not available: {library} not found; install rdma-core (Debian: libibverbs1 \
                 ibverbs-providers); the loader says: {reason}"
            ),
            Self::NoDevices => f.write_str(
                "not available: no RDMA device; load its driver, or for trying out soft-RoCE: \
                 `rdma link add rxe0 type rxe netdev eth0`",
            ),
            Self::NoSuchDevice { asked, devices } => {
                write!(f, "no device {asked}; there are: {}", devices.join(", "))
            }
            Self::NoPort { looked_at } => {
                write!(f, "no port is up: {}", looked_at.join(", "))
            }
            Self::NoGid { port, reason } => write!(
                f,
                "{port} has no usable GID: {reason}; give its network device an address, or name \
                 an index"
            ),
            Self::Lacks { device, what } => write!(f, "{device} lacks {what}"),
            Self::NoManager { device, because, reason } => write!(
                f,
                "{device} needs rdma_cm ({because}): {reason}; install librdmacm (Debian: librdmacm1), \
                 load the kernel's module rdma_ucm, and give the device's network device an address"
            ),
            Self::Option(name) => write!(f, "the option `{name}` is out of its range"),
            Self::CannotProtect => f.write_str(
                "RDMA adapters send data in plain text: use Protect::Handshake here, or the tcp \
                 fabric where everything must be protected",
            ),
            Self::System(what, reason) => write!(f, "{what}: {reason}"),
        }
    }
}

impl std::error::Error for OpenError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::System(_, reason) => Some(reason),
            _ => None,
        }
    }
}

/// Transport retries of an adapter (`retry_cnt`) before a peer counts as unreachable.
pub(crate) const RETRIES: u8 = 6;
