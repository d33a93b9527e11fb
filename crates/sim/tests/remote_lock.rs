//! Exhaustive search over the ticket and queue locks in remote memory. The numbers of states are asserted, which detects
//! changes of the machine or of the model that reduce the search.

use farside_sim::explorer::Explorer;
use farside_sim::model::remote_lock::{RemoteLockBudget, RemoteLockClients};

const NOTHING: RemoteLockBudget = RemoteLockBudget { deaths: 0, leaves: 0, losses: 0, stops: 0 };

/// Visits every state and checks their number.
fn explore(clients: RemoteLockClients, states: u64) {
    let coverage = Explorer::new().explore(&clients).holds();
    let coverage = coverage.unwrap_or_else(|transcript| panic!("{transcript}"));
    assert_eq!(coverage.states, states, "{coverage:?}");
    assert!(coverage.ends > 0);
}

#[test]
fn clients_without_faults_take_turns() {
    explore(RemoteLockClients::new(3, false, 2, NOTHING), 222_922);
}

#[test]
fn dead_holders_and_dead_waiters_are_skipped() {
    let budget = RemoteLockBudget { deaths: 2, losses: 1, ..NOTHING };
    explore(RemoteLockClients::new(3, false, 1, budget), 127_728);
}

#[test]
fn stopped_clients_lose_the_lock_after_their_lease() {
    let budget = RemoteLockBudget { stops: 2, deaths: 1, ..NOTHING };
    explore(RemoteLockClients::new(3, false, 1, budget), 335_349);
}

#[test]
fn tickets_of_clients_that_leave_are_skipped() {
    let budget = RemoteLockBudget { leaves: 2, stops: 1, ..NOTHING };
    explore(RemoteLockClients::new(3, false, 1, budget), 60_151);
}

#[test]
fn slots_of_clients_that_leave_are_skipped() {
    let budget = RemoteLockBudget { leaves: 2, deaths: 1, ..NOTHING };
    explore(RemoteLockClients::new(3, true, 1, budget), 18_108);
}
