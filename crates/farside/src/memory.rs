//! The global memory as a program uses it: reads, writes and fences of a session.

mod access;

use crate::canary;
use crate::hit::Lines;
use crate::lock_hit::LockCells;
use crate::node::{Drive, Shared};
use crate::operation::{Kind, SessionSlots, Slot};
use crate::wait::{Core, Parker};
use crate::{Error, ErrorCode, GlobalAddress, SessionId};
use farside_protocol::lock::Range;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};

pub(crate) use access::{Access, What};

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
/// leaves open whether it took effect; memory and session stay usable.
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
    /// A fence in progress has asked the engine whether this node is a member still.
    standing_asked: bool,
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
            core,
            slots,
            parker,
            write_failure: None,
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
        if self.pending.is_empty()
            && let Some(piece) = Piece::single(address, out.len() as u64)
            && let Some(done) =
                self.call_blocking(Kind::Read, piece, |bytes| out.copy_from_slice(bytes))
        {
            self.missed();
            return done.map(drop);
        }
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.read_async(address, out))
    }

    pub(crate) fn waiting(&self) -> (Arc<Core>, Arc<Parker>, Waker) {
        (Arc::clone(&self.core), Arc::clone(&self.parker), self.waker.clone())
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
        self.check_size(address, out.len())?;
        self.reap();
        let mut calls = Calls::new(self);
        for piece in pieces(address, out.len()) {
            let piece = piece?;
            let part = piece.at..piece.at + piece.bytes;
            if !calls.session.pending.is_empty()
                && calls.session.settle_overlap(piece, &mut out[part.clone()]).await
            {
                continue;
            }
            if calls.session.lines.read(piece.address, &mut out[part.clone()], piece.continues()) {
                calls.session.hit();
                continue;
            }
            calls.session.missed();
            if calls.is_full() {
                calls
                    .take_oldest(|at, bytes| out[at..at + bytes.len()].copy_from_slice(bytes))
                    .await?;
            }
            calls.start(Kind::Read, piece, &[]);
        }
        while !calls.is_empty() {
            calls.take_oldest(|at, bytes| out[at..at + bytes.len()].copy_from_slice(bytes)).await?;
        }
        Ok(())
    }

    /// Deals with own writes in flight to the piece's line. True when the bytes came from them.
    async fn settle_overlap(&mut self, piece: Piece, out: &mut [u8]) -> bool {
        if self.own_write(piece, out) {
            return true;
        }
        while self.is_behind(piece.address) {
            self.reap_one().await;
        }
        false
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
    /// # Errors
    /// `ZeroSize`, `TooLarge`, at once. What is found out later (`Unallocated`, `OutOfBounds`,
    /// `NodeLost`, ...) is reported by the next `fence`, lock, unlock or atomic of this session.
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
        self.reap();
        if let Some(piece) = Piece::single(address, bytes.len() as u64)
            && self.may_write_more()
            && !self.is_behind(address)
        {
            if self.lines.write(address, bytes, false) {
                self.hit();
            } else {
                self.missed();
                self.start_write(piece, bytes);
            }
            return Ok(());
        }
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.write_async(address, bytes))
    }

    /// The awaitable twin of [`write`](Self::write); waits only for room.
    ///
    /// # Errors
    /// As `write`.
    pub async fn write_async(&mut self, address: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        self.check_size(address, bytes.len())?;
        self.reap();
        for piece in pieces(address, bytes.len()) {
            let piece = piece?;
            let part = &bytes[piece.at..piece.at + piece.bytes];
            if !self.is_behind(piece.address)
                && self.lines.write(piece.address, part, piece.continues())
            {
                self.hit();
                continue;
            }
            self.missed();
            while !self.may_write_more() {
                self.reap_one().await;
            }
            self.start_write(piece, part);
        }
        Ok(())
    }

    /// Whether a write to this address must wait its turn behind another in flight.
    fn is_behind(&self, address: GlobalAddress) -> bool {
        self.pending.iter().any(|write| write.address.line() == address.line())
    }

    /// Whether another write may be in flight.
    fn may_write_more(&self) -> bool {
        self.pending.len() < self.core.limits.writes_in_flight_max as usize
    }

    fn start_write(&mut self, piece: Piece, part: &[u8]) {
        self.start(Kind::Write, piece, part);
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

    /// Waits until the oldest write has ended.
    async fn reap_one(&mut self) {
        let Some(write) = self.pending.first().copied() else {
            return;
        };
        let slots = Arc::clone(&self.slots);
        poll_fn(|context| self.poll_slot(&slots.slots[write.slot], context)).await;
        self.reap();
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
        self.standing_asked = false; // an earlier fence may have been abandoned
        loop {
            while let Some(write) = self.pending.first() {
                self.core.wait_for(&self.slots.slots[write.slot], &self.parker, &self.waker);
                self.reap();
            }
            if !self.asks_for_standing() {
                return self.fenced();
            }
        }
    }

    /// Whether it is uncertain that this node is a member still, and so what it has acknowledged is worth
    /// nothing; then the engine is asked, as by one more write in flight, which ends when that is known.
    fn asks_for_standing(&mut self) -> bool {
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
        self.standing_asked = false; // an earlier fence may have been abandoned
        loop {
            while !self.pending.is_empty() && !canary::is(canary::Mutant::FenceReturnsAtOnce) {
                self.reap_one().await;
            }
            if !self.asks_for_standing() {
                return self.fenced();
            }
        }
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
        parts.iter_mut().try_for_each(|(address, out)| self.read(*address, out))
    }

    /// Writes several places; as so many [`write`](Self::write)s, in order.
    ///
    /// # Errors
    /// As `write`; earlier parts are under way then.
    pub fn write_vectored(&mut self, parts: &[(GlobalAddress, &[u8])]) -> Result<(), Error> {
        parts.iter().try_for_each(|(address, bytes)| self.write(*address, bytes))
    }

    /// A slot for a call that waits; calls that were abandoned may still occupy some.
    pub(crate) fn free_call_slot(&self) -> Option<usize> {
        let slots = &self.slots.slots;
        (0..CALL_SLOTS).find(|slot| {
            if slots[*slot].is_abandoned() && slots[*slot].outcome().is_some() {
                slots[*slot].recycle();
            }
            slots[*slot].is_free()
        })
    }

    /// Runs one call on a piece and waits for it, driving meanwhile; `take` gets the bytes. `None`
    /// when calls that were abandoned still have all slots.
    pub(crate) fn call_blocking(
        &mut self,
        kind: Kind,
        piece: Piece,
        take: impl FnOnce(&[u8]),
    ) -> Option<Result<u64, Error>> {
        let slot = self.free_call_slot()?;
        self.fill(slot, kind, piece, &[]);
        self.launch(slot);
        self.core.wait_for(&self.slots.slots[slot], &self.parker, &self.waker);
        Some(self.take_result(slot, piece, take))
    }

    /// Takes what an operation that has ended left in its slot, which is free then.
    fn take_result(
        &self,
        slot: usize,
        piece: Piece,
        take: impl FnOnce(&[u8]),
    ) -> Result<u64, Error> {
        let slot = &self.slots.slots[slot];
        let outcome = slot.outcome();
        let result = {
            let request = slot.request();
            if outcome == Some(Ok(())) {
                take(&request.buffer);
            }
            request.result
        };
        slot.recycle();
        match outcome {
            Some(Ok(())) => Ok(result),
            Some(Err(code)) => Err(failure(code, piece.address, piece.continues())),
            None => Err(Error::new(ErrorCode::NodeFailed)),
        }
    }

    /// Ready when the slot's operation has ended.
    fn poll_slot(&self, slot: &Slot, context: &mut Context<'_>) -> Poll<()> {
        if slot.watch(context.waker()) {
            return Poll::Ready(());
        }
        if !context.waker().will_wake(&self.waker) {
            self.core.awaits(); // whoever polls this is not `Core::block_on`, which drives
        }
        Poll::Pending
    }

    /// Waits for a call that is under way in a slot.
    pub(crate) async fn await_call(&mut self, slot: usize, piece: Piece) -> Result<u64, Error> {
        let mut calls = Calls::new(self);
        calls.adopt(slot, piece);
        calls.take_oldest(|_, _| {}).await
    }

    /// Runs one call of `kind` on a piece and hands its request over; for atomics, locks and so on.
    pub(crate) async fn call(
        &mut self,
        kind: Kind,
        piece: Piece,
        part: &[u8],
    ) -> Result<u64, Error> {
        let mut calls = Calls::new(self);
        calls.start(kind, piece, part);
        calls.take_oldest(|_, _| {}).await
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

/// Calls of one session in flight, oldest first. Dropping it abandons what is still in flight.
pub(crate) struct Calls<'a> {
    pub(crate) session: &'a mut Session,
    flying: [Option<(usize, Piece)>; CALL_SLOTS],
}

impl<'a> Calls<'a> {
    pub(crate) fn new(session: &'a mut Session) -> Self {
        Self { session, flying: [None; CALL_SLOTS] }
    }

    fn is_empty(&self) -> bool {
        self.flying[0].is_none()
    }

    /// Whether another call would find no slot; abandoned calls may still occupy some.
    fn is_full(&self) -> bool {
        self.flying[CALL_SLOTS - 1].is_some() || self.session.free_call_slot().is_none()
    }

    fn start(&mut self, kind: Kind, piece: Piece, part: &[u8]) {
        let Some(slot) = self.session.free_call_slot() else {
            return;
        };
        self.session.fill(slot, kind, piece, part);
        self.adopt(slot, piece);
        self.session.launch(slot);
    }

    /// Takes a slot whose operation is under way.
    fn adopt(&mut self, slot: usize, piece: Piece) {
        if let Some(place) = self.flying.iter_mut().find(|place| place.is_none()) {
            *place = Some((slot, piece));
        }
    }

    /// Waits for the oldest call and takes its bytes and result.
    async fn take_oldest(&mut self, take: impl FnOnce(usize, &[u8])) -> Result<u64, Error> {
        let Some((slot, piece)) = self.flying[0] else {
            return Err(Error::new(ErrorCode::Busy));
        };
        let slots = Arc::clone(&self.session.slots);
        let session = &*self.session;
        poll_fn(|context| session.poll_slot(&slots.slots[slot], context)).await;
        self.flying.rotate_left(1);
        self.flying[CALL_SLOTS - 1] = None;
        self.session.take_result(slot, piece, |bytes| take(piece.at, bytes))
    }
}

impl Drop for Calls<'_> {
    fn drop(&mut self) {
        for (slot, _) in self.flying.iter().flatten() {
            let ended = self.session.slots.slots[*slot].abandon();
            self.session.core.abandoned(&self.session.slots, *slot, ended);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        let (core, parker, waker) = self.waiting();
        if core.drive == Drive::Caller {
            return core.close_session(&self.slots);
        }
        // What was written is written even if nobody fenced; a failure has nobody left to hear it.
        let _ = core.block_on(&parker, &waker, self.fence_async());
        core.close_session(&self.slots);
    }
}
