//! Litmus tests at machine height: the pure coherence machines of several nodes, a network of queues between them,
//! and sessions with store buffers, as one model.
//!
//! | operation | behaviour |
//! | --- | --- |
//! | write | performed at once if the tag is `Dirty`, else kept in the session's store buffer until its grant |
//! | read | the session's newest buffered write, else the line if the tag permits, else waits |
//! | fence, atomic | waits until the session's store buffer is empty; an atomic then requests `Dirty` |
//! | message | ordered within its class between two nodes; classes overtake each other |
//! | bytes of a `Place` | read from their source as late as possible, directly before the arrival of their message |
//! | eviction | at any time, as often as the setup allows |
//!
//! Besides outcomes it checks that no two nodes may write a line, that no node may read a line that another may
//! write, that bytes are placed only in lines that no node may read, and that no frame is read after its release.
//! bytes land only in lines that no node may read, and that no frame is read after its release.

use super::program::{Instruction, Litmus, LitmusOutcome};
use super::reference::MemoryModel;
use super::report::{LitmusReport, Observations};
use super::run::Placement;
use super::search::{RunEnds, RunModel, ends};
use crate::explorer::{Model, Violation};
use farside_base::Random;
use farside_base::{GlobalAddress, Limits, LineAddress, LineSize, NodeId, OperationId};
use farside_protocol::coherence::{
    Coherence, CoherenceEffect, CoherenceEvent, CoherenceMessage, Extent, Frame, HeldLine, Here,
    Level, PlacementTarget, Want,
};
use std::collections::VecDeque;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// Content of a released frame: no program writes it.
const POISON: u64 = 0xdead_dead_dead_dead;

/// Limits just large enough for the operations of a litmus test, since states are copied often.
pub const LIMITS: Limits = Limits { nodes_max: 8, operations_max: 16, ..Limits::TINY };

/// Number of message classes between two nodes.
const CLASSES: usize = 3;

/// Initial coherence states of the lines.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Start {
    /// Only the home has each line.
    Home,
    /// Every node shares each line.
    Shared,
    /// Each line is owned by the last node that is not its home.
    Owned,
}

impl Start {
    /// All initial states.
    pub const ALL: [Self; 3] = [Self::Home, Self::Shared, Self::Owned];
}

/// The constants of a run.
#[derive(Clone, Debug)]
struct LitmusSetup {
    litmus: &'static Litmus,
    placement: Placement,
    lines: Vec<LineAddress>,
    /// Per variable: the index of its line in `lines`, and its word.
    spots: Vec<(usize, usize)>,
}

/// Equal for all states of one run, so comparisons ignore it.
#[derive(Clone, Debug)]
struct RunConstants(Rc<LitmusSetup>);

impl PartialEq for RunConstants {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for RunConstants {}

impl Hash for RunConstants {
    fn hash<H: Hasher>(&self, _: &mut H) {}
}

/// A message in flight, and the line with bytes that are placed directly before its arrival.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Packet {
    message: CoherenceMessage,
    place: Option<usize>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct LitmusNode {
    machine: Coherence,
    /// Per line.
    tags: Vec<HeldLine>,
    /// Per line: its words in this node's frame or, at its home, in memory.
    words: Vec<Vec<u64>>,
    /// Placements not reported to the machine yet: line, target node, and whether the bytes are in memory.
    places: VecDeque<(usize, usize, bool)>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
struct LitmusSession {
    next: usize,
    registers: Vec<u64>,
    /// Indices of the writes that wait for their grant.
    buffer: Vec<usize>,
    /// Whether the next instruction has been issued and is not ready.
    waits: bool,
}

/// A transition of the model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum MachineAction {
    /// A thread starts its next instruction.
    Execute(usize),
    /// The oldest message of a class arrives: sender, receiver, class.
    Deliver(usize, usize, usize),
    /// A node is notified that its oldest placement of a line is in memory.
    Placed(usize, usize),
    /// A node evicts a line.
    Evict(usize, usize),
}

/// A running program on coherence machines.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Machines {
    setup: RunConstants,
    nodes: Vec<LitmusNode>,
    sessions: Vec<LitmusSession>,
    /// Per sender, receiver and class.
    network: Vec<VecDeque<Packet>>,
    evictions_left: u8,
    broken: Option<String>,
}

