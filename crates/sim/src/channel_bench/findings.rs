//! The findings of 001 §6 as ratios of measurements. `crates/sim/tests/channel_findings.rs` asserts those that hold;
//! [`document`](super::document()) prints them.

use super::{BenchEntry, BenchRequest, CONNECTX5, Pattern, Times, measure};
use farside::Error;
use farside::channel::table;
use farside::channel::{DeviceWords, Kind};

/// One number of a finding.
#[derive(Clone, PartialEq, Debug)]
pub struct Figure {
    /// Name of the number.
    pub label: String,
    /// Its value: a ratio, unless the label has a unit.
    pub value: f64,
}

/// A statement of the paper and the measured numbers.
#[derive(Clone, Copy, Debug)]
pub struct Finding {
    /// A short name.
    pub name: &'static str,
    /// Quotation of the paper, with its location.
    pub paper: &'static str,
    /// Meaning of the numbers.
    pub what: &'static str,
    /// Interpretation of the numbers, with the reasons for differences.
    pub reading: &'static str,
    /// Measures the numbers.
    ///
    /// # Errors
    /// As [`measure`].
    pub figures: fn() -> Result<Vec<Figure>, Error>,
}

impl Finding {
    /// Returns the finding of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        FINDINGS.iter().find(|finding| finding.name == name)
    }
}

/// Representative sizes of small, medium and large messages. The first is inline in its request; the others are fetched
/// over the bus.
const SIZES: [u32; 3] = [64, 1_024, 8_192];

fn figure(label: impl Into<String>, value: f64) -> Figure {
    Figure { label: label.into(), value }
}

fn ping(kind: Kind, bytes: u32) -> Result<f64, Error> {
    median(&BenchRequest::new(kind, bytes, Pattern::PingPong))
}

fn median(request: &BenchRequest) -> Result<f64, Error> {
    let entry = measure(request, &CONNECTX5)?;
    Ok(entry.round_trip.map_or(0.0, |times| times.median_ns as f64))
}

fn stream(kind: Kind, bytes: u32) -> Result<f64, Error> {
    rate(&BenchRequest { messages: 2_000, ..BenchRequest::new(kind, bytes, Pattern::Stream) })
}

fn rate(request: &BenchRequest) -> Result<f64, Error> {
    measure(request, &CONNECTX5).map(|entry: BenchEntry| entry.messages_per_second)
}

/// Returns the ratio of `of` for each kind and size to that of `to`.
fn over(
    kinds: &[Kind],
    to: Kind,
    sizes: &[u32],
    of: fn(Kind, u32) -> Result<f64, Error>,
) -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for bytes in sizes {
        let base = of(to, *bytes)?;
        for kind in kinds {
            figures.push(figure(format!("{kind}, {bytes} B"), of(*kind, *bytes)? / base));
        }
    }
    Ok(figures)
}

fn equal_latency() -> Result<Vec<Figure>, Error> {
    let kinds = [
        Kind::Send,
        Kind::SendShared,
        Kind::RingImmediate,
        Kind::RingInlinedZeroing,
        Kind::WriteSlotInlined,
        Kind::WriteSlotImmediate,
    ];
    over(&kinds, Kind::RingInlined, &SIZES, ping)
}

fn half_round_trips() -> Result<Vec<Figure>, Error> {
    let base = ping(Kind::RingInlined, 64)? / 2.0;
    let kinds = [
        // Half round trips of the message, and of the path that the tail takes back.
        (Kind::SharedRingInlinedZeroing, 2),
        (Kind::SharedRingImmediate, 2),
        (Kind::ReadRingNotify, 1),
        (Kind::ReadRingDetached, 1),
        (Kind::ReadRingInlined, 1),
    ];
    let mut figures = Vec::new();
    for (kind, back) in kinds {
        let trips = f64::from(table::measured(kind).half_round_trips.least() + back);
        let measured = ping(kind, 64)? / base;
        figures.push(figure(format!("{kind}, of {trips}"), measured));
    }
    Ok(figures)
}

fn detached_latency() -> Result<Vec<Figure>, Error> {
    over(&[Kind::RingDetached], Kind::RingInlined, &SIZES, ping)
}

fn zeroing_latency() -> Result<Vec<Figure>, Error> {
    over(&[Kind::RingInlinedZeroing], Kind::RingInlined, &SIZES, ping)
}

