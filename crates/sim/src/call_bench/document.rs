//! The document with the comparison to the paper and the changing workload, as Markdown.

use super::{
    CALLS, Figure, NETWORK_PS_PER_BYTE, PHASES, PRICES, ROUND_TRIP_NS, SimSite, Study, figures,
};
use farside::Error;
use std::fmt::Write;

/// Returns the document `crates/sim/CALLS.md`: Figures 3 to 7 of 003 from calls in virtual time, and the choices of
/// the placement algorithm. Deterministic.
///
/// # Errors
/// As [`figures`] and [`Study::run`].
pub fn document() -> Result<String, Error> {
    let all = figures()?;
    let mut out = String::from(HEAD);
    findings(&mut out, &all);
    for figure in &all {
        if figure.number == 7 {
            cost_table(&mut out, figure);
        } else {
            figure_table(&mut out, figure);
        }
    }
    study(&mut out, &Study::run()?);
    Ok(out)
}

const HEAD: &str = "\
# Remote memory calls in virtual time

Printed by `cargo run --release -p farside-sim --example call_figures`; the tests of
`crates/sim/tests/call_placement.rs` hold it to what is computed. `farside rmc figures` prints and draws
the same.

**All of this is a model.** The real callers and executors run over the simulated fabric, whose latencies
are those that 003 §4 takes for its own model; `call_bench` lists each number with its source, and which
were chosen here. Nothing was measured on an adapter.
";

/// Time of a READ of 1 MiB by a client, as in 003 §4.2: computed, not simulated.
fn one_read_us() -> f64 {
    let bytes_ns = ((1_u64 << 20) * NETWORK_PS_PER_BYTE).div_ceil(1_000);
    (ROUND_TRIP_NS + bytes_ns) as f64 / 1e3
}

/// Writes the findings of the paper with the values measured here.
fn findings(out: &mut String, all: &[Figure]) {
    let at = |name: &str| {
        let nodes = all.first().and_then(|scan| scan.crossover(name));
        nodes.map_or("nowhere".to_owned(), |nodes| format!("from {nodes} nodes"))
    };
    let most = |figure: usize, line: usize| {
        let last = all.get(figure).and_then(|figure| figure.lines.get(line)?.points.last());
        last.map_or(0.0, |point| point.1)
    };
    let ratio = |line| format!("{:.2}", most(2, line) / most(2, 0));
    let by_one_read = |line| format!("{:.2}", most(2, line) / one_read_us());
    let (scan, hash) = ([1, 0].map(|line| most(1, line)), [1, 0].map(|line| most(3, line)));
    out.push_str("\n## Findings\n\n| figure | the paper | here |\n| --- | --- | --- |\n");
    let crossover = [at("NFP6000"), at("LiquidIOII"), at("BlueField-1")];
    let rows = [
        (
            "3",
            "calls on the two fast adapters are faster \"when scanning lists with 4 or more nodes\"; on \
             BlueField-1 slower",
            format!(
                "both are faster with 4 or more nodes: {} with 0.6 us, {} with 1.7 us; {} with 3.1 us. An \
                 answer needs 1.35 us here; the paper does not say, and with 1.8 us the lines of 1.7 us \
                 would cross at 4.1 nodes. Those of 0.6 us cross below 2 nodes whatever it is",
                crossover[0], crossover[1], crossover[2]
            ),
        ),
        (
            "4",
            "24 bytes for the request, 8 for the result; one-sided grows with the list",
            format!("{} B for every list; one-sided {} B for 128 nodes", scan[0], scan[1]),
        ),
        (
            "5",
            "one-sided has comparable latency over all sizes; BlueField-1 once buffers are large",
            format!(
                "latency by one-sided at 1 MiB: {}, {} and {} for 0.6, 1.7 and 3.1 us. Unlike the paper's \
                 model, a remote reader reads 64 KiB at a time, one after the other; by \
                 the one READ of 1 MiB of the paper, {:.1} us: {}, {} and {}",
                ratio(1),
                ratio(2),
                ratio(3),
                one_read_us(),
                by_one_read(1),
                by_one_read(2),
                by_one_read(3)
            ),
        ),
        (
            "6",
            "the digest alone against the whole buffer",
            format!("{} B for every buffer; one-sided {} B for 1 MiB", hash[0], hash[1]),
        ),
        (
            "7",
            "one access: one-sided is fastest, then the NIC; many: the host, then the NIC. One-sided \
             costs more than both, the NIC less than the host; one-sided's cost grows fastest, the NIC's \
             faster than the host's",
            costs(all.last()),
        ),
    ];
    for (figure, paper, here) in rows {
        let _ = writeln!(out, "| {figure} | {paper} | {here} |");
    }
}

