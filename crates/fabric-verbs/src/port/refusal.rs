//! Requests that an adapter refuses: the responder sends a negative acknowledgement, and its queue pair
//! moves to the error state by itself.
//!
//! Two things can keep the acknowledgement from the requester, whose adapter then has no answer.
//! Soft-RoCE reports the refusal locally first, and sends nothing any more if the queue pair is moved
//! to the error state in between; so this side leaves the queue pair alone. And the acknowledgement may
//! get lost: a queue pair in the error state answers no repetition. So the fabric that refused also
//! sends `Parted` on the control stream, and the requester takes that as the reason for the missing
//! answer. Which request it was is reported by its own adapter.
//!
//! Some adapters (soft-RoCE) also end a connection on which they cannot send because their port is
//! down, and report no more than that. Such a link is lost at once, and not only when the peer has
//! noticed.

use super::VerbsPort;
use super::link::{LinkState, RequestEntry, Spoilt};
use crate::core::{Command, LEASE_TICKS};
use crate::ffi::{OwnEnd, QueuePairHandle};
use crate::wire::Parting;
use farside_base::{CompletionKind, CompletionStatus, LinkId};
use std::sync::atomic::Ordering;

const NO_REASON: &str = "the adapter ended the connection, most likely over a request of the peer's \
                         that it refused; check the peer's first failure; reconnect";
const PORT_DOWN: &str = "the adapter ended the connection, since its port was down; check the cable, the \
                         switch's port and the network device";
const REFUSED_THERE: &str = "the peer's fabric reports that its adapter has refused a request";

impl VerbsPort {
    /// Handles a receive's completion that reports a refused request of the peer's.
    pub(super) fn refuses(&mut self, id: LinkId, words: String) {
        if let Some(link) = self.links.find(id) {
            let token = link.token;
            self.core.command(Command::Refused { token });
        }
        self.refused_here(id, words);
    }

    /// Records that this adapter has refused a request of the peer's. The connection ends once the
    /// adapter has sent the negative acknowledgement; requests of this side in flight are left to it
    /// until then.
    pub(super) fn refused_here(&mut self, id: LinkId, words: String) {
        let ticks = self.core.ticks.load(Ordering::Relaxed);
        let Some(link) = self.links.find(id).filter(|link| link.state == LinkState::Up) else {
            return;
        };
        if link.in_flight.is_empty() {
            link.trouble = Some(words);
            link.state = LinkState::Down { first: None };
            return;
        }
        link.spoilt = Some(Spoilt { since: ticks, words: Some(words) });
    }

    /// Handles a flushed request of a link on which none has failed before.
    pub(super) fn flushed(&mut self, id: LinkId) {
        let ticks = self.core.ticks.load(Ordering::Relaxed);
        let confirms = self.confirms();
        let Some(link) = self.links.find(id) else {
            return;
        };
        let own_end = link.handle.as_ref().map_or(OwnEnd::Closed, QueuePairHandle::own_end);
        if confirms || own_end != OwnEnd::None {
            // The inbox reports why.
            return;
        }
        match &link.spoilt {
            Some(Spoilt { words: Some(_), .. }) => self.end_spoilt(id),
            Some(_) => {}
            // The adapter's reason may be about to arrive.
            None => link.spoilt = Some(Spoilt { since: ticks, words: None }),
        }
        if self.port_was_down() {
            self.end_without_port(id);
        }
    }

    /// Handles a port that is down: connections that the adapter has ended meanwhile, it ended for
    /// that.
    pub(super) fn port_is_down(&mut self) {
        self.port_down = Some(self.core.ticks.load(Ordering::Relaxed));
        self.gather();
        let mut from = 0;
        while let Some((id, behind)) = self.links.next_from(from) {
            from = behind;
            self.end_without_port(id);
        }
    }

    /// Returns whether that is no longer ago than a request may wait for its end.
    fn port_was_down(&self) -> bool {
        let ticks = self.core.ticks.load(Ordering::Relaxed);
        self.port_down.is_some_and(|since| ticks <= since + LEASE_TICKS)
    }

    /// Loses a link that the adapter has ended without a reason.
    fn end_without_port(&mut self, id: LinkId) {
        let spoilt = self.links.find(id).and_then(|link| link.spoilt.as_ref());
        if spoilt.is_some_and(|spoilt| spoilt.words.is_none()) {
            self.fail(id, CompletionStatus::Unreachable, Some(PORT_DOWN.to_owned()));
        }
    }

    /// Ends a link whose connection the adapter has ended: requests in flight are flushed.
    pub(super) fn end_spoilt(&mut self, id: LinkId) {
        let spoilt = self.links.find(id).and_then(|link| link.spoilt.take());
        let words = spoilt.and_then(|spoilt| spoilt.words);
        let words = words.unwrap_or_else(|| NO_REASON.to_owned());
        self.fail(id, CompletionStatus::Flushed, Some(words));
    }

    /// Handles the peer's report on the connection. If a request was refused, this adapter will report
    /// which, or that it was not answered.
    pub(super) fn refused_there(&mut self, id: LinkId, why: Parting) {
        if let Some(link) = self.links.find(id).filter(|link| !link.is_down())
            && why == Parting::Refused
        {
            link.refused_there = true;
            link.trouble = Some(REFUSED_THERE.to_owned());
        }
    }

    /// Handles an unanswered oldest request: the peer is unreachable, unless its fabric reports that
    /// its adapter has refused something.
    pub(super) fn unanswered(&mut self, id: LinkId, words: String) {
        let Some(link) = self.links.find(id) else {
            return;
        };
        if !link.refused_there {
            return self.fail(id, CompletionStatus::Unreachable, Some(words));
        }
        let status = link.in_flight.front().map_or(CompletionStatus::RemoteAccess, refused);
        let words = format!("{REFUSED_THERE}, and its answer was lost: {words}");
        self.fail(id, status, Some(words));
    }
}

/// Returns the status of a request that was refused for an unknown reason.
fn refused(entry: &RequestEntry) -> CompletionStatus {
    match entry.kind {
        CompletionKind::Send => CompletionStatus::LengthExceeded,
        _ if entry.misaligned => CompletionStatus::RemoteAlignment,
        _ => CompletionStatus::RemoteAccess,
    }
}
