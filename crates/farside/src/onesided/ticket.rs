//! Locks in remote memory that are taken in the order of tickets.
//!
//! ```text
//! tickets taken | 56 B unused | ticket served (TicketWord) | 56 B unused | slots of a queue lock, 64 B each
//! ```
//! A client takes a ticket by FETCH_ADD and reads which is served by the same doorbell. The word of the ticket that is
//! served decides alone who holds the lock. Slots are hints: a waiting client polls that of its ticket, which the
//! holder before it touches, and marks it when it leaves.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use super::guard::{HeldWord, LeasedWord, Pauses, RemoteGuard};
use crate::runtime::Instant;
use crate::{Error, ErrorCode};
use farside_protocol::remote_lock::{SlotWord, TicketStep, TicketWait, TicketWord};
use std::time::Duration;

/// Each word that clients poll or add to has a line of its own.
const LINE: u64 = 64;
/// Polls of the client whose turn is next before it naps.
const YIELDS: u32 = 64;
/// Polls of a slot before the word of the lock is read: it may be the client of this slot that has to repair it.
const SLOT_POLLS: u32 = 8;

/// An exclusive lock in remote memory that is taken in the order of requests (a ticket lock: Mellor-Crummey and Scott,
/// *Algorithms for Scalable Synchronization on Shared-Memory Multiprocessors*, 1991; paper 000, section III-E).
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, TicketLock};
/// # let (name, second) = (format!("tickets-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, TicketLock::FOOTPRINT, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let lock = TicketLock::new(memory.at(0), second)?; // the lease
/// let first = lock.lock(&mut client, second)?;
/// let token = first.token();
/// assert!(lock.try_lock(&mut client, second).is_err());
/// first.unlock(&mut client, second)?;
/// let second_guard = lock.lock(&mut client, second)?;
/// assert!(second_guard.token() > token);
/// second_guard.unlock(&mut client, second)?;
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: those of [`RemoteLock`](super::RemoteLock), and it is granted in the order in which the tickets were
/// taken. *Repair*: a ticket that is served and whose client does nothing for a lease and an eighth is skipped by any
/// waiting client, whether that one held the lock or only waited for it. So each dead client costs the others that time
/// once. A living client that was skipped takes another ticket. *Cost*: one round trip for a free lock, one to unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TicketLock {
    tickets: RemoteAddress,
    served: LeasedWord,
    slots: u32,
    naps: bool,
}

impl TicketLock {
    /// Bytes of remote memory that it needs.
    pub const FOOTPRINT: u64 = 2 * LINE;

    /// Names the lock: [`FOOTPRINT`](Self::FOOTPRINT) bytes from an aligned address on, zero at first. All clients give it
    /// the same lease.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for a lease under 1 ms or over a day.
    pub fn new(at: RemoteAddress, lease: Duration) -> Result<Self, Error> {
        Self::with_slots(at, 0, lease)
    }

    fn with_slots(at: RemoteAddress, slots: u32, lease: Duration) -> Result<Self, Error> {
        let served = LeasedWord::new(at, (LINE, QueueLock::footprint(slots)), lease)?;
        Ok(Self { tickets: at, served, slots, naps: true })
    }

    /// Returns the same lock, for which this client waits without back-off: it only yields its processor between polls.
    #[must_use]
    pub const fn without_backoff(self) -> Self {
        Self { naps: false, ..self }
    }

    /// Takes a ticket, and waits until it is served.
    ///
    /// *Blocks*: polls; naps between polls, longer and longer up to 0.5 ms, at once if several clients are before it, else
    /// after a while.
    ///
    /// # Errors
    /// `TimedOut`: the others skip the ticket, after a lease (a [`QueueLock`] without). `TooLarge` if the tickets are used
    /// up. As [`MemoryClient::wait`], never `Indeterminate`: of a lost FETCH_ADD no client knows the ticket, which is skipped
    /// after a lease if it was taken.
    pub fn lock(&self, client: &mut MemoryClient, timeout: Duration) -> Result<RemoteGuard, Error> {
        let by = Deadline::after(timeout);
        loop {
            let began = Instant::now();
            let taken = client.fetch_add(self.tickets, 1)?;
            let read = client.read_word(self.served.at)?;
            let ticket = match by.wait(client, taken) {
                Ok(ticket) if ticket < TicketWord::TICKETS_MAX - 1 => ticket,
                outcome => {
                    client.forget(read);
                    match outcome {
                        Err(error) if error.code != ErrorCode::Indeterminate => return Err(error),
                        Err(_) if by.is_over() => return Err(ErrorCode::TimedOut.into()),
                        Err(_) => continue,
                        Ok(_) => return Err(Self::used_up()),
                    }
                }
            };
            let (first, mut slot) = (by.wait(client, read).map(TicketWord), None);
            match first.and_then(|word| self.wait(client, (ticket, began), (word, &mut slot), &by))
            {
                Ok(Some(guard)) => return Ok(guard),
                Ok(None) => {} // it was skipped
                Err(error) => {
                    self.leave(client, ticket, slot);
                    return Err(error);
                }
            }
        }
    }

