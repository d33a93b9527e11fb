//! What most programs use, for `use farside::prelude::*`.

pub use crate::security::{ClusterKey, Identity, Protect, Security};
pub use crate::{
    AllocationHint, AllocationSpec, Config, Error, ErrorCode, ErrorKind, GlobalAddress,
    GlobalSlice, Group, LineSize, LockGuard, MemberChange, Node, NodeId, Root, Session, call,
    channel, fabrics,
};
