//! Persistent memory that loses what was not written back, for logs on files of a folder.
//!
//! * A store is seen by later loads at once, also by those of a later process.
//! * A line of 64 B is kept once it was written back and a fence has followed. At a power cut each other line that was
//!   stored to is kept or not, at random: as it was written back, as it was stored last, or as before.
//! * The end of a process loses nothing, and ends no write-back.
//!
//! The files of the folder have what is kept.

use farside::durable::{LogDevice, PersistentDevice, PersistentMemory, Promise, Segment};
use farside::{Error, ErrorCode};
use farside_base::Random;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes that are kept or lost together.
const LINE: u64 = 64;

/// A line that differs from its file.
struct CachedLine {
    file: Arc<File>,
    seen: [u8; LINE as usize],
    /// As it was written back, before a fence.
    on_its_way: Option<[u8; LINE as usize]>,
}

struct CacheState {
    random: Random,
    /// By file and line.
    lines: BTreeMap<(u64, u64), CachedLine>,
    /// Calls that change something, until the power is cut.
    until_cut: Option<u64>,
    is_cut: bool,
}

/// A folder on simulated persistent memory, which outlives the processes that use it. It is removed at the end.
#[derive(Clone)]
pub struct SimPersistent {
    state: Arc<Mutex<CacheState>>,
    folder: Arc<SimFolder>,
}

struct SimFolder(PathBuf);

impl Drop for SimFolder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl SimPersistent {
    /// Memory without a log, whose files are in a folder that does not exist yet.
    pub fn new(seed: u64, folder: PathBuf) -> Self {
        let (random, lines) = (Random::new(seed), BTreeMap::new());
        let state = CacheState { random, lines, until_cut: None, is_cut: false };
        Self { state: Arc::new(Mutex::new(state)), folder: Arc::new(SimFolder(folder)) }
    }

    fn state(&self) -> MutexGuard<'_, CacheState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Persistent memory with files of its own.
    pub fn temporary(seed: u64) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("persistent-{}-{number}", std::process::id());
        Self::new(seed, std::env::temp_dir().join(name))
    }

    /// Returns the device of a process: that of programs, over this memory.
    ///
    /// # Errors
    /// As [`PersistentDevice::open`].
    pub fn device(&self) -> Result<Box<dyn LogDevice>, Error> {
        let memory = self.clone();
        let mapper = move |file: &File| {
            let file = Arc::new(file.try_clone()?);
            let number = file.metadata()?.ino();
            let memory = SimMapping { memory: memory.clone(), file, number };
            Ok(Box::new(memory) as Box<dyn PersistentMemory>)
        };
        let device = PersistentDevice::with_memory(&self.folder.0, Box::new(mapper))?;
        Ok(Box::new(SimDevice { memory: self.clone(), device }))
    }

    /// Cuts the power within one of the next calls that change something.
    pub fn cut_power_within(&self, calls: u64) {
        let mut state = self.state();
        let at = state.random.below(calls);
        state.until_cut = Some(at);
    }

    /// Whether the power was cut.
    pub fn is_cut(&self) -> bool {
        self.state().is_cut
    }

    /// Forgets a cut that has not happened.
    pub fn calm(&self) {
        self.state().until_cut = None;
    }

    /// Cuts the power, if it is not, and switches it on again: what was not kept is lost.
    ///
    /// # Errors
    /// Those of the files.
    pub fn restart(&self) -> io::Result<()> {
        let mut state = self.state();
        let CacheState { random, lines, .. } = &mut *state;
        for ((_, line), cached) in std::mem::take(lines) {
            match (random.below(3), cached.on_its_way) {
                (0, _) => {}
                (1, Some(bytes)) => cached.file.write_all_at(&bytes, line * LINE)?,
                _ => cached.file.write_all_at(&cached.seen, line * LINE)?,
            }
        }
        (state.is_cut, state.until_cut) = (false, None);
        Ok(())
    }
}

impl CacheState {
    /// Counts a call that changes something. Returns whether the power is cut within it; an error if it was before.
    fn call(&mut self) -> io::Result<bool> {
        if self.is_cut {
            return Err(io::Error::other("no power"));
        }
        match &mut self.until_cut {
            Some(0) => (self.is_cut, self.until_cut) = (true, None),
            Some(left) => *left -= 1,
            None => {}
        }
        Ok(self.is_cut)
    }
}

