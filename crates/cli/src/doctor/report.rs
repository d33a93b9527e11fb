//! What was found, as text for people and as one value for programs.

use super::check::{Check, Group, Verdict};
use super::rdma::Device;
use serde::Serialize;

/// Columns of text before it is broken.
const COLUMNS: usize = 100;
/// Where the found begins: verdict, name, and blanks between them.
const INDENT: usize = 34;

/// All checks, and what follows for each fabric.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) checks: &'a [Check],
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) counts: Counts,
}

/// Whether a fabric will work here.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Fabric {
    pub(crate) name: &'static str,
    /// `ready` when nothing was found that keeps it from working, `fails`, or `absent` when the machine
    /// has no device for it.
    pub(crate) outlook: &'static str,
    /// The checks that fail.
    pub(crate) failing: Vec<String>,
}

/// How many checks came out how.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Serialize)]
pub(crate) struct Counts {
    pub(crate) ok: usize,
    pub(crate) notes: usize,
    pub(crate) warnings: usize,
    pub(crate) failing: usize,
    pub(crate) skipped: usize,
}

impl Counts {
    pub(crate) fn of(checks: &[Check]) -> Self {
        let mut counts = Self::default();
        for check in checks {
            match check.verdict {
                Verdict::Ok => counts.ok += 1,
                Verdict::Note => counts.notes += 1,
                Verdict::Warning => counts.warnings += 1,
                Verdict::Failing => counts.failing += 1,
                Verdict::Skipped => counts.skipped += 1,
            }
        }
        counts
    }
}

/// What follows for each fabric, from the groups of checks that it rests on.
pub(crate) fn fabrics(checks: &[Check], devices: &[Device]) -> Vec<Fabric> {
    let rests_on = [
        ("shared_memory", vec![Group::Machine, Group::SharedMemory]),
        ("rdma", vec![Group::Machine, Group::RdmaSoftware, Group::RdmaPort, Group::RdmaBus]),
        ("tcp", vec![Group::Machine, Group::Network]),
    ];
    let fabric = |(name, groups): (&'static str, Vec<Group>)| {
        let failing = checks
            .iter()
            .filter(|check| groups.contains(&check.group) && check.verdict == Verdict::Failing);
        let failing: Vec<_> = failing.map(label).collect();
        let outlook = match (name, failing.is_empty()) {
            ("rdma", _) if devices.is_empty() => "absent",
            (_, true) => "ready",
            (_, false) => "fails",
        };
        Fabric { name, outlook, failing }
    };
    rests_on.into_iter().map(fabric).collect()
}

/// The name of a check, with what it is about.
pub(crate) fn label(check: &Check) -> String {
    match &check.of {
        Some(of) => format!("{} ({of})", check.name),
        None => check.name.to_owned(),
    }
}

/// The lines of a report, grouped. `at_length` shows the details of what is fine too.
pub(crate) fn lines(checks: &[Check], at_length: bool) -> Vec<String> {
    let mut lines = Vec::new();
    for group in Group::ALL {
        let of_group: Vec<_> = checks.iter().filter(|check| check.group == group).collect();
        if of_group.is_empty() {
            continue;
        }
        if !lines.is_empty() {
            lines.push(String::new());
        }
        lines.push(group.title().to_owned());
        let (skipped, looked): (Vec<&Check>, Vec<&Check>) =
            of_group.into_iter().partition(|check| check.verdict == Verdict::Skipped);
        for check in looked {
            lines.extend(block(check, at_length));
        }
        lines.extend(skipped_lines(&skipped));
    }
    lines
}

/// One check: its verdict, name and finding, then whatever explains what is not fine.
fn block(check: &Check, at_length: bool) -> Vec<String> {
    let found = match &check.of {
        Some(of) => format!("{of}: {}", check.found),
        None => check.found.clone(),
    };
    let head = format!("  {:<8} {:<22} ", check.verdict.name(), check.name);
    let mut lines = broken(&head, &found);
    let grave = matches!(check.verdict, Verdict::Warning | Verdict::Failing);
    let pad = " ".repeat(INDENT);
    if grave || at_length {
        lines.extend(broken(&format!("{pad}why: "), check.why));
    }
    if check.verdict != Verdict::Ok || at_length {
        for detail in &check.details {
            lines.extend(broken(&pad, detail));
        }
    }
    // A line to type is never broken.
    lines.extend(check.fix.iter().map(|fix| format!("{pad}fix: {fix}")));
    lines
}

