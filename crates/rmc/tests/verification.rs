//! Verification by steps: it comes to the same however it is cut, and no step is long.

mod clang;
mod common;
mod fuzz;
mod hostile;

use common::program;
use farside_rmc::library::ENTRIES;
use farside_rmc::program::load;
use farside_rmc::{Limits, Program, Refusal, Verification, Verified, verify};
use fuzz::FuzzRandom;
use hostile::HOSTILE;

/// So few instructions that many programs are not proven by walking them, and some not at all.
/// Enough for nearly all programs by chance; some only seem to count, and are walked as far as it goes.
const PATIENT: Limits = Limits { walked_max: 4_000, widened_max: 8_000, ..Limits::DEFAULT };
const IMPATIENT: Limits = Limits { walked_max: 60, widened_max: 40, ..Limits::DEFAULT };

/// More iterations than are unrolled, all different, and without a counter.
const LONG: &str = "
        r0 = 1
    again:
        r0 *= 16777259
        r0 ^= 12345
        if r0 != 0 goto again
        exit
";

/// All that is known of a verdict but how many programs were verified before.
fn told(verdict: Result<Verified, Box<Refusal>>) -> String {
    match verdict {
        Ok(verified) => {
            let text = format!("{verified:?}");
            let (all, _) = text.rsplit_once("identity: ").expect("it is the last field");
            all.to_owned()
        }
        Err(refusal) => format!("{refusal}\n{refusal:?}"),
    }
}

fn by_steps(program: &Program, limits: &Limits, instructions: u32) -> String {
    let mut verification = Verification::new(program.clone(), limits);
    let verdict = loop {
        let before = verification.walked();
        let verdict = verification.step(instructions);
        assert!(verification.walked() - before <= u64::from(instructions.max(1)));
        if let Some(verdict) = verdict {
            break verdict;
        }
    };
    assert!(verification.step(instructions).is_none(), "it has said all");
    told(verdict)
}

/// Whether it was accepted.
fn check(program: &Program, limits: &Limits) -> bool {
    let whole = verify(program.clone(), limits);
    let (accepted, whole) = (whole.is_ok(), told(whole));
    for instructions in [1, 7, 100, u32::MAX] {
        let found = by_steps(program, limits, instructions);
        assert!(found == whole, "{} by {instructions}:\n{found}\n{whole}", program.name);
    }
    accepted
}

#[test]
fn programs_of_the_library_come_to_the_same_by_steps() {
    for entry in ENTRIES {
        for program in load(entry.object, &Limits::DEFAULT).unwrap() {
            assert!(check(&program, &Limits::DEFAULT), "{}", program.name);
            check(&program, &IMPATIENT);
        }
    }
}

#[test]
fn programs_in_c_come_to_the_same_by_steps() {
    for file in ["global.c", "hash.c", "kitchen.c", "search.c", "wrong.c"] {
        let Some(object) = clang::compiled(&format!("tests/c/{file}"), &[]) else {
            return;
        };
        for program in load(&object, &Limits::DEFAULT).unwrap() {
            assert_eq!(check(&program, &Limits::DEFAULT), file != "wrong.c", "{}", program.name);
        }
    }
}

#[test]
fn refusals_are_the_same_by_steps() {
    for (text, _, says) in HOSTILE {
        let program = program(text);
        assert!(!check(&program, &Limits::DEFAULT), "{text}");
        assert!(by_steps(&program, &Limits::DEFAULT, 0).contains(says), "{text}");
    }
    assert!(!check(&Program::default(), &Limits::DEFAULT));
}

#[test]
fn programs_by_chance_come_to_the_same_by_steps() {
    let (mut accepted, mut impatient) = (0, 0);
    for seed in 0..3_000 {
        let program = fuzz::program(&mut FuzzRandom::new(seed));
        accepted += u32::from(check(&program, &PATIENT));
        impatient += u32::from(check(&program, &IMPATIENT));
    }
    // Some are refused for what they do, some for how long they are, some are metered.
    assert!(accepted > 750 && impatient > 100 && impatient < accepted, "{accepted} {impatient}");
}

