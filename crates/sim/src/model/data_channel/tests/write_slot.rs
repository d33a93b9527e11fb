//! WRITE into mailboxes. Numbers are those of the states.

use super::*;

const DETACHED: Kind = Kind::WriteSlotDetached;
const INLINED: Kind = Kind::WriteSlotInlined;
const IMMEDIATE: Kind = Kind::WriteSlotImmediate;

fn setup(kind: Kind, signal: Signal, messages: &[u32]) -> Setup {
    Setup::new(kind, Shape { message_bytes_max: 8, signal, ..TINY }, messages)
}

fn pool(signal: Signal, slots: u32, messages: &[u32]) -> Setup {
    let shape = Shape { message_bytes_max: 8, signal, slots, ..TINY };
    Setup { senders: 2, ..Setup::new(Kind::WriteSlotReserved, shape, messages) }
}

#[test]
fn every_order_of_events_delivers_each_message_once() {
    let table = [
        (DETACHED, Signal::Word, [411, 4694]),
        (DETACHED, Signal::Message, [473, 5962]),
        (INLINED, Signal::Word, [332, 2287]),
        (IMMEDIATE, Signal::Word, [394, 2771]),
    ];
    for (kind, signal, expected) in table {
        let one = |gather| states(Setup { gather, ..setup(kind, signal, &[8, 3, 8, 8]) });
        assert_eq!([false, true].map(one), expected, "{kind} {signal:?}");
    }
}

#[test]
fn a_pool_serves_each_sender() {
    let table = [
        (Signal::Word, 1, false, 35748),
        (Signal::Word, 1, true, 181_848),
        (Signal::Word, 2, false, 229_712),
        (Signal::Message, 1, false, 4151),
        (Signal::Message, 1, true, 28277),
        (Signal::Message, 2, false, 52381),
    ];
    let run = |(signal, slots, gather, _)| {
        (signal, slots, gather, states(Setup { gather, ..pool(signal, slots, &[8, 3]) }))
    };
    assert_eq!(table.map(run), table);
}

#[test]
fn either_side_may_die_at_any_step() {
    let table = [
        (DETACHED, Signal::Word, 1711),
        (DETACHED, Signal::Message, 2223),
        (INLINED, Signal::Word, 1450),
        (IMMEDIATE, Signal::Word, 1802),
    ];
    for (kind, signal, expected) in table {
        let one = Setup { mortal: vec![0, 1], ..setup(kind, signal, &[8, 3, 8]) };
        assert_eq!(states(one), expected, "{kind} {signal:?}");
    }
    let pools = [
        (Signal::Word, 0, 77929),
        (Signal::Word, 2, 62809),
        (Signal::Message, 0, 12880),
        (Signal::Message, 2, 11585),
    ];
    for (signal, dead, expected) in pools {
        let one = Setup { mortal: vec![dead], ..pool(signal, 1, &[8, 3]) };
        assert_eq!(states(one), expected, "{signal:?}, {dead} dies");
    }
}

#[test]
fn a_network_without_the_guarantee_fails() {
    for kind in [DETACHED, INLINED, Kind::WriteSlotReserved] {
        for gather in [false, true] {
            let mut one = Setup { gather, ..setup(kind, Signal::Word, &[8, 3]) };
            one.guarantees.message_order = false;
            one.guarantees.byte_order = false;
            assert_eq!(failure(one), "a message that nobody sent", "{kind}");
        }
    }
}

#[cfg(canary)]
#[test]
fn defects_are_caught() {
    use farside_protocol::channel::Mutant;
    let caught = |setup: Setup, mutant| {
        let sender = |sender: Sender| sender.with_mutant(mutant);
        let receiver = |receiver: Receiver| receiver.with_mutant(mutant);
        let model = DataChannel::new(setup, sender, receiver);
        assert!(Explorer::new().explore(&model).failure().is_some(), "{mutant:?}");
    };
    for kind in [DETACHED, INLINED, IMMEDIATE] {
        caught(setup(kind, Signal::Word, &[8, 3, 8]), Mutant::SlotReusedEarly);
    }
    for signal in [Signal::Word, Signal::Message] {
        caught(setup(DETACHED, signal, &[8, 3, 8]), Mutant::BellBeforeData);
        caught(pool(signal, 2, &[8]), Mutant::SlotGrantedTwice);
    }
    caught(setup(INLINED, Signal::Word, &[8, 3, 8]), Mutant::BellNotCleared);
    caught(pool(Signal::Word, 1, &[8, 3]), Mutant::BellNotCleared);
}
