//! One skeleton for every progress engine: that of a node, of the end of a channel, of an executor of calls and of a
//! caller. A poll takes completions from the port and processes each of them, handles events of links, steps the
//! machines, and posts the requests that result. An engine differs from others in these steps alone.

use crate::Error;
use crate::registered::control;
use farside_base::{Completion, LinkId, LocalSlice, Receive, ReceiveQueueId, Work, WorkId};
use farside_fabric::{Port, Posted};
use std::ops::{Deref, DerefMut, Range};

/// Completions taken from the port at a time.
const COMPLETIONS: usize = 64;
/// Requests of most doorbells: a message, and what precedes it.
const FEW: usize = 2;

/// A progress engine: drives protocol machines by the events of a port.
pub(crate) trait Progress {
    /// Most completions that a poll processes.
    const LANDED_MAX: usize = usize::MAX;

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
            && let Some(completion) = self.port().next()
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
    /// The port had no more completions.
    is_drained: bool,
    /// Completions are being processed.
    is_landing: bool,
    /// A thread sleeps or is about to, and arrivals wake it.
    is_armed: bool,
}

impl EnginePort {
    pub(crate) fn new(port: Box<dyn Port>) -> Self {
        let completions = Box::new([Completion::BLANK; COMPLETIONS]);
        let (is_drained, is_landing, is_armed) = (false, false, false);
        Self { port, completions, taken: 0..0, is_drained, is_landing, is_armed }
    }

    /// Returns the next completion. A poll of the port that returns fewer than there is space for is the last one
    /// before `None`.
    #[inline]
    pub(crate) fn next(&mut self) -> Option<Completion> {
        if self.taken.is_empty() {
            if std::mem::take(&mut self.is_drained) {
                return None;
            }
            let count = self.port.poll(&mut self.completions[..]);
            self.taken = 0..count;
            self.is_drained = (1..COMPLETIONS).contains(&count);
        }
        self.taken.next().map(|at| self.completions[at])
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
        if count == 1 {
            return Some(self.port.post(&[first]));
        }
        let most = count.min(MAX);
        let count = (1..most).find(|at| work(*at).is_none()).unwrap_or(most);
        let filled = |at| if at < count { work(at).unwrap_or(first) } else { first };
        // A longer array is costly to fill.
        Some(match count <= FEW {
            true => self.port.post(&std::array::from_fn::<_, FEW, _>(filled)[..count]),
            false => self.port.post(&std::array::from_fn::<_, MAX, _>(filled)[..count]),
        })
    }

    /// Adds a receive to a queue, which is as deep as its users need.
    pub(crate) fn post_receive(&mut self, id: WorkId, queue: ReceiveQueueId, into: LocalSlice) {
        let posted = self.port.post_receives(&[Receive { id, queue, into }]);
        debug_assert!(posted.stop.is_none(), "{posted:?}");
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
