//! Rules, their findings, and the checks that are printed.

use super::subject::Subject;
use serde::Serialize;

/// Result of a check, in ascending severity.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Ok,
    /// Not checked, or not applicable; `found` is the reason.
    Skipped,
    /// Informational; no action needed.
    Note,
    /// It works, but slower, for fewer nodes or in fewer environments than possible.
    Warning,
    /// It will not work.
    Failing,
}

impl Verdict {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Skipped => "skipped",
            Self::Note => "note",
            Self::Warning => "warning",
            Self::Failing => "FAILING",
        }
    }
}

/// Groups of checks.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Group {
    Machine,
    SharedMemory,
    RdmaSoftware,
    RdmaPort,
    RdmaBus,
    Network,
}

impl Group {
    pub(crate) const ALL: [Self; 6] = [
        Self::Machine,
        Self::SharedMemory,
        Self::RdmaSoftware,
        Self::RdmaPort,
        Self::RdmaBus,
        Self::Network,
    ];

    /// Returns the name used by `--only` and `--json`.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Machine => "machine",
            Self::SharedMemory => "shared_memory",
            Self::RdmaSoftware => "rdma_software",
            Self::RdmaPort => "rdma_port",
            Self::RdmaBus => "rdma_bus",
            Self::Network => "network",
        }
    }

    /// Returns the heading of the printed report.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Machine => "Machine and permissions of this process",
            Self::SharedMemory => "Shared memory",
            Self::RdmaSoftware => "RDMA: devices, software and permissions",
            Self::RdmaPort => "RDMA: ports",
            Self::RdmaBus => "RDMA: bus and memory",
            Self::Network => "Network",
        }
    }
}

/// A rule: a function that inspects the subject, and why it matters.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// Why the rule matters, in one line.
    pub(crate) why: &'static str,
    /// Returns one finding for each device, port or setting inspected; at least one.
    pub(crate) inspect: fn(&Subject<'_>) -> Vec<Finding>,
}

/// Result of inspecting one device, port or setting.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Finding {
    of: Option<String>,
    verdict: Verdict,
    found: String,
    details: Vec<String>,
    fix: Option<String>,
}

impl Finding {
    fn new(verdict: Verdict, found: impl Into<String>) -> Self {
        Self { of: None, verdict, found: found.into(), details: Vec::new(), fix: None }
    }

    pub(crate) fn ok(found: impl Into<String>) -> Self {
        Self::new(Verdict::Ok, found)
    }

    pub(crate) fn note(found: impl Into<String>) -> Self {
        Self::new(Verdict::Note, found)
    }

    pub(crate) fn skipped(reason: impl Into<String>) -> Self {
        Self::new(Verdict::Skipped, reason)
    }

    /// Returns a warning, with the command that fixes it.
    pub(crate) fn warning(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, found).fix(fix)
    }

    /// Returns a failure, with the command that fixes it.
    pub(crate) fn failing(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Failing, found).fix(fix)
    }

    /// Sets the device or port that the finding is about.
    pub(crate) fn of(self, what: impl Into<String>) -> Self {
        Self { of: Some(what.into()), ..self }
    }

    pub(crate) fn fix(self, line: impl Into<String>) -> Self {
        Self { fix: Some(line.into()), ..self }
    }

    /// Adds a line of detail.
    pub(crate) fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    pub(crate) fn details(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.details.extend(lines);
        self
    }

    /// Lowers a failure to a warning.
    pub(crate) fn at_most_warning(self) -> Self {
        Self { verdict: self.verdict.min(Verdict::Warning), ..self }
    }

    pub(crate) fn one(self) -> Vec<Self> {
        vec![self]
    }
}

/// A rule together with one of its findings, as printed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// The device or port, for checks made per device or port.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    pub(crate) verdict: Verdict,
    /// What was found; for a skipped check, the reason.
    pub(crate) found: String,
    pub(crate) why: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) details: Vec<String>,
    /// The command to run or the setting to change.
    pub(crate) fix: Option<String>,
}

impl Rule {
    /// Runs the rule.
    pub(crate) fn checks(&self, subject: &Subject<'_>) -> Vec<Check> {
        let findings = (self.inspect)(subject).into_iter();
        let check = |finding: Finding| Check {
            name: self.name,
            group: self.group,
            of: finding.of,
            verdict: finding.verdict,
            found: finding.found,
            why: self.why,
            details: finding.details,
            fix: finding.fix,
        };
        findings.map(check).collect()
    }
}

/// Formats a count with its noun: `1 port`, `2 ports`.
pub(crate) fn some(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
