//! Self-identifying messages, and the check that each arrives once, whole and in order.

use crate::random::Random;
use std::collections::BTreeSet;

/// The messages of a round: their lengths and bytes are a function of its seed, the sender and the number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Contents {
    pub(super) seed: u64,
    pub(super) bytes_max: usize,
    /// Whether every message begins with its number, since it may be overtaken.
    pub(super) numbered: bool,
    /// Whether a message is an integer, its number.
    pub(super) integer: bool,
}

impl Contents {
    fn random(&self, origin: usize, number: u64) -> Random {
        let mut mixed = Random::new(self.seed ^ ((origin as u64) << 56) ^ number);
        mixed.fork()
    }

    /// Draws the length of a message: sometimes minimum or maximum, else any, often short.
    fn length(&self, random: &mut Random) -> usize {
        if self.integer {
            return 4;
        }
        let low = if self.numbered { 8 } else { 0 };
        match random.below(8) {
            0 => low,
            1 => self.bytes_max,
            2..=4 => random.between(low as u64, self.bytes_max.min(low + 32) as u64) as usize,
            _ => random.between(low as u64, self.bytes_max as u64) as usize,
        }
    }

    /// Writes the message into `out`, replacing its content.
    pub(super) fn write(&self, origin: usize, number: u64, out: &mut Vec<u8>) {
        let mut random = self.random(origin, number);
        let length = self.length(&mut random);
        out.clear();
        if self.integer {
            out.extend((number as u32).to_le_bytes());
            return;
        }
        if length >= 8 {
            out.extend(number.to_le_bytes());
        }
        while out.len() < length {
            let word = random.word().to_le_bytes();
            out.extend(&word[..(length - out.len()).min(8)]);
        }
    }

    /// Returns the number in a message, if it contains one.
    fn claimed(&self, message: &[u8]) -> Option<u64> {
        if self.integer {
            return Some(u64::from(u32::from_le_bytes(message.try_into().ok()?)));
        }
        Some(u64::from_le_bytes(*message.first_chunk()?))
    }
}

/// Messages received from one sender.
#[derive(Clone, Debug)]
pub(super) struct Tracker {
    contents: Contents,
    origin: usize,
    /// Number of the first message not received.
    next: u64,
    /// Later messages received, if messages may overtake each other.
    ahead: BTreeSet<u64>,
    count: u64,
    expected: Vec<u8>,
}

impl Tracker {
    pub(super) fn new(contents: Contents, origin: usize, count: u64) -> Self {
        Self { contents, origin, next: 0, ahead: BTreeSet::new(), count, expected: Vec::new() }
    }

    /// Records a message. Returns its number.
    pub(super) fn take(&mut self, message: &[u8]) -> Result<u64, String> {
        let number = if self.contents.numbered {
            self.contents.claimed(message).ok_or_else(|| self.error(message, "has no number"))?
        } else {
            self.next
        };
        if number >= self.count {
            return Err(self.error(message, "was never sent"));
        }
        if number < self.next || self.ahead.contains(&number) {
            return Err(self.error(message, &format!("is number {number}, a repeat")));
        }
        self.check(number, message)?;
        if number > self.next {
            self.ahead.insert(number);
            return Ok(number);
        }
        self.next += 1;
        while self.ahead.remove(&self.next) {
            self.next += 1;
        }
        Ok(number)
    }

    /// Checks that a message equals the one sent with that number.
    pub(super) fn check(&mut self, number: u64, message: &[u8]) -> Result<(), String> {
        self.contents.write(self.origin, number, &mut self.expected);
        if self.expected == message {
            return Ok(());
        }
        let place = self.expected.iter().zip(message).position(|(one, other)| one != other);
        let what = format!(
            "is not number {number}, which has {} bytes and differs from byte {}",
            self.expected.len(),
            place.unwrap_or(self.expected.len().min(message.len())),
        );
        Err(self.error(message, &what))
    }

    fn error(&self, message: &[u8], what: &str) -> String {
        let head: String =
            message.iter().take(16).map(|byte| format!("{byte:02x}")).collect::<Vec<_>>().join(" ");
        format!(
            "a message of sender {} {what}: {} bytes ({head}), after {} whole",
            self.origin,
            message.len(),
            self.next
        )
    }

    pub(super) fn is_complete(&self) -> bool {
        self.next == self.count
    }

    /// Returns the number of messages received.
    pub(super) fn received(&self) -> u64 {
        self.next + self.ahead.len() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents(numbered: bool) -> Contents {
        Contents { seed: 3, bytes_max: 40, numbered, integer: false }
    }

    fn message(contents: Contents, number: u64) -> Vec<u8> {
        let mut out = Vec::new();
        contents.write(1, number, &mut out);
        out
    }

    #[test]
    fn lengths_reach_both_bounds() {
        let lengths: BTreeSet<usize> =
            (0..500).map(|number| message(contents(false), number).len()).collect();
        assert!(lengths.contains(&0) && lengths.contains(&40) && lengths.len() > 30);
    }

    #[test]
    fn lost_repeated_reordered_and_damaged_messages_are_reported() {
        for numbered in [false, true] {
            let contents = contents(numbered);
            let long = |from: u64| {
                (from..).find(|number| message(contents, *number).len() > 16).unwrap_or(0)
            };
            let mut tracker = Tracker::new(contents, 1, 1000);
            let first = message(contents, 0);
            assert_eq!(tracker.take(&first), Ok(0));
            if numbered {
                assert!(tracker.take(&first).is_err(), "repeated");
                assert_eq!(tracker.take(&message(contents, 2)), Ok(2), "it may overtake");
                assert_eq!(tracker.received(), 2);
            } else {
                let next = long(2);
                assert!(tracker.take(&message(contents, next)).is_err(), "reordered");
            }
            let number = long(1);
            let mut damaged = message(contents, number);
            damaged[10] ^= 1;
            assert!(tracker.check(number, &damaged).is_err());
        }
    }
}
