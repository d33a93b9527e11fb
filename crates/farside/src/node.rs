//! A node of a cluster: set-up, joining, leaving.

use crate::clock::Clock;
use crate::commits::Committer;
use crate::durable::{CopyStatus, LogDevice};
use crate::engine::{
    Admission, Applicant, Engine, Inquiry, Links, MESSAGE_BYTES, Regions, Unanswered, fabric_error,
    member_name, rendezvous_name,
};
use crate::hit::{Lines, SEGMENT};
use crate::leave::{Departure, Leaving, leave_timeout, removal_ns};
use crate::operation::SessionSlots;
use crate::progress::Progress;
use crate::saver::Saver;
use crate::session::{CALL_SLOTS, Session, prefetch_slots};
use crate::state::NodeState;
use crate::state_report::StateReport;
use crate::wait::{AWAKE, Core, Drive, Parker, pause, serve, tick};
use crate::{Config, Error, ErrorCode, NodeId, SessionId, Stats};
use farside_base::waiting::Backoff;
use farside_base::{AtomicScope, Generation, Incarnation, MemoryId, Requirements, ViewNumber};
use farside_fabric::{Fabric, FabricError};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a joiner waits for a cluster to answer.
const JOIN_PATIENCE: Duration = Duration::from_secs(10);
/// Possible reasons why a joiner is not linked to all members in time.
const NOT_LINKED: &str = "not linked to all members in time: one does not answer, or its process or this one \
                          has no descriptor left (raise RLIMIT_NOFILE, ulimit -n)";

/// A member of the cluster, as this node sees it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Member {
    /// Its number.
    pub node: NodeId,
    /// The number of membership changes up to its admission: distinguishes nodes that had the same number.
    pub admission: u64,
    /// Whether it is alive.
    pub alive: bool,
    /// Free memory of which it is home, as last reported.
    pub memory_free_bytes: u64,
    /// Its address, current or last, on fabrics between hosts: joiners may ask there.
    pub host: Option<SocketAddr>,
}

/// A node of a cluster: this process's share of the memory, and its access to the rest. Clones share it;
/// the node leaves when the last clone and the last session are gone.
#[derive(Clone, Debug)]
pub struct Node {
    shared: Arc<NodeShared>,
}

/// The state that clones and sessions keep alive.
#[derive(Debug)]
pub(crate) struct NodeShared {
    pub(crate) core: Arc<Core>,
    server: Mutex<Option<JoinHandle<()>>>,
    /// Commits the log of a node with state.
    committer: Mutex<Option<Committer>>,
    left: AtomicBool,
    session_count: AtomicU64,
    path: String,
    copies: Option<CopyStatus>,
}

/// The requirements of a node on a fabric.
pub const REQUIREMENTS: Requirements = Requirements {
    write: true,
    send: true,
    message_order: true,
    shared_receive_queue: true,
    sleep: true,
    atomics: AtomicScope::None,
    send_bytes: MESSAGE_BYTES,
    ..Requirements::NOTHING
};

/// The parts of a node before it is in a cluster.
struct NodeSetup {
    config: Config,
    fabric: Arc<dyn Fabric>,
    applicant: Applicant,
    regions: Regions,
    drive: Drive,
    state: NodeState,
}

impl NodeSetup {
    fn new(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        drive: Drive,
        state: NodeState,
    ) -> Result<Self, Error> {
        config.check()?;
        crate::resources::check(config)?;
        let capabilities = fabric.capabilities();
        REQUIREMENTS.check(&capabilities).map_err(|missing| {
            Error::with(ErrorCode::FabricLacks, format!("{} lacks {}", fabric.name(), missing.0))
        })?;
        let home_bytes = config.memory_bytes.next_multiple_of(SEGMENT).max(SEGMENT);
        let lends = config.direct_reads && capabilities.loads;
        let regions = Regions::new(&fabric, home_bytes, config.cache_size(), lends)?;
        // As random as the key of a region, which a simulated fabric derives from its seed.
        let incarnation = Incarnation(regions.home.token.key.0);
        let (host, lease_ns) = (fabric.host(), fabric.lease_ns());
        if config.witness && host.is_none() {
            let detail = format!(
                "witness: members do not vote over {}: start it over tcp or verbs, or leave it out",
                fabric.name()
            );
            return Err(Error::with(ErrorCode::BadConfiguration, detail));
        }
        let applicant = Applicant::new(config, incarnation, host, lease_ns, state.keeps);
        Ok(Self { config: config.clone(), fabric, drive, applicant, regions, state })
    }

