//! Processes of one program on one machine that share a cluster: `farside run`, or
//! [`LaunchedCluster::launch`].
//!
//! Each process has a rank, from 0, and knows how many there are. It finds both in the environment variable
//! [`VARIABLE`], with the cluster's name and the fabric's URL.
//!
//! ```no_run
//! use farside::prelude::*;
//!
//! fn main() -> Result<(), Error> {
//!     let (node, process) = Node::launched()?; // of: farside run -n 4 PROGRAM
//!     println!("process {} of {} is node {}", process.rank, process.size, node.id());
//!     Ok(())
//! }
//! ```

use crate::fabrics::Scheme;
use crate::node::Node;
use crate::security::Security;
use crate::{Config, Error, ErrorCode, Group};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::env::VarError;
use std::fmt;
use std::hash::{BuildHasher, RandomState};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Command, ExitStatus};
use std::str::FromStr;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The environment variable of launched processes: `RANK/SIZE CLUSTER URL`.
pub const VARIABLE: &str = "FARSIDE_LAUNCH";

/// The group in which the processes of a launch wait for each other.
const MEETING: &str = "farside.launch";

/// Maximum processes of a launch: as many members as a cluster has by default.
pub const PROCESSES_MAX: u32 = 128;

/// A launched process, as it finds itself in its environment.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct LaunchedProcess {
    /// Its number, from 0. The number of its node may differ.
    pub rank: u32,
    /// The number of processes.
    pub size: u32,
    /// The name of the cluster.
    pub cluster: String,
    /// The URL of the fabric ([`fabrics`](crate::fabrics)).
    pub url: String,
}

/// Returns this process as it was launched; `None` if it was not.
///
/// # Errors
/// `BadConfiguration` if [`VARIABLE`] is malformed.
pub fn process() -> Result<Option<LaunchedProcess>, Error> {
    match std::env::var(VARIABLE) {
        Ok(text) => text.parse().map(Some),
        Err(VarError::NotPresent) => Ok(None),
        Err(VarError::NotUnicode(text)) => Err(malformed(&text.to_string_lossy())),
    }
}

fn malformed(text: &str) -> Error {
    let text = text.escape_debug();
    let detail = format!("{VARIABLE}: `{text}` is not RANK/SIZE CLUSTER URL");
    Error::with(ErrorCode::BadConfiguration, detail)
}

impl FromStr for LaunchedProcess {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let read = || {
            let mut words = text.split(' ');
            let (rank, size) = words.next()?.split_once('/')?;
            let (rank, size) = (rank.parse().ok()?, size.parse().ok()?);
            let (cluster, url) = (words.next()?.to_owned(), words.next()?.to_owned());
            let valid = rank < size && size <= PROCESSES_MAX && words.next().is_none();
            let valid = valid && !cluster.is_empty() && !url.is_empty();
            valid.then_some(Self { rank, size, cluster, url })
        };
        read().ok_or_else(|| malformed(text))
    }
}

impl fmt::Display for LaunchedProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} {} {}", self.rank, self.size, self.cluster, self.url)
    }
}

impl LaunchedProcess {
    /// Opens a node in the cluster of the launch, whose name replaces that of `config`, and waits until
    /// every process of the launch has done so.
    ///
    /// *Blocks* as [`Node::open`], and then for each step of a [`Group`] for at most
    /// [`Config::join_timeout_ns`].
    ///
    /// # Errors
    /// As [`Node::open`] and [`Group::join_as`]: `TimedOut` or `GroupBroken` if a process does not join,
    /// `OutOfMemory` if no process lends memory.
    pub fn open(&self, config: &Config) -> Result<Node, Error> {
        let config = Config { cluster: self.cluster.clone(), ..config.clone() };
        let node = Node::open(&config, &self.url, Security::open())?;
        let mut session = node.session()?;
        session.set_timeout(Some(Duration::from_nanos(config.join_timeout_ns)));
        let (size, rank) = (self.size as usize, self.rank as usize);
        Group::join_as(&mut session, MEETING, size, rank)?.leave(&mut session)?;
        Ok(node)
    }
}

impl Node {
    /// Joins the cluster of a launched process ([`launch`](crate::launch)) with the default configuration,
    /// and waits until every process of the launch has joined. [`LaunchedProcess::open`] takes another one.
    ///
    /// # Errors
    /// `BadConfiguration` if this process was not launched; those of [`LaunchedProcess::open`].
    pub fn launched() -> Result<(Self, LaunchedProcess), Error> {
        let Some(process) = process()? else {
            let detail = "this process was not launched: start it by `farside run -n 4 PROGRAM`";
            return Err(Error::with(ErrorCode::BadConfiguration, detail));
        };
        let node = process.open(&Config::new(process.cluster.as_str()))?;
        Ok((node, process))
    }
}

