//! All protocols of Farside, as pure state machines: `step(&mut self, event, &mut effects)`.
//!
//! They contain no input or output, clocks, threads, randomness, callbacks or fabric, and no machine refers to
//! another. Bytes of lines never enter; machines handle lines, grants and frames.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod allocate;
pub mod call;
pub mod channel;
pub mod coherence;
pub mod lock;
pub mod member;
pub mod messaging;
pub mod persist;
pub mod remote_lock;
pub mod remote_log;
mod table;
pub mod wire;

pub use table::{Table, TableKey};
