//! Nodes with state that are killed, lose their power and return, while all nodes use their memory: what was fenced is
//! kept, and the history of each word is linearizable over all of it. Where all nodes leave, some begin without state, and are
//! drained.
//!
//! Each operation is followed by a fence, and counts as done when that has succeeded: an operation whose fence failed has
//! happened or not. What a session reads of unfenced writes of its own node is so either durable or not counted.

use super::{Error, ErrorCode, GlobalAddress, OperationRecord, Random, Task, WordAction};
use crate::durable::SimDisk;
use crate::fabric::{INFINIBAND, SHARED_MEMORY, SimNet, SimOptions};
use farside::{
    AllocationHint, AllocationSpec, Config, Durability, Joining, Leaving, Limits, LineSize, Node,
    Session,
};
use farside_base::Capabilities;
use std::cell::{Cell, RefCell};
use std::future::Future;
use std::rc::Rc;
use std::task::{Context, Waker};

/// Steps without progress that count as a deadlock.
const IDLE_MAX: u32 = 20_000;
/// Steps before a start that was refused is repeated.
const PAUSE: u32 = 200;
/// Node numbers of a cluster.
const NUMBERS: u16 = 8;

/// Results of a run.
#[derive(Clone, Debug, Default)]
pub struct StateSummary {
    /// Operations that are durable.
    pub done: u64,
    /// Operations that failed because a node was away or had lost writes.
    pub failed: u64,
    /// Returns of nodes with state.
    pub returns: u64,
    /// Sessions that were told of lost writes.
    pub losses: u64,
    /// Nodes without state that were drained.
    pub drains: u64,
}

/// StateBoard state of all tasks.
#[derive(Default)]
struct StateBoard {
    words: RefCell<Vec<GlobalAddress>>,
    clock: Cell<u64>,
    history: RefCell<Vec<OperationRecord>>,
    failed: Cell<u64>,
    losses: Cell<u64>,
    /// Unlocks that have failed for the end of a lock.
    ended_locks: Cell<u64>,
    /// Homes are awaited without a bound: no fence fails for one that is away.
    patient: Cell<bool>,
    /// And all of them leave: no access fails.
    strict: Cell<bool>,
    sessions: Cell<usize>,
    trouble: RefCell<Option<String>>,
}

impl StateBoard {
    fn now(&self) -> u64 {
        self.clock.set(self.clock.get() + 1);
        self.clock.get()
    }

    fn ended(&self, at: usize, action: WordAction) {
        let ended = Some(self.now());
        let mut history = self.history.borrow_mut();
        (history[at].action, history[at].ended) = (action, ended);
    }

    fn accept<T>(&self, what: &str, result: Result<T, Error>) -> Option<T> {
        use ErrorCode::{
            DeviceFailed, HomeAway, NoState, NodeClosed, NotLocked, OutOfMemory, WritesLost,
        };
        let error = match result {
            Ok(value) => return Some(value),
            Err(error) => error,
        };
        let is_access = ["operation", "fence"].contains(&what);
        if self.strict.get() && is_access && error.code != NodeClosed {
            self.trouble.borrow_mut().get_or_insert(format!("{what} under leaves: {error}"));
        }
        let codes =
            [HomeAway, WritesLost, NodeClosed, DeviceFailed, NoState, OutOfMemory, NotLocked];
        if !codes.contains(&error.code) {
            self.trouble.borrow_mut().get_or_insert(format!("{what}: {error}"));
        }
        self.losses.set(self.losses.get() + u64::from(error.code == WritesLost));
        self.failed.set(self.failed.get() + 1);
        None
    }
}

/// One session of a run.
struct StateWorker {
    session: Session,
    board: Rc<StateBoard>,
    random: Random,
    number: usize,
}

/// What a worker added by.
const ADDED: u64 = 1 << 40;

impl StateWorker {
    /// Runs `count` random operations, each with a fence.
    async fn run(mut self, count: u64) {
        for _ in 0..count {
            match self.random.below(10) {
                0 => self.allocate().await,
                _ => self.access().await,
            }
        }
    }

