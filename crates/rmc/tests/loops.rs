//! Loop summarization: the cost of summarized loops, and loops that must not be summarized.

use farside_rmc::assembler::assemble;
use farside_rmc::run::{Far, Lent, Outcome};
use farside_rmc::verify::Problem;
use farside_rmc::{Limits, Machine, Verification, Verified};

/// A program that is accepted, and how many instructions were walked for that.
fn walked(text: &str) -> (Verified, u64) {
    let mut verification = Verification::new(assemble(text).unwrap(), &Limits::DEFAULT);
    let verdict = std::iter::repeat_with(|| verification.step(7)).flatten().next();
    let verified = verdict.unwrap().unwrap_or_else(|refusal| panic!("{refusal}\n{text}"));
    (verified, verification.walked())
}

/// What it executes with these parameters.
fn executed(verified: &Verified, parameters: &[u8]) -> u64 {
    let mut machine = Machine::new();
    machine.start(verified, parameters, Limits::DEFAULT.budget).unwrap();
    let lent = Lent { own: &mut [], shared: &mut [] };
    let outcome = machine.run_checked(verified.program(), lent, &mut Far);
    assert!(matches!(outcome, Outcome::Returned(_)), "{outcome:?}");
    machine.executed()
}

#[test]
fn turns_that_are_counted_are_walked_as_one() {
    for (text, instructions, walked_most) in [
        ("r0 = 0\nagain:\nr0 += 1\nif r0 != 100000 goto again\nexit", 200_002, 10),
        ("r0 = 0\nagain:\nr0 += 1\nif r0 < 100000 goto again\nexit", 200_002, 20),
        ("r0 = 50000\nagain:\nr0 -= 5\nif r0 s> -50000 goto again\nexit", 40_002, 20),
        // Tested before the first iteration.
        ("r0 = 0\nagain:\nif r0 >= 9000 goto end\nr0 += 3\ngoto again\nend:\nexit", 9_003, 30),
        ("r0 = 0\nagain:\nif r0 == 9000 goto end\nr0 += 3\ngoto again\nend:\nexit", 9_003, 30),
        // By another register.
        ("r0 = 0\nagain:\nr0 += 1\nr1 = 900\nif r1 > r0 goto again\nexit", 1 + 3 * 900 + 1, 20),
        // Two that move together, one of them an address.
        (
            "r0 = 0\nr1 = 0\nr2 = r10\nr2 += -512\nr3 = 0\nagain:\n*(u64 *)(r2 + 0) = r3\nr2 += 8\nr1 += 1\n\
             if r1 != 64 goto again\nexit",
            5 + 4 * 64 + 1,
            30,
        ),
        // Within each other.
        (
            "r0 = 0\nouter:\nr1 = 0\ninner:\nr1 += 1\nif r1 != 50 goto inner\nr0 += 1\n\
             if r0 != 70 goto outer\nexit",
            1 + 70 * (1 + 50 * 2 + 2) + 1,
            60,
        ),
        // In a function, with the counter of its caller.
        (
            "r6 = 0\nagain:\ncall f\nr6 += 1\nif r6 != 600 goto again\nr0 = 0\nexit\n\
             .function f\nr0 = 5\nexit",
            1 + 600 * 5 + 2,
            40,
        ),
    ] {
        let (verified, walked) = walked(text);
        assert!(!verified.metered(), "{walked}: {text}");
        assert_eq!(verified.worst().instructions, instructions, "{walked}: {text}");
        assert_eq!(executed(&verified, &[]), instructions, "{text}");
        assert!(walked <= walked_most, "{walked}: {text}");
    }
}

#[test]
fn turns_are_bounded_by_the_range_of_what_moves() {
    let start = "r7 = *(u64 *)(r1 + 0)\nr7 &= 255\nr0 = 0\n";
    for (loops, parameter, slack) in [
        ("again:\nr7 += 1\nif r7 < 300 goto again\nexit", 0, 4),
        ("again:\nif r7 == 0 goto end\nr7 -= 1\ngoto again\nend:\nexit", 255, 4),
        ("again:\nif r7 < 7 goto end\nr7 -= 7\ngoto again\nend:\nexit", 255, 40),
    ] {
        let text = format!("{start}{loops}");
        let (verified, walked) = walked(&text);
        assert!(!verified.metered(), "{walked}: {text}");
        let worst = verified.worst().instructions;
        let found = executed(&verified, &u64::to_le_bytes(parameter));
        assert!((found..=found + slack).contains(&worst), "{found} of {worst}: {text}");
        assert!(walked <= 80, "{walked}: {text}");
    }
}

