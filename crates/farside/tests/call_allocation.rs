//! Calls allocate nothing after warm-up, at either end, at every site. A separate test executable, since it counts
//! allocations of the whole process.

use farside::call::rmc::library::{HostWord, LibraryEntry, ListSearch};
use farside::call::{
    CallOptions, CallServer, Caller, CallerOptions, LearningOptions, PlaceModel, Placed, Prices,
    Processor, Program, ServerOptions, Site,
};
use farside::{Config, Node, NodeId};
use farside_base::Access;
use farside_fabric::Fabric;
use farside_fabric_shm::ShmFabric;
use stats_alloc::{INSTRUMENTED_SYSTEM, Region, StatsAlloc};
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: &StatsAlloc<System> = &INSTRUMENTED_SYSTEM;

const NODES: u64 = 16;

/// A caller and the executors that it needs, all on this thread.
struct Ends {
    host: CallServer,
    beside: CallServer,
    caller: Caller,
    search: Program,
    parameters: Vec<u8>,
}

fn fabric() -> Arc<dyn Fabric> {
    Arc::new(ShmFabric::new().expect("shared memory"))
}

impl Ends {
    /// Opens a caller of the executor with local memory, or of the one with remote memory.
    fn new(across: bool) -> Self {
        let names = ["host", "beside"]
            .map(|name| format!("call-allocation-{name}-{across}-{}", std::process::id()));
        let options = ServerOptions::default();
        let mut host = CallServer::listen(&fabric(), &names[0], &options).expect("a host");
        let memory = host.make_region(0, 4096, Access::ALL).expect("memory");
        for key in 1..=NODES {
            let next = if key == NODES { 0 } else { 64 + key * 24 };
            let node = [key, key * 10, next].map(u64::to_le_bytes).concat();
            memory.write(64 + (key - 1) * 24, &node).expect("within");
        }
        let address = host.address().expect("an address");
        let mut beside = CallServer::listen_with_host(&fabric(), &names[1], &address, &options)
            .expect("a processor");
        let to = if across { &beside } else { &host }.address().expect("an address");
        let mut caller =
            Caller::begin(&fabric(), &to, &CallerOptions::default()).expect("a caller");
        let object = LibraryEntry::with_name("list_search").expect("of the library").object;
        let mut begun = false;
        let search = loop {
            host.progress();
            beside.progress();
            caller.progress().expect("a living executor");
            begun = begun || caller.begin_register(object).expect("an object");
            if !beside.has_memory() {
                continue;
            }
            if let Some(programs) = caller.registered() {
                break programs.expect("a good program").remove(0);
            }
        };
        let head = HostWord::new(0, 64).expect("a place");
        let parameters = ListSearch { head, key: NODES }.to_bytes();
        Self { host, beside, caller, search, parameters }
    }

    /// Runs several calls concurrently, until each has its answer.
    fn round(&mut self, runs: Site) {
        let mut tickets = [None; 8];
        for ticket in &mut tickets {
            let begun =
                self.caller.invoke(&self.search, &self.parameters, CallOptions::new().site(runs));
            *ticket = begun.expect("a call");
            assert!(ticket.is_some(), "there are 32 slots");
        }
        while tickets.iter().any(Option::is_some) {
            self.caller.progress().expect("a living executor");
            self.host.progress();
            self.beside.progress();
            for ticket in &mut tickets {
                if let Some(end) = ticket.and_then(|ticket| self.caller.poll(ticket)) {
                    assert_eq!(end.expect("an answer").result, NODES * 10);
                    *ticket = None;
                }
            }
        }
    }
}

/// Repeats a round until many in a row allocate nothing; buffers grow up to the largest burst before.
fn until_quiet(what: &str, mut round: impl FnMut()) {
    let (mut quiet, mut rounds) = (0, 0);
    while quiet < 200 {
        let before = Region::new(ALLOCATOR);
        round();
        let change = before.change();
        let counted = change.allocations + change.reallocations;
        quiet = if counted == 0 { quiet + 1 } else { 0 };
        rounds += 1;
        assert!(rounds < 5_000, "{what}: still after {rounds} rounds: {change:?}");
    }
}

/// Counts how often it was called.
const COUNTS: &[u8] = b"
    .program counts
    .own 8
    r1 = own 0
    r0 = *(u64 *)(r1 + 0)
    r0 += 1
    *(u64 *)(r1 + 0) = r0
    exit
