//! Operations on the whole table: scan, count, removal of lost entries, and destruction.
//!
//! A walk visits the tags of each bucket number of each partition in rising order. A bucket covers the tags
//! that share its prefix, splits only shrink ranges, and a bucket's line is read atomically. So every key
//! that exists throughout is met exactly once, whatever splits meanwhile.

use super::error::DhtError;
use super::hash::scramble;
use super::layout::{BUCKETS, Bucket, BucketEntry, BucketState, ROOT_HEADER, SLOTS, TAG_BITS};
use super::root::read_root;
use super::space::Space;
use super::table::{BucketChange, Purpose, Sought, TableAccess};

/// Times that one tag's records may change under a scan before it fails with `Busy`.
const ATTEMPTS_MAX: u32 = 1 << 16;

/// A key and its value.
type Record = (Vec<u8>, Vec<u8>);

/// The result of a walk over the table.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct ScanReport {
    /// Records visited.
    pub records: u64,
    /// Records lost with a node whose bucket survives.
    pub lost_records: u64,
    /// Buckets lost with a node, with an unknown number of records.
    pub lost_buckets: u64,
    /// The first error among the losses.
    pub first_error: Option<DhtError>,
}

impl ScanReport {
    fn lose(&mut self, error: DhtError) {
        self.first_error.get_or_insert(error);
    }
}

/// The position of a walk: a range of tags that one bucket covers.
#[derive(Clone, Copy)]
struct Position {
    partition: usize,
    index: usize,
    tag: u32,
}

impl Position {
    const START: Self = Self { partition: 0, index: 0, tag: 0 };

    /// A hash in this range.
    fn hash(self, partition_bits: u32) -> u64 {
        let low = ((self.index as u64) << 32).div_ceil(BUCKETS as u64);
        let high = (self.partition as u64) << (64 - partition_bits);
        high | (u64::from(self.tag) << (64 - partition_bits - TAG_BITS)) | low
    }

    /// The position of the first tag at or after `tag`; `None` at the end of the table.
    fn advance(self, tag: u32, partitions: usize) -> Option<Self> {
        if tag >> TAG_BITS == 0 {
            return Some(Self { tag, ..self });
        }
        if self.index + 1 < BUCKETS {
            return Some(Self { index: self.index + 1, tag: 0, ..self });
        }
        let partition = self.partition + 1;
        (partition < partitions).then_some(Self { partition, ..Self::START })
    }
}

/// The entries that belong to a bucket, and the first tag after its range.
fn own_entries(bucket: &Bucket) -> (Vec<BucketEntry>, u32) {
    // During a split the upper half may have gone to the child already.
    let frozen = bucket.state() == Some(BucketState::Frozen);
    let depth = (bucket.depth() + u32::from(frozen)).min(TAG_BITS);
    let end = bucket.prefix() + (1 << (TAG_BITS - depth));
    let entries = (0..SLOTS).map(|slot| bucket.entry(slot));
    (entries.filter(|entry| !entry.is_free() && entry.tag() < end).collect(), end)
}

impl TableAccess {
    pub(super) fn scan<S: Space>(
        &mut self,
        space: &mut S,
        mut visit: impl FnMut(&[u8], &[u8]),
    ) -> Result<ScanReport, DhtError> {
        let mut report = ScanReport::default();
        self.walk(space, |table, space, position, found| {
            let entries = match found {
                Ok(entries) => entries,
                Err(error) => {
                    report.lost_buckets += 1;
                    report.lose(error);
                    return Ok(());
                }
            };
            let mut tags: Vec<u32> = entries.iter().map(|entry| entry.tag()).collect();
            tags.sort_unstable();
            tags.dedup();
            for tag in tags {
                for (key, value) in
                    table.records_of(space, Position { tag, ..position }, &mut report)?
                {
                    report.records += 1;
                    visit(&key, &value);
                }
            }
            Ok(())
        })?;
        Ok(report)
    }

    /// Estimates the number of records from `samples` random buckets.
    pub(super) fn len_estimate<S: Space>(
        &mut self,
        space: &mut S,
        samples: u32,
    ) -> Result<u64, DhtError> {
        let mut sum = 0.0;
        for sample in 0..samples {
            let hash = scramble(self.shape.table ^ u64::from(sample));
            match self.locate(space, hash, Purpose::Read) {
                Ok(_) => {
                    let (entries, end) = own_entries(&self.bucket);
                    let share = f64::from(end - self.bucket.prefix()) / f64::from(1 << TAG_BITS);
                    sum += entries.len() as f64 / share;
                }
                Err(error) if error.is_lost() => {}
                Err(error) => return Err(error),
            }
        }
        let buckets = (BUCKETS << self.shape.partition_bits) as f64;
        Ok((sum * buckets / f64::from(samples.max(1))).round() as u64)
    }

