//! The list that everybody searches: nodes {key, value, next} of 24 bytes, scattered over 64 KiB.

/// Bytes of the region.
pub(crate) const REGION_BYTES: usize = 64 * 1024;
/// Where the first node stands.
pub(crate) const HEAD: u64 = 24;
/// Lengths of searches.
pub(crate) const NODES: [u64; 3] = [1, 8, 64];

/// The key that is found at node `n`, counted from one.
pub(crate) const fn key(n: u64) -> u64 {
    n - 1 + 1_000
}

/// The value that stands there.
pub(crate) const fn value(n: u64) -> u64 {
    (n - 1) * 7
}

/// The region.
pub(crate) fn region() -> Vec<u8> {
    let place = |k: u64| 24 * (1 + k * 1_103 % 2_729);
    let mut memory = vec![0; REGION_BYTES];
    for k in 0..64 {
        let at = place(k) as usize;
        let next = if k < 63 { place(k + 1) } else { 0 };
        for (word, value) in [k + 1_000, k * 7, next].into_iter().enumerate() {
            memory[at + word * 8..at + word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    memory
}

/// Parameters of a search: the region's handle, the first node, the key.
pub(crate) fn context(n: u64) -> Vec<u8> {
    [0, HEAD, key(n)].map(u64::to_le_bytes).concat()
}
