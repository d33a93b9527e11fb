//! Locks in remote memory: a word each, with a lease and a fencing token.
//!
//! ```text
//! 63   46 45      12 11      1    0
//! | owner |  token   |  beat  | held |
//! ```
//! A client takes a free lock by compare-and-swap, with the next token. The holder raises the beat to renew its lease. A
//! client that has seen the same held word for a lease and an eighth takes the lock over: the eighth allows for clocks
//! that run at different rates.

use super::client::{MemoryClient, RemoteAddress};
use crate::{Error, ErrorCode};
use farside_base::waiting::Backoff;
use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

/// Possible leases.
const LEASES: RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_hours(24);

const HELD: u64 = 1;
const BEAT_SHIFT: u32 = 1;
const BEAT_MASK: u64 = (1 << 11) - 1;
const TOKEN_SHIFT: u32 = 12;
const TOKEN_MASK: u64 = (1 << 34) - 1;
const OWNER_SHIFT: u32 = 46;

/// The word of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct LockWord(u64);

impl LockWord {
    const fn is_held(self) -> bool {
        self.0 & HELD != 0
    }

    const fn token(self) -> u64 {
        self.0 >> TOKEN_SHIFT & TOKEN_MASK
    }

    /// The word of the next holder; `None` if the tokens are used up.
    fn taken_by(self, owner: u64) -> Option<Self> {
        let token = self.token() + 1;
        (token <= TOKEN_MASK).then_some(Self(owner << OWNER_SHIFT | token << TOKEN_SHIFT | HELD))
    }

    const fn renewed(self) -> Self {
        let beat = ((self.0 >> BEAT_SHIFT) + 1) & BEAT_MASK;
        Self(self.0 & !(BEAT_MASK << BEAT_SHIFT) | beat << BEAT_SHIFT)
    }

    const fn freed(self) -> Self {
        Self(self.0 & !HELD)
    }
}

/// An exclusive lock in a word of remote memory, zero at first (paper 000, section III-E: a spinlock with exponential
/// back-off).
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteLock};
/// # let (name, second) = (format!("locked-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, 4096, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let lock = RemoteLock::new(memory.at(0), second)?; // the lease
/// let guard = lock.lock(&mut client, second)?;
/// assert!(guard.token() > 0 && !guard.was_abandoned());
/// guard.unlock(&mut client, second)?;
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: of clients whose clocks run at rates within an eighth of each other, at most one holds the lock and is
/// within its lease. A holder that is stopped for longer may go on writing: data that must not suffer checks the token,
/// which rises with each holder. *Fairness*: none. *Cost*: two round trips for a free lock, one to unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteLock {
    at: RemoteAddress,
    lease: Duration,
}

/// A held [`RemoteLock`]. Dropping it does not unlock: the lease ends by itself.
#[derive(PartialEq, Eq, Debug)]
#[must_use = "the lock is held until its lease ends"]
pub struct RemoteGuard {
    lock: RemoteLock,
    word: LockWord,
    was_abandoned: bool,
    until: Instant,
}

