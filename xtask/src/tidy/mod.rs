//! `cargo xtask tidy`: style rules over the files of the project.
//!
//! A rule is a function from the [`Tree`] to findings. Each has tests with samples that it must find, which show that
//! it can fail.

mod banned;
mod circles;
mod dead;
mod direction;
mod documents;
mod language;
mod leftover;
mod prose;
mod size;
mod tree;
mod unsafety;

use tree::Finding;
pub(crate) use tree::Tree;

/// A rule: its name, its requirement, and the check.
struct Rule {
    name: &'static str,
    sentence: &'static str,
    check: fn(&Tree) -> Vec<Finding>,
}

const RULES: &[Rule] = &[
    Rule {
        name: "direction-crates",
        sentence: "crates depend only on crates below them, and on external crates if allowed",
        check: direction::crates,
    },
    Rule {
        name: "direction-machines",
        sentence: "machines of the protocol do not depend on each other",
        check: direction::machines,
    },
    Rule {
        name: "direction-seam",
        sentence: "only listed files of the facade use both the machines and the fabric",
        check: direction::seam,
    },
    Rule {
        name: "circles",
        sentence: "the files of a crate do not depend on each other in circles, except for the listed ones",
        check: circles::check,
    },
    Rule {
        name: "unsafe-homes",
        sentence: "unsafe code only in listed files; every other crate forbids it",
        check: unsafety::homes,
    },
    Rule {
        name: "unsafe-tables",
        sentence: "a file with unsafe code begins with a table of accesses: who may touch what, when",
        check: unsafety::tables,
    },
    Rule {
        name: "size",
        sentence: "functions of at most 70 lines, files of at most 1,000",
        check: size::check,
    },
    Rule {
        name: "leftovers",
        sentence: "no work notes, placeholders or debug prints",
        check: leftover::notes,
    },
    Rule {
        name: "machine-paths",
        sentence: "no path that exists only on one machine",
        check: leftover::machine_paths,
    },
    Rule {
        name: "pure-protocol",
        sentence: "no clock, thread, randomness or random order in the protocol",
        check: banned::protocol,
    },
    Rule {
        name: "wire-casts",
        sentence: "no `as` between numbers in code that parses the wire",
        check: banned::wire_casts,
    },
    Rule {
        name: "unwrap",
        sentence: "no unwrap outside tests; expect states an invariant",
        check: banned::unwraps,
    },
    Rule {
        name: "dead-files",
        sentence: "every source file is a module of its crate",
        check: dead::files,
    },
    Rule {
        name: "commands",
        sentence: "commands that the documents name exist",
        check: documents::commands,
    },
    Rule {
        name: "programs",
        sentence: "programs in the documents are parts of examples that are compiled",
        check: documents::programs,
    },
    Rule {
        name: "paths",
        sentence: "paths that the documents name exist",
        check: documents::paths,
    },
    Rule {
        name: "tests-named",
        sentence: "tests that a document's table names exist",
        check: documents::tests_named,
    },
    Rule {
        name: "idiom",
        sentence: "plain technical English: no words of a private idiom",
        check: language::idiom,
    },
    Rule {
        name: "type-names",
        sentence: "a type name is defined in at most three modules, ten general ones in one",
        check: language::type_names,
    },
    Rule {
        name: "headers",
        sentence: "headers of modules have at most 40 lines",
        check: language::headers,
    },
    Rule {
        name: "links",
        sentence: "links within the documents lead to a file, and to a heading of it",
        check: prose::links,
    },
    Rule {
        name: "paragraphs",
        sentence: "paragraphs of documents have at most 120 words",
        check: prose::paragraphs,
    },
    Rule {
        name: "dependencies",
        sentence: "ARCHITECTURE.md gives a reason for every external crate",
        check: documents::dependencies_explained,
    },
];

/// Checks the project in the working directory; the error is the text of all findings.
pub(crate) fn run() -> Result<String, String> {
    let tree = Tree::read(".")?;
    let mut text = String::new();
    for rule in RULES {
        for finding in (rule.check)(&tree) {
            text.push_str(&format!("{}: {finding}\n    rule: {}\n", rule.name, rule.sentence));
        }
    }
    let (long, skipped) = language::subjects();
    for finding in long {
        text.push_str(&format!("subjects: {finding}\n"));
    }
    if text.is_empty() {
        let skipped = skipped.map(|skipped| format!("; {skipped}")).unwrap_or_default();
        Ok(format!("{} rules over {} files hold{skipped}", RULES.len() + 1, tree.len()))
    } else {
        Err(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rule_names_are_unique() {
        for (at, rule) in RULES.iter().enumerate() {
            assert!(RULES[..at].iter().all(|other| other.name != rule.name));
        }
    }
}