fn read_ring_spread() -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for bytes in [64, 8_192] {
        // Consecutive READs bring one message each.
        let read_ns = 1e9 / stream(Kind::ReadRingInlined, bytes)?;
        let request = BenchRequest::new(Kind::ReadRingInlined, bytes, Pattern::PingPong);
        if let Some(trip) = measure(&request, &CONNECTX5)?.round_trip {
            let spread_ns = (trip.p99_ns - trip.best_ns) as f64;
            figures.push(figure(format!("{bytes} B"), spread_ns / read_ns));
        }
    }
    Ok(figures)
}

fn small_rate() -> Result<Vec<Figure>, Error> {
    let kinds = [Kind::Send, Kind::RingImmediate, Kind::RingDetached, Kind::RingInlinedZeroing];
    over(&kinds, Kind::RingInlined, &SIZES, stream)
}

fn zeroing_rate() -> Result<Vec<Figure>, Error> {
    over(&[Kind::RingInlined], Kind::RingInlinedZeroing, &SIZES, stream)
}

fn detached_rate() -> Result<Vec<Figure>, Error> {
    over(&[Kind::RingDetached], Kind::RingInlined, &[64, 256, 1_024, 4_096, 65_536], stream)
}

fn zero_copy() -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for bytes in [64, 1_024, 4_096, 16_384] {
        let request = |pattern, copies_out| BenchRequest {
            copies_out,
            ..BenchRequest::new(Kind::Send, bytes, pattern)
        };
        let trip = |copies_out| median(&request(Pattern::PingPong, copies_out));
        let rate = |copies_out| rate(&request(Pattern::Stream, copies_out));
        figures.push(figure(format!("round trip, {bytes} B"), trip(true)? / trip(false)?));
        figures.push(figure(format!("rate, {bytes} B"), rate(true)? / rate(false)?));
    }
    Ok(figures)
}

const SHARED: [Kind; 2] = [Kind::SharedRingInlinedZeroing, Kind::SharedRingImmediate];

fn device_latency() -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for kind in SHARED {
        let times = |device| {
            let request = BenchRequest { device, ..BenchRequest::new(kind, 64, Pattern::PingPong) };
            let entry = measure(&request, &CONNECTX5)?;
            let median = |times: Option<Times>| times.map_or(0.0, |times| times.median_ns as f64);
            Ok::<_, Error>((median(entry.one_way), median(entry.round_trip)))
        };
        let memory = times(DeviceWords::Nothing)?;
        for (name, device) in
            [("head", DeviceWords::Head), ("tail", DeviceWords::Tail), ("both", DeviceWords::All)]
        {
            let device = times(device)?;
            figures.push(figure(format!("{kind}, {name}, ns saved one way"), memory.0 - device.0));
            figures.push(figure(format!("{kind}, {name}, round trip"), device.1 / memory.1));
        }
    }
    figures.push(figure("one READ over the bus, ns", CONNECTX5.hardware.pcie_read_ns as f64));
    Ok(figures)
}

fn device_rate() -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for kind in SHARED {
        let request =
            BenchRequest { messages: 8_000, ..BenchRequest::new(kind, 16, Pattern::ManyToOne(8)) };
        let device = BenchRequest { device: DeviceWords::Head, ..request };
        let memory = rate(&request)?;
        figures.push(figure(format!("{kind}"), rate(&device)? / memory));
        figures.push(figure(format!("{kind}, M/s with main memory"), memory / 1e6));
    }
    Ok(figures)
}

fn broadcast(kind: Kind, bytes: u32) -> Result<f64, Error> {
    let request = BenchRequest {
        outstanding: Some(16),
        messages: 8_000,
        ..BenchRequest::new(kind, bytes, Pattern::OneToMany(4))
    };
    rate(&request)
}

fn broadcast_rate() -> Result<Vec<Figure>, Error> {
    let kinds = [Kind::ReadRingNotify, Kind::ReadRingDetached];
    over(&kinds, Kind::ReadRingInlined, &[64, 256, 1_024, 4_096], broadcast)
}

fn prefetch(bytes: u32, prefetch_bytes: u32, pattern: Pattern) -> BenchRequest {
    BenchRequest { prefetch_bytes, ..BenchRequest::new(Kind::ReadRingInlined, bytes, pattern) }
}

