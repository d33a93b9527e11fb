//! A libibverbs without a device: the functions that Farside's verbs fabric uses, over the memory of
//! one process, and controls by which a test makes it fail.
//!
//! It covers what the kernel's software devices cannot: each completion status, odd capabilities, a
//! request that never completes, a port that changes its address, a device that is removed. Atomics are
//! atomic with those of processors, and bytes are placed in rising order.
//!
//! Not implemented: other processes, timeouts and retries, the extended interface of posting (which
//! soft-RoCE has), and everything else that the fabric does not use.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the fabric | call the functions of `verbs`, as of any libibverbs | from any thread |
//! | a test | control it, through [`Fake`] | at any time |

mod copy;
mod fake;
#[allow(dead_code, reason = "shared with the fabric, which uses more of it")]
#[path = "../../fabric-verbs/src/ffi/types.rs"]
mod types;
mod verbs;
mod world;

pub use fake::{Fake, Odd};
