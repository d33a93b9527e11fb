//! Source files that no module declares and that are never compiled.

use super::tree::{Finding, Tree};

/// Finds files under a crate's `src` that no parent declares.
pub(crate) fn files(tree: &Tree) -> Vec<Finding> {
    let mut findings = Vec::new();
    for file in tree.rust() {
        let Some((crate_path, inside)) = file.path.split_once("/src/") else {
            continue;
        };
        let is_root = matches!(inside, "lib.rs" | "main.rs") || inside.starts_with("bin/");
        if is_root {
            continue;
        }
        let (parents, name) = parents(crate_path, inside);
        let declared = |path: &String| {
            tree.file(path).is_some_and(|parent| !parent.find(&["mod", &name], true).is_empty())
        };
        if !parents.iter().any(declared) && !named_by_path(tree, &file.path) {
            findings.push(Finding::new(&file.path, 1, "no module declares this file"));
        }
    }
    findings
}

/// Returns whether a file of the same folder declares this one with `#[path = "..."]`.
fn named_by_path(tree: &Tree, path: &str) -> bool {
    let Some((folder, name)) = path.rsplit_once('/') else {
        return false;
    };
    let quoted = format!("\"{name}\"");
    let siblings =
        tree.rust().filter(|file| file.path.rsplit_once('/').is_some_and(|(of, _)| of == folder));
    siblings.into_iter().any(|file| !file.find(&["path", "=", &quoted], true).is_empty())
}

/// Returns the files that may declare a module, and its name.
fn parents(crate_path: &str, inside: &str) -> (Vec<String>, String) {
    let module = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    match module.rsplit_once('/') {
        Some((folder, name)) => {
            let stem = format!("{crate_path}/src/{folder}");
            (vec![format!("{stem}.rs"), format!("{stem}/mod.rs")], name.to_owned())
        }
        None => {
            let stem = format!("{crate_path}/src");
            (vec![format!("{stem}/lib.rs"), format!("{stem}/main.rs")], module.to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undeclared_files_are_found() {
        let tree = Tree::sample(&[
            (
                "crates/a/src/lib.rs",
                "mod b; mod c; #[cfg(test)] #[path = \"b_tests.rs\"] mod tests;",
            ),
            ("crates/a/src/b_tests.rs", ""),
            ("crates/a/src/b.rs", "mod inner;"),
            ("crates/a/src/b/inner.rs", ""),
            ("crates/a/src/c/mod.rs", "mod deep;"),
            ("crates/a/src/c/deep.rs", ""),
            ("crates/a/src/c/lost.rs", ""),
            ("crates/a/src/gone.rs", ""),
        ]);
        let paths: Vec<_> = files(&tree).into_iter().map(|finding| finding.path).collect();
        assert_eq!(paths, ["crates/a/src/c/lost.rs", "crates/a/src/gone.rs"]);
    }
}
