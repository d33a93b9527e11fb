//! Rings of one sender.

use super::*;

const DETACHED: Kind = Kind::RingDetached;
const IMMEDIATE: Kind = Kind::RingImmediate;
const ZEROING: Kind = Kind::RingInlinedZeroing;
const INLINED: Kind = Kind::RingInlined;

/// Three or four records fill the ring, and the fifth message has passed its end.
fn ring(kind: Kind, acknowledge: Acknowledge, messages: &[u32]) -> DataChannelSetup {
    DataChannelSetup::new(
        kind,
        Shape { ring_bytes: 64, message_bytes_max: 8, acknowledge, ..TINY },
        messages,
    )
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    let table = [
        (DETACHED, WORD, 10_108),
        (DETACHED, MESSAGE, 2938),
        (DETACHED, TAIL, 1082),
        (IMMEDIATE, WORD, 540),
        (IMMEDIATE, MESSAGE, 413),
        (IMMEDIATE, TAIL, 440),
        (ZEROING, WORD, 590),
        (ZEROING, MESSAGE, 443),
        (ZEROING, TAIL, 458),
        (INLINED, WORD, 2290),
        (INLINED, MESSAGE, 846),
        (INLINED, TAIL, 447),
    ];
    let one = |(kind, way, expected)| ((kind, way), ring(kind, way, &[8, 3, 8, 8, 8]), expected);
    assert_states(table.map(one));
}

#[test]
fn messages_go_out_of_registered_memory() {
    let table = [
        (DETACHED, &[8, 3, 8][..], 11_450),
        (IMMEDIATE, &[8, 3, 8, 8], 2771),
        (ZEROING, &[8, 3, 8, 8], 2681),
        (INLINED, &[8, 3, 8, 8], 28_522),
    ];
    let one = |(kind, messages, expected)| {
        (kind, DataChannelSetup { gather: true, ..ring(kind, WORD, messages) }, expected)
    };
    assert_states(table.map(one));
}

#[test]
fn a_mirrored_ring_joins_its_end_and_its_beginning() {
    let table = [
        (DETACHED, false, 10_108),
        (IMMEDIATE, false, 540),
        (ZEROING, false, 590),
        (INLINED, false, 2050),
        (IMMEDIATE, true, 2771),
        (ZEROING, true, 2681),
    ];
    let one = |(kind, gather, expected)| {
        let messages: &[u32] = if gather { &[8, 3, 8, 8] } else { &[8, 3, 8, 8, 8] };
        let mut one = DataChannelSetup { gather, ..ring(kind, WORD, messages) };
        one.shape.mirrored = true;
        ((kind, gather), one, expected)
    };
    assert_states(table.map(one));
}

fn full(acknowledge: Acknowledge) -> DataChannelSetup {
    let shape = Shape { message_bytes_max: 16, ring_bytes: 128, acknowledge, ..TINY };
    DataChannelSetup { held_max: 4, ..DataChannelSetup::new(ZEROING, shape, &[16, 16, 16, 16, 16]) }
}

/// Four records fill the whole ring: the record after the last held one is the first.
#[test]
fn held_messages_may_fill_the_ring_exactly() {
    let table = [(WORD, 22_450), (MESSAGE, 15_433), (TAIL, 9276)];
    assert_states(table.map(|(way, expected)| (way, full(way), expected)));
}

#[test]
fn either_side_may_die_at_any_step() {
    let table = [
        (DETACHED, WORD, 28_637),
        (DETACHED, TAIL, 2985),
        (IMMEDIATE, MESSAGE, 2407),
        (ZEROING, WORD, 2891),
        (ZEROING, MESSAGE, 2427),
        (INLINED, WORD, 8588),
        (INLINED, TAIL, 1892),
    ];
    let one = |(kind, way, expected)| {
        let one = ring(kind, way, &[8, 3, 8, 8]);
        ((kind, way), DataChannelSetup { mortal: vec![0, 1], ..one }, expected)
    };
    assert_states(table.map(one));
}

