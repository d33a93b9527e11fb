//! Requests of other processes that have not come to a link: questions without an answer yet, and admitted joins
//! whose node is not linked. Their processes may be silent for ever, or say what never comes true (a view of
//! the future), so each request ends after a time.

use crate::boot::AT_RENDEZVOUS;
use crate::engine::Engine;
use farside_base::{ErrorCode, LinkId};
use farside_protocol::member::{Event, Refusal, RequestId};

/// The refusal of a request that has expired.
const NO_LINK_IN_TIME: &str = "the members did not learn of this node in time; join again";

/// One such request.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: RequestId,
    until_ns: u64,
    /// An admitted join: the link of the request is up.
    admitted: bool,
}

/// All of them.
#[derive(Debug)]
pub(crate) struct Requests {
    pending: Vec<Pending>,
    /// How long a request waits. No correct process waits for longer.
    patience_ns: u64,
}

impl Requests {
    pub(crate) const fn new(patience_ns: u64) -> Self {
        Self { pending: Vec::new(), patience_ns }
    }

    pub(crate) fn add(&mut self, request: RequestId, now_ns: u64, admitted: bool) {
        let until_ns = now_ns.saturating_add(self.patience_ns);
        self.pending.push(Pending { request, until_ns, admitted });
    }

    /// The request is answered, linked or lost; whether it was pending.
    pub(crate) fn remove(&mut self, request: RequestId) -> bool {
        let known = self.pending.len();
        self.pending.retain(|pending| pending.request != request);
        self.pending.len() < known
    }

    fn take_expired(&mut self, now_ns: u64) -> Vec<Pending> {
        self.pending.extract_if(.., |pending| now_ns >= pending.until_ns).collect()
    }
}

impl Engine {
    /// Ends requests whose time is over.
    pub(crate) fn end_requests(&mut self) {
        if self.requests.pending.is_empty() {
            return;
        }
        let now_ns = self.boot.fabric.time_ns();
        for Pending { request, admitted, .. } in self.requests.take_expired(now_ns) {
            match admitted {
                true => self.close_rendezvous_link(LinkId((request.0 & !AT_RENDEZVOUS) as u32)),
                false => {
                    let text = NO_LINK_IN_TIME.to_owned();
                    self.turn_away(request, Refusal { code: ErrorCode::TimedOut, text });
                }
            }
            self.member_own(Event::RequestLost { request });
        }
    }
}
