//! The state that a fabric, its ports and its control thread share.

use crate::device::{Device, PortState};
use crate::ffi::{QueuePairHandle, Route};
use crate::inbox::{ImportReply, Inbox, PendingReply};
use crate::manager::Manager;
use crate::options::{Options, RETRIES, mtu_bytes};
use crate::random::random;
use crate::region::{Manner, RegionTable};
use crate::token::{Token, lock};
use crate::window::Windows;
use crate::wire::{LEASE_MS, QueuePairEnd, Word};
use farside_base::{Capabilities, RegionToken};
use farside_bootstrap::Endpoint;
use farside_fabric::FabricError;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::OwnedFd;
use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Ticks of the control thread in a lease.
pub(crate) const LEASE_TICKS: u64 = 8;
/// The first token of a conversation; lower ones are the control thread's own.
const TOKENS: u64 = 16;

/// A command to the control thread.
pub(crate) enum Command {
    /// Dial the endpoints in order until one has a port of this name.
    Connect(Box<Dial>),
    /// Names of hosts were resolved.
    Resolved { token: Token, addresses: Vec<(Endpoint, SocketAddr)> },
    /// The queue pair of a link that the peer accepted is connected, or cannot be.
    Joined { token: Token, joined: io::Result<()> },
    /// Accept a request; the queue pair is connected already.
    Accept {
        token: Token,
        handle: QueuePairHandle,
        end: QueuePairEnd,
        reply: Vec<u8>,
        done: Arc<PendingReply<()>>,
    },
    /// Refuse a request.
    Refuse { token: Token, reason: Vec<u8> },
    /// Tell the peer that this adapter has refused one of its requests.
    Refused { token: Token },
    /// Import a region of the peer.
    Import { token: Token, region: RegionToken, answer: Arc<ImportReply> },
    /// A window was bound for the peer of a link, or was not: an `ibv_wc_status`.
    Bound { token: Token, status: u32 },
    /// End a link.
    Close { token: Token },
    /// End all links of a port.
    ClosePort { number: u64 },
    /// End the thread.
    Stop,
}

/// A dial.
pub(crate) struct Dial {
    pub(crate) token: Token,
    pub(crate) inbox: Arc<Inbox>,
    pub(crate) handle: QueuePairHandle,
    pub(crate) end: QueuePairEnd,
    pub(crate) targets: Vec<Endpoint>,
    pub(crate) name: String,
    pub(crate) hello: Vec<u8>,
}

/// The address of a listening fabric.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Listening {
    /// As announced to other hosts.
    pub(crate) endpoint: Endpoint,
    /// The same, resolved.
    pub(crate) host: SocketAddr,
    /// By this process.
    pub(crate) own: SocketAddr,
}

impl Listening {
    /// Returns the address of a listener at `local` that was requested as `asked`. One that listens at
    /// all addresses is reached at `port`, the address of the RDMA port, if there is one; otherwise
    /// only from this host.
    ///
    /// # Errors
    /// If the advertised name cannot be resolved.
    pub(crate) fn new(
        asked: &Endpoint,
        advertise: Option<&Endpoint>,
        local: SocketAddr,
        port: Option<Ipv4Addr>,
    ) -> io::Result<Self> {
        let everywhere = local.ip().is_unspecified();
        let loopback = match local.ip() {
            IpAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            IpAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        let own = if everywhere { SocketAddr::new(loopback, local.port()) } else { local };
        if let Some(endpoint) = advertise {
            let found = endpoint.resolve()?;
            let host = found.first().copied().ok_or(io::ErrorKind::NotFound)?;
            return Ok(Self { endpoint: endpoint.clone(), host, own });
        }
        if everywhere {
            let host = port.map_or(own, |number| SocketAddr::new(number.into(), local.port()));
            return Ok(Self { endpoint: host.into(), host, own });
        }
        let endpoint = Endpoint { host: asked.host.clone(), port: local.port() };
        Ok(Self { endpoint, host: local, own })
    }
}

pub(crate) struct Core {
    pub(crate) options: Options,
    pub(crate) device: Device,
    pub(crate) capabilities: Capabilities,
    pub(crate) state: Mutex<PortState>,
    /// Before regions, so that they end first.
    pub(crate) windows: Windows,
    pub(crate) regions: Mutex<RegionTable>,
    /// Grows whenever a region ends.
    pub(crate) region_changes: AtomicU64,
    /// One life of this fabric; random.
    pub(crate) incarnation: u64,
    /// Time, in parts of a lease. Written by the control thread.
    pub(crate) ticks: AtomicU64,
    /// The listening ports, by name.
    pub(crate) names: Mutex<HashMap<String, Arc<Inbox>>>,
    /// Every port.
    pub(crate) ports: Mutex<Vec<Arc<Inbox>>>,
    /// The address at which peers dial.
    pub(crate) listening: Option<Listening>,
    /// Connects queue pairs, if rdma_cm does that.
    pub(crate) manager: Option<Manager>,
    commands: Mutex<Vec<Command>>,
    pub(crate) doorbell: OwnedFd,
    numbers: AtomicU64,
}

impl Core {
    pub(crate) fn new(
        options: Options,
        device: Device,
        state: PortState,
        capabilities: Capabilities,
        listening: Option<Listening>,
        manager: Option<Manager>,
    ) -> Result<Self, FabricError> {
        let doorbell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK);
        Ok(Self {
            options,
            device,
            capabilities,
            state: Mutex::new(state),
            regions: Mutex::default(),
            windows: Windows::default(),
            region_changes: AtomicU64::new(0),
            incarnation: random()?,
            ticks: AtomicU64::new(1),
            names: Mutex::default(),
            ports: Mutex::default(),
            listening,
            manager,
            commands: Mutex::default(),
            doorbell: doorbell.map_err(|reason| FabricError::System("eventfd", reason.into()))?,
            numbers: AtomicU64::new(TOKENS),
        })
    }

