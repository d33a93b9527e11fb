//! Joining a cluster: a node that finds none waits for one, or founds it after each other host has confirmed that
//! there is none.
//!
//! A host that does not answer may be a member of a cluster on the other side of a partition. So a founder founds
//! only after each other host of `--join` has *answered* that its node waits too. A waiting node answers at a
//! separate port with its address and whether it may found; of two founders, the one with the lower address founds.
//! With `--found-alone` the operator asserts that no other host has the cluster.
//!
//! Two founders that name each other do not both found: the answer of the lower one never allows the higher one to
//! found, and a missing answer allows nothing.

use super::event::{NodeEvent, Unanswered};
use super::life::{Life, unjoined};
use super::plan::Plan;
use farside::{Error, ErrorCode, Node};
use farside_bootstrap::Admission;
use farside_command::failure::Failure;
use farside_command::host_fabric;
use farside_command::output::Output;
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached, Port, PortSpec};
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Initial back-off before joining again; it doubles with each attempt.
const BACK_OFF: Duration = Duration::from_millis(250);
/// How often a standby asks for its state.
const STANDBY_PAUSE: Duration = Duration::from_millis(50);
/// Time that other hosts have to answer; longer than a join attempt, in which a waiting node does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which a waiting node polls for queries of other hosts.
const PERIOD: Duration = Duration::from_millis(10);
/// Maximum back-off between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);
const FOUND_ALONE: &str =
    "if none of them has the cluster, end this command and start it with --found-alone";
const CONTINUE_ALONE: &str = "they may have continued without this node, or have ended; if they have ended and will \
    not be started, end this command and start it with --found-alone: a new cluster, without the previous contents \
    of memory";

/// Whether a node starts for the first time, or after it was isolated.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It founds the cluster if the plan allows it.
    First,
    /// It only joins, since the others may have continued without it. Errors that end a first start are reported
    /// and retried.
    Again,
}

/// Joins the cluster, or founds it if the plan allows it, as soon as possible; `None` after a request to end. While
/// it waits, the node answers the queries of founders.
///
/// # Errors
/// At a first start, permanent ones: a wrong key, different limits, a full cluster.
pub(super) fn join(
    plan: &Plan,
    start: Start,
    asked: &Receiver<()>,
    output: Output,
) -> Result<Option<Life>, Failure> {
    let again = start == Start::Again;
    if plan.options.hosts.is_empty() {
        return Life::begin(plan, plan.founds).map(Some);
    }
    let (mut waiting, mut pause, mut reported) = (None, BACK_OFF, Vec::new());
    let mut is_standby = false;
    loop {
        match attempt(&mut waiting, plan, plan.founds && !again) {
            Ok(Attempt::Member(life)) => return Ok(Some(life)),
            Ok(Attempt::Unanswered(unanswered)) => {
                let hosts: Vec<String> = unanswered.iter().map(|one| one.host.clone()).collect();
                if hosts != reported {
                    tell_waiting(plan, start, &unanswered, output);
                    reported = hosts;
                }
            }
            Err(failure) if plan.standby && failure.is(ErrorCode::StateInUse) => {
                if !std::mem::replace(&mut is_standby, true) {
                    NodeEvent::Standby { reason: &failure.to_string() }.tell(output);
                }
                if !sleep(waiting.as_mut(), STANDBY_PAUSE, asked) {
                    return Ok(None);
                }
                continue;
            }
            // Memory that keeps the state may return; a standby that ended would take nothing over.
            Err(failure) if again || (is_standby && may_return(&failure)) => {
                NodeEvent::NotJoined { reason: &failure.to_string() }.tell(output);
                reported.clear();
            }
            Err(failure) => return Err(failure),
        }
        if !sleep(waiting.as_mut(), pause, asked) {
            return Ok(None);
        }
        pause = (pause * 2).min(PAUSE_MAX);
    }
}

fn attempt(waiting: &mut Option<Waiting>, plan: &Plan, founds: bool) -> Result<Attempt, Failure> {
    match waiting {
        Some(waiting) => waiting.attempt(plan),
        None => waiting.insert(Waiting::open(plan, founds)?).attempt(plan),
    }
}

/// Tries once to join again after isolation, for a command that has other work.
///
/// # Errors
/// As [`once`]; a later attempt may succeed.
pub(super) fn again(waiting: &mut Option<Waiting>, plan: &Plan) -> Result<Life, Failure> {
    match attempt(waiting, plan, false)? {
        Attempt::Member(life) => Ok(life),
        Attempt::Unanswered(_) => Err(unjoined(plan, Error::new(ErrorCode::NoSuchCluster))),
    }
}

