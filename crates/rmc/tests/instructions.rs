//! Every instruction on chosen numbers, in both interpreters and as machine code, against values written out by hand.

mod common;

use common::{run, run_both};
use farside_rmc::run::{FaultKind, Outcome, Stop};

/// Runs `text` with R6 and R7 set to these and returns R0.
fn with(text: &str, a: u64, b: u64) -> u64 {
    let text = format!("r6 = {a:#x} ll\nr7 = {b:#x} ll\nr0 = r6\n{text}\nexit");
    match run_both(&text, &[]) {
        Outcome::Returned(value) => value,
        outcome => panic!("{text}: {outcome:?}"),
    }
}

#[test]
fn arithmetic_of_64_bits() {
    const MIN: u64 = 1 << 63;
    const M1: u64 = u64::MAX;
    for (text, a, b, expected) in [
        ("r0 += r7", M1, 2, 1),
        ("r0 -= r7", 1, 2, M1),
        ("r0 *= r7", M1, M1, 1),
        ("r0 /= r7", M1, 2, M1 / 2),
        ("r0 /= r7", 5, 0, 0),
        ("r0 /= -1", M1, 0, 1),
        ("r0 s/= r7", (-7i64) as u64, 2, (-3i64) as u64),
        ("r0 s/= r7", MIN, M1, MIN),
        ("r0 s/= r7", 9, 0, 0),
        ("r0 s/= -2", 9, 0, (-4i64) as u64),
        ("r0 %= r7", 7, 4, 3),
        ("r0 %= r7", 7, 0, 7),
        ("r0 s%= r7", (-7i64) as u64, 4, (-3i64) as u64),
        ("r0 s%= r7", MIN, M1, 0),
        ("r0 s%= r7", M1, 0, M1),
        ("r0 |= r7", 0xf0, 0x0f, 0xff),
        ("r0 &= r7", 0xf0, 0x3c, 0x30),
        ("r0 &= -16", 0xff, 0, 0xf0),
        ("r0 ^= r7", 0xf0, 0x3c, 0xcc),
        ("r0 <<= r7", 1, 63, MIN),
        ("r0 <<= r7", 3, 65, 6),
        ("r0 >>= r7", MIN, 63, 1),
        ("r0 >>= 64", 8, 0, 8),
        ("r0 s>>= r7", MIN, 63, M1),
        ("r0 s>>= 4", 0x80, 0, 8),
        ("r0 = -r0", 5, 0, (-5i64) as u64),
        ("r0 = -r0", MIN, 0, MIN),
        ("r0 = r7", 0, 77, 77),
        ("r0 = -5", 0, 0, (-5i64) as u64),
        ("r0 = (s8)r7", 0, 0x180, (-128i64) as u64),
        ("r0 = (s16)r7", 0, 0x1_7fff, 0x7fff),
        ("r0 = (s32)r7", 0, 0x8000_0000, 0xffff_ffff_8000_0000),
        ("r0 = le16 r0", 0x1122_3344_5566_7788, 0, 0x7788),
        ("r0 = le32 r0", 0x1122_3344_5566_7788, 0, 0x5566_7788),
        ("r0 = le64 r0", 0x1122_3344_5566_7788, 0, 0x1122_3344_5566_7788),
        ("r0 = be16 r0", 0x1122_3344_5566_7788, 0, 0x8877),
        ("r0 = be32 r0", 0x1122_3344_5566_7788, 0, 0x8877_6655),
        ("r0 = be64 r0", 0x1122_3344_5566_7788, 0, 0x8877_6655_4433_2211),
        ("r0 = bswap16 r0", 0x1122_3344_5566_7788, 0, 0x8877),
        ("r0 = bswap32 r0", 0x1122_3344_5566_7788, 0, 0x8877_6655),
        ("r0 = bswap64 r0", 0x1122_3344_5566_7788, 0, 0x8877_6655_4433_2211),
    ] {
        assert_eq!(with(text, a, b), expected, "{text} of {a:#x}, {b:#x}");
    }
}

