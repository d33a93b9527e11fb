//! Blocks of entries of keys that a client puts often: it holds their puts and writes a block at once.
//!
//! A block is of one client, which alone commits: it writes one half of the block, then raises the block's word, by one
//! doorbell. Any other client that changes a key in it first revokes the block, so that no commit follows.

use super::cold::{ColdTable, Lookup, between_requests};
use super::error::TableError;
use super::frequency::SpaceSaving;
use super::slot::{
    BLOCK_HEADER, BlockWord, CELLS, ENTRY_HEADER, Slot, cell_at, decode_entry, encode_entry,
    hash_at, stamp_entry,
};
use farside::ErrorCode;
use farside::onesided::{Buffer, Deadline, MemoryClient, RemoteAddress, RequestId};
use farside::runtime::{Instant, random};
use std::collections::HashMap;
use std::time::Duration;

/// How a client holds puts of hot keys; see [`RemoteTable::hold_hot_puts`](super::RemoteTable::hold_hot_puts).
#[derive(Clone, Debug)]
pub struct HotOptions {
    /// Most blocks of this client. One takes 32 times `entry_bytes` and 192 B, rounded up to a power of two.
    pub blocks: usize,
    /// Entries of a block, 1 to 16.
    pub entries: usize,
    /// Most bytes of key, value and a header of 24 B in a block: a power of two from 64 to 1,024.
    pub entry_bytes: u64,
    /// Held puts of a block until it is flushed.
    pub theta: u32,
    /// Longest time that a put is held, as long as this client calls the table.
    pub timeout: Duration,
    /// Puts of a key, among the last ones, until it is hot.
    pub puts: u32,
}

impl Default for HotOptions {
    fn default() -> Self {
        let timeout = Duration::from_millis(1);
        Self { blocks: 64, entries: CELLS, entry_bytes: 128, theta: 16, timeout, puts: 8 }
    }
}

/// A flush in flight.
#[derive(Debug)]
struct BlockFlush {
    writes: [Option<RequestId>; 2],
    commit: RequestId,
}

/// A block of this client.
#[derive(Debug)]
struct HotBlock {
    partition: usize,
    at: RemoteAddress,
    cell_bytes: u64,
    /// After the last commit.
    word: BlockWord,
    /// The entries, as they are here.
    image: Vec<u8>,
    slots: [Slot; CELLS],
    /// Cells that have had an entry. None is used again.
    used: usize,
    /// Used cells whose hashes are written, and those with the last flush.
    hashed: usize,
    hashing: usize,
    /// Cells that slots name.
    live: u16,
    /// Cells with puts that are held, and those of the flush in flight.
    dirty: u16,
    flushing: u16,
    /// Since the last flush began.
    puts: u32,
    since: Instant,
    /// Puts, halved from time to time.
    heat: u32,
    /// Both halves and the hashes, for WRITEs.
    buffer: Buffer,
    flight: Option<BlockFlush>,
    /// A flush has failed, and what became of it is not known.
    is_unknown: bool,
    /// It was revoked, or is given up: its entries go back.
    is_ending: bool,
}

impl HotBlock {
    fn new(
        client: &mut MemoryClient,
        (partition, at): (usize, RemoteAddress),
        cell_bytes: u64,
        deadline: &Deadline,
    ) -> Result<Self, TableError> {
        let word = BlockWord::first(random());
        client.write_bytes(at, &word.0.to_le_bytes(), deadline.left())?;
        Ok(Self {
            partition,
            at,
            cell_bytes,
            word,
            image: vec![0; CELLS * cell_bytes as usize],
            slots: [Slot::default(); CELLS],
            used: 0,
            hashed: 0,
            hashing: 0,
            live: 0,
            dirty: 0,
            flushing: 0,
            puts: 0,
            since: Instant::now(),
            heat: 0,
            buffer: client.register(Self::bytes(cell_bytes))?,
            flight: None,
            is_unknown: false,
            is_ending: false,
        })
    }

    const fn bytes(cell_bytes: u64) -> u64 {
        BLOCK_HEADER + 2 * CELLS as u64 * cell_bytes
    }

    fn cell(&self, cell: usize) -> &[u8] {
        &self.image[cell * self.cell_bytes as usize..][..self.cell_bytes as usize]
    }

