//! Remote memory calls between a caller and the executor of its calls (003 §2): who may run what, when,
//! and what came of it.
//!
//! A *session* is a caller's queue pair as the executor knows it: it outlives the link that carries it.
//! It has some *slots*, and a call occupies one from its request to its reply. Each request carries its
//! slot and the slot's next sequence number, so that one that is sent again is known as such: it is
//! never run again, and where it has ended its reply is repeated. A slot keeps its last reply until the
//! next request in it, which says that the reply has come. (Network file systems keep sessions like
//! this, RFC 8881 §2.10.6.) A slot is a credit too: a caller has at most as many requests under way as
//! the executor has receives for it, and the other way round, so that nothing else has to be counted.
//!
//! What a request carries beside its header does not enter: parameters, code and results belong to the
//! runtime, by session and slot.
//!
//! | file | what |
//! | --- | --- |
//! | `message.rs` | headers and the bodies that have a form |
//! | `window.rs` | the caller's half: slots, what to send again, what came of it |
//! | `sessions.rs` | the executor's half: at most once |
//! | `programs.rs` | which sessions have registered which programs, and what that takes |
//! | `queue.rs` | who has had least goes next: fair queueing by weight |
//! | `schedule.rs` | whose call runs next: tenants by weight, sessions of a tenant equally |
//! | `server.rs` | the executor's machine, of the four before |

mod canary;
mod message;
mod programs;
mod queue;
mod schedule;
mod server;
mod sessions;
mod window;

#[cfg(canary)]
pub use canary::Mutant;
pub use message::{
    Header, Invocation, Part, Refused, Reply, Stopped, Verb, decode_reply, encode_reply,
};
pub use programs::{PROGRAMS_MAX, Quota, Sizes, Taken, object_of, program_of};
pub use schedule::{Schedule, Turn};
pub use server::{Asked, Call, Effect, Server, Settings};
pub use sessions::{Opened, SessionId};
pub use window::{Answered, Window};

/// Most slots of a session.
pub const SLOTS_MAX: usize = 256;

/// Number of a session at the executor while it lasts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Session(pub u32);
