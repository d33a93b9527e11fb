//! Abandoned calls: deadlines that pass, futures that are dropped and futures that are forgotten. None of
//! them harms the session, its locks or the memory.
//!
//! The home of the memory answers only while a test drives it, so that operations on it wait for as long as
//! the test wants.

use farside::{Config, Error, ErrorCode, GlobalAddress, Node, Session};
use farside_fabric::{Fabric, MemFabric};
use std::future::Future;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Bytes of an allocation of the tests: 32 lines, more than writes of a session can be in flight.
const BYTES: u64 = 16 << 10;
/// A timeout that is to pass.
const SHORT: Duration = Duration::from_millis(5);
/// A timeout that is not to pass.
const LONG: Duration = Duration::from_secs(600);

struct DeadlineCluster {
    home: Node,
    node: Node,
    config: Config,
    fabric: Arc<dyn Fabric>,
}

impl DeadlineCluster {
    fn new(name: &str) -> Self {
        Self::with(name, |_| ())
    }

    fn with(name: &str, change: impl FnOnce(&mut Config)) -> Self {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let name = format!("{name}-{}", std::process::id());
        let mut config = Config::new(name).memory_bytes(8 << 20).cache_bytes(16 << 20);
        // A direct read waits for no node.
        config.direct_reads = false;
        let home = Node::create_driven(&config, Arc::clone(&fabric)).unwrap();
        change(&mut config);
        let node = driving(&home, || {
            let node = Node::join_on(&config, Arc::clone(&fabric)).unwrap();
            node.wait_for_members(2, Duration::from_secs(20)).unwrap();
            node
        });
        Self { home, node, config, fabric }
    }

    /// Joins a further node, which always answers.
    fn join(&self) -> Node {
        self.driving(|| {
            let node = Node::join_on(&self.config, Arc::clone(&self.fabric)).unwrap();
            self.node.wait_for_members(3, Duration::from_secs(20)).unwrap();
            node.wait_for_members(3, Duration::from_secs(20)).unwrap();
            node
        })
    }

    /// Allocates memory of the home that no other node has used.
    fn allocate(&self) -> GlobalAddress {
        self.driving(|| {
            let mut session = self.home.session().unwrap();
            session.alloc_on(BYTES, self.home.id()).unwrap()
        })
    }

    /// Runs `act` while the home answers.
    fn driving<R>(&self, act: impl FnOnce() -> R) -> R {
        driving(&self.home, act)
    }
}

fn driving<R>(home: &Node, act: impl FnOnce() -> R) -> R {
    struct StopOnDrop<'a>(&'a AtomicBool);
    impl Drop for StopOnDrop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::SeqCst) {
                if !home.progress() {
                    std::thread::yield_now();
                }
            }
        });
        let _stop = StopOnDrop(&stop);
        act()
    })
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

/// An executor that sleeps until it is woken.
fn run<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
            return output;
        }
        std::thread::park();
    }
}

fn poll_once<F: Future + Unpin>(future: &mut F) -> Poll<F::Output> {
    Pin::new(future).poll(&mut Context::from_waker(Waker::noop()))
}

fn code<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorCode {
    result.unwrap_err().code
}

fn after(address: GlobalAddress, bytes: u64) -> GlobalAddress {
    address.checked_add(bytes).unwrap()
}

type Blocking = fn(&mut Session, GlobalAddress) -> Result<(), Error>;
type CallFuture<'a> = Pin<Box<dyn Future<Output = Result<(), Error>> + 'a>>;
type Awaitable = for<'a> fn(&'a mut Session, GlobalAddress) -> CallFuture<'a>;

