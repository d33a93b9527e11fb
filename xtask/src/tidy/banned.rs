//! Names that are banned in some files.

use super::tree::{Finding, Source, Tree};

/// Names that make a machine depend on more than its state and event, with the alternative.
const IMPURE: &[(&[&str], &str)] = &[
    (&["HashMap"], "random order: use Table or BTreeMap"),
    (&["HashSet"], "random order: use NodeSet or BTreeSet"),
    (&["RandomState"], "randomness: take it from the event"),
    (&["Instant"], "a clock: take the time from the event"),
    (&["SystemTime"], "a clock: take the time from the event"),
    (&["thread", ":", ":"], "threads: the progress engine drives the machine"),
    (&["thread_local"], "threads: state belongs to the machine"),
];

const NUMBERS: &[&str] = &[
    "u8", "u16", "u32", "u64", "u128", "usize", "i8", "i16", "i32", "i64", "i128", "isize", "f32",
    "f64",
];

/// Test code outside of test modules, which may panic.
const TEST_SUITES: &[(&str, &str)] = &[
    ("crates/fabric/src/conformance", "one suite for all fabrics; panics on a failure"),
    ("crates/sim/", "only for tests; a failed check must stop the run"),
];

/// Finds impure names in the protocol.
pub(crate) fn protocol(tree: &Tree) -> Vec<Finding> {
    let files = tree.rust().filter(|file| file.path.starts_with("crates/protocol/src/"));
    let mut findings = Vec::new();
    for file in files {
        for (name, instead) in IMPURE {
            let text = format!("`{}`: {instead}", name[0]);
            findings.extend(at_lines(file, &file.find(name, true), &text));
        }
    }
    findings
}

/// Finds numeric casts in files that parse the wire.
pub(crate) fn wire_casts(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    let is_wire = |file: &&Source| file.path.ends_with("/wire.rs") || file.path.contains("/wire/");
    for file in tree.rust().filter(is_wire) {
        for number in NUMBERS {
            let text = format!("`as {number}` may truncate: use from or try_from");
            findings.extend(at_lines(file, &file.find(&["as", number], false), &text));
        }
    }
    findings
}

/// Finds unwraps in code that is not a test.
pub(crate) fn unwraps(tree: &Tree) -> Vec<Finding> {
    let text = "unwrap outside tests: return an error, or give the invariant with expect";
    let suite = |file: &&Source| !TEST_SUITES.iter().any(|(path, _)| file.path.starts_with(path));
    let code = tree.rust().filter(suite);
    code.flat_map(|file| at_lines(file, &file.find(&[".", "unwrap", "(", ")"], false), text))
        .collect()
}

fn at_lines(file: &Source, lines: &[usize], text: &str) -> Vec<Finding> {
    lines.iter().map(|line| Finding::new(&file.path, *line, text)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn impure_names_are_found_in_the_protocol_only() {
        let text =
            "use std::collections::HashMap;\nfn f() { std::thread::spawn(g); Instant::now(); }\n";
        let tree = Tree::sample(&[
            ("crates/protocol/src/lock/mod.rs", text),
            ("crates/farside/src/wait.rs", text),
        ]);
        let found = protocol(&tree);
        assert_eq!(found.len(), 3);
        assert!(found.iter().all(|finding| finding.path.starts_with("crates/protocol")));
    }

    #[test]
    fn only_numeric_casts_are_found() {
        let text = "use a as b;\nfn f(x: u32) -> u64 { <u8 as Into<u32>>::into(1); x as u64 }";
        let tree = Tree::sample(&[
            ("crates/protocol/src/wire.rs", text),
            ("crates/protocol/src/table.rs", text),
        ]);
        let found = wire_casts(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("crates/protocol/src/wire.rs", 2));
    }

    #[test]
    fn unwraps_are_found_outside_of_tests() {
        let text = "fn f() { x.unwrap(); x.unwrap_or(1); }\n#[cfg(test)]\nmod tests { fn g() { x.unwrap(); } }";
        let tree =
            Tree::sample(&[("crates/base/src/id.rs", text), ("crates/base/tests/t.rs", text)]);
        assert_eq!(unwraps(&tree).iter().map(|f| f.line).collect::<Vec<_>>(), [1]);
    }
}
