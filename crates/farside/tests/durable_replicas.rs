//! Logs whose copies are in memory of other processes: openings, lost copies, writers that are killed.

mod fabrics;
mod lent;
#[path = "hosts/proxy.rs"]
mod proxy;

use fabrics::Make;
use farside::durable::{
    DurableLog, DurableLogOptions, DurableRecord, LocalCopy, LogDevice, Medium, Promise, RecordTag,
    ReplicaOptions, ReplicatedDevice, Segment, conformance,
};
use farside::onesided::{LendOptions, MemoryServer};
use farside::{Error, ErrorCode};
use farside_testkit::{Folder, Process, Random, WATCHDOG, await_parent, role, say, unique_name};
use lent::{code, process_fabric};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const BYTES: u64 = 1 << 20;
const SEGMENT: u64 = 64 << 10;

farside_testkit::on_each_fabric! { mem shm tcp => (
    device_conforms
    records_survive_their_writer
    second_writer_is_refused
    lost_copy_fails_the_log_and_the_others_continue
    log_continues_without_a_lost_copy
    copy_that_is_lost_during_recovery_leaves_no_hole
    copies_that_were_missing_are_made_equal
    memory_of_others_is_refused
    change_of_copies_that_ended_early_needs_both_sets
    copy_in_a_file_survives_the_others
    copy_in_a_file_that_was_missing_is_made_equal
) with crate::fabrics::named }

fn lend(make: &Make, exclusive: bool) -> MemoryServer {
    let options = LendOptions::default().exclusive(exclusive);
    MemoryServer::lend(&make(), &unique_name("replica"), BYTES, &options).unwrap()
}

fn servers(make: &Make, count: usize) -> Vec<MemoryServer> {
    (0..count).map(|_| lend(make, true)).collect()
}

fn open(make: &Make, servers: &[MemoryServer], least: Option<usize>) -> Result<DurableLog, Error> {
    let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
    open_at(&make(), &addresses, least)
}

fn open_at(
    fabric: &std::sync::Arc<dyn farside::fabrics::Fabric>,
    addresses: &[&str],
    least: Option<usize>,
) -> Result<DurableLog, Error> {
    let device = device_at(fabric, addresses, least)?;
    let options = DurableLogOptions::default().segment_bytes(SEGMENT);
    DurableLog::on(Box::new(device), &options).map(|(log, _)| log)
}

fn device_at(
    fabric: &std::sync::Arc<dyn farside::fabrics::Fabric>,
    addresses: &[&str],
    least: Option<usize>,
) -> Result<ReplicatedDevice, Error> {
    let options = ReplicaOptions::default().copies_min(least).timeout(Duration::from_secs(20));
    // The server may not have seen the end of the writer before.
    loop {
        match ReplicatedDevice::open(fabric, addresses, &options) {
            Err(error) if error.code == ErrorCode::StateInUse && least != Some(0) => {
                std::thread::yield_now();
            }
            device => return device,
        }
    }
}

fn tag(counter: u64) -> RecordTag {
    RecordTag { kind: 1, counter, address: 0 }
}

/// Appends records of the next numbers, and commits them.
fn append(log: &DurableLog, numbers: std::ops::Range<u64>) -> Result<(), Error> {
    let mut end = 0;
    for number in numbers {
        end = log.append(tag(number), &[number as u8; 300])?;
    }
    log.commit(end, WATCHDOG)
}

fn records(log: &DurableLog) -> Vec<DurableRecord> {
    log.reader(log.watermarks().begin).collect::<Result<_, _>>().unwrap()
}

fn numbers(log: &DurableLog) -> Vec<u64> {
    records(log).iter().map(|record| record.tag.counter).collect()
}

/// Whether both memories have the same bytes after their tables.
fn are_equal(servers: &[MemoryServer]) -> bool {
    let bytes = |server: &MemoryServer| {
        let mut bytes = vec![0; (BYTES - (64 << 10)) as usize];
        server.read(64 << 10, &mut bytes).unwrap();
        bytes
    };
    servers.windows(2).all(|two| bytes(&two[0]) == bytes(&two[1]))
}

fn device_conforms(make: &Make) {
    let (servers, fabric) = (servers(make, 2), make());
    let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
    conformance::run(&mut || Box::new(device_at(&fabric, &addresses, None).unwrap()));
}

