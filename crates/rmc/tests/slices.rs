//! Calls that are cut into slices: in every engine they pause, go on, and end as in one go.

mod common;

use common::{BUDGET, program, verified};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::Compiled;
use farside_rmc::run::{Far, Lent, Machine, Outcome, Resource, Stop};
use farside_rmc::{Budget, Limits, Verified, verify};

/// Who runs a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Engine {
    Checked,
    Fast,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Compiled,
}

const ENGINES: &[Engine] = &[
    Engine::Checked,
    Engine::Fast,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Engine::Compiled,
];

/// A call in slices, to its end; how often it paused. Never more often than a call may.
fn sliced(
    verified: &Verified,
    context: &[u8],
    budget: Budget,
    slice: u64,
    engine: Engine,
) -> (Machine, Outcome, u64) {
    let mut machine = Machine::new();
    machine.start(verified, context, budget).unwrap();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let compiled = Compiled::new(verified.clone()).unwrap();
    for pauses in 0..=budget.instructions {
        let lent = Lent::default();
        let outcome = match engine {
            Engine::Checked => machine.run_checked_slice(verified.program(), slice, lent, &mut Far),
            Engine::Fast => machine.run_slice(verified, slice, lent, &mut Far),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            Engine::Compiled => compiled.run_slice(&mut machine, slice, lent, &[], &mut Far),
        };
        if outcome != Outcome::Paused {
            return (machine, outcome, pauses);
        }
        assert_eq!(machine.pending(), None);
        Machine::from_bytes(verified, &machine.to_bytes()).unwrap();
    }
    panic!("{engine:?} does not get on by slices of {slice}");
}

#[test]
fn a_long_call_that_is_proven_to_end_pauses() {
    let body = "r0 += r6\nr0 ^= r6\nr0 <<= 1\nr0 += 1\n".repeat(25);
    let text = format!("r0 = 0\nr6 = 0\nagain:\n{body}r6 += 1\nif r6 != 10000 goto again\nexit");
    let limits = Limits { walked_max: 2_000_000, ..Limits::DEFAULT };
    let verified = verify(program(&text), &limits).unwrap();
    assert!(!verified.metered());
    assert_eq!(verified.worst().instructions, 3 + 102 * 10_000);
    let whole = sliced(&verified, &[], BUDGET, u64::MAX, Engine::Fast);
    assert_eq!(whole.2, 0);
    for engine in ENGINES {
        let (_, outcome, pauses) = sliced(&verified, &[], BUDGET, 8_192, *engine);
        // A turn passes the slice, so that each has one turn more than fit.
        assert_eq!((outcome, pauses), (whole.1, 10_000 / (8_192 / 102 + 1)), "{engine:?}");
    }
}

#[test]
fn a_short_call_does_not() {
    let verified = verified("r0 = 0\nagain:\nr0 += 1\nif r0 != 1000 goto again\nexit");
    for engine in ENGINES {
        let (_, outcome, pauses) = sliced(&verified, &[], BUDGET, 1, *engine);
        assert_eq!((outcome, pauses), (Outcome::Returned(1000), 0), "{engine:?}");
    }
}

#[test]
fn a_loop_to_the_first_instruction_goes_on_where_it_paused() {
    // The parameters' length counts the turns.
    let text = "again:\nr2 += -1\nif r2 s> 0 goto again\nr0 = r2\nexit";
    let limits = Limits { unpaused_max: 0, ..Limits::DEFAULT };
    let verified = verify(program(text), &limits).unwrap();
    for engine in ENGINES {
        let (_, outcome, pauses) = sliced(&verified, &[0; 64], BUDGET, 1, *engine);
        assert_eq!((outcome, pauses), (Outcome::Returned(0), 63), "{engine:?}");
    }
}