    /// Asks the cluster for a number, at the given host or wherever the cluster is found.
    fn ask(&self, host: Option<SocketAddr>) -> Result<Inquiry, Unanswered> {
        let name = rendezvous_name(&self.config.cluster);
        let name = host.map_or_else(|| name.clone(), |host| format!("{host}/{name}"));
        Inquiry::ask(&*self.fabric, &name, &self.applicant.request())
    }

    fn lines(&self, me: (NodeId, Option<MemoryId>), clock: Clock) -> Result<Lines, Error> {
        let config = &self.config;
        let none = || Error::with(ErrorCode::System, "no room for the fence word");
        let fence_word = self.regions.fence_word().ok_or_else(none)?;
        let Regions { home, cache, tags, .. } = &self.regions;
        let home = (home.arena.clone(), tags.clone());
        Lines::new(me, home, cache.arena.clone(), fence_word, clock).ok_or_else(|| {
            let bytes = config.cache_bytes / 8 * 5;
            let detail = format!("no memory for the cache's tags, {bytes} B: lower cache_bytes");
            Error::with(ErrorCode::System, detail)
        })
    }

    /// The engine of node `me`, listening, without links.
    fn engine(
        &mut self,
        me: NodeId,
        born: ViewNumber,
        memory: Option<Generation>,
    ) -> Result<Engine, Error> {
        let has_thread = self.drive == Drive::Threads;
        let state = self.state.driver(&self.config, (me, memory), has_thread)?;
        let config = &self.config;
        let name = member_name(&config.cluster, me, born);
        let (regions, counts_polls) = (self.regions.clone(), self.drive == Drive::Threads);
        let limits = &config.limits;
        let links = Links::open(&self.fabric, (me, name), regions, limits, counts_polls)?;
        let clock = match self.drive {
            Drive::Threads => Clock::of_processor(),
            Drive::Caller => Clock::Fabric(Arc::clone(&self.fabric)),
        };
        let memory = memory.and_then(|generation| MemoryId::new(me, generation));
        let lines = self.lines((me, memory), clock)?;
        Engine::new(config, &self.applicant, lines, links, self.request_patience_ns(), state)
    }

    /// The timeout of requests without a link: longer than a joiner waits, and than members take to learn
    /// of each other's removal.
    fn request_patience_ns(&self) -> u64 {
        let join_ns = u64::try_from(JOIN_PATIENCE.as_nanos()).unwrap_or(u64::MAX);
        removal_ns(self.applicant.leases()).max(join_ns)
    }

