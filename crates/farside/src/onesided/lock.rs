//! Spinlocks in remote memory: a word each ([`SpinWord`]).

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use super::guard::{HeldWord, LeasedWord, Pauses, RemoteGuard};
use crate::runtime::Instant;
use crate::{Error, ErrorCode};
use farside_protocol::remote_lock::{LeaseWatch, SpinWord};
use std::time::Duration;

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
/// within its lease. A holder that is stopped for longer may continue to write: data that must not suffer checks the token,
/// which rises with each holder. *Fairness*: none. *Cost*: two round trips for a free lock, one to unlock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteLock {
    word: LeasedWord,
    naps: bool,
}

impl RemoteLock {
    /// Names the lock in an aligned word. All clients give it the same lease.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for a lease under 1 ms or over a day.
    pub fn new(at: RemoteAddress, lease: Duration) -> Result<Self, Error> {
        Ok(Self { word: LeasedWord::new(at, (0, 8), lease)?, naps: true })
    }

    /// Returns the same lock, for which this client waits without back-off: it only yields its processor between attempts.
    #[must_use]
    pub const fn without_backoff(self) -> Self {
        Self { naps: false, ..self }
    }

    /// Takes the lock, waiting while another client holds it.
    ///
    /// *Blocks*: naps between attempts, longer and longer up to 0.5 ms.
    ///
    /// # Errors
    /// `TimedOut`, after which a request in flight may still take the lock until the end of a lease; as
    /// [`MemoryClient::wait`], never `Indeterminate`.
    pub fn lock(&self, client: &mut MemoryClient, timeout: Duration) -> Result<RemoteGuard, Error> {
        Self::lock_any(client, std::slice::from_ref(self), timeout).map(|(_, guard)| guard)
    }

    /// Takes one of several locks: the first that is free, or whose holder is found dead. Returns its place in the list too.
    /// With a time-out of a lease and a quarter it finds a dead holder, if there is one.
    ///
    /// *Blocks* as [`lock`](Self::lock). *Cost*: a round trip for each lock that is held, in each attempt.
    ///
    /// # Errors
    /// As `lock`; `TimedOut` also without any lock.
    pub fn lock_any(
        client: &mut MemoryClient,
        locks: &[Self],
        timeout: Duration,
    ) -> Result<(usize, RemoteGuard), Error> {
        let by = Deadline::after(timeout);
        Self::lock_any_within(client, locks, timeout, &by)?
            .ok_or_else(|| ErrorCode::TimedOut.into())
    }

    /// Takes the first of several locks that is free; `None` if none was within `patience`. Reads each at least once.
    pub(super) fn lock_any_within(
        client: &mut MemoryClient,
        locks: &[Self],
        patience: Duration,
        by: &Deadline,
    ) -> Result<Option<(usize, RemoteGuard)>, Error> {
        let (until, began) = (Deadline::after(patience), Instant::now());
        let mut has_looked = false;
        let mut pauses = Pauses::new(locks.iter().all(|lock| lock.naps), 0);
        let watch = |lock: &Self| LeaseWatch::new(lock.word.lease.as_nanos() as u64);
        let mut watches: Vec<LeaseWatch> = locks.iter().map(watch).collect();
        loop {
            for (at, (lock, watch)) in locks.iter().zip(&mut watches).enumerate() {
                let word = match lock.word.read(client, by) {
                    Err(error) if has_looked && error.code == ErrorCode::TimedOut => {
                        return Ok(None);
                    }
                    word => SpinWord(word?),
                };
                let is_over = watch.is_over(word.0, began.elapsed().as_nanos() as u64);
                if (!word.is_held() || is_over)
                    && let Some(guard) = lock.take(client, word, by)?
                {
                    return Ok(Some((at, guard)));
                }
            }
            if until.is_over() {
                return Ok(None);
            }
            has_looked = true;
            pauses.pause(&until);
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
        let by = Deadline::after(timeout);
        let word = SpinWord(self.word.read(client, &by)?);
        let taken = if word.is_held() { None } else { self.take(client, word, &by)? };
        taken.ok_or_else(|| ErrorCode::Busy.into())
    }

    /// Takes the lock with this word, free or of a holder whose lease is over; `None` if it has changed.
    fn take(
        &self,
        client: &mut MemoryClient,
        word: SpinWord,
        by: &Deadline,
    ) -> Result<Option<RemoteGuard>, Error> {
        let until = Instant::now() + self.word.lease;
        let used_up = || Error::with(ErrorCode::TooLarge, "the tokens of the lock are used up");
        let taken = word.taken_by(client.number()).ok_or_else(used_up)?;
        let is_taken = self.word.replace(client, (word.0, taken.0), None, by)?;
        let (held, was_abandoned) = (HeldWord::Spin(taken), word.is_held());
        Ok(is_taken.then_some(RemoteGuard { word: self.word, held, was_abandoned, until }))
    }
}
