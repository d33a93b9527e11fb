//! The memory of an inbox.
//!
//! ```text
//! line 0     magic | slots | batch_bytes | senders | row_bytes (0: variable)      by the receiver, once
//! line 1     tail: slots that were reserved                                       by senders, FETCH_ADD
//! line 2     head: slots that were received                                       by the receiver
//! line 3     a word for each sender: whether it has connected                     by the sender, compare and swap
//! slots      word | rows                                                          by the sender that reserved
//! ```
//! Reservation t is slot t modulo the number of slots, and may be written once head > t - slots. Its word is published
//! after its rows, and names the lap t / slots, so the word of an earlier lap, or none, is never taken for it.

use super::{InboxOptions, RowFormat, ShuffleError};

pub(super) const MAGIC: u64 = 0x6661_7273_6875_0001;
pub(super) const TAIL: u64 = 64;
pub(super) const HEAD: u64 = 128;
const CONNECTED: u64 = 192;
/// Words of the header.
pub(super) const HEADER_WORDS: usize = 5;
/// Bytes of a slot's word.
const WORD: u64 = 8;

/// Where the parts of an inbox are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct InboxLayout {
    pub(super) slots: u64,
    pub(super) batch_bytes: u32,
    pub(super) senders: u16,
    pub(super) rows: RowFormat,
}

impl InboxLayout {
    /// Checks the options.
    pub(super) fn new(options: &InboxOptions) -> Result<Self, ShuffleError> {
        let &InboxOptions { senders, rows, batch_bytes, slots } = options;
        if senders == 0 {
            return Err(ShuffleError::Options("senders: 1 or more"));
        }
        if slots == 0 {
            return Err(ShuffleError::Options("slots: 1 or more"));
        }
        if rows == RowFormat::Fixed(0) {
            return Err(ShuffleError::Options("rows: 1 byte or more"));
        }
        if batch_bytes > SlotWord::BYTES_MAX || batch_bytes < rows.bytes_min() {
            return Err(ShuffleError::Options("batch_bytes: a row or more, less than 2 GiB"));
        }
        Ok(Self { slots: slots.into(), batch_bytes, senders, rows })
    }

    /// Reads the header of an inbox, or says what is wrong with it.
    pub(super) fn decode(words: [u64; HEADER_WORDS]) -> Result<Self, &'static str> {
        let [magic, slots, batch_bytes, senders, row_bytes] = words;
        if magic != MAGIC {
            return Err("it begins with other bytes");
        }
        let wrong = "its header is damaged";
        let small = |value: u64| u32::try_from(value).map_err(|_| wrong);
        let options = InboxOptions {
            senders: u16::try_from(senders).map_err(|_| wrong)?,
            rows: match small(row_bytes)? {
                0 => RowFormat::Variable,
                bytes => RowFormat::Fixed(bytes),
            },
            batch_bytes: small(batch_bytes)?,
            slots: small(slots)?,
        };
        Self::new(&options).map_err(|_| wrong)
    }

    /// Returns the header.
    pub(super) fn encode(&self) -> [u64; HEADER_WORDS] {
        let rows = match self.rows {
            RowFormat::Fixed(bytes) => bytes.into(),
            RowFormat::Variable => 0,
        };
        [MAGIC, self.slots, self.batch_bytes.into(), self.senders.into(), rows]
    }

    /// Returns the offset of the word of a sender.
    pub(super) const fn connected(sender: u16) -> u64 {
        CONNECTED + 8 * sender as u64
    }

    /// Returns the offset of the word of a reservation's slot.
    pub(super) fn word(&self, ticket: u64) -> u64 {
        let slots = (CONNECTED + 8 * u64::from(self.senders)).next_multiple_of(64);
        slots + ticket % self.slots * (WORD + u64::from(self.batch_bytes)).next_multiple_of(64)
    }

    /// Returns the offset of the rows of a reservation's slot.
    pub(super) fn rows(&self, ticket: u64) -> u64 {
        self.word(ticket) + WORD
    }

    /// Returns the bytes of the inbox.
    pub(super) fn bytes(&self) -> u64 {
        self.word(self.slots - 1) + (WORD + u64::from(self.batch_bytes)).next_multiple_of(64)
    }

    /// Returns the lap of a reservation, as its word names it.
    pub(super) const fn lap(&self, ticket: u64) -> u16 {
        (ticket / self.slots + 1) as u16
    }
}

/// The word of a slot: `lap: 16 | sender: 16 | last: 1 | bytes: 31`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct SlotWord {
    pub(super) lap: u16,
    pub(super) sender: u16,
    /// Whether it is the last batch of the sender.
    pub(super) is_last: bool,
    /// Of the rows.
    pub(super) bytes: u32,
}

impl SlotWord {
    const BYTES_MAX: u32 = (1 << 31) - 1;

    pub(super) const fn encode(self) -> u64 {
        let last = (self.is_last as u64) << 31;
        (self.lap as u64) << 48 | (self.sender as u64) << 32 | last | self.bytes as u64
    }

    pub(super) const fn decode(word: u64) -> Self {
        Self {
            lap: (word >> 48) as u16,
            sender: (word >> 32) as u16,
            is_last: word >> 31 & 1 == 1,
            bytes: word as u32 & Self::BYTES_MAX,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_and_headers_are_decoded_as_encoded() {
        for word in [
            SlotWord { lap: u16::MAX, sender: 0, is_last: true, bytes: SlotWord::BYTES_MAX },
            SlotWord { lap: 1, sender: u16::MAX, is_last: false, bytes: 0 },
        ] {
            assert_eq!(SlotWord::decode(word.encode()), word);
        }
        let options = InboxOptions { rows: RowFormat::Variable, ..InboxOptions::default() };
        let layout = InboxLayout::new(&options).unwrap();
        assert_eq!(InboxLayout::decode(layout.encode()), Ok(layout));
        assert!(InboxLayout::decode([0; 5]).is_err());
        assert!(InboxLayout::decode([7; 5]).is_err());
        let mut words = layout.encode();
        words[2] = u64::from(u32::MAX) + 4096;
        assert!(InboxLayout::decode(words).is_err());
    }

    #[test]
    fn slots_are_apart_and_within_the_inbox() {
        let options =
            InboxOptions { senders: 9, batch_bytes: 57, slots: 5, ..InboxOptions::default() };
        let layout = InboxLayout::new(&options).unwrap();
        for ticket in 0..5 {
            assert!(layout.word(ticket) >= InboxLayout::connected(8) + 8);
            assert!(layout.rows(ticket) + 57 <= layout.bytes());
            assert_eq!(layout.word(ticket), layout.word(ticket + 5));
            assert_ne!(layout.lap(ticket), layout.lap(ticket + 5));
        }
        assert!(layout.rows(0) + 57 <= layout.word(1));
    }
}
