//! Channels with a hostile peer, which sends a wrong hello or violates the protocol after a correct one. It writes
//! anywhere it may, sends, adds, changes memory that the other end READs, deregisters its regions, or falls silent.
//! The attacked end never panics, shows no message that is too long, reports the peer once by a typed error and
//! disconnects it. Correct peers continue, and its slot is free for the next peer.
//!
//! There are two kinds of hostile peers: one without any channel (`peer.rs`), and a correct end whose fabric
//! corrupts some of its requests (`liar.rs`). A failure prints the command that repeats it; `FARSIDE_SEED` and
//! `FARSIDE_KIND` select the seed and the channel.
#![allow(clippy::print_stderr, reason = "the command that repeats a failure")]

mod liar;
mod peer;
mod victim;

use farside::channel::{Acknowledge, Family, Kind, Options, Shape, Signal};
use farside_base::Random;
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_testkit::until;
use liar::Liar;
use peer::{End, Hostile, PeerAnswer, State, Wrong};
use std::cell::Cell;
use std::sync::Arc;
use victim::Used;

/// Seeds for each channel, end and fabric.
const ROUNDS: u64 = 6;
/// Consecutive hostile peers, and steps of each.
const LIVES: usize = 6;
const STEPS: u64 = 200;

/// The environment of a test.
struct Scene {
    test: &'static str,
    kind: Kind,
    /// The end that is attacked.
    victim: End,
    on: &'static str,
    seed: u64,
    random: Random,
    mem: MemFabric,
    options: Options,
    shape: Shape,
    name: String,
    /// Correct ends that were disconnected as they connected.
    sacrificed: usize,
}

impl Drop for Scene {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let Self { test, kind, victim, on, seed, options, .. } = self;
            eprintln!("the {victim:?} on {on}: {options:?}");
            eprintln!(
                "FARSIDE_SEED={seed} FARSIDE_KIND={kind} \
                 cargo test -p farside --test channel_hostile {test}"
            );
        }
    }
}

fn draw_options(kind: Kind, random: &mut Random, fabric: &dyn Fabric) -> Options {
    let has = fabric.capabilities();
    loop {
        let options = Options::new(kind, 0)
            .peers(2)
            .slots(*random.pick(&[2, 2, 3, 8, 20]))
            .ring_bytes(*random.pick(&[256, 1024, 4096]))
            .mirrored(*random.pick(&[false, true]))
            .prefetch_bytes(*random.pick(&[0, 0, 64, 500]))
            .acknowledge(*random.pick(&[
                None,
                Some(Acknowledge::Word),
                Some(Acknowledge::Message),
                Some(Acknowledge::ReadTail),
            ]))
            .signal(*random.pick(&[None, Some(Signal::Word), Some(Signal::Message)]))
            .message_bytes_max(*random.pick(&[8, 30, 200, 1000]));
        let shape = options.shape(&has);
        if shape.check(kind).is_ok() && kind.requirements(&shape).check(&has).is_ok() {
            return options;
        }
    }
}

impl Scene {
    fn new(test: &'static str, kind: Kind, victim: End, on: &'static str, seed: u64) -> Self {
        let salt = ((kind as u64) << 48) ^ ((victim as u64) << 56);
        let mut random = Random::new(seed ^ salt);
        let mem = MemFabric::new();
        let options = draw_options(kind, &mut random, &mem);
        let shape = options.shape(&mem.capabilities());
        let name = format!("hostile-{}-{}-{victim:?}-{kind}", &test[..12], std::process::id());
        Self { test, kind, victim, on, seed, random, mem, options, shape, name, sacrificed: 0 }
    }

    /// Returns a fabric as of another process.
    fn fabric(&self) -> Arc<dyn Fabric> {
        match self.on {
            "mem" => Arc::new(self.mem.another()),
            _ => Arc::new(ShmFabric::new().unwrap()),
        }
    }

    fn open(&self, end: End, listens: bool) -> Used {
        Used::open(end, listens, self.fabric(), &self.name, &self.options)
    }

    fn hostile(&mut self, listen: bool) -> Hostile {
        let aside = format!("{}-aside", self.name);
        let (fabric, end, options) = (self.fabric(), self.victim.other(), &self.options);
        let mut sound = None;
        let hello = peer::sound_hello(&*self.fabric(), &aside, || {
            sound = Some(Used::open(end, false, Arc::clone(&fabric), &aside, options));
        });
        drop(sound);
        let seed = self.random.word();
        Hostile::new(fabric, hello, self.shape, listen.then_some(&self.name), seed)
    }

    /// Whether the attacked end has one half for all its peers.
    fn shares(&self) -> bool {
        match self.victim {
            End::Sender => self.kind.shares_sender(),
            End::Receiver => self.kind.shares_receiver(),
        }
    }
}

