//! Logs on a disk that loses what was not synced: power cuts, killed processes, syncs that fail, in any call.

use farside::durable::{DurableLog, DurableLogOptions, DurableRecord, RecordTag, conformance};
use farside::{Error, ErrorCode};
use farside_base::Random;
use farside_sim::copies::SimCopies;
use farside_sim::durable::SimDisk;
use farside_sim::medium::SimMedium;
use farside_sim::persistent::SimPersistent;
use farside_sim::seeds::each_seed;
use std::time::Duration;

const SEGMENT: u64 = 4096;
const LIVES: u64 = 8;
const SOON: Duration = Duration::from_secs(60);

/// What a log must hold.
#[derive(Default)]
struct Oracle {
    /// Records in order, with their ends: number and payload.
    records: Vec<(u64, Vec<u8>, u64)>,
    /// The number of those that were committed.
    committed: usize,
    /// The number of those that may have been trimmed.
    trimmed: usize,
    next: u64,
}

fn options() -> DurableLogOptions {
    DurableLogOptions::default().segment_bytes(SEGMENT)
}

fn check(log: &DurableLog, begin: u64, oracle: &mut Oracle) -> Result<(), String> {
    let read: Result<Vec<DurableRecord>, Error> = log.reader(begin).collect();
    let read = read.map_err(|error| format!("a record that was found is not read: {error}"))?;
    let first = read.first().map_or(oracle.records.len().min(oracle.committed), |record| {
        let number = record.tag.counter;
        oracle.records.iter().position(|one| one.0 == number).unwrap_or(usize::MAX)
    });
    if first > oracle.trimmed && oracle.trimmed < oracle.committed {
        return Err(format!("begins with record {first}; {} were trimmed", oracle.trimmed));
    }
    let end = first.saturating_add(read.len());
    if end < oracle.committed {
        return Err(format!("ends with record {end}; {} were committed", oracle.committed));
    }
    for (record, expected) in read.iter().zip(oracle.records.get(first..).unwrap_or_default()) {
        if (record.tag.counter, &record.payload, record.end)
            != (expected.0, &expected.1, expected.2)
        {
            return Err(format!("record {:?} instead of {expected:?}", record.tag));
        }
    }
    if end > oracle.records.len() {
        return Err(format!("{end} records of {}", oracle.records.len()));
    }
    // What is found is durable, and all that was appended after it is gone.
    oracle.records.truncate(end);
    oracle.committed = end;
    Ok(())
}

/// Uses an open log for some calls, or until an error. Returns whether it was closed.
fn live(log: DurableLog, oracle: &mut Oracle, random: &mut Random) -> Result<bool, String> {
    for _ in 0..random.below(60) {
        let kind = random.below(20);
        let done = match kind {
            0 => {
                let committed = oracle.committed;
                let upto = random.below(committed as u64 + 1) as usize;
                let below = upto.checked_sub(1).map_or(0, |last| oracle.records[last].2);
                oracle.trimmed = oracle.trimmed.max(upto);
                log.trim(below)
            }
            1..=5 => {
                let count = oracle.records.len();
                let upto = oracle.records.last().map_or(0, |last| last.2);
                log.commit(upto, SOON).map(|()| oracle.committed = count)
            }
            _ => {
                let number = oracle.next;
                let bytes = random.below(if kind == 19 { 900 } else { 100 });
                let payload: Vec<u8> = (0..bytes).map(|at| (number + at) as u8).collect();
                let tag = RecordTag { kind: 1, counter: number, address: bytes };
                oracle.next += 1;
                log.append(tag, &payload).map(|end| oracle.records.push((number, payload, end)))
            }
        };
        match done {
            Ok(()) => {}
            Err(error) if error.code == ErrorCode::DeviceFailed => return Ok(false),
            // Nothing was appended.
            Err(error) if error.code == ErrorCode::LogFull => {}
            Err(error) => return Err(format!("{error}")),
        }
        if log.watermarks().appended < log.watermarks().durable {
            return Err("more is durable than was appended".to_owned());
        }
    }
    if random.below(4) > 0 {
        return Ok(false); // killed
    }
    let count = oracle.records.len();
    if log.close().is_ok() {
        oracle.committed = count;
        return Ok(true);
    }
    Ok(false)
}

