//! LZ4 blocks, by the format's description: greedy, with one table of positions.

/// Minimum length of a match.
const MATCH_MIN: usize = 4;
/// Minimum distance of the last match's start from the end.
const LAST_MATCH: usize = 12;
/// The last bytes are literals.
const LAST_LITERALS: usize = 5;
/// Maximum distance of a match.
const REACH: usize = 65_535;
/// Entries of the table of positions.
const TABLE: usize = 1 << 12;

/// The output is too short for the block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct NoRoom;

/// The block's bytes so far.
struct BlockWriter<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl BlockWriter<'_> {
    fn put(&mut self, byte: u8) -> Result<(), NoRoom> {
        *self.out.get_mut(self.length).ok_or(NoRoom)? = byte;
        self.length += 1;
        Ok(())
    }

    fn put_all(&mut self, bytes: &[u8]) -> Result<(), NoRoom> {
        let end = self.length.checked_add(bytes.len()).ok_or(NoRoom)?;
        self.out.get_mut(self.length..end).ok_or(NoRoom)?.copy_from_slice(bytes);
        self.length = end;
        Ok(())
    }

    /// What of a length does not fit into its four bits.
    fn rest(&mut self, mut rest: usize) -> Result<(), NoRoom> {
        while rest >= 255 {
            self.put(255)?;
            rest -= 255;
        }
        self.put(rest as u8)
    }

    /// Literals, then a match of `matched` bytes (none at the end) `back` bytes ago.
    fn sequence(
        &mut self,
        literals: &[u8],
        back: usize,
        matched: Option<usize>,
    ) -> Result<(), NoRoom> {
        let match_code = matched.map_or(0, |length| length - MATCH_MIN);
        self.put((literals.len().min(15) as u8) << 4 | match_code.min(15) as u8)?;
        if literals.len() >= 15 {
            self.rest(literals.len() - 15)?;
        }
        self.put_all(literals)?;
        if matched.is_some() {
            self.put(back as u8)?;
            self.put((back >> 8) as u8)?;
            if match_code >= 15 {
                self.rest(match_code - 15)?;
            }
        }
        Ok(())
    }
}

