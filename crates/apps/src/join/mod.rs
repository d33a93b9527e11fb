#![doc = include_str!("README.md")]
//!
//! ```
//! use farside::fabrics;
//! use farside_apps::join::{JoinExecutor, JoinOptions};
//! # let (name, second) = (format!("join-{}", std::process::id()), std::time::Duration::from_secs(10));
//! // In each executor; here there is one. Rows are a key of 8 B and a value of 8 B.
//! let fabric = fabrics::shared_memory()?;
//! let executor = JoinExecutor::lend(&fabric, &name, 0, &JoinOptions::default())?;
//! let peers = [executor.addresses()];
//! let row = |key: u64, value: u64| [key.to_le_bytes(), value.to_le_bytes()].concat();
//! let orders = [row(1, 10), row(2, 20), row(3, 30)];
//! let items = [row(2, 5), row(1, 6), row(2, 7), row(9, 8)];
//! let mut pairs = 0;
//! executor.run(&peers, items.iter().map(Ok), orders.iter().map(Ok), second, |item, order| {
//!     assert!(order.is_some_and(|order| order[..8] == item[..8]));
//!     pairs += 1;
//! })?;
//! assert_eq!(pairs, 3);
//! # Ok::<(), farside_apps::shuffle::ShuffleError>(())
//! ```

mod executor;
mod options;
mod rows;
mod table;

pub use executor::{JoinExecutor, JoinStats};
pub use options::{JoinKey, JoinKind, JoinOptions, JoinSide};
pub use table::local_join;
