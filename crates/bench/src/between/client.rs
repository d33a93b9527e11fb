//! The measuring end.

use super::end::{Data, FabricEnd, failed};
use super::wire::{self, Begin, ControlMessage, Hello, ServerReply};
use farside_base::{Capabilities, LinkId, ReceiveQueueId, RemoteRegionId};
use farside_command::failure::Failure;
use farside_fabric::{Fabric, FabricError, LinkEvent, NotReached};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long the other end may be silent.
const QUIET_MAX: Duration = Duration::from_secs(15);

/// The measuring end.
pub(super) struct Client {
    pub(super) end: FabricEnd,
    link: LinkId,
}

impl Client {
    /// Opens a session with the serving end at an address, for tests of up to `bytes_max` bytes.
    pub(super) fn connect(
        fabric: Arc<dyn Fabric>,
        to: &str,
        bytes_max: u32,
        strict_ordering: bool,
    ) -> Result<Self, Failure> {
        let mut end = FabricEnd::open(fabric, None, QUIET_MAX)?;
        if strict_ordering {
            end.keep_order();
        }
        let queue = end.prepare_control()?;
        let (control, reply) = connect_link(&mut end, to, &Hello::Control { bytes_max }, queue)?;
        end.control_link = Some(control);
        let stray = || Failure::system("the other end sent a reply to another request");
        let ServerReply::Control { session } = wire::decode_versioned(&reply)? else {
            return Err(stray());
        };
        let (mine, queue) = end.prepare(bytes_max)?;
        let hello = Hello::Data { session, token: mine.encode() };
        let (link, reply) = connect_link(&mut end, to, &hello, queue)?;
        // Set before the import, so that the loss of the link is reported.
        end.data = Some(Data { link, remote: RemoteRegionId(0) });
        let ServerReply::Data { token } = wire::decode_versioned(&reply)? else {
            return Err(stray());
        };
        let theirs = wire::token(&token)?;
        let remote = end.port.import(link, &theirs).map_err(failed("import"))?;
        end.data = Some(Data { link, remote });
        Ok(Self { end, link })
    }

    /// Describes the path of the measured link.
    pub(super) fn path(&self) -> String {
        self.end.port.path(self.link)
    }

    pub(super) fn capabilities(&self) -> &Capabilities {
        &self.end.capabilities
    }

    /// Begins a test at both ends.
    pub(super) fn begin(&mut self, begin: Begin) -> Result<(), Failure> {
        self.end.reset();
        self.end.clear_landing(begin.bytes);
        self.end.send_message(&ControlMessage::Begin(begin))?;
        match self.end.next_message()? {
            ControlMessage::Ready => Ok(()),
            ControlMessage::Refused { why } => Err(Failure::system(format!(
                "the other end refuses the test: {}",
                wire::printable(why.as_bytes())
            ))),
            _ => Err(unexpected_message()),
        }
    }

    /// Ends the test. All requests have completed; `messages` is the number of SENDs among them.
    pub(super) fn finish(&mut self, messages: u64) -> Result<(), Failure> {
        self.ask(&ControlMessage::End { messages })
    }

    /// Ends the session.
    pub(super) fn leave(mut self) -> Result<(), Failure> {
        let done = self.ask(&ControlMessage::Bye);
        self.end.clear();
        done
    }

    fn ask(&mut self, message: &ControlMessage) -> Result<(), Failure> {
        self.end.send_message(message)?;
        match self.end.next_message()? {
            ControlMessage::Done => Ok(()),
            _ => Err(unexpected_message()),
        }
    }
}

fn unexpected_message() -> Failure {
    Failure::system("the other end sent an unexpected message")
}

/// Connects; returns the link and the other end's reply.
fn connect_link(
    end: &mut FabricEnd,
    to: &str,
    hello: &Hello,
    queue: ReceiveQueueId,
) -> Result<(LinkId, Vec<u8>), Failure> {
    let link =
        end.port.connect(to, &wire::encode_versioned(hello), queue).map_err(|why| match why {
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
                let reason = wire::printable(&reason);
                return Err(Failure::system(format!("{to} refuses: {reason}")));
            }
            Some(LinkEvent::NotReached { link: of, why }) if of == link => {
                return Err(with_cause(end, link, not_reached(to, why)));
            }
            Some(LinkEvent::Lost { link: of, .. }) if of == link => {
                let lost = Failure::system(format!("{to} disconnected before it answered"));
                return Err(with_cause(end, link, lost));
            }
            Some(_) => {}
            None if end.poll()? > 0 => {}
            None => end.sleep(Duration::from_millis(100)),
        }
    }
    Err(not_reached(to, NotReached::Unreachable))
}

fn not_reached(to: &str, why: NotReached) -> Failure {
    Failure::system(match why {
        NotReached::NoListener => {
            format!("no process listens at {to}: start `farside bench fabric --listen` there")
        }
        NotReached::NotPermitted => format!(
            "{to} does not trust this process, or this process does not trust it: use the same user, \
             --key and --protect at both ends"
        ),
        _ => format!("no answer from {to} in time, or no route to it"),
    })
}

fn with_cause(end: &FabricEnd, link: LinkId, failure: Failure) -> Failure {
    match end.port.trouble(link) {
        Some(cause) => Failure::system(format!("{failure} ({cause})")),
        None => failure,
    }
}
