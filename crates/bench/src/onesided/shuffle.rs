//! The shuffle: rows pushed by threads to the inboxes of others, over shared memory (paper 000, figure 15).

use super::TIMEOUT;
use crate::settings::BenchShuffle;
use crate::window::Figure;
use farside::fabrics;
use farside::onesided::Buffer;
use farside_apps::shuffle::{
    InboxOptions, RowBatch, RowFormat, Rule, SenderOptions, ShuffleError, ShuffleInbox,
    ShuffleSender, destination,
};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, bytes, count, time};
use serde::Serialize;
use std::hint::black_box;
use std::time::Instant;

/// How rows become batches.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum BatchWay {
    /// Copied into staging memory (*SP*).
    Stage,
    /// Sent from the input (*SGL*).
    Gather,
}

/// One way of the shuffle, or the baseline.
#[derive(Debug, Serialize)]
struct ShuffleFigure {
    way: &'static str,
    /// Most rows of a batch; 0: as many as fit, or no batches.
    batch_rows: u32,
    /// Time of a row.
    #[serde(flatten)]
    time: Figure,
    rows_per_us: f64,
    gb_per_s: f64,
    /// The time of the baseline divided by this one's.
    speed: f64,
    work_requests_per_row: f64,
    credit_reads: u64,
}

/// Runs `farside bench shuffle`.
///
/// # Errors
/// Those of the shuffle; `Failure::Check` if rows were lost.
pub fn run(arguments: &BenchShuffle, output: Output) -> Result<(), Failure> {
    let inputs: Vec<_> = (0..arguments.senders).map(|number| input(arguments, number)).collect();
    let expected =
        inputs.iter().map(|input| sum(input, arguments.row_bytes)).fold(0, u64::wrapping_add);
    let mut ways = vec![(BatchWay::Stage, 1)];
    for batch_rows in arguments.batch_rows.iter().copied().chain([0]) {
        ways.extend([(BatchWay::Stage, batch_rows), (BatchWay::Gather, batch_rows)]);
    }
    let bar = output.bar("figures", 1 + ways.len() as u64);
    let mut figures = vec![baseline(arguments, &inputs)];
    bar.inc(1);
    for (way, batch_rows) in ways {
        let mut figure = measure(arguments, &inputs, (way, batch_rows), expected)?;
        figure.speed = figures[0].time.median_ns / figure.time.median_ns;
        figures.push(figure);
        bar.inc(1);
    }
    bar.finish_and_clear();
    let heads = ["way", "batch", "per row", "best", "rows/us", "GB/s", "requests/row", "speed"];
    let mut table = Table::new(heads).left(0);
    for one in &figures {
        table.row([
            one.way.to_owned(),
            if one.batch_rows == 0 { "full".to_owned() } else { one.batch_rows.to_string() },
            time(one.time.median_ns),
            time(one.time.best_ns),
            format!("{:.1}", one.rows_per_us),
            format!("{:.2}", one.gb_per_s),
            format!("{:.3}", one.work_requests_per_row),
            format!("{:.2}", one.speed),
        ]);
    }
    let BenchShuffle { rows, row_bytes, senders, receivers, batch_bytes, .. } = *arguments;
    output.line(format!(
        "{} rows of {row_bytes} B, {senders} to {receivers} threads, batches of {}, over shm",
        count(rows),
        bytes(batch_bytes.into())
    ));
    output.line(table.text());
    output.line("speed: against `partition`, one thread that divides the same rows in its memory");
    let labels = ["rows, millions a second", "rows of a batch, or of the batch bytes"];
    let full = arguments.batch_bytes / arguments.row_bytes;
    super::draw(arguments.plot.as_deref(), labels, &figures, |one| {
        let rows = if one.batch_rows == 0 { full } else { one.batch_rows };
        (one.way.to_owned(), rows.into(), one.rows_per_us)
    })?;
    output.value(&figures);
    Ok(())
}

/// The rows of a sender: a key of 8 B, and the same bytes again.
fn input(arguments: &BenchShuffle, number: u16) -> Vec<u8> {
    let senders = u64::from(arguments.senders);
    let (first, last) = (u64::from(number), arguments.rows);
    let mut rows = Vec::new();
    for row in (first..last).step_by(senders as usize) {
        let key = if arguments.one_key { 7 } else { row.wrapping_mul(0x9e37_79b9_7f4a_7c15) };
        let key = key.to_le_bytes();
        rows.extend(key.iter().cycle().take(arguments.row_bytes as usize));
    }
    rows
}

/// A sum of rows that does not depend on their order.
fn sum(rows: &[u8], row_bytes: u32) -> u64 {
    let keys = rows.chunks_exact(row_bytes as usize).filter_map(|row| row.first_chunk());
    keys.fold(0_u64, |sum, key| sum.wrapping_add(u64::from_le_bytes(*key) | 1))
}

