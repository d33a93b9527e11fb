//! The sender of messages into its own mailboxes.

use super::super::canary::mutant;
use super::super::effects::{Effects, Notify, Peer};
use super::super::half::{Accepted, HalfRefusal, OwnRegions, Payload, PeerRegions, Step};
use super::super::kind::Kind;
use super::super::outbound::{BELL, Frame, FrameWord, Outbound, PushSender};
use super::super::shape::Shape;
use super::{BELLS, CHOSEN, MailboxBell, WORD, bell, immediate};
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{Memory, OutOfBounds, RemoteSlice};

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
    step: u64,
    out: Outbound,
    /// The mailbox that is next in turn.
    next: u32,
    /// By mailbox: the number after that of its last message.
    used: Vec<u64>,
    /// The receiver knows that mailboxes are chosen.
    chooses: bool,
    unrung: VecDeque<Unrung>,
}

impl MailboxSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let how = MailboxBell::of(kind, shape);
        let rung = if how.rings() { shape.slots as usize } else { 0 };
        Self {
            how,
            step: how.step(shape),
            out: Outbound::new(shape, regions, shape.acknowledge, (1, WORD)),
            next: 0,
            used: alloc::vec![0; shape.slots as usize],
            chooses: false,
            unrung: VecDeque::with_capacity(rung),
        }
    }

    #[inline]
    fn is_free(&self, slot: u32) -> bool {
        let used = self.used.get(slot as usize);
        used.is_some_and(|used| *used <= self.out.progress.tail())
            || mutant!(self.out, SlotReusedEarly)
    }

    fn behind(&self, slot: u32) -> u32 {
        if slot as usize + 1 < self.used.len() { slot + 1 } else { 0 }
    }

    /// The next free mailbox in turn. Unless the sender chooses mailboxes, the first one checked is free, or none is.
    #[inline]
    fn free_slot(&self) -> Option<u32> {
        let full = self.out.head - self.out.progress.tail() >= self.used.len() as u64;
        if full && !mutant!(self.out, SlotReusedEarly) {
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

    /// The mailbox for the next message, its peer and its length, if there is room for it.
    #[inline]
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        find: impl Fn(&Self) -> Option<u32>,
        step: &mut Step<'_, M>,
    ) -> Accepted<(u32, (PeerRegions, u32))> {
        let checked = self.out.check(payload)?;
        let mut slot = find(self);
        if slot.is_none() {
            // The next `advance` detects and reports the same violation.
            let _ = self.out.look(step.own);
            slot = find(self);
        }
        let Some(slot) = slot else {
            return Err(self.out.full(&checked.0, step.effects));
        };
        if self.out.window.has_room() { Ok((slot, checked)) } else { Err(HalfRefusal::Full) }
    }

    /// Sends a message into a free mailbox.
    #[inline]
    fn take<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        (to, bytes): (PeerRegions, u32),
        step: &mut Step<'_, M>,
    ) -> Accepted {
        let unrung = Unrung { slot, number: self.out.head, bytes };
        let early = self.how.rings() && mutant!(self.out, BellBeforeData);
        if early {
            self.unrung.push_back(unrung);
            self.flush(step);
        }
        let emitted = self.emit(slot, payload, (to, bytes), step);
        emitted.map_err(|_| HalfRefusal::NoSuch("staging memory"))?;
        if self.how.rings() && !early {
            self.unrung.push_back(unrung);
        }
        self.out.head += 1;
        if let Some(used) = self.used.get_mut(slot as usize) {
            *used = self.out.head;
        }
        let no_write = bytes == 0 && self.how == MailboxBell::Detached;
        Ok(self.out.take(if no_write { Payload::Bytes(&[]) } else { payload }))
    }

    #[inline]
    fn emit<M: Memory>(
        &self,
        slot: u32,
        payload: Payload<'_>,
        (to, bytes): (PeerRegions, u32),
        step: &mut Step<'_, M>,
    ) -> Result<(), OutOfBounds> {
        let first = u64::from(slot) * self.step;
        let word = FrameWord::Word(bell(self.out.head, bytes));
        let (frame, offset) = match self.how {
            // The bell is the whole message.
            MailboxBell::Detached if bytes == 0 => return Ok(()),
            MailboxBell::Detached | MailboxBell::Immediate => (Frame::BARE, first),
            MailboxBell::Announced => (Frame { before: word, ..Frame::BARE }, first),
            MailboxBell::Inlined => super::at_end(bytes, word, first + self.step),
        };
        let immediate = immediate(self.out.head, slot);
        let immediate = Some(immediate).filter(|_| self.how == MailboxBell::Immediate);
        let to = RemoteSlice { region: to.buffer, offset };
        self.out.write(self.out.name(), frame, payload, (to, immediate), step)
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

impl PushSender for MailboxSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    fn lost(&mut self, _: Peer) {
        self.out.lost();
        self.unrung.clear();
    }

    #[inline]
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        let (slot, checked) = self.room(payload, Self::free_slot, step)?;
        let sending = self.take(slot, payload, checked, step)?;
        self.next = self.behind(slot);
        Ok(sending)
    }

    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        self.room(payload, Self::free_slot, step).map(|_| ())
    }

    fn send_to<M: Memory>(
        &mut self,
        slot: u32,
        payload: Payload<'_>,
        step: &mut Step<'_, M>,
    ) -> Accepted {
        self.out.check(payload)?;
        if slot as usize >= self.used.len() {
            return Err(HalfRefusal::NoSuch("slot"));
        }
        let (_, checked) =
            self.room(payload, |half| Some(slot).filter(|slot| half.is_free(*slot)), step)?;
        if !self.chooses && matches!(self.how, MailboxBell::Detached | MailboxBell::Inlined) {
            self.out.write_word(&checked.0, CHOSEN, 1, step.effects);
        }
        self.chooses = true;
        self.take(slot, payload, checked, step)
    }

    #[inline]
    fn flush<M: Memory>(&mut self, step: &mut Step<'_, M>) {
        let Some(to) = self.out.peer.filter(|_| !self.unrung.is_empty()) else {
            return;
        };
        if self.how == MailboxBell::Detached {
            self.ring(to, step.effects);
            return;
        }
        while let Some(one) = self.unrung.pop_front() {
            let immediate = Some(immediate(one.number, one.slot));
            step.effects.send_inline(Peer::ONLY, BELL, Notify::No, &[], immediate);
        }
    }
}
