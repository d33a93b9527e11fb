//! The message ring of one direction of a link: one producer, one consumer, in two memories.
//!
//! | memory | written by | read by |
//! | --- | --- | --- |
//! | slots, bulk, `BLOCKED` | the producer | the consumer |
//! | `SLOTS_TAKEN`, `BULK_TAKEN` | the consumer | the producer, when it thinks the ring is full |
//!
//! A slot is one cache line: a header word, then 56 bytes. The header carries the lap of the ring, so
//! whether a slot is fresh is seen in the line that brings the message, and a message of up to 56 bytes
//! crosses in that one line. Longer ones are in one piece in the bulk, at a position that both sides
//! compute alike; never in slots, where their bytes could look like a header later.
//!
//! ```text
//! header  63       32 31  30 29       16 15     0
//!        | immediate | kind |   bytes   |  lap   |
//! ```
//! The lap of position `p` is `p / slots + 1`, cut to 16 bits. A slot holds the previous lap until the
//! header of this one is stored, with release order, after the bytes. Everything that the other side
//! wrote is checked before use: a header of another lap, kind or length, or a count that runs backward
//! or ahead, is a [`Violation`], which ends the link and nothing else.

use crate::layout::{LINE, link};
use crate::options::SEND_BYTES_MAX;
use std::sync::atomic::Ordering;

/// Bytes of a message that travel in its slot.
pub(crate) const SLOT_BYTES: u32 = 56;

/// Words that the other side writes.
pub(crate) trait ReadWords {
    /// Loads the word at `offset`.
    fn load(&self, offset: u64, order: Ordering) -> u64;
}

/// Words that this side writes.
pub(crate) trait WriteWords: ReadWords {
    /// Stores the word at `offset`.
    fn store(&self, offset: u64, value: u64, order: Ordering);

    /// Stores the words of `bytes` after the word at `offset`, then that one with release order.
    #[inline(always)]
    fn store_line(&self, offset: u64, first: u64, bytes: &[u8; SLOT_BYTES as usize]) {
        let (words, _) = bytes.as_chunks();
        for (place, word) in (1..).zip(words) {
            self.store(offset + 8 * place, u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        self.store(offset, first, Ordering::Release);
    }

    /// Hints that these bytes will be written here soon.
    fn expect_write(&self, _offset: u64, _bytes: u32) {}

    /// Hints that these bytes, just written, will be read elsewhere soon.
    fn expect_read_elsewhere(&self, _offset: u64, _bytes: u32) {}
}

/// The other side broke the rules of the ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Violation;

/// Why there is no slot for a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum NoPlace {
    /// The consumer has not made room yet.
    Full,
    /// The consumer's counts are impossible.
    Violation,
}

/// The kind of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RingMessageKind {
    /// A SEND.
    Send,
    /// A SEND with immediate.
    SendImmediate,
    /// A WRITE with immediate; its slot has one word, the bytes written.
    WriteImmediate,
}

/// Slots and bulk of a ring; both are powers of two.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Geometry {
    pub(crate) slots: u32,
    pub(crate) bulk: u32,
}

impl Geometry {
    /// Returns the bytes of the memory that holds such a ring.
    pub(crate) fn bytes(self) -> u64 {
        (self.bulk_start() + u64::from(self.bulk)).next_multiple_of(4096)
    }

    fn bulk_start(self) -> u64 {
        link::SLOTS + u64::from(self.slots) * LINE
    }

    /// Returns the end of the slots; there are at most 64 Ki of them, so 32 bits are enough.
    fn slots_end(self) -> u32 {
        self.bulk_start() as u32
    }

    /// Returns where `bytes` of bulk after `position` are: the position they start at, which skips to
    /// the start of the bulk rather than wrap, and the one after them.
    #[inline]
    fn bulk_span(self, position: u64, bytes: u32) -> (u64, u64) {
        let size = u64::from(self.bulk);
        let bytes = u64::from(bytes).next_multiple_of(LINE);
        let left = size - (position & (size - 1));
        let start = if bytes > left { position + left } else { position };
        (start, start + bytes)
    }

    #[inline]
    fn bulk_at(self, position: u64) -> u64 {
        self.bulk_start() + (position & (u64::from(self.bulk) - 1))
    }
}

/// The slot of a position, and its lap.
#[derive(Clone, Copy, Debug)]
struct RingSlot {
    at: u32,
    lap: u16,
}

impl RingSlot {
    const FIRST: Self = Self { at: link::SLOTS as u32, lap: 1 };

    /// Advances to the slot of the next position.
    #[inline(always)]
    fn advance(&mut self, slots_end: u32) {
        self.at += LINE as u32;
        if self.at == slots_end {
            *self = Self { lap: self.lap.wrapping_add(1), ..Self::FIRST };
        }
    }

