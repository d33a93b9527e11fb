//! The decision table, row by row.

use super::*;
use crate::durable::remote::{HintOutcome, RemoteHint};
use farside_fabric::Fabric;

/// An adapter without FLUSH; `capabilities` of 002 §3.
fn adapter() -> Capabilities {
    let has = farside_fabric::MemFabric::new().capabilities();
    Capabilities { flush: FlushScope::None, completion_means_placed: false, ..has }
}

fn flushing() -> Capabilities {
    Capabilities { flush: FlushScope::Persistent, ..adapter() }
}

fn facts(ddio: Known, caches_persist: Known, has_program: bool) -> TargetFacts {
    let adapter_writes = Known::Yes;
    TargetFacts { ddio, adapter_writes, caches_persist, has_program, ..TargetFacts::optane() }
}

fn choose(has: &Capabilities, facts: &TargetFacts, write: &RemoteWrite) -> RemotePlan {
    RemotePlan::choose(has, facts, RemoteHints::ALL, write).unwrap()
}

#[test]
fn ways_follow_the_table() {
    use Known::{No, Unknown, Yes};
    let small = RemoteWrite::record(0, 64, 256);
    let large = RemoteWrite::record(0, 64 << 10, 64 << 10);
    // DDIO, caches persist, program, small, large.
    for (ddio, caches, program, few, many) in [
        (No, No, false, Some(RemoteWay::Read), Some(RemoteWay::Read)),
        (No, Unknown, true, Some(RemoteWay::Read), Some(RemoteWay::Read)),
        (Yes, Yes, false, Some(RemoteWay::Read), Some(RemoteWay::Read)),
        (Yes, Yes, true, Some(RemoteWay::Read), Some(RemoteWay::Program)),
        (Unknown, Yes, true, Some(RemoteWay::Read), Some(RemoteWay::Program)),
        (Yes, No, true, Some(RemoteWay::Program), Some(RemoteWay::Program)),
        (Yes, Unknown, true, Some(RemoteWay::Program), Some(RemoteWay::Program)),
        (Unknown, Unknown, true, Some(RemoteWay::Program), Some(RemoteWay::Program)),
        (Unknown, No, true, Some(RemoteWay::Program), Some(RemoteWay::Program)),
        (Yes, Unknown, false, None, None),
        (Unknown, Unknown, false, None, None),
        (Unknown, No, false, None, None),
    ] {
        let facts = facts(ddio, caches, program);
        for (write, expected) in [(&small, few), (&large, many)] {
            let hints = RemoteHints::ALL;
            let plan = RemotePlan::choose(&adapter(), &facts, hints, write);
            let way = plan.as_ref().ok().map(RemotePlan::way);
            assert_eq!(way, expected, "{facts:?} {write:?}");
            if let Err(error) = plan {
                assert_eq!(error.code, ErrorCode::FabricLacks);
                assert!(error.detail.contains("DDIO"), "{error}");
            }
            let way = choose(&flushing(), &facts, write).way();
            assert_eq!(way, RemoteWay::Flush, "{facts:?}");
        }
    }
}

/// A processor that stores what a WRITE brings has it in its cache, with DDIO off too.
#[test]
fn read_confirms_nothing_where_a_processor_may_write() {
    let small = RemoteWrite::record(0, 64, 256);
    for adapter_writes in [Known::No, Known::Unknown] {
        let facts = TargetFacts { adapter_writes, ..facts(Known::No, Known::No, false) };
        let error = RemotePlan::choose(&adapter(), &facts, RemoteHints::ALL, &small).unwrap_err();
        assert!(error.detail.contains("no adapter is known to write"), "{error}");
    }
}

#[test]
fn lengths_at_the_limit_are_planned_or_refused() {
    let facts = facts(Known::No, Known::No, true);
    for write in [RemoteWrite::log(0, u64::MAX), RemoteWrite::record(0, u64::MAX - 1, u64::MAX - 1)]
    {
        assert_eq!(choose(&adapter(), &facts, &write).padded_bytes(), write.bytes);
    }
}