/// Every kind of call that waits for the home of its address.
const CALLS: &[(&str, Blocking, Awaitable)] = &[
    (
        "read",
        |s, a| s.read(a, &mut [0; 8]),
        |s, a| Box::pin(async move { s.read_async(a, &mut [0; 8]).await }),
    ),
    (
        "read of lines",
        |s, a| s.read(a, &mut [0; BYTES as usize]),
        |s, a| Box::pin(async move { s.read_async(a, &mut [0; BYTES as usize]).await }),
    ),
    (
        "read_u64",
        |s, a| s.read_u64(a).map(drop),
        |s, a| Box::pin(async move { s.read_u64_async(a).await.map(drop) }),
    ),
    (
        "read_vectored",
        |s, a| s.read_vectored(&mut [(a, &mut [0; 8])]),
        |s, a| Box::pin(async move { s.read_vectored_async(&mut [(a, &mut [0; 8])]).await }),
    ),
    (
        "write and fence",
        |s, a| s.write_u64(a, 0).and_then(|()| s.fence()),
        |s, a| {
            Box::pin(async move {
                s.write_u64_async(a, 0).await?;
                s.fence_async().await
            })
        },
    ),
    (
        "writes over the limit",
        |s, a| s.write(a, &[0; BYTES as usize]),
        |s, a| Box::pin(async move { s.write_async(a, &[0; BYTES as usize]).await }),
    ),
    (
        "write_vectored",
        |s, a| s.write_vectored(&[(a, &[0; BYTES as usize])]),
        |s, a| Box::pin(async move { s.write_vectored_async(&[(a, &[0; BYTES as usize])]).await }),
    ),
    (
        "fetch_add",
        |s, a| s.fetch_add(a, 0).map(drop),
        |s, a| Box::pin(async move { s.fetch_add_async(a, 0).await.map(drop) }),
    ),
    (
        "compare_swap",
        |s, a| s.compare_swap(a, 1, 1).map(drop),
        |s, a| Box::pin(async move { s.compare_swap_async(a, 1, 1).await.map(drop) }),
    ),
    (
        "swap",
        |s, a| s.swap(a, 0).map(drop),
        |s, a| Box::pin(async move { s.swap_async(a, 0).await.map(drop) }),
    ),
    (
        "fetch_add_u32",
        |s, a| s.fetch_add_u32(a, 0).map(drop),
        |s, a| Box::pin(async move { s.fetch_add_u32_async(a, 0).await.map(drop) }),
    ),
    ("atomic", |s, a| s.atomic(a, 8, |_| ()), |s, a| Box::pin(s.atomic_async(a, 8, |_| ()))),
    (
        "read_atomic",
        |s, a| s.read_atomic(a, &mut [0; 1024]),
        |s, a| Box::pin(async move { s.read_atomic_async(a, &mut [0; 1024]).await }),
    ),
    (
        "write_atomic",
        |s, a| s.write_atomic(a, &[0; 1024]),
        |s, a| Box::pin(async move { s.write_atomic_async(a, &[0; 1024]).await }),
    ),
    (
        "alloc",
        |s, a| s.alloc_near(64, a).map(drop),
        |s, a| Box::pin(async move { s.alloc_near_async(64, a).await.map(drop) }),
    ),
    (
        "alloc_on",
        |s, a| s.alloc_on(64, a.home()).map(drop),
        |s, a| Box::pin(async move { s.alloc_on_async(64, a.home()).await.map(drop) }),
    ),
    (
        "lock_read",
        |s, a| s.lock_read(a, 8).map(drop),
        |s, a| Box::pin(async move { s.lock_read_async(a, 8).await.map(drop) }),
    ),
    (
        "lock_write",
        |s, a| s.lock_write(a, 8).map(drop),
        |s, a| Box::pin(async move { s.lock_write_async(a, 8).await?.unlock_async().await }),
    ),
    (
        "lock of lines",
        |s, a| s.lock_write(a, BYTES).map(drop),
        |s, a| Box::pin(async move { s.lock_write_async(a, BYTES).await.map(drop) }),
    ),
    (
        "try_lock_write",
        |s, a| s.try_lock_write(a, 8).map(drop),
        |s, a| Box::pin(async move { s.try_lock_write_async(a, 8).await.map(drop) }),
    ),
    (
        "try_lock_read_for",
        |s, a| s.try_lock_read_for(a, 8, SHORT).map(drop),
        |s, a| Box::pin(async move { s.try_lock_read_for_async(a, 8, SHORT).await.map(drop) }),
    ),
    ("free", |s, a| s.free(a), |s, a| Box::pin(s.free_async(a))),
];

