//! The dimensions of a channel, equal at both ends, and the memory that each half needs for them.

use super::kind::{Family, Kind};
use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;
use farside_base::{Access, Capabilities, RegionKind};

/// How a receiver acknowledges processed messages, so that memory can be reused (001 §6).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Acknowledge {
    /// The receiver WRITEs a word at the sender: a write slot with inlined bell, of eight bytes.
    Word = 1,
    /// The receiver SENDs an integer: a bufferless channel back.
    Message = 2,
    /// The sender READs a word at the receiver when it runs out of room: a read slot with inlined
    /// bell, of eight bytes.
    ReadTail = 3,
}

impl Acknowledge {
    /// All variants.
    pub const ALL: [Self; 3] = [Self::Word, Self::Message, Self::ReadTail];
}

/// The second channel of those that have one (001 Table 2, note a): what announces a message.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Signal {
    /// A WRITE of a word: found by polling.
    Word = 1,
    /// An integer as immediate data: the receiver can sleep until it comes.
    Message = 2,
}

impl Signal {
    /// All variants.
    pub const ALL: [Self; 2] = [Self::Word, Self::Message];
}

/// Which words of a channel are in adapter memory (001 §6.3), for `shared-ring-*`, `read-slot-detached` and
/// `read-ring-detached`. The others have none there.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum DeviceWords {
    /// None: all words are in main memory.
    #[default]
    Nothing = 0,
    /// The words that announce messages: the head of a shared ring, the bells that readers READ.
    Head = 1,
    /// The words that acknowledge: the tail of a shared ring, and the answers of its senders.
    Tail = 2,
    /// Both.
    All = 3,
}

impl DeviceWords {
    /// All variants.
    pub const ALL: [Self; 4] = [Self::Nothing, Self::Head, Self::Tail, Self::All];

    /// Whether words that announce messages are in adapter memory.
    pub const fn has_head(self) -> bool {
        matches!(self, Self::Head | Self::All)
    }

    /// Whether words that acknowledge are in adapter memory.
    pub const fn has_tail(self) -> bool {
        matches!(self, Self::Tail | Self::All)
    }

    /// The kind of a region for these words.
    pub(super) const fn kind(at_adapter: bool) -> RegionKind {
        if at_adapter { RegionKind::Device } else { RegionKind::Memory }
    }
}

/// The dimensions of a channel. Both ends must have the same; the listening end reports its own.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Shape {
    /// The maximum size of a message in bytes.
    pub message_bytes_max: u32,
    /// The number of mailboxes, receives, or messages in flight.
    pub slots: u32,
    /// Bytes of a ring: a power of two.
    pub ring_bytes: u64,
    /// The maximum number of senders of a shared receiver, or of receivers of a shared sender.
    pub peers_max: u16,
    /// The ring is mapped twice in a row. Otherwise a guard after it takes the rest of a message that crosses its
    /// end.
    pub mirrored: bool,
    /// Bytes that a reader of a read ring speculatively fetches after a bell; zero for none.
    pub prefetch_bytes: u32,
    /// The kind of acknowledgements.
    pub acknowledge: Acknowledge,
    /// The second channel, if there is one.
    pub signal: Signal,
    /// Which words are in adapter memory.
    pub device: DeviceWords,
    /// The maximum size in bytes of one READ of a reader, or one message.
    pub piece_bytes: u32,
}

/// Why a [`Shape`] is invalid; a sentence with the bound.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadShape(pub &'static str);

impl fmt::Display for BadShape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl core::error::Error for BadShape {}

/// The memory that a half needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryPlan {
    /// Bytes of messages; zero: no such region.
    pub buffer_bytes: u64,
    /// The kind of that region. `Mirrored` regions have `buffer_bytes` in each mapping.
    pub buffer_kind: RegionKind,
    /// What peers may do there.
    pub buffer_access: Access,
    /// Bytes of bells and other words; never zero.
    pub bells_bytes: u64,
    /// What peers may do there.
    pub bells_access: Access,
    /// Bytes of words apart from the bells: those that peers change by atomics, and those in adapter memory; zero: no
    /// such region.
    pub counters_bytes: u64,
    /// The kind of that region.
    pub counters_kind: RegionKind,
    /// What peers may do there.
    pub counters_access: Access,
    /// Receives that the half keeps posted, per peer; for all peers together if the kind shares its receives.
    pub receives: u32,
}

