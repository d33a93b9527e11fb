//! Where a log begins, and how far each lane is part of it there.

use super::error::LogError;
use super::layout::Layout;
use farside::onesided::{Buffer, Deadline, MemoryClient, Publication};

const EPOCH_SHIFT: u32 = 44;

/// A position of a lane: the number of its writer, and granules.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct LanePosition(pub(super) u64);

impl LanePosition {
    /// `None` if the numbers are used up.
    pub(super) const fn new(epoch: u64, bytes: u64) -> Option<Self> {
        let granules = bytes / super::layout::GRANULE;
        if epoch >> (64 - EPOCH_SHIFT) != 0 || granules >> EPOCH_SHIFT != 0 {
            return None;
        }
        Some(Self(epoch << EPOCH_SHIFT | granules))
    }

    pub(super) const fn epoch(self) -> u64 {
        self.0 >> EPOCH_SHIFT
    }

    pub(super) const fn bytes(self) -> u64 {
        (self.0 & ((1 << EPOCH_SHIFT) - 1)) * super::layout::GRANULE
    }
}

/// Where a writer of a lane began, and where its records end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct LaneCut {
    pub(super) start: LanePosition,
    pub(super) tail: LanePosition,
}

/// Encodes cuts, two words each.
pub(super) fn encode_cuts(cuts: &[LaneCut], out: &mut Vec<u8>) {
    for LaneCut { start, tail } in cuts {
        out.extend(start.0.to_le_bytes());
        out.extend(tail.0.to_le_bytes());
    }
}

/// Decodes cuts of words.
pub(super) fn decode_cuts(bytes: &[u8]) -> impl Iterator<Item = LaneCut> + '_ {
    let word = |bytes: &[u8]| LanePosition(u64::from_le_bytes(std::array::from_fn(|at| bytes[at])));
    bytes.chunks_exact(16).map(move |pair| LaneCut { start: word(pair), tail: word(&pair[8..]) })
}

/// The checkpoint of a log, as a program has seen it last.
pub(super) struct Checkpoint {
    publication: Publication,
    buffer: Buffer,
    /// Position of the first record.
    pub(super) position: u64,
    /// How far each lane is part of the log before that.
    pub(super) lanes: Vec<LaneCut>,
}

impl Checkpoint {
    /// Reads the checkpoint.
    pub(super) fn new(
        client: &mut MemoryClient,
        layout: &Layout,
        deadline: &Deadline,
    ) -> Result<Self, LogError> {
        let bytes = layout.options.checkpoint_bytes();
        let mut checkpoint = Self {
            publication: Publication::new(layout.checkpoint(), bytes)?,
            buffer: client.register(bytes)?,
            position: 0,
            lanes: vec![LaneCut::default(); layout.options.lanes as usize],
        };
        checkpoint.refresh(client, deadline)?;
        Ok(checkpoint)
    }

    /// Reads it again. *Cost*: two round trips, four if it has changed.
    pub(super) fn refresh(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let read = self.publication.snapshot(client, &self.buffer, 0, deadline.left());
        if read.is_err() {
            // A request that did not end may still write to the buffer.
            self.buffer = client.register(self.buffer.len() as u64)?;
        }
        if read?.is_none() {
            return Ok(()); // nothing was trimmed yet
        }
        let mut bytes = vec![0; self.buffer.len()];
        self.buffer.read(0, &mut bytes)?;
        let (position, lanes) = bytes.split_at(8);
        self.position = u64::from_le_bytes(std::array::from_fn(|at| position[at]));
        self.lanes.iter_mut().zip(decode_cuts(lanes)).for_each(|(lane, read)| *lane = read);
        Ok(())
    }

    /// Publishes another one.
    pub(super) fn publish(
        &mut self,
        client: &mut MemoryClient,
        position: u64,
        lanes: &[LaneCut],
        deadline: &Deadline,
    ) -> Result<(), LogError> {
        let mut bytes = position.to_le_bytes().to_vec();
        encode_cuts(lanes, &mut bytes);
        self.buffer.write(0, &bytes)?;
        self.publication.publish(client, &self.buffer, 0, deadline.left())?;
        self.position = position;
        self.lanes.copy_from_slice(lanes);
        Ok(())
    }
}
