//! The runtime's part of the contract with the machine: effects in order, tags, frames, bytes.

use super::{CoherenceOperation, MessageInFlight, Operation, System, Tag, UnlandedWrite};
use farside_base::{ErrorCode, OperationId};
use farside_protocol::coherence::{
    CoherenceEffect, CoherenceEvent, CoherenceMessage, Effects, HeldLine, Level, PlacementTarget,
};

impl System {
    /// Passes an event to a machine and performs its effects.
    pub(super) fn step(&mut self, node: u16, event: CoherenceEvent) {
        let mut effects = Effects::new();
        let machine = &mut self.node_mut(node).machine;
        let step = machine.step(event, &mut effects);
        let invariants = machine.invariants();
        if let Err(violation) = step {
            return self.wrong(format!("n{node} finds a violation: {}", violation.0));
        }
        if let Err(text) = invariants {
            self.wrong(format!("an invariant of n{node}: {text}"));
        }
        for effect in effects {
            self.tell(|| format!("    n{node} {effect}"));
            self.carry_out(node, effect);
        }
    }

    fn carry_out(&mut self, node: u16, effect: CoherenceEffect) {
        match effect {
            CoherenceEffect::Send { to, message } => self.send(node, to.0, message, None),
            CoherenceEffect::Place { line, to, target, message } => {
                self.place(node, Self::line(line), to.0, target, message)
            }
            CoherenceEffect::SetLevel { line, held, .. } => {
                self.set_level(node, Self::line(line), held)
            }
            CoherenceEffect::Release { line } => self.release(node, Self::line(line)),
            CoherenceEffect::Fill { operation, line } => {
                self.fill(node, operation, Self::line(line))
            }
            CoherenceEffect::Ready { operation, line } => {
                self.ready(node, operation, Self::line(line))
            }
            CoherenceEffect::Fail { operation, code, .. } => self.fail(node, operation, code),
            CoherenceEffect::Log { line } => self.log_line(node, Self::line(line)),
            CoherenceEffect::Restore { line } => self.restore(node, Self::line(line)),
            CoherenceEffect::DropHome { node: home } => self.drop_home(node, home.0),
        }
    }

    fn send(
        &mut self,
        from: u16,
        to: u16,
        message: CoherenceMessage,
        bytes: Option<(PlacementTarget, u8)>,
    ) {
        if CoherenceMessage::decode(&message.encode()) != Ok(message) {
            self.wrong("a message changes on the wire");
        }
        if !self.node(to).alive || self.is_removed_by(to, from) {
            return;
        }
        let flight = MessageInFlight { from, to, message, bytes };
        let at = self.flights.partition_point(|other| other.link() <= flight.link());
        self.flights.insert(at, flight);
    }

    fn place(
        &mut self,
        from: u16,
        line: u8,
        to: u16,
        target: PlacementTarget,
        message: CoherenceMessage,
    ) {
        let tag = *self.tag(from, line);
        if tag.held.level == Level::Dirty {
            self.wrong("bytes leave while they may still be written here");
        }
        if self.setup.logs && self.home(line) == from && tag.value != self.truth(line).durable {
            self.wrong("bytes leave their home before they are durable");
        }
        if self.home(line) != from && !tag.reserved {
            self.wrong("bytes leave a frame that is not the line's");
        }
        let place = UnlandedWrite { from, line, to };
        let at = self.places.partition_point(|other| other.from <= from);
        self.places.insert(at, place);
        self.send(from, to, message, Some((target, tag.value)));
    }

    /// The bytes of a placement arrive in memory, before its message.
    pub(super) fn land(
        &mut self,
        (from, to): (u16, u16),
        line: u8,
        target: PlacementTarget,
        value: u8,
    ) {
        let tag = *self.tag(to, line);
        let fits = match target {
            PlacementTarget::Frame(frame) => u32::from(line) == frame.0 && tag.reserved,
            PlacementTarget::Home => self.home(line) == to,
        };
        if !fits {
            self.wrong("bytes land in a frame that is not the line's");
        }
        if tag.held.level != Level::Invalid {
            self.wrong("bytes land where they may be read");
        }
        // An owner may return bytes before its home learns that they had landed there.
        let leaves = |place: &UnlandedWrite| (place.from, place.line) == (to, line);
        let all_there =
            self.places.iter().filter(|place| leaves(place)).all(|place| place.to == from);
        match target {
            PlacementTarget::Home if all_there => self.store(to, line, value),
            PlacementTarget::Home | PlacementTarget::Frame(_) => self.write(to, line, value),
        }
    }

