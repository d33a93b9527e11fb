//! Connection of a caller to its executor: dialling, handshake, and reconnection with exponential backoff.
//!
//! The session outlives its links. After a reconnect the executor either resumes the session, or has closed it, which
//! ends all calls.

use super::options::CallerOptions;
use super::outcome::refusal_error;
use crate::call::transport::handshake::{
    Purpose, SessionHello, SessionRefusal, TENANT_BYTES_MAX, Welcome,
};
use crate::call::transport::message_port::{MessagePort, MessagePortSizes};
use crate::progress::ConnectionEvent;
use crate::registered::Registered;
use crate::{Error, ErrorCode};
use farside_base::waiting::{BACKLOG_INTERVAL, Backoff};
use farside_base::{Access, LinkId, RegionToken};
use farside_protocol::call::{Invocation, SLOTS_MAX, SessionId};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

#[derive(Clone, Debug)]
pub(super) enum SessionLink {
    Connecting(LinkId),
    Connected(LinkId),
    /// Disconnected; dialled again at this time.
    Disconnected {
        redial_ns: u64,
    },
    Closed(Error),
}

/// A change of the session that its calls depend on.
pub(super) enum SessionChange {
    /// Opened, with this many slots.
    Opened(u16),
    /// Resumed over a new link: outstanding requests are sent again.
    Resumed,
    /// Its link was lost, and with it the regions of the executor.
    Interrupted,
    /// Closed: all calls end with this error.
    Closed(Error),
}

/// The session of a caller at its executor, with its message port.
pub(super) struct CallerConnection {
    pub(super) name: String,
    pub(super) messages: MessagePort,
    pub(super) options: CallerOptions,
    id: SessionId,
    pub(super) link: SessionLink,
    /// Whether the executor has accepted the session.
    pub(super) is_open: bool,
    /// When the link was lost, until there is another one.
    lost_ns: Option<u64>,
    backoff: Backoff,
    /// Memory for outputs. An executor that is preempted within a copy may still write there over a link closed
    /// here. It needs no quarantine: the memory serves this session only, a slot is reused only when its call is
    /// answered, and the thread that resumes the session is the one that copies.
    pub(super) outputs: Registered,
    /// Maximum bytes of a message that the executor takes.
    pub(super) message_bytes: u32,
    /// The regions that the executor lends.
    pub(super) regions: Vec<(u8, RegionToken)>,
}

