//! What the tasks of a simulated run share: the history of each word, and what has gone wrong.

use farside::{Error, ErrorCode, NodeId};
use std::cell::{Cell, RefCell};

/// One operation on a word, with its results.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum WordAction {
    /// Read this value.
    Read(u64),
    /// Wrote this value, and fenced.
    Write(u64),
    /// Replaced the first value by the second.
    Swap(u64, u64),
    /// Found the first value, expected the second, and offered the third.
    CompareSwap(u64, u64, u64),
    /// Found the first value and added the second.
    FetchAdd(u64, u64),
}

/// One operation of the recorded history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OperationRecord {
    /// Index of the word.
    pub word: usize,
    /// Number of the session.
    pub session: usize,
    /// The operation; its results are meaningless if `ended` is `None`.
    pub action: WordAction,
    /// Logical time before it.
    pub began: u64,
    /// Logical time after it; `None` if it failed or its node died, and therefore may or may not have happened.
    pub ended: Option<u64>,
}

/// Shared state of all tasks of a run.
pub(super) struct Board {
    pub(super) clock: Cell<u64>,
    pub(super) history: RefCell<Vec<OperationRecord>>,
    pub(super) failed: Cell<u64>,
    /// For each lock, the session in its critical section.
    pub(super) inside: RefCell<Vec<Option<usize>>>,
    pub(super) trouble: RefCell<Option<String>>,
    pub(super) may_fail: Cell<bool>,
    pub(super) may_part: Cell<bool>,
    /// The node that has started to leave.
    pub(super) leaver: Cell<Option<u16>>,
}

impl Board {
    pub(super) fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    pub(super) fn trouble(&self, text: String) {
        self.trouble.borrow_mut().get_or_insert(text);
    }

    /// Returns the value of an acceptable result: success, or, once a node was killed, a failure with a matching
    /// code. `node` is the node of the session.
    pub(super) fn accept<T>(&self, node: u16, what: &str, result: Result<T, Error>) -> Option<T> {
        match result {
            Ok(value) => Some(value),
            Err(error) => {
                let leaver = self.leaver.get();
                let of_leaver = |home: NodeId| Some(home.0) == leaver;
                let left = match error.code {
                    ErrorCode::NodeLeft => error.address.is_none_or(|at| of_leaver(at.home())),
                    ErrorCode::NodeClosed => of_leaver(NodeId(node)),
                    ErrorCode::OutOfMemory => what == "alloc" && leaver.is_some(),
                    _ => false,
                };
                let expected = match error.code {
                    ErrorCode::NodeLost | ErrorCode::LineLost => true,
                    // Reported by a removed node.
                    ErrorCode::Isolated | ErrorCode::NodeClosed => self.may_part.get(),
                    // A node without peers finds no other home with memory.
                    ErrorCode::OutOfMemory => what == "alloc",
                    _ => false,
                };
                if !(left || expected && self.may_fail.get()) {
                    self.trouble(format!("{what}: {error}"));
                }
                self.failed.set(self.failed.get() + 1);
                None
            }
        }
    }
}
