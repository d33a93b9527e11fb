//! The tests, as in perftest: latency request by request, bandwidth and rate with a window of requests in
//! flight. Times are from the processor's counter if it is steady, as in perftest, so that samples need no
//! system call.

use super::client::Client;
use super::end::{FabricEnd, TransferMemory};
use super::server::{inline, mark};
use super::table::{Bandwidth, Latency};
use super::wire::{Begin, Part};
use crate::settings::Test;
use farside_base::{LocalSlice, Operation, Source, Work};
use farside_command::failure::Failure;
use quanta::Instant;
use std::collections::VecDeque;
use std::time::Duration;

/// Most rounds that are discarded at the start.
const WARM_UP_MAX: u64 = 100;
/// Most rounds of a latency test, whatever `Extent` says.
const ROUNDS_MAX: usize = 1 << 22;
/// Fewest windows in a stretch of a stream, of which the best gives the peak.
const STRETCH_WINDOWS: u64 = 4;

/// How long a test runs.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Extent {
    Iterations(u64),
    Time(Duration),
}

/// Flow control of a stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Flow {
    /// Most requests in flight.
    pub(super) window: u64,
    /// Requests of a post list: one doorbell.
    pub(super) batch: u64,
    /// Period of signaled requests.
    pub(super) signal_every: u64,
}

impl Flow {
    /// Clamps `batch` and `signal_every` to half of the window, so that a full window always has a signaled
    /// request in flight.
    pub(super) fn new(window: u64, batch: u64, signal_every: u64) -> Self {
        let window = window.max(1);
        let half = (window / 2).max(1);
        Self { window, batch: batch.clamp(1, half), signal_every: signal_every.clamp(1, half) }
    }
}

/// Returns the operation of a request.
fn operation<'a>(
    test: Test,
    memory: &TransferMemory,
    source: Source<'a>,
    landing: &'a [LocalSlice; 1],
) -> Operation<'a> {
    match test {
        Test::Write => Operation::Write { source, to: memory.remote_landing(), immediate: None },
        Test::Read => Operation::Read { into: landing, from: memory.remote_source() },
        Test::Atomic => {
            Operation::FetchAdd { at: memory.remote_landing(), add: 1, into: landing[0] }
        }
        Test::Send => Operation::Send { source, immediate: None },
    }
}

/// Measures latency, one round after the other.
pub(super) fn latency(
    client: &mut Client,
    test: Test,
    bytes: u32,
    inline_bytes: u32,
    extent: Extent,
) -> Result<Latency, Failure> {
    let part = match test {
        Test::Write => Part::AnswerWrites,
        Test::Send => Part::AnswerMessages,
        Test::Read | Test::Atomic => Part::Sleep,
    };
    let begin = Begin { test, part, bytes, inline_bytes };
    client.begin(begin)?;
    let end = &mut client.end;
    let mut rounds = Rounds::new(end, begin)?;
    let (count, time) = match extent {
        Extent::Iterations(count) => (count, Duration::MAX),
        Extent::Time(time) => (u64::MAX, time),
    };
    for _ in 0..(count / 10).clamp(1, WARM_UP_MAX) {
        rounds.round(end)?;
    }
    let count = usize::try_from(count).unwrap_or(usize::MAX).min(ROUNDS_MAX);
    let mut times_ns = Vec::with_capacity(count);
    let start = Instant::now();
    let mut before = start;
    while times_ns.len() < count && before.duration_since(start) < time {
        rounds.round(end)?;
        let now = Instant::now();
        times_ns.push(u64::try_from((now - before).as_nanos()).unwrap_or(u64::MAX));
        before = now;
    }
    let done = rounds.done;
    while end.completed < done {
        end.poll()?;
    }
    client.finish(if test == Test::Send { done } else { 0 })?;
    // A ping-pong crosses the link twice, a READ or atomic is one whole round trip.
    let trips = if part == Part::Sleep { 1.0 } else { 2.0 };
    Ok(Latency::of(test, bytes, times_ns, trips))
}

/// Rounds of a latency test.
struct Rounds {
    begin: Begin,
    memory: TransferMemory,
    inline: Option<Vec<u8>>,
    done: u64,
}

impl Rounds {
    fn new(end: &FabricEnd, begin: Begin) -> Result<Self, Failure> {
        Ok(Self { begin, memory: end.memory()?, inline: inline(&begin), done: 0 })
    }

    #[inline]
    fn round(&mut self, end: &mut FabricEnd) -> Result<(), Failure> {
        let Begin { test, bytes, .. } = self.begin;
        let number = self.done;
        // The last byte of a WRITE; it differs from that of the previous round.
        let expected = number.wrapping_add(1).to_le_bytes()[0];
        if test == Test::Write {
            mark(end, bytes, self.inline.as_deref_mut(), expected);
        }
        let slices = [self.memory.source(bytes)];
        let source = self.inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
        let landing = [self.memory.landing(bytes)];
        let mut work = self.memory.work(number, operation(test, &self.memory, source, &landing));
        work.flags.awaited = test == Test::Write;
        end.post(&[work])?;
        self.done += 1;
        loop {
            let over = match test {
                Test::Write => end.landed(bytes) == expected,
                Test::Send => end.arrived > number,
                Test::Read | Test::Atomic => end.completed > number,
            };
            if over {
                return Ok(());
            }
            end.poll()?;
        }
    }
}

