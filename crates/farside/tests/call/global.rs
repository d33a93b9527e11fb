//! Calls on global addresses: executors and callers that are part of nodes of one memory.

use crate::programs::parameters;
use crate::{LONG, programs};
use farside::call::rmc::helpers::status;
use farside::call::{
    CallAnswer, CallOptions, CallServer, Caller, CallerOptions, Program, ServerOptions, Site,
};
use farside::{
    AllocationHint, AllocationSpec, Config, Error, ErrorCode, GlobalAddress, Joining, LineSize,
    Node, NodeId,
};
use farside_base::Access;
use farside_fabric::{Fabric, MemFabric};
use farside_fabric_shm::ShmFabric;
use farside_fabric_tcp::{TcpFabric, TcpOptions};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

farside_testkit::on_each_fabric! { mem shm tcp => (
    concurrent_additions_of_calls_and_sessions_are_exact
    multi_line_reads_and_writes_are_exact
    writes_are_visible_once_the_answer_arrived
    call_ends_after_its_writes_are_visible
    state_lock_orders_stores_of_calls
    call_waiting_for_memory_does_not_delay_others
    calls_that_hit_continue_while_more_wait_than_sessions_exist
    nic_executor_accesses_host_memory_and_global_memory
    deadline_ends_a_call_waiting_for_memory_and_frees_its_session
    bad_addresses_are_reported_and_the_executor_continues
    memory_of_a_departed_node_is_lost_and_the_rest_remains
    calls_waiting_for_a_departing_node_fail
)}

const EVER: u64 = u64::MAX;

const LOAD: &str = "
.program load
    r1 = *(u64 *)(r1 + 0)
    call global_load_u64
    exit
";

/// Stores the second parameter at the first.
const STORE: &str = "
.program store
    r2 = *(u64 *)(r1 + 8)
    r1 = *(u64 *)(r1 + 0)
    call global_store_u64
    exit
";

/// Adds one, this many times.
const ADD: &str = "
.program add
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
again:
    if r7 == 0 goto out
    r1 = r6
    r2 = 1
    call global_fetch_add
    r7 += -1
    goto again
out:
    r0 = 0
    exit
";

/// Adds one by compare-and-swap, retried until it succeeds, this many times.
const SWAP: &str = "
.program swap
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = 0
again:
    if r7 == 0 goto out
    r1 = r6
    r2 = r8
    r3 = r8
    r3 += 1
    call global_compare_swap
    if r0 == r8 goto swapped
    r8 = r0
    goto again
swapped:
    r7 += -1
    goto again
out:
    r0 = 0
    exit
";

/// Reads 480 bytes at the first parameter, writes them at the second and returns the last word read back from
/// there.
const COPY: &str = "
.program copy
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r1 = r6
    r2 = r10
    r2 += -480
    r3 = 480
    call global_read
    if r0 != 0 goto out
    r1 = r7
    r2 = r10
    r2 += -480
    r3 = 480
    call global_write
    if r0 != 0 goto out
    r1 = r7
    r2 = r10
    r2 += -480
    r3 = 480
    call global_read
    if r0 != 0 goto out
    r0 = *(u64 *)(r10 - 8)
out:
    exit
";

/// As [`COPY`], for as many bytes as the own variables have.
const COPY_LONG: &str = "
.program copy_long
.own 16000
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r1 = r6
    r2 = own 0
    r3 = 16000
    call global_read
    if r0 != 0 goto out
    r1 = r7
    r2 = own 0
    r3 = 16000
    call global_write
out:
    exit
";

/// Stores the second parameter at 40 words, 512 bytes apart, from the first parameter on.
const SPREAD: &str = "
.program spread
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = 40
again:
    if r8 == 0 goto out
    r1 = r6
    r2 = r7
    call global_store_u64
    r6 += 512
    r8 += -1
    goto again
out:
    r0 = 0
    exit
";

/// Reads 8 bytes; returns the status.
const READ: &str = "
.program read
    r1 = *(u64 *)(r1 + 0)
    r2 = r10
    r2 += -8
    r3 = 8
    call global_read
    exit
";

/// Writes 8 zeros; returns the status.
const WRITE: &str = "
.program write
    r1 = *(u64 *)(r1 + 0)
    r2 = 0
    *(u64 *)(r10 - 8) = r2
    r2 = r10
    r2 += -8
    r3 = 8
    call global_write
    exit
";