    fn finish(self, mut engine: Engine) -> Result<Node, Error> {
        let core = Arc::new(Core {
            lines: Arc::clone(engine.lines()),
            lock_cells: engine.lock_cells().clone(),
            member_steps: engine.watches().member_steps(),
            direct_homes: engine.direct_homes(),
            waiter: engine.links().waiter(),
            engine: Mutex::new(engine),
            server: AtomicU8::new(AWAKE),
            blocked: AtomicU32::new(0),
            parked: AtomicU32::new(0),
            awaited: AtomicBool::new(false),
            driven: AtomicU32::new(0),
            counted_since: Mutex::new(Instant::now()),
            sleeps: AtomicU64::new(0),
            closing: AtomicBool::new(false),
            began: Instant::now(),
            alarm_ns: AtomicU64::new(u64::MAX),
            wakes_at_ns: AtomicU64::new(0),
            timeout: self.config.timeout_ns.map(Duration::from_nanos),
            leave_timeout: leave_timeout(&self.config, self.applicant.leases()),
            spin: Duration::from_nanos(self.config.spin_ns),
            limits: self.config.limits,
            line_size: self.config.line_size,
            memory_bytes: self.config.memory_bytes,
            is_witness: self.config.witness,
            fabric: self.fabric,
            drive: self.drive,
        });
        let for_log = Arc::clone(&core);
        let report = move |committed: Result<(), Error>| {
            for_log.with_engine(|engine| match committed {
                Ok(()) => _ = engine.state_progress(),
                Err(error) => engine.state_failed(&error),
            });
        };
        let log = core.engine().log_and_signal();
        let committer = log.map(|log| Committer::start(log, report)).transpose()?;
        let server = match self.drive {
            Drive::Caller => None,
            Drive::Threads => {
                let for_server = Arc::clone(&core);
                let thread =
                    std::thread::Builder::new().name(format!("farside-{}", core.lines.me()));
                let server = thread.spawn(move || serve(&for_server));
                let none = |reason| fabric_error(FabricError::System("node thread", reason));
                Some(server.map_err(none)?)
            }
        };
        let path = format!("{}: {:?}", core.fabric.name(), core.fabric.capabilities());
        let copies = self.state.copies;
        Ok(Node {
            shared: Arc::new(NodeShared {
                core,
                server: Mutex::new(server),
                committer: Mutex::new(committer),
                left: AtomicBool::new(false),
                session_count: AtomicU64::new(0),
                path,
                copies,
            }),
        })
    }
}

/// A join in progress that its caller drives: for simulation, and for programs with their own event loop.
/// [`Node::join`] does the same and blocks.
pub struct Joining {
    setup: Option<NodeSetup>,
    asking: Option<Inquiry>,
    engine: Option<Engine>,
    /// How often a node has redirected this one to another host.
    sent_on: u32,
}

/// How often a joiner follows a redirection to another host; the coordinator may change meanwhile.
const SENT_ON_MAX: u32 = 8;

impl std::fmt::Debug for Joining {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Joining({})", if self.engine.is_some() { "linking" } else { "asking" })
    }
}

impl Joining {
    /// Sets up a node and asks the cluster to admit it. The caller drives the node by [`Node::progress`]; it
    /// has no thread of its own.
    ///
    /// # Errors
    /// As [`Node::join`].
    pub fn start(config: &Config, fabric: Arc<dyn Fabric>) -> Result<Self, Error> {
        let state = NodeState::open(config, &fabric)?;
        Self::start_keeping(config, fabric, state)
    }

    /// As [`start`](Self::start), for a node whose state is on a device, such as copies in memory of other processes.
    ///
    /// # Errors
    /// As `start`; those of opening the state.
    pub fn start_with_state(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        device: Box<dyn LogDevice>,
    ) -> Result<Self, Error> {
        Self::start_keeping(config, fabric, NodeState::on(config, device)?)
    }

    /// As [`start`](Self::start), for a node that keeps something of its earlier lives.
    pub(crate) fn start_keeping(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        state: impl Into<NodeState>,
    ) -> Result<Self, Error> {
        Self::with(config, fabric, Drive::Caller, state.into()).map_err(|failure| failure.error)
    }

    fn with(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        drive: Drive,
        state: NodeState,
    ) -> Result<Self, Unanswered> {
        let setup = NodeSetup::new(config, fabric, drive, state)?;
        let asking = Some(setup.ask(None)?);
        Ok(Self { setup: Some(setup), asking, engine: None, sent_on: 0 })
    }

    /// Continues without waiting; returns the node once it is linked to all members.
    ///
    /// # Errors
    /// As [`Node::join`]; joining is over then.
    pub fn poll(&mut self) -> Result<Option<Node>, Error> {
        self.advance().map_err(|failure| failure.error)
    }

