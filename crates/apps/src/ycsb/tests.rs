//! The driver against a store that is a map, and against the hash table of a real node.

use super::*;
use crate::dht::{Dht, DhtOptions};
use farside::{Config, Node};
use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// A map that records its operations, and can be made to fail.
#[derive(Default)]
struct Map {
    records: HashMap<Vec<u8>, Vec<u8>>,
    reads: HashMap<Vec<u8>, u64>,
    /// Answers every read with the record of this key.
    mixed_up: Option<Vec<u8>>,
    failing: bool,
}

impl Store for Map {
    type Error = io::Error;

    fn read(&mut self, key: &[u8], out: &mut Vec<u8>) -> io::Result<bool> {
        if self.failing {
            return Err(io::ErrorKind::NotConnected.into());
        }
        *self.reads.entry(key.to_vec()).or_default() += 1;
        let found = self.records.get(self.mixed_up.as_deref().unwrap_or(key));
        out.clear();
        out.extend(found.into_iter().flatten());
        Ok(found.is_some())
    }

    fn insert(&mut self, key: &[u8], record: &[u8]) -> io::Result<()> {
        self.records.insert(key.to_vec(), record.to_vec());
        Ok(())
    }

    fn update(&mut self, key: &[u8], change: &mut dyn FnMut(&mut Vec<u8>)) -> io::Result<bool> {
        if self.failing {
            return Err(io::ErrorKind::NotConnected.into());
        }
        let found = self.records.get_mut(key).map(change);
        Ok(found.is_some())
    }
}

fn go_on(_: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn loaded(run: &WorkloadRun) -> Map {
    let mut map = Map::default();
    let report = run.client(0, None).load(&mut map, go_on);
    assert_eq!(report.count(), run.workload().insert_count);
    map
}

fn run_of(core: CoreWorkload, records: u64, operations: u64) -> WorkloadRun {
    WorkloadRun::new(core.workload(records, operations), RunOptions::default())
}

#[test]
fn each_workload_has_its_mix_and_verifies() {
    for core in CoreWorkload::ALL {
        let run = run_of(core, 500, 20_000);
        let mut map = loaded(&run);
        let report = run.client(0, None).run(&mut map, go_on);
        assert_eq!((report.count(), report.errors(), report.wrong()), (20_000, 0, 0), "{core}");
        let Proportions { read, update, insert, read_modify_write } = run.workload().proportions;
        let shares = [read, update, insert, read_modify_write];
        for (operation, share) in Operation::ALL.into_iter().zip(shares) {
            let operation = report.operation(operation);
            let seen = operation.count() as f64 / 20_000.0;
            assert!((seen - share).abs() < 0.02, "{core}: {seen} for {share}");
            assert_eq!(operation.absent, 0, "{core}");
        }
        let records = 500 + report.operation(Operation::Insert).count();
        assert_eq!(map.records.len() as u64, records, "{core}");
    }
}

#[test]
fn the_same_seed_does_the_same_again() {
    let states = [1, 1, 2].map(|seed| {
        let options = RunOptions { seed, ..RunOptions::default() };
        let run = WorkloadRun::new(CoreWorkload::A.workload(200, 2_000), options);
        let mut map = loaded(&run);
        run.client(0, None).run(&mut map, go_on);
        (map.records, map.reads)
    });
    assert!(states[0] == states[1]);
    assert!(states[0] != states[2]);
}

#[test]
fn mixed_up_store_is_detected() {
    let run = run_of(CoreWorkload::C, 100, 1_000);
    let mut map = loaded(&run);
    let mut key = Vec::new();
    run.workload().key(5, &mut key);
    map.mixed_up = Some(key);
    let report = run.client(0, None).run(&mut map, go_on);
    assert!(report.wrong() > 900, "{} of 1,000", report.wrong());
}

#[test]
fn failures_are_counted_and_the_run_goes_on() {
    let run = run_of(CoreWorkload::F, 100, 1_000);
    let mut map = loaded(&run);
    map.failing = true;
    let report = run.client(0, None).run(&mut map, go_on);
    assert_eq!((report.count(), report.errors()), (0, 1_000));
    assert!(report.operation(Operation::Read).first_error.is_some());
}

#[test]
fn missing_records_are_counted() {
    let run = run_of(CoreWorkload::A, 100, 1_000);
    let report = run.client(0, None).run(&mut Map::default(), go_on);
    let absent = Operation::ALL.map(|operation| report.operation(operation).absent);
    assert_eq!(absent.iter().sum::<u64>(), 1_000);
}

#[test]
fn the_hotspot_is_hot_and_the_newest_are_read_most() {
    let hot = Workload {
        requests: RequestDistribution::Hotspot { data: 0.1, operations: 0.9 },
        ordered_inserts: true,
        zero_padding: 4,
        ..CoreWorkload::C.workload(1_000, 20_000)
    };
    let share_of = |workload: Workload, range: std::ops::Range<&str>| {
        let run = WorkloadRun::new(workload, RunOptions::default());
        let mut map = loaded(&run);
        run.client(0, None).run(&mut map, go_on);
        let inside = map.reads.iter().filter(|(key, _)| {
            key[..] >= *range.start.as_bytes() && key[..] < *range.end.as_bytes()
        });
        inside.map(|(_, reads)| *reads).sum::<u64>() as f64 / 20_000.0
    };
    let seen = share_of(hot.clone(), "user0000".."user0100");
    assert!((seen - 0.9).abs() < 0.02, "{seen}");
    let latest = Workload { requests: RequestDistribution::Latest, ..hot.clone() };
    let seen = share_of(latest, "user0900".."user1000");
    assert!(seen > 0.6, "{seen}");
    let exponential = RequestDistribution::Exponential { percentile: 95.0, share: 0.2 };
    let seen = share_of(Workload { requests: exponential, ..hot.clone() }, "user0800".."user1000");
    assert!((seen - 0.95).abs() < 0.02, "{seen}");
    let sequential = Workload { requests: RequestDistribution::Sequential, ..hot };
    let seen = share_of(sequential, "user0000".."user0100");
    assert!((seen - 0.1).abs() < 1e-9, "{seen}");
}

#[test]
fn processes_and_threads_share_records_and_operations() {
    let workload = Workload { threads: 2, ..CoreWorkload::D.workload(1_001, 5_003) };
    let mut map = Map::default();
    let runs: Vec<WorkloadRun> = (0..3)
        .map(|process| {
            let options = RunOptions { process, processes: 3, ..RunOptions::default() };
            WorkloadRun::new(workload.clone(), options)
        })
        .collect();
    let clients = || runs.iter().flat_map(|run| [run.client(0, None), run.client(1, None)]);
    let mut all = WorkloadReport::default();
    clients().for_each(|client| all.merge(&client.load(&mut map, go_on)));
    assert_eq!((all.count(), map.records.len()), (1_001, 1_001), "each record once");
    let mut all = WorkloadReport::default();
    clients().for_each(|client| all.merge(&client.run(&mut map, go_on)));
    assert_eq!((all.count(), all.wrong()), (5_003, 0));
    let inserts = all.operation(Operation::Insert);
    assert_eq!(map.records.len() as u64, 1_001 + inserts.count(), "no record twice");
    assert_eq!(all.operation(Operation::Read).absent, 0, "only what is there is asked for");
}

#[test]
fn progress_is_reported_and_may_end_the_run() {
    let run = run_of(CoreWorkload::C, 10, 5_000);
    let mut map = loaded(&run);
    let mut told = 0;
    run.client(0, None).run(&mut map, |done| {
        told += done;
        ControlFlow::Continue(())
    });
    assert_eq!(told, 5_000);
    let report = run.client(0, None).run(&mut map, |_| ControlFlow::Break(()));
    assert_eq!(report.count(), 1_024);
}

#[derive(Clone, Default)]
struct SharedOutput(Arc<Mutex<Vec<u8>>>);

impl Write for SharedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The value of one field of a history line.
fn field<'a>(line: &'a str, name: &str) -> &'a str {
    let start = line.find(&format!("\"{name}\":")).unwrap() + name.len() + 3;
    line[start..].split([',', '}']).next().unwrap().trim_matches('"')
}

