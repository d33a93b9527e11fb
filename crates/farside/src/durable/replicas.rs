//! A log device on copies: in memory of other processes, and in files of this machine.
//!
//! ```text
//! 0, 1 Ki   two headers, written by turns: version, number of the log, sequence number of the header, epoch, epoch that
//!           was begun, bytes of a slot, whether the copy has lost bytes, names of the copies, and while those change
//!           names of the copies before, checksum
//! 2 Ki      a table of slots, 32 B each: first position, bytes, 1 if it is used, checksum
//! 64 Ki     slots
//! ```
//! A log is opened with all its copies, unless the caller says how few may do. Each opening begins an epoch: it first writes
//! to the copies that have the log that the epoch begins, so that no two openings that share a copy have one of the same
//! number; then it copies what is durable to those of an older epoch and to empty ones; then it writes to all that they
//! have all of the epoch. A sync waits for all copies of the epoch. Bytes that are durable are the same in all of them, so
//! copying them again from one to another loses nothing, wherever it ends.
//!
//! A sync that loses copies begins an epoch with the others before it returns, if every later opening must have one of
//! those: openings need `least` of `named` copies, so more than `named - least` have to be left.

use super::copy_header::{
    COPY_HEAD_BYTES, ENTRY, HEADER, MAGIC, NAMES_MAX, ReplicaHeader, SLOTS_MAX, TABLE,
    decode_entry, encode_entry, hash, is_free,
};
use super::copy_status::CopyStatus;
use super::device::{LogDevice, Medium, Promise, Segment};
use super::local_copy::{FileCopy, LocalCopy, path_of};
use crate::canary;
use crate::onesided::{
    Buffer, Deadline, MemoryClient, MemoryClientOptions, RemoteMemory, RequestId,
};
use crate::runtime::random;
use crate::setters::setters;
use crate::{Error, ErrorCode};
use farside_base::Access;
use farside_fabric::Fabric;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Most copies: a header names those of two epochs.
const COPIES_MAX: usize = 56;
const _: () = assert!(2 * COPIES_MAX <= NAMES_MAX);
/// Bytes that are copied at a time, and the smallest memory of writes.
const PIECE: usize = 1 << 20;
/// WRITEs after which one more waits for them.
const WRITING_MAX: usize = 256;

/// Options of a [`ReplicatedDevice`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ReplicaOptions {
    /// The least copies to open the log with; by default all that the last opening has named. With fewer the caller
    /// guarantees that no program opens the log from the missing copies alone: all openings say the same number, more than
    /// half. Then an open log also continues when copies are lost, as long as this number is left.
    pub copies_min: Option<usize>,
    /// How long each copy is waited for; 10 s by default. A file has no limit.
    pub timeout: Duration,
    /// The least bytes of an empty copy for segments.
    pub(crate) room_bytes: u64,
}

setters!(ReplicaOptions { copies_min: Option<usize>, timeout: Duration });

impl Default for ReplicaOptions {
    fn default() -> Self {
        Self { copies_min: None, timeout: Duration::from_secs(10), room_bytes: 0 }
    }
}

/// Where a copy is.
enum CopyPlace {
    /// In memory that a server lends.
    Lent(RemoteMemory),
    Local(Box<dyn LocalCopy>),
}

/// A copy that was reached.
struct Replica {
    address: String,
    /// By which headers name it: a hash of the address of memory, the number of a file.
    name: u64,
    place: CopyPlace,
    /// `None`: it does not have the log.
    header: Option<ReplicaHeader>,
    /// Where its next header goes: not over the newest one, which is left whole if the writer ends within it.
    header_place: u64,
    /// Why it is not written any more.
    lost: Option<Error>,
}

impl Replica {
    fn new(address: String, name: u64, place: CopyPlace) -> Self {
        Self { address, name, place, header: None, header_place: 0, lost: None }
    }

    fn lent(address: &str, memory: RemoteMemory) -> Result<Self, Error> {
        check(address, memory)?;
        Ok(Self::new(address.to_owned(), hash(address), CopyPlace::Lent(memory)))
    }

    fn local(copy: Box<dyn LocalCopy>) -> Self {
        Self::new(copy.address().to_owned(), copy.id(), CopyPlace::Local(copy))
    }

    const fn is_lent(&self) -> bool {
        matches!(self.place, CopyPlace::Lent(_))
    }

