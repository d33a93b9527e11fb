//! Exhaustive searches of direct reads, with asserted numbers of states, and each planted defect.

use super::*;
use crate::explorer::{Coverage, Explorer, Model};
use crate::model::coherence::{Budget, CoherenceAction, CoherenceSetup, System};

/// Numbers of reads, writes, updates and evictions of a node.
const fn budget(reads: u8, writes: u8, updates: u8, evictions: u8) -> Budget {
    Budget { reads, writes, updates, holds: 0, evictions }
}

const IDLE: Budget = budget(0, 0, 0, 0);

fn setup(homes: &[u16], budgets: &[Budget], readers: &[u16]) -> CoherenceSetup {
    CoherenceSetup {
        homes: homes.to_vec(),
        budgets: budgets.to_vec(),
        direct: DirectReadSetup { readers: readers.to_vec(), ..DirectReadSetup::default() },
        ..CoherenceSetup::default()
    }
}

/// A home that writes, and a node that writes, evicts and reads.
fn two() -> CoherenceSetup {
    setup(&[0], &[budget(0, 2, 0, 0), budget(1, 1, 0, 1)], &[1])
}

/// Three nodes that write, one of which reads.
fn three() -> CoherenceSetup {
    setup(&[0], &[budget(0, 1, 0, 0), budget(1, 1, 0, 0), budget(0, 1, 0, 0)], &[2])
}

/// Three nodes, of which the home or an owner dies.
fn dying() -> CoherenceSetup {
    let budgets = [budget(0, 1, 0, 0), budget(0, 1, 0, 0), IDLE];
    CoherenceSetup { mortal: vec![0, 1], deaths: 1, overwrites: 1, ..setup(&[0], &budgets, &[2]) }
}

/// A line that is freed and whose memory is used again, with an owner that may die.
fn freed(reuse: Reuse) -> CoherenceSetup {
    let budgets = [budget(0, 1, 0, 0), budget(1, 1, 0, 0), IDLE];
    let mut setup = setup(&[0], &budgets, &[2]);
    setup.direct.reuse = reuse;
    CoherenceSetup { mortal: vec![1], deaths: 1, retires: 1, allocations: 1, ..setup }
}

/// A reader with copies of two homes' lines, which is removed and runs on while another node writes both.
fn removed_reader() -> CoherenceSetup {
    let mut setup = setup(&[0, 2], &[IDLE, budget(1, 0, 0, 0), budget(0, 2, 0, 0)], &[1]);
    setup.direct.removable = Some(1);
    setup
}

/// An owner that is removed and runs on; its line is lost, and written as a whole by another node.
fn removed_owner() -> CoherenceSetup {
    let mut setup = setup(&[0], &[IDLE, budget(0, 1, 0, 0), IDLE], &[1, 2]);
    setup.direct.removable = Some(1);
    CoherenceSetup { overwrites: 1, ..setup }
}

/// A home that is removed and runs on; another node takes over its line.
fn removed_home() -> CoherenceSetup {
    let mut setup = setup(&[0], &[budget(0, 2, 0, 0), IDLE, IDLE], &[1]);
    setup.direct.removable = Some(0);
    setup
}

