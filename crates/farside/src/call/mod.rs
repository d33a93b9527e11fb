//! Remote memory calls: programs of the user, verified, that run beside the memory (003).
//!
//! A [`Caller`] registers programs over its connection and invokes them by number with parameters; a
//! [`CallServer`] runs them on the memory that it was lent. A search of a list of n nodes is one round
//! trip instead of n.
//!
//! ```
//! use farside::call::{CallServer, Caller, CallerOptions, ServerOptions, rmc};
//! use farside_base::Access;
//! use farside_fabric::{Fabric, MemFabric};
//! use std::sync::Arc;
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
//! let mut server = CallServer::listen(&fabric, "memory", &ServerOptions::default())?;
//! let memory = server.make_region(0, 4096, Access::ALL)?;
//! memory.write(64, &41_u64.to_le_bytes()).unwrap();
//!
//! let mut caller = Caller::begin(&fabric, "memory", &CallerOptions::default())?;
//! while !caller.is_connected() { // both ends on one thread: turn both
//!     server.turn();
//!     caller.turn()?;
//! }
//! # let _ = (rmc::HEADER, &mut caller);
//! # Ok(())
//! # }
//! ```
//!
//! # What holds
//!
//! *At most once.* A call never runs twice, whatever links do; each ends once. *Order.* None between
//! calls. *Global addresses* are for executors and callers that are part of a node
//! ([`CallServer::share`]). *Visibility.* What a call wrote to its executor's memory is visible to calls and one-sided
//! requests that begin after its answer. *Isolation.* A program touches only its own memory, its
//! declared state, and regions as their access allows peers to; it ends within its budget. Tenants
//! share the processor by weight and callers of a tenant its part, however long their calls and the slices of
//! them are; what is too much for a quota is refused.
//! *Durability.* None.
//!
//! | file | what |
//! | --- | --- |
//! | `caller.rs`, `server.rs` | the two ends |
//! | `placement.rs`, `placed.rs` | where a call runs: the chooser, and a caller with several places |
//! | `executor.rs`, `pace.rs` | calls in progress on one thread, a slice at a time |
//! | `executor/loads.rs` | which registration is verified next |
//! | `executor/watching.rs` | calls that wait for what nobody announces |
//! | `global.rs`, `executor/coherent.rs` | global addresses, by sessions of a node that is shared |
//! | `beside.rs`, `pieces.rs` | helpers by loads and stores; those with long buffers, a piece at a time |
//! | `across.rs` | helpers by one-sided requests |
//! | `memory.rs`, `state.rs`, `topics.rs` | regions, state that outlives calls, notifications |
//! | `words.rs` | what of regions machine code loads by itself |
//! | `loaded.rs`, `programs.rs`, `native.rs` | verified programs, what is told of them, and when they are compiled |
//! | `quota.rs` | quotas where nothing is said, and words about what is over them |
//! | `hello.rs`, `mail.rs` | what goes over links |

mod across;
mod again;
mod beside;
mod caller;
mod ends;
mod executor;
mod global;
mod hello;
mod host;
mod loaded;
mod mail;
mod memory;
mod native;
mod pace;
mod pieces;
mod placed;
mod placement;
mod programs;
mod quota;
mod server;
mod state;
mod topics;
mod words;

pub use caller::{Answer, Caller, CallerOptions, Runs, Ticket};
pub use farside_protocol::call::Quota;
pub use farside_rmc as rmc;
pub use memory::REGIONS_MAX;
pub use placed::{Placed, PlacedAnswer, PlacedProgram, PlacedTicket};
pub use placement::{Choice, Core, Manner, PlaceModel, Placement, Prices, Why};
pub use programs::Program;
pub use server::{CallServer, ServerOptions};