/// Under a lock of its own state, adds one to the word at the first parameter by a load and a store.
const LOCKED_ADD: &str = "
.program locked_add
.state locks locks 0 0 1 shared
    r6 = *(u64 *)(r1 + 0)
    r1 = state 0
    r2 = 0
    call lock
    if r0 != 0 goto out
    r1 = r6
    call global_load_u64
    r2 = r0
    r2 += 1
    r1 = r6
    call global_store_u64
    r1 = state 0
    r2 = 0
    call unlock
out:
    exit
";

/// Returns fabrics of nodes that reach each other.
fn fabrics(name: &str, count: usize) -> Vec<Arc<dyn Fabric>> {
    let mem: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let mut hosts = Vec::new();
    let mut make = || -> Arc<dyn Fabric> {
        match name {
            "mem" => Arc::clone(&mem),
            "shm" => Arc::new(ShmFabric::new().unwrap()),
            _ => {
                let listen = Some("127.0.0.1:0".parse().unwrap());
                let options = TcpOptions { listen, hosts: hosts.clone(), ..TcpOptions::default() };
                let fabric = TcpFabric::new(options).unwrap();
                hosts.push(fabric.listens_at().unwrap());
                Arc::new(fabric)
            }
        }
    };
    (0..count).map(|_| make()).collect()
}

/// A cluster, and an executor on a separate thread that is part of node 1.
struct Cluster {
    /// The application's node, the executor's, and those that a test adds.
    nodes: Vec<Node>,
    fabrics: Vec<Arc<dyn Fabric>>,
    /// A node that is polled only in [`Cluster::released`], if the test has one.
    held: Option<Node>,
    address: String,
}

impl Cluster {
    fn caller(&self) -> Caller {
        Caller::connect(&self.fabrics[0], &self.address, &CallerOptions::default()).unwrap()
    }

    /// Returns a caller whose local runs are part of node 0.
    fn sharing(&self) -> Caller {
        let mut caller = self.caller();
        caller.share(&self.nodes[0]).unwrap();
        caller
    }

    /// Runs `act` while the held node is polled.
    fn released<R>(&self, act: impl FnOnce() -> R) -> R {
        let (held, over) = (self.held.as_ref().unwrap(), AtomicBool::new(false));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !over.load(Ordering::Acquire) {
                    if !held.progress() {
                        std::thread::yield_now();
                    }
                }
            });
            let _over = StopOnDrop(&over);
            act()
        })
    }

    /// Allocates memory of the held node.
    fn held_memory(&self, bytes: u64) -> GlobalAddress {
        let node = self.held.as_ref().unwrap().id();
        self.released(|| self.nodes[0].session().unwrap().alloc_on(bytes, node).unwrap())
    }

    fn read(&self, node: usize, address: GlobalAddress) -> u64 {
        self.nodes[node].session().unwrap().read_u64(address).unwrap()
    }
}

/// Sets the flag even if a test panics.
struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

fn join_held(config: &Config, fabric: &Arc<dyn Fabric>) -> Node {
    let mut joining = Joining::start(config, Arc::clone(fabric)).unwrap();
    loop {
        if let Some(node) = joining.poll().unwrap() {
            return node;
        }
        std::thread::yield_now();
    }
}

/// Runs a test in a cluster of this many polled nodes, with a held node if asked for.
fn cluster(fabric: &str, nodes: usize, holds: bool, test: impl FnOnce(&mut Cluster)) {
    static TESTS: AtomicUsize = AtomicUsize::new(0);
    let number = TESTS.fetch_add(1, Ordering::Relaxed);
    let name = format!("call-global-{}-{number}", std::process::id());
    let fabrics = fabrics(fabric, nodes + usize::from(holds));
    let config = Config::new(name.clone()).memory_bytes(4 << 20).cache_bytes(4 << 20);
    // A direct read never waits for its home.
    let config = config.direct_reads(false);
    let mut members = vec![Node::create_on(&config, Arc::clone(&fabrics[0])).unwrap()];
    for fabric in &fabrics[1..nodes] {
        members.push(Node::join_on(&config, Arc::clone(fabric)).unwrap());
    }
    let held = holds.then(|| join_held(&config, &fabrics[nodes]));
    for node in &members {
        node.wait_for_members(fabrics.len(), Duration::from_secs(10)).unwrap();
    }
    let options = ServerOptions::default().slots(128);
    let mut server = CallServer::listen(&fabrics[1], &format!("{name}-calls"), &options).unwrap();
    server.make_region(0, 4096, Access::ALL).unwrap();
    server.share(&members[1]).unwrap();
    let address = server.address().unwrap();
    let stop = AtomicBool::new(false);
    let mut cluster = Cluster { nodes: members, fabrics, held, address };
    #[cfg(canary)]
    let defect = farside::canary::planted();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            #[cfg(canary)]
            farside::canary::plant(defect);
            server.serve(&stop)
        });
        let _stop = StopOnDrop(&stop);
        test(&mut cluster);
    });
    // Operations in flight at the held node end with it.
    drop(cluster.held.take());
}

