//! The table over the real memory: several nodes in this process, connected by shared memory.

use super::history::{HistoryEvent, KeyAction, contradiction, mixed};
use crate::dht::{Dht, DhtOptions, LookupStats, Lookups};
use farside::{Config, GlobalAddress, LineSize, Node};
use farside_testkit::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

fn config(name: &str) -> Config {
    Config::new(format!("dht-{name}-{}", std::process::id()))
        .memory_bytes(32 << 20)
        .cache_bytes(16 << 20)
}

pub(super) fn cluster(name: &str, count: usize) -> Vec<Node> {
    let mut nodes = vec![Node::create(&config(name)).unwrap()];
    nodes.extend((1..count).map(|_| Node::join(&config(name)).unwrap()));
    for node in &nodes {
        node.wait_for_members(count, Duration::from_secs(10)).unwrap();
    }
    nodes
}

pub(super) fn create(nodes: &[Node], record_line: usize) -> GlobalAddress {
    let options = DhtOptions {
        nodes: nodes.iter().map(Node::id).collect(),
        partitions: 4,
        record_line: LineSize::from_bytes(record_line).unwrap(),
        seed: 7,
        ..DhtOptions::default()
    };
    Dht::create(&mut nodes[0].session().unwrap(), &options).unwrap().root()
}

