//! Simulation and verification of Farside's state machines: the explorer, one model per machine, the simulated
//! fabric, litmus tests and checkers.
#![forbid(unsafe_code)]

pub mod call_bench;
pub mod call_soak;
pub mod channel_bench;
pub mod channel_soak;
pub mod checkers;
pub mod cluster;
pub mod copies;
pub mod durable;
pub mod explorer;
pub mod fabric;
pub mod lent;
pub mod linearizability;
pub mod litmus;
pub mod medium;
pub mod model;
pub mod paper_figure;
pub mod persistent;
pub mod programs;
pub mod reproduce_000;
pub mod reproduce_002;
mod scheduled;
pub mod seeds;
pub mod stage;
