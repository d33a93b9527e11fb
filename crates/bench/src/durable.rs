//! The durable log: a commit of one record and of groups, by one thread and by several, compared with a write and a
//! sync of the same bytes; and what durable memory costs.

use crate::onesided::draw;
use crate::policies::{LINES, Policy, lend_copies};
use crate::recovery::{self, Recovery};
use crate::settings::BenchDurable;
use crate::window::Figure;
use farside::durable::{
    DurableLog, DurableLogOptions, RecordTag, ReplicaOptions, ReplicatedDevice,
};
use farside::fabrics;
use farside::onesided::MemoryServer;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(60);
/// Bytes of a record, and of it in the log.
const RECORD: usize = 64;
const TAKES: usize = 96;
/// Records of a group, committed together by one thread.
const GROUPS: [usize; 4] = [1, 4, 16, 64];
/// Threads, each of which commits every record.
const THREADS: [usize; 3] = [2, 4, 8];
/// Bytes of the baseline's file and of a segment: no figure passes them.
const FILE_BYTES: u64 = 64 << 20;

#[derive(Debug, Serialize)]
struct DurableFigure {
    operation: &'static str,
    /// Records of a commit, on average; of a start, mebibytes that return.
    group: f64,
    threads: usize,
    #[serde(flatten)]
    time: Figure,
    /// Of a record, or of a mebibyte that returns.
    record_ns: f64,
    /// Times the write and sync of the same bytes; of several threads, of one record; of memory, that of a volatile home;
    /// of a start, a copy of the same bytes.
    ratio: f64,
}

/// Runs `farside bench durable`.
///
/// # Errors
/// Those of the folder and the log; that of output which cannot be written.
pub fn run(arguments: &BenchDurable, output: Output) -> Result<(), Failure> {
    let folder = arguments.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = folder.join(format!("farside-bench-{}", std::process::id()));
    let measured = measure(&folder, arguments.windows, output);
    let removed = std::fs::remove_dir_all(&folder);
    let (figures, promise) = measured?;
    removed.map_err(|error| Failure::system(format!("{}: {error}", folder.display())))?;
    let heads = ["operation", "threads", "group", "best", "median", "per record", "x raw"];
    let mut table = Table::new(heads).left(0);
    for one in &figures {
        table.row([
            one.operation.to_owned(),
            one.threads.to_string(),
            format!("{:.1}", one.group),
            time(one.time.best_ns),
            time(one.time.median_ns),
            time(one.record_ns),
            format!("{:.2}", one.ratio),
        ]);
    }
    output.line(table.text());
    output.line(format!(
        "records of {RECORD} B on {promise}; raw: pwrite and fdatasync of a file that is filled. Writes: of 64 B to lines \
         of another node over shared memory, x the same to a node without state. Starts: of a node whose memory returns, \
         per MiB, x a copy of the bytes"
    ));
    let labels = ["a record, ns, median", "records of a commit"];
    draw(arguments.plot.as_deref(), labels, &figures, |one| {
        (format!("{}, {} threads", one.operation, one.threads), one.group, one.record_ns)
    })?;
    output.value(&figures);
    Ok(())
}

fn measure(
    folder: &Path,
    windows: u32,
    output: Output,
) -> Result<(Vec<DurableFigure>, String), Failure> {
    let bar = output
        .bar("figures", (3 * GROUPS.len() + THREADS.len() + 4 * (1 + LINES.len()) + 1) as u64);
    let options = DurableLogOptions::default().segment_bytes(FILE_BYTES);
    let (log, _) = DurableLog::open(&folder.join("log"), &options)?;
    let raw = raw_file(&folder.join("raw"))?;
    let copies = Copies::new()?;
    let (mut figures, mut at, mut one_ns) = (Vec::new(), 0, f64::NAN);
    for group in GROUPS {
        // By turns, so that both have the same other work on the disk.
        let (mut raws, mut ours) = (Vec::new(), Vec::new());
        let bytes = vec![7; group * TAKES];
        for _ in 0..windows {
            at = (at + bytes.len() as u64) % (FILE_BYTES / 2);
            raws.push(timed(|| {
                raw.write_all_at(&bytes, at).and_then(|()| raw.sync_data()).map_err(failed)
            })?);
            ours.push(timed(|| append(&log, group))?);
        }
        let raw_ns = Figure::from_windows(raws, 1);
        one_ns = if group == 1 { raw_ns.median_ns } else { one_ns };
        let ours = Figure::from_windows(ours, 1);
        let replicated = Figure::from_windows(copies.windows(group, windows)?, 1);
        let each = [("raw", raw_ns), ("append", ours), ("append, 2 copies", replicated)];
        for (operation, time) in each {
            let (record_ns, ratio) =
                (time.median_ns / group as f64, time.median_ns / raw_ns.median_ns);
            let group = group as f64;
            figures.push(DurableFigure { operation, group, threads: 1, time, record_ns, ratio });
            bar.inc(1);
        }
    }
    for threads in THREADS {
        let before = log.stats();
        let each = u64::from(windows) * 2;
        let mut failure = Ok(());
        let took = timed(|| {
            std::thread::scope(|scope| {
                let run = || (0..each).try_for_each(|_| append(&log, 1));
                let started: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
                for thread in started {
                    let outcome = thread.join();
                    failure = outcome.unwrap_or_else(|_| Err(Failure::check("a thread has ended")));
                }
            });
            Ok::<(), Failure>(())
        })?;
        failure?;
        let stats = log.stats();
        let records = (stats.records - before.records) as f64;
        let time = Figure::from_windows(vec![took], stats.records - before.records);
        let group = records / (stats.groups - before.groups).max(1) as f64;
        let (record_ns, ratio) = (time.median_ns, time.median_ns / one_ns);
        figures.push(DurableFigure { operation: "append", group, threads, time, record_ns, ratio });
        bar.inc(1);
    }
    policies(folder, windows, &mut figures, || bar.inc(1))?;
    starts(folder, windows, &mut figures, || bar.inc(1))?;
    bar.finish_and_clear();
    Ok((figures, log.promise().to_string()))
}

