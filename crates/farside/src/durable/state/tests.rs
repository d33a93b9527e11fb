//! Which bytes are logged, the form of records, and files: the rest is in `crates/sim/tests/memory_state.rs`.

use super::changes::{changes, not_zero};
use super::record::{RecordFault, StateRecord};
use super::{Allocation, MemoryState, StateIdentity, StateOptions};
use crate::durable::{RecordTag, check};
use crate::{Error, ErrorCode};
use farside_base::Random;
use farside_testkit::Folder;
use std::time::Duration;

#[test]
fn changes_are_the_least_granules_that_differ() {
    let old = [0; 200];
    let changed = |offset: u64, at: &[usize]| {
        let mut new = old;
        at.iter().for_each(|at| new[*at] = 1);
        changes(offset, &old, &new)
    };
    assert_eq!(changed(0, &[]), None);
    assert_eq!(changed(0, &[9]), Some((8..16, None)));
    assert_eq!(changed(3, &[0]), Some((3..8, None)), "a part of a granule");
    assert_eq!(changed(3, &[5]), Some((8..16, None)));
    assert_eq!(changed(0, &[0, 20]), Some((0..24, None)), "near");
    assert_eq!(changed(0, &[0, 199]), Some((0..8, Some(192..200))), "far");
    assert_eq!(changed(0, &[0, 90, 199]), Some((0..96, Some(192..200))), "the longest run");
    assert_eq!(changed(1 << 41, &[199]), Some(((1 << 41) + 192..(1 << 41) + 200, None)));
}

#[test]
fn changes_cover_all_that_differs() {
    let mut random = Random::new(5);
    for _ in 0..20_000 {
        let (offset, length) = (random.below(64), 1 + random.index(300));
        let old: Vec<u8> = (0..length).map(|_| random.byte()).collect();
        let mut new = old.clone();
        for _ in 0..random.below(5) {
            let at = random.index(length);
            new[at] ^= random.byte();
        }
        let mut made = old.clone();
        if let Some((first, second)) = changes(offset, &old, &new) {
            for range in std::iter::once(first).chain(second) {
                let range = (range.start - offset) as usize..(range.end - offset) as usize;
                assert!(!range.is_empty());
                made[range.clone()].copy_from_slice(&new[range]);
            }
        } else {
            assert_eq!(old, new);
        }
        assert_eq!(made, new);
    }
}

#[test]
fn zeros_are_left_out_at_both_ends() {
    for length in [0, 1, 63, 64, 65, 200, 256] {
        assert_eq!(not_zero(&vec![0; length]), 0..0);
        for first in 0..length {
            for last in [first, (first + length) / 2, length - 1] {
                let mut bytes = vec![0; length];
                (bytes[first], bytes[last]) = (1, 2);
                assert_eq!(not_zero(&bytes), first..last + 1, "of {length}");
            }
        }
    }
}

#[test]
fn records_survive_their_form() {
    let allocation = Allocation { bytes: 1000, lines: 2, class: 3 };
    let cluster = "pool".to_owned();
    let (first, second) = (&[1, 2, 3][..], &[4][..]);
    let records = [
        StateRecord::Identity(StateIdentity { cluster, node: 1, generation: 2, memory_bytes: 64 }),
        StateRecord::Directory { offset: 1, lines: 2 },
        StateRecord::Fresh { offset: 512, allocation },
        StateRecord::Freed { offset: 512 },
        StateRecord::Write { offset: 7, bytes: first },
        StateRecord::WriteTwo { offset: 7, first, second_offset: 100, second },
        StateRecord::PassBegin,
        StateRecord::Restated { offset: 512, allocation, bytes: first },
        StateRecord::RestatedBytes { offset: 9, bytes: second },
        StateRecord::PassEnd { begin: 3, restated: 4 },
    ];
    let mut kinds = Vec::new();
    for record in &records {
        let mut scratch = vec![9; 9];
        let (tag, payload) = record.encode(&mut scratch);
        assert_eq!(StateRecord::decode(tag, payload).as_ref(), Ok(record));
        kinds.push(tag.kind);
    }
    assert!(kinds.is_sorted() && kinds == (32..42).collect::<Vec<u8>>(), "{kinds:?}");
    let other = RecordTag { kind: 32, counter: 9, address: 64 };
    assert_eq!(StateRecord::decode(other, &[0; 9]), Err(RecordFault::Version(9)));
}

/// No bytes make decoding panic.
#[test]
fn random_records_are_decoded_or_refused() {
    let mut random = Random::new(1);
    for _ in 0..100_000 {
        let word = |random: &mut Random| random.word() >> random.below(64);
        let (counter, address) = (word(&mut random), word(&mut random));
        let tag = RecordTag { kind: 30 + random.below(14) as u8, counter, address };
        let payload: Vec<u8> = (0..random.below(40)).map(|_| random.byte() & 3).collect();
        let contents = super::Contents::new(1 << 12);
        if let Ok(record) = StateRecord::decode(tag, &payload) {
            let mut contents = contents;
            let origin = super::RecordOrigin::TrimmedLog;
            if contents.check(&record, origin).is_ok() {
                contents.apply(&record);
            }
        }
    }
}

#[test]
fn files_keep_the_state_and_admit_one_process() -> Result<(), Error> {
    let folder = Folder::new();
    let options = StateOptions::default().memory_bytes(1 << 20).segment_bytes(1 << 20);
    let (mut state, restored) = MemoryState::open(folder.folder(), &options)?;
    assert_eq!((restored.records, state.identity()), (0, None));
    let cluster = "pool".to_owned();
    let identity = StateIdentity { cluster, node: 1, generation: 1, memory_bytes: 1 << 20 };
    state.set_identity(identity.clone())?;
    state.allocated(1 << 16, Allocation { bytes: 1 << 17, lines: 2, class: 10 })?;
    state.set_directory(1 << 16, 2)?;
    let bytes: Vec<u8> = (0..1 << 17).map(|at: u32| (at / 3) as u8).collect();
    state.write(1 << 16, &bytes)?;
    let second = MemoryState::open(folder.folder(), &options).map(drop);
    assert_eq!(second.map_err(|error| error.code), Err(ErrorCode::StateInUse));
    state.begin_cleaning()?;
    while state.clean(1 << 20)? {
        let upto = state.log().watermarks().appended;
        state.log().commit(upto, Duration::from_secs(60))?;
    }
    assert_eq!(state.stats().passes, 1);
    state.close(Duration::from_secs(60))?;
    drop(state);
    let report = check(folder.folder())?;
    assert!(report.records > 5 && report.damaged_below.is_none());

    let (state, restored) = MemoryState::open(folder.folder(), &options)?;
    assert_eq!((state.identity(), state.directory()), (Some(&identity), Some((1 << 16, 2))));
    assert!(state.image()[1 << 16..3 << 16] == bytes);
    assert_eq!((restored.allocations, restored.allocated_bytes), (1, 1 << 17));
    Ok(())
}
