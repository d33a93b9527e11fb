//! The executor that hosts the memory of an executor without local memory.

use crate::call::transport::handshake::{Purpose, SessionHello};
use farside_base::LinkId;
use farside_base::waiting::Backoff;
use farside_protocol::call::SessionId;

/// The executor that hosts the memory, and the state of the connection to it.
#[derive(Debug)]
pub(super) struct Upstream {
    pub(super) name: String,
    state: UpstreamLink,
    /// It was connected once: from then on, lost connections are retried with backoff.
    was_connected: bool,
    backoff: Backoff,
    /// Why its memory is not available, once known.
    trouble: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum UpstreamLink {
    /// Connecting or connected.
    Linked(LinkId),
    /// Disconnected; dialled again at this time.
    Disconnected { redial_ns: u64 },
    /// Closed: never reached, or the peer is not an executor. Not retried.
    Closed,
}

impl Upstream {
    pub(super) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: UpstreamLink::Disconnected { redial_ns: 0 },
            was_connected: false,
            backoff: Backoff::REDIALS,
            trouble: None,
        }
    }

    /// Returns the hello sent to the host.
    pub(super) const fn hello() -> SessionHello {
        SessionHello {
            purpose: Purpose::Memory,
            slots: 0,
            session: SessionId(0),
            tenant: String::new(),
            output_bytes: 0,
            room: None,
        }
    }

    pub(super) const fn dialled(&mut self, link: LinkId) {
        self.state = UpstreamLink::Linked(link);
    }

    /// Records that its memory was imported.
    pub(super) fn connected(&mut self) {
        (self.was_connected, self.trouble, self.backoff) = (true, None, Backoff::REDIALS);
    }

    /// Records that the connection was lost or not made; retried only if it was connected before.
    pub(super) fn lost(&mut self, why: String, now_ns: u64) {
        self.trouble = Some(why);
        self.state = match self.was_connected {
            true => UpstreamLink::Disconnected {
                redial_ns: now_ns.saturating_add(self.backoff.next_ns()),
            },
            false => UpstreamLink::Closed,
        };
    }

    /// Records that the peer cannot serve as a host; not retried.
    pub(super) fn unfit(&mut self, why: String) {
        (self.trouble, self.state) = (Some(why), UpstreamLink::Closed);
    }

    pub(super) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When it is dialled again.
    pub(super) const fn redial_ns(&self) -> Option<u64> {
        match self.state {
            UpstreamLink::Disconnected { redial_ns } => Some(redial_ns),
            UpstreamLink::Linked(_) | UpstreamLink::Closed => None,
        }
    }

    /// Whether this link leads to the host.
    pub(super) fn is_at(&self, link: LinkId) -> bool {
        self.state == UpstreamLink::Linked(link)
    }
}