fn records_survive_their_writer(make: &Make) {
    let servers = servers(make, 2);
    for round in 0..4 {
        let log = open(make, &servers, None).unwrap();
        assert_eq!(log.promise().medium, Medium::Replicas);
        assert!(numbers(&log).into_iter().eq(0..round * 300));
        append(&log, round * 300..(round + 1) * 300).unwrap();
        let end = log.watermarks().durable;
        assert_eq!(log.watermarks().appended, end);
        assert!(are_equal(&servers));
        log.append(tag(9999), b"never committed").unwrap();
    }
    let log = open(make, &servers, None).unwrap();
    let all = records(&log);
    assert_eq!(all.len(), 1200);
    // Trimmed slots are used again.
    for round in 0..8 {
        log.trim(log.watermarks().durable).unwrap();
        append(&log, 1200 + round * 400..1600 + round * 400).unwrap();
    }
    let left = records(&log);
    assert!(left.len() >= 400 && left.last().unwrap().tag.counter == 4399);
    drop(log);
    assert_eq!(records(&open(make, &servers, None).unwrap()), left);
    // Without a trim it is full at last, and loses nothing.
    let log = open(make, &servers, None).unwrap();
    let error = (0..).find_map(|round| append(&log, round..round + 1).err()).unwrap();
    assert_eq!(error.code, ErrorCode::LogFull, "{error}");
    log.trim(log.watermarks().durable).unwrap();
    append(&log, 0..1).unwrap();
}

fn second_writer_is_refused(make: &Make) {
    let servers = servers(make, 2);
    let log = open(make, &servers, None).unwrap();
    append(&log, 0..3).unwrap();
    // The order of the addresses does not matter, nor that one is enough.
    for addresses in [[0, 1], [1, 0]] {
        let addresses = addresses.map(|at| servers[at].address());
        assert_eq!(code(open_at(&make(), &addresses, Some(0))), ErrorCode::StateInUse);
        assert_eq!(code(open_at(&make(), &addresses[..1], Some(0))), ErrorCode::StateInUse);
    }
    append(&log, 3..6).unwrap();
    assert!(numbers(&log).into_iter().eq(0..6));
}

fn lost_copy_fails_the_log_and_the_others_continue(make: &Make) {
    let mut servers = servers(make, 3);
    let log = open(make, &servers, None).unwrap();
    append(&log, 0..100).unwrap();
    let lost = servers.remove(1);
    let address = lost.address().to_owned();
    drop(lost);
    let error = append(&log, 100..101).unwrap_err();
    assert_eq!(error.code, ErrorCode::DeviceFailed, "{error}");
    assert!(error.detail.contains(&address), "{error}");
    assert_eq!(code(log.append(tag(0), b"x")), ErrorCode::DeviceFailed);
    drop(log);
    // Two of three are enough if the caller says so.
    let all = [servers[0].address(), &address, servers[1].address()].map(str::to_owned);
    let all = [&all[0][..], &all[1], &all[2]];
    assert_eq!(code(open_at(&make(), &all, None)), ErrorCode::NotEnoughReplicas);
    assert_eq!(code(open_at(&make(), &[all[0]], None)), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &all, Some(2)).unwrap();
    let found = numbers(&log);
    assert!(found.len() >= 100 && found.iter().copied().eq(0..found.len() as u64));
    append(&log, found.len() as u64..200).unwrap();
    drop(log);
    drop(servers.remove(0));
    assert_eq!(code(open_at(&make(), &all, Some(2))), ErrorCode::NotEnoughReplicas);
    let last = [servers[0].address()];
    assert_eq!(code(open_at(&make(), &last, None)), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &last, Some(1)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..200));
}

fn log_continues_without_a_lost_copy(make: &Make) {
    let mut servers = servers(make, 3);
    let addresses: Vec<String> = servers.iter().map(|server| server.address().to_owned()).collect();
    let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
    let device = device_at(&make(), &all, Some(2)).unwrap();
    let status = device.status();
    let options = DurableLogOptions::default().segment_bytes(SEGMENT);
    let (log, _) = DurableLog::on(Box::new(device), &options).unwrap();
    append(&log, 0..100).unwrap();
    assert!(status.lost().is_empty());
    // Reads are of the first.
    drop(servers.remove(0));
    assert!(numbers(&log).into_iter().eq(0..100));
    append(&log, 100..300).unwrap();
    let [error] = &status.lost()[..] else { panic!("{status:?}") };
    assert!(error.detail.contains(all[0]), "{error}");
    assert!(are_equal(&servers));
    // One of three is not enough: another program might open the log from the others.
    drop(servers.remove(0));
    let error = append(&log, 300..301).unwrap_err();
    assert_eq!(error.code, ErrorCode::DeviceFailed, "{error}");
    drop(log);
    assert_eq!(code(open_at(&make(), &all, Some(2))), ErrorCode::NotEnoughReplicas);
    // No other program opens it meanwhile.
    let log = open_at(&make(), &all[2..], Some(1)).unwrap();
    let found = numbers(&log);
    assert!(found.len() >= 300 && found.iter().copied().eq(0..found.len() as u64));
    drop(log);
    // Where one of two may open it, both are needed to go on.
    let mut servers = self::servers(make, 2);
    let log = open(make, &servers, Some(1)).unwrap();
    append(&log, 0..10).unwrap();
    drop(servers.remove(1));
    assert_eq!(append(&log, 10..11).unwrap_err().code, ErrorCode::DeviceFailed);
}

