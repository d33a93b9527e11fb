extern crate std;

mod world;

use super::super::Name;
use super::super::half::{Arrival, Content, Half as _, HalfRefusal, Payload, Peer, Received};
use super::super::kind::Kind;
use super::super::outbound::PROGRESS;
use super::super::shape::{Acknowledge, DeviceWords, Shape, Signal};
use super::*;
use crate::wire::Violation;
use farside_base::{Access, LocalSlice, RegionId};
use std::format;
use std::vec;
use std::vec::Vec;
use world::{Dice, OWN, PostedVerb, RingHalf, Sent, World, regions};

const KINDS: [Kind; 2] = [Kind::SharedRingImmediate, Kind::SharedRingInlinedZeroing];
const SHAPE: Shape = Shape {
    message_bytes_max: 40,
    slots: 4,
    ring_bytes: 256,
    peers_max: 3,
    mirrored: false,
    prefetch_bytes: 0,
    acknowledge: Acknowledge::ReadTail,
    signal: Signal::Message,
    device: DeviceWords::Nothing,
    piece_bytes: 1 << 16,
};

fn mirrored(mirrored: bool) -> Shape {
    // A mirrored ring has at least a page.
    if mirrored { Shape { mirrored, ring_bytes: 4096, slots: 64, ..SHAPE } } else { SHAPE }
}

/// The content of a sender's message: at most 40 bytes.
fn content(from: usize, number: u32) -> Vec<u8> {
    let bytes = (number * 7 + from as u32 * 13) % 41;
    (0..bytes).map(|at| (number + at) as u8 | ((from as u8) << 6)).collect()
}

#[test]
fn a_message_costs_an_atomic_and_a_write() {
    for (kind, wide, gather) in KINDS.into_iter().flat_map(|kind| {
        [(false, false), (false, true), (true, false), (true, true)].map(|(w, g)| (kind, w, g))
    }) {
        let mut world = World::new(kind, &mirrored(wide), 2);
        world.send(1, b"before the welcome", gather).unwrap();
        assert!(world.senders[1].1.wire.is_empty(), "its number is not known yet");
        world.settle();
        world.advance(1).unwrap();
        assert!(matches!(world.senders[1].1.wire[0].what, PostedVerb::Add(..)));
        world.carry(1, 0).unwrap();
        assert!(world.receive().unwrap().is_none(), "only reserved");
        assert!(matches!(world.senders[1].1.wire[0].what, PostedVerb::Write(..)));
        world.settle();
        let (received, bytes) = world.receive().unwrap().unwrap();
        assert_eq!((received.peer, &bytes[..]), (Peer(1), &b"before the welcome"[..]));
        assert!(!world.senders[1].0.is_drained());
        world.release(received.held).unwrap();
        assert_eq!(world.release(received.held), Err(HalfRefusal::NoSuch("held message")));
        let (half, side) = &mut world.senders[1];
        side.with(|_, effects| half.ask_progress(effects));
        world.settle();
        assert!(world.senders[1].0.is_drained());
        assert_eq!(world.head(), world.tail());
    }
}

#[test]
fn full_is_refused_and_the_tail_is_read_once_at_a_time() {
    for kind in KINDS {
        let mut world = World::new(kind, &SHAPE, 2);
        world.settle();
        assert_eq!(world.send(0, &[0; 41], false), Err(HalfRefusal::TooLong { bytes_max: 40 }));
        let (half, side) = &mut world.senders[0];
        let many = [LocalSlice { region: RegionId(2), offset: 0, bytes: 1 }; 9];
        let refused = side.with(|own, effects| half.send(Payload::Gather(&many), own, effects));
        assert!(matches!(refused, Err(HalfRefusal::Form(_))));
        while world.send(0, &[7; 40], false).is_ok() {}
        for _ in 0..4 {
            world.send(1, &[8; 40], false).unwrap();
        }
        assert_eq!(world.send(1, &[8; 40], false), Err(HalfRefusal::Full));
        world.settle();
        let reads = |world: &World| {
            let read = |sent: &&Sent| matches!(sent.what, PostedVerb::Read(..));
            world.senders[1].1.wire.iter().filter(read).count()
        };
        world.advance(1).unwrap();
        world.advance(1).unwrap();
        assert_eq!(reads(&world), 1, "{kind}");
        let mut came = 0;
        while let Some((received, _)) = world.receive().unwrap() {
            world.release(received.held).unwrap();
            world.advance(0).unwrap();
            world.advance(1).unwrap();
            world.settle();
            came += 1;
        }
        world.advance(1).unwrap();
        world.settle();
        while let Some((received, _)) = world.receive().unwrap() {
            world.release(received.held).unwrap();
            came += 1;
        }
        assert_eq!(came, 8, "{kind}");
    }
}

