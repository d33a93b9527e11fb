//! Judges programs by chance: `fuzz [--seed FIRST] [--count MANY]`. Prints where it is, and for a defect
//! the seed that shows it again.
#![expect(clippy::print_stdout, reason = "it is a program for a terminal")]

#[path = "../tests/fuzz/mod.rs"]
mod fuzz;

use std::process::ExitCode;

use fuzz::{Chance, Verdict, judge, program};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let value = |name: &str, default: u64| {
        let at = arguments.iter().position(|argument| argument == name);
        at.and_then(|at| arguments.get(at + 1)?.parse().ok()).unwrap_or(default)
    };
    let (first, count) = (value("--seed", 0), value("--count", 10_000_000));
    let (mut accepted, mut metered) = (0u64, 0u64);
    for seed in first..first.saturating_add(count) {
        let mut chance = Chance::new(seed);
        let program = program(&mut chance);
        match judge(program, &mut chance) {
            Ok(Verdict::Refused) => {}
            Ok(Verdict::Accepted { metered: by_meter }) => {
                accepted += 1;
                metered += u64::from(by_meter);
            }
            Err(why) => {
                println!("{why}\nDEFECT: fuzz --seed {seed} --count 1");
                return ExitCode::FAILURE;
            }
        }
        let done = seed - first + 1;
        if done % 500_000 == 0 {
            println!("{done} programs, {accepted} accepted, {metered} of them metered");
        }
    }
    println!(
        "{count} programs from seed {first}: {accepted} accepted, {metered} metered, no defect"
    );
    ExitCode::SUCCESS
}
