//! The choice of device, port and address, and their capabilities.

use crate::facts::{AtomicFact, DeviceFacts, OnDemand, Transport, Trial};
use crate::ffi::types::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_MW_BIND, IBV_ACCESS_ON_DEMAND,
    IBV_ACCESS_REMOTE_ATOMIC, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
    IBV_DEVICE_MEM_WINDOW_TYPE_2B, IBV_LINK_LAYER_ETHERNET, IBV_PORT_ACTIVE, IBV_TRANSPORT_IB,
    IBV_TRANSPORT_IWARP, ibv_port_attr,
};
use crate::ffi::{
    AdapterMemory, Channel, CompletionQueue, Context, Library, ListedDevice, LocalBytes,
    MemoryRegion, MemoryWindow, NoLibrary, ProtectionDomain, QueuePair, QueuePairShape, Route,
    SharedReceiveQueue, Slice, Verb, WorkCompletion, WorkRequest, anonymous, list,
};
use crate::options::{OpenError, Options, mtu_bytes, mtu_of};
use crate::resolve;
use crate::wire::{WORD_BYTES, Word};
use farside_base::{FlushScope, GidEntry, GidKind, choose_gid};
use farside_fabric::Arena;
use std::fmt;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv6Addr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most GID entries that are checked.
const GIDS_MAX: usize = 1024;
/// How long a WRITE on trial may take.
const TRIAL_TIME: Duration = Duration::from_millis(500);
/// The length to which a completion queue is resized on trial.
const COMPLETIONS_ON_TRIAL: u32 = 64;
/// Most completions of a queue that cannot be made longer, and so has all its room at once.
const COMPLETIONS_AT_ONCE: u32 = 1 << 16;
/// Most bytes of slices that the provider copies when they are posted, on iWARP.
const COPIED_BYTES_MAX: u32 = 64;
/// Inline bytes that are tried, best first.
const INLINE_TRIED: [u32; 6] = [512, 256, 128, 64, 32, 0];
/// Memory that is not pinned, on trial: separate, in case a faulty device overwrites what is next to
/// it.
const PAGED_BYTES: usize = 1 << 16;
/// Bytes that are moved in it, from within one page into the next.
const PAGED_TRIED: u32 = 5000;

/// An open device, its port and the address that connections name.
pub(crate) struct Device {
    pub(crate) context: Arc<Context>,
    pub(crate) domain: Arc<ProtectionDomain>,
    pub(crate) port: u8,
    /// Why this one, in words.
    pub(crate) reason: String,
    pub(crate) facts: DeviceFacts,
    /// How queue pairs are made.
    pub(crate) shape: QueuePairShape,
    /// Set if a completion does not prove that the peer's adapter has executed the request.
    pub(crate) confirmation: Option<Confirmation>,
}

/// The remote word of a confirming READ, whose completion proves that every earlier work request is
/// done, and its local landing buffer. The bytes are not used.
pub(crate) struct Confirmation {
    _memory: MemoryRegion,
    /// Read by peers.
    pub(crate) word: Word,
    /// The local buffer of the READ.
    pub(crate) landing: Slice,
}

impl Confirmation {
    fn new(domain: &Arc<ProtectionDomain>) -> io::Result<Self> {
        let arena = Arena::try_heap(2 * WORD_BYTES as usize)?;
        let access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ;
        let memory = MemoryRegion::new(domain, arena, access)?;
        let word = Word { address: memory.address(), key: memory.remote_key() };
        let addr = memory.address() + u64::from(WORD_BYTES);
        let landing = Slice { addr, length: WORD_BYTES, lkey: memory.local_key() };
        Ok(Self { _memory: memory, word, landing })
    }
}

impl Device {
    /// Returns the NUMA node of the adapter, if the system reports it: `-1` is none.
    pub(crate) fn numa_node(&self) -> Option<u32> {
        let name = &self.context.listed.name;
        read(&format!("/sys/class/infiniband/{name}/device/numa_node"))?.parse().ok()
    }

