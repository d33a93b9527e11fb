//! Lines in their homes' memory: their tag words and bytes, and writes, landings, frees and allocations in steps.

use super::canary::mutant;
use super::{DirectReadAction, HomeLine, LineUse, Reuse};
use crate::model::coherence::{CoherenceAction, MessageInFlight, System};
use farside_base::Planted;
use farside_protocol::coherence::{CoherenceMessage, Level, PlacementTarget};

/// Steps of a change of all lines by their home: each is claimed, then each is written, then each is released.
const CLAIM: u8 = 0;
const WRITE: u8 = 1;
const RELEASE: u8 = 2;

impl System {
    /// Adds the possible steps of programs, and of a removal.
    pub(in crate::model::coherence) fn enabled_direct(&self, actions: &mut Vec<CoherenceAction>) {
        self.enabled_reads(actions);
        self.enabled_removal(actions);
        if self.direct.atomic_writes > 0 && self.direct.atomic_steps == 0 && self.can_claim(0) {
            actions.push(CoherenceAction::Direct(DirectReadAction::WriteAll));
        }
    }

    /// Adds the steps that follow from what has begun.
    pub(in crate::model::coherence) fn enabled_direct_steps(
        &self,
        actions: &mut Vec<CoherenceAction>,
    ) {
        self.enabled_read_steps(actions);
        self.enabled_removal_steps(actions);
        if self.direct.atomic_steps > 0 {
            actions.push(CoherenceAction::Direct(DirectReadAction::WriteAll));
        }
        for (line, state) in (0..).zip(&self.direct.lines) {
            if !self.node(self.home(line)).alive {
                continue;
            }
            let mut add = |action| actions.push(CoherenceAction::Direct(action));
            if state.word.busy && self.direct.atomic_steps == 0 {
                add(DirectReadAction::EndWrite(line));
            }
            match state.line_use {
                LineUse::Retired => add(DirectReadAction::ClearTag(line)),
                LineUse::Prepared => add(DirectReadAction::EndAllocation(line)),
                LineUse::Allocated | LineUse::Free | LineUse::AnotherSize => {}
            }
            if state.falls_to.is_some() && !self.flights.iter().any(|flight| grants(flight, line)) {
                add(DirectReadAction::Fall(line));
            }
            for (half, value) in (0..).zip(state.halves) {
                if self.landing(line).is_some_and(|landing| landing != value) {
                    add(DirectReadAction::Land(line, half));
                }
            }
        }
    }

    pub(in crate::model::coherence) fn apply_direct(&mut self, action: DirectReadAction) {
        match action {
            DirectReadAction::Begin(node, line) => self.begin_read(node, line),
            DirectReadAction::Continue(node) => self.continue_read(node),
            DirectReadAction::Land(line, half) => self.land_half(line, half),
            DirectReadAction::EndWrite(line) => self.end_write(line),
            DirectReadAction::WriteAll => self.write_all(),
            DirectReadAction::ClearTag(line) => self.clear_tag(line),
            DirectReadAction::EndAllocation(line) => self.end_allocation(line),
            DirectReadAction::Fall(line) => self.fall(line),
            DirectReadAction::SetFence => self.set_fence(),
            DirectReadAction::Reclaim(by) => self.reclaim(by),
            DirectReadAction::TakeOver => self.take_over(),
        }
    }

    /// Drops steps that have to wait. The engine of a home waits for writes in progress in its memory and, in the
    /// same step, clears the tag word of a line that it has retired. A change of all lines pins them in order, and
    /// holds them until all are written.
    pub(in crate::model::coherence) fn drop_waiting(&self, actions: &mut Vec<CoherenceAction>) {
        if !self.direct.is_on() {
            return;
        }
        actions.retain(|action| {
            let engine = self.engine(*action);
            let lines = (0..).zip(&self.direct.lines);
            let mut own = lines.filter(|(line, _)| engine == Some(self.home(*line)));
            let waits = |line: &HomeLine| line.word.busy || line.line_use == LineUse::Retired;
            !own.any(|(_, line)| waits(line)) && !self.breaks_order(*action)
        });
    }

    /// The node whose engine takes a step, or whose memory a program writes.
    fn engine(&self, action: CoherenceAction) -> Option<u16> {
        match action {
            CoherenceAction::Deliver(_, node, _)
            | CoherenceAction::Placed(node, _)
            | CoherenceAction::Start(node, ..)
            | CoherenceAction::Finish(node, _)
            | CoherenceAction::Cancel(node, _)
            | CoherenceAction::Evict(node, _)
            | CoherenceAction::WriteBack(node, _)
            | CoherenceAction::Flush(node, _)
            | CoherenceAction::Notice(node, _)
            | CoherenceAction::Settle(node, _)
            | CoherenceAction::Quiet(node, _)
            | CoherenceAction::Direct(DirectReadAction::Reclaim(node)) => Some(node),
            CoherenceAction::Retire(line)
            | CoherenceAction::Logged(line)
            | CoherenceAction::Allocate(line)
            | CoherenceAction::Direct(DirectReadAction::EndAllocation(line)) => {
                Some(self.home(line))
            }
            CoherenceAction::Die(_) | CoherenceAction::Reuse(_) | CoherenceAction::Direct(_) => {
                None
            }
        }
    }

