use super::*;
use crate::explorer::Explorer;

fn states(processes: usize, settled: usize, deaths: u8, leavings: bool) -> u64 {
    let model = MemberCluster::new(processes, deaths, leavings, |machine| machine);
    let outcome = Explorer::new().explore(&model.settled(settled));
    match outcome.holds() {
        Ok(coverage) => coverage.states,
        Err(text) => {
            panic!("{processes} processes, {settled} settled, {deaths} deaths: {text}")
        }
    }
}

#[test]
fn members_agree_after_any_deaths() {
    assert_eq!(states(2, 1, 2, true), 251);
    assert_eq!(states(3, 1, 1, true), 9_518);
    assert_eq!(states(3, 1, 3, false), 10_702);
    assert_eq!(states(4, 3, 1, true), 98_297);
    assert_eq!(states(4, 3, 2, false), 124_051);
}

fn parted(processes: usize, settled: usize, deaths: u8, partings: u8) -> u64 {
    let model = MemberCluster::parting(processes, deaths, partings, |machine| machine);
    match Explorer::new().explore(&model.settled(settled)).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!(
            "{processes} processes, {settled} settled, {deaths} deaths, {partings} partings: {text}"
        ),
    }
}

#[test]
fn no_two_sides_go_on_wherever_the_network_parts() {
    let states = [
        parted(2, 2, 1, 1),
        parted(3, 3, 0, 3),
        parted(3, 3, 1, 2),
        parted(3, 2, 1, 1),
        parted(3, 1, 0, 1),
        parted(4, 4, 0, 1),
    ];
    assert_eq!(states, [22, 5_955, 10_457, 12_867, 9_333, 7_967]);
}

fn parted_programs(processes: usize, programs: u8, deaths: u8, partings: u8) -> u64 {
    let model =
        MemberCluster::parting_programs(processes, programs, deaths, partings, |machine| machine);
    match Explorer::new().explore(&model.settled(processes)).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!("{processes} processes, programs {programs:#b}: {text}"),
    }
}

#[test]
fn programs_do_not_count_and_no_two_sides_go_on() {
    let states = [
        parted_programs(3, 0b100, 1, 2),
        parted_programs(3, 0b110, 1, 2),
        parted_programs(3, 0b001, 0, 3),
        parted_programs(4, 0b1000, 0, 1),
    ];
    assert_eq!(states, [8_527, 8_527, 3_952, 6_402]);
}

#[cfg(canary)]
#[test]
fn canary_split_brains_are_found() {
    use farside_protocol::member::MemberMutant;
    let cases = [
        (MemberMutant::NoQuorum, 3, 0, 2),
        (MemberMutant::VotesForBothSides, 4, 0, 2),
        (MemberMutant::QuorumShrinksAtDeath, 3, 1, 2),
    ];
    for (mutant, processes, deaths, partings) in cases {
        let change = |machine: Membership| machine.with_mutant(mutant);
        let model = MemberCluster::parting(processes, deaths, partings, change).settled(processes);
        let outcome = Explorer::new().explore(&model);
        let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert_eq!(failure.violation.0, "two sides go on", "{}", failure.transcript);
    }
}

#[cfg(canary)]
#[test]
fn canary_removed_member_that_counts_as_ended_is_found() {
    use farside_protocol::member::MemberMutant;
    let change = |machine: Membership| machine.with_mutant(MemberMutant::RemovedCountsAsEnded);
    let model = MemberCluster::parting(4, 0, 1, change).settled(3);
    let failure = Explorer::new().explore(&model).failure().expect("a failure");
    let expected = "the process of a member that lives counts as ended";
    assert_eq!(failure.violation.0, expected, "{}", failure.transcript);
}

/// Processes, processes that have joined, numbers, deaths or leaves.
type Reuse = (usize, usize, u16, u8, bool);

fn reused((processes, settled, numbers, deaths, leavings): Reuse) -> u64 {
    let model = MemberCluster::reusing(processes, numbers, deaths, leavings, |machine| machine);
    match Explorer::new().explore(&model.settled(settled)).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => {
            panic!("{processes} processes, {numbers} numbers, {deaths} deaths: {text}")
        }
    }
}

