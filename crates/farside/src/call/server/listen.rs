//! Opening an executor on a fabric.

use super::{CallServer, ServerOptions};
use crate::Error;
use crate::call::transport::message_port::MessagePort;
use farside_fabric::Fabric;
use std::sync::Arc;

impl CallServer {
    /// Serves at `name`, on memory to be lent.
    ///
    /// # Errors
    /// `FabricLacks`, `AddressTaken`, `BadConfiguration`, `System`.
    pub fn listen(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &ServerOptions,
    ) -> Result<Self, Error> {
        Self::serving(MessagePort::open(fabric, Some(name), &Self::sizes(options)?)?, options, None)
    }

    /// Serves at `name` on the memory of the executor at `host`, accessed by one-sided requests: for a processor
    /// next to an adapter (003 §3.1). Wait until [`Self::has_memory`].
    ///
    /// # Errors
    /// As [`Self::listen`]; `NoListener`.
    pub fn listen_with_host(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        host: &str,
        options: &ServerOptions,
    ) -> Result<Self, Error> {
        let messages = MessagePort::open(fabric, Some(name), &Self::sizes(options)?)?;
        let mut server = Self::serving(messages, options, Some(host))?;
        server.dial_upstream()?;
        Ok(server)
    }
}
