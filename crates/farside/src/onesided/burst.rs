//! A write-combining buffer for remote memory (paper 000, section III-C: IO consolidation, the *remote burst buffer*).
//!
//! A block of remote memory that is being written is *held* in a frame of local memory. A flush posts a WRITE of its
//! written bytes, and the next write of the block takes another frame, so that flushes of one block are in flight
//! together:
//!
//! ```text
//! free -> held -> in flight -> free
//!                  |     ^
//!                  +-----+ a flush failed: it and all later ones are repeated, in order
//! ```
//! Invariants: a frame that is in flight does not change; at most `blocks` frames are held and `flushes_max` in flight,
//! of as many frames in all; flushes are posted in the order of the queue of those in flight.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress, RequestId};
use super::dirty::DirtyBytes;
use super::ranges::{RangeList, TransferRange};
use super::vector::VectorIo;
use crate::buffer::Buffer;
use crate::runtime::Instant;
use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_base::{Access, FlushScope, FlushWay};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hasher};
use std::ops::{Range, RangeInclusive};
use std::time::Duration;

/// Possible bytes of a block.
const BLOCK_BYTES: RangeInclusive<u32> = 64..=1 << 20;
/// Most blocks held, and most flushes in flight.
const BLOCKS_MAX: u32 = 4096;
const FLUSHES_MAX: u32 = 1024;

/// Options of a [`BurstBuffer`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct BurstOptions {
    /// Bytes of a block, a power of two from 64 B to 1 MiB; 1 KiB by default.
    pub block_bytes: u32,
    /// Most blocks held, up to 4,096; 64 by default.
    pub blocks: u32,
    /// Writes of a block after which it is flushed; 16 by default.
    pub theta: u32,
    /// Time after the first write of a block at which it is flushed; 1 ms by default, `Duration::MAX`: never.
    pub time_out: Duration,
    /// Most flushes in flight, up to 1,024; 16 by default, and one where the fabric has no `message_order`. A write
    /// that needs another one waits for the oldest.
    pub flushes_max: u32,
}

setters!(BurstOptions {
    block_bytes: u32,
    blocks: u32,
    theta: u32,
    time_out: Duration,
    flushes_max: u32,
});

impl Default for BurstOptions {
    fn default() -> Self {
        Self {
            block_bytes: 1024,
            blocks: 64,
            theta: 16,
            time_out: Duration::from_millis(1),
            flushes_max: 16,
        }
    }
}

impl BurstOptions {
    fn check(&self, transfer_bytes_max: u64) -> Result<(), Error> {
        let Self { block_bytes, blocks, theta, flushes_max, .. } = *self;
        let text = if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            format!("block_bytes is {block_bytes}: a power of two from 64 to 1 MiB")
        } else if u64::from(block_bytes) > transfer_bytes_max {
            format!("block_bytes is {block_bytes}: the fabric moves up to {transfer_bytes_max}")
        } else if !(1..=BLOCKS_MAX).contains(&blocks) {
            format!("blocks is {blocks}: 1 to {BLOCKS_MAX}")
        } else if !(1..=FLUSHES_MAX).contains(&flushes_max) {
            format!("flushes_max is {flushes_max}: 1 to {FLUSHES_MAX}")
        } else if theta == 0 {
            "theta is 0: a block is flushed after at least one write".to_owned()
        } else {
            return Ok(());
        };
        Err(Error::with(ErrorCode::BadConfiguration, text))
    }
}

/// What a [`BurstBuffer`] has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct BurstStats {
    /// Writes of blocks: a write that spans two blocks counts twice.
    pub writes: u64,
    /// Blocks flushed after `theta` writes.
    pub flushed_by_theta: u64,
    /// Blocks flushed by time-out.
    pub flushed_by_time_out: u64,
    /// Blocks flushed because others took their places.
    pub flushed_by_eviction: u64,
    /// Blocks flushed by [`BurstBuffer::flush`].
    pub flushed_by_call: u64,
    /// Writes of blocks that took no place.
    pub written_through: u64,
    /// Flushes that were repeated after a failure.
    pub repeated: u64,
    /// Remote WRITEs of all these: one for each run of written bytes.
    pub work_requests: u64,
}

/// Why a block is flushed.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cause {
    Theta,
    TimeOut,
    Eviction,
    Call,
    Through,
}