/// Snapshots of two lines: by a node that may have a copy of one, of lines that their home writes; and of lines that
/// another node writes too.
fn snapshots() -> [CoherenceSetup; 2] {
    let home = setup(&[0, 0], &[IDLE, budget(1, 0, 0, 0)], &[1]);
    let another = setup(&[0, 0], &[IDLE, budget(0, 0, 2, 0), budget(1, 0, 0, 0)], &[2]);
    [(home, 2), (another, 1)].map(|(mut setup, atomic_writes)| {
        (setup.direct.snapshots, setup.direct.atomic_writes) = (true, atomic_writes);
        setup
    })
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
fn written_line_is_read_whole_and_current() {
    holds(two(), (39_562, 120_336, 0, 22));
    holds(three(), (38_509, 134_883, 8, 28));
}

#[test]
fn line_of_dying_nodes_is_read_whole_and_current() {
    holds(dying(), (39_584, 126_656, 147, 25));
}

#[test]
fn freed_line_is_not_read() {
    holds(freed(Reuse::SameSize), (55_041, 185_026, 19, 24));
    holds(freed(Reuse::SameWord), (42_158, 141_650, 41, 24));
    holds(freed(Reuse::AnotherWord), (42_158, 141_650, 41, 24));
}

#[test]
fn removed_reader_reads_nothing_stale() {
    holds(removed_reader(), (87_443, 339_728, 0, 24));
    holds(removed_owner(), (62_680, 234_273, 2, 26));
}

#[test]
fn memory_of_removed_home_is_not_read_after_it_was_taken_over() {
    holds(removed_home(), (1_065, 2_737, 5, 12));
}

#[test]
fn snapshot_is_of_one_change() {
    let [home, another] = snapshots();
    holds(home, (1_866, 4_426, 0, 22));
    holds(another, (20_088, 72_153, 18, 30));
}

/// Whether a step is one of a read.
fn reads(action: &CoherenceAction) -> bool {
    use DirectReadAction::{Begin, Continue};
    matches!(action, CoherenceAction::Direct(Begin(..) | Continue(_)))
}

/// In the states of a few random walks.
#[test]
fn read_changes_nothing_else() {
    for setup in [two(), dying(), removed_reader(), snapshots()[1].clone()] {
        let mut state = System::new(setup.clone());
        let mut random = 1_u64;
        for step in 0..5_000 {
            let actions = state.enabled();
            let others = |actions: &[CoherenceAction]| -> Vec<CoherenceAction> {
                actions.iter().copied().filter(|action| !reads(action)).collect()
            };
            for read in actions.iter().filter(|action| reads(action)) {
                let mut after = state.clone();
                after.apply(*read);
                assert_eq!(others(&after.enabled()), others(&actions));
                after.direct.reads.clone_from(&state.direct.reads);
                assert!(after == state, "{read:?} changes more than the read");
            }
            if step % 100 == 0 || actions.is_empty() {
                state = System::new(setup.clone());
                continue;
            }
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            state.apply(actions[(random >> 33) as usize % actions.len()]);
        }
    }
}

/// Asserts that the search finds the violation that the defect causes. The searches above find none without it.
#[cfg(canary)]
#[track_caller]
fn caught(mutant: DirectReadMutant, setup: CoherenceSetup, expected: &str) {
    use crate::explorer::Outcome;
    match Explorer::new().explore(&System::with_read_mutant(setup, mutant)) {
        Outcome::Fails(failure) => assert!(
            failure.violation.0.contains(expected),
            "{mutant:?} was found in another way: {}",
            failure.transcript
        ),
        Outcome::Holds(coverage) | Outcome::OutOfBounds(coverage) => {
            panic!("{mutant:?} was not found in {coverage:?}")
        }
    }
}

macro_rules! canaries {
    ($($name:ident: $mutant:ident, $setup:expr, $expected:literal;)*) => {
        $(
            #[cfg(canary)]
            #[test]
            fn $name() {
                caught(DirectReadMutant::$mutant, $setup, $expected);
            }
        )*

        #[cfg(canary)]
        #[test]
        fn canary_no_defect_of_direct_reads_is_left_out() {
            for mutant in DirectReadMutant::ALL {
                assert!([$(DirectReadMutant::$mutant),*].contains(mutant), "{mutant:?} has no test");
            }
        }
    };
}

canaries! {
    canary_direct_looks_after_copy: LooksAfterCopy, two(), "reads halves of versions";
    canary_direct_recheck_missing: RecheckMissing, two(), "reads halves of versions";
    canary_direct_busy_ignored: BusyIgnored, two(), "reads halves of versions";
    canary_direct_level_keeps_version: LevelKeepsVersion, two(), "reads halves of versions";
    canary_direct_falls_after_grant: FallsAfterGrant, three(), "reads version 0 of line 0, written were 1 to 1";
    canary_direct_rises_on_landing: RisesOnLanding, three(), "reads halves of versions";
    canary_direct_free_leaves_tag: FreeLeavesTag, freed(Reuse::SameSize), "reads line 0, which was free";
    canary_direct_tag_before_zero: TagBeforeZero, freed(Reuse::SameSize), "reads version 0 of line 0, written were 1 to 1";
    canary_direct_line_size_ignored: LineSizeIgnored, freed(Reuse::SameWord), "reads line 0, which was free";
    canary_direct_extent_ignored: ExtentIgnored, freed(Reuse::SameSize), "reads version 0 of line 0, written were 1 to 1";
    canary_direct_hit_fence_ignored: HitFenceIgnored, removed_reader(), "reads version 0 of line 1, written were 1 to 1";
    canary_direct_reader_fence_ignored: ReaderFenceIgnored, removed_reader(), "reads what was written after its removal";
    canary_direct_fence_before_copy: FenceBeforeCopy, removed_reader(), "reads what was written after its removal";
    canary_direct_fence_after_reclaim: FenceAfterReclaim, removed_reader(), "a read is old";
    canary_direct_home_fence_ignored: HomeFenceIgnored, removed_home(), "from its former home";
    canary_direct_snapshot_by_line: SnapshotByLine, snapshots()[0].clone(), "reads lines of different changes";
}
