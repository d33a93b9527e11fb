//! Calls in slices: in every engine they pause, continue, and end as in one run.

mod common;

use common::{BUDGET, program, verified};
#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{Far, Lent, Machine, Near, Outcome, Reply, Resource, Stop};
use farside_rmc::{Budget, Limits, Verified, verify};

/// Who runs a slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum SliceEngine {
    Checked,
    Fast,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    Compiled,
}

const ENGINES: &[SliceEngine] = &[
    SliceEngine::Checked,
    SliceEngine::Fast,
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    SliceEngine::Compiled,
];

/// A call in slices, to its end; how often it paused. Never more often than a call may.
fn sliced(
    verified: &Verified,
    context: &[u8],
    budget: Budget,
    slice: u64,
    engine: SliceEngine,
) -> (Machine, Outcome, u64) {
    let mut machine = Machine::new();
    machine.start(verified, context, budget).unwrap();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let compiled = Compiled::new(verified.clone()).unwrap();
    for pauses in 0..=budget.instructions {
        let lent = Lent::default();
        let outcome = match engine {
            SliceEngine::Checked => {
                machine.run_checked_slice(verified.program(), slice, lent, &mut Far)
            }
            SliceEngine::Fast => machine.run_slice(verified, slice, lent, &mut Far),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            SliceEngine::Compiled => compiled.run_slice(&mut machine, slice, lent, &[], &mut Far),
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
    let whole = sliced(&verified, &[], BUDGET, u64::MAX, SliceEngine::Fast);
    assert_eq!(whole.2, 0);
    for engine in ENGINES {
        let (_, outcome, pauses) = sliced(&verified, &[], BUDGET, 8_192, *engine);
        // An iteration exceeds the slice, so that each slice has one iteration more than fit.
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
    // The parameters' length is the trip count.
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
    let whole = sliced(&verified, &[], budget, u64::MAX, SliceEngine::Checked);
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
    let whole = sliced(&verified, &[], BUDGET, u64::MAX, SliceEngine::Fast);
    // Those that are longer than a slice take as many as they fill, after one to find that out.
    for (slice, expected) in [(10_000, 0), (1_024, 2), (512, 3), (511, 6 * 3), (8, 6 * 65)] {
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

/// Fills variables with bytes that shrink, hashes them both ways, compresses them in place, and emits what came
/// of it all.
const LONG: &str = "
    .own 4096
        r6 = own 0
        r7 = 0
    again:
        r1 = r7
        r1 *= r7
        r1 *= 40503
        r1 *= r7
        r1 >>= 17
        r1 &= 3
        r2 = r6
        r2 += r7
        *(u8 *)(r2 + 0) = r1
        r7 += 1
        if r7 != 4096 goto again
        r1 = r6
        r2 = 4096
        r3 = 0
        call crc32c
        r7 = r0
        r1 = r6
        r2 = 4096
        r3 = r7
        call xxhash64
        r8 = r0
        r1 = r6
        r2 = 4096
        r3 = r6
        r4 = 4096
        call compress
        r9 = r0
        r1 = r6
        r2 = 4096
        call emit
        r7 ^= r8
        r0 = r7
        r0 += r9
        exit
";

/// A call in slices: checked, or alternating between the other engines; serialized and restored every `moves` pauses.
fn long(verified: &Verified, slice: u64, moves: u64) -> (Outcome, Vec<u8>, Vec<u8>, u64) {
    let (mut own, mut machine) = (vec![0; 4096], Machine::new());
    machine.start(verified, &[], Limits::DEFAULT.budget).unwrap();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let compiled = Compiled::new(verified.clone()).unwrap();
    for pauses in 0.. {
        let lent = Lent { own: &mut own, shared: &mut [] };
        let outcome = match pauses % 2 {
            _ if moves == 0 => machine.run_checked_slice(verified.program(), slice, lent, &mut Far),
            #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
            1 => compiled.run_slice(&mut machine, slice, lent, &[], &mut Far),
            _ => machine.run_slice(verified, slice, lent, &mut Far),
        };
        if outcome != Outcome::Paused {
            return (outcome, machine.output().to_vec(), own, pauses);
        }
        if moves > 0 && pauses % moves == 0 {
            machine = Machine::from_bytes(verified, &machine.to_bytes()).unwrap();
        }
    }
    unreachable!("a call with that many pauses would have been stopped")
}

#[test]
fn helpers_with_long_buffers_pause_within() {
    let verified = verified(LONG);
    let (outcome, output, own, pauses) = long(&verified, u64::MAX, 0);
    assert!(matches!(outcome, Outcome::Returned(_)) && pauses == 0, "{outcome:?}");
    let block = own.iter().rposition(|byte| *byte != 0).unwrap();
    assert!(output == own && (1_000..3_000).contains(&block), "a block of {block} B");
    for slice in [1, 7, 100, 1_000, 4_095] {
        for moves in [0, 1, 2, 5] {
            let sliced = long(&verified, slice, moves);
            assert!(
                (sliced.0, &sliced.1, &sliced.2) == (outcome, &output, &own),
                "slices of {slice}, moved by {moves}: {:?}",
                sliced.0
            );
            // Two hashes alone are 8 KiB.
            assert!(sliced.3 >= 8_192 / slice, "{} of {slice}", sliced.3);
        }
    }
}

#[test]
fn a_long_helper_that_is_cancelled_leaves_nothing_behind() {
    let verified = verified(LONG);
    let (mut own, mut machine) = (vec![0; 4096], Machine::new());
    machine.start(&verified, &[], Limits::DEFAULT.budget).unwrap();
    let mut slice = |machine: &mut Machine| {
        let lent = Lent { own: &mut own, shared: &mut [] };
        machine.run_slice(&verified, 512, lent, &mut Far)
    };
    while machine.to_bytes()[(11 + 2 + 3 + 1) * 8] != 1 {
        assert_eq!(slice(&mut machine), Outcome::Paused, "until a helper is in progress");
    }
    machine.cancel();
    assert_eq!(slice(&mut machine), Outcome::Stopped(Stop::NotRunning));
    let again = long(&verified, u64::MAX, 0);
    machine.start(&verified, &[], Limits::DEFAULT.budget).unwrap();
    let lent = Lent { own: &mut own, shared: &mut [] };
    assert_eq!(machine.run(&verified, lent, &mut Far), again.0);
}

#[test]
fn a_block_without_room_clears_its_place_however_it_is_cut() {
    let text = LONG.replace("r4 = 4096", "r4 = 500");
    let verified = verified(&text);
    let whole = long(&verified, u64::MAX, 0);
    assert!(whole.2[..500].iter().all(|byte| *byte == 0) && whole.2[500..].contains(&3));
    for slice in [1, 300, 4_000] {
        let sliced = long(&verified, slice, 3);
        assert!((sliced.0, sliced.1, sliced.2) == (whole.0, whole.1.clone(), whole.2.clone()));
    }
}

/// Host memory of which each word says where the next one is.
struct ChainedWords(Vec<u8>);

impl ChainedWords {
    fn new() -> Self {
        let next = (0..512u64).flat_map(|at| ((at * 37 + 11) % 512 * 8).to_le_bytes());
        Self(next.collect())
    }
}

impl Near for ChainedWords {
    fn load_u64(&mut self, region: u64, offset: u64) -> Reply {
        let word = self.0.get(offset as usize..).and_then(|bytes| bytes.first_chunk());
        match word.filter(|_| region == 0) {
            Some(word) => Reply::Now(u64::from_le_bytes(*word)),
            None => Reply::Refused,
        }
    }
}

/// A call that all engines run in slices, and that is the same in all of them at every pause; how it ends,
/// how often it paused, and the most instructions of a slice. Of registers it is R6 to R10: the others may
/// be dead.
fn in_step(verified: &Verified, budget: Budget, slice: u64) -> (Outcome, u64, u64) {
    let (mut checked, mut fast, mut words) = (Machine::new(), Machine::new(), ChainedWords::new());
    checked.start(verified, &[], budget).unwrap();
    fast.start(verified, &[], budget).unwrap();
    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    let (mut native, bytes, compiled) =
        (fast.clone(), ChainedWords::new().0, Compiled::new(verified.clone()).unwrap());
    let mut most = 0;
    for pauses in 0.. {
        let (before, lent) = (checked.executed(), Lent::default());
        let outcome = checked.run_checked_slice(verified.program(), slice, lent, &mut words);
        most = most.max(checked.executed() - before);
        let again = fast.run_slice(verified, slice, Lent::default(), &mut words);
        assert_eq!((again, fast.to_bytes()), (outcome, checked.to_bytes()), "pause {pauses}");
        #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
        {
            let (lent, regions) = (Lent::default(), [NativeRegion::of(&bytes)]);
            let again = compiled.run_slice(&mut native, slice, lent, &regions, &mut words);
            assert_eq!(again, outcome, "pause {pauses}, compiled");
            // Machine code that returns does not store dead registers into the machine.
            let returned = matches!(outcome, Outcome::Returned(_));
            let same = || native.to_bytes()[48..] == checked.to_bytes()[48..];
            assert!(returned || same(), "pause {pauses}, compiled");
        }
        if outcome != Outcome::Paused {
            return (outcome, pauses, most);
        }
    }
    unreachable!("a call with that many pauses would have been stopped")
}

/// Straight code, and how often it pauses at least where each slice is as short as can be.
fn straight() -> Vec<(&'static str, String, u64)> {
    let start = "r6 = 0\nr7 = 8\nr8 = 3\nr0 = 1\n*(u64 *)(r10 - 8) = 5\n";
    let word = "r1 = r6\nr2 = r7\ncall load_u64\nr7 = r0\n";
    let over = |at: usize| {
        format!("if r8 == 3 goto over{at}\n{}over{at}:\nr0 += 2\n", "r0 += 1\n".repeat(250))
    };
    let near = |at: usize| format!("if r0 s> {at} goto near{at}\nr0 += 3\nnear{at}:\n");
    let calls = format!(
        "{}exit\n.function heavy\nr0 = 0\n{}exit\n.function light\nr0 = 1\nexit\n\
         .function inner\ncall light\n{}exit",
        format!("call heavy\n{}call inner\ncall light\n", "r0 += 1\n".repeat(30)).repeat(40),
        "r0 += 1\n".repeat(700),
        "r0 ^= 9\n".repeat(240),
    );
    let loops = format!(
        "{}again:\n{}r8 += -1\n*(u64 *)(r10 - 16) = 3\nshort:\n{}r1 = *(u64 *)(r10 - 16)\n\
         r1 += -1\n*(u64 *)(r10 - 16) = r1\nif r1 != 0 goto short\nif r8 != 0 goto again\nexit",
        start,
        word.repeat(300),
        "r0 += 5\n".repeat(200)
    );
    vec![
        ("sums", format!("{start}{}exit", "r0 += 1\n".repeat(7_994)), 8_000 / 256),
        ("words", format!("{start}{}exit", word.repeat(2_000)), 2_000 / 16),
        ("divisions", format!("{start}{}exit", "r0 /= r8\n".repeat(7_990)), 7_990 / 32),
        ("wide loads", format!("{start}{}exit", "r0 = 5000000000 ll\n".repeat(3_990)), 31),
        ("jumps", format!("{start}{}exit", "goto +0\n".repeat(7_990)), 31),
        ("conditions", format!("{start}{}exit", "if r0 == 1 goto +0\n".repeat(7_990)), 31),
        ("jumps over it", format!("{start}{}exit", (0..31).map(over).collect::<String>()), 15),
        ("jumps nearby", format!("{start}{}exit", (0..3_000).map(near).collect::<String>()), 23),
        ("functions", calls, 40 * 3),
        ("a long loop", loops, 3 * 300 / 16 + 3 * 3),
    ]
}

#[test]
fn straight_code_pauses() {
    let limits = Limits { unpaused_max: 0, ..Limits::DEFAULT };
    for (name, text, least) in straight() {
        let verified = verify(program(&text), &limits).unwrap();
        let whole = in_step(&verified, BUDGET, u64::MAX);
        assert!(matches!(whole.0, Outcome::Returned(_)) && whole.1 == 0, "{name}: {whole:?}");
        let (outcome, pauses, most) = in_step(&verified, BUDGET, 0);
        assert_eq!(outcome, whole.0, "{name}");
        // From its start until after a marked instruction it is one more than between two of these.
        assert!(pauses >= least && most <= 257, "{name}: {pauses} pauses, {most} instructions");
        for slice in [1, 300, 1_000, 5_000] {
            let (outcome, fewer, _) = in_step(&verified, BUDGET, slice);
            assert!(outcome == whole.0 && fewer <= pauses, "{name} by {slice}: {fewer} pauses");
        }
    }
}

#[test]
fn a_budget_ends_in_straight_code() {
    for (name, text, _) in straight() {
        for instructions in [40, 1_000, 2_500] {
            let budget = Budget { instructions, ..BUDGET };
            let limits = Limits { budget, ..Limits::DEFAULT };
            let verified = verify(program(&text), &limits).unwrap();
            let whole = in_step(&verified, budget, u64::MAX);
            // What is paid and not executed is less than a stretch, but where instructions have two slots or jumps
            // leave some out.
            let left_out = ["jumps over it", "jumps nearby", "wide loads"].contains(&name);
            if let Outcome::Stopped(Stop::Budget { .. }) = whole.0 {
                let paid = whole.2 + 256 > instructions;
                assert!(paid || left_out, "{name} of {instructions}: {whole:?}");
            }
            assert!(whole.2 <= instructions.max(256), "{name} of {instructions}: {whole:?}");
            for slice in [0, 100, 700] {
                let (outcome, ..) = in_step(&verified, budget, slice);
                assert_eq!(outcome, whole.0, "{name} of {instructions} by {slice}");
            }
        }
    }
}

#[test]
fn words_and_divisions_weigh_in_what_does_not_pause() {
    let word = "r1 = 0\nr2 = 8\ncall load_u64\n";
    for (text, few, many) in [(word, 60, 62), ("r0 /= 3\n", 450, 460), ("r0 += 3\n", 4_090, 4_100)]
    {
        for (count, pauses) in [(few, false), (many, true)] {
            let verified = verified(&format!("r0 = 9\n{}exit", text.repeat(count)));
            assert_eq!(in_step(&verified, BUDGET, 0).1 > 0, pauses, "{count} of {text}");
        }
    }
}

#[test]
fn short_loops_pause_at_their_ends_alone() {
    // For code of any length around them: an iteration of twelve words is one charge.
    let word = "r1 = r6\nr2 = r7\ncall load_u64\n";
    for before in 0..300 {
        let text = format!(
            "r6 = 0\nr7 = 8\nr8 = 0\n{}again:\n{}r8 += 1\nif r8 != 20 goto again\n{}exit",
            "r7 ^= 0\n".repeat(before),
            word.repeat(12),
            "r0 += 1\n".repeat(600),
        );
        let (_, pauses, _) = in_step(&verified(&text), BUDGET, 0);
        assert!((19 + 2..=19 + 5).contains(&pauses), "{before} before it: {pauses}");
    }
}
