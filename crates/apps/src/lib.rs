//! Applications over Farside, through its public face only.
#![forbid(unsafe_code)]

pub mod dht;
pub mod wordcount;
pub mod ycsb;
