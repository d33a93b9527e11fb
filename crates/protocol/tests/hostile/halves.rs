//! The program's use of either half, with arbitrary peers.

use super::Life;
use farside_protocol::channel::{Half, Payload, Receiver, Sender, Sending};
use farside_protocol::wire::Violation;
use std::fmt::Debug;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum HalfRole {
    Sender,
    Receiver,
}

/// Either half, and the calls that the program makes on it.
pub(crate) trait Driven: Half + Debug {
    /// A call that the program makes.
    fn act(life: &mut Life<Self>) -> Result<(), Violation>;
}

impl Driven for Sender {
    fn act(life: &mut Life<Self>) -> Result<(), Violation> {
        send(life)
    }
}

impl Driven for Receiver {
    fn act(life: &mut Life<Self>) -> Result<(), Violation> {
        receive(life)
    }
}

fn send(life: &mut Life<Sender>) -> Result<(), Violation> {
    let most = u64::from(life.message_bytes_max());
    let bytes = life.random.below(most + 2) as u32;
    let slice = life.user_slice(bytes);
    let slot = life.random.below(u64::from(life.slots()) + 2) as u32;
    let choice = life.random.below(8);
    let message = vec![7; bytes as usize];
    let (half, own, effects) = life.parts();
    match choice {
        0 | 1 => {
            let message = if bytes.is_multiple_of(3) { &[1, 2, 3, 4][..] } else { &message };
            if let Ok(sending) = half.send(Payload::Bytes(message), own, effects) {
                half.is_done(sending);
            }
        }
        2 => {
            if half.send(Payload::Gather(&[slice]), own, effects).is_ok() {
                half.flush(own, effects);
            }
        }
        3 => {
            if let Some(lent) = half.loan(bytes, own) {
                let _ = half.send(Payload::Gather(&[lent]), own, effects);
            }
        }
        4 => {
            let _ = half.send_to(slot, Payload::Bytes(&message), own, effects);
        }
        5 => {
            half.ask_progress(effects);
            half.is_done(Sending(u64::from(slot)));
            half.is_drained();
        }
        6 => half.flush(own, effects),
        _ => return half.advance(own, effects),
    }
    Ok(())
}

fn receive(life: &mut Life<Receiver>) -> Result<(), Violation> {
    match life.random.below(8) {
        0..=3 => {
            let (half, own, effects) = life.parts();
            if let Some(received) = half.receive(own, effects)? {
                life.check_content(received.content);
                life.held.push(received.held);
                life.check_held();
            }
        }
        4 => {
            if !life.held.is_empty() {
                let at = life.random.below(life.held.len() as u64) as usize;
                let held = life.held.swap_remove(at);
                let (half, own, effects) = life.parts();
                // If its peer is gone it may no longer be held.
                let _ = half.release(held, own, effects);
            }
        }
        5 => {
            let (half, own, effects) = life.parts();
            if let Some(offer) = half.offer(own, effects)? {
                assert!(offer.bytes_max <= life.message_bytes_max());
                life.offers.push((offer.held, offer.bytes_max));
            }
        }
        6 => {
            let (half, own, effects) = life.parts();
            half.acknowledge(own, effects);
        }
        _ => fetch(life),
    }
    Ok(())
}

fn fetch(life: &mut Life<Receiver>) {
    if life.offers.is_empty() {
        return;
    }
    let at = life.random.below(life.offers.len() as u64) as usize;
    let (held, bytes_max) = life.offers[at];
    let into = life.user_slice(bytes_max);
    let (half, own, effects) = life.parts();
    let _ = half.receive_into(held, into, own, effects);
    if let Some(bytes) = half.fetched(held, own, effects) {
        assert!(bytes <= bytes_max, "{bytes} bytes of an offer of {bytes_max}");
        life.offers.swap_remove(at);
    }
}
