//! Where the workers of a command run, and how their nodes reach each other.

use crate::agent::{self, Remote};
use crate::arguments::{Places, Protection, WorkerFabric};
use crate::choice;
use crate::cluster::{Hear, Process, Started};
use crate::failure::Failure;
use crate::worker::TcpSpec;
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::Fabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

/// Where workers run.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    /// As children of this process, over shared memory.
    Machine,
    /// As children of this process, over TCP on the loopback.
    Loopback(Trust),
    /// At these agents in turn, over TCP.
    Agents(Vec<Endpoint>, Trust),
}

/// Who is trusted and what is protected, between hosts.
#[derive(Clone, Debug)]
pub(crate) struct Trust {
    key: Option<PathBuf>,
    protect: Option<Protection>,
    /// Of what nodes say to each other.
    security: Security,
}

impl Hosts {
    /// As it was asked for.
    pub(crate) fn of(places: &Places) -> Result<Self, Failure> {
        let Places { fabric, on, key, protect } = places;
        if *fabric == Some(WorkerFabric::Shm) && !on.is_empty() {
            return Err(Failure::usage("--on is for --fabric tcp: shm reaches one machine alone"));
        }
        if on.is_empty() && *fabric != Some(WorkerFabric::Tcp) {
            if key.is_some() || protect.is_some() {
                let text = "--key and --protect are for --fabric tcp: shm reaches processes of one \
                            machine and user alone";
                return Err(Failure::usage(text));
            }
            return Ok(Self::Machine);
        }
        let security = choice::tcp_security(key.as_deref(), *protect)?;
        let trust = Trust { key: key.clone(), protect: *protect, security };
        if on.is_empty() {
            return Ok(Self::Loopback(trust));
        }
        match on.iter().find(|agent| key.is_none() && !agent::is_loopback(agent)) {
            Some(agent) => Err(Failure::usage(format!(
                "{agent} is another host, so --key FILE is needed: the one that its agent has"
            ))),
            None => Ok(Self::Agents(on.clone(), trust)),
        }
    }

    /// The fabric's name.
    pub(crate) fn fabric(&self) -> &'static str {
        match self {
            Self::Machine => "shm",
            Self::Loopback(_) | Self::Agents(..) => "tcp",
        }
    }

    /// How nodes reach each other, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Machine => "over shared memory".to_owned(),
            Self::Loopback(trust) => format!("over TCP ({})", trust.security.describe()),
            Self::Agents(_, trust) => {
                format!("at agents, over TCP ({})", trust.security.describe())
            }
        }
    }

    /// What a command's own fabric needs to reach workers; `None` in shared memory.
    pub(crate) fn security(&self) -> Option<&Security> {
        self.trust().map(|trust| &trust.security)
    }

    /// Whether workers see the files of this machine.
    pub(crate) fn shares_files(&self) -> bool {
        !matches!(self, Self::Agents(..))
    }

    /// How many of so many workers are on one host at most, as far as can be told.
    pub(crate) fn workers_together(&self, workers: u64) -> u64 {
        match self {
            Self::Machine | Self::Loopback(_) => workers,
            Self::Agents(agents, _) => workers.div_ceil(agents.len().max(1) as u64),
        }
    }

    /// How a node listens at its host and finds those that are there already.
    pub(crate) fn tcp(&self, host: IpAddr, hosts: &[SocketAddr]) -> TcpSpec {
        let protect = self.trust().and_then(|trust| trust.protect);
        TcpSpec { listen: SocketAddr::new(host, 0), hosts: hosts.to_vec(), protect }
    }

    fn trust(&self) -> Option<&Trust> {
        match self {
            Self::Machine => None,
            Self::Loopback(trust) | Self::Agents(_, trust) => Some(trust),
        }
    }

    /// Starts worker number `index`.
    pub(crate) fn start(&self, index: usize, mut hear: Hear) -> Result<Started, Failure> {
        match self {
            Self::Machine => InChild::start(None, None, hear),
            Self::Loopback(trust) => {
                let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
                InChild::start(trust.key.as_ref(), Some(here), hear)
            }
            Self::Agents(agents, trust) => {
                let security = agent::security(trust.key.as_deref())?;
                let (remote, lines) = Remote::start(&agents[index % agents.len()], &security)?;
                let (host, local) = (Some(remote.host()), Some(remote.local()?));
                let listener = std::thread::spawn(move || {
                    lines.each(|line| hear(Some(line)));
                    hear(None);
                });
                Ok(Started { process: Box::new(remote), host, local, listener })
            }
        }
    }
}

