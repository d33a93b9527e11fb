//! The operations on one key.
//!
//! The ordering that makes them linearizable per key, over a memory with delayed writes:
//!
//! 1. A record is written and fenced before an entry points at it.
//! 2. Entries change in an atomic step on their bucket that finds the state unchanged since the operation
//!    read it: the entry it replaces, or for a new key the absence of others with its tag.
//! 3. A record's block is reused, under another generation, only after its entry was removed.
//! 4. A record in one line is changed in place by an atomic step that finds its generation. Its entry may
//!    have been removed just before: then the change counts as preceding that removal, which overlaps this
//!    operation. Only a replacement computed from the old value must exclude this: it freezes the record
//!    first.
//!
//! In memory of nodes with state, a crash takes lines back to what was last durable, each by itself. There the
//! fence of rule 1 makes the record durable; a block of rule 3 waits in the pool until the removal is durable;
//! and if the removal was lost meanwhile, the block is left to the table.
//!
//! None of this is a lock: an operation that meets a frozen record or an incomplete split completes it.

use super::directory::Directory;
use super::error::DhtError;
use super::hash::{hash, scramble};
use super::layout::{
    BUCKET_BYTES, Bucket, BucketEntry, BucketMut, BucketState, EntryLocation, KEY_BYTES_MAX,
    RECORD_HEADER, TableShape, VALUE_BYTES_MAX, bucket_address, bucket_index,
};
use super::pool::{BLOCKS_MAX, BlockClass, Pool, RecordBlock};
use super::record::{RecordHeader, RecordImage, RecordShape, end_of, lines_for};
use super::space::Space;
use farside::{AllocationHint, Error, ErrorCode, GlobalAddress};

/// Restarts of an operation before it fails with `Busy`. Each restart means that another operation has
/// succeeded, so this limit is for a memory that breaks its guarantees.
const ATTEMPTS_MAX: u32 = 1 << 20;
/// Times that the same entry may lead to no record before the table counts as damaged.
const STALE_MAX: u32 = 8;
/// Blocks of dead nodes that one operation drops before it fails.
const BLOCKS_LOST_MAX: u32 = 64;

/// One user's access to a table.
#[derive(Debug)]
pub(super) struct TableAccess {
    pub(super) shape: TableShape,
    pub(super) root: GlobalAddress,
    pub(super) directory: Directory,
    pub(super) pool: Pool,
    /// The bucket that `locate` read last.
    pub(super) bucket: Bucket,
    /// The record that `examine` read last.
    pub(super) image: RecordImage,
    /// Bytes of a record to be written.
    draft: RecordImage,
    /// The value that `update` is changing.
    value: Vec<u8>,
}

/// A key with its hash.
#[derive(Clone, Copy)]
pub(super) struct Sought<'a> {
    pub(super) key: &'a [u8],
    pub(super) hash: u64,
    pub(super) tag: u32,
}

/// A bucket of a segment.
#[derive(Clone, Copy, Debug)]
pub(super) struct BucketPlace {
    pub(super) segment: GlobalAddress,
    pub(super) index: usize,
    pub(super) address: GlobalAddress,
}

/// What the located bucket has of a key.
enum FoundEntry {
    /// Its record, in this slot.
    Record { slot: usize, entry: BucketEntry },
    /// There is none.
    Absent,
    /// This entry's record was gone when it was read: retry.
    Stale(BucketEntry),
}

/// The result of examining an entry's record.
enum Examined {
    /// The key's.
    Match,
    /// Another key's.
    Other,
    /// It was replaced since the bucket was read.
    Gone,
}

/// The result of a change in place.
enum InPlace {
    Done,
    /// The record must be replaced: frozen, or too small for the value.
    Replace,
    /// The record is gone: retry.
    Gone,
}

/// The result of a change of a bucket.
pub(super) enum BucketChange {
    Done,
    /// The bucket has changed: retry.
    Moved,
    /// No free entry.
    Full,
}

/// Whether an operation only reads or also changes a bucket.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    Read,
    Change,
}

/// Detects an entry that is stale too often.
#[derive(Default)]
struct StaleLimit {
    last: Option<BucketEntry>,
    times: u32,
}

