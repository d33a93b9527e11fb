//! Farside's shared-memory fabric: processes of one machine, one network namespace and one user.
//!
//! A region is a memfd that peers map, so WRITE, READ and atomics are done by the thread that posts
//! them and the owner executes nothing. Messages go through rings of cache lines. Nothing has a
//! name in a file system: a process that is killed leaves nothing behind.
//!
//! From the data path outwards: `port` (its requests, its arrivals), `ring`, `bell` (sleep),
//! `barrier`, `queue`; then `region`, `connection`, `control` (the one thread), with the
//! `message`s and `socket`s it speaks over; below all, `mapping` and `layout`.
//!
//! What is absent: any cost on the hot path that grows with the number of regions or users of the
//! fabric, and any protection against a process of the same user that wants to do harm: whoever was
//! given a region can keep writing what it mapped.

mod barrier;
mod bell;
mod connection;
mod control;
mod fabric;
#[cfg(all(test, not(any(loom, shuttle))))]
mod hostile_tests;
mod layout;
mod mapping;
#[cfg(all(test, not(any(loom, shuttle))))]
mod mapping_tests;
mod message;
#[cfg(all(test, any(loom, shuttle)))]
mod model;
mod options;
mod port;
mod probe;
mod queue;
mod region;
mod ring;
#[cfg(all(test, not(any(loom, shuttle))))]
mod ring_tests;
mod socket;

pub use fabric::ShmFabric;
pub use mapping::Pages;
pub use options::{SEND_BYTES_MAX, ShmOptions};
pub use probe::{Check, probe};
