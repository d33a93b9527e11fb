//! Random and sequential access: READs and WRITEs whose sources and destinations are each one or the other (paper 000,
//! section III-B, figure 6).

use super::{Lent, Pipeline};
use crate::settings::BenchAccess;
use crate::window::{Figure, measure};
use farside::Error;
use farside::onesided::{Buffer, MemoryClient, RemoteMemory};
use farside_base::Random;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;

/// Bytes of a transfer.
const TRANSFERS: [u64; 8] = [1, 8, 32, 128, 512, 2048, 4096, 8192];
/// Requests that share a doorbell.
const BATCH: usize = 8;

/// Transfers of one size in one pattern.
#[derive(Debug, Serialize)]
struct AccessFigure {
    operation: &'static str,
    source: &'static str,
    destination: &'static str,
    bytes: u64,
    #[serde(flatten)]
    time: Figure,
    transfers_per_us: f64,
    bytes_per_ns: f64,
    /// Against random sources and destinations.
    gain: f64,
}

/// The order of the addresses on one side.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AddressOrder {
    Random,
    Sequential,
}

impl AddressOrder {
    const fn name(self) -> &'static str {
        match self {
            Self::Random => "random",
            Self::Sequential => "sequential",
        }
    }
}

/// Sources and destinations; the first are those that the others are compared with.
const PATTERNS: [[AddressOrder; 2]; 4] = [
    [AddressOrder::Random, AddressOrder::Random],
    [AddressOrder::Random, AddressOrder::Sequential],
    [AddressOrder::Sequential, AddressOrder::Random],
    [AddressOrder::Sequential, AddressOrder::Sequential],
];

/// The addresses of one side.
struct Addresses {
    order: AddressOrder,
    random: Random,
    places: u64,
    next: u64,
    bytes: u64,
}

impl Addresses {
    const fn new(order: AddressOrder, seed: u64, region: u64, bytes: u64) -> Self {
        Self { order, random: Random::new(seed), places: region / bytes, next: 0, bytes }
    }

    /// The next one, after the same computation for both orders.
    fn next(&mut self) -> u64 {
        let random = self.random.below(self.places);
        self.next = if self.next + 1 < self.places { self.next + 1 } else { 0 };
        let place = if self.order == AddressOrder::Random { random } else { self.next };
        place * self.bytes
    }
}

/// Runs `farside bench access`.
///
/// # Errors
/// Those of the memory server; `System` without memory for the region; that of output which cannot be written.
pub fn run(arguments: &BenchAccess, output: Output) -> Result<(), Failure> {
    let BenchAccess { lent: arguments, region } = arguments;
    let lent = Lent::new(arguments, *region)?;
    let (mut client, memory) = lent.client()?;
    let buffer = client.register(*region)?;
    fill(&mut client, memory, &buffer, *region)?;
    let mut figures: Vec<AccessFigure> = Vec::new();
    let bar = output.bar("figures", (2 * TRANSFERS.len() * PATTERNS.len()) as u64);
    for operation in ["write", "read"] {
        for bytes in TRANSFERS {
            let mut slowest = f64::NAN;
            for pattern in PATTERNS {
                let ends = (&mut client, memory, &buffer);
                let time =
                    transfers(ends, (operation, pattern), (bytes, *region), arguments.windows)?;
                slowest = if slowest.is_nan() { time.median_ns } else { slowest };
                figures.push(AccessFigure {
                    operation,
                    source: pattern[0].name(),
                    destination: pattern[1].name(),
                    bytes,
                    time,
                    transfers_per_us: 1e3 / time.median_ns,
                    bytes_per_ns: bytes as f64 / time.median_ns,
                    gain: slowest / time.median_ns,
                });
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let heads =
        ["operation", "source", "destination", "bytes", "best", "median", "M/s", "GB/s", "gain"];
    let mut table = Table::new(heads).left(0).left(1).left(2);
    for one in &figures {
        table.row([
            one.operation.to_owned(),
            one.source.to_owned(),
            one.destination.to_owned(),
            one.bytes.to_string(),
            time(one.time.best_ns),
            time(one.time.median_ns),
            format!("{:.2}", one.transfers_per_us),
            format!("{:.2}", one.bytes_per_ns),
            format!("{:.2}", one.gain),
        ]);
    }
    output.line(table.text());
    output.line(format!("over {}, {} MiB on each side", lent.fabric.name(), region >> 20));
    let labels = ["transfers, millions a second", "bytes of a transfer"];
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let name = format!("{} {} to {}", one.operation, one.source, one.destination);
        (name, one.bytes as f64, one.transfers_per_us)
    })?;
    output.value(&figures);
    Ok(())
}

/// Writes all bytes of both sides once, so that they have memory.
fn fill(
    client: &mut MemoryClient,
    memory: RemoteMemory,
    buffer: &Buffer,
    region: u64,
) -> Result<(), Error> {
    const PART: u64 = 64 << 10;
    let part = vec![1; PART as usize];
    let mut pipeline = Pipeline::new(BATCH);
    for at in (0..region / PART).map(|part| part * PART) {
        buffer.write(at, &part)?;
        pipeline.queue(client, |client, _| client.write(memory.at(at), buffer, at..at + PART))?;
    }
    pipeline.drain(client)
}

/// Measures transfers of one size in one pattern.
fn transfers(
    (client, memory, buffer): (&mut MemoryClient, RemoteMemory, &Buffer),
    (operation, [source, destination]): (&'static str, [AddressOrder; 2]),
    (bytes, region): (u64, u64),
    windows: u32,
) -> Result<Figure, Error> {
    let mut sources = Addresses::new(source, 1, region, bytes);
    let mut destinations = Addresses::new(destination, 2, region, bytes);
    let mut pipeline = Pipeline::new(BATCH);
    let time = measure(windows, |count| {
        for _ in 0..count {
            let (from, to) = (sources.next(), destinations.next());
            pipeline.queue(client, |client, _| match operation {
                "write" => client.write(memory.at(to), buffer, from..from + bytes),
                _ => client.read(memory.at(from), buffer, to..to + bytes),
            })?;
        }
        Ok::<(), Error>(())
    })?;
    pipeline.drain(client)?;
    Ok(time)
}
