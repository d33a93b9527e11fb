//! Locks of byte ranges: the calls of a session, and the engine's side of the lock machine.
//!
//! A lock that nobody else is interested in is granted on loan ([`lock_hit`](crate::lock_hit)), without
//! the engine. All else is a request to the machine, before which the loan of its line ends.

use crate::engine::Engine;
use crate::lock_hit::{Held, Returned, order};
use crate::memory::{Piece, Session, failure, pieces};
use crate::operation::{Kind, SessionSlots};
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use farside_base::{LineAddress, OperationId};
use farside_protocol::lock::{
    Action, Ask, Effect, Event, Here, Hold, Message, Mode, Patience, Request,
};
use farside_protocol::wire::{BODY, Family, Violation};
use std::ops::{Deref, DerefMut};

impl Engine {
    fn lock_here(&self, line: LineAddress) -> Here {
        let extent = if line.home() == self.me() { self.lines.here(line).1 } else { None };
        Here { bytes: extent.map_or(0, |extent| extent.bytes) }
    }

    /// Gives an operation to the lock machine. `None`: it is under way, and its slot will tell.
    fn start_lock(
        &mut self,
        operation: OperationId,
        slots: &SessionSlots,
        request: Request,
    ) -> Option<Result<u64, ErrorCode>> {
        if let Some(code) = self.refusal() {
            self.call_in_loans();
            return Some(Err(code));
        }
        if request.line.home() != self.me()
            && let Some(code) = self.peers.refusal(request.line.home())
        {
            return Some(Err(code));
        }
        let full = slots.locks.all() >= self.limits.locks_per_session_max.into();
        if full && matches!(request.action, Action::Ask(_)) {
            // The machine knows the bound, and from now on all of the session's locks.
            self.call_in_loans_of(slots);
        }
        let (here, session) = (self.lock_here(request.line), slots.session);
        self.awaited_lock = Some((operation, None));
        self.lock_own(Event::Issue { operation, session, request, here });
        slots.locks.set_machine(self.locks.locks_of(session));
        let outcome = self.awaited_lock.take().and_then(|(_, outcome)| outcome);
        if matches!((request.action, outcome), (Action::Unlock(_), Some(Ok(_)))) {
            self.lend(request.line);
        }
        outcome
    }

    /// A session has let go of a lock: lends the line to the hit path if it seems to be worth it.
    fn lend(&mut self, line: LineAddress) {
        if self.lock_cells.wants(line)
            && let Some(loan) = self.locks.lend(line)
        {
            if let Some((other, returned)) = self.lock_cells.make_room(line) {
                self.end_loan(other, returned);
            }
            self.lock_cells.lend(line, loan);
        }
    }

    /// Tells the machine how a loan has ended.
    fn end_loan(&mut self, line: LineAddress, returned: Returned) {
        let Returned { used, held } = returned;
        let held = held.and_then(|Held { place, range, mode }| {
            let slots = self.sessions.get(place as usize)?.as_ref()?;
            slots.locks.took();
            Some(Hold { session: slots.session, range, mode })
        });
        self.locks.take_back(line, used, held);
    }

    /// The machine is about to hear of a line.
    fn call_in_loan(&mut self, line: LineAddress) {
        if let Some(returned) = self.lock_cells.take_back(line) {
            self.end_loan(line, returned);
        }
    }

    /// Ends the loans of all locks that a session holds; the session locks nothing meanwhile.
    fn call_in_loans_of(&mut self, slots: &SessionSlots) {
        if slots.locks.on_loan() == 0 {
            return;
        }
        let lent: Vec<LineAddress> = self.lock_cells.lent().collect();
        for line in lent {
            if self.lock_cells.may_be_held_by(line, slots.index) {
                self.call_in_loan(line);
            }
        }
    }

    /// Ends all loans.
    pub(crate) fn call_in_loans(&mut self) {
        let lent: Vec<LineAddress> = self.lock_cells.lent().collect();
        for line in lent {
            self.call_in_loan(line);
        }
    }

