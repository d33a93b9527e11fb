//! The home of a node with state: logs its lines and allocations, and answers once the records are durable.
//!
//! The coherence machine of such a home ([`with_log`](farside_protocol::coherence::Coherence::with_log)) has each line
//! logged that comes back from an owner or that a session of this node has written, and grants it to no node before the
//! `Logged` that follows. [`durability`](super::durability) appends the records. A thread of the node commits them, all
//! that have been appended meanwhile in one group, and reports it to the engine; a node that its caller drives commits
//! within its poll.
//!
//! *Invariants*: a line is logged once at a time; answers to allocations and frees follow their records; what a commit
//! reports is processed in the order of the log. A log that fails once ends this node: nothing more is acknowledged.

use super::requester::Requester;
use crate::commits::CommitSignal;
use crate::durable::{CopyStatus, MemoryState, StateIdentity};
use crate::state_report::StateReport;
use crate::{ErrorCode, GlobalAddress};
use farside_base::LineAddress;
use farside_protocol::allocate::StateNeeds;
use std::collections::VecDeque;
use std::sync::Arc;

/// What waits for a record to be durable.
#[derive(Debug)]
pub(super) enum Awaiting {
    /// Nothing has to be done.
    Identity,
    /// The line can be granted.
    Line(LineAddress),
    Allocated(Requester, AllocatedBlock),
    Freed(Requester, Result<(), ErrorCode>),
}

/// An allocation whose record was appended.
#[derive(Clone, Copy, Debug)]
pub(super) struct AllocatedBlock {
    pub(super) address: GlobalAddress,
    pub(super) lines: u64,
    pub(super) needs: StateNeeds,
}

/// Drives the log of this node's memory.
pub(crate) struct StateDriver {
    pub(super) memory: MemoryState,
    /// Of a state in copies.
    copies: Option<CopyStatus>,
    /// Of this node, once it is a member: the number of a join that failed is given to another.
    pub(super) identity: StateIdentity,
    pub(super) waiting: VecDeque<(u64, Awaiting)>,
    /// Of the thread that commits; none at a node that its caller drives.
    pub(super) signal: Option<Arc<CommitSignal>>,
    /// The bytes of the line that is being logged.
    pub(super) line: Vec<u8>,
}

impl StateDriver {
    pub(crate) fn new(
        (memory, copies): (MemoryState, Option<CopyStatus>),
        identity: StateIdentity,
        signal: Option<Arc<CommitSignal>>,
    ) -> Self {
        Self { memory, copies, identity, waiting: VecDeque::new(), signal, line: Vec::new() }
    }

    pub(super) fn report(&self) -> StateReport {
        StateReport::new(self.memory.log(), self.copies.as_ref())
    }

    /// What is kept.
    pub(crate) fn memory(&self) -> &MemoryState {
        &self.memory
    }

    pub(super) fn await_record(&mut self, position: u64, awaiting: Awaiting) {
        // An allocation is answered some time after its record was appended.
        let at = self.waiting.partition_point(|(other, _)| *other <= position);
        self.waiting.insert(at, (position, awaiting));
        if let Some(signal) = &self.signal {
            signal.want(position);
        }
    }
}
