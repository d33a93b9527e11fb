//! The simulated fabric: many nodes in one thread, in virtual time, with every schedule that the declared
//! capabilities permit.
//!
//! It follows the model of RDMA on TSO machines (Ambal, Dongol, Eran, Klimis, Lahav, Raad: *Semantics of Remote
//! Direct Memory Access*, OOPSLA 2024) and the order table of IBTA 10.8.3.3, and is as weak as they allow:
//!
//! | subject | behaviour |
//! | --- | --- |
//! | local bytes of a WRITE or SEND | read at any time between posting and arrival |
//! | WRITE | placed after its arrival, in pieces cut between 64-byte lines (anywhere, if `words` permits or memory has `Access::RELAXED_ORDERING`); in rising order with `byte_order`, else in any order |
//! | WRITE with [`SimOptions::write_by_read`] | its bytes are read when the target requests them, after its arrival, and are all in memory when it completes |
//! | completed WRITE | all of it is in memory with `completion_means_placed`; else possibly none |
//! | ATOMIC WRITE, with [`Capabilities::atomic_write`](farside_base::Capabilities) | one step, after all earlier requests of its link |
//! | READ | samples piece by piece in any order, and is placed in local memory likewise |
//! | atomic | one step with `AtomicScope::System`; else a separate load and store that exclude only other atomics on that word |
//! | FLUSH, with [`Capabilities::flush`](farside_base::Capabilities) | completes when all earlier requests of its link have taken effect; may be overtaken as a READ; to persistence, the bytes are in the persistent domain then ([`NvmSocket`]) |
//! | loss of power | keeps any subset of the 64-byte lines that nothing has confirmed as persistent ([`SimNet::track_crashes`]) |
//! | order of a link | with `message_order`, WRITEs and SENDs take effect in order, READs and atomics after the preceding WRITEs; READs and atomics may be overtaken by any request (`WorkFlags::fence` forbids it); without it, none |
//! | order between links | none |
//! | completions | in the order of posting per link, with any delay |
//! | SEND without a receive | stops `post` or waits, as declared |
//! | death | of the requests in flight, the answered ones take effect; of the rest a prefix (a subset without order), the last WRITE of it in part |
//! | loss between hosts ([`SimOptions::silence_ns`]) | detected within that time; death of the peer and closing of the link are distinguished from other causes |
//! | loss | each survivor detects it at an independent time, after everything that had arrived from the dead node |
//!
//! Everything is drawn from one seed: the same seed and calls give the same transcript ([`SimNet::fingerprint`]).
//!
//! With [`SimOptions::hardware`], delays come from the queues of a [`HardwareProfile`], and every seed has the same
//! schedule, which is legal for the same capabilities:
//!
//! | subject | behaviour with a hardware profile |
//! | --- | --- |
//! | local bytes | read when the send engine takes the request |
//! | WRITE, SEND, READ | take effect in one piece, after the last packet and the bus transfer |
//! | WRITE | answered on arrival, as adapters do, unless `completion_means_placed` |
//! | atomic | one step at the adapter's atomic unit |
//! | persistent memory | of the nodes of [`SimNet::place_persistent`]: times, counters and durability of a [`NvmSocket`] |
//! | simultaneous events | in the order in which they were caused |
//! | death, loss | as without a profile: the lost requests are drawn |
//!
//! Programs take no time unless the caller charges them: [`SimNet::take_counts`] returns the counts of their
//! operations, and [`stage`](crate::stage) charges them to clocks.
//!
//! Any capabilities can be declared; constants of this module, such as [`EFA`], are those of the protocols of 001
//! Table 1.
//!
//! Not modelled: threads, real time, and reordering of accesses within a processor.

mod connectx3;
mod control;
mod crash;
mod delays;
mod hardware;
mod locality;
mod nvm;
mod optane;
mod options;
mod paths;
mod persistent;
mod port;
mod profiles;
mod program;
mod request;
mod requester;
mod resource;
mod responder;
mod timing;
mod tracked;
mod transcript;
mod world;

#[cfg(test)]
mod hardware_tests;
#[cfg(test)]
mod locality_tests;
#[cfg(test)]
mod persistent_tests;
#[cfg(test)]
mod profile_tests;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use world::{NodeKey, World};

pub use connectx3::{CONNECTX3_IB, E5_2640_V2, VERBS_CONNECTX3};
pub use crash::CrashDomain;
pub use hardware::{CONNECTX5_ROCE, HardwareProfile, NO_TIME};
pub use locality::{ADAPTER_PORTS, AdapterCaches, SocketCosts, SocketPlacement};
pub use nvm::{
    NVM_LINE_BYTES, NvmAccess, NvmCounters, NvmProfile, NvmSocket, NvmWriteTimes, NvmWriter,
};
pub use optane::{
    ADAPTERS_200G, CXL_NVM, NEXT_NVM, OPTANE_CX5, OPTANE_NVM, VERBS_CONNECTX5, VERBS_FLUSH,
    XEON_5215M,
};
pub use options::{DelayRange, INFINIBAND, SHARED_MEMORY, SimOptions, UNORDERED};
pub use paths::{Path, Traffic};
pub use persistent::ProcessorAccess;
pub use port::SimFabric;
pub use profiles::{ADAPTIVE_ROUTING, EFA, ONE_RMA};
pub use program::{EPYC_7742, NO_COSTS, ProcessorCosts, ProgramCounts};
pub use transcript::TranscriptLine;
pub use world::Marks;

