//! Circles of modules: files of one crate that depend on each other.
//!
//! A file depends on each file of its crate in which a name of its paths is defined. Names that a module only hands on
//! by `use` are followed to their definition, so that a `mod.rs` with re-exports alone depends on nothing. A circle is a
//! strongly connected component of at least two files. Tests do not count.

use super::tree::{Finding, Source, Token, Tree};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The circles that remain: the crate's folder, and the number of files of each circle, largest first. Rows may only
/// shrink: a lower number belongs here as soon as it is reached.
const REMAINING: &[(&str, &[usize])] = &[
    ("crates/fabric-shm", &[4, 4]),
    ("crates/farside", &[12, 6, 5, 3, 3, 2]),
    ("crates/sim", &[7, 4, 3, 2, 2]),
];

/// Most re-exports from a name to its definition.
const REEXPORTS_MAX: usize = 16;

/// Finds crates whose circles differ from [`REMAINING`].
pub(crate) fn check(tree: &Tree) -> Vec<Finding> {
    compare(tree, REMAINING)
}

fn compare(tree: &Tree, remaining: &[(&str, &[usize])]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let folders: BTreeSet<&str> = tree.rust().filter_map(|file| crate_of(&file.path)).collect();
    for folder in folders {
        let modules = Modules::of(tree, folder);
        let circles = modules.circles();
        let sizes: Vec<usize> = circles.iter().map(BTreeSet::len).collect();
        let listed =
            remaining.iter().find(|(name, _)| *name == folder).map_or(&[][..], |row| row.1);
        if sizes == listed {
            continue;
        }
        let grows =
            sizes.len() > listed.len() || sizes.iter().zip(listed).any(|(new, old)| new > old);
        let advice = if grows { "move what both need into a file below" } else { "lower its row" };
        for circle in &circles {
            let names: Vec<&str> = modules.way(circle).iter().map(|at| modules.name(*at)).collect();
            let text = format!(
                "circle of {} files, such as {}: {advice} (listed {listed:?}, found {sizes:?})",
                circle.len(),
                names.join(" -> ")
            );
            let first = circle.first().map_or(folder, |at| &modules.files[*at].path);
            findings.push(Finding::new(first, 1, text));
        }
        if circles.is_empty() {
            findings.push(Finding::new(folder, 1, "no circle is left: remove its row"));
        }
    }
    findings
}

/// Returns the folder of the crate that a source file belongs to.
fn crate_of(path: &str) -> Option<&str> {
    let (folder, inside) = path.split_once("/src/")?;
    (!inside.starts_with("bin/") && !folder.contains("/tests/")).then_some(folder)
}

/// The modules of a crate, each a file.
struct Modules<'a> {
    folder: &'a str,
    files: Vec<&'a Source>,
    /// The path of each file's module.
    paths: Vec<Vec<String>>,
    by_path: BTreeMap<Vec<String>, usize>,
    /// For each file, the names that it uses, with their paths.
    uses: Vec<BTreeMap<String, Vec<String>>>,
    /// For each file, the files that it depends on.
    sees: Vec<BTreeSet<usize>>,
}

/// A path of a file, from the root of the crate.
struct PathUse {
    path: Vec<String>,
    /// The name that a `use` gives it.
    name: Option<String>,
    /// Whether a `pub use` hands it on.
    handed_on: bool,
}

impl<'a> Modules<'a> {
    fn of(tree: &'a Tree, folder: &'a str) -> Self {
        let in_crate = tree.rust().filter(|file| crate_of(&file.path) == Some(folder));
        let has_library = tree.file(&format!("{folder}/src/lib.rs")).is_some();
        let command = format!("{folder}/src/main.rs");
        let files: Vec<_> = in_crate.filter(|file| !has_library || file.path != command).collect();
        let paths: Vec<_> = files.iter().map(|file| module_path(&file.path, folder)).collect();
        let by_path = paths.iter().cloned().zip(0..).collect();
        let mut modules =
            Self { folder, files, paths, by_path, uses: Vec::new(), sees: Vec::new() };
        let all: Vec<_> = (0..modules.files.len()).map(|at| modules.read(at)).collect();
        let names = |paths: &Vec<PathUse>| {
            let named = paths.iter().filter_map(|one| Some((one.name.clone()?, one.path.clone())));
            named.collect()
        };
        modules.uses = all.iter().map(names).collect();
        let sees = |(at, paths): (usize, &Vec<PathUse>)| {
            let own = paths.iter().filter(|one| !one.handed_on);
            own.filter_map(|one| modules.definer(&one.path)).filter(|to| *to != at).collect()
        };
        modules.sees = all.iter().enumerate().map(sees).collect();
        modules
    }

