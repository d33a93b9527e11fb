extern crate std;

use super::super::Half as _;
use super::super::Name;
use super::super::effects::Peer;
use super::super::half::{Arrival, HalfRefusal, Payload};
use super::super::kind::Kind;
use super::super::outbound::PROGRESS;
use super::super::shape::{Acknowledge, DeviceWords, Shape};
use super::super::tests::network::{Network, PostedVerb, RequestInFlight};
use super::super::tests::suite::{self, push_run};
use super::*;
use crate::wire::Violation;
use farside_base::{Access, LocalSlice, Memory as _, Random, RegionId};
use std::vec;
use std::vec::Vec;

const KINDS: [Kind; 2] = [Kind::SharedRingImmediate, Kind::SharedRingInlinedZeroing];
const SHAPE: Shape =
    Shape { message_bytes_max: 40, acknowledge: Acknowledge::ReadTail, ..suite::SHAPE };

fn mirrored(mirrored: bool) -> Shape {
    // A mirrored ring has at least a page.
    if mirrored { Shape { mirrored, ring_bytes: 4096, slots: 64, ..SHAPE } } else { SHAPE }
}

fn send(net: &mut Network, from: usize, message: &[u8]) -> Result<(), HalfRefusal> {
    net.put(from, message).map(drop)
}

/// The requests of a sender in flight.
fn wire(net: &Network, from: usize) -> Vec<&RequestInFlight> {
    net.flights(from, true).into_iter().map(|at| &net.flying[at]).collect()
}

/// The number of the receiver's words in flight.
fn words(net: &Network) -> usize {
    net.flying.iter().filter(|flight| !flight.to_receiver).count()
}

fn word(net: &Network, apart: bool, offset: u64) -> u64 {
    let receiver = &net.receivers[0];
    let counters = receiver.counters.as_ref().filter(|_| apart);
    counters.unwrap_or(&receiver.bells).load_word(offset).unwrap()
}

fn head(net: &Network) -> u64 {
    word(net, RingWords::of(&net.shape).head_apart, HEAD)
}

fn tail(net: &Network) -> u64 {
    word(net, RingWords::of(&net.shape).tail_apart, TAIL)
}

#[test]
fn a_message_costs_an_atomic_and_a_write() {
    for (kind, wide, gather) in KINDS.into_iter().flat_map(|kind| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(w, g)| (kind, w, g))
    }) {
        let mut world = Network::all(kind, mirrored(wide), 2);
        if gather {
            world.gather(1, b"before the welcome").unwrap();
        } else {
            send(&mut world, 1, b"before the welcome").unwrap();
        }
        assert!(wire(&world, 1).is_empty(), "its number is not known yet");
        world.settle().unwrap();
        world.advance(1).unwrap();
        assert!(matches!(wire(&world, 1)[0].verb, PostedVerb::Add(..)));
        world.carry_of(1, 0).unwrap();
        assert!(world.found(0).unwrap().is_none(), "only reserved");
        assert!(matches!(wire(&world, 1)[0].verb, PostedVerb::Write(..)));
        world.settle().unwrap();
        let (received, bytes) = world.found(0).unwrap().unwrap();
        assert_eq!((received.peer, &bytes[..]), (Peer(1), &b"before the welcome"[..]));
        assert!(!world.senders[1].half.is_drained());
        world.release(received.held).unwrap();
        assert_eq!(world.release(received.held), Err(HalfRefusal::NoSuch("held message")));
        world.sender_at(1, |half, _, effects| half.ask_progress(effects));
        world.settle().unwrap();
        assert!(world.senders[1].half.is_drained());
        assert_eq!(head(&world), tail(&world));
    }
}

#[test]
fn full_is_refused_and_the_tail_is_read_once_at_a_time() {
    for kind in KINDS {
        let mut world = Network::all(kind, SHAPE, 2);
        world.settle().unwrap();
        assert_eq!(send(&mut world, 0, &[0; 41]), Err(HalfRefusal::TooLong { bytes_max: 40 }));
        let many = [LocalSlice { region: RegionId(2), offset: 0, bytes: 1 }; 9];
        let refused =
            world.sender(|half, own, effects| half.send(Payload::Gather(&many), own, effects));
        assert!(matches!(refused, Err(HalfRefusal::Form(_))));
        while send(&mut world, 0, &[7; 40]).is_ok() {}
        for _ in 0..4 {
            send(&mut world, 1, &[8; 40]).unwrap();
        }
        assert_eq!(send(&mut world, 1, &[8; 40]), Err(HalfRefusal::Full));
        world.settle().unwrap();
        let reads = |world: &Network| {
            let read = |flight: &&&RequestInFlight| matches!(flight.verb, PostedVerb::Read(..));
            wire(world, 1).iter().filter(read).count()
        };
        world.advance(1).unwrap();
        world.advance(1).unwrap();
        assert_eq!(reads(&world), 1, "{kind}");
        let mut came = 0;
        while let Some((received, _)) = world.found(0).unwrap() {
            world.release(received.held).unwrap();
            world.advance(0).unwrap();
            world.advance(1).unwrap();
            world.settle().unwrap();
            came += 1;
        }
        world.advance(1).unwrap();
        world.settle().unwrap();
        while let Some((received, _)) = world.found(0).unwrap() {
            world.release(received.held).unwrap();
            came += 1;
        }
        assert_eq!(came, 8, "{kind}");
    }
}