#[test]
fn a_step_of_an_enormous_walk_is_short() {
    let endless = "again:\nr1 = 0\nr2 = 0\nr3 = r7\nr3 &= 1023\nr4 = 0\ncall crc32c_of\nr7 += 1\ngoto again\nexit";
    let long = program(LONG);
    let lost = program(&LONG.replace("exit", "r0 = *(u8 *)(r10 + 0)\nexit"));
    let endless = program(&format!("r7 = 0\n{endless}"));
    for (program, accepted, walked_least) in
        [(&long, true, 60_000), (&lost, false, 60_000), (&endless, false, 60_000)]
    {
        let mut verification = Verification::new(program.clone(), &Limits::DEFAULT);
        let (mut steps, mut before) = (0, 0);
        let verdict = loop {
            let verdict = verification.step(64);
            let walked = verification.walked();
            assert!(walked - before <= 64, "{walked} after {before}");
            (steps, before) = (steps + 1, walked);
            if let Some(verdict) = verdict {
                break verdict;
            }
        };
        assert_eq!(verdict.is_ok(), accepted, "{}", program.name);
        assert!(before >= walked_least, "{before}");
        // Ends of stretches take from a step too, and there are fewer of them than instructions.
        assert!(steps >= before / 64 && steps <= before / 32 + 20, "{steps} for {before}");
    }
}

#[test]
fn it_goes_on_in_another_thread() {
    let whole = told(verify(program(LONG), &Limits::DEFAULT));
    let mut verification = Verification::new(program(LONG), &Limits::DEFAULT);
    let found = loop {
        let stepped = std::thread::spawn(move || {
            let verdict = verification.step(10_000);
            (verification, verdict)
        });
        let verdict;
        (verification, verdict) = stepped.join().unwrap();
        if let Some(verdict) = verdict {
            break told(verdict);
        }
    };
    assert_eq!(found, whole);
    assert!(format!("{verification:?}").contains("over: true"));
}

fn walked(program: &Program) -> (u64, Result<Verified, Box<Refusal>>) {
    let mut verification = Verification::new(program.clone(), &Limits::DEFAULT);
    let verdict = core::iter::repeat_with(|| verification.step(u32::MAX)).flatten().next();
    (verification.walked(), verdict.expect("it comes to one"))
}

#[test]
fn dead_stack_numbers_do_not_prevent_pruning() {
    let text = "
        r6 = *(u64 *)(r1 + 0)
        r7 = 0
        *(u64 *)(r10 - 8) = r7
    again:
        r7 = *(u64 *)(r10 - 8)
        if r7 == 10 goto over
        r7 += 1
        *(u64 *)(r10 - 8) = r7
        r6 >>= 1
        r8 = r6
        r8 &= 1
        if r8 == 0 goto again
    over:
        r0 = 0
    more:
        r0 += 1
        if r0 < 20 goto more
        exit
    ";
    let (walked, verdict) = walked(&program(text));
    assert_eq!(verdict.unwrap().worst().instructions, 3 + 10 * 8 + 2 + 42);
    // The second loop once, and not once for each iteration of the first.
    assert!(walked < 200, "{walked}");
}

#[test]
fn what_another_address_reads_on_the_stack_is_known_all_the_same() {
    let text = |below: u64| {
        format!(
            "
            r7 = {below}
            *(u64 *)(r10 - 16) = r7
            r6 = *(u64 *)(r1 + 0)
            if r6 == 0 goto meet
            r6 = 1
        meet:
            r2 = r10
            r2 += -16
            r3 = *(u64 *)(r2 + 0)
            r4 = r10
            r4 -= r3
            *(u64 *)(r4 + 0) = r6
            r0 = *(u64 *)(r10 - 8)
            exit
            "
        )
    };
    let (walked, verdict) = walked(&program(&text(8)));
    assert!(!verdict.unwrap().metered());
    assert_eq!(walked, 10 + 21, "to the sum with the number forgotten, and once more");
    let wrong = verify(program(&text(4)), &Limits::DEFAULT).unwrap_err().to_string();
    assert!(wrong.contains("*(u64 *)(r4 + 0) = r6"), "{wrong}");
    assert!(wrong.contains("508"), "the place as it is known exactly: {wrong}");
}