    /// Writes a new version.
    fn write(&mut self, node: u16, line: u8, value: u8) {
        if self.is_leaving(node, line) {
            self.wrong("bytes change while they are on their way");
        }
        self.store(node, line, value);
    }

    fn store(&mut self, node: u16, line: u8, value: u8) {
        if self.home(line) == node && self.truth(line).logging.is_some() {
            self.wrong("bytes change while they are logged");
        }
        self.tag_mut(node, line).value = value;
        self.bytes_change(node, line, value);
    }

    /// Whether the node has not learned yet that its bytes have landed.
    pub(super) fn is_leaving(&self, node: u16, line: u8) -> bool {
        self.places.iter().any(|place| place.from == node && place.line == line)
    }

    pub(super) fn is_coming(&self, node: u16, line: u8) -> bool {
        self.flights.iter().any(|flight| {
            flight.to == node && flight.bytes.is_some() && Self::line(flight.message.line()) == line
        })
    }

    fn set_level(&mut self, node: u16, line: u8, held: HeldLine) {
        let Tag { reserved, value, held: before } = *self.tag(node, line);
        let truth = *self.truth(line);
        let overwrites =
            |next: &&Operation| next.line == line && next.kind == CoherenceOperation::Overwrite;
        let rises = before.level == Level::Invalid && held.level > Level::Invalid;
        if rises
            && value != truth.latest
            && !truth.retiring
            && self.node(node).waiting.iter().any(|next| overwrites(&next))
        {
            self.wrong(format!("version {value} may be read before a line is overwritten"));
        }
        if held.level > Level::Invalid && self.home(line) != node && !reserved {
            self.wrong("a line without a frame may be read");
        }
        if held.level == Level::Dirty && self.is_leaving(node, line) {
            self.wrong("bytes may be written while they are on their way");
        }
        let canonical = if held.level == Level::Invalid { HeldLine::default() } else { held };
        self.tag_mut(node, line).held = canonical;
        self.level_changes(node, line, canonical.level);
    }

    fn log_line(&mut self, node: u16, line: u8) {
        let tag = *self.tag(node, line);
        if tag.held.level > Level::Invalid || self.home(line) != node || !self.setup.logs {
            self.wrong("a line is logged that may be written");
        }
        if self.truth(line).logging.replace(tag.value).is_some() {
            self.wrong("a line is logged twice at a time");
        }
    }

    /// The record of a line is durable.
    pub(super) fn logged(&mut self, line: u8) {
        self.tell(|| format!("line {line} is durable"));
        let truth = self.truth(line);
        if let Some(value) = truth.logging.take() {
            truth.durable = value;
        }
        let (home, address) = (self.home(line), self.address(line));
        self.step(home, CoherenceEvent::Logged { line: address });
    }

    fn restore(&mut self, node: u16, line: u8) {
        let tag = *self.tag(node, line);
        if tag.held.level > Level::Invalid || self.home(line) != node || !self.setup.logs {
            self.wrong("a line is restored that may be read");
        }
        if self.late.iter().any(|late| (late.to, late.line) == (node, line)) {
            self.wrong("a line is restored while bytes may land in it");
        }
        let leaves = |place: &UnlandedWrite| (place.from, place.line) == (node, line);
        if self.places.iter().any(|place| leaves(place) && self.node(place.to).alive) {
            self.wrong("a line is restored while its bytes are on their way");
        }
        let durable = self.truth(line).durable;
        self.store(node, line, durable);
    }

    fn release(&mut self, node: u16, line: u8) {
        let tag = *self.tag(node, line);
        if !tag.reserved || tag.held.level != Level::Invalid {
            self.wrong("a frame is freed that is not in use, or in use");
        }
        if self.is_leaving(node, line) || self.is_coming(node, line) {
            self.wrong("a frame is freed while bytes are on their way from or to it");
        }
        *self.tag_mut(node, line) = Tag::new(false);
    }

    fn drop_home(&mut self, node: u16, home: u16) {
        for line in 0..self.setup.homes.len() as u8 {
            if self.home(line) == home && self.tag(node, line).held.level > Level::Invalid {
                self.tag_mut(node, line).held = HeldLine::default();
                self.direct.word_changes(node, line);
                self.release(node, line);
            }
        }
    }

