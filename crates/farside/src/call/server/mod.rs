//! Server of remote memory calls: accepts clients, schedules their calls and sends replies.
//!
//! The poll loop alternates between the port and the executor. The protocol machine ([`Server`]) holds sessions,
//! at-most-once invocation (slots, sequence numbers and a reply cache, as in NFS sessions, RFC 8881 §2.10.6) and
//! start-time fair queueing over tenants and callers (Goyal, Vin and Cheng, SIGCOMM 1996). Its effects are queued in
//! [`CallServer::effects`] and applied to links, executor and subscriptions after each step.

mod accept;
mod lend;
mod links;
mod listen;
mod options;
mod quota;
mod registering;
#[cfg(test)]
mod registering_tests;
mod subscriptions;
mod upstream;

pub use options::ServerOptions;

use super::executor::remote::ScratchPool;
use super::executor::{CallEnd, Executor, SliceOutcome};
use super::memory::global::GlobalMemory;
use super::memory::regions::LentRegions;
use super::memory::remote::BLOCK_BYTES;
use super::transport::message_port::{MessagePort, MessagePortSizes, PortEvent};
use crate::event_wait::EventWait;
use crate::progress::{EnginePort, Progress};
use crate::registered::Registered;
use crate::{Error, ErrorCode, Node};
use farside_base::waiting::{BACKLOG_INTERVAL, SERVE_PARK_MAX, SPIN_ENGINE_POLLS};
use farside_base::{Access, Completion};
use farside_protocol::call::{
    CallId, Effect, Header, Invocation, Refused, Reply, RunState, RuntimeAction, Server, Session,
    Settings,
};
use farside_protocol::wire::Violation;
use links::{LinkRole, ServerLinks};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use subscriptions::{ListenOutcome, Subscriptions};
use upstream::Upstream;

/// Limits of a poll while calls are short: replies are sent and the port is polled after about this time or this
/// many slices.
const POLL_NS: u64 = 2_000;
const POLL_SLICES: usize = 64;
/// Limit of a poll while calls are long. The port is polled after each of their slices, so that a short call waits
/// for at most one slice.
const LONG_POLL_NS: u64 = 8_000;
/// Time without a call after which registrations get longer slices; the first call waits for at most one of them.
const QUIET_NS: u64 = 1_000_000;
/// Maximum number of events handled before calls run.
const POLL_EVENTS: usize = 256;
/// Least time charged for a slice, as the clock may be coarser.
const SLICE_NS_MIN: u64 = 50;
/// Maximum number of accesses to remote memory in flight.
const BLOCKS: u64 = 64;

/// Runs calls of registered programs on the thread that polls it.
///
/// Its memory is lent by [`CallServer::lend`], or is that of another executor ([`CallServer::listen_with_host`]).
///
/// *Guarantees.* Each call runs at most once, whatever links do. Tenants share the processor by weight, however
/// many callers each has; callers of a tenant share its part equally. All tenants without a quota of their own form
/// one tenant. A stopped call reports where it was stopped to its caller, and affects no other call. *Cost.* Calls
/// that wait for a word or a lock are polled round robin, 16 per poll, so that they cost other calls little; their
/// wake-up latency grows with their number.
pub struct CallServer {
    machine: Server,
    /// What the machine has decided and was not applied yet; empty between its steps.
    effects: Vec<Effect>,
    links: ServerLinks,
    executor: Executor,
    subscriptions: Subscriptions,
    tenants: BTreeMap<String, usize>,
    /// Memory of accesses to the host's memory.
    scratch: Option<Registered>,
    lent: LentRegions,
    options: ServerOptions,
    /// The executor that hosts the memory, unless memory is local.
    upstream: Option<Upstream>,
    /// When the last call arrived.
    called_ns: u64,
    /// Arrival time of the events of this poll.
    arrival_ns: Option<u64>,
    /// Whether this poll reads the clock even without events.
    reads_clock: bool,
}

impl std::fmt::Debug for CallServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sessions = self.machine.sessions();
        f.debug_struct("CallServer").field("sessions", &sessions).finish_non_exhaustive()
    }
}