/// Processes of one program that share a cluster. Dropping it kills those that still run.
///
/// If the launcher itself is killed, its processes continue; those of `farside run` end with it.
#[derive(Debug)]
pub struct LaunchedCluster {
    children: Vec<Child>,
    ended: Vec<bool>,
    pidfds: Arc<[OwnedFd]>,
}

/// The first process of a launch that failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct FailedProcess {
    /// Its rank.
    pub rank: u32,
    /// Its exit status.
    pub status: ExitStatus,
}

/// How long interrupted processes have to end before they are killed.
pub const INTERRUPT_GRACE: Duration = Duration::from_secs(5);

/// Interrupts the processes of a launch, from any thread.
#[derive(Clone, Debug)]
pub struct Interrupter {
    pidfds: Arc<[OwnedFd]>,
}

impl Interrupter {
    /// Sends SIGINT, as Ctrl-C does, to each process that still runs, and SIGKILL to those that still run
    /// [`INTERRUPT_GRACE`] later: a process may ignore SIGINT, as those of shell scripts in the background do.
    pub fn interrupt(&self) {
        self.signal(Signal::INT);
        let late = self.clone();
        let waiting = std::thread::Builder::new().name("farside-interrupt".to_owned());
        let waits = waiting.spawn(move || {
            late.wait_for_end(INTERRUPT_GRACE);
            late.signal(Signal::KILL);
        });
        if waits.is_err() {
            self.signal(Signal::KILL);
        }
    }

    fn signal(&self, signal: Signal) {
        for pidfd in self.pidfds.iter() {
            // A process that has ended needs no signal.
            let _ = pidfd_send_signal(pidfd, signal);
        }
    }

    /// Waits until all processes have ended, at most for `time`.
    fn wait_for_end(&self, time: Duration) {
        let deadline = Instant::now() + time;
        for pidfd in self.pidfds.iter() {
            loop {
                let left = deadline.saturating_duration_since(Instant::now());
                let timeout = Timespec::try_from(left).ok();
                match poll(&mut [PollFd::new(pidfd, PollFlags::IN)], timeout.as_ref()) {
                    Err(Errno::INTR) => {}
                    _ => break,
                }
            }
        }
    }
}

impl LaunchedCluster {
    /// Starts a command as `processes` processes that share a cluster over `shm` or, on the loopback,
    /// `tcp`. They differ in [`VARIABLE`] alone.
    ///
    /// ```no_run
    /// use farside::fabrics::Scheme;
    /// use farside::launch::LaunchedCluster;
    /// use std::process::Command;
    ///
    /// # fn main() -> Result<(), farside::Error> {
    /// let mut cluster = LaunchedCluster::launch(&mut Command::new("target/release/ranks"), 4, Scheme::Shm)?;
    /// assert_eq!(cluster.wait()?, None, "a process failed");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `BadConfiguration` for 0 or more than [`PROCESSES_MAX`] processes, or another fabric; `System` if a
    /// process does not start, which ends those that did.
    pub fn launch(command: &mut Command, processes: u32, scheme: Scheme) -> Result<Self, Error> {
        if !(1..=PROCESSES_MAX).contains(&processes) {
            let detail = format!("processes: 1 to {PROCESSES_MAX}, and it is {processes}");
            return Err(Error::with(ErrorCode::BadConfiguration, detail));
        }
        let (cluster, url) = (unused_name(), url_of(scheme)?);
        let mut children = Vec::new();
        let mut pidfds = Vec::new();
        for rank in 0..processes {
            let (cluster, url) = (cluster.clone(), url.clone());
            let process = LaunchedProcess { rank, size: processes, cluster, url };
            let started = command.env(VARIABLE, process.to_string()).spawn();
            let started = started.map_err(|reason| {
                let program = command.get_program().to_string_lossy();
                system(&format!("process {rank} (`{program}`)"), &reason)
            });
            let pidfd = started.and_then(|child| {
                let pid = Pid::from_child(&child);
                children.push(child);
                let pidfd = pidfd_open(pid, PidfdFlags::empty());
                pidfd.map_err(|reason| system("pidfd", &reason.into()))
            });
            match pidfd {
                Ok(pidfd) => pidfds.push(pidfd),
                Err(error) => {
                    end(&mut children);
                    return Err(error);
                }
            }
        }
        Ok(Self { ended: vec![false; children.len()], children, pidfds: pidfds.into() })
    }

