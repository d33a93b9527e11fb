//! What the verifier accepts with which worst case, and hostile programs, each refused for its own
//! reason.

mod common;
mod hostile;

use common::{program, verified};
use farside_rmc::isa::{Instruction, Operand, Register, Wide};
use farside_rmc::verify::Cost;
use farside_rmc::{Budget, Limits, Program, verify};
use hostile::HOSTILE;

fn refused(text: &str) -> String {
    match verify(program(text), &Limits::DEFAULT) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(refusal) => refusal.to_string(),
    }
}

#[test]
fn hostile_programs_are_refused_each_for_its_reason() {
    for (text, line, says) in HOSTILE {
        let refusal = refused(text);
        assert!(refusal.contains(says), "{text}\n{refusal}");
        let place = format!("program:{line},");
        assert!(*line == 0 || refusal.contains(&place), "{text}\n{refusal}");
    }
}

#[test]
fn what_only_bytes_can_say_is_refused() {
    let exit = [
        Instruction::LoadWide { dst: Register::R0, value: Wide::Value(0) },
        Instruction::SecondHalf,
        Instruction::Exit,
    ];
    let check = |code: &[Instruction], says: &str| {
        let refusal = verify(Program::from_code("p", code.to_vec()), &Limits::DEFAULT);
        let refusal = refusal.unwrap_err().to_string();
        assert!(refusal.contains(says), "{refusal}");
    };
    check(&[], "there is no code");
    check(&[exit[0], exit[2], exit[2]], "no such combination");
    check(&[exit[1], exit[2]], "no such combination");
    check(&[exit[0], exit[1], exit[1], exit[2]], "no such combination");
    for (value, says) in [
        (Wide::Constant(1), "byte of constant data 1, of which the program has 0"),
        (Wide::StateHandle(0), "state 0, of which the program has 0"),
        (Wide::Variable { shared: false, offset: 1 }, "byte of variables 1"),
        (Wide::Variable { shared: true, offset: 9 }, "byte of shared variables 9"),
    ] {
        check(&[Instruction::LoadWide { dst: Register::R0, value }, exit[1], exit[2]], says);
    }
    let src = Operand::Immediate(0);
    let long: Vec<_> = (0..9_000)
        .map(|_| Instruction::Store {
            size: farside_rmc::isa::Size::Byte,
            base: Register::R10,
            offset: -1,
            src,
        })
        .collect();
    check(&long, "instructions: 9000, which is over the limit of 8192");
    let mut holes = Program::from_code("p", exit.to_vec());
    holes.functions[0].start = 1;
    let refusal = verify(holes, &Limits::DEFAULT).unwrap_err().to_string();
    assert!(refusal.contains("do not divide the code"), "{refusal}");
    for state in [
        "array 8 8 1",
        "counters 0 4 1",
        "map 0 8 1",
        "locks 0 8 1",
        "array 0 8 0",
        "map 600 8 1",
        "array 0 65537 1",
        "array 0 65536 4000",
        "locks 0 0 99999999",
        // What keys and values take would do, but not what the entries take.
        "map 1 3 4194305",
        "locks 0 0 8388609",
    ] {
        let text = format!(".state s {state} own\nr0 = 0\nexit");
        assert!(refused(&text).contains("state `s`"), "{state}");
    }
    for state in ["map 1 3 4194304", "locks 0 0 8388608", "array 0 4 16777216"] {
        let accepted = verified(&format!(".state s {state} own\nr0 = 0\nexit"));
        let bytes = accepted.program().states[0].bytes();
        assert_eq!(bytes, Limits::DEFAULT.state_bytes_max, "{state}");
    }
}

#[test]
fn the_worst_case_is_that_of_the_longest_path() {
    for (text, instructions, helper_calls, bytes, words) in [
        ("r0 = 0\nexit", 2, 0, 0, 0),
        ("r0 = 0\nif r2 > 5 goto +2\nr0 += 1\nr0 += 2\nexit", 5, 0, 0, 0),
        ("r0 = 0\nagain:\nr0 += 1\nif r0 < 10 goto again\nexit", 22, 0, 0, 0),
        ("r0 = 0\ncall f\ncall f\nexit\n.function f\nr0 = 1\nexit", 8, 0, 0, 0),
        (
            "r1 = 0\nr2 = 0\nr3 = r10\nr3 += -24\nr4 = 24\ncall read\nr1 = 0\nr2 = 0\n\
             call load_u64\nexit",
            10,
            1,
            24,
            1,
        ),
        // Two loops within each other.
        (
            "r6 = 0\nr0 = 0\nouter:\nr7 = 0\ninner:\nr0 += 1\nr7 += 1\nif r7 < 3 goto inner\n\
             r6 += 1\nif r6 < 4 goto outer\nexit",
            2 + 4 * (1 + 9 + 2) + 1,
            0,
            0,
            0,
        ),
        // A loop that a parameter bounds.
        (
            "r3 = *(u64 *)(r1 + 0)\nif r3 > 8 goto end\nr0 = 0\nagain:\nif r0 >= r3 goto end\n\
             r0 += 1\ngoto again\nend:\nr0 = 0\nexit",
            3 + 8 * 3 + 1 + 2,
            0,
            0,
            0,
        ),
    ] {
        let verified = verified(text);
        let expected = Cost { instructions, helper_calls, bytes, words, ..Cost::default() };
        assert_eq!(verified.worst(), expected, "{text}");
        assert!(!verified.metered(), "{text}");
    }
}

