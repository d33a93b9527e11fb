//! The appending end of a log.

use super::appender::Appender;
use super::error::LogError;
use super::frame::{BatchTable, RECORD};
use super::lane::WriterLane;
use super::layout::Layout;
use farside::onesided::{Buffer, Deadline, MemoryClient, VectorIo};
use std::time::Duration;

/// Most bytes that a writer reserves at a time.
const QUOTA_MAX: u64 = 256 << 20;

/// How a [`LogWriter`] finds the place of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum AppendMode {
    /// Each append reserves its place. *Order*: records are in the order in which their appends return. *Cost*: two round
    /// trips.
    #[default]
    Positioned,
    /// The writer reserves this many bytes at a time: 64 B to a quarter of the log. *Order*: that of the reservations.
    /// Readers wait for a reservation that is not used up, at most a lease: for writers that append all the time.
    /// *Cost*: one round trip, one more for each reservation.
    Planned {
        /// Bytes of a reservation.
        quota_bytes: u64,
    },
    /// The writer appends to a lane of its own, and a reader decides about the place. *Order*: that of each writer. Of
    /// different writers, that of time, unless they append faster than a reader looks at all lanes twice. *Cost*: one
    /// round trip.
    Lazy,
}

/// Appends records to a [`Log`](super::Log). One for each thread that appends.
///
/// *Guarantees*: a record whose append has returned is in the log once, whole, and every reader that begins to read
/// later finds it. *Durability*: none, as of its memory. *Lost connections*: an append continues over the next one,
/// and its record is in the log once. A writer that ends within an append leaves nothing, or the whole record.
///
/// *Blocks* in each call until the record is in the log. *Cost* besides round trips: a copy of the record into registered
/// memory, but for [`append_table`](Self::append_table), and its checksum.
pub struct LogWriter {
    appender: Appender,
    mode: AppendMode,
    lane: Option<WriterLane>,
}

impl LogWriter {
    pub(super) fn new(
        client: &mut MemoryClient,
        layout: Layout,
        mode: AppendMode,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        let appender = Appender::new(client, layout, deadline)?;
        match mode {
            AppendMode::Planned { quota_bytes }
                if !(64..=QUOTA_MAX.min(layout.options.bytes / 4)).contains(&quota_bytes)
                    || !quota_bytes.is_multiple_of(64) =>
            {
                let text = "a quota has 64 B to a quarter of the log and 256 MiB, a multiple of 64";
                return Err(LogError::Options(text));
            }
            AppendMode::Lazy if layout.options.lanes == 0 => {
                return Err(LogError::Options("a lazy writer needs a log with lanes"));
            }
            _ => {}
        }
        let mut writer = Self { appender, mode, lane: None };
        if mode == AppendMode::Lazy {
            writer.lane = Some(WriterLane::take(client, &mut writer.appender, deadline)?);
        }
        Ok(writer)
    }

    /// Appends a record; returns its position, if it has one already.
    ///
    /// # Errors
    /// `TooLarge`: nothing was appended; a record with its header takes at most a quarter of the log or lane, and
    /// 16 MiB. `Full`: nothing was appended; trim the log. `LanesInUse` of a lazy writer that has lost its lane.
    /// `Memory` with `TimedOut`, `PeerLost` or `Indeterminate`: the record is in the log or not.
    pub fn append(
        &mut self,
        client: &mut MemoryClient,
        record: &[u8],
        timeout: Duration,
    ) -> Result<Option<u64>, LogError> {
        self.appender.frame.fill(client, RECORD, record)?;
        self.append_frame(client, None, timeout)
    }

    /// Appends records, one behind the other and all or none; returns the position of all of them. *Cost*: that of
    /// one append. They are copied into one piece of registered memory (*SP* in the paper).
    ///
    /// # Errors
    /// As [`append`](Self::append), by the sum of the records.
    pub fn append_batch(
        &mut self,
        client: &mut MemoryClient,
        records: &[&[u8]],
        timeout: Duration,
    ) -> Result<Option<u64>, LogError> {
        if records.is_empty() {
            return Ok(None);
        }
        self.appender.frame.fill_batch(client, records)?;
        self.append_frame(client, None, timeout)
    }

    /// Appends records that are in registered memory, each at an offset and with a length, as
    /// [`append_batch`](Self::append_batch). The fabric collects them from there (*SGL* in the paper), or as `way` says.
    ///
    /// # Errors
    /// As `append_batch`; `Memory` with `OutOfBounds`: nothing was appended.
    pub fn append_table(
        &mut self,
        client: &mut MemoryClient,
        buffer: &Buffer,
        records: &[(u64, u32)],
        way: VectorIo,
        timeout: Duration,
    ) -> Result<Option<u64>, LogError> {
        if records.is_empty() {
            return Ok(None);
        }
        let table = BatchTable { buffer, records, way };
        self.appender.frame.fill_table(client, &table)?;
        self.append_frame(client, Some(&table), timeout)
    }

    fn append_frame(
        &mut self,
        client: &mut MemoryClient,
        table: Option<&BatchTable<'_>>,
        timeout: Duration,
    ) -> Result<Option<u64>, LogError> {
        let deadline = Deadline::after(timeout);
        let quota = match self.mode {
            AppendMode::Lazy => {
                return self.append_to_lane(client, table, &deadline).map(|()| None);
            }
            AppendMode::Planned { quota_bytes } => quota_bytes,
            AppendMode::Positioned => 0,
        };
        self.appender.append(client, table, quota, &deadline).map(Some)
    }

    fn append_to_lane(
        &mut self,
        client: &mut MemoryClient,
        table: Option<&BatchTable<'_>>,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let Self { appender, lane: place, .. } = self;
        let mut lane = match place.take() {
            Some(lane) => lane,
            None => {
                // Taking a lane appends a cut by the same frame.
                let mut taker = Appender::new(client, appender.layout, deadline)?;
                WriterLane::take(client, &mut taker, deadline)?
            }
        };
        let appended = lane.append(client, appender, table, deadline);
        if matches!(appended, Ok(()) | Err(LogError::Full(_) | LogError::TooLarge(..))) {
            *place = Some(lane);
        }
        appended
    }

    /// Ends the writer: gives back what it has reserved, or its lane. Without this readers wait for a lease for the
    /// reservation of a planned writer, and other lazy writers for the lane.
    ///
    /// # Errors
    /// `Memory`; all records are in the log nevertheless.
    pub fn finish(mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), LogError> {
        let deadline = Deadline::after(timeout);
        self.appender.void_rest(client, &deadline)?;
        match self.lane {
            Some(lane) => lane.leave(client, &deadline),
            None => Ok(()),
        }
    }
}

impl std::fmt::Debug for LogWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LogWriter({:?})", self.mode)
    }
}
