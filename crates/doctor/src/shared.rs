//! Checks from the probes of the shared-memory fabric.

use super::check::{Finding, Group, Rule};
use super::subject::Subject;

pub(crate) const RULES: &[Rule] = &[
    Rule {
        name: "memfd",
        group: Group::SharedMemory,
        why: "regions are anonymous memory files, independent of the size of /dev/shm",
        inspect: |subject| probed(subject, "memfd"),
    },
    Rule {
        name: "huge_pages",
        group: Group::SharedMemory,
        why: "regions in pages of 2 MiB avoid most TLB misses",
        inspect: |subject| probed(subject, "huge_pages"),
    },
    Rule {
        name: "futex",
        group: Group::SharedMemory,
        why: "a thread that waits for a peer sleeps on a word in shared memory",
        inspect: |subject| probed(subject, "futex"),
    },
    Rule {
        name: "name_folder",
        group: Group::SharedMemory,
        why: "nodes find each other and pass memory descriptors by sockets in a folder private to their user",
        inspect: |subject| probed(subject, "name_folder"),
    },
    Rule {
        name: "membarrier",
        group: Group::SharedMemory,
        why: "without membarrier each post executes a full fence, so that a sleeping peer is not missed",
        inspect: |subject| probed(subject, "membarrier"),
    },
];

fn probed(subject: &Subject<'_>, name: &str) -> Vec<Finding> {
    let Some(probe) = subject.probes.iter().find(|probe| probe.name == name) else {
        return Finding::skipped("not probed").one();
    };
    let finding = probe.finding.clone();
    let finding = match (probe.works, probe.needed) {
        (true, _) => Finding::ok(finding),
        (false, true) => Finding::failing(finding, probe.remedy.clone()),
        (false, false) => Finding::warning(finding, probe.remedy.clone()),
    };
    finding.one()
}