impl CallServer {
    /// Returns the sizes of the message port of an executor.
    ///
    /// # Errors
    /// `BadConfiguration`.
    fn sizes(options: &ServerOptions) -> Result<MessagePortSizes, Error> {
        let bad = |text: &str| Err(Error::with(ErrorCode::BadConfiguration, text));
        let slots = usize::from(options.slots);
        if !(1..=farside_protocol::call::SLOTS_MAX).contains(&slots) || options.sessions == 0 {
            return bad("an executor has at least one session of 1 to 256 slots");
        }
        let parameters = u32::try_from(options.limits.context_bytes_max).unwrap_or(u32::MAX);
        let Some(receive_bytes) =
            parameters.checked_add(Invocation::BYTES_MAX).filter(|n| *n < 1 << 20)
        else {
            return bad("parameters of a call have less than 1 MiB");
        };
        let slots = options.sessions as usize * slots;
        let send_bytes = Invocation::BYTES_MAX;
        Ok(MessagePortSizes { receives: slots, receive_bytes, slots, send_bytes })
    }

    /// Serves at a port, on memory to be lent or that of the executor at `host`.
    fn serving(
        messages: MessagePort,
        options: &ServerOptions,
        host: Option<&str>,
    ) -> Result<Self, Error> {
        let slots = usize::from(options.slots);
        let output_bytes_max = options.output_bytes_max.max(1);
        let outputs_bytes =
            u64::from(output_bytes_max) * u64::from(options.sessions) * slots as u64;
        let outputs = messages.register(outputs_bytes, Access::NONE)?;
        let scratch = || messages.register(BLOCKS * BLOCK_BYTES, Access::NONE);
        let scratch = host.map(|_| scratch()).transpose()?;
        let blocks = ScratchPool::new(scratch.as_ref().map(|scratch| &scratch.region.arena));
        let grace = options.grace.unwrap_or(Duration::from_nanos(messages.lease_ns()));
        let settings = Settings {
            sessions_max: options.sessions,
            tenant_sessions_max: quota::callers_max(options),
            slots,
            grace_ns: u64::try_from(grace.as_nanos()).unwrap_or(u64::MAX),
            quantum_ns: options.quantum_ns,
            registering_bytes_max: options.registering_bytes_max,
        };
        let mut options = options.clone();
        options.limits.output_bytes_max =
            options.limits.output_bytes_max.min(options.output_bytes_max as usize);
        Ok(Self {
            machine: machine(settings),
            effects: Vec::new(),
            links: ServerLinks::new(messages, outputs, output_bytes_max, slots),
            executor: Executor::new(blocks, options.verifications as usize),
            subscriptions: Subscriptions::default(),
            tenants: BTreeMap::new(),
            scratch,
            lent: LentRegions::default(),
            options,
            upstream: host.map(Upstream::new),
            called_ns: 0,
            arrival_ns: None,
            reads_clock: true,
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
    /// use farside::call::{CallOptions, CallServer, Caller, CallerOptions, ServerOptions};
    /// use farside::{Config, Node};
    /// use farside_fabric::{Fabric, MemFabric};
    /// use std::sync::Arc;
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
    /// let config = Config::new("shared").memory_bytes(1 << 20).cache_bytes(1 << 20);
    /// let node = Node::create_on(&config, Arc::clone(&fabric))?;
    /// let mut session = node.session()?;
    /// let counter = session.alloc(8)?;
    ///
    /// let mut server = CallServer::listen(&fabric, "calls", &ServerOptions::default())?;
    /// server.share(&node)?;
    /// let mut caller = Caller::begin(&fabric, "calls", &CallerOptions::default())?;
    /// let add = b"r1 = *(u64 *)(r1 + 0)\nr2 = 5\ncall global_fetch_add\nexit";
    /// while !caller.begin_register(add)? { // both ends on one thread: poll both
    ///     server.progress();
    ///     caller.progress()?;
    /// }
    /// let add = loop {
    ///     server.progress();
    ///     caller.progress()?;
    ///     if let Some(programs) = caller.registered() {
    ///         break programs?.remove(0);
    ///     }
    /// };
    /// let parameters = counter.to_bits().to_le_bytes();
    /// let ticket = caller.invoke(&add, &parameters, CallOptions::new())?.ok_or("no slot")?;
    /// let answer = loop {
    ///     caller.progress()?;
    ///     server.progress();
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
        let global = GlobalMemory::new(node, self.links.messages.port.waiter())?;
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
        self.executor.resources.memory.has_any()
    }

    /// Returns why the memory of the executor at the host is not available, once known. A host that was connected is
    /// dialled again until it is back; meanwhile accesses of calls fail with `PEER_LOST`.
    pub fn host_trouble(&self) -> Option<&str> {
        self.upstream.as_ref().and_then(Upstream::trouble)
    }

    /// Returns the address to which callers connect.
    pub fn address(&self) -> Option<String> {
        self.links.messages.port.address()
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
        self.links.served
    }

    /// Returns how each caller is reached, and why so.
    pub fn paths(&self) -> Vec<String> {
        self.links.paths()
    }

    /// Handles events, runs calls for a while and sends replies; returns whether there was anything to do. Never
    /// blocks.
    pub fn progress(&mut self) -> bool {
        self.progress_at(true)
    }

    /// As [`Self::progress`]; reads the clock only after events, or if `reads_clock`.
    fn progress_at(&mut self, reads_clock: bool) -> bool {
        (self.arrival_ns, self.reads_clock) = (None, reads_clock);
        self.poll_once()
    }

    /// Sends notifications, requests and messages.
    fn send(&mut self) {
        for notification in std::mem::take(&mut self.executor.resources.notifications) {
            let (calls, bytes) = self.subscriptions.notify(notification);
            for call in calls {
                self.answer(call, Reply::returned(0, 0), &bytes);
            }
        }
        if let Some(scratch) = &self.scratch {
            self.links.messages.post_requests(&mut self.executor, scratch.region.id);
        }
        if let Some(link) = self.links.messages.flush() {
            self.lost(link);
        }
    }

    /// Runs calls until none is ready or the time of the poll has passed.
    fn run(&mut self, begun_ns: u64) -> bool {
        let mut now_ns = begun_ns;
        let mut answered = false;
        self.executor.is_quiet = begun_ns.saturating_sub(self.called_ns) > QUIET_NS;
        for slices in 0..POLL_SLICES {
            let Some(call) = self.machine.next(now_ns) else {
                return slices > 0;
            };
            let at = self.links.slot_index(call);
            // Replies do not wait for the next slice of a long call.
            if answered && self.executor.is_long(at) {
                self.send();
                answered = false;
            }
            let state = match self.executor.slice(at, now_ns) {
                SliceOutcome::Ready => RunState::Ready,
                SliceOutcome::Waits => RunState::Waits,
                SliceOutcome::Over(end) => {
                    self.end(call, &end);
                    RunState::Over
                }
                SliceOutcome::Loaded(object, loaded) => {
                    self.loaded(call, &object, loaded);
                    RunState::Over
                }
            };
            answered |= state == RunState::Over;
            if answered && self.machine.is_idle() {
                // No other reply could be batched with this one, which is sent before the time is charged.
                self.send();
                answered = false;
            }
            let then_ns = self.links.messages.time_ns();
            let used_ns = then_ns.saturating_sub(now_ns).max(SLICE_NS_MIN);
            if state == RunState::Ready {
                self.executor.took(at, used_ns);
            }
            self.machine.ran(call, used_ns, state);
            now_ns = then_ns;
            self.arrival_ns = Some(then_ns);
            let most_ns = if state == RunState::Ready { LONG_POLL_NS } else { POLL_NS };
            let is_over = now_ns.saturating_sub(begun_ns) > most_ns;
            if is_over || state == RunState::Ready && !self.take_messages() {
                break;
            }
        }
        true
    }

    /// Handles events between two slices; returns false if others than messages arrived, which end the poll.
    fn take_messages(&mut self) -> bool {
        for _ in 0..POLL_EVENTS {
            let Some(event) = self.links.messages.next() else { return true };
            let is_message = matches!(event, PortEvent::Message(..));
            self.event(event);
            if !is_message {
                break;
            }
        }
        false
    }

    /// Answers a call that has ended.
    fn end(&mut self, call: CallId, end: &CallEnd) {
        let (reply, bytes): (_, &[u8]) = match end {
            CallEnd::Returned(result) => (Reply::returned(*result, 0), &self.executor.output),
            CallEnd::Stopped(why, slot, text) => (Reply::stopped(*why, *slot), text.as_bytes()),
        };
        let reply = self.links.put_output(call, reply, bytes);
        self.machine.answer(call, reply, &mut self.effects);
        self.apply_effects();
    }

    /// Answers a request with this output.
    fn answer(&mut self, call: CallId, reply: Reply, output: &[u8]) {
        let reply = self.links.put_output(call, reply, output);
        self.machine.answer(call, reply, &mut self.effects);
        self.apply_effects();
    }

    /// Applies what the machine has decided.
    fn apply_effects(&mut self) {
        for effect in self.effects.drain(..) {
            match effect {
                Effect::Reply(session, header, reply) => self.links.reply(session, header, &reply),
                Effect::Stop(call) => {
                    self.executor.stop(self.links.slot_index(call));
                    self.subscriptions.forget(call);
                }
                Effect::EraseOwn(session, program) => self.executor.erase_own(session.0, program),
                Effect::Erase(program) => self.executor.erase(program),
                Effect::Over(session) => {
                    self.subscriptions.over(session);
                    self.links.end(session);
                }
            }
        }
    }

    fn event(&mut self, event: PortEvent) {
        match event {
            PortEvent::AccessCompleted(block, status) => self.executor.completed(block, status),
            PortEvent::LinkFailed(link, _) => self.lost(link),
            PortEvent::Message(link, header) => {
                let session = match self.links.role(link) {
                    Some(LinkRole::Client(session)) => session,
                    Some(LinkRole::MemoryReader | LinkRole::Upstream) => return self.lost(link),
                    None => return, // of a closed link
                };
                let body = std::mem::take(&mut self.links.messages.body);
                let taken =
                    Header::decode(header).and_then(|header| self.request(session, header, &body));
                self.links.messages.body = body;
                if taken.is_err() {
                    // No correct caller sends this: its session ends.
                    self.machine.end(session, &mut self.effects);
                    self.apply_effects();
                }
            }
        }
    }

    /// Returns the arrival time of calls, the same for all that arrived together.
    fn arrival_ns(&mut self) -> u64 {
        let messages = &self.links.messages;
        *self.arrival_ns.get_or_insert_with(|| messages.time_ns())
    }

    fn request(&mut self, session: Session, header: Header, body: &[u8]) -> Result<(), Violation> {
        let now_ns = self.arrival_ns();
        let asked = self.machine.request(session, header, body, now_ns, &mut self.effects);
        self.apply_effects();
        match asked? {
            RuntimeAction::Nothing => {}
            RuntimeAction::Run(call, program, parameters) => {
                (self.called_ns, self.executor.is_quiet) = (now_ns, false);
                let at = self.links.slot_index(call);
                let tenant = self.links.session(session).map_or(usize::MAX, |state| state.tenant);
                let started = self.executor.start(at, (session.0, tenant), program, parameters);
                if let Err(error) = started {
                    let text = error.to_string();
                    self.answer(call, Reply::refused(Refused::Parameters, 0), text.as_bytes());
                }
            }
            RuntimeAction::Take(call, part, bytes) => {
                self.take(call, part, bytes);
                // The last part may have taken long to handle.
                self.arrival_ns = None;
            }
            RuntimeAction::Listen(call, topic) => match self.subscriptions.listen(call, topic) {
                ListenOutcome::Notification(lost, bytes) => {
                    self.answer(call, Reply::returned(lost, 0), &bytes);
                }
                ListenOutcome::Nothing => {}
                ListenOutcome::TooMany => {
                    self.answer(call, Reply::refused(Refused::Topics, 0), &[]);
                }
            },
        }
        Ok(())
    }

    /// Serves until `stop` is set. Spins while there is something to do, then sleeps; notices `stop` within 50 ms.
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
        let mut wait = EventWait::new(SERVE_PARK_MAX, SPIN_ENGINE_POLLS);
        while goes_on(self) {
            if self.progress_at(wait.reads_clock()) {
                wait = EventWait::new(SERVE_PARK_MAX, SPIN_ENGINE_POLLS);
                continue;
            }
            // A watched word changes without an event, and deadlines pass without one.
            let has_blocked = self.executor.has_blocked();
            let nap = if wait.parks_next() { self.nap() } else { SERVE_PARK_MAX };
            let waited = match has_blocked {
                true if wait.parks_next()
                    && self.executor.poll_all_blocked(self.links.messages.time_ns()) =>
                {
                    Ok(())
                }
                true => wait.wait(),
                false => {
                    let port = &mut self.links.messages.port;
                    let sleep = |wait: &mut EventWait| wait.wait_for_event(port, Some(nap));
                    self.executor.wait(&mut wait, sleep)
                }
            };
            if waited.is_err() {
                wait = EventWait::new(SERVE_PARK_MAX, SPIN_ENGINE_POLLS);
            }
        }
    }

    /// Returns how long no timer is due.
    fn nap(&self) -> Duration {
        let now_ns = self.links.messages.time_ns();
        let redial_ns = self.upstream.as_ref().and_then(Upstream::redial_ns);
        let at_ns = self.machine.wakes_at_ns().into_iter().chain(redial_ns).min();
        let at_ns = at_ns.unwrap_or(u64::MAX);
        let most =
            if self.links.messages.has_backlog() { BACKLOG_INTERVAL } else { SERVE_PARK_MAX };
        most.min(Duration::from_nanos(at_ns.saturating_sub(now_ns)))
    }
}

impl Progress for CallServer {
    const LANDED_MAX: usize = POLL_EVENTS;
    const POLLS_TO_EMPTY: bool = true;

