//! Injects faults into any fabric, by a seeded plan: [`FaultFabric`] wraps another.
//!
//! Time is counted in calls of `poll` and `link_events` of one port, so a plan and a sequence of
//! calls always give the same faults. Every fault is one that the traits permit: refused posts,
//! late completions and events in their order, a lost link.

use crate::{Fabric, FabricError, LinkEvent, Loss, Port, PortSpec, Posted, Stop, Waiter};
use farside_base::Random;
use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId, Work};
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The fault plan. The default has no faults.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FaultPlan {
    /// The seed of the draws; each port of the fabric has its own sequence.
    pub seed: u64,
    /// Percentage of requests that `post` refuses with `QueueFull`; at most 99 count, so that a caller
    /// that retries succeeds.
    pub queue_full_percent: u32,
    /// Completions are held back for up to this many polls.
    pub completion_delay_polls_max: u32,
    /// Link events are held back for up to this many polls.
    pub event_delay_polls_max: u32,
    /// The link of this request of a port is lost just before it; the port's first request is 1.
    pub lose_link_at: Option<u64>,
}

/// Wraps a fabric and injects faults.
pub struct FaultFabric {
    inner: Arc<dyn Fabric>,
    plan: FaultPlan,
    ports: AtomicU64,
}

impl FaultFabric {
    /// Injects the faults of `plan` into all calls of `inner` through this fabric.
    pub fn new(inner: Arc<dyn Fabric>, plan: FaultPlan) -> Self {
        Self { inner, plan, ports: AtomicU64::new(0) }
    }
}

impl fmt::Debug for FaultFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "FaultFabric({}, {:?})", self.inner.name(), self.plan)
    }
}

impl Fabric for FaultFabric {
    crate::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let number = self.ports.fetch_add(1, Ordering::Relaxed);
        Ok(Box::new(FaultPort {
            inner: self.inner.open(spec)?,
            plan: self.plan,
            random: Random::new(self.plan.seed ^ number << 32),
            polls: 0,
            requests: 0,
            lost: None,
            completions: VecDeque::with_capacity(HELD_MAX),
            last_due: HashMap::new(),
            events: VecDeque::new(),
            other_waiter: None,
        }))
    }
}

/// Most completions held back at a time; the rest stays with the fabric below.
const HELD_MAX: usize = 1024;

struct FaultPort {
    inner: Box<dyn Port>,
    plan: FaultPlan,
    random: Random,
    /// The current time, in calls.
    polls: u64,
    /// Requests taken.
    requests: u64,
    /// The link that the plan lost, until its first request has completed.
    lost: Option<LinkId>,
    /// Delayed completions, and when each is due.
    completions: VecDeque<(u64, Completion)>,
    /// When the latest completion of each link is due, so that none overtakes it.
    last_due: HashMap<LinkId, u64>,
    events: VecDeque<(u64, LinkEvent)>,
    /// Woken by link events too.
    other_waiter: Option<Arc<dyn Waiter>>,
}

/// A fault before a request.
enum Fault {
    Refuse,
    Lose(LinkId),
}

