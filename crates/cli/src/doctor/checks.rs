//! The judgement: facts in, checks out. Nothing here asks the machine.

use super::facts::{Facts, Tried};
use crate::output::bytes;
use serde::Serialize;

/// How a check came out.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Ok,
    /// It works, but slower or for fewer nodes than it could.
    Advice,
    /// It will not work.
    Fails,
}

/// One check.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub(crate) struct Check {
    pub(crate) name: String,
    pub(crate) state: State,
    /// What was found.
    pub(crate) found: String,
    /// The line to type, unless all is well.
    pub(crate) fix: Option<String>,
}

/// What is planned on the machine.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Plan {
    pub(crate) nodes: u64,
    pub(crate) memory_bytes: u64,
}

/// Open files that a node needs: its own, and for each peer a socket and descriptors of shared memory.
const FILES_PER_PEER: u64 = 8;
const FILES_OF_NODE: u64 = 64;
/// Threads of one node process, roomily.
const THREADS_OF_NODE: u64 = 16;
/// Judges a machine for a plan.
pub(crate) fn checks(facts: &Facts, plan: Plan) -> Vec<Check> {
    let mut checks = vec![system(facts)];
    // The fabric counts descriptors too, but knows nothing of the plan.
    let tried = facts.fabric.iter().filter(|tried| tried.name != "descriptors");
    checks.extend(tried.map(fabric));
    checks.extend([
        open_files(facts, plan),
        processes(facts, plan),
        memory(facts, plan),
        cores(facts, plan),
        locked_memory(facts),
        clock(facts),
    ]);
    checks
}

/// What the shared-memory fabric found out for itself.
fn fabric(tried: &Tried) -> Check {
    let state = if tried.needed { State::Fails } else { State::Advice };
    let trouble = (!tried.works).then(|| (state, tried.remedy.clone()));
    check(&tried.name, tried.finding.clone(), trouble)
}

fn check(name: &str, found: impl Into<String>, trouble: Option<(State, String)>) -> Check {
    let (state, fix) = match trouble {
        Some((state, fix)) => (state, Some(fix)),
        None => (State::Ok, None),
    };
    Check { name: name.to_owned(), state, found: found.into(), fix }
}

fn system(facts: &Facts) -> Check {
    let found = format!("{}, {}", facts.kernel, facts.architecture);
    let linux = facts.kernel.starts_with("Linux ");
    let sixty_four = matches!(facts.architecture.as_str(), "x86_64" | "aarch64");
    let trouble = (!linux || !sixty_four).then(|| (State::Fails, "run on 64-bit Linux".to_owned()));
    check("system", found, trouble)
}

fn open_files(facts: &Facts, plan: Plan) -> Check {
    let (now, most) = facts.open_files;
    let need = FILES_OF_NODE + FILES_PER_PEER * plan.nodes;
    let found = format!("{now} of at most {most}, {need} needed for {} nodes", plan.nodes);
    let trouble = (now < need).then(|| {
        let fix = if most >= need {
            format!("ulimit -n {need}")
        } else {
            format!("echo \"$USER hard nofile {need}\" | sudo tee -a /etc/security/limits.conf")
        };
        (State::Fails, fix)
    });
    check("open_files", found, trouble)
}

fn processes(facts: &Facts, plan: Plan) -> Check {
    let need = THREADS_OF_NODE * plan.nodes;
    match facts.processes {
        None => check("processes", "no limit", None),
        Some(most) => {
            let trouble =
                (most < need).then(|| (State::Fails, format!("ulimit -u {}", need.max(1_024))));
            check("processes", format!("{most}, {need} needed"), trouble)
        }
    }
}

fn memory(facts: &Facts, plan: Plan) -> Check {
    let need = plan.nodes.saturating_mul(plan.memory_bytes);
    let left = facts.memory_available_bytes.min(facts.cgroup_memory_bytes.unwrap_or(u64::MAX));
    let by = if facts.cgroup_memory_bytes == Some(left) { " (by the control group)" } else { "" };
    let found = format!(
        "{} of {} left{by}, {} planned",
        bytes(left),
        bytes(facts.memory_total_bytes),
        bytes(need)
    );
    let trouble = (left < need).then(|| {
        let each = (left / 2 / plan.nodes.max(1)) >> 20;
        let fix = if each == 0 {
            "end other programs, or use a machine with more memory".to_owned()
        } else {
            format!("farside up --nodes {} --memory-bytes {each}M", plan.nodes)
        };
        (State::Fails, fix)
    });
    check("memory", found, trouble)
}

fn cores(facts: &Facts, plan: Plan) -> Check {
    let allowed = u64::from(facts.cores) * 1_000;
    let permille = allowed.min(facts.cgroup_cpu_permille.unwrap_or(u64::MAX));
    let found = format!("{}.{} for {} nodes", permille / 1_000, permille % 1_000 / 100, plan.nodes);
    let trouble = (permille < plan.nodes * 1_000).then(|| {
        let nodes = (permille / 1_000).max(1);
        let fix = format!("farside up --nodes {nodes}    # more nodes share cores: correct, but misses take longer");
        (State::Advice, fix)
    });
    check("cores", found, trouble)
}

