#![doc = include_str!("../README.md")]
//!
//! ```
//! use arrow_array::{Int64Array, RecordBatch};
//! use farside::fabrics;
//! use farside_data::{BatchInbox, BatchInboxOptions, BatchRule, BatchSender};
//! use std::sync::Arc;
//! # let (name, second) = (format!("data-{}", std::process::id()), std::time::Duration::from_secs(10));
//! // In each receiver.
//! let fabric = fabrics::shared_memory()?;
//! let mut inbox = BatchInbox::lend(&fabric, &name, &BatchInboxOptions::default())?;
//!
//! // In each sender.
//! let numbers = Arc::new(Int64Array::from_iter_values(0..100));
//! let batch = RecordBatch::try_from_iter([("number", numbers as _)])?;
//! let rule = BatchRule::Hash(vec!["number".to_owned()]);
//! let addresses = [inbox.address().to_owned()];
//! let mut sender = BatchSender::connect(&fabric, 0, &addresses, &batch.schema(), rule, second)?;
//! sender.push(&batch, second)?;
//! sender.finish(second)?;
//!
//! let mut rows = 0;
//! while let Some(batch) = inbox.receive(second)? {
//!     assert_eq!(batch.schema().field(0).name(), "number");
//!     rows += batch.num_rows();
//! }
//! assert_eq!(rows, 100);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod column_rows;
mod error;
mod file;
mod join;
mod shuffle;

pub use error::DataError;
pub use file::{FileFormat, InputBatches, InputFile, OutputFile};
pub use join::{BatchJoin, BatchJoinExecutor};
pub use shuffle::{
    BatchInbox, BatchInboxOptions, BatchReceived, BatchRule, BatchSender, RowDestination,
};
