//! Tables over shared memory and TCP.

use super::*;
use crate::dht::tests::history::{HistoryEvent, KeyAction, contradiction};
use crate::fabrics::{Make, make};
use farside::onesided::{LendOptions, MemoryClientOptions, MemoryServer, RemoteMemory};
use farside_testkit::{Random, WATCHDOG, unique_name};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};

mod hot;

farside_testkit::on_each_fabric! { mem shm tcp => (
    table_is_a_map
    clients_see_each_other
    operations_keep_their_requests
    wrong_use_is_refused
) with crate::fabrics::make }

fn options() -> TableOptions {
    let (lease, grace) = (Duration::from_secs(20), Duration::from_millis(50));
    TableOptions { heap: HeapOptions::default().clients(8).lease(lease).grace(grace) }
}

/// Memories, whose servers do nothing.
struct Memories<'a> {
    make: &'a Make,
    servers: Vec<MemoryServer>,
    /// Whether all requests are posted, so that doorbells can be counted.
    posts_all: bool,
}

impl<'a> Memories<'a> {
    fn new(make: &'a Make, count: usize, bytes: u64) -> Self {
        let lend = |_| {
            let (name, options) = (unique_name("table"), LendOptions::default());
            MemoryServer::lend(&make(), &name, bytes, &options).unwrap()
        };
        Self { make, servers: (0..count).map(lend).collect(), posts_all: false }
    }

    fn client(&self) -> (MemoryClient, Vec<RemoteAddress>) {
        let options = MemoryClientOptions::default().in_call(!self.posts_all);
        let mut client = MemoryClient::new(&(self.make)(), &options).unwrap();
        let open = |server: &MemoryServer| client.open(server.address(), WATCHDOG).unwrap();
        let memories: Vec<RemoteMemory> = self.servers.iter().map(open).collect();
        (client, memories.into_iter().map(|memory| memory.at(64)).collect())
    }

    fn create(&self) -> (MemoryClient, RemoteTable) {
        let (mut client, places) = self.client();
        let table = RemoteTable::create(&mut client, &places, &options(), WATCHDOG).unwrap();
        (client, table)
    }

    fn open(&self) -> (MemoryClient, RemoteTable) {
        let (mut client, places) = self.client();
        let table = RemoteTable::open(&mut client, &places, WATCHDOG).unwrap();
        (client, table)
    }
}

fn key(number: u64) -> Vec<u8> {
    format!("key {number}").repeat(1 + number as usize % 3).into_bytes()
}

/// Random operations of two clients of two memories, through many splits.
fn table_is_a_map(make: &Make) {
    const KEYS: u64 = 3000;
    let memories = Memories::new(make, 2, 16 << 20);
    let mut ends = [memories.create(), memories.open()];
    let (mut map, mut random) = (BTreeMap::new(), Random::new(11));
    for _ in 0..12_000 {
        let (client, table) = &mut ends[random.below(2) as usize];
        let key = key(random.below(KEYS));
        match random.below(8) {
            0..4 => {
                let value = vec![random.below(256) as u8; random.below(200) as usize];
                table.put(client, &key, &value, WATCHDOG).unwrap();
                map.insert(key, value);
            }
            4 => {
                let removed = table.delete(client, &key, WATCHDOG).unwrap();
                assert_eq!(removed, map.remove(&key).is_some());
            }
            _ => {
                let value = table.get(client, &key, WATCHDOG).unwrap();
                assert_eq!(value.as_ref(), map.get(&key), "{}", String::from_utf8_lossy(&key));
            }
        }
    }
    assert!(ends.iter().map(|(_, table)| table.splits()).sum::<u64>() > 4, "too few splits");
    // A client that knows nothing finds all of it.
    let (mut client, mut table) = memories.open();
    for number in 0..KEYS {
        let value = table.get(&mut client, &key(number), WATCHDOG).unwrap();
        assert_eq!(value.as_ref(), map.get(&key(number)));
    }
    let names: Vec<Vec<u8>> = (0..KEYS).map(key).collect();
    let names: Vec<&[u8]> = names.iter().map(Vec::as_slice).collect();
    let values = table.get_many(&mut client, &names, WATCHDOG).unwrap();
    assert!(names.iter().zip(&values).all(|(name, value)| value.as_ref() == map.get(*name)));
    for (mut client, table) in ends {
        table.close(&mut client, WATCHDOG).unwrap();
    }
}

