//! WRITE into mailboxes.

use super::*;

const DETACHED: Kind = Kind::WriteSlotDetached;
const INLINED: Kind = Kind::WriteSlotInlined;
const IMMEDIATE: Kind = Kind::WriteSlotImmediate;

const BY_WORD: Signal = Signal::Word;
const BY_MESSAGE: Signal = Signal::Message;

fn setup(kind: Kind, signal: Signal, messages: &[u32]) -> DataChannelSetup {
    DataChannelSetup::new(kind, Shape { message_bytes_max: 8, signal, ..TINY }, messages)
}

fn pool(signal: Signal, slots: u32, messages: &[u32]) -> DataChannelSetup {
    let shape = Shape { message_bytes_max: 8, signal, slots, ..TINY };
    DataChannelSetup {
        senders: 2,
        ..DataChannelSetup::new(Kind::WriteSlotReserved, shape, messages)
    }
}

type Row = (Kind, Signal, Acknowledge, u64);

fn run(table: &[Row], messages: &[u32], change: impl Fn(DataChannelSetup) -> DataChannelSetup) {
    let one = |(kind, signal, acknowledge, expected): &Row| {
        let shape =
            Shape { message_bytes_max: 8, signal: *signal, acknowledge: *acknowledge, ..TINY };
        let one = change(DataChannelSetup::new(*kind, shape, messages));
        ((*kind, *signal, *acknowledge), one, *expected)
    };
    assert_states(table.iter().map(one));
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    let table = [
        (DETACHED, BY_WORD, WORD, 411),
        (DETACHED, BY_WORD, MESSAGE, 208),
        (DETACHED, BY_WORD, TAIL, 161),
        (DETACHED, BY_MESSAGE, WORD, 473),
        (DETACHED, BY_MESSAGE, MESSAGE, 243),
        (DETACHED, BY_MESSAGE, TAIL, 182),
        (INLINED, BY_WORD, WORD, 332),
        (INLINED, BY_WORD, MESSAGE, 236),
        (INLINED, BY_WORD, TAIL, 242),
        (IMMEDIATE, BY_WORD, WORD, 394),
        (IMMEDIATE, BY_WORD, MESSAGE, 298),
        (IMMEDIATE, BY_WORD, TAIL, 312),
    ];
    run(&table, &[8, 3, 8, 8], |setup| setup);
}

#[test]
fn messages_go_out_of_registered_memory() {
    let table = [
        (DETACHED, BY_WORD, WORD, 4694),
        (DETACHED, BY_MESSAGE, WORD, 5962),
        (INLINED, BY_WORD, WORD, 2287),
        (IMMEDIATE, BY_WORD, WORD, 2771),
    ];
    run(&table, &[8, 3, 8, 8], |setup| DataChannelSetup { gather: true, ..setup });
}

#[test]
fn a_pool_serves_each_sender() {
    let one = |signal, slots, gather| DataChannelSetup { gather, ..pool(signal, slots, &[8, 3]) };
    assert_states([
        ("words, 1 slot", one(BY_WORD, 1, false), 35_748),
        (
            "words, 1 slot, gather",
            DataChannelSetup { gather: true, ..pool(BY_WORD, 1, &[8]) },
            1948,
        ),
        ("words, 2 slots", pool(BY_WORD, 2, &[8]), 1664),
        ("messages, 1 slot", one(BY_MESSAGE, 1, false), 4151),
        ("messages, 1 slot, gather", one(BY_MESSAGE, 1, true), 28_277),
        ("messages, 2 slots", one(BY_MESSAGE, 2, false), 52_381),
    ]);
}

#[test]
#[ignore = "a minute: four hundred thousand states; run with --ignored"]
fn a_pool_serves_each_sender_in_turn_by_words() {
    let gather = DataChannelSetup { gather: true, ..pool(BY_WORD, 1, &[8, 3]) };
    assert_states([
        ("1 slot, gather", gather, 181_848),
        ("2 slots", pool(BY_WORD, 2, &[8, 3]), 229_712),
    ]);
}

#[test]
fn either_side_may_die_at_any_step() {
    let table = [
        (DETACHED, BY_WORD, WORD, 1711),
        (DETACHED, BY_MESSAGE, MESSAGE, 1474),
        (INLINED, BY_WORD, WORD, 1450),
        (IMMEDIATE, BY_WORD, WORD, 1802),
    ];
    run(&table, &[8, 3, 8], |setup| DataChannelSetup { mortal: vec![0, 1], ..setup });
    let mortal = |one, dead| DataChannelSetup { mortal: vec![dead], ..one };
    assert_states([
        ("words, a sender", mortal(pool(BY_WORD, 1, &[8]), 0), 1824),
        ("words, the receiver", mortal(pool(BY_WORD, 1, &[8]), 2), 1665),
        ("messages, a sender", mortal(pool(BY_MESSAGE, 1, &[8, 3]), 0), 12_880),
        ("messages, the receiver", mortal(pool(BY_MESSAGE, 1, &[8, 3]), 2), 11_585),
    ]);
}

