//! `farside node` and `farside witness`: one node of a cluster of several hosts, in the foreground.

mod event;
mod founding;
mod life;
mod others;
mod plan;
pub mod settings;

use event::NodeEvent;
use farside::{DrainTarget, ErrorCode, Node};
use farside_bootstrap::{Admission, Endpoint};
use farside_command::choice;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::signals;
use founding::Start;
use life::Life;
use others::Others;
use plan::Plan;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

/// Interval between checks of the members.
const PERIOD: Duration = Duration::from_millis(100);

/// Why a node stopped being a member.
enum NodeEnd {
    /// It was asked to leave.
    Asked,
    /// It has saved its memory and left.
    Drained,
    /// It has ended while it saved its memory.
    NotDrained(Failure),
    /// It was isolated.
    Isolated(Failure),
}

/// Runs the node until a request to leave, or until it is isolated and does not join again.
pub fn run(arguments: &settings::Node, output: Output) -> Result<(), Failure> {
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
        report_start(&life, &plan, again, output);
        let failure = match watch(&life, &plan, &asked, output) {
            NodeEnd::Asked => {
                let left = life.node.leave();
                let reason = left.as_ref().err().map(ToString::to_string);
                let memory_bytes = left.as_ref().ok().map(|departure| departure.memory_bytes);
                let (cluster, reason) = (&plan.config.cluster, reason.as_deref());
                NodeEvent::Ended { cluster, reason, memory_bytes }.tell_last(output);
                // Lines that it could not hand over in time are lost.
                return left.map(|_| ()).map_err(Failure::from);
            }
            NodeEnd::Drained => {
                let cluster = &plan.config.cluster;
                NodeEvent::Ended { cluster, reason: None, memory_bytes: Some(0) }.tell_last(output);
                return Ok(());
            }
            NodeEnd::NotDrained(failure) => {
                let reason = failure.to_string();
                let (cluster, reason) = (&plan.config.cluster, Some(reason.as_str()));
                NodeEvent::Ended { cluster, reason, memory_bytes: None }.tell_last(output);
                return Err(failure);
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
pub struct NodeMember {
    plan: Plan,
    life: Option<Life>,
    /// Answers queries of founders after isolation.
    waiting: Option<founding::Waiting>,
}

impl NodeMember {
    /// Joins or founds the cluster, as the file requests.
    pub fn begin(settings: &Path) -> Result<Self, Failure> {
        let config = Some(settings.to_owned());
        let plan =
            Plan::of(&settings::Node { settings: Default::default(), config, witness: false })?;
        if plan.drain.is_some() {
            return Err(Failure::usage(
                "drain_to and drain_to_copies have no meaning here: leave them out, or run farside node",
            ));
        }
        let life = Some(founding::once(&plan)?);
        Ok(Self { plan, life, waiting: None })
    }

    /// Returns the node, unless it was isolated.
    pub fn node(&self) -> Option<&Node> {
        self.life.as_ref().map(|life| &life.node)
    }

    /// Drops an isolated node, and returns whether to join again.
    pub fn give_up(&mut self) -> bool {
        if let Some(life) = self.life.take() {
            self.plan.learn(&life);
        }
        self.plan.joins_again()
    }

    /// Tries once to join as a new node. No clone of the previous node may remain, since the new one uses its port.
    pub fn join_again(&mut self) -> Result<(), Failure> {
        self.life = Some(founding::again(&mut self.waiting, &self.plan)?);
        self.waiting = None;
        Ok(())
    }

    /// Waits between two attempts; returns false after a request to end.
    pub fn pause(&mut self, pause: Duration, asked: &Receiver<()>) -> bool {
        founding::sleep(self.waiting.as_mut(), pause, asked)
    }
}

/// Reports the start of a membership.
fn report_start(life: &Life, plan: &Plan, again: bool, output: Output) {
    let admission = life.admission.as_ref();
    let warning = admission.and_then(Admission::warning);
    if let Some(warning) = &warning {
        output.warning(warning);
    }
    let lease = life.node.lease();
    if let Some(asked) = plan.lease.filter(|asked| *asked != lease) {
        output.warning(format!(
            "the lease is {} s, as the founder said; {} s would count if this node founded the cluster",
            lease.as_secs_f64(),
            asked.as_secs_f64()
        ));
    }
    NodeEvent::Started {
        cluster: &plan.config.cluster,
        node: life.node.id().0,
        address: life.address,
        security: &choice::security_words(&plan.options.security, admission),
        warning: warning.as_deref(),
        memory_bytes: plan.config.memory_bytes,
        state: life.node.state_report().map(|state| state.to_string()),
        witness: plan.config.witness,
        members: life.node.members().iter().filter(|member| member.alive).count(),
        members_max: life.node.members_max(),
        lease_ms: u64::try_from(lease.as_millis()).unwrap_or(u64::MAX),
        again,
    }
    .tell(output);
}

/// Reports members that join and leave, until the node is asked to leave or is isolated.
fn watch(life: &Life, plan: &Plan, asked: &Receiver<()>, output: Output) -> NodeEnd {
    let mut others = Others::open(plan, life)
        .inspect_err(|failure| output.warning(format!("other hosts get no answer: {failure}")))
        .ok();
    // Before the next check another member may have got the same number.
    let own = life.node.members().into_iter().find(|member| member.node == life.node.id());
    let mut known: BTreeSet<_> = own.iter().map(|own| (own.node, own.admission)).collect();
    let (members_max, mut copies_lost) = (life.node.members_max(), 0);
    let mut target = plan.drain.as_ref();
    loop {
        for error in life.node.lost_copies().iter().skip(copies_lost) {
            copies_lost += 1;
            NodeEvent::CopyLost { reason: &error.to_string() }.tell(output);
        }
        // Checked first: an isolated node reports only that, not members that it believes lost.
        match life.node.wait_for_members(usize::MAX, Duration::ZERO) {
            Err(error) if error.code != ErrorCode::TimedOut => {
                return NodeEnd::Isolated(error.into());
            }
            _ => {}
        }
        let members = life.node.members();
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
        for other in others.iter_mut().flat_map(|others| others.poll(plan, life)) {
            let own = format!("{:016x}", life.node.cluster_id());
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
            _ => {
                let Some(target) = target.take() else { return NodeEnd::Asked };
                match drain(life, target, asked, output) {
                    Ok(()) => return NodeEnd::Drained,
                    Err(error) if has_ended(life) => return NodeEnd::NotDrained(error.into()),
                    Err(_) => {}
                }
            }
        }
    }
}

/// Whether the node is no member any more.
fn has_ended(life: &Life) -> bool {
    let members = life.node.wait_for_members(usize::MAX, Duration::ZERO);
    members.is_err_and(|error| error.code != ErrorCode::TimedOut)
}

/// Saves the node's memory and has it leave.
fn drain(
    life: &Life,
    target: &DrainTarget,
    asked: &Receiver<()>,
    output: Output,
) -> Result<(), farside::Error> {
    let place = &target.to_string();
    NodeEvent::Draining { place }.tell(output);
    let drained = life.node.drain(target);
    match &drained {
        Ok(drained) => NodeEvent::Drained {
            place,
            memory_bytes: drained.memory_bytes,
            lines_lost: drained.lines_lost,
            paused_ms: u64::try_from(drained.paused.as_millis()).unwrap_or(u64::MAX),
        }
        .tell(output),
        Err(error) if has_ended(life) => output.warning(format!("{place}: {error}")),
        Err(error) => {
            // What was asked meanwhile was not about this.
            asked.try_iter().for_each(drop);
            signals::resume();
            NodeEvent::NotDrained { reason: &error.to_string() }.tell(output);
        }
    }
    drained.map(|_| ())
}
