//! All protocols of Farside, as pure state machines: `step(&mut self, event, &mut effects)`.
//!
//! What is absent: input and output, clocks, threads, randomness, callbacks, the fabric, and every
//! other machine. Bytes of lines never enter; machines speak of lines, grants and frames.
#![no_std]
#![forbid(unsafe_code)]

extern crate alloc;

pub mod allocate;
pub mod call;
pub mod channel;
pub mod coherence;
pub mod lock;
pub mod member;
mod table;
pub mod wire;

pub use table::{Key, Table};
