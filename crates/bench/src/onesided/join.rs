//! The join: executors that are threads, over shared memory, compared with one thread (paper 000, figure 16).

use super::TIMEOUT;
use crate::settings::BenchJoin;
use crate::window::Figure;
use farside::fabrics;
use farside_apps::join::{JoinExecutor, JoinKind, JoinOptions, local_join};
use farside_apps::shuffle::ShuffleError;
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, count, time};
use serde::Serialize;
use std::collections::HashMap;
use std::time::Instant;

/// A row: a key of 8 B and a value of 8 B.
type JoinRow = [u8; 16];

/// A join by a number of executors, or a baseline.
#[derive(Debug, Serialize)]
struct JoinFigure {
    way: &'static str,
    executors: u16,
    /// Most rows of a batch; 0: as many as fit, or no batches.
    batch_rows: u32,
    output_rows: u64,
    /// Time of the join.
    #[serde(flatten)]
    time: Figure,
    /// Million rows of both inputs per second.
    rows_per_us: f64,
    /// The time of one thread without a shuffle, divided by this one's.
    speed: f64,
}

/// Runs `farside bench join`.
///
/// # Errors
/// Those of the join; `Failure::Check` if two ways return different numbers of rows.
pub fn run(arguments: &BenchJoin, output: Output) -> Result<(), Failure> {
    let rows = arguments.rows;
    let row = |key: u64, value: u64| {
        let mut row = [0; 16];
        row[..8].copy_from_slice(&key.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes());
        row[8..].copy_from_slice(&value.to_le_bytes());
        row
    };
    let key = |at: u64| if arguments.one_key { 7 } else { at };
    // Each left row has one right row; with one key, the right input is that row.
    let rights: Vec<_> = (0..if arguments.one_key { rows.min(1) } else { rows })
        .map(|at| row(key(at), at))
        .collect();
    let lefts: Vec<_> = (0..rows).map(|at| row(key(at * 7_919 % rows.max(1)), at)).collect();
    let mut ways = vec![("hash map", 1, 0), ("local", 1, 0)];
    for executors in &arguments.executors {
        ways.extend(
            arguments.batch_rows.iter().map(|batch_rows| ("join", *executors, *batch_rows)),
        );
        ways.push(("join", *executors, 0));
    }
    let bar = output.bar("runs", u64::from(arguments.runs) * ways.len() as u64);
    let mut figures = Vec::<JoinFigure>::new();
    for (way, executors, batch_rows) in ways {
        let mut options = JoinOptions { kind: arguments.kind, executors, ..JoinOptions::default() };
        options.batch_bytes = arguments.batch_bytes;
        options.batch_rows = if batch_rows == 0 { u32::MAX } else { batch_rows };
        let (mut times, mut output_rows) = (Vec::new(), 0);
        for run in 0..arguments.runs {
            let began = Instant::now();
            output_rows = match way {
                "hash map" => by_hash_map(arguments.kind, &lefts, &rights),
                "local" => {
                    let mut returned = 0;
                    local_join(&options, lefts.iter(), rights.iter(), |_, _| returned += 1)?;
                    returned
                }
                _ => {
                    let name =
                        format!("bench-{}-{executors}-{batch_rows}-{run}", std::process::id());
                    together(&name, &options, [&lefts, &rights])?
                }
            };
            times.push(began.elapsed().as_nanos() as f64);
            bar.inc(1);
        }
        let time = Figure::from_windows(times, 1);
        let rows_per_us = (lefts.len() + rights.len()) as f64 * 1e3 / time.median_ns;
        figures.push(JoinFigure {
            way,
            executors,
            batch_rows,
            output_rows,
            time,
            rows_per_us,
            speed: 1.0,
        });
    }
    bar.finish_and_clear();
    if figures.iter().any(|one| one.output_rows != figures[0].output_rows) {
        return Err(Failure::check("the ways return different numbers of rows"));
    }
    let local_ns = figures[1].time.median_ns;
    figures.iter_mut().for_each(|one| one.speed = local_ns / one.time.median_ns);
    report(arguments, &figures, output)
}

fn report(arguments: &BenchJoin, figures: &[JoinFigure], output: Output) -> Result<(), Failure> {
    let heads = ["way", "executors", "batch", "median", "best", "rows/us", "speed"];
    let mut table = Table::new(heads).left(0);
    for one in figures {
        table.row([
            one.way.to_owned(),
            one.executors.to_string(),
            if one.batch_rows == 0 { "full".to_owned() } else { one.batch_rows.to_string() },
            time(one.time.median_ns),
            time(one.time.best_ns),
            format!("{:.1}", one.rows_per_us),
            format!("{:.2}", one.speed),
        ]);
    }
    let (rows, kind) = (count(arguments.rows), arguments.kind.name());
    output.line(format!("{kind} join of {rows} rows of 16 B, over shm"));
    output.line(table.text());
    output.line("speed: against `local`, one thread with the same tables and no shuffle");
    let labels = ["rows of both inputs, millions a second", "executors"];
    super::draw(arguments.plot.as_deref(), labels, figures, |one| {
        let name = match one.batch_rows {
            0 => one.way.to_owned(),
            rows => format!("{}, batches of {rows}", one.way),
        };
        (name, one.executors.into(), one.rows_per_us)
    })?;
    output.value(&figures);
    Ok(())
}

/// The join by the standard library's hash map, one thread: the number of rows returned.
fn by_hash_map(kind: JoinKind, lefts: &[JoinRow], rights: &[JoinRow]) -> u64 {
    let mut table = HashMap::<&[u8], u64>::with_capacity(rights.len());
    for row in rights {
        *table.entry(&row[..8]).or_default() += 1;
    }
    let found = lefts.iter().map(|row| table.get(&row[..8]).copied().unwrap_or_default());
    let returned = found.map(|found| match kind {
        JoinKind::Inner => found,
        JoinKind::LeftOuter => found.max(1),
        JoinKind::Semi => found.min(1),
        JoinKind::Anti => u64::from(found == 0),
    });
    returned.sum()
}

/// The join by executors that are threads, each with a consecutive part of both inputs.
fn together(
    name: &str,
    options: &JoinOptions,
    inputs: [&[JoinRow]; 2],
) -> Result<u64, ShuffleError> {
    let lend = |number| {
        let fabric = fabrics::shared_memory()?;
        JoinExecutor::lend(&fabric, &format!("{name}-{number}"), number, options)
    };
    let executors: Vec<_> = (0..options.executors).map(lend).collect::<Result<_, _>>()?;
    let peers: Vec<_> = executors.iter().map(JoinExecutor::addresses).collect();
    std::thread::scope(|scope| {
        let peers = &peers[..];
        let share = |rows: usize, number: usize| rows * number / peers.len();
        let threads = executors.into_iter().enumerate().map(|(number, executor)| {
            let [left, right] =
                inputs.map(|rows| &rows[share(rows.len(), number)..share(rows.len(), number + 1)]);
            scope.spawn(move || {
                let (left, right) = (left.iter().map(Ok), right.iter().map(Ok));
                let stats = executor.run(peers, left, right, TIMEOUT, |_, _| {})?;
                Ok(stats.output_rows)
            })
        });
        let threads: Vec<_> = threads.collect();
        let outputs =
            threads.into_iter().map(|thread| thread.join().unwrap_or(Err(ShuffleError::Finished)));
        outputs.sum()
    })
}
