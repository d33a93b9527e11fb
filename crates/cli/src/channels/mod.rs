//! `farside channels`: prints the measured data channels, or those that satisfy given requirements.

mod advice;
mod table;

use crate::arguments::Channels;
use crate::failure::Failure;
use crate::output::Output;

/// Prints the table, or advice if the arguments state requirements.
pub(crate) fn run(arguments: &Channels, output: Output) -> Result<(), Failure> {
    if arguments.asks() {
        advice::print(arguments, output)
    } else {
        table::print(output);
        Ok(())
    }
}
