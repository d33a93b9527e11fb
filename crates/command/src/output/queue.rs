//! A bounded queue of events between a service and its standard output, which one thread drains: a reader
//! that stops reading (a full pipe, a paused terminal) blocks only that thread.
//!
//! Invariants: events are written in the order in which they were accepted; an event that was not written is
//! counted by the next one that is; memory is bounded by [`EVENTS_MAX`] and [`BYTES_MAX`], plus the few lines
//! that end a service.

use std::collections::VecDeque;
use std::io::{self, ErrorKind, Write};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Maximum number of pending events.
const EVENTS_MAX: usize = 1024;
/// Maximum bytes of pending events.
const BYTES_MAX: usize = 1 << 20;
/// Time after which a writer without progress is abandoned when the process ends.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// Events of a service, pending until they are written.
pub(super) struct EventQueue {
    shared: Arc<Shared>,
}

struct Shared {
    pending: Mutex<Pending>,
    /// Notified of each event that is accepted, and of each write that ends.
    changed: Condvar,
}

#[derive(Default)]
struct Pending {
    events: VecDeque<QueuedEvent>,
    bytes: usize,
    /// Events that were dropped since the last accepted one.
    dropped: u64,
    /// Whether a write is in progress.
    writes: bool,
    /// Writes that have ended.
    ended: u64,
    /// Events that failed writes lost.
    lost: u64,
    /// The error of the last failed write.
    failure: Option<String>,
}

/// An event as text, without the end of its line.
struct QueuedEvent {
    text: String,
    /// Events that were dropped between the previous one and this one.
    dropped: u64,
}

impl EventQueue {
    /// Starts the thread that writes to `out` and calls `failed` with the error of the first failed write.
    pub(super) fn start(
        out: impl Write + Send + 'static,
        json: bool,
        failed: impl FnOnce(&str) + Send + 'static,
    ) -> io::Result<Self> {
        let shared = Arc::new(Shared { pending: Mutex::default(), changed: Condvar::new() });
        let drained = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("farside-output".to_owned());
        thread.spawn(move || drained.drain(out, json, failed))?;
        Ok(Self { shared })
    }

    /// Accepts an event, or counts it as dropped if the queue is full. Does not block.
    pub(super) fn push(&self, text: impl FnOnce() -> String) {
        let mut pending = self.shared.pending();
        if pending.events.len() >= EVENTS_MAX || pending.bytes >= BYTES_MAX {
            pending.dropped += 1;
            return;
        }
        self.accept(pending, text());
    }

    /// Accepts a line that ends the service, even if the queue is full. Does not block.
    pub(super) fn push_last(&self, text: String) {
        self.accept(self.shared.pending(), text);
    }

    fn accept(&self, mut pending: MutexGuard<'_, Pending>, text: String) {
        let dropped = std::mem::take(&mut pending.dropped);
        pending.bytes += text.len();
        pending.events.push_back(QueuedEvent { text, dropped });
        self.shared.changed.notify_all();
    }

    /// Waits until all events are written. Once `is_stopped`, a writer without progress for a second is abandoned.
    ///
    /// # Errors
    /// The reason, and how many events were not written.
    pub(super) fn finish(&self, is_stopped: impl Fn() -> bool) -> Result<(), String> {
        let mut pending = self.shared.pending();
        while pending.writes || !pending.events.is_empty() {
            let ended = pending.ended;
            let waited = self.shared.changed.wait_timeout(pending, DRAIN_TIMEOUT);
            let (now, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            pending = now;
            if timeout.timed_out() && pending.ended == ended && is_stopped() {
                let unwritten = pending.unwritten();
                return Err(format!("it is not read; {} not written", events(unwritten)));
            }
        }
        match &pending.failure {
            Some(reason) => Err(format!("{reason}; {} not written", events(pending.lost))),
            None => Ok(()),
        }
    }
}

impl Pending {
    fn unwritten(&self) -> u64 {
        let queued: u64 = self.events.iter().map(|event| 1 + event.dropped).sum();
        queued + u64::from(self.writes) + self.dropped + self.lost
    }
}

impl Shared {
    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Writes events until the process ends.
    fn drain(&self, mut out: impl Write, json: bool, failed: impl FnOnce(&str)) {
        let (mut failed, mut unreported, mut is_torn) = (Some(failed), 0, false);
        loop {
            let QueuedEvent { text, dropped } = self.next();
            let before = dropped + unreported;
            let mut line = if is_torn { "\n".to_owned() } else { String::new() };
            line.push_str(&reported(text, before, json));
            line.push('\n');
            let (written, result) = write(&mut out, line.as_bytes());
            let mut pending = self.pending();
            (pending.writes, pending.ended) = (false, pending.ended + 1);
            match result {
                Ok(()) => (unreported, is_torn) = (0, false),
                Err(error) => {
                    unreported = before + 1;
                    is_torn |= written > 0;
                    // A reader that has closed the pipe needs no more events: no failure.
                    if error.kind() != ErrorKind::BrokenPipe {
                        pending.lost += 1;
                        let reason = error.to_string();
                        failed.take().into_iter().for_each(|failed| failed(&reason));
                        pending.failure = Some(reason);
                    }
                }
            }
            self.changed.notify_all();
        }
    }