#[test]
fn arithmetic_of_32_bits_clears_the_upper_half() {
    const HIGH: u64 = 0xaaaa_bbbb_0000_0000;
    const MIN: u64 = 0x8000_0000;
    const M1: u64 = 0xffff_ffff;
    for (text, a, b, expected) in [
        ("w0 += w7", HIGH | M1, HIGH | 2, 1),
        ("w0 -= w7", HIGH | 1, 2, M1),
        ("w0 *= w7", HIGH | M1, M1, 1),
        ("w0 /= w7", HIGH | 9, HIGH | 2, 4),
        ("w0 /= w7", HIGH | 9, HIGH, 0),
        ("w0 s/= w7", HIGH | M1, 1, M1),
        ("w0 s/= w7", MIN, M1, MIN),
        ("w0 %= w7", HIGH | 9, 4, 1),
        ("w0 %= w7", HIGH | 9, HIGH, 9),
        ("w0 s%= w7", HIGH | (M1 - 6), 4, M1 - 2),
        ("w0 s%= w7", MIN, M1, 0),
        ("w0 |= w7", HIGH | 0xf0, 0x0f, 0xff),
        ("w0 &= -1", HIGH | 0xf0, 0, 0xf0),
        ("w0 ^= w7", HIGH | 0xff, 0x0f, 0xf0),
        ("w0 <<= w7", HIGH | 1, 31, MIN),
        ("w0 <<= 33", 1, 0, 2),
        ("w0 >>= w7", HIGH | MIN, 31, 1),
        ("w0 s>>= w7", HIGH | MIN, 31, M1),
        ("w0 = -w0", HIGH | 1, 0, M1),
        ("w0 = w7", 0, HIGH | 5, 5),
        ("w0 = -1", 0, 0, M1),
        ("w0 = (s8)w7", 0, 0x80, 0xffff_ff80),
        ("w0 = (s16)w7", 0, 0x8000, 0xffff_8000),
    ] {
        assert_eq!(with(text, a, b), expected, "{text} of {a:#x}, {b:#x}");
    }
}

#[test]
fn jumps_compare() {
    // (sign, holds for (1, 2), (2, 2), (-1, 2), (2, -1))
    for (sign, expected) in [
        ("==", [false, true, false, false]),
        ("!=", [true, false, true, true]),
        (">", [false, false, true, false]),
        (">=", [false, true, true, false]),
        ("<", [true, false, false, true]),
        ("<=", [true, true, false, true]),
        ("s>", [false, false, false, true]),
        ("s>=", [false, true, false, true]),
        ("s<", [true, false, true, false]),
        ("s<=", [true, true, true, false]),
        ("&", [false, true, true, true]),
    ] {
        for ((a, b), expected) in [(1, 2), (2, 2), (-1, 2), (2, -1)].into_iter().zip(expected) {
            let (a, b): (i64, i64) = (a, b);
            for (letter, a, b) in [
                ('r', a as u64, b as u64),
                ('w', a as u32 as u64 | 7 << 40, b as u32 as u64 | 9 << 40),
            ] {
                let jump = |operand: &str| {
                    format!("if {letter}6 {sign} {operand} goto +2\nr0 = 0\ngoto +1\nr0 = 1")
                };
                for operand in [format!("{letter}7"), (b as i32).to_string()] {
                    let text = jump(&operand);
                    assert_eq!(with(&text, a, b), u64::from(expected), "{text}: {a:#x} {b:#x}");
                }
            }
        }
    }
    assert_eq!(with("gotol +1\nr0 = 1", 9, 0), 9);
}

#[test]
fn loads_and_stores() {
    for (text, expected) in [
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(u64 *)(r10 - 8)", 0x8182_8384_8586_8788),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(u32 *)(r10 - 8)", 0x8586_8788),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(u16 *)(r10 - 6)", 0x8586),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(u8 *)(r10 - 1)", 0x81),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(s32 *)(r10 - 8)", 0xffff_ffff_8586_8788),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(s16 *)(r10 - 5)", 0xffff_ffff_ffff_8485),
        ("*(u64 *)(r10 - 8) = r6\nr0 = *(s8 *)(r10 - 1)", 0xffff_ffff_ffff_ff81),
        ("*(u64 *)(r10 - 8) = -2\nr0 = *(u64 *)(r10 - 8)", 0xffff_ffff_ffff_fffe),
        ("*(u64 *)(r10 - 8) = 0\n*(u32 *)(r10 - 8) = -2\nr0 = *(u64 *)(r10 - 8)", 0xffff_fffe),
        ("*(u64 *)(r10 - 8) = 0\n*(u16 *)(r10 - 7) = r6\nr0 = *(u64 *)(r10 - 8)", 0x87_8800),
        ("*(u64 *)(r10 - 8) = 0\n*(u8 *)(r10 - 4) = 300\nr0 = *(u64 *)(r10 - 8)", 44 << 32),
    ] {
        assert_eq!(with(text, 0x8182_8384_8586_8788, 0), expected, "{text}");
    }
}