fn tell_waiting(plan: &Plan, start: Start, hosts: &[Unanswered], output: Output) {
    let founds = plan.founds && start == Start::First;
    let remedy = match start {
        Start::First if founds => Some(FOUND_ALONE),
        Start::First => None,
        Start::Again => Some(CONTINUE_ALONE),
    };
    let event = NodeEvent::Waiting { founds, hosts, remedy };
    output.value(&event);
    output.warning(event.text());
}

/// Answers queries of founders during a pause; returns false after a request to end.
pub(super) fn sleep(
    mut waiting: Option<&mut Waiting>,
    pause: Duration,
    asked: &Receiver<()>,
) -> bool {
    let until = Instant::now() + pause;
    while Instant::now() < until {
        if let Some(waiting) = &mut waiting {
            waiting.answer();
        }
        match asked.recv_timeout(PERIOD) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return false,
        }
    }
    true
}

/// Tries once to join or found, for a command that does not wait.
///
/// # Errors
/// As [`join`], and `NoSuchCluster`, which names the hosts and the reason of each.
pub(super) fn once(plan: &Plan) -> Result<Life, Failure> {
    if plan.options.hosts.is_empty() {
        return Life::begin(plan, plan.founds);
    }
    match Waiting::open(plan, plan.founds)?.attempt(plan)? {
        Attempt::Member(life) => Ok(life),
        Attempt::Unanswered(_) => Err(unjoined(plan, Error::new(ErrorCode::NoSuchCluster))),
    }
}

enum Attempt {
    Member(Life),
    /// No cluster can be reached; with the hosts that must answer first.
    Unanswered(Vec<Unanswered>),
}

/// A node that is not a member yet, and answers the queries of founders.
pub(super) struct Waiting {
    fabric: Arc<dyn Fabric>,
    /// The address at which others reach it.
    address: SocketAddr,
    admission: Option<Admission>,
    port: Box<dyn Port>,
    /// Its answer to queries.
    answer: FoundingAnswer,
    founds: bool,
}

/// A host's answer to the query of a founder, in text form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum FoundingAnswer {
    /// It waits to found the cluster.
    Founds { address: SocketAddr },
    /// It waits to join.
    Joins { address: SocketAddr },
    /// It is a member.
    Member { cluster_id: u64, address: SocketAddr },
}

impl fmt::Display for FoundingAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Founds { address } => write!(f, "founds {address}"),
            Self::Joins { address } => write!(f, "joins {address}"),
            Self::Member { cluster_id, address } => write!(f, "member {cluster_id:016x} {address}"),
        }
    }
}

impl FoundingAnswer {
    /// Parses an answer; `None` for a text that no node of this release sends.
    pub(super) fn read(bytes: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(bytes).ok()?.split(' ');
        let kind = words.next()?;
        let cluster_id = match kind {
            "member" => u64::from_str_radix(words.next()?, 16).ok()?,
            _ => 0,
        };
        let address = words.next()?.parse().ok()?;
        match kind {
            _ if words.next().is_some() => None,
            "founds" => Some(Self::Founds { address }),
            "joins" => Some(Self::Joins { address }),
            "member" => Some(Self::Member { cluster_id, address }),
            _ => None,
        }
    }
}

/// Returns the name of the port at which nodes answer queries.
pub(super) fn waiting_name(plan: &Plan) -> String {
    format!("farside.{}.waiting", plan.config.cluster)
}

fn failed(error: FabricError) -> Failure {
    Failure::system(error.to_string())
}

impl Waiting {
    fn open(plan: &Plan, founds: bool) -> Result<Self, Failure> {
        let opened = host_fabric::open_for(&plan.options)?;
        let ((fabric, address), admission) = opened;
        let spec = PortSpec { listen: Some(waiting_name(plan)) };
        let mut port = fabric.open(&spec).map_err(failed)?;
        port.create_receive_queue(1).map_err(failed)?;
        let answer = if founds {
            FoundingAnswer::Founds { address }
        } else {
            FoundingAnswer::Joins { address }
        };
        Ok(Self { fabric, address, admission, port, answer, founds })
    }

    fn attempt(&mut self, plan: &Plan) -> Result<Attempt, Failure> {
        let Self { fabric, address, admission, .. } = self;
        let (fabric, address, admission) = (Arc::clone(fabric), *address, admission.clone());
        let life = |node| Attempt::Member(Life { node, address, admission, fabric });
        let error = match Node::join_on(&plan.config, Arc::clone(&self.fabric)) {
            Ok(node) => return Ok(life(node)),
            Err(error) if !may_pass(error.code) => return Err(unjoined(plan, error)),
            Err(error) => error,
        };
        if !self.founds && error.code == ErrorCode::Busy {
            return Ok(Attempt::Unanswered(Vec::new())); // its cluster has answered
        }
        let founds = self.founds && error.code == ErrorCode::NoSuchCluster;
        let unanswered = match founds && plan.founds_alone {
            true => Vec::new(),
            false => self.ask(plan)?,
        };
        if founds && unanswered.is_empty() {
            let created = Node::create_on(&plan.config, Arc::clone(&self.fabric));
            return created.map(life).map_err(Failure::from);
        }
        Ok(Attempt::Unanswered(unanswered))
    }

