//! A fabric that corrupts some of the requests of a correct channel end, so that it gets further into the protocol
//! than random input.

use farside_base::{Access, Completion, Operation, Random, Source, Work};
use farside_fabric::{Arena, Fabric, FabricError, Port, PortSpec, Posted, Region, RegionSpec};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// One request in this many is corrupted.
const LIE_EVERY: u64 = 24;

/// One poll in this many changes a word of its registered memory, which the other end may READ.
const SCRIBBLE_EVERY: u64 = 100;

pub(crate) struct Liar {
    inner: Arc<dyn Fabric>,
    seed: u64,
    own: Arc<Mutex<Vec<Arena>>>,
}

impl Liar {
    pub(crate) fn new(inner: Arc<dyn Fabric>, seed: u64) -> Self {
        Self { inner, seed, own: Arc::default() }
    }
}

struct LiarPort {
    inner: Box<dyn Port>,
    random: Random,
    own: Arc<Mutex<Vec<Arena>>>,
}

impl Fabric for Liar {
    farside_fabric::forward!(
        name,
        host,
        lease_ns,
        time_ns,
        capabilities,
        deregister,
        register_memory
    );

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        let region = self.inner.register(spec)?;
        // Memory without remote access is not part of the protocol.
        if spec.access != Access::NONE {
            self.own.lock().unwrap().push(region.arena.clone());
        }
        Ok(region)
    }
    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, random) = (self.inner.open(spec)?, Random::new(self.seed));
        Ok(Box::new(LiarPort { inner, random, own: Arc::clone(&self.own) }))
    }
}

impl LiarPort {
    /// Returns a number slightly or completely changed.
    fn bend(&mut self, number: u64) -> u64 {
        match self.random.below(4) {
            0 => {
                number.wrapping_add(*self.random.pick(&[1, 8, u64::MAX, 1 << 8, 1 << 16, 1 << 20]))
            }
            1 => number ^ (1 << self.random.below(64)),
            2 => self.random.below(64),
            _ => self.random.word(),
        }
    }

    fn scribble(&mut self) {
        let own = self.own.lock().unwrap().clone();
        if own.is_empty() {
            return;
        }
        let arena = &own[self.random.below(own.len() as u64) as usize];
        let words = arena.len() as u64 / 8;
        let reach = if self.random.one_in(2) { words.min(24) } else { words };
        let at = self.random.below(reach) * 8;
        let word = arena.load(at, Relaxed).unwrap();
        let bent = self.bend(word);
        arena.store(at, bent, Relaxed).unwrap();
    }

    /// Returns the request with a corrupted part.
    fn lie<'a>(&mut self, operation: Operation<'a>, bytes: &'a mut Vec<u8>) -> Operation<'a> {
        let bend_source = |this: &mut Self, source: Source<'a>, bytes: &'a mut Vec<u8>| {
            let Source::Inline(true_bytes) = source else {
                return source;
            };
            bytes.extend_from_slice(true_bytes);
            match this.random.below(3) {
                0 => bytes.truncate(this.random.below(bytes.len() as u64 + 1) as usize),
                _ => {
                    let words = (bytes.len() / 8).max(1) as u64;
                    let at = this.random.below(words) as usize * 8;
                    let end = bytes.len().min(at + 8);
                    let mut word = [0; 8];
                    word[..end - at].copy_from_slice(&bytes[at..end]);
                    let bent = this.bend(u64::from_le_bytes(word)).to_le_bytes();
                    bytes[at..end].copy_from_slice(&bent[..end - at]);
                }
            }
            Source::Inline(&bytes[..])
        };
        match operation {
            Operation::Write { source, mut to, immediate } => {
                let which = self.random.below(3);
                let source = if which == 0 { bend_source(self, source, bytes) } else { source };
                // An offset out of bounds breaks the link at once.
                to.offset ^= if which == 1 { 8 << self.random.below(4) } else { 0 };
                let immediate = immediate.map(|it| match which {
                    2 => self.bend(u64::from(it)) as u32,
                    _ => it,
                });
                Operation::Write { source, to, immediate }
            }
            Operation::Send { source, immediate } => {
                let source = bend_source(self, source, bytes);
                let immediate = match self.random.below(4) {
                    0 => None,
                    _ => immediate.map(|it| self.bend(u64::from(it)) as u32),
                };
                Operation::Send { source, immediate }
            }
            Operation::FetchAdd { at, add, into } => {
                Operation::FetchAdd { at, add: self.bend(add), into }
            }
            other => other,
        }
    }
}

impl Port for LiarPort {
    farside_fabric::forward!(
        common,
        post_receives,
        link_events,
        arm,
        waiter,
        connect,
        import,
        close,
        may_land
    );

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        for (accepted, one) in work.iter().enumerate() {
            let mut bytes = Vec::new();
            let lies = self.random.one_in(LIE_EVERY);
            let operation = if lies { self.lie(one.operation, &mut bytes) } else { one.operation };
            let posted = self.inner.post(&[Work { operation, ..*one }]);
            if posted.accepted == 0 {
                return Posted { accepted, ..posted };
            }
        }
        Posted { accepted: work.len(), stop: None }
    }
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.random.one_in(SCRIBBLE_EVERY) {
            self.scribble();
        }
        self.inner.poll(out)
    }
}
