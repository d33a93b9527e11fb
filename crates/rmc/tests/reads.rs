//! Short reads of lent regions: machine code carries them out as the checked interpreter does, wherever they lie,
//! whatever is left of the budget, and however the call is cut.
#![cfg(all(target_arch = "x86_64", target_os = "linux"))]

mod common;
mod host;

use common::{BUDGET, program};

use farside_rmc::run::native::{Compiled, NativeRegion};
use farside_rmc::run::{Lent, Machine, Outcome};
use farside_rmc::{Budget, Limits, verify};
use host::TestHost;

/// A program that reads `bytes` bytes at consecutive words of a region, as often as its parameters say, and hashes
/// status and bytes.
fn reads(bytes: u64) -> String {
    let mix: String = (0..bytes / 8)
        .map(|at| format!("r1 = *(u64 *)(r10 - {})\nr9 *= 31\nr9 += r1\n", 8 + 8 * at))
        .collect();
    format!(
        ".program reads
        r6 = *(u64 *)(r1 + 0)
        r7 = *(u64 *)(r1 + 8)
        r8 = *(u64 *)(r1 + 16)
        r9 = 7
        again:
        r1 = r6
        r2 = r7
        r3 = r10
        r3 += -{bytes}
        r4 = {bytes}
        call read
        r9 += r0
        {mix}
        r7 += 8
        r8 -= 1
        if r8 != 0 goto again
        r0 = r9
        exit
        "
    )
}

/// Every region, and one that there is none of.
const REGIONS: u64 = 4;

fn memories() -> Vec<Vec<u8>> {
    let numbered = |bytes: usize| (0..bytes).map(|at| (at * 7 + at / 8) as u8).collect();
    [96, 64, 7].map(numbered).to_vec()
}

/// In machine code at once and in slices, alternating with the interpreter, against the checked interpreter.
fn judge(code: &Compiled, [region, offset]: [u64; 2], budget: Budget) {
    let (verified, memories) = (code.verified(), memories());
    let context = [region, offset, 2].map(u64::to_le_bytes).concat();
    let host = TestHost::new(memories.clone());
    let lent: Vec<NativeRegion<'_>> =
        memories.iter().map(|memory| NativeRegion::of(memory)).collect();
    let mut machine = Machine::new();
    machine.start(verified, &context, budget).unwrap();
    let none = Lent::default;
    let expected = machine.run_checked(verified.program(), none(), &mut host.clone());
    for regions in [&lent[..], &lent[..1], &[]] {
        let what = format!("{region} {offset:#x}, {} lent, {budget:?}", regions.len());
        let mut machine = Machine::new();
        let called = code.call(&mut machine, &context, budget, none(), regions, &mut host.clone());
        assert_eq!(called, Ok(expected), "{what}");
        for slice in [0, 9, 30] {
            let (mut machine, mut near) = (Machine::new(), host.clone());
            machine.start(verified, &context, budget).unwrap();
            let mut outcome = Outcome::Paused;
            for turn in 0.. {
                if outcome != Outcome::Paused {
                    break;
                }
                outcome = if turn % 3 == 1 {
                    machine.run_slice(verified, slice, none(), &mut near)
                } else {
                    code.run_slice(&mut machine, slice, none(), regions, &mut near)
                };
            }
            assert_eq!(outcome, expected, "{what}, slices of {slice}");
        }
    }
}

fn compiled(bytes: u64) -> Compiled {
    let limits = Limits { unpaused_max: 0, ..Limits::DEFAULT };
    let verified = verify(program(&reads(bytes)), &limits);
    Compiled::new(verified.unwrap_or_else(|refusal| panic!("{refusal}"))).unwrap()
}

#[test]
fn reads_are_the_same_wherever_they_lie() {
    for bytes in (8..=72).step_by(8) {
        let code = compiled(bytes);
        for region in 0..REGIONS {
            let ends = (0..8).map(|at| (at as u64).wrapping_neg());
            let far = [
                1 << 32,
                1 << 63,
                (bytes.wrapping_neg()) & !7,
                (bytes.wrapping_neg() & !7).wrapping_add(8),
            ];
            for offset in (0..104).chain(ends).chain(far) {
                judge(&code, [region, offset], BUDGET);
            }
        }
        judge(&code, [u64::MAX, 0], BUDGET);
    }
}

#[test]
fn reads_are_paid() {
    let code = compiled(24);
    for helper_calls in 0..4 {
        for bytes in [0, 1, 23, 24, 25, 47, 48, 49, 100] {
            judge(&code, [0, 8], Budget { helper_calls, bytes, ..BUDGET });
        }
    }
}