/// Senders that send, wires in any order, messages held and released in any order, deaths at any time with a partly
/// landed WRITE: every message of a living sender arrives, once and complete.
fn soak(kind: Kind, shape: &Shape, seed: u64, messages: u32, deaths: usize) {
    let told = format!("{kind}, {shape:?}, seed {seed}");
    let mut dice = Dice(seed | 1);
    for _ in 0..16 {
        dice.below(2);
    }
    let mut world = World::new(kind, shape, 3);
    let (mut sent, mut came) = ([0_u32; 3], [const { Vec::new() }; 3]);
    let mut living = vec![0, 1, 2];
    let mut holding: Vec<(Received, Vec<u8>)> = Vec::new();
    let mut steps = 0;
    while living.iter().any(|from| came[*from].len() < messages as usize) {
        steps += 1;
        assert!(steps < 200_000, "stuck after {sent:?}: {told}");
        let from = living[dice.below(living.len())];
        match dice.below(9) {
            0 | 1 if sent[from] < messages => {
                let bytes = content(from, sent[from]);
                sent[from] += u32::from(world.send(from, &bytes, dice.below(2) == 0).is_ok());
            }
            2 => world.advance(from).expect(&told),
            3 => world.word(),
            4..=6 => {
                let length = world.senders[from].1.wire.len();
                if length > 0 {
                    world.carry(from, dice.below(length)).expect(&told);
                }
            }
            7 => {
                if let Some((received, bytes)) = world.receive().expect(&told) {
                    let from = usize::from(received.peer.0);
                    let fits = |number: &u32| content(from, *number) == bytes;
                    let number = (0..messages).filter(fits).find(|one| !came[from].contains(one));
                    came[from].push(number.expect(&told));
                    holding.push((received, bytes));
                }
            }
            _ if !holding.is_empty() && dice.below(4) > 0 => {
                let (received, bytes) = holding.swap_remove(dice.below(holding.len()));
                let Content::Buffer { offset, .. } = received.content else { panic!("bytes") };
                let slice = LocalSlice { region: OWN.buffer, offset, bytes: bytes.len() as u32 };
                assert_eq!(world.at.get(slice), bytes, "changed while it was held: {told}");
                world.release(received.held).expect(&told);
            }
            _ if 3 - living.len() < deaths && dice.below(messages as usize * 8) == 0 => {
                let place = dice.below(world.senders[from].1.wire.len() + 1);
                if let Some(Sent { what: PostedVerb::Write(bytes, at, _), .. }) =
                    world.senders[from].1.wire.get(place)
                {
                    let part = dice.below(bytes.len() / 8 + 1) * 8;
                    let region = &world.at.regions[at.region.0 as usize];
                    region.write(at.offset, &bytes[..part]).unwrap();
                }
                world.lose(from);
                living.retain(|other| *other != from);
            }
            _ => {}
        }
    }
}

#[test]
fn everything_comes_once_and_whole_in_any_order_of_the_wires() {
    for kind in KINDS {
        for wide in [false, true] {
            (1..12).for_each(|seed| soak(kind, &mirrored(wide), seed, 150, 0));
        }
    }
}

#[test]
fn sender_deaths_do_not_block_others() {
    for kind in KINDS {
        for wide in [false, true] {
            (1..60).for_each(|seed| soak(kind, &mirrored(wide), seed * 7919, 40, 2));
        }
    }
}