    async fn access(&mut self) {
        let board = Rc::clone(&self.board);
        let word = self.random.index(board.words.borrow().len());
        let address = board.words.borrow()[word];
        let value = board.now() << 8 | self.number as u64 & 0xff;
        let begun = [
            WordAction::Read(0),
            WordAction::Write(value),
            WordAction::Swap(0, value),
            WordAction::FetchAdd(0, ADDED),
            WordAction::FetchAdd(0, ADDED),
            WordAction::Read(0), // until it writes
        ];
        let kind = self.random.index(begun.len());
        let began = board.now();
        let action = begun[kind];
        let record = OperationRecord { word, session: self.number, action, began, ended: None };
        board.history.borrow_mut().push(record);
        let at = board.history.borrow().len() - 1;
        let session = &mut self.session;
        let done = match (kind, action) {
            (0, _) => session.read_u64_async(address).await.map(WordAction::Read),
            (1, _) => session.write_async(address, &value.to_le_bytes()).await.map(|()| action),
            (2, _) => {
                let before = session.swap_async(address, value).await;
                before.map(|before| WordAction::Swap(before, value))
            }
            (3, _) => {
                let before = session.fetch_add_async(address, ADDED).await;
                before.map(|before| WordAction::FetchAdd(before, ADDED))
            }
            (4, _) => {
                // The line is pinned meanwhile.
                let add = |bytes: &mut [u8]| {
                    let mut word = [0; 8];
                    word.copy_from_slice(bytes);
                    let before = u64::from_le_bytes(word);
                    bytes.copy_from_slice(&before.wrapping_add(ADDED).to_le_bytes());
                    before
                };
                let before = session.atomic_async(address, 8, add).await;
                before.map(|before| WordAction::FetchAdd(before, ADDED))
            }
            _ => return self.add_under_lock(at, address).await,
        };
        // An access that fails since its home is away has had no effect.
        let fenced = session.fence_async().await;
        let away =
            |error: Option<&Error>| error.is_some_and(|error| error.code == ErrorCode::HomeAway);
        let had_none = away(done.as_ref().err()) || away(fenced.as_ref().err());
        let done = board.accept("operation", done);
        let fenced = board.accept("fence", fenced);
        match (done, fenced) {
            (Some(done), Some(())) => board.ended(at, done),
            _ if had_none && kind != 4 => {
                board.history.borrow_mut()[at].action = WordAction::Read(0);
            }
            _ => {}
        }
    }

    /// Adds by a read and a write under a lock of the word: it counts when the unlock has succeeded, without a fence.
    async fn add_under_lock(&mut self, at: usize, address: GlobalAddress) {
        let board = Rc::clone(&self.board);
        let locked = self.session.lock_write_async(address, 8).await.map(|guard| guard.keep());
        let (mut action, mut is_written) = (WordAction::Read(0), false);
        if board.accept("lock", locked).is_some() {
            let read = self.session.read_u64_async(address).await;
            if let Some(before) = board.accept("read under a lock", read) {
                let after = before.wrapping_add(ADDED);
                action = WordAction::Write(after);
                board.history.borrow_mut()[at].action = action;
                let written = self.session.write_async(address, &after.to_le_bytes()).await;
                is_written = board.accept("write under a lock", written).is_some();
            }
            let unlocked = self.session.unlock_async(address, 8).await;
            let ended = unlocked.as_ref().err().is_some_and(|error| match error.code {
                ErrorCode::NotLocked => true,
                code => code == ErrorCode::HomeAway && board.patient.get(),
            });
            board.ended_locks.set(board.ended_locks.get() + u64::from(ended));
            let unlocked = board.accept("unlock", unlocked);
            if unlocked.is_some() && is_written {
                board.ended(at, action);
            }
        }
    }