fn register(caller: &mut Caller, text: &str) -> Program {
    caller.register(text.as_bytes()).unwrap().remove(0)
}

fn call(caller: &mut Caller, runs: Site, text: &str, words: &[u64]) -> Result<CallAnswer, Error> {
    let program = register(caller, text);
    caller.call(&program, &parameters(words), CallOptions::new().site(runs).timeout(LONG))
}

fn result(caller: &mut Caller, runs: Site, text: &str, words: &[u64]) -> u64 {
    call(caller, runs, text, words).unwrap_or_else(|error| panic!("{text}: {error}")).result
}

fn small_lines(node: &Node, at: u16, bytes: u64) -> GlobalAddress {
    let line_size = LineSize::from_bytes(64);
    let spec = AllocationSpec::new(AllocationHint::On(NodeId(at))).line_size(line_size);
    node.session().unwrap().alloc_with(bytes, spec).unwrap()
}

fn concurrent_additions_of_calls_and_sessions_are_exact(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        for home in 0..3 {
            let counter = cluster.nodes[0].session().unwrap().alloc_on(8, NodeId(home)).unwrap();
            let word = counter.to_bits();
            std::thread::scope(|scope| {
                let cluster = &*cluster;
                for (program, runs) in [
                    (ADD, Site::Remote),
                    (ADD, Site::Local),
                    (SWAP, Site::Remote),
                    (SWAP, Site::Local),
                ] {
                    scope.spawn(move || {
                        let mut caller = cluster.sharing();
                        let program = register(&mut caller, program);
                        let mut tickets = Vec::new();
                        for begun in 0..250 {
                            let bytes = parameters(&[word, 1 + begun % 3]);
                            while tickets.len() >= 8 {
                                let ticket = tickets.remove(0);
                                caller.wait(ticket, LONG).unwrap();
                            }
                            let begun =
                                caller.invoke(&program, &bytes, CallOptions::new().site(runs));
                            tickets.push(begun.unwrap().unwrap());
                        }
                        for ticket in tickets {
                            caller.wait(ticket, LONG).unwrap();
                        }
                    });
                }
                for node in &cluster.nodes {
                    scope.spawn(move || {
                        let mut session = node.session().unwrap();
                        for _ in 0..1000 {
                            session.fetch_add(counter, 1).unwrap();
                        }
                    });
                }
            });
            // 250 calls add 1, 2 or 3: 84 times 1, 83 times 2, 83 times 3.
            let expected = 4 * (84 + 2 * 83 + 3 * 83) + 3000;
            assert_eq!(cluster.read(2, counter), expected, "{fabric} home {home}");
        }
    });
}

fn multi_line_reads_and_writes_are_exact(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        let mut caller = cluster.sharing();
        for runs in [Site::Remote, Site::Local] {
            // Between every kind of homes, beginning within a line.
            for (from, to) in [(0, 2), (2, 1), (1, 0), (2, 2)] {
                let source = small_lines(&cluster.nodes[0], from, 4096);
                let target = small_lines(&cluster.nodes[0], to, 4096);
                let mut session = cluster.nodes[2].session().unwrap();
                let bytes: Vec<u8> = (0..4096_u32).map(|at| (at * 7 + at / 256) as u8).collect();
                session.write(source, &bytes).unwrap();
                session.fence().unwrap();
                let words = [source.to_bits() + 60, target.to_bits() + 20];
                let last = result(&mut caller, runs, COPY, &words);
                let expected = &bytes[60..540];
                assert_eq!(last.to_le_bytes(), expected[472..], "{fabric} {runs:?}");
                let mut copied = [0; 4096];
                session.read(target, &mut copied).unwrap();
                assert_eq!(&copied[20..500], expected, "{fabric} {runs:?} {from} {to}");
                assert!(copied[..20].iter().chain(&copied[500..]).all(|byte| *byte == 0));
            }
        }
        let source = small_lines(&cluster.nodes[0], 2, 20_000);
        let target = small_lines(&cluster.nodes[0], 0, 20_000);
        let mut session = cluster.nodes[0].session().unwrap();
        let bytes: Vec<u8> = (0..20_000_u32).map(|at| (at * 11 + at / 256) as u8).collect();
        session.write(source, &bytes).unwrap();
        session.fence().unwrap();
        let words = [source.to_bits() + 33, target.to_bits() + 7];
        assert_eq!(result(&mut caller, Site::Remote, COPY_LONG, &words), 0, "{fabric}");
        let mut copied = vec![0; 16_000];
        let there = GlobalAddress::from_bits(target.to_bits() + 7).unwrap();
        session.read(there, &mut copied).unwrap();
        assert_eq!(copied, bytes[33..16_033], "{fabric}");
    });
}