#[test]
fn a_function_pauses_where_it_starts() {
    let text = "
            r6 = r2
            r1 = r6
            call double
            r0 += r6
            exit
        .function double
            r0 = r1
            r0 += r1
            exit
    ";
    let limits = Limits { unpaused_max: 0, ..Limits::DEFAULT };
    let verified = verify(program(text), &limits).unwrap();
    for engine in ENGINES {
        let (_, outcome, pauses) = sliced(&verified, &[0; 14], BUDGET, 2, *engine);
        assert_eq!((outcome, pauses), (Outcome::Returned(42), 1), "{engine:?}");
    }
}

#[test]
fn a_budget_ends_where_it_would_have_ended() {
    let endless = "r6 = 0\nagain:\nr6 += 1\nr0 = r6\nif r6 != 0 goto again\nexit";
    let budget = Budget { instructions: 100, ..BUDGET };
    let limits = Limits { budget, ..Limits::DEFAULT };
    let verified = verify(program(endless), &limits).unwrap();
    let resource = Resource::Instructions;
    let stop = Outcome::Stopped(Stop::Budget { slot: 3, resource });
    let whole = sliced(&verified, &[], budget, u64::MAX, Engine::Checked);
    assert_eq!((whole.1, whole.0.executed()), (stop, 97));
    for slice in 0..100 {
        for engine in ENGINES {
            let (machine, outcome, pauses) = sliced(&verified, &[], budget, slice, *engine);
            assert_eq!(outcome, stop, "{engine:?} by {slice}");
            // From R6 on, with what is left of the budget. R1 to R5 are dead.
            let (ended, expected) = (machine.to_bytes(), whole.0.to_bytes());
            assert!(ended[48..] == expected[48..], "{engine:?} by {slice}: {machine:?}");
            assert_eq!(pauses, 31 / (slice / 3 + 1), "{engine:?} by {slice}");
        }
    }
}

#[test]
fn bytes_of_helpers_use_up_slices() {
    let hash = "r1 = r10\nr1 += -512\nr2 = 512\nr3 = 1\ncall xxhash64\n*(u64 *)(r10 - 8) = r0\n";
    let fill: String = (1..=64).map(|word| format!("*(u64 *)(r10 - {}) = 5\n", word * 8)).collect();
    let verified = verified(&format!("{fill}{}exit", hash.repeat(6)));
    let whole = sliced(&verified, &[], BUDGET, u64::MAX, Engine::Fast);
    for (slice, expected) in [(10_000, 0), (1_024, 2), (512, 3), (511, 6), (0, 6)] {
        for engine in ENGINES {
            let (_, outcome, pauses) = sliced(&verified, &[], BUDGET, slice, *engine);
            assert_eq!((outcome, pauses), (whole.1, expected), "{engine:?} by {slice}");
        }
    }
    // The budget of bytes is that of the whole call.
    let budget = Budget { bytes: 6 * 512 - 1, ..BUDGET };
    let limits = Limits { budget, ..Limits::DEFAULT };
    let metered = verify(verified.program().clone(), &limits).unwrap();
    let stop = Stop::Budget { slot: 64 + 6 * 5 + 4, resource: Resource::Bytes };
    for slice in [0, 511, 512, 1_024, 10_000] {
        for engine in ENGINES {
            let (_, outcome, _) = sliced(&metered, &[], budget, slice, *engine);
            assert_eq!(outcome, Outcome::Stopped(stop), "{engine:?} by {slice}");
        }
    }
}

#[test]
fn a_budget_below_the_program_ends_at_its_first_jump() {
    let endless = "r6 = 0\nagain:\nr6 += 1\nr0 = r6\nif r6 != 0 goto again\nexit";
    let budget = Budget { instructions: 4, ..BUDGET };
    let limits = Limits { budget, ..Limits::DEFAULT };
    let verified = verify(program(endless), &limits).unwrap();
    let stop = Stop::Budget { slot: 3, resource: Resource::Instructions };
    for slice in [0, 1, 1_000] {
        for engine in ENGINES {
            let (_, outcome, pauses) = sliced(&verified, &[], budget, slice, *engine);
            assert_eq!((outcome, pauses), (Outcome::Stopped(stop), 0), "{engine:?} by {slice}");
        }
    }
}
