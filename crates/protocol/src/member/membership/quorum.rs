//! Judges unreachable members, on fabrics where unreachable does not mean dead.
//!
//! An unreachable member may be alive, and may judge this node in turn. So a member is declared dead for that reason
//! only after a *quorum* has agreed to ignore it: more than half of the voters of the last view, or half of them
//! including the earliest admitted of those that lend memory. Of two partitions at most one has a quorum; the other
//! one *gives up* as soon as it can no longer get one, and its nodes join again as new incarnations. Members that lend
//! memory and *witnesses* are voters; programs are not, unless there are no others.
//!
//! *Witnesses.* A quorum has a member that lends memory, if the view has one: witnesses alone never remove the last
//! lender by a vote, and of one witness and one lender the lender has the casting vote. A view without lenders is possible when all of them
//! have certainly ended or left; its witnesses continue, and keep the numbers and generations of the cluster. Both rules
//! only take quorums away or move the casting vote of a tie to another member of the same view, so two quorums of one
//! view still share a member. Of consecutive views the argument below holds as before.
//!
//! - An unreachable member is a *suspect*: cut off by this node, and still counted as a member.
//! - A member reports its suspects to the coordinator. A coordinator that reaches both judges which of the two is
//!   removed (see [`accusations`](super::accusations)). It cuts that one off, notifies all members, and calls a vote;
//!   members that answer have cut it off. With a quorum of answers it is dead, by views.
//! - A member with a suspect coordinator waits for the takeover of the earliest remaining member, or takes over
//!   itself with the reports of a quorum, and then calls a vote like any coordinator: members that reported may still
//!   reach its suspects, and cut them off before they answer. A member that still reaches one admitted before the
//!   asker answers only once it has been asked to cut that one off, so no member votes in both partitions.
//!
//! *Why two partitions never both continue.* Suppose two did. Both had quorums of votes, of the members of the same
//! last view or of consecutive views, so some member `v` voted in both. It first cut off the suspects of the first
//! partition at the request of that one's coordinator. For the other partition to ask `v`, it had to be linked to a
//! member of that partition that it had not cut off. So the other asker was not a suspect of the first coordinator,
//! and the first was a suspect of that asker only after their link had broken, which the first detects too: it cannot
//! have a quorum without the confirmation of `v` that the asker was cut off.
//!
//! *Certain deaths.* A member whose process has ended may have voted in another partition before. So it counts as a
//! member that does not answer until its view is made, and the coordinator makes that view only when no other
//! partition can have its vote:
//!
//! - Without suspects, when every linked member has answered a vote that was called after the death. A member that
//!   takes over answers no other coordinator. So when all have answered, no live member has asked the dead one for
//!   its vote.
//! - With suspects, when a quorum that still counts the dead one has cut them off, by the argument above.
//!
//! Meanwhile the coordinator admits no node, since it would not know the dead one.

use super::judgement::Vote;
use super::{Membership, MembershipStage, refusal};
use crate::member::canary::mutant;
use crate::member::event::{Effects, MemberEffect};
use crate::member::message::MemberMessage;
use crate::member::roster::RosterEntry;
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{ErrorCode, Incarnation, NodeId, NodeSet};

const UNREACHED: &str = "a member is out of reach of this joiner";
const ISOLATED: &str = "most of the cluster is out of reach";

impl Membership {
    /// The home of the directory of named roots: of the nodes with state the one with the lowest number, a member or
    /// not; without any, the member that was admitted first among those that lend memory and do not leave. A node that was
    /// drained while another one had the names counts only if there is no other.
    pub fn directory_home(&self) -> Option<NodeId> {
        let has_names = |node: &NodeId| self.generations.get(node).is_some_and(|lent| lent.names);
        if let Some(node) = self.kept().find(has_names) {
            return Some(node);
        }
        let is_fit = |member: &&RosterEntry| {
            member.memory.is_some() && !member.gone && !member.leaving && !member.state
        };
        let earliest = self.roster.iter().filter(is_fit).min_by_key(|member| member.born);
        earliest.map(|member| member.node).or_else(|| self.kept().next())
    }

    pub(super) fn out_of_reach(&mut self, node: NodeId, effects: &mut Effects) {
        if self.stage == MembershipStage::Joining {
            // Without links to all members it can never become a member.
            return self.fail(refusal(ErrorCode::Isolated, UNREACHED), effects);
        }
        let outside = matches!(self.stage, MembershipStage::Outside | MembershipStage::Over);
        if !outside && node != self.me && self.suspect(node, effects) {
            self.judge(effects);
        }
    }

    /// Handles the report of a member that this node is no longer a member. Only the coordinator can know.
    pub(super) fn expelled(&mut self, by: NodeId, effects: &mut Effects) {
        let outside = matches!(self.stage, MembershipStage::Outside | MembershipStage::Over);
        if !outside && self.coordinator() == Some(by) {
            return self.fail(refusal(ErrorCode::NodeClosed, super::EXPELLED), effects);
        }
        self.out_of_reach(by, effects);
    }