fn writes_are_visible_once_the_answer_arrived(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        let mut caller = cluster.sharing();
        let spread = register(&mut caller, SPREAD);
        let store = register(&mut caller, STORE);
        let mut readers: Vec<_> =
            cluster.nodes.iter().map(|node| node.session().unwrap()).collect();
        let memory = readers[0].alloc_on(40 * 512, NodeId(2)).unwrap();
        let word = |at: u64| GlobalAddress::from_bits(memory.to_bits() + at * 512).unwrap();
        for round in 1..50_u64 {
            let runs = if round % 4 == 3 { Site::Local } else { Site::Remote };
            let words = parameters(&[memory.to_bits(), round]);
            caller.call(&spread, &words, CallOptions::new().site(runs).timeout(LONG)).unwrap();
            for (number, reader) in readers.iter_mut().enumerate() {
                for at in 0..40 {
                    let seen = reader.read_u64(word(at)).unwrap();
                    assert_eq!(seen, round, "{fabric} {runs:?} node {number} word {at}");
                }
            }
            let words = parameters(&[memory.to_bits(), 1000 + round]);
            caller.call(&store, &words, CallOptions::new().site(runs).timeout(LONG)).unwrap();
            assert_eq!(readers[0].read_u64(memory).unwrap(), 1000 + round, "{fabric}");
        }
    });
}

/// Returns whether a call that stored to memory of a silent node has ended, although that store cannot be visible.
fn is_over_before_its_writes(fabric: &str) -> bool {
    let mut over = false;
    cluster(fabric, 2, true, |cluster| {
        let held = cluster.held_memory(32 << 10);
        let near = cluster.nodes[1].session().unwrap().alloc(8).unwrap();
        let mut caller = cluster.caller();
        let [store, add, load] = [STORE, ADD, LOAD].map(|text| register(&mut caller, text));
        let words = parameters(&[held.to_bits(), 7]);
        let stores = caller.invoke(&store, &words, CallOptions::new()).unwrap().unwrap();
        for _ in 0..50 {
            caller
                .call(&add, &parameters(&[near.to_bits(), 1]), CallOptions::new().timeout(LONG))
                .unwrap();
        }
        let end = caller.poll(stores);
        over = end.is_some();
        cluster.released(|| {
            if !over {
                assert_eq!(caller.wait(stores, LONG).unwrap().result, 0, "{fabric}");
                let seen = caller
                    .call(&load, &parameters(&[held.to_bits()]), CallOptions::new().timeout(LONG))
                    .unwrap();
                assert_eq!((seen.result, cluster.read(0, held)), (7, 7), "{fabric}");
            }
        });
    });
    over
}

fn call_ends_after_its_writes_are_visible(fabric: &str) {
    assert!(!is_over_before_its_writes(fabric), "{fabric}");
}

#[cfg(canary)]
#[test]
fn canary_answer_before_writes_is_found() {
    farside::canary::plant(Some(farside::canary::NodeMutant::AnswersBeforeWrites));
    let found = is_over_before_its_writes("mem");
    farside::canary::plant(None);
    assert!(found);
}