impl RemoteLock {
    /// Names the lock in an aligned word. All clients give it the same lease.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for a lease under 1 ms or over a day.
    pub fn new(at: RemoteAddress, lease: Duration) -> Result<Self, Error> {
        let text = || format!("a lock at {}", at.offset());
        if !at.offset().is_multiple_of(8) {
            return Err(Error::with(ErrorCode::Misaligned, text()));
        }
        if at.offset().checked_add(8).is_none_or(|end| end > at.memory().bytes()) {
            return Err(Error::with(ErrorCode::OutOfBounds, text()));
        }
        if !LEASES.contains(&lease) {
            let text = format!("a lease of {lease:?}: 1 ms to a day");
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        Ok(Self { at, lease })
    }

    /// Takes the lock, waiting while another client holds it.
    ///
    /// *Blocks*: naps between attempts, longer and longer up to 0.5 ms.
    ///
    /// # Errors
    /// `TimedOut`, after which a request in flight may still take the lock until the end of a lease; as
    /// [`MemoryClient::wait`], never `Indeterminate`.
    pub fn lock(&self, client: &mut MemoryClient, timeout: Duration) -> Result<RemoteGuard, Error> {
        let began = Instant::now();
        let mut naps = Backoff::NAPS;
        let mut seen: Option<(LockWord, Instant)> = None;
        loop {
            let left = timeout.saturating_sub(began.elapsed());
            let word = self.word(client, left)?;
            let is_over = match seen {
                Some((before, since)) if before == word => {
                    since.elapsed() >= self.lease + self.lease / 8
                }
                _ => {
                    seen = Some((word, Instant::now()));
                    false
                }
            };
            if (!word.is_held() || is_over)
                && let Some(guard) = self.take(client, word, left)?
            {
                return Ok(guard);
            }
            if left.is_zero() {
                return Err(ErrorCode::TimedOut.into());
            }
            std::thread::park_timeout(Duration::from_nanos(naps.next_ns()).min(left));
        }
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// As [`lock`](Self::lock); `Busy` if another client holds it.
    pub fn try_lock(
        &self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<RemoteGuard, Error> {
        let word = self.word(client, timeout)?;
        let taken = if word.is_held() { None } else { self.take(client, word, timeout)? };
        taken.ok_or_else(|| ErrorCode::Busy.into())
    }

    /// Takes the lock with this word, free or of a holder whose lease is over; `None` if it has changed.
    fn take(
        &self,
        client: &mut MemoryClient,
        word: LockWord,
        timeout: Duration,
    ) -> Result<Option<RemoteGuard>, Error> {
        let owner = client.number() >> OWNER_SHIFT;
        let until = Instant::now() + self.lease;
        let used_up = || Error::with(ErrorCode::TooLarge, "the tokens of the lock are used up");
        let taken = word.taken_by(owner).ok_or_else(used_up)?;
        let was_abandoned = word.is_held();
        let is_taken = self.replace(client, word, taken, timeout)?;
        Ok(is_taken.then_some(RemoteGuard { lock: *self, word: taken, was_abandoned, until }))
    }

    /// Replaces the word if it is `before`. A lost compare-and-swap is resolved by reading the word: it names the
    /// client and its token.
    fn replace(
        &self,
        client: &mut MemoryClient,
        before: LockWord,
        after: LockWord,
        timeout: Duration,
    ) -> Result<bool, Error> {
        let swapped = client.compare_swap(self.at, before.0, after.0)?;
        match client.wait_or_forget(swapped, timeout) {
            Ok(was) => Ok(was == before.0),
            Err(error) if error.code == ErrorCode::Indeterminate => {
                let now = self.word(client, timeout)?;
                if now == before {
                    return self.replace(client, before, after, timeout);
                }
                Ok(now == after)
            }
            Err(error) => Err(error),
        }
    }

    fn word(&self, client: &mut MemoryClient, timeout: Duration) -> Result<LockWord, Error> {
        let read = client.read_word(self.at)?;
        client.wait_or_forget(read, timeout).map(LockWord)
    }
}

impl RemoteGuard {
    /// Returns the fencing token: larger than those of all earlier holders.
    pub const fn token(&self) -> u64 {
        self.word.token()
    }

    /// Whether the lock was taken over from a holder whose lease was over: what it protects may be half changed.
    pub const fn was_abandoned(&self) -> bool {
        self.was_abandoned
    }

    /// Returns what is left of the lease, by this process's clock; zero: another client may hold the lock.
    pub fn left(&self) -> Duration {
        self.until.saturating_duration_since(Instant::now())
    }

    /// Begins another lease.
    ///
    /// # Errors
    /// `NotLocked` if another client has taken the lock; as [`MemoryClient::wait`].
    pub fn renew(&mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        let until = Instant::now() + self.lock.lease;
        let renewed = self.word.renewed();
        if !self.lock.replace(client, self.word, renewed, timeout)? {
            return Err(Self::lost());
        }
        (self.word, self.until) = (renewed, until);
        Ok(())
    }

    /// Waits for the requests of the memory that have not ended, and unlocks: none of them takes effect later.
    ///
    /// # Errors
    /// `NotLocked` if another client has taken the lock: what this one wrote after its lease may be mixed with what the
    /// other wrote. As [`MemoryClient::wait`]; the lease ends by itself then.
    pub fn unlock(self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        client.wait_for_all(self.lock.at.memory(), timeout)?;
        let was_within = !self.left().is_zero();
        let unlocked = self.lock.replace(client, self.word, self.word.freed(), timeout)?;
        // Within the lease no other takes it: then the lock was freed, and the answer was lost.
        if unlocked || was_within { Ok(()) } else { Err(Self::lost()) }
    }

    fn lost() -> Error {
        let text = "its lease was over and another client has taken it";
        Error::with(ErrorCode::NotLocked, text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_keep_their_fields_apart() {
        let first = LockWord(0).taken_by(0x3_ffff).unwrap();
        assert!(first.is_held() && first.token() == 1);
        let mut renewed = first;
        for _ in 0..=BEAT_MASK {
            renewed = renewed.renewed();
            assert!(renewed.is_held() && renewed.token() == 1);
        }
        assert_eq!(renewed, first);
        assert!(!first.freed().is_held() && first.freed().token() == 1);
        let second = first.freed().taken_by(0).unwrap();
        assert_eq!((second.token(), second.is_held()), (2, true));
        assert_eq!(LockWord(TOKEN_MASK << TOKEN_SHIFT).taken_by(1), None);
    }
}