impl Machines {
    /// Creates the initial state of a test in a placement, with up to `evictions` evictions at any time.
    pub fn new(
        litmus: &'static Litmus,
        placement: &Placement,
        start: Start,
        evictions: u8,
    ) -> Self {
        Self::with(litmus, placement, start, evictions, &healthy)
    }

    /// As [`new`](Self::new) with machines created by `machine`: for example defective ones, to check that tests
    /// detect them.
    pub fn with(
        litmus: &'static Litmus,
        placement: &Placement,
        start: Start,
        evictions: u8,
        machine: &dyn Fn(NodeId) -> Coherence,
    ) -> Self {
        let numbers = placement.lines();
        let lines: Vec<_> = numbers.iter().map(|(home, line)| address(*home, *line)).collect();
        let spot = |variable: &super::run::Spot| {
            let line = numbers.iter().position(|one| *one == (variable.home, variable.line));
            (line.unwrap_or(0), usize::from(variable.word))
        };
        let spots: Vec<_> = placement.variables.iter().map(spot).collect();
        let words = placement.variables.len();
        let node = |number| LitmusNode {
            machine: machine(NodeId(number)),
            tags: lines.iter().map(|line| initial(*line, number)).collect(),
            words: vec![vec![0; words]; lines.len()],
            places: VecDeque::new(),
        };
        let count = usize::from(placement.nodes);
        let mut machines = Self {
            nodes: (0..placement.nodes).map(node).collect(),
            sessions: vec![LitmusSession::default(); litmus.threads.len()],
            network: vec![VecDeque::new(); count * count * CLASSES],
            evictions_left: 0,
            broken: None,
            setup: RunConstants(Rc::new(LitmusSetup {
                litmus,
                placement: placement.clone(),
                lines,
                spots,
            })),
        };
        machines.warm(start);
        machines.evictions_left = evictions;
        machines
    }

    /// Fetches lines before the program starts.
    fn warm(&mut self, start: Start) {
        for line in 0..self.setup.0.lines.len() {
            let home = usize::from(self.setup.0.lines[line].home().0);
            let mut others = (0..self.nodes.len()).filter(|node| *node != home);
            let (fetching, want) = match start {
                Start::Home => continue,
                Start::Shared => (others.collect(), Want::Read),
                Start::Owned => (Vec::from_iter(others.next_back()), Want::Write),
            };
            for node in fetching {
                self.issue(node, NO_OPERATION, line, want);
                self.settle();
            }
        }
    }

    /// Delivers all messages in flight.
    fn settle(&mut self) {
        loop {
            let moves = |action: &MachineAction| {
                !matches!(action, MachineAction::Execute(_) | MachineAction::Evict(..))
            };
            let Some(action) = self.enabled().into_iter().find(moves) else {
                return;
            };
            self.apply(action);
        }
    }

    fn instruction(&self, thread: usize) -> Option<Instruction> {
        self.setup.0.litmus.threads[thread].get(self.sessions[thread].next).copied()
    }

    fn node_of(&self, thread: usize) -> usize {
        usize::from(self.setup.0.placement.threads[thread])
    }

    fn can_execute(&self, thread: usize) -> bool {
        let session = &self.sessions[thread];
        self.instruction(thread).is_some_and(|next| {
            let orders = next.is_atomic() || next == Instruction::Fence;
            !session.waits && (!orders || session.buffer.is_empty())
        })
    }

    fn all_done(&self) -> bool {
        let done = |thread: usize| {
            self.instruction(thread).is_none() && self.sessions[thread].buffer.is_empty()
        };
        (0..self.sessions.len()).all(done)
    }

    fn execute(&mut self, thread: usize) {
        let Some(instruction) = self.instruction(thread) else {
            return;
        };
        let Some(variable) = instruction.variable() else {
            self.sessions[thread].next += 1;
            return;
        };
        let node = self.node_of(thread);
        let (line, _) = self.setup.0.spots[usize::from(variable)];
        let level = self.nodes[node].tags[line].level;
        let index = self.sessions[thread].next;
        let operation = operation_of(thread, index);
        match instruction {
            Instruction::Write { .. } => {
                self.sessions[thread].next += 1;
                if level == Level::Dirty && !self.buffers_line(thread, line) {
                    self.touch(node, instruction);
                } else {
                    self.sessions[thread].buffer.push(index);
                    self.issue(node, operation, line, Want::Write);
                }
            }
            Instruction::Read { .. } => {
                let own = self.buffered(thread, variable);
                if let Some(value) = own {
                    self.fill(thread, value);
                } else if level >= Level::Shared {
                    let value = self.touch(node, instruction);
                    self.fill(thread, value);
                } else {
                    self.sessions[thread].waits = true;
                    self.issue(node, operation, line, Want::Read);
                }
            }
            Instruction::FetchAdd { .. } | Instruction::Swap { .. } => {
                if level == Level::Dirty {
                    let value = self.touch(node, instruction);
                    self.fill(thread, value);
                } else {
                    self.sessions[thread].waits = true;
                    self.issue(node, operation, line, Want::Write);
                }
            }
            Instruction::Fence => {}
        }
    }

