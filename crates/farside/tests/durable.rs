//! Logs on files: threads, killed processes, and folders that are damaged, foreign, in use or full.

use farside::durable::{
    DurableLog, DurableLogOptions, DurableRecord, FileDevice, LogDevice, Medium, Promise,
    RecordTag, Segment, check, conformance,
};
use farside::{Error, ErrorCode};
use farside_testkit::{Process, Random, WATCHDOG, role, say, unique_name};
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

const SEGMENT: u64 = 64 << 10;
const HEADER: u64 = 4096;

/// A folder that is removed with its files.
struct LogFolder(PathBuf);

impl LogFolder {
    fn new() -> Self {
        Self(std::env::temp_dir().join(unique_name("durable")))
    }

    fn open(&self) -> Result<DurableLog, Error> {
        open(&self.0)
    }

    fn segment(&self) -> PathBuf {
        self.0.join("0000000000000000.segment")
    }
}

impl Drop for LogFolder {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).ok();
    }
}

fn options() -> DurableLogOptions {
    DurableLogOptions::default().segment_bytes(SEGMENT)
}

fn open(folder: &Path) -> Result<DurableLog, Error> {
    DurableLog::open(folder, &options()).map(|(log, _)| log)
}

fn tag(counter: u64) -> RecordTag {
    RecordTag { kind: 1, counter, address: !counter }
}

fn records(log: &DurableLog) -> Vec<DurableRecord> {
    log.reader(log.watermarks().begin).collect::<Result<_, _>>().unwrap()
}

fn code<T>(result: Result<T, Error>) -> ErrorCode {
    result.map(drop).unwrap_err().code
}

/// A log with ten records, each committed, that was closed.
fn ten(folder: &LogFolder) -> Vec<DurableRecord> {
    let log = folder.open().unwrap();
    for number in 0..10 {
        let end = log.append(tag(number), &[number as u8; 40]).unwrap();
        log.commit(end, WATCHDOG).unwrap();
    }
    let all = records(&log);
    log.close().unwrap();
    all
}

#[test]
fn records_survive_their_process_in_order() {
    let folder = LogFolder::new();
    let mut random = Random::new(5);
    let mut expected = Vec::new();
    for _ in 0..4 {
        let log = folder.open().unwrap();
        assert_eq!(records(&log), expected);
        for _ in 0..200 {
            let payload: Vec<u8> = (0..random.below(2_000)).map(|at| at as u8).collect();
            let position = log.watermarks().appended;
            let end = log.append(tag(position), &payload).unwrap();
            assert!(end > position);
            if random.below(10) == 0 {
                log.commit(end, WATCHDOG).unwrap();
                assert_eq!(log.watermarks().durable, log.watermarks().appended);
            }
        }
        log.commit(log.watermarks().appended, WATCHDOG).unwrap();
        expected = records(&log);
        drop(log); // without an end mark
    }
    assert_eq!(expected.len(), 800);
    assert!(expected.iter().all(|record| record.tag.address == !record.tag.counter));
    let report = check(&folder.0).unwrap();
    assert_eq!((report.records, report.end >= expected[799].end), (800, true));
    assert_eq!((report.cut_off, report.damaged_below), (0, None));
    assert_eq!(code(check(Path::new("/"))), ErrorCode::StateForeign);
    // A trim frees whole segments; what is left is read from its beginning.
    let log = folder.open().unwrap();
    let before = fs::read_dir(&folder.0).unwrap().count();
    log.trim(expected[600].position).unwrap();
    assert!(fs::read_dir(&folder.0).unwrap().count() < before);
    let begin = log.watermarks().begin;
    assert!(begin > 0 && begin <= expected[600].position);
    let left = records(&log);
    assert_eq!(left, expected[800 - left.len()..]);
    assert_eq!(code(log.trim(log.watermarks().appended + 1)), ErrorCode::OutOfBounds);
    assert_eq!(log.reader(0).next().unwrap().unwrap_err().code, ErrorCode::OutOfBounds);
    drop(log);
    assert_eq!(records(&folder.open().unwrap()), left);
}

#[test]
fn device_conforms() {
    let folder = LogFolder::new();
    conformance::run(&mut || Box::new(FileDevice::open(&folder.0).unwrap()));
}

