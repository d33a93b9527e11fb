//! The document with the measurements and the comparison to the paper, as Markdown.

use super::findings::FINDINGS;
use super::{BenchEntry, BenchRequest, CONNECTX5, Pattern, measure};
use farside::Error;
use farside::channel::{Kind, table};
use std::fmt::Write;

/// Message sizes of the tables.
const SIZES: [u32; 4] = [16, 256, 4_096, 65_536];

/// Returns the document `crates/sim/CHANNELS.md`: the measurements of every channel on [`CONNECTX5`], and the findings
/// of 001 §6 next to the paper's. Deterministic.
///
/// # Errors
/// As [`measure`].
pub fn document() -> Result<String, Error> {
    let mut out = String::new();
    out.push_str(HEAD);
    let _ = writeln!(out, "\nThe cluster: {}.\n", CONNECTX5.hardware);
    out.push_str("## Findings\n\n");
    out.push_str("| finding | the paper | here | what is so |\n| --- | --- | --- | --- |\n");
    for finding in &FINDINGS {
        let figures = (finding.figures)()?;
        let figures: Vec<String> = figures
            .iter()
            .map(|figure| format!("{}: {}", figure.label, number(figure.value)))
            .collect();
        let (name, paper) = (finding.name, finding.paper);
        let (what, reading) = (finding.what, finding.reading);
        let figures = figures.join("<br>");
        let _ = writeln!(out, "| {name} | {paper} | {what}:<br>{figures} | {reading} |");
    }
    out.push_str("\n## Latency\n\n");
    out.push_str("Half of the median round trip in microseconds. What comes back is a message of the same size, but of shared rings and read rings the tail alone.\n\n");
    table(&mut out, Pattern::PingPong, |entry| {
        entry.latency_ns().map(|ns| format!("{:.2}", ns / 1e3)).unwrap_or_default()
    })?;
    out.push_str("\n## Throughput\n\n");
    out.push_str(
        "One sender, one receiver: millions of messages a second, and gigabytes a second.\n\n",
    );
    table(&mut out, Pattern::Stream, |entry| {
        let (messages, bytes) = (entry.messages_per_second / 1e6, entry.bytes_per_second / 1e9);
        format!("{messages:.2} / {bytes:.2}")
    })?;
    Ok(out)
}

const HEAD: &str = "\
# The channels in virtual time

Printed by `farside bench channels --findings`; the tests of `crates/sim/tests/channel_findings.rs` hold
it to what is measured. **Nothing here was measured on an adapter**: all times are virtual. The real channels run over the
simulated fabric with the hardware profile of the cluster of paper 001 §6, and `channel_bench` says
what is measured and what is charged. The paper's figures are not to be had as numbers, so its words
stand beside ratios. Figures that are no ratios name their unit.
";

/// Writes a table with one row per channel.
fn table(
    out: &mut String,
    pattern: Pattern,
    cell: impl Fn(&BenchEntry) -> String,
) -> Result<(), Error> {
    out.push_str("| channel | half round trips |");
    for bytes in SIZES {
        let _ = write!(out, " {bytes} B |");
    }
    out.push_str("\n| --- | --- |");
    out.push_str(&" --- |".repeat(SIZES.len()));
    out.push('\n');
    for kind in Kind::ALL {
        let _ = write!(out, "| {kind} | {} |", table::measured(kind).half_round_trips);
        for bytes in SIZES {
            if kind == Kind::SendBufferless && bytes > SIZES[0] {
                out.push_str(" |");
                continue;
            }
            // Deterministic rates need few repetitions.
            let messages = if bytes > 16_384 { 200 } else { 1_000 };
            let request = BenchRequest { messages, ..BenchRequest::new(kind, bytes, pattern) };
            let entry = measure(&request, &CONNECTX5)?;
            let _ = write!(out, " {} |", cell(&entry));
        }
        out.push('\n');
    }
    Ok(())
}

fn number(value: f64) -> String {
    if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") }
}
