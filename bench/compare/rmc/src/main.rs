//! Compares remote memory calls with other engines in one run. `--json` prints JSON; `--rounds N` and
//! `--window-us N` set how long the run measures.
#![expect(clippy::print_stdout, reason = "a program for a terminal")]

mod list;
mod ours;
mod peers;
#[path = "../../../../crates/rmc/examples/programs/mod.rs"]
mod programs;
mod report;
mod rounds;
mod wasm;

use std::time::Duration;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let mut cases = Vec::new();
    ours::searches(&mut cases);
    peers::searches(&mut cases);
    wasm::searches(&mut cases);
    ours::registrations(&mut cases);
    peers::registrations(&mut cases);
    wasm::registrations(&mut cases);
    let (rounds, window) = (value("--rounds", 101), value("--window-us", 500));
    rounds::measure(&mut cases, rounds as usize, Duration::from_micros(window));
    if arguments.iter().any(|argument| argument == "--json") {
        println!("{}", report::json(&cases));
    } else {
        println!("{}", report::table(&cases));
    }
}
