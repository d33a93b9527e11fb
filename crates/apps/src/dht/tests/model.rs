//! A memory for tests that does everything its guarantees permit: a seed chooses which session takes the
//! next step, when a written line becomes visible, what happens to freed memory, and which session or node
//! dies when. One session runs at a time, so a seed always gives the same run.

use super::super::space::{LossMark, Space};
use farside::{AllocationHint, AllocationSpec, Error, ErrorCode, GlobalAddress, LineSize, NodeId};
use farside_testkit::Random;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::{Arc, Condvar, Mutex};

/// The session or node that dies.
#[derive(Clone, Copy, Debug)]
pub(super) enum Death {
    /// A session stops for ever between two steps; its node keeps what it holds.
    Session(usize),
    /// A node: its sessions stop, its memory is gone, and lines with their only up-to-date copy there are
    /// lost.
    Node(u16),
    /// The process of a node with state: its sessions stop, and it returns at once. Lines in its memory, and those
    /// that it owned, get back what was last durable.
    Restart(u16),
    /// The processes of all nodes with state.
    RestartAll,
}

/// The behaviour of a world.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) nodes: u16,
    pub(super) node_bytes: u64,
    /// One in this many steps, another session continues.
    pub(super) switch_odds: u64,
    /// One in this many steps, some written line becomes visible.
    pub(super) drain_odds: u64,
    /// The death, and its step.
    pub(super) death: Option<(u64, Death)>,
    /// Whether all nodes have state.
    pub(super) logged: bool,
}

impl Rules {
    pub(super) const CALM: Self = Self {
        nodes: 3,
        node_bytes: 64 << 20,
        switch_odds: 1_000_000,
        drain_odds: 4,
        death: None,
        logged: false,
    };
}

#[derive(Default)]
struct NodeMemory {
    bytes: Vec<u8>,
    allocations: BTreeMap<u64, (u64, LineSize)>,
    free: Vec<(u64, u64, LineSize)>,
    /// Freed memory that other programs have allocated.
    foreign: Vec<(u64, u64)>,
    dead: bool,
    write_losses: u32,
}

/// A line that is not durable.
struct UnloggedLine {
    /// The node that wrote it.
    owner: u16,
    home: u16,
    start: usize,
    /// Its last durable bytes.
    before: Vec<u8>,
}

#[derive(Default)]
struct SessionState {
    node: u16,
    /// Written, not yet visible to others; one entry for each line.
    buffer: Vec<(GlobalAddress, Vec<u8>)>,
    failed: Option<Error>,
    stopped: bool,
    finished: bool,
    losses_reported: u32,
    /// How many more steps succeed; `None`: all.
    steps_left: Option<u64>,
}

struct ModelState {
    seed: u64,
    rules: Rules,
    random: Random,
    clock: u64,
    current: usize,
    nodes: Vec<NodeMemory>,
    sessions: Vec<SessionState>,
    /// Lines whose only up-to-date copy is at a node that is not their home.
    owners: HashMap<u64, u16>,
    lost: HashSet<u64>,
    unlogged: BTreeMap<u64, UnloggedLine>,
}

struct SharedModel {
    state: Mutex<ModelState>,
    turns: Vec<Condvar>,
}

/// Runs `before` alone, then `body` for each of the sessions at these nodes, in one order of steps chosen
/// by the seed; then `after` alone. Deaths are counted from the end of `before`, and stop with `body`.
pub(super) fn run<P: Sync, T: Send>(
    seed: u64,
    rules: Rules,
    nodes_of_sessions: &[u16],
    before: impl FnOnce(&mut ModelSession) -> P,
    body: impl Fn(usize, &mut ModelSession, &P) -> T + Sync,
    after: impl FnOnce(&mut ModelSession, P, Vec<T>),
) {
    let calm = Rules { death: None, ..rules };
    let shared = Arc::new(SharedModel::new(seed, calm, nodes_of_sessions));
    let number = nodes_of_sessions.len();
    let mut outside = ModelSession { shared: shared.clone(), number };
    let prepared = before(&mut outside);
    let mut state = shared.state.lock().expect("no session panicked yet");
    state.rules.death = rules.death.map(|(at, death)| (state.clock + at, death));
    drop(state);
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..number)
            .map(|number| {
                let mut session = ModelSession { shared: shared.clone(), number };
                let (body, prepared) = (&body, &prepared);
                scope.spawn(move || {
                    session.wait_for_turn();
                    body(number, &mut session, prepared)
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("a session panicked")).collect()
    });
    shared.state.lock().expect("no session panicked").rules.death = None;
    after(&mut outside, prepared, results);
}

