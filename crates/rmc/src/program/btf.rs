//! Lines of the source, from the sections `.BTF` and `.BTF.ext` that `clang -g` writes.
//!
//! Unexpected data ends the reading: a program without lines is valid, only its messages have no lines.

use alloc::sync::Arc;
use alloc::vec::Vec;

/// Where instructions came from.
#[derive(Default)]
pub(super) struct SourceMap<'a> {
    /// Names of sections and files, by their indices in the lines.
    pub(super) sections: Vec<&'a str>,
    pub(super) files: Vec<Arc<str>>,
    pub(super) lines: Vec<SourceLine>,
}

/// A section's instruction came from a line.
#[derive(Clone, Copy)]
pub(super) struct SourceLine {
    pub(super) section: usize,
    /// In slots.
    pub(super) slot: usize,
    pub(super) file: usize,
    pub(super) line: u32,
}

const MAGIC: u16 = 0xeb9f;
/// Bytes of a record that are used here; there may be more.
const RECORD: usize = 16;

struct BtfReader<'a> {
    bytes: &'a [u8],
}

impl<'a> BtfReader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (front, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(front)
    }

    fn number(&mut self) -> Option<u32> {
        self.take(4)?.try_into().ok().map(u32::from_le_bytes)
    }

    /// The length of a header, if its magic is valid.
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
    let mut reader = BtfReader { bytes: btf };
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
pub(super) fn lines<'a>(btf: &'a [u8], ext: &[u8], most: usize) -> SourceMap<'a> {
    let mut source = SourceMap::default();
    read(btf, ext, most, &mut source);
    source
}

/// `None` at the first thing that is not as expected; what was read before stays.
fn read<'a>(btf: &'a [u8], ext: &[u8], most: usize, source: &mut SourceMap<'a>) -> Option<()> {
    let strings = strings(btf)?;
    let mut reader = BtfReader { bytes: ext };
    let header = reader.header()?;
    reader.take(8)?;
    let (offset, length) = (reader.number()?, reader.number()?);
    let mut reader = BtfReader { bytes: part(ext, header, offset, length)? };
    let record = usize::try_from(reader.number()?).ok()?;
    let surplus = record.checked_sub(RECORD)?;
    let mut last = None;
    while !reader.bytes.is_empty() {
        let section = source.sections.len();
        source.sections.push(string(strings, reader.number()?)?);
        for _ in 0..reader.number()? {
            if source.lines.len() >= most {
                return None;
            }
            let (at, name) = (reader.number()?, reader.number()?);
            reader.take(4)?;
            let line = reader.number()? >> 10;
            reader.take(surplus)?;
            if last != Some(name) {
                source.files.push(Arc::from(string(strings, name)?));
                last = Some(name);
            }
            // Line 0 belongs to no line.
            if line > 0 {
                let (slot, file) = (usize::try_from(at / 8).ok()?, source.files.len() - 1);
                source.lines.push(SourceLine { section, slot, file, line });
            }
        }
    }
    Some(())
}
