//! Consistency of the documents with the project: named commands and paths exist, dependencies are explained.

use super::direction::dependencies;
use super::tree::{Finding, Source, Tree};
use crate::fenced::fenced_commands;
use crate::names::{STEPS, TASKS};

/// The file that declares the commands of `farside`.
const ARGUMENTS: &str = "crates/cli/src/arguments.rs";
/// Commands with subcommands, and the enumerations of these.
const GROUPS: &[(&str, &str)] = &[("bench", "Bench"), ("key", "Key"), ("rmc", "Rmc")];
/// First parts of paths that are checked in code spans.
const CHECKED: &[&str] =
    &["crates", "xtask", ".ci", ".cargo", "examples", "fuzz", "bench", "tests"];

/// Returns the documents of the project: those at its root, and all of `docs`. The changelog may name removed items.
pub(super) fn documents(tree: &Tree) -> impl Iterator<Item = &Source> {
    let is_one = |path: &str| !path.contains('/') || path.starts_with("docs/");
    let documents = tree.files.iter().filter(move |file| is_one(&file.path));
    documents.filter(|file| file.path.ends_with(".md") && file.path != "CHANGELOG.md")
}

/// Finds commands in fenced blocks that do not exist.
pub(crate) fn commands(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        for (line, command) in fenced_commands(&document.text) {
            if let Some(text) = objection(tree, &command) {
                findings.push(Finding::new(&document.path, line, text));
            }
        }
    }
    findings
}

fn objection(tree: &Tree, command: &str) -> Option<String> {
    let words: Vec<_> = command.split_whitespace().collect();
    match words.as_slice() {
        ["farside", rest @ ..] => no_such_farside(tree, rest),
        ["cargo", "run", rest @ ..] if rest.contains(&"--example") => no_such_example(tree, rest),
        ["cargo", "run", rest @ ..] => {
            let own =
                rest.iter().position(|word| *word == "--").map_or(&[][..], |at| &rest[at + 1..]);
            no_such_farside(tree, own)
        }
        ["cargo", "xtask", "ci", "--only", step, ..] => {
            (!STEPS.contains(step)).then(|| format!("no step `{step}`"))
        }
        ["cargo", "xtask", task, ..] => {
            (!TASKS.contains(task)).then(|| format!("no task `{task}`"))
        }
        ["cargo", "test", rest @ ..] => no_such_package(tree, rest),
        _ => None,
    }
}

fn no_such_package(tree: &Tree, words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "-p")?;
    let package = words.get(at + 1)?;
    let name = format!("name = \"{package}\"");
    let known = tree
        .files
        .iter()
        .any(|file| file.path.ends_with("Cargo.toml") && file.text.contains(&name));
    (!known).then(|| format!("no package `{package}`"))
}

fn no_such_example(tree: &Tree, words: &[&str]) -> Option<String> {
    let at = words.iter().position(|word| *word == "--example")?;
    let example = words.get(at + 1)?;
    let file = format!("/examples/{example}.rs");
    let known = tree.files.iter().any(|source| source.path.ends_with(&file));
    (!known).then(|| format!("no example `{example}`"))
}

/// Returns why `farside <words>` is not a command: its first one or two words name none.
fn no_such_farside(tree: &Tree, words: &[&str]) -> Option<String> {
    let arguments = tree.file(ARGUMENTS)?;
    let first = words.first().filter(|word| !word.starts_with('-'))?;
    if !variants(arguments, "Command").iter().any(|known| known == first) {
        return Some(format!("no command `farside {first}`"));
    }
    let (_, group) = GROUPS.iter().find(|(name, _)| name == first)?;
    let second = words.get(1)?;
    let known = variants(arguments, group).iter().any(|known| known == second);
    (!known).then(|| format!("no command `farside {first} {second}`"))
}

/// Returns the variants of an enumeration, as words of a command line.
fn variants(file: &Source, name: &str) -> Vec<String> {
    let tokens = &file.tokens;
    let start = tokens
        .windows(3)
        .position(|three| three[0].text == "enum" && three[1].text == name && three[2].text == "{");
    let Some(start) = start else {
        return Vec::new();
    };
    let mut found = Vec::new();
    let mut depth = 0;
    for (token, next) in tokens[start + 3..].iter().zip(&tokens[start + 4..]) {
        match token.text.as_str() {
            "{" | "(" | "[" => depth += 1,
            "}" if depth == 0 => break,
            "}" | ")" | "]" => depth -= 1,
            text if depth == 0 && matches!(next.text.as_str(), "," | "(" | "{" | "}") => {
                found.push(kebab(text))
            }
            _ => {}
        }
    }
    found
}

fn kebab(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.extend(letter.to_lowercase());
    }
    out
}

/// Finds programs in documents that are not, line by line, a part of a compiled example.
pub(crate) fn programs(tree: &Tree) -> Vec<Finding> {
    let examples: Vec<_> = tree.rust().filter(|file| file.path.contains("/examples/")).collect();
    let mut findings = Vec::new();
    for document in documents(tree) {
        let mut rest = document.text.as_str();
        let mut line = 1;
        while let Some((before, after)) = rest.split_once("```rust\n") {
            line += before.matches('\n').count() + 1;
            let Some((program, after)) = after.split_once("```") else {
                break;
            };
            if !examples.iter().any(|example| example.text.contains(program)) {
                findings.push(Finding::new(
                    &document.path,
                    line,
                    "no example contains this program",
                ));
            }
            line += program.matches('\n').count();
            rest = after;
        }
    }
    findings
}

