//! A disk that loses what was not synced, for logs.
//!
//! * A write is seen by later reads at once. At a power cut each piece of 64 B that was written since the last sync is kept or
//!   not, at random; also of a write that the cut interrupts.
//! * A sync that fails keeps some of the pieces. The others count as clean, as in the page cache of Linux: they are read
//!   back, later syncs succeed without them, and a power cut loses them, unless they are written again.
//! * The end of a process loses nothing.

use farside::durable::{LocalCopy, LogDevice, Medium, Promise, Segment};
use farside::{Error, ErrorCode};
use farside_base::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are kept or lost together.
const PIECE: u64 = 64;

struct DiskSegment {
    bytes: u64,
    /// As it is read.
    seen: Vec<u8>,
    /// As it is after a power cut that loses all else.
    kept: Vec<u8>,
    /// Pieces that the next sync keeps.
    dirty: BTreeSet<u64>,
    /// Pieces that differ, and that no sync keeps.
    lost: BTreeSet<u64>,
}

struct DiskState {
    random: Random,
    segments: BTreeMap<u64, DiskSegment>,
    /// A segment that was removed, to be used again.
    spare: Option<Vec<u8>>,
    /// Of the file of a copy, as far as it was written or reserved.
    copy_bytes: u64,
    /// Calls that change something, until the power is cut.
    until_cut: Option<u64>,
    /// Syncs until one fails.
    until_failure: Option<u64>,
    is_cut: bool,
    has_space: bool,
}

/// A disk, which outlives the processes that use it.
#[derive(Clone)]
pub struct SimDisk(Arc<Mutex<DiskState>>);

impl SimDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Self {
        Self(Arc::new(Mutex::new(DiskState {
            random: Random::new(seed),
            segments: BTreeMap::new(),
            spare: None,
            copy_bytes: 0,
            until_cut: None,
            until_failure: None,
            is_cut: false,
            has_space: true,
        })))
    }

    fn state(&self) -> MutexGuard<'_, DiskState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the device of a process.
    pub fn device(&self) -> Box<dyn LogDevice> {
        Box::new(SimDevice(self.clone()))
    }

    /// Returns the copy of a log that the disk has, of at most these bytes.
    pub fn copy(&self, bytes: u64) -> Box<dyn LocalCopy> {
        Box::new(SimCopy { device: SimDevice(self.clone()), all: Segment { begin: 0, bytes } })
    }

    /// Cuts the power within one of the next calls that change something.
    pub fn cut_power_within(&self, calls: u64) {
        let mut state = self.state();
        let at = state.random.below(calls);
        state.until_cut = Some(at);
    }

    /// Fails one of the next syncs.
    pub fn fail_sync_within(&self, syncs: u64) {
        let mut state = self.state();
        let at = state.random.below(syncs);
        state.until_failure = Some(at);
    }

    /// Sets whether there is space for a segment.
    pub fn set_space(&self, has_space: bool) {
        self.state().has_space = has_space;
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.state().is_cut
    }

    /// Cuts the power, if it is not, and switches it on again: what was not kept is lost.
    pub fn restart(&self) {
        self.state().restart();
    }

    /// Forgets cuts and failures that have not happened.
    pub fn calm(&self) {
        let mut state = self.state();
        (state.until_cut, state.until_failure) = (None, None);
    }

    /// Changes kept bytes: inverts a bit.
    pub fn flip(&self, segment: u64, bit: u64) {
        if let Some(segment) = self.state().segments.get_mut(&segment) {
            for bytes in [&mut segment.seen, &mut segment.kept] {
                bytes[(bit / 8) as usize] ^= 1 << (bit % 8);
            }
        }
    }
}

impl DiskState {
    fn restart(&mut self) {
        let Self { segments, random, .. } = self;
        for segment in segments.values_mut() {
            for piece in std::mem::take(&mut segment.dirty) {
                if random.below(2) == 0 {
                    segment.copy(piece, true);
                }
            }
            segment.lost.clear();
            segment.seen = segment.kept.clone();
        }
        (self.is_cut, self.until_cut, self.until_failure) = (false, None, None);
    }

    /// Counts a call that changes something. Returns whether the power is cut within it; an error if it was before.
    fn call(&mut self) -> Result<bool, Error> {
        if self.is_cut {
            return Err(no_power());
        }
        match &mut self.until_cut {
            Some(0) => (self.is_cut, self.until_cut) = (true, None),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(self.is_cut)
    }

    /// The same for a call that does nothing if the power is cut within it.
    fn call_whole(&mut self) -> Result<(), Error> {
        if self.call()? { Err(no_power()) } else { Ok(()) }
    }

    fn segment(&mut self, segment: Segment) -> Result<&mut DiskSegment, Error> {
        let found = self.segments.get_mut(&segment.begin);
        found.ok_or_else(|| Error::with(ErrorCode::System, "no such segment"))
    }
}

impl DiskSegment {
    /// Copies a piece as it is seen to what is kept, or back.
    fn copy(&mut self, piece: u64, keeps: bool) {
        let range = (piece * PIECE) as usize..((piece + 1) * PIECE).min(self.bytes) as usize;
        match keeps {
            true => self.kept[range.clone()].copy_from_slice(&self.seen[range]),
            false => self.seen[range.clone()].copy_from_slice(&self.kept[range]),
        }
    }
}

fn no_power() -> Error {
    Error::with(ErrorCode::DeviceFailed, "no power")
}

struct SimDevice(SimDisk);

impl LogDevice for SimDevice {
    fn promise(&self) -> Promise {
        Promise::of(Medium::File)
    }

