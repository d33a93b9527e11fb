//! A log in one-sided memory: append-only, totally ordered, with any number of writers and readers (paper 000, section
//! IV-E).
//!
//! The memory's owner runs no program for it. Writers reserve places by FETCH_ADD and write there; readers see whole
//! records, in one order, each once. A place whose writer has died is closed by the reader that comes to it.
//!
//! ```
//! use farside::fabrics;
//! use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
//! use farside_apps::log::{AppendMode, Log, LogOptions};
//! # let (name, second) = (format!("logged-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let fabric = fabrics::shared_memory()?;
//! let options = LogOptions { bytes: 1 << 20, ..LogOptions::default() };
//! let server = MemoryServer::lend(&fabric, &name, options.footprint(), &LendOptions::default())?;
//! let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
//! let memory = client.open(server.address(), second)?;
//!
//! let log = Log::create(&mut client, memory.at(0), options, second)?;
//! let mut writer = log.writer(&mut client, AppendMode::Positioned, second)?;
//! let mut reader = log.reader(&mut client, second)?;
//! let first = writer.append(&mut client, b"an event", second)?;
//! writer.append_batch(&mut client, &[b"two", b"more"], second)?;
//! let record = reader.next(&mut client, second)?.ok_or("nothing")?;
//! assert_eq!((Some(record.position), record.bytes), (first, &b"an event"[..]));
//! let cursor = reader.cursor();
//! log.trim(&mut client, &cursor, second)?; // its bytes are free
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Formats and protocols: see `docs/internals/log.md`.

mod appender;
mod checkpoint;
mod error;
mod frame;
mod lane;
mod layout;
mod reader;
mod ring;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;
mod writer;

pub use error::LogError;
pub use layout::LogOptions;
pub use reader::{LogCursor, LogReader, LogRecord};
pub use writer::{AppendMode, LogWriter};

use checkpoint::Checkpoint;
use farside::onesided::{Deadline, MemoryClient, RemoteAddress, RemoteLock};
use layout::Layout;
use ring::Requests;
use std::time::Duration;

/// Bytes that are zeroed at a time.
const ZEROED: u64 = 256 << 10;

/// A log in remote memory ([module](self)). A copy names the same log.
///
/// *Clocks*: writers and readers agree about the death of a writer by a lease, as [`RemoteLock`] does. A writer gives up
/// a place before half of it has passed. *Late requests*: a request that takes effect a lease after it was posted, and
/// after the place was trimmed and used again, damages a record, which readers report as `Corrupt`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Log {
    layout: Layout,
}

impl Log {
    /// Creates an empty log in [`LogOptions::footprint`] bytes from an address on, which are zero.
    ///
    /// *Blocks* for three round trips. A program that ends meanwhile leaves memory that must be zeroed.
    ///
    /// # Errors
    /// `Options`; `Exists` if the memory is not zero there; `Memory`.
    pub fn create(
        client: &mut MemoryClient,
        at: RemoteAddress,
        options: LogOptions,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        let layout = Layout::create(client, at, options, &Deadline::after(timeout))?;
        Ok(Self { layout })
    }

    /// Opens the log at an address. *Blocks* for two round trips.
    ///
    /// # Errors
    /// `NotALog`; `Options` if the memory is smaller than the log; `Memory`.
    pub fn open(
        client: &mut MemoryClient,
        at: RemoteAddress,
        timeout: Duration,
    ) -> Result<Self, LogError> {
        Ok(Self { layout: Layout::open(client, at, &Deadline::after(timeout))? })
    }

    /// Returns the options with which it was created.
    pub const fn options(&self) -> LogOptions {
        self.layout.options
    }

    /// Opens a writer, which registers memory. A lazy one takes a lane.
    ///
    /// # Errors
    /// `Options` for a quota out of range, or a lazy writer of a log without lanes; `LanesInUse`; `Memory`.
    pub fn writer(
        &self,
        client: &mut MemoryClient,
        mode: AppendMode,
        timeout: Duration,
    ) -> Result<LogWriter, LogError> {
        LogWriter::new(client, self.layout, mode, &Deadline::after(timeout))
    }

    /// Opens a reader at the first record.
    ///
    /// # Errors
    /// `Memory`.
    pub fn reader(
        &self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<LogReader, LogError> {
        LogReader::new(client, self.layout, None, &Deadline::after(timeout))
    }

    /// Opens a reader where another one was.
    ///
    /// # Errors
    /// `Trimmed` if its record is not in the log any more; `Options` for the cursor of another log; `Memory`.
    pub fn reader_at(
        &self,
        client: &mut MemoryClient,
        cursor: &LogCursor,
        timeout: Duration,
    ) -> Result<LogReader, LogError> {
        LogReader::new(client, self.layout, Some(cursor), &Deadline::after(timeout))
    }

    /// Frees the bytes of all records before a cursor. Readers that are not there yet fail with `Trimmed`.
    ///
    /// *Cost*: each byte that is freed is written once, with zeros; about ten round trips. *Blocks* while another program
    /// trims.
    ///
    /// # Errors
    /// `Memory`, also `Busy` or `NotLocked` if it took longer than a lease and another program has gone on: nothing is
    /// lost, call again.
    pub fn trim(
        &self,
        client: &mut MemoryClient,
        cursor: &LogCursor,
        timeout: Duration,
    ) -> Result<(), LogError> {
        let deadline = Deadline::after(timeout);
        let lease = self.layout.options.lease;
        let lock = RemoteLock::new(self.layout.lock(), lease)?;
        let mut guard = lock.lock(client, deadline.left())?;
        let mut checkpoint = Checkpoint::new(client, &self.layout, &deadline)?;
        if cursor.lanes.len() != checkpoint.lanes.len() {
            return Err(LogError::Options("the cursor is of another log"));
        }
        let zeros = client.register(ZEROED)?;
        let ring = self.layout.ring();
        let mut next = checkpoint.position;
        while next < cursor.position {
            if guard.left() < lease / 2 {
                guard.renew(client, deadline.left())?;
            }
            let bytes = ZEROED.min(cursor.position - next);
            let mut requests = Requests::default();
            ring.write(client, next, &zeros, (0, bytes), &mut requests)?;
            requests.wait(client, &deadline)?;
            next += bytes;
        }
        if checkpoint.position < cursor.position {
            checkpoint.publish(client, cursor.position, &cursor.lanes, &deadline)?;
        }
        Ok(guard.unlock(client, deadline.left())?)
    }
}