#[test]
fn programs_that_need_what_they_have_are_accepted() {
    for text in [
        // What a comparison teaches.
        "r3 = *(u64 *)(r1 + 0)\nif r3 > 7 goto +2\nr1 += r3\nr3 = *(u8 *)(r1 + 0)\nr0 = 0\nexit",
        "r3 = *(u64 *)(r1 + 0)\nif r3 s< 0 goto +3\nif r3 s>= 8 goto +2\nr1 += r3\n\
         r3 = *(u8 *)(r1 + 0)\nr0 = 0\nexit",
        "w3 = *(u32 *)(r1 + 0)\nr0 = 0\nexit",
        "r3 = *(u32 *)(r1 + 0)\nif w3 s< 0 goto +4\nif w3 s> 7 goto +3\nw3 = w3\nr1 += r3\n\
         r3 = *(u8 *)(r1 + 0)\nr0 = 0\nexit",
        "r3 = *(u64 *)(r1 + 0)\nr3 &= 7\nr4 = r10\nr4 -= r3\n*(u8 *)(r4 - 1) = 5\nr0 = 0\nexit",
        "r3 = *(u8 *)(r1 + 0)\nr3 <<= 2\nr1 += r3\nr0 = *(u32 *)(r1 + 0)\nexit",
        "r3 = *(u64 *)(r1 + 0)\nr3 %= 8\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
        // Addresses that walk along memory.
        "r0 = 0\nr3 = r1\nr3 += 64\nagain:\nr4 = *(u64 *)(r1 + 0)\nr0 += r4\nr1 += 8\n\
         if r1 != r3 goto again\nexit",
        "r0 = r1\nr0 += 8\nr0 -= r1\nexit",
        "if r1 == 0 goto +2\nr0 = *(u8 *)(r1 + 0)\nexit\nr0 = r9\nexit",
        // An index in an aligned array.
        "r3 = *(u64 *)(r1 + 0)\nr3 &= 7\nr4 = r10\nr4 -= 16\nr4 |= r3\n*(u8 *)(r4 + 0) = 5\nr0 = 0\nexit",
        // A start and an end that are compared with each other before either is bounded.
        "r6 = r1\nr2 = *(u64 *)(r6 + 8)\nr3 = *(u64 *)(r6 + 0)\nr0 = 0\nif r3 > r2 goto out\n\
         if r2 > 80 goto out\nr1 += r3\nr2 -= r3\ncall emit\nout:\nexit",
        // An offset and a length in words that are used in bytes.
        "r6 = r1\nr2 = *(u64 *)(r6 + 8)\nr3 = *(u64 *)(r6 + 0)\nr0 = 0\nif r3 > 20 goto out\nr4 = 20\n\
         r4 -= r3\nif r2 > r4 goto out\nr3 <<= 2\nr2 <<= 2\nr1 += r3\ncall emit\nout:\nexit",
        // A copy of what holds nothing, which nothing reads.
        "r3 = r9\nr4 = r3\nr0 = 0\nexit",
        // Spilled and taken back.
        "*(u64 *)(r10 - 8) = r1\nr1 = *(u64 *)(r10 - 8)\nr0 = *(u8 *)(r1 + 0)\nexit",
        // A function that writes into its caller's stack.
        "r1 = r10\nr1 += -8\ncall f\nr0 = *(u64 *)(r10 - 8)\nexit\n.function f\n\
         *(u64 *)(r1 + 0) = 7\nexit",
        // Lengths between bounds.
        "r6 = *(u64 *)(r1 + 0)\nr6 &= 63\n*(u64 *)(r10 - 8) = 0\nr1 = 0\nr2 = 0\nr3 = r10\nr3 += -64\n\
         r4 = r6\ncall read\nr0 = *(u64 *)(r10 - 8)\nexit",
        // Every kind of state.
        ".state a array 0 8 4 own\n.state c counters 0 8 4 own\n.state m map 8 8 4 shared\n\
         .state l locks 0 0 4 shared\nr1 = state l\nr2 = 0\ncall lock\nr1 = state a\nr2 = 3\n\
         r3 = r10\nr3 += -8\ncall array_read\nr1 = state m\nr2 = r10\nr2 += -8\nr3 = r2\n\
         call map_put\nr1 = state c\nr2 = 0\nr3 = 1\ncall counter_add\nr1 = state l\nr2 = 0\n\
         call unlock\nexit",
        // Unreachable code.
        "r0 = 0\nexit\nr0 = r9\nr1 = r8\nexit",
        "r0 = 1\nif r0 == 2 goto +1\nexit\nr0 = r9\nexit",
    ] {
        assert!(!verified(text).metered(), "{text}");
    }
    assert_eq!(verified("r0 = 1\nif r0 == 2 goto +1\nexit\nr0 = r9\nexit").unreached(), 2);
}