#[test]
fn where_a_loop_may_end_is_found_in_it() {
    let start = "r6 = *(u64 *)(r1 + 0)\nr6 &= 63\n";
    for (loops, parameter, instructions, walked_most) in [
        // At a number that the program does not name: what a register has at most.
        (
            "r7 = 0\nagain:\nif r7 >= r6 goto end\nr7 += 1\ngoto again\nend:\nr0 = 0\nexit",
            63,
            195,
            30,
        ),
        (
            "r7 = 63\nagain:\nif r7 <= r6 goto end\nr7 -= 1\ngoto again\nend:\nr0 = 0\nexit",
            0,
            195,
            30,
        ),
        // At a number that is in a register.
        ("r7 = 0\nagain:\nr7 += 1\nr1 = 15\nif r1 > r7 goto again\nr0 = 0\nexit", 0, 50, 15),
        // Another loop counts with the same register, and ends sooner.
        (
            "r7 = 0\nagain:\nr7 += 1\nif r7 != 500 goto again\nr7 = 0\nmore:\nr7 += 1\n\
             if r7 != 700 goto more\nr0 = 0\nexit",
            0,
            3 + 2 * 500 + 1 + 2 * 700 + 2,
            20,
        ),
    ] {
        let text = format!("{start}{loops}");
        let (verified, walked) = walked(&text);
        assert!(!verified.metered(), "{walked}: {text}");
        let worst = verified.worst().instructions;
        assert_eq!(worst, executed(&verified, &u64::to_le_bytes(parameter)), "{walked}: {text}");
        assert_eq!(worst, instructions, "{walked}: {text}");
        assert!(walked <= walked_most, "{walked}: {text}");
    }
}

#[test]
fn what_changes_in_later_turns_alone_is_learnt() {
    // Registers that are zero in the first iterations become any number, one register an iteration.
    let text = "r9 = *(u64 *)(r1 + 0)\nr2 = 0\nr3 = 0\nr4 = 0\nr8 = -20\nagain:\nr4 = r3\nr3 = r2\nr2 = r9\n\
                r9 >>= 3\nr8 += 8\nr1 = 14812\nif r8 != r1 goto again\nr0 = r4\nexit";
    let (verified, walked) = walked(text);
    assert!(!verified.metered());
    let turns = executed(&verified, &[1; 8]);
    let worst = verified.worst().instructions;
    assert!((turns..=turns + 7).contains(&worst), "{turns} of {worst}, {walked}");
    assert!(walked <= 150, "{walked}");
}

#[test]
fn ways_through_a_turn_that_come_to_the_same_are_walked_once() {
    // Each of ten ways comes to the head by itself, with no more than the counter.
    let way = "if r8 != {} goto x{}\nr7 += 1\ngoto again\nx{}:\n";
    let ways: String = (0..10).map(|at| way.replace("{}", &at.to_string())).collect();
    let text = format!(
        "r6 = r1\nr7 = 0\nagain:\nif r7 == 1000 goto end\nr8 = *(u64 *)(r6 + 8)\n{ways}r7 += 1\ngoto again\n\
         end:\nr0 = 0\nexit"
    );
    let (verified, walked) = walked(&text);
    assert!(!verified.metered());
    assert_eq!(verified.worst().instructions, 2 + 1_000 * 14 + 1 + 2);
    // Those of the first iteration, and of all others.
    assert!(walked <= 2 * 35 + 10, "{walked}");
}

