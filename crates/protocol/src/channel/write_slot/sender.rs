//! The sender of messages into its own mailboxes.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name, Notify};
use super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending, own as reach,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::super::window::Window;
use super::{BELLS, CHOSEN, MailboxBell, PROGRESS, WORD, WORDS, ZEROES, bell, immediate, padding};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// Names of requests besides acknowledgements: the window index of a message, or this.
const BELL: Name = Name(1 << 16);

/// The maximum number of bells in one WRITE, so that it stays small.
const BELLS_MAX: usize = 8;

/// A message that is written and not announced.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Unrung {
    slot: u32,
    number: u64,
    bytes: u32,
}

/// The sender half of `write-slot-detached`, `-inlined` and `-immediate`.
///
/// *Cost*: one WRITE per message. With a detached bell also one per eight messages of a batch, or, with signals by
/// message, a SEND for each. One more before the first message into a mailbox of the caller's choice. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct MailboxSender {
    how: MailboxBell,
    message_bytes_max: u32,
    step: u64,
    regions: OwnRegions,
    peer: Option<PeerRegions>,
    lost: bool,
    /// The number of the next message.
    head: u64,
    /// The mailbox that is next in turn.
    next: u32,
    /// By mailbox: the number after that of its last message.
    used: Vec<u64>,
    /// The receiver knows that mailboxes are chosen.
    chooses: bool,
    unrung: VecDeque<Unrung>,
    progress: Progress,
    window: Window,
    canary: ChannelCanary,
}

impl MailboxSender {
    /// Creates a sender without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let how = MailboxBell::of(kind, shape);
        let rung = if matches!(how, MailboxBell::Detached | MailboxBell::Announced) {
            shape.slots
        } else {
            0
        };
        Self {
            how,
            message_bytes_max: shape.message_bytes_max,
            step: how.step(shape),
            regions,
            peer: None,
            lost: false,
            head: 0,
            next: 0,
            used: alloc::vec![0; shape.slots as usize],
            chooses: false,
            unrung: VecDeque::with_capacity(rung as usize),
            progress: Progress::new(shape.acknowledge, Peer::ONLY, 1, PROGRESS),
            window: Window::default(),
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self
    }

    #[inline]
    fn is_free(&self, slot: u32) -> bool {
        let used = self.used.get(slot as usize);
        used.is_some_and(|used| *used <= self.progress.tail())
            || self.canary.is(ChannelMutant::SlotReusedEarly)
    }

    fn behind(&self, slot: u32) -> u32 {
        if slot as usize + 1 < self.used.len() { slot + 1 } else { 0 }
    }

    /// The next free mailbox in turn. Unless the sender chooses mailboxes, the first one checked is free, or none is.
    #[inline]
    fn free_slot(&self) -> Option<u32> {
        let all = self.used.len() as u64;
        if self.head - self.progress.tail() >= all
            && !self.canary.is(ChannelMutant::SlotReusedEarly)
        {
            return None;
        }
        let mut slot = self.next;
        while !self.is_free(slot) {
            slot = self.behind(slot);
            if slot == self.next {
                return None;
            }
        }
        Some(slot)
    }

    /// The peer for a message, and its length.
    fn check(&self, payload: Payload<'_>) -> Result<(PeerRegions, u32), HalfRefusal> {
        let Some(to) = self.peer else {
            return Err(HalfRefusal::NotConnected);
        };
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        match u32::try_from(payload.bytes()) {
            Ok(bytes) if bytes <= self.message_bytes_max => Ok((to, bytes)),
            _ => Err(HalfRefusal::TooLong { bytes_max: self.message_bytes_max }),
        }
    }

    fn full(&mut self, to: PeerRegions, effects: &mut Effects) -> HalfRefusal {
        self.progress.fetch(&to, &self.regions, effects);
        HalfRefusal::Full
    }