/// What arrives waits in a queue until the program polls.
#[test]
fn receives_suffice_when_arrivals_are_handled_late() {
    let table = [
        (IMMEDIATE, WORD, 668),
        (IMMEDIATE, MESSAGE, 623),
        (DETACHED, MESSAGE, 5213),
        (ZEROING, MESSAGE, 541),
    ];
    let one = |(kind, way, expected)| {
        let one = ring(kind, way, &[8, 3, 8, 8, 8]);
        ((kind, way), DataChannelSetup { late: true, ..one }, expected)
    };
    assert_states(table.map(one));
}

/// The sender gets free space although the program never asks the receiver to acknowledge.
#[test]
fn room_comes_back_unasked() {
    let table = [
        (DETACHED, WORD, 1624),
        (IMMEDIATE, WORD, 540),
        (ZEROING, WORD, 163),
        (INLINED, WORD, 529),
        (DETACHED, MESSAGE, 1018),
        (IMMEDIATE, MESSAGE, 413),
        (ZEROING, MESSAGE, 157),
        (INLINED, MESSAGE, 402),
    ];
    let one = |(kind, way, expected)| {
        let one = ring(kind, way, &[8, 3, 8, 8, 8]);
        ((kind, way), DataChannelSetup { lazy: true, ..one }, expected)
    };
    assert_states(table.map(one));
}

/// One step below what each needs. `ring-immediate` needs nothing for its messages, but for words
/// that acknowledge.
#[test]
fn a_network_without_the_guarantee_fails() {
    let messages = [8, 3, 8, 8];
    let mut weak = ring(DETACHED, TAIL, &messages);
    weak.guarantees.message_order = false;
    assert_eq!(failure(weak), "a bell before its message");
    let mut weak = ring(ZEROING, TAIL, &messages);
    weak.guarantees.byte_order = false;
    assert_eq!(failure(weak), "a message that was never sent");
    let mut weak = ring(INLINED, TAIL, &messages);
    weak.guarantees.byte_order = false;
    assert_eq!(failure(weak), "a message that was never sent");
    let mut weak = ring(INLINED, TAIL, &messages);
    weak.guarantees.message_order = false;
    assert_eq!(failure(weak), "a message never comes");
    for kind in [IMMEDIATE, ZEROING] {
        let mut weak = ring(kind, WORD, &messages);
        weak.guarantees.completion_means_placed = false;
        assert_eq!(failure(weak), "a sender never learns that all was processed", "{kind}");
    }
}

#[cfg(canary)]
#[test]
fn canary_defects_are_caught() {
    use farside_protocol::channel::ChannelMutant::*;
    let table = [
        (DETACHED, BellBeforeData, "a bell before its message", 4),
        (DETACHED, CreditOffByOne, "out of order", 28),
        (ZEROING, CreditOffByOne, "a last word that is neither zero nor one", 20),
        (INLINED, CreditOffByOne, "a message never comes", 22),
        (ZEROING, NotZeroed, "a length that no message has", 23),
        (ZEROING, TrailerUnchecked, "a message that was never sent", 4),
        (INLINED, NextBellNotUnset, "a length that no message has", 7),
    ];
    for (kind, mutant, text, steps) in table {
        let found = caught(ring(kind, WORD, &[8, 3, 8, 8, 8]), mutant);
        assert_eq!(found, (text.to_owned(), steps), "{kind} {mutant:?}");
    }
    let tail = caught(ring(DETACHED, TAIL, &[8, 3, 8, 8, 8]), HeadUponTail);
    assert_eq!(tail, ("a bell out of range".to_owned(), 16));
    assert_eq!(caught(full(WORD), HeldTakenForNew), ("out of order".to_owned(), 30));
    let untold = caught(ring(IMMEDIATE, WORD, &[8, 3, 8]), AcknowledgementForgotten);
    assert_eq!(untold, ("a sender never learns that all was processed".to_owned(), 21));
}
