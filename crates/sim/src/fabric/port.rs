//! The interface of a simulated node: its fabric, ports and waiters.

use super::SimNet;
use super::program::ProgramCounts;
use super::world::{LinkEnd, NodeKey, PortKey, PortState, World};
use crate::scheduled;
use farside_base::{
    Access, Capabilities, Completion, LinkId, Receive, ReceiveQueueId, RegionId, RegionToken,
    RemoteRegionId, Work,
};
use farside_fabric::{
    Arena, Fabric, FabricError, HELLO_BYTES_MAX, LinkEvent, Port, PortSpec, Posted, Reached,
    Region, RegionSpec, SharedWord, Stop, Waiter,
};
use std::fmt;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

/// Maximum number of receives of one queue.
const RECEIVES_MAX: usize = 1 << 16;

/// The fabric of one node of a [`SimNet`].
///
/// All its calls return at once; the operations that they start progress only when the net [steps](SimNet::step). The
/// ports of a paused node report no completions and accept no requests.
#[derive(Clone)]
pub struct SimFabric {
    net: SimNet,
    node: NodeKey,
}

impl SimFabric {
    pub(super) fn new(net: SimNet, node: NodeKey) -> Self {
        Self { net, node }
    }

    fn living<T>(
        &self,
        with: impl FnOnce(&mut World) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let mut world = self.net.lock();
        if !world.nodes[self.node.0].alive {
            return Err(FabricError::PeerLost);
        }
        with(&mut world)
    }
}

impl fmt::Debug for SimFabric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimFabric({})", self.net.lock().nodes[self.node.0].name)
    }
}

impl Fabric for SimFabric {
    fn name(&self) -> &'static str {
        "sim"
    }

    fn capabilities(&self) -> Capabilities {
        self.net.lock().options.capabilities
    }

    fn host(&self) -> Option<SocketAddr> {
        self.net.lock().host(self.node)
    }

    fn lease_ns(&self) -> u64 {
        self.net.lock().options.silence_ns.unwrap_or_default()
    }

    fn time_ns(&self) -> u64 {
        self.net.lock().now_ns
    }

    fn register(&self, spec: &RegionSpec) -> Result<Region, FabricError> {
        self.living(|world| world.register(self.node, spec))
    }

    fn register_memory(&self, _memory: Arena, _access: Access) -> Result<Region, FabricError> {
        Err(FabricError::Lacks("own_memory"))
    }

    fn deregister(&self, region: RegionId) -> Result<(), FabricError> {
        self.living(|world| world.deregister(self.node, region))
    }

    fn open(&self, spec: &PortSpec) -> Result<Box<dyn Port>, FabricError> {
        let net = Arc::downgrade(&self.net.world);
        let waiter = Arc::new(SimWaiter { net, permit: Arc::default() });
        let port = self.living(|world| world.open(self.node, spec, waiter))?;
        Ok(Box::new(SimPort { net: self.net.clone(), port, name: spec.listen.clone() }))
    }
}

struct SimPort {
    net: SimNet,
    port: PortKey,
    name: Option<String>,
}

impl SimPort {
    fn end(&self, link: LinkId) -> LinkEnd {
        LinkEnd { port: self.port, link }
    }

    /// Runs a control call of a living node.
    fn control<T>(
        &self,
        call: impl FnOnce(&mut World) -> Result<T, FabricError>,
    ) -> Result<T, FabricError> {
        let mut world = self.net.lock();
        let node = world.port(self.port).node;
        if !world.nodes[node.0].alive {
            return Err(FabricError::PeerLost);
        }
        call(&mut world)
    }
}

/// Whether the program of this port runs: neither dead nor paused.
fn runs(world: &World, port: PortKey) -> bool {
    let node = &world.nodes[world.port(port).node.0];
    node.alive && !node.paused
}

impl Drop for SimPort {
    fn drop(&mut self) {
        let mut world = self.net.lock();
        if world.port(self.port).open {
            world.close_port(self.port);
        }
    }
}

