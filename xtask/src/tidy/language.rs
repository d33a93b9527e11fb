//! Plain technical English, and one meaning for a name.

use super::tree::{Finding, Source, Tree};
use std::collections::BTreeMap;
use std::process::Command;

/// Words and phrases of a private idiom. CONTRIBUTING.md says what to write instead.
const IDIOM: &[&str] = &[
    "whoever",
    "somebody",
    "nobody",
    "in vain",
    "anew",
    "shall be",
    "so many",
    "under way",
    "is told",
    "has its most",
    "at turn",
    "amiss",
];
/// Lines that need one of them, by a part of the line.
const NEEDED: &[&str] = &[
    // They derive keys: other words would not agree with earlier builds.
    "b\"whoever connects",
    "b\"whoever accepts",
    "user `nobody`",
    "\"nobody\"",
    "| whoever, somebody",
    "| under way |",
    "| in vain |",
    "| anew |",
    "| is told |",
    "| so many, has",
    "| shall be |",
    "| amiss, at turn |",
];
/// Names of which each may be defined once.
const ONCE: &[&str] =
    &["Place", "State", "Message", "End", "Answer", "Stage", "Way", "Call", "Side", "Seat"];
/// Names that every module may define.
const FREE: &[&str] = &["Error", "Result", "Options", "Builder"];
/// Most modules that define a type of one name.
const DEFINITIONS_MAX: usize = 3;

/// Most lines of a module's header; those of crates and tables of unsafe access may be longer.
const HEADER_LINES_MAX: usize = 40;

/// Most characters of a commit's subject.
const SUBJECT_MAX: usize = 72;
/// The file that came with the rule on subjects.
const OWN_FILE: &str = "xtask/src/tidy/language.rs";

/// Uses of the idiom.
pub(crate) fn idiom(tree: &Tree) -> Vec<Finding> {
    let mut uses = Vec::new();
    let foreign = |path: &str| path == OWN_FILE || path.starts_with("LICENSE");
    for file in tree.files.iter().filter(|file| !foreign(&file.path)) {
        for (line, text) in (1..).zip(file.text.lines()) {
            if NEEDED.iter().any(|needed| text.contains(needed)) {
                continue;
            }
            for phrase in phrases(text) {
                uses.push(Finding::new(&file.path, line, format!("`{phrase}`")));
            }
        }
    }
    uses
}

fn phrases(line: &str) -> Vec<&'static str> {
    let letters = line.chars().map(|letter| match letter {
        letter if letter.is_alphanumeric() => letter.to_ascii_lowercase(),
        _ => ' ',
    });
    let text: String = letters.collect();
    let words: Vec<_> = text.split_whitespace().collect();
    let found = |phrase: &&'static str| {
        let phrase: Vec<_> = phrase.split(' ').collect();
        words.windows(phrase.len()).filter(|window| **window == phrase[..]).count()
    };
    IDIOM.iter().flat_map(|phrase| std::iter::repeat_n(*phrase, found(phrase))).collect()
}

/// Types of one name in several modules.
pub(crate) fn type_names(tree: &Tree) -> Vec<Finding> {
    let mut definitions = BTreeMap::<String, Vec<Finding>>::new();
    for file in tree.rust() {
        for (name, line) in types(file) {
            let text = format!("`{name}` is defined here too: qualify it");
            definitions.entry(name).or_default().push(Finding::new(&file.path, line, text));
        }
    }
    definitions.retain(|name, found| {
        let most = if ONCE.contains(&name.as_str()) { 1 } else { DEFINITIONS_MAX };
        !FREE.contains(&name.as_str()) && found.len() > most
    });
    definitions.into_values().flatten().collect()
}

/// Structures, enumerations, unions and traits that a file defines, with their lines.
fn types(file: &Source) -> Vec<(String, usize)> {
    let defines = |text: &str| matches!(text, "struct" | "enum" | "union" | "trait");
    let is_name = |text: &str| text.starts_with(|first: char| first.is_ascii_uppercase());
    let pairs = file.tokens.windows(2);
    let pairs = pairs.filter(|pair| defines(&pair[0].text) && is_name(&pair[1].text));
    pairs.map(|pair| (pair[1].text.clone(), pair[1].line)).collect()
}

