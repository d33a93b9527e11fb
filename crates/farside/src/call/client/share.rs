//! Local runs at the caller as part of a node of the global memory.

use super::Caller;
use crate::call::memory::global::GlobalMemory;
use crate::{Error, Node};

impl Caller {
    /// Lets local runs access the global memory through a node, as
    /// [`CallServer::share`](crate::call::CallServer::share) does for an executor. The executor at which the
    /// programs are registered must be part of a node too.
    ///
    /// # Errors
    /// As [`CallServer::share`](crate::call::CallServer::share).
    pub fn share(&mut self, node: &Node) -> Result<(), Error> {
        let global = GlobalMemory::new(node, self.mail.port.waiter())?;
        match &mut self.here {
            Some(here) => here.executor.share(global),
            None => {
                self.global = Some(global);
                Ok(())
            }
        }
    }
}
