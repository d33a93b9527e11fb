//! The `farside-data` command: shuffle and join of CSV and Parquet files by executors that are threads, over shared memory.
#![forbid(unsafe_code)]

mod arguments;
mod input;
mod join;
mod shuffle;

use arguments::{Arguments, DataCommand};
use clap::Parser;
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_command::signals;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => return Output::end_of_usage(usage.print(), usage.use_stderr()),
    };
    let output = Output::new(arguments.json, arguments.quiet);
    let done = signals::watch(|| true).and_then(|()| match &arguments.command {
        DataCommand::Shuffle(arguments) => shuffle::run(arguments, output),
        DataCommand::Join(arguments) => join::run(arguments, output),
    });
    // What fails after a signal fails because of it.
    let done = done.map_err(|failure| match signals::is_stopping() {
        true => Failure::Interrupted,
        false => failure,
    });
    output.end(done)
}
