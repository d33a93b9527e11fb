//! Sessions: global memory as a program uses it, by reads, writes and fences.

mod access;
mod ahead;
mod deadline;

use crate::direct::DirectReader;
use crate::hit::Lines;
use crate::lock_hit::{LockCells, add};
use crate::node::NodeShared;
use crate::operation::{OperationKind, SessionSlots};
use crate::wait::Drive;
use crate::wait::{Blocking, Core, Parker};
use crate::{Error, ErrorCode, GlobalAddress, Limits, NodeId, SessionId};
use access::InFlight;
use farside_base::LineAddress;
use farside_protocol::lock::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

pub(crate) use access::{Access, AccessKind, Ahead, Buffer};
pub(crate) use deadline::Deadline;
pub use deadline::Timed;

/// Slots of a session for calls that wait; asynchronous writes and lines requested ahead have separate ones.
pub(crate) const CALL_SLOTS: usize = 8;

/// Slots of a session for prefetches: the limit of a node's requests in flight to one home, and at most the bits of a
/// word.
pub(crate) fn prefetch_slots(limits: &Limits) -> usize {
    limits.credits_per_class.min(u64::BITS) as usize
}

/// An asynchronous write in flight.
#[derive(Clone, Copy, Debug)]
struct PendingWrite {
    slot: usize,
    address: GlobalAddress,
    bytes: usize,
    continues: bool,
}

/// A program order: the view that one thread or task has of the memory. `Send`; used by one at a time.
///
/// *Consistency* is partial store order (004 §4): reads are synchronous; writes are asynchronous, are
/// seen by their own session at once and by others when their grant is held, and may become visible
/// in another order than issued. [`fence`](Self::fence), locks and atomics wait for all earlier writes
/// of the session. Accesses within one line are atomic; over several lines only the `_atomic` calls are.
/// Accesses, fences, atomics, locks, allocations and frees have `_async` twins for any executor. Dropping
/// a twin's future before its end abandons the call; forgetting the future abandons it at the session's
/// next call that waits. An abandoned call is undone if possible: a lock request is withdrawn, and unlocked
/// if it is granted nevertheless; an allocation is freed; lines held for an atomic are unpinned. It is
/// unspecified whether a write, an atomic of a word or a `free` takes effect, each piece of a write by
/// itself. Memory and session stay usable.
///
/// **Deadlines.** A call fails with `TimedOut` if it waits longer than the session's timeout
/// ([`set_timeout`](Self::set_timeout)), or than the call's ([`with_timeout`](Self::with_timeout),
/// [`with_deadline`](Self::with_deadline)). [`awaited`](Error::awaited) names the node that it waited for.
/// The call is abandoned as if its future had been dropped. A call that need not wait never times out and
/// reads no clock. Writes in flight belong to no call: they continue, and the next `fence` waits for them
/// again.
pub struct Session {
    pub(crate) core: Arc<Core>,
    lines: Arc<Lines>,
    pub(crate) lock_cells: LockCells,
    pub(crate) slots: Arc<SessionSlots>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) waker: Waker,
    pub(crate) direct: DirectReader,
    pending: Vec<PendingWrite>,
    /// The first failure of an asynchronous write, reported by the next call that orders.
    write_failure: Option<Error>,
    /// The losses of homes with state that this session has reported, as [`Lines::losses`] counts them.
    losses: u64,
    /// Resources in the engine of the call that is in progress, or that was forgotten.
    pub(crate) in_flight: InFlight,
    /// The deadline of the next call.
    pub(crate) deadline: Option<Deadline>,
    /// The timeout of calls without a deadline.
    timeout: Option<Duration>,
    /// The directory of named roots that was used last, and its home.
    pub(crate) directory: Option<(NodeId, GlobalAddress)>,
    /// The node that was asked last for it.
    pub(crate) directory_asked: Option<NodeId>,
    /// The last field: the node may leave only after this session has closed.
    _node: Arc<NodeShared>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}, {} writes pending)", self.slots.session.0, self.pending.len())
    }
}

/// The part of an access in one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LinePiece {
    pub(crate) address: GlobalAddress,
    /// Offset of the piece in the access.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}

impl LinePiece {
    /// The address of an operation without bytes.
    pub(crate) fn empty(address: GlobalAddress) -> Self {
        Self { address, at: 0, bytes: 0 }
    }

    /// An access that fits in one line, as a whole.
    #[inline]
    pub(crate) fn single(address: GlobalAddress, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        one_line(address, bytes).then_some(Self { address, at: 0, bytes })
    }

