//! The process of a worker, on this host or at an agent of another one.

use farside_command::failure::Failure;
use std::net::IpAddr;
use std::thread::JoinHandle;

/// The process of a worker, on this host or at an agent.
pub(crate) trait Process {
    /// Sends it a line.
    fn send(&mut self, line: &str) -> std::io::Result<()>;
    /// Kills it with SIGKILL, unless it has ended.
    fn kill(&mut self);
    /// Waits until it has ended and is reaped, and returns its exit status. It must have been told to end.
    fn wait(&mut self) -> Result<String, Failure>;
    /// Returns its process number on its host.
    fn number(&self) -> u32;
}

/// A started worker, and the thread that reads its output.
pub(crate) struct Started {
    pub(crate) process: Box<dyn Process>,
    /// The address at which nodes of other hosts reach the worker's host; `None` in shared memory.
    pub(crate) host: Option<IpAddr>,
    /// The address at which that host reaches this process.
    pub(crate) local: Option<IpAddr>,
    pub(crate) listener: JoinHandle<()>,
}

/// Takes the output of a worker line by line, and `None` at its end; returns false once no receiver is left.
pub(crate) type LineHandler = Box<dyn FnMut(Option<&str>) -> bool + Send>;