/// A mapped file.
struct SimMapping {
    memory: SimPersistent,
    file: Arc<File>,
    number: u64,
}

impl SimMapping {
    /// Whether a range is in the file.
    fn check(&self, at: u64, bytes: u64) -> io::Result<()> {
        let is_inside = at + bytes <= self.file.metadata()?.len();
        if is_inside { Ok(()) } else { Err(io::ErrorKind::InvalidInput.into()) }
    }
}

impl PersistentMemory for SimMapping {
    fn load(&mut self, at: u64, out: &mut [u8]) -> io::Result<()> {
        self.check(at, out.len() as u64)?;
        self.file.read_exact_at(out, at)?;
        let state = self.memory.state();
        let end = at + out.len() as u64;
        let lines = (self.number, at / LINE)..(self.number, end.div_ceil(LINE));
        for ((_, line), cached) in state.lines.range(lines) {
            let (from, to) = ((line * LINE).max(at), ((line + 1) * LINE).min(end));
            let seen = &cached.seen[(from - line * LINE) as usize..(to - line * LINE) as usize];
            out[(from - at) as usize..(to - at) as usize].copy_from_slice(seen);
        }
        Ok(())
    }

    fn store(&mut self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.check(at, bytes.len() as u64)?;
        let mut state = self.memory.state();
        state.call()?;
        for (offset, byte) in bytes.iter().enumerate() {
            let place = at + offset as u64;
            let key = (self.number, place / LINE);
            let cached = match state.lines.entry(key) {
                Entry::Occupied(cached) => cached.into_mut(),
                Entry::Vacant(absent) => {
                    // The files of a log have whole lines.
                    let mut seen = [0; LINE as usize];
                    self.file.read_exact_at(&mut seen, place / LINE * LINE)?;
                    let file = self.file.clone();
                    absent.insert(CachedLine { file, seen, on_its_way: None })
                }
            };
            cached.seen[(place % LINE) as usize] = *byte;
        }
        Ok(())
    }

    fn write_back(&mut self, at: u64, bytes: u64) -> io::Result<()> {
        self.check(at, bytes)?;
        let mut state = self.memory.state();
        let is_cut = state.call()?;
        let lines = (self.number, at / LINE)..(self.number, (at + bytes).div_ceil(LINE));
        let CacheState { lines: cache, random, .. } = &mut *state;
        for (_, cached) in cache.range_mut(lines) {
            if !is_cut || random.below(2) == 0 {
                cached.on_its_way = Some(cached.seen);
            }
        }
        Ok(())
    }

    fn fence(&mut self) {
        let mut state = self.memory.state();
        if !state.call().is_ok_and(|is_cut| !is_cut) {
            return;
        }
        state.lines.retain(|(_, line), cached| match cached.on_its_way.take() {
            // A file that cannot be written to fails the test, by what is missing.
            Some(bytes) if cached.file.write_all_at(&bytes, line * LINE).is_ok() => {
                bytes != cached.seen
            }
            _ => true,
        });
    }
}

impl Drop for SimMapping {
    fn drop(&mut self) {
        for ((number, _), cached) in &mut self.memory.state().lines {
            if *number == self.number {
                cached.on_its_way = None;
            }
        }
    }
}

/// The device of programs, whose process ends with the power.
struct SimDevice {
    memory: SimPersistent,
    device: PersistentDevice,
}

impl SimDevice {
    /// A call of files, which happens before the cut or not at all.
    fn call_whole(&self) -> Result<(), Error> {
        match self.memory.state().call() {
            Ok(false) => Ok(()),
            _ => Err(no_power()),
        }
    }

    /// The result of a call, if the process has seen it.
    fn seen(&self, result: Result<(), Error>) -> Result<(), Error> {
        if self.memory.is_cut() { Err(no_power()) } else { result }
    }
}

fn no_power() -> Error {
    Error::with(ErrorCode::DeviceFailed, "no power")
}

impl LogDevice for SimDevice {
    fn promise(&self) -> Promise {
        self.device.promise()
    }

    fn log_id(&self) -> u64 {
        self.device.log_id()
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        self.device.segments()
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        self.call_whole()?;
        self.device.create(segment)
    }

    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let written = self.device.write(segment, at, bytes);
        self.seen(written)
    }

    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        let synced = self.device.sync(segment);
        self.seen(synced)
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        self.device.read(segment, at, out)
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        self.call_whole()?;
        self.device.remove(segment)
    }
}
