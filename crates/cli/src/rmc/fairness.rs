//! What short calls take while another caller's long ones run at the same executor.

use super::bench::timed;
use super::call::failed;
use crate::failure::Failure;
use crate::output::time;
use farside::call::{Caller, Program, Runs, Ticket};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Long calls that are in progress at once.
const LONG_CALLS: usize = 8;
/// Blocks of short calls, alone and beside long ones by turns, so that what else the machine does meets
/// both.
const BLOCKS: usize = 20;
/// How often a short call is made before its time counts, in each block; more often until the long ones have
/// begun or ended.
const FIRST: usize = 16;
/// How long a block lasts at least: many turns of the long calls, and more than the kernel's own turns, of
/// which a block that had met a single one would tell as if it were the rule.
const BLOCK: Duration = Duration::from_millis(10);

/// A loop without any access, of about as many instructions as a call may execute.
const LONG: &str = "
.program long
    r0 = 200000
again:
    r1 = r0
    r1 *= 3
    r0 -= 1
    if r0 != 0 goto again
    exit
";

/// Short calls, alone and beside long ones.
#[derive(Debug, Serialize)]
pub(super) struct Fairness {
    alone: Times,
    beside: Times,
    /// The 99th percentile beside long calls against the one alone.
    ratio_p99: f64,
    /// Long calls that ended meanwhile, and what one takes alone.
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
            let place = (samples.len() as f64 * share) as usize;
            samples.get(place.min(samples.len().saturating_sub(1))).copied().unwrap_or_default()
        };
        Self { median_ns: at(0.5), p99_ns: at(0.99) }
    }
}

/// Measures both. `long` is a caller of its own.
pub(super) fn measure(
    short: &mut Caller,
    mut long: Caller,
    program: &Program,
    parameters: &[u8],
    rounds: usize,
) -> Result<Fairness, Failure> {
    let looping = long.register(LONG.as_bytes()).map_err(failed)?.remove(0);
    let once = |long: &mut Caller| timed(long, Runs::There, &looping, &[]).map(|(ns, _)| ns);
    let long_ns = (0..5).map(|_| once(&mut long)).collect::<Result<Vec<_>, _>>()?;
    let long_ns = super::median(long_ns);
    let (runs, ends) = (AtomicBool::new(false), AtomicBool::new(false));
    let in_progress = AtomicUsize::new(0);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    std::thread::scope(|scope| {
        let other = scope.spawn(|| keep_busy(&mut long, &looping, [&runs, &ends], &in_progress));
        let mut blocks = || {
            for block in 0..BLOCKS {
                let samples = if block % 2 == 0 { &mut alone } else { &mut beside };
                let is_beside = block % 2 == 1;
                runs.store(is_beside, Ordering::Release);
                other.thread().unpark();
                let mut first = 0;
                let as_wanted = || (in_progress.load(Ordering::Acquire) > 0) == is_beside;
                while (first < FIRST || !as_wanted()) && !other.is_finished() {
                    timed(short, Runs::There, program, parameters)?;
                    first += 1;
                }
                let (began, wanted) = (Instant::now(), samples.len() + rounds / BLOCKS * 2);
                while samples.len() < wanted || began.elapsed() < BLOCK {
                    samples.push(timed(short, Runs::There, program, parameters)?.0);
                }
            }
            Ok(())
        };
        let done: Result<(), Failure> = blocks();
        ends.store(true, Ordering::Release);
        other.thread().unpark();
        let Ok(kept) = other.join() else {
            return Err(Failure::system("the caller of long calls has ended".to_owned()));
        };
        done?;
        let long_calls = kept?;
        let (alone, beside) =
            (Times::of(std::mem::take(&mut alone)), Times::of(std::mem::take(&mut beside)));
        let ratio_p99 = beside.p99_ns as f64 / alone.p99_ns.max(1) as f64;
        Ok(Fairness { alone, beside, ratio_p99, long_calls, long_ns })
    })
}

/// Keeps long calls in progress while `runs` is set, until `ends` is; how many have ended.
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
            match long.invoke(program, &[]).map_err(failed)? {
                Some(ticket) => begun.push(ticket),
                None => break,
            }
        }
        in_progress.store(begun.len(), Ordering::Release);
        match begun.first().copied() {
            // They end about in their order.
            Some(ticket) => {
                long.wait(ticket, Duration::from_secs(30)).map_err(failed)?;
                begun.remove(0);
                ended += 1;
            }
            None => std::thread::park_timeout(Duration::from_millis(50)),
        }
    }
    Ok(ended)
}

impl Fairness {
    pub(super) fn lines(&self) -> Vec<String> {
        let long = time(self.long_ns as f64);
        let mut lines =
            vec![format!("short calls beside {LONG_CALLS} calls of {long} that only compute")];
        lines.push(format!("{:>14} {:>14} {:>14}", "", "median", "p99"));
        for (name, Times { median_ns, p99_ns }) in
            [("alone", &self.alone), ("beside", &self.beside)]
        {
            let (median, p99) = (time(*median_ns as f64), time(*p99_ns as f64));
            lines.push(format!("{name:>14} {median:>14} {p99:>14}"));
        }
        let (ratio, ended) = (self.ratio_p99, self.long_calls);
        lines.push(format!("{ratio:>14.2} p99 beside against alone; {ended} long calls ended"));
        lines
    }
}