    fn next(&self) -> QueuedEvent {
        let mut pending = self.pending();
        loop {
            if let Some(event) = pending.events.pop_front() {
                pending.bytes -= event.text.len();
                pending.writes = true;
                return event;
            }
            pending = self.changed.wait(pending).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

/// Returns the text of an event, with the number of events that were dropped before it.
fn reported(mut text: String, dropped: u64, json: bool) -> String {
    match dropped {
        0 => text,
        _ if json && text.ends_with('}') => {
            text.pop();
            format!("{text},\"dropped\":{dropped}}}")
        }
        _ => {
            format!("{} not written: standard output was not read in time\n{text}", events(dropped))
        }
    }
}

fn events(number: u64) -> String {
    if number == 1 { "1 event was".to_owned() } else { format!("{number} events were") }
}

/// Writes all bytes, and returns how many were written before a failure.
fn write(out: &mut impl Write, mut bytes: &[u8]) -> (usize, io::Result<()>) {
    let length = bytes.len();
    let result = loop {
        match out.write(bytes) {
            Ok(0) if !bytes.is_empty() => break Err(ErrorKind::WriteZero.into()),
            Ok(_) if bytes.is_empty() => break out.flush(),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => break Err(error),
        }
        if bytes.is_empty() {
            break out.flush();
        }
    };
    (length - bytes.len(), result)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{Receiver, Sender, channel};

    /// A reader that takes one write per permit, with the permit's result.
    struct SlowReader {
        started: Sender<()>,
        permits: Receiver<io::Result<()>>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Write for SlowReader {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let _ = self.started.send(());
            self.permits.recv().unwrap_or(Ok(()))?;
            self.read.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    struct Fixture {
        queue: EventQueue,
        started: Receiver<()>,
        permits: Sender<io::Result<()>>,
        read: Arc<Mutex<Vec<u8>>>,
    }

    impl Fixture {
        fn new(json: bool) -> Self {
            let (permits, allowed) = channel();
            let (sender, started) = channel();
            let read = Arc::new(Mutex::new(Vec::new()));
            let out = SlowReader { started: sender, permits: allowed, read: Arc::clone(&read) };
            let queue = EventQueue::start(out, json, |_| {}).unwrap();
            Self { queue, started, permits, read }
        }

        fn lines(&self) -> Vec<String> {
            let read = self.read.lock().unwrap();
            String::from_utf8(read.clone()).unwrap().lines().map(str::to_owned).collect()
        }
    }

    #[test]
    fn unread_events_are_dropped_and_counted() {
        let fixture = Fixture::new(true);
        fixture.queue.push(|| r#"{"event":"first"}"#.to_owned());
        fixture.started.recv().unwrap();
        let pushed = EVENTS_MAX as u64 + 7;
        (0..pushed).for_each(|number| fixture.queue.push(|| format!("{{\"number\":{number}}}")));
        fixture.queue.push_last(r#"{"event":"ended"}"#.to_owned());
        drop(fixture.permits);
        fixture.queue.finish(|| false).unwrap();
        let read = fixture.read.lock().unwrap();
        let lines: Vec<_> = std::str::from_utf8(&read).unwrap().lines().collect();
        assert_eq!(lines.len(), EVENTS_MAX + 2);
        assert_eq!(lines[EVENTS_MAX], format!("{{\"number\":{}}}", EVENTS_MAX - 1));
        assert_eq!(lines[EVENTS_MAX + 1], r#"{"event":"ended","dropped":7}"#);
    }

    #[test]
    fn bytes_of_pending_events_are_bounded() {
        let fixture = Fixture::new(false);
        let large = "x".repeat(BYTES_MAX / 2);
        (0..9).for_each(|_| fixture.queue.push(|| large.clone()));
        let pending = fixture.queue.shared.pending();
        assert!(pending.bytes <= BYTES_MAX + large.len(), "{}", pending.bytes);
        assert!(pending.dropped >= 5, "{}", pending.dropped);
    }

    #[test]
    fn unread_output_is_abandoned_after_a_stop() {
        let fixture = Fixture::new(true);
        (0..3).for_each(|_| fixture.queue.push(|| "{}".to_owned()));
        fixture.started.recv().unwrap();
        let reason = fixture.queue.finish(|| true).unwrap_err();
        assert_eq!(reason, "it is not read; 3 events were not written");
        drop(fixture.permits);
        fixture.queue.finish(|| true).unwrap();
        assert_eq!(fixture.read.lock().unwrap().len(), 9);
    }

    #[test]
    fn failed_writes_are_counted_and_reported_at_the_end() {
        let fixture = Fixture::new(false);
        let full = || Err(io::Error::from(ErrorKind::StorageFull));
        [full(), full()].into_iter().for_each(|permit| fixture.permits.send(permit).unwrap());
        for text in ["one", "two", "three"] {
            fixture.queue.push(|| text.to_owned());
        }
        drop(fixture.permits);
        let reason = fixture.queue.finish(|| false).unwrap_err();
        assert!(reason.ends_with("2 events were not written"), "{reason}");
        let read = fixture.read.lock().unwrap();
        let read = std::str::from_utf8(&read).unwrap();
        assert_eq!(
            read,
            "2 events were not written: standard output was not read in time\nthree\n"
        );
    }

    #[test]
    fn closed_reader_is_no_failure() {
        let fixture = Fixture::new(true);
        fixture.permits.send(Err(ErrorKind::BrokenPipe.into())).unwrap();
        fixture.queue.push(|| "{}".to_owned());
        fixture.queue.finish(|| false).unwrap();
        assert!(fixture.lines().is_empty());
    }
}