/// One session, alone in its world.
pub(super) fn alone(seed: u64, rules: Rules) -> ModelSession {
    let shared = Arc::new(SharedModel::new(seed, rules, &[]));
    ModelSession { shared, number: 0 }
}

impl SharedModel {
    fn new(seed: u64, rules: Rules, nodes_of_sessions: &[u16]) -> Self {
        // The last session is for `after`, at the last node, which never dies.
        let nodes = nodes_of_sessions.iter().copied().chain([rules.nodes - 1]);
        let sessions: Vec<_> =
            nodes.map(|node| SessionState { node, ..SessionState::default() }).collect();
        let turns = sessions.iter().map(|_| Condvar::new()).collect();
        let state = ModelState {
            seed,
            rules,
            random: Random::new(seed),
            clock: 0,
            current: 0,
            nodes: (0..rules.nodes).map(|_| NodeMemory::default()).collect(),
            sessions,
            owners: HashMap::new(),
            lost: HashSet::new(),
            unlogged: BTreeMap::new(),
        };
        Self { state: Mutex::new(state), turns }
    }
}

impl ModelState {
    /// A random spontaneous event.
    fn drift(&mut self) {
        self.clock += 1;
        if self.rules.death.is_some_and(|(at, _)| at <= self.clock) {
            let (_, death) = self.rules.death.take().expect("checked");
            self.kill(death);
        }
        if self.random.one_in(self.rules.drain_odds) {
            let number = self.random.below(self.sessions.len() as u64) as usize;
            self.drain_one(number);
        }
        if !self.unlogged.is_empty() && self.random.one_in(4 * self.rules.drain_odds) {
            let any = self.random.below(self.unlogged.len() as u64) as usize;
            let line = *self.unlogged.keys().nth(any).expect("below the length");
            self.unlogged.remove(&line);
        }
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let memory = &mut self.nodes[node];
        if !memory.foreign.is_empty() {
            let which = self.random.below(memory.foreign.len() as u64) as usize;
            let (start, bytes) = memory.foreign[which];
            let at = (start + self.random.below(bytes / 8) * 8) as usize;
            memory.bytes[at..at + 8].copy_from_slice(&self.random.word().to_le_bytes());
        }
    }

    fn kill(&mut self, death: Death) {
        match death {
            Death::Session(number) => self.sessions[number].stopped = true,
            Death::Node(node) => {
                self.nodes[usize::from(node)].dead = true;
                for session in self.sessions.iter_mut().filter(|session| session.node == node) {
                    session.stopped = true;
                }
                let lost = self.owners.iter().filter(|(_, owner)| **owner == node);
                self.lost.extend(lost.map(|(line, _)| *line));
            }
            Death::Restart(node) => self.restart(|other| other == node),
            Death::RestartAll => self.restart(|_| true),
        }
        for session in self.sessions.iter_mut().filter(|session| session.stopped) {
            session.buffer.clear();
        }
    }

    fn restart(&mut self, ends: impl Fn(u16) -> bool) {
        // The last session, for `after`, is of a process that starts later.
        let of_body = self.sessions.len() - 1;
        for session in self.sessions[..of_body].iter_mut().filter(|session| ends(session.node)) {
            session.stopped = true;
        }
        let mut losers = HashSet::new();
        self.unlogged.retain(|_, line| {
            let keeps = !ends(line.home) && !ends(line.owner);
            if !keeps {
                losers.insert(line.owner);
                let end = line.start + line.before.len();
                let home = &mut self.nodes[usize::from(line.home)];
                home.bytes[line.start..end].copy_from_slice(&line.before);
            }
            keeps
        });
        for node in losers {
            self.nodes[usize::from(node)].write_losses += 1;
        }
    }