impl Port for SimPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        let mut world = self.net.lock();
        if !runs(&world, self.port) {
            return take_each(work, false, |_| Ok(()));
        }
        let rung = world.ring(self.port, work);
        let posted = take_each(work, true, |one| {
            let rung_ns = rung.get(&one.link).copied().unwrap_or_default();
            world.post(self.port, one, rung_ns)
        });
        let requests = posted.accepted as u64;
        world.count(self.port, &ProgramCounts { posts: 1, requests, ..ProgramCounts::default() });
        drop(world);
        scheduled::yield_now();
        posted
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        let mut world = self.net.lock();
        let runs = runs(&world, self.port);
        let posted = take_each(receives, runs, |one| world.post_receive(self.port, one));
        if runs {
            let did = ProgramCounts {
                receive_posts: 1,
                receives: posted.accepted as u64,
                ..ProgramCounts::default()
            };
            world.count_and_charge(self.port, &did);
        }
        posted
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let mut world = self.net.lock();
        if !runs(&world, self.port) {
            return 0;
        }
        let count = world.port_mut(self.port).poll(out);
        for completion in &out[..count] {
            let (end, id) = (self.end(completion.link), completion.id.0);
            world.record("poll", end, id, completion.status as u64);
        }
        let did = ProgramCounts {
            polls: 1,
            empty_polls: u64::from(count == 0),
            completions: count as u64,
            ..ProgramCounts::default()
        };
        world.count_and_charge(self.port, &did);
        drop(world);
        scheduled::yield_now();
        count
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        let mut world = self.net.lock();
        if runs(&world, self.port) {
            world.port_mut(self.port).link_events(out);
        }
    }

    fn arm(&mut self) -> bool {
        let mut world = self.net.lock();
        if !world.options.capabilities.sleep {
            return true;
        }
        let did = ProgramCounts { arms: 1, ..ProgramCounts::default() };
        world.count_and_charge(self.port, &did);
        let port = world.port_mut(self.port);
        let something = !port.completions.is_empty() || !port.events.is_empty();
        port.armed = !something;
        something
    }

    fn disarm(&mut self) {
        self.net.lock().port_mut(self.port).armed = false;
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.net.lock().port(self.port).waiter) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.net.lock().port_mut(self.port).other_waiter = Some(waiter);
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        if depth > RECEIVES_MAX {
            return Err(FabricError::Limit("receives"));
        }
        self.control(|world| Ok(world.create_receive_queue(self.port, depth)))
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.control(|world| world.destroy_receive_queue(self.port, queue))
    }

    fn address(&self) -> Option<String> {
        let name = self.name.as_ref()?;
        let world = self.net.lock();
        Some(match world.host(world.port(self.port).node) {
            Some(host) => format!("{host}/{name}"),
            None => name.clone(),
        })
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        check_hello(hello)?;
        self.control(|world| world.connect(self.port, to, hello, receives))
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        check_hello(reply)?;
        self.control(|world| world.accept(self.end(link), reply, receives))
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        check_hello(reason)?;
        self.control(|world| world.refuse(self.end(link), reason))
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        self.control(|world| world.import(self.end(link), token))
    }

    fn reach(&self, link: LinkId, region: RemoteRegionId) -> Option<Reached> {
        self.net.lock().reach(self.end(link), region, Access::READ).map(Reached::new)
    }

    fn reach_word(&self, link: LinkId, region: RemoteRegionId, offset: u64) -> Option<SharedWord> {
        let access = Access::READ.with(Access::WRITE);
        let arena = self.net.lock().reach(self.end(link), region, access)?;
        SharedWord::new(&arena, offset).ok()
    }

    fn trouble(&self, _link: LinkId) -> Option<String> {
        None
    }

    fn close(&mut self, link: LinkId) {
        self.net.lock().close(self.end(link));
    }

    fn path(&self, link: LinkId) -> String {
        let world = self.net.lock();
        match world.port(self.port).links.get(link.0 as usize) {
            Some(end) => {
                let to = &world.node(end.peer).name;
                format!("sim: to {to}, seed {}, {:?}", world.seed, end.state)
            }
            None => "sim: no such link".to_owned(),
        }
    }
}