    fn entry(&self, cell: usize) -> Result<(&[u8], &[u8]), TableError> {
        decode_entry(self.cell(cell), 0).ok_or(TableError::Corrupt(self.at.offset()))
    }

    /// Changes an entry here.
    fn set(&mut self, cell: usize, entry: &[u8]) {
        if self.dirty == 0 {
            self.since = Instant::now();
        }
        self.image[cell * self.cell_bytes as usize..][..entry.len()].copy_from_slice(entry);
        self.dirty |= 1 << cell;
        self.puts += 1;
        self.heat = self.heat.saturating_add(1);
    }

    /// Puts that are held.
    const fn held(&self) -> u16 {
        (self.dirty | self.flushing) & self.live
    }

    /// Queues the WRITEs of the next commit and its compare-and-swap, in the other half than the last one.
    fn begin(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), TableError> {
        self.end(client, deadline)?;
        if self.dirty == 0 || self.is_ending {
            return Ok(());
        }
        (self.flushing, self.dirty, self.puts) = (self.dirty, 0, 0);
        self.hashing = self.used;
        // Until the requests are queued.
        self.is_unknown = true;
        let next = self.word.next();
        let mut writes = [None; 2];
        if self.hashed < self.used {
            for cell in self.hashed..self.used {
                let hash = &self.image[cell * self.cell_bytes as usize..][..8];
                self.buffer.write(hash_at(0, cell), hash)?;
            }
            let hashes = hash_at(0, self.hashed)..hash_at(0, self.used);
            writes[0] = Some(client.write(self.at.plus(hashes.start), &self.buffer, hashes)?);
        }
        let begins = cell_at(0, next.half(), self.cell_bytes);
        let bytes = self.used * self.cell_bytes as usize;
        self.stamp(bytes, next);
        let filled = self.buffer.write(begins, &self.image[..bytes]);
        self.stamp(bytes, next); // and removes the stamp
        filled?;
        let half = begins..begins + bytes as u64;
        writes[1] = Some(client.write(self.at.plus(begins), &self.buffer, half)?);
        if !client.capabilities().message_order {
            for write in writes.iter_mut().filter_map(Option::take) {
                deadline.wait(client, write)?;
            }
        }
        let commit = client.compare_swap(self.at, self.word.0, next.0)?;
        client.submit();
        (self.flight, self.is_unknown) = (Some(BlockFlush { writes, commit }), false);
        Ok(())
    }

    /// Combines the checksums of the image's entries with the number of a commit, or removes it from them.
    fn stamp(&mut self, bytes: usize, commit: BlockWord) {
        let cells = self.image[..bytes].chunks_exact_mut(self.cell_bytes as usize);
        cells.for_each(|cell| stamp_entry(cell, commit.stamp()));
    }

    /// Waits for the flush in flight.
    fn end(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), TableError> {
        if let Some(BlockFlush { writes, commit }) = self.flight.take() {
            let mut is_done = true;
            for write in writes.into_iter().flatten() {
                is_done &= deadline.wait(client, write).is_ok();
            }
            match deadline.wait(client, commit) {
                Ok(was) if is_done => {
                    let is_committed = was == self.word.0;
                    let now = if is_committed { self.word.next() } else { BlockWord(was) };
                    return self.settle(now);
                }
                _ => self.is_unknown = true,
            }
        }
        if self.is_unknown {
            // No request of the flush is in flight then: the word tells what became of it.
            client.wait_for_all(self.at.memory(), deadline.left())?;
            self.buffer = client.register(Self::bytes(self.cell_bytes))?;
            let now = deadline.read_word(client, self.at)?;
            self.is_unknown = false;
            return self.settle(BlockWord(now));
        }
        Ok(())
    }

    /// Takes the word after a flush has ended.
    fn settle(&mut self, now: BlockWord) -> Result<(), TableError> {
        if now.commit() == self.word.next() {
            (self.word, self.hashed) = (now.commit(), self.hashing);
        } else if now.commit() == self.word {
            self.dirty |= self.flushing;
        } else {
            return Err(TableError::Corrupt(self.at.offset()));
        }
        self.flushing = 0;
        self.is_ending |= now.is_revoked();
        Ok(())
    }
}

/// What a call of the table works with.
pub(super) struct HotCall<'a> {
    cold: &'a mut ColdTable,
    client: &'a mut MemoryClient,
    deadline: &'a Deadline,
}

