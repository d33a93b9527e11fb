//! The hosts of a command's workers, and the fabric between their nodes.

use crate::agent::{self, Remote};
use crate::process::{LineHandler, Process, Started};
use farside::fabrics::FabricOptions;
use farside_bootstrap::{Admission, Endpoint, Protect, Security};
use farside_command::choice;
use farside_command::failure::Failure;
use farside_command::host_fabric::{HostSpec, LEASE, Opened, open};
use farside_command::settings::{HostFabric, Places, Protection, Rdma, WorkerFabric};
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};

/// The hosts of workers.
#[derive(Clone, Debug)]
pub enum Hosts {
    /// This machine: workers are children of this process, and nodes use shared memory.
    Machine,
    /// This machine: workers are children of this process, and nodes use a fabric between hosts.
    Loopback(Between),
    /// The hosts of these agents, round-robin.
    Agents(Vec<Endpoint>, Between),
}

/// A fabric between hosts, with its authentication and protection.
#[derive(Clone, Debug)]
pub struct Between {
    fabric: HostFabric,
    rdma: Rdma,
    key: Option<PathBuf>,
    protect: Option<Protection>,
    /// The security of traffic between nodes.
    security: Security,
}

impl Hosts {
    /// Checks the arguments, and returns the requested hosts.
    pub fn of(places: &Places) -> Result<Self, Failure> {
        let Places { fabric, on, rdma, key, protect } = places;
        rdma.check(*fabric == Some(WorkerFabric::Verbs))?;
        if *fabric == Some(WorkerFabric::Shm) && !on.is_empty() {
            return Err(Failure::usage(
                "--on is for --fabric tcp or verbs: shm connects only processes of one machine",
            ));
        }
        if on.is_empty() && matches!(fabric, None | Some(WorkerFabric::Shm)) {
            if key.is_some() || protect.is_some() {
                let text = "--key and --protect are for --fabric tcp or verbs: shm connects only processes of one \
                            machine and user";
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
                "{agent} is another host: give the key of its agent by --key FILE"
            ))),
            None => Ok(Self::Agents(on.clone(), between)),
        }
    }

    /// Returns the fabric's name.
    pub fn fabric(&self) -> &'static str {
        match self {
            Self::Machine => "shm",
            Self::Loopback(between) | Self::Agents(_, between) => between.fabric.name(),
        }
    }

    /// Describes how nodes reach each other.
    pub fn describe(&self) -> String {
        match self {
            Self::Machine => "over shared memory".to_owned(),
            Self::Loopback(between) => between.describe(NodesAt::Loopback),
            Self::Agents(_, between) => format!("at agents, {}", between.describe(NodesAt::Agents)),
        }
    }

    /// Opens the command's fabric to workers, and returns it with its address; `None` in shared memory.
    pub fn listen(&self, host: IpAddr) -> Result<Option<Opened>, Failure> {
        let Some(between) = self.between() else {
            return Ok(None);
        };
        let options = FabricOptions::new(between.fabric.scheme())
            .listen(Some(Endpoint::from(SocketAddr::new(host, 0))))
            .security(between.security.clone())
            .lease(LEASE);
        open(&between.rdma.apply(options)).map(Some)
    }

    /// Returns whether workers share the file system of this process.
    pub fn shares_files(&self) -> bool {
        !matches!(self, Self::Agents(..))
    }

    /// Returns the maximum number of `workers` on one host, assuming that each agent is a host.
    pub fn workers_together(&self, workers: u64) -> u64 {
        match self {
            Self::Machine | Self::Loopback(_) => workers,
            Self::Agents(agents, _) => workers.div_ceil(agents.len().max(1) as u64),
        }
    }

    /// Returns how a node listens at its host and finds the existing nodes.
    pub fn spec(&self, host: IpAddr, hosts: &[SocketAddr]) -> Option<HostSpec> {
        let between = self.between()?;
        Some(HostSpec {
            fabric: between.fabric,
            rdma: between.rdma.clone(),
            listen: SocketAddr::new(host, 0),
            hosts: hosts.to_vec(),
            protect: between.protect,
        })
    }

    /// Returns whether workers use a fabric between hosts.
    pub fn is_between(&self) -> bool {
        self.between().is_some()
    }

    fn between(&self) -> Option<&Between> {
        match self {
            Self::Machine => None,
            Self::Loopback(between) | Self::Agents(_, between) => Some(between),
        }
    }

    /// Starts worker number `index`.
    pub(crate) fn start(&self, index: usize, mut handler: LineHandler) -> Result<Started, Failure> {
        match self {
            Self::Machine => ChildWorker::start(None, None, handler),
            Self::Loopback(between) => {
                let local = IpAddr::V4(Ipv4Addr::LOCALHOST);
                ChildWorker::start(between.key.as_ref(), Some(local), handler)
            }
            Self::Agents(agents, between) => {
                let security = agent::security(between.key.as_deref())?;
                let (remote, lines) = Remote::start(&agents[index % agents.len()], &security)?;
                let (host, local) = (Some(remote.host()), Some(remote.local()?));
                let listener = std::thread::spawn(move || {
                    lines.each(|line| handler(Some(line)));
                    handler(None);
                });
                Ok(Started { process: Box::new(remote), host, local, listener })
            }
        }
    }
}