impl StaleLimit {
    /// Returns `Damaged` if a present entry keeps leading to no record.
    fn stale(&mut self, entry: BucketEntry, bucket: GlobalAddress) -> Result<(), DhtError> {
        self.times = if self.last == Some(entry) { self.times + 1 } else { 1 };
        self.last = Some(entry);
        if self.times > STALE_MAX {
            return Err(DhtError::Damaged(entry.address().unwrap_or(bucket)));
        }
        Ok(())
    }
}

impl TableAccess {
    pub(super) fn new(
        shape: TableShape,
        root: GlobalAddress,
        first: Vec<GlobalAddress>,
        nonce: u64,
    ) -> Self {
        Self {
            shape,
            root,
            directory: Directory::new(shape.partition_bits, first),
            pool: Pool::new(BLOCKS_MAX, scramble(nonce)),
            bucket: Bucket::new(0, 0, 0, BucketState::Normal),
            image: RecordImage::default(),
            draft: RecordImage::default(),
            value: Vec::new(),
        }
    }

    pub(super) fn get<S: Space>(
        &mut self,
        space: &mut S,
        key: &[u8],
        out: &mut Vec<u8>,
    ) -> Result<bool, DhtError> {
        let sought = self.sought(key)?;
        let mut patience = StaleLimit::default();
        for _ in 0..ATTEMPTS_MAX {
            let place = self.locate(space, sought.hash, Purpose::Read)?;
            match self.find(space, &sought, true)? {
                FoundEntry::Record { .. } => {
                    self.image.value_into(out);
                    return Ok(true);
                }
                FoundEntry::Absent => return Ok(false),
                FoundEntry::Stale(entry) => patience.stale(entry, place.address)?,
            }
        }
        Err(DhtError::busy())
    }

    pub(super) fn put<S: Space>(
        &mut self,
        space: &mut S,
        key: &[u8],
        value: &[u8],
        replace: bool,
    ) -> Result<bool, DhtError> {
        check_value(value)?;
        let sought = self.sought(key)?;
        let mut draft = None;
        let result = self.put_with(space, &sought, value, replace, &mut draft);
        if let Some((block, _)) = draft {
            self.pool.put(block);
        }
        result
    }

    pub(super) fn put_with<S: Space>(
        &mut self,
        space: &mut S,
        sought: &Sought<'_>,
        value: &[u8],
        replace: bool,
        draft: &mut Option<(RecordBlock, BucketEntry)>,
    ) -> Result<bool, DhtError> {
        let mut patience = StaleLimit::default();
        for _ in 0..ATTEMPTS_MAX {
            let place = self.locate(space, sought.hash, Purpose::Change)?;
            match self.find(space, sought, false)? {
                FoundEntry::Stale(entry) => patience.stale(entry, place.address)?,
                FoundEntry::Record { .. } if !replace => return Ok(false),
                FoundEntry::Record { slot, entry } => {
                    match self.overwrite(space, sought.key, entry, value)? {
                        InPlace::Done => return Ok(false),
                        InPlace::Gone => continue,
                        InPlace::Replace => {}
                    }
                    let new = self.draft(space, sought, value, draft)?;
                    if self.replace(space, place, sought, (slot, entry), new)? {
                        *draft = None;
                        return Ok(false);
                    }
                }
                FoundEntry::Absent => {
                    let new = self.draft(space, sought, value, draft)?;
                    match self.insert(space, place, sought, new)? {
                        BucketChange::Done => {
                            *draft = None;
                            return Ok(true);
                        }
                        BucketChange::Moved => {}
                        BucketChange::Full => self.grow(space, place)?,
                    }
                }
            }
        }
        Err(DhtError::busy())
    }

    pub(super) fn delete<S: Space>(&mut self, space: &mut S, key: &[u8]) -> Result<bool, DhtError> {
        let sought = self.sought(key)?;
        let mut patience = StaleLimit::default();
        for _ in 0..ATTEMPTS_MAX {
            let place = self.locate(space, sought.hash, Purpose::Change)?;
            match self.find(space, &sought, false)? {
                FoundEntry::Stale(entry) => patience.stale(entry, place.address)?,
                FoundEntry::Absent => return Ok(false),
                FoundEntry::Record { slot, entry } => {
                    if self.replace(space, place, &sought, (slot, entry), BucketEntry::FREE)? {
                        return Ok(true);
                    }
                }
            }
        }
        Err(DhtError::busy())
    }

