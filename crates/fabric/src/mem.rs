//! A fabric within one process: the readable reference of [`Fabric`] and [`Port`].
//!
//! Everything is in one [`MemState`] under one lock: regions, ports, links, receive queues. A request is
//! executed completely inside `post`, by the caller's thread, so it is never queued and its completion
//! is available when `post` returns. Clarity comes first, then speed; other fabrics are compared with
//! this one.
//!
//! Bounded: completions of requests by `outstanding_max` a port, completions of receives by the
//! depths of its receive queues, links and link events by `links_max`.
//!
//! Not modelled: requests in flight. Each is complete when `post` returns, so nothing has to be
//! cancelled.

mod execute;
mod state;

use crate::{
    Arena, Fabric, FabricError, HELLO_BYTES_MAX, LinkEvent, Port, PortSpec, Posted, Reached,
    Region, RegionSpec, SharedWord, Stop, ThreadWaiter, Waiter,
};
use farside_base::{
    Access, AtomicScope, BackPressure, Capabilities, Completion, FlushScope, LinkId, Receive,
    ReceiveQueueId, RegionId, RegionKind, RegionToken, RemoteRegionId, WordScope, Work,
};
use state::{MemState, PortNumber, ProcessNumber};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The capabilities of the in-process fabric: everything, with `byte_order` and mirrored regions only
/// if its arenas have them. Device memory is modelled as a kind of region with a budget of its own.
const CAPABILITIES: Capabilities = Capabilities {
    write: true,
    read: true,
    atomics: AtomicScope::System,
    extended_atomics: true,
    atomic_write: true,
    flush: FlushScope::Visible,
    own_memory: true,
    protected: false,
    send: true,
    immediate: true,
    shared_receive_queue: true,
    message_order: true,
    byte_order: Arena::RISING,
    words: WordScope::Any,
    completion_means_placed: true,
    one_sided: true,
    loads: true,
    sleep: true,
    receiver_not_ready: BackPressure::AtPost,
    inline_bytes_max: 256,
    send_bytes_max: 1 << 20,
    transfer_bytes_max: 1 << 30,
    slices_max: 16,
    outstanding_max: 1024,
    links_max: 1024,
    region_bytes_max: 1 << 40,
    mirrored_regions: Arena::MIRRORS,
    device_bytes_max: 256 << 10,
    device_words: true,
};

/// Most receives of one queue; their completions have room reserved.
const RECEIVES_MAX: usize = 1 << 16;

struct Network {
    capabilities: Capabilities,
    state: Mutex<MemState>,
}

impl Network {
    /// Nothing that panics runs under the lock except on a broken invariant; the state is usable.
    fn lock(&self) -> MutexGuard<'_, MemState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The in-process fabric. A clone is the same fabric; [`another`](Self::another) is a further one
/// that plays another process. Ports of all of them find each other by listen name.
#[derive(Clone)]
pub struct MemFabric {
    network: Arc<Network>,
    process: ProcessNumber,
}

impl MemFabric {
    /// Returns a fabric on a network of its own.
    pub fn new() -> Self {
        Self::with_capabilities(CAPABILITIES)
    }

    /// Returns a fabric that declares and grants only `capabilities`; what this fabric lacks stays
    /// missing, and sizes are cut to its own. For tests of restricted fabrics.
    pub fn with_capabilities(capabilities: Capabilities) -> Self {
        let network =
            Arc::new(Network { capabilities: within_own(capabilities), state: Mutex::default() });
        let process = network.lock().new_process();
        Self { network, process }
    }

    /// Returns a further fabric on the same network, with regions of its own: another process, as it were.
    pub fn another(&self) -> Self {
        Self { network: Arc::clone(&self.network), process: self.network.lock().new_process() }
    }
}

impl Default for MemFabric {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for MemFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemFabric(process {})", self.process.0)
    }
}

/// Returns the lesser of the requested and the available capabilities.
fn within_own(wanted: Capabilities) -> Capabilities {
    let own = CAPABILITIES;
    Capabilities {
        byte_order: wanted.byte_order && own.byte_order,
        message_order: true,
        completion_means_placed: true,
        one_sided: true,
        receiver_not_ready: own.receiver_not_ready,
        flush: wanted.flush.min(own.flush),
        words: wanted.words.min(own.words),
        protected: false,
        inline_bytes_max: wanted.inline_bytes_max.min(own.inline_bytes_max),
        send_bytes_max: wanted.send_bytes_max.min(own.send_bytes_max),
        transfer_bytes_max: wanted.transfer_bytes_max.min(own.transfer_bytes_max),
        slices_max: wanted.slices_max.clamp(1, own.slices_max),
        outstanding_max: wanted.outstanding_max.clamp(1, own.outstanding_max),
        links_max: wanted.links_max.min(own.links_max),
        region_bytes_max: wanted.region_bytes_max.min(own.region_bytes_max),
        mirrored_regions: wanted.mirrored_regions && own.mirrored_regions,
        device_bytes_max: wanted.device_bytes_max.min(own.device_bytes_max),
        ..wanted
    }
}

