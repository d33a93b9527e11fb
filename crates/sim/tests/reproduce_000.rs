//! The figures of paper 000 in virtual time: what holds of the model, in ranges around the paper's ratios.

use farside_sim::paper_figure::{PaperFigure, PaperLine};
use farside_sim::reproduce_000::{FIGURES, figure, named};
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
fn small_requests_are_throttled_by_packets_and_large_ones_by_bytes() {
    let figure = shown("1");
    let (rate, us) = (line(&figure, "WRITE, M/s"), line(&figure, "WRITE, us"));
    assert!((0.85..=1.0).contains(&(at(rate, 256.0) / at(rate, 8.0))));
    assert!(at(rate, 8_192.0) < 0.2 * at(rate, 8.0));
    assert!(at(us, 256.0) - at(us, 64.0) > 0.6, "a fetched payload");
}

#[test]
fn gathered_writes_beat_slices_and_slices_beat_lists() {
    let figure = shown("4");
    let [sp, list, sgl] =
        ["SP WRITE", "Doorbell WRITE", "SGL WRITE"].map(|name| line(&figure, name));
    let ratio = |one, other| at(one, 32.0) / at(other, 32.0);
    assert!((7.0..=14.0).contains(&ratio(sp, list)), "{}", ratio(sp, list));
    assert!((1.5..=2.5).contains(&ratio(sp, sgl)), "{}", ratio(sp, sgl));
    assert!(at(list, 32.0) < 3.0 * at(list, 1.0), "lists save doorbells alone");
    assert!(at(sp, 32.0) > 16.0 * at(sp, 1.0));
}

#[test]
fn random_access_halves_rates_unless_the_translations_fit() {
    let figure = shown("6a");
    let ratio = at(line(&figure, "seq-seq"), 32.0) / at(line(&figure, "rand-rand"), 32.0);
    assert!((2.0..=4.0).contains(&ratio), "{ratio}");
    let figure = shown("6d");
    let gain = |mebibytes| {
        at(line(&figure, "seq-seq"), mebibytes) / at(line(&figure, "rand-rand"), mebibytes)
    };
    assert!(gain(4.0) < 1.01, "{}", gain(4.0));
    assert!(gain(64.0) > 2.0, "{}", gain(64.0));
}

#[test]
fn consolidation_gains_with_theta() {
    let figure = shown("8");
    let consolidated = line(&figure, "consolidated");
    let gain = at(consolidated, 16.0) / at(line(&figure, "native"), 16.0);
    assert!((6.0..=9.0).contains(&gain), "{gain}");
    assert!(at(consolidated, 1.0) < at(line(&figure, "native"), 1.0), "a block for each write");
}

#[test]
fn worst_placement_halves_read_rates() {
    let figure = shown("III");
    let claim = |name: &str| figure.claims.iter().find(|claim| claim.name == name).unwrap().model;
    let (latency, rate) =
        (claim("worst over best, READ latency"), claim("worst under best, READ rate"));
    assert!((0.2..=0.6).contains(&latency), "{latency}");
    assert!((0.4..=0.6).contains(&rate), "{rate}");
}

#[test]
fn atomics_are_limited_by_their_unit_and_back_off_keeps_locks_fast() {
    let figure = shown("10b");
    let remote = line(&figure, "remote");
    assert!((2.2..=2.6).contains(&at(remote, 14.0)), "{}", at(remote, 14.0));
    let figure = shown("10a");
    let (plain, patient) = (line(&figure, "remote"), line(&figure, "remote, back-off"));
    assert!(at(plain, 14.0) < 0.6 * at(plain, 1.0));
    assert!(at(patient, 14.0) > 2.0 * at(plain, 14.0));
}

/// Asserts that a line rises from point to point.
fn rises(line: &PaperLine) {
    let rises = line.points.windows(2).all(|pair| pair[0].1 < pair[1].1);
    assert!(rises, "{line:?}");
}

#[test]
fn held_puts_outrun_cold_ones_and_versions_are_limited_by_atomics() {
    let figure = shown("12");
    let ratio = |name, other, x| at(line(&figure, name), x) / at(line(&figure, other), x);
    for other in ["basic, 1 WRITE", "NUMA, 1 WRITE"] {
        let gain = ratio("blocks, 1 WRITE", other, 6.0);
        assert!((1.85..=2.9).contains(&gain), "{other}: {gain}");
    }
    let numa = ratio("NUMA, 1 WRITE", "basic, 1 WRITE", 14.0);
    assert!((1.05..=1.25).contains(&numa), "{numa}");
    assert!(ratio("NUMA, blocks", "NUMA", 6.0) > 2.7, "cold puts of two round trips gain more");
    assert!(ratio("basic, 1 WRITE", "basic", 14.0) > 1.5, "a round trip less");
    assert!(ratio("Farside", "NUMA", 14.0) < 1.0, "it also frees what it replaces");
    assert!(ratio("Farside, held", "Farside", 6.0) > 3.0, "a round trip for theta hot puts");
    figure.lines.iter().for_each(rises);
}

