//! Simulation of whole nodes of the product (the real engine, machines, tags and sessions) on the simulated fabric,
//! in one thread, scheduled by a seed.
//!
//! A run has a *safety* part, in which tasks access shared words, lines and locks under network faults and possibly
//! the death of a node, and a *liveness* part: every task must complete, and all survivors must agree. A failure
//! names the seed, which reproduces it.

mod board;
pub mod restarts;
pub mod state;
mod worker;

use crate::fabric::{INFINIBAND, SHARED_MEMORY, SimNet, SimOptions};
use crate::linearizability::{HistoryCall, Register, RegisterOperation, check};
use board::Board;
pub use board::{OperationRecord, WordAction};
use farside::{
    AllocationHint, AllocationSpec, Config, Error, ErrorCode, GlobalAddress, Joining, Leaving,
    Limits, LineSize, Node, NodeId, Session,
};
use farside_base::Capabilities;
use farside_base::Random;
use std::cell::{Cell, RefCell};
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use worker::{BLOCK_BYTES, OwnWords, Worker};

/// The parameters of a run, drawn from its seed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Scenario {
    /// Seed of all random choices.
    pub seed: u64,
    /// Number of nodes of the cluster, each with memory.
    pub nodes: u16,
    /// Number of sessions on each node.
    pub sessions: u16,
    /// Number of shared words, spread over lines and homes.
    pub words: u16,
    /// Number of shared words per line.
    pub words_per_line: u16,
    /// Number of operations of each session.
    pub operations: u16,
    /// The node that is killed, and the number of events before that.
    pub kill: Option<(u16, u64)>,
    /// Whether it was drawn with faults, even if none was drawn.
    pub faults: bool,
    /// The node that leaves, and the number of events before that.
    pub leave: Option<(u16, u64)>,
    /// Number of sets of the cache: fewer sets cause more evictions.
    pub cache_sets: u16,
    /// Of a thousand operations, those that are writes and reads of words of the session alone, besides the usual ones.
    pub own_permille: u32,
    /// Network faults between nodes on separate hosts.
    pub weather: Option<Weather>,
}

/// Network faults between hosts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Weather {
    /// Number of times that all links between two nodes break and reconnect: either few, which only costs time, or so
    /// many that some nodes remove each other.
    pub cuts: u64,
    /// One side of a partition as a bit set, and the number of events before the partition.
    pub parting: Option<(u64, u64)>,
    /// Duration of the partition, in percent of the time after which a member is removed.
    pub lasts_percent: u64,
}

/// The silence that hosts tolerate with network faults; also the lease of members, with and without faults.
const SILENCE_NS: u64 = 10_000_000_000;

/// Number of consecutive cuts that end before any member is removed.
const FEW_CUTS: u64 = 3;

impl Weather {
    fn draw(random: &mut Random, nodes: u16) -> Self {
        let parting = random.chance(600).then(|| {
            let side = random.between(1, (1 << nodes) - 2);
            (side, random.between(10, 3_000))
        });
        Self {
            cuts: *random.pick(&[0, 1, 2, 3, 3, 100]),
            parting,
            lasts_percent: *random.pick(&[5, 50, 95, 105, 150, 400]),
        }
    }
}

impl Scenario {
    /// Draws the scenario of a seed with network faults between hosts: broken links and partitions. Some also kill a
    /// node.
    pub fn draw_weather(seed: u64) -> Self {
        let scenario = Self::draw(seed, seed.is_multiple_of(3));
        let mut random = Random::new(seed ^ 0x5eed_0f57_0815);
        let weather = Weather::draw(&mut random, scenario.nodes);
        if weather.parting.is_none() {
            return Self { weather: Some(weather), ..scenario };
        }
        // Few words, for many cache hits, also at isolated nodes.
        let (words, operations) = (random.between(1, 3) as u16, random.between(10, 25) as u16);
        Self { weather: Some(weather), words, operations, ..scenario }
    }

    /// Draws the scenario of a seed in which a node leaves while all others work.
    pub fn draw_leave(seed: u64) -> Self {
        let scenario = Self::draw(seed, false);
        let mut random = Random::new(seed ^ 0x1e_a7e5);
        let leaver = random.below(u64::from(scenario.nodes)) as u16;
        Self { leave: Some((leaver, random.between(10, 2_000))), ..scenario }
    }

