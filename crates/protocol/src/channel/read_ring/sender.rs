//! The sender of a read ring.

use super::super::acknowledge::ACKNOWLEDGEMENT;
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::checksum::checksum;
use super::super::effects::{Effects, Name, Notify};
use super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending, own as reach,
};
use super::super::kind::Kind;
use super::super::readers::{Bells, Readers};
use super::super::shape::{Shape, Signal};
use super::{ReadRingForm, ReadRingOffsets, SIGNALS, WORD, notices_max, sequence};
use crate::wire::Violation;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// A notice that its reader is not known to have processed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Notice {
    /// Its number among all notices to this reader.
    number: u64,
    head: u64,
    /// It has consumed its receive, or needs none.
    arrived: bool,
}

/// The notices to one reader.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct Notices {
    /// The announced head.
    told: u64,
    /// The number of notices.
    count: u64,
    /// Notices not acknowledged, or not arrived: if they may overtake each other, one can be late when everything
    /// that it announces has been processed.
    open: VecDeque<Notice>,
}

/// The sender half of a read ring channel.
///
/// *Cost*: a copy into the ring unless the message was built there, and no request except a notice per reader and
/// batch if there are notices. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadRingSender {
    form: ReadRingForm,
    signal: Signal,
    place: ReadRingOffsets,
    message_bytes_max: u32,
    /// The location of the detached head.
    bell: Bells,
    regions: OwnRegions,
    readers: Readers,
    /// The position of the next message.
    head: u64,
    /// The head at the end of the last batch (detached, notify).
    flushed: u64,
    /// The number of bytes lent for the next message.
    loan: Option<u32>,
    /// By reader.
    notices: Vec<Notices>,
    notices_max: u32,
    canary: ChannelCanary,
}

impl ReadRingSender {
    /// Creates a sender without peers.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadRingForm::of(kind, shape);
        let readers = if form == ReadRingForm::Notify { shape.peers_max } else { 0 };
        let notices_max = notices_max(shape);
        let mut notices = Vec::new();
        notices.resize_with(usize::from(readers), || Notices {
            open: VecDeque::with_capacity(notices_max as usize),
            ..Notices::default()
        });
        Self {
            form,
            signal: shape.signal,
            place: ReadRingOffsets::new(form, shape),
            message_bytes_max: shape.message_bytes_max,
            bell: Bells::of(shape),
            regions,
            readers: Readers::new(shape, WORD, regions),
            head: 0,
            flushed: 0,
            loan: None,
            notices,
            notices_max,
            canary: ChannelCanary::default(),
        }
    }

    /// Enables a planted defect.
    #[cfg(canary)]
    pub fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self.readers.set_canary(self.canary);
        self
    }

    /// Whether a record fits besides what the slowest reader has not released.
    #[inline]
    fn has_room(&self, record: u64) -> bool {
        let extra = if self.canary.is(ChannelMutant::CreditOffByOne) { record } else { 0 };
        self.head + record + self.form.beside() - self.readers.tail()
            <= self.place.ring_bytes + extra
    }

    /// The start of new readers: the announced head.
    const fn announced(&self) -> u64 {
        match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify => self.flushed,
            ReadRingForm::Inlined | ReadRingForm::Prefetched => self.head,
        }
    }

    /// Copies the message into the ring, or checks that it was built there.
    fn put<M: Memory>(&self, payload: Payload<'_>, own: Own<'_, M>) -> Result<(), HalfRefusal> {
        let offset = self.place.offset(self.head) + self.form.header();
        match payload {
            Payload::Bytes(message) => own
                .buffer
                .write(offset, message)
                .map_err(|_| HalfRefusal::NoSuch("memory of the ring")),
            Payload::Gather([slice])
                if slice.region == self.regions.buffer
                    && slice.offset == offset
                    && self.loan.is_some_and(|lent| slice.bytes <= lent) =>
            {
                Ok(())
            }
            Payload::Gather(_) => Err(HalfRefusal::Form("bytes, or the slice that it has lent")),
        }
    }

    /// Stores the bells that complete the message (001 figure 3).
    fn ring<M: Memory>(&self, bytes: u32, own: Own<'_, M>) -> Result<(), Violation> {
        let at = self.place.offset(self.head);
        let next = self.place.offset(self.head + self.form.record(bytes));
        let unset = !self.canary.is(ChannelMutant::NextBellNotUnset);
        match self.form {
            ReadRingForm::Detached | ReadRingForm::Notify => {
                reach(own.buffer.store_word(at, u64::from(bytes) + 1))
            }
            ReadRingForm::Inlined => {
                if unset {
                    reach(own.buffer.store_word(next, 0))?;
                }
                reach(own.buffer.store_word(at, u64::from(bytes) + 1))
            }
            ReadRingForm::Prefetched => {
                let bell = (sequence(self.head) << 24) | u64::from(bytes);
                let message = at + self.form.header();
                let sum = reach(checksum(bell, own.buffer, message, bytes))?;
                reach(own.buffer.store_word(at + WORD, sum))?;
                if unset {
                    reach(own.buffer.store_word(next, 0))?;
                }
                reach(own.buffer.store_word(at, bell))
            }
        }
    }

    /// Announces the head to every reader that does not know it, as far as they have receives or words; returns
    /// whether one has none left.
    fn notify(&mut self, effects: &mut Effects) -> bool {
        let head = self.flushed;
        let mut waits = false;
        for (peer, to) in self.readers.living() {
            let Some(notices) = self.notices.get_mut(usize::from(peer.0)) else { break };
            let tail = self.readers.tail_of(peer).unwrap_or(0);
            let over = |notice: &Notice| notice.arrived && notice.head <= tail;
            while notices.open.front().is_some_and(over) {
                notices.open.pop_front();
            }
            if notices.told >= head {
                continue;
            }
            if notices.open.len() >= self.notices_max as usize {
                waits = true;
                continue;
            }
            let number = notices.count;
            let slot = number % u64::from(self.notices_max);
            let name = Name(slot as u32);
            match self.signal {
                Signal::Message => {
                    let notice = (head / WORD) as u32;
                    effects.send_inline(peer, name, Notify::Yes, &[], Some(notice));
                }
                Signal::Word => {
                    let word = head.to_le_bytes();
                    let at = RemoteSlice { region: to.bells, offset: SIGNALS + slot * WORD };
                    effects.write_inline(peer, name, Notify::No, &[&word], at, None);
                }
            }
            notices.told = head;
            notices.count += 1;
            // Words are read in order of their offsets: a reader that acknowledges one has read it.
            let arrived =
                self.signal == Signal::Word || self.canary.is(ChannelMutant::LateNoticeForgotten);
            notices.open.push_back(Notice { number, head, arrived });
        }
        waits
    }
}