#[test]
fn a_history_has_each_operation_and_explains_each_read() {
    let shared = SharedOutput::default();
    let history = History::new(Box::new(shared.clone()));
    let run = run_of(CoreWorkload::F, 50, 2_000);
    let mut map = Map::default();
    run.client(0, Some(history.log(0))).load(&mut map, go_on);
    let report = run.client(0, Some(history.log(0))).run(&mut map, go_on);
    history.finish().unwrap();
    let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
    let twice = report.operation(Operation::ReadModifyWrite).count();
    let ended = || text.lines().filter(|line| field(line, "return_ns") != "null");
    assert_eq!(ended().count() as u64, 50 + 2_000 + twice);
    assert!(text.lines().count() >= 2 * ended().count(), "each begins with a line of its own");
    let mut values: HashMap<&str, &str> = HashMap::new();
    let mut last = 0;
    for line in ended() {
        let (key, value) = (field(line, "key"), field(line, "value"));
        if field(line, "operation") == "read" {
            assert_eq!(values[key], value, "{line}");
        }
        values.insert(key, value);
        let (invoke, end) = (field(line, "invoke_ns"), field(line, "return_ns"));
        let (invoke, end): (u64, u64) = (invoke.parse().unwrap(), end.parse().unwrap());
        assert!(invoke < end && end >= last, "{line}");
        assert_eq!(field(line, "outcome"), "ok");
        last = end;
    }
}

#[test]
fn the_hash_table_runs_every_workload() {
    let config = Config::new(format!("ycsb-{}", std::process::id()))
        .memory_bytes(64 << 20)
        .cache_bytes(8 << 20);
    let nodes = [Node::create(&config).unwrap(), Node::join(&config).unwrap()];
    let options =
        DhtOptions { nodes: nodes.iter().map(Node::id).collect(), ..DhtOptions::default() };
    for core in CoreWorkload::ALL {
        let root = Dht::create(&mut nodes[0].session().unwrap(), &options).unwrap().root();
        let runs = [0, 1].map(|process| {
            let options = RunOptions { process, processes: 2, ..RunOptions::default() };
            WorkloadRun::new(core.workload(500, 4_000), options)
        });
        for load in [true, false] {
            let reports: Vec<WorkloadReport> = std::thread::scope(|scope| {
                let start = |(node, run): (&Node, &WorkloadRun)| {
                    let (node, client) = (node.clone(), run.client(0, None));
                    let mut session = node.session().unwrap();
                    let mut dht = Dht::open(&mut session, root).unwrap();
                    let mut store = dht.with(&mut session);
                    if load {
                        client.load(&mut store, go_on)
                    } else {
                        client.run(&mut store, go_on)
                    }
                };
                let threads: Vec<_> =
                    nodes.iter().zip(&runs).map(|pair| scope.spawn(move || start(pair))).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            let mut all = WorkloadReport::default();
            reports.iter().for_each(|report| all.merge(report));
            let wanted = if load { 500 } else { 4_000 };
            assert_eq!((all.count(), all.errors(), all.wrong()), (wanted, 0, 0), "{core}");
            assert_eq!(all.operation(Operation::Read).absent, 0, "{core}");
        }
    }
}
