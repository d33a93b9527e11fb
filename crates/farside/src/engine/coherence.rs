//! Lines of memory: drives the coherence machine, and gives operations the frames that they need.

use super::links::LineWrite;
use super::sessions::Performed;
use super::{Engine, FollowUp};
use crate::Stats;
use crate::hit::Lack;
use crate::operation::{OperationKind, is_home, is_persist};
use crate::pool::Block;
use farside_base::{ErrorCode, Limits, LineAddress, LineSize, MemoryId, NodeId, OperationId};
use farside_protocol::coherence::{
    Coherence, CoherenceEffect, CoherenceEvent, CoherenceMessage, Effects, Frame, HeldLine, Here,
    Level, PlacementTarget,
};
use farside_protocol::wire::{BODY, Family, Violation};
use std::collections::VecDeque;

/// Drives the coherence machine.
pub(crate) struct CoherenceDriver {
    machine: Coherence,
    effects: Effects,
    /// Effects carried out so far.
    performed: u64,
    /// Operations on lines without a frame at the moment, each with the block that is cleared for it.
    frameless: VecDeque<(OperationId, Option<Block>)>,
    /// The block that is cleared for the operation that is being started again.
    clearing: Option<Block>,
    invalidations: u64,
    evictions: u64,
    prefetches: u64,
}

impl CoherenceDriver {
    pub(super) fn new(me: NodeId, limits: &Limits, logs: bool) -> Self {
        let machine = Coherence::new(me, limits);
        Self {
            machine: if logs { machine.with_log() } else { machine },
            effects: Vec::with_capacity(64),
            performed: 0,
            frameless: VecDeque::new(),
            clearing: None,
            invalidations: 0,
            evictions: 0,
            prefetches: 0,
        }
    }

    /// The machine, for queries.
    pub(super) fn machine(&self) -> &Coherence {
        &self.machine
    }

    /// Grants no own line for writing any more.
    /// Returns whether it granted lines before.
    pub(super) const fn stop_granting(&mut self) -> bool {
        self.machine.stop_granting()
    }

    /// The number of operations that wait for a frame.
    pub(super) fn frameless(&self) -> usize {
        self.frameless.len()
    }

    /// Forgets the operations that wait for a frame: all have failed.
    pub(super) fn forget_frameless(&mut self) {
        self.frameless.clear();
    }

    /// Counts what has happened to lines.
    pub(super) fn count(&self, stats: &mut Stats) {
        stats.invalidations = self.invalidations;
        stats.evictions = self.evictions;
        stats.prefetches = self.prefetches;
        stats.write_backs = self.machine.counters().write_backs;
    }
}

