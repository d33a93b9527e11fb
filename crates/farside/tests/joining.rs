//! Whoever wants to join is heard though the coordinator sleeps: what happens at the cluster's name wakes
//! the node, which would look there by itself only twice a second.
#![forbid(unsafe_code)]

use farside::{Config, ErrorCode, Node};
use farside_fabric::{Fabric, FabricError, Port, PortSpec, Waiter};
use farside_fabric_shm::ShmFabric;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// After so long a test is taken for hung.
const WATCHDOG: Duration = Duration::from_secs(60);

/// Counts how often a port wakes somebody who sleeps on another one.
struct Watched {
    inner: Arc<dyn Fabric>,
    wakes: Arc<AtomicU32>,
}

struct WatchedPort {
    inner: Box<dyn Port>,
    wakes: Arc<AtomicU32>,
}

struct WatchedWaiter {
    inner: Arc<dyn Waiter>,
    wakes: Arc<AtomicU32>,
}

impl Fabric for Watched {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, wakes) = (self.inner.open(spec)?, Arc::clone(&self.wakes));
        Ok(Box::new(WatchedPort { inner, wakes }))
    }
}

impl Port for WatchedPort {
    farside_fabric::forward!(
        post,
        post_receives,
        poll,
        link_events,
        arm,
        disarm,
        create_receive_queue,
        connect,
        accept,
        refuse,
        import,
        close,
        path,
        address,
        destroy_receive_queue,
        trouble,
        reach
    );

    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        let wakes = Arc::clone(&self.wakes);
        self.inner.wake_also(Arc::new(WatchedWaiter { inner: waiter, wakes }));
    }
}

impl Waiter for WatchedWaiter {
    fn wait(&self, timeout: Option<Duration>) -> bool {
        self.inner.wait(timeout)
    }

    fn wake(&self) {
        self.wakes.fetch_add(1, Ordering::SeqCst);
        self.inner.wake();
    }
}

#[test]
fn who_wants_to_join_wakes_the_coordinator_and_the_one_after_it() {
    let name = format!("joining-{}", std::process::id());
    let config = Config { memory_bytes: 2 << 20, cache_bytes: 4 << 20, ..Config::new(name) };
    let wakes: [_; 2] = std::array::from_fn(|_| Arc::new(AtomicU32::new(0)));
    let watched = |number: usize| {
        let inner: Arc<dyn Fabric> = Arc::new(ShmFabric::new().unwrap());
        Arc::new(Watched { inner, wakes: Arc::clone(&wakes[number]) })
    };
    let founder = Node::create_on(&config, watched(0)).unwrap();
    let heir = Node::join_on(&config, watched(1)).unwrap();
    assert!(wakes[0].load(Ordering::SeqCst) > 0, "the coordinator was woken");
    founder.leave().unwrap();
    // The name is free a moment before the heir has it.
    let begun = Instant::now();
    let third = loop {
        match Node::join(&config) {
            Ok(node) => break node,
            Err(error) if error.code == ErrorCode::NoSuchCluster => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
        assert!(begun.elapsed() < WATCHDOG, "nobody took the name");
    };
    assert!(wakes[1].load(Ordering::SeqCst) > 0, "its heir was woken");
    assert_eq!(third.members().iter().filter(|member| member.alive).count(), 2);
    drop(heir);
}
