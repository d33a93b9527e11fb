//! Locks of byte ranges: the calls of a session.
//!
//! An uncontended lock is granted on loan ([`lock_hit`](crate::lock_hit)), without the engine. Everything
//! else is a request to the machine, before which the loan of its line ends.

use crate::engine::Grant;
use crate::event_wait::EventWait;
use crate::lock_hit::{LentLock, order};
use crate::operation::{NO_SLOT, OperationKind};
use crate::session::{Deadline, LinePiece, Session, failure, pieces};
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::waiting::{LOCK_BARGE_MAX, SPIN_MEMORY_POLLS};
use farside_protocol::lock::{Action, Ask, LockRequest, Mode, Patience};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// A lock operation that was started.
enum Begun {
    Ended(Result<Grant, ErrorCode>),
    /// It waits in this slot.
    Waits(usize),
}

const UPGRADE: Ask = Ask::Upgrade { patience: Patience::Wait };

/// A held lock. Derefs to the session meanwhile; dropping it unlocks, after waiting without a bound for the
/// session's writes in flight, like a [`fence`](Session::fence). A guard that is forgotten leaves the lock
/// held, as [`keep`](Self::keep) does.
#[derive(Debug)]
pub struct LockGuard<'a> {
    session: &'a mut Session,
    address: GlobalAddress,
    bytes: u64,
    mode: Mode,
    grant: Grant,
    held: bool,
}

impl LockGuard<'_> {
    /// The fencing token of the lock, of its last line if it has several: later holders of the *same* range have
    /// larger ones; those of another range that overlaps it may have smaller ones.
    pub fn token(&self) -> u64 {
        self.grant.token
    }

    /// Whether a node died while one of its sessions held some of these bytes for writing, and this is the
    /// first lock for writing since. The protected data may be half changed. As with robust mutexes of
    /// POSIX, except that the lock itself needs no repair.
    ///
    /// *Guarantees*: every holder sees it until a holder for writing has seen it; also by an
    /// [`upgrade`](Self::upgrade). Also true if it cannot be known: when a node dies that alone has used
    /// the locks of a line lately, the record of its locks died with it.
    pub fn was_abandoned(&self) -> bool {
        self.grant.abandoned
    }

    /// Unlocks and reports failures, which dropping cannot.
    ///
    /// # Errors
    /// The first failure of a write under the lock; `NodeLost` if the home of the lock died. `TimedOut` if
    /// the writes under the lock are not visible in time: the lock is then still held, as if
    /// [kept](Self::keep).
    #[inline]
    pub fn unlock(mut self) -> Result<(), Error> {
        self.held = false;
        let (address, bytes, mode) = (self.address, self.bytes, self.mode);
        let deadline = self.session.next_deadline();
        self.session.unlock_mode(address, bytes, mode, deadline)
    }

    /// The awaitable twin of [`unlock`](Self::unlock). Dropping its future unlocks as dropping the guard
    /// does, which blocks the thread.
    ///
    /// # Errors
    /// As `unlock`.
    pub async fn unlock_async(mut self) -> Result<(), Error> {
        let (address, bytes, mode) = (self.address, self.bytes, self.mode);
        let deadline = self.session.next_deadline();
        let unlocked = self.session.unlock_mode_async(address, bytes, mode, deadline).await;
        self.held = false;
        unlocked
    }

    /// Keeps the lock after the guard is gone, until [`Session::unlock`]; returns its token.
    pub fn keep(mut self) -> u64 {
        self.held = false;
        self.grant.token
    }

    /// Upgrades a read lock to a write lock without releasing it in between; waits for other readers.
    ///
    /// # Errors
    /// `UpgradeConflict` if another reader waits for its upgrade already (the read lock stays held: release
    /// it and lock again), `Deadlock`, `TimedOut`: each leaves the read lock held.
    pub fn upgrade(&mut self) -> Result<(), Error> {
        if self.mode == Mode::Read {
            let grant = self.session.ask(self.address, self.bytes, UPGRADE)?;
            self.upgraded(grant);
        }
        Ok(())
    }

    /// The awaitable twin of [`upgrade`](Self::upgrade).
    ///
    /// # Errors
    /// As `upgrade`.
    pub async fn upgrade_async(&mut self) -> Result<(), Error> {
        if self.mode == Mode::Read {
            let grant = self.session.ask_async(self.address, self.bytes, UPGRADE).await?;
            self.upgraded(grant);
        }
        Ok(())
    }

    fn upgraded(&mut self, grant: Grant) {
        self.mode = Mode::Write;
        self.grant.token = grant.token;
        self.grant.abandoned |= grant.abandoned;
    }
}

