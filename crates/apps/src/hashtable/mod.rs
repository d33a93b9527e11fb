//! A hash table in one-sided memory: any number of clients, any number of memories, whose processors do nothing for it
//! (paper 000, section IV-B).
//!
//! ```
//! use farside::fabrics;
//! use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
//! use farside_apps::hashtable::{RemoteTable, TableOptions};
//! # let (name, second) = (format!("table-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let fabric = fabrics::shared_memory()?;
//! let server = MemoryServer::lend(&fabric, &name, 4 << 20, &LendOptions::default())?;
//! let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
//! let memory = client.open(server.address(), second)?;
//!
//! let places = [memory.at(0)]; // one for each memory
//! let mut table = RemoteTable::create(&mut client, &places, &TableOptions::default(), second)?;
//! table.put(&mut client, b"key", b"value", second)?;
//! assert_eq!(table.get(&mut client, b"key", second)?.as_deref(), Some(&b"value"[..]));
//! assert!(table.delete(&mut client, b"key", second)?);
//! table.close(&mut client, second)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Formats and protocols: see `docs/internals/hashtable.md`.

mod error;
mod partition;
#[cfg(test)]
mod simulation_tests;
mod slot;
#[cfg(test)]
mod tests;

pub use error::TableError;

use crate::dht::hash::scramble;
use farside::ErrorCode;
use farside::onesided::{Buffer, Deadline, HeapOptions, MemoryClient, RemoteAddress};
use farside::runtime::{Instant, random};
use partition::{Bucket, Leaf, Partition, Shape};
use slot::{ENTRY_HEADER, Gate, KeyHash, SLOTS, Slot, decode_entry, encode_entry};
use std::time::Duration;

/// Entries that a client remembers the places of, 32 B each.
const REMEMBERED: usize = 1 << 16;
/// Entries that were replaced, before they are freed together.
const FREED: usize = 16;
/// Entries that are read together, and the most bytes of each.
const TOGETHER: usize = 64;
const SHORT: u64 = 1024;

/// The size and the timing of a [`RemoteTable`].
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    /// Of the space for entries in each memory; `bytes` are what the memory has, from the given address on.
    pub heap: HeapOptions,
}

/// Where an entry was.
#[derive(Clone, Copy, Default)]
struct Remembered {
    /// The key by two hashes.
    key: (u64, u64),
    /// Of the slot, in the memory of its partition; zero: none.
    at: u64,
    slot: Slot,
}

/// A hash table in the memory of memory servers ([module](self)). One for each thread.
///
/// *Guarantees*: operations on a key are linearizable, over any number of clients. A client that dies within one leaves it
/// done or not done; a split of a segment that it has begun is completed by the next that comes to it. *Durability*: none,
/// as of its memories. *Cost*: `get` takes one round trip where this client knows the entry's place, else two, and one
/// for a key that is not there; `put` one, else three, or four for a new key, and a free for each replaced entry, 16
/// together.
pub struct RemoteTable {
    partitions: Vec<Partition>,
    seed: u64,
    remembered: Box<[Remembered]>,
    /// An entry that was read, or is to be written.
    entry: Vec<u8>,
    /// Entries that were replaced: partition, object, bytes.
    freed: Vec<(usize, RemoteAddress, u64)>,
    /// For entries that are read together.
    together: Option<Buffer>,
    /// Before the last READ of a bucket.
    looked: Instant,
    /// Within it no entry that was freed is used again.
    grace: Duration,
}

/// A key on its way.
#[derive(Clone, Copy)]
struct Lookup<'a> {
    key: &'a [u8],
    hash: KeyHash,
    partition: usize,
}

/// An entry that was found.
struct Found {
    leaf: Leaf,
    place: usize,
    slot: Slot,
    value: Vec<u8>,
}

