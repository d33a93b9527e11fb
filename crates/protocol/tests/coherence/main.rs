//! Scenarios of the coherence machine: a few machines, and a network with every delivery chosen by the test. The
//! events form a transcript, which is asserted.

mod cluster;
mod deaths;
mod figures;
mod input;
mod orderings;
mod roles;
