//! Remote memory calls: verified user programs that run at the executor that serves the memory (003).
//!
//! A client ([`Caller`]) registers programs over its connection and invokes them by number with parameters. A
//! server ([`CallServer`]) runs them on the memory lent to it. A search of a list of n nodes takes one round trip
//! instead of n.
//!
//! ```
//! use farside::call::{CallOptions, CallServer, Caller, CallerOptions, ServerOptions};
//! use farside_fabric::{Fabric, MemFabric};
//! use std::sync::{Arc, atomic::{AtomicBool, Ordering}};
//!
//! let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
//! let mut server = CallServer::listen(&fabric, "memory", &ServerOptions::default())?;
//! let memory = server.make_region(0, 4096, farside_base::Access::ALL)?;
//! memory.write(64, &41_u64.to_le_bytes()).unwrap();
//! let stop = AtomicBool::new(false);
//! let answer = std::thread::scope(|scope| {
//!     scope.spawn(|| server.serve(&stop));
//!     let caller = Caller::connect(&fabric, "memory", &CallerOptions::default());
//!     let answer = caller.and_then(|mut caller| {
//!         let add = b"r1 = 0\nr2 = 64\nr3 = 1\ncall fetch_add\nexit";
//!         let program = caller.register(add)?.remove(0);
//!         caller.call(&program, &[], CallOptions::new())
//!     });
//!     stop.store(true, Ordering::Release);
//!     answer
//! })?;
//! assert_eq!(answer.result, 41);
//! assert_eq!(memory.load(64, Ordering::Acquire).unwrap(), 42);
//! # Ok::<_, farside::Error>(())
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
//! | folder | content |
//! | --- | --- |
//! | `client` | [`Caller`], and [`Placed`], a client with several places |
//! | `server` | [`CallServer`]: sessions, registrations, notifications |
//! | `executor` | calls in progress on one thread, their helpers; registered programs and their state |
//! | `memory` | what calls access: local, remote and global memory |
//! | `scheduling` | time slices, order of verifications, choice of the place |
//! | `transport` | message port, handshake, list of programs, reconnect backoff |

mod client;
mod executor;
mod memory;
mod scheduling;
mod server;
mod transport;

pub use client::{
    CallAnswer, CallOptions, Caller, CallerOptions, Placed, PlacedAnswer, PlacedProgram,
    PlacedTicket, Site, Ticket,
};
pub use farside_protocol::call::Quota;
pub use farside_rmc as rmc;
pub use memory::regions::REGIONS_MAX;
pub use scheduling::place_model::{PlaceModel, Prices, Processor};
pub use scheduling::placement_policy::{Choice, ChoiceReason, LearningOptions, Placement};
pub use server::{CallServer, ServerOptions};
pub use transport::program_list::Program;
