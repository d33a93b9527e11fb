//! Farside's fabric over libibverbs: InfiniBand, RoCE, iWARP, and the kernel's software devices. The
//! library is loaded at run time; if it is absent, the error says what to install.
//!
//! From the data path outwards: `port` (requests, completions, links), `intake` (its completion queue,
//! shared with the control thread), `region`, `adapter` (device memory) and `window` (rkeys by peer);
//! then `fabric`, `control` (the thread) with its `conversation`s and their frames (`wire`); `device`
//! chooses device, port and address, `facts` derives capabilities from the device's attributes;
//! [`status`] has texts for errors; `neighbour` shortens the kernel's neighbour discovery; below all,
//! `ffi` calls C.
//!
//! Queue pairs are connected by their control stream, or by rdma_cm (`manager`): always on iWARP, which
//! has no other way, and elsewhere if [`Options::connection_manager`] asks for it. On iWARP a READ
//! after the last request proves that all before it are done (`port::confirm`), and less is promised
//! ([`DeviceFacts::capabilities`]).
//!
//! Not implemented: special cases for vendors, and any capability that the device's attributes do not
//! show; emulation; retries of failed requests; protection of data packets, which adapters send in
//! plain text. Remote keys are sent over authenticated control streams only.

#![deny(unsafe_code)]

mod adapter;
mod connecting;
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
mod pending_work;
mod port;
mod random;
mod region;
mod resolve;
pub mod status;
mod token;
mod window;
mod wire;

pub use device::{Choice, DeviceReport, Limits};
pub use fabric::VerbsFabric;
pub use facts::{AtomicFact, DeviceFacts, OnDemand, Transport, Trial};
pub use ffi::{CONNECTION_MANAGER, LIBRARY, map_device};
pub use options::{OpenError, Options};