    /// Whether a write of this session to this line is buffered.
    fn buffers_line(&self, thread: usize, line: usize) -> bool {
        let program = self.setup.0.litmus.threads[thread];
        let mut waiting = self.sessions[thread].buffer.iter();
        waiting.any(|index| {
            let variable = program[*index].variable();
            variable.is_some_and(|variable| self.setup.0.spots[usize::from(variable)].0 == line)
        })
    }

    /// Returns the session's newest buffered write to a variable.
    fn buffered(&self, thread: usize, variable: u8) -> Option<u64> {
        let program = self.setup.0.litmus.threads[thread];
        let mut waiting = self.sessions[thread].buffer.iter().rev();
        let index = waiting.find(|index| program[**index].variable() == Some(variable))?;
        Some(program[*index].apply(0))
    }

    fn fill(&mut self, thread: usize, value: u64) {
        let session = &mut self.sessions[thread];
        session.registers.push(value);
        session.next += 1;
        session.waits = false;
    }

    /// Performs an instruction on the words of a node. Returns the previous value.
    fn touch(&mut self, node: usize, instruction: Instruction) -> u64 {
        let variable = instruction.variable().unwrap_or(0);
        let (line, word) = self.setup.0.spots[usize::from(variable)];
        let word = &mut self.nodes[node].words[line][word];
        let before = *word;
        *word = instruction.apply(before);
        if before == POISON {
            self.broken = Some(format!("node {node} uses line {line} after its release"));
        }
        before
    }

    fn issue(&mut self, node: usize, operation: OperationId, line: usize, want: Want) {
        let event = CoherenceEvent::Issue {
            operation,
            line: self.setup.0.lines[line],
            want,
            pin: false,
            frame: Frame(line as u32),
            here: self.here(node, line),
        };
        self.step(node, event);
    }

    fn here(&self, node: usize, line: usize) -> Here {
        let own = usize::from(self.setup.0.lines[line].home().0) == node;
        Here {
            held: self.nodes[node].tags[line],
            extent: own.then_some(Extent { first: true, bytes: LineSize::MIN.bytes() as u32 }),
        }
    }

    fn step(&mut self, node: usize, event: CoherenceEvent) {
        let mut effects = Vec::new();
        if let Err(violation) = self.nodes[node].machine.step(event, &mut effects) {
            self.broken = Some(format!("node {node} refuses {event:?}: {violation:?}"));
        }
        for effect in effects {
            self.perform(node, effect);
        }
        if let Err(text) = self.nodes[node].machine.invariants() {
            self.broken = Some(format!("node {node}: {text}"));
        }
    }

    fn perform(&mut self, node: usize, effect: CoherenceEffect) {
        match effect {
            CoherenceEffect::Send { to, message } => self.send(node, to, message, None),
            CoherenceEffect::Place { line, to, target, message } => {
                let line = self.line(line);
                let frame = PlacementTarget::Frame(Frame(line as u32));
                if target != PlacementTarget::Home && target != frame {
                    self.broken = Some(format!("line {line} is placed in {target:?}"));
                }
                if self.nodes[node].tags[line].level == Level::Dirty {
                    self.broken =
                        Some(format!("bytes of line {line} leave while {node} may write it"));
                }
                let places = &mut self.nodes[node].places;
                places.push_back((line, usize::from(to.0), false));
                self.send(node, to, message, Some(line));
            }
            CoherenceEffect::SetLevel { line, held, .. } => {
                let line = self.line(line);
                self.nodes[node].tags[line] = held;
            }
            CoherenceEffect::Release { line } => {
                let line = self.line(line);
                self.nodes[node].words[line].fill(POISON);
                if self.nodes[node].tags[line].level != Level::Invalid {
                    self.broken = Some(format!("node {node} releases line {line} that it holds"));
                }
            }
            CoherenceEffect::Ready { operation, line } => self.ready(node, operation, line),
            CoherenceEffect::Fail { operation, code, .. } => {
                self.broken = Some(format!("{operation:?} fails: {code:?}"))
            }
            CoherenceEffect::Fill { .. } => {
                self.broken = Some("a line is taken for lost".to_owned())
            }
            CoherenceEffect::Log { .. } | CoherenceEffect::Restore { .. } => {
                self.broken = Some("a volatile line is logged".to_owned())
            }
            CoherenceEffect::DropHome { .. } => {
                self.broken = Some("a node is taken for dead".to_owned())
            }
        }
    }

