//! `farside-data shuffle`.

use crate::arguments::ShuffleArguments;
use crate::input::{Input, TIMEOUT, all, failure};
use arrow_schema::SchemaRef;
use farside::fabrics;
use farside_command::failure::Failure;
use farside_command::output::{Output, count, time};
use farside_command::result_file::TemporaryFolder;
use farside_data::{
    BatchInbox, BatchInboxOptions, BatchRule, BatchSender, DataError, FileFormat, InputFile,
    OutputFile,
};
use serde_json::json;
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Divides the rows of files.
pub(crate) fn run(arguments: &ShuffleArguments, output: Output) -> Result<(), Failure> {
    let began = Instant::now();
    let files = files(arguments)?;
    let format = match arguments.format() {
        Some(format) => format,
        None => FileFormat::of(&arguments.files[0]).map_err(failure)?,
    };
    let folder = TemporaryFolder::beside(&arguments.out)?;
    let rows = divide(arguments, &files, (folder.path(), format), output)?;
    folder.rename(&arguments.out)?;
    let seconds = began.elapsed().as_secs_f64();
    let named = |(at, rows): (usize, &u64)| json!({ "file": name(at, format), "rows": rows });
    let partitions: Vec<_> = rows.iter().enumerate().map(named).collect();
    let all: u64 = rows.iter().sum();
    output.value(&json!({ "rows": all, "partitions": partitions, "seconds": seconds }));
    let (parts, out) = (rows.len(), arguments.out.display());
    output.line(format!(
        "{} rows into {parts} files of {out}, {}",
        count(all),
        time(seconds * 1e9)
    ));
    for (at, rows) in rows.iter().enumerate() {
        output.line(format!("  {}  {}", name(at, format), count(*rows)));
    }
    Ok(())
}

fn name(part: usize, format: FileFormat) -> String {
    format!("part-{part:03}.{}", format.name())
}

/// Opens the files, of one schema.
fn files(arguments: &ShuffleArguments) -> Result<Vec<InputFile>, Failure> {
    let files = arguments.files.iter().map(|path| InputFile::open(path));
    let mut files: Vec<_> = files.collect::<Result<_, _>>().map_err(failure)?;
    // Columns of CSV files without values have the type of another file.
    let schemas: Vec<SchemaRef> = files.iter().map(|file| Arc::clone(file.schema())).collect();
    let of = |name: &str| {
        let fields = schemas.iter().filter_map(|schema| schema.field_with_name(name).ok());
        let mut types = fields.map(|field| field.data_type().clone());
        types.find(|found| *found != arrow_schema::DataType::Null)
    };
    files.iter_mut().for_each(|file| file.settle(of));
    let schema = Arc::clone(files[0].schema());
    files.iter().try_for_each(|file| file.check_schema(&schema)).map_err(failure)?;
    Ok(files)
}

/// Writes the parts in a folder; returns the rows of each.
fn divide(
    arguments: &ShuffleArguments,
    files: &[InputFile],
    (folder, format): (&Path, FileFormat),
    output: Output,
) -> Result<Vec<u64>, Failure> {
    let stopped = AtomicBool::new(false);
    let input = Input::new("bytes", files, &stopped, output);
    let executors = arguments.executors.executors();
    let batch_bytes = arguments.executors.batch_bytes;
    let options =
        BatchInboxOptions { senders: executors, batch_bytes, ..BatchInboxOptions::default() };
    let lend = |part: u16| {
        let fabric = fabrics::shared_memory().map_err(Failure::from)?;
        let name = format!("farside-data-{}-{part}", std::process::id());
        BatchInbox::lend(&fabric, &name, &options).map_err(failure)
    };
    let inboxes: Vec<_> = (0..arguments.into).map(lend).collect::<Result<_, _>>()?;
    let addresses: Vec<_> = inboxes.iter().map(|inbox| inbox.address().to_owned()).collect();
    let schema = files[0].schema();
    let connect = |number: u16| {
        let fabric = fabrics::shared_memory().map_err(Failure::from)?;
        let rule = BatchRule::Hash(arguments.by.clone());
        BatchSender::connect(&fabric, number, &addresses, schema, rule, TIMEOUT).map_err(failure)
    };
    let senders: Vec<_> = (0..executors).map(connect).collect::<Result<_, _>>()?;
    let send = |mut sender: BatchSender| {
        for batch in input.batches() {
            sender.push(&batch?, TIMEOUT)?;
        }
        sender.finish(TIMEOUT)?;
        Ok(0)
    };
    let receive = |part: usize, mut inbox: BatchInbox| {
        let path = folder.join(name(part, format));
        receive(&mut inbox, (&path, format), schema)
            .map_err(|error| error.in_file(&arguments.out.join(name(part, format))))
    };
    let failing = |done: Result<u64, DataError>| {
        stopped.fetch_or(done.is_err(), Ordering::Relaxed);
        done
    };
    let results: Vec<_> = std::thread::scope(|scope| {
        let (send, receive, failing) = (&send, &receive, &failing);
        let receivers: Vec<_> = (0..)
            .zip(inboxes)
            .map(|(part, inbox)| scope.spawn(move || failing(receive(part, inbox))))
            .collect();
        let senders: Vec<_> =
            senders.into_iter().map(|sender| scope.spawn(move || failing(send(sender)))).collect();
        receivers.into_iter().chain(senders).map(|thread| thread.join()).collect()
    });
    let results = results.into_iter().collect::<Result<Vec<_>, _>>();
    let results = results.map_err(|_| Failure::system("a thread panicked"))?;
    let mut rows = all(results)?;
    rows.truncate(arguments.into.into());
    Ok(rows)
}

/// Writes the file of a part; returns its rows.
fn receive(
    inbox: &mut BatchInbox,
    (path, format): (&Path, FileFormat),
    schema: &SchemaRef,
) -> Result<u64, DataError> {
    let file = File::create_new(path)?;
    let mut output = OutputFile::new(format, schema, BufWriter::new(&file))?;
    let mut rows = 0;
    while let Some(batch) = inbox.receive(TIMEOUT)? {
        rows += batch.num_rows() as u64;
        output.write(&batch)?;
    }
    output.finish()?;
    file.sync_all()?;
    Ok(rows)
}
