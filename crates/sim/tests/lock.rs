//! Exhaustive search over the lock machines. The numbers of states are asserted, which detects changes of the machine
//! or of the model that reduce the search.

use farside_base::Limits;
use farside_protocol::lock::{Ask, Mode, Patience};
use farside_sim::explorer::Explorer;
use farside_sim::model::lock::{Choice, LockSetup, SessionPlan, System};

const READ: Ask = Ask::Lock { mode: Mode::Read, patience: Patience::Wait };
const WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Wait };
const TRY_READ: Ask = Ask::Lock { mode: Mode::Read, patience: Patience::Try };
const TRY_WRITE: Ask = Ask::Lock { mode: Mode::Write, patience: Patience::Try };
const UPGRADE: Ask = Ask::Upgrade { patience: Patience::Wait };
const TRY_UPGRADE: Ask = Ask::Upgrade { patience: Patience::Try };

/// Visits every state and checks their number.
fn explore(setup: LockSetup, states: u64) {
    let coverage = Explorer::new().explore(&System::new(setup)).holds();
    let coverage = coverage.unwrap_or_else(|transcript| panic!("{transcript}"));
    assert_eq!(coverage.states, states, "{coverage:?}");
    assert!(coverage.ends > 0);
}

/// A session that requests the whole of line 0.
fn one(node: u16, asks: u8, menu: &[Ask]) -> SessionPlan {
    SessionPlan::new(node, asks, menu.iter().map(|ask| Choice::whole(0, *ask)).collect())
}

/// Write locks of the lines in this order.
fn lines(lines: &[usize]) -> Vec<Choice> {
    lines.iter().map(|line| Choice::whole(*line, WRITE)).collect()
}

fn setup(nodes: u16, sessions: Vec<SessionPlan>) -> LockSetup {
    LockSetup { nodes, sessions, ..LockSetup::default() }
}

#[test]
fn two_nodes_write() {
    explore(setup(2, vec![one(0, 2, &[WRITE]), one(1, 2, &[WRITE])]), 570);
}

#[test]
fn three_nodes_read_and_write() {
    explore(setup(3, (0..3).map(|node| one(node, 1, &[READ, WRITE])).collect()), 13_023);
}

#[test]
fn two_sessions_of_the_delegate() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[READ, WRITE]), one(1, 1, &[WRITE])];
    explore(setup(2, sessions), 32_457);
}

#[test]
fn tries() {
    let sessions =
        vec![one(0, 1, &[WRITE]), one(1, 2, &[READ, TRY_WRITE]), one(2, 1, &[TRY_WRITE, TRY_READ])];
    explore(setup(3, sessions), 53_062);
}

#[test]
fn upgrades() {
    let both = [READ, UPGRADE];
    explore(setup(2, vec![one(0, 2, &both), one(1, 2, &both)]), 2_380);
    let tries = [READ, UPGRADE, TRY_UPGRADE];
    explore(setup(2, vec![one(0, 2, &both), one(1, 2, &tries), one(1, 1, &[WRITE])]), 163_662);
}

#[test]
fn ranges_that_overlap_and_ranges_that_do_not() {
    let menu = || {
        vec![
            Choice::part(0, 0, 8, WRITE),
            Choice::part(0, 8, 8, WRITE),
            Choice::part(0, 0, 16, READ),
        ]
    };
    explore(setup(2, vec![SessionPlan::new(0, 2, menu()), SessionPlan::new(1, 2, menu())]), 49_752);
    let sessions = [0, 1, 1].map(|node| SessionPlan::new(node, 1, menu()));
    explore(setup(2, sessions.into()), 34_581);
}

#[test]
fn waits_are_cancelled() {
    let cancels = |plan: SessionPlan| plan.with_cancels(1);
    let sessions = vec![one(0, 1, &[WRITE]), cancels(one(1, 2, &[WRITE])), one(2, 1, &[READ])];
    explore(setup(3, sessions), 55_475);
    let upgrade = [READ, UPGRADE];
    explore(setup(2, vec![cancels(one(0, 2, &upgrade)), cancels(one(1, 2, &upgrade))]), 15_667);
}

