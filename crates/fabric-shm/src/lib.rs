//! Farside's shared-memory fabric: processes of one machine and one user.
//!
//! A region is a memfd that peers map, so WRITE, READ and atomics are executed by the thread that posts
//! them and the owner executes nothing. Messages are sent through rings of cache lines. None of this
//! memory has a name in a file system, and all of it ends with its process.
//!
//! # Names
//!
//! A listening port has a Unix socket in a folder of its user, with mode 700, checked on an open
//! descriptor: `/tmp/farside-UID`, or `/run/user/UID/farside` if another user has taken the former.
//! `FARSIDE_RUNTIME_DIR` or [`ShmOptions::folder`] names another one; no other variable counts, since
//! not every shell, service or `su` has the same. Sockets of killed processes are removed when any port
//! of the user listens next. No other user may be able to write a folder or a symbolic link on the path
//! to it (a sticky folder such as `/tmp` is allowed), and the folder must be on a file system of this
//! host alone.
//!
//! Processes find each other if they see the same folder: containers with a `/tmp` of their own do not.
//! Network namespaces make no difference, since they do not separate file systems. User namespaces do:
//! the kernel reports the peer's user, which must be the same on both sides. A user that is not mapped
//! in its namespace (65534) has no names, since it is indistinguishable from others.
//!
//! From the data path outwards: `port` (requests, arrivals), `ring`, `bell` (sleep), `barrier`,
//! `queue`; then `region`, `connection`, `control` (the thread), with its `message`s, `socket`s and
//! `names` (`parents`); below all, `mapping` and `layout`.
//!
//! Not protected against: a process of the same user with hostile intent. A peer that was given a
//! region can keep writing what it mapped. No cost on the hot path grows with the number of regions or
//! users of the fabric.

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
mod persistent;
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
pub use persistent::{PERSISTENT_LINE, PersistentMapping};
pub use probe::{Check, probe};