impl PortState {
    fn poll(&mut self, out: &mut [Completion]) -> usize {
        let count = out.len().min(self.completions.len());
        for (place, finished) in out.iter_mut().zip(self.completions.drain(..count)) {
            *place = finished.completion;
            match finished.queue {
                Some(queue) => self.queues[queue.0 as usize].unpolled -= 1,
                None => self.links[finished.completion.link.0 as usize].unpolled -= 1,
            }
        }
        count
    }

    /// Returns link events. A loss waits until the earlier messages have been polled.
    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        for _ in 0..self.events.len() {
            let Some(event) = self.events.pop_front() else {
                return;
            };
            match event {
                LinkEvent::Lost { link, .. } if self.has_message_of(link) => {
                    self.events.push_back(event);
                }
                event => out.push(event),
            }
        }
    }

    fn has_message_of(&self, link: LinkId) -> bool {
        let mut finished = self.completions.iter();
        finished.any(|one| one.queue.is_some() && one.completion.link == link)
    }
}

fn check_hello(bytes: &[u8]) -> Result<(), FabricError> {
    if bytes.len() > HELLO_BYTES_MAX {
        return Err(FabricError::Limit("hello"));
    }
    Ok(())
}

/// Accepts requests from the front until one is refused; none while the program is stopped.
fn take_each<T>(
    requests: &[T],
    runs: bool,
    mut take: impl FnMut(&T) -> Result<(), Stop>,
) -> Posted {
    for (accepted, request) in requests.iter().enumerate() {
        let taken = if runs { take(request) } else { Err(Stop::QueueFull) };
        if let Err(stop) = taken {
            return Posted { accepted, stop: Some(stop) };
        }
    }
    Posted { accepted: requests.len(), stop: None }
}

/// Sleeps by stepping the net, on the caller's thread, until something arrives at the port.
#[derive(Debug)]
pub(super) struct SimWaiter {
    net: Weak<Mutex<World>>,
    permit: Arc<AtomicBool>,
}

/// Maximum jump of the clock when a thread waits and no event is scheduled.
const IDLE_NS: u64 = 1_000_000;

impl Waiter for SimWaiter {
    /// Returns true also if no event is due before a distant time-out: other parts of this program must progress
    /// first.
    fn wait(&self, timeout: Option<Duration>) -> bool {
        if let Some(permitted) = scheduled::wait(&self.permit, timeout) {
            return permitted;
        }
        let Some(net) = self.net.upgrade() else {
            return true;
        };
        let mut world = net.lock().unwrap_or_else(PoisonError::into_inner);
        let timeout_ns = timeout
            .map_or(u64::MAX, |timeout| u64::try_from(timeout.as_nanos()).unwrap_or(u64::MAX));
        let end_ns = world.now_ns.saturating_add(timeout_ns);
        while !self.permit.swap(false, Ordering::Relaxed) {
            match world.next_event_ns() {
                Some(next_ns) if next_ns <= end_ns => {
                    world.step();
                }
                _ => {
                    let early = world.idle_until(end_ns);
                    drop(world);
                    std::thread::yield_now();
                    return early;
                }
            }
        }
        true
    }

    fn wake(&self) {
        self.permit.store(true, Ordering::Relaxed);
    }
}

impl World {
    /// Moves the clock towards `end_ns`. Returns whether it fell short.
    fn idle_until(&mut self, end_ns: u64) -> bool {
        let until_ns = end_ns.min(self.now_ns.saturating_add(IDLE_NS));
        let until_ns = self.next_event_ns().map_or(until_ns, |next_ns| until_ns.min(next_ns));
        self.now_ns = self.now_ns.max(until_ns);
        until_ns < end_ns
    }
}