    pub(crate) fn continues(&self) -> bool {
        self.at > 0
    }

    /// Its byte range within the line.
    #[inline]
    pub(crate) fn range(&self) -> Range {
        Range { start: self.address.offset_in_line() as u32, bytes: self.bytes as u32 }
    }
}

/// Cuts an access into lines.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pieces {
    address: GlobalAddress,
    bytes: usize,
    /// Bytes of the pieces so far.
    at: usize,
}

/// The pieces of a range of bytes, one a line.
pub(crate) const fn pieces(address: GlobalAddress, bytes: usize) -> Pieces {
    Pieces { address, bytes, at: 0 }
}

impl Iterator for Pieces {
    type Item = Result<LinePiece, Error>;

    fn next(&mut self) -> Option<Self::Item> {
        let left = self.bytes - self.at;
        if left == 0 {
            return None;
        }
        let Some(address) = self.address.checked_add(self.at as u64) else {
            self.at = self.bytes;
            return Some(Err(Error::at(ErrorCode::OutOfBounds, self.address)));
        };
        let room = address.line_size().bytes() - address.offset_in_line();
        let piece = LinePiece { address, at: self.at, bytes: room.min(left) };
        self.at += piece.bytes;
        Some(Ok(piece))
    }
}

#[inline]
fn one_line(address: GlobalAddress, bytes: usize) -> bool {
    bytes.wrapping_sub(1) < address.line_size().bytes() - address.offset_in_line()
}

impl Session {
    pub(crate) fn new(node: Arc<NodeShared>, slots: Arc<SessionSlots>) -> Self {
        let core = Arc::clone(&node.core);
        let parker = Parker::new();
        let losses = core.lines.losses();
        Self {
            lines: Arc::clone(&core.lines),
            lock_cells: core.lock_cells.clone(),
            waker: Waker::from(Arc::clone(&parker)),
            pending: Vec::with_capacity(core.limits.writes_in_flight_max as usize),
            timeout: core.timeout,
            direct: DirectReader::new(&core.direct_homes),
            core,
            slots,
            parker,
            write_failure: None,
            losses,
            in_flight: InFlight::default(),
            deadline: None,
            directory: None,
            directory_asked: None,
            _node: node,
        }
    }

    /// Whether this session reads lines of other homes directly, in their memory, where the processor
    /// reaches that by loads ([`Config::direct_reads`](crate::Config::direct_reads)): the default.
    ///
    /// A direct read sends no message and needs no thread of the home, and leaves no copy in this node's
    /// cache: each read loads what its home has written since. Switch it off for lines that are read again
    /// and again, and written rarely, while their home's processor is far (another socket).
    ///
    /// ```
    /// # use farside::{Config, Node};
    /// # fn main() -> Result<(), farside::Error> {
    /// # let config = Config::new(format!("direct-reads-{}", std::process::id()));
    /// # let config = config.memory_bytes(1 << 20).cache_bytes(1 << 20);
    /// let (home, reader) = (Node::create(&config)?, Node::join(&config)?);
    /// let word = home.session()?.alloc(8)?;
    /// let mut session = reader.session()?;
    /// session.read_u64(word)?;
    /// assert_eq!(reader.stats().direct_reads, 1);
    /// session.set_direct_reads(false);
    /// session.read_u64(word)?; // fetches a copy
    /// session.read_u64(word)?; // reads the copy
    /// assert_eq!((reader.stats().misses, reader.stats().hits), (1, 1));
    /// # Ok(())
    /// # }
    /// ```
    pub const fn set_direct_reads(&mut self, are_on: bool) {
        self.direct.set_off(!are_on);
    }

    /// This session's number.
    pub fn id(&self) -> SessionId {
        self.slots.session
    }

    /// Finds out from the engine whether the home of memory that is gone has left, died or will return.
    #[cold]
    pub(crate) fn name_loss(&self, error: Error) -> Error {
        let Some(at) = error.address.filter(|_| error.code == ErrorCode::NodeLost) else {
            return error;
        };
        let engine = self.core.engine();
        let code = match engine.is_leaving() && engine.lends(at.memory()) {
            true => ErrorCode::NodeClosed,
            false => engine.loss_of(at.memory()),
        };
        Error { code, ..error }
    }

    pub(crate) fn lines(&self) -> &Arc<Lines> {
        &self.lines
    }

    #[inline]
    pub(crate) fn hit(&mut self) {
        self.hits(1);
    }

