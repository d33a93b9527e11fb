//! Remote memory for clusters: programs on many nodes share one coherent global memory.
//!
//! ```no_run
//! use farside::{Config, Node};
//! # fn main() -> Result<(), farside::Error> {
//! let node = Node::create(&Config::new("example"))?; // others: Node::join(&Config::new("example"))
//! let mut session = node.session()?;
//! let counter = session.alloc(8)?;
//! session.fetch_add(counter, 1)?;
//! # Ok(())
//! # }
//! ```
#![deny(unsafe_code)]

mod allocation;
mod atomic;
mod boot;
pub mod call;
#[cfg(canary)]
pub mod canary;
#[cfg(not(canary))]
mod canary;
pub mod channel;
mod clock;
mod config;
mod contact;
mod engine;
mod error;
pub mod fabrics;
#[cfg(doctest)]
mod guides;
mod hit;
mod incoming;
mod leave;
mod lock_hit;
mod locks;
mod memory;
mod node;
mod occupancy;
mod operation;
mod patience;
mod peer;
mod registered;
mod requests;
mod resources;
mod route;
mod stats;
mod stopped;
mod turn;
mod wait;
mod write_back;

pub use config::{AllocationHint, AllocationSpec, Config};
pub use error::Error;
pub use farside_base::{
    Blame, ErrorCode, Generation, GlobalAddress, Limits, LineSize, MemoryId, NodeId,
    ParseAddressError, Retry, SessionId,
};
pub use leave::{Departure, Leaving};
pub use locks::LockGuard;
pub use memory::{Session, Timed};
pub use node::{Joining, Member, Node, REQUIREMENTS};
pub use occupancy::{Occupancy, occupancy};
pub use stats::Stats;
pub use zerocopy;