    fn name(&self, at: usize) -> &str {
        let path = &self.files[at].path;
        path.strip_prefix(self.folder).unwrap_or(path).trim_start_matches("/src/")
    }

    /// Returns the paths of a file that begin at the crate, at its module, or at a name that a `use` of it gives.
    fn read(&self, at: usize) -> Vec<PathUse> {
        let tokens: Vec<&Token> = self.files[at].tokens.iter().filter(|one| !one.in_test).collect();
        let mut found: Vec<PathUse> = Vec::new();
        let mut inline = InlineModules::new(self.paths[at].clone());
        for index in 0..tokens.len() {
            inline.follow(&tokens[index..]);
            let after_path = index > 0 && matches!(tokens[index - 1].text.as_str(), ":" | ".");
            let names_more = is_separator(&tokens[index + 1..]);
            if after_path || !(names_more || is_use(&tokens[..index])) {
                continue;
            }
            let module = inline.module();
            let head = tokens[index].text.as_str();
            let base = match head {
                "crate" => Some(Vec::new()),
                "self" => Some(module.to_vec()),
                "super" => Some(module.split_last().map_or(Vec::new(), |(_, rest)| rest.to_vec())),
                _ => self.local(module, head, &found),
            };
            let Some(base) = base else { continue };
            let declares = use_kind(&tokens[..index]);
            let mut tree = Vec::new();
            expand(&tokens[index + 1..], base, head, declares.is_some(), &mut tree);
            let handed_on = declares == Some(true);
            found.extend(tree.into_iter().map(|(path, name)| PathUse {
                path,
                name: name.filter(|_| declares.is_some()),
                handed_on,
            }));
        }
        found
    }

    /// Returns the path of a child module, or of a name that an earlier `use` gives.
    fn local(&self, module: &[String], name: &str, found: &[PathUse]) -> Option<Vec<String>> {
        let child = [module, &[name.to_owned()]].concat();
        if self.by_path.contains_key(&child) {
            return Some(child);
        }
        let used = found.iter().find(|one| one.name.as_deref() == Some(name));
        used.map(|one| one.path.clone())
    }

    /// Returns the file that defines the first name of a path that is no module.
    fn definer(&self, path: &[String]) -> Option<usize> {
        let mut path = path.to_vec();
        for _ in 0..REEXPORTS_MAX {
            let depth =
                (0..=path.len()).rev().find(|to| self.by_path.contains_key(&path[..*to]))?;
            let at = self.by_path[&path[..depth]];
            let Some(name) = path.get(depth) else {
                return Some(at);
            };
            let Some(to) = self.uses.get(at).and_then(|uses| uses.get(name)) else {
                return (!self.declares(at, name)).then_some(at);
            };
            let next = [&to[..], &path[depth + 1..]].concat();
            if next == path {
                return Some(at);
            }
            path = next;
        }
        None
    }

    /// Returns whether a file declares a module of this name. One that is not at its usual path has its file elsewhere.
    fn declares(&self, at: usize, name: &str) -> bool {
        let tokens = &self.files[at].tokens;
        tokens.windows(3).any(|at| at[0].text == "mod" && at[1].text == name && at[2].text == ";")
    }

    /// Returns the circles, largest first.
    fn circles(&self) -> Vec<BTreeSet<usize>> {
        let reaches: Vec<_> = (0..self.sees.len()).map(|from| self.reachable(from)).collect();
        let mut circles: Vec<BTreeSet<usize>> = Vec::new();
        for (at, to) in reaches.iter().enumerate() {
            let known = circles.iter().any(|circle| circle.contains(&at));
            if to.contains(&at) && !known {
                circles
                    .push(to.iter().copied().filter(|one| reaches[*one].contains(&at)).collect());
            }
        }
        circles.sort_by_key(|circle| std::cmp::Reverse(circle.len()));
        circles
    }

