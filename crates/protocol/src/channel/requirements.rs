//! The fabric capabilities that each channel needs.

use super::kind::{Family, Kind};
use super::shape::{Acknowledge, Shape, Signal};
use super::shared_ring;
use farside_base::{AtomicScope, Requirements, WordScope};

/// Returns `bytes`, or the size of a word if that is larger.
const fn word(bytes: u32) -> u32 {
    if bytes < 8 { 8 } else { bytes }
}

impl Kind {
    /// The fabric capabilities that it needs, including the second channels in `shape`.
    pub const fn requirements(self, shape: &Shape) -> Requirements {
        let mut needs = self.needs_for_messages();
        if matches!(self, Self::Send | Self::SendShared) {
            needs.send_bytes = shape.message_bytes_max;
        }
        if matches!(self.family(), Family::SharedRing) {
            needs.atomics = AtomicScope::Adapter;
        }
        needs.inline_bytes = self.inline_bytes(shape);
        if matches!(self, Self::ReadRingDetached | Self::ReadRingNotify) {
            needs.slices = 2; // an offer's header and message have two destinations
        }
        if !matches!(self.family(), Family::SendReceive) {
            // The largest message with the words around it.
            needs.transfer_bytes = shape.message_bytes_max as u64 + 24;
        }
        if self.has_second_channel() {
            match shape.signal {
                Signal::Word => {
                    needs.write = true;
                    // The word must land after the message that it announces.
                    needs.message_order |= matches!(self, Self::ReadSlotIndirect);
                    // The bell is in the mailbox, and a newer grant overwrites an older one.
                    needs.byte_order |= matches!(self, Self::WriteSlotReserved);
                    needs.ordered_or_placed |= matches!(self, Self::WriteSlotReserved);
                }
                Signal::Message => {
                    needs.send = true;
                    needs.immediate = true;
                    // All senders' requests and messages arrive in one queue.
                    needs.shared_receive_queue |= matches!(self, Self::WriteSlotReserved);
                }
            }
        }
        if self.has_device_words(shape) {
            needs.device_bytes = self.device_bytes(shape);
            // Both halves of a bell's word differ from those of the previous bell.
            needs.device_words = !matches!(self.family(), Family::SharedRing);
        }
        match shape.acknowledge {
            // Its grants carry the acknowledgements.
            _ if matches!(self, Self::WriteSlotReserved) => {}
            Acknowledge::Word => {
                needs.write = true;
                needs.ordered_or_placed = true;
                needs.inline_bytes = word(needs.inline_bytes);
            }
            Acknowledge::Message => {
                needs.send = true;
                needs.immediate = true;
            }
            Acknowledge::ReadTail => needs.read = true,
        }
        // Bells, heads, tails and offers are words that one half polls while the other changes them.
        if needs.write || needs.read {
            needs.words = WordScope::Aligned;
        }
        needs
    }

    /// Whether some of its words are in adapter memory.
    pub const fn has_device_words(self, shape: &Shape) -> bool {
        self.device_bytes(shape) > 0
    }

    /// Bytes of its words in adapter memory: of the one half that has them there.
    const fn device_bytes(self, shape: &Shape) -> u64 {
        let bells = match self {
            Self::SharedRingImmediate | Self::SharedRingInlinedZeroing => {
                return shared_ring::device_bytes(shape);
            }
            Self::ReadSlotDetached => shape.slots as u64 * 8,
            Self::ReadRingDetached => 8,
            _ => 0,
        };
        if shape.device.has_head() { bells } else { 0 }
    }

    /// The maximum size in bytes of the words, besides messages, that its sender writes in one request.
    const fn inline_bytes(self, shape: &Shape) -> u32 {
        match self {
            // Bells of neighbouring mailboxes are written together.
            Self::WriteSlotDetached => 64,
            Self::RingDetached
            | Self::RingInlined
            | Self::SharedRingImmediate
            | Self::SharedRingInlinedZeroing => 8,
            Self::WriteSlotReserved
            | Self::ReadSlotNotify
            | Self::ReadSlotIndirect
            | Self::ReadRingNotify
                if matches!(shape.signal, Signal::Word) =>
            {
                16
            }
            Self::ReadSlotIndirect => 8,
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Half as _, Receiver, Sender};
    use super::super::shape::DeviceWords;
    use super::super::tests::suite;
    use super::*;
    use farside_base::RegionKind;

    const SHAPE: Shape = Shape {
        slots: 64,
        peers_max: 64,
        acknowledge: Acknowledge::ReadTail,
        signal: Signal::Word,
        ..suite::SHAPE
    };

    /// The required adapter memory equals what the halves of a channel register there.
    #[test]
    fn device_bytes_are_those_that_the_halves_register() {
        let mut most = 0;
        for kind in Kind::ALL {
            for (device, (slots, peers_max)) in DeviceWords::ALL
                .into_iter()
                .flat_map(|device| [(1, 1), (64, 64), (4096, 1024)].map(|counts| (device, counts)))
            {
                let shape = Shape { device, slots, peers_max, ..SHAPE };
                let plans = [Sender::plan(kind, &shape), Receiver::plan(kind, &shape)];
                let at_adapter =
                    plans.iter().filter(|plan| plan.counters_kind == RegionKind::Device);
                let bytes = at_adapter.map(|plan| plan.counters_bytes).sum();
                assert_eq!(kind.requirements(&shape).device_bytes, bytes, "{kind} {shape:?}");
                assert_eq!(kind.has_device_words(&shape), bytes > 0, "{kind} {shape:?}");
                most = most.max(bytes);
            }
        }
        assert_eq!(most, 4096 * 8);
    }

    /// Requirements are computed before the shape is checked.
    #[test]
    fn requirements_of_impossible_shapes_do_not_panic() {
        for kind in Kind::ALL {
            for device in DeviceWords::ALL {
                let fit = Shape { device, ..SHAPE };
                let least =
                    Shape { slots: 0, peers_max: 0, ring_bytes: 0, message_bytes_max: 0, ..fit };
                let most = Shape {
                    slots: u32::MAX,
                    peers_max: u16::MAX,
                    ring_bytes: u64::MAX,
                    message_bytes_max: u32::MAX,
                    ..fit
                };
                let bytes = [least, most].map(|shape| kind.requirements(&shape).device_bytes);
                assert!(bytes[0] <= bytes[1], "{kind} {bytes:?}");
            }
        }
    }
}
