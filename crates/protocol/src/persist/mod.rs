//! Machines of what is kept: who writes a log to its device, and where a log ends that was read back.

mod canary;
mod group_commit;
mod tail;

#[cfg(canary)]
pub use canary::PersistMutant;
pub use group_commit::{CommitStatus, GroupCommit};
pub use tail::{LogTail, TailScan};
