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
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => return print_usage(&usage),
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
    if let Err(failure) = &done {
        output.failure(failure);
    }
    let written = output.finish();
    if let Err(failure) = &written {
        output.failure(failure);
    }
    match done.and(written) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.exit_code(),
    }
}

/// Prints help or the version on standard output, or an error of the arguments on standard error.
fn print_usage(usage: &clap::Error) -> ExitCode {
    match usage.print().and_then(|()| std::io::stdout().flush()) {
        _ if usage.use_stderr() => ExitCode::from(2),
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Output::new(false, true).failure(&Failure::system(format!("standard output: {error}")));
            ExitCode::from(1)
        }
        _ => ExitCode::SUCCESS,
    }
}
