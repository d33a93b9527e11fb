//! Remote memory calls between a caller and an executor (003 §2): admission, at-most-once execution, scheduling and
//! replies.
//!
//! A *session* is a caller's connection as the executor knows it: it outlives the link that carries it. It has a
//! fixed number of *slots*, and a call occupies one from its request to its reply. Each request carries its slot and
//! the slot's next sequence number, so that a repeated request is recognized: it is never run again, and if it has
//! ended its reply is repeated. A slot keeps its last reply until the next request in it, which acknowledges that
//! reply. (Network file systems keep sessions like this, RFC 8881 §2.10.6.) A slot is a credit too: a caller has at
//! most as many requests in flight as the executor has receives for it, and vice versa, so no other flow control is
//! needed.
//!
//! Only headers enter the machines: parameters, code and results belong to the runtime, by session and slot.
//!
//! | file | contents |
//! | --- | --- |
//! | `message.rs` | headers and the bodies with a fixed form |
//! | `window.rs` | the caller's half: slots, requests to repeat, replies |
//! | `sessions.rs` | the executor's half: at-most-once execution |
//! | `programs.rs` | the programs that sessions have registered, and tenants' quotas |
//! | `queue.rs` | start-time fair queueing by weight |
//! | `schedule.rs` | the next call to run: tenants by weight, sessions of a tenant equally |
//! | `server.rs` | the executor's machine, built from the previous four |

mod canary;
mod message;
mod programs;
mod queue;
mod schedule;
mod server;
mod sessions;
mod window;

#[cfg(canary)]
pub use canary::CallMutant;
pub use message::{
    Header, Invocation, Part, Refused, Reply, Stopped, Verb, decode_reply, encode_reply,
};
pub use programs::{PROGRAMS_MAX, Quota, Sizes, Taken, object_of, program_of};
pub use schedule::{RunState, Schedule};
pub use server::{Effect, RuntimeAction, Server, Settings};
pub use sessions::{Opened, SessionId};
pub use window::{Answered, Window};

/// The maximum number of slots of a session.
pub const SLOTS_MAX: usize = 256;

/// The executor's number of a session while it lasts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session(pub u32);

/// A request in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct CallId {
    /// Its session.
    pub session: Session,
    /// Its slot.
    pub slot: u8,
}
