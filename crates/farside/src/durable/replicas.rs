//! A log device on memory of other processes: a copy in each.
//!
//! ```text
//! 0      header of 64 B: version, number of the log, epoch, bytes of a slot, copies that were named, checksum
//! 64     a table of slots, 32 B each: first position, bytes, 1 if it is used, checksum
//! 64 Ki  slots
//! ```
//! Each opening begins an epoch, with the copies that it has reached; each of them has all that is durable, since a sync
//! waits for all. A copy of an earlier epoch, or an empty one, is overwritten. An opening needs more than half of the copies
//! that the one before has named, without empty ones: so it reaches one of the newest epoch.

use super::device::{LogDevice, Medium, Promise, Segment};
use crate::onesided::{
    Buffer, Deadline, MemoryClient, MemoryClientOptions, RemoteMemory, RequestId,
};
use crate::runtime::random;
use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_base::Access;
use farside_fabric::Fabric;
use std::sync::Arc;
use std::time::Duration;
use xxhash_rust::xxh64::xxh64;

const MAGIC: &[u8; 16] = b"farside rep 0001";
const HEADER: usize = 64;
const ENTRY: usize = 32;
/// Bytes before the first slot.
const TABLE: u64 = 64 << 10;
const SLOTS_MAX: usize = (TABLE as usize - HEADER) / ENTRY;
/// Bytes that are copied at a time, and the smallest memory of writes.
const PIECE: usize = 1 << 20;
/// WRITEs after which one more waits for them.
const WRITING_MAX: usize = 256;

/// Options of a [`ReplicatedDevice`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReplicaOptions {
    /// The least copies to open the log with; by default more than half of those that are named, and of those that the
    /// opening before has named. With fewer it is on the caller that no other program went on with the missing ones alone.
    pub copies_min: Option<usize>,
    /// How long each copy is waited for; 10 s by default.
    pub timeout: Duration,
}

setters!(ReplicaOptions { copies_min: Option<usize>, timeout: Duration });

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self { copies_min: None, timeout: Duration::from_secs(10) }
    }
}

/// A copy that was reached.
struct Replica {
    address: String,
    memory: RemoteMemory,
}

/// Keeps a log in memory that servers lend ([`MemoryServer`](crate::onesided::MemoryServer), `farside lend --exclusive`).
///
/// *Guarantees*: what a sync has reported is in all copies of the epoch, so it survives this process and all of them but
/// one. A copy that is lost fails the device: open the log again with the others, and with a new one in its place, which gets
/// all bytes. *Cost*: a WRITE to each copy, all posted together; a sync is one round trip. On fabrics whose completions do
/// not mean that bytes were placed, a READ behind each WRITE.
///
/// ```no_run
/// use farside::durable::{DurableLog, DurableLogOptions, ReplicaOptions, ReplicatedDevice};
///
/// let copies = ["10.0.0.1:7471/log", "10.0.0.2:7471/log", "10.0.0.3:7471/log"];
/// # let fabric = farside::fabrics::shared_memory()?;
/// let device = ReplicatedDevice::open(&fabric, &copies, &ReplicaOptions::default())?;
/// let (log, recovered) = DurableLog::on(Box::new(device), &DurableLogOptions::default())?;
/// # Ok::<(), farside::Error>(())
/// ```
pub struct ReplicatedDevice {
    client: MemoryClient,
    replicas: Vec<Replica>,
    id: u64,
    epoch: u64,
    /// Copies that were named.
    named: u64,
    /// Bytes of a slot; zero before the first segment.
    slot_bytes: u64,
    /// The segment in each slot.
    slots: Vec<Option<Segment>>,
    /// Bytes that are being written, and how many.
    staging: Buffer,
    staged: usize,
    /// WRITEs that were not waited for, and the replica of each.
    writing: Vec<(usize, RequestId)>,
    timeout: Duration,
}

/// The header of a copy.
#[derive(Clone, Copy, PartialEq, Eq)]
struct ReplicaHeader {
    id: u64,
    epoch: u64,
    slot_bytes: u64,
    /// Copies that the opening has named.
    named: u64,
}

impl ReplicaHeader {
    fn encode(self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..16].copy_from_slice(MAGIC);
        for (at, word) in [self.id, self.epoch, self.slot_bytes, self.named].into_iter().enumerate()
        {
            out[16 + 8 * at..24 + 8 * at].copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh64(&out[..HEADER - 8], 0);
        out[HEADER - 8..].copy_from_slice(&checksum.to_le_bytes());
        out
    }

