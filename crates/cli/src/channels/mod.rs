//! `farside channels`: the data channels as they were measured, and which of them fit a need.

mod advice;
mod table;

use crate::arguments::Channels;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the table, or advice where something is asked for.
pub(crate) fn run(arguments: &Channels, output: Output) -> Result<(), Failure> {
    if arguments.asks() {
        advice::print(arguments, output)
    } else {
        table::print(output);
        Ok(())
    }
}
