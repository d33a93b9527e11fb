//! The parts of the model of membership: links with what is in flight on them, plans of processes, and steps.

use farside_protocol::member::{JoinRefusal, MemberMessage, PeerRequest, Welcome};
use std::collections::VecDeque;

/// The purpose of a link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LinkKind {
    /// To the rendezvous name.
    Join,
    /// Between members.
    Peer,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) enum Item {
    Join,
    Welcome(Welcome),
    Peer(Box<PeerRequest>),
    Accepted,
    Refused(JoinRefusal),
    Message(MemberMessage),
    Lost,
    /// The network between the two is partitioned, and the lease has expired.
    OutOfReach,
}

/// One process's end of a possible link.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) enum MemberEnd {
    #[default]
    Closed,
    /// Requested by this end, and not answered yet.
    Asking,
    /// Requested by the other end, and not answered yet.
    Asked,
    Up,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct MemberLink {
    pub(super) end: MemberEnd,
    /// Messages in flight to this process.
    pub(super) arriving: VecDeque<Item>,
}

/// What a process keeps of earlier lives.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum LifePlan {
    /// Nothing.
    Ordinary,
    /// Nothing; when it leaves, its memory is saved.
    Saves,
    /// It is a new node with state.
    NewState,
    /// It has the state directory of this process, if there is one, and starts after the end of that.
    ReturnOf(usize),
}

/// A step of the model; numbers are processes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MemberAction {
    /// The next process asks to join.
    Join(usize),
    /// The oldest message of this link arrives.
    Deliver {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The purpose of the link.
        kind: LinkKind,
    },
    /// The last messages of a dead sender on this link are lost.
    Cut {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The purpose of the link.
        kind: LinkKind,
    },
    /// The process dies.
    Kill(usize),
    /// The process leaves.
    Leave(usize),
    /// The network partitions the two.
    Part(usize, usize),
    /// The network partitions the process from all others that run.
    Isolate(usize),
    /// A process that does not reach a dead one learns of the death from a further member, which is not modelled.
    Learn {
        /// The dead process.
        of: usize,
        /// The process that learns of it.
        at: usize,
    },
    /// The process judges the accusations that it has received.
    Judge(usize),
    /// The process settles the oldest removal that it has not settled.
    Settle(usize),
}
