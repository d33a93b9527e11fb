//! Operation counts and costs of the programs on simulated nodes; uncharged programs take no time.

use super::SimNet;
use super::world::{PortKey, World};

/// Port operations of the program of one node. Calls while it is paused do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramCounts {
    /// Calls of `post`.
    pub posts: u64,
    /// Work requests accepted by the ports.
    pub requests: u64,
    /// Doorbells: one for each link of each `post`.
    pub doorbells: u64,
    /// Calls of `poll`.
    pub polls: u64,
    /// Calls of `poll` that found nothing.
    pub empty_polls: u64,
    /// Completions returned by `poll`.
    pub completions: u64,
    /// Calls of `post_receives`.
    pub receive_posts: u64,
    /// Receives accepted by the ports.
    pub receives: u64,
    /// Calls of `arm`.
    pub arms: u64,
}

impl ProgramCounts {
    fn add(&mut self, other: &Self) {
        self.posts += other.posts;
        self.requests += other.requests;
        self.doorbells += other.doorbells;
        self.polls += other.polls;
        self.empty_polls += other.empty_polls;
        self.completions += other.completions;
        self.receive_posts += other.receive_posts;
        self.receives += other.receives;
        self.arms += other.arms;
    }
}

/// Processor time of the operations of programs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorCosts {
    /// Building one work request.
    pub post_ns: u64,
    /// Ringing one doorbell.
    pub doorbell_ns: u64,
    /// One `poll`, independent of its result.
    pub poll_ns: u64,
    /// Each completion that `poll` returns.
    pub completion_ns: u64,
    /// Building one receive.
    pub receive_ns: u64,
    /// Posting the receives of one call to the adapter.
    pub receive_post_ns: u64,
    /// Requesting an interrupt.
    pub arm_ns: u64,
    /// Time from the interrupt until a sleeping thread runs.
    pub wake_ns: u64,
    /// Loading a cached word.
    pub load_ns: u64,
    /// Loading a cache line that an adapter or another core has written.
    pub miss_ns: u64,
    /// Copying, in bytes per nanosecond.
    pub copy_bytes_per_ns: u64,
    /// Clearing, in bytes per nanosecond.
    pub zero_bytes_per_ns: u64,
    /// Comparing or hashing, in bytes per nanosecond.
    pub compare_bytes_per_ns: u64,
}

/// One core of the EPYC 7742 of 001 §6, 2.25 GHz (up to 3.4 GHz).
///
/// Estimates of the order of published ones: a single request with its doorbell 130 ns, which gives the 7 to 8
/// million a second that one thread posts without lists; the doorbell write is most of it, as in Kalia et al.,
/// *Design Guidelines for High Performance RDMA Systems*, USENIX ATC 2016, which advises one doorbell for several
/// requests. A miss to main memory about 100 ns, copies about 10 GB/s a core, clearing twice as fast, since it reads
/// nothing, and some microseconds from an interrupt to the sleeper.
pub const EPYC_7742: ProcessorCosts = ProcessorCosts {
    post_ns: 30,
    doorbell_ns: 100,
    poll_ns: 15,
    completion_ns: 25,
    receive_ns: 20,
    receive_post_ns: 20,
    arm_ns: 60,
    wake_ns: 4_000,
    load_ns: 2,
    miss_ns: 100,
    copy_bytes_per_ns: 10,
    zero_bytes_per_ns: 20,
    compare_bytes_per_ns: 20,
};

/// A processor that takes no time, for models with other charging rules.
pub const NO_COSTS: ProcessorCosts = ProcessorCosts {
    post_ns: 0,
    doorbell_ns: 0,
    poll_ns: 0,
    completion_ns: 0,
    receive_ns: 0,
    receive_post_ns: 0,
    arm_ns: 0,
    wake_ns: 0,
    load_ns: 0,
    miss_ns: 0,
    copy_bytes_per_ns: 0,
    zero_bytes_per_ns: 0,
    compare_bytes_per_ns: 0,
};

impl ProcessorCosts {
    /// Returns the processor time of these port operations.
    pub const fn port_ns(&self, did: &ProgramCounts) -> u64 {
        did.requests * self.post_ns
            + did.doorbells * self.doorbell_ns
            + did.polls * self.poll_ns
            + did.completions * self.completion_ns
            + did.receives * self.receive_ns
            + did.receive_posts * self.receive_post_ns
            + did.arms * self.arm_ns
    }
}

/// The clock of the program that runs now.
#[derive(Clone, Copy, Debug)]
pub(super) struct ProgramClock {
    at_ns: u64,
    costs: ProcessorCosts,
}

impl SimNet {
    /// Returns and resets the operation counts of this node's program; all zero if there is no living node of this
    /// name.
    pub fn take_counts(&self, node: &str) -> ProgramCounts {
        let mut world = self.lock();
        match world.find_node(node) {
            Some(node) => std::mem::take(&mut world.nodes[node.0].counts),
            None => ProgramCounts::default(),
        }
    }

    /// Starts to charge a program with a clock at `at_ns`, until [`end_program`](Self::end_program). Each call of a
    /// port advances that clock by its cost; with a hardware profile requests are posted at its time, which may be
    /// later than that of the net.
    pub fn begin_program(&self, at_ns: u64, costs: ProcessorCosts) {
        self.lock().program = Some(ProgramClock { at_ns, costs });
    }

    /// Charges the running program for `ns` of work outside the fabric, which delays its next posts. Without a
    /// program it does nothing.
    pub fn spend_ns(&self, ns: u64) {
        if let Some(program) = &mut self.lock().program {
            program.at_ns = program.at_ns.saturating_add(ns);
        }
    }

    /// Returns the clock of the running program; without one, the net's time.
    pub fn program_ns(&self) -> u64 {
        self.lock().program_ns()
    }

    /// Stops charging the program and returns its clock; without a program, the net's time.
    pub fn end_program(&self) -> u64 {
        let mut world = self.lock();
        let at_ns = world.program_ns();
        world.program = None;
        at_ns
    }
}

impl World {
    /// Time of the running program's current operation.
    pub(super) fn program_ns(&self) -> u64 {
        self.program.map_or(self.now_ns, |program| program.at_ns.max(self.now_ns))
    }

    /// Adds the operations to the counts of this port's node.
    pub(super) fn count(&mut self, port: PortKey, did: &ProgramCounts) {
        let node = self.port(port).node;
        self.nodes[node.0].counts.add(did);
    }

    /// Advances the clock of the running program by the cost of `did`.
    pub(super) fn charge(&mut self, did: &ProgramCounts) {
        if let Some(program) = &mut self.program {
            program.at_ns = program.at_ns.saturating_add(program.costs.port_ns(did));
        }
    }

    /// Counts and charges the operations.
    pub(super) fn count_and_charge(&mut self, port: PortKey, did: &ProgramCounts) {
        self.count(port, did);
        self.charge(did);
    }
}
