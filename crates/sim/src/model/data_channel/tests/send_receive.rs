//! SEND into posted receives. Numbers are those of the states.

use super::*;

fn setup(kind: Kind, messages: &[u32], acknowledge: Acknowledge) -> Setup {
    Setup::new(kind, Shape { message_bytes_max: 8, acknowledge, ..TINY }, messages)
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    let table = [
        (Acknowledge::Word, [3927, 75455, 5689, 128_267, 1687]),
        (Acknowledge::Message, [2336, 44165, 2371, 53259, 1140]),
    ];
    for (acknowledge, expected) in table {
        let one = |gather| Setup { gather, ..setup(Kind::Send, &[8, 3, 0, 8, 8], acknowledge) };
        let shared =
            |gather| Setup { gather, senders: 2, ..setup(Kind::SendShared, &[8, 3], acknowledge) };
        let integers = setup(Kind::SendBufferless, &[4, 4, 4, 4, 4], acknowledge);
        let all = [one(false), one(true), shared(false), shared(true), integers];
        assert_eq!(all.map(states), expected, "{acknowledge:?}");
    }
}

#[test]
fn either_side_may_die_at_any_step() {
    for (kind, expected) in [(Kind::Send, 4666), (Kind::SendBufferless, 2941)] {
        let one = setup(kind, &[4, 4, 4], Acknowledge::Message);
        assert_eq!(states(Setup { mortal: vec![0, 1], ..one }), expected, "{kind}");
    }
    for (dead, expected) in [(0, 16738), (2, 15571)] {
        let shared = setup(Kind::SendShared, &[8, 3], Acknowledge::Word);
        let shared = Setup { senders: 2, mortal: vec![dead], ..shared };
        assert_eq!(states(shared), expected, "{dead} dies");
    }
}

/// What a defect of a sender leads to.
#[cfg(canary)]
#[test]
fn a_credit_too_many_is_caught() {
    let mutant = farside_protocol::channel::Mutant::CreditOffByOne;
    for (kind, bytes) in [(Kind::Send, 8), (Kind::SendBufferless, 4)] {
        let one = setup(kind, &[bytes; 3], Acknowledge::Word);
        let change = |sender: Sender| sender.with_mutant(mutant);
        let model = DataChannel::new(one, change, |receiver| receiver);
        let failure = Explorer::new().explore(&model).failure().expect("a defect");
        assert_eq!(failure.violation.0, "a message found no receive", "{kind}");
    }
}