impl Drop for LockGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        if self.held {
            let (address, bytes, mode) = (self.address, self.bytes, self.mode);
            // Call `unlock` to learn of errors; the next fence reports a failed write too.
            let never = Deadline::Never;
            if let Err(error) = self.session.unlock_mode(address, bytes, mode, never) {
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
        fn $name:ident, $twin:ident($($timeout:ident)?) => $mode:ident, $patience:ident;
    )*) => {$(
        $(#[$doc])*
        ///
        /// *Guarantees*: advisory: excludes conflicting locks of overlapping bytes on every node, not plain
        /// accesses. Orders like a [`fence`](Self::fence), and the writes of the last holder are visible.
        /// First come, first served, with nodes and readers in batches of bounded length; sessions of this node
        /// may overtake each other for at most 1 ms. Several lines are locked in address order. *Cost*: no
        /// message while only this node uses the locks of the line, and one compare-and-swap if it was used
        /// lately and is uncontended; otherwise one round trip to the home.
        /// *Source*: 004 §4.1.
        ///
        /// # Errors
        /// `Deadlock` (release what you hold and start over; the youngest of a cycle fails), `Busy` from
        /// the `try` forms, `ZeroSize`, `Unallocated`, `OutOfBounds`, `TooManyLocks`, `NodeLost`,
        /// `TimedOut`, and the first failure of an earlier write.
        #[inline]
        pub fn $name(
            &mut self,
            address: GlobalAddress,
            bytes: u64,
            $($timeout: Duration,)?
        ) -> Result<LockGuard<'_>, Error> {
            let grant = match self.lock_hit_at(address, bytes, Mode::$mode) {
                Some(token) => Grant { token, abandoned: false },
                None => {
                    $(self.deadline = Some(Deadline::After($timeout));)?
                    let ask = Ask::Lock { mode: Mode::$mode, patience: Patience::$patience };
                    self.ask(address, bytes, ask)?
                }
            };
            Ok(self.guard(address, bytes, Mode::$mode, grant))
        }

        #[doc = concat!("The awaitable twin of [`", stringify!($name), "`](Self::", stringify!($name), ").")]
        ///
        /// # Errors
        #[doc = concat!("As `", stringify!($name), "`.")]
        pub async fn $twin(
            &mut self,
            address: GlobalAddress,
            bytes: u64,
            $($timeout: Duration,)?
        ) -> Result<LockGuard<'_>, Error> {
            $(self.deadline = Some(Deadline::After($timeout));)?
            let ask = Ask::Lock { mode: Mode::$mode, patience: Patience::$patience };
            let grant = self.ask_async(address, bytes, ask).await?;
            Ok(self.guard(address, bytes, Mode::$mode, grant))
        }
    )*};
}

impl Session {
    lock_calls! {
        /// Locks bytes for reading: other sessions may hold them for reading too.
        fn lock_read, lock_read_async() => Read, Wait;

        /// Locks bytes for writing: no other session holds them.
        fn lock_write, lock_write_async() => Write, Wait;

        /// Locks bytes for reading, or fails with `Busy` within one round trip.
        fn try_lock_read, try_lock_read_async() => Read, Try;

        /// Locks bytes for writing, or fails with `Busy` within one round trip.
        fn try_lock_write, try_lock_write_async() => Write, Try;

        /// As [`lock_read`](Self::lock_read), with a timeout, at which the request is withdrawn and its position
        /// in the queue is lost. If the lock is granted nevertheless, it is unlocked. The error `TimedOut` names
        /// the node of a conflicting holder, as far as it is known here, else the node that decides about the
        /// lock.
        fn try_lock_read_for, try_lock_read_for_async(timeout) => Read, Wait;

        /// As [`lock_write`](Self::lock_write), with a timeout as of
        /// [`try_lock_read_for`](Self::try_lock_read_for).
        fn try_lock_write_for, try_lock_write_for_async(timeout) => Write, Wait;
    }

