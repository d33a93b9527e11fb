//! The worker's executor of remote memory calls, on its own thread, and its callers of other executors.

use super::wire::Executor;
use farside::call::{CallServer, Caller, CallerOptions, ServerOptions};
use farside::{Node, NodeId};
use farside_apps::dht::Lookups;
use farside_command::failure::Failure;
use farside_fabric::Fabric;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Timeout of a call, after which the look-up is done without one: workers share processors.
const TIMEOUT: Duration = Duration::from_secs(2);

/// The executor of the worker's node.
pub(super) struct Calls {
    fabric: Arc<dyn Fabric>,
    node: NodeId,
    address: String,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Calls {
    /// Starts the executor at `name`; over the node's fabric if it is one between hosts, otherwise over shared
    /// memory.
    pub(super) fn start(
        node: &Node,
        between: Option<&Arc<dyn Fabric>>,
        name: &str,
    ) -> Result<Self, Failure> {
        let fabric = match between {
            Some(fabric) => Arc::clone(fabric),
            None => farside_command::fabrics::shm()?,
        };
        let mut server = CallServer::listen(&fabric, name, &ServerOptions::default())?;
        server.share(node)?;
        let address = server.address().unwrap_or_else(|| name.to_owned());
        let stop = Arc::new(AtomicBool::new(false));
        let its_stop = Arc::clone(&stop);
        let thread = Some(std::thread::spawn(move || server.serve(&its_stop)));
        Ok(Self { fabric, node: node.id(), address, stop, thread })
    }

    /// Returns the address for callers.
    pub(super) fn executor(&self) -> Executor {
        Executor { node: self.node.0, address: self.address.clone() }
    }

    /// Connects a thread of this worker to all executors except its own.
    pub(super) fn lookups(&self, executors: &[Executor]) -> Result<Lookups, Failure> {
        let mut lookups = Lookups::new(TIMEOUT);
        for Executor { node, address } in executors {
            if *node != self.node.0 {
                let caller = Caller::connect(&self.fabric, address, &CallerOptions::default());
                lookups.add(NodeId(*node), caller?)?;
            }
        }
        Ok(lookups)
    }
}

impl Drop for Calls {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