fn clients_see_each_other(make: &Make) {
    let memories = Memories::new(make, 1, 4 << 20);
    let (mut first, mut table) = memories.create();
    let (mut second, mut other) = memories.open();
    for round in 0..50_u64 {
        table.put(&mut first, b"key", &round.to_le_bytes(), WATCHDOG).unwrap();
        // Remembers the place of the value before.
        let seen = other.get(&mut second, b"key", WATCHDOG).unwrap();
        assert_eq!(seen.as_deref(), Some(&round.to_le_bytes()[..]));
        if round % 5 == 4 {
            assert!(other.delete(&mut second, b"key", WATCHDOG).unwrap());
            assert_eq!(table.get(&mut first, b"key", WATCHDOG), Ok(None));
        }
    }
    // Large and empty ones.
    for bytes in [0, 1, 5000, 40_000, 65_280 - 24 - 3] {
        let value = vec![7; bytes];
        table.put(&mut first, b"key", &value, WATCHDOG).unwrap();
        assert_eq!(other.get(&mut second, b"key", WATCHDOG), Ok(Some(value)));
    }
}

/// Work requests of operations, after a first one of each size of entry.
fn operations_keep_their_requests(make: &Make) {
    let memories = Memories { posts_all: true, ..Memories::new(make, 1, 4 << 20) };
    let (mut client, mut table) = memories.create();
    let (mut other, mut reader) = memories.open();
    for name in [b"warm up", b"present"] {
        table.put(&mut client, name, b"value", WATCHDOG).unwrap();
    }
    let requests = |client: &MemoryClient| (client.stats().work_requests, client.stats().doorbells);
    let count =
        |what: &str, expected: (u64, u64), table: &mut RemoteTable, client: &mut MemoryClient| {
            let before = requests(client);
            match what {
                "get" => drop(table.get(client, b"present", WATCHDOG).unwrap()),
                "miss" => drop(table.get(client, b"absent!", WATCHDOG).unwrap()),
                "insert" => table.put(client, b"another", b"value", WATCHDOG).unwrap(),
                "delete" => drop(table.delete(client, b"another", WATCHDOG).unwrap()),
                _ => table.put(client, b"present", b"other", WATCHDOG).unwrap(),
            }
            let now = requests(client);
            assert_eq!((now.0 - before.0, now.1 - before.1), expected, "{what}");
        };
    count("get", (2, 2), &mut reader, &mut other); // bucket, entry
    count("get", (2, 1), &mut reader, &mut other); // entry and slot
    count("miss", (1, 1), &mut reader, &mut other); // bucket
    count("update", (2, 1), &mut table, &mut client); // entry and slot
    count("insert", (6, 5), &mut table, &mut client); // entry and bucket; bucket; gate; slot; gate, without a wait
    count("delete", (3, 3), &mut table, &mut client); // bucket, entry, slot
}

fn wrong_use_is_refused(make: &Make) {
    let memories = Memories::new(make, 2, 2 << 20);
    let (mut client, mut table) = memories.create();
    let large = table.put(&mut client, b"key", &[0; 65_280], WATCHDOG);
    assert_eq!(large, Err(TableError::TooLarge(65_283, 65_256)));
    table.put(&mut client, b"", b"an empty key", WATCHDOG).unwrap();
    assert!(table.get(&mut client, b"", WATCHDOG).unwrap().is_some());
    let full =
        (0..).find_map(|number| table.put(&mut client, &key(number), &[1; 30_000], WATCHDOG).err());
    assert_eq!(full.map(|error| error.code()), Some(ErrorCode::OutOfMemory));
    assert!(table.get(&mut client, &key(0), WATCHDOG).unwrap().is_some());
    assert!(table.delete(&mut client, &key(0), WATCHDOG).unwrap());

    let (mut client, places) = memories.client();
    let again = RemoteTable::create(&mut client, &places, &options(), WATCHDOG).map(drop);
    assert_eq!(again, Err(TableError::Exists));
    for wrong in [vec![places[1], places[0]], vec![places[0]], Vec::new()] {
        let opened = RemoteTable::open(&mut client, &wrong, WATCHDOG).map(drop);
        assert_eq!(opened, Err(TableError::NotATable));
    }
}

