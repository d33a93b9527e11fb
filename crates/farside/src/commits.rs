//! The thread of a node with state that commits its log: all that has been appended meanwhile in one group.

use crate::durable::DurableLog;
use crate::mutex::locked;
use crate::{Error, ErrorCode};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// Longer than any commit.
pub(crate) const COMMIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// How far a node has appended, for the thread that commits.
#[derive(Debug, Default)]
struct Wanted {
    position: u64,
    is_closed: bool,
    /// The thread waits, and is to be woken.
    waits: bool,
}

/// Tells the thread that commits how far the log has been appended.
#[derive(Debug, Default)]
pub(crate) struct CommitSignal {
    wanted: Mutex<Wanted>,
    changed: Condvar,
}

impl CommitSignal {
    /// Asks for a commit up to a position. Calls the kernel only if the thread waits.
    pub(crate) fn want(&self, position: u64) {
        let mut wanted = locked(&self.wanted);
        wanted.position = wanted.position.max(position);
        if std::mem::take(&mut wanted.waits) {
            self.changed.notify_one();
        }
    }

    /// Ends the thread once it has committed all.
    fn close(&self) {
        locked(&self.wanted).is_closed = true;
        self.changed.notify_one();
    }

    /// Blocks until more than `done` is wanted; `None` once the node has ended.
    fn next(&self, done: u64) -> Option<u64> {
        let waits = |wanted: &mut Wanted| {
            wanted.waits = wanted.position <= done && !wanted.is_closed;
            wanted.waits
        };
        let wanted = self.changed.wait_while(locked(&self.wanted), waits);
        let position = wanted.unwrap_or_else(PoisonError::into_inner).position;
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