    /// Returns the kind of network of its port.
    pub(crate) fn network(&self, state: &PortState) -> &'static str {
        match (self.facts.transport, state.is_ethernet()) {
            (Transport::Iwarp, _) => "iWARP",
            (_, true) => "RoCE",
            (_, false) => "InfiniBand",
        }
    }
}

/// What may change while the device is open.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct PortState {
    pub(crate) up: bool,
    pub(crate) lid: u16,
    /// `ibv_mtu`: the port's, or less if requested.
    pub(crate) mtu: u8,
    pub(crate) link_layer: u8,
    pub(crate) gid: [u8; 16],
    pub(crate) gid_index: u8,
    /// Why this one, in words.
    pub(crate) gid_reason: String,
}

impl PortState {
    pub(crate) fn is_ethernet(&self) -> bool {
        self.link_layer == IBV_LINK_LAYER_ETHERNET
    }
}

/// Device, port and address of a fabric, and why these.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Choice {
    /// The device's name.
    pub device: String,
    /// Its port, from 1.
    pub port: u8,
    /// Why this device and port, in words.
    pub device_reason: String,
    /// `InfiniBand`, `RoCE` or `iWARP`.
    pub network: &'static str,
    /// Whether the port is up now.
    pub up: bool,
    /// Bytes of a packet at most; both ends of a link use the smaller of theirs.
    pub mtu_bytes: u32,
    /// The index of the port's address.
    pub gid_index: u8,
    /// The address.
    pub gid: Ipv6Addr,
    /// Why this address, in words.
    pub gid_reason: String,
    /// Whether requests are posted by the extended interface.
    pub extended_posting: bool,
    /// How queue pairs are connected and why, in words.
    pub connecting: String,
    /// Whether memory is registered without being pinned.
    pub on_demand_paging: bool,
    /// On which links rkeys are valid and why, in words.
    pub keys: &'static str,
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { device, port, device_reason, network, mtu_bytes, .. } = self;
        let state = if self.up { "" } else { ", down" };
        let (index, gid, reason) = (self.gid_index, address(self.gid), &self.gid_reason);
        let memory = if self.on_demand_paging { "paged on demand" } else { "pinned" };
        let posting = if self.extended_posting { "extended" } else { "by lists" };
        write!(
            f,
            "{network} {device} port {port}{state} ({device_reason}), MTU {mtu_bytes} (the port's; a \
             connection takes the smaller of both ends'), GID index {index} {gid} ({reason}), posting \
             {posting}, {}, memory {memory}, {}",
            self.connecting, self.keys
        )
    }
}

/// Formats a GID for display: as IPv4 if it is mapped.
fn address(gid: Ipv6Addr) -> String {
    gid.to_ipv4_mapped().map_or_else(|| gid.to_string(), |four| four.to_string())
}

/// The limits that a device reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Limits {
    /// `max_mr_size`: bytes of a region.
    pub region_bytes: u64,
    /// `max_mr`: regions.
    pub regions: u64,
    /// `max_qp`
    pub queue_pairs: u64,
    /// `max_cq`
    pub completion_queues: u64,
    /// `max_srq`
    pub shared_receive_queues: u64,
}

/// Queries the limits of a device only.
///
/// # Errors
/// `NoLibrary`; `System` if there is no such device or the query fails.
pub(crate) fn limits(library_name: &str, device: &str) -> Result<Limits, OpenError> {
    let library = library(library_name)?;
    let asked = Context::open(&library, device).and_then(|context| context.query_device());
    let asked = asked.map_err(|error| OpenError::System("device", error))?;
    Ok(Limits {
        region_bytes: asked.max_mr_size,
        regions: count(asked.max_mr).into(),
        queue_pairs: count(asked.max_qp).into(),
        completion_queues: count(asked.max_cq).into(),
        shared_receive_queues: count(asked.max_srq).into(),
    })
}

/// A usable device with its attributes, for display.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct DeviceReport {
    /// Its name.
    pub name: String,
    /// Its attributes, or why the query failed.
    pub facts: Result<DeviceFacts, String>,
    /// Each port: number, state, address and why, in words.
    pub ports: Vec<String>,
}