    fn advance(&mut self) -> Result<Option<Node>, Unanswered> {
        if let Some(answer) = self.asking.as_mut().and_then(Inquiry::poll)
            && let Some(inquiry) = self.asking.take()
        {
            self.answered(inquiry, &answer?)?;
        }
        let Some(engine) = self.engine.as_mut() else {
            return Ok(None);
        };
        if !engine.advance_join()? {
            return Ok(None);
        }
        match (self.setup.take(), self.engine.take()) {
            (Some(setup), Some(engine)) => Ok(setup.finish(engine).map(Some)?),
            _ => Ok(None),
        }
    }

    fn answered(&mut self, inquiry: Inquiry, answer: &[u8]) -> Result<(), Unanswered> {
        let Some(setup) = self.setup.as_mut() else {
            return Ok(());
        };
        let welcome = match setup.applicant.answered(answer)? {
            Admission::Admitted(welcome) => welcome,
            Admission::Elsewhere(host) => return self.ask_elsewhere(host),
        };
        setup.config.limits.nodes_max = welcome.settings.nodes_max;
        let mut engine = setup.engine(welcome.node, welcome.view, welcome.memory)?;
        engine.join(welcome, inquiry);
        self.engine = Some(engine);
        Ok(())
    }

    fn ask_elsewhere(&mut self, host: SocketAddr) -> Result<(), Unanswered> {
        self.sent_on += 1;
        if self.sent_on > SENT_ON_MAX {
            let text = format!("members disagree about the coordinator; the last one named {host}");
            return Err(Error::with(ErrorCode::Busy, text).into());
        }
        if let Some(setup) = self.setup.as_ref() {
            self.asking = Some(setup.ask(Some(host))?);
        }
        Ok(())
    }
}

impl Node {
    /// Starts a new cluster on this machine with this process as its first node.
    ///
    /// *Blocks* while the memory is mapped and prepared.
    ///
    /// # Errors
    /// `NameTaken`, `BadConfiguration`, `System`.
    pub fn create(config: &Config) -> Result<Self, Error> {
        Self::create_on(config, crate::fabrics::shared_memory()?)
    }

    /// As [`create`](Self::create), on a given fabric.
    ///
    /// # Errors
    /// As `create`, and `FabricLacks`.
    pub fn create_on(config: &Config, fabric: Arc<dyn Fabric>) -> Result<Self, Error> {
        let state = NodeState::open(config, &fabric)?;
        Self::create_with(config, fabric, Drive::Threads, state)
    }

    /// As [`create_on`](Self::create_on), for a node that its caller drives by [`progress`](Self::progress),
    /// without a thread of its own. Use only the awaitable twins then, polled between calls of `progress`.
    ///
    /// # Errors
    /// As `create_on`.
    pub fn create_driven(config: &Config, fabric: Arc<dyn Fabric>) -> Result<Self, Error> {
        let state = NodeState::open(config, &fabric)?;
        Self::create_with(config, fabric, Drive::Caller, state)
    }

    /// As [`create_driven`](Self::create_driven), for a node whose state is on a device.
    ///
    /// # Errors
    /// As `create_driven`; those of opening the state.
    pub fn create_driven_with_state(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        device: Box<dyn LogDevice>,
    ) -> Result<Self, Error> {
        Self::create_with(config, fabric, Drive::Caller, NodeState::on(config, device)?)
    }

    /// As [`create_on`](Self::create_on), for a node that keeps something of its earlier lives.
    pub(crate) fn create_with(
        config: &Config,
        fabric: Arc<dyn Fabric>,
        drive: Drive,
        state: impl Into<NodeState>,
    ) -> Result<Self, Error> {
        config.check()?;
        // The name first: its holder is the cluster, and a node that cannot get it maps no memory.
        let rendezvous = Links::listen_at_rendezvous(&*fabric, &config.cluster)?;
        let mut setup = NodeSetup::new(config, fabric, drive, state.into())?;
        let (me, memory) = setup.applicant.founding()?;
        let mut engine = setup.engine(me, ViewNumber(1), memory)?;
        engine.links().set_rendezvous(rendezvous);
        engine.found();
        engine.poll();
        setup.finish(engine)
    }

