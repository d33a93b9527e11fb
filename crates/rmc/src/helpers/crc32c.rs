//! CRC32C (Castagnoli, RFC 3720 appendix B.4), eight bytes at a time by tables.

/// The reflected polynomial.
const POLYNOMIAL: u32 = 0x82f6_3b78;

/// `TABLES[k][b]`: what byte `b` adds when `k` bytes follow it.
const TABLES: [[u32; 256]; 8] = {
    let mut tables = [[0; 256]; 8];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
            bit += 1;
        }
        tables[0][byte] = crc;
        byte += 1;
    }
    let mut k = 1;
    while k < 8 {
        let mut byte = 0;
        while byte < 256 {
            let before = tables[k - 1][byte];
            tables[k][byte] = before >> 8 ^ tables[0][(before & 0xff) as usize];
            byte += 1;
        }
        k += 1;
    }
    tables
};

/// The CRC32C of what had the CRC `previous` (zero for nothing) followed by `bytes`.
pub fn crc32c(bytes: &[u8], previous: u32) -> u32 {
    let mut crc = !previous;
    let mut chunks = bytes.chunks_exact(8);
    for chunk in &mut chunks {
        let low = crc ^ u32::from_le_bytes([chunk[0], chunk[1], chunk[2], chunk[3]]);
        let [a, b, c, d] = low.to_le_bytes();
        let at = |table: usize, byte: u8| TABLES[table][usize::from(byte)];
        crc = at(7, a) ^ at(6, b) ^ at(5, c) ^ at(4, d);
        crc ^= at(3, chunk[4]) ^ at(2, chunk[5]) ^ at(1, chunk[6]) ^ at(0, chunk[7]);
    }
    for byte in chunks.remainder() {
        crc = crc >> 8 ^ TABLES[0][usize::from(crc as u8 ^ byte)];
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_examples_of_rfc_3720() {
        assert_eq!(crc32c(&[0; 32], 0), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32], 0), 0x62a8_ab43);
        let rising: alloc::vec::Vec<u8> = (0..32).collect();
        assert_eq!(crc32c(&rising, 0), 0x46dd_794e);
        assert_eq!(crc32c(b"123456789", 0), 0xe306_9283);
    }

    #[test]
    fn pieces_make_the_whole() {
        let bytes: alloc::vec::Vec<u8> = (0..100u8).map(|at| at.wrapping_mul(37)).collect();
        for cut in 0..bytes.len() {
            let (front, back) = bytes.split_at(cut);
            assert_eq!(crc32c(back, crc32c(front, 0)), crc32c(&bytes, 0));
        }
    }
}
