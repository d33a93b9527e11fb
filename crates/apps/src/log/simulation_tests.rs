//! Appends and readers of the log under every schedule of a weak fabric, with faults.

use super::*;
use farside::ErrorCode;
use farside::onesided::RemoteMemory;
use farside_sim::lent::{NAP, PATIENCE, Scene};
use farside_sim::seeds::each_seed;
use farside_testkit::Random;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

const WRITERS: u64 = 3;
const READERS: u64 = 2;
const APPENDS: u64 = 10;
/// Steps of a run, about.
const STEPS: u64 = 6_000;
/// Longer than a request takes.
const LEASE: Duration = Duration::from_millis(200);
const OPTIONS: LogOptions =
    LogOptions { bytes: 32 << 10, lanes: 4, lane_bytes: 4096, lease: LEASE };

/// What the programs of a run share.
#[derive(Default)]
struct RecordsSeen {
    /// Writers that have not ended.
    writers: AtomicU64,
    /// Records whose appends have returned: by writer and number.
    appended: Mutex<Vec<(u64, u64)>>,
    /// By reader.
    read: Mutex<BTreeMap<u64, Vec<ReadRecord>>>,
}

/// Position, writer and number of a record.
type ReadRecord = (u64, u64, u64);

fn open(client: &mut MemoryClient, at: RemoteAddress) -> Log {
    loop {
        match Log::open(client, at, PATIENCE) {
            Ok(log) => return log,
            Err(LogError::NotALog) => farside::runtime::pause(NAP),
            Err(error) => panic!("{error}"),
        }
    }
}

fn record(writer: u64, number: u64) -> Vec<u8> {
    let mut bytes = [writer.to_le_bytes(), number.to_le_bytes()].concat();
    bytes.resize(16 + (number as usize * 37) % 150, writer as u8);
    bytes
}

fn append(
    client: &mut MemoryClient,
    log: &Log,
    seen: &RecordsSeen,
    writer: u64,
    random: &mut Random,
) {
    let modes =
        [AppendMode::Positioned, AppendMode::Planned { quota_bytes: 512 }, AppendMode::Lazy];
    let mode = *random.pick(&modes);
    let (mut end, mut number) = (None, 0);
    while number < APPENDS {
        let Some(writer_end) = &mut end else {
            end = open_writer(client, log, mode);
            continue;
        };
        let numbers = number..number + 1 + random.below(3).min(APPENDS - number - 1);
        let records: Vec<Vec<u8>> = numbers.clone().map(|number| record(writer, number)).collect();
        let records: Vec<&[u8]> = records.iter().map(Vec::as_slice).collect();
        match LogWriter::append_batch(writer_end, client, &records, PATIENCE) {
            Ok(_) => {
                let its = numbers.clone().map(|number| (writer, number));
                seen.appended.lock().unwrap().extend(its);
            }
            Err(LogError::LanesInUse) => {
                end = None;
                continue;
            }
            Err(error) => assert_eq!(error.code(), ErrorCode::Indeterminate, "{error}"),
        }
        number = numbers.end;
    }
    if let Some(end) = end
        && let Err(error) = end.finish(client, PATIENCE)
    {
        assert_eq!(error.code(), ErrorCode::Indeterminate, "{error}");
    }
}

/// Opens a writer; `None` while its last lane, which it was too slow to keep, is not free yet.
fn open_writer(client: &mut MemoryClient, log: &Log, mode: AppendMode) -> Option<LogWriter> {
    match log.writer(client, mode, PATIENCE) {
        Ok(writer) => return Some(writer),
        Err(LogError::LanesInUse) => farside::runtime::pause(LEASE / 4),
        Err(error) => assert_eq!(error.code(), ErrorCode::Indeterminate, "{error}"),
    }
    None
}

fn read(client: &mut MemoryClient, log: &Log, seen: &RecordsSeen, reader: u64) {
    let mut end = log.reader(client, PATIENCE).unwrap();
    loop {
        let were_writing = seen.writers.load(Ordering::Relaxed) > 0;
        match end.next(client, 3 * LEASE) {
            Ok(Some(record)) => {
                let word =
                    |at: usize| u64::from_le_bytes(record.bytes[at..at + 8].try_into().unwrap());
                let (writer, number) = (word(0), word(8));
                assert_eq!(record.bytes, self::record(writer, number), "a record is torn");
                let mut read = seen.read.lock().unwrap();
                read.entry(reader).or_default().push((record.position, writer, number));
            }
            Ok(None) if !were_writing => return,
            Ok(None) => {}
            Err(error) => assert_eq!(error.code(), ErrorCode::Indeterminate, "{error}"),
        }
    }
}

