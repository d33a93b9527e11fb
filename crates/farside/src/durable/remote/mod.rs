//! Remote persistent write: how bytes get into the persistent memory of another machine (paper 002).
//!
//! [`RemotePlan::choose`] is a pure function of what the fabric can do, what is known of the target, and the write. Its
//! table, first row that applies:
//!
//! | case | way |
//! | --- | --- |
//! | a lock, with H8 | atomics in DRAM; not persistent |
//! | the fabric has a persistent FLUSH | [`Flush`](RemoteWay::Flush): WRITE and FLUSH |
//! | 64 KiB and more, DDIO not known to be off, H3, and a program at the target | [`Program`](RemoteWay::Program) |
//! | caches persist, or DDIO is off and an adapter writes the bytes; READs are ordered after WRITEs | [`Read`](RemoteWay::Read): WRITE and READ |
//! | a program at the target | [`Program`](RemoteWay::Program): a message, and its answer |
//! | else | refused by name |
//!
//! DDIO that is not known to be off never counts as off. Each hint of 002 Table 3 is a switch ([`RemoteHints`]) with a
//! counter ([`RemotePlanner`]). [`RemotePersist`] carries a plan out on a port; [`RemoteStore`] is the program at the
//! target.
//!
//! ```
//! use farside::durable::remote::{
//!     Known, RemoteHint, RemotePlanner, RemoteWay, RemoteWrite, TargetFacts,
//! };
//! let capabilities = farside::fabrics::shared_memory()?.capabilities();
//! let facts = TargetFacts { caches_persist: Known::Yes, ..TargetFacts::optane() };
//! let mut planner = RemotePlanner::new(capabilities, facts);
//!
//! let plan = planner.plan(&RemoteWrite::record(0, 40, 64))?; // 40 bytes in a slot of 64
//! assert_eq!(plan.way(), RemoteWay::Read);
//! assert_eq!(plan.padded_bytes(), 64);
//! assert_eq!(planner.applied(RemoteHint::H6), 1);
//! println!("{}", plan.explain());
//! # Ok::<(), farside::Error>(())
//! ```

mod explain;
mod facts;
mod hints;
mod persist;
mod plan;
mod store;
mod wire;

pub use facts::{Known, TargetFacts};
pub use farside_fabric_shm::PersistentMapping;
pub use hints::{HintOutcome, RemoteHint, RemoteHints, RemotePrimitive};
pub use persist::{CommitWord, PersistCost, PersistPiece, RemotePersist, RemotePersistOptions};
pub use plan::{
    RemoteMemoryKind, RemotePlan, RemotePlanner, RemoteRole, RemoteWay, RemoteWrite, TargetStores,
};
pub use store::{RemoteStore, RemoteStoreOptions, StorableMemory};
