//! Limits of the lengths of functions and files, with a ratchet.
//!
//! Longer ones are listed by name in the file of exceptions. An entry that is higher than necessary is a finding, and
//! the number of entries is fixed here: it may only be lowered.

use super::tree::{Finding, Source, Tree};

/// Maximum lines of a function, from its name to its closing brace.
const FUNCTION_LINES_MAX: usize = 70;
/// Maximum lines of a file.
const FILE_LINES_MAX: usize = 1_000;
/// The file of exceptions, one entry per line: `path name lines` for a function, `path - lines` for a file.
const EXCEPTIONS: &str = "xtask/size-exceptions.txt";
/// Number of entries in that file. Lower it with each removed entry; never raise it.
const EXCEPTIONS_COUNT: usize = 0;

/// A function or file, and its length; the name of a file is `-`.
#[derive(PartialEq, Eq, Debug)]
struct CodeRange<'a> {
    path: &'a str,
    name: &'a str,
    line: usize,
    lines: usize,
}

/// Finds functions and files over the limits, and outdated exceptions.
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    check_against(tree, EXCEPTIONS_COUNT)
}

fn check_against(tree: &Tree, count: usize) -> Vec<Finding> {
    let listed = tree.file(EXCEPTIONS).map_or("", |file| file.text.as_str());
    let exceptions: Vec<_> =
        listed.lines().filter(|line| !line.starts_with('#')).filter_map(parse).collect();
    let long: Vec<_> = tree.rust().flat_map(too_long).collect();
    let mut findings = Vec::new();
    for range in &long {
        let same = |entry: &&(&str, &str, usize)| entry.0 == range.path && entry.1 == range.name;
        let allowed = exceptions.iter().find(same).map(|entry| entry.2);
        if allowed != Some(range.lines) {
            let CodeRange { name, lines, .. } = range;
            let text = match allowed {
                Some(listed) if listed > *lines => {
                    format!("`{name}` has shrunk to {lines} lines: lower its exception")
                }
                _ => format!("`{name}` has {lines} lines: split it"),
            };
            findings.push(Finding::new(range.path, range.line, text));
        }
    }
    for (path, name, _) in &exceptions {
        if !long.iter().any(|range| range.path == *path && range.name == *name) {
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

fn too_long(file: &Source) -> Vec<CodeRange<'_>> {
    let lines = file.text.lines().count();
    let mut found = functions(file);
    found.retain(|range| range.lines > FUNCTION_LINES_MAX);
    if lines > FILE_LINES_MAX {
        found.push(CodeRange { path: &file.path, name: "-", line: 1, lines });
    }
    found
}

/// Returns every function with a body.
fn functions(file: &Source) -> Vec<CodeRange<'_>> {
    let mut found = Vec::new();
    for (at, pair) in file.tokens.windows(2).enumerate() {
        let starts = pair[0].text == "fn"
            && pair[1].text.starts_with(|c: char| c.is_alphabetic() || c == '_');
        if !starts {
            continue;
        }
        if let Some(end) = body_end(file, at) {
            found.push(CodeRange {
                path: &file.path,
                name: &pair[1].text,
                line: pair[0].line,
                lines: end + 1 - pair[0].line,
            });
        }
    }
    found
}

/// Returns the last line of the first brace group after the `fn` at `start`; `None` if `;` comes first.
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
    fn limits_are_exact() {
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
    fn exceptions_must_match_exactly() {
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