fn library(name: &str) -> Result<Arc<Library>, OpenError> {
    Library::load(name).map_err(|reason| OpenError::NoLibrary {
        library: name.to_owned(),
        reason: match reason {
            NoLibrary::Absent(words) => words,
            NoLibrary::Lacks(_) => reason.to_string(),
        },
    })
}

/// Returns the devices of this machine with their attributes. Opens each for a moment.
///
/// # Errors
/// `NoLibrary` if there is none; `System`.
pub(crate) fn devices(options: &Options) -> Result<Vec<DeviceReport>, OpenError> {
    let library = library(&options.library)?;
    let listed = list(&library).map_err(|error| OpenError::System("list of devices", error))?;
    Ok(listed.iter().map(|one| report(&library, one, options)).collect())
}

fn report(library: &Arc<Library>, listed: &ListedDevice, options: &Options) -> DeviceReport {
    let mut report =
        DeviceReport { name: listed.name.clone(), facts: Err(String::new()), ports: Vec::new() };
    let context = match Context::open(library, &listed.name) {
        Ok(context) => context,
        Err(error) => {
            report.facts = Err(format!("cannot be opened: {error}"));
            return report;
        }
    };
    for port in 1..=ports_of(&context) {
        report.ports.push(match port_state(&context, port, options) {
            Ok(state) => describe(port, &state),
            Err(error) => format!("port {port}: {error}"),
        });
    }
    let first = options.port.unwrap_or(1);
    let facts =
        ProtectionDomain::new(&context).and_then(|domain| facts(&context, &domain, first, options));
    report.facts = facts.map(|(facts, _)| facts).map_err(|error| error.to_string());
    report
}

fn describe(port: u8, state: &PortState) -> String {
    let up = if state.up { "up" } else { "down" };
    let layer = if state.is_ethernet() { "Ethernet" } else { "InfiniBand" };
    let (mtu, gid) = (mtu_bytes(state.mtu), address(Ipv6Addr::from(state.gid)));
    let (index, reason) = (state.gid_index, &state.gid_reason);
    format!("port {port}: {up}, {layer}, MTU {mtu}, GID index {index} ({gid}): {reason}")
}

fn ports_of(context: &Context) -> u8 {
    context.query_device().map_or(1, |device| device.phys_port_cnt.max(1))
}

/// Opens the requested device, or the first one with a port that is up.
pub(crate) fn open(options: &Options) -> Result<(Device, PortState), OpenError> {
    let library = library(&options.library)?;
    let system = |what| move |error: io::Error| OpenError::System(what, error);
    let listed = list(&library).map_err(system("list of devices"))?;
    if listed.is_empty() {
        return Err(OpenError::NoDevices);
    }
    let is_asked =
        |one: &&ListedDevice| options.device.as_ref().is_none_or(|name| *name == one.name);
    let asked: Vec<_> = listed.iter().filter(is_asked).collect();
    if asked.is_empty() {
        return Err(OpenError::NoSuchDevice {
            asked: options.device.clone().unwrap_or_default(),
            devices: listed.into_iter().map(|one| one.name).collect(),
        });
    }
    let mut looked_at = Vec::new();
    let mut without_gid = None;
    let mut elsewhere = None;
    let mut only = listed.len() == 1;
    for one in asked {
        let context = Context::open(&library, &one.name).map_err(system("device"))?;
        let ports = match options.port {
            Some(port) => port..=port,
            None => 1..=ports_of(&context),
        };
        only &= ports_of(&context) == 1;
        for port in ports {
            let name = format!("{} port {port}", one.name);
            match port_state(&context, port, options) {
                Ok(state) if state.up || options.port.is_some() => {
                    if is_here(&context, port, &state, options) || options.device.is_some() {
                        let reason = reason(only, listed.len(), true, options);
                        return ready(&context, port, reason, options)
                            .map(|device| (device, state));
                    }
                    elsewhere.get_or_insert((context.clone(), port, state));
                }
                Ok(_) => looked_at.push(format!("{name} (down)")),
                Err(error @ OpenError::NoGid { .. }) => without_gid = Some(error),
                Err(error) => looked_at.push(format!("{name} ({error})")),
            }
        }
    }
    if let Some((context, port, state)) = elsewhere {
        let reason = reason(only, listed.len(), false, options);
        let reason = format!("{reason}; its address is none of this network namespace");
        return ready(&context, port, reason, options).map(|device| (device, state));
    }
    Err(without_gid.unwrap_or(OpenError::NoPort { looked_at }))
}

