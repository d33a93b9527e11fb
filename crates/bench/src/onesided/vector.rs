//! Vector IO: pieces of a buffer moved to adjacent remote memory, by each way (paper 000, section III-A).

use super::{Lent, TIMEOUT};
use crate::settings::BenchLent;
use crate::window::{Figure, measure};
use farside::onesided::{Buffer, MemoryClient, RangeList, RemoteMemory, VectorCosts, VectorIo};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;

/// Pieces of a transfer.
const BATCHES: [usize; 4] = [1, 4, 16, 32];
/// Bytes of a piece.
const PIECES: [u32; 5] = [32, 128, 512, 2048, 8192];
/// From piece to piece in the buffer.
const STRIDE: u64 = 16 << 10;
/// Bytes of the remote memory that are used.
const BYTES: u64 = 32 * 8192;

/// A way to move pieces of one size.
#[derive(Debug, Serialize)]
struct VectorFigure {
    operation: &'static str,
    way: &'static str,
    pieces: usize,
    piece_bytes: u32,
    work_requests: u64,
    #[serde(flatten)]
    time: Figure,
    /// Million pieces per second.
    pieces_per_us: f64,
    /// What [`VectorCosts`] expects, and whether this way would be chosen.
    expected_ns: f64,
    chosen: bool,
}

/// Runs `farside bench vector`.
///
/// # Errors
/// Those of the memory server; that of output which cannot be written.
pub fn run(arguments: &BenchLent, output: Output) -> Result<(), Failure> {
    let lent = Lent::new(arguments, BYTES)?;
    let (mut client, memory) = lent.client()?;
    let buffer = client.register(STRIDE * 32)?;
    let mut figures = Vec::new();
    let bar = output.bar("figures", (2 * BATCHES.len() * PIECES.len()) as u64);
    for operation in ["write", "read"] {
        for pieces in BATCHES {
            for piece_bytes in PIECES {
                let ends = (&mut client, memory, &buffer);
                figures.extend(ways(ends, (operation, pieces, piece_bytes), arguments.windows)?);
                bar.inc(1);
            }
        }
    }
    bar.finish_and_clear();
    let heads = [
        "operation",
        "way",
        "pieces",
        "bytes",
        "requests",
        "best",
        "median",
        "per piece",
        "expected",
    ];
    let mut table = Table::new(heads).left(0).left(1);
    for one in &figures {
        table.row([
            one.operation.to_owned(),
            format!("{}{}", one.way, if one.chosen { " *" } else { "" }),
            one.pieces.to_string(),
            one.piece_bytes.to_string(),
            one.work_requests.to_string(),
            time(one.time.best_ns),
            time(one.time.median_ns),
            time(one.time.median_ns / one.pieces as f64),
            time(one.expected_ns),
        ]);
    }
    output.line(table.text());
    output.line(format!("* the way that the client takes by default; over {}", lent.fabric.name()));
    let labels = ["a piece, ns, median", "bytes of a piece"];
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let name = format!("{} {}, pieces: {}", one.operation, one.way, one.pieces);
        (name, one.piece_bytes.into(), one.time.median_ns / one.pieces as f64)
    })?;
    output.value(&figures);
    Ok(())
}

/// Measures a transfer by each way.
fn ways(
    (client, memory, buffer): (&mut MemoryClient, RemoteMemory, &Buffer),
    (operation, pieces, piece_bytes): (&'static str, usize, u32),
    windows: u32,
) -> Result<Vec<VectorFigure>, Failure> {
    let list = RangeList::strided(pieces, piece_bytes, STRIDE, piece_bytes.into())?;
    let plan = list.explain(client.capabilities(), &VectorCosts::default());
    let mut figures = Vec::new();
    for (way, (_, expected_ns)) in VectorIo::ALL.into_iter().zip(plan.ways) {
        let list = list.clone().by(way);
        let once = |client: &mut MemoryClient| {
            let request = match operation {
                "write" => client.write_ranges(memory.at(0), buffer, 0, &list)?,
                _ => client.read_ranges(memory.at(0), buffer, 0, &list)?,
            };
            client.wait(request, TIMEOUT).map(drop)
        };
        let time = measure(windows, |count| (0..count).try_for_each(|_| once(client)))?;
        let before = client.stats().work_requests;
        once(client)?;
        figures.push(VectorFigure {
            operation,
            way: way.name(),
            pieces,
            piece_bytes,
            work_requests: client.stats().work_requests - before,
            time,
            pieces_per_us: pieces as f64 * 1e3 / time.median_ns,
            expected_ns,
            chosen: way == plan.chosen,
        });
    }
    Ok(figures)
}
