//! Confirmation of iWARP's requests. An iWARP completion means that a request was sent, not that it was
//! executed. So requests are unsignaled, and a READ of a word of the peer's after the last of them
//! proves that all are done: the target answers it after what came before (RFC 5040 5.5). A link has at
//! most one in flight.

use super::VerbsPort;
use super::link::{RequestEntry, VerbsLink};
use super::poll::{ended, meant};
use super::staged::Staged;
use crate::device::Confirmation;
use crate::ffi::{LocalBytes, Verb, WorkCompletion, WorkRequest};
use crate::status::{self, numbers};
use crate::wire::Parting;
use farside_base::{CompletionKind, CompletionStatus, LinkId, WorkId};
use std::sync::atomic::Ordering;

/// Posts the confirming READ after a link's requests, unless a request in flight is signaled.
#[inline]
pub(super) fn ask(link: &mut VerbsLink, own: &Confirmation, ticks: u64) {
    if link.told > 0 || link.in_flight.is_empty() {
        return;
    }
    let id = link.next_request();
    let (Some(pair), Some(peer)) = (&mut link.pair, &link.peer) else {
        return;
    };
    let (address, key) = (peer.word.address, peer.word.key);
    pair.push(&WorkRequest {
        id,
        signalled: true,
        fence: false,
        verb: Verb::Read,
        address,
        key,
        bytes: LocalBytes::Slices(&[own.landing]),
    });
    link.note(PROBE, ticks);
}

/// Not a request of the program: it checks whether those before it are done.
pub(super) const PROBE: RequestEntry = RequestEntry {
    id: WorkId(0),
    bytes: 0,
    kind: CompletionKind::Write,
    signalled: false,
    told: true,
    misaligned: false,
    takes_receive: false,
    probe: true,
};

impl VerbsPort {
    /// Returns whether requests are done only when a READ after them is.
    #[inline]
    pub(super) fn confirms(&self) -> bool {
        self.core.device.confirmation.is_some()
    }

    /// Posts the confirming READ on a link, unless a request in flight is signaled.
    pub(super) fn confirm(&mut self, id: LinkId) {
        let ticks = self.core.ticks.load(Ordering::Relaxed);
        if let (Some(link), Some(own)) = (self.links.find(id), &self.core.device.confirmation) {
            ask(link, own, ticks);
            // Fails once the connection has ended; the control thread reports why.
            let _ = link.pair.as_mut().map_or(Ok(()), |pair| pair.ring());
        }
    }

    /// Handles the completion of a READ, or the failure of any request, with `older` ones before it.
    pub(super) fn take_confirmed(&mut self, id: LinkId, done: &WorkCompletion, older: usize) {
        let Some(link) = self.links.find(id) else {
            return;
        };
        let success = done.status == numbers::SUCCESS;
        let is_of_connection = |row: &status::StatusRow| {
            let adapter = matches!(row.blame, status::Blame::Adapter | status::Blame::Network);
            adapter
                && matches!(row.status, CompletionStatus::Broken | CompletionStatus::Unreachable)
        };
        let row = status::completion(done.status);
        let words = || format!("{row} (vendor's error {:#x})", done.vendor_err);
        if !success && is_of_connection(&row) {
            return self.suspect(id, words());
        }
        let is_probe = link.in_flight.get(older).is_some_and(|entry| entry.probe);
        if success || !is_probe {
            self.done_until(id, older);
        }
        if !success {
            // If the confirming READ failed, the first request before it is the reason.
            let first = self.links.find(id).and_then(|link| link.in_flight.front());
            let status = first.map_or(row.status, |entry| meant(entry, &row));
            return self.fail(id, status, Some(words()));
        }
        self.done_until(id, 1);
        let Some(link) = self.links.find(id) else {
            return;
        };
        link.since = self.core.ticks.load(Ordering::Relaxed);
        if !link.in_flight.is_empty() && link.told == 0 {
            self.confirm(id);
        }
    }

    /// Handles an adapter's bare report of the end of a connection. The control thread reports why; if
    /// it does not, the lease ends the link.
    pub(super) fn suspect(&mut self, id: LinkId, words: String) {
        if let Some(link) = self.links.find(id).filter(|link| !link.is_down()) {
            link.trouble.get_or_insert(words);
        }
    }

    /// Completes the oldest requests of a link.
    fn done_until(&mut self, id: LinkId, count: usize) {
        for _ in 0..count {
            let Some(link) = self.links.find(id) else {
                return;
            };
            if let Some(entry) = link.pop()
                && entry.signalled
            {
                link.unpolled += 1;
                self.stage(Staged::of_link(ended(&entry, id, CompletionStatus::Success)));
            }
        }
    }

    /// Handles the end of a link's connection by a request that its target refused, which nothing else
    /// reports: the reason follows from the requests that are not known to be done, and from what the
    /// peer knows.
    pub(super) fn part(&mut self, id: LinkId, why: Parting) {
        // Requests that were done before count.
        self.gather();
        let Some(link) = self.links.find(id).filter(|link| !link.is_down()) else {
            return;
        };
        let one_sided = |entry: &RequestEntry| !entry.probe && !entry.takes_receive;
        let before = link.in_flight.iter().position(one_sided);
        if let (Parting::Refused, Some(before)) = (why, before) {
            // Messages are not refused like that: those before it have arrived.
            self.done_until(id, before);
        }
        let first = self.links.find(id).and_then(|link| {
            let mut real = link.in_flight.iter().filter(|entry| !entry.probe);
            real.next().map(|entry| entry.takes_receive)
        });
        let (status, words) = meaning(first, why);
        let said = self.links.find(id).and_then(|link| link.trouble.take());
        let said = said.map_or_else(String::new, |said| format!("; this adapter reports {said}"));
        self.fail(id, status, Some(format!("{words}{said}")));
    }
}

/// Returns how the first request that is not known to be done completes, and why. `first` says whether
/// it takes a receive, if there is one.
fn meaning(first: Option<bool>, why: Parting) -> (CompletionStatus, &'static str) {
    match (first, why) {
        (None, _) => (
            CompletionStatus::Flushed,
            "the connection ended with a request of the peer's that failed, or was refused locally",
        ),
        (Some(_), Parting::Own) => (
            CompletionStatus::Unreachable,
            "the peer's end of the connection failed by a request of its own: reconnect",
        ),
        (Some(true), _) => (
            CompletionStatus::ReceiverNotReady,
            "the connection ended with a message for which the peer had posted no receive, or none \
             as long: let the peer post them before",
        ),
        (Some(false), _) => (
            CompletionStatus::RemoteAccess,
            "the peer's adapter refused a request and ended the connection: the remote region, its \
             bounds, its permission or its key did not allow it; look at what the region was \
             registered for, and whether it was ended",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_known_to_be_done_tells_how_a_connection_ended() {
        use CompletionStatus::{Flushed, ReceiverNotReady, RemoteAccess, Unreachable};
        let (message, one_sided) = (Some(true), Some(false));
        for (first, why, status) in [
            (None, Parting::Unknown, Flushed),
            (None, Parting::Own, Flushed),
            (message, Parting::Unknown, ReceiverNotReady),
            (one_sided, Parting::Unknown, RemoteAccess),
            (one_sided, Parting::Refused, RemoteAccess),
            (one_sided, Parting::Own, Unreachable),
            (message, Parting::Own, Unreachable),
        ] {
            assert_eq!(meaning(first, why).0, status, "{first:?} {why:?}");
        }
    }
}
