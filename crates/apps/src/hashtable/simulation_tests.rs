//! Histories of the table under every schedule of a weak fabric, with faults.

use super::slot::SLOTS;
use super::*;
use farside::onesided::RemoteMemory;
use farside_sim::lent::{NAP, PATIENCE, Scene};
use farside_sim::linearizability::{
    HistoryCall, KeyValue, KeyValueAnswer, KeyValueOperation, check_each,
};
use farside_sim::seeds::each_seed;
use farside_testkit::Random;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

type Call = HistoryCall<KeyValueOperation, KeyValueAnswer>;

const CLIENTS: u64 = 3;
const KEYS: u64 = 3;
const OTHERS: u64 = 24;
const OPERATIONS: u64 = 14;
/// Longer than a request takes.
const LEASE: Duration = Duration::from_secs(1);
/// Steps of a run, about.
const STEPS: u64 = 6_000;

/// What the clients of a run share.
#[derive(Default)]
struct History {
    clock: AtomicU64,
    /// By key.
    calls: Mutex<Vec<(u64, Call)>>,
    splits: AtomicU64,
    hot_keys: AtomicU64,
}

/// What is the same in each run of a seed: a hash of all that the network did, splits, and keys that were hot at an end.
type Outcome = (u64, u64, u64);

impl History {
    /// Records an operation, whose outcome stays unknown if its client dies within it, or its connection is lost.
    fn record(
        &self,
        key: u64,
        process: u64,
        operation: KeyValueOperation,
        perform: impl FnOnce() -> Result<KeyValueAnswer, TableError>,
    ) {
        let now = || self.clock.fetch_add(1, Ordering::SeqCst);
        let place = {
            let mut calls = self.calls.lock().unwrap();
            let call = HistoryCall { process, operation, invoke_ns: now(), returned: None };
            calls.push((key, call));
            calls.len() - 1
        };
        let answer = match perform() {
            Ok(answer) => answer,
            Err(error) if error.code() == ErrorCode::Indeterminate => return,
            Err(error) => panic!("{operation:?}: {error}"),
        };
        self.calls.lock().unwrap()[place].1.returned = Some((now(), answer));
    }
}

/// Creates a table, one bucket of which is nearly full.
fn create(client: &mut MemoryClient, at: RemoteAddress) {
    let heap = HeapOptions::default().clients(8).lease(LEASE).grace(LEASE / 4);
    let options = TableOptions { heap };
    let mut table = RemoteTable::create(client, &[at], &options, PATIENCE).unwrap();
    for key in &keys(&table)[KEYS as usize..][..SLOTS - KEYS as usize] {
        table.put(client, &key.to_le_bytes(), b"", PATIENCE).unwrap();
    }
    table.close(client, PATIENCE).unwrap();
}

