//! Memory of the homes: which bytes are handed out, and at which node an allocation shall be.
//!
//! - [`allocator`]: the memory of one home.
//! - [`placement`]: the choice of the home.
//! - [`message`]: what nodes say to each other about both.
//!
//! What is absent: lines' owners and bytes. Before a block is freed its lines are recalled from
//! everybody who holds them, and whoever allocates one fills it; both are the runtime's.

pub mod allocator;
mod bits;
mod canary;
pub mod message;
pub mod placement;

pub use allocator::{Allocator, Block, RESERVED_BYTES, SEGMENT_BYTES};
#[cfg(canary)]
pub use canary::Mutant;
pub use message::{AllocateFlags, Message};
pub use placement::{Hint, Placement};