    /// Removes the entries of lost records; their keys can then be put again.
    pub(super) fn forget_lost<S: Space>(&mut self, space: &mut S) -> Result<u64, DhtError> {
        let mut forgotten = 0;
        self.walk(space, |table, space, position, found| {
            for entry in found.unwrap_or_default() {
                match table.read_any(space, entry) {
                    Err(error) if error.is_lost() => {}
                    Err(error) => return Err(error),
                    Ok(_) => continue,
                }
                let tag = entry.tag();
                let hash = Position { tag, ..position }.hash(table.shape.partition_bits);
                let place = table.locate(space, hash, Purpose::Change)?;
                let slot = (0..SLOTS).find(|slot| table.bucket.entry(*slot) == entry);
                let sought = Sought { key: &[], hash, tag };
                let Some(slot) = slot else { continue };
                if let BucketChange::Done =
                    table.exchange(space, place, &sought, slot, entry, BucketEntry::FREE)?
                {
                    forgotten += 1;
                }
            }
            Ok(())
        })?;
        Ok(forgotten)
    }

    /// Frees the whole table. No user may access it any more.
    ///
    /// Invalidates the root first: a repeated call then fails, and cannot free an address that was allocated again.
    pub(super) fn destroy<S: Space>(&mut self, space: &mut S) -> Result<(), DhtError> {
        let (_, mut segments) = read_root(space, self.root)?;
        self.fence(space)?;
        space.write(self.root, &[0; ROOT_HEADER])?;
        space.fence()?;
        let mut outcome = self.walk(space, |_, space, _, found| {
            for entry in found.unwrap_or_default() {
                if let Some(address) = entry.address() {
                    let _ = space.free(address);
                }
            }
            Ok(())
        });
        outcome = outcome.and(self.drain_pool(space));
        while let Some(segment) = segments.pop() {
            match self.header(space, segment) {
                Ok(header) => {
                    segments.extend((0..TAG_BITS).filter_map(|number| header.child(number)));
                    let _ = space.free(segment);
                }
                Err(error) if error.is_lost() => {}
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.and(Ok(space.free(self.root)?))
    }

    /// Frees the spare blocks.
    pub(super) fn drain_pool<S: Space>(&mut self, space: &mut S) -> Result<(), DhtError> {
        self.fence(space)?;
        self.pool.discard_all();
        Ok(self.fence(space)?)
    }

    /// Walks all buckets, each with its entries or the reason for its loss.
    fn walk<S: Space>(
        &mut self,
        space: &mut S,
        mut each: impl FnMut(
            &mut Self,
            &mut S,
            Position,
            Result<Vec<BucketEntry>, DhtError>,
        ) -> Result<(), DhtError>,
    ) -> Result<(), DhtError> {
        let bits = self.shape.partition_bits;
        let mut next = Some(Position::START);
        while let Some(position) = next {
            let end = match self.locate(space, position.hash(bits), Purpose::Read) {
                Ok(_) => {
                    let (entries, end) = own_entries(&self.bucket);
                    each(self, space, position, Ok(entries))?;
                    end
                }
                Err(error) if error.is_lost() => {
                    each(self, space, position, Err(error))?;
                    self.end_of_lost(position)
                }
                Err(error) => return Err(error),
            };
            next = position.advance(end, 1 << bits);
        }
        Ok(())
    }

    /// The first tag after those that the directory maps to the same segment as `lost`.
    fn end_of_lost(&self, lost: Position) -> u32 {
        let bits = self.shape.partition_bits;
        let step = 1 << (TAG_BITS - self.directory.tag_bits());
        let segment = self.directory.lookup(lost.hash(bits));
        let mut tag = (lost.tag & !(step - 1)) + step;
        while tag >> TAG_BITS == 0
            && self.directory.lookup(Position { tag, ..lost }.hash(bits)) == segment
        {
            tag += step;
        }
        tag
    }

    /// The records with one tag, all as of one time or each as of some time since.
    fn records_of<S: Space>(
        &mut self,
        space: &mut S,
        position: Position,
        report: &mut ScanReport,
    ) -> Result<Vec<Record>, DhtError> {
        let hash = position.hash(self.shape.partition_bits);
        'again: for _ in 0..ATTEMPTS_MAX {
            match self.locate(space, hash, Purpose::Read) {
                Ok(_) => {}
                Err(error) if error.is_lost() => {
                    report.lost_buckets += 1;
                    report.lose(error);
                    return Ok(Vec::new());
                }
                Err(error) => return Err(error),
            }
            let candidates = self.bucket.candidates(position.tag);
            let (mut records, mut lost) = (Vec::new(), Vec::new());
            for slot in (0..SLOTS).filter(|slot| candidates >> slot & 1 == 1) {
                let (mut key, mut value) = (Vec::new(), Vec::new());
                match self.read_any(space, self.bucket.entry(slot)) {
                    Ok(true) => {
                        self.image.key_into(&mut key);
                        self.image.value_into(&mut value);
                        records.push((key, value));
                    }
                    Ok(false) => continue 'again,
                    Err(error) if error.is_lost() => lost.push(error),
                    Err(error) => return Err(error),
                }
            }
            report.lost_records += lost.len() as u64;
            lost.into_iter().for_each(|error| report.lose(error));
            return Ok(records);
        }
        Err(DhtError::busy())
    }
}
