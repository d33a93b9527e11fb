//! The input of executors, its progress, and the failure that is reported.

use arrow_array::RecordBatch;
use farside_apps::shuffle::ShuffleError;
use farside_command::failure::Failure;
use farside_command::output::{Output, ProgressBar};
use farside_command::signals;
use farside_data::{DataError, InputBatches, InputFile};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Longest wait of an executor for another, which may read rows for others all the time. One that has failed is noticed
/// at once.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60 * 60);

/// Parts of files, each of which one executor reads.
pub(crate) struct Input<'a> {
    files: &'a [InputFile],
    /// The file and the part that is read next.
    next: Mutex<(usize, usize)>,
    bar: ProgressBar,
    stopped: &'a AtomicBool,
}

impl<'a> Input<'a> {
    /// `stopped`: set when an executor has failed.
    pub(crate) fn new(
        label: &str,
        files: &'a [InputFile],
        stopped: &'a AtomicBool,
        output: Output,
    ) -> Self {
        let bytes = files.iter().map(InputFile::bytes).sum();
        Self { files, next: Mutex::default(), bar: output.bar(label, bytes), stopped }
    }

    /// Takes the next part.
    fn part(&self) -> Option<Result<InputBatches, DataError>> {
        let (file, part) = {
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            while self.files.get(next.0)?.parts() <= next.1 {
                *next = (next.0 + 1, 0);
            }
            let found = *next;
            next.1 += 1;
            found
        };
        Some(self.files[file].read(part))
    }

    /// Returns the batches of the parts that this executor takes; an error if another has failed.
    pub(crate) fn batches(&self) -> impl Iterator<Item = Result<RecordBatch, DataError>> + '_ {
        let mut part: Option<InputBatches> = None;
        std::iter::from_fn(move || {
            loop {
                if self.stopped.load(Ordering::Relaxed) || signals::is_stopping() {
                    return Some(Err(ShuffleError::Stopped.into()));
                }
                if let Some(batches) = &mut part {
                    let before = batches.bytes();
                    let batch = batches.next();
                    self.bar.inc(batches.bytes().saturating_sub(before));
                    if batch.is_some() {
                        return batch;
                    }
                }
                match self.part()? {
                    Ok(next) => part = Some(next),
                    Err(error) => return Some(Err(error)),
                }
            }
        })
    }
}

impl Drop for Input<'_> {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// Returns the results of all threads, or the failure that caused the others.
pub(crate) fn all<T>(results: Vec<Result<T, DataError>>) -> Result<Vec<T>, Failure> {
    let (mut done, mut cause) = (Vec::new(), None::<DataError>);
    for result in results {
        // That a peer was lost, or was to stop, is an effect.
        let is_open = matches!(cause, None | Some(DataError::Shuffle(_)));
        match result {
            Ok(one) => done.push(one),
            Err(error) if is_open => cause = Some(error),
            Err(_) => {}
        }
    }
    match cause {
        None => Ok(done),
        Some(error) => Err(failure(error)),
    }
}

/// Converts an error: a name on the command line that the files do not have is wrong usage.
pub(crate) fn failure(error: DataError) -> Failure {
    match error {
        DataError::Shuffle(error) => error.into(),
        error => match error.cause() {
            DataError::Extension | DataError::NoColumn(..) => Failure::usage(error.to_string()),
            DataError::RowTooLarge { bytes, possible } => Failure::system(format!(
                "A row of {bytes} bytes; a batch has room for {possible}. Raise --batch-bytes."
            )),
            _ => Failure::system(error.to_string()),
        },
    }
}
