//! `farside channels`: prints the measured data channels, or those that satisfy given requirements.

mod advice;
mod table;

use crate::settings::ChannelAdvice;
use farside_command::failure::Failure;
use farside_command::output::Output;

/// Prints the table, or the requested advice.
pub(crate) fn run(advice: Option<&ChannelAdvice>, output: Output) -> Result<(), Failure> {
    match advice {
        Some(advice) => advice::print(advice, output),
        None => {
            table::print(output);
            Ok(())
        }
    }
}
