//! The litmus table: every test of the catalog at every height, as Markdown or as JSON lines.
//!
//! `litmus [--test NAME] [--walks N] [--runs N] [--rounds N] [--json]`; exits with 1 if a forbidden outcome was
//! observed.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for people")]

use farside_fabric_shm::ShmFabric;
use farside_sim::litmus::{
    CATALOG, Litmus, LitmusReport, MemoryModel, NodeSubject, Observations, Placement, WireSubject,
    machine_report, observe, run_free,
};
use std::process::ExitCode;
use std::sync::Arc;

/// Options of the command line.
struct Options {
    test: Option<String>,
    /// Number of random walks of pure machines, for tests of more than two threads.
    walks: u64,
    /// Number of runs of simulated nodes.
    runs: u64,
    /// Number of rounds of real threads in each placement.
    rounds: u64,
    json: bool,
}

impl Options {
    fn parse(mut arguments: impl Iterator<Item = String>) -> Result<Self, String> {
        let mut options = Self { test: None, walks: 10_000, runs: 150, rounds: 15, json: false };
        while let Some(argument) = arguments.next() {
            let mut value = || arguments.next().ok_or(format!("{argument} needs a value"));
            let number = |text: String| {
                text.parse::<u64>().map_err(|_| format!("{text} is not a number of runs"))
            };
            match argument.as_str() {
                "--test" => options.test = Some(value()?),
                "--walks" => options.walks = number(value()?)?,
                "--runs" => options.runs = number(value()?)?,
                "--rounds" => options.rounds = number(value()?)?,
                "--json" => options.json = true,
                other => {
                    return Err(format!("unknown argument {other}; see the head of this file"));
                }
            }
        }
        Ok(options)
    }
}

fn node_report(litmus: &'static Litmus, options: &Options) -> Result<LitmusReport, String> {
    let mut subject = NodeSubject::new(0);
    let seen = observe(litmus, &mut subject, 0, options.runs).map_err(|stuck| stuck.to_string())?;
    Ok(LitmusReport::new(litmus, "node", MemoryModel::Pso, &seen))
}

fn wire_report(litmus: &'static Litmus, options: &Options) -> Result<LitmusReport, String> {
    let mut seen = Observations::new();
    for (number, placement) in Placement::all(litmus).into_iter().enumerate() {
        let name = format!("litmus-{}-{number}", std::process::id());
        let fabric = || -> Arc<dyn farside_fabric::Fabric> {
            Arc::new(ShmFabric::new().expect("this system has what the shared-memory fabric needs"))
        };
        let subject = WireSubject::start(&name, &placement, &fabric)
            .map_err(|error| format!("{}: {error}", litmus.name))?;
        let part = run_free(litmus, &subject, &placement, number as u64, options.rounds)
            .map_err(|stuck| stuck.to_string())?;
        for (outcome, count) in part {
            *seen.entry(outcome).or_default() += count;
        }
    }
    Ok(LitmusReport::new(litmus, "wire", MemoryModel::Pso, &seen))
}

/// Returns the text of one cell: the number of observations of the witness, and the number of runs.
fn cell(report: &LitmusReport) -> String {
    format!("{} of {}", report.witness_seen(), report.runs())
}

fn run(options: &Options) -> Result<bool, String> {
    if !options.json {
        println!(
            "| test | the outcome it is about | model | machine | node | wire | outcomes allowed / seen / forbidden |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
    }
    let mut holds = true;
    let chosen = |litmus: &&Litmus| options.test.as_deref().is_none_or(|name| name == litmus.name);
    for litmus in CATALOG.iter().filter(chosen) {
        let reports = [
            machine_report(litmus, 0, options.walks)?,
            node_report(litmus, options)?,
            wire_report(litmus, options)?,
        ];
        for report in &reports {
            if report.forbidden_seen().next().is_some() {
                holds = false;
                eprintln!("{report}");
            }
        }
        if options.json {
            reports.iter().for_each(|report| print!("{}", report.json_lines()));
            continue;
        }
        let outcomes = reports.each_ref().map(|report| {
            let unseen = report.allowed_unseen().count();
            let forbidden = report.forbidden_seen().count();
            let allowed = report.rows.len() - forbidden;
            format!("{allowed} / {} / {forbidden}", allowed - unseen)
        });
        let [machine, node, wire] = reports.each_ref().map(cell);
        println!(
            "| {} | {} | {} | {machine} | {node} | {wire} | {} |",
            litmus.name,
            reports[0].witness(),
            litmus.verdict(MemoryModel::Pso),
            outcomes.join(" · "),
        );
    }
    Ok(holds)
}

fn main() -> ExitCode {
    match Options::parse(std::env::args().skip(1)).and_then(|options| run(&options)) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(text) => {
            eprintln!("{text}");
            ExitCode::from(2)
        }
    }
}
