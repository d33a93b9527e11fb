//! The timers of the control thread: ticks, keepalives, leases.
//!
//! Each end applies its own lease to its peer, and the two may differ. So each sends keepalives often
//! enough for the shorter of both, as soon as it knows the peer's: the accepting side by the first
//! frame, the dialling side by the answer to it. Until the link is up an end waits for the longer one.

use super::ControlThread;
use crate::conversation::{Conversation, ConversationStage, Over};
use crate::core::LEASE_TICKS;
use crate::inbox::Inbox;
use crate::token::lock;
use crate::wire::{Frame, QueuePairEnd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Checks of peers in a lease.
const LOOKS: u32 = LEASE_TICKS as u32;

fn lease_of(peer: &QueuePairEnd) -> Duration {
    Duration::from_millis(u64::from(peer.lease_ms))
}

impl ControlThread {
    /// Time: ticks, keep-alives, leases. `idle` when this thread slept without end.
    pub(super) fn tick(&mut self, idle: bool) {
        let now = Instant::now();
        if idle {
            self.next_tick = now + self.tick;
            self.next_beat = self.next_tick;
            return;
        }
        let Some(late) = now.checked_duration_since(self.next_beat) else {
            return;
        };
        let leases = self.conversations.values().filter_map(|found| found.peer.as_ref());
        let shortest = leases.map(lease_of).min().map_or(self.tick, |lease| lease / LOOKS);
        self.beat = shortest.min(self.tick);
        self.next_beat = now + self.beat;
        self.look_at_peers(now, late);
        if now >= self.next_tick {
            self.next_tick = now + self.tick;
            self.listen_again();
            self.core.ticks.fetch_add(1, Ordering::Release);
            self.forget_secrets();
            let ticks = self.core.ticks.load(Ordering::Relaxed);
            for inbox in lock(&self.core.ports).iter() {
                remind(inbox, ticks);
            }
        }
    }

    /// Adapts the timers to a peer's lease.
    pub(super) fn quicken(&mut self, peer: &QueuePairEnd) {
        let beat = lease_of(peer) / LOOKS;
        if beat < self.beat {
            self.beat = beat;
            self.next_beat = self.next_beat.min(Instant::now() + beat);
        }
    }

    fn look_at_peers(&mut self, now: Instant, late: Duration) {
        let own = self.core.options.lease;
        for token in self.tokens() {
            let Some(conversation) = self.conversations.get_mut(&token.0) else {
                continue;
            };
            if late > self.tick {
                // This thread was delayed: peers are not charged with the silence meanwhile.
                conversation.heard += late;
            }
            if conversation.stage.keeps_alive() {
                let (pace, patience) = pace(conversation, own);
                if now.saturating_duration_since(conversation.heard) > patience {
                    let words = format!("the peer's fabric was silent for {patience:?}");
                    self.over(token, Over::Unreachable(words));
                } else if now.saturating_duration_since(conversation.said) * 4 >= pace {
                    self.say(token, &Frame::Alive);
                }
                self.look_at_meeting(token, now);
            } else if conversation.stage != ConversationStage::Resolving
                && now > conversation.deadline
            {
                self.over(token, Over::Unreachable("no answer in time".to_owned()));
            }
        }
    }
}

/// Returns the lease for which this side sends keepalives, and the one that it applies to its peer.
fn pace(conversation: &Conversation, own: Duration) -> (Duration, Duration) {
    let peers = conversation.peer.as_ref().map_or(own, lease_of);
    let patience = if conversation.stage == ConversationStage::Up { own } else { own.max(peers) };
    (own.min(peers), patience)
}

/// Wakes a sleeping port whose requests have been in flight for so long that it must check them.
fn remind(inbox: &Inbox, ticks: u64) {
    let since = inbox.bell.watched_since.load(Ordering::Acquire);
    if since != 0 && ticks > since + 1 {
        inbox.bell.ring();
    }
}
