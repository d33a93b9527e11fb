//! Prints `crates/sim/CHANNELS.md`: what the channels do in virtual time beside what paper 001 says.
//!
//! `channel_findings [--check]`; with `--check` it exits with 1 when the file is not what it prints.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside_sim::channel_bench::document;
use std::process::ExitCode;

const FILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/CHANNELS.md");

fn main() -> ExitCode {
    let check = std::env::args().skip(1).any(|argument| argument == "--check");
    match document() {
        Ok(text) if check => {
            if std::fs::read_to_string(FILE).is_ok_and(|written| written == text) {
                return ExitCode::SUCCESS;
            }
            eprintln!("crates/sim/CHANNELS.md is not what is measured; print it anew");
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
