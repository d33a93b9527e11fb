//! Draining: a node without state saves its memory before it leaves, and a process that is started from what it has saved
//! returns as that node. The engine's side is [`engine::leave`](crate::engine).
//!
//! 1. **Copy** all allocations into a new state, while the node works.
//! 2. **Leave** up to the point where this node holds nothing of other homes, all lines of its own are back, and nothing
//!    writes them any more: from then on calls for writing wait for its return.
//! 3. **Copy again**: the state logs what differs.
//! 4. **Read** the state back, compare all of it with the memory, and declare it whole.
//! 5. **Leave** to the end: members keep the number and the memory for its return.

use crate::durable::LogDevice;
use crate::node::{Node, NodeShared};
use crate::saver::{Drained, Saver, identity_of};
use crate::state::{open_copies, open_device, open_folder};
use crate::wait::Drive;
use crate::{Error, ErrorCode};
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

/// Where a node saves its memory: see [`Node::drain`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum DrainTarget {
    /// A folder, as in [`Config::state`](crate::Config::state); it is empty or absent.
    Folder(PathBuf),
    /// Memory that servers lend, as in [`Config::state_copies`](crate::Config::state_copies).
    Copies(Vec<String>),
}

impl fmt::Display for DrainTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Folder(folder) => write!(f, "{}", folder.display()),
            Self::Copies(copies) => write!(f, "{}", copies.join(",")),
        }
    }
}

impl Node {
    /// Saves the memory of this node and leaves: a process that is started with
    /// [`Config::state`](crate::Config::state) or [`Config::state_copies`](crate::Config::state_copies) of this place, on any
    /// machine, returns as this node, with its number, memory and names. Every address stays valid.
    ///
    /// *Guarantees*: those of [`leave`](Self::leave). Nothing that was written is lost: when it returns, each byte of each
    /// allocation is in the place and durable as that is, and was read back and compared. What is locked at this node is
    /// unlocked first, or ends after half of [`Config::leave_timeout_ns`](crate::Config::leave_timeout_ns). Calls of other
    /// nodes for this memory wait for its return as for a node with state; reads are served up to the end.
    ///
    /// The node has left then; drop it before this process starts one in its place.
    ///
    /// *Blocks* for a copy of the memory while the node works, then, while the memory cannot be written, for a second copy
    /// of what has changed since, and for reading all back: set
    /// [`Config::return_timeout_ns`](crate::Config::return_timeout_ns) of the other nodes for that.
    /// *Cost*: as much memory as is lent, for as long as it takes.
    ///
    /// # Errors
    /// `BadConfiguration` for a node that has state or lends no memory, or of a memory size that no state has; `StateForeign`,
    /// `StateInUse`, `DeviceFailed`, `System` and others of the place; `TimedOut` if lines are not given back in time. The node
    /// remains a member then, and reads are still served; before the leave has begun it works as before, afterwards drain it
    /// to another empty place, or leave without. `NodeClosed` or `Isolated` if this node has left meanwhile, by a clone, or the
    /// cluster has removed it; `TimedOut` also if a member does not answer the leave, with the memory saved.
    ///
    /// ```
    /// use farside::{Config, DrainTarget, Node};
    ///
    /// # fn main() -> Result<(), farside::Error> {
    /// let name = format!("drained-{}", std::process::id());
    /// # let folder = std::env::temp_dir().join(&name);
    /// let config = Config::new(name).memory_bytes(1 << 20);
    /// let node = Node::create(&config)?;
    /// let mut session = node.session()?;
    /// let plums = session.alloc(64)?;
    /// session.write(plums, b"two plums")?;
    /// drop(session);
    /// let drained = node.drain(&DrainTarget::Folder(folder.clone()))?;
    /// assert_eq!((drained.memory_bytes, drained.lines_lost), (512, 0));
    /// drop(node);
    ///
    /// // Here the cluster ended with its only node; otherwise the others have waited.
    /// let node = Node::create(&config.state(Some(folder.clone())))?;
    /// let mut text = [0; 9];
    /// node.session()?.read(plums, &mut text)?;
    /// assert_eq!(&text, b"two plums");
    /// # node.leave()?;
    /// # std::fs::remove_dir_all(folder).ok();
    /// # Ok(())
    /// # }
    /// ```
    pub fn drain(&self, target: &DrainTarget) -> Result<Drained, Error> {
        let shared = self.shared();
        if shared.core.drive == Drive::Caller {
            let text = "the caller drives this node: use start_draining";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        identity_of(&shared.core)?;
        let (fabric, memory_bytes) = (Arc::clone(&shared.core.fabric), shared.core.memory_bytes);
        let target = target.clone();
        let open = move || match &target {
            DrainTarget::Folder(folder) => open_folder(folder, memory_bytes),
            DrainTarget::Copies(copies) => {
                open_copies(&fabric, copies, None, memory_bytes).map(|(state, _)| state)
            }
        };
        let state = open()?;
        let mut saver = Saver::new(&shared.core, state, Some(Box::new(open)))?;
        saver.copy(&shared.core, false)?;
        shared.drain(&mut saver)
    }

    /// Starts to drain, for a node that its caller drives: as [`start_leaving`](Self::start_leaving), onto a device. What was
    /// written is not read back.
    ///
    /// # Errors
    /// As [`drain`](Self::drain); the node works as before.
    pub fn start_draining(&self, device: Box<dyn LogDevice>) -> Result<crate::Leaving, Error> {
        let core = &self.shared().core;
        let state = open_device(device, core.memory_bytes)?;
        let mut saver = Saver::new(core, state, None)?;
        saver.copy(core, false)?;
        self.clone().leave_with(saver).ok_or_else(leaves_already)
    }
}

fn leaves_already() -> Error {
    let text = "this node leaves already, or is drained already, and not to this place";
    Error::with(ErrorCode::NodeClosed, text)
}

impl NodeShared {
    /// Steps 2 to 5.
    fn drain(&self, saver: &mut Saver) -> Result<Drained, Error> {
        let unlock_timeout = self.core.leave_timeout / 2;
        if !self.core.with_engine(|engine| engine.begin_leave(unlock_timeout, true)) {
            return Err(leaves_already());
        }
        self.wait_until_left(unlock_timeout, Some(saver))?;
        saver.drained().ok_or_else(leaves_already)
    }
}
