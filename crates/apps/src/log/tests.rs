//! Logs over shared memory and TCP.

use super::frame::{VOID, void_word};
use super::layout::GRANULE;
use super::*;
use crate::fabrics::{Make, make};
use farside::ErrorCode;
use farside::onesided::{LendOptions, MemoryClientOptions, MemoryServer, RemoteMemory, VectorIo};
use farside_testkit::{Random, WATCHDOG, unique_name};
use std::collections::BTreeMap;

farside_testkit::on_each_fabric! { mem shm tcp => (
    records_are_read_in_order_once
    modes_keep_their_round_trips
    writers_and_readers_agree
    trimmed_bytes_are_used_again
    full_log_is_an_error
    place_of_a_dead_writer_is_closed
    closed_writer_appends_again
    rest_of_a_plan_does_not_hold_readers
    lane_of_a_dead_writer_is_taken_over
    late_reader_gets_an_error
    wrong_use_is_refused
    damage_is_reported
) with crate::fabrics::make }

/// A log, and its memory.
struct TestLog<'a> {
    make: &'a Make,
    server: MemoryServer,
    log: Log,
}

fn client(make: &Make, server: &MemoryServer) -> (MemoryClient, RemoteMemory) {
    let mut client = MemoryClient::new(&make(), &MemoryClientOptions::default()).unwrap();
    let memory = client.open(server.address(), WATCHDOG).unwrap();
    (client, memory)
}

fn small() -> LogOptions {
    // Longer than a thread may wait for a processor.
    let lease = Duration::from_secs(60);
    LogOptions { bytes: 16 << 10, lanes: 4, lane_bytes: 4096, lease }
}

fn place(make: &Make, options: LogOptions) -> TestLog<'_> {
    let (name, lend) = (unique_name("log"), LendOptions::default());
    let server = MemoryServer::lend(&make(), &name, options.footprint(), &lend).unwrap();
    let (mut client, memory) = client(make, &server);
    let log = Log::create(&mut client, memory.at(0), options, WATCHDOG).unwrap();
    TestLog { make, server, log }
}

impl TestLog<'_> {
    /// Another client, and the log as it sees it.
    fn open(&self) -> (MemoryClient, Log) {
        let (mut client, memory) = client(self.make, &self.server);
        let log = Log::open(&mut client, memory.at(0), WATCHDOG).unwrap();
        assert_eq!(log.options(), self.log.options());
        (client, log)
    }

    fn writer(&self, mode: AppendMode) -> (MemoryClient, LogWriter) {
        let (mut client, log) = self.open();
        let writer = log.writer(&mut client, mode, WATCHDOG).unwrap();
        (client, writer)
    }
}

const MODES: [AppendMode; 3] =
    [AppendMode::Positioned, AppendMode::Planned { quota_bytes: 512 }, AppendMode::Lazy];

/// Reads all records that are there.
fn read_all(client: &mut MemoryClient, reader: &mut LogReader) -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    while let Some(record) = reader.next(client, Duration::ZERO).unwrap() {
        all.push(record.bytes.to_vec());
    }
    all
}

