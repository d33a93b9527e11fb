//! Words of remote memory that name their owner, with a lease; and what holds the lock of one.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use crate::runtime::{Instant, pause};
use crate::{Error, ErrorCode};
use farside_base::waiting::Backoff;
use farside_protocol::remote_lock::{SlotWord, SpinWord, TicketWord};
use std::ops::RangeInclusive;
use std::time::Duration;

/// Possible leases.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);

/// The word of a lock, and how long a holder has it. Clients change it by compare-and-swap alone: remote atomics are
/// atomic to each other on every fabric.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct LeasedWord {
    pub(super) at: RemoteAddress,
    pub(super) lease: Duration,
}

impl LeasedWord {
    /// Names the word, at an offset within a lock of `bytes`.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for the lease.
    pub(super) fn new(
        lock: RemoteAddress,
        (after, bytes): (u64, u64),
        lease: Duration,
    ) -> Result<Self, Error> {
        lock.check_words(bytes, "a lock")?;
        if !LEASES.contains(&lease) {
            let text = format!("a lease of {lease:?}: 1 ms to a day");
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        Ok(Self { at: lock.plus(after), lease })
    }

    pub(super) fn read(&self, client: &mut MemoryClient, by: &Deadline) -> Result<u64, Error> {
        by.read_word(client, self.at)
    }

    /// Replaces the word if it is `before`. A lost compare-and-swap is resolved by reading the word: it names the
    /// client, and no other changes it to `after`. A grant to a slot shares its doorbell.
    pub(super) fn replace(
        &self,
        client: &mut MemoryClient,
        (before, after): (u64, u64),
        grants: Option<RemoteAddress>,
        by: &Deadline,
    ) -> Result<bool, Error> {
        let swapped = client.compare_swap(self.at, before, after)?;
        if let Some(slot) = grants
            && let Ok(grant) = client.fetch_add(slot, SlotWord::GRANT)
        {
            client.forget(grant); // a hint, which may be lost
        }
        match by.wait(client, swapped) {
            Ok(was) => Ok(was == before),
            Err(error) if error.code == ErrorCode::Indeterminate => {
                let now = self.read(client, by)?;
                if now == before {
                    return self.replace(client, (before, after), None, by);
                }
                Ok(now == after)
            }
            Err(error) => Err(error),
        }
    }
}

/// The pauses of a client that polls a word.
#[derive(Debug)]
pub(super) struct Pauses {
    /// Without: it only yields its processor.
    naps: Option<Backoff>,
    /// Polls before the first nap.
    yields: u32,
}

impl Pauses {
    pub(super) const fn new(with_naps: bool, yields: u32) -> Self {
        Self { naps: if with_naps { Some(Backoff::NAPS) } else { None }, yields }
    }

    /// Pauses before the next poll.
    pub(super) fn pause(&mut self, by: &Deadline) {
        match &mut self.naps {
            Some(naps) if self.yields == 0 => {
                pause(Duration::from_nanos(naps.next_ns()).min(by.left()));
            }
            _ => {
                self.yields = self.yields.saturating_sub(1);
                pause(Duration::ZERO);
            }
        }
    }
}

/// The word with which a lock is held.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum HeldWord {
    Spin(SpinWord),
    /// With the slot of the next ticket, if there are slots.
    Ticket(TicketWord, Option<RemoteAddress>),
}

impl HeldWord {
    const fn bits(self) -> u64 {
        match self {
            Self::Spin(word) => word.0,
            Self::Ticket(word, _) => word.0,
        }
    }

    const fn renewed(self) -> Self {
        match self {
            Self::Spin(word) => Self::Spin(word.renewed()),
            Self::Ticket(word, slot) => Self::Ticket(word.renewed(), slot),
        }
    }
}

/// A held [`RemoteLock`](super::RemoteLock), [`TicketLock`](super::TicketLock) or [`QueueLock`](super::QueueLock).
/// Dropping it does not unlock: the lease ends by itself.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the lock is held until its lease ends"]
pub struct RemoteGuard {
    pub(super) word: LeasedWord,
    pub(super) held: HeldWord,
    pub(super) was_abandoned: bool,
    pub(super) until: Instant,
}

impl RemoteGuard {
    /// Returns the fencing token: larger than those of all earlier holders.
    pub const fn token(&self) -> u64 {
        match self.held {
            HeldWord::Spin(word) => word.token(),
            HeldWord::Ticket(word, _) => word.ticket() + 1,
        }
    }

    /// Whether the lock was taken over from a holder whose lease was over: what it protects may be half changed. After
    /// clients that died while they waited, ticket and queue locks say so too.
    pub const fn was_abandoned(&self) -> bool {
        self.was_abandoned
    }

    /// Returns what is left of the lease, by this process's clock; zero: another client may hold the lock.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Begins another lease. *Cost*: one round trip.
    ///
    /// # Errors
    /// `NotLocked` if another client has taken the lock; as [`MemoryClient::wait`].
    pub fn renew(&mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        let by = Deadline::after(timeout);
        let until = Instant::now() + self.word.lease;
        let renewed = self.held.renewed();
        if !self.word.replace(client, (self.held.bits(), renewed.bits()), None, &by)? {
            return Err(Self::lost());
        }
        (self.held, self.until) = (renewed, until);
        Ok(())
    }

    /// Waits for the requests of the memory that have not ended, and unlocks: none of them takes effect later. *Cost*: one
    /// round trip.
    ///
    /// # Errors
    /// `NotLocked` if another client has taken the lock: what this one wrote after its lease may be mixed with what the
    /// other wrote. As [`MemoryClient::wait`]; the lease ends by itself then.
    pub fn unlock(self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        let by = Deadline::after(timeout);
        client.wait_for_all(self.word.at.memory(), by.left())?;
        let was_within = !self.left().is_zero();
        let (freed, grants) = match self.held {
            HeldWord::Spin(word) => (word.freed().0, None),
            HeldWord::Ticket(word, slot) => (word.passed_on().0, slot),
        };
        let unlocked = self.word.replace(client, (self.held.bits(), freed), grants, &by)?;
        // Within the lease no other takes it: then the lock was freed, and the answer was lost.
        if unlocked || was_within { Ok(()) } else { Err(Self::lost()) }
    }

    fn lost() -> Error {
        let text = "its lease was over and another client has taken it";
        Error::with(ErrorCode::NotLocked, text)
    }
}
