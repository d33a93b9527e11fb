//! `farside up`: a cluster that programs join by name or over TCP.

use crate::cluster::{Cluster, ClusterEvent};
use crate::hosts::Hosts;
use farside_command::failure::Failure;
use farside_command::output::{Output, bytes};
use farside_command::settings::Places;

use crate::worker::NodeSpec;
use serde::Serialize;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// A local cluster that programs join by name.
#[derive(Debug)]
pub struct Up {
    /// Node processes.
    pub nodes: u16,
    /// Maximum number of members, including programs that join.
    pub nodes_max: u16,
    /// The cluster's name.
    pub name: String,
    /// Global memory of each node.
    pub memory_bytes: u64,
    /// Cache of each node.
    pub cache_bytes: u64,
    /// `None` for the default.
    pub line_bytes: Option<u32>,
    /// Whether nodes whose process ends are replaced.
    pub restart: bool,
    /// Whether nodes whose process is stopped remain members.
    pub keep_stopped: bool,
    /// Their hosts, and the fabric between them.
    pub places: Places,
}

/// Back-off before a replacement is started, at first and at most; it doubles with each failure.
const BACK_OFF: Duration = Duration::from_millis(250);
const BACK_OFF_MAX: Duration = Duration::from_secs(8);

/// An event of the cluster, as `--json` prints it.
#[derive(Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum UpEvent<'a> {
    /// Every node is a member.
    Started {
        cluster: &'a str,
        nodes: Vec<Member>,
        /// Most members at a time.
        members_max: u16,
    },
    /// The process of a node has ended, and its memory with it.
    NodeEnded {
        #[serde(skip_serializing_if = "Option::is_none")]
        node: Option<u16>,
        process: u32,
        how: &'a str,
        /// Whether a replacement is started.
        restarts: bool,
    },
    /// A replacement is a member.
    NodeJoined(Member),
    /// A replacement could not join; another one is started after a back-off.
    NodeNotJoined {
        reason: &'a str,
    },
    Ended {
        cluster: &'a str,
    },
}

#[derive(Serialize)]
struct Member {
    node: u16,
    process: u32,
    /// Its address, if the cluster is over TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    address: Option<SocketAddr>,
}

impl Member {
    fn of(cluster: &Cluster, index: usize) -> Self {
        let (node, process) = (cluster.node(index), cluster.process(index));
        Self { node, process, address: cluster.address(index) }
    }
}

/// Starts the cluster, prints how to join it, and runs until a signal or until all of its nodes have ended.
pub fn run(arguments: &Up, output: Output) -> Result<(), Failure> {
    let output = output.for_service()?;
    let hosts = Hosts::of(&arguments.places)?;
    let spec = NodeSpec {
        cluster: arguments.name.clone(),
        create: true,
        memory_bytes: arguments.memory_bytes,
        cache_bytes: arguments.cache_bytes,
        line_bytes: arguments.line_bytes,
        nodes_max: Some(arguments.nodes_max),
        spin_ns: None,
        processor: None,
        host: None,
        keep_stopped: arguments.keep_stopped,
        state: None,
        state_copies: Vec::new(),
    };
    spec.config()?.check()?;
    if arguments.nodes > arguments.nodes_max {
        return Err(Failure::usage(format!(
            "--nodes {} is more than --nodes-max {}: raise it",
            arguments.nodes, arguments.nodes_max
        )));
    }
    let cluster = Cluster::start(&hosts, &spec, usize::from(arguments.nodes))?;
    let nodes = (0..cluster.workers_count()).map(|index| Member::of(&cluster, index)).collect();
    let started =
        UpEvent::Started { cluster: &arguments.name, nodes, members_max: arguments.nodes_max };
    output.event(&started, |_| how_to_join(arguments, &hosts, &cluster));
    let mut service = Service { cluster, spec, restarts: arguments.restart, output };
    service.serve()?;
    service.cluster.leave()?;
    let ended = UpEvent::Ended { cluster: &arguments.name };
    output.last_event(&ended, |_| vec![format!("cluster {} has ended", arguments.name)]);
    Ok(())
}