#[test]
fn unknown_ddio_never_counts_as_persistent_by_read() {
    let facts = facts(Known::Unknown, Known::Unknown, false);
    for hint in RemoteHint::ALL {
        for hints in [RemoteHints::ALL.without(hint), RemoteHints::NONE.with(hint)] {
            let write = RemoteWrite::log(0, 100);
            let error = RemotePlan::choose(&adapter(), &facts, hints, &write).unwrap_err();
            assert!(error.detail.contains("farside doctor at the target"), "{error}");
        }
    }
}

#[test]
fn unordered_fabrics_and_torn_words_are_refused() {
    let facts = facts(Known::No, Known::No, false);
    let write = RemoteWrite::log(0, 100);
    let unordered = Capabilities { message_order: false, ..adapter() };
    assert!(RemotePlan::choose(&unordered, &facts, RemoteHints::ALL, &write).is_err());
    let torn = Capabilities { words: WordScope::None, atomic_write: false, ..adapter() };
    assert_eq!(choose(&torn, &facts, &write).way(), RemoteWay::Read);
    let commit = RemoteWrite::commit(0, 100, 256);
    assert!(RemotePlan::choose(&torn, &facts, RemoteHints::ALL, &commit).is_err());
    let long = RemoteWrite::record(0, 257, 256);
    let error = RemotePlan::choose(&flushing(), &facts, RemoteHints::ALL, &long).unwrap_err();
    assert_eq!(error.code, ErrorCode::BadConfiguration);
}

#[test]
fn padding_follows_size_and_primitive() {
    let (one, two) = (facts(Known::No, Known::No, false), facts(Known::Yes, Known::No, true));
    // Bytes, hints off, padded, aligned.
    for (bytes, off, padded, align) in [
        (16, None, 64, 64),
        (65, None, 128, 64),
        (256, None, 256, 256),
        (300, None, 512, 256),
        (300, Some(RemoteHint::H5), 300, 1),
    ] {
        let hints = off.map_or(RemoteHints::ALL, |hint| RemoteHints::ALL.without(hint));
        for facts in [&one, &two] {
            let write = RemoteWrite::record(512, bytes, 1024);
            let plan = RemotePlan::choose(&adapter(), facts, hints, &write).unwrap();
            assert_eq!((plan.padded_bytes(), plan.align_bytes()), (padded, align), "{plan:?}");
        }
    }
    // Without H6 and H7, H5 is for small writes too (002 §4.2).
    for (facts, hint) in [(&one, RemoteHint::H6), (&two, RemoteHint::H7)] {
        let (hints, write) = (RemoteHints::ALL.without(hint), RemoteWrite::record(0, 16, 256));
        let plan = RemotePlan::choose(&adapter(), facts, hints, &write).unwrap();
        assert_eq!((plan.padded_bytes(), plan.align_bytes()), (256, 256), "without {hint}");
        let plan = RemotePlan::choose(&adapter(), facts, hints.without(RemoteHint::H5), &write);
        assert_eq!(plan.unwrap().padded_bytes(), 16);
    }
    // Bytes of others are not overwritten.
    for write in [RemoteWrite::record(0, 16, 40), RemoteWrite::record(8, 16, 256)] {
        let plan = choose(&adapter(), &one, &write);
        assert_eq!(plan.padded_bytes(), 16);
        assert!(matches!(plan.outcome(RemoteHint::H6), HintOutcome::Impossible(_)), "{plan:?}");
    }
}

/// 002 Table 3: a hint that is for the other primitive never decides anything.
#[test]
fn hints_apply_to_their_primitives_alone() {
    let (one, two) = (facts(Known::No, Known::No, false), facts(Known::Yes, Known::No, true));
    for (facts, other) in [(&one, RemotePrimitive::TwoSided), (&two, RemotePrimitive::OneSided)] {
        for bytes in [16, 2_048, 128 << 10] {
            let write = RemoteWrite::record(0, bytes, 256 << 10);
            let plan = choose(&adapter(), facts, &write);
            for hint in RemoteHint::ALL.into_iter().filter(|hint| hint.primitive() == other) {
                let outcome = plan.outcome(hint);
                let is_foreign = outcome == HintOutcome::OtherPrimitive;
                // H3 has moved the large write to the other primitive.
                assert!(is_foreign || hint == RemoteHint::H3, "{hint}: {outcome}");
            }
        }
    }
}

