//! SIGINT, SIGTERM and SIGHUP as events.

use crate::failure::Failure;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The next signal counts as the first one.
static RESUMED: AtomicBool = AtomicBool::new(false);
/// Whether a signal has requested the end of the process.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// Further signals within this time are treated as duplicates of the first one.
const DUPLICATE_PERIOD: Duration = Duration::from_secs(1);

/// Reports a signal; false if nothing listens any more.
type Notify = Box<dyn Fn() -> bool + Send>;

/// The callbacks of all calls of [`watch`]; `None` before the first.
static NOTIFIED: Mutex<Option<Vec<Notify>>> = Mutex::new(None);

/// Calls `notify` at the first SIGINT, SIGTERM or SIGHUP, after the callbacks of earlier calls of this function. A later
/// signal ends the process at once, and so does the first if the latest `notify` returns false. SIGHUP stays ignored if
/// the process was started so, as by `nohup`.
pub fn watch(notify: impl Fn() -> bool + Send + 'static) -> Result<(), Failure> {
    let mut notified = NOTIFIED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(notified) = notified.as_mut() {
        notified.push(Box::new(notify));
        return Ok(());
    }
    let failed = |e| Failure::system(format!("signals: {e}"));
    let mut signals =
        Signals::new([SIGINT, SIGTERM].into_iter().chain(hang_up())).map_err(failed)?;
    *notified = Some(vec![Box::new(notify)]);
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            if RESUMED.swap(false, Ordering::AcqRel) {
                first = None;
            }
            STOPPING.store(true, Ordering::Release);
            match first {
                None if notify_all() => first = Some(Instant::now()),
                Some(first) if first.elapsed() < DUPLICATE_PERIOD => {}
                _ => std::process::exit(130),
            }
        }
    });
    Ok(())
}

/// Continues after a signal that the process could not follow: the next one is reported as the first was.
pub fn resume() {
    STOPPING.store(false, Ordering::Release);
    RESUMED.store(true, Ordering::Release);
}

/// Reports a signal to all; returns whether the latest listens.
fn notify_all() -> bool {
    let notified = NOTIFIED.lock().unwrap_or_else(PoisonError::into_inner);
    notified.iter().flatten().fold(false, |_, notify| notify())
}

/// Returns SIGHUP, unless this process was started to ignore it.
fn hang_up() -> Option<i32> {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    (!ignores(&status, SIGHUP)).then_some(SIGHUP)
}

/// Returns whether the mask of ignored signals in `/proc/self/status` contains a signal.
fn ignores(status: &str, signal: i32) -> bool {
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (signal - 1) & 1 == 1)
}

/// Returns whether a signal has requested the end of the process.
pub fn is_stopping() -> bool {
    STOPPING.load(Ordering::Acquire)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_from_the_mask() {
        let status = "Name:\tx\nSigBlk:\t0000000000000001\nSigIgn:\t0000000000001001\n";
        assert!(ignores(status, SIGHUP));
        assert!(!ignores(status, SIGINT) && !ignores("", SIGHUP));
    }
}
