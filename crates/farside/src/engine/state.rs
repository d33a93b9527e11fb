//! The home of a node with state: logs its lines and allocations, and answers once the records are durable.
//!
//! The coherence machine of such a home ([`with_log`](farside_protocol::coherence::Coherence::with_log)) has each line
//! logged that comes back from an owner or that a session of this node has written, and grants it to no node before the
//! `Logged` that follows. The engine appends the records. A thread of the node commits them, all that have been appended
//! meanwhile in one group, and reports it to the engine; a node that its caller drives commits within its poll.
//!
//! *Invariants*: a line is logged once at a time; answers to allocations and frees follow their records; what a commit
//! reports is processed in the order of the log. A log that fails once ends this node: nothing more is acknowledged.

use super::allocation::Requester;
use super::{Engine, FollowUp};
use crate::canary;
use crate::durable::{Allocation as KeptBlock, DurableLog, MemoryState};
use crate::mutex::locked;
use crate::wait::Core;
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::LineAddress;
use farside_protocol::coherence::CoherenceEvent;
use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Longer than any commit.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(3600);

/// What waits for a record to be durable.
#[derive(Debug)]
enum Awaiting {
    /// The line can be granted.
    Line(LineAddress),
    Allocated(Requester, GlobalAddress, u64),
    Freed(Requester, Result<(), ErrorCode>),
}

/// Tells the thread that commits how far the log has been appended.
#[derive(Debug, Default)]
pub(crate) struct CommitSignal {
    /// The position, and whether the node has ended.
    wanted: Mutex<(u64, bool)>,
    changed: Condvar,
}

impl CommitSignal {
    fn want(&self, position: u64) {
        locked(&self.wanted).0 = position;
        self.changed.notify_one();
    }

    /// Ends the thread once it has committed all.
    pub(crate) fn close(&self) {
        locked(&self.wanted).1 = true;
        self.changed.notify_one();
    }

    /// Blocks until more than `done` is wanted; `None` once the node has ended.
    fn next(&self, done: u64) -> Option<u64> {
        let waits = |wanted: &mut (u64, bool)| wanted.0 <= done && !wanted.1;
        let wanted = self.changed.wait_while(locked(&self.wanted), waits);
        let (position, _) = *wanted.unwrap_or_else(PoisonError::into_inner);
        (position > done).then_some(position)
    }
}

/// Commits what a node appends to its log, until the node ends or the log fails.
pub(crate) fn commit_all(core: &Core, log: &DurableLog, signal: &CommitSignal) {
    let mut done = 0;
    while let Some(wanted) = signal.next(done) {
        match log.commit(wanted, COMMIT_TIMEOUT) {
            Ok(()) => done = wanted,
            Err(error) if error.code == ErrorCode::TimedOut => {}
            Err(error) => return core.with_engine(|engine| engine.state_failed(&error)),
        }
        core.with_engine(Engine::state_progress);
    }
}

/// Drives the log of this node's memory.
pub(crate) struct StateDriver {
    memory: MemoryState,
    waiting: VecDeque<(u64, Awaiting)>,
    /// Of the thread that commits; none at a node that its caller drives.
    signal: Option<Arc<CommitSignal>>,
    /// The bytes of the line that is being logged.
    line: Vec<u8>,
}

impl StateDriver {
    pub(crate) fn new(memory: MemoryState, signal: Option<Arc<CommitSignal>>) -> Self {
        Self { memory, waiting: VecDeque::new(), signal, line: Vec::new() }
    }

    /// What is kept.
    pub(crate) fn memory(&self) -> &MemoryState {
        &self.memory
    }

    fn await_record(&mut self, position: u64, awaiting: Awaiting) {
        self.waiting.push_back((position, awaiting));
        if let Some(signal) = &self.signal {
            signal.want(position);
        }
    }
}

impl Engine {
    /// Whether this node keeps its memory.
    pub(crate) fn keeps_state(&self) -> bool {
        self.state.is_some()
    }

    /// The log, and the signal of the thread that commits it; `None` without one.
    pub(crate) fn log_and_signal(&self) -> Option<(Arc<DurableLog>, Arc<CommitSignal>)> {
        let state = self.state.as_ref()?;
        let signal = state.signal.as_ref()?;
        Some((Arc::clone(state.memory.log()), Arc::clone(signal)))
    }

