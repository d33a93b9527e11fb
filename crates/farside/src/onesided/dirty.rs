//! Which bytes of blocks have been written: a bit for each.

use std::ops::Range;

/// Bits of a word.
const WORD: u32 = u64::BITS;

/// The written bytes of a number of blocks of one size, a multiple of 64.
pub(super) struct DirtyBytes {
    words: Box<[u64]>,
    words_per_block: usize,
}

impl DirtyBytes {
    pub(super) fn new(blocks: usize, block_bytes: u32) -> Self {
        let words_per_block = (block_bytes / WORD) as usize;
        Self { words: vec![0; blocks * words_per_block].into(), words_per_block }
    }

    #[inline]
    fn of(&self, block: u32) -> &[u64] {
        let first = block as usize * self.words_per_block;
        &self.words[first..first + self.words_per_block]
    }

    /// Marks bytes of a block; the range is not empty and within the block.
    #[inline]
    pub(super) fn mark(&mut self, block: u32, range: Range<u32>) {
        let first = block as usize * self.words_per_block;
        for at in range.start / WORD..=(range.end - 1) / WORD {
            self.words[first + at as usize] |= mask(at, &range);
        }
    }

    /// Whether all of these bytes are marked.
    #[inline]
    pub(super) fn covers(&self, block: u32, range: &Range<u32>) -> bool {
        self.next_run(block, range.start)
            .is_some_and(|run| run.start == range.start && run.end >= range.end)
    }

    pub(super) fn clear(&mut self, block: u32) {
        let first = block as usize * self.words_per_block;
        self.words[first..first + self.words_per_block].fill(0);
    }

    /// Returns the marked bytes of a block, run by run.
    pub(super) fn runs(&self, block: u32) -> impl Iterator<Item = Range<u32>> + '_ {
        std::iter::successors(self.next_run(block, 0), move |run| self.next_run(block, run.end))
    }

    /// Returns the first run of marked bytes at or after a byte.
    #[inline]
    fn next_run(&self, block: u32, from: u32) -> Option<Range<u32>> {
        let words = self.of(block);
        let start = find(words, from, 0)?;
        let end = find(words, start, u64::MAX).unwrap_or(words.len() as u32 * WORD);
        Some(start..end)
    }
}

/// The bits of a range in the word of this number, in which it has some.
#[inline]
fn mask(word: u32, range: &Range<u32>) -> u64 {
    let first = word * WORD;
    let (low, high) = (range.start.max(first) - first, range.end.min(first + WORD) - first);
    (u64::MAX >> (WORD - (high - low))) << low
}

/// Returns the first bit at or after `from` that differs from those of `unlike`: zeros or ones.
#[inline]
fn find(words: &[u64], from: u32, unlike: u64) -> Option<u32> {
    let mut at = from / WORD;
    let mut word = (words.get(at as usize)? ^ unlike) & (u64::MAX << (from % WORD));
    while word == 0 {
        at += 1;
        word = words.get(at as usize)? ^ unlike;
    }
    Some(at * WORD + word.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_base::Random;

    #[test]
    fn runs_agree_with_reference_bytes() {
        let mut random = Random::new(3);
        for _ in 0..300 {
            let (mut dirty, mut bytes) = (DirtyBytes::new(3, 256), [false; 256]);
            dirty.mark(0, 0..256);
            dirty.mark(2, 0..256);
            for _ in 0..random.below(8) {
                let start = random.below(256);
                let end = random.between(start + 1, 256);
                dirty.mark(1, start as u32..end as u32);
                bytes[start as usize..end as usize].fill(true);
            }
            let mut marked = [false; 256];
            let mut last = None;
            for run in dirty.runs(1) {
                assert!(last.is_none_or(|end| run.start > end), "runs are apart");
                last = Some(run.end);
                marked[run.start as usize..run.end as usize].fill(true);
            }
            assert_eq!(marked, bytes);
            let start = random.below(255);
            let range = start as usize..random.between(start + 1, 256) as usize;
            let all = bytes[range.clone()].iter().all(|marked| *marked);
            assert_eq!(dirty.covers(1, &(range.start as u32..range.end as u32)), all);
            dirty.clear(1);
            assert_eq!(dirty.runs(1).count(), 0);
            assert!(dirty.covers(0, &(0..256)) && dirty.covers(2, &(0..256)));
        }
    }
}
