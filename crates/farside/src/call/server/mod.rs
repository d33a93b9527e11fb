//! Server of remote memory calls: accepts clients, schedules their calls and sends replies.
//!
//! The poll loop alternates between the port and the executor. The protocol machine ([`Server`]) holds sessions,
//! at-most-once invocation (slots, sequence numbers and a reply cache, as in NFS sessions, RFC 8881 §2.10.6) and
//! start-time fair queueing over tenants and callers (Goyal, Vin and Cheng, SIGCOMM 1996).

mod lend;
pub(crate) mod quota;
mod registering;
#[cfg(test)]
mod registering_tests;
mod subscriptions;
mod upstream;

use crate::call::executor::{CallEnd, Executor, SliceOutcome};
use crate::call::memory::global::GlobalMemory;
use crate::call::memory::regions::{LentRegion, RegionSite};
use crate::call::memory::remote::BLOCK_BYTES;
use crate::call::server::subscriptions::{ListenOutcome, Subscriptions};
use crate::call::server::upstream::Upstream;
use crate::call::transport::handshake::{Hello, Purpose, Welcome};
use crate::call::transport::message_port::{
    BACKLOG_NAP, MessagePort, MessagePortSizes, OutputWrite, PortEvent,
};
use crate::patience::Patience;
use crate::registered::{Registered, control, not_reached};
use crate::{Error, ErrorCode, Node};
use farside_base::{LinkId, LocalSlice, RemoteRegionId};
use farside_fabric::{Fabric, LinkEvent, Region};
use farside_protocol::call::{
    Asked, Call, Effect, Header, Invocation, Opened, Quota, Refused, Reply, Server, Session,
    Settings, Stopped, Turn, encode_reply,
};
use farside_protocol::wire::Violation;
use farside_rmc::Limits;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limits of a poll while calls are short: replies are sent and the port is polled after about this time or this
/// many slices.
const TURN_NS: u64 = 2_000;
const TURN_SLICES: usize = 64;
/// Limit of a poll while calls are long. The port is polled after each of their slices, so that a short call waits
/// for at most one slice.
const LONG_TURN_NS: u64 = 8_000;
/// Time without a call after which registrations get longer slices; the first call waits for at most one of them.
const QUIET_NS: u64 = 1_000_000;
/// Most events handled before calls run.
const TURN_EVENTS: usize = 256;
/// Least time charged for a slice, as the clock may be coarser.
const SLICE_NS_MIN: u64 = 50;
/// Longest sleep of [`CallServer::serve`], which bounds the delay until it notifications its stop flag.
const NAP: Duration = Duration::from_millis(50);
/// Most accesses to remote memory in flight.
const BLOCKS: u64 = 64;

/// Options for a [`CallServer`]. Start from [`ServerOptions::default`].
///
/// *Cost.* Memory for `sessions` times `slots` calls: the parameters (`limits.context_bytes_max`), the output
/// and a reply of each.
#[derive(Clone, Debug)]
pub struct ServerOptions {
    /// Most callers at once.
    pub sessions: u32,
    /// Most calls of a caller in progress at once, at most 256.
    pub slots: u16,
    /// Most bytes of output of a call.
    pub output_bytes_max: u32,
    /// Limits on programs and on their use of resources.
    pub limits: Limits,
    /// How long the session of a disconnected caller is kept. `None`: the fabric's lease, which is zero on fabrics
    /// without disconnections.
    pub grace: Option<Duration>,
    /// Processor time of a caller before another caller is served.
    pub quantum_ns: u64,
    /// Quota of tenants that are not in `tenants`.
    pub quota: Quota,
    /// Quotas of tenants, by name.
    pub tenants: BTreeMap<String, Quota>,
    /// Most registrations of a tenant in progress: one is verified, the others are queued. A further one is refused
    /// with `OverQuota`.
    pub registrations: u32,
    /// Most objects verified at once, at least 1, each of another tenant. Each needs working memory of up to
    /// [`Verification::BYTES_MAX`](farside_rmc::Verification::BYTES_MAX).
    pub verifications: u32,
    /// Most bytes of objects being received or queued for verification, over all tenants. A further object is
    /// refused with `OverQuota`.
    pub registering_bytes_max: u64,
    /// Time without a further part after which an upload may be dropped. It is dropped when any caller begins the
    /// next upload.
    pub upload_timeout: Duration,
}

