//! Applications over Farside's public interface.
#![forbid(unsafe_code)]

pub mod dht;
pub mod graph;
pub mod hashtable;
pub mod log;
pub mod wordcount;
pub mod ycsb;
