//! Judges programs by chance: `fuzz [--seed FIRST] [--count MANY]`. Prints where it is, and for a defect
//! the seed that shows it again, which it ends with 1 for; arguments that it does not take, with 2.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

#[path = "../tests/fuzz/mod.rs"]
mod fuzz;

use std::process::ExitCode;

use fuzz::{FuzzRandom, FuzzVerdict, judge, program};

const TAKES: &str = "\
fuzz [--seed FIRST] [--count MANY]

  --seed FIRST  the seed of the first program; 0 where it is not said
  --count MANY  how many programs, each of the next seed; 10000000 where it is not said
  --help        prints this";

/// What it was asked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum FuzzMode {
    Help,
    /// `count` programs with consecutive seeds from `first` on; the last one must have a seed too.
    Programs {
        first: u64,
        count: u64,
    },
}

fn main() -> ExitCode {
    let arguments = std::env::args_os().skip(1);
    match asked(arguments.map(|argument| argument.to_string_lossy().into_owned())) {
        Ok(FuzzMode::Help) => {
            println!("{TAKES}");
            ExitCode::SUCCESS
        }
        Ok(FuzzMode::Programs { first, count }) => run(first, count),
        Err(why) => {
            eprintln!("{why}\n\n{TAKES}");
            ExitCode::from(2)
        }
    }
}

fn asked(mut arguments: impl Iterator<Item = String>) -> Result<FuzzMode, String> {
    let (mut first, mut count) = (0u64, 10_000_000u64);
    while let Some(argument) = arguments.next() {
        let value = match argument.as_str() {
            "--help" | "-h" => return Ok(FuzzMode::Help),
            "--seed" => &mut first,
            "--count" => &mut count,
            _ => return Err(format!("it takes no `{argument}`")),
        };
        let text = arguments.next().ok_or_else(|| format!("{argument} has no number"))?;
        let parsed = text.parse();
        *value = parsed.map_err(|why| format!("{argument} takes a number, not `{text}`: {why}"))?;
    }
    match first.checked_add(count.saturating_sub(1)) {
        Some(_) => Ok(FuzzMode::Programs { first, count }),
        None => {
            Err(format!("there are no {count} seeds from {first} on, the last is {}", u64::MAX))
        }
    }
}

fn run(first: u64, count: u64) -> ExitCode {
    let (mut accepted, mut metered) = (0u64, 0u64);
    for done in 1..=count {
        let seed = first + (done - 1);
        let mut chance = FuzzRandom::new(seed);
        let program = program(&mut chance);
        match judge(program, &mut chance) {
            Ok(FuzzVerdict::Refused) => {}
            Ok(FuzzVerdict::Accepted { metered: by_meter }) => {
                accepted += 1;
                metered += u64::from(by_meter);
            }
            Err(why) => {
                println!("{why}\nDEFECT: fuzz --seed {seed} --count 1");
                return ExitCode::FAILURE;
            }
        }
        if done % 500_000 == 0 {
            println!("{done} programs, {accepted} accepted, {metered} of them metered");
        }
    }
    println!(
        "{count} programs from seed {first}: {accepted} accepted, {metered} metered, no defect"
    );
    ExitCode::SUCCESS
}
