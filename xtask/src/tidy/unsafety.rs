//! Where unsafe code may live, and how such a file opens.

use super::tree::{Finding, Source, Tree};

/// The homes, each with what makes it one.
const HOMES: &[(&str, &str)] = &[
    ("crates/fabric/src/memory.rs", "memory that peers change"),
    ("crates/fabric/src/memory/", "memory that peers change"),
    ("crates/fabric-shm/", "mappings, descriptors and rings between processes"),
    ("crates/fabric-tcp/src/raw.rs", "sockets straight to and from memory that peers change"),
    ("crates/fabric-verbs/src/ffi/", "calls into libibverbs, found at run time"),
    ("crates/fabric-verbs-fake/", "a libibverbs of its own, for tests"),
    ("crates/farside/src/hit.rs", "the hit path's words and copies"),
    ("crates/farside/src/hit/", "the hit path's words and copies"),
    (
        "crates/farside/src/call/memory/direct_loads.rs",
        "lent memory that machine code of calls loads from",
    ),
    ("crates/rmc/src/run/native/entry.rs", "machine code that is mapped and entered"),
    ("crates/rmc/tests/sbpf/", "an oracle whose memory is described by pointers"),
    ("bench/compare/src/shared.rs", "yardsticks in memory that two processes share"),
    ("bench/compare/rmc/src/peers.rs", "other engines, whose memory is described by pointers"),
    ("bench/compare/src/iceoryx.rs", "a peer's message that is sent as it lies"),
];

fn is_home(path: &str) -> bool {
    HOMES.iter().any(|(home, _)| path.starts_with(home))
}

/// Whether a crate has a home, so that its root cannot forbid unsafe code.
fn has_home(folder: &str) -> bool {
    HOMES.iter().any(|(home, _)| home.starts_with(folder))
}

/// Unsafe code outside its homes, and roots that do not forbid it.
pub(crate) fn homes(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        if !is_home(&file.path) {
            let lines = file.find(&["unsafe"], true);
            findings.extend(
                lines
                    .iter()
                    .map(|line| Finding::new(&file.path, *line, "unsafe code outside its homes")),
            );
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

/// The crate's folder with a `/`, when `path` is the root of its library or program.
fn crate_of_root(path: &str) -> Option<&str> {
    let end = path.strip_suffix("src/lib.rs").or_else(|| path.strip_suffix("src/main.rs"))?;
    let depth = end.matches('/').count();
    (depth <= 2).then_some(end)
}

/// Files with unsafe code that do not open with a table.
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
    fn unsafe_code_is_found_outside_its_homes_alone() {
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
    fn roots_forbid_it() {
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
    fn a_home_opens_with_its_table() {
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