fn how_to_join(arguments: &Up, hosts: &Hosts, cluster: &Cluster) -> Vec<String> {
    let name = &arguments.name;
    let addresses: Vec<_> =
        (0..cluster.workers_count()).filter_map(|index| cluster.address(index)).collect();
    let join = match &addresses[..] {
        [] => format!("join:  farside::Node::join(&farside::Config::new(\"{name}\"))"),
        all => {
            let all: Vec<_> = all.iter().map(SocketAddr::to_string).collect();
            format!(
                "join:  farside node --listen HOST:PORT --cluster {name} --join {}",
                all.join(",")
            )
        }
    };
    let head = format!(
        "cluster {name}: {} nodes of at most {} {}, {} each",
        cluster.workers_count(),
        arguments.nodes_max,
        hosts.describe(),
        bytes(arguments.memory_bytes)
    );
    vec![head, join, "end:   Ctrl-C".to_owned()]
}

/// A running cluster.
struct Service {
    cluster: Cluster,
    spec: NodeSpec,
    /// Whether a node that ends is replaced.
    restarts: bool,
    output: Output,
}

/// When the next replacement of a worker is started, and the back-off if it fails.
struct Restart {
    at: Option<Instant>,
    back_off: Duration,
}

impl Restart {
    fn schedule(&mut self) {
        self.at = Some(Instant::now() + self.back_off);
        self.back_off = (self.back_off * 2).min(BACK_OFF_MAX);
    }
}

impl Service {
    /// Runs until a signal ends it.
    ///
    /// # Errors
    /// The last node has ended, and the memory is lost.
    fn serve(&mut self) -> Result<(), Failure> {
        let mut restarts: BTreeMap<usize, Restart> = BTreeMap::new();
        loop {
            let deadline = restarts.values().filter_map(|restart| restart.at).min();
            match self.cluster.next_event(deadline) {
                Some(ClusterEvent::Interrupted) => return Ok(()),
                Some(ClusterEvent::Ended { index, node, process, how }) => {
                    self.report_ended(node, process, &how);
                    if self.cluster.members_count() == 0 {
                        return Err(Failure::system(format!(
                            "the last node of the cluster has ended ({how}): its memory is lost"
                        )));
                    }
                    if self.restarts {
                        let first = Restart { at: None, back_off: BACK_OFF };
                        restarts.entry(index).or_insert(first).schedule();
                    }
                }
                Some(ClusterEvent::Joined { index }) => {
                    restarts.remove(&index);
                    self.report_joined(index);
                }
                Some(ClusterEvent::NotJoined { index, failure }) => {
                    self.report_not_joined(&failure);
                    restarts.entry(index).and_modify(Restart::schedule);
                }
                None => self.start_due(&mut restarts),
            }
        }
    }

    /// Starts the replacements that are due.
    fn start_due(&mut self, restarts: &mut BTreeMap<usize, Restart>) {
        let now = Instant::now();
        for (index, restart) in restarts {
            if restart.at.is_some_and(|at| at <= now) {
                restart.at = None;
                if let Err(failure) = self.cluster.replace(*index, &self.spec) {
                    self.report_not_joined(&failure);
                    restart.schedule();
                }
            }
        }
    }

    fn report_ended(&self, node: Option<u16>, process: u32, how: &str) {
        let what = match node {
            Some(node) => format!("node {node} (process {process}) has ended ({how})"),
            None => format!("process {process} has ended before its node joined ({how})"),
        };
        let event = UpEvent::NodeEnded { node, process, how, restarts: self.restarts };
        self.output.event(&event, |time| vec![format!("{time} {what}")]);
        self.output.warning(what);
    }

    fn report_joined(&self, index: usize) {
        let member = Member::of(&self.cluster, index);
        let text = format!("node {} (process {}) has joined", member.node, member.process);
        let event = UpEvent::NodeJoined(member);
        self.output.event(&event, |time| vec![format!("{time} {text}")]);
    }

    fn report_not_joined(&self, failure: &Failure) {
        let reason = &failure.to_string();
        let event = UpEvent::NodeNotJoined { reason };
        self.output.event(&event, |time| vec![format!("{time} replacement not joined: {reason}")]);
    }
}