    pub(super) fn update<S: Space>(
        &mut self,
        space: &mut S,
        key: &[u8],
        mut change: impl FnMut(&mut Vec<u8>),
    ) -> Result<bool, DhtError> {
        let sought = self.sought(key)?;
        let mut draft = None;
        let mut value = std::mem::take(&mut self.value);
        let result = self.update_with(space, &sought, &mut change, &mut value, &mut draft);
        self.value = value;
        if let Some((block, _)) = draft {
            self.pool.put(block);
        }
        result
    }

    fn update_with<S: Space>(
        &mut self,
        space: &mut S,
        sought: &Sought<'_>,
        change: &mut impl FnMut(&mut Vec<u8>),
        value: &mut Vec<u8>,
        draft: &mut Option<(RecordBlock, BucketEntry)>,
    ) -> Result<bool, DhtError> {
        let mut patience = StaleLimit::default();
        for _ in 0..ATTEMPTS_MAX {
            let place = self.locate(space, sought.hash, Purpose::Change)?;
            let (slot, entry) = match self.find(space, sought, true)? {
                FoundEntry::Stale(entry) => {
                    patience.stale(entry, place.address)?;
                    continue;
                }
                FoundEntry::Absent => return Ok(false),
                FoundEntry::Record { slot, entry } => (slot, entry),
            };
            if entry.lines() == 1 && !self.image.header().frozen {
                match self.alter(space, sought.key, entry, change, value)? {
                    InPlace::Done => return Ok(true),
                    InPlace::Gone | InPlace::Replace => continue,
                }
            }
            self.image.value_into(value);
            change(value);
            check_value(value)?;
            if let Some((block, _)) = draft.take() {
                self.pool.put(block);
            }
            let new = self.draft(space, sought, value, draft)?;
            if self.replace(space, place, sought, (slot, entry), new)? {
                *draft = None;
                return Ok(true);
            }
        }
        Err(DhtError::busy())
    }