fn open(client: &mut MemoryClient, at: RemoteAddress) -> RemoteTable {
    loop {
        match RemoteTable::open(client, &[at], PATIENCE) {
            Ok(table) => return table,
            Err(TableError::NotATable) => farside::runtime::pause(NAP),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Keys of one bucket: first those with a history, then others, which make it split.
fn keys(table: &RemoteTable) -> Vec<u64> {
    let of_bucket = |number: &u64| table.cold.lookup(&number.to_le_bytes()).hash.bucket() == 3;
    (0..).filter(of_bucket).take((KEYS + OTHERS) as usize).collect()
}

/// Accepts an operation whose connection was lost.
fn may_be_unknown(done: Result<(), TableError>) {
    let code = done.map_err(|error| error.code());
    assert!(matches!(code, Ok(()) | Err(ErrorCode::Indeterminate)), "{code:?}");
}

fn operate(
    client: &mut MemoryClient,
    table: &mut RemoteTable,
    history: &History,
    number: u64,
    random: &mut Random,
) {
    let keys = keys(table);
    for operation in 0..OPERATIONS {
        let which = random.below(KEYS);
        let key = keys[which as usize].to_le_bytes();
        let value = number << 32 | operation;
        match random.below(6) {
            0 | 1 => history.record(which, number, KeyValueOperation::Delete, || {
                let was_there = table.delete(client, &key, PATIENCE)?;
                Ok(if was_there { KeyValueAnswer::Done } else { KeyValueAnswer::NotFound })
            }),
            2 | 3 => history.record(which, number, KeyValueOperation::Put(value), || {
                table.put(client, &key, &value.to_le_bytes(), PATIENCE)?;
                table.flush(client, PATIENCE)?;
                Ok(KeyValueAnswer::Done)
            }),
            _ => history.record(which, number, KeyValueOperation::Get, || {
                let value = table.get(client, &key, PATIENCE)?;
                Ok(value.map_or(KeyValueAnswer::NotFound, |value| {
                    KeyValueAnswer::Value(u64::from_le_bytes(value.try_into().unwrap()))
                }))
            }),
        }
        let other = keys[(KEYS + random.below(OTHERS)) as usize].to_le_bytes();
        let done = match random.below(3) {
            0 => table.delete(client, &other, PATIENCE).map(drop),
            1 => table.put(client, &other, b"", PATIENCE),
            _ => Ok(()),
        };
        may_be_unknown(done);
    }
    history.splits.fetch_add(table.splits(), Ordering::Relaxed);
    history.hot_keys.fetch_add(table.hot_keys() as u64, Ordering::Relaxed);
}

fn simulate(seed: u64, is_hot: bool, with_death: bool) -> Result<Outcome, String> {
    let mut scene = Scene::new(seed, 8 << 20)?;
    let history = Arc::<History>::default();
    let names: Vec<String> = (0..CLIENTS).map(|number| format!("client-{number}")).collect();
    scene.client("creator", |client, memory| create(client, memory.at(64)))?;
    for (number, name) in (0..).zip(&names) {
        let (history, mut random) = (Arc::clone(&history), Random::new(scene.random.word()));
        scene.client(name, move |client, memory| {
            let mut table = open(client, memory.at(64));
            if is_hot {
                // Two puts of a key among the last ones.
                let options = HotOptions { puts: 2, entries: 4, ..HotOptions::default() };
                table.hold_hot_puts(&options).unwrap();
            }
            operate(client, &mut table, &history, number, &mut random);
        })?;
    }
    scene.disturb(&names, STEPS, 2 * LEASE);
    if with_death {
        scene.kill(&names[0], STEPS);
    }
    let fingerprint = scene.run()?;
    let calls = std::mem::take(&mut *history.calls.lock().unwrap());
    check_each(&KeyValue::Absent, calls).holds().map_err(|why| scene.trouble(&why))?;
    let [splits, hot_keys] =
        [&history.splits, &history.hot_keys].map(|count| count.load(Ordering::Relaxed));
    Ok((fingerprint, splits, hot_keys))
}

const COMMAND: &str = "cargo test -p farside-apps --lib simulated_operations";

#[test]
fn simulated_operations_are_linearizable() {
    let split = AtomicU64::new(0);
    each_seed(COMMAND, 20, |seed| {
        let (_, splits, _) = simulate(seed, false, false)?;
        split.fetch_add(splits, Ordering::Relaxed);
        Ok(())
    });
    assert!(split.into_inner() > 0, "nothing was split");
}

#[test]
fn simulated_operations_of_dying_clients_are_linearizable() {
    each_seed(COMMAND, 20, |seed| simulate(seed, false, true).map(drop));
}

/// Clients that hold puts of hot keys, and flush them.
#[test]
fn simulated_operations_on_hot_keys_are_linearizable() {
    let hot = AtomicU64::new(0);
    each_seed(COMMAND, 20, |seed| {
        let (.., hot_keys) = simulate(seed, true, seed % 2 == 0)?;
        hot.fetch_add(hot_keys, Ordering::Relaxed);
        Ok(())
    });
    assert!(hot.into_inner() > 0, "no key was hot");
}

#[test]
fn simulated_runs_of_a_seed_are_equal() {
    let runs = [5, 5, 6].map(|seed| simulate(seed, true, true));
    assert!(runs[0] == runs[1] && runs[0] != runs[2], "{runs:?}");
}

/// Requests, doorbells, round trips and bytes of operations, over a simulated adapter.
#[test]
fn operations_keep_their_round_trips() {
    let scene = Scene::to_measure(8 << 20).unwrap();
    let (meter, other_meter) = (scene.meter("client"), scene.meter("other"));
    let is_filled = Arc::<AtomicU64>::default();
    let its_filled = Arc::clone(&is_filled);
    let fill = move |client: &mut MemoryClient, memory: RemoteMemory| {
        create(client, memory.at(64));
        let mut table = open(client, memory.at(64));
        for name in [b"warm up", b"present"] {
            table.put(client, name, &[1; 64], PATIENCE).unwrap();
        }
        for (name, key, expected) in [
            ("update", b"present", [2, 1, 1]),
            ("insert", b"another", [6, 5, 4]),
            ("delete", b"another", [3, 3, 3]),
        ] {
            let operation = |client: &mut MemoryClient| match name {
                "delete" => table.delete(client, key, PATIENCE).map(drop),
                _ => table.put(client, key, &[2; 64], PATIENCE),
            };
            let (cost, done) = meter.measure(client, memory, operation).unwrap();
            done.unwrap();
            let found = [cost.work_requests, cost.doorbells, cost.round_trips];
            assert_eq!((name, found), (name, expected));
        }
        its_filled.store(1, Ordering::Relaxed);
    };
    let look = move |client: &mut MemoryClient, memory: RemoteMemory| {
        while is_filled.load(Ordering::Relaxed) == 0 {
            farside::runtime::pause(NAP);
        }
        let mut table = open(client, memory.at(64));
        table.put(client, b"space", &[1; 64], PATIENCE).unwrap();
        // A bucket has 128 B, the entry's object 128 B; a word 8 B.
        for (name, key, expected) in [
            ("cold get", b"present", [2, 2, 2, 256]),
            ("warm get", b"present", [2, 1, 1, 136]),
            ("miss", b"absent!", [1, 1, 1, 128]),
            ("cold put", b"warm up", [4, 3, 3, 128 + 128 + 95 + 8]),
        ] {
            let operation = |client: &mut MemoryClient| match name {
                "cold put" => table.put(client, key, &[2; 64], PATIENCE),
                _ => table.get(client, key, PATIENCE).map(drop),
            };
            let (cost, done) = other_meter.measure(client, memory, operation).unwrap();
            done.unwrap();
            let found = [cost.work_requests, cost.doorbells, cost.round_trips, cost.bytes];
            assert_eq!((name, found), (name, expected));
        }
    };
    scene.client("client", fill).unwrap();
    scene.client("other", look).unwrap();
    scene.run().unwrap();
}
