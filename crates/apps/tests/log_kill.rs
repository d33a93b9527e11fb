//! Writers of a log that are killed while they append: whole records are left, and the other programs continue.
//!
//! The test executable starts itself again as a writer, which appends until it is killed.

use farside::fabrics;
use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
use farside_apps::log::{AppendMode, Log, LogOptions, LogReader};
use farside_testkit::{Process, WATCHDOG, role, say, unique_name};
use std::collections::BTreeMap;
use std::time::Duration;

const MODES: [AppendMode; 3] =
    [AppendMode::Positioned, AppendMode::Planned { quota_bytes: 4096 }, AppendMode::Lazy];
const ROUNDS: u64 = 9;

fn open(address: &str) -> (MemoryClient, Log) {
    let fabric = fabrics::shared_memory().unwrap();
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(address, WATCHDOG).unwrap();
    let log = Log::open(&mut client, memory.at(0), WATCHDOG).unwrap();
    (client, log)
}

/// The record of a writer: its number, that of the record, and bytes by both.
fn record(writer: u64, number: u64) -> Vec<u8> {
    let mut record = [writer, number].map(u64::to_le_bytes).concat();
    record.resize(16 + (number % 300) as usize, (writer + number) as u8);
    record
}

/// Appends until killed.
#[test]
fn child() {
    let Some(role) = role() else { return };
    let (mut client, log) = open(&role[0]);
    let writer: u64 = role[1].parse().unwrap();
    let mode = MODES[writer as usize % 3];
    let mut appender = log.writer(&mut client, mode, WATCHDOG).unwrap();
    for number in 0.. {
        appender.append(&mut client, &record(writer, number), WATCHDOG).unwrap();
        if number == 20 {
            say("working");
        }
    }
}

/// Reads what is there; checks that the records of each writer are whole, without a hole or a duplicate.
fn read(client: &mut MemoryClient, reader: &mut LogReader, next: &mut BTreeMap<u64, u64>) {
    while let Some(read) = reader.next(client, Duration::ZERO).unwrap() {
        let word =
            |at: usize| u64::from_le_bytes(std::array::from_fn(|byte| read.bytes[at + byte]));
        let expected = next.entry(word(0)).or_default();
        assert_eq!(word(8), *expected, "of writer {}", word(0));
        assert!(read.bytes == record(word(0), *expected));
        *expected += 1;
    }
}

#[test]
fn log_survives_killed_writers() {
    let fabric = fabrics::shared_memory().unwrap();
    let lease = Duration::from_millis(500);
    let options = LogOptions { bytes: 64 << 20, lanes: 2, lane_bytes: 16 << 20, lease };
    let lend = LendOptions::default();
    let server =
        MemoryServer::lend(&fabric, &unique_name("log-kill"), options.footprint(), &lend).unwrap();
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default()).unwrap();
    let memory = client.open(server.address(), WATCHDOG).unwrap();
    let log = Log::create(&mut client, memory.at(0), options, WATCHDOG).unwrap();
    let mut reader = log.reader(&mut client, WATCHDOG).unwrap();
    let mut own = log.writer(&mut client, AppendMode::Positioned, WATCHDOG).unwrap();
    let mut next = BTreeMap::new();
    for round in 0..ROUNDS {
        let mut child = Process::child(&format!("{} {round}", server.address()));
        child.hear("working");
        read(&mut client, &mut reader, &mut next);
        drop(child); // killed
        own.append(&mut client, &record(ROUNDS, round), WATCHDOG).unwrap();
        while next.get(&ROUNDS) != Some(&(round + 1)) {
            read(&mut client, &mut reader, &mut next);
        }
        let cursor = reader.cursor();
        log.trim(&mut client, &cursor, WATCHDOG).unwrap();
    }
    assert!(
        (0..ROUNDS).all(|writer| next.get(&writer).is_some_and(|count| *count > 20)),
        "{next:?}"
    );
}
