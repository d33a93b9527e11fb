//! `farside reproduce`: figures of a paper from a model in virtual time, beside the paper's numbers.

use crate::arguments::Paper;
use farside_bench::plot::{Chart, draw};
use farside_command::failure::Failure;
use farside_command::output::Output;
use farside_sim::paper_figure::{Claim, DEVIATION_MAX, PaperFigure, PaperLine};
use serde_json::{Value, json};
use std::path::Path;

/// Prints which papers and figures there are.
pub(crate) fn list(output: Output) {
    let paper = |paper: Paper| {
        json!({
            "paper": paper.number(),
            "figures": paper.figures(),
            "not_reproduced": paper.not_reproduced(),
        })
    };
    output.value(&json!({ "papers": Paper::ALL.map(paper) }));
    for paper in Paper::ALL {
        output.line(paper.title());
        let figures = paper.figures().join("|");
        output.line(format!("  farside reproduce {} --figure {figures}", paper.number()));
        output.line(format!("  not reproduced: {}", paper.not_reproduced()));
    }
}

/// Prints the figures of a paper, or those of that name, and draws them.
pub(crate) fn run(
    paper: Paper,
    only: Option<&str>,
    plot: Option<&Path>,
    output: Output,
) -> Result<(), Failure> {
    let figures = only.map_or(paper.figures().to_vec(), |name| paper.named(name));
    if figures.is_empty() {
        let all = paper.figures().join(", ");
        let text =
            format!("--figure: paper {} has no such figure; there are {all}", paper.number());
        return Err(Failure::usage(text));
    }
    let (name, profile) = paper.profile();
    output.line(format!("Paper {}", paper.title()));
    output.line("A MODEL of adapters in virtual time: nothing here was measured on hardware.");
    output.line(format!("Profile {name}: {profile}"));
    output.line(format!(
        "Deviations over {:.0} % are marked !, with the reason; = marks an input of the profile.",
        100.0 * DEVIATION_MAX
    ));
    let (mut values, mut charts) = (Vec::new(), Vec::new());
    for id in figures {
        output.note(format!("figure {id}"));
        let found = paper.figure(id).map_err(Failure::check)?;
        let found = found.ok_or_else(|| Failure::check(format!("figure {id} is missing")))?;
        text(&found).iter().for_each(|line| output.line(line));
        values.push(value(&found));
        charts.extend(chart(&found));
    }
    if let Some(path) = plot {
        if charts.is_empty() {
            return Err(Failure::usage("--plot: this table has no lines; name a figure that has"));
        }
        draw(path, &charts)?;
    }
    output.line(String::new());
    output.line(format!("Not reproduced: {}.", paper.not_reproduced()));
    output.value(&json!({
        "model": true,
        "paper": paper.title(),
        "profile": profile.to_string(),
        "figures": values,
        "not_reproduced": paper.not_reproduced(),
    }));
    Ok(())
}

/// Returns the kind of a figure by its id, and its number.
fn kind(id: &str) -> (&'static str, &str) {
    match id.strip_prefix('s') {
        Some(number) => ("Section", number),
        None if id.starts_with('I') => ("Table", id),
        None => ("Figure", id),
    }
}

fn value(figure: &PaperFigure) -> Value {
    let line = |line: &PaperLine| json!({ "name": line.name, "points": line.points });
    let claim = |claim: &Claim| {
        json!({
            "name": claim.name,
            "unit": claim.unit,
            "model": claim.model,
            "paper": claim.paper,
            "deviation": claim.deviation(),
            "deviates": claim.deviates(),
            "input": claim.input,
            "reason": claim.reason,
        })
    };
    json!({
        "figure": figure.id,
        "title": figure.title,
        "across": figure.across,
        "up": figure.up,
        "lines": figure.lines.iter().map(line).collect::<Vec<_>>(),
        "claims": figure.claims.iter().map(claim).collect::<Vec<_>>(),
        "remarks": figure.remarks,
    })
}

/// Returns the drawing of a figure; none if it has no lines.
fn chart(figure: &PaperFigure) -> Option<Chart> {
    let lines = figure.lines.iter().map(|line| (line.name.clone(), line.points.clone()));
    let (kind, number) = kind(figure.id);
    let title = format!("{kind} {number}, model: {} ({})", figure.title, figure.up);
    (!figure.lines.is_empty()).then(|| Chart {
        title,
        across: figure.across.to_owned(),
        lines: lines.collect(),
    })
}

/// Returns the figure as a table of its lines and one of the paper's numbers.
fn text(figure: &PaperFigure) -> Vec<String> {
    let (kind, number) = kind(figure.id);
    let mut out = vec![String::new(), format!("{kind} {number}. {}", figure.title)];
    if let Some(first) = figure.lines.first() {
        out.push(format!("  model: {}", figure.up));
        let names = figure.lines.iter().map(|line| format!("{:>16}", line.name));
        out.push(format!("  {:>8} {}", figure.across, names.collect::<Vec<_>>().join(" ")));
        for (at, (x, _)) in first.points.iter().enumerate() {
            let cells = figure.lines.iter().map(|line| {
                let point = line.points.get(at);
                point.map_or(String::new(), |point| format!("{:>16.3}", point.1))
            });
            out.push(format!("  {x:>8} {}", cells.collect::<Vec<_>>().join(" ")));
        }
    }
    let mut reasons: Vec<&str> = Vec::new();
    if !figure.claims.is_empty() {
        let heads = ["", "model", "paper", "deviation"];
        out.push(format!("  {:<56} {:>8} {:>12} {:>10}", heads[0], heads[1], heads[2], heads[3]));
    }
    for claim in &figure.claims {
        let (low, high) = claim.paper;
        let paper = if low == high { format!("{low}") } else { format!("{low} to {high}") };
        let name = format!("{} {}", claim.name, claim.unit);
        let deviation = format!("{:+.0} %", 100.0 * claim.deviation());
        let mut line =
            format!("  {:<56} {:>8.2} {paper:>12} {deviation:>10}", name.trim_end(), claim.model);
        if claim.input {
            line.push_str(" =");
        }
        if claim.deviates() {
            let known = reasons.iter().position(|reason| *reason == claim.reason);
            let number = known.unwrap_or(reasons.len());
            if known.is_none() {
                reasons.push(claim.reason);
            }
            line.push_str(&format!(" ! [{}]", number + 1));
        }
        out.push(line);
    }
    let reasons = reasons.iter().enumerate();
    out.extend(reasons.map(|(number, reason)| format!("  [{}] {reason}", number + 1)));
    out.extend(figure.remarks.iter().map(|remark| format!("  {remark}")));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn deviations_are_marked_with_one_note_for_each_reason() {
        let claim = |name: &str, model, reason| Claim {
            name: name.to_owned(),
            unit: "us",
            model,
            paper: (1.0, 1.0),
            input: name == "input",
            reason,
        };
        let claims = vec![
            claim("far", 2.0, "because"),
            claim("further", 3.0, "because"),
            claim("near", 1.1, ""),
            claim("input", 1.0, ""),
        ];
        let figure = PaperFigure { id: "III", title: "t", claims, ..PaperFigure::default() };
        let text = text(&figure);
        assert!(text.contains(&"Table III. t".to_owned()));
        let marked = |name: &str, end: &str| {
            assert!(text.iter().any(|line| line.contains(name) && line.ends_with(end)), "{text:?}");
        };
        marked("far us", "+100 % ! [1]");
        marked("further us", "+200 % ! [1]");
        marked("near us", "+10 %");
        marked("input us", "+0 % =");
        assert_eq!(text.last().map(String::as_str), Some("  [1] because"));
    }
}