/// A device that loses a copy before one of its reads.
struct LosesCopy {
    device: ReplicatedDevice,
    reads_left: usize,
    copy: Option<MemoryServer>,
}

impl LogDevice for LosesCopy {
    fn promise(&self) -> Promise {
        self.device.promise()
    }
    fn log_id(&self) -> u64 {
        self.device.log_id()
    }
    fn segment_bytes_max(&self) -> u64 {
        self.device.segment_bytes_max()
    }
    fn segments(&mut self) -> Result<Vec<Segment>, Error> {
        self.device.segments()
    }
    fn create(&mut self, segment: Segment) -> Result<(), Error> {
        self.device.create(segment)
    }
    fn write(&mut self, segment: Segment, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.device.write(segment, at, bytes)
    }
    fn sync(&mut self, segment: Segment) -> Result<(), Error> {
        self.device.sync(segment)
    }
    fn recovered(&mut self) {
        self.device.recovered();
    }
    fn read(&mut self, segment: Segment, at: u64, out: &mut [u8]) -> Result<(), Error> {
        match self.reads_left.checked_sub(1) {
            Some(left) => self.reads_left = left,
            None => self.copy = None,
        }
        self.device.read(segment, at, out)
    }
    fn remove(&mut self, segment: Segment) -> Result<(), Error> {
        self.device.remove(segment)
    }
}

/// The last group is in one copy only, which is lost while the log is recovered from it.
fn copy_that_is_lost_during_recovery_leaves_no_hole(make: &Make) {
    let mut failures = 0;
    for reads in 0.. {
        let mut servers = servers(make, 3);
        let addresses: Vec<String> =
            servers.iter().map(|server| server.address().to_owned()).collect();
        let all: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let log = open_at(&make(), &all, None).unwrap();
        append(&log, 0..5).unwrap();
        let from = log.watermarks().durable;
        append(&log, 5..6).unwrap();
        let length = (log.watermarks().durable - from) as usize;
        drop(log);
        for server in &servers[1..] {
            server.write((64 << 10) + from, &vec![0; length]).unwrap();
        }
        let device = device_at(&make(), &all, Some(2)).unwrap();
        let copy = Some(servers.remove(0));
        let device = LosesCopy { device, reads_left: reads, copy };
        let options = DurableLogOptions::default().segment_bytes(SEGMENT);
        let opened = DurableLog::on(Box::new(device), &options);
        let is_over = opened.is_ok();
        let log = match opened {
            Ok((log, _)) => log,
            Err(error) => {
                failures += 1;
                assert_eq!(error.code, ErrorCode::DeviceFailed, "{reads} reads: {error}");
                open_at(&make(), &all, Some(2)).unwrap()
            }
        };
        let found = numbers(&log);
        append(&log, 10..20).unwrap();
        drop(log);
        let log = open_at(&make(), &all, Some(2)).unwrap();
        assert!(numbers(&log).into_iter().eq(found.into_iter().chain(10..20)), "{reads} reads");
        if is_over {
            break;
        }
    }
    assert!(failures > 1, "the copy was lost within recovery: {failures}");
}