#[test]
fn turns_that_no_register_counts_are_not_taken_for_counted() {
    let word = "r6 = *(u64 *)(r1 + 0)\n";
    for loops in [
        // Forth and back.
        "r7 = 0\nagain:\nr7 += 1\nif r6 & 1 goto on\nr7 += -2\non:\nif r7 s< 50 goto again\nr0 = 0\nexit",
        "r7 = r6\nr7 &= 63\nagain:\nif r6 & 1 goto down\nr7 += 1\ngoto on\ndown:\nr7 += -1\non:\n\
         if r7 > 63 goto end\ngoto again\nend:\nr0 = 0\nr1 = 0\nr2 = 0\ncall load_u64\nr6 = r0\n\
         if r6 != 0 goto again\nr0 = 0\nexit",
        // The same through a range that is known at the head.
        "r7 = r6\nr7 &= 63\nr6 = r1\nagain:\nr8 = *(u64 *)(r6 + 8)\nif r8 & 1 goto down\nr7 += 1\ngoto on\n\
         down:\nr7 += -1\non:\nif r7 <= 63 goto again\nr0 = 0\nexit",
        // Not at all.
        "r7 = 0\nagain:\nr7 += 1\nif r6 != 3 goto on\nr7 = 0\non:\nif r7 != 50 goto again\nr0 = 0\nexit",
        "r7 = r6\nr7 &= 31\nagain:\nif r6 == 3 goto on\nr7 += 1\non:\nif r7 < 50 goto again\nr0 = 0\nexit",
        // Over the bound.
        "r7 = 1\nagain:\nr7 += 2\nif r7 != 50 goto again\nr0 = 0\nexit",
        // A half of it alone.
        "r7 = r6\nr7 &= 15\nagain:\nr7 += 1\nw7 &= 15\nif r7 != 9 goto again\nr0 = 0\nexit",
        // By a number that the parameters determine.
        "r7 = 0\nagain:\nr7 += 1\nr7 -= r6\nif r7 s< 50 goto again\nr0 = 0\nexit",
        // The frame of another call, in the place of the one that counted.
        "r7 = 0\nagain:\ncall f\nif r6 != 7 goto again\nr0 = 0\nexit\n\
         .function f\nr7 = 0\nturn:\nr7 += 1\nif r7 != 9 goto turn\nr0 = 0\nexit",
    ] {
        let text = format!("{word}{loops}");
        let (verified, _) = walked(&text);
        assert!(verified.metered(), "{:?}: {text}", verified.worst());
    }
}

#[test]
fn nested_loops_beyond_unrolling_are_proven() {
    let text = "r0 = 0\nr6 = 0\nfirst:\nr7 = 0\nsecond:\nr8 = 0\nthird:\nr9 = 0\nfourth:\nr0 += 1\n\
                r9 += 1\nif r9 < 30 goto fourth\nr8 += 1\nif r8 < 30 goto third\nr7 += 1\n\
                if r7 < 30 goto second\nr6 += 1\nif r6 < 10 goto first\nexit";
    let (verified, walked) = walked(text);
    assert!(!verified.metered());
    let second = 3 + 30 * (3 + 30 * 3);
    assert_eq!(verified.worst().instructions, 2 + 10 * (3 + 30 * second) + 1);
    assert_eq!(executed(&verified, &[]), verified.worst().instructions);
    assert!(walked <= 300, "{walked}");
}

#[test]
fn what_is_wrong_in_some_turn_alone_is_found() {
    for text in [
        // The 65th store is above the frame.
        "r1 = 0\nr2 = r10\nr2 += -512\nagain:\n*(u64 *)(r2 + 0) = r1\nr2 += 8\nr1 += 1\nif r1 != 65 goto again\n\
         r0 = 0\nexit",
        // The tenth iteration reads a register that holds nothing.
        "r1 = 0\nagain:\nif r1 != 9 goto on\nw0 = w5\non:\nr1 += 1\nif r1 != 20 goto again\nr0 = 0\nexit",
    ] {
        let verdict = farside_rmc::verify(assemble(text).unwrap(), &Limits::DEFAULT);
        let refusal = verdict.map(|verified| verified.worst()).unwrap_err();
        let expected =
            matches!(refusal.problem, Problem::OutOfBounds { .. } | Problem::Uninitialised { .. });
        assert!(expected, "{refusal}");
    }
}

