//! One skeleton for every progress engine: that of a node, of the end of a channel, of an executor of calls and of a
//! caller. A poll takes completions from the port and processes each of them, handles events of links, steps the
//! machines, and posts the requests that result. An engine differs from others in these steps alone.

use crate::Error;
use crate::registered::{control, not_reached};
use farside_base::{
    Completion, LinkId, LocalSlice, Receive, ReceiveQueueId, RegionToken, RemoteRegionId, Work,
    WorkId,
};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, Posted};
use std::ops::{Deref, DerefMut, Range};

/// Completions taken from the port at a time.
const COMPLETIONS: usize = 64;
/// Requests of most doorbells: a message, and what precedes it.
const FEW: usize = 2;

/// A progress engine: drives protocol machines by the events of a port.
pub(crate) trait Progress {
    /// Most completions that a poll processes.
    const LANDED_MAX: usize = usize::MAX;
    /// Whether a poll ends only when the port has no completion: its requests may complete at once. Otherwise it ends
    /// after fewer completions than are taken at a time.
    const POLLS_TO_EMPTY: bool = false;

    /// Returns the port that it polls.
    fn port(&mut self) -> &mut EnginePort;

    /// Processes a completion.
    fn completed(&mut self, completion: &Completion);

    /// Handles the events of links; returns whether there were any. `landed` if this poll had completions.
    fn handle_links(&mut self, landed: bool) -> bool;

    /// Steps the machines after this many completions, and after events of links if `linked`; returns whether there
    /// was work.
    fn step(&mut self, landed: usize, linked: bool) -> bool;

    /// Posts the requests of the machines, as far as the port takes them; returns whether it took any.
    fn post(&mut self) -> bool;

    /// Polls once, without blocking; returns whether there was work.
    #[inline]
    fn poll_once(&mut self) -> bool {
        let landed = self.land(Self::LANDED_MAX);
        let linked = self.handle_links(landed > 0);
        let stepped = self.step(landed, linked);
        let posted = self.post();
        landed > 0 || linked || stepped || posted
    }

    /// Processes at most this many completions, unless a caller is processing one; returns how many.
    #[inline]
    fn land(&mut self, completions_max: usize) -> usize {
        if std::mem::replace(&mut self.port().is_landing, true) {
            return 0;
        }
        let mut landed = 0;
        while landed < completions_max
            && let Some(completion) = self.port().next(Self::POLLS_TO_EMPTY)
        {
            self.completed(&completion);
            landed += 1;
        }
        self.port().is_landing = false;
        landed
    }
}

/// The port of a progress engine. Its other methods are those of [`Port`].
pub(crate) struct EnginePort {
    port: Box<dyn Port>,
    completions: Box<[Completion; COMPLETIONS]>,
    /// Completions that were taken from the port and are not processed yet.
    taken: Range<usize>,
    /// The last poll of the port returned fewer completions than there is space for.
    is_drained: bool,
    /// Completions are being processed.
    is_landing: bool,
    /// A thread sleeps or is about to, and arrivals wake it.
    is_armed: bool,
}

/// An event of a link.
pub(crate) enum ConnectionEvent {
    /// A peer wants to connect, with this hello.
    Requested(LinkId, Vec<u8>),
    /// The peer accepted, with this reply.
    Connected(LinkId, Vec<u8>),
    /// The peer refused, for this reason.
    Refused(LinkId, Vec<u8>),
    /// The peer was not reached.
    NotReached(LinkId, Error),
    Lost(LinkId),
}

