//! What all commands of `farside` share: failures with their exit codes, output, files, signals, and the settings of
//! fabrics with the code that opens them. A command takes validated settings, plain types, so that only the `farside`
//! command itself knows how options are written.
#![forbid(unsafe_code)]

pub mod choice;
pub mod fabrics;
pub mod failure;
pub mod host_fabric;
pub mod input_file;
pub mod output;
pub mod processors;
pub mod rdma;
pub mod result_file;
pub mod settings;
pub mod signals;
pub mod units;