#[test]
fn words_may_be_in_any_region() {
    for kind in KINDS {
        for device in DeviceWords::ALL {
            let shape = Shape { device, ..SHAPE };
            let mut world = World::new(kind, &shape, 2);
            world.settle();
            world.send(1, &[3; 40], false).unwrap();
            world.settle();
            let (received, _) = world.receive().unwrap().unwrap();
            world.release(received.held).unwrap();
            assert!(world.head() > 0, "{kind} {device:?}");
            assert_eq!(world.head(), world.tail(), "{kind} {device:?}");
            (1..20).for_each(|seed| soak(kind, &shape, seed * 7919, 40, 2));
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
        let mut world = World::new(kind, &SHAPE, 3);
        world.settle();
        // One complete, two reserved, then a living sender's, then one more of the dead sender.
        world.send(0, &[1; 40], false).unwrap();
        world.settle();
        world.send(0, &[2; 40], false).unwrap();
        world.carry(0, 0).unwrap();
        world.send(1, &[3; 40], false).unwrap();
        world.carry(1, 0).unwrap();
        world.send(0, &[4; 40], false).unwrap();
        world.carry(0, 1).unwrap();
        world.lose(0);
        let (first, bytes) = world.receive().unwrap().unwrap();
        assert_eq!((first.peer, bytes), (Peer(0), vec![1; 40]));
        assert!(world.receive().unwrap().is_none());
        assert_eq!(world.at.wire.len(), 2, "the living are asked");
        assert!(world.receive().unwrap().is_none());
        assert_eq!(world.at.wire.len(), 2, "once");
        world.settle();
        world.advance(1).unwrap();
        // The other sender is reserving, and answers when it knows its positions.
        world.send(2, &[5; 40], false).unwrap();
        world.advance(2).unwrap();
        assert_eq!(world.senders[2].1.wire.len(), 1, "{kind}: no answer yet");
        world.send(2, &[6; 40], false).unwrap();
        assert_eq!(world.senders[2].1.wire.len(), 1, "{kind}: nor does it reserve more");
        world.release(first.held).unwrap();
        for (peer, value) in [(1, 3), (2, 5), (2, 6)] {
            let mut tries = 0;
            let (received, bytes) = loop {
                for from in 1..3 {
                    world.advance(from).unwrap();
                }
                world.settle();
                tries += 1;
                assert!(tries < 10, "{kind}: {value} never comes");
                if let Some(got) = world.receive().unwrap() {
                    break got;
                }
            };
            assert_eq!((received.peer, bytes), (Peer(peer), vec![value; 40]), "{kind}");
            world.release(received.held).unwrap();
        }
        for _ in 0..2 {
            assert!(world.receive().unwrap().is_none());
            world.settle();
            (1..3).for_each(|from| world.advance(from).unwrap());
            world.settle();
        }
        assert!(world.receive().unwrap().is_none());
        // No sender is queried any more.
        assert!(world.at.wire.is_empty());
        assert_eq!(world.head(), world.tail());
    }
}

#[test]
fn ring_without_senders_skips_all_and_accepts_a_new_sender() {
    let kind = Kind::SharedRingInlinedZeroing;
    let mut world = World::new(kind, &SHAPE, 1);
    world.settle();
    for _ in 0..4 {
        world.send(0, &[1; 40], false).unwrap();
    }
    (0..4).for_each(|_| world.carry(0, 0).unwrap());
    world.lose(0);
    assert!(world.receive().unwrap().is_none());
    assert_eq!(world.tail(), 4 * 56);
    world.senders[0].0 = super::super::Sender::new(kind, &SHAPE, OWN);
    world.senders[0].1 = RingHalf::new(&plan_sender(kind, &SHAPE));
    let World { senders, receiver, at, .. } = &mut world;
    let (half, side) = &mut senders[0];
    side.with(|own, effects| half.connected(Peer::ONLY, regions(0), own, effects)).unwrap();
    at.with(|own, effects| receiver.connected(Peer(0), regions(0), own, effects)).unwrap();
    world.settle();
    world.send(0, b"again", false).unwrap();
    world.settle();
    assert_eq!(world.receive().unwrap().unwrap().1, b"again");
}

#[test]
fn hostile_words_never_panic() {
    for kind in KINDS {
        for seed in 1..400 {
            let mut dice = Dice(seed * 0x9e37_79b9);
            let mut world = World::new(kind, &SHAPE, 2);
            world.settle();
            let mut held = Vec::new();
            for _ in 0..200 {
                let word = match dice.below(6) {
                    0 => 0,
                    1 => u64::MAX - dice.below(4) as u64,
                    2 => dice.below(64) as u64,
                    3 => header(dice.below(48) as u32, dice.below(4) as u16, 0),
                    4 => 1 << dice.below(64),
                    _ => dice.0,
                };
                match dice.below(12) {
                    0 => {
                        let places = world.at.regions[0].0.borrow().len() / 8;
                        let place = dice.below(places) as u64 * 8;
                        world.at.regions[0].store_word(place, word).unwrap();
                    }
                    1 => {
                        // A peer may write every bell, and set the head to any value.
                        let words = [(1, TAIL), (3, HEAD), (1, ANSWERS), (1, ANSWERS + 8)];
                        let (region, place) = words[dice.below(4)];
                        world.at.regions[region].store_word(place, word).unwrap();
                    }
                    2 => {
                        let place = [WELCOME, QUERY, PROGRESS, FETCHED][dice.below(4)];
                        world.senders[0].1.regions[1].store_word(place, word).unwrap();
                    }
                    3 => {
                        let (peer, bytes) = (Peer(dice.below(5) as u16), dice.below(99) as u32);
                        let immediate = Some(word as u32).filter(|_| dice.below(9) > 0);
                        let arrival = Arrival { peer, name: Name(0), bytes, immediate };
                        let receiver = &mut world.receiver;
                        let _ = world.at.with(|own, all| receiver.arrived(arrival, own, all));
                    }
                    4 if dice.below(20) == 0 => world.receiver.lost(Peer(dice.below(4) as u16)),
                    5 => held.extend(world.receive().unwrap_or_default()),
                    6 => {
                        if let Some((received, _)) = held.pop() {
                            let _ = world.release(received.held);
                        }
                    }
                    7 => drop(world.send(dice.below(2), &[1; 9], dice.below(2) == 0)),
                    8 => world.word(),
                    9 => drop(world.advance(dice.below(2))),
                    // The wires carry a sender's requests only while its words are valid.
                    _ if world.head() < POSITION_MAX => drop(world.carry(dice.below(2), 0)),
                    _ => {}
                }
            }
        }
    }
}

#[test]
fn lies_are_named() {
    let mut world = World::new(Kind::SharedRingInlinedZeroing, &SHAPE, 1);
    let ring = |word: u64| {
        let world = World::new(Kind::SharedRingInlinedZeroing, &SHAPE, 1);
        world.at.regions[0].store_word(0, word).unwrap();
        world
    };
    assert!(ring(42).receive().is_err(), "longer than a message");
    assert!(ring(header(5, 3, 0)).receive().is_err(), "no such sender");
    assert!(ring(header(5, 0, 8)).receive().is_err(), "another place");
    assert_eq!(ring(header(5, 0, 0)).receive().map(drop), Ok(()), "not whole yet");
    world.settle();
    world.at.regions[3].store_word(HEAD, 4).unwrap();
    world.send(0, b"x", false).unwrap();
    assert_eq!(world.carry(0, 0), Err(Violation("an invalid head")));

    let mut world = World::new(Kind::SharedRingImmediate, &SHAPE, 1);
    let mut arrive = |bytes, immediate| {
        let arrival = Arrival { peer: Peer(0), name: Name(0), bytes, immediate };
        world.at.with(|own, effects| world.receiver.arrived(arrival, own, effects))
    };
    assert!(arrive(8, None).is_err());
    assert!(arrive(41, Some(0)).is_err());
    assert!(arrive(8, Some(32)).is_err(), "a ring ahead");
    assert_eq!(arrive(8, Some(24)), Ok(()));
    assert_eq!(arrive(8, Some(24)), Err(Violation("overlapping messages")));
    assert!(arrive(8, Some(u32::MAX)).is_err(), "below the tail");
}