    #[inline]
    fn port(&mut self) -> &mut EnginePort {
        &mut self.links.messages.port
    }

    fn completed(&mut self, completion: &Completion) {
        if let Some(event) = self.links.messages.decode(completion) {
            self.event(event);
        }
    }

    fn handle_links(&mut self, _landed: bool) -> bool {
        let events = self.links.messages.port.connection_events();
        let any = !events.is_empty();
        events.into_iter().for_each(|event| self.link_event(event));
        any
    }

    fn step(&mut self, landed: usize, linked: bool) -> bool {
        let quiet = self.machine.is_idle() && !self.links.messages.has_backlog();
        let idle = landed == 0 && !linked && quiet && !self.executor.has_silent_work();
        if idle && !self.reads_clock {
            return false;
        }
        // A single call begins within the resolution of the clock.
        let arrival_ns = self.arrival_ns.filter(|_| landed == 1);
        let now_ns = arrival_ns.unwrap_or_else(|| self.links.messages.time_ns());
        if self.machine.wakes_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            self.machine.tick(now_ns, &mut self.effects);
            self.apply_effects();
        }
        self.redial_upstream(now_ns);
        if self.executor.has_blocked() {
            self.executor.poll_blocked(now_ns);
        }
        while let Some(at) = self.executor.take_woken() {
            self.machine.ready(self.links.call_at(at), now_ns);
        }
        self.run(now_ns)
    }

    fn post(&mut self) -> bool {
        self.send();
        self.executor.free_some()
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
    use crate::canary::{self, NodeMutant};
    use farside_protocol::call::CallMutant as Defect;
    let defects = [
        (NodeMutant::CallsRunAgain, Defect::RunAgain),
        (NodeMutant::RepliesForgotten, Defect::ReplyForgotten),
    ];
    match defects.into_iter().find(|(planted, _)| canary::nodes().mutant.is(*planted)) {
        Some((_, defect)) => Server::with_mutant(settings, defect),
        None => Server::new(settings),
    }
}
