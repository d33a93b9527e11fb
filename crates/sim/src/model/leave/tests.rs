use super::*;
use crate::explorer::Explorer;
use crate::model::coherence::Budget;

const fn budget(reads: u8, writes: u8) -> Budget {
    Budget { reads, writes, updates: 0, holds: 0, evictions: 0 }
}

fn setup(homes: &[u16], budgets: &[Budget]) -> CoherenceSetup {
    CoherenceSetup { homes: homes.to_vec(), budgets: budgets.to_vec(), ..CoherenceSetup::default() }
}

#[track_caller]
fn states(memory: CoherenceSetup, locks: &[u8], leavers: u8) -> u64 {
    let model = LeavingCluster::new(memory, locks, leavers, |machine| machine);
    match Explorer::new().explore(&model).holds() {
        Ok(coverage) => coverage.states,
        Err(transcript) => panic!("{transcript}"),
    }
}

#[test]
fn leave_at_every_step_loses_no_line() {
    let memory = setup(&[0], &[budget(1, 0), budget(1, 1), budget(1, 1)]);
    assert_eq!(states(memory, &[], 0b010), 47_279);
    let memory = setup(&[0], &[budget(0, 0), budget(0, 1), budget(0, 1)]);
    assert_eq!(states(memory, &[], 0b110), 7_795);
}

#[test]
fn home_that_leaves_takes_only_its_own_memory() {
    let memory = setup(&[0, 1], &[budget(0, 1), budget(0, 1), budget(1, 0)]);
    assert_eq!(states(memory, &[], 0b001), 16_158);
}

#[test]
fn all_leave_at_once_without_an_error() {
    let memory = setup(&[0, 1], &[budget(0, 1), budget(0, 1)]);
    assert_eq!(states(memory, &[1, 1], 0b11), 78_487);
    let memory = setup(&[0], &[budget(0, 0), budget(0, 1), budget(0, 1)]);
    assert_eq!(states(memory, &[], 0b111), 133_580);
}

#[test]
fn leave_hands_locks_over() {
    let memory = setup(&[0], &[budget(0, 0); 3]);
    assert_eq!(states(memory.clone(), &[1, 1, 2], 0b010), 96_808);
    assert_eq!(states(memory, &[0, 1, 1], 0b011), 36_635);
}

#[test]
fn leave_beside_a_death_loses_only_what_the_dead_had() {
    let memory =
        CoherenceSetup { deaths: 1, ..setup(&[0], &[budget(0, 0), budget(0, 1), budget(1, 1)]) };
    assert_eq!(states(memory, &[], 0b010), 43_405);
}

#[test]
fn leave_beside_write_backs_loses_no_line() {
    let memory = setup(&[0], &[budget(0, 0), budget(0, 1), budget(0, 1)]);
    let memory = CoherenceSetup { write_backs: 1, flushes: 1, ..memory };
    assert_eq!(states(memory, &[], 0b010), 17_828);
}

#[test]
fn leave_without_handing_over_is_found() {
    let memory = setup(&[0], &[budget(0, 0), budget(0, 1), budget(0, 0)]);
    let model = LeavingCluster::new(memory, &[], 0b010, |machine| machine).careless();
    let failure = Explorer::new().explore(&model).failure().expect("the line is lost");
    assert_eq!(failure.violation.0, "line 0 is lost", "{}", failure.transcript);
}

#[cfg(canary)]
#[test]
fn canary_leave_that_waits_for_no_answer_is_found() {
    use farside_protocol::member::MemberMutant;
    let memory = setup(&[0], &[budget(0, 0), budget(0, 1), budget(1, 0)]);
    let change = |machine: Membership| machine.with_mutant(MemberMutant::LeavesUnheard);
    let model = LeavingCluster::new(memory, &[], 0b010, change);
    assert!(Explorer::new().explore(&model).failure().is_some());
}
