//! Channels with receivers that READ from the sender's memory.

use super::*;

const DETACHED: Kind = Kind::ReadSlotDetached;
const INLINED: Kind = Kind::ReadSlotInlined;
const NOTIFY: Kind = Kind::ReadSlotNotify;
const INDIRECT: Kind = Kind::ReadSlotIndirect;
const RING_DETACHED: Kind = Kind::ReadRingDetached;
const RING_INLINED: Kind = Kind::ReadRingInlined;
const RING_NOTIFY: Kind = Kind::ReadRingNotify;

const BY_WORD: Signal = Signal::Word;
const BY_MESSAGE: Signal = Signal::Message;

/// Three messages fill the slots or the ring and begin again.
fn reading(
    kind: Kind,
    acknowledge: Acknowledge,
    signal: Signal,
    messages: &[u32],
) -> DataChannelSetup {
    let shape =
        Shape { ring_bytes: 64, message_bytes_max: 8, peers_max: 1, acknowledge, signal, ..TINY };
    DataChannelSetup::new(kind, shape, messages)
}

type Row = (Kind, Acknowledge, Signal, u64);

fn run(table: &[Row], messages: &[u32], change: impl Fn(DataChannelSetup) -> DataChannelSetup) {
    let one = |(kind, way, signal, expected): &Row| {
        ((*kind, *way, *signal), change(reading(*kind, *way, *signal, messages)), *expected)
    };
    assert_states(table.iter().map(one));
}

#[test]
fn mailboxes_deliver_each_message_once_in_every_order_of_events() {
    let table = [
        (DETACHED, WORD, BY_WORD, 6022),
        (DETACHED, MESSAGE, BY_WORD, 3492),
        (DETACHED, TAIL, BY_WORD, 4719),
        (NOTIFY, WORD, BY_WORD, 1095),
        (NOTIFY, MESSAGE, BY_WORD, 867),
        (NOTIFY, TAIL, BY_WORD, 1580),
        (NOTIFY, WORD, BY_MESSAGE, 847),
        (NOTIFY, MESSAGE, BY_MESSAGE, 647),
        (NOTIFY, TAIL, BY_MESSAGE, 1125),
        (INDIRECT, WORD, BY_WORD, 4558),
        (INDIRECT, MESSAGE, BY_WORD, 1697),
        (INDIRECT, TAIL, BY_WORD, 2901),
        (INDIRECT, WORD, BY_MESSAGE, 6036),
        (INDIRECT, MESSAGE, BY_MESSAGE, 2665),
        (INDIRECT, TAIL, BY_MESSAGE, 3361),
    ];
    run(&table, &[8, 3, 8], |setup| setup);
}

/// One mailbox serves again and again: with two there are half a million states.
#[test]
fn a_mailbox_with_an_inlined_bell_differs_from_its_previous_message() {
    let table = [
        (INLINED, WORD, BY_WORD, 3217),
        (INLINED, MESSAGE, BY_WORD, 2803),
        (INLINED, TAIL, BY_WORD, 3729),
    ];
    run(&table, &[8, 3, 8], |mut setup| {
        setup.shape.slots = 1;
        setup
    });
    run(&[(INLINED, MESSAGE, BY_WORD, 52_256)], &[3, 8], |setup| setup);
}

#[test]
#[ignore = "a minute: half a million states; run with --ignored"]
fn two_mailboxes_with_inlined_bells_are_told_from_what_they_were() {
    run(&[(INLINED, WORD, BY_WORD, 430_747)], &[8, 3, 8], |setup| setup);
}

