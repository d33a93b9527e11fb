//! Growth: a segment with a full bucket splits into itself and a child, bucket by bucket, concurrently with
//! all operations. Each step is one atomic change that any user can repeat, so a split whose starter died
//! is completed by the next user that needs it.
//!
//! ```text
//! parent's header   announce: the child's address                      ... finish: depth + 1
//! parent's bucket             freeze -------------------> drop, depth + 1
//! child's bucket    pending            fill from frozen
//! ```
//! A moving key belongs to the parent until the child's bucket is filled, and to the child from then on: an
//! operation that finds the parent's bucket frozen and its key moving settles the bucket first.
//!
//! Each column is fenced before the next one begins. In memory of nodes with state, lines come back from a
//! crash each in its own last durable state, and a drop without its fill, or a fill without its freeze, would
//! lose entries.

use super::error::DhtError;
use super::layout::{
    BUCKET_BYTES, BUCKETS, Bucket, BucketMut, BucketState, SEGMENT_BYTES, SegmentHeader,
    SegmentHeaderMut, TAG_BITS, TableShape, bucket_address, bucket_line, goes_to_child,
};
use super::space::Space;
use super::table::{BucketPlace, TableAccess};
use farside::{AllocationHint, ErrorCode, GlobalAddress};

/// The bucket of a step of a split.
#[derive(Clone, Copy)]
struct SplitStep {
    parent: GlobalAddress,
    child: GlobalAddress,
    index: usize,
    depth: u32,
}

/// The result of freezing a bucket.
enum Frozen {
    /// Its entries; they do not change until the step is complete.
    Entries,
    /// The bucket's split at this depth is complete.
    Over,
    /// The bucket itself waits for entries of its parent.
    Pending,
}

impl TableAccess {
    /// Splits the segment of a full bucket, which `locate` read last.
    pub(super) fn grow<S: Space>(
        &mut self,
        space: &mut S,
        full: BucketPlace,
    ) -> Result<(), DhtError> {
        let depth = self.bucket.depth();
        if depth >= TAG_BITS {
            return Err(DhtError::BucketFull);
        }
        let header = self.header(space, full.segment)?;
        let child = match header.child(depth) {
            Some(child) => child,
            None if header.depth() < depth => {
                // Another bucket of the previous split is incomplete.
                let before = depth - 1;
                let child = header.child(before).ok_or(DhtError::Damaged(full.segment))?;
                return self.split(space, full.segment, child, before);
            }
            None => {
                let prefix = self.bucket.prefix() | 1 << (TAG_BITS - 1 - depth);
                let new =
                    self.new_child(space, full.segment, header.partition(), prefix, depth + 1)?;
                let announced = space.atomic(full.segment, BUCKET_BYTES, |line| {
                    SegmentHeaderMut(line).announce(depth, new)
                })?;
                if announced != Some(new) {
                    let _ = space.free(new);
                }
                match announced {
                    Some(child) => child,
                    None => return Ok(()),
                }
            }
        };
        self.split(space, full.segment, child, depth)
    }

    /// Moves the remaining entries of an announced split.
    fn split<S: Space>(
        &mut self,
        space: &mut S,
        parent: GlobalAddress,
        child: GlobalAddress,
        depth: u32,
    ) -> Result<(), DhtError> {
        // As in `settle`, but with one fence for all buckets.
        self.fence(space)?;
        let mut frozen = Vec::with_capacity(BUCKETS);
        for index in 0..BUCKETS {
            let step = SplitStep { parent, child, index, depth };
            frozen.extend(self.freeze_settled(space, step)?.map(|entries| (step, entries)));
        }
        self.fence(space)?;
        frozen.iter().try_for_each(|(step, entries)| self.fill(space, *step, entries))?;
        self.fence(space)?;
        frozen.iter().try_for_each(|(step, entries)| self.drop_moved(space, *step, entries))?;
        self.fence(space)?;
        Ok(space.atomic(parent, BUCKET_BYTES, |line| SegmentHeaderMut(line).finish(depth))?)
    }

