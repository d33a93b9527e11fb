//! A fabric that truncates a message of its node, so that its peers accuse the node.

use farside_base::{Operation, Source, Work};
use farside_fabric::{Fabric, FabricError, Port, PortSpec, Posted};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

const HONEST: u8 = 0;
const ARMED: u8 = 1;
const TOLD: u8 = 2;

/// When the next message is truncated.
#[derive(Clone, Default)]
pub(crate) struct Lies(Arc<AtomicU8>);

impl Lies {
    pub(crate) fn arm(&self) {
        self.0.store(ARMED, Ordering::SeqCst);
    }

    pub(crate) fn are_told(&self) -> bool {
        self.0.load(Ordering::SeqCst) == TOLD
    }
}

pub(crate) struct Liar {
    inner: Arc<dyn Fabric>,
    lies: Lies,
}

struct LiarPort {
    inner: Box<dyn Port>,
    lies: Lies,
}

impl Liar {
    pub(crate) fn new(inner: Arc<dyn Fabric>) -> Self {
        Self { inner, lies: Lies(Arc::new(AtomicU8::new(HONEST))) }
    }

    pub(crate) fn lies(&self) -> Lies {
        self.lies.clone()
    }
}

impl Fabric for Liar {
    farside_fabric::forward!(control);

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let inner = self.inner.open(spec)?;
        Ok(Box::new(LiarPort { inner, lies: self.lies.clone() }))
    }
}

impl Port for LiarPort {
    farside_fabric::forward!(
        common,
        post_receives,
        poll,
        link_events,
        arm,
        waiter,
        connect,
        import,
        close,
        may_land
    );

    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let lies = &self.lies.0;
        if let [Work { operation: Operation::Send { source, immediate }, .. }] = work
            && let Source::Inline(bytes) = source
            && lies.compare_exchange(ARMED, TOLD, Ordering::SeqCst, Ordering::SeqCst).is_ok()
        {
            let (source, immediate) = (Source::Inline(&bytes[..20]), *immediate);
            let operation = Operation::Send { source, immediate };
            return self.inner.post(&[Work { operation, ..work[0] }]);
        }
        self.inner.post(work)
    }
}
