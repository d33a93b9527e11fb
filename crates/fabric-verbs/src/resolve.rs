//! The address of this host by which rdma_cm reaches a device.

use crate::ffi::{EventChannel, Id, ManagerLibrary, own_addresses};
use crate::options::Options;
use std::net::IpAddr;
use std::sync::Arc;

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