fn records_are_read_in_order_once(make: &Make) {
    for mode in MODES {
        let place = place(make, small());
        let (mut client, mut writer) = place.writer(mode);
        let mut reader = place.log.reader(&mut client, WATCHDOG);
        assert!(reader.is_err(), "a memory of another client");
        let (mut reading, log) = place.open();
        reader = log.reader(&mut reading, WATCHDOG);
        let mut reader = reader.unwrap();
        assert_eq!(reader.next(&mut reading, Duration::ZERO), Ok(None));

        let table = client.register(4096).unwrap();
        let bytes: Vec<u8> = (0..4096).map(|at| at as u8).collect();
        table.write(0, &bytes).unwrap();
        let mut expected = Vec::new();
        let mut random = Random::new(7);
        for round in 0..60_u64 {
            let length = random.below(200) as usize;
            let record = vec![round as u8; length];
            writer.append(&mut client, &record, WATCHDOG).unwrap();
            expected.push(record);
            let ranges: Vec<(u64, u32)> = (0..random.below(5))
                .map(|_| (random.below(4000), random.below(90) as u32))
                .collect();
            let way = VectorIo::ALL[round as usize % 3];
            writer.append_table(&mut client, &table, &ranges, way, WATCHDOG).unwrap();
            let of_table = |(at, length): &(u64, u32)| {
                bytes[*at as usize..*at as usize + *length as usize].to_vec()
            };
            expected.extend(ranges.iter().map(of_table));
            let two: [&[u8]; 2] = [&round.to_le_bytes(), b""];
            writer.append_batch(&mut client, &two, WATCHDOG).unwrap();
            expected.extend(two.map(<[u8]>::to_vec));
            if round % 4 == 3 {
                assert_eq!(read_all(&mut reading, &mut reader), expected, "{mode:?} {round}");
                expected.clear();
                let cursor = reader.cursor();
                log.trim(&mut reading, &cursor, WATCHDOG).unwrap();
            }
        }
        writer.finish(&mut client, WATCHDOG).unwrap();
        assert_eq!(reader.holes_closed(), 0);
    }
}

fn modes_keep_their_round_trips(make: &Make) {
    let options = small();
    let place = place(make, options);
    // Work requests of an append: the record and its word; a reservation before them.
    for (mode, first, later) in [(MODES[0], 3, 3), (MODES[1], 3, 2), (MODES[2], 2, 2)] {
        let (mut client, mut writer) = place.writer(mode);
        for expected in [first, later, later] {
            let before = client.stats();
            writer.append(&mut client, &[1; 64], WATCHDOG).unwrap();
            let now = client.stats();
            assert_eq!(now.work_requests - before.work_requests, expected, "{mode:?}");
            // Over a fabric with order one doorbell a round trip, unless the requests end within their calls.
            let posted = expected - (now.in_call - before.in_call);
            if client.capabilities().message_order && posted > 0 {
                assert_eq!(now.doorbells - before.doorbells, posted - 1, "{mode:?}");
            }
        }
        writer.finish(&mut client, WATCHDOG).unwrap();
    }
}

/// Several writers of each mode, and readers that come at different times.
fn writers_and_readers_agree(make: &Make) {
    const RECORDS: u64 = 120;
    let place = place(make, LogOptions { bytes: 256 << 10, lane_bytes: 64 << 10, ..small() });
    let modes = [MODES[0], MODES[0], MODES[1], MODES[2], MODES[2]];
    let writes = |number: usize, mode| {
        let (mut client, mut writer) = place.writer(mode);
        for record in 0..RECORDS {
            let record = [number as u64, record].map(u64::to_le_bytes).concat();
            writer.append(&mut client, &record, WATCHDOG).unwrap();
        }
        writer.finish(&mut client, WATCHDOG).unwrap();
    };
    let reads = || {
        let (mut client, log) = place.open();
        let mut reader = log.reader(&mut client, WATCHDOG).unwrap();
        let mut all = Vec::new();
        while all.len() < modes.len() * RECORDS as usize {
            let record = reader.next(&mut client, WATCHDOG).unwrap().unwrap();
            all.push((record.position, record.bytes.to_vec()));
        }
        assert_eq!(reader.next(&mut client, Duration::ZERO), Ok(None));
        all
    };
    let all = std::thread::scope(|scope| {
        for (number, mode) in modes.into_iter().enumerate() {
            scope.spawn(move || writes(number, mode));
        }
        let readers = [0; 3].map(|_| scope.spawn(reads));
        readers.map(|reader| reader.join().unwrap())
    });
    assert_eq!(all[0], all[1]);
    assert_eq!(all[0], all[2]);
    assert_eq!(all[0], reads());
    let mut next = BTreeMap::new();
    let mut before = 0;
    for (position, record) in &all[0] {
        assert!(*position >= before);
        before = *position;
        let (writer, number) = record.split_at(8);
        let next = next.entry(writer.to_vec()).or_insert(0_u64);
        assert_eq!(number, next.to_le_bytes());
        *next += 1;
    }
}

