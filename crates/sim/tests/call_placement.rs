//! Adaptive placement on a workload with changing lists, load and link (003 §5.2), and the document that shows it; all
//! times are virtual, so they are exact.

use farside_sim::call_bench::{CALLS, PHASES, SimSite, Study, document, figures};

#[test]
fn placement_is_near_best_site_per_phase_and_best_overall() {
    let study = Study::run().expect("it runs");
    let mut best_places = Vec::new();
    for (phase, times) in PHASES.iter().zip(&study.phases) {
        let (best, best_ns) = times.best();
        let calls: u32 = times.chosen.iter().sum();
        assert_eq!(calls, CALLS);
        assert!(times.chosen_ns * 10 <= best_ns * 11, "{}: {times:?}", phase.name);
        best_places.push(best);
    }
    for place in SimSite::ALL {
        assert!(best_places.contains(&place), "{place} is never the best: {best_places:?}");
    }
    let (chosen_ns, fixed_ns) = study.total();
    assert!(fixed_ns.iter().all(|fixed_ns| chosen_ns < *fixed_ns), "{chosen_ns} {fixed_ns:?}");
}

#[test]
fn crossover_is_at_four_nodes_and_absent_for_bluefield() {
    let all = figures().expect("they are measured");
    let scan = &all[0];
    // With the fastest adapter the crossover is earlier; at four nodes both are faster than one-sided requests.
    assert_eq!(scan.crossover("NFP6000"), Some(2.0));
    assert_eq!(scan.crossover("LiquidIOII"), Some(4.0));
    assert_eq!(scan.crossover("BlueField-1"), None);
}

#[test]
fn the_figures_have_the_shapes_of_the_paper() {
    let all = figures().expect("they are measured");
    let [_, scan_bytes, hash, hash_bytes, cost] = &all[..] else { panic!("five figures") };
    for figure in [scan_bytes, hash_bytes] {
        for (at, line) in figure.lines.iter().enumerate() {
            let grows = line.points.windows(2).all(|two| two[0].1 < two[1].1);
            let constant = line.points.windows(2).all(|two| two[0].1.total_cmp(&two[1].1).is_eq());
            assert_eq!((grows, constant), (at == 0, at > 0), "{}", line.name);
        }
    }
    // Comparable (003 §4.2): within a factor of 2.6 everywhere, of 1.5 from 256 KiB on.
    for line in &hash.lines[1..] {
        for (base, point) in hash.lines[0].points.iter().zip(&line.points) {
            let ratio = point.1 / base.1;
            let most = if base.0 >= 262_144.0 { 1.5 } else { 2.6 };
            assert!((1.0 / most..most).contains(&ratio), "{} {base:?} {point:?}", line.name);
        }
    }
    // 003 §5.1, with the fastest adapter: site by site, N = 1 first.
    let [client, host, nic] = [0, 1, 2].map(|at| &cost.lines[at].points);
    let last = client.len() - 1;
    assert!(client[0].1 < nic[0].1 && nic[0].1 < host[0].1, "latency of one access");
    assert!(host[last].1 < nic[last].1 && nic[last].1 < client[last].1, "latency of many");
    assert!(nic[last].0 < client[last].0 && host[last].0 < client[last].0, "cost of many");
    assert!(nic[0].0 < host[0].0, "a core at an adapter is cheaper");
    // Unlike the paper: the host's core is paid for while a call waits for it.
    assert!(client[0].0 < host[0].0 && client[1].0 > host[1].0, "cost of one access, and of eight");
    assert!(nic[last].0 > host[last].0, "the host is cheaper in the end");
    assert!(nic[last].0 - nic[0].0 > host[last].0 - host[0].0, "and its cost grows faster");
}

#[test]
fn the_document_is_what_is_measured() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/CALLS.md");
    let written = std::fs::read_to_string(file).expect("crates/sim/CALLS.md");
    assert_eq!(document().expect("it is made"), written, "regenerate it: see its first lines");
}
