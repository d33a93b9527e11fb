//! Decoding below the verifier and the machines: programs as operations, their address space, their use of registers.
//!
//! [`crate::isa`] decodes bytes to instructions; [`predecode`] decodes instructions to the operations that interpreters
//! and compiler execute. Nothing here depends on a verdict or on a call in progress.

mod area;
mod ops;
mod registers;

pub use area::Area;
pub(crate) use ops::{Code, Op, ZERO, fuse, predecode, wide_value};
pub(crate) use registers::{register_bit, uses};
