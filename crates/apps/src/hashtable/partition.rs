//! The part of a table in one memory: its segments, and space for its entries.

use super::error::TableError;
use super::slot::{BUCKET, BUCKETS, DEPTH_MAX, Gate, KeyHash, SEGMENT, SLOTS, SegmentState, Slot};
use farside::ErrorCode;
use farside::onesided::{
    Buffer, Deadline, HeapOptions, MemoryClient, MemoryHeader, RemoteAddress, RemoteHeap, RequestId,
};

const MAGIC: u64 = u64::from_le_bytes(*b"FSTABLE\x01");
/// Bytes before the heap.
const HEADER: u64 = 64;
/// Requests that are waited for together.
const BATCH: usize = 32;

/// What the headers of all partitions of a table say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) seed: u64,
    pub(super) number: u64,
    pub(super) count: u64,
}

/// A segment as this client knows it.
enum TrieNode {
    Leaf(u64),
    /// Both halves, in the list of nodes.
    Inner([usize; 2]),
}

/// A segment that is in use.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Leaf {
    /// Of the segment.
    pub(super) offset: u64,
    depth: u32,
    node: usize,
}

/// The slots of a bucket, and its gate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Bucket {
    pub(super) slots: [Slot; SLOTS],
    pub(super) gate: Gate,
}

impl Bucket {
    fn decode(bytes: &[u8]) -> Self {
        let words: [Slot; SLOTS + 1] = slots(bytes);
        let gate = Gate(words[SLOTS].0);
        Self { slots: std::array::from_fn(|at| words[at]), gate }
    }

    /// Whether a client has begun to split its segment.
    pub(super) fn is_frozen(&self) -> bool {
        Slot(self.gate.0).is_frozen() || self.slots.iter().any(|slot| slot.is_frozen())
    }
}

pub(super) struct Partition {
    at: RemoteAddress,
    pub(super) heap: RemoteHeap,
    nodes: Vec<TrieNode>,
    pub(super) buffer: Buffer,
    /// For an entry on its way.
    pub(super) entry: Buffer,
    /// Segments that this client has split.
    pub(super) splits: u64,
}

impl Partition {
    pub(super) fn create(
        client: &mut MemoryClient,
        at: RemoteAddress,
        shape: Shape,
        heap: &HeapOptions,
        deadline: &Deadline,
    ) -> Result<Self, TableError> {
        let header = MemoryHeader::new(at, MAGIC);
        if !header.claim(client, deadline)? {
            return Err(TableError::Exists);
        }
        let mut heap = RemoteHeap::create(client, at.plus(HEADER), heap, deadline.left())?;
        let root = heap.alloc(client, SEGMENT, deadline.left())?;
        let mut segment = vec![0; SEGMENT as usize];
        segment[..8].copy_from_slice(&SegmentState::Leaf.encode().to_le_bytes());
        client.write_bytes(root, &segment, deadline.left())?;
        let words = [shape.seed, shape.number, shape.count, root.offset()];
        header.publish(client, &words, deadline)?;
        Self::with(client, at, heap, root.offset())
    }

    pub(super) fn open(
        client: &mut MemoryClient,
        at: RemoteAddress,
        deadline: &Deadline,
    ) -> Result<(Self, Shape), TableError> {
        let words = MemoryHeader::new(at, MAGIC).read(client, deadline)?;
        let [seed, number, count, root] = words.ok_or(TableError::NotATable)?;
        let shape = Shape { seed, number, count };
        let heap = RemoteHeap::open(client, at.plus(HEADER), deadline.left())?;
        Ok((Self::with(client, at, heap, root)?, shape))
    }

    fn with(
        client: &MemoryClient,
        at: RemoteAddress,
        heap: RemoteHeap,
        root: u64,
    ) -> Result<Self, TableError> {
        let [buffer, entry] = [(); 2].map(|()| client.register(heap.options().chunk_bytes));
        let (buffer, entry) = (buffer?, entry?);
        Ok(Self { at, heap, nodes: vec![TrieNode::Leaf(root)], buffer, entry, splits: 0 })
    }

