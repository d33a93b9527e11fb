//! Files that may contain unsafe code, and the access table at their beginning.

use super::tree::{Finding, Source, Tree};

/// Files and folders with unsafe code, and the reason for each.
const HOMES: &[(&str, &str)] = &[
    ("crates/fabric/src/memory.rs", "memory that peers change"),
    ("crates/fabric/src/memory/", "memory that peers change"),
    ("crates/fabric-shm/", "mappings, descriptors and rings between processes"),
    ("crates/fabric-tcp/src/raw.rs", "socket transfers to and from memory that peers change"),
    ("crates/fabric-verbs/src/ffi/", "calls into libibverbs, loaded at run time"),
    ("crates/fabric-verbs-fake/", "a fake libibverbs, for tests"),
    ("crates/farside/src/hit.rs", "the hit path's words and copies"),
    ("crates/farside/src/hit/", "the hit path's words and copies"),
    (
        "crates/farside/src/call/memory/direct_loads.rs",
        "lent memory that machine code of calls loads from",
    ),
    ("crates/rmc/src/run/native/entry.rs", "machine code that is mapped and entered"),
    ("crates/rmc/tests/sbpf/", "an oracle whose memory is described by pointers"),
    ("bench/compare/src/shared.rs", "baselines in memory that two processes share"),
    ("bench/compare/rmc/src/peers.rs", "other engines, whose memory is described by pointers"),
    ("bench/compare/src/iceoryx.rs", "a peer's message that is sent without serialization"),
];

fn is_home(path: &str) -> bool {
    HOMES.iter().any(|(home, _)| path.starts_with(home))
}

/// Returns whether a crate has such a file, and its root cannot forbid unsafe code.
fn has_home(folder: &str) -> bool {
    HOMES.iter().any(|(home, _)| home.starts_with(folder))
}

/// Finds unsafe code outside the listed files, and crate roots that do not forbid it.
pub(crate) fn homes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if !is_home(&file.path) {
            let lines = file.find(&["unsafe"], true);
            findings.extend(lines.iter().map(|line| {
                Finding::new(&file.path, *line, "unsafe code outside the listed files")
            }));
        }
        if let Some(folder) = crate_of_root(&file.path)
            && !has_home(folder)
            && file.find(&["forbid", "(", "unsafe_code", ")"], true).is_empty()
        {
            findings.push(Finding::new(
                &file.path,
                1,
                "the crate's root does not say #![forbid(unsafe_code)]",
            ));
        }
    }
    findings
}

/// Returns the crate's folder with a `/` if `path` is the root of its library or program.
fn crate_of_root(path: &str) -> Option<&str> {
    let end = path.strip_suffix("src/lib.rs").or_else(|| path.strip_suffix("src/main.rs"))?;
    let depth = end.matches('/').count();
    (depth <= 2).then_some(end)
}

/// Finds files with unsafe code that do not begin with an access table.
pub(crate) fn tables(tree: &Tree) -> Vec<Finding> {
    let lacks =
        |file: &&Source| !file.find(&["unsafe"], false).is_empty() && !opens_with_table(&file.text);
    let text = "no table of who may touch what, when, in the opening `//!` lines";
    tree.rust().filter(lacks).map(|file| Finding::new(&file.path, 1, text)).collect()
}

fn opens_with_table(text: &str) -> bool {
    let opening = text.lines().take_while(|line| line.starts_with("//!"));
    opening.filter(|line| line.starts_with("//! |")).count() >= 3
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unsafe_code_is_found_outside_the_listed_files() {
        let text = "fn f() { unsafe { g() } }";
        let tree = Tree::sample(&[
            ("crates/fabric/src/memory.rs", text),
            ("crates/fabric-shm/src/ring.rs", text),
            ("crates/farside/src/hit.rs", text),
            ("crates/farside/src/turn.rs", text),
            ("crates/protocol/tests/all.rs", text),
        ]);
        let found = homes(&tree);
        let paths: Vec<_> = found.iter().map(|finding| finding.path.as_str()).collect();
        assert_eq!(paths, ["crates/farside/src/turn.rs", "crates/protocol/tests/all.rs"]);
    }

    #[test]
    fn crate_roots_must_forbid_unsafe_code() {
        let tree = Tree::sample(&[
            ("crates/sim/src/lib.rs", "#![no_std]"),
            ("crates/base/src/lib.rs", "#![forbid(unsafe_code)]"),
            ("crates/fabric/src/lib.rs", ""),
            ("xtask/src/main.rs", ""),
            ("crates/cli/src/worker/main.rs", ""),
        ]);
        let paths: Vec<_> = homes(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/sim/src/lib.rs", "xtask/src/main.rs"]);
    }

    #[test]
    fn unsafe_file_needs_an_access_table() {
        let code = "fn f() { unsafe { g() } }";
        let with = format!(
            "//! Rings.\n//!\n//! | who | may | when |\n//! | --- | --- | --- |\n//! | a | b | c |\n{code}"
        );
        let tree = Tree::sample(&[
            ("crates/fabric-shm/src/a.rs", &with),
            ("crates/fabric-shm/src/b.rs", code),
        ]);
        let paths: Vec<_> = tables(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/fabric-shm/src/b.rs"]);
    }
}
