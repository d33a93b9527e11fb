//! The serving end: it sleeps during one-sided tests on its memory, and answers in tests that measure a round trip
//! through both programs. It serves one client at a time.

use super::end::{BUSY, Data, FabricEnd, failed};
use super::wire::{self, Begin, ControlMessage, Hello, Part, ServerReply};
use crate::settings::{TRANSFER_BYTES_MAX, Test};
use farside_base::{
    AtomicScope, Capabilities, LinkId, Operation, RemoteRegionId, Requirements, Source,
};
use farside_command::failure::Failure;
use farside_fabric::{Fabric, LinkEvent};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a client may be silent while this end polls in a test.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// How long a client may take between its control link and its measured link, and to disconnect.
const CONNECT_MAX: Duration = Duration::from_secs(10);
/// Most bytes of an inline request.
const INLINE_MAX: usize = 4096;

/// The serving end.
pub(super) struct Server {
    end: FabricEnd,
    stop: Arc<AtomicBool>,
}

/// A valid connection request.
enum LinkRequest {
    /// For a control link; with the most bytes of a request.
    Control(LinkId, u32),
    /// For the measured link of a session; with the session and the client's token.
    Data(LinkId, u64, [u8; farside_base::RegionToken::ENCODED]),
}

impl Server {
    /// Listens at a name of the fabric. To stop the server, set `stop` and wake the port's waiter.
    pub(super) fn listen(
        fabric: Arc<dyn Fabric>,
        name: String,
        strict_ordering: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let mut end = FabricEnd::open(fabric, Some(name), QUIET_MAX)?;
        if strict_ordering {
            end.keep_order();
        }
        Ok(Self { end, stop })
    }

    pub(super) fn end(&self) -> &FabricEnd {
        &self.end
    }