impl EnginePort {
    /// Opens a port, listening at a name if there is one.
    pub(crate) fn open(fabric: &dyn Fabric, listen: Option<String>) -> Result<Self, Error> {
        let port = fabric.open(&PortSpec { listen }).map_err(|error| control(&error))?;
        Ok(Self::new(port))
    }

    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        let completions = Box::new([Completion::BLANK; COMPLETIONS]);
        let (is_drained, is_landing, is_armed) = (false, false, false);
        Self { port, completions, taken: 0..0, is_drained, is_landing, is_armed }
    }

    /// Returns the next completion; `None` after a poll of the port without any or, unless `to_empty`, with fewer than
    /// there is space for.
    #[inline]
    pub(crate) fn next(&mut self, to_empty: bool) -> Option<Completion> {
        if self.taken.is_empty() {
            if std::mem::take(&mut self.is_drained) && !to_empty {
                return None;
            }
            let count = self.port.poll(&mut self.completions[..]);
            self.taken = 0..count;
            self.is_drained = (1..COMPLETIONS).contains(&count);
        }
        self.taken.next().map(|at| self.completions[at])
    }

    /// Returns the events of links since the last call.
    #[inline]
    pub(crate) fn connection_events(&mut self) -> Vec<ConnectionEvent> {
        let mut events = Vec::new();
        self.port.link_events(&mut events);
        if events.is_empty() {
            return Vec::new();
        }
        let event = |event| {
            Some(match event {
                LinkEvent::Requested { link, hello } => ConnectionEvent::Requested(link, hello),
                LinkEvent::Connected { link, reply } => ConnectionEvent::Connected(link, reply),
                LinkEvent::Refused { link, reason } => ConnectionEvent::Refused(link, reason),
                LinkEvent::NotReached { link, why } => {
                    ConnectionEvent::NotReached(link, not_reached(why, self.port.trouble(link)))
                }
                LinkEvent::Lost { link, .. } => ConnectionEvent::Lost(link),
                _ => return None,
            })
        };
        events.into_iter().filter_map(event).collect()
    }

    /// Posts the first of `count` requests with one doorbell: at most `MAX`, and those before the first that is
    /// `None`. Returns `None` if that is the first of all.
    #[inline]
    pub(crate) fn post_batch<'a, const MAX: usize>(
        &mut self,
        count: usize,
        work: impl Fn(usize) -> Option<Work<'a>>,
    ) -> Option<Posted> {
        let first = work(0)?;
        // A longer array is costly to fill.
        Some(match count {
            1 => self.port.post(&[first]),
            2..=FEW => self.post_filled::<FEW>(count, first, work),
            _ => self.post_filled::<MAX>(count.min(MAX), first, work),
        })
    }

    #[inline]
    fn post_filled<'a, const SIZE: usize>(
        &mut self,
        count: usize,
        first: Work<'a>,
        work: impl Fn(usize) -> Option<Work<'a>>,
    ) -> Posted {
        let mut batch = [first; SIZE];
        let mut filled = 1;
        while filled < count
            && let Some(next) = work(filled)
        {
            batch[filled] = next;
            filled += 1;
        }
        self.port.post(&batch[..filled])
    }

    /// Adds a receive to a queue, which is as deep as its users need.
    pub(crate) fn post_receive(&mut self, id: WorkId, queue: ReceiveQueueId, into: LocalSlice) {
        let posted = self.port.post_receives(&[Receive { id, queue, into }]);
        debug_assert!(posted.stop.is_none(), "{posted:?}");
    }

    /// Creates a receive queue.
    pub(crate) fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, Error> {
        self.port.create_receive_queue(depth).map_err(|error| control(&error))
    }

    /// Begins to connect.
    pub(crate) fn connect(
        &mut self,
        name: &str,
        hello: &[u8],
        queue: ReceiveQueueId,
    ) -> Result<LinkId, Error> {
        self.port.connect(name, hello, queue).map_err(|error| control(&error))
    }

    /// Makes a region of a peer usable on a link.
    pub(crate) fn import(
        &mut self,
        link: LinkId,
        token: &RegionToken,
    ) -> Result<RemoteRegionId, Error> {
        self.port.import(link, token).map_err(|error| control(&error))
    }

    /// Arms the port before a sleep; true if there is work instead.
    pub(crate) fn arm(&mut self) -> bool {
        self.is_armed = true;
        self.port.arm()
    }

    #[inline]
    pub(crate) fn is_armed(&self) -> bool {
        self.is_armed
    }

    /// Disarms the port if it is armed.
    #[inline]
    pub(crate) fn disarm(&mut self) {
        if std::mem::take(&mut self.is_armed) {
            self.port.disarm();
        }
    }
}

impl Deref for EnginePort {
    type Target = dyn Port;

    fn deref(&self) -> &Self::Target {
        &*self.port
    }
}

impl DerefMut for EnginePort {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut *self.port
    }
}
