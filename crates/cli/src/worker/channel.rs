//! The worker's end of a data channel, on a thread of its own.

use super::wire::Answer;
use crate::bench::{self, Task};
use crate::failure::Failure;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// A thread that is an end of a channel.
pub(super) struct Served {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl Served {
    /// Starts it; returns when the end listens or has asked to be connected.
    pub(super) fn start(task: Task) -> Result<Self, Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, ready) = channel();
        let its_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            bench::bind(task.processor);
            let fabric = crate::fabrics::shm()?;
            let ready = || {
                let _ = sender.send(());
            };
            task.serve(fabric.into(), ready, &its_stop)
        });
        let served = Self { stop, thread };
        match ready.recv() {
            Ok(()) => Ok(served),
            Err(_) => Err(served
                .end()
                .err()
                .unwrap_or_else(|| Failure::system("the end of the channel was never there"))),
        }
    }

    /// Ends it, and says how it went.
    pub(super) fn end(self) -> Result<Answer, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(served) => served.map(|()| Answer::Nothing),
            Err(_) => Err(Failure::system("the end of the channel panicked")),
        }
    }
}
