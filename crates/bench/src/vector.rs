//! Vector IO: pieces of a buffer moved to adjacent remote memory, by each way (paper 000, section III-A).

use crate::settings::BenchVector;
use crate::window::{Figure, measure};
use farside::fabrics;
use farside::onesided::{
    Buffer, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RangeList, RemoteMemory,
    VectorCosts, VectorIo,
};
use farside_command::choice::{self, Chosen};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use farside_fabric::Fabric;
use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

/// Pieces of a transfer.
const BATCHES: [usize; 4] = [1, 4, 16, 32];
/// Bytes of a piece.
const PIECES: [u32; 5] = [32, 128, 512, 2048, 8192];
/// From piece to piece in the buffer.
const STRIDE: u64 = 16 << 10;
const TIMEOUT: Duration = Duration::from_secs(20);
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
pub fn run(arguments: &BenchVector, output: Output) -> Result<(), Failure> {
    let (fabric, address, _server) = place(arguments)?;
    let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
    let memory = client.open(&address, TIMEOUT)?;
    if memory.bytes() < BYTES {
        return Err(Failure::usage(format!(
            "the server lends {} B; the benchmark needs {BYTES}",
            memory.bytes()
        )));
    }
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
    output.line(format!("* the way that the client takes by default; over {}", fabric.name()));
    output.value(&figures);
    Ok(())
}

/// A fabric, the address of a memory server, and the server if it is of this process.
type Place = (Arc<dyn Fabric>, String, Option<MemoryServer>);

/// The memory to use: of a server elsewhere, or one of this process over shared memory.
fn place(arguments: &BenchVector) -> Result<Place, Failure> {
    if let Some(to) = &arguments.to {
        let Chosen { fabric, address, .. } = choice::caller(&arguments.choice, to, "pool")?;
        return Ok((fabric, address, None));
    }
    let name = format!("bench-vector-{}", std::process::id());
    let lender = fabrics::shared_memory()?;
    let server = MemoryServer::lend(&lender, &name, BYTES, &LendOptions::default())?;
    Ok((fabrics::shared_memory()?, server.address().to_owned(), Some(server)))
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
