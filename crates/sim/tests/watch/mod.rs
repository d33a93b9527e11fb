//! A fabric that writes down every request that its ports post, and counts what arrives there.

use farside_base::{
    Capabilities, Completion, CompletionKind, LinkId, Receive, ReceiveQueueId, RegionId,
    RegionToken, RemoteRegionId, Work,
};
use farside_fabric::{
    Fabric, FabricError, LinkEvent, Parts, Port, PortSpec, Region, RegionSpec, Waiter,
};
use std::sync::{Arc, Mutex, PoisonError};

/// A request that was posted.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) kind: CompletionKind,
    pub(crate) bytes: u64,
    /// Offset and bytes of its local slices.
    pub(crate) slices: Vec<(u64, u32)>,
    /// Where it goes in the peer's region.
    pub(crate) to: Option<u64>,
}

/// What was written down.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) posted: Vec<Posted>,
    /// Receives that took something.
    pub(crate) arrived: usize,
}

/// The fabric of a node with its record.
#[derive(Clone)]
pub(crate) struct Watch {
    inner: Arc<dyn Fabric>,
    record: Arc<Mutex<Record>>,
}

impl Watch {
    pub(crate) fn new(inner: Arc<dyn Fabric>) -> Self {
        Self { inner, record: Arc::default() }
    }

    /// What was written down since the last call.
    pub(crate) fn take(&self) -> Record {
        std::mem::take(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Fabric for Watch {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.inner.register(spec)
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.inner.deregister(region)
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let inner = self.inner.open(spec)?;
        Ok(Box::new(WatchPort { inner, record: Arc::clone(&self.record) }))
    }
}

struct WatchPort {
    inner: Box<dyn Port>,
    record: Arc<Mutex<Record>>,
}

impl Port for WatchPort {
    fn post(&mut self, work: &[Work<'_>]) -> farside_fabric::Posted {
        let posted = self.inner.post(work);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        for one in &work[..posted.accepted] {
            let parts = Parts::of(&one.operation);
            record.posted.push(Posted {
                kind: parts.kind,
                bytes: parts.bytes(),
                slices: parts.local.iter().map(|slice| (slice.offset, slice.bytes)).collect(),
                to: parts.remote.map(|remote| remote.offset),
            });
        }
        posted
    }

    fn post_receives(&mut self, receives: &[Receive]) -> farside_fabric::Posted {
        self.inner.post_receives(receives)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = self.inner.poll(out);
        let took = |one: &&Completion| {
            matches!(one.kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate)
        };
        let arrived = out[..count].iter().filter(took).count();
        self.record.lock().unwrap_or_else(PoisonError::into_inner).arrived += arrived;
        count
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

    fn close(&mut self, link: LinkId) {
        self.inner.close(link);
    }

    fn path(&self, link: LinkId) -> String {
        self.inner.path(link)
    }
}
