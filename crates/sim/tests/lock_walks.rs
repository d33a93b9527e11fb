//! Random walks through lock systems that are too large to search: two to four nodes, up to three lines and six
//! sessions, all operations of sessions, deaths, and leaves.
//!
//! `LOCK_SEED=N` walks one seed and prints its trace; `LOCK_SEEDS=N` walks N seeds, from `LOCK_FIRST` on.

use farside_base::Limits;
use farside_base::Random;
use farside_protocol::lock::{Ask, Mode, Patience};
use farside_sim::explorer::Model;
use farside_sim::model::lock::{Choice, LockAction, LockSetup, SessionPlan, System};

const SEEDS: u64 = 20_000;

/// Number of steps that no walk reaches.
const STEPS_MAX: usize = 20_000;

fn any_ask(random: &mut Random, kinds: u64) -> Ask {
    let lock = |mode, patience| Ask::Lock { mode, patience };
    match random.below(kinds) {
        0 => lock(Mode::Read, Patience::Wait),
        1 | 2 => lock(Mode::Write, Patience::Wait),
        3 => lock(Mode::Read, Patience::Try),
        4 => lock(Mode::Write, Patience::Try),
        5 | 6 => Ask::Upgrade { patience: Patience::Wait },
        _ => Ask::Upgrade { patience: Patience::Try },
    }
}

fn any_session(random: &mut Random, nodes: u16, lines: usize, kinds: u64) -> SessionPlan {
    let mut menu = Vec::new();
    for line in 0..lines {
        for _ in 0..random.between(1, 5) {
            let (start, bytes) = *random.pick(&[(0, 64), (0, 8), (8, 8), (4, 8)]);
            menu.push(Choice::part(line, start, bytes, any_ask(random, kinds)));
        }
    }
    let node = random.below(nodes.into()) as u16;
    let plan = SessionPlan::new(node, random.between(1, 6) as u8, menu);
    let plan = plan.with_cancels(random.below(2) as u8);
    if random.chance(100) { plan.with_close() } else { plan }
}

fn any_setup(random: &mut Random) -> LockSetup {
    let (nodes, lines) = (random.between(2, 4) as u16, random.between(1, 3) as usize);
    let limits = Limits {
        nodes_max: 4,
        sessions_max: 8,
        locks_per_session_max: 3,
        lock_handovers_max: random.below(3) as u32,
        lock_delegations_max: random.below(3) as u32,
        lock_delegate_after: random.between(1, 2) as u32,
        ..Limits::TINY
    };
    let kinds = random.between(1, 8);
    let count = random.between(2, 6);
    let sessions = (0..count).map(|_| any_session(random, nodes, lines, kinds)).collect();
    let homes = (0..lines).map(|_| random.below(nodes.into()) as u16).collect();
    let loans = random.below(6) as u8;
    let mortal = if random.chance(200) { vec![random.below(nodes.into()) as u16] } else { vec![] };
    let leaver = random.below(nodes.into()) as u16;
    let leaves = (mortal.is_empty() && random.chance(300)).then_some(leaver);
    #[allow(clippy::needless_update, reason = "a planted defect adds a field")]
    LockSetup { nodes, homes, sessions, mortal, leaves, loans, limits, ..LockSetup::default() }
}

/// Performs actions in an order drawn from the seed until none is enabled.
fn walk(seed: u64, mut transcript: Option<&mut Vec<String>>) -> Result<usize, String> {
    let mut random = Random::new(seed);
    let mut system = System::new(any_setup(&mut random));
    // How often messages stay in flight while sessions continue, in thousandths.
    let delay = random.below(4) as u32 * 200;
    for step in 0..STEPS_MAX {
        let mut actions = system.enabled();
        if actions.is_empty() {
            return system.stuck().map_or(Ok(step), |violation| Err(violation.0));
        }
        let own = |action: &LockAction| !matches!(action, LockAction::Deliver { .. });
        if random.chance(delay) && actions.iter().any(own) {
            actions.retain(own);
        }
        let action = random.pick(&actions).clone();
        match &mut transcript {
            Some(lines) => system.narrate(action, lines),
            None => system.apply(action),
        }
        if let Some(violation) = system.violation() {
            return Err(violation.0);
        }
    }
    Err("no quiescence within the maximum number of steps".into())
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

#[test]
fn every_walk_ends_well() {
    let seeds = match number("LOCK_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("LOCK_FIRST").unwrap_or(0);
            first..first + number("LOCK_SEEDS").unwrap_or(SEEDS)
        }
    };
    for seed in seeds {
        if let Err(failure) = walk(seed, None) {
            let mut lines = Vec::new();
            let _ = walk(seed, Some(&mut lines));
            panic!("{}\nLOCK_SEED={seed}: {failure}", lines.join("\n"));
        }
    }
}