fn state_lock_orders_stores_of_calls(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        let counter = cluster.nodes[0].session().unwrap().alloc_on(8, NodeId(2)).unwrap();
        std::thread::scope(|scope| {
            let cluster = &*cluster;
            for _ in 0..3 {
                scope.spawn(move || {
                    let mut caller = cluster.caller();
                    let add = register(&mut caller, LOCKED_ADD);
                    let bytes = parameters(&[counter.to_bits()]);
                    let (mut added, mut tries) = (0, 0..1_000);
                    while added < 200 {
                        assert!(tries.next().is_some(), "{fabric}: only {added} additions");
                        let answer =
                            caller.call(&add, &bytes, CallOptions::new().timeout(LONG)).unwrap();
                        // A call that waited too long for the lock, on a loaded machine.
                        let busy = answer.result == status::BUSY as u64;
                        assert!(busy || answer.result == 0, "{fabric}: {answer:?}");
                        added += u64::from(!busy);
                    }
                });
            }
            // Another session takes the line occasionally, so that stores miss.
            scope.spawn(move || {
                let mut session = cluster.nodes[0].session().unwrap();
                for _ in 0..2000 {
                    session.fetch_add(counter, 0).unwrap();
                }
            });
        });
        assert_eq!(cluster.read(0, counter), 600, "{fabric}");
    });
}

fn call_waiting_for_memory_does_not_delay_others(fabric: &str) {
    cluster(fabric, 2, true, |cluster| {
        let held = cluster.held_memory(4096);
        let near = cluster.nodes[1].session().unwrap().alloc(8).unwrap();
        let mut caller = cluster.sharing();
        let [load, add] = [LOAD, ADD].map(|text| register(&mut caller, text));
        let places = [Site::Remote, Site::Local, Site::Remote, Site::Local];
        for (round, runs) in (1..).zip(places) {
            // A line that is not cached yet.
            let word = GlobalAddress::from_bits(held.to_bits() + round * 512).unwrap();
            let waits =
                caller.invoke(&load, &parameters(&[word.to_bits()]), CallOptions::new().site(runs));
            let waits = waits.unwrap().unwrap();
            for _ in 0..50 {
                let other = parameters(&[near.to_bits(), 1]);
                caller.call(&add, &other, CallOptions::new().site(runs).timeout(LONG)).unwrap();
            }
            assert!(caller.poll(waits).is_none(), "{fabric} {runs:?}");
            let answer = cluster.released(|| caller.wait(waits, LONG).unwrap());
            assert_eq!(answer.result, 0, "{fabric} {runs:?}");
        }
        assert_eq!(cluster.read(1, near), 200, "{fabric}");
    });
}

fn calls_that_hit_continue_while_more_wait_than_sessions_exist(fabric: &str) {
    cluster(fabric, 2, true, |cluster| {
        let held = cluster.held_memory(128 << 10);
        let near = cluster.nodes[1].session().unwrap().alloc(8).unwrap();
        let options = CallerOptions::default().slots(128);
        let mut caller = Caller::connect(&cluster.fabrics[0], &cluster.address, &options).unwrap();
        let [load, add, store] = [LOAD, ADD, SPREAD].map(|text| register(&mut caller, text));
        let mut waits = Vec::new();
        for at in 0..100_u64 {
            let words = parameters(&[held.to_bits() + at * 512, 1]);
            let program = if at < 99 { &load } else { &store };
            waits.push(caller.invoke(program, &words, CallOptions::new()).unwrap().unwrap());
        }
        for _ in 0..20 {
            caller
                .call(&add, &parameters(&[near.to_bits(), 1]), CallOptions::new().timeout(LONG))
                .unwrap();
        }
        for ticket in &waits {
            assert!(caller.poll(*ticket).is_none(), "{fabric}");
        }
        // Cancels half of them: calls that wait for a session, and calls that have one.
        for ticket in waits.iter().step_by(2) {
            let asked = caller.cancel(*ticket).unwrap().unwrap();
            assert_eq!(caller.wait(asked, LONG).unwrap().result, 1);
            let error = caller.wait(*ticket, LONG).unwrap_err();
            assert_eq!(error.code, ErrorCode::CallCancelled, "{fabric}");
        }
        cluster.released(|| {
            for ticket in waits.iter().skip(1).step_by(2) {
                assert_eq!(caller.wait(*ticket, LONG).unwrap().result, 0, "{fabric}");
            }
            for at in [0, 40, 99] {
                let words = parameters(&[held.to_bits() + at * 512]);
                let seen =
                    caller.call(&load, &words, CallOptions::new().timeout(LONG)).unwrap().result;
                assert_eq!(seen, u64::from(at == 99), "{fabric} {at}");
            }
        });
        assert_eq!(cluster.read(1, near), 20, "{fabric}");
    });
}