#[test]
fn larger_batches_of_hot_keys_gain_less_than_their_size() {
    let figure = shown("13b");
    for line in &figure.lines {
        rises(line);
        let gain = at(line, 16.0) / at(line, 4.0);
        assert!((1.3..=3.5).contains(&gain), "{gain}");
    }
    for line in &shown("13a").lines {
        let share = at(line, 32.0) / at(line, 4.0);
        assert!((0.5..=0.8).contains(&share), "fewer hot keys: {share}");
    }
}

#[test]
fn shuffles_of_batches_outrun_single_rows_and_copies_outrun_slices() {
    let figure = shown("15");
    let ratio = |name, other| at(line(&figure, name), 16.0) / at(line(&figure, other), 16.0);
    let (slices, copies) = (ratio("SGL 16", "basic"), ratio("SP 16", "basic"));
    assert!((4.0..=6.0).contains(&slices), "{slices}");
    assert!((5.0..=7.5).contains(&copies), "{copies}");
    let (few, most) = (ratio("SP 4", "SGL 4"), ratio("SP 16", "SGL 16"));
    assert!(1.05 < few && 1.1 * few < most, "slices scale badly: {few}, {most}");
    let overlapped = ratio("Farside, SGL 16", "SGL 16");
    assert!((1.2..=3.0).contains(&overlapped), "two batches of an inbox: {overlapped}");
}

#[test]
fn joins_gain_by_batches_and_sockets_and_executors() {
    let figure = shown("16a");
    let [standalone, any, numa] = &figure.lines[..] else { panic!("{:?}", figure.lines) };
    for (plain, aware) in any.points.iter().zip(&numa.points) {
        let saved = 1.0 - aware.1 / plain.1;
        assert!((0.12..=0.30).contains(&saved), "batch {}: {saved}", plain.0);
    }
    assert!(at(numa, 1.0) > at(standalone, 1.0), "rows by themselves lose to one machine");
    assert!(at(numa, 16.0) < 0.76 * at(standalone, 16.0));
    assert!(numa.points.windows(2).all(|pair| pair[0].1 > pair[1].1));
    let figure = shown("16b");
    let under = at(line(&figure, "batch 16"), 16.0) / at(line(&figure, "ideal"), 16.0);
    assert!((0.65..=0.9).contains(&under), "{under}");
    let figure = shown("17");
    let gain = |name| at(line(&figure, name), 1.0) / at(line(&figure, "NUMA, batch 16"), 1.0);
    assert!(gain("distributed") > gain("NUMA") && gain("NUMA") > 2.0);
    assert!(gain("single machine") > 5.3);
}

#[test]
fn slices_need_less_processor_time_than_copies() {
    let figure = shown("18");
    let (copies, slices) = (line(&figure, "SP"), line(&figure, "SGL"));
    let saved = |bytes| 1.0 - at(slices, bytes) / at(copies, bytes);
    assert!(saved(64.0) > 0.2 && saved(4_096.0) > 0.6, "{} {}", saved(64.0), saved(4_096.0));
    assert!(saved(64.0) < saved(512.0) && saved(512.0) < saved(4_096.0));
}

#[test]
fn appends_are_limited_by_one_atomic_unit_unless_they_are_batched() {
    let figure = shown("19");
    let single = at(line(&figure, "batch 1"), 14.0);
    assert!((2.2..=2.5).contains(&single), "{single}");
    let farside = at(line(&figure, "Farside, 1"), 14.0);
    assert!((0.4..=0.6).contains(&(farside / single)), "two atomics a record: {farside}");
    let gain = |x| at(line(&figure, "batch 32"), x) / at(line(&figure, "batch 1"), x);
    assert!(gain(7.0) > 9.0 && gain(14.0) > gain(7.0), "{} {}", gain(7.0), gain(14.0));
    for (batch, least) in [("8", 1.0), ("32", 1.1)] {
        let any = at(line(&figure, &format!("batch {batch}*")), 14.0);
        let aware = at(line(&figure, &format!("batch {batch}")), 14.0);
        assert!((least..=1.35).contains(&(aware / any)), "batch {batch}: {}", aware / any);
    }
}

#[test]
fn figures_repeat_and_explain_their_deviations() {
    for id in FIGURES {
        let one = shown(id);
        if ["3a", "10a", "13a", "15", "19"].contains(&id) {
            assert_eq!(Some(&one), figure(id).unwrap().as_ref(), "figure {id}");
        }
        for claim in &one.claims {
            assert_eq!(claim.deviates(), !claim.reason.is_empty(), "figure {id}: {}", claim.name);
        }
    }
    assert_eq!(named("6"), ["6a", "6b", "6c", "6d"]);
    assert_eq!(named("16"), ["16a", "16b"]);
    assert_eq!(named("III"), ["III"]);
    assert!(named("7").is_empty() && figure("7").unwrap().is_none());
}