    /// Polls the engine once, without blocking; true if there was work. For nodes that their caller drives;
    /// harmless for others.
    pub fn progress(&self) -> bool {
        let busy = self.shared.core.engine().poll();
        self.shared.core.ring_due();
        self.shared.core.drove();
        busy
    }

    /// Joins a cluster that runs on this machine.
    ///
    /// *Blocks* until this node is linked to all members. Failed attempts that may succeed later (the
    /// coordinator changes, its listener was full) are repeated for up to 10 s.
    ///
    /// # Errors
    /// `NoSuchCluster`, `ClusterFull`, `VersionMismatch`, `LimitsMismatch`, `NotPermitted`,
    /// `TimedOut`, `BadConfiguration`, `System`.
    pub fn join(config: &Config) -> Result<Self, Error> {
        Self::join_on(config, crate::fabrics::shared_memory()?)
    }

    /// As [`join`](Self::join), on a given fabric.
    ///
    /// # Errors
    /// As `join`, and `FabricLacks`.
    pub fn join_on(config: &Config, fabric: Arc<dyn Fabric>) -> Result<Self, Error> {
        let deadline = Instant::now() + JOIN_PATIENCE;
        let mut delays = Backoff::JOINS;
        loop {
            match Self::join_once(config, &fabric, deadline) {
                // Start over with a new incarnation.
                Err(failure) if failure.may_pass && Instant::now() < deadline => {
                    pause(Duration::from_nanos(delays.next_ns()));
                }
                done => return done.map_err(|failure| failure.error),
            }
        }
    }

    fn join_once(
        config: &Config,
        fabric: &Arc<dyn Fabric>,
        deadline: Instant,
    ) -> Result<Self, Unanswered> {
        let mut joining = Joining::with(
            config,
            Arc::clone(fabric),
            Drive::Threads,
            NodeState::open(config, fabric)?,
        )?;
        loop {
            if let Some(node) = joining.advance()? {
                return Ok(node);
            }
            if Instant::now() > deadline {
                return Err(Error::with(ErrorCode::TimedOut, NOT_LINKED).into());
            }
            tick();
        }
    }

    pub(crate) fn core(&self) -> &Core {
        &self.shared.core
    }

    /// This node's number.
    pub fn id(&self) -> NodeId {
        self.shared.core.lines.me()
    }

    /// The memory that this node lends, which its addresses name, and no later node's do. `None` if it
    /// lends none.
    pub fn memory(&self) -> Option<MemoryId> {
        self.shared.core.lines.memory()
    }

    /// The name and capabilities of this node's fabric.
    pub fn path(&self) -> &str {
        &self.shared.path
    }

    /// A new program order on this node, for one thread or task.
    ///
    /// # Errors
    /// `TooManySessions`, `NodeClosed`; `BadConfiguration` at a witness ([`Config::witness`]): open another node.
    pub fn session(&self) -> Result<Session, Error> {
        let core = &self.shared.core;
        if core.is_witness {
            let detail =
                "witness: a witness has no sessions: open another node, without Config::witness";
            return Err(Error::with(ErrorCode::BadConfiguration, detail));
        }
        let count = self.shared.session_count.fetch_add(1, Ordering::Relaxed);
        let id = SessionId::new(self.id(), count);
        let limits = &core.limits;
        let count = CALL_SLOTS + limits.writes_in_flight_max as usize + prefetch_slots(limits);
        let slots = core.engine().open_session(id, count, limits.sessions_max)?;
        Ok(Session::new(Arc::clone(&self.shared), slots))
    }