/// Takes the next number from the counter in region 0 at the second parameter, and adds it to the word at the
/// first.
const TAKE_AND_ADD: &str = "
.program take_and_add
    r6 = *(u64 *)(r1 + 0)
    r2 = *(u64 *)(r1 + 8)
    r1 = 0
    r3 = 1
    call fetch_add
    r7 = r0
    r1 = r6
    r2 = r7
    call global_fetch_add
    r0 = r7
    exit
";

/// An executor next to the adapter: the host's memory is remote, its node is local.
fn nic_executor_accesses_host_memory_and_global_memory(fabric: &str) {
    const CALLS: u64 = 200;
    cluster(fabric, 2, false, |cluster| {
        let options = ServerOptions::default();
        let (ours, name) = (&cluster.fabrics[0], format!("{}-beside", cluster.address));
        let name = if fabric == "tcp" { "beside" } else { &name };
        let mut near =
            CallServer::listen_with_host(ours, name, &cluster.address, &options).unwrap();
        near.serve_while(|near| !near.has_memory());
        near.share(&cluster.nodes[0]).unwrap();
        let (address, stop) = (near.address().unwrap(), AtomicBool::new(false));
        let counter = cluster.nodes[1].session().unwrap().alloc_on(8, NodeId(1)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| near.serve(&stop));
            let _stop = StopOnDrop(&stop);
            // A caller of each executor, concurrently.
            let callers = [&address, &cluster.address].map(|address| {
                let cluster = &*cluster;
                scope.spawn(move || {
                    let fabric = &cluster.fabrics[0];
                    let options = CallerOptions::default();
                    let mut caller = Caller::connect(fabric, address, &options).unwrap();
                    let program = register(&mut caller, TAKE_AND_ADD);
                    let bytes = parameters(&[counter.to_bits(), 64]);
                    let call = |_| {
                        caller
                            .call(&program, &bytes, CallOptions::new().timeout(LONG))
                            .unwrap()
                            .result
                    };
                    (0..CALLS).map(call).collect::<Vec<_>>()
                })
            });
            let mut taken: Vec<u64> =
                callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect();
            taken.sort_unstable();
            assert!(taken.into_iter().eq(0..2 * CALLS), "{fabric}");
        });
        assert_eq!(cluster.read(1, counter), (0..2 * CALLS).sum(), "{fabric}");
    });
}

fn deadline_ends_a_call_waiting_for_memory_and_frees_its_session(fabric: &str) {
    cluster(fabric, 2, true, |cluster| {
        let held = cluster.held_memory(64 << 10);
        let mut caller = cluster.sharing();
        let [load, add, spread] = [LOAD, ADD, SPREAD].map(|text| register(&mut caller, text));
        let soon = CallOptions::new().deadline(Duration::from_micros(200));
        // More calls than sessions.
        for round in 0..80_u64 {
            let words = parameters(&[held.to_bits() + round % 50 * 512, 1]);
            let program = [&load, &add, &spread][round as usize % 3];
            let ticket = caller.invoke(program, &words, soon).unwrap().unwrap();
            let error = caller.wait(ticket, LONG).unwrap_err();
            assert_eq!(error.code, ErrorCode::DeadlinePassed, "{fabric} {error}");
        }
        let here = caller
            .invoke(&load, &parameters(&[held.to_bits()]), CallOptions::new().site(Site::Local))
            .unwrap()
            .unwrap();
        caller.progress().unwrap();
        assert_eq!(caller.cancel(here).unwrap(), None);
        let error = caller.wait(here, LONG).unwrap_err();
        assert_eq!(error.code, ErrorCode::CallCancelled, "{fabric}");
        cluster.released(|| {
            let counter = held.to_bits() + 120 * 512;
            for runs in [Site::Remote, Site::Local] {
                let words = parameters(&[counter, 10]);
                caller.call(&add, &words, CallOptions::new().site(runs).timeout(LONG)).unwrap();
            }
            let seen = caller
                .call(&load, &parameters(&[counter]), CallOptions::new().timeout(LONG))
                .unwrap();
            assert_eq!(seen.result, 20, "{fabric}");
        });
    });
}

