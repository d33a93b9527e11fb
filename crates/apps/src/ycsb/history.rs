//! The history of a run for external linearizability checkers: one JSON object per line,
//!
//! ```text
//! {"process":3,"operation":"read","key":"user17","value":"9f3a...","invoke_ns":...,"return_ns":...,"outcome":"ok"}
//! ```
//! Each operation has a line when it begins, one more each time that an update has computed the value that
//! it is about to write, and a line when it has ended. They have the same process and `invoke_ns`, and the
//! last one counts. The lines before the end have a `return_ns` of null and the outcome that holds if the
//! process dies now: `unknown` with a value, `failed` without one, since nothing was changed yet. Each line
//! is in the file before the operation continues, so the file has everything that a killed process did, and
//! what it had in flight.
//!
//! `value` is the digest of the record that was read, or that an insert or update wrote; null if there was
//! none. A key is a register: an update is a write of its new value (computed from the previous one, which
//! a checker may use or not). `outcome` is `ok`; `not_found` for an update of no record; `failed` for a
//! failure without effect: a read, which says nothing, or an update that had no value yet; `unknown` for a
//! change that failed or was in flight, which may have happened at any time after its call, or never. Times
//! are nanoseconds since 1970 by the machine's clock at the start of the process, and so comparable between
//! the processes of a machine; each interval is widened by the error of that comparison. So intervals of
//! one process may overlap a little; its lines are in its order.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Comparisons of the two clocks, of which the narrowest is used.
const COMPARISONS: usize = 64;

/// The history of all clients of a process.
pub struct History {
    out: Mutex<Out>,
    clock: Clock,
}

struct Out {
    writer: Box<dyn Write + Send>,
    failure: Option<io::Error>,
}

impl std::fmt::Debug for History {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "History({:?})", self.clock)
    }
}

/// The outcome of an operation for a checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum OperationOutcome {
    /// Success, with the value.
    Ok,
    /// An update of no record.
    NotFound,
    /// It failed and had no effect.
    Failed,
    /// A change that failed, and may have happened.
    Unknown,
}

impl OperationOutcome {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::NotFound => "not_found",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl History {
    /// Writes to `writer`, each line by itself: written lines must survive the death of this process.
    pub fn new(writer: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(Out { writer, failure: None }), clock: Clock::new() }
    }

    /// The log of one client; `process` is unique in the whole run.
    pub fn log(&self, process: u64) -> HistoryLog<'_> {
        HistoryLog { history: self, process, line: Vec::with_capacity(512) }
    }

    /// Ends the history.
    ///
    /// # Errors
    /// The first failure to write.
    pub fn finish(self) -> io::Result<()> {
        let mut out = self.out.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        match out.failure {
            Some(failure) => Err(failure),
            None => out.writer.flush(),
        }
    }

    fn append(&self, bytes: &[u8]) {
        let mut out = self.out.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        if out.failure.is_none()
            && let Err(failure) = out.writer.write_all(bytes)
        {
            out.failure = Some(failure);
        }
    }
}

/// The log of one client.
#[derive(Debug)]
pub struct HistoryLog<'a> {
    history: &'a History,
    process: u64,
    line: Vec<u8>,
}