/// Headers of modules that are too long.
pub(crate) fn headers(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust().filter(|file| !is_crate(&file.path)) {
        let header = file.text.lines().take_while(|line| line.starts_with("//!"));
        // The table of unsafe access is a rule of its own.
        let lines = header.filter(|line| !line.starts_with("//! |")).count();
        if lines > HEADER_LINES_MAX {
            let text = format!("a header of {lines} lines: at most {HEADER_LINES_MAX}");
            findings.push(Finding::new(&file.path, 1, text));
        }
    }
    findings
}

fn is_crate(path: &str) -> bool {
    ["/src/lib.rs", "/src/main.rs"].iter().any(|end| path.ends_with(end))
}

/// Subjects of commits since the rule came that are too long; what was skipped, where the history is not there.
pub(crate) fn subjects() -> (Vec<Finding>, Option<String>) {
    let git = |words: &[&str]| {
        let done = Command::new("git").args(words).output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_owned())
    };
    let shallow = git(&["rev-parse", "--is-shallow-repository"]);
    let came = git(&["log", "--diff-filter=A", "--format=%H", "--", OWN_FILE]);
    let came = came.filter(|commit| !commit.is_empty() && shallow.as_deref() == Some("false"));
    let Some(commit) = came else {
        let text = "subjects of commits are not checked: the history is not here";
        return (Vec::new(), Some(text.to_owned()));
    };
    let range = format!("{}..HEAD", commit.lines().last().unwrap_or_default());
    let log = git(&["log", "--no-merges", "--format=%h %s", &range]).unwrap_or_default();
    (log.lines().filter_map(long_subject).collect(), None)
}

fn long_subject(line: &str) -> Option<Finding> {
    let (commit, subject) = line.split_once(' ')?;
    let length = subject.chars().count();
    let text = format!("a subject of {length} characters: at most {SUBJECT_MAX}");
    (length > SUBJECT_MAX).then(|| Finding::new(commit, 1, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(findings: &[Finding]) -> Vec<String> {
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn idiom_is_found_in_prose_and_names() {
        let code = "//! Nobody waits in  vain.\nfn waits_in_vain_under_way() {}\n// nobodys, invain, user `nobody`\n";
        let tree = Tree::sample(&[("crates/x/src/a.rs", code), ("README.md", "It shall be so.")]);
        assert_eq!(
            texts(&idiom(&tree)),
            [
                "crates/x/src/a.rs:1: `nobody`",
                "crates/x/src/a.rs:1: `in vain`",
                "crates/x/src/a.rs:2: `in vain`",
                "crates/x/src/a.rs:2: `under way`",
                "README.md:1: `shall be`",
            ]
        );
    }

    #[test]
    fn type_names_with_many_meanings_are_found() {
        let files = ["a", "b", "c", "d"].map(|name| format!("crates/x/src/{name}.rs"));
        let one = "struct Common; enum Error {}";
        let two = "struct Common; enum Error {} trait Place {}";
        let tree =
            Tree::sample(&[(&files[0], one), (&files[1], one), (&files[2], two), (&files[3], two)]);
        let found = texts(&type_names(&tree));
        let of = |name: &str| found.iter().filter(|one| one.contains(name)).count();
        assert_eq!((of("`Common`"), of("`Place`"), of("`Error`")), (4, 2, 0));
    }

    #[test]
    fn long_headers_are_found() {
        let long = "//! line\n".repeat(HEADER_LINES_MAX + 1);
        let table =
            format!("{}//! | a | b |\n//! | c | d |\n", "//! line\n".repeat(HEADER_LINES_MAX));
        let tree = Tree::sample(&[
            ("crates/x/src/a.rs", &long),
            ("crates/x/src/b.rs", &table),
            ("crates/x/src/lib.rs", &long),
        ]);
        assert_eq!(
            texts(&headers(&tree)),
            ["crates/x/src/a.rs:1: a header of 41 lines: at most 40"]
        );
    }

    #[test]
    fn long_subjects_are_found() {
        let long = format!("abc {}", "x".repeat(SUBJECT_MAX + 1));
        assert!(long_subject(&long).is_some());
        assert_eq!(long_subject(&long[..SUBJECT_MAX + 4]), None);
    }
}
