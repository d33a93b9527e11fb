//! Work of a node on several threads, with progress.

use super::wire::Event;
use crate::bench::failed;
use crate::failure::Failure;
use farside::{GlobalAddress, Node, Session};
use farside_apps::dht::Dht;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

/// How often the parent hears how far the work is.
const PROGRESS_PERIOD: Duration = Duration::from_millis(100);

/// What one thread works with.
pub(super) struct Hand<'a> {
    pub(super) session: Session,
    pub(super) table: Dht,
    /// Its number among the node's threads.
    pub(super) number: u32,
    pub(super) done: Done<'a>,
}

/// How far the threads of a node are, together.
#[derive(Clone, Copy)]
pub(super) struct Done<'a>(&'a AtomicU64);

impl Done<'_> {
    /// Notes that so much more is done.
    pub(super) fn add(self, more: u64) {
        self.0.fetch_add(more, Ordering::Relaxed);
    }
}

/// Runs `work` on `threads` threads, each with a session and a view of the table of its own, and gives
/// their results in order.
pub(super) fn on_threads<R: Send>(
    node: &Node,
    root: GlobalAddress,
    threads: u16,
    say: impl Fn(&Event),
    work: impl Fn(Hand<'_>) -> Result<R, Failure> + Sync,
) -> Result<Vec<R>, Failure> {
    let done = AtomicU64::new(0);
    let (finished, waiting) = channel::<()>();
    std::thread::scope(|scope| {
        let start = |number: u32| {
            let (work, done, finished) = (&work, &done, finished.clone());
            scope.spawn(move || {
                let _finished = finished;
                let mut session = node.session()?;
                let table = Dht::open(&mut session, root).map_err(failed)?;
                work(Hand { session, table, number, done: Done(done) })
            })
        };
        let all: Vec<_> = (0..u32::from(threads)).map(start).collect();
        drop(finished);
        let mut told = 0;
        while waiting.recv_timeout(PROGRESS_PERIOD) == Err(RecvTimeoutError::Timeout) {
            let more = done.load(Ordering::Relaxed) - told;
            told += more;
            if more > 0 {
                say(&Event::Progress { more });
            }
        }
        say(&Event::Progress { more: done.load(Ordering::Relaxed) - told });
        let ended = |_| Failure::system("a thread of the node panicked");
        all.into_iter().map(|thread| thread.join().map_err(ended)?).collect()
    })
}
