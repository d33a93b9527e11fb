//! The exact counts, records and faults of the decorators, on a short exchange over the in-process
//! fabric.

use farside_base::{
    Access, Completion, CompletionStatus, LinkId, LocalSlice, Operation, Receive, ReceiveQueueId,
    RegionKind, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{
    CountFabric, Fabric, FabricCounts, FaultFabric, FaultPlan, LinkEvent, Loss, MemFabric, Port,
    PortSpec, Region, RegionSpec, Stop, TraceFabric,
};
use std::sync::Arc;
use std::time::Duration;

/// Two ports of one fabric with a link between them.
struct PortPair {
    region: Region,
    near: Box<dyn Port>,
    far: Box<dyn Port>,
    here: LinkId,
    there: LinkId,
    target: RemoteRegionId,
    far_queue: ReceiveQueueId,
}

fn event(port: &mut dyn Port) -> LinkEvent {
    let mut events = Vec::new();
    for _ in 0..1000 {
        port.link_events(&mut events);
        if let Some(event) = events.pop() {
            return event;
        }
    }
    panic!("no link event came");
}

fn pair(fabric: &dyn Fabric) -> PortPair {
    let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
    let region = fabric.register(&spec).unwrap();
    let listen = Some("far".to_owned());
    let mut far = fabric.open(&PortSpec { listen }).unwrap();
    let mut near = fabric.open(&PortSpec::default()).unwrap();
    let far_queue = far.create_receive_queue(8).unwrap();
    let near_queue = near.create_receive_queue(8).unwrap();
    let here = near.connect("far", b"hello", near_queue).unwrap();
    let LinkEvent::Requested { link: there, .. } = event(&mut *far) else {
        panic!("a request comes first");
    };
    far.accept(there, b"hi", far_queue).unwrap();
    assert!(matches!(event(&mut *near), LinkEvent::Connected { .. }));
    let target = near.import(here, &region.token).unwrap();
    PortPair { region, near, far, here, there, target, far_queue }
}

impl PortPair {
    fn slice(&self, bytes: u32) -> LocalSlice {
        LocalSlice { region: self.region.id, offset: 0, bytes }
    }

    fn at(&self, offset: u64) -> RemoteSlice {
        RemoteSlice { region: self.target, offset }
    }

    fn work<'a>(&self, id: u64, operation: Operation<'a>) -> Work<'a> {
        let flags = WorkFlags { signalled: true, fence: false, awaited: false };
        Work { id: WorkId(id), link: self.here, flags, operation }
    }
}

/// Everything that completes within some polls.
fn drain(port: &mut dyn Port) -> Vec<Completion> {
    let mut all = Vec::new();
    for _ in 0..100 {
        let mut out = [Completion::BLANK; 4];
        let count = port.poll(&mut out);
        all.extend(&out[..count]);
    }
    all
}

/// Two WRITEs, a FETCH_ADD, a refused list, a SEND with immediate, and an error.
fn exchange(pair: &mut PortPair) {
    let slices = [pair.slice(64)];
    let place = pair.at(128);
    let write = Operation::Write { source: Source::Gather(&slices), to: place, immediate: None };
    let inline =
        Operation::Write { source: Source::Inline(b"0123456789"), to: place, immediate: None };
    let add = Operation::FetchAdd { at: place, add: 1, into: pair.slice(8) };
    let send = Operation::Send { source: Source::Inline(b"message"), immediate: Some(9) };
    let beyond = Operation::Read { into: &slices, from: pair.at(4096) };
    let silent = Work {
        flags: WorkFlags { signalled: false, fence: true, awaited: false },
        ..pair.work(0x2a, inline)
    };
    let list = [pair.work(1, write), silent, pair.work(3, add)];
    assert_eq!(pair.near.post(&list).accepted, 3);
    let refused = pair.near.post(&[pair.work(4, send)]);
    assert_eq!(refused.stop, Some(Stop::ReceiverNotReady));
    let receive = Receive { id: WorkId(77), queue: pair.far_queue, into: pair.slice(32) };
    assert_eq!(pair.far.post_receives(&[receive]).accepted, 1);
    let list = [pair.work(4, send), pair.work(5, beyond)];
    assert_eq!(pair.near.post(&list).accepted, 2);
    assert_eq!(drain(&mut *pair.near).len(), 4);
    assert_eq!(drain(&mut *pair.far).len(), 1);
}

#[test]
fn counts_are_exact() {
    let fabric = CountFabric::new(Arc::new(MemFabric::new()));
    let mut pair = pair(&fabric);
    let before = fabric.counts();
    exchange(&mut pair);
    let counts = fabric.counts() - before;
    let expected = FabricCounts {
        writes: 2,
        fetch_adds: 1,
        sends: 1,
        reads: 1,
        immediates: 1,
        signalled: 4,
        bytes: 64 + 10 + 8 + 7 + 64,
        doorbells: 2,
        refusals: 1,
        receives_posted: 1,
        receive_doorbells: 1,
        completions: 4,
        receives: 1,
        bytes_received: 7,
        errors: 1,
        empty_polls: counts.empty_polls,
        ..FabricCounts::default()
    };
    assert_eq!(counts, expected);
    assert_eq!(counts.requests(), 5);
    let text = counts.to_string();
    assert_eq!(text.lines().next(), Some("write                            2"), "{text}");
    assert!(!text.contains("swap"), "zeroes are left out: {text}");
    assert_eq!(before - fabric.counts(), FabricCounts::default(), "never below zero");
}