fn trimmed_bytes_are_used_again(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Positioned);
    let (mut reading, log) = place.open();
    let mut reader = log.reader(&mut reading, WATCHDOG).unwrap();
    let mut random = Random::new(3);
    for round in 0..200_u64 {
        let record = vec![round as u8; random.below(3000) as usize];
        writer.append(&mut client, &record, WATCHDOG).unwrap();
        assert_eq!(reader.next(&mut reading, WATCHDOG).unwrap().unwrap().bytes, record);
        if round % 3 == 2 {
            let cursor = reader.cursor();
            log.trim(&mut reading, &cursor, WATCHDOG).unwrap();
            // A reader begins where the log begins now.
            let other = log.reader(&mut reading, WATCHDOG).unwrap().cursor();
            assert_eq!(other, cursor);
        }
    }
}

fn full_log_is_an_error(make: &Make) {
    for mode in MODES {
        let place = place(make, small());
        let (mut client, mut writer) = place.writer(mode);
        let mut appended = 0;
        let full = loop {
            match writer.append(&mut client, &[7; 100], WATCHDOG) {
                Ok(_) => appended += 1,
                Err(error) => break error,
            }
        };
        assert!(matches!(full, LogError::Full(_)), "{mode:?} {full}");
        assert_eq!(full.code(), ErrorCode::OutOfMemory);
        let again = writer.append(&mut client, &[7; 100], WATCHDOG);
        assert!(matches!(again, Err(LogError::Full(_))), "{again:?}");
        let (mut reading, log) = place.open();
        let mut reader = log.reader(&mut reading, WATCHDOG).unwrap();
        assert_eq!(read_all(&mut reading, &mut reader).len(), appended, "{mode:?}");
        let cursor = reader.cursor();
        log.trim(&mut reading, &cursor, WATCHDOG).unwrap();
        writer.append(&mut client, b"after", WATCHDOG).unwrap();
        let next = reader.next(&mut reading, WATCHDOG).unwrap().unwrap();
        assert_eq!(next.bytes, b"after", "{mode:?}");
    }
}

/// Reserves places as a writer that dies then.
fn reserve(client: &mut MemoryClient, log: &Log, bytes: u64) -> u64 {
    let added = client.fetch_add(log.layout.tail(), bytes).unwrap();
    client.wait(added, WATCHDOG).unwrap()
}

fn place_of_a_dead_writer_is_closed(make: &Make) {
    let place = place(make, LogOptions { lease: Duration::from_millis(300), ..small() });
    let (mut client, mut writer) = place.writer(AppendMode::Positioned);
    let (mut dead, log) = place.open();
    writer.append(&mut client, b"before", WATCHDOG).unwrap();
    // One of nothing, one with a part of the record, and records of others between and behind.
    reserve(&mut dead, &log, 8 * GRANULE);
    writer.append(&mut client, b"between", WATCHDOG).unwrap();
    let at = reserve(&mut dead, &log, 16 * GRANULE);
    let ring = log.layout.ring();
    let part = [0xff; 9 * GRANULE as usize - 8];
    dead.write_bytes(ring.at(at + 8), &part, WATCHDOG).unwrap();
    writer.append(&mut client, b"behind", WATCHDOG).unwrap();
    reserve(&mut dead, &log, GRANULE);

    let (mut reading, log) = place.open();
    let mut readers = [0; 2].map(|_| log.reader(&mut reading, WATCHDOG).unwrap());
    for record in [&b"before"[..], b"between", b"behind"] {
        for reader in &mut readers {
            assert_eq!(reader.next(&mut reading, WATCHDOG).unwrap().unwrap().bytes, record);
        }
    }
    // The last one has no record behind it.
    writer.append(&mut client, b"last", WATCHDOG).unwrap();
    for reader in &mut readers {
        assert_eq!(reader.next(&mut reading, WATCHDOG).unwrap().unwrap().bytes, b"last");
    }
    // More, if the writer was too slow itself.
    assert!(readers.map(|reader| reader.holes_closed()).iter().sum::<u64>() >= 3);
    let mut later = log.reader(&mut reading, WATCHDOG).unwrap();
    assert_eq!(read_all(&mut reading, &mut later).len(), 4);
    assert_eq!(later.holes_closed(), 0);
}

