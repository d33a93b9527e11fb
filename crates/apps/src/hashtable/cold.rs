//! The table without blocks of this client: each put has an entry of its own.

use super::error::TableError;
use super::partition::{Bucket, Leaf, Partition};
use super::places::{KeyIdentity, KnownPlaces};
use super::slot::{
    BlockWord, ENTRY_HEADER, Gate, KeyHash, SLOTS, Slot, decode_entry, encode_entry,
};
use crate::dht::hash::scramble;
use farside::ErrorCode;
use farside::onesided::{
    Buffer, Deadline, MemoryClient, RangeList, RemoteAddress, TransferRange, VectorIo,
};
use farside::runtime::Instant;
use std::time::Duration;

/// Entries that were replaced, before they are freed together.
const FREED: usize = 16;
/// Entries that are read together, and the most bytes of each.
pub(super) const TOGETHER: usize = 64;
const SHORT: u64 = 1024;
/// Attempts to read an entry that is being written, before and after its block is revoked.
const CELL_READS: usize = 8;

/// The partitions, and what a client remembers of them.
pub(super) struct ColdTable {
    pub(super) partitions: Vec<Partition>,
    seed: u64,
    places: KnownPlaces,
    /// An entry that was read, or is to be written.
    entry: Vec<u8>,
    /// Entries that were replaced: partition, object, bytes.
    pub(super) freed: Vec<(usize, RemoteAddress, u64)>,
    /// For entries that are read together.
    together: Option<Buffer>,
    /// Before the last READ of a bucket, or of slots with their entries.
    read_began: Instant,
    /// Within it no entry that was freed is used again.
    grace: Duration,
    /// Blocks of this client: partition and offset.
    pub(super) owned: Vec<(usize, u64)>,
}

/// A key on its way.
#[derive(Clone, Copy)]
pub(super) struct Lookup<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: KeyHash,
    pub(super) partition: usize,
}

/// An entry that was found.
struct Found {
    leaf: Leaf,
    place: usize,
    slot: Slot,
    /// Of its block, if it is in one.
    word: Option<BlockWord>,
    value: Vec<u8>,
}

impl ColdTable {
    pub(super) fn with(partitions: Vec<Partition>, seed: u64) -> Result<Self, TableError> {
        if partitions.is_empty() {
            return Err(TableError::NotATable);
        }
        let grace = partitions.iter().map(|partition| partition.heap.options().grace).min();
        Ok(Self {
            partitions,
            seed,
            places: KnownPlaces::new(),
            entry: Vec::new(),
            freed: Vec::with_capacity(FREED),
            together: None,
            read_began: Instant::now(),
            grace: grace.unwrap_or_default(),
            owned: Vec::new(),
        })
    }

