//! `farside doctor`: checks whether this machine can run each fabric, and prints the command that fixes a fault.
//!
//! A `check::Rule` inspects a `subject::Subject` (a machine behind the trait `host::Host`, and the nodes planned
//! on it) and returns one finding for each device or setting that it inspected. Rules only read and compute: they
//! change nothing, and no file content makes them panic. Only `device_limits` loads a library: it queries devices
//! through libibverbs.
#![forbid(unsafe_code)]

mod bus;
mod check;
mod counters;
mod host;
mod libraries;
mod lists;
mod machine;
mod network;
mod pci;
mod persistent;
mod ports;
mod rdma;
mod report;
mod shared;
mod software;
mod subject;

#[cfg(test)]
mod recorded;
#[cfg(test)]
mod tests;

use check::{Check, Group, Rule, Verdict};
use farside_command::failure::Failure;
use farside_command::output::Output;
use host::Live;
use report::{Counts, Report, fabrics, label, lines};
use serde::Serialize;
use subject::{DeviceLimits, Plan, Probe, Subject};

/// A check of this machine.
#[derive(Debug)]
pub struct Doctor {
    /// Number of node processes that are planned on this machine.
    pub nodes: u16,
    /// Global memory of each node.
    pub memory_bytes: u64,
    /// A machine to check the route to.
    pub peer: Option<String>,
    /// The checks or groups to run, in detail; all if empty.
    pub only: Vec<String>,
    /// Whether the checks are only listed.
    pub list: bool,
}

/// Returns every rule, in printing order.
fn rules() -> impl Iterator<Item = &'static Rule> {
    let groups = [
        machine::RULES,
        shared::RULES,
        software::RULES,
        ports::RULES,
        bus::RULES,
        persistent::RULES,
        network::RULES,
    ];
    groups.into_iter().flatten()
}

/// Returns the rules with these names or in these groups; all if `only` is empty.
fn chosen(only: &[String]) -> Result<Vec<&'static Rule>, Failure> {
    let fits = |rule: &Rule, name: &str| rule.name == name || rule.group.name() == name;
    if let Some(name) = only.iter().find(|name| !rules().any(|rule| fits(rule, name))) {
        let groups = Group::ALL.map(Group::name).join(", ");
        let text = format!("no check `{name}`: see farside doctor --list; the groups are {groups}");
        return Err(Failure::usage(text));
    }
    let wanted = |rule: &&Rule| only.is_empty() || only.iter().any(|name| fits(rule, name));
    Ok(rules().filter(wanted).collect())
}

/// Checks the machine; returns an error if a check is failing.
pub fn run(arguments: &Doctor, output: Output) -> Result<(), Failure> {
    let rules = chosen(&arguments.only)?;
    if arguments.list {
        list(&rules, output);
        return Ok(());
    }
    let host = Live::new("/");
    let plan = Plan {
        nodes: u64::from(arguments.nodes),
        memory_bytes: arguments.memory_bytes,
        peer: arguments.peer.clone(),
    };
    let shared = rules.iter().any(|rule| rule.group == Group::SharedMemory);
    let probed = if shared { farside_fabric_shm::probe() } else { Vec::new() };
    let probes = probed.into_iter().map(Probe::from).collect();
    let limits = |device: &str| farside_command::rdma::limits(device).map(DeviceLimits::from);
    let subject = Subject::new(&host, plan, probes, Some(&limits));
    let checks: Vec<_> = rules.iter().flat_map(|rule| rule.checks(&subject)).collect();
    print(&checks, &subject, !arguments.only.is_empty(), output);
    let failing: Vec<_> = failing(&checks).map(label).collect();
    if failing.is_empty() {
        return Ok(());
    }
    Err(Failure::check(format!("will not work here: {}", failing.join(", "))))
}

fn failing(checks: &[Check]) -> impl Iterator<Item = &Check> {
    checks.iter().filter(|check| check.verdict == Verdict::Failing)
}

fn list(rules: &[&Rule], output: Output) {
    #[derive(Serialize)]
    struct Listed {
        name: &'static str,
        group: Group,
        why: &'static str,
    }
    let listed = |rule: &&Rule| Listed { name: rule.name, group: rule.group, why: rule.why };
    output.value(&rules.iter().map(listed).collect::<Vec<_>>());
    for rule in rules {
        output.line(format!("{:<23} {:<14} {}", rule.name, rule.group.name(), rule.why));
    }
}

fn print(checks: &[Check], subject: &Subject<'_>, verbose: bool, output: Output) {
    let fabrics = fabrics(checks, &subject.devices);
    let counts = Counts::of(checks);
    let report = Report { checks, fabrics, counts };
    output.value(&report);
    for line in lines(checks, verbose) {
        output.line(line);
    }
    let Counts { ok, notes, warnings, failing, skipped } = counts;
    output.line("");
    output.line(format!(
        "ok {ok}, notes {notes}, warnings {warnings}, failing {failing}, skipped {skipped}"
    ));
    if verbose {
        return;
    }
    for fabric in &report.fabrics {
        let name = fabric.name.replace('_', " ");
        output.line(match fabric.outlook {
            "ready" => format!("{name}: no failing check"),
            "absent" => format!("{name}: no device"),
            _ => format!("{name}: will not work here: {}", fabric.failing.join(", ")),
        });
    }
}
