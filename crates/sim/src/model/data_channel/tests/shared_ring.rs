//! Rings that senders share. Numbers are those of the states.

use super::*;

const KINDS: [Kind; 2] = [Kind::SharedRingImmediate, Kind::SharedRingInlinedZeroing];

/// Two of the largest records, and a third one that runs into the guard.
fn setup(kind: Kind, senders: usize, messages: &[u32]) -> Setup {
    let shape = Shape {
        message_bytes_max: 8,
        ring_bytes: 64,
        peers_max: senders as u16,
        acknowledge: Acknowledge::ReadTail,
        ..TINY
    };
    Setup { senders, ..Setup::new(kind, shape, messages) }
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    for (kind, expected) in KINDS.into_iter().zip([[3_259, 3_259, 575], [16_754, 16_754, 1_293]]) {
        let one = |gather| Setup { gather, ..setup(kind, 1, &[8, 3, 8]) };
        let all = [one(false), one(true), setup(kind, 2, &[8])];
        assert_eq!(all.map(states), expected, "{kind}");
    }
}

#[test]
fn a_sender_may_die_at_any_step() {
    for (kind, expected) in KINDS.into_iter().zip([3_942, 8_872]) {
        let one_dies = Setup { mortal: vec![0], ..setup(kind, 2, &[8]) };
        assert_eq!(states(one_dies), expected, "{kind}");
    }
}

/// The inlined bell one step below what it needs.
#[test]
fn without_byte_order_the_inlined_bell_fails() {
    let mut weak = setup(Kind::SharedRingInlinedZeroing, 1, &[8, 3]);
    weak.guarantees.byte_order = false;
    assert_eq!(failure(weak), "a message that nobody sent");
}
