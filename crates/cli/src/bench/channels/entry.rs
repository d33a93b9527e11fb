//! Figures of channels, as JSON and as perftest prints them.

use super::super::window::Figure;
use crate::arguments::Pattern;
use crate::output::Table;
use farside::channel::{Family, Kind};
use serde::Serialize;

/// The MB of perftest.
const MEGA: f64 = 1_048_576.0;

/// What happens to the bytes of a message.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Payload {
    /// The sender writes every byte, the receiver copies every byte out.
    Copied,
    /// The receiver gets a copy of bytes that are not written again.
    Unwritten,
    /// Handed over where it lies: the sender writes the first and last byte, the receiver looks at the
    /// first and last line in the memory of the sender. In virtual time neither touches any.
    Untouched,
}

/// How the ends wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wait {
    /// They poll.
    Spin,
    /// They call what may sleep.
    Block,
}

/// Half of a round trip.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Latency {
    pub(crate) best: f64,
    pub(crate) median: f64,
    /// Of single round trips; `best` and `median` are of windows.
    pub(crate) p99: f64,
}

/// Something in a second.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Rate {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

/// A stream of messages.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Stream {
    pub(crate) messages_per_second: Rate,
    pub(crate) messages: u64,
}

impl Stream {
    /// From the time of a message.
    pub(crate) fn of(figure: &Figure) -> Self {
        let rate = Rate { best: 1e9 / figure.best_ns, median: 1e9 / figure.median_ns };
        Self { messages_per_second: rate, messages: figure.operations }
    }

    /// The same where each message comes to so many.
    pub(crate) fn times(self, receivers: u16) -> Self {
        let Rate { best, median } = self.messages_per_second;
        let times = f64::from(receivers);
        let rate = Rate { best: best * times, median: median * times };
        Self { messages_per_second: rate, messages: self.messages * u64::from(receivers) }
    }
}

/// What a latency is to be compared with.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Beside {
    /// What it is.
    pub(crate) name: String,
    /// One way, in the best window of the same run.
    pub(crate) best_ns: f64,
    /// The figure's best by it.
    pub(crate) ratio: f64,
}

/// One line of the table.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub(crate) struct Entry {
    pub(crate) channel: &'static str,
    pub(crate) family: &'static str,
    pub(crate) message_bytes: u32,
    pub(crate) pattern: &'static str,
    /// Ends on the side of many.
    pub(crate) peers: u16,
    pub(crate) payload: Payload,
    pub(crate) wait: Wait,
    pub(crate) iterations: u64,
    /// One way: half of a round trip.
    pub(crate) latency_ns: Option<Latency>,
    pub(crate) messages_per_second: Option<Rate>,
    pub(crate) bytes_per_second: Option<Rate>,
    pub(crate) baseline: Option<Beside>,
    /// Which end ran where.
    pub(crate) cores: String,
    /// Which path the links took.
    pub(crate) path: String,
}

impl Entry {
    /// Without figures yet.
    pub(crate) fn new(kind: Kind, message_bytes: u32, pattern: Pattern, peers: u16) -> Self {
        Self {
            channel: kind.name(),
            family: family(kind),
            message_bytes,
            pattern: pattern.name(),
            peers,
            payload: Payload::Copied,
            wait: Wait::Spin,
            iterations: 0,
            latency_ns: None,
            messages_per_second: None,
            bytes_per_second: None,
            baseline: None,
            cores: String::new(),
            path: String::new(),
        }
    }

    /// The same with the rates of a stream.
    pub(crate) fn with_stream(mut self, stream: Stream) -> Self {
        let rate = stream.messages_per_second;
        let bytes = f64::from(self.message_bytes);
        self.messages_per_second = Some(rate);
        self.bytes_per_second = Some(Rate { best: rate.best * bytes, median: rate.median * bytes });
        self.iterations = stream.messages;
        self
    }

    /// What distinguishes it among those of its channel and size.
    fn form(&self) -> String {
        let payload = match self.payload {
            Payload::Copied => "",
            Payload::Unwritten => "unwritten",
            Payload::Untouched => "untouched",
        };
        let wait = if self.wait == Wait::Block { "blocking" } else { "" };
        let words = [&*self.ends(), payload, wait];
        words.into_iter().filter(|word| !word.is_empty()).collect::<Vec<_>>().join(" ")
    }

    /// How many send to how many.
    pub(crate) fn ends(&self) -> String {
        self.pattern.replace('N', &self.peers.to_string())
    }
}

/// The family's name in JSON.
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

/// The lines in perftest's columns.
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
            entry.baseline.as_ref().map_or("-".to_owned(), |beside| format!("{:.2}", beside.ratio)),
        ]);
    }
    table.text()
}

#[cfg(test)]
mod tests {
    use super::*;

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
