//! Remote memory for clusters: programs on many nodes share one coherent global memory.
//!
//! ```no_run
//! use farside::prelude::*;
//! # fn main() -> Result<(), Error> {
//! let node = Node::open(&Config::new("example"), "shm", Security::open())?; // founds or joins
//! let mut session = node.session()?;
//! let counter = session.alloc(8)?;
//! session.fetch_add(counter, 1)?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod allocation;
mod atomic;
mod buffer;
pub mod call;
#[cfg(canary)]
pub mod canary;
#[cfg(not(canary))]
mod canary;
pub mod channel;
mod clock;
mod commits;
mod config;
mod direct;
mod drain;
pub mod durable;
mod engine;
mod error;
mod event_wait;
pub mod fabrics;
mod group;
#[cfg(doctest)]
mod guides;
mod hit;
pub mod launch;
mod leave;
mod lock_hit;
mod locks;
mod members;
mod mutex;
mod node;
mod occupancy;
pub mod onesided;
mod open;
mod operation;
mod pool;
mod port_wait;
pub mod prelude;
mod progress;
pub mod record;
mod refusal;
mod registered;
mod resources;
mod roots;
pub mod runtime;
mod saver;
pub mod security;
mod session;
mod setters;
mod state;
mod state_report;
mod stats;
pub mod topology;
mod typed;
mod wait;
mod watch;
mod write_back;

pub use config::{AllocationHint, AllocationSpec, Config, Durability};
pub use drain::DrainTarget;
pub use error::Error;
pub use farside_base::{
    Blame, ErrorCode, ErrorEntry, ErrorKind, Generation, GlobalAddress, Limits, LineSize, MemoryId,
    NodeId, ParseAddressError, Retry, SessionId,
};
pub use group::Group;
pub use leave::{Departure, Leaving};
pub use locks::LockGuard;
pub use members::{MemberChange, MemberChanges};
pub use node::{Joining, Member, Node, REQUIREMENTS};
pub use occupancy::{Occupancy, occupancy};
pub use roots::{ROOT_NAME_MAX, Root};
pub use saver::Drained;
pub use session::{Session, Timed};
pub use state_report::StateReport;
pub use stats::Stats;
pub use typed::{GlobalSlice, Pod};
pub use zerocopy;