/// Describes the most and the least expensive site for the numbers of accesses of Figure 7.
fn costs(figure: Option<&Figure>) -> String {
    let cost = |place: SimSite, at: usize| {
        let line = figure.and_then(|figure| figure.lines.get(place as usize));
        line.and_then(|line| line.points.get(at)).map_or(0.0, |point| point.0)
    };
    let accesses = super::figures::ACCESSES;
    let those = |holds: &dyn Fn(usize) -> bool| {
        let found = accesses.iter().enumerate().filter(|(at, _)| holds(*at));
        let found: Vec<String> = found.map(|(_, accesses)| accesses.to_string()).collect();
        found.join(", ")
    };
    let dearest = those(&|at| cost(SimSite::Client, at) > cost(SimSite::Host, at));
    let cheaper = those(&|at| cost(SimSite::Nic, at) < cost(SimSite::Host, at));
    format!(
        "latencies and growth so (the table below). With the prices chosen here one-sided costs more than \
         the host for N = {dearest}, not for N = 1 ({:.2} against {:.2}): the host's core is paid for from \
         when a call has come, before it takes it up. The NIC costs less than the host for N = {cheaper}",
        cost(SimSite::Client, 0),
        cost(SimSite::Host, 0)
    )
}

fn figure_table(out: &mut String, figure: &Figure) {
    let Figure { number, title, across, up, lines } = figure;
    let _ = write!(out, "\n## Figure {number}, {title} ({up})\n\n| {across} |");
    for line in lines {
        let _ = write!(out, " {} |", line.name);
    }
    let _ = writeln!(out, "\n| --- |{}", " --- |".repeat(lines.len()));
    for (at, (size, _)) in
        lines.first().map(|line| &line.points[..]).unwrap_or_default().iter().enumerate()
    {
        let _ = write!(out, "| {size} |");
        for line in lines {
            let value = line.points.get(at).map_or(0.0, |point| point.1);
            let _ = match *up {
                "us" => write!(out, " {value:.2} |"),
                _ => write!(out, " {value} |"),
            };
        }
        out.push('\n');
    }
}

fn cost_table(out: &mut String, figure: &Figure) {
    let _ = writeln!(out, "\n## Figure 7, {}\n", figure.title);
    let _ = writeln!(
        out,
        "A core costs by the time from when a call has come until its answer leaves, with the wait until \
         the call is taken up; a client that waits for an answer lends its core to others. Prices, chosen: \
         client core {} a us, host core {}, NIC core {}, network {} a KiB. The NIC is the one of 0.6 us.\n",
        PRICES.client_core, PRICES.host_core, PRICES.nic_core, PRICES.network
    );
    out.push_str("| N |");
    for line in &figure.lines {
        let _ = write!(out, " {}: us | cost |", line.name);
    }
    let _ = writeln!(out, "\n| --- |{}", " --- | --- |".repeat(figure.lines.len()));
    for (at, accesses) in super::figures::ACCESSES.iter().enumerate() {
        let _ = write!(out, "| {accesses} |");
        for line in &figure.lines {
            let (cost, us) = line.points.get(at).copied().unwrap_or_default();
            let _ = write!(out, " {us:.2} | {cost:.2} |");
        }
        out.push('\n');
    }
}

fn study(out: &mut String, study: &Study) {
    let _ = writeln!(
        out,
        "\n## Adaptive placement\n\nA workload that changes, {CALLS} searches a phase, one after the other; \
         milliseconds of virtual time for all of a phase. The chooser sees what a caller sees: how many \
         nodes a search is said to pass, and how long its calls took. Its model of the places is that of \
         the first phase; load is a wait before a call begins, as others' calls would make it; what changes after that it has to measure.\n"
    );
    out.push_str(
        "| phase | nodes | until the NIC begins | until the host begins | network | local link |",
    );
    for place in SimSite::ALL {
        let _ = write!(out, " {place} |");
    }
    out.push_str(" chosen | by the best |\n");
    let _ = writeln!(out, "| --- |{}", " --- |".repeat(5 + SimSite::ALL.len() + 2));
    let ms = |ns: u64| ns as f64 / 1e6;
    let us = |ns: u64| ns as f64 / 1e3;
    for (phase, times) in PHASES.iter().zip(&study.phases) {
        let _ = write!(
            out,
            "| {} | {} | {} us | {} us | {} us | {} us |",
            phase.name,
            phase.nodes,
            us(phase.nic_start_ns),
            us(phase.host_start_ns),
            us(phase.round_trip_ns),
            us(phase.nic.host_round_trip_ns)
        );
        for ns in times.fixed_ns {
            let _ = write!(out, " {:.2} |", ms(ns));
        }
        let ratio = times.chosen_ns as f64 / times.best().1.max(1) as f64;
        let _ = writeln!(out, " {:.2} | {ratio:.3} |", ms(times.chosen_ns));
    }
    let (chosen_ns, fixed_ns) = study.total();
    out.push_str("| all | | | | | |");
    for ns in fixed_ns {
        let _ = write!(out, " {:.2} |", ms(ns));
    }
    let best_ns = fixed_ns.into_iter().min().unwrap_or(1).max(1);
    let _ = writeln!(out, " {:.2} | {:.3} |", ms(chosen_ns), chosen_ns as f64 / best_ns as f64);
}