fn prefetch_rate() -> Result<Vec<Figure>, Error> {
    let mut figures = Vec::new();
    for bytes in [64, 256, 1_024] {
        let base = rate(&prefetch(bytes, 0, Pattern::Stream))?;
        for prefetch_bytes in [512, 4_096] {
            let with = rate(&prefetch(bytes, prefetch_bytes, Pattern::Stream))?;
            let label = format!("{bytes} B, fetching {prefetch_bytes} B");
            figures.push(figure(label, with / base));
        }
    }
    Ok(figures)
}

fn prefetch_latency() -> Result<Vec<Figure>, Error> {
    let trip = |prefetch_bytes| median(&prefetch(64, prefetch_bytes, Pattern::PingPong));
    let base = trip(64)?;
    let mut figures = vec![figure("none", trip(0)? / base)];
    for prefetch_bytes in [1_024, 4_096, 8_192] {
        figures.push(figure(format!("{prefetch_bytes} B"), trip(prefetch_bytes)? / base));
    }
    Ok(figures)
}

/// All findings, in the order of the paper.
pub const FINDINGS: [Finding; 14] = [
    Finding {
        name: "zero-copy",
        paper: "\"the copy requirement caused the client to experience higher request latencies [...] The difference becomes more pronounced for large messages. In addition, the average throughput was by 0.2M req/sec higher for the zero-copy system\" (§6.1, figure 4)",
        what: "with a copy of each message into a log over without, channel `send`",
        reading: "As in the paper, and more with size. One core copies 10 B a nanosecond, the wire brings 12.5, so the rate of long messages falls to that of the copy.",
        figures: zero_copy,
    },
    Finding {
        name: "equal latency",
        paper: "\"All benchmarked channels requiring one HRT have approximately the same latency.\" (§6.1, figure 5)",
        what: "median round trip over that of `ring-inlined`",
        reading: "Within a few percent from the size on that is fetched over the bus, but for zeroing (below). A message of 64 B takes 13 % longer where it takes a receive: 0.08 us at the adapter for the receive and its entry, and 0.08 us for the processor to take the entry and post the next receive, of 1.2 us in all. The paper's figure is not to be had as numbers.",
        figures: equal_latency,
    },
    Finding {
        name: "zeroing, latency",
        paper: "\"the 'ring inlined bell with zeroing' has a bit higher latency for large messages as the receiver needs to zero processed messages before sending a reply\" (§6.1)",
        what: "median round trip over that of `ring-inlined`",
        reading: "As in the paper.",
        figures: zeroing_latency,
    },
    Finding {
        name: "detached bell, latency",
        paper: "\"the 'ring detached bell' channel has higher latency than other rings as it requires two work requests per message\" (§6.1)",
        what: "median round trip over that of `ring-inlined`",
        reading: "As in the paper. Most of it is not the second WRITE: the two are posted with one doorbell, and the adapter has to fetch a list of two from memory, 0.6 us, where a single request travels with its doorbell.",
        figures: detached_latency,
    },
    Finding {
        name: "half round trips",
        paper: "\"shared and read rings have the highest median latency as they require multiple HRTs to send data\" (§6.1)",
        what: "median round trip of 64 B in half round trips of `ring-inlined`; of the number that Table 2 and the way back of the tail (shared rings: one READ) give",
        reading: "Near those numbers, a little below: a half round trip of `ring-inlined` has the work of both processors in it, those of READs and atomics have that of one. Where readers poll, the message waits half a READ more for the next look, so that `read-ring-detached` and `read-ring-inlined` come to their number again.",
        figures: half_round_trips,
    },
    Finding {
        name: "read rings, spread",
        paper: "\"The first peak depicts latencies when the receiver fetched the new bell with one READ request. The second one is when the fetching the new bell took two READ requests.\" (§6.1, figure 6)",
        what: "between the shortest round trip of `read-ring-inlined` and the 99th percentile, in READs of a message",
        reading: "The slowest differ from the fastest by one READ, as in the paper. There are no two peaks: here the sender pauses for a random time before each message, so that it meets the reader's looks at every phase.",
        figures: read_ring_spread,
    },
    Finding {
        name: "receives, throughput",
        paper: "\"The lowest throughput for small messages has been observed for methods requiring the receiver to post RECEIVE requests, which limited the speed of the protocol. For large messages, however, they achieve maximum performance.\" (§6.2, figure 7)",
        what: "rate over that of `ring-inlined`",
        reading: "As in the paper.",
        figures: small_rate,
    },
    Finding {
        name: "zeroing, throughput",
        paper: "\"Our inlined bell algorithm without zeroing outperforms the counterpart with zeroing, as it does not require the CPU to clear processed messages.\" (§6.2, figure 7)",
        what: "rate of `ring-inlined` over that of `ring-inlined-zeroing`",
        reading: "As in the paper from 1 KiB on. For small messages the sender's doorbells are the limit of both.",
        figures: zeroing_rate,
    },
    Finding {
        name: "detached bell, throughput",
        paper: "\"Due to the pipelining effect between outstanding requests, the detached bell method performed as the inlined bell method without zeroing for some sizes. Nonetheless, the second WRITE request always reduces the link utilization.\" (§6.2)",
        what: "rate over that of `ring-inlined`",
        reading: "As in the paper: behind for small messages, where requests are the limit, and by the bytes of the second WRITE for large ones. In between it is ahead: the receiver of `ring-inlined` is the limit there, which waits for two distant lines of each message, the bell behind it and its first one; a detached bell is looked at once for many messages.",
        figures: detached_rate,
    },
    Finding {
        name: "device memory, latency",
        paper: "\"moving the head to the device reduced the latency, whereas the tail location had no effect. The difference between 'no device memory' and 'head on device' is equal to the round trip latency of the PCIe bus.\" (§6.3, figure 8)",
        what: "64 B: one way, main memory less memory at the adapter; and the round trip with the latter over that with the former",
        reading: "As in the paper for the head: the READ over the bus less what the atomic unit and the adapter's memory take themselves, and a round trip, which ends with the READ of the tail, is shorter by as much. The tail has no effect on the way of a message, as in the paper. A round trip takes longer with it at the adapter, unlike in the paper: READs of it come back sooner, the first one before the receiver has stored it, so that one more is needed; without random delays that is so in every round trip.",
        figures: device_latency,
    },
    Finding {
        name: "device memory, throughput",
        paper: "\"the performance of the channel has been bottlenecked by the performance of ATOMIC requests against the main memory. When the head has been moved to the device, the receiver experienced a more than 4x improvement in throughput\" (§6.3, figure 9a)",
        what: "rate of 16 B from 8 clients with the head at the adapter, over the same in main memory",
        reading: "As in the paper: atomics on main memory are the bottleneck, and at the adapter they are not. The tail, which the receiver stores for each released message, is in main memory. What limits then is the receiver: with the inlined bell its processor, at 0.11 us for a message, nearly all of it one miss; with immediate data its receives.",
        figures: device_rate,
    },
    Finding {
        name: "broadcast",
        paper: "\"The IMM-based algorithm has the highest throughput as its clients do not waste the network on fetching the bell [...] The detached bell performs better than the inlined one, as the detached bell allowed the clients to prefetch multiple records\" (§6.3, figure 9b)",
        what: "rate of 4 readers together over that of `read-ring-inlined`, 16 messages in the ring",
        reading: "As in the paper from 1 KiB on; the longer the messages, the less, since at last the wire is the limit of all. For 64 B and 256 B the detached bell is a little ahead of notices, and more so with more room in the ring: the sender stores such a message in some nanoseconds, but rings a doorbell for each of four readers to announce it, 0.13 us each, awaits the notice's completion, and each notice takes a receive; the detached bell costs it nothing, and one look brings many messages.",
        figures: broadcast_rate,
    },
    Finding {
        name: "prefetching, throughput",
        paper: "\"Prefetching improves the throughput of the receiver as it can read multiple records\" (§6.3, figure 10)",
        what: "rate of `read-ring-inlined` over the same without prefetching",
        reading: "As in the paper where several records fit into what is fetched. Where one does, nothing is gained; where none does, each record is fetched twice, and its successor's bell is not fetched with it: then prefetching halves the rate.",
        figures: prefetch_rate,
    },
    Finding {
        name: "prefetching, latency",
        paper: "\"but has a negative impact on the latency of small records\" (§6.3, figure 10)",
        what: "median round trip of 64 B over that with 64 B prefetched",
        reading: "The more is prefetched, the longer a small record takes, as in the paper. But none at all is worse: without it a READ of the bell and another one of the message are needed, where one that brings both is enough here, since the checksum tells whether they belong together.",
        figures: prefetch_latency,
    },
];
