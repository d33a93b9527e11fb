//! rdma_cm, for devices that connect by it alone (iWARP) and on request: the address at which it
//! reaches this fabric's device, and the terms of each connection.
//!
//! The address is found by trial: the first of this host's that rdma_cm resolves to the device and
//! port. The exchange of the two ends is in `wire`, the steps of the control thread in
//! `control::meeting`.

use crate::device::{Device, PortState};
use crate::facts::Transport;
use crate::ffi::{EventChannel, Id};
use crate::options::{OpenError, Options};
use crate::resolve::find;
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