    #[inline]
    fn guard(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
        grant: Grant,
    ) -> LockGuard<'_> {
        self.deadline = None; // the call's deadline does not apply to the guard
        LockGuard { session: self, address, bytes, mode, grant, held: true }
    }

    /// A range in one line needs no fence before a lock if the session has nothing in flight.
    #[inline(always)]
    fn settled_piece(&self, address: GlobalAddress, bytes: u64) -> Option<LinePiece> {
        if self.is_settled() { LinePiece::single(address, bytes) } else { None }
    }

    /// It needs none before an unlock if also all that this node has written is durable.
    #[inline(always)]
    fn durable_piece(&self, address: GlobalAddress, bytes: u64) -> Option<LinePiece> {
        if self.is_durable() { self.settled_piece(address, bytes) } else { None }
    }

    #[inline(always)]
    fn lock_hit_at(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> Option<u64> {
        self.lock_hit(self.settled_piece(address, bytes)?, mode)
    }

    #[inline(always)]
    fn unlock_hit_at(&mut self, address: GlobalAddress, bytes: u64, mode: Mode) -> bool {
        let piece = self.durable_piece(address, bytes);
        piece.is_some_and(|piece| self.unlock_hit(piece, mode))
    }

    /// Locks on loan, if possible. The session has nothing in flight.
    #[inline(always)]
    fn lock_hit(&mut self, piece: LinePiece, mode: Mode) -> Option<u64> {
        let counts = &self.slots.locks;
        if counts.all() >= self.core.limits.locks_per_session_max.into() {
            return None;
        }
        order();
        let held = LentLock { place: self.slots.index, range: piece.range(), mode };
        let lines = self.lines();
        let token = self.lock_cells.lock(piece.address.line(), held, || lines.is_trusted())?;
        counts.locked();
        Some(token)
    }

    /// Unlocks what was locked on loan, if it still is. The session has nothing in flight.
    #[inline(always)]
    fn unlock_hit(&mut self, piece: LinePiece, mode: Mode) -> bool {
        order();
        if !self.lines().is_trusted() {
            return false;
        }
        let held = LentLock { place: self.slots.index, range: piece.range(), mode };
        let unlocked = self.lock_cells.unlock(piece.address.line(), held);
        if unlocked {
            self.slots.locks.unlocked();
        }
        unlocked
    }

    #[cold]
    fn ask(&mut self, address: GlobalAddress, bytes: u64, ask: Ask) -> Result<Grant, Error> {
        if !self.lines().is_trusted() {
            // One call: the fence must not use up the deadline.
            let deadline = self.next_deadline();
            self.deadline = Some(deadline);
            self.fence()?;
            self.deadline = Some(self.last_deadline());
        }
        let Some(piece) = self.settled_piece(address, bytes) else {
            return self.blocking().run(self.ask_async(address, bytes, ask));
        };
        if let Ask::Lock { mode, patience: Patience::Wait } = ask
            && let Some(token) = self.lock_contended(piece, mode)
        {
            return Ok(Grant { token, abandoned: false });
        }
        let mut call = self.enter();
        // Without waiting if this node decides and no holder conflicts.
        let token = match call.free_call_slot().map(|slot| call.lock_miss(slot, piece, ask)) {
            Some(Begun::Ended(outcome)) => call.note_grant(outcome, piece),
            Some(Begun::Waits(slot)) => call.blocking().run(call.call_ended(slot, piece)),
            None => call.blocking().run(call.lock_line(piece, ask)),
        };
        let abandoned = call.in_flight.abandoned;
        match token {
            Err(error) if awaits_home(&error, ask) => {
                drop(call);
                self.deadline = Some(self.last_deadline());
                self.blocking().run(self.ask_async(address, bytes, ask))
            }
            token => token.map(|token| Grant { token, abandoned }),
        }
    }

    /// Waits within the spin budget while other sessions of this node lock the piece on loan; returns the token
    /// once this session has locked it so.
    fn lock_contended(&mut self, piece: LinePiece, mode: Mode) -> Option<u64> {
        let (line, place) = (piece.address.line(), self.slots.index);
        let wanted = LentLock { place, range: piece.range(), mode };
        if self.core.spin.is_zero() || !self.lock_cells.is_contended(line, wanted) {
            return None;
        }
        let mut deadline = self.next_deadline();
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let timeout = deadline.resolve().map_or(LOCK_BARGE_MAX, left).min(LOCK_BARGE_MAX);
        self.deadline = Some(deadline);
        let mut wait = EventWait::new(timeout, SPIN_MEMORY_POLLS);
        let mut spins = true;
        while spins && self.lock_cells.is_contended(line, wanted) {
            spins = wait.spin() == Ok(None);
            if let Some(token) = self.lock_hit(piece, mode) {
                return Some(token);
            }
        }
        None
    }

    /// Locks in one line, on loan or by the engine; returns the token.
    async fn lock_line(&mut self, piece: LinePiece, ask: Ask) -> Result<u64, Error> {
        if let Ask::Lock { mode, .. } = ask
            && let Some(token) = self.lock_hit(piece, mode)
        {
            return Ok(token);
        }
        let slot = self.call_slot().await?;
        match self.lock_miss(slot, piece, ask) {
            Begun::Ended(outcome) => self.note_grant(outcome, piece),
            Begun::Waits(slot) => self.call_ended(slot, piece).await,
        }
    }

    fn note_grant(
        &mut self,
        outcome: Result<Grant, ErrorCode>,
        piece: LinePiece,
    ) -> Result<u64, Error> {
        let Grant { token, abandoned } =
            outcome.map_err(|code| failure(code, piece.address, piece.continues()))?;
        self.in_flight.abandoned |= abandoned;
        Ok(token)
    }

    /// Asks the engine for a line's lock. The slot is used only if that waits.
    fn lock_miss(&mut self, slot: usize, piece: LinePiece, ask: Ask) -> Begun {
        let action = Action::Ask(ask);
        let request = LockRequest { line: piece.address.line(), range: piece.range(), action };
        order();
        let operation = self.slots.operation(slot);
        self.core.with_engine(|engine| match engine.start_lock(operation, &self.slots, request) {
            Some(Err(ErrorCode::NotLocked)) if ask == UPGRADE => {
                // An earlier upgrade of the range got this line, and failed at a later one.
                let token = engine.write_token(&self.slots, request);
                let grant = token.map(|token| Grant { token, abandoned: false });
                Begun::Ended(grant.ok_or(ErrorCode::NotLocked))
            }
            Some(outcome) => Begun::Ended(outcome),
            None => {
                // Before another thread can lock the engine, and with it end the operation.
                self.fill(slot, OperationKind::Lock(request), piece, &[]);
                self.slots.slots[slot].submit();
                Begun::Waits(slot)
            }
        })
    }

    /// Unlocks in one line; never waits. A partly successful upgrade of a range has left locks of both
    /// modes: tries the other mode too.
    pub(crate) fn unlock_line(&mut self, piece: LinePiece, mode: Mode) -> Result<(), Error> {
        let other = if mode == Mode::Read { Mode::Write } else { Mode::Read };
        let mut outcome = self.unlock_by(piece, Action::Unlock(mode), mode);
        if outcome == Err(ErrorCode::NotLocked) {
            outcome = self.unlock_by(piece, Action::Unlock(other), other);
        }
        outcome.map_err(|code| failure(code, piece.address, piece.continues()))
    }

    /// Unlocks in one line what a failed call has acquired, of which its caller does not know.
    pub(crate) fn undo_line(&mut self, piece: LinePiece, mode: Mode) -> Result<(), ErrorCode> {
        self.unlock_by(piece, Action::Undo(mode), mode)
    }

    fn unlock_by(&mut self, piece: LinePiece, action: Action, mode: Mode) -> Result<(), ErrorCode> {
        if self.unlock_hit(piece, mode) {
            return Ok(());
        }
        let request = LockRequest { line: piece.address.line(), range: piece.range(), action };
        order();
        let operation = self.slots.operation(NO_SLOT);
        let slots = &self.slots;
        let outcome = self.core.with_engine(|engine| engine.start_lock(operation, slots, request));
        outcome.unwrap_or(Err(ErrorCode::NodeFailed)).map(drop)
    }

    /// Locks all lines of a range, or none on failure; returns the token of the last. An upgrade that fails
    /// half way keeps the upgraded lines, which succeed at once when it is repeated.
    async fn ask_async(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        ask: Ask,
    ) -> Result<Grant, Error> {
        let bytes = self.lock_bytes(address, bytes)?;
        let mut call = self.enter();
        call.writes_ended().await?;
        loop {
            match call.lock_lines(address, bytes, ask).await {
                Err(error) if awaits_home(&error, ask) => call.await_home(address).await?,
                token => {
                    return token.map(|token| Grant { token, abandoned: call.in_flight.abandoned });
                }
            }
        }
    }

    async fn lock_lines(
        &mut self,
        address: GlobalAddress,
        bytes: usize,
        ask: Ask,
    ) -> Result<u64, Error> {
        let mut token = 0;
        for piece in pieces(address, bytes) {
            let piece = piece?;
            token = self.lock_line(piece, ask).await?;
            if let Ask::Lock { mode, .. } = ask {
                self.in_flight.locked = Some((address, piece.at + piece.bytes, mode));
            }
        }
        self.in_flight.locked = None;
        Ok(token)
    }

    fn lock_bytes(&self, address: GlobalAddress, bytes: u64) -> Result<usize, Error> {
        let bytes = usize::try_from(bytes).map_err(|_| Error::at(ErrorCode::TooLarge, address))?;
        self.check_size(address, bytes)?;
        Ok(bytes)
    }

    #[inline]
    fn unlock_mode(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if self.unlock_hit_at(address, bytes, mode) {
            return Ok(());
        }
        self.unlock_miss(address, bytes, mode, deadline)
    }

    #[cold]
    fn unlock_miss(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
        deadline: Deadline,
    ) -> Result<(), Error> {
        if self.lines().is_trusted()
            && let Some(piece) = self.durable_piece(address, bytes)
        {
            return self.unlock_line(piece, mode);
        }
        self.blocking().run(self.unlock_mode_async(address, bytes, mode, deadline))
    }

    async fn unlock_mode_async(
        &mut self,
        address: GlobalAddress,
        bytes: u64,
        mode: Mode,
        deadline: Deadline,
    ) -> Result<(), Error> {
        let bytes = self.lock_bytes(address, bytes)?;
        let mut call = self.enter_until(deadline);
        let mut first = call.writes_ended().await;
        if first.as_ref().is_err_and(|error| error.code == ErrorCode::TimedOut) {
            return first; // still held: the next holder must see the writes
        }
        for piece in pieces(address, bytes) {
            let unlocked = call.unlock_line(piece?, mode);
            first = first.and(unlocked);
        }
        first
    }

    /// Releases a lock that a guard [kept](LockGuard::keep): exactly the range that was locked.
    ///
    /// *Guarantees*: first waits for this session's earlier writes, so that the next holder sees them.
    ///
    /// # Errors
    /// `NotLocked` if this session does not hold exactly that range; otherwise as [`LockGuard::unlock`].
    pub fn unlock(&mut self, address: GlobalAddress, bytes: u64) -> Result<(), Error> {
        if self.unlock_hit_at(address, bytes, Mode::Write)
            || self.unlock_hit_at(address, bytes, Mode::Read)
        {
            return Ok(());
        }
        let deadline = self.next_deadline();
        self.unlock_miss(address, bytes, Mode::Write, deadline)
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
        let deadline = self.next_deadline();
        self.unlock_mode_async(address, bytes, Mode::Write, deadline).await
    }
}

/// Whether a request that has failed is repeated once the home has returned: an upgrade has lost its lock.
fn awaits_home(error: &Error, ask: Ask) -> bool {
    let waits = matches!(ask, Ask::Lock { patience: Patience::Wait, .. });
    waits && error.code == ErrorCode::HomeAway
}
