//! `farside node`: one node of a cluster of several hosts, in the foreground.

mod founding;
mod others;
mod plan;

use crate::agent::Line;
use crate::choice;
use crate::failure::Failure;
use crate::host_fabric;
use crate::output::{Output, bytes};
use crate::settings;
use crate::signals;
use farside::{ErrorCode, Node};
use farside_bootstrap::{Admission, Endpoint};
use farside_fabric::Fabric;
use founding::Start;
use others::Others;
use plan::Plan;
use serde::Serialize;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Interval between checks of the members.
const PERIOD: Duration = Duration::from_millis(100);
/// Initial back-off before joining again; it doubles with each attempt.
const BACK_OFF: Duration = Duration::from_millis(250);

/// An event of a node, in the form of `--json`.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case", tag = "event")]
enum NodeEvent<'a> {
    /// It is a member.
    Started {
        cluster: &'a str,
        node: u16,
        /// The address at which others reach it.
        address: SocketAddr,
        security: &'a str,
        /// A security warning for the operator, with a remedy.
        #[serde(skip_serializing_if = "Option::is_none")]
        warning: Option<&'a str>,
        memory_bytes: u64,
        members: usize,
        /// The maximum number of members.
        members_max: usize,
        /// A member that is unreachable for longer is removed; set by the founder.
        lease_ms: u64,
        /// It joined again after it was isolated.
        again: bool,
    },
    MemberJoined {
        node: u16,
        members: usize,
        members_max: usize,
    },
    MemberLost {
        node: u16,
        members: usize,
        members_max: usize,
    },
    /// It was partitioned from the cluster, which continues without it.
    Isolated {
        reason: &'a str,
        /// Whether it will join again.
        rejoins: bool,
    },
    /// It could not join again yet.
    NotJoined {
        reason: &'a str,
    },
    /// No cluster can be reached; with a reason for each host.
    Waiting {
        /// It founds one after each of these hosts has answered that it has none.
        founds: bool,
        hosts: &'a [founding::Unanswered],
        /// What the operator can do if waiting does not help.
        #[serde(skip_serializing_if = "Option::is_none")]
        remedy: Option<&'a str>,
    },
    /// A host of `--join` belongs to another cluster of this name.
    OtherCluster {
        host: &'a str,
        /// Its cluster's identifier in hexadecimal, as `own`.
        other: String,
        own: String,
    },
    Ended {
        cluster: &'a str,
        #[serde(skip_serializing_if = "Option::is_none")]
        reason: Option<&'a str>,
        /// Bytes of its memory that were in use and are lost.
        #[serde(skip_serializing_if = "Option::is_none")]
        memory_bytes: Option<u64>,
    },
}

impl NodeEvent<'_> {
    fn tell(&self, output: Output) {
        output.event(self, |time| self.lines(time));
    }

    /// Prints the event that ends the command.
    fn tell_last(&self, output: Output) {
        output.last_event(self, |time| self.lines(time));
    }

    fn lines(&self, time: &str) -> Vec<String> {
        vec![format!("{time} {}", self.text())]
    }

    fn text(&self) -> String {
        match self {
            Self::Started {
                cluster,
                node,
                address,
                security,
                memory_bytes,
                members,
                members_max,
                lease_ms,
                again,
                ..
            } => {
                let what = if *again { "joined again as" } else { "is" };
                format!(
                    "{what} node {node} of cluster {cluster} at {address} ({security}), {}, members \
                     {members} of {members_max}, lease {} s; Ctrl-C leaves",
                    bytes(*memory_bytes),
                    Duration::from_millis(*lease_ms).as_secs_f64()
                )
            }
            Self::MemberJoined { node, members, members_max } => {
                format!("node {node} has joined, members {members} of {members_max}")
            }
            Self::MemberLost { node, members, members_max } => {
                format!("node {node} is lost, members {members} of {members_max}")
            }
            Self::Isolated { reason, rejoins: true } => {
                format!("isolated from the cluster, joins again: {reason}")
            }
            Self::Isolated { reason, rejoins: false } => {
                format!("isolated from the cluster: {reason}")
            }
            Self::NotJoined { reason } => format!("not joined yet: {reason}"),
            Self::Waiting { founds, hosts, remedy } => {
                let hosts: Vec<_> =
                    hosts.iter().map(|one| format!("{} ({})", one.host, one.reason)).collect();
                let what = if *founds { "waits to found the cluster, for" } else { "waits for" };
                let remedy = remedy.map(|remedy| format!("; {remedy}")).unwrap_or_default();
                format!("{what} {}{remedy}", hosts.join(", "))
            }
            Self::OtherCluster { host, other, own } => format!(
                "{host} belongs to another cluster of this name ({other}; this one is {own}). They do not merge: end \
                 the nodes of one of them, and start them with --join and without --found-alone"
            ),
            Self::Ended { cluster, memory_bytes: Some(gone), .. } if *gone > 0 => {
                format!(
                    "has left cluster {cluster}; {} of its memory in use are lost",
                    bytes(*gone)
                )
            }
            Self::Ended { cluster, .. } => format!("has left cluster {cluster}"),
        }
    }
}