fn figure(
    arguments: &BenchShuffle,
    (way, batch_rows): (&'static str, u32),
    times: Vec<f64>,
) -> ShuffleFigure {
    let time = Figure::from_windows(times, arguments.rows.max(1));
    ShuffleFigure {
        way,
        batch_rows,
        time,
        rows_per_us: 1e3 / time.median_ns,
        gb_per_s: f64::from(arguments.row_bytes) / time.median_ns,
        speed: 1.0,
        work_requests_per_row: 0.0,
        credit_reads: 0,
    }
}

/// One thread divides all rows in its own memory.
fn baseline(arguments: &BenchShuffle, inputs: &[Vec<u8>]) -> ShuffleFigure {
    let receivers = usize::from(arguments.receivers);
    let once = || {
        let began = Instant::now();
        let mut parts = vec![Vec::new(); receivers];
        for row in inputs.iter().flat_map(|input| input.chunks_exact(arguments.row_bytes as usize))
        {
            parts[destination(&row[..8], receivers)].extend_from_slice(row);
        }
        black_box(&parts);
        began.elapsed().as_nanos() as f64
    };
    figure(arguments, ("partition", 0), (0..arguments.runs).map(|_| once()).collect())
}

fn measure(
    arguments: &BenchShuffle,
    inputs: &[Vec<u8>],
    (way, batch_rows): (BatchWay, u32),
    expected: u64,
) -> Result<ShuffleFigure, Failure> {
    let name = match (way, batch_rows) {
        (_, 1) => "single",
        (BatchWay::Stage, _) => "stage",
        (BatchWay::Gather, _) => "gather",
    };
    let mut times = Vec::new();
    let (mut requests, mut credit_reads) = (0, 0);
    for run in 0..arguments.runs {
        let options = InboxOptions {
            senders: arguments.senders,
            rows: RowFormat::Fixed(arguments.row_bytes),
            batch_bytes: arguments.batch_bytes,
            ..InboxOptions::default()
        };
        let lend = |receiver: u16| {
            let name = format!("bench-{}-{name}-{batch_rows}-{run}-{receiver}", std::process::id());
            ShuffleInbox::lend(&fabrics::shared_memory()?, &name, &options)
        };
        let inboxes: Vec<_> = (0..arguments.receivers).map(lend).collect::<Result<_, _>>()?;
        let addresses: Vec<_> = inboxes.iter().map(ShuffleInbox::address).collect();
        let mut senders = Vec::new();
        for (number, input) in (0..).zip(inputs) {
            let batch_rows = if batch_rows == 0 { u32::MAX } else { batch_rows };
            let options = SenderOptions { rule: Rule::Hash(0..8), batch_rows };
            let fabric = fabrics::shared_memory()?;
            let sender = ShuffleSender::connect(&fabric, number, &addresses, options, TIMEOUT)?;
            let buffer = sender.register(input.len().max(1) as u64)?;
            buffer.write(0, input)?;
            senders.push((sender, buffer));
        }
        drop(addresses);
        let began = Instant::now();
        let (sent, received) = together(arguments, inputs, way, (senders, inboxes))?;
        times.push(began.elapsed().as_nanos() as f64);
        if received != expected {
            return Err(Failure::check("the receivers have other rows than the senders"));
        }
        (requests, credit_reads) = (sent.0, sent.1);
    }
    let rows = arguments.rows.max(1) as f64;
    let figure = figure(arguments, (name, batch_rows), times);
    Ok(ShuffleFigure { work_requests_per_row: requests as f64 / rows, credit_reads, ..figure })
}

/// Runs all threads. Returns the work requests and credit READs of the senders, and the sum of the rows received.
fn together(
    arguments: &BenchShuffle,
    inputs: &[Vec<u8>],
    way: BatchWay,
    (senders, inboxes): (Vec<(ShuffleSender, Buffer)>, Vec<ShuffleInbox>),
) -> Result<((u64, u64), u64), ShuffleError> {
    let row_bytes = arguments.row_bytes;
    std::thread::scope(|scope| {
        let send = senders.into_iter().zip(inputs).map(|((sender, buffer), input)| {
            scope.spawn(move || push(sender, (way, &buffer), input, row_bytes))
        });
        let send: Vec<_> = send.collect();
        let receive = inboxes.into_iter().map(|mut inbox| {
            scope.spawn(move || {
                let (mut batch, mut sums) = (RowBatch::default(), 0_u64);
                while inbox.receive(&mut batch, TIMEOUT)? {
                    sums = sums.wrapping_add(sum(batch.bytes(), row_bytes));
                }
                Ok(sums)
            })
        });
        let receive: Vec<_> = receive.collect();
        let (mut sent, mut received) = ((0, 0), 0_u64);
        for thread in send {
            let (requests, reads) = thread.join().unwrap_or(Err(ShuffleError::Finished))?;
            sent = (sent.0 + requests, sent.1 + reads);
        }
        for thread in receive {
            let sums = thread.join().unwrap_or(Err(ShuffleError::Finished))?;
            received = received.wrapping_add(sums);
        }
        Ok((sent, received))
    })
}

fn push(
    mut sender: ShuffleSender,
    (way, buffer): (BatchWay, &Buffer),
    input: &[u8],
    row_bytes: u32,
) -> Result<(u64, u64), ShuffleError> {
    let before = sender.stats().client.work_requests;
    match way {
        BatchWay::Stage => {
            let mut rows = input.chunks_exact(row_bytes as usize);
            rows.try_for_each(|row| sender.push(row, TIMEOUT))?;
        }
        BatchWay::Gather => {
            sender.gather_from(buffer, TIMEOUT)?;
            let mut offsets = (0..input.len() as u64).step_by(row_bytes as usize);
            offsets.try_for_each(|offset| sender.push_at(offset, row_bytes, TIMEOUT))?;
        }
    }
    sender.finish(TIMEOUT)?;
    let stats = sender.stats();
    Ok((stats.client.work_requests - before, stats.credit_reads))
}
