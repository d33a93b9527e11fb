//! What most programs use, for `use farside::prelude::*`.

pub use crate::security::{ClusterKey, Identity, Protect, Security};
pub use crate::{
    AllocationHint, AllocationSpec, Config, Error, ErrorCode, ErrorKind, GlobalAddress, LineSize,
    LockGuard, Node, NodeId, Session, call, channel, fabrics,
};