    pub(super) fn sought<'a>(&self, key: &'a [u8]) -> Result<Sought<'a>, DhtError> {
        if !(1..=KEY_BYTES_MAX).contains(&key.len()) {
            return Err(DhtError::KeySize(key.len()));
        }
        let hash = hash(key, self.shape.seed);
        Ok(Sought { key, hash, tag: self.shape.tag(hash) })
    }

    /// Reads the bucket of a hash; continues a split that is in the way.
    #[inline]
    pub(super) fn locate<S: Space>(
        &mut self,
        space: &mut S,
        hash: u64,
        purpose: Purpose,
    ) -> Result<BucketPlace, DhtError> {
        let index = bucket_index(hash);
        let tag = self.shape.tag(hash);
        let mut segment = self.directory.lookup(hash);
        for _ in 0..ATTEMPTS_MAX {
            let address = bucket_address(segment, index).ok_or(DhtError::Damaged(segment))?;
            space.read(address, &mut self.bucket.0)?;
            let here = BucketPlace { segment, index, address };
            let place = self.bucket.place(self.shape.table, tag);
            match place.ok_or(DhtError::Damaged(address))? {
                EntryLocation::Here => return Ok(here),
                EntryLocation::HereFrozen if purpose == Purpose::Read => return Ok(here),
                EntryLocation::HereFrozen | EntryLocation::Moving => {
                    self.settle_child(space, here)?
                }
                EntryLocation::Pending => self.settle_pending(space, here)?,
                EntryLocation::Child(number) => {
                    segment = self.child(space, segment, number)?;
                    self.directory.learn(hash, number + 1, here.segment, segment);
                }
            }
        }
        Err(DhtError::busy())
    }

    /// Searches the key among the entries of the located bucket. With `whole`, `image` then holds the found
    /// record as a whole, otherwise at least its key.
    #[inline]
    fn find<S: Space>(
        &mut self,
        space: &mut S,
        sought: &Sought<'_>,
        whole: bool,
    ) -> Result<FoundEntry, DhtError> {
        let mut candidates = self.bucket.candidates(sought.tag);
        let mut lost = None;
        while candidates != 0 {
            let slot = candidates.trailing_zeros() as usize;
            candidates &= candidates - 1;
            let entry = self.bucket.entry(slot);
            match self.examine(space, entry, Some(sought.key), whole) {
                Ok(Examined::Match) => return Ok(FoundEntry::Record { slot, entry }),
                Ok(Examined::Other) => {}
                Ok(Examined::Gone) => return Ok(FoundEntry::Stale(entry)),
                // The key may be in another one.
                Err(error) if error.is_lost() || error.code() == ErrorCode::HomeAway => {
                    lost = Some(error);
                }
                Err(error) => return Err(error),
            }
        }
        match lost {
            Some(error) => Err(error),
            None => Ok(FoundEntry::Absent),
        }
    }

    /// Reads the record of an entry; of any key if `key` is `None`.
    #[inline]
    fn examine<S: Space>(
        &mut self,
        space: &mut S,
        entry: BucketEntry,
        key: Option<&[u8]>,
        whole: bool,
    ) -> Result<Examined, DhtError> {
        let Some(address) = entry.address() else {
            return Err(DhtError::Damaged(self.root));
        };
        let line = address.line_size().bytes();
        let known = entry.lines() < BucketEntry::LINES_MANY;
        let mut bytes = match key {
            _ if whole && known => line * entry.lines() as usize,
            Some(key) if entry.lines() == 1 => line.min(RECORD_HEADER + key.len()),
            Some(key) => end_of(line, key.len()),
            None => line,
        };
        if known {
            bytes = bytes.min(line * entry.lines() as usize);
        }
        if !self.load(space, entry, address, bytes)? {
            return Ok(Examined::Gone);
        }
        let header = self.image.header();
        let lines = lines_for(line, header.key_bytes + header.value_bytes);
        if lines.min(BucketEntry::LINES_MANY) != entry.lines()
            || header.value_bytes > VALUE_BYTES_MAX
        {
            return Ok(Examined::Gone);
        }
        if key.is_some_and(|key| key.len() != header.key_bytes || !self.image.key_is(key)) {
            return Ok(Examined::Other);
        }
        if whole && !known && !self.load(space, entry, address, line * lines as usize)? {
            return Ok(Examined::Gone);
        }
        Ok(Examined::Match)
    }

    /// Reads the first bytes of a record; false if it is gone.
    #[inline]
    fn load<S: Space>(
        &mut self,
        space: &mut S,
        entry: BucketEntry,
        address: GlobalAddress,
        bytes: usize,
    ) -> Result<bool, DhtError> {
        let line = address.line_size().bytes();
        match space.read(address, self.image.room(line, bytes)) {
            Ok(()) => Ok(self.image.is_of(entry.generation())),
            Err(error) if is_freed(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Reads the record of any key into `image`, with key and value. False if it is gone.
    pub(super) fn read_any<S: Space>(
        &mut self,
        space: &mut S,
        entry: BucketEntry,
    ) -> Result<bool, DhtError> {
        Ok(matches!(self.examine(space, entry, None, true)?, Examined::Match))
    }

    /// Changes the value of a one-line record in place, if it fits.
    fn overwrite<S: Space>(
        &mut self,
        space: &mut S,
        key: &[u8],
        entry: BucketEntry,
        value: &[u8],
    ) -> Result<InPlace, DhtError> {
        let address = entry.address().ok_or(DhtError::Damaged(self.root))?;
        let bytes = RECORD_HEADER + key.len() + value.len();
        if entry.lines() != 1 || bytes > address.line_size().bytes() {
            return Ok(InPlace::Replace);
        }
        settled(space.atomic(address, bytes, |line| {
            let mut header = RecordHeader::decode(line);
            if header.generation != entry.generation() {
                return InPlace::Gone;
            }
            if header.frozen {
                return InPlace::Replace;
            }
            header.value_bytes = value.len();
            header.encode(line);
            line[RECORD_HEADER + key.len()..].copy_from_slice(value);
            InPlace::Done
        }))
    }

    /// Runs `change` on the value of a one-line record in place; freezes the record if the new value does
    /// not fit.
    fn alter<S: Space>(
        &mut self,
        space: &mut S,
        key: &[u8],
        entry: BucketEntry,
        change: &mut impl FnMut(&mut Vec<u8>),
        value: &mut Vec<u8>,
    ) -> Result<InPlace, DhtError> {
        let address = entry.address().ok_or(DhtError::Damaged(self.root))?;
        let start = RECORD_HEADER + key.len();
        settled(space.atomic(address, address.line_size().bytes(), |line| {
            let mut header = RecordHeader::decode(line);
            let end = start + header.value_bytes;
            if header.generation != entry.generation() || end > line.len() {
                return InPlace::Gone;
            }
            if header.frozen {
                return InPlace::Replace;
            }
            value.clear();
            value.extend_from_slice(&line[start..end]);
            change(value);
            if start + value.len() > line.len() {
                header.frozen = true;
                header.encode(line);
                return InPlace::Replace;
            }
            header.value_bytes = value.len();
            header.encode(line);
            line[start..start + value.len()].copy_from_slice(value);
            InPlace::Done
        }))
    }

    /// Returns a record without an entry; the one built before if there is one.
    fn draft<S: Space>(
        &mut self,
        space: &mut S,
        sought: &Sought<'_>,
        value: &[u8],
        draft: &mut Option<(RecordBlock, BucketEntry)>,
    ) -> Result<BucketEntry, DhtError> {
        if let Some((_, entry)) = draft {
            return Ok(*entry);
        }
        let shape = RecordShape::fitting(sought.key.len() + value.len(), self.shape.record_line);
        for _ in 0..BLOCKS_LOST_MAX {
            let block = self.block(space, shape.class())?;
            let line = shape.line.bytes();
            let bytes = self.draft.build(line, block.generation, sought.tag, sought.key, value);
            let written = space.write(block.address, bytes).and_then(|()| self.fence(space));
            let Err(error) = written else {
                let entry =
                    BucketEntry::new(sought.tag, shape.lines, block.generation, block.address);
                *draft = Some((block, entry));
                return Ok(entry);
            };
            let of_block = error.address.is_none_or(|at| block.contains(at));
            match error.code {
                // Of earlier writes of this session.
                ErrorCode::WritesLost => self.pool.put(block),
                _ if !of_block => self.pool.put(block),
                ErrorCode::NodeLost | ErrorCode::NodeLeft => {
                    self.pool.forget_memory(block.address.memory());
                    continue;
                }
                ErrorCode::LineLost => {
                    self.pool.discarded.push(block);
                    continue;
                }
                // So that the next one is elsewhere.
                ErrorCode::HomeAway => self.pool.forget_memory(block.address.memory()),
                _ => self.pool.discarded.push(block),
            }
            return Err(error.into());
        }
        Err(Error::with(ErrorCode::OutOfMemory, "every block got lost with its node").into())
    }

    /// Allocates memory for a record, at this node if available.
    fn block<S: Space>(
        &mut self,
        space: &mut S,
        class: BlockClass,
    ) -> Result<RecordBlock, DhtError> {
        if let Some(block) = self.pool.take(class) {
            return Ok(block);
        }
        let spec = self.shape.allocation(AllocationHint::Default, Some(class.line));
        let address = self.allocate(space, |space| Ok(space.alloc(class.bytes(), spec)?))?;
        Ok(RecordBlock { address, class, generation: self.pool.first_generation() })
    }

    /// Allocates; if there is no memory, again after blocks that wait or were discarded are free.
    pub(super) fn allocate<S: Space>(
        &mut self,
        space: &mut S,
        mut allocate: impl FnMut(&mut S) -> Result<GlobalAddress, DhtError>,
    ) -> Result<GlobalAddress, DhtError> {
        match allocate(space) {
            Err(error) if error.code() == ErrorCode::OutOfMemory && self.pool.holds_any() => {
                self.drain_pool(space)?;
                allocate(space)
            }
            result => result,
        }
    }

    /// Changes the entry at `slot` from `old` to `new`.
    pub(super) fn exchange<S: Space>(
        &mut self,
        space: &mut S,
        place: BucketPlace,
        sought: &Sought<'_>,
        slot: usize,
        old: BucketEntry,
        new: BucketEntry,
    ) -> Result<BucketChange, DhtError> {
        let table = self.shape.table;
        Ok(space.atomic(place.address, BUCKET_BYTES, |line| {
            let mut bucket = BucketMut(line);
            let changeable = bucket.place(table, sought.tag) == Some(EntryLocation::Here);
            if !changeable || bucket.entry(slot) != old {
                return BucketChange::Moved;
            }
            bucket.set(slot, new);
            BucketChange::Done
        })?)
    }

    /// Adds an entry, unless another one with its tag was added since the bucket was read.
    fn insert<S: Space>(
        &mut self,
        space: &mut S,
        place: BucketPlace,
        sought: &Sought<'_>,
        new: BucketEntry,
    ) -> Result<BucketChange, DhtError> {
        let (table, seen) = (self.shape.table, &self.bucket);
        Ok(space.atomic(place.address, BUCKET_BYTES, |line| {
            let mut bucket = BucketMut(line);
            let unseen = |slot: &usize| {
                let entry = bucket.entry(*slot);
                !entry.is_free() && entry.tag() == sought.tag && entry != seen.entry(*slot)
            };
            let changeable = bucket.place(table, sought.tag) == Some(EntryLocation::Here);
            if !changeable || (0..super::layout::SLOTS).any(|slot| unseen(&slot)) {
                return BucketChange::Moved;
            }
            match bucket.free_slot() {
                None => BucketChange::Full,
                Some(slot) => {
                    bucket.set(slot, new);
                    BucketChange::Done
                }
            }
        })?)
    }

    /// Changes the entry of a record to `new`, and keeps the record's block; false if the bucket has changed:
    /// retry. The record's number of lines must be known: `image` has its header if the entry does not say.
    fn replace<S: Space>(
        &mut self,
        space: &mut S,
        place: BucketPlace,
        sought: &Sought<'_>,
        (slot, old): (usize, BucketEntry),
        new: BucketEntry,
    ) -> Result<bool, DhtError> {
        if self.pool.waits_for_many() {
            self.fence(space)?;
        }
        let mark = space.loss_mark();
        let BucketChange::Done = self.exchange(space, place, sought, slot, old, new)? else {
            return Ok(false);
        };
        if let Some(block) = self.block_of(old) {
            self.pool.wait(block, mark);
        }
        Ok(true)
    }

    /// The block of the record of an entry.
    fn block_of(&self, entry: BucketEntry) -> Option<RecordBlock> {
        let address = entry.address()?;
        let line = address.line_size();
        let lines = if entry.lines() < BucketEntry::LINES_MANY {
            entry.lines()
        } else {
            let header = self.image.header();
            lines_for(line.bytes(), header.key_bytes + header.value_bytes)
        };
        let class = BlockClass::fitting(line, lines);
        Some(RecordBlock { address, class, generation: entry.generation() })
    }

    /// Waits until what this node wrote is visible, and durable in memory of nodes with state; then frees what was
    /// discarded.
    pub(super) fn fence<S: Space>(&mut self, space: &mut S) -> Result<(), Error> {
        loop {
            self.pool.discarded.retain(|block| clear(space, *block));
            let Err(error) = space.fence() else { break };
            // A block that cannot be cleared stays allocated; it concerns no other operation.
            let of_error = |block: &RecordBlock| error.address.is_some_and(|at| block.contains(at));
            let Some(at) = self.pool.discarded.iter().position(of_error) else {
                return Err(error);
            };
            self.pool.discarded.swap_remove(at);
        }
        for block in self.pool.discarded.drain(..) {
            let _ = space.free(block.address);
        }
        self.pool.fenced(space.loss_mark());
        Ok(())
    }
}

/// Takes the generations from the lines of a block, since the next owner of the memory need not write them
/// all at once; false if it cannot be written.
fn clear<S: Space>(space: &mut S, block: RecordBlock) -> bool {
    let line = block.class.line.bytes() as u64;
    let lines = (0..u64::from(block.class.lines))
        .filter_map(|number| block.address.checked_add(number * line));
    let mut dead = false;
    for at in lines {
        dead |= space.write(at, &[0; 4]).is_err_and(|error| error.code != ErrorCode::LineLost);
    }
    !dead
}

/// The result of an atomic step on a record, whose memory may have been freed meanwhile.
fn settled(result: Result<InPlace, Error>) -> Result<InPlace, DhtError> {
    match result {
        Ok(outcome) => Ok(outcome),
        Err(error) if is_freed(&error) => Ok(InPlace::Gone),
        Err(error) => Err(error.into()),
    }
}

/// Whether an access failed because the memory is free, or was allocated to another program.
pub(super) fn is_freed(error: &Error) -> bool {
    matches!(
        error.code,
        ErrorCode::Unallocated
            | ErrorCode::OutOfBounds
            | ErrorCode::BadLineSize
            | ErrorCode::LineSpanning
    )
}

fn check_value(value: &[u8]) -> Result<(), DhtError> {
    if value.len() > VALUE_BYTES_MAX {
        return Err(DhtError::ValueSize(value.len()));
    }
    Ok(())
}