    /// `None` of memory that was never used.
    fn decode(bytes: &[u8], address: &str) -> Result<Option<Self>, Error> {
        if bytes.iter().all(|byte| *byte == 0) {
            return Ok(None);
        }
        let is_right = bytes[..16] == *MAGIC && word(bytes, HEADER - 8) == xxh64(&bytes[..56], 0);
        if !is_right {
            let text = format!("the memory at {address} has something else, or another version");
            return Err(Error::with(ErrorCode::StateForeign, text));
        }
        let [id, epoch, slot_bytes, named] = [16, 24, 32, 40].map(|at| word(bytes, at));
        Ok(Some(Self { id, epoch, slot_bytes, named }))
    }
}

fn encode_entry(segment: Option<Segment>) -> [u8; ENTRY] {
    let mut out = [0; ENTRY];
    if let Some(segment) = segment {
        out[..8].copy_from_slice(&segment.begin.to_le_bytes());
        out[8..16].copy_from_slice(&segment.bytes.to_le_bytes());
        out[16] = 1;
        let checksum = xxh64(&out[..24], 1);
        out[24..].copy_from_slice(&checksum.to_le_bytes());
    }
    out
}

/// The segment of an entry that is whole: another one is of a `create` that did not return.
fn decode_entry(entry: &[u8]) -> Option<Segment> {
    let is_right = entry[16] == 1 && word(entry, 24) == xxh64(&entry[..24], 1);
    is_right.then(|| Segment { begin: word(entry, 0), bytes: word(entry, 8) })
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

/// The error of a device whose copy at an address has failed.
fn failed(address: &str, error: &Error) -> Error {
    Error::with(ErrorCode::DeviceFailed, format!("the copy at {address}: {error}"))
}

impl ReplicatedDevice {
    /// Opens the log whose copies are at these addresses; makes it if all of them are reached and empty.
    ///
    /// *Blocks* until all copies are equal: those that were missing before are written again.
    ///
    /// # Errors
    /// `NotEnoughReplicas`; `StateInUse` while another client has one of them; `StateForeign`; `BadConfiguration` for memory
    /// that is not lent exclusively, or is too short; `DeviceFailed`.
    pub fn open(
        fabric: &Arc<dyn Fabric>,
        addresses: &[&str],
        options: &ReplicaOptions,
    ) -> Result<Self, Error> {
        // A connection that is lost must not come back: another client may have gone on by then.
        let once = MemoryClientOptions::default().reconnect(Duration::ZERO);
        let mut client = MemoryClient::new(fabric, &once)?;
        let (mut replicas, mut missing) = (Vec::new(), Vec::new());
        for address in addresses {
            match client.open(address, options.timeout) {
                Ok(memory) => {
                    check(address, memory)?;
                    replicas.push(Replica { address: (*address).to_owned(), memory });
                }
                Err(error) if error.code == ErrorCode::ChannelFull => {
                    let text = format!("the copy at {address}: {}", error.detail);
                    return Err(Error::with(ErrorCode::StateInUse, text));
                }
                Err(error) => missing.push(format!("{address} ({error})")),
            }
        }
        let least = options.copies_min.unwrap_or(addresses.len() / 2 + 1).max(1);
        if replicas.len() < least {
            let text = format!("{} of {least}; missing: {}", replicas.len(), missing.join(", "));
            return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
        }
        let staging = client.register(PIECE as u64)?;
        let (slots, writing, timeout) = (Vec::new(), Vec::new(), options.timeout);
        let (id, epoch, slot_bytes, staged) = (0, 0, 0, 0);
        let named = addresses.len() as u64;
        let mut device = Self {
            client,
            replicas,
            id,
            epoch,
            named,
            slot_bytes,
            slots,
            staging,
            staged,
            writing,
            timeout,
        };
        device.begin(&missing, options.copies_min)?;
        Ok(device)
    }

    /// Returns the number of copies that have what is durable: those that the opening has reached.
    pub const fn copies(&self) -> usize {
        self.replicas.len()
    }

    /// Finds the newest copies, makes the others equal to them, and begins an epoch.
    fn begin(&mut self, missing: &[String], least: Option<usize>) -> Result<(), Error> {
        let mut headers = Vec::new();
        for number in 0..self.replicas.len() {
            let mut header = [0; HEADER];
            self.read_at(number, 0, &mut header)?;
            headers.push(ReplicaHeader::decode(&header, &self.replicas[number].address)?);
        }
        let newest = headers.iter().flatten().max_by_key(|header| header.epoch).copied();
        match newest {
            None if missing.is_empty() => self.id = random(),
            None => {
                let text =
                    format!("a log is made with all copies; missing: {}", missing.join(", "));
                return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
            }
            Some(newest) => {
                if headers.iter().flatten().any(|header| header.id != newest.id) {
                    let text = "the copies are of different logs".to_owned();
                    return Err(Error::with(ErrorCode::StateForeign, text));
                }
                // An empty copy may have lost what the newest epoch had.
                let used = headers.iter().flatten().count();
                let least = least.unwrap_or(newest.named as usize / 2 + 1);
                if used < least {
                    let text = format!(
                        "{used} of {least} that have the log; missing: {}",
                        missing.join(", ")
                    );
                    return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
                }
                (self.id, self.epoch, self.slot_bytes) =
                    (newest.id, newest.epoch, newest.slot_bytes);
                let is_newest =
                    |at: &usize| headers[*at].is_some_and(|one| one.epoch == newest.epoch);
                let (whole, stale): (Vec<_>, Vec<_>) =
                    (0..self.replicas.len()).partition(is_newest);
                self.merge_tables(&whole)?;
                self.fill(whole[0], &stale)?;
                // Reads are of the first.
                self.replicas.swap(0, whole[0]);
            }
        }
        self.epoch += 1;
        self.write_tables()
    }

    /// A segment exists if any of the newest copies has it: a `create` may have ended between them.
    fn merge_tables(&mut self, whole: &[usize]) -> Result<(), Error> {
        let least = self.replicas.iter().map(|replica| replica.memory.bytes()).min();
        let count = least.unwrap_or(0).saturating_sub(TABLE).checked_div(self.slot_bytes);
        self.slots = vec![None; (count.unwrap_or(0) as usize).min(SLOTS_MAX)];
        for number in whole {
            let mut table = vec![0; TABLE as usize - HEADER];
            self.read_at(*number, HEADER as u64, &mut table)?;
            for (slot, entry) in table.chunks_exact(ENTRY).enumerate() {
                let segment = decode_entry(entry);
                let is_possible = |one: Segment| one.is_possible() && one.bytes <= self.slot_bytes;
                if segment.is_some_and(|one| !is_possible(one)) {
                    let text = format!("slot {slot} at {}", self.replicas[*number].address);
                    return Err(Error::with(ErrorCode::LogDamaged, text));
                }
                match self.slots.get_mut(slot) {
                    Some(known) => *known = known.or(segment),
                    None if segment.is_some() => {
                        let text = "a copy has less memory than before".to_owned();
                        return Err(Error::with(ErrorCode::BadConfiguration, text));
                    }
                    None => {}
                }
            }
        }
        Ok(())
    }

    /// Copies all segments from one copy to others.
    fn fill(&mut self, from: usize, others: &[usize]) -> Result<(), Error> {
        if others.is_empty() {
            return Ok(());
        }
        for slot in 0..self.slots.len() {
            if let Some(segment) = self.slots[slot] {
                self.copy(from, others, self.place(slot), segment.bytes)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, from: usize, others: &[usize], place: u64, bytes: u64) -> Result<(), Error> {
        let mut piece = vec![0; PIECE];
        let mut done = 0;
        while done < bytes {
            let length = (bytes - done).min(PIECE as u64) as usize;
            self.read_at(from, place + done, &mut piece[..length])?;
            for other in others {
                self.write_at(*other, place + done, &piece[..length])?;
            }
            self.wait()?;
            done += length as u64;
        }
        Ok(())
    }

    /// Writes header and table to all copies.
    fn write_tables(&mut self) -> Result<(), Error> {
        let Self { id, epoch, slot_bytes, named, .. } = *self;
        let mut table = vec![0; TABLE as usize];
        table[..HEADER].copy_from_slice(&ReplicaHeader { id, epoch, slot_bytes, named }.encode());
        for (slot, segment) in self.slots.iter().enumerate() {
            table[HEADER + slot * ENTRY..][..ENTRY].copy_from_slice(&encode_entry(*segment));
        }
        // The header last: a copy is of the epoch once it has all.
        self.write_all(HEADER as u64, &table[HEADER..])?;
        self.wait()?;
        self.write_all(0, &table[..HEADER])?;
        self.wait()
    }

    fn place(&self, slot: usize) -> u64 {
        TABLE + slot as u64 * self.slot_bytes
    }

    /// Where a position of a segment is in each copy.
    fn place_of(&self, segment: Segment, at: u64) -> Result<u64, Error> {
        let slot = self.slots.iter().position(|one| *one == Some(segment));
        let slot = slot.ok_or_else(|| Error::with(ErrorCode::System, "no such segment"))?;
        Ok(self.place(slot) + (at - segment.begin))
    }

    fn read_at(&mut self, number: usize, place: u64, out: &mut [u8]) -> Result<(), Error> {
        let Replica { address, memory } = &self.replicas[number];
        let read = self.client.read_bytes(memory.at(place), out, self.timeout);
        read.map_err(|error| failed(address, &error))
    }

    fn write_all(&mut self, place: u64, bytes: &[u8]) -> Result<(), Error> {
        (0..self.replicas.len()).try_for_each(|number| self.write_at(number, place, bytes))
    }

    /// Writes bytes to a copy; [`wait`](Self::wait) waits for them.
    fn write_at(&mut self, number: usize, place: u64, bytes: &[u8]) -> Result<(), Error> {
        if self.staged + bytes.len() > self.staging.len() || self.writing.len() >= WRITING_MAX {
            self.wait()?;
            if bytes.len() > self.staging.len() {
                self.staging = self.client.register(bytes.len().next_power_of_two() as u64)?;
            }
        }
        let range = self.staged as u64..(self.staged + bytes.len()) as u64;
        self.staging.write(range.start, bytes)?;
        self.staged += bytes.len();
        let Replica { address, memory } = &self.replicas[number];
        let written = self.client.write(memory.at(place), &self.staging, range);
        self.writing.push((number, written.map_err(|error| failed(address, &error))?));
        Ok(())
    }

    /// Waits until all WRITEs are placed.
    fn wait(&mut self) -> Result<(), Error> {
        let deadline = Deadline::after(self.timeout);
        if !self.client.capabilities().completion_means_placed {
            for number in 0..self.replicas.len() {
                let Replica { address, memory } = &self.replicas[number];
                let read = self.client.read_word(memory.at(0));
                self.writing.push((number, read.map_err(|error| failed(address, &error))?));
            }
        }
        self.client.submit();
        let mut outcome = Ok(());
        for (number, request) in std::mem::take(&mut self.writing) {
            if let Err(error) = deadline.wait(&mut self.client, request) {
                outcome = outcome.and(Err(failed(&self.replicas[number].address, &error)));
            }
        }
        self.staged = 0;
        outcome
    }
}

/// Checks memory that is to have a copy.
fn check(address: &str, memory: RemoteMemory) -> Result<(), Error> {
    let wrong = |text: String| Err(Error::with(ErrorCode::BadConfiguration, text));
    if !memory.is_exclusive() {
        return wrong(format!("the memory at {address} is not lent exclusively"));
    }
    if !memory.access().allows(Access::READ) || !memory.access().allows(Access::WRITE) {
        return wrong(format!("the memory at {address} cannot be read and written"));
    }
    if memory.bytes() <= TABLE {
        return wrong(format!("the memory at {address} has {} B", memory.bytes()));
    }
    Ok(())
}

impl LogDevice for ReplicatedDevice {
    fn promise(&self) -> Promise {
        Promise::of(Medium::Replicas)
    }

    fn log_id(&self) -> u64 {
        self.id
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        let mut segments: Vec<_> = self.slots.iter().flatten().copied().collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        if self.slot_bytes == 0 {
            let least = self.replicas.iter().map(|replica| replica.memory.bytes()).min();
            let count = (least.unwrap_or(0) - TABLE) / segment.bytes;
            self.slots = vec![None; (count as usize).min(SLOTS_MAX)];
            self.slot_bytes = segment.bytes;
            self.write_tables()?;
        }
        if segment.bytes > self.slot_bytes {
            let text =
                format!("a segment of {} B in slots of {} B", segment.bytes, self.slot_bytes);
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            let text = format!("all {} slots of the copies are used", self.slots.len());
            return Err(Error::with(ErrorCode::LogFull, text));
        };
        self.write_all((HEADER + slot * ENTRY) as u64, &encode_entry(Some(segment)))?;
        self.wait()?;
        self.slots[slot] = Some(segment);
        Ok(())
    }

    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let place = self.place_of(segment, at)?;
        self.write_all(place, bytes)
    }

    fn sync(&mut self, _: Segment) -> Result<(), Error> {
        self.wait()
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let place = self.place_of(segment, at)?;
        self.read_at(0, place, out)
    }

    fn settle(&mut self, from: u64) -> Result<(), Error> {
        let others: Vec<usize> = (1..self.replicas.len()).collect();
        for slot in 0..self.slots.len() {
            if let Some(segment) = self.slots[slot].filter(|segment| segment.end() > from) {
                let skip = from.saturating_sub(segment.begin);
                self.copy(0, &others, self.place(slot) + skip, segment.bytes - skip)?;
            }
        }
        Ok(())
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        let slot = self.slots.iter().position(|one| *one == Some(segment));
        let slot = slot.ok_or_else(|| Error::with(ErrorCode::System, "no such segment"))?;
        self.write_all((HEADER + slot * ENTRY) as u64, &encode_entry(None))?;
        self.wait()?;
        self.slots[slot] = None;
        Ok(())
    }
}

impl std::fmt::Debug for ReplicatedDevice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ReplicatedDevice({} copies)", self.replicas.len())
    }
}
