//! The worker's end of a data channel, on its own thread.

use super::wire::Answer;
use crate::ends::task::Task;
use farside_command::failure::Failure;
use farside_command::processors::bind;
use farside_fabric::Fabric;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::thread::JoinHandle;

/// A thread that runs an end of a channel.
pub(super) struct ChannelThread {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<(), Failure>>,
}

impl ChannelThread {
    /// Starts the thread; returns when its end listens or has sent its connection request. Also returns the
    /// address of its fabric, if that is one between hosts.
    pub(super) fn start(
        task: Task,
        key: Option<PathBuf>,
    ) -> Result<(Self, Option<SocketAddr>), Failure> {
        let stop = Arc::new(AtomicBool::new(false));
        let (sender, ready) = channel();
        let its_stop = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            bind(task.processor);
            let (fabric, at): (Arc<dyn Fabric>, _) = match &task.host {
                None => (farside_command::fabrics::shm()?, None),
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
        let started = Self { stop, thread };
        match ready.recv() {
            Ok(at) => Ok((started, at)),
            Err(_) => Err(started
                .end()
                .err()
                .unwrap_or_else(|| Failure::system("the end of the channel did not start"))),
        }
    }

    /// Stops the thread and returns its result.
    pub(super) fn end(self) -> Result<Answer, Failure> {
        self.stop.store(true, Ordering::Relaxed);
        match self.thread.join() {
            Ok(served) => served.map(|()| Answer::Nothing),
            Err(_) => Err(Failure::system("the end of the channel panicked")),
        }
    }
}