impl Engine {
    /// Passes a message to the coherence machine.
    pub(super) fn coherence_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        let message = CoherenceMessage::decode(body)?;
        self.check_generation(message.line())?;
        let here = self.here(message.line());
        let done = self.step(CoherenceEvent::Received { from, message, here });
        if let CoherenceMessage::Written { line, .. } = message {
            self.written(line);
        }
        self.retry_frames(); // any message can end a line's transition, after which it can be evicted
        done
    }

    /// The node that owns a line, as far as the home knows.
    pub(crate) fn owner_of(&self, line: LineAddress) -> Option<NodeId> {
        self.coherence.machine.owner(line).map(|(node, _)| node)
    }

    /// Whether this is memory of a node with state that is not linked to this node: its contents are kept.
    pub(crate) fn is_away(&self, memory: MemoryId) -> bool {
        self.membership.machine().keeps_memory(memory) && !self.lends(memory)
    }

    /// Whether this memory is gone because its node has left.
    pub(crate) fn has_left(&self, memory: MemoryId) -> bool {
        self.links.peers().has_left(memory)
    }

    /// Whether a peer lends this memory.
    pub(crate) fn lends(&self, memory: MemoryId) -> bool {
        self.links.peers().lends(memory)
    }

    /// Refuses a peer's message about a line of another generation of this node's number: a correct peer
    /// knows which memory this node lends before it is linked.
    pub(crate) fn check_generation(&self, line: LineAddress) -> Result<(), Violation> {
        match line.home() == self.me() && Some(line.memory()) != self.lines.memory() {
            true => Err(Violation("a line of memory that is gone")),
            false => Ok(()),
        }
    }

    /// Why the memory of a line cannot be accessed, if so: it is gone, its home is away, or it was never lent.
    pub(crate) fn refusal_at(&self, line: LineAddress) -> Option<ErrorCode> {
        let memory = line.memory();
        if Some(memory) == self.lines.memory() || self.lends(memory) {
            return None;
        }
        let (node, generation) = (memory.node(), memory.generation());
        Some(if self.is_away(memory) {
            ErrorCode::HomeAway
        } else if self.has_left(memory) {
            ErrorCode::NodeLeft
        } else if generation < self.membership.machine().next_generation(node) {
            ErrorCode::NodeLost
        } else {
            ErrorCode::ForeignAddress
        })
    }

    /// The state of a line by its tag.
    pub(crate) fn here(&self, line: LineAddress) -> Here {
        let (held, extent) = self.lines.here(line);
        Here { held, extent }
    }

    /// Steps the coherence machine and carries out all its effects, in order, before the next step.
    fn step(&mut self, event: CoherenceEvent) -> Result<(), Violation> {
        let mut effects = std::mem::take(&mut self.coherence.effects);
        let step = self.coherence.machine.step(event, &mut effects);
        for effect in effects.drain(..) {
            self.perform(effect);
        }
        self.coherence.effects = effects;
        step
    }

    /// Steps the machine with an event of this node, which it cannot refuse.
    pub(crate) fn step_own(&mut self, event: CoherenceEvent) {
        if let Err(violation) = self.step(event) {
            self.failure = Some(violation.0);
        }
    }

    fn perform(&mut self, effect: CoherenceEffect) {
        self.coherence.performed += 1;
        match effect {
            CoherenceEffect::Send { to, message } => self.send(to, &message),
            CoherenceEffect::Place { line, to, target, message } => {
                self.place(line, to, target, &message)
            }
            CoherenceEffect::SetLevel { line, held, extent } => {
                if held.level == Level::Invalid && line.home() != self.me() {
                    self.coherence.invalidations += 1;
                }
                if held.level == Level::Dirty {
                    self.may_write(line); // before a session can
                }
                self.lines.set_level(line, held, extent);
                self.watches.wake_line(line);
                if held.level == Level::Dirty && line.home() != self.me() {
                    self.owned(line);
                }
            }
            CoherenceEffect::Fill { operation, line } => {
                self.sessions.fill(&self.lines, operation, line);
            }
            CoherenceEffect::Release { line } => {
                self.leaves_frame(line);
                self.lines.release(line);
                self.retry_frames();
            }
            CoherenceEffect::Ready { operation, line } => self.ready(operation, line),
            CoherenceEffect::Fail { operation, code, .. } => self.finish(operation, Err(code)),
            CoherenceEffect::Log { line } => self.log_line(line),
            CoherenceEffect::Restore { line } => self.restore_line(line),
            CoherenceEffect::DropHome { node } => self.drop_home(node),
        }
    }

    /// Performs an operation after its line has reached the required level.
    fn ready(&mut self, operation: OperationId, line: LineAddress) {
        if is_persist(operation) {
            return self.persisted(operation, Ok(()));
        }
        if is_home(operation) {
            self.lines.set_own(line, Level::Invalid, None);
            return self.homes.retired(operation);
        }
        let mut ready = Some(operation);
        while let Some(operation) = ready.take() {
            match self.sessions.perform(&self.lines, operation, line) {
                Performed::Done => {}
                Performed::Next(next) => ready = Some(next),
                Performed::Unpin => self.follow_ups.push_back(FollowUp::Unpin(line)),
                // Then it is held back or refused, like an operation that starts now.
                Performed::HeldBack => self.follow_ups.push_back(FollowUp::Start(operation)),
            }
        }
        self.retry_frames(); // a line without a transition in progress can be evicted
    }

    fn send(&mut self, to: NodeId, message: &CoherenceMessage) {
        self.links.push(to, message.class(), Family::Coherence, &message.encode());
    }

    fn place(
        &mut self,
        line: LineAddress,
        to: NodeId,
        target: PlacementTarget,
        message: &CoherenceMessage,
    ) {
        let (Some(spot), true) = (self.lines.spot(line), self.links.peers().is_connected(to))
        else {
            self.follow_ups.push_back(FollowUp::Placed(line));
            return;
        };
        let (offset, from_cache) = spot.offset();
        let (to_cache, to_offset) = match target {
            PlacementTarget::Frame(Frame(frame)) => {
                (true, u64::from(frame) << LineSize::MIN.log2())
            }
            PlacementTarget::Home => (false, line.offset()),
        };
        let from = self.links.slice(from_cache, offset, line.line_size().bytes() as u32);
        self.links.place(to, LineWrite { line, from, to_cache, to_offset });
        self.send(to, message);
    }

    /// Starts an operation and carries out its follow-ups.
    pub(crate) fn issue(&mut self, operation: OperationId) {
        if self.leaving.is_some() && !self.serves_holder(operation) {
            let confirms = self
                .sessions
                .request(operation)
                .is_some_and(|(kind, _)| kind == OperationKind::Confirm);
            match confirms {
                true if self.has_handed_over() => return self.finish(operation, Ok(())),
                true => {} // held back, or refused, as without a leave
                false => return self.finish(operation, Err(ErrorCode::NodeClosed)),
            }
        }
        if !self.sessions.queue_write(operation) {
            self.start(operation);
            self.follow_up();
        }
    }

    /// Passes an operation to its machine, with a frame if its line needs one.
    pub(super) fn start(&mut self, operation: OperationId) {
        let Some(slot) = self.sessions.slot(operation) else {
            return;
        };
        let (kind, address, want) = {
            let request = slot.request();
            (request.kind, request.address, request.want())
        };
        if slot.is_abandoned() && kind.ends_when_abandoned() {
            return self.finish(operation, Err(ErrorCode::TimedOut));
        }
        if let Some(code) = self.refusal() {
            let outcome = if kind == OperationKind::Confirm && self.has_handed_over() {
                Ok(())
            } else {
                Err(code)
            };
            return self.finish(operation, outcome);
        }
        if self.hold_operation(operation) {
            return;
        }
        if let (OperationKind::WriteBack, Some(address)) = (kind, address) {
            return self.start_write_back(operation, address.line());
        }
        let (Some(want), Some(address)) = (want, address) else {
            return self.control(operation, kind, address);
        };
        let line = address.line();
        let is_prefetch = matches!(kind, OperationKind::Prefetch(_));
        if is_prefetch && self.coherence.machine.is_busy(line) {
            return self.finish(operation, Ok(())); // an earlier request brings it
        }
        let Some(frame) = self.frame_for(line, operation) else {
            return;
        };
        self.coherence.prefetches += u64::from(is_prefetch);
        let pin = matches!(kind, OperationKind::Pin(_));
        let here = self.here(line);
        self.step_own(CoherenceEvent::Issue { operation, line, want, pin, frame, here });
    }

    /// Cancels an operation on a line, abandoned by its caller, unless it is held back.
    pub(crate) fn cancel(&mut self, operation: OperationId, line: LineAddress) {
        let frameless = &mut self.coherence.frameless;
        if let Some(at) = frameless.iter().position(|(waiting, _)| *waiting == operation) {
            if let Some((_, Some(block))) = frameless.remove(at) {
                self.lines.abandon(block);
            }
            return self.finish(operation, Err(ErrorCode::TimedOut));
        }
        let here = self.here(line);
        self.step_own(CoherenceEvent::Cancel { operation, line, here });
    }

    /// Whether this node leaves or has left, and has handed over everything that it acknowledged.
    fn has_handed_over(&self) -> bool {
        self.is_drained() && !self.membership.is_refused() && self.failure.is_none()
    }

    /// Returns a frame for the line; `None` if the operation has failed or waits for one.
    fn frame_for(&mut self, line: LineAddress, operation: OperationId) -> Option<Frame> {
        if let Some(code) = self.refusal_at(line) {
            self.finish(operation, Err(code));
            return None;
        }
        if line.home() == self.me() {
            if line.offset() + line.line_size().bytes() as u64 > self.lines.home().len() as u64 {
                self.finish(operation, Err(ErrorCode::Unallocated));
                return None;
            }
            return Some(Frame(0));
        }
        if self.lines.frames(line.line_size()) == 0 {
            self.finish(operation, Err(ErrorCode::CacheFull));
            return None;
        }
        if let Some(frame) = self.lines.frame(line) {
            return Some(frame);
        }
        let mut clearing = self.coherence.clearing.take();
        loop {
            let lack = match self.lines.reserve(line) {
                Ok(frame) => {
                    self.coherence.clearing = clearing; // not needed any more
                    return Some(frame);
                }
                Err(lack) => lack,
            };
            clearing = clearing.filter(|block| self.continue_clearing(*block));
            clearing = clearing.or_else(|| self.clear_for(line, lack));
            if clearing.is_none_or(|block| self.lines.is_clearing(block)) {
                self.coherence.frameless.push_back((operation, clearing));
                return None;
            }
            clearing = None;
        }
    }

    /// Evicts a line that has returned to a block that is being cleared; false if the block is clear, or a
    /// pinned line in it might wait for the operation that needs the block.
    fn continue_clearing(&mut self, block: Block) -> bool {
        if !self.lines.is_clearing(block) {
            return false;
        }
        match self.lines.next_in(block, block.start) {
            Some((line, _)) if self.coherence.machine.is_pinned(line) => {
                self.lines.abandon(block);
                return false;
            }
            Some((line, _)) => self.evict(line),
            None => {}
        }
        true
    }

    /// Clears a block for a line: one with no line in use if possible, and with no pinned line, for which all blocks
    /// are searched: no event would cause another search. Dirty lines leave it when their homes have taken them back.
    fn clear_for(&mut self, line: LineAddress, lack: Lack) -> Option<Block> {
        let is_busy = |line| self.coherence.machine.is_busy(line);
        let is_pinned = |line| self.coherence.machine.is_pinned(line);
        let candidates = || self.lines.candidates(line, lack);
        let block =
            candidates().find(|block| !self.lines_in(*block).any(is_busy)).or_else(|| {
                let unpinned = |block: &Block| !self.lines_in(*block).any(is_pinned);
                (0..self.lines.samples(line, lack)).find_map(|_| candidates().find(unpinned))
            })?;
        self.lines.clear(block);
        let mut from = block.start;
        while let Some((line, end)) = self.lines.next_in(block, from) {
            self.evict(line);
            from = end;
        }
        Some(block)
    }

    fn lines_in(&self, block: Block) -> impl Iterator<Item = LineAddress> {
        let mut from = block.start;
        std::iter::from_fn(move || {
            let (line, end) = self.lines.next_in(block, from)?;
            from = end;
            Some(line)
        })
    }

    /// Evicts a line unless it is in use.
    fn evict(&mut self, line: LineAddress) {
        let here = self.here(line);
        let performed = self.coherence.performed;
        self.step_own(CoherenceEvent::Evict { line, here });
        self.coherence.evictions += u64::from(self.coherence.performed != performed);
    }

    /// Handles the arrival of a line's bytes at a peer.
    pub(super) fn placed(&mut self, line: LineAddress) {
        let here = self.here(line);
        self.step_own(CoherenceEvent::Placed { line, here });
        self.retry_frames();
    }

    /// Starts the operations that wait for a frame again.
    pub(super) fn start_frameless(&mut self) {
        for _ in 0..self.coherence.frameless.len() {
            if let Some((operation, block)) = self.coherence.frameless.pop_front() {
                self.coherence.clearing = block;
                self.start(operation);
                if let Some(block) = self.coherence.clearing.take() {
                    self.lines.abandon(block);
                }
            }
        }
    }

    /// Unpins a line.
    pub(crate) fn unpin(&mut self, line: LineAddress) {
        let here = self.here(line);
        self.step_own(CoherenceEvent::Unpin { line, here });
        self.retry_frames();
    }

    /// Evicts every cached line that is not in use.
    pub(crate) fn evict_all(&mut self) {
        let lines: Vec<LineAddress> = self.lines.cached().collect();
        for line in lines {
            let here = self.here(line);
            self.step_own(CoherenceEvent::Evict { line, here });
        }
        self.follow_up();
    }

    fn drop_home(&mut self, node: NodeId) {
        let lost: Vec<LineAddress> = self
            .lines
            .cached()
            .filter(|line| line.home() == node && self.here(*line).held.level != Level::Invalid)
            .collect();
        for line in lost {
            self.leaves_frame(line);
            self.lines.set_level(line, HeldLine::default(), None);
            self.watches.wake_line(line);
            self.lines.release(line);
        }
        self.follow_ups.push_back(FollowUp::HomeGone(node));
        self.retry_frames();
    }

    fn retry_frames(&mut self) {
        if !self.coherence.frameless.is_empty() && !self.follow_ups.contains(&FollowUp::RetryFrames)
        {
            self.follow_ups.push_back(FollowUp::RetryFrames);
        }
    }
}
