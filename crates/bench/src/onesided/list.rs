//! Long lists of ranges: how long their preparation and launch take, and the transfer.

use super::{Lent, TIMEOUT};
use crate::settings::BenchLent;
use crate::window::Figure;
use farside::onesided::{RangeList, TransferRange};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, count, time};
use serde::Serialize;
use std::time::Instant;

/// Bytes of a range.
const RANGE: u32 = 128;
/// From range to range in the buffer.
const STRIDE: u64 = 256;

/// Transfers of one list.
#[derive(Debug, Serialize)]
struct ListFigure {
    operation: &'static str,
    /// How the list names its ranges.
    form: &'static str,
    ranges: usize,
    range_bytes: u32,
    /// The list is made.
    prepare: Figure,
    /// The call has returned, and the client may go on.
    launch: Figure,
    /// From the call to the end of the transfer.
    transfer: Figure,
    launch_ns_per_range: f64,
}

/// Runs `farside bench vector --list`.
///
/// # Errors
/// Those of the memory server; that of output which cannot be written.
pub fn run(arguments: &BenchLent, ranges: u32, output: Output) -> Result<(), Failure> {
    let ranges = ranges as usize;
    let lent = Lent::new(arguments, u64::from(RANGE) * ranges as u64)?;
    let (mut client, memory) = lent.client()?;
    let buffer = client.register(STRIDE * ranges as u64)?;
    let each: Vec<TransferRange> = (0..ranges as u64)
        .map(|at| TransferRange { local: at * STRIDE, remote: at * u64::from(RANGE), bytes: RANGE })
        .collect();
    let table: Vec<[u32; 2]> = (0..ranges as u32).map(|at| [2 * at, at]).collect();
    let forms = ["strided", "blocks", "explicit"];
    let make = |form: &str| match form {
        "strided" => RangeList::strided(ranges, RANGE, STRIDE, RANGE.into()),
        "blocks" => RangeList::blocks(RANGE, &table),
        _ => RangeList::explicit(&each),
    };
    let bar = output.bar("figures", 2 * forms.len() as u64);
    let mut figures = Vec::new();
    for operation in ["write", "read"] {
        for form in forms {
            let mut times = [const { Vec::new() }; 3];
            for _ in 0..arguments.windows {
                let start = Instant::now();
                let list = make(form)?;
                let made = Instant::now();
                let request = match operation {
                    "write" => client.write_ranges(memory.at(0), &buffer, 0, &list)?,
                    _ => client.read_ranges(memory.at(0), &buffer, 0, &list)?,
                };
                client.submit();
                let launched = Instant::now();
                client.wait(request, TIMEOUT)?;
                let ns = [made - start, launched - made, made.elapsed()];
                times.iter_mut().zip(ns).for_each(|(times, ns)| times.push(ns.as_nanos() as f64));
            }
            let [prepare, launch, transfer] = times.map(|times| Figure::from_windows(times, 1));
            let launch_ns_per_range = launch.median_ns / ranges as f64;
            let range_bytes = RANGE;
            figures.push(ListFigure {
                operation,
                form,
                ranges,
                range_bytes,
                prepare,
                launch,
                transfer,
                launch_ns_per_range,
            });
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    print(&figures, lent.fabric.name(), output);
    output.value(&figures);
    Ok(())
}

fn print(figures: &[ListFigure], fabric: &str, output: Output) {
    let heads = ["operation", "form", "ranges", "prepare", "launch", "a range", "transfer"];
    let mut text = Table::new(heads).left(0).left(1);
    for one in figures {
        text.row([
            one.operation.to_owned(),
            one.form.to_owned(),
            count(one.ranges as u64),
            time(one.prepare.median_ns),
            time(one.launch.median_ns),
            time(one.launch_ns_per_range),
            time(one.transfer.median_ns),
        ]);
    }
    output.line(text.text());
    output.line(format!(
        "ranges of {RANGE} B, {STRIDE} B apart in the buffer; medians; over {fabric}"
    ));
}