    /// Draws the scenario of a seed; with `faults`, half of them kill a node.
    pub fn draw(seed: u64, faults: bool) -> Self {
        let mut random = Random::new(seed);
        let nodes = random.between(2, 4) as u16;
        let kill = (faults && random.chance(500))
            .then(|| (random.below(u64::from(nodes)) as u16, random.between(10, 3_000)));
        Self {
            seed,
            nodes,
            sessions: random.between(1, 2) as u16,
            words: random.between(2, 12) as u16,
            words_per_line: random.between(1, 3) as u16,
            operations: random.between(3, 25) as u16,
            kill,
            faults,
            leave: None,
            cache_sets: random.between(1, 2) as u16,
            own_permille: 0,
            weather: None,
        }
    }

    /// With sessions that mostly write and read words of their own, in more lines than the cache has frames.
    pub const fn with_own_writes(self) -> Self {
        let (words, words_per_line, cache_sets) = (12, 1, 1);
        Self { words, words_per_line, cache_sets, operations: 25, own_permille: 900, ..self }
    }
}

impl fmt::Display for Scenario {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "seed={} nodes={} sessions={} words={} per_line={} operations={} kill={:?} leave={:?} sets={} own={} weather={:?}",
            self.seed,
            self.nodes,
            self.sessions,
            self.words,
            self.words_per_line,
            self.operations,
            self.kill,
            self.leave,
            self.cache_sets,
            self.own_permille,
            self.weather
        )
    }
}

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// Operations on words, for the linearizability check.
    pub history: Vec<OperationRecord>,
    /// Operations that failed because a node had died.
    pub failed: u64,
    /// Events of the network.
    pub steps: u64,
    /// Evictions, over all nodes.
    pub evictions: u64,
    /// Lines read in the memory of another home, over all nodes.
    pub direct_reads: u64,
    /// Lines written back, over all nodes.
    pub write_backs: u64,
    /// Lines lost to other nodes' writes.
    pub invalidations: u64,
    /// Hash over the network's transcript; equal for equal seeds.
    pub fingerprint: u64,
}

type Task = Pin<Box<dyn Future<Output = ()>>>;

/// A cluster of whole nodes on a simulated network.
pub struct SimCluster {
    net: SimNet,
    nodes: Vec<Option<Node>>,
    leaving: Option<Leaving>,
    random: Random,
    config: Config,
}

impl fmt::Debug for SimCluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SimCluster({} nodes)", self.nodes.len())
    }
}

/// Returns the name of a node's process in the network.
pub fn process(node: u16) -> String {
    format!("node-{node}")
}

/// Number of sweeps without progress that count as a deadlock. A sweep is one event and one poll of every engine.
const IDLE_SWEEPS_MAX: u32 = 50;

impl SimCluster {
    /// Starts a cluster of `count` connected nodes.
    ///
    /// # Errors
    /// If a node cannot be created or does not join.
    pub fn start(seed: u64, count: u16, cache_sets: u16) -> Result<Self, String> {
        Self::start_on(seed, count, cache_sets, None)
    }

    /// Starts a cluster between hosts that detect silence within that time, if one is given.
    ///
    /// # Errors
    /// As `start`.
    pub fn start_on(
        seed: u64,
        count: u16,
        cache_sets: u16,
        silence_ns: Option<u64>,
    ) -> Result<Self, String> {
        Self::start_with(seed, count, cache_sets, silence_ns, Limits::DEFAULT.nodes_max)
    }