    pub(super) fn address(&self, offset: u64) -> RemoteAddress {
        self.at.memory().at(offset)
    }

    /// Returns the segment of a hash, as far as this client knows.
    pub(super) fn leaf(&self, key: KeyHash) -> Leaf {
        let (mut node, mut depth) = (0, 0);
        loop {
            match self.nodes[node] {
                TrieNode::Leaf(offset) => return Leaf { offset, depth, node },
                TrieNode::Inner(halves) => {
                    node = halves[key.half(depth) as usize];
                    depth += 1;
                }
            }
        }
    }

    /// Returns the address of a slot.
    pub(super) fn slot(&self, leaf: Leaf, bucket: u64, slot: usize) -> RemoteAddress {
        self.address(leaf.offset + BUCKET * (bucket + 1) + 8 * slot as u64)
    }

    /// Queues the READ of a bucket, into the buffer.
    pub(super) fn read_bucket(
        &self,
        client: &mut MemoryClient,
        leaf: Leaf,
        bucket: u64,
    ) -> Result<RequestId, TableError> {
        Ok(client.read(self.slot(leaf, bucket, 0), &self.buffer, 0..BUCKET)?)
    }

    /// Returns the bucket in the buffer.
    pub(super) fn bucket(&self) -> Result<Bucket, TableError> {
        let mut bytes = [0; BUCKET as usize];
        self.buffer.read(0, &mut bytes)?;
        Ok(Bucket::decode(&bytes))
    }

    /// Reads bytes from an offset.
    pub(super) fn read(
        &mut self,
        client: &mut MemoryClient,
        (offset, bytes): (u64, u64),
        out: &mut Vec<u8>,
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        let read = client.read(self.address(offset), &self.buffer, 0..bytes)?;
        self.wait(client, read, deadline)?;
        out.resize(bytes as usize, 0);
        Ok(self.buffer.read(0, out)?)
    }

    /// Waits for a request on the buffer.
    pub(super) fn wait(
        &mut self,
        client: &mut MemoryClient,
        request: RequestId,
        deadline: &Deadline,
    ) -> Result<u64, TableError> {
        let waited = deadline.wait(client, request);
        if waited.is_err() {
            // The request may still use it.
            self.buffer = client.register(self.buffer.len() as u64)?;
        }
        Ok(waited?)
    }

    /// Splits a segment, or continues a split that another client has begun, and records its halves.
    ///
    /// Its slots are frozen one by one: no client changes them any more. The halves are written, and then the segment's
    /// state names them. Every client that meets a frozen slot does all of this by itself; the first one wins.
    pub(super) fn split(
        &mut self,
        client: &mut MemoryClient,
        leaf: Leaf,
        deadline: &Deadline,
    ) -> Result<(), TableError> {
        let (bytes, state) = self.freeze(client, leaf, deadline)?;
        if let SegmentState::Split(halves) = state {
            self.note(leaf, halves);
            return Ok(());
        }
        if leaf.depth + 1 >= DEPTH_MAX {
            return Err(TableError::BucketFull);
        }
        let images = self.halves(client, leaf, &bytes, deadline)?;
        let halves = self.heap.alloc(client, 2 * SEGMENT, deadline.left())?;
        client.write_bytes(halves, &images, deadline.left())?;
        let (old, new) = (SegmentState::Leaf, SegmentState::Split(halves.offset()));
        let at = self.address(leaf.offset);
        let was = deadline.replace(client, at, (old.encode(), new.encode()))?;
        if was == old.encode() {
            self.splits += 1;
            self.note(leaf, halves.offset());
            return Ok(());
        }
        self.heap.free(client, halves, 2 * SEGMENT, deadline.left())?;
        match SegmentState::decode(was) {
            Some(SegmentState::Split(halves)) => self.note(leaf, halves),
            _ => return Err(TableError::Corrupt(leaf.offset)),
        }
        Ok(())
    }