impl BurstStats {
    const fn count(&mut self, cause: Cause) {
        let counter = match cause {
            Cause::Theta => &mut self.flushed_by_theta,
            Cause::TimeOut => &mut self.flushed_by_time_out,
            Cause::Eviction => &mut self.flushed_by_eviction,
            Cause::Call => &mut self.flushed_by_call,
            Cause::Through => &mut self.written_through,
        };
        *counter += 1;
    }
}

/// How often a block is written, as a program has hinted. In the top bits of a rank, so that colder blocks give way.
const HEAT_SHIFT: u32 = 62;
const COLD: u64 = 0;
const WARM: u64 = 1 << HEAT_SHIFT;
const HOT: u64 = 2 << HEAT_SHIFT;
const HEAT: u64 = 3 << HEAT_SHIFT;
/// The rank of a frame that is not held.
const NOT_HELD: u64 = u64::MAX;

/// A frame of local memory, with bytes of a block.
#[derive(Clone, Copy)]
struct BlockFrame {
    block: u64,
    writes: u32,
    /// The first write, if there is a time-out.
    since: Option<Instant>,
}

/// A flush in flight; `None`: to be repeated.
struct Flight {
    frame: u32,
    request: Option<RequestId>,
}

/// Spreads the numbers of blocks, which the program chooses itself.
#[derive(Default)]
struct BlockHasher(u64);