/// Each switch changes the plan of one write, and the hint is counted only while it is switched on.
#[test]
fn each_hint_is_a_switch_with_a_counter() {
    let near = TargetFacts {
        memory_socket: Some(1),
        port_sockets: vec![Some(0), Some(1)],
        ..facts(Known::No, Known::No, false)
    };
    let program = facts(Known::Yes, Known::No, true);
    let persistent_caches = facts(Known::Yes, Known::Yes, true);
    let small = RemoteWrite::record(0, 16, 256);
    let large = RemoteWrite::record(0, 2_000, 2_048);
    let cases = [
        (RemoteHint::H1, near.clone(), small),
        (RemoteHint::H2, program.clone(), small),
        (RemoteHint::H3, persistent_caches, RemoteWrite::record(0, 64 << 10, 64 << 10)),
        (RemoteHint::H4, program.clone(), large),
        (RemoteHint::H5, near.clone(), large),
        (RemoteHint::H6, near.clone(), small),
        (RemoteHint::H7, program, small),
        (RemoteHint::H8, near.clone(), RemoteWrite::lock(0)),
        (RemoteHint::H9, near, small),
    ];
    for (hint, facts, write) in cases {
        let mut on = RemotePlanner::new(adapter(), facts.clone());
        let hints = RemoteHints::ALL.without(hint);
        let mut off = RemotePlanner::new(adapter(), facts).hints(hints);
        let (mut with, without) = (on.plan(&write).unwrap(), off.plan(&write).unwrap());
        assert_eq!((on.applied(hint), off.applied(hint)), (1, 0), "{hint}: {}", with.explain());
        assert_eq!((on.plans(), off.plans()), (1, 1));
        assert_eq!(without.outcome(hint), HintOutcome::Off);
        with.outcomes = without.outcomes;
        assert_ne!(with, without, "{hint} decides nothing");
    }
}

#[test]
fn explanations_name_way_reason_and_each_hint() {
    let facts = facts(Known::No, Known::No, false);
    let hints = RemoteHints::ALL.without(RemoteHint::H9);
    let write = RemoteWrite::record(0, 40, 64);
    let text = RemotePlan::choose(&adapter(), &facts, hints, &write).unwrap().explain();
    let expected = "\
record of 40 B to persistent memory: WRITE and READ; a doorbell and a round trip each
  because DDIO is off: what a READ has passed is in the memory controller
  written as 64 B, aligned to 64 B
  H1 (use a port on the socket of the memory): not possible: the socket of the memory is unknown
  H2 (limit the threads that write to one DIMM): not for this primitive (002 Table 3)
  H3 (WRITE without DDIO; with DDIO, large writes by messages): applied: DDIO is off: by WRITE
  H4 (large writes by non-temporal stores): not for this primitive (002 Table 3)
  H5 (write whole lines of the medium): not needed: the write is small: see H6 and H7
  H6 (pad small WRITEs to 64 B): applied: padded to 64 B
  H7 (small messages by non-temporal stores of whole cache lines): not for this primitive (002 Table 3)
  H8 (keep locks and atomics in DRAM): not needed: the write is no lock
  H9 (post WRITE and confirmation with one doorbell): switched off";
    assert_eq!(text, expected);
}

#[test]
fn dimms_follow_the_interleaving() {
    let facts = TargetFacts::optane();
    let dimms = [0, 4_095, 4_096, 20_480, 24_576].map(|offset| facts.dimm_of(offset));
    assert_eq!(dimms, [0, 0, 1, 5, 0].map(Some));
    assert_eq!(TargetFacts::default().dimm_of(0), None);
}
