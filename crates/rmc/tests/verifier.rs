//! What the verifier accepts with which worst case, and hostile programs, each refused for its own
//! reason.

mod common;

use common::{program, verified};
use farside_rmc::isa::{Instruction, Operand, Register, Wide};
use farside_rmc::verify::Cost;
use farside_rmc::{Budget, Limits, Program, verify};

fn refused(text: &str) -> String {
    match verify(program(text), &Limits::DEFAULT) {
        Ok(_) => panic!("accepted:\n{text}"),
        Err(refusal) => refusal.to_string(),
    }
}

/// Each program, the line that the refusal names, and words that it says.
const HOSTILE: &[(&str, u32, &str)] = &[
    // What is read before it is written.
    ("exit", 1, "r0 is read, which holds nothing"),
    ("r0 = r3\nexit", 1, "r3 is read, which holds nothing"),
    ("call time_ns\nr0 = r1\nexit", 2, "r1 is read"),
    ("r6 = 1\nr0 = 0\ncall f\nexit\n.function f\nr0 = r6\nexit", 6, "r6 is read"),
    ("if r2 > 5 goto +1\nr3 = 1\nr0 = r3\nexit", 3, "r3 is read"),
    ("r0 = *(u64 *)(r10 - 8)\nexit", 1, "r10 -8 is read, which nobody has written"),
    ("*(u32 *)(r10 - 8) = 1\nr0 = *(u64 *)(r10 - 8)\nexit", 2, "r10 -4 is read"),
    (
        "call f\nr0 = *(u64 *)(r10 - 8)\nexit\n.function f\n*(u64 *)(r10 - 8) = 1\nr0 = 0\nexit",
        2,
        "r10 -8 is read",
    ),
    // Bounds.
    ("r0 = *(u8 *)(r10 + 0)\nexit", 1, "1 B at offset 512 to 512 of the frame's stack"),
    ("*(u64 *)(r10 - 516) = 1\nr0 = 0\nexit", 1, "offset -4 to -4 of the frame's stack"),
    ("r0 = *(u8 *)(r1 - 1)\nexit", 1, "of the context, which has 4096 B"),
    ("r0 = *(u8 *)(r1 + 4096)\nexit", 1, "offset 4096 to 4096 of the context"),
    ("r3 = r10\nr3 += r2\nr0 = *(u8 *)(r3 + 0)\nexit", 3, "offset 512 to 4608"),
    ("r2 &= 63\nr1 += r2\nr1 -= 1\nr0 = *(u8 *)(r1 + 0)\nexit", 4, "offset -1 to 62"),
    (
        ".constants 01 02\nr1 = constant 1\nr0 = *(u16 *)(r1 + 0)\nexit",
        3,
        "2 B at offset 1 to 1 of constant data, which has 2 B",
    ),
    (".own 8\nr1 = own 4\n*(u64 *)(r1 + 0) = 0\nr0 = 0\nexit", 3, "the queue pair's variables"),
    (".shared 8\nr1 = shared 8\nr0 = *(u8 *)(r1 + 0)\nexit", 3, "shared variables, which has 8 B"),
    ("*(u64 *)(r1 + 0) = 0\nr0 = 0\nexit", 1, "the context is read-only"),
    (
        ".constants 01\nr1 = constant 0\n*(u8 *)(r1 + 0) = 0\nr0 = 0\nexit",
        3,
        "constant data is read-only",
    ),
    // Signed and unsigned, 32 and 64 bits.
    (
        "r3 = *(u64 *)(r1 + 0)\nif r3 s> 7 goto +3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit\nr0 = 0\nexit",
        3,
        "the address may lie",
    ),
    (
        "r3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto +3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit\nr0 = 0\nexit",
        3,
        "the address may lie",
    ),
    (
        "r3 = *(u64 *)(r1 + 0)\nr3 <<= 32\nr3 >>= 32\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
        4,
        "the address may lie",
    ),
    // Addresses are no numbers.
    ("r0 = r10\nexit", 2, "r0 must be a number at the end, but is an address in the frame's stack"),
    ("r1 *= 2\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("w1 += 1\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r1 = -r1\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r1 = be16 r1\nr0 = 0\nexit", 1, "r1 is used as a number"),
    ("r0 = r10\nr0 -= r1\nexit", 2, "arithmetic on an address"),
    ("r3 = 5\nr3 -= r1\nr0 = 0\nexit", 2, "arithmetic on an address"),
    ("if r1 > 5 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if r1 == r10 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if w1 == 0 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if r1 & r1 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r3 = 0x40000000 ll\nr1 += r3\nr0 = 0\nexit", 2, "the address may lie"),
    (".own 8\nr2 = own 0\n*(u64 *)(r2 + 0) = r2\nr0 = 0\nexit", 3, "an address would be written"),
    (".own 8\nr2 = own 0\nr2 = xchg_64(r2 + 0, r2)\nr0 = 0\nexit", 3, "r2 is used as a number"),
    ("*(u64 *)(r10 - 12) = r10\nr0 = 0\nexit", 1, "stored whole, at a multiple of eight"),
    ("*(u32 *)(r10 - 8) = r10\nr0 = 0\nexit", 1, "stored whole"),
    ("*(u64 *)(r10 - 8) = r10\nr0 = *(u32 *)(r10 - 8)\nexit", 2, "part of an address"),
    (
        "*(u64 *)(r10 - 8) = r10\n*(u8 *)(r10 - 8) = 0\nr0 = *(u64 *)(r10 - 8)\nexit",
        3,
        "part of an address",
    ),
    (
        "*(u64 *)(r10 - 8) = r10\nr2 &= 7\nr3 = r10\nr3 += r2\n*(u8 *)(r3 - 8) = 1\nr0 = 0\nexit",
        5,
        "may hit an address",
    ),
    (
        "*(u64 *)(r10 - 8) = r10\nr1 = r10\nr1 += -8\nr2 = 8\ncall emit\nexit",
        5,
        "part of an address",
    ),
    ("r0 = 5\nr0 = *(u8 *)(r0 + 0)\nexit", 2, "r0 is used as an address, but is the number 5"),
    ("r0 = *(u64 *)(r1 + 0)\nr0 = *(u64 *)(r0 + 0)\nexit", 2, "but is any number"),
    ("call f\nr0 = *(u8 *)(r0 - 8)\nexit\n.function f\nr0 = r10\nexit", 6, "of its own frame"),
    (
        "r1 = r10\nr1 += -8\ncall f\nr1 = *(u64 *)(r10 - 8)\nr0 = *(u8 *)(r1 - 8)\nexit\n.function f\n\
      *(u64 *)(r1 + 0) = r10\nr0 = 0\nexit",
        4,
        "r10 -8 is read, which nobody has written",
    ),
    ("r10 = 5\nr0 = 0\nexit", 1, "r10 is written"),
    ("*(u64 *)(r10 - 12) = 0\nr2 = 1\nlock *(u64 *)(r10 - 12) += r2\nr0 = 0\nexit", 3, "aligned"),
    // Control.
    ("goto +5\nr0 = 0\nexit", 1, "a jump to slot 6, outside of its function"),
    ("goto -2\nr0 = 0\nexit", 1, "a jump to slot -1"),
    ("r0 = 0\nexit\n.function f\ngoto -3\nexit", 4, "a jump to slot 0, outside"),
    ("goto +1\nr0 = 1 ll\nexit", 1, "the middle of a wide load"),
    ("call +1\nr0 = 0\nexit", 1, "where no function starts"),
    ("r0 = 0", 1, "ends without exit or jump"),
    ("r0 = 0\nif r0 == 0 goto -1", 2, "ends without exit or jump"),
    ("call f\nexit\n.function f\ncall f\nexit", 4, "nested deeper than 8 frames"),
    // Helpers.
    ("call 13\nexit", 1, "no helper has the number 13"),
    (
        "call load_u64\nexit",
        1,
        "argument 1 of load_u64 must be the number of a region, but is an addr",
    ),
    ("r1 = 1\ncall load_u64\nr2 = r1\nexit", 3, "r1 is read"),
    (
        "r1 = 1\nr2 = 8\ncall emit\nexit",
        3,
        "argument 1 of emit must be the address of as many bytes",
    ),
    (
        "r3 = r2\nr2 = *(u64 *)(r1 + 0)\ncall emit\nexit",
        3,
        "argument 2 of emit must be a number of bytes",
    ),
    ("r2 = 5000\ncall emit\nexit", 2, "5000 B at offset 0 to 0 of the context"),
    ("r1 = r10\nr1 += -8\nr2 = 8\ncall emit\nexit", 4, "r10 -8 is read"),
    ("r6 = r1\nr1 = 0\nr2 = 0\nr3 = r6\nr4 = 8\ncall read\nexit", 6, "the context is read-only"),
    ("r1 = 0\nr2 = 0\nr3 = r10\nr3 += -8\nr4 = 9\ncall read\nexit", 6, "9 B at offset 504"),
    (
        "r4 = *(u64 *)(r1 + 0)\nr1 = 0\nr2 = 0\nr4 &= 7\nr3 = r10\nr3 += -8\ncall read\n\
      r0 = *(u64 *)(r10 - 8)\nexit",
        8,
        "r10 -8 is read",
    ),
    (
        ".state m map 8 8 4 own\nr1 = state m\nr2 = 0\nr3 = r10\nr3 += -8\ncall array_read\nexit",
        6,
        "argument 1 of array_read must be the handle of a state of kind Array",
    ),
    ("r1 = 0\nr2 = 0\nr3 = r10\ncall array_read\nexit", 4, "but is the number 0"),
    (
        ".state m map 8 16 4 own\nr1 = state m\n*(u64 *)(r10 - 8) = 1\nr2 = r10\nr2 += -8\nr3 = r2\n\
      call map_put\nexit",
        7,
        "16 B at offset 504",
    ),
    (".state c counters 0 8 4 own\nr0 = state c\nexit", 3, "but is the handle of a state"),
    (".state c counters 0 8 4 own\nr0 = state c\nr0 += 1\nexit", 3, "arithmetic on an address"),
    // A store somewhere changes what was known everywhere.
    (
        "r2 &= 7\n*(u64 *)(r10 - 8) = 0\nr3 = r10\nr3 += r2\n*(u8 *)(r3 - 8) = 200\n\
      r4 = *(u64 *)(r10 - 8)\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit",
        7,
        "the address may lie",
    ),
    // Copies that are copies on one path alone.
    (
        "r6 = r1\nr5 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = *(u64 *)(r1 + 8)\nif r2 > 5 goto other\nr4 = r3\n\
      goto meet\nother:\nr0 = 0\nmeet:\nif r3 > 7 goto end\nr1 = r6\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\n\
      end:\nr5 += 1\nif r5 < 2 goto meet\nr0 = 0\nexit",
        13,
        "the address may lie",
    ),
    // Ends.
    ("goto -1\nr0 = 0\nexit", 0, "no path leads to the end"),
    ("r0 = 0\nagain:\nr0 += 1\ngoto again\nexit", 0, "no path leads to the end"),
];

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
        let expected = Cost { instructions, helper_calls, bytes, words };
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
        // Code that nobody reaches.
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
        // As long as somebody else says.
        "again:\nr1 = 0\nr2 = 0\ncall load_u64\nif r0 != 0 goto again\nexit",
        // Longer than anybody walks.
        "r0 = 0\nagain:\nr0 += 1\nif r0 < 1000000 goto again\nexit",
        // An index that stays in bounds however often.
        "r6 = r1\nr7 = 0\nagain:\nr7 += 8\nr7 &= 56\nr1 = r6\nr1 += r7\nr2 = *(u64 *)(r1 + 0)\n\
         if r2 != 0 goto again\nr0 = 0\nexit",
        // A number below a bound, which widening finds.
        "r6 = r1\nr7 = 0\nagain:\nr1 = 0\nr2 = r7\ncall load_u64\nif r0 == 0 goto end\nr7 += 1\n\
         if r7 < 100000 goto again\nend:\nr0 = r7\nexit",
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
    let text = "r0 = 0\nagain:\nr0 += 1\nr0 += 1\nr0 += 1\nif r0 < 6000 goto again\nexit";
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
    text.push_str("r0 = r7\nexit");
    // The fixpoint gives up on telling them apart.
    assert!(verified(&text).metered());
}

#[test]
fn a_refusal_names_program_line_slot_and_instruction() {
    let refusal = refused("r0 = 1\n\nr1 *= r1\nexit");
    assert_eq!(
        refusal,
        "program `program`, program:3, slot 1 `r1 *= r1`: arithmetic on an address: only adding or \
         subtracting a number, the difference and comparison of two addresses of one memory, and \
         comparison with zero are possible"
    );
}
