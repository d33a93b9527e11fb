//! IO consolidation: small writes collected in a burst buffer, compared with a request for each (paper 000, section
//! III-C, figure 8).

use super::{DEPTH, Lent, Pipeline, TIMEOUT};
use crate::settings::BenchLent;
use crate::window::{Figure, measure};
use farside::Error;
use farside::onesided::{BurstBuffer, BurstOptions, MemoryClient, RemoteMemory};
use farside_apps::ycsb::WorkloadRandom;
use farside_apps::ycsb::generator::{ZIPFIAN_CONSTANT, Zipfian};
use farside_base::Random;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;

/// Bytes of a write, of a block, and of the remote memory.
const WRITE: usize = 32;
const BLOCK: u64 = 1024;
const BYTES: u64 = 1 << 20;
/// Writes of a block after which it is flushed.
const THETAS: [u32; 6] = [1, 2, 4, 8, 16, 32];
/// Blocks that are held, and those that a hint calls hot.
const HELD: u64 = 64;
const HOT: u64 = 48;
/// Offsets of a pattern, which is repeated.
const OFFSETS: usize = 1 << 15;
/// Direct requests that share a doorbell.
const BATCHES: [usize; 2] = [1, 8];

/// Writes of a pattern in one way.
#[derive(Debug, Serialize)]
struct ConsolidationFigure {
    pattern: &'static str,
    way: String,
    /// Writes of a block until its flush; zero: each is posted by itself.
    theta: u32,
    #[serde(flatten)]
    time: Figure,
    writes_per_us: f64,
    requests_per_write: f64,
    doorbells_per_write: f64,
    /// Against the faster direct way.
    gain: f64,
}

/// Where the writes go.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pattern {
    Sequential,
    Random,
    Zipf,
}

impl Pattern {
    const ALL: [Self; 3] = [Self::Sequential, Self::Random, Self::Zipf];

    const fn name(self) -> &'static str {
        match self {
            Self::Sequential => "sequential",
            Self::Random => "random",
            Self::Zipf => "zipf",
        }
    }

    /// The offsets of its writes, aligned.
    fn offsets(self) -> Vec<u64> {
        let mut random = Random::new(1);
        let mut of_blocks = WorkloadRandom::new(1);
        let mut blocks = Zipfian::new(0, BYTES / BLOCK - 1, ZIPFIAN_CONSTANT);
        let offset = |at: usize| match self {
            Self::Sequential => at as u64 * WRITE as u64 % BYTES,
            Self::Random => random.below(HELD * BLOCK / WRITE as u64) * WRITE as u64,
            Self::Zipf => {
                let within = random.below(BLOCK / WRITE as u64) * WRITE as u64;
                blocks.next(&mut of_blocks) * BLOCK + within
            }
        };
        (0..OFFSETS).map(offset).collect()
    }
}

/// Runs `farside bench consolidate`.
///
/// # Errors
/// Those of the memory server; that of output which cannot be written.
pub fn run(arguments: &BenchLent, output: Output) -> Result<(), Failure> {
    let lent = Lent::new(arguments, BYTES)?;
    let ends = &mut lent.client()?;
    let mut figures: Vec<ConsolidationFigure> = Vec::new();
    let of_each = BATCHES.len() + THETAS.len();
    let bar = output.bar("figures", (Pattern::ALL.len() * of_each) as u64);
    for pattern in Pattern::ALL {
        let offsets = pattern.offsets();
        for batch in BATCHES {
            figures.push(direct(ends, (pattern, &offsets), batch, arguments.windows)?);
            bar.inc(1);
        }
        for theta in THETAS {
            figures.push(collected(ends, (pattern, &offsets), theta, arguments.windows)?);
            bar.inc(1);
        }
        let first = figures.len() - of_each;
        let direct = figures[first..first + BATCHES.len()].iter();
        let fastest = direct.map(|figure| figure.time.median_ns).fold(f64::INFINITY, f64::min);
        figures[first..]
            .iter_mut()
            .for_each(|figure| figure.gain = fastest / figure.time.median_ns);
    }
    bar.finish_and_clear();
    let heads =
        ["pattern", "way", "best", "median", "M/s", "requests/write", "doorbells/write", "gain"];
    let mut table = Table::new(heads).left(0).left(1);
    for one in &figures {
        table.row([
            one.pattern.to_owned(),
            one.way.clone(),
            time(one.time.best_ns),
            time(one.time.median_ns),
            format!("{:.2}", one.writes_per_us),
            format!("{:.3}", one.requests_per_write),
            format!("{:.3}", one.doorbells_per_write),
            format!("{:.2}", one.gain),
        ]);
    }
    output.line(table.text());
    output.line(format!("over {}, {DEPTH} requests in flight", lent.fabric.name()));
    let labels = ["writes, millions a second", "writes of a block until its flush (1: direct)"];
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let way = if one.theta == 0 { &one.way } else { "held" };
        let name = format!("{} {way}", one.pattern);
        (name, one.theta.max(1).into(), one.writes_per_us)
    })?;
    output.value(&figures);
    Ok(())
}