    /// Cuts a member off; false if it was cut off already, or is dead.
    pub(super) fn suspect(&mut self, node: NodeId, effects: &mut Effects) -> bool {
        let Some(member) = self.roster.find_mut(node) else {
            return false;
        };
        if member.gone || member.suspect {
            return false;
        }
        member.suspect = true;
        member.linked = false;
        member.join = None;
        self.accusations.forget(node);
        effects.push(MemberEffect::Cut { node });
        true
    }

    fn suspects(&self) -> Vec<(NodeId, Incarnation)> {
        let suspects = self.roster.iter().filter(|member| member.suspect && !member.gone);
        suspects.map(|member| (member.node, member.incarnation)).collect()
    }

    /// Reacts to a new suspect, or to the loss of a member that could have voted.
    pub(super) fn judge(&mut self, effects: &mut Effects) {
        if !self.is_ready() {
            return;
        }
        if !self.has_suspects() {
            if self.has_undecided() {
                self.call_vote(effects);
            }
            return self.answer_asker(effects);
        }
        let linked = self.linked();
        if !self.is_quorum(&linked) {
            return self.fail(refusal(ErrorCode::Isolated, ISOLATED), effects);
        }
        match self.stage {
            MembershipStage::Coordinator => self.call_vote(effects),
            MembershipStage::TakingOver => self.check_takeover(effects),
            MembershipStage::Member if self.coordinator() == Some(self.me) => {
                self.take_over(effects)
            }
            MembershipStage::Member => {
                if let Some(to) = self.coordinator() {
                    self.tell_suspects(to, effects);
                }
                self.answer_asker(effects);
            }
            MembershipStage::Outside | MembershipStage::Joining | MembershipStage::Over => {}
        }
    }

    /// Whether suspects block a takeover: the members that reported are no quorum.
    pub(super) fn lacks_quorum(&self) -> bool {
        let linked = self.linked().into_iter();
        let reported =
            |node: &NodeId| self.roster.find(*node).is_some_and(|member| member.reported.is_some());
        let reported: Vec<NodeId> = linked.filter(reported).collect();
        !self.suspects().is_empty() && !self.is_quorum(&reported)
    }

    /// Whether a member is cut off and its removal is not decided yet.
    pub fn has_suspects(&self) -> bool {
        self.roster.iter().any(|member| member.suspect && !member.gone)
    }

    /// Whether this coordinator has to call a vote: there are suspects, or dead members whose removal other members
    /// have to confirm.
    pub(super) fn has_undecided(&self) -> bool {
        let unburied = || self.roster.iter().any(RosterEntry::is_unburied);
        let shrinks = mutant!(self, QuorumShrinksAtDeath);
        let confirms = self.identity.quorum && !shrinks;
        self.stage == MembershipStage::Coordinator
            && (self.has_suspects() || (confirms && unburied()))
    }

    /// Removes members that were found dead: at once on fabrics where live members are always reachable, otherwise by
    /// [`judge`](Self::judge).
    pub(super) fn remove_lost(&mut self, effects: &mut Effects) {
        if !self.identity.quorum || mutant!(self, QuorumShrinksAtDeath) {
            self.publish_losses(effects);
        }
    }

    /// Whether this node and `others` are a quorum of the last view.
    pub fn is_quorum(&self, others: &[NodeId]) -> bool {
        let uncounted = mutant!(self, WitnessUncounted);
        let votes = |member: &RosterEntry| member.memory.is_some() || member.votes() && !uncounted;
        let view = || self.roster.iter().filter(|member| member.died.is_none());
        let (any_votes, any_lends) =
            (view().any(votes), view().any(|member| member.memory.is_some()));
        let counted = |member: &&RosterEntry| votes(member) || !any_votes;
        let here = |member: &RosterEntry| {
            (member.node == self.me || others.contains(&member.node)) && !member.gone
        };
        let decides = |member: &&RosterEntry| {
            member.memory.is_some() || !any_lends || mutant!(self, WitnessBreaksTies)
        };
        let all = view().filter(counted).count();
        let present = view().filter(counted).filter(|member| here(member)).count();
        let first = view().filter(counted).find(decides);
        if mutant!(self, NoQuorum) {
            return true;
        }
        let lends = |member: &RosterEntry| member.memory.is_some() && here(member);
        let has_lender = !any_lends || view().any(lends) || mutant!(self, WitnessesSuffice);
        (2 * present > all && has_lender) || (2 * present == all && first.is_some_and(here))
    }

    pub(super) fn tell_suspects(&self, to: NodeId, effects: &mut Effects) {
        for (node, incarnation) in self.suspects() {
            effects.push(MemberEffect::Send {
                to,
                message: MemberMessage::Suspect { node, incarnation },
            });
        }
    }