/// A simulated network and its clock. Clones share the same network.
///
/// Guarantees: its behaviour is a function of the seed, the options and the order of calls.
#[derive(Clone)]
pub struct SimNet {
    world: Arc<Mutex<World>>,
}

impl SimNet {
    /// Creates a network without nodes at time zero.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, options))) }
    }

    /// Returns the fabric of the living node of this name, and creates the node if there is none; after
    /// [`kill`](Self::kill) the same name creates a new node without any state of the old one.
    pub fn fabric(&self, node: &str) -> Arc<SimFabric> {
        let key = self.lock().node_named(node);
        Arc::new(SimFabric::new(self.clone(), key))
    }

    /// Performs the next event and moves the clock to it; false if no event is scheduled. The delays and the order of
    /// simultaneous events are drawn at random.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Performs the next event, if there is one. Returns the number of the node at which the program may notice it.
    pub(crate) fn step_touching(&self) -> Option<Option<usize>> {
        Some(self.lock().step_touching()?.map(|node| node.0))
    }

    /// Returns the number of the living node of this name.
    pub(crate) fn living_number(&self, node: &str) -> Option<usize> {
        self.lock().find_node(node).map(|node| node.0)
    }

    /// Returns the number of the living node of this name, and creates the node if there is none.
    pub(crate) fn node_number(&self, node: &str) -> usize {
        self.lock().node_named(node).0
    }

    /// Returns the virtual time.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// Returns the time of the next event, if there is one.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.lock().next_event_ns()
    }

    /// Steps until no event is scheduled, and returns the number of events. It terminates: each request causes a
    /// bounded number of events, and requests that wait for a program schedule none.
    pub fn run_until_idle(&self) -> u64 {
        let mut events = 0;
        while self.step() {
            events += 1;
        }
        events
    }

    /// Performs all events up to `at_ns`, sets the clock to it, and returns the number of events.
    pub fn run_until_ns(&self, at_ns: u64) -> u64 {
        let mut events = 0;
        while self.next_event_ns().is_some_and(|next_ns| next_ns <= at_ns) {
            self.step();
            events += 1;
        }
        let mut world = self.lock();
        world.now_ns = world.now_ns.max(at_ns);
        events
    }

    /// Kills a node: its ports stop answering, and every linked survivor will be notified. Returns false if there is
    /// no living node of this name.
    pub fn kill(&self, node: &str) -> bool {
        self.with_node(node, World::kill)
    }

    /// Stops a node's program as by SIGSTOP: it polls nothing and posts nothing. Peers still reach its memory if the
    /// fabric is `one_sided`; else their requests wait too. Returns false if there is no living node of this name.
    pub fn pause(&self, node: &str) -> bool {
        self.with_node(node, |world, node| {
            let adapter = !world.options.capabilities.one_sided;
            world.freeze(node, adapter);
        })
    }

    /// Stops a node's program and its adapter, as if the whole machine stalled. Returns false if there is no living
    /// node of this name.
    pub fn freeze(&self, node: &str) -> bool {
        self.with_node(node, |world, node| world.freeze(node, true))
    }

    /// Resumes a paused or frozen node. Returns false if there is no living node of this name.
    pub fn resume(&self, node: &str) -> bool {
        self.with_node(node, World::resume)
    }

    /// Breaks every link between two living nodes, like a cable that is unplugged for longer than the adapters retry.
    /// The nodes may reconnect. Returns false if one of them is dead.
    pub fn cut(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::cut)
    }

    /// Partitions two nodes: breaks every link between them, and drops all messages until the partition is
    /// [mended](Self::mend). Returns false if one of them is dead.
    pub fn part(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::part_nodes)
    }

    /// Ends the partition of two nodes. Returns false if one of them is dead.
    pub fn mend(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::mend_nodes)
    }

    /// Whether a node of this name lives and its program runs.
    pub fn runs(&self, node: &str) -> bool {
        let world = self.lock();
        let node = world.find_node(node);
        node.is_some_and(|node| !world.nodes[node.0].paused)
    }

    /// Returns the options of the network.
    pub fn options(&self) -> SimOptions {
        self.lock().options
    }

    /// Returns the seed of the network.
    pub fn seed(&self) -> u64 {
        self.lock().seed
    }

    /// Returns how often each rare case has happened.
    pub fn marks(&self) -> Marks {
        self.lock().marks
    }

    /// Returns a fingerprint of all events and all bytes transferred so far: equal for equal runs.
    pub fn fingerprint(&self) -> u64 {
        self.lock().transcript.fingerprint()
    }

    /// Returns the last events, oldest first.
    pub fn transcript(&self) -> Vec<TranscriptLine> {
        self.lock().transcript.lines().copied().collect()
    }

    fn with_node(&self, name: &str, act: impl FnOnce(&mut World, NodeKey)) -> bool {
        let mut world = self.lock();
        let Some(node) = world.find_node(name) else {
            return false;
        };
        act(&mut world, node);
        true
    }

    fn with_nodes(
        &self,
        one: &str,
        other: &str,
        act: impl FnOnce(&mut World, NodeKey, NodeKey),
    ) -> bool {
        let mut world = self.lock();
        let (Some(one), Some(other)) = (world.find_node(one), world.find_node(other)) else {
            return false;
        };
        act(&mut world, one, other);
        true
    }

    /// Code under the lock panics only on a broken invariant, so the state of a poisoned lock is usable.
    fn lock(&self) -> MutexGuard<'_, World> {
        self.world.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for SimNet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let world = self.lock();
        write!(f, "SimNet(seed={} at_ns={} {})", world.seed, world.now_ns, world.options)
    }
}