    fn start_with(
        seed: u64,
        count: u16,
        cache_sets: u16,
        silence_ns: Option<u64>,
        nodes_max: u16,
    ) -> Result<Self, String> {
        let mut random = Random::new(seed ^ 0xc1_0573);
        // Shared memory as on processors that do not make stores visible in order.
        let loads = silence_ns.is_none();
        let common = Capabilities { byte_order: false, loads, ..SHARED_MEMORY };
        let capabilities = *random.pick(&[INFINIBAND, common]);
        let options = SimOptions { silence_ns, ..SimOptions::draw(seed, capabilities) };
        let net = SimNet::new(seed, options);
        let mut write_backs = Random::new(seed ^ 0xc1ea);
        let config = Config::new("sim")
            .memory_bytes(4 << 20)
            .cache_bytes(u64::from(cache_sets) * 8 * LineSize::DEFAULT.bytes() as u64)
            .lease_ns(SILENCE_NS)
            .limits(Limits { nodes_max, ..Limits::DEFAULT })
            .write_back_ns(*write_backs.pick(&[None, Some(100_000), Some(1_000_000)]));
        let first = Node::create_driven(&config, net.fabric(&process(0)))
            .map_err(|error| error.to_string())?;
        let mut cluster = Self { net, nodes: vec![Some(first)], leaving: None, random, config };
        for node in 1..count {
            let mut joining = cluster.start_joining(node).map_err(|error| error.to_string())?;
            let mut idle = 0;
            let joined = loop {
                if let Some(joined) = joining.poll().map_err(|error| error.to_string())? {
                    break joined;
                }
                idle = if cluster.sweep() { 0 } else { idle + 1 };
                if idle > IDLE_SWEEPS_MAX {
                    return Err(format!("node {node} does not join: {joining:?}"));
                }
            };
            cluster.nodes.push(Some(joined));
        }
        Ok(cluster)
    }

    fn start_joining(&self, process_number: u16) -> Result<Joining, Error> {
        // The founder's lease applies also to members configured with a different one.
        let lease_ns =
            [SILENCE_NS, SILENCE_NS / 4, SILENCE_NS * 4][usize::from(process_number) % 3];
        let config = self.config.clone().lease_ns(lease_ns);
        Joining::start(&config, self.net.fabric(&process(process_number)))
    }

    /// Returns the network.
    pub fn net(&self) -> &SimNet {
        &self.net
    }

    /// Returns a node, if it is alive.
    pub fn node(&self, node: u16) -> Option<&Node> {
        self.nodes.get(usize::from(node))?.as_ref()
    }

    /// Returns the numbers of the living nodes.
    pub fn alive(&self) -> Vec<u16> {
        (0..self.nodes.len() as u16).filter(|node| self.node(*node).is_some()).collect()
    }

    /// Kills a node's process: its memory is lost, its messages in flight may still arrive.
    pub fn kill(&mut self, node: u16) {
        self.net.kill(&process(node));
        self.nodes[usize::from(node)] = None;
    }

    /// Starts the leave of a node, which [`poll_leave`](Self::poll_leave) continues.
    pub fn start_leaving(&mut self, node: u16) {
        self.leaving = self.nodes[usize::from(node)].take().map(Node::start_leaving);
    }

    /// Continues the leave that was started. Returns true if none is in progress.
    ///
    /// # Errors
    /// If the leave failed.
    pub fn poll_leave(&mut self) -> Result<bool, String> {
        let Some(leaving) = self.leaving.as_mut() else {
            return Ok(true);
        };
        let Some(ended) = leaving.poll() else {
            return Ok(false);
        };
        self.leaving = None;
        ended.map(|_| true).map_err(|error| format!("leave: {error}"))
    }

    /// Performs one event of the network and one poll of every node. Returns false if nothing happened.
    pub fn sweep(&mut self) -> bool {
        let stepped = self.net.step();
        self.nodes.iter().flatten().fold(stepped, |busy, node| node.progress() || busy)
    }

    /// Performs a random step: mostly an event of the network, else a poll of some node.
    fn stir(&mut self) -> bool {
        if self.random.chance(600) {
            return self.net.step();
        }
        let node = self.random.index(self.nodes.len());
        self.nodes[node].as_ref().is_some_and(Node::progress)
    }

    /// Polls a future to completion, and sweeps the cluster between polls.
    ///
    /// # Errors
    /// If nothing makes progress and the future is not complete.
    pub fn finish<F: Future>(&mut self, future: F) -> Result<F::Output, String> {
        let mut future = std::pin::pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        let mut idle = 0;
        loop {
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return Ok(output);
            }
            idle = if self.sweep() { 0 } else { idle + 1 };
            if idle > IDLE_SWEEPS_MAX {
                return Err(format!("stuck: {}", self.describe()));
            }
        }
    }

    /// Advances the network and its clock without polling any node.
    pub fn let_time_pass(&mut self) {
        self.net.run_until_ns(self.net.now_ns() + SILENCE_NS / 40);
    }

    /// Returns all pairs of a node of this side, given by bits, and a node of the other side.
    fn across(&self, side: u64) -> Vec<(u16, u16)> {
        let count = self.nodes.len() as u16;
        let inside = |node: &u16| side >> node & 1 == 1;
        let outside = move || (0..count).filter(move |node| !inside(node));
        (0..count).filter(inside).flat_map(|one| outside().map(move |other| (one, other))).collect()
    }

    /// Describes the state of every node.
    pub fn describe(&self) -> String {
        let nodes: Vec<String> = self.nodes.iter().flatten().map(Node::describe).collect();
        nodes.join("; ")
    }
}