#[test]
fn sessions_are_closed() {
    let menu = [READ, UPGRADE, WRITE];
    let sessions = vec![one(0, 2, &menu).with_close(), one(1, 2, &menu).with_close()];
    explore(setup(2, sessions), 39_856);
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]).with_close(), one(2, 1, &[WRITE])];
    explore(setup(3, sessions), 28_843);
}

#[test]
fn delegate_home_and_any_node_die() {
    let sessions = || vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(2, 1, &[WRITE])];
    explore(LockSetup { mortal: vec![1], ..setup(3, sessions()) }, 44_005);
    explore(LockSetup { mortal: vec![0], ..setup(3, sessions()) }, 39_732);
    let sessions = vec![one(1, 2, &[READ, WRITE]), one(2, 1, &[WRITE])];
    explore(LockSetup { mortal: vec![0, 1, 2], ..setup(3, sessions) }, 126_344);
}

#[test]
fn next_holder_learns_of_dead_holder() {
    let sessions = vec![one(1, 1, &[WRITE]), one(0, 2, &[WRITE]).with_undo()];
    explore(LockSetup { mortal: vec![1], loans: 1, ..setup(2, sessions) }, 1_285);
    let sessions = vec![one(1, 1, &[WRITE]), one(2, 2, &[WRITE]).with_undo().with_cancels(1)];
    explore(LockSetup { mortal: vec![1], ..setup(3, sessions) }, 11_899);
    let sessions = vec![one(1, 1, &[WRITE]), one(2, 3, &[READ, UPGRADE, WRITE])];
    explore(LockSetup { mortal: vec![1], ..setup(3, sessions) }, 110_617);
}

#[test]
fn delegations_are_offered_back() {
    let limits = Limits { lock_delegations_max: 0, ..LockSetup::default().limits };
    let sessions = vec![one(0, 2, &[WRITE]), one(1, 2, &[WRITE]), one(1, 1, &[WRITE])];
    explore(LockSetup { limits, ..setup(2, sessions) }, 73_309);
    let sessions =
        vec![SessionPlan::new(0, 1, lines(&[0, 1])), SessionPlan::new(1, 3, lines(&[0, 1]))];
    explore(LockSetup { homes: vec![0, 0], ..setup(2, sessions) }, 21_727);
}

#[test]
fn delegations_come_with_the_second_grant() {
    let limits = Limits { lock_delegate_after: 2, ..LockSetup::default().limits };
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(1, 2, &[WRITE])];
    explore(LockSetup { limits, ..setup(2, sessions) }, 31_227);
}

#[test]
fn nodes_with_different_numbers_of_waiters() {
    let limits = Limits { lock_delegate_after: u32::MAX, ..LockSetup::default().limits };
    let sessions = vec![
        one(0, 2, &[WRITE]),
        one(1, 1, &[WRITE]),
        one(1, 1, &[READ, WRITE]),
        one(1, 1, &[WRITE]),
    ];
    explore(LockSetup { limits, ..setup(2, sessions) }, 247_495);
}

#[test]
fn two_lines_in_any_order() {
    let sessions =
        |nodes: [u16; 2]| nodes.map(|node| SessionPlan::new(node, 2, lines(&[0, 1]))).into();
    explore(LockSetup { homes: vec![0, 1], ..setup(2, sessions([0, 1])) }, 21_271);
    explore(LockSetup { homes: vec![2, 2], ..setup(3, sessions([0, 1])) }, 60_359);
    explore(LockSetup { homes: vec![0, 1], ..setup(3, sessions([0, 2])) }, 38_115);
}

#[test]
fn rings_of_two_and_three() {
    let ring = |node, first, second| SessionPlan::in_order(node, lines(&[first, second]));
    let sessions = vec![ring(1, 0, 1), ring(1, 1, 0), one(0, 1, &[WRITE])];
    explore(LockSetup { homes: vec![0, 1], ..setup(2, sessions) }, 87_022);
    let sessions = vec![ring(0, 0, 1), ring(1, 1, 0)];
    explore(LockSetup { homes: vec![2, 2], ..setup(3, sessions) }, 11_220);
    let limits = Limits { lock_delegate_after: u32::MAX, ..LockSetup::default().limits };
    let sessions = vec![ring(0, 0, 1), ring(1, 1, 2), ring(2, 2, 0)];
    explore(LockSetup { homes: vec![0, 1, 2], limits, ..setup(3, sessions) }, 188_765);
}

