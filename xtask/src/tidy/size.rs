//! Lengths of functions and files, with a ratchet.
//!
//! What is longer stands by name in the file of exceptions. An entry that has become too generous or
//! needless is a finding, and the number of entries is fixed here: it may only be lowered.

use super::tree::{Finding, Source, Tree};

/// Lines of a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Lines of a file.
const FILE_LINES_MAX: usize = 1_000;
/// One entry a line: `path name lines` for a function, `path - lines` for a file.
const EXCEPTIONS: &str = "xtask/size-exceptions.txt";
/// Entries in that file. Lower it with each that goes; it never rises.
const EXCEPTIONS_COUNT: usize = 0;

/// A stretch of code and its length; no name stands for the whole file.
#[derive(PartialEq, Eq, Debug)]
struct Stretch<'a> {
    path: &'a str,
    name: &'a str,
    line: usize,
    lines: usize,
}

/// Functions and files over the bounds, and exceptions that fit no more.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, EXCEPTIONS_COUNT)
}

fn check_against(tree: &Tree, count: usize) -> Vec<Finding> {
    let listed = tree.file(EXCEPTIONS).map_or("", |file| file.text.as_str());
    let exceptions: Vec<_> =
        listed.lines().filter(|line| !line.starts_with('#')).filter_map(parse).collect();
    let long: Vec<_> = tree.rust().flat_map(too_long).collect();
    let mut findings = Vec::new();
    for stretch in &long {
        let same =
            |entry: &&(&str, &str, usize)| entry.0 == stretch.path && entry.1 == stretch.name;
        let allowed = exceptions.iter().find(same).map(|entry| entry.2);
        if allowed != Some(stretch.lines) {
            let Stretch { name, lines, .. } = stretch;
            let text = match allowed {
                Some(listed) if listed > *lines => {
                    format!("`{name}` has shrunk to {lines} lines: lower its exception")
                }
                _ => format!("`{name}` has {lines} lines: split it"),
            };
            findings.push(Finding::new(stretch.path, stretch.line, text));
        }
    }
    for (path, name, _) in &exceptions {
        if !long.iter().any(|stretch| stretch.path == *path && stretch.name == *name) {
            findings.push(Finding::new(EXCEPTIONS, 1, format!("needless: {path} {name}")));
        }
    }
    if exceptions.len() != count {
        let text =
            format!("{} exceptions, not {count}: the number may only be lowered", exceptions.len());
        findings.push(Finding::new(EXCEPTIONS, 1, text));
    }
    findings
}

fn parse(line: &str) -> Option<(&str, &str, usize)> {
    let mut words = line.split_whitespace();
    Some((words.next()?, words.next()?, words.next()?.parse().ok()?))
}

fn too_long(file: &Source) -> Vec<Stretch<'_>> {
    let lines = file.text.lines().count();
    let mut found = functions(file);
    found.retain(|stretch| stretch.lines > FUNCTION_LINES_MAX);
    if lines > FILE_LINES_MAX {
        found.push(Stretch { path: &file.path, name: "-", line: 1, lines });
    }
    found
}

/// Every function with a body.
fn functions(file: &Source) -> Vec<Stretch<'_>> {
    let mut found = Vec::new();
    for (at, pair) in file.tokens.windows(2).enumerate() {
        let starts = pair[0].text == "fn"
            && pair[1].text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !starts {
            continue;
        }
        if let Some(end) = body_end(file, at) {
            found.push(Stretch {
                path: &file.path,
                name: &pair[1].text,
                line: pair[0].line,
                lines: end + 1 - pair[0].line,
            });
        }
    }
    found
}

/// The last line of the first brace group after the `fn` at `start`; `None` when `;` comes first.
fn body_end(file: &Source, start: usize) -> Option<usize> {
    let mut depth = 0;
    let mut in_body = false;
    for token in &file.tokens[start..] {
        match token.text.as_str() {
            ";" if depth == 0 => return None,
            "{" if depth == 0 => {
                in_body = true;
                depth += 1;
            }
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                if depth < 0 {
                    return None;
                }
                if depth == 0 && in_body {
                    return Some(token.line);
                }
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn function(lines: usize) -> String {
        format!("fn long(x: fn(u8) -> [u8; 4]) {{\n{}}}\n", "    g();\n".repeat(lines - 2))
    }

    #[test]
    fn the_bound_is_exact() {
        for (lines, findings) in [(70, 0), (71, 1)] {
            let tree = Tree::sample(&[("a.rs", &function(lines))]);
            assert_eq!(check_against(&tree, 0).len(), findings, "{lines} lines");
        }
        for (lines, findings) in [(1_000, 0), (1_001, 1)] {
            let tree = Tree::sample(&[("a.rs", &"//\n".repeat(lines))]);
            assert_eq!(check_against(&tree, 0).len(), findings, "{lines} lines");
        }
    }

    #[test]
    fn exceptions_hold_exactly_and_only_while_needed() {
        let long = function(80);
        let with = |list| Tree::sample(&[("a.rs", &long), (EXCEPTIONS, list)]);
        assert_eq!(check_against(&with("a.rs long 80\n"), 1), []);
        assert_eq!(check_against(&with("a.rs long 79\n"), 1).len(), 1, "grown");
        assert_eq!(check_against(&with("a.rs long 81\n"), 1).len(), 1, "shrunk");
        assert_eq!(check_against(&with("a.rs long 80\nb.rs gone 90\n"), 2).len(), 1, "needless");
        assert_eq!(
            check_against(&with("a.rs long 80\n"), 0).len(),
            1,
            "more than the ratchet allows"
        );
    }

    #[test]
    fn declarations_have_no_length() {
        let text = format!("trait T {{ fn short(&self);\n{}\nfn after() {{}} }}", "\n".repeat(100));
        assert_eq!(check_against(&Tree::sample(&[("a.rs", &text)]), 0), []);
    }
}