    /// Returns how this node keeps its memory at the moment; `None` for a node without state. The positions tell how much of
    /// what it has logged is durable; what other nodes have in their caches is not in them until a fence.
    pub fn state_report(&self) -> Option<StateReport> {
        self.shared.core.engine().state_report()
    }

    /// Returns an error, with address and reason, for each copy of its state ([`Config::state_copies`]) that this node
    /// continues without: those that its start has not reached, and those lost since. Such copies may have an old state.
    /// Start the node again with a new copy in the place of each, before it loses more than `state_copies_min` allows.
    pub fn lost_copies(&self) -> Vec<Error> {
        self.shared.copies.as_ref().map_or_else(Vec::new, CopyStatus::lost)
    }

    /// The members, and the nodes removed since this node joined whose numbers were not reassigned, by
    /// number.
    pub fn members(&self) -> Vec<Member> {
        let engine = self.shared.core.engine();
        (0..self.shared.core.limits.nodes_max)
            .map(NodeId)
            .filter(|node| engine.membership().has_been(*node))
            .map(|node| Member {
                node,
                admission: engine.membership().born_of(node).0,
                alive: engine.membership().is_alive(node),
                memory_free_bytes: engine.free_bytes_of(node),
                host: engine.membership().host(node),
            })
            .collect()
    }

    /// A random number that distinguishes this cluster from others of the same name; equal on all its
    /// nodes.
    pub fn cluster_id(&self) -> u64 {
        self.shared.core.engine().membership().founder().0
    }

    /// The maximum number of members at a time, set by the cluster's founder
    /// ([`Limits::nodes_max`](farside_base::Limits::nodes_max)).
    pub fn members_max(&self) -> usize {
        self.shared.core.engine().membership().occupancy().1
    }

    /// How long a member may be silent: the leases of the fabric and of members ([`Config::lease_ns`])
    /// together, set by the founder of the cluster.
    pub fn lease(&self) -> Duration {
        let leases = self.shared.core.engine().membership().leases();
        Duration::from_nanos(leases.fabric_ns.saturating_add(leases.member_ns))
    }

    /// Blocks until at least `count` nodes, including this one, are alive and linked to this one.
    ///
    /// # Errors
    /// `TimedOut`, `NodeClosed`.
    pub fn wait_for_members(&self, count: usize, timeout: Duration) -> Result<(), Error> {
        let deadline = Instant::now().checked_add(timeout);
        let parker = Parker::new();
        loop {
            let seen = self.member_steps();
            if self.core().engine().peers() + 1 >= count {
                return Ok(());
            }
            if let Some(code) = self.closed_with() {
                return Err(code.into());
            }
            if deadline.is_some_and(|deadline| Instant::now() >= deadline) {
                return Err(Error::new(ErrorCode::TimedOut));
            }
            self.watch_members(seen, deadline, &parker);
        }
    }

    /// Counters of this node.
    pub fn stats(&self) -> Stats {
        let core = &self.shared.core;
        let sleeps = core.sleeps.load(Ordering::Relaxed);
        Stats { sleeps, ..core.engine().stats() }
    }

    /// Evicts all cached lines that are not in use; does not wait for the homes.
    ///
    /// *Guarantees*: nothing that was written is lost. *Cost*: one message per line, and a recall with
    /// its bytes for a dirty one.
    pub fn evict_all(&self) {
        self.shared.core.with_engine(Engine::evict_all);
    }

    /// Describes the node's state in one line, with the reason if it failed; for people.
    pub fn describe(&self) -> String {
        self.shared.core.engine().describe()
    }