fn copies_that_were_missing_are_made_equal(make: &Make) {
    let servers = servers(make, 3);
    append(&open(make, &servers, None).unwrap(), 0..50).unwrap();
    // The last one is not named: it misses what follows.
    assert_eq!(code(open(make, &servers[..2], None)), ErrorCode::NotEnoughReplicas);
    append(&open(make, &servers[..2], Some(2)).unwrap(), 50..400).unwrap();
    assert!(!are_equal(&servers));
    // Its old epoch is not taken for the newest, whatever the order.
    let addresses = [2, 1, 0].map(|at: usize| servers[at].address());
    let log = open_at(&make(), &addresses, None).unwrap();
    assert!(numbers(&log).into_iter().eq(0..400));
    append(&log, 400..500).unwrap();
    drop(log);
    // An empty one in place of another: it gets all.
    let fresh = lend(make, true);
    let addresses = [fresh.address(), servers[2].address(), servers[0].address()];
    assert_eq!(code(open_at(&make(), &addresses, None)), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &addresses, Some(2)).unwrap();
    append(&log, 500..510).unwrap();
    drop(log);
    let log = open_at(&make(), &[fresh.address()], Some(1)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..510));
    drop(log);
    // A copy of an older set does not count, though two of three of that set are reached.
    let absent = unique_name("absent");
    let set: Vec<MemoryServer> = (0..4).map(|_| lend(make, true)).collect();
    let [a, b, c, d] = [0, 1, 2, 3].map(|at: usize| set[at].address().to_owned());
    append(&open_at(&make(), &[&a, &b, &c], None).unwrap(), 0..10).unwrap();
    append(&open_at(&make(), &[&d, &b, &c], Some(2)).unwrap(), 10..20).unwrap();
    append(&open_at(&make(), &[&d, &absent, &c], Some(2)).unwrap(), 20..30).unwrap();
    let without_c = open_at(&make(), &[&a, &b, &absent], Some(2));
    assert_eq!(code(without_c), ErrorCode::NotEnoughReplicas);
    assert!(numbers(&open_at(&make(), &[&a, &d, &c], Some(2)).unwrap()).into_iter().eq(0..30));
    assert_eq!(code(open_at(&make(), &[&a, &a], None)), ErrorCode::BadConfiguration);
    // One that missed an epoch and an empty one are not the two of three that may go on.
    let empty = lend(make, true);
    let addresses = [empty.address(), servers[1].address(), &unique_name("absent")];
    assert_eq!(code(open_at(&make(), &addresses, Some(2))), ErrorCode::NotEnoughReplicas);
}

fn memory_of_others_is_refused(make: &Make) {
    let shared = lend(make, false);
    let error = open(make, &[shared], None).map(drop).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration);
    assert!(error.detail.contains("exclusively"), "{error}");
    let used = lend(make, true);
    used.write(3, b"something else").unwrap();
    assert_eq!(code(open(make, &[used], None)), ErrorCode::StateForeign);
    let (one, other) = (lend(make, true), lend(make, true));
    for server in [&one, &other] {
        let log = open_at(&make(), &[server.address()], None).unwrap();
        append(&log, 0..1).unwrap();
    }
    let both = open_at(&make(), &[one.address(), other.address()], None);
    assert_eq!(code(both), ErrorCode::StateForeign, "copies of two logs");
    let half = open_at(&make(), &[one.address(), &unique_name("absent")], None);
    assert_eq!(code(half), ErrorCode::NotEnoughReplicas);
    // Segments that do not fit, in a new log and in one with smaller slots.
    for servers in [&[lend(make, true)][..], &[one][..]] {
        let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
        let device = device_at(&make(), &addresses, None).unwrap();
        let log = DurableLog::on(Box::new(device), &DurableLogOptions::default());
        assert_eq!(code(log), ErrorCode::BadConfiguration);
    }
    // A log is not made while a copy is missing.
    let fresh = lend(make, true);
    let missing = lend(make, true);
    let address = missing.address().to_owned();
    drop(missing);
    let half = open_at(&make(), &[fresh.address(), &address], Some(1));
    assert_eq!(code(half), ErrorCode::NotEnoughReplicas);
}

/// Removes the newest of the two headers of a copy: its writer has ended before it.
fn forget_newest_header(server: &MemoryServer) {
    let sequence = |place: u64| {
        let mut word = [0; 8];
        server.read(place + 24, &mut word).unwrap();
        u64::from_le_bytes(word)
    };
    let place = if sequence(0) > sequence(1024) { 0 } else { 1024 };
    server.write(place, &[0; 1024]).unwrap();
}

