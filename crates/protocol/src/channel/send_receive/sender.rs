//! The sender of messages into posted receives.

use super::super::canary::mutant;
use super::super::effects::{Effects, Notify, Peer};
use super::super::half::{Accepted, HalfRefusal, OwnRegions, Payload, Step};
use super::super::kind::Kind;
use super::super::outbound::{Outbound, PushSender};
use super::super::shape::Shape;
use super::{INTEGER, ReceiveForm};
use farside_base::Memory;

/// The sender half of a send/receive channel.
///
/// *Cost*: one SEND per message. No allocation.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct TwoSidedSender {
    form: ReceiveForm,
    credits: u32,
    out: Outbound,
}

impl TwoSidedSender {
    pub(in super::super) fn new(kind: Kind, shape: &Shape, regions: OwnRegions) -> Self {
        let form = ReceiveForm::of(kind);
        let mut out = Outbound::new(shape, regions, shape.acknowledge, (1, 0));
        if form == ReceiveForm::Bufferless {
            out.shape.message_bytes_max = INTEGER;
        }
        Self { form, credits: form.credits(shape), out }
    }

    /// Whether a receive is known to be posted for one more message.
    #[inline]
    fn has_credit(&self) -> bool {
        let extra = u64::from(mutant!(self.out, CreditOffByOne));
        self.out.head - self.out.progress.tail() < u64::from(self.credits) + extra
    }

    #[inline]
    fn emit(&mut self, payload: Payload<'_>, effects: &mut Effects) {
        let (peer, name) = (Peer::ONLY, self.out.name());
        match (self.form, payload) {
            (ReceiveForm::Bufferless, Payload::Bytes(&[a, b, c, d])) => {
                let integer = Some(u32::from_le_bytes([a, b, c, d]));
                effects.send_inline(peer, name, Notify::No, &[], integer);
            }
            (_, Payload::Bytes(message)) => {
                effects.send_inline(peer, name, Notify::No, &[message], None);
            }
            (_, Payload::Gather(message)) => {
                effects.send_gather(peer, name, Notify::Yes, &[message], None);
            }
        }
    }
}

impl PushSender for TwoSidedSender {
    fn outbound(&mut self) -> &mut Outbound {
        &mut self.out
    }

    fn outbound_ref(&self) -> &Outbound {
        &self.out
    }

    #[inline]
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted {
        self.ready(payload, step)?;
        self.out.head += 1;
        self.emit(payload, step.effects);
        Ok(self.out.take(payload))
    }

    #[inline]
    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()> {
        let (_, bytes) = self.out.check(payload)?;
        match (self.form, payload) {
            (ReceiveForm::Bufferless, Payload::Gather(_)) => {
                return Err(HalfRefusal::Form("bytes, not slices"));
            }
            (ReceiveForm::Bufferless, Payload::Bytes(_)) if bytes != INTEGER => {
                return Err(HalfRefusal::Form("exactly four bytes, a little-endian integer"));
            }
            _ => {}
        }
        if !self.has_credit() {
            // The next `advance` detects and reports the same violation.
            let _ = self.out.look(step.own);
        }
        let room = self.has_credit() && self.out.window.has_room();
        if room { Ok(()) } else { Err(HalfRefusal::Full) }
    }
}