    #[inline]
    fn hits(&mut self, lines: u64) {
        add(&self.slots.hits, lines);
    }

    /// Reads within a line of another home, if its memory has the latest bytes. The caller has checked that
    /// no write of this session is in flight to the line.
    #[inline]
    fn read_direct(&mut self, address: GlobalAddress, out: &mut [u8], continues: bool) -> bool {
        let done = self.direct.read(&self.lines, address, out, continues);
        if done {
            add(&self.slots.direct_reads, 1);
        }
        done
    }

    #[inline]
    fn missed(&mut self) {
        add(&self.slots.misses, 1);
    }

    /// Reads bytes.
    ///
    /// *Guarantees*: each line is read atomically; lines in no particular order. Sees every write of this
    /// session, and every write that was fenced before this call began. *Blocks* on lines that are neither
    /// cached nor read directly. *Cost*: a tag check and a copy per line that is local or cached, and the
    /// same in the home's memory per line that is [read directly](Self::set_direct_reads); otherwise one
    /// request to the home (one round trip; one and a half if another node owns the line), many lines in
    /// parallel as by [`prefetch_read`](Self::prefetch_read). *Source*: 004 §2.3; direct reads are Farside's own.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `Unallocated`, `OutOfBounds`, `ForeignAddress`, `NodeLost`, `LineLost`,
    /// `CacheFull`; each entry of the table says what to do.
    #[inline]
    pub fn read(&mut self, address: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        match self.read_hit(address, out) {
            true => Ok(()),
            false => self.read_blocking(address, out),
        }
    }

    #[cold]
    #[inline(never)]
    fn read_blocking(&mut self, address: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        self.access(AccessKind::Read, address, out.len(), Buffer::Out(out)).map(drop)
    }

    /// The awaitable twin of [`read`](Self::read).
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_async(
        &mut self,
        address: GlobalAddress,
        out: &mut [u8],
    ) -> Result<(), Error> {
        self.access_async(AccessKind::Read, address, out.len(), Buffer::Out(out)).await.map(drop)
    }

    pub(crate) fn blocking(&self) -> Blocking {
        Blocking {
            core: Arc::clone(&self.core),
            parker: Arc::clone(&self.parker),
            waker: self.waker.clone(),
            slots: Arc::clone(&self.slots),
        }
    }

    /// The newest write in flight to a line; queries to a node, which are pending too, have no bytes.
    fn newest_write(&self, line: LineAddress) -> Option<&PendingWrite> {
        self.pending.iter().rev().find(|write| write.bytes > 0 && write.address.line() == line)
    }

    /// Whether the newest write in flight to the piece's line covers all of its bytes; copies them if so.
    fn own_write(&self, piece: LinePiece, out: &mut [u8]) -> bool {
        let Some(newest) = self.newest_write(piece.address.line()) else {
            return false;
        };
        let skip = piece.address.offset().checked_sub(newest.address.offset());
        match skip.map(|skip| skip as usize) {
            Some(skip) if skip + piece.bytes <= newest.bytes => {
                let request = self.slots.slots[newest.slot].request();
                out.copy_from_slice(&request.buffer[skip..skip + piece.bytes]);
                true
            }
            _ => false,
        }
    }

    /// Writes bytes.
    ///
    /// *Guarantees*: seen by this session at once; by others, line by line, when this node owns the line,
    /// and at the latest when a following [`fence`](Self::fence) returns. Writes to one line keep their
    /// order. *Blocks* only while the session's writes in flight are at their limit. *Cost*: a tag check, a
    /// locked instruction and a copy per owned line; otherwise one asynchronous request to the home.
    /// *Source*: 004 §2.4, §4.
    ///
    /// *Lost lines*: a write that covers all bytes of the allocation in a lost line heals the line: reads
    /// of all nodes return the new bytes. If several nodes heal a line at a time, the bytes of the last one
    /// stay. Allocations are rounded up to 8 bytes, so a write that ends up to 7 bytes before the end of
    /// one heals its last line too: the rest reads as zero. A write that is out of bounds heals no line
    /// that it covers. While a removed member may still write the home's memory
    /// ([`Stats::quarantined_members`](crate::Stats::quarantined_members) there), a write that covers a
    /// lost line fails with `LineLost`.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, at once, and `LineLost` for a part of a lost line of this home. Errors found
    /// later (`Unallocated`, `OutOfBounds`, `NodeLost`, `LineLost`, ...) are reported once, by the next
    /// `fence`, lock, unlock or atomic of this session.
    #[inline]
    pub fn write(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        match self.write_hit(address, bytes) {
            true => Ok(()),
            false => self.write_slow(address, bytes),
        }
    }

