//! Membership: which nodes are in the cluster, under which number, in which numbered view.
//!
//! - [`hello`]: what a process sends before it has a link, and the answers.
//! - [`message`]: messages between members.
//! - [`membership`]: the membership machine, its events and effects.
//! - [`contact`]: reconnects broken links between live members.
//! - [`standing`]: a lease by which a member knows at any moment whether it may have been removed.
//! - [`watch`]: detects stopped members on one machine.
//! - [`burial`]: determines when no message sent because of a dead node can arrive any more.
//!
//! The cluster has one *rendezvous name*, bound by the coordinator: the live node that was admitted first. A process
//! that finds the name unbound founds the cluster; otherwise it sends [`Join`] there, receives [`Welcome`], and
//! connects to every member with [`PeerRequest`]. On one machine a broken link means a dead process, as reported by the
//! operating system. Between hosts, a member that was unreachable for the whole lease may still be alive, and is
//! declared dead only with a quorum (`membership/quorum.rs`).

pub mod burial;
mod canary;
pub mod contact;
mod event;
pub mod hello;
mod keeps;
pub mod membership;
pub mod message;
mod role;
mod roster;
mod settings;
pub mod standing;
pub mod watch;

pub use burial::Burials;
#[cfg(canary)]
pub use canary::MemberMutant;
pub use event::{Death, Effects, Identity, MemberEffect, MemberEvent, RequestId};
pub use hello::{
    AskOccupancy, Elsewhere, HELLO_MAX, HelloAnswer, HelloError, HelloRequest, Join, JoinRefusal,
    LentNumber, ListedMember, Occupancy, PROTOCOL_VERSION, PeerReply, PeerRequest, Resume, Resumed,
    Welcome, valid_cluster_name,
};
pub use keeps::Keeps;
pub use membership::Membership;
pub use message::{Change, MemberMessage};
pub use role::MemberRole;
pub use settings::{FounderSettings, Leases};
pub use standing::Standing;
pub use watch::{Evidence, Outlives, Watch};