    /// Leaves the cluster: hands over what this node holds of other homes, then ends together with the
    /// memory that it is home of.
    ///
    /// *Guarantees*: all writes by sessions of this node to memory of other homes, including asynchronous
    /// ones, are complete. Locks of this node's sessions are released. Other nodes get
    /// [`ErrorCode::NodeLeft`] for memory of this home, or wait for its return if it has state: what is
    /// locked there is unlocked, and its lines are taken back and logged first. Sessions of this node fail with
    /// `NodeClosed` from the call on (on a node with state, once they hold no lock); operations in flight complete first.
    /// Nodes that leave at the same time do not wait for each other's memory.
    ///
    /// *Blocks* until every other node has processed this node's messages: two round trips, and one for the
    /// lines of each home; at most [`Config::leave_timeout_ns`], and half of it more with state. An operation with a forgotten future that
    /// holds lines costs 0.1 s. A node with state first waits for that half until what is locked there, also by
    /// its own sessions, is unlocked; other sessions wait for its return. Dropping the node does not wait for locks. A
    /// clone that calls it after another does nothing.
    ///
    /// # Errors
    /// `TimedOut` if a home did not take its lines back in time, or a member did not answer; `NodeClosed`
    /// or `Isolated` if the cluster removed this node before. The node has left nevertheless, and lines
    /// that only it had are lost.
    pub fn leave(self) -> Result<Departure, Error> {
        self.shared.leave(self.shared.core.leave_timeout / 2)
    }

    /// Starts to leave, for a node that its caller drives by [`progress`](Self::progress): poll the result, and
    /// drive the other nodes. A driven node that is dropped without this ends as in a crash.
    pub fn start_leaving(self) -> Leaving {
        let unlock_timeout = self.shared.core.leave_timeout / 2;
        self.shared.core.engine().begin_leave(unlock_timeout, false);
        Leaving { shared: self.shared, saver: None }
    }

    /// Starts to leave with its memory saved; `None` if it leaves already.
    pub(crate) fn leave_with(self, saver: Saver) -> Option<Leaving> {
        let unlock_timeout = self.shared.core.leave_timeout / 2;
        let begins = self.shared.core.engine().begin_leave(unlock_timeout, true);
        begins.then(|| Leaving { shared: self.shared, saver: Some(saver) })
    }

    pub(crate) fn shared(&self) -> &NodeShared {
        &self.shared
    }
}

impl NodeShared {
    fn leave(&self, unlock_timeout: Duration) -> Result<Departure, Error> {
        if self.core.drive == Drive::Threads && !self.is_closed() {
            self.core.with_engine(|engine| engine.begin_leave(unlock_timeout, false));
            return self.wait_until_left(unlock_timeout, None);
        }
        self.close();
        Ok(Departure::default())
    }

    /// Whether this node has ended.
    pub(crate) fn is_closed(&self) -> bool {
        self.left.load(Ordering::SeqCst)
    }

    /// Ends this node at once and closes its open links.
    pub(crate) fn close(&self) {
        if !self.set_closed() {
            self.end();
        }
    }

    /// Claims the right to end this node; returns whether a clone already has.
    pub(crate) fn set_closed(&self) -> bool {
        self.left.swap(true, Ordering::SeqCst)
    }

    /// Ends this node, on the thread that has claimed it.
    pub(crate) fn end(&self) {
        let server = crate::mutex::locked(&self.server).take();
        self.core.engine().close_with(ErrorCode::NodeClosed);
        self.core.closing.store(true, Ordering::SeqCst);
        self.core.waiter.wake();
        if let Some(server) = server {
            let _ = server.join(); // it has no result, and a panic in it has nothing left to end
        }
        let committer = crate::mutex::locked(&self.committer).take();
        committer.into_iter().for_each(Committer::end);
        let mut engine = self.core.engine();
        engine.post();
        engine.disconnect();
        engine.close_state();
    }
}

impl Drop for NodeShared {
    fn drop(&mut self) {
        // Programs that need to know whether everything was handed over call `leave`.
        // The thread that drops it may be one that has locks.
        let _ = self.leave(Duration::ZERO);
    }
}

impl Core {
    /// Closes a session: releases its locks and frees its table entry.
    pub(crate) fn close_session(&self, slots: &SessionSlots) {
        self.with_engine(|engine| engine.close_session(slots));
    }
}
