//! A process that is killed while it works on a hash table: the others continue, get their keys or typed
//! errors, and complete its operations.
//!
//! The test executable starts itself again as the other node: the child joins the cluster, opens the table with the given root, and works until it is killed.

use farside::{Config, GlobalAddress, Node};
use farside_apps::dht::{Dht, DhtOptions, Handle};
use farside_apps::ycsb::WorkloadRandom;
use farside_testkit::{Process, role, say};
use std::time::Duration;

/// Keys that both processes use, and keys that only one does.
const SHARED: u64 = 1_500;
const OWN: u64 = 1_500;

fn config(cluster: &str) -> Config {
    Config::new(cluster).memory_bytes(64 << 20).cache_bytes(16 << 20)
}

fn value(key: &[u8], repeats: u64) -> Vec<u8> {
    key.repeat(1 + repeats as usize)
}

/// Whether a value may have been put for the key.
fn belongs(key: &[u8], value: &[u8]) -> bool {
    !value.is_empty()
        && value.len().is_multiple_of(key.len())
        && value.chunks(key.len()).all(|part| part == key)
}

/// Puts, updates and deletes until killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let node = Node::join(&config(&role[0])).unwrap();
    let root: u64 = role[1].parse().unwrap();
    let mut session = node.session().unwrap();
    let mut dht = Dht::open(&mut session, GlobalAddress::from_bits(root).unwrap()).unwrap();
    let mut dht = dht.with(&mut session);
    let mut random = WorkloadRandom::new(3);
    for turn in 0_u64.. {
        let key = match random.bits() % 4 {
            0 => format!("child{:06}", turn).into_bytes(),
            _ => format!("shared{:06}", random.bits() % SHARED).into_bytes(),
        };
        match random.bits() % 4 {
            0 => drop(dht.delete(&key).unwrap()),
            1 => drop(dht.update(&key, |old| *old = value(&key, 60)).unwrap()),
            _ => drop(dht.put(&key, &value(&key, random.bits() % 80)).unwrap()),
        }
        if turn == 2_000 {
            say("working");
        }
    }
}

#[test]
fn a_killed_process_leaves_a_table_that_works() {
    let cluster = format!("dht-kill-{}", std::process::id());
    let node = Node::create(&config(&cluster)).unwrap();
    let mut session = node.session().unwrap();
    // All buckets are at this node: the other's death loses only what it owned or was home of.
    let options = DhtOptions { nodes: vec![node.id()], seed: 7, ..DhtOptions::default() };
    let mut dht = Dht::create(&mut session, &options).unwrap();
    let root = dht.root();
    let mut dht = dht.with(&mut session);
    let own = |number: u64| format!("own{number:06}").into_bytes();
    for number in 0..OWN {
        dht.put(&own(number), &value(&own(number), number % 90)).unwrap();
    }
    let mut child = Process::child(&format!("{cluster} {}", root.to_bits()));
    child.hear("working");
    node.wait_for_members(2, Duration::from_secs(20)).unwrap();
    let mut random = WorkloadRandom::new(4);
    for _ in 0..2_000 {
        let key = format!("shared{:06}", random.bits() % SHARED).into_bytes();
        dht.put(&key, &value(&key, random.bits() % 80)).unwrap();
    }
    drop(child);

    let (mut alive, mut lost) = (0, 0);
    let mut out = Vec::new();
    for number in 0..OWN {
        let key = own(number);
        match dht.get(&key, &mut out) {
            Ok(found) => {
                assert!(found && out == value(&key, number % 90), "own{number}");
                alive += 1;
            }
            Err(error) => {
                assert!(error.is_lost(), "{error}");
                lost += 1;
            }
        }
    }
    assert!(alive > 0, "all {lost} keys lost");
    for number in 0..SHARED {
        let key = format!("shared{number:06}").into_bytes();
        match dht.get(&key, &mut out) {
            Ok(found) => assert!(!found || belongs(&key, &out), "shared{number}: {out:?}"),
            Err(error) => assert!(error.is_lost(), "{error}"),
        }
    }
    dht.forget_lost().unwrap();
    grow(&mut dht);
}

/// New keys grow the table past the operations that the dead process left incomplete.
fn grow(dht: &mut Handle<'_>) {
    let mut out = Vec::new();
    let mut added = 0;
    for number in 0..6_000_u64 {
        let key = format!("new{number:06}").into_bytes();
        match dht.put(&key, &value(&key, 2)) {
            Ok(new) => {
                assert!(new);
                added += 1;
                assert!(dht.get(&key, &mut out).unwrap() && out == value(&key, 2));
            }
            Err(error) => assert!(error.is_lost(), "{error}"),
        }
    }
    // How many buckets the dead process changed last is random.
    assert!(added > 0, "none of 6,000 new keys");
    let report = dht.scan_all(|key, value| assert!(belongs(key, value))).unwrap();
    assert!(report.records >= added);
    assert_eq!(report.lost_records, 0, "they were forgotten");
}
