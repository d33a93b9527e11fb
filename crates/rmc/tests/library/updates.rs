//! Changing several words, and logs, among others who do the same.

use farside_rmc::helpers::{crc32c, status};
use farside_rmc::library::{Change, HostWord, LogAppend, MultiCas, MultiCasRecover};
use farside_rmc::run::Outcome;

use crate::host::TestHost;
use crate::programs::Programs;
use crate::runner::{SeededRandom, Stepped, call, put, word};

const LOCK: u64 = 8;
const WORDS: u64 = 64;
const RECORDS: u64 = 512;

fn memory() -> TestHost {
    TestHost::new(vec![vec![0; 4_096]])
}

fn record(caller: u64) -> u64 {
    RECORDS + caller * MultiCas::RECORD_BYTES as u64
}

fn parameters(caller: u64, changes: &[Change]) -> Vec<u8> {
    MultiCas { region: 0, lock: LOCK, record: record(caller), changes }.to_bytes().unwrap()
}

fn change(at: u64, expected: u64, desired: u64) -> Change {
    Change { offset: WORDS + 8 * at, expected, desired }
}

fn values(host: &TestHost, count: u64) -> Vec<u64> {
    (0..count).map(|at| word(host, 0, WORDS + 8 * at)).collect()
}

fn numbers(output: &[u8]) -> Vec<u64> {
    output.chunks_exact(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// One caller: all words change or none does.
pub(crate) fn words(programs: &Programs) {
    let cas = programs.verified("multi_cas");
    for count in 1..=8u64 {
        let mut host = memory();
        let old: Vec<_> = (0..count).map(|at| 1_000 + at).collect();
        put(&mut host, 0, WORDS, &old);
        let changes: Vec<_> = (0..count).map(|at| change(at, 1_000 + at, 7 * at)).collect();
        // One after the other is not as expected.
        for wrong in 0..count {
            let mut other = changes.clone();
            other[wrong as usize].expected += 1;
            let done = call(&cas, &mut host, &parameters(0, &other));
            assert_eq!((done.result(), done.accesses), (1, 3));
            assert_eq!(numbers(&done.output), old);
            assert_eq!((values(&host, count), word(&host, 0, LOCK)), (old.clone(), 0));
        }
        let done = call(&cas, &mut host, &parameters(0, &changes));
        assert_eq!((done.result(), done.accesses), (status::OK, 5 + count));
        assert_eq!(done.output, []);
        let new: Vec<_> = (0..count).map(|at| 7 * at).collect();
        assert_eq!((values(&host, 8)[..count as usize].to_vec(), word(&host, 0, LOCK)), (new, 0));
    }
    let mut host = memory();
    put(&mut host, 0, LOCK, &[record(3)]);
    let done = call(&cas, &mut host, &parameters(0, &[change(0, 0, 1)]));
    assert_eq!((done.result(), done.accesses), (status::BUSY, 1));
    assert_eq!((numbers(&done.output), values(&host, 1)), (vec![record(3)], vec![0]));
    // What makes no sense is refused before anything is touched.
    let mut host = memory();
    let good = parameters(0, &[change(0, 0, 1)]);
    for (field, value) in [(1, LOCK + 1), (2, 0), (2, RECORDS + 4), (3, 9), (4, WORDS + 1)] {
        let mut bad = good.clone();
        bad[8 * field..8 * field + 8].copy_from_slice(&value.to_le_bytes());
        let done = call(&cas, &mut host, &bad);
        assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 0), "{field} {value}");
    }
    // A word that cannot be read gives the lock back.
    let beyond = Change { offset: 4_096, expected: 0, desired: 1 };
    let done = call(&cas, &mut host, &parameters(0, &[change(0, 0, 1), beyond]));
    assert_eq!((done.result(), done.accesses), (status::NOT_PERMITTED, 3));
    assert_eq!((values(&host, 1), word(&host, 0, LOCK)), (vec![0], 0));
    let nine = [change(0, 0, 1); 9];
    let too_many = MultiCas { region: 0, lock: LOCK, record: RECORDS, changes: &nine }.to_bytes();
    assert_eq!(too_many.unwrap_err().found, 9);
}

