//! The control side that callers see: regions and ports.

use crate::control::Control;
use crate::core::{Core, Listening};
use crate::device::{self, Choice, DeviceReport, Limits, PortState};
use crate::facts::DeviceFacts;
use crate::ffi::{HUGE_PAGE_BYTES, anonymous};
use crate::manager::Manager;
use crate::options::{OpenError, Options, mtu_bytes};
use crate::port::VerbsPort;
use crate::random::random;
use crate::region;
use crate::token::lock;
use farside_base::{Access, Capabilities, RegionId, RegionKind};
use farside_bootstrap::{Admission, Endpoint, Protect};
use farside_fabric::{Arena, Fabric, FabricError, Port, PortSpec, Region, RegionSpec};
use std::fmt;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The fabric of one RDMA port: InfiniBand, RoCE or iWARP, by libibverbs.
///
/// Guarantees: see [`capabilities`](Fabric::capabilities), which are derived from the device's
/// attributes. An rkey is valid on every link of the fabric. If memory windows are requested and the
/// device has them ([`Options::memory_windows`], [`Choice::keys`]), each link has rkeys of its own for
/// the regions that its peer imports, bound to its queue pair; regions of more than 2 GiB, and those
/// with FLUSH where windows permit none, keep one rkey. A bind is a work request of the region's owner
/// on that link: an import waits for what the owner has in flight there. Data packets are plain text,
/// whatever protects the control streams. A clone is the same fabric. Cost: one thread, which sleeps
/// unless links are opened, closed or idle.
#[derive(Clone)]
pub struct VerbsFabric {
    pub(crate) control: Arc<Control>,
}

impl VerbsFabric {
    /// Opens the requested device, or the first one with a port that is up.
    ///
    /// # Errors
    /// [`OpenError`] says what is missing and the remedy: no library, no device, no port, no address.
    pub fn open(options: Options) -> Result<Self, OpenError> {
        if let Some(name) = options.wrong() {
            return Err(OpenError::Option(name));
        }
        if options.security.protect() == Protect::Everything {
            return Err(OpenError::CannotProtect);
        }
        let (device, state) = device::open(&options)?;
        let name = device.context.listed.name.clone();
        let capabilities = device.facts.capabilities();
        let capabilities = capabilities.map_err(|what| OpenError::Lacks { device: name, what })?;
        let manager = Manager::open(&options, &device, &state)?;
        let listener = listen(&options, &state, manager.as_ref());
        let listener = listener.map_err(|reason| OpenError::System("listening", reason))?;
        let (listener, listening) = listener.unzip();
        let refused = |error| match error {
            FabricError::System(what, reason) => OpenError::System(what, reason),
            other => OpenError::System("control", io::Error::other(other.to_string())),
        };
        let core = Core::new(options, device, state, capabilities, listening, manager);
        let core = core.map_err(refused)?;
        let control = Control::start(Arc::new(core), listener).map_err(refused)?;
        Ok(Self { control: Arc::new(control) })
    }

    /// Returns the devices of this machine with their attributes.
    ///
    /// # Errors
    /// `NoLibrary` if there is none; `System`.
    pub fn devices(options: &Options) -> Result<Vec<DeviceReport>, OpenError> {
        device::devices(options)
    }

    /// Returns the attributes of the device.
    pub fn facts(&self) -> &DeviceFacts {
        &self.control.core.device.facts
    }

    /// Returns where peers dial this fabric; `None` if it only connects.
    pub fn listening(&self) -> Option<&Endpoint> {
        self.control.core.listening.as_ref().map(|listening| &listening.endpoint)
    }

    /// Returns which peers may dial this fabric: without an identity on the loopback its own user
    /// alone, or every user of the machine if the kernel does not report the owner of a connection.
    /// `None` if it only connects.
    pub fn admission(&self) -> Option<&Admission> {
        self.control.admission.as_ref()
    }

    /// Returns the limits of a device, by its name.
    ///
    /// # Errors
    /// `NoLibrary` if there is none; `System` if the query fails.
    pub fn limits(library: &str, device: &str) -> Result<Limits, OpenError> {
        device::limits(library, device)
    }

