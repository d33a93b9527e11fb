//! Accesses as state machines, of which all forms of a call are made.
//!
//! [`Session::read_hit`] and similar functions serve accesses that need no waiting. Others become an
//! [`Access`], whose [`step`](Session::step) continues it as far as possible and returns what it waits for.
//! Three loops over `step` differ in how they wait: [`block_on`](Session::block_on) on the caller's thread,
//! [`complete`](Session::complete) as a future, [`poll`](Session::poll) not at all, for executors that keep no
//! futures. An access allocates nothing: its bytes are kept in the session's slots.
//!
//! **Order.** A [fence](Access::FENCE) is an access without bytes that waits for all earlier writes; so does an
//! [`AccessKind::Ordered`] before its first piece.
//!
//! **Ownership.** The resources of a call in the engine are recorded in its session ([`InFlight`]), not in
//! the call's future: a forgotten future never runs its destructor. A session has one call at a time. If a
//! call [enters](Session::enter) and finds such a record, the earlier call was forgotten, and is abandoned
//! as if it had been dropped. Slots of abandoned operations become free when these have ended; a call that
//! needs a slot waits for that.

use super::deadline::Deadline;
use super::{CALL_SLOTS, LinePiece, Pieces, Session, failure, one_line, pieces};
use crate::canary;
use crate::operation::OperationKind;
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::{LineAddress, LineSize};
use farside_protocol::coherence::Want;
use farside_protocol::lock::Mode;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut};
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

/// The kind of an access.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum AccessKind {
    /// As [`Session::read`].
    Read,
    /// As [`Session::write`], and until all of it is visible to all nodes, so that its own failure is
    /// known.
    Write,
    /// As [`Session::write`]: waits only while the writes in flight are at their limit.
    Post,
    /// As [`Session::fence`].
    Fence,
    /// One operation on each line, after all earlier writes.
    Ordered(OperationKind),
}

/// The caller's buffer of an access.
#[derive(Debug)]
pub(crate) enum Buffer<'a> {
    /// Bytes read from the memory, or written to it.
    Out(&'a mut [u8]),
    /// Bytes written to the memory.
    In(&'a [u8]),
}

impl Buffer<'_> {
    pub(crate) const NONE: Self = Self::In(&[]);

    /// The bytes of a piece, to be written.
    fn part(&self, piece: LinePiece) -> Result<&[u8], Error> {
        let bytes = match self {
            Self::Out(bytes) => &**bytes,
            Self::In(bytes) => bytes,
        };
        let lacks = || Error::at(ErrorCode::NodeFailed, piece.address);
        bytes.get(piece.at..piece.at + piece.bytes).ok_or_else(lacks)
    }

    /// The bytes of a piece, to be filled.
    fn part_mut(&mut self, piece: LinePiece) -> Result<&mut [u8], Error> {
        let bytes = match self {
            Self::Out(bytes) => bytes.get_mut(piece.at..piece.at + piece.bytes),
            Self::In(_) => None,
        };
        bytes.ok_or_else(|| Error::at(ErrorCode::NodeFailed, piece.address))
    }
}

/// An access in progress.
#[derive(Debug)]
pub(crate) struct Access {
    what: AccessKind,
    /// The pieces that have not started.
    rest: Pieces,
    /// It waits for all earlier writes before it starts.
    waits_for_writes: bool,
    /// A fence has asked the engine whether this node is still a member.
    asked: bool,
    /// A fence has had what may not be durable written back.
    persisted: bool,
    ahead: Ahead,
    result: u64,
    failure: Option<Error>,
}

/// How far an access has looked ahead, as places in it: of bytes, or of parts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ahead {
    /// The place at which it looks again.
    pub(super) again: usize,
    /// The lines before this place have been requested.
    pub(super) end: usize,
}

impl Ahead {
    /// Not at all.
    pub(crate) const NONE: Self = Self { again: 0, end: 0 };

    /// Whether the access is to look ahead at this place: it `waits`, or has waited earlier.
    pub(crate) fn is_due(self, place: usize, waits: bool) -> bool {
        (waits || self.end > 0) && place >= self.again
    }
}

/// The state of an access.
enum AccessProgress {
    /// It has ended.
    Ended(Result<u64, Error>),
    /// It waits until this slot's operation has ended.
    Waits(usize),
}