/// A writer whose place was closed by readers puts its record elsewhere, once.
fn closed_writer_appends_again(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Planned { quota_bytes: 512 });
    let first = writer.append(&mut client, b"first", WATCHDOG).unwrap().unwrap();
    let (mut other, log) = place.open();
    let ring = log.layout.ring();
    let next = first + 2 * GRANULE;
    let void = void_word(ring.seed, next, VOID, 512 / GRANULE - 2);
    let swapped = other.compare_swap(ring.at(next), 0, void).unwrap();
    assert_eq!(other.wait(swapped, WATCHDOG), Ok(0));
    let second = writer.append(&mut client, b"second", WATCHDOG).unwrap().unwrap();
    assert_eq!(second, 512);
    let mut reader = log.reader(&mut other, WATCHDOG).unwrap();
    for expected in [&b"first"[..], b"second"] {
        let record = reader.next(&mut other, Duration::ZERO).unwrap().unwrap();
        assert_eq!(record.bytes, expected);
    }
}

fn rest_of_a_plan_does_not_hold_readers(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Planned { quota_bytes: 1024 });
    let (mut other, mut positioned) = place.writer(AppendMode::Positioned);
    writer.append(&mut client, b"planned", WATCHDOG).unwrap();
    positioned.append(&mut other, b"positioned", WATCHDOG).unwrap();
    writer.finish(&mut client, WATCHDOG).unwrap();
    let (mut reading, log) = place.open();
    let mut reader = log.reader(&mut reading, WATCHDOG).unwrap();
    let all = read_all(&mut reading, &mut reader);
    assert_eq!(all, [b"planned".to_vec(), b"positioned".to_vec()]);
}

fn lane_of_a_dead_writer_is_taken_over(make: &Make) {
    let place = place(make, LogOptions { lanes: 1, lease: Duration::from_secs(1), ..small() });
    let (mut dead, mut writer) = place.writer(AppendMode::Lazy);
    writer.append(&mut dead, b"of the dead", WATCHDOG).unwrap();
    let (mut client, log) = place.open();
    let refused = log.writer(&mut client, AppendMode::Lazy, Duration::from_millis(1));
    assert_eq!(refused.err(), Some(LogError::LanesInUse));
    drop((dead, writer));
    let mut expected = vec![b"of the dead".to_vec()];
    for round in 0..3_u8 {
        let mut writer = log.writer(&mut client, AppendMode::Lazy, WATCHDOG).unwrap();
        for record in 0..3 {
            writer.append(&mut client, &[round, record], WATCHDOG).unwrap();
            expected.push(vec![round, record]);
        }
        writer.finish(&mut client, WATCHDOG).unwrap();
    }
    let mut reader = log.reader(&mut client, WATCHDOG).unwrap();
    assert_eq!(read_all(&mut client, &mut reader), expected);
}