/// Measures a stream.
pub(super) fn stream(
    client: &mut Client,
    test: Test,
    bytes: u32,
    inline_bytes: u32,
    flow: Flow,
    extent: Extent,
) -> Result<Bandwidth, Failure> {
    let part = if test == Test::Send { Part::TakeMessages } else { Part::Sleep };
    let begin = Begin { test, part, bytes, inline_bytes };
    client.begin(begin)?;
    let end = &mut client.end;
    let memory = end.memory()?;
    let inline = inline(&begin);
    let (slices, landing) = ([memory.source(bytes)], [memory.landing(bytes)]);
    let source = inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
    let work = memory.work(0, operation(test, &memory, source, &landing));
    let mut stream = Stream::new(work, flow);
    stream.run(end, Extent::Iterations(flow.window))?;
    let warm = stream.posted;
    stream.restart();
    let took = stream.run(end, extent)?;
    let (count, per_request) = (stream.posted - warm, stream.best.unwrap_or(f64::INFINITY));
    let messages = if test == Test::Send { stream.posted } else { 0 };
    client.finish(messages)?;
    Ok(Bandwidth::of(test, bytes, count, took, per_request))
}

/// A stream of requests.
struct Stream<'a> {
    list: Vec<Work<'a>>,
    flow: Flow,
    posted: u64,
    /// Number of the first request of each burst, and when it was posted.
    bursts: VecDeque<(u64, Instant)>,
    /// Seconds for each request in the best stretch.
    best: Option<f64>,
}

impl<'a> Stream<'a> {
    fn new(work: Work<'a>, flow: Flow) -> Self {
        let list = (0..flow.batch).map(|_| work).collect();
        Self { list, flow, posted: 0, bursts: VecDeque::new(), best: None }
    }

    fn restart(&mut self) {
        self.bursts.clear();
        self.best = None;
    }

    /// Runs until all requests have completed; returns how long that took.
    fn run(&mut self, end: &mut FabricEnd, extent: Extent) -> Result<Duration, Failure> {
        let (mut until, time) = match extent {
            Extent::Iterations(count) => (self.posted.saturating_add(count), Duration::MAX),
            Extent::Time(time) => (u64::MAX, time),
        };
        let start = Instant::now();
        let mut now = start;
        loop {
            self.fill(end, until, now)?;
            let before = end.completed;
            end.poll()?;
            if end.completed == before {
                continue;
            }
            now = Instant::now();
            self.judge(end.completed, now);
            if end.completed == until {
                return Ok(now - start);
            }
            if until == u64::MAX && now - start >= time {
                // The next signaled request is the last.
                until = self.posted.next_multiple_of(self.flow.signal_every);
                if end.completed == until {
                    return Ok(now - start);
                }
            }
        }
    }

    /// Posts what the window has room for.
    #[inline]
    fn fill(&mut self, end: &mut FabricEnd, until: u64, now: Instant) -> Result<(), Failure> {
        let Flow { window, batch, signal_every } = self.flow;
        let first = self.posted;
        loop {
            let count = batch.min(until - self.posted);
            if count == 0 || self.posted + count - end.completed > window {
                break;
            }
            let list = &mut self.list[..usize::try_from(count).unwrap_or(usize::MAX)];
            for (number, work) in (self.posted..).zip(list.iter_mut()) {
                work.id.0 = number;
                let next = number + 1;
                work.flags.signalled = next.is_multiple_of(signal_every) || next == until;
            }
            end.post(list)?;
            self.posted += count;
        }
        if self.posted > first {
            self.bursts.push_back((first, now));
        }
        Ok(())
    }

    /// Updates the best stretch. A stretch lasts from the post of its first request to the completion of its
    /// last, so a late poll cannot make it shorter.
    #[inline]
    fn judge(&mut self, completed: u64, now: Instant) {
        let first_max = completed.saturating_sub(STRETCH_WINDOWS * self.flow.window);
        while self.bursts.get(1).is_some_and(|burst| burst.0 <= first_max) {
            self.bursts.pop_front();
        }
        if let Some((first, posted_at)) = self.bursts.front()
            && *first <= first_max
            && completed > *first
        {
            let each = (now - *posted_at).as_secs_f64() / (completed - first) as f64;
            self.best = Some(self.best.map_or(each, |best| best.min(each)));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn full_window_always_has_a_signaled_request_in_flight() {
        for window in 0..20 {
            for batch in [0, 1, 2, 3, 7, 100] {
                for signal_every in [0, 1, 2, 5, 100] {
                    let flow = Flow::new(window, batch, signal_every);
                    assert!(flow.batch > 0 && flow.signal_every > 0);
                    assert!(flow.signal_every - 1 + flow.batch <= flow.window, "{flow:?}");
                }
            }
        }
    }
}
