//! The table's hash: 64 bits, keyed by the table's random seed, so that keys which collide cannot be chosen
//! without knowing it. Folded 64 x 64 -> 128 bit products over 16-byte steps, the construction of wyhash
//! (public domain).

const MIX: [u64; 3] = [0xa076_1d64_78bd_642f, 0xe703_7ed1_a0b4_28db, 0x8ebc_6af0_9c88_c6e3];

/// The hash of `key` under `seed`.
pub(crate) fn hash(key: &[u8], seed: u64) -> u64 {
    let length = key.len();
    let mut state = seed ^ fold(seed ^ MIX[0], MIX[1]);
    let (low, high) = if length > 16 {
        let mut rest = key;
        while rest.len() > 16 {
            state = fold(word(rest, 0) ^ MIX[1], word(rest, 8) ^ state);
            rest = &rest[16..];
        }
        (word(key, length - 16), word(key, length - 8))
    } else if length >= 8 {
        (word(key, 0), word(key, length - 8))
    } else {
        short(key)
    };
    fold(MIX[2] ^ length as u64, fold(low ^ MIX[1], high ^ state))
}

/// The next value of a permutation of all `u64` values (splitmix64); for seeds and ids.
pub(crate) fn scramble(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Up to seven bytes as two words, each byte in at least one.
fn short(key: &[u8]) -> (u64, u64) {
    match key.len() {
        0 => (0, 0),
        1..=3 => {
            let low = (u64::from(key[0]) << 16) | (u64::from(key[key.len() / 2]) << 8);
            (low | u64::from(key[key.len() - 1]), 0)
        }
        length => (half(key, 0), half(key, length - 4)),
    }
}

fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

fn word(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

fn half(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_length_and_every_byte_counts() {
        let mut seen = HashSet::new();
        for length in 0..100 {
            let key = vec![7_u8; length];
            assert!(seen.insert(hash(&key, 1)), "length {length}");
            for at in 0..length {
                let mut other = key.clone();
                other[at] ^= 0x80;
                assert!(seen.insert(hash(&other, 1)), "length {length}, byte {at}");
            }
        }
    }

    #[test]
    fn all_bits_are_used_evenly() {
        let mut ones = [0_u32; 64];
        for i in 0..10_000_u32 {
            let h = hash(format!("user{i}").as_bytes(), 42);
            for (bit, count) in ones.iter_mut().enumerate() {
                *count += (h >> bit & 1) as u32;
            }
        }
        for (bit, count) in ones.iter().enumerate() {
            assert!((4_700..=5_300).contains(count), "bit {bit} is set {count} times of 10,000");
        }
    }

    #[test]
    fn the_seed_matters() {
        assert_ne!(hash(b"key", 1), hash(b"key", 2));
    }
}