/// A reader at the end returns later records as they become durable.
#[test]
fn reader_continues_at_the_end() {
    let folder = LogFolder::new();
    let log = folder.open().unwrap();
    let mut reader = log.reader(0);
    for number in 0..500 {
        assert!(reader.next().is_none());
        let end = log.append(tag(number), &[number as u8; 300]).unwrap();
        assert!(reader.next().is_none(), "it is not durable yet");
        log.commit(end, WATCHDOG).unwrap();
        assert_eq!(reader.next().unwrap().unwrap().tag.counter, number);
    }
}

#[test]
fn missing_segments_are_damage() {
    for missing in [0, 1, 2] {
        let folder = LogFolder::new();
        let log = folder.open().unwrap();
        for number in 0..500 {
            let end = log.append(tag(number), &[number as u8; 300]).unwrap();
            log.commit(end, WATCHDOG).unwrap();
        }
        log.close().unwrap();
        let mut files: Vec<PathBuf> =
            fs::read_dir(&folder.0).unwrap().map(|file| file.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some());
        files.sort();
        assert!(files.len() >= 3);
        let at = [0, 1, files.len() - 1][missing];
        fs::remove_file(&files[at]).unwrap();
        // Without the first one it is a log that was trimmed.
        match (missing, folder.open()) {
            (0, Ok(log)) => assert!(records(&log).last().unwrap().tag.counter == 499),
            (1 | 2, Err(error)) => assert_eq!(error.code, ErrorCode::LogDamaged),
            (_, opened) => panic!("{missing}: {opened:?}"),
        }
    }
}

#[test]
fn threads_share_groups() {
    const THREADS: u64 = 4;
    const RECORDS: u64 = 100;
    let folder = LogFolder::new();
    let log = folder.open().unwrap();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let log = &log;
            scope.spawn(move || {
                for number in 0..RECORDS {
                    let end = log.append(tag(thread << 32 | number), &[7; 64]).unwrap();
                    log.commit(end, WATCHDOG).unwrap();
                    assert!(log.watermarks().durable >= end);
                }
            });
        }
    });
    let stats = log.stats();
    assert_eq!(stats.records, THREADS * RECORDS);
    assert!(stats.groups <= stats.records);
    let all = records(&log);
    assert_eq!(all.len() as u64, THREADS * RECORDS);
    for thread in 0..THREADS {
        let its = all.iter().filter(|record| record.tag.counter >> 32 == thread);
        assert!(its.map(|record| record.tag.counter as u32).eq(0..RECORDS as u32));
    }
}

/// Writes to a file, and keeps the most bytes that were ever written before a sync.
struct Measured {
    device: FileDevice,
    unsynced: u64,
    most: Arc<AtomicU64>,
}

impl LogDevice for Measured {
    fn promise(&self) -> Promise {
        self.device.promise()
    }
    fn log_id(&self) -> u64 {
        self.device.log_id()
    }
    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        self.device.segments()
    }
    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        self.device.create(segment)
    }
    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.unsynced += bytes.len() as u64;
        self.most.fetch_max(self.unsynced, Ordering::Relaxed);
        self.device.write(segment, at, bytes)
    }
    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        self.unsynced = 0;
        self.device.sync(segment)
    }
    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        self.device.read(segment, at, out)
    }
    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        self.device.remove(segment)
    }
}

/// An opening overwrites as much after the end of a log as a group can have left there.
#[test]
fn groups_of_many_threads_are_bounded() {
    const RECORD: u64 = 256 << 10;
    let folder = LogFolder::new();
    let options = DurableLogOptions::default().segment_bytes(32 << 20);
    let most = Arc::new(AtomicU64::new(0));
    let device = FileDevice::open(&folder.0).unwrap();
    let device = Measured { device, unsynced: 0, most: Arc::clone(&most) };
    let (log, _) = DurableLog::on(Box::new(device), &options).unwrap();
    most.store(0, Ordering::Relaxed);
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let log = &log;
            scope.spawn(move || {
                for round in 0..8 {
                    log.append(tag(8 * thread + round), &[7; RECORD as usize]).unwrap();
                }
            });
        }
    });
    log.close().unwrap();
    let most = most.load(Ordering::Relaxed);
    assert!(most <= (1 << 20) + (64 << 10) + 2 * (RECORD + 32), "a group of {most} B");
}