    /// Logs a line of this home, whose bytes do not change meanwhile.
    pub(super) fn log_line(&mut self, line: LineAddress) {
        let Some(state) = &mut self.state else {
            return;
        };
        state.line.resize(line.line_size().bytes(), 0);
        let read = self.lines.home().read(line.offset(), &mut state.line);
        debug_assert!(read.is_ok(), "the allocator stays within the memory");
        match state.memory.write(line.offset(), &state.line) {
            Ok(Some(position)) => {
                state.await_record(position, Awaiting::Line(line));
                if canary::mutant!(canary::nodes(), StateLoggedEarly) {
                    self.follow_ups.push_back(FollowUp::Logged(line));
                }
            }
            Ok(None) => self.follow_ups.push_back(FollowUp::Logged(line)),
            Err(error) => self.state_failed(&error),
        }
    }

    /// Replaces the bytes of a line of this home by those that were logged last.
    pub(super) fn restore_line(&mut self, line: LineAddress) {
        let Some(state) = &self.state else {
            return;
        };
        if canary::mutant!(canary::nodes(), StateLineNotRestored) {
            return;
        }
        let (from, bytes) = (line.offset() as usize, line.line_size().bytes());
        if let Some(image) = state.memory.image().get(from..from + bytes) {
            let done = self.lines.home().write(line.offset(), image);
            debug_assert!(done.is_ok(), "the image is as long as the memory");
        }
    }

    /// Continues what waits for records that are durable by now; returns whether anything did.
    pub(crate) fn state_progress(&mut self) -> bool {
        let mut any = false;
        while let Some(state) = &mut self.state {
            let durable = state.memory.durable();
            let Some((_, awaiting)) = state.waiting.pop_front_if(|(at, _)| *at <= durable) else {
                break;
            };
            any = true;
            match awaiting {
                Awaiting::Line(line) => self.line_logged(line),
                Awaiting::Allocated(requester, address, lines) => {
                    self.answer_allocate(requester, Ok((address, lines)));
                }
                Awaiting::Freed(requester, outcome) => self.answer_free(requester, outcome),
            }
        }
        if any {
            self.follow_up();
        }
        any
    }

    /// Commits what earlier polls have appended, at a node that its caller drives.
    pub(super) fn commit_driven(&mut self) -> bool {
        let Some(state) = self.state.as_ref().filter(|state| state.signal.is_none()) else {
            return false;
        };
        let Some((position, _)) = state.waiting.back() else {
            return false;
        };
        match state.memory.log().commit(*position, COMMIT_TIMEOUT) {
            Ok(()) => self.state_progress(),
            Err(error) => {
                self.state_failed(&error);
                true
            }
        }
    }

    /// The record of a line is durable.
    pub(super) fn line_logged(&mut self, line: LineAddress) {
        let written = self.write_serial(line);
        self.step_own(CoherenceEvent::Logged { line });
        self.own_line_durable(line, written);
    }

    /// Ends this node: its log has failed, and nothing that it would acknowledge from now on is kept.
    pub(crate) fn state_failed(&mut self, error: &Error) {
        self.close_with(error.code);
        self.disconnect();
    }

    /// Logs an allocation, whose requester is answered once the record is durable.
    pub(super) fn log_allocation(
        &mut self,
        requester: Requester,
        (address, lines): (GlobalAddress, u64),
        bytes: u64,
    ) {
        let Some(state) = &mut self.state else {
            return self.answer_allocate(requester, Ok((address, lines)));
        };
        let class = address.line_size().class();
        let allocation = KeptBlock { bytes, lines, class };
        match state.memory.allocated(address.offset(), allocation) {
            Ok(_) if canary::mutant!(canary::nodes(), StateAllocationEarly) => {
                self.answer_allocate(requester, Ok((address, lines)));
            }
            Ok(position) => {
                state.await_record(position, Awaiting::Allocated(requester, address, lines));
            }
            Err(error) => self.state_failed(&error),
        }
    }

    /// Logs the directory of named roots. Nothing waits for it: records about its contents follow.
    pub(super) fn log_directory(&mut self, (address, lines): (GlobalAddress, u64), bytes: u64) {
        let Some(state) = &mut self.state else {
            return;
        };
        let (offset, class) = (address.offset(), address.line_size().class());
        let allocation = KeptBlock { bytes, lines, class };
        let logged = state.memory.allocated(offset, allocation);
        if let Err(error) = logged.and_then(|_| state.memory.set_directory(offset, lines)) {
            self.state_failed(&error);
        }
    }

    /// Logs a free, whose requester is answered once the record is durable.
    pub(super) fn log_free(
        &mut self,
        requester: Requester,
        offset: u64,
        outcome: Result<(), ErrorCode>,
    ) {
        let Some(state) = &mut self.state else {
            return self.answer_free(requester, outcome);
        };
        match state.memory.freed(offset) {
            Ok(position) => state.await_record(position, Awaiting::Freed(requester, outcome)),
            Err(error) => self.state_failed(&error),
        }
    }
}