    /// Whether a step of a change of all lines by a node that is not their home comes too early.
    fn breaks_order(&self, action: CoherenceAction) -> bool {
        use crate::model::coherence::CoherenceOperation::Update;
        if !self.setup.direct.snapshots {
            return false;
        }
        let pins = |node: u16, line: u8| {
            self.node(node).pinned.iter().any(|operation| operation.line == line)
        };
        match action {
            CoherenceAction::Start(node, 0, Update) => {
                pins(node, 1) || !self.node(node).waiting.is_empty()
            }
            CoherenceAction::Start(node, _, Update) => !pins(node, 0),
            CoherenceAction::Finish(node, 0) => !pins(node, 1),
            CoherenceAction::Finish(node, _) => pins(node, 0),
            _ => false,
        }
    }

    fn direct_line(&mut self, line: u8) -> &mut HomeLine {
        &mut self.direct.lines[usize::from(line)]
    }

    /// Whether a write is one by a session of the home, which takes steps.
    pub(in crate::model::coherence) fn writes_in_steps(&self, node: u16, line: u8) -> bool {
        self.direct.is_on() && self.home(line) == node
    }

    /// A session of the home has taken the busy bit and written the first half.
    pub(in crate::model::coherence) fn begin_write(&mut self, line: u8) {
        if self.is_fenced(self.home(line)) {
            return;
        }
        let version = self.truth(line).latest + 1;
        let state = self.direct_line(line);
        state.word.busy = true;
        state.halves[0] = version;
        self.direct.word_changes(self.home(line), line);
    }

    fn end_write(&mut self, line: u8) {
        self.tell(|| format!("a session ends its write of line {line}"));
        self.direct_line(line).word.busy = false;
        self.write_version(self.home(line), line);
    }

    fn can_claim(&self, line: u8) -> bool {
        let word = self.direct.lines[usize::from(line)].word;
        let home = self.home(line);
        !word.busy && word.level == Level::Dirty && !self.is_fenced(home) && self.node(home).alive
    }

    fn write_all(&mut self) {
        let lines = self.direct.lines.len() as u8;
        let (stage, line) = (self.direct.atomic_steps / lines, self.direct.atomic_steps % lines);
        let home = self.home(line);
        self.tell(|| format!("a session changes all lines: step {stage} of line {line}"));
        self.direct.atomic_writes -= u8::from(self.direct.atomic_steps == 0);
        self.direct.atomic_steps = (self.direct.atomic_steps + 1) % ((RELEASE + 1) * lines);
        match stage {
            CLAIM if self.can_claim(line) => self.direct_line(line).word.busy = true,
            CLAIM => return self.drop_claims(),
            WRITE => return self.write_version(home, line),
            _ => self.direct_line(line).word.busy = false,
        }
        self.direct.word_changes(home, line);
    }

    /// A line is not at `Dirty`: the claimed ones are released, and nothing is written.
    fn drop_claims(&mut self) {
        self.direct.atomic_steps = 0;
        for line in 0..self.direct.lines.len() as u8 {
            if std::mem::take(&mut self.direct_line(line).word.busy) {
                self.direct.word_changes(self.home(line), line);
            }
        }
    }

    /// The bytes of a line change.
    pub(in crate::model::coherence) fn bytes_change(&mut self, node: u16, line: u8, value: u8) {
        if self.direct.is_on() && self.home(line) == node {
            self.direct_line(line).halves = [value; 2];
        }
    }

    /// The engine changes the level of a line in its tag word.
    pub(in crate::model::coherence) fn level_changes(&mut self, node: u16, line: u8, level: Level) {
        if !self.direct.is_on() {
            return;
        }
        if self.home(line) == node {
            let late = mutant!(self.direct, FallsAfterGrant);
            let state = self.direct_line(line);
            if late && level < state.word.level {
                state.falls_to = Some(level);
                return;
            }
            (state.word.level, state.falls_to) = (level, None);
        }
        if !mutant!(self.direct, LevelKeepsVersion) {
            self.direct.word_changes(node, line);
        }
    }

    fn fall(&mut self, line: u8) {
        self.tell(|| format!("the tag word of line {line} falls"));
        let state = self.direct_line(line);
        state.word.level = state.falls_to.take().unwrap_or(state.word.level);
        self.direct.word_changes(self.home(line), line);
    }

    /// The bytes in flight to the home of a line.
    fn landing(&self, line: u8) -> Option<u8> {
        let mut bytes =
            self.flights.iter().filter(|flight| Self::line(flight.message.line()) == line);
        bytes.find_map(|flight| match flight.bytes {
            Some((PlacementTarget::Home, value)) => Some(value),
            Some((PlacementTarget::Frame(_), _)) | None => None,
        })
    }

