//! Words of lent regions, which machine code loads directly if permitted.

use crate::over::pair;
use crate::programs::parameters;
use farside::call::{CallOptions, CallServer, Caller, CallerOptions, Program, ServerOptions};
use farside::{Error, ErrorCode};
use farside_base::{Access, RegionKind};
use farside_fabric::{Fabric, RegionSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

farside_testkit::on_each_fabric! { mem shm tcp => (
    loads_reach_every_byte_of_the_region_and_no_others
    long_call_sees_changes_of_its_regions
)}

/// Returns the word of a region at an offset.
const WORD: &str = "
.program word
    r2 = *(u64 *)(r1 + 8)
    r1 = *(u64 *)(r1 + 0)
    call load_u64
    exit
";

/// Sums words of two regions alternately, this many times.
const SUM: &str = "
.program sum
    r6 = *(u64 *)(r1 + 0)
    r7 = *(u64 *)(r1 + 8)
    r8 = *(u64 *)(r1 + 16)
    r9 = 0
again:
    if r8 == 0 goto out
    r8 += -1
    r1 = r6
    r2 = r8
    r2 &= 7
    r2 <<= 3
    call load_u64
    r9 += r0
    r1 = r7
    r2 = r8
    r2 &= 7
    r2 <<= 3
    call load_u64
    r9 += r0
    goto again
out:
    r0 = r9
    exit
";

/// An executor and its caller, on one thread.
struct Both {
    fabric: Arc<dyn Fabric>,
    server: CallServer,
    caller: Caller,
}

impl Both {
    fn over(fabric: &str) -> Self {
        static TESTS: AtomicUsize = AtomicUsize::new(0);
        let number = TESTS.fetch_add(1, Ordering::Relaxed);
        let name = format!("call-words-{}-{number}", std::process::id());
        let (there, here) = pair(fabric);
        let server = CallServer::listen(&there, &name, &ServerOptions::default()).unwrap();
        let address = server.address().unwrap();
        let caller = Caller::begin(&here, &address, &CallerOptions::default()).unwrap();
        Self { fabric: there, server, caller }
    }

    fn progress(&mut self) {
        self.server.progress();
        self.caller.progress().unwrap();
    }

    fn register(&mut self, text: &str) -> Program {
        while !self.caller.begin_register(text.as_bytes()).unwrap() {
            self.progress();
        }
        loop {
            self.progress();
            if let Some(programs) = self.caller.registered() {
                return programs.unwrap().remove(0);
            }
        }
    }

    /// Calls a program, and runs `act` once the call has begun.
    fn call_and(
        &mut self,
        program: &Program,
        words: &[u64],
        act: impl FnOnce(&mut CallServer),
    ) -> Result<u64, Error> {
        let ticket =
            self.caller.invoke(program, &parameters(words), CallOptions::new()).unwrap().unwrap();
        while self.server.sessions() == 0 || !self.server.progress() {
            self.caller.progress().unwrap();
        }
        act(&mut self.server);
        loop {
            self.progress();
            if let Some(end) = self.caller.poll(ticket) {
                return end.map(|answer| answer.result);
            }
        }
    }

    fn call(&mut self, program: &Program, words: &[u64]) -> Result<u64, Error> {
        self.call_and(program, words, |_| ())
    }
}

fn denied(end: Result<u64, Error>) {
    let error = end.unwrap_err();
    assert_eq!(error.code, ErrorCode::CallStopped, "{error}");
    assert!(error.detail.contains("may not"), "{error}");
}

fn loads_reach_every_byte_of_the_region_and_no_others(fabric: &str) {
    let mut both = Both::over(fabric);
    let word = both.register(WORD);
    let memory = both.server.make_region(3, 45, Access::ALL).unwrap();
    let bytes: Vec<u8> = (1..=45).collect();
    memory.write(0, &bytes).unwrap();
    for at in 0..=37 {
        let expected = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        assert_eq!(both.call(&word, &[3, at as u64]), Ok(expected), "{fabric} {at}");
    }
    for at in [38, 44, 45, 64, u64::MAX - 7, u64::MAX] {
        denied(both.call(&word, &[3, at]));
    }
    for region in [0, 2, 4, 255, 256, u64::MAX] {
        denied(both.call(&word, &[region, 0]));
    }
    let spec = |access| RegionSpec { bytes: 64, access, kind: RegionKind::Memory };
    // A region lent without the right to read, and one that replaces another.
    let other = both.fabric.register(&spec(Access::WRITE)).unwrap();
    both.server.lend(3, &other);
    denied(both.call(&word, &[3, 0]));
    let other = both.fabric.register(&spec(Access::READ)).unwrap();
    other.arena.write(56, &7_u64.to_le_bytes()).unwrap();
    both.server.lend(3, &other);
    assert_eq!(both.call(&word, &[3, 56]), Ok(7));
    both.server.take_back(3).unwrap();
    denied(both.call(&word, &[3, 0]));
}

fn long_call_sees_changes_of_its_regions(fabric: &str) {
    const ITERATIONS: u64 = 50_000;
    let mut both = Both::over(fabric);
    let sum = both.register(SUM);
    let ones = [1_u64; 8].map(u64::to_le_bytes).concat();
    let tens = [10_u64; 8].map(u64::to_le_bytes).concat();
    let first = both.server.make_region(0, 64, Access::ALL).unwrap();
    let second = both.server.make_region(1, 64, Access::ALL).unwrap();
    first.write(0, &ones).unwrap();
    second.write(0, &tens).unwrap();
    assert_eq!(both.call(&sum, &[0, 1, ITERATIONS]), Ok(11 * ITERATIONS), "{fabric}");
    assert_eq!(both.call(&sum, &[1, 1, ITERATIONS]), Ok(20 * ITERATIONS), "{fabric}");
    // Other bytes in the same region, and another region under the same number.
    let end = both.call_and(&sum, &[0, 1, ITERATIONS], |_| second.write(0, &ones).unwrap());
    let seen = end.unwrap();
    assert!((2 * ITERATIONS..11 * ITERATIONS).contains(&seen), "{fabric} {seen}");
    let end = both.call_and(&sum, &[0, 1, ITERATIONS], |server| {
        server.make_region(1, 64, Access::ALL).unwrap().write(0, &tens).unwrap();
    });
    let seen = end.unwrap();
    assert!((2 * ITERATIONS + 1..11 * ITERATIONS).contains(&seen), "{fabric} {seen}");
    denied(both.call_and(&sum, &[0, 1, ITERATIONS], |server| {
        server.take_back(1).unwrap();
    }));
}