fn run(seed: u64) -> Result<(), String> {
    run_on(&SimDisk::new(seed), seed)
}

fn run_persistent(seed: u64) -> Result<(), String> {
    run_on(&SimPersistent::temporary(seed), seed)
}

fn run_copies(seed: u64) -> Result<(), String> {
    run_on(&SimCopies::new(seed).map_err(|error| error.to_string())?, seed)
}

fn run_on(disk: &dyn SimMedium, seed: u64) -> Result<(), String> {
    let mut random = Random::new(seed);
    let mut oracle = Oracle::default();
    for _ in 0..LIVES {
        match random.below(4) {
            0 => disk.cut_power_within(3),
            1 => disk.cut_power_within(40),
            2 => disk.fail_sync_within(20),
            _ => {}
        }
        disk.set_space(random.below(8) > 0);
        let opened = disk.device().and_then(|device| DurableLog::on(device, &options()));
        match opened {
            Ok((log, recovered)) => {
                check(&log, recovered.begin, &mut oracle)?;
                live(log, &mut oracle, &mut random)?;
            }
            Err(error) if error.code == ErrorCode::DeviceFailed => {}
            Err(error) => return Err(format!("cannot be opened: {error}")),
        }
        if disk.is_cut() || random.below(2) == 0 {
            disk.restart();
        }
        disk.calm();
    }
    disk.restart();
    let opened = disk.device().and_then(|device| DurableLog::on(device, &options()));
    let (log, recovered) = opened.map_err(|error| error.to_string())?;
    check(&log, recovered.begin, &mut oracle)
}

#[test]
fn committed_records_survive_any_end() {
    each_seed(
        "cargo test -p farside-sim --test durable -- committed_records_survive_any_end",
        2_000,
        run,
    );
}

#[test]
fn records_in_persistent_memory_survive_any_end() {
    let test = "records_in_persistent_memory_survive_any_end";
    each_seed(&format!("cargo test -p farside-sim --test durable -- {test}"), 400, run_persistent);
}

/// Of three copies one is on a disk; the others are lost with the power of their machines, or not.
#[test]
fn records_in_copies_and_on_a_disk_survive_any_end() {
    let test = "records_in_copies_and_on_a_disk_survive_any_end";
    each_seed(&format!("cargo test -p farside-sim --test durable -- {test}"), 200, run_copies);
}

#[test]
fn simulated_device_conforms() {
    let disk = SimDisk::new(3);
    conformance::run(&mut || disk.device());
}

#[test]
fn device_of_persistent_memory_conforms() {
    let memory = SimPersistent::temporary(3);
    conformance::run(&mut || memory.device().unwrap());
}

/// Each bit that is wrong where the log was durable is an error; after the last mark it may be taken for a record that
/// was cut off.
#[test]
fn damage_is_found_at_every_bit() {
    damage().unwrap();
}

fn damage() -> Result<(), String> {
    let disk = SimDisk::new(1);
    let (log, _) = DurableLog::on(disk.device(), &options()).unwrap();
    let mut ends = Vec::new();
    for number in 0..12 {
        let tag = RecordTag { kind: 1, counter: number, address: 0 };
        ends.push(log.append(tag, &[number as u8; 50]).unwrap());
        log.commit(ends[number as usize], SOON).unwrap();
    }
    log.close().unwrap();
    // But for the zeros that fill up a granule.
    let is_padding = |bit: u64| {
        let record = ends.iter().find(|end| bit / 8 < **end).map_or(0, |end| end - 96);
        bit / 8 >= record + 32 + 50 && bit / 8 < record + 96
    };
    for bit in (0..8 * ends[11]).filter(|bit| !is_padding(*bit)) {
        disk.flip(0, bit);
        let opened = DurableLog::on(disk.device(), &options());
        match opened {
            Err(error) if error.code == ErrorCode::LogDamaged => {}
            opened => return Err(format!("bit {bit}: {opened:?}")),
        }
        disk.flip(0, bit);
    }
    let (log, recovered) = DurableLog::on(disk.device(), &options()).unwrap();
    assert_eq!((recovered.records, log.reader(0).count()), (12, 12));
    Ok(())
}