    /// Bytes for slots.
    fn room_bytes(&self) -> u64 {
        match &self.place {
            CopyPlace::Lent(memory) => memory.bytes().saturating_sub(COPY_HEAD_BYTES),
            CopyPlace::Local(_) => u64::MAX - COPY_HEAD_BYTES,
        }
    }

    fn survives_power(&self) -> bool {
        matches!(&self.place, CopyPlace::Local(copy) if copy.promise().survives_power)
    }
}

/// Keeps a log in memory that servers lend ([`MemoryServer`](crate::onesided::MemoryServer), `farside lend --exclusive`), and
/// in files of this machine (`file:PATH`).
///
/// *Guarantees*: what a sync has reported is in all copies of the epoch, so it survives this process and all of them but
/// one; and a loss of power if one of them is in a file that does ([`CopyStatus::survives_power`]). After a loss of power
/// that has emptied the others, such a file is one of those that [`copies_min`](ReplicaOptions::copies_min) counts. A copy
/// that is lost, or does not answer within the timeout, is left out for the rest of this opening if
/// [`copies_min`](ReplicaOptions::copies_min) allows it ([`CopyStatus::lost`]), else it fails the device: open the log again
/// with the others, and with a new one in its place, which gets all bytes. *Cost*: a WRITE to each copy, all posted together;
/// a sync is one round trip, and two more when it loses copies, after the timeout if they do not answer. A file is written and
/// synced (`fdatasync`) meanwhile. On fabrics whose completions do not mean that bytes were
/// placed, a READ after each WRITE.
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
    /// Of the header that was written last.
    sequence: u64,
    /// Names of the copies of this opening.
    named: Vec<u64>,
    /// Hashes of the addresses of files: the names of those that were not reached.
    files: BTreeSet<u64>,
    /// Bytes of a slot; zero before the first segment.
    slot_bytes: u64,
    /// The segment in each slot.
    slots: Vec<Option<Segment>>,
    /// Bytes that are being written, and how many.
    staging: Buffer,
    staged: usize,
    /// WRITEs that were not waited for, and the replica of each.
    writing: Vec<(usize, RequestId)>,
    /// Staged bytes to be written to local copies: replica, place, offset and length.
    writing_here: Vec<(usize, u64, usize, usize)>,
    timeout: Duration,
    epoch: u64,
    /// The least copies to continue with when others are lost; `None`: a lost one fails the device.
    left_min: Option<usize>,
    /// Until then copies may differ after what is durable, and a lost one fails the device.
    is_recovered: bool,
    status: CopyStatus,
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
        Self::open_with(fabric, addresses, Vec::new(), options)
    }

    /// The same, with copies that the caller keeps.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_with(
        fabric: &Arc<dyn Fabric>,
        addresses: &[&str],
        local: Vec<Box<dyn LocalCopy>>,
        options: &ReplicaOptions,
    ) -> Result<Self, Error> {
        let count = addresses.len() + local.len();
        check_addresses(addresses, count)?;
        // A connection that is lost must not come back: another client may have gone on by then.
        let once = MemoryClientOptions::default().reconnect(Duration::ZERO);
        let mut client = MemoryClient::new(fabric, &once)?;
        let mut replicas: Vec<Replica> = local.into_iter().map(Replica::local).collect();
        let (mut missing, mut unreached) = (Vec::new(), Vec::new());
        for address in addresses {
            let replica = match path_of(address) {
                Some(path) => FileCopy::open(path).map(|copy| Replica::local(Box::new(copy))),
                None => client
                    .open(address, options.timeout)
                    .and_then(|memory| Replica::lent(address, memory)),
            };
            match replica {
                Ok(replica) => replicas.push(replica),
                Err(error) if is_refusal(error.code) => return Err(error),
                Err(error) if error.code == ErrorCode::ChannelFull => {
                    let text = format!("the copy at {address}: {}", error.detail);
                    return Err(Error::with(ErrorCode::StateInUse, text));
                }
                Err(error) => {
                    missing.push(format!("{address} ({error})"));
                    unreached.push(failed(address, &error));
                }
            }
        }
        let least = options.copies_min.unwrap_or(count).max(1);
        if replicas.len() < least {
            let text = format!("{} of {least}; missing: {}", replicas.len(), missing.join(", "));
            return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
        }
        let staging = client.register(PIECE as u64)?;
        let (slots, writing, timeout) = (Vec::new(), Vec::new(), options.timeout);
        let (id, sequence, slot_bytes, staged) = (0, 0, 0, 0);
        let named = name_all(addresses, &replicas)?;
        let mut device = Self {
            client,
            replicas,
            id,
            sequence,
            named,
            files: file_hashes(addresses),
            slot_bytes,
            slots,
            staging,
            staged,
            writing,
            writing_here: Vec::new(),
            timeout,
            epoch: 0,
            left_min: None,
            is_recovered: false,
            status: CopyStatus::default(),
        };
        device.begin(&missing, options)?;
        let named = device.named.len();
        device.left_min =
            options.copies_min.map(|least| least.max((named + 1).saturating_sub(least)));
        device.note_status(unreached);
        Ok(device)
    }

    /// Returns a handle that tells what the copies are.
    pub fn status(&self) -> CopyStatus {
        self.status.clone()
    }

    /// The bytes of a slot of a log that was made before.
    pub(crate) fn slot_bytes(&self) -> Option<u64> {
        (self.slot_bytes > 0).then_some(self.slot_bytes)
    }

    fn note_status(&self, lost: Vec<Error>) {
        let in_memory = self.replicas.iter().filter(|one| one.is_lent()).count();
        self.status.note(lost, in_memory, self.replicas.iter().any(Replica::survives_power));
    }

    /// Returns the number of copies that have what is durable: those that the opening has reached, without lost ones.
    pub const fn copies(&self) -> usize {
        self.replicas.len()
    }

    /// Finds the newest copies, makes the others equal to them, and begins an epoch.
    fn begin(&mut self, missing: &[String], options: &ReplicaOptions) -> Result<(), Error> {
        self.read_headers()?;
        let headers = || self.replicas.iter().filter_map(|replica| replica.header.as_ref());
        let sequence = headers().map(|header| header.sequence).max().unwrap_or(0);
        let epoch = headers().map(|header| header.begun.max(header.epoch)).max().unwrap_or(0);
        let epoch = epoch.saturating_add(1);
        let newest = headers().max_by_key(|header| (header.epoch, header.sequence));
        let newest = newest.filter(|header| header.epoch > 0).cloned();
        self.sequence = sequence;
        self.check_room(newest.as_ref(), options.room_bytes)?;
        self.write_headers_again()?;
        self.mark_empty()?;
        match &newest {
            Some(newest) => self.adopt_newest(newest, missing, (options.copies_min, epoch))?,
            // Nothing was ever committed: commits of the first epoch need all copies.
            None if missing.is_empty() => {
                self.id = random();
                let (id, named) = (self.id, self.named.clone());
                let (sequence, slot_bytes) = (0, 0);
                let new = ReplicaHeader {
                    id,
                    sequence,
                    epoch: 0,
                    begun: 0,
                    slot_bytes,
                    named,
                    before: Vec::new(),
                    is_short: false,
                };
                for replica in &mut self.replicas {
                    replica.header = Some(new.clone());
                }
                self.announce(epoch)?;
            }
            None => {
                let text =
                    format!("a log is made with all copies; missing: {}", missing.join(", "));
                return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
            }
        }
        self.write_table()?;
        match newest {
            Some(newest) => self.change_named(epoch, newest),
            None => self.hold_named(epoch, Vec::new()),
        }
    }

    /// Begins an epoch that names other copies than the one before: all headers name both first. Ends a change before, which
    /// may have ended between them.
    fn change_named(&mut self, epoch: u64, newest: ReplicaHeader) -> Result<(), Error> {
        let ReplicaHeader { named: old, before, .. } = newest;
        let is_same = old.iter().collect::<BTreeSet<_>>() == self.named.iter().collect();
        if old.len() + self.named.len().max(before.len()) > NAMES_MAX {
            let text = format!("{} copies after {}: name fewer first", self.named.len(), old.len());
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        if !before.is_empty() {
            self.hold(epoch, old.clone(), before)?;
            self.hold(epoch, old.clone(), Vec::new())?;
        }
        if !is_same {
            self.hold_named(epoch, old)?;
        }
        self.hold_named(epoch, Vec::new())
    }

    /// Refuses empty copies that have less room for segments than a new log needs, or than the others have.
    fn check_room(&self, newest: Option<&ReplicaHeader>, least: u64) -> Result<(), Error> {
        let has_log = |replica: &&Replica| replica.is_lent() && replica.header.is_some();
        let room = self.replicas.iter().filter(has_log).map(Replica::room_bytes).min();
        let is_made = newest.is_some_and(|newest| newest.slot_bytes > 0);
        let least = room.filter(|_| is_made).unwrap_or(least);
        for replica in self.replicas.iter().filter(|replica| replica.header.is_none()) {
            let bytes = replica.room_bytes();
            if bytes < least {
                let text = format!(
                    "the copy at {} has {bytes} B for segments, and {least} B are needed",
                    replica.address
                );
                return Err(Error::with(ErrorCode::BadConfiguration, text));
            }
        }
        Ok(())
    }

    /// Writes the newest headers of local copies once more, in their places: after a sync that has failed they may be read and
    /// yet not be kept, and the older ones are overwritten next.
    fn write_headers_again(&mut self) -> Result<(), Error> {
        for number in 0..self.replicas.len() {
            let Replica { header: Some(header), header_place, place: CopyPlace::Local(_), .. } =
                &self.replicas[number]
            else {
                continue;
            };
            let (place, encoded) = (HEADER as u64 - header_place, header.encode());
            self.write_at(number, place, &encoded)?;
        }
        self.wait()
    }

    /// Writes to empty copies that they are of a log, so that a part of a header is not taken for bytes of something else.
    fn mark_empty(&mut self) -> Result<(), Error> {
        for number in 0..self.replicas.len() {
            if self.replicas[number].header.is_none() {
                self.write_at(number, 0, MAGIC)?;
            }
        }
        self.wait()
    }

    fn read_headers(&mut self) -> Result<(), Error> {
        for number in 0..self.replicas.len() {
            let mut headers = [0; 2 * HEADER];
            self.read_at(number, 0, &mut headers)?;
            let (one, other) = headers.split_at(HEADER);
            let found = [(one, HEADER), (other, 0)].into_iter();
            let found =
                found.filter_map(|(bytes, next)| Some((ReplicaHeader::decode(bytes)?, next)));
            let found = found.max_by_key(|(header, _)| header.sequence);
            let replica = &mut self.replicas[number];
            if found.is_none() && !(is_free(one) && is_free(other)) {
                let at = &replica.address;
                let text = format!("the memory at {at} has something else, or another version");
                return Err(Error::with(ErrorCode::StateForeign, text));
            }
            (replica.header, replica.header_place) = match found {
                Some((header, next)) => (Some(header), next as u64),
                None => (None, 0),
            };
        }
        Ok(())
    }

    /// Makes all copies equal to those of the newest epoch.
    fn adopt_newest(
        &mut self,
        newest: &ReplicaHeader,
        missing: &[String],
        (least, epoch): (Option<usize>, u64),
    ) -> Result<(), Error> {
        for replica in &mut self.replicas {
            match &replica.header {
                Some(header) if header.id == newest.id => {}
                Some(header) if header.epoch > 0 => {
                    let text = "the copies are of different logs".to_owned();
                    return Err(Error::with(ErrorCode::StateForeign, text));
                }
                _ => replica.header = None,
            }
        }
        self.check_used(newest, missing, least)?;
        self.keep_names(newest);
        let whole = self.whole(newest.epoch);
        let slot_bytes = |at: &usize| self.replicas[*at].header.as_ref().map(|one| one.slot_bytes);
        (self.id, self.slot_bytes) =
            (newest.id, whole.iter().filter_map(slot_bytes).max().unwrap_or(0));
        self.merge_tables(&whole)?;
        self.mark_short()?;
        if self.source(newest.epoch).is_none() {
            let text = "the copies that have it are shorter than they were";
            return Err(Error::with(ErrorCode::LogTruncated, text));
        }
        self.announce(epoch)?;
        let missing = [missing, &self.leave_out_full()].concat();
        self.check_used(newest, &missing, least)?;
        let least = least.map_or(self.named.len(), |least| least.max(1));
        let from = self.source(newest.epoch).filter(|_| self.replicas.len() >= least);
        let Some(from) = from else {
            let (left, missing) = (self.replicas.len(), missing.join(", "));
            let text = format!("{left} of {least}, one of them whole; missing: {missing}");
            return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
        };
        let whole = self.whole(newest.epoch);
        let stale: Vec<_> = (0..self.replicas.len()).filter(|at| !whole.contains(at)).collect();
        self.fill(from, &stale)?;
        // Reads are of the first.
        self.replicas.swap(0, from);
        Ok(())
    }

    /// Checks that enough copies are there of those that the newest header names.
    fn check_used(
        &self,
        newest: &ReplicaHeader,
        missing: &[String],
        least: Option<usize>,
    ) -> Result<(), Error> {
        for named in [&newest.named, &newest.before] {
            let least = least.map_or(named.len(), |least| least.max(1).min(named.len()));
            // Others are not counted: nothing says what they have missed.
            let is_used = |one: &&Replica| one.header.is_some() && named.contains(&one.name);
            let used = self.replicas.iter().filter(is_used).count();
            if used < least {
                let empty = self.replicas.iter().filter(|replica| replica.header.is_none());
                let empty: Vec<_> = empty.map(|replica| replica.address.as_str()).collect();
                let text = format!(
                    "{used} of {least} that have the log and were named before; missing: {}; empty: {}",
                    missing.join(", "),
                    empty.join(", ")
                );
                return Err(Error::with(ErrorCode::NotEnoughReplicas, text));
            }
        }
        Ok(())
    }

    /// A file that was not reached is the one that was named before and is missing, if there is one.
    fn keep_names(&mut self, newest: &ReplicaHeader) {
        let reached: BTreeSet<u64> = self.replicas.iter().map(|replica| replica.name).collect();
        let missing = |name: &&u64| !self.named.contains(name);
        let mut old = newest.named.iter().filter(missing).copied().collect::<Vec<_>>().into_iter();
        let is_file = |name: &&mut u64| self.files.contains(name) && !reached.contains(name);
        for name in self.named.iter_mut().filter(is_file) {
            *name = old.next().unwrap_or(*name);
        }
    }

    /// The copies that have all of an epoch.
    fn whole(&self, epoch: u64) -> Vec<usize> {
        let is_whole = |at: &usize| {
            let header = self.replicas[*at].header.as_ref();
            header.is_some_and(|header| header.epoch == epoch && !header.is_short)
        };
        (0..self.replicas.len()).filter(is_whole).collect()
    }

    /// The copy that the log is read from: memory if there is a choice, since a disk may lose bytes.
    fn source(&self, epoch: u64) -> Option<usize> {
        let whole = self.whole(epoch);
        let lent = whole.iter().find(|at| self.replicas[**at].is_lent());
        lent.or(whole.first()).copied()
    }

    /// Marks local copies that are shorter than what they had, before they are made longer.
    fn mark_short(&mut self) -> Result<(), Error> {
        let end = self.slots_end().max(COPY_HEAD_BYTES);
        for Replica { place, header, .. } in &mut self.replicas {
            if let (CopyPlace::Local(copy), Some(header)) = (place, header) {
                header.is_short |= copy.bytes()? < end;
            }
        }
        Ok(())
    }

    /// Makes room in local copies for what the log has, and leaves out those that have none. Returns why.
    fn leave_out_full(&mut self) -> Vec<String> {
        let end = self.slots_end().max(COPY_HEAD_BYTES);
        for Replica { address, place, lost, .. } in &mut self.replicas {
            if let CopyPlace::Local(copy) = place
                && let Err(error) = copy.reserve(end)
            {
                *lost = Some(failed(address, &error));
            }
        }
        let lost = self.replicas.extract_if(.., |replica| replica.lost.is_some());
        let lost: Vec<_> = lost.filter_map(|replica| replica.lost).collect();
        let why = lost.iter().map(|error| error.detail.clone()).collect();
        self.note_status(lost);
        why
    }

    /// The end of the last slot that is used.
    fn slots_end(&self) -> u64 {
        let used = (0..self.slots.len()).rev().find_map(|slot| Some((slot, self.slots[slot]?)));
        used.map_or(0, |(slot, segment)| self.place(slot) + segment.bytes)
    }

    /// Writes to the copies that have the log that an epoch begins.
    fn announce(&mut self, epoch: u64) -> Result<(), Error> {
        self.sequence += 1;
        for number in 0..self.replicas.len() {
            let Some(header) = &mut self.replicas[number].header else { continue };
            (header.begun, header.sequence) = (epoch, self.sequence);
            let encoded = header.encode();
            self.write_header(number, &encoded)?;
        }
        self.wait()
    }

    /// Writes to all copies that they have all of an epoch.
    fn hold(&mut self, epoch: u64, named: Vec<u64>, before: Vec<u64>) -> Result<(), Error> {
        self.sequence += 1;
        let (id, sequence, slot_bytes) = (self.id, self.sequence, self.slot_bytes);
        let (begun, is_short) = (epoch, false);
        let header =
            ReplicaHeader { id, sequence, epoch, begun, slot_bytes, named, before, is_short };
        let encoded = header.encode();
        // Copies without the log first: the others name them from then on.
        let has_log = |at: &usize| self.replicas[*at].header.is_some();
        let (old, new): (Vec<_>, Vec<_>) = (0..self.replicas.len()).partition(has_log);
        self.epoch = self.epoch.max(epoch);
        for numbers in [new, old].into_iter().filter(|numbers| !numbers.is_empty()) {
            for number in numbers {
                self.write_header(number, &encoded)?;
                self.replicas[number].header = Some(header.clone());
            }
            self.wait()?;
        }
        Ok(())
    }

    fn hold_named(&mut self, epoch: u64, before: Vec<u64>) -> Result<(), Error> {
        self.hold(epoch, self.named.clone(), before)
    }

    fn write_header(&mut self, number: usize, header: &[u8; HEADER]) -> Result<(), Error> {
        let place = self.replicas[number].header_place;
        self.replicas[number].header_place = HEADER as u64 - place;
        self.write_at(number, place, header)
    }

    /// A segment exists if any of the newest copies has it: a `create` may have ended between them.
    fn merge_tables(&mut self, whole: &[usize]) -> Result<(), Error> {
        let count = self.slot_space().checked_div(self.slot_bytes);
        self.slots = vec![None; (count.unwrap_or(0) as usize).min(SLOTS_MAX)];
        for number in whole {
            let mut table = vec![0; COPY_HEAD_BYTES as usize - TABLE];
            self.read_at(*number, TABLE as u64, &mut table)?;
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

    /// Writes the table to all copies.
    fn write_table(&mut self) -> Result<(), Error> {
        let mut table = vec![0; COPY_HEAD_BYTES as usize - TABLE];
        for (slot, segment) in self.slots.iter().enumerate() {
            table[slot * ENTRY..][..ENTRY].copy_from_slice(&encode_entry(*segment));
        }
        self.write_all(TABLE as u64, &table)?;
        self.wait()
    }

    /// Bytes of a copy for slots.
    fn slot_space(&self) -> u64 {
        self.replicas.iter().map(Replica::room_bytes).min().unwrap_or(0)
    }

    fn place(&self, slot: usize) -> u64 {
        COPY_HEAD_BYTES + slot as u64 * self.slot_bytes
    }

    /// Where a position of a segment is in each copy.
    fn place_of(&self, segment: Segment, at: u64) -> Result<u64, Error> {
        let slot = self.slots.iter().position(|one| *one == Some(segment));
        let slot = slot.ok_or_else(|| Error::with(ErrorCode::System, "no such segment"))?;
        Ok(self.place(slot) + (at - segment.begin))
    }

    fn read_at(&mut self, number: usize, place: u64, out: &mut [u8]) -> Result<(), Error> {
        let Replica { address, place: copy, .. } = &mut self.replicas[number];
        let read = match copy {
            CopyPlace::Lent(memory) => self.client.read_bytes(memory.at(place), out, self.timeout),
            CopyPlace::Local(copy) => copy.read(place, out),
        };
        read.map_err(|error| failed(address, &error))
    }

    /// Writes bytes to all copies; [`wait`](Self::wait) waits for them.
    fn write_all(&mut self, place: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.stage(bytes)?;
        (0..self.replicas.len()).for_each(|number| self.post(number, place, (at, bytes.len())));
        Ok(())
    }

    /// The same, to one.
    fn write_at(&mut self, number: usize, place: u64, bytes: &[u8]) -> Result<(), Error> {
        let at = self.stage(bytes)?;
        self.post(number, place, (at, bytes.len()));
        Ok(())
    }

    /// Copies bytes to where WRITEs take them from.
    fn stage(&mut self, bytes: &[u8]) -> Result<usize, Error> {
        if self.staged + bytes.len() > self.staging.len() || self.writing.len() >= WRITING_MAX {
            self.wait()?;
            if bytes.len() > self.staging.len() {
                self.staging = self.client.register(bytes.len().next_power_of_two() as u64)?;
            }
        }
        let at = self.staged;
        self.staging.write(at as u64, bytes)?;
        self.staged += bytes.len();
        Ok(at)
    }

    /// Queues WRITEs of staged bytes to a copy, each as long as the fabric allows. [`wait`](Self::wait) returns the error.
    fn post(&mut self, number: usize, place: u64, (at, length): (usize, usize)) {
        let CopyPlace::Lent(memory) = self.replicas[number].place else {
            return self.writing_here.push((number, place, at, length));
        };
        let most = self.client.capabilities().transfer_bytes_max.min(u32::MAX.into()) as usize;
        let mut done = 0;
        while done < length {
            let piece = (length - done).min(most);
            let range = (at + done) as u64..(at + done + piece) as u64;
            let written = self.client.write(memory.at(place + done as u64), &self.staging, range);
            self.posted(number, written);
            done += piece;
        }
    }

    fn posted(&mut self, number: usize, posted: Result<RequestId, Error>) {
        match posted {
            Ok(request) => self.writing.push((number, request)),
            Err(error) => self.lose(number, &error),
        }
    }

    fn lose(&mut self, number: usize, error: &Error) {
        let Replica { address, lost, .. } = &mut self.replicas[number];
        lost.get_or_insert_with(|| failed(address, error));
    }

    /// Waits until all WRITEs are placed in all copies but lost ones.
    fn wait(&mut self) -> Result<(), Error> {
        if !self.client.capabilities().completion_means_placed {
            for number in 0..self.replicas.len() {
                if let Replica { place: CopyPlace::Lent(memory), lost: None, .. } =
                    self.replicas[number]
                {
                    let read = self.client.read_word(memory.at(0));
                    self.posted(number, read);
                }
            }
        }
        self.client.submit();
        self.write_here();
        let deadline = Deadline::after(self.timeout);
        for (number, request) in std::mem::take(&mut self.writing) {
            if let Err(error) = deadline.wait(&mut self.client, request) {
                self.lose(number, &error);
            }
        }
        self.staged = 0;
        self.leave_out_lost()
    }

    /// Makes room in local copies, and continues without one that has none if there are enough.
    fn reserve(&mut self, end: u64) -> Result<(), Error> {
        for number in 0..self.replicas.len() {
            let kept = self.replicas.iter().filter(|replica| replica.lost.is_none()).count();
            let left = kept.saturating_sub(1);
            let goes_on = self.is_recovered && self.left_min.is_some_and(|least| left >= least);
            let CopyPlace::Local(copy) = &mut self.replicas[number].place else { continue };
            match copy.reserve(end) {
                Ok(()) => {}
                // The log can be trimmed.
                Err(error) if error.code == ErrorCode::LogFull && !goes_on => return Err(error),
                Err(error) => self.lose(number, &error),
            }
        }
        self.wait()
    }

    /// Writes staged bytes to local copies, and syncs those.
    fn write_here(&mut self) {
        let mut bytes = Vec::new();
        let writing = std::mem::take(&mut self.writing_here);
        for (number, replica) in self.replicas.iter_mut().enumerate() {
            let Replica { address, place: CopyPlace::Local(copy), lost, .. } = replica else {
                continue;
            };
            let mut its_own = writing.iter().filter(|one| one.0 == number).peekable();
            if its_own.peek().is_none() {
                continue;
            }
            let written = its_own.try_for_each(|(_, place, at, length)| {
                bytes.resize(*length, 0);
                self.staging.read(*at as u64, &mut bytes)?;
                copy.write(*place, &bytes)
            });
            let is_skipped = canary::mutant!(canary::nodes(), CopyNotSynced);
            let synced = written.and_then(|()| if is_skipped { Ok(()) } else { copy.sync() });
            if let Err(error) = synced {
                lost.get_or_insert_with(|| failed(address, &error));
            }
        }
    }

    /// Continues with the copies that are not lost, if there are enough.
    fn leave_out_lost(&mut self) -> Result<(), Error> {
        let lost: Vec<_> =
            self.replicas.iter().filter_map(|replica| replica.lost.clone()).collect();
        let Some(first) = lost.first() else { return Ok(()) };
        let left = self.replicas.len() - lost.len();
        if !self.is_recovered || self.left_min.is_none_or(|least| left < least) {
            return Err(first.clone());
        }
        for replica in self.replicas.extract_if(.., |replica| replica.lost.is_some()) {
            if let CopyPlace::Lent(memory) = replica.place {
                self.client.close(memory)?;
            }
        }
        self.note_status(lost);
        let epoch = self.epoch.saturating_add(1);
        self.announce(epoch)?;
        // If it has lost more, those that are left have a later epoch.
        if self.epoch < epoch { self.hold_named(epoch, Vec::new()) } else { Ok(()) }
    }
}

/// Whether a copy that cannot be used ends an opening, instead of counting as one that was not reached.
const fn is_refusal(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::StateInUse
            | ErrorCode::StateForeign
            | ErrorCode::LogDamaged
            | ErrorCode::BadConfiguration
    )
}

fn file_hashes(addresses: &[&str]) -> BTreeSet<u64> {
    let files = addresses.iter().filter(|address| path_of(address).is_some());
    files.map(|address| hash(address)).collect()
}

/// The names of the copies at these addresses and of local ones: a file that was not reached counts as a new one later.
fn name_all(addresses: &[&str], replicas: &[Replica]) -> Result<Vec<u64>, Error> {
    let is_reached = |address: &&&str| replicas.iter().any(|one| one.address == **address);
    let unreached = addresses.iter().filter(|address| !is_reached(address));
    let mut named: Vec<u64> = replicas.iter().map(|one| one.name).collect();
    let distinct: BTreeSet<_> = named.iter().collect();
    if distinct.len() < named.len() {
        let text = "two of the files are one copy: empty the one that was copied from the other";
        return Err(Error::with(ErrorCode::BadConfiguration, text));
    }
    named.extend(unreached.map(|address| hash(address)));
    Ok(named)
}

/// Checks the addresses of `count` copies.
fn check_addresses(addresses: &[&str], count: usize) -> Result<(), Error> {
    if !(1..=COPIES_MAX).contains(&count) {
        let text = format!("{count} copies: 1 to {COPIES_MAX}");
        return Err(Error::with(ErrorCode::BadConfiguration, text));
    }
    let mut sorted = addresses.to_vec();
    sorted.sort_unstable();
    if let Some(twice) = sorted.windows(2).find(|two| two[0] == two[1]) {
        let text = format!("the copy at {} is named twice", twice[0]);
        return Err(Error::with(ErrorCode::BadConfiguration, text));
    }
    Ok(())
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
    if memory.bytes() <= COPY_HEAD_BYTES {
        return wrong(format!("the memory at {address} has {} B", memory.bytes()));
    }
    Ok(())
}

impl LogDevice for ReplicatedDevice {
    fn promise(&self) -> Promise {
        let survives_power = self.replicas.iter().any(Replica::survives_power);
        let medium = self.replicas.iter().find_map(|replica| match &replica.place {
            CopyPlace::Local(copy) => Some(copy.promise().medium),
            CopyPlace::Lent(_) => None,
        });
        let is_lent = self.replicas.iter().any(Replica::is_lent);
        let medium = medium.filter(|_| !is_lent).unwrap_or(Medium::Replicas);
        Promise { survives_power, ..Promise::of(medium) }
    }

    fn log_id(&self) -> u64 {
        self.id
    }

    fn segment_bytes_max(&self) -> u64 {
        if self.slot_bytes > 0 { self.slot_bytes } else { self.slot_space() }
    }

    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        let mut segments: Vec<_> = self.slots.iter().flatten().copied().collect();
        segments.sort_unstable();
        Ok(segments)
    }

    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        if segment.bytes > self.segment_bytes_max() {
            let text = format!("{} B in slots of {} B", segment.bytes, self.segment_bytes_max());
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        if self.slot_bytes == 0 {
            let count = self.slot_space() / segment.bytes;
            self.slots = vec![None; (count as usize).min(SLOTS_MAX)];
            self.slot_bytes = segment.bytes;
            let epoch = self.replicas[0].header.as_ref().map_or(0, |header| header.epoch);
            self.hold_named(epoch, Vec::new())?;
        }
        let Some(slot) = self.slots.iter().position(Option::is_none) else {
            let text = format!("all {} slots of the copies are used", self.slots.len());
            return Err(Error::with(ErrorCode::LogFull, text));
        };
        self.reserve(self.place(slot) + segment.bytes)?;
        self.write_all((TABLE + slot * ENTRY) as u64, &encode_entry(Some(segment)))?;
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

    fn recovered(&mut self) {
        self.is_recovered = true;
    }

    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        let place = self.place_of(segment, at)?;
        loop {
            match self.read_at(0, place, out) {
                Err(error) if self.is_recovered && self.replicas[0].lost.is_none() => {
                    self.lose(0, &error);
                    self.wait()?;
                }
                read => return read,
            }
        }
    }

    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        let slot = self.slots.iter().position(|one| *one == Some(segment));
        let slot = slot.ok_or_else(|| Error::with(ErrorCode::System, "no such segment"))?;
        self.write_all((TABLE + slot * ENTRY) as u64, &encode_entry(None))?;
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
