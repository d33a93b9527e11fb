//! The `farside` command.
//!
//! Every command is a module with a `run`. Commands that need a cluster start one of worker processes
//! ([`cluster`]), which are this same program again ([`worker`]), here or at agents of other hosts
//! ([`hosts`], [`agent`]); they speak JSON lines over pipes and streams and die with their parent, however
//! it ends.
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
mod key;
mod latency;
mod node;
mod output;
mod rdma;
mod rmc;
mod signals;
mod up;
mod wordcount;
mod worker;
mod ycsb;

use arguments::{Arguments, Bench, Command};
use clap::Parser;
use output::Output;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let output = Output::new(arguments.json, arguments.quiet);
    let done = match &arguments.command {
        Command::Demo(arguments) => demo::run(arguments, output),
        Command::Wordcount(arguments) => wordcount::run(arguments, output),
        Command::Up(arguments) => up::run(arguments, output),
        Command::Doctor(arguments) => doctor::run(arguments, output),
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
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            output.failure(&failure);
            failure.exit_code()
        }
    }
}
