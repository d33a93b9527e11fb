//! Checks histories for linearizability, as `farside bench ycsb --history FILE` writes them: `check_history [--empty]
//! FILE...`; `--empty` states that all keys were initially absent. Exits with 1 if the operations of some key are not
//! linearizable.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside_sim::linearizability::{ErrorMeans, KeyValue, read_history};
use std::process::ExitCode;

fn check(file: &str, initial: KeyValue) -> Result<String, (u8, String)> {
    let usage = |why: String| (2, format!("{file}: {why}"));
    let text = std::fs::read_to_string(file).map_err(|error| usage(error.to_string()))?;
    let history = read_history(&text, ErrorMeans::MaybeEffect).map_err(|e| usage(e.to_string()))?;
    history.check(initial).holds().map_err(|why| (1, format!("{file}: {why}")))?;
    let (checked, unchecked) = (history.calls.len(), history.unchecked);
    Ok(format!("{file}: {checked} operations are linearizable, {unchecked} say nothing"))
}

fn main() -> ExitCode {
    let mut initial = KeyValue::Unknown;
    let mut worst = 0;
    for argument in std::env::args().skip(1) {
        if argument == "--empty" {
            initial = KeyValue::Absent;
            continue;
        }
        match check(&argument, initial) {
            Ok(text) => println!("{text}"),
            Err((code, text)) => {
                eprintln!("{text}");
                worst = worst.max(code);
            }
        }
    }
    ExitCode::from(worst)
}
