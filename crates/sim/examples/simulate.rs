//! Runs seeded simulations of whole nodes: `simulate [--seed N] [--count N] [--faults | --weather | --leave]`.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside_sim::cluster::{Scenario, simulate};
use std::process::ExitCode;

fn main() -> ExitCode {
    let (mut first, mut count) = (0, 1);
    let (mut faults, mut weather, mut leave) = (false, false, false);
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let mut number = || arguments.next().and_then(|text| text.parse::<u64>().ok());
        match argument.as_str() {
            "--seed" => first = number().unwrap_or(0),
            "--count" => count = number().unwrap_or(1),
            "--faults" => faults = true,
            "--weather" => weather = true,
            "--leave" => leave = true,
            other => {
                eprintln!("unknown argument {other}; see the head of this file");
                return ExitCode::from(2);
            }
        }
    }
    let (mut steps, mut operations, mut failed, mut evictions) = (0, 0, 0, 0);
    for seed in first..first + count {
        let scenario = match (weather, leave) {
            (true, _) => Scenario::draw_weather(seed),
            (_, true) => Scenario::draw_leave(seed),
            _ => Scenario::draw(seed, faults),
        };
        match simulate(scenario) {
            Ok(summary) => {
                steps += summary.steps;
                operations += summary.history.len();
                failed += summary.failed;
                evictions += summary.evictions;
            }
            Err(trouble) => {
                eprintln!("{trouble}");
                return ExitCode::FAILURE;
            }
        }
    }
    println!(
        "{count} runs, {steps} steps, {operations} operations on words, {failed} failed for a death or a parting, {evictions} evictions"
    );
    ExitCode::SUCCESS
}
