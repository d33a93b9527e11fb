//! The checksum of messages that are READ together with their bell.
//!
//! A READ samples its words in any order, so that one with a new bell may return an old message: no order of the
//! stores prevents that. A message READ together with its bell therefore has a checksum over its bell (with sequence
//! number and length) and its bytes. If it does not match, the message is READ again; since it was stored before the
//! bell that was seen, it must be complete then. The checksum guards against chance, not against intent: a peer that
//! writes the sender's memory can make any checksum.

use farside_base::{Memory, OutOfBounds};

const ODD: [u64; 3] = [0x9e37_79b1_85eb_ca87, 0xc2b2_ae3d_27d4_eb4f, 0x1656_67b1_9e37_79f9];
/// Bytes that are copied at a time; whole rounds of four words.
const BLOCK: usize = 256;
const WORD: usize = 8;

#[inline]
const fn stir(lane: u64, word: u64) -> u64 {
    lane.wrapping_add(word.wrapping_mul(ODD[1])).rotate_left(31).wrapping_mul(ODD[0])
}

/// Returns the checksum of `bytes` bytes from `offset` on, and of the bell before them.
///
/// # Errors
/// They extend beyond the end of the memory.
pub(super) fn checksum<M: Memory>(
    bell: u64,
    memory: &M,
    offset: u64,
    bytes: u32,
) -> Result<u64, OutOfBounds> {
    let mut lanes = [bell, bell ^ ODD[0], bell ^ ODD[1], bell ^ ODD[2]];
    let mut block = [0; BLOCK];
    let mut at = offset;
    let mut left = bytes as usize;
    while left > 0 {
        let taken = left.min(BLOCK);
        let (used, rest) = block.split_at_mut(taken);
        memory.read(at, used)?;
        // Bytes after the last one count as zeroes, up to a whole round.
        rest.fill(0);
        let rounded = taken.next_multiple_of(4 * WORD);
        for round in block.get(..rounded).unwrap_or_default().chunks_exact(4 * WORD) {
            for (lane, word) in lanes.iter_mut().zip(round.chunks_exact(WORD)) {
                let mut eight = [0; WORD];
                eight.copy_from_slice(word);
                *lane = stir(*lane, u64::from_le_bytes(eight));
            }
        }
        at += taken as u64;
        left -= taken;
    }
    let [a, b, c, d] = lanes;
    let sum = [a, b.rotate_left(7), c.rotate_left(12), d.rotate_left(18)]
        .into_iter()
        .fold(u64::from(bytes), stir);
    let sum = (sum ^ (sum >> 33)).wrapping_mul(ODD[1]);
    let sum = (sum ^ (sum >> 29)).wrapping_mul(ODD[2]);
    Ok(sum ^ (sum >> 32))
}

#[cfg(test)]
mod tests {
    use super::super::tests::network::Plain;
    use super::*;
    extern crate std;
    use std::vec::Vec;

    #[test]
    fn every_bit_of_bell_and_message_counts() {
        let message: Vec<u8> = (0..600_u32).map(|at| (at * 7) as u8).collect();
        for bytes in [0, 1, 7, 8, 31, 32, 33, 255, 256, 257, 600] {
            let memory = Plain::new(608);
            memory.write(0, &message).unwrap();
            let right = checksum(5, &memory, 0, bytes).unwrap();
            assert_eq!(checksum(5, &memory, 0, bytes), Ok(right));
            assert_ne!(checksum(6, &memory, 0, bytes), Ok(right), "the bell");
            for at in 0..bytes as usize {
                memory.write(at as u64, &[message[at] ^ 0x10]).unwrap();
                assert_ne!(checksum(5, &memory, 0, bytes), Ok(right), "byte {at} of {bytes}");
                memory.write(at as u64, &message[at..=at]).unwrap();
            }
            memory.write(u64::from(bytes), &[9]).unwrap();
            assert_eq!(checksum(5, &memory, 0, bytes), Ok(right), "later bytes do not count");
        }
        assert_eq!(checksum(5, &Plain::new(16), 0, 17), Err(OutOfBounds));
    }

    #[test]
    fn words_that_change_places_count() {
        let memory = Plain::new(64);
        memory.write(0, &[1, 0, 0, 0, 0, 0, 0, 0, 2]).unwrap();
        let right = checksum(1, &memory, 0, 64).unwrap();
        memory.write(0, &[2, 0, 0, 0, 0, 0, 0, 0, 1]).unwrap();
        assert_ne!(checksum(1, &memory, 0, 64), Ok(right));
        memory.write(0, &[0; 32]).unwrap();
        memory.write(32, &[1, 0, 0, 0, 0, 0, 0, 0, 2]).unwrap();
        assert_ne!(checksum(1, &memory, 0, 64), Ok(right));
    }
}
