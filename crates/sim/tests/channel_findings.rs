//! The findings of paper 001 §6, as ratios in virtual time on the profile of its cluster. The comment of each test
//! quotes the paper; `crates/sim/CHANNELS.md` contains the results and the reasons for differences, and the last test
//! compares it with the measurement.

use farside::ErrorCode;
use farside::channel::{DeviceWords, Kind};
use farside_sim::channel_bench::{
    BenchRequest, CONNECTX5, ChannelCluster, FINDINGS, Finding, Pattern, document, measure,
};
use farside_sim::fabric::EFA;

/// The measured numbers of one finding.
struct Figures(Vec<(String, f64)>);

impl Figures {
    fn of(name: &str) -> Self {
        let finding = Finding::named(name).unwrap_or_else(|| panic!("no finding {name}"));
        let figures = (finding.figures)().unwrap();
        Self(figures.into_iter().map(|figure| (figure.label, figure.value)).collect())
    }

    fn value(&self, label: &str) -> f64 {
        let found = self.0.iter().find(|(name, _)| name == label);
        found.unwrap_or_else(|| panic!("no figure {label} in {:?}", self.0)).1
    }

    /// Asserts that a figure is between bounds.
    #[track_caller]
    fn within(&self, label: &str, low: f64, high: f64) {
        let value = self.value(label);
        assert!(
            low <= value && value <= high,
            "{label}: {value}, not {low} to {high}: {:?}",
            self.0
        );
    }
}

/// "the copy requirement caused the client to experience higher request latencies [...] The
/// difference becomes more pronounced for large messages. In addition, the average throughput was
/// by 0.2M req/sec higher for the zero-copy system" (§6.1, figure 4).
#[test]
fn a_copy_of_every_message_costs_latency_and_throughput_more_with_size() {
    let figures = Figures::of("zero-copy");
    // A copy of 64 B may overlap with the last poll of a round trip.
    let mut last = 0.999;
    for bytes in [64, 1_024, 4_096, 16_384] {
        let trip = figures.value(&format!("round trip, {bytes} B"));
        assert!(trip > last, "{bytes} B: {trip} after {last}");
        last = trip;
        figures.within(&format!("rate, {bytes} B"), 0.0, 0.99);
    }
    assert!(last > 1.15, "{last}");
    figures.within("rate, 4096 B", 0.4, 0.7);
}

/// "All benchmarked channels requiring one HRT have approximately the same latency." (§6.1,
/// figure 5)
#[test]
fn channels_of_one_half_round_trip_have_approximately_the_same_latency() {
    let figures = Figures::of("equal latency");
    let receives = [Kind::Send, Kind::SendShared, Kind::RingImmediate, Kind::WriteSlotImmediate];
    for kind in receives {
        // Consuming a receive costs the adapter and the processor 0.08 us each.
        figures.within(&format!("{kind}, 64 B"), 1.0, 1.15);
        figures.within(&format!("{kind}, 1024 B"), 0.97, 1.03);
        figures.within(&format!("{kind}, 8192 B"), 0.97, 1.03);
    }
    for kind in [Kind::RingInlinedZeroing, Kind::WriteSlotInlined] {
        figures.within(&format!("{kind}, 64 B"), 0.97, 1.03);
        figures.within(&format!("{kind}, 1024 B"), 0.97, 1.06);
    }
}

/// "the 'ring inlined bell with zeroing' has a bit higher latency for large messages as the receiver
/// needs to zero processed messages before sending a reply" (§6.1).
#[test]
fn zeroing_costs_latency_of_large_messages() {
    let figures = Figures::of("zeroing, latency");
    figures.within("ring-inlined-zeroing, 64 B", 1.0, 1.02);
    figures.within("ring-inlined-zeroing, 1024 B", 1.03, 1.08);
    figures.within("ring-inlined-zeroing, 8192 B", 1.1, 1.4);
}

/// "the 'ring detached bell' channel has higher latency than other rings as it requires two work
/// requests per message" (§6.1).
#[test]
fn a_detached_bell_costs_latency() {
    let figures = Figures::of("detached bell, latency");
    figures.within("ring-detached, 64 B", 1.3, 1.8);
    figures.within("ring-detached, 1024 B", 1.1, 1.4);
    figures.within("ring-detached, 8192 B", 1.05, 1.3);
}

/// "shared and read rings have the highest median latency as they require multiple HRTs to send
/// data" (§6.1).
#[test]
fn shared_and_read_rings_are_slower_by_their_half_round_trips() {
    let figures = Figures::of("half round trips");
    for (kind, trips) in [
        (Kind::SharedRingInlinedZeroing, 5.0),
        (Kind::SharedRingImmediate, 5.0),
        (Kind::ReadRingNotify, 4.0),
        (Kind::ReadRingDetached, 5.0),
        (Kind::ReadRingInlined, 5.0),
    ] {
        figures.within(&format!("{kind}, of {trips}"), 0.85 * trips, 1.05 * trips);
    }
}

