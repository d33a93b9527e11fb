//! Server of remote memory calls: accepts clients, schedules their calls and sends replies.
//!
//! The poll loop alternates between the port and the executor. The protocol machine ([`Server`]) holds sessions,
//! at-most-once invocation (slots, sequence numbers and a reply cache, as in NFS sessions, RFC 8881 §2.10.6) and
//! start-time fair queueing over tenants and callers (Goyal, Vin and Cheng, SIGCOMM 1996).

mod lend;
mod registering;
#[cfg(test)]
mod registering_tests;

use super::across::BLOCK_BYTES;
use super::executor::{End, Executor, Slice};
use super::global::Global;
use super::hello::{Hello, Purpose, Welcome};
use super::host::Host;
use super::mail::{BACKLOG_NAP, Event, Mail, Measures, Output};
use super::memory::{Lent, Place};
use super::quota;
use super::topics::{Heard, Topics};
use crate::patience::Patience;
use crate::registered::{Registered, control, not_reached};
use crate::{Error, ErrorCode, Node};
use farside_base::{LinkId, LocalSlice, RemoteRegionId};
use farside_fabric::{Fabric, LinkEvent, Region};
use farside_protocol::call::{
    CallId, Effect, Header, Invocation, Opened, Quota, Refused, Reply, RuntimeAction, Server,
    Session, Settings, Stopped, Turn, encode_reply,
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
/// Longest sleep of [`CallServer::serve`], which bounds the delay until it notices its stop flag.
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
struct Side {
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
enum Seat {
    Caller(Session),
    /// Accesses the memory by one-sided requests.
    Visitor,
    /// Hosts the memory of this executor.
    Host,
}

/// Runs calls of registered programs on the thread that polls it.
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
    mail: Mail,
    machine: Server,
    executor: Executor,
    seats: Vec<Option<Seat>>,
    /// By session number.
    sides: Vec<Option<Side>>,
    tenants: BTreeMap<String, usize>,
    outputs: Registered,
    scratch: Option<Registered>,
    lent: BTreeMap<u8, Region>,
    topics: Topics,
    options: ServerOptions,
    events: Vec<LinkEvent>,
    effects: Vec<Effect>,
    /// The executor that hosts the memory, unless memory is local.
    host: Option<Host>,
    served: u64,
    /// When the last call arrived.
    called_ns: u64,
    /// Arrival time of the events of this poll.
    come_ns: Option<u64>,
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
        server.host = Some(Host::new(host));
        server.call_host()?;
        Ok(server)
    }

    fn call_host(&mut self) -> Result<(), Error> {
        let Some(host) = &mut self.host else { return Ok(()) };
        let (mail, hello) = (&mut self.mail, Host::hello().encode());
        let called = mail.port.connect(&host.name, &hello, mail.queue);
        let link = called.map_err(|error| control(&error))?;
        host.called(link);
        self.seat(link, Seat::Host);
        Ok(())
    }

    fn host_lost(&mut self, link: LinkId, why: String) {
        self.executor.memory.lost(link);
        let now_ns = self.fabric.time_ns();
        if let Some(host) = self.host.as_mut().filter(|host| host.is_at(link)) {
            host.lost(why, now_ns);
        }
    }

    /// Dials a lost host again, once its back-off has passed.
    fn call_host_again(&mut self, now_ns: u64) {
        let due = self.host.as_ref().and_then(Host::again_ns).is_some_and(|at_ns| at_ns <= now_ns);
        if due
            && let Err(error) = self.call_host()
            && let Some(host) = &mut self.host
        {
            host.lost(error.to_string(), now_ns);
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
        let measures = Measures {
            receives: places,
            receive_bytes: message_bytes,
            places,
            send_bytes: Invocation::BYTES_MAX,
        };
        let mail = Mail::open(fabric, Some(name), &measures)?;
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
            mail,
            seats: Vec::new(),
            sides: Vec::new(),
            tenants: BTreeMap::new(),
            outputs,
            scratch,
            lent: BTreeMap::new(),
            topics: Topics::default(),
            options,
            events: Vec::new(),
            effects: Vec::new(),
            host: None,
            served: 0,
            called_ns: 0,
            come_ns: None,
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
    /// use farside::call::{CallServer, Caller, CallerOptions, ServerOptions};
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
    /// let ticket = caller.invoke(&add, &counter.to_bits().to_le_bytes())?.ok_or("no slot")?;
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
        let global = Global::new(node, self.mail.port.waiter())?;
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

    /// Returns why the memory of the host executor is not available, once known. A host that was connected is
    /// dialled again until it is back; meanwhile accesses of calls fail with `PEER_LOST`.
    pub fn host_trouble(&self) -> Option<&str> {
        self.host.as_ref().and_then(Host::trouble)
    }

    /// Returns the address to which callers connect.
    pub fn address(&self) -> Option<String> {
        self.mail.port.address()
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
        let links = self.sides.iter().flatten().filter_map(|side| side.link);
        links.map(|link| self.mail.port.path(link)).collect()
    }

    fn seat(&mut self, link: LinkId, seat: Seat) {
        let at = link.0 as usize;
        if self.seats.len() <= at {
            self.seats.resize(at + 1, None);
        }
        self.seats[at] = Some(seat);
    }

    fn seat_of(&self, link: LinkId) -> Option<Seat> {
        self.seats.get(link.0 as usize).copied().flatten()
    }

    fn at(&self, call: CallId) -> usize {
        call.session.0 as usize * self.machine.slots() + usize::from(call.slot)
    }

    fn call_at(&self, at: usize) -> CallId {
        let (session, slot) = (at / self.machine.slots(), at % self.machine.slots());
        let number = |value| u32::try_from(value).unwrap_or(u32::MAX);
        CallId { session: Session(number(session)), slot: u8::try_from(slot).unwrap_or(u8::MAX) }
    }

    /// Handles events, runs calls for a while and sends replies; returns whether there was anything to do. Never
    /// blocks.
    pub fn turn(&mut self) -> bool {
        self.turn_at(true)
    }

    /// As [`Self::turn`]; reads the clock only after events, or if `asks`.
    fn turn_at(&mut self, asks: bool) -> bool {
        let mut come = 0;
        self.come_ns = None;
        while come < TURN_EVENTS
            && let Some(event) = self.mail.next()
        {
            self.event(event);
            come += 1;
        }
        let mut busy = come > 0;
        let mut events = std::mem::take(&mut self.events);
        self.mail.link_events(&mut events);
        busy |= !events.is_empty();
        events.drain(..).for_each(|event| self.link_event(event));
        self.events = events;
        let quiet = self.machine.is_idle() && !self.mail.has_backlog();
        if !busy && !asks && quiet && !self.executor.looks_around() {
            return false;
        }
        // A single call begins within the resolution of the clock.
        let now_ns = self.come_ns.filter(|_| come == 1).unwrap_or_else(|| self.fabric.time_ns());
        if self.machine.wakes_at_ns().is_some_and(|at_ns| at_ns <= now_ns) {
            let mut effects = std::mem::take(&mut self.effects);
            self.machine.tick(now_ns, &mut effects);
            self.carry_out(effects);
        }
        self.call_host_again(now_ns);
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
        self.post_steps();
        if let Some(link) = self.mail.flush() {
            self.lost(link);
        }
    }

    /// Runs calls until none is ready or the time of the poll has passed.
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
                Slice::Ready => Turn::Ready,
                Slice::Waits => Turn::Waits,
                Slice::Over(end) => {
                    self.end(call, end);
                    Turn::Over
                }
                Slice::Loaded(object, loaded) => {
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
            self.come_ns = Some(then_ns);
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
            let Some(event) = self.mail.next() else { return true };
            let is_message = matches!(event, Event::Message(..));
            self.event(event);
            if !is_message {
                break;
            }
        }
        false
    }

    fn end(&mut self, call: CallId, end: End) {
        let output = std::mem::take(&mut self.executor.output);
        let (reply, bytes): (_, &[u8]) = match &end {
            End::Returned(result) => (Reply::returned(*result, 0), &output),
            End::Stopped(why, slot, text) => (Reply::stopped(*why, *slot), text.as_bytes()),
        };
        self.answer(call, reply, bytes);
        self.executor.output = output;
    }

    /// Answers a request with this output; explanatory text is cut to the space of the caller.
    fn answer(&mut self, call: CallId, reply: Reply, output: &[u8]) {
        let room = self.sides.get(call.session.0 as usize).and_then(Option::as_ref);
        let room = room.map_or(0, |side| side.room_bytes);
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
        self.carry_out(effects);
    }

    fn output_at(&self, call: CallId) -> u64 {
        self.at(call) as u64 * u64::from(self.options.output_bytes_max.max(1))
    }

    fn carry_out(&mut self, mut effects: Vec<Effect>) {
        for effect in effects.drain(..) {
            match effect {
                Effect::Reply(session, header, reply) => self.reply(session, header, &reply),
                Effect::Stop(call) => {
                    let at = self.at(call);
                    self.executor.stop(at);
                    self.topics.forget(call);
                }
                Effect::EraseOwn(session, program) => self.executor.erase_own(session.0, program),
                Effect::Erase(program) => self.executor.erase(program),
                Effect::Over(session) => self.over(session),
            }
        }
        self.effects = effects;
    }

    fn over(&mut self, session: Session) {
        self.topics.over(session);
        let side = self.sides.get_mut(session.0 as usize).and_then(Option::take);
        if let Some(link) = side.and_then(|side| side.link) {
            self.close(link);
        }
    }

    fn close(&mut self, link: LinkId) {
        self.mail.forget(link);
        self.mail.port.close(link);
        if let Some(seat) = self.seats.get_mut(link.0 as usize) {
            *seat = None;
        }
    }

    fn reply(&mut self, session: Session, header: Header, reply: &Reply) {
        self.served += 1;
        let call = CallId { session, slot: header.slot };
        let (place, from) = (self.at(call), self.output_at(call));
        let Some(Some(side)) = self.sides.get(session.0 as usize) else { return };
        let Some(link) = side.link else { return };
        let output = match side.room {
            Some(region) if reply.output_bytes > 0 => Some(Output {
                from: LocalSlice {
                    region: self.outputs.region.id,
                    offset: from,
                    bytes: reply.output_bytes,
                },
                region,
                offset: u64::from(header.slot) * u64::from(side.room_bytes),
            }),
            _ => None,
        };
        let (body, bytes) = encode_reply(reply);
        self.mail.send(link, header, place, [&body[..bytes], &[]], output);
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Step(block, status) => self.executor.completed(block, status),
            Event::Broken(link, _) => self.lost(link),
            Event::Message(link, header) => {
                let session = match self.seat_of(link) {
                    Some(Seat::Caller(session)) => session,
                    Some(Seat::Visitor | Seat::Host) => return self.lost(link),
                    None => return, // of a closed link
                };
                let body = std::mem::take(&mut self.mail.message);
                let taken =
                    Header::decode(header).and_then(|header| self.request(session, header, &body));
                self.mail.message = body;
                if taken.is_err() {
                    // No correct caller sends this: its session ends.
                    let mut effects = std::mem::take(&mut self.effects);
                    self.machine.end(session, &mut effects);
                    self.carry_out(effects);
                }
            }
        }
    }

    /// Returns the arrival time of calls, the same for all that arrived together.
    fn come_ns(&mut self) -> u64 {
        let fabric = &self.fabric;
        *self.come_ns.get_or_insert_with(|| fabric.time_ns())
    }

    fn request(&mut self, session: Session, header: Header, body: &[u8]) -> Result<(), Violation> {
        let now_ns = self.come_ns();
        let mut effects = std::mem::take(&mut self.effects);
        let asked = self.machine.request(session, header, body, now_ns, &mut effects);
        self.carry_out(effects);
        match asked? {
            RuntimeAction::Nothing => {}
            RuntimeAction::Run(call, program, parameters) => {
                (self.called_ns, self.executor.is_quiet) = (now_ns, false);
                let at = self.at(call);
                let side = self.sides.get(session.0 as usize).and_then(Option::as_ref);
                let tenant = side.map_or(usize::MAX, |side| side.tenant);
                if let Err(error) =
                    self.executor.start(at, (session.0, tenant), program, parameters)
                {
                    let text = error.to_string();
                    self.answer(call, Reply::refused(Refused::Parameters, 0), text.as_bytes());
                }
            }
            RuntimeAction::Take(call, part, bytes) => {
                self.take(call, part, bytes);
                // The last part may have taken long to handle.
                self.come_ns = None;
            }
            RuntimeAction::Listen(call, topic) => match self.topics.listen(call, topic) {
                Heard::Notice(lost, bytes) => self.answer(call, Reply::returned(lost, 0), &bytes),
                Heard::Nothing => {}
                Heard::TooMany => self.answer(call, Reply::refused(Refused::Topics, 0), &[]),
            },
        }
        Ok(())
    }

    /// Sends notifications to their subscribers.
    fn notify(&mut self) {
        for notice in std::mem::take(&mut self.executor.notices) {
            let (calls, bytes) = self.topics.notify(notice);
            for call in calls {
                self.answer(call, Reply::returned(0, 0), &bytes);
            }
        }
    }

    fn post_steps(&mut self) {
        let Some(scratch) = &self.scratch else { return };
        let scratch = scratch.region.id;
        self.mail.post_steps(&mut self.executor, scratch);
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Requested { link, hello } => {
                if let Err(reason) = self.requested(link, &hello) {
                    let _ = self.mail.port.refuse(link, &reason);
                }
            }
            LinkEvent::Connected { link, reply } => self.found_host(link, &reply),
            LinkEvent::Refused { link, reason } => {
                self.host_lost(link, String::from_utf8_lossy(&reason).into_owned());
                self.close(link);
            }
            LinkEvent::NotReached { link, why } => {
                let trouble = self.mail.port.trouble(link);
                self.host_lost(link, not_reached(why, trouble).to_string());
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
            let accepted = self.mail.port.accept(link, &welcome.encode(), self.mail.queue);
            accepted.map_err(|error| error.to_string())?;
            self.seat(link, Seat::Visitor);
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
        let before = self.sides.get_mut(session.0 as usize).and_then(Option::as_mut);
        let (old, upload) = match before {
            Some(side) => (side.link.take(), side.upload.take()),
            None => (None, None),
        };
        if let Some(old) = old {
            self.close(old);
        }
        self.seat(link, Seat::Caller(session));
        let at = session.0 as usize;
        if self.sides.len() <= at {
            self.sides.resize_with(at + 1, || None);
        }
        let room_bytes = if hello.room.is_some() { hello.output_bytes } else { 0 };
        self.sides[at] = Some(Side { link: Some(link), tenant, room: None, room_bytes, upload });
        let accepted = self.mail.port.accept(link, &welcome.encode(), self.mail.queue);
        let room = accepted.and_then(|()| {
            let token = hello.room.map(|token| (token, self.mail.port.import(link, &token)));
            token.map(|(token, room)| room.map(|room| (room, token.bytes))).transpose()
        });
        match room {
            Ok(room) => {
                let each =
                    |bytes: u64| u64::from(hello.output_bytes) * u64::from(hello.slots) <= bytes;
                let room = room.filter(|(_, bytes)| each(*bytes));
                if let Some(Some(side)) = self.sides.get_mut(at) {
                    side.room = room.map(|(region, _)| region);
                    // A region smaller than announced is not used.
                    side.room_bytes = if side.room.is_some() { room_bytes } else { 0 };
                }
            }
            // The link has failed already.
            Err(_) => self.lost(link),
        }
        Ok(())
    }

    fn found_host(&mut self, link: LinkId, reply: &[u8]) {
        let Some(host) = self.host.as_mut().filter(|host| host.is_at(link)) else { return };
        let Some(welcome) = Welcome::decode(reply) else {
            host.unfit("the peer is not an executor of calls".to_owned());
            self.close(link);
            return;
        };
        let mut trouble = None;
        for (number, token) in welcome.regions {
            match self.mail.port.import(link, &token) {
                Ok(region) => {
                    let place = Place::There(link, region);
                    let lent = Lent { place, bytes: token.bytes, access: token.access };
                    self.executor.memory.lend(number, lent, None);
                }
                Err(error) => trouble = Some(error.to_string()),
            }
        }
        match (trouble, self.executor.memory.has_any()) {
            (None, true) => host.found(),
            (trouble, _) => host.unfit(trouble.unwrap_or_else(|| "it lends no memory".to_owned())),
        }
    }

    fn lost(&mut self, link: LinkId) {
        let seat = self.seat_of(link);
        self.close(link);
        match seat {
            Some(Seat::Caller(session)) => {
                if let Some(Some(side)) = self.sides.get_mut(session.0 as usize) {
                    (side.link, side.room) = (None, None);
                }
                let now_ns = self.fabric.time_ns();
                let mut effects = std::mem::take(&mut self.effects);
                self.machine.lost(session, now_ns, &mut effects);
                self.carry_out(effects);
            }
            Some(Seat::Host) => {
                self.host_lost(link, "the executor that has the memory is out of reach".to_owned());
            }
            Some(Seat::Visitor) | None => {}
        }
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
                    let port = &mut *self.mail.port;
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
        let host_ns = self.host.as_ref().and_then(Host::again_ns);
        let at_ns = self.machine.wakes_at_ns().into_iter().chain(host_ns).min();
        let at_ns = at_ns.unwrap_or(u64::MAX);
        let most = if self.mail.has_backlog() { BACKLOG_NAP } else { NAP };
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
    use crate::canary::{self, NodeMutant};
    use farside_protocol::call::CallMutant as Defect;
    let defects = [
        (NodeMutant::CallsRunAgain, Defect::RunAgain),
        (NodeMutant::RepliesForgotten, Defect::ReplyForgotten),
    ];
    match defects.into_iter().find(|(planted, _)| canary::is(*planted)) {
        Some((_, defect)) => Server::with_mutant(settings, defect),
        None => Server::new(settings),
    }
}

impl Drop for CallServer {
    fn drop(&mut self) {
        let open = (0..).zip(&self.seats).filter(|(_, seat)| seat.is_some());
        let links: Vec<_> = open.map(|(at, _)| LinkId(at)).collect();
        links.into_iter().for_each(|link| self.mail.port.close(link));
    }
}
