//! Rings that many senders share (001 §4.4): a sender reserves its place in the ring at the receiver
//! by a FETCH_ADD on the head, and WRITEs its message there.
//!
//! A *position* counts bytes from the beginning of time in units of eight; a record takes the
//! positions from its start to the next one's. Where it lies is the position modulo the ring.
//! Records are never cut: in a mirrored ring the end joins the beginning, otherwise the last record
//! of a turn runs on into a guard behind the ring, as large as the largest record.
//!
//! ```text
//! receiver's words       [ tail | head |   senders READ the tail and FETCH_ADD the head, which the
//!                                          receiver only loads
//!                        [ answer of sender 0 | answer of sender 1 | ...
//!
//! receiver's buffer
//!   shared-ring-inlined-zeroing            the receiver zeroes what it has processed
//!     ... | header | padding, message | 1 | header | padding, message | 1 | 0 ...
//!     header: 32 bits length + 1, 16 bits number of the sender, 16 bits position / 8
//!
//!   shared-ring-immediate                  immediate: position / 8; length and sender: from the
//!     ... | message, padded | message, padded ...                                  completion
//!
//! sender's bells         [ tail as it was READ |
//!                        [ welcome | query |           the receiver WRITEs them
//!                        [ 1 | header and zeroes of each message | position of each message
//! sender's buffer        staging of each message that was given as bytes
//! ```
//!
//! *Reserving.* Each message has its own FETCH_ADD, and many are under way at a time. When one has
//! come back and the record fits between the last tail known and a ring behind it, the record is
//! WRITten; otherwise the sender READs the tail, one READ at a time, until there is room. What is
//! reserved and waits is written in the order of positions.
//!
//! *Order.* The inlined bell is received in the order of positions, the other in that of arrival.
//! Positions are in the order of sending as far as the fabric carries out the atomics of a link in
//! the order of posting, which [`farside_base::Capabilities`] do not promise: messages of one sender
//! that were under way together may overtake each other.
//!
//! *Receives.* `shared-ring-immediate` keeps `slots` receives in one queue for all senders. A record
//! takes at least a `slots`-th of the ring, so that the ring never holds more messages than that.
//!
//! *Where the receiver's words are.* The head is among its counters, which peers change by atomics,
//! the tail and the answers among its bells. `Shape::device` moves either or both to the adapter, into
//! the counters; the head alone is left among the bells then where only the tail moves. At the adapter
//! FETCH_ADDs do not cross the bus (001 §6.3). Where the tail is has no effect on senders (001 figure
//! 8), but the receiver stores it for each released record, and from the processor that memory is on
//! the far side of the bus. The head it loads only when a sender has died. A tail that is READ in
//! halves, the new low one with the old high one, is less than one READ before, and is ignored.
//!
//! *Numbers.* A sender reserves nothing before the receiver has WRITten its number to it, plus one:
//! so whoever has reserved is known to the receiver, and is asked by `repair.rs`.
//!
//! *Trust.* Senders trust each other with progress: whoever reserves and never writes, or writes
//! upon others, stops the ring or spoils messages for all, and whose record junk in the ring is
//! nobody can tell; the sender that a header names is only what its writer claims. None of it leads
//! the receiver out of its memory. A sender that dies stops nothing: `repair.rs`.

mod outgoing;
mod receiver;
mod repair;
mod sender;
#[cfg(test)]
mod tests;

use super::half::PeerRegions;
use super::kind::Kind;
use super::shape::{DeviceWords, Plan, Shape};
use super::window::Window;
use farside_base::{Access, Memory, OutOfBounds, RemoteRegionId};

pub use receiver::Receiver;
pub use sender::Sender;

/// Bytes of a header or bell.
const WORD: u64 = 8;

/// Every position is less: what is not comes from nobody who is correct.
const POSITION_MAX: u64 = 1 << 62;

/// The receiver's words, in whichever region they are. The tail comes first, where
/// [`super::acknowledge`] looks for it.
const TAIL: u64 = 0;
const HEAD: u64 = 8;
const ANSWERS: u64 = 64;

/// The sender's bells.
const PROGRESS: u64 = 0;
const WELCOME: u64 = 64;
const QUERY: u64 = 72;
const ONE: u64 = 128;
const HEADERS: u64 = 192;
/// Apart, so that a header and zeroes behind it are one slice.
const HEADERS_STEP: u64 = 16;
const FETCHED: u64 = HEADERS + HEADERS_STEP * Window::MESSAGES as u64;

/// A query and its answer share their low bits with a number that tells them from the one before:
/// positions leave them free.
const TAG: u64 = WORD - 1;

/// In which region of the receiver's its words are.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Words {
    /// The head is among the counters, not the bells.
    head_apart: bool,
    /// The tail and the answers are.
    tail_apart: bool,
}

impl Words {
    const fn of(shape: &Shape) -> Self {
        // With the tail alone at the adapter the head stays in main memory, among the bells.
        let (head, tail) = (shape.device.has_head(), shape.device.has_tail());
        Self { head_apart: head || !tail, tail_apart: tail }
    }

    const fn head(self, of: &PeerRegions) -> RemoteRegionId {
        if self.head_apart { of.counters } else { of.bells }
    }

    const fn tail(self, of: &PeerRegions) -> RemoteRegionId {
        if self.tail_apart { of.counters } else { of.bells }
    }
}