#[test]
fn atomics() {
    for (text, memory, result) in [
        ("lock *(u64 *)(r10 - 8) += r7", 15, 5),
        ("lock *(u64 *)(r10 - 8) |= r7", 15, 5),
        ("lock *(u64 *)(r10 - 8) &= r7", 0, 5),
        ("lock *(u64 *)(r10 - 8) ^= r7", 15, 5),
        ("r7 = atomic_fetch_add((u64 *)(r10 - 8), r7)\nr0 = r7", 15, 8),
        ("r7 = atomic_fetch_or((u64 *)(r10 - 8), r7)\nr0 = r7", 15, 8),
        ("r7 = atomic_fetch_and((u64 *)(r10 - 8), r7)\nr0 = r7", 0, 8),
        ("w7 = atomic_fetch_xor((u32 *)(r10 - 8), w7)\nr0 = r7", 15, 8),
        ("r7 = xchg_64(r10 - 8, r7)\nr0 = r7", 7, 8),
        ("w7 = xchg32_32(r10 - 8, w7)\nr0 = r7", 7, 8),
        ("r0 = 8\nr0 = cmpxchg_64(r10 - 8, r0, r7)", 7, 8),
        ("r0 = 9\nr0 = cmpxchg_64(r10 - 8, r0, r7)", 8, 8),
        ("r0 = 0x500000008 ll\nw0 = cmpxchg32_32(r10 - 8, w0, w7)", 7, 8),
    ] {
        let before = "r7 = 7\n*(u64 *)(r10 - 8) = 8\nr0 = 5\n";
        let after = "\nr1 = *(u64 *)(r10 - 8)\nr1 <<= 8\nr0 |= r1";
        let found = with(&format!("{before}{text}{after}"), 0, 0);
        assert_eq!((found >> 8, found & 0xff), (memory, result), "{text}");
    }
}

#[test]
fn functions_keep_the_callers_registers() {
    let text = "
        r6 = 1
        r7 = 2
        r1 = 40
        call add
        r0 += r6
        r0 += r7
        exit
    .function add
        r6 = 100
        r7 = 200
        *(u64 *)(r10 - 8) = r1
        r0 = *(u64 *)(r10 - 8)
        exit
    ";
    assert_eq!(run_both(text, &[]), Outcome::Returned(43));
}

/// The processor divides in two fixed registers: every register as each operand.
#[test]
fn divisions_in_every_register() {
    for (to, from) in (0..10).flat_map(|to| (0..10).map(move |from| (to, from))) {
        for (sign, letter) in [("/", 'r'), ("%", 'r'), ("s/", 'w'), ("s%", 'w')] {
            let mut text: String =
                (0..10).map(|at| format!("r{at} = {}\n", (at + 3) * 1_000 + at)).collect();
            text += &format!("{letter}{to} {sign}= {letter}{from}\n");
            (1..10).for_each(|at| text += &format!("r0 *= 31\nr0 += r{at}\n"));
            let value = |at: u64| (at + 3) * 1_000 + at;
            let result = |at: u64| match sign.ends_with('/') {
                _ if at != to => value(at),
                true => value(to) / value(from),
                false => value(to) % value(from),
            };
            let expected = (1..10)
                .fold(result(0), |sum: u64, at| sum.wrapping_mul(31).wrapping_add(result(at)));
            assert_eq!(
                run_both(&format!("{text}exit"), &[]),
                Outcome::Returned(expected),
                "{text}"
            );
        }
    }
}

