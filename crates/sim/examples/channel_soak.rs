//! Sends millions of messages through every channel on every fabric, and checks each of them.
//!
//! `channel_soak [--messages N] [--channel NAME] [--fabric mem|shm|sim] [--seed S]`: N messages for each channel and
//! fabric (default a million), of one channel, on one fabric, with seeds from S on (default 1). Exit code 0: all
//! messages arrived once, whole and in order; 1: a message did not; 2: wrong arguments.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside::channel::{Kind, Options};
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_sim::channel_soak::{
    Failure, Ground, PROFILES, Profile, ROUND_MESSAGES, Tally, soak, unmet,
};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

const USAGE: &str =
    "channel_soak [--messages N] [--channel NAME] [--fabric mem|shm|sim] [--seed S]";
const FABRICS: [&str; 3] = ["mem", "shm", "sim"];

struct Wanted {
    messages: u64,
    kinds: Vec<Kind>,
    fabrics: Vec<&'static str>,
    seed: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.iter().any(|argument| argument == "--help" || argument == "-h") {
        println!("{USAGE}");
        return ExitCode::SUCCESS;
    }
    let wanted = match parse(&arguments) {
        Ok(wanted) => wanted,
        Err(what) => {
            eprintln!("{what}; {USAGE}");
            return ExitCode::from(2);
        }
    };
    println!("seed {}, {} messages for each channel and fabric", wanted.seed, wanted.messages);
    let mut failed = false;
    for fabric in &wanted.fabrics {
        for kind in &wanted.kinds {
            failed |= !one(fabric, *kind, &wanted);
        }
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn parse(arguments: &[String]) -> Result<Wanted, String> {
    let mut wanted = Wanted {
        messages: 1_000_000,
        kinds: Kind::ALL.to_vec(),
        fabrics: FABRICS.to_vec(),
        seed: 1,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        let value = rest.next().ok_or_else(|| format!("{argument} needs a value"))?;
        let number = || value.parse::<u64>().map_err(|_| format!("{value} is no number"));
        match argument.as_str() {
            "--messages" => wanted.messages = number()?,
            "--seed" => wanted.seed = number()?,
            "--channel" => {
                wanted.kinds =
                    vec![value.parse().map_err(|unknown| format!("{value}: {unknown}"))?];
            }
            "--fabric" => {
                let found = FABRICS.into_iter().find(|fabric| fabric == value);
                wanted.fabrics = vec![found.ok_or_else(|| format!("no fabric {value}"))?];
            }
            other => return Err(format!("unknown argument {other}")),
        }
    }
    Ok(wanted)
}

/// Returns the profiles that support a channel.
fn survived(kind: Kind) -> Vec<Profile> {
    let options = Options::new(kind, 1_000);
    PROFILES
        .into_iter()
        .filter(|profile| unmet(&options, &profile.capabilities).is_none())
        .collect()
}

fn ground(fabric: &str, kind: Kind, seed: u64) -> Ground {
    match fabric {
        "mem" => {
            let one: Arc<dyn Fabric> = Arc::new(MemFabric::new());
            Ground::real(move |_| Arc::clone(&one))
        }
        "shm" => Ground::real(|_| match ShmFabric::new() {
            Ok(fabric) => Arc::new(fabric),
            Err(error) => {
                eprintln!("no shared memory: {error}");
                std::process::exit(1);
            }
        }),
        _ => {
            let profiles = survived(kind);
            Ground::simulated(profiles[seed as usize % profiles.len()].net(seed))
        }
    }
}

/// Runs the soak of a channel on a fabric. Returns whether it succeeded.
fn one(fabric: &str, kind: Kind, wanted: &Wanted) -> bool {
    let start = Instant::now();
    let mut told = 0;
    let mut after = |tally: &Tally| {
        if tally.messages / 200_000 > told && tally.messages < wanted.messages {
            told = tally.messages / 200_000;
            println!("  {fabric} {kind}: {} messages", tally.messages);
        }
    };
    let ground = |seed| ground(fabric, kind, seed);
    match soak(kind, wanted.messages, wanted.seed, &ground, &mut after) {
        Ok(tally) => {
            println!(
                "{fabric} {kind}: {} messages sent, {} received, {} rounds, {:.1} s",
                tally.messages,
                tally.received,
                tally.rounds,
                start.elapsed().as_secs_f64()
            );
            true
        }
        Err(failure) => {
            complain(fabric, &failure);
            false
        }
    }
}

fn complain(fabric: &str, (round, trouble): &Failure) {
    let last = round.messages.min(ROUND_MESSAGES);
    println!("{fabric} {}: FAILED: {trouble}", round.options.kind);
    println!("  {round}");
    println!(
        "  again: cargo run --release -p farside-sim --example channel_soak -- --fabric {fabric} \
         --channel {} --seed {} --messages {last}",
        round.options.kind, round.seed
    );
}
