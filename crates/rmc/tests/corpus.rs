//! Ordinary functions in C that must be accepted as clang compiles them, at several levels and sizes of array, and do
//! the same at all of them. Like all tests of C, they are skipped where there is no clang (see `clang/mod.rs`).

mod clang;
mod common;
mod host;

use farside_rmc::program::load;
use farside_rmc::{Limits, Program, Refusal, Verified, verify};
use host::TestHost;
use std::collections::BTreeMap;

const FILES: [&str; 8] =
    ["bounds", "filtering", "hashing", "parsing", "remedied", "searching", "sorting", "tables"];
const LEVELS: [&str; 3] = ["-O1", "-O2", "-Os"];
const SIZES: [u32; 3] = [8, 20, 48];

/// A program of the corpus, its size of array, and the level of clang.
type Variant = (String, u32, &'static str);

type Verdict = Result<Verified, Box<Refusal>>;

/// All programs of the corpus; `None` where there is no clang.
fn corpus() -> Option<BTreeMap<Variant, Program>> {
    let mut programs = BTreeMap::new();
    for file in FILES {
        for level in LEVELS {
            for size in SIZES {
                let size_option = format!("-DN={size}");
                let path = format!("tests/corpus/{file}.c");
                let object = clang::compiled(&path, &[level, &size_option])?;
                let loaded = load(&object, &Limits::DEFAULT);
                let loaded = loaded.unwrap_or_else(|refusal| panic!("{path} {level}: {refusal}"));
                for program in loaded {
                    programs.insert((program.name.clone(), size, level), program);
                }
            }
        }
    }
    Some(programs)
}

/// The verdicts on all programs of the corpus.
fn verdicts() -> Option<Vec<(Variant, Verdict)>> {
    let verdict = |(variant, program)| (variant, verify(program, &Limits::DEFAULT));
    Some(corpus()?.into_iter().map(verdict).collect())
}

#[test]
fn ordinary_programs_are_accepted_but_for_the_known_ones() {
    let Some(verdicts) = verdicts() else {
        return;
    };
    let mut refused = String::new();
    for ((name, size, level), verdict) in &verdicts {
        if let Err(refusal) = verdict {
            refused.push_str(&format!("{name} {size} {level}: {refusal}\n"));
        }
    }
    let known = include_str!("corpus/refused.txt");
    let names = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with('#'));
        lines.map(|line| line.split(':').next().unwrap_or_default().to_owned()).collect()
    };
    assert!(
        names(&refused) == names(known),
        "{} of {}:\n{refused}",
        names(&refused).len(),
        verdicts.len()
    );
}

#[test]
fn programs_that_linux_accepts_are_accepted() {
    let refused = include_str!("corpus/refused.txt");
    let table = include_str!("corpus/linux.txt").lines().filter(|line| !line.starts_with('#'));
    let mut asked = 0;
    for line in table {
        let mut columns = line.split(' ');
        let name = columns.next().unwrap_or_default();
        for (level, column) in LEVELS.iter().zip(columns) {
            for (size, verdict) in SIZES.iter().zip(column.chars()) {
                asked += 1;
                let variant = format!("{name} {size} {level}");
                let missed = verdict == '+' && refused.lines().any(|line| line == variant);
                assert!(!missed, "{variant}");
            }
        }
    }
    let Some(corpus) = corpus() else { return };
    assert_eq!(asked, corpus.len(), "linux/ask.py makes the table complete");
}

#[test]
fn refusals_name_a_value_and_a_remedy() {
    let Some(verdicts) = verdicts() else { return };
    for ((name, size, level), verdict) in verdicts {
        let Err(refusal) = verdict else { continue };
        let text = refusal.to_string();
        let (found, remedy) = text.rsplit_once(": ").unwrap_or_default();
        let values = ["at offset ", "is read", "from the start of", "a number from", "any number"];
        let remedies = ["FARSIDE_OPAQUE", "-O2"];
        assert!(found.contains(" r"), "{name} {size} {level}: {text}");
        assert!(values.iter().any(|value| found.contains(value)), "{name} {size} {level}: {text}");
        assert!(remedies.iter().any(|it| remedy.contains(it)), "{name} {size} {level}: {text}");
    }
}

#[test]
fn ordinary_programs_do_the_same_at_every_level() {
    let Some(verdicts) = verdicts() else {
        return;
    };
    let memory: Vec<u8> =
        (0..4_096u32).map(|at| (at.wrapping_mul(at ^ 0x5bd1) >> 5) as u8).collect();
    for parameters in [[0, 5, 3, 9], [64, 40, 7, 0], [1_000, 100, 0, 1], [2_000, 0, 1, 2]] {
        let context: Vec<u8> =
            parameters.iter().flat_map(|word: &u64| word.to_le_bytes()).collect();
        let mut results = BTreeMap::new();
        for ((name, size, level), verdict) in &verdicts {
            let Ok(verified) = verdict else { continue };
            let near = || TestHost::new(vec![memory.clone()]);
            let (outcome, output, _) = common::run_both_near(verified, &context, near);
            assert!(!host::is_fault(&outcome), "{name} {size} {level}: {outcome:?}");
            let found = (outcome, output);
            let first = results.entry((name, size)).or_insert_with(|| found.clone());
            assert_eq!(*first, found, "{name} {size} {level}");
        }
    }
}