    /// The mailbox for the next message, its peer and its length, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(u32, (PeerRegions, u32)), HalfRefusal> {
        let checked = self.check(payload)?;
        let mut slot = self.free_slot();
        if slot.is_none() {
            // The next `advance` detects and reports the same violation.
            let _ = self.progress.look(self.head, own);
            slot = self.free_slot();
        }
        let Some(slot) = slot else {
            return Err(self.full(checked.0, effects));
        };
        if !self.window.has_room() {
            return Err(HalfRefusal::Full);
        }
        Ok((slot, checked))
    }

    /// Sends a message into a free mailbox.
    #[inline]
    fn take<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        (to, bytes): (PeerRegions, u32),
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let number = self.head;
        let rings = matches!(self.how, MailboxBell::Detached | MailboxBell::Announced);
        if rings && self.canary.is(ChannelMutant::BellBeforeData) {
            self.unrung.push_back(Unrung { slot, number, bytes });
            self.flush(own, effects);
        }
        if self.emit(slot, payload, bytes, to, own, effects).is_err() {
            return Err(HalfRefusal::NoSuch("staging memory"));
        }
        if rings && !self.canary.is(ChannelMutant::BellBeforeData) {
            self.unrung.push_back(Unrung { slot, number, bytes });
        }
        self.head += 1;
        if let Some(used) = self.used.get_mut(slot as usize) {
            *used = self.head;
        }
        Ok(match payload {
            Payload::Gather(_) if bytes > 0 || self.how != MailboxBell::Detached => {
                self.window.take()
            }
            Payload::Gather(_) | Payload::Bytes(_) => self.window.take_done(),
        })
    }

    /// A slice of the staging words.
    const fn staged(&self, offset: u64, bytes: u64) -> LocalSlice {
        LocalSlice { region: self.regions.bells, offset, bytes: bytes as u32 }
    }

    /// Stores a message's bell in its staging slot.
    fn stage<M: Memory>(&self, word: u64, own: Own<'_, M>) -> Result<[LocalSlice; 1], Violation> {
        let at = WORDS + WORD * u64::from(self.window.next_place());
        reach(own.bells.store_word(at, word))?;
        Ok([self.staged(at, WORD)])
    }

    #[inline]
    fn emit<M: Memory>(
        &self,
        slot: u32,
        payload: Payload<'_>,
        bytes: u32,
        to: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let (name, peer) = (Name(self.window.next_place()), Peer::ONLY);
        let first = u64::from(slot) * self.step;
        let at = |offset| RemoteSlice { region: to.buffer, offset };
        let word = bell(self.head, bytes);
        let inline = word.to_le_bytes();
        let padding = padding(bytes);
        let whole = u64::from(bytes) + u64::from(padding) + WORD;
        // At the end of the slot, if the slot has a bell at its end.
        let with_bell = |step: u64| at(first + step - whole);
        match (self.how, payload) {
            // The bell is the whole message.
            (MailboxBell::Detached, _) if bytes == 0 => {}
            (MailboxBell::Detached, Payload::Bytes(message)) => {
                effects.write_inline(peer, name, Notify::No, &[message], at(first), None);
            }
            (MailboxBell::Detached, Payload::Gather(message)) => {
                effects.write_gather(peer, name, Notify::Yes, &[message], at(first), None);
            }
            (MailboxBell::Announced, Payload::Bytes(message)) => {
                effects.write_inline(peer, name, Notify::No, &[&inline, message], at(first), None);
            }
            (MailboxBell::Announced, Payload::Gather(message)) => {
                let word = self.stage(word, own)?;
                effects.write_gather(peer, name, Notify::Yes, &[&word, message], at(first), None);
            }
            (MailboxBell::Inlined, Payload::Bytes(message)) => {
                let zeroes = [0; WORD as usize];
                let parts = [zeroes.get(..padding as usize).unwrap_or_default(), message, &inline];
                effects.write_inline(peer, name, Notify::No, &parts, with_bell(self.step), None);
            }
            (MailboxBell::Inlined, Payload::Gather(message)) => {
                let zeroes = [self.staged(ZEROES, u64::from(padding))];
                let word = self.stage(word, own)?;
                let parts = [&zeroes[..], message, &word];
                effects.write_gather(peer, name, Notify::Yes, &parts, with_bell(self.step), None);
            }
            (MailboxBell::Immediate, Payload::Bytes(message)) => {
                let immediate = Some(immediate(self.head, slot));
                effects.write_inline(peer, name, Notify::No, &[message], at(first), immediate);
            }
            (MailboxBell::Immediate, Payload::Gather(message)) => {
                let immediate = Some(immediate(self.head, slot));
                effects.write_gather(peer, name, Notify::Yes, &[message], at(first), immediate);
            }
        }
        Ok(())
    }

    /// WRITEs detached bells, adjacent ones in one WRITE.
    fn ring(&mut self, to: PeerRegions, effects: &mut Effects) {
        while let Some(first) = self.unrung.pop_front() {
            let mut words = [[0; WORD as usize]; BELLS_MAX];
            let mut next = Some(first);
            let mut count = 0;
            for word in &mut words {
                let Some(one) = next else { break };
                *word = bell(one.number, one.bytes).to_le_bytes();
                count += 1;
                let neighbour = |next: &&Unrung| next.slot == one.slot + 1;
                let joins = count < BELLS_MAX && self.unrung.front().filter(neighbour).is_some();
                next = if joins { self.unrung.pop_front() } else { None };
            }
            let offset = BELLS + WORD * u64::from(first.slot);
            let place = RemoteSlice { region: to.bells, offset };
            let bytes = words.as_flattened().get(..count * WORD as usize).unwrap_or_default();
            effects.write_inline(Peer::ONLY, BELL, Notify::No, &[bytes], place, None);
        }
    }
}

