//! Runs of bits in words; bit `i` is bit `i % 64` of word `i / 64`.

/// Sets (`value`) or clears the bits `from..to`.
pub(super) fn fill(words: &mut [u64], from: usize, to: usize, value: bool) {
    for (at, mask) in masks(from, to) {
        if value {
            words[at] |= mask;
        } else {
            words[at] &= !mask;
        }
    }
}

/// Whether all bits `from..to` are set.
pub(super) fn all(words: &[u64], from: usize, to: usize) -> bool {
    masks(from, to).all(|(at, mask)| words[at] & mask == mask)
}

/// Whether a bit of `from..to` is set.
pub(super) fn any(words: &[u64], from: usize, to: usize) -> bool {
    masks(from, to).any(|(at, mask)| words[at] & mask != 0)
}

/// Whether bit `at` is set.
pub(super) fn get(words: &[u64], at: usize) -> bool {
    words[at / 64] >> (at % 64) & 1 != 0
}

/// The words that `from..to` touches, each with the bits that belong to it.
fn masks(from: usize, to: usize) -> impl Iterator<Item = (usize, u64)> {
    let last = to.div_ceil(64);
    (from / 64..last.max(from / 64)).map(move |at| {
        let low = from.saturating_sub(at * 64).min(64);
        let high = (to - at * 64).min(64);
        let below = |bits: usize| u64::MAX.checked_shr(64 - bits as u32).unwrap_or(0);
        (at, below(high) & !below(low))
    })
}

/// The first run of `length` clear bits at or after `first_word`, or the length of the longest run.
pub(super) fn find_clear(words: &[u64], first_word: usize, length: usize) -> Result<usize, usize> {
    let (mut longest, mut run, mut start) = (0, 0, first_word * 64);
    for (index, word) in words.iter().enumerate().skip(first_word) {
        let (mut rest, mut at) = (*word, 0);
        while at < 64 {
            let clear = (rest.trailing_zeros() as usize).min(64 - at);
            run += clear;
            if run >= length {
                return Ok(start);
            }
            at += clear;
            if at == 64 {
                break;
            }
            rest >>= clear;
            let set = rest.trailing_ones() as usize;
            rest = rest.checked_shr(set as u32).unwrap_or(0);
            at += set;
            longest = longest.max(run);
            (run, start) = (0, index * 64 + at);
        }
    }
    Err(longest.max(run))
}

/// The first word at or after `first_word` with a clear bit.
pub(super) fn first_open_word(words: &[u64], first_word: usize) -> usize {
    let open = |word: &u64| *word != u64::MAX;
    let after = words[first_word.min(words.len())..].iter().position(open);
    after.map_or(words.len(), |distance| first_word + distance)
}

/// The first bit of the run of clear bits that `at`, a clear bit, belongs to.
pub(super) fn run_start(words: &[u64], at: usize) -> usize {
    let mut first = at;
    while first > 0 {
        let word = words[(first - 1) / 64] << (63 - (first - 1) % 64);
        first -= (word.leading_zeros() as usize).min((first - 1) % 64 + 1);
        if word != 0 {
            break;
        }
    }
    first
}

/// Start and length of each run of clear bits that starts in word `index`; the last one may extend into later words.
pub(super) fn runs_from(words: &[u64], index: usize) -> impl Iterator<Item = (usize, usize)> + '_ {
    let word = words[index];
    let entering = index > 0 && words[index - 1] >> 63 == 0;
    let mut at = match entering {
        true => word.trailing_zeros(),
        false => 0,
    };
    core::iter::from_fn(move || {
        at += word.checked_shr(at)?.trailing_ones();
        let start = at;
        let clear = word.checked_shr(start)?.trailing_zeros().min(64 - start);
        at += clear;
        let behind = match at {
            64 => clear_from(&words[index + 1..]),
            _ => 0,
        };
        Some((index * 64 + start as usize, clear as usize + behind))
    })
}

/// The number of clear bits at the front.
fn clear_from(words: &[u64]) -> usize {
    let whole = words.iter().take_while(|word| **word == 0).count();
    let last = words.get(whole).map_or(0, |word| word.trailing_zeros());
    whole * 64 + last as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    /// A bit-by-bit reference implementation.
    fn naive_runs(words: &[u64]) -> Vec<(usize, usize)> {
        let mut runs = Vec::new();
        let mut start = None;
        for at in 0..=words.len() * 64 {
            let set = at == words.len() * 64 || get(words, at);
            match (set, start) {
                (false, None) => start = Some(at),
                (true, Some(from)) => {
                    runs.push((from, at));
                    start = None;
                }
                (true, None) | (false, Some(_)) => {}
            }
        }
        runs
    }

    #[test]
    fn runs_agree_with_bit_by_bit() {
        let mut random = farside_base::Random::new(1);
        let mut next = || random.word();
        for round in 0..2_000 {
            let mut words = [0_u64; 4];
            for _ in 0..next() % 12 {
                let from = (next() % 256) as usize;
                let to = from + (next() % (257 - from as u64)) as usize;
                let value = next() % 2 == 0;
                fill(&mut words, from, to, value);
                assert!(!value || all(&words, from, to), "round {round}");
                assert!(value || !any(&words, from, to), "round {round}");
            }
            let runs = naive_runs(&words);
            let longest = runs.iter().map(|(from, to)| to - from).max().unwrap_or(0);
            for length in 1..=256 {
                let first = runs.iter().find(|(from, to)| to - from >= length);
                let expected = first.map(|(from, _)| *from).ok_or(longest);
                assert_eq!(find_clear(&words, 0, length), expected, "round {round} {words:x?}");
            }
            for (from, to) in &runs {
                let inner = from + (next() as usize) % (to - from);
                assert_eq!(run_start(&words, inner), *from, "round {round}");
            }
            let found = (0..4).flat_map(|at| runs_from(&words, at));
            let found: Vec<_> = found.map(|(from, length)| (from, from + length)).collect();
            assert_eq!(found, runs, "round {round} {words:x?}");
            let open = (0..4).find(|at| words[*at] != u64::MAX).unwrap_or(4);
            assert_eq!(first_open_word(&words, 0), open);
        }
    }
}
