//! A member that was removed while it is alive, and does not know it yet: its threads continue from where
//! they were stopped, with all that it had cached and owned.

#[path = "removal/liar.rs"]
mod liar;
#[path = "removal/processes.rs"]
mod processes;

mod fabrics;

use fabrics::{Make, named};
use farside::{
    AllocationHint, AllocationSpec, Config, Error, ErrorCode, GlobalAddress, Joining, Node, NodeId,
    Session,
};
use farside_testkit::until;
use liar::Liar;
use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

farside_testkit::on_each_fabric! { mem shm => (
    removed_member_returns_nothing_and_acknowledges_nothing
    removed_member_judges_no_member
)}

const PATIENCE: Duration = Duration::from_secs(30);

/// Runs a future on a node without its own thread.
fn drive<T>(node: &Node, future: impl Future<Output = T>) -> T {
    let mut future = pin!(future);
    let deadline = Instant::now() + PATIENCE;
    loop {
        node.progress();
        let mut context = Context::from_waker(Waker::noop());
        if let Poll::Ready(value) = future.as_mut().poll(&mut context) {
            return value;
        }
        assert!(Instant::now() < deadline, "{}", node.describe());
    }
}

fn at(node: NodeId) -> AllocationSpec {
    AllocationSpec::new(AllocationHint::On(node))
}

/// The lines of the removed member.
struct Had {
    /// A line of the survivor, cached.
    shared: GlobalAddress,
    /// A line of the survivor that is read directly.
    direct: GlobalAddress,
    /// A line of the survivor, owned.
    owned: GlobalAddress,
    /// A line of its own memory.
    own: GlobalAddress,
    /// Lines of its own memory.
    long: GlobalAddress,
    /// A line of its own memory that is locked.
    locked: GlobalAddress,
}

/// An operation of the removed member.
type Operation = fn(&mut Session, &Had) -> Result<(), Error>;

/// Each is the first operation of the member after its removal.
const OPERATIONS: [(&str, Operation); 19] = [
    ("read direct", |session, had| session.read_u64(had.direct).map(drop)),
    ("read cached", |session, had| session.read_u64(had.shared).map(drop)),
    ("read owned", |session, had| session.read_u64(had.owned).map(drop)),
    ("read own", |session, had| session.read_u64(had.own).map(drop)),
    ("read long", |session, had| session.read(had.long, &mut [0; 4096])),
    ("write owned", |session, had| session.write_u64(had.owned, 9).and_then(|()| session.fence())),
    ("write own", |session, had| session.write_u64(had.own, 9).and_then(|()| session.fence())),
    ("write long", |session, had| {
        session.write(had.long, &[9; 4096]).and_then(|()| session.fence())
    }),
    ("fence", |session, _| session.fence()),
    ("fetch_add owned", |session, had| session.fetch_add(had.owned, 1).map(drop)),
    ("compare_swap own", |session, had| session.compare_swap(had.own, 1, 2).map(drop)),
    ("atomic", |session, had| session.atomic(had.own, 16, |bytes| bytes[0] += 1)),
    ("atomic long", |session, had| session.atomic(had.long, 512, |bytes| bytes[0] += 1)),
    ("read_atomic", |session, had| session.read_atomic(had.long, &mut [0; 4096])),
    ("write_atomic", |session, had| session.write_atomic(had.long, &[9; 4096])),
    ("lock", |session, had| session.lock_write(had.own, 64).map(|guard| _ = guard.keep())),
    ("unlock", |session, had| session.unlock(had.locked, 64)),
    ("alloc", |session, had| session.alloc_on(64, had.own.home()).map(drop)),
    ("free", |session, had| session.free(had.own)),
];