impl Half for ReadRingSender {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let start = self.announced();
        if let Some(notices) = self.notices.get_mut(usize::from(peer.0)) {
            (notices.told, notices.count) = (start, 0);
            notices.open.clear();
        }
        self.readers.connected(peer, regions, start, own, effects)
    }

    fn lost(&mut self, peer: Peer) {
        self.readers.lost(peer, self.head);
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let result = self.readers.advance(self.head, own, effects);
        self.notify(effects);
        result
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if completed.name == ACKNOWLEDGEMENT {
            self.readers.fetched(completed.peer, self.head, own)?;
        } else if let Some(notices) = self.notices.get_mut(usize::from(completed.peer.0)) {
            // Few enough are open to be distinguished by their numbers.
            let all = u64::from(self.notices_max);
            let mine = |notice: &&mut Notice| notice.number % all == u64::from(completed.name.0);
            if let Some(notice) = notices.open.iter_mut().find(mine) {
                notice.arrived = true;
            }
        }
        self.notify(effects);
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.readers.arrived(arrival.peer, self.head, arrival.immediate, effects)?;
        self.notify(effects);
        Ok(())
    }

    fn accused(&self) -> Option<Peer> {
        Some(self.readers.accused())
    }
}

impl SendHalf for ReadRingSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        self.ready(payload, own, effects)?;
        let bytes = payload.bytes() as u32;
        let record = self.form.record(bytes);
        let missing = |_| HalfRefusal::NoSuch("memory of the bell");
        if self.canary.is(ChannelMutant::BellBeforeData) {
            self.head += record;
            self.flush(own, effects);
            self.head -= record;
            self.ring(bytes, own).map_err(missing)?;
            self.put(payload, own)?;
        } else {
            self.put(payload, own)?;
            self.ring(bytes, own).map_err(missing)?;
        }
        let lent = matches!(payload, Payload::Gather(_));
        let sending = Sending(self.head | u64::from(lent));
        self.head += record;
        self.loan = None;
        Ok(sending)
    }

    #[inline]
    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.readers.reachable()?;
        let bytes_max = self.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        let record = self.form.record(payload.bytes() as u32);
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.readers.look(self.head, own);
            if !self.has_room(record) {
                self.readers.fetch(effects);
                return Err(HalfRefusal::Full);
            }
        }
        Ok(())
    }

    fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
        if self.flushed == self.head {
            return;
        }
        self.flushed = self.head;
        match self.form {
            ReadRingForm::Detached => {
                let stored = self.bell.store(0, self.head, own);
                debug_assert!(stored.is_ok(), "the plan has this word");
            }
            ReadRingForm::Notify => {
                if self.notify(effects) {
                    // The next `advance` detects and reports the same violation.
                    let _ = self.readers.look(self.head, own);
                    self.notify(effects);
                }
            }
            ReadRingForm::Inlined | ReadRingForm::Prefetched => {}
        }
    }

    fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        self.loan = None;
        let record = self.form.record(bytes.min(self.message_bytes_max));
        if !self.has_room(record) {
            let _ = self.readers.look(self.head, own);
        }
        if !self.has_room(record) || bytes > self.message_bytes_max {
            return None;
        }
        self.loan = Some(bytes);
        let offset = self.place.offset(self.head) + self.form.header();
        Some(LocalSlice { region: self.regions.buffer, offset, bytes })
    }

    fn is_done(&self, sending: Sending) -> bool {
        let (position, lent) = (sending.0 & !1, sending.0 & 1 == 1);
        position < self.head && (!lent || position < self.readers.tail())
    }

    fn is_drained(&self) -> bool {
        self.readers.tail() == self.head
    }
}
