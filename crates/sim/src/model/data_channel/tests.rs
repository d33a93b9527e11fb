//! Every channel on the weakest network that it declares itself good for, and one step below.
//!
//! The numbers count explored states. They change with every change of a half or of the model: check that a new number
//! is explained by the change before recording it.

use super::*;
use crate::explorer::Explorer;
use farside_protocol::channel::{Acknowledge, DeviceWords, Signal};

/// The smallest measures that wrap and fill within a few messages.
pub(super) const TINY: Shape = Shape {
    message_bytes_max: 16,
    slots: 2,
    ring_bytes: 128,
    peers_max: 2,
    mirrored: false,
    prefetch_bytes: 0,
    acknowledge: Acknowledge::Word,
    signal: Signal::Message,
    device: DeviceWords::Nothing,
    piece_bytes: 1 << 16,
};

const WORD: Acknowledge = Acknowledge::Word;
const MESSAGE: Acknowledge = Acknowledge::Message;
const TAIL: Acknowledge = Acknowledge::ReadTail;

/// Searches each of them to its end.
pub(super) fn assert_states<T: std::fmt::Debug>(
    table: impl IntoIterator<Item = (T, DataChannelSetup, u64)>,
) {
    let mut wrong = Vec::new();
    for (told, setup, expected) in table {
        let model = DataChannel::new(setup, |sender| sender, |receiver| receiver);
        match Explorer::new().explore(&model).holds() {
            Ok(coverage) if coverage.states == expected => {}
            Ok(coverage) => {
                wrong.push(format!("{told:?}: {} states, not {expected}", coverage.states));
            }
            Err(text) => wrong.push(format!("{told:?}: {text}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

pub(super) fn failure(setup: DataChannelSetup) -> String {
    let told = format!("{setup:?}");
    let model = DataChannel::new(setup, |sender| sender, |receiver| receiver);
    match Explorer::new().explore(&model).failure() {
        Some(failure) => failure.violation.0,
        None => panic!("it holds: {told}"),
    }
}

/// What a defect of both halves leads to, and after how many steps.
#[cfg(canary)]
pub(super) fn caught(
    setup: DataChannelSetup,
    mutant: farside_protocol::channel::ChannelMutant,
) -> (String, usize) {
    let told = format!("{mutant:?} {setup:?}");
    let sender = |sender: Sender| sender.with_mutant(mutant);
    let receiver = |receiver: Receiver| receiver.with_mutant(mutant);
    let model = DataChannel::new(setup, sender, receiver);
    match Explorer::new().explore(&model).failure() {
        Some(failure) => (failure.violation.0, failure.trace.len()),
        None => panic!("not caught: {told}"),
    }
}

mod reading;
mod ring;
mod send_receive;
mod shared_ring;
mod write_slot;
