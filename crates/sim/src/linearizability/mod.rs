//! Is a recorded history of concurrent operations what some sequential execution could have given,
//! with every operation taking effect between its invocation and its return?
//!
//! The search is Wing and Gong's with Lowe's memory of visited configurations (*Testing for
//! linearizability*, 2017): from the operations that could be next, pick one that the specification
//! agrees with, and go back when stuck. A visited configuration is remembered by how far all is
//! done, what is done beyond that, and the state; so a long history costs memory in proportion to
//! its length, not to its square. Linearizability is local: [`check_each`] cuts a history by key.
//!
//! Operations whose outcome nobody knows (their process died, or the time ran out) may have taken
//! effect at any time after their invocation, or never.

mod check;
mod history;
mod specification;

pub use check::{Call, Failure, Verdict, check, check_each};
pub use history::{Error as HistoryError, ErrorMeans, History, read_history};
pub use specification::{
    KeyValue, KeyValueAnswer, KeyValueOperation, Lock, LockOperation, Register, RegisterOperation,
    Specification,
};
