//! Until when calls wait: of a session, of a call, and the error of a call that waited too long.

use super::Session;
use crate::operation::Kind;
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// Until when a call waits.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Deadline {
    /// Without a bound.
    #[default]
    Never,
    /// For so long, from when it has to wait first.
    After(Duration),
    /// Until then.
    At(Instant),
}

impl Deadline {
    /// The time, for a call that has to wait now. Without a deadline no clock is read.
    pub(crate) fn resolve(&mut self) -> Option<Instant> {
        if let Self::After(timeout) = *self {
            // A time-out beyond the end of time is none.
            *self = Instant::now().checked_add(timeout).map_or(Self::Never, Self::At);
        }
        match *self {
            Self::At(at) => Some(at),
            Self::Never | Self::After(_) => None,
        }
    }
}

/// A session whose calls through this view have a deadline or time-out of their own; see
/// [`Session::with_timeout`].
#[derive(Debug)]
pub struct Timed<'a> {
    session: &'a mut Session,
    deadline: Deadline,
}

impl Deref for Timed<'_> {
    type Target = Session;
    fn deref(&self) -> &Session {
        self.session
    }
}

impl DerefMut for Timed<'_> {
    #[inline]
    fn deref_mut(&mut self) -> &mut Session {
        self.session.deadline = Some(self.deadline);
        self.session
    }
}

impl Drop for Timed<'_> {
    fn drop(&mut self) {
        self.session.deadline = None;
    }
}

impl Session {
    /// Sets how long each further call of this session waits at most before it fails with `TimedOut`;
    /// `None`: without a bound. At first it is [`Config::timeout_ns`](crate::Config::timeout_ns).
    ///
    /// *Guarantees*: as the text on deadlines of [`Session`] says. The time counts from when a call
    /// has to wait. Dropping a [`LockGuard`](crate::LockGuard) or a session has no time-out, since it
    /// could report none. *Cost*: none for calls that need not wait; a look at the clock for others.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// How long calls of this session wait at most.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// This session with another time-out: `session.with_timeout(time).read(address, &mut bytes)`.
    /// Calls of a guard that was locked through it have the session's own.
    pub fn with_timeout(&mut self, timeout: Duration) -> Timed<'_> {
        Timed { session: self, deadline: Deadline::After(timeout) }
    }

    /// This session with a deadline, which all calls through the view share.
    pub fn with_deadline(&mut self, deadline: Instant) -> Timed<'_> {
        Timed { session: self, deadline: Deadline::At(deadline) }
    }

    /// The deadline of the call that begins.
    pub(crate) fn next_deadline(&mut self) -> Deadline {
        let of_session = self.timeout.map_or(Deadline::Never, Deadline::After);
        self.deadline.take().unwrap_or(of_session)
    }

    /// The deadline that was given to the last call, as that has left it.
    pub(crate) fn last_deadline(&mut self) -> Deadline {
        self.deadline.take().unwrap_or(self.in_flight.deadline)
    }

    /// The error of a call that waited too long for the operation of a slot.
    #[cold]
    pub(super) fn timed_out(&self, slot: usize) -> Error {
        let (kind, address) = {
            let request = self.slots.slots[slot].request();
            (request.kind, request.address)
        };
        let operation = self.slots.operation(slot);
        let awaited = match kind {
            Kind::Allocate { node, .. } => Some(node),
            _ => address.map(|address| self.awaited_for(operation, kind, address)),
        };
        let address = address.filter(|_| !matches!(kind, Kind::Allocate { .. }));
        Error { address, awaited, ..Error::new(ErrorCode::TimedOut) }
    }

    fn awaited_for(
        &self,
        operation: farside_base::OperationId,
        kind: Kind,
        address: GlobalAddress,
    ) -> NodeId {
        let engine = self.core.engine();
        let known = match kind {
            Kind::Lock(_) => engine.locks.awaited(address.line(), operation),
            _ => engine.coherence.owner(address.line()).map(|(node, _)| node),
        };
        known.unwrap_or(address.home())
    }
}
