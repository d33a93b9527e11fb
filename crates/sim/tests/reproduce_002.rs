//! The figures of paper 002 in virtual time: what holds of the model, in ranges around the paper's ratios.

use farside_sim::paper_figure::{PaperFigure, PaperLine};
use farside_sim::reproduce_002::{FIGURES, figure, named};
use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

/// Figures that a test has already computed.
static SHOWN: Mutex<BTreeMap<String, PaperFigure>> = Mutex::new(BTreeMap::new());

fn shown(id: &str) -> PaperFigure {
    let mut shown = SHOWN.lock().unwrap_or_else(PoisonError::into_inner);
    shown.entry(id.to_owned()).or_insert_with(|| figure(id).unwrap().unwrap()).clone()
}

fn line<'a>(figure: &'a PaperFigure, name: &str) -> &'a PaperLine {
    figure.lines.iter().find(|line| line.name == name).unwrap()
}

fn at(line: &PaperLine, x: f64) -> f64 {
    line.points.iter().find(|point| point.0 == x).unwrap().1
}

#[test]
fn hints_for_small_writes_gain_in_the_papers_order() {
    let figure = shown("8a");
    let rate = |name| at(line(&figure, name), 16.0);
    let steps = ["baseline", "+H3 no DDIO", "+H5 256 B", "+H6 64 B"].map(rate);
    assert!(steps.windows(2).all(|pair| pair[0] < pair[1]), "{steps:?}");
    let own = rate("+H1 own socket") / steps[0];
    assert!((1.6..=2.8).contains(&own), "the paper has 2: {own}");
    assert!((1.1..=1.6).contains(&(steps[3] / steps[2])), "64 B over 256 B: {steps:?}");
}

#[test]
fn hints_for_large_writes_reach_most_of_the_bandwidth() {
    for id in ["8b", "9b"] {
        let figure = shown(id);
        let bandwidth = |name| at(line(&figure, name), 2_048.0);
        let [base, own, most] = ["baseline", "+H1 own socket", "+H5 256 B"].map(bandwidth);
        assert!(base.max(own) < 0.5 * most, "{id}: {base} {own} {most}");
        assert!((75.0..=100.0).contains(&most), "{id}: {most}");
        // One-sided WRITEs are bound by evictions at either socket.
        assert!(id == "8b" || own > 2.0 * base, "{id}: {base} {own}");
    }
}

#[test]
fn ddio_doubles_what_the_media_writes_and_halves_the_bandwidth() {
    let figure = shown("11b");
    let amplified = |name| at(line(&figure, name), 262_144.0);
    assert!((1.8..=2.4).contains(&amplified("DDIO on")), "{}", amplified("DDIO on"));
    assert_eq!(amplified("DDIO off"), 1.0);
}

#[test]
fn threads_lose_at_one_dimm_and_clients_do_not() {
    let threads = shown("10a");
    let share = at(&threads.lines[0], 20.0) / at(&threads.lines[0], 4.0);
    assert!((0.55..=0.72).contains(&share), "{share}");
    let clients = shown("10b");
    let share = at(&clients.lines[0], 32.0) / at(&clients.lines[0], 4.0);
    assert!((0.97..=1.03).contains(&share), "{share}");
}

#[test]
fn one_doorbell_saves_a_round_trip_of_a_persistent_write() {
    let figure = shown("s4.3");
    let us = |name| at(line(&figure, name), 64.0);
    assert!(us("H9: one doorbell") + 0.8 < us("WRITE, READ"));
    assert!(us("H9: one doorbell") > us("READ"));
    let flush = us("WRITE and FLUSH") / us("H9: one doorbell");
    assert!((0.8..=1.05).contains(&flush), "{flush}");
}

#[test]
fn figures_repeat_and_explain_their_deviations() {
    for id in ["I", "II", "6b", "8a", "8b", "9b", "10a", "10b", "11b", "12", "s4.3"] {
        let one = shown(id);
        if id == "8b" {
            assert_eq!(Some(&one), figure(id).unwrap().as_ref(), "figure {id}");
        }
        for claim in &one.claims {
            assert_eq!(claim.deviates(), !claim.reason.is_empty(), "figure {id}: {}", claim.name);
        }
    }
    assert_eq!(named("6"), ["6a", "6b"]);
    assert_eq!(named("s5"), ["s5"]);
    assert!(FIGURES.iter().all(|id| named(id) == [*id]));
    assert!(named("14").is_empty() && figure("14").unwrap().is_none());
}