fn late_reader_gets_an_error(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Positioned);
    let (mut reading, log) = place.open();
    let [mut fast, mut slow] = [0; 2].map(|_| log.reader(&mut reading, WATCHDOG).unwrap());
    writer.append_batch(&mut client, &[b"one", b"two"], WATCHDOG).unwrap();
    slow.next(&mut reading, WATCHDOG).unwrap().unwrap();
    let within = slow.cursor();
    assert_eq!((within.position(), within.read), (0, 1));
    let mut resumed = log.reader_at(&mut reading, &within, WATCHDOG).unwrap();
    assert_eq!(resumed.next(&mut reading, WATCHDOG).unwrap().unwrap().bytes, b"two");
    for _ in 0..60 {
        writer.append(&mut client, &[1; 100], WATCHDOG).unwrap();
    }
    assert_eq!(read_all(&mut reading, &mut fast).len(), 62);
    let cursor = fast.cursor();
    log.trim(&mut reading, &cursor, WATCHDOG).unwrap();
    let again = log.reader_at(&mut reading, &within, WATCHDOG).err();
    assert_eq!(again, Some(LogError::Trimmed(cursor.position())));
    // What was read before it was trimmed is not lost; then the reader gets the error.
    let told = loop {
        match slow.next(&mut reading, Duration::ZERO) {
            Ok(Some(_)) => {}
            Ok(None) => {
                writer.append(&mut client, &[1; 100], WATCHDOG).unwrap();
            }
            Err(error) => break error,
        }
    };
    assert_eq!(told, LogError::Trimmed(cursor.position()));
}

fn wrong_use_is_refused(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Positioned);
    let large = writer.append(&mut client, &[0; 5000], WATCHDOG);
    assert_eq!(large, Err(LogError::TooLarge(5056, 4096)));
    assert_eq!(writer.append_batch(&mut client, &[], WATCHDOG), Ok(None));
    let table = client.register(64).unwrap();
    let outside = writer.append_table(
        &mut client,
        &table,
        &[(table.len() as u64 - 4, 8)],
        VectorIo::Auto,
        WATCHDOG,
    );
    assert_eq!(outside.map_err(|error| error.code()), Err(ErrorCode::OutOfBounds));
    writer.append(&mut client, b"fine", WATCHDOG).unwrap();

    let memory = place.log.layout.at.memory();
    let (mut client, _) = place.open();
    let memory_here = client_memory(&mut client, &place);
    let exists = Log::create(&mut client, memory_here.at(0), small(), WATCHDOG);
    assert_eq!(exists.err(), Some(LogError::Exists));
    for at in [64, memory.bytes() - 64] {
        let none = Log::open(&mut client, memory_here.at(at), WATCHDOG);
        assert_eq!(none.err(), Some(LogError::NotALog));
    }
    for options in [
        LogOptions { bytes: 100, ..small() },
        LogOptions { lanes: 65, ..small() },
        LogOptions { lease: Duration::ZERO, ..small() },
        LogOptions { bytes: 1 << 30, ..small() },
    ] {
        let refused = Log::create(&mut client, memory_here.at(0), options, WATCHDOG).err();
        assert!(matches!(refused, Some(LogError::Options(_))), "{refused:?}");
    }
    let (mut client, log) = place.open();
    let quota = AppendMode::Planned { quota_bytes: 1 << 20 };
    assert!(matches!(log.writer(&mut client, quota, WATCHDOG), Err(LogError::Options(_))));
}

fn client_memory(client: &mut MemoryClient, place: &TestLog<'_>) -> RemoteMemory {
    client.open(place.server.address(), WATCHDOG).unwrap()
}

fn damage_is_reported(make: &Make) {
    let place = place(make, small());
    let (mut client, mut writer) = place.writer(AppendMode::Positioned);
    let at = writer.append(&mut client, &[5; 64], WATCHDOG).unwrap().unwrap();
    writer.append(&mut client, b"behind", WATCHDOG).unwrap();
    let ring = place.log.layout.ring();
    let offset = ring.at(at + 40).offset();
    place.server.write(offset, &[6]).unwrap();
    let (mut reading, log) = place.open();
    let mut reader = log.reader(&mut reading, WATCHDOG).unwrap();
    assert_eq!(reader.next(&mut reading, WATCHDOG), Err(LogError::Corrupt(at)));
    assert_eq!(reader.next(&mut reading, WATCHDOG), Err(LogError::Corrupt(at)));
    place.server.write(offset, &[5]).unwrap();
    assert_eq!(reader.next(&mut reading, WATCHDOG).unwrap().unwrap().bytes, [5; 64]);
}