impl Hasher for BlockHasher {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    #[inline]
    fn write_u64(&mut self, block: u64) {
        let product = (self.0 ^ block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0 = product ^ product >> 32;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

/// A write-combining buffer for a range of a [`RemoteMemory`](super::RemoteMemory) (paper 000, section III-C).
///
/// Writes are collected in local memory, block by block. A block is flushed by one WRITE once it has had `theta` writes,
/// once its time-out has passed, when its place is needed by another block (the least recently used one gives way), and
/// by [`flush`](Self::flush). Bytes between written ones are left as they are: such a block is flushed by a WRITE for
/// each run of written bytes, with one doorbell.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{BurstBuffer, BurstOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
/// # let (name, second) = (format!("burst-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let server = MemoryServer::lend(&fabric, &name, 1 << 20, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let options = BurstOptions::default().theta(16); // blocks of 1 KiB
/// let mut burst = BurstBuffer::new(&client, memory.at(0), 1 << 20, &options)?;
/// for record in 0..32_u64 {
///     burst.write(&mut client, record * 32, &record.to_le_bytes().repeat(4), second)?;
/// }
/// burst.flush(&mut client, second)?; // all is placed
/// assert_eq!(burst.stats().writes, 32);
/// assert!(burst.stats().work_requests <= 4); // 2, if no time-out has passed
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Order*. Writes of one block take effect in their order, those of different blocks in that of their flushes. After
/// `flush` all earlier writes are visible to all clients. [`read`](Self::read) returns the writes of this buffer at
/// once. Other clients see each flush, not each write; a flush of more than 8 B is not atomic. Other requests of the
/// client do not see writes that are not flushed.
///
/// *What is lost if the holder dies*: the writes of blocks that are held, less than `theta` of each of at most
/// `blocks` blocks, all of them younger than the time-out if the program calls some method as often. A flush in flight
/// is placed, not placed, or, if longer than 8 B, placed in part. All earlier flushes are there. Dropping the buffer
/// does the same: [`flush`](Self::flush) before.
///
/// *Time*. No thread watches the time-out: each call checks it, and [`progress`](Self::progress) is for programs that
/// have nothing else to call. *Failures*. A flush that fails loses nothing. The call that notices returns the error;
/// the blocks keep their bytes, and the next flush repeats it and all later ones, in order. After `PeerLost`,
/// open the memory again and [`resume_at`](Self::resume_at) it.
///
/// *Cost* of a write: a copy, a lookup and a reading of the clock (none without a time-out), without allocation; of an
/// eviction: a comparison for each frame; of a flush: a doorbell, and an allocation if it has more than one run. Each
/// call takes the client that opened the memory, which may be used for anything else meanwhile.
pub struct BurstBuffer {
    /// The number of the client.
    client: u64,
    at: RemoteAddress,
    bytes: u64,
    options: BurstOptions,
    /// The frames.
    memory: Buffer,
    frames: Box<[BlockFrame]>,
    dirty: DirtyBytes,
    /// Of each frame: heat and last use.
    ranks: Box<[u64]>,
    uses: u64,
    /// The frames of held blocks.
    held: HashMap<u64, u32, BuildHasherDefault<BlockHasher>>,
    free: Vec<u32>,
    flights: VecDeque<Flight>,
    /// A flush has failed: none is posted before those in `flights` are repeated.
    has_failed: bool,
    /// No held block was written for the first time before; `None` if none is held, or there is no time-out.
    earliest: Option<Instant>,
    hints: Vec<(Range<u64>, u64)>,
    /// Of the flush that is being posted.
    runs: Vec<TransferRange>,
    stats: BurstStats,
}

impl BurstBuffer {
    /// Makes a buffer for `bytes` of remote memory from an address on, a multiple of the size of a block. Registers all
    /// memory that it will need: `block_bytes` for each of `blocks` and `flushes_max`.
    ///
    /// # Errors
    /// `BadConfiguration` for options that are out of range, which it names; `ZeroSize`; `Misaligned`; `OutOfBounds`;
    /// `AccessDenied` for memory that is not lent for WRITEs; `BadForm` for memory of another client; `System`.
    pub fn new(
        client: &MemoryClient,
        at: RemoteAddress,
        bytes: u64,
        options: &BurstOptions,
    ) -> Result<Self, Error> {
        options.check(client.capabilities().transfer_bytes_max)?;
        check_place(client, at, bytes, options)?;
        let (block_bytes, blocks) = (options.block_bytes, options.blocks as usize);
        let frames = blocks + options.flushes_max as usize;
        Ok(Self {
            client: client.number(),
            at,
            bytes,
            memory: client.register(frames as u64 * u64::from(block_bytes))?,
            frames: vec![BlockFrame { block: 0, writes: 0, since: None }; frames].into(),
            dirty: DirtyBytes::new(frames, block_bytes),
            ranks: vec![NOT_HELD; frames].into(),
            uses: 0,
            // Twice as many as there are: a table that is half full is cleaned in place, without allocation.
            held: HashMap::with_capacity_and_hasher(2 * blocks, BuildHasherDefault::default()),
            free: (0..frames as u32).rev().collect(),
            flights: VecDeque::with_capacity(options.flushes_max as usize),
            has_failed: false,
            earliest: None,
            hints: Vec::new(),
            runs: Vec::with_capacity(block_bytes as usize / 2),
            stats: BurstStats::default(),
            options: options.clone(),
        })
    }

    /// Returns what it has done.
    pub const fn stats(&self) -> BurstStats {
        self.stats
    }

    /// Returns the number of blocks that are held or in flight.
    pub fn pending(&self) -> usize {
        self.held.len() + self.flights.len()
    }

    /// Says that a range is written often: its blocks are evicted only for other hot ones, and writes of colder blocks
    /// that find no place are written through. The last hint about a block counts.
    ///
    /// *Cost*: a comparison for each hint at a write that begins a block.
    ///
    /// # Errors
    /// `ZeroSize`; `OutOfBounds`.
    pub fn hint_hot(&mut self, range: Range<u64>) -> Result<(), Error> {
        self.hint(&range, HOT)
    }

    /// Says that a range is written seldom: its writes are posted at once, without taking a place. Blocks of it that are
    /// held keep theirs until the next flush.
    ///
    /// # Errors
    /// As [`hint_hot`](Self::hint_hot).
    pub fn hint_cold(&mut self, range: Range<u64>) -> Result<(), Error> {
        self.hint(&range, COLD)
    }

    fn hint(&mut self, range: &Range<u64>, heat: u64) -> Result<(), Error> {
        self.check(range.start, range.end.saturating_sub(range.start))?;
        let block_bytes = u64::from(self.options.block_bytes);
        let blocks = range.start / block_bytes..range.end.div_ceil(block_bytes);
        self.hints.retain(|(old, _)| old.start < blocks.start || old.end > blocks.end);
        self.hints.push((blocks, heat));
        for (&block, &frame) in &self.held {
            let rank = &mut self.ranks[frame as usize];
            *rank = heat_of(&self.hints, block) | *rank & !HEAT;
        }
        Ok(())
    }

    fn check(&self, offset: u64, bytes: u64) -> Result<(), Error> {
        if bytes == 0 {
            return Err(ErrorCode::ZeroSize.into());
        }
        if offset > self.bytes || bytes > self.bytes - offset {
            let text = format!("{bytes} B at {offset} of a burst buffer for {} B", self.bytes);
            return Err(Error::with(ErrorCode::OutOfBounds, text));
        }
        Ok(())
    }

    fn check_client(&self, client: &MemoryClient) -> Result<(), Error> {
        if client.number() == self.client {
            return Ok(());
        }
        Err(Error::with(ErrorCode::BadForm, "the burst buffer was made for another client"))
    }

    /// Writes bytes at an offset of the range.
    ///
    /// *Blocks* while `flushes_max` flushes are in flight and another one is due.
    ///
    /// # Errors
    /// Without any effect: `ZeroSize`, `OutOfBounds`, `BadForm` for another client. After others the bytes may be in
    /// the buffer or not, and may be written again: `TimedOut`; the errors of [`MemoryClient::write`] and of an earlier
    /// flush ([`MemoryClient::take`]).
    pub fn write(
        &mut self,
        client: &mut MemoryClient,
        offset: u64,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        self.check_client(client)?;
        self.check(offset, bytes.len() as u64)?;
        self.flush_late(client)?;
        // The clock is only read by calls that wait.
        let mut deadline = None;
        let mut left = || deadline.get_or_insert_with(|| Deadline::after(timeout)).left();
        let (mut at, mut rest) = (offset, bytes);
        while !rest.is_empty() {
            let (block, within, part) = self.part(at, rest.len());
            let (now, later) = rest.split_at(part);
            self.write_part(client, block, (within, now), &mut left)?;
            (at, rest) = (at + part as u64, later);
        }
        Ok(())
    }

    /// The block of an offset, where it is within, and how many of the bytes from there on are in the block.
    #[inline]
    fn part(&self, offset: u64, bytes: usize) -> (u64, u32, usize) {
        let block_bytes = self.options.block_bytes;
        let block = offset >> block_bytes.trailing_zeros();
        let within = offset as u32 & (block_bytes - 1);
        (block, within, bytes.min((block_bytes - within) as usize))
    }

    #[inline]
    fn write_part(
        &mut self,
        client: &mut MemoryClient,
        block: u64,
        (within, bytes): (u32, &[u8]),
        left: &mut dyn FnMut() -> Duration,
    ) -> Result<(), Error> {
        let frame = match self.held.get(&block) {
            Some(frame) => *frame,
            None => loop {
                if let Some(frame) = self.begin(client, block)? {
                    break frame;
                }
                self.wait_for_one(client, left())?;
            },
        };
        self.memory.write(self.place(frame) + u64::from(within), bytes)?;
        self.dirty.mark(frame, within..within + bytes.len() as u32);
        self.stats.writes += 1;
        self.uses += 1;
        let rank = &mut self.ranks[frame as usize];
        let is_through = *rank == NOT_HELD;
        if !is_through {
            *rank = *rank & HEAT | self.uses;
        }
        let writes = &mut self.frames[frame as usize].writes;
        *writes = writes.saturating_add(1);
        if !is_through && *writes < self.options.theta {
            return Ok(());
        }
        let cause = if is_through { Cause::Through } else { Cause::Theta };
        let posted = self.post_waiting(client, frame, cause, left);
        if is_through && posted.is_err() {
            self.release(frame);
        }
        posted
    }

    /// Begins a block in a free frame: held, or to be written through. `None`: a flush must end before.
    fn begin(&mut self, client: &mut MemoryClient, block: u64) -> Result<Option<u32>, Error> {
        if self.free.is_empty() {
            self.take_ended(client)?;
        }
        let heat = heat_of(&self.hints, block);
        let mut is_held = heat != COLD;
        if is_held && self.held.len() == self.options.blocks as usize {
            let (rank, victim) = self.ranks.iter().zip(0_u32..).min().unwrap_or((&NOT_HELD, 0));
            is_held = rank & HEAT <= heat;
            if is_held && !self.post(client, victim, Cause::Eviction)? {
                return Ok(None);
            }
        }
        let Some(frame) = self.free.pop() else {
            return Ok(None);
        };
        let since =
            if self.options.time_out == Duration::MAX { None } else { Some(Instant::now()) };
        self.frames[frame as usize] = BlockFrame { block, writes: 0, since };
        if is_held {
            self.held.insert(block, frame);
            self.ranks[frame as usize] = heat;
            self.earliest = self.earliest.or(since);
        }
        Ok(Some(frame))
    }

    /// Where a frame is in the local memory.
    fn place(&self, frame: u32) -> u64 {
        u64::from(frame) * u64::from(self.options.block_bytes)
    }

    /// Frees a frame that is neither held nor in flight.
    fn release(&mut self, frame: u32) {
        self.dirty.clear(frame);
        self.free.push(frame);
    }

    /// Posts the flush of a frame, after others have ended if need be.
    fn post_waiting(
        &mut self,
        client: &mut MemoryClient,
        frame: u32,
        cause: Cause,
        left: &mut dyn FnMut() -> Duration,
    ) -> Result<(), Error> {
        while !self.post(client, frame, cause)? {
            self.wait_for_one(client, left())?;
        }
        Ok(())
    }

    /// Posts the flush of a frame; after an error it is as before. `false`: a flush must end before.
    fn post(&mut self, client: &mut MemoryClient, frame: u32, cause: Cause) -> Result<bool, Error> {
        self.take_ended(client)?;
        if self.has_failed && !self.repeat(client)? {
            return Ok(false);
        }
        let is_ordered = client.capabilities().message_order;
        let most = if is_ordered { self.options.flushes_max as usize } else { 1 };
        if self.flights.len() >= most {
            return Ok(false);
        }
        let request = match self.request(client, frame) {
            // Of the client's requests some are flushes.
            Err(error) if error.code == ErrorCode::TooManyRequests && !self.flights.is_empty() => {
                return Ok(false);
            }
            request => request?,
        };
        self.flights.push_back(Flight { frame, request: Some(request) });
        self.stats.count(cause);
        if std::mem::replace(&mut self.ranks[frame as usize], NOT_HELD) != NOT_HELD {
            self.held.remove(&self.frames[frame as usize].block);
        }
        if cause != Cause::Call {
            client.submit();
        }
        Ok(true)
    }

    /// Queues the WRITE of a frame, or one for each run of written bytes.
    fn request(&mut self, client: &mut MemoryClient, frame: u32) -> Result<RequestId, Error> {
        let from = self.place(frame);
        let block = self.frames[frame as usize].block;
        let to = self.at.plus(block * u64::from(self.options.block_bytes));
        self.runs.clear();
        self.runs.extend(self.dirty.runs(frame).map(|run| {
            let at = u64::from(run.start);
            TransferRange { local: at, remote: at, bytes: run.end - run.start }
        }));
        let request = match self.runs[..] {
            [TransferRange { local: at, bytes, .. }] => {
                let from = from + at;
                client.write(to.plus(at), &self.memory, from..from + u64::from(bytes))?
            }
            _ => {
                let list = RangeList::explicit(&self.runs)?.by(VectorIo::Doorbell);
                client.write_ranges(to, &self.memory, from, &list)?
            }
        };
        client.hide(request);
        self.stats.work_requests += self.runs.len() as u64;
        Ok(request)
    }

    /// Repeats the flushes in flight after a failure, in order. `false`: some have not ended.
    fn repeat(&mut self, client: &mut MemoryClient) -> Result<bool, Error> {
        if self.flights.iter().any(|flight| flight.request.is_some()) {
            return Ok(false);
        }
        for at in 0..self.flights.len() {
            let request = self.request(client, self.flights[at].frame)?;
            self.flights[at].request = Some(request);
            self.stats.repeated += 1;
        }
        self.has_failed = false;
        client.submit();
        Ok(true)
    }

    /// Takes the outcomes of flushes that have ended.
    ///
    /// # Errors
    /// That of the first flush that has failed since the last repetition.
    fn take_ended(&mut self, client: &mut MemoryClient) -> Result<(), Error> {
        if self.flights.is_empty() {
            return Ok(());
        }
        client.progress();
        while let Some((at, request)) = self.oldest() {
            match client.take(request) {
                Ok(None) => return Ok(()),
                outcome => self.ended(at, outcome.map(drop))?,
            }
        }
        Ok(())
    }

    /// Waits for the end of a flush in flight, or repeats those that have failed.
    fn wait_for_one(&mut self, client: &mut MemoryClient, left: Duration) -> Result<(), Error> {
        let Some((at, request)) = self.oldest() else {
            return self.repeat(client).map(drop);
        };
        match client.wait(request, left) {
            Err(error) if error.code == ErrorCode::TimedOut => Err(error),
            outcome => self.ended(at, outcome.map(drop)),
        }
    }

    /// The oldest flush that has not ended.
    fn oldest(&self) -> Option<(usize, RequestId)> {
        let mut flights = self.flights.iter().enumerate();
        flights.find_map(|(at, flight)| flight.request.map(|request| (at, request)))
    }

    /// A flush has ended; after a failure it is kept, as those that were posted later.
    fn ended(&mut self, at: usize, outcome: Result<(), Error>) -> Result<(), Error> {
        if self.has_failed {
            self.flights[at].request = None;
            return Ok(());
        }
        if outcome.is_ok() {
            if let Some(flight) = self.flights.pop_front() {
                self.release(flight.frame);
            }
            return Ok(());
        }
        self.flights[at].request = None;
        self.has_failed = true;
        outcome
    }

    /// Flushes the blocks whose time-out has passed, as far as flushes may be in flight.
    #[inline]
    fn flush_late(&mut self, client: &mut MemoryClient) -> Result<(), Error> {
        match self.earliest {
            Some(earliest) if earliest.elapsed() >= self.options.time_out => {
                self.flush_late_blocks(client)
            }
            _ => Ok(()),
        }
    }

    #[cold]
    fn flush_late_blocks(&mut self, client: &mut MemoryClient) -> Result<(), Error> {
        let mut earliest = None;
        for frame in 0..self.frames.len() as u32 {
            if self.ranks[frame as usize] == NOT_HELD {
                continue;
            }
            let since = self.frames[frame as usize].since;
            let is_late = since.is_some_and(|since| since.elapsed() >= self.options.time_out);
            if !is_late || !self.post(client, frame, Cause::TimeOut)? {
                earliest = [earliest, since].into_iter().flatten().min();
            }
        }
        self.earliest = earliest;
        Ok(())
    }

    /// Flushes blocks whose time-out has passed and takes the outcomes of flushes, without blocking. For programs that
    /// wait for something else; returns whether anything is not placed.
    ///
    /// # Errors
    /// As [`write`](Self::write), for flushes.
    pub fn progress(&mut self, client: &mut MemoryClient) -> Result<bool, Error> {
        self.check_client(client)?;
        self.take_ended(client)?;
        self.flush_late(client)?;
        Ok(self.pending() > 0)
    }

    /// Flushes all blocks and waits until all earlier writes are placed: visible to all clients.
    ///
    /// *Blocks* for a round trip, and another one where completions do not mean that (`completion_means_placed`).
    ///
    /// # Errors
    /// `TimedOut`: the rest is flushed by the next call. As [`MemoryClient::take`], for a flush that failed, now or
    /// earlier: nothing is lost, and the next call repeats it. `FabricLacks` where nothing tells when a WRITE is placed.
    pub fn flush(&mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        self.check_client(client)?;
        let deadline = Deadline::after(timeout);
        for frame in 0..self.frames.len() as u32 {
            if self.ranks[frame as usize] != NOT_HELD {
                self.post_waiting(client, frame, Cause::Call, &mut || deadline.left())?;
            }
        }
        self.earliest = None;
        while !self.flights.is_empty() {
            self.wait_for_one(client, deadline.left())?;
        }
        self.confirm(client, &deadline)
    }

    /// Waits until WRITEs that have ended are placed.
    fn confirm(&self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), Error> {
        match client.capabilities().flush_way(FlushScope::Visible) {
            FlushWay::Completion => Ok(()),
            FlushWay::Flush if self.at.memory().access().allows(Access::FLUSH) => {
                let flushed = client.flush(self.at, self.bytes, FlushScope::Visible)?;
                deadline.wait(client, flushed).map(drop)
            }
            // It returns after the WRITEs before it.
            FlushWay::Flush | FlushWay::Read => {
                client.read_bytes(self.at, &mut [0], deadline.left())
            }
            FlushWay::Target => {
                let text = "a way to tell that a WRITE is placed";
                Err(Error::with(ErrorCode::FabricLacks, text))
            }
        }
    }

    /// Reads bytes at an offset of the range: those of the remote memory, with the writes of this buffer over them.
    ///
    /// *Blocks* for a round trip per 256 KiB, for none if held blocks have all of the bytes.
    ///
    /// # Errors
    /// `ZeroSize`; `OutOfBounds`; `BadForm` for another client; as [`MemoryClient::read_bytes`]; as
    /// [`write`](Self::write), for flushes.
    pub fn read(
        &mut self,
        client: &mut MemoryClient,
        offset: u64,
        out: &mut [u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        self.check_client(client)?;
        self.check(offset, out.len() as u64)?;
        self.flush_late(client)?;
        if !self.holds(offset, out.len()) {
            client.read_bytes(self.at.plus(offset), out, timeout)?;
            self.take_ended(client)?;
            // Others were placed before the READ.
            let is_ordered = client.capabilities().message_order;
            for flight in &self.flights {
                if flight.request.is_none() || !is_ordered {
                    self.copy_written(flight.frame, offset, out)?;
                }
            }
        }
        let mut at = 0;
        while at < out.len() {
            let (block, _, part) = self.part(offset + at as u64, out.len() - at);
            if let Some(frame) = self.held.get(&block) {
                self.copy_written(*frame, offset, out)?;
            }
            at += part;
        }
        Ok(())
    }

    /// Whether held blocks have all of these bytes.
    fn holds(&self, offset: u64, bytes: usize) -> bool {
        let mut at = 0;
        while at < bytes {
            let (block, within, part) = self.part(offset + at as u64, bytes - at);
            let range = within..within + part as u32;
            if !self.held.get(&block).is_some_and(|frame| self.dirty.covers(*frame, &range)) {
                return false;
            }
            at += part;
        }
        true
    }

    /// Copies the written bytes of a frame over those from `offset` on.
    fn copy_written(&self, frame: u32, offset: u64, out: &mut [u8]) -> Result<(), Error> {
        let first = self.frames[frame as usize].block * u64::from(self.options.block_bytes);
        let end = offset + out.len() as u64;
        for run in self.dirty.runs(frame) {
            let from = (first + u64::from(run.start)).max(offset);
            let to = (first + u64::from(run.end)).min(end);
            if from < to {
                let part = &mut out[(from - offset) as usize..(to - offset) as usize];
                self.memory.read(self.place(frame) + (from - first), part)?;
            }
        }
        Ok(())
    }

    /// Continues with other memory, from an address on: what is not placed is written there. For memory that was opened
    /// again after `PeerLost`; if its server has started again, what was placed before is lost with its memory.
    ///
    /// # Errors
    /// As [`new`](Self::new); nothing has changed then.
    pub fn resume_at(&mut self, client: &MemoryClient, at: RemoteAddress) -> Result<(), Error> {
        self.check_client(client)?;
        check_place(client, at, self.bytes, &self.options)?;
        self.at = at;
        self.has_failed |= !self.flights.is_empty();
        Ok(())
    }
}

/// Whether a buffer of these options may be for these bytes.
fn check_place(
    client: &MemoryClient,
    at: RemoteAddress,
    bytes: u64,
    options: &BurstOptions,
) -> Result<(), Error> {
    client.own(at.memory())?;
    let text = || format!("a burst buffer for {bytes} B at {}", at.offset());
    if bytes == 0 {
        return Err(ErrorCode::ZeroSize.into());
    }
    if !at.offset().is_multiple_of(options.block_bytes.into()) {
        let text = format!("{}, with blocks of {} B", text(), options.block_bytes);
        return Err(Error::with(ErrorCode::Misaligned, text));
    }
    if at.offset().checked_add(bytes).is_none_or(|end| end > at.memory().bytes()) {
        return Err(Error::with(ErrorCode::OutOfBounds, text()));
    }
    if !at.memory().access().allows(Access::WRITE) {
        return Err(Error::with(ErrorCode::AccessDenied, text()));
    }
    Ok(())
}

/// The heat of a block by the last hint about it.
fn heat_of(hints: &[(Range<u64>, u64)], block: u64) -> u64 {
    let hint = hints.iter().rev().find(|(blocks, _)| blocks.contains(&block));
    hint.map_or(WARM, |(_, heat)| *heat)
}

impl fmt::Debug for BurstBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (bytes, held, flights) = (self.bytes, self.held.len(), self.flights.len());
        write!(f, "BurstBuffer(for {bytes} B, {held} blocks held, {flights} in flight)")
    }
}