    /// Returns a number that nothing else of this fabric has.
    pub(crate) fn number(&self) -> u64 {
        self.numbers.fetch_add(1, Ordering::Relaxed)
    }

    /// Sends a command to the control thread.
    pub(crate) fn command(&self, command: Command) {
        lock(&self.commands).push(command);
        // Fails only at its largest value, which wakes as well.
        let _ = rustix::io::write(&self.doorbell, &1u64.to_ne_bytes());
    }

    pub(crate) fn take_commands(&self) -> Vec<Command> {
        // Fails if the doorbell was not rung.
        let _ = rustix::io::read(&self.doorbell, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.commands))
    }

    /// Returns how memory is registered.
    pub(crate) fn manner(&self) -> Manner {
        let trial = &self.device.facts.trial;
        Manner {
            flush: self.capabilities.flush,
            on_demand: self.options.on_demand_paging,
            windows: trial.windows,
            windows_flush: trial.windows_flush,
        }
    }

    /// Returns on which links rkeys are valid and why, for display.
    pub(crate) fn keys(&self) -> &'static str {
        let facts = &self.device.facts;
        match (facts.trial.windows, facts.windows, self.options.memory_windows) {
            (true, ..) => "rkeys are valid on one link each (memory windows)",
            (_, 0, _) => "rkeys are valid on every link (the device has no memory windows)",
            (_, _, false) => "rkeys are valid on every link (memory windows were not requested)",
            _ => "rkeys are valid on every link (memory windows did not work on trial)",
        }
    }

    /// This end of a connection, by a queue pair's number.
    pub(crate) fn end(&self, queue_pair: u32) -> Result<QueuePairEnd, FabricError> {
        let state = lock(&self.state);
        Ok(QueuePairEnd {
            queue_pair,
            // Random, so that packets of an older connection with the same numbers do not fit.
            packet: (random()? & 0xff_ffff) as u32,
            gid: state.gid,
            lid: state.lid,
            mtu: state.mtu,
            link_layer: state.link_layer,
            reads_in: self.device.facts.reads_in,
            reads_out: self.device.facts.reads_out,
            lease_ms: u32::try_from(self.options.lease.as_millis()).unwrap_or(*LEASE_MS.end()),
            ways: self.ways(),
            word: self.device.confirmation.as_ref().map_or_else(Word::default, |own| own.word),
        })
    }

    /// Returns the route from a queue pair of this fabric to that of a peer.
    ///
    /// Transport retries fill the lease, so that a path that recovers within it continues, and no more:
    /// a count of seven is unlimited on some adapters. Receiver-not-ready is retried without limit by
    /// the adapter, every 0.64 ms, and limited by this fabric's `patience`.
    pub(crate) fn route(&self, own: &QueuePairEnd, peer: &QueuePairEnd) -> Route {
        const AGAIN_WITHOUT_END: u8 = 7;
        const AFTER_640_US: u8 = 12;
        let state = lock(&self.state);
        Route {
            mtu: own.mtu.min(peer.mtu),
            peer_queue_pair: peer.queue_pair,
            peer_packet: peer.packet,
            own_packet: own.packet,
            peer_gid: peer.gid,
            peer_lid: peer.lid,
            global: state.is_ethernet() || peer.lid == 0,
            own_gid_index: state.gid_index,
            port: self.device.port,
            reads_out: own.reads_out.min(peer.reads_in),
            reads_in: own.reads_in.min(peer.reads_out),
            service_level: self.options.service_level,
            traffic_class: self.options.traffic_class,
            hop_limit: 64,
            timeout: timeout_code(self.options.lease, RETRIES),
            retries: RETRIES,
            not_ready_retries: AGAIN_WITHOUT_END,
            not_ready_timer: AFTER_640_US,
        }
    }

    /// Connects a queue pair. The kernel resolves the peer's hardware address meanwhile, which takes up
    /// to a second if packets are lost, and then fails: it is tried a second time.
    pub(crate) fn join(
        &self,
        handle: &QueuePairHandle,
        own: &QueuePairEnd,
        peer: &QueuePairEnd,
    ) -> io::Result<()> {
        let route = self.route(own, peer);
        match handle.connect(&route) {
            Err(error) if error.kind() == io::ErrorKind::TimedOut => handle.connect(&route),
            done => done,
        }
    }

    /// Describes the path between two ends, with the reasons of the choices.
    pub(crate) fn path(&self, own: &QueuePairEnd, peer: &QueuePairEnd, from: &str) -> String {
        let state = lock(&self.state);
        let (device, port) = (&self.device.context.listed.name, self.device.port);
        let layer = self.device.network(&state);
        let (index, why) = (state.gid_index, &state.gid_reason);
        let gid = |end: &QueuePairEnd| std::net::Ipv6Addr::from(end.gid);
        format!(
            "{layer} {device} port {port}, GID index {index} {} ({why}) -> {}, queue pair {:#x} -> \
             {:#x}, MTU {} (ends take {} and {}), {}, control {from} {}",
            gid(own),
            gid(peer),
            own.queue_pair,
            peer.queue_pair,
            mtu_bytes(own.mtu.min(peer.mtu)),
            mtu_bytes(own.mtu),
            mtu_bytes(peer.mtu),
            self.connecting(),
            self.options.security.describe(),
        )
    }
}

