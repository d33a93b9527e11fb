//! Requests of other processes that have no link yet: unanswered requests, and admitted joins whose node is
//! not linked. Their processes may be silent for ever, or name a future view that never comes, so each
//! request expires.

use super::Engine;
use farside_base::ErrorCode;
use farside_protocol::member::{JoinRefusal, MemberEvent, RequestId};

/// The refusal of a request that has expired.
const NO_LINK_IN_TIME: &str = "the members did not learn of this node in time; join again";

/// One such request.
#[derive(Clone, Copy, Debug)]
struct Pending {
    request: RequestId,
    until_ns: u64,
    /// It is an admitted join: the link of the request is up.
    admitted: bool,
}

/// All pending requests.
#[derive(Debug)]
pub(crate) struct Requests {
    pending: Vec<Pending>,
    /// The time until a request expires. No correct process waits longer.
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

    /// Removes a request that was answered, linked or lost; returns whether it was pending.
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
    /// Ends expired requests.
    pub(crate) fn end_requests(&mut self) {
        if self.requests.pending.is_empty() {
            return;
        }
        let now_ns = self.links.now_ns();
        for Pending { request, admitted, .. } in self.requests.take_expired(now_ns) {
            match admitted {
                true => self.links.close_request(request),
                false => {
                    let text = NO_LINK_IN_TIME.to_owned();
                    self.turn_away(request, JoinRefusal { code: ErrorCode::TimedOut, text });
                }
            }
            self.member_own(MemberEvent::RequestLost { request });
        }
    }
}