/// Writers that come back when readers close their places: the compare-and-swap of the first word decides, and all readers
/// agree. Half of the records are committed long after a lease.
#[test]
fn late_writers_and_readers_agree() {
    const RECORDS: u64 = 60;
    let options = LogOptions { bytes: 512 << 10, lease: Duration::from_millis(2), ..small() };
    let make = make("shm");
    let place = place(&make, options);
    let writes = |number: u64| {
        let (mut client, log) = place.open();
        let (ring, mut random) = (log.layout.ring(), Random::new(number));
        let mut frame = frame::RecordFrame::new(&client).unwrap();
        let mut committed = Vec::new();
        for record in 0..RECORDS {
            let bytes = [number, record].map(u64::to_le_bytes).concat();
            let padding = vec![0; 32 * random.below(6) as usize];
            frame.fill(&client, frame::RECORD, &[bytes.clone(), padding].concat()).unwrap();
            let at = reserve(&mut client, &log, frame.footprint());
            let pause = Duration::from_micros([0, 500, 1500, 2500, 6000][random.below(5) as usize]);
            let first = frame.seal(ring.seed, at, (number, record)).unwrap();
            let mut requests = Requests::default();
            let written = (&frame, at, 8);
            let deadline = Deadline::after(WATCHDOG);
            // The fault: a writer that pauses before its record, or before the word.
            let is_before = random.below(2) == 0;
            std::thread::park_timeout(if is_before { pause } else { Duration::ZERO });
            appender::write_frame(&mut client, &ring, written, None, &mut requests).unwrap();
            requests.wait(&mut client, &deadline).unwrap();
            std::thread::park_timeout(if is_before { Duration::ZERO } else { pause });
            if deadline.replace(&mut client, ring.at(at), (0, first)).unwrap() == 0 {
                committed.push(bytes);
            }
        }
        committed
    };
    let ends = std::sync::atomic::AtomicBool::new(false);
    let reads = || {
        let (mut client, log) = place.open();
        let mut reader = log.reader(&mut client, WATCHDOG).unwrap();
        let mut all = Vec::new();
        loop {
            let is_last = ends.load(std::sync::atomic::Ordering::SeqCst);
            match reader.next(&mut client, Duration::from_millis(20)).unwrap() {
                Some(record) => all.push(record.bytes[..16].to_vec()),
                None if is_last => return (all, reader.holes_closed()),
                None => {}
            }
        }
    };
    let (written, read) = std::thread::scope(|scope| {
        let readers = [0; 2].map(|_| scope.spawn(reads));
        let writers = [1, 2, 3].map(|number| scope.spawn(move || writes(number)));
        let written = writers.map(|writer| writer.join().unwrap()).concat();
        ends.store(true, std::sync::atomic::Ordering::SeqCst);
        (written, readers.map(|reader| reader.join().unwrap()))
    });
    let [(first, closed), (second, also)] = read;
    assert!(first == second, "the readers disagree");
    assert!(closed + also > 0 && written.len() < 3 * RECORDS as usize, "no place was closed");
    let differ = |some: &[Vec<u8>], others: &[Vec<u8>]| {
        some.iter().find(|record| !others.contains(record)).map(|record| [record[0], record[8]])
    };
    assert_eq!(differ(&written, &first), None, "writer and number of a record that is lost");
    assert_eq!(differ(&first, &written), None, "writer and number of a record that was refused");
    assert_eq!(first.len(), written.len(), "a record is twice in the log");
}
