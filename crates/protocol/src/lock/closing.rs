//! A home that leaves and will return with its memory: its locks are handed back before it leaves, as a database is
//! quiesced before it is stopped.
//!
//! 1. **Drain.** The home recalls all delegations and delegates no more. It grants locks only to sessions that hold one
//!    already, at any home; all other requests, queued and new, are refused with `HomeAway` and wait at their
//!    requesters. A refused session holds nothing that a holder can wait for, so the holders wait for each other only,
//!    and deadlock detection sees all these waits.
//! 2. **Close.** Once no lock is held, or when the runtime waits no longer, all requests are refused.
//!
//! Refusing the nested requests of holders too would make them wait for the return of a home that waits for them.

use super::Effects;
use super::canary::mutant;
use super::line::{Authority, Waiter};
use super::own::Locks;
use super::service::HomeService;
use alloc::collections::VecDeque;
use farside_base::{ErrorCode, LineAddress, SessionId};

impl Locks {
    /// Whether no lock of this home is held, awaited or delegated: a home that drains can close.
    pub fn is_home_unused(&self) -> bool {
        let mut own = self.lines.iter().filter(|(at, _)| at.home() == self.me);
        own.all(|(_, line)| {
            let held = !line.is_unused() && !mutant!(self.rules, DrainEndsHeld);
            !held && line.authority == Authority::Home && line.lent.is_none()
        })
    }

    /// Changes which requests this home grants, and refuses those that wait and are not granted any more.
    pub(super) fn serve(&mut self, service: HomeService, effects: &mut Effects) {
        self.service = service;
        for at in self.lines.sorted_keys() {
            // Settling one line may remove other idle ones.
            if at.home() != self.me || !self.lines.contains(at) {
                continue;
            }
            self.recall(at, effects);
            if self.line(at).authority == Authority::Home {
                self.refuse_waiting(at, effects);
                self.promote(at, effects);
                self.settle(at, effects);
            }
        }
    }

    /// Refuses the requests of a queue that this home does not grant any more. The home arbitrates the line.
    pub(super) fn refuse_waiting(&mut self, at: LineAddress, effects: &mut Effects) {
        if self.is_open() || mutant!(self.rules, DrainGrantsQueue) {
            return;
        }
        let service = self.service;
        let queue = core::mem::take(&mut self.line(at).queue);
        let refuses = |waiter: &Waiter| service.refuses(waiter);
        let (refused, kept): (VecDeque<_>, VecDeque<_>) = queue.into_iter().partition(refuses);
        self.line(at).queue = kept;
        for waiter in refused {
            self.refuse(at, &waiter, ErrorCode::HomeAway, effects);
        }
    }

    /// Whether this node, as the home of a line, refuses a request because it leaves.
    pub(super) fn refuses(&self, at: LineAddress, waiter: &Waiter) -> bool {
        at.home() == self.me && self.service.refuses(waiter)
    }

    /// Whether this home delegates, lends and grants as usual.
    pub(super) fn is_open(&self) -> bool {
        self.service == HomeService::Open
    }

    /// Whether a session holds, or awaits, more than the request that was counted last.
    pub(super) fn holds_others(&self, session: SessionId) -> bool {
        self.locks_of(session) > 1
    }
}
