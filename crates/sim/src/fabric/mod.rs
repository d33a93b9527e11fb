//! The simulated fabric: many nodes in one thread, virtual time, every schedule that the declared capabilities permit.
//!
//! It follows the model of RDMA on TSO machines (Ambal, Dongol, Eran, Klimis, Lahav, Raad: *Semantics of Remote Direct
//! Memory Access*, OOPSLA 2024) and the order table of IBTA 10.8.3.3, and is as weak as they allow:
//!
//! | what | how |
//! | --- | --- |
//! | local bytes of a WRITE or SEND | read at any time between posting and arrival |
//! | WRITE | lands later, in pieces cut between 64-byte lines (anywhere, where `words` permits or memory has `Access::RELAXED_ORDERING`); with `byte_order` in rising order, else in any |
//! | WRITE with [`SimOptions::write_by_read`] | its bytes are read when the target asks for them, after it has arrived, and are all in memory when it completes |
//! | completed WRITE | with `completion_means_placed` all of it is in memory; else maybe nothing yet |
//! | READ | samples piece by piece in any order, and lands in local memory likewise |
//! | atomic | one step with `AtomicScope::System`; else load and store apart, excluding only other atomics on that word |
//! | order of a link | with `message_order` WRITEs and SENDs take effect in order, READs and atomics after the WRITEs before them; READs and atomics may be overtaken by anything (`WorkFlags::fence` forbids it); without it, none |
//! | order between links | none |
//! | completions | in the order of posting per link, with any delay |
//! | SEND without a receive | stops `post` or waits, as declared |
//! | death | requests in flight: those answered take effect; of the rest a prefix (a subset without order), the last WRITE of it in part |
//! | loss between hosts ([`SimOptions::silence_ns`]) | within that time; death of the peer and closing of the link are distinguished from other causes |
//! | loss | each survivor notices it at an independent time, after everything that had arrived from the dead node |
//!
//! Everything is drawn from one seed: the same seed and calls give the same transcript ([`SimNet::fingerprint`]).
//!
//! With [`SimOptions::hardware`] delays come from the queues of a [`HardwareProfile`], and there is one schedule, legal
//! for the same capabilities, for every seed:
//!
//! | what | with a hardware profile |
//! | --- | --- |
//! | local bytes | read when the send engine takes the request |
//! | WRITE, SEND, READ | take effect in one piece, when the last packet and the bus allow |
//! | WRITE | answered on arrival, as adapters do, unless `completion_means_placed` |
//! | atomic | one step at the adapter's atomic unit |
//! | events of one instant | in the order in which they were caused |
//! | death, loss | as without a profile: what is lost is drawn |
//!
//! Programs take no time unless the caller charges them: [`SimNet::take_counts`] returns their operations, and
//! [`stage`](crate::stage) charges them to clocks.
//!
//! Any capabilities can be declared; constants of this module, such as [`EFA`], are those of the protocols of 001
//! Table 1.
//!
//! Not modelled: threads, real time, and the reordering of the processors' own accesses.

mod control;
mod hardware;
mod options;
mod paths;
mod port;
mod profiles;
mod program;
mod request;
mod requester;
mod responder;
mod timing;
mod transcript;
mod world;

#[cfg(test)]
mod hardware_tests;
#[cfg(test)]
mod profile_tests;
#[cfg(test)]
mod scene;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use world::{NodeKey, World};

pub use hardware::{CONNECTX5_ROCE, HardwareProfile, NO_TIME};
pub use options::{DelayRange, INFINIBAND, SHARED_MEMORY, SimOptions, UNORDERED};
pub use paths::{Path, Traffic};
pub use port::SimFabric;
pub use profiles::{ADAPTIVE_ROUTING, EFA, ONE_RMA};
pub use program::{EPYC_7742, NO_COSTS, ProcessorCosts, ProgramCounts};
pub use transcript::TranscriptLine;
pub use world::Marks;

/// A simulated network and its clock. A clone is the same network.
///
/// Guarantees: all of its behaviour follows from the seed, the options and the order of calls.
#[derive(Clone)]
pub struct SimNet {
    world: Arc<Mutex<World>>,
}

impl SimNet {
    /// A network without nodes at time zero.
    pub fn new(seed: u64, options: SimOptions) -> Self {
        Self { world: Arc::new(Mutex::new(World::new(seed, options))) }
    }

