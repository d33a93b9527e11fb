//! The same figures in virtual time: the facade over the simulated fabric with the costs of real
//! hardware. Equal for equal requests, whatever this machine does meanwhile.

use super::entry::{Entry, Latency, Payload, Rate};
use super::measure::Case;
use crate::arguments;
use crate::failure::Failure;
use farside_sim::channel_bench::{CONNECTX5, Pattern, Request, measure as simulate};

/// Messages that are measured for what takes a window on this machine.
const MESSAGES_PER_WINDOW: u32 = 10;
const MESSAGES_MAX: u32 = 1_000_000;

/// Measures everything of a case on the cluster of paper 001. Receivers look at the first line of a
/// message and copy nothing, as in 001 §6.
pub(super) fn measure(case: Case, windows: u32) -> Result<Entry, Failure> {
    let run = |pattern| {
        let messages = windows.saturating_mul(MESSAGES_PER_WINDOW).min(MESSAGES_MAX);
        let request = Request { messages, ..Request::new(case.kind, case.message_bytes, pattern) };
        simulate(&request, &CONNECTX5).map_err(Failure::from)
    };
    let empty = Entry::new(case.kind, case.message_bytes, case.pattern, case.peers);
    let (stream, round_trip) = match case.pattern {
        arguments::Pattern::OneToOne => (run(Pattern::Stream)?, run(Pattern::PingPong)?.round_trip),
        arguments::Pattern::ManyToOne => (run(Pattern::ManyToOne(case.peers))?, None),
        arguments::Pattern::OneToMany => (run(Pattern::OneToMany(case.peers))?, None),
    };
    let half = |ns: u64| ns as f64 / 2.0;
    let always = |rate| Some(Rate { best: rate, median: rate });
    Ok(Entry {
        payload: Payload::Untouched,
        iterations: u64::from(stream.request.messages),
        latency_ns: round_trip.map(|trip| Latency {
            best: half(trip.best_ns),
            median: half(trip.median_ns),
            p99: half(trip.p99_ns),
        }),
        messages_per_second: always(stream.messages_per_second),
        bytes_per_second: always(stream.bytes_per_second),
        cores: "each end has a core of its own, in virtual time".to_owned(),
        path: format!("simulated, {}", CONNECTX5.name),
        ..empty
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arguments::Pattern;
    use crate::bench::channels::entry::Wait;
    use farside::channel::Kind;

    #[test]
    fn virtual_time_repeats_itself() {
        let case = Case {
            kind: Kind::RingImmediate,
            message_bytes: 64,
            pattern: Pattern::OneToOne,
            peers: 1,
            payload: Payload::Copied,
            wait: Wait::Spin,
        };
        let first = measure(case, 8).unwrap();
        let latency = first.latency_ns.unwrap();
        assert!(latency.best <= latency.median && latency.median <= latency.p99);
        assert!(latency.median > 500.0 && latency.median < 5_000.0, "{latency:?}");
        assert_eq!(measure(case, 8).unwrap(), first);
    }
}
