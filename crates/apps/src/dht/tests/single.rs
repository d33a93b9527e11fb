//! One user: each operation, at every size and next to other users' memory.

use super::super::error::DhtError;
use super::super::layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use super::model::{Death, ModelSession, Rules, alone};
use super::{create, crowded_keys, open, shape};
use crate::dht::table::{Sought, TableAccess};
use farside::ErrorCode;
use farside_testkit::Random;
use std::collections::HashMap;

fn fresh() -> (ModelSession, TableAccess) {
    let mut session = alone(5, Rules::CALM);
    let table = create(&mut session, &shape(2, 512), 3);
    (session, table)
}

fn value_of(session: &mut ModelSession, table: &mut TableAccess, key: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![9; 3];
    let found = table.get(session, key, &mut out).unwrap();
    assert!(found || out == [9; 3], "without a record the buffer stays as it was");
    found.then_some(out)
}

#[test]
fn put_get_delete() {
    let (mut session, mut table) = fresh();
    let s = &mut session;
    assert_eq!(value_of(s, &mut table, b"a"), None);
    assert!(table.put(s, b"a", b"one", true).unwrap());
    assert_eq!(value_of(s, &mut table, b"a").unwrap(), b"one");
    assert!(!table.put(s, b"a", b"two", true).unwrap());
    assert!(!table.put(s, b"a", b"three", false).unwrap(), "put_if_absent finds it");
    assert_eq!(value_of(s, &mut table, b"a").unwrap(), b"two");
    assert!(table.update(s, b"a", |value| value.push(b'!')).unwrap());
    assert_eq!(value_of(s, &mut table, b"a").unwrap(), b"two!");
    assert!(table.delete(s, b"a").unwrap());
    assert!(!table.delete(s, b"a").unwrap());
    assert!(!table.update(s, b"a", |_| unreachable!("there is nothing to change")).unwrap());
    assert_eq!(value_of(s, &mut table, b"a"), None);
}

#[test]
fn every_size_of_key_and_value_comes_back() {
    let (mut session, mut table) = fresh();
    let keys = [1, 7, 8, 16, 17, 48, 49, 495, 496, 497, 512, 4_000, KEY_BYTES_MAX];
    let values = [0, 1, 100, 480, 495, 496, 1_000, 4_096, 130_000, 3 << 20];
    let mut random = Random::new(3);
    for key_bytes in keys {
        for value_bytes in values {
            let key: Vec<u8> = (0..key_bytes).map(|_| random.word() as u8).collect();
            let value = vec![random.word() as u8; value_bytes];
            table.put(&mut session, &key, &value, true).unwrap();
            let found = value_of(&mut session, &mut table, &key);
            assert!(found == Some(value), "key of {key_bytes}, value of {value_bytes}");
        }
    }
}

#[test]
fn bad_sizes_are_refused() {
    let (mut session, mut table) = fresh();
    let long = vec![0; KEY_BYTES_MAX + 1];
    for key in [&[][..], &long] {
        let refused = Err(DhtError::KeySize(key.len()));
        assert_eq!(table.get(&mut session, key, &mut Vec::new()), refused);
        assert_eq!(table.put(&mut session, key, b"", true), refused);
        assert_eq!(table.delete(&mut session, key), refused);
    }
    let huge = vec![0; VALUE_BYTES_MAX + 1];
    let refused = Err(DhtError::ValueSize(huge.len()));
    assert_eq!(table.put(&mut session, b"k", &huge, true), refused);
    table.put(&mut session, b"k", b"v", true).unwrap();
    let grown = table.update(&mut session, b"k", |value| value.resize(VALUE_BYTES_MAX + 1, 0));
    assert_eq!(grown, refused);
    assert_eq!(value_of(&mut session, &mut table, b"k").unwrap(), b"v");
}

