//! The command's handle of a worker at an agent.

use super::line::{Line, Lines};
use super::wire::{LINE_BYTES_MAX, MARK, Notice, Order, line};
use crate::process::Process;
use farside_bootstrap::{Endpoint, Security};
use farside_command::failure::Failure;
use std::io;
use std::net::IpAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Time that an agent has to report the end of a worker.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// A worker process at an agent.
pub(crate) struct Remote {
    line: Arc<Line>,
    agent: String,
    process: u32,
    host: IpAddr,
    /// How the worker ended.
    ended: Receiver<String>,
}

impl Remote {
    /// Starts a worker at the agent `at`, and returns it with the lines of its output, which end with the worker.
    pub(crate) fn start(
        at: &Endpoint,
        security: &Security,
    ) -> Result<(Self, RemoteLines), Failure> {
        let failed = |e: &dyn std::fmt::Display| {
            Failure::system(format!(
                "agent {e}; run `farside agent --listen {at}` on that host, with the same key"
            ))
        };
        let to = Line::connect(at, security).map_err(|e| failed(&e))?;
        // If sending fails, the agent's answer is the better reason.
        let sent = to.send(&line(&Order::start()));
        let answer = Lines::new(&to, LINE_BYTES_MAX).next();
        let answer = match (answer, sent) {
            (Ok(Some(answer)), _) => answer,
            (Ok(None), _) => return Err(failed(&format!("{at}: it ended the stream"))),
            (Err(reason), _) => return Err(failed(&format!("{at}: {reason}"))),
        };
        let process = match serde_json::from_slice(&answer) {
            Ok(Notice::Started { process }) => process,
            Ok(Notice::Refused { failure }) => {
                return Err(Failure::system(format!("agent {at}: {failure}")));
            }
            _ => {
                let reason = "its answer is unknown: install one version on both hosts";
                return Err(failed(&format!("{at}: {reason}")));
            }
        };
        let host = to.peer().map_err(|e| failed(&format!("{at}: {e}")))?.ip();
        let line = Arc::new(to);
        let (sender, ended) = channel();
        let lines = RemoteLines { line: Arc::clone(&line), ended: sender };
        Ok((Self { line, agent: at.to_string(), process, host, ended }, lines))
    }

    /// Returns the address at which this host reaches the agent's.
    pub(crate) fn host(&self) -> IpAddr {
        self.host
    }

    /// Returns the address at which the agent's host reaches this one.
    pub(crate) fn local(&self) -> Result<IpAddr, Failure> {
        let local = self.line.local();
        local.map(|local| local.ip()).map_err(|e| Failure::system(format!("own address: {e}")))
    }
}

impl Process for Remote {
    fn send(&mut self, line: &str) -> io::Result<()> {
        let line = format!("{line}\n");
        self.line.send(line.as_bytes()).map_err(io::Error::other)
    }

    fn kill(&mut self) {
        // A broken stream has already ended the worker.
        let _ = self.line.send(&line(&Order::Kill));
    }

    fn wait(&mut self) -> Result<String, Failure> {
        let how = match self.ended.recv_timeout(END_TIMEOUT) {
            Ok(how) => how,
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                format!("its agent {} has ended or is out of reach", self.agent)
            }
            Err(mpsc::RecvTimeoutError::Timeout) => {
                format!("its agent {} does not report how", self.agent)
            }
        };
        self.line.end();
        Ok(how)
    }

    fn number(&self) -> u32 {
        self.process
    }
}

/// The output of a worker at an agent.
pub(crate) struct RemoteLines {
    line: Arc<Line>,
    ended: Sender<String>,
}

impl RemoteLines {
    /// Passes each line of the worker to `take`, until the stream ends or `take` returns false. *Blocks* until then.
    pub(crate) fn each(self, mut take: impl FnMut(&str) -> bool) {
        let mut lines = Lines::new(&self.line, usize::MAX);
        while let Ok(Some(line)) = lines.next() {
            if line.starts_with(MARK) {
                if let Ok(Notice::Ended { how }) = serde_json::from_slice(&line) {
                    let _ = self.ended.send(how);
                    break;
                }
            } else if !line.is_empty() && !take(&String::from_utf8_lossy(&line)) {
                break;
            }
        }
    }
}
