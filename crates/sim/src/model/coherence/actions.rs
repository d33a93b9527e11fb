//! The enabled steps of a state, and their effects.

use super::{
    Budget, CoherenceAction, CoherenceNode, CoherenceOperation, JUNK, Late, Lingers,
    MessageInFlight, Operation, System, Tag, UnlandedWrite, limits,
};
use farside_base::{LineAddress, NodeId, OperationId};
use farside_protocol::coherence::{
    Coherence, CoherenceEvent, CoherenceMessage, Frame, Level, PlacementTarget, Supply,
};
use farside_protocol::wire::Class;

impl System {
    pub(super) fn deliver(&mut self, from: u16, to: u16, class: Class) {
        let link = (from, to, class as u8);
        let Some(at) = self.flights.iter().position(|flight| flight.link() == link) else {
            return;
        };
        let flight = self.flights.remove(at);
        let line = Self::line(flight.message.line());
        if let Some((target, value)) = flight.bytes {
            self.land((from, to), line, target, value);
        }
        let here = self.here(to, line);
        self.tell(|| format!("n{from} > n{to}: {}", flight.message));
        let event = CoherenceEvent::Received { from: NodeId(from), message: flight.message, here };
        self.step(to, event);
    }

    pub(super) fn placed(&mut self, node: u16, line: u8) {
        let oldest = |place: &UnlandedWrite| place.from == node && place.line == line;
        let Some(at) = self.places.iter().position(oldest) else {
            return;
        };
        let place = self.places[at];
        // Bytes on one link land in order: if no earlier posted bytes have been delivered or have landed,
        // these are the ones that land now.
        let posted = self.places.iter().filter(|other| **other == place).count();
        let still_coming = |flight: &&mut MessageInFlight| {
            flight.from == node
                && flight.to == place.to
                && flight.bytes.is_some()
                && Self::line(flight.message.line()) == line
        };
        let coming = self.flights.iter_mut().filter(still_coming).count();
        if coming == posted
            && let Some(flight) = self.flights.iter_mut().find(still_coming)
            && let Some((target, value)) = flight.bytes.take()
        {
            self.land((node, place.to), line, target, value);
        }
        self.places.remove(at);
        self.tell(|| format!("n{node} placed line {line}"));
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::Placed { line: address, here });
    }

    pub(super) fn start(&mut self, node: u16, line: u8, kind: CoherenceOperation) {
        self.tell(|| format!("n{node} starts {kind:?} of line {line}"));
        let budget = &mut self.node_mut(node).budget;
        match kind {
            CoherenceOperation::Read => budget.reads -= 1,
            CoherenceOperation::Write => budget.writes -= 1,
            CoherenceOperation::Update => budget.updates -= 1,
            CoherenceOperation::Hold => budget.holds -= 1,
            CoherenceOperation::Overwrite => self.overwrites -= 1,
            CoherenceOperation::Retire => self.retires -= 1,
        }
        let writes = matches!(kind, CoherenceOperation::Write | CoherenceOperation::Overwrite);
        if writes && self.tag(node, line).held.level == Level::Dirty {
            return match self.writes_in_steps(node, line) {
                true => self.begin_write(line),
                false => self.write_next(node, line), // a hit
            };
        }
        let operation = self.issue(node, line, kind);
        let (here, address) = (self.here(node, line), self.address(line));
        if kind == CoherenceOperation::Retire {
            self.truth(line).retiring = true;
            self.begin_free(line);
            let event = CoherenceEvent::Retire { operation, line: address, here };
            return self.step(node, event);
        }
        if self.home(line) != node {
            self.tag_mut(node, line).reserved = true;
        }
        let event = CoherenceEvent::Issue {
            operation,
            line: address,
            want: kind.want(),
            pin: kind.pins(),
            frame: Frame(line.into()),
            here,
        };
        self.step(node, event);
    }

    pub(super) fn write_back(&mut self, node: u16, line: u8) {
        self.tell(|| format!("n{node} writes line {line} back"));
        self.write_backs -= 1;
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::WriteBack { operation: None, line: address, here });
    }

    pub(super) fn flush(&mut self, node: u16, line: u8) {
        self.tell(|| format!("n{node} has line {line} written back"));
        self.flushes -= 1;
        let id = self.next_id(node);
        let seen = self.node(node).wrote[usize::from(line)];
        let operation = Operation { id, line, kind: CoherenceOperation::Read, seen };
        self.node_mut(node).flushing.push(operation);
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::WriteBack { operation: Some(id), line: address, here });
    }

    fn next_id(&mut self, node: u16) -> OperationId {
        let state = self.node_mut(node);
        state.started += 1;
        OperationId(u64::from(node) * 100 + u64::from(state.started) - 1)
    }

    fn issue(&mut self, node: u16, line: u8, kind: CoherenceOperation) -> OperationId {
        let id = self.next_id(node);
        let state = self.node_mut(node);
        state.waiting.push(Operation { id, line, kind, seen: 0 });
        id
    }

    pub(super) fn finish(&mut self, node: u16, line: u8) {
        let pinned = &self.node(node).pinned;
        let Some(at) = pinned.iter().position(|operation| operation.line == line) else {
            return;
        };
        let operation = self.node_mut(node).pinned.remove(at);
        self.tell(|| format!("n{node} ends {:?} of line {line}", operation.kind));
        if operation.kind == CoherenceOperation::Update
            && self.tag(node, line).held.level == Level::Dirty
        {
            self.write_next(node, line);
        }
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::Unpin { line: address, here });
    }

    pub(super) fn cancel(&mut self, node: u16, line: u8) {
        let state = self.node(node);
        let mut waiting = state.waiting.iter().chain(&state.flushing);
        let meant =
            |next: &&Operation| next.line == line && next.kind != CoherenceOperation::Retire;
        let Some(Operation { id, kind, .. }) = waiting.find(meant).copied() else {
            return;
        };
        self.tell(|| format!("n{node} cancels {kind:?} of line {line}"));
        self.cancels -= 1;
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::Cancel { operation: id, line: address, here });
        let state = self.node(node);
        if state.waiting.iter().chain(&state.flushing).any(|next| next.id == id) {
            self.wrong("a cancelled operation waits");
        }
    }

    pub(super) fn evict(&mut self, node: u16, line: u8) {
        self.tell(|| format!("n{node} evicts line {line}"));
        self.node_mut(node).budget.evictions -= 1;
        let (here, address) = (self.here(node, line), self.address(line));
        self.step(node, CoherenceEvent::Evict { line: address, here });
    }

    pub(super) fn allocate(&mut self, line: u8) {
        if self.direct.is_on() {
            return self.begin_allocation(line);
        }
        self.allocations -= 1;
        self.allocate_again(line);
    }

    pub(super) fn allocate_again(&mut self, line: u8) {
        self.tell(|| format!("line {line} is allocated again"));
        let home = self.home(line);
        let alone = if self.setup.logs { Level::Shared } else { Level::Dirty };
        if self.tag(home, line).held.level != alone {
            self.wrong("a freed line is not its home's alone");
        }
        self.truth(line).allocated = true;
        self.write_next(home, line);
        if self.setup.logs {
            let truth = self.truth(line);
            truth.durable = truth.latest; // the record of the allocation
        }
    }

    pub(in crate::model) fn die(&mut self, node: u16) {
        self.tell(|| format!("n{node} dies"));
        self.deaths -= 1;
        self.end(node);
    }

    /// A node has ended: its messages in flight may still arrive, and nothing arrives at it.
    pub(super) fn end(&mut self, node: u16) {
        let logs = self.setup.logs;
        let state = self.node_mut(node);
        state.alive = false;
        state.machine = Coherence::new(NodeId(node), &limits());
        if logs {
            state.machine = state.machine.clone().with_log();
        }
        state.tags.fill(Tag::new(false));
        state.waiting.clear();
        state.pinned.clear();
        state.flushing.clear();
        state.wrote.fill(0);
        state.budget = Budget::default();
        self.places.retain(|place| place.from != node);
        self.flights.retain(|flight| flight.to != node);
        self.late.retain(|late| late.to != node);
        self.direct.reads.retain(|read| read.node != node);
    }

    pub(in crate::model) fn notice(&mut self, node: u16, dead: u16) {
        self.tell(|| format!("n{node} learns that n{dead} is dead"));
        self.node_mut(node).noticed |= 1 << dead;
        let ours = |flight: &MessageInFlight| flight.from == dead && flight.to == node;
        let mut late = None;
        while let Some(at) = self.flights.iter().position(ours) {
            let flight = self.flights.remove(at);
            let Some((target, _)) = flight.bytes else {
                continue;
            };
            let line = Self::line(flight.message.line());
            let lingers = self.setup.lingers != Lingers::Never;
            if lingers && late.is_none() {
                late = Some(Late { from: dead, to: node, line, target });
            } else if !lingers {
                self.land((dead, node), line, target, JUNK);
            }
        }
        if let Some(late) = late {
            self.late.push(late);
            if self.setup.lingers != Lingers::Untold {
                self.step(node, CoherenceEvent::Lingers { node: NodeId(dead) });
            }
        }
        self.take_back(node, dead);
        self.step(node, CoherenceEvent::NodeDead { node: NodeId(dead) });
    }

    /// What a dead owner has written and its home has not logged has not happened.
    fn take_back(&mut self, home: u16, dead: u16) {
        for line in 0..self.setup.homes.len() as u8 {
            let owner = self.node(home).machine.owner(self.address(line));
            let owned = owner.is_some_and(|(owner, _)| owner == NodeId(dead));
            if self.setup.logs && self.home(line) == home && owned {
                let truth = self.truth(line);
                truth.latest = truth.durable;
            }
        }
    }

    pub(super) fn quiet(&mut self, node: u16, dead: u16) {
        self.tell(|| format!("the last bytes of n{dead} land at n{node}"));
        let ours = |late: &Late| (late.from, late.to) == (dead, node);
        if let Some(at) = self.late.iter().position(ours) {
            let Late { line, target, .. } = self.late.remove(at);
            if self.truths[usize::from(line)].allocated || target != PlacementTarget::Home {
                self.land((dead, node), line, target, JUNK);
            } else {
                self.tag_mut(node, line).value = JUNK; // in quarantine
            }
        }
        self.step(node, CoherenceEvent::Quiet { node: NodeId(dead) });
    }

    pub(super) fn settle(&mut self, node: u16, dead: u16) {
        self.tell(|| format!("n{node} learns that the death of n{dead} is settled"));
        self.step(node, CoherenceEvent::Settled { node: NodeId(dead) });
    }

    /// Whether a dead node's number can be reused: all nodes have settled its death, after which no message of any
    /// class names it. [`burial`](crate::model::burial) checks that `Burials` guarantees this.
    fn is_free(&self, dead: u16) -> bool {
        let names = |message: &CoherenceMessage| match *message {
            CoherenceMessage::Recall { forward, .. } => {
                !self.setup.ignores_recalls && forward.is_some_and(|to| to.node.0 == dead)
            }
            CoherenceMessage::Grant { supply: Supply::Owner(owner), .. } => owner.0 == dead,
            CoherenceMessage::Refuse { supplier, .. } => {
                supplier.is_some_and(|from| from.0 == dead)
            }
            _ => false,
        };
        let knows = |(_, node): (u16, &CoherenceNode)| node.noticed >> dead & 1 == 1;
        let lingers =
            self.setup.lingers == Lingers::Told && self.late.iter().any(|late| late.from == dead);
        !self.node(dead).alive
            && !self.setup.homes.contains(&dead)
            && !lingers
            && self.alive().all(knows)
            && self.flights.iter().all(|flight| flight.from != dead && !names(&flight.message))
    }

    pub(super) fn reuse(&mut self, node: u16) {
        self.tell(|| format!("another node is n{node}"));
        self.reuses -= 1;
        let dead = (0..).zip(&self.nodes).filter(|(_, node)| !node.alive);
        let dead = dead.fold(0, |bits, (number, _)| bits | 1 << number);
        let budget = self.setup.budgets[usize::from(node)];
        let state = self.node_mut(node);
        (state.alive, state.noticed, state.budget) = (true, dead & !(1 << node), budget);
        let others: Vec<u16> = self.alive().map(|(number, _)| number).collect();
        for other in others.into_iter().filter(|other| *other != node) {
            self.node_mut(other).noticed &= !(1 << node);
            self.step(other, CoherenceEvent::NodeAdmitted { node: NodeId(node) });
        }
    }

    pub(in crate::model) fn enabled_internal(&self, actions: &mut Vec<CoherenceAction>) {
        let mut last = None;
        for flight in &self.flights {
            if last != Some(flight.link()) {
                last = Some(flight.link());
                actions.push(CoherenceAction::Deliver(
                    flight.from,
                    flight.to,
                    flight.message.class(),
                ));
            }
        }
        for line in 0..self.setup.homes.len() as u8 {
            let logging = self.truths[usize::from(line)].logging.is_some();
            if logging && self.node(self.home(line)).alive {
                actions.push(CoherenceAction::Logged(line));
            }
        }
        for place in &self.places {
            let action = CoherenceAction::Placed(place.from, place.line);
            if !actions.contains(&action) {
                actions.push(action);
            }
        }
        actions.extend(self.late.iter().map(|late| CoherenceAction::Quiet(late.to, late.from)));
        for (number, node) in self.alive() {
            let lines = node.pinned.iter().map(|operation| operation.line);
            let mut lines: Vec<u8> = lines.collect();
            lines.sort_unstable();
            lines.dedup();
            actions.extend(lines.into_iter().map(|line| CoherenceAction::Finish(number, line)));
            self.enabled_by_death(number, node, actions);
        }
        self.enabled_direct_steps(actions);
    }

    fn enabled_by_death(
        &self,
        number: u16,
        node: &CoherenceNode,
        actions: &mut Vec<CoherenceAction>,
    ) {
        for (dead, other) in (0..).zip(&self.nodes) {
            if other.alive {
                continue;
            }
            if node.noticed >> dead & 1 == 0 {
                actions.push(CoherenceAction::Notice(number, dead));
                continue;
            }
            let all_know = self.alive().all(|(_, node)| node.noticed >> dead & 1 == 1);
            let of_dead = |line: LineAddress| line.home().0 == dead;
            let coming =
                |flight: &MessageInFlight| flight.to == number && of_dead(flight.message.line());
            let kept = (0..self.setup.homes.len() as u8).any(|line| {
                self.home(line) == dead
                    && self.tag(number, line).reserved
                    && !self.is_leaving(number, line)
                    && !node.pinned.iter().any(|operation| operation.line == line)
            });
            let lingers = self.setup.lingers == Lingers::Told
                && self.late.iter().any(|late| late.to == number);
            if all_know && kept && !lingers && !self.flights.iter().any(coming) {
                actions.push(CoherenceAction::Settle(number, dead));
            }
        }
    }

    pub(in crate::model) fn enabled_external(&self, actions: &mut Vec<CoherenceAction>) {
        for (number, node) in self.alive() {
            for line in 0..self.setup.homes.len() as u8 {
                self.enabled_operations(number, node, line, actions);
            }
        }
        for line in 0..self.setup.homes.len() as u8 {
            let truth = self.truths[usize::from(line)];
            let alive = self.node(self.home(line)).alive;
            if alive && truth.allocated && !truth.retiring && self.retires > 0 {
                actions.push(CoherenceAction::Retire(line));
            }
            // The runtime keeps the memory in quarantine.
            let home = self.home(line);
            let held_back = self.late.iter().any(|late| (late.to, late.line) == (home, line));
            let free = !truth.allocated && self.is_reusable(line);
            if alive && free && self.allocations > 0 && !held_back {
                actions.push(CoherenceAction::Allocate(line));
            }
        }
        for node in &self.setup.mortal {
            if self.node(*node).alive && self.deaths > 0 {
                actions.push(CoherenceAction::Die(*node));
            }
            if self.reuses > 0 && self.is_free(*node) {
                actions.push(CoherenceAction::Reuse(*node));
            }
        }
        self.enabled_direct(actions);
    }

    fn enabled_operations(
        &self,
        number: u16,
        node: &CoherenceNode,
        line: u8,
        actions: &mut Vec<CoherenceAction>,
    ) {
        let level = self.tag(number, line).held.level;
        let budget = node.budget;
        let mut start = |kind: CoherenceOperation, possible: bool| {
            if possible {
                actions.push(CoherenceAction::Start(number, line, kind));
            }
        };
        start(CoherenceOperation::Read, budget.reads > 0 && level == Level::Invalid);
        start(CoherenceOperation::Write, budget.writes > 0);
        start(CoherenceOperation::Overwrite, self.overwrites > 0);
        start(CoherenceOperation::Update, budget.updates > 0);
        start(CoherenceOperation::Hold, budget.holds > 0);
        let waits = |next: &Operation| next.line == line && next.kind != CoherenceOperation::Retire;
        if self.cancels > 0 && node.waiting.iter().chain(&node.flushing).any(waits) {
            actions.push(CoherenceAction::Cancel(number, line));
        }
        if budget.evictions > 0 && level > Level::Invalid && self.home(line) != number {
            actions.push(CoherenceAction::Evict(number, line));
        }
        if self.home(line) == number {
            return;
        }
        if self.write_backs > 0 && level == Level::Dirty {
            actions.push(CoherenceAction::WriteBack(number, line));
        }
        if self.flushes > 0 && self.tag(number, line).reserved {
            actions.push(CoherenceAction::Flush(number, line));
        }
    }
}
