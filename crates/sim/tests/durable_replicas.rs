//! Logs with copies in memory of other programs, under every schedule of a weak fabric, with faults: writers that stop or
//! die, copies that are lost, links that are cut.

use farside::durable::{
    DurableLog, DurableLogOptions, DurableRecord, RecordTag, ReplicaOptions, ReplicatedDevice,
};
use farside::fabrics::Fabric;
use farside::onesided::{LendOptions, MemoryServer};
use farside::runtime::pause;
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_fabric::MemFabric;
use farside_sim::lent::{NAP, PATIENCE, Scene};
use farside_sim::seeds::{each_seed, setting};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const COMMAND: &str = "cargo test -p farside-sim --test durable_replicas";
const COPIES: [&str; 3] = ["copy-0", "copy-1", "copy-2"];
const WRITERS: u64 = 3;
const SEGMENT: u64 = 4096;
const BYTES: u64 = (64 << 10) + 8 * SEGMENT;
/// Steps of a run, about.
const STEPS: u64 = 2_000;

/// The log as the last writer that has opened it has found it, with what it has appended.
#[derive(Default)]
struct Oracle {
    records: Vec<(u64, u64)>,
    committed: usize,
    /// Openings so far.
    openings: u64,
    next: u64,
    wrong: Option<String>,
}

impl Oracle {
    fn opened(&mut self, found: &[DurableRecord]) -> u64 {
        let found: Vec<_> = found.iter().map(|one| (one.tag.counter, one.end)).collect();
        if found.len() < self.committed || self.records.get(..found.len()) != Some(&found[..]) {
            self.wrong = Some(format!("{found:?} instead of {:?}", self.records));
        }
        self.records.truncate(found.len());
        self.committed = self.records.len();
        self.openings += 1;
        self.openings
    }
}

fn open(fabric: &Arc<dyn Fabric>) -> Result<DurableLog, Error> {
    // Any two of three have a copy in common. The time-out is longer than a stop.
    let timeout = Duration::from_secs(20);
    let options = ReplicaOptions::default().copies_min(Some(2)).timeout(timeout);
    let device = ReplicatedDevice::open(fabric, &COPIES, &options)?;
    let options = DurableLogOptions::default().segment_bytes(SEGMENT);
    DurableLog::on(Box::new(device), &options).map(|(log, _)| log)
}

/// Opens the log again and again, and appends to it.
fn write(fabric: &Arc<dyn Fabric>, oracle: &Mutex<Oracle>, mut random: Random) {
    let mut left = 3;
    for _ in 0..300 {
        let log = match open(fabric) {
            Ok(log) => log,
            Err(error) => {
                let is_expected = matches!(
                    error.code,
                    ErrorCode::StateInUse | ErrorCode::NotEnoughReplicas | ErrorCode::DeviceFailed
                );
                assert!(is_expected, "{error}");
                pause(20 * NAP);
                continue;
            }
        };
        let found: Result<Vec<_>, Error> = log.reader(log.watermarks().begin).collect();
        let Ok(found) = found else { continue }; // a copy was lost
        let opening = oracle.lock().unwrap().opened(&found);
        for _ in 0..1 + random.below(6) {
            let mut end = 0;
            let mut appended = Vec::new();
            for _ in 0..1 + random.below(4) {
                let number = {
                    let mut oracle = oracle.lock().unwrap();
                    oracle.next += 1;
                    oracle.next
                };
                let tag = RecordTag { kind: 1, counter: number, address: 0 };
                let payload = vec![number as u8; random.below(200) as usize];
                let Ok(its_end) = log.append(tag, &payload) else { break };
                end = its_end;
                appended.push((number, end));
                let mut oracle = oracle.lock().unwrap();
                if oracle.openings == opening {
                    oracle.records.push((number, end));
                }
            }
            if appended.is_empty() || log.commit(end, PATIENCE).is_err() {
                break;
            }
            let mut oracle = oracle.lock().unwrap();
            // The next writer may have opened it meanwhile; it has found these.
            if !appended.iter().all(|one| oracle.records.contains(one)) {
                oracle.wrong = Some(format!("{appended:?} were committed and are lost"));
            }
            if oracle.openings == opening {
                oracle.committed = oracle.records.len();
            }
        }
        left -= 1;
        if left == 0 {
            return;
        }
    }
}

