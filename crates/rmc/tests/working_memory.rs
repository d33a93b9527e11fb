//! The memory of a verification is bounded for every program. A separate file, since it counts what belongs to the
//! whole process.

mod common;

use common::program;
use farside_rmc::{Limits, Program, Verification};
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::fmt::Write;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

/// The greatest number of bytes that a verification has at a time, seen after every few instructions.
fn peak(program: Program) -> isize {
    let region = Region::new(ALLOCATOR);
    let mut verification = Verification::new(program, &Limits::DEFAULT);
    let mut peak = 0;
    while verification.step(256).is_none() {
        let of = region.change();
        let now = of.bytes_allocated as isize - of.bytes_deallocated as isize;
        peak = peak.max(now);
    }
    drop(verification);
    let of = region.change();
    let left = of.bytes_allocated as isize - of.bytes_deallocated as isize;
    assert!(left < 4_096, "{left} B are left of it");
    peak
}

/// More iterations than are walked, of which no two are alike and which no counter bounds.
const ENDLESS: &str = "
        r6 *= 16777259
        r6 ^= 12345
        if r6 != 0 goto again
        r0 = 0
        exit
";

/// The same program with `slots` stack slots in use in `frames` frames.
fn hungry(slots: usize, frames: usize) -> Program {
    let mut text = String::new();
    for frame in 1..frames {
        let mut stores = String::new();
        (1..=slots).for_each(|slot| writeln!(stores, "*(u64 *)(r10 - {}) = r6", slot * 8).unwrap());
        write!(text, "r6 = {frame}\n{stores}call f{frame}\nexit\n.function f{frame}\n").unwrap();
    }
    write!(text, "r6 = 1\nagain:\n").unwrap();
    (1..=slots).for_each(|slot| writeln!(text, "*(u64 *)(r10 - {}) = r6", slot * 8).unwrap());
    text.push_str(ENDLESS);
    // What the last loop reads, so that nothing there is forgotten.
    (1..=slots).for_each(|slot| {
        let load = format!("r7 = *(u64 *)(r10 - {})\nif r7 == 1 goto again\n", slot * 8);
        text = text.replacen("        r0 = 0\n", &format!("{load}        r0 = 0\n"), 1);
    });
    program(&text)
}

#[test]
fn working_memory_is_bounded() {
    let mut peaks = Vec::new();
    for (slots, frames) in [(0, 1), (0, 8), (2, 1), (8, 1), (8, 8), (60, 1), (60, 8)] {
        let peak = peak(hungry(slots, frames));
        assert!(
            peak < Verification::BYTES_MAX as isize,
            "{peak} B: {slots} slots, {frames} frames"
        );
        peaks.push(peak);
    }
    assert!(peaks.iter().any(|peak| *peak > 1 << 20), "none of them is hungry: {peaks:?}");
}
