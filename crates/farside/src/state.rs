//! What a node keeps of its earlier lives: the state of its memory, and with it its number.

use crate::commits::CommitSignal;
use crate::durable::{
    CopyStatus, LogDevice, MemoryState, PersistentDevice, ReplicaOptions, ReplicatedDevice,
    StateIdentity, StateOptions,
};
use crate::engine::{Keeps, StateDriver};
use crate::{Config, Error, ErrorCode, NodeId};
use farside_base::Generation;
use farside_fabric::Fabric;
use std::path::Path;
use std::sync::Arc;

/// A drain to this place did not end.
const NOT_WHOLE: &str = "a node did not end saving its memory there, so it is not whole: empty it";

/// The state of a node that is not a member yet.
pub(crate) struct NodeState {
    pub(crate) keeps: Keeps,
    /// Until the engine has it.
    memory: Option<MemoryState>,
    /// Of a state in copies.
    pub(crate) copies: Option<CopyStatus>,
}

impl NodeState {
    fn of(keeps: Keeps) -> Self {
        Self { keeps, memory: None, copies: None }
    }

    /// The state that the configuration names, if it names one.
    ///
    /// # Errors
    /// As [`MemoryState::open`] and [`ReplicatedDevice::open`]; `StateForeign` for that of another cluster.
    pub(crate) fn open(config: &Config, fabric: &Arc<dyn Fabric>) -> Result<Self, Error> {
        config.check()?;
        if let (Some(folder), true) = (&config.state, config.persistent_memory) {
            return Self::on(config, Box::new(PersistentDevice::open(folder)?));
        }
        if let Some(folder) = &config.state {
            return Self::with(config, open_folder(folder, config.memory_bytes)?);
        }
        if config.state_copies.is_empty() {
            return Ok(Self::of(Keeps::Nothing));
        }
        let (copies, copies_min) = (&config.state_copies, config.state_copies_min);
        let (memory, status) = open_copies(fabric, copies, copies_min, config.memory_bytes)?;
        Ok(Self { copies: Some(status), ..Self::with(config, memory)? })
    }

    /// The state on a device.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub(crate) fn on(config: &Config, device: Box<dyn LogDevice>) -> Result<Self, Error> {
        Self::with(config, open_device(device, config.memory_bytes)?)
    }

    fn with(config: &Config, memory: MemoryState) -> Result<Self, Error> {
        let Some(identity) = memory.identity() else {
            return Ok(Self { memory: Some(memory), ..Self::of(Keeps::New) });
        };
        identity.check_cluster(&config.cluster)?;
        if memory.is_saving() {
            return Err(Error::with(ErrorCode::StateForeign, NOT_WHOLE));
        }
        let (node, generation) = (NodeId(identity.node), Generation(identity.generation));
        let names = memory.directory().is_some();
        Ok(Self { memory: Some(memory), ..Self::of(Keeps::Known { node, generation, names }) })
    }

    /// The driver of the state's log, for the engine of a node that has its number.
    ///
    /// # Errors
    /// `ProtocolViolation` if it lends no memory.
    pub(crate) fn driver(
        &mut self,
        config: &Config,
        (node, generation): (NodeId, Option<Generation>),
        has_thread: bool,
    ) -> Result<Option<StateDriver>, Error> {
        let Some(memory) = self.memory.take() else {
            return Ok(None);
        };
        let Some(generation) = generation else {
            return Err(Error::new(ErrorCode::ProtocolViolation));
        };
        let identity = StateIdentity {
            cluster: config.cluster.clone(),
            node: node.0,
            generation: generation.0,
            memory_bytes: config.memory_bytes,
        };
        let signal = has_thread.then(|| Arc::new(CommitSignal::default()));
        Ok(Some(StateDriver::new((memory, self.copies.clone()), identity, signal)))
    }
}

impl From<Keeps> for NodeState {
    /// For tests of a number and memory without contents.
    fn from(keeps: Keeps) -> Self {
        Self::of(keeps)
    }
}

/// Opens the state of a folder.
///
/// # Errors
/// As [`MemoryState::open`].
pub(crate) fn open_folder(folder: &Path, memory_bytes: u64) -> Result<MemoryState, Error> {
    Ok(MemoryState::open(folder, &options(memory_bytes))?.0)
}

/// Opens the state of a device.
///
/// # Errors
/// As [`MemoryState::on`].
pub(crate) fn open_device(
    device: Box<dyn LogDevice>,
    memory_bytes: u64,
) -> Result<MemoryState, Error> {
    Ok(MemoryState::on(device, &options(memory_bytes))?.0)
}

/// Opens the state of copies, of which at least `copies_min` have to be there, or all.
///
/// # Errors
/// As [`MemoryState::on`] and [`ReplicatedDevice::open`].
pub(crate) fn open_copies(
    fabric: &Arc<dyn Fabric>,
    copies: &[String],
    copies_min: Option<usize>,
    memory_bytes: u64,
) -> Result<(MemoryState, CopyStatus), Error> {
    let copies: Vec<&str> = copies.iter().map(String::as_str).collect();
    let mut options = StateOptions::in_copies(memory_bytes);
    let room_bytes = options.log_bytes_min()?;
    let replicas = ReplicaOptions { copies_min, room_bytes, ..ReplicaOptions::default() };
    let device = ReplicatedDevice::open(fabric, &copies, &replicas)?;
    let status = device.status();
    if let Some(slot_bytes) = device.slot_bytes() {
        options.segment_bytes = slot_bytes; // of a state that was made before
    }
    Ok((MemoryState::on(Box::new(device), &options)?.0, status))
}

fn options(memory_bytes: u64) -> StateOptions {
    StateOptions::default().memory_bytes(memory_bytes)
}
