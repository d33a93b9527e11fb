//! Durable memory, as the engine does it: logs the lines and allocations of this home ([`state`](super::state)), has
//! fences wait for what is not durable ([`unlogged`](super::unlogged)), and operations for homes that are away
//! ([`away`](super::away)).

use super::requester::Requester;
use super::state::{AllocatedBlock, Awaiting, StateDriver};
use super::unlogged::{Persist, WriteBack};
use super::{Engine, FollowUp};
use crate::canary;
use crate::commits::{COMMIT_TIMEOUT, CommitSignal};
use crate::durable::{Allocation as KeptBlock, DurableLog};
use crate::operation::{OperationKind, OperationSlot, persist_number, persist_operation};
use crate::state_report::StateReport;
use crate::{Error, ErrorCode, GlobalAddress};
use farside_base::{LineAddress, NodeId, OperationId};
use farside_protocol::coherence::{CoherenceEvent, Frame, Level, Want};
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// Polls of a node that its caller drives for one commit: what they append is one group.
const COMMIT_EVERY: u32 = 8;

impl Engine {
    /// Whether this node keeps its memory.
    pub(crate) fn keeps_state(&self) -> bool {
        self.state.is_some()
    }

    /// How this node keeps its memory; `None` if it does not.
    pub(crate) fn state_report(&self) -> Option<StateReport> {
        self.state.as_ref().map(StateDriver::report)
    }

    /// The log, and the signal of the thread that commits it; `None` without one.
    pub(crate) fn log_and_signal(&self) -> Option<(Arc<DurableLog>, Arc<CommitSignal>)> {
        let state = self.state.as_ref()?;
        let signal = state.signal.as_ref()?;
        Some((Arc::clone(state.memory.log()), Arc::clone(signal)))
    }

    /// Logs whose memory it is: this node is a member now.
    pub(super) fn log_identity(&mut self) {
        let Some(state) = &mut self.state else {
            return;
        };
        match state.memory.set_identity(state.identity.clone()) {
            Ok(position) => state.await_record(position, Awaiting::Identity),
            Err(error) => self.state_failed(&error),
        }
    }

