//! `farside doctor`: what this machine lacks, and the line that fixes it.

mod checks;
mod facts;

use crate::arguments::Doctor;
use crate::failure::Failure;
use crate::output::Output;
use checks::{Check, Plan, State, checks};
use facts::Facts;
use serde::Serialize;

/// Checks the machine; fails when something will not work.
pub(crate) fn run(arguments: &Doctor, output: Output) -> Result<(), Failure> {
    #[derive(Serialize)]
    struct Report<'a> {
        checks: &'a [Check],
        facts: &'a Facts,
    }
    let facts = Facts::probe();
    let plan = Plan { nodes: u64::from(arguments.nodes), memory_bytes: arguments.memory_bytes };
    let checks = checks(&facts, plan);
    output.value(&Report { checks: &checks, facts: &facts });
    for check in &checks {
        output.line(text(check));
    }
    let failing: Vec<_> =
        checks.iter().filter(|c| c.state == State::Fails).map(|c| c.name.as_str()).collect();
    if failing.is_empty() {
        output.line("This machine can run Farside.");
        return Ok(());
    }
    Err(Failure::check(format!("will not work here: {}", failing.join(", "))))
}

fn text(check: &Check) -> String {
    let state = match check.state {
        State::Ok => "ok",
        State::Advice => "advice",
        State::Fails => "FAILS",
    };
    let line = format!("{:<7} {:<17} {}", state, check.name, check.found);
    match &check.fix {
        Some(fix) => format!("{line}\n        {fix}"),
        None => line,
    }
}
