#![doc = include_str!("README.md")]
//!
//! ```
//! use farside::fabrics;
//! use farside_apps::shuffle::{RowBatch, ShuffleInbox, InboxOptions, RowFormat, Rule, ShuffleSender, SenderOptions};
//! # let (name, second) = (format!("shuffle-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let fabric = fabrics::shared_memory()?;
//! // In each receiver: rows of a key of 8 B and a value of 8 B, from one sender.
//! let options = InboxOptions { rows: RowFormat::Fixed(16), ..InboxOptions::default() };
//! let mut inbox = ShuffleInbox::lend(&fabric, &name, &options)?;
//!
//! // In each sender, which has the addresses of all inboxes.
//! let options = SenderOptions { rule: Rule::Hash(0..8), ..SenderOptions::default() };
//! let addresses = [inbox.address().to_owned()];
//! let mut sender = ShuffleSender::connect(&fabrics::shared_memory()?, 0, &addresses, options, second)?;
//! for key in 0..100_u64 {
//!     let mut row = [0; 16];
//!     row[..8].copy_from_slice(&key.to_le_bytes());
//!     sender.push(&row, second)?;
//! }
//! sender.finish(second)?;
//!
//! let (mut batch, mut rows) = (RowBatch::default(), 0);
//! while inbox.receive(&mut batch, second)? {
//!     rows += batch.rows().count();
//! }
//! assert_eq!(rows, 100);
//! # Ok::<(), farside_apps::shuffle::ShuffleError>(())
//! ```

mod batch;
mod error;
mod inbox;
mod layout;
mod options;
mod sender;
#[cfg(test)]
mod simulation_tests;
#[cfg(test)]
mod tests;

pub use batch::{RowBatch, Rows};
pub use error::ShuffleError;
pub use inbox::{Received, ShuffleInbox};
pub use options::{InboxOptions, RowFormat, RowRule, Rule, SenderOptions, destination};
pub use sender::{SenderStats, ShuffleSender};