/// The register alone is an address of other memory than the register with its offset.
#[test]
fn an_access_beside_its_register_finds_its_memory() {
    let text = "
        .shared 16
            r6 = r1
            r7 = *(u64 *)(r1 + 0)
            *(u64 *)(r10 - 512) = 5
            r3 = r10
            r3 += -512
            if r7 == 0 goto +1
            r3 = r6
            r3 += -16
            r0 = *(u64 *)(r3 + 16)
            r3 = shared 0
            if r7 == 0 goto +2
            r3 = r10
            r3 += -512
            r3 += -8
            r1 = 7
            *(u64 *)(r3 + 8) = r1
            r3 += 32760
            *(u8 *)(r3 - 32745) = 0
            r3 = *(u64 *)(r10 - 512)
            r0 *= 10
            r0 += r3
            exit
    ";
    assert_eq!(run_both(text, &0u64.to_le_bytes()), Outcome::Returned(55));
    assert_eq!(run_both(text, &9u64.to_le_bytes()), Outcome::Returned(97));
}

#[test]
fn constants_variables_and_parameters() {
    let text = "
        .constants 11 22 33 44 55 66 77 88
        .own 8
        .shared 8
            r6 = *(u64 *)(r1 + 0)
            r1 = constant 4
            r7 = *(u32 *)(r1 + 0)
            r1 = own 0
            *(u64 *)(r1 + 0) = r6
            r2 = shared 0
            lock *(u64 *)(r2 + 0) += r7
            r0 = *(u64 *)(r1 + 0)
            r3 = *(u64 *)(r2 + 0)
            r0 += r3
            exit
    ";
    let context = 5u64.to_le_bytes();
    assert_eq!(run_both(text, &context), Outcome::Returned(5 + 0x8877_6655));
}

#[test]
fn what_no_verified_program_does_is_a_fault() {
    for (text, kind) in [
        ("exit", FaultKind::Uninitialised),
        ("r0 = r3\nexit", FaultKind::Uninitialised),
        ("r0 = *(u64 *)(r10 - 8)\nexit", FaultKind::Uninitialised),
        ("r0 = r10\nexit", FaultKind::AddressAsNumber),
        ("r0 = 1\nr0 = *(u8 *)(r0 + 0)\nexit", FaultKind::NumberAsAddress),
        ("r10 += 8\nexit", FaultKind::FramePointer),
        ("r1 *= 2\nexit", FaultKind::AddressAsNumber),
        ("w1 = w1\nexit", FaultKind::AddressAsNumber),
        ("goto +5\nexit", FaultKind::LostControl),
        ("r0 = 0", FaultKind::LostControl),
        ("goto +1\nr0 = 1 ll\nexit", FaultKind::LostControl),
        ("call 13\nexit", FaultKind::UnknownHelper(13)),
        ("again:\ncall again\nexit", FaultKind::LostControl),
        (".function again\ncall again\nexit", FaultKind::LostControl),
        ("r1 = 1\nr2 = 2\nr3 = 3\ncall crc32c\nexit", FaultKind::AddressAsNumber),
        ("*(u64 *)(r10 - 8) = r10\nr0 = *(u32 *)(r10 - 8)\nexit", FaultKind::AddressAsNumber),
        (".own 8\nr1 = own 0\n*(u64 *)(r1 + 0) = r1\nexit", FaultKind::AddressAsNumber),
        ("*(u64 *)(r10 - 12) = 0\nlock *(u64 *)(r10 - 12) += r2\nexit", FaultKind::Misaligned),
    ] {
        match run(text, &[]) {
            Outcome::Stopped(Stop::Fault(fault)) => {
                let same = fault.kind == kind
                    || matches!(text, t if t.contains("again") || t.contains("crc32c"));
                assert!(same, "{text}: {fault:?}");
            }
            outcome => panic!("{text}: {outcome:?}"),
        }
    }
    let out = [
        "r0 = *(u64 *)(r10 + 0)\nexit",
        "*(u8 *)(r10 - 513) = 1\nexit",
        "*(u64 *)(r1 + 0) = 1\nexit",
        "r0 = *(u64 *)(r1 + 0)\nexit",
        ".constants 01\nr1 = constant 0\n*(u8 *)(r1 + 0) = 1\nexit",
        "r1 = 0x100000000 ll\nr1 += r10\nr0 = *(u8 *)(r1 - 8)\nexit",
    ];
    for text in out {
        let outcome = run(text, &[]);
        let Outcome::Stopped(Stop::Fault(fault)) = outcome else {
            panic!("{text}: {outcome:?}");
        };
        assert!(matches!(fault.kind, FaultKind::OutOfBounds { .. }), "{text}: {fault:?}");
    }
}
