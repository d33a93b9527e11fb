//! rdma_cm, for devices that connect by it alone (iWARP) and on request: the address at which it
//! reaches this fabric's device, and the terms of each connection.
//!
//! The address is found by trial: the first of this host's that rdma_cm resolves to the device and
//! port. The exchange of the two ends is in `wire`, the steps of the control thread in
//! `control::meeting`.

use crate::core::{Core, RETRIES};
use crate::device::{Device, PortState};
use crate::facts::Transport;
use crate::ffi::{EventChannel, Id, ManagerLibrary, Terms, own_addresses};
use crate::inbox::lock;
use crate::options::{OpenError, Options};
use crate::wire::{QueuePairEnd, Ways};
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

/// Connection requests that the kernel holds.
const BACKLOG: i32 = 256;

/// rdma_cm as one fabric uses it.
pub(crate) struct Manager {
    pub(crate) channel: Arc<EventChannel>,
    /// The device's.
    pub(crate) address: IpAddr,
    /// The address for rdma_cm's requests, of a fabric that listens.
    pub(crate) place: Option<SocketAddr>,
    /// Keeps the kernel listening.
    _listener: Option<Id>,
    /// Why it is used.
    pub(crate) because: &'static str,
}

/// Returns why a device's queue pairs are connected by rdma_cm; `None` if they are not.
pub(crate) fn because(transport: Transport, options: &Options) -> Option<&'static str> {
    match (transport, options.connection_manager) {
        (Transport::Iwarp, _) => Some("iWARP connects by nothing else"),
        (_, true) => Some("as asked for"),
        (_, false) => None,
    }
}

/// Returns the channel of rdma_cm, and the address that it resolves to a device's port; `first` is
/// tried before all others.
///
/// # Errors
/// What is missing, in words.
pub(crate) fn find(
    options: &Options,
    device: &str,
    port: u8,
    first: Option<IpAddr>,
) -> Result<(Arc<EventChannel>, IpAddr), String> {
    let library = ManagerLibrary::load(&options.connection_manager_library);
    let library = library.map_err(|reason| reason.to_string())?;
    let channel = EventChannel::new(&library);
    let channel = channel.map_err(|error| format!("its event channel: {error}"))?;
    let addresses = own_addresses().map_err(|error| format!("this host's addresses: {error}"))?;
    let wanted = Some((device.to_owned(), port));
    let leads = |address: &IpAddr| {
        // Addresses of other devices are refused here.
        let id = Id::new(&channel, 0).and_then(|id| id.bind(*address).map(|()| id));
        id.is_ok_and(|id| id.device() == wanted)
    };
    let found = first.into_iter().chain(addresses).find(leads);
    let none = || format!("none of this host's addresses leads to {device} port {port}");
    Ok((Arc::clone(&channel), found.ok_or_else(none)?))
}

impl Manager {
    /// Returns the rdma_cm state of a fabric of this device; `None` if it needs none.
    ///
    /// # Errors
    /// `NoManager`.
    pub(crate) fn open(
        options: &Options,
        device: &Device,
        state: &PortState,
    ) -> Result<Option<Self>, OpenError> {
        let Some(because) = because(device.facts.transport, options) else {
            return Ok(None);
        };
        let name = &device.context.listed.name;
        let lacks = |reason| OpenError::NoManager { device: name.clone(), because, reason };
        let gid = Ipv6Addr::from(state.gid);
        let first = gid.to_ipv4_mapped().map(IpAddr::V4);
        let found = find(options, name, device.port, first);
        let (channel, address) = found.map_err(lacks)?;
        let listening = options.listen.as_ref().map(|_| listen(&channel, address)).transpose();
        let listening = listening.map_err(|error| lacks(format!("listening: {error}")))?;
        let (listener, place) = listening.unzip();
        Ok(Some(Self { channel, address, place, _listener: listener, because }))
    }

    /// Describes it, for display.
    pub(crate) fn describe(&self) -> String {
        format!("queue pairs connected by rdma_cm at {} ({})", self.address, self.because)
    }
}

fn listen(channel: &Arc<EventChannel>, address: IpAddr) -> io::Result<(Id, SocketAddr)> {
    let id = Id::new(channel, 0)?;
    id.bind(address)?;
    let port = id.listen(BACKLOG)?;
    Ok((id, SocketAddr::new(address, port)))
}

/// The description of a fabric without rdma_cm.
pub(crate) const WITHOUT: &str = "queue pairs connected over the control stream (the default)";

impl Core {
    /// Returns how this side connects.
    pub(crate) fn ways(&self) -> Ways {
        let iwarp = self.device.facts.transport == Transport::Iwarp;
        Ways { manager: self.manager.is_some(), iwarp }
    }

    /// Returns how queue pairs are connected and why, for display.
    pub(crate) fn connecting(&self) -> String {
        self.manager.as_ref().map_or_else(|| WITHOUT.to_owned(), Manager::describe)
    }

    /// Returns why this side cannot connect with that one, in words.
    pub(crate) fn differs(&self, peer: &QueuePairEnd) -> Option<&'static str> {
        let (own, peer_ways) = (self.ways(), peer.ways);
        let own_layer = lock(&self.state).link_layer;
        match () {
            () if own.iwarp != peer_ways.iwarp => Some("one end is iWARP, the other is not"),
            () if own_layer != peer.link_layer => Some("one end is InfiniBand, the other Ethernet"),
            () if own.manager != peer_ways.manager => Some(
                "one end connects queue pairs by rdma_cm, the other does not: set the option \
                 `connection_manager` alike",
            ),
            () => None,
        }
    }

    /// Returns the parameters of a connection for rdma_cm, which its queue pair keeps too.
    pub(crate) fn terms(&self, queue_pair: u32, own: &QueuePairEnd, peer: &QueuePairEnd) -> Terms {
        let route = self.route(own, peer);
        Terms {
            queue_pair,
            reads_out: route.reads_out,
            reads_in: route.reads_in,
            retries: RETRIES,
            not_ready_retries: route.not_ready_retries,
            mtu: route.mtu,
            timeout: route.timeout,
            not_ready_timer: route.not_ready_timer,
        }
    }
}
