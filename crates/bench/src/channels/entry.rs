//! Figures of channels, as JSON and in perftest's columns.

use super::super::window::Figure;
use crate::settings::Pattern;
use farside::channel::{DeviceWords, Family, Kind};
use farside_command::output::Table;
use serde::Serialize;

/// The MB of perftest.
const MEGA: f64 = 1_048_576.0;

/// Which bytes of a message the ends write and copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Payload {
    /// The sender writes every byte, the receiver copies every byte out.
    Copied,
    /// The receiver gets a copy of bytes that are not written again.
    Unwritten,
    /// Zero-copy: the sender writes the first and last byte, the receiver reads the first and last cache line
    /// in the sender's memory. In virtual time neither touches any byte.
    Untouched,
    /// The sender writes every byte, the answering or receiving end reads the first and last cache line.
    Seen,
    /// As `Seen`, and that end copies every byte into a log.
    Logged,
}

/// How the ends wait for messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wait {
    /// Poll.
    Spin,
    /// Call functions that may sleep.
    Block,
}

/// One-way latency: half of a round trip, in ns.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) best: f64,
    pub(crate) median: f64,
    /// Percentile of single round trips; `best` and `median` are of windows.
    pub(crate) p99: f64,
}

/// A histogram of round-trip times.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Distribution {
    pub(crate) round_trips: usize,
    /// Percentiles of round trips, in ns.
    pub(crate) p5_ns: f64,
    pub(crate) p50_ns: f64,
    pub(crate) p95_ns: f64,
    pub(crate) p99_ns: f64,
    /// Width of a bucket.
    pub(crate) bucket_ns: f64,
    /// Lower bound of each bucket in ns, and its share of all round trips; the last has no upper bound.
    pub(crate) buckets: Vec<(f64, f64)>,
}

/// Buckets of a histogram.
const BUCKETS: usize = 40;
/// Percentile of round trips at which the last bucket begins.
const COVERED_PER_CENT: usize = 99;

impl Distribution {
    /// Computes the histogram of round trips in ns; returns `None` without any.
    pub(crate) fn of(mut trips_ns: Vec<f64>) -> Option<Self> {
        trips_ns.sort_by(f64::total_cmp);
        let count = trips_ns.len();
        let at = |per_cent: usize| trips_ns.get((count * per_cent / 100).min(count.max(1) - 1));
        let percentile = |per_cent| at(per_cent).copied();
        let (first, covered) = (percentile(0)?, percentile(COVERED_PER_CENT)?);
        let bucket_ns = ((covered - first) / (BUCKETS - 1) as f64).max(1.0);
        let mut counts = [0_usize; BUCKETS];
        for trip_ns in &trips_ns {
            let bucket = ((trip_ns - first) / bucket_ns) as usize;
            counts[bucket.min(BUCKETS - 1)] += 1;
        }
        let begins = |bucket: usize| first + bucket as f64 * bucket_ns;
        let share = |of: usize| of as f64 / count as f64;
        let buckets = counts.iter().enumerate().map(|(at, of)| (begins(at), share(*of)));
        Some(Self {
            round_trips: count,
            p5_ns: percentile(5)?,
            p50_ns: percentile(50)?,
            p95_ns: percentile(95)?,
            p99_ns: percentile(99)?,
            bucket_ns,
            buckets: buckets.collect(),
        })
    }

    /// Formats each bucket that is not empty as a line.
    fn lines(&self) -> Vec<String> {
        let filled = self.buckets.iter().filter(|(_, share)| *share > 0.0);
        let line = |(from_ns, share): &(f64, f64)| {
            let bar = "#".repeat((share * 60.0).ceil() as usize);
            format!("  {:>10.3} us  {:>5.1} %  {bar}", from_ns / 1e3, share * 100.0)
        };
        filled.map(line).collect()
    }
}

/// Formats the histograms of the entries that have one.
pub(crate) fn distributions<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> Vec<String> {
    let mut lines = Vec::new();
    for entry in entries {
        let Some(distribution) = &entry.distribution else { continue };
        let Distribution { round_trips, p5_ns, p50_ns, p95_ns, bucket_ns, .. } = distribution;
        lines.push(format!(
            "{} {}, {} B: {round_trips} round trips; 5 % below {:.3} us, half below {:.3}, 95 % below \
             {:.3}; buckets of {:.3} us",
            entry.channel,
            entry.form(),
            entry.message_bytes,
            p5_ns / 1e3,
            p50_ns / 1e3,
            p95_ns / 1e3,
            bucket_ns / 1e3
        ));
        lines.extend(distribution.lines());
    }
    lines
}

