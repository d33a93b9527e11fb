//! The list that all engines search: nodes {key, value, next} of 24 bytes, scattered over 64 KiB.

/// Bytes of the region.
pub(crate) const REGION_BYTES: usize = 64 * 1024;
/// Offset of the first node.
pub(crate) const HEAD: u64 = 24;
/// Lengths of searches.
pub(crate) const NODES: [u64; 3] = [1, 8, 64];

/// Returns the key of node `n`, counted from one.
pub(crate) const fn key(n: u64) -> u64 {
    n - 1 + 1_000
}

/// Returns the value of node `n`.
pub(crate) const fn value(n: u64) -> u64 {
    (n - 1) * 7
}

/// Returns the region with the list.
pub(crate) fn region() -> Vec<u8> {
    let offset = |k: u64| 24 * (1 + k * 1_103 % 2_729);
    let mut memory = vec![0; REGION_BYTES];
    for k in 0..64 {
        let at = offset(k) as usize;
        let next = if k < 63 { offset(k + 1) } else { 0 };
        for (word, value) in [k + 1_000, k * 7, next].into_iter().enumerate() {
            memory[at + word * 8..at + word * 8 + 8].copy_from_slice(&value.to_le_bytes());
        }
    }
    memory
}

/// Returns the parameters of a search: the region's handle, the first node, the key.
pub(crate) fn context(n: u64) -> Vec<u8> {
    [0, HEAD, key(n)].map(u64::to_le_bytes).concat()
}
