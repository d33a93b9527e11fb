//! Prints `crates/sim/CALLS.md`: remote memory calls in virtual time, compared with paper 003.
//!
//! `call_figures [--check]`; with `--check` it exits with 1 if the file differs from its output.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside_sim::call_bench::document;
use std::process::ExitCode;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/CALLS.md");

fn main() -> ExitCode {
    let check = std::env::args().skip(1).any(|argument| argument == "--check");
    match document() {
        Ok(text) if check => {
            if std::fs::read_to_string(FILE).is_ok_and(|written| written == text) {
                return ExitCode::SUCCESS;
            }
            eprintln!("crates/sim/CALLS.md differs from the measurement: regenerate it");
            ExitCode::FAILURE
        }
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::from(2)
        }
    }
}