impl Half for MailboxSender {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        regions: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.peer = Some(regions);
        self.progress.connected(&self.regions, effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.lost = true;
        self.window.clear();
        self.unrung.clear();
    }

    fn advance<M: Memory>(&mut self, own: Own<'_, M>, _: &mut Effects) -> Result<(), Violation> {
        self.progress.look(self.head, own)
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        match completed.name {
            ACKNOWLEDGEMENT => self.progress.fetched(self.head, own),
            BELL => Ok(()),
            Name(place) => {
                self.window.done(place);
                Ok(())
            }
        }
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.progress.arrived(self.head, arrival.immediate, &self.regions, effects)
    }
}

impl SendHalf for MailboxSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let (slot, checked) = self.room(payload, own, effects)?;
        let sending = self.take(slot, payload, checked, own, effects)?;
        self.next = self.behind(slot);
        Ok(sending)
    }

    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.room(payload, own, effects).map(|_| ())
    }

    fn send_to<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        let checked = self.check(payload)?;
        if slot as usize >= self.used.len() {
            return Err(HalfRefusal::NoSuch("slot"));
        }
        if !self.is_free(slot) {
            let _ = self.progress.look(self.head, own);
        }
        if !self.is_free(slot) {
            return Err(self.full(checked.0, effects));
        }
        if !self.window.has_room() {
            return Err(HalfRefusal::Full);
        }
        if !self.chooses && matches!(self.how, MailboxBell::Detached | MailboxBell::Inlined) {
            let place = RemoteSlice { region: checked.0.bells, offset: CHOSEN };
            let one = 1_u64.to_le_bytes();
            effects.write_inline(Peer::ONLY, BELL, Notify::No, &[&one], place, None);
        }
        self.chooses = true;
        self.take(slot, payload, checked, own, effects)
    }

    #[inline]
    fn flush<M: Memory>(&mut self, _: Own<'_, M>, effects: &mut Effects) {
        let Some(to) = self.peer.filter(|_| !self.unrung.is_empty()) else {
            return;
        };
        if self.how == MailboxBell::Detached {
            self.ring(to, effects);
            return;
        }
        while let Some(one) = self.unrung.pop_front() {
            let immediate = Some(immediate(one.number, one.slot));
            effects.send_inline(Peer::ONLY, BELL, Notify::No, &[], immediate);
        }
    }

    fn ask_progress(&mut self, effects: &mut Effects) {
        let asks = !self.lost && !self.canary.is(ChannelMutant::TailNotAsked);
        if let Some(to) = self.peer.filter(|_| asks) {
            self.progress.fetch(&to, &self.regions, effects);
        }
    }

    fn is_done(&self, sending: Sending) -> bool {
        self.window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        self.window.is_empty() && self.progress.tail() == self.head
    }
}