/// A caller that dies after each of its accesses, and another one that recovers, and dies too.
pub(crate) fn callers_that_die(programs: &Programs) {
    let (cas, recover) = (programs.verified("multi_cas"), programs.verified("multi_cas_recover"));
    let (old, new) = (vec![5, 6, 7, 8], vec![50, 60, 70, 80]);
    let changes: Vec<_> = (0..4).map(|at| change(at, old[at as usize], new[at as usize])).collect();
    let (mut undone, mut redone) = (0, 0);
    for lives in 0..=9u64 {
        let mut host = memory();
        put(&mut host, 0, WORDS, &old);
        let mut dying = Stepped::new(&cas, &parameters(0, &changes));
        while dying.accesses < lives {
            assert_eq!(dying.step(&mut host), None);
        }
        let found = word(&host, 0, LOCK);
        let decided = found & 1 == 1;
        // Recovery that dies too can be begun again.
        let parameters = MultiCasRecover { region: 0, lock: LOCK, found }.to_bytes();
        for also in 0..7 {
            let mut host = host.clone();
            let mut second = Stepped::new(&recover, &parameters);
            while second.accesses < also && second.step(&mut host).is_none() {}
            let done = call(&recover, &mut host, &parameters);
            assert_eq!(done.result(), status::OK, "{lives} {also}");
            assert_eq!(word(&host, 0, LOCK), 0, "{lives} {also}");
            let done_all = decided || lives == 9;
            let expected = if done_all { &new } else { &old };
            assert_eq!(&values(&host, 4), expected, "{lives} {also}");
        }
        let done = call(&recover, &mut host, &parameters);
        let accesses = match (found, decided) {
            (_, true) => 3 + 4,
            (_, false) => 1,
        };
        assert_eq!(done.accesses, accesses, "{lives}");
        undone += u32::from(!decided);
        redone += u32::from(decided);
    }
    assert!(undone > 0 && redone > 0);
    // Another caller holds the lock by now, or it is free.
    let mut host = memory();
    put(&mut host, 0, LOCK, &[record(2)]);
    for found in [record(1), record(1) + 1] {
        let parameters = MultiCasRecover { region: 0, lock: LOCK, found }.to_bytes();
        let done = call(&recover, &mut host, &parameters);
        assert_eq!((done.result(), numbers(&done.output)), (status::BUSY, vec![record(2)]));
    }
    put(&mut host, 0, LOCK, &[0]);
    for found in [0, record(1), record(1) + 1] {
        let parameters = MultiCasRecover { region: 0, lock: LOCK, found }.to_bytes();
        assert_eq!(call(&recover, &mut host, &parameters).result(), status::OK);
    }
    // A lock word that names no record.
    put(&mut host, 0, LOCK, &[RECORDS + 1]);
    put(&mut host, 0, RECORDS, &[9]);
    let parameters = MultiCasRecover { region: 0, lock: LOCK, found: RECORDS + 1 }.to_bytes();
    assert_eq!(call(&recover, &mut host, &parameters).result(), status::OUT_OF_RANGE);
}

/// Callers with interleaved accesses add to the same words: each success is counted in all of them.
pub(crate) fn callers_among_each_other(programs: &Programs) {
    let cas = programs.verified("multi_cas");
    let (mut all, mut busy, mut different) = (0, 0, 0);
    for seed in 0..60 {
        let mut chance = SeededRandom::new(seed);
        let mut host = memory();
        let mut callers: Vec<Option<Stepped>> = (0..4).map(|_| None).collect();
        let mut succeeded = 0;
        for _ in 0..400 {
            let at = chance.below(4) as usize;
            let Some(caller) = &mut callers[at] else {
                // It has read the words; others may change them before it begins.
                let now = values(&host, 3);
                let changes: Vec<_> = (0..3)
                    .map(|word| change(word, now[word as usize], now[word as usize] + 1 + word))
                    .collect();
                callers[at] = Some(Stepped::new(&cas, &parameters(at as u64, &changes)));
                continue;
            };
            if let Some(outcome) = caller.step(&mut host) {
                let Outcome::Returned(result) = outcome else { panic!("{outcome:?}") };
                match result as i64 {
                    0 => succeeded += 1,
                    status::BUSY => busy += 1,
                    1 => different += 1,
                    other => panic!("seed {seed}: {other}"),
                }
                callers[at] = None;
            }
        }
        for mut caller in callers.into_iter().flatten() {
            while caller.step(&mut host).is_none() {}
            // Callers that had come to their decision end with success.
            succeeded += u64::from(caller.output().is_empty());
        }
        all += succeeded;
        let expected: Vec<_> = (1..=3).map(|each| succeeded * each).collect();
        assert_eq!(values(&host, 3), expected, "seed {seed}");
        assert_eq!(word(&host, 0, LOCK), 0, "seed {seed}");
    }
    assert!(all > 600 && busy > 100 && different > 10, "{all} {busy} {different}");
}

const LOG: u64 = 16;

fn append(slots: u64, slot_bytes: u64, record: &[u8]) -> Vec<u8> {
    let log = HostWord::new(0, LOG).unwrap();
    LogAppend { log, slots, slot_bytes, record }.to_bytes().unwrap()
}

