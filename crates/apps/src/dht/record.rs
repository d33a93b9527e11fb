//! The bytes of a record: header, key and value over one or more lines, each line with the record's
//! generation.

use super::layout::{LINE_HEADER, RECORD_HEADER};
use super::pool::BlockClass;
use farside::LineSize;
use std::ops::Range;

const FROZEN: u32 = 1 << 31;

/// The shape of a record: its line size and number of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordShape {
    pub(super) line: LineSize,
    pub(super) lines: u32,
}

impl RecordShape {
    /// The shape for `payload` bytes of key and value: the smallest single line up to `largest`, otherwise
    /// as many lines of `largest` as needed.
    pub(super) fn fitting(payload: usize, largest: LineSize) -> Self {
        let single = LineSize::all()
            .take_while(|line| *line <= largest)
            .find(|line| RECORD_HEADER + payload <= line.bytes());
        match single {
            Some(line) => Self { line, lines: 1 },
            None => Self { line: largest, lines: lines_for(largest.bytes(), payload) },
        }
    }

    /// Its class of blocks.
    pub(super) fn class(self) -> BlockClass {
        BlockClass::fitting(self.line, self.lines)
    }
}

/// Lines of `line` bytes that hold `payload` bytes of key and value.
pub(super) fn lines_for(line: usize, payload: usize) -> u32 {
    let first = line - RECORD_HEADER;
    1 + payload.saturating_sub(first).div_ceil(line - LINE_HEADER) as u32
}

/// The byte ranges of payload bytes: one for each line that they touch.
fn parts(line: usize, payload: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let mut at = payload.start;
    let first = line - RECORD_HEADER;
    let other = line - LINE_HEADER;
    std::iter::from_fn(move || {
        if at >= payload.end {
            return None;
        }
        let (start, room) = if at < first {
            (RECORD_HEADER + at, first - at)
        } else {
            let (number, within) = ((at - first) / other, (at - first) % other);
            (line * (1 + number) + LINE_HEADER + within, other - within)
        };
        let bytes = room.min(payload.end - at);
        at += bytes;
        Some(start..start + bytes)
    })
}

/// The end of the payload's first `payload` bytes.
pub(super) fn end_of(line: usize, payload: usize) -> usize {
    parts(line, payload.saturating_sub(1)..payload).last().map_or(RECORD_HEADER, |part| part.end)
}

/// The first bytes of a record.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RecordHeader {
    pub(super) generation: u32,
    pub(super) key_bytes: usize,
    pub(super) value_bytes: usize,
    /// The record is not changed in place any more; a new value needs a new record.
    pub(super) frozen: bool,
    pub(super) tag: u32,
}

impl RecordHeader {
    /// The header at the front of a record's bytes.
    #[inline]
    pub(super) fn decode(bytes: &[u8]) -> Self {
        let word =
            |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
        Self {
            generation: word(0),
            key_bytes: (word(4) & !FROZEN) as usize,
            value_bytes: word(8) as usize,
            frozen: word(4) & FROZEN != 0,
            tag: word(12),
        }
    }

    /// Writes the header to the front of a record's bytes.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        let key = self.key_bytes as u32 | if self.frozen { FROZEN } else { 0 };
        for (at, word) in
            [self.generation, key, self.value_bytes as u32, self.tag].iter().enumerate()
        {
            bytes[4 * at..4 * at + 4].copy_from_slice(&word.to_le_bytes());
        }
    }
}

/// The bytes of a record, or of its first lines, to be read from or written to global memory.
#[derive(Debug, Default)]
pub(super) struct RecordImage {
    bytes: Vec<u8>,
    line: usize,
    used: usize,
}

impl RecordImage {
    /// A buffer for the first `bytes` of a record in lines of `line`, to be read into.
    #[inline]
    pub(super) fn room(&mut self, line: usize, bytes: usize) -> &mut [u8] {
        if self.bytes.len() < bytes {
            self.bytes.resize(bytes, 0);
        }
        self.line = line;
        self.used = bytes;
        &mut self.bytes[..bytes]
    }

    /// Whether every line that was read has this generation.
    #[inline]
    pub(super) fn is_of(&self, generation: u32) -> bool {
        let generation = generation.to_le_bytes();
        self.bytes[..self.used].chunks(self.line).all(|line| line.starts_with(&generation))
    }

    /// The header.
    #[inline]
    pub(super) fn header(&self) -> RecordHeader {
        RecordHeader::decode(&self.bytes)
    }

    /// Whether the record's key is `key`, which must have been read whole.
    #[inline]
    pub(super) fn key_is(&self, key: &[u8]) -> bool {
        if RECORD_HEADER + key.len() <= self.line {
            return self.bytes[RECORD_HEADER..RECORD_HEADER + key.len()] == *key;
        }
        let mut rest = key;
        parts(self.line, 0..key.len()).all(|part| {
            let (here, further) = rest.split_at(part.len());
            rest = further;
            self.bytes[part] == *here
        })
    }

