//! The search detects the planted defects of the lock machines (`--cfg canary`).
#![cfg(canary)]

use farside_base::Limits;
use farside_protocol::lock::{Ask, LockMutant, Mode, Patience};
use farside_sim::explorer::Explorer;
use farside_sim::model::lock::{Choice, LockSetup, SessionPlan, System};

const READ: Ask = Ask::Lock { mode: Mode::Read, patience: Patience::Wait };
const WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Wait };
const TRY_WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Try };
const UPGRADE: Ask = Ask::Upgrade { patience: Patience::Wait };
const TRY_UPGRADE: Ask = Ask::Upgrade { patience: Patience::Try };

/// A session that requests the whole of line 0.
fn one(node: u16, asks: u8, menu: &[Ask]) -> SessionPlan {
    SessionPlan::new(node, asks, menu.iter().map(|ask| Choice::whole(0, *ask)).collect())
}

fn setup(nodes: u16, sessions: Vec<SessionPlan>) -> LockSetup {
    LockSetup { nodes, sessions, ..LockSetup::default() }
}

/// Two sessions that write two lines in opposite order.
fn ring(nodes: [u16; 2], homes: [u16; 2]) -> LockSetup {
    let lines = |lines: [usize; 2]| lines.map(|line| Choice::whole(line, WRITE)).into();
    let sessions = vec![
        SessionPlan::in_order(nodes[0], lines([0, 1])),
        SessionPlan::in_order(nodes[1], lines([1, 0])),
    ];
    LockSetup { homes: homes.into(), ..setup(4, sessions) }
}

/// Asserts that the sound machines hold and that each defective one fails.
fn finds(setup: LockSetup, mutants: &[LockMutant]) {
    let sound = Explorer::new().explore(&System::new(setup.clone())).holds();
    sound.unwrap_or_else(|transcript| panic!("{transcript}"));
    for mutant in mutants {
        let setup = LockSetup { mutant: Some(*mutant), ..setup.clone() };
        let failure = Explorer::new().explore(&System::new(setup)).failure();
        assert!(failure.is_some(), "{mutant:?} was not found");
    }
}

#[test]
fn canary_lock_among_two_writers() {
    let mutants = [
        LockMutant::ReturnsNoHolders,
        LockMutant::RecallNumberIgnored,
        LockMutant::EarlyReleaseDropped,
    ];
    finds(setup(2, vec![one(0, 2, &[WRITE]), one(1, 2, &[WRITE])]), &mutants);
}

#[test]
fn canary_lock_among_sessions_of_the_delegate() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(1, 1, &[WRITE])];
    let mutants =
        [LockMutant::MovedForgotten, LockMutant::DelegateKeeps, LockMutant::TokenRepeated];
    finds(setup(2, sessions), &mutants);
}

#[test]
fn canary_lock_among_tries_and_upgrades() {
    let sessions = vec![one(0, 2, &[READ, WRITE]), one(1, 2, &[READ, TRY_UPGRADE, TRY_WRITE])];
    finds(setup(2, sessions), &[LockMutant::DeniedTryUndoes, LockMutant::TryWaits]);
    finds(setup(2, vec![one(0, 2, &[READ, UPGRADE]), one(1, 2, &[READ, UPGRADE])]), &[]);
}

#[test]
fn canary_lock_among_ranges() {
    let menu = || vec![Choice::part(0, 0, 8, WRITE), Choice::part(0, 4, 8, WRITE)];
    let sessions = vec![SessionPlan::new(0, 1, menu()), SessionPlan::new(1, 1, menu())];
    finds(setup(2, sessions), &[LockMutant::EqualRangesOnly]);
}

#[test]
fn canary_lock_among_readers_that_keep_coming() {
    let limits = Limits { lock_handovers_max: 0, ..LockSetup::default().limits };
    let sessions =
        vec![one(0, 1, &[WRITE]), one(0, 1, &[READ]), one(0, 1, &[WRITE]), one(0, 1, &[READ])];
    finds(
        LockSetup { limits, ..setup(1, sessions) },
        &[LockMutant::Barging, LockMutant::EndlessBatch],
    );
}

#[test]
fn canary_lock_among_nodes_with_different_numbers_of_waiters() {
    let limits = Limits {
        lock_handovers_max: 0,
        lock_delegate_after: u32::MAX,
        ..LockSetup::default().limits
    };
    let sessions =
        vec![one(0, 1, &[WRITE]), one(1, 1, &[WRITE]), one(1, 1, &[WRITE]), one(1, 1, &[WRITE])];
    finds(LockSetup { limits, ..setup(2, sessions) }, &[LockMutant::NodesUnequal]);
}

#[test]
fn canary_lock_among_cancelled_waits() {
    let sessions =
        vec![one(0, 1, &[READ]), one(1, 2, &[WRITE]).with_cancels(1), one(1, 1, &[READ])];
    finds(setup(2, sessions), &[LockMutant::CancelWakesNobody]);
    let sessions =
        vec![one(0, 1, &[READ]), one(1, 1, &[WRITE]).with_cancels(1), one(1, 1, &[READ])];
    finds(setup(2, sessions), &[LockMutant::EarlyCancelDropped]);
}

#[test]
fn canary_lock_among_rings() {
    let mutants = [LockMutant::ProbeNotForwarded, LockMutant::OldestIsVictim];
    finds(ring([0, 1], [2, 3]), &mutants);
}

#[test]
fn canary_lock_among_the_dead() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 1, &[WRITE]), one(2, 1, &[WRITE])];
    let mutants = [LockMutant::DeadStillHold, LockMutant::DeadDelegateKeeps];
    finds(LockSetup { mortal: vec![1], ..setup(3, sessions) }, &mutants);
}

#[test]
fn canary_lock_among_notifications() {
    let undoes = one(2, 2, &[WRITE]).with_undo();
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), undoes];
    let mutants = [
        LockMutant::AbandonedForgotten,
        LockMutant::DeadDelegateUnmarked,
        LockMutant::UndoneTellsNobody,
    ];
    finds(LockSetup { mortal: vec![1], ..setup(3, sessions) }, &mutants);
}

#[test]
fn canary_lock_among_loans() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 4, &[WRITE])];
    let mutants =
        [LockMutant::LoanForgetsHolder, LockMutant::LoanTokensAgain, LockMutant::LoanWhileHeld];
    finds(LockSetup { loans: 1, ..setup(2, sessions) }, &mutants);
}

#[test]
fn canary_lock_among_leaves() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(2, 1, &[WRITE])];
    let mutants = [LockMutant::DrainGrantsQueue, LockMutant::DrainEndsHeld];
    finds(LockSetup { leaves: Some(0), ..setup(3, sessions) }, &mutants);
}
