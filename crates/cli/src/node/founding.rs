//! The first join: a node that finds no cluster waits for one, or founds it once it is certain that there is
//! none.
//!
//! A host that does not answer may be a member of a cluster behind a broken link. So a founder founds only after
//! each other host of `--join` has *answered* that its node waits too. A waiting node answers at a port of
//! its own, with whether it may found and with its address: of two founders the lower address founds.
//! `--found-alone` is the operator's word that no other host has the cluster.
//!
//! *Why two founders that name each other do not both found.* The answer of the lower one never allows the
//! higher one to found, and a missing answer allows nothing.

use super::Event;
use super::settings::Plan;
use super::{BACK_OFF, Life, unjoined};
use crate::failure::Failure;
use crate::hosts;
use crate::output::Output;
use farside::{Error, ErrorCode, Node};
use farside_bootstrap::Admission;
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached, Port, PortSpec};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

/// How long other hosts may take to answer: longer than a waiting node tries to join without answering.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);
/// How often a waiting node looks for questions of others.
const PERIOD: Duration = Duration::from_millis(10);
/// The longest time between two attempts.
const PAUSE_MAX: Duration = Duration::from_secs(2);
const FOUND_ALONE: &str =
    "if none of them has the cluster, end this command and start it with --found-alone";
const GO_ON_ALONE: &str = "they may have gone on without this node, or have ended; if they have ended and will not be \
    started, end this command and start it with --found-alone: a new cluster, without what was in memory";

/// Whether a node starts, or was cut off before.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Start {
    /// It founds the cluster if the plan says so.
    First,
    /// It joins only: the others may have gone on without it. Errors that end a first start are told and retried.
    Again,
}

/// Joins, or founds as the plan says, as soon as that is possible; `None` when told to end. A node that waits
/// answers the founders that ask it.
///
/// # Errors
/// At a first start those that waiting does not mend: a wrong key, other limits, a cluster that is full.
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
    let (mut waiting, mut pause, mut told) = (None, BACK_OFF, Vec::new());
    loop {
        match attempt(&mut waiting, plan, plan.founds && !again) {
            Ok(Attempt::Member(life)) => return Ok(Some(life)),
            Ok(Attempt::Unanswered(unanswered)) => {
                let hosts: Vec<String> = unanswered.iter().map(|one| one.host.clone()).collect();
                if hosts != told {
                    tell_waiting(plan, start, &unanswered, output);
                    told = hosts;
                }
            }
            Err(failure) if again => {
                Event::NotJoined { reason: &failure.to_string() }.tell(output);
                told.clear();
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

/// One more attempt of a node that was cut off, for a command that has other work.
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
        Start::Again => Some(GO_ON_ALONE),
    };
    let event = Event::Waiting { founds, hosts, remedy };
    output.value(&event);
    output.warning(event.text());
}

/// Answers founders that ask during a pause; false when told to end.
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

/// One attempt, for a command that does not wait.
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

/// A host that has to answer before this node founds, and why its answer is missing.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
pub(super) struct Unanswered {
    pub(super) host: String,
    pub(super) reason: String,
}

enum Attempt {
    Member(Life),
    /// There is no cluster within reach; with the hosts that have to answer first.
    Unanswered(Vec<Unanswered>),
}

/// A node that is no member yet, and says so to others who ask.
pub(super) struct Waiting {
    fabric: Arc<dyn Fabric>,
    /// Where others reach it.
    address: SocketAddr,
    admission: Option<Admission>,
    port: Box<dyn Port>,
    /// What it answers.
    answer: Answer,
    founds: bool,
}

/// What a host answers to a founder, as text.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    /// It waits, to found the cluster.
    Founds { address: SocketAddr },
    /// It waits, to join.
    Joins { address: SocketAddr },
    /// It is a member.
    Member { cluster_id: u64, address: SocketAddr },
}

impl fmt::Display for Answer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Founds { address } => write!(f, "founds {address}"),
            Self::Joins { address } => write!(f, "joins {address}"),
            Self::Member { cluster_id, address } => write!(f, "member {cluster_id:016x} {address}"),
        }
    }
}

impl Answer {
    /// `None` for what no node of this release says.
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

/// The name of the port where nodes answer.
pub(super) fn waiting_name(plan: &Plan) -> String {
    format!("farside.{}.waiting", plan.config.cluster)
}

fn failed(error: FabricError) -> Failure {
    Failure::system(error.to_string())
}

impl Waiting {
    fn open(plan: &Plan, founds: bool) -> Result<Self, Failure> {
        let opened = hosts::open_for(plan.fabric, &plan.rdma, plan.options.clone())?;
        let ((fabric, address), admission) = opened;
        let spec = PortSpec { listen: Some(waiting_name(plan)) };
        let mut port = fabric.open(&spec).map_err(failed)?;
        port.create_receive_queue(1).map_err(failed)?;
        let answer = if founds { Answer::Founds { address } } else { Answer::Joins { address } };
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

    /// Answers others who ask whether there is a cluster here.
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

    /// Asks every other host whether its node waits too; those whose answer does not allow to found.
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
                    _ => Some(port.trouble(link).unwrap_or_else(|| "it is not reached".to_owned())),
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

    /// Why an answer does not allow this node to found; `None` when it does.
    fn judge(&self, answer: &[u8]) -> Option<String> {
        match Answer::read(answer) {
            Some(Answer::Joins { .. }) => None,
            Some(Answer::Founds { address }) if address > self.address => None,
            Some(Answer::Founds { .. }) => {
                Some("it founds the cluster, for its address is lower".to_owned())
            }
            Some(Answer::Member { .. }) => Some("it is a member of the cluster".to_owned()),
            None => Some("its answer is not understood; bring both to one release".to_owned()),
        }
    }
}

/// Whether a later attempt to join may succeed without an operator.
fn may_pass(code: ErrorCode) -> bool {
    use ErrorCode::{Busy, Isolated, NoSuchCluster, NodeClosed, TimedOut};
    matches!(code, Busy | Isolated | NoSuchCluster | NodeClosed | TimedOut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_read_as_they_are_written() {
        let address = "10.0.0.1:7400".parse().unwrap();
        for answer in [
            Answer::Founds { address },
            Answer::Joins { address },
            Answer::Member { cluster_id: u64::MAX - 1, address },
        ] {
            assert_eq!(Answer::read(answer.to_string().as_bytes()), Some(answer));
        }
        for other in
            ["", "joins", "member 10.0.0.1:7400", "joins x", "founds 10.0.0.1:1 2", "\u{ff}"]
        {
            assert_eq!(Answer::read(other.as_bytes()), None, "{other}");
        }
    }
}