/// An opening that names another copy in place of one ends when its headers are in two of three: of the old copies and
/// of the new ones, no two sets go on that have none in common.
fn change_of_copies_that_ended_early_needs_both_sets(make: &Make) {
    let set = servers(make, 4);
    let [a, b, c, d] = [0, 1, 2, 3].map(|at: usize| set[at].address().to_owned());
    let absent = unique_name("absent");
    append(&open_at(&make(), &[&a, &b, &c], None).unwrap(), 0..10).unwrap();
    let mut before = vec![0; BYTES as usize];
    set[2].read(0, &mut before).unwrap();
    drop(open_at(&make(), &[&d, &b, &c], Some(2)).unwrap());
    set[2].write(0, &before).unwrap();
    [1, 3].iter().for_each(|at: &usize| forget_newest_header(&set[*at]));
    // With enough of both sets it would end; the old one may have gone on without these.
    let new = open_at(&make(), &[&d, &b, &absent], Some(2));
    assert_eq!(code(new), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &[&a, &c, &absent], Some(2)).unwrap();
    append(&log, 10..20).unwrap();
    drop(log);
    // Those that went on decide, and the others get what they have missed.
    assert_eq!(code(open_at(&make(), &[&d, &b, &c], Some(2))), ErrorCode::NotEnoughReplicas);
    drop(open_at(&make(), &[&a, &c, &d], Some(2)).unwrap());
    let log = open_at(&make(), &[&d, &c, &b], Some(2)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..20));
}

/// The address of a copy in a file that does not exist yet.
fn file(folder: &Folder, name: &str) -> String {
    format!("file:{}", folder.folder().join(name).display())
}

fn copy_in_a_file_survives_the_others(make: &Make) {
    let folder = Folder::new();
    let file = file(&folder, "copy");
    let first = servers(make, 2);
    let addresses = [first[0].address(), &file, first[1].address()];
    let device = device_at(&make(), &addresses, None).unwrap();
    let status = device.status();
    assert_eq!((device.copies(), status.in_memory()), (3, 2));
    let options = DurableLogOptions::default().segment_bytes(SEGMENT);
    let (log, _) = DurableLog::on(Box::new(device), &options).unwrap();
    assert_eq!(log.promise().medium, Medium::Replicas);
    assert_eq!(log.promise().survives_power, status.survives_power());
    append(&log, 0..300).unwrap();
    // No second process uses the file meanwhile, whatever else it names.
    let other = lend(make, true);
    let second = open_at(&make(), &[other.address(), &file], Some(0));
    assert_eq!(code(second), ErrorCode::StateInUse);
    append(&log, 300..310).unwrap();
    drop((log, first, other));
    // A loss of power has emptied the memory: only the caller knows that no other copy has gone on.
    let second = servers(make, 2);
    let addresses = [second[0].address(), second[1].address(), &file];
    assert_eq!(code(open_at(&make(), &addresses, None)), ErrorCode::NotEnoughReplicas);
    assert_eq!(code(open_at(&make(), &addresses, Some(2))), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &addresses, Some(1)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..310));
    append(&log, 310..320).unwrap();
    assert!(are_equal(&second));
    drop(log);
    // All three are as before.
    let log = open_at(&make(), &addresses, None).unwrap();
    assert!(numbers(&log).into_iter().eq(0..320));
    drop(log);
    // Two files mirror each other.
    let mirror = self::file(&folder, "mirror");
    let log = open_at(&make(), &[&file, &mirror], Some(1)).unwrap();
    append(&log, 320..330).unwrap();
    drop(log);
    let log = open_at(&make(), &[&mirror], Some(1)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..330));
}

fn copy_in_a_file_that_was_missing_is_made_equal(make: &Make) {
    let folder = Folder::new();
    let file = file(&folder, "copy");
    let servers = servers(make, 2);
    let [one, other] = [0, 1].map(|at: usize| servers[at].address());
    append(&open_at(&make(), &[one, other, &file], None).unwrap(), 0..50).unwrap();
    append(&open_at(&make(), &[one, other], Some(2)).unwrap(), 50..400).unwrap();
    // What it has is old, and does not count as one of the two that may go on.
    assert_eq!(code(open_at(&make(), &[&file], None)), ErrorCode::NotEnoughReplicas);
    let log = open_at(&make(), &[&file, one, other], Some(2)).unwrap();
    assert!(numbers(&log).into_iter().eq(0..400));
    append(&log, 400..410).unwrap();
    drop(log);
    // A new file in its place, as on another machine, is not the one that was named.
    let path = folder.folder().join("copy");
    let moved = folder.folder().join("moved");
    std::fs::rename(&path, &moved).unwrap();
    assert_eq!(code(open_at(&make(), &[&file, one, other], None)), ErrorCode::NotEnoughReplicas);
    std::fs::rename(&moved, &path).unwrap();
    // Moved to another path it is.
    std::fs::rename(&path, &moved).unwrap();
    let moved = self::file(&folder, "moved");
    let log = open_at(&make(), &[&moved, one, other], None).unwrap();
    assert!(numbers(&log).into_iter().eq(0..410));
}