    /// Allocates memory of several slices at a home with state, writes and frees it.
    async fn allocate(&mut self) {
        let board = Rc::clone(&self.board);
        let spec = AllocationSpec::default().durability(Durability::Logged);
        let spec = spec.line_size(Some(LineSize::MIN));
        let bytes = 64 * self.random.between(1, 600);
        let address = self.session.alloc_with_async(bytes, spec).await;
        let Some(address) = board.accept("alloc", address) else {
            return;
        };
        let last = address.checked_add(bytes - 8).unwrap_or(address);
        let read = self.session.read_u64_async(last).await;
        if board.accept("read of fresh memory", read).is_some_and(|word| word != 0) {
            let text = format!("fresh memory at {address} is not zero");
            board.trouble.borrow_mut().get_or_insert(text);
        }
        let written = self.session.write_async(last, &[7; 8]).await;
        board.accept("write of fresh memory", written);
        let fenced = self.session.fence_async().await;
        board.accept("fence", fenced);
        let freed = self.session.free_async(address).await;
        board.accept("free", freed);
    }
}

/// A process that is started again and again.
struct Place {
    disk: Option<SimDisk>,
    /// Its memory is not on the disk yet: it gets there when the node is drained.
    is_volatile: bool,
    /// It had no state at first, so its number is an ordinary one.
    began_volatile: bool,
    lives: u32,
    node: Option<Node>,
    joining: Option<Joining>,
    leaving: Option<Leaving>,
    /// Steps until it starts again, if that was refused or it has left.
    pause: u32,
    tasks: Vec<Option<Task>>,
}

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Ending {
    Kill,
    PowerCut,
    Leave,
}

struct StateCluster {
    net: SimNet,
    /// All lives end by a leave: nothing is lost then.
    gently: bool,
    /// A node that had joined has failed, perhaps with lines of volatile memory, or the cluster was founded again, perhaps
    /// by a node with the number of one that was drained: the run says nothing more.
    is_void: bool,
    /// The cluster was founded.
    is_founded: bool,
    places: Vec<Place>,
    random: Random,
    config: Config,
    shared: Rc<StateBoard>,
    summary: StateSummary,
}

/// Runs the kills and returns of a seed.
///
/// # Errors
/// The violated property, with the seed.
pub fn simulate_state(seed: u64) -> Result<StateSummary, String> {
    run(seed).map_err(|trouble| format!("seed {seed}: {trouble}"))
}

fn run(seed: u64) -> Result<StateSummary, String> {
    let mut cluster = StateCluster::new(seed);
    for place in 0..cluster.places.len() {
        cluster.start(place)?;
        cluster.until(|cluster| cluster.places[place].node.is_some())?;
    }
    cluster.allocate()?;
    let rounds = cluster.random.between(1, 3);
    for _ in 0..rounds {
        cluster.round()?;
        if cluster.is_void {
            super::check_history(&cluster.shared.history.borrow())?;
            return Ok(StateSummary { drains: 0, ..cluster.summary });
        }
    }
    cluster.agree()?;
    super::check_history(&cluster.shared.history.borrow())?;
    let StateCluster { mut summary, shared, gently, .. } = cluster;
    if gently && shared.losses.get() > 0 {
        return Err("writes were lost by a leave".to_owned());
    }
    if gently && shared.ended_locks.get() > 0 {
        return Err("a lock was ended by a leave".to_owned());
    }
    let history = shared.history.borrow();
    summary.done = history.iter().filter(|record| record.ended.is_some()).count() as u64;
    (summary.failed, summary.losses) = (shared.failed.get(), shared.losses.get());
    Ok(summary)
}