    #[inline(always)]
    fn header(self) -> u64 {
        u64::from(self.at)
    }

    #[inline(always)]
    fn payload(self) -> u64 {
        u64::from(self.at) + 8
    }

    /// Returns whether the slot holds something else than what the previous lap left there.
    #[inline(always)]
    fn is_fresh(self, header: u64) -> bool {
        header as u16 != self.lap.wrapping_sub(1)
    }
}

#[inline(always)]
fn header(lap: u16, kind: RingMessageKind, bytes: u32, immediate: u32) -> u64 {
    let kind = match kind {
        RingMessageKind::Send => 0,
        RingMessageKind::SendImmediate => 1,
        RingMessageKind::WriteImmediate => 2,
    };
    u64::from(immediate) << 32 | kind << 30 | u64::from(bytes) << 16 | u64::from(lap)
}

const _: () = assert!(SEND_BYTES_MAX < 1 << 14, "the header has 14 bits for the bytes");

/// The sending end.
pub(crate) struct Producer<W, R> {
    own: W,
    other: R,
    geometry: Geometry,
    /// The position of the next message, and its slot.
    tail: u64,
    slot: RingSlot,
    slots_end: u32,
    /// First position known not to be free.
    free_until: u64,
    bulk_tail: u64,
    bulk_free_until: u64,
    /// A message found no slot, and none has found one since.
    blocked: bool,
}

/// The memory of a message to be sent: its bytes are written at `payload` of the own memory.
#[derive(Clone, Copy, Debug)]
pub(crate) struct MessageSpace {
    pub(crate) payload: u64,
    bulk_tail: u64,
}

impl<W: WriteWords, R: ReadWords> Producer<W, R> {
    /// Returns the producer of a ring in zeroed memory.
    pub(crate) fn new(own: W, other: R, geometry: Geometry) -> Self {
        Self {
            own,
            other,
            geometry,
            tail: 0,
            slot: RingSlot::FIRST,
            slots_end: geometry.slots_end(),
            free_until: u64::from(geometry.slots),
            bulk_tail: 0,
            bulk_free_until: u64::from(geometry.bulk),
            blocked: false,
        }
    }

    /// Returns the memory to write a message's bytes to.
    #[inline(always)]
    pub(crate) fn own(&self) -> &W {
        &self.own
    }

    /// Reserves a slot for `bytes`. Without [`publish`](Self::publish) nothing has happened.
    #[inline(always)]
    pub(crate) fn reserve(&mut self, bytes: u32) -> Result<MessageSpace, NoPlace> {
        let place = self.place(bytes);
        if self.fits(&place) {
            return Ok(place);
        }
        self.reserve_slowly(bytes)
    }

    #[inline(always)]
    fn place(&self, bytes: u32) -> MessageSpace {
        if bytes <= SLOT_BYTES {
            return MessageSpace { payload: self.slot.payload(), bulk_tail: self.bulk_tail };
        }
        let (start, end) = self.geometry.bulk_span(self.bulk_tail, bytes);
        MessageSpace { payload: self.geometry.bulk_at(start), bulk_tail: end }
    }

    #[inline(always)]
    fn fits(&self, place: &MessageSpace) -> bool {
        self.tail < self.free_until && place.bulk_tail <= self.bulk_free_until
    }

    #[cold]
    fn reserve_slowly(&mut self, bytes: u32) -> Result<MessageSpace, NoPlace> {
        self.refresh()?;
        let place = self.place(bytes);
        if self.fits(&place) {
            self.unblock();
            return Ok(place);
        }
        // Requests that the consumer return freed slots, however few, when it can take no more. It
        // checks the word at its polls, so a retry finds room although it may not have seen the word
        // yet now.
        if !self.blocked {
            self.blocked = true;
            self.own.store(link::BLOCKED, 1, Ordering::Relaxed);
        }
        Err(NoPlace::Full)
    }

    fn unblock(&mut self) {
        if self.blocked {
            self.blocked = false;
            self.own.store(link::BLOCKED, 0, Ordering::Relaxed);
        }
    }

    /// Loads the consumer's counts. They must be between its previous counts and what was sent.
    fn refresh(&mut self) -> Result<(), NoPlace> {
        let slots = u64::from(self.geometry.slots);
        let bulk = u64::from(self.geometry.bulk);
        let taken = self.other.load(link::SLOTS_TAKEN, Ordering::Acquire);
        let bulk_taken = self.other.load(link::BULK_TAKEN, Ordering::Acquire);
        let plausible = (self.free_until - slots..=self.tail).contains(&taken)
            && (self.bulk_free_until - bulk..=self.bulk_tail).contains(&bulk_taken);
        if !plausible {
            return Err(NoPlace::Violation);
        }
        self.free_until = taken + slots;
        self.bulk_free_until = bulk_taken + bulk;
        Ok(())
    }

