//! The search finds the seeded defects of the lock machines (`--cfg canary`).
#![cfg(canary)]

use farside_base::Limits;
use farside_protocol::lock::{Ask, Mode, Mutant, Patience};
use farside_sim::explorer::Explorer;
use farside_sim::model::lock::{Choice, Plan, Setup, System};

const READ: Ask = Ask::Lock { mode: Mode::Read, patience: Patience::Wait };
const WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Wait };
const TRY_WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Try };
const UPGRADE: Ask = Ask::Upgrade { patience: Patience::Wait };
const TRY_UPGRADE: Ask = Ask::Upgrade { patience: Patience::Try };

/// A session that asks for the whole of line 0.
fn one(node: u16, asks: u8, menu: &[Ask]) -> Plan {
    Plan::new(node, asks, menu.iter().map(|ask| Choice::whole(0, *ask)).collect())
}

fn setup(nodes: u16, sessions: Vec<Plan>) -> Setup {
    Setup { nodes, sessions, ..Setup::default() }
}

/// Two sessions that write two lines in opposite order.
fn ring(nodes: [u16; 2], homes: [u16; 2]) -> Setup {
    let lines = |lines: [usize; 2]| lines.map(|line| Choice::whole(line, WRITE)).into();
    let sessions =
        vec![Plan::in_order(nodes[0], lines([0, 1])), Plan::in_order(nodes[1], lines([1, 0]))];
    Setup { homes: homes.into(), ..setup(4, sessions) }
}

/// Checks that the sound machines hold where each of the defective ones fails.
fn finds(setup: Setup, mutants: &[Mutant]) {
    let sound = Explorer::new().explore(&System::new(setup.clone())).holds();
    sound.unwrap_or_else(|transcript| panic!("{transcript}"));
    for mutant in mutants {
        let setup = Setup { mutant: Some(*mutant), ..setup.clone() };
        let failure = Explorer::new().explore(&System::new(setup)).failure();
        assert!(failure.is_some(), "{mutant:?} was not found");
    }
}

#[test]
fn canary_lock_among_two_writers() {
    let mutants =
        [Mutant::ReturnsNoHolders, Mutant::RecallNumberIgnored, Mutant::EarlyReleaseDropped];
    finds(setup(2, vec![one(0, 2, &[WRITE]), one(1, 2, &[WRITE])]), &mutants);
}

#[test]
fn canary_lock_among_sessions_of_the_delegate() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(1, 1, &[WRITE])];
    let mutants = [Mutant::MovedForgotten, Mutant::DelegateKeeps, Mutant::TokenRepeated];
    finds(setup(2, sessions), &mutants);
}

#[test]
fn canary_lock_among_tries_and_upgrades() {
    let sessions = vec![one(0, 2, &[READ, WRITE]), one(1, 2, &[READ, TRY_UPGRADE, TRY_WRITE])];
    finds(setup(2, sessions), &[Mutant::DeniedTryUndoes, Mutant::TryWaits]);
    finds(setup(2, vec![one(0, 2, &[READ, UPGRADE]), one(1, 2, &[READ, UPGRADE])]), &[]);
}

#[test]
fn canary_lock_among_ranges() {
    let menu = || vec![Choice::part(0, 0, 8, WRITE), Choice::part(0, 4, 8, WRITE)];
    let sessions = vec![Plan::new(0, 1, menu()), Plan::new(1, 1, menu())];
    finds(setup(2, sessions), &[Mutant::EqualRangesOnly]);
}

#[test]
fn canary_lock_among_readers_that_keep_coming() {
    let limits = Limits { lock_handovers_max: 0, ..Setup::default().limits };
    let sessions =
        vec![one(0, 1, &[WRITE]), one(0, 1, &[READ]), one(0, 1, &[WRITE]), one(0, 1, &[READ])];
    finds(Setup { limits, ..setup(1, sessions) }, &[Mutant::Barging, Mutant::EndlessBatch]);
}

#[test]
fn canary_lock_among_cancelled_waits() {
    let sessions =
        vec![one(0, 1, &[READ]), one(1, 2, &[WRITE]).with_cancels(1), one(1, 1, &[READ])];
    finds(setup(2, sessions), &[Mutant::CancelWakesNobody]);
    let sessions =
        vec![one(0, 1, &[READ]), one(1, 1, &[WRITE]).with_cancels(1), one(1, 1, &[READ])];
    finds(setup(2, sessions), &[Mutant::EarlyCancelDropped]);
}

#[test]
fn canary_lock_among_rings() {
    let mutants = [Mutant::ProbeNotForwarded, Mutant::OldestIsVictim];
    finds(ring([0, 1], [2, 3]), &mutants);
}

#[test]
fn canary_lock_among_the_dead() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 1, &[WRITE]), one(2, 1, &[WRITE])];
    let mutants = [Mutant::DeadStillHold, Mutant::DeadDelegateKeeps];
    finds(Setup { mortal: vec![1], ..setup(3, sessions) }, &mutants);
}

#[test]
fn canary_lock_among_those_to_be_told() {
    let undoes = one(2, 2, &[WRITE]).with_undo();
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), undoes];
    let mutants =
        [Mutant::AbandonedForgotten, Mutant::DeadDelegateUnmarked, Mutant::UndoneTellsNobody];
    finds(Setup { mortal: vec![1], ..setup(3, sessions) }, &mutants);
}

#[test]
fn canary_lock_among_loans() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 4, &[WRITE])];
    let mutants = [Mutant::LoanForgetsHolder, Mutant::LoanTokensAgain, Mutant::LoanWhileHeld];
    finds(Setup { loans: 1, ..setup(2, sessions) }, &mutants);
}
