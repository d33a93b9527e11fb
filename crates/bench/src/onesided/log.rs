//! The log: appends by mode, batch and way of vector IO, and reads (paper 000, figure 19).

use super::{Lent, TIMEOUT};
use crate::settings::BenchLent;
use crate::window::{Figure, measure};
use farside::onesided::{Buffer, MemoryClient, VectorIo};
use farside_apps::log::{AppendMode, Log, LogError, LogOptions, LogReader, LogWriter};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;
use std::time::{Duration, Instant};

/// Records of a batch.
const BATCHES: [usize; 4] = [1, 4, 16, 32];
/// Bytes of a record.
const RECORD: usize = 64;
/// From record to record in the table of a writer.
const STRIDE: u64 = 256;
const QUOTA: u64 = 64 << 10;
/// Records that a read figure takes at least.
const READS: u64 = 20_000;

/// The cost of an append, or of a read.
#[derive(Debug, Serialize)]
struct LogFigure {
    operation: &'static str,
    mode: &'static str,
    way: &'static str,
    batch: usize,
    #[serde(flatten)]
    time: Figure,
    /// Of a record.
    record_ns: f64,
    /// Work requests of an append.
    work_requests: f64,
    /// Times the cost of a record of the ring.
    ratio: f64,
}

/// Runs `farside bench log`.
///
/// # Errors
/// Those of the memory server and the log; that of output which cannot be written.
pub fn run(arguments: &BenchLent, output: Output) -> Result<(), Failure> {
    let options =
        LogOptions { bytes: 16 << 20, lanes: 1, lane_bytes: 16 << 20, ..LogOptions::default() };
    let lent = Lent::new(arguments, options.footprint())?;
    let (mut client, memory) = lent.client()?;
    let ring_ns = ring(arguments.windows)?;
    let log = Log::create(&mut client, memory.at(0), options, TIMEOUT)?;
    let mut bench = LogBench { table: client.register(STRIDE * 32)?, client, log, ring_ns };
    let modes = [
        ("positioned", AppendMode::Positioned),
        ("planned", AppendMode::Planned { quota_bytes: QUOTA }),
        ("lazy", AppendMode::Lazy),
    ];
    let bar = output.bar("figures", 3 * (1 + 2 * (BATCHES.len() as u64 - 1)));
    let mut figures = Vec::new();
    for (name, mode) in modes {
        for batch in BATCHES {
            let ways = if batch == 1 { &["one"][..] } else { &["stage", "gather"] };
            for way in ways {
                figures.push(bench.appends((name, mode), way, batch, arguments.windows)?);
                bar.inc(1);
            }
        }
        figures.push(bench.reads((name, mode))?);
    }
    bar.finish_and_clear();
    let heads =
        ["operation", "mode", "way", "batch", "requests", "best", "median", "per record", "x ring"];
    let mut table = Table::new(heads).left(0).left(1);
    for one in &figures {
        table.row([
            one.operation.to_owned(),
            one.mode.to_owned(),
            one.way.to_owned(),
            one.batch.to_string(),
            format!("{:.1}", one.work_requests),
            time(one.time.best_ns),
            time(one.time.median_ns),
            time(one.record_ns),
            format!("{:.1}", one.ratio),
        ]);
    }
    output.line(table.text());
    let ring = time(ring_ns);
    output
        .line(format!("records of {RECORD} B over {}; ring: {ring} a record", lent.fabric.name()));
    let labels = ["a record, ns, median", "records of a batch"];
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let name = format!("{} {} {}", one.operation, one.mode, one.way);
        (name, one.batch as f64, one.record_ns)
    })?;
    output.value(&figures);
    Ok(())
}

/// The baseline: records of 64 B through a ring between two threads, a sequence number in each.
fn ring(windows: u32) -> Result<f64, Failure> {
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    const SLOTS: u64 = 1 << 14;
    let ring: Vec<[AtomicU64; RECORD / 8 + 1]> = (0..SLOTS).map(|_| Default::default()).collect();
    let (read, ends) = (AtomicU64::new(0), AtomicBool::new(false));
    let figure = std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut next = 0;
            let mut record = [0; RECORD / 8];
            while !ends.load(Ordering::Relaxed) {
                let slot = &ring[(next % SLOTS) as usize];
                if slot[0].load(Ordering::Acquire) != next + 1 {
                    std::hint::spin_loop();
                    continue;
                }
                record
                    .iter_mut()
                    .zip(&slot[1..])
                    .for_each(|(to, from)| *to = from.load(Ordering::Relaxed));
                std::hint::black_box(&record);
                next += 1;
                if next.is_multiple_of(64) {
                    read.store(next, Ordering::Release);
                }
            }
        });
        let mut next = 0_u64;
        let figure = measure(windows, |count| {
            for _ in 0..count {
                while next >= read.load(Ordering::Acquire) + SLOTS {
                    std::hint::spin_loop();
                }
                let slot = &ring[(next % SLOTS) as usize];
                slot[1..].iter().for_each(|word| word.store(next, Ordering::Relaxed));
                next += 1;
                slot[0].store(next, Ordering::Release);
            }
            Ok::<(), Failure>(())
        });
        ends.store(true, Ordering::Relaxed);
        figure
    });
    Ok(figure?.median_ns)
}

