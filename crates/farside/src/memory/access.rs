//! Accesses as values that are started and polled, of which all forms of a call are made.
//!
//! [`Session::read_hit`] and similar functions serve accesses that need no waiting. Others become an
//! [`Access`], whose [`step`](Session::step) continues it as far as possible and returns what it waits for.
//! The blocking forms wait on the caller's thread, the awaitable ones register a waker, and
//! [`Session::poll`] is for executors that keep no futures. It allocates nothing: its bytes are kept in the
//! session's slots.
//!
//! **Ownership.** The resources of a call in the engine are recorded in its session ([`InFlight`]), not in
//! the call's future: a forgotten future never runs its destructor. A session has one call at a time. If a
//! call [enters](Session::enter) and finds such a record, the earlier call was forgotten, and is abandoned
//! as if it had been dropped. Slots of abandoned operations become free when these have ended; a call that
//! needs a slot waits for that.

use super::deadline::Deadline;
use super::{CALL_SLOTS, LinePiece, Session, failure, one_line, pieces};
use crate::canary;
use crate::operation::OperationKind;
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::LineAddress;
use farside_protocol::lock::Mode;
use std::future::poll_fn;
use std::ops::{Deref, DerefMut, Range};
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
    /// An atomic of a word, after all earlier writes.
    Word(OperationKind),
    /// Writes the lines back to their homes, after all earlier writes.
    WriteBack,
}

/// The caller's buffer of an access.
#[derive(Debug)]
pub(crate) enum Buffer<'a> {
    /// Bytes read from the memory, or written to it.
    Out(&'a mut [u8]),
    /// Bytes written to the memory.
    In(&'a [u8]),
}

impl<'a> Buffer<'a> {
    fn into_bytes(self) -> &'a [u8] {
        match self {
            Self::Out(bytes) => bytes,
            Self::In(bytes) => bytes,
        }
    }
}

/// An access in progress.
#[derive(Debug)]
pub(crate) struct Access {
    what: AccessKind,
    address: GlobalAddress,
    bytes: usize,
    /// Bytes whose operations have started, from the front.
    begun: usize,
    result: u64,
    failure: Option<Error>,
}

/// The state of an access.
pub(crate) enum AccessProgress {
    /// It has ended.
    Ended(Result<u64, Error>),
    /// It waits until this slot's operation has ended.
    Waits(usize),
}

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

/// The result of starting a piece.
enum Piecemeal {
    /// It is complete or in flight.
    Begun,
    /// It waits until this slot's operation has ended.
    Behind(usize),
    Failed(Error),
}

impl Access {
    fn next(&self) -> Result<LinePiece, Error> {
        let beyond = || Error::at(ErrorCode::OutOfBounds, self.address);
        let address = self.address.checked_add(self.begun as u64).ok_or_else(beyond)?;
        let room = address.line_size().bytes() - address.offset_in_line();
        Ok(LinePiece { address, at: self.begun, bytes: room.min(self.bytes - self.begun) })
    }

    /// The piece's bytes of the buffer; none for atomics.
    fn part(&self, piece: LinePiece) -> Range<usize> {
        match self.what {
            AccessKind::Word(_) | AccessKind::WriteBack => 0..0,
            _ => piece.at..piece.at + piece.bytes,
        }
    }

    fn end(&mut self) -> Result<u64, Error> {
        self.failure.take().map_or(Ok(self.result), Err)
    }
}

