//! Where the workers of a command run, and how their nodes reach each other.

use crate::agent::{self, Remote};
use crate::arguments::{HostFabric, Places, Protection, WorkerFabric};
use crate::choice;
use crate::cluster::{Hear, Process, Started};
use crate::failure::Failure;
use crate::rdma::Rdma;
use crate::worker::{HostSpec, LEASE};
use farside::fabrics::{FabricOptions, OpenFabric};
use farside_bootstrap::{Admission, Endpoint, Protect, Security};
use farside_fabric::Fabric;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;

/// A fabric that listens, and where others reach it.
pub(crate) type Opened = (Arc<dyn Fabric>, SocketAddr);

/// Where workers run.
#[derive(Clone, Debug)]
pub(crate) enum Hosts {
    /// As children of this process, over shared memory.
    Machine,
    /// As children of this process, over a fabric between hosts.
    Loopback(Between),
    /// At these agents in turn.
    Agents(Vec<Endpoint>, Between),
}

/// A fabric between hosts: which, who is trusted and what is protected.
#[derive(Clone, Debug)]
pub(crate) struct Between {
    fabric: HostFabric,
    rdma: Rdma,
    key: Option<PathBuf>,
    protect: Option<Protection>,
    /// Of what nodes say to each other.
    security: Security,
}

impl Hosts {
    /// As it was asked for.
    pub(crate) fn of(places: &Places) -> Result<Self, Failure> {
        let Places { fabric, on, rdma, key, protect } = places;
        rdma.check(*fabric == Some(WorkerFabric::Verbs))?;
        if *fabric == Some(WorkerFabric::Shm) && !on.is_empty() {
            return Err(Failure::usage(
                "--on is for --fabric tcp or verbs: shm reaches one machine alone",
            ));
        }
        if on.is_empty() && matches!(fabric, None | Some(WorkerFabric::Shm)) {
            if key.is_some() || protect.is_some() {
                let text = "--key and --protect are for --fabric tcp or verbs: shm reaches processes of one \
                            machine and user alone";
                return Err(Failure::usage(text));
            }
            return Ok(Self::Machine);
        }
        let kind = match fabric {
            Some(WorkerFabric::Verbs) => HostFabric::Verbs,
            _ => HostFabric::Tcp,
        };
        let security = choice::host_security(kind, key.as_deref(), *protect)?;
        let (key_file, rdma) = (key.clone(), rdma.clone());
        let between = Between { fabric: kind, rdma, key: key_file, protect: *protect, security };
        if on.is_empty() {
            return Ok(Self::Loopback(between));
        }
        match on.iter().find(|agent| key.is_none() && !agent::is_loopback(agent)) {
            Some(agent) => Err(Failure::usage(format!(
                "{agent} is another host, so --key FILE is needed: the one that its agent has"
            ))),
            None => Ok(Self::Agents(on.clone(), between)),
        }
    }

    /// The fabric's name.
    pub(crate) fn fabric(&self) -> &'static str {
        match self {
            Self::Machine => "shm",
            Self::Loopback(between) | Self::Agents(_, between) => between.fabric.name(),
        }
    }

    /// How nodes reach each other, in words.
    pub(crate) fn describe(&self) -> String {
        match self {
            Self::Machine => "over shared memory".to_owned(),
            Self::Loopback(between) => between.describe(Place::Loopback),
            Self::Agents(_, between) => format!("at agents, {}", between.describe(Place::Agents)),
        }
    }

    /// A command's own fabric, to reach workers, and where it is reached; `None` in shared memory.
    pub(crate) fn listen(&self, host: IpAddr) -> Result<Option<Opened>, Failure> {
        let Some(between) = self.between() else {
            return Ok(None);
        };
        let options = FabricOptions::new(between.fabric.scheme())
            .listen(Some(Endpoint::from(SocketAddr::new(host, 0))))
            .security(between.security.clone())
            .lease(LEASE);
        open(&between.rdma.apply(options)).map(Some)
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
    pub(crate) fn spec(&self, host: IpAddr, hosts: &[SocketAddr]) -> Option<HostSpec> {
        let between = self.between()?;
        Some(HostSpec {
            fabric: between.fabric,
            rdma: between.rdma.clone(),
            listen: SocketAddr::new(host, 0),
            hosts: hosts.to_vec(),
            protect: between.protect,
        })
    }

    /// Whether workers reach each other over a fabric between hosts.
    pub(crate) fn is_between(&self) -> bool {
        self.between().is_some()
    }

    fn between(&self) -> Option<&Between> {
        match self {
            Self::Machine => None,
            Self::Loopback(between) | Self::Agents(_, between) => Some(between),
        }
    }

    /// Starts worker number `index`.
    pub(crate) fn start(&self, index: usize, mut hear: Hear) -> Result<Started, Failure> {
        match self {
            Self::Machine => InChild::start(None, None, hear),
            Self::Loopback(between) => {
                let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
                InChild::start(between.key.as_ref(), Some(here), hear)
            }
            Self::Agents(agents, between) => {
                let security = agent::security(between.key.as_deref())?;
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

/// A fabric between hosts that listens, and where others reach it.
pub(crate) fn open(options: &FabricOptions) -> Result<Opened, Failure> {
    open_for(options).map(|(opened, _)| opened)
}

/// The same, and who may connect to it.
pub(crate) fn open_for(options: &FabricOptions) -> Result<(Opened, Option<Admission>), Failure> {
    let place = options.listen.as_ref().map(Endpoint::to_string).unwrap_or_default();
    let name = options.scheme.name();
    let failed = |text: &str| Failure::system(format!("{name} at {place}: {text}"));
    let OpenFabric { fabric, admission, .. } =
        options.open().map_err(|error| failed(&error.detail))?;
    match fabric.host() {
        Some(at) => Ok(((fabric, at), admission)),
        None => Err(failed("others do not reach it: name a host, or where it is reached")),
    }
}

/// Where the nodes of a command listen.
#[derive(Clone, Copy)]
enum Place {
    Loopback,
    Agents,
}

/// Who may connect to a listener on the loopback, as one that is made for the question tells.
fn loopback(security: &Security) -> Option<Admission> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    Admission::of(security, listener.local_addr().ok()?).ok()
}

impl Between {
    /// In words; where its nodes are on the loopback, also who may connect to them.
    fn describe(&self, place: Place) -> String {
        let all = self.security.protect() == Protect::Everything;
        let plain = match self.fabric {
            HostFabric::Verbs if all => "; data packets are plain text",
            HostFabric::Tcp | HostFabric::Verbs => "",
        };
        let admission = matches!(place, Place::Loopback).then(|| loopback(&self.security));
        let words = choice::security_words(&self.security, admission.flatten().as_ref());
        format!("over {} ({words}{plain})", self.fabric.name())
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
            Places {
                rdma: Rdma { device: Some("mlx5_0".parse().unwrap()), ..Rdma::default() },
                ..places(tcp, &[])
            },
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
        let spec = agents.spec(host, &known).unwrap();
        assert_eq!((spec.listen.port(), &spec.hosts[..]), (0, &known[..]));
    }
}