/// A worker that is a child of this process.
struct ChildWorker {
    child: Child,
    commands: Option<ChildStdin>,
}

impl ChildWorker {
    /// Starts this program as a worker. Called by the main thread, since the kernel takes the end of the calling
    /// thread for the parent's death.
    fn start(
        key: Option<&PathBuf>,
        host: Option<IpAddr>,
        mut handler: LineHandler,
    ) -> Result<Started, Failure> {
        let program =
            std::env::current_exe().map_err(|e| Failure::system(format!("own program: {e}")))?;
        let mut command = Command::new(program);
        command.arg("worker");
        if let Some(key) = key {
            command.arg("--key").arg(key);
        }
        // A separate process group: Ctrl-C reaches only the parent, which then ends its workers in order.
        command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command
            .spawn()
            .map_err(|e| Failure::system(format!("cannot start a worker process: {e}")))?;
        let output = child.stdout.take();
        let listener = std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(Result::ok) {
                if !handler(Some(&line)) {
                    return;
                }
            }
            handler(None);
        });
        let process = Self { commands: child.stdin.take(), child };
        Ok(Started { process: Box::new(process), host, local: host, listener })
    }
}

/// The addresses of a command's nodes.
#[derive(Clone, Copy)]
enum NodesAt {
    Loopback,
    Agents,
}

/// Returns the peers that may connect to a listener on the loopback, by opening one.
fn loopback(security: &Security) -> Option<Admission> {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).ok()?;
    Admission::of(security, listener.local_addr().ok()?).ok()
}

impl Between {
    /// Describes the fabric and its security; for nodes on the loopback also the peers that may connect.
    fn describe(&self, nodes: NodesAt) -> String {
        let all = self.security.protect() == Protect::Everything;
        let plain = match self.fabric {
            HostFabric::Verbs if all => "; data packets are plain text",
            HostFabric::Tcp | HostFabric::Verbs => "",
        };
        let admission = matches!(nodes, NodesAt::Loopback).then(|| loopback(&self.security));
        let words = choice::security_words(&self.security, admission.flatten().as_ref());
        format!("over {} ({words}{plain})", self.fabric.name())
    }
}

impl Process for ChildWorker {
    fn send(&mut self, line: &str) -> std::io::Result<()> {
        let commands = self.commands.as_mut().ok_or(std::io::ErrorKind::BrokenPipe)?;
        writeln!(commands, "{line}")
    }

    fn kill(&mut self) {
        // An error means that it has already ended. The input closes after the kill, since that ends a worker too.
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
    fn hosts_and_fabric_must_agree() {
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
    fn workers_are_distributed_over_agents() {
        let agents = Hosts::of(&places(None, &["127.0.0.1:1", "127.0.0.2:1"])).unwrap();
        assert_eq!([1, 2, 3, 4].map(|workers| agents.workers_together(workers)), [1, 1, 2, 2]);
        assert_eq!(Hosts::Machine.workers_together(3), 3);
        let host = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let known = [SocketAddr::new(host, 7)];
        let spec = agents.spec(host, &known).unwrap();
        assert_eq!((spec.listen.port(), &spec.hosts[..]), (0, &known[..]));
    }
}