";

/// Choosing a place, or finding that of a state, allocates nothing either.
fn placed() {
    let Ends { mut host, mut beside, mut caller, search, parameters } = Ends::new(false);
    let counts = loop {
        host.progress();
        caller.progress().expect("a living executor");
        let _ = caller.begin_register(COUNTS).expect("an object");
        if let Some(programs) = caller.registered() {
            break programs.expect("a good program").remove(0);
        }
    };
    let model = |name: &str, core, round_trip_ns, access_ns| PlaceModel {
        name: name.into(),
        core,
        round_trip_ns,
        start_ns: 0,
        access_ns,
        call_bytes: 32,
        access_bytes: 0,
    };
    let mut placed = Placed::new(&fabric(), Prices::LATENCY, LearningOptions::default());
    let here = (Site::Local, model("here", Processor::Client, 0, 1_000));
    let there = (Site::Remote, model("there", Processor::Host, 10_000, 100));
    placed.add(caller, &[here, there]).expect("two places");
    let search = placed.add_program(vec![search]).expect("a program");
    let counts = placed.add_program(vec![counts]).expect("a program");
    let mut counted = 0;
    until_quiet("placed", || {
        let hints = [Some(1), Some(64), None];
        for (program, hint) in [search, counts].iter().flat_map(|of| hints.map(|hint| (*of, hint)))
        {
            let mut options = CallOptions::new();
            options.accesses = hint;
            let begun = placed.begin(program, &parameters, options).expect("a call");
            let ticket = begun.expect("a slot");
            loop {
                placed.progress().expect("a living executor");
                host.progress();
                beside.progress();
                if let Some(end) = placed.poll(ticket) {
                    counted += u64::from(program == counts);
                    let expected = if program == counts { counted } else { NODES * 10 };
                    assert_eq!(end.expect("an answer").answer.result, expected);
                    break;
                }
            }
        }
    });
}

/// Loads a word that another session has written, so that each load misses; and stores to its line.
const LOAD_AND_STORE: &[u8] = b"
    r6 = *(u64 *)(r1 + 0)
    r1 = r6
    call global_load_u64
    r7 = r0
    r1 = r6
    r1 += 1024
    r2 = r7
    call global_store_u64
    r0 = r7
    exit
";

/// A miss of the global memory allocates nothing either, nor does the waiting call.
fn global() {
    let config = Config::new(format!("call-allocation-{}", std::process::id()))
        .memory_bytes(1 << 20)
        .cache_bytes(1 << 20)
        .direct_reads(false);
    let first = Node::create_on(&config, fabric()).expect("a node");
    let second = Node::join_on(&config, fabric()).expect("another");
    let mut session = first.session().expect("a session");
    let word = session.alloc_on(4096, NodeId(0)).expect("memory");
    let Ends { mut host, beside: _, mut caller, .. } = Ends::new(false);
    host.share(&second).expect("a node");
    let load = loop {
        host.progress();
        caller.progress().expect("a living executor");
        let _ = caller.begin_register(LOAD_AND_STORE).expect("an object");
        if let Some(programs) = caller.registered() {
            break programs.expect("a good program").remove(0);
        }
    };
    let mut written = 0;
    until_quiet("global", || {
        written += 1;
        for at in [0, 1024] {
            let address = word.to_bits() + at;
            let address = farside::GlobalAddress::from_bits(address).expect("an address");
            session.write_u64(address, written).expect("a write");
        }
        session.fence().expect("a fence");
        let ticket = caller
            .invoke(&load, &word.to_bits().to_le_bytes(), CallOptions::new())
            .expect("a call");
        let ticket = ticket.expect("a slot");
        loop {
            caller.progress().expect("a living executor");
            host.progress();
            if let Some(end) = caller.poll(ticket) {
                assert_eq!(end.expect("an answer").result, written);
                break;
            }
        }
    });
    let misses = second.stats().misses;
    assert!(misses >= 2 * written, "{misses} of {written}: the loads must miss");
}

#[test]
fn calls_allocate_nothing_after_warm_up() {
    for (across, runs) in [(false, Site::Remote), (false, Site::Local), (true, Site::Remote)] {
        let mut ends = Ends::new(across);
        until_quiet(&format!("{across} {runs:?}"), || ends.round(runs));
    }
    placed();
    global();
}
