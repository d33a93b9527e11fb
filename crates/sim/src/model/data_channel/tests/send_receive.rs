//! SEND into posted receives.

use super::*;

fn setup(kind: Kind, messages: &[u32], acknowledge: Acknowledge) -> DataChannelSetup {
    DataChannelSetup::new(kind, Shape { message_bytes_max: 8, acknowledge, ..TINY }, messages)
}

fn shared(messages: &[u32], acknowledge: Acknowledge) -> DataChannelSetup {
    DataChannelSetup { senders: 2, ..setup(Kind::SendShared, messages, acknowledge) }
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    let table = [
        (WORD, [3927, 75_455, 5689, 128_267, 1687]),
        (MESSAGE, [2336, 44_165, 2371, 53_259, 1140]),
    ];
    for (acknowledge, expected) in table {
        let one = |gather| DataChannelSetup {
            gather,
            ..setup(Kind::Send, &[8, 3, 0, 8, 8], acknowledge)
        };
        let two = |gather| DataChannelSetup { gather, ..shared(&[8, 3], acknowledge) };
        let integers = setup(Kind::SendBufferless, &[4, 4, 4, 4, 4], acknowledge);
        let all = [one(false), one(true), two(false), two(true), integers];
        let labels = ["send", "send gather", "shared", "shared gather", "bufferless"];
        let rows = labels.into_iter().zip(all).zip(expected);
        assert_states(rows.map(|((told, one), count)| ((acknowledge, told), one, count)));
    }
}

#[test]
fn either_side_may_die_at_any_step() {
    let mortal = |setup, mortal: &[usize]| DataChannelSetup { mortal: mortal.to_vec(), ..setup };
    assert_states([
        ("send", mortal(setup(Kind::Send, &[4, 4, 4], MESSAGE), &[0, 1]), 4252),
        ("send, words", mortal(setup(Kind::Send, &[4, 4, 4], WORD), &[0, 1]), 5899),
        ("bufferless", mortal(setup(Kind::SendBufferless, &[4, 4, 4], MESSAGE), &[0, 1]), 2794),
        ("a sender of two", mortal(shared(&[8, 3], WORD), &[0]), 16_738),
        ("the receiver of two", mortal(shared(&[8, 3], WORD), &[2]), 15_571),
    ]);
}

/// A sender that comes after one that died, with its number: messages of the dead one are still
/// held, and the queue is so much shorter (`send_receive/mod.rs`).
#[test]
fn a_number_serves_again() {
    let again = |way| {
        let one =
            DataChannelSetup { mortal: vec![0], reconnects: 1, held_max: 1, ..shared(&[8], way) };
        DataChannelSetup { waits: true, ..one }
    };
    assert_states([("words", again(WORD), 846), ("messages", again(MESSAGE), 418)]);
}

/// What arrives waits in a queue until the program polls.
#[test]
fn receives_suffice_when_arrivals_are_handled_late() {
    let late = |setup| DataChannelSetup { late: true, ..setup };
    assert_states([
        ("send, words", late(setup(Kind::Send, &[8, 3, 8, 8], WORD)), 2615),
        ("send, messages", late(setup(Kind::Send, &[8, 3, 8, 8], MESSAGE)), 2287),
        ("shared", late(shared(&[8, 3], MESSAGE)), 5021),
        ("bufferless", late(setup(Kind::SendBufferless, &[4, 4, 4, 4], MESSAGE)), 1171),
    ]);
}

#[test]
fn room_comes_back_unasked() {
    let lazy = |setup| DataChannelSetup { lazy: true, ..setup };
    assert_states([
        ("send, words", lazy(setup(Kind::Send, &[8, 3, 8, 8], WORD)), 1286),
        ("send, messages", lazy(setup(Kind::Send, &[8, 3, 8, 8], MESSAGE)), 738),
        ("shared", lazy(shared(&[8, 3], MESSAGE)), 1745),
        ("bufferless", lazy(setup(Kind::SendBufferless, &[4, 4, 4, 4], MESSAGE)), 394),
    ]);
}

/// They need no guarantee of the network for messages: the only failure below is an older word of acknowledgement that
/// overwrites a newer one. (With shared receives each sender has one here, and so one word in flight.)
#[test]
fn words_that_land_late_hide_newer_ones() {
    for (kind, bytes) in [(Kind::Send, 8), (Kind::SendBufferless, 4)] {
        let mut weak = setup(kind, &[bytes; 4], WORD);
        weak.guarantees.completion_means_placed = false;
        assert_eq!(failure(weak), "a sender never learns that all was processed", "{kind}");
    }
}

/// What a defect of a sender leads to.
#[cfg(canary)]
#[test]
fn canary_a_credit_too_many_is_caught() {
    use farside_protocol::channel::ChannelMutant::CreditOffByOne;
    let all = [
        (setup(Kind::Send, &[8; 3], WORD), "a message found no receive", 6),
        (setup(Kind::SendBufferless, &[4; 3], WORD), "a message found no receive", 6),
        (shared(&[8, 8], MESSAGE), "more messages than receives", 4),
    ];
    for (one, text, steps) in all {
        assert_eq!(caught(one, CreditOffByOne), (text.to_owned(), steps));
    }
}
