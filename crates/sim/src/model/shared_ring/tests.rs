use super::*;
use crate::explorer::Explorer;
use farside_protocol::channel::{Acknowledge, DeviceWords, Signal};

const IMMEDIATE: Kind = Kind::SharedRingImmediate;
const ZEROING: Kind = Kind::SharedRingInlinedZeroing;

/// Two records of the largest message, and a third one that runs into the guard.
const SHAPE: Shape = Shape {
    message_bytes_max: 8,
    slots: 2,
    ring_bytes: 64,
    peers_max: 3,
    mirrored: false,
    prefetch_bytes: 0,
    acknowledge: Acknowledge::ReadTail,
    signal: Signal::Message,
    device: DeviceWords::Nothing,
    piece_bytes: 1 << 16,
};

fn setup(kind: Kind, messages: &[&[u32]], deaths: u8, held_max: usize) -> SharedRingSetup {
    let messages: Vec<_> = messages.iter().map(|sizes| sizes.to_vec()).collect();
    let shape = Shape { peers_max: messages.len() as u16, ..SHAPE };
    SharedRingSetup { kind, shape, messages, deaths, held_max }
}

fn states(setup: SharedRingSetup) -> u64 {
    let told = format!("{setup:?}");
    let model = Ring::new(setup, |sender| sender, |receiver| receiver);
    match Explorer::new().explore(&model).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!("{told}\n{text}"),
    }
}

/// Sizes of the messages of each sender, deaths, messages held.
type Case<'a> = (&'a [&'a [u32]], u8, usize);

fn all_states(cases: &[Case<'_>]) -> Vec<(Kind, Vec<u64>)> {
    let of = |kind| {
        let states = |case: &Case<'_>| states(setup(kind, case.0, case.1, case.2));
        (kind, cases.iter().map(states).collect())
    };
    vec![of(IMMEDIATE), of(ZEROING)]
}

#[test]
fn rings_wrap_and_fill() {
    let cases: [Case<'_>; 3] =
        [(&[&[8, 3, 0, 8]], 0, 2), (&[&[8], &[3]], 0, 2), (&[&[8, 3], &[8, 0]], 0, 2)];
    let expected = [(IMMEDIATE, vec![4_591, 150, 26_998]), (ZEROING, vec![6_335, 164, 33_454])];
    assert_eq!(all_states(&cases), expected, "{cases:?}");
}

#[test]
fn dead_senders_do_not_block_the_ring() {
    let cases: [Case<'_>; 5] = [
        (&[&[8, 3, 8]], 1, 2),
        (&[&[8], &[3]], 1, 2),
        (&[&[8], &[3]], 2, 1),
        (&[&[8, 3], &[8]], 1, 1),
        (&[&[8], &[3], &[]], 1, 2),
    ];
    let expected = [
        (IMMEDIATE, vec![4_211, 2_382, 6_891, 32_810, 32_744]),
        (ZEROING, vec![4_333, 2_748, 7_921, 41_335, 38_150]),
    ];
    assert_eq!(all_states(&cases), expected, "{cases:?}");
}

#[cfg(canary)]
#[test]
fn canary_defects_are_found() {
    use farside_protocol::channel::ChannelMutant;
    let one: &[&[u32]] = &[&[8, 3, 8]];
    let two: &[&[u32]] = &[&[8, 3], &[8]];
    let cases = [
        (ChannelMutant::TailUnchecked, IMMEDIATE, one, 0, "a bell out of range", 11),
        (ChannelMutant::TailUnchecked, ZEROING, one, 0, "a message beyond the ring", 19),
        (ChannelMutant::NotZeroed, ZEROING, one, 0, "a length that no message has", 23),
        (ChannelMutant::TrailerUnchecked, ZEROING, one, 0, "a message that was never sent", 6),
        (ChannelMutant::AnswersWhileFetching, IMMEDIATE, two, 1, "a bell out of range", 12),
        (ChannelMutant::AnswersWhileFetching, ZEROING, two, 1, "a message never comes", 13),
        (ChannelMutant::RepairSkipsLiving, IMMEDIATE, two, 1, "a bell out of range", 12),
        (ChannelMutant::RepairSkipsLiving, ZEROING, two, 1, "a message never comes", 13),
    ];
    for (mutant, kind, messages, deaths, violation, steps) in cases {
        let model = Ring::new(
            setup(kind, messages, deaths, 2),
            |sender| sender.with_mutant(mutant),
            |receiver| receiver.with_mutant(mutant),
        );
        let failure = Explorer::new().explore(&model).failure();
        let failure = failure.unwrap_or_else(|| panic!("{mutant:?} of {kind} is not found"));
        let found = (failure.violation.0.as_str(), failure.trace.len());
        assert_eq!(found, (violation, steps), "{mutant:?} of {kind}: {}", failure.transcript);
    }
}
