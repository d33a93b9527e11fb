//! The thread of a node with state that commits its log: all that has been appended meanwhile in one group.

use crate::durable::DurableLog;
use crate::mutex::locked;
use crate::{Error, ErrorCode};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any commit.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// Tells the thread that commits how far the log has been appended.
#[derive(Debug, Default)]
pub(crate) struct CommitSignal {
    /// The position, and whether the node has ended.
    wanted: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl CommitSignal {
    pub(crate) fn want(&self, position: u64) {
        let mut wanted = locked(&self.wanted);
        wanted.0 = wanted.0.max(position);
        drop(wanted);
        self.changed.notify_one();
    }

    /// Ends the thread once it has committed all.
    pub(crate) fn close(&self) {
        locked(&self.wanted).1 = true;
        self.changed.notify_one();
    }

    /// Blocks until more than `done` is wanted; `None` once the node has ended.
    fn next(&self, done: u64) -> Option<u64> {
        let waits = |wanted: &mut (u64, bool)| wanted.0 <= done && !wanted.1;
        let wanted = self.changed.wait_while(locked(&self.wanted), waits);
        let (position, _) = *wanted.unwrap_or_else(PoisonError::into_inner);
        (position > done).then_some(position)
    }
}

/// The thread that commits what a node logs.
#[derive(Debug)]
pub(crate) struct Committer {
    signal: Arc<CommitSignal>,
    thread: Option<JoinHandle<()>>,
}

impl Committer {
    /// Starts the thread, which reports each commit, and the first failure as its last report.
    ///
    /// # Errors
    /// `System`.
    pub(crate) fn start(
        (log, signal): (Arc<DurableLog>, Arc<CommitSignal>),
        report: impl Fn(Result<(), Error>) + Send + 'static,
    ) -> Result<Self, Error> {
        let shared = Arc::clone(&signal);
        let thread = std::thread::Builder::new().name("farside-log".to_owned());
        let thread = thread.spawn(move || commit_all(&log, &shared, &report));
        let failed = |reason: std::io::Error| {
            Error::with(ErrorCode::System, format!("no thread for the log: {reason}"))
        };
        Ok(Self { signal, thread: Some(thread.map_err(failed)?) })
    }

    /// Commits the rest and ends the thread. Its report does not wait for the caller.
    pub(crate) fn end(mut self) {
        self.signal.close();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join(); // it has no result
        }
    }
}

impl Drop for Committer {
    fn drop(&mut self) {
        self.signal.close();
    }
}

/// Commits until the node ends or the log fails.
fn commit_all(log: &DurableLog, signal: &CommitSignal, report: &impl Fn(Result<(), Error>)) {
    let mut done = 0;
    while let Some(wanted) = signal.next(done) {
        match log.commit(wanted, COMMIT_TIMEOUT) {
            Ok(()) => {
                done = wanted;
                report(Ok(()));
            }
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(error) => return report(Err(error)),
        }
    }
}
