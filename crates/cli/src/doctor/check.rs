//! What a check is, and what came out of one.

use super::subject::Subject;
use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Ok,
    /// Could not be checked, or does not apply; what was found is the reason.
    Skipped,
    /// Worth knowing; nothing has to be done.
    Note,
    /// It works, but slower, for fewer nodes or in fewer places than it could.
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

/// Checks that belong together.
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

    /// As `--only` and `--json` call it.
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

    /// As people read it.
    pub(crate) const fn title(self) -> &'static str {
        match self {
            Self::Machine => "This machine and what this process may do",
            Self::SharedMemory => "Shared memory",
            Self::RdmaSoftware => "RDMA: devices, software and rights",
            Self::RdmaPort => "RDMA: ports",
            Self::RdmaBus => "RDMA: bus and memory",
            Self::Network => "Network",
        }
    }
}

/// One rule: what is looked at and why.
pub(crate) struct Rule {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// Why it matters, in one line.
    pub(crate) why: &'static str,
    /// One finding for each thing that was looked at; at least one.
    pub(crate) look: fn(&Subject<'_>) -> Vec<Finding>,
}

/// What one look found.
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

    /// A warning, with the line that mends it.
    pub(crate) fn warning(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Warning, found).fix(fix)
    }

    /// A failure, with the line that mends it.
    pub(crate) fn failing(found: impl Into<String>, fix: impl Into<String>) -> Self {
        Self::new(Verdict::Failing, found).fix(fix)
    }

    /// The device or port that it is about.
    pub(crate) fn of(self, what: impl Into<String>) -> Self {
        Self { of: Some(what.into()), ..self }
    }

    pub(crate) fn fix(self, line: impl Into<String>) -> Self {
        Self { fix: Some(line.into()), ..self }
    }

    /// One more line about what was found.
    pub(crate) fn detail(mut self, line: impl Into<String>) -> Self {
        self.details.push(line.into());
        self
    }

    pub(crate) fn details(mut self, lines: impl IntoIterator<Item = String>) -> Self {
        self.details.extend(lines);
        self
    }

    /// The same as a warning at most.
    pub(crate) fn at_most_warning(self) -> Self {
        Self { verdict: self.verdict.min(Verdict::Warning), ..self }
    }

    pub(crate) fn one(self) -> Vec<Self> {
        vec![self]
    }
}

/// A rule with one of its findings: what is printed.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) group: Group,
    /// The device or port, of checks that are made for each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) of: Option<String>,
    pub(crate) verdict: Verdict,
    /// What was found; of skipped checks, why they were.
    pub(crate) found: String,
    pub(crate) why: &'static str,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(crate) details: Vec<String>,
    /// The line to type or the setting to change.
    pub(crate) fix: Option<String>,
}

impl Rule {
    /// Looks.
    pub(crate) fn checks(&self, subject: &Subject<'_>) -> Vec<Check> {
        let findings = (self.look)(subject).into_iter();
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

/// `1 port`, `2 ports`.
pub(crate) fn some(count: usize, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}