#[test]
fn sender_deaths_do_not_block_others() {
    for kind in KINDS {
        for wide in [false, true] {
            (1..60).for_each(|seed| push_run(kind, &mirrored(wide), seed * 7919, 40, 2));
        }
    }
}

#[test]
fn words_may_be_in_any_region() {
    for kind in KINDS {
        for device in DeviceWords::ALL {
            let shape = Shape { device, ..SHAPE };
            let mut world = Network::all(kind, shape, 2);
            world.settle().unwrap();
            send(&mut world, 1, &[3; 40]).unwrap();
            world.settle().unwrap();
            let (received, _) = world.found(0).unwrap().unwrap();
            world.release(received.held).unwrap();
            assert!(head(&world) > 0, "{kind} {device:?}");
            assert_eq!(head(&world), tail(&world), "{kind} {device:?}");
            (1..20).for_each(|seed| push_run(kind, &shape, seed * 7919, 40, 2));
        }
    }
}

/// A region's access rights are exactly those that some word in it needs.
#[test]
fn regions_of_words_give_no_more_rights_than_their_words_need() {
    let words = Access::READ.with(Access::WRITE);
    let table = [
        (DeviceWords::Nothing, words, Access::ATOMIC),
        (DeviceWords::Head, words, Access::ATOMIC),
        (DeviceWords::Tail, Access::ATOMIC, words),
        (DeviceWords::All, Access::NONE, words.with(Access::ATOMIC)),
    ];
    for (device, bells, counters) in table {
        let plan = plan_receiver(Kind::SharedRingImmediate, &Shape { device, ..SHAPE });
        assert_eq!((plan.bells_access, plan.counters_access), (bells, counters), "{device:?}");
        let kind = DeviceWords::kind(device != DeviceWords::Nothing);
        assert_eq!(plan.counters_kind, kind, "{device:?}");
    }
}

#[test]
fn reservations_of_dead_senders_are_skipped() {
    for kind in KINDS {
        let mut world = Network::all(kind, SHAPE, 3);
        world.settle().unwrap();
        // One complete, two reserved, then a living sender's, then one more of the dead sender.
        send(&mut world, 0, &[1; 40]).unwrap();
        world.settle().unwrap();
        send(&mut world, 0, &[2; 40]).unwrap();
        world.carry_of(0, 0).unwrap();
        send(&mut world, 1, &[3; 40]).unwrap();
        world.carry_of(1, 0).unwrap();
        send(&mut world, 0, &[4; 40]).unwrap();
        world.carry_of(0, 1).unwrap();
        world.lose(0);
        let (first, bytes) = world.found(0).unwrap().unwrap();
        assert_eq!((first.peer, bytes), (Peer(0), vec![1; 40]));
        assert!(world.found(0).unwrap().is_none());
        assert_eq!(words(&world), 2, "the living are asked");
        assert!(world.found(0).unwrap().is_none());
        assert_eq!(words(&world), 2, "once");
        world.settle().unwrap();
        world.advance(1).unwrap();
        // The other sender is reserving, and answers when it knows its positions.
        send(&mut world, 2, &[5; 40]).unwrap();
        world.advance(2).unwrap();
        assert_eq!(wire(&world, 2).len(), 1, "{kind}: no answer yet");
        send(&mut world, 2, &[6; 40]).unwrap();
        assert_eq!(wire(&world, 2).len(), 1, "{kind}: nor does it reserve more");
        world.release(first.held).unwrap();
        for (peer, value) in [(1, 3), (2, 5), (2, 6)] {
            let mut tries = 0;
            let (received, bytes) = loop {
                for from in 1..3 {
                    world.advance(from).unwrap();
                }
                world.settle().unwrap();
                tries += 1;
                assert!(tries < 10, "{kind}: {value} never comes");
                if let Some(got) = world.found(0).unwrap() {
                    break got;
                }
            };
            assert_eq!((received.peer, bytes), (Peer(peer), vec![value; 40]), "{kind}");
            world.release(received.held).unwrap();
        }
        for _ in 0..2 {
            assert!(world.found(0).unwrap().is_none());
            world.settle().unwrap();
            (1..3).for_each(|from| world.advance(from).unwrap());
            world.settle().unwrap();
        }
        assert!(world.found(0).unwrap().is_none());
        // No sender is queried any more.
        assert!(words(&world) == 0);
        assert_eq!(head(&world), tail(&world));
    }
}

