//! Deadlines and timeouts of sessions and calls, and the error of a call that has passed its own.

use super::Session;
use crate::operation::OperationKind;
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use std::ops::{Deref, DerefMut};
use std::time::{Duration, Instant};

/// The deadline of a call.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Deadline {
    /// No bound.
    #[default]
    Never,
    /// This long after the call first has to wait.
    After(Duration),
    /// At this time.
    At(Instant),
}

impl Deadline {
    /// The deadline of a call that has to wait now. Without a bound no clock is read.
    pub(crate) fn resolve(&mut self) -> Option<Instant> {
        if let Self::After(timeout) = *self {
            // A timeout beyond the end of time is no bound.
            *self = Instant::now().checked_add(timeout).map_or(Self::Never, Self::At);
        }
        match *self {
            Self::At(at) => Some(at),
            Self::Never | Self::After(_) => None,
        }
    }
}

/// A view of a session with a deadline or timeout for its calls; see [`Session::with_timeout`].
#[derive(Debug)]
pub struct Timed<'a> {
    session: &'a mut Session,
    deadline: Deadline,
}

impl Timed<'_> {
    /// The deadline of its calls, if they have one.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.deadline {
            Deadline::At(at) => Some(at),
            Deadline::Never | Deadline::After(_) => None,
        }
    }
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
    /// Sets the timeout of further calls of this session, after which they fail with `TimedOut`; `None`: no
    /// bound. Initially it is [`Config::timeout_ns`](crate::Config::timeout_ns).
    ///
    /// *Guarantees*: see "Deadlines" of [`Session`]. The time counts from when a call has to wait. Dropping
    /// a [`LockGuard`](crate::LockGuard) or a session has no timeout, since it could report none. *Cost*:
    /// none for calls that need not wait; a reading of the clock for others.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// The timeout of this session's calls.
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// This session with another timeout: `session.with_timeout(time).read(address, &mut bytes)`. Calls
    /// through a guard that was locked through it have the session's timeout.
    pub fn with_timeout(&mut self, timeout: Duration) -> Timed<'_> {
        Timed { session: self, deadline: Deadline::After(timeout) }
    }

    /// This session with a deadline that all calls through the view share.
    pub fn with_deadline(&mut self, deadline: Instant) -> Timed<'_> {
        Timed { session: self, deadline: Deadline::At(deadline) }
    }

    /// This session for the parts of a call, which share its deadline.
    pub(crate) fn timed(&mut self) -> Timed<'_> {
        let deadline = self.next_deadline().resolve();
        self.until(deadline)
    }

    /// This session with a deadline, if there is one.
    pub(crate) fn until(&mut self, deadline: Option<Instant>) -> Timed<'_> {
        Timed { session: self, deadline: deadline.map_or(Deadline::Never, Deadline::At) }
    }

    /// The deadline of the call that starts.
    pub(crate) fn next_deadline(&mut self) -> Deadline {
        let of_session = self.timeout.map_or(Deadline::Never, Deadline::After);
        self.deadline.take().unwrap_or(of_session)
    }

    /// The deadline of the last call, with its start resolved.
    pub(crate) fn last_deadline(&mut self) -> Deadline {
        self.deadline.take().unwrap_or(self.in_flight.deadline)
    }

    /// The error of a call that has waited for the operation of a slot until its deadline.
    #[cold]
    pub(super) fn timed_out(&self, slot: usize) -> Error {
        let (kind, address) = {
            let request = self.slots.slots[slot].request();
            (request.kind, request.address)
        };
        let operation = self.slots.operation(slot);
        let awaited = match kind {
            OperationKind::Allocate { node, .. } | OperationKind::Directory { node } => Some(node),
            OperationKind::Gate => Some(self.lines().me()),
            _ => address.map(|address| self.awaited_for(operation, kind, address)),
        };
        let address = address.filter(|_| {
            kind.want().is_some()
                || matches!(
                    kind,
                    OperationKind::Lock(_)
                        | OperationKind::Free
                        | OperationKind::WriteBack
                        | OperationKind::AwaitHome
                )
        });
        Error { address, awaited, ..Error::new(ErrorCode::TimedOut) }
    }

    fn awaited_for(
        &self,
        operation: farside_base::OperationId,
        kind: OperationKind,
        address: GlobalAddress,
    ) -> NodeId {
        let engine = self.core.engine();
        let known = match kind {
            OperationKind::Lock(_) => engine.awaited_of_lock(address.line(), operation),
            _ => engine.owner_of(address.line()),
        };
        known.unwrap_or(address.home())
    }
}
