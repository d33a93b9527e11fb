//! Seeds of tests, from the environment: `FARSIDE_RUNS` sets the number of runs of a test, `FARSIDE_SEED` the first seed.

/// Returns a number from the environment, or the default.
///
/// # Panics
/// If it is not a number.
pub fn setting(name: &str, default: u64) -> u64 {
    match std::env::var(name) {
        Ok(text) => text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text}")),
        Err(_) => default,
    }
}

/// Runs a test of each seed, `runs` of them by default.
///
/// # Panics
/// With what failed in the first run that did, and the command that repeats it: `command`, with `FARSIDE_SEED`.
pub fn each_seed(command: &str, runs: u64, run: impl Fn(u64) -> Result<(), String>) {
    let first = setting("FARSIDE_SEED", 1);
    for seed in first..first.saturating_add(setting("FARSIDE_RUNS", runs)) {
        if let Err(why) = run(seed) {
            panic!("{why}\nto repeat it: FARSIDE_SEED={seed} FARSIDE_RUNS=1 {command}");
        }
    }
}
