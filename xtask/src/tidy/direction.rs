//! Allowed dependencies between crates, and between modules of some crates.

use super::tree::{Finding, Source, Token, Tree};

/// The allowed dependencies of one crate.
struct CrateRule {
    /// Folder under `crates/`.
    folder: &'static str,
    /// Crates of this project.
    sees: &'static [&'static str],
    /// Further crates of this project that its tests may use.
    tests_see: &'static [&'static str],
    /// Whether external crates are allowed (in tests they always are).
    outside: bool,
}

/// The rules of all crates, lowest first. Add a new crate here, with its reason in ARCHITECTURE.md.
const CRATE_RULES: &[CrateRule] = &[
    CrateRule { folder: "base", sees: &[], tests_see: &[], outside: false },
    CrateRule { folder: "fabric", sees: &["base"], tests_see: &[], outside: true },
    CrateRule { folder: "testkit", sees: &["base", "fabric"], tests_see: &[], outside: true },
    CrateRule {
        folder: "fabric-shm",
        sees: &["base", "fabric"],
        tests_see: &["testkit"],
        outside: true,
    },
    CrateRule { folder: "bootstrap", sees: &["fabric"], tests_see: &["testkit"], outside: true },
    CrateRule {
        folder: "fabric-tcp",
        sees: &["base", "bootstrap", "fabric"],
        tests_see: &["testkit"],
        outside: true,
    },
    CrateRule {
        folder: "fabric-verbs",
        sees: &["base", "bootstrap", "fabric"],
        tests_see: &["testkit"],
        outside: true,
    },
    CrateRule {
        folder: "fabric-verbs-fake",
        sees: &[],
        tests_see: &["base", "bootstrap", "fabric", "fabric-verbs", "farside"],
        outside: true,
    },
    CrateRule { folder: "protocol", sees: &["base"], tests_see: &[], outside: false },
    CrateRule { folder: "rmc", sees: &[], tests_see: &[], outside: true },
    CrateRule {
        folder: "farside",
        sees: &[
            "base",
            "bootstrap",
            "fabric",
            "fabric-shm",
            "fabric-tcp",
            "fabric-verbs",
            "protocol",
            "rmc",
        ],
        tests_see: &["sim", "testkit"],
        outside: true,
    },
    CrateRule {
        folder: "sim",
        sees: &["base", "fabric", "fabric-shm", "protocol", "farside"],
        tests_see: &[],
        outside: true,
    },
    CrateRule { folder: "apps", sees: &["farside"], tests_see: &["sim", "testkit"], outside: true },
    CrateRule {
        folder: "command",
        sees: &["bootstrap", "fabric", "fabric-tcp", "fabric-verbs", "farside", "apps"],
        tests_see: &[],
        outside: true,
    },
    CrateRule {
        folder: "doctor",
        sees: &["base", "fabric-shm", "fabric-tcp", "fabric-verbs", "command"],
        tests_see: &["fabric-verbs-fake"],
        outside: true,
    },
    CrateRule {
        folder: "launcher",
        sees: &["base", "bootstrap", "fabric", "fabric-tcp", "farside", "apps", "command"],
        tests_see: &[],
        outside: true,
    },
    CrateRule {
        folder: "data",
        sees: &["farside", "apps", "command"],
        tests_see: &["testkit"],
        outside: true,
    },
    CrateRule {
        folder: "bench",
        sees: &["base", "fabric", "farside", "apps", "sim", "command", "launcher"],
        tests_see: &[],
        outside: true,
    },
    CrateRule {
        folder: "cli",
        sees: &[
            "base",
            "bootstrap",
            "fabric",
            "fabric-shm",
            "farside",
            "apps",
            "rmc",
            "sim",
            "command",
            "doctor",
            "launcher",
            "bench",
        ],
        tests_see: &["fabric-tcp", "fabric-verbs", "fabric-verbs-fake", "testkit"],
        outside: true,
    },
];

/// External crates for terminals and mounts, each with the only crates that may use it.
const COMMAND_ONLY: &[(&str, &[&str])] = &[
    ("clap", &["cli", "data"]),
    ("indicatif", &["command"]),
    ("ratatui", &["cli"]),
    ("fuser", &["cli"]),
    ("signal-hook", &["command"]),
];
/// Crates above the facade.
const ABOVE_FACADE: &[&str] = &["apps", "command", "doctor", "launcher", "data", "bench", "cli"];
/// External crates that no crate below the facade may use.
const FACADE_UP: &[&str] = &["tokio", "futures", "async-std", "smol", "tracing", "log"];
/// The machines of `protocol`: folders or files of its source.
const MACHINES: &[&str] =
    &["allocate", "call", "channel", "coherence", "lock", "member", "messaging"];