struct LogBench {
    client: MemoryClient,
    log: Log,
    table: Buffer,
    ring_ns: f64,
}

impl LogBench {
    /// Measures appends; trims the log whenever it is full, outside of the time.
    fn appends(
        &mut self,
        (name, mode): (&'static str, AppendMode),
        way: &'static str,
        batch: usize,
        windows: u32,
    ) -> Result<LogFigure, Failure> {
        let mut writer = self.log.writer(&mut self.client, mode, TIMEOUT)?;
        let mut reader = self.log.reader(&mut self.client, TIMEOUT)?;
        let mut requests = (0, 0);
        let mut times = Vec::new();
        // Windows of the same number of appends: a quarter of a millisecond, if each takes a microsecond.
        let count = 256;
        for _ in 0..windows {
            let before = self.client.stats().work_requests;
            let start = Instant::now();
            let mut done = 0;
            while done < count {
                match self.append(&mut writer, way, batch) {
                    Ok(()) => done += 1,
                    Err(LogError::Full(_)) => break,
                    Err(error) => return Err(error.into()),
                }
            }
            let took = start.elapsed();
            if done == count {
                times.push(took.as_nanos() as f64);
                let posted = self.client.stats().work_requests - before;
                requests = (requests.0 + posted, requests.1 + count);
            } else {
                self.empty(&mut reader)?;
            }
        }
        self.empty(&mut reader)?;
        writer.finish(&mut self.client, TIMEOUT)?;
        let time = Figure::from_windows(times, count);
        let record_ns = time.median_ns / batch as f64;
        let work_requests = requests.0 as f64 / requests.1.max(1) as f64;
        let ratio = record_ns / self.ring_ns;
        Ok(LogFigure {
            operation: "append",
            mode: name,
            way,
            batch,
            time,
            record_ns,
            work_requests,
            ratio,
        })
    }

    fn append(&mut self, writer: &mut LogWriter, way: &str, batch: usize) -> Result<(), LogError> {
        let client = &mut self.client;
        let record = [7; RECORD];
        let appended = match way {
            "one" => writer.append(client, &record, TIMEOUT),
            "stage" => writer.append_batch(client, &[&record[..]; 32][..batch], TIMEOUT),
            _ => {
                let records: [(u64, u32); 32] =
                    std::array::from_fn(|at| (at as u64 * STRIDE, RECORD as u32));
                writer.append_table(
                    client,
                    &self.table,
                    &records[..batch],
                    VectorIo::Gather,
                    TIMEOUT,
                )
            }
        };
        appended.map(drop)
    }

    /// Reads all records, and frees them.
    fn empty(&mut self, reader: &mut LogReader) -> Result<u64, Failure> {
        let mut count = 0;
        while reader.next(&mut self.client, Duration::ZERO)?.is_some() {
            count += 1;
        }
        let cursor = reader.cursor();
        self.log.trim(&mut self.client, &cursor, TIMEOUT)?;
        Ok(count)
    }

    /// Measures reads of records that are in the log.
    fn reads(&mut self, (name, mode): (&'static str, AppendMode)) -> Result<LogFigure, Failure> {
        let mut writer = self.log.writer(&mut self.client, mode, TIMEOUT)?;
        let mut reader = self.log.reader(&mut self.client, TIMEOUT)?;
        self.empty(&mut reader)?;
        for _ in 0..READS {
            self.append(&mut writer, "one", 1)?;
        }
        writer.finish(&mut self.client, TIMEOUT)?;
        let before = self.client.stats().work_requests;
        let start = Instant::now();
        let mut count = 0;
        while count < READS && reader.next(&mut self.client, TIMEOUT)?.is_some() {
            count += 1;
        }
        let took = start.elapsed().as_nanos() as f64;
        let work_requests = (self.client.stats().work_requests - before) as f64 / READS as f64;
        self.empty(&mut reader)?;
        let time = Figure::from_windows(vec![took], READS);
        let (record_ns, ratio) = (time.median_ns, time.median_ns / self.ring_ns);
        let (operation, way) = ("read", "one");
        Ok(LogFigure {
            operation,
            mode: name,
            way,
            batch: 1,
            time,
            record_ns,
            work_requests,
            ratio,
        })
    }
}