impl MemoryPlan {
    /// A half with `bells_bytes` of words that peers may write, and nothing else.
    pub(super) const fn words(bells_bytes: u64) -> Self {
        Self {
            buffer_bytes: 0,
            buffer_kind: RegionKind::Memory,
            buffer_access: Access::NONE,
            bells_bytes,
            bells_access: Access::WRITE,
            counters_bytes: 0,
            counters_kind: RegionKind::Memory,
            counters_access: Access::NONE,
            receives: 0,
        }
    }

    /// Adds a region of words apart from the bells.
    pub(super) const fn with_counters(self, bytes: u64, kind: RegionKind, access: Access) -> Self {
        Self { counters_bytes: bytes, counters_kind: kind, counters_access: access, ..self }
    }

    /// Sets the size and access of the messages.
    pub(super) const fn with_buffer(self, bytes: u64, access: Access) -> Self {
        Self { buffer_bytes: bytes, buffer_access: access, ..self }
    }

    /// Sets the number of receives.
    pub(super) const fn with_receives(self, receives: u32) -> Self {
        Self { receives, ..self }
    }
}

impl Shape {
    /// The maximum size of a message of any channel: lengths have 24 bits if they share a word.
    pub const MESSAGE_BYTES_MAX: u32 = (1 << 24) - 1;
    /// The maximum number of slots of any channel.
    pub const SLOTS_MAX: u32 = 1 << 12;
    /// The maximum size of a ring: positions in units of eight bytes have 31 bits in immediate data.
    pub const RING_BYTES_MAX: u64 = 1 << 30;
    /// The maximum number of peers of one half.
    pub const PEERS_MAX: u16 = 1 << 10;
    /// Bytes of the encoded form.
    pub const ENCODED: usize = 32;

    /// Returns dimensions for messages of at most `message_bytes_max`, with a window of 64 of them, that suit a
    /// fabric: mirrored rings if it has them, acknowledgements and signals by its capabilities. A missing capability
    /// is reported when the channel is opened.
    pub fn fit(kind: Kind, message_bytes_max: u32, has: &Capabilities) -> Self {
        let slots = 64;
        // A late word may overwrite a newer one, unless order or the completion prevents it.
        let words = has.write
            && has.inline_bytes_max >= 8
            && (has.message_order || has.completion_means_placed);
        let messages = has.send && has.immediate;
        let shared_ring = matches!(kind.family(), Family::SharedRing);
        let prefers_words = matches!(kind, Kind::WriteSlotDetached);
        let record = u64::from(message_bytes_max).next_multiple_of(8) + 16;
        Self {
            message_bytes_max,
            slots,
            ring_bytes: (record * u64::from(slots)).next_power_of_two().max(4096),
            peers_max: 64,
            mirrored: has.mirrored_regions,
            prefetch_bytes: 0,
            acknowledge: match (words, messages) {
                _ if shared_ring => Acknowledge::ReadTail,
                (true, _) => Acknowledge::Word,
                (false, true) => Acknowledge::Message,
                (false, false) => Acknowledge::ReadTail,
            },
            signal: if !messages || (words && prefers_words) {
                Signal::Word
            } else {
                Signal::Message
            },
            device: DeviceWords::Nothing,
            piece_bytes: u32::try_from(has.transfer_bytes_max).unwrap_or(u32::MAX).min(1 << 16),
        }
    }