#[test]
fn rings_deliver_each_message_once_in_every_order_of_events() {
    let table = [
        (RING_DETACHED, WORD, BY_WORD, 45_916),
        (RING_DETACHED, MESSAGE, BY_WORD, 25_800),
        (RING_DETACHED, TAIL, BY_WORD, 42_442),
        (RING_INLINED, WORD, BY_WORD, 9027),
        (RING_INLINED, MESSAGE, BY_WORD, 4194),
        (RING_INLINED, TAIL, BY_WORD, 5483),
        (RING_NOTIFY, WORD, BY_WORD, 61_675),
        (RING_NOTIFY, MESSAGE, BY_WORD, 31_412),
        (RING_NOTIFY, TAIL, BY_WORD, 29_348),
    ];
    run(&table, &[8, 3, 8, 8, 8], one_at_a_time);
    let table = [
        (RING_DETACHED, WORD, BY_WORD, 4776),
        (RING_INLINED, WORD, BY_WORD, 3059),
        (RING_NOTIFY, WORD, BY_WORD, 2636),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 9344),
    ];
    run(&table, &[8, 3, 8], |setup| setup);
}

#[test]
#[ignore = "two minutes: a million states; run with --ignored"]
fn notices_that_overtake_each_other_lead_through_the_ring() {
    let table = [
        (RING_NOTIFY, WORD, BY_MESSAGE, 397_334),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 295_116),
        (RING_NOTIFY, TAIL, BY_MESSAGE, 306_786),
    ];
    run(&table, &[8, 3, 8, 8, 8], one_at_a_time);
    run(&[(RING_NOTIFY, WORD, BY_MESSAGE, 350_630)], &[8, 3, 8, 8, 8], |mut setup| {
        setup.shape.mirrored = true;
        one_at_a_time(setup)
    });
}

fn one_at_a_time(setup: DataChannelSetup) -> DataChannelSetup {
    DataChannelSetup { held_max: 1, ..setup }
}

#[test]
fn mirrored_rings_join_their_ends() {
    let table = [(RING_DETACHED, WORD, BY_WORD, 46_256), (RING_INLINED, WORD, BY_WORD, 8983)];
    run(&table, &[8, 3, 8, 8, 8], |mut setup| {
        setup.shape.mirrored = true;
        one_at_a_time(setup)
    });
}

#[test]
fn prefetching_tells_old_words_from_new_ones() {
    let prefetch = |mut setup: DataChannelSetup| {
        setup.shape.prefetch_bytes = 24;
        setup
    };
    run(&[(RING_INLINED, WORD, BY_WORD, 62_193)], &[8, 3, 8], prefetch);
}

#[test]
fn messages_are_built_in_memory_that_is_lent() {
    let table = [
        (DETACHED, WORD, BY_WORD, 6022),
        (NOTIFY, WORD, BY_MESSAGE, 847),
        (RING_DETACHED, WORD, BY_WORD, 4776),
        (RING_INLINED, WORD, BY_WORD, 3059),
        (RING_NOTIFY, WORD, BY_MESSAGE, 12_978),
    ];
    run(&table, &[8, 3, 8], |setup| DataChannelSetup { gather: true, ..setup });
    // From anywhere, once the receiver has said where to.
    let table = [(INDIRECT, WORD, BY_WORD, 5706), (INDIRECT, WORD, BY_MESSAGE, 5537)];
    run(&table, &[8, 3], |setup| DataChannelSetup { gather: true, ..setup });
}

#[test]
fn messages_are_fetched_to_where_the_program_names() {
    let table = [
        (DETACHED, WORD, BY_WORD, 15_767),
        (INLINED, WORD, BY_WORD, 6691),
        (NOTIFY, WORD, BY_WORD, 1652),
        (NOTIFY, WORD, BY_MESSAGE, 1350),
        (INDIRECT, WORD, BY_WORD, 11_541),
        (INDIRECT, WORD, BY_MESSAGE, 18_063),
        (RING_DETACHED, WORD, BY_WORD, 3379),
        (RING_INLINED, WORD, BY_WORD, 6677),
        (RING_NOTIFY, WORD, BY_WORD, 2267),
        (RING_NOTIFY, WORD, BY_MESSAGE, 9142),
    ];
    run(&table, &[8, 3, 8], |setup| DataChannelSetup { offers: true, ..setup });
    run(&[(RING_INLINED, WORD, BY_WORD, 958)], &[8, 3, 8], |mut setup| {
        setup.shape.prefetch_bytes = 24;
        DataChannelSetup { offers: true, held_max: 1, ..setup }
    });
}