    /// Device, port and address, and why these.
    pub fn choice(&self) -> Choice {
        let core = &self.control.core;
        let state = lock(&core.state).clone();
        Choice {
            device: core.device.context.listed.name.clone(),
            port: core.device.port,
            device_reason: core.device.reason.clone(),
            network: core.device.network(&state),
            up: state.up,
            mtu_bytes: mtu_bytes(state.mtu),
            gid_index: state.gid_index,
            gid: Ipv6Addr::from(state.gid),
            gid_reason: state.gid_reason,
            extended_posting: core.device.shape.extended,
            connecting: core.connecting(),
            on_demand_paging: core.options.on_demand_paging,
            keys: core.keys(),
        }
    }

    /// Describes the choice and the protection, for display.
    pub fn describe(&self) -> String {
        let security = self.control.core.options.security.describe();
        format!("{}, control streams: {security}; data packets are plain text", self.choice())
    }
}

/// Listens at the requested address, and returns the actual one.
fn listen(
    options: &Options,
    state: &PortState,
    manager: Option<&Manager>,
) -> io::Result<Option<(TcpListener, Listening)>> {
    let Some(asked) = &options.listen else {
        return Ok(None);
    };
    let addresses = asked.resolve()?;
    let listener = TcpListener::bind(&addresses[..])?;
    let by_manager = manager.map(|manager| manager.address);
    let port = Ipv6Addr::from(state.gid).to_ipv4_mapped().or(match by_manager {
        Some(IpAddr::V4(address)) => Some(address),
        _ => None,
    });
    let advertise = options.advertise.as_ref();
    let listening = Listening::new(asked, advertise, listener.local_addr()?, port)?;
    Ok(Some((listener, listening)))
}

impl fmt::Debug for VerbsFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "VerbsFabric({})", self.describe())
    }
}

impl Fabric for VerbsFabric {
    fn name(&self) -> &'static str {
        "verbs"
    }

    fn capabilities(&self) -> Capabilities {
        self.control.core.capabilities
    }

    fn host(&self) -> Option<SocketAddr> {
        self.control.core.listening.as_ref().map(|listening| listening.host)
    }

    fn numa_node(&self) -> Option<u32> {
        self.control.core.device.numa_node()
    }

    fn lease_ns(&self) -> u64 {
        u64::try_from(self.control.core.options.lease.as_nanos()).unwrap_or(u64::MAX)
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        let core = &self.control.core;
        let device_bytes = lock(&core.regions).adapter_bytes();
        spec.check(&self.capabilities(), device_bytes)?;
        if spec.kind == RegionKind::Device {
            let (domain, access) = (&core.device.domain, spec.access);
            let registered = region::register_at_adapter(domain, spec.bytes, access)?;
            return lock(&core.regions).add(registered, access, false, random()?);
        }
        let huge = spec.kind == RegionKind::Memory && spec.bytes >= HUGE_PAGE_BYTES as u64;
        let memory = match usize::try_from(spec.bytes) {
            Ok(bytes) if huge => {
                anonymous(bytes).map_err(|reason| FabricError::System("memory", reason))?
            }
            _ => spec.memory()?,
        };
        self.register_memory(memory, spec.access)
    }

    fn register_memory(&self, memory: Arena, access: Access) -> Result<Region, FabricError> {
        let core = &self.control.core;
        if memory.len() as u64 > core.capabilities.region_bytes_max {
            return Err(FabricError::Limit("region_bytes_max"));
        }
        // The adapter pins pages here, which takes long: without the lock.
        let manner = core.manner();
        let registered = region::register(&core.device.domain, &memory, access, manner)?;
        let windowed = manner.windowed(access, memory.len() as u64);
        lock(&core.regions).add(registered, access, windowed, random()?)
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        let core = &self.control.core;
        let removed = lock(&core.regions).remove(region)?;
        core.region_changes.fetch_add(1, Ordering::AcqRel);
        core.windows.end_region(region, core.options.lease);
        drop(removed);
        Ok(())
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        Ok(Box::new(VerbsPort::open(&self.control, spec)?))
    }
}