/// Runs a scenario.
///
/// The violated property, with the command that reproduces it.
pub fn simulate(scenario: Scenario) -> Result<Summary, String> {
    let again = format!(
        "repeat: cargo run -p farside-sim --example simulate -- --seed {} {}",
        scenario.seed,
        match scenario {
            Scenario { weather: Some(_), .. } => "--weather",
            Scenario { faults: true, .. } => "--faults",
            Scenario { leave: Some(_), .. } => "--leave",
            _ => "",
        }
    );
    run(scenario).map_err(|trouble| format!("{trouble}\n{scenario}\n{again}"))
}

fn run(scenario: Scenario) -> Result<Summary, String> {
    let silence_ns = scenario.weather.map(|_| SILENCE_NS);
    let Scenario { seed, nodes, cache_sets, .. } = scenario;
    let mut cluster = SimCluster::start_on(seed, nodes, cache_sets, silence_ns)?;
    let board = Rc::new(Board {
        clock: Cell::new(0),
        history: RefCell::new(Vec::new()),
        failed: Cell::new(0),
        inside: RefCell::new(vec![None; usize::from(scenario.nodes)]),
        trouble: RefCell::new(None),
        may_fail: Cell::new(false),
        may_part: Cell::new(false),
        leaver: Cell::new(None),
    });
    let shared = allocate_shared(&mut cluster, &scenario)?;
    let mut tasks: Vec<(u16, Option<Task>)> = Vec::new();
    for node in 0..scenario.nodes {
        for _ in 0..scenario.sessions {
            let session = session(&cluster, node)?;
            let number = tasks.len();
            let worker = Worker {
                session,
                node,
                number,
                own: OwnWords::new(&shared.words, number),
                own_permille: scenario.own_permille,
                words: Rc::clone(&shared.words),
                blocks: Rc::clone(&shared.blocks),
                guarded: Rc::clone(&shared.guarded),
                board: Rc::clone(&board),
                random: cluster.random.fork(),
                idles: scenario
                    .weather
                    .filter(|weather| weather.parting.is_some())
                    .map(|_| (cluster.net.clone(), SILENCE_NS / 2)),
                out: Cell::new(false),
            };
            tasks.push((node, Some(Box::pin(worker.run(scenario.operations)))));
        }
    }
    let steps = drive(&mut cluster, &scenario, &board, &mut tasks)?;
    agree(&mut cluster, &shared.words, &board, scenario.weather.is_some())?;
    if let Some(trouble) = board.trouble.borrow_mut().take() {
        return Err(trouble);
    }
    check_history(&board.history.borrow())?;
    let stats = |pick: fn(&farside::Stats) -> u64| {
        cluster.nodes.iter().flatten().map(|node| pick(&node.stats())).sum()
    };
    Ok(Summary {
        failed: board.failed.get(),
        steps,
        evictions: stats(|stats| stats.evictions),
        direct_reads: stats(|stats| stats.direct_reads),
        write_backs: stats(|stats| stats.write_backs),
        invalidations: stats(|stats| stats.invalidations),
        fingerprint: cluster.net.fingerprint(),
        history: board.history.take(),
    })
}

