//! A request in flight: the requester's record, the message, and the responder's record.

use farside_base::Random;
use farside_base::{
    Access, CompletionKind, CompletionStatus, FlushScope, Operation, Receive, RegionId,
    RegionToken, Work, WorkId,
};
use farside_fabric::{Arena, Parts};

/// Size of a line: a piece never splits one.
const LINE_BYTES: u64 = 64;

/// A range of local memory, resolved when the request was posted.
#[derive(Clone, Debug)]
pub(super) struct LocalRange {
    pub(super) region: RegionId,
    pub(super) arena: Arena,
    pub(super) offset: u64,
    pub(super) bytes: usize,
    /// Whether it is at the adapter, not across the bus.
    pub(super) device: bool,
}

/// The bytes of a message: still in the sender's memory, or sampled from it.
#[derive(Clone, Debug)]
pub(super) enum MessagePayload {
    Unsampled(Vec<LocalRange>),
    Sampled(Vec<u8>),
}

impl MessagePayload {
    /// Reads the sender's memory, unless it was read before.
    pub(super) fn sample(&mut self) {
        let Self::Unsampled(places) = self else {
            return;
        };
        let mut bytes = vec![0; places.iter().map(|place| place.bytes).sum()];
        let mut at = 0;
        for place in places {
            let part = &mut bytes[at..at + place.bytes];
            // The bounds were checked at posting and an arena never shrinks.
            let read = place.arena.read(place.offset, part);
            debug_assert!(read.is_ok());
            at += place.bytes;
        }
        *self = Self::Sampled(bytes);
    }

    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Self::Unsampled(_) => &[],
            Self::Sampled(bytes) => bytes,
        }
    }
}

/// The modification of a word by an atomic.
#[derive(Clone, Copy, Debug)]
pub(super) enum Change {
    Add { add: u64, boundaries: u64 },
    Replace { expected: u64, compare_mask: u64, new: u64, swap_mask: u64 },
}

impl Change {
    fn of(operation: &Operation<'_>) -> Option<Self> {
        match *operation {
            Operation::FetchAdd { add, .. } => Some(Self::Add { add, boundaries: 0 }),
            Operation::MaskedFetchAdd { add, boundaries, .. } => {
                Some(Self::Add { add, boundaries })
            }
            Operation::Swap { new, .. } => {
                Some(Self::Replace { expected: 0, compare_mask: 0, new, swap_mask: u64::MAX })
            }
            Operation::CompareSwap { expected, new, .. } => {
                Some(Self::Replace { expected, compare_mask: u64::MAX, new, swap_mask: u64::MAX })
            }
            Operation::MaskedCompareSwap { expected, compare_mask, new, swap_mask, .. } => {
                Some(Self::Replace { expected, compare_mask, new, swap_mask })
            }
            _ => None,
        }
    }

    /// Returns the modified word.
    pub(super) fn apply(self, word: u64) -> u64 {
        match self {
            Self::Add { add, boundaries } => {
                let sum = (word & !boundaries).wrapping_add(add & !boundaries);
                sum ^ ((word ^ add) & boundaries)
            }
            Self::Replace { expected, compare_mask, new, swap_mask } => {
                if (word ^ expected) & compare_mask == 0 {
                    (word & !swap_mask) | (new & swap_mask)
                } else {
                    word
                }
            }
        }
    }
}

/// An address in the memory of the peer, as the requester names it.
pub(super) type RemotePlace = (RegionToken, u64);

/// A message between two adapters.
#[derive(Clone, Debug)]
pub(super) struct AdapterMessage {
    pub(super) number: u64,
    pub(super) kind: CompletionKind,
    pub(super) at: Option<RemotePlace>,
    pub(super) access: Access,
    pub(super) immediate: Option<u32>,
    pub(super) payload: MessagePayload,
    pub(super) change: Option<Change>,
    pub(super) bytes: usize,
    /// Bytes of the target that it names: those of a FLUSH move nothing.
    pub(super) reach: usize,
    /// The scope of a FLUSH.
    pub(super) scope: FlushScope,
    /// Whether a receive of the peer is reserved for it (`BackPressure::AtPost`).
    pub(super) reserved: bool,
}