    /// Serves the next client until its session ends; returns `None` if stopped before.
    pub(super) fn serve_one(&mut self) -> Result<Option<Served>, Failure> {
        let Some((link, bytes_max)) = self.next_client()? else {
            return Ok(None);
        };
        let done = self.session(link, bytes_max);
        self.end.clear();
        Ok(Some(Served { tests: done.0, failure: done.1 }))
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    fn next_client(&mut self) -> Result<Option<(LinkId, u32)>, Failure> {
        loop {
            if self.stopped() {
                return Ok(None);
            }
            match self.link_request()? {
                Some(LinkRequest::Control(link, bytes_max)) if bytes_max <= TRANSFER_BYTES_MAX => {
                    return Ok(Some((link, bytes_max)));
                }
                Some(LinkRequest::Control(link, _)) => {
                    let _ = self.end.port.refuse(link, b"more bytes in a request than the limit");
                }
                Some(LinkRequest::Data(link, ..)) => {
                    let _ = self.end.port.refuse(link, b"that session is over");
                }
                None => {
                    self.end.poll()?;
                    self.end.idle()?;
                }
            }
        }
    }

    /// Returns the next pending connection request with a valid hello, and refuses invalid ones.
    fn link_request(&mut self) -> Result<Option<LinkRequest>, Failure> {
        while let Some(event) = self.end.event()? {
            let LinkEvent::Requested { link, hello } = event else {
                continue;
            };
            match wire::decode_versioned(&hello) {
                Ok(Hello::Control { bytes_max }) => {
                    return Ok(Some(LinkRequest::Control(link, bytes_max)));
                }
                Ok(Hello::Data { session, token }) => {
                    return Ok(Some(LinkRequest::Data(link, session, token)));
                }
                Err(failure) => {
                    let why = wire::printable(failure.to_string().as_bytes());
                    let _ = self.end.port.refuse(link, why.as_bytes());
                }
            }
        }
        Ok(None)
    }

    /// Runs a session; returns the number of tests, and the failure that ended it, if any.
    fn session(&mut self, link: LinkId, bytes_max: u32) -> (u32, Option<Failure>) {
        let mut tests = 0;
        let done = self
            .accept_links(link, bytes_max)
            .and_then(|()| self.run_tests(&mut tests))
            .and_then(|()| self.await_disconnect());
        (tests, done.err())
    }

    /// Accepts the control link, then the measured link.
    fn accept_links(&mut self, control: LinkId, bytes_max: u32) -> Result<(), Failure> {
        let session = RandomState::new().build_hasher().finish();
        let queue = self.end.prepare_control()?;
        let reply = wire::encode_versioned(&ServerReply::Control { session });
        self.end.control_link = Some(control);
        self.end.port.accept(control, &reply, queue).map_err(failed("accept"))?;
        let (mine, queue) = self.end.prepare(bytes_max)?;
        let start = Instant::now();
        loop {
            match self.link_request()? {
                Some(LinkRequest::Data(link, of, theirs)) if of == session => {
                    self.end.data = Some(Data { link, remote: RemoteRegionId(0) });
                    let theirs = wire::token(&theirs)?;
                    let reply = wire::encode_versioned(&ServerReply::Data { token: mine.encode() });
                    self.end.port.accept(link, &reply, queue).map_err(failed("accept"))?;
                    let remote = self.end.port.import(link, &theirs).map_err(failed("import"))?;
                    self.end.data = Some(Data { link, remote });
                    return Ok(());
                }
                Some(LinkRequest::Control(link, _) | LinkRequest::Data(link, ..)) => {
                    let _ = self.end.port.refuse(link, BUSY);
                }
                None if self.stopped() || start.elapsed() > CONNECT_MAX => {
                    return Err(Failure::system("the client did not connect the measured link"));
                }
                None => {
                    self.end.poll()?;
                    self.end.idle()?;
                }
            }
        }
    }

    /// Runs tests until the client ends the session.
    fn run_tests(&mut self, tests: &mut u32) -> Result<(), Failure> {
        loop {
            match self.end.message() {
                Some(ControlMessage::Begin(begin)) => match self.objection(&begin) {
                    None => {
                        self.run_test(&begin)?;
                        *tests += 1;
                    }
                    Some(why) => self.end.send_message(&ControlMessage::Refused { why })?,
                },
                Some(ControlMessage::Bye) => return self.end.send_message(&ControlMessage::Done),
                Some(_) => return Err(unexpected_message()),
                None if self.stopped() => return Ok(()),
                None => self.wait()?,
            }
        }
    }

    fn objection(&self, begin: &Begin) -> Option<String> {
        if u64::from(begin.bytes) > self.end.half_bytes() {
            return Some("more bytes than the session announced".to_owned());
        }
        objection(begin, &self.end.capabilities)
    }

    /// Polls once, and sleeps if there was nothing.
    fn wait(&mut self) -> Result<(), Failure> {
        if self.end.poll()? == 0 { self.end.idle() } else { Ok(()) }
    }

    /// Waits until the client has disconnected, so that it receives the last answer.
    fn await_disconnect(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.stopped() && start.elapsed() < CONNECT_MAX {
            // The loss of a link is an error.
            if self.wait().is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Runs one test until the client ends it.
    fn run_test(&mut self, begin: &Begin) -> Result<(), Failure> {
        self.end.reset();
        self.end.clear_landing(begin.bytes);
        self.end.send_message(&ControlMessage::Ready)?;
        match begin.part {
            Part::Sleep => {
                while !self.over()? {
                    self.wait()?;
                }
            }
            Part::TakeMessages => {
                while !self.over()? {
                    self.end.poll()?;
                }
            }
            Part::AnswerMessages => self.answer_messages(begin)?,
            Part::AnswerWrites => self.answer_writes(begin)?,
        }
        self.end.send_message(&ControlMessage::Done)
    }

    /// Returns whether the client has ended the test.
    #[inline]
    fn over(&mut self) -> Result<bool, Failure> {
        match self.end.message() {
            None if self.stopped() => Err(Failure::Interrupted),
            None => Ok(false),
            Some(ControlMessage::End { messages }) => {
                // The measured messages use another link, so some may still be in flight.
                while self.end.arrived < messages {
                    self.end.poll()?;
                }
                Ok(true)
            }
            Some(_) => Err(unexpected_message()),
        }
    }

    fn answer_messages(&mut self, begin: &Begin) -> Result<(), Failure> {
        let memory = self.end.memory()?;
        let slices = [memory.source(begin.bytes)];
        let inline = inline(begin);
        let source = inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
        let mut answered = 0;
        while !self.over()? {
            while answered < self.end.arrived {
                let operation = Operation::Send { source, immediate: None };
                self.end.post(&[memory.work(answered, operation)])?;
                answered += 1;
            }
            self.end.poll()?;
        }
        Ok(())
    }

    fn answer_writes(&mut self, begin: &Begin) -> Result<(), Failure> {
        let memory = self.end.memory()?;
        let slices = [memory.source(begin.bytes)];
        let mut inline = inline(begin);
        let (mut expected, mut answered) = (1_u8, 0);
        loop {
            if self.end.landed(begin.bytes) != expected {
                if self.end.poll()? > 0 && self.over()? {
                    return Ok(());
                }
                if self.stopped() {
                    return Err(Failure::Interrupted);
                }
                continue;
            }
            mark(&self.end, begin.bytes, inline.as_deref_mut(), expected);
            let source = inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
            let operation =
                Operation::Write { source, to: memory.remote_landing(), immediate: None };
            let mut work = memory.work(answered, operation);
            work.flags.awaited = true;
            self.end.post(&[work])?;
            expected = expected.wrapping_add(1);
            answered += 1;
        }
    }
}

fn unexpected_message() -> Failure {
    Failure::system("the client sent an unexpected message")
}

/// The result of a session.
pub(super) struct Served {
    /// Completed tests.
    pub(super) tests: u32,
    /// Why the session ended early, if it did.
    pub(super) failure: Option<Failure>,
}

/// Returns the bytes of an inline request; `None` if requests are not inline.
pub(super) fn inline(begin: &Begin) -> Option<Vec<u8>> {
    (begin.bytes <= begin.inline_bytes).then(|| vec![0; begin.bytes as usize])
}

/// Sets the last byte of the next request to `mark`.
#[inline]
pub(super) fn mark(end: &FabricEnd, bytes: u32, inline: Option<&mut [u8]>, mark: u8) {
    match inline {
        Some(bytes) => {
            if let Some(last) = bytes.last_mut() {
                *last = mark;
            }
        }
        None => end.mark(bytes, mark),
    }
}

/// Returns what a test requires of a fabric.
pub(super) fn requirements(test: Test, bytes: u32) -> Requirements {
    let nothing = Requirements { sleep: true, ..Requirements::NOTHING };
    let transfer_bytes = u64::from(bytes);
    match test {
        Test::Write => Requirements { write: true, transfer_bytes, ..nothing },
        Test::Read => Requirements { read: true, transfer_bytes, ..nothing },
        Test::Atomic => Requirements { atomics: AtomicScope::Adapter, ..nothing },
        Test::Send => Requirements { send: true, send_bytes: bytes, ..nothing },
    }
}

/// Returns why a test cannot be served, if it cannot.
fn objection(begin: &Begin, has: &Capabilities) -> Option<String> {
    let fits = match begin.part {
        Part::Sleep => true,
        Part::AnswerWrites => begin.test == Test::Write,
        Part::AnswerMessages | Part::TakeMessages => begin.test == Test::Send,
    };
    let is_inline = begin.bytes <= begin.inline_bytes;
    let inline_max = INLINE_MAX.min(has.inline_bytes_max as usize);
    if !fits || begin.bytes == 0 || begin.bytes > TRANSFER_BYTES_MAX {
        return Some("invalid test".to_owned());
    }
    if is_inline && begin.bytes as usize > inline_max {
        return Some("more inline bytes than the fabric supports".to_owned());
    }
    let missing = requirements(begin.test, begin.bytes).check(has).err()?;
    Some(format!("its fabric lacks `{}`", missing.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::MemFabric;

    #[test]
    fn unsupported_tests_are_refused() {
        let has = MemFabric::new().capabilities();
        let begin = Begin { test: Test::Write, part: Part::Sleep, bytes: 8, inline_bytes: 0 };
        assert_eq!(objection(&begin, &has), None);
        for wrong in [
            Begin { bytes: 0, ..begin },
            Begin { bytes: u32::MAX, ..begin },
            Begin { bytes: 1 << 20, inline_bytes: u32::MAX, ..begin },
            Begin { part: Part::AnswerMessages, ..begin },
            Begin { test: Test::Send, part: Part::AnswerWrites, ..begin },
        ] {
            assert!(objection(&wrong, &has).is_some(), "{wrong:?}");
        }
        let without = Capabilities { atomics: AtomicScope::None, ..has };
        let atomic = Begin { test: Test::Atomic, ..begin };
        assert_eq!(objection(&atomic, &has), None);
        assert!(objection(&atomic, &without).unwrap().contains("`atomics`"));
    }
}
