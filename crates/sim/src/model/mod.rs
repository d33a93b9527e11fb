//! Models of the protocol machines for the explorer, one per machine.
pub mod allocate;
pub mod burial;
pub mod call;
pub mod channel;
pub mod coherence;
pub mod contact;
pub mod data_channel;
pub mod group_commit;
pub mod leave;
pub mod lock;
pub mod member;
pub mod remote_lock;
pub mod remote_log;
pub mod shared_ring;
pub mod underway;
pub mod watch;