    fn reachable(&self, from: usize) -> BTreeSet<usize> {
        let mut reached = BTreeSet::new();
        let mut waiting = vec![from];
        while let Some(at) = waiting.pop() {
            waiting.extend(self.sees[at].iter().filter(|to| reached.insert(**to)));
        }
        reached
    }

    /// Returns the shortest closed path from the first file of a circle.
    fn way(&self, circle: &BTreeSet<usize>) -> Vec<usize> {
        let Some(start) = circle.first().copied() else { return Vec::new() };
        let mut waiting = VecDeque::from([vec![start]]);
        let mut seen = BTreeSet::new();
        while let Some(way) = waiting.pop_front() {
            for to in &self.sees[way[way.len() - 1]] {
                let longer = [&way[..], &[*to]].concat();
                if *to == start {
                    return longer;
                }
                if circle.contains(to) && seen.insert(*to) {
                    waiting.push_back(longer);
                }
            }
        }
        Vec::new()
    }
}

/// Returns the path of a file's module.
fn module_path(path: &str, folder: &str) -> Vec<String> {
    let inside = path.strip_prefix(folder).unwrap_or(path).trim_start_matches("/src/");
    let module = inside.trim_end_matches(".rs").trim_end_matches("/mod");
    match module {
        "lib" | "main" => Vec::new(),
        module => module.split('/').map(str::to_owned).collect(),
    }
}

/// The module of each token of a file, with the modules that the file contains in braces.
struct InlineModules {
    path: Vec<String>,
    depth: usize,
    /// Depths of braces at which a module began.
    began: Vec<usize>,
    begins: bool,
}

impl InlineModules {
    fn new(path: Vec<String>) -> Self {
        Self { path, depth: 0, began: Vec::new(), begins: false }
    }

    fn module(&self) -> &[String] {
        &self.path
    }

    /// Follows the first of these tokens.
    fn follow(&mut self, tokens: &[&Token]) {
        match tokens {
            [word, name, brace, ..] if word.text == "mod" && brace.text == "{" => {
                self.path.push(name.text.clone());
                self.begins = true;
            }
            [open, ..] if open.text == "{" => {
                if std::mem::take(&mut self.begins) {
                    self.began.push(self.depth);
                }
                self.depth += 1;
            }
            [close, ..] if close.text == "}" => {
                self.depth = self.depth.saturating_sub(1);
                if self.began.last() == Some(&self.depth) {
                    self.began.pop();
                    self.path.pop();
                }
            }
            _ => {}
        }
    }
}

fn is_separator(tokens: &[&Token]) -> bool {
    matches!(tokens, [one, two, ..] if one.text == ":" && two.text == ":")
}

fn is_use(before: &[&Token]) -> bool {
    before.last().is_some_and(|token| token.text == "use")
}

/// Returns whether a path begins a `use`, and whether that is public.
fn use_kind(before: &[&Token]) -> Option<bool> {
    let public = |token: &&Token| matches!(token.text.as_str(), "pub" | ")");
    is_use(before).then(|| before[..before.len() - 1].last().is_some_and(public))
}

/// Adds the paths of a tree of names after `base`, each with the name that it gives.
fn expand(
    tokens: &[&Token],
    mut base: Vec<String>,
    head: &str,
    in_use: bool,
    out: &mut Vec<(Vec<String>, Option<String>)>,
) {
    let mut name = head.to_owned();
    let mut at = 0;
    while is_separator(&tokens[at..]) {
        let Some(next) = tokens.get(at + 2) else { break };
        match next.text.as_str() {
            "{" if in_use => {
                for element in elements(&tokens[at + 3..]) {
                    let Some((first, rest)) = element.split_first() else { continue };
                    let step = match first.text.as_str() {
                        "self" => base.clone(),
                        word => [&base[..], &[word.to_owned()]].concat(),
                    };
                    let word = if first.text == "self" { name.as_str() } else { &first.text };
                    expand(rest, step, word, true, out);
                }
                return;
            }
            "*" => break,
            "super" => {
                base.pop();
            }
            word if word.starts_with(|c: char| c.is_alphabetic() || c == '_') => {
                base.push(word.to_owned());
                word.clone_into(&mut name);
            }
            _ => break,
        }
        at += 3;
    }
    // A macro is named from the root of the crate, wherever it is defined.
    if base.len() == 1 && tokens.get(at).is_some_and(|token| token.text == "!") {
        return;
    }
    if let [word, alias, ..] = &tokens[at..]
        && word.text == "as"
    {
        name.clone_from(&alias.text);
    }
    out.push((base, Some(name)));
}