    fn send(&mut self, from: usize, to: NodeId, message: CoherenceMessage, place: Option<usize>) {
        let class = message.class() as usize;
        let queue = self.queue(from, usize::from(to.0), class);
        self.network[queue].push_back(Packet { message, place });
    }

    fn queue(&self, from: usize, to: usize, class: usize) -> usize {
        (from * self.nodes.len() + to) * CLASSES + class
    }

    fn line(&self, line: LineAddress) -> usize {
        let mut lines = self.setup.0.lines.iter();
        lines.position(|one| *one == line).unwrap_or(0)
    }

    /// Performs an instruction that waited.
    fn ready(&mut self, node: usize, operation: OperationId, line: LineAddress) {
        if operation == NO_OPERATION {
            return;
        }
        let (thread, index) = (operation.0 as usize >> 8, operation.0 as usize & 0xff);
        let instruction = self.setup.0.litmus.threads[thread][index];
        let need = match instruction {
            Instruction::Read { .. } => Level::Shared,
            _ => Level::Dirty,
        };
        let line = self.line(line);
        if self.nodes[node].tags[line].level < need {
            self.broken = Some(format!("{operation:?} is ready without its level"));
        }
        let value = self.touch(node, instruction);
        if matches!(instruction, Instruction::Write { .. }) {
            self.sessions[thread].buffer.retain(|waiting| *waiting != index);
        } else {
            self.fill(thread, value);
        }
    }

    fn deliver(&mut self, from: usize, to: usize, class: usize) {
        let queue = self.queue(from, to, class);
        let Some(packet) = self.network[queue].pop_front() else {
            return;
        };
        if let Some(line) = packet.place {
            self.place(from, to, line);
        }
        let line = self.line(packet.message.line());
        let event = CoherenceEvent::Received {
            from: NodeId(from as u16),
            message: packet.message,
            here: self.here(to, line),
        };
        self.step(to, event);
    }

    /// Places the bytes of a line, which are read from their source only now.
    fn place(&mut self, from: usize, to: usize, line: usize) {
        let words = self.nodes[from].words[line].clone();
        if self.nodes[to].tags[line].level != Level::Invalid {
            self.broken = Some(format!("bytes of line {line} land at {to} under a valid tag"));
        }
        self.nodes[to].words[line] = words;
        let mut places = self.nodes[from].places.iter_mut();
        if let Some(place) = places.find(|place| **place == (line, to, false)) {
            place.2 = true;
        }
    }

    /// Whether the oldest placement of a line at a node is in memory.
    fn landed(&self, node: usize, line: usize) -> bool {
        let mut places = self.nodes[node].places.iter();
        places.find(|place| place.0 == line).is_some_and(|place| place.2)
    }

    fn placed(&mut self, node: usize, line: usize) {
        let places = &mut self.nodes[node].places;
        if let Some(at) = places.iter().position(|place| place.0 == line) {
            places.remove(at);
        }
        let event =
            CoherenceEvent::Placed { line: self.setup.0.lines[line], here: self.here(node, line) };
        self.step(node, event);
    }

    fn evict(&mut self, node: usize, line: usize) {
        self.evictions_left -= 1;
        let event =
            CoherenceEvent::Evict { line: self.setup.0.lines[line], here: self.here(node, line) };
        self.step(node, event);
    }

    fn can_evict(&self, node: usize, line: usize) -> bool {
        let own = usize::from(self.setup.0.lines[line].home().0) == node;
        !own && self.nodes[node].tags[line].level != Level::Invalid
    }

