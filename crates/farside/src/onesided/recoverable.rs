//! Words whose atomics take effect exactly once, also where a connection is lost.
//!
//! ```text
//! word             63   56 55      40 39    0
//!                  | client | sequence | value |
//! a word for each client: its last operation that another client has overwritten, at least
//! ```
//! A client replaces the word by compare-and-swap, with its number and that of the operation. Before it overwrites the
//! operation of another client, it stores that one's number in the other's record. So a client whose compare-and-swap was
//! lost reads the word and its record: its operation is in one of the two, or has not been executed. (The recoverable
//! compare-and-swap of Attiya, Ben-Baruch and Hendler, PODC 2018.)

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use crate::{Error, ErrorCode};
use std::time::Duration;

/// Most clients of a word.
const CLIENTS_MAX: u32 = 256;
const VALUE_BITS: u32 = 40;
const SEQUENCE_BITS: u32 = 16;
const VALUE_MASK: u64 = (1 << VALUE_BITS) - 1;
const SEQUENCE_MASK: u64 = (1 << SEQUENCE_BITS) - 1;
/// Operations after which a client stores its own record, so that others find the whole number by its low bits.
const OWN_RECORD: u64 = 1 << (SEQUENCE_BITS - 2);

/// The word: a value, and the operation that has stored it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Owned(u64);

impl Owned {
    const fn new(value: u64, client: u32, sequence: u64) -> Self {
        let low = (sequence & SEQUENCE_MASK) << VALUE_BITS;
        Self((client as u64) << (VALUE_BITS + SEQUENCE_BITS) | low | value & VALUE_MASK)
    }

    const fn value(self) -> u64 {
        self.0 & VALUE_MASK
    }

    const fn client(self) -> u32 {
        (self.0 >> (VALUE_BITS + SEQUENCE_BITS)) as u32
    }

    /// Returns the whole number of its operation: the next one from `recorded` on with its low bits. That is less than
    /// half of their numbers ahead; otherwise the word is an earlier one, and `recorded` is returned.
    const fn sequence(self, recorded: u64) -> u64 {
        let ahead = (self.0 >> VALUE_BITS).wrapping_sub(recorded) & SEQUENCE_MASK;
        if ahead > SEQUENCE_MASK / 2 { recorded } else { recorded + ahead }
    }
}

/// A word of 40 bits whose atomics are executed exactly once, whatever happens to connections.
///
/// Those of [`MemoryClient`] end as `Indeterminate` if their connection was lost; here the client finds out and continues. All
/// programs access the word by this type, each with a number of its own.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RecoverableWord};
/// # let (name, second) = (format!("exact-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let bytes = RecoverableWord::footprint(2);
/// let server = MemoryServer::lend(&fabric, &name, bytes, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let mut counter = RecoverableWord::open(&mut client, memory.at(0), (0, 2), second)?; // client 0 of 2
/// assert_eq!(counter.fetch_add(&mut client, 5, second)?, 0);
/// assert_eq!(counter.load(&mut client, second)?, 5);
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: each call that returns a value was executed once; one that ends with an error, once or not at all, and the
/// next call of the same word finds out which. *Cost*: one round trip if this client has changed the word last, else four.
/// *Right* also where atomics are atomic only to each other: nothing else accesses its words.
#[derive(Debug)]
pub struct RecoverableWord {
    at: RemoteAddress,
    client: u32,
    /// Of the next operation.
    sequence: u64,
    /// This client's record is at least that.
    recorded: u64,
    /// The word as it was seen last, and whether its operation is recorded.
    seen: Owned,
    is_recorded: bool,
    /// An operation that may have been executed.
    doubt: Option<Owned>,
}

impl RecoverableWord {
    /// Returns the bytes of remote memory that a word of this many clients needs, zero at first.
    pub const fn footprint(clients: u32) -> u64 {
        8 + 8 * clients as u64
    }