#[test]
fn files_that_are_no_copies_are_refused() {
    let folder = Folder::new();
    let make = fabrics::named("mem");
    let open =
        |path: &std::path::Path| open_at(&make(), &[&format!("file:{}", path.display())], None);
    let refused = |bytes: &[u8]| {
        let path = folder.folder().join("other");
        std::fs::write(&path, bytes).unwrap();
        let refusal = code(open(&path));
        assert!(std::fs::read(&path).unwrap() == bytes, "it is as before");
        refusal
    };
    assert_eq!(code(open(folder.folder())), ErrorCode::StateForeign);
    assert_eq!(refused(b"something else"), ErrorCode::StateForeign);
    assert_eq!(refused(&[7; 9000]), ErrorCode::StateForeign);
    let path = folder.folder().join("copy");
    append(&open(&path).unwrap(), 0..9).unwrap();
    let whole = std::fs::read(&path).unwrap();
    let changed = |at: usize, to: u8| {
        let mut bytes = whole.clone();
        bytes[at] = to;
        refused(&bytes)
    };
    assert_eq!(changed(15, b'2'), ErrorCode::StateForeign, "another version");
    assert_eq!(changed(0, b'x'), ErrorCode::StateForeign);
    assert_eq!(changed(17, whole[17] ^ 1), ErrorCode::LogDamaged);
    // A file of something else that begins with zeros.
    for zeros in [3000, 9000, 70_000] {
        let mut bytes = vec![0; zeros];
        bytes.push(1);
        assert_eq!(refused(&bytes), ErrorCode::StateForeign);
    }
    // A part of it is no end of the log, and no copy of it a second one.
    std::fs::write(&path, &whole[..whole.len() - 4096]).unwrap();
    for _ in 0..2 {
        assert_eq!(code(open(&path)), ErrorCode::LogTruncated);
    }
    std::fs::write(&path, &whole).unwrap();
    std::fs::write(folder.folder().join("second"), &whole).unwrap();
    let both = [file(&folder, "copy"), file(&folder, "second")];
    let both = open_at(&make(), &[&both[0], &both[1]], Some(1));
    assert_eq!(code(both), ErrorCode::BadConfiguration);
    // Nor is one that ends before its table an empty log.
    std::fs::write(&path, &whole[..4096 + 2048]).unwrap();
    for _ in 0..2 {
        assert_eq!(code(open(&path)), ErrorCode::LogTruncated);
    }
    std::fs::write(&path, &whole).unwrap();
    // Another copy that is whole has the rest.
    let mirror = file(&folder, "mirror");
    drop(open_at(&make(), &[&file(&folder, "copy"), &mirror], Some(1)).unwrap());
    std::fs::write(&path, &std::fs::read(&path).unwrap()[..100_000]).unwrap();
    let log = open_at(&make(), &[&file(&folder, "copy"), &mirror], None).unwrap();
    assert!(numbers(&log).into_iter().eq(0..9));
    drop(log);
    assert!(numbers(&open_at(&make(), &[&file(&folder, "copy")], Some(1)).unwrap()).len() == 9);
    // A file that cannot be opened counts as a copy that is not reached.
    let absent = file(&folder, "absent/copy");
    assert_eq!(code(open_at(&make(), &[&mirror, &absent], None)), ErrorCode::NotEnoughReplicas);
    assert!(numbers(&open_at(&make(), &[&mirror, &absent], Some(1)).unwrap()).len() == 9);
    // Its maker ended within its first write.
    std::fs::write(&path, &whole[..11]).unwrap();
    assert_eq!(numbers(&open(&path).unwrap()), []);
}

/// A copy in memory of the test, with room for some bytes.
#[derive(Clone, Default)]
struct SmallCopy(Arc<Mutex<(Vec<u8>, u64)>>);

impl SmallCopy {
    fn with<T>(&self, does: impl FnOnce(&mut Vec<u8>, u64) -> T) -> T {
        let (bytes, room) = &mut *self.0.lock().unwrap();
        does(bytes, *room)
    }
}

