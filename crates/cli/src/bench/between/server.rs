//! The end that serves: it sleeps while others write, read and count in its memory, and answers
//! where a round trip through the program is what is measured. One client at a time.

use super::end::{BUSY, Data, End, failed};
use super::wire::{self, Begin, Hello, Message, Part, Reply, TRANSFER_BYTES_MAX, Test};
use crate::failure::Failure;
use farside_base::{
    AtomicScope, Capabilities, LinkId, Operation, RemoteRegionId, Requirements, Source,
};
use farside_fabric::{Fabric, LinkEvent};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// For how long a client that shall keep this end busy may do nothing.
const QUIET_MAX: Duration = Duration::from_secs(30);
/// How long a client may take from its control link to the one that is measured, and to leave.
const SETTLE_MAX: Duration = Duration::from_secs(10);
/// Longest request that carries its bytes inside.
const INLINE_MAX: usize = 4096;

/// The serving end.
pub(super) struct Server {
    end: End,
    stop: Arc<AtomicBool>,
}

/// What somebody who asked for a link gets.
enum Asked {
    /// A control link, for tests of up to so many bytes.
    Control(LinkId, u32),
    /// A link to measure, of the session of that number.
    Data(LinkId, u64, [u8; farside_base::RegionToken::ENCODED]),
}

impl Server {
    /// Listens at a name of the fabric until `stop` is set (and the port's waiter woken).
    pub(super) fn listen(
        fabric: Arc<dyn Fabric>,
        name: String,
        strict_ordering: bool,
        stop: Arc<AtomicBool>,
    ) -> Result<Self, Failure> {
        let mut end = End::open(fabric, Some(name), QUIET_MAX)?;
        if strict_ordering {
            end.keep_order();
        }
        Ok(Self { end, stop })
    }

    pub(super) fn end(&self) -> &End {
        &self.end
    }

