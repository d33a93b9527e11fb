//! Lanes: rings of one lazy writer each, whose records become part of the log by cuts.
//!
//! A lane is locked by its writer. The words `start` and `tail` name the writer by the token of its lock, so that words
//! of an earlier writer count for nothing. A writer that takes a lane over first appends a cut with all records of the
//! one before it; where that one was abandoned, it leaves out as many bytes as a request of it may still write.

use super::appender::{Appender, write_frame};
use super::checkpoint::{LaneCut, LanePosition, decode_cuts, encode_cuts};
use super::error::LogError;
use super::frame::CUT;
use super::layout::{GRANULE, LANE, Layout, LogRing};
use super::ring::Requests;
use farside::ErrorCode;
use farside::onesided::{Buffer, Deadline, MemoryClient, RemoteAddress, RemoteGuard, RemoteLock};

/// Offsets of the words of a lane.
const START: u64 = 8;
const TAIL: u64 = 16;
/// Attempts to see all lanes at one time.
const ATTEMPTS: u32 = 8;

/// Reads how far the writers of all lanes have come.
///
/// Two equal looks are the lanes as they were between the two. If the writers are faster than that, the last look is taken:
/// records of different lanes are then not in the order of time.
fn collect(
    client: &mut MemoryClient,
    layout: &Layout,
    buffer: &Buffer,
    deadline: &Deadline,
) -> Result<Vec<LaneCut>, LogError> {
    let bytes = LANE * u64::from(layout.options.lanes);
    let mut before = Vec::new();
    for _ in 0..ATTEMPTS {
        let read = client.read(layout.lane(0), buffer, 0..bytes)?;
        deadline.wait(client, read)?;
        let mut words = vec![0; bytes as usize];
        buffer.read(0, &mut words)?;
        let lanes = words.chunks_exact(LANE as usize);
        let cuts = lanes.flat_map(|lane| decode_cuts(&lane[START as usize..TAIL as usize + 8]));
        // A tail of another writer than the start's is not one.
        let valid = |cut: LaneCut| match cut.start.epoch() == cut.tail.epoch() {
            true => cut,
            false => LaneCut::default(),
        };
        let now: Vec<LaneCut> = cuts.map(valid).collect();
        if now == before {
            break;
        }
        before = now;
    }
    Ok(before)
}

/// Makes all records of lanes that are behind `known` a part of the log; returns whether there were any.
pub(super) fn bind(
    client: &mut MemoryClient,
    appender: &mut Appender,
    known: &[LaneCut],
    deadline: &Deadline,
) -> Result<bool, LogError> {
    let layout = appender.layout;
    let buffer = match appender.lanes.take() {
        Some(buffer) => buffer,
        None => client.register(LANE * u64::from(layout.options.lanes))?,
    };
    // After an error a request may still write to the buffer.
    let cuts = collect(client, &layout, &buffer, deadline)?;
    appender.lanes = Some(buffer);
    if cuts.iter().zip(known).all(|(now, known)| now.tail <= known.tail) {
        return Ok(false);
    }
    let mut payload = Vec::with_capacity(16 * cuts.len());
    encode_cuts(&cuts, &mut payload);
    appender.frame.fill(client, CUT, &payload)?;
    appender.append(client, None, 0, deadline)?;
    Ok(true)
}

/// A lane that this program writes.
pub(super) struct WriterLane {
    number: u32,
    at: RemoteAddress,
    ring: LogRing,
    guard: RemoteGuard,
    /// Position of the next record.
    next: u64,
    /// A word on its way.
    word: Buffer,
}

impl WriterLane {
    /// Takes a lane that is free, or whose writer is dead.
    pub(super) fn take(
        client: &mut MemoryClient,
        appender: &mut Appender,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        let (layout, lease) = (appender.layout, appender.layout.options.lease);
        let (lanes, first) = (layout.options.lanes, appender.number as u32);
        let mut numbers: Vec<u32> =
            (0..lanes).map(|lane| lane.wrapping_add(first) % lanes).collect();
        while !numbers.is_empty() {
            let lock = |number: &u32| RemoteLock::new(layout.lane(*number), lease);
            let locks = numbers.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
            let patience = (lease + lease / 4).min(deadline.left());
            let (at, guard) = match RemoteLock::lock_any(client, &locks, patience) {
                Err(error) if error.code == ErrorCode::TimedOut => break,
                locked => locked?,
            };
            let number = numbers.swap_remove(at);
            if let Some(lane) = Self::begin(client, appender, (number, guard), deadline)? {
                return Ok(lane);
            }
        }
        Err(LogError::LanesInUse)
    }

