//! The figures of paper 000 in virtual time: what holds of the model, in ranges around the paper's ratios.

use farside_sim::reproduce_000::{FIGURES, PaperFigure, PaperLine, figure, named};

fn shown(id: &str) -> PaperFigure {
    figure(id).unwrap().unwrap()
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

#[test]
fn figures_repeat_and_explain_their_deviations() {
    for id in FIGURES {
        let one = shown(id);
        if ["3a", "10a"].contains(&id) {
            assert_eq!(one, shown(id), "figure {id}");
        }
        for claim in &one.claims {
            assert_eq!(claim.deviates(), !claim.reason.is_empty(), "figure {id}: {}", claim.name);
        }
    }
    assert_eq!(named("6"), ["6a", "6b", "6c", "6d"]);
    assert_eq!(named("III"), ["III"]);
    assert!(named("7").is_empty() && figure("7").unwrap().is_none());
}