/// Checks that the operations on each word are linearizable.
fn check_history(history: &[OperationRecord]) -> Result<(), String> {
    let words = history.iter().map(|record| record.word + 1).max().unwrap_or(0);
    let mut calls: Vec<Vec<HistoryCall<RegisterOperation, u64>>> = vec![Vec::new(); words];
    // A read without a result does not constrain the history.
    let told = |record: &&OperationRecord| {
        record.ended.is_some() || !matches!(record.action, WordAction::Read(_))
    };
    for record in history.iter().filter(told) {
        let (operation, answer) = match record.action {
            WordAction::Read(value) => (RegisterOperation::Read, value),
            WordAction::Write(value) => (RegisterOperation::Write(value), 0),
            WordAction::Swap(before, new) => (RegisterOperation::Swap(new), before),
            WordAction::CompareSwap(before, expected, new) => {
                (RegisterOperation::CompareSwap(expected, new), before)
            }
            WordAction::FetchAdd(before, add) => (RegisterOperation::FetchAdd(add), before),
        };
        calls[record.word].push(HistoryCall {
            process: record.session as u64,
            operation,
            invoke_ns: record.began,
            returned: record.ended.map(|ended| (ended, answer)),
        });
    }
    for (word, calls) in calls.iter().enumerate() {
        let all: Vec<String> = calls.iter().map(|call| format!("  {call:?}")).collect();
        let told = |text| format!("word {word}: {text}; all of it:\n{}", all.join("\n"));
        check(&Register(0), calls).holds().map_err(told)?;
    }
    Ok(())
}

struct Addresses {
    words: Rc<Vec<GlobalAddress>>,
    blocks: Rc<Vec<GlobalAddress>>,
    guarded: Rc<Vec<GlobalAddress>>,
}

fn session(cluster: &SimCluster, node: u16) -> Result<Session, String> {
    let node = cluster.node(node).ok_or("a dead node has no sessions")?;
    node.session().map_err(|error| error.to_string())
}

fn allocate_shared(cluster: &mut SimCluster, scenario: &Scenario) -> Result<Addresses, String> {
    let mut setup = session(cluster, 0)?;
    let mut on = |cluster: &mut SimCluster, home: u16, bytes: u64| {
        let spec = AllocationSpec::new(AllocationHint::On(NodeId(home)));
        let address = cluster.finish(setup.alloc_with_async(bytes, spec))?;
        address.map_err(|error| error.to_string())
    };
    let mut words = Vec::new();
    while words.len() < usize::from(scenario.words) {
        let home = cluster.random.below(u64::from(scenario.nodes)) as u16;
        let line = on(cluster, home, LineSize::DEFAULT.bytes() as u64)?;
        let room = usize::from(scenario.words) - words.len();
        let count = usize::from(scenario.words_per_line).min(room);
        words.extend((0..count).filter_map(|word| line.checked_add(word as u64 * 64)));
    }
    let mut blocks = Vec::new();
    let mut guarded = Vec::new();
    for home in 0..scenario.nodes {
        blocks.push(on(cluster, home, BLOCK_BYTES as u64)?);
        guarded.push(on(cluster, home, 8)?);
    }
    Ok(Addresses { words: Rc::new(words), blocks: Rc::new(blocks), guarded: Rc::new(guarded) })
}

/// Runs tasks, nodes and network until all tasks have ended. Returns the number of events.
fn drive(
    cluster: &mut SimCluster,
    scenario: &Scenario,
    board: &Board,
    tasks: &mut [(u16, Option<Task>)],
) -> Result<u64, String> {
    let mut context = Context::from_waker(Waker::noop());
    let (mut steps, mut idle) = (0, 0_u32);
    let mut fault_state = NetworkFaultState::default();
    if scenario.weather.is_some_and(|weather| weather.cuts > FEW_CUTS) {
        board.may_fail.set(true);
        board.may_part.set(true);
    }
    while tasks.iter().any(|(_, task)| task.is_some()) || cluster.leaving.is_some() {
        steps += 1;
        if let Some((node, at)) = scenario.kill
            && steps == at
        {
            board.may_fail.set(true);
            // With a broken link a death cannot be distinguished from a partition.
            board.may_part.set(board.may_part.get() || scenario.weather.is_some());
            for (owner, task) in tasks.iter_mut() {
                if *owner == node {
                    *task = None;
                }
            }
            cluster.kill(node);
        }
        if let Some((node, _)) = scenario.leave.filter(|(_, at)| steps == *at) {
            board.leaver.set(Some(node));
            // Its sessions hold no lock from now on.
            let of_leaver = |session: &usize| tasks[*session].0 == node;
            for inside in board.inside.borrow_mut().iter_mut() {
                *inside = inside.filter(|session| !of_leaver(session));
            }
            cluster.start_leaving(node);
        }
        let leaves = cluster.leaving.is_some();
        let left = cluster.poll_leave()?;
        if let Some(weather) = &scenario.weather {
            fault_state.change(cluster, weather, board, steps);
        }
        let mut busy = cluster.stir() || (leaves && left);
        let chosen = cluster.random.index(tasks.len());
        if let Some(task) = tasks[chosen].1.as_mut()
            && task.as_mut().poll(&mut context).is_ready()
        {
            tasks[chosen].1 = None;
            busy = true;
        }
        if let Some(trouble) = board.trouble.borrow_mut().take() {
            return Err(trouble);
        }
        idle = if busy { 0 } else { idle + 1 };
        if idle > 200 && !cluster.sweep() {
            if scenario.weather.is_some() {
                cluster.let_time_pass();
            }
            if idle > 200 + IDLE_SWEEPS_MAX * 20 {
                return Err(format!("stuck: {}", cluster.describe()));
            }
        } else if idle > 200 {
            idle = 0;
        }
    }
    Ok(steps)
}