/// Connects a correct end to the attacked one, which has no other peer.
fn connect(scene: &mut Scene, victim: &mut Used) -> Used {
    loop {
        let mut sound = scene.open(scene.victim.other(), false);
        until("they connect", || {
            sound.look();
            victim.look();
            sound.told.losses > 0 || victim.peers().min(sound.peers()) == 1
        });
        if sound.told.losses == 0 {
            return sound;
        }
        // Damage by former senders to a shared ring may be detected when the next one connects; the ring is then
        // renewed for later ones.
        scene.sacrificed += 1;
        let may = scene.shares() && scene.kind.family() == Family::SharedRing;
        assert!(may && scene.sacrificed <= LIVES, "{:?}, {:?}", sound.told, victim.told);
    }
}

/// Runs a test for both ends of every channel, on two fabrics, with some seeds.
fn everywhere(test_name: &'static str, rounds: u64, test: impl Fn(&mut Scene)) {
    let first = std::env::var("FARSIDE_SEED").map_or(0x5eed, |text| text.parse().unwrap());
    let only = std::env::var("FARSIDE_KIND").ok();
    let kinds = Kind::ALL.into_iter();
    for kind in kinds.filter(|kind| only.as_ref().is_none_or(|only| only == kind.name())) {
        for victim in [End::Sender, End::Receiver] {
            for (on, seed) in
                (first..first + rounds).flat_map(|seed| [("mem", seed), ("shm", seed)])
            {
                test(&mut Scene::new(test_name, kind, victim, on, seed));
            }
        }
    }
}

#[test]
fn wrong_hellos_are_refused_without_side_effects() {
    everywhere("wrong_hellos_are_refused_without_side_effects", 1, |scene| {
        let mut victim = scene.open(scene.victim, true);
        let mut sound = connect(scene, &mut victim);
        for wrong in Wrong::ALL {
            let mut hostile = scene.hostile(false);
            hostile.connect(&scene.name, Some(wrong));
            let end = if wrong == Wrong::Tokens { State::Lost } else { State::Refused };
            until(&format!("{wrong:?}: {:?}", hostile.state), || {
                // A sender with free space polls its port only in this call.
                victim.peers();
                sound.go_on();
                hostile.look();
                hostile.state == end
            });
            assert_eq!(victim.peers(), 1, "{wrong:?}");
        }
        // Invalid tokens are equivalent to a lost peer.
        assert!(victim.told.violations == 0 && victim.told.losses <= 1, "{:?}", victim.told);
        assert_eq!(sound.told.violations + sound.told.losses, 0);
        all_arrive(scene, &mut victim, &mut sound);
    });
}

/// Checks that all messages sent by one end are received by the other.
fn all_arrive(scene: &Scene, victim: &mut Used, sound: &mut Used) {
    let most = victim.count.max(sound.count) + 20;
    until(&format!("{} of {}", victim.count, sound.count), || {
        for (used, sends) in [
            (&mut *victim, scene.victim == End::Sender),
            (&mut *sound, scene.victim != End::Sender),
        ] {
            if !sends || used.count < most {
                used.go_on();
            } else {
                used.peers();
            }
        }
        victim.count == most && sound.count == most
    });
}

/// A hostile peer of either kind.
enum Bad {
    Bare(Hostile),
    Liar(Box<Used>),
}

impl Bad {
    fn connect(scene: &mut Scene) -> Self {
        let seed = scene.random.word();
        if scene.random.one_in(2) {
            let mut hostile = scene.hostile(false);
            hostile.connect(&scene.name, None);
            return Self::Bare(hostile);
        }
        let fabric = Arc::new(Liar::new(scene.fabric(), seed));
        let mut liar = Used::open(scene.victim.other(), false, fabric, &scene.name, &scene.options);
        liar.be_lenient();
        liar.begin(255);
        Self::Liar(Box::new(liar))
    }

    fn step(&mut self, random: &mut Random) {
        match self {
            Self::Bare(hostile) => hostile.step(),
            Self::Liar(liar) => liar.act(random),
        }
    }

    /// Whether it was accepted; it may have been disconnected since.
    fn was_let_in(&mut self) -> bool {
        match self {
            Self::Bare(hostile) => {
                hostile.look();
                assert_ne!(hostile.state, State::Refused);
                hostile.state != State::Coming
            }
            Self::Liar(liar) => {
                liar.go_on();
                assert_eq!(liar.told.mismatches, 0, "{:?}", liar.told);
                liar.peers() == 1 || liar.told.losses > 0
            }
        }
    }
}

/// Runs random steps of all ends.
fn mingle(scene: &mut Scene, victim: &mut Used, sound: &mut Used, bad: &mut Bad) {
    for _ in 0..STEPS {
        match scene.random.below(4) {
            0 | 1 => bad.step(&mut scene.random),
            2 => victim.act(&mut scene.random),
            _ => sound.act(&mut scene.random),
        }
    }
}