fn bad_addresses_are_reported_and_the_executor_continues(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        let mut session = cluster.nodes[0].session().unwrap();
        let mut caller = cluster.sharing();
        for runs in [Site::Remote, Site::Local] {
            for home in 0..3 {
                let freed = session.alloc_on(4096, NodeId(home)).unwrap();
                let good = session.alloc_on(4096, NodeId(home)).unwrap();
                let small = session.alloc_on(16, NodeId(home)).unwrap();
                result(&mut caller, runs, ADD, &[freed.to_bits(), 1]);
                session.free(freed).unwrap();
                let no_class = 15 << 42 | good.to_bits();
                let no_node = 77 << 48 | good.to_bits();
                let beyond = small.to_bits() + 16;
                for bad in [freed.to_bits(), no_class, no_node, beyond, EVER] {
                    for text in [READ, WRITE] {
                        let status = result(&mut caller, runs, text, &[bad, 1]);
                        assert_eq!(status as i64, -1, "{fabric} {runs:?} {home} {bad:#x} {text}");
                    }
                    for text in [LOAD, STORE, ADD, SWAP] {
                        let error = call(&mut caller, runs, text, &[bad, 1]).unwrap_err();
                        let said = format!("{fabric} {runs:?} {bad:#x} {text}: {error}");
                        assert_eq!(error.code, ErrorCode::CallStopped, "{said}");
                        assert!(error.detail.contains("address"), "{said}");
                    }
                }
                let odd = good.to_bits() + 4;
                for text in [ADD, SWAP] {
                    let error = call(&mut caller, runs, text, &[odd, 1]).unwrap_err();
                    assert_eq!(error.code, ErrorCode::CallStopped, "{error}");
                    assert!(error.detail.contains("aligned"), "{error}");
                }
                // Loads and stores may be unaligned, and cross the end of a line.
                let across = good.to_bits() + 508;
                result(&mut caller, runs, STORE, &[across, 0x0102_0304_0506_0708]);
                let seen = result(&mut caller, runs, LOAD, &[across]);
                assert_eq!(seen, 0x0102_0304_0506_0708, "{fabric} {runs:?}");
                session.free(good).unwrap();
                session.free(small).unwrap();
            }
        }
    });
}

fn memory_of_a_departed_node_is_lost_and_the_rest_remains(fabric: &str) {
    cluster(fabric, 3, false, |cluster| {
        let mut session = cluster.nodes[0].session().unwrap();
        let [gone, cached, stays] =
            [2, 2, 0].map(|home| session.alloc_on(8, NodeId(home)).unwrap());
        let mut caller = cluster.sharing();
        for runs in [Site::Remote, Site::Local] {
            result(&mut caller, runs, ADD, &[cached.to_bits(), 1]);
        }
        cluster.nodes.pop().unwrap().leave().unwrap();
        for node in &cluster.nodes {
            while node.members().iter().filter(|member| member.alive).count() > 2 {
                std::thread::yield_now();
            }
        }
        for runs in [Site::Remote, Site::Local] {
            for lost in [gone, cached] {
                for text in [READ, WRITE] {
                    let status = result(&mut caller, runs, text, &[lost.to_bits()]);
                    assert_eq!(status as i64, -7, "{fabric} {runs:?} {text}");
                }
                for text in [LOAD, STORE, ADD] {
                    let error = call(&mut caller, runs, text, &[lost.to_bits(), 1]).unwrap_err();
                    assert_eq!(error.code, ErrorCode::PeerLost, "{fabric} {runs:?} {error}");
                }
            }
            result(&mut caller, runs, ADD, &[stays.to_bits(), 5]);
        }
        assert_eq!(cluster.read(0, stays), 10, "{fabric}");
    });
}

fn calls_waiting_for_a_departing_node_fail(fabric: &str) {
    cluster(fabric, 2, true, |cluster| {
        let held = cluster.held_memory(4096);
        let mut caller = cluster.sharing();
        let [load, spread, read] = [LOAD, SPREAD, READ].map(|text| register(&mut caller, text));
        let mut waits = Vec::new();
        for runs in [Site::Remote, Site::Local] {
            for program in [&load, &spread, &read] {
                let words = parameters(&[held.to_bits(), 1]);
                waits.push(
                    caller.invoke(program, &words, CallOptions::new().site(runs)).unwrap().unwrap(),
                );
            }
        }
        for _ in 0..100 {
            caller.progress().unwrap();
        }
        assert!(waits.iter().all(|ticket| caller.poll(*ticket).is_none()), "{fabric}");
        cluster.held.take().unwrap().leave().unwrap();
        for three in waits.chunks(3) {
            for ticket in &three[..2] {
                let error = caller.wait(*ticket, LONG).unwrap_err();
                assert_eq!(error.code, ErrorCode::PeerLost, "{fabric} {error}");
            }
            let answer = caller.wait(three[2], LONG).unwrap();
            assert_eq!(answer.result as i64, -7, "{fabric}");
        }
    });
}

