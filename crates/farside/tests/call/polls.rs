//! How many polls of an executor a short call waits while another caller keeps it busy, counted with all of them on
//! one thread.

use crate::programs;
use farside::call::rmc::helpers::status;
use farside::call::{CallOptions, CallServer, Caller, CallerOptions, Program, ServerOptions};
use farside_base::{Access, Capabilities, RegionId};
use farside_fabric::{Arena, Fabric, FabricError, MemFabric, Port, PortSpec, Region, RegionSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most polls of a short call. One in which it arrives, those in which the other caller has its share, and one in
/// which its answer is sent.
const POLLS_MAX: usize = 8;
/// Most slices of a poll, during which no events are handled here, since all run on one thread: 8 us of them.
const SLICES_MAX: usize = 8_000 / TICK_NS as usize + 1;
const REGION_BYTES: u64 = 1 << 20;

/// A fabric with a deterministic clock: each reading advances it by a fixed step, so that polls are the same on
/// every machine.
struct Ticking {
    inner: MemFabric,
    ticks: AtomicU64,
}

/// Long enough that slices adapt to their minimum.
const TICK_NS: u64 = 4_000;

impl Fabric for Ticking {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn lease_ns(&self) -> u64 {
        self.inner.lease_ns()
    }

    fn time_ns(&self) -> u64 {
        self.ticks.fetch_add(1, Ordering::Relaxed) * TICK_NS
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.inner.register(spec)
    }

    fn register_memory(&self, memory: Arena, access: Access) -> Result<Region, FabricError> {
        self.inner.register_memory(memory, access)
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.inner.deregister(region)
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        self.inner.open(spec)
    }
}

/// An executor, a caller with short calls, another caller, and the fabric with the clock.
struct Three {
    fabric: Arc<dyn Fabric>,
    server: CallServer,
    quick: Caller,
    other: Caller,
    short: Program,
}

impl Three {
    fn new() -> Self {
        let fabric: Arc<dyn Fabric> =
            Arc::new(Ticking { inner: MemFabric::new(), ticks: AtomicU64::new(0) });
        let options = ServerOptions::default();
        let mut server = CallServer::listen(&fabric, "polls", &options).unwrap();
        server.make_region(0, REGION_BYTES, Access::ALL).unwrap();
        let begin = || Caller::begin(&fabric, "polls", &CallerOptions::default()).unwrap();
        let (mut quick, mut other) = (begin(), begin());
        while !quick.is_connected() || !other.is_connected() {
            server.progress();
            quick.progress().unwrap();
            other.progress().unwrap();
        }
        let short = register(&mut server, &mut quick, b".program short\nr0 = 7\nexit").remove(0);
        Self { fabric, server, quick, other, short }
    }

    /// Runs a short call; fails unless it is answered within [`POLLS_MAX`] polls.
    fn short_call(&mut self, beside: &str) {
        let ticket = self.quick.invoke(&self.short, &[], CallOptions::new()).unwrap().unwrap();
        for _ in 0..POLLS_MAX {
            self.quick.progress().unwrap();
            self.server.progress();
            self.quick.progress().unwrap();
            if let Some(answer) = self.quick.poll(ticket) {
                assert_eq!(answer.unwrap().result, 7, "during {beside}");
                return;
            }
        }
        panic!("during {beside} a short call takes more than {POLLS_MAX} polls");
    }
}

fn register(server: &mut CallServer, caller: &mut Caller, object: &[u8]) -> Vec<Program> {
    while !caller.begin_register(object).unwrap() {
        server.progress();
        caller.progress().unwrap();
    }
    loop {
        caller.progress().unwrap();
        server.progress();
        if let Some(programs) = caller.registered() {
            return programs.unwrap();
        }
    }
}

/// Its verification walks 100,000 instructions, as no counter bounds its iterations.
const LONG_PROOF: &[u8] =
    b".program long_proof\nr0 = 1\nagain:\nr0 *= 16777259\nr0 ^= 12345\nif r0 != 0 goto again\nexit";

#[test]
fn long_registration_does_not_delay_other_callers() {
    let mut three = Three::new();
    assert!(three.other.begin_register(LONG_PROOF).unwrap());
    let mut answered = 0;
    let programs = loop {
        three.other.progress().unwrap();
        if let Some(programs) = three.other.registered() {
            break programs.unwrap();
        }
        three.short_call("a registration");
        answered += 1;
    };
    assert_eq!(programs[0].name, "long_proof");
    // A slice walks 64 instructions at most.
    assert!(answered >= 100_000 / 64 / SLICES_MAX / POLLS_MAX, "only {answered} calls meanwhile");
}

#[test]
fn caller_leaving_during_registration_is_cleaned_up() {
    let mut three = Three::new();
    assert!(three.other.begin_register(LONG_PROOF).unwrap());
    for _ in 0..10 {
        three.other.progress().unwrap();
        three.server.progress();
    }
    assert!(three.other.registered().is_none(), "it takes longer");
    drop(three.other);
    while three.server.sessions() > 1 {
        three.server.progress();
    }
    assert_eq!(three.server.programs(), 1);
    // The same slot serves the next registration.
    let programs = register(&mut three.server, &mut three.quick, LONG_PROOF);
    assert_eq!((programs.len(), three.server.programs()), (1, 2));
}

#[test]
fn helpers_with_long_buffers_do_not_delay_other_callers() {
    const LONG: &[(&str, &str)] = &[
        ("crc32c_of", "r1 = 0\nr2 = 0\nr3 = 1048576\nr4 = 0\ncall crc32c_of"),
        ("xxhash64_of", "r1 = 0\nr2 = 0\nr3 = 1048576\nr4 = 0\ncall xxhash64_of"),
        ("read", ".own 65536\nr1 = 0\nr2 = 0\nr3 = own 0\nr4 = 65536\ncall read"),
        ("write", ".own 65536\nr1 = 0\nr2 = 0\nr3 = own 0\nr4 = 65536\ncall write"),
        ("crc32c", ".own 65536\nr1 = own 0\nr2 = 65536\nr3 = 0\ncall crc32c"),
        (
            "compress",
            ".own 65536\n.shared 65536\nr1 = own 0\nr2 = 65536\nr3 = shared 0\nr4 = 65536\ncall compress",
        ),
    ];
    for (helper, body) in LONG {
        let mut three = Three::new();
        let text = format!("{body}\nr0 = 1\nexit");
        let long = register(&mut three.server, &mut three.other, text.as_bytes()).remove(0);
        let ticket = three.other.invoke(&long, &[], CallOptions::new()).unwrap().unwrap();
        let mut answered = 0;
        let answer = loop {
            three.other.progress().unwrap();
            if let Some(answer) = three.other.poll(ticket) {
                break answer.unwrap();
            }
            three.short_call(helper);
            answered += 1;
        };
        assert_eq!(answer.result, 1, "{helper}");
        // Slices adapt to 128 bytes of the call's own memory, or 512 of other memory.
        let least = 65_536 / 512 / SLICES_MAX / POLLS_MAX;
        assert!(answered > least && least > 1, "{helper}: only {answered} calls meanwhile");
    }
}

#[test]
fn lock_is_busy_after_a_hundred_milliseconds() {
    let mut three = Three::new();
    let object = programs::LOCK_AND_WAIT.as_bytes();
    let holds = register(&mut three.server, &mut three.other, object).remove(0);
    let waits = register(&mut three.server, &mut three.quick, object).remove(0);
    // The word never changes.
    let parameters = programs::parameters(&[0, u64::MAX]);
    let held = three.other.invoke(&holds, &parameters, CallOptions::new()).unwrap().unwrap();
    for _ in 0..POLLS_MAX {
        three.other.progress().unwrap();
        three.server.progress();
    }
    let ticket = three.quick.invoke(&waits, &parameters, CallOptions::new()).unwrap().unwrap();
    let begun_ns = three.fabric.time_ns();
    let answer = loop {
        three.quick.progress().unwrap();
        three.server.progress();
        if let Some(answer) = three.quick.poll(ticket) {
            break answer.unwrap();
        }
    };
    // On this clock each poll takes some microseconds, and nothing else does.
    let waited_ns = three.fabric.time_ns() - begun_ns;
    assert_eq!(answer.result, status::BUSY as u64);
    assert!((100_000_000..101_000_000).contains(&waited_ns), "{waited_ns} ns");
    three.other.progress().unwrap();
    assert!(three.other.poll(held).is_none(), "it still has the lock");
}