/// Measures writes, and counts their requests.
fn figure(
    client: &mut MemoryClient,
    (pattern, offsets): (Pattern, &[u64]),
    (way, theta): (String, u32),
    windows: u32,
    mut write: impl FnMut(&mut MemoryClient, u64) -> Result<(), Error>,
) -> Result<ConsolidationFigure, Error> {
    let (before, mut writes) = (client.stats(), 0);
    let time = measure(windows, |count| {
        for _ in 0..count {
            write(client, offsets[writes % OFFSETS])?;
            writes += 1;
        }
        Ok::<(), Error>(())
    })?;
    let after = client.stats();
    let per_write = |before: u64, after: u64| (after - before) as f64 / writes as f64;
    Ok(ConsolidationFigure {
        pattern: pattern.name(),
        way,
        theta,
        time,
        writes_per_us: 1e3 / time.median_ns,
        requests_per_write: per_write(before.work_requests, after.work_requests),
        doorbells_per_write: per_write(before.doorbells, after.doorbells),
        gain: 1.0,
    })
}

/// A request for each write, of which `batch` share a doorbell.
fn direct(
    (client, memory): &mut (MemoryClient, RemoteMemory),
    pattern: (Pattern, &[u64]),
    batch: usize,
    windows: u32,
) -> Result<ConsolidationFigure, Error> {
    let buffer = client.register((DEPTH * WRITE) as u64)?;
    let mut pipeline = Pipeline::new(batch);
    let way = if batch == 1 { "direct".to_owned() } else { format!("direct, {batch} a doorbell") };
    let figure = figure(client, pattern, (way, 0), windows, |client, offset| {
        pipeline.queue(client, |client, place| {
            let from = (place * WRITE) as u64;
            buffer.write(from, &[1; WRITE])?;
            client.write(memory.at(offset), &buffer, from..from + WRITE as u64)
        })
    })?;
    pipeline.drain(client)?;
    Ok(figure)
}

/// Writes into a burst buffer: what is measured is theta.
fn collected(
    (client, memory): &mut (MemoryClient, RemoteMemory),
    (pattern, offsets): (Pattern, &[u64]),
    theta: u32,
    windows: u32,
) -> Result<ConsolidationFigure, Error> {
    let options = BurstOptions::default()
        .block_bytes(BLOCK as u32)
        .blocks(HELD as u32)
        .theta(theta)
        .flushes_max(DEPTH as u32);
    let mut burst = BurstBuffer::new(client, memory.at(0), BYTES, &options)?;
    if pattern == Pattern::Zipf {
        burst.hint_hot(0..HOT * BLOCK)?;
    }
    let way = format!("theta {theta}");
    let figure = figure(client, (pattern, offsets), (way, theta), windows, |client, offset| {
        burst.write(client, offset, &[1; WRITE], TIMEOUT)
    })?;
    burst.flush(client, TIMEOUT)?;
    Ok(figure)
}
