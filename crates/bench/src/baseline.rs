//! Baselines: what the bare machine does, measured in the same run as the figures.

use super::window::{Figure, measure};
use farside_command::processors::{Allowed, bind};
use std::convert::Infallible;
use std::hint::black_box;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread::Thread;

/// An operation of the bare machine that figures are compared with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, PartialOrd, Ord)]
pub(crate) enum Baseline {
    /// Copying this many bytes within the nearest cache.
    Copy(usize),
    /// A fetch-and-add on a word that only this core uses.
    Atomic,
    /// A round trip of one cache line between two spinning cores.
    Line,
    /// Waking another thread, which wakes this one: a round trip.
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

    /// Measures the baseline now; a second thread, if it has one, runs on the second processor.
    pub(crate) fn measure(self, windows: u32, allowed: &Allowed) -> Figure {
        match self {
            Self::Copy(bytes) => copy(bytes, windows),
            Self::Atomic => atomic(windows),
            Self::Line => line(windows, allowed),
            Self::Futex => futex(windows, allowed),
        }
    }
}

fn infallible(done: Result<Figure, Infallible>) -> Figure {
    match done {
        Ok(figure) => figure,
        Err(never) => match never {},
    }
}

fn copy(bytes: usize, windows: u32) -> Figure {
    let from = vec![1_u8; bytes];
    let mut to = vec![0_u8; bytes];
    infallible(measure(windows, |count| {
        for _ in 0..count {
            black_box(&mut to[..]).copy_from_slice(black_box(&from[..]));
        }
        Ok(())
    }))
}

fn atomic(windows: u32) -> Figure {
    let word = AtomicU64::new(0);
    infallible(measure(windows, |count| {
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
            // An odd number is a request.
            let seen = other.0.load(Ordering::Acquire);
            if seen == STOP {
                return;
            }
            if seen % 2 == 1 {
                other.0.store(seen + 1, Ordering::Release);
            }
        }
    });
    let mut number = 0;
    let figure = infallible(measure(windows, |count| {
        for _ in 0..count {
            word.0.store(number + 1, Ordering::Release);
            number += 2;
            while word.0.load(Ordering::Acquire) != number {
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

/// Values of the word that the threads of [`Baseline::Futex`] park on.
const MEASURING: u32 = 0;
const ECHOING: u32 = 1;
const ENDED: u32 = 2;

fn futex(windows: u32, allowed: &Allowed) -> Figure {
    let allowed = allowed.clone();
    let word = Arc::new(AtomicU32::new(MEASURING));
    let start = Arc::new(Barrier::new(2));
    let main = std::thread::current();
    let (other_word, other_start) = (Arc::clone(&word), Arc::clone(&start));
    let echo = std::thread::spawn(move || {
        bind(allowed.processor(1));
        other_start.wait();
        loop {
            park_until(&other_word, |value| value != MEASURING);
            if other_word.load(Ordering::Acquire) == ENDED {
                return;
            }
            set_and_unpark(&other_word, MEASURING, &main);
        }
    });
    start.wait();
    let figure = infallible(measure(windows, |count| {
        for _ in 0..count {
            set_and_unpark(&word, ECHOING, echo.thread());
            park_until(&word, |value| value == MEASURING);
        }
        Ok(())
    }));
    set_and_unpark(&word, ENDED, echo.thread());
    let _ = echo.join();
    figure
}

/// Parks this thread until the word's value satisfies `is_ready`. Parking is a futex wait.
fn park_until(word: &AtomicU32, is_ready: impl Fn(u32) -> bool) {
    while !is_ready(word.load(Ordering::Acquire)) {
        std::thread::park();
    }
}

/// Stores the value and unparks the other thread, a futex wake.
fn set_and_unpark(word: &AtomicU32, value: u32, thread: &Thread) {
    word.store(value, Ordering::Release);
    thread.unpark();
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
