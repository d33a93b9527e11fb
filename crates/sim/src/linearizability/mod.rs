//! A linearizability checker (Herlihy and Wing, 1990): whether a recorded history has a sequential execution in which
//! every operation takes effect between its invocation and its return.
//!
//! The search is Wing and Gong's with Lowe's cache of visited configurations (*Testing for linearizability*, 2017):
//! of the operations that could be next, try one that the specification allows, and backtrack if none remains. A
//! configuration is stored as the length of the completed prefix, the operations completed beyond it, and the state,
//! so that memory is linear in the length of the history, not quadratic. Linearizability is local: [`check_each`]
//! splits a history by key.
//!
//! Operations of unknown outcome (their process died, or they timed out) may have taken effect at any time after their
//! invocation, or never.

mod check;
mod history;
mod specification;

pub use check::{CheckFailure, HistoryCall, Verdict, check, check_each};
pub use history::{Error as HistoryError, ErrorMeans, History, read_history};
pub use specification::{
    KeyValue, KeyValueAnswer, KeyValueOperation, Lock, LockOperation, Register, RegisterOperation,
    Specification,
};