#[test]
fn what_only_the_turns_one_by_one_prove_is_proven_so() {
    // Words of the stack that are written by an index, and then read.
    let text = "r1 = 0\nr2 = r10\nr2 += -128\nagain:\n*(u64 *)(r2 + 0) = r1\nr2 += 8\nr1 += 1\n\
                if r1 != 16 goto again\nr0 = *(u64 *)(r10 - 64)\nexit";
    let (verified, walked) = walked(text);
    assert!(!verified.metered());
    assert_eq!(verified.worst().instructions, 3 + 16 * 4 + 2);
    assert!(walked >= 64, "{walked}");
}

#[test]
fn whatever_turns_taken_as_one_hide_is_seen_one_by_one() {
    for (text, instructions) in [
        // A counter of 32 bits, and one that is copied.
        ("r7 = 0\nagain:\nw7 += 1\nif r7 != 1000 goto again\nr0 = 0\nexit", 2_003),
        (
            "r7 = 0\nagain:\nr8 = r7\nr8 += 1\nr7 = r8\nif r7 != 1000 goto again\nr0 = 0\nexit",
            4_003,
        ),
        // Numbers that come back without being counted, with a loop that counts within.
        (
            "r6 = 0\nouter:\nr7 = 0\ninner:\nr7 += 1\nif r7 != 5 goto inner\nr6 *= 5\nr6 += 1\n\
             r6 &= 16383\nif r6 != 14908 goto outer\nr0 = 0\nexit",
            1_503,
        ),
        // The first loop must be unrolled to find its end; then the result of the second one is read.
        (
            "r3 = 0\nl:\nw3 += 3\nif r3 != 12 goto l\nr1 = 0\nr2 = r10\nr2 += -128\nagain:\n\
             *(u64 *)(r2 + 0) = r1\nr2 += 8\nr1 += 1\nif r1 != 16 goto again\n\
             r0 = *(u64 *)(r10 - 64)\nexit",
            1 + 4 * 2 + 3 + 16 * 4 + 2,
        ),
        // One iteration costs more than all others; that cost for each iteration is over the budget.
        (
            "r9 = 0\nturn:\nr9 += 1\nif r9 != 500 goto on\nr8 = 0\ninner:\nr8 += 1\n\
             if r8 != 3000 goto inner\non:\nif r9 != 2000 goto turn\nr0 = 0\nexit",
            1 + 2_000 * 3 + 1 + 6_000 + 2,
        ),
    ] {
        let (verified, _) = walked(text);
        assert!(!verified.metered(), "{text}");
        assert_eq!(verified.worst().instructions, instructions, "{text}");
        assert_eq!(executed(&verified, &[]), instructions, "{text}");
    }
}

#[test]
fn failed_summarizations_do_not_multiply() {
    // Each of these loops seems to count, and the next ones are walked for each attempt.
    let one = "r7 = 0\nh{}:\nr7 += 1\nr5 = r7\nr5 &= 1\nif r5 != 0 goto x{}\nr7 += 2\nx{}:\n\
               if r7 s< 100 goto h{}\n";
    let many: String = (0..50).map(|at| one.replace("{}", &at.to_string())).collect();
    let (verified, walked) = walked(&format!("{many}r0 = 0\nexit"));
    assert!(!verified.metered());
    assert_eq!(executed(&verified, &[]), verified.worst().instructions);
    assert!(walked <= 2 * verified.worst().instructions, "{walked}");
}

#[test]
fn a_loop_that_may_have_no_end_is_walked_once() {
    let text = "r6 = 0\nagain:\nr1 = 0\nr2 = r6\ncall load_u64\nr6 = r0\nif r6 != 0 goto again\nr0 = 0\nexit";
    let (verified, walked) = walked(text);
    assert!(verified.metered());
    assert!(walked <= 20, "{walked}");
    let text = "again:\nr1 = 0\nr2 = 0\ncall load_u64\ngoto again\nexit";
    let refusal = farside_rmc::verify(assemble(text).unwrap(), &Limits::DEFAULT).unwrap_err();
    assert!(matches!(refusal.problem, Problem::NeverEnds), "{refusal}");
}
