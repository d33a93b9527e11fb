//! A bounded run over programs by chance; `examples/fuzz.rs` runs as many as one likes.

mod fuzz;

use farside_rmc::run::{Outcome, Stop};
use farside_rmc::{Limits, verify};
use fuzz::{FuzzRandom, FuzzVerdict, checked_end, judge, program, sums};

#[test]
fn accepted_programs_never_fault_and_keep_their_budget() {
    let (mut accepted, mut metered) = (0, 0);
    let count = 30_000;
    for seed in 0..count {
        let mut chance = FuzzRandom::new(seed);
        let program = program(&mut chance);
        let verdict = judge(program, &mut chance).unwrap_or_else(|why| {
            panic!("cargo run -p farside-rmc --example fuzz -- --seed {seed} --count 1\n{why}")
        });
        if let FuzzVerdict::Accepted { metered: by_meter } = verdict {
            accepted += 1;
            metered += u32::from(by_meter);
        }
    }
    // The generator is worth something only while enough of what it makes passes, both ways.
    assert!(accepted * 4 > count, "{accepted} of {count} accepted");
    assert!(metered > 500, "{metered} metered");
}

/// Parameters near the bounds of what such programs compare with.
fn near_bounds(chance: &mut FuzzRandom) -> [u8; 64] {
    const EDGES: [u64; 8] = [0, 1, 31, 32, 63, 64, 71, 72];
    let mut context = [0; 64];
    for word in context.chunks_exact_mut(8) {
        let number = match chance.below(5) {
            0 | 1 => chance.below(76),
            2 => EDGES[chance.below(8) as usize].wrapping_sub(chance.below(3)),
            3 => chance.below(76) | chance.below(4) << 32 | chance.below(2) << 63,
            _ => chance.number(),
        };
        word.copy_from_slice(&number.to_le_bytes());
    }
    context
}

#[test]
fn offsets_and_lengths_that_are_bounded_together_stay_inside() {
    let limits = Limits { walked_max: 3_000, context_bytes_max: 64, ..Limits::DEFAULT };
    let (mut accepted, mut reached, count) = (0, 0, 48_000);
    for seed in 0..count {
        let mut chance = FuzzRandom::new(seed);
        let program = sums(&mut chance);
        let Ok(verified) = verify(program, &limits) else { continue };
        accepted += 1;
        for _ in 0..40 {
            let context = near_bounds(&mut chance);
            let (outcome, output) = checked_end(&verified, &context, &mut chance);
            let faults = matches!(outcome, Outcome::Stopped(Stop::Fault(_)));
            assert!(!faults, "{seed}: {outcome:?}\n{context:x?}\n{:#?}", verified.program().code);
            reached += u32::from(!output.is_empty());
        }
    }
    // Right ones are proven, and their accesses are carried out.
    assert!(accepted * 20 > count, "{accepted} of {count} accepted");
    assert!(reached > 5_000, "{reached} emitted something");
}