/// The committed record of a slot.
fn committed(host: &TestHost, slot: u64, slot_bytes: u64) -> Option<Vec<u8>> {
    let at = LOG + 8 + slot * slot_bytes;
    let commit = word(host, 0, at);
    let length = (commit & 0x7fff_ffff) as usize;
    let bytes = host.regions[0][at as usize + 8..][..length].to_vec();
    if commit == 0 {
        return None;
    }
    assert_eq!(commit & 0x8000_0000, 0x8000_0000);
    assert_eq!((commit >> 32) as u32, crc32c(&bytes, 0), "slot {slot}");
    Some(bytes)
}

/// One caller: records of all lengths, a log that gets full, and what makes no sense.
pub(crate) fn logs(programs: &Programs) {
    let log_append = programs.verified("log_append");
    let mut chance = SeededRandom::new(7);
    let mut host = memory();
    let lengths = [0, 1, 7, 8, 100, 127, 128];
    for (slot, length) in lengths.into_iter().enumerate() {
        let record = chance.bytes(length);
        let done = call(&log_append, &mut host, &append(7, 136, &record));
        let accesses = if length == 0 { 2 } else { 3 };
        assert_eq!((done.result(), done.accesses), (slot as i64, accesses));
        assert_eq!(committed(&host, slot as u64, 136), Some(record));
    }
    let before = host.regions.clone();
    for again in 1..3 {
        let done = call(&log_append, &mut host, &append(7, 136, &[1]));
        assert_eq!((done.result(), done.accesses), (status::FULL, 1));
        assert_eq!(word(&host, 0, LOG), 7 + again);
    }
    assert_eq!(host.regions[0][LOG as usize + 8..], before[0][LOG as usize + 8..]);
    let mut host = memory();
    for (slots, slot_bytes, length) in [(4, 12, 4), (4, 16, 9), (4, 4_104, 1), (1 << 32, 64, 1)] {
        let bad = append(slots, slot_bytes, &vec![1; length]);
        let done = call(&log_append, &mut host, &bad);
        assert_eq!((done.result(), done.accesses), (status::OUT_OF_RANGE, 0), "{slot_bytes}");
    }
    let mut long = append(4, 256, &[1]);
    long[24] = 129;
    assert_eq!(call(&log_append, &mut host, &long).result(), status::OUT_OF_RANGE);
    // More slots than there is memory: the record cannot be written.
    put(&mut host, 0, LOG, &[100]);
    let done = call(&log_append, &mut host, &append(1_000, 136, &[1]));
    assert_eq!((done.result(), done.accesses), (status::NOT_PERMITTED, 2));
    let record = [0; 129];
    let log = LogAppend { log: HostWord::NONE, slots: 1, slot_bytes: 256, record: &record };
    assert_eq!(log.to_bytes().unwrap_err().most, 128);
}

/// Callers with interleaved accesses, some of which die: every reported record is present and whole, and those of a
/// caller are in the order of its calls.
pub(crate) fn logs_of_many(programs: &Programs) {
    let log_append = programs.verified("log_append");
    let mut gaps = 0;
    for seed in 0..40 {
        let mut chance = SeededRandom::new(seed);
        let mut host = memory();
        let mut callers: Vec<Option<(Stepped, Vec<u8>)>> = (0..3).map(|_| None).collect();
        let mut reported: Vec<(u64, Vec<u8>)> = Vec::new();
        let mut turn = [0u8; 3];
        while word(&host, 0, LOG) < 50 {
            let at = chance.below(3) as usize;
            let (caller, record) = callers[at].get_or_insert_with(|| {
                turn[at] += 1;
                let mut record = vec![at as u8, turn[at]];
                let more = chance.below(40) as usize;
                record.extend(chance.bytes(more));
                (Stepped::new(&log_append, &append(50, 56, &record)), record)
            });
            if chance.below(50) == 0 {
                callers[at] = None;
            } else if let Some(outcome) = caller.step(&mut host) {
                let Outcome::Returned(slot) = outcome else { panic!("{outcome:?}") };
                reported.push((slot, record.clone()));
                callers[at] = None;
            }
        }
        let all: Vec<_> = (0..50).map(|slot| committed(&host, slot, 56)).collect();
        for (slot, record) in &reported {
            assert_eq!(all[*slot as usize].as_ref(), Some(record), "seed {seed}");
        }
        let mut last = [0; 3];
        for record in all.iter().flatten() {
            let caller = usize::from(record[0]);
            assert!(record[1] > last[caller], "seed {seed}: in order, and each once");
            last[caller] = record[1];
        }
        gaps += all.iter().filter(|record| record.is_none()).count();
    }
    assert!(gaps > 0, "no caller died in between");
}
