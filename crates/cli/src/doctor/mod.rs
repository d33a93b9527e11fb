//! `farside doctor`: what this machine lacks, and the line that mends it.
//!
//! A [`check::Rule`] looks at a [`subject::Subject`] (a machine behind the trait [`host::Host`], and what
//! is planned on it) and gives a finding for each thing that it looked at. Rules read and compute; they
//! change nothing, and no content of any file makes them fail. One loads something: `device_limits` asks
//! libibverbs, where there is a device to be asked.

mod bus;
mod check;
mod counters;
mod host;
mod libraries;
mod lists;
mod machine;
mod network;
mod pci;
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

use crate::arguments::Doctor;
use crate::failure::Failure;
use crate::output::Output;
use check::{Check, Group, Rule, Verdict};
use host::Live;
use report::{Counts, Report, fabrics, label, lines};
use serde::Serialize;
use subject::{DeviceLimits, Plan, Subject, Tried};

/// Every rule, in the order in which they are printed.
fn rules() -> impl Iterator<Item = &'static Rule> {
    let groups =
        [machine::RULES, shared::RULES, software::RULES, ports::RULES, bus::RULES, network::RULES];
    groups.into_iter().flatten()
}

/// The rules of these names or groups; all when none is named.
fn chosen(only: &[String]) -> Result<Vec<&'static Rule>, Failure> {
    let fits = |rule: &Rule, name: &str| rule.name == name || rule.group.name() == name;
    if let Some(name) = only.iter().find(|name| !rules().any(|rule| fits(rule, name))) {
        let groups = Group::ALL.map(Group::name).join(", ");
        let text =
            format!("no check is called `{name}`: farside doctor --list; groups are {groups}");
        return Err(Failure::usage(text));
    }
    let wanted = |rule: &&Rule| only.is_empty() || only.iter().any(|name| fits(rule, name));
    Ok(rules().filter(wanted).collect())
}

/// Checks the machine; fails when something will not work.
pub(crate) fn run(arguments: &Doctor, output: Output) -> Result<(), Failure> {
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
    let tried = probed.into_iter().map(Tried::from).collect();
    let limits = |device: &str| crate::rdma::limits(device).map(DeviceLimits::from);
    let subject = Subject::new(&host, plan, tried, Some(&limits));
    let checks: Vec<_> = rules.iter().flat_map(|rule| rule.checks(&subject)).collect();
    tell(&checks, &subject, !arguments.only.is_empty(), output);
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

fn tell(checks: &[Check], subject: &Subject<'_>, at_length: bool, output: Output) {
    let fabrics = fabrics(checks, &subject.devices);
    let counts = Counts::of(checks);
    let report = Report { checks, fabrics, counts };
    output.value(&report);
    for line in lines(checks, at_length) {
        output.line(line);
    }
    let Counts { ok, notes, warnings, failing, skipped } = counts;
    output.line("");
    output.line(format!(
        "ok {ok}, notes {notes}, warnings {warnings}, failing {failing}, skipped {skipped}"
    ));
    if at_length {
        return;
    }
    for fabric in &report.fabrics {
        let name = fabric.name.replace('_', " ");
        output.line(match fabric.outlook {
            "ready" => format!("{name}: nothing found that keeps it from working"),
            "absent" => format!("{name}: no device"),
            _ => format!("{name}: will not work here: {}", fabric.failing.join(", ")),
        });
    }
}
