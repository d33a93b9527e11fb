//! The worker's end of a data channel, on a thread of its own.

use super::wire::Answer;
use crate::bench::{self, Task};
use crate::failure::Failure;
use farside_fabric::Fabric;
use std::net::SocketAddr;
use std::path::PathBuf;
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
    /// Starts it; returns when the end listens or has asked to be connected. Also where its fabric
    /// listens, if that is one between hosts.
    pub(super) fn start(
        task: Task,
        key: Option<PathBuf>,
    ) -> Result<(Self, Option<SocketAddr>), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, ready) = channel();
        let its_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            bench::bind(task.processor);
            let (fabric, at): (Arc<dyn Fabric>, _) = match &task.host {
                None => (crate::fabrics::shm()?, None),
                Some(host) => {
                    let (fabric, at) = host.fabric(key.as_deref(), None)?;
                    (fabric, Some(at))
                }
            };
            let ready = || {
                let _ = sender.send(at);
            };
            task.serve(fabric, ready, &its_stop)
        });
        let served = Self { stop, thread };
        match ready.recv() {
            Ok(at) => Ok((served, at)),
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
