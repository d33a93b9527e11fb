//! The library of calls: accepted with a known worst case, equal to native models on structures by
//! chance, with as many accesses as its sources say, and the same from its sources as from its objects.

#[path = "../clang/mod.rs"]
mod clang;
#[path = "../host/mod.rs"]
mod host;
mod lists;
mod programs;
mod runner;
mod tables;
mod trees;
mod updates;
mod versions;

use farside_rmc::library::{ENTRIES, LibraryEntry};
use farside_rmc::verify::Cost;
use farside_rmc::{Limits, verify};
use programs::Programs;

/// Something that a set of programs is held to.
type Scenario = fn(&Programs);

const SCENARIOS: &[Scenario] = &[
    lists::lists,
    lists::cycles,
    lists::tables,
    lists::long_chains_and_values,
    lists::foreign_memory,
    tables::lookups,
    tables::lookups_in_odd_bytes,
    tables::lookups_in_noise,
    tables::lookups_nowhere,
    trees::trees,
    trees::no_trees,
    trees::ranges,
    trees::small_outputs,
    updates::words,
    updates::callers_that_die,
    updates::callers_among_each_other,
    updates::logs,
    updates::logs_of_many,
    versions::versions,
    versions::writers_in_the_way,
    versions::checksums,
];

#[test]
fn the_objects_do_what_the_models_do() {
    let programs = Programs::of_the_library();
    for scenario in SCENARIOS {
        scenario(&programs);
    }
}

#[test]
fn the_sources_do_the_same_as_the_objects() {
    // The defaults of clang: older versions v1, newer ones v3, which has instructions of 32 bits.
    for version in ["v1", "v3"] {
        let Some(programs) = Programs::compiled(version) else {
            return;
        };
        for scenario in SCENARIOS {
            scenario(&programs);
        }
    }
}

#[test]
fn worst_cases_are_proven() {
    let cost = |name: &str| {
        let program = LibraryEntry::with_name(name).unwrap().program().unwrap();
        let verified = verify(program, &Limits::DEFAULT).unwrap();
        assert_eq!(verified.unreached(), 0, "{name}");
        let Cost { helper_calls, bytes, words, .. } = verified.worst();
        (verified.metered(), helper_calls, bytes, words, verified.context_bytes())
    };
    // Metered, helper calls, bytes, words, bytes of parameters.
    let budget = Limits::DEFAULT.budget;
    let words = budget.instructions;
    assert_eq!(cost("list_search"), (true, budget.helper_calls, budget.bytes, words, 16));
    let value = 2_048 / 256;
    // The chain has at most 32 entries. One read more is counted, since states that differ in numbers which decide only
    // conditional moves are merged.
    let entries = 32 + 1;
    let chain = 1 + entries + 2 * value;
    assert_eq!(cost("hash_lookup"), (false, chain, 8 + entries * 24 + 2 * 2_048, 1, 24));
    let (records, lines) = (15 * 8_192, 16 * 4_096);
    assert_eq!(cost("dht_lookup"), (false, 1 + 1 + 15 + 16, 256 + records + lines, 0, 88));
    assert_eq!(cost("btree_lookup"), (false, 12 + 1, 12 * 256 + 8, 0, 16));
    assert_eq!(cost("range_scan"), (true, budget.helper_calls, budget.bytes, words, 48));
    assert_eq!(cost("multi_cas"), (false, 5 + 8, 8 * 24 + 200 + 8, 0, 224));
    assert_eq!(cost("multi_cas_recover"), (false, 1 + 8 + 1, 200, 1, 24));
    assert_eq!(cost("log_append"), (false, 3, 2 * 128, 1, 160));
    let vector = |pieces: u64, bytes: u64| pieces * 16 + bytes;
    let tries = 3 * (2 * vector(4, 32) + vector(4, 256));
    assert_eq!(cost("multi_read"), (false, 3 * 3 + 2, tries + 32 + 256, 0, 112));
    assert_eq!(cost("checksum_crc32c"), (false, 1, 1 << 20, 0, 24));
    assert_eq!(cost("checksum_xxhash64"), (false, 1, 1 << 20, 0, 24));
}

#[test]
fn every_source_is_in_the_library() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("library");
    let mut listed: Vec<_> = ENTRIES.iter().map(|entry| entry.file).collect();
    listed.dedup();
    let files = std::fs::read_dir(folder).unwrap().map(|file| file.unwrap().file_name());
    let files = files.map(|name| name.into_string().unwrap());
    let mut sources: Vec<_> = files.filter(|name| name.ends_with(".c")).collect();
    sources.sort();
    listed.sort_unstable();
    assert_eq!(listed, sources);
    for entry in ENTRIES {
        let program = entry.program().unwrap();
        assert_eq!(program.name, entry.name);
        let line = program.line_at(0).expect("objects keep their lines");
        assert!(line.file.starts_with("library/"), "{line}");
    }
    assert_eq!(LibraryEntry::with_name("no such call"), None);
}