fn four(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// A compressor that works in steps. Its output does not depend on how the work is divided into steps.
#[derive(Clone, Debug)]
pub(crate) struct Compressor {
    /// The last position of four bytes plus one, by their hash; zero if there is none.
    table: [u32; TABLE],
    at: usize,
    /// The start of the literals that no match covers yet.
    literals: usize,
    /// The match that starts at `at` while it grows: its earlier position and its length.
    matched: Option<(usize, usize)>,
    /// Bytes of the block.
    length: usize,
}

impl Compressor {
    pub(crate) const fn new() -> Self {
        Self { table: [0; TABLE], at: 0, literals: 0, matched: None, length: 0 }
    }

    /// Works for `units` units, each a position tried or a byte that a match grows by, so there are at most as many as
    /// bytes. Returns the block's length at the end. `bytes` and `out` must be those of the first step.
    pub(crate) fn step(
        &mut self,
        bytes: &[u8],
        out: &mut [u8],
        units: usize,
    ) -> Result<Option<usize>, NoRoom> {
        let mut left = units;
        loop {
            if let Some((from, length)) = self.matched {
                let most = bytes.len() - LAST_LITERALS - self.at;
                let until = most.min(length.saturating_add(left));
                let here = &bytes[self.at + length..self.at + until];
                let grown = equal(here, &bytes[from + length..from + until]);
                left -= grown;
                self.matched = Some((from, length + grown));
                if grown == here.len() && length + grown < most {
                    return Ok(None);
                }
                self.put(bytes, out, Some((self.at - from, length + grown)))?;
                self.at += length + grown;
                (self.literals, self.matched) = (self.at, None);
            } else if self.at + LAST_MATCH >= bytes.len() {
                self.put(bytes, out, None)?;
                return Ok(Some(self.length));
            } else if left == 0 {
                return Ok(None);
            } else {
                left -= 1;
                self.matched = self.find(bytes);
                self.at += usize::from(self.matched.is_none());
            }
        }
    }

    /// Finds an earlier position of the four bytes at `at`, and the length of the match.
    fn find(&mut self, bytes: &[u8]) -> Option<(usize, usize)> {
        let word = four(bytes, self.at);
        let place = &mut self.table[(word.wrapping_mul(2_654_435_761) >> 20) as usize % TABLE];
        let last = core::mem::replace(place, self.at as u32 + 1);
        let from = (last as usize).checked_sub(1)?;
        (self.at - from <= REACH && four(bytes, from) == word).then_some((from, MATCH_MIN))
    }

    /// Puts what no match has, and a match: how far back it was, and its length.
    fn put(
        &mut self,
        bytes: &[u8],
        out: &mut [u8],
        matched: Option<(usize, usize)>,
    ) -> Result<(), NoRoom> {
        let mut writer = BlockWriter { out, length: self.length };
        let end = if matched.is_some() { self.at } else { bytes.len() };
        let (back, length) = matched.unzip();
        writer.sequence(&bytes[self.literals..end], back.unwrap_or(0), length)?;
        self.length = writer.length;
        Ok(())
    }
}

/// The length of the common prefix.
fn equal(one: &[u8], other: &[u8]) -> usize {
    let words = one.chunks_exact(8).zip(other.chunks_exact(8));
    let whole = words.take_while(|(one, other)| one == other).count() * 8;
    let rest = one[whole..].iter().zip(&other[whole..]);
    whole + rest.take_while(|(one, other)| one == other).count()
}

/// Compresses `bytes` into `out` as an LZ4 block; its length, or `None` when it does not fit.
pub fn compress(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    Compressor::new().step(bytes, out, usize::MAX).ok().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// An independent decoder, from the format's description.
    fn decompress(block: &[u8]) -> Vec<u8> {
        let (mut out, mut at) = (Vec::new(), 0);
        let more = |at: &mut usize, mut length: usize| {
            if length == 15 {
                loop {
                    let byte = block[*at];
                    *at += 1;
                    length += usize::from(byte);
                    if byte != 255 {
                        break;
                    }
                }
            }
            length
        };
        while at < block.len() {
            let token = usize::from(block[at]);
            at += 1;
            let literals = more(&mut at, token >> 4);
            out.extend_from_slice(&block[at..at + literals]);
            at += literals;
            if at == block.len() {
                break;
            }
            let back = usize::from(block[at]) | usize::from(block[at + 1]) << 8;
            at += 2;
            let length = more(&mut at, token & 15) + 4;
            for _ in 0..length {
                out.push(out[out.len() - back]);
            }
        }
        out
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let mut seed = 7u32;
        for length in [0, 1, 4, 12, 13, 14, 64, 300, 5_000, 70_000] {
            for letters in [1, 3, 250] {
                let bytes: Vec<u8> = (0..length)
                    .map(|_| {
                        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                        (seed >> 24) as u8 % letters
                    })
                    .collect();
                let mut out = alloc::vec![0; length + length / 200 + 16];
                let size = compress(&bytes, &mut out).unwrap();
                assert_eq!(decompress(&out[..size]), bytes, "{length} of {letters}");
                assert!(letters != 1 || length < 300 || size < length / 20, "{length} shrinks");
            }
        }
    }

    #[test]
    fn a_block_by_steps_is_the_same_block() {
        let mut seed = 7u32;
        for letters in [1, 2, 3, 40] {
            let bytes: Vec<u8> = (0..3_000)
                .map(|_| {
                    seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    (seed >> 24) as u8 % letters
                })
                .collect();
            let mut whole = alloc::vec![0; 4_000];
            let size = compress(&bytes, &mut whole).unwrap();
            for units in [1, 2, 7, 1_000, 2_999, 3_000] {
                let (mut out, mut compressor) = (alloc::vec![0; 4_000], Compressor::new());
                let mut steps = 1;
                let length = loop {
                    match compressor.step(&bytes, &mut out, units).unwrap() {
                        Some(length) => break length,
                        None => steps += 1,
                    }
                };
                assert_eq!((length, &out), (size, &whole), "{letters} by {units}");
                assert!(steps <= bytes.len() / units + 1, "{steps} of {units}");
            }
        }
    }

    #[test]
    fn what_does_not_fit_is_none() {
        let bytes: Vec<u8> = (0..64).collect();
        let mut out = [0; 66];
        let size = compress(&bytes, &mut out).unwrap();
        for room in 0..size {
            assert_eq!(compress(&bytes, &mut out[..room]), None);
        }
    }
}