    /// Checks that a writer excludes all other nodes.
    fn excluded(&self, line: usize) -> bool {
        let at_least = |level: Level| {
            let nodes = self.nodes.iter();
            nodes.filter(|node| node.tags[line].level >= level).count()
        };
        at_least(Level::Dirty) == 0 || at_least(Level::Shared) == 1
    }

    fn value(&self, variable: usize) -> u64 {
        let (line, word) = self.setup.0.spots[variable];
        let home = usize::from(self.setup.0.lines[line].home().0);
        let owner = self.nodes.iter().position(|node| node.tags[line].level == Level::Dirty);
        self.nodes[owner.unwrap_or(home)].words[line][word]
    }
}

fn healthy(node: NodeId) -> Coherence {
    Coherence::new(node, &LIMITS)
}

/// Identifier of operations that only fetch a line.
const NO_OPERATION: OperationId = OperationId(u64::MAX);

const fn operation_of(thread: usize, index: usize) -> OperationId {
    OperationId((thread << 8 | index) as u64)
}

fn address(home: u16, line: u16) -> LineAddress {
    let offset = u64::from(line) * LineSize::MIN.bytes() as u64;
    let address = GlobalAddress::new(NodeId(home), LineSize::MIN, offset);
    address.expect("a small offset").line()
}

/// Initial tag of a line at a node.
fn initial(line: LineAddress, node: u16) -> HeldLine {
    HeldLine {
        level: if line.home() == NodeId(node) { Level::Dirty } else { Level::Invalid },
        ..HeldLine::default()
    }
}

impl Model for Machines {
    type Action = MachineAction;

    fn enabled(&self) -> Vec<MachineAction> {
        let (nodes, lines) = (self.nodes.len(), self.setup.0.lines.len());
        let mut actions = Vec::new();
        let threads = 0..self.sessions.len();
        actions
            .extend(threads.filter(|thread| self.can_execute(*thread)).map(MachineAction::Execute));
        for (at, queue) in self.network.iter().enumerate() {
            if !queue.is_empty() {
                let (from, to) = (at / CLASSES / nodes, at / CLASSES % nodes);
                actions.push(MachineAction::Deliver(from, to, at % CLASSES));
            }
        }
        let evicts = self.evictions_left > 0 && !self.all_done();
        for (node, line) in (0..nodes * lines).map(|at| (at / lines, at % lines)) {
            if self.landed(node, line) {
                actions.push(MachineAction::Placed(node, line));
            }
            if evicts && self.can_evict(node, line) {
                actions.push(MachineAction::Evict(node, line));
            }
        }
        actions
    }

    fn apply(&mut self, action: MachineAction) {
        match action {
            MachineAction::Execute(thread) => self.execute(thread),
            MachineAction::Deliver(from, to, class) => self.deliver(from, to, class),
            MachineAction::Placed(node, line) => self.placed(node, line),
            MachineAction::Evict(node, line) => self.evict(node, line),
        }
    }

    fn violation(&self) -> Option<Violation> {
        if let Some(text) = &self.broken {
            return Some(Violation::new(text.clone()));
        }
        let line = (0..self.setup.0.lines.len()).find(|line| !self.excluded(*line))?;
        Some(Violation::new(format!("line {line} has a writer and others")))
    }

    fn narrate(&mut self, action: MachineAction, lines: &mut Vec<String>) {
        let told = match action {
            MachineAction::Deliver(from, to, class) => {
                let queue = &self.network[self.queue(from, to, class)];
                let message = queue.front().map(|packet| &packet.message);
                message.map_or(String::new(), |message| format!("{from} -> {to}: {message:?}"))
            }
            MachineAction::Execute(thread) => {
                format!("thread {thread}: {:?}", self.instruction(thread))
            }
            MachineAction::Placed(..) | MachineAction::Evict(..) => format!("{action:?}"),
        };
        lines.push(told);
        self.apply(action);
    }
}

impl RunModel for Machines {
    fn outcome(&self) -> Option<LitmusOutcome> {
        let ended = self.all_done() && self.sessions.iter().all(|session| !session.waits);
        let variables = 0..self.setup.0.spots.len();
        ended.then(|| LitmusOutcome {
            registers: self.sessions.iter().flat_map(|one| one.registers.clone()).collect(),
            memory: variables.map(|variable| self.value(variable)).collect(),
        })
    }
}