#[test]
fn numbers_are_given_again_when_all_have_settled() {
    let cases = [
        (3, 2, 2, 2, true),
        (4, 2, 2, 3, false),
        (4, 3, 3, 1, true),
        (4, 1, 2, 2, true),
        (4, 3, 3, 2, false),
    ];
    let states = cases.map(reused);
    assert_eq!(states, [1_082, 3_453, 2_179, 55_452, 6_375], "{cases:?}");
}

#[test]
#[ignore = "many states; run with --ignored"]
fn numbers_are_given_again_at_length() {
    let cases = [(5, 2, 2, 3, true), (4, 2, 3, 2, false), (5, 3, 3, 2, false), (4, 3, 3, 2, true)];
    assert_eq!(cases.map(reused), [379_979, 138_054, 72_034, 122_113], "{cases:?}");
}

/// Plans of the processes, processes that have joined, numbers, deaths or leaves.
type Returning = (&'static [LifePlan], usize, u16, u8, bool);

fn returned((plans, settled, numbers, deaths, leavings): Returning) -> u64 {
    let model = MemberCluster::returning(plans, numbers, deaths, leavings, |machine| machine);
    match Explorer::new().explore(&model.settled(settled)).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!("{plans:?}, {numbers} numbers, {deaths} deaths: {text}"),
    }
}

#[test]
fn nodes_with_state_return_as_the_same_memory() {
    use LifePlan::{NewState, Ordinary, ReturnOf};
    let cases: [Returning; 6] = [
        (&[Ordinary, NewState, ReturnOf(1)], 2, 2, 2, true),
        (&[Ordinary, NewState, ReturnOf(1)], 1, 2, 2, true),
        (&[NewState, Ordinary, ReturnOf(0)], 2, 2, 2, true),
        (&[Ordinary, NewState, Ordinary, ReturnOf(1)], 2, 2, 2, true),
        (&[Ordinary, Ordinary, NewState, ReturnOf(2)], 3, 3, 2, false),
        (&[Ordinary, NewState, ReturnOf(1), ReturnOf(2)], 2, 2, 3, false),
    ];
    let states = cases.map(returned);
    assert_eq!(states, [544, 1_908, 407, 3_166, 2_806, 827], "{cases:?}");
}

#[test]
fn nodes_that_leave_with_their_memory_saved_return_as_it() {
    use LifePlan::{Ordinary, ReturnOf, Saves};
    let cases: [Returning; 6] = [
        (&[Ordinary, Saves, ReturnOf(1)], 2, 2, 2, true),
        (&[Ordinary, Saves, ReturnOf(1)], 1, 2, 2, true),
        (&[Saves, Ordinary, ReturnOf(0)], 2, 2, 2, true),
        (&[Ordinary, Saves, Ordinary, ReturnOf(1)], 2, 2, 2, true),
        (&[Ordinary, Ordinary, Saves, ReturnOf(2)], 3, 3, 2, true),
        (&[Ordinary, Saves, ReturnOf(1), ReturnOf(2)], 2, 2, 3, true),
    ];
    let states = cases.map(returned);
    assert_eq!(states, [483, 1_838, 369, 3_784, 56_845, 6_444], "{cases:?}");
}

#[test]
fn node_with_state_that_died_is_ready_again() {
    returns_after(LifePlan::NewState, MemberAction::Kill(1));
}

#[test]
fn node_that_left_with_its_memory_saved_is_ready_again() {
    returns_after(LifePlan::Saves, MemberAction::Leave(1));
}

fn returns_after(plan: LifePlan, end: MemberAction) {
    let plans = [LifePlan::Ordinary, plan, LifePlan::ReturnOf(1)];
    let mut model = MemberCluster::returning(&plans, 2, 1, true, |machine| machine).settled(2);
    model.apply(end);
    loop {
        let mut actions = model.enabled();
        // It joins when everything else has happened: the removal is settled then.
        actions.sort_by_key(|action| matches!(action, MemberAction::Join(_)));
        let Some(first) = actions.first() else { break };
        model.apply(*first);
        assert_eq!(model.violation(), None);
    }
    assert!(model.processes[2].ready);
    assert_eq!(model.machine(2).memory(), model.machine(1).memory());
}