/// Files of the facade that may use both the machines and the fabric, with the reason.
const BOTH_SIDES: &[(&str, &str)] = &[
    (
        "crates/farside/src/engine/links/mod.rs",
        "decodes completions of a node's port for the machines, and posts their requests",
    ),
    ("crates/farside/src/channel/drive.rs", "the progress engine of a channel"),
    ("crates/farside/src/channel/memory.rs", "registers the memory of a machine's plan"),
    (
        "crates/farside/src/call/transport/message_port.rs",
        "sends the messages of the call machines, by their headers",
    ),
    (
        "crates/farside/src/hit.rs",
        "bytes of an arena under levels of the coherence machine; no port",
    ),
];

/// Checks the dependencies of every crate against the table.
pub(crate) fn crates(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in &tree.files {
        let Some(folder) =
            file.path.strip_prefix("crates/").and_then(|p| p.strip_suffix("/Cargo.toml"))
        else {
            continue;
        };
        let Some(rule) = CRATE_RULES.iter().find(|rule| rule.folder == folder) else {
            let text = format!("crate `{folder}` is missing in the table of directions");
            findings.push(Finding::new(&file.path, 1, text));
            continue;
        };
        for (line, name, for_tests) in dependencies(&file.text) {
            if let Some(text) = rule.objection(&name, for_tests) {
                findings.push(Finding::new(&file.path, line, text));
            }
        }
    }
    findings
}

impl CrateRule {
    /// Returns why this crate may not depend on `name`.
    fn objection(&self, name: &str, for_tests: bool) -> Option<String> {
        let folder = self.folder;
        let own = if name == "farside" { Some("farside") } else { name.strip_prefix("farside-") };
        if let Some(own) = own {
            let seen = self.sees.contains(&own) || (for_tests && self.tests_see.contains(&own));
            return (!seen).then(|| format!("`{folder}` must not see `{own}`"));
        }
        if for_tests {
            return None;
        }
        if !self.outside {
            return Some(format!("`{folder}` has no dependencies, so not on `{name}`"));
        }
        let homes = COMMAND_ONLY.iter().find(|(known, _)| *known == name);
        if let Some((_, homes)) = homes.filter(|(_, homes)| !homes.contains(&folder)) {
            return Some(format!("only `{}` knows `{name}`", homes.join("`, `")));
        }
        let facade_or_above = folder == "farside" || ABOVE_FACADE.contains(&folder);
        (!facade_or_above && FACADE_UP.contains(&name))
            .then(|| format!("nothing below the facade knows `{name}`"))
    }
}

/// Returns the line and name of each dependency of a manifest, and whether it is only for tests.
pub(super) fn dependencies(manifest: &str) -> Vec<(usize, String, bool)> {
    let mut found = Vec::new();
    let mut section = "";
    for (at, line) in manifest.lines().enumerate() {
        let line = line.trim();
        if line.starts_with('[') {
            section = line.trim_matches(['[', ']']);
            let table = section.rsplit_once("dependencies.");
            if let Some((before, name)) = table {
                found.push((at + 1, name.to_owned(), before.ends_with("dev-")));
            }
        } else if section.ends_with("dependencies")
            && let Some((key, _)) = line.split_once('=')
        {
            let name = key.trim().split('.').next().unwrap_or_default();
            found.push((at + 1, name.to_owned(), section.ends_with("dev-dependencies")));
        }
    }
    found.retain(|(_, name, _)| !name.starts_with('#'));
    found
}

/// Finds paths from one machine to another.
pub(crate) fn machines(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let Some(own) = machine_of(&file.path) else {
            continue;
        };
        for (name, line) in names_from_root(file) {
            if name != own && MACHINES.contains(&name.as_str()) {
                let text = format!("machine `{own}` sees machine `{name}`");
                findings.push(Finding::new(&file.path, line, text));
            }
        }
    }
    findings
}

fn machine_of(path: &str) -> Option<&'static str> {
    let inside = path.strip_prefix("crates/protocol/src/")?;
    let head = inside.split('/').next()?;
    let head = head.strip_suffix(".rs").unwrap_or(head);
    MACHINES.iter().copied().find(|machine| *machine == head)
}