/// "The first peak depicts latencies when the receiver fetched the new bell with one READ request.
/// The second one is when the fetching the new bell took two READ requests." (§6.1, figure 6)
#[test]
fn round_trips_of_read_rings_differ_by_one_read_of_the_bell() {
    let figures = Figures::of("read rings, spread");
    figures.within("64 B", 0.9, 1.2);
    figures.within("8192 B", 0.6, 1.2);
}

/// "The lowest throughput for small messages has been observed for methods requiring the receiver to
/// post RECEIVE requests, which limited the speed of the protocol. For large messages, however, they
/// achieve maximum performance." (§6.2, figure 7)
#[test]
fn receives_limit_the_throughput_of_small_messages_only() {
    let figures = Figures::of("receives, throughput");
    for kind in [Kind::Send, Kind::RingImmediate] {
        let small = figures.value(&format!("{kind}, 64 B"));
        let others = [Kind::RingDetached, Kind::RingInlinedZeroing];
        for other in others {
            assert!(small < figures.value(&format!("{other}, 64 B")), "{kind} beside {other}");
        }
        figures.within(&format!("{kind}, 64 B"), 0.5, 0.9);
        for bytes in [1_024, 8_192] {
            let large = figures.value(&format!("{kind}, {bytes} B"));
            for other in others {
                let beside = figures.value(&format!("{other}, {bytes} B"));
                assert!(large >= beside, "{kind} beside {other}, {bytes} B");
            }
            assert!(large >= 1.0, "{kind} over ring-inlined, {bytes} B");
        }
    }
}

/// "Our inlined bell algorithm without zeroing outperforms the counterpart with zeroing, as it does
/// not require the CPU to clear processed messages." (§6.2, figure 7)
#[test]
fn throughput_is_higher_without_zeroing() {
    let figures = Figures::of("zeroing, throughput");
    // The sender's doorbells are the limit of both.
    figures.within("ring-inlined, 64 B", 0.99, 1.1);
    figures.within("ring-inlined, 1024 B", 1.3, 2.0);
    figures.within("ring-inlined, 8192 B", 1.3, 2.0);
}

/// "Due to the pipelining effect between outstanding requests, the detached bell method performed as
/// the inlined bell method without zeroing for some sizes. Nonetheless, the second WRITE request
/// always reduces the link utilization." (§6.2)
#[test]
fn a_detached_bell_costs_throughput_but_for_some_sizes() {
    let figures = Figures::of("detached bell, throughput");
    figures.within("ring-detached, 64 B", 0.6, 0.9);
    // Faster, since the other receiver waits for two distant lines of each message.
    figures.within("ring-detached, 256 B", 1.0, 1.25);
    figures.within("ring-detached, 1024 B", 1.0, 1.25);
    figures.within("ring-detached, 4096 B", 0.95, 0.995);
    figures.within("ring-detached, 65536 B", 0.95, 0.9999);
}

/// "As fetching the head is on the critical path, moving the head to the device reduced the latency,
/// whereas the tail location had no effect. The difference between 'no device memory' and 'head on
/// device' is equal to the round trip latency of the PCIe bus." (§6.3, figure 8)
#[test]
fn a_head_at_the_adapter_saves_a_round_trip_of_the_bus() {
    let figures = Figures::of("device memory, latency");
    let bus_ns = figures.value("one READ over the bus, ns");
    for kind in [Kind::SharedRingInlinedZeroing, Kind::SharedRingImmediate] {
        figures.within(&format!("{kind}, head, ns saved one way"), 0.8 * bus_ns, 1.05 * bus_ns);
        figures.within(&format!("{kind}, tail, ns saved one way"), -1.0, 1.0);
        figures.within(&format!("{kind}, both, ns saved one way"), 0.8 * bus_ns, 1.05 * bus_ns);
        figures.within(&format!("{kind}, head, round trip"), 0.85, 0.95);
        // One more READ of the tail, which returns too early.
        let reads = |device| {
            let request = BenchRequest { device, ..BenchRequest::new(kind, 64, Pattern::PingPong) };
            measure(&request, &CONNECTX5).unwrap().sender_requests
        };
        let more = reads(DeviceWords::Tail) - reads(DeviceWords::Nothing);
        assert!((0.9..1.1).contains(&more), "{kind}: {more}");
    }
}

