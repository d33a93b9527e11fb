//! Hostile programs, each of which is refused for its own reason.

/// Two numbers of equal sets, of which one is bounded: sums with a distance so far from their symbols that these are
/// lost, and an access by the number that is not bounded.
macro_rules! far_sums {
    ($distance:literal, $most:literal, $access:literal) => {
        concat!(
            ".program escape\n.own 16\nr6 = *(u64 *)(r1 + 0)\nr8 = *(u64 *)(r1 + 8)\n\
             r3 = *(u8 *)(r1 + 16)\nr4 = *(u8 *)(r1 + 24)\nr5 = *(u8 *)(r1 + 32)\n\
             w7 = w6\nif r7 > 0xfffffff goto out\nw9 = w8\nif r9 > 0xfffffff goto out\n\
             r0 = r3\nr3 += ",
            $distance,
            "\nr0 = r4\nr4 += ",
            $distance,
            "\n\
             r6 += r3\nr6 += r4\nr9 += r3\nr9 += r4\nr0 = r9\nr0 -= r5\nr6 -= r5\nw2 = w6\n\
             if r0 > ",
            $most,
            " goto out\nr2 += -",
            $most,
            "\nif r2 s< 0 goto out\n\
             r1 = own 0\nr1 += r2\n",
            $access,
            "\nexit\nout:\nr0 = 7\nexit"
        )
    };
}

