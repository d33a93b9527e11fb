//! The second half of [`turn`](crate::turn): passes events to the protocol machines and carries out their
//! effects, in order, before the next step. Follow-ups of effects run after the step, so that machines are
//! never re-entered.

use crate::engine::{Engine, FollowUp, LineWrite};
use crate::operation::{OperationKind, is_home};
use farside_base::{ErrorCode, LineAddress, LineSize, NodeId, OperationId};
use farside_protocol::coherence::{
    CoherenceEffect, CoherenceEvent, CoherenceMessage, Frame, Here, Level, PlacementTarget,
};
use farside_protocol::wire::{BODY, Class, Family, Violation};

impl Engine {
    /// Passes a message to its machine.
    pub(crate) fn dispatch(
        &mut self,
        from: NodeId,
        _class: Class,
        family: Family,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        match family {
            Family::Coherence => {
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
            Family::Lock => self.lock_message(from, body),
            Family::Member => self.member_message(from, body),
            Family::Allocate => self.allocate_message(from, body),
            Family::Credit => Ok(()),
        }
    }

    /// Refuses a peer's message about a line of another generation of this node's number: a correct peer
    /// knows which memory this node lends before it is linked.
    pub(crate) fn check_generation(&self, line: LineAddress) -> Result<(), Violation> {
        match line.home() == self.me() && Some(line.memory()) != self.lines.memory() {
            true => Err(Violation("a line of memory that is gone")),
            false => Ok(()),
        }
    }

    /// Why the memory of a line cannot be accessed, if so: it is gone, or was never lent.
    pub(crate) fn refusal_at(&self, line: LineAddress) -> Option<ErrorCode> {
        let memory = line.memory();
        if Some(memory) == self.lines.memory() || self.peers.lends(memory) {
            return None;
        }
        let (node, generation) = (memory.node(), memory.generation());
        Some(if self.peers.has_left(memory) {
            ErrorCode::NodeLeft
        } else if generation < self.membership.next_generation(node) {
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

    /// Steps the coherence machine and carries out all its effects.
    pub(crate) fn step(&mut self, event: CoherenceEvent) -> Result<(), Violation> {
        let mut effects = std::mem::take(&mut self.effects);
        let step = self.coherence.step(event, &mut effects);
        for effect in effects.drain(..) {
            self.route(effect);
        }
        self.effects = effects;
        step
    }

    /// Steps the machine with an event of this node, which it cannot refuse.
    pub(crate) fn step_own(&mut self, event: CoherenceEvent) {
        if let Err(violation) = self.step(event) {
            self.failure = Some(violation.0);
        }
    }

    fn route(&mut self, effect: CoherenceEffect) {
        self.routed += 1;
        match effect {
            CoherenceEffect::Send { to, message } => self.send(to, &message),
            CoherenceEffect::Place { line, to, target, message } => {
                self.place(line, to, target, &message)
            }
            CoherenceEffect::SetLevel { line, held, extent } => {
                if held.level == Level::Invalid && line.home() != self.me() {
                    self.counters.invalidations += 1;
                }
                self.lines.set_level(line, held, extent);
                self.watches.wake_line(line);
                if held.level == Level::Dirty && line.home() != self.me() {
                    self.owned(line);
                }
            }
            CoherenceEffect::Fill { operation, line } => self.fill(operation, line),
            CoherenceEffect::Release { line } => {
                self.leaves_frame(line);
                self.lines.release(line);
                self.retry_frames();
            }
            CoherenceEffect::Ready { operation, line } => {
                if is_home(operation) {
                    self.lines.set_own(line, Level::Invalid, None);
                    self.homes.retired(operation);
                } else {
                    self.perform(operation, line);
                    self.retry_frames(); // a line without a transition in progress can be evicted
                }
            }
            CoherenceEffect::Fail { operation, code, .. } => self.finish(operation, Err(code)),
            CoherenceEffect::DropHome { node } => self.drop_home(node),
        }
    }

    fn send(&mut self, to: NodeId, message: &CoherenceMessage) {
        self.peers.push(to, message.class(), Family::Coherence, &message.encode());
    }

    fn place(
        &mut self,
        line: LineAddress,
        to: NodeId,
        target: PlacementTarget,
        message: &CoherenceMessage,
    ) {
        let (Some(spot), true) = (self.lines.spot(line), self.peers.get(to).is_some()) else {
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
        let placement = LineWrite {
            line,
            from_cache,
            offset,
            bytes: line.line_size().bytes() as u32,
            to_cache,
            to_offset,
        };
        self.placements.add(to, placement, self.peers.is_linked(to));
        self.send(to, message);
    }

    /// Starts an operation and carries out its follow-ups.
    pub(crate) fn issue(&mut self, operation: OperationId) {
        if self.leaving.is_some() {
            let confirms =
                self.request(operation).is_some_and(|(kind, _)| kind == OperationKind::Confirm);
            match confirms {
                true if self.has_handed_over() => return self.finish(operation, Ok(())),
                true => {} // held back, or refused, as without a leave
                false => return self.finish(operation, Err(ErrorCode::NodeClosed)),
            }
        }
        self.start(operation);
        self.follow_up();
    }

    /// Passes an operation to its machine, with a frame if its line needs one.
    fn start(&mut self, operation: OperationId) {
        let Some((kind, address, want)) = self.slot(operation).map(|slot| {
            let request = slot.request();
            (request.kind, request.address, request.want())
        }) else {
            return;
        };
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
        let Some(frame) = self.frame_for(line, operation) else {
            return;
        };
        let pin = matches!(kind, OperationKind::Pin(_));
        let here = self.here(line);
        self.step_own(CoherenceEvent::Issue { operation, line, want, pin, frame, here });
    }

    /// Cancels an operation on a line, abandoned by its caller, unless it is held back.
    pub(crate) fn cancel(&mut self, operation: OperationId, line: LineAddress) {
        let waiting = self.frameless.len();
        self.frameless.retain(|other| *other != operation);
        if self.frameless.len() < waiting {
            return self.finish(operation, Err(ErrorCode::TimedOut));
        }
        let here = self.here(line);
        self.step_own(CoherenceEvent::Cancel { operation, line, here });
    }

    /// The error of every operation that would start now, if any.
    pub(crate) fn refusal(&self) -> Option<ErrorCode> {
        let removed = || self.lines.is_removed().then_some(ErrorCode::NodeClosed);
        self.closed_with.or_else(removed).or(self.failure.map(|_| ErrorCode::NodeFailed))
    }

    /// Whether this node leaves or has left, and has handed over everything that it acknowledged.
    fn has_handed_over(&self) -> bool {
        self.is_drained() && self.boot.refused.is_none() && self.failure.is_none()
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
        if !self.lines.caches(line.line_size()) {
            self.finish(operation, Err(ErrorCode::CacheFull));
            return None;
        }
        if let Some(frame) = self.lines.frame(line).or_else(|| self.lines.reserve(line)) {
            return Some(frame);
        }
        for victim in self.lines.victims(line) {
            let here = self.here(victim);
            let routed = self.routed;
            self.step_own(CoherenceEvent::Evict { line: victim, here });
            if self.routed == routed {
                continue; // in use; try the next oldest
            }
            self.counters.evictions += 1;
            if let Some(frame) = self.lines.reserve(line) {
                return Some(frame);
            }
            break; // dirty: its frame becomes free when its home has taken the line back
        }
        self.frameless.push_back(operation);
        None
    }

    /// Carries out the follow-ups of earlier effects.
    #[inline]
    pub(crate) fn follow_up(&mut self) {
        if !self.follow_ups.is_empty() {
            self.follow_all();
        }
    }

    fn follow_all(&mut self) {
        while let Some(follow_up) = self.follow_ups.pop_front() {
            match follow_up {
                FollowUp::Placed(line) => {
                    let here = self.here(line);
                    self.step_own(CoherenceEvent::Placed { line, here });
                    self.retry_frames();
                }
                FollowUp::Unpin(line) => self.unpin(line),
                FollowUp::RetryFrames => {
                    for _ in 0..self.frameless.len() {
                        if let Some(operation) = self.frameless.pop_front() {
                            self.start(operation);
                        }
                    }
                }
                FollowUp::Start(operation) => self.start(operation),
                FollowUp::Drop(node) => self.drop_peer(node),
                FollowUp::Accuse(node) => self.accuse_peer(node),
                FollowUp::Judge => self.member_own(farside_protocol::member::MemberEvent::Judge),
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
            .filter(|line| line.home() == node && self.held(*line).level != Level::Invalid)
            .collect();
        for line in lost {
            self.leaves_frame(line);
            self.lines.set_level(line, farside_protocol::coherence::HeldLine::default(), None);
            self.watches.wake_line(line);
            self.lines.release(line);
        }
        self.retry_frames();
    }

    fn retry_frames(&mut self) {
        if !self.frameless.is_empty() && !self.follow_ups.contains(&FollowUp::RetryFrames) {
            self.follow_ups.push_back(FollowUp::RetryFrames);
        }
    }
}