#[test]
fn loops_without_a_bound_are_metered() {
    for text in [
        // Ends by a word of memory outside.
        "again:\nr1 = 0\nr2 = 0\ncall load_u64\nif r0 != 0 goto again\nexit",
        // More iterations than are unrolled.
        "r0 = 0\nagain:\nr0 += 1\nif r0 < 1000000 goto again\nexit",
        // An index that stays in bounds however often.
        "r6 = r1\nr7 = 0\nagain:\nr7 += 8\nr7 &= 56\nr1 = r6\nr1 += r7\nr2 = *(u64 *)(r1 + 0)\n\
         if r2 != 0 goto again\nr0 = 0\nexit",
        // Proven, but over the budget.
        "r6 = r1\nr7 = 0\nagain:\nr1 = 0\nr2 = r7\ncall load_u64\nif r0 == 0 goto end\nr7 += 1\n\
         if r7 < 1000000 goto again\nend:\nr0 = r7\nexit",
        // Calls in a loop.
        "again:\ncall f\nif r0 != 0 goto again\nexit\n.function f\nr1 = 0\nr2 = 0\ncall load_u64\nexit",
    ] {
        let verified = verified(text);
        assert!(verified.metered(), "{text}");
        assert_eq!(verified.worst().instructions, Limits::DEFAULT.budget.instructions);
    }
}

#[test]
fn a_bounded_program_over_the_budget_is_metered() {
    let budget = Budget { instructions: 100, helper_calls: 1, bytes: 10 };
    let limits = Limits { budget, ..Limits::DEFAULT };
    let text = "r0 = 0\nagain:\nr0 += 1\nif r0 < 60 goto again\nexit";
    let verified = verify(program(text), &limits).unwrap();
    assert!(verified.metered());
    assert_eq!(verified.worst().instructions, 100);
}

#[test]
fn what_cannot_be_proven_in_time_is_refused() {
    let limits = Limits { walked_max: 100, widened_max: 10, ..Limits::DEFAULT };
    let text = "r0 = 1\nagain:\nr0 *= 16777259\nr0 ^= 12345\nif r0 != 0 goto again\nexit";
    let refusal = verify(program(text), &limits).unwrap_err().to_string();
    assert!(refusal.contains("not proven within"), "{refusal}");
}

#[test]
fn paths_that_multiply_are_not_walked_for_ever() {
    // Each bit of a parameter makes another number in R7, so that no two paths are alike.
    let mut text = String::from("r6 = *(u64 *)(r1 + 0)\nr7 = 0\n");
    (1..65).for_each(|slot| text.push_str(&format!("*(u64 *)(r10 - {}) = 0\n", slot * 8)));
    for bit in 0..40 {
        text.push_str(&format!("if r6 & {} goto b{bit}\nr7 += {bit}\n", 1u32 << (bit % 31)));
        text.push_str(&format!("r7 <<= 1\nb{bit}:\nr7 += 1\nr6 >>= 1\n"));
    }
    // A comparison makes the number matter.
    text.push_str("if r7 == 7 goto end\nend:\nr0 = r7\nexit");
    // The fixpoint joins them.
    assert!(verified(&text).metered());
}

#[test]
fn a_refusal_names_program_line_slot_and_instruction() {
    let refusal = refused("r0 = 1\n\nr1 *= r1\nexit");
    assert_eq!(
        refusal,
        "program `program`, program:3, slot 1 `r1 *= r1`: arithmetic on an address: only adding or \
         subtracting a number, the difference and comparison of two addresses of one memory, and \
         comparison with zero are possible; compute an index first, and add it to the array last"
    );
}