/// A worker that is a child of this process.
struct InChild {
    child: Child,
    commands: Option<ChildStdin>,
}

impl InChild {
    /// Starts this program again as a worker. Called by the main thread, whose end the kernel takes for
    /// the parent's death.
    fn start(
        key: Option<&PathBuf>,
        host: Option<IpAddr>,
        mut hear: Hear,
    ) -> Result<Started, Failure> {
        let program =
            std::env::current_exe().map_err(|e| Failure::system(format!("own program: {e}")))?;
        let mut command = Command::new(program);
        command.arg("worker");
        if let Some(key) = key {
            command.arg("--key").arg(key);
        }
        // A group of its own: Ctrl-C reaches the parent alone, which then ends us in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| Failure::system(format!("cannot start a worker process: {e}")))?;
        let output = child.stdout.take();
        let listener = std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(Result::ok) {
                if !hear(Some(&line)) {
                    return;
                }
            }
            hear(None);
        });
        let process = Self { commands: child.stdin.take(), child };
        Ok(Started { process: Box::new(process), host, local: host, listener })
    }
}

/// A TCP fabric that listens, and where others reach it.
pub(crate) fn tcp(options: TcpOptions) -> Result<(Arc<TcpFabric>, SocketAddr), Failure> {
    let place = options.listen.as_ref().map(Endpoint::to_string).unwrap_or_default();
    let failed = |e: &dyn std::fmt::Display| Failure::system(format!("TCP fabric at {place}: {e}"));
    let fabric = TcpFabric::new(options).map_err(|e| failed(&e))?;
    match fabric.host() {
        Some(at) => Ok((Arc::new(fabric), at)),
        None => Err(failed(&"others do not reach it: name a host, or where it is reached")),
    }
}

impl Process for InChild {
    fn tell(&mut self, line: &str) -> std::io::Result<()> {
        let commands = self.commands.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(commands, "{line}")
    }

    fn kill(&mut self) {
        // It may have ended by itself, which is as good. Only then its input, lest it ends by that.
        let _ = self.child.kill();
        self.commands = None;
    }

    fn wait(&mut self) -> Result<String, Failure> {
        self.commands = None;
        let ended = self.child.wait().map_err(|e| Failure::system(format!("wait: {e}")))?;
        Ok(ended.to_string())
    }

    fn number(&self) -> u32 {
        self.child.id()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(fabric: Option<WorkerFabric>, on: &[&str]) -> Places {
        let on = on.iter().map(|agent| agent.parse().unwrap()).collect();
        Places { fabric, on, ..Places::default() }
    }

    #[test]
    fn places_that_go_together_are_taken() {
        let tcp = Some(WorkerFabric::Tcp);
        let of = |fabric, on| Hosts::of(&places(fabric, on));
        assert!(matches!(of(None, &[]), Ok(Hosts::Machine)));
        assert!(matches!(of(Some(WorkerFabric::Shm), &[]), Ok(Hosts::Machine)));
        assert!(matches!(of(tcp, &[]), Ok(Hosts::Loopback(_))));
        let agents = ["127.0.0.1:1", "localhost:2"];
        assert!(matches!(of(None, &agents), Ok(Hosts::Agents(..))));
        assert!(matches!(of(tcp, &agents), Ok(Hosts::Agents(..))));
        let refused = [
            places(Some(WorkerFabric::Shm), &agents),
            places(None, &["127.0.0.1:1", "10.0.0.1:1"]),
            Places { key: Some("key".into()), ..Places::default() },
            Places { protect: Some(Protection::Everything), ..places(tcp, &[]) },
        ];
        for places in refused {
            assert!(matches!(Hosts::of(&places), Err(Failure::Usage { .. })), "{places:?}");
        }
    }

    #[test]
    fn workers_are_spread_over_agents() {
        let agents = Hosts::of(&places(None, &["127.0.0.1:1", "127.0.0.2:1"])).unwrap();
        assert_eq!([1, 2, 3, 4].map(|workers| agents.workers_together(workers)), [1, 1, 2, 2]);
        assert_eq!(Hosts::Machine.workers_together(3), 3);
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let known = [SocketAddr::new(host, 7)];
        let spec = agents.tcp(host, &known);
        assert_eq!((spec.listen.port(), &spec.hosts[..]), (0, &known[..]));
    }
}