    /// How a lock operation ended: told to whoever is just starting it, or by its slot.
    fn lock_ended(&mut self, operation: OperationId, outcome: Result<u64, ErrorCode>) {
        if let Some((awaited, result)) = self.awaited_lock.as_mut()
            && *awaited == operation
        {
            *result = Some(outcome);
            return;
        }
        if let Some(slots) = self.session_of(operation) {
            slots.locks.set_machine(self.locks.locks_of(slots.session));
        }
        match outcome {
            Ok(token) => self.finish_with(operation, token),
            Err(code) => self.finish(operation, Err(code)),
        }
    }

    /// One step of the lock machine and all its effects.
    fn step_lock(&mut self, event: Event) -> Result<(), Violation> {
        match &event {
            Event::Issue { request, .. } => self.call_in_loan(request.line),
            Event::Cancel { line, .. } | Event::Retire { line } => self.call_in_loan(*line),
            Event::Received { message, .. } => self.call_in_loan(message.line()),
            Event::NodeDead { .. } => self.call_in_loans(),
            Event::Close { .. } => {}
        }
        let mut effects = std::mem::take(&mut self.lock_effects);
        let step = self.locks.step(event, &mut effects);
        for effect in effects.drain(..) {
            match effect {
                Effect::Send { to, message } => {
                    self.peers.push(to, message.class(), Family::Lock, &message.encode());
                }
                Effect::Locked { operation, token } => {
                    self.counters.locks += 1;
                    self.lock_ended(operation, Ok(token.0));
                }
                Effect::Unlocked { operation } => self.lock_ended(operation, Ok(0)),
                Effect::Failed { operation, code } => self.lock_ended(operation, Err(code)),
                Effect::Cancelled { operation } => {
                    self.lock_ended(operation, Err(ErrorCode::TimedOut));
                }
            }
        }
        self.lock_effects = effects;
        step
    }

    fn lock_own(&mut self, event: Event) {
        if let Err(violation) = self.step_lock(event) {
            self.failure = Some(violation.0);
        }
    }

    pub(crate) fn lock_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        let message = Message::decode(body)?;
        let here = self.lock_here(message.line());
        self.step_lock(Event::Received { from, message, here })
    }

    /// A session has closed: it holds and awaits nothing any more.
    pub(crate) fn close_locks(&mut self, slots: &SessionSlots) {
        self.call_in_loans_of(slots);
        self.lock_own(Event::Close { session: slots.session });
    }

    /// A node is dead, and its locks with it.
    pub(crate) fn locks_of_dead(&mut self, node: NodeId) {
        self.lock_own(Event::NodeDead { node });
        for slots in self.sessions.iter().flatten() {
            slots.locks.set_machine(self.locks.locks_of(slots.session));
        }
    }

    /// An own line is freed.
    pub(crate) fn retire_locks(&mut self, line: LineAddress) {
        self.lock_own(Event::Retire { line });
    }

    /// Nobody waits for a lock operation any more; one that was granted is undone.
    pub(crate) fn forget_lock(&mut self, operation: OperationId, request: Request, granted: bool) {
        let Some(session) = self.session_of(operation).map(|slots| slots.session) else {
            return;
        };
        match request.action {
            Action::Ask(ask) if granted => {
                let action = Action::Unlock(ask.mode());
                let request = Request { action, ..request };
                let here = self.lock_here(request.line);
                self.lock_own(Event::Issue { operation, session, request, here });
            }
            _ if granted => {}
            _ => self.lock_own(Event::Cancel { operation, session, line: request.line }),
        }
    }
}

/// A lock operation that was begun.
enum Begun {
    Ended(Result<u64, ErrorCode>),
    /// It waits in this slot.
    Waits(usize),
}

/// A held lock. Acts as the session meanwhile; dropping it unlocks, which waits for the session's
/// writes in flight like a [`fence`](Session::fence).
#[derive(Debug)]
pub struct LockGuard<'a> {
    session: &'a mut Session,
    address: GlobalAddress,
    bytes: u64,
    mode: Mode,
    token: u64,
    held: bool,
}