    /// Continues the split of a frozen bucket, which `locate` read last.
    pub(super) fn settle_child<S: Space>(
        &mut self,
        space: &mut S,
        frozen: BucketPlace,
    ) -> Result<(), DhtError> {
        let depth = self.bucket.depth();
        let child = self.child(space, frozen.segment, depth)?;
        let (parent, index) = (frozen.segment, frozen.index);
        self.settle(space, SplitStep { parent, child, index, depth })
    }

    /// Fills a pending bucket with its entries.
    pub(super) fn settle_pending<S: Space>(
        &mut self,
        space: &mut S,
        pending: BucketPlace,
    ) -> Result<(), DhtError> {
        let (child, index) = (pending.segment, pending.index);
        let step = self.step_into(space, child, index)?;
        self.settle(space, step)
    }

    /// The step that fills a bucket of `child`.
    fn step_into<S: Space>(
        &mut self,
        space: &mut S,
        child: GlobalAddress,
        index: usize,
    ) -> Result<SplitStep, DhtError> {
        let header = self.header(space, child)?;
        let parent = header.parent().ok_or(DhtError::Damaged(child))?;
        let depth = header.created().checked_sub(1).ok_or(DhtError::Damaged(child))?;
        Ok(SplitStep { parent, child, index, depth })
    }

    /// Does one bucket's part of a split, after those of the ancestors that it depends on. Each step is durable
    /// before the next begins, so that a crash cannot take back the earlier one alone.
    fn settle<S: Space>(&mut self, space: &mut S, step: SplitStep) -> Result<(), DhtError> {
        let mut steps = vec![step];
        let mut entries = Bucket([0; BUCKET_BYTES]);
        while let Some(step) = steps.last().copied() {
            match self.freeze(space, step, &mut entries)? {
                Frozen::Over => {}
                Frozen::Pending if steps.len() > TAG_BITS as usize => {
                    return Err(DhtError::Damaged(step.parent));
                }
                Frozen::Pending => {
                    steps.push(self.step_into(space, step.parent, step.index)?);
                    continue;
                }
                Frozen::Entries => {
                    self.fence(space)?;
                    self.fill(space, step, &entries)?;
                    self.fence(space)?;
                    self.drop_moved(space, step, &entries)?;
                }
            }
            steps.pop();
        }
        Ok(())
    }

    /// Freezes a bucket, after the ancestors that it depends on; returns its entries unless its split is complete.
    fn freeze_settled<S: Space>(
        &mut self,
        space: &mut S,
        step: SplitStep,
    ) -> Result<Option<Bucket>, DhtError> {
        let mut entries = Bucket([0; BUCKET_BYTES]);
        loop {
            match self.freeze(space, step, &mut entries)? {
                Frozen::Entries => return Ok(Some(entries)),
                Frozen::Over => return Ok(None),
                Frozen::Pending => {
                    let before = self.step_into(space, step.parent, step.index)?;
                    self.settle(space, before)?;
                }
            }
        }
    }

    fn freeze<S: Space>(
        &mut self,
        space: &mut S,
        step: SplitStep,
        entries: &mut Bucket,
    ) -> Result<Frozen, DhtError> {
        let address = bucket_of(step.parent, step.index)?;
        let table = self.shape.table;
        let frozen = space.atomic(address, BUCKET_BYTES, |line| {
            let mut bucket = BucketMut(line);
            let (depth, state) = bucket.stage(table)?;
            if depth > step.depth {
                return Some(Frozen::Over);
            }
            if depth < step.depth {
                return None;
            }
            match state {
                BucketState::Pending => return Some(Frozen::Pending),
                BucketState::Normal => bucket.become_state(depth, BucketState::Frozen),
                BucketState::Frozen => {}
            }
            entries.0.copy_from_slice(bucket.0);
            Some(Frozen::Entries)
        })?;
        frozen.ok_or(DhtError::Damaged(address))
    }

