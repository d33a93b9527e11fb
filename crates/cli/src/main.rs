//! The `farside` command.
//!
//! [`arguments`] converts the command line into [`settings`], plain types, also those of the crates with commands:
//! `farside_launcher` ([`up`], [`run`], [`node`], [`agent`], [`worker`]), `farside_bench` and `farside_doctor`.
//! Every command is a module with a function `run`.
#![forbid(unsafe_code)]

mod arguments;
mod channels;
mod durable_log;
mod info;
mod key;
mod lend;
mod listening;
mod log;
mod reproduce;
mod rmc;
mod settings;
mod wordcount;

use arguments::{Arguments, Bench, Command, Key, Log, Rmc};
use clap::Parser;
use farside_bench::onesided::{
    access, atomics, consolidate, hashtable, join, list, log as bench_log, numa, shuffle, vector,
};
use farside_bench::{demo, durable, graph, ycsb};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_launcher::{agent, node, run, up, worker};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(usage) => return Output::end_of_usage(usage.print(), usage.use_stderr()),
    };
    let output = Output::new(arguments.json, arguments.quiet);
    output.end(run_command(arguments.command, output))
}

/// Converts the arguments of a command, and runs it.
fn run_command(command: Command, output: Output) -> Result<(), Failure> {
    match command {
        Command::Demo(arguments) => demo::run(&arguments.into(), output),
        Command::Wordcount(arguments) => wordcount::run(&arguments.into(), output),
        Command::Up(arguments) => up::run(&arguments.into(), output),
        Command::Doctor(arguments) => farside_doctor::run(&arguments.into(), output),
        Command::Run(arguments) => run::run(&arguments.into(), output),
        Command::Launched(arguments) => run::launch(arguments.parent, &arguments.command),
        Command::Worker(arguments) => worker::run(arguments.key, !arguments.without_files),
        Command::Node(arguments) => node::run(&arguments.into(), output),
        Command::Witness(arguments) => node::run(&arguments.into(), output),
        Command::Agent(arguments) => agent::run(&arguments.into(), output),
        Command::Lend(arguments) => lend::run(&arguments.into(), output),
        Command::Log { which: Log::Append(arguments) } => log::append(&arguments.into(), output),
        Command::Log { which: Log::Tail(arguments) } => log::tail(&arguments.into(), output),
        Command::Log { which: Log::Keep(arguments) } => {
            durable_log::keep(&arguments.place.into(), arguments.batch, output)
        }
        Command::Log { which: Log::Print(arguments) } => {
            durable_log::print_all(&arguments.place.into(), output)
        }
        Command::Log { which: Log::Check(arguments) } => {
            durable_log::check(&arguments.folder, output)
        }
        Command::Info { folder } => info::run(folder, output),
        Command::Key { which: Key::New(arguments) } => key::create(&arguments.file, output),
        Command::Channels(arguments) => channels::run(arguments.advice().as_ref(), output),
        Command::Reproduce(arguments) => match arguments.paper {
            None => {
                reproduce::list(output);
                Ok(())
            }
            Some(paper) => reproduce::run(
                paper,
                arguments.figure.as_deref(),
                arguments.plot.as_deref(),
                output,
            ),
        },
        Command::Rmc { which } => run_rmc(which, output),
        Command::Bench { which } => run_bench(which, output),
    }
}

fn run_bench(which: Bench, output: Output) -> Result<(), Failure> {
    match which {
        Bench::Memory(arguments) => farside_bench::memory(&arguments.effort.into(), output),
        Bench::Fabric(arguments) => farside_bench::fabric(&arguments.into(), output),
        Bench::Channels(arguments) => farside_bench::channels(&arguments.into(), output),
        Bench::Ycsb(arguments) => ycsb::run(&arguments.into(), output),
        Bench::Graph(arguments) => graph::run(&arguments.into(), output),
        Bench::Hashtable(arguments) => hashtable::run(&arguments.into(), output),
        Bench::Durable(arguments) => durable::run(&arguments.into(), output),
        Bench::Log(arguments) => bench_log::run(&arguments.lent.into(), output),
        Bench::Vector(arguments) => match arguments.list {
            Some(ranges) => list::run(&arguments.lent.into(), ranges, output),
            None => vector::run(&arguments.lent.into(), output),
        },
        Bench::Consolidate(arguments) => consolidate::run(&arguments.lent.into(), output),
        Bench::Access(arguments) => access::run(&arguments.into(), output),
        Bench::Shuffle(arguments) => shuffle::run(&arguments.into(), output),
        Bench::Join(arguments) => join::run(&arguments.into(), output),
        Bench::Atomics(arguments) => atomics::run(&arguments.into(), output),
        Bench::Numa(arguments) => numa::run(&arguments.into(), output),
        Bench::Rmc(arguments) => farside_bench::rmc::run(&arguments.into(), output),
    }
}

fn run_rmc(which: Rmc, output: Output) -> Result<(), Failure> {
    match which {
        Rmc::Build(arguments) => rmc::build::run(&arguments.into(), output),
        Rmc::Check(arguments) => rmc::check::run(&arguments.into(), output),
        Rmc::Run(arguments) => rmc::run::run(&arguments.into(), output),
        Rmc::List(arguments) => rmc::list::run(arguments.of.as_deref(), output),
        Rmc::Serve(arguments) => rmc::serve::run(&arguments.into(), output),
        Rmc::Register(arguments) => rmc::call::register(&arguments.into(), output),
        Rmc::Call(arguments) => rmc::call::call(&arguments.into(), output),
        Rmc::Listen(arguments) => rmc::listen::run(&arguments.into(), output),
        Rmc::Figures(arguments) => {
            farside_bench::rmc::figures::run(arguments.out.as_deref(), output)
        }
    }
}
