//! Exhaustive search over the coherence machines, and long random walks through systems that are too large to search.
//! The numbers of states are asserted, which detects changes of the machine or of the model.

use farside_sim::explorer::{Coverage, Explorer, Outcome, walk};
use farside_sim::model::coherence::{Budget, CoherenceSetup, Lingers, System};

/// Numbers of reads, writes, updates, holds and evictions of a node.
const fn budget(reads: u8, writes: u8, updates: u8, holds: u8, evictions: u8) -> Budget {
    Budget { reads, writes, updates, holds, evictions }
}

/// States, transitions, ends, depth.
type Expected = (u64, u64, u64, u32);

#[track_caller]
fn holds(setup: CoherenceSetup, expected: Expected) {
    let outcome = Explorer::new().explore(&System::new(setup));
    let Coverage { states, transitions, ends, depth } =
        outcome.holds().unwrap_or_else(|transcript| panic!("{transcript}"));
    assert_eq!((states, transitions, ends, depth), expected);
}

#[test]
fn two_nodes_two_lines_with_evictions() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(1, 1, 0, 0, 1); 2],
        ..CoherenceSetup::default()
    };
    holds(setup, (32_411, 99_770, 69, 26));
}

#[test]
fn two_nodes_two_lines_with_updates() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(1, 0, 1, 0, 1); 2],
        ..CoherenceSetup::default()
    };
    holds(setup, (47_388, 151_396, 71, 28));
}

#[test]
fn two_nodes_two_lines_of_one_home() {
    let setup = CoherenceSetup {
        homes: vec![0, 0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 1, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (56_430, 174_386, 158, 21));
}

#[test]
fn two_nodes_one_line_with_everything() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(1, 1, 1, 0, 0), budget(1, 1, 1, 1, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (301_878, 826_190, 97, 30));
}

#[test]
fn operations_that_are_cancelled() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 1, 0), budget(1, 1, 0, 1, 1)],
        cancels: 2,
        ..CoherenceSetup::default()
    };
    holds(setup, (71_561, 226_456, 126, 23));
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)],
        cancels: 1,
        mortal: vec![0, 1],
        deaths: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (312_974, 1_198_460, 809, 33));
}

#[test]
fn two_nodes_one_line_that_is_freed_and_allocated_again() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 1, 0, 0), budget(1, 1, 0, 1, 1)],
        retires: 1,
        allocations: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (83_804, 234_357, 128, 26));
}

#[test]
fn two_nodes_two_lines_of_which_one_dies() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 1)],
        mortal: vec![0, 1],
        deaths: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (24_328, 89_820, 410, 21));
}

#[test]
fn three_nodes_one_line_with_evictions() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 1), budget(1, 1, 0, 0, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (144_252, 415_121, 100, 31));
}

#[test]
fn three_nodes_one_line_with_upgrades_and_updates() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(1, 0, 1, 0, 0); 3],
        ..CoherenceSetup::default()
    };
    holds(setup, (54_789, 153_494, 48, 32));
}

#[test]
fn three_nodes_one_line_with_pins() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 1, 0, 0), budget(0, 1, 0, 1, 0), budget(1, 0, 1, 0, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (62_381, 183_717, 49, 33));
}

#[test]
fn three_nodes_one_line_that_is_freed_and_allocated_again() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)],
        retires: 1,
        allocations: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (23_825, 67_002, 126, 30));
}

#[test]
fn three_nodes_one_line_of_which_one_dies() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)],
        mortal: vec![0, 1],
        deaths: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (81_704, 277_752, 321, 32));
}

/// Nodes that are removed while they write into the memory of others.
fn lingering() -> [CoherenceSetup; 3] {
    let setup = CoherenceSetup {
        mortal: vec![0, 1],
        deaths: 1,
        lingers: Lingers::Told,
        ..CoherenceSetup::default()
    };
    let two = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 1)],
        ..setup.clone()
    };
    let three = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)],
        ..setup.clone()
    };
    let freed = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(0, 1, 0, 0, 1)],
        mortal: vec![1],
        retires: 1,
        allocations: 1,
        ..setup
    };
    [two, three, freed]
}