/// Which of the two it is.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Bell {
    Immediate,
    InlinedZeroing,
}

/// How positions and records lie in the receiver's buffer.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Layout {
    bell: Bell,
    mirrored: bool,
    ring_bytes: u64,
    /// Bytes of the guard; none in a mirrored ring.
    guard: u64,
    /// A record takes at least so much.
    record_min: u64,
}

impl Layout {
    const fn of(kind: Kind, shape: &Shape) -> Self {
        let bell = match kind {
            Kind::SharedRingImmediate => Bell::Immediate,
            _ => Bell::InlinedZeroing,
        };
        let record_min = match bell {
            Bell::Immediate => shape.ring_bytes.div_ceil(shape.slots as u64).next_multiple_of(WORD),
            Bell::InlinedZeroing => 2 * WORD,
        };
        let largest = Self::written(bell, shape.message_bytes_max).next_multiple_of(64);
        Self {
            bell,
            mirrored: shape.mirrored,
            ring_bytes: shape.ring_bytes,
            guard: if shape.mirrored { 0 } else { largest },
            record_min,
        }
    }

    /// What a message of `bytes` fills, to whole words.
    const fn written(bell: Bell, bytes: u32) -> u64 {
        let padded = (bytes as u64).next_multiple_of(WORD);
        match bell {
            Bell::Immediate => padded,
            Bell::InlinedZeroing => padded + 2 * WORD,
        }
    }

    /// What a message of `bytes` takes of the ring.
    #[inline]
    const fn record(&self, bytes: u32) -> u64 {
        let written = Self::written(self.bell, bytes);
        if written < self.record_min { self.record_min } else { written }
    }

    /// The first byte of a record.
    #[inline]
    const fn place(&self, position: u64) -> u64 {
        position & (self.ring_bytes - 1)
    }

    /// Zeroes what records from `start` to `end` may have filled, at most a ring: in a ring that is
    /// not mirrored the guard too, if they pass the end.
    fn clear(&self, start: u64, end: u64, buffer: &impl Memory) -> Result<(), OutOfBounds> {
        let (place, bytes) = (self.place(start), end.saturating_sub(start).min(self.ring_bytes));
        let to_end = self.ring_bytes - place;
        if self.mirrored || bytes <= to_end {
            return buffer.clear(place, bytes);
        }
        buffer.clear(place, to_end + self.guard)?;
        buffer.clear(0, bytes - to_end)
    }
}

/// The header of a message at a position, and what it tells.
const fn header(bytes: u32, number: u16, position: u64) -> u64 {
    (bytes as u64 + 1) | (number as u64) << 32 | (position / WORD) << 48
}

/// Messages that a sender has on their way at most.
const fn places(shape: &Shape) -> u32 {
    if shape.slots < Window::MESSAGES { shape.slots } else { Window::MESSAGES }
}

/// Bytes of staging for one message.
const fn staging(kind: Kind, shape: &Shape) -> u64 {
    let bell = Layout::of(kind, shape).bell;
    Layout::written(bell, shape.message_bytes_max).next_multiple_of(64)
}

/// What a sender needs.
pub const fn plan_sender(kind: Kind, shape: &Shape) -> Plan {
    Plan::words(FETCHED + WORD * Window::MESSAGES as u64)
        .with_buffer(staging(kind, shape) * places(shape) as u64, Access::NONE)
}

/// Bytes of the receiver's words: among its bells, and in the region apart from them.
const fn words_bytes(shape: &Shape) -> [u64; 2] {
    let (head_bytes, tail_bytes) = (HEAD + WORD, ANSWERS + WORD * shape.peers_max as u64);
    match Words::of(shape).tail_apart {
        true => [head_bytes, tail_bytes],
        false => [tail_bytes, head_bytes],
    }
}

/// Bytes of the receiver's words that are at the adapter. Of any shape, also one that is refused.
pub(super) const fn device_bytes(shape: &Shape) -> u64 {
    match shape.device {
        DeviceWords::Nothing => 0,
        DeviceWords::Head | DeviceWords::Tail | DeviceWords::All => words_bytes(shape)[1],
    }
}

/// What the receiver needs.
pub const fn plan_receiver(kind: Kind, shape: &Shape) -> Plan {
    let layout = Layout::of(kind, shape);
    let receives = match layout.bell {
        Bell::Immediate => shape.slots,
        Bell::InlinedZeroing => 0,
    };
    let Words { head_apart, tail_apart } = Words::of(shape);
    let tail_access = Access::READ.with(Access::WRITE);
    let access = match (head_apart, tail_apart) {
        (true, true) => tail_access.with(Access::ATOMIC),
        (true, false) => Access::ATOMIC,
        (false, _) => tail_access,
    };
    let bells_access = match (head_apart, tail_apart) {
        (_, false) => tail_access,
        (true, true) => Access::NONE,
        (false, true) => Access::ATOMIC,
    };
    let [bells_bytes, counters_bytes] = words_bytes(shape);
    let kind = DeviceWords::kind(!matches!(shape.device, DeviceWords::Nothing));
    let words = Plan { bells_access, ..Plan::words(bells_bytes) };
    words
        .with_counters(counters_bytes, kind, access)
        .with_ring(shape, layout.guard, Access::WRITE)
        .with_receives(receives)
}
