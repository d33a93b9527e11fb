//! Starts and supervises the processes of clusters.
//!
//! A command starts [`worker`] processes as a [`cluster::Cluster`], on this host or at agents of other hosts
//! ([`hosts`], [`agent`]): the `farside` program again. Workers communicate by JSON lines over pipes and streams, and
//! end with their parent, for whatever reason it ends. [`up`] and [`node`] run clusters that programs join, [`run`]
//! the processes of a program.
#![forbid(unsafe_code)]

pub mod agent;
pub mod cluster;
pub mod ends;
pub mod hosts;
pub mod latency;
pub mod node;
mod process;
pub mod run;
pub mod up;
pub mod worker;
