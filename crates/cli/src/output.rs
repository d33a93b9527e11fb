//! The only place that prints: text or JSON on standard output, progress and errors on standard
//! error. Progress is drawn for people at a terminal only.

use crate::failure::Failure;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use serde_json::Value;
use std::io::{IsTerminal, Write};

/// How to speak to whoever started the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Output {
    json: bool,
    progress: bool,
}

impl Output {
    pub(crate) fn new(json: bool, quiet: bool) -> Self {
        let progress = !json && !quiet && std::io::stderr().is_terminal();
        Self { json, progress }
    }

    /// A line of text for people; nothing with `--json`.
    pub(crate) fn line(&self, text: impl AsRef<str>) {
        if !self.json {
            put(std::io::stdout().lock(), text.as_ref());
        }
    }

    /// The result as one line of JSON; nothing without `--json`.
    pub(crate) fn value(&self, value: &impl Serialize) {
        if self.json {
            // Values are our own structures with string keys, which always have a JSON form.
            put(std::io::stdout().lock(), &serde_json::to_string(value).unwrap_or_default());
        }
    }

    /// The result as one line of JSON, which also says why the command fails where it does; nothing
    /// without `--json`. What it returns ends the command.
    pub(crate) fn ended(&self, mut value: Value, end: Result<(), Failure>) -> Result<(), Failure> {
        if let (Err(failure), Some(fields)) = (&end, value.as_object_mut()) {
            fields.insert("error".to_owned(), serde_json::json!(failure));
        }
        self.value(&value);
        end.map_err(|failure| Failure::Told(Box::new(failure)))
    }

    /// Lines that are the result itself and may be read by another program; nothing with `--json`.
    pub(crate) fn text(&self, lines: &[u8]) -> Result<(), Failure> {
        if self.json {
            return Ok(());
        }
        match std::io::stdout().lock().write_all(lines) {
            Err(e) if e.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
            done => done.map_err(|e| Failure::system(format!("standard output: {e}"))),
        }
    }

    /// A word about what goes on, for people who watch.
    pub(crate) fn note(&self, text: impl AsRef<str>) {
        if self.progress {
            put(std::io::stderr().lock(), text.as_ref());
        }
    }

    /// What needs the operator's attention, on standard error; also with `--json`.
    pub(crate) fn warn(&self, text: &str) {
        put(std::io::stderr().lock(), &format!("farside: {text}"));
    }

    /// Why the command fails.
    pub(crate) fn failure(&self, failure: &Failure) {
        #[derive(Serialize)]
        struct Wrapped<'a> {
            error: &'a Failure,
        }
        if !matches!(failure, Failure::Told(_)) {
            self.value(&Wrapped { error: failure });
        }
        put(std::io::stderr().lock(), &format!("farside: {failure}"));
    }

    /// A progress bar for `total` things, hidden unless somebody watches.
    pub(crate) fn bar(&self, label: &str, total: u64) -> ProgressBar {
        let target =
            if self.progress { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        let bar = ProgressBar::with_draw_target(Some(total), target);
        let style = ProgressStyle::with_template(
            "{prefix:<12} {bar:40} {pos:>9}/{len} {per_sec:>16} {eta:>5}",
        );
        if let Ok(style) = style {
            bar.set_style(style);
        }
        bar.set_prefix(label.to_owned());
        bar
    }
}

/// Writes a line. Nobody may read any more (`farside info | head -1`), which is not our fault.
fn put(mut to: impl Write, text: &str) {
    let _ = writeln!(to, "{text}");
}

/// A table for people: the first column to the left, the others to the right.
#[derive(Debug, Default)]
pub(crate) struct Table {
    rows: Vec<Vec<String>>,
    /// Another column to the left.
    left: Option<usize>,
}

impl Table {
    pub(crate) fn new<const COLUMNS: usize>(heads: [&str; COLUMNS]) -> Self {
        let mut table = Self::default();
        table.row(heads.map(str::to_owned));
        table
    }

    pub(crate) fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.to_vec());
    }

    /// The same with this column to the left too: sentences.
    pub(crate) fn left(self, column: usize) -> Self {
        Self { left: Some(column), ..self }
    }

    /// The lines of the table, columns aligned.
    pub(crate) fn text(&self) -> String {
        let columns = self.rows.iter().map(Vec::len).max().unwrap_or(0);
        let width = |column: usize| {
            let cells = self.rows.iter().filter_map(|row| row.get(column));
            cells.map(|cell| cell.chars().count()).max().unwrap_or(0)
        };
        let widths: Vec<_> = (0..columns).map(width).collect();
        let mut text = String::new();
        for row in &self.rows {
            let mut line = String::new();
            for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
                let width = *width;
                if column == 0 {
                    line.push_str(&format!("{cell:<width$}"));
                } else if self.left == Some(column) {
                    line.push_str(&format!("  {cell:<width$}"));
                } else {
                    line.push_str(&format!("  {cell:>width$}"));
                }
            }
            text.push_str(line.trim_end());
            text.push('\n');
        }
        text.pop();
        text
    }
}

/// A count with thousands apart, as people read it.
pub(crate) fn count(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A time with a unit that suits it.
pub(crate) fn time(time_ns: f64) -> String {
    match time_ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{ns:.0} ns"),
        ns if ns < 10_000_000.0 => format!("{:.1} us", ns / 1e3),
        ns if ns < 10_000_000_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// A number of bytes with a unit that suits it.
pub(crate) fn bytes(bytes: u64) -> String {
    let units = ["B", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < units.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} B") } else { format!("{value:.1} {}", units[unit]) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_readable() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [7.25, 150.0, 12_345.0, 2e9].map(time),
            ["7.2 ns", "150 ns", "12.3 us", "2000.0 ms"]
        );
        assert_eq!([5, 1536, 1 << 30].map(bytes), ["5 B", "1.5 KiB", "1.0 GiB"]);
    }

    #[test]
    fn columns_line_up() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a".to_owned(), "12".to_owned()]);
        assert_eq!(table.text(), "name   n\na     12");
    }
}