    /// Copies the moved entries into the child's bucket. A dead child takes its half with it; the other half continues.
    fn fill<S: Space>(
        &mut self,
        space: &mut S,
        step: SplitStep,
        from: &Bucket,
    ) -> Result<(), DhtError> {
        let address = bucket_of(step.child, step.index)?;
        let table = self.shape.table;
        let filled = space.atomic(address, BUCKET_BYTES, |line| {
            let mut bucket = BucketMut(line);
            let (depth, state) = bucket.stage(table)?;
            if state == BucketState::Pending {
                bucket.copy_entries(from, |tag| goes_to_child(tag, step.depth));
                bucket.become_state(depth, BucketState::Normal);
            }
            Some(())
        });
        match filled.map_err(DhtError::from) {
            Ok(filled) => filled.ok_or(DhtError::Damaged(address)),
            Err(error) if error.is_lost() => Ok(()),
            Err(error) => Err(error),
        }
    }

    fn drop_moved<S: Space>(
        &mut self,
        space: &mut S,
        step: SplitStep,
        from: &Bucket,
    ) -> Result<(), DhtError> {
        let table = self.shape.table;
        space.atomic(bucket_of(step.parent, step.index)?, BUCKET_BYTES, |line| {
            let mut bucket = BucketMut(line);
            if bucket.stage(table) == Some((step.depth, BucketState::Frozen)) {
                bucket.copy_entries(from, |tag| !goes_to_child(tag, step.depth));
                bucket.become_state(step.depth + 1, BucketState::Normal);
            }
        })?;
        Ok(())
    }

    /// Allocates a segment whose buckets are pending: at the parent's home, so that a partition is lost
    /// with one node only, unless memory is short there.
    fn new_child<S: Space>(
        &mut self,
        space: &mut S,
        parent: GlobalAddress,
        partition: u16,
        prefix: u32,
        depth: u32,
    ) -> Result<GlobalAddress, DhtError> {
        let header = SegmentHeader::new(self.shape.table, partition, prefix, depth, Some(parent));
        let bucket = Bucket::new(self.shape.table, prefix, depth, BucketState::Pending);
        let shape = self.shape;
        self.allocate(space, |space| {
            new_segment(space, &shape, AllocationHint::Near(parent), &header, &bucket)
        })
    }

    /// The child segment of `segment` for keys with bit `number` set.
    pub(super) fn child<S: Space>(
        &mut self,
        space: &mut S,
        segment: GlobalAddress,
        number: u32,
    ) -> Result<GlobalAddress, DhtError> {
        let header = self.header(space, segment)?;
        header.child(number).ok_or(DhtError::Damaged(segment))
    }

    /// Reads a segment's header.
    pub(super) fn header<S: Space>(
        &mut self,
        space: &mut S,
        segment: GlobalAddress,
    ) -> Result<SegmentHeader, DhtError> {
        let mut header = SegmentHeader([0; BUCKET_BYTES]);
        space.read(segment, &mut header.0)?;
        if !header.is_valid(self.shape.table) {
            return Err(DhtError::Damaged(segment));
        }
        Ok(header)
    }
}

fn bucket_of(segment: GlobalAddress, index: usize) -> Result<GlobalAddress, DhtError> {
    bucket_address(segment, index).ok_or(DhtError::Damaged(segment))
}

/// Allocates and writes a segment of equal buckets; visible to all when it returns.
pub(super) fn new_segment<S: Space>(
    space: &mut S,
    shape: &TableShape,
    hint: AllocationHint,
    header: &SegmentHeader,
    bucket: &Bucket,
) -> Result<GlobalAddress, DhtError> {
    let spec = |hint| shape.allocation(hint, Some(bucket_line()));
    let mut bytes = Vec::with_capacity(SEGMENT_BYTES);
    bytes.extend_from_slice(&header.0);
    for _ in 0..BUCKETS {
        bytes.extend_from_slice(&bucket.0);
    }
    let segment = match space.alloc(SEGMENT_BYTES as u64, spec(hint)) {
        Err(error) if error.code == ErrorCode::OutOfMemory => {
            space.alloc(SEGMENT_BYTES as u64, spec(AllocationHint::Default))?
        }
        other => other?,
    };
    space.write(segment, &bytes)?;
    space.fence()?;
    Ok(segment)
}
