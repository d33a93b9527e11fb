//! Delegation for halves that are one of several: an enum forwards each call to its variant.

/// Implements both traits for a `Sender` and a `Receiver` that are enums, by a macro `$each!(self, half => call)`
/// that matches on their variants.
macro_rules! delegate_halves {
    ($each:ident, $sender:ident, $receiver:ident) => {
        const _: () = {
            use farside_base::{LocalSlice, Memory};
            use $crate::channel::delegate::delegate_half;
            use $crate::channel::effects::{Effects, InlineWrite, Name};
            use $crate::channel::half::{
                Arrival, Completed, Half, HalfRefusal, HeldMessage, Offer, Own, Payload, Peer,
                PeerRegions, ReceiveHalf, Received, SendHalf, Sending,
            };
            use $crate::wire::Violation;

            delegate_half!($each, $sender);
            delegate_half!($each, $receiver);

            impl SendHalf for $sender {
                #[inline]
                fn send<M: Memory>(
                    &mut self,
                    payload: Payload<'_>,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<Sending, HalfRefusal> {
                    $each!(self, half => half.send(payload, own, effects))
                }

                fn ready<M: Memory>(
                    &mut self,
                    payload: Payload<'_>,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<(), HalfRefusal> {
                    $each!(self, half => half.ready(payload, own, effects))
                }

                #[inline]
                fn send_to<M: Memory>(
                    &mut self,
                    slot: u32,
                    payload: Payload<'_>,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<Sending, HalfRefusal> {
                    $each!(self, half => half.send_to(slot, payload, own, effects))
                }

                #[inline]
                fn send_at_once<M: Memory>(
                    &mut self,
                    message: &[u8],
                    own: Own<'_, M>,
                    record: &mut InlineWrite,
                ) -> Option<Sending> {
                    $each!(self, half => half.send_at_once(message, own, record))
                }

                #[inline]
                fn flush<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
                    $each!(self, half => half.flush(own, effects));
                }

                #[inline]
                fn loan<M: Memory>(&mut self, bytes: u32, own: Own<'_, M>) -> Option<LocalSlice> {
                    $each!(self, half => half.loan(bytes, own))
                }

                fn ask_progress(&mut self, effects: &mut Effects) {
                    $each!(self, half => half.ask_progress(effects));
                }

                #[inline]
                fn is_done(&self, sending: Sending) -> bool {
                    $each!(self, half => half.is_done(sending))
                }

                fn is_drained(&self) -> bool {
                    $each!(self, half => half.is_drained())
                }
            }

            impl ReceiveHalf for $receiver {
                #[inline]
                fn receive<M: Memory>(
                    &mut self,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<Option<Received>, Violation> {
                    $each!(self, half => half.receive(own, effects))
                }

                #[inline]
                fn release<M: Memory>(
                    &mut self,
                    held: HeldMessage,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<(), HalfRefusal> {
                    $each!(self, half => half.release(held, own, effects))
                }

                #[inline]
                fn drain<M: Memory>(
                    &mut self,
                    max: usize,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                    see: &mut impl FnMut(Received),
                ) -> (usize, Result<(), Violation>) {
                    $each!(self, half => half.drain(max, own, effects, see))
                }

                fn offer<M: Memory>(
                    &mut self,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<Option<Offer>, Violation> {
                    $each!(self, half => half.offer(own, effects))
                }

                fn receive_into<M: Memory>(
                    &mut self,
                    offer: HeldMessage,
                    into: LocalSlice,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Result<(), HalfRefusal> {
                    $each!(self, half => half.receive_into(offer, into, own, effects))
                }

                fn fetched<M: Memory>(
                    &mut self,
                    offer: HeldMessage,
                    own: Own<'_, M>,
                    effects: &mut Effects,
                ) -> Option<u32> {
                    $each!(self, half => half.fetched(offer, own, effects))
                }

                fn acknowledge<M: Memory>(&mut self, own: Own<'_, M>, effects: &mut Effects) {
                    $each!(self, half => half.acknowledge(own, effects));
                }
            }
        };
    };
}

/// The common part of both traits.
macro_rules! delegate_half {
    ($each:ident, $half:ident) => {
        impl Half for $half {
            fn connected<M: Memory>(
                &mut self,
                peer: Peer,
                regions: PeerRegions,
                own: Own<'_, M>,
                effects: &mut Effects,
            ) -> Result<(), Violation> {
                $each!(self, half => half.connected(peer, regions, own, effects))
            }

            fn lost(&mut self, peer: Peer) {
                $each!(self, half => half.lost(peer));
            }

            fn advance<M: Memory>(
                &mut self,
                own: Own<'_, M>,
                effects: &mut Effects,
            ) -> Result<(), Violation> {
                $each!(self, half => half.advance(own, effects))
            }

            fn completed<M: Memory>(
                &mut self,
                completed: Completed,
                own: Own<'_, M>,
                effects: &mut Effects,
            ) -> Result<(), Violation> {
                $each!(self, half => half.completed(completed, own, effects))
            }

            fn arrived<M: Memory>(
                &mut self,
                arrival: Arrival,
                own: Own<'_, M>,
                effects: &mut Effects,
            ) -> Result<(), Violation> {
                $each!(self, half => half.arrived(arrival, own, effects))
            }

            fn wasted(&mut self, peer: Peer, name: Name, effects: &mut Effects) {
                $each!(self, half => half.wasted(peer, name, effects));
            }

            fn accused(&self) -> Option<Peer> {
                $each!(self, half => half.accused())
            }
        }
    };
}

pub(super) use {delegate_half, delegate_halves};
