#![doc = include_str!("README.md")]

mod count;
mod input;
#[cfg(test)]
mod tests;
mod words;

pub use count::{WordCountError, count, counts, write_counts};
pub use input::{Input, WORD_BYTES_MAX};
pub use words::too_long;