/// Each program, the line that the refusal names, and words that it says.
pub(crate) const HOSTILE: &[(&str, u32, &str)] = &[
    // What is read before it is written.
    ("exit", 1, "r0 is read, which holds nothing"),
    ("r0 = r3\nexit", 2, "r0 is read, which holds nothing"),
    ("r0 += r3\nexit", 1, "r3 is read, which holds nothing"),
    ("call time_ns\nr0 = r1\nexit", 3, "r0 is read"),
    ("call time_ns\nw0 = w1\nexit", 2, "r1 is read"),
    ("r6 = 1\nr0 = 0\ncall f\nexit\n.function f\nr0 = r6\nexit", 4, "r0 is read"),
    ("if r2 > 5 goto +1\nr3 = 1\nr0 = r3\nexit", 3, "r3 is read"),
    ("r0 = *(u64 *)(r10 - 8)\nexit", 1, "r10 -8 is read, which nothing has written"),
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
    // A comparison of numbers that another path reaches with addresses, which compare with a sign: what that one
    // learns is not believed of the numbers.
    (
        "r6 = *(u64 *)(r1 + 0)
r7 = *(u64 *)(r1 + 8)
*(u64 *)(r10 - 512) = 0
r6 &= 0xfffff
r6 += -0xffff8
if r7 == 0 goto numbers
r1 = r10
r1 += -512
r1 += r6
r2 = r10
r2 += -508
goto compare
numbers:
r1 = r6
r2 = 4
compare:
if r1 < r2 goto small
if r7 == 0 goto use
small:
r0 = 0
exit
use:
r3 = r10
r3 += -516
r3 += r1
r0 = *(u8 *)(r3 + 0)
exit",
        26,
        "1 B at offset -1048572 to 3 of the frame's stack",
    ),
    // Signed and unsigned, 32 and 64 bits.
    (
        "r3 = *(u64 *)(r1 + 0)\nif r3 s> 7 goto +3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit\nr0 = 0\nexit",
        3,
        "the address may be",
    ),
    (
        "r3 = *(u64 *)(r1 + 0)\nif w3 > 7 goto +3\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit\nr0 = 0\nexit",
        3,
        "the address may be",
    ),
    (
        "r3 = *(u64 *)(r1 + 0)\nr3 <<= 32\nr3 >>= 32\nr1 += r3\nr0 = *(u8 *)(r1 + 0)\nexit",
        4,
        "the address may be",
    ),
    // Addresses are no numbers.
    ("r0 = r10\nexit", 2, "r0 must be a number at the end, but is an address in the frame's stack"),
    ("r1 *= 2\nr0 = 0\nexit", 1, "arithmetic on an address"),
    // Bits that the address may have itself, and more than where memories start.
    ("r2 &= 7\nr3 = r10\nr3 += -4\nr3 |= r2\nr0 = 0\nexit", 4, "arithmetic on an address"),
    ("r2 &= 512\nr3 = r10\nr3 += -8\nr3 |= r2\nr0 = 0\nexit", 4, "arithmetic on an address"),
    // A start that may be after its end, as unsigned numbers, and since either may exceed the bound.
    (
        "r6 = r1\nr2 = *(u64 *)(r6 + 8)\nr3 = *(u64 *)(r6 + 0)\nr0 = 0\nif r3 s> r2 goto out\n\
         if r2 > 80 goto out\nr1 += r3\nr2 -= r3\ncall emit\nout:\nexit",
        7,
        "the address may be",
    ),
    ("w1 += 1\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r1 = -r1\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r1 = be16 r1\nr0 = 0\nexit", 1, "r1 is used as a number"),
    ("r0 = r10\nr0 -= r1\nexit", 2, "arithmetic on an address"),
    ("r3 = 5\nr3 -= r1\nr0 = 0\nexit", 2, "arithmetic on an address"),
    ("if r1 > 5 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if r1 == r10 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if w1 == 0 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("if r1 & r1 goto +0\nr0 = 0\nexit", 1, "arithmetic on an address"),
    ("r3 = 0x40000000 ll\nr1 += r3\nr0 = 0\nexit", 2, "the address may be"),
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
        "r10 -8 is read, which nothing has written",
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
        "argument 1 of load_u64, in r1, must be the number of a region, but is an addr",
    ),
    ("r1 = 1\ncall load_u64\nr0 += r1\nexit", 3, "r1 is read"),
    (
        "r1 = 1\nr2 = 8\ncall emit\nexit",
        3,
        "argument 1 of emit, in r1, must be the address of as many bytes",
    ),
    (
        "r3 = r2\nr2 = *(u64 *)(r1 + 0)\ncall emit\nexit",
        3,
        "argument 2 of emit, in r2, must be a number of bytes",
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
        "argument 1 of array_read, in r1, must be the handle of a state of kind Array, but is the handle of a \
         state of kind Map",
    ),
    ("r1 = 0\nr2 = 0\nr3 = r10\ncall array_read\nexit", 4, "but is the number 0"),
    (
        ".state m map 8 16 4 own\nr1 = state m\n*(u64 *)(r10 - 8) = 1\nr2 = r10\nr2 += -8\nr3 = r2\n\
      call map_put\nexit",
        7,
        "16 B at offset 504",
    ),
    (
        ".state c counters 0 8 4 own\nr0 = state c\nexit",
        3,
        "but is the handle of a state of kind Counters",
    ),
    (".state c counters 0 8 4 own\nr0 = state c\nr0 += 1\nexit", 3, "arithmetic on an address"),
    // A store somewhere changes what was known everywhere.
    (
        "r2 &= 7\n*(u64 *)(r10 - 8) = 0\nr3 = r10\nr3 += r2\n*(u8 *)(r3 - 8) = 200\n\
      r4 = *(u64 *)(r10 - 8)\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\nexit",
        7,
        "the address may be",
    ),
    // Copies that are copies on one path alone.
    (
        "r6 = r1\nr5 = 0\nr3 = *(u64 *)(r1 + 0)\nr4 = *(u64 *)(r1 + 8)\nif r2 > 5 goto other\nr4 = r3\n\
      goto meet\nother:\nr0 = 0\nmeet:\nif r3 > 7 goto end\nr1 = r6\nr1 += r4\nr0 = *(u8 *)(r1 + 0)\n\
      end:\nr5 += 1\nif r5 < 2 goto meet\nr0 = 0\nexit",
        13,
        "the address may be",
    ),
    (far_sums!("16384", "32513", "r0 = *(u64 *)(r1 + 0)"), 29, "of the queue pair's variables"),
    (
        far_sums!("16384", "32513", "r0 = 4919\n*(u64 *)(r1 + 0) = r0\nr0 = 1"),
        30,
        "of the queue pair's variables",
    ),
    (far_sums!("8000", "15745", "r0 = *(u64 *)(r1 + 0)"), 29, "of the queue pair's variables"),
    // Ends.
    ("goto -1\nr0 = 0\nexit", 0, "no path leads to the end"),
    ("r0 = 0\nagain:\nr0 += 1\ngoto again\nexit", 0, "no path leads to the end"),
];