impl<'a> HotCall<'a> {
    pub(super) const fn new(
        cold: &'a mut ColdTable,
        client: &'a mut MemoryClient,
        deadline: &'a Deadline,
    ) -> Self {
        Self { cold, client, deadline }
    }
}

type FlushStep = fn(&mut HotBlock, &mut MemoryClient, &Deadline) -> Result<(), TableError>;

/// The blocks of a client, and which keys are in them.
#[derive(Debug)]
pub(super) struct HotArea {
    options: HotOptions,
    blocks: Vec<Option<HotBlock>>,
    /// Block and cell of a key, by its hash.
    keys: HashMap<u64, (usize, usize)>,
    counters: SpaceSaving,
    /// Before the first put of any block that is held.
    oldest: Option<Instant>,
    entry: Vec<u8>,
}

impl HotArea {
    /// Creates an area for a table over heaps with chunks of at least this many bytes.
    ///
    /// # Errors
    /// `BadConfiguration` for options out of their limits.
    pub(super) fn new(options: &HotOptions, chunk_bytes: u64) -> Result<Self, TableError> {
        let is_valid = (1..=CELLS).contains(&options.entries)
            && options.blocks >= 1
            && (64..=1024).contains(&options.entry_bytes)
            && options.entry_bytes.is_power_of_two()
            && HotBlock::bytes(options.entry_bytes) + 256 <= chunk_bytes
            && options.theta >= 1
            && options.puts >= 1;
        if !is_valid {
            return Err(TableError::Memory(ErrorCode::BadConfiguration.into()));
        }
        let entries = options.blocks * options.entries;
        Ok(Self {
            options: options.clone(),
            blocks: Vec::new(),
            keys: HashMap::with_capacity(entries),
            counters: SpaceSaving::new(2 * entries),
            oldest: None,
            entry: Vec::with_capacity(options.entry_bytes as usize),
        })
    }

    /// Returns the block and the cell of a key.
    fn home(&self, lookup: Lookup<'_>) -> Option<(usize, usize)> {
        let (number, cell) = *self.keys.get(&lookup.hash.0)?;
        let (key, _) = self.blocks[number].as_ref()?.entry(cell).ok()?;
        (key == lookup.key).then_some((number, cell))
    }

    /// Returns how many keys have puts that are held, or in a flush in flight.
    pub(super) fn pending(&self) -> usize {
        self.blocks.iter().flatten().map(|block| block.held().count_ones() as usize).sum()
    }

    /// Returns how many keys are in blocks.
    pub(super) fn keys(&self) -> usize {
        self.keys.len()
    }

    /// Returns a block with a free cell.
    fn with_room(&self, partition: usize) -> Option<usize> {
        let has_room = |block: &HotBlock| {
            block.partition == partition && !block.is_ending && block.used < self.options.entries
        };
        self.blocks.iter().position(|block| block.as_ref().is_some_and(has_room))
    }

    /// Returns the block that is put to least, if that is less than a hot key is put for each entry; all lose half of
    /// their heat (least frequently used, with aging).
    fn coldest(&mut self) -> Option<usize> {
        let heat =
            |(number, block): (usize, &Option<HotBlock>)| Some((block.as_ref()?.heat, number));
        let coldest = self.blocks.iter().enumerate().filter_map(heat).min();
        self.blocks.iter_mut().flatten().for_each(|block| block.heat /= 2);
        let limit = self.options.puts.saturating_mul(self.options.entries as u32);
        coldest.filter(|(heat, _)| *heat < limit).map(|(_, number)| number)
    }

