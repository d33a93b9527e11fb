//! Ctrl-C and termination as values.

use crate::failure::Failure;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Whether SIGINT or SIGTERM has come and the process is to end.
static STOPPING: AtomicBool = AtomicBool::new(false);

/// After so long a further signal means impatience, and is not the same one delivered twice.
const IMPATIENCE: Duration = Duration::from_secs(1);

/// Calls `tell` at the first SIGINT or SIGTERM. A later one, or one that `tell` finds nobody to tell of,
/// ends the process at once.
pub(crate) fn watch(tell: impl Fn() -> bool + Send + 'static) -> Result<(), Failure> {
    let failed = |e| Failure::system(format!("signals: {e}"));
    let mut signals = Signals::new([SIGINT, SIGTERM]).map_err(failed)?;
    std::thread::spawn(move || {
        let mut first: Option<Instant> = None;
        for _ in signals.forever() {
            STOPPING.store(true, Ordering::Release);
            match first {
                None if tell() => first = Some(Instant::now()),
                Some(first) if first.elapsed() < IMPATIENCE => {}
                _ => std::process::exit(130),
            }
        }
    });
    Ok(())
}

/// Whether a signal that [`watch`] waits for has come.
pub(crate) fn is_stopping() -> bool {
    STOPPING.load(Ordering::Acquire)
}
