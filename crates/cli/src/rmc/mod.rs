//! `farside rmc`: remote memory calls, from source to result.
//!
//! `build` and `check` verify programs and report their worst-case cost; `run` runs one on files, with the engines
//! that serve calls; `list` lists the library. `serve` lends memory over a fabric; `register`, `call` and `listen`
//! are its callers.

mod bench;
mod build;
mod call;
mod check;
mod fairness;
mod figures;
mod list;
mod listen;
mod membership;
mod memory;
mod peers;
mod place;
mod probe;
mod registrations;
mod run;
mod serve;
mod source;
mod states;

use crate::arguments::Rmc;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) use bench::run as bench;

pub(crate) fn run(which: &Rmc, output: Output) -> Result<(), Failure> {
    match which {
        Rmc::Bench(arguments) => bench::run(arguments, output),
        Rmc::Build(arguments) => build::run(arguments, output),
        Rmc::Check(arguments) => check::run(arguments, output),
        Rmc::Run(arguments) => run::run(arguments, output),
        Rmc::List(arguments) => list::run(arguments, output),
        Rmc::Serve(arguments) => serve::run(arguments, output),
        Rmc::Register(arguments) => call::register(arguments, output),
        Rmc::Call(arguments) => call::call(arguments, output),
        Rmc::Listen(arguments) => listen::run(arguments, output),
        Rmc::Figures(arguments) => figures::run(arguments, output),
    }
}

/// Default name of a server, if an address gives only its host.
const NAME: &str = "rmc";

fn median(mut samples: Vec<u64>) -> u64 {
    samples.sort_unstable();
    samples.get(samples.len() / 2).copied().unwrap_or_default()
}
