//! Arguments of `farside rmc`.

use super::values::named;
use crate::settings::{EngineName, Memory, Parameters, ProgramCall, RmcBuild, RmcCheck, RmcRun};
use clap::Args;
use clap::builder::{OsStringValueParser, TypedValueParser};
use std::path::PathBuf;

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc build search.c
  farside rmc build search.c -o /tmp/search.o --clang clang-19
  farside rmc build search.c --json | jq '.programs[].worst'

Runs clang -target bpf -O2 -g -Wall -ffreestanding with farside_rmc.h in its include path (the header documents
the helpers and the subset of C), then verifies the programs. The object is written only if every program is
accepted, or with --keep-refused. An existing file keeps its owner, mode and links; a device, or a FIFO with a
reader, is written directly.")]
pub(crate) struct RmcBuildArguments {
    /// The C source
    #[arg(value_name = "SOURCE.c")]
    source: PathBuf,
    /// The object file [default: in the folder of the source]
    #[arg(long, short, value_name = "OUT.o")]
    output: Option<PathBuf>,
    /// Also write the object if a program is refused (still with exit code 1)
    #[arg(long)]
    keep_refused: bool,
    /// The clang to run; it must support the target bpf, as Debian's does
    #[arg(long, value_name = "PATH", default_value = "clang")]
    clang: PathBuf,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc check search.o
  farside rmc check search.o --disassemble
  farside rmc check *.s                        programs in assembler
  farside rmc check search.o --json | jq '.files[].programs[] | select(.refusal)'

A program is accepted if it provably accesses only its own memory, calls only existing helpers, leaks no
address and terminates. `metered` means that a budget ends it at run time, since no bound of its loops was
proven, or the bound exceeds the budget. Words are helper accesses to a single word; they do not count as helper
calls, since the instructions bound them. Exit code 1 if any program is refused.")]
pub(crate) struct RmcCheckArguments {
    /// Objects of clang -target bpf, programs in assembler (.s), or names of library programs
    #[arg(value_name = "OBJECT|SOURCE.s", required = true)]
    files: Vec<PathBuf>,
    /// Print the instructions with their source lines
    #[arg(long)]
    disassemble: bool,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc run search.o --parameters 64,7 --memory 0=nodes.bin
  farside rmc run list_search --parameters 64,7 --memory 0=nodes.bin     a program of the library
  farside rmc run log_append --parameters @record.bin --memory 0=log.bin --write-back
  farside rmc run search.o --parameters 64,7 --memory 0=nodes.bin --json | jq .one_sided.round_trips

Files are changed only with --write-back, and only if the program returns. The program runs without an executor
and other callers: a wait for a word that has not changed times out at once, notices have no listener, and there
is no global memory. Exit code 0 if the program returns, with any result, and 1 if it is stopped.")]
pub(crate) struct RmcRunArguments {
    #[command(flatten)]
    of: CallArguments,
    /// A file with the contents of region number REGION
    #[arg(long, value_name = "REGION=FILE", value_parser = OsStringValueParser::new().try_map(Memory::try_from))]
    memory: Vec<Memory>,
    /// Write changed regions back to their files
    #[arg(long)]
    write_back: bool,
    /// Execution engine
    #[arg(long, default_value = "fast", value_parser = named::<EngineName>())]
    engine: EngineName,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc list
  farside rmc list --of search.o
  farside rmc list --json | jq '.programs[].name'

The sources of the library, crates/rmc/library, document the parameters, results and output of each program, and
the memory layout that it expects.")]
pub(crate) struct RmcListArguments {
    /// List the programs of this file
    #[arg(long, value_name = "OBJECT")]
    pub(crate) of: Option<PathBuf>,
}

#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  farside rmc figures
  farside rmc figures --out drawings           figure-3.svg to figure-7.svg
  farside rmc figures --json | jq '.figures[] | .title'

The figures are a model: real callers and executors run over a simulated fabric with the latencies of the paper.
The output is crates/sim/CALLS.md.")]
pub(crate) struct RmcFiguresArguments {
    /// Write the figures to this folder, as SVG
    #[arg(long, value_name = "FOLDER")]
    pub(crate) out: Option<PathBuf>,
}

/// The program to call and its parameters.
#[derive(Args, Debug)]
pub(crate) struct CallArguments {
    /// An object of clang -target bpf, a program in assembler (.s), or the name of a library program
    #[arg(value_name = "OBJECT")]
    object: PathBuf,
    /// The program, if the object has several
    #[arg(long, value_name = "NAME")]
    program: Option<String>,
    /// Parameters: words such as 64,0x7, bytes such as hex:0011aabb, or @FILE
    #[arg(
        long,
        value_name = "PARAMETERS",
        default_value = "",
        hide_default_value = true,
        allow_hyphen_values = true,
        value_parser = OsStringValueParser::new().try_map(Parameters::try_from)
    )]
    parameters: Parameters,
}

convert! {
    RmcBuildArguments => RmcBuild { source, output, keep_refused, clang }
    RmcCheckArguments => RmcCheck { files, disassemble }
    RmcRunArguments => RmcRun { of, memory, write_back, engine }
    CallArguments => ProgramCall { object, program, parameters }
}