    #[cold]
    #[inline(never)]
    fn write_slow(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        self.access(AccessKind::Post, address, bytes.len(), Buffer::In(bytes)).map(drop)
    }

    /// The awaitable twin of [`write`](Self::write); waits only for a free slot.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_async(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        self.access_async(AccessKind::Post, address, bytes.len(), Buffer::In(bytes)).await.map(drop)
    }

    /// Whether another write may be in flight.
    fn may_write_more(&self) -> bool {
        self.pending.len() < self.core.limits.writes_in_flight_max as usize
    }

    /// The failure of the last write, if its line is a lost one of this home.
    fn lost_at_once(&mut self) -> Option<Error> {
        let write = *self.pending.last()?;
        if Some(write.address.line().memory()) != self.lines.memory() {
            // An answer that is here already is reported as any other: later.
            return None;
        }
        let slot = &self.slots.slots[write.slot];
        if slot.outcome() != Some(Err(ErrorCode::LineLost)) {
            return None;
        }
        slot.recycle();
        self.pending.pop();
        Some(failure(ErrorCode::LineLost, write.address, write.continues))
    }

    fn start(&mut self, kind: OperationKind, piece: LinePiece, part: &[u8]) {
        let slots = CALL_SLOTS..self.first_prefetch_slot();
        let free = slots.into_iter().find(|slot| self.slots.slots[*slot].is_free());
        let Some(slot) = free else {
            // There are as many slots as writes may be in flight, so one is free.
            self.write_failure = Some(Error::new(ErrorCode::NodeFailed));
            return;
        };
        self.fill(slot, kind, piece, part);
        let earlier =
            self.newest_write(piece.address.line()).filter(|_| kind == OperationKind::Write);
        self.slots.slots[slot].request().after =
            earlier.map(|write| self.slots.operation(write.slot));
        self.pending.push(PendingWrite {
            slot,
            address: piece.address,
            bytes: piece.bytes,
            continues: piece.continues(),
        });
        self.launch(slot);
    }

    pub(crate) fn fill(&self, slot: usize, kind: OperationKind, piece: LinePiece, part: &[u8]) {
        let request = &mut *self.slots.slots[slot].request();
        request.kind = kind;
        request.address = Some(piece.address);
        request.bytes = piece.bytes;
        request.continues = piece.continues();
        request.buffer.clear();
        request.buffer.extend_from_slice(part);
        request.result = 0;
        request.abandoned = false;
        request.away_until_ns = None;
        (request.after, request.next) = (None, None);
    }

    /// Passes a filled slot to the engine, which posts its work requests.
    pub(crate) fn launch(&self, slot: usize) {
        self.slots.slots[slot].submit();
        let operation = self.slots.operation(slot);
        self.core.with_engine(|engine| engine.issue(operation));
    }

    /// Removes writes that have ended.
    fn reap(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let mut index = 0;
        while index < self.pending.len() {
            let write = self.pending[index];
            match self.slots.slots[write.slot].outcome() {
                None => index += 1,
                Some(outcome) => {
                    self.ended(write, outcome);
                    self.pending.remove(index);
                }
            }
        }
    }

    /// Keeps the failure of an asynchronous write for the next call that orders.
    pub(crate) fn remember(&mut self, failure: Error) {
        self.write_failure.get_or_insert(failure);
    }

    fn ended(&mut self, write: PendingWrite, outcome: Result<(), ErrorCode>) {
        self.slots.slots[write.slot].recycle();
        if let Err(code) = outcome
            && self.write_failure.is_none()
        {
            self.write_failure = Some(failure(code, write.address, write.continues));
        }
    }

    /// Waits until every earlier write of this session is visible to all, and durable where its home has state.
    ///
    /// *Guarantees*: an observer of a later write of this session also sees the earlier ones (004 §4.1). Writes to memory
    /// of a node with state ([`Config::state`](crate::Config::state)) survive what that state survives. *Blocks* until
    /// their grants are held, and their records durable. *Cost*: nothing if no write is in flight and this node owns no
    /// memory of nodes with state; one round trip and a group commit of the home for the lines of theirs that it owns.
    ///
    /// # Errors
    /// The first failure of an asynchronous write since the last call that reported one. `WritesLost`: a node with state
    /// ended before it had logged what this node wrote; each session reports it once.
    #[inline]
    pub fn fence(&mut self) -> Result<(), Error> {
        if self.is_settled() {
            std::sync::atomic::fence(Ordering::SeqCst);
            if self.is_durable() && self.lines.is_trusted() {
                return Ok(());
            }
        }
        self.fence_blocking()
    }

    #[cold]
    fn fence_blocking(&mut self) -> Result<(), Error> {
        self.enter().block_on(Access::FENCE, Buffer::NONE).map(drop)
    }

    /// The awaitable twin of [`fence`](Self::fence).
    ///
    /// # Errors
    /// As `fence`.
    pub async fn fence_async(&mut self) -> Result<(), Error> {
        self.enter().writes_ended().await
    }

    /// Whether this session has nothing in flight, so that a hit needs no fence.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.write_failure.is_none()
    }

    /// Whether all that this node wrote to memory of nodes with state is durable, and no loss is to be reported.
    #[inline(always)]
    pub(crate) fn is_durable(&self) -> bool {
        self.lines.unlogged() == self.losses
    }

    /// Returns how many times a node with state has ended before it had logged what this node wrote.
    ///
    /// *Guarantees*: what was written at a certain count is durable after a [`fence`](Self::fence) without an error, if the
    /// count is the same after it. So a program need not remember which fence has reported what. *Cost*: one load; does not
    /// block, and reports nothing.
    pub fn write_losses(&self) -> u32 {
        (self.lines.losses() >> 32) as u32
    }

    /// Whether a home with state has ended that had not logged what this node wrote, and this session has not reported it.
    /// From here on it counts as reported.
    fn takes_loss(&mut self) -> bool {
        let losses = self.lines.losses();
        std::mem::replace(&mut self.losses, losses) != losses
    }

    /// Reports such a loss, once.
    ///
    /// # Errors
    /// `WritesLost`.
    pub(crate) fn report_loss(&mut self) -> Result<(), Error> {
        if self.takes_loss() { Err(Error::new(ErrorCode::WritesLost)) } else { Ok(()) }
    }

    /// Forgets losses of before: the session serves another caller.
    pub(crate) fn forget_losses(&mut self) {
        self.takes_loss();
    }

    pub(crate) fn check_size(&self, address: GlobalAddress, bytes: usize) -> Result<(), Error> {
        if bytes == 0 {
            return Err(Error::at(ErrorCode::ZeroSize, address));
        }
        if bytes as u64 > self.core.limits.access_bytes_max {
            return Err(Error::at(ErrorCode::TooLarge, address));
        }
        Ok(())
    }

    /// Reads an integer of 8 bytes, little-endian; as [`read`](Self::read).
    ///
    /// # Errors
    /// As `read`.
    #[inline]
    pub fn read_u64(&mut self, address: GlobalAddress) -> Result<u64, Error> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }

    /// Writes an integer of 8 bytes, little-endian; as [`write`](Self::write).
    ///
    /// # Errors
    /// As `write`.
    #[inline]
    pub fn write_u64(&mut self, address: GlobalAddress, value: u64) -> Result<(), Error> {
        self.write(address, &value.to_le_bytes())
    }

    /// The awaitable twin of [`read_u64`](Self::read_u64).
    ///
    /// # Errors
    /// As `read`.
    pub async fn read_u64_async(&mut self, address: GlobalAddress) -> Result<u64, Error> {
        let mut word = [0; 8];
        self.read_async(address, &mut word).await?;
        Ok(u64::from_le_bytes(word))
    }

    /// The awaitable twin of [`write_u64`](Self::write_u64).
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_u64_async(
        &mut self,
        address: GlobalAddress,
        value: u64,
    ) -> Result<(), Error> {
        self.write_async(address, &value.to_le_bytes()).await
    }
}

/// The error of the access for a failed piece: if a piece that continues from an earlier line hits
/// unallocated memory, the access has passed the end of its allocation.
pub(crate) fn failure(code: ErrorCode, address: GlobalAddress, continues: bool) -> Error {
    match code {
        ErrorCode::Unallocated if continues => Error::at(ErrorCode::OutOfBounds, address),
        code => Error::at(code, address),
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.clean_up();
        if self.core.drive == Drive::Caller {
            return self.core.close_session(&self.slots);
        }
        // Unfenced writes still complete; no caller is left to get their failures.
        let _ = self.enter_until(Deadline::Never).block_on(Access::FENCE, Buffer::NONE);
        self.core.close_session(&self.slots);
    }
}