    /// Publishes the message whose bytes have been written to `place`.
    #[inline(always)]
    pub(crate) fn publish(
        &mut self,
        place: &MessageSpace,
        kind: RingMessageKind,
        bytes: u32,
        immediate: u32,
    ) {
        let header = header(self.slot.lap, kind, bytes, immediate);
        self.own.store(self.slot.header(), header, Ordering::Release);
        self.tail += 1;
        self.slot.advance(self.slots_end);
        self.bulk_tail = place.bulk_tail;
    }

    /// Publishes a SEND that fills its slot, if there is room for it. Returns whether there was. As
    /// [`reserve`](Self::reserve), writing and [`publish`](Self::publish), at half their cost.
    #[inline(always)]
    pub(crate) fn send_line(&mut self, bytes: &[u8; SLOT_BYTES as usize]) -> bool {
        if self.tail >= self.free_until && self.reserve_slowly(SLOT_BYTES).is_err() {
            return false;
        }
        let header = header(self.slot.lap, RingMessageKind::Send, SLOT_BYTES, 0);
        self.own.store_line(self.slot.header(), header, bytes);
        self.tail += 1;
        self.slot.advance(self.slots_end);
        true
    }

    /// Hints that the next slot will be written. Call it when a message is likely to be sent soon.
    #[inline(always)]
    pub(crate) fn expect_one(&self) {
        self.own.expect_write(self.slot.header(), SLOT_BYTES);
    }

    /// Hints about the lines of a published message: that the other side reads those of the message (if
    /// it is known to wait for it), and that another one of this length may follow. Otherwise the lines
    /// would be transferred on demand of the reader and then again on that of the next writer; with
    /// hints a message of 1 KiB took 0.44 us instead of 0.65 us. In a stream the former hint is left
    /// out: there it cost the sender more than it gained.
    #[inline(always)]
    pub(crate) fn expect_more(&self, place: &MessageSpace, bytes: u32, awaited: bool) {
        if bytes > SLOT_BYTES {
            self.expect_more_bulk(place, bytes, awaited);
        }
    }

    #[inline(never)]
    fn expect_more_bulk(&self, place: &MessageSpace, bytes: u32, awaited: bool) {
        if awaited {
            self.own.expect_read_elsewhere(place.payload, bytes);
        }
        let next = self.place(bytes);
        if self.fits(&next) {
            self.own.expect_write(next.payload, bytes);
        }
    }

    /// Returns whether a message found no slot and there is room now. Returns true once.
    pub(crate) fn has_room_again(&mut self) -> bool {
        if !self.blocked {
            return false;
        }
        let before = (self.free_until, self.bulk_free_until);
        let changed = self.refresh().is_err() || (self.free_until, self.bulk_free_until) != before;
        if changed {
            self.unblock();
        }
        changed
    }
}

/// The receiving end.
pub(crate) struct Consumer<W, R> {
    own: W,
    other: R,
    geometry: Geometry,
    /// The position of the next message, and its slot.
    head: u64,
    slot: RingSlot,
    slots_end: u32,
    bulk_head: u64,
    /// The counts that the producer was last notified of.
    told: u64,
    /// The position at which the producer is notified at once: a quarter of the ring after `told`.
    due: u64,
    bulk_due: u64,
}

/// A consumer's position, to check without the consumer that nothing has changed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seen {
    slot: RingSlot,
    /// The producer was not notified of all freed slots.
    owes: bool,
}

impl Seen {
    /// Returns whether there is no message in `memory`, the producer's, and it does not wait to be
    /// notified.
    #[inline(always)]
    pub(crate) fn is_idle(&self, memory: &impl ReadWords) -> bool {
        !self.slot.is_fresh(memory.load(self.slot.header(), Ordering::Acquire))
            && (!self.owes || memory.load(link::BLOCKED, Ordering::Relaxed) == 0)
    }
}

/// A message in the ring, not yet taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct RingMessage {
    pub(crate) kind: RingMessageKind,
    pub(crate) bytes: u32,
    pub(crate) immediate: u32,
    /// The offset of its bytes in the producer's memory.
    pub(crate) payload: u64,
    bulk_head: u64,
}

impl<W: WriteWords, R: ReadWords> Consumer<W, R> {
    /// Returns the consumer of a ring in zeroed memory; `geometry` is the producer's.
    pub(crate) fn new(own: W, other: R, geometry: Geometry) -> Self {
        Self {
            own,
            other,
            geometry,
            head: 0,
            slot: RingSlot::FIRST,
            slots_end: geometry.slots_end(),
            bulk_head: 0,
            told: 0,
            due: u64::from(geometry.slots.div_ceil(4)),
            bulk_due: u64::from(geometry.bulk / 4),
        }
    }