#[test]
fn sleeps_and_wake_ups_are_counted() {
    let fabric = CountFabric::new(Arc::new(MemFabric::new()));
    let mut pair = pair(&fabric);
    let before = fabric.counts();
    let waiter = pair.near.waiter();
    assert!(!pair.near.arm());
    waiter.wake();
    assert!(waiter.wait(Some(Duration::from_secs(60))));
    assert!(!waiter.wait(Some(Duration::ZERO)));
    pair.near.disarm();
    pair.far.close(pair.there);
    assert!(matches!(event(&mut *pair.near), LinkEvent::Lost { .. }));
    let counts = fabric.counts() - before;
    let seen = [counts.arms, counts.sleeps, counts.wake_ups, counts.links_lost];
    assert_eq!(seen, [1, 2, 1, 1]);
}

#[test]
fn record_has_one_line_an_event() {
    let fabric = TraceFabric::new(Arc::new(MemFabric::new()), 64);
    let mut pair = pair(&fabric);
    fabric.clear();
    exchange(&mut pair);
    pair.near.close(pair.here);
    let _ = event(&mut *pair.far);
    let lines: Vec<_> = fabric.events().iter().map(|event| event.to_string()).collect();
    let expected = [
        "       8 p2   post  write                                l0     w1                    64 s---",
        "       9 p2   post  write                                l0     w2a                   10 -fi-",
        "      10 p2   post  fetch_add                            l0     w3                     8 s---",
        "      11 p2   stop  receiver not ready                   l0     w4                     0 ----",
        "      12 p1   recv  receive                                     w4d                   32 ----",
        "      13 p2   post  send                                 l0     w4                     7 s-i#",
        "      14 p2   post  read                                 l0     w5                    64 s---",
        "      15 p2   done  write               Success          l0     w1                    64 ----",
        "      16 p2   done  atomic              Success          l0     w3                     8 ----",
        "      17 p2   done  send                Success          l0     w4                     7 ----",
        "      18 p2   done  read                RemoteAccess     l0     w5                     0 ----",
        "      19 p1   done  receive             Success          l0     w4d                    7 ---#",
        "      20 p2   call  close                                l0                            0 ----",
        "      21 p1   link  lost                                 l0                            0 ----",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn record_forgets_the_oldest() {
    let fabric = TraceFabric::new(Arc::new(MemFabric::new()), 3);
    let mut pair = pair(&fabric);
    exchange(&mut pair);
    let events = fabric.events();
    assert_eq!(events.len(), 3);
    assert!(events.windows(2).all(|two| two[0].sequence + 1 == two[1].sequence));
    assert_eq!(events[2].what, "receive");
}

/// Returns which posts a plan refuses, and after how many polls each completion arrives.
fn run_with(plan: FaultPlan) -> (Vec<bool>, Vec<usize>) {
    let fabric = FaultFabric::new(Arc::new(MemFabric::new()), plan);
    let mut pair = pair(&fabric);
    let slices = [pair.slice(8)];
    let write =
        Operation::Write { source: Source::Gather(&slices), to: pair.at(8), immediate: None };
    let mut refused = Vec::new();
    let mut polls = Vec::new();
    for id in 0..50 {
        while pair.near.post(&[pair.work(id, write)]).stop == Some(Stop::QueueFull) {
            refused.push(true);
        }
        refused.push(false);
        let mut out = [Completion::BLANK; 1];
        let taken = (1..1000).find(|_| pair.near.poll(&mut out) == 1);
        polls.push(taken.expect("a completion"));
        assert_eq!(out[0].id, WorkId(id));
    }
    (refused, polls)
}

#[test]
fn plan_decides_and_nothing_else() {
    let plan = FaultPlan {
        seed: 7,
        queue_full_percent: 30,
        completion_delay_polls_max: 5,
        event_delay_polls_max: 3,
        lose_link_at: None,
    };
    let (refused, polls) = run_with(plan);
    assert_eq!(run_with(plan), (refused.clone(), polls.clone()), "the same plan, the same faults");
    assert_ne!(run_with(FaultPlan { seed: 8, ..plan }), (refused.clone(), polls.clone()));
    let refusals = refused.iter().filter(|refused| **refused).count();
    assert!((5..60).contains(&refusals), "about 30 of 100 refused: {refusals}");
    assert_eq!((polls.iter().min(), polls.iter().max()), (Some(&1), Some(&6)));
    let (refused, polls) = run_with(FaultPlan::default());
    assert!(!refused.contains(&true) && polls.iter().all(|polls| *polls == 1), "no plan, no fault");
}

#[test]
fn planned_loss_looks_like_a_lost_peer() {
    let plan = FaultPlan { lose_link_at: Some(3), ..FaultPlan::default() };
    let fabric = FaultFabric::new(Arc::new(MemFabric::new()), plan);
    let mut pair = pair(&fabric);
    let slices = [pair.slice(8)];
    let write =
        Operation::Write { source: Source::Gather(&slices), to: pair.at(8), immediate: None };
    let list = [1, 2, 3, 4].map(|id| pair.work(id, write));
    let posted = pair.near.post(&list);
    assert_eq!((posted.accepted, posted.stop), (4, None));
    let ends: Vec<_> = drain(&mut *pair.near).iter().map(|done| (done.id.0, done.status)).collect();
    let expected = [
        (1, CompletionStatus::Success),
        (2, CompletionStatus::Success),
        (3, CompletionStatus::PeerLost),
        (4, CompletionStatus::Flushed),
    ];
    assert_eq!(ends, expected);
    assert_eq!(event(&mut *pair.near), LinkEvent::Lost { link: pair.here, loss: Loss::Ended });
    assert_eq!(event(&mut *pair.far), LinkEvent::Lost { link: pair.there, loss: Loss::Ended });
}