/// Returns why a device and port were chosen. `here` is whether their address is one of this network
/// namespace.
fn reason(only: bool, devices: usize, here: bool, options: &Options) -> String {
    match (&options.device, options.port) {
        (Some(_), Some(_)) => "as asked for".to_owned(),
        (Some(_), None) => "as asked for, its first port that is up".to_owned(),
        (None, Some(_)) => "the first device with that port".to_owned(),
        (None, None) if only => "the only one".to_owned(),
        (None, None) => {
            let ours = if here { " and belongs to this network namespace" } else { "" };
            format!("of {devices} devices the first with a port that is up{ours}")
        }
    }
}

/// Returns whether a port's address is one of this network namespace. If namespaces share devices,
/// those of all others are listed too, and their packets would be sent where this process has no
/// address.
fn is_here(context: &Context, port: u8, state: &PortState, options: &Options) -> bool {
    if context.listed.transport == IBV_TRANSPORT_IWARP {
        // Its GID is made of a hardware address.
        return resolve::find(options, &context.listed.name, port, None).is_ok();
    }
    if !state.is_ethernet() {
        return true;
    }
    let gid = Ipv6Addr::from(state.gid);
    let number = gid.to_ipv4_mapped().map_or(IpAddr::V6(gid), IpAddr::V4);
    if gid.is_unicast_link_local() {
        return true;
    }
    let bound = UdpSocket::bind((number, 0));
    !bound.is_err_and(|error| error.kind() == io::ErrorKind::AddrNotAvailable)
}

fn ready(
    context: &Arc<Context>,
    port: u8,
    reason: String,
    options: &Options,
) -> Result<Device, OpenError> {
    let system = |what| move |error: io::Error| OpenError::System(what, error);
    let domain = ProtectionDomain::new(context).map_err(system("protection domain"))?;
    let (facts, shape) = facts(context, &domain, port, options).map_err(system("queue pair"))?;
    let name = context.listed.name.clone();
    let lacks = |what| OpenError::Lacks { device: name.clone(), what };
    let has = facts.capabilities().map_err(lacks)?;
    if options.on_demand_paging {
        let moves = "on-demand paging that works: on trial bytes of a WRITE did not arrive";
        let lacking = facts.on_demand.lacks(&has).or((!facts.trial.on_demand).then_some(moves));
        if let Some(what) = lacking {
            return Err(lacks(what));
        }
    }
    let confirmation = facts.needs_confirmation().then(|| Confirmation::new(&domain));
    let confirmation = confirmation.transpose().map_err(system("registration of memory"))?;
    let context = Arc::clone(context);
    Ok(Device { context, domain, port, reason, facts, shape, confirmation })
}

/// Returns the current state of a port.
pub(crate) fn port_state(
    context: &Context,
    port: u8,
    options: &Options,
) -> Result<PortState, OpenError> {
    let attributes = context.query_port(port).map_err(|error| OpenError::System("port", error))?;
    let table = gid_table(context, port, &attributes);
    let name = format!("{} port {port}", context.listed.name);
    let entries: Vec<_> = table.iter().map(GidRow::entry).collect();
    let choice = choose_gid(&entries, options.gid_index);
    let choice = choice.map_err(|why| OpenError::NoGid { port: name, reason: why.to_string() })?;
    let chosen = entries.iter().find(|entry| entry.index == choice.index);
    let port_mtu = u8::try_from(attributes.active_mtu).unwrap_or(0).clamp(1, 5);
    Ok(PortState {
        up: attributes.state == IBV_PORT_ACTIVE,
        lid: attributes.lid,
        mtu: port_mtu.min(mtu_of(options.packet_bytes_max).unwrap_or(1)),
        link_layer: attributes.link_layer,
        gid: chosen.map_or([0; 16], |entry| entry.gid),
        gid_index: u8::try_from(choice.index).unwrap_or(u8::MAX),
        gid_reason: choice.reason.to_string(),
    })
}