impl Default for ServerOptions {
    fn default() -> Self {
        Self {
            sessions: 64,
            slots: 32,
            output_bytes_max: 4096,
            limits: Limits::DEFAULT,
            grace: None,
            quantum_ns: 500,
            quota: Quota::DEFAULT,
            tenants: BTreeMap::new(),
            registrations: 64,
            verifications: 2,
            registering_bytes_max: 64 << 20,
            upload_timeout: Duration::from_secs(10),
        }
    }
}

/// The state of a session, in addition to that in the protocol machine.
#[derive(Debug)]
struct SessionState {
    link: Option<LinkId>,
    tenant: usize,
    /// Remote region for its outputs, valid on this link.
    room: Option<RemoteRegionId>,
    /// Bytes for each output in that region, on any link.
    room_bytes: u32,
    /// The object of which parts are missing.
    upload: Option<registering::Upload>,
}

/// The role of the peer of a link.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum LinkRole {
    Client(Session),
    /// Accesses the memory by one-sided requests.
    MemoryReader,
    /// Hosts the memory of this executor.
    Upstream,
}

/// Site calls of registered programs on the thread that polls it.
///
/// Its memory is lent by [`CallServer::lend`], or is that of another executor ([`CallServer::beside`]).
///
/// *Guarantees.* Each call runs at most once, whatever links do. Tenants share the processor by weight, however
/// many callers each has; callers of a tenant share its part equally. All tenants without a quota of their own form
/// one tenant. A stopped call reports where it was stopped to its caller, and affects no other call. *Cost.* Calls
/// that wait for a word or a lock are polled round robin, 16 per poll, so that they cost other calls little; their
/// wake-up latency grows with their number.
pub struct CallServer {
    fabric: Arc<dyn Fabric>,
    messages: MessagePort,
    machine: Server,
    executor: Executor,
    roles: Vec<Option<LinkRole>>,
    /// By session number.
    states: Vec<Option<SessionState>>,
    tenants: BTreeMap<String, usize>,
    outputs: Registered,
    scratch: Option<Registered>,
    lent: BTreeMap<u8, Region>,
    subscriptions: Subscriptions,
    options: ServerOptions,
    events: Vec<LinkEvent>,
    effects: Vec<Effect>,
    /// The executor that hosts the memory, unless memory is local.
    upstream: Option<Upstream>,
    served: u64,
    /// When the last call arrived.
    called_ns: u64,
    /// Arrival time of the events of this poll.
    arrival_ns: Option<u64>,
}

impl std::fmt::Debug for CallServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sessions = self.machine.sessions();
        f.debug_struct("CallServer").field("sessions", &sessions).finish_non_exhaustive()
    }
}

impl CallServer {
    /// Serves at `name`, on memory to be lent.
    ///
    /// # Errors
    /// `FabricLacks`, `AddressTaken`, `BadConfiguration`, `System`.
    pub fn listen(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &ServerOptions,
    ) -> Result<Self, Error> {
        Self::open(fabric, name, options, false)
    }

    /// Serves at `name` on the memory of the executor at `host`, accessed by one-sided requests: for a processor
    /// next to an adapter (003 §3.1). Wait until [`Self::has_memory`].
    ///
    /// # Errors
    /// As [`Self::listen`]; `NobodyListens`.
    pub fn beside(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        host: &str,
        options: &ServerOptions,
    ) -> Result<Self, Error> {
        let mut server = Self::open(fabric, name, options, true)?;
        server.upstream = Some(Upstream::new(host));
        server.dial_upstream()?;
        Ok(server)
    }

    fn dial_upstream(&mut self) -> Result<(), Error> {
        let Some(upstream) = &mut self.upstream else { return Ok(()) };
        let (messages, hello) = (&mut self.messages, Upstream::hello().encode());
        let called = messages.port.connect(&upstream.name, &hello, messages.queue);
        let link = called.map_err(|error| control(&error))?;
        upstream.called(link);
        self.role(link, LinkRole::Upstream);
        Ok(())
    }