/// Checks what was read: by all the same, in order, what was appended, each once. Readers do not wait for writer 0 if it
/// may die: it may have appended more after one has ended.
fn check(seen: &RecordsSeen, with_death: bool) -> Result<(), String> {
    let read = std::mem::take(&mut *seen.read.lock().unwrap());
    let all = read.values().max_by_key(|its| its.len()).cloned().unwrap_or_default();
    for (reader, its) in &read {
        let rest = all.strip_prefix(&its[..]);
        let is_late = |(_, writer, _): &ReadRecord| with_death && *writer == 0;
        if !rest.is_some_and(|rest| rest.iter().all(is_late)) {
            return Err(format!("reader {reader} has read {its:?}, another one {all:?}"));
        }
    }
    if !all.is_sorted_by(|one, next| one.0 <= next.0) {
        return Err(format!("positions fall: {all:?}"));
    }
    for writer in 0..WRITERS {
        let its = || all.iter().filter(|(_, of, _)| *of == writer).map(|(_, _, number)| *number);
        let its: Vec<u64> = its().collect();
        if !its.is_sorted_by(|one, next| one < next) {
            return Err(format!("records of writer {writer}: {its:?}"));
        }
        let appended = seen.appended.lock().unwrap();
        let lost = appended.iter().find(|(of, number)| *of == writer && !its.contains(number));
        if let Some(lost) = lost {
            return Err(format!("writer and record {lost:?} were appended and not read: {all:?}"));
        }
    }
    Ok(())
}

fn simulate(seed: u64, with_death: bool) -> Result<(), String> {
    let mut scene = Scene::new(seed, OPTIONS.footprint() + 64)?;
    let seen = Arc::<RecordsSeen>::default();
    seen.writers.store(WRITERS - u64::from(with_death), Ordering::Relaxed);
    scene.client("creator", |client, memory| {
        Log::create(client, memory.at(64), OPTIONS, PATIENCE).unwrap();
    })?;
    let names: Vec<String> = (0..WRITERS).map(|number| format!("writer-{number}")).collect();
    for (number, name) in (0..).zip(&names) {
        let (seen, mut random) = (Arc::clone(&seen), Random::new(scene.random.word()));
        scene.client(name, move |client, memory| {
            let log = open(client, memory.at(64));
            append(client, &log, &seen, number, &mut random);
            if !with_death || number > 0 {
                seen.writers.fetch_sub(1, Ordering::Relaxed);
            }
        })?;
    }
    let readers: Vec<String> = (0..READERS).map(|number| format!("reader-{number}")).collect();
    for (number, name) in (0..).zip(&readers) {
        let seen = Arc::clone(&seen);
        scene.client(name, move |client, memory| {
            let log = open(client, memory.at(64));
            read(client, &log, &seen, number);
        })?;
    }
    scene.disturb(&[names.clone(), readers].concat(), STEPS, 2 * LEASE);
    if with_death {
        scene.kill(&names[0], STEPS);
    }
    scene.run()?;
    check(&seen, with_death).map_err(|why| scene.trouble(&why))
}

const COMMAND: &str = "cargo test -p farside-apps --lib simulated_records";

#[test]
fn simulated_records_are_read_in_order_once() {
    each_seed(COMMAND, 10, |seed| simulate(seed, false));
}

#[test]
fn simulated_records_of_dying_writers_are_read_in_order_once() {
    each_seed(COMMAND, 10, |seed| simulate(seed, true));
}

/// Round trips and bytes of an append and of reading, over a simulated adapter.
#[test]
fn appends_keep_their_round_trips() {
    let scene = Scene::to_measure(OPTIONS.footprint() + 64).unwrap();
    let meter = scene.meter("client");
    let append = move |client: &mut MemoryClient, memory: RemoteMemory| {
        let log = Log::create(client, memory.at(64), OPTIONS, PATIENCE).unwrap();
        for (mode, round_trips) in [
            (AppendMode::Positioned, 2),
            (AppendMode::Planned { quota_bytes: 2048 }, 1),
            (AppendMode::Lazy, 1),
        ] {
            let mut writer = log.writer(client, mode, PATIENCE).unwrap();
            writer.append(client, &[1; 64], PATIENCE).unwrap();
            let operation = |client: &mut MemoryClient| writer.append(client, &[1; 64], PATIENCE);
            let (cost, done) = meter.measure(client, memory, operation).unwrap();
            done.unwrap();
            assert_eq!((mode, cost.round_trips), (mode, round_trips), "{cost:?}");
            let records = [&[2; 64][..]; 12];
            let operation =
                |client: &mut MemoryClient| writer.append_batch(client, &records, PATIENCE);
            let (cost, done) = meter.measure(client, memory, operation).unwrap();
            done.unwrap();
            assert_eq!((mode, cost.round_trips), (mode, round_trips), "{cost:?}");
            // Each byte once, and headers.
            assert!((768..896).contains(&cost.bytes), "{cost:?}");
            writer.finish(client, PATIENCE).unwrap();
        }
    };
    scene.client("client", append).unwrap();
    scene.run().unwrap();
}