#[test]
fn wrong_appends_change_nothing() {
    let folder = LogFolder::new();
    let options = DurableLogOptions::default().segment_bytes(4096).bytes_max(8192);
    let (log, recovered) = DurableLog::open(&folder.0, &options).unwrap();
    assert_eq!((recovered.begin, recovered.end, recovered.cut), (0, 0, 0));
    for kind in [0, 254, 255] {
        let tag = RecordTag { kind, ..tag(0) };
        assert_eq!(code(log.append(tag, b"x")), ErrorCode::BadForm);
    }
    assert_eq!(code(log.append(tag(0), &[0; 1024])), ErrorCode::TooLarge);
    assert_eq!(code(log.commit(1, Duration::ZERO)), ErrorCode::OutOfBounds);
    let mut count = 0;
    let error = loop {
        match log.append(tag(count), &[1; 500]) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(error.code, ErrorCode::LogFull, "{error}");
    log.commit(log.watermarks().appended, WATCHDOG).unwrap();
    assert_eq!(records(&log).len() as u64, count);
    let full = LogFolder::new();
    let options = DurableLogOptions::default().segment_bytes(4096).bytes_max(4096);
    let (last, _) = DurableLog::open(&full.0, &options).unwrap();
    while last.append(tag(0), &[]).is_ok() {}
    last.close().unwrap();
    // A checkpoint makes room.
    log.trim(log.watermarks().durable).unwrap();
    log.append(tag(count), &[1; 500]).unwrap();
    for (bytes, most) in [(4095, 1 << 20), (4097, 1 << 20)] {
        let options = DurableLogOptions::default().segment_bytes(bytes).bytes_max(most);
        let wrong = DurableLog::open(&folder.0, &options);
        assert_eq!(code(wrong), ErrorCode::StateInUse, "the log is open");
    }
    drop(log);
    let options = DurableLogOptions::default().segment_bytes(4097);
    assert_eq!(code(DurableLog::open(&folder.0, &options)), ErrorCode::BadConfiguration);
}

/// A log that ends at any byte: of its file, or of what was written of it.
#[test]
fn log_that_is_cut_at_any_byte_is_refused_or_whole() {
    let folder = LogFolder::new();
    let all = ten(&folder);
    let whole = fs::read(folder.segment()).unwrap();
    let used = HEADER + all[9].end + 256;
    for bytes in (0..used).step_by(7).chain([0, HEADER - 1, HEADER, whole.len() as u64 - 1]) {
        fs::write(folder.segment(), &whole[..bytes as usize]).unwrap();
        assert_eq!(code(folder.open()), ErrorCode::LogTruncated, "{bytes} B");
    }
    // Zeros from a byte on: as if what is after it had never been written.
    for bytes in (HEADER..used).step_by(7) {
        let mut image = whole.clone();
        image[bytes as usize..].fill(0);
        fs::write(folder.segment(), &image).unwrap();
        let log = folder.open().unwrap();
        let left = records(&log);
        assert_eq!(left, all[..left.len()], "{bytes} B");
        drop(log);
    }
    fs::write(folder.segment(), &whole).unwrap();
    assert_eq!(records(&folder.open().unwrap()), all);
}

#[test]
fn damaged_and_foreign_folders_are_refused() {
    let folder = LogFolder::new();
    let all = ten(&folder);
    assert_eq!(code(FileDevice::open(&folder.segment())), ErrorCode::System, "no folder");
    let whole = fs::read(folder.segment()).unwrap();
    let flip = |at: u64| {
        let file = fs::OpenOptions::new().write(true).open(folder.segment()).unwrap();
        file.write_all_at(&[whole[at as usize] ^ 0x10], at).unwrap();
        let outcome = folder.open().map(drop);
        file.write_all_at(&[whole[at as usize]], at).unwrap();
        outcome
    };
    for at in (0..12).chain(16..48) {
        assert_eq!(code(flip(at)), ErrorCode::LogDamaged, "byte {at} of the header");
    }
    assert_eq!(code(flip(13)), ErrorCode::StateForeign, "another version");
    for record in &all {
        let error = flip(HEADER + record.position + 40).unwrap_err();
        assert_eq!(error.code, ErrorCode::LogDamaged);
        assert!(error.detail.contains(&format!("position {}", record.position)), "{error}");
    }
    // A segment of another log, one that is missing, and files of something else.
    let other = LogFolder::new();
    ten(&other);
    fs::copy(other.segment(), folder.segment()).unwrap();
    assert_eq!(code(folder.open()), ErrorCode::StateForeign);
    fs::write(folder.segment(), &whole).unwrap();
    fs::write(folder.0.join("notes.txt"), b"mine").unwrap();
    assert_eq!(code(folder.open()), ErrorCode::StateForeign);
    assert_eq!(fs::read(folder.0.join("notes.txt")).unwrap(), b"mine");
    fs::remove_file(folder.0.join("notes.txt")).unwrap();
    fs::rename(folder.segment(), folder.0.join("0000000000001000.segment")).unwrap();
    assert_eq!(code(folder.open()), ErrorCode::LogDamaged, "its name is another position's");
    fs::rename(folder.0.join("0000000000001000.segment"), folder.segment()).unwrap();
    let identity = fs::read(folder.0.join("identity")).unwrap();
    fs::write(folder.0.join("identity"), &identity[..20]).unwrap();
    assert_eq!(code(folder.open()), ErrorCode::LogDamaged);
    fs::remove_file(folder.0.join("identity")).unwrap();
    assert_eq!(code(folder.open()), ErrorCode::StateForeign, "segments without a log");
    fs::write(folder.0.join("identity"), identity).unwrap();
    assert_eq!(records(&folder.open().unwrap()), all);
}

#[test]
fn second_user_of_a_folder_is_refused() {
    let folder = LogFolder::new();
    let log = folder.open().unwrap();
    assert_eq!(code(folder.open()), ErrorCode::StateInUse);
    let outcome = Process::child(&format!("opens {}", folder.0.display())).hear("outcome ");
    assert_eq!(outcome, "StateInUse");
    drop(log);
    let outcome = Process::child(&format!("opens {}", folder.0.display())).hear("outcome ");
    assert_eq!(outcome, "opened");
}

#[test]
fn media_are_distinguished() {
    let folder = LogFolder::new();
    let promise = folder.open().unwrap().promise();
    assert!(promise.survives_process && !promise.to_string().is_empty());
    let shared = Path::new("/dev/shm");
    if shared.is_dir() {
        let folder = LogFolder(shared.join(unique_name("durable")));
        let promise = folder.open().unwrap().promise();
        assert_eq!((promise.medium, promise.survives_power), (Medium::MemoryFile, false));
    }
}

/// A process that appends and commits is killed again and again: each record that it has reported is there.
#[test]
fn killed_process_loses_no_committed_record() {
    let folder = LogFolder::new();
    let mut random = Random::new(11);
    let mut reported = 0;
    for _ in 0..12 {
        let mut process = Process::child(&format!("appends {}", folder.0.display()));
        let lines = 1 + random.below(60);
        for _ in 0..lines {
            reported = process.hear("record ").parse::<u64>().unwrap() + 1;
        }
        drop(process); // kill -9
        let log = folder.open().unwrap();
        let all = records(&log);
        assert!(all.len() as u64 >= reported, "{} records of {reported}", all.len());
        assert!(all.iter().map(|record| record.tag.counter).eq(0..all.len() as u64));
    }
}

#[test]
fn child() {
    let Some(words) = role() else { return };
    let folder = Path::new(&words[1]);
    match words[0].as_str() {
        "opens" => match open(folder) {
            Ok(_) => say("outcome opened"),
            Err(error) => say(&format!("outcome {}", error.code.entry().name)),
        },
        _ => {
            let log = open(folder).unwrap();
            let mut number = records(&log).len() as u64;
            loop {
                let end = log.append(tag(number), &[number as u8; 200]).unwrap();
                log.commit(end, WATCHDOG).unwrap();
                say(&format!("record {number}"));
                number += 1;
            }
        }
    }
}