fn locked_memory(facts: &Facts) -> Check {
    // Shared memory of one machine is never locked; adapters pin what is registered.
    match facts.memlock_bytes {
        None => check("locked_memory", "no limit", None),
        Some(most) => {
            check("locked_memory", format!("{}; shared memory needs none", bytes(most)), None)
        }
    }
}

fn clock(facts: &Facts) -> Check {
    let slow =
        matches!(facts.clock_source.as_str(), "hpet" | "acpi_pm" | "jiffies" | "refined-jiffies");
    let trouble = slow.then(|| {
        let fix =
            "echo tsc | sudo tee /sys/devices/system/clocksource/clocksource0/current_clocksource";
        (State::Advice, fix.to_owned())
    });
    let found = if facts.clock_source.is_empty() { "unknown" } else { &facts.clock_source };
    check("clock", found, trouble)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tried(name: &str, needed: bool, works: bool) -> Tried {
        Tried {
            name: name.to_owned(),
            needed,
            works,
            finding: "as tried".to_owned(),
            remedy: if works { String::new() } else { "mend it".to_owned() },
        }
    }

    /// A server on which all is well.
    fn good() -> Facts {
        Facts {
            kernel: "Linux 6.18.44".to_owned(),
            architecture: "x86_64".to_owned(),
            fabric: vec![tried("memfd", true, true), tried("huge_pages", false, true)],
            memlock_bytes: Some(8 << 20),
            open_files: (1_024, 1_048_576),
            processes: Some(95_000),
            cores: 16,
            memory_total_bytes: 64 << 30,
            memory_available_bytes: 60 << 30,
            cgroup_memory_bytes: None,
            cgroup_cpu_permille: None,
            clock_source: "tsc".to_owned(),
        }
    }

    const PLAN: Plan = Plan { nodes: 3, memory_bytes: 256 << 20 };

    /// The checks that are not fine, with their fixes.
    fn troubles(facts: &Facts, plan: Plan) -> Vec<(String, State, String)> {
        let all = checks(facts, plan).into_iter();
        all.filter_map(|c| c.fix.map(|fix| (c.name, c.state, fix))).collect()
    }

    fn one(facts: &Facts, plan: Plan) -> (String, State, String) {
        let mut found = troubles(facts, plan);
        assert_eq!(found.len(), 1, "{found:?}");
        found.remove(0)
    }

    #[test]
    fn a_good_machine_needs_nothing() {
        assert_eq!(troubles(&good(), PLAN), []);
    }

    #[test]
    fn what_the_fabric_needs_fails_and_what_it_likes_is_advice() {
        let mut facts = good();
        facts.fabric = vec![tried("memfd", true, false), tried("huge_pages", false, false)];
        let expected = [("memfd", State::Fails), ("huge_pages", State::Advice)];
        let found = troubles(&facts, PLAN);
        assert_eq!(found.len(), expected.len());
        for (found, (name, state)) in found.iter().zip(expected) {
            assert_eq!((found.0.as_str(), found.1, found.2.as_str()), (name, state, "mend it"));
        }
        facts.fabric = vec![tried("descriptors", true, false)];
        assert_eq!(troubles(&facts, PLAN), [], "counted here, with the plan");
    }

    #[test]
    fn few_files_are_raised_by_the_user_or_the_administrator() {
        let mut facts = good();
        facts.open_files = (80, 4_096);
        assert_eq!(
            one(&facts, PLAN),
            ("open_files".to_owned(), State::Fails, "ulimit -n 88".to_owned())
        );
        facts.open_files = (80, 80);
        assert!(one(&facts, PLAN).2.contains("limits.conf"));
    }

    #[test]
    fn the_control_group_counts_as_the_machine() {
        let mut facts = good();
        facts.cgroup_memory_bytes = Some(512 << 20);
        let (name, state, fix) = one(&facts, PLAN);
        assert_eq!((name.as_str(), state), ("memory", State::Fails));
        assert_eq!(fix, "farside up --nodes 3 --memory-bytes 85M");
        facts.cgroup_memory_bytes = None;
        facts.cgroup_cpu_permille = Some(2_500);
        assert_eq!(one(&facts, PLAN).0, "cores");
    }

    #[test]
    fn more_nodes_than_cores_is_advice() {
        let plan = Plan { nodes: 32, ..PLAN };
        assert_eq!(one(&good(), plan).1, State::Advice);
    }

    #[test]
    fn slow_clocks_and_foreign_systems_are_named() {
        let mut facts = good();
        facts.clock_source = "hpet".to_owned();
        assert_eq!(one(&facts, PLAN).0, "clock");
        let mut facts = good();
        facts.kernel = "Darwin 25.0".to_owned();
        assert!(troubles(&facts, PLAN).iter().any(|(name, ..)| name == "system"));
        let mut facts = good();
        facts.processes = Some(20);
        assert_eq!(
            one(&facts, PLAN),
            ("processes".to_owned(), State::Fails, "ulimit -u 1024".to_owned())
        );
    }
}
