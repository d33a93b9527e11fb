//! The protocols of 001 Table 1: missing requests are refused by name, and permitted reordering does occur.

use super::scene::LinkedNodes;
use super::{ADAPTIVE_ROUTING, EFA, INFINIBAND, Marks, ONE_RMA, SimOptions};
use farside_base::{
    Capabilities, Completion, CompletionStatus, Operation, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{LinkEvent, Stop};

fn options(seed: u64, capabilities: Capabilities) -> SimOptions {
    let write_by_read = capabilities == ONE_RMA;
    SimOptions { write_by_read, ..SimOptions::draw(seed, capabilities) }
}

/// Returns the reason of refusal for each kind of request, in the order of Table 1; `None` if it is accepted.
fn refusals(capabilities: Capabilities) -> Vec<Option<&'static str>> {
    let mut scene = LinkedNodes::with(1, options(1, capabilities), 2);
    let (link, _) = scene.sides[0].links[1].unwrap();
    let slices = [scene.slice(0, 0, 8)];
    let source = Source::Gather(&slices);
    let (at, into) = (scene.at(0, 1, 8), scene.slice(0, 8, 8));
    let operations = [
        Operation::Send { source, immediate: None },
        Operation::Send { source, immediate: Some(1) },
        Operation::Write { source, to: at, immediate: None },
        Operation::Write { source, to: at, immediate: Some(1) },
        Operation::Read { into: &slices, from: at },
        Operation::FetchAdd { at, add: 1, into },
    ];
    let refused = operations.map(|operation| {
        let flags = WorkFlags::default();
        let posted = scene.sides[0].port.post(&[Work { id: WorkId(1), link, flags, operation }]);
        posted.stop.map(|stop| match stop {
            Stop::Invalid(name) => name,
            other => panic!("{other:?}"),
        })
    });
    refused.to_vec()
}

#[test]
fn missing_capabilities_are_refused_by_name() {
    let (write, send) = (Some("lacks write"), Some("lacks send"));
    let (immediate, atomics) = (Some("lacks immediate"), Some("lacks atomics"));
    assert_eq!(refusals(INFINIBAND), [None; 6]);
    assert_eq!(refusals(ADAPTIVE_ROUTING), [None; 6]);
    assert_eq!(refusals(EFA), [None, None, write, write, None, atomics]);
    assert_eq!(refusals(ONE_RMA), [send, send, None, immediate, None, atomics]);
}

#[test]
fn messages_longer_than_a_packet_are_refused() {
    for (capabilities, most) in [(EFA, 8_192), (ONE_RMA, 4_096)] {
        let mut scene = LinkedNodes::with(1, options(1, capabilities), 2);
        let (link, _) = scene.sides[0].links[1].unwrap();
        for (bytes, stop) in [(most, None), (most + 1, Some(Stop::Invalid("transfer too long")))] {
            let into = [scene.slice(0, 0, bytes)];
            let operation = Operation::Read { into: &into, from: scene.at(0, 1, 0) };
            let flags = WorkFlags::default();
            let work = Work { id: WorkId(1), link, flags, operation };
            assert_eq!(scene.sides[0].port.post(&[work]).stop, stop);
        }
    }
}

/// Posts several outstanding requests of each kind that the protocol has; all succeed.
fn mixed(seed: u64, capabilities: Capabilities) -> (Marks, u64) {
    let mut scene = LinkedNodes::with(seed, options(seed, capabilities), 2);
    let mut posted = 0;
    for round in 0..8 {
        if capabilities.write {
            scene.write(0, 1, round, 1_000 * round, 900);
            posted += 1;
        }
        if capabilities.send {
            scene.receive(1, round);
            scene.send(0, 1, round);
            posted += 1;
        }
        let into = [scene.slice(0, 30_000, 900)];
        scene.post(0, 1, round, Operation::Read { into: &into, from: scene.at(0, 1, 100) });
        posted += 1;
    }
    scene.net.run_until_idle();
    let done = scene.poll(0);
    assert_eq!(done.len(), posted);
    let failed = |done: &&Completion| done.status != CompletionStatus::Success;
    assert_eq!(done.iter().find(failed), None);
    (scene.net.marks(), scene.net.fingerprint())
}

#[test]
fn reordering_occurs() {
    for capabilities in [ADAPTIVE_ROUTING, EFA, ONE_RMA] {
        let runs: Vec<Marks> = (0..20).map(|seed| mixed(seed, capabilities).0).collect();
        let sum = |of: fn(&Marks) -> u64| runs.iter().map(of).sum::<u64>();
        assert!(sum(|marks| marks.messages_reordered) > 0, "{capabilities:?}");
        assert!(sum(|marks| marks.pieces_reordered) > 0, "{capabilities:?}");
        let read_back = if capabilities == ONE_RMA { 20 * 8 } else { 0 };
        assert_eq!(sum(|marks| marks.writes_read_back), read_back);
        assert_eq!(mixed(3, capabilities), mixed(3, capabilities));
    }
    let ordered = (0..20).map(|seed| mixed(seed, INFINIBAND).0.messages_reordered);
    assert_eq!(ordered.sum::<u64>(), 0);
}

#[test]
fn write_by_read_samples_when_target_requests() {
    let mut late = 0;
    for seed in 0..40 {
        let mut scene = LinkedNodes::with(seed, options(seed, ONE_RMA), 2);
        scene.fill(0, 0, 64, 1);
        scene.write(0, 1, 1, 0, 64);
        // The target has the request; none of its bytes have been read.
        while scene.net.transcript().last().is_none_or(|line| line.event != "start") {
            assert!(scene.net.step());
        }
        scene.fill(0, 0, 64, 2);
        while scene.poll(0).is_empty() {
            assert_eq!(scene.bytes(1, 64, 1), [0]);
            assert!(scene.net.step());
        }
        assert_eq!(scene.bytes(1, 0, 64), [2; 64], "complete means placed");
        late += 1;
    }
    assert_eq!(late, 40);
}

#[test]
fn death_of_writer_by_read_leaves_whole_lines_and_is_reported() {
    let (mut none, mut all) = (0, 0);
    for seed in 0..200 {
        let mut scene = LinkedNodes::with(seed, options(seed, ONE_RMA), 2);
        scene.fill(0, 0, 256, 1);
        scene.write(0, 1, 1, 0, 256);
        for _ in 0..seed % 12 {
            scene.net.step();
        }
        scene.net.kill("a");
        scene.net.run_until_idle();
        let lost = scene.events(1);
        assert!(matches!(lost[..], [LinkEvent::Lost { .. }]), "seed {seed}: {lost:?}");
        let bytes = scene.bytes(1, 0, 256);
        assert!(bytes.chunks(64).all(|line| line.iter().all(|byte| *byte == line[0])));
        none += u64::from(bytes.iter().all(|byte| *byte == 0));
        all += u64::from(bytes.iter().all(|byte| *byte == 1));
    }
    assert!(none > 0 && all > 0, "{none} {all}");
}