/// A sender that comes after one that died, with its number.
#[test]
fn a_number_serves_again() {
    let again = |one| DataChannelSetup { mortal: vec![0], reconnects: 1, held_max: 1, ..one };
    let alone = |one| DataChannelSetup { senders: 1, ..one };
    assert_states([
        ("words, alone", again(alone(pool(BY_WORD, 2, &[8, 3]))), 2029),
        ("messages, alone", again(alone(pool(BY_MESSAGE, 2, &[8, 3]))), 716),
        (
            "messages, late",
            DataChannelSetup { late: true, ..again(alone(pool(BY_MESSAGE, 1, &[8]))) },
            93,
        ),
        ("messages, two", again(pool(BY_MESSAGE, 1, &[8])), 1097),
    ]);
}

/// What arrives waits in a queue until the program polls.
#[test]
fn receives_suffice_when_arrivals_are_handled_late() {
    let table = [
        (DETACHED, BY_MESSAGE, MESSAGE, 384),
        (INLINED, BY_WORD, MESSAGE, 301),
        (IMMEDIATE, BY_WORD, WORD, 486),
        (IMMEDIATE, BY_WORD, MESSAGE, 452),
    ];
    run(&table, &[8, 3, 8, 8], |setup| DataChannelSetup { late: true, ..setup });
    let late = DataChannelSetup { late: true, ..pool(BY_MESSAGE, 1, &[8, 3]) };
    assert_states([("pool", late, 16_045)]);
}

#[test]
fn room_comes_back_unasked() {
    let table = [
        (DETACHED, BY_WORD, WORD, 411),
        (DETACHED, BY_MESSAGE, MESSAGE, 243),
        (INLINED, BY_WORD, MESSAGE, 236),
        (IMMEDIATE, BY_WORD, MESSAGE, 298),
    ];
    run(&table, &[8, 3, 8, 8], |setup| DataChannelSetup { lazy: true, ..setup });
    let lazy = DataChannelSetup { lazy: true, ..pool(BY_MESSAGE, 1, &[8, 3]) };
    assert_states([("pool", lazy, 1003)]);
}

/// One step below what each needs. `write-slot-immediate`, and the pool by messages, need nothing
/// for their messages, so that only the words are left that acknowledge.
#[test]
fn a_network_without_the_guarantee_fails() {
    let text = "a message that was never sent";
    for gather in [false, true] {
        let mut weak = DataChannelSetup { gather, ..setup(DETACHED, BY_WORD, &[8, 3]) };
        weak.guarantees.message_order = false;
        assert_eq!(failure(weak), text);
        let mut weak = DataChannelSetup { gather, ..setup(DETACHED, BY_MESSAGE, &[8, 3]) };
        weak.guarantees.message_order = false;
        assert_eq!(failure(weak), "a length that no message has");
        let mut weak = DataChannelSetup { gather, ..setup(INLINED, BY_WORD, &[8, 3]) };
        weak.guarantees.byte_order = false;
        assert_eq!(failure(weak), text);
        let mut weak = DataChannelSetup { gather, ..pool(BY_WORD, 1, &[8, 3]) };
        weak.guarantees.byte_order = false;
        assert_eq!(failure(weak), text);
    }
    for kind in [INLINED, IMMEDIATE] {
        let mut weak = setup(kind, BY_WORD, &[8, 3, 8, 8]);
        weak.guarantees.completion_means_placed = false;
        assert_eq!(failure(weak), "a sender never learns that all was processed", "{kind}");
    }
    let mut weak = DataChannelSetup { senders: 1, ..pool(BY_WORD, 2, &[8, 3, 8]) };
    weak.guarantees.completion_means_placed = false;
    assert_eq!(failure(weak), "a grant that was not requested");
}

#[cfg(canary)]
#[test]
fn canary_defects_are_caught() {
    use farside_protocol::channel::ChannelMutant::*;
    let mailbox = |kind, signal| setup(kind, signal, &[8, 3, 8]);
    let mut tail = mailbox(IMMEDIATE, BY_WORD);
    tail.shape.acknowledge = TAIL;
    let table = [
        (mailbox(DETACHED, BY_WORD), SlotReusedEarly, "out of order", 14),
        (mailbox(INLINED, BY_WORD), SlotReusedEarly, "a message out of turn", 7),
        (mailbox(IMMEDIATE, BY_WORD), SlotReusedEarly, "a message out of turn", 6),
        (mailbox(DETACHED, BY_WORD), BellBeforeData, "a message that was never sent", 4),
        (mailbox(DETACHED, BY_MESSAGE), BellBeforeData, "a length that no message has", 2),
        (pool(BY_WORD, 2, &[8]), SlotGrantedTwice, "a message that was never sent", 14),
        (pool(BY_MESSAGE, 2, &[8]), SlotGrantedTwice, "a message that was never sent", 9),
        (mailbox(INLINED, BY_WORD), BellNotCleared, "a message out of turn", 12),
        (pool(BY_WORD, 1, &[8, 3]), BellNotCleared, "a message came twice", 15),
        (tail, TailNotAsked, "a sender never learns that all was processed", 21),
    ];
    for (setup, mutant, text, steps) in table {
        let told = format!("{mutant:?} {}", setup.kind);
        assert_eq!(caught(setup, mutant), (text.to_owned(), steps), "{told}");
    }
}
