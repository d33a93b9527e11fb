//! The global memory as a program uses it: reads, writes and fences of a session.

mod access;
mod deadline;

use crate::hit::Lines;
use crate::lock_hit::LockCells;
use crate::node::{Drive, Shared};
use crate::operation::{Kind, SessionSlots};
use crate::wait::{Blocking, Core, Parker};
use crate::{Error, ErrorCode, GlobalAddress, SessionId};
use access::InFlight;
use farside_protocol::lock::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Waker;
use std::time::Duration;

pub(crate) use access::{Access, Buffer, What};
pub(crate) use deadline::Deadline;
pub use deadline::Timed;

/// Slots of a session for calls that wait; asynchronous writes have their own.
pub(crate) const CALL_SLOTS: usize = 8;

/// An asynchronous write in flight.
#[derive(Clone, Copy, Debug)]
struct PendingWrite {
    slot: usize,
    address: GlobalAddress,
    bytes: usize,
    continues: bool,
}

/// One program order: a thread's or task's own view of the memory. `Send`; used by one at a time.
///
/// *Consistency* is partial store order (004 §4): reads are synchronous; writes are asynchronous, are
/// seen by their own session at once and by others when their grant is held, and may become visible
/// in another order than issued. [`fence`](Self::fence), locks and atomics wait for all earlier writes
/// of the session. Accesses within one line are atomic; over several lines only the `_atomic` calls are.
///
/// Every blocking call has an `_async` twin for any executor. Dropping a twin's future before its end
/// abandons the call, and so does forgetting it, from the session's next call that waits on. What is
/// abandoned is undone where that can be: a lock that was asked for is withdrawn, and given back if it
/// is granted all the same; an allocation is freed; lines that were held for an atomic are let go.
/// Whether a write, an atomic of a word or a `free` takes effect is left open, each piece of a write by
/// itself. Memory and session stay usable.
///
/// **Deadlines.** A call that waits longer than the session's time-out
/// ([`set_timeout`](Self::set_timeout)), or than was said for the call
/// ([`with_timeout`](Self::with_timeout), [`with_deadline`](Self::with_deadline)), fails with
/// `TimedOut`, whose [`awaited`](Error::awaited) names the node that it waited for, and is abandoned
/// as if its future had been dropped. A call that need not wait never fails with it and reads no clock.
/// Writes that are in flight are no call's: they go on, and the next `fence` waits for them again.
pub struct Session {
    pub(crate) core: Arc<Core>,
    lines: Arc<Lines>,
    pub(crate) lock_cells: LockCells,
    pub(crate) slots: Arc<SessionSlots>,
    pub(crate) parker: Arc<Parker>,
    pub(crate) waker: Waker,
    pending: Vec<PendingWrite>,
    /// The first failure of an asynchronous write, reported by the next call that orders.
    write_failure: Option<Error>,
    /// What the call that is in progress, or was forgotten, has in the engine.
    pub(crate) in_flight: InFlight,
    /// Of the next call.
    pub(crate) deadline: Option<Deadline>,
    /// Of all calls that have no deadline of their own.
    timeout: Option<Duration>,
    /// A fence in progress has asked the engine whether this node is a member still.
    pub(crate) standing_asked: bool,
    hits: u64,
    misses: u64,
    /// The last field: the node may leave only after this session has closed.
    _node: Arc<Shared>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Session({}, {} writes pending)", self.slots.session.0, self.pending.len())
    }
}

/// A part of an access that lies in one line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) address: GlobalAddress,
    /// Where the piece starts in the access.
    pub(crate) at: usize,
    pub(crate) bytes: usize,
}

impl Piece {
    /// The whole of an access that lies in one line.
    #[inline]
    pub(crate) fn single(address: GlobalAddress, bytes: u64) -> Option<Self> {
        let bytes = usize::try_from(bytes).ok()?;
        one_line(address, bytes).then_some(Self { address, at: 0, bytes })
    }

    pub(crate) fn continues(&self) -> bool {
        self.at > 0
    }