#[test]
fn removed_nodes_write_only_quarantined_memory() {
    let [two, three, freed] = lingering();
    holds(two, (24_783, 90_667, 410, 21));
    holds(three, (86_053, 289_983, 327, 33));
    holds(freed, (525, 1_306, 15, 13));
}

/// The model can detect the violation that the quarantine of frames prevents.
#[test]
fn unquarantined_frame_of_removed_node_is_detected() {
    let [two, three, _] = lingering();
    for setup in [two, three] {
        let model = System::new(CoherenceSetup { lingers: Lingers::Untold, ..setup });
        let failure = Explorer::new().explore(&model).failure().expect("a failure");
        assert_eq!(
            failure.violation.0, "bytes land in a frame that is not the line's",
            "{}",
            failure.transcript
        );
    }
}

/// Nodes that overwrite a line while its removed owner may still write its home, or another node's frame.
fn healed_under_late_bytes() -> [CoherenceSetup; 2] {
    let home = vec![budget(1, 0, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    let another = vec![budget(1, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(0, 0, 0, 0, 0)];
    [(home, 2), (another, 1)].map(|(budgets, overwrites)| CoherenceSetup {
        lingers: Lingers::Told,
        ..healed(budgets, overwrites)
    })
}

#[test]
fn lost_line_is_not_healed_while_its_removed_owner_may_write_it() {
    let [home, another] = healed_under_late_bytes();
    holds(home, (1_173, 2_711, 79, 17));
    holds(another, (1_399, 3_371, 55, 22));
}

/// A node that may be removed while it writes the frame of another, and one that gets its number.
fn renumbered(lingers: Lingers) -> CoherenceSetup {
    CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)],
        mortal: vec![1],
        deaths: 1,
        reuses: 1,
        lingers,
        ..CoherenceSetup::default()
    }
}

#[test]
fn number_of_removed_node_is_reused_after_its_last_bytes() {
    holds(renumbered(Lingers::Told), (4_812, 11_314, 45, 33));
}

/// The model can detect why a removal is not settled while a removed node lingers.
#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "1 is a new node")]
fn reuse_of_number_before_settlement_is_detected() {
    let model = System::new(renumbered(Lingers::Renumbered));
    let failure = Explorer::new().explore(&model).failure();
    panic!("{failure:?}");
}

/// Two nodes that write, with write-backs.
fn written_back(budgets: Vec<Budget>) -> CoherenceSetup {
    CoherenceSetup {
        homes: vec![0],
        budgets,
        write_backs: 1,
        flushes: 1,
        ..CoherenceSetup::default()
    }
}

#[test]
fn write_back_at_every_step() {
    let budgets = vec![budget(0, 1, 0, 0, 0), budget(0, 2, 0, 0, 1)];
    holds(written_back(budgets), (7_078, 17_662, 91, 22));
    let budgets = vec![budget(0, 0, 0, 0, 0), budget(0, 1, 0, 1, 0), budget(1, 1, 0, 0, 0)];
    holds(written_back(budgets), (129_527, 397_196, 147, 31));
}

#[test]
fn write_back_beside_frees_and_cancels() {
    let budgets = vec![budget(0, 1, 0, 0, 0), budget(0, 2, 0, 0, 0)];
    let setup = CoherenceSetup { retires: 1, allocations: 1, cancels: 1, ..written_back(budgets) };
    holds(setup, (55_822, 162_626, 380, 24));
}

#[test]
fn death_after_a_write_back_at_every_step() {
    let budgets = vec![budget(0, 0, 0, 0, 0), budget(0, 2, 0, 0, 0), budget(1, 0, 0, 0, 0)];
    let setup = CoherenceSetup { mortal: vec![0, 1], deaths: 1, ..written_back(budgets) };
    holds(setup, (21_785, 72_843, 311, 26));
}

/// A line with an owner that may die, and nodes that overwrite it.
fn healed(budgets: Vec<Budget>, overwrites: u8) -> CoherenceSetup {
    CoherenceSetup {
        homes: vec![0],
        budgets,
        overwrites,
        mortal: vec![1],
        deaths: 1,
        ..CoherenceSetup::default()
    }
}

