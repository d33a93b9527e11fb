//! Every channel on the weakest network that it declares itself good for, and one step below.

use super::*;
use crate::explorer::Explorer;
use farside_protocol::channel::{Acknowledge, Signal};

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
    device_bells: false,
};

pub(super) fn states(setup: Setup) -> u64 {
    let told = format!("{setup:?}");
    let model = DataChannel::new(setup, |sender| sender, |receiver| receiver);
    match Explorer::new().explore(&model).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!("{told}\n{text}"),
    }
}

pub(super) fn failure(setup: Setup) -> String {
    let told = format!("{setup:?}");
    let model = DataChannel::new(setup, |sender| sender, |receiver| receiver);
    match Explorer::new().explore(&model).failure() {
        Some(failure) => failure.violation.0,
        None => panic!("it holds: {told}"),
    }
}

mod reading;
mod ring;
mod send_receive;
mod shared_ring;
mod write_slot;