    /// Begins to write a lane that this program has locked; `None` if its numbers are used up.
    fn begin(
        client: &mut MemoryClient,
        appender: &mut Appender,
        (number, guard): (u32, RemoteGuard),
        deadline: &Deadline,
    ) -> Result<Option<Self>, LogError> {
        let layout = appender.layout;
        let (at, ring) = (layout.lane(number), layout.lane_ring(number));
        let known = appender.checkpoint.lanes.clone();
        bind(client, appender, &known, deadline)?;
        let mut ends = [0; 2];
        for (offset, end) in [START, TAIL].into_iter().zip(&mut ends) {
            let word = deadline.read_word(client, at.plus(offset))?;
            *end = LanePosition(word).bytes();
        }
        let late = if guard.was_abandoned() { ring.record_max() } else { 0 };
        let next = ends[0].max(ends[1]) + late.next_multiple_of(GRANULE);
        let Some(start) = LanePosition::new(guard.token(), next) else {
            return Ok(None);
        };
        let mut lane = Self { number, at, ring, guard, next, word: client.register(8)? };
        for offset in [START, TAIL] {
            let mut requests = Requests::default();
            lane.store(client, offset, start, &mut requests)?;
            requests.wait(client, deadline)?;
        }
        lane.keep(client, layout.options.lease, deadline)?;
        Ok(Some(lane))
    }

    fn store(
        &self,
        client: &mut MemoryClient,
        offset: u64,
        position: LanePosition,
        requests: &mut Requests,
    ) -> Result<(), LogError> {
        self.word.write(0, &position.0.to_le_bytes())?;
        requests.push(client.write(self.at.plus(offset), &self.word, 0..8)?);
        Ok(())
    }

    /// Renews the lease of the lock in its second half.
    fn keep(
        &mut self,
        client: &mut MemoryClient,
        lease: std::time::Duration,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        if self.guard.left() < lease / 2 {
            self.guard.renew(client, deadline.left())?;
        }
        Ok(())
    }

    /// Appends the appender's frame.
    ///
    /// # Errors
    /// Any but `Full` and `TooLarge` may leave a part of the record behind: then the lane must not be used again.
    pub(super) fn append(
        &mut self,
        client: &mut MemoryClient,
        appender: &mut Appender,
        table: Option<&super::frame::BatchTable<'_>>,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let bytes = appender.frame.footprint();
        if bytes > self.ring.record_max() {
            return Err(LogError::TooLarge(bytes, self.ring.record_max()));
        }
        let mut is_fresh = false;
        while self.next + bytes > self.first(appender) + self.ring.bytes {
            if std::mem::replace(&mut is_fresh, true) {
                return Err(LogError::Full(bytes));
            }
            appender.checkpoint.refresh(client, deadline)?;
        }
        self.keep(client, appender.layout.options.lease, deadline)?;
        appender.sequence += 1;
        let token = self.guard.token();
        appender.frame.seal(self.ring.seed, self.next, (token, appender.sequence))?;
        let end = LanePosition::new(token, self.next + bytes).ok_or(LogError::Full(bytes))?;
        let mut requests = Requests::default();
        appender.frame.in_flight = true;
        write_frame(client, &self.ring, (&appender.frame, self.next, 0), table, &mut requests)?;
        if !client.capabilities().message_order {
            requests.wait(client, deadline)?;
        }
        self.store(client, TAIL, end, &mut requests)?;
        requests.wait(client, deadline)?;
        appender.frame.in_flight = false;
        if self.guard.left().is_zero() {
            let text = "the lease of the lane was over before the record was written";
            return Err(farside::Error::with(ErrorCode::Indeterminate, text).into());
        }
        self.next += bytes;
        Ok(())
    }

    /// The first position that was not trimmed.
    fn first(&self, appender: &Appender) -> u64 {
        let lane = appender.checkpoint.lanes.get(self.number as usize);
        lane.map_or(0, |lane| lane.tail.bytes())
    }

    /// Leaves the lane to other writers.
    pub(super) fn leave(
        self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        Ok(self.guard.unlock(client, deadline.left())?)
    }
}
