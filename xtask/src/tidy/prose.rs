//! Prose of the documents: link targets exist, and paragraphs are short.

use super::documents::documents;
use super::tree::{Finding, Source, Tree};

/// Maximum words of a paragraph.
const PARAGRAPH_WORDS_MAX: usize = 120;

/// Finds links within the project whose file or heading does not exist.
pub(crate) fn links(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        for (line, text) in outside_fences(&document.text) {
            for target in targets(text) {
                if let Some(objection) = objection(tree, document, target) {
                    findings.push(Finding::new(&document.path, line, objection));
                }
            }
        }
    }
    findings
}

/// Finds paragraphs with more than [`PARAGRAPH_WORDS_MAX`] words. Tables and code are not paragraphs; each list item is
/// one.
pub(crate) fn paragraphs(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        let (mut begun, mut last, mut words) = (0, 0, 0);
        let mut end = |begun: usize, words: &mut usize| {
            if *words > PARAGRAPH_WORDS_MAX {
                let text = format!("a paragraph of {words} words: at most {PARAGRAPH_WORDS_MAX}");
                findings.push(Finding::new(&document.path, begun, text));
            }
            *words = 0;
        };
        for (line, text) in outside_fences(&document.text) {
            let text = text.trim();
            let begins = line != last + 1 || is_item(text) || text.is_empty();
            if begins || text.starts_with(['#', '|']) {
                end(begun, &mut words);
                begun = line;
            }
            if !text.starts_with(['#', '|']) {
                words += text.split_whitespace().count();
            }
            last = line;
        }
        end(begun, &mut words);
    }
    findings
}

fn is_item(text: &str) -> bool {
    let numbered = text.split_once(". ").is_some_and(|(number, _)| number.parse::<u32>().is_ok());
    numbered || text.starts_with("- ") || text.starts_with("* ")
}

/// Returns the lines outside of fenced blocks, with their numbers.
fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut fenced = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        !fenced && !fence
    })
}

/// Returns the link targets of a line, except in code spans.
fn targets(line: &str) -> Vec<&str> {
    let mut found = Vec::new();
    for prose in line.split('`').step_by(2) {
        let mut rest = prose;
        while let Some((_, after)) = rest.split_once("](") {
            let Some((target, after)) = after.split_once(')') else { break };
            found.push(target);
            rest = after;
        }
    }
    // A link whose text is a code span has its target after the last backtick.
    found
}

fn objection(tree: &Tree, from: &Source, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = target.split_once('#').map_or((target, None), |(p, a)| (p, Some(a)));
    let path = resolve(&from.path, path);
    if !path.is_empty() && !tree.has(&path) {
        return Some(format!("no file `{path}`"));
    }
    let anchor = anchor?;
    // Anchors of source files are line numbers for the web view.
    let document = tree.file(&path).filter(|file| file.path.ends_with(".md"))?;
    let known = headings(&document.text).any(|heading| slug(heading) == anchor);
    (!known).then(|| format!("no heading `#{anchor}` in {}", document.path))
}

/// Returns the path from the project's root of a path that is relative to a file.
fn resolve(from: &str, path: &str) -> String {
    if path.is_empty() {
        return from.to_owned();
    }
    let mut parts: Vec<_> = from.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "." | "" => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

fn headings(text: &str) -> impl Iterator<Item = &str> {
    outside_fences(text)
        .filter(|(_, line)| line.starts_with('#'))
        .map(|(_, line)| line.trim_start_matches('#').trim())
}

/// Returns the anchor of a heading.
fn slug(heading: &str) -> String {
    let kept = |letter: &char| letter.is_alphanumeric() || matches!(letter, ' ' | '-' | '_');
    let lower = heading.chars().filter(kept).flat_map(char::to_lowercase);
    lower.map(|letter| if letter == ' ' { '-' } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_links_are_found() {
        let page = "# A page\n\n[a](../README.md) [`b`](b.md#what-it-is) [c](#a-page) [d](https://x/y.md)\n\
                    [e](gone.md)\n[f](b.md#gone)\n[g](#gone)\n`[h](code.md)`\n```\n[i](fenced.md)\n```\n";
        let tree = Tree::sample(&[
            ("README.md", "[k](docs/a.md) [l](docs)"),
            ("docs/a.md", page),
            ("docs/b.md", "## What it is\n"),
        ]);
        let found: Vec<_> =
            links(&tree).into_iter().map(|finding| (finding.line, finding.text)).collect();
        assert_eq!(
            found,
            [
                (4, "no file `docs/gone.md`".to_owned()),
                (5, "no heading `#gone` in docs/b.md".to_owned()),
                (6, "no heading `#gone` in docs/a.md".to_owned()),
            ]
        );
    }

    #[test]
    fn long_paragraphs_are_found() {
        let long = "word ".repeat(PARAGRAPH_WORDS_MAX + 1);
        let half = "word ".repeat(PARAGRAPH_WORDS_MAX / 2 + 1);
        let split = format!("{half}\n\n{half}\n- {half}\n- {half}\n| {long} |\n```\n{long}\n```\n");
        let two = format!("{half}\n{half}\n");
        let tree =
            Tree::sample(&[("README.md", &split), ("SECURITY.md", &two), ("docs/a.md", &long)]);
        let found: Vec<_> = paragraphs(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(found, ["SECURITY.md", "docs/a.md"]);
    }
}
