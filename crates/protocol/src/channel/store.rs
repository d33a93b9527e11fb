//! Senders whose messages stay in their own memory until all their readers have READ them.

use super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::canary::{ChannelMutant, mutant};
use super::effects::{Effects, InlineWrite, Peer};
use super::half::{
    Accepted, Arrival, Checked, Completed, HalfRefusal, Own, OwnRegions, Payload, PeerRegions,
    Sending, Step, own as reach,
};
use super::readers::{Bells, STEP};
use super::shape::{Acknowledge, Shape};
use crate::wire::Violation;
use alloc::vec::Vec;
use farside_base::{LocalSlice, Memory, Planted};

/// One reader, as its sender knows it.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct ReaderState {
    regions: PeerRegions,
    progress: Progress,
}

/// The messages of a sender, and its readers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Store {
    pub(super) regions: OwnRegions,
    /// The location of detached bells.
    pub(super) bells: Bells,
    readers: Vec<Option<ReaderState>>,
    /// A reader was connected before.
    ever: bool,
    /// Receives for acknowledgements have been posted for readers with smaller numbers.
    receives_of: u16,
    /// Words of lost readers are still set.
    stale: bool,
    /// The position up to which all readers are known to have processed: the tail of the slowest living one.
    tail: u64,
    /// The head at the last poll: an idle sender asks for the last acknowledgements.
    rested: u64,
    accused: Peer,
    /// The number of bytes or messages per step of an acknowledgement by message.
    unit: u64,
    pub(super) shape: Shape,
    /// The positions that messages may take at a time: mailboxes, or bytes of a ring.
    capacity: u64,
    /// The position of the next message.
    pub(super) head: u64,
    /// The number of bytes lent for it.
    loan: Option<u32>,
    pub(super) mutant: Planted<ChannelMutant>,
}

impl Store {
    pub(super) fn new(shape: &Shape, regions: OwnRegions, (unit, capacity): (u64, u64)) -> Self {
        let mut readers = Vec::new();
        readers.resize_with(usize::from(shape.peers_max), || None);
        Self {
            regions,
            bells: Bells::of(shape),
            readers,
            ever: false,
            receives_of: 0,
            stale: false,
            tail: 0,
            rested: 0,
            accused: Peer::ONLY,
            unit,
            shape: *shape,
            capacity,
            head: 0,
            loan: None,
            mutant: Planted::NONE,
        }
    }