/// Why a node stopped being a member.
enum NodeEnd {
    /// It was asked to leave.
    Asked,
    /// It was isolated.
    Isolated(Failure),
}

/// Runs the node until a request to leave, or until it is isolated and does not join again.
pub(crate) fn run(arguments: &settings::Node, output: Output) -> Result<(), Failure> {
    let mut plan = Plan::of(arguments)?;
    let output = output.for_service()?;
    let (sender, asked) = channel();
    signals::watch(move || sender.send(()).is_ok())?;
    let Some(mut life) = founding::join(&plan, Start::First, &asked, output)? else {
        let cluster = &plan.config.cluster;
        NodeEvent::Ended { cluster, reason: None, memory_bytes: None }.tell_last(output);
        return Ok(());
    };
    let mut again = false;
    loop {
        life.started(&plan, again, output);
        let failure = match life.watch(&plan, &asked, output) {
            NodeEnd::Asked => {
                let left = life.node.leave();
                let reason = left.as_ref().err().map(ToString::to_string);
                let memory_bytes = left.as_ref().ok().map(|departure| departure.memory_bytes);
                let (cluster, reason) = (&plan.config.cluster, reason.as_deref());
                NodeEvent::Ended { cluster, reason, memory_bytes }.tell_last(output);
                // Lines that it could not hand over in time are lost.
                return left.map(|_| ()).map_err(Failure::from);
            }
            NodeEnd::Isolated(failure) => failure,
        };
        plan.learn(&life);
        let rejoins = plan.joins_again();
        NodeEvent::Isolated { reason: &failure.to_string(), rejoins }.tell(output);
        drop(life);
        if !rejoins {
            let reason = failure.to_string();
            let (cluster, reason) = (&plan.config.cluster, Some(reason.as_str()));
            NodeEvent::Ended { cluster, reason, memory_bytes: None }.tell_last(output);
            return Err(failure);
        }
        match founding::join(&plan, Start::Again, &asked, output)? {
            Some(next) => life = next,
            None => {
                let cluster = &plan.config.cluster;
                NodeEvent::Ended { cluster, reason: None, memory_bytes: None }.tell_last(output);
                return Ok(());
            }
        }
        again = true;
    }
}

impl Plan {
    /// Records the addresses with which an isolated node can join again.
    fn learn(&mut self, life: &Life) {
        // A founder without `--join` has learned the addresses of its members too.
        let own = life.node.id();
        let others = life.node.members().into_iter().filter(|member| member.node != own);
        for host in others.filter_map(|member| member.host).map(Endpoint::from) {
            if !self.options.hosts.contains(&host) {
                self.options.hosts.push(host);
            }
        }
        // Other nodes know this one by the port that the system chose: keep it.
        if let Some(listen) = self.options.listen.as_mut().filter(|listen| listen.port == 0) {
            listen.port = life.address.port();
        }
    }

    fn joins_again(&self) -> bool {
        self.rejoins && !self.options.hosts.is_empty()
    }
}

/// The node of a command with other work, set up from a file.
pub(crate) struct NodeMember {
    plan: Plan,
    life: Option<Life>,
    /// Answers queries of founders after isolation.
    waiting: Option<founding::Waiting>,
}

impl NodeMember {
    /// Joins or founds the cluster, as the file requests.
    pub(crate) fn begin(settings: &Path) -> Result<Self, Failure> {
        let config = Some(settings.to_owned());
        let plan = Plan::of(&settings::Node { settings: Default::default(), config })?;
        let life = Some(founding::once(&plan)?);
        Ok(Self { plan, life, waiting: None })
    }

    /// Returns the node, unless it was isolated.
    pub(crate) fn node(&self) -> Option<&Node> {
        self.life.as_ref().map(|life| &life.node)
    }

    /// Drops an isolated node, and returns whether to join again.
    pub(crate) fn give_up(&mut self) -> bool {
        if let Some(life) = self.life.take() {
            self.plan.learn(&life);
        }
        self.plan.joins_again()
    }

    /// Tries once to join as a new node. No clone of the previous node may remain, since the new one uses its port.
    pub(crate) fn join_again(&mut self) -> Result<(), Failure> {
        self.life = Some(founding::again(&mut self.waiting, &self.plan)?);
        self.waiting = None;
        Ok(())
    }