#[test]
fn sound_peer_without_shared_memory_is_unaffected() {
    let found = Cell::new(0);
    everywhere("sound_peer_without_shared_memory_is_unaffected", ROUNDS, |scene| {
        if scene.shares() {
            return;
        }
        let mut victim = scene.open(scene.victim, true);
        let mut sound = connect(scene, &mut victim);
        for life in 1..=LIVES {
            let mut bad = Bad::connect(scene);
            until("it connects", || {
                victim.peers();
                bad.was_let_in()
            });
            mingle(scene, &mut victim, &mut sound, &mut bad);
            drop(bad);
            until("its slot is free", || {
                victim.act(&mut scene.random);
                victim.peers() == 1
            });
            let told = &victim.told;
            assert!(told.violations <= life && told.losses <= life, "life {life}: {told:?}");
        }
        assert_eq!(victim.told.mismatches, 0);
        assert_eq!(sound.told.violations + sound.told.losses, 0, "{:?}", sound.told);
        all_arrive(scene, &mut victim, &mut sound);
        drop(sound);
        serves_the_next(scene, &mut victim);
        found.set(found.get() + victim.told.violations);
        assert!(victim.told.violations <= LIVES, "{:?}", victim.told);
    });
    assert!(found.get() > 0, "no violation was detected");
}

/// Checks that an attacked end receives all messages of the next correct peer.
fn serves_the_next(scene: &mut Scene, victim: &mut Used) {
    until("all are gone", || {
        victim.go_on();
        victim.peers() == 0
    });
    let mut next = connect(scene, victim);
    victim.be_lenient();
    victim.begin(7);
    next.begin(7);
    if scene.shares() && scene.kind.family() == Family::SharedRing {
        // Senders of a shared ring depend on each other for progress, so it may stall.
        return (0..STEPS).for_each(|_| {
            next.act(&mut scene.random);
            victim.act(&mut scene.random);
        });
    }
    all_arrive(scene, victim, &mut next);
    assert_eq!(next.told.violations + next.told.losses, 0, "{:?}", next.told);
}

#[test]
fn peers_sharing_memory_lose_only_that_memory() {
    let found = Cell::new(0);
    everywhere("peers_sharing_memory_lose_only_that_memory", ROUNDS, |scene| {
        if !scene.shares() {
            return;
        }
        let mut victim = scene.open(scene.victim, true);
        victim.be_lenient();
        let mut peers = 0;
        for _ in 0..LIVES {
            let mut sound = connect(scene, &mut victim);
            sound.be_lenient();
            let mut bad = Bad::connect(scene);
            until("it connects", || {
                victim.peers();
                bad.was_let_in()
            });
            mingle(scene, &mut victim, &mut sound, &mut bad);
            drop((sound, bad));
            until("their slots are free", || {
                victim.act(&mut scene.random);
                victim.peers() == 0
            });
            peers += 2;
            // The writer that damaged shared memory cannot be identified: any of them may be blamed.
            assert!(victim.told.violations <= peers + scene.sacrificed, "{:?}", victim.told);
        }
        assert_eq!(victim.told.mismatches, 0);
        found.set(found.get() + victim.told.violations);
        serves_the_next(scene, &mut victim);
    });
    assert!(found.get() > 0, "no violation was detected");
}

#[test]
fn hostile_listener_is_reported_once_or_refusal_persists() {
    everywhere("hostile_listener_is_reported_once_or_refusal_persists", ROUNDS, |scene| {
        for answer in PeerAnswer::ALL {
            let mut hostile = scene.hostile(true);
            hostile.will_answer(answer);
            let mut victim = scene.open(scene.victim, false);
            victim.be_lenient();
            until("it is answered", || {
                hostile.look();
                hostile.state != State::Coming || answer == PeerAnswer::Silence
            });
            for _ in 0..STEPS {
                match scene.random.below(4) {
                    0..=1 => hostile.step(),
                    2 if scene.random.one_in(4) => victim.fetch(),
                    _ => victim.act(&mut scene.random),
                }
            }
            let silent = answer == PeerAnswer::Silence && victim.told.losses == 0;
            drop(hostile);
            let (losses, mismatches) = (victim.told.losses, victim.told.mismatches);
            // A refused end reports the refusal and its reason on every call.
            let refused = answer == PeerAnswer::Refuses;
            until("the loss is reported", || {
                victim.go_on();
                let told = &victim.told;
                if refused { told.mismatches > mismatches } else { told.losses > losses }
            });
            let told = &victim.told;
            let mismatches = if refused { 0 } else { told.mismatches };
            assert!(told.violations + mismatches <= 1, "{answer:?}: {told:?}");
            match answer {
                PeerAnswer::Bent(Wrong::Cut | Wrong::Longer | Wrong::Random) => {
                    assert_eq!(told.violations, 1, "{answer:?}");
                }
                PeerAnswer::Refuses => assert_eq!((told.violations, told.losses), (0, 0)),
                PeerAnswer::Silence => assert!(silent && told.violations == 0),
                PeerAnswer::Right | PeerAnswer::Bent(_) => {}
            }
        }
    });
}
