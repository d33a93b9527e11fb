//! Several pieces at one moment, and checksums.

use farside_rmc::helpers::{crc32c, status, xxhash64};
use farside_rmc::library::{Checksum, HostWord, MultiRead, VersionedPiece};
use farside_rmc::run::Outcome;

use crate::host::TestHost;
use crate::programs::Programs;
use crate::runner::{SeededRandom, Stepped, call, put, word};

fn parameters(pieces: &[VersionedPiece]) -> Vec<u8> {
    MultiRead { region: 0, pieces }.to_bytes().unwrap()
}

/// Without a concurrent writer: all pieces, of all lengths.
pub(crate) fn versions(programs: &Programs) {
    let read = programs.verified("multi_read");
    let mut chance = SeededRandom::new(1);
    let mut host = TestHost::new(vec![chance.bytes(1_024)]);
    put(&mut host, 0, 0, &[2, 40, 6, 1 << 40]);
    for lengths in [&[1u64][..], &[0, 5], &[8, 16, 24], &[64, 64, 64, 64], &[256], &[0, 0, 0, 0]] {
        let pieces: Vec<_> = lengths
            .iter()
            .enumerate()
            .map(|(at, bytes)| VersionedPiece {
                version: 8 * at as u64,
                offset: 500 - 100 * at as u64,
                bytes: *bytes,
            })
            .collect();
        let done = call(&read, &mut host, &parameters(&pieces));
        let mut expected = host.regions[0][..8 * lengths.len()].to_vec();
        for piece in &pieces {
            let bytes = &host.regions[0][piece.offset as usize..][..piece.bytes as usize];
            expected.extend_from_slice(bytes);
        }
        assert_eq!((done.result(), done.accesses), (status::OK, 3), "{lengths:?}");
        assert_eq!(done.output, expected, "{lengths:?}");
    }
    let one = VersionedPiece { version: 0, offset: 64, bytes: 8 };
    // A writer that has died in between, or takes for ever.
    put(&mut host, 0, 0, &[3]);
    let done = call(&read, &mut host, &parameters(&[one]));
    assert_eq!((done.result(), done.accesses, done.output.len()), (status::BUSY, 9, 0));
    let far = VersionedPiece { offset: 1_020, ..one };
    let done = call(&read, &mut host, &parameters(&[far]));
    assert_eq!((done.result(), done.accesses), (status::NOT_PERMITTED, 2));
    // Too many pieces or bytes: at the builder, and at the program where that is passed by.
    assert!(MultiRead { region: 0, pieces: &[one; 5] }.to_bytes().is_err());
    let long = VersionedPiece { bytes: 129, ..one };
    assert!(MultiRead { region: 0, pieces: &[long; 2] }.to_bytes().is_err());
    let huge = VersionedPiece { bytes: u64::MAX, ..one };
    assert!(MultiRead { region: 0, pieces: &[one, huge] }.to_bytes().is_err());
    let good = parameters(&[one, one]);
    for (field, value) in [(1, 5), (1, u64::MAX), (4, 257), (7, 249), (7, u64::MAX)] {
        let mut bad = good.clone();
        bad[8 * field..8 * field + 8].copy_from_slice(&u64::to_le_bytes(value));
        let done = call(&read, &mut host, &bad);
        assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 0), "{field} {value}");
    }
}

/// A writer of two pieces, one step at a time.
struct PieceWriter {
    step: u64,
}

impl PieceWriter {
    const PIECES: [VersionedPiece; 2] = [
        VersionedPiece { version: 0, offset: 64, bytes: 24 },
        VersionedPiece { version: 8, offset: 128, bytes: 24 },
    ];

    /// Makes one piece after the other odd, changes it word by word, and makes it even again.
    fn go_on(&mut self, host: &mut TestHost) {
        let piece = Self::PIECES[(self.step / 5 % 2) as usize];
        let version = word(host, 0, piece.version);
        match self.step % 5 {
            0 | 4 => put(host, 0, piece.version, &[version + 1]),
            part => put(host, 0, piece.offset + 8 * (part - 1), &[version.div_ceil(2)]),
        }
        self.step += 1;
    }
}

/// What comes out was there at one moment, whatever the writer did meanwhile.
pub(crate) fn writers_in_the_way(programs: &Programs) {
    let read = programs.verified("multi_read");
    let (mut good, mut again, mut busy) = (0, 0, 0);
    for seed in 0..300 {
        let mut chance = SeededRandom::new(seed);
        let mut host = TestHost::new(vec![vec![0; 256]]);
        let mut writer = PieceWriter { step: 0 };
        for _ in 0..5 * chance.below(8) {
            writer.go_on(&mut host);
        }
        let mut reader = Stepped::new(&read, &parameters(&PieceWriter::PIECES));
        let pace = 2 + chance.below(12);
        let outcome = loop {
            if let Some(outcome) = reader.step(&mut host) {
                break outcome;
            }
            // Mostly whole changes, so that there is something to read in between.
            if chance.below(pace) == 0 {
                for _ in 0..[5, 5, 5, 10, 2, 3][chance.below(6) as usize] {
                    writer.go_on(&mut host);
                }
            }
        };
        let Outcome::Returned(result) = outcome else { panic!("{outcome:?}") };
        if result as i64 == status::BUSY {
            busy += 1;
            continue;
        }
        assert_eq!(result as i64, status::OK);
        let number =
            |at: usize| u64::from_le_bytes(reader.output()[8 * at..8 * at + 8].try_into().unwrap());
        let (first, second) = (number(0), number(1));
        assert!(first % 2 == 0 && second % 2 == 0, "seed {seed}");
        // Each word of a piece names its version, and the first is ahead by at most one change, since they are
        // changed in order.
        for at in 0..3 {
            assert_eq!((2 * number(2 + at), 2 * number(5 + at)), (first, second), "seed {seed}");
        }
        assert!(first == second || first == second + 2, "seed {seed}: {first} {second}");
        good += 1;
        again += u32::from(reader.accesses > 3);
    }
    assert!(good > 100 && again > 10 && busy > 10, "{good} {again} {busy}");
}

/// Checksums of all lengths, going on from others, and of too much.
pub(crate) fn checksums(programs: &Programs) {
    let (crc, hash) =
        (programs.verified("checksum_crc32c"), programs.verified("checksum_xxhash64"));
    let memory = SeededRandom::new(5).bytes((1 << 20) + 64);
    let mut host = TestHost::new(vec![vec![], memory.clone()]);
    for bytes in [0, 1, 31, 32, 4_096, 1 << 20] {
        for start in [0, 0xdead_beef] {
            let buffer = HostWord::new(1, 13).unwrap();
            let parameters = Checksum { buffer, bytes, start }.to_bytes();
            let all = &memory[13..13 + bytes as usize];
            let done = call(&crc, &mut host, &parameters);
            assert_eq!(done.result(), i64::from(crc32c(all, start as u32)), "{bytes}");
            assert_eq!(done.accesses, 1);
            let done = call(&hash, &mut host, &parameters);
            assert_eq!(done.result() as u64, xxhash64(all, start), "{bytes}");
        }
    }
    let buffer = HostWord::new(1, 0).unwrap();
    let too_long = Checksum { buffer, bytes: (1 << 20) + 1, start: 0 }.to_bytes();
    for program in [&crc, &hash] {
        let done = call(program, &mut host, &too_long);
        assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 0));
    }
}