impl CallerConnection {
    /// Returns the sizes of the message port of a caller.
    ///
    /// # Errors
    /// `BadConfiguration`.
    pub(super) fn sizes(options: &CallerOptions) -> Result<MessagePortSizes, Error> {
        let slots = usize::from(options.slots);
        let is_valid = (1..=SLOTS_MAX).contains(&slots)
            && options.tenant.len() <= TENANT_BYTES_MAX
            && options.output_bytes_max > 0
            && options.parameter_bytes_max < 1 << 20;
        if !is_valid {
            let text = "a caller has 1 to 256 slots, space for output, less than 1 MiB of parameters \
                        and a tenant's name of at most 32 bytes";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        Ok(MessagePortSizes {
            receives: slots,
            receive_bytes: 16,
            slots,
            send_bytes: options.parameter_bytes_max + Invocation::BYTES_MAX,
        })
    }

    /// Begins to connect to the executor at `name`.
    pub(super) fn open(
        messages: MessagePort,
        name: &str,
        options: &CallerOptions,
    ) -> Result<Self, Error> {
        let bytes = u64::from(options.output_bytes_max) * u64::from(options.slots);
        let outputs = messages.register(bytes, Access::WRITE)?;
        let draw = |salt: u64| u128::from(RandomState::new().hash_one((name, salt)));
        let mut connection = Self {
            name: name.to_owned(),
            messages,
            options: options.clone(),
            id: SessionId(draw(1) << 64 | draw(2)),
            link: SessionLink::Closed(ErrorCode::PeerLost.into()),
            is_open: false,
            lost_ns: None,
            backoff: Backoff::REDIALS,
            outputs,
            message_bytes: 0,
            regions: Vec::new(),
        };
        connection.dial()?;
        Ok(connection)
    }

    fn dial(&mut self) -> Result<(), Error> {
        let hello = SessionHello {
            purpose: Purpose::Calls,
            slots: self.options.slots,
            session: self.id,
            tenant: self.options.tenant.clone(),
            output_bytes: self.options.output_bytes_max,
            room: Some(self.outputs.region.token),
        };
        self.link = SessionLink::Connecting(self.messages.connect(&self.name, &hello.encode())?);
        Ok(())
    }

    /// Returns the maximum bytes of parameters of a call.
    pub(super) const fn parameter_bytes_max(&self) -> usize {
        self.message_bytes.saturating_sub(Invocation::BYTES_MAX) as usize
    }

    /// Returns the link to the executor, if it is connected.
    pub(super) const fn link(&self) -> Option<LinkId> {
        match self.link {
            SessionLink::Connected(link) => Some(link),
            SessionLink::Connecting(_)
            | SessionLink::Disconnected { .. }
            | SessionLink::Closed(_) => None,
        }
    }

    /// Returns the link, connected or not yet.
    const fn any_link(&self) -> Option<LinkId> {
        match self.link {
            SessionLink::Connected(link) | SessionLink::Connecting(link) => Some(link),
            SessionLink::Disconnected { .. } | SessionLink::Closed(_) => None,
        }
    }

    /// Returns why the session is closed.
    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.link {
            SessionLink::Closed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    /// Returns why no request can be sent, permanently or at present.
    pub(super) fn unreachable(&self) -> Error {
        let at_present = "the executor is out of reach at present";
        let closed = self.check().err();
        closed.unwrap_or_else(|| Error::with(ErrorCode::PeerLost, at_present))
    }

    /// Handles an event of a link.
    pub(super) fn link_event(&mut self, event: ConnectionEvent) -> Option<SessionChange> {
        match event {
            ConnectionEvent::Connected(link, reply) => match Welcome::decode(&reply) {
                Some(welcome) => Some(self.welcome(link, welcome)),
                None => {
                    let text = "the peer is not an executor of calls";
                    Some(self.close(Error::with(ErrorCode::ProtocolViolation, text)))
                }
            },
            ConnectionEvent::Refused(_, reason) => {
                let error = self.refused(&reason);
                Some(self.close(error))
            }
            // The executor may return; retried with backoff.
            ConnectionEvent::NotReached(..) if self.is_open => {
                self.redial_later();
                None
            }
            ConnectionEvent::NotReached(_, Error { code, detail, .. }) => {
                Some(self.close(Error::with(code, format!("{}: {detail}", self.name))))
            }
            ConnectionEvent::Lost(link) => self.lost(link, "its link was lost"),
            ConnectionEvent::Requested(..) => None,
        }
    }

    fn welcome(&mut self, link: LinkId, welcome: Welcome) -> SessionChange {
        if self.is_open && !welcome.resumed {
            let text = "the executor was restarted or has closed this session; whether calls in \
                        progress ran is not known";
            return self.close(Error::with(ErrorCode::PeerLost, text));
        }
        self.link = SessionLink::Connected(link);
        (self.lost_ns, self.backoff) = (None, Backoff::REDIALS);
        self.message_bytes =
            welcome.message_bytes.min(self.options.parameter_bytes_max + Invocation::BYTES_MAX);
        self.regions = welcome.regions;
        match std::mem::replace(&mut self.is_open, true) {
            true => SessionChange::Resumed,
            false => SessionChange::Opened(welcome.slots),
        }
    }

    /// Returns the error of a refusal.
    fn refused(&self, reason: &[u8]) -> Error {
        match SessionRefusal::decode(reason) {
            // The session expired and its slot was given to another caller.
            Some(SessionRefusal { text, .. }) if self.is_open => {
                let text = format!(
                    "the executor has closed this session, and {text}; whether calls in progress ran is \
                     not known"
                );
                Error::with(ErrorCode::PeerLost, text)
            }
            Some(SessionRefusal { why, text }) => refusal_error(why, text),
            None => {
                let text = String::from_utf8_lossy(reason).into_owned();
                Error::with(ErrorCode::ChannelMismatch, text)
            }
        }
    }

    /// Closes a link that failed; the session is resumed over another one if its executor returns in time.
    pub(super) fn lost(&mut self, link: LinkId, text: &str) -> Option<SessionChange> {
        let is_current = self.any_link() == Some(link);
        self.messages.close(link);
        if !is_current {
            return None;
        }
        if self.patience_ns() == 0 || !self.is_open {
            let text = format!("{text}; whether calls in progress ran is not known");
            return Some(self.close(Error::with(ErrorCode::PeerLost, text)));
        }
        self.redial_later();
        Some(SessionChange::Interrupted)
    }

    /// How long a lost executor is redialled.
    fn patience_ns(&self) -> u64 {
        let patience = self.options.patience;
        let given = patience.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        given.unwrap_or(self.messages.lease_ns().saturating_mul(2))
    }

    fn redial_later(&mut self) {
        let now_ns = self.messages.time_ns();
        let delay_ns = self.backoff.next_ns();
        self.lost_ns.get_or_insert(now_ns);
        self.link = SessionLink::Disconnected { redial_ns: now_ns.saturating_add(delay_ns) };
    }

    /// Dials a lost executor again, once its backoff has passed.
    pub(super) fn redial(&mut self) -> Option<SessionChange> {
        let SessionLink::Disconnected { redial_ns } = self.link else { return None };
        let now_ns = self.messages.time_ns();
        let lost_ns = self.lost_ns.unwrap_or(now_ns);
        if now_ns.saturating_sub(lost_ns) > self.patience_ns() {
            let text = "the executor was out of reach for too long; whether calls in progress ran is \
                        not known";
            return Some(self.close(Error::with(ErrorCode::PeerLost, text)));
        }
        if redial_ns <= now_ns && self.dial().is_err() {
            self.redial_later();
        }
        None
    }

    /// Closes the session.
    pub(super) fn close(&mut self, error: Error) -> SessionChange {
        if let Some(link) = self.any_link() {
            self.messages.close(link);
        }
        self.link = SessionLink::Closed(error.clone());
        SessionChange::Closed(error)
    }

    /// Returns how long a thread may sleep without an event, if that is bounded.
    pub(super) fn nap(&self) -> Option<Duration> {
        match self.link {
            SessionLink::Disconnected { redial_ns } => {
                Some(Duration::from_nanos(redial_ns.saturating_sub(self.messages.time_ns())))
            }
            _ => self.messages.has_backlog().then_some(BACKLOG_INTERVAL),
        }
    }
}

impl Drop for CallerConnection {
    fn drop(&mut self) {
        if let Some(link) = self.link() {
            // So that the executor does not keep the session. If this message is lost, it does, for its grace.
            self.messages.leave(link);
        }
        if let Some(link) = self.any_link() {
            self.messages.close(link);
        }
    }
}
