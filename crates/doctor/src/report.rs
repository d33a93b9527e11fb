//! Formats check results as text, and as one value for `--json`.

use super::check::{Check, Group, Verdict};
use super::rdma::Device;
use serde::Serialize;

/// Line width at which text wraps.
const COLUMNS: usize = 100;
/// Column at which `found` begins, after the verdict and the name.
const INDENT: usize = 34;

/// All checks, and the outlook for each fabric.
#[derive(Serialize)]
pub(crate) struct Report<'a> {
    pub(crate) checks: &'a [Check],
    pub(crate) fabrics: Vec<Fabric>,
    pub(crate) counts: Counts,
}

/// Whether a fabric will work on this machine.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Fabric {
    pub(crate) name: &'static str,
    /// `ready` if no check of it is failing, `fails`, or `absent` if the machine has no device for it.
    pub(crate) outlook: &'static str,
    /// The failing checks.
    pub(crate) failing: Vec<String>,
}

/// Number of checks with each verdict.
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

/// Returns the outlook for each fabric, from the groups of checks that it requires.
pub(crate) fn fabrics(checks: &[Check], devices: &[Device]) -> Vec<Fabric> {
    let required = [
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
    required.into_iter().map(fabric).collect()
}

/// Returns the name of a check, with its device or port.
pub(crate) fn label(check: &Check) -> String {
    match &check.of {
        Some(of) => format!("{} ({of})", check.name),
        None => check.name.to_owned(),
    }
}

/// Returns the lines of a report, by group. `verbose` adds reason and details to every check.
pub(crate) fn lines(checks: &[Check], verbose: bool) -> Vec<String> {
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
        let (skipped, inspected): (Vec<&Check>, Vec<&Check>) =
            of_group.into_iter().partition(|check| check.verdict == Verdict::Skipped);
        for check in inspected {
            lines.extend(block(check, verbose));
        }
        lines.extend(skipped_lines(&skipped));
    }
    lines
}

/// Returns the lines of one check: verdict, name and finding, then reason, details and fix of a check that is not `ok`.
fn block(check: &Check, verbose: bool) -> Vec<String> {
    let found = match &check.of {
        Some(of) => format!("{of}: {}", check.found),
        None => check.found.clone(),
    };
    let head = format!("  {:<8} {:<22} ", check.verdict.name(), check.name);
    let mut lines = wrapped(&head, &found);
    let grave = matches!(check.verdict, Verdict::Warning | Verdict::Failing);
    let pad = " ".repeat(INDENT);
    if grave || verbose {
        lines.extend(wrapped(&format!("{pad}why: "), check.why));
    }
    if check.verdict != Verdict::Ok || verbose {
        for detail in &check.details {
            lines.extend(wrapped(&pad, detail));
        }
    }
    // A command is never wrapped.
    lines.extend(check.fix.iter().map(|fix| format!("{pad}fix: {fix}")));
    lines
}

/// Returns the lines of skipped checks, merged by equal reason and devices.
fn skipped_lines(skipped: &[&Check]) -> Vec<String> {
    // The devices of each pair of check and reason.
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
    let mut merged: Vec<(&str, Vec<&str>, Vec<&str>)> = Vec::new();
    for (name, found, devices) in each {
        match merged.iter_mut().find(|(other, of, _)| *other == found && *of == devices) {
            Some((.., names)) => names.push(name),
            None => merged.push((found, devices, vec![name])),
        }
    }
    let mut lines = Vec::new();
    for (found, devices, names) in merged {
        let of =
            if devices.is_empty() { String::new() } else { format!(" ({})", devices.join(", ")) };
        let head = format!("  {:<8} ", Verdict::Skipped.name());
        lines.extend(wrapped(&head, &format!("{}{of}: {found}", names.join(", "))));
    }
    lines
}

/// Wraps `text` after `head` between words; continuation lines are indented by the width of `head`.
fn wrapped(head: &str, text: &str) -> Vec<String> {
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
            fix: Some("fix it".to_owned()),
        }
    }

    #[test]
    fn only_failing_checks_are_explained() {
        let fine = check("a", Verdict::Ok);
        let bad = check("b", Verdict::Failing);
        assert_eq!(
            lines(&[Check { fix: None, ..fine.clone() }], false),
            [
                "Machine and permissions of this process",
                "  ok       a                      as found"
            ]
        );
        let text = lines(&[bad], false).join("\n");
        for part in ["FAILING  b", "why: it matters", "more of it", "fix: fix it"] {
            assert!(text.contains(part), "{text}");
        }
        assert!(lines(&[fine], true).join("\n").contains("why: it matters"));
    }

    #[test]
    fn skipped_checks_merge_by_reason() {
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
    fn long_text_wraps_between_words() {
        let text = ["word"; 60].join(" ");
        let lines = wrapped("  head ", &text);
        assert!(lines.len() > 2 && lines.iter().all(|line| line.chars().count() <= COLUMNS));
        assert!(lines[1..].iter().all(|line| line.starts_with("       word")));
        assert_eq!(wrapped("h ", &"x".repeat(300)).len(), 1, "a word is never split");
    }
}