    /// Answers queries for a cluster at this host.
    fn answer(&mut self) {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        for event in events {
            if let LinkEvent::Requested { link, .. } = event {
                // The requester may be gone already; then the answer is not needed.
                let _ = self.port.refuse(link, self.answer.to_string().as_bytes());
            }
        }
    }

    /// Queries every other host whether its node waits too, and returns the hosts whose answer does not allow this
    /// node to found.
    fn ask(&mut self, plan: &Plan) -> Result<Vec<Unanswered>, Failure> {
        let mut port = self.fabric.open(&PortSpec::default()).map_err(failed)?;
        let queue = port.create_receive_queue(1).map_err(failed)?;
        let (mut asked, mut unanswered) = (Vec::new(), Vec::new());
        for host in plan.options.hosts.iter().filter(|host| !plan.is_own(host, self.address)) {
            let to = format!("{host}/{}", waiting_name(plan));
            match port.connect(&to, &[], queue) {
                Ok(link) => asked.push((link, host.to_string())),
                Err(error) => {
                    let reason = error.to_string();
                    unanswered.push(Unanswered { host: host.to_string(), reason });
                }
            }
        }
        let until = Instant::now() + ANSWER_TIMEOUT;
        let mut events = Vec::new();
        while !asked.is_empty() && Instant::now() < until {
            self.answer();
            port.link_events(&mut events);
            for event in events.drain(..) {
                let Some(at) = asked.iter().position(|(link, _)| *link == event.link()) else {
                    continue;
                };
                let (link, host) = asked.swap_remove(at);
                let refusal = match &event {
                    LinkEvent::Refused { reason, .. } => self.judge(reason),
                    LinkEvent::NotReached { why: NotReached::NoListener, .. } => {
                        Some(port.trouble(link).unwrap_or_else(|| "no node waits there".to_owned()))
                    }
                    _ => Some(
                        port.trouble(link).unwrap_or_else(|| "it cannot be reached".to_owned()),
                    ),
                };
                unanswered.extend(refusal.map(|reason| Unanswered { host, reason }));
            }
            std::thread::park_timeout(Duration::from_millis(1));
        }
        unanswered.extend(asked.into_iter().map(|(_, host)| {
            let reason = "it has not answered".to_owned();
            Unanswered { host, reason }
        }));
        unanswered.sort();
        Ok(unanswered)
    }

    /// Returns why an answer does not allow this node to found; `None` if it does.
    fn judge(&self, answer: &[u8]) -> Option<String> {
        match FoundingAnswer::read(answer) {
            Some(FoundingAnswer::Joins { .. }) => None,
            Some(FoundingAnswer::Founds { address }) if address > self.address => None,
            Some(FoundingAnswer::Founds { .. }) => {
                Some("it founds the cluster, since its address is lower".to_owned())
            }
            Some(FoundingAnswer::Member { .. }) => Some("it is a member of the cluster".to_owned()),
            None => Some("its answer is unknown: install one release on both hosts".to_owned()),
        }
    }
}

/// Whether the copies of a state may be reached later.
fn may_return(failure: &Failure) -> bool {
    failure.is(ErrorCode::NotEnoughReplicas) || failure.is(ErrorCode::DeviceFailed)
}

/// Returns whether a later attempt to join may succeed without an operator.
fn may_pass(code: ErrorCode) -> bool {
    use ErrorCode::{Busy, Isolated, NoSuchCluster, NodeClosed, TimedOut};
    matches!(code, Busy | Isolated | NoSuchCluster | NodeClosed | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_survive_a_round_trip_through_text() {
        let address = "10.0.0.1:7400".parse().unwrap();
        for answer in [
            FoundingAnswer::Founds { address },
            FoundingAnswer::Joins { address },
            FoundingAnswer::Member { cluster_id: u64::MAX - 1, address },
        ] {
            assert_eq!(FoundingAnswer::read(answer.to_string().as_bytes()), Some(answer));
        }
        for other in
            ["", "joins", "member 10.0.0.1:7400", "joins x", "founds 10.0.0.1:1 2", "\u{ff}"]
        {
            assert_eq!(FoundingAnswer::read(other.as_bytes()), None, "{other}");
        }
    }
}