impl StateCluster {
    fn new(seed: u64) -> Self {
        let mut random = Random::new(seed ^ 0x57a7e);
        let common = Capabilities { byte_order: false, loads: true, ..SHARED_MEMORY };
        let capabilities = *random.pick(&[INFINIBAND, common]);
        let net = SimNet::new(seed, SimOptions::draw(seed, capabilities));
        let config = Config::new("sim")
            .memory_bytes(1 << 20)
            .cache_bytes(random.between(1, 2) * 8 * LineSize::DEFAULT.bytes() as u64)
            .limits(Limits { nodes_max: NUMBERS, ..Limits::DEFAULT })
            .return_timeout_ns(*random.pick(&[0, 1_000_000, 600_000_000_000]))
            .write_back_ns(*random.pick(&[None, Some(100_000)]));
        let (with_state, without) = (random.between(1, 2), random.between(0, 2));
        let place = |disk| Place {
            disk,
            is_volatile: false,
            began_volatile: false,
            lives: 0,
            node: None,
            joining: None,
            leaving: None,
            pause: 0,
            tasks: Vec::new(),
        };
        let kept = (0..with_state).map(|number| place(Some(SimDisk::new(seed ^ number << 60))));
        let mut places: Vec<Place> = kept.chain((0..without).map(|_| place(None))).collect();
        let shared = Rc::new(StateBoard::default());
        shared.patient.set(config.return_timeout_ns > 1_000_000);
        let gently = random.chance(250);
        shared.strict.set(gently && shared.patient.get());
        for place in places.iter_mut().filter(|place| gently && place.disk.is_some()) {
            place.is_volatile = random.chance(500);
            place.began_volatile = place.is_volatile;
        }
        Self {
            net,
            gently,
            is_void: false,
            is_founded: false,
            places,
            random,
            config,
            shared,
            summary: StateSummary::default(),
        }
    }

    fn process(&self, place: usize) -> String {
        format!("place-{place}-{}", self.places[place].lives)
    }

    /// Starts a process: it founds the cluster if there is no other.
    fn start(&mut self, at: usize) -> Result<(), String> {
        let is_first = self.places.iter().all(|place| {
            place.node.is_none() && place.joining.is_none() && place.leaving.is_none()
        });
        let was_drained = |place: &Place| place.began_volatile && !place.is_volatile;
        self.is_void |= is_first && self.is_founded && self.places.iter().any(was_drained);
        self.is_founded = true;
        let fabric = self.net.fabric(&self.process(at));
        let config = self.config.clone();
        let place = &self.places[at];
        let device = place.disk.as_ref().filter(|_| !place.is_volatile).map(SimDisk::device);
        let config = if place.disk.is_some() { config } else { config.memory_bytes(0) };
        let started = match (is_first, device) {
            (true, Some(device)) => Node::create_driven_with_state(&config, fabric, device).map(Ok),
            (true, None) => Node::create_driven(&config, fabric).map(Ok),
            (false, Some(device)) => Joining::start_with_state(&config, fabric, device).map(Err),
            (false, None) => Joining::start(&config, fabric).map(Err),
        };
        match started {
            Ok(Ok(node)) => self.places[at].node = Some(node),
            Ok(Err(joining)) => self.places[at].joining = Some(joining),
            Err(error) if may_pass(error.code) => self.end_life(at, PAUSE),
            Err(error) => return Err(format!("start of {at}: {error}")),
        }
        Ok(())
    }

    fn end_life(&mut self, at: usize, pause: u32) {
        self.net.kill(&self.process(at));
        let place = &mut self.places[at];
        place.pause = pause;
        (place.node, place.joining, place.leaving) = (None, None, None);
        place.tasks.clear();
        place.lives += 1;
    }