    /// Checks these dimensions.
    ///
    /// # Errors
    /// The violated bound.
    pub fn check(&self, kind: Kind) -> Result<(), BadShape> {
        let record = u64::from(self.message_bytes_max).next_multiple_of(8) + 16;
        let ring = matches!(kind.family(), Family::Ring | Family::SharedRing | Family::ReadRing);
        let table = [
            (self.message_bytes_max == 0, "a message has at least one byte"),
            (self.message_bytes_max > Self::MESSAGE_BYTES_MAX, "a message has less than 16 MiB"),
            (self.slots == 0 || self.slots > Self::SLOTS_MAX, "slots are 1 to 4096"),
            (!self.ring_bytes.is_power_of_two(), "the bytes of a ring are a power of two"),
            (self.ring_bytes > Self::RING_BYTES_MAX, "a ring has at most 1 GiB"),
            (ring && self.ring_bytes < 2 * (record + 8), "a ring holds at least two messages"),
            (self.mirrored && self.ring_bytes < 4096, "a mirrored ring has at least a page"),
            (self.peers_max == 0 || self.peers_max > Self::PEERS_MAX, "peers are 1 to 1024"),
            (
                kind == Kind::SendShared && self.slots < u32::from(self.peers_max),
                "shared receives are at least as many as the peers that share them",
            ),
            (
                matches!(kind.family(), Family::SharedRing)
                    && self.acknowledge != Acknowledge::ReadTail,
                "senders of a shared ring read its tail",
            ),
            (
                matches!(kind.family(), Family::SendReceive)
                    && self.acknowledge == Acknowledge::ReadTail,
                "receives are acknowledged by a word or a message",
            ),
            (
                kind == Kind::ReadSlotNotify
                    && self.signal == Signal::Message
                    && !self.notice_fits(),
                "slot and length of a notice fit 32 bits",
            ),
        ];
        match table.into_iter().find(|(broken, _)| *broken) {
            Some((_, text)) => Err(BadShape(text)),
            None => Ok(()),
        }
    }

    /// Bytes from a mailbox to the next one, with `words` bytes besides its message: whole cache lines.
    pub(super) const fn mailbox_bytes(&self, words: u64) -> u64 {
        (words + self.message_bytes_max as u64).next_multiple_of(64)
    }

    /// The number of bits of the slot in the immediate data of a notice; the others are the length.
    pub(super) const fn slot_bits(&self) -> u32 {
        u32::BITS - (self.slots - 1).leading_zeros()
    }

    /// Whether slot and length fit in the immediate data of a notice.
    const fn notice_fits(&self) -> bool {
        self.slot_bits() <= self.message_bytes_max.leading_zeros()
    }

    /// Lists the dimensions in which the shape of the other end differs, each with both values:
    /// `slots (64 there, 16 here)`. Empty if there are none.
    pub fn differences(&self, there: &Self) -> String {
        let pair = |name, here: &dyn fmt::Debug, there: &dyn fmt::Debug| {
            let (here, there) = (format!("{here:?}"), format!("{there:?}"));
            (here != there).then(|| format!("{name} ({there} there, {here} here)"))
        };
        let all = [
            pair("message_bytes_max", &self.message_bytes_max, &there.message_bytes_max),
            pair("slots", &self.slots, &there.slots),
            pair("ring_bytes", &self.ring_bytes, &there.ring_bytes),
            pair("peers", &self.peers_max, &there.peers_max),
            pair("mirrored", &self.mirrored, &there.mirrored),
            pair("prefetch_bytes", &self.prefetch_bytes, &there.prefetch_bytes),
            pair("acknowledge", &self.acknowledge, &there.acknowledge),
            pair("signal", &self.signal, &there.signal),
            pair("device", &self.device, &there.device),
            pair("bytes fetched at once", &self.piece_bytes, &there.piece_bytes),
        ];
        all.into_iter().flatten().collect::<Vec<_>>().join(", ")
    }

    /// The wire form, little-endian.
    pub fn encode(&self) -> [u8; Self::ENCODED] {
        let mut out = [0; Self::ENCODED];
        out[..4].copy_from_slice(&self.message_bytes_max.to_le_bytes());
        out[4..8].copy_from_slice(&self.slots.to_le_bytes());
        out[8..16].copy_from_slice(&self.ring_bytes.to_le_bytes());
        out[16..20].copy_from_slice(&self.prefetch_bytes.to_le_bytes());
        out[20..22].copy_from_slice(&self.peers_max.to_le_bytes());
        out[22] = u8::from(self.mirrored);
        out[23] = self.acknowledge as u8;
        out[24] = self.signal as u8;
        out[25] = self.device as u8;
        out[26..30].copy_from_slice(&self.piece_bytes.to_le_bytes());
        out
    }