impl RemoteTable {
    /// Creates a table over memories that are zero from these addresses on, and opens it.
    ///
    /// # Errors
    /// `Exists`; `Memory` with `BadConfiguration` or `OutOfBounds` for options that do not fit.
    pub fn create(
        client: &mut MemoryClient,
        places: &[RemoteAddress],
        options: &TableOptions,
        timeout: Duration,
    ) -> Result<Self, TableError> {
        let deadline = Deadline::after(timeout);
        let (seed, count) = (random(), places.len() as u64);
        let mut partitions = Vec::new();
        for (number, at) in (0..).zip(places) {
            let bytes = at.memory().bytes().saturating_sub(at.offset() + 64);
            let heap = options.heap.bytes(bytes);
            let shape = Shape { seed, number, count };
            partitions.push(Partition::create(client, *at, shape, &heap, &deadline)?);
        }
        Self::with(partitions, seed)
    }

    /// Opens the table over these memories, in the order of its creation.
    ///
    /// # Errors
    /// `NotATable`; `Memory`.
    pub fn open(
        client: &mut MemoryClient,
        places: &[RemoteAddress],
        timeout: Duration,
    ) -> Result<Self, TableError> {
        let deadline = Deadline::after(timeout);
        let (mut partitions, mut seed) = (Vec::new(), None);
        for (number, at) in (0..).zip(places) {
            let (partition, shape) = Partition::open(client, *at, &deadline)?;
            let expected =
                Shape { seed: *seed.get_or_insert(shape.seed), number, count: places.len() as u64 };
            if shape != expected {
                return Err(TableError::NotATable);
            }
            partitions.push(partition);
        }
        Self::with(partitions, seed.unwrap_or_default())
    }

    fn with(partitions: Vec<Partition>, seed: u64) -> Result<Self, TableError> {
        if partitions.is_empty() {
            return Err(TableError::NotATable);
        }
        let grace = partitions.iter().map(|partition| partition.heap.options().grace).min();
        Ok(Self {
            partitions,
            seed,
            remembered: vec![Remembered::default(); REMEMBERED].into(),
            entry: Vec::new(),
            freed: Vec::with_capacity(FREED),
            together: None,
            looked: Instant::now(),
            grace: grace.unwrap_or_default(),
        })
    }