    /// Its bytes within the line.
    #[inline]
    pub(crate) fn range(&self) -> Range {
        Range { start: self.address.offset_in_line() as u32, bytes: self.bytes as u32 }
    }
}

/// Cuts an access into lines.
pub(crate) fn pieces(
    address: GlobalAddress,
    bytes: usize,
) -> impl Iterator<Item = Result<Piece, Error>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at >= bytes {
            return None;
        }
        let Some(here) = address.checked_add(at as u64) else {
            at = bytes;
            return Some(Err(Error::at(ErrorCode::OutOfBounds, address)));
        };
        let room = here.line_size().bytes() - here.offset_in_line();
        let piece = Piece { address: here, at, bytes: room.min(bytes - at) };
        at += piece.bytes;
        Some(Ok(piece))
    })
}

#[inline]
fn one_line(address: GlobalAddress, bytes: usize) -> bool {
    bytes.wrapping_sub(1) < address.line_size().bytes() - address.offset_in_line()
}

impl Session {
    pub(crate) fn new(node: Arc<Shared>, slots: Arc<SessionSlots>) -> Self {
        let core = Arc::clone(&node.core);
        let parker = Parker::new();
        Self {
            lines: Arc::clone(&core.lines),
            lock_cells: core.lock_cells.clone(),
            waker: Waker::from(Arc::clone(&parker)),
            pending: Vec::with_capacity(core.limits.writes_in_flight_max as usize),
            timeout: core.timeout,
            core,
            slots,
            parker,
            write_failure: None,
            in_flight: InFlight::default(),
            deadline: None,
            standing_asked: false,
            hits: 0,
            misses: 0,
            _node: node,
        }
    }

    /// This session's number.
    pub fn id(&self) -> SessionId {
        self.slots.session
    }

    /// Whether memory that is gone left with its home or was lost in a crash, only the engine knows.
    #[cold]
    pub(crate) fn name_loss(&self, error: Error) -> Error {
        let Some(at) = error.address.filter(|_| error.code == ErrorCode::NodeLost) else {
            return error;
        };
        let engine = self.core.engine();
        let code = match engine.peers.has_left(at.memory()) {
            true => ErrorCode::NodeLeft,
            false if engine.leaving.is_some() && engine.peers.lends(at.memory()) => {
                ErrorCode::NodeClosed
            }
            false => error.code,
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
        self.hits += lines;
        self.slots.hits.store(self.hits, Ordering::Relaxed);
    }

    #[inline]
    fn missed(&mut self) {
        self.misses += 1;
        self.slots.misses.store(self.misses, Ordering::Relaxed);
    }

    /// Reads bytes.
    ///
    /// *Guarantees*: each line is read at one moment; lines in no particular order. Sees every write
    /// of this session, and every write that was fenced before this call began.
    /// *Blocks* on lines that this node does not have.
    /// *Cost*: a tag check and a copy per line that is local or cached; else one request to the home
    /// (one round trip; one and a half when another node owns the line), several lines overlapped.
    /// *Source*: 004 §2.3.
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
        self.access(What::Read, address, out.len(), Buffer::Out(out)).map(drop)
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
        self.access_async(What::Read, address, out.len(), Buffer::Out(out)).await.map(drop)
    }

    pub(crate) fn blocking(&self) -> Blocking {
        Blocking {
            core: Arc::clone(&self.core),
            parker: Arc::clone(&self.parker),
            waker: self.waker.clone(),
            slots: Arc::clone(&self.slots),
        }
    }

