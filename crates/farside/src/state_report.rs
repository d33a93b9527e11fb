//! How a node keeps its memory.

use crate::durable::{CopyStatus, DurableLog, Promise, Watermarks};
use farside_protocol::allocate::StateNeeds;
use std::fmt;

/// How a node keeps its memory at the moment ([`Node::state_report`](crate::Node::state_report)).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct StateReport {
    /// What a fence promises.
    pub promise: Promise,
    /// Copies in memory of other processes; zero for a state in a folder.
    pub copies: usize,
    /// Positions of the state's log: what was appended is in memory of this node; what is durable is in all copies, and
    /// survives what `promise` says.
    pub log: Watermarks,
}

impl fmt::Display for StateReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.copies {
            0 => {}
            1 => f.write_str("1 copy, ")?,
            copies => write!(f, "{copies} copies, ")?,
        }
        write!(f, "{}", self.promise)
    }
}

impl StateReport {
    pub(crate) fn new(log: &DurableLog, copies: Option<&CopyStatus>) -> Self {
        let mut promise = log.promise();
        promise.survives_power = copies.map_or(promise.survives_power, CopyStatus::survives_power);
        let copies = copies.map_or(0, CopyStatus::in_memory);
        Self { promise, copies, log: log.watermarks() }
    }

    /// Whether it is what an allocation needs.
    pub(crate) fn meets(&self, needs: StateNeeds) -> bool {
        self.copies >= usize::from(needs.copies)
            && (self.promise.survives_power || !needs.survives_power)
    }
}