/// The address of accesses without bytes.
const NOWHERE: GlobalAddress = match GlobalAddress::from_bits(0) {
    Ok(address) => address,
    Err(_) => unreachable!(),
};

/// Resources of a call in the engine.
#[derive(Debug, Default)]
pub(crate) struct InFlight {
    /// Its operations, oldest first.
    slots: [Option<(usize, LinePiece)>; CALL_SLOTS],
    /// Lines that it has pinned at this node.
    pub(crate) pinned: Vec<LineAddress>,
    /// It holds the node's gate for atomics of several lines.
    pub(crate) gated: bool,
    /// The first bytes of a range whose lock it has, while it waits for that of the rest.
    pub(crate) locked: Option<(GlobalAddress, usize, Mode)>,
    /// A holder of one of its locks died, and no writer has been notified since.
    pub(crate) abandoned: bool,
    /// Its deadline.
    pub(crate) deadline: Deadline,
    /// It has set an alarm.
    alarmed: bool,
}

impl InFlight {
    fn is_empty(&self) -> bool {
        self.slots[0].is_none()
            && self.pinned.is_empty()
            && !self.gated
            && self.locked.is_none()
            && !self.alarmed
    }

    /// Whether the call may start another operation.
    fn may_add(&self) -> bool {
        self.slots[CALL_SLOTS - 1].is_none()
    }

    fn add(&mut self, slot: usize, piece: LinePiece) {
        if let Some(place) = self.slots.iter_mut().find(|place| place.is_none()) {
            *place = Some((slot, piece));
        }
    }

    fn oldest(&self) -> Option<usize> {
        self.slots[0].map(|(slot, _)| slot)
    }
}

/// A session with a call in progress. Dropping it abandons what is still in flight of the call.
pub(crate) struct PendingAccess<'a>(&'a mut Session);

impl Deref for PendingAccess<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.0
    }
}

impl DerefMut for PendingAccess<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        self.0
    }
}

impl Drop for PendingAccess<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.clean_up();
    }
}

impl Access {
    /// As [`Session::fence`].
    pub(crate) const FENCE: Self = Self::new(AccessKind::Fence, pieces(NOWHERE, 0));

    const fn new(what: AccessKind, rest: Pieces) -> Self {
        let waits_for_writes = matches!(what, AccessKind::Fence | AccessKind::Ordered(_));
        let ahead = Ahead::NONE;
        Self {
            what,
            rest,
            waits_for_writes,
            asked: false,
            persisted: false,
            ahead,
            result: 0,
            failure: None,
        }
    }

    pub(crate) fn is_fence(&self) -> bool {
        self.what == AccessKind::Fence
    }
}

