//! Tests of mapped files, on ordinary memory.

use super::{PERSISTENT_LINE, PersistentMapping, WriteBack};
use rustix::fs::MemfdFlags;
use rustix::mm::MapFlags;
use std::fs::File;
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

fn file(bytes: u64) -> File {
    let file = File::from(rustix::fs::memfd_create("persistent", MemfdFlags::CLOEXEC).unwrap());
    file.set_len(bytes).unwrap();
    file
}

#[test]
fn memory_that_is_not_persistent_is_refused() {
    let refused = PersistentMapping::map(&file(4096)).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported);
}

/// Each instruction of this processor runs on ordinary memory, and changes nothing.
#[test]
fn stores_reach_the_file_with_each_instruction() {
    for line in WriteBack::all() {
        let file = file(4096);
        let mut mapping = PersistentMapping::with(&file, MapFlags::SHARED, line).unwrap();
        let bytes: Vec<u8> = (1..=200).collect();
        for at in [0, 1, PERSISTENT_LINE - 1, 3000, 4096 - 200] {
            mapping.store(at, &bytes).unwrap();
            mapping.write_back(at, 200).unwrap();
            mapping.fence();
            let (mut loaded, mut read) = ([0; 200], [0; 200]);
            mapping.load(at, &mut loaded).unwrap();
            file.read_exact_at(&mut read, at).unwrap();
            assert_eq!((&loaded[..], &read[..]), (&bytes[..], &bytes[..]), "{line:?} at {at}");
        }
    }
}

#[test]
fn non_temporal_stores_reach_the_file_at_any_alignment() {
    let file = file(4096);
    let line = WriteBack::all()[0];
    let mut mapping = PersistentMapping::with(&file, MapFlags::SHARED, line).unwrap();
    for (at, length) in [(0, 256), (8, 8), (3, 2), (5, 3), (5, 11), (63, 130), (4096 - 9, 9)] {
        let bytes: Vec<u8> = (1..=length).map(|value| value as u8 | 1).collect();
        file.write_all_at(&[0; 4096], 0).unwrap();
        mapping.store_non_temporal(at, &bytes).unwrap();
        mapping.fence();
        let mut read = [0; 4096];
        file.read_exact_at(&mut read, 0).unwrap();
        let (begin, end) = (at as usize, at as usize + bytes.len());
        assert_eq!(&read[begin..end], bytes, "{length} at {at}");
        assert!(
            read[..begin].iter().chain(&read[end..]).all(|byte| *byte == 0),
            "{length} at {at}"
        );
    }
    let outside = mapping.store_non_temporal(4090, &[1; 7]).unwrap_err();
    assert_eq!(outside.kind(), ErrorKind::InvalidInput);
}

#[test]
fn ranges_outside_are_refused() {
    let file = file(100);
    let line = WriteBack::all()[0];
    let mut mapping = PersistentMapping::with(&file, MapFlags::SHARED, line).unwrap();
    for (at, bytes) in [(100, 1), (99, 2), (u64::MAX, 1), (0, 101)] {
        let mut out = vec![0; bytes];
        let results = [
            mapping.store(at, &vec![1; bytes]),
            mapping.load(at, &mut out),
            mapping.write_back(at, bytes as u64),
        ];
        for result in results {
            assert_eq!(result.unwrap_err().kind(), ErrorKind::InvalidInput, "{bytes} B at {at}");
        }
    }
    assert!(mapping.write_back(0, 100).is_ok());
}
