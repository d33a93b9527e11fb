//! The transcript: one line per event, and a fingerprint of all events.

use std::collections::VecDeque;
use std::fmt;

/// One event of a simulated network.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TranscriptLine {
    /// Virtual time.
    pub at_ns: u64,
    /// Name of the event.
    pub event: &'static str,
    /// Number of the node where it happened, in the order of creation.
    pub node: u32,
    /// The port at which it happened, in the order of creation.
    pub port: u32,
    /// The link of that port.
    pub link: u32,
    /// The request within the link, or a count specific to the event.
    pub request: u64,
    /// Bytes, a status or another number specific to the event.
    pub detail: u64,
}

impl TranscriptLine {
    /// Header line with the names of the columns.
    pub const HEADER: &'static str =
        "        at_ns event          node  port  link    request     detail";
}

impl fmt::Display for TranscriptLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:>13} {:<14} {:>4} {:>5} {:>5} {:>10} {:>10}",
            self.at_ns, self.event, self.node, self.port, self.link, self.request, self.detail
        )
    }
}

/// The last lines, and a hash of all lines and all transferred bytes.
#[derive(Debug)]
pub(super) struct Transcript {
    lines: VecDeque<TranscriptLine>,
    lines_max: usize,
    written: u64,
    fingerprint: u64,
}

impl Transcript {
    pub(super) fn new(lines_max: usize) -> Self {
        Self { lines: VecDeque::new(), lines_max, written: 0, fingerprint: 0xcbf2_9ce4_8422_2325 }
    }

    pub(super) fn write(&mut self, line: TranscriptLine) {
        self.written += 1;
        self.mix(line.at_ns);
        self.bytes(line.event.as_bytes());
        self.mix(u64::from(line.node) << 32 | u64::from(line.port));
        self.mix(u64::from(line.link));
        self.mix(line.request);
        self.mix(line.detail);
        if self.lines_max == 0 {
            return;
        }
        if self.lines.len() == self.lines_max {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// Includes transferred bytes in the fingerprint.
    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.mix(u64::from_le_bytes(word));
        }
    }

    fn mix(&mut self, word: u64) {
        let mixed = (self.fingerprint ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.fingerprint = mixed ^ (mixed >> 29);
    }

    pub(super) fn fingerprint(&self) -> u64 {
        self.fingerprint ^ self.written
    }

    pub(super) fn lines(&self) -> impl Iterator<Item = &TranscriptLine> {
        self.lines.iter()
    }
}