/// Damage of any bytes of any segment is an error, or leaves a beginning of the log.
#[test]
fn damaged_logs_are_refused_or_a_beginning() {
    each_seed(
        "cargo test -p farside-sim --test durable -- damaged_logs_are_refused_or_a_beginning",
        300,
        |seed| {
            let (disk, mut random) = (SimDisk::new(seed), Random::new(seed));
            let log = DurableLog::on(disk.device(), &options()).map_err(|e| e.to_string())?.0;
            for number in 0..60 {
                let payload = vec![number as u8; random.below(200) as usize];
                let tag = RecordTag { kind: 1, counter: number, address: 0 };
                let end = log.append(tag, &payload).map_err(|error| error.to_string())?;
                if random.below(3) == 0 {
                    log.commit(end, SOON).map_err(|error| error.to_string())?;
                }
            }
            log.close().map_err(|error| error.to_string())?;
            for _ in 0..1 + random.below(100) {
                disk.flip(random.below(3) * SEGMENT, random.below(8 * SEGMENT));
            }
            match DurableLog::on(disk.device(), &options()) {
                Err(error) if error.code == ErrorCode::LogDamaged => Ok(()),
                Err(error) => Err(error.to_string()),
                Ok((log, recovered)) => {
                    let read: Result<Vec<_>, _> = log.reader(recovered.begin).collect();
                    let read = read.map_err(|error| error.to_string())?;
                    let numbers = read.iter().map(|record| record.tag.counter);
                    match numbers.eq(0..read.len() as u64) {
                        true => Ok(()),
                        false => Err("records are missing or changed".to_owned()),
                    }
                }
            }
        },
    );
}

#[cfg(canary)]
mod canary {
    use super::{damage, run, run_copies, run_persistent};
    use farside::canary::{NodeMutant, plant};

    /// Each write-back and fence that is left out is found.
    #[test]
    fn canary_defects_of_persistent_memory_are_found() {
        use NodeMutant::{
            PersistentLastLineNotWrittenBack, PersistentNotFenced, PersistentNotWrittenBack,
        };
        let mutants =
            [PersistentLastLineNotWrittenBack, PersistentNotFenced, PersistentNotWrittenBack];
        for mutant in mutants {
            plant(Some(mutant));
            let found = (1..500).find_map(|seed| run_persistent(seed).err());
            plant(None);
            assert!(found.is_some(), "{mutant:?} is not found");
        }
    }

    #[test]
    fn canary_copy_that_is_not_synced_is_found() {
        plant(Some(NodeMutant::CopyNotSynced));
        let found = (1..200).find_map(|seed| run_copies(seed).err());
        plant(None);
        assert!(found.is_some());
    }

    /// Each defect of a log is found within a few hundred seeds.
    #[test]
    fn canary_defects_of_a_log_are_found() {
        use NodeMutant::{
            LogChecksumIgnored, LogCutForgotten, LogFailureForgotten, LogFirstSegmentNotSynced,
            LogNotSynced, LogNotWrittenAgain, LogTrimmedTooFar, LogTrusted,
        };
        let mutants = [
            LogChecksumIgnored,
            LogCutForgotten,
            LogFailureForgotten,
            LogFirstSegmentNotSynced,
            LogNotSynced,
            LogNotWrittenAgain,
            LogTrimmedTooFar,
            LogTrusted,
        ];
        for mutant in mutants {
            plant(Some(mutant));
            let found = (1..2_000).find_map(|seed| run(seed).err());
            plant(None);
            assert!(found.is_some(), "{mutant:?} is not found");
        }
        plant(Some(NodeMutant::LogDamageCutOff));
        let found = damage();
        plant(None);
        assert!(found.is_err());
    }
}
