//! A fabric that changes a part of what a sound end of a channel says: so a liar gets further into
//! a conversation than who talks at random.

use crate::random::Random;
use farside_base::{
    Access, Capabilities, Completion, LinkId, Operation, Receive, ReceiveQueueId, RegionId,
    RegionToken, RemoteRegionId, Source, Work,
};
use farside_fabric::{
    Arena, Fabric, FabricError, LinkEvent, Port, PortSpec, Posted, Reached, Region, RegionSpec,
    Waiter,
};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};

/// Lies about once in so many requests.
const LIE_EVERY: u64 = 24;

/// Changes a word of its own memory, which the other end may READ, once in so many polls.
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
    fn name(&self) -> &'static str {
        self.inner.name()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        let region = self.inner.register(spec)?;
        // What only its owner touches is nobody's business.
        if spec.access != Access::NONE {
            self.own.lock().unwrap().push(region.arena.clone());
        }
        Ok(region)
    }
    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.inner.deregister(region)
    }
    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, random) = (self.inner.open(spec)?, Random::new(self.seed));
        Ok(Box::new(LiarPort { inner, random, own: Arc::clone(&self.own) }))
    }
}

impl LiarPort {
    /// A number that is a little off, or quite.
    const fn bend(&mut self, number: u64) -> u64 {
        match self.random.below(4) {
            0 => number.wrapping_add(self.random.pick(&[1, 8, u64::MAX, 1 << 8, 1 << 16, 1 << 20])),
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
        let reach = if self.random.chance(2) { words.min(24) } else { words };
        let at = self.random.below(reach) * 8;
        let word = arena.load(at, Relaxed).unwrap();
        let bent = self.bend(word);
        arena.store(at, bent, Relaxed).unwrap();
    }

    /// The request with something changed.
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
                // A place out of bounds breaks the link at once.
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
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        for (accepted, one) in work.iter().enumerate() {
            let mut bytes = Vec::new();
            let lies = self.random.chance(LIE_EVERY);
            let operation = if lies { self.lie(one.operation, &mut bytes) } else { one.operation };
            let posted = self.inner.post(&[Work { operation, ..*one }]);
            if posted.accepted == 0 {
                return Posted { accepted, ..posted };
            }
        }
        Posted { accepted: work.len(), stop: None }
    }
    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        self.inner.post_receives(receives)
    }
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        if self.random.chance(SCRIBBLE_EVERY) {
            self.scribble();
        }
        self.inner.poll(out)
    }
    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.inner.link_events(out);
    }
    fn arm(&mut self) -> bool {
        self.inner.arm()
    }
    fn disarm(&mut self) {
        self.inner.disarm();
    }
    fn waiter(&self) -> Arc<dyn Waiter> {
        self.inner.waiter()
    }
    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        self.inner.create_receive_queue(depth)
    }
    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        self.inner.connect(to, hello, receives)
    }
    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        self.inner.accept(link, reply, receives)
    }
    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        self.inner.refuse(link, reason)
    }
    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        self.inner.import(link, token)
    }
    fn reach(&self, link: LinkId, region: RemoteRegionId) -> Option<Reached> {
        self.inner.reach(link, region)
    }
    fn close(&mut self, link: LinkId) {
        self.inner.close(link);
    }
    fn path(&self, link: LinkId) -> String {
        self.inner.path(link)
    }
}
