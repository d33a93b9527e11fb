//! Leftovers of development: notes, debug prints and paths of one machine.

use super::tree::{Finding, Tree};

/// Words that mark unfinished work; split, so that the rule does not find this file.
const NOTES: &[&str] = &[
    concat!("FIX", "ME"),
    concat!("TO", "DO"),
    concat!("XX", "X"),
    concat!("HA", "CK"),
    concat!("dbg", "!("),
    concat!("/// Place", "holder"),
];

/// Folders that exist only on one machine.
const MACHINE_PATHS: &[&str] = &[concat!("/wo", "rk"), concat!("/ro", "ot"), concat!("/ho", "me/")];

/// Finds lines with such a word.
pub(crate) fn notes(tree: &Tree) -> Vec<Finding> {
    search(tree, NOTES, |line, at, word| !touches_word(line, at, word) || word.starts_with('/'))
}

/// Finds lines with such a path.
pub(crate) fn machine_paths(tree: &Tree) -> Vec<Finding> {
    search(tree, MACHINE_PATHS, |line, at, path| {
        let before = line[..at].chars().next_back();
        let after = line[at + path.len()..].chars().next();
        let starts = !before.is_some_and(|c| c.is_alphanumeric() || "_-./~$}".contains(c));
        let ends =
            path.ends_with('/') || !after.is_some_and(|c| c.is_alphanumeric() || "_-.".contains(c));
        starts && ends
    })
}

fn search(tree: &Tree, words: &[&str], counts: fn(&str, usize, &str) -> bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        for (number, line) in file.text.lines().enumerate() {
            for word in words {
                if line.match_indices(word).any(|(at, _)| counts(line, at, word)) {
                    findings.push(Finding::new(&file.path, number + 1, format!("`{word}`")));
                }
            }
        }
    }
    findings
}

/// Returns whether the match is a part of a longer word.
fn touches_word(line: &str, at: usize, word: &str) -> bool {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    let after = line[at + word.len()..].chars().next();
    let bracket = word.ends_with('(');
    line[..at].chars().next_back().is_some_and(part) || (!bracket && after.is_some_and(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_are_found_but_not_within_words() {
        for word in NOTES {
            let text = format!("x\n {word} later");
            let found = notes(&Tree::sample(&[("notes.md", &text)]));
            assert_eq!(found.iter().map(|f| f.line).collect::<Vec<_>>(), [2], "{word}");
        }
        let fine = format!("M{}S and {}_LIST", NOTES[1], NOTES[0]);
        assert_eq!(notes(&Tree::sample(&[("notes.md", &fine)])), []);
    }

    #[test]
    fn only_paths_of_one_machine_are_found() {
        for path in MACHINE_PATHS {
            let path = path.trim_end_matches('/');
            for text in [format!("see {path}/x/y"), format!("\"{path}/z\"")] {
                assert_eq!(machine_paths(&Tree::sample(&[("a.md", &text)])).len(), 1, "{text}");
            }
        }
        for fine in ["crates/base/src/work.rs", "client/work/x", "/workers", "/homestead", "~/work"]
        {
            assert_eq!(machine_paths(&Tree::sample(&[("a.md", fine)])), [], "{fine}");
        }
    }
}
