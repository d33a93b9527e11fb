//! What a plan decided, in words.

use super::hints::RemoteHint;
use super::plan::{RemoteMemoryKind, RemotePlan, RemoteRole, RemoteWay, TargetStores};
use std::fmt::Write;

impl RemotePlan {
    /// Describes the chosen way, the reason, and the outcome of each hint; a line each.
    pub fn explain(&self) -> String {
        let write = self.write();
        let role = match write.role {
            RemoteRole::Log => "log record",
            RemoteRole::Record => "record",
            RemoteRole::CommitWord => "records with a commit word",
            RemoteRole::Lock => "lock",
        };
        let memory = match self.memory() {
            RemoteMemoryKind::Persistent => "persistent memory",
            RemoteMemoryKind::Volatile => "DRAM",
        };
        let mut text = format!("{role} of {} B to {memory}: {}", write.bytes, self.way_text());
        // Writing to a string does not fail.
        let _ = write!(text, "\n  because {}", self.why);
        if self.padded_bytes() > write.bytes || self.align_bytes() > 1 {
            let _ = write!(
                text,
                "\n  written as {} B, aligned to {} B",
                self.padded_bytes(),
                self.align_bytes()
            );
        }
        for hint in RemoteHint::ALL {
            let _ = write!(text, "\n  {hint} ({}): {}", hint.advice(), self.outcome(hint));
        }
        text
    }

    fn way_text(&self) -> String {
        let together = if self.is_one_doorbell() {
            "one doorbell, one round trip"
        } else {
            "a doorbell and a round trip each"
        };
        let has_word = self.write().role == RemoteRole::CommitWord;
        match (self.way(), self.stores()) {
            (RemoteWay::Flush, _) if has_word && self.is_word_behind() => {
                format!("WRITE, FLUSH, ATOMIC WRITE of the word, FLUSH; {together}")
            }
            (RemoteWay::Flush, _) if has_word => {
                format!("WRITE and FLUSH ({together}), and then the same for the word")
            }
            (RemoteWay::Flush, _) => format!("WRITE and FLUSH to persistence; {together}"),
            (RemoteWay::Read, _) if has_word => {
                format!("WRITE and READ ({together}), and then the same for the word")
            }
            (RemoteWay::Read, _) => format!("WRITE and READ; {together}"),
            (RemoteWay::Program, TargetStores::NonTemporal) => {
                "a message; the target's program stores past its caches, and answers".to_owned()
            }
            (RemoteWay::Program, TargetStores::WriteBack) => {
                "a message; the target's program stores, writes cache lines back, and answers"
                    .to_owned()
            }
            (RemoteWay::Volatile, _) => "not persistent".to_owned(),
        }
    }
}
