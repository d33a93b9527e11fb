//! Draining: a node without state saves its memory before it leaves, and a process that is started from what it has saved
//! returns as that node. The engine's side is [`engine::leave`](crate::engine).
//!
//! 1. **Copy** all allocations into a new state, while the node works.
//! 2. **Leave** up to the point where this node holds nothing of other homes, all lines of its own are back, and nothing
//!    writes them any more: from then on calls for writing wait for its return.
//! 3. **Copy again**: the state logs what differs.
//! 4. **Declare** the state whole, read it back, and compare all of it with the memory.
//! 5. **Leave** to the end: members keep the number and the memory for its return.

use crate::commits::COMMIT_TIMEOUT;
use crate::durable::{Allocation, LogDevice, MemoryState, StateIdentity};
use crate::hit::Lines;
use crate::node::{Drive, Node, NodeShared};
use crate::state::{open_copies, open_folder};
use crate::wait::Core;
use crate::{Error, ErrorCode, canary};
use farside_base::{GlobalAddress, LineAddress, LineSize, MemoryId};
use farside_protocol::allocate::{Block, SEGMENT_BYTES};
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Bytes that are copied and logged together.
const CHUNK_BYTES: usize = 64 << 10;

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

/// What a drained node has saved.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Drained {
    /// Bytes of the lines of all allocations. Each was read back and compared, unless the caller has given the device.
    pub memory_bytes: u64,
    /// Lines that were lost with their owners before, and not freed: they return with the last bytes that this home had.
    pub lines_lost: u64,
    /// How long the memory could not be written: from step 2 on.
    pub paused: Duration,
}

/// Opens the state again, to compare it.
type Reopen = Box<dyn Fn() -> Result<MemoryState, Error> + Send>;

/// Saves the memory of a node.
pub(crate) struct Saver {
    /// `None` once it is declared whole.
    state: Option<MemoryState>,
    identity: StateIdentity,
    memory: MemoryId,
    reopen: Option<Reopen>,
    chunk: Vec<u8>,
    saved_bytes: u64,
    lines_lost: u64,
    paused_since: Option<Instant>,
}

impl fmt::Debug for Saver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saver({:?})", self.identity)
    }
}

impl Saver {
    fn new(core: &Core, state: MemoryState, reopen: Option<Reopen>) -> Result<Self, Error> {
        let (identity, memory) = identity_of(core)?;
        let mut saver = Self {
            state: Some(state),
            identity,
            memory,
            reopen,
            chunk: vec![0; CHUNK_BYTES.max(LineSize::MAX.bytes())],
            saved_bytes: 0,
            lines_lost: 0,
            paused_since: None,
        };
        let identity = saver.identity.clone();
        saver.state()?.begin_saving(identity)?;
        Ok(saver)
    }

    fn state(&mut self) -> Result<&mut MemoryState, Error> {
        self.state.as_mut().ok_or_else(|| Error::new(ErrorCode::NodeClosed))
    }

    /// Copies all allocations into the state. `is_last`: nothing changes them any more.
    fn copy(&mut self, core: &Core, is_last: bool) -> Result<(), Error> {
        self.saved_bytes = 0;
        let segments = core.engine().home_segments();
        for segment in 0..segments {
            let blocks = core.engine().blocks_in(segment);
            let present = allocations(&core.lines, self.memory, &blocks);
            let start = segment as u64 * SEGMENT_BYTES;
            let known: Vec<(u64, Allocation)> =
                self.state()?.allocations_in(start..start + SEGMENT_BYTES).collect();
            for (offset, allocation) in known {
                if present.get(&offset) != Some(&allocation) {
                    self.state()?.freed(offset)?;
                }
            }
            for (offset, allocation) in present {
                match self.copy_allocation(&core.lines, offset, allocation) {
                    // Freed meanwhile, and its bytes allocated otherwise: the last copy has what there is then.
                    Err(error) if error.code == ErrorCode::OutOfBounds && !is_last => {}
                    copied => copied?,
                }
            }
        }
        Ok(())
    }