/// Checks that a session of the node can do everything, and so can other nodes.
fn works(cluster: &DeadlineCluster, session: &mut Session, what: &str) {
    let fresh = cluster.allocate();
    cluster.driving(|| {
        session.set_timeout(Some(LONG));
        session.fence().unwrap_or_else(|error| panic!("after {what}: {error}"));
        for (name, blocking, _) in CALLS.iter().filter(|(name, ..)| *name != "try_lock_read_for") {
            blocking(session, fresh).unwrap_or_else(|error| panic!("{name} after {what}: {error}"));
        }
    });
}

/// Checks that no lock and no lock request is left.
fn is_not_locked(cluster: &DeadlineCluster, address: GlobalAddress, what: &str) {
    cluster.driving(|| {
        let mut other = cluster.node.session().unwrap();
        let guard = other.try_lock_write_for(address, BYTES, LONG);
        guard.unwrap_or_else(|error| panic!("after {what}: {error}")).unlock().unwrap();
    });
}

#[test]
fn blocking_calls_time_out_and_name_the_awaited_node() {
    let cluster = DeadlineCluster::new("deadlines-blocking");
    for (name, blocking, _) in CALLS {
        let address = cluster.allocate();
        let mut session = cluster.node.session().unwrap();
        session.set_timeout(Some(SHORT));
        let error = blocking(&mut session, address).expect_err(name);
        assert_eq!(error.code, ErrorCode::TimedOut, "{name}: {error}");
        assert_eq!(error.awaited, Some(cluster.home.id()), "{name}: {error}");
        works(&cluster, &mut session, name);
        if *name != "free" {
            is_not_locked(&cluster, address, name);
        }
    }
}

#[test]
fn every_awaitable_call_times_out_without_any_traffic() {
    let cluster = DeadlineCluster::new("deadlines-awaitable");
    for (name, _, awaitable) in CALLS {
        let address = cluster.allocate();
        let mut session = cluster.node.session().unwrap();
        session.set_timeout(Some(SHORT));
        let error = run(awaitable(&mut session, address)).expect_err(name);
        assert_eq!(error.code, ErrorCode::TimedOut, "{name}: {error}");
        assert_eq!(error.awaited, Some(cluster.home.id()), "{name}: {error}");
        works(&cluster, &mut session, name);
        if *name != "free" {
            is_not_locked(&cluster, address, name);
        }
    }
}

#[test]
fn a_deadline_is_of_the_node_the_session_or_the_call() {
    let configure = |config: &mut Config| config.timeout_ns = Some(SHORT.as_nanos() as u64);
    let cluster = DeadlineCluster::with("deadlines-set", configure);
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    let out = &mut [0; 8];
    assert_eq!(session.timeout(), Some(SHORT));
    assert_eq!(code(session.read(address, out)), ErrorCode::TimedOut);
    session.set_timeout(None);
    assert_eq!(code(session.with_timeout(SHORT).read(address, out)), ErrorCode::TimedOut);
    let past = Instant::now();
    assert_eq!(code(session.with_deadline(past).read(address, out)), ErrorCode::TimedOut);
    assert_eq!(code(session.with_deadline(past).fetch_add(address, 1)), ErrorCode::TimedOut);
    // A cached access needs no time, and the view's deadline ends with the view.
    cluster.driving(|| session.read(address, out)).unwrap();
    session.with_deadline(past).read(address, out).unwrap();
    cluster.driving(|| session.write(address, &[1; 8]).and_then(|()| session.fence())).unwrap();
    let mut timed = session.with_timeout(LONG);
    cluster.driving(|| timed.lock_write(address, 8).map(drop)).unwrap();
}

