//! The executor that hosts the memory of an executor without local memory.

use crate::call::transport::backoff::Backoff;
use crate::call::transport::handshake::{Hello, Purpose};
use farside_base::LinkId;
use farside_protocol::call::SessionId;

/// The executor that hosts the memory, and the state of the connection to it.
#[derive(Debug)]
pub(crate) struct Upstream {
    pub(crate) name: String,
    state: UpstreamLink,
    /// It was connected once: from then on, lost connections are retried with backoff.
    found: bool,
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
    pub(crate) fn new(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            state: UpstreamLink::Disconnected { redial_ns: 0 },
            found: false,
            backoff: Backoff::default(),
            trouble: None,
        }
    }

    /// Returns the hello sent to the host.
    pub(crate) const fn hello() -> Hello {
        Hello {
            purpose: Purpose::Memory,
            slots: 0,
            session: SessionId(0),
            tenant: String::new(),
            output_bytes: 0,
            room: None,
        }
    }

    pub(crate) const fn called(&mut self, link: LinkId) {
        self.state = UpstreamLink::Linked(link);
    }

    /// Records that its memory was imported.
    pub(crate) fn found(&mut self) {
        (self.found, self.trouble, self.backoff) = (true, None, Backoff::default());
    }

    /// Records that the connection was lost or not made; retried only if it was connected before.
    pub(crate) fn lost(&mut self, why: String, now_ns: u64) {
        self.trouble = Some(why);
        self.state = match self.found {
            true => UpstreamLink::Disconnected {
                redial_ns: now_ns.saturating_add(self.backoff.next_delay_ns()),
            },
            false => UpstreamLink::Closed,
        };
    }

    /// Records that the peer cannot serve as a host; not retried.
    pub(crate) fn unfit(&mut self, why: String) {
        (self.trouble, self.state) = (Some(why), UpstreamLink::Closed);
    }

    pub(crate) fn trouble(&self) -> Option<&str> {
        self.trouble.as_deref()
    }

    /// When it is dialled again.
    pub(crate) const fn redial_ns(&self) -> Option<u64> {
        match self.state {
            UpstreamLink::Disconnected { redial_ns } => Some(redial_ns),
            UpstreamLink::Linked(_) | UpstreamLink::Closed => None,
        }
    }

    /// Whether this link leads to the host.
    pub(crate) fn is_at(&self, link: LinkId) -> bool {
        self.state == UpstreamLink::Linked(link)
    }
}
