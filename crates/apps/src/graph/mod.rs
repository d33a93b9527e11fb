//! Graph kernels on global memory: breadth-first search, PageRank, connected components.
//!
//! The rows of a graph are divided among the members of a [`Group`](farside::Group), the 1D partition of Buluç and
//! Madduri (*Parallel breadth-first search on distributed memory systems*, SC 2011). Every kernel is
//! bulk-synchronous: a member reads all parts and writes its own, and barriers separate the steps.

mod csr;
mod kronecker;
pub mod sequential;
mod shared;
#[cfg(test)]
mod tests;

pub use csr::Csr;
pub use kronecker::{Kronecker, KroneckerError};
pub use sequential::{DAMPING, UNREACHED};
pub use shared::{AccessForm, SharedGraph};
