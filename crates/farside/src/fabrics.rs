//! The fabrics of this build, opened by a URL.
//!
//! | URL | reaches |
//! | --- | --- |
//! | `shm` | processes of this machine and user |
//! | `tcp://HOST:PORT[,HOST:PORT...]` | hosts of an IP network |
//! | `verbs://HOST:PORT[,HOST:PORT...]` | hosts of an InfiniBand or RoCE network, by libibverbs |
//!
//! The hosts are searched, in this order, for names without a host. Options follow as a query
//! (`tcp://10.0.0.1:7471?listen=0.0.0.0:7471&advertise=192.0.2.1:7471`):
//!
//! | option | is |
//! | --- | --- |
//! | `listen=HOST:PORT` | where this process listens; port 0 lets the system choose |
//! | `advertise=HOST:PORT` | where others dial it, if that differs: behind address translation |
//! | `device=DEVICE[:PORT[:GID]]` | the RDMA device (`verbs` only), as `mlx5_0:1:3` |
//!
//! The libraries of `verbs` are loaded when such a fabric is opened, and not before.

mod device;
mod url;

pub use device::Device;
pub use farside_base::{
    Access, AtomicScope, BackPressure, Capabilities, Completion, CompletionKind, CompletionStatus,
    FlushScope, FlushWay, LinkId, LocalSlice, Memory, Missing, Operation, OutOfBounds, Receive,
    ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteKey, RemoteRegionId, RemoteSlice,
    Requirements, Source, WordScope, Work, WorkFlags, WorkId,
};
pub use farside_bootstrap::{Address, AddressError, Admission, Endpoint, HostAddress};
pub use farside_fabric::{
    Arena, DeviceMemory, Fabric, FabricError, LinkEvent, Loss, MemFabric, NotReached, PeerProcess,
    Port, PortSpec, Posted, Reached, Region, RegionSpec, SharedWord, Stop, Waiter,
};
pub use farside_fabric_tcp::Congestion;

use crate::registered::control;
use crate::security::Security;
use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use farside_fabric_verbs::{self as verbs, OpenError, VerbsFabric};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// Opens a fabric that reaches the hosts of a URL ([module](self)). It listens only if the URL has
/// `listen=`; over `shm` every fabric listens.
///
/// *Security*: `shm` reaches processes of the same user and does not use it. The data packets of `verbs`
/// are plain text.
///
/// ```
/// use farside::fabrics;
/// use farside::security::Security;
///
/// # fn main() -> Result<(), farside::Error> {
/// let fabric = fabrics::open("tcp://127.0.0.1:7471,127.0.0.1:7472", Security::open())?;
/// assert_eq!(fabric.name(), "tcp");
/// let wrong = fabrics::open("udp://127.0.0.1:7471", Security::open());
/// assert!(wrong.is_err_and(|error| error.code == farside::ErrorCode::BadConfiguration));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// `BadConfiguration`, which lists the forms, if the URL is malformed or an option is out of its range;
/// `AddressTaken` if another process listens there; `FabricLacks` if an RDMA device lacks what is needed;
/// `System` if the machine has no such fabric (`farside doctor` says what to change).
pub fn open(url: &str, security: Security) -> Result<Arc<dyn Fabric>, Error> {
    Ok(FabricOptions::parse(url, security)?.open()?.fabric)
}

/// Opens a fabric as [`open`], which listens at `listen=` or else at the first host of the URL: for the
/// end that others connect to.
///
/// ```
/// use farside::fabrics;
/// use farside::security::Security;
///
/// # fn main() -> Result<(), farside::Error> {
/// let fabric = fabrics::listen("tcp://127.0.0.1:0", Security::open())?; // port 0: the system chooses
/// assert!(fabric.host().is_some_and(|at| at.port() > 0));
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// As [`open`].
pub fn listen(url: &str, security: Security) -> Result<Arc<dyn Fabric>, Error> {
    let mut options = FabricOptions::parse(url, security)?;
    options.listen = options.listen.or_else(|| options.hosts.first().cloned());
    Ok(options.open()?.fabric)
}

/// Opens the shared-memory fabric, for processes of this machine and user: `open("shm", ...)`.
///
/// # Errors
/// `System` if the machine does not let this process use shared memory; `farside doctor` says what to
/// change.
pub fn shared_memory() -> Result<Arc<dyn Fabric>, Error> {
    match ShmFabric::new() {
        Ok(fabric) => Ok(Arc::new(fabric)),
        Err(error) => Err(Error::with(ErrorCode::System, error.to_string())),
    }
}

/// A kind of fabric, by the scheme of its URL.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Scheme {
    /// Shared memory between processes of one machine and user.
    Shm,
    /// TCP between hosts.
    Tcp,
    /// InfiniBand or RoCE between hosts, by libibverbs.
    Verbs,
}

impl Scheme {
    /// Returns its name in URLs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shm => "shm",
            Self::Tcp => "tcp",
            Self::Verbs => "verbs",
        }
    }
}

/// Options of a fabric: what a URL says, and what it need not say. Each fabric uses those that it has.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct FabricOptions {
    /// The kind of fabric.
    pub scheme: Scheme,
    /// Fabrics of other hosts: searched, in this order, for a name without a host.
    pub hosts: Vec<Endpoint>,
    /// The endpoint at which it listens; port 0 lets the system choose. `None` for a fabric that only
    /// connects.
    pub listen: Option<Endpoint>,
    /// The endpoint that peers dial, if it differs from `listen`: behind address translation, or if the
    /// fabric listens at all addresses of a host.
    pub advertise: Option<Endpoint>,
    /// Which peers are trusted and what is encrypted; equal on all hosts.
    pub security: Security,
    /// How long a peer may be silent before its links are lost.
    pub lease: Duration,
    /// Over `tcp`: how long the engine polls for more before it sleeps.
    pub spin: Duration,
    /// Over `tcp`: which of the kernel's congestion controls its connections use.
    pub congestion: Congestion,
    /// Over `verbs`: the device; `None` for the first one with a port that is up.
    pub device: Option<Device>,
    /// Over `verbs`: connect queue pairs by rdma_cm where that is not the only way; equal on all hosts.
    pub connection_manager: bool,
    /// Over `verbs`: do not pin memory; the adapter requests pages that are not present.
    pub on_demand_paging: bool,
    /// Over `verbs`: give each link rkeys of its own, by memory windows, if the device has them.
    pub memory_windows: bool,
}