impl LockGuard<'_> {
    /// The fencing token of the lock (of its last line): later holders of the range have larger ones.
    pub fn token(&self) -> u64 {
        self.token
    }

    /// Unlocks and reports failure, which dropping cannot.
    ///
    /// # Errors
    /// The first failure of a write under the lock; `NodeLost` when the home of the lock died.
    #[inline]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.held = false;
        let (address, bytes, mode) = (self.address, self.bytes, self.mode);
        self.session.unlock_mode(address, bytes, mode)
    }

    /// Keeps the lock after the guard is gone, until [`Session::unlock`]; its token.
    pub fn keep(mut self) -> u64 {
        self.held = false;
        self.token
    }

    /// Turns a read lock into a write lock without letting go between; waits for other readers.
    ///
    /// # Errors
    /// `UpgradeConflict` when another reader waits for its upgrade already (the read lock stays held:
    /// let it go and lock anew), `Deadlock`.
    pub fn upgrade(&mut self) -> Result<(), Error> {
        if self.mode == Mode::Write {
            return Ok(());
        }
        let ask = Ask::Upgrade { patience: Patience::Wait };
        let (core, parker, waker) = self.session.waiting();
        let all = self.session.ask_async(self.address, self.bytes, ask);
        self.token = core.block_on(&parker, &waker, all)?;
        self.mode = Mode::Write;
        Ok(())
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.held {
            let (address, bytes, mode) = (self.address, self.bytes, self.mode);
            // Whoever wants to know calls `unlock`; a failed write is told by the next fence as well.
            if let Err(error) = self.session.unlock_mode(address, bytes, mode) {
                self.session.remember(error);
            }
        }
    }
}

impl Deref for LockGuard<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session
    }
}

impl DerefMut for LockGuard<'_> {
    fn deref_mut(&mut self) -> &mut Session {
        self.session
    }
}

macro_rules! lock_calls {
    ($(
        $(#[$doc:meta])*
        fn $name:ident, $twin:ident => $mode:ident, $patience:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// *Guarantees*: advisory: excludes conflicting locks of overlapping bytes on every node, not
        /// plain accesses. Orders like a [`fence`](Self::fence), and what the last holder wrote is seen.
        /// First come, first served, readers in batches of bounded length. Several lines are locked in
        /// the order of addresses. *Cost*: no message while this node alone uses the locks of the line,
        /// and one compare-and-swap where it was used lately and nobody wants it; else one round trip to
        /// the home. *Source*: 004 §4.1.
        ///
        /// # Errors
        /// `Deadlock` (let go of what you hold and start over; the youngest of a cycle fails), `Busy` of
        /// the `try` forms, `ZeroSize`, `Unallocated`, `OutOfBounds`, `TooManyLocks`, `NodeLost`, and the
        /// first failure of an earlier write.
        #[inline]
        pub fn $name(&mut self, address: GlobalAddress, bytes: u64) -> Result<LockGuard<'_>, Error> {
            let token = match self.lock_hit_at(address, bytes, Mode::$mode) {
                Some(token) => token,
                None => {
                    let ask = Ask::Lock { mode: Mode::$mode, patience: Patience::$patience };
                    self.ask(address, bytes, ask)?
                }
            };
            Ok(self.guard(address, bytes, Mode::$mode, token))
        }

        #[doc = concat!("The awaitable twin of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        #[doc = concat!("As `", stringify!($name), "`.")]
        pub async fn $twin(&mut self, address: GlobalAddress, bytes: u64) -> Result<LockGuard<'_>, Error> {
            let ask = Ask::Lock { mode: Mode::$mode, patience: Patience::$patience };
            let token = self.ask_async(address, bytes, ask).await?;
            Ok(self.guard(address, bytes, Mode::$mode, token))
        }
    )*};
}

impl Session {
    lock_calls! {
        /// Locks bytes for reading: others may hold them for reading too.
        fn lock_read, lock_read_async => Read, Wait;

        /// Locks bytes for writing: nobody else holds them.
        fn lock_write, lock_write_async => Write, Wait;

        /// Locks bytes for reading, or fails with `Busy` within one round trip.
        fn try_lock_read, try_lock_read_async => Read, Try;

        /// Locks bytes for writing, or fails with `Busy` within one round trip.
        fn try_lock_write, try_lock_write_async => Write, Try;
    }