/// Returns how many records were committed: none if a copy was lost before the log was made.
fn run(seed: u64) -> Result<usize, String> {
    let mut scene = Scene::new(seed, 4096)?;
    let oracle = Arc::<Mutex<Oracle>>::default();
    for copy in COPIES {
        scene.lend_exclusively(copy, BYTES)?;
    }
    let writers: Vec<String> = (0..WRITERS).map(|number| format!("writer-{number}")).collect();
    for (number, name) in (0..).zip(&writers) {
        let (oracle, random) = (Arc::clone(&oracle), Random::new(seed ^ number << 60));
        scene.program(name, move |fabric| write(&fabric, &oracle, random))?;
    }
    scene.cut_between(&writers, &COPIES.map(str::to_owned), STEPS);
    scene.stop(&writers, STEPS, Duration::from_secs(5));
    if scene.random.one_in(2) {
        scene.kill("writer-0", STEPS);
    }
    if scene.random.one_in(3) {
        let copy = COPIES[scene.random.index(3)];
        scene.kill(copy, STEPS);
    }
    scene.run()?;
    let oracle = oracle.lock().unwrap();
    match &oracle.wrong {
        Some(wrong) => Err(scene.trouble(wrong)),
        None => Ok(oracle.committed),
    }
}

#[test]
fn committed_records_are_in_the_copies_that_are_left() {
    let runs_with_records = AtomicU64::new(0);
    each_seed(COMMAND, 30, |seed| {
        runs_with_records.fetch_add(u64::from(run(seed)? > 5), Ordering::Relaxed);
        Ok(())
    });
    // One run may be repeated alone.
    let least = u64::from(setting("FARSIDE_RUNS", 30) > 20);
    assert!(runs_with_records.into_inner() >= least);
}

/// A writer has died when its last record had reached one copy of two: opening makes them equal.
#[test]
fn copies_that_differ_are_made_equal() {
    differing_copies().unwrap();
}

fn differing_copies() -> Result<(), String> {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let lend = |name: &str| {
        let options = LendOptions::default().exclusive(true);
        MemoryServer::lend(&fabric, name, BYTES, &options).unwrap()
    };
    let servers = ["one", "other"].map(lend);
    let open = || loop {
        match ReplicatedDevice::open(&fabric, &["one", "other"], &ReplicaOptions::default()) {
            Err(error) if error.code == ErrorCode::StateInUse => std::thread::yield_now(),
            device => {
                let options = DurableLogOptions::default().segment_bytes(SEGMENT);
                return DurableLog::on(Box::new(device.unwrap()), &options).unwrap().0;
            }
        }
    };
    let tag = RecordTag { kind: 1, counter: 0, address: 0 };
    let log = open();
    let first = log.append(tag, b"first").unwrap();
    log.commit(first, PATIENCE).unwrap();
    let from = log.watermarks().durable;
    let last = log.append(tag, b"last").unwrap();
    log.commit(last, PATIENCE).unwrap();
    drop(log);
    let (place, length) = ((64 << 10) + from, (SEGMENT - from) as usize);
    servers[0].write(place, &vec![0; length]).unwrap();
    let log = open();
    assert_eq!(log.reader(0).count(), 1);
    let rest = [0, 1].map(|at: usize| {
        let mut bytes = vec![0; length];
        servers[at].read(place, &mut bytes).unwrap();
        bytes
    });
    if rest[0] == rest[1] { Ok(()) } else { Err("the copies differ".to_owned()) }
}

#[cfg(canary)]
#[test]
fn canary_copies_that_differ_are_found() {
    farside::canary::plant(Some(farside::canary::NodeMutant::LogCutForgotten));
    let found = differing_copies();
    farside::canary::plant(None);
    assert!(found.is_err());
}
