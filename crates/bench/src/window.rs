//! Measuring in short windows. Other work on a shared machine disturbs long runs, but some windows of a few
//! tenths of a millisecond run undisturbed: the best window is the cost of the operation, the median its
//! cost under the current load.

use serde::{Deserialize, Serialize};
use std::time::{Duration, Instant};

/// Intended length of a window.
const WINDOW: Duration = Duration::from_micros(400);
/// Windows at the start that are discarded.
const WARM_UP: u32 = 24;

/// Time of one operation.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Of the shortest window.
    pub(crate) best_ns: f64,
    /// Of the median window.
    pub(crate) median_ns: f64,
    /// Number of windows.
    pub(crate) windows: u32,
    /// Operations of one window.
    pub(crate) operations: u64,
}

impl Figure {
    /// Computes the figure from the times of windows of `operations` operations each.
    pub(crate) fn from_windows(mut windows_ns: Vec<f64>, operations: u64) -> Self {
        windows_ns.sort_by(f64::total_cmp);
        let each = |at: usize| windows_ns.get(at).map_or(f64::NAN, |ns| ns / operations as f64);
        Self {
            best_ns: each(0),
            median_ns: each(windows_ns.len() / 2),
            windows: u32::try_from(windows_ns.len()).unwrap_or(u32::MAX),
            operations,
        }
    }

    /// Returns the figure of an event that happens `count` times in each operation.
    pub(crate) fn per(self, count: f64) -> Self {
        Self { best_ns: self.best_ns / count, median_ns: self.median_ns / count, ..self }
    }
}

/// Measures `run(count)`, which does the operation `count` times. Chooses the count so that a window is
/// short; the first windows warm up caches, predictors and the peer.
pub(crate) fn measure<E>(
    windows: u32,
    mut run: impl FnMut(u64) -> Result<(), E>,
) -> Result<Figure, E> {
    // The first operation is not typical: the peer may sleep, a line may not be cached yet.
    run(1)?;
    let mut count = 1_u64;
    loop {
        let start = Instant::now();
        run(count)?;
        let took = start.elapsed();
        if took >= WINDOW / 2 || count >= 1 << 24 {
            break;
        }
        count *= 2;
    }
    let mut times = Vec::with_capacity(windows as usize);
    for at in 0..WARM_UP.min(windows) + windows {
        let start = Instant::now();
        run(count)?;
        let took = start.elapsed().as_nanos() as f64;
        if at >= WARM_UP.min(windows) {
            times.push(took);
        }
    }
    Ok(Figure::from_windows(times, count))
}

/// Measures windows of `count` operations each and calls `prepare`, which is not timed, before each.
pub(crate) fn measure_prepared<C, E>(
    windows: u32,
    count: u64,
    context: &mut C,
    mut prepare: impl FnMut(&mut C) -> Result<(), E>,
    mut run: impl FnMut(&mut C) -> Result<(), E>,
) -> Result<Figure, E> {
    let mut times = Vec::with_capacity(windows as usize);
    for at in 0..windows + 2 {
        prepare(context)?;
        let start = Instant::now();
        run(context)?;
        if at >= 2 {
            times.push(start.elapsed().as_nanos() as f64);
        }
    }
    Ok(Figure::from_windows(times, count))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figure_has_best_and_median_of_windows() {
        let figure = Figure::from_windows(vec![30.0, 10.0, 20.0, 90.0, 40.0], 10);
        assert_eq!((figure.best_ns, figure.median_ns, figure.windows), (1.0, 3.0, 5));
        assert_eq!(figure.per(2.0).best_ns, 0.5);
    }

    #[test]
    fn failure_ends_measurement() {
        let mut left = 5;
        let done = measure(100, |_| {
            left -= 1;
            if left == 0 { Err("enough") } else { Ok(()) }
        });
        assert_eq!(done, Err("enough"));
    }

    #[test]
    fn prepare_runs_before_every_window() {
        let mut context = (0, 0);
        let prepare = |context: &mut (u32, u32)| {
            context.0 += 1;
            Ok::<_, ()>(())
        };
        let figure = measure_prepared(8, 4, &mut context, prepare, |context| {
            context.1 += 1;
            if context.0 == context.1 { Ok(()) } else { Err(()) }
        });
        assert_eq!(figure.map(|figure| (figure.windows, figure.operations)), Ok((8, 4)));
    }
}