#[test]
fn forgotten_allocation_is_freed() {
    let cluster = DeadlineCluster::new("deadlines-allocations");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    let before = cluster.home.stats().memory_free_bytes;
    for _ in 0..5 {
        let allocated = session.with_timeout(SHORT).alloc_near(BYTES, address);
        assert_eq!(code(allocated), ErrorCode::TimedOut);
        let mut future = Box::pin(session.alloc_near_async(BYTES, address));
        assert!(poll_once(&mut future).is_pending());
        std::mem::forget(future);
    }
    cluster.driving(|| {
        session.read(address, &mut [0; 8]).unwrap();
        while cluster.home.stats().memory_free_bytes != before {
            std::thread::yield_now();
        }
    });
}

fn abandoned_calls_block_no_session(name: &str, abandon: fn(CallFuture<'_>)) {
    let cluster = DeadlineCluster::new(name);
    for (name, _, awaitable) in CALLS {
        let mut session = cluster.node.session().unwrap();
        let addresses: Vec<_> = (0..20).map(|_| cluster.allocate()).collect();
        for address in &addresses {
            let mut future = awaitable(&mut session, *address);
            assert!(poll_once(&mut future).is_pending(), "{name}");
            abandon(future);
        }
        works(&cluster, &mut session, name);
        for address in addresses {
            if *name != "free" {
                is_not_locked(&cluster, address, name);
                cluster.driving(|| session.free(address)).unwrap();
            }
        }
    }
}

#[test]
fn dropped_calls_block_no_session() {
    abandoned_calls_block_no_session("deadlines-dropped", |future| drop(future));
}

#[test]
fn forgotten_calls_block_no_session() {
    abandoned_calls_block_no_session("deadlines-forgotten", |future| std::mem::forget(future));
}

#[test]
fn forgotten_call_of_a_closed_session_holds_nothing() {
    let cluster = DeadlineCluster::new("deadlines-closed");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    let mut future = Box::pin(session.write_atomic_async(address, &[1; 1024]));
    assert!(poll_once(&mut future).is_pending());
    std::mem::forget(future);
    drop(session);
    let mut session = cluster.node.session().unwrap();
    cluster.driving(|| session.write_atomic(address, &[2; 1024])).unwrap();
}

#[test]
fn lock_request_is_withdrawn_at_the_timeout() {
    let cluster = DeadlineCluster::new("deadlines-locks");
    let address = cluster.allocate();
    let (mut first, mut second) =
        (cluster.node.session().unwrap(), cluster.node.session().unwrap());
    cluster.driving(|| {
        let mut at_home = cluster.home.session().unwrap();
        // At another node, in the way of several lines, and under this node's own authority.
        let guard = at_home.lock_write(after(address, 1024), 8).unwrap();
        let error = first.try_lock_write_for(address, BYTES, SHORT).unwrap_err();
        assert_eq!((error.code, error.awaited), (ErrorCode::TimedOut, Some(cluster.home.id())));
        assert_eq!(code(first.with_timeout(SHORT).lock_read(address, BYTES)), ErrorCode::TimedOut);
        assert_eq!(
            code(run(first.try_lock_read_for_async(address, BYTES, SHORT))),
            ErrorCode::TimedOut
        );
        second.lock_write(address, 1024).unwrap().unlock().unwrap();
        guard.unlock().unwrap();
        second.lock_write(address, BYTES).unwrap().unlock().unwrap();
        for _ in 0..4 {
            second.lock_write(address, 8).unwrap().unlock().unwrap();
        }
        let guard = second.lock_read(address, 8).unwrap();
        let error = first.try_lock_write_for(address, 8, SHORT).unwrap_err();
        assert_eq!((error.code, error.awaited), (ErrorCode::TimedOut, Some(cluster.node.id())));
        guard.unlock().unwrap();
        first.try_lock_write_for(address, 8, LONG).unwrap().unlock().unwrap();
    });
}

#[test]
fn late_lock_grant_is_unlocked() {
    let cluster = DeadlineCluster::new("deadlines-late");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    for _ in 0..3 {
        assert_eq!(code(session.try_lock_write_for(address, 8, SHORT)), ErrorCode::TimedOut);
    }
    cluster.driving(|| {
        let mut at_home = cluster.home.session().unwrap();
        at_home.lock_write(address, 8).unwrap().unlock().unwrap();
        session.lock_write(address, 8).unwrap().unlock().unwrap();
    });
}

#[test]
fn timed_out_upgrade_leaves_a_lock_that_unlocks() {
    let cluster = DeadlineCluster::new("deadlines-upgrade");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    cluster.driving(|| {
        let mut at_home = cluster.home.session().unwrap();
        let reader = at_home.lock_read(after(address, 512), 8).unwrap();
        let mut guard = session.lock_read(address, 1024).unwrap();
        guard.set_timeout(Some(SHORT));
        assert_eq!(code(guard.upgrade()), ErrorCode::TimedOut);
        assert_eq!(code(run(guard.upgrade_async())), ErrorCode::TimedOut);
        guard.set_timeout(None);
        reader.unlock().unwrap();
        guard.upgrade().unwrap();
        run(guard.unlock_async()).unwrap();

        let reader = at_home.lock_read(after(address, 512), 8).unwrap();
        let mut guard = session.lock_read(address, 1024).unwrap();
        guard.set_timeout(Some(SHORT));
        assert_eq!(code(guard.upgrade()), ErrorCode::TimedOut);
        guard.unlock().unwrap();
        reader.unlock().unwrap();
        at_home.lock_write(address, 1024).unwrap().unlock().unwrap();
    });
}

#[test]
fn timed_out_unlock_keeps_the_lock() {
    let cluster = DeadlineCluster::new("deadlines-unlock");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    let mut guard = cluster.driving(|| session.lock_write(address, BYTES)).unwrap();
    guard.write(address, &[7; 8]).unwrap();
    guard.set_timeout(Some(SHORT));
    assert_eq!(code(guard.unlock()), ErrorCode::TimedOut);
    cluster.driving(|| {
        let mut at_home = cluster.home.session().unwrap();
        assert_eq!(code(at_home.try_lock_read(address, 8)), ErrorCode::Busy);
        session.set_timeout(None);
        session.unlock(address, BYTES).unwrap();
        let mut guard = at_home.lock_read(address, 8).unwrap();
        let mut out = [0; 8];
        guard.read(address, &mut out).unwrap();
        assert_eq!(out, [7; 8]);
    });
}

#[test]
fn forgotten_guard_keeps_its_lock() {
    let cluster = DeadlineCluster::new("deadlines-guards");
    let address = cluster.allocate();
    let mut session = cluster.node.session().unwrap();
    cluster.driving(|| {
        std::mem::forget(session.lock_write(address, 8).unwrap());
        let mut other = cluster.node.session().unwrap();
        assert_eq!(code(other.try_lock_write(address, 8)), ErrorCode::Busy);
        session.unlock(address, 8).unwrap();
        other.lock_write(address, 8).unwrap().unlock().unwrap();
    });
}

#[test]
fn silent_node_blocks_no_session_from_other_nodes() {
    let cluster = DeadlineCluster::new("deadlines-others");
    let third = cluster.join();
    let elsewhere = third.session().unwrap().alloc_on(1 << 20, third.id()).unwrap();
    let mut lines = (0..2_000).map(|line| after(elsewhere, 512 * line));
    for (name, blocking, _) in CALLS {
        if name.starts_with("alloc")
            || (name.starts_with("write") && *name != "write_atomic")
            || *name == "free"
        {
            continue; // requests already sent to it are completed or undone at it
        }
        let mut session = cluster.node.session().unwrap();
        session.set_timeout(Some(SHORT));
        for _ in 0..20 {
            let error = blocking(&mut session, cluster.allocate()).expect_err(name);
            assert_eq!(error.awaited, Some(cluster.home.id()), "{name}: {error}");
        }
        session.set_timeout(Some(LONG));
        let line = lines.next().unwrap();
        session.read(line, &mut [0; 8]).unwrap();
        session.read_atomic(line, &mut [0; 1024]).unwrap();
        session.lock_read(line, 8).unwrap();
    }
}
