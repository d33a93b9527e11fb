//! Output: text or JSON on standard output, progress and errors on standard error. No other module prints.
//! Progress is drawn only on terminals.
//!
//! The state of standard output is global: the first failed write is recorded, and [`Output::finish`] returns it, so
//! a command with a lost result never succeeds. A service writes through a bounded queue ([`Output::for_service`])
//! and never waits for the reader of its events.

mod queue;
mod time;

use crate::failure::Failure;
use crate::signals;
pub use indicatif::ProgressBar;
use indicatif::{ProgressDrawTarget, ProgressStyle};
use queue::EventQueue;
use serde::Serialize;
use serde_json::Value;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::process::ExitCode;
use std::sync::mpsc::channel;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Time to wait for the reader of standard error when the process ends.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// The state of this process's standard output.
static STANDARD_OUTPUT: StandardOutput =
    StandardOutput { failure: Mutex::new(None), queue: OnceLock::new() };

struct StandardOutput {
    /// The error of the first failed write, after which nothing is written.
    failure: Mutex<Option<io::Error>>,
    /// The event queue of a service.
    queue: OnceLock<EventQueue>,
}

/// The command's standard output and standard error, in the requested form.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    json: bool,
    progress: bool,
}

impl Output {
    /// Returns the output of a command with `--json` and `--quiet`.
    pub fn new(json: bool, quiet: bool) -> Self {
        let progress = !json && !quiet && std::io::stderr().is_terminal();
        Self { json, progress }
    }

    /// Starts the writer thread of a service: from now on printing does not block, and events that are not read in
    /// time are dropped and counted.
    pub fn for_service(self) -> Result<Self, Failure> {
        let say = |reason: &str| put_error(&format!("farside: standard output: {reason}"));
        let queue = EventQueue::start(std::io::stdout(), self.json, say);
        let queue = queue.map_err(|e| Failure::system(format!("a thread for output: {e}")))?;
        let _ = STANDARD_OUTPUT.queue.set(queue);
        Ok(self)
    }

    /// Prints an event of a service: with `--json` as one object with its `time`, otherwise as the lines that `lines`
    /// returns for that time. Does not block; if the queue is full, the event is dropped and counted by the next one.
    pub fn event(&self, event: &impl Serialize, lines: impl FnOnce(&str) -> Vec<String>) {
        match STANDARD_OUTPUT.queue.get() {
            Some(queue) => queue.push(|| self.event_text(event, lines)),
            None => STANDARD_OUTPUT.line(self.event_text(event, lines)),
        }
    }

    /// Prints the event that ends a service, even if the queue is full.
    pub fn last_event(&self, event: &impl Serialize, lines: impl FnOnce(&str) -> Vec<String>) {
        STANDARD_OUTPUT.line(self.event_text(event, lines));
    }

