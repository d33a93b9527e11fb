//! `farside rmc`: remote memory calls from source to result, on this machine alone.
//!
//! `build` and `check` say whether a program may run beside memory and what it costs at most; `run` runs
//! it on files, with the engines that serve calls; `list` shows what there is.

mod build;
mod check;
mod list;
mod memory;
mod run;
mod source;
mod states;

use crate::arguments::Rmc;
use crate::failure::Failure;
use crate::output::Output;

pub(crate) fn run(which: &Rmc, output: Output) -> Result<(), Failure> {
    match which {
        Rmc::Build(arguments) => build::run(arguments, output),
        Rmc::Check(arguments) => check::run(arguments, output),
        Rmc::Run(arguments) => run::run(arguments, output),
        Rmc::List(arguments) => list::run(arguments, output),
    }
}