    /// Performs one random step, and polls those that join and all tasks. Returns whether anything happened.
    fn step(&mut self) -> Result<bool, String> {
        let mut busy = match self.random.chance(600) {
            true => self.net.step(),
            false => {
                let at = self.random.index(self.places.len());
                self.places[at].node.as_ref().is_some_and(Node::progress)
            }
        };
        for at in 0..self.places.len() {
            let left = self.places[at].leaving.as_mut().and_then(Leaving::poll);
            if let Some(left) = left {
                left.map_err(|error| format!("leave of {at}: {error}"))?;
                self.summary.drains += u64::from(self.places[at].is_volatile);
                self.places[at].is_volatile = false;
                self.end_life(at, PAUSE);
                busy = true;
            }
            if self.places[at].pause > 0 {
                self.places[at].pause -= 1;
                if self.places[at].pause == 0 {
                    self.start(at)?;
                }
                busy = true;
            }
            let Some(joining) = self.places[at].joining.as_mut() else {
                continue;
            };
            match joining.poll() {
                Ok(None) => {}
                Ok(Some(node)) => {
                    self.places[at].joining = None;
                    self.places[at].node = Some(node);
                    busy = true;
                }
                Err(error) if may_pass(error.code) => {
                    self.shared.strict.set(false);
                    self.gently = false; // others may have used its memory already: this is a death
                    self.is_void |= self.places.iter().any(|place| place.is_volatile);
                    self.end_life(at, PAUSE);
                }
                Err(error) => return Err(format!("join of {at}: {error}")),
            }
        }
        let mut context = Context::from_waker(Waker::noop());
        for task in self.places.iter_mut().flat_map(|place| &mut place.tasks) {
            let polled = task.as_mut().map(|task| task.as_mut().poll(&mut context));
            if polled.is_some_and(|polled| polled.is_ready()) {
                (*task, busy) = (None, true);
            }
        }
        match self.shared.trouble.borrow_mut().take() {
            Some(trouble) => Err(trouble),
            None => Ok(busy),
        }
    }

    fn until(&mut self, done: impl Fn(&Self) -> bool) -> Result<(), String> {
        let mut idle = 0;
        while !done(self) {
            idle = if self.step()? { 0 } else { idle + 1 };
            if idle > IDLE_MAX {
                return Err(format!("stuck: {}", self.describe()));
            }
        }
        Ok(())
    }

    fn describe(&self) -> String {
        let nodes = self.places.iter().map(|place| match &place.node {
            Some(node) => node.describe(),
            None => format!("{:?}", place.joining),
        });
        nodes.collect::<Vec<_>>().join("; ")
    }

