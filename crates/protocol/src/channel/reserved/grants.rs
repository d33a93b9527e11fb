//! Grants of mailboxes to senders.

use super::super::canary::mutant;
use super::super::effects::{Effects, Notify, Peer};
use super::super::half::Checked;
use super::super::shape::Signal;
use super::receiver::{From, Mailbox, NAME, ReservedReceiver, ReservedState};
use super::{GRANT_BITS, STATE};
use crate::wire::Violation;
use farside_base::RemoteSlice;

impl ReservedReceiver {
    /// Handles the request of a sender for a mailbox.
    pub(super) fn asked(&mut self, peer: Peer) -> Checked {
        let from = self.sender(peer).filter(|from| !from.asks);
        let Some(from) = from else {
            return Err(Violation("asks for two mailboxes"));
        };
        from.asks = true;
        if from.granted.is_none() {
            self.waiting.push_back(peer);
        }
        Ok(())
    }

    /// Handles a filled mailbox.
    pub(super) fn filled(&mut self, slot: u32, bytes: u32, state: ReservedState) {
        let Some(mailbox) = self.mailboxes.get_mut(slot as usize) else {
            return;
        };
        (mailbox.state, mailbox.bytes) = (state, bytes);
        let (peer, orphan) = (mailbox.peer, mailbox.orphan);
        let Some(from) = self.sender(peer).filter(|_| !orphan) else {
            return;
        };
        from.granted = None;
        if from.asks {
            self.waiting.push_back(peer);
        }
    }

    /// Grants free mailboxes to waiting senders.
    pub(super) fn serve(&mut self, effects: &mut Effects) {
        while let (Some(peer), Some(slot)) =
            (self.waiting.front().copied(), self.free.front().copied())
        {
            self.waiting.pop_front();
            if !mutant!(self, SlotGrantedTwice) {
                self.free.pop_front();
            }
            let Some(from) = self.senders.get_mut(usize::from(peer.0)) else {
                continue;
            };
            from.asks = false;
            from.granted = Some(slot);
            from.grants += 1;
            from.last = slot;
            if let Some(mailbox) = self.mailboxes.get_mut(slot as usize) {
                *mailbox = Mailbox { state: ReservedState::Granted, peer, orphan: false, bytes: 0 };
            }
            if self.shape.signal == Signal::Word {
                self.granted.push_back(slot);
            }
            Self::tell(self.shape.signal, from, peer, Some(slot), effects);
        }
    }

    /// Sends a sender its grant, and the number of its released messages.
    pub(super) fn tell(
        signal: Signal,
        from: &mut From,
        peer: Peer,
        grant: Option<u32>,
        effects: &mut Effects,
    ) {
        let Some(to) = from.regions else {
            return;
        };
        match signal {
            Signal::Message => {
                let slot = grant.map_or(0, |slot| slot + 1);
                let immediate = Some((from.released as u32) << GRANT_BITS | slot);
                effects.send_inline(peer, NAME, Notify::No, &[], immediate);
            }
            Signal::Word if from.flying => {
                from.due = true;
                return;
            }
            Signal::Word => {
                from.flying = true;
                let low = u64::from(from.released as u32);
                let state = from.grants << 48 | u64::from(from.last) << 32 | low;
                let place = RemoteSlice { region: to.bells, offset: STATE };
                let word = state.to_le_bytes();
                effects.write_inline(peer, NAME, Notify::Yes, &[&word], place, None);
            }
        }
        from.told = from.released;
    }
}
