//! Reports of figures with their baselines and targets.

use super::baseline::Baseline;
use super::window::Figure;
use farside_command::output::{Output, Table, time};
use farside_command::processors::{Allowed, bind};
use serde::Serialize;
use std::collections::BTreeMap;

/// Target of a figure, judged by the best window.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Target {
    /// The figure has no target.
    None,
    /// At most this number of nanoseconds.
    AtMostNs(f64),
    /// At most this multiple of the baseline.
    AtMostBaselines(f64),
    /// At least this share of the baseline's speed.
    ShareOfBaseline(f64),
    /// At most this multiple of another figure of the same run.
    AtMostTimes(f64, &'static str),
    /// Faster than another figure of the same run by at least this factor.
    TimesFaster(f64, &'static str),
}

/// One line of the report.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Row {
    pub(crate) name: String,
    #[serde(flatten)]
    pub(crate) figure: Figure,
    pub(crate) baseline: String,
    pub(crate) baseline_best_ns: f64,
    pub(crate) baseline_median_ns: f64,
    /// The figure's best divided by the baseline's best.
    pub(crate) ratio: f64,
    pub(crate) target: String,
    /// `None` if there is no target or it refers to a figure that was not measured.
    pub(crate) met: Option<bool>,
}

/// Collects rows and measures each baseline once, before its first use.
pub(crate) struct Report {
    windows: u32,
    only: Option<String>,
    allowed: Allowed,
    baselines: BTreeMap<Baseline, Figure>,
    rows: Vec<Row>,
    /// Figures without a row, and what could not be measured and why.
    remarks: Vec<String>,
}

impl Report {
    /// Creates an empty report and binds this thread to the first processor.
    pub(crate) fn new(windows: u32, only: Option<String>) -> Self {
        let allowed = Allowed::now();
        bind(allowed.processor(0));
        Self {
            windows,
            only,
            allowed,
            baselines: BTreeMap::new(),
            rows: Vec::new(),
            remarks: Vec::new(),
        }
    }

    /// Returns the processors that this process may use.
    pub(crate) fn allowed(&self) -> &Allowed {
        &self.allowed
    }

    /// Returns the number of figures.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether `--only` selects this figure.
    pub(crate) fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Measures a figure and its baseline, if `--only` selects it.
    pub(crate) fn add<E>(
        &mut self,
        name: &str,
        baseline: Baseline,
        target: Target,
        run: impl FnOnce(u32) -> Result<Figure, E>,
    ) -> Result<(), E> {
        if self.wants(name) {
            let windows = self.windows;
            let base = *self
                .baselines
                .entry(baseline)
                .or_insert_with(|| baseline.measure(windows, &self.allowed));
            let figure = run(windows)?;
            let (text, met) = self.judge(target, &figure, &base);
            self.rows.push(Row {
                name: name.to_owned(),
                figure,
                baseline: baseline.name(),
                baseline_best_ns: base.best_ns,
                baseline_median_ns: base.median_ns,
                ratio: figure.best_ns / base.best_ns,
                target: text,
                met,
            });
        }
        Ok(())
    }

    /// Adds a remark.
    pub(crate) fn remark(&mut self, text: impl Into<String>) {
        self.remarks.push(text.into());
    }

    fn best_of(&self, name: &str) -> Option<f64> {
        self.rows.iter().find(|row| row.name == name).map(|row| row.figure.best_ns)
    }

    fn judge(&self, target: Target, figure: &Figure, base: &Figure) -> (String, Option<bool>) {
        let best = figure.best_ns;
        match target {
            Target::None => (String::new(), None),
            Target::AtMostNs(ns) => (format!("<= {}", time(ns)), Some(best <= ns)),
            Target::AtMostBaselines(times) => {
                (format!("<= {times} x baseline"), Some(best <= times * base.best_ns))
            }
            Target::ShareOfBaseline(share) => {
                let percent = share * 100.0;
                (format!(">= {percent:.0}% of baseline"), Some(base.best_ns / best >= share))
            }
            Target::AtMostTimes(times, other) => (
                format!("<= {times:.2} x {other}"),
                self.best_of(other).map(|ns| best <= times * ns),
            ),
            Target::TimesFaster(times, other) => {
                (format!(">= {times} x {other}"), self.best_of(other).map(|ns| best * times <= ns))
            }
        }
    }

    /// Prints all rows and remarks.
    pub(crate) fn print(&self, output: Output) {
        #[derive(Serialize)]
        struct Whole<'a> {
            figures: &'a [Row],
            remarks: &'a [String],
        }
        output.value(&Whole { figures: &self.rows, remarks: &self.remarks });
        let heads = ["operation", "best", "median", "baseline", "its best", "ratio", "target", ""];
        let mut table = Table::new(heads);
        for row in &self.rows {
            let met = match row.met {
                Some(true) => "met",
                Some(false) => "MISSED",
                None => "",
            };
            table.row([
                row.name.clone(),
                time(row.figure.best_ns),
                time(row.figure.median_ns),
                row.baseline.clone(),
                time(row.baseline_best_ns),
                format!("{:.2}", row.ratio),
                row.target.clone(),
                met.to_owned(),
            ]);
        }
        output.line(table.text());
        for remark in &self.remarks {
            output.line(format!("note: {remark}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figure(best_ns: f64) -> Figure {
        Figure::from_windows(vec![best_ns], 1)
    }

    #[test]
    fn targets_are_judged_by_best_window() {
        let mut report = Report::new(8, None);
        let added =
            report.add("read", Baseline::Copy(8), Target::None, |_| Ok::<_, ()>(figure(20.0)));
        assert_eq!(added, Ok(()));
        let base = figure(10.0);
        let cases = [
            (Target::None, None),
            (Target::AtMostNs(20.0), Some(true)),
            (Target::AtMostNs(19.0), Some(false)),
            (Target::AtMostBaselines(2.0), Some(true)),
            (Target::AtMostBaselines(1.9), Some(false)),
            (Target::ShareOfBaseline(0.5), Some(true)),
            (Target::ShareOfBaseline(0.6), Some(false)),
            (Target::AtMostTimes(1.0, "read"), Some(true)),
            (Target::TimesFaster(1.8, "read"), Some(false)),
            (Target::AtMostTimes(1.0, "never measured"), None),
        ];
        for (target, met) in cases {
            assert_eq!(report.judge(target, &figure(20.0), &base).1, met, "{target:?}");
        }
    }

    #[test]
    fn only_selected_figures_are_measured() {
        let mut report = Report::new(8, Some("miss".to_owned()));
        let added = report.add("read hit", Baseline::Atomic, Target::None, |_| Err(()));
        assert_eq!(added, Ok(()), "not measured, so it cannot fail");
        assert!(report.wants("read miss") && report.rows.is_empty());
    }
}