/// An entry of a port's GID table, with the known state of its network device.
struct GidRow {
    index: u32,
    gid: [u8; 16],
    kind: GidKind,
    netdev: Option<String>,
    netdev_up: Option<bool>,
}

impl GidRow {
    fn entry(&self) -> GidEntry<'_> {
        GidEntry {
            index: self.index,
            gid: self.gid,
            kind: self.kind,
            netdev: self.netdev.as_deref(),
            netdev_up: self.netdev_up,
        }
    }
}

fn gid_table(context: &Context, port: u8, attributes: &ibv_port_attr) -> Vec<GidRow> {
    let iwarp = context.listed.transport == IBV_TRANSPORT_IWARP;
    let ethernet = attributes.link_layer == IBV_LINK_LAYER_ETHERNET;
    let folder = format!("/sys/class/infiniband/{}/ports/{port}/gid_attrs", context.listed.name);
    let row = |index: u32, gid, kind: Option<u32>| {
        let kind = match (iwarp, ethernet, kind) {
            (true, ..) => GidKind::Iwarp,
            (_, false, _) => GidKind::InfiniBand,
            (_, true, Some(2)) => GidKind::RoceV2,
            (_, true, Some(_)) => GidKind::RoceV1,
            (_, true, None) => match read(&format!("{folder}/types/{index}")).as_deref() {
                Some("RoCE v2") => GidKind::RoceV2,
                _ => GidKind::RoceV1,
            },
        };
        let netdev = read(&format!("{folder}/ndevs/{index}"));
        let netdev_up = netdev.as_deref().and_then(is_up);
        GidRow { index, gid, kind, netdev, netdev_up }
    };
    if let Some(entries) = context.query_gid_table(GIDS_MAX) {
        let own = entries.iter().filter(|entry| entry.port_num == u32::from(port));
        return own.map(|entry| row(entry.gid_index, entry.gid, Some(entry.gid_type))).collect();
    }
    let count = u32::try_from(attributes.gid_tbl_len).unwrap_or(0).min(GIDS_MAX as u32);
    let set = (0..count).filter_map(|index| {
        let gid = context.query_gid(port, index).ok()?;
        (gid != [0; 16]).then(|| row(index, gid, None))
    });
    set.collect()
}

fn read(path: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    Some(text.trim().to_owned()).filter(|text| !text.is_empty())
}

/// Returns whether a network device is up (`IFF_UP`), if the system reports it.
fn is_up(netdev: &str) -> Option<bool> {
    let flags = read(&format!("/sys/class/net/{netdev}/flags"))?;
    let flags = u32::from_str_radix(flags.strip_prefix("0x")?, 16).ok()?;
    Some(flags & 1 == 1)
}

fn count(number: i32) -> u32 {
    u32::try_from(number).unwrap_or(0)
}

fn byte(number: i32) -> u8 {
    u8::try_from(number.clamp(0, 255)).unwrap_or(0)
}

