//! An executor on a separate thread, over each fabric.

use farside::call::{CallServer, Caller, CallerOptions, ServerOptions};
use farside_base::Access;
use farside_fabric::{Arena, Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The executor's present counts.
pub(crate) struct Counts {
    pub(crate) sessions: usize,
}

/// The environment of a test.
pub(crate) struct Ends {
    pub(crate) fabric: Arc<dyn Fabric>,
    pub(crate) address: String,
    /// Region 0 of the executor.
    pub(crate) memory: Arena,
    sessions: Arc<AtomicUsize>,
}

impl Ends {
    pub(crate) fn caller(&self, options: &CallerOptions) -> Caller {
        Caller::connect(&self.fabric, &self.address, options).unwrap()
    }

    pub(crate) fn word(&self, offset: u64) -> u64 {
        let mut word = [0; 8];
        self.memory.read(offset, &mut word).unwrap();
        u64::from_le_bytes(word)
    }

    /// Waits until the executor's counts satisfy a predicate.
    pub(crate) fn until(&self, reached: impl Fn(&Counts) -> bool) {
        while !reached(&Counts { sessions: self.sessions.load(Ordering::Acquire) }) {
            std::thread::yield_now();
        }
    }
}

/// Returns two connected fabrics: the executor's and the callers'.
pub(crate) fn pair(name: &str) -> (Arc<dyn Fabric>, Arc<dyn Fabric>) {
    match name {
        "mem" => {
            let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
            (Arc::clone(&fabric), fabric)
        }
        "shm" => (Arc::new(ShmFabric::new().unwrap()), Arc::new(ShmFabric::new().unwrap())),
        "tcp" => {
            let local = "127.0.0.1:0".parse().unwrap();
            let there = TcpOptions { listen: Some(local), ..TcpOptions::default() };
            let there = TcpFabric::new(there).unwrap();
            (Arc::new(there), Arc::new(TcpFabric::new(TcpOptions::default()).unwrap()))
        }
        other => panic!("no fabric {other}"),
    }
}

/// Runs a test against an executor with 256 KiB in region 0.
pub(crate) fn over(fabric: &str, options: &ServerOptions, test: impl FnOnce(&Ends)) {
    static TESTS: AtomicUsize = AtomicUsize::new(0);
    let number = TESTS.fetch_add(1, Ordering::Relaxed);
    let name = format!("call-{}-{number}", std::process::id());
    let (there, here) = pair(fabric);
    let mut server = CallServer::listen(&there, &name, options).unwrap();
    let memory = server.make_region(0, 256 << 10, Access::ALL).unwrap();
    let address = server.address().unwrap();
    let (stop, sessions) = (AtomicBool::new(false), Arc::new(AtomicUsize::new(0)));
    let ends = Ends { fabric: here, address, memory, sessions: Arc::clone(&sessions) };
    /// Stops the executor's thread even if the test panics.
    struct Stop<'a>(&'a AtomicBool);
    impl Drop for Stop<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Acquire) {
                if !server.progress() {
                    std::thread::yield_now();
                }
                sessions.store(server.sessions(), Ordering::Release);
            }
        });
        let stop = Stop(&stop);
        test(&ends);
        drop(stop);
    });
}