impl LocalCopy for SmallCopy {
    fn address(&self) -> &'static str {
        "small"
    }
    fn id(&self) -> u64 {
        3
    }
    fn promise(&self) -> Promise {
        Promise::of(Medium::Memory)
    }
    fn bytes(&self) -> Result<u64, Error> {
        self.with(|bytes, _| Ok(bytes.len() as u64))
    }
    fn reserve(&mut self, upto: u64) -> Result<(), Error> {
        self.with(|bytes, room| {
            if upto > room {
                return Err(ErrorCode::LogFull.into());
            }
            bytes.resize(bytes.len().max(upto as usize), 0);
            Ok(())
        })
    }
    fn read(&mut self, place: u64, out: &mut [u8]) -> Result<(), Error> {
        self.with(|bytes, _| {
            let from = bytes.get(place as usize..).unwrap_or_default();
            let length = out.len().min(from.len());
            out[..length].copy_from_slice(&from[..length]);
            out[length..].fill(0);
            Ok(())
        })
    }
    fn write(&mut self, place: u64, from: &[u8]) -> Result<(), Error> {
        self.with(|bytes, _| {
            let end = place as usize + from.len();
            bytes.resize(bytes.len().max(end), 0);
            bytes[place as usize..end].copy_from_slice(from);
            Ok(())
        })
    }
    fn sync(&mut self) -> Result<(), Error> {
        Ok(())
    }
}

/// A copy without space is left out, also when the log is opened again, and gets what it has missed once there is space.
#[test]
fn full_copy_is_left_out() {
    let make = fabrics::named("mem");
    let (servers, small) = (servers(&make, 2), SmallCopy::default());
    small.0.lock().unwrap().1 = (64 << 10) + 2 * SEGMENT;
    let open = |least| {
        let addresses: Vec<&str> = servers.iter().map(MemoryServer::address).collect();
        let options = ReplicaOptions::default().copies_min(least);
        let device = loop {
            let local: Vec<Box<dyn LocalCopy>> = vec![Box::new(small.clone())];
            match ReplicatedDevice::open_with(&make(), &addresses, local, &options) {
                Err(error) if error.code == ErrorCode::StateInUse => std::thread::yield_now(),
                device => break device?,
            }
        };
        let status = device.status();
        let options = DurableLogOptions::default().segment_bytes(SEGMENT);
        Ok::<_, Error>((DurableLog::on(Box::new(device), &options)?.0, status))
    };
    // All three are needed: the log is full, and can be trimmed.
    let (log, _) = open(None).unwrap();
    let error = (0..).find_map(|number| append(&log, number..number + 1).err()).unwrap();
    assert_eq!(error.code, ErrorCode::LogFull, "{error}");
    log.trim(log.watermarks().durable).unwrap();
    append(&log, 0..10).unwrap();
    drop(log);
    let (log, status) = open(Some(2)).unwrap();
    append(&log, 10..1000).unwrap();
    assert_eq!((status.lost().len(), status.in_memory()), (1, 2));
    let found = numbers(&log);
    drop(log);
    let (log, status) = open(Some(2)).unwrap();
    assert_eq!(status.lost().len(), 1);
    append(&log, 1000..1010).unwrap();
    drop(log);
    assert_eq!(code(open(Some(3))), ErrorCode::NotEnoughReplicas);
    small.0.lock().unwrap().1 = u64::MAX;
    let (log, status) = open(None).unwrap();
    assert!(status.lost().is_empty());
    let found: Vec<u64> = found.into_iter().chain(1000..1010).collect();
    assert_eq!(numbers(&log), found);
    drop(log);
    // One that is shorter than it was is not taken for whole by the opening after one that has ended early.
    small.with(|bytes, _| bytes.truncate(70_000));
    small.0.lock().unwrap().1 = 0;
    assert_eq!(code(open(None)), ErrorCode::NotEnoughReplicas);
    small.0.lock().unwrap().1 = u64::MAX;
    small.with(|bytes, _| bytes.resize(1 << 20, 0));
    drop(servers);
    let only = |least| {
        let local: Vec<Box<dyn LocalCopy>> = vec![Box::new(small.clone())];
        let options = ReplicaOptions::default().copies_min(least);
        ReplicatedDevice::open_with(&make(), &[], local, &options)
    };
    assert_eq!(code(only(Some(1))), ErrorCode::LogTruncated);
}

