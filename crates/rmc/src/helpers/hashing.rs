//! Hashes of bytes that come a piece at a time.

use super::{Call, crc32c};
use core::fmt;
use xxhash_rust::xxh64::Xxh64;

/// Incremental computation of the hashing helpers, for executors that hash long memory in pieces.
///
/// ```
/// use farside_rmc::helpers::{Call, Hashing, crc32c};
///
/// let mut hashing = Hashing::of(Call::Crc32cOf, 0).expect("it hashes");
/// hashing.take(b"12345");
/// hashing.take(b"6789");
/// assert_eq!(hashing.result(), u64::from(crc32c(b"123456789", 0)));
/// assert!(Hashing::of(Call::Read, 0).is_none());
/// ```
#[derive(Clone)]
pub struct Hashing(HashKind);

#[derive(Clone)]
enum HashKind {
    Crc32c(u32),
    Xxhash64(Xxh64),
}

impl Hashing {
    /// Of no bytes yet, by this helper with the seed or previous hash that it was called with; `None` for
    /// helpers that do not hash.
    pub fn of(call: Call, seed: u64) -> Option<Self> {
        match call {
            Call::Crc32c | Call::Crc32cOf => Some(Self(HashKind::Crc32c(seed as u32))),
            Call::Xxhash64 | Call::Xxhash64Of => Some(Self(HashKind::Xxhash64(Xxh64::new(seed)))),
            _ => None,
        }
    }

    /// More bytes.
    pub fn take(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            HashKind::Crc32c(crc) => *crc = crc32c(bytes, *crc),
            HashKind::Xxhash64(hash) => hash.update(bytes),
        }
    }

    /// The hash of all that was taken.
    pub fn result(&self) -> u64 {
        match &self.0 {
            HashKind::Crc32c(crc) => u64::from(*crc),
            HashKind::Xxhash64(hash) => hash.digest(),
        }
    }
}

impl fmt::Debug for Hashing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Hashing({:#x})", self.result())
    }
}

/// The xxHash64 of `bytes` with a seed.
pub fn xxhash64(bytes: &[u8], seed: u64) -> u64 {
    xxhash_rust::xxh64::xxh64(bytes, seed)
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloc::vec::Vec;

    #[test]
    fn known_values() {
        assert_eq!(xxhash64(b"", 0), 0xef46_db37_51d8_e999);
        assert_eq!(xxhash64(b"a", 0), 0xd24e_c4f1_a98c_6e5b);
        assert_eq!(xxhash64(b"abc", 0), 0x44bc_2cf5_ad77_0999);
        assert_eq!(xxhash64(b"123456789", 0), 0x8cb8_41db_40e6_ae83);
    }

    #[test]
    fn pieces_make_the_whole() {
        let bytes: Vec<u8> = (0..1_000u32).map(|at| (at.wrapping_mul(37) >> 3) as u8).collect();
        for piece in [1, 3, 8, 31, 32, 33, 500, 1_000] {
            let both = [
                (Call::Crc32c, u64::from(crc32c(&bytes, 9))),
                (Call::Xxhash64, xxhash64(&bytes, 9)),
            ];
            for (call, whole) in both {
                let mut hashing = Hashing::of(call, 9).unwrap();
                bytes.chunks(piece).for_each(|bytes| hashing.take(bytes));
                assert_eq!(hashing.result(), whole, "{call:?} by {piece}");
            }
        }
    }
}