impl AdapterMessage {
    pub(super) fn new(
        number: u64,
        work: &Work<'_>,
        parts: &Parts<'_>,
        places: &[LocalRange],
        at: Option<RemotePlace>,
    ) -> Self {
        let payload = match (parts.kind, parts.inline) {
            (_, Some(bytes)) => MessagePayload::Sampled(bytes.to_vec()),
            (CompletionKind::AtomicWrite, None) => {
                let value = match work.operation {
                    Operation::AtomicWrite { value, .. } => value,
                    _ => 0,
                };
                MessagePayload::Sampled(value.to_ne_bytes().to_vec())
            }
            (CompletionKind::Write | CompletionKind::Send, None) => {
                MessagePayload::Unsampled(places.to_vec())
            }
            _ => MessagePayload::Sampled(Vec::new()),
        };
        Self {
            number,
            kind: parts.kind,
            at,
            access: parts.access,
            immediate: parts.immediate,
            payload,
            change: Change::of(&work.operation),
            bytes: parts.bytes() as usize,
            reach: parts.reach() as usize,
            scope: parts.flush,
            reserved: false,
        }
    }

    /// Whether it is a READ, an atomic or a FLUSH: later requests may overtake it.
    pub(super) fn fetches(&self) -> bool {
        fetches(self.kind)
    }
}

/// Whether requests of this kind are ordered as READs.
pub(super) fn fetches(kind: CompletionKind) -> bool {
    matches!(kind, CompletionKind::Read | CompletionKind::Atomic | CompletionKind::Flush)
}

/// Progress of a request, as seen by its requester.
#[derive(Debug)]
pub(super) enum Progress {
    /// Waiting in the send queue.
    Queued(AdapterMessage),
    /// In flight, not answered.
    Departed,
    /// The responder has answered; the answer is in flight.
    Answered(Response),
    /// The fetched bytes are being placed in local memory.
    Landing(Vec<u8>, Pieces),
    /// Ended; completes when all earlier requests have.
    Done(CompletionStatus),
}

/// The responder's answer.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: CompletionStatus,
    pub(super) fetched: Vec<u8>,
}

/// The requester's record.
#[derive(Debug)]
pub(super) struct RequestRecord {
    pub(super) number: u64,
    pub(super) id: WorkId,
    pub(super) kind: CompletionKind,
    pub(super) signalled: bool,
    pub(super) fence: bool,
    /// Time at which the adapter has it; used only with a hardware profile.
    pub(super) rung_ns: u64,
    pub(super) bytes: u32,
    pub(super) into: Vec<LocalRange>,
    pub(super) progress: Progress,
}

impl RequestRecord {
    pub(super) fn done(&self) -> Option<CompletionStatus> {
        match self.progress {
            Progress::Done(status) => Some(status),
            _ => None,
        }
    }

    pub(super) fn fetching(&self) -> bool {
        fetches(self.kind) && self.done().is_none()
    }
}

/// Progress of a message, as seen by the responder.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Phase {
    /// Not arrived.
    InFlight,
    /// Arrived, waiting for earlier messages.
    Arrived,
    /// Its pieces are read or written one by one.
    Running,
    /// Needs a receive, and the queue is empty.
    Waiting,
}