#[test]
fn two_receivers_share_a_sender() {
    let table = [
        (DETACHED, WORD, BY_WORD, 8965),
        (NOTIFY, WORD, BY_WORD, 720),
        (NOTIFY, MESSAGE, BY_MESSAGE, 389),
        (RING_DETACHED, WORD, BY_WORD, 3154),
        (RING_INLINED, WORD, BY_WORD, 3154),
        (RING_NOTIFY, WORD, BY_WORD, 924),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 1795),
    ];
    run(&table, &[8], |mut setup| {
        setup.shape.peers_max = 2;
        DataChannelSetup { receivers: 2, held_max: 1, ..setup }
    });
}

#[test]
fn either_side_may_die_at_any_step() {
    let table = [
        (DETACHED, WORD, BY_WORD, 11_643),
        (INLINED, WORD, BY_WORD, 7040),
        (NOTIFY, WORD, BY_WORD, 2605),
        (NOTIFY, MESSAGE, BY_MESSAGE, 2083),
        (INDIRECT, WORD, BY_WORD, 7135),
        (INDIRECT, MESSAGE, BY_MESSAGE, 6274),
        (RING_DETACHED, WORD, BY_WORD, 4092),
        (RING_INLINED, TAIL, BY_WORD, 3071),
        (RING_NOTIFY, WORD, BY_WORD, 3713),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 14_571),
    ];
    run(&table, &[8, 3], |mut setup| {
        if setup.kind == INLINED {
            setup.shape.slots = 1;
        }
        DataChannelSetup { mortal: vec![0, 1], ..setup }
    });
}

/// A receiver that comes after one that died, with its number: it begins at what is sent next.
#[test]
fn a_number_serves_again() {
    let table = [
        (DETACHED, WORD, BY_WORD, 4550),
        (NOTIFY, WORD, BY_WORD, 1401),
        (NOTIFY, MESSAGE, BY_MESSAGE, 928),
        (RING_DETACHED, TAIL, BY_WORD, 2451),
        (RING_INLINED, WORD, BY_WORD, 1648),
        (RING_NOTIFY, WORD, BY_WORD, 2044),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 6357),
    ];
    run(&table, &[8, 3], |setup| DataChannelSetup {
        mortal: vec![1],
        reconnects: 1,
        held_max: 1,
        ..setup
    });
}

/// What arrives waits in a queue until the program polls.
#[test]
fn receives_suffice_when_arrivals_are_handled_late() {
    let table = [
        (DETACHED, MESSAGE, BY_WORD, 5670),
        (NOTIFY, MESSAGE, BY_MESSAGE, 1015),
        (INDIRECT, MESSAGE, BY_MESSAGE, 6894),
        (RING_DETACHED, MESSAGE, BY_WORD, 4692),
        (RING_INLINED, MESSAGE, BY_WORD, 3046),
        (RING_NOTIFY, WORD, BY_MESSAGE, 17_658),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 17_008),
    ];
    run(&table, &[8, 3, 8], |setup| DataChannelSetup { late: true, ..setup });
    assert_states([("overtaken", overtaken(), 83_197)]);
}

/// Notifications overtaken by one that covers more messages, which are read and acknowledged before the others
/// arrive.
fn overtaken() -> DataChannelSetup {
    let one = reading(RING_NOTIFY, MESSAGE, BY_MESSAGE, &[8, 8, 8, 8]);
    DataChannelSetup { late: true, held_max: 1, ..one }
}

