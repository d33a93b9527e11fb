//! The messaging channel between two nodes: order, credits and validation of the 56-byte messages of
//! [`crate::wire`].
//!
//! What is absent: links, receives and work requests. The runtime posts what [`Messenger::peek`]
//! gives and hands what arrives to [`Messenger::received`].

mod canary;
mod messenger;

#[cfg(canary)]
pub use canary::Mutant;
pub use messenger::Messenger;