    /// Returns the fabric of the living node of this name, and creates the node if there is none; after
    /// [`kill`](Self::kill) the same name creates a new node without any state of the old one.
    pub fn fabric(&self, node: &str) -> Arc<SimFabric> {
        let key = self.lock().node_named(node);
        Arc::new(SimFabric::new(self.clone(), key))
    }

    /// Performs the next event and moves the clock to it; false when nothing can happen. Which
    /// event is next was drawn at random, by the delays and among equals.
    pub fn step(&self) -> bool {
        self.lock().step()
    }

    /// Performs the next event, if there is one. Returns the number of the node at which the program may notice it.
    pub(crate) fn step_touching(&self) -> Option<Option<usize>> {
        Some(self.lock().step_touching()?.map(|node| node.0))
    }

    /// The number of the living node of this name.
    pub(crate) fn living_number(&self, node: &str) -> Option<usize> {
        self.lock().find_node(node).map(|node| node.0)
    }

    /// The number of the living node of this name, which is made if there is none.
    pub(crate) fn node_number(&self, node: &str) -> usize {
        self.lock().node_named(node).0
    }

    /// Virtual time.
    pub fn now_ns(&self) -> u64 {
        self.lock().now_ns
    }

    /// When the next event happens, if there is one.
    pub fn next_event_ns(&self) -> Option<u64> {
        self.lock().next_event_ns()
    }

    /// Steps until nothing can happen; how many events that were. It ends: each request causes a
    /// bounded number of events, and what waits for a program waits without events.
    pub fn run_until_idle(&self) -> u64 {
        let mut events = 0;
        while self.step() {
            events += 1;
        }
        events
    }

    /// Performs everything up to `at_ns` and sets the clock to it; how many events that were.
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

    /// Kills a node: its ports stop answering, and every linked survivor will be notified. Returns false if no such
    /// node lives.
    pub fn kill(&self, node: &str) -> bool {
        self.with_node(node, World::kill)
    }

    /// Stops a node's program as by SIGSTOP: it polls nothing and posts nothing. Peers still reach
    /// its memory if the fabric is `one_sided`; else they wait too. False when no such node lives.
    pub fn pause(&self, node: &str) -> bool {
        self.with_node(node, |world, node| {
            let adapter = !world.options.capabilities.one_sided;
            world.freeze(node, adapter);
        })
    }

    /// Stops a node's program and its adapter, as when a whole machine stalls. False when no such
    /// node lives.
    pub fn freeze(&self, node: &str) -> bool {
        self.with_node(node, |world, node| world.freeze(node, true))
    }

    /// Resumes a paused or frozen node. Returns false if no such node lives.
    pub fn resume(&self, node: &str) -> bool {
        self.with_node(node, World::resume)
    }

    /// Breaks every link between two living nodes, as when a cable is pulled for longer than the adapters retry. The
    /// nodes may reconnect. Returns false if one of them is dead.
    pub fn cut(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::cut)
    }

    /// Partitions two nodes: breaks every link between them, and drops everything until they are [mended](Self::mend).
    /// Returns false if one of them is dead.
    pub fn part(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::part_nodes)
    }

    /// Makes two nodes reachable for each other again. Returns false if one of them is dead.
    pub fn mend(&self, one: &str, other: &str) -> bool {
        self.with_nodes(one, other, World::mend_nodes)
    }

    /// Whether a node of this name lives and its program runs.
    pub fn runs(&self, node: &str) -> bool {
        let world = self.lock();
        let node = world.find_node(node);
        node.is_some_and(|node| !world.nodes[node.0].paused)
    }

    /// What it was made with.
    pub fn options(&self) -> SimOptions {
        self.lock().options
    }

    /// What it was made with.
    pub fn seed(&self) -> u64 {
        self.lock().seed
    }

    /// How often the rare cases have happened.
    pub fn marks(&self) -> Marks {
        self.lock().marks
    }

    /// A fingerprint of all events and all bytes transferred so far: equal for equal runs.
    pub fn fingerprint(&self) -> u64 {
        self.lock().transcript.fingerprint()
    }

    /// The last events, oldest first.
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

    /// Nothing that panics runs under the lock except on a broken invariant; the state is usable.
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