    /// Decodes the wire form; `None` if it is invalid. The shape may still fail [`Self::check`].
    pub fn decode(bytes: &[u8; Self::ENCODED]) -> Option<Self> {
        let (message_bytes_max, rest) = bytes.split_first_chunk()?;
        let (slots, rest) = rest.split_first_chunk()?;
        let (ring_bytes, rest) = rest.split_first_chunk()?;
        let (prefetch_bytes, rest) = rest.split_first_chunk()?;
        let (peers_max, rest) = rest.split_first_chunk()?;
        let ([mirrored, acknowledge, signal, device], rest) = rest.split_first_chunk()?;
        let (piece_bytes, [0, 0]) = rest.split_first_chunk()? else { return None };
        Some(Self {
            message_bytes_max: u32::from_le_bytes(*message_bytes_max),
            slots: u32::from_le_bytes(*slots),
            ring_bytes: u64::from_le_bytes(*ring_bytes),
            prefetch_bytes: u32::from_le_bytes(*prefetch_bytes),
            peers_max: u16::from_le_bytes(*peers_max),
            mirrored: *[false, true].get(usize::from(*mirrored))?,
            acknowledge: *Acknowledge::ALL.get(usize::from(*acknowledge).checked_sub(1)?)?,
            signal: *Signal::ALL.get(usize::from(*signal).checked_sub(1)?)?,
            device: *DeviceWords::ALL.get(usize::from(*device))?,
            piece_bytes: u32::from_le_bytes(*piece_bytes),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHAPE: Shape = Shape {
        message_bytes_max: 1000,
        slots: 16,
        ring_bytes: 1 << 16,
        peers_max: 8,
        mirrored: true,
        prefetch_bytes: 512,
        acknowledge: Acknowledge::Word,
        signal: Signal::Message,
        device: DeviceWords::All,
        piece_bytes: 1 << 16,
    };

    #[test]
    fn the_wire_form_leads_back_and_junk_does_not() {
        assert_eq!(Shape::decode(&SHAPE.encode()), Some(SHAPE));
        for (at, byte) in [(22, 2), (23, 0), (23, 4), (24, 3), (25, 4), (31, 1)] {
            let mut junk = SHAPE.encode();
            junk[at] = byte;
            assert_eq!(Shape::decode(&junk), None, "byte {at}");
        }
    }

    #[test]
    fn every_measure_that_differs_is_named_with_both_values() {
        assert_eq!(SHAPE.differences(&SHAPE), "");
        let there = Shape { message_bytes_max: 100, signal: Signal::Word, ..SHAPE };
        let text = "message_bytes_max (100 there, 1000 here), signal (Word there, Message here)";
        assert_eq!(SHAPE.differences(&there), text);
        // Everything that the wire form distinguishes.
        for (at, bit) in
            [(0, 1), (4, 1), (8, 1), (16, 1), (20, 1), (22, 1), (24, 3), (25, 1), (26, 1)]
        {
            let mut bytes = SHAPE.encode();
            bytes[at] ^= bit;
            let there = Shape::decode(&bytes).expect("a shape");
            assert_eq!(SHAPE.differences(&there).matches(" there, ").count(), 1, "byte {at}");
        }
    }

    #[test]
    fn bounds_are_named() {
        assert_eq!(SHAPE.check(Kind::RingInlined), Ok(()));
        let small = Shape { ring_bytes: 1024, mirrored: false, ..SHAPE };
        assert!(small.check(Kind::RingInlined).is_err_and(|bad| bad.0.contains("two messages")));
        assert_eq!(small.check(Kind::Send), Ok(()));
        let odd = Shape { ring_bytes: 65_000, ..SHAPE };
        assert!(odd.check(Kind::Send).is_err_and(|bad| bad.0.contains("power of two")));
        let shared = Shape { slots: 4, ..SHAPE };
        assert!(shared.check(Kind::SendShared).is_err());
        assert_eq!(shared.check(Kind::Send), Ok(()));
    }
}
