//! Calls in every form, which must agree: with local and with remote memory.

use farside_rmc::helpers::{Call, Helper, HelperEffect};
use farside_rmc::run::{Buffers, Far, Lent, Machine, Near, Outcome, Reply, Request, Stop};
use farside_rmc::{Limits, Verified};

use crate::host::TestHost;

/// Numbers by chance, the same for the same seed.
pub(crate) struct SeededRandom(u64);

impl SeededRandom {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 16) % bound
    }

    pub(crate) fn bytes(&mut self, length: usize) -> Vec<u8> {
        (0..length).map(|_| self.below(256) as u8).collect()
    }

    /// The numbers below `count` in some order.
    pub(crate) fn order(&mut self, count: usize) -> Vec<usize> {
        let mut order: Vec<_> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at, self.below(at as u64 + 1) as usize);
        }
        order
    }
}

/// What came of a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Done {
    pub(crate) outcome: Outcome,
    pub(crate) output: Vec<u8>,
    /// How often it suspended far from the memory.
    pub(crate) accesses: u64,
    /// How often of these for a lock.
    pub(crate) locks: u64,
}

impl Done {
    /// What it returned, as a signed number.
    pub(crate) fn result(&self) -> i64 {
        match self.outcome {
            Outcome::Returned(result) => result as i64,
            _ => panic!("{self:?}"),
        }
    }
}

/// A call with remote memory, which suspends at each access.
pub(crate) struct Stepped {
    verified: Verified,
    machine: Machine,
    /// Its own variables.
    own: Vec<u8>,
    pub(crate) accesses: u64,
    locks: u64,
}

impl Stepped {
    pub(crate) fn new(verified: &Verified, parameters: &[u8]) -> Self {
        let mut machine = Machine::new();
        machine.start(verified, parameters, Limits::DEFAULT.budget).unwrap();
        let own = own(verified);
        Self { verified: verified.clone(), machine, own, accesses: 0, locks: 0 }
    }

    /// Runs to the next access and carries it out; the outcome when there is none any more.
    pub(crate) fn step(&mut self, host: &mut TestHost) -> Option<Outcome> {
        let lent = Lent { own: &mut self.own, shared: &mut [] };
        match self.machine.run(&self.verified, lent, &mut Far) {
            Outcome::Suspended(request) => self.answer(&request, host).map(Outcome::Stopped),
            outcome => Some(outcome),
        }
    }

    fn answer(&mut self, request: &Request, host: &mut TestHost) -> Option<Stop> {
        self.accesses += 1;
        self.locks += u64::from(request.call == Call::Lock);
        let program = self.verified.program();
        let lent = Lent { own: &mut self.own, shared: &mut [] };
        let input = |at: usize| {
            let span = request.inputs[at];
            if span.length == 0 {
                return &[][..];
            }
            self.machine.bytes(program, &lent, span).expect("the request is of this machine")
        };
        let mut output = vec![0; request.output.map_or(0, |span| span.length as usize)];
        let [region, offset, ..] = request.arguments;
        let reply = match request.call {
            Call::LoadU64 => host.load_u64(region, offset),
            Call::Read => host.read(region, offset, &mut output),
            _ => {
                let buffers = Buffers { inputs: [input(0), input(1)], output: &mut output };
                host.perform(request, buffers)
            }
        };
        match reply {
            Reply::Now(result) => {
                let lent = Lent { own: &mut self.own, shared: &mut [] };
                self.machine.answer(program, lent, result, &output).unwrap();
                None
            }
            _ => {
                let helper = Helper::with_number(request.call as u32).unwrap();
                assert_eq!(helper.effect, HelperEffect::Word, "{request:?}");
                Some(self.machine.refuse().unwrap())
            }
        }
    }

    pub(crate) fn output(&self) -> &[u8] {
        self.machine.output()
    }

    /// Goes on at another place: only its bytes do.
    fn moved(&mut self) {
        let bytes = self.machine.to_bytes();
        self.machine = Machine::from_bytes(&self.verified, &bytes).unwrap();
    }
}

/// Variables of the program as they are before its first call.
fn own(verified: &Verified) -> Vec<u8> {
    verified.program().variables.own.clone()
}

/// Runs a call in every form on the same memory. `host` is afterwards as the call left it.
pub(crate) fn call(verified: &Verified, host: &mut TestHost, parameters: &[u8]) -> Done {
    let before = host.clone();
    let mut machine = Machine::new();
    machine.start(verified, parameters, Limits::DEFAULT.budget).unwrap();
    let mut variables = own(verified);
    let lent = Lent { own: &mut variables, shared: &mut [] };
    let outcome = machine.run(verified, lent, host);
    let output = machine.output().to_vec();

    let mut other = before.clone();
    let mut checked = Machine::new();
    checked.start(verified, parameters, Limits::DEFAULT.budget).unwrap();
    let mut variables = own(verified);
    let lent = Lent { own: &mut variables, shared: &mut [] };
    let same = checked.run_checked(verified.program(), lent, &mut other);
    assert_eq!((outcome, &output[..]), (same, checked.output()));
    assert_eq!(host.regions, other.regions);

    #[cfg(all(target_arch = "x86_64", target_os = "linux"))]
    compiled(verified, &before, parameters, (outcome, &output, host));

    let mut far = before;
    let mut stepped = Stepped::new(verified, parameters);
    let same = loop {
        if let Some(outcome) = stepped.step(&mut far) {
            break outcome;
        }
        if stepped.accesses < 200 {
            stepped.moved();
        }
    };
    assert_eq!((outcome, &output[..]), (same, stepped.output()));
    assert_eq!(host.regions, far.regions);
    Done { outcome, output, accesses: stepped.accesses, locks: stepped.locks }
}

#[cfg(all(target_arch = "x86_64", target_os = "linux"))]
fn compiled(
    verified: &Verified,
    before: &TestHost,
    parameters: &[u8],
    (outcome, output, expected): (Outcome, &[u8], &TestHost),
) {
    use farside_rmc::run::native::{Compiled, NativeRegion};

    let compiled = Compiled::new(verified.clone()).unwrap();
    let mut host = before.clone();
    let mut machine = Machine::new();
    machine.start(compiled.verified(), parameters, Limits::DEFAULT.budget).unwrap();
    let mut variables = own(verified);
    let lent = Lent { own: &mut variables, shared: &mut [] };
    let same = compiled.run(&mut machine, lent, &[], &mut host);
    assert_eq!((outcome, output), (same, machine.output()));
    assert_eq!(expected.regions, host.regions);
    // If nothing is written, machine code may read the memory directly.
    if expected.regions == before.regions && variables.is_empty() {
        let regions: Vec<_> = before.regions.iter().map(|bytes| NativeRegion::of(bytes)).collect();
        machine.start(compiled.verified(), parameters, Limits::DEFAULT.budget).unwrap();
        let same = compiled.run(&mut machine, Lent::default(), &regions, &mut host);
        assert_eq!((outcome, output), (same, machine.output()));
    }
}

/// Puts words into a region.
pub(crate) fn put(host: &mut TestHost, region: usize, offset: u64, words: &[u64]) {
    let at = offset as usize;
    for (place, word) in host.regions[region][at..].chunks_exact_mut(8).zip(words) {
        place.copy_from_slice(&word.to_le_bytes());
    }
}

/// A word of a region.
pub(crate) fn word(host: &TestHost, region: usize, offset: u64) -> u64 {
    let at = offset as usize;
    u64::from_le_bytes(host.regions[region][at..at + 8].try_into().unwrap())
}