    /// Serves the next client from its hello to its goodbye; `None` when told to stop.
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
            match self.asked()? {
                Some(Asked::Control(link, bytes_max)) if bytes_max <= TRANSFER_BYTES_MAX => {
                    return Ok(Some((link, bytes_max)));
                }
                Some(Asked::Control(link, _)) => {
                    let _ = self.end.port.refuse(link, b"more bytes at once than it measures");
                }
                Some(Asked::Data(link, ..)) => {
                    let _ = self.end.port.refuse(link, b"that session is over");
                }
                None => {
                    self.end.turn()?;
                    self.end.idle()?;
                }
            }
        }
    }

    /// Whoever asks for a link now, if what he says can be understood.
    fn asked(&mut self) -> Result<Option<Asked>, Failure> {
        while let Some(event) = self.end.event()? {
            let LinkEvent::Requested { link, hello } = event else {
                continue;
            };
            match wire::decode_marked(&hello) {
                Ok(Hello::Control { bytes_max }) => {
                    return Ok(Some(Asked::Control(link, bytes_max)));
                }
                Ok(Hello::Data { session, token }) => {
                    return Ok(Some(Asked::Data(link, session, token)));
                }
                Err(failure) => {
                    let why = wire::words(failure.to_string().as_bytes());
                    let _ = self.end.port.refuse(link, why.as_bytes());
                }
            }
        }
        Ok(None)
    }

    /// A whole session; how many tests were done, and why it ended before its time if it did.
    fn session(&mut self, link: LinkId, bytes_max: u32) -> (u32, Option<Failure>) {
        let mut tests = 0;
        let done = self
            .settle(link, bytes_max)
            .and_then(|()| self.attend(&mut tests))
            .and_then(|()| self.see_off());
        (tests, done.err())
    }

    /// Accepts the control link and then the one that is measured.
    fn settle(&mut self, control: LinkId, bytes_max: u32) -> Result<(), Failure> {
        let session = RandomState::new().build_hasher().finish();
        let queue = self.end.prepare_control()?;
        let reply = wire::encode_marked(&Reply::Control { session });
        self.end.control_link = Some(control);
        self.end.port.accept(control, &reply, queue).map_err(failed("accept"))?;
        let (mine, queue) = self.end.prepare(bytes_max)?;
        let start = Instant::now();
        loop {
            match self.asked()? {
                Some(Asked::Data(link, of, theirs)) if of == session => {
                    self.end.data = Some(Data { link, remote: RemoteRegionId(0) });
                    let theirs = wire::token(&theirs)?;
                    let reply = wire::encode_marked(&Reply::Data { token: mine.encode() });
                    self.end.port.accept(link, &reply, queue).map_err(failed("accept"))?;
                    let remote = self.end.port.import(link, &theirs).map_err(failed("import"))?;
                    self.end.data = Some(Data { link, remote });
                    return Ok(());
                }
                Some(Asked::Control(link, _) | Asked::Data(link, ..)) => {
                    let _ = self.end.port.refuse(link, BUSY);
                }
                None if self.stopped() || start.elapsed() > SETTLE_MAX => {
                    return Err(Failure::system("the client did not connect in full"));
                }
                None => {
                    self.end.turn()?;
                    self.end.idle()?;
                }
            }
        }
    }

    /// Takes part in one test after the other until the client says goodbye.
    fn attend(&mut self, tests: &mut u32) -> Result<(), Failure> {
        loop {
            match self.end.message() {
                Some(Message::Begin(begin)) => match self.objection(&begin) {
                    None => {
                        self.take_part(&begin)?;
                        *tests += 1;
                    }
                    Some(why) => self.end.tell(&Message::Refused { why })?,
                },
                Some(Message::Bye) => return self.end.tell(&Message::Done),
                Some(_) => return Err(Failure::system("the client speaks out of turn")),
                None if self.stopped() => return Ok(()),
                None => self.wait()?,
            }
        }
    }

    fn objection(&self, begin: &Begin) -> Option<String> {
        if u64::from(begin.bytes) > self.end.half_bytes() {
            return Some("more bytes than were announced".to_owned());
        }
        objection(begin, &self.end.capabilities)
    }

    /// Sleeps unless something has come.
    fn wait(&mut self) -> Result<(), Failure> {
        if self.end.turn()? == 0 { self.end.idle() } else { Ok(()) }
    }

    /// Lets the client leave first, so that it hears the last answer.
    fn see_off(&mut self) -> Result<(), Failure> {
        let start = Instant::now();
        while !self.stopped() && start.elapsed() < SETTLE_MAX {
            // Its loss is what is waited for.
            if self.wait().is_err() {
                break;
            }
        }
        Ok(())
    }

    /// One test, until the client ends it.
    fn take_part(&mut self, begin: &Begin) -> Result<(), Failure> {
        self.end.reset();
        self.end.wipe(begin.bytes);
        self.end.tell(&Message::Ready)?;
        match begin.part {
            Part::Sleep => {
                while !self.over()? {
                    self.wait()?;
                }
            }
            Part::TakeMessages => {
                while !self.over()? {
                    self.end.turn()?;
                }
            }
            Part::AnswerMessages => self.answer_messages(begin)?,
            Part::AnswerWrites => self.answer_writes(begin)?,
        }
        self.end.tell(&Message::Done)
    }

    /// Whether the client has ended the test.
    #[inline]
    fn over(&mut self) -> Result<bool, Failure> {
        match self.end.message() {
            None if self.stopped() => Err(Failure::Interrupted),
            None => Ok(false),
            Some(Message::End { messages }) => {
                // They came on another link, so some may still be on their way.
                while self.end.arrived < messages {
                    self.end.turn()?;
                }
                Ok(true)
            }
            Some(_) => Err(Failure::system("the client speaks out of turn")),
        }
    }

    fn answer_messages(&mut self, begin: &Begin) -> Result<(), Failure> {
        let place = self.end.place()?;
        let slices = [place.source(begin.bytes)];
        let inline = inline(begin);
        let source = inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
        let mut answered = 0;
        while !self.over()? {
            while answered < self.end.arrived {
                let operation = Operation::Send { source, immediate: None };
                self.end.post(&[place.work(answered, operation)])?;
                answered += 1;
            }
            self.end.turn()?;
        }
        Ok(())
    }

    fn answer_writes(&mut self, begin: &Begin) -> Result<(), Failure> {
        let place = self.end.place()?;
        let slices = [place.source(begin.bytes)];
        let mut inline = inline(begin);
        let (mut expected, mut answered) = (1_u8, 0);
        loop {
            if self.end.landed(begin.bytes) != expected {
                if self.end.turn()? > 0 && self.over()? {
                    return Ok(());
                }
                if self.stopped() {
                    return Err(Failure::Interrupted);
                }
                continue;
            }
            mark(&self.end, begin.bytes, inline.as_deref_mut(), expected);
            let source = inline.as_deref().map_or(Source::Gather(&slices), Source::Inline);
            let operation = Operation::Write { source, to: place.there(), immediate: None };
            let mut work = place.work(answered, operation);
            work.flags.awaited = true;
            self.end.post(&[work])?;
            expected = expected.wrapping_add(1);
            answered += 1;
        }
    }
}

/// A session that is over.
pub(super) struct Served {
    /// Tests that were done.
    pub(super) tests: u32,
    /// Why it ended before its time.
    pub(super) failure: Option<Failure>,
}

/// The bytes of a request that carries them inside.
pub(super) fn inline(begin: &Begin) -> Option<Vec<u8>> {
    (begin.bytes <= begin.inline_bytes).then(|| vec![0; begin.bytes as usize])
}

/// Marks the last byte of the next request.
#[inline]
pub(super) fn mark(end: &End, bytes: u32, inline: Option<&mut [u8]>, mark: u8) {
    match inline {
        Some(inside) => {
            if let Some(last) = inside.last_mut() {
                *last = mark;
            }
        }
        None => end.mark(bytes, mark),
    }
}

/// What a test needs of a fabric, by its operation and bytes.
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

/// Why a test cannot be served.
fn objection(begin: &Begin, has: &Capabilities) -> Option<String> {
    let fits = match begin.part {
        Part::Sleep => true,
        Part::AnswerWrites => begin.test == Test::Write,
        Part::AnswerMessages | Part::TakeMessages => begin.test == Test::Send,
    };
    let inside = begin.bytes <= begin.inline_bytes;
    let inside_max = INLINE_MAX.min(has.inline_bytes_max as usize);
    if !fits || begin.bytes == 0 || begin.bytes > TRANSFER_BYTES_MAX {
        return Some("that is no test".to_owned());
    }
    if inside && begin.bytes as usize > inside_max {
        return Some("more bytes inside a request than the fabric carries".to_owned());
    }
    let missing = requirements(begin.test, begin.bytes).check(has).err()?;
    Some(format!("the fabric there lacks `{}`", missing.0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::MemFabric;

    #[test]
    fn only_tests_that_can_be_served_are() {
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
