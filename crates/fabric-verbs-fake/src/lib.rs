//! A libibverbs without a device: the functions that Farside's verbs fabric uses, over the memory of
//! one process, and what a test needs to make it fail.
//!
//! It shows what the kernel's software devices cannot: each completion status, odd capabilities, a
//! request that never ends, a port that moves its address, a device that is removed. Atomics are
//! atomic against processors, and bytes land in rising order.
//!
//! What is absent: other processes, time-outs and retries of its own, the extended interface of
//! posting (which soft-RoCE has), and everything else that the fabric does not use.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the fabric | call the functions of `verbs`, as of any libibverbs | from any thread |
//! | a test | tell it what to do, through [`Fake`] | at any time |

mod copy;
mod fake;
#[allow(dead_code, reason = "shared with the fabric, which uses more of it")]
#[path = "../../fabric-verbs/src/ffi/types.rs"]
mod types;
mod verbs;
mod world;

pub use fake::{Fake, Odd};