impl HistoryLog<'_> {
    /// Records the beginning of an operation, or the value that an operation in flight is about to write.
    pub fn begin(&mut self, operation: &str, key: &[u8], value: Option<u64>, called: Instant) {
        let outcome =
            if value.is_some() { OperationOutcome::Unknown } else { OperationOutcome::Failed };
        self.write(operation, key, value, (called, None), outcome);
    }

    /// Records the outcome of an operation; `times` start with that of its [`begin`](Self::begin).
    pub fn end(
        &mut self,
        operation: &str,
        key: &[u8],
        value: Option<u64>,
        times: (Instant, Instant),
        outcome: OperationOutcome,
    ) {
        self.write(operation, key, value, (times.0, Some(times.1)), outcome);
    }

    fn write(
        &mut self,
        operation: &str,
        key: &[u8],
        value: Option<u64>,
        times: (Instant, Option<Instant>),
        outcome: OperationOutcome,
    ) {
        let clock = &self.history.clock;
        let invoke = clock.at(times.0) - clock.off_ns;
        let process = self.process;
        self.line.clear();
        // Writing to a vector does not fail.
        let _ = write!(self.line, r#"{{"process":{process},"operation":"{operation}","key":""#);
        escape(key, &mut self.line);
        let _ = match value {
            Some(digest) => write!(self.line, r#"","value":"{digest:016x}""#),
            None => write!(self.line, r#"","value":null"#),
        };
        let _ = write!(self.line, r#","invoke_ns":{invoke},"return_ns":"#);
        let _ = match times.1 {
            Some(end) => write!(self.line, "{}", clock.at(end) + clock.off_ns),
            None => write!(self.line, "null"),
        };
        let _ = writeln!(self.line, r#","outcome":"{}"}}"#, outcome.name());
        self.history.append(&self.line);
    }
}

/// Escapes text for a JSON string.
fn escape(text: &[u8], out: &mut Vec<u8>) {
    for c in String::from_utf8_lossy(text).chars() {
        match c {
            '"' | '\\' => out.extend_from_slice(&[b'\\', c as u8]),
            '\0'..='\x1f' => {
                let _ = write!(out, "\\u{:04x}", c as u32);
            }
            _ => out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
        }
    }
}

/// Relates the monotonic clock to the one that all processes share.
#[derive(Debug)]
struct Clock {
    start: Instant,
    start_ns: u64,
    off_ns: u64,
}

impl Clock {
    fn new() -> Self {
        let compare = |_| {
            let before = Instant::now();
            let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
            let off = before.elapsed();
            Self {
                start: before,
                start_ns: since.as_nanos() as u64,
                off_ns: off.as_nanos() as u64 + 1,
            }
        };
        let first = compare(0);
        (1..COMPARISONS)
            .map(compare)
            .fold(first, |best, next| if next.off_ns < best.off_ns { next } else { best })
    }

    fn at(&self, moment: Instant) -> u64 {
        self.start_ns + moment.saturating_duration_since(self.start).as_nanos() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[derive(Clone, Default)]
    struct SharedOutput(Arc<Mutex<Vec<u8>>>);

    impl Write for SharedOutput {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn each_line_is_json_and_written_at_once() {
        let shared = SharedOutput::default();
        let history = History::new(Box::new(shared.clone()));
        let moment = history.clock.start;
        let mut log = history.log(3);
        log.end("read", b"a\"\\\n\xff", Some(255), (moment, moment), OperationOutcome::Ok);
        log.begin("update", b"k", None, moment);
        log.end("update", b"k", None, (moment, moment), OperationOutcome::NotFound);
        // As in a killed process: nothing is dropped or finished.
        std::mem::forget(log);
        let (low, high) = (
            history.clock.start_ns - history.clock.off_ns,
            history.clock.start_ns + history.clock.off_ns,
        );
        let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        let wanted = format!(
            "{{\"process\":3,\"operation\":\"read\",\"key\":\"a\\\"\\\\\\u000a\u{fffd}\",\"value\":\"00000000000000ff\",\
             \"invoke_ns\":{low},\"return_ns\":{high},\"outcome\":\"ok\"}}\n\
             {{\"process\":3,\"operation\":\"update\",\"key\":\"k\",\"value\":null,\
             \"invoke_ns\":{low},\"return_ns\":null,\"outcome\":\"failed\"}}\n\
             {{\"process\":3,\"operation\":\"update\",\"key\":\"k\",\"value\":null,\
             \"invoke_ns\":{low},\"return_ns\":{high},\"outcome\":\"not_found\"}}\n"
        );
        assert_eq!(text, wanted);
    }

    #[test]
    fn failed_write_is_reported_at_the_end() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let history = History::new(Box::new(Full));
        let now = Instant::now();
        history.log(0).end("read", b"k", None, (now, now), OperationOutcome::Ok);
        assert_eq!(history.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