/// Finds paths in code spans that do not exist.
pub(crate) fn paths(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        for (at, line) in document.text.lines().enumerate() {
            for span in line.split('`').skip(1).step_by(2) {
                let checked = CHECKED.iter().any(|head| span.starts_with(&format!("{head}/")));
                let plain = !span.contains(['*', ' ', '{', '<']);
                if checked && plain && !tree.has(span) {
                    findings.push(Finding::new(
                        &document.path,
                        at + 1,
                        format!("no file `{span}`"),
                    ));
                }
            }
        }
    }
    findings
}

/// Finds tests that a table row names after their file and that do not exist there.
pub(crate) fn tests_named(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for document in documents(tree) {
        for (at, line) in
            document.text.lines().enumerate().filter(|(_, line)| line.starts_with('|'))
        {
            let mut file = None;
            for span in line.split('`').skip(1).step_by(2) {
                if span.ends_with(".rs") {
                    file = tree.file(span);
                } else if let Some(file) = file
                    && !names(file, span)
                {
                    let text = format!("no test `{span}` in {}", file.path);
                    findings.push(Finding::new(&document.path, at + 1, text));
                }
            }
        }
    }
    findings
}

/// Returns whether a file has a test, a mutant or another variant of this name.
fn names(file: &Source, name: &str) -> bool {
    let is_variant = name.starts_with(|first: char| first.is_ascii_uppercase());
    let pattern = if is_variant { &[name][..] } else { &["fn", name] };
    !file.find(pattern, true).is_empty()
}

/// Finds external crates that ARCHITECTURE.md does not name.
pub(crate) fn dependencies_explained(tree: &Tree) -> Vec<Finding> {
    let text = tree.file("ARCHITECTURE.md").map_or("", |file| file.text.as_str());
    let mut findings = Vec::new();
    for manifest in tree.files.iter().filter(|file| file.path.ends_with("/Cargo.toml")) {
        for (line, name, _) in dependencies(&manifest.text) {
            let own = name == "farside" || name.starts_with("farside-");
            if !own && !text.contains(&format!("`{name}`")) {
                let text = format!("ARCHITECTURE.md gives no reason for `{name}`");
                findings.push(Finding::new(&manifest.path, line, text));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    const ENUMS: &str = "pub enum Command { /// Shows.\n #[command(name = \"x\")] Demo(Demo), UpNow { n: u8 }, Rmc(Rmc), Bench(Bench) }\n\
                         enum Bench { Memory, Ycsb(Y) }\nenum Rmc { Check(C) }";

    fn findings(readme: &str) -> Vec<String> {
        let tree = Tree::sample(&[
            ("README.md", readme),
            (ARGUMENTS, ENUMS),
            ("crates/base/Cargo.toml", "name = \"farside-base\""),
            ("crates/base/examples/shows.rs", ""),
        ]);
        commands(&tree).into_iter().map(|finding| finding.text).collect()
    }

    #[test]
    fn commands_that_exist_pass() {
        let readme = "```sh\ncargo run --release -- demo   # shows\n$ farside up-now --n 3\nfarside bench ycsb\nfarside rmc check a.o\n\
                      cargo xtask tidy\ncargo xtask ci --only tidy\ncargo test -p farside-base\nfarside --help\n\
                      cargo run -p farside-base --example shows -- dance\n```\n";
        assert_eq!(findings(readme), [""; 0]);
    }

    #[test]
    fn commands_that_do_not_exist_are_found() {
        for command in [
            "cargo run --release -- dance",
            "farside bench speed",
            "farside rmc dance",
            "cargo xtask polish",
            "cargo xtask ci --only polish",
            "cargo test -p farside-moon",
            "cargo run -p farside-base --example moon -- demo",
        ] {
            assert_eq!(findings(&format!("```sh\n{command}\n```")).len(), 1, "{command}");
            assert_eq!(findings(command), [""; 0], "outside a block it is prose: {command}");
        }
    }

    #[test]
    fn programs_outside_of_examples_are_found() {
        let readme = "a\n```rust\nfn main() {}\n```\nb\n```rust\nfn gone() {}\n```\n";
        let example = ("crates/x/examples/a.rs", "//! An example.\nfn main() {}\n");
        let found = programs(&Tree::sample(&[("README.md", readme), example]));
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [7]);
    }

    #[test]
    fn paths_that_do_not_exist_are_found() {
        let text = "see `crates/base/src/lib.rs`, `crates/moon`, `crates/base` and `std/moon`";
        let tree = Tree::sample(&[("ARCHITECTURE.md", text), ("crates/base/src/lib.rs", "")]);
        let found = paths(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].text, "no file `crates/moon`");
    }

    #[test]
    fn missing_tests_are_found() {
        let text =
            "`crates/x/a.rs`: `gone`\n| `word` | `crates/x/a.rs`: `there`, `gone`, `there` |\n";
        let file = ("crates/x/a.rs", "#[test]\nfn there() {}\n// fn gone\n");
        let found = tests_named(&Tree::sample(&[("SECURITY.md", text), file]));
        assert_eq!(found, [Finding::new("SECURITY.md", 2, "no test `gone` in crates/x/a.rs")]);
    }

    #[test]
    fn unexplained_dependencies_are_found() {
        let tree = Tree::sample(&[
            ("ARCHITECTURE.md", "| `clap` | reads arguments |"),
            (
                "crates/cli/Cargo.toml",
                "[dependencies]\nclap = \"4\"\nfarside = \"0\"\nserde = \"1\"\n",
            ),
        ]);
        let found: Vec<_> =
            dependencies_explained(&tree).into_iter().map(|finding| finding.line).collect();
        assert_eq!(found, [4]);
    }
}
