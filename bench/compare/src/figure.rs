//! Measuring in short windows, and the printed entries.
//!
//! Other work on a shared machine disturbs long runs, but some windows of a few tenths of a millisecond run
//! undisturbed: the best window is the cost of an operation, the median its cost under the current load.

use serde::Serialize;
use std::io::{Error, Result, Write};
use std::time::{Duration, Instant};

/// Intended length of a window.
const WINDOW: Duration = Duration::from_micros(400);
/// Windows at the start that are discarded.
const WARM_UP: usize = 8;

/// One figure: that of the best window and the median of all windows.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub(crate) struct Spread {
    pub(crate) best: f64,
    pub(crate) median: f64,
}

/// Whether both processes access the payload.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Payload {
    /// The sender writes every byte, the receiver copies every byte out.
    Copied,
    /// Neither process accesses it: the message is handed over in place.
    Untouched,
}

/// How a process waits for the other.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Wait {
    Spin,
    Block,
}

/// One line of the output; `farside bench channels --json` has the same form.
#[derive(Debug, Serialize)]
pub(crate) struct Entry<'a> {
    pub(crate) channel: &'a str,
    pub(crate) message_bytes: usize,
    pub(crate) payload: Payload,
    pub(crate) wait: Wait,
    /// One-way latency: half of the round trip.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) latency_ns: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) messages_per_second: Option<Spread>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) bytes_per_second: Option<Spread>,
}

impl<'a> Entry<'a> {
    pub(crate) fn new(
        channel: &'a str,
        message_bytes: usize,
        payload: Payload,
        wait: Wait,
    ) -> Self {
        Self {
            channel,
            message_bytes,
            payload,
            wait,
            latency_ns: None,
            messages_per_second: None,
            bytes_per_second: None,
        }
    }

    /// Sets the one-way latency.
    pub(crate) fn latency(self, one_way: Spread) -> Self {
        Self { latency_ns: Some(one_way), ..self }
    }

    /// Sets the latency from the time of a round trip.
    pub(crate) fn round_trip(self, round: Spread) -> Self {
        self.latency(Spread { best: round.best / 2.0, median: round.median / 2.0 })
    }

    /// Sets the rates from a stream's time for each message.
    pub(crate) fn stream(self, each: Spread) -> Self {
        let rate = |count: f64| Spread {
            best: count * 1e9 / each.best,
            median: count * 1e9 / each.median,
        };
        let bytes = rate(self.message_bytes as f64);
        Self { messages_per_second: Some(rate(1.0)), bytes_per_second: Some(bytes), ..self }
    }

    /// Prints the entry as a line of JSON: the only output of this program.
    pub(crate) fn print(&self) -> Result<()> {
        let line = serde_json::to_string(self)?;
        writeln!(std::io::stdout().lock(), "{line}")
    }
}

/// Measures the time of one operation in ns; `run(count)` does `count` of them. The count is at least
/// `count_min`, and otherwise chosen so that a window is short.
pub(crate) fn measure(
    windows: usize,
    count_min: u64,
    mut run: impl FnMut(u64) -> Result<()>,
) -> Result<Spread> {
    // The first operation is not typical: the other process may still be starting.
    run(1)?;
    let mut count = count_min;
    loop {
        let start = Instant::now();
        run(count)?;
        if start.elapsed() >= WINDOW / 2 || count >= 1 << 24 {
            break;
        }
        count *= 2;
    }
    let mut times = Vec::with_capacity(windows);
    for at in 0..WARM_UP + windows {
        let start = Instant::now();
        run(count)?;
        let each = start.elapsed().as_nanos() as f64 / count as f64;
        if at >= WARM_UP {
            times.push(each);
        }
    }
    spread(times).ok_or_else(|| Error::other("no window was requested"))
}

fn spread(mut times: Vec<f64>) -> Option<Spread> {
    times.sort_by(f64::total_cmp);
    Some(Spread { best: *times.first()?, median: *times.get(times.len() / 2)? })
}

/// Writes the number into the first and last byte of a message, for [`check`].
pub(crate) fn sign(message: &mut [u8], number: u64) {
    if let [first, .., last] = message {
        *first = number as u8;
        *last = number as u8;
    }
}

/// Checks that the first and last byte of a message are those of this number.
pub(crate) fn check(message: &[u8], number: u64) -> Result<()> {
    match message {
        [first, .., last] if *first == number as u8 && *last == number as u8 => Ok(()),
        _ => Err(Error::other(format!("message {number} is torn or out of order"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_has_best_and_median_of_windows() {
        let found = spread(vec![30.0, 10.0, 20.0, 90.0, 40.0]);
        assert_eq!(found, Some(Spread { best: 10.0, median: 30.0 }));
        assert_eq!(spread(Vec::new()), None);
    }

    #[test]
    fn latency_is_half_a_round_trip_and_rates_count_bytes() {
        let time = Spread { best: 100.0, median: 200.0 };
        let entry = Entry::new("x", 64, Payload::Copied, Wait::Spin).round_trip(time).stream(time);
        assert_eq!(entry.latency_ns, Some(Spread { best: 50.0, median: 100.0 }));
        assert_eq!(entry.messages_per_second, Some(Spread { best: 1e7, median: 5e6 }));
        assert_eq!(entry.bytes_per_second, Some(Spread { best: 6.4e8, median: 3.2e8 }));
    }

    #[test]
    fn torn_or_stale_message_is_refused() {
        let mut message = [0; 64];
        sign(&mut message, 7);
        assert!(check(&message, 7).is_ok());
        assert!(check(&message, 8).is_err());
        message[63] = 6;
        assert!(check(&message, 7).is_err());
    }

    #[test]
    fn windows_have_at_least_the_minimum_count() {
        let mut smallest = u64::MAX;
        let mut calls = 0;
        let measured = measure(4, 100, |count| {
            calls += 1;
            if calls > 1 {
                smallest = smallest.min(count);
            }
            std::hint::black_box((0..1000).sum::<u64>());
            Ok(())
        });
        assert!(measured.is_ok() && smallest >= 100);
    }
}