/// Queries a device, and creates a queue pair of the best shape that it supports.
fn facts(
    context: &Arc<Context>,
    domain: &Arc<ProtectionDomain>,
    port: u8,
    options: &Options,
) -> io::Result<(DeviceFacts, QueuePairShape)> {
    let extended = context.query_device_extended();
    let device = match &extended {
        Some(extended) => extended.orig_attr,
        None => context.query_device()?,
    };
    let mut facts = DeviceFacts {
        transport: match context.listed.transport {
            IBV_TRANSPORT_IB => Transport::InfiniBand,
            IBV_TRANSPORT_IWARP => Transport::Iwarp,
            _ => Transport::Other,
        },
        region_bytes: device.max_mr_size,
        queue_pairs: count(device.max_qp),
        requests: count(device.max_qp_wr),
        slices: count(device.max_sge),
        read_slices: count(device.max_sge_rd),
        completions: count(device.max_cqe),
        shared_receive_queues: count(device.max_srq),
        shared_receives: count(device.max_srq_wr),
        atomics: match device.atomic_cap {
            1 => AtomicFact::Adapter,
            2 => AtomicFact::Global,
            _ => AtomicFact::None,
        },
        flags: extended.map_or(0, |extended| extended.device_cap_flags_ex),
        reads_in: byte(device.max_qp_rd_atom),
        reads_out: byte(device.max_qp_init_rd_atom),
        message_bytes: context.query_port(port)?.max_msg_sz,
        device_memory_bytes: extended
            .filter(|_| AdapterMemory::is_had(context))
            .map_or(0, |extended| extended.max_dm_size),
        on_demand: extended.map_or_else(OnDemand::default, |extended| {
            OnDemand::of(extended.odp_caps.general_caps, extended.odp_caps.rc_odp_caps)
        }),
        windows: match device.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B {
            0 => 0,
            _ => count(device.max_mw),
        },
        trial: Trial::default(),
    };
    let mut shape = trial(domain, &mut facts, options)?;
    if facts.needs_confirmation() {
        shape.copied_bytes = facts.trial.inline_bytes.min(COPIED_BYTES_MAX);
    }
    if !facts.trial.resizes {
        facts.completions = facts.completions.min(COMPLETIONS_AT_ONCE);
    }
    try_out(domain, port, options, &mut facts, &mut shape);
    // With windows there are more requests of this fabric's own.
    shape.requests = facts.queue_requests();
    Ok((facts, shape))
}

/// Tries operations that devices or their providers declare and get wrong, between two queue pairs of
/// the port.
fn try_out(
    domain: &Arc<ProtectionDomain>,
    port: u8,
    options: &Options,
    facts: &mut DeviceFacts,
    shape: &mut QueuePairShape,
) {
    // Without a trial (the port is down) none of them counts as working.
    let state = port_state(&domain.context, port, options).ok().filter(|state| state.up);
    let pairs = |shape: &QueuePairShape, access, arena: io::Result<Arena>| {
        let state = state.as_ref().ok_or(io::ErrorKind::NetworkDown)?;
        Pairs::new(domain, port, shape, state, access, arena?)
    };
    if shape.extended && shape.slices > 1 {
        let tried = pairs(shape, IBV_ACCESS_REMOTE_WRITE, Arena::try_heap(64));
        facts.trial.gathers = tried.and_then(gather_on_trial).unwrap_or(false);
        shape.gathers_by_list = !facts.trial.gathers;
    }
    if options.on_demand_paging && facts.on_demand.is_had() {
        let access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND;
        let tried = pairs(shape, access, anonymous(PAGED_BYTES));
        facts.trial.on_demand = tried.and_then(paging_on_trial).unwrap_or(false);
    }
    if options.memory_windows && facts.windows > 0 && facts.transport == Transport::InfiniBand {
        let atomics = facts.atomics != AtomicFact::None;
        let works = |flush| {
            let tried = pairs(shape, IBV_ACCESS_MW_BIND, Arena::try_heap(64));
            let tried = tried.and_then(|pairs| window_on_trial(domain, pairs, atomics, flush));
            tried.unwrap_or(false)
        };
        facts.trial.windows_flush = facts.trial.flush && works(true);
        facts.trial.windows = facts.trial.windows_flush || works(false);
    }
}

