//! Machines of what is kept: who writes a log to its device, and where a log ends that was read back.

mod group_commit;
mod tail;

pub use group_commit::{CommitStatus, GroupCommit};
pub use tail::{LogTail, TailScan};