#[test]
fn lost_line_is_healed_by_its_home_and_another() {
    let budgets = vec![budget(1, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(1, 0, 0, 0, 0)];
    holds(healed(budgets, 2), (96_863, 287_656, 835, 34));
}

#[test]
fn healer_that_dies_and_one_that_is_cancelled() {
    let budgets = vec![budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    let setup =
        CoherenceSetup { mortal: vec![0, 1, 2], deaths: 2, cancels: 1, ..healed(budgets, 2) };
    holds(setup, (356_410, 1_385_911, 4_123, 36));
}

#[test]
fn three_nodes_one_line_and_a_number_that_is_given_again() {
    let updating = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 0, 0, 0), budget(0, 0, 1, 0, 0), budget(1, 1, 0, 0, 0)],
        mortal: vec![2],
        deaths: 1,
        reuses: 1,
        ..CoherenceSetup::default()
    };
    holds(updating, (6_316, 14_405, 82, 30));
    let writing = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(0, 1, 0, 0, 0)],
        mortal: vec![1, 2],
        deaths: 1,
        reuses: 1,
        ..CoherenceSetup::default()
    };
    holds(writing, (53_209, 141_476, 340, 36));
}

/// The owner would write into the cache of the next node with that number.
#[test]
fn recall_of_previous_holder_of_number_is_detected() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(1, 0, 0, 0, 0)],
        mortal: vec![2],
        deaths: 1,
        reuses: 1,
        ignores_recalls: true,
        ..CoherenceSetup::default()
    };
    match Explorer::new().explore(&System::new(setup)) {
        Outcome::Fails(failure) => {
            let expected = "bytes land in a frame that is not the line's";
            assert!(failure.violation.0.contains(expected), "{}", failure.transcript);
        }
        Outcome::Holds(coverage) | Outcome::OutOfBounds(coverage) => panic!("{coverage:?}"),
    }
}

#[test]
fn grants_beyond_32_bits() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 1)],
        last_grant: u64::from(u32::MAX) - 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (418, 767, 10, 15));
}

#[test]
#[ignore = "minutes"]
fn three_nodes_one_line_with_everything() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(0, 0, 1, 0, 0), budget(1, 1, 0, 1, 1), budget(1, 1, 0, 0, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (960_889, 3_154_279, 122, 39));
}

#[test]
#[ignore = "minutes"]
fn three_nodes_two_lines() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(0, 1, 0, 0, 1)],
        ..CoherenceSetup::default()
    };
    holds(setup, (439_956, 1_640_331, 328, 28));
}

#[test]
#[ignore = "minutes"]
fn three_nodes_one_line_of_which_two_die() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(1, 0, 0, 0, 0), budget(1, 1, 0, 0, 1), budget(1, 1, 0, 0, 1)],
        mortal: vec![0, 1, 2],
        deaths: 2,
        retires: 1,
        ..CoherenceSetup::default()
    };
    holds(setup, (1_321_532, 6_991_291, 2_135, 35));
}

#[test]
#[ignore = "minutes"]
fn four_nodes_one_line() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![
            budget(0, 1, 0, 0, 0),
            budget(1, 1, 0, 0, 0),
            budget(1, 1, 0, 0, 0),
            budget(1, 0, 0, 0, 1),
        ],
        ..CoherenceSetup::default()
    };
    holds(setup, (550_147, 2_126_447, 184, 37));
}

/// Walks of a few hundred actions each, until every budget is used up and nothing is in flight.
fn walks(setup: CoherenceSetup, seeds: u64) {
    let system = System::new(setup);
    for seed in 0..seeds {
        if let Err(failure) = walk(&system, seed, 100_000) {
            panic!("{}", failure.transcript);
        }
    }
}

/// Number of walks of each kind.
const WALKS: u64 = 1_000;

