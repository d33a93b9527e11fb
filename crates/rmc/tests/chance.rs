//! A bounded run over programs by chance; `examples/fuzz.rs` runs as many as one likes.

mod fuzz;

use fuzz::{Chance, Verdict, judge, program};

#[test]
fn accepted_programs_never_fault_and_keep_their_budget() {
    let (mut accepted, mut metered) = (0, 0);
    let count = 30_000;
    for seed in 0..count {
        let mut chance = Chance::new(seed);
        let program = program(&mut chance);
        let verdict = judge(program, &mut chance).unwrap_or_else(|why| {
            panic!("cargo run -p farside-rmc --example fuzz -- --seed {seed} --count 1\n{why}")
        });
        if let Verdict::Accepted { metered: by_meter } = verdict {
            accepted += 1;
            metered += u32::from(by_meter);
        }
    }
    // The generator is worth something only while enough of what it makes passes, both ways.
    assert!(accepted * 4 > count, "{accepted} of {count} accepted");
    assert!(metered > 500, "{metered} metered");
}
