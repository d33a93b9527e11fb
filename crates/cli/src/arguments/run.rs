//! Arguments of `farside run`.

use super::values::named;
use clap::Args;
use farside::launch::PROCESSES_MAX;
use farside_command::settings::LaunchFabric;
use farside_launcher::run::RunProgram;
use std::ffi::OsString;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside run -n 4 target/release/ranks
  farside run -n 4 --fabric tcp target/release/ranks --rounds 10    the same over TCP
  farside run -n 2 --json target/release/ranks | jq 'select(.event == \"output\").line'

The program calls Node::launched(), which returns a node of the processes' own cluster, its rank and their
number. Lines of its output begin with the rank. Where a process fails, the others are killed, and the exit
code is that of the process, or 128 and the number of the signal that killed it.")]
pub(crate) struct RunProgramArguments {
    /// Processes
    #[arg(short = 'n', long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=i64::from(PROCESSES_MAX)))]
    processes: u32,
    /// How they reach each other on this machine
    #[arg(long, default_value = "shm", value_parser = named::<LaunchFabric>())]
    fabric: LaunchFabric,
    /// The program, and its arguments
    #[arg(
        required = true,
        trailing_var_arg = true,
        allow_hyphen_values = true,
        value_name = "PROGRAM"
    )]
    command: Vec<OsString>,
}

/// A program that ends with its parent.
#[derive(Args, Debug)]
pub(crate) struct LaunchedArguments {
    /// The number of the parent process
    pub(crate) parent: i32,
    /// The program, and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    pub(crate) command: Vec<OsString>,
}

convert! {
    RunProgramArguments => RunProgram { processes, fabric, command }
}
