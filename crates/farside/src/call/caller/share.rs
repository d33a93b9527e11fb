//! Runs at the caller's end as part of a node of the global memory.

use super::Caller;
use crate::call::global::Global;
use crate::{Error, Node};

impl Caller {
    /// Makes runs at this end reach the global memory through a node of it, as
    /// [`CallServer::share`](crate::call::CallServer::share) does for an executor. The executor that the
    /// programs are registered at must be part of a node too.
    ///
    /// # Errors
    /// As there.
    pub fn share(&mut self, node: &Node) -> Result<(), Error> {
        let global = Global::new(node, self.mail.port.waiter())?;
        match &mut self.here {
            Some(here) => here.executor.share(global),
            None => {
                self.global = Some(global);
                Ok(())
            }
        }
    }
}
