//! A fabric that records every request that its ports post, and counts arrivals.

use farside_base::{Completion, CompletionKind, Receive, Work};
use farside_fabric::{Fabric, FabricError, Parts, Port, PortSpec};
use std::sync::{Arc, Mutex, PoisonError};

/// A posted request.
#[derive(Clone, Debug)]
pub(crate) struct Posted {
    pub(crate) kind: CompletionKind,
    pub(crate) bytes: u64,
    /// Offset and bytes of its local slices.
    pub(crate) slices: Vec<(u64, u32)>,
    /// Offset in the peer's region.
    pub(crate) to: Option<u64>,
}

/// Recorded requests and receives.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    pub(crate) posted: Vec<Posted>,
    /// Number of posted receives.
    pub(crate) receives: usize,
    /// Number of consumed receives.
    pub(crate) arrived: usize,
}

/// The fabric of a node with its record.
#[derive(Clone)]
pub(crate) struct RecordingFabric {
    inner: Arc<dyn Fabric>,
    record: Arc<Mutex<Record>>,
}

impl RecordingFabric {
    pub(crate) fn new(inner: Arc<dyn Fabric>) -> Self {
        Self { inner, record: Arc::default() }
    }

    /// Returns and resets the record.
    pub(crate) fn take(&self) -> Record {
        std::mem::take(&mut self.record.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Fabric for RecordingFabric {
    farside_fabric::forward!(control);

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
    farside_fabric::forward!(common, link_events, arm, waiter, connect, import, close, may_land);

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
        let posted = self.inner.post_receives(receives);
        let mut record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        record.receives += posted.accepted;
        posted
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
}
