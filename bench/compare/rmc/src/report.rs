//! Figures as a table and as JSON, and their ratios with goals.

use std::fmt::Write;

use crate::list::NODES;
use crate::rounds::Case;

/// Formats all figures, in nanoseconds, and the table's lines as one JSON object.
pub(crate) fn json(cases: &[Case]) -> String {
    let entries = cases.iter().map(|case| {
        let n = case.n.map_or(String::from("null"), |n| n.to_string());
        format!(
            "{{\"what\": \"{}\", \"party\": \"{}\", \"nodes\": {n}, \"ns\": {{\"median\": {:.2}, \"best\": {:.2}}}}}",
            case.what,
            case.party,
            case.median_ns(),
            case.best_ns()
        )
    });
    let lines = table(cases);
    // Lines of the table have neither quotes nor backslashes.
    let lines = lines.lines().map(|line| format!("\"{line}\""));
    let (entries, lines): (Vec<_>, Vec<_>) = (entries.collect(), lines.collect());
    format!("{{\"figures\": [{}], \"lines\": [{}]}}", entries.join(", "), lines.join(", "))
}

/// Formats the figures for a terminal.
pub(crate) fn table(cases: &[Case]) -> String {
    let mut out = String::new();
    let mut line = |text: String| {
        let _ = writeln!(out, "{text}");
    };
    line("list search, ns a call: median (best)".into());
    line(format!("{:<24}{:>20}{:>20}{:>20}", "", "1 node", "8 nodes", "64 nodes"));
    let mut parties: Vec<&str> = Vec::new();
    for case in cases.iter().filter(|case| case.n.is_some()) {
        if !parties.contains(&case.party.as_str()) {
            parties.push(&case.party);
        }
    }
    for party in parties {
        let of = |n| search(cases, party, n).map_or(String::from("-"), shown);
        let [a, b, c] = NODES.map(of);
        line(format!("{party:<24}{a:>20}{b:>20}{c:>20}"));
    }
    line(String::new());
    for (what, unit, per) in [
        ("suspension", "suspension and resumption, ns", 1.0),
        ("registration", "registration, us", 1e3),
    ] {
        line(format!("{unit}: median (best)"));
        for case in cases.iter().filter(|case| case.what == what) {
            let (median, best) = (case.median_ns() / per, case.best_ns() / per);
            line(format!("{:<44}{median:>10.1} ({best:.1})", case.party));
        }
        line(String::new());
    }
    line("ratios of medians, and of bests; goals in brackets".into());
    for (name, ours, theirs, goal) in GOALS {
        let ratios = |of: fn(&Case) -> f64| {
            let ratio = |n| Some(of(search(cases, ours, n)?) / of(search(cases, theirs, n)?));
            NODES
                .map(|n| ratio(n).map_or(String::from("-"), |ratio| format!("{ratio:.2}")))
                .join(", ")
        };
        let (medians, bests) = (ratios(Case::median_ns), ratios(Case::best_ns));
        line(format!("{name:<48}{medians}   {bests} (at most {goal})"));
    }
    out
}

const GOALS: [(&str, &str, &str, f64); 4] = [
    ("compiled, words / wasmtime", "compiled, words", "wasmtime", 1.0),
    ("compiled, words / wasmtime with fuel", "compiled, words", "wasmtime, fuel", 1.0),
    ("compiled, words / solana-sbpf (at 64 nodes)", "compiled, words", "solana-sbpf, direct", 0.2),
    ("interpreted, words / rbpf by helper", "interpreted, words", "rbpf, helper", 3.0),
];

fn search<'a>(cases: &'a [Case], party: &str, n: u64) -> Option<&'a Case> {
    cases.iter().find(|case| case.party == party && case.n == Some(n))
}

fn shown(case: &Case) -> String {
    format!("{:.1} ({:.1})", case.median_ns(), case.best_ns())
}
