//! Runs work of a node on several threads, with progress reports.

use super::wire::Event;
use farside::{GlobalAddress, Node, Session};
use farside_apps::dht::Dht;
use farside_command::failure::Failure;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// Period of progress reports to the parent.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// The resources of one thread.
pub(super) struct ThreadContext<'a> {
    pub(super) session: Session,
    pub(super) table: Dht,
    /// Its number among the node's threads.
    pub(super) number: u32,
    pub(super) progress: ProgressCounter<'a>,
}

/// Progress counter of all threads of a node.
#[derive(Clone, Copy)]
pub(super) struct ProgressCounter<'a>(&'a AtomicU64);

impl ProgressCounter<'_> {
    /// Adds to the counter.
    pub(super) fn add(self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// Runs `work` on `threads` threads, each with its own session and handle of the table, and returns their results
/// in order.
pub(super) fn on_threads<R: Send>(
    node: &Node,
    root: GlobalAddress,
    threads: u16,
    say: impl Fn(&Event),
    work: impl Fn(ThreadContext<'_>) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let done = AtomicU64::new(0);
    let (finished, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        let start = |number: u32| {
            let (work, done, finished) = (&work, &done, finished.clone());
            scope.spawn(move || {
                let _finished = finished;
                let mut session = node.session()?;
                let table = Dht::open(&mut session, root)?;
                work(ThreadContext { session, table, number, progress: ProgressCounter(done) })
            })
        };
        let all: Vec<_> = (0..u32::from(threads)).map(start).collect();
        drop(finished);
        let mut reported = 0;
        while waiting.recv_timeout(PROGRESS_PERIOD) == Err(RecvTimeoutError::Timeout) {
            let more = done.load(Ordering::Relaxed) - reported;
            reported += more;
            if more > 0 {
                say(&Event::Progress { more });
            }
        }
        say(&Event::Progress { more: done.load(Ordering::Relaxed) - reported });
        let ended = |_| Failure::system("a thread of the node panicked");
        all.into_iter().map(|thread| thread.join().map_err(ended)?).collect()
    })
}