/// The state of the network faults.
#[derive(Default)]
struct NetworkFaultState {
    cuts: u64,
    parted: bool,
    /// The pairs to partition, and when each is separated.
    parts: Vec<(u64, u16, u16)>,
    /// Time at which the partition heals.
    mends_ns: Option<u64>,
}

impl NetworkFaultState {
    fn change(&mut self, cluster: &mut SimCluster, weather: &Weather, board: &Board, step: u64) {
        let count = cluster.nodes.len() as u64;
        if self.cuts < weather.cuts && cluster.random.chance(10) {
            self.cuts += 1;
            let one = cluster.random.below(count) as u16;
            let other = cluster.random.below(count) as u16;
            if one != other {
                cluster.net.cut(&process(one), &process(other));
            }
        }
        match weather.parting {
            Some((side, at)) if at == step && !self.parted => {
                self.parted = true;
                board.may_fail.set(true);
                board.may_part.set(true);
                let now_ns = cluster.net.now_ns();
                let lasts_ns = (2 * SILENCE_NS) / 100 * weather.lasts_percent;
                self.mends_ns = Some(now_ns + lasts_ns);
                for (one, other) in cluster.across(side) {
                    // All pairs at once, or one after the other.
                    let wait_ns = match cluster.random.chance(600) {
                        true => 0,
                        false => cluster.random.below(3 * SILENCE_NS),
                    };
                    self.parts.push((now_ns + wait_ns, one, other));
                }
            }
            _ => {}
        }
        let now_ns = cluster.net.now_ns();
        for (_, one, other) in self.parts.extract_if(.., |(at_ns, ..)| *at_ns <= now_ns) {
            cluster.net.part(&process(one), &process(other));
        }
        if self.mends_ns.is_some_and(|at_ns| at_ns <= now_ns) {
            self.mends_ns = None;
            self.parts.clear();
            let side = weather.parting.map_or(0, |(side, _)| side);
            for (one, other) in cluster.across(side) {
                cluster.net.mend(&process(one), &process(other));
            }
        }
    }
}

/// Checks that, at quiescence, every node reads the same value from every word.
fn agree(
    cluster: &mut SimCluster,
    words: &[GlobalAddress],
    board: &Board,
    weather: bool,
) -> Result<(), String> {
    // Run until every node has learned of every death and nothing is in flight.
    while cluster.sweep() {}
    if weather {
        let end_ns = cluster.net.now_ns() + 6 * SILENCE_NS;
        while cluster.sweep() || cluster.net.now_ns() < end_ns {
            cluster.let_time_pass();
        }
    }
    let alive: Vec<u16> =
        cluster.alive().into_iter().filter(|node| session(cluster, *node).is_ok()).collect();
    for address in words {
        let mut seen = Vec::new();
        for node in &alive {
            let mut session = session(cluster, *node)?;
            let mut bytes = [0; 8];
            let done = cluster.finish(session.read_async(*address, &mut bytes))?;
            seen.push(board.accept(*node, "last read", done).map(|()| bytes));
        }
        if seen.windows(2).any(|pair| pair[0] != pair[1]) {
            return Err(format!("survivors {alive:?} do not agree about {address}: {seen:?}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_repeats_its_run() {
        for seed in 0..5 {
            let one = simulate(Scenario::draw(seed, true)).unwrap();
            let two = simulate(Scenario::draw(seed, true)).unwrap();
            assert_eq!(one.fingerprint, two.fingerprint);
            assert_eq!(one.history, two.history);
        }
    }
}