setters!(FabricOptions {
    hosts: Vec<Endpoint>,
    listen: Option<Endpoint>,
    advertise: Option<Endpoint>,
    security: Security,
    lease: Duration,
    spin: Duration,
    congestion: Congestion,
    device: Option<Device>,
    connection_manager: bool,
    on_demand_paging: bool,
    memory_windows: bool,
});

/// An open fabric, and who may connect to it.
#[derive(Clone)]
#[non_exhaustive]
pub struct OpenFabric {
    /// The fabric.
    pub fabric: Arc<dyn Fabric>,
    /// Which peers may connect; `None` over `shm`, and if it does not listen.
    pub admission: Option<Admission>,
}

impl fmt::Debug for OpenFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "OpenFabric({}, {:?})", self.fabric.name(), self.admission)
    }
}

/// Why a fabric was not opened.
pub(crate) struct OpenFailure {
    pub(crate) error: Error,
    /// The endpoint is in use, or is of another host: another one may serve.
    pub(crate) not_bound: bool,
}

impl From<Error> for OpenFailure {
    fn from(error: Error) -> Self {
        Self { error, not_bound: false }
    }
}

impl FabricOptions {
    /// The defaults: no hosts, no listener, no identity, a lease of 1 s.
    pub fn new(scheme: Scheme) -> Self {
        let tcp = TcpOptions::default();
        Self {
            scheme,
            hosts: Vec::new(),
            listen: None,
            advertise: None,
            security: tcp.security,
            lease: tcp.lease,
            spin: tcp.spin,
            congestion: tcp.congestion,
            device: None,
            connection_manager: false,
            on_demand_paging: false,
            memory_windows: false,
        }
    }

    /// Opens the fabric.
    ///
    /// # Errors
    /// As [`open`], whose detail has the fabric's own reason.
    pub fn open(&self) -> Result<OpenFabric, Error> {
        self.start().map_err(|failure| failure.error)
    }

    /// Opens the fabric; the failure says whether another endpoint may serve.
    pub(crate) fn start(&self) -> Result<OpenFabric, OpenFailure> {
        match self.scheme {
            Scheme::Shm => Ok(OpenFabric { fabric: shared_memory()?, admission: None }),
            Scheme::Tcp => self.open_tcp(),
            Scheme::Verbs => self.open_verbs(),
        }
    }

    fn open_tcp(&self) -> Result<OpenFabric, OpenFailure> {
        let usual = TcpOptions::default();
        let options = TcpOptions {
            listen: self.listen.clone(),
            advertise: self.advertise.clone(),
            hosts: self.hosts.clone(),
            security: self.security.clone(),
            lease: self.lease,
            spin: self.spin,
            request_timeout: usual.request_timeout.max(self.lease),
            congestion: self.congestion,
            ..usual
        };
        let fabric = TcpFabric::new(options).map_err(|error| {
            let not_bound = match &error {
                FabricError::AddressInUse(_) => true,
                FabricError::System(_, reason) => is_not_bound(reason),
                _ => false,
            };
            OpenFailure { error: control(&error), not_bound }
        })?;
        let admission = fabric.admission().cloned();
        Ok(OpenFabric { fabric: Arc::new(fabric), admission })
    }

    fn open_verbs(&self) -> Result<OpenFabric, OpenFailure> {
        let mut options = verbs::Options::new(self.security.clone());
        options.listen = self.listen.clone();
        options.advertise = self.advertise.clone();
        options.hosts = self.hosts.clone();
        options.lease = self.lease;
        options.patience = options.patience.max(self.lease);
        options.connection_manager = self.connection_manager;
        options.on_demand_paging = self.on_demand_paging;
        options.memory_windows = self.memory_windows;
        if let Some(device) = &self.device {
            options.device = Some(device.name.clone());
            options.port = device.port;
            options.gid_index = device.gid_index;
        }
        let fabric = VerbsFabric::open(options).map_err(|error| verbs_failure(&error))?;
        let admission = fabric.admission().cloned();
        Ok(OpenFabric { fabric: Arc::new(fabric), admission })
    }
}

/// Returns whether a listener was refused because its address is in use or of another host.
fn is_not_bound(reason: &io::Error) -> bool {
    matches!(reason.kind(), io::ErrorKind::AddrInUse | io::ErrorKind::AddrNotAvailable)
}

fn verbs_failure(error: &OpenError) -> OpenFailure {
    let (code, not_bound) = match error {
        OpenError::Option(_) | OpenError::CannotProtect | OpenError::NoSuchDevice { .. } => {
            (ErrorCode::BadConfiguration, false)
        }
        OpenError::Lacks { .. } => (ErrorCode::FabricLacks, false),
        OpenError::System(_, reason) if reason.kind() == io::ErrorKind::AddrInUse => {
            (ErrorCode::AddressTaken, true)
        }
        OpenError::System(_, reason) => (ErrorCode::System, is_not_bound(reason)),
        _ => (ErrorCode::System, false),
    };
    OpenFailure { error: Error::with(code, error.to_string()), not_bound }
}