    /// Reports writes that the session's node has lost, once.
    fn report_loss(&mut self, number: usize) -> Result<(), Error> {
        let session = &mut self.sessions[number];
        let write_losses = self.nodes[usize::from(session.node)].write_losses;
        if std::mem::replace(&mut session.losses_reported, write_losses) != write_losses {
            return Err(Error::new(ErrorCode::WritesLost));
        }
        Ok(())
    }

    /// A session accesses a line: what another node wrote is durable before, and what it writes itself is not yet.
    fn access(&mut self, number: usize, at: GlobalAddress, writes: bool) {
        let (owner, home) = (self.sessions[number].node, at.home().0);
        let line = at.line().to_bits();
        if self.unlogged.get(&line).is_some_and(|line| line.owner != owner) {
            self.unlogged.remove(&line);
        }
        if writes && self.rules.logged {
            let memory = &self.nodes[usize::from(home)].bytes;
            let start = at.offset() as usize - at.offset_in_line();
            let end = memory.len().min(start + at.line_size().bytes());
            let before = memory[start..end].to_vec();
            self.unlogged.entry(line).or_insert(UnloggedLine { owner, home, start, before });
        }
    }

    /// Makes one written line of a session visible, oldest first for each line.
    fn drain_one(&mut self, number: usize) {
        let buffer = &self.sessions[number].buffer;
        if buffer.is_empty() {
            return;
        }
        let any = self.random.below(buffer.len() as u64) as usize;
        let line = buffer[any].0.line();
        let first = buffer.iter().position(|(at, _)| at.line() == line).expect("any is one");
        let (at, bytes) = self.sessions[number].buffer.remove(first);
        let result = self.store(number, at, &bytes);
        if let Err(error) = result {
            self.sessions[number].failed.get_or_insert(error);
        }
    }

    fn store(&mut self, number: usize, at: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        let range = self.check(at, bytes.len())?;
        self.own(number, at);
        self.access(number, at, true);
        self.nodes[usize::from(at.home().0)].bytes[range].copy_from_slice(bytes);
        Ok(())
    }

    fn own(&mut self, number: usize, at: GlobalAddress) {
        let node = self.sessions[number].node;
        let line = at.line().to_bits();
        if node == at.home().0 {
            self.owners.remove(&line);
        } else {
            self.owners.insert(line, node);
        }
    }

    /// The byte range, if the access is valid.
    fn check(&self, at: GlobalAddress, bytes: usize) -> Result<std::ops::Range<usize>, Error> {
        let fail = |code| Err(Error::at(code, at));
        let Some(memory) = self.nodes.get(usize::from(at.home().0)) else {
            return fail(ErrorCode::ForeignAddress);
        };
        if memory.dead {
            return fail(ErrorCode::NodeLost);
        }
        let Some((start, (size, line))) = memory.allocations.range(..=at.offset()).next_back()
        else {
            return fail(ErrorCode::Unallocated);
        };
        let (start, end) = (at.offset(), start + size);
        if start >= end || *line != at.line_size() {
            return fail(ErrorCode::Unallocated);
        }
        if start + bytes as u64 > end {
            return fail(ErrorCode::OutOfBounds);
        }
        if self.lost.contains(&at.line().to_bits()) {
            return fail(ErrorCode::LineLost);
        }
        Ok(start as usize..start as usize + bytes)
    }

    fn alloc(&mut self, node: u16, bytes: u64, line: LineSize) -> Result<GlobalAddress, Error> {
        let limit = self.rules.node_bytes;
        let memory = &mut self.nodes[usize::from(node)];
        if memory.dead {
            return Err(Error::new(ErrorCode::NodeLost));
        }
        let fits = |(_, size, class): &(u64, u64, LineSize)| *size == bytes && *class == line;
        let start = match memory.free.iter().rposition(fits) {
            Some(at) => memory.free.remove(at).0,
            None => {
                let start = (memory.bytes.len() as u64).next_multiple_of(line.bytes() as u64);
                if start + bytes > limit {
                    return Err(Error::new(ErrorCode::OutOfMemory));
                }
                let garbage = self.random.word() as u8;
                memory.bytes.resize((start + bytes) as usize, garbage);
                start
            }
        };
        memory.allocations.insert(start, (bytes, line));
        Ok(GlobalAddress::new(NodeId(node), line, start).expect("small"))
    }