/// Creates queue pairs of ever simpler shapes until the device accepts one.
fn trial(
    domain: &Arc<ProtectionDomain>,
    facts: &mut DeviceFacts,
    options: &Options,
) -> io::Result<QueuePairShape> {
    let channel = Channel::new(&domain.context)?;
    let completions = CompletionQueue::new(&channel, 16)?;
    let resizes = completions.resize(COMPLETIONS_ON_TRIAL).is_ok();
    let receives = SharedReceiveQueue::new(domain, 16)?;
    let best = QueuePairShape {
        requests: facts.queue_requests(),
        slices: facts.slices(),
        inline_bytes: 0,
        atomic_write: true,
        flush: true,
        atomics: facts.atomics != AtomicFact::None,
        extended: true,
        gathers_by_list: false,
        copied_bytes: 0,
    };
    let without_flush = QueuePairShape { flush: false, ..best };
    let without_atomic_write = QueuePairShape { atomic_write: false, ..best };
    let without_both = QueuePairShape { atomic_write: false, ..without_flush };
    let plain = QueuePairShape { extended: false, ..without_both };
    let all = [best, without_flush, without_atomic_write, without_both, plain];
    let tried = if options.plain_posting { &all[4..] } else { &all[..] };
    let mut last = io::Error::from(io::ErrorKind::Unsupported);
    for shape in tried {
        for inline_bytes in INLINE_TRIED {
            let shape = QueuePairShape { inline_bytes, ..*shape };
            match QueuePair::new(domain, &completions, &receives, &shape) {
                Ok(pair) => {
                    facts.trial = Trial {
                        extended: shape.extended,
                        atomic_write: shape.extended && shape.atomic_write,
                        flush: shape.extended && shape.flush,
                        inline_bytes: pair.inline_bytes.max(inline_bytes),
                        in_order: pair.is_in_order(),
                        gathers: true,
                        resizes,
                        windows: false,
                        windows_flush: false,
                        on_demand: false,
                    };
                    return Ok(shape);
                }
                Err(error) => last = error,
            }
        }
    }
    Err(last)
}

/// Two queue pairs of a port, connected to each other, with some memory.
struct Pairs {
    near: QueuePair,
    far: QueuePair,
    completions: Arc<CompletionQueue>,
    memory: MemoryRegion,
    arena: Arena,
}

impl Pairs {
    fn new(
        domain: &Arc<ProtectionDomain>,
        port: u8,
        shape: &QueuePairShape,
        state: &PortState,
        access: i32,
        arena: Arena,
    ) -> io::Result<Self> {
        let channel = Channel::new(&domain.context)?;
        let completions = CompletionQueue::new(&channel, 16)?;
        let receives = SharedReceiveQueue::new(domain, 16)?;
        let make = || QueuePair::new(domain, &completions, &receives, shape);
        let (near, far) = (make()?, make()?);
        let peers = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
        let more = flag(shape.atomics, IBV_ACCESS_REMOTE_ATOMIC)
            | flag(shape.flush, IBV_ACCESS_FLUSH_GLOBAL);
        let memory = MemoryRegion::new(domain, arena.clone(), IBV_ACCESS_LOCAL_WRITE | access)?;
        for (pair, peer) in [(&near, &far), (&far, &near)] {
            pair.handle().initialise(port, peers | more)?;
            pair.handle().connect(&route_to_self(peer.number(), port, state))?;
        }
        Ok(Self { near, far, completions, memory, arena })
    }

    /// Returns the bytes of the memory.
    fn slice(&self, at: u64, length: u32) -> Slice {
        Slice { addr: self.memory.address() + at, length, lkey: self.memory.local_key() }
    }

    /// Returns whether a request of the near one to the second half of the memory succeeds.
    fn does(&mut self, verb: Verb, key: u32, slices: &[Slice]) -> io::Result<bool> {
        self.near.push(&WorkRequest {
            id: 1,
            signalled: true,
            fence: false,
            verb,
            address: self.memory.address() + 32,
            key,
            bytes: LocalBytes::Slices(slices),
        });
        self.near.ring()?;
        self.is_done()
    }

