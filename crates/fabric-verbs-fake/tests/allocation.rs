//! Posting and polling allocate nothing after warm-up. The fake library has its own allocator, which is
//! not counted here; the control thread's allocations are counted, so only the port's thread is
//! checked.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | the counting allocator | count, then pass on to the system's | on every allocation of this program |
//! | the test | read its own thread's count | between posts and polls |

use farside_base::{
    Access, Completion, CompletionStatus, LocalSlice, Operation, Receive, RegionKind, RemoteSlice,
    Source, Work, WorkFlags, WorkId,
};
use farside_bootstrap::{Endpoint, Security};
use farside_fabric::{Fabric, LinkEvent, Port, PortSpec, RegionSpec};
use farside_fabric_verbs::{Options, VerbsFabric};
use farside_fabric_verbs_fake::Fake;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::time::{Duration, Instant};

/// The fabric's lease: eight ticks.
const LEASE: Duration = Duration::from_millis(400);

struct Counting;

thread_local! {
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: passes everything on to the system's allocator; the count is a plain cell of the thread.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let _ = COUNT.try_with(|count| count.set(count.get() + 1));
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn event(port: &mut dyn Port) -> LinkEvent {
    let mut events = Vec::new();
    while events.is_empty() {
        port.link_events(&mut events);
        std::thread::yield_now();
    }
    events.remove(0)
}

#[test]
fn posting_and_polling_allocate_nothing_once_warm() {
    let mut options = Options::new(Security::open());
    options.library = Fake::path().expect("the library").to_string_lossy().into_owned();
    options.lease = LEASE;
    options.listen = Some("127.0.0.1:0".parse::<Endpoint>().expect("an endpoint"));
    let fabric = VerbsFabric::open(options).expect("the fake device");
    let spec = RegionSpec { bytes: 4096, access: Access::ALL, kind: RegionKind::Memory };
    let region = fabric.register(&spec).expect("a region");
    let mut far = fabric.open(&PortSpec { listen: Some("far".to_owned()) }).expect("a port");
    let mut near = fabric.open(&PortSpec::default()).expect("a port");
    let queue = near.create_receive_queue(64).expect("a queue");
    let far_queue = far.create_receive_queue(64).expect("a queue");
    let link = near.connect("far", b"", queue).expect("a call");
    let LinkEvent::Requested { link: there, .. } = event(&mut *far) else { panic!("no request") };
    far.accept(there, b"", far_queue).expect("to accept");
    assert!(matches!(event(&mut *near), LinkEvent::Connected { .. }));
    let remote = near.import(link, &region.token).expect("a region");
    let slice = |offset, bytes| LocalSlice { region: region.id, offset, bytes };
    let (one, two) = ([slice(0, 8)], [slice(8, 100), slice(512, 30)]);
    let to = RemoteSlice { region: remote, offset: 1024 };
    let into = slice(2048, 64);
    let write = |source| Operation::Write { source, to, immediate: None };
    let operations = [
        write(Source::Gather(&one)),
        write(Source::Gather(&two)),
        write(Source::Inline(b"sixteen bytes...")),
        Operation::Read { into: &two, from: to },
        Operation::FetchAdd { at: to, add: 1, into: one[0] },
        Operation::CompareSwap { at: to, expected: 0, new: 1, into: one[0] },
        Operation::Send { source: Source::Gather(&one), immediate: Some(7) },
    ];
    let mut out = [Completion::BLANK; 16];
    let mut round = |signalled: bool| {
        let receive = Receive { id: WorkId(9), queue: far_queue, into };
        assert_eq!(far.post_receives(&[receive]).accepted, 1);
        let flags = WorkFlags { signalled, ..WorkFlags::default() };
        let work = operations.map(|operation| Work { id: WorkId(1), link, flags, operation });
        assert_eq!(near.post(&work).accepted, operations.len());
        let expected = if signalled { operations.len() } else { 0 };
        let count = near.poll(&mut out);
        assert_eq!(count, expected);
        assert!(out[..count].iter().all(|done| done.status == CompletionStatus::Success));
        assert_eq!(far.poll(&mut out), 1);
    };
    for at in 0..2000 {
        round(at % 2 == 0);
    }
    let (before, start) = (COUNT.with(Cell::get), Instant::now());
    let mut rounds = 0;
    // Long enough for the checks that a port makes once a tick.
    while rounds < 2000 || start.elapsed() < LEASE {
        round(rounds % 2 == 0);
        rounds += 1;
    }
    assert_eq!(COUNT.with(Cell::get) - before, 0, "allocations of {rounds} warm rounds");
}
