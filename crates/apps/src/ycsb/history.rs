//! A run written down for linearizability checkers of others: one JSON object a line for each
//! operation,
//!
//! ```text
//! {"process":3,"operation":"read","key":"user17","value":"9f3a...","invoke_ns":...,"return_ns":...,"outcome":"ok"}
//! ```
//! `value` is the digest of the record that was read, or that an insert or update left behind; null
//! where there was none. A key is a register: an update is a write of the value that it left (one that
//! came out of the value before it, which a checker may use or not). `outcome` is `ok`; `failed` for
//! a read that failed, which says nothing; `unknown` for a change that failed, which may have happened
//! at any time after its call, or never. Times are nanoseconds since 1970 by the machine's clock at the
//! start of the process, and so comparable between the processes of a machine; each interval is
//! widened by what that comparison may be off. So intervals of one process may seem to overlap a little;
//! its lines are in its order.

use std::io::{self, Write};
use std::sync::Mutex;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

/// Bytes that a client keeps before it writes them out.
const BUFFER_BYTES: usize = 1 << 16;
/// Comparisons of the two clocks, of which the narrowest counts.
const COMPARISONS: usize = 64;

/// Where the operations of all clients of a process are written down.
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

/// How an operation ended, for a checker.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// As the value says.
    Ok,
    /// A read that failed.
    Failed,
    /// A change that failed, and may have happened.
    Unknown,
}

impl Outcome {
    fn name(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Failed => "failed",
            Self::Unknown => "unknown",
        }
    }
}

impl History {
    /// Writes to `writer`, in pieces of 64 KiB.
    pub fn new(writer: Box<dyn Write + Send>) -> Self {
        Self { out: Mutex::new(Out { writer, failure: None }), clock: Clock::new() }
    }

    /// The log of one client; `process` is unlike every other client's in the whole run.
    pub fn log(&self, process: u64) -> HistoryLog<'_> {
        HistoryLog { history: self, process, buffer: Vec::with_capacity(BUFFER_BYTES + 512) }
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

/// The log of one client. What is buffered is written when it is dropped.
#[derive(Debug)]
pub struct HistoryLog<'a> {
    history: &'a History,
    process: u64,
    buffer: Vec<u8>,
}

impl HistoryLog<'_> {
    /// Notes an operation.
    pub fn note(
        &mut self,
        operation: &str,
        key: &[u8],
        value: Option<u64>,
        times: (Instant, Instant),
        outcome: Outcome,
    ) {
        let clock = &self.history.clock;
        let (invoke, end) = (clock.at(times.0) - clock.off_ns, clock.at(times.1) + clock.off_ns);
        let process = self.process;
        // Writing to a vector does not fail.
        let _ = write!(self.buffer, r#"{{"process":{process},"operation":"{operation}","key":""#);
        escape(key, &mut self.buffer);
        let _ = match value {
            Some(digest) => write!(self.buffer, r#"","value":"{digest:016x}""#),
            None => write!(self.buffer, r#"","value":null"#),
        };
        let outcome = outcome.name();
        let _ = writeln!(
            self.buffer,
            r#","invoke_ns":{invoke},"return_ns":{end},"outcome":"{outcome}"}}"#
        );
        if self.buffer.len() >= BUFFER_BYTES {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.history.append(&self.buffer);
        self.buffer.clear();
    }
}

impl Drop for HistoryLog<'_> {
    fn drop(&mut self) {
        self.flush();
    }
}

/// The inside of a JSON string.
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

/// Ties the clock that never jumps to the one that all processes share.
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
    struct Shared(Arc<Mutex<Vec<u8>>>);

    impl Write for Shared {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lines_are_json() {
        let shared = Shared::default();
        let history = History::new(Box::new(shared.clone()));
        let moment = history.clock.start;
        let mut log = history.log(3);
        log.note("read", b"a\"\\\n\xff", Some(255), (moment, moment), Outcome::Ok);
        log.note("update", b"k", None, (moment, moment), Outcome::Unknown);
        drop(log);
        let (low, high) = (
            history.clock.start_ns - history.clock.off_ns,
            history.clock.start_ns + history.clock.off_ns,
        );
        history.finish().unwrap();
        let text = String::from_utf8(shared.0.lock().unwrap().clone()).unwrap();
        let wanted = format!(
            "{{\"process\":3,\"operation\":\"read\",\"key\":\"a\\\"\\\\\\u000a\u{fffd}\",\"value\":\"00000000000000ff\",\
             \"invoke_ns\":{low},\"return_ns\":{high},\"outcome\":\"ok\"}}\n\
             {{\"process\":3,\"operation\":\"update\",\"key\":\"k\",\"value\":null,\
             \"invoke_ns\":{low},\"return_ns\":{high},\"outcome\":\"unknown\"}}\n"
        );
        assert_eq!(text, wanted);
    }

    #[test]
    fn a_failed_write_is_told_at_the_end() {
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
        history.log(0).note("read", b"k", None, (now, now), Outcome::Ok);
        assert_eq!(history.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }
}