impl FaultPort {
    /// Returns how many leading requests are passed on untouched, and the fault after them.
    fn clean_run(&mut self, work: &[Work<'_>]) -> (usize, Option<Fault>) {
        for (at, request) in work.iter().enumerate() {
            if self.plan.lose_link_at == Some(self.requests + at as u64 + 1) {
                return (at, Some(Fault::Lose(request.link)));
            }
            let percent = u64::from(self.plan.queue_full_percent.min(99));
            if percent > 0 && self.random.below(100) < percent {
                return (at, Some(Fault::Refuse));
            }
        }
        (work.len(), None)
    }

    /// Closes the link of the inner fabric, so that the peer sees a loss, and reports a loss locally.
    fn lose(&mut self, link: LinkId) {
        self.plan.lose_link_at = None;
        self.inner.close(link);
        self.events.retain(|(_, event)| event.link() != link);
        let due = self.polls + self.random.below(u64::from(self.plan.event_delay_polls_max) + 1);
        self.events.push_back((due, LinkEvent::Lost { link, loss: Loss::Ended }));
        self.lost = Some(link);
        if let Some(other) = &self.other_waiter {
            other.wake();
        }
    }

    /// Takes completions of the inner fabric, and draws when each is due.
    fn hold_completions(&mut self) {
        let mut out = [Completion::BLANK; 32];
        while self.completions.len() + out.len() <= HELD_MAX {
            let count = self.inner.poll(&mut out);
            for done in &mut out[..count] {
                self.tell_loss(done);
                let delay = u64::from(self.plan.completion_delay_polls_max);
                let due = self.polls + self.random.below(delay + 1);
                let last = self.last_due.entry(done.link).or_default();
                *last = due.max(*last);
                self.completions.push_back((*last, *done));
            }
            if count < out.len() {
                return;
            }
        }
    }

    /// Completes the first request on a link that the plan lost with the loss.
    fn tell_loss(&mut self, done: &mut Completion) {
        let request = !is_receive(done.kind);
        if self.lost == Some(done.link) && request && done.status == CompletionStatus::Flushed {
            done.status = CompletionStatus::PeerLost;
            self.lost = None;
        }
    }

    fn hold_events(&mut self) {
        let mut events = Vec::new();
        self.inner.link_events(&mut events);
        for event in events {
            let delay = u64::from(self.plan.event_delay_polls_max);
            let due = self.polls + self.random.below(delay + 1);
            self.events.push_back((due, event));
        }
    }

    /// Returns whether a loss has to wait for messages that arrived before it.
    fn has_message_of(&self, link: LinkId) -> bool {
        let mut held = self.completions.iter();
        held.any(|(_, done)| done.link == link && is_receive(done.kind))
    }
}

fn is_receive(kind: CompletionKind) -> bool {
    matches!(kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate)
}

impl Port for FaultPort {
    crate::forward!(common, post_receives, connect, import, may_land);

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.inner.wake_also(Arc::clone(&waiter));
        self.other_waiter = Some(waiter);
    }

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let mut accepted = 0;
        loop {
            let (count, fault) = self.clean_run(&work[accepted..]);
            let posted = self.inner.post(&work[accepted..accepted + count]);
            accepted += posted.accepted;
            self.requests += posted.accepted as u64;
            let stop = match (posted.stop, fault) {
                (None, Some(Fault::Lose(link))) => {
                    self.lose(link);
                    continue;
                }
                (None, Some(Fault::Refuse)) => Some(Stop::QueueFull),
                (stop, _) => stop,
            };
            return Posted { accepted, stop };
        }
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.polls += 1;
        if self.completions.is_empty() {
            self.last_due.clear();
        }
        self.hold_completions();
        let now = self.polls;
        let mut count = 0;
        self.completions.retain(|(due, done)| {
            let ready = *due <= now && count < out.len();
            if ready {
                out[count] = *done;
                count += 1;
            }
            !ready
        });
        count
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.polls += 1;
        self.hold_completions();
        self.hold_events();
        while let Some((due, event)) = self.events.front() {
            let loss = matches!(event, LinkEvent::Lost { .. });
            if *due > self.polls || (loss && self.has_message_of(event.link())) {
                // A thread that sleeps on another port must poll again.
                if let Some(other) = &self.other_waiter {
                    other.wake();
                }
                return;
            }
            out.extend(self.events.pop_front().map(|(_, event)| event));
        }
    }

    fn arm(&mut self) -> bool {
        !self.completions.is_empty() || !self.events.is_empty() || self.inner.arm()
    }

    fn close(&mut self, link: LinkId) {
        self.events.retain(|(_, event)| event.link() != link);
        self.inner.close(link);
    }
}