    /// Whether the newest own write in flight to the piece's line has all of its bytes, which are copied
    /// then.
    fn own_write(&self, piece: Piece, out: &mut [u8]) -> bool {
        let line = piece.address.line();
        let newest = self.pending.iter().rev().find(|write| write.address.line() == line);
        let Some(newest) = newest else {
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
    /// *Guarantees*: seen by this session at once; by others, line by line, when this node owns the
    /// line, and at the latest when a following [`fence`](Self::fence) returns. Writes to one line keep
    /// their order. *Blocks* only when the session's writes in flight are at their limit.
    /// *Cost*: a tag check, a locked instruction and a copy per owned line; else one request to the
    /// home, not waited for. *Source*: 004 §2.4, §4.
    ///
    /// *Lost lines*: a write that covers all bytes that the allocation has in a lost line heals it: reads of all nodes
    /// return the new bytes. Of several nodes that heal a line at a time the last one's bytes stay. Allocations are
    /// rounded up to 8 bytes, so a write that ends up to 7 bytes before the end of one heals its last line too: the
    /// rest reads as zero. A write that is out of bounds heals nothing in the lines where it is. While a removed
    /// member may still write the home's memory ([`Stats::quarantined_members`](crate::Stats::quarantined_members)
    /// there), a write that covers a lost line fails with `LineLost`.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, at once, and `LineLost` for a part of a lost line of this home. What is found out later
    /// (`Unallocated`, `OutOfBounds`, `NodeLost`, `LineLost`, ...) is reported once, by the next `fence`, lock,
    /// unlock or atomic of this session.
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
        self.access(What::Post, address, bytes.len(), Buffer::In(bytes)).map(drop)
    }

    /// The awaitable twin of [`write`](Self::write); waits only for room.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_async(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        self.access_async(What::Post, address, bytes.len(), Buffer::In(bytes)).await.map(drop)
    }

    /// Whether another write may be in flight.
    fn may_write_more(&self) -> bool {
        self.pending.len() < self.core.limits.writes_in_flight_max as usize
    }

    fn start_write(&mut self, piece: Piece, part: &[u8]) {
        self.start(Kind::Write, piece, part);
    }

    /// The failure of the write that was started last, if its line is lost and this is known already.
    fn lost_at_once(&mut self) -> Option<Error> {
        let write = *self.pending.last()?;
        let slot = &self.slots.slots[write.slot];
        if slot.outcome() != Some(Err(ErrorCode::LineLost)) {
            return None;
        }
        slot.recycle();
        self.pending.pop();
        Some(failure(ErrorCode::LineLost, write.address, write.continues))
    }

    fn start(&mut self, kind: Kind, piece: Piece, part: &[u8]) {
        let first = CALL_SLOTS;
        let free = (first..self.slots.slots.len()).find(|slot| self.slots.slots[*slot].is_free());
        let Some(slot) = free else {
            // As many slots as writes in flight: a free one exists whenever there is room.
            self.write_failure = Some(Error::new(ErrorCode::NodeFailed));
            return;
        };
        self.fill(slot, kind, piece, part);
        self.pending.push(PendingWrite {
            slot,
            address: piece.address,
            bytes: piece.bytes,
            continues: piece.continues(),
        });
        self.launch(slot);
    }

    pub(crate) fn fill(&self, slot: usize, kind: Kind, piece: Piece, part: &[u8]) {
        let request = &mut *self.slots.slots[slot].request();
        request.kind = kind;
        request.address = Some(piece.address);
        request.bytes = piece.bytes;
        request.continues = piece.continues();
        request.buffer.clear();
        request.buffer.extend_from_slice(part);
        request.result = 0;
        request.abandoned = false;
    }

    /// Hands a filled slot to the engine and rings the doorbell.
    pub(crate) fn launch(&self, slot: usize) {
        self.slots.slots[slot].submit();
        let operation = self.slots.operation(slot);
        self.core.with_engine(|engine| engine.issue(operation));
    }

    /// Forgets writes that have ended.
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

    /// Keeps a failure that nobody was there to hear for the next call that orders.
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

    /// Waits until every earlier write of this session is visible to all.
    ///
    /// *Guarantees*: whoever sees a write that this session issues later also sees the earlier ones
    /// (004 §4.1). *Blocks* until their grants are held. *Cost*: nothing when no write is in flight.
    ///
    /// # Errors
    /// The first failure of an asynchronous write since the last call that reported one.
    #[inline]
    pub fn fence(&mut self) -> Result<(), Error> {
        if self.is_settled() {
            std::sync::atomic::fence(Ordering::SeqCst);
            if self.lines.is_trusted() {
                return Ok(());
            }
        }
        self.fence_blocking()
    }