    fn land_half(&mut self, line: u8, half: u8) {
        let Some(value) = self.landing(line) else {
            return;
        };
        self.tell(|| format!("half {half} of line {line} lands"));
        if self.tag(self.home(line), line).held.level != Level::Invalid {
            self.wrong("bytes land where they may be read");
        }
        self.direct_line(line).halves[usize::from(half)] = value;
        if mutant!(self.direct, RisesOnLanding) {
            self.direct_line(line).word.level = Level::Shared;
            self.direct.word_changes(self.home(line), line);
        }
    }

    /// A free begins: the tag word allows nothing from now on.
    pub(in crate::model::coherence) fn begin_free(&mut self, line: u8) {
        if self.direct.is_on() && !mutant!(self.direct, FreeLeavesTag) {
            let state = self.direct_line(line);
            (state.word.level, state.word.allocated) = (Level::Invalid, false);
            self.direct.word_changes(self.home(line), line);
        }
    }

    /// No node holds a line that is being freed any more.
    pub(in crate::model::coherence) fn line_retired(&mut self, line: u8) {
        if self.direct.is_on() {
            self.direct_line(line).line_use = LineUse::Retired;
        }
    }

    fn clear_tag(&mut self, line: u8) {
        self.tell(|| format!("line {line} is free"));
        self.direct_line(line).line_use = LineUse::Free;
        self.begin_free(line);
    }

    /// Whether an allocation can take a line.
    pub(in crate::model::coherence) fn is_reusable(&self, line: u8) -> bool {
        !self.direct.is_on() || self.direct.lines[usize::from(line)].line_use == LineUse::Free
    }

    /// The first step of an allocation: the bytes are zeroed. The zeroes count as a version.
    pub(in crate::model::coherence) fn begin_allocation(&mut self, line: u8) {
        self.tell(|| format!("the bytes of line {line} are zeroed"));
        self.allocations -= 1;
        let old = self.direct_line(line).halves;
        if mutant!(self.direct, TagBeforeZero) {
            self.allocate_again(line);
            self.set_tag(line);
            self.direct_line(line).halves = old;
        } else {
            let zeroes = self.truth(line).latest + 1;
            self.bytes_change(self.home(line), line, zeroes);
        }
        self.direct_line(line).line_use = LineUse::Prepared;
    }

    fn end_allocation(&mut self, line: u8) {
        if mutant!(self.direct, TagBeforeZero) {
            let zeroes = self.truth(line).latest;
            self.bytes_change(self.home(line), line, zeroes);
            self.direct_line(line).line_use = LineUse::Allocated;
            return;
        }
        self.tell(|| format!("the tag word of line {line} is set"));
        let reuse = self.setup.direct.reuse;
        self.direct_line(line).line_use = match reuse {
            Reuse::SameSize => LineUse::Allocated,
            Reuse::SameWord | Reuse::AnotherWord => LineUse::AnotherSize,
        };
        if reuse == Reuse::SameSize {
            self.allocate_again(line);
        }
        if reuse != Reuse::AnotherWord {
            self.set_tag(line);
        }
    }

    fn set_tag(&mut self, line: u8) {
        let another_size = self.setup.direct.reuse != Reuse::SameSize;
        let word = &mut self.direct_line(line).word;
        (word.level, word.allocated, word.another_size) = (Level::Dirty, true, another_size);
        self.direct.word_changes(self.home(line), line);
    }

    /// Checks the tag word of each line. Not with a mutant, which has to be found by what is read.
    pub(in crate::model::coherence) fn words_violation(&self) -> Option<String> {
        if self.direct.mutant != Planted::NONE {
            return None;
        }
        let lines = (0..).zip(&self.direct.lines);
        for (line, state) in lines.filter(|(_, state)| self.direct.allows(state.word)) {
            if state.halves != [self.truths[usize::from(line)].latest; 2] {
                return Some(format!(
                    "line {line} can be read directly and is not the latest version"
                ));
            }
            let home = self.home(line);
            let mut others = self.holders(line).filter(|(number, _)| *number != home);
            if others.any(|(number, _)| self.tag(number, line).held.level == Level::Dirty) {
                return Some(format!(
                    "line {line} can be read directly and another node can write it"
                ));
            }
        }
        None
    }

    /// Checks, with nothing in flight, that direct reads of lines that no other node owns succeed.
    pub(in crate::model::coherence) fn refusal_violation(&self) -> Option<String> {
        let refused = (0..).zip(&self.direct.lines).find(|(line, state)| {
            let (home, address) = (self.home(*line), self.address(*line));
            let machine = &self.node(home).machine;
            self.node(home).alive
                && !self.is_fenced(home)
                && self.truths[usize::from(*line)].allocated
                && machine.owner(address).is_none()
                && !machine.is_lost(address)
                && !self.direct.allows(state.word)
        });
        refused
            .map(|(line, _)| format!("line {line} cannot be read directly while nothing happens"))
    }
}

/// Whether a message grants a line.
fn grants(flight: &MessageInFlight, line: u8) -> bool {
    matches!(flight.message, CoherenceMessage::Grant { .. })
        && System::line(flight.message.line()) == line
}