/// The longest time of an answer, as its code (4.096 us times two to it), with which all tries end
/// within the lease.
fn timeout_code(lease: Duration, retries: u8) -> u8 {
    let all = |code: u8| Duration::from_nanos(4096 << code) * (u32::from(retries) + 1);
    (1..=31).rev().find(|code| all(*code) <= lease).unwrap_or(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fabric_says_where_it_is_reached() {
        let at = |text: &str| text.parse::<SocketAddr>().unwrap();
        let told = |asked: &str, advertise: Option<&str>, local, port: Option<[u8; 4]>| {
            let advertise = advertise.map(|text| text.parse::<Endpoint>().unwrap());
            let asked = asked.parse().unwrap();
            let told = Listening::new(&asked, advertise.as_ref(), at(local), port.map(Into::into));
            told.map(|told| (told.endpoint.to_string(), told.host, told.own)).unwrap()
        };
        let (rdma, here) = (Some([10, 77, 0, 1]), "127.0.0.1:7000");
        let expected = |endpoint: &str, host, own| (endpoint.to_owned(), at(host), at(own));
        // As requested, with the port that the system chose.
        let one = "10.0.0.5:7000";
        assert_eq!(told("10.0.0.5:0", None, one, rdma), expected(one, one, one));
        assert_eq!(told("LocalHost:0", None, here, rdma), expected("localhost:7000", here, here));
        // Everywhere.
        let (all, port) = ("0.0.0.0:7000", "10.77.0.1:7000");
        assert_eq!(told("0.0.0.0:0", None, all, rdma), expected(port, port, here));
        assert_eq!(told("0.0.0.0:0", None, all, None), expected(here, here, here));
        let six = "[::1]:7000";
        assert_eq!(told("[::]:0", None, "[::]:7000", None), expected(six, six, six));
        // As given.
        let said = "192.0.2.1:80";
        assert_eq!(told("0.0.0.0:0", Some(said), all, rdma), expected(said, said, here));
    }

    #[test]
    fn all_tries_end_within_the_lease() {
        assert_eq!(timeout_code(Duration::from_secs(1), 6), 15);
        assert_eq!(timeout_code(Duration::from_millis(50), 6), 10);
        assert_eq!(timeout_code(Duration::from_nanos(1), 6), 1);
    }
}
