//! What happens to the membership machine and what it wants done.

use super::hello::{Join, Peer, Refusal, Welcome};
use super::message::Message;
use alloc::{string::String, vec::Vec};
use core::net::SocketAddr;
use farside_base::{Incarnation, NodeId, ViewNumber};

/// The runtime's name for a connection request that waits for an answer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct RequestId(pub u64);

/// What a process is before it is a member.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Identity {
    /// The cluster it wants.
    pub cluster: String,
    /// Its life; random, or the time of its start.
    pub incarnation: Incarnation,
    /// Fingerprint of its limits but for `nodes_max`.
    pub limits: u64,
    /// Where it is reached, on fabrics between hosts.
    pub host: Option<SocketAddr>,
    /// It lends memory, so that it counts in a quorum.
    pub votes: bool,
    /// Members out of reach may live on: nobody is declared dead for that without a quorum.
    pub quorum: bool,
    /// A founder's own; a joiner's are replaced by those of its welcome.
    pub settings: FounderSettings,
}

/// What the founder of a cluster sets for all members.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct FounderSettings {
    /// `Limits::nodes_max`: node numbers are below it.
    pub nodes_max: u16,
    /// How long a member may be silent.
    pub leases: Leases,
}

/// How long a member may be silent. Members with leases of their own would disagree about when a removed member has
/// stopped using what it has cached.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Leases {
    /// The fabric notices silence within this time; zero where a member that lives is always reached.
    pub fabric_ns: u64,
    /// A lost link is dialled again for so long.
    pub member_ns: u64,
}

impl Leases {
    /// The longest of each.
    pub const MAX_NS: u64 = 600_000_000_000;
    /// The shortest `member_ns`.
    pub const MEMBER_MIN_NS: u64 = 10_000_000;

    /// Whether a cluster can have them.
    pub const fn are_possible(self) -> bool {
        self.fabric_ns <= Self::MAX_NS
            && self.member_ns >= Self::MEMBER_MIN_NS
            && self.member_ns <= Self::MAX_NS
    }
}

/// What happens to the machine.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Event {
    /// The rendezvous name was free and is bound now: this is node 0 of a new cluster.
    Found,
    /// The coordinator's answer to this process's `Join`. Keep that link until `LinkUp` of the
    /// coordinator; if it breaks before, report `LinkLost` of the coordinator.
    Joined(Welcome),
    /// Somebody asks at the rendezvous name.
    JoinAsked {
        /// The question.
        request: RequestId,
        /// What it says.
        join: Join,
    },
    /// Somebody asks for a link.
    PeerAsked {
        /// The question.
        request: RequestId,
        /// What it says.
        peer: Peer,
    },
    /// The link of an admitted `Join`, or of a `Peer` not yet answered, is gone. A joiner closes its
    /// `Join` link after `LinkUp` of the coordinator; report that too.
    RequestLost {
        /// The question.
        request: RequestId,
    },
    /// A link to a member is usable.
    LinkUp {
        /// The member.
        node: NodeId,
    },
    /// The process of a member has ended. Where members out of reach may live on, only what the member's host
    /// says counts as that; elsewhere a link that breaks, or a member that cannot be reached, means the same.
    LinkLost {
        /// The member.
        node: NodeId,
    },
    /// This node can use a member no longer (it broke the protocol, say), and the member may live.
    Dropped {
        /// The member.
        node: NodeId,
    },
    /// A member was not reached for the whole lease. It may live on.
    OutOfReach {
        /// The member.
        node: NodeId,
    },
    /// A member says that it counts us among the dead.
    Expelled {
        /// The member.
        by: NodeId,
    },
    /// Another member has removed this node, which its fence word says.
    Removed,
    /// A member refused this joiner's `Peer`.
    Refused {
        /// The member.
        node: NodeId,
        /// What it says.
        refusal: Refusal,
    },
    /// A message from a member.
    Message {
        /// The member at the other end of the link.
        from: NodeId,
        /// What it says.
        message: Message,
    },
    /// Nothing is left here of a member that was removed: its death is settled
    /// ([`burial`](super::burial)), and all other machines have forgotten it.
    Settled {
        /// The member.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
    },
    /// The time that [`Effect::JudgeLater`] asked for is over.
    Judge,
    /// The program wants to leave, and this node has handed over everything that it held: it owns no
    /// line of another home, holds no lock, and everything that it has to send is posted. Given a second time, it leaves
    /// without waiting for the answers of the others.
    Leave,
}

/// What is known of a member that is gone for good.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Death {
    /// It has left: everything that it held was handed over before.
    Left,
    /// Its process has ended. Where members that live are always reached, also: it was removed.
    Ended,
    /// It was removed, and it may live and not know it.
    Removed,
}

/// What the machine wants done, in this order.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub enum Effect {
    /// Ask this member for a link, with a `Peer`.
    Connect {
        /// The member.
        node: NodeId,
        /// Its life; its answer must say the same.
        incarnation: Incarnation,
        /// The view that admitted it.
        born: ViewNumber,
        /// Where it is reached, on fabrics between hosts.
        host: Option<SocketAddr>,
    },
    /// Accept the `Join` with this answer, and keep the link.
    Admit {
        /// The question.
        request: RequestId,
        /// The answer.
        welcome: Welcome,
    },
    /// Refuse.
    Deny {
        /// The question.
        request: RequestId,
        /// The answer.
        refusal: Refusal,
    },
    /// Accept the `Peer`. The node counts as linked from now on: messages may follow. If it is gone
    /// already, report `Dropped`.
    AcceptPeer {
        /// The question.
        request: RequestId,
        /// What it said.
        peer: Peer,
    },
    /// Send a message on the link to a member.
    Send {
        /// The member.
        to: NodeId,
        /// What.
        message: Message,
    },
    /// Close the link to a member and hear nothing of it any more: it is out of reach, or others say so.
    /// What will become of it is not decided yet.
    Cut {
        /// The member.
        node: NodeId,
    },
    /// Members accuse each other, which the coordinator reaches. Give [`Event::Judge`] when all members must have
    /// noticed the same outage; [`Patience::judge_ns`](super::contact::Patience::judge_ns) is that time.
    JudgeLater,
    /// A view has named a new member. Its number may be one that was in use before and is settled: nothing of
    /// the former bearer counts any more.
    Admitted {
        /// The member.
        node: NodeId,
    },
    /// A member is dead or has left, for good. Close any link to it, then tell all other machines.
    Dead {
        /// The member.
        node: NodeId,
        /// The view that admitted it.
        born: ViewNumber,
        /// How.
        death: Death,
    },
    /// This node is a full member: linked to everybody.
    Ready,
    /// This node makes the views now: bind the rendezvous name. While somebody else has the name
    /// (a process that founded another cluster meanwhile), try again now and then; until then
    /// nobody can join, and nothing else suffers.
    BecomeCoordinator,
    /// This node is no member any more, or did not become one. Close everything; a joiner may start
    /// over as a new life where the code says so.
    Failed(Refusal),
    /// This node has left. Close everything once the messages before are sent.
    Closed,
}

/// Collects effects; reuse it. Carry out all effects of a step before the next step, or messages go
/// out in another order than they were meant.
pub type Effects = Vec<Effect>;