    fn log_id(&self) -> u64 {
        7
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        let state = self.0.state();
        let segment =
            |(begin, one): (&u64, &DiskSegment)| Segment { begin: *begin, bytes: one.bytes };
        Ok(state.segments.iter().map(segment).collect())
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        let mut state = self.0.state();
        if !state.has_space {
            return Err(Error::with(ErrorCode::LogFull, "no space"));
        }
        state.call_whole()?;
        let spare = state.spare.take().filter(|spare| spare.len() as u64 == segment.bytes);
        let seen = spare.unwrap_or_else(|| vec![0; segment.bytes as usize]);
        let (dirty, lost) = (BTreeSet::new(), BTreeSet::new());
        let one = DiskSegment { bytes: segment.bytes, kept: seen.clone(), seen, dirty, lost };
        state.segments.insert(segment.begin, one);
        Ok(())
    }

    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let mut state = self.0.state();
        let is_cut = state.call()?;
        let one = state.segment(segment)?;
        let from = at - segment.begin;
        one.seen[from as usize..][..bytes.len()].copy_from_slice(bytes);
        for piece in from / PIECE..(from + bytes.len() as u64).div_ceil(PIECE) {
            one.dirty.insert(piece);
            one.lost.remove(&piece);
        }
        if is_cut { Err(no_power()) } else { Ok(()) }
    }

    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        let mut state = self.0.state();
        state.call_whole()?;
        let fails = match &mut state.until_failure {
            Some(0) => true,
            Some(left) => {
                *left -= 1;
                false
            }
            None => false,
        };
        let mut random = Random::new(state.random.word());
        let one = state.segment(segment)?;
        for piece in std::mem::take(&mut one.dirty) {
            if fails && random.below(2) == 0 {
                one.lost.insert(piece);
            } else {
                one.copy(piece, true);
            }
        }
        if fails {
            state.until_failure = None;
            return Err(Error::with(ErrorCode::DeviceFailed, "the sync has failed"));
        }
        Ok(())
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let mut state = self.0.state();
        let one = state.segment(segment)?;
        out.copy_from_slice(&one.seen[(at - segment.begin) as usize..][..out.len()]);
        Ok(())
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        let mut state = self.0.state();
        state.call_whole()?;
        let removed = state.segments.remove(&segment.begin);
        state.spare = removed.map(|one| one.kept);
        Ok(())
    }
}

/// A copy of a log in a file of the disk.
struct SimCopy {
    device: SimDevice,
    all: Segment,
}

impl SimCopy {
    /// Makes the file if there is none.
    fn file(&mut self) -> Result<Segment, Error> {
        if self.device.segments()?.is_empty() {
            let mut state = self.device.0.state();
            let has_space = std::mem::replace(&mut state.has_space, true);
            drop(state);
            let created = self.device.create(self.all);
            self.device.0.state().has_space = has_space;
            created?;
        }
        Ok(self.all)
    }
}

impl LocalCopy for SimCopy {
    fn address(&self) -> &'static str {
        "the simulated disk"
    }

    fn id(&self) -> u64 {
        self.device.log_id()
    }

    fn promise(&self) -> Promise {
        self.device.promise()
    }

    fn bytes(&self) -> Result<u64, Error> {
        Ok(self.device.0.state().copy_bytes)
    }

    fn reserve(&mut self, upto: u64) -> Result<(), Error> {
        self.file()?;
        let mut state = self.device.0.state();
        if upto > state.copy_bytes {
            if upto > self.all.bytes || !state.has_space {
                return Err(Error::with(ErrorCode::LogFull, "no space"));
            }
            state.call_whole()?;
            state.copy_bytes = upto;
        }
        Ok(())
    }

    fn read(&mut self, place: u64, out: &mut [u8]) -> Result<(), Error> {
        let file = self.file()?;
        self.device.read(file, place, out)
    }

    fn write(&mut self, place: u64, bytes: &[u8]) -> Result<(), Error> {
        let file = self.file()?;
        self.device.write(file, place, bytes)?;
        let mut state = self.device.0.state();
        state.copy_bytes = state.copy_bytes.max(place + bytes.len() as u64);
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Error> {
        let file = self.file()?;
        self.device.sync(file)
    }
}