    fn note(&mut self, leaf: Leaf, halves: u64) {
        let first = self.nodes.len();
        self.nodes.extend([0, SEGMENT].map(|half| TrieNode::Leaf(halves + half)));
        self.nodes[leaf.node] = TrieNode::Inner([first, first + 1]);
    }

    /// Freezes all slots of a segment; returns its bytes then, and its state.
    fn freeze(
        &mut self,
        client: &mut MemoryClient,
        leaf: Leaf,
        deadline: &Deadline,
    ) -> Result<(Vec<u8>, SegmentState), TableError> {
        let mut bytes = Vec::new();
        loop {
            self.read(client, (leaf.offset, SEGMENT), &mut bytes, deadline)?;
            let state = u64::from_le_bytes(std::array::from_fn(|at| bytes[at]));
            let state = SegmentState::decode(state).ok_or(TableError::Corrupt(leaf.offset))?;
            let words = bytes.chunks_exact(8).enumerate().skip(BUCKET as usize / 8);
            let open: Vec<(u64, Slot)> = words
                .map(|(at, word)| (8 * at as u64, slots::<1>(word)[0]))
                .filter(|(_, slot)| !slot.is_frozen())
                .collect();
            if open.is_empty() || state != SegmentState::Leaf {
                return Ok((bytes, state));
            }
            for batch in open.chunks(BATCH) {
                let mut requests = Vec::with_capacity(BATCH);
                for (at, slot) in batch {
                    let at = self.address(leaf.offset + at);
                    requests.push(client.compare_swap(at, slot.0, slot.frozen().0)?);
                }
                for request in requests {
                    match deadline.wait(client, request) {
                        // The next look shows what came of it.
                        Err(error) if error.code == ErrorCode::Indeterminate => {}
                        outcome => drop(outcome?),
                    }
                }
            }
        }
    }

    /// Returns the bytes of both halves of a segment that is frozen.
    fn halves(
        &mut self,
        client: &mut MemoryClient,
        leaf: Leaf,
        bytes: &[u8],
        deadline: &Deadline,
    ) -> Result<Vec<u8>, TableError> {
        let mut images = vec![0; 2 * SEGMENT as usize];
        let mut put =
            |at: usize, word: u64| images[at..at + 8].copy_from_slice(&word.to_le_bytes());
        for half in 0..2 {
            put(half * SEGMENT as usize, SegmentState::Leaf.encode());
        }
        let entries: Vec<(u64, Slot)> = (0..BUCKETS)
            .flat_map(|bucket| {
                let at = (BUCKET * (bucket + 1)) as usize;
                let slots = Bucket::decode(&bytes[at..at + BUCKET as usize]).slots;
                slots.into_iter().map(move |slot| (bucket, slot.thawed()))
            })
            .filter(|(_, slot)| !slot.is_empty())
            .collect();
        let mut used = [[0; BUCKETS as usize]; 2];
        for batch in entries.chunks(BATCH) {
            let mut requests = Vec::with_capacity(BATCH);
            for (_, slot) in batch {
                requests.push(client.read_word(self.address(slot.hash_at()))?);
            }
            for ((bucket, slot), request) in batch.iter().zip(requests) {
                let key = KeyHash(deadline.wait(client, request)?);
                let half = key.half(leaf.depth) as usize;
                let place = &mut used[half][*bucket as usize];
                let at = half as u64 * SEGMENT + BUCKET * (bucket + 1) + 8 * *place;
                put(at as usize, slot.0);
                *place += 1;
            }
        }
        Ok(images)
    }
}

/// Returns the slots in bytes.
fn slots<const COUNT: usize>(bytes: &[u8]) -> [Slot; COUNT] {
    std::array::from_fn(|at| {
        let word = bytes[8 * at..8 * at + 8].try_into().unwrap_or_default();
        Slot(u64::from_le_bytes(word))
    })
}
