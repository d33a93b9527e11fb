//! Leaving a cluster, as a program does it; the engine's side is [`engine::leave`](crate::engine).

use crate::node::NodeShared;
use crate::saver::Saver;
use crate::{Config, Error, ErrorCode};
use farside_protocol::member::Leases;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The minimum timeout of a leave.
const LEAVE_LEAST_NS: u64 = 5_000_000_000;
/// The maximum time of a dial and a vote besides the leases.
const DIAL_NS: u64 = 500_000_000;

/// The time until a silent member is removed, as `Config::lease_ns` describes.
pub(crate) fn removal_ns(leases: Leases) -> u64 {
    let noticed_ns = leases.fabric_ns.saturating_add(leases.member_ns.saturating_mul(3) / 2);
    let settled_ns = leases.fabric_ns.saturating_mul(3) / 2;
    noticed_ns.saturating_add(settled_ns).saturating_add(DIAL_NS)
}

/// The timeout of a leave: twice the time until a silent member is removed.
pub(crate) fn leave_timeout(config: &Config, leases: Leases) -> Duration {
    let derived_ns = removal_ns(leases).saturating_mul(2).max(LEAVE_LEAST_NS);
    Duration::from_nanos(config.leave_timeout_ns.unwrap_or(derived_ns))
}

/// What is gone with a node that has left.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Departure {
    /// Bytes of allocations in the node's memory: they are gone for all nodes. Zero for a node whose memory will return.
    pub memory_bytes: u64,
}

/// A leave in progress that its caller drives: for simulation, and for programs with their own event loop.
/// [`Node::leave`](crate::Node::leave) does the same and blocks.
#[derive(Debug)]
pub struct Leaving {
    pub(crate) shared: Arc<NodeShared>,
    /// Of a node that is drained.
    pub(crate) saver: Option<Saver>,
}

impl Leaving {
    /// Continues the leave without waiting; `None` while other nodes have to act first.
    ///
    /// # Errors
    /// As [`Node::leave`](crate::Node::leave): the node has left then, too. Those of the place of a drain: the node is still a
    /// member, and further polls have it leave without its memory saved.
    pub fn poll(&mut self) -> Option<Result<Departure, Error>> {
        if let Some(Err(error)) =
            self.saver.as_mut().map(|saver| saver.save_if_wanted(&self.shared.core))
        {
            self.saver = None;
            return Some(Err(error));
        }
        if self.saver.is_none() {
            // If saving has failed, the leave continues without.
            self.shared.core.engine().begin_leave(Duration::ZERO, false);
        }
        let left = self.shared.poll_leave()?;
        match &self.saver {
            Some(saver) if left.is_ok() && saver.drained().is_none() => Some(Err(Error::with(
                ErrorCode::NodeClosed,
                "it has left without saving its memory",
            ))),
            _ => Some(left),
        }
    }
}

impl NodeShared {
    fn poll_leave(&self) -> Option<Result<Departure, Error>> {
        if self.is_closed() {
            return Some(Ok(Departure::default())); // by a clone
        }
        let mut engine = self.core.engine();
        engine.poll();
        let ended = engine.leave_ended()?;
        let memory_bytes = if engine.will_return() { 0 } else { engine.used_bytes() };
        let departure = Departure { memory_bytes };
        if self.set_closed() {
            return Some(Ok(Departure::default())); // by a clone just now
        }
        drop(engine);
        self.end();
        Some(ended.map(|()| departure).map_err(Error::new))
    }

    /// Blocks until the leave has ended; closes this node after `unlock_timeout`, if its memory returns, and
    /// [`leave_timeout`], besides the time in which the memory is saved. If it is not saved by then, the node stays a member.
    pub(crate) fn wait_until_left(
        &self,
        unlock_timeout: Duration,
        mut saver: Option<&mut Saver>,
    ) -> Result<Departure, Error> {
        let returns = self.core.engine().will_return();
        let unlock_timeout = if returns { unlock_timeout } else { Duration::ZERO };
        let mut deadline = Instant::now() + unlock_timeout + self.core.leave_timeout;
        loop {
            if let Some(saver) = saver.as_deref_mut() {
                if saver.save_if_wanted(&self.core)? {
                    deadline = Instant::now() + self.core.leave_timeout;
                }
            } else if self.core.engine().awaits_saving() {
                deadline = Instant::now() + self.core.leave_timeout; // a clone drains this node
            } else {
                // If the drain of a clone has failed, this leaves without.
                self.core.engine().begin_leave(Duration::ZERO, false);
            }
            if let Some(done) = self.poll_leave() {
                return done;
            }
            if Instant::now() > deadline {
                if saver.is_some() && self.core.engine().awaits_saving() {
                    self.core.with_engine(|engine| engine.end_saving(false));
                    let text = self.core.engine().describe();
                    return Err(Error::with(ErrorCode::TimedOut, text));
                }
                let saved = if saver.is_some() { "all of its memory is saved: " } else { "" };
                let text = format!("{saved}{}", self.core.engine().describe());
                self.close();
                return Err(Error::with(ErrorCode::TimedOut, text));
            }
            crate::wait::tick();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn leave_timeout_follows_the_leases_unless_it_is_set() {
        let mut config = Config::new("x");
        let leases = |fabric_s: u64, member_s: u64| Leases {
            fabric_ns: fabric_s * 1_000_000_000,
            member_ns: member_s * 1_000_000_000,
        };
        let seconds = |leases| leave_timeout(&config, leases).as_secs();
        assert_eq!(seconds(leases(0, 1)), 5, "within a machine");
        assert_eq!([seconds(leases(1, 1)), seconds(leases(1, 60))], [9, 186]);
        config.leave_timeout_ns = Some(7);
        assert_eq!(leave_timeout(&config, leases(1, 60)), Duration::from_nanos(7));
    }
}