/// Measures writes to memory, by turns for all states of its home.
fn policies(
    folder: &Path,
    windows: u32,
    figures: &mut Vec<DurableFigure>,
    measured: impl Fn(),
) -> Result<(), Failure> {
    let mut policies = Policy::all(folder)?;
    for lines in [None, Some(LINES[0]), Some(LINES[1])] {
        let mut times = [const { Vec::new() }; 4];
        for _ in 0..windows {
            for (policy, times) in policies.iter_mut().zip(&mut times) {
                times.push(match lines {
                    None => policy.time_write()?,
                    Some(lines) => policy.time_fence(lines)?,
                });
            }
        }
        let times = times.map(|times| Figure::from_windows(times, 1));
        let group = lines.unwrap_or(1) as f64;
        for (policy, time) in policies.iter().zip(&times) {
            let (record_ns, ratio) = (time.median_ns / group, time.median_ns / times[0].median_ns);
            let operation = policy.names[usize::from(lines.is_some())];
            let time = *time;
            figures.push(DurableFigure { operation, group, threads: 1, time, record_ns, ratio });
            measured();
        }
    }
    Ok(())
}

/// Measures starts of nodes whose memory returns, by turns, and copies of as many bytes.
fn starts(
    folder: &Path,
    windows: u32,
    figures: &mut Vec<DurableFigure>,
    measured: impl Fn(),
) -> Result<(), Failure> {
    let nodes = Recovery::all(folder)?;
    let (mut copies, mut times) = (Vec::new(), [const { Vec::new() }; 3]);
    for _ in 0..windows {
        copies.push(recovery::time_copy());
        for (node, times) in nodes.iter().zip(&mut times) {
            times.push(node.time_start()?);
        }
    }
    let copied = Figure::from_windows(copies, 1);
    let rows = nodes.iter().map(|node| node.name).zip(times);
    let rows = rows.map(|(name, times)| (name, Figure::from_windows(times, 1)));
    for (operation, time) in std::iter::once(("copy", copied)).chain(rows) {
        let group = recovery::FILLED_MIB;
        let (record_ns, ratio) = (time.median_ns / group, time.median_ns / copied.median_ns);
        figures.push(DurableFigure { operation, group, threads: 1, time, record_ns, ratio });
    }
    measured();
    Ok(())
}

/// A log with two copies in memory that this process lends over shared memory.
struct Copies {
    log: DurableLog,
    _servers: [MemoryServer; 2],
}

impl Copies {
    fn new() -> Result<Self, Failure> {
        let servers = lend_copies("copy", FILE_BYTES / 2)?;
        let addresses = servers.each_ref().map(MemoryServer::address);
        let fabric = fabrics::shared_memory()?;
        let device = ReplicatedDevice::open(&fabric, &addresses, &ReplicaOptions::default())?;
        let options = DurableLogOptions::default().segment_bytes(1 << 20);
        let (log, _) = DurableLog::on(Box::new(device), &options)?;
        Ok(Self { log, _servers: servers })
    }

    /// Measures commits of a group; trims outside of the time.
    fn windows(&self, group: usize, windows: u32) -> Result<Vec<f64>, Failure> {
        let mut times = Vec::new();
        for _ in 0..windows {
            times.push(timed(|| append(&self.log, group))?);
            self.log.trim(self.log.watermarks().durable)?;
        }
        Ok(times)
    }
}

fn timed<E>(run: impl FnOnce() -> Result<(), E>) -> Result<f64, E> {
    let start = Instant::now();
    run()?;
    Ok(start.elapsed().as_nanos() as f64)
}

/// Appends records and commits them together.
fn append(log: &DurableLog, records: usize) -> Result<(), Failure> {
    let tag = RecordTag { kind: 1, ..RecordTag::default() };
    let mut end = 0;
    for _ in 0..records {
        end = log.append(tag, &[7; RECORD])?;
    }
    Ok(log.commit(end, TIMEOUT)?)
}

fn failed(error: std::io::Error) -> Failure {
    Failure::system(format!("the file of the baseline: {error}"))
}

/// The baseline: a file that is filled, so that a sync has no metadata to write.
fn raw_file(path: &Path) -> Result<File, Failure> {
    let file = OpenOptions::new().create_new(true).read(true).write(true).open(path);
    let file = file.map_err(failed)?;
    let zeros = vec![0; 1 << 20];
    for at in 0..FILE_BYTES >> 20 {
        file.write_all_at(&zeros, at << 20).map_err(failed)?;
    }
    file.sync_all().map_err(failed)?;
    Ok(file)
}