#[cfg(canary)]
#[test]
fn canary_return_needs_its_rules() {
    use LifePlan::{NewState, Ordinary, ReturnOf, Saves};
    use farside_protocol::member::MemberMutant;
    let cases: [(MemberMutant, &[LifePlan], usize, u16, &str); 4] = [
        (
            MemberMutant::SavedMemoryForgotten,
            &[Ordinary, Saves, Ordinary],
            2,
            2,
            "the number of a node with state is given to another",
        ),
        (
            MemberMutant::SavedMemoryUndecided,
            &[Ordinary, Ordinary, Saves],
            3,
            3,
            "members know other nodes with state",
        ),
        (
            MemberMutant::StateNumberReused,
            &[Ordinary, NewState, Ordinary],
            2,
            2,
            "the number of a node with state is given to another",
        ),
        (
            MemberMutant::ReturnedBeforeSettled,
            &[Ordinary, NewState, ReturnOf(1)],
            2,
            2,
            "a number is given again before it is settled",
        ),
    ];
    for (mutant, plans, settled, numbers, expected) in cases {
        let change = |machine: Membership| machine.with_mutant(mutant);
        let leavings = plans.contains(&Saves);
        let model = MemberCluster::returning(plans, numbers, 2, leavings, change);
        let outcome = Explorer::new().explore(&model.settled(settled));
        let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
    }
}

#[cfg(canary)]
#[test]
fn canary_reuse_of_numbers_needs_its_rules() {
    use farside_protocol::member::MemberMutant;
    let cases = [
        (MemberMutant::ReusedBeforeSettled, 4, 3, "a number is given again before it is settled"),
        (MemberMutant::GenerationKept, 3, 2, "two memories of one generation"),
        (MemberMutant::LowestNumberCoordinates, 4, 3, "the living are not those who live"),
    ];
    for (mutant, processes, numbers, expected) in cases {
        let change = |machine: Membership| machine.with_mutant(mutant);
        let model = MemberCluster::reusing(processes, numbers, 2, false, change);
        let outcome = Explorer::new().explore(&model.settled(usize::from(numbers)));
        let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
    }
}

#[test]
#[ignore = "a minute: two million states; run with --ignored"]
fn members_agree_after_partitions_at_length() {
    let counts = [parted(4, 4, 1, 1), parted(4, 3, 0, 1), parted(4, 4, 0, 2)];
    assert_eq!(counts, [347_358, 359_360, 1_684_524]);
}

#[test]
#[ignore = "a minute: three million states; run with --ignored"]
fn members_agree_at_length() {
    assert_eq!(states(4, 1, 1, false), 1_963_035);
    assert_eq!(states(4, 2, 1, true), 1_292_452);
}

#[test]
#[ignore = "a minute: two million states; run with --ignored"]
fn members_agree_after_two_deaths_at_length() {
    assert_eq!(states(4, 2, 2, false), 1_907_380);
}

#[test]
#[ignore = "many states; run with --ignored"]
fn members_agree_when_two_leave() {
    assert_eq!(states(3, 1, 2, true), 116_148);
    assert_eq!(states(4, 4, 2, true), 240_841);
}

#[cfg(canary)]
#[test]
fn canary_defects_are_found() {
    use farside_protocol::member::MemberMutant;
    let cases = [
        (MemberMutant::TakeoverWithoutReports, 4, 4, "view out of order"),
        (MemberMutant::DeadTwice, 3, 3, "declared dead twice"),
        (MemberMutant::JoinerOutlivesCoordinator, 3, 1, "a joiner waits for ever"),
        (MemberMutant::JoinerJudges, 4, 3, "a joiner waits for ever"),
        (MemberMutant::UnlinkedKept, 3, 1, "the living are not those who live"),
        (MemberMutant::FormerCoordinatorHeard, 4, 4, "view removes a node that is no member"),
        (MemberMutant::EarlyPeerRefused, 3, 2, "a joiner failed in peace"),
    ];
    for (mutant, processes, settled, expected) in cases {
        let model = MemberCluster::new(processes, 2, false, |machine| machine.with_mutant(mutant));
        let outcome = Explorer::new().explore(&model.settled(settled));
        let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
    }
}

/// Processes, witnesses as bits, processes that have joined, and deaths, partitioned pairs and isolated processes.
type Witnessed = (usize, u8, usize, [u8; 3]);

fn witnessed((processes, witnesses, settled, faults): Witnessed) -> u64 {
    let model = MemberCluster::witnessed(processes, witnesses, faults, |machine| machine);
    match Explorer::new().explore(&model.settled(settled)).holds() {
        Ok(coverage) => coverage.states,
        Err(text) => panic!("{processes} processes, witnesses {witnesses:#b}, {faults:?}: {text}"),
    }
}

