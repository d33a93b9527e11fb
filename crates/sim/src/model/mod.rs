//! One model per machine.
pub mod allocate;
pub mod burial;
pub mod channel;
pub mod coherence;
pub mod lock;
pub mod member;
