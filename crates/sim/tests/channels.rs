//! A short soak of every channel on every fabric (`channel_soak` is the long one), and deaths of ends at random
//! moments.

use farside::channel::{Kind, Options};
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_sim::channel_soak::{
    Failure, Ground, PROFILES, ROUND_MESSAGES, Round, Topology, play, soak, unmet,
};
use std::sync::Arc;

fn mem(_: u64) -> Ground {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    Ground::real(move |_| Arc::clone(&fabric))
}

fn shm(_: u64) -> Ground {
    Ground::real(|_| Arc::new(ShmFabric::new().unwrap()))
}

fn complain((round, trouble): &Failure) -> String {
    format!("{trouble}\n{round}")
}

fn each_on(name: &str, ground: &dyn Fn(u64) -> Ground) {
    for kind in Kind::ALL {
        let again = format!(
            "cargo run --release -p farside-sim --example channel_soak -- --fabric {name} --channel \
             {kind} --seed 1 --messages {ROUND_MESSAGES}"
        );
        // Rounds of a tenth, to have several.
        for seed in 1..=10 {
            let ground = ground(seed);
            let round = Round::draw(kind, seed, ROUND_MESSAGES / 10, &ground.capabilities());
            if let Err(trouble) = play(&round, &ground) {
                panic!("{}\n{again}", complain(&(Box::new(round), trouble)));
            }
        }
    }
}

#[test]
fn twenty_thousand_messages_of_each_channel_on_mem() {
    each_on("mem", &mem);
}

#[test]
fn twenty_thousand_messages_of_each_channel_on_shm() {
    each_on("shm", &shm);
}

#[test]
fn supported_profiles_deliver_in_every_schedule() {
    for kind in Kind::ALL {
        for profile in PROFILES {
            if unmet(&Options::new(kind, 1_000), &profile.capabilities).is_some() {
                continue;
            }
            for seed in 0..25 {
                let ground = |seed| Ground::simulated(profile.net(seed));
                if let Err(failure) = soak(kind, 200, seed, &ground, &mut |_| {}) {
                    panic!("{}: {}", profile.name, complain(&failure));
                }
            }
        }
    }
}

#[test]
fn survivors_learn_of_death_and_continue() {
    let mut hubs = 0;
    for kind in Kind::ALL {
        for seed in 0..150 {
            let profile = &PROFILES[seed as usize % 2];
            let ground = Ground::simulated(profile.net(seed));
            let round = Round::draw(kind, seed, 120, &ground.capabilities()).with_death();
            hubs += u32::from(round.topology != Topology::Pair);
            if let Err(trouble) = play(&round, &ground) {
                panic!("{}: {}", profile.name, complain(&(Box::new(round), trouble)));
            }
        }
    }
    assert!(hubs > 500, "{hubs}");
}
