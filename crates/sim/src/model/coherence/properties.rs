//! The checked properties.

use super::{CoherenceNode, System};
use farside_base::NodeId;
use farside_protocol::coherence::{HeldLine, Level};

impl System {
    pub(super) fn copies_violation(&self, line: u8) -> Option<String> {
        let truth = self.truths[usize::from(line)];
        let (mut readers, mut writers) = (0, 0);
        for (number, node) in self.holders(line) {
            let tag = node.tags[usize::from(line)];
            readers += u32::from(tag.held.level > Level::Invalid);
            writers += u32::from(tag.held.level == Level::Dirty);
            let at_home = self.setup.logs && number == self.home(line);
            let shares = at_home && tag.held.level == Level::Shared;
            if shares && truth.allocated && tag.value != truth.durable {
                return Some(format!(
                    "n{number} shares a version of line {line} that is not durable"
                ));
            }
            if tag.held.level > Level::Invalid && tag.value != truth.latest && truth.allocated {
                return Some(format!(
                    "n{number} may read version {} of line {line}, the latest is {}",
                    tag.value, truth.latest
                ));
            }
        }
        (writers > 0 && readers > 1)
            .then(|| format!("line {line} has a writer and {readers} in all"))
    }

    pub(super) fn pins_violation(&self) -> Option<String> {
        for (number, node) in self.alive() {
            for operation in &node.pinned {
                let tag = node.tags[usize::from(operation.line)];
                let home = self.home(operation.line);
                let stays =
                    tag.held.level >= operation.kind.want().level() && tag.value == operation.seen;
                let removed = self.is_removed_by(home, number);
                if !stays && !removed && node.noticed >> home & 1 == 0 {
                    return Some(format!("a pinned line of n{number} does not stay as it is"));
                }
            }
        }
        None
    }

    /// Checks the properties of states with nothing in flight.
    pub(in crate::model) fn rest_violation(&self) -> Option<String> {
        for (number, node) in self.alive().filter(|(number, _)| !self.is_fenced(*number)) {
            if let Some(operation) = node.waiting.iter().chain(&node.flushing).next() {
                return Some(format!("{operation:?} of n{number} waits for ever"));
            }
            if node.machine.lines_busy() > 0 {
                return Some(format!("n{number} is busy with nothing: {:?}", node.machine));
            }
            for line in 0..self.setup.homes.len() as u8 {
                let tag = self.tag(number, line);
                let held = tag.held.level > Level::Invalid;
                if self.home(line) != number && tag.reserved != held {
                    return Some(format!("a frame of n{number} is in use for nothing"));
                }
                if self.home(line) == number
                    && let Some(violation) = self.directory_violation(number, node, line)
                {
                    return Some(violation);
                }
            }
        }
        self.refusal_violation()
    }

    fn directory_violation(&self, home: u16, node: &CoherenceNode, line: u8) -> Option<String> {
        let address = self.address(line);
        for (number, other) in self.holders(line).filter(|(number, _)| *number != home) {
            let HeldLine { level, grant } = other.tags[usize::from(line)].held;
            let copy = (NodeId(number), grant);
            let owner = node.machine.owner(address).filter(|owner| owner.0 == copy.0);
            let sharer = node.machine.sharers(address).find(|sharer| sharer.0 == copy.0);
            let fits = match level {
                Level::Invalid => owner.is_none() && sharer.is_none(),
                Level::Shared => owner.is_none() && sharer == Some(copy),
                Level::Dirty => owner == Some(copy) && sharer.is_none(),
            };
            if !fits {
                return Some(format!("the directory of line {line} is wrong about n{number}"));
            }
        }
        None
    }
}