    #[cold]
    fn fence_blocking(&mut self) -> Result<(), Error> {
        self.enter().wait_for_writes()
    }

    /// Whether it is uncertain that this node is a member still, and so what it has acknowledged is worth
    /// nothing; then the engine is asked, as by one more write in flight, which ends when that is known.
    pub(crate) fn asks_for_standing(&mut self) -> bool {
        let was_asked = std::mem::take(&mut self.standing_asked);
        if was_asked || self.write_failure.is_some() || self.lines.is_trusted() {
            return false;
        }
        self.standing_asked = true;
        match GlobalAddress::new(self.lines.me(), farside_base::LineSize::MIN, 0) {
            Ok(address) => self.start(Kind::Confirm, Piece { address, at: 0, bytes: 0 }, &[]),
            Err(_) => self.write_failure = Some(Error::new(ErrorCode::NodeFailed)),
        }
        true
    }

    /// All earlier writes have ended.
    fn fenced(&mut self) -> Result<(), Error> {
        std::sync::atomic::fence(Ordering::SeqCst);
        match self.write_failure.take() {
            Some(failure) => Err(failure),
            None => Ok(()),
        }
    }

    /// The awaitable twin of [`fence`](Self::fence).
    ///
    /// # Errors
    /// As `fence`.
    pub async fn fence_async(&mut self) -> Result<(), Error> {
        self.enter().writes_ended().await
    }

    /// Whether nothing of this session is under way, so that a hit may go ahead without a fence.
    #[inline]
    pub(crate) fn is_settled(&self) -> bool {
        self.pending.is_empty() && self.write_failure.is_none()
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

    /// Reads several places; as so many [`read`](Self::read)s, in order.
    ///
    /// # Errors
    /// As `read`; earlier parts have been read then.
    pub fn read_vectored(&mut self, parts: &mut [(GlobalAddress, &mut [u8])]) -> Result<(), Error> {
        let mut deadline = self.next_deadline();
        for (address, out) in parts {
            self.deadline = Some(deadline);
            self.read(*address, out)?;
            deadline = self.last_deadline();
        }
        Ok(())
    }

    /// Writes several places; as so many [`write`](Self::write)s, in order.
    ///
    /// # Errors
    /// As `write`; earlier parts are under way then.
    pub fn write_vectored(&mut self, parts: &[(GlobalAddress, &[u8])]) -> Result<(), Error> {
        let mut deadline = self.next_deadline();
        for (address, bytes) in parts {
            self.deadline = Some(deadline);
            self.write(*address, bytes)?;
            deadline = self.last_deadline();
        }
        Ok(())
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

    /// The awaitable twin of [`read_vectored`](Self::read_vectored).
    ///
    /// # Errors
    /// As `read_vectored`.
    pub async fn read_vectored_async(
        &mut self,
        parts: &mut [(GlobalAddress, &mut [u8])],
    ) -> Result<(), Error> {
        let mut deadline = self.next_deadline();
        for (address, out) in parts {
            self.deadline = Some(deadline);
            self.read_async(*address, out).await?;
            deadline = self.last_deadline();
        }
        Ok(())
    }

    /// The awaitable twin of [`write_vectored`](Self::write_vectored).
    ///
    /// # Errors
    /// As `write_vectored`.
    pub async fn write_vectored_async(
        &mut self,
        parts: &[(GlobalAddress, &[u8])],
    ) -> Result<(), Error> {
        let mut deadline = self.next_deadline();
        for (address, bytes) in parts {
            self.deadline = Some(deadline);
            self.write_async(*address, bytes).await?;
            deadline = self.last_deadline();
        }
        Ok(())
    }
}

/// What a failed piece means for the access: one that ran from an allocation into no man's land has
/// passed the allocation's end.
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
        // What was written is written even if nobody fenced; a failure has nobody left to hear it.
        let _ = self.enter_until(Deadline::Never).wait_for_writes();
        self.core.close_session(&self.slots);
    }
}