thread_local! {
    /// Decides when a client lets the others in.
    static PAUSES: RefCell<Option<Random>> = const { RefCell::new(None) };
}

/// The fault of a test: a client that pauses for a short time at random.
pub(super) fn let_others_in() {
    let pause =
        PAUSES.with_borrow_mut(|random| random.as_mut().map_or(0, |random| random.below(16)));
    match pause {
        1 => std::thread::park_timeout(Duration::from_micros(50)),
        2..6 => std::thread::yield_now(),
        _ => {}
    }
}

/// Histories of a few keys of one bucket by several clients that pause between any two requests: each history has one order that explains it.
#[test]
fn operations_on_a_key_are_linearizable() {
    const OPERATIONS: u64 = 250;
    const KEYS: usize = 3;
    let (mut splits, make) = (0, make("shm"));
    for seed in 1..=12_u64 {
        let memories = Memories::new(&make, 1, 16 << 20);
        let clock = AtomicU64::new(0);
        let (_creator, table) = memories.create();
        let of_bucket = |number: &u64| table.cold.lookup(&number.to_le_bytes()).hash.bucket() == 3;
        // The first ones have histories, the others make the bucket split.
        let keys: Vec<u64> = (0..).filter(of_bucket).take(KEYS + 30).collect();
        let run = |number: u64| {
            let (mut client, mut table) = memories.open();
            PAUSES.set(Some(Random::new(seed * 100 + number)));
            let mut random = Random::new(seed * 10 + number);
            let mut events = Vec::new();
            for operation in 0..OPERATIONS {
                let which = random.below(KEYS as u64) as usize;
                let name = keys[which].to_le_bytes();
                let value = number << 32 | operation;
                let called = clock.fetch_add(1, Ordering::SeqCst);
                let action = match random.below(6) {
                    0 | 1 => KeyAction::Delete(table.delete(&mut client, &name, WATCHDOG).unwrap()),
                    2 | 3 => {
                        table.put(&mut client, &name, &value.to_le_bytes(), WATCHDOG).unwrap();
                        KeyAction::Write(value)
                    }
                    _ => {
                        let seen = table.get(&mut client, &name, WATCHDOG).unwrap();
                        let seen = seen.map(|seen| u64::from_le_bytes(seen.try_into().unwrap()));
                        KeyAction::Get(seen)
                    }
                };
                let returned = Some(clock.fetch_add(1, Ordering::SeqCst));
                events.push(HistoryEvent { key: which, action, called, returned });
                let other = keys[KEYS + random.below(30.min(5 + operation / 8)) as usize];
                match random.below(4) {
                    0 => drop(table.delete(&mut client, &other.to_le_bytes(), WATCHDOG).unwrap()),
                    1 => table.put(&mut client, &other.to_le_bytes(), b"", WATCHDOG).unwrap(),
                    _ => {}
                }
            }
            (events, table.splits())
        };
        let done = std::thread::scope(|scope| {
            let clients: Vec<_> = (0..3).map(|number| scope.spawn(move || run(number))).collect();
            clients.into_iter().map(|client| client.join().unwrap()).collect::<Vec<_>>()
        });
        splits += done.iter().map(|(_, splits)| splits).sum::<u64>();
        for key in 0..KEYS {
            let events = done.iter().flat_map(|(events, _)| events.iter().copied());
            let of_key: Vec<_> = events.filter(|event| event.key == key).collect();
            if let Some(why) = contradiction(&of_key) {
                panic!("seed {seed}, key {key}: {why}");
            }
        }
    }
    assert!(splits > 0, "nothing was split");
}
