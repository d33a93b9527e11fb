//! Each planted defect of the coherence machine, with a search that detects it. `MUTANTS.md` has the table.
#![cfg(canary)]

use farside_protocol::coherence::CoherenceMutant;
use farside_sim::explorer::{Explorer, Outcome};
use farside_sim::model::coherence::{Budget, CoherenceSetup, Lingers, System};

/// Numbers of reads, writes, updates, holds and evictions of a node.
const fn budget(reads: u8, writes: u8, updates: u8, holds: u8, evictions: u8) -> Budget {
    Budget { reads, writes, updates, holds, evictions }
}

/// One line, homed at the first node.
fn line(budgets: &[Budget]) -> CoherenceSetup {
    CoherenceSetup { homes: vec![0], budgets: budgets.to_vec(), ..CoherenceSetup::default() }
}

/// Two nodes that read and write.
fn two() -> CoherenceSetup {
    line(&[budget(1, 1, 0, 0, 0); 2])
}

/// Two nodes, one of which evicts.
fn two_evicting() -> CoherenceSetup {
    line(&[budget(0, 1, 0, 0, 0), budget(2, 1, 0, 0, 1)])
}

/// Two nodes and a line that is freed and allocated again.
fn two_freeing() -> CoherenceSetup {
    CoherenceSetup {
        retires: 1,
        allocations: 1,
        ..line(&[budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)])
    }
}

/// A home and two nodes that read and write.
fn three() -> CoherenceSetup {
    line(&[budget(0, 0, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)])
}

/// Three nodes, all evicting.
fn three_evicting() -> CoherenceSetup {
    line(&[budget(0, 1, 0, 0, 0), budget(1, 1, 0, 0, 1), budget(1, 1, 0, 0, 1)])
}

/// Three nodes, one of which dies.
fn three_dying() -> CoherenceSetup {
    CoherenceSetup {
        mortal: vec![0, 1],
        deaths: 1,
        ..line(&[budget(1, 0, 0, 0, 0), budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)])
    }
}

/// Two nodes that update, the line pinned meanwhile.
fn two_updating() -> CoherenceSetup {
    line(&[budget(0, 0, 1, 0, 0); 2])
}

/// Two nodes, one of which dies.
fn two_dying() -> CoherenceSetup {
    CoherenceSetup { mortal: vec![0, 1], deaths: 1, ..two() }
}

/// One node updates, a second one dies meanwhile, and a third one gets its number.
fn three_reusing() -> CoherenceSetup {
    CoherenceSetup {
        mortal: vec![2],
        deaths: 1,
        reuses: 1,
        ..line(&[budget(0, 0, 0, 0, 0), budget(0, 0, 1, 0, 0), budget(1, 1, 0, 0, 0)])
    }
}

/// Two nodes with a home that has made almost 2^32 grants.
fn two_at_32_bits() -> CoherenceSetup {
    CoherenceSetup { last_grant: u64::from(u32::MAX) - 1, ..two_evicting() }
}

/// Two nodes, one of which writes and has its writes written back.
fn two_writing_back() -> CoherenceSetup {
    let budgets = [budget(0, 0, 0, 0, 0), budget(0, 2, 0, 0, 0)];
    CoherenceSetup { write_backs: 1, flushes: 1, ..line(&budgets) }
}

