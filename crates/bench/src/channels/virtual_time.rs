//! Figures in virtual time: the facade over the simulated fabric with the costs of real hardware. Deterministic:
//! equal cases give equal figures.

use super::entry::{Distribution, Entry, Latency, Payload, Rate, device};
use super::measure::Case;
use crate::settings;
use farside::channel::Family;
use farside_command::failure::Failure;
use farside_sim::channel_bench::{BenchRequest, CONNECTX5, Pattern, measure_each};

/// Simulated messages for each window of `--windows`.
const MESSAGES_PER_WINDOW: u32 = 10;
const MESSAGES_MAX: u32 = 1_000_000;

/// Measures latency and stream of a case on the simulated cluster of paper 001. Receivers read the first line of a
/// message and copy nothing, as in 001 §6.
pub(super) fn measure(case: Case, windows: u32) -> Result<Entry, Failure> {
    let run = |pattern| {
        let messages = windows.saturating_mul(MESSAGES_PER_WINDOW).min(MESSAGES_MAX);
        let request = BenchRequest {
            messages,
            device: case.device,
            prefetch_bytes: case.prefetch_bytes,
            copies_out: case.payload == Payload::Logged,
            outstanding: outstanding(&case),
            ..BenchRequest::new(case.kind, case.message_bytes, pattern)
        };
        measure_each(&request, &CONNECTX5).map_err(Failure::from)
    };
    let empty = Entry::new(case.kind, case.message_bytes, case.pattern, case.peers);
    let (stream, round_trip, trips_ns) = match case.pattern {
        settings::Pattern::OneToOne => {
            let (pinged, trips_ns) = run(Pattern::PingPong)?;
            (run(Pattern::Stream)?.0, pinged.round_trip, trips_ns)
        }
        settings::Pattern::ManyToOne => (run(Pattern::ManyToOne(case.peers))?.0, None, Vec::new()),
        settings::Pattern::OneToMany => (run(Pattern::OneToMany(case.peers))?.0, None, Vec::new()),
    };
    let trips_ns = trips_ns.into_iter().map(|ns| ns as f64).collect();
    let distribution = if case.distribution { Distribution::of(trips_ns) } else { None };
    let half = |ns: u64| ns as f64 / 2.0;
    let always = |rate| Some(Rate { best: rate, median: rate });
    Ok(Entry {
        payload: match case.payload {
            Payload::Logged => Payload::Logged,
            _ => Payload::Untouched,
        },
        device: device(case.device),
        prefetch_bytes: case.prefetch_bytes,
        distribution,
        iterations: u64::from(stream.request.messages),
        latency_ns: round_trip.map(|trip| Latency {
            best: half(trip.best_ns),
            median: half(trip.median_ns),
            p99: half(trip.p99_ns),
        }),
        messages_per_second: always(stream.messages_per_second),
        bytes_per_second: always(stream.bytes_per_second),
        cores: "each end has its own core, in virtual time".to_owned(),
        path: format!("simulated, {}", CONNECTX5.name),
        ..empty
    })
}

/// Returns the limit on outstanding messages: 16 in a read ring with several readers, as in 001 §6.3.
fn outstanding(case: &Case) -> Option<u32> {
    let shared = case.pattern == settings::Pattern::OneToMany;
    (shared && case.kind.family() == Family::ReadRing).then_some(16)
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside::channel::Kind;

    #[test]
    fn virtual_time_is_deterministic() {
        let case = Case { message_bytes: 64, ..Case::plain(Kind::RingImmediate) };
        let first = measure(case, 8).unwrap();
        let latency = first.latency_ns.unwrap();
        assert!(latency.best <= latency.median && latency.median <= latency.p99);
        assert!(latency.median > 500.0 && latency.median < 5_000.0, "{latency:?}");
        assert_eq!(measure(case, 8).unwrap(), first);
        let each = Case { distribution: true, ..case };
        let distribution = measure(each, 8).unwrap().distribution.unwrap();
        assert_eq!(distribution.round_trips, 80);
        assert!((distribution.p50_ns - 2.0 * latency.median).abs() < 1.0, "{distribution:?}");
    }
}
