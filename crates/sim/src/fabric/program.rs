//! Counts and costs of what programs on simulated nodes do; without them, programs take no time.

use super::SimNet;
use super::world::{PortKey, World};

/// What the program of one node did with its ports. Calls while it is paused do not count.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct ProgramCounts {
    /// Calls of `post`.
    pub posts: u64,
    /// Work requests that were taken.
    pub requests: u64,
    /// Doorbells: one for each link of each `post`.
    pub doorbells: u64,
    /// Calls of `poll`.
    pub polls: u64,
    /// Those that found nothing.
    pub empty_polls: u64,
    /// Completions that they found.
    pub completions: u64,
    /// Calls of `post_receives`.
    pub receive_posts: u64,
    /// Receives that were taken.
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

/// What the things that programs do cost a processor.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ProcessorCosts {
    /// Building one work request.
    pub post_ns: u64,
    /// Ringing one doorbell.
    pub doorbell_ns: u64,
    /// One `poll`, whatever it finds.
    pub poll_ns: u64,
    /// Each completion that it finds.
    pub completion_ns: u64,
    /// Building one receive.
    pub receive_ns: u64,
    /// Telling the adapter of the receives of one call.
    pub receive_post_ns: u64,
    /// Asking for an interrupt.
    pub arm_ns: u64,
    /// From the interrupt until a sleeping thread runs.
    pub wake_ns: u64,
    /// Loading a word that is in the cache.
    pub load_ns: u64,
    /// Loading a line that an adapter or another core has written.
    pub miss_ns: u64,
    /// Copying.
    pub copy_bytes_per_ns: u64,
    /// Clearing.
    pub zero_bytes_per_ns: u64,
    /// Comparing or hashing.
    pub compare_bytes_per_ns: u64,
}

/// One core of the EPYC 7742 of 001 §6, 2.25 GHz (up to 3.4 GHz).
///
/// Estimates, in the order of published ones: a request alone with its doorbell 130 ns, which makes
/// the 7 to 8 million a second that one thread posts without lists; the write to the doorbell is most
/// of it, as in Kalia et al., *Design Guidelines for High Performance RDMA Systems*, USENIX ATC 2016,
/// which advises to ring once for several requests. A miss to main memory about 100 ns, copies about
/// 10 GB/s a core, clearing twice as fast, since it reads nothing, and some microseconds from an
/// interrupt to the sleeper.
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

/// A processor that takes no time, for models that charge by other rules.
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
    /// What work with ports costs.
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
    /// What the program of this node did since this was last asked; nothing when no such node lives.
    pub fn take_counts(&self, node: &str) -> ProgramCounts {
        let mut world = self.lock();
        match world.find_node(node) {
            Some(node) => std::mem::take(&mut world.nodes[node.0].counts),
            None => ProgramCounts::default(),
        }
    }

    /// Starts to charge a program with a clock at `at_ns`: each call of a port advances that clock by its cost, and
    /// with a hardware profile requests are posted at its time, which may be later than that of the net, until
    /// [`end_program`](Self::end_program).
    pub fn begin_program(&self, at_ns: u64, costs: ProcessorCosts) {
        self.lock().program = Some(ProgramClock { at_ns, costs });
    }

    /// The program that runs works for so long at something that is not the fabric's: what it posts
    /// next is posted later. Without a program it does nothing.
    pub fn spend_ns(&self, ns: u64) {
        if let Some(program) = &mut self.lock().program {
            program.at_ns = program.at_ns.saturating_add(ns);
        }
    }

    /// What the clock of the program that runs shows; without one, the net's time.
    pub fn program_ns(&self) -> u64 {
        self.lock().program_ns()
    }

    /// The program stops; its clock. Without a program, the net's time.
    pub fn end_program(&self) -> u64 {
        let mut world = self.lock();
        let at_ns = world.program_ns();
        world.program = None;
        at_ns
    }
}

impl World {
    /// When the program that runs does what it does now.
    pub(super) fn program_ns(&self) -> u64 {
        self.program.map_or(self.now_ns, |program| program.at_ns.max(self.now_ns))
    }

    /// Counts what the program of this port did.
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

    /// Both.
    pub(super) fn count_and_charge(&mut self, port: PortKey, did: &ProgramCounts) {
        self.count(port, did);
        self.charge(did);
    }
}