/// A rate per second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

/// The measured rate of a stream of messages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Stream {
    pub(crate) messages_per_second: Rate,
    pub(crate) messages: u64,
}

impl Stream {
    /// Computes the rate from the time of one message.
    pub(crate) fn of(figure: &Figure) -> Self {
        let rate = Rate { best: 1e9 / figure.best_ns, median: 1e9 / figure.median_ns };
        Self { messages_per_second: rate, messages: figure.operations }
    }

    /// Returns the total rate if each message is delivered to `receivers` receivers.
    pub(crate) fn times(self, receivers: u16) -> Self {
        let Rate { best, median } = self.messages_per_second;
        let times = f64::from(receivers);
        let rate = Rate { best: best * times, median: median * times };
        Self { messages_per_second: rate, messages: self.messages * u64::from(receivers) }
    }
}

/// The baseline of a latency.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct LatencyBaseline {
    pub(crate) name: String,
    /// One way, in the best window of the same run.
    pub(crate) best_ns: f64,
    /// The latency's best divided by the baseline's best.
    pub(crate) ratio: f64,
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) channel: &'static str,
    pub(crate) family: &'static str,
    pub(crate) message_bytes: u32,
    pub(crate) pattern: &'static str,
    /// Ends on the N side of the pattern.
    pub(crate) peers: u16,
    pub(crate) payload: Payload,
    pub(crate) wait: Wait,
    /// Which words are in memory of the adapter.
    pub(crate) device: &'static str,
    /// Bytes that readers prefetch beyond a bell.
    pub(crate) prefetch_bytes: u32,
    pub(crate) iterations: u64,
    pub(crate) latency_ns: Option<Latency>,
    pub(crate) messages_per_second: Option<Rate>,
    pub(crate) bytes_per_second: Option<Rate>,
    pub(crate) baseline: Option<LatencyBaseline>,
    /// Of round trips, with `--distribution`.
    pub(crate) distribution: Option<Distribution>,
    /// How the ends shared processors.
    pub(crate) cores: String,
    /// The paths of the links.
    pub(crate) path: String,
}

impl Entry {
    /// Creates an entry without figures.
    pub(crate) fn new(kind: Kind, message_bytes: u32, pattern: Pattern, peers: u16) -> Self {
        Self {
            channel: kind.name(),
            family: family(kind),
            message_bytes,
            pattern: pattern.name(),
            peers,
            payload: Payload::Copied,
            wait: Wait::Spin,
            device: device(DeviceWords::Nothing),
            prefetch_bytes: 0,
            iterations: 0,
            latency_ns: None,
            messages_per_second: None,
            bytes_per_second: None,
            baseline: None,
            distribution: None,
            cores: String::new(),
            path: String::new(),
        }
    }

    /// Returns the entry with the rates of a stream.
    pub(crate) fn with_stream(mut self, stream: Stream) -> Self {
        let rate = stream.messages_per_second;
        let bytes = f64::from(self.message_bytes);
        self.messages_per_second = Some(rate);
        self.bytes_per_second = Some(Rate { best: rate.best * bytes, median: rate.median * bytes });
        self.iterations = stream.messages;
        self
    }

