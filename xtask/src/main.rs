//! `cargo xtask ci` checks everything; `cargo xtask list` lists the steps, each of which can be run
//! separately with `cargo xtask ci --only NAME`.
#![forbid(unsafe_code)]
#![allow(clippy::print_stdout, reason = "a program for terminals")]

mod book;
mod debian;
mod fenced;
mod guest;
mod instructions;
mod names;
mod run;
mod shell;
mod steps;
mod tidy;

use std::process::ExitCode;

const USAGE: &str = "\
cargo xtask ci [--only NAME]... [--fail-fast]   check everything, or the named steps
cargo xtask docs                                the documents as a book, and the interfaces of the crates
cargo xtask list                                the steps, in order
cargo xtask rdma-guest -- COMMAND               a guest with verbs devices in software; --help
cargo xtask tidy                                the style rules";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match words.as_slice() {
        ["ci", options @ ..] => run::Options::parse(options).and_then(|options| run::ci(&options)),
        ["list"] => {
            run::list();
            Ok(())
        }
        ["docs"] => book::build().map(|text| println!("{text}")),
        // Returns the exit code of the command in the guest.
        ["rdma-guest", rest @ ..] => return guest::main(rest),
        ["tidy"] => tidy::run().map(|text| println!("{text}")),
        _ => Err(USAGE.to_owned()),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(text) => {
            println!("{text}");
            ExitCode::FAILURE
        }
    }
}
