//! Remote memory calls: verified user programs that run at the executor that serves the memory (003).
//!
//! A client ([`Caller`]) registers programs over its connection and invokes them by number with parameters. A
//! server ([`CallServer`]) runs them on the memory lent to it. A search of a list of n nodes takes one round trip
//! instead of n.
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
//! while !caller.is_connected() { // both ends on one thread: poll both
//!     server.turn();
//!     caller.turn()?;
//! }
//! # let _ = (rmc::HEADER, &mut caller);
//! # Ok(())
//! # }
//! ```
//!
//! *At most once.* A call never runs twice, whatever links do; each ends once. *Order.* None between calls. *Global
//! addresses* are for executors and callers that are part of a node ([`CallServer::share`]). *Visibility.* Writes
//! of a call to its executor's memory are visible to calls and one-sided requests that begin after its answer.
//! *Isolation.* A program accesses only its own memory, its declared state, and regions as their access rights
//! permit; it ends within its budget. Tenants share the processor by weight and callers share their tenant's part
//! (start-time fair queueing), regardless of the length of their calls and slices; requests beyond a quota are
//! refused. *Durability.* None.
//!
//! | file | content |
//! | --- | --- |
//! | `caller.rs`, `server.rs` | client and server |
//! | `placement.rs`, `placed.rs` | choice of the place where a call runs; a client with several places |
//! | `executor.rs`, `pace.rs` | calls in progress on one thread, in adaptive time slices |
//! | `executor/loads.rs` | scheduling of registrations |
//! | `executor/watching.rs` | blocked calls that are polled |
//! | `global.rs`, `executor/coherent.rs` | global addresses, through sessions of a shared node |
//! | `beside.rs`, `pieces.rs` | helpers on local memory: loads and stores; long buffers in chunks |
//! | `across.rs` | helpers on remote memory: one-sided requests |
//! | `memory.rs`, `state.rs`, `topics.rs` | lent regions, state that outlives calls, notifications |
//! | `words.rs` | regions that machine code loads from directly |
//! | `loaded.rs`, `programs.rs`, `native.rs` | verified programs, their wire list, lazy compilation |
//! | `quota.rs` | default quotas, texts of refusals |
//! | `hello.rs`, `mail.rs` | handshake, message port |

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
