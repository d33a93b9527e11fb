//! One-sided memory: memory of other machines, used without their processors (paper 000).
//!
//! A [`MemoryServer`] registers memory, lends it under a name, and sleeps. A [`MemoryClient`] reads and writes it and
//! executes atomics on its words. No program runs at the server for these requests: its adapter, its fabric, or over
//! shared memory the client itself executes them.
//!
//! ```
//! use farside::fabrics;
//! use farside::onesided::{MemoryClient, MemoryClientOptions, LendOptions, MemoryServer};
//! # let (name, second) = (format!("pool-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let fabric = fabrics::shared_memory()?;
//! let server = MemoryServer::lend(&fabric, &name, 1 << 20, &LendOptions::default())?;
//!
//! let mut client = MemoryClient::new(&fabrics::shared_memory()?, &MemoryClientOptions::default())?;
//! let pool = client.open(server.address(), second)?;
//! client.write_bytes(pool.at(4096), b"far away", second)?;
//!
//! let buffer = client.register(64)?; // for transfers without copies
//! let read = client.read(pool.at(4096), &buffer, 0..8)?; // queued
//! let added = client.fetch_add(pool.at(0), 5)?;
//! client.submit(); // both with one doorbell
//! assert_eq!(client.wait(added, second)?, 0); // the value before
//! client.wait(read, second)?;
//! let mut bytes = [0; 8];
//! buffer.read(0, &mut bytes)?;
//! assert_eq!(&bytes, b"far away");
//! # Ok::<(), farside::Error>(())
//! ```
//!
//! Order, visibility, lost connections and cost: see [`MemoryClient`]. Machines with several sockets: [`SocketClients`].

mod burst;
mod client;
mod deadline;
mod dirty;
mod engine;
mod guard;
mod header;
mod heap;
mod hello;
mod lists;
mod lock;
mod options;
mod proxy;
mod publication;
mod ranges;
mod recoverable;
mod request;
mod requester;
mod ring;
mod sequencer;
mod server;
mod sockets;
mod ticket;
mod vector;

pub use crate::buffer::Buffer;
pub use burst::{BurstBuffer, BurstOptions, BurstStats};
pub use client::{MemoryClient, RemoteAddress, RemoteMemory, RequestId};
pub use deadline::Deadline;
pub use farside_base::{Access, FlushScope, RegionKind};
pub use guard::RemoteGuard;
pub use header::MemoryHeader;
pub use heap::{HeapOptions, RemoteHeap};
pub use lock::RemoteLock;
pub use options::{MemoryClientOptions, MemoryClientStats};
pub use publication::Publication;
pub use ranges::{RANGES_MAX, RangeList, TransferRange};
pub use recoverable::RecoverableWord;
pub use requester::{ProxiedRequestId, SocketRequester};
pub use sequencer::Sequencer;
pub use server::{LendOptions, MemoryServer};
pub use sockets::{SocketClients, SocketOptions, SocketStats};
pub use ticket::{QueueLock, TicketLock};
pub use vector::{VectorCosts, VectorIo, VectorPlan};