    fn fill(&mut self, node: u16, id: OperationId, line: u8) {
        let meant = |next: &&Operation| next.id == id && next.line == line;
        let operation = self.node(node).waiting.iter().find(meant);
        if operation.is_none_or(|operation| operation.kind != CoherenceOperation::Overwrite) {
            return self.wrong("a lost line is filled by a part of it");
        }
        let tag = *self.tag(node, line);
        if tag.held.level != Level::Invalid || self.is_coming(node, line) {
            self.wrong("a lost line is filled while it may be read, or its bytes are coming");
        }
        if self.home(line) != node && !tag.reserved {
            self.wrong("a lost line is filled in a frame that is not its own");
        }
        self.write_next(node, line);
    }

    /// Handles the answer to a write-back.
    fn flushed(&mut self, node: u16, at: usize) {
        let Operation { line, seen, .. } = self.node_mut(node).flushing.remove(at);
        let home = self.home(line);
        let truth = *self.truth(line);
        if self.setup.logs && truth.allocated && truth.durable < seen {
            self.wrong("a line passes for written back that is not durable");
        }
        if self.node(home).alive && self.tag(home, line).value < seen {
            self.wrong("a line passes for written back and its home lacks a write");
        }
    }

    fn ready(&mut self, node: u16, id: OperationId, line: u8) {
        if let Some(at) = self.node(node).flushing.iter().position(|other| other.id == id) {
            return self.flushed(node, at);
        }
        let oldest = self.node(node).waiting.iter().position(|other| other.line == line);
        let Some(at) = oldest.filter(|at| self.node(node).waiting[*at].id == id) else {
            return self.wrong("an operation is ready that is not the oldest on its line");
        };
        let mut operation = self.node_mut(node).waiting.remove(at);
        let tag = *self.tag(node, line);
        if tag.held.level < operation.kind.want().level()
            && operation.kind != CoherenceOperation::Retire
        {
            return self.wrong("an operation is ready before its line is");
        }
        match operation.kind {
            CoherenceOperation::Read
                if tag.value != self.truth(line).latest && !self.is_fenced(node) =>
            {
                self.wrong("a read is old")
            }
            CoherenceOperation::Read => {}
            CoherenceOperation::Write | CoherenceOperation::Overwrite => {
                self.write_next(node, line)
            }
            CoherenceOperation::Update | CoherenceOperation::Hold => {
                operation.seen = tag.value;
                self.node_mut(node).pinned.push(operation);
            }
            CoherenceOperation::Retire => self.retired(line),
        }
    }

    /// Writes the next version, unless the node finds its fence word set.
    pub(super) fn write_next(&mut self, node: u16, line: u8) {
        if !self.is_fenced(node) {
            self.write_version(node, line);
        }
    }

    pub(super) fn write_version(&mut self, node: u16, line: u8) {
        self.direct.word_changes(node, line);
        let truth = self.truth(line);
        truth.highest += 1;
        truth.latest = truth.highest;
        let latest = truth.latest;
        self.write(node, line, latest);
        if self.setup.flushes > 0 {
            self.node_mut(node).wrote[usize::from(line)] = latest;
        }
        // Pins exclude other nodes; operations of one node exclude each other by other means.
        for pinned in &mut self.node_mut(node).pinned {
            if pinned.line == line {
                pinned.seen = latest;
            }
        }
    }

    fn retired(&mut self, line: u8) {
        let home = self.home(line);
        let others = self.holders(line).any(|(number, node)| {
            number != home && node.tags[usize::from(line)].held.level > Level::Invalid
        });
        if others || self.is_leaving(home, line) || self.is_coming(home, line) {
            self.wrong("a line is freed while a copy exists");
        }
        let truth = self.truth(line);
        truth.allocated = false;
        truth.retiring = false;
        self.line_retired(line);
    }

    fn fail(&mut self, node: u16, id: OperationId, code: ErrorCode) {
        let state = self.node_mut(node);
        let place = |waiting: &[Operation]| waiting.iter().position(|other| other.id == id);
        let operation = match (place(&state.waiting), place(&state.flushing)) {
            (Some(at), _) => state.waiting.remove(at),
            (None, Some(at)) => state.flushing.remove(at),
            (None, None) => return self.wrong("an operation fails that does not wait"),
        };
        let left = self.left >> self.home(operation.line) & 1 == 1;
        let freed = self.retires < self.setup.retires;
        let died = self.deaths < self.setup.deaths || self.direct.fenced;
        let reason = match code {
            ErrorCode::Unallocated => freed,
            ErrorCode::LineLost => died && !self.setup.logs,
            ErrorCode::NodeLost => died || left,
            ErrorCode::TimedOut => self.cancels < self.setup.cancels,
            _ => false,
        };
        if !reason {
            self.wrong(format!("an operation fails for no reason: {code:?}"));
        }
    }
}
