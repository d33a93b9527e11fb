//! The project's files, with the tokens of the Rust files.
//!
//! Rules work on tokens instead of text, to skip comments and strings, and instead of a syntax tree, to see the inside
//! of macros.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use std::fmt;
use std::path::Path;

/// A violation of a rule.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    pub(crate) path: String,
    pub(crate) line: usize,
    pub(crate) text: String,
}

impl Finding {
    pub(crate) fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path, self.line, self.text)
    }
}

/// A token of code: a name, a punctuation character, a literal, or an opening or closing bracket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Token {
    pub(crate) text: String,
    pub(crate) line: usize,
    /// Inside an item under `#[cfg(test)]`.
    pub(crate) in_test: bool,
}

/// One file.
pub(crate) struct Source {
    /// Its path from the project's root, with `/`.
    pub(crate) path: String,
    pub(crate) text: String,
    /// Empty if it is not Rust.
    pub(crate) tokens: Vec<Token>,
}

impl Source {
    fn new(path: &str, text: &str) -> Result<Self, String> {
        let mut tokens = Vec::new();
        if path.ends_with(".rs") {
            let stream: TokenStream = text.parse().map_err(|e| format!("{path}: {e}"))?;
            flatten(stream, is_test(path), &mut tokens);
        }
        Ok(Self { path: path.to_owned(), text: text.to_owned(), tokens })
    }

    pub(crate) fn is_rust(&self) -> bool {
        self.path.ends_with(".rs")
    }

    /// Returns the lines at which this sequence of tokens starts, in test code only if `tests_too`.
    pub(crate) fn find(&self, pattern: &[&str], tests_too: bool) -> Vec<usize> {
        self.tokens
            .windows(pattern.len())
            .filter(|window| window.iter().zip(pattern).all(|(token, text)| token.text == *text))
            .filter(|window| tests_too || !window[0].in_test)
            .map(|window| window[0].line)
            .collect()
    }
}

/// All files of the project.
pub(crate) struct Tree {
    pub(crate) files: Vec<Source>,
}

impl Tree {
    /// Reads all text files under `root`, except build products and version control.
    pub(crate) fn read(root: &str) -> Result<Self, String> {
        let mut paths = Vec::new();
        list(Path::new(root), &mut paths)?;
        paths.sort();
        let mut files = Vec::new();
        for path in paths {
            let bytes =
                std::fs::read(Path::new(root).join(&path)).map_err(|e| format!("{path}: {e}"))?;
            if let Ok(text) = String::from_utf8(bytes) {
                files.push(Source::new(&path, &text)?);
            }
        }
        Ok(Self { files })
    }

    /// Creates a project of these files, for tests of rules.
    #[cfg(test)]
    pub(crate) fn sample(files: &[(&str, &str)]) -> Self {
        let files = files.iter().map(|(path, text)| Source::new(path, text).unwrap());
        Self { files: files.collect() }
    }

    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }

    pub(crate) fn rust(&self) -> impl Iterator<Item = &Source> {
        self.files.iter().filter(|file| file.is_rust())
    }

    pub(crate) fn file(&self, path: &str) -> Option<&Source> {
        self.files.iter().find(|file| file.path == path)
    }

    /// Returns whether a file exists, or a folder with files.
    pub(crate) fn has(&self, path: &str) -> bool {
        let folder = format!("{}/", path.trim_end_matches('/'));
        self.files.iter().any(|file| file.path == path || file.path.starts_with(&folder))
    }
}

/// Returns whether a file is compiled only for tests, by its name: parents declare such files under `#[cfg(test)]`.
fn is_test(path: &str) -> bool {
    path.contains("/tests/") || path.ends_with("/tests.rs") || path.ends_with("_tests.rs")
}