    fn upstream_lost(&mut self, link: LinkId, why: String) {
        self.executor.memory.lost(link);
        let now_ns = self.fabric.time_ns();
        if let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.is_at(link)) {
            upstream.lost(why, now_ns);
        }
    }

    /// Dials a lost upstream executor again, once its backoff has passed.
    fn redial_upstream(&mut self, now_ns: u64) {
        let due = self
            .upstream
            .as_ref()
            .and_then(Upstream::redial_ns)
            .is_some_and(|at_ns| at_ns <= now_ns);
        if due
            && let Err(error) = self.dial_upstream()
            && let Some(upstream) = &mut self.upstream
        {
            upstream.lost(error.to_string(), now_ns);
        }
    }

    fn open(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &ServerOptions,
        across: bool,
    ) -> Result<Self, Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadConfiguration, text));
        let slots = usize::from(options.slots);
        if !(1..=farside_protocol::call::SLOTS_MAX).contains(&slots) || options.sessions == 0 {
            return bad("an executor has at least one session of 1 to 256 slots");
        }
        let parameters = u32::try_from(options.limits.context_bytes_max).unwrap_or(u32::MAX);
        let Some(message_bytes) =
            parameters.checked_add(Invocation::BYTES_MAX).filter(|n| *n < 1 << 20)
        else {
            return bad("parameters of a call have less than 1 MiB");
        };
        let places = options.sessions as usize * slots;
        let measures = MessagePortSizes {
            receives: places,
            receive_bytes: message_bytes,
            places,
            send_bytes: Invocation::BYTES_MAX,
        };
        let messages = MessagePort::open(fabric, Some(name), &measures)?;
        let output_bytes = u64::from(options.output_bytes_max.max(1)) * places as u64;
        let outputs = Registered::own(fabric, output_bytes)?;
        let scratch = match across {
            true => Some(Registered::own(fabric, BLOCKS * BLOCK_BYTES)?),
            false => None,
        };
        let lease = Duration::from_nanos(fabric.lease_ns());
        let grace = options.grace.unwrap_or(lease);
        let mut options = options.clone();
        options.limits.output_bytes_max =
            options.limits.output_bytes_max.min(options.output_bytes_max as usize);
        Ok(Self {
            machine: machine(Settings {
                sessions_max: options.sessions,
                tenant_sessions_max: quota::callers_max(&options),
                slots,
                grace_ns: u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX),
                quantum_ns: options.quantum_ns,
                registering_bytes_max: options.registering_bytes_max,
            }),
            executor: Executor::new(
                scratch.as_ref().map(|one| one.region.arena.clone()),
                options.verifications as usize,
            ),
            fabric: Arc::clone(fabric),
            messages,
            roles: Vec::new(),
            states: Vec::new(),
            tenants: BTreeMap::new(),
            outputs,
            scratch,
            lent: BTreeMap::new(),
            subscriptions: Subscriptions::default(),
            options,
            events: Vec::new(),
            effects: Vec::new(),
            upstream: None,
            served: 0,
            called_ns: 0,
            arrival_ns: None,
        })
    }

    /// Makes this executor part of a node of the global memory. From now on it accepts programs with global
    /// addresses (`farside_global_load_u64` and others), and their calls access all memory that the node can
    /// access. Replaces a node shared before.
    ///
    /// *Guarantees.* Each call is one program order, as of a [`Session`](crate::Session): a call sees its own
    /// writes. Others may see its word stores in another order, up to an atomic, a lock, an unlock, a wait, a
    /// notification or its end, which make them visible first. So a client that has the answer sees the writes of
    /// the call. As with writes of a session, they are lost with this node if this node alone has them, and that is
    /// reported (`LineLost`). Writes of a call that was cancelled or stopped at its deadline may become visible
    /// later, and its atomic may still take effect. A miss suspends its call and no other. *Errors of calls.* An
    /// address that is freed, past the end of its allocation or invalid: status -1, or `CallStopped` from helpers
    /// of words. Memory lost with its node: status -7, or `PeerLost`. *Cost.* A tag check and a copy for local or
    /// cached data, else the cost of a session's access; a session for each of at most 64 waiting calls, kept for
    /// later ones.
    ///
    /// *Blocks* only if it replaces a node with unfinished writes.
    ///
    /// ```
    /// use farside::call::{CallServer, CallOptions, Caller, CallerOptions, ServerOptions};
    /// use farside::{Config, Node};
    /// use farside_fabric::{Fabric, MemFabric};
    /// use std::sync::Arc;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    /// let config = Config { memory_bytes: 1 << 20, cache_bytes: 1 << 20, ..Config::new("shared") };
    /// let node = Node::create_on(&config, Arc::clone(&fabric))?;
    /// let mut session = node.session()?;
    /// let counter = session.alloc(8)?;
    ///
    /// let mut server = CallServer::listen(&fabric, "calls", &ServerOptions::default())?;
    /// server.share(&node)?;
    /// let mut caller = Caller::begin(&fabric, "calls", &CallerOptions::default())?;
    /// let add = b"r1 = *(u64 *)(r1 + 0)\nr2 = 5\ncall global_fetch_add\nexit";
    /// while !caller.begin_register(add)? { // both ends on one thread: poll both
    ///     server.turn();
    ///     caller.turn()?;
    /// }
    /// let add = loop {
    ///     server.turn();
    ///     caller.turn()?;
    ///     if let Some(programs) = caller.registered() {
    ///         break programs?.remove(0);
    ///     }
    /// };
    /// let parameters = counter.to_bits().to_le_bytes();
    /// let ticket = caller.invoke(&add, &parameters, CallOptions::new())?.ok_or("no slot")?;
    /// let answer = loop {
    ///     caller.turn()?;
    ///     server.turn();
    ///     if let Some(answer) = caller.poll(ticket) {
    ///         break answer?;
    ///     }
    /// };
    /// assert_eq!((answer.result, session.read_u64(counter)?), (0, 5));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// `TooManySessions`, `NodeClosed`; `Busy` while calls have operations in flight at the node shared before.
    pub fn share(&mut self, node: &Node) -> Result<(), Error> {
        let global = GlobalMemory::new(node, self.messages.port.waiter())?;
        self.executor.share(global)
    }

    /// Ends [`Self::share`]; afterwards this executor holds nothing of the node. Programs with global addresses
    /// stay registered. Until another node is shared, their calls fail with `PeerLost` or status -7, and no other
    /// such program is accepted.
    ///
    /// *Blocks* only while writes of the node have not ended.
    ///
    /// # Errors
    /// `Busy` while calls have operations in flight at the node; if the node is closed, these fail within the next
    /// polls.
    pub fn unshare(&mut self) -> Result<(), Error> {
        self.executor.unshare()
    }

    /// Whether it has any memory.
    pub fn has_memory(&self) -> bool {
        self.executor.memory.has_any()
    }

    /// Returns why the memory of the executor at the host is not available, once known. A host that was connected is
    /// dialled again until it is back; meanwhile accesses of calls fail with `PEER_LOST`.
    pub fn host_trouble(&self) -> Option<&str> {
        self.upstream.as_ref().and_then(Upstream::trouble)
    }

    /// Returns the address to which callers connect.
    pub fn address(&self) -> Option<String> {
        self.messages.port.address()
    }

    /// Returns the number of callers, disconnected ones included.
    pub fn sessions(&self) -> usize {
        self.machine.sessions()
    }

    /// Returns the registrations in progress: bytes of their objects, how many are queued, and how many are being
    /// verified.
    pub fn registering(&self) -> (u64, usize, usize) {
        let (waiting, verified) = self.executor.loading();
        (self.machine.registering_bytes(), waiting, verified)
    }

    /// Returns the number of registered programs.
    pub fn programs(&self) -> usize {
        self.machine.programs()
    }

    /// Returns the number of requests answered so far.
    pub const fn served(&self) -> u64 {
        self.served
    }

    /// Returns how each caller is reached, and why so.
    pub fn paths(&self) -> Vec<String> {
        let links = self.states.iter().flatten().filter_map(|state| state.link);
        links.map(|link| self.messages.port.path(link)).collect()
    }

    fn role(&mut self, link: LinkId, role: LinkRole) {
        let at = link.0 as usize;
        if self.roles.len() <= at {
            self.roles.resize(at + 1, None);
        }
        self.roles[at] = Some(role);
    }

    fn role_of(&self, link: LinkId) -> Option<LinkRole> {
        self.roles.get(link.0 as usize).copied().flatten()
    }

    fn at(&self, call: Call) -> usize {
        call.session.0 as usize * self.machine.slots() + usize::from(call.slot)
    }

    fn call_at(&self, at: usize) -> Call {
        let (session, slot) = (at / self.machine.slots(), at % self.machine.slots());
        let number = |value| u32::try_from(value).unwrap_or(u32::MAX);
        Call { session: Session(number(session)), slot: u8::try_from(slot).unwrap_or(u8::MAX) }
    }

    /// Handles events, runs calls for a while and sends replies; returns whether there was anything to do. Never
    /// blocks.
    pub fn turn(&mut self) -> bool {
        self.turn_at(true)
    }

    /// As [`Self::turn`]; reads the clock only after events, or if `asks`.
    fn turn_at(&mut self, asks: bool) -> bool {
        let mut come = 0;
        self.arrival_ns = None;
        while come < TURN_EVENTS
            && let Some(event) = self.messages.next()
        {
            self.event(event);
            come += 1;
        }
        let mut busy = come > 0;
        let mut events = std::mem::take(&mut self.events);
        self.messages.link_events(&mut events);
        busy |= !events.is_empty();
        events.drain(..).for_each(|event| self.link_event(event));
        self.events = events;
        let quiet = self.machine.is_idle() && !self.messages.has_backlog();
        if !busy && !asks && quiet && !self.executor.has_silent_work() {
            return false;
        }
        // A single call begins within the resolution of the clock.
        let now_ns = self.arrival_ns.filter(|_| come == 1).unwrap_or_else(|| self.fabric.time_ns());
        if self.machine.wakes_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let mut effects = std::mem::take(&mut self.effects);
            self.machine.tick(now_ns, &mut effects);
            self.apply_effects(effects);
        }
        self.redial_upstream(now_ns);
        if self.executor.watches() {
            self.executor.watch(now_ns);
        }
        while let Some(at) = self.executor.take_woken() {
            let call = self.call_at(at);
            self.machine.ready(call, now_ns);
        }
        busy |= self.run(now_ns);
        self.send();
        busy |= self.executor.free_some();
        busy
    }

    /// Sends notifications, requests and messages.
    fn send(&mut self) {
        self.notify();
        self.post_requests();
        if let Some(link) = self.messages.flush() {
            self.lost(link);
        }
    }

    /// Site calls until none is ready or the time of the poll has passed.
    fn run(&mut self, begun_ns: u64) -> bool {
        let mut now_ns = begun_ns;
        let mut answered = false;
        self.executor.is_quiet = begun_ns.saturating_sub(self.called_ns) > QUIET_NS;
        for slices in 0..TURN_SLICES {
            let Some(call) = self.machine.next(now_ns) else {
                return slices > 0;
            };
            let at = self.at(call);
            // Replies do not wait for the next slice of a long call.
            if answered && self.executor.is_long(at) {
                self.send();
                answered = false;
            }
            let turn = match self.executor.slice(at, now_ns) {
                SliceOutcome::Ready => Turn::Ready,
                SliceOutcome::Waits => Turn::Waits,
                SliceOutcome::Over(end) => {
                    self.end(call, end);
                    Turn::Over
                }
                SliceOutcome::Loaded(object, loaded) => {
                    self.loaded(call, &object, loaded);
                    Turn::Over
                }
            };
            answered |= turn == Turn::Over;
            if answered && self.machine.is_idle() {
                // No other reply could be batched with this one, which is sent before the time is charged.
                self.send();
                answered = false;
            }
            let then_ns = self.fabric.time_ns();
            let used_ns = then_ns.saturating_sub(now_ns).max(SLICE_NS_MIN);
            if turn == Turn::Ready {
                self.executor.took(at, used_ns);
            }
            self.machine.ran(call, used_ns, turn);
            now_ns = then_ns;
            self.arrival_ns = Some(then_ns);
            let most_ns = if turn == Turn::Ready { LONG_TURN_NS } else { TURN_NS };
            let is_over = now_ns.saturating_sub(begun_ns) > most_ns;
            if is_over || turn == Turn::Ready && !self.hear() {
                break;
            }
        }
        true
    }

    /// Handles events between two slices; returns false if others than messages arrived, which end the poll.
    fn hear(&mut self) -> bool {
        for _ in 0..TURN_EVENTS {
            let Some(event) = self.messages.next() else { return true };
            let is_message = matches!(event, PortEvent::Message(..));
            self.event(event);
            if !is_message {
                break;
            }
        }
        false
    }

    fn end(&mut self, call: Call, end: CallEnd) {
        let output = std::mem::take(&mut self.executor.output);
        let (reply, bytes): (_, &[u8]) = match &end {
            CallEnd::Returned(result) => (Reply::returned(*result, 0), &output),
            CallEnd::Stopped(why, slot, text) => (Reply::stopped(*why, *slot), text.as_bytes()),
        };
        self.answer(call, reply, bytes);
        self.executor.output = output;
    }

    /// Answers a request with this output; explanatory text is cut to the space of the caller.
    fn answer(&mut self, call: Call, reply: Reply, output: &[u8]) {
        let room = self.states.get(call.session.0 as usize).and_then(Option::as_ref);
        let room = room.map_or(0, |state| state.room_bytes);
        let room = room.min(self.options.output_bytes_max) as usize;
        let returned = reply.verb == farside_protocol::call::Verb::Returned;
        let (reply, output) = match output.len() <= room {
            true => (reply, output),
            false if returned => (Reply::stopped(Stopped::TooMuchOutput, None), &[][..]),
            false => (reply, &output[..room]),
        };
        if !output.is_empty() {
            // Within its slot: `room` was checked above.
            let _ = self.outputs.region.arena.write(self.output_at(call), output);
        }
        let reply = Reply { output_bytes: u32::try_from(output.len()).unwrap_or(0), ..reply };
        let mut effects = std::mem::take(&mut self.effects);
        self.machine.answer(call, reply, &mut effects);
        self.apply_effects(effects);
    }

    fn output_at(&self, call: Call) -> u64 {
        self.at(call) as u64 * u64::from(self.options.output_bytes_max.max(1))
    }

    fn apply_effects(&mut self, mut effects: Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply(session, header, reply) => self.reply(session, header, &reply),
                Effect::Stop(call) => {
                    let at = self.at(call);
                    self.executor.stop(at);
                    self.subscriptions.forget(call);
                }
                Effect::EraseOwn(session, program) => self.executor.erase_own(session.0, program),
                Effect::Erase(program) => self.executor.erase(program),
                Effect::Over(session) => self.over(session),
            }
        }
        self.effects = effects;
    }

    fn over(&mut self, session: Session) {
        self.subscriptions.over(session);
        let state = self.states.get_mut(session.0 as usize).and_then(Option::take);
        if let Some(link) = state.and_then(|state| state.link) {
            self.close(link);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.messages.forget(link);
        self.messages.port.close(link);
        if let Some(role) = self.roles.get_mut(link.0 as usize) {
            *role = None;
        }
    }

    fn reply(&mut self, session: Session, header: Header, reply: &Reply) {
        self.served += 1;
        let call = Call { session, slot: header.slot };
        let (place, from) = (self.at(call), self.output_at(call));
        let Some(Some(state)) = self.states.get(session.0 as usize) else { return };
        let Some(link) = state.link else { return };
        let output = match state.room {
            Some(region) if reply.output_bytes > 0 => Some(OutputWrite {
                from: LocalSlice {
                    region: self.outputs.region.id,
                    offset: from,
                    bytes: reply.output_bytes,
                },
                region,
                offset: u64::from(header.slot) * u64::from(state.room_bytes),
            }),
            _ => None,
        };
        let (body, bytes) = encode_reply(reply);
        self.messages.send(link, header, place, [&body[..bytes], &[]], output);
    }

    fn event(&mut self, event: PortEvent) {
        match event {
            PortEvent::AccessCompleted(block, status) => self.executor.completed(block, status),
            PortEvent::LinkFailed(link, _) => self.lost(link),
            PortEvent::Message(link, header) => {
                let session = match self.role_of(link) {
                    Some(LinkRole::Client(session)) => session,
                    Some(LinkRole::MemoryReader | LinkRole::Upstream) => return self.lost(link),
                    None => return, // of a closed link
                };
                let body = std::mem::take(&mut self.messages.body);
                let taken =
                    Header::decode(header).and_then(|header| self.request(session, header, &body));
                self.messages.body = body;
                if taken.is_err() {
                    // No correct caller sends this: its session ends.
                    let mut effects = std::mem::take(&mut self.effects);
                    self.machine.end(session, &mut effects);
                    self.apply_effects(effects);
                }
            }
        }
    }

    /// Returns the arrival time of calls, the same for all that arrived together.
    fn arrival_ns(&mut self) -> u64 {
        let fabric = &self.fabric;
        *self.arrival_ns.get_or_insert_with(|| fabric.time_ns())
    }

    fn request(&mut self, session: Session, header: Header, body: &[u8]) -> Result<(), Violation> {
        let now_ns = self.arrival_ns();
        let mut effects = std::mem::take(&mut self.effects);
        let asked = self.machine.request(session, header, body, now_ns, &mut effects);
        self.apply_effects(effects);
        match asked? {
            Asked::Nothing => {}
            Asked::Run(call, program, parameters) => {
                (self.called_ns, self.executor.is_quiet) = (now_ns, false);
                let at = self.at(call);
                let state = self.states.get(session.0 as usize).and_then(Option::as_ref);
                let tenant = state.map_or(usize::MAX, |state| state.tenant);
                if let Err(error) =
                    self.executor.start(at, (session.0, tenant), program, parameters)
                {
                    let text = error.to_string();
                    self.answer(call, Reply::refused(Refused::Parameters, 0), text.as_bytes());
                }
            }
            Asked::Take(call, part, bytes) => {
                self.take(call, part, bytes);
                // The last part may have taken long to handle.
                self.arrival_ns = None;
            }
            Asked::Listen(call, topic) => match self.subscriptions.listen(call, topic) {
                ListenOutcome::Notification(lost, bytes) => {
                    self.answer(call, Reply::returned(lost, 0), &bytes)
                }
                ListenOutcome::Nothing => {}
                ListenOutcome::TooMany => {
                    self.answer(call, Reply::refused(Refused::Topics, 0), &[])
                }
            },
        }
        Ok(())
    }

    /// Sends notifications to their subscribers.
    fn notify(&mut self) {
        for notice in std::mem::take(&mut self.executor.notifications) {
            let (calls, bytes) = self.subscriptions.notify(notice);
            for call in calls {
                self.answer(call, Reply::returned(0, 0), &bytes);
            }
        }
    }

    fn post_requests(&mut self) {
        let Some(scratch) = &self.scratch else { return };
        let scratch = scratch.region.id;
        self.messages.post_requests(&mut self.executor, scratch);
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Requested { link, hello } => {
                if let Err(reason) = self.requested(link, &hello) {
                    let _ = self.messages.port.refuse(link, &reason);
                }
            }
            LinkEvent::Connected { link, reply } => self.upstream_connected(link, &reply),
            LinkEvent::Refused { link, reason } => {
                self.upstream_lost(link, String::from_utf8_lossy(&reason).into_owned());
                self.close(link);
            }
            LinkEvent::NotReached { link, why } => {
                let trouble = self.messages.port.trouble(link);
                self.upstream_lost(link, not_reached(why, trouble).to_string());
                self.close(link);
            }
            LinkEvent::Lost { link, .. } => self.lost(link),
            _ => {}
        }
    }

    fn tenant(&mut self, name: &str) -> usize {
        if let Some(tenant) = self.tenants.get(name) {
            return *tenant;
        }
        // All tenants without a quota share one entry, so that names cost nothing.
        let (name, quota) = match self.options.tenants.get(name) {
            Some(quota) => (name, *quota),
            None => ("", self.options.quota),
        };
        if let Some(tenant) = self.tenants.get(name) {
            return *tenant;
        }
        let tenant = self.machine.add_tenant(quota);
        self.executor.memory.add(tenant);
        self.tenants.insert(name.to_owned(), tenant);
        tenant
    }

    fn requested(&mut self, link: LinkId, hello: &[u8]) -> Result<(), Vec<u8>> {
        let hello = Hello::decode(hello)?;
        let tenant = self.tenant(&hello.tenant);
        let lent = self.lent.iter();
        let open = lent.filter(|(number, _)| self.executor.memory.is_lent(**number, tenant));
        let regions = open.map(|(number, region)| (*number, region.token)).collect();
        let mut welcome = Welcome {
            resumed: false,
            slots: hello.slots.min(self.options.slots).max(1),
            message_bytes: self.options.limits.context_bytes_max as u32 + Invocation::BYTES_MAX,
            regions,
        };
        if hello.purpose == Purpose::Memory {
            let accepted = self.messages.port.accept(link, &welcome.encode(), self.messages.queue);
            accepted.map_err(|error| error.to_string())?;
            self.role(link, LinkRole::MemoryReader);
            return Ok(());
        }
        let (session, resumed) = match self.machine.open(hello.session, tenant) {
            Ok(Opened::New(session)) => (session, false),
            Ok(Opened::Resumed(session)) => (session, true),
            Err(why) => {
                let taken = self.machine.taken(tenant);
                return Err(quota::no_place(why, self.options.sessions, taken).encode());
            }
        };
        welcome.resumed = resumed;
        let before = self.states.get_mut(session.0 as usize).and_then(Option::as_mut);
        let (old, upload) = match before {
            Some(state) => (state.link.take(), state.upload.take()),
            None => (None, None),
        };
        if let Some(old) = old {
            self.close(old);
        }
        self.role(link, LinkRole::Client(session));
        let at = session.0 as usize;
        if self.states.len() <= at {
            self.states.resize_with(at + 1, || None);
        }
        let room_bytes = if hello.room.is_some() { hello.output_bytes } else { 0 };
        self.states[at] =
            Some(SessionState { link: Some(link), tenant, room: None, room_bytes, upload });
        let accepted = self.messages.port.accept(link, &welcome.encode(), self.messages.queue);
        let room = accepted.and_then(|()| {
            let token = hello.room.map(|token| (token, self.messages.port.import(link, &token)));
            token.map(|(token, room)| room.map(|room| (room, token.bytes))).transpose()
        });
        match room {
            Ok(room) => {
                let each =
                    |bytes: u64| u64::from(hello.output_bytes) * u64::from(hello.slots) <= bytes;
                let room = room.filter(|(_, bytes)| each(*bytes));
                if let Some(Some(state)) = self.states.get_mut(at) {
                    state.room = room.map(|(region, _)| region);
                    // A region smaller than announced is not used.
                    state.room_bytes = if state.room.is_some() { room_bytes } else { 0 };
                }
            }
            // The link has failed already.
            Err(_) => self.lost(link),
        }
        Ok(())
    }

    fn upstream_connected(&mut self, link: LinkId, reply: &[u8]) {
        let Some(upstream) = self.upstream.as_mut().filter(|upstream| upstream.is_at(link)) else {
            return;
        };
        let Some(welcome) = Welcome::decode(reply) else {
            upstream.unfit("the peer is not an executor of calls".to_owned());
            self.close(link);
            return;
        };
        let mut trouble = None;
        for (number, token) in welcome.regions {
            match self.messages.port.import(link, &token) {
                Ok(region) => {
                    let site = RegionSite::Remote(link, region);
                    let lent = LentRegion { site, bytes: token.bytes, access: token.access };
                    self.executor.memory.lend(number, lent, None);
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        match (trouble, self.executor.memory.has_any()) {
            (None, true) => upstream.found(),
            (trouble, _) => {
                upstream.unfit(trouble.unwrap_or_else(|| "it lends no memory".to_owned()))
            }
        }
    }

    fn lost(&mut self, link: LinkId) {
        let role = self.role_of(link);
        self.close(link);
        match role {
            Some(LinkRole::Client(session)) => {
                if let Some(Some(state)) = self.states.get_mut(session.0 as usize) {
                    (state.link, state.room) = (None, None);
                }
                let now_ns = self.fabric.time_ns();
                let mut effects = std::mem::take(&mut self.effects);
                self.machine.lost(session, now_ns, &mut effects);
                self.apply_effects(effects);
            }
            Some(LinkRole::Upstream) => {
                self.upstream_lost(
                    link,
                    "the executor that has the memory is out of reach".to_owned(),
                );
            }
            Some(LinkRole::MemoryReader) | None => {}
        }
    }

    /// Serves until `stop` is set. Spins while there is something to do, then sleeps; notifications `stop` within 50 ms.
    ///
    /// *Blocks.*
    pub fn serve(&mut self, stop: &AtomicBool) {
        self.serve_while(|_| !stop.load(Ordering::Acquire));
    }

    /// Serves while `goes_on` returns true. It is called after each poll, with the server after that poll; at least
    /// every 50 ms.
    ///
    /// *Blocks.*
    pub fn serve_while(&mut self, mut goes_on: impl FnMut(&Self) -> bool) {
        let mut patience = Patience::of_turns(NAP);
        while goes_on(self) {
            if self.turn_at(patience.asks_clock()) {
                patience = Patience::of_turns(NAP);
                continue;
            }
            // A watched word changes without an event, and deadlines pass without one.
            let watches = self.executor.watches();
            let nap = if patience.sleeps_next() { self.nap() } else { NAP };
            let waited = match watches {
                true if patience.naps_next() && self.executor.watch_all(self.fabric.time_ns()) => {
                    Ok(())
                }
                true => patience.wait(),
                false => {
                    let port = &mut *self.messages.port;
                    let wait = |patience: &mut Patience| patience.wait_for_event(port, Some(nap));
                    self.executor.wait(&mut patience, wait)
                }
            };
            if waited.is_err() {
                patience = Patience::of_turns(NAP);
            }
        }
    }

    /// Returns how long no timer is due.
    fn nap(&self) -> Duration {
        let now_ns = self.fabric.time_ns();
        let host_ns = self.upstream.as_ref().and_then(Upstream::redial_ns);
        let at_ns = self.machine.wakes_at_ns().into_iter().chain(host_ns).min();
        let at_ns = at_ns.unwrap_or(u64::MAX);
        let most = if self.messages.has_backlog() { BACKLOG_NAP } else { NAP };
        most.min(Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }
}

/// Returns the protocol machine of an executor.
#[cfg(not(canary))]
fn machine(settings: Settings) -> Server {
    Server::new(settings)
}

/// Returns the protocol machine with the planted defect, if any.
#[cfg(canary)]
fn machine(settings: Settings) -> Server {
    use crate::canary::{self, Mutant};
    use farside_protocol::call::Mutant as Defect;
    let defects = [
        (Mutant::CallsRunAgain, Defect::RunAgain),
        (Mutant::RepliesForgotten, Defect::ReplyForgotten),
    ];
    match defects.into_iter().find(|(planted, _)| canary::is(*planted)) {
        Some((_, defect)) => Server::with_mutant(settings, defect),
        None => Server::new(settings),
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        let open = (0..).zip(&self.roles).filter(|(_, role)| role.is_some());
        let links: Vec<_> = open.map(|(at, _)| LinkId(at)).collect();
        links.into_iter().for_each(|link| self.messages.port.close(link));
    }
}