#[test]
fn ring_without_senders_skips_all_and_accepts_a_new_sender() {
    let kind = Kind::SharedRingInlinedZeroing;
    let mut world = Network::all(kind, SHAPE, 1);
    world.settle().unwrap();
    for _ in 0..4 {
        send(&mut world, 0, &[1; 40]).unwrap();
    }
    (0..4).for_each(|_| world.carry_of(0, 0).unwrap());
    world.lose(0);
    assert!(world.found(0).unwrap().is_none());
    assert_eq!(tail(&world), 4 * 56);
    world.reconnect(0);
    world.settle().unwrap();
    send(&mut world, 0, b"again").unwrap();
    world.settle().unwrap();
    assert_eq!(world.found(0).unwrap().unwrap().1, b"again");
}

#[test]
fn hostile_words_never_panic() {
    for kind in KINDS {
        for seed in 1..400 {
            let mut dice = Random::new(seed);
            let mut world = Network::all(kind, SHAPE, 2);
            world.settle().unwrap();
            let mut held = Vec::new();
            for _ in 0..200 {
                let word = match dice.index(6) {
                    0 => 0,
                    1 => u64::MAX - dice.index(4) as u64,
                    2 => dice.index(64) as u64,
                    3 => header(dice.index(48) as u32, dice.index(4) as u16, 0),
                    4 => 1 << dice.index(64),
                    _ => dice.word(),
                };
                match dice.index(12) {
                    0 => {
                        let places = world.receivers[0].buffer.len() / 8;
                        let place = dice.index(places) as u64 * 8;
                        world.receivers[0].buffer.store_word(place, word).unwrap();
                    }
                    1 => {
                        // A peer may write every bell, and set the head to any value.
                        let receiver = &world.receivers[0];
                        let bells = &receiver.bells;
                        let counters = receiver.counters.as_ref().unwrap();
                        let place = [TAIL, HEAD, ANSWERS, ANSWERS + 8][dice.index(4)];
                        let region = if place == HEAD { counters } else { bells };
                        region.store_word(place, word).unwrap();
                    }
                    2 => {
                        let place = [WELCOME, QUERY, PROGRESS, FETCHED][dice.index(4)];
                        world.senders[0].bells.store_word(place, word).unwrap();
                    }
                    3 => {
                        let (peer, bytes) = (Peer(dice.index(5) as u16), dice.index(99) as u32);
                        let immediate = Some(word as u32).filter(|_| dice.index(9) > 0);
                        let arrival = Arrival { peer, name: Name(0), bytes, immediate };
                        let _ = world.receiver(0, |half, own, all| half.arrived(arrival, own, all));
                    }
                    4 if dice.index(20) == 0 => {
                        world.receivers[0].half.lost(Peer(dice.index(4) as u16))
                    }
                    5 => held.extend(world.found(0).unwrap_or_default()),
                    6 => {
                        if let Some((received, _)) = held.pop() {
                            let _ = world.release(received.held);
                        }
                    }
                    7 => {
                        let from = dice.index(2);
                        if dice.index(2) == 0 {
                            let _ = world.gather(from, &[1; 9]);
                        } else {
                            let _ = world.put(from, &[1; 9]);
                        }
                    }
                    8 => drop(world.carry_back()),
                    9 => drop(world.advance(dice.index(2))),
                    // The wires carry a sender's requests only while its words are valid.
                    _ if head(&world) < POSITION_MAX => drop(world.carry_of(dice.index(2), 0)),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn lies_are_named() {
    let mut world = Network::all(Kind::SharedRingInlinedZeroing, SHAPE, 1);
    let ring = |word: u64| {
        let world = Network::all(Kind::SharedRingInlinedZeroing, SHAPE, 1);
        world.receivers[0].buffer.store_word(0, word).unwrap();
        world
    };
    assert!(ring(42).found(0).is_err(), "longer than a message");
    assert!(ring(header(5, 3, 0)).found(0).is_err(), "no such sender");
    assert!(ring(header(5, 0, 8)).found(0).is_err(), "another place");
    assert_eq!(ring(header(5, 0, 0)).found(0).map(drop), Ok(()), "not whole yet");
    world.settle().unwrap();
    world.receivers[0].counters.as_ref().unwrap().store_word(HEAD, 4).unwrap();
    send(&mut world, 0, b"x").unwrap();
    assert_eq!(world.carry_of(0, 0), Err(Violation("an invalid head")));

    let mut world = Network::all(Kind::SharedRingImmediate, SHAPE, 1);
    let mut arrive = |bytes, immediate| {
        let arrival = Arrival { peer: Peer(0), name: Name(0), bytes, immediate };
        world.receiver(0, |half, own, effects| half.arrived(arrival, own, effects))
    };
    assert!(arrive(8, None).is_err());
    assert!(arrive(41, Some(0)).is_err());
    assert!(arrive(8, Some(32)).is_err(), "a ring ahead");
    assert_eq!(arrive(8, Some(24)), Ok(()));
    assert_eq!(arrive(8, Some(24)), Err(Violation("overlapping messages")));
    assert!(arrive(8, Some(u32::MAX)).is_err(), "below the tail");
}
