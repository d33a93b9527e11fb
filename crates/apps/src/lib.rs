//! Applications over Farside's public interface.
#![forbid(unsafe_code)]

pub mod dht;
pub mod graph;
pub mod hashtable;
pub mod join;
pub mod log;
pub mod shuffle;
pub mod wordcount;
pub mod ycsb;
