//! Senders whose messages stay in their own memory until all their readers have READ them.

use super::acknowledge::ACKNOWLEDGEMENT;
use super::canary::{ChannelMutant, mutant};
use super::effects::{Effects, InlineWrite, Peer};
use super::half::{
    Accepted, Arrival, Checked, Completed, HalfRefusal, Own, OwnRegions, Payload, PeerRegions,
    Sending, Step,
};
use super::readers::{Bells, Readers};
use super::shape::Shape;
use farside_base::{LocalSlice, Memory, Planted};

/// The messages of a sender, and its readers.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Store {
    pub(super) regions: OwnRegions,
    /// The location of detached bells.
    pub(super) bells: Bells,
    pub(super) readers: Readers,
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
        Self {
            regions,
            bells: Bells::of(shape),
            readers: Readers::new(shape, unit, regions),
            shape: *shape,
            capacity,
            head: 0,
            loan: None,
            mutant: Planted::NONE,
        }
    }

    /// Whether a record fits besides what the slowest reader has not released.
    #[inline]
    fn has_room(&self, record: u64) -> bool {
        let extra = if mutant!(self, CreditOffByOne) { record } else { 0 };
        self.head + record - self.readers.tail() <= self.capacity + extra
    }

    /// The same, after a poll of the readers' words if necessary.
    #[inline]
    fn makes_room<M: Memory>(&mut self, record: u64, own: Own<'_, M>) -> bool {
        if !self.has_room(record) {
            // The next `advance` detects and reports the same violation.
            let _ = self.readers.look(self.head, own);
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
        store.readers.mutant = store.mutant;
        self
    }

    fn connected(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        step: &mut Step<'_, impl Memory>,
    ) -> Checked {
        let start = self.start(peer, step)?;
        self.store().readers.connected(peer, regions, start, step)
    }

    fn lost(&mut self, peer: Peer) {
        let store = self.store();
        store.readers.lost(peer, store.head);
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        let store = self.store();
        let result = store.readers.advance(store.head, step);
        self.acknowledged(step.effects);
        result
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        let store = self.store();
        if completed.name == ACKNOWLEDGEMENT {
            store.readers.fetched(completed.peer, store.head, step.own)?;
        } else {
            self.notified(completed);
        }
        self.acknowledged(step.effects);
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let store = self.store();
        store.readers.arrived(arrival.peer, store.head, arrival.immediate, step.effects)?;
        self.acknowledged(step.effects);
        Ok(())
    }

    fn accused(&self) -> Option<Peer> {
        Some(self.store_ref().readers.accused())
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
        store.readers.reachable()?;
        let bytes_max = store.shape.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        if store.makes_room(record, step.own) {
            return Ok(());
        }
        store.readers.fetch(step.effects);
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
        position < store.head && (!lent || position < store.readers.tail())
    }

    fn is_drained(&self) -> bool {
        let store = self.store_ref();
        store.readers.tail() == store.head
    }
}