    /// Polls a future to its end.
    fn finish<T: 'static>(
        &mut self,
        future: impl Future<Output = T> + 'static,
    ) -> Result<T, String> {
        let result = Rc::new(RefCell::new(None));
        let task = {
            let result = Rc::clone(&result);
            Box::pin(async move { *result.borrow_mut() = Some(future.await) })
        };
        self.places[0].tasks.push(Some(task));
        self.until(|_| result.borrow().is_some())?;
        result.borrow_mut().take().ok_or_else(|| "no result".to_owned())
    }

    fn session(&self, at: usize) -> Result<Session, String> {
        let node = self.places[at].node.as_ref().ok_or("no node")?;
        node.session().map_err(|error| error.to_string())
    }

    fn allocate(&mut self) -> Result<(), String> {
        for at in 0..self.places.len() {
            if self.places[at].disk.is_none() {
                continue;
            }
            let hint = AllocationHint::On(self.places[at].node.as_ref().ok_or("no node")?.id());
            let durability = match self.places[at].is_volatile {
                true => Durability::Volatile,
                false => Durability::Logged,
            };
            let spec = AllocationSpec::new(hint).durability(durability);
            for _ in 0..self.random.between(1, 2) {
                let mut session = self.session(0)?;
                let line = self.finish(async move { session.alloc_with_async(512, spec).await })?;
                let line = line.map_err(|error| error.to_string())?;
                let words = self.random.between(1, 2);
                let words = (0..words).filter_map(|word| line.checked_add(word * 64));
                self.shared.words.borrow_mut().extend(words);
            }
        }
        Ok(())
    }

    /// Runs one round: all work, and some are killed meanwhile and return.
    fn round(&mut self) -> Result<(), String> {
        for at in 0..self.places.len() {
            self.work(at)?;
        }
        let mut kills: Vec<(u64, usize, Ending)> = Vec::new();
        for _ in 0..self.random.between(1, 3) {
            let at = self.random.index(self.places.len());
            let ending = match self.gently {
                true => Ending::Leave,
                false => *self.random.pick(&[Ending::Kill, Ending::PowerCut, Ending::Leave]),
            };
            kills.push((self.random.below(1_500), at, ending));
        }
        kills.sort_unstable_by(|one, other| other.cmp(one)); // the next one is the last
        let (mut step, mut idle) = (0, 0);
        let mut returns: Vec<(u64, usize)> = Vec::new();
        loop {
            while let Some((_, at, ending)) = kills.pop_if(|(when, ..)| *when <= step) {
                if self.places[at].node.is_none() {
                    continue;
                }
                if ending == Ending::Leave {
                    let place = &mut self.places[at];
                    place.tasks.clear();
                    let disk = place.disk.as_ref().filter(|_| place.is_volatile);
                    place.leaving = match (place.node.take(), disk) {
                        (Some(node), Some(disk)) => {
                            let started = node.start_draining(disk.device());
                            Some(started.map_err(|error| format!("drain of {at}: {error}"))?)
                        }
                        (node, _) => node.map(Node::start_leaving),
                    };
                    continue;
                }
                self.end_life(at, 0);
                let cut = ending == Ending::PowerCut;
                if let Some(disk) = self.places[at].disk.as_ref().filter(|_| cut) {
                    disk.restart();
                }
                returns.push((step + self.random.below(600), at));
            }
            let due: Vec<usize> =
                returns.extract_if(.., |(when, _)| *when <= step).map(|(_, at)| at).collect();
            for at in due {
                self.start(at)?;
            }
            if self.is_void {
                return Ok(());
            }
            let ready = self.places.iter().all(|place| place.node.is_some());
            let works = self.places.iter().flat_map(|place| &place.tasks).any(Option::is_some);
            if ready && !works && kills.is_empty() && returns.is_empty() {
                return Ok(());
            }
            step += 1;
            let waits = !kills.is_empty() || !returns.is_empty();
            idle = if self.step()? || waits { 0 } else { idle + 1 };
            if self.is_void {
                return Ok(());
            }
            if idle > IDLE_MAX {
                return Err(format!("stuck: {}", self.describe()));
            }
        }
    }

    fn work(&mut self, at: usize) -> Result<(), String> {
        for _ in 0..self.random.between(1, 2) {
            let (session, board) = (self.session(at)?, Rc::clone(&self.shared));
            let (random, number) = (self.random.fork(), board.sessions.get());
            board.sessions.set(number + 1);
            let count = self.random.between(2, 12);
            let worker = StateWorker { session, board, random, number };
            self.places[at].tasks.push(Some(Box::pin(worker.run(count))));
        }
        Ok(())
    }

    /// Reads each word at each node: the reads are part of the history.
    fn agree(&mut self) -> Result<(), String> {
        let returned = |place: &Place| place.disk.is_some() && place.lives > 0;
        self.summary.returns = self.places.iter().filter(|place| returned(place)).count() as u64;
        for at in 0..self.places.len() {
            let words = self.shared.words.borrow().clone();
            for (word, address) in words.into_iter().enumerate() {
                let mut session = self.session(at)?;
                let began = self.shared.now();
                let read = self.finish(async move {
                    let read = session.read_u64_async(address).await;
                    session.fence_async().await.ok(); // a loss that was not told yet
                    read
                })?;
                let value = read.map_err(|error| format!("word {word} at {at}: {error}"))?;
                let (action, ended) = (WordAction::Read(value), Some(self.shared.now()));
                let session = usize::MAX - at;
                let record = OperationRecord { word, session, action, began, ended };
                self.shared.history.borrow_mut().push(record);
            }
        }
        Ok(())
    }
}

/// Whether a start or join may succeed later: the coordinator is gone, its successor has not bound the name, or the
/// removal of the last life is not settled.
const fn may_pass(code: ErrorCode) -> bool {
    matches!(
        code,
        ErrorCode::NoSuchCluster
            | ErrorCode::NodeClosed
            | ErrorCode::Busy
            | ErrorCode::ClusterFull
            | ErrorCode::NameTaken
    )
}