#[test]
fn walks_of_four_nodes_and_three_lines() {
    let setup = CoherenceSetup {
        homes: vec![0, 1, 2],
        budgets: vec![budget(8, 8, 5, 5, 8); 4],
        retires: 4,
        allocations: 4,
        ..CoherenceSetup::default()
    };
    walks(setup, WALKS);
}

#[test]
fn walks_of_four_nodes_and_one_line() {
    let setup = CoherenceSetup {
        homes: vec![0],
        budgets: vec![budget(12, 12, 5, 5, 12); 4],
        retires: 2,
        allocations: 2,
        ..CoherenceSetup::default()
    };
    walks(setup, WALKS);
}

#[test]
fn walks_of_five_nodes_of_which_three_die() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(4, 4, 2, 1, 4); 5],
        mortal: vec![0, 1, 2, 3],
        deaths: 3,
        retires: 1,
        allocations: 1,
        ..CoherenceSetup::default()
    };
    walks(setup, WALKS);
}

#[test]
fn walks_with_write_backs_heals_and_deaths() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        budgets: vec![budget(4, 4, 2, 1, 4); 5],
        mortal: vec![1, 2, 3, 4],
        deaths: 3,
        retires: 1,
        allocations: 1,
        cancels: 4,
        write_backs: 12,
        flushes: 12,
        overwrites: 12,
        ..CoherenceSetup::default()
    };
    walks(setup, WALKS);
}

/// A home that logs, and nodes, some of them mortal.
fn logged(budgets: Vec<Budget>, mortal: Vec<u16>) -> CoherenceSetup {
    let deaths = u8::from(!mortal.is_empty());
    CoherenceSetup {
        homes: vec![0],
        budgets,
        mortal,
        deaths,
        logs: true,
        ..CoherenceSetup::default()
    }
}

#[test]
fn logged_line_with_evictions_and_write_backs() {
    let budgets = vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 1)];
    holds(
        CoherenceSetup { flushes: 1, write_backs: 1, ..logged(budgets, vec![]) },
        (23_300, 61_159, 92, 22),
    );
}

/// Write-backs cross the recalls of readers, of writers and of a free.
#[test]
fn write_backs_that_cross_recalls_of_two_others() {
    let budgets = vec![budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 1), budget(0, 1, 0, 0, 0)];
    holds(CoherenceSetup { retires: 1, ..written_back(budgets.clone()) }, (25_147, 81_839, 72, 23));
    let setup = CoherenceSetup { flushes: 1, write_backs: 1, ..logged(budgets, vec![1]) };
    holds(setup, (16_193, 56_739, 52, 25));
}

#[test]
fn walks_of_logged_lines_with_write_backs() {
    let setup = CoherenceSetup {
        homes: vec![0, 1],
        retires: 1,
        allocations: 1,
        cancels: 4,
        write_backs: 12,
        flushes: 12,
        ..logged(vec![budget(4, 4, 2, 1, 4); 5], vec![2, 3, 4])
    };
    walks(CoherenceSetup { deaths: 2, ..setup }, WALKS);
}

#[test]
fn logged_line_with_pins() {
    let budgets = vec![budget(1, 1, 1, 1, 0), budget(1, 1, 1, 0, 0)];
    holds(logged(budgets, vec![]), (114_836, 288_361, 70, 28));
}

#[test]
fn logged_line_whose_owner_dies() {
    let budgets = vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)];
    holds(logged(budgets, vec![1, 2]), (231_199, 822_178, 300, 33));
}

#[test]
fn logged_line_whose_owner_is_removed_while_it_is_stopped() {
    let budgets = vec![budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)];
    let setup = CoherenceSetup { lingers: Lingers::Told, flushes: 1, ..logged(budgets, vec![1]) };
    holds(setup, (5_372, 15_921, 55, 18));
}

#[test]
fn logged_line_that_is_freed_and_allocated_again() {
    let budgets = vec![budget(0, 1, 1, 0, 0), budget(1, 1, 0, 0, 0)];
    let setup =
        CoherenceSetup { retires: 1, allocations: 1, cancels: 1, ..logged(budgets, vec![1]) };
    holds(setup, (27_642, 90_233, 77, 21));
}