    /// Returns how many segments this client has split.
    pub fn splits(&self) -> u64 {
        self.partitions.iter().map(|partition| partition.splits).sum()
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// `Memory`; `Corrupt`.
    pub fn get(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.lookup(key);
        if let Some((at, slot)) = self.recall(lookup)
            && let Some(value) = self.get_remembered(client, lookup, (at, slot), &deadline)?
        {
            return Ok(Some(value));
        }
        let found = self.find(client, lookup, &deadline)?;
        Ok(found.map(|found| {
            self.remember(lookup, found.leaf, found.place, found.slot);
            found.value
        }))
    }

    /// Returns the values of keys, as many calls of [`get`](Self::get) would. The entries whose places are known are read
    /// together: two requests each, and a doorbell for each 32 of them.
    ///
    /// # Errors
    /// As `get`.
    pub fn get_many(
        &mut self,
        client: &mut MemoryClient,
        keys: &[&[u8]],
        timeout: Duration,
    ) -> Result<Vec<Option<Vec<u8>>>, TableError> {
        let deadline = Deadline::after(timeout);
        let mut values = vec![None; keys.len()];
        for (keys, values) in keys.chunks(TOGETHER).zip(values.chunks_mut(TOGETHER)) {
            self.get_together(client, keys, values, &deadline)?;
            for (key, value) in keys.iter().zip(values).filter(|(_, value)| value.is_none()) {
                *value = self.get(client, key, deadline.left())?;
            }
        }
        Ok(values)
    }

    /// Reads the entries of keys whose places are known and whose entries are short.
    fn get_together(
        &mut self,
        client: &mut MemoryClient,
        keys: &[&[u8]],
        values: &mut [Option<Vec<u8>>],
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        let buffer = match self.together.take() {
            Some(buffer) => buffer,
            None => client.register(TOGETHER as u64 * SHORT)?,
        };
        let mut requests = Vec::with_capacity(TOGETHER);
        for (at, key) in keys.iter().enumerate() {
            let lookup = self.lookup(key);
            let known = self.recall(lookup).filter(|(_, slot)| slot.bytes() <= SHORT);
            let Some((word, slot)) = known else {
                continue;
            };
            let begins = at as u64 * SHORT;
            let from = self.partitions[lookup.partition].address(slot.offset());
            let read = client.read(from, &buffer, begins..begins + slot.bytes())?;
            requests.push((at, slot, read, client.read_word(word)?));
        }
        let mut entry = [0; SHORT as usize];
        for (at, slot, read, word) in requests {
            deadline.wait(client, read)?;
            let now = Slot(deadline.wait(client, word)?);
            let entry = &mut entry[..slot.bytes() as usize];
            buffer.read(at as u64 * SHORT, entry)?;
            let found = decode_entry(entry).filter(|(key, _)| now == slot && *key == keys[at]);
            values[at] = found.map(|(_, value)| value.to_vec());
        }
        // After an error a request may still use it.
        self.together = Some(buffer);
        Ok(())
    }

    /// Puts a value for a key, new or not.
    ///
    /// # Errors
    /// `TooLarge`, `BucketFull`, `Memory` with `OutOfMemory`: nothing was put. `Memory` with `TimedOut`, `PeerLost` or
    /// `Indeterminate`: it was put or not.
    pub fn put(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        value: &[u8],
        timeout: Duration,
    ) -> Result<(), TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.lookup(key);
        let partition = &mut self.partitions[lookup.partition];
        let bytes = (ENTRY_HEADER + key.len() + value.len()) as u64;
        let bytes_max = partition.heap.options().chunk_bytes - 256;
        if bytes > bytes_max {
            let header = ENTRY_HEADER as u64;
            return Err(TableError::TooLarge(bytes - header, bytes_max - header));
        }
        self.free_replaced(client, &deadline)?;
        let partition = &mut self.partitions[lookup.partition];
        let object = match partition.heap.alloc(client, bytes, deadline.left()) {
            Err(error) if error.code == ErrorCode::OutOfMemory && !self.freed.is_empty() => {
                self.free_all(client, &deadline)?;
                let heap = &mut self.partitions[lookup.partition].heap;
                heap.alloc(client, bytes, deadline.left())?
            }
            object => object?,
        };
        encode_entry(key, value, lookup.hash, &mut self.entry);
        let partition = &mut self.partitions[lookup.partition];
        partition.entry.write(0, &self.entry)?;
        let written = client.write(object, &partition.entry, 0..bytes)?;
        // Else the slot could be seen before the entry.
        let mut put = match client.capabilities().message_order {
            true => Ok(()),
            false => deadline.wait(client, written).map(drop).map_err(TableError::from),
        };
        if put.is_ok() {
            put = self.place(client, lookup, (object, bytes), &deadline);
        }
        if client.capabilities().message_order {
            let ended = deadline.wait(client, written);
            put = put.and(ended.map(drop).map_err(TableError::from));
        }
        if put.is_err() {
            // The request may still use the buffer.
            let partition = &mut self.partitions[lookup.partition];
            partition.entry = client.register(partition.entry.len() as u64)?;
        }
        let is_unused = matches!(&put, Err(TableError::BucketFull | TableError::Corrupt(_)))
            || matches!(&put, Err(TableError::Memory(error)) if error.code == ErrorCode::OutOfMemory);
        if is_unused {
            self.freed.push((lookup.partition, object, bytes));
        }
        put
    }

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        timeout: Duration,
    ) -> Result<bool, TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.lookup(key);
        self.free_replaced(client, &deadline)?;
        loop {
            let Some(found) = self.find(client, lookup, &deadline)? else {
                return Ok(false);
            };
            if self.replace(client, lookup, &found, found.slot.emptied(), &deadline)? {
                self.forget(lookup);
                return Ok(true);
            }
        }
    }

    /// Leaves the table: frees what was replaced, and leaves the heaps.
    ///
    /// # Errors
    /// `Memory`; the table is whole nevertheless.
    pub fn close(mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), TableError> {
        let deadline = Deadline::after(timeout);
        self.free_all(client, &deadline)?;
        for partition in self.partitions {
            partition.heap.close(client, deadline.left())?;
        }
        Ok(())
    }

    fn lookup<'a>(&self, key: &'a [u8]) -> Lookup<'a> {
        let hash = KeyHash::of(key, self.seed);
        let high = scramble(hash.0) >> 32;
        let partition = ((high * self.partitions.len() as u64) >> 32) as usize;
        Lookup { key, hash, partition }
    }

    fn identity(&self, lookup: Lookup<'_>) -> (u64, u64) {
        (lookup.hash.0, KeyHash::of(lookup.key, !self.seed).0)
    }

    fn recall(&self, lookup: Lookup<'_>) -> Option<(RemoteAddress, Slot)> {
        let remembered = &self.remembered[lookup.hash.0 as usize % REMEMBERED];
        let is_known = remembered.at != 0 && remembered.key == self.identity(lookup);
        let at = self.partitions[lookup.partition].address(remembered.at);
        is_known.then_some((at, remembered.slot))
    }

    fn remember(&mut self, lookup: Lookup<'_>, leaf: Leaf, place: usize, slot: Slot) {
        let at = self.partitions[lookup.partition].slot(leaf, lookup.hash.bucket(), place);
        self.remember_at(lookup, at, slot);
    }

    fn remember_at(&mut self, lookup: Lookup<'_>, at: RemoteAddress, slot: Slot) {
        let key = self.identity(lookup);
        self.remembered[lookup.hash.0 as usize % REMEMBERED] =
            Remembered { key, at: at.offset(), slot };
    }

    fn forget(&mut self, lookup: Lookup<'_>) {
        self.remembered[lookup.hash.0 as usize % REMEMBERED].at = 0;
    }

    /// Reads an entry at the place that is remembered, and whether it is there still, by one doorbell.
    fn get_remembered(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (at, slot): (RemoteAddress, Slot),
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, TableError> {
        let partition = &mut self.partitions[lookup.partition];
        let bytes = slot.bytes().min(partition.buffer.len() as u64);
        let bytes = bytes.min(at.memory().bytes() - slot.offset());
        let read = client.read(partition.address(slot.offset()), &partition.buffer, 0..bytes)?;
        let word = client.read_word(at)?;
        partition.wait(client, read, deadline)?;
        let now = Slot(deadline.wait(client, word)?);
        self.entry.resize(bytes as usize, 0);
        partition.buffer.read(0, &mut self.entry)?;
        if now == slot
            && let Some((key, value)) = decode_entry(&self.entry)
            && key == lookup.key
        {
            return Ok(Some(value.to_vec()));
        }
        self.forget(lookup);
        Ok(None)
    }

    /// Reads the bucket of a key. Completes a split that was begun.
    fn bucket(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        deadline: &Deadline,
    ) -> Result<(Leaf, Bucket), TableError> {
        let partition = &mut self.partitions[lookup.partition];
        loop {
            between_requests();
            self.looked = Instant::now();
            let leaf = partition.leaf(lookup.hash);
            let read = partition.read_bucket(client, leaf, lookup.hash.bucket())?;
            partition.wait(client, read, deadline)?;
            let bucket = partition.bucket()?;
            if !bucket.is_frozen() {
                return Ok((leaf, bucket));
            }
            partition.split(client, leaf, deadline)?;
        }
    }

    /// Whether an entry may have been freed and used again since the bucket was read: this thread was not scheduled for long.
    fn is_stale(&self) -> bool {
        self.looked.elapsed() >= self.grace
    }

    /// Finds a key in a bucket; `Err(())` if an entry was replaced meanwhile.
    fn search(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (leaf, bucket): (Leaf, &Bucket),
        deadline: &Deadline,
    ) -> Result<Result<Option<Found>, ()>, TableError> {
        for (place, slot) in bucket.slots.iter().enumerate() {
            if slot.is_empty() || slot.fingerprint() != lookup.hash.fingerprint() {
                continue;
            }
            let partition = &mut self.partitions[lookup.partition];
            let left = partition.address(0).memory().bytes().saturating_sub(slot.offset());
            let bytes = slot.bytes().min(left).min(partition.buffer.len() as u64);
            if bytes == 0 {
                return Err(TableError::Corrupt(slot.offset()));
            }
            partition.read(client, (slot.offset(), bytes), &mut self.entry, deadline)?;
            if self.is_stale() {
                return Ok(Err(()));
            }
            match decode_entry(&self.entry) {
                Some((key, value)) if key == lookup.key => {
                    let value = value.to_vec();
                    return Ok(Ok(Some(Found { leaf, place, slot: *slot, value })));
                }
                Some(_) => {}
                // Freed and used again, after the slot was read.
                None => return Ok(Err(())),
            }
        }
        Ok(Ok(None))
    }

    /// Finds a key.
    ///
    /// A bucket is read word by word. A key that is not found was not there at some time meanwhile: as long as it is there
    /// it stays in its slot.
    fn find(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        deadline: &Deadline,
    ) -> Result<Option<Found>, TableError> {
        let mut before = None;
        loop {
            let (leaf, bucket) = self.bucket(client, lookup, deadline)?;
            match self.search(client, lookup, (leaf, &bucket), deadline)? {
                Ok(found) => return Ok(found),
                Err(()) if before == Some((leaf, bucket)) && !self.is_stale() => {
                    return Err(TableError::Corrupt(leaf.offset));
                }
                Err(()) => before = Some((leaf, bucket)),
            }
            if deadline.is_over() {
                return Err(TableError::Memory(ErrorCode::TimedOut.into()));
            }
        }
    }

    /// Puts an entry that is written into a slot.
    fn place(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (object, bytes): (RemoteAddress, u64),
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        let fingerprint = lookup.hash.fingerprint();
        let slot = |version| Slot::new(version, fingerprint, bytes, object.offset());
        if let Some((at, old)) = self.recall(lookup) {
            let new = slot(old.version() + 1);
            if self.swap(client, at, (old, new), deadline)? {
                self.replaced(lookup, old);
                self.remember_at(lookup, at, new);
                return Ok(());
            }
            self.forget(lookup);
        }
        let mut gate: Option<(Leaf, Gate)> = None;
        loop {
            let (leaf, bucket) = self.bucket(client, lookup, deadline)?;
            match self.search(client, lookup, (leaf, &bucket), deadline)? {
                Ok(Some(found)) => {
                    let new = slot(found.slot.version() + 1);
                    if self.replace(client, lookup, &found, new, deadline)? {
                        self.remember(lookup, leaf, found.place, new);
                        return Ok(());
                    }
                }
                Ok(None) => {
                    let place = bucket.slots.iter().position(|slot| slot.is_empty());
                    match (gate.take().filter(|(of, _)| *of == leaf), place) {
                        (_, None) => {
                            self.partitions[lookup.partition].split(client, leaf, deadline)?;
                        }
                        // Read before the slots: it shows that nothing was inserted while they were read.
                        (None, _) => gate = Some((leaf, bucket.gate)),
                        (Some((_, before)), Some(place)) => {
                            let empty = bucket.slots[place];
                            let new = slot(empty.version() + 1);
                            let pending = Gate::pending(place, empty, new);
                            if self.insert(client, lookup, (leaf, before), pending, deadline)? {
                                self.remember(lookup, leaf, place, new);
                                return Ok(());
                            }
                        }
                    }
                }
                Err(()) => {}
            }
            if deadline.is_over() {
                return Err(TableError::Memory(ErrorCode::TimedOut.into()));
            }
        }
    }

    /// Inserts an entry through the gate of its bucket, which shows that no other was inserted since it was read; false if
    /// one was, or is being.
    fn insert(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (leaf, before): (Leaf, Gate),
        pending: Gate,
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        if before.is_pending() {
            self.complete(client, lookup, (leaf, before), deadline)?;
            return Ok(false);
        }
        let partition = &self.partitions[lookup.partition];
        let at = partition.slot(leaf, lookup.hash.bucket(), SLOTS);
        let change = (Slot(before.0), Slot(pending.0));
        Ok(self.swap(client, at, change, deadline)?
            && self.complete(client, lookup, (leaf, pending), deadline)?)
    }

    /// Completes the insertion of a gate, of this client or another one. False if it was not, because the segment is being
    /// split.
    fn complete(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (leaf, gate): (Leaf, Gate),
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        between_requests();
        let partition = &self.partitions[lookup.partition];
        let slot = |at| partition.slot(leaf, lookup.hash.bucket(), at);
        let (empty, entry) = gate.change();
        let was = loop {
            let inserted = client.compare_swap(slot(gate.slot()), empty.0, entry.0)?;
            match deadline.wait(client, inserted) {
                Err(error) if error.code == ErrorCode::Indeterminate => {
                    let now = Slot(deadline.read_word(client, slot(gate.slot()))?);
                    if now != empty {
                        break now;
                    }
                }
                was => break Slot(was?),
            }
        };
        // Not before the insertion has ended: an atomic may overtake another one. If this one is lost, the next client
        // that inserts opens the gate.
        let opened = client.compare_swap(slot(SLOTS), gate.0, gate.idle().0)?;
        client.submit();
        client.forget(opened);
        // An empty slot changes through this gate only.
        Ok(!was.is_frozen() || was.thawed() != empty)
    }

    /// Replaces a slot that was found; false if it has changed.
    fn replace(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        found: &Found,
        new: Slot,
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        let Found { leaf, place, slot, .. } = *found;
        let at = self.partitions[lookup.partition].slot(leaf, lookup.hash.bucket(), place);
        let replaced = self.swap(client, at, (slot, new), deadline)?;
        if replaced {
            self.replaced(lookup, slot);
        }
        Ok(replaced)
    }

    /// Replaces a slot; false if it is another one. Of a lost compare-and-swap the slot tells what became of it, if no
    /// other client has changed it since.
    fn swap(
        &self,
        client: &mut MemoryClient,
        at: RemoteAddress,
        (old, new): (Slot, Slot),
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        loop {
            between_requests();
            let swapped = client.compare_swap(at, old.0, new.0)?;
            let lost = match deadline.wait(client, swapped) {
                Err(error) if error.code == ErrorCode::Indeterminate => error,
                was => return Ok(was? == old.0),
            };
            match Slot(deadline.read_word(client, at)?) {
                now if now == old => {}
                now if now.thawed() == new && !new.is_empty() => return Ok(true),
                _ => return Err(lost.into()),
            }
        }
    }

    fn replaced(&mut self, lookup: Lookup<'_>, old: Slot) {
        let partition = &self.partitions[lookup.partition];
        self.freed.push((lookup.partition, partition.address(old.offset()), old.bytes()));
    }

    fn free_replaced(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        if self.freed.len() < FREED {
            return Ok(());
        }
        self.free_all(client, deadline)
    }

    fn free_all(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        while let Some((partition, object, bytes)) = self.freed.pop() {
            let heap = &mut self.partitions[partition].heap;
            let bytes = bytes.min(heap.options().chunk_bytes - 256);
            heap.free(client, object, bytes, deadline.left())?;
        }
        Ok(())
    }
}

/// Where other clients may come in between: tests let them.
fn between_requests() {
    #[cfg(test)]
    tests::let_others_in();
}

impl std::fmt::Debug for RemoteTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteTable({} memories)", self.partitions.len())
    }
}
