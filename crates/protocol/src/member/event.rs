//! Events and effects of the membership machine.

use super::hello::{Join, JoinRefusal, PeerRequest, Welcome};
use super::keeps::Keeps;
use super::message::MemberMessage;
use super::role::MemberRole;
use super::settings::FounderSettings;
use alloc::{string::String, vec::Vec};
use core::net::SocketAddr;
use farside_base::{Incarnation, NodeId, ViewNumber};

/// The runtime's identifier of a connection request that waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What a process knows about itself before it is a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// The name of the cluster to join or found.
    pub cluster: String,
    /// Its incarnation: random, or the time of its start.
    pub incarnation: Incarnation,
    /// Fingerprint of its limits except `nodes_max`.
    pub limits: u64,
    /// Its network address, on fabrics between hosts.
    pub host: Option<SocketAddr>,
    /// What it lends, and whether it counts in a quorum.
    pub role: MemberRole,
    /// What it keeps of its earlier lives.
    pub keeps: Keeps,
    /// Unreachable members may be alive, and are declared dead only with a quorum.
    pub quorum: bool,
    /// A founder's own; a joiner's are replaced by those of its welcome.
    pub settings: FounderSettings,
}

/// An event for the membership machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MemberEvent {
    /// The rendezvous name was free and is now bound: this is the first node of a new cluster, with the number and
    /// memory that [`Keeps::founding`] returns.
    Found,
    /// The coordinator's answer to this process's `Join`. Keep that link until `LinkUp` of the coordinator; if it
    /// breaks earlier, report `LinkLost` of the coordinator.
    Joined(Welcome),
    /// A process sent `Join` to the rendezvous name.
    JoinAsked {
        /// The connection request.
        request: RequestId,
        /// Its content.
        join: Join,
    },
    /// A node asks for a link.
    PeerAsked {
        /// The connection request.
        request: RequestId,
        /// Its content.
        peer: PeerRequest,
    },
    /// The link of an admitted `Join`, or of an unanswered `PeerRequest`, is gone. Also report it when a joiner closes its
    /// `Join` link after `LinkUp` of the coordinator.
    RequestLost {
        /// The connection request.
        request: RequestId,
    },
    /// A link to a member is usable.
    LinkUp {
        /// The member.
        node: NodeId,
    },
    /// The process of a member has ended. On fabrics where unreachable members may be alive, report this only if the
    /// member's host says so; on other fabrics also for a broken link or an unreachable member.
    LinkLost {
        /// The member.
        node: NodeId,
    },
    /// This node can no longer use a member (for example, it broke the protocol); the member may be alive.
    Dropped {
        /// The member.
        node: NodeId,
    },
    /// A member was unreachable for the whole lease. It may be alive.
    OutOfReach {
        /// The member.
        node: NodeId,
    },
    /// A member reports that it considers this node dead.
    Expelled {
        /// The member.
        by: NodeId,
    },
    /// Another member has removed this node, according to this node's fence word.
    Removed,
    /// A member refused this joiner's `PeerRequest`.
    Refused {
        /// The member.
        node: NodeId,
        /// Its answer.
        refusal: JoinRefusal,
    },
    /// A message from a member.
    Message {
        /// The member at the other end of the link.
        from: NodeId,
        /// Its content.
        message: MemberMessage,
    },
    /// This node holds no state of a removed member any more: its death is settled ([`burial`](super::burial)), and
    /// all other machines have dropped their entries for it.
    Settled {
        /// The member.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
    },
    /// The time requested by [`MemberEffect::JudgeLater`] has elapsed.
    Judge,
    /// The program wants to leave, and this node has handed over everything that it held: it owns no line of another
    /// home, holds no lock, and has posted everything that it has to send. If given a second time, the node leaves
    /// without waiting for the answers of the others.
    Leave {
        /// Its memory is saved, and will return with its number as that of a node with state.
        saved: bool,
        /// There is a directory of named roots in it.
        names: bool,
    },
}

/// How a member went, as far as is known.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Death {
    /// It left, and handed over everything that it held before.
    Left,
    /// Its process has ended. On fabrics where live members are always reachable, also: it was removed.
    Ended,
    /// It was removed, and may be alive without knowing that.
    Removed,
}

/// An action that the machine requests; perform them in order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum MemberEffect {
    /// Request a link to this member, with a `PeerRequest`.
    Connect {
        /// The member.
        node: NodeId,
        /// Its incarnation; its answer must have the same.
        incarnation: Incarnation,
        /// The view that admitted it.
        born: ViewNumber,
        /// Its network address, on fabrics between hosts.
        host: Option<SocketAddr>,
    },
    /// Accept the `Join` with this answer, and keep the link.
    Admit {
        /// The connection request.
        request: RequestId,
        /// The answer.
        welcome: Welcome,
    },
    /// Refuse a connection request.
    Deny {
        /// The connection request.
        request: RequestId,
        /// The answer.
        refusal: JoinRefusal,
    },
    /// Accept the `PeerRequest`. The node counts as linked from now on, and messages to it may follow. If its link is gone
    /// already, report `Dropped`.
    AcceptPeer {
        /// The connection request.
        request: RequestId,
        /// Its content.
        peer: PeerRequest,
    },
    /// Send a message on the link to a member.
    Send {
        /// The member.
        to: NodeId,
        /// The message.
        message: MemberMessage,
    },
    /// Close the link to a member and ignore it from now on: it is unreachable, or other members say so. Whether it
    /// is removed is not decided yet.
    Cut {
        /// The member.
        node: NodeId,
    },
    /// Members that the coordinator reaches accuse each other. Give [`MemberEvent::Judge`] when all members must have
    /// detected the same outage, after [`Patience::judge_ns`](super::contact::Patience::judge_ns).
    JudgeLater,
    /// A view has named a new member. If its number was used before, that removal is settled, and state of the
    /// previous node with this number is stale.
    Admitted {
        /// The member.
        node: NodeId,
    },
    /// A member is dead or has left, for good. Close any link to it, then notify all other machines.
    Dead {
        /// The member.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// How it went.
        death: Death,
    },
    /// This node is a full member: it is linked to every member.
    Ready,
    /// This node makes the views now: bind the rendezvous name. While another process holds the name (it founded
    /// another cluster meanwhile), retry periodically. Until the name is bound no process can join; nothing else is
    /// affected.
    BecomeCoordinator,
    /// This node is no longer a member, or failed to join. Close everything; a joiner may start over as a new
    /// incarnation if the error code permits it.
    Failed(JoinRefusal),
    /// This node has left. Close everything once the preceding messages are sent.
    Closed,
}

/// A reusable list of effects. Perform all effects of a step before the next step, otherwise messages are sent out of
/// order.
pub type Effects = Vec<MemberEffect>;