    #[inline]
    fn guard(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
        token: u64,
    ) -> LockGuard<'_> {
        LockGuard { session: self, address, bytes, mode, token, held: true }
    }

    /// What is asked in one line goes ahead without a fence when nothing of the session is under way.
    #[inline(always)]
    fn settled_piece(&self, address: GlobalAddress, bytes: u64) -> Option<Piece> {
        if self.is_settled() { Piece::single(address, bytes) } else { None }
    }

    #[inline(always)]
    fn lock_hit_at(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> Option<u64> {
        self.lock_hit(self.settled_piece(address, bytes)?, mode)
    }

    #[inline(always)]
    fn unlock_hit_at(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> bool {
        let piece = self.settled_piece(address, bytes);
        piece.is_some_and(|piece| self.unlock_hit(piece, mode))
    }

    /// Locks on loan, if that can be. The session is settled.
    #[inline(always)]
    fn lock_hit(&mut self, piece: Piece, mode: Mode) -> Option<u64> {
        let counts = &self.slots.locks;
        if counts.all() >= self.core.limits.locks_per_session_max.into() {
            return None;
        }
        order();
        let held = Held { place: self.slots.index, range: piece.range(), mode };
        let lines = self.lines();
        let token = self.lock_cells.lock(piece.address.line(), held, || lines.is_trusted())?;
        counts.locked();
        Some(token)
    }

    /// Unlocks what was locked on loan, if it still is. The session is settled.
    #[inline(always)]
    fn unlock_hit(&mut self, piece: Piece, mode: Mode) -> bool {
        order();
        if !self.lines().is_trusted() {
            return false;
        }
        let held = Held { place: self.slots.index, range: piece.range(), mode };
        let unlocked = self.lock_cells.unlock(piece.address.line(), held);
        if unlocked {
            self.slots.locks.unlocked();
        }
        unlocked
    }

    #[cold]
    fn ask(&mut self, address: GlobalAddress, bytes: u64, ask: Ask) -> Result<u64, Error> {
        if let Some(piece) = self.settled_piece(address, bytes) {
            return self.lock_blocking(piece, Action::Ask(ask));
        }
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.ask_async(address, bytes, ask))
    }

    /// One line's lock; without any waiting where this node is the authority and nobody is in the way.
    fn lock_blocking(&mut self, piece: Piece, action: Action) -> Result<u64, Error> {
        if !self.lines().is_trusted() {
            self.fence()?;
        }
        match self.lock_miss(piece, action) {
            Begun::Ended(Ok(token)) => Ok(token),
            Begun::Ended(Err(code)) => Err(Error::at(code, piece.address)),
            Begun::Waits(slot) => {
                let (core, parker, waker) = self.waiting();
                core.block_on(&parker, &waker, self.await_call(slot, piece))
            }
        }
    }

    /// Locks or unlocks on loan, or else begins to by the engine.
    fn begin_lock(&mut self, piece: Piece, action: Action) -> Begun {
        let hit = match action {
            Action::Ask(Ask::Lock { mode, .. }) => self.lock_hit(piece, mode),
            Action::Unlock(mode) => self.unlock_hit(piece, mode).then_some(0),
            Action::Ask(Ask::Upgrade { .. }) => None,
        };
        match hit {
            Some(token) => Begun::Ended(Ok(token)),
            None => self.lock_miss(piece, action),
        }
    }

    /// Gives the engine something to do with a line's lock.
    fn lock_miss(&mut self, piece: Piece, action: Action) -> Begun {
        let request = Request { line: piece.address.line(), range: piece.range(), action };
        let Some(slot) = self.free_call_slot() else {
            return Begun::Ended(Err(ErrorCode::Busy));
        };
        order();
        let operation = self.slots.operation(slot);
        self.core.with_engine(|engine| match engine.start_lock(operation, &self.slots, request) {
            Some(outcome) => Begun::Ended(outcome),
            None => {
                // Before anybody else can have the engine, and with it end the operation.
                self.fill(slot, Kind::Lock(request), piece, &[]);
                self.slots.slots[slot].submit();
                Begun::Waits(slot)
            }
        })
    }

    /// Asks for all lines of a range; on failure none is kept. The token of the last.
    async fn ask_async(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        ask: Ask,
    ) -> Result<u64, Error> {
        let bytes = self.lock_bytes(address, bytes)?;
        self.fence_async().await?;
        let mut token = 0;
        let mut done = 0;
        for piece in pieces(address, bytes) {
            let piece = piece?;
            match self.lock_call(piece, Action::Ask(ask)).await {
                Ok(value) => token = value,
                Err(error) => {
                    self.undo(address, done, ask).await;
                    return Err(error);
                }
            }
            done = piece.at + piece.bytes;
        }
        Ok(token)
    }

    /// Lets go of the lines of a range that were had before one could not be had. An upgrade that
    /// failed half way keeps what it has: the guard still stands for the range as a whole.
    async fn undo(&mut self, address: GlobalAddress, bytes: usize, ask: Ask) {
        if matches!(ask, Ask::Upgrade { .. }) {
            return;
        }
        for piece in pieces(address, bytes).flatten() {
            // What fails here is a home that died: its locks are gone with it.
            let _ = self.lock_call(piece, Action::Unlock(ask.mode())).await;
        }
    }

    fn lock_bytes(&self, address: GlobalAddress, bytes: u64) -> Result<usize, Error> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::at(ErrorCode::TooLarge, address))?;
        self.check_size(address, bytes)?;
        Ok(bytes)
    }

    async fn lock_call(&mut self, piece: Piece, action: Action) -> Result<u64, Error> {
        match self.begin_lock(piece, action) {
            Begun::Ended(Ok(token)) => Ok(token),
            Begun::Ended(Err(code)) => Err(failure(code, piece.address, piece.continues())),
            Begun::Waits(slot) => self.await_call(slot, piece).await,
        }
    }

    #[inline]
    fn unlock_mode(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> Result<(), Error> {
        if self.unlock_hit_at(address, bytes, mode) {
            return Ok(());
        }
        self.unlock_miss(address, bytes, mode)
    }

    #[cold]
    fn unlock_miss(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> Result<(), Error> {
        if let Some(piece) = self.settled_piece(address, bytes) {
            return self.lock_blocking(piece, Action::Unlock(mode)).map(drop);
        }
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.unlock_mode_async(address, bytes, mode))
    }

    async fn unlock_mode_async(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
    ) -> Result<(), Error> {
        let bytes = self.lock_bytes(address, bytes)?;
        let mut first = self.fence_async().await;
        for piece in pieces(address, bytes) {
            let unlocked = self.lock_call(piece?, Action::Unlock(mode)).await.map(drop);
            first = first.and(unlocked);
        }
        first
    }

    /// Lets go of a lock that a guard [kept](LockGuard::keep): exactly the range that was locked.
    ///
    /// *Guarantees*: waits for this session's earlier writes first, so that the next holder sees them.
    ///
    /// # Errors
    /// `NotLocked` when this session does not hold exactly that; else as [`LockGuard::unlock`].
    pub fn unlock(&mut self, address: GlobalAddress, bytes: u64) -> Result<(), Error> {
        if self.unlock_hit_at(address, bytes, Mode::Write)
            || self.unlock_hit_at(address, bytes, Mode::Read)
        {
            return Ok(());
        }
        match self.unlock_miss(address, bytes, Mode::Write) {
            Err(error) if error.code == ErrorCode::NotLocked => {
                self.unlock_miss(address, bytes, Mode::Read)
            }
            other => other,
        }
    }

    /// The awaitable twin of [`unlock`](Self::unlock).
    ///
    /// # Errors
    /// As `unlock`.
    pub async fn unlock_async(&mut self, address: GlobalAddress, bytes: u64) -> Result<(), Error> {
        if self.unlock_hit_at(address, bytes, Mode::Write)
            || self.unlock_hit_at(address, bytes, Mode::Read)
        {
            return Ok(());
        }
        match self.unlock_mode_async(address, bytes, Mode::Write).await {
            Err(error) if error.code == ErrorCode::NotLocked => {
                self.unlock_mode_async(address, bytes, Mode::Read).await
            }
            other => other,
        }
    }
}
