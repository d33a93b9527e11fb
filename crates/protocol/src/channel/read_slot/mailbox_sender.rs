//! The sender of mailboxes that readers READ.

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
use super::{Boxes, ReadSlotForm, SIGNALS, WORD, bell_of, slot_bits};
use crate::wire::Violation;
use farside_base::{LocalSlice, Memory, RemoteSlice};

/// The name of every notice.
const NOTICE: Name = Name(0);

/// The sender half of the read slot channels except the indirect one.
///
/// *Cost*: a copy into the mailbox unless the message was built there, and no request except a notice per reader if
/// there are notices. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct ReadMailboxSender {
    form: ReadSlotForm,
    signal: Signal,
    slot_bits: u32,
    boxes: Boxes,
    /// The location of detached bells.
    bells: Bells,
    regions: OwnRegions,
    readers: Readers,
    /// The number of the next message.
    head: u64,
    /// The number of bytes lent for it.
    loan: Option<u32>,
    canary: ChannelCanary,
}

impl ReadMailboxSender {
    pub(super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReadSlotForm::of(kind);
        Self {
            form,
            signal: shape.signal,
            slot_bits: slot_bits(shape),
            boxes: Boxes::new(form.header(), shape),
            bells: Bells::of(shape),
            regions,
            readers: Readers::new(shape, 1, regions),
            head: 0,
            loan: None,
            canary: ChannelCanary::default(),
        }
    }

    #[cfg(canary)]
    pub(super) fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.canary = ChannelCanary::new(mutant);
        self.readers.set_canary(self.canary);
        self
    }

    #[inline]
    fn has_room(&self) -> bool {
        let extra = u64::from(self.canary.is(ChannelMutant::CreditOffByOne));
        self.head - self.readers.tail() < self.boxes.slots + extra
    }

    /// Copies the message into its mailbox, or checks that it was built there.
    fn place<M: Memory>(&self, payload: Payload<'_>, own: Own<'_, M>) -> Result<(), HalfRefusal> {
        let offset = self.boxes.message(self.head);
        match payload {
            Payload::Bytes(message) => own
                .buffer
                .write(offset, message)
                .map_err(|_| HalfRefusal::NoSuch("memory of the mailbox")),
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

    /// Sets the bell of the stored message.
    fn ring<M: Memory>(
        &self,
        bytes: u32,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        let bell = bell_of(self.head, bytes);
        let slot = self.boxes.slot(self.head);
        match self.form {
            ReadSlotForm::Detached => reach(self.bells.store(slot * WORD, bell, own)),
            ReadSlotForm::Inlined => {
                let (mailbox, message) =
                    (self.boxes.mailbox(self.head), self.boxes.message(self.head));
                let sum = reach(checksum(bell, own.buffer, message, bytes))?;
                reach(own.buffer.store_word(mailbox + WORD, sum))?;
                reach(own.buffer.store_word(mailbox, bell))
            }
            ReadSlotForm::Notify => {
                for (peer, to) in self.readers.living() {
                    match self.signal {
                        Signal::Message => {
                            let notice = (bytes << self.slot_bits) | slot as u32;
                            effects.send_inline(peer, NOTICE, Notify::No, &[], Some(notice));
                        }
                        Signal::Word => {
                            let word = bell.to_le_bytes();
                            let offset = SIGNALS + slot * WORD;
                            let at = RemoteSlice { region: to.bells, offset };
                            effects.write_inline(peer, NOTICE, Notify::No, &[&word], at, None);
                        }
                    }
                }
                Ok(())
            }
        }
    }
}

impl Half for ReadMailboxSender {
    fn connected<M: Memory>(
        &mut self,
        peer: Peer,
        regions: PeerRegions,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        if self.form == ReadSlotForm::Detached && self.readers.living().next().is_none() {
            // Readers may write outside their own words, and the last ones are gone.
            for slot in 0..self.boxes.slots {
                reach(self.bells.store(slot * WORD, 0, own))?;
            }
        }
        self.readers.connected(peer, regions, self.head, own, effects)
    }

    fn lost(&mut self, peer: Peer) {
        self.readers.lost(peer, self.head);
    }

    fn advance<M: Memory>(
        &mut self,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.readers.advance(self.head, own, effects)
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        if completed.name == ACKNOWLEDGEMENT {
            self.readers.fetched(completed.peer, self.head, own)?;
        }
        Ok(())
    }

    fn arrived<M: Memory>(
        &mut self,
        arrival: Arrival,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.readers.arrived(arrival.peer, self.head, arrival.immediate, effects)
    }

    fn accused(&self) -> Option<Peer> {
        Some(self.readers.accused())
    }
}

impl SendHalf for ReadMailboxSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        self.ready(payload, own, effects)?;
        let bytes = payload.bytes() as u32;
        let missing = |_| HalfRefusal::NoSuch("memory of the bell");
        if self.canary.is(ChannelMutant::BellBeforeData) {
            self.ring(bytes, own, effects).map_err(missing)?;
            self.place(payload, own)?;
        } else {
            self.place(payload, own)?;
            self.ring(bytes, own, effects).map_err(missing)?;
        }
        let lent = matches!(payload, Payload::Gather(_));
        let sending = Sending((self.head << 1) | u64::from(lent));
        self.head += 1;
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
        let bytes_max = self.boxes.message_bytes_max;
        if payload.bytes() > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        if !self.has_room() {
            // The next `advance` detects and reports the same violation.
            let _ = self.readers.look(self.head, own);
            if !self.has_room() {
                self.readers.fetch(effects);
                return Err(HalfRefusal::Full);
            }
        }
        Ok(())
    }

    fn flush<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) {}

    fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
        self.loan = None;
        if !self.has_room() {
            let _ = self.readers.look(self.head, own);
        }
        if !self.has_room() || bytes > self.boxes.message_bytes_max {
            return None;
        }
        self.loan = Some(bytes);
        let offset = self.boxes.message(self.head);
        Some(LocalSlice { region: self.regions.buffer, offset, bytes })
    }

    fn is_done(&self, sending: Sending) -> bool {
        let (number, lent) = (sending.0 >> 1, sending.0 & 1 == 1);
        number < self.head && (!lent || number < self.readers.tail())
    }

    fn is_drained(&self) -> bool {
        self.readers.tail() == self.head
    }
}
