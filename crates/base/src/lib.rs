//! The value types that all crates of Farside share: ids, global addresses, limits, capabilities, work
//! requests, completions and the error table.
//!
//! Pure data: no input or output, no clock, no allocation, no unsafe code.
#![no_std]
#![forbid(unsafe_code)]

mod address;
mod capabilities;
mod error;
mod flush;
mod gid;
mod id;
mod limits;
mod memory;
mod mutant;
mod random;
pub mod waiting;
mod work;

pub use address::{
    AddressError, GlobalAddress, LineAddress, LineSize, MemoryId, ParseAddressError,
};
pub use capabilities::{
    AtomicScope, BackPressure, Capabilities, FlushScope, Missing, Requirements, WordScope,
};
pub use error::{Blame, ErrorCode, ErrorEntry, ErrorKind, Retry};
pub use flush::FlushWay;
pub use gid::{
    GID_INDEX_MAX, GidChoice, GidEntry, GidKind, GidReach, GidReason, GidRejection, NoGid,
    choose_gid, why_not_gid,
};
pub use id::{
    Generation, Grant, Incarnation, LinkId, NodeId, NodeSet, OperationId, ReceiveQueueId, RegionId,
    RemoteKey, RemoteRegionId, SessionId, Ticket, ViewNumber, WorkId,
};
pub use limits::Limits;
pub use memory::{Memory, OutOfBounds};
pub use mutant::Planted;
pub use random::Random;
pub use work::{
    Access, Completion, CompletionKind, CompletionStatus, LocalSlice, MemberRegions, Operation,
    Receive, RegionKind, RegionToken, RemoteSlice, Source, Work, WorkFlags,
};
