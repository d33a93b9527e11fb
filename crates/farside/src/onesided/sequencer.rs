//! Numbers that are given out once each: a word of remote memory, and FETCH_ADD.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use crate::{Error, ErrorCode};
use std::ops::Range;
use std::time::Duration;

/// A word of remote memory that gives out numbers in order, each once (paper 000, section III-E).
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, Sequencer};
/// # let (name, second) = (format!("numbers-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, 4096, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let numbers = Sequencer::new(memory.at(0))?;
/// assert_eq!(numbers.next(&mut client, second)?, 0);
/// assert_eq!(numbers.take(&mut client, 10, second)?, 1..11);
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: no number is given out twice, to any client, and a call that begins after another has returned gets
/// larger numbers. *Skipped numbers*: those that a client had taken when it died; those of a request whose connection was
/// lost, or that was in flight after `TimedOut`; nothing gives them out again. So numbers are unique and ordered, not dense:
/// who needs all of them must know which were used. *Cost*: one round trip, for any count.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sequencer {
    at: RemoteAddress,
}

impl Sequencer {
    /// Names the sequencer in an aligned word, which holds the next number.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`.
    pub fn new(at: RemoteAddress) -> Result<Self, Error> {
        at.check_words(8, "a sequencer")?;
        Ok(Self { at })
    }

    /// Takes the next number. To have many requests in flight, add to its word by [`MemoryClient::fetch_add`].
    ///
    /// # Errors
    /// As [`take`](Self::take).
    pub fn next(&self, client: &mut MemoryClient, timeout: Duration) -> Result<u64, Error> {
        self.take(client, 1, timeout).map(|numbers| numbers.start)
    }

    /// Takes the next `count` numbers. After a lost connection it takes others, and those of the lost request are skipped.
    ///
    /// *Blocks* for one round trip.
    ///
    /// # Errors
    /// `ZeroSize` for no numbers; `TooLarge` if the numbers of 64 bits are used up; as [`MemoryClient::wait`], never
    /// `Indeterminate`.
    pub fn take(
        &self,
        client: &mut MemoryClient,
        count: u64,
        timeout: Duration,
    ) -> Result<Range<u64>, Error> {
        if count == 0 {
            return Err(ErrorCode::ZeroSize.into());
        }
        let by = Deadline::after(timeout);
        loop {
            let added = client.fetch_add(self.at, count)?;
            match by.wait(client, added) {
                Ok(first) => {
                    let used_up = || {
                        Error::with(ErrorCode::TooLarge, "the numbers of the sequencer are used up")
                    };
                    return Ok(first..first.checked_add(count).ok_or_else(used_up)?);
                }
                Err(error) if error.code != ErrorCode::Indeterminate => return Err(error),
                Err(_) if by.is_over() => return Err(ErrorCode::TimedOut.into()),
                Err(_) => {}
            }
        }
    }
}
