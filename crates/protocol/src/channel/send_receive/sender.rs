//! The sender of messages into posted receives.

use super::super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::super::canary::{ChannelCanary, ChannelMutant};
use super::super::effects::{Effects, Name, Notify};
use super::super::half::{
    Arrival, Completed, Half, HalfRefusal, Own, OwnRegions, Payload, Peer, PeerRegions, SendHalf,
    Sending,
};
use super::super::kind::Kind;
use super::super::shape::Shape;
use super::super::window::Window;
use super::{Form, INTEGER, PROGRESS};
use crate::wire::Violation;
use farside_base::Memory;

/// The sender half of a send/receive channel.
///
/// *Cost*: one SEND per message. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TwoSidedSender {
    form: Form,
    message_bytes_max: u32,
    credits: u32,
    regions: OwnRegions,
    connected: bool,
    lost: bool,
    /// The number of messages sent.
    head: u64,
    progress: Progress,
    window: Window,
    canary: ChannelCanary,
}

impl TwoSidedSender {
    /// Creates a sender without a peer.
    pub fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = Form::of(kind);
        Self {
            form,
            message_bytes_max: shape.message_bytes_max,
            credits: form.credits(shape),
            regions,
            connected: false,
            lost: false,
            head: 0,
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

    /// Whether a receive is known to be posted for one more message.
    #[inline]
    fn has_credit(&self) -> bool {
        let extra = u64::from(self.canary.is(ChannelMutant::CreditOffByOne));
        self.head - self.progress.tail() < u64::from(self.credits) + extra
    }

    /// Why the payload is refused, independent of room.
    #[inline]
    fn check(&self, payload: Payload<'_>) -> Result<(), HalfRefusal> {
        let bytes = payload.bytes();
        let bytes_max = match self.form {
            Form::Normal | Form::Shared => self.message_bytes_max,
            Form::Bufferless => INTEGER,
        };
        if bytes > u64::from(bytes_max) {
            return Err(HalfRefusal::TooLong { bytes_max });
        }
        match (self.form, payload) {
            (Form::Bufferless, Payload::Gather(_)) => Err(HalfRefusal::Form("bytes, not slices")),
            (Form::Bufferless, Payload::Bytes(_)) if bytes != u64::from(INTEGER) => {
                Err(HalfRefusal::Form("exactly four bytes, a little-endian integer"))
            }
            _ => Ok(()),
        }
    }

    /// Whether there is room for a message.
    #[inline]
    fn room<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
    ) -> Result<(), HalfRefusal> {
        if !self.connected {
            return Err(HalfRefusal::NotConnected);
        }
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        self.check(payload)?;
        if !self.has_credit() {
            // The next `advance` detects and reports the same violation.
            let _ = self.progress.look(self.head, own);
        }
        if self.has_credit() && self.window.has_room() { Ok(()) } else { Err(HalfRefusal::Full) }
    }

    #[inline]
    fn emit(&mut self, payload: Payload<'_>, effects: &mut Effects) -> Sending {
        let name = Name(self.window.next_place());
        match (self.form, payload) {
            (Form::Bufferless, Payload::Bytes(&[a, b, c, d])) => {
                let integer = Some(u32::from_le_bytes([a, b, c, d]));
                effects.send_inline(Peer::ONLY, name, Notify::No, &[], integer);
                self.window.take_done()
            }
            (_, Payload::Bytes(message)) => {
                effects.send_inline(Peer::ONLY, name, Notify::No, &[message], None);
                self.window.take_done()
            }
            (_, Payload::Gather(message)) => {
                effects.send_gather(Peer::ONLY, name, Notify::Yes, &[message], None);
                self.window.take()
            }
        }
    }
}

impl Half for TwoSidedSender {
    fn connected<M: Memory>(
        &mut self,
        _: Peer,
        _: PeerRegions,
        _: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<(), Violation> {
        self.connected = true;
        self.progress.connected(&self.regions, effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.lost = true;
        self.window.clear();
    }

    fn advance<M: Memory>(&mut self, own: Own<'_, M>, _: &mut Effects) -> Result<(), Violation> {
        self.progress.look(self.head, own)
    }

    fn completed<M: Memory>(
        &mut self,
        completed: Completed,
        _: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), Violation> {
        // Acknowledgements are not READs here: no other request has their name.
        if completed.name != ACKNOWLEDGEMENT {
            self.window.done(completed.name.0);
        }
        Ok(())
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

impl SendHalf for TwoSidedSender {
    #[inline]
    fn send<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        effects: &mut Effects,
    ) -> Result<Sending, HalfRefusal> {
        self.room(payload, own)?;
        self.head += 1;
        Ok(self.emit(payload, effects))
    }

    fn ready<M: Memory>(
        &mut self,
        payload: Payload<'_>,
        own: Own<'_, M>,
        _: &mut Effects,
    ) -> Result<(), HalfRefusal> {
        self.room(payload, own)
    }

    #[inline]
    fn flush<M: Memory>(&mut self, _: Own<'_, M>, _: &mut Effects) {}

    fn is_done(&self, sending: Sending) -> bool {
        self.window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        self.window.is_empty() && self.progress.tail() == self.head
    }
}
