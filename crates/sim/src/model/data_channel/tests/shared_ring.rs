//! Rings that senders share.

use super::*;

const IMMEDIATE: Kind = Kind::SharedRingImmediate;
const ZEROING: Kind = Kind::SharedRingInlinedZeroing;

/// Two of the largest records, and a third one that runs into the guard.
fn setup(kind: Kind, senders: usize, messages: &[u32]) -> DataChannelSetup {
    let shape = Shape {
        message_bytes_max: 8,
        ring_bytes: 64,
        peers_max: senders as u16,
        acknowledge: Acknowledge::ReadTail,
        ..TINY
    };
    DataChannelSetup { senders, ..DataChannelSetup::new(kind, shape, messages) }
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    for (kind, expected) in
        [(IMMEDIATE, [3447, 3447, 3447, 955]), (ZEROING, [16_942, 16_942, 16_942, 1483])]
    {
        let one = |gather| DataChannelSetup { gather, ..setup(kind, 1, &[8, 3, 8]) };
        let mut mirrored = one(false);
        mirrored.shape.mirrored = true;
        let all = [one(false), one(true), mirrored, setup(kind, 2, &[8])];
        let labels = ["inline", "gather", "mirrored", "two"];
        let rows = labels.into_iter().zip(all).zip(expected);
        assert_states(rows.map(|((told, one), count)| ((kind, told), one, count)));
    }
}

#[test]
fn words_at_the_adapter_change_no_order_of_events() {
    for (kind, expected) in [(IMMEDIATE, 3447), (ZEROING, 16_942)] {
        let one = |device| {
            let mut one = setup(kind, 1, &[8, 3, 8]);
            one.shape.device = device;
            ((kind, device), one, expected)
        };
        assert_states([DeviceWords::Head, DeviceWords::Tail, DeviceWords::All].map(one));
    }
}

#[test]
fn either_side_may_die_at_any_step() {
    for (kind, expected) in [(IMMEDIATE, [6858, 1085]), (ZEROING, [12_018, 2488])] {
        let a_sender = DataChannelSetup { mortal: vec![0], ..setup(kind, 2, &[8]) };
        let the_receiver = DataChannelSetup { mortal: vec![1], ..setup(kind, 1, &[8, 3]) };
        let rows = [a_sender, the_receiver].into_iter().zip(expected);
        assert_states(rows.map(|(one, count)| (kind, one, count)));
    }
}

/// A sender that comes after one that died, with its number.
#[test]
fn a_number_serves_again() {
    let table = [(IMMEDIATE, 1280), (ZEROING, 1702)];
    let one = |(kind, expected)| {
        let one = setup(kind, 1, &[8]);
        (kind, DataChannelSetup { mortal: vec![0], reconnects: 1, held_max: 1, ..one }, expected)
    };
    assert_states(table.map(one));
}

/// The receives that senders share suffice when what arrives waits until the program polls.
#[test]
fn receives_suffice_when_arrivals_are_handled_late() {
    let one =
        |senders, messages| DataChannelSetup { late: true, ..setup(IMMEDIATE, senders, messages) };
    assert_states([("one", one(1, &[8, 3, 8]), 4909), ("two", one(2, &[8]), 1115)]);
}

/// The inlined bell one step below what it needs. With immediate there is nothing below: requests
/// and words land in any order already.
#[test]
fn without_byte_order_the_inlined_bell_fails() {
    let mut weak = setup(ZEROING, 1, &[8, 3]);
    weak.guarantees.byte_order = false;
    assert_eq!(failure(weak), "a message that was never sent");
}

#[cfg(canary)]
#[test]
fn canary_defects_are_caught() {
    use farside_protocol::channel::ChannelMutant::*;
    let table = [
        (IMMEDIATE, TailUnchecked, "a bell out of range", 17),
        (ZEROING, TailUnchecked, "a last word that is neither zero nor one", 21),
        (ZEROING, NotZeroed, "a length that no message has", 32),
        (ZEROING, TrailerUnchecked, "a message that was never sent", 8),
    ];
    for (kind, mutant, text, steps) in table {
        let found = caught(setup(kind, 1, &[8, 3, 8, 8]), mutant);
        assert_eq!(found, (text.to_owned(), steps), "{kind} {mutant:?}");
    }
}
