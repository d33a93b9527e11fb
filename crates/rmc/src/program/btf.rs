//! Lines of the source, from the sections `.BTF` and `.BTF.ext` that `clang -g` writes.
//!
//! Whatever is not as expected ends the reading: a program without lines is as good, its messages are
//! only shorter.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// A section's instruction came from a line.
pub(super) struct SourceLine {
    pub(super) section: Arc<str>,
    /// In slots.
    pub(super) slot: usize,
    pub(super) file: Arc<str>,
    pub(super) line: u32,
}

const MAGIC: u16 = 0xeb9f;
/// Bytes of a record that are used here; there may be more.
const RECORD: usize = 16;

struct Reader<'a> {
    bytes: &'a [u8],
}

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(front)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// The length of a header whose magic fits.
    fn header(&mut self) -> Option<usize> {
        let start: [u8; 4] = self.take(4)?.try_into().ok()?;
        let fits = u16::from_le_bytes([start[0], start[1]]) == MAGIC;
        let length = usize::try_from(self.number()?).ok()?;
        fits.then_some(length)
    }
}

fn part(bytes: &[u8], header: usize, offset: u32, length: u32) -> Option<&[u8]> {
    let from = header.checked_add(usize::try_from(offset).ok()?)?;
    bytes.get(from..from.checked_add(usize::try_from(length).ok()?)?)
}

/// The strings of `.BTF`.
fn strings(btf: &[u8]) -> Option<&[u8]> {
    let mut reader = Reader { bytes: btf };
    let header = reader.header()?;
    reader.take(8)?;
    let (offset, length) = (reader.number()?, reader.number()?);
    part(btf, header, offset, length)
}

fn string(strings: &[u8], offset: u32) -> Option<&str> {
    let rest = strings.get(usize::try_from(offset).ok()?..)?;
    let end = rest.iter().position(|byte| *byte == 0)?;
    core::str::from_utf8(&rest[..end]).ok()
}

/// The lines of all sections, as far as they can be read, at most `most`.
pub(super) fn lines(btf: &[u8], ext: &[u8], most: usize) -> Vec<SourceLine> {
    let mut lines = Vec::new();
    read(btf, ext, most, &mut lines);
    lines
}

/// `None` at the first thing that is not as expected; what was read before stays.
fn read(btf: &[u8], ext: &[u8], most: usize, lines: &mut Vec<SourceLine>) -> Option<()> {
    let strings = strings(btf)?;
    let mut reader = Reader { bytes: ext };
    let header = reader.header()?;
    reader.take(8)?;
    let (offset, length) = (reader.number()?, reader.number()?);
    let mut reader = Reader { bytes: part(ext, header, offset, length)? };
    let record = usize::try_from(reader.number()?).ok()?;
    let surplus = record.checked_sub(RECORD)?;
    let mut file: (u32, Arc<str>) = (u32::MAX, Arc::from(""));
    while !reader.bytes.is_empty() {
        let section: Arc<str> = Arc::from(string(strings, reader.number()?)?);
        for _ in 0..reader.number()? {
            if lines.len() >= most {
                return None;
            }
            let (at, name) = (reader.number()?, reader.number()?);
            reader.take(4)?;
            let line = reader.number()? >> 10;
            reader.take(surplus)?;
            if file.0 != name {
                file = (name, Arc::from(string(strings, name)?));
            }
            // Line 0 belongs to no line.
            if line > 0 {
                let slot = usize::try_from(at / 8).ok()?;
                lines.push(SourceLine {
                    section: section.clone(),
                    slot,
                    file: file.1.clone(),
                    line,
                });
            }
        }
    }
    Some(())
}