    fn used_up() -> Error {
        Error::with(ErrorCode::TooLarge, "the tickets of the lock are used up")
    }

    /// Takes the lock if it is free and no client waits for it.
    ///
    /// *Cost*: two round trips. It skips no dead client: [`lock`](Self::lock) does.
    ///
    /// # Errors
    /// As `lock`; `Busy` if another client has the lock or waits for it, or if the answer was lost.
    pub fn try_lock(
        &self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<RemoteGuard, Error> {
        let by = Deadline::after(timeout);
        let mut word = TicketWord(self.served.read(client, &by)?);
        while let Some(next) = self.skip_left(client, word, &by)? {
            word = next;
        }
        let (ticket, until) = (word.ticket(), Instant::now() + self.served.lease);
        if ticket >= TicketWord::TICKETS_MAX - 1 {
            return Err(Self::used_up());
        }
        let taken = client.compare_swap(self.tickets, ticket, ticket + 1)?;
        match by.wait(client, taken) {
            Ok(was) if was == ticket => Ok(self.guard(word, until)),
            Err(error) if error.code != ErrorCode::Indeterminate => Err(error),
            _ => Err(ErrorCode::Busy.into()),
        }
    }

    /// Waits until a ticket, requested at `began`, is served; `None` if it is skipped. `slot` is what its slot was.
    fn wait(
        &self,
        client: &mut MemoryClient,
        (ticket, began): (u64, Instant),
        (mut word, slot): (TicketWord, &mut Option<u64>),
        by: &Deadline,
    ) -> Result<Option<RemoteGuard>, Error> {
        let now_ns = || began.elapsed().as_nanos() as u64;
        let mut wait = TicketWait::new(ticket, 0, self.served.lease.as_nanos() as u64);
        let pauses_at = |word: TicketWord| {
            let is_next = word.ticket() + 1 == ticket;
            Pauses::new(self.naps, if is_next { YIELDS } else { 0 })
        };
        let (mut read_ns, mut pauses) = (0, pauses_at(word));
        loop {
            let before = word;
            match wait.step(word, read_ns, now_ns()) {
                TicketStep::Served { since_ns } => {
                    let until = began + Duration::from_nanos(since_ns) + self.served.lease;
                    return self.hold(client, self.guard(word, until), by);
                }
                TicketStep::Overtaken => return Ok(None),
                TicketStep::Skip(skipped) => {
                    self.served.replace(client, (word.0, skipped.0), None, by)?;
                }
                TicketStep::Wait(_) if self.skip_left(client, word, by)?.is_some() => {}
                TicketStep::Wait(_) if by.is_over() => return Err(ErrorCode::TimedOut.into()),
                TicketStep::Wait(_) => self.pause(client, (ticket, slot), &mut pauses, by)?,
            }
            read_ns = now_ns();
            word = TicketWord(self.served.read(client, by)?);
            if word != before {
                pauses = pauses_at(word);
            }
        }
    }

    /// Pauses before the next READ of the word; with slots, until that of the ticket has changed or it was polled a few
    /// times.
    fn pause(
        &self,
        client: &mut MemoryClient,
        (ticket, slot): (u64, &mut Option<u64>),
        pauses: &mut Pauses,
        by: &Deadline,
    ) -> Result<(), Error> {
        let Some(at) = self.slot(ticket) else {
            pauses.pause(by);
            return Ok(());
        };
        for _ in 0..SLOT_POLLS {
            let now = by.read_word(client, at)?;
            if slot.replace(now) != Some(now) || by.is_over() {
                break;
            }
            pauses.pause(by);
        }
        Ok(())
    }

    /// Returns the lock, with a new lease if half of it has passed before the client knew; `None` if the ticket was
    /// skipped.
    fn hold(
        &self,
        client: &mut MemoryClient,
        mut guard: RemoteGuard,
        by: &Deadline,
    ) -> Result<Option<RemoteGuard>, Error> {
        if guard.left() >= self.served.lease / 2 {
            return Ok(Some(guard));
        }
        match guard.renew(client, by.left()) {
            Ok(()) => Ok(Some(guard)),
            Err(error) if error.code == ErrorCode::NotLocked => Ok(None),
            Err(error) => Err(error),
        }
    }

    const fn guard(&self, word: TicketWord, until: Instant) -> RemoteGuard {
        let held = HeldWord::Ticket(word, self.slot(word.ticket() + 1));
        RemoteGuard { word: self.served, held, was_abandoned: word.is_abandoned(), until }
    }

    const fn slot(&self, ticket: u64) -> Option<RemoteAddress> {
        match self.slots {
            0 => None,
            slots => {
                let before = Self::FOOTPRINT + ticket % slots as u64 * LINE;
                Some(self.tickets.plus(before))
            }
        }
    }

    /// Skips the ticket that is served if its client has left, and returns the word after it.
    fn skip_left(
        &self,
        client: &mut MemoryClient,
        word: TicketWord,
        by: &Deadline,
    ) -> Result<Option<TicketWord>, Error> {
        let Some(slot) = self.slot(word.ticket()) else { return Ok(None) };
        if !SlotWord(by.read_word(client, slot)?).has_left(word.ticket()) {
            return Ok(None);
        }
        let skipped = self.served.replace(client, (word.0, word.left().0), None, by)?;
        Ok(skipped.then_some(word.left()))
    }

    /// Marks the slot of a ticket, which was read before: the others skip it then. Does not wait: if it fails, they skip
    /// it after a lease. No ticket is given back: the READ that is posted with the FETCH_ADD of the next one would not
    /// show whether it was skipped meanwhile.
    fn leave(&self, client: &mut MemoryClient, ticket: u64, slot: Option<u64>) {
        let (Some(at), Some(was)) = (self.slot(ticket), slot) else { return };
        if let Ok(left) = client.compare_swap(at, was, SlotWord(was).left_by(ticket).0) {
            client.forget(left);
            client.submit();
        }
    }
}

/// A [`TicketLock`] whose waiting clients have slots.
///
/// It takes the place of an MCS lock: first come, first served, and a client polls a line that no other client of the
/// queue polls. It is the array form of such a queue (Anderson, *The Performance of Spin Alternatives for Shared-Memory
/// Multiprocessors*, 1990). A list of nodes, as in an MCS lock, is torn where a client dies between its two requests, and
/// cannot be repaired without its help; here the word of the ticket that is served decides alone, and slots are hints.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, QueueLock};
/// # let (name, second) = (format!("queue-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, QueueLock::footprint(16), &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let lock = QueueLock::new(memory.at(0), 16, second)?; // slots, and the lease
/// let guard = lock.lock(&mut client, second)?;
/// guard.unlock(&mut client, second)?;
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*, *Repair*, *Cost*: those of `TicketLock`; unlocking touches the next slot by the same doorbell. A client
/// that leaves after `TimedOut` costs the others two round trips and no lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct QueueLock(TicketLock);

impl QueueLock {
    /// Returns the bytes of remote memory that it needs.
    pub const fn footprint(slots: u32) -> u64 {
        TicketLock::FOOTPRINT + slots as u64 * LINE
    }

    /// Names the lock: [`footprint`](Self::footprint) bytes from an aligned address on, zero at first. All clients give it
    /// the same slots and lease. If more clients wait than there are slots, some of them share one, which costs time.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for no slots, a lease under 1 ms or over a day.
    pub fn new(at: RemoteAddress, slots: u32, lease: Duration) -> Result<Self, Error> {
        if slots == 0 {
            let text = "a queue lock without slots: 1 or more";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        TicketLock::with_slots(at, slots, lease).map(Self)
    }

    /// As [`TicketLock::without_backoff`].
    #[must_use]
    pub const fn without_backoff(self) -> Self {
        Self(self.0.without_backoff())
    }

    /// As [`TicketLock::lock`], but a client that leaves after `TimedOut` marks its slot, and is skipped at once.
    ///
    /// # Errors
    /// As there.
    pub fn lock(&self, client: &mut MemoryClient, timeout: Duration) -> Result<RemoteGuard, Error> {
        self.0.lock(client, timeout)
    }

    /// As [`TicketLock::try_lock`]. *Cost*: three round trips.
    ///
    /// # Errors
    /// As there.
    pub fn try_lock(
        &self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<RemoteGuard, Error> {
        self.0.try_lock(client, timeout)
    }
}
