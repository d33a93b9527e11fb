//! Farside's fabric over libibverbs: InfiniBand, RoCE, iWARP, and the kernel's software devices. The
//! library is found at run time; a machine without it is told what to install.
//!
//! From the data path outwards: `port` (requests, completions, links), `intake` (its completions, of
//! which some are the control thread's), `region`, `adapter` (memory there) and `window` (which peer reaches it); then `fabric`,
//! `control` (the one thread) with its `conversation`s and what they say (`wire`); `device` chooses
//! device, port and address, `facts` makes promises of what the device says; [`status`] has the words
//! for what went wrong; `neighbour` shortens the kernel's search for peers; below all, `ffi` speaks C.
//!
//! Queue pairs are connected by what two ends say over their control stream, or by rdma_cm (`manager`):
//! always on iWARP, which knows nothing else, elsewhere where [`Options::connection_manager`] asks for
//! it. On iWARP a READ behind the last request tells that all before it are done (`port::confirm`), and
//! less is promised ([`DeviceFacts::capabilities`]).
//!
//! What is absent: vendors' names, and any capability that the device's own answers do not show;
//! emulation; retries of requests that failed; protection of data packets, which adapters send in
//! plain text. Remote keys travel over authenticated control streams alone.

#![deny(unsafe_code)]

mod adapter;
mod control;
mod conversation;
mod core;
mod device;
mod fabric;
mod facts;
#[allow(unsafe_code, reason = "the home of what speaks C")]
mod ffi;
mod inbox;
mod intake;
mod manager;
mod neighbour;
mod options;
mod port;
mod region;
pub mod status;
mod window;
mod wire;

pub use device::{Choice, DeviceReport, Limits};
pub use fabric::VerbsFabric;
pub use facts::{AtomicFact, DeviceFacts, OnDemand, Transport, Trial};
pub use ffi::{CONNECTION_MANAGER, LIBRARY, map_device};
pub use options::{OpenError, Options};