/// Skipped checks, those with the same reason and devices together.
fn skipped_lines(skipped: &[&Check]) -> Vec<String> {
    // Of each check and reason, the devices.
    let mut each: Vec<(&str, &str, Vec<&str>)> = Vec::new();
    for check in skipped {
        let same = |(name, found, _): &&mut (&str, &str, Vec<&str>)| {
            *name == check.name && *found == check.found
        };
        match each.iter_mut().find(same) {
            Some((.., devices)) => devices.extend(check.of.as_deref()),
            None => {
                each.push((check.name, &check.found, check.of.as_deref().into_iter().collect()))
            }
        }
    }
    let mut together: Vec<(&str, Vec<&str>, Vec<&str>)> = Vec::new();
    for (name, found, devices) in each {
        match together.iter_mut().find(|(other, of, _)| *other == found && *of == devices) {
            Some((.., names)) => names.push(name),
            None => together.push((found, devices, vec![name])),
        }
    }
    let mut lines = Vec::new();
    for (found, devices, names) in together {
        let of =
            if devices.is_empty() { String::new() } else { format!(" ({})", devices.join(", ")) };
        let head = format!("  {:<8} ", Verdict::Skipped.name());
        lines.extend(broken(&head, &format!("{}{of}: {found}", names.join(", "))));
    }
    lines
}

/// A head and a text behind it, broken between words, the rest below the text's beginning.
fn broken(head: &str, text: &str) -> Vec<String> {
    let indent = head.chars().count();
    let mut lines = Vec::new();
    let mut line = head.to_owned();
    let mut empty = true;
    for word in text.split(' ') {
        if !empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            lines.push(std::mem::replace(&mut line, " ".repeat(indent)));
            empty = true;
        }
        if !empty {
            line.push(' ');
        }
        line.push_str(word);
        empty = false;
    }
    lines.push(line);
    lines
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(name: &'static str, verdict: Verdict) -> Check {
        Check {
            name,
            group: Group::Machine,
            of: None,
            verdict,
            found: "as found".to_owned(),
            why: "it matters",
            details: vec!["more of it".to_owned()],
            fix: Some("mend it".to_owned()),
        }
    }

    #[test]
    fn only_what_is_not_fine_is_explained() {
        let fine = check("a", Verdict::Ok);
        let bad = check("b", Verdict::Failing);
        assert_eq!(
            lines(&[Check { fix: None, ..fine.clone() }], false),
            [
                "This machine and what this process may do",
                "  ok       a                      as found"
            ]
        );
        let text = lines(&[bad], false).join("\n");
        for part in ["FAILING  b", "why: it matters", "more of it", "fix: mend it"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(lines(&[fine], true).join("\n").contains("why: it matters"));
    }

    #[test]
    fn skipped_checks_share_a_line_for_each_reason() {
        let skipped: Vec<_> = ["a", "b"].map(|name| check(name, Verdict::Skipped)).to_vec();
        assert_eq!(lines(&skipped, false)[1..], ["  skipped  a, b: as found"]);
        let of = |name, device: &str| Check {
            of: Some(device.to_owned()),
            ..check(name, Verdict::Skipped)
        };
        let skipped = [of("a", "x"), of("a", "y"), of("b", "x"), of("b", "y"), of("c", "x")];
        let expected = ["  skipped  a, b (x, y): as found", "  skipped  c (x): as found"];
        assert_eq!(lines(&skipped, false)[1..], expected);
    }

    #[test]
    fn long_texts_are_broken_between_words() {
        let text = ["word"; 60].join(" ");
        let lines = broken("  head ", &text);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= COLUMNS));
        assert!(lines[1..].iter().all(|line| line.starts_with("       word")));
        assert_eq!(broken("h ", &"x".repeat(300)).len(), 1, "words stay whole");
    }
}
