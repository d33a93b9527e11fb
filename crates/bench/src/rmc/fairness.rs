//! Measures the latency of short calls while another caller's long calls run at the same executor.

use super::search_server::timed;
use farside::call::{CallOptions, Caller, Program, Site, Ticket};
use farside_command::failure::Failure;
use farside_command::output::time;
use farside_launcher::latency::median;
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Long calls in flight at once.
const LONG_CALLS: usize = 8;
/// Number of blocks of short calls. Blocks with and without long calls alternate, so that other activity of the
/// machine affects both.
const BLOCKS: usize = 20;
/// Warm-up calls of each block; continued until the long calls have started or ended.
const FIRST: usize = 16;
/// Minimum duration of a block: many slices of the long calls, and several scheduler slices of the kernel. A single
/// preemption must not dominate a block.
const BLOCK: Duration = Duration::from_millis(10);

/// Long programs by kind. `compute` executes about the maximum number of instructions of a call. The others run for
/// milliseconds on the longest buffers that helpers accept: they read, hash in the region, and hash and compress in
/// the call's private memory. The delay of a short call does not depend on the number of slices.
const LONG: [(&str, &str); 5] = [
    (
        "compute",
        "
.program compute
    r0 = 200000
again:
    r1 = r0
    r1 *= 3
    r0 -= 1
    if r0 != 0 goto again
    exit
",
    ),
    (
        "read",
        "
.program read
.own 65536
    r6 = 50
again:
    r1 = 0
    r2 = 0
    r3 = own 0
    r4 = 65536
    call read
    r6 -= 1
    if r6 != 0 goto again
    r0 = 0
    exit
",
    ),
    (
        "hash in place",
        "
.program hash_in_place
    r6 = 3
again:
    r1 = 0
    r2 = 0
    r3 = 1048576
    r4 = 0
    call crc32c_of
    r6 -= 1
    if r6 != 0 goto again
    r0 = 0
    exit
",
    ),
    (
        "hash",
        "
.program hash
.own 65536
    r6 = 50
again:
    r1 = own 0
    r2 = 65536
    r3 = 0
    call crc32c
    r6 -= 1
    if r6 != 0 goto again
    r0 = 0
    exit
",
    ),
    (
        "compress",
        "
.program compress
.own 65536
.shared 65536
    r1 = 0
    r2 = 0
    r3 = own 0
    r4 = 65536
    call read
    r6 = 6
again:
    r1 = own 0
    r2 = 65536
    r3 = shared 0
    r4 = 65536
    call compress
    r6 -= 1
    if r6 != 0 goto again
    r0 = 0
    exit
",
    ),
];

/// Latency of short calls, alone and during long calls of one kind.
#[derive(Debug, Serialize)]
pub(super) struct Fairness {
    kind: &'static str,
    alone: Times,
    beside: Times,
    /// Ratio of the 99th percentiles: during long calls to alone.
    ratio_p99: f64,
    /// Long calls completed during the measurement, and the latency of one alone.
    long_calls: usize,
    long_ns: u64,
}

#[derive(Debug, Serialize)]
struct Times {
    median_ns: u64,
    p99_ns: u64,
}