#[test]
fn executor_without_node_serves_local_calls_and_accepts_another_node() {
    let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    let config = |name: &str| {
        Config::new(format!("call-global-{name}")).memory_bytes(1 << 20).cache_bytes(1 << 20)
    };
    let [first, second] = ["first", "second"]
        .map(|name| Node::create_on(&config(name), Arc::clone(&fabric)).unwrap());
    let [one, two] = [&first, &second].map(|node| node.session().unwrap().alloc(8).unwrap());
    let mut server = CallServer::listen(&fabric, "calls", &ServerOptions::default()).unwrap();
    server.make_region(0, 64, Access::ALL).unwrap();
    server.share(&first).unwrap();
    let mut caller = Caller::begin(&fabric, "calls", &CallerOptions::default()).unwrap();
    let register = |server: &mut CallServer, caller: &mut Caller, text: &str| {
        while !caller.begin_register(text.as_bytes()).unwrap() {
            server.progress();
            caller.progress().unwrap();
        }
        loop {
            server.progress();
            caller.progress().unwrap();
            if let Some(programs) = caller.registered() {
                return programs.map(|mut programs| programs.remove(0));
            }
        }
    };
    let call = |server: &mut CallServer, caller: &mut Caller, program: &Program, words: &[u64]| {
        let ticket =
            caller.invoke(program, &parameters(words), CallOptions::new()).unwrap().unwrap();
        loop {
            caller.progress().unwrap();
            server.progress();
            if let Some(end) = caller.poll(ticket) {
                return end.map(|answer| answer.result);
            }
        }
    };
    let (_, loads) = programs::HELPERS[0];
    let [add, load, told, loads] =
        [ADD, LOAD, READ, loads].map(|text| register(&mut server, &mut caller, text).unwrap());
    let lost = |end: Result<u64, Error>| end.unwrap_err().code == ErrorCode::PeerLost;
    let (read_one, add_one) = ([one.to_bits()], [one.to_bits(), 3]);
    assert_eq!(call(&mut server, &mut caller, &add, &add_one), Ok(0));
    assert_eq!(call(&mut server, &mut caller, &told, &read_one), Ok(0));
    first.leave().unwrap();
    // The second time, the executor holds nothing of the node.
    for round in 0..2 {
        assert!(lost(call(&mut server, &mut caller, &add, &add_one)), "{round}");
        assert!(lost(call(&mut server, &mut caller, &load, &read_one)), "{round}");
        let status = call(&mut server, &mut caller, &told, &read_one).unwrap();
        assert_eq!(status.cast_signed(), status::PEER_LOST, "{round}");
        assert_eq!(call(&mut server, &mut caller, &loads, &[8, 0]), Ok(0));
        server.unshare().unwrap();
    }
    let refused = register(&mut server, &mut caller, STORE).unwrap_err();
    assert_eq!(refused.code, ErrorCode::ExecutorLacks, "{refused}");
    server.share(&second).unwrap();
    assert_eq!(call(&mut server, &mut caller, &add, &[two.to_bits(), 3]), Ok(0));
    assert_eq!(call(&mut server, &mut caller, &load, &[two.to_bits()]), Ok(3));
}

#[test]
fn executor_without_node_refuses_global_programs_with_remedy() {
    crate::over::over("mem", &ServerOptions::default(), |ends| {
        let mut caller = ends.caller(&CallerOptions::default());
        let error = caller.register(LOAD.as_bytes()).unwrap_err();
        assert_eq!(error.code, ErrorCode::ExecutorLacks, "{error}");
        assert!(error.detail.contains("`load`") && error.detail.contains("share"), "{error}");
    });
    cluster("mem", 2, false, |cluster| {
        let mut caller = cluster.caller();
        let load = register(&mut caller, LOAD);
        let error = caller
            .invoke(&load, &parameters(&[0]), CallOptions::new().site(Site::Local))
            .unwrap_err();
        assert_eq!(error.code, ErrorCode::ExecutorLacks, "{error}");
        caller.share(&cluster.nodes[0]).unwrap();
        let word = cluster.nodes[1].session().unwrap().alloc(8).unwrap();
        assert_eq!(result(&mut caller, Site::Local, LOAD, &[word.to_bits()]), 0);
    });
}