#[test]
fn two_nodes_with_a_witness_survive_any_one_fault() {
    let cases: [Witnessed; 9] = [
        // The witness is the last, the second, the first; one death, one broken link, one process out of reach.
        (3, 0b100, 3, [1, 0, 0]),
        (3, 0b100, 3, [0, 1, 0]),
        (3, 0b100, 3, [0, 0, 1]),
        (3, 0b010, 3, [1, 0, 0]),
        (3, 0b010, 3, [0, 1, 0]),
        (3, 0b010, 3, [0, 0, 1]),
        (3, 0b001, 3, [1, 0, 0]),
        (3, 0b001, 3, [0, 1, 0]),
        (3, 0b001, 3, [0, 0, 1]),
    ];
    let states = cases.map(witnessed);
    assert_eq!(states, [39, 92, 326, 39, 92, 326, 39, 92, 326], "{cases:?}");
}

#[test]
fn witnesses_never_continue_without_memory_that_lives() {
    let cases: [Witnessed; 6] = [
        (2, 0b01, 2, [0, 0, 1]),
        (2, 0b10, 2, [1, 0, 1]),
        (3, 0b001, 3, [1, 0, 1]),
        (3, 0b100, 3, [0, 2, 1]),
        (3, 0b110, 3, [0, 0, 1]),
        (3, 0b011, 3, [1, 1, 0]),
    ];
    let states = cases.map(witnessed);
    assert_eq!(states, [13, 43, 2_782, 20_439, 449, 1_092], "{cases:?}");
}

#[test]
fn members_of_clusters_with_witnesses_start_again() {
    // A data node, a witness, a data node, and one of them again, while one fails.
    let cases: [Witnessed; 3] =
        [(3, 0b010, 2, [1, 0, 0]), (4, 0b1010, 3, [1, 0, 0]), (4, 0b0010, 3, [1, 0, 0])];
    let states = cases.map(witnessed);
    assert_eq!(states, [784, 28_161, 28_161], "{cases:?}");
}

#[cfg(canary)]
#[test]
fn canary_witnesses_need_their_rules() {
    use farside_protocol::member::MemberMutant;
    let without_need = "memory is lost without need";
    let alone = "witnesses continue without the memory of a member that lived";
    let cases: [(MemberMutant, Witnessed, &str); 5] = [
        (MemberMutant::WitnessUncounted, (3, 0b100, 3, [0, 0, 1]), without_need),
        (MemberMutant::WitnessBreaksTies, (2, 0b01, 2, [0, 0, 1]), alone),
        (MemberMutant::WitnessBreaksTies, (3, 0b001, 3, [1, 0, 1]), alone),
        (MemberMutant::WitnessesSuffice, (3, 0b110, 3, [0, 0, 1]), alone),
        (MemberMutant::WitnessJudgedAsLender, (3, 0b010, 3, [0, 1, 0]), without_need),
    ];
    for (mutant, (processes, witnesses, settled, faults), expected) in cases {
        let change = |machine: Membership| machine.with_mutant(mutant);
        let model = MemberCluster::witnessed(processes, witnesses, faults, change);
        let outcome = Explorer::new().explore(&model.settled(settled));
        let failure = outcome.failure().unwrap_or_else(|| panic!("{mutant:?} is not found"));
        assert_eq!(failure.violation.0, expected, "{mutant:?}: {}", failure.transcript);
    }
}

/// Two to four data nodes with one or two witnesses, which die and are partitioned at any time.
#[test]
fn walks_of_clusters_with_witnesses_never_split() {
    let command = "cargo test -p farside-sim --lib walks_of_clusters_with_witnesses_never_split";
    crate::seeds::each_seed(command, 3_000, |seed| {
        let (processes, witnesses) =
            [(4, 0b0100), (5, 0b01010), (6, 0b00_1100), (6, 0b01_0001), (5, 0b1_0000)]
                [(seed % 5) as usize];
        let model = MemberCluster::witnessed(processes, witnesses, [2, 2, 1], |machine| machine);
        match crate::explorer::walk(&model.settled(processes), seed, 10_000) {
            Ok(_) => Ok(()),
            Err(failure) => Err(failure.transcript),
        }
    });
}
