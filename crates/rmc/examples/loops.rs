//! What the proof of loops costs and brings: `loops OBJECT...` verifies every program of these objects twice, by
//! exploring paths with loop summarization, and by the fixpoint alone, which meters every loop. Prints how many are
//! refused and metered, how many instructions were walked, and the times of both verifications and of calls, as sums
//! over all programs that both accept.
#![expect(clippy::print_stdout, clippy::print_stderr, reason = "it is a program for a terminal")]

use std::process::ExitCode;
use std::time::Instant;

use farside_rmc::program::load;
use farside_rmc::run::{Lent, Machine, Near, Reply};
use farside_rmc::{Limits, Program, Verification, Verified};

/// Measurements per program; the minimum is reported.
const ROUNDS: u32 = 15;

/// Memory of the host, of which every byte that is read is small.
struct LoopHost;

impl Near for LoopHost {
    fn read(&mut self, _: u64, offset: u64, out: &mut [u8]) -> Reply {
        out.iter_mut().zip(offset..).for_each(|(byte, at)| *byte = (at * 7 % 11) as u8);
        Reply::Now(0)
    }

    fn load_u64(&mut self, _: u64, _: u64) -> Reply {
        Reply::Now(3)
    }
}

/// What a way to prove came to.
#[derive(Default)]
struct Sums {
    refused: u32,
    metered: u32,
    walked: Vec<u64>,
    proof_ns: u64,
    call_ns: u64,
}

fn least_ns(mut round: impl FnMut()) -> u64 {
    let time = |_| {
        let start = Instant::now();
        round();
        u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)
    };
    (0..ROUNDS).map(time).min().unwrap_or(0)
}

fn prove(program: &Program, limits: &Limits) -> (u64, Option<Verified>) {
    let mut verification = Verification::new(program.clone(), limits);
    let verdict = core::iter::repeat_with(|| verification.step(u32::MAX)).flatten().next();
    (verification.walked(), verdict.and_then(Result::ok))
}

fn call_ns(verified: &Verified) -> u64 {
    let context: Vec<u8> = [0_u64, 5, 3, 9].into_iter().flat_map(u64::to_le_bytes).collect();
    let variables = &verified.program().variables;
    least_ns(|| {
        let (mut own, mut shared) = (variables.own.clone(), variables.shared.clone());
        let mut machine = Machine::new();
        if machine.start(verified, &context, verified.limits().budget).is_ok() {
            machine.run(verified, Lent { own: &mut own, shared: &mut shared }, &mut LoopHost);
        }
    })
}

fn main() -> ExitCode {
    let ways =
        [("summarized", Limits::DEFAULT), ("metered", Limits { walked_max: 0, ..Limits::DEFAULT })];
    let mut sums = [Sums::default(), Sums::default()];
    let (mut programs, mut both) = (0, 0);
    for path in std::env::args().skip(1) {
        let loaded = std::fs::read(&path)
            .map_err(|error| error.to_string())
            .and_then(|object| load(&object, &Limits::DEFAULT).map_err(|error| error.to_string()));
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                eprintln!("{path}: {error}");
                return ExitCode::from(1);
            }
        };
        for program in loaded {
            programs += 1;
            let proofs = ways.map(|(_, limits)| prove(&program, &limits));
            let are_both = proofs.iter().all(|(_, verified)| verified.is_some());
            both += u32::from(are_both);
            for ((sums, (walked, verified)), (_, limits)) in sums.iter_mut().zip(proofs).zip(ways) {
                sums.walked.push(walked);
                let Some(verified) = verified else {
                    sums.refused += 1;
                    continue;
                };
                sums.metered += u32::from(verified.metered());
                if are_both {
                    sums.proof_ns += least_ns(|| drop(prove(&program, &limits)));
                    sums.call_ns += call_ns(&verified);
                }
            }
        }
    }
    println!("{programs} programs, {both} accepted by both");
    for ((name, _), mut sums) in ways.into_iter().zip(sums) {
        sums.walked.sort_unstable();
        let walked = |part: usize| sums.walked.get(sums.walked.len() * part / 100).unwrap_or(&0);
        println!(
            "{name}: refused {}, metered {}, walked {} (median), {} (p90), {} (p99), proofs {} us, calls {} us",
            sums.refused,
            sums.metered,
            walked(50),
            walked(90),
            walked(99),
            sums.proof_ns / 1_000,
            sums.call_ns / 1_000,
        );
    }
    ExitCode::SUCCESS
}