    pub(super) fn call_vote(&mut self, effects: &mut Effects) {
        self.vote = Vote { round: self.vote.round + 1, ayes: NodeSet::EMPTY };
        for to in self.linked() {
            for (node, incarnation) in self.suspects() {
                effects.push(MemberEffect::Send {
                    to,
                    message: MemberMessage::Suspect { node, incarnation },
                });
            }
            effects.push(MemberEffect::Send {
                to,
                message: MemberMessage::Vote { round: self.vote.round },
            });
        }
        self.check_vote(effects);
    }

    /// Decides a vote: with a quorum of answers the suspects are dead; without suspects all linked members have to
    /// answer.
    fn check_vote(&mut self, effects: &mut Effects) {
        let linked = self.linked();
        let answered = |node: &NodeId| self.vote.ayes.contains(*node);
        let ayes: Vec<NodeId> = linked.iter().copied().filter(answered).collect();
        let is_decided = match self.has_suspects() {
            true => self.is_quorum(&ayes),
            false => ayes.len() == linked.len(),
        };
        if is_decided {
            self.declare_suspects(effects);
            self.publish_losses(effects);
            if self.accusations.are_postponed() {
                self.judge_accusations(effects);
            }
        }
    }

    /// Brings a member that is linked during a vote up to date.
    pub(super) fn ask_linked(&self, to: NodeId, effects: &mut Effects) {
        self.tell_suspects(to, effects);
        if self.has_undecided() && !self.has_suspects() {
            effects.push(MemberEffect::Send {
                to,
                message: MemberMessage::Vote { round: self.vote.round },
            });
        }
    }

    fn declare_suspects(&mut self, effects: &mut Effects) {
        for (node, _) in self.suspects() {
            self.declare(node, effects);
        }
    }

    pub(super) fn suspect_heard(
        &mut self,
        from: NodeId,
        node: NodeId,
        incarnation: Incarnation,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let judges =
            matches!(self.stage, MembershipStage::Coordinator | MembershipStage::TakingOver);
        if !judges && self.coordinator() != Some(from) {
            // From a coordinator that is a suspect: its messages are ignored.
            return Ok(());
        }
        if node == self.me {
            // Received over a link of this very node.
            return Err(Violation("suspect notified of itself"));
        }
        let same_life = |member: &RosterEntry| member.incarnation == incarnation;
        let known = self.roster.find(node).is_some_and(same_life);
        match known {
            true if judges => self.accused(from, node, effects),
            true => drop(self.suspect(node, effects)),
            false => {}
        }
        Ok(())
    }

    pub(super) fn vote_called(
        &mut self,
        from: NodeId,
        round: u64,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let asked = self.coordinator() == Some(from);
        if self.stage == MembershipStage::Joining && self.has_suspects() {
            // It counts as a member that cannot vote, since it is not known yet whether it is linked to all: it gives
            // up, and joins again.
            self.fail(refusal(ErrorCode::Isolated, UNREACHED), effects);
        } else if matches!(self.stage, MembershipStage::Joining | MembershipStage::Member) && asked
        {
            effects.push(MemberEffect::Send { to: from, message: MemberMessage::Voted { round } });
            self.judge_as_voter(effects);
        }
        Ok(())
    }

    /// Gives up if this node, notified of suspects, finds itself in the smaller partition.
    fn judge_as_voter(&mut self, effects: &mut Effects) {
        if !self.suspects().is_empty() && !self.is_quorum(&self.linked()) {
            self.fail(refusal(ErrorCode::Isolated, ISOLATED), effects);
        }
    }

    pub(super) fn vote_heard(
        &mut self,
        from: NodeId,
        round: u64,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if round > self.vote.round {
            return Err(Violation("answer to a vote that was not called"));
        }
        if self.stage == MembershipStage::Coordinator && round == self.vote.round {
            self.vote.ayes.insert(from);
            if self.has_undecided() {
                self.check_vote(effects);
            }
        }
        Ok(())
    }

    /// Whether a takeover by `from` has to wait: a member admitted before it is reachable.
    pub(super) fn reaches_earlier(&self, from: NodeId) -> bool {
        let born = self.born_of(from);
        let reached = |member: &RosterEntry| member.born < born && !member.gone && !member.suspect;
        self.identity.quorum && !mutant!(self, VotesForBothSides) && self.roster.iter().any(reached)
    }

    /// Answers a takeover that had to wait.
    fn answer_asker(&mut self, effects: &mut Effects) {
        let asks = |member: &RosterEntry| member.linked && member.asked.is_some();
        if self.stage == MembershipStage::Member
            && let Some(from) = self.roster.find_where(asks)
            && !self.reaches_earlier(from)
            && let Some(number) = self.roster.find_mut(from).and_then(|member| member.asked.take())
        {
            self.report_to(from, number, effects);
        }
    }
}
