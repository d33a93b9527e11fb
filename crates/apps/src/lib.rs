//! Applications over Farside's public interface.
#![forbid(unsafe_code)]

pub mod dht;
#[cfg(test)]
#[path = "../tests/fabrics/mod.rs"]
mod fabrics;
pub mod graph;
pub mod hashtable;
pub mod join;
pub mod log;
mod naps;
pub mod shuffle;
pub mod wordcount;
pub mod ycsb;
