//! What the bare machine does, measured in the same run: the yardsticks of every figure.

use super::core::{Allowed, bind};
use super::window::{Figure, measure};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::Thread;

/// The yardsticks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Baseline {
    /// Copying so many bytes that are in the nearest cache.
    Copy(usize),
    /// A fetch-and-add on a word of this core's own.
    Atomic,
    /// One line there and back between two cores, both spinning.
    Line,
    /// Waking another thread and being woken by it.
    Futex,
}

impl Baseline {
    pub(crate) fn name(self) -> String {
        match self {
            Self::Copy(bytes) => format!("copy {bytes} B"),
            Self::Atomic => "fetch_add".to_owned(),
            Self::Line => "one-line round trip".to_owned(),
            Self::Futex => "futex round trip".to_owned(),
        }
    }

    /// Measures it now; the other thread, where there is one, on the second processor.
    pub(crate) fn measure(self, windows: u32, allowed: &Allowed) -> Figure {
        match self {
            Self::Copy(bytes) => copy(bytes, windows),
            Self::Atomic => atomic(windows),
            Self::Line => line(windows, allowed),
            Self::Futex => futex(windows, allowed),
        }
    }
}

fn certain(done: Result<Figure, Infallible>) -> Figure {
    match done {
        Ok(figure) => figure,
        Err(never) => match never {},
    }
}

fn copy(bytes: usize, windows: u32) -> Figure {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    certain(measure(windows, |count| {
        for _ in 0..count {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
        }
        Ok(())
    }))
}

fn atomic(windows: u32) -> Figure {
    let word = AtomicU64::new(0);
    certain(measure(windows, |count| {
        for _ in 0..count {
            black_box(&word).fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }))
}

/// A word on a line of its own.
#[repr(align(128))]
struct Padded(AtomicU64);

const STOP: u64 = u64::MAX;

fn line(windows: u32, allowed: &Allowed) -> Figure {
    let allowed = allowed.clone();
    let word = Arc::new(Padded(AtomicU64::new(0)));
    let other = Arc::clone(&word);
    let echo = std::thread::spawn(move || {
        bind(allowed.processor(1));
        loop {
            // Odd is ours to answer.
            let seen = other.0.load(Ordering::Acquire);
            if seen == STOP {
                return;
            }
            if seen % 2 == 1 {
                other.0.store(seen + 1, Ordering::Release);
            }
        }
    });
    let mut turn = 0;
    let figure = certain(measure(windows, |count| {
        for _ in 0..count {
            word.0.store(turn + 1, Ordering::Release);
            turn += 2;
            while word.0.load(Ordering::Acquire) != turn {
                std::hint::spin_loop();
            }
        }
        Ok(())
    }));
    word.0.store(STOP, Ordering::Release);
    // The echo cannot panic.
    let _ = echo.join();
    figure
}

fn futex(windows: u32, allowed: &Allowed) -> Figure {
    let allowed = allowed.clone();
    let turn = Arc::new(AtomicU32::new(0));
    let start = Arc::new(Barrier::new(2));
    let main = std::thread::current();
    let (other_turn, other_start) = (Arc::clone(&turn), Arc::clone(&start));
    let echo = std::thread::spawn(move || {
        bind(allowed.processor(1));
        other_start.wait();
        loop {
            wait_for(&other_turn, |turn| turn != 0);
            if other_turn.load(Ordering::Acquire) == 2 {
                return;
            }
            pass(&other_turn, 0, &main);
        }
    });
    start.wait();
    let figure = certain(measure(windows, |count| {
        for _ in 0..count {
            pass(&turn, 1, echo.thread());
            wait_for(&turn, |turn| turn == 0);
        }
        Ok(())
    }));
    pass(&turn, 2, echo.thread());
    let _ = echo.join();
    figure
}

/// Parking is a futex wait, unparking a futex wake.
fn wait_for(turn: &AtomicU32, mine: impl Fn(u32) -> bool) {
    while !mine(turn.load(Ordering::Acquire)) {
        std::thread::park();
    }
}

fn pass(turn: &AtomicU32, to: u32, whom: &Thread) {
    turn.store(to, Ordering::Release);
    whom.unpark();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_baseline_gives_a_figure() {
        for baseline in [
            Baseline::Copy(8),
            Baseline::Copy(4096),
            Baseline::Atomic,
            Baseline::Line,
            Baseline::Futex,
        ] {
            let figure = baseline.measure(8, &Allowed::now());
            assert!(
                figure.best_ns > 0.0 && figure.best_ns <= figure.median_ns,
                "{baseline:?}: {figure:?}"
            );
        }
    }
}
