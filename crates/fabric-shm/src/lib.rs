//! Farside's shared-memory fabric: processes of one machine and one user.
//!
//! A region is a memfd that peers map, so WRITE, READ and atomics are done by the thread that posts
//! them and the owner executes nothing. Messages go through rings of cache lines. All of that has no
//! name in a file system and ends with its process.
//!
//! # Names
//!
//! A port that listens has a Unix socket in a folder of its user, which has mode 700 and is checked on
//! an open descriptor: `/tmp/farside-UID`, or `/run/user/UID/farside` where another user has taken the
//! former. `FARSIDE_RUNTIME_DIR` or [`ShmOptions::folder`] names another one; no other variable counts,
//! since not every shell, service or `su` has the same. What a killed process leaves there is removed
//! when any port of the user listens next. No other user may write a folder or a link on the way there
//! (a sticky folder such as `/tmp` is right), and the folder must be on a file system of this host alone.
//!
//! Processes find each other when they see the same folder: containers with a `/tmp` of their own do
//! not. Network namespaces make no difference, for they do not part file systems. User namespaces do:
//! the kernel names the peer's user, who must be the same on both sides. A user that its namespace
//! does not map (65534) has no names, for it cannot be told from others.
//!
//! From the data path outwards: `port` (its requests, its arrivals), `ring`, `bell` (sleep),
//! `barrier`, `queue`; then `region`, `connection`, `control` (the one thread), with the
//! `message`s and `socket`s it speaks over, and their `names` (`parents`); below all, `mapping` and `layout`.
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
mod names;
#[cfg(all(test, not(any(loom, shuttle))))]
mod names_tests;
mod options;
mod parents;
mod port;
mod probe;
mod queue;
mod region;
mod ring;
#[cfg(all(test, not(any(loom, shuttle))))]
mod ring_tests;
mod socket;
#[cfg(all(test, not(any(loom, shuttle))))]
mod socket_tests;

pub use fabric::ShmFabric;
pub use mapping::Pages;
pub use names::listening;
pub use options::{SEND_BYTES_MAX, ShmOptions};
pub use probe::{Check, probe};