/// Where the one copy that has all is left out, older ones are not taken for it.
#[test]
fn old_copy_is_not_taken_for_the_newest() {
    let make = fabrics::named("mem");
    let alone = SmallCopy::default();
    alone.0.lock().unwrap().1 = u64::MAX;
    let with = |addresses: &[&str]| loop {
        let local: Vec<Box<dyn LocalCopy>> = vec![Box::new(alone.clone())];
        let options = ReplicaOptions::default().copies_min(Some(1));
        match ReplicatedDevice::open_with(&make(), addresses, local, &options) {
            Err(error) if error.code == ErrorCode::StateInUse => std::thread::yield_now(),
            device => {
                let options = DurableLogOptions::default().segment_bytes(SEGMENT);
                return device.and_then(|device| DurableLog::on(Box::new(device), &options));
            }
        }
    };
    let (name, exclusive) = (unique_name("other"), LendOptions::default().exclusive(true));
    let lend = || MemoryServer::lend(&make(), &name, BYTES, &exclusive).unwrap();
    let other = lend();
    append(&with(&[&name]).unwrap().0, 0..10).unwrap();
    let mut old = vec![0; BYTES as usize];
    other.read(0, &mut old).unwrap();
    drop(other);
    append(&with(&[&name]).unwrap().0, 10..20).unwrap();
    let other = lend();
    other.write(0, &old).unwrap();
    alone.0.lock().unwrap().1 = 0;
    assert_eq!(code(with(&[&name])), ErrorCode::NotEnoughReplicas);
    alone.0.lock().unwrap().1 = u64::MAX;
    assert!(numbers(&with(&[&name]).unwrap().0).into_iter().eq(0..20));
}

/// Writers are killed again and again, and a process with a copy is: every record that was reported is in the others.
fn killed_writer_and_copy_lose_no_committed_record(fabric: &'static str) {
    let mut copies: Vec<Process> = Vec::new();
    let mut addresses: Vec<String> = Vec::new();
    let start = || {
        let mut copy = Process::child(&format!("lends {fabric} {}", unique_name("copy")));
        let address = copy.hear("at ");
        (copy, address)
    };
    for _ in 0..3 {
        let (copy, address) = start();
        copies.push(copy);
        addresses.push(address);
    }
    let mut random = Random::new(3);
    let mut reported = 0;
    for round in 0..10 {
        let mut writer = Process::child(&format!("appends {fabric} {}", addresses.join(" ")));
        for _ in 0..1 + random.below(40) {
            reported = writer.hear("record ").parse::<u64>().unwrap() + 1;
        }
        if round % 3 == 2 {
            // Its writer continues without it; then an empty copy takes its place.
            copies[round % 2].kill();
            for _ in 0..1 + random.below(40) {
                reported = writer.hear("record ").parse::<u64>().unwrap() + 1;
            }
        }
        drop(writer); // kill -9
        let names: Vec<&str> = addresses.iter().map(String::as_str).collect();
        let log = open_at(&process_fabric(fabric, &[]), &names, Some(2)).unwrap();
        let found = numbers(&log);
        let end = found.last().map_or(0, |last| last + 1);
        assert!(end >= reported, "{end} records of {reported}");
        assert!(found.iter().copied().eq(end - found.len() as u64..end));
        drop(log);
        if round % 3 == 2 {
            (copies[round % 2], addresses[round % 2]) = start();
        }
    }
}

#[test]
fn killed_writer_and_copy_lose_no_committed_record_over_shm() {
    killed_writer_and_copy_lose_no_committed_record("shm");
}

#[test]
fn killed_writer_and_copy_lose_no_committed_record_over_tcp() {
    killed_writer_and_copy_lose_no_committed_record("tcp");
}

#[test]
fn child() {
    let Some(words) = role() else { return };
    let fabric = process_fabric(&words[1], &[]);
    if words[0] == "lends" {
        let options = LendOptions::default().exclusive(true);
        let server = MemoryServer::lend(&fabric, &words[2], BYTES, &options).unwrap();
        say(&format!("at {}", server.address()));
        await_parent();
        return;
    }
    let addresses: Vec<&str> = words[2..].iter().map(String::as_str).collect();
    // The test kills one of three copies, and replaces it.
    let log = open_at(&fabric, &addresses, Some(2)).unwrap();
    let mut number = numbers(&log).last().map_or(0, |last| last + 1);
    loop {
        match append(&log, number..number + 1) {
            Ok(()) => {}
            Err(error) if error.code == ErrorCode::LogFull => {
                // What is left of it ends with the last records.
                log.trim(log.watermarks().durable).unwrap();
                continue;
            }
            Err(error) => panic!("{error}"),
        }
        say(&format!("record {number}"));
        number += 1;
    }
}