impl Fabric for MemFabric {
    fn name(&self) -> &'static str {
        "mem"
    }

    fn capabilities(&self) -> Capabilities {
        self.network.capabilities
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.network.lock().register(&self.network.capabilities, self.process, spec)
    }

    fn register_memory(&self, memory: Arena, access: Access) -> Result<Region, FabricError> {
        let has = &self.network.capabilities;
        let spec = RegionSpec { bytes: memory.len() as u64, access, kind: RegionKind::Memory };
        if !has.own_memory {
            return Err(FabricError::Lacks("own_memory"));
        }
        spec.check(has, 0)?;
        Ok(self.network.lock().add_region(self.process, memory, &spec))
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.network.lock().deregister(self.process, region)
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let waiter = Arc::new(ThreadWaiter::default());
        let number = self.network.lock().open(
            self.process,
            spec,
            Arc::clone(&waiter),
            &self.network.capabilities,
        )?;
        let address = spec.listen.clone();
        Ok(Box::new(MemPort { network: Arc::clone(&self.network), number, waiter, address }))
    }
}

struct MemPort {
    network: Arc<Network>,
    number: PortNumber,
    waiter: Arc<ThreadWaiter>,
    address: Option<String>,
}

impl Drop for MemPort {
    fn drop(&mut self) {
        self.network.lock().close_port(self.number);
    }
}

impl Port for MemPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let mut state = self.network.lock();
        take_each(work, |one| state.post(&self.network.capabilities, self.number, one))
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        let mut state = self.network.lock();
        take_each(receives, |one| state.post_receive(self.number, one))
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.network.lock().poll(self.number, out)
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        self.network.lock().link_events(self.number, out);
    }

    fn arm(&mut self) -> bool {
        !self.network.capabilities.sleep || self.network.lock().arm(self.number)
    }

    fn disarm(&mut self) {
        self.network.lock().disarm(self.number);
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.waiter) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.network.lock().wake_also(self.number, waiter);
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        if depth > RECEIVES_MAX {
            return Err(FabricError::Limit("receives"));
        }
        let created = self.network.lock().create_receive_queue(self.number, depth);
        created.ok_or(FabricError::Limit("receive queues"))
    }

    fn address(&self) -> Option<String> {
        self.address.clone()
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.network.lock().destroy_receive_queue(self.number, queue)
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        check_hello(hello)?;
        self.network.lock().connect(&self.network.capabilities, self.number, to, hello, receives)
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        check_hello(reply)?;
        self.network.lock().accept(&self.network.capabilities, self.number, link, reply, receives)
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        check_hello(reason)?;
        self.network.lock().refuse(self.number, link, reason)
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        self.network.lock().import(self.number, link, token)
    }

    fn reach(&self, link: LinkId, region: RemoteRegionId) -> Option<Reached> {
        self.network.lock().reach(self.number, link, region, Access::READ).map(Reached::new)
    }

    fn reach_word(&self, link: LinkId, region: RemoteRegionId, offset: u64) -> Option<SharedWord> {
        let access = Access::READ.with(Access::WRITE);
        let arena = self.network.lock().reach(self.number, link, region, access)?;
        SharedWord::new(&arena, offset).ok()
    }

    fn close(&mut self, link: LinkId) {
        self.network.lock().close(self.number, link);
    }

    fn path(&self, link: LinkId) -> String {
        self.network.lock().path(self.number, link)
    }

    fn trouble(&self, _link: LinkId) -> Option<String> {
        None
    }
}

fn check_hello(bytes: &[u8]) -> Result<(), FabricError> {
    if bytes.len() > HELLO_BYTES_MAX {
        return Err(FabricError::Limit("hello"));
    }
    Ok(())
}

/// Takes requests from the front until one is refused.
fn take_each<T>(requests: &[T], mut take: impl FnMut(&T) -> Result<(), Stop>) -> Posted {
    for (accepted, request) in requests.iter().enumerate() {
        if let Err(stop) = take(request) {
            return Posted { accepted, stop: Some(stop) };
        }
    }
    Posted { accepted: requests.len(), stop: None }
}