#[test]
fn room_comes_back_unasked() {
    let table = [
        (DETACHED, MESSAGE, BY_WORD, 8262),
        (NOTIFY, MESSAGE, BY_MESSAGE, 1172),
        (INDIRECT, MESSAGE, BY_MESSAGE, 6600),
        (RING_DETACHED, MESSAGE, BY_WORD, 7322),
        (RING_INLINED, MESSAGE, BY_WORD, 1646),
        (RING_NOTIFY, WORD, BY_WORD, 7988),
        (RING_NOTIFY, MESSAGE, BY_MESSAGE, 32_756),
    ];
    run(&table, &[8, 3, 8, 8], |setup| DataChannelSetup { lazy: true, ..setup });
}

/// Only the indirect channel by words needs order. The others need nothing but, for words that
/// acknowledge, that a completed WRITE is placed; what they have instead is the checksum and the
/// order of the sender's stores, and those are what planted defects take away.
#[test]
fn a_network_without_the_guarantee_fails() {
    for gather in [false, true] {
        let mut weak = DataChannelSetup { gather, ..reading(INDIRECT, WORD, BY_WORD, &[8, 3]) };
        weak.guarantees.message_order = false;
        assert_eq!(failure(weak), "a message that was never sent");
    }
    for kind in [DETACHED, NOTIFY, INDIRECT, RING_DETACHED, RING_INLINED, RING_NOTIFY] {
        let mut weak = reading(kind, WORD, BY_MESSAGE, &[8, 3, 8]);
        weak.guarantees.completion_means_placed = false;
        assert_eq!(failure(weak), "a sender never learns that all was processed", "{kind}");
    }
}

#[cfg(canary)]
#[test]
fn canary_defects_are_caught() {
    use farside_protocol::channel::ChannelMutant::*;
    let table = [
        (DETACHED, CreditOffByOne, "a bell of another message", 9),
        (INLINED, ChecksumUnchecked, "a message that was never sent", 9),
        (INLINED, CreditOffByOne, "a bell of another message", 9),
        (NOTIFY, CreditOffByOne, "a bell of another message", 8),
        (INDIRECT, BellBeforeData, "a message that was never sent", 7),
        (RING_DETACHED, CreditOffByOne, "a head out of range", 10),
        (RING_INLINED, NextBellNotUnset, "out of order", 39),
        (RING_NOTIFY, CreditOffByOne, "out of order", 14),
    ];
    for (kind, mutant, text, steps) in table {
        let mut one = reading(kind, WORD, BY_WORD, &[8, 3, 8, 8, 8]);
        one.shape.slots = if kind == INLINED { 1 } else { 2 };
        let one = DataChannelSetup { held_max: 1, ..one };
        assert_eq!(caught(one, mutant), (text.to_owned(), steps), "{kind} {mutant:?}");
    }
    for (kind, text, steps) in
        [(DETACHED, "a bell of another message", 19), (NOTIFY, "a bell of another message", 18)]
    {
        let mut one = reading(kind, WORD, BY_WORD, &[8, 3]);
        (one.shape.peers_max, one.shape.slots) = (2, 1);
        let one = DataChannelSetup { receivers: 2, held_max: 1, ..one };
        assert_eq!(caught(one, StaleTail), (text.to_owned(), steps), "{kind}");
    }
    let mut prefetch = reading(RING_INLINED, WORD, BY_WORD, &[8, 3, 8]);
    prefetch.shape.prefetch_bytes = 24;
    assert_eq!(
        caught(prefetch, ChecksumUnchecked),
        ("a message that was never sent".to_owned(), 11)
    );
    assert_eq!(
        caught(overtaken(), LateNoticeForgotten),
        ("a message found no receive".to_owned(), 26)
    );
    let late = reading(RING_DETACHED, WORD, BY_WORD, &[8, 3]);
    let late = DataChannelSetup { mortal: vec![1], reconnects: 1, ..late };
    assert_eq!(caught(late, WrongStart), ("out of order".to_owned(), 14));
}
