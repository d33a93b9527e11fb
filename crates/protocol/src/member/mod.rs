//! Membership: who is in the cluster, under which number, in which numbered view.
//!
//! - [`hello`]: what a process says before it has a link, and the answers.
//! - [`message`]: what members say to each other.
//! - [`membership`]: the machine; its events and effects.
//! - [`contact`]: a machine beside it, which mends broken links between living members.
//! - [`standing`]: a machine beside it, by which a member knows at any moment whether it may have been removed.
//! - [`watch`]: a machine that finds stopped members of one machine.
//! - [`burial`]: a machine beside it, which tells when nothing more can come of a death.
//!
//! The cluster has one *rendezvous name*, bound by the coordinator: the live node that was admitted first. A process
//! that finds the name unbound founds the cluster; otherwise it sends [`Join`] there, gets
//! [`Welcome`], and connects with [`Peer`] to every member. On one machine a link that breaks
//! is a dead process: the machine trusts its runtime in that (the operating system knows). Between
//! hosts a member that was not reached for the whole lease may live on, and nobody is declared dead
//! for that without a quorum (`membership/quorum.rs`).

pub mod burial;
mod canary;
pub mod contact;
mod event;
pub mod hello;
pub mod membership;
pub mod message;
mod roster;
pub mod standing;
pub mod watch;

pub use burial::Burials;
#[cfg(canary)]
pub use canary::Mutant;
pub use event::{Death, Effect, Effects, Event, FounderSettings, Identity, Leases, RequestId};
pub use hello::{
    Answer, AskOccupancy, EXTRA_MAX, Elsewhere, HELLO_MAX, Hello, HelloError, Join, Listed,
    Occupancy, PROTOCOL_VERSION, Peer, PeerReply, Refusal, Resume, Resumed, Welcome,
    valid_cluster_name,
};
pub use membership::Membership;
pub use message::{Change, Message};
pub use standing::Standing;
pub use watch::{Evidence, Outlives, Watch};