    /// Waits between two attempts; returns false after a request to end.
    pub(crate) fn pause(&mut self, pause: Duration, asked: &Receiver<()>) -> bool {
        founding::sleep(self.waiting.as_mut(), pause, asked)
    }
}

/// One membership of a node, with its fabric.
struct Life {
    node: Node,
    /// The address at which others reach it.
    address: SocketAddr,
    /// The peers that may connect to it.
    admission: Option<Admission>,
    fabric: Arc<dyn Fabric>,
}

impl Life {
    /// Tries once to found or join.
    fn begin(plan: &Plan, founds: bool) -> Result<Self, Failure> {
        let ((fabric, address), admission) = host_fabric::open_for(&plan.options)?;
        let node = match founds {
            true => Node::create_on(&plan.config, Arc::clone(&fabric)),
            false => Node::join_on(&plan.config, Arc::clone(&fabric)),
        };
        let node = node.map_err(|error| unjoined(plan, error))?;
        Ok(Self { node, address, admission, fabric })
    }

    fn started(&self, plan: &Plan, again: bool, output: Output) {
        let admission = self.admission.as_ref();
        let warning = admission.and_then(Admission::warning);
        if let Some(warning) = &warning {
            output.warning(warning);
        }
        let lease = self.node.lease();
        if let Some(asked) = plan.lease.filter(|asked| *asked != lease) {
            output.warning(format!(
                "the lease is {} s, as the founder said; {} s would count if this node founded the cluster",
                lease.as_secs_f64(),
                asked.as_secs_f64()
            ));
        }
        NodeEvent::Started {
            cluster: &plan.config.cluster,
            node: self.node.id().0,
            address: self.address,
            security: &choice::security_words(&plan.options.security, admission),
            warning: warning.as_deref(),
            memory_bytes: plan.config.memory_bytes,
            members: self.node.members().iter().filter(|member| member.alive).count(),
            members_max: self.node.members_max(),
            lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
            again,
        }
        .tell(output);
    }

    /// Reports members that join and leave, until the node is asked to leave or is isolated.
    fn watch(&self, plan: &Plan, asked: &Receiver<()>, output: Output) -> NodeEnd {
        let mut others = Others::open(plan, self)
            .inspect_err(|failure| output.warning(format!("other hosts get no answer: {failure}")))
            .ok();
        // Before the next check another member may have got the same number.
        let own = self.node.members().into_iter().find(|member| member.node == self.node.id());
        let mut known: BTreeSet<_> = own.iter().map(|own| (own.node, own.admission)).collect();
        let members_max = self.node.members_max();
        loop {
            // Checked first: an isolated node reports only that, not members that it believes lost.
            match self.node.wait_for_members(usize::MAX, Duration::ZERO) {
                Err(error) if error.code != ErrorCode::TimedOut => {
                    return NodeEnd::Isolated(error.into());
                }
                _ => {}
            }
            let members = self.node.members();
            let alive = members.iter().filter(|member| member.alive);
            let alive: BTreeSet<_> = alive.map(|member| (member.node, member.admission)).collect();
            let mut members = known.len();
            for (node, _) in known.difference(&alive) {
                members -= 1;
                NodeEvent::MemberLost { node: node.0, members, members_max }.tell(output);
            }
            for (node, _) in alive.difference(&known) {
                members += 1;
                NodeEvent::MemberJoined { node: node.0, members, members_max }.tell(output);
            }
            known = alive;
            for other in others.iter_mut().flat_map(|others| others.poll(plan, self)) {
                let own = format!("{:016x}", self.node.cluster_id());
                let event = NodeEvent::OtherCluster {
                    host: &other.host,
                    other: format!("{:016x}", other.cluster_id),
                    own,
                };
                output.value(&event);
                output.warning(event.text());
            }
            match asked.recv_timeout(PERIOD) {
                Err(RecvTimeoutError::Timeout) => {}
                _ => return NodeEnd::Asked,
            }
        }
    }
}

/// Returns why a node did not become a member; if it found no cluster, with the error of each host.
fn unjoined(plan: &Plan, error: farside::Error) -> Failure {
    let failure = Failure::from(error);
    let searched = failure.is(ErrorCode::NoSuchCluster);
    let (true, Failure::Operation { number, name, text }) = (searched, failure.clone()) else {
        return failure;
    };
    let security = &plan.options.security;
    let refusals = plan.options.hosts.iter().filter_map(|host| Line::connect(host, security).err());
    let text = refusals.fold(text, |text, refusal| format!("{text} {refusal}."));
    Failure::Operation { number, name, text }
}