/// The responder's record.
#[derive(Debug)]
pub(super) struct Inbound {
    pub(super) message: AdapterMessage,
    pub(super) phase: Phase,
    pub(super) pieces: Pieces,
    /// Bytes that a READ has sampled, or the word that an atomic has loaded.
    pub(super) fetched: Vec<u8>,
    /// The consumed receive, and its memory.
    pub(super) receive: Option<(Receive, Option<LocalRange>)>,
    /// Whether the requester was answered; from then on the message takes effect even if the requester dies.
    pub(super) answered: bool,
    /// Whether the requester died during placement: some pieces are never placed.
    pub(super) torn: bool,
    /// Whether the bytes of a WRITE by READ have been read at the requester.
    pub(super) read_back: bool,
    /// Time of arrival.
    pub(super) arrived_ns: u64,
    /// With a hardware profile: bytes of the packets that have arrived.
    pub(super) arrived_bytes: u64,
    /// With a hardware profile: earliest time at which its bytes are in memory.
    pub(super) landed_ns: u64,
}

impl Inbound {
    pub(super) fn new(message: AdapterMessage) -> Self {
        Self {
            message,
            phase: Phase::InFlight,
            pieces: Pieces::default(),
            fetched: Vec::new(),
            receive: None,
            answered: false,
            torn: false,
            read_back: false,
            arrived_ns: 0,
            arrived_bytes: 0,
            landed_ns: 0,
        }
    }
}

/// One piece of a transfer: its bytes from `start` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct TransferPiece {
    pub(super) start: usize,
    pub(super) bytes: usize,
}

/// The pieces of a transfer and how many remain.
#[derive(Clone, Debug, Default)]
pub(super) struct Pieces {
    pub(super) all: Vec<TransferPiece>,
    pub(super) left: usize,
}

impl Pieces {
    /// Cuts `bytes` bytes at `offset` between 64-byte lines, into at most `pieces_max` pieces.
    pub(super) fn cut(offset: u64, bytes: usize, pieces_max: usize, random: &mut Random) -> Self {
        let mut all = Vec::new();
        if bytes > 0 {
            let first_line = offset / LINE_BYTES;
            let lines = (offset + bytes as u64 - 1) / LINE_BYTES - first_line + 1;
            let mut cuts = boundaries(lines, pieces_max.max(1) as u64, random);
            cuts.push(lines);
            let mut start = 0;
            for cut in cuts {
                let end = ((first_line + cut) * LINE_BYTES - offset).min(bytes as u64) as usize;
                all.push(TransferPiece { start, bytes: end - start });
                start = end;
            }
        }
        Self { left: all.len(), all }
    }
}

/// Draws the lines between which to cut: all if that gives few enough pieces, else random ones.
fn boundaries(lines: u64, pieces_max: u64, random: &mut Random) -> Vec<u64> {
    if lines <= pieces_max {
        return (1..lines).collect();
    }
    let mut cuts: Vec<u64> = (1..pieces_max).map(|_| random.between(1, lines - 1)).collect();
    cuts.sort_unstable();
    cuts.dedup();
    cuts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_everything_once_and_split_no_line() {
        let mut random = Random::new(3);
        for (offset, bytes, pieces_max) in
            [(0, 1, 4), (60, 8, 4), (64, 128, 8), (8, 4096, 5), (63, 1, 1)]
        {
            let pieces = Pieces::cut(offset, bytes, pieces_max, &mut random);
            let mut at = 0;
            for piece in &pieces.all {
                assert_eq!(piece.start, at);
                assert!(piece.bytes > 0);
                assert!(at == 0 || (offset + at as u64).is_multiple_of(64));
                at += piece.bytes;
            }
            assert_eq!(at, bytes);
            assert!(pieces.left == pieces.all.len() && pieces.left <= pieces_max.max(2));
        }
        assert_eq!(Pieces::cut(10, 0, 4, &mut random).left, 0);
    }

    #[test]
    fn masked_atomics_respect_their_fields() {
        let add = Change::Add { add: 1, boundaries: 0x80 };
        assert_eq!(add.apply(0x00ff), 0x0000, "the carry stops at the top bit of the low byte");
        let swap =
            Change::Replace { expected: 0x10, compare_mask: 0xf0, new: 0xab, swap_mask: 0x0f };
        assert_eq!(swap.apply(0x1c), 0x1b);
        assert_eq!(swap.apply(0x2c), 0x2c);
    }
}