    fn free(&mut self, at: GlobalAddress) -> Result<(), Error> {
        self.check(at, 1).or_else(|error| match error.code {
            ErrorCode::LineLost => Ok(0..0),
            _ => Err(error),
        })?;
        let forever = self.random.one_in(2);
        let memory = &mut self.nodes[usize::from(at.home().0)];
        let Some((bytes, line)) = memory.allocations.remove(&at.offset()) else {
            return Err(Error::at(ErrorCode::NotAnAllocation, at));
        };
        let freed = at.offset() as usize..(at.offset() + bytes) as usize;
        self.unlogged.retain(|_, line| line.home != at.home().0 || !freed.contains(&line.start));
        if forever {
            memory.allocations.insert(at.offset(), (bytes, line));
            memory.foreign.push((at.offset(), bytes));
        } else {
            memory.free.push((at.offset(), bytes, line));
        }
        Ok(())
    }
}

/// One program order in the world.
pub(super) struct ModelSession {
    shared: Arc<SharedModel>,
    number: usize,
}

impl ModelSession {
    /// A logical time: later calls return larger ones.
    pub(super) fn now(&mut self) -> u64 {
        let mut state = self.shared.state.lock().unwrap();
        state.clock += 1;
        state.clock
    }

    /// Lets this number of steps succeed and later ones fail.
    pub(super) fn limit_steps(&mut self, steps: Option<u64>) {
        self.shared.state.lock().unwrap().sessions[self.number].steps_left = steps;
    }

    /// How its world behaves.
    pub(super) fn rules(&self) -> Rules {
        self.shared.state.lock().unwrap().rules
    }

    /// The seed of its world.
    pub(super) fn seed(&self) -> u64 {
        self.shared.state.lock().unwrap().seed
    }

    /// Bytes that are allocated and not given to other programs.
    pub(super) fn allocated_bytes(&self) -> u64 {
        let state = self.shared.state.lock().unwrap();
        let sum = |memory: &NodeMemory| -> u64 {
            let all: u64 = memory.allocations.values().map(|(bytes, _)| bytes).sum();
            all - memory.foreign.iter().map(|(_, bytes)| bytes).sum::<u64>()
        };
        state.nodes.iter().map(sum).sum()
    }

    /// Kills a session or node now.
    pub(super) fn kill(&mut self, death: Death) {
        self.shared.state.lock().unwrap().kill(death);
    }

    fn wait_for_turn(&self) {
        let state = self.shared.state.lock().unwrap();
        let mine = |state: &mut ModelState| state.current != self.number;
        drop(self.shared.turns[self.number].wait_while(state, mine).unwrap());
    }

    /// Begins a step of this session: others may go first.
    fn step<R>(
        &self,
        act: impl FnOnce(&mut ModelState, usize) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let mut state = self.shared.state.lock().unwrap();
        state.drift();
        let odds = state.rules.switch_odds;
        if state.random.one_in(odds) {
            state = self.pass_on(state);
        }
        if state.sessions[self.number].stopped {
            return Err(Error::new(ErrorCode::NodeClosed));
        }
        if let Some(left) = &mut state.sessions[self.number].steps_left {
            *left = left.checked_sub(1).ok_or(Error::new(ErrorCode::NodeClosed))?;
        }
        act(&mut state, self.number)
    }

    fn pass_on<'a>(
        &'a self,
        mut state: std::sync::MutexGuard<'a, ModelState>,
    ) -> std::sync::MutexGuard<'a, ModelState> {
        let others = state.sessions.len() - 1;
        let ready: Vec<usize> = (0..others).filter(|n| !state.sessions[*n].finished).collect();
        if self.number < others && !ready.is_empty() {
            let next = state.random.below(ready.len() as u64) as usize;
            state.current = ready[next];
            self.shared.turns[state.current].notify_one();
            if !state.sessions[self.number].finished {
                let mine = |state: &mut ModelState| state.current != self.number;
                state = self.shared.turns[self.number].wait_while(state, mine).unwrap();
            }
        }
        state
    }
}

impl Drop for ModelSession {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        state.sessions[self.number].finished = true;
        if state.current == self.number {
            drop(self.pass_on(state));
        }
    }
}

