//! Copies the memory of a node into a state, and compares what was read back: [`drain`](crate::drain).

use crate::commits::COMMIT_TIMEOUT;
use crate::durable::{Allocation, MemoryState, StateIdentity};
use crate::hit::Lines;
use crate::wait::{Core, pause};
use crate::{Error, ErrorCode, canary};
use farside_base::{GlobalAddress, LineAddress, LineSize, MemoryId};
use farside_protocol::allocate::{Block, SEGMENT_BYTES};
use std::collections::BTreeMap;
use std::fmt;
use std::time::{Duration, Instant};

/// How long a state that was closed may count as in use.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(10);
/// The time between two attempts.
const REOPEN_PAUSE: Duration = Duration::from_millis(1);
/// Bytes that are copied and logged together.
const CHUNK_BYTES: usize = 64 << 10;

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
pub(crate) type Reopen = Box<dyn Fn() -> Result<MemoryState, Error> + Send>;

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
    /// All is saved.
    is_done: bool,
}

impl fmt::Debug for Saver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saver({:?})", self.identity)
    }
}

impl Saver {
    /// Begins to save the memory of a node in a state.
    ///
    /// # Errors
    /// Those of [`identity_of`], and of the state.
    pub(crate) fn new(
        core: &Core,
        state: MemoryState,
        reopen: Option<Reopen>,
    ) -> Result<Self, Error> {
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
            is_done: false,
        };
        let identity = saver.identity.clone();
        saver.state()?.begin_saving(identity)?;
        Ok(saver)
    }

    fn state(&mut self) -> Result<&mut MemoryState, Error> {
        self.state.as_mut().ok_or_else(|| Error::new(ErrorCode::NodeClosed))
    }

    /// Copies all allocations into the state. `is_last`: nothing changes them any more.
    pub(crate) fn copy(&mut self, core: &Core, is_last: bool) -> Result<(), Error> {
        self.saved_bytes = 0;
        let segments = core.engine().home_segments();
        let present = |memory, segment| {
            let blocks = core.engine().blocks_in(segment);
            allocations(&core.lines, memory, &blocks)
        };
        // All of them first: a large one may be in the place of some in several segments.
        for segment in 0..segments {
            let present = present(self.memory, segment);
            let start = segment as u64 * SEGMENT_BYTES;
            let known: Vec<(u64, Allocation)> =
                self.state()?.allocations_in(start..start + SEGMENT_BYTES).collect();
            for (offset, allocation) in known {
                if present.get(&offset) != Some(&allocation) {
                    self.state()?.freed(offset)?;
                }
            }
        }
        for segment in 0..segments {
            for (offset, allocation) in present(self.memory, segment) {
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
        let (offset, lines) = directory.unwrap_or_default();
        state.set_directory(offset, lines)?;
        if let Some(reopen) = &self.reopen {
            state.close(COMMIT_TIMEOUT)?;
            drop(state);
            state = reopen_in_time(reopen)?;
            self.compare(core, &state, directory)?;
        }
        let whole = state.end_saving().and_then(|_| state.close(COMMIT_TIMEOUT));
        whole.map_err(|error| {
            let detail = format!("{}; the place may be whole: empty it", error.detail);
            Error { detail, ..error }
        })?;
        self.is_done = true;
        Ok(())
    }

    /// Compares the memory with a state that was read back.
    fn compare(
        &mut self,
        core: &Core,
        state: &MemoryState,
        directory: Option<(u64, u64)>,
    ) -> Result<(), Error> {
        let different = |what: String| {
            let text = format!("what was read back differs from the memory: {what}");
            Error::with(ErrorCode::LogDamaged, text)
        };
        let whose = (state.is_saving(), state.identity(), state.directory());
        if whose != (true, Some(&self.identity), directory) {
            return Err(different(format!("{whose:?}")));
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

    /// What was saved; `None` if the leave has not come to it.
    pub(crate) fn drained(&self) -> Option<Drained> {
        self.is_done.then(|| Drained {
            memory_bytes: self.saved_bytes,
            lines_lost: self.lines_lost,
            paused: self.paused_since.map(|since| since.elapsed()).unwrap_or_default(),
        })
    }

    /// Saves the memory if the leave has come to it; returns whether it did.
    ///
    /// # Errors
    /// Those of the place; the node is still a member.
    pub(crate) fn save_if_wanted(&mut self, core: &Core) -> Result<bool, Error> {
        let engine = core.engine();
        if engine.is_closed_to_writers() {
            self.paused_since.get_or_insert_with(Instant::now);
        }
        if !engine.wants_saving() {
            return Ok(false);
        }
        drop(engine);
        let saved = self.finish(core);
        core.with_engine(|engine| engine.end_saving(saved.is_ok()));
        saved.map(|()| true)
    }
}

/// Opens the state again; a server may not have seen yet that the connection before is closed.
fn reopen_in_time(reopen: &Reopen) -> Result<MemoryState, Error> {
    let deadline = Instant::now() + REOPEN_TIMEOUT;
    loop {
        match reopen() {
            Err(error) if error.code == ErrorCode::StateInUse && Instant::now() < deadline => {
                pause(REOPEN_PAUSE);
            }
            opened => return opened,
        }
    }
}

/// Whose memory it is.
pub(crate) fn identity_of(core: &Core) -> Result<(StateIdentity, MemoryId), Error> {
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