/// Removes a member that only this test drives; the survivor then changes what it had cached.
fn removed(make: &Make, fabric: &str, number: usize) -> (Node, Node, Session, Had) {
    let cluster = format!("removal-{fabric}-{number}-{}", std::process::id());
    let config = Config::new(cluster).memory_bytes(4 << 20).cache_bytes(4 << 20);
    let survivor = Node::create_on(&config, make()).unwrap();
    let liar = Liar::new(make());
    let lies = liar.lies();
    let mut joining = Joining::start(&config, Arc::new(liar)).unwrap();
    let mut joined = None;
    until("it joins", || {
        joined = joining.poll().unwrap();
        joined.is_some()
    });
    let member = joined.unwrap();
    let mut here = survivor.session().unwrap();
    let mut there = member.session().unwrap();
    let had = drive(&member, async {
        let me = member.id();
        let had = Had {
            shared: there.alloc_with_async(64, at(NodeId(0))).await.unwrap(),
            direct: there.alloc_with_async(64, at(NodeId(0))).await.unwrap(),
            owned: there.alloc_with_async(64, at(NodeId(0))).await.unwrap(),
            own: there.alloc_with_async(512, at(me)).await.unwrap(),
            long: there.alloc_with_async(4096, at(me)).await.unwrap(),
            locked: there.alloc_with_async(64, at(me)).await.unwrap(),
        };
        for address in [had.owned, had.own, had.long] {
            there.write_async(address, &1_u64.to_le_bytes()).await.unwrap();
        }
        there.fence_async().await.unwrap();
        there.read_async(had.direct, &mut [0; 8]).await.unwrap();
        assert_eq!(member.stats().direct_reads, 1);
        there.set_direct_reads(false);
        there.read_async(had.shared, &mut [0; 8]).await.unwrap();
        there.set_direct_reads(true);
        // So that the next lock and unlock need no engine.
        for _ in 0..8 {
            there.lock_write_async(had.own, 64).await.unwrap().unlock().unwrap();
            there.lock_write_async(had.locked, 64).await.unwrap().unlock().unwrap();
        }
        there.lock_write_async(had.locked, 64).await.unwrap().keep();
        had
    });
    lies.arm();
    {
        let mut asking = pin!(there.alloc_with_async(64, at(NodeId(0))));
        until("it says something wrong", || {
            let _ = asking.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            lies.are_told()
        });
    }
    // From now on the member is not driven.
    until("it is removed", || survivor.members().iter().filter(|m| m.alive).count() == 1);
    here.write_u64(had.shared, 2).unwrap();
    here.write_u64(had.direct, 2).unwrap();
    here.fence().unwrap();
    (survivor, member, there, had)
}

fn removed_member_returns_nothing_and_acknowledges_nothing(fabric: &str) {
    let make = &*named(fabric);
    for (number, (name, operation)) in OPERATIONS.iter().enumerate() {
        let (survivor, _member, mut session, had) = removed(make, fabric, number);
        let done = operation(&mut session, &had).map_err(|error| error.code);
        assert_eq!(done, Err(ErrorCode::NodeClosed), "{name} on {fabric}");
        let mut here = survivor.session().unwrap();
        assert_eq!(here.read_u64(had.shared), Ok(2), "{name}");
        let lost = here.read_u64(had.owned).map_err(|error| error.code);
        assert!(matches!(lost, Ok(_) | Err(ErrorCode::LineLost)), "{name}: {lost:?}");
    }
}

fn removed_member_judges_no_member(fabric: &str) {
    let make = &*named(fabric);
    let (survivor, member, _session, had) = removed(make, fabric, 99);
    // It finds that its links have ended.
    until("it knows", || {
        member.progress();
        member.session().is_err_and(|error| error.code == ErrorCode::NodeClosed)
    });
    assert_eq!(survivor.session().unwrap().read_u64(had.shared), Ok(2));
    assert!(survivor.session().is_ok(), "the survivor was removed too");
    // It leaves at once, with the same error.
    let left = member.start_leaving().poll().map(|left| left.map_err(|error| error.code));
    assert_eq!(left, Some(Err(ErrorCode::NodeClosed)));
}

/// Not a test by itself: the stopped processes.
#[test]
fn child() {
    let Some(role) = farside_testkit::role() else { return };
    let [cluster, role, founder] = &role[..] else { panic!("{role:?}") };
    match role.as_str() {
        "writes" => processes::writer(cluster, founder),
        "serves" => processes::server(cluster, founder),
        _ => processes::member(cluster, founder),
    }
}

/// The number of processes that are stopped and removed, one after the other.
fn stops() -> u32 {
    let stops = std::env::var("FARSIDE_TEST_STOPS");
    stops.map_or(3, |text| text.parse().expect("FARSIDE_TEST_STOPS: a number"))
}

#[test]
fn stopped_process_returns_nothing_old_and_acknowledges_nothing_over_tcp() {
    (0..stops()).for_each(processes::stop_over_tcp);
}

#[test]
fn stopped_process_returns_nothing_old_and_acknowledges_nothing_on_one_machine() {
    (0..stops()).for_each(processes::stop_on_one_machine);
}

#[test]
fn stopped_coordinator_is_removed_by_the_next_member() {
    (0..stops()).for_each(processes::stop_coordinator_on_one_machine);
}

#[test]
fn memory_that_a_stopped_process_may_write_is_not_reused() {
    let within = (0..stops()).filter(|number| processes::stop_within_a_copy(*number)).count();
    farside_testkit::say(&format!("{within} of {} stops were within a copy", stops()));
}

#[test]
fn reads_of_a_stopped_process_end_and_the_cache_serves_again() {
    let within = (0..stops()).filter(|number| processes::stop_server(*number)).count();
    farside_testkit::say(&format!("{within} of {} stops were within a copy", stops()));
}