/// Returns the elements of a brace list that has just been opened.
fn elements<'a, 'b>(tokens: &'b [&'a Token]) -> Vec<&'b [&'a Token]> {
    let (mut all, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, token) in tokens.iter().enumerate() {
        match token.text.as_str() {
            "{" => depth += 1,
            "}" if depth == 0 => {
                all.push(&tokens[start..at]);
                break;
            }
            "}" => depth -= 1,
            "," if depth == 0 => {
                all.push(&tokens[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn circles(files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree::sample(files);
        let modules = Modules::of(&tree, "crates/a");
        let name = |at: &usize| modules.name(*at).to_owned();
        let joined =
            |circle: BTreeSet<usize>| circle.iter().map(name).collect::<Vec<_>>().join(" ");
        modules.circles().into_iter().map(joined).collect()
    }

    #[test]
    fn planted_circles_are_found_in_every_form() {
        for (first, second) in [
            ("use crate::c::C;", "use crate::b::B;"),
            ("use super::c::C;", "use super::{b::{B, Other}};"),
            ("fn f() { crate::c::run(); }", "use crate::{b as other}; fn g() { other::run(); }"),
            ("use crate::c; fn f() { c::run(); }", "mod inner { use super::super::b::B; }"),
        ] {
            let files = [
                ("crates/a/src/lib.rs", "mod b; mod c;"),
                ("crates/a/src/b.rs", first),
                ("crates/a/src/c.rs", second),
            ];
            assert_eq!(circles(&files), ["b.rs c.rs"], "{first} {second}");
        }
    }

    #[test]
    fn child_and_parent_can_form_a_circle() {
        let files = [
            ("crates/a/src/lib.rs", "mod b;"),
            ("crates/a/src/b/mod.rs", "mod c; struct B; fn f() { c::run(); }"),
            ("crates/a/src/b/c.rs", "use super::B;"),
        ];
        assert_eq!(circles(&files), ["b/mod.rs b/c.rs"]);
    }

    #[test]
    fn names_are_followed_through_reexports() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod e; pub use b::C as Name;"),
            ("crates/a/src/b/mod.rs", "mod c; mod d; pub(crate) use c::C; pub use self::d::D;"),
            ("crates/a/src/b/c.rs", "pub struct C;"),
            ("crates/a/src/b/d.rs", "use super::C; use crate::Name; pub struct D;"),
            ("crates/a/src/e.rs", "use crate::b::{self, D}; fn f() { b::D::new(); }"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }

    #[test]
    fn tests_and_macros_are_no_dependencies() {
        let files = [
            ("crates/a/src/lib.rs", "mod b; mod c; fn f() { b::run(); }"),
            ("crates/a/src/b.rs", "use crate::c::C; fn f() { crate::assert_good!(); }"),
            ("crates/a/src/c.rs", "#[cfg(test)] mod tests { use crate::b::B; }"),
        ];
        assert_eq!(circles(&files), [""; 0]);
    }

    #[test]
    fn modules_at_other_paths_make_no_circle() {
        let tree = Tree::sample(&[
            ("crates/a/src/lib.rs", "mod b; #[path = \"../c.rs\"] mod c; fn f() { b::run(); }"),
            ("crates/a/src/b.rs", "use crate::c::C;"),
        ]);
        assert_eq!(compare(&tree, &[]), []);
    }

    #[test]
    fn listed_circles_may_only_shrink() {
        let tree = Tree::sample(&[
            ("crates/a/src/lib.rs", "mod b; mod c;"),
            ("crates/a/src/b.rs", "use crate::c::C;"),
            ("crates/a/src/c.rs", "use crate::b::B;"),
        ]);
        assert_eq!(compare(&tree, &[("crates/a", &[2])]), []);
        let found = |row: &[usize]| compare(&tree, &[("crates/a", row)])[0].text.clone();
        assert!(found(&[]).contains("b.rs -> c.rs -> b.rs: move"), "{}", found(&[]));
        assert!(found(&[3]).contains("lower its row"), "{}", found(&[3]));
    }
}
