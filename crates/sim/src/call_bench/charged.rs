//! A fabric that charges the program for arriving calls: scheduling a call takes time before anything is posted for it.

use crate::fabric::SimNet;
use farside_base::{Completion, CompletionKind};
use farside_fabric::{Fabric, FabricError, Port, PortSpec};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The cost of each message that arrives at a node, charged to its program; it may be changed at any time.
#[derive(Clone, Debug, Default)]
pub(super) struct ArrivalCost(Arc<AtomicU64>);

impl ArrivalCost {
    pub(super) fn set(&self, ns: u64) {
        self.0.store(ns, Ordering::Relaxed);
    }
}

/// The fabric of a node that charges its program.
pub(super) struct Charged {
    pub(super) inner: Arc<dyn Fabric>,
    pub(super) net: SimNet,
    pub(super) arrival_cost: ArrivalCost,
}

impl Fabric for Charged {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let (inner, net) = (self.inner.open(spec)?, self.net.clone());
        Ok(Box::new(ChargedPort { inner, net, arrival_cost: self.arrival_cost.clone() }))
    }
}

struct ChargedPort {
    inner: Box<dyn Port>,
    net: SimNet,
    arrival_cost: ArrivalCost,
}

impl Port for ChargedPort {
    farside_fabric::forward!(
        common,
        post,
        post_receives,
        link_events,
        arm,
        waiter,
        connect,
        import,
        close,
        may_land
    );

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = self.inner.poll(out);
        let received = |done: &&Completion| {
            matches!(done.kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate)
        };
        let messages = out[..count].iter().filter(received).count() as u64;
        self.net.spend_ns(messages * self.arrival_cost.0.load(Ordering::Relaxed));
        count
    }
}
