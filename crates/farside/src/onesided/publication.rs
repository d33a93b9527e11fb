//! Content that readers see in whole generations: two copies, and a word that counts the generations.
//!
//! ```text
//! word | 56 B unused | copy of even generations | copy of odd generations
//! ```
//! A writer fills the copy that readers do not use, then raises the word. A reader reads the word, the copy, and the
//! word again, each after the one before has ended. The copy of a generation is overwritten only after the next one
//! is published, so an unchanged word means that the bytes are those of one generation.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress, RequestId};
use super::ranges::RangeList;
use crate::buffer::Buffer;
use crate::{Error, ErrorCode};
use std::time::Duration;

/// Bytes before the copies.
const HEAD: u64 = 64;
/// Attempts of a snapshot.
const ATTEMPTS: u32 = 16;

/// A place of remote memory whose content is published and read in whole generations.
///
/// One program at a time publishes; any number of others read. Neither needs the server's processor, nor a copy to
/// memory of its own. A writer that ends within a publication leaves the generation before readable.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, Publication};
/// # let (name, second) = (format!("published-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let bytes = Publication::footprint(4096);
/// let server = MemoryServer::lend(&fabric, &name, bytes, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
/// let (out, back) = (client.register(4096)?, client.register(4096)?);
///
/// let mut table = Publication::new(memory.at(0), 4096)?;
/// assert_eq!(table.snapshot(&mut client, &back, 0, second)?, None); // nothing yet
/// out.write(0, b"first")?;
/// table.publish(&mut client, &out, 0, second)?;
/// assert_eq!(table.snapshot(&mut client, &back, 0, second)?, Some(1));
/// # Ok::<(), farside::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Publication {
    at: RemoteAddress,
    bytes: u64,
    /// The last generation that was seen.
    seen: u64,
}

impl Publication {
    /// Returns the bytes of remote memory that content of this length needs.
    pub const fn footprint(bytes: u64) -> u64 {
        HEAD + 2 * bytes.next_multiple_of(64)
    }

    /// Names a place: [`footprint`](Self::footprint) bytes from an aligned address on, zero at first.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge` for 4 GiB or more; `Misaligned` (8 B); `OutOfBounds`.
    pub fn new(at: RemoteAddress, bytes: u64) -> Result<Self, Error> {
        if bytes == 0 {
            return Err(ErrorCode::ZeroSize.into());
        }
        if bytes > u64::from(u32::MAX) {
            return Err(Error::with(ErrorCode::TooLarge, format!("{bytes} B of content")));
        }
        at.check_words(Self::footprint(bytes), "a publication")?;
        Ok(Self { at, bytes, seen: 0 })
    }

    fn copy(&self, generation: u64) -> RemoteAddress {
        self.at.plus(HEAD + generation % 2 * self.bytes.next_multiple_of(64))
    }

    /// Publishes the bytes of a buffer from `at` on as the next generation, and returns its number.
    ///
    /// *Guarantees*: snapshots that begin later see it or a later one. *Blocks* for three round trips, the first
    /// publication of a writer or a change of writers for more. *Cost*: no copy.
    ///
    /// # Errors
    /// `Busy` if another writer has published meanwhile: only one may at a time, and the bytes of both may be mixed in
    /// its generation. As [`MemoryClient::wait`]; after `Indeterminate`, the next call finds out by itself whether the
    /// generation was published.
    pub fn publish(
        &mut self,
        client: &mut MemoryClient,
        from: &Buffer,
        at: u64,
        timeout: Duration,
    ) -> Result<u64, Error> {
        let end = at.saturating_add(self.bytes);
        self.publish_by(client, timeout, |client, to| client.write(to, from, at..end))
    }

    /// As [`publish`](Self::publish), with content from the ranges of a list. Bytes that no range covers are those of the
    /// generation before the last one.
    ///
    /// # Errors
    /// As `publish`; `OutOfBounds` if the list passes the end of the content.
    pub fn publish_ranges(
        &mut self,
        client: &mut MemoryClient,
        from: &Buffer,
        at: u64,
        ranges: &RangeList,
        timeout: Duration,
    ) -> Result<u64, Error> {
        ranges.check((at, from.len() as u64), (0, self.bytes))?;
        self.publish_by(client, timeout, |client, to| client.write_ranges(to, from, at, ranges))
    }

    fn publish_by(
        &mut self,
        client: &mut MemoryClient,
        timeout: Duration,
        write: impl FnOnce(&mut MemoryClient, RemoteAddress) -> Result<RequestId, Error>,
    ) -> Result<u64, Error> {
        let deadline = Deadline::after(timeout);
        let before = deadline.read_word(client, self.at)?;
        let written = write(client, self.copy(before + 1))?;
        deadline.wait(client, written)?;
        let raised = client.compare_swap(self.at, before, before + 1)?;
        let was = deadline.wait(client, raised)?;
        if was != before {
            let text =
                format!("generation {was} was published, not {before}: there is another writer");
            return Err(Error::with(ErrorCode::Busy, text));
        }
        self.seen = before + 1;
        Ok(before + 1)
    }

    /// Reads the content of one generation into a buffer from `at` on, and returns its number; `None` if nothing was
    /// published.
    ///
    /// *Guarantees*: all bytes are of that generation, which was the last one at some time during the call. *Blocks* for
    /// two round trips if no generation was published since the last call, else for three or more.
    ///
    /// # Errors
    /// `Torn` if a generation was published during each of 16 attempts; the buffer has bytes of several then. As
    /// [`MemoryClient::wait`].
    pub fn snapshot(
        &mut self,
        client: &mut MemoryClient,
        into: &Buffer,
        at: u64,
        timeout: Duration,
    ) -> Result<Option<u64>, Error> {
        let deadline = Deadline::after(timeout);
        if self.seen == 0 {
            self.seen = deadline.read_word(client, self.at)?;
        }
        for _ in 0..ATTEMPTS {
            if self.seen == 0 {
                return Ok(None);
            }
            let end = at.saturating_add(self.bytes);
            let read = client.read(self.copy(self.seen), into, at..end)?;
            deadline.wait(client, read)?;
            let now = deadline.read_word(client, self.at)?;
            if std::mem::replace(&mut self.seen, now) == now {
                return Ok(Some(now));
            }
        }
        Err(ErrorCode::Torn.into())
    }
}
