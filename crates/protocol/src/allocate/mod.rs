//! Allocation of the homes' memory, and the choice of the node for an allocation.
//!
//! - [`allocator`]: the memory of one home.
//! - [`placement`]: the choice of the home.
//! - [`message`]: messages between nodes about both.
//!
//! Owners and bytes of lines are not handled here. The runtime recalls the lines of a block from all holders before
//! the block is freed, and the requester of a block fills it.

pub mod allocator;
mod bits;
mod canary;
pub mod message;
pub mod placement;

pub use allocator::{Allocator, Block, RESERVED_BYTES, SEGMENT_BYTES};
#[cfg(canary)]
pub use canary::AllocateMutant;
pub use message::{AllocateFlags, AllocateMessage, StateNeeds};
pub use placement::{Hint, Placement};
