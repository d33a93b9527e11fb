//! What the shared-memory fabric tried for itself.

use super::check::{Finding, Group, Rule};
use super::subject::Subject;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "memfd",
        group: Group::SharedMemory,
        why: "regions are memory files without names, whatever the size of /dev/shm",
        look: |subject| tried(subject, "memfd"),
    },
    Rule {
        name: "huge_pages",
        group: Group::SharedMemory,
        why: "regions in pages of 2 MiB spare most misses of the translation cache",
        look: |subject| tried(subject, "huge_pages"),
    },
    Rule {
        name: "futex",
        group: Group::SharedMemory,
        why: "who waits for a peer sleeps on a word that they share",
        look: |subject| tried(subject, "futex"),
    },
    Rule {
        name: "name_folder",
        group: Group::SharedMemory,
        why: "nodes find each other and hand over memory by sockets in a folder of their user alone",
        look: |subject| tried(subject, "name_folder"),
    },
    Rule {
        name: "membarrier",
        group: Group::SharedMemory,
        why: "without it each request pays for a fence, for the sake of sleepers",
        look: |subject| tried(subject, "membarrier"),
    },
];

fn tried(subject: &Subject<'_>, name: &str) -> Vec<Finding> {
    let Some(tried) = subject.tried.iter().find(|tried| tried.name == name) else {
        return Finding::skipped("not tried").one();
    };
    let finding = tried.finding.clone();
    let finding = match (tried.works, tried.needed) {
        (true, _) => Finding::ok(finding),
        (false, true) => Finding::failing(finding, tried.remedy.clone()),
        (false, false) => Finding::warning(finding, tried.remedy.clone()),
    };
    finding.one()
}