/// Returns all outcomes of a test in a placement, by exhaustive search.
///
/// # Errors
/// A transcript of a violation or of a run that does not end, or that the bound of states was exceeded.
pub fn machine_ends(
    litmus: &'static Litmus,
    placement: &Placement,
    start: Start,
    evictions: u8,
    states_max: u64,
) -> Result<RunEnds, String> {
    let machines = Machines::new(litmus, placement, start, evictions);
    ends(&machines, states_max)
        .map_err(|text| format!("{litmus} in {} from {start:?}: {text}", placement.name))
}

/// Runs a test `walks` times in random order, over all placements and initial states.
///
/// # Errors
/// The seed and the violation.
pub fn machine_walks(
    litmus: &'static Litmus,
    seed: u64,
    walks: u64,
) -> Result<Observations, String> {
    machine_walks_with(litmus, seed, walks, &healthy)
}

/// As [`machine_walks`] with machines created by `machine`: for example defective ones, to check that tests detect
/// them.
///
/// # Errors
/// The seed and the violation.
pub fn machine_walks_with(
    litmus: &'static Litmus,
    seed: u64,
    walks: u64,
    machine: &dyn Fn(NodeId) -> Coherence,
) -> Result<Observations, String> {
    let placements = Placement::all(litmus);
    let mut seen = Observations::new();
    for seed in (0..walks).map(|walk| seed.wrapping_add(walk)) {
        let mut random = Random::new(seed);
        let placement = random.pick(&placements);
        let start = *random.pick(&Start::ALL);
        let evictions = random.below(6) as u8;
        let machines = Machines::with(litmus, placement, start, evictions, machine);
        let outcome = machine_walk(machines, &mut random).map_err(|text| {
            format!("{litmus} in {} from {start:?}, seed {seed}: {text}", placement.name)
        })?;
        *seen.entry(outcome).or_default() += 1;
    }
    Ok(seen)
}

/// Runs a test at machine height: with one or two threads exhaustively in every placement and from every initial
/// state, otherwise in `walks` random orders. In an exhaustive report an outcome counts once for each placement and
/// initial state that permits it.
///
/// # Errors
/// The violation, with the information to reproduce it; forbidden outcomes are detected by the report.
pub fn machine_report(
    litmus: &'static Litmus,
    seed: u64,
    walks: u64,
) -> Result<LitmusReport, String> {
    let seen = if litmus.threads.len() > 2 {
        machine_walks(litmus, seed, walks)?
    } else {
        let mut seen = Observations::new();
        for placement in Placement::all(litmus) {
            for start in Start::ALL {
                let ends = machine_ends(litmus, &placement, start, 1, STATES_MAX)?;
                for outcome in ends.outcomes {
                    *seen.entry(outcome).or_default() += 1;
                }
            }
        }
        seen
    };
    Ok(LitmusReport::new(litmus, "machine", MemoryModel::Pso, &seen))
}

/// Maximum number of states of one exhaustive search; the largest of the catalog has about 40,000.
const STATES_MAX: u64 = 2_000_000;

/// Maximum number of actions of a walk, far above what a few instructions cause.
const ACTIONS_MAX: usize = 100_000;

fn machine_walk(mut machines: Machines, random: &mut Random) -> Result<LitmusOutcome, String> {
    // Links and threads get random speeds per walk, which makes whole nodes lag.
    let nodes = machines.nodes.len();
    let mut draw =
        |count: usize| -> Vec<u64> { (0..count).map(|_| *random.pick(&[1, 16, 256])).collect() };
    let (links, threads, placed, evict) =
        (draw(nodes * nodes), draw(machines.sessions.len()), draw(nodes), draw(1)[0]);
    for _ in 0..ACTIONS_MAX {
        if let Some(violation) = machines.violation() {
            return Err(violation.to_string());
        }
        let actions = machines.enabled();
        let weight = |action: &MachineAction| match action {
            MachineAction::Execute(thread) => threads[*thread],
            MachineAction::Deliver(from, to, _) => links[from * nodes + to],
            MachineAction::Placed(node, _) => placed[*node],
            MachineAction::Evict(..) => evict,
        };
        let all: u64 = actions.iter().map(weight).sum();
        let mut draw = random.below(all);
        let chosen = actions.iter().find(|action| {
            let here = draw < weight(action);
            draw = draw.saturating_sub(weight(action));
            here
        });
        match chosen {
            Some(action) => machines.apply(*action),
            None => return machines.outcome().ok_or("threads wait for ever".to_owned()),
        }
    }
    Err("the walk does not end".to_owned())
}