    /// Returns the memory to read a message's bytes from.
    #[inline(always)]
    pub(crate) fn other(&self) -> &R {
        &self.other
    }

    /// Returns whether a message, or a violation, is there.
    #[inline(always)]
    pub(crate) fn is_ready(&self) -> bool {
        self.fresh().is_some()
    }

    /// Returns the header of the next message, or of a violation, if one is there.
    #[inline(always)]
    pub(crate) fn fresh(&self) -> Option<u64> {
        let header = self.other.load(self.slot.header(), Ordering::Acquire);
        self.slot.is_fresh(header).then_some(header)
    }

    /// Returns the consumer's position.
    #[inline(always)]
    pub(crate) fn seen(&self) -> Seen {
        Seen { slot: self.slot, owes: self.head != self.told }
    }

    /// Returns the next message, which stays in place until [`take`](Self::take).
    #[cfg(test)]
    pub(crate) fn peek(&self) -> Result<Option<RingMessage>, Violation> {
        let Some(header) = self.fresh() else { return Ok(None) };
        let message = self.parse(header);
        if let Some(bytes) = self.parse_short(header) {
            let (payload, bulk_head) = (self.slot(), self.bulk_head);
            let short = RingMessage {
                kind: RingMessageKind::Send,
                bytes,
                immediate: 0,
                payload,
                bulk_head,
            };
            let immediate = (header >> 32) as u32;
            assert_eq!(message, Ok(RingMessage { immediate, ..short }), "both ways say the same");
        }
        message.map(Some)
    }

    /// Returns the bytes of a message that is a SEND in its [`slot`](Self::slot), as most are; `None`
    /// for any other header, valid or not. Kind and length share 16 bits, in which that kind is zero,
    /// so one comparison is enough for both.
    #[inline(always)]
    pub(crate) fn parse_short(&self, header: u64) -> Option<u32> {
        let bytes = u32::from((header >> 16) as u16);
        (header as u16 == self.slot.lap && bytes <= SLOT_BYTES).then_some(bytes)
    }

    /// Returns the offset of the bytes of such a message.
    #[inline(always)]
    pub(crate) fn slot(&self) -> u64 {
        self.slot.payload()
    }

    /// Takes such a message, as [`take`](Self::take) does.
    #[inline(always)]
    pub(crate) fn take_short(&mut self) {
        self.head += 1;
        self.slot.advance(self.slots_end);
    }

    /// Decodes the header of the next message.
    #[inline]
    pub(crate) fn parse(&self, header: u64) -> Result<RingMessage, Violation> {
        let kind = match (header >> 30) & 3 {
            0 => RingMessageKind::Send,
            1 => RingMessageKind::SendImmediate,
            2 => RingMessageKind::WriteImmediate,
            _ => return Err(Violation),
        };
        let bytes = (header >> 16) as u32 & 0x3fff;
        let right = header as u16 == self.slot.lap
            && bytes <= SEND_BYTES_MAX
            && (kind != RingMessageKind::WriteImmediate || bytes == 8);
        if !right {
            return Err(Violation);
        }
        let (payload, bulk_head) = if bytes <= SLOT_BYTES {
            (self.slot.payload(), self.bulk_head)
        } else {
            let (start, end) = self.geometry.bulk_span(self.bulk_head, bytes);
            (self.geometry.bulk_at(start), end)
        };
        Ok(RingMessage { kind, bytes, immediate: (header >> 32) as u32, payload, bulk_head })
    }

    /// Ends the use of the message's bytes and continues with the next.
    #[inline(always)]
    pub(crate) fn take(&mut self, message: &RingMessage) {
        self.take_short();
        self.bulk_head = message.bulk_head;
    }

    /// Notifies the producer of freed slots if a quarter of the ring is free, or if the producer waits
    /// for room and there is nothing more to take now. Returns whether it did. While there is more,
    /// even a waiting producer is notified of a quarter at a time: notified of each slot, it would fill
    /// that and wait again, and every message would cost the transfer of three lines.
    #[inline(always)]
    pub(crate) fn settle(&mut self, more: bool) -> bool {
        let due = self.head >= self.due
            || self.bulk_head >= self.bulk_due
            || (!more && self.other.load(link::BLOCKED, Ordering::Relaxed) != 0);
        due && self.tell()
    }

    /// Notifies the producer of all freed slots. Returns whether there were any.
    #[inline(never)]
    pub(crate) fn tell(&mut self) -> bool {
        if self.head == self.told {
            return false;
        }
        self.own.store(link::SLOTS_TAKEN, self.head, Ordering::Release);
        self.own.store(link::BULK_TAKEN, self.bulk_head, Ordering::Release);
        self.told = self.head;
        self.due = self.head + u64::from(self.geometry.slots.div_ceil(4));
        self.bulk_due = self.bulk_head + u64::from(self.geometry.bulk / 4);
        true
    }
}