fn list(folder: &Path, out: &mut Vec<String>) -> Result<(), String> {
    let shown = folder.display().to_string();
    let entries = std::fs::read_dir(folder).map_err(|e| format!("{shown}: {e}"))?;
    for entry in entries {
        let entry = entry.map_err(|e| format!("{shown}: {e}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let kind = entry.file_type().map_err(|e| format!("{shown}: {e}"))?;
        if kind.is_dir() {
            if name != ".git" && !name.starts_with("target") {
                list(&entry.path(), out)?;
            }
        } else if kind.is_file() && name != "Cargo.lock" {
            let path = entry.path().display().to_string();
            out.push(path.trim_start_matches("./").to_owned());
        }
    }
    Ok(())
}

fn flatten(stream: TokenStream, in_test: bool, out: &mut Vec<Token>) {
    let mut gate = TestGate::Closed;
    for tree in stream {
        let here = in_test || gate.covers(&tree);
        let line = tree.span().start().line;
        let mut push = |text: String, line: usize| {
            out.push(Token { text, line, in_test: here });
        };
        match tree {
            TokenTree::Group(group) => {
                let (open, close) = brackets(group.delimiter());
                push(open.to_owned(), line);
                flatten(group.stream(), here, out);
                out.push(Token {
                    text: close.to_owned(),
                    line: group.span_close().end().line,
                    in_test: here,
                });
            }
            TokenTree::Ident(word) => push(word.to_string(), line),
            TokenTree::Punct(sign) => push(sign.as_char().to_string(), line),
            TokenTree::Literal(literal) => push(literal.to_string(), line),
        }
    }
}

fn brackets(delimiter: Delimiter) -> (&'static str, &'static str) {
    match delimiter {
        Delimiter::Parenthesis => ("(", ")"),
        Delimiter::Brace => ("{", "}"),
        Delimiter::Bracket => ("[", "]"),
        Delimiter::None => ("", ""),
    }
}

/// Follows `#[cfg(test)]` (or `#[test]`) from the attribute to the end of its item.
enum TestGate {
    Closed,
    Hash,
    Open,
}

impl TestGate {
    /// Returns whether this token belongs to an item that is compiled only for tests.
    fn covers(&mut self, tree: &TokenTree) -> bool {
        match (&*self, tree) {
            (Self::Open, TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                *self = Self::Closed;
                true
            }
            (Self::Open, TokenTree::Punct(sign)) if sign.as_char() == ';' => {
                *self = Self::Closed;
                true
            }
            (Self::Open, _) => true,
            (Self::Hash, TokenTree::Group(group)) => {
                let text: String = group.stream().to_string().split_whitespace().collect();
                let test = text == "test"
                    || text.starts_with("cfg(test")
                    || text.starts_with("cfg(all(test");
                *self = if test { Self::Open } else { Self::Closed };
                false
            }
            (_, TokenTree::Punct(sign)) if sign.as_char() == '#' => {
                *self = Self::Hash;
                false
            }
            (Self::Hash, TokenTree::Punct(sign)) if sign.as_char() == '!' => false,
            _ => {
                *self = Self::Closed;
                false
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_include_macros_but_not_comments_and_strings() {
        let tree = Tree::sample(&[(
            "crates/x/src/lib.rs",
            "// unsafe\n/// unsafe\nfn f() { g(\"unsafe\"); m!(unsafe { 1 }); }\n",
        )]);
        assert_eq!(tree.files[0].find(&["unsafe"], true), [3]);
    }

    #[test]
    fn items_under_cfg_test_are_tests() {
        let text = "fn a() { x.unwrap(); }\n#[cfg(test)]\nmod tests {\n fn b() { x.unwrap(); }\n}\nfn c() { x.unwrap(); }\n";
        let tree = Tree::sample(&[("crates/x/src/lib.rs", text)]);
        assert_eq!(tree.files[0].find(&[".", "unwrap"], false), [1, 6]);
        assert_eq!(tree.files[0].find(&[".", "unwrap"], true), [1, 4, 6]);
    }
}