/// Three nodes: one has its write written back, the next writes.
fn three_writing_back() -> CoherenceSetup {
    let budgets = [budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    CoherenceSetup { write_backs: 1, ..line(&budgets) }
}

/// Three nodes, one of which dies, and overwrites of the whole line.
fn three_healing() -> CoherenceSetup {
    let budgets = [budget(0, 0, 0, 0, 0), budget(0, 1, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    CoherenceSetup { mortal: vec![1], deaths: 1, overwrites: 1, ..line(&budgets) }
}

/// A home that overwrites a line, and its owner, which dies and may still write the home's memory.
fn two_healing_under_late_bytes() -> CoherenceSetup {
    let budgets = [budget(1, 0, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    let setup = CoherenceSetup { mortal: vec![1], deaths: 1, overwrites: 1, ..line(&budgets) };
    CoherenceSetup { lingers: Lingers::Told, ..setup }
}

/// A home that logs, and a second node that reads, writes, and has its writes written back.
fn logged() -> CoherenceSetup {
    let budgets = [budget(1, 1, 0, 0, 0), budget(1, 1, 0, 0, 0)];
    CoherenceSetup { logs: true, flushes: 1, ..line(&budgets) }
}

/// A home that logs, with pins of its own, and two other nodes.
fn logged_pins() -> CoherenceSetup {
    let budgets = [budget(0, 1, 1, 1, 0), budget(1, 1, 0, 0, 0)];
    CoherenceSetup { logs: true, ..line(&budgets) }
}

/// A home that logs, and two nodes that write.
fn logged_three() -> CoherenceSetup {
    CoherenceSetup { logs: true, ..three() }
}

/// A home that logs, and an owner that dies; its last bytes may land later.
fn logged_dying(lingers: Lingers) -> CoherenceSetup {
    let budgets = [budget(1, 0, 0, 0, 0), budget(0, 1, 0, 0, 0)];
    CoherenceSetup { logs: true, lingers, mortal: vec![1], deaths: 1, ..line(&budgets) }
}

/// Asserts that the search finds the violation that the defect causes, and none without the defect.
#[track_caller]
fn caught(mutant: CoherenceMutant, setup: &CoherenceSetup, expected: &str) {
    let sound = Explorer::new().explore(&System::new(setup.clone()));
    assert!(sound.holds().is_ok(), "the setup fails without the defect");
    match Explorer::new().explore(&System::with_mutant(setup.clone(), mutant)) {
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
            #[test]
            fn $name() {
                caught(CoherenceMutant::$mutant, &$setup, $expected);
            }
        )*

        #[test]
        fn canary_no_defect_is_left_out() {
            assert_eq!([$(CoherenceMutant::$mutant),*].len(), CoherenceMutant::ALL.len());
            for mutant in CoherenceMutant::ALL {
                assert!([$(CoherenceMutant::$mutant),*].contains(mutant), "{mutant:?} has no test");
            }
        }
    };
}

canaries! {
    canary_v01_refusal_restores_copy: RefusalRestoresCopy, three_dying(), "may read version 0 of line 0, the latest is 1";
    canary_v02_pin_ignored: PinIgnored, two_updating(), "a pinned line of n0 does not stay as it is";
    canary_v03_eviction_queued_behind_recall: EvictionQueuedBehindRecall, two_evicting(), "waits for ever";
    canary_v04_level_falls_after_place: LevelFallsAfterPlace, two(), "may be written while its bytes are on their way";
    canary_v04_home_level_falls_late: HomeLevelFallsLate, two(), "bytes leave while they may still be written here";
    canary_v06_performed_twice: PerformedTwice, two(), "an operation is ready that is not the oldest on its line";
    canary_v07_early_write: EarlyWrite, two(), "an operation is ready before its line is";
    canary_v07_data_is_enough: DataIsEnough, three(), "a grant that was not requested";
    canary_v07_grant_is_enough: GrantIsEnough, three(), "a read is old";
    canary_v08_queue_reorders: QueueReorders, two_evicting(), "line 0 has a writer and 2 in all";
    canary_v10_home_forgets_place: HomeForgetsPlace, three(), "bytes change while they are on their way";
    canary_v10_frame_freed_early: FrameFreedEarly, two(), "a frame is freed while bytes are on their way from or to it";
    canary_v13_free_recalls_no_copy: FreeRecallsNobody, two_freeing(), "a line is freed while a copy exists";
    canary_v14_eviction_writes_back: EvictionWritesBack, two_evicting(), "waits for ever";
    canary_former_requester_kept: FormerRequesterKept, three_reusing(), "frame";
    canary_v15_stale_eviction_believed: StaleEvictionBelieved, three_evicting(), "may read version 0 of line 0, the latest is 1";
    canary_v17_grants_wrap: GrantsWrap, two_at_32_bits(), "waits for ever";
    canary_v18_frame_leaks: FrameLeaks, two_freeing(), "is busy with nothing";
    canary_held_believed: HeldBelieved, two(), "an upgrade of a copy that is gone";
    canary_early_recall_forgotten: EarlyRecallForgotten, two(), "waits for ever";
    canary_acks_not_awaited: AcksNotAwaited, three(), "may read version 0 of line 0, the latest is 1";
    canary_lost_served: LostServed, two_dying(), "may read version 0 of line 0, the latest is 1";
    canary_dead_supplier_awaited: DeadSupplierAwaited, three_dying(), "the directory of line 0 is wrong about n2";
    canary_stray_forgotten: StrayForgotten, three_dying(), "a frame is freed while bytes are on their way from or to it";
    canary_early_leaver_kept: EarlyLeaverKept, three_evicting(), "the directory of line 0 is wrong about n2";
    canary_write_back_keeps_owner: WriteBackKeepsOwner, two_writing_back(), "a line may be written while its bytes are on their way";
    canary_written_early: WrittenEarly, logged(), "a line passes for written back that is not durable";
    canary_write_back_not_awaited: WriteBackNotAwaited, three_writing_back(), "may read version 0 of line 0, the latest is 1";
    canary_crossed_recall_ignored: CrossedRecallIgnored, three_writing_back(), "n0 is busy with nothing";
    canary_crossed_copy_kept: CrossedCopyKept, three_writing_back(), "n0 is busy with nothing";
    canary_heal_reads_stale: HealReadsStale, three_healing(), "may be read before a line is overwritten";
    canary_heal_by_part: HealByPart, three_healing(), "a lost line is filled by a part of it";
    canary_heal_under_late_bytes: HealUnderLateBytes, two_healing_under_late_bytes(), "bytes land where they may be read";
    canary_granted_before_logged: GrantedBeforeLogged, logged(), "that is not durable";
    canary_logged_forwarded: LoggedForwarded, logged_three(), "an owner acknowledges what it was not asked";
    canary_unpin_not_logged: UnpinNotLogged, logged_pins(), "shares a version of line 0 that is not durable";
    canary_own_write_not_logged: OwnWriteNotLogged, logged_pins(), "shares a version of line 0 that is not durable";
    canary_not_restored: NotRestored, logged_dying(Lingers::Never), "a read is old";
    canary_restored_under_late_bytes: RestoredUnderLateBytes, logged_dying(Lingers::Told), "a line is restored while bytes may land in it";
}
