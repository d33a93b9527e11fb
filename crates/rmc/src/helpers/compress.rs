//! LZ4 blocks, by the format's description: greedy, with one table of positions.

/// Matches are at least so long.
const MATCH_MIN: usize = 4;
/// The last match starts at least so many bytes before the end.
const LAST_MATCH: usize = 12;
/// The last bytes are literals.
const LAST_LITERALS: usize = 5;
/// Matches reach back at most so far.
const REACH: usize = 65_535;
/// Positions that are remembered, by hash.
const TABLE: usize = 1 << 12;

/// The block's bytes so far; `None` when the output is too short.
struct Writer<'a> {
    out: &'a mut [u8],
    length: usize,
}

impl Writer<'_> {
    fn put(&mut self, byte: u8) -> Option<()> {
        *self.out.get_mut(self.length)? = byte;
        self.length += 1;
        Some(())
    }

    fn put_all(&mut self, bytes: &[u8]) -> Option<()> {
        let end = self.length.checked_add(bytes.len())?;
        self.out.get_mut(self.length..end)?.copy_from_slice(bytes);
        self.length = end;
        Some(())
    }

    /// What of a length does not fit into its four bits.
    fn rest(&mut self, mut rest: usize) -> Option<()> {
        while rest >= 255 {
            self.put(255)?;
            rest -= 255;
        }
        self.put(rest as u8)
    }

    /// Literals, then a match of `matched` bytes (none at the end) `back` bytes ago.
    fn sequence(&mut self, literals: &[u8], back: usize, matched: Option<usize>) -> Option<()> {
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
        Some(())
    }
}

fn four(bytes: &[u8], at: usize) -> u32 {
    let word = bytes.get(at..at + 4).and_then(|word| word.try_into().ok());
    word.map_or(0, u32::from_le_bytes)
}

/// Compresses `bytes` into `out` as an LZ4 block; its length, or `None` when it does not fit.
pub fn compress(bytes: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut writer = Writer { out, length: 0 };
    let mut table = [0u32; TABLE];
    let (mut at, mut literals) = (0, 0);
    while at + LAST_MATCH < bytes.len() {
        let word = four(bytes, at);
        let hash = (word.wrapping_mul(2_654_435_761) >> 20) as usize % TABLE;
        let candidate = table[hash] as usize;
        table[hash] = at as u32 + 1;
        // Positions are stored one up, so that zero is none.
        let found =
            candidate > 0 && at + 1 - candidate <= REACH && four(bytes, candidate - 1) == word;
        if !found {
            at += 1;
            continue;
        }
        let from = candidate - 1;
        let most = bytes.len() - LAST_LITERALS - at;
        let equal = (MATCH_MIN..most).take_while(|k| bytes[from + k] == bytes[at + k]).count();
        let length = MATCH_MIN + equal;
        writer.sequence(&bytes[literals..at], at - from, Some(length))?;
        at += length;
        literals = at;
    }
    writer.sequence(&bytes[literals..], 0, None)?;
    Some(writer.length)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A decoder of its own, from the format's description.
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
    fn what_does_not_fit_is_none() {
        let bytes: Vec<u8> = (0..64).collect();
        let mut out = [0; 66];
        let size = compress(&bytes, &mut out).unwrap();
        for room in 0..size {
            assert_eq!(compress(&bytes, &mut out[..room]), None);
        }
    }
}