    /// Returns the processes by rank, to take their output for example.
    pub fn children(&mut self) -> &mut [Child] {
        &mut self.children
    }

    /// Returns a handle that interrupts the processes, from another thread.
    pub fn interrupter(&self) -> Interrupter {
        Interrupter { pidfds: Arc::clone(&self.pidfds) }
    }

    /// Waits until all processes have ended, or one has failed, which kills the others. Returns the one
    /// that failed.
    ///
    /// *Guarantees*: of processes that failed at about the same time one that was killed by a signal is
    /// preferred, since the others may have failed for its loss.
    ///
    /// # Errors
    /// `System` if the kernel refuses to report a process.
    pub fn wait(&mut self) -> Result<Option<FailedProcess>, Error> {
        loop {
            if let Some(failed) = self.reap()? {
                end(&mut self.children);
                return Ok(Some(failed));
            }
            let running = self.pidfds.iter().zip(&self.ended).filter(|(_, ended)| !**ended);
            let mut running: Vec<_> =
                running.map(|(pidfd, _)| PollFd::new(pidfd, PollFlags::IN)).collect();
            if running.is_empty() {
                return Ok(None);
            }
            match poll(&mut running, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(reason) => return Err(system("poll", &reason.into())),
            }
        }
    }

    /// Reaps processes that have ended; returns one that failed.
    fn reap(&mut self) -> Result<Option<FailedProcess>, Error> {
        let mut first: Option<FailedProcess> = None;
        let children = self.children.iter_mut().zip(&mut self.ended);
        for (rank, (child, ended)) in (0..).zip(children).filter(|(_, (_, ended))| !**ended) {
            let status = child.try_wait().map_err(|reason| system("wait", &reason))?;
            let Some(status) = status else {
                continue;
            };
            *ended = true;
            let killed = status.signal().is_some();
            if !status.success() && (first.is_none() || killed) {
                first = first
                    .filter(|first| first.status.signal().is_some())
                    .or(Some(FailedProcess { rank, status }));
            }
        }
        Ok(first)
    }
}

impl Drop for LaunchedCluster {
    fn drop(&mut self) {
        end(&mut self.children);
    }
}

/// Kills the processes that still run, and reaps them.
fn end(children: &mut [Child]) {
    for child in &mut *children {
        let _ = child.kill(); // it may have ended by itself, which is as good
    }
    for child in children {
        let _ = child.wait();
    }
}

fn system(what: &str, reason: &std::io::Error) -> Error {
    Error::with(ErrorCode::System, format!("{what}: {reason}"))
}

/// Returns a name that no other launch has.
fn unused_name() -> String {
    let random = RandomState::new().hash_one(std::process::id());
    format!("launch-{}-{random:016x}", std::process::id())
}

/// Returns the URL for processes of this machine.
fn url_of(scheme: Scheme) -> Result<String, Error> {
    match scheme {
        Scheme::Shm => Ok("shm".to_owned()),
        Scheme::Tcp => {
            let free = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
                .and_then(|listener| listener.local_addr())
                .map_err(|reason| system("a port of the loopback", &reason))?;
            Ok(format!("tcp://{free}"))
        }
        Scheme::Verbs => {
            let detail = "a launch is on one machine: over shm or tcp, not verbs";
            Err(Error::with(ErrorCode::BadConfiguration, detail))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launched_process_is_parsed_as_it_is_printed() {
        let process = LaunchedProcess {
            rank: 3,
            size: 4,
            cluster: unused_name(),
            url: "tcp://127.0.0.1:7471".to_owned(),
        };
        assert_eq!(process.to_string().parse(), Ok(process.clone()));
        assert!(Config::new(process.cluster.as_str()).check().is_ok());
        for wrong in ["", "0/1 a", "1/1 a shm", "0/129 a shm", "0/1 a shm b", "x/1 a shm", "0/1  "]
        {
            let error = wrong.parse::<LaunchedProcess>().unwrap_err();
            assert_eq!(error.code, ErrorCode::BadConfiguration, "{wrong}");
        }
    }

    #[test]
    fn impossible_launches_are_refused() {
        let mut command = Command::new("true");
        for (processes, scheme) in [(0, Scheme::Shm), (129, Scheme::Shm), (1, Scheme::Verbs)] {
            let error = LaunchedCluster::launch(&mut command, processes, scheme).unwrap_err();
            assert_eq!(error.code, ErrorCode::BadConfiguration);
        }
        let mut absent = Command::new("/no-such-program");
        let error = LaunchedCluster::launch(&mut absent, 2, Scheme::Shm).unwrap_err();
        assert_eq!(error.code, ErrorCode::System);
    }
}
