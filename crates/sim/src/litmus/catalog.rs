//! The litmus tests and their verdicts by the memory models. The verdicts were computed with herd7 from a model with
//! W->R and W->W relaxed, multi-copy atomic, with ordered fences and atomics; the reference machine of this crate
//! must agree.

use super::program::Condition::{Memory, Register};
use super::program::Instruction::{self, Fence};
use super::program::ModelVerdict::{self, Allowed, Forbidden};
use super::program::{Condition, Litmus};

const X: u8 = 0;
const Y: u8 = 1;
const Z: u8 = 2;

const fn write(variable: u8, value: u64) -> Instruction {
    Instruction::Write { variable, value }
}

const fn read(variable: u8) -> Instruction {
    Instruction::Read { variable }
}

const fn swap(variable: u8, value: u64) -> Instruction {
    Instruction::Swap { variable, value }
}

const fn add(variable: u8, add: u64) -> Instruction {
    Instruction::FetchAdd { variable, add }
}

const fn test(
    name: &'static str,
    threads: &'static [&'static [Instruction]],
    witness: &'static [Condition],
    pso: ModelVerdict,
    tso: ModelVerdict,
) -> Litmus {
    Litmus { name, threads, witness, pso, tso }
}

/// All litmus tests.
pub const CATALOG: &[Litmus] = &[
    // Store buffering: each thread writes and then reads the other's variable.
    test(
        "SB",
        &[&[write(X, 1), read(Y)], &[write(Y, 1), read(X)]],
        &[Register(0, 0), Register(1, 0)],
        Allowed,
        Allowed,
    ),
    test(
        "SB+fence-one",
        &[&[write(X, 1), Fence, read(Y)], &[write(Y, 1), read(X)]],
        &[Register(0, 0), Register(1, 0)],
        Allowed,
        Allowed,
    ),
    test(
        "SB+fences",
        &[&[write(X, 1), Fence, read(Y)], &[write(Y, 1), Fence, read(X)]],
        &[Register(0, 0), Register(1, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "SB+atomics",
        &[&[swap(X, 1), read(Y)], &[swap(Y, 1), read(X)]],
        &[Register(1, 0), Register(3, 0)],
        Forbidden,
        Forbidden,
    ),
    // Each thread reads its own write before any other thread can.
    test(
        "SB+own-early",
        &[&[write(X, 1), read(X), read(Y)], &[write(Y, 1), read(Y), read(X)]],
        &[Register(0, 1), Register(1, 0), Register(2, 1), Register(3, 0)],
        Allowed,
        Allowed,
    ),
    // Message passing: data, then flag.
    test(
        "MP",
        &[&[write(X, 1), write(Y, 1)], &[read(Y), read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Allowed,
        Forbidden,
    ),
    test(
        "MP+reader-fence",
        &[&[write(X, 1), write(Y, 1)], &[read(Y), Fence, read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Allowed,
        Forbidden,
    ),
    test(
        "MP+writer-fence",
        &[&[write(X, 1), Fence, write(Y, 1)], &[read(Y), read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "MP+fences",
        &[&[write(X, 1), Fence, write(Y, 1)], &[read(Y), Fence, read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "MP+atomic-flag",
        &[&[write(X, 1), swap(Y, 1)], &[read(Y), read(X)]],
        &[Register(1, 1), Register(2, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "MP+atomic-reader",
        &[&[write(X, 1), write(Y, 1)], &[add(Y, 0), read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Allowed,
        Forbidden,
    ),
    // Load buffering: each thread reads, then writes the variable that the other reads.
    test(
        "LB",
        &[&[read(X), write(Y, 1)], &[read(Y), write(X, 1)]],
        &[Register(0, 1), Register(1, 1)],
        Forbidden,
        Forbidden,
    ),
    test(
        "LB+atomics",
        &[&[read(X), swap(Y, 1)], &[read(Y), swap(X, 1)]],
        &[Register(0, 1), Register(2, 1)],
        Forbidden,
        Forbidden,
    ),
    // Write-to-read causality.
    test(
        "WRC",
        &[&[write(X, 1)], &[read(X), write(Y, 1)], &[read(Y), read(X)]],
        &[Register(0, 1), Register(1, 1), Register(2, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "WRC+atomic",
        &[&[swap(X, 1)], &[read(X), swap(Y, 1)], &[read(Y), read(X)]],
        &[Register(1, 1), Register(3, 1), Register(4, 0)],
        Forbidden,
        Forbidden,
    ),
    // Independent reads of independent writes: all threads see one order of writes.
    test(
        "IRIW",
        &[&[write(X, 1)], &[write(Y, 1)], &[read(X), read(Y)], &[read(Y), read(X)]],
        &[Register(0, 1), Register(1, 0), Register(2, 1), Register(3, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "IRIW+atomics",
        &[&[swap(X, 1)], &[swap(Y, 1)], &[read(X), read(Y)], &[read(Y), read(X)]],
        &[Register(2, 1), Register(3, 0), Register(4, 1), Register(5, 0)],
        Forbidden,
        Forbidden,
    ),
    // Coherence: all threads see the values of a variable in one order.
    test(
        "CoRR",
        &[&[write(X, 1)], &[read(X), read(X)]],
        &[Register(0, 1), Register(1, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "CoRR2",
        &[&[write(X, 1)], &[write(X, 2)], &[read(X), read(X)], &[read(X), read(X)]],
        &[Register(0, 1), Register(1, 2), Register(2, 2), Register(3, 1)],
        Forbidden,
        Forbidden,
    ),
    test("CoWW", &[&[write(X, 1), write(X, 2)]], &[Memory(X, 1)], Forbidden, Forbidden),
    test(
        "CoWR",
        &[&[write(X, 1), read(X)], &[write(X, 2)]],
        &[Register(0, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "CoRW",
        &[&[read(X), write(X, 1)], &[write(X, 2)]],
        &[Register(0, 2), Memory(X, 2)],
        Forbidden,
        Forbidden,
    ),
    // Two writers of two variables, in opposite order.
    test(
        "2+2W",
        &[&[write(X, 1), write(Y, 2)], &[write(Y, 1), write(X, 2)]],
        &[Memory(X, 1), Memory(Y, 1)],
        Allowed,
        Forbidden,
    ),
    test(
        "2+2W+fences",
        &[&[write(X, 1), Fence, write(Y, 2)], &[write(Y, 1), Fence, write(X, 2)]],
        &[Memory(X, 1), Memory(Y, 1)],
        Forbidden,
        Forbidden,
    ),
    test(
        "2+2W+atomics",
        &[&[write(X, 1), swap(Y, 2)], &[write(Y, 1), swap(X, 2)]],
        &[Memory(X, 1), Memory(Y, 1)],
        Forbidden,
        Forbidden,
    ),
    test(
        "R",
        &[&[write(X, 1), write(Y, 1)], &[write(Y, 2), read(X)]],
        &[Memory(Y, 2), Register(0, 0)],
        Allowed,
        Allowed,
    ),
    test(
        "R+fences",
        &[&[write(X, 1), Fence, write(Y, 1)], &[write(Y, 2), Fence, read(X)]],
        &[Memory(Y, 2), Register(0, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "R+atomics",
        &[&[write(X, 1), swap(Y, 1)], &[swap(Y, 2), read(X)]],
        &[Memory(Y, 2), Register(2, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "S",
        &[&[write(X, 2), write(Y, 1)], &[read(Y), write(X, 1)]],
        &[Register(0, 1), Memory(X, 2)],
        Allowed,
        Forbidden,
    ),
    test(
        "S+writer-fence",
        &[&[write(X, 2), Fence, write(Y, 1)], &[read(Y), write(X, 1)]],
        &[Register(0, 1), Memory(X, 2)],
        Forbidden,
        Forbidden,
    ),
    test(
        "S+atomic-flag",
        &[&[write(X, 2), swap(Y, 1)], &[read(Y), write(X, 1)]],
        &[Register(1, 1), Memory(X, 2)],
        Forbidden,
        Forbidden,
    ),
    // Read-to-write causality.
    test(
        "RWC",
        &[&[write(X, 1)], &[read(X), read(Y)], &[write(Y, 1), read(X)]],
        &[Register(0, 1), Register(1, 0), Register(2, 0)],
        Allowed,
        Allowed,
    ),
    test(
        "RWC+fence",
        &[&[write(X, 1)], &[read(X), read(Y)], &[write(Y, 1), Fence, read(X)]],
        &[Register(0, 1), Register(1, 0), Register(2, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "RWC+atomic",
        &[&[write(X, 1)], &[read(X), read(Y)], &[swap(Y, 1), read(X)]],
        &[Register(0, 1), Register(1, 0), Register(3, 0)],
        Forbidden,
        Forbidden,
    ),
    // Message passing over a third thread.
    test(
        "ISA2",
        &[&[write(X, 1), write(Y, 1)], &[read(Y), write(Z, 1)], &[read(Z), read(X)]],
        &[Register(0, 1), Register(1, 1), Register(2, 0)],
        Allowed,
        Forbidden,
    ),
    test(
        "ISA2+fences",
        &[
            &[write(X, 1), Fence, write(Y, 1)],
            &[read(Y), Fence, write(Z, 1)],
            &[read(Z), Fence, read(X)],
        ],
        &[Register(0, 1), Register(1, 1), Register(2, 0)],
        Forbidden,
        Forbidden,
    ),
    test(
        "ISA2+atomic-flag",
        &[&[write(X, 1), swap(Y, 1)], &[read(Y), write(Z, 1)], &[read(Z), read(X)]],
        &[Register(1, 1), Register(2, 1), Register(3, 0)],
        Forbidden,
        Forbidden,
    ),
    // Atomicity: no update is lost, neither against another atomic nor against a write.
    test(
        "FA+FA",
        &[&[add(X, 1), add(X, 1)], &[add(X, 1), add(X, 1)]],
        &[Memory(X, 3)],
        Forbidden,
        Forbidden,
    ),
    test("FA+W", &[&[add(X, 1)], &[write(X, 8)]], &[Memory(X, 1)], Forbidden, Forbidden),
    test(
        "SWAP+SWAP",
        &[&[swap(X, 1)], &[swap(X, 2)]],
        &[Register(0, 0), Register(1, 0)],
        Forbidden,
        Forbidden,
    ),
];
