//! The `farside` command.
//!
//! Every command is a module with a function `run`. Commands that need a cluster start worker processes ([`cluster`]):
//! this program as [`worker`], on this host or at agents of other hosts ([`hosts`], [`agent`]). Workers communicate
//! by JSON lines over pipes and streams, and end with their parent, for whatever reason it ends.
#![forbid(unsafe_code)]

mod agent;
mod arguments;
mod bench;
mod channels;
mod choice;
mod cluster;
mod demo;
mod doctor;
mod fabrics;
mod failure;
mod hosts;
mod info;
mod input_file;
mod key;
mod latency;
mod node;
mod output;
mod rdma;
mod result_file;
mod rmc;
mod run;
mod signals;
mod up;
mod wordcount;
mod worker;
mod ycsb;

use arguments::{Arguments, Bench, Command};
use clap::Parser;
use failure::Failure;
use output::Output;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => return print_usage(&usage),
    };
    let output = Output::new(arguments.json, arguments.quiet);
    let done = run(&arguments.command, output);
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

fn run(command: &Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Demo(arguments) => demo::run(arguments, output),
        Command::Wordcount(arguments) => wordcount::run(arguments, output),
        Command::Up(arguments) => up::run(arguments, output),
        Command::Doctor(arguments) => doctor::run(arguments, output),
        Command::Run(arguments) => run::run(arguments, output),
        Command::Launched(arguments) => run::launch(arguments),
        Command::Worker(arguments) => worker::run(arguments),
        Command::Node(arguments) => node::run(arguments, output),
        Command::Agent(arguments) => agent::run(arguments, output),
        Command::Info => info::run(output),
        Command::Key { which } => key::run(which, output),
        Command::Channels(arguments) => channels::run(arguments, output),
        Command::Rmc { which } => rmc::run(which, output),
        Command::Bench { which: Bench::Memory(arguments) } => bench::memory(arguments, output),
        Command::Bench { which: Bench::Fabric(arguments) } => bench::fabric(arguments, output),
        Command::Bench { which: Bench::Channels(arguments) } => bench::channels(arguments, output),
        Command::Bench { which: Bench::Ycsb(arguments) } => ycsb::run(arguments, output),
        Command::Bench { which: Bench::Rmc(arguments) } => rmc::bench(arguments, output),
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
