//! xxHash64, as its specification has it.

const PRIME_1: u64 = 0x9e37_79b1_85eb_ca87;
const PRIME_2: u64 = 0xc2b2_ae3d_27d4_eb4f;
const PRIME_3: u64 = 0x1656_67b1_9e37_79f9;
const PRIME_4: u64 = 0x85eb_ca77_c2b2_ae63;
const PRIME_5: u64 = 0x27d4_eb2f_1656_67c5;

fn round(lane: u64, input: u64) -> u64 {
    lane.wrapping_add(input.wrapping_mul(PRIME_2)).rotate_left(31).wrapping_mul(PRIME_1)
}

fn eight(bytes: &[u8]) -> u64 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

/// The xxHash64 of `bytes` with a seed.
pub fn xxhash64(bytes: &[u8], seed: u64) -> u64 {
    let mut stripes = bytes.chunks_exact(32);
    let mut hash = if bytes.len() >= 32 {
        let mut lanes = [
            seed.wrapping_add(PRIME_1).wrapping_add(PRIME_2),
            seed.wrapping_add(PRIME_2),
            seed,
            seed.wrapping_sub(PRIME_1),
        ];
        for stripe in &mut stripes {
            for (lane, input) in lanes.iter_mut().zip(stripe.chunks_exact(8)) {
                *lane = round(*lane, eight(input));
            }
        }
        let turns = [1, 7, 12, 18];
        let mixed = lanes
            .iter()
            .zip(turns)
            .fold(0u64, |sum, (lane, turn)| sum.wrapping_add(lane.rotate_left(turn)));
        lanes.iter().fold(mixed, |hash, lane| {
            (hash ^ round(0, *lane)).wrapping_mul(PRIME_1).wrapping_add(PRIME_4)
        })
    } else {
        seed.wrapping_add(PRIME_5)
    };
    hash = hash.wrapping_add(bytes.len() as u64);
    finish(hash, stripes.remainder())
}

fn finish(mut hash: u64, tail: &[u8]) -> u64 {
    let mut words = tail.chunks_exact(8);
    for word in &mut words {
        hash = (hash ^ round(0, eight(word))).rotate_left(27);
        hash = hash.wrapping_mul(PRIME_1).wrapping_add(PRIME_4);
    }
    let mut rest = words.remainder();
    if rest.len() >= 4 {
        let (four, after) = rest.split_at(4);
        hash = (hash ^ eight(four).wrapping_mul(PRIME_1)).rotate_left(23);
        hash = hash.wrapping_mul(PRIME_2).wrapping_add(PRIME_3);
        rest = after;
    }
    for byte in rest {
        hash = (hash ^ u64::from(*byte).wrapping_mul(PRIME_5)).rotate_left(11);
        hash = hash.wrapping_mul(PRIME_1);
    }
    hash = (hash ^ hash >> 33).wrapping_mul(PRIME_2);
    hash = (hash ^ hash >> 29).wrapping_mul(PRIME_3);
    hash ^ hash >> 32
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        assert_eq!(xxhash64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxhash64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxhash64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
        assert_eq!(xxhash64(b"123456789", 0), 0x8cb8_41db_40e6_ae83);
    }
}