    fn copy_allocation(
        &mut self,
        lines: &Lines,
        offset: u64,
        allocation: Allocation,
    ) -> Result<(), Error> {
        let memory = self.memory;
        let is_new = self.state()?.allocations_in(offset..offset + 1).next().is_none();
        if is_new {
            self.state()?.allocated(offset, allocation)?;
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        let copied = each_chunk(lines, memory, (offset, allocation), &mut chunk, |at, bytes| {
            self.saved_bytes += bytes.len() as u64;
            self.state()?.write(at, bytes).map(drop)
        });
        self.chunk = chunk;
        copied
    }

    /// Steps 3 and 4, once the node has handed everything over.
    fn finish(&mut self, core: &Core) -> Result<(), Error> {
        if !canary::mutant!(canary::nodes(), DrainCopiesOnce) {
            self.copy(core, true)?;
        }
        let (directory, lines_lost) = {
            let engine = core.engine();
            (engine.directory_of_names(), engine.lines_lost())
        };
        self.lines_lost = lines_lost;
        let mut state = self.state.take().ok_or_else(|| Error::new(ErrorCode::NodeClosed))?;
        if let Some((offset, lines)) = directory {
            state.set_directory(offset, lines)?;
        }
        state.end_saving()?;
        state.close(COMMIT_TIMEOUT)?;
        drop(state);
        match &self.reopen {
            Some(reopen) => {
                let state = reopen()?;
                self.compare(core, &state)
            }
            None => Ok(()),
        }
    }

    /// Compares the memory with a state that was read back.
    fn compare(&mut self, core: &Core, state: &MemoryState) -> Result<(), Error> {
        let different = |what: String| {
            let text = format!("what was read back differs from the memory: {what}");
            Error::with(ErrorCode::LogDamaged, text)
        };
        if state.is_saving() || state.identity() != Some(&self.identity) {
            return Err(different(format!("{:?}", state.identity())));
        }
        let mut chunk = std::mem::take(&mut self.chunk);
        let mut count = 0;
        let segments = core.engine().home_segments();
        for segment in 0..segments {
            let blocks = core.engine().blocks_in(segment);
            for (offset, allocation) in allocations(&core.lines, self.memory, &blocks) {
                count += 1;
                if state.allocations_in(offset..offset + 1).next() != Some((offset, allocation)) {
                    return Err(different(format!("{allocation:?} at {offset}")));
                }
                let place = (offset, allocation);
                each_chunk(&core.lines, self.memory, place, &mut chunk, |at, bytes| {
                    let saved = state.image().get(at as usize..at as usize + bytes.len());
                    match saved == Some(bytes) {
                        true => Ok(()),
                        false => Err(different(format!("{} B at {at}", bytes.len()))),
                    }
                })?;
            }
        }
        match state.allocations().count() == count {
            true => Ok(()),
            false => Err(different(format!("{count} allocations"))),
        }
    }

    /// What was saved.
    fn drained(&self) -> Drained {
        Drained {
            memory_bytes: self.saved_bytes,
            lines_lost: self.lines_lost,
            paused: self.paused_since.map(|since| since.elapsed()).unwrap_or_default(),
        }
    }
}

/// Whose memory it is.
fn identity_of(core: &Core) -> Result<(StateIdentity, MemoryId), Error> {
    let bad = |text: &str| Error::with(ErrorCode::BadConfiguration, text.to_owned());
    let engine = core.engine();
    if engine.keeps_state() {
        return Err(bad("the node has state already: leave, and start it again from there"));
    }
    let memory = core.lines.memory().filter(|_| core.memory_bytes > 0);
    let memory = memory.ok_or_else(|| bad("the node lends no memory: leave"))?;
    let identity = StateIdentity {
        cluster: engine.cluster_name().to_owned(),
        node: memory.node().0,
        generation: memory.generation().0,
        memory_bytes: core.memory_bytes,
    };
    Ok((identity, memory))
}

/// The line of this number of an allocation at an offset.
fn line_at(memory: MemoryId, size: LineSize, offset: u64, number: u64) -> Option<LineAddress> {
    GlobalAddress::new_in(memory, size, offset).ok()?.line().checked_add(number)
}

/// The allocations among blocks: those that are neither being made nor freed.
fn allocations(
    lines: &Lines,
    memory: MemoryId,
    blocks: &[(Block, LineSize)],
) -> BTreeMap<u64, Allocation> {
    let allocation = |(block, size): &(Block, LineSize)| {
        let at = |number: u64| line_at(memory, *size, block.offset, number);
        let first = lines.here(at(0)?).1.filter(|extent| extent.first)?;
        let last = lines.here(at(block.lines - 1)?).1?;
        let is_whole = block.lines == 1 || !last.first;
        let bytes = (block.lines - 1) * size.bytes() as u64 + u64::from(last.bytes);
        let found = Allocation { bytes, lines: block.lines, class: size.class() };
        (is_whole && first.bytes > 0).then_some((block.offset, found))
    };
    blocks.iter().filter_map(allocation).collect()
}

/// Copies the lines of an allocation out, some at a time.
///
/// # Errors
/// `OutOfBounds` if a line is of no allocation any more; those of `with`.
fn each_chunk(
    lines: &Lines,
    memory: MemoryId,
    (offset, allocation): (u64, Allocation),
    chunk: &mut [u8],
    mut with: impl FnMut(u64, &[u8]) -> Result<(), Error>,
) -> Result<(), Error> {
    let gone = || Error::new(ErrorCode::OutOfBounds);
    let size = LineSize::from_class(allocation.class).ok_or_else(gone)?;
    let line_bytes = size.bytes();
    let at_once = (chunk.len() / line_bytes) as u64;
    let mut first = 0;
    while first < allocation.lines {
        let count = at_once.min(allocation.lines - first);
        let bytes = &mut chunk[..count as usize * line_bytes];
        for (number, out) in (first..).zip(bytes.chunks_exact_mut(line_bytes)) {
            let line = line_at(memory, size, offset, number).ok_or_else(gone)?;
            lines.copy_own(line, out).ok_or_else(gone)?;
        }
        with(offset + first * line_bytes as u64, bytes)?;
        first += count;
    }
    Ok(())
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
    /// *Blocks* for a copy of the memory while the node works, then for what has changed since, and for reading all back.
    /// *Cost*: as much memory as is lent, for as long as it takes.
    ///
    /// # Errors
    /// `BadConfiguration` for a node that has state or lends no memory, or of a memory size that no state has; `StateForeign`,
    /// `StateInUse`, `DeviceFailed`, `System` and others of the place; `TimedOut`. The node remains a member if the place
    /// fails, and reads are still served; before the leave has begun it works as before, afterwards drain it to another place
    /// or leave without. `NodeClosed` or `Isolated` if the cluster removed this node meanwhile.
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
    pub fn start_draining(self, device: Box<dyn LogDevice>) -> Result<crate::Leaving, Error> {
        let core = &self.shared().core;
        let state = crate::state::open_device(device, core.memory_bytes)?;
        let mut saver = Saver::new(core, state, None)?;
        saver.copy(core, false)?;
        Ok(self.leave_with(Some(saver)))
    }
}

impl NodeShared {
    /// Steps 2 to 5.
    fn drain(&self, saver: &mut Saver) -> Result<Drained, Error> {
        let unlock_timeout = self.core.leave_timeout / 2;
        self.core.with_engine(|engine| engine.begin_leave(unlock_timeout, true));
        self.wait_until_left(unlock_timeout, Some(saver))?;
        Ok(saver.drained())
    }

    /// Saves the memory if the leave has come to it; returns whether it did.
    ///
    /// # Errors
    /// Those of the place; the node is still a member.
    pub(crate) fn save_if_wanted(&self, saver: &mut Saver) -> Result<bool, Error> {
        let engine = self.core.engine();
        if engine.is_closed_to_writers() {
            saver.paused_since.get_or_insert_with(Instant::now);
        }
        if !engine.wants_saving() {
            return Ok(false);
        }
        drop(engine);
        let saved = saver.finish(&self.core);
        self.core.with_engine(|engine| engine.end_saving(saved.is_ok()));
        saved.map(|()| true)
    }
}
