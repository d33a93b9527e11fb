//! The first exchange of a joiner with the coordinator: `Join` and `Welcome`.

use super::{Membership, MembershipStage, REMOVAL_PENDING, refusal};
use crate::member::event::{Effects, Identity, MemberEffect, RequestId};
use crate::member::hello::{
    Join, JoinRefusal, ListedMember, PROTOCOL_VERSION, Welcome, version_refusal,
};
use crate::member::keeps::Keeps;
use crate::member::roster::RosterEntry;
use alloc::format;
use farside_base::{ErrorCode, GlobalAddress, NodeId, NodeSet};

const WITNESS_LENDS: &str = "a witness lends no memory: set memory_bytes to 0, and no state";

impl Membership {
    pub(super) fn check_welcome(&self, welcome: &Welcome) -> Result<(), JoinRefusal> {
        if welcome.limits != self.identity.limits {
            return Err(JoinRefusal::new(ErrorCode::LimitsMismatch));
        }
        let fits = |node: NodeId| node.0 < welcome.settings.nodes_max;
        let rising = welcome.members.windows(2).all(|pair| pair[0].born < pair[1].born);
        let before = welcome.members.last().is_some_and(|last| last.born < welcome.view);
        let mut nodes: NodeSet = welcome.members.iter().map(|member| member.node).collect();
        let apart = nodes.insert(welcome.node) && nodes.len() == welcome.members.len() + 1;
        let lends = welcome.memory.is_some() == self.identity.role.lends() && self.is_own(welcome);
        if rising && before && apart && lends && nodes.iter().all(fits) {
            return Ok(());
        }
        Err(refusal(ErrorCode::ProtocolViolation, "impossible welcome"))
    }

    pub(super) fn join_asked(&mut self, request: RequestId, join: &Join, effects: &mut Effects) {
        let number = match self.check_join(join) {
            Ok(number) => number,
            Err(refusal) => return effects.push(MemberEffect::Deny { request, refusal }),
        };
        let alive = self.roster.iter().filter(|member| !member.gone);
        let members = alive.map(RosterEntry::listed).collect();
        let (incarnation, host, born) = (join.incarnation, join.host, self.next_view());
        let memory = self.memory_for(join, number);
        let nodes_max = self.identity.settings.nodes_max;
        let (state, names) = (join.keeps.has_state(), join.keeps.may_have_names(nodes_max));
        let (node, witness) = (number, join.witness);
        let listed = ListedMember { node, incarnation, born, host, memory, state, names, witness };
        let mut member = RosterEntry::new(listed);
        member.join = Some(request);
        member.unused = !matches!(join.keeps, Keeps::Known { .. });
        self.publish(member.coming(), effects);
        let generations = self.generations.values().copied().collect();
        let Identity { limits, settings, .. } = self.identity;
        let (node, view, founder) = (number, self.view, self.founder);
        let welcome =
            Welcome { node, view, settings, memory, members, generations, limits, founder };
        self.take_in(member, effects);
        effects.push(MemberEffect::Admit { request, welcome });
    }

    fn check_join(&self, join: &Join) -> Result<NodeId, JoinRefusal> {
        if self.stage == MembershipStage::Over || self.leaving {
            return Err(JoinRefusal::new(ErrorCode::NodeClosed));
        }
        if join.version != PROTOCOL_VERSION {
            return Err(version_refusal(join.version));
        }
        if join.cluster != self.identity.cluster || self.stage != MembershipStage::Coordinator {
            return Err(JoinRefusal::new(ErrorCode::NoSuchCluster));
        }
        if join.limits != self.identity.limits {
            return Err(JoinRefusal::new(ErrorCode::LimitsMismatch));
        }
        if self.roster.iter().any(|member| member.incarnation == join.incarnation) {
            // Each incarnation joins once: a removed process, or a repeated `Join` of the same incarnation, gets no
            // number.
            return Err(JoinRefusal::new(ErrorCode::NodeClosed));
        }
        if join.witness && (join.home_bytes > 0 || join.keeps.has_state()) {
            return Err(refusal(ErrorCode::BadConfiguration, WITNESS_LENDS));
        }
        if join.home_bytes > 1 << GlobalAddress::OFFSET_BITS {
            return Err(JoinRefusal {
                code: ErrorCode::BadConfiguration,
                text: format!("a node has at most {} bytes", 1_u64 << GlobalAddress::OFFSET_BITS),
            });
        }
        if self.has_undecided() && self.roster.iter().any(RosterEntry::is_unburied) {
            return Err(refusal(ErrorCode::Busy, REMOVAL_PENDING));
        }
        self.number_for(join)
    }
}
