//! What is kept: a write-ahead log on files, and the seam to its devices.
//!
//! Each device *states what a completion means* ([`Promise`]); none is chosen silently.
//!
//! | device | a commit means |
//! | --- | --- |
//! | [`FileDevice`] on a disk | survives the process and a loss of power, as far as the disk keeps what it reports |
//! | [`FileDevice`] on a file system in memory | survives the process; lost with the power |
//! | [`FileDevice`] on a network file system | as far as the other machine keeps it |
//! | [`PersistentDevice`] | survives the process and a loss of power; without a system call |
//! | [`ReplicatedDevice`] | survives the process, and all but one of those that lend the memory; lost with their power |
//!
//! Records have the form of [`record`](crate::record). The machines are in `farside_protocol::persist`.

mod check;
pub mod conformance;
mod copy_header;
mod copy_status;
mod device;
mod file;
mod folder;
mod local_copy;
mod log;
mod persistent;
mod reader;
mod recovery;
pub mod remote;
mod replicas;
mod state;
mod tag;

pub use check::{LogReport, check};
pub use copy_status::CopyStatus;
pub use device::{LogDevice, Medium, Promise, Segment};
pub use file::FileDevice;
pub use folder::{FolderMapping, FolderReport, PersistenceDomain, inspect_folder, promise_of};
pub use local_copy::LocalCopy;
pub use log::{DurableLog, DurableLogOptions, DurableLogStats, Watermarks};
pub use persistent::PersistentDevice;
#[doc(hidden)]
pub use persistent::PersistentMemory;
pub use reader::{DurableReader, DurableRecord};
pub use recovery::Recovered;
pub use replicas::{ReplicaOptions, ReplicatedDevice};
pub use state::{Allocation, MemoryState, Restored, StateIdentity, StateOptions, StateStats};
pub use tag::{RECORD_KIND_MAX, RecordTag};
