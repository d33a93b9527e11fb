//! Plain technical English, and one meaning for a name.
//!
//! What the tree had when the rules came is listed here, and may only shrink: a crate or a file with fewer findings
//! than its row allows breaks the rule too, until the row is lowered.

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
/// Uses that are left, by the first two folders.
const IDIOM_LEFT: &[(&str, usize)] =
    &[("crates/bootstrap", 2), ("crates/farside", 5), ("crates/protocol", 1)];

/// Names of which each may be defined once.
const ONCE: &[&str] =
    &["Place", "State", "Message", "End", "Answer", "Stage", "Way", "Call", "Side", "Seat"];
/// Names that every module may define.
const FREE: &[&str] = &["Error", "Result", "Options", "Builder"];
/// Most modules that define a type of one name.
const DEFINITIONS_MAX: usize = 3;
/// Names with more definitions than that.
const DEFINITIONS_LEFT: &[(&str, usize)] = &[
    ("Answer", 3),
    ("BenchEnd", 4),
    ("End", 2),
    ("Event", 5),
    ("Host", 5),
    ("Member", 5),
    ("Reply", 4),
    ("Report", 6),
    ("Server", 4),
    ("State", 2),
    ("Stop", 4),
];

/// Most lines of a module's header; those of crates and tables of unsafe access may be longer.
const HEADER_LINES_MAX: usize = 40;
/// Headers that are longer.
const HEADERS_LEFT: &[(&str, usize)] = &[];

/// Most characters of a commit's subject.
const SUBJECT_MAX: usize = 72;
/// The file that came with the rule on subjects.
const OWN_FILE: &str = "xtask/src/tidy/language.rs";

/// Findings by what their row is named.
type Found = BTreeMap<String, Vec<Finding>>;

/// Uses of the idiom.
pub(crate) fn idiom(tree: &Tree) -> Vec<Finding> {
    ratchet(IDIOM_LEFT, idiom_by_folder(tree))
}

fn idiom_by_folder(tree: &Tree) -> Found {
    let mut uses = Found::new();
    let foreign = |path: &str| path == OWN_FILE || path.starts_with("LICENSE");
    for file in tree.files.iter().filter(|file| !foreign(&file.path)) {
        let of_file = uses.entry(folder(&file.path)).or_default();
        for (line, text) in (1..).zip(file.text.lines()) {
            if NEEDED.iter().any(|needed| text.contains(needed)) {
                continue;
            }
            for phrase in phrases(text) {
                of_file.push(Finding::new(&file.path, line, format!("`{phrase}`")));
            }
        }
    }
    uses.retain(|_, found| !found.is_empty());
    uses
}

/// The folder whose uses are counted together: a crate, or a file at the root.
fn folder(path: &str) -> String {
    let mut parts = path.split('/');
    let first = parts.next().unwrap_or_default();
    match (first, parts.next()) {
        ("crates", Some(second)) => format!("crates/{second}"),
        _ => first.to_owned(),
    }
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
    ratchet(DEFINITIONS_LEFT, types_by_name(tree))
}

fn types_by_name(tree: &Tree) -> Found {
    let mut definitions = Found::new();
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
    definitions
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
    let mut findings = ratchet(HEADERS_LEFT, headers_by_file(tree));
    findings.dedup();
    findings
}

/// A finding for each line of a header that is too long.
fn headers_by_file(tree: &Tree) -> Found {
    let mut long = Found::new();
    for file in tree.rust().filter(|file| !is_crate(&file.path)) {
        let header = file.text.lines().take_while(|line| line.starts_with("//!"));
        // The table of unsafe access is a rule of its own.
        let lines = header.filter(|line| !line.starts_with("//! |")).count();
        if lines > HEADER_LINES_MAX {
            let text = format!("a header of {lines} lines: at most {HEADER_LINES_MAX}");
            let finding = Finding::new(&file.path, 1, text);
            long.insert(file.path.clone(), vec![finding; lines]);
        }
    }
    long
}

fn is_crate(path: &str) -> bool {
    ["/src/lib.rs", "/src/main.rs"].iter().any(|end| path.ends_with(end))
}

/// The findings of rows that have more than is left to them, and rows that have fewer.
fn ratchet(left: &[(&str, usize)], found: Found) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, _) in left.iter().filter(|(name, _)| !found.contains_key(*name)) {
        findings.push(Finding::new(OWN_FILE, 1, format!("`{name}` has none left: drop its row")));
    }
    for (name, of_name) in found {
        let most = left.iter().find(|(known, _)| *known == name).map_or(0, |(_, most)| *most);
        match of_name.len() {
            count if count > most && most == 0 => findings.extend(of_name),
            count if count > most => {
                let text = format!("`{name}` has {count}, at most {most}");
                findings.push(Finding::new(OWN_FILE, 1, text));
            }
            count if count < most => {
                let text = format!("`{name}` has {count} left: lower its row from {most}");
                findings.push(Finding::new(OWN_FILE, 1, text));
            }
            _ => {}
        }
    }
    findings
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

    fn texts(found: Found) -> Vec<String> {
        let mut findings = ratchet(&[], found);
        findings.dedup_by(|one, other| one == other && one.text.contains("header"));
        findings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn idiom_is_found_in_prose_and_names() {
        let code = "//! Nobody waits in  vain.\nfn waits_in_vain_under_way() {}\n// nobodys, invain, user `nobody`\n";
        let tree = Tree::sample(&[("crates/x/src/a.rs", code), ("README.md", "It shall be so.")]);
        assert_eq!(
            texts(idiom_by_folder(&tree)),
            [
                "README.md:1: `shall be`",
                "crates/x/src/a.rs:1: `nobody`",
                "crates/x/src/a.rs:1: `in vain`",
                "crates/x/src/a.rs:2: `in vain`",
                "crates/x/src/a.rs:2: `under way`",
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
        let found = texts(types_by_name(&tree));
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
            texts(headers_by_file(&tree)),
            ["crates/x/src/a.rs:1: a header of 41 lines: at most 40"]
        );
    }

    #[test]
    fn rows_may_only_shrink() {
        let found = |count: usize| {
            Found::from([("x".to_owned(), vec![Finding::new("a.rs", 1, "word"); count])])
        };
        let left = [("x", 2)];
        assert_eq!(ratchet(&left, found(2)), []);
        for (count, expected) in [(3, "has 3, at most 2"), (1, "has 1 left: lower its row from 2")]
        {
            assert!(ratchet(&left, found(count))[0].text.contains(expected));
        }
        assert!(ratchet(&left, Found::new())[0].text.contains("drop its row"));
        assert_eq!(ratchet(&[], found(1)), [Finding::new("a.rs", 1, "word")]);
    }

    #[test]
    fn long_subjects_are_found() {
        let long = format!("abc {}", "x".repeat(SUBJECT_MAX + 1));
        assert!(long_subject(&long).is_some());
        assert_eq!(long_subject(&long[..SUBJECT_MAX + 4]), None);
    }
}