/// Splits an access at line ends.
fn lines(at: GlobalAddress, bytes: usize) -> Vec<(GlobalAddress, std::ops::Range<usize>)> {
    let mut cut = Vec::new();
    let mut done = 0;
    while done < bytes {
        let here = at.checked_add(done as u64).expect("within the node");
        let take = (here.line_size().bytes() - here.offset_in_line()).min(bytes - done);
        cut.push((here, done..done + take));
        done += take;
    }
    cut
}

impl Space for ModelSession {
    fn read(&mut self, at: GlobalAddress, out: &mut [u8]) -> Result<(), Error> {
        for (at, part) in lines(at, out.len()) {
            self.step(|state, me| {
                let range = state.check(at, part.len())?;
                state.access(me, at, false);
                let line = at.line().to_bits();
                if state.owners.get(&line).is_some_and(|owner| *owner != state.sessions[me].node) {
                    state.owners.remove(&line);
                }
                let out = &mut out[part.clone()];
                out.copy_from_slice(&state.nodes[usize::from(at.home().0)].bytes[range]);
                for (written, bytes) in &state.sessions[me].buffer {
                    if written.home() != at.home() {
                        continue;
                    }
                    for (index, byte) in bytes.iter().enumerate() {
                        let offset = written.offset() + index as u64;
                        if let Some(place) = offset.checked_sub(at.offset())
                            && let Some(place) = out.get_mut(place as usize)
                        {
                            *place = *byte;
                        }
                    }
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn write(&mut self, at: GlobalAddress, bytes: &[u8]) -> Result<(), Error> {
        for (at, part) in lines(at, bytes.len()) {
            self.step(|state, me| {
                state.check(at, part.len())?;
                state.sessions[me].buffer.push((at, bytes[part.clone()].to_vec()));
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Ends every write, then returns the first failure.
    fn fence(&mut self) -> Result<(), Error> {
        while self.step(|state, me| {
            state.drain_one(me);
            Ok(!state.sessions[me].buffer.is_empty())
        })? {}
        self.step(|state, me| {
            state.sessions[me].failed.take().map_or(Ok(()), Err)?;
            state.report_loss(me)?;
            let node = state.sessions[me].node;
            state.unlogged.retain(|_, line| line.owner != node);
            Ok(())
        })
    }

    fn loss_mark(&mut self) -> LossMark {
        let state = self.shared.state.lock().unwrap();
        let node = state.sessions[self.number].node;
        LossMark { node: NodeId(node), write_losses: state.nodes[usize::from(node)].write_losses }
    }

    fn atomic<R>(
        &mut self,
        at: GlobalAddress,
        bytes: usize,
        change: impl FnOnce(&mut [u8]) -> R,
    ) -> Result<R, Error> {
        assert!(at.offset_in_line() + bytes <= at.line_size().bytes(), "within one line");
        self.step(|state, me| {
            // As the slow path of the session does.
            if state.random.one_in(2) {
                state.report_loss(me)?;
            }
            while let Some(first) = state.sessions[me]
                .buffer
                .iter()
                .position(|(written, _)| written.line() == at.line())
            {
                let (written, bytes) = state.sessions[me].buffer.remove(first);
                state.store(me, written, &bytes)?;
            }
            let range = state.check(at, bytes)?;
            state.own(me, at);
            state.access(me, at, true);
            Ok(change(&mut state.nodes[usize::from(at.home().0)].bytes[range]))
        })
    }

    fn alloc(&mut self, bytes: u64, spec: AllocationSpec) -> Result<GlobalAddress, Error> {
        let line = spec.line_size.unwrap_or(LineSize::DEFAULT);
        self.step(|state, me| match spec.hint {
            AllocationHint::Near(near) => state.alloc(near.home().0, bytes, line),
            AllocationHint::On(node) => state.alloc(node.0, bytes, line),
            _ => {
                let here = state.sessions[me].node;
                let nodes = state.rules.nodes;
                let order = (0..nodes).map(|n| (here + n) % nodes);
                let mut tries = order.map(|node| state.alloc(node, bytes, line));
                let full = Err(Error::new(ErrorCode::OutOfMemory));
                tries.find(|result| result.is_ok()).unwrap_or(full)
            }
        })
    }

    fn free(&mut self, at: GlobalAddress) -> Result<(), Error> {
        self.step(|state, _| state.free(at))
    }
}