impl Session {
    /// Reads if that needs no waiting, neither for the memory nor for this session's writes.
    #[inline]
    pub(crate) fn read_hit(&mut self, address: GlobalAddress, out: &mut [u8]) -> bool {
        if !self.pending.is_empty() {
            return false;
        }
        let lines = match one_line(address, out.len()) {
            true => self.lines.read(address, out, false).then_some(1),
            false => self.lines.read_lines(address, out),
        };
        lines.inspect(|lines| self.hits(*lines)).is_some()
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

    /// Changes a word atomically if that needs no waiting, and returns the previous value.
    #[inline]
    pub(crate) fn word_hit(&mut self, address: GlobalAddress, kind: OperationKind) -> Option<u64> {
        if !self.is_settled() || !address.offset().is_multiple_of(8) {
            return None;
        }
        let change = |word: u64| match kind {
            OperationKind::FetchAdd(add) => word.wrapping_add(add),
            OperationKind::CompareSwap(expected, new) if word == expected => new,
            OperationKind::Swap(new) => new,
            _ => word,
        };
        let before = self.lines.update(address, change)?;
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
        mut buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        let mut call = self.enter();
        let mut access = call.begin(what, address, bytes)?;
        loop {
            match call.step(&mut access, &mut buffer) {
                AccessProgress::Ended(end) => return end,
                AccessProgress::Waits(slot) => call.wait_for(slot)?,
            }
        }
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
        mut buffer: Buffer<'_>,
    ) -> Result<u64, Error> {
        let mut call = self.enter();
        let mut access = call.begin(what, address, bytes)?;
        loop {
            match call.step(&mut access, &mut buffer) {
                AccessProgress::Ended(end) => return end,
                AccessProgress::Waits(slot) => call.wait(slot).await?,
            }
        }
    }

    /// Waits for a slot's operation on this thread, until the call's deadline.
    pub(crate) fn wait_for(&mut self, slot: usize) -> Result<(), Error> {
        let until = self.in_flight.deadline.resolve();
        let operation = &self.slots.slots[slot];
        match self.core.wait_for(operation, until, &self.parker, &self.waker) {
            true => Ok(()),
            false => Err(self.timed_out(slot)),
        }
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

    /// Waits for all earlier writes, on this thread.
    pub(crate) fn wait_for_writes(&mut self) -> Result<(), Error> {
        self.standing_asked = false; // an earlier fence may have been abandoned
        loop {
            while let Some(slot) = self.oldest_write() {
                self.wait_for(slot)?;
            }
            if !self.asks_for_standing() {
                return self.fenced();
            }
        }
    }

    /// Waits for all earlier writes.
    pub(crate) async fn writes_ended(&mut self) -> Result<(), Error> {
        self.standing_asked = false; // an earlier fence may have been abandoned
        loop {
            while let Some(slot) = self.oldest_write()
                && !canary::is(canary::NodeMutant::FenceReturnsAtOnce)
            {
                self.wait(slot).await?;
            }
            if !self.asks_for_standing() {
                return self.fenced();
            }
        }
    }

    /// The slot of the oldest write that has not ended.
    fn oldest_write(&mut self) -> Option<usize> {
        self.reap();
        self.pending.first().map(|write| write.slot)
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
        let slots = &self.slots.slots;
        (0..CALL_SLOTS).find(|slot| {
            if slots[*slot].is_abandoned() && slots[*slot].outcome().is_some() {
                slots[*slot].recycle();
            }
            slots[*slot].is_free()
        })
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
        if matches!(what, AccessKind::Word(_)) && !address.offset().is_multiple_of(8) {
            return Err(Error::at(ErrorCode::Misaligned, address));
        }
        Ok(Access { what, address, bytes, begun: 0, result: 0, failure: None })
    }

    /// Continues an access without waiting. Its bytes come from `buffer` or go there, the same buffer each
    /// time. A failure of an [`AccessKind::Post`] is reported later, as by [`write`](Self::write); [`AccessKind::Word`]
    /// returns the first failure of an earlier write.
    fn step(&mut self, access: &mut Access, buffer: &mut Buffer<'_>) -> AccessProgress {
        self.reap();
        self.land(access, buffer);
        let behind = self.begin_pieces(access, buffer);
        match self.in_flight.oldest().or(behind) {
            Some(slot) => AccessProgress::Waits(slot),
            None => AccessProgress::Ended(access.end()),
        }
    }

    /// Continues an access; returns its result, or nothing if `waker` will be woken when it can continue.
    /// Never blocks.
    ///
    /// # Errors
    /// Those of [`read`](Self::read), and those of earlier writes as [`step`](Self::step) says.
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

    /// Whether every earlier write of this session has ended; returns the first failure then. Otherwise
    /// `waker` will be woken.
    ///
    /// # Errors
    /// As [`fence`](Self::fence).
    pub(crate) fn poll_fence(&mut self, waker: &Waker) -> Option<Result<(), Error>> {
        loop {
            let Some(slot) = self.oldest_write() else {
                if !self.asks_for_standing() {
                    return Some(self.fenced());
                }
                continue; // the membership query counts as one more write, or has failed
            };
            if !self.ends_meanwhile(slot, waker) {
                return None;
            }
        }
    }

    /// Whether this session has nothing in flight, including abandoned operations; otherwise `waker` will
    /// be woken. A failure of a write can be reported to no caller any more.
    pub(crate) fn poll_idle(&mut self, waker: &Waker) -> bool {
        if self.poll_fence(waker).is_none() {
            return false;
        }
        loop {
            let slots = &self.slots.slots;
            for slot in &slots[..CALL_SLOTS] {
                if slot.is_abandoned() && slot.outcome().is_some() {
                    slot.recycle();
                }
            }
            let Some(busy) = slots[..CALL_SLOTS].iter().position(|slot| !slot.is_free()) else {
                return true;
            };
            if !self.ends_meanwhile(busy, waker) {
                return false;
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
                    && let Buffer::Out(out) = buffer
                    && let Some(part) = out.get_mut(access.part(piece))
                {
                    part.copy_from_slice(bytes);
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
        while access.failure.is_none() && access.begun < access.bytes {
            let begun = access.next().and_then(|piece| {
                let part = match buffer {
                    Buffer::Out(bytes) => bytes.get_mut(access.part(piece)).map(Buffer::Out),
                    Buffer::In(bytes) => bytes.get(access.part(piece)).map(Buffer::In),
                };
                let lacks = || Error::at(ErrorCode::NodeFailed, piece.address);
                Ok((piece, self.begin_piece(access, piece, part.ok_or_else(lacks)?)))
            });
            match begun {
                Ok((piece, Piecemeal::Begun)) => access.begun += piece.bytes,
                Ok((_, Piecemeal::Behind(slot))) => return Some(slot),
                Ok((_, Piecemeal::Failed(error))) | Err(error) => access.failure = Some(error),
            }
        }
        None
    }

    fn begin_piece(
        &mut self,
        access: &mut Access,
        piece: LinePiece,
        part: Buffer<'_>,
    ) -> Piecemeal {
        let (address, continues) = (piece.address, piece.continues());
        let line = address.line();
        let newest = self.pending.iter().rev().find(|write| write.address.line() == line);
        let newest = newest.map(|write| write.slot);
        let (hit, kind, part) = match (access.what, part) {
            (AccessKind::Word(kind), _) => {
                if let Some(stopped) = self.behind_writes() {
                    return stopped;
                }
                let before = self.word_hit(address, kind);
                access.result = before.unwrap_or(0);
                if before.is_some() {
                    return Piecemeal::Begun;
                }
                (false, kind, &[][..])
            }
            (AccessKind::WriteBack, _) => {
                if let Some(done) = self.behind_writes().or_else(|| self.written_at_home(piece)) {
                    return done;
                }
                (false, OperationKind::WriteBack, &[][..])
            }
            (AccessKind::Read, Buffer::Out(out)) => {
                if self.own_write(piece, out) {
                    return Piecemeal::Begun;
                }
                if let Some(slot) = newest {
                    return Piecemeal::Behind(slot);
                }
                (self.lines.read(address, out, continues), OperationKind::Read, &*out)
            }
            (AccessKind::Read, Buffer::In(_)) => {
                return Piecemeal::Failed(Error::at(ErrorCode::NodeFailed, address));
            }
            (AccessKind::Post, part) => {
                return self.post_piece(piece, part.into_bytes(), newest.is_some());
            }
            (AccessKind::Write, part) => {
                if let Some(slot) = newest {
                    return Piecemeal::Behind(slot);
                }
                let bytes = part.into_bytes();
                (self.lines.write(address, bytes, continues), OperationKind::Write, bytes)
            }
        };
        if hit {
            self.hit();
            return Piecemeal::Begun;
        }
        let free = if self.in_flight.may_add() { self.free_call_slot() } else { None };
        let Some(slot) = free else {
            // The access's oldest operation, or an abandoned one.
            return Piecemeal::Behind(self.in_flight.oldest().unwrap_or(0));
        };
        if kind != OperationKind::WriteBack {
            self.missed();
        }
        self.fill(slot, kind, piece, part);
        self.in_flight.add(slot, piece);
        self.launch(slot);
        Piecemeal::Begun
    }

    /// What a piece that is ordered after all earlier writes waits for, or its failure.
    fn behind_writes(&mut self) -> Option<Piecemeal> {
        if let Some(write) = self.pending.first() {
            return Some(Piecemeal::Behind(write.slot));
        }
        self.fenced().err().map(Piecemeal::Failed)
    }

    /// The result of a write-back piece of this node's own memory.
    fn written_at_home(&self, piece: LinePiece) -> Option<Piecemeal> {
        let line = piece.address.line();
        let code = ErrorCode::Unallocated;
        (Some(line.memory()) == self.lines.memory()).then(|| match self.lines.here(line).1 {
            Some(_) => Piecemeal::Begun,
            None => Piecemeal::Failed(failure(code, piece.address, piece.continues())),
        })
    }

    /// Writes a piece, or starts to; `behind`: another write to its line is in flight.
    fn post_piece(&mut self, piece: LinePiece, bytes: &[u8], behind: bool) -> Piecemeal {
        if !behind && self.lines.write(piece.address, bytes, piece.continues()) {
            self.hit();
        } else if self.may_write_more() {
            self.missed();
            self.start_write(piece, bytes);
            return self.lost_at_once().map_or(Piecemeal::Begun, Piecemeal::Failed);
        } else {
            return Piecemeal::Behind(self.pending.first().map_or(0, |write| write.slot));
        }
        Piecemeal::Begun
    }
}