/// Random operations against a `HashMap`, with values that cross every size boundary. Two users alternate,
/// so that each meets the other's splits with a stale directory.
#[test]
fn equals_a_map() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let mut session = alone(seed, Rules::CALM);
        let line = [64, 128, 512][seed as usize % 3];
        let first = create(&mut session, &shape(1, line), 3);
        let second = open(&mut session, first.root, 2).unwrap();
        let mut tables = [first, second];
        let mut map: HashMap<Vec<u8>, Vec<u8>> = HashMap::new();
        for _ in 0..6_000 {
            let key = format!("key{}", random.below(1_500)).into_bytes();
            let value = vec![random.word() as u8; random.below(3 * line as u64) as usize];
            let table = &mut tables[random.below(2) as usize];
            let s = &mut session;
            match random.below(8) {
                0..3 => {
                    let new = map.insert(key.clone(), value.clone()).is_none();
                    assert_eq!(table.put(s, &key, &value, true), Ok(new), "seed {seed}");
                }
                3 => {
                    let new = !map.contains_key(&key);
                    map.entry(key.clone()).or_insert(value.clone());
                    assert_eq!(table.put(s, &key, &value, false), Ok(new), "seed {seed}");
                }
                4 => {
                    let was = map.remove(&key).is_some();
                    assert_eq!(table.delete(s, &key), Ok(was), "seed {seed}");
                }
                5 => {
                    let found = map.get_mut(&key).map(|old| old.extend(&value)).is_some();
                    let update = table.update(s, &key, |old| old.extend(&value));
                    assert_eq!(update, Ok(found), "seed {seed}");
                }
                _ => assert_eq!(value_of(s, table, &key), map.get(&key).cloned(), "seed {seed}"),
            }
        }
        let mut left = map.clone();
        let report = tables[0]
            .scan(&mut session, |key, value| {
                assert_eq!(left.remove(key).as_deref(), Some(value), "seed {seed}");
            })
            .unwrap();
        assert!(left.is_empty(), "seed {seed}: the scan left out {left:?}");
        assert_eq!((report.records, report.lost_records), (map.len() as u64, 0));
        let estimate = tables[1].len_estimate(&mut session, 400).unwrap() as f64;
        let error = (estimate / map.len() as f64 - 1.0).abs();
        assert!(error < 0.15, "seed {seed}: {estimate} for {}", map.len());
    }
}

#[test]
fn destroy_frees_all_memory() {
    let mut session = alone(1, Rules::CALM);
    let mut table = create(&mut session, &shape(1, 128), 3);
    for number in 0..3_000_u32 {
        let value = vec![1; number as usize % 300];
        table.put(&mut session, &number.to_le_bytes(), &value, true).unwrap();
    }
    table.destroy(&mut session).unwrap();
    assert_eq!(session.allocated_bytes(), 0);
    assert_eq!(open(&mut session, table.root, 1).unwrap_err(), DhtError::NotATable(table.root));
}

#[test]
fn deleted_records_are_freed_or_reused() {
    let mut session = alone(1, Rules::CALM);
    let mut table = create(&mut session, &shape(1, 128), 3);
    let before = session.allocated_bytes();
    for round in 0..4 {
        for number in 0..150_u32 {
            table.put(&mut session, &number.to_le_bytes(), &[7; 600], true).unwrap();
        }
        for number in 0..150_u32 {
            assert!(table.delete(&mut session, &number.to_le_bytes()).unwrap(), "round {round}");
        }
    }
    let most = 3 * 64 * 640;
    assert!(session.allocated_bytes() - before <= most, "64 spare, that wait, and to be freed");
    table.drain_pool(&mut session).unwrap();
    assert_eq!(session.allocated_bytes(), before);
}

#[test]
fn full_memory_is_an_error_and_recovers() {
    let rules = Rules { node_bytes: 64 << 10, ..Rules::CALM };
    let mut session = alone(1, rules);
    let mut table = create(&mut session, &shape(2, 512), 3);
    let key = |number: u32| number.to_le_bytes();
    let put = |table: &mut TableAccess, session: &mut ModelSession, n| {
        table.put(session, &key(n), &[n as u8; 400], true)
    };
    let full = (0_u32..).find(|n| put(&mut table, &mut session, *n).is_err()).unwrap();
    let error = put(&mut table, &mut session, full).unwrap_err();
    assert_eq!(error.code(), ErrorCode::OutOfMemory);
    for number in 0..full {
        let value = value_of(&mut session, &mut table, &key(number));
        assert_eq!(value, Some(vec![number as u8; 400]), "{number} of {full}");
    }
    assert!(table.delete(&mut session, &key(0)).unwrap());
    assert_eq!(put(&mut table, &mut session, full), Ok(true));
}

#[test]
fn dead_node_takes_only_its_keys() {
    let mut session = alone(9, Rules::CALM);
    let mut table = create(&mut session, &shape(4, 512), 3);
    let keys: Vec<_> = (0..2_000_u32).map(|n| n.to_le_bytes()).collect();
    for key in &keys {
        table.put(&mut session, key, key, true).unwrap();
    }
    session.kill(Death::Node(0));
    let mut late = open(&mut session, table.root, 7).unwrap();
    let mut out = Vec::new();
    let mut alive = 0;
    for key in &keys {
        match late.get(&mut session, key, &mut out) {
            Ok(found) => {
                assert!(found && out == key);
                assert!(!late.put(&mut session, key, key, true).unwrap());
                alive += 1;
            }
            Err(error) => {
                assert_eq!(error.code(), ErrorCode::NodeLost);
                assert!(late.put(&mut session, key, key, true).unwrap_err().is_lost());
                assert!(late.delete(&mut session, key).unwrap_err().is_lost());
            }
        }
    }
    assert!((1_200..1_500).contains(&alive), "about two thirds live: {alive}");
    let report = late.scan(&mut session, |_, _| {}).unwrap();
    assert_eq!(report.records, alive);
    assert!(report.lost_buckets > 0 && report.first_error.unwrap().is_lost());
}