    /// Opens the word at an aligned address as client `number` of `clients`.
    ///
    /// A number belongs to one program at a time. A program that has started again takes its number again, after
    /// the connection of the earlier one has ended. *Blocks* for two round trips.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`; `BadConfiguration` for a number that is not below `clients`, or more than 256; as
    /// [`MemoryClient::wait`].
    pub fn open(
        client: &mut MemoryClient,
        at: RemoteAddress,
        (number, clients): (u32, u32),
        timeout: Duration,
    ) -> Result<Self, Error> {
        if number >= clients || clients > CLIENTS_MAX {
            let text = format!("client {number} of {clients}: a word has at most {CLIENTS_MAX}");
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let end = at.offset().checked_add(Self::footprint(clients));
        if end.is_none_or(|end| end > at.memory().bytes()) {
            let text = format!("a word of {clients} clients at {}", at.offset());
            return Err(Error::with(ErrorCode::OutOfBounds, text));
        }
        let deadline = Deadline::after(timeout);
        let seen = Owned(deadline.read_word(client, at)?);
        let recorded = deadline.read_word(client, record(at, number))?;
        let last = if seen.client() == number { seen.sequence(recorded) } else { recorded };
        let sequence = last + 1;
        let (is_recorded, doubt) = (false, None);
        Ok(Self { at, client: number, sequence, recorded, seen, is_recorded, doubt })
    }

    /// Returns the value. *Blocks* for a round trip.
    ///
    /// # Errors
    /// As [`MemoryClient::wait`].
    pub fn load(&mut self, client: &mut MemoryClient, timeout: Duration) -> Result<u64, Error> {
        Ok(Owned(Deadline::after(timeout).read_word(client, self.at)?).value())
    }

    /// Adds, modulo 2^40, and returns the previous value. *Blocks*.
    ///
    /// # Errors
    /// `TimedOut`, `PeerLost`: executed once or not at all.
    pub fn fetch_add(
        &mut self,
        client: &mut MemoryClient,
        add: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        self.update(client, timeout, |value| Some(value.wrapping_add(add) & VALUE_MASK))
    }

    /// Replaces the value if it is `expected`, and returns the previous one. *Blocks*.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add); `TooLarge` for a value of more than 40 bits.
    pub fn compare_swap(
        &mut self,
        client: &mut MemoryClient,
        expected: u64,
        new: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        fits(new)?;
        self.update(client, timeout, |value| (value == expected).then_some(new))
    }

    /// Replaces the value, and returns the previous one. *Blocks*.
    ///
    /// # Errors
    /// As [`compare_swap`](Self::compare_swap).
    pub fn swap(
        &mut self,
        client: &mut MemoryClient,
        new: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        fits(new)?;
        self.update(client, timeout, |_| Some(new))
    }

    /// Replaces the value by another one, if there is one for it; returns the previous value.
    fn update(
        &mut self,
        client: &mut MemoryClient,
        timeout: Duration,
        next: impl Fn(u64) -> Option<u64>,
    ) -> Result<u64, Error> {
        let deadline = Deadline::after(timeout);
        if let Some(doubt) = self.doubt {
            // It may be in flight still, and a READ might overtake it.
            client.wait_for_all(self.at.memory(), deadline.left())?;
            self.resolve(client, doubt, &deadline)?;
        }
        if self.sequence - self.recorded >= OWN_RECORD {
            self.record_own(client, &deadline)?;
        }
        loop {
            let seen = self.seen;
            let Some(value) = next(seen.value()) else {
                // Nothing is changed, so the value must be that of now.
                self.see(Owned(deadline.read_word(client, self.at)?));
                if next(self.seen.value()).is_none() {
                    return Ok(self.seen.value());
                }
                continue;
            };
            if !self.is_recorded && seen.client() != self.client {
                self.record_other(client, seen, &deadline)?;
            }
            let new = Owned::new(value, self.client, self.sequence);
            let swapped = client.compare_swap(self.at, seen.0, new.0)?;
            self.doubt = Some(new);
            match deadline.wait(client, swapped) {
                Ok(was) => {
                    self.doubt = None;
                    if was == seen.0 {
                        self.sequence += 1;
                        self.see(new);
                        return Ok(seen.value());
                    }
                    self.see(Owned(was));
                }
                Err(error) if error.code == ErrorCode::Indeterminate => {
                    if self.resolve(client, new, &deadline)? {
                        return Ok(seen.value());
                    }
                }
                Err(error) => return Err(error),
            }
        }
    }

    fn see(&mut self, word: Owned) {
        if self.seen != word {
            (self.seen, self.is_recorded) = (word, false);
        }
    }

    /// Whether an operation whose answer was lost has been executed.
    fn resolve(
        &mut self,
        client: &mut MemoryClient,
        new: Owned,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        let word = Owned(deadline.read_word(client, self.at)?);
        let is_executed = word == new || {
            self.recorded = deadline.read_word(client, record(self.at, self.client))?;
            self.recorded >= self.sequence
        };
        self.doubt = None;
        if is_executed {
            self.sequence += 1;
        }
        self.see(word);
        Ok(is_executed)
    }

    /// Stores the operation of another client in its record, before it is overwritten.
    fn record_other(
        &mut self,
        client: &mut MemoryClient,
        word: Owned,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        let at = record(self.at, word.client());
        // The word of no client at all is zero.
        if word.0 != 0 {
            raise(client, at, |recorded| word.sequence(recorded), deadline)?;
        }
        self.is_recorded = true;
        Ok(())
    }

    fn record_own(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), Error> {
        let last = self.sequence - 1;
        let at = record(self.at, self.client);
        self.recorded = raise(client, at, |recorded| recorded.max(last), deadline)?;
        Ok(())
    }
}

fn fits(value: u64) -> Result<(), Error> {
    if value > VALUE_MASK {
        let text = format!("the value {value:#x}: at most {VALUE_BITS} bits");
        return Err(Error::with(ErrorCode::TooLarge, text));
    }
    Ok(())
}

fn record(at: RemoteAddress, client: u32) -> RemoteAddress {
    at.plus(8 + 8 * u64::from(client))
}

/// Raises a record, which only rises: repeating a lost compare-and-swap does no harm. Returns what it is then.
fn raise(
    client: &mut MemoryClient,
    at: RemoteAddress,
    to: impl Fn(u64) -> u64,
    deadline: &Deadline,
) -> Result<u64, Error> {
    let mut now = deadline.read_word(client, at)?;
    loop {
        let wanted = to(now);
        if wanted <= now {
            return Ok(now);
        }
        match deadline.replace(client, at, (now, wanted))? {
            was if was == now => return Ok(wanted),
            was => now = was,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_operations_are_found_by_their_low_bits() {
        for recorded in [0, 7, 65_535, 65_536, 1 << 40] {
            for ahead in [0, 1, OWN_RECORD, OWN_RECORD + 1] {
                let word = Owned::new(3, 255, recorded + ahead);
                assert_eq!((word.value(), word.client()), (3, 255));
                assert_eq!(word.sequence(recorded), recorded + ahead);
                // Of a word that was read before others went on.
                assert_eq!(word.sequence(recorded + ahead + 5), recorded + ahead + 5);
            }
        }
    }
}