#[test]
fn a_line_is_lent() {
    let both = [READ, WRITE];
    let sessions = vec![one(0, 2, &[WRITE]), one(1, 3, &[WRITE])];
    explore(LockSetup { loans: 2, ..setup(2, sessions) }, 10_469);
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &both), one(1, 1, &[WRITE])];
    explore(LockSetup { loans: 1, ..setup(2, sessions) }, 52_661);
    let sessions = vec![one(0, 2, &both).with_close(), one(1, 2, &both).with_close()];
    explore(LockSetup { loans: 1, ..setup(2, sessions) }, 83_669);
    let upgrade = [READ, UPGRADE];
    explore(
        LockSetup { loans: 1, ..setup(2, vec![one(0, 2, &upgrade), one(1, 3, &upgrade)]) },
        28_334,
    );
}

#[test]
fn line_is_lent_by_dying_nodes() {
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 3, &[WRITE])];
    explore(LockSetup { loans: 1, mortal: vec![0, 1], ..setup(2, sessions) }, 5_893);
    let sessions = vec![one(1, 3, &[WRITE]), one(2, 1, &[WRITE])];
    explore(LockSetup { loans: 1, mortal: vec![1], ..setup(3, sessions) }, 8_690);
}

#[test]
fn locks_on_loan_are_in_cycles() {
    let ring = |node, first, second| SessionPlan::in_order(node, lines(&[first, first, second]));
    let sessions = vec![ring(0, 0, 1), ring(1, 1, 0)];
    explore(LockSetup { homes: vec![0, 1], loans: 2, ..setup(2, sessions) }, 95_726);
}

#[test]
fn locks_on_loan_count() {
    let limits = Limits { locks_per_session_max: 1, ..LockSetup::default().limits };
    let sessions = vec![SessionPlan::new(0, 4, lines(&[0, 1])), one(1, 1, &[WRITE])];
    explore(LockSetup { homes: vec![0, 0], loans: 2, limits, ..setup(2, sessions) }, 114_487);
}

/// A home that leaves ends no lock, grants none to a session that holds none, and is not kept by sessions that wait for
/// its return.
#[test]
fn home_with_state_leaves() {
    let leaves = |homes: Vec<u16>, nodes, sessions| LockSetup {
        homes,
        leaves: Some(0),
        ..setup(nodes, sessions)
    };
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]), one(2, 1, &[TRY_WRITE, WRITE])];
    explore(leaves(vec![0], 3, sessions), 75_551);
    let upgrade = [READ, UPGRADE];
    let sessions = vec![one(1, 2, &upgrade), one(2, 2, &upgrade)];
    explore(leaves(vec![0], 3, sessions), 32_177);
    let sessions = vec![one(1, 2, &[WRITE]), one(1, 2, &[WRITE]).with_cancels(1)];
    explore(leaves(vec![0], 2, sessions), 25_234);
    let sessions = vec![one(0, 1, &[WRITE]), one(1, 2, &[WRITE]).with_close()];
    explore(LockSetup { loans: 1, ..leaves(vec![0], 2, sessions) }, 3_929);
}

#[test]
fn home_with_state_leaves_during_nested_locks() {
    let ring = |node, first, second| SessionPlan::in_order(node, lines(&[first, second]));
    let leaves =
        |homes: Vec<u16>, sessions| LockSetup { homes, leaves: Some(0), ..setup(3, sessions) };
    explore(leaves(vec![0, 0], vec![ring(1, 0, 1), ring(2, 1, 0)]), 103_443);
    explore(leaves(vec![0, 1], vec![ring(1, 0, 1), ring(2, 1, 0)]), 52_935);
}