    /// Waits for the next completion.
    fn is_done(&self) -> io::Result<bool> {
        let mut done = [WorkCompletion::default()];
        let end = Instant::now() + TRIAL_TIME;
        while self.completions.poll(&mut done)? == 0 {
            if Instant::now() > end {
                return Ok(false);
            }
            std::thread::yield_now();
        }
        Ok(done[0].status == 0)
    }
}

fn flag(wanted: bool, flag: i32) -> i32 {
    if wanted { flag } else { 0 }
}

/// Returns whether a WRITE of two slices by the extended interface arrives as it should.
fn gather_on_trial(mut pairs: Pairs) -> io::Result<bool> {
    let data = *b"farside gathers";
    pairs.arena.write(0, &data).map_err(|_| io::ErrorKind::InvalidInput)?;
    let slices = [pairs.slice(0, 3), pairs.slice(3, 12)];
    let key = pairs.memory.remote_key();
    if !pairs.does(Verb::Write, key, &slices)? {
        return Ok(false);
    }
    let mut arrived = [0; 15];
    pairs.arena.read(32, &mut arrived).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(arrived == data)
}

/// Returns whether all bytes of memory that is not pinned arrive at their addresses. Soft-RoCE (Linux
/// 7.3) loses the offset of each piece in its page.
fn paging_on_trial(mut pairs: Pairs) -> io::Result<bool> {
    let wrong = |_| io::Error::from(io::ErrorKind::InvalidInput);
    let data: Vec<u8> = (0..PAGED_TRIED).map(|at| (at % 251) as u8 + 1).collect();
    let from = PAGED_BYTES as u64 / 2 + 40;
    pairs.arena.write(from, &data).map_err(wrong)?;
    let slices = [pairs.slice(from, PAGED_TRIED)];
    let key = pairs.memory.remote_key();
    if !pairs.does(Verb::Write, key, &slices)? {
        return Ok(false);
    }
    let mut arrived = vec![0; data.len()];
    pairs.arena.read(32, &mut arrived).map_err(wrong)?;
    Ok(arrived == data)
}

/// Returns whether a memory window can be bound, and what its peer may then do with its rkey.
fn window_on_trial(
    domain: &Arc<ProtectionDomain>,
    mut pairs: Pairs,
    atomics: bool,
    flush: bool,
) -> io::Result<bool> {
    let access = IBV_ACCESS_REMOTE_READ
        | IBV_ACCESS_REMOTE_WRITE
        | flag(atomics, IBV_ACCESS_REMOTE_ATOMIC)
        | flag(flush, IBV_ACCESS_FLUSH_GLOBAL);
    // Declared after the pairs, so that it is dropped before them.
    let mut window = MemoryWindow::new(domain)?;
    let key = window.bind(&pairs.far.handle(), &pairs.memory, access, 0x5a, 2)?;
    let data = *b"windowed";
    pairs.arena.write(0, &data).map_err(|_| io::ErrorKind::InvalidInput)?;
    let slice = pairs.slice(0, 8);
    let scope = FlushScope::Visible;
    let done = pairs.is_done()?
        && pairs.does(Verb::Write, key, &[slice])?
        && (!atomics || pairs.does(Verb::FetchAdd(0), key, &[pairs.slice(8, 8)])?)
        && (!flush || pairs.does(Verb::Flush { bytes: 8, scope }, key, &[])?);
    let mut arrived = [0; 8];
    pairs.arena.read(32, &mut arrived).map_err(|_| io::ErrorKind::InvalidInput)?;
    Ok(done && arrived == data)
}

fn route_to_self(peer_queue_pair: u32, port: u8, state: &PortState) -> Route {
    Route {
        mtu: state.mtu,
        peer_queue_pair,
        peer_packet: 0,
        own_packet: 0,
        peer_gid: state.gid,
        peer_lid: state.lid,
        global: state.is_ethernet() || state.lid == 0,
        own_gid_index: state.gid_index,
        port,
        reads_out: 1,
        reads_in: 1,
        service_level: 0,
        traffic_class: 0,
        hop_limit: 64,
        timeout: 14,
        retries: 6,
        not_ready_retries: 0,
        not_ready_timer: 12,
    }
}
