//! Imports of peers, and the windows bound for them, one at a time on each link.

use super::ControlThread;
use crate::conversation::Over;
use crate::ffi::{OwnEnd, QueuePairHandle};
use crate::inbox::Inbound;
use crate::status::{self, numbers};
use crate::token::Token;
use crate::window::Grant;
use crate::wire::Frame;
use farside_base::{CompletionStatus, RegionToken};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most unanswered imports of a peer.
const WAITING_MAX: usize = 64;
/// How long the completion of a bind is polled for at a time.
const BIND_POLL_TIME: Duration = Duration::from_micros(20);

impl ControlThread {
    /// Handles an import of a peer.
    pub(super) fn import(
        &mut self,
        token: Token,
        request: u32,
        region: &RegionToken,
    ) -> Result<(), Over> {
        if let Some(conversation) = self.conversations.get_mut(&token.0) {
            let waiting = &mut conversation.asked.waiting;
            if waiting.len() >= WAITING_MAX {
                let words = "it has more pending imports than allowed";
                return Err(Over::Violation(words.to_owned()));
            }
            waiting.push_back((request, *region));
        }
        self.grant_next(token);
        Ok(())
    }

    /// Answers a peer's imports, up to the first that needs a window.
    fn grant_next(&mut self, token: Token) {
        let core = Arc::clone(&self.core);
        while let Some(conversation) = self.conversations.get_mut(&token.0)
            && conversation.asked.binding.is_none()
            && let Some((request, region)) = conversation.asked.waiting.pop_front()
        {
            let Some(pair) = &conversation.handle else {
                return;
            };
            let link = (token, pair);
            match core.windows.grant(&core.device.domain, &core.regions, link, &region) {
                Grant::Now(region) => self.say(token, &Frame::Imported { request, region }),
                Grant::Later => {
                    conversation.asked.binding = Some((request, region));
                    self.binding.push(token);
                }
            }
        }
    }

    /// Handles the completion of a bind.
    pub(super) fn bound(&mut self, token: Token, status: u32) {
        let core = Arc::clone(&self.core);
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        let Some((request, region)) = conversation.asked.binding.take() else {
            return;
        };
        let success = status == numbers::SUCCESS;
        let region = core.windows.bound(&core.regions, token, &region, success);
        self.say(token, &Frame::Imported { request, region });
        if success {
            return self.grant_next(token);
        }
        let Some(conversation) = self.conversations.get_mut(&token.0) else {
            return;
        };
        // Of a queue pair that an earlier request has broken, or one of the peer's, the port knows more.
        let end = conversation.handle.as_ref().map_or(OwnEnd::Closed, QueuePairHandle::own_end);
        if (status != numbers::WR_FLUSH_ERR || end == OwnEnd::Failed)
            && let Some(inbox) = &conversation.inbox
        {
            let row = status::completion(status);
            let words = format!("a memory window was not bound for the peer: {row}");
            inbox.push(Inbound::Fault { token, status: CompletionStatus::Broken, words });
        }
    }

    /// Polls for completions of binds, which the ports' own threads may not do in time.
    pub(super) fn look_for_binds(&mut self) {
        let until = Instant::now() + BIND_POLL_TIME;
        let mut ends = Vec::new();
        while !self.binding.is_empty() {
            for token in &self.binding {
                let conversation = self.conversations.get(&token.0);
                if let Some(inbox) = conversation.and_then(|found| found.inbox.as_ref())
                    && inbox.intake.take_binds(&mut ends)
                {
                    inbox.bell.ring();
                }
            }
            for (token, status) in ends.drain(..) {
                self.bound(token, status);
            }
            let conversations = &self.conversations;
            self.binding.retain(|token| {
                let found = conversations.get(&token.0);
                found.is_some_and(|found| found.asked.binding.is_some())
            });
            if Instant::now() > until {
                return;
            }
            std::hint::spin_loop();
        }
    }
}
