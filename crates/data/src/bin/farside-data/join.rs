//! `farside-data join`.

use crate::arguments::JoinArguments;
use crate::input::{Input, TIMEOUT, all, failure};
use arrow_schema::SchemaRef;
use farside::fabrics;
use farside_apps::join::JoinStats;
use farside_command::failure::Failure;
use farside_command::output::{Output, count, time};
use farside_command::result_file::write_with;
use farside_data::{BatchJoin, BatchJoinExecutor, DataError, FileFormat, InputFile, OutputFile};
use serde_json::json;
use std::fs::File;
use std::io::{self, BufWriter};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Joins two files.
pub(crate) fn run(arguments: &JoinArguments, output: Output) -> Result<(), Failure> {
    let began = Instant::now();
    let format = FileFormat::of(&arguments.out).map_err(failure)?;
    let (left, right) = inputs(arguments)?;
    let join = plan(arguments, [&left, &right])?;
    let mut result = Ok(Vec::new());
    let written = write_with(&arguments.out, |file| {
        result = execute(arguments, &join, [left, right], (file, format), output);
        // The file is kept only if this succeeds.
        result.as_ref().map(drop).map_err(|_| io::Error::other("incomplete"))
    });
    let all = result?;
    written?;
    let sum = |of: fn(&JoinStats) -> u64| all.iter().map(of).sum::<u64>();
    let (lefts, rights) = (sum(|one| one.input_rows[0]), sum(|one| one.input_rows[1]));
    let (rows, seconds) = (sum(|one| one.output_rows), began.elapsed().as_secs_f64());
    output.value(&json!({
        "left_rows": lefts,
        "right_rows": rights,
        "output_rows": rows,
        "executors": all.len(),
        "seconds": seconds,
    }));
    output.line(format!(
        "{} and {} rows joined: {} rows in {}, {}",
        count(lefts),
        count(rights),
        count(rows),
        arguments.out.display(),
        time(seconds * 1e9)
    ));
    Ok(())
}

/// Opens both files. A key of a CSV file without values has the type of the other file's.
fn inputs(arguments: &JoinArguments) -> Result<(InputFile, InputFile), Failure> {
    let mut left = InputFile::open(&arguments.left).map_err(failure)?;
    let mut right = InputFile::open(&arguments.right).map_err(failure)?;
    let on = arguments.on();
    let schemas = [left.schema(), right.schema()].map(Arc::clone);
    let type_of = |schema: &SchemaRef, name: &str| {
        schema.field_with_name(name).ok().map(|field| field.data_type().clone())
    };
    left.settle(|name| {
        let other = on.iter().find(|(left, _)| *left == name)?.1;
        type_of(&schemas[1], other)
    });
    right.settle(|name| {
        let other = on.iter().find(|(_, right)| *right == name)?.0;
        type_of(&schemas[0], other)
    });
    Ok((left, right))
}

fn plan(
    arguments: &JoinArguments,
    [left, right]: [&InputFile; 2],
) -> Result<Arc<BatchJoin>, Failure> {
    let join = BatchJoin::new(arguments.kind(), left.schema(), right.schema(), &arguments.on());
    Ok(Arc::new(join.map_err(failure)?))
}

fn execute(
    arguments: &JoinArguments,
    join: &Arc<BatchJoin>,
    files: [InputFile; 2],
    (file, format): (&mut File, FileFormat),
    output: Output,
) -> Result<Vec<JoinStats>, Failure> {
    let stopped = AtomicBool::new(false);
    let [left, right] = &files;
    let left = Input::new("left bytes", std::slice::from_ref(left), &stopped, output);
    let right = Input::new("right bytes", std::slice::from_ref(right), &stopped, output);
    let all_executors = arguments.executors.executors();
    let lend = |number: u16| {
        let fabric = fabrics::shared_memory().map_err(Failure::from)?;
        let name = format!("farside-data-{}-{number}", std::process::id());
        let batch_bytes = arguments.executors.batch_bytes;
        BatchJoinExecutor::lend(&fabric, &name, (number, all_executors), join, batch_bytes)
            .map_err(failure)
    };
    let executors: Vec<_> = (0..all_executors).map(lend).collect::<Result<_, _>>()?;
    let peers: Vec<_> = executors.iter().map(BatchJoinExecutor::addresses).collect();
    let out = |error: DataError| error.in_file(&arguments.out);
    let writer = OutputFile::new(format, join.schema(), BufWriter::new(file));
    let writer = Mutex::new(writer.map_err(|error| failure(out(error)))?);
    let work = |executor: BatchJoinExecutor| {
        let write = |batch| {
            let mut writer = writer.lock().unwrap_or_else(PoisonError::into_inner);
            writer.write(&batch).map_err(out)
        };
        let done = executor.run(&peers, left.batches(), right.batches(), TIMEOUT, write);
        stopped.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> =
            executors.into_iter().map(|executor| scope.spawn(move || work(executor))).collect();
        threads.into_iter().map(|thread| thread.join()).collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>();
    let stats = all(results.map_err(|_| Failure::system("a thread panicked"))?)?;
    let writer = writer.into_inner().unwrap_or_else(PoisonError::into_inner);
    writer.finish().map_err(|error| failure(out(error)))?;
    Ok(stats)
}