    /// Commits the rest of the log and marks its end, if this node has left; one that is dropped ends as in a crash.
    pub(crate) fn close_state(&mut self) {
        if let Some(state) = &mut self.state
            && self.membership.has_left()
        {
            // What a fence has reported is durable already.
            let _ = state.memory.close(COMMIT_TIMEOUT);
        }
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
                Awaiting::Identity => {}
                Awaiting::Line(line) => self.line_logged(line),
                Awaiting::Allocated(Requester::Dead, block) => {
                    self.free_here(block.address, Requester::Dead);
                }
                Awaiting::Allocated(requester, block) => self.answer_allocated(requester, block),
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
        if !self.polls.is_multiple_of(COMMIT_EVERY) {
            return true;
        }
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

    /// Logs an allocation, before any of its lines can be accessed; returns the position of its record.
    ///
    /// # Errors
    /// The log has failed, and this node has ended.
    pub(super) fn log_allocation(
        &mut self,
        address: GlobalAddress,
        lines: u64,
        bytes: u64,
    ) -> Result<u64, ErrorCode> {
        let Some(state) = &mut self.state else {
            return Ok(0);
        };
        let allocation = KeptBlock { bytes, lines, class: address.line_size().class() };
        let logged = state.memory.allocated(address.offset(), allocation);
        logged.map_err(|error| {
            self.state_failed(&error);
            error.code
        })
    }

    /// Answers the requester of an allocation once its record is durable.
    pub(super) fn answer_durably(
        &mut self,
        requester: Requester,
        block: AllocatedBlock,
        position: u64,
    ) {
        match &mut self.state {
            Some(state) if position > state.memory.durable() => {
                state.await_record(position, Awaiting::Allocated(requester, block));
            }
            _ => self.answer_allocated(requester, block),
        }
    }

    /// Answers with a block whose record is durable, if copies were not lost meanwhile that it needs.
    fn answer_allocated(&mut self, requester: Requester, block: AllocatedBlock) {
        let AllocatedBlock { address, lines, needs } = block;
        if self.meets(needs) {
            return self.answer_allocate(requester, Ok((address, lines)));
        }
        self.free_here(address, Requester::Dead);
        self.answer_allocate(requester, Err(ErrorCode::NoState));
    }

    /// Logs the directory of named roots; returns the position of the record.
    ///
    /// # Errors
    /// As [`log_allocation`](Self::log_allocation).
    pub(super) fn log_directory(
        &mut self,
        address: GlobalAddress,
        lines: u64,
    ) -> Result<u64, ErrorCode> {
        let Some(state) = &mut self.state else {
            return Ok(0);
        };
        let logged = state.memory.set_directory(address.offset(), lines);
        logged.map_err(|error| {
            self.state_failed(&error);
            error.code
        })
    }

    /// Handles the death of a requester: what it waits for is freed, or ends without an answer.
    pub(super) fn requester_dead(&mut self, node: NodeId) {
        let waiting = self.state.iter_mut().flat_map(|state| &mut state.waiting);
        for (_, awaiting) in waiting {
            if let Awaiting::Allocated(requester, ..) | Awaiting::Freed(requester, _) = awaiting
                && matches!(requester, Requester::Node(from, _) if *from == node)
            {
                *requester = Requester::Dead;
            }
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

    /// Asks the owners of lines of this home for them, to read them here, unless they were `asked`. Returns whether all are
    /// back.
    pub(super) fn takes_back(&mut self, asked: &mut BTreeSet<LineAddress>) -> bool {
        let lines = self.coherence.machine().owned_lines();
        for line in &lines {
            if !asked.insert(*line) {
                continue;
            }
            let operation = persist_operation(self.unlogged.number()); // of no fence: its end means nothing
            let (want, frame, here) = (Want::Read, Frame(0), self.here(*line));
            self.step_own(CoherenceEvent::Issue {
                operation,
                line: *line,
                want,
                pin: false,
                frame,
                here,
            });
        }
        lines.is_empty()
    }

    /// Forgets what waits for the log or for homes: it has failed.
    pub(super) fn forget_durability(&mut self) {
        self.unlogged.fences.clear();
        self.unlogged.write_backs.clear();
        if let Some(state) = &mut self.state {
            state.waiting.clear();
        }
    }

    /// Whether nothing waits for the log.
    pub(super) fn has_logged_all(&self) -> bool {
        self.state.as_ref().is_none_or(|state| state.waiting.is_empty())
    }

    /// Notes that this node may write a line from now on.
    pub(super) fn may_write(&mut self, line: LineAddress) {
        if self.has_state(line.home()) {
            let serial = self.unlogged.number();
            self.unlogged.lines.insert(line, serial);
            self.publish_unlogged();
        }
    }

    /// A number that changes whenever this node may write the line again.
    pub(super) fn write_serial(&self, line: LineAddress) -> Option<u64> {
        self.unlogged.lines.get(&line).copied()
    }

    /// What this node wrote to the line when it had this number is durable.
    fn is_durable(&mut self, line: LineAddress, serial: Option<u64>) {
        let is_owned = self.here(line).held.level == Level::Dirty;
        let newest = self.write_serial(line) == serial
            || canary::mutant!(canary::nodes(), StateWriteBackTooEarly);
        if !is_owned && serial.is_some() && newest {
            self.unlogged.lines.remove(&line);
            self.publish_unlogged();
        }
    }

    /// Publishes to the sessions whether a fence has to wait.
    fn publish_unlogged(&self) {
        let count = u32::try_from(self.unlogged.lines.len()).unwrap_or(u32::MAX);
        self.lines.set_unlogged(self.unlogged.losses, count);
    }

    /// Starts an operation that ends when what this node has written so far is durable.
    pub(super) fn start_persist(&mut self, operation: OperationId) {
        let mut fence = Persist {
            operation,
            write_backs: BTreeSet::new(),
            own: BTreeSet::new(),
            outcome: Ok(()),
        };
        let mut asked = Vec::new();
        let me = self.me();
        let lines: Vec<(LineAddress, u64)> =
            self.unlogged.lines.iter().map(|(line, serial)| (*line, *serial)).collect();
        for (line, serial) in lines {
            if line.home() == me {
                fence.own.insert(line);
                continue;
            }
            let number = self.unlogged.number();
            fence.write_backs.insert(number);
            self.unlogged.write_backs.insert(number, WriteBack { line, serial });
            asked.push((number, line));
        }
        if fence.own.is_empty() && asked.is_empty() {
            return self.finish(operation, Ok(()));
        }
        self.unlogged.fences.push(fence);
        for (number, line) in asked {
            self.start_write_back(persist_operation(number), line);
        }
    }

    /// A write-back for a fence has ended.
    pub(super) fn persisted(&mut self, operation: OperationId, outcome: Result<(), ErrorCode>) {
        let number = persist_number(operation);
        let Some(WriteBack { line, serial }) = self.unlogged.write_backs.get(&number).copied()
        else {
            return;
        };
        let outcome = match outcome {
            Ok(()) | Err(ErrorCode::Unallocated) => {
                self.is_durable(line, Some(serial)); // or freed
                Ok(())
            }
            // Its fence ends once no line of the home can be written any more, and each session learns of the loss.
            Err(ErrorCode::NodeLost | ErrorCode::NodeLeft | ErrorCode::HomeAway) => {
                return self.follow_ups.push_back(FollowUp::HomeGone(line.home()));
            }
            failed => failed,
        };
        self.unlogged.write_backs.remove(&number);
        for fence in &mut self.unlogged.fences {
            if fence.write_backs.remove(&number) && fence.outcome.is_ok() {
                fence.outcome = outcome;
            }
        }
        self.end_fences();
    }

    /// A line of this home is durable.
    pub(super) fn own_line_durable(&mut self, line: LineAddress, serial: Option<u64>) {
        self.is_durable(line, serial);
        for fence in &mut self.unlogged.fences {
            fence.own.remove(&line);
        }
        self.end_fences();
    }

    fn end_fences(&mut self) {
        let ended = |fence: &mut Persist| fence.own.is_empty() && fence.write_backs.is_empty();
        let ended: Vec<Persist> = self.unlogged.fences.extract_if(.., ended).collect();
        for fence in ended {
            self.finish(fence.operation, fence.outcome);
        }
    }

    /// Handles the end of a home: what it had not logged is gone, unless it has left, and has logged all before.
    pub(super) fn unlogged_home_gone(&mut self, home: NodeId) {
        let before = self.unlogged.lines.len();
        self.unlogged.lines.retain(|line, _| line.home() != home);
        let of_home = |_: &u64, write_back: &mut WriteBack| write_back.line.home() == home;
        let ended: BTreeSet<u64> =
            self.unlogged.write_backs.extract_if(.., of_home).map(|(number, _)| number).collect();
        for fence in &mut self.unlogged.fences {
            fence.write_backs.retain(|number| !ended.contains(number));
        }
        let has_left = self.membership.machine().has_left(home);
        let told = !has_left && !canary::mutant!(canary::nodes(), StateLossNotTold);
        if self.unlogged.lines.len() < before {
            self.unlogged.losses = self.unlogged.losses.wrapping_add(u32::from(told));
            self.publish_unlogged();
        }
        self.end_fences();
    }

    /// Lets an operation wait that has failed because its home is away; false if it is to fail.
    pub(super) fn waits_for_home(&mut self, operation: OperationId, code: ErrorCode) -> bool {
        let waits = self.sessions.request(operation).is_some_and(|(kind, address)| {
            // A home that leaves has answered each free that took effect.
            let has_left = address.is_some_and(|address| self.has_left(address.memory()));
            kind.waits_for_home() || kind == OperationKind::Free && has_left
        });
        code == ErrorCode::HomeAway && waits && self.wait_for_home(operation)
    }

    /// Lets an operation, which has had no effect, wait for its home; false if it may not.
    pub(super) fn wait_for_home(&mut self, operation: OperationId) -> bool {
        let waits = |slot: &&OperationSlot| slot.is_pending() && !slot.is_abandoned();
        let slot = self.sessions.slot(operation).filter(waits);
        let Some(slot) = slot.filter(|_| self.away.timeout_ns > 0) else {
            return false;
        };
        let now_ns = self.links.now_ns();
        let until_ns = now_ns.saturating_add(self.away.timeout_ns);
        // One limit for each operation, however often it starts again.
        let at_ns = *slot.request().away_until_ns.get_or_insert(until_ns);
        let waits = at_ns > now_ns;
        if waits {
            self.away.waiting.push_back((operation, at_ns));
        }
        waits
    }

    /// Ends an abandoned operation if it waits for its home; returns whether it did.
    pub(super) fn forget_away(&mut self, operation: OperationId) -> bool {
        let waited = self.away.forget(operation);
        if waited {
            self.finish(operation, Err(ErrorCode::TimedOut));
        }
        waited
    }

    /// Ends all operations that wait for a home, and lets none wait any more: this node leaves.
    pub(super) fn fail_away(&mut self) {
        self.away.timeout_ns = 0;
        let waiting = std::mem::take(&mut self.away.waiting);
        self.fail_waiting(waiting);
    }

    fn fail_waiting(&mut self, waiting: VecDeque<(OperationId, u64)>) {
        for (operation, _) in waiting {
            self.end(operation, Err(ErrorCode::HomeAway));
        }
        self.follow_up();
    }

    /// Starts the operations again whose homes have returned: a member has been linked.
    pub(super) fn home_returns(&mut self, home: NodeId) {
        self.away.returns(home);
        self.reconsider_away();
    }

    /// Starts the operations again that need not wait any more: their home has returned, or will not.
    pub(super) fn reconsider_away(&mut self) {
        for (operation, at_ns) in std::mem::take(&mut self.away.waiting) {
            if self.has_moved(operation) {
                self.end(operation, Err(ErrorCode::HomeAway));
            } else if self.is_home_away(operation) {
                self.away.waiting.push_back((operation, at_ns));
            } else {
                self.follow_ups.push_back(FollowUp::Start(operation));
            }
        }
    }

    /// Whether an operation asks a node for the directory of names that is not its home any more.
    fn has_moved(&self, operation: OperationId) -> bool {
        let kind = self.sessions.request(operation).map(|(kind, _)| kind);
        let home = self.membership.machine().directory_home();
        matches!(kind, Some(OperationKind::Directory { node }) if Some(node) != home)
    }

    fn is_home_away(&self, operation: OperationId) -> bool {
        let refusal = match self.sessions.request(operation) {
            Some((OperationKind::Allocate { node, .. } | OperationKind::Directory { node }, _)) => {
                let leaves = self.away.is_leaving(node).then_some(ErrorCode::HomeAway);
                self.refusal_of(node).or(leaves)
            }
            Some((_, Some(address))) => self.refusal_to_wait(address),
            Some((_, None)) | None => None,
        };
        refusal == Some(ErrorCode::HomeAway)
    }

    /// Why a node cannot be asked, if so.
    pub(super) fn refusal_of(&self, node: NodeId) -> Option<ErrorCode> {
        let refusal = if node == self.me() { None } else { self.links.peers().refusal(node) };
        let membership = self.membership.machine();
        // A member that has just joined may not be linked yet.
        let will_be_linked = membership.keeps(node) || membership.is_alive(node);
        refusal.map(|code| if will_be_linked { ErrorCode::HomeAway } else { code })
    }

    /// Ends an operation whose home can be asked; else it waits.
    pub(super) fn start_await_home(
        &mut self,
        operation: OperationId,
        address: Option<GlobalAddress>,
    ) {
        let refusal = address.and_then(|address| self.refusal_to_wait(address));
        self.finish(operation, refusal.map_or(Ok(()), Err));
    }

    /// Why an operation that was refused should not start again yet: a home that leaves would refuse it again.
    fn refusal_to_wait(&self, address: GlobalAddress) -> Option<ErrorCode> {
        let leaves = self.away.is_leaving(address.home()).then_some(ErrorCode::HomeAway);
        self.refusal_at(address.line()).or(leaves)
    }

    /// Notes why an operation has failed: its home may be linked, and leave.
    pub(super) fn note_refusal(&mut self, operation: OperationId, code: ErrorCode) {
        if code == ErrorCode::HomeAway
            && let Some((_, Some(address))) = self.sessions.request(operation)
        {
            self.away.leaves(address.home());
        }
    }

    /// Ends the operations that have waited long enough. True if there was one.
    pub(super) fn end_away(&mut self) -> bool {
        if self.away.waiting.is_empty() {
            return false;
        }
        let now_ns = self.links.now_ns();
        let late = |(_, at_ns): &(OperationId, u64)| *at_ns <= now_ns;
        let (late, waiting): (VecDeque<_>, _) = self.away.waiting.drain(..).partition(late);
        self.away.waiting = waiting;
        let any = !late.is_empty();
        self.fail_waiting(late);
        any
    }
}