impl Times {
    fn of(mut samples: Vec<u64>) -> Self {
        samples.sort_unstable();
        let at = |share: f64| {
            let index = (samples.len() as f64 * share) as usize;
            samples.get(index.min(samples.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        Self { median_ns: at(0.5), p99_ns: at(0.99) }
    }
}

/// Measures short calls alone and during long calls of each kind. `long` is a separate caller.
pub(super) fn measure(
    short: &mut Caller,
    mut long: Caller,
    program: &Program,
    parameters: &[u8],
    rounds: usize,
) -> Result<Vec<Fairness>, Failure> {
    let each = |(kind, text): &(&'static str, &str)| {
        let looping = long.register(text.as_bytes()).map_err(Failure::of_call)?.remove(0);
        measure_kind(kind, (short, program, parameters), (&mut long, &looping), rounds)
    };
    LONG.iter().map(each).collect()
}

/// Measures short calls alone and during long calls of one kind.
fn measure_kind(
    kind: &'static str,
    (short, program, parameters): (&mut Caller, &Program, &[u8]),
    (long, looping): (&mut Caller, &Program),
    rounds: usize,
) -> Result<Fairness, Failure> {
    let once = |long: &mut Caller| timed(long, Site::Remote, looping, &[]).map(|(ns, _)| ns);
    let long_ns = (0..5).map(|_| once(long)).collect::<Result<Vec<_>, _>>()?;
    let long_ns = median(long_ns);
    let (runs, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let in_progress = AtomicUsize::new(0);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| keep_busy(long, looping, [&runs, &ends], &in_progress));
        let mut blocks = || {
            for block in 0..BLOCKS {
                let samples = if block % 2 == 0 { &mut alone } else { &mut beside };
                let is_beside = block % 2 == 1;
                runs.store(is_beside, Ordering::Release);
                other.thread().unpark();
                let mut first = 0;
                let settled = || (in_progress.load(Ordering::Acquire) > 0) == is_beside;
                while (first < FIRST || !settled()) && !other.is_finished() {
                    timed(short, Site::Remote, program, parameters)?;
                    first += 1;
                }
                let (began, wanted) = (Instant::now(), samples.len() + rounds / BLOCKS * 2);
                while samples.len() < wanted || began.elapsed() < BLOCK {
                    samples.push(timed(short, Site::Remote, program, parameters)?.0);
                }
            }
            Ok(())
        };
        let done: Result<(), Failure> = blocks();
        ends.store(true, Ordering::Release);
        other.thread().unpark();
        let Ok(kept) = other.join() else {
            return Err(Failure::system("the thread of long calls panicked".to_owned()));
        };
        done?;
        let long_calls = kept?;
        let (alone, beside) =
            (Times::of(std::mem::take(&mut alone)), Times::of(std::mem::take(&mut beside)));
        let ratio_p99 = beside.p99_ns as f64 / alone.p99_ns.max(1) as f64;
        Ok(Fairness { kind, alone, beside, ratio_p99, long_calls, long_ns })
    })
}

/// Keeps long calls in flight while `runs` is set, until `ends` is set; returns the number of completed calls.
fn keep_busy(
    long: &mut Caller,
    program: &Program,
    [runs, ends]: [&AtomicBool; 2],
    in_progress: &AtomicUsize,
) -> Result<usize, Failure> {
    let mut begun: Vec<Ticket> = Vec::new();
    let mut ended = 0;
    while !ends.load(Ordering::Acquire) {
        let wanted = if runs.load(Ordering::Acquire) { LONG_CALLS } else { 0 };
        while begun.len() < wanted {
            match long.invoke(program, &[], CallOptions::new()).map_err(Failure::of_call)? {
                Some(ticket) => begun.push(ticket),
                None => break,
            }
        }
        in_progress.store(begun.len(), Ordering::Release);
        match begun.first().copied() {
            // They complete roughly in order.
            Some(ticket) => {
                long.wait(ticket, Duration::from_secs(30)).map_err(Failure::of_call)?;
                begun.remove(0);
                ended += 1;
            }
            None => std::thread::park_timeout(Duration::from_millis(50)),
        }
    }
    Ok(ended)
}

/// Returns a table with a row for each kind.
pub(super) fn lines(all: &[Fairness]) -> Vec<String> {
    let mut lines = vec![format!(
        "{:>14} {:>12} {:>12} {:>12} {:>12} {:>8} {:>10} {:>6}",
        "short calls", "alone", "p99", "with long", "p99", "ratio", "one long", "ended"
    )];
    for Fairness { kind, alone, beside, ratio_p99, long_calls, long_ns } in all {
        let [one, two, three, four, long] =
            [alone.median_ns, alone.p99_ns, beside.median_ns, beside.p99_ns, *long_ns]
                .map(|ns| time(ns as f64));
        lines.push(format!(
            "{kind:>14} {one:>12} {two:>12} {three:>12} {four:>12} {ratio_p99:>8.2} {long:>10} {long_calls:>6}"
        ));
    }
    lines
}