    /// Returns the value of a key.
    pub(super) fn get(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, TableError> {
        if let Some((at, slot)) = self.recall(lookup)
            && let Some(value) = self.get_remembered(client, lookup, (at, slot), deadline)?
        {
            return Ok(Some(value));
        }
        let found = self.find(client, lookup, deadline)?;
        Ok(found.map(|found| {
            self.remember(lookup, found.leaf, found.place, found.slot);
            found.value
        }))
    }

    /// Reads the entries of keys without values here whose places are known and whose entries are short: by one list of
    /// ranges for each partition.
    pub(super) fn get_together(
        &mut self,
        client: &mut MemoryClient,
        keys: &[&[u8]],
        values: &mut [Option<Vec<u8>>],
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        let buffer = match self.together.take() {
            Some(buffer) => buffer,
            None => client.register(TOGETHER as u64 * (SHORT + 8))?,
        };
        let mut known = Vec::with_capacity(keys.len());
        for (at, key) in (0..).zip(keys) {
            let lookup = self.lookup(key);
            let is_short = |word: &RemoteAddress, slot: Slot| {
                let end = slot.offset() + slot.bytes();
                !slot.is_hot() && slot.bytes() <= SHORT && end <= word.memory().bytes()
            };
            let place = self.recall(lookup).filter(|(word, slot)| is_short(word, *slot));
            if let Some((word, slot)) = place.filter(|_| values[at as usize].is_none()) {
                known.push((at, lookup.partition, word, slot));
            }
        }
        // Ranges have no order: an entry may be read long after its slot, if a link was lost in between.
        self.read_began = Instant::now();
        let (mut lists, mut ranges) = (Vec::new(), Vec::with_capacity(2 * known.len()));
        for (number, partition) in self.partitions.iter().enumerate() {
            ranges.clear();
            for (at, _, word, slot) in known.iter().filter(|(_, its, ..)| *its == number) {
                let (entry, bytes) = (partition.address(slot.offset()), slot.bytes() as u32);
                let range = |local, at: RemoteAddress, bytes| TransferRange {
                    local,
                    remote: at.offset(),
                    bytes,
                };
                ranges.extend([range(at * SHORT, entry, bytes), range(word_at(*at), *word, 8)]);
            }
            if !ranges.is_empty() {
                let list = RangeList::explicit(&ranges)?.by(VectorIo::Doorbell);
                let memory = partition.address(0).memory();
                lists.push(client.read_ranges(memory.at(0), &buffer, 0, &list)?);
            }
        }
        for list in lists {
            deadline.wait(client, list)?;
        }
        if self.is_stale() {
            known.clear();
        }
        let mut entry = [0; SHORT as usize];
        for (at, _, _, slot) in &known {
            let (entry, mut now) = (&mut entry[..slot.bytes() as usize], [0; 8]);
            buffer.read(at * SHORT, entry)?;
            buffer.read(word_at(*at), &mut now)?;
            let is_there = u64::from_le_bytes(now) == slot.0;
            let found = decode_entry(entry, 0);
            let found = found.filter(|(key, _)| is_there && *key == keys[*at as usize]);
            values[*at as usize] = found.map(|(_, value)| value.to_vec());
        }
        // After an error a request may still use it.
        self.together = Some(buffer);
        Ok(())
    }

    /// Puts a value into an entry of its own; false if the slot of the key has to be `only` and is not.
    pub(super) fn put(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        value: &[u8],
        only: Option<Slot>,
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        let bytes = (ENTRY_HEADER + lookup.key.len() + value.len()) as u64;
        let partition = &mut self.partitions[lookup.partition];
        let object = match partition.heap.alloc(client, bytes, deadline.left()) {
            Err(error) if error.code == ErrorCode::OutOfMemory && !self.freed.is_empty() => {
                self.free_all(client, deadline)?;
                let heap = &mut self.partitions[lookup.partition].heap;
                heap.alloc(client, bytes, deadline.left())?
            }
            object => object?,
        };
        encode_entry(lookup.key, value, lookup.hash, &mut self.entry);
        let partition = &mut self.partitions[lookup.partition];
        partition.entry.write(0, &self.entry)?;
        let written = client.write(object, &partition.entry, 0..bytes)?;
        // Else the slot could be seen before the entry.
        let mut put = match client.capabilities().message_order {
            true => Ok(true),
            false => deadline.wait(client, written).map(|_| true).map_err(TableError::from),
        };
        if put.is_ok() {
            put = self.place(client, lookup, (object, bytes), only, deadline);
        }
        if client.capabilities().message_order {
            let ended = deadline.wait(client, written);
            put = put.and_then(|put| Ok(ended.map(|_| put)?));
        }
        if put.is_err() {
            // The request may still use the buffer.
            let partition = &mut self.partitions[lookup.partition];
            partition.entry = client.register(partition.entry.len() as u64)?;
        }
        let is_unused = matches!(
            &put,
            Ok(false) | Err(TableError::BucketFull | TableError::Corrupt(_))
        ) || matches!(&put, Err(TableError::Memory(error)) if error.code == ErrorCode::OutOfMemory);
        if is_unused {
            self.freed.push((lookup.partition, object, bytes));
        }
        put
    }

    /// Removes a key; returns whether it was there.
    pub(super) fn delete(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        self.free_replaced(client, deadline)?;
        loop {
            let Some(found) = self.find(client, lookup, deadline)? else {
                return Ok(false);
            };
            if self.replace(client, lookup, &found, found.slot.emptied(), deadline)? {
                self.forget(lookup);
                return Ok(true);
            }
        }
    }

    pub(super) fn lookup<'a>(&self, key: &'a [u8]) -> Lookup<'a> {
        let hash = KeyHash::of(key, self.seed);
        let high = scramble(hash.0) >> 32;
        let partition = ((high * self.partitions.len() as u64) >> 32) as usize;
        Lookup { key, hash, partition }
    }

    fn identity(&self, lookup: Lookup<'_>) -> KeyIdentity {
        (lookup.hash.0, KeyHash::of(lookup.key, !self.seed).0)
    }

    pub(super) fn recall(&self, lookup: Lookup<'_>) -> Option<(RemoteAddress, Slot)> {
        let (at, slot) = self.places.get(self.identity(lookup))?;
        Some((self.partitions[lookup.partition].address(at), slot))
    }

    fn remember(&mut self, lookup: Lookup<'_>, leaf: Leaf, place: usize, slot: Slot) {
        let at = self.partitions[lookup.partition].slot(leaf, lookup.hash.bucket(), place);
        self.remember_at(lookup, at, slot);
    }

    pub(super) fn remember_at(&mut self, lookup: Lookup<'_>, at: RemoteAddress, slot: Slot) {
        self.places.insert(self.identity(lookup), at.offset(), slot);
    }

    pub(super) fn forget(&mut self, lookup: Lookup<'_>) {
        self.places.remove(self.identity(lookup));
    }

    /// Reads an entry at the place that is remembered, and whether it is there still, by one doorbell.
    fn get_remembered(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (at, slot): (RemoteAddress, Slot),
        deadline: &Deadline,
    ) -> Result<Option<Vec<u8>>, TableError> {
        if slot.is_hot() {
            let word = self.read_cell(client, lookup, (slot, Some(at)), deadline)?;
            let entry = word.and_then(|word| decode_entry(&self.entry, word.stamp()));
            let value =
                entry.filter(|(key, _)| *key == lookup.key).map(|(_, value)| value.to_vec());
            if value.is_none() {
                self.forget(lookup);
            }
            return Ok(value);
        }
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
            && let Some((key, value)) = decode_entry(&self.entry, 0)
            && key == lookup.key
        {
            return Ok(Some(value.to_vec()));
        }
        self.forget(lookup);
        Ok(None)
    }

    /// Reads the entry of a hot slot, with the word of its block; and the slot, if `at` is given. All by one doorbell.
    /// `None` if the slot has changed, or the entry does not fit the word, again and again.
    ///
    /// A half is written again only after the next commit, and entries have the number of their commit: those that fit the
    /// word are of the last commit when the word was read.
    fn read_cell(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (slot, at): (Slot, Option<RemoteAddress>),
        deadline: &Deadline,
    ) -> Result<Option<BlockWord>, TableError> {
        let bytes = slot.cell_bytes();
        let memory = self.partitions[lookup.partition].address(0).memory();
        if slot.cell(1) + bytes > memory.bytes() {
            return Err(TableError::Corrupt(slot.offset()));
        }
        for attempt in 1..=2 * CELL_READS {
            let partition = &mut self.partitions[lookup.partition];
            let word = client.read_word(partition.address(slot.offset()))?;
            let mut reads = [word; 2];
            for (half, read) in (0..).zip(&mut reads) {
                let into = half * bytes..(half + 1) * bytes;
                let from = partition.address(slot.cell(half));
                *read = client.read(from, &partition.buffer, into)?;
            }
            let now = at.map(|at| client.read_word(at)).transpose()?;
            for read in reads {
                partition.wait(client, read, deadline)?;
            }
            let word = BlockWord(deadline.wait(client, word)?);
            if let Some(now) = now
                && Slot(deadline.wait(client, now)?) != slot
            {
                return Ok(None);
            }
            self.entry.resize(bytes as usize, 0);
            partition.buffer.read(word.half() * bytes, &mut self.entry)?;
            if decode_entry(&self.entry, word.stamp()).is_some() {
                return Ok(Some(word));
            }
            // Commits follow each other faster than this client reads: it ends them. Not where the slot is remembered, since
            // the block may be gone.
            if attempt == CELL_READS
                && (at.is_some() || !self.revoke(client, lookup, (slot, word), deadline)?)
            {
                return Ok(None);
            }
        }
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
            self.read_began = Instant::now();
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

    /// Whether an entry may have been freed and used again since its slot was read: this thread was not scheduled for long,
    /// or a link was lost.
    fn is_stale(&self) -> bool {
        self.read_began.elapsed() >= self.grace
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
            let word = if slot.is_hot() {
                let Some(word) = self.read_cell(client, lookup, (*slot, None), deadline)? else {
                    return Ok(Err(()));
                };
                Some(word)
            } else {
                let partition = &mut self.partitions[lookup.partition];
                let left = partition.address(0).memory().bytes().saturating_sub(slot.offset());
                let bytes = slot.bytes().min(left).min(partition.buffer.len() as u64);
                if bytes == 0 {
                    return Err(TableError::Corrupt(slot.offset()));
                }
                partition.read(client, (slot.offset(), bytes), &mut self.entry, deadline)?;
                None
            };
            if self.is_stale() {
                return Ok(Err(()));
            }
            match decode_entry(&self.entry, word.map_or(0, BlockWord::stamp)) {
                Some((key, value)) if key == lookup.key => {
                    let value = value.to_vec();
                    return Ok(Ok(Some(Found { leaf, place, slot: *slot, word, value })));
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

    /// Puts an entry that is written into a slot; false if the slot has to be `only` and is not.
    fn place(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (object, bytes): (RemoteAddress, u64),
        only: Option<Slot>,
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        let fingerprint = lookup.hash.fingerprint();
        let slot = |version| Slot::new(version, fingerprint, bytes, object.offset());
        let is_right = |old| only.is_none_or(|only| only == old);
        // What is remembered of a block of another client may be long ago: its word must not be changed then.
        let is_known = |old: Slot| !old.is_hot() || self.owns(lookup, old);
        let known = self.recall(lookup).filter(|(_, old)| is_right(*old) && is_known(*old));
        if let Some((at, old)) = known {
            let new = slot(old.version() + 1);
            if self.swap(client, at, (old, new), deadline)? {
                self.replaced(lookup, old);
                self.remember_at(lookup, at, new);
                return Ok(true);
            }
            self.forget(lookup);
        }
        let mut gate: Option<(Leaf, Gate)> = None;
        loop {
            let (leaf, bucket) = self.bucket(client, lookup, deadline)?;
            match self.search(client, lookup, (leaf, &bucket), deadline)? {
                Ok(Some(found)) if !is_right(found.slot) => return Ok(false),
                Ok(Some(found)) => {
                    let new = slot(found.slot.version() + 1);
                    if self.replace(client, lookup, &found, new, deadline)? {
                        self.remember(lookup, leaf, found.place, new);
                        return Ok(true);
                    }
                }
                Ok(None) if only.is_some() => return Ok(false),
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
                                return Ok(true);
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
        if let Some(word) = found.word
            && !self.owns(lookup, slot)
            && !self.revoke(client, lookup, (slot, word), deadline)?
        {
            return Ok(false);
        }
        let at = self.partitions[lookup.partition].slot(leaf, lookup.hash.bucket(), place);
        let replaced = self.swap(client, at, (slot, new), deadline)?;
        if replaced {
            self.replaced(lookup, slot);
        }
        Ok(replaced)
    }

    /// Ends the commits of a block of another client, whose word was read; false if that was too long ago.
    fn revoke(
        &mut self,
        client: &mut MemoryClient,
        lookup: Lookup<'_>,
        (slot, mut word): (Slot, BlockWord),
        deadline: &Deadline,
    ) -> Result<bool, TableError> {
        let at = self.partitions[lookup.partition].address(slot.offset());
        while !word.is_revoked() {
            between_requests();
            if self.is_stale() {
                return Ok(false);
            }
            let was = BlockWord(deadline.replace(client, at, (word.0, word.revoked().0))?);
            word = if was == word { word.revoked() } else { was };
        }
        Ok(true)
    }

    /// Whether the entry of a hot slot is in a block of this client.
    fn owns(&self, lookup: Lookup<'_>, slot: Slot) -> bool {
        self.owned.contains(&(lookup.partition, slot.offset()))
    }

    /// Replaces a slot; false if it is another one. Of a lost compare-and-swap the slot tells what became of it, if no
    /// other client has changed it since.
    pub(super) fn swap(
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

    pub(super) fn replaced(&mut self, lookup: Lookup<'_>, old: Slot) {
        if old.is_hot() {
            return; // freed with its block
        }
        let partition = &self.partitions[lookup.partition];
        self.freed.push((lookup.partition, partition.address(old.offset()), old.bytes()));
    }

    pub(super) fn free_replaced(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        if self.freed.len() < FREED {
            return Ok(());
        }
        self.free_all(client, deadline)
    }

    pub(super) fn free_all(
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

/// Where the word of a slot is read that is one of several.
const fn word_at(number: u64) -> u64 {
    TOGETHER as u64 * SHORT + number * 8
}

/// Where other clients may come in between: tests let them.
pub(super) fn between_requests() {
    #[cfg(test)]
    super::tests::let_others_in();
}