    /// Copies the record's key into `out`.
    pub(super) fn key_into(&self, out: &mut Vec<u8>) {
        self.copy(0..self.header().key_bytes, out);
    }

    /// Copies the record's value into `out`.
    #[inline]
    pub(super) fn value_into(&self, out: &mut Vec<u8>) {
        let header = self.header();
        self.copy(header.key_bytes..header.key_bytes + header.value_bytes, out);
    }

    #[inline]
    fn copy(&self, payload: Range<usize>, out: &mut Vec<u8>) {
        out.clear();
        for part in parts(self.line, payload) {
            out.extend_from_slice(&self.bytes[part]);
        }
    }

    /// Builds the bytes of a record, to be written.
    pub(super) fn build(
        &mut self,
        line: usize,
        generation: u32,
        tag: u32,
        key: &[u8],
        value: &[u8],
    ) -> &[u8] {
        let header = RecordHeader {
            generation,
            key_bytes: key.len(),
            value_bytes: value.len(),
            frozen: false,
            tag,
        };
        self.line = line;
        self.bytes.clear();
        self.bytes.resize(RECORD_HEADER, 0);
        header.encode(&mut self.bytes);
        for mut rest in [key, value] {
            while !rest.is_empty() {
                let within = self.bytes.len() % line;
                if within == 0 {
                    self.bytes.extend_from_slice(&generation.to_le_bytes());
                    continue;
                }
                let (here, further) = rest.split_at(rest.len().min(line - within));
                self.bytes.extend_from_slice(here);
                rest = further;
            }
        }
        self.used = self.bytes.len();
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(line: usize, key: &[u8], value: &[u8]) {
        let what = format!("line {line}, key {}, value {}", key.len(), value.len());
        let mut image = RecordImage::default();
        let bytes = image.build(line, 77, 5, key, value).to_vec();
        let lines = lines_for(line, key.len() + value.len());
        assert_eq!(bytes.len(), end_of(line, key.len() + value.len()), "{what}");
        assert_eq!(bytes.len().div_ceil(line), lines as usize, "{what}");

        let mut read = RecordImage::default();
        read.room(line, bytes.len()).copy_from_slice(&bytes);
        assert!(read.is_of(77) && !read.is_of(78), "{what}");
        assert!(read.key_is(key), "{what}");
        let mut out = vec![1, 2, 3];
        read.key_into(&mut out);
        assert_eq!(out, key, "{what}");
        read.value_into(&mut out);
        assert_eq!(out, value, "{what}");
        for torn in 0..lines as usize {
            let mut other = bytes.clone();
            other[torn * line] ^= 1;
            read.room(line, bytes.len()).copy_from_slice(&other);
            assert!(!read.is_of(77), "{what}, line {torn} of another generation");
        }
    }

    #[test]
    fn built_record_is_read_back() {
        let bytes: Vec<u8> = (0..2_000_u32).map(|i| (i * 7) as u8).collect();
        for line in [64, 128, 512] {
            for key in [1, 2, 47, 48, 49, 60, 109, 700] {
                for value in [0, 1, 47, 48, 60, 61, 420, 1_000] {
                    check(line, &bytes[..key], &bytes[500..500 + value]);
                }
            }
        }
    }

    #[test]
    fn another_key_differs_at_every_byte() {
        let key = vec![9_u8; 150];
        let mut image = RecordImage::default();
        image.build(64, 1, 1, &key, b"value");
        for at in 0..key.len() {
            let mut other = key.clone();
            other[at] = 8;
            assert!(!image.key_is(&other), "byte {at}");
        }
    }

    #[test]
    fn the_smallest_line_that_fits_is_taken() {
        let shape = |payload| RecordShape::fitting(payload, LineSize::DEFAULT);
        let single = |bytes| RecordShape { line: LineSize::from_bytes(bytes).unwrap(), lines: 1 };
        assert_eq!(shape(1), single(64));
        assert_eq!(shape(48), single(64));
        assert_eq!(shape(49), single(128));
        assert_eq!(shape(496), single(512));
        assert_eq!(shape(497), RecordShape { line: LineSize::DEFAULT, lines: 2 });
        assert_eq!(shape(1_023), RecordShape { line: LineSize::DEFAULT, lines: 3 });
    }

    #[test]
    fn a_frozen_header_comes_back_frozen() {
        let header =
            RecordHeader { generation: 1, key_bytes: 65_536, value_bytes: 3, frozen: true, tag: 9 };
        let mut bytes = [0; RECORD_HEADER];
        header.encode(&mut bytes);
        assert_eq!(RecordHeader::decode(&bytes), header);
    }
}