    /// Returns what distinguishes the entry from others of its channel and size.
    pub(crate) fn form(&self) -> String {
        let payload = match self.payload {
            Payload::Copied => "",
            Payload::Unwritten => "unwritten",
            Payload::Untouched => "untouched",
            Payload::Seen => "seen",
            Payload::Logged => "logged",
        };
        let wait = if self.wait == Wait::Block { "blocking" } else { "" };
        let words = [&*self.ends(), payload, wait, &self.setting()];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Returns its settings apart from channel, size and ends.
    pub(crate) fn setting(&self) -> String {
        let device = match self.device {
            "nothing" => String::new(),
            device => format!("device-words={device}"),
        };
        let prefetch = match self.prefetch_bytes {
            0 => String::new(),
            bytes => format!("prefetch={bytes}"),
        };
        let both = [device, prefetch];
        both.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// Returns the pattern with the number of ends, such as `8:1`.
    pub(crate) fn ends(&self) -> String {
        self.pattern.replace('N', &self.peers.to_string())
    }
}

/// Returns the name of words at the adapter, as in `--device-words`.
pub(crate) const fn device(words: DeviceWords) -> &'static str {
    match words {
        DeviceWords::Nothing => "nothing",
        DeviceWords::Head => "head",
        DeviceWords::Tail => "tail",
        DeviceWords::All => "all",
    }
}

/// Returns the family's name in JSON.
pub(crate) fn family(kind: Kind) -> &'static str {
    match kind.family() {
        Family::SendReceive => "send_recv",
        Family::WriteSlot => "write_slot",
        Family::Ring => "ring_buffer",
        Family::SharedRing => "shared_ring_buffer",
        Family::ReadSlot => "read_slot",
        Family::ReadRing => "read_ring_buffer",
    }
}

/// Formats the entries as a table with perftest's columns.
pub(crate) fn text<'a>(entries: impl IntoIterator<Item = &'a Entry>) -> String {
    let mut table = Table::new([
        "#channel",
        "pattern",
        "#bytes",
        "#iterations",
        "t_min[usec]",
        "t_typical[usec]",
        "t_99[usec]",
        "BW peak[MB/sec]",
        "BW average[MB/sec]",
        "MsgRate[Mpps]",
        "xbaseline",
    ])
    .left(1);
    let usec = |ns: Option<f64>| ns.map_or("-".to_owned(), |ns| format!("{:.3}", ns / 1e3));
    let mega = |rate: Option<f64>, unit: f64, places: usize| {
        rate.map_or("-".to_owned(), |rate| format!("{:.places$}", rate / unit))
    };
    for entry in entries {
        table.row([
            entry.channel.to_owned(),
            entry.form(),
            entry.message_bytes.to_string(),
            entry.iterations.to_string(),
            usec(entry.latency_ns.map(|latency| latency.best)),
            usec(entry.latency_ns.map(|latency| latency.median)),
            usec(entry.latency_ns.map(|latency| latency.p99)),
            mega(entry.bytes_per_second.map(|rate| rate.best), MEGA, 2),
            mega(entry.bytes_per_second.map(|rate| rate.median), MEGA, 2),
            mega(entry.messages_per_second.map(|rate| rate.median), 1e6, 6),
            entry.baseline.as_ref().map_or("-".to_owned(), |base| format!("{:.2}", base.ratio)),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distribution_has_every_round_trip_in_a_bucket() {
        let trips: Vec<f64> =
            (0..1000).map(|at| if at % 10 == 0 { 900.0 } else { 500.0 }).collect();
        let distribution = Distribution::of(trips).unwrap();
        let whole: f64 = distribution.buckets.iter().map(|(_, share)| share).sum();
        assert!((whole - 1.0).abs() < 1e-9, "{distribution:?}");
        assert_eq!(
            (distribution.p5_ns, distribution.p50_ns, distribution.p95_ns),
            (500.0, 500.0, 900.0)
        );
        assert_eq!((distribution.buckets[0].1, distribution.buckets[39].1), (0.9, 0.1));
        assert_eq!(distribution.lines().len(), 2);
        assert_eq!(Distribution::of(Vec::new()), None);
        assert!(Distribution::of(vec![7.0; 3]).unwrap().buckets[0].1 == 1.0);
    }

    #[test]
    fn columns_are_those_of_perftest() {
        let figure = Figure::from_windows(vec![100.0, 200.0, 400.0], 1);
        let mut entry = Entry::new(Kind::RingInlined, 1 << 20, Pattern::ManyToOne, 8)
            .with_stream(Stream::of(&figure));
        entry.wait = Wait::Block;
        entry.payload = Payload::Untouched;
        let text = text([&entry]);
        let line: Vec<&str> = text.lines().nth(1).unwrap().split_whitespace().collect();
        let expected = [
            "ring-inlined",
            "8:1",
            "untouched",
            "blocking",
            "1048576",
            "1",
            "-",
            "-",
            "-",
            "10000000.00",
            "5000000.00",
            "5.000000",
            "-",
        ];
        assert_eq!(line, expected);
    }
}