/// "the performance of the channel has been bottlenecked by the performance of ATOMIC requests
/// against the main memory. When the head has been moved to the device, the receiver experienced a
/// more than 4x improvement in throughput" (§6.3, figure 9a).
#[test]
fn a_head_at_the_adapter_serves_eight_clients_faster() {
    let figures = Figures::of("device memory, throughput");
    let atomics = 1e3 / CONNECTX5.hardware.atomic_host_ns as f64;
    for kind in [Kind::SharedRingInlinedZeroing, Kind::SharedRingImmediate] {
        figures.within(&format!("{kind}, M/s with main memory"), 0.95 * atomics, 1.02 * atomics);
    }
    // The receiver's processor is the limit then, and for the other channel its receives.
    figures.within("shared-ring-inlined-zeroing", 3.8, 4.5);
    figures.within("shared-ring-immediate", 2.2, 3.0);
}

/// "The IMM-based algorithm has the highest throughput as its clients do not waste the network on
/// fetching the bell [...] The detached bell performs better than the inlined one, as the detached
/// bell allowed the clients to prefetch multiple records" (§6.3, figure 9b).
#[test]
fn read_ring_throughput_ranks_notify_detached_inlined() {
    let figures = Figures::of("broadcast");
    for bytes in [64, 256, 1_024, 4_096] {
        let notify = figures.value(&format!("read-ring-notify, {bytes} B"));
        let detached = figures.value(&format!("read-ring-detached, {bytes} B"));
        // The sender's processor time for notifications is the limit for short messages.
        let least = if bytes <= 256 { 0.9 } else { 1.02 };
        assert!(notify > least * detached, "{bytes} B: {notify}, detached {detached}");
        assert!(detached > 1.5, "{bytes} B: {detached}");
    }
}

/// "Prefetching improves the throughput of the receiver as it can read multiple records" (§6.3,
/// figure 10).
#[test]
fn prefetching_several_records_raises_the_throughput() {
    let figures = Figures::of("prefetching, throughput");
    figures.within("64 B, fetching 512 B", 4.0, 8.0);
    figures.within("64 B, fetching 4096 B", 10.0, 30.0);
    figures.within("256 B, fetching 4096 B", 5.0, 15.0);
    figures.within("1024 B, fetching 4096 B", 1.5, 4.0);
    // A record that does not fit is fetched twice.
    figures.within("1024 B, fetching 512 B", 0.4, 0.6);
}

/// "but has a negative impact on the latency of small records" (§6.3, figure 10).
#[test]
fn prefetching_more_costs_latency_of_small_records() {
    let figures = Figures::of("prefetching, latency");
    figures.within("1024 B", 1.03, 1.2);
    figures.within("4096 B", 1.2, 1.6);
    assert!(figures.value("8192 B") > figures.value("4096 B"));
    // No prefetching takes two READs; with a checksum one is enough.
    assert!(figures.value("none") > figures.value("8192 B"));
}

#[test]
fn equal_requests_give_equal_entries() {
    for pattern in [Pattern::PingPong, Pattern::Stream, Pattern::ManyToOne(3)] {
        let request =
            BenchRequest { messages: 100, ..BenchRequest::new(Kind::RingInlined, 64, pattern) };
        let entry = measure(&request, &CONNECTX5).unwrap();
        assert_eq!(entry, measure(&request, &CONNECTX5).unwrap());
        assert_eq!(entry.round_trip.is_some(), pattern == Pattern::PingPong);
    }
}

/// A receiver has several senders, for every channel.
#[test]
fn every_channel_is_measured_with_many_senders() {
    for kind in Kind::ALL {
        let request =
            BenchRequest { messages: 300, ..BenchRequest::new(kind, 64, Pattern::ManyToOne(4)) };
        let rate = measure(&request, &CONNECTX5).unwrap().messages_per_second;
        assert!(rate > 1e5, "{kind}: {rate}");
    }
}

#[test]
fn unmeasurable_requests_report_the_reason() {
    let cloud = ChannelCluster { name: "efa", capabilities: EFA, ..CONNECTX5 };
    let ring = BenchRequest::new(Kind::RingInlined, 64, Pattern::Stream);
    assert_eq!(measure(&ring, &cloud).unwrap_err().code, ErrorCode::FabricLacks);
}

#[test]
fn the_document_is_what_is_measured() {
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/CHANNELS.md");
    let (written, measured) = (std::fs::read_to_string(file).unwrap(), document().unwrap());
    let again = "regenerate it: see the first lines of crates/sim/CHANNELS.md";
    for (written, measured) in written.lines().zip(measured.lines()) {
        assert_eq!(written, measured, "{again}");
    }
    assert_eq!(written, measured, "{again}");
    for finding in &FINDINGS {
        assert!(measured.contains(&format!("| {} |", finding.name)), "{}", finding.name);
    }
}