/// Runs `body` on each node at once.
fn on_each<T: Send>(nodes: &[Node], body: impl Fn(usize, &Node) -> T + Sync) -> Vec<T> {
    std::thread::scope(|scope| {
        let body = &body;
        let threads: Vec<_> = nodes
            .iter()
            .enumerate()
            .map(|(number, node)| scope.spawn(move || body(number, node)))
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[test]
fn puts_of_all_nodes_are_found_after_growth() {
    const EACH: u32 = 6_000;
    let nodes = cluster("grow", 3);
    let root = create(&nodes, 512);
    let key = |number: u32| format!("user{number}").into_bytes();
    let value = |number: u32| number.to_le_bytes().repeat(1 + number as usize % 200);
    on_each(&nodes, |number, node| {
        let mut session = node.session().unwrap();
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut dht = dht.with(&mut session);
        let mut out = Vec::new();
        for index in 0..EACH {
            let index = 3 * index + number as u32;
            assert!(dht.put(&key(index), &value(index)).unwrap());
            if index.is_multiple_of(3) {
                assert!(dht.get(&key(index / 2), &mut out).is_ok());
            }
        }
    });
    let reports = on_each(&nodes, |_, node| {
        let mut session = node.session().unwrap();
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut dht = dht.with(&mut session);
        let mut out = Vec::new();
        for index in 0..3 * EACH {
            assert!(dht.get(&key(index), &mut out).unwrap(), "key {index}");
            assert!(out == value(index), "key {index}");
        }
        dht.scan_all(|_, value| assert!(value.len() >= 4)).unwrap()
    });
    for report in reports {
        assert_eq!((report.records, report.lost_records), (u64::from(3 * EACH), 0));
    }
}

#[test]
fn histories_of_concurrent_nodes_are_linearizable() {
    for (round, line) in [64, 512].into_iter().enumerate() {
        let nodes = cluster(&format!("history{round}"), 3);
        check_histories(&nodes, line, |_| None);
    }
}

/// Runs all nodes on the same keys and checks the histories; GETs use calls if `lookups` returns executors.
pub(super) fn check_histories(
    nodes: &[Node],
    line: usize,
    lookups: impl Fn(&Node) -> Option<Lookups> + Sync,
) -> Vec<LookupStats> {
    let root = create(nodes, line);
    let clock = AtomicU64::new(0);
    let (events, looked): (Vec<_>, Vec<_>) = on_each(nodes, |number, node| {
        let mut session = node.session().unwrap();
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut random = Random::new(number as u64);
        let now = || clock.fetch_add(1, Ordering::SeqCst);
        let mut lookups = lookups(node);
        let events: Vec<_> = (0..6_000)
            .map(|_| {
                let mut handle = match &mut lookups {
                    Some(lookups) => dht.with_calls(&mut session, lookups),
                    None => dht.with(&mut session),
                };
                operate(&mut handle, &mut random, now)
            })
            .collect();
        (events, lookups.map_or_else(LookupStats::default, |lookups| lookups.stats()))
    })
    .into_iter()
    .unzip();
    let mut of_key = vec![Vec::new(); KEYS];
    for event in events.into_iter().flatten() {
        of_key[event.key].push(event);
    }
    for (key, events) in of_key.iter_mut().enumerate() {
        events.sort_by_key(|event: &HistoryEvent| event.called);
        if let Some(why) = contradiction_in_pieces(events) {
            panic!("lines of {line}, key {key}: {why}");
        }
    }
    looked
}

const KEYS: usize = 60;

fn operate(
    dht: &mut crate::dht::Handle<'_>,
    random: &mut Random,
    now: impl Fn() -> u64,
) -> HistoryEvent {
    let key = random.below(KEYS as u64) as usize;
    let number = random.word() >> 8;
    let repeats = [1, 5, 60, 200][random.below(4) as usize];
    let bytes = |number: u64| number.to_le_bytes().repeat(repeats);
    let number_of = |bytes: &[u8]| {
        assert!(bytes.chunks(8).all(|chunk| chunk == &bytes[..8]), "a torn value");
        u64::from_le_bytes(bytes[..8].try_into().unwrap())
    };
    let name = format!("key{key}").into_bytes();
    let called = now();
    let action = match random.below(16) {
        0..6 => {
            let mut out = Vec::new();
            let found = dht.get(&name, &mut out).unwrap();
            KeyAction::Get(found.then(|| number_of(&out)))
        }
        6..9 => KeyAction::Put(number, dht.put(&name, &bytes(number)).unwrap()),
        9 => KeyAction::PutIfAbsent(number, dht.put_if_absent(&name, &bytes(number)).unwrap()),
        10 => KeyAction::Delete(dht.delete(&name).unwrap()),
        _ => {
            let mut after = None;
            let found = dht.update(&name, |value| {
                let new = mixed(number_of(value), number);
                after = Some(new);
                *value = bytes(new);
            });
            KeyAction::Update(number, after.filter(|_| found.unwrap()))
        }
    };
    HistoryEvent { key, action, called, returned: Some(now()) }
}

/// Splits a long history at times without operations in flight: each piece begins with the possible values
/// at its start, which are those that the previous piece can end with.
fn contradiction_in_pieces(events: &[HistoryEvent]) -> Option<String> {
    let mut starts = vec![None];
    let mut rest = events;
    while !rest.is_empty() {
        let mut latest = 0;
        let cut = rest.iter().enumerate().position(|(index, event)| {
            let quiet = index >= 8 && event.called > latest;
            latest = latest.max(event.returned.unwrap_or(u64::MAX));
            quiet
        });
        let (piece, further) = rest.split_at(cut.unwrap_or(rest.len()));
        let ends: Vec<_> =
            starts.iter().flat_map(|start| super::history::ends(piece, *start)).collect();
        if ends.is_empty() {
            return contradiction(piece).or(Some(format!("from {starts:?}: {piece:#?}")));
        }
        starts = ends;
        starts.sort_unstable();
        starts.dedup();
        rest = further;
    }
    None
}

#[test]
fn leaving_node_takes_only_its_keys() {
    let mut nodes = cluster("leave", 3);
    let root = create(&nodes, 512);
    let keys: Vec<_> = (0..3_000_u32).map(|n| n.to_le_bytes()).collect();
    on_each(&nodes, |number, node| {
        let mut session = node.session().unwrap();
        let mut dht = Dht::open(&mut session, root).unwrap();
        for key in keys.iter().skip(number).step_by(3) {
            dht.with(&mut session).put(key, key).unwrap();
        }
    });
    nodes.pop().unwrap().leave().unwrap();
    for node in &nodes {
        node.wait_for_members(2, Duration::from_secs(10)).unwrap();
    }
    let counts = on_each(&nodes, |_, node| {
        let mut session = node.session().unwrap();
        let mut dht = Dht::open(&mut session, root).unwrap();
        let mut dht = dht.with(&mut session);
        let mut out = Vec::new();
        let mut alive = 0_u64;
        for key in &keys {
            match dht.get(key, &mut out) {
                Ok(found) => {
                    assert!(found && out == key);
                    alive += 1;
                }
                Err(error) => assert!(error.is_lost(), "{error}"),
            }
        }
        let report = dht.scan_all(|_, _| {}).unwrap();
        assert_eq!(report.records, alive);
        assert!(report.lost_buckets > 0 && report.lost_records > 0, "{report:?}");
        alive
    });
    // A key survives if its bucket and its record do, each at two of three nodes.
    assert!(counts.iter().all(|alive| (900..1_800).contains(alive)), "{counts:?}");
    let mut session = nodes[1].session().unwrap();
    let mut dht = Dht::open(&mut session, root).unwrap();
    let mut dht = dht.with(&mut session);
    assert!(dht.forget_lost().unwrap() > 0);
    let lost = keys.iter().filter(|key| dht.put(*key, *key).is_err()).count();
    assert!((500..1_700).contains(&lost), "what is left is lost with its bucket: {lost}");
}
