//! The end that measures.

use super::end::{Data, End, failed};
use super::wire::{self, Begin, Hello, Message, Reply};
use crate::failure::Failure;
use farside_base::{Capabilities, LinkId, ReceiveQueueId, RemoteRegionId};
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For how long the other end may not answer.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// The measuring end.
pub(super) struct Client {
    pub(super) end: End,
    link: LinkId,
}

impl Client {
    /// A session with the end that serves at an address, for tests of up to so many bytes.
    pub(super) fn connect(
        fabric: Arc<dyn Fabric>,
        to: &str,
        bytes_max: u32,
        strict_ordering: bool,
    ) -> Result<Self, Failure> {
        let mut end = End::open(fabric, None, QUIET_MAX)?;
        if strict_ordering {
            end.keep_order();
        }
        let queue = end.prepare_control()?;
        let (control, reply) = reach(&mut end, to, &Hello::Control { bytes_max }, queue)?;
        end.control_link = Some(control);
        let stray = || Failure::system("the other end answered another question");
        let Reply::Control { session } = wire::decode_marked(&reply)? else {
            return Err(stray());
        };
        let (mine, queue) = end.prepare(bytes_max)?;
        let hello = Hello::Data { session, token: mine.encode() };
        let (link, reply) = reach(&mut end, to, &hello, queue)?;
        // Known from here on, so that its loss is seen.
        end.data = Some(Data { link, remote: RemoteRegionId(0) });
        let Reply::Data { token } = wire::decode_marked(&reply)? else {
            return Err(stray());
        };
        let theirs = wire::token(&token)?;
        let remote = end.port.import(link, &theirs).map_err(failed("import"))?;
        end.data = Some(Data { link, remote });
        Ok(Self { end, link })
    }

    /// Which way the measured link takes, for people.
    pub(super) fn path(&self) -> String {
        self.end.port.path(self.link)
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.end.capabilities
    }

    /// Begins a test at both ends.
    pub(super) fn begin(&mut self, begin: Begin) -> Result<(), Failure> {
        self.end.reset();
        self.end.wipe(begin.bytes);
        self.end.tell(&Message::Begin(begin))?;
        match self.end.next_message()? {
            Message::Ready => Ok(()),
            Message::Refused { why } => Err(Failure::system(format!(
                "the other end refuses the test: {}",
                wire::words(why.as_bytes())
            ))),
            _ => Err(Failure::system("the other end speaks out of turn")),
        }
    }

    /// Ends it, when the last request has ended and so many messages were sent.
    pub(super) fn finish(&mut self, messages: u64) -> Result<(), Failure> {
        self.ask(&Message::End { messages })
    }

    /// Ends the session.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        let done = self.ask(&Message::Bye);
        self.end.clear();
        done
    }

    fn ask(&mut self, message: &Message) -> Result<(), Failure> {
        self.end.tell(message)?;
        match self.end.next_message()? {
            Message::Done => Ok(()),
            _ => Err(Failure::system("the other end speaks out of turn")),
        }
    }
}

/// Connects; the link and what the other end replied.
fn reach(
    end: &mut End,
    to: &str,
    hello: &Hello,
    queue: ReceiveQueueId,
) -> Result<(LinkId, Vec<u8>), Failure> {
    let link =
        end.port.connect(to, &wire::encode_marked(hello), queue).map_err(|why| match why {
            FabricError::NoListener(_) => not_reached(to, NotReached::NoListener),
            FabricError::NotPermitted(_) => not_reached(to, NotReached::NotPermitted),
            other => Failure::system(format!("{to}: {other}")),
        })?;
    let start = Instant::now();
    while start.elapsed() < QUIET_MAX {
        match end.event()? {
            Some(LinkEvent::Connected { link: of, reply }) if of == link => {
                return Ok((link, reply));
            }
            Some(LinkEvent::Refused { link: of, reason }) if of == link => {
                let reason = wire::words(&reason);
                return Err(Failure::system(format!("{to} refuses: {reason}")));
            }
            Some(LinkEvent::NotReached { link: of, why }) if of == link => {
                return Err(with_trouble(end, link, not_reached(to, why)));
            }
            Some(LinkEvent::Lost { link: of, .. }) if of == link => {
                let lost = Failure::system(format!("{to} is gone before it answered"));
                return Err(with_trouble(end, link, lost));
            }
            Some(_) => {}
            None if end.turn()? > 0 => {}
            None => end.sleep(Duration::from_millis(100)),
        }
    }
    Err(not_reached(to, NotReached::Unreachable))
}

fn not_reached(to: &str, why: NotReached) -> Failure {
    Failure::system(match why {
        NotReached::NoListener => {
            format!("nobody listens at {to}: start `farside bench fabric --listen` there")
        }
        NotReached::NotPermitted => format!(
            "{to} does not trust this process, or the other way round: the same user, --key and \
             --protect on both sides"
        ),
        _ => format!("no answer from {to} in time, or no way there"),
    })
}

fn with_trouble(end: &End, link: LinkId, failure: Failure) -> Failure {
    match end.port.trouble(link) {
        Some(trouble) => Failure::system(format!("{failure} ({trouble})")),
        None => failure,
    }
}