impl Session {
    /// Reads if that needs no waiting, neither for the memory nor for this session's writes.
    #[inline]
    pub(crate) fn read_hit(&mut self, address: GlobalAddress, out: &mut [u8]) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        let is_one = one_line(address, out.len());
        let lines = match is_one {
            true => self.lines.read(address, out, false).then_some(1),
            false => self.lines.read_lines(address, out),
        };
        match lines {
            Some(lines) => {
                self.hits(lines);
                true
            }
            None => is_one && self.read_direct(address, out, false),
        }
    }

    /// Writes within a line if that needs no waiting.
    #[inline]
    pub(crate) fn write_hit(&mut self, address: GlobalAddress, bytes: &[u8]) -> bool {
        let done = self.pending.is_empty()
            && one_line(address, bytes.len())
            && self.lines.write(address, bytes, false);
        if done {
            self.hit();
        }
        done
    }

    /// Changes a word of 4 or 8 bytes atomically if that needs no waiting, and returns the previous value.
    #[inline(always)]
    pub(crate) fn word_hit(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(u64) -> u64,
    ) -> Option<u64> {
        if !self.is_settled() || !address.offset().is_multiple_of(bytes as u64) {
            return None;
        }
        let before = self.lines.update(address, bytes, change)?;
        self.hit();
        Some(before)
    }

    /// Whether nothing is in flight and no failure is pending, after removing writes that have ended.
    pub(crate) fn settle(&mut self) -> bool {
        self.reap();
        self.is_settled()
    }

    /// Starts a call, which ends when the returned value is dropped.
    pub(crate) fn enter(&mut self) -> PendingAccess<'_> {
        let deadline = self.next_deadline();
        self.enter_until(deadline)
    }

    /// Starts a call with a deadline.
    pub(crate) fn enter_until(&mut self, deadline: Deadline) -> PendingAccess<'_> {
        self.clean_up();
        self.in_flight.deadline = deadline;
        self.in_flight.abandoned = false;
        PendingAccess(self)
    }

    /// Abandons the resources that the last call has left in the engine, if any.
    #[inline]
    pub(crate) fn clean_up(&mut self) {
        if !self.in_flight.is_empty() {
            self.abandon();
        }
    }

    #[cold]
    fn abandon(&mut self) {
        if std::mem::take(&mut self.in_flight.alarmed) {
            self.slots.alarm_ns.store(u64::MAX, Ordering::SeqCst);
        }
        if let Some((address, bytes, mode)) = self.in_flight.locked.take() {
            for piece in pieces(address, bytes).flatten() {
                // This fails only if the home died: its locks are gone with it.
                let _ = self.undo_line(piece, mode);
            }
        }
        let Self { in_flight, slots, core, .. } = self;
        let gated = std::mem::take(&mut in_flight.gated);
        if in_flight.oldest().is_some() || !in_flight.pinned.is_empty() || gated {
            core.with_engine(|engine| {
                for (slot, _) in in_flight.slots.iter_mut().filter_map(Option::take) {
                    engine.abandon(slots, slot);
                }
                for line in in_flight.pinned.drain(..) {
                    engine.unpin(line);
                }
                engine.follow_up();
                if gated {
                    engine.open_gate();
                }
            });
        }
    }

    /// Performs an access; polls the engine on this thread while it waits.
    ///
    /// # Errors
    /// As [`poll`](Self::poll), and `TimedOut`.
    pub(crate) fn access(
        &mut self,
        what: AccessKind,
        address: GlobalAddress,
        bytes: usize,
        buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        let mut call = self.enter();
        let access = call.begin(what, address, bytes)?;
        call.block_on(access, buffer)
    }

    /// The awaitable twin of [`access`](Self::access).
    ///
    /// # Errors
    /// As `access`.
    pub(crate) async fn access_async(
        &mut self,
        what: AccessKind,
        address: GlobalAddress,
        bytes: usize,
        buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        let mut call = self.enter();
        let access = call.begin(what, address, bytes)?;
        call.complete(access, buffer).await
    }

    /// Completes an access of the call in progress; polls the engine on this thread while it waits.
    pub(crate) fn block_on(
        &mut self,
        mut access: Access,
        mut buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        loop {
            let slot = match self.step(&mut access, &mut buffer) {
                AccessProgress::Ended(end) => return end,
                AccessProgress::Waits(slot) => slot,
            };
            let until = self.in_flight.deadline.resolve();
            let operation = &self.slots.slots[slot];
            if !self.core.wait_for(operation, until, &self.parker, &self.waker) {
                return Err(self.timed_out(slot));
            }
        }
    }

    /// Completes an access of the call in progress.
    pub(crate) async fn complete(
        &mut self,
        mut access: Access,
        mut buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        loop {
            match self.step(&mut access, &mut buffer) {
                AccessProgress::Ended(end) => return end,
                AccessProgress::Waits(slot) => self.wait(slot).await?,
            }
        }
    }

    /// Waits for all earlier writes, within the call in progress.
    pub(crate) async fn writes_ended(&mut self) -> Result<(), Error> {
        self.complete(Access::FENCE, Buffer::NONE).await.map(drop)
    }

    /// Waits for a slot's operation, until the call's deadline.
    pub(crate) async fn wait(&mut self, slot: usize) -> Result<(), Error> {
        poll_fn(|context| self.poll_slot(slot, context)).await
    }

    /// Ready when the slot's operation has ended, or the call's deadline is reached.
    fn poll_slot(&mut self, slot: usize, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if self.slots.slots[slot].outcome().is_some() {
            return Poll::Ready(Ok(()));
        }
        let until = self.in_flight.deadline.resolve();
        if until.is_some_and(|until| Instant::now() >= until) {
            return Poll::Ready(Err(self.timed_out(slot)));
        }
        if context.waker().will_wake(&self.waker) {
            self.parker.awaits(slot, until); // `Blocking::run` polls this future, and the engine meanwhile
            return Poll::Pending;
        }
        if self.slots.slots[slot].watch(context.waker()) {
            return Poll::Ready(Ok(()));
        }
        if let Some(until) = until {
            self.in_flight.alarmed = true;
            self.core.set_alarm(&self.slots, until);
        }
        self.core.awaits();
        Poll::Pending
    }

    /// Returns a slot for an operation of a call; waits if abandoned operations occupy all.
    pub(crate) async fn call_slot(&mut self) -> Result<usize, Error> {
        loop {
            match self.free_call_slot() {
                Some(slot) => return Ok(slot),
                None => self.wait(0).await?,
            }
        }
    }

    /// A free slot for an operation of a call; abandoned operations may occupy some.
    pub(crate) fn free_call_slot(&self) -> Option<usize> {
        (0..CALL_SLOTS).find(|slot| self.frees(*slot))
    }

    /// Whether a slot is free, or its operation was abandoned and has ended.
    pub(super) fn frees(&self, slot: usize) -> bool {
        let slot = &self.slots.slots[slot];
        if slot.is_abandoned() && slot.outcome().is_some() {
            slot.recycle();
        }
        slot.is_free()
    }

    /// Performs one operation on a piece of the memory; for allocations, pins and the like.
    pub(crate) async fn call(
        &mut self,
        kind: OperationKind,
        piece: LinePiece,
        bytes: &[u8],
    ) -> Result<u64, Error> {
        let slot = self.call_slot().await?;
        self.fill(slot, kind, piece, bytes);
        self.launch(slot);
        self.call_ended(slot, piece).await
    }

    /// Waits for the call's operation in a slot, and takes its result.
    pub(crate) async fn call_ended(&mut self, slot: usize, piece: LinePiece) -> Result<u64, Error> {
        self.in_flight.add(slot, piece);
        self.wait(slot).await?;
        self.in_flight.slots[0] = None;
        self.in_flight.abandoned |= self.slots.slots[slot].request().abandoned;
        self.take_result(slot, piece, |_| {})
    }

    /// Waits for the return of the home of an address, if it is a node with state that is away, up to
    /// [`Config::return_timeout_ns`](crate::Config::return_timeout_ns). Gives up what the call holds before, so that no
    /// other call waits for the home too.
    pub(crate) async fn await_home(&mut self, address: GlobalAddress) -> Result<(), Error> {
        self.clean_up();
        let piece = LinePiece::empty(address);
        self.call(OperationKind::AwaitHome, piece, &[]).await.map(drop)
    }

    /// Takes the result of a slot's completed operation; the slot is free then.
    fn take_result(
        &self,
        slot: usize,
        piece: LinePiece,
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

    /// Starts an access of `bytes` bytes; [`step`](Self::step) continues it, within a call.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `Misaligned`.
    pub(crate) fn begin(
        &self,
        what: AccessKind,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<Access, Error> {
        self.check_size(address, bytes)?;
        if matches!(what, AccessKind::Ordered(OperationKind::Word(_)))
            && !address.offset().is_multiple_of(bytes as u64)
        {
            return Err(Error::at(ErrorCode::Misaligned, address));
        }
        Ok(Access::new(what, pieces(address, bytes)))
    }

    /// Continues an access without waiting. Its bytes come from `buffer` or go there, the same buffer each
    /// time. A failure of an [`AccessKind::Post`] is reported later, as by [`write`](Self::write). A fence and
    /// an [`AccessKind::Ordered`] return the first failure of an earlier write.
    fn step(&mut self, access: &mut Access, buffer: &mut Buffer<'_>) -> AccessProgress {
        self.reap();
        if let Some(slot) = self.earlier_write(access) {
            return AccessProgress::Waits(slot);
        }
        self.land(access, buffer);
        let behind = self.begin_pieces(access, buffer);
        match self.in_flight.oldest().or(behind) {
            Some(slot) => {
                self.look_ahead(access, true);
                AccessProgress::Waits(slot)
            }
            None => AccessProgress::Ended(access.failure.take().map_or(Ok(access.result), Err)),
        }
    }

    /// The earlier write that the access waits for. If this node may have been removed, what it acknowledged
    /// may be void: a fence asks the engine then, by an operation in the role of one more write, which ends
    /// when the membership is confirmed.
    fn earlier_write(&mut self, access: &mut Access) -> Option<usize> {
        if !access.waits_for_writes {
            return None;
        }
        if !access.is_fence() || !canary::mutant!(canary::nodes(), FenceReturnsAtOnce) {
            let may_ask = access.is_fence() && self.is_settled();
            let forgets = canary::mutant!(canary::nodes(), FenceForgetsState);
            // One after the other: there may be a single slot.
            if may_ask && !access.asked && !self.lines.is_trusted() {
                access.asked = true;
                self.start_at_node(OperationKind::Confirm);
            } else if may_ask && !access.persisted && self.lines.has_unlogged() && !forgets {
                access.persisted = true;
                self.start_at_node(OperationKind::Persist);
            }
            if let Some(write) = self.pending.first() {
                return Some(write.slot);
            }
        }
        std::sync::atomic::fence(Ordering::SeqCst);
        access.waits_for_writes = false;
        access.failure = self.write_failure.take();
        if access.is_fence() && access.failure.is_none() {
            access.failure = self.report_loss().err();
        }
        None
    }

    /// Starts an operation of this node as a whole, which the fence in progress waits for.
    fn start_at_node(&mut self, kind: OperationKind) {
        match GlobalAddress::new(self.lines.me(), LineSize::MIN, 0) {
            Ok(own) => self.start(kind, LinePiece::empty(own), &[]),
            Err(_) => self.remember(Error::new(ErrorCode::NodeFailed)),
        }
    }

    /// Continues an access; returns its result, or nothing if `waker` will be woken when it can continue.
    /// Never blocks.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and those of earlier writes as for [`step`](Self::step).
    pub(crate) fn poll(
        &mut self,
        access: &mut Access,
        bytes: &mut [u8],
        waker: &Waker,
    ) -> Option<Result<u64, Error>> {
        loop {
            match self.step(access, &mut Buffer::Out(bytes)) {
                AccessProgress::Ended(end) => return Some(end),
                AccessProgress::Waits(slot) if self.ends_meanwhile(slot, waker) => {}
                AccessProgress::Waits(_) => return None,
            }
        }
    }

    /// Whether this session has nothing in flight, including abandoned operations; otherwise `waker` will
    /// be woken. A failure of a write can be reported to no caller any more.
    pub(crate) fn poll_idle(&mut self, waker: &Waker) -> bool {
        loop {
            self.reap();
            self.write_failure = None;
            let write = self.pending.first().map(|write| write.slot);
            let busy = || (0..CALL_SLOTS).find(|slot| !self.frees(*slot));
            match write.or_else(busy) {
                None => return true,
                Some(slot) if self.ends_meanwhile(slot, waker) => {}
                Some(_) => return false,
            }
        }
    }

    /// Registers `waker` for the end of a slot's operation; true if it has ended already.
    fn ends_meanwhile(&self, slot: usize, waker: &Waker) -> bool {
        self.slots.slots[slot].watch(waker)
    }

    /// Takes the completed operations of an access.
    fn land(&mut self, access: &mut Access, buffer: &mut Buffer<'_>) {
        let mut kept = 0;
        for at in 0..CALL_SLOTS {
            let Some((slot, piece)) = self.in_flight.slots[at].take() else { break };
            if self.slots.slots[slot].outcome().is_none() {
                self.in_flight.slots[kept] = Some((slot, piece));
                kept += 1;
                continue;
            }
            let ended = self.take_result(slot, piece, |bytes| {
                if access.what == AccessKind::Read
                    && let Ok(out) = buffer.part_mut(piece)
                {
                    out.copy_from_slice(bytes);
                }
            });
            match ended {
                Ok(result) => access.result = result,
                Err(error) => {
                    access.failure.get_or_insert(error);
                }
            }
        }
    }

    /// Starts as many pieces as possible; returns the slot that the next piece waits for, if any.
    fn begin_pieces(&mut self, access: &mut Access, buffer: &mut Buffer<'_>) -> Option<usize> {
        let mut rest = access.rest;
        while access.failure.is_none()
            && let Some(piece) = rest.next()
        {
            match piece.and_then(|piece| self.begin_piece(access, piece, buffer)) {
                Ok(None) => {
                    access.rest = rest;
                    self.look_ahead(access, false);
                }
                Ok(behind) => return behind,
                Err(error) => access.failure = Some(error),
            }
        }
        None
    }

    /// Requests lines of the pieces that have not started, if that is due.
    fn look_ahead(&mut self, access: &mut Access, waits: bool) {
        if access.failure.is_some() || !access.ahead.is_due(access.rest.at, waits) {
            return;
        }
        let want = match access.what {
            AccessKind::Read => Want::Read,
            AccessKind::Write | AccessKind::Post => Want::Write,
            AccessKind::Fence | AccessKind::Ordered(_) => return,
        };
        let rest = access.rest.map(|piece| piece.map(|piece| (piece.at, piece)));
        self.fetch_ahead(want, &mut access.ahead, rest);
    }

    /// Starts a piece; returns the slot that it waits for, if any.
    fn begin_piece(
        &mut self,
        access: &mut Access,
        piece: LinePiece,
        buffer: &mut Buffer<'_>,
    ) -> Result<Option<usize>, Error> {
        let (address, continues) = (piece.address, piece.continues());
        let newest = self.newest_write(address.line()).map(|write| write.slot);
        let (hit, kind) = match access.what {
            AccessKind::Fence => return Ok(None),
            AccessKind::Read => {
                let out = buffer.part_mut(piece)?;
                if self.own_write(piece, out) {
                    return Ok(None);
                }
                let hit = newest.is_none() && self.lines.read(address, out, continues);
                if !hit && newest.is_none() && self.read_direct(address, out, continues) {
                    return Ok(None);
                }
                (hit, OperationKind::Read)
            }
            AccessKind::Write | AccessKind::Post => {
                let bytes = buffer.part(piece)?;
                let hit = newest.is_none() && self.lines.write(address, bytes, continues);
                if !hit && access.what == AccessKind::Post {
                    return self.post_piece(piece, bytes);
                }
                (hit, OperationKind::Write)
            }
            AccessKind::Ordered(kind) => {
                if let OperationKind::Word(change) = kind
                    && let Some(before) =
                        self.word_hit(address, piece.bytes, |word| change.apply(word))
                {
                    access.result = before;
                    return Ok(None);
                }
                let is_here = kind == OperationKind::WriteBack && self.is_written_at_home(piece)?;
                if is_here && !self.lines.has_unlogged() {
                    return Ok(None);
                }
                (false, if is_here { OperationKind::Persist } else { kind })
            }
        };
        if hit {
            self.hit();
            return Ok(None);
        }
        if newest.is_some() {
            return Ok(newest);
        }
        let free = if self.in_flight.may_add() { self.free_call_slot() } else { None };
        let Some(slot) = free else {
            // The access's oldest operation, or an abandoned one.
            return Ok(self.in_flight.oldest().or(Some(0)));
        };
        if kind.want().is_some() {
            self.missed();
        }
        let bytes = if kind == OperationKind::Write { buffer.part(piece)? } else { &[] };
        self.fill(slot, kind, piece, bytes);
        self.in_flight.add(slot, piece);
        self.launch(slot);
        Ok(None)
    }

    /// Whether a piece to be written back is in this node's own memory.
    fn is_written_at_home(&self, piece: LinePiece) -> Result<bool, Error> {
        let line = piece.address.line();
        let is_own = Some(line.memory()) == self.lines.memory();
        if is_own && self.lines.here(line).1.is_none() {
            return Err(failure(ErrorCode::Unallocated, piece.address, piece.continues()));
        }
        Ok(is_own)
    }

    /// Starts to write a piece asynchronously.
    fn post_piece(&mut self, piece: LinePiece, bytes: &[u8]) -> Result<Option<usize>, Error> {
        if !self.may_write_more() {
            return Ok(Some(self.pending.first().map_or(0, |write| write.slot)));
        }
        self.missed();
        self.start(OperationKind::Write, piece, bytes);
        self.lost_at_once().map_or(Ok(None), Err)
    }
}
