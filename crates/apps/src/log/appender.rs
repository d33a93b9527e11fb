//! Reserves positions of a log and commits records at them.

use super::checkpoint::Checkpoint;
use super::error::LogError;
use super::frame::{BatchTable, RecordFrame, VOID, place, timed_out, void_word};
use super::layout::{GRANULE, Layout, LogRing};
use super::ring::Requests;
use farside::ErrorCode;
use farside::onesided::{Buffer, Deadline, MemoryClient, RangeList};
use farside::record::PlaceState;
use farside::runtime::Instant;
use std::hash::{BuildHasher, RandomState};

/// Positions that this program has reserved.
#[derive(Clone, Copy)]
struct Reserved {
    next: u64,
    end: u64,
    /// Before the reservation: others take it for abandoned a lease later.
    since: Instant,
}

/// Appends frames at positions.
pub(super) struct Appender {
    pub(super) layout: Layout,
    pub(super) ring: LogRing,
    pub(super) checkpoint: Checkpoint,
    pub(super) frame: RecordFrame,
    reserved: Option<Reserved>,
    /// The tail is at least there.
    tail_seen: u64,
    /// Tells its records from those of others.
    pub(super) number: u64,
    pub(super) sequence: u64,
    /// For the words of all lanes.
    pub(super) lanes: Option<Buffer>,
}

impl Appender {
    pub(super) fn new(
        client: &mut MemoryClient,
        layout: Layout,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        Ok(Self {
            layout,
            ring: layout.ring(),
            checkpoint: Checkpoint::new(client, &layout, deadline)?,
            frame: RecordFrame::new(client)?,
            reserved: None,
            tail_seen: 0,
            number: RandomState::new().hash_one("writer"),
            sequence: 0,
            lanes: None,
        })
    }

    /// Appends the frame, and returns its position. Reserves at least `quota` bytes if it must reserve.
    pub(super) fn append(
        &mut self,
        client: &mut MemoryClient,
        table: Option<&BatchTable<'_>>,
        quota: u64,
        deadline: &Deadline,
    ) -> Result<u64, LogError> {
        let bytes = self.frame.footprint();
        if bytes > self.ring.record_max() {
            return Err(LogError::TooLarge(bytes, self.ring.record_max()));
        }
        self.sequence += 1;
        loop {
            let (position, since) = self.reserve(client, bytes, quota, deadline)?;
            let first = self.frame.seal(self.ring.seed, position, (self.number, self.sequence))?;
            // Readers close what is not committed within a lease.
            if since.elapsed() < self.layout.options.lease / 2 {
                self.frame.in_flight = true;
                let is_committed = self.commit(client, (position, first), table, deadline)?;
                self.frame.in_flight = false;
                if is_committed {
                    return Ok(position);
                }
            }
            self.reserved = None;
            if deadline.is_over() {
                return Err(timed_out());
            }
        }
    }

    /// Takes positions of what is reserved, or reserves more; also returns since when.
    fn reserve(
        &mut self,
        client: &mut MemoryClient,
        bytes: u64,
        quota: u64,
        deadline: &Deadline,
    ) -> Result<(u64, Instant), LogError> {
        let half = self.layout.options.lease / 2;
        if let Some(reserved) = self.reserved.as_mut().filter(|it| it.since.elapsed() < half)
            && reserved.end - reserved.next >= bytes
        {
            let position = reserved.next;
            reserved.next += bytes;
            return Ok((position, reserved.since));
        }
        self.void_rest(client, deadline)?;
        let wanted = bytes.max(quota);
        if self.tail_seen + wanted > self.limit() {
            self.tail_seen = deadline.read_word(client, self.layout.tail())?;
            self.fits(client, self.tail_seen + wanted, deadline)?;
        }
        let since = Instant::now();
        let position = loop {
            let added = client.fetch_add(self.layout.tail(), wanted)?;
            match deadline.wait(client, added) {
                // What it may have reserved is closed by readers.
                Err(error) if error.code == ErrorCode::Indeterminate => {}
                outcome => break outcome?,
            }
        };
        self.tail_seen = position + wanted;
        self.fits(client, self.tail_seen, deadline)?;
        self.reserved = Some(Reserved { next: position + bytes, end: self.tail_seen, since });
        Ok((position, since))
    }

    /// The first position that has no room before the log is trimmed.
    pub(super) fn limit(&self) -> u64 {
        self.checkpoint.position + self.ring.bytes
    }

    fn fits(
        &mut self,
        client: &mut MemoryClient,
        end: u64,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        if end > self.limit() {
            self.checkpoint.refresh(client, deadline)?;
        }
        if end > self.limit() {
            return Err(LogError::Full(end - self.limit()));
        }
        Ok(())
    }

    /// Gives back what it has reserved and not used, so that readers need not wait for it.
    pub(super) fn void_rest(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let Some(Reserved { next, end, since }) = self.reserved.take() else {
            return Ok(());
        };
        if next == end || since.elapsed() > self.layout.options.lease / 2 {
            return Ok(());
        }
        let void = void_word(self.ring.seed, next, VOID, (end - next) / GRANULE);
        Ok(deadline.replace(client, self.ring.at(next), (0, void)).map(drop)?)
    }

    /// Writes the frame, then its first word. False if the position was closed: the frame is in the log nowhere.
    fn commit(
        &mut self,
        client: &mut MemoryClient,
        (position, first): (u64, u64),
        table: Option<&BatchTable<'_>>,
        deadline: &Deadline,
    ) -> Result<bool, LogError> {
        let ring = self.ring;
        let mut requests = Requests::default();
        write_frame(client, &ring, (&self.frame, position, 8), table, &mut requests)?;
        if !client.capabilities().message_order {
            requests.wait(client, deadline)?;
        }
        let at = ring.at(position);
        requests.push(client.compare_swap(at, 0, first)?);
        let was = match requests.wait(client, deadline) {
            Err(LogError::Memory(error)) if error.code == ErrorCode::Indeterminate => {
                deadline.replace(client, at, (0, first))?
            }
            outcome => outcome?,
        };
        match place(ring.seed, position, was) {
            _ if was == 0 || was == first => Ok(true),
            PlaceState::Void(_) | PlaceState::Closing => Ok(false),
            _ => Err(LogError::Corrupt(position)),
        }
    }
}

/// Queues the WRITEs of a frame, without its first `skipped` bytes.
pub(super) fn write_frame(
    client: &mut MemoryClient,
    ring: &LogRing,
    (frame, position, skipped): (&RecordFrame, u64, u64),
    table: Option<&BatchTable<'_>>,
    requests: &mut Requests,
) -> Result<(), LogError> {
    let own = GRANULE + u64::from(frame.own_bytes);
    let part = (skipped, own - skipped);
    ring.write(client, position + skipped, &frame.buffer, part, requests)?;
    if let Some(BatchTable { buffer, records, way }) = table {
        let mut ranges = Vec::with_capacity(records.len() + 1);
        ring.ranges(position + own, records, &mut ranges);
        if !ranges.is_empty() {
            let ranges = RangeList::explicit(&ranges)?.by(*way);
            requests.push(client.write_ranges(ring.at, buffer, 0, &ranges)?);
        }
    }
    Ok(())
}
