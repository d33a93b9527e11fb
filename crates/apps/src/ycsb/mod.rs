#![doc = include_str!("README.md")]

mod counter;
mod driver;
pub mod generator;
mod history;
mod operation;
mod properties;
mod random;
mod record;
mod report;
mod store;
#[cfg(test)]
mod tests;
mod workload;

pub use driver::{Client, RunOptions, WorkloadRun};
pub use history::{History, HistoryLog, OperationOutcome};
pub use operation::Operation;
pub use properties::{Parsed, PropertyError};
pub use random::WorkloadRandom;
pub use record::{Records, digest};
pub use report::{OperationReport, WorkloadReport};
pub use store::Store;
pub use workload::{
    CoreWorkload, FieldLength, Proportions, RequestDistribution, UnknownWorkload, Workload,
};