    /// Puts a key into its block, or moves it into one; false if it is not hot.
    pub(super) fn put(
        &mut self,
        call: &mut HotCall<'_>,
        (lookup, value): (Lookup<'_>, &[u8]),
    ) -> Result<bool, TableError> {
        self.flush_late(call)?;
        let bytes = ENTRY_HEADER + lookup.key.len() + value.len();
        let fits = bytes as u64 <= self.options.entry_bytes;
        if let Some((number, cell)) = self.home(lookup) {
            let block = self.blocks[number].as_mut().filter(|block| fits && !block.is_ending);
            let Some(block) = block else {
                self.leave(call, lookup)?;
                return Ok(false);
            };
            encode_entry(lookup.key, value, lookup.hash, &mut self.entry);
            block.set(cell, &self.entry);
            let (puts, since) = (block.puts, block.since);
            self.oldest = self.oldest.or(Some(since));
            if puts >= self.options.theta {
                self.flush_block(call, number, HotBlock::begin)?;
            }
            return Ok(true);
        }
        if !fits || self.counters.count(lookup.hash.0) < self.options.puts {
            return Ok(false);
        }
        self.counters.reset(lookup.hash.0);
        self.promote(call, (lookup, value))
    }

    /// Returns the value of a key in a block.
    pub(super) fn get(
        &mut self,
        call: &mut HotCall<'_>,
        lookup: Lookup<'_>,
    ) -> Result<Option<Vec<u8>>, TableError> {
        self.flush_late(call)?;
        let Some((number, cell)) = self.home(lookup) else {
            return Ok(None);
        };
        let Some(block) = &mut self.blocks[number] else {
            return Ok(None);
        };
        if block.held() & 1 << cell == 0 {
            // No other client changes its key without a revocation.
            let now = BlockWord(call.deadline.read_word(call.client, block.at)?);
            if now.is_revoked() || block.is_ending {
                self.retire(call, number)?;
                return Ok(None);
            }
        }
        let (_, value) = block.entry(cell)?;
        Ok(Some(value.to_vec()))
    }

    /// Flushes the puts of a key that are held. No put of it is held from then on, until it is hot again.
    pub(super) fn leave(
        &mut self,
        call: &mut HotCall<'_>,
        lookup: Lookup<'_>,
    ) -> Result<(), TableError> {
        self.flush_late(call)?;
        while let Some((number, cell)) = self.home(lookup) {
            self.flush_block(call, number, HotBlock::begin)?;
            self.flush_block(call, number, HotBlock::end)?;
            let block = &self.blocks[number];
            if block.as_ref().is_none_or(|block| block.held() & 1 << cell == 0) {
                self.keys.remove(&lookup.hash.0);
            }
        }
        Ok(())
    }

    /// Flushes all held puts.
    pub(super) fn flush(&mut self, call: &mut HotCall<'_>) -> Result<(), TableError> {
        while self.pending() > 0 {
            for number in 0..self.blocks.len() {
                self.flush_block(call, number, HotBlock::begin)?;
            }
            for number in 0..self.blocks.len() {
                self.flush_block(call, number, HotBlock::end)?;
            }
        }
        self.oldest = None;
        Ok(())
    }

    /// Flushes, and moves all entries out of the blocks.
    pub(super) fn retire_all(&mut self, call: &mut HotCall<'_>) -> Result<(), TableError> {
        (0..self.blocks.len()).try_for_each(|number| self.retire(call, number))
    }

    /// Begins the flush of blocks that hold a put for too long.
    fn flush_late(&mut self, call: &mut HotCall<'_>) -> Result<(), TableError> {
        let timeout = self.options.timeout;
        if self.oldest.is_none_or(|oldest| oldest.elapsed() < timeout) {
            return Ok(());
        }
        for number in 0..self.blocks.len() {
            let is_late = |block: &HotBlock| block.dirty != 0 && block.since.elapsed() >= timeout;
            if self.blocks[number].as_ref().is_some_and(is_late) {
                self.flush_block(call, number, HotBlock::begin)?;
            }
        }
        let held = self.blocks.iter().flatten().filter(|block| block.dirty != 0);
        self.oldest = held.map(|block| block.since).min();
        Ok(())
    }

    /// Begins the flush of a block, or waits for that in flight: `step`. Then evicts the block if it has ended.
    fn flush_block(
        &mut self,
        call: &mut HotCall<'_>,
        number: usize,
        step: FlushStep,
    ) -> Result<(), TableError> {
        between_requests();
        if let Some(block) = &mut self.blocks[number] {
            step(block, call.client, call.deadline)?;
        }
        self.evict(call, number)
    }

    /// Moves a key that is not in a block into one, with a new value; false if it has stayed.
    fn promote(
        &mut self,
        call: &mut HotCall<'_>,
        (lookup, value): (Lookup<'_>, &[u8]),
    ) -> Result<bool, TableError> {
        let Some((at, old)) = call.cold.recall(lookup).filter(|(_, old)| !old.is_hot()) else {
            return Ok(false);
        };
        let Some(number) = self.room(call, lookup.partition)? else {
            return Ok(false);
        };
        let Some(block) = &mut self.blocks[number] else {
            return Ok(false);
        };
        encode_entry(lookup.key, value, lookup.hash, &mut self.entry);
        let cell = block.used;
        block.used += 1;
        block.set(cell, &self.entry);
        self.flush_block(call, number, HotBlock::begin)?;
        self.flush_block(call, number, HotBlock::end)?;
        let is_committed = |block: &&mut HotBlock| block.dirty & 1 << cell == 0;
        let Some(block) = self.blocks[number].as_mut().filter(is_committed) else {
            return Ok(false);
        };
        let (fingerprint, place) = (lookup.hash.fingerprint(), (cell, block.cell_bytes));
        let new = Slot::hot(old.version() + 1, fingerprint, place, block.at.offset());
        block.slots[cell] = new;
        block.live |= 1 << cell;
        let swapped = call.cold.swap(call.client, at, (old, new), call.deadline);
        match swapped {
            Ok(true) => {
                self.keys.insert(lookup.hash.0, (number, cell));
                call.cold.replaced(lookup, old);
                call.cold.remember_at(lookup, at, new);
            }
            Ok(false) => {
                block.live &= !(1 << cell);
                call.cold.forget(lookup);
            }
            // The slot may name the cell.
            Err(_) => block.is_ending = true,
        }
        swapped
    }

    /// Returns a block with a free cell: one there is, or a new one, also in the place of the one that is put to least.
    fn room(
        &mut self,
        call: &mut HotCall<'_>,
        partition: usize,
    ) -> Result<Option<usize>, TableError> {
        if let Some(number) = self.with_room(partition) {
            return Ok(Some(number));
        }
        let number = match self.blocks.iter().position(Option::is_none) {
            Some(number) => number,
            None if self.blocks.len() < self.options.blocks => {
                self.blocks.push(None);
                self.blocks.len() - 1
            }
            None => {
                let Some(coldest) = self.coldest() else {
                    return Ok(None);
                };
                self.retire(call, coldest)?;
                coldest
            }
        };
        let cell_bytes = self.options.entry_bytes;
        let heap = &mut call.cold.partitions[partition].heap;
        let at = match heap.alloc(call.client, HotBlock::bytes(cell_bytes), call.deadline.left()) {
            Err(error) if error.code == ErrorCode::OutOfMemory => return Ok(None),
            at => at?,
        };
        let block = HotBlock::new(call.client, (partition, at), cell_bytes, call.deadline)?;
        call.cold.owned.push((partition, at.offset()));
        self.blocks[number] = Some(block);
        Ok(Some(number))
    }

    /// Gives a block up.
    fn retire(&mut self, call: &mut HotCall<'_>, number: usize) -> Result<(), TableError> {
        self.flush_block(call, number, HotBlock::end)?;
        if let Some(block) = &mut self.blocks[number] {
            block.is_ending = true;
        }
        self.evict(call, number)
    }

    /// Moves the entries of a block that is ending to places of their own, and frees it. Values that were committed
    /// replace their own slots only; held ones are put.
    fn evict(&mut self, call: &mut HotCall<'_>, number: usize) -> Result<(), TableError> {
        let Some(block) = self.blocks[number].as_mut().filter(|block| block.is_ending) else {
            return Ok(());
        };
        while block.live != 0 {
            let cell = block.live.trailing_zeros() as usize;
            let (slot, bit) = (block.slots[cell], 1 << cell);
            let (key, value) = block.entry(cell)?;
            let lookup = call.cold.lookup(key);
            let only = (block.dirty & bit == 0).then_some(slot);
            call.cold.put(call.client, lookup, value, only, call.deadline)?;
            if self.keys.get(&lookup.hash.0) == Some(&(number, cell)) {
                self.keys.remove(&lookup.hash.0);
            }
            (block.live, block.dirty) = (block.live & !bit, block.dirty & !bit);
        }
        let (partition, at, bytes) = (block.partition, block.at, HotBlock::bytes(block.cell_bytes));
        self.blocks[number] = None;
        call.cold.owned.retain(|owned| *owned != (partition, at.offset()));
        call.cold.freed.push((partition, at, bytes));
        Ok(())
    }
}