/// Records at a node that dies, with their buckets elsewhere: the keys fail until the lost entries are
/// forgotten, then they can be put again.
#[test]
fn lost_records_can_be_forgotten() {
    let mut session = alone(9, Rules { node_bytes: 128 << 10, nodes: 2, ..Rules::CALM });
    let mut table = create(&mut session, &shape(2, 512), 2);
    let first = (0..1_000_u32).map(|n| n.to_le_bytes()).collect::<Vec<_>>();
    // The session is at node 1; when that is full, records go to node 0.
    for key in first.iter().take(340) {
        table.put(&mut session, key, &[1; 300], true).unwrap();
    }
    session.kill(Death::Node(0));
    let lost: Vec<_> = first[..340]
        .iter()
        .filter(|key| table.get(&mut session, *key, &mut Vec::new()).is_err())
        .collect();
    let report = table.scan(&mut session, |_, _| {}).unwrap();
    assert!(report.lost_records > 20, "{report:?}");
    assert_eq!(table.forget_lost(&mut session), Ok(report.lost_records));
    let back =
        lost.iter().filter(|key| table.get(&mut session, **key, &mut Vec::new()) == Ok(false));
    assert_eq!(back.count() as u64, report.lost_records);
}

#[test]
fn keys_of_one_tag_are_distinguished() {
    // Two keys of one bucket and one tag, by the birthday bound among 20,000 of each bucket.
    let shape = shape(1, 512);
    let mut seen = HashMap::new();
    let pair = crowded_keys(40_000, 1).into_iter().find_map(|key| {
        let hash = super::hash(&key, shape.seed);
        let place = (super::bucket_index(hash), shape.tag(hash));
        seen.insert(place, key.clone()).map(|other| [key, other])
    });
    let [a, b] = pair.expect("two of 20,000 keys of a bucket share a tag of 24 bits");
    let mut session = alone(1, Rules::CALM);
    let mut table = create(&mut session, &shape, 3);
    assert!(table.put(&mut session, &a, b"a", true).unwrap());
    assert_eq!(value_of(&mut session, &mut table, &b), None);
    assert!(table.put(&mut session, &b, b"b", false).unwrap());
    assert_eq!(value_of(&mut session, &mut table, &a).unwrap(), b"a");
    assert_eq!(value_of(&mut session, &mut table, &b).unwrap(), b"b");
    let report = table.scan(&mut session, |_, _| {}).unwrap();
    assert_eq!(report.records, 2);
    assert!(table.delete(&mut session, &a).unwrap());
    assert_eq!(value_of(&mut session, &mut table, &b).unwrap(), b"b");
}

/// Sixteen keys of one hash, which only knowledge of the seed allows: they split down to the last bit.
#[test]
fn too_many_keys_of_one_hash_are_an_error() {
    let (mut session, mut table) = fresh();
    let keys: Vec<_> = (0..16_u8).map(|number| vec![b'k', number]).collect();
    for (number, key) in keys.iter().enumerate() {
        let hash = 0x1234_5678_9abc_def0;
        let sought = Sought { key, hash, tag: table.shape.tag(hash) };
        let put = table.put_with(&mut session, &sought, key, true, &mut None);
        let wanted = if number < 15 { Ok(true) } else { Err(DhtError::BucketFull) };
        assert_eq!(put, wanted, "key {number}");
    }
    let mut seen = Vec::new();
    table.scan(&mut session, |key, _| seen.push(key.to_vec())).unwrap();
    seen.sort();
    assert_eq!(seen, keys[..15]);
}

#[test]
fn table_moves_between_threads() {
    fn is_send<T: Send>() {}
    is_send::<crate::dht::Dht>();
}

#[test]
fn foreign_address_is_no_table() {
    let (mut session, table) = fresh();
    let inside = table.root.checked_add(64).unwrap();
    assert_eq!(open(&mut session, inside, 1).unwrap_err(), DhtError::NotATable(inside));
}

#[test]
fn foreign_bytes_are_damage_not_a_panic() {
    use crate::dht::layout::bucket_address;
    use crate::dht::space::Space;
    let mut random = Random::new(4);
    for seed in 0..40 {
        let mut session = alone(seed, Rules::CALM);
        let mut table = create(&mut session, &shape(1, 64), 1);
        let keys = crowded_keys(24, 1);
        for key in &keys {
            table.put(&mut session, key, &[5; 200], true).unwrap();
        }
        let segment = table.directory.lookup(0);
        let bucket = bucket_address(segment, 3).unwrap();
        for _ in 0..30 {
            let at = bucket.checked_add(random.below(256)).unwrap();
            session.write(at, &[random.word() as u8]).unwrap();
        }
        session.fence().unwrap();
        for key in &keys {
            let _ = table.get(&mut session, key, &mut Vec::new());
            let _ = table.put(&mut session, key, &[6; 200], true);
            let _ = table.delete(&mut session, key);
        }
        let _ = table.scan(&mut session, |_, _| {});
    }
}
