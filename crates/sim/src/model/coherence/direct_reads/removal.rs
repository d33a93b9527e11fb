//! Removal of a node that runs on: its fence word, and what the others reclaim.

use super::DirectReadAction;
use super::canary::mutant;
use crate::model::coherence::{CoherenceAction, CoherenceNode, System};

impl System {
    /// Whether a node's fence word is set.
    pub(in crate::model::coherence) fn is_fenced(&self, node: u16) -> bool {
        self.direct.fenced && self.setup.direct.removable == Some(node)
    }

    /// Whether `by` has reclaimed what a node that runs on had.
    pub(in crate::model::coherence) fn is_removed_by(&self, by: u16, node: u16) -> bool {
        self.setup.direct.removable == Some(node) && self.node(by).noticed >> node & 1 == 1
    }

    /// Live nodes whose copies of a line count: its home has not reclaimed them.
    pub(in crate::model::coherence) fn holders(
        &self,
        line: u8,
    ) -> impl Iterator<Item = (u16, &CoherenceNode)> {
        let home = self.home(line);
        self.alive().filter(move |(number, _)| !self.is_removed_by(home, *number))
    }

    /// Whether any member has reclaimed what the removed node had.
    fn has_reclaimed(&self) -> bool {
        !self.direct.reclaimed_at.is_empty()
    }

    pub(super) fn enabled_removal(&self, actions: &mut Vec<CoherenceAction>) {
        let Some(removed) = self.setup.direct.removable.filter(|node| self.node(*node).alive)
        else {
            return;
        };
        let is_home = self.setup.homes.contains(&removed);
        if self.has_reclaimed() {
            if is_home && !self.direct.taken_over {
                actions.push(CoherenceAction::Direct(DirectReadAction::TakeOver));
            }
        } else if mutant!(self.direct, FenceAfterReclaim) {
            self.enabled_reclaims(removed, actions);
        } else if !self.direct.fenced {
            actions.push(CoherenceAction::Direct(DirectReadAction::SetFence));
        }
    }

    /// Adds the steps of a removal that has begun: each other member reclaims what the node had.
    pub(super) fn enabled_removal_steps(&self, actions: &mut Vec<CoherenceAction>) {
        if let Some(removed) = self.setup.direct.removable
            && (self.direct.fenced || self.has_reclaimed())
        {
            self.enabled_reclaims(removed, actions);
            if !self.direct.fenced {
                actions.push(CoherenceAction::Direct(DirectReadAction::SetFence));
            }
        }
    }

    fn enabled_reclaims(&self, removed: u16, actions: &mut Vec<CoherenceAction>) {
        let members = self.alive().filter(|(number, _)| *number != removed);
        let remaining = members.filter(|(number, _)| !self.is_removed_by(*number, removed));
        actions.extend(
            remaining.map(|(number, _)| CoherenceAction::Direct(DirectReadAction::Reclaim(number))),
        );
    }

    pub(super) fn set_fence(&mut self) {
        self.tell(|| "the fence word of the removed node is stored".into());
        self.direct.fenced = true;
    }

    pub(super) fn reclaim(&mut self, by: u16) {
        let Some(removed) = self.setup.direct.removable else {
            return;
        };
        if !self.has_reclaimed() {
            self.direct.reclaimed_at = self.truths.iter().map(|truth| truth.latest).collect();
        }
        self.notice(by, removed);
    }

    pub(super) fn take_over(&mut self) {
        self.tell(|| "another node takes over the lines of the removed one".into());
        self.direct.taken_over = true;
    }
}