    fn event_text(
        &self,
        event: &impl Serialize,
        lines: impl FnOnce(&str) -> Vec<String>,
    ) -> String {
        #[derive(Serialize)]
        struct Timed<'a, E> {
            #[serde(flatten)]
            event: &'a E,
            time: &'a str,
        }
        let time = &time::now();
        if self.json { json(&Timed { event, time }) } else { lines(time).join("\n") }
    }

    /// Prints a line of text; nothing with `--json`.
    pub fn line(&self, text: impl AsRef<str>) {
        if !self.json {
            STANDARD_OUTPUT.line(text.as_ref().to_owned());
        }
    }

    /// Prints the result as one line of JSON; nothing without `--json`.
    pub fn value(&self, value: &impl Serialize) {
        if self.json {
            STANDARD_OUTPUT.line(json(value));
        }
    }

    /// Prints the result as one line of JSON, with the failure of the command, if any; nothing without `--json`.
    /// Returns the result of the command.
    pub fn ended(&self, mut value: Value, end: Result<(), Failure>) -> Result<(), Failure> {
        if let (Err(failure), Some(fields)) = (&end, value.as_object_mut()) {
            fields.insert("error".to_owned(), serde_json::json!(failure));
        }
        self.value(&value);
        end.map_err(|failure| Failure::Reported(Box::new(failure)))
    }

    /// Prints lines that are the result itself, for people and programs; nothing with `--json`.
    pub fn text(&self, lines: &[u8]) {
        if !self.json {
            STANDARD_OUTPUT.write(lines);
        }
    }

    /// Prints a progress message on a terminal.
    pub fn note(&self, text: impl AsRef<str>) {
        if self.progress {
            put_error(text.as_ref());
        }
    }

    /// Prints a line of a program's standard error; nothing with `--json`.
    pub fn error_line(&self, text: impl AsRef<str>) {
        if !self.json {
            put_error(text.as_ref());
        }
    }

    /// Prints a problem with which the command continues.
    pub fn warning(&self, text: impl AsRef<str>) {
        say_error(text.as_ref());
    }

    /// Prints why the command fails.
    pub fn failure(&self, failure: &Failure) {
        #[derive(Serialize)]
        struct Wrapped<'a> {
            error: &'a Failure,
        }
        if !matches!(failure, Failure::Reported(_)) {
            self.value(&Wrapped { error: failure });
        }
        say_error(&failure.to_string());
    }

    /// Whether a write of a result has failed, also because its reader has closed the pipe: nothing more is printed.
    pub fn is_closed(&self) -> bool {
        STANDARD_OUTPUT.failure.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Waits until standard output is written.
    ///
    /// # Errors
    /// The first failed write. A reader that has closed the pipe (`farside info | head -1`) is no failure. After a
    /// signal, output that is not read for a second is abandoned.
    pub fn finish(&self) -> Result<(), Failure> {
        let failed = |reason: &dyn std::fmt::Display| {
            Err(Failure::system(format!("standard output: {reason}")))
        };
        if let Some(Err(reason)) =
            STANDARD_OUTPUT.queue.get().map(|queue| queue.finish(signals::is_stopping))
        {
            return failed(&reason);
        }
        match &*STANDARD_OUTPUT.failure.lock().unwrap_or_else(PoisonError::into_inner) {
            Some(error) if error.kind() != ErrorKind::BrokenPipe => failed(error),
            _ => Ok(()),
        }
    }

    /// Ends the command: prints why it failed, and waits until standard output is written. Returns its exit code.
    pub fn end(&self, done: Result<(), Failure>) -> ExitCode {
        if let Err(failure) = &done {
            self.failure(failure);
        }
        let written = self.finish();
        if let Err(failure) = &written {
            self.failure(failure);
        }
        match done.and(written) {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.exit_code(),
        }
    }

    /// Returns the exit code of a command that has only printed its help or version, or, if `is_wrong`, an error of its
    /// arguments. Prints an error of that output.
    pub fn end_of_usage(printed: io::Result<()>, is_wrong: bool) -> ExitCode {
        match printed.and_then(|()| io::stdout().flush()) {
            _ if is_wrong => ExitCode::from(2),
            Err(error) if error.kind() != ErrorKind::BrokenPipe => {
                let failure = Failure::system(format!("standard output: {error}"));
                Self::new(false, true).failure(&failure);
                failure.exit_code()
            }
            _ => ExitCode::SUCCESS,
        }
    }

    /// Returns a progress bar for `total` items, hidden unless standard error is a terminal.
    pub fn bar(&self, label: &str, total: u64) -> ProgressBar {
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

impl StandardOutput {
    fn line(&self, mut text: String) {
        match self.queue.get() {
            Some(queue) => queue.push_last(text),
            None => {
                text.push('\n');
                self.write(text.as_bytes());
            }
        }
    }

    fn write(&self, bytes: &[u8]) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_none() {
            let mut out = std::io::stdout().lock();
            *failure = out.write_all(bytes).and_then(|()| out.flush()).err();
        }
    }
}

/// Serializes a structure of this program, whose keys are strings, so that it always has a JSON form.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Prints a failure or a warning on standard error; when the process ends, waits for its reader at most a second.
fn say_error(text: &str) {
    let line = format!("farside: {text}");
    if !signals::is_stopping() {
        return put_error(&line);
    }
    let (sender, done) = channel();
    std::thread::spawn(move || {
        put_error(&line);
        let _ = sender.send(());
    });
    let _ = done.recv_timeout(LAST_WORD_TIMEOUT);
}

/// Writes a line to standard error. A failure cannot be reported.
fn put_error(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// A text table: the first column is aligned to the left, the others to the right.
#[derive(Debug, Default)]
pub struct Table {
    rows: Vec<Vec<String>>,
    /// Another column that is aligned to the left.
    left: Option<usize>,
}

impl Table {
    /// Creates a table of these columns.
    pub fn new<const COLUMNS: usize>(heads: [&str; COLUMNS]) -> Self {
        let mut table = Self::default();
        table.row(heads.map(str::to_owned));
        table
    }

    /// Adds a row.
    pub fn row<const COLUMNS: usize>(&mut self, cells: [String; COLUMNS]) {
        self.rows.push(cells.to_vec());
    }

    /// Aligns this column to the left too, for text.
    pub fn left(self, column: usize) -> Self {
        Self { left: Some(column), ..self }
    }

    /// Returns the lines of the table.
    pub fn text(&self) -> String {
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

/// Formats a count with thousands separators.
pub fn count(number: u64) -> String {
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

/// Formats a time with a suitable unit.
pub fn time(time_ns: f64) -> String {
    match time_ns {
        ns if ns < 100.0 => format!("{ns:.1} ns"),
        ns if ns < 10_000.0 => format!("{ns:.0} ns"),
        ns if ns < 10_000_000.0 => format!("{:.1} us", ns / 1e3),
        ns if ns < 10_000_000_000.0 => format!("{:.1} ms", ns / 1e6),
        ns => format!("{:.1} s", ns / 1e9),
    }
}

/// Formats a number of bytes with a suitable unit.
pub fn bytes(bytes: u64) -> String {
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
    fn numbers_have_separators_and_units() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(count), ["0", "999", "1,000", "1,234,567"]);
        assert_eq!(
            [7.25, 150.0, 12_345.0, 2e9].map(time),
            ["7.2 ns", "150 ns", "12.3 us", "2000.0 ms"]
        );
        assert_eq!([5, 1536, 1 << 30].map(bytes), ["5 B", "1.5 KiB", "1.0 GiB"]);
    }

    #[test]
    fn columns_are_aligned() {
        let mut table = Table::new(["name", "n"]);
        table.row(["a".to_owned(), "12".to_owned()]);
        assert_eq!(table.text(), "name   n\na     12");
    }
}