/// Returns the names that follow `crate::` or `super::`, also in a brace list.
fn names_from_root(file: &Source) -> Vec<(String, usize)> {
    let tokens = &file.tokens;
    let mut names = Vec::new();
    for at in 0..tokens.len().saturating_sub(3) {
        let root = matches!(tokens[at].text.as_str(), "crate" | "super");
        if !root || tokens[at + 1].text != ":" || tokens[at + 2].text != ":" {
            continue;
        }
        let first = &tokens[at + 3];
        if first.text == "{" {
            names.extend(list_heads(&tokens[at + 4..]));
        } else {
            names.push((first.text.clone(), first.line));
        }
    }
    names
}

/// Returns the first name of each element of a brace list that has just been opened.
fn list_heads(tokens: &[Token]) -> Vec<(String, usize)> {
    let mut heads = Vec::new();
    let mut depth = 0;
    let mut expects_head = true;
    for token in tokens {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 0 => break,
            "}" => depth -= 1,
            "," if depth == 0 => expects_head = true,
            text if expects_head => {
                heads.push((text.to_owned(), token.line));
                expects_head = false;
            }
            _ => {}
        }
    }
    heads
}

/// Finds files of the facade that use both the machines and the fabric and are not listed.
pub(crate) fn seam(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let listed = BOTH_SIDES.iter().any(|(path, _)| file.path == *path);
        if !file.path.starts_with("crates/farside/src/") || listed {
            continue;
        }
        let machines = file.find(&["farside_protocol"], false);
        let fabric =
            [file.find(&["farside_fabric"], false), file.find(&["farside_fabric_shm"], false)]
                .concat();
        if let (Some(_), Some(line)) = (machines.first(), fabric.first()) {
            let text = "uses the machines and the fabric, but is not one of the listed files";
            findings.push(Finding::new(&file.path, *line, text));
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(findings: &[Finding]) -> Vec<&str> {
        findings.iter().map(|finding| finding.text.as_str()).collect()
    }

    #[test]
    fn crates_look_down_only() {
        let manifest = "[dependencies]\nfarside-base.workspace = true\nfarside-fabric = { path = \"x\" }\nserde = \"1\"\n\
                        [dev-dependencies]\nproptest = \"1\"\n";
        let tree = Tree::sample(&[("crates/protocol/Cargo.toml", manifest)]);
        let expected = [
            "`protocol` must not see `fabric`",
            "`protocol` has no dependencies, so not on `serde`",
        ];
        assert_eq!(texts(&crates(&tree)), expected);
    }

    #[test]
    fn tables_of_targets_and_single_crates_are_read() {
        let manifest = "[target.'cfg(loom)'.dependencies]\nclap = \"4\"\n[dependencies.tokio]\nversion = \"1\"\n";
        let tree = Tree::sample(&[("crates/fabric/Cargo.toml", manifest)]);
        let expected =
            ["only `cli`, `data` knows `clap`", "nothing below the facade knows `tokio`"];
        assert_eq!(texts(&crates(&tree)), expected);
    }

    #[test]
    fn a_crate_without_a_place_is_found() {
        let tree = Tree::sample(&[("crates/novel/Cargo.toml", "[dependencies]\n")]);
        assert_eq!(crates(&tree).len(), 1);
    }

    #[test]
    fn applications_see_the_facade_alone() {
        let tree = Tree::sample(&[(
            "crates/apps/Cargo.toml",
            "[dependencies]\nfarside-protocol = \"0\"\nfarside = \"0\"\n",
        )]);
        assert_eq!(texts(&crates(&tree)), ["`apps` must not see `protocol`"]);
    }

    #[test]
    fn machines_that_see_each_other_are_found_in_every_form() {
        for text in [
            "use crate::lock::Lock;",
            "use crate::{wire, lock::Lock};",
            "fn f(x: crate::lock::Lock) {}",
            "use super::lock;",
        ] {
            let tree = Tree::sample(&[("crates/protocol/src/coherence/home.rs", text)]);
            assert_eq!(
                texts(&machines(&tree)),
                ["machine `coherence` sees machine `lock`"],
                "{text}"
            );
        }
        let fine = "use crate::{wire::{lock, Frame}, coherence::Home};";
        let tree = Tree::sample(&[("crates/protocol/src/coherence/home.rs", fine)]);
        assert_eq!(machines(&tree), []);
    }

    #[test]
    fn the_seam_has_few_files() {
        let both = "use farside_protocol::wire; use farside_fabric::Port;";
        let tree = Tree::sample(&[
            ("crates/farside/src/engine/links/mod.rs", both),
            ("crates/farside/src/memory.rs", both),
            ("crates/farside/src/wait.rs", "use farside_fabric::Port;"),
        ]);
        let found = seam(&tree);
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].path, "crates/farside/src/memory.rs");
    }
}