    /// Connects a reader, which begins at `head`.
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        head: u64,
        step: &mut Step<'_, M>,
    ) -> Checked {
        let own = step.own;
        self.settle(own)?;
        let Some(reader) = self.readers.get_mut(usize::from(peer.0)) else {
            return Err(Violation("a reader number out of range"));
        };
        let word = u64::from(peer.0) * STEP;
        let progress =
            Progress::new(self.shape.acknowledge, peer, self.unit, word + 8).starting_at(head);
        // All readers share the receives: those of an earlier reader with this number are still posted.
        if peer.0 >= self.receives_of {
            progress.connected(&self.regions, step.effects);
            self.receives_of = peer.0 + 1;
        }
        *reader = Some(ReaderState { regions, progress });
        self.ever = true;
        let start = if mutant!(self, WrongStart) { 0 } else { head };
        reach(own.bells.store_word(word + 8, head))?;
        reach(own.bells.store_word(word, start + 1))?;
        self.measure();
        Ok(())
    }

    fn lost(&mut self, peer: Peer) {
        if let Some(reader) = self.readers.get_mut(usize::from(peer.0)) {
            self.stale |= reader.take().is_some();
            self.measure();
        }
    }

    /// Clears the words of lost readers.
    fn settle<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        if !core::mem::take(&mut self.stale) {
            return Ok(());
        }
        for (at, reader) in self.readers.iter().enumerate() {
            if reader.is_none() {
                reach(own.bells.store_word(at as u64 * STEP, 0))?;
            }
        }
        Ok(())
    }

    fn measure(&mut self) {
        let tails = self.readers.iter().flatten().map(|reader| reader.progress.tail());
        let tail = if mutant!(self, StaleTail) { tails.max() } else { tails.min() };
        self.tail = tail.unwrap_or(self.head);
    }

    /// Whether there is a reader to send to.
    #[inline]
    fn reachable(&self) -> Accepted<()> {
        if self.readers.iter().any(Option::is_some) {
            return Ok(());
        }
        Err(if self.ever { HalfRefusal::Lost } else { HalfRefusal::NotConnected })
    }

    /// Every living reader.
    pub(super) fn living(&self) -> impl Iterator<Item = (Peer, &PeerRegions)> {
        let numbers = (0_u16..).map(Peer);
        let readers = numbers.zip(&self.readers);
        readers.filter_map(|(peer, reader)| Some((peer, &reader.as_ref()?.regions)))
    }

    /// The position up to which one reader is known to have processed.
    pub(super) fn tail_of(&self, peer: Peer) -> Option<u64> {
        Some(self.readers.get(usize::from(peer.0))?.as_ref()?.progress.tail())
    }

    /// Polls the words that readers have written. An invalid one does not affect other readers.
    pub(super) fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        self.settle(own)?;
        let mut result = Ok(());
        for (peer, reader) in (0_u16..).map(Peer).zip(&mut self.readers) {
            let Some(reader) = reader else { continue };
            if let Err(violation) = reader.progress.look(self.head, own) {
                self.accused = peer;
                result = Err(violation);
            }
        }
        self.measure();
        result
    }

    /// READs the tails of the slowest readers, if acknowledgements work that way, because there is no room.
    fn fetch(&mut self, effects: &mut Effects) {
        let tail = self.tail;
        for reader in self.readers.iter_mut().flatten() {
            if reader.progress.tail() == tail {
                reader.progress.fetch(&reader.regions, &self.regions, effects);
            }
        }
    }

    /// Polls for a sender that may be idle, and then asks for outstanding acknowledgements.
    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let result = self.look(step.own);
        if core::mem::replace(&mut self.rested, self.head) == self.head && self.tail < self.head {
            self.fetch(step.effects);
        }
        result
    }

    /// Handles the completed READ of a tail.
    fn fetched<M: Memory>(&mut self, peer: Peer, own: Own<'_, M>) -> Checked {
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.fetched(self.head, own)?;
            self.measure();
        }
        Ok(())
    }

    /// Handles an acknowledgement by message.
    fn arrived(&mut self, arrival: Arrival, effects: &mut Effects) -> Checked {
        let Arrival { peer, immediate, .. } = arrival;
        if let Some(Some(reader)) = self.readers.get_mut(usize::from(peer.0)) {
            reader.progress.arrived(self.head, immediate, &self.regions, effects)?;
            self.measure();
        } else if self.shape.acknowledge == Acknowledge::Message {
            // The last message of a reader that is gone: its receive serves the remaining readers.
            let word = u64::from(peer.0) * STEP + 8;
            Progress::new(Acknowledge::Message, peer, self.unit, word).post(&self.regions, effects);
        }
        Ok(())
    }

    /// Whether a record fits besides what the slowest reader has not released.
    #[inline]
    fn has_room(&self, record: u64) -> bool {
        let extra = if mutant!(self, CreditOffByOne) { record } else { 0 };
        self.head + record - self.tail <= self.capacity + extra
    }

    /// The same, after a poll of the readers' words if necessary.
    #[inline]
    fn makes_room<M: Memory>(&mut self, record: u64, own: Own<'_, M>) -> bool {
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.look(own);
        }
        self.has_room(record)
    }

    /// Copies the next message to its offset, or checks that it was built there.
    fn put<M: Memory>(&self, offset: u64, payload: Payload<'_>, own: Own<'_, M>) -> Accepted<()> {
        match payload {
            Payload::Bytes(message) => own
                .buffer
                .write(offset, message)
                .map_err(|_| HalfRefusal::NoSuch("memory of the message")),
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
}

/// A sender whose readers READ its memory.
pub(super) trait PullSender: Sized {
    /// The common part.
    fn store(&mut self) -> &mut Store;
    fn store_ref(&self) -> &Store;

    /// The positions that a message of `bytes` takes.
    fn record(&self, bytes: u32) -> u64;

    /// The offset of the next message.
    fn offset(&self) -> u64;

    /// Sets the bell of the next message, which is stored, or sends its notices.
    fn ring<M: Memory>(&self, bytes: u32, step: &mut Step<'_, M>) -> Checked;

    /// The position at which a new reader begins; it is about to be connected.
    fn start<M: Memory>(&mut self, _: Peer, _: &mut Step<'_, M>) -> Checked<u64> {
        Ok(self.store().head)
    }

    /// Continues after readers' acknowledgements.
    fn acknowledged(&mut self, _: &mut Effects) {}

    /// Handles the completion of a notice.
    fn notified(&mut self, _: Completed) {}

    fn flush<M: Memory>(&mut self, _: &mut Step<'_, M>) {}

    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        let store = self.store();
        store.mutant = Planted::new(mutant);
        self
    }

    fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        let start = self.start(peer, step)?;
        self.store().connected(peer, regions, start, step)
    }

    fn lost(&mut self, peer: Peer) {
        self.store().lost(peer);
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let result = self.store().advance(step);
        self.acknowledged(step.effects);
        result
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        if completed.name == ACKNOWLEDGEMENT {
            self.store().fetched(completed.peer, step.own)?;
        } else {
            self.notified(completed);
        }
        self.acknowledged(step.effects);
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        self.store().arrived(arrival, step.effects)?;
        self.acknowledged(step.effects);
        Ok(())
    }

    fn accused(&self) -> Option<Peer> {
        Some(self.store_ref().accused)
    }

    #[inline]
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        self.ready(payload, step)?;
        let (bytes, offset) = (payload.bytes() as u32, self.offset());
        let record = self.record(bytes);
        let missing = |_| HalfRefusal::NoSuch("memory of the bell");
        let early = mutant!(self.store(), BellBeforeData);
        if early {
            self.store().head += record;
            self.flush(step);
            self.store().head -= record;
            self.ring(bytes, step).map_err(missing)?;
        }
        self.store().put(offset, payload, step.own)?;
        if !early {
            self.ring(bytes, step).map_err(missing)?;
        }
        let store = self.store();
        let lent = matches!(payload, Payload::Gather(_));
        let sending = Sending((store.head << 1) | u64::from(lent));
        store.head += record;
        store.loan = None;
        Ok(sending)
    }

    #[inline]
    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        let record = self.record(payload.bytes() as u32);
        let store = self.store();
        store.reachable()?;
        let bytes_max = store.shape.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        if store.makes_room(record, step.own) {
            return Ok(());
        }
        store.fetch(step.effects);
        Err(HalfRefusal::Full)
    }

    fn send_to<M: Memory>(&mut self, _: u32, _: Payload<'_>, _: &mut Step<'_, M>) -> Accepted {
        Err(HalfRefusal::NoSuch("slot to choose"))
    }

    fn send_at_once<M: Memory>(
        &mut self,
        _: &[u8],
        _: Own<'_, M>,
        _: &mut InlineWrite,
    ) -> Option<Sending> {
        None
    }

    fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        let bytes_max = self.store().shape.message_bytes_max;
        let (record, offset) = (self.record(bytes.min(bytes_max)), self.offset());
        let store = self.store();
        let fits = store.makes_room(record, own) && bytes <= bytes_max;
        store.loan = Some(bytes).filter(|_| fits);
        store.loan.map(|bytes| LocalSlice { region: store.regions.buffer, offset, bytes })
    }

    fn ask_progress(&mut self, _: &mut Effects) {}

    fn is_done(&self, sending: Sending) -> bool {
        let (store, position) = (self.store_ref(), sending.0 >> 1);
        let lent = sending.0 & 1 == 1;
        position < store.head && (!lent || position < store.tail)
    }

    fn is_drained(&self) -> bool {
        let store = self.store_ref();
        store.tail == store.head
    }
}
