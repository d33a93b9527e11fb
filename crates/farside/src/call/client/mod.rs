//! Client of remote memory calls: registers programs at an executor, invokes them and receives answers.
//!
//! At-most-once invocation: after a reconnect, requests without an answer are sent again with the same slot and
//! sequence number, which the executor uses to suppress duplicates (as in NFS sessions, RFC 8881 §2.10.6).
//! Reconnects use exponential backoff.

pub(crate) mod outcome;
pub(crate) mod placed_caller;
mod share;
mod upload;

use crate::call::client::outcome::{end_here, end_of, not_loaded, refusal_error};
use crate::call::executor::{Executor, SliceOutcome};
use crate::call::memory::global::GlobalMemory;
use crate::call::memory::regions::{LentRegion, RegionSite};
use crate::call::memory::remote::BLOCK_BYTES;
use crate::call::transport::backoff::Backoff;
use crate::call::transport::handshake::{Hello, Purpose, Refusal, TENANT_BYTES_MAX, Welcome};
use crate::call::transport::message_port::{BACKLOG_NAP, Event, MessagePort, MessagePortSizes};
use crate::call::transport::program_list::Program;
use crate::patience::{Patience, Spins};
use crate::registered::{Registered, control, not_reached};
use crate::{Error, ErrorCode};
use farside_base::{Access, LinkId, RegionKind, RegionToken};
use farside_fabric::{Fabric, LinkEvent};
use farside_protocol::call::{
    Header, Invocation, SLOTS_MAX, SessionId, Verb, Window, decode_reply, object_of,
};
use farside_rmc::Limits;
use std::collections::{BTreeMap, VecDeque};
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::time::{Duration, Instant};
use upload::Upload;

/// Most local runs in progress.
const HERE_MAX: usize = 32;
/// Rounds of local runs per poll, if their requests complete at once: some microseconds.
const ROUNDS_HERE: usize = 64;

/// Options for a [`Caller`]. Start from [`CallerOptions::default`].
#[derive(Clone, Debug)]
pub struct CallerOptions {
    /// Most calls in progress at once, at most 256; an executor may allow fewer.
    pub slots: u16,
    /// Most bytes of parameters.
    pub parameter_bytes_max: u32,
    /// Most bytes of output of a call.
    pub output_bytes_max: u32,
    /// The tenant whose quota it counts towards, at most 32 bytes.
    pub tenant: String,
    /// Timeout for connecting and registering.
    pub timeout: Duration,
    /// How long a disconnected executor is redialled before the session counts as closed. `None`: twice the
    /// fabric's lease, which is zero on fabrics without disconnections.
    pub patience: Option<Duration>,
}

impl Default for CallerOptions {
    fn default() -> Self {
        Self {
            slots: 32,
            parameter_bytes_max: 4096,
            output_bytes_max: 4096,
            tenant: String::new(),
            timeout: Duration::from_secs(5),
            patience: None,
        }
    }
}

/// Handle of a call in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What the program returned.
    pub result: u64,
    /// What it emitted.
    pub output: Vec<u8>,
}

/// The site where a call runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Site {
    /// At the executor that this caller is connected to: one round trip.
    Remote,
    /// At the caller, by one-sided requests to the executor's memory: a round trip for each access.
    Local,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// `None` if the caller has forgotten the call.
    ticket: Option<Ticket>,
    header: Header,
    /// Bytes of its body.
    bytes: u32,
}

#[derive(Clone, Debug)]
enum LinkState {
    /// Connecting.
    Connecting(LinkId),
    Connected(LinkId),
    /// Disconnected; dialled again at this time.
    Disconnected {
        again_ns: u64,
    },
    Closed(Error),
}

/// Registers programs at an executor and invokes them.
///
/// *Guarantees.* A call runs at most once; it ends once, with an answer or an error. If an error leaves open
/// whether it ran (`PeerLost`), the text says so. Calls may end in any order. [`Caller::invoke`], [`Caller::turn`]
/// and [`Caller::poll`] never block.
pub struct Caller {
    fabric: Arc<dyn Fabric>,
    name: String,
    mail: MessagePort,
    options: CallerOptions,
    id: SessionId,
    link: LinkState,
    /// Whether it has had a session.
    welcomed: bool,
    /// When the executor was disconnected, until it is connected again.
    away_since_ns: Option<u64>,
    again: Backoff,
    window: Window,
    waiting: Vec<Option<Waiting>>,
    /// Memory for outputs. An executor that is preempted within a copy may still write there over a link closed
    /// here. It needs no quarantine: the memory serves this session only, a slot is reused only when its call is
    /// answered, and the thread that resumes the session is the one that copies.
    room: Registered,
    message_bytes: u32,
    output_bytes: u32,
    /// Outcomes not polled yet.
    ended: VecDeque<(Ticket, Result<Answer, Error>)>,
    tickets: u64,
    /// Spin budget of waits for answers.
    spins: Spins,
    events: Vec<LinkEvent>,
    regions: Vec<(u8, RegionToken)>,
    here: Option<Here>,
    /// The global memory for local runs, while there is no local executor.
    global: Option<GlobalMemory>,
    /// The object being registered.
    upload: Option<Upload>,
    /// Objects by number, for local runs.
    objects: BTreeMap<u64, Arc<[u8]>>,
}

/// The local runs.
struct Here {
    executor: Executor,
    scratch: Registered,
    /// By slot of the executor.
    tickets: Vec<Option<Ticket>>,
    /// Number of local runs in progress.
    running: usize,
    ready: VecDeque<usize>,
}

impl Here {
    /// Whether a poll has no work on local runs, so that callers without them pay nothing.
    fn is_idle(&self) -> bool {
        self.running == 0 && !self.executor.watches() && self.executor.global.is_none()
    }
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("to", &self.name).finish_non_exhaustive()
    }
}

impl Caller {
    /// Connects to the executor at `name` and waits until it accepts.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// As [`Self::begin`]; `TimedOut`, `NobodyListens`; `OverQuota` if the tenant or the executor is at its limit
    /// of callers; `ChannelMismatch` if it is refused otherwise, with the reason.
    pub fn connect(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &CallerOptions,
    ) -> Result<Self, Error> {
        let mut caller = Self::begin(fabric, name, options)?;
        let mut patience = Patience::of_turns(options.timeout);
        loop {
            caller.turn()?;
            if caller.is_connected() {
                return Ok(caller);
            }
            caller.wait_a_little(&mut patience)?;
        }
    }

    /// Begins to connect; [`Self::turn`] continues.
    ///
    /// # Errors
    /// `NobodyListens` if that is known immediately, `FabricLacks`, `BadConfiguration`, `System`.
    pub fn begin(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &CallerOptions,
    ) -> Result<Self, Error> {
        let slots = usize::from(options.slots);
        let whole = (1..=SLOTS_MAX).contains(&slots)
            && options.tenant.len() <= TENANT_BYTES_MAX
            && options.output_bytes_max > 0
            && options.parameter_bytes_max < 1 << 20;
        if !whole {
            let text = "a caller has 1 to 256 slots, space for output, less than 1 MiB of parameters \
                        and a tenant's name of at most 32 bytes";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let measures = MessagePortSizes {
            receives: slots,
            receive_bytes: 16,
            places: slots,
            send_bytes: options.parameter_bytes_max + Invocation::BYTES_MAX,
        };
        let mail = MessagePort::open(fabric, None, &measures)?;
        let bytes = u64::from(options.output_bytes_max) * slots as u64;
        let room = Registered::new(fabric, bytes, Access::WRITE, RegionKind::Memory)?;
        let draw = |salt: u64| u128::from(RandomState::new().hash_one((name, salt)));
        let mut caller = Self {
            fabric: Arc::clone(fabric),
            name: name.to_owned(),
            mail,
            options: options.clone(),
            id: SessionId(draw(1) << 64 | draw(2)),
            link: LinkState::Closed(ErrorCode::PeerLost.into()),
            welcomed: false,
            away_since_ns: None,
            again: Backoff::default(),
            window: Window::new(slots),
            waiting: vec![None; slots],
            room,
            message_bytes: 0,
            output_bytes: 0,
            ended: VecDeque::new(),
            tickets: 0,
            spins: Spins::FIRST,
            events: Vec::new(),
            regions: Vec::new(),
            here: None,
            global: None,
            upload: None,
            objects: BTreeMap::new(),
        };
        caller.call_up()?;
        Ok(caller)
    }

    fn call_up(&mut self) -> Result<(), Error> {
        let hello = Hello {
            purpose: Purpose::Calls,
            slots: self.options.slots,
            session: self.id,
            tenant: self.options.tenant.clone(),
            output_bytes: self.options.output_bytes_max,
            room: Some(self.room.region.token),
        };
        let connected = self.mail.port.connect(&self.name, &hello.encode(), self.mail.queue);
        let link = connected.map_err(|error| control(&error))?;
        self.link = LinkState::Connecting(link);
        Ok(())
    }

    /// Whether the executor has accepted it and is connected.
    pub const fn is_connected(&self) -> bool {
        matches!(self.link, LinkState::Connected(_))
    }

    /// Returns how many calls could be begun now.
    pub fn room(&self) -> usize {
        if self.welcomed { self.window.room() } else { 0 }
    }

    /// Returns how the executor is reached, and why so.
    pub fn path(&self) -> Option<String> {
        match self.link {
            LinkState::Connected(link) => Some(self.mail.port.path(link)),
            _ => None,
        }
    }

    /// Returns the regions that the executor lends: number, bytes and access rights.
    pub fn regions(&self) -> impl Iterator<Item = (u8, u64, Access)> {
        self.regions.iter().map(|(number, token)| (*number, token.bytes, token.access))
    }

    /// Unregisters a program, with all programs of its object, which share their state. Erases their state for this
    /// caller, and all of it with the last caller; their calls in progress end.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// `NoProgram`; `PeerLost`; `TimedOut`, in which case the executor unregisters it when it receives the request.
    pub fn unregister(&mut self, program: &Program) -> Result<(), Error> {
        let until = Instant::now() + self.options.timeout;
        let ticket = self.ask_wait(Verb::Unregister, &program.number.to_le_bytes(), &[])?;
        let left = until.saturating_duration_since(Instant::now());
        if let Err(error) = self.wait(ticket, left) {
            self.forget(ticket);
            return Err(error);
        }
        let object = object_of(program.number);
        self.objects.remove(&object);
        if let Some(here) = &mut self.here {
            here.executor.erase(object);
        }
        Ok(())
    }

    /// Begins a call; `None` if all slots are in use. It is sent by the next [`Self::turn`], so that calls begun
    /// between two polls share a doorbell.
    ///
    /// # Errors
    /// `BadParameters` if they are too short or too long, `PeerLost` once the session is closed.
    pub fn invoke(
        &mut self,
        program: &Program,
        parameters: &[u8],
    ) -> Result<Option<Ticket>, Error> {
        self.invoke_until(program, parameters, None)
    }

    /// Begins a call with a deadline: it is stopped after `timeout`, counted from its arrival.
    ///
    /// # Errors
    /// As [`Self::invoke`].
    pub fn invoke_until(
        &mut self,
        program: &Program,
        parameters: &[u8],
        timeout: Option<Duration>,
    ) -> Result<Option<Ticket>, Error> {
        let timeout_ns = timeout.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        let invocation = Invocation { program: program.number, timeout_ns };
        let (verb, head, length) = invocation.encode();
        let most = self.message_bytes.saturating_sub(Invocation::BYTES_MAX) as usize;
        if self.welcomed {
            fits(program, parameters, most)?;
        }
        self.ask(verb, &head[..length], parameters)
    }

    /// Begins a local run, by one-sided requests to the executor's memory; `None` if all slots for local runs are
    /// in use.
    ///
    /// # Errors
    /// As [`Self::invoke`]; `NoProgram` for a program of another caller; `ExecutorLacks` for a program with global
    /// addresses if this caller is not part of a node; `NotHere` for a program with state, which is at its
    /// executor, and for one that uses host memory if the executor lends none itself.
    pub fn invoke_here(
        &mut self,
        program: &Program,
        parameters: &[u8],
    ) -> Result<Option<Ticket>, Error> {
        is_stateless(program)?;
        fits(program, parameters, Limits::DEFAULT.context_bytes_max)?;
        self.prepare_here(program)?;
        let Some(here) = &mut self.here else {
            return Err(ErrorCode::PeerLost.into());
        };
        let Some(at) = here.tickets.iter().position(Option::is_none) else {
            return Ok(None);
        };
        let started = here.executor.start(at, (0, 0), program.number, parameters);
        started.map_err(|error| Error::with(ErrorCode::BadParameters, error.to_string()))?;
        self.tickets += 1;
        here.tickets[at] = Some(Ticket(self.tickets));
        here.running += 1;
        here.ready.push_back(at);
        Ok(Some(Ticket(self.tickets)))
    }

    /// Checks whether local runs of a program are equivalent to remote ones. The first check loads the program
    /// locally; nothing is invoked.
    ///
    /// # Errors
    /// `NotHere`, `NoProgram` and `ExecutorLacks` as [`Self::invoke_here`]. `NotHere` also for a program that sends
    /// notifications: its subscribers are at the executor and do not receive notifications of local runs, which
    /// [`Self::invoke_here`] permits.
    pub fn can_run_here(&mut self, program: &Program) -> Result<(), Error> {
        is_stateless(program)?;
        self.prepare_here(program)?;
        let here = self.here.as_ref();
        match here.and_then(|here| here.executor.loaded(program.number)) {
            Some(loaded) if loaded.notifies() => {
                let text =
                    "its notifications do not reach subscribers at its executor from a local run";
                Err(Error::with(ErrorCode::NotHere, text))
            }
            _ => Ok(()),
        }
    }

    /// Begins a call at the given site.
    ///
    /// # Errors
    /// As [`Self::invoke`] and [`Self::invoke_here`].
    pub fn invoke_at(
        &mut self,
        runs: Site,
        program: &Program,
        parameters: &[u8],
    ) -> Result<Option<Ticket>, Error> {
        match runs {
            Site::Remote => self.invoke(program, parameters),
            Site::Local => self.invoke_here(program, parameters),
        }
    }

    fn prepare_here(&mut self, program: &Program) -> Result<(), Error> {
        let LinkState::Connected(link) = self.link else {
            return Err(self.over());
        };
        if self.here.is_none() {
            let scratch = Registered::own(&self.fabric, HERE_MAX as u64 * BLOCK_BYTES)?;
            let mut executor = Executor::new(Some(scratch.region.arena.clone()), 1);
            executor.memory.add(0);
            for (number, token) in &self.regions {
                let region = self.mail.port.import(link, token).map_err(|error| control(&error))?;
                let place = RegionSite::Remote(link, region);
                let lent = LentRegion { place, bytes: token.bytes, access: token.access };
                executor.memory.lend(*number, lent, None);
            }
            executor.global = self.global.take();
            let (tickets, ready) = (vec![None; HERE_MAX], VecDeque::new());
            self.here = Some(Here { executor, scratch, tickets, running: 0, ready });
        }
        let Some(here) = &mut self.here else {
            return Err(ErrorCode::PeerLost.into());
        };
        if here.executor.loaded(program.number).is_some() {
            return Ok(());
        }
        let number = object_of(program.number);
        let object = self.objects.get(&number).ok_or_else(|| Error::new(ErrorCode::NoProgram))?;
        let programs = here.executor.load(object, &Limits::DEFAULT).map_err(not_loaded)?;
        let place = (program.number - number) as usize;
        let loaded = programs.get(place).ok_or_else(|| Error::new(ErrorCode::NoProgram))?;
        // Each access would be refused with a status that the program might take for an answer.
        if let (true, Some(helper)) = (self.regions.is_empty(), loaded.memory_helper()) {
            let text = format!(
                "`{}` calls {helper}, and this executor lends no memory itself: if it was started with \
                 --beside, call the executor that it names",
                loaded.name()
            );
            return Err(Error::with(ErrorCode::NotHere, text));
        }
        here.executor.keep(object, number, 0, &programs);
        Ok(())
    }

    /// Begins to wait for the next notification of a topic; `None` if no slot is free. The first wait subscribes.
    /// The answer's output is the notification; its result is the number of notifications lost before it.
    ///
    /// *Limits.* 16 notifications are kept while no request waits. A session subscribes to at most 64 topics: a
    /// further one replaces the least recently used topic without a waiting request, with its kept notifications.
    /// If requests wait on all 64, the answer is `OverQuota` and nothing changes. *Cost.* A round trip and the
    /// wait; a notification costs its executor time in proportion to its subscribers.
    ///
    /// # Errors
    /// `PeerLost`.
    pub fn listen(&mut self, topic: u64) -> Result<Option<Ticket>, Error> {
        self.ask(Verb::Listen, &topic.to_le_bytes(), &[])
    }

    /// Requests to stop a call. The answer to this request is 1 if the call was in progress, which then ends with
    /// `CallCancelled`; 0 if it had ended. `None` if no slot is free, or if a local run was stopped at once.
    ///
    /// # Errors
    /// `PeerLost`.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<Option<Ticket>, Error> {
        if self.stop_here(ticket) {
            self.ended.push_back((ticket, Err(ErrorCode::CallCancelled.into())));
            return Ok(None);
        }
        let mut waiting = self.waiting.iter().flatten();
        let target = waiting.find(|waiting| waiting.ticket == Some(ticket));
        match target.map(|waiting| waiting.header) {
            Some(target) => self.ask(Verb::Cancel, &Window::cancellation(target), &[]),
            None => Ok(None),
        }
    }

    /// Returns why no request can be sent, permanently or at present.
    pub(crate) fn over(&self) -> Error {
        match &self.link {
            LinkState::Closed(error) => error.clone(),
            _ => Error::with(ErrorCode::PeerLost, "the executor is out of reach at present"),
        }
    }

    fn ask(&mut self, verb: Verb, head: &[u8], rest: &[u8]) -> Result<Option<Ticket>, Error> {
        if let LinkState::Closed(error) = &self.link {
            return Err(error.clone());
        }
        if !self.welcomed {
            return Ok(None);
        }
        let Some(header) = self.window.begin(verb) else {
            return Ok(None);
        };
        self.tickets += 1;
        let ticket = Ticket(self.tickets);
        let bytes = u32::try_from(head.len() + rest.len()).unwrap_or(u32::MAX);
        let place = usize::from(header.slot);
        self.waiting[place] = Some(Waiting { ticket: Some(ticket), header, bytes });
        // Without a link it is sent when the session resumes.
        match self.link {
            LinkState::Connected(link) => self.mail.send(link, header, place, [head, rest], None),
            _ => self.mail.put(header, place, [head, rest]),
        }
        Ok(Some(ticket))
    }

    fn ask_wait(&mut self, verb: Verb, head: &[u8], rest: &[u8]) -> Result<Ticket, Error> {
        let mut patience = Patience::of_turns(self.options.timeout);
        loop {
            self.turn()?;
            if let Some(ticket) = self.ask(verb, head, rest)? {
                return Ok(ticket);
            }
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Returns the outcome of a call that has ended, once. Does not poll the port: [`Self::turn`] does.
    pub fn poll(&mut self, ticket: Ticket) -> Option<Result<Answer, Error>> {
        let at = self.ended.iter().position(|(of, _)| *of == ticket)?;
        self.ended.remove(at).map(|(_, end)| end)
    }

    /// Returns the earliest outcome that was not polled yet.
    pub fn poll_any(&mut self) -> Option<(Ticket, Result<Answer, Error>)> {
        let own = |ticket| self.upload.as_ref().is_some_and(|upload| upload.awaits(ticket));
        let at = self.ended.iter().position(|(ticket, _)| !own(*ticket))?;
        self.ended.remove(at)
    }

    /// Waits for a call to end.
    ///
    /// *Blocks.* Spins first, then sleeps. The spin budget shrinks after long waits, which costs such waits some
    /// microseconds and leaves the processor to others.
    ///
    /// # Errors
    /// How it ended, `DeadlinePassed` if the timeout of [`Self::invoke_until`] passed; `TimedOut` if it has not
    /// ended; it may end later.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<Answer, Error> {
        let mut patience = Patience::of_answer(timeout, self.spins);
        loop {
            // An error of the session is also the outcome of its calls.
            let _ = self.turn();
            if let Some(end) = self.poll(ticket) {
                self.spins = self.spins.after(&patience);
                return end;
            }
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Waits for any call to end; returns the earliest outcome that was not polled yet.
    ///
    /// *Blocks*, as [`Self::wait`].
    ///
    /// # Errors
    /// `TimedOut` if none has; why the session is closed, once all outcomes were polled.
    pub fn wait_any(
        &mut self,
        timeout: Duration,
    ) -> Result<(Ticket, Result<Answer, Error>), Error> {
        let mut patience = Patience::of_answer(timeout, self.spins);
        loop {
            let turned = self.turn();
            if let Some(ended) = self.poll_any() {
                self.spins = self.spins.after(&patience);
                return Ok(ended);
            }
            turned?;
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Drops the outcome of a call, present or future. A remote call continues at its executor; a local run is
    /// stopped.
    pub fn forget(&mut self, ticket: Ticket) {
        self.ended.retain(|(of, _)| *of != ticket);
        for waiting in self.waiting.iter_mut().flatten() {
            if waiting.ticket == Some(ticket) {
                waiting.ticket = None;
            }
        }
        self.stop_here(ticket);
    }

    /// Stops a local run; returns whether there was one.
    fn stop_here(&mut self, ticket: Ticket) -> bool {
        let Some(here) = &mut self.here else { return false };
        let Some(at) = here.tickets.iter().position(|other| *other == Some(ticket)) else {
            return false;
        };
        here.executor.stop(at);
        here.tickets[at] = None;
        here.running -= 1;
        here.ready.retain(|other| *other != at);
        true
    }

    /// Invokes a program remotely and waits for its answer: one round trip.
    ///
    /// *Blocks*, as [`Self::wait`].
    ///
    /// # Errors
    /// As [`Self::invoke`] and [`Self::wait`].
    pub fn call(
        &mut self,
        program: &Program,
        parameters: &[u8],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        self.call_at(Site::Remote, program, parameters, timeout)
    }

    /// Invokes a program at the given site and waits for its answer.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_at(
        &mut self,
        runs: Site,
        program: &Program,
        parameters: &[u8],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let mut patience = Patience::of_turns(timeout);
        loop {
            if let Some(ticket) = self.invoke_at(runs, program, parameters)? {
                let end = self.wait(ticket, timeout);
                if end.is_err() {
                    // If it has not ended, its outcome is dropped.
                    self.forget(ticket);
                }
                return end;
            }
            let room = self.window.room();
            self.turn()?;
            if self.window.room() == room {
                self.wait_a_little(&mut patience)?;
            }
        }
    }

    fn wait_a_little(&mut self, patience: &mut Patience) -> Result<(), Error> {
        if self.is_ready() {
            return Ok(());
        }
        let nap = match self.link {
            LinkState::Disconnected { again_ns } => {
                let wait_ns = again_ns.saturating_sub(self.fabric.time_ns());
                Some(Duration::from_nanos(wait_ns))
            }
            _ if self.mail.has_backlog() => Some(BACKLOG_NAP),
            _ => None,
        };
        match &mut self.here {
            Some(here) if here.executor.watches() => patience.wait(),
            Some(here) => {
                let port = &mut *self.mail.port;
                here.executor.wait(patience, |patience| patience.wait_for_event(port, nap))
            }
            None => patience.wait_for_event(&mut *self.mail.port, nap),
        }
    }

    /// Whether a local run could continue at the next poll. A program that polls a caller on its events polls it
    /// again at once.
    pub fn is_ready(&self) -> bool {
        self.here.as_ref().is_some_and(|here| !here.ready.is_empty())
    }

    /// Handles events and sends queued requests. Never blocks. Each ready local run has one slice;
    /// [`Self::is_ready`] returns whether one needs another.
    ///
    /// # Errors
    /// Why the session is closed, on this and all later calls.
    pub fn turn(&mut self) -> Result<(), Error> {
        self.take_events();
        let mut events = std::mem::take(&mut self.events);
        self.mail.link_events(&mut events);
        events.drain(..).for_each(|event| self.link_event(event));
        self.events = events;
        if let LinkState::Disconnected { again_ns } = self.link {
            self.try_again(again_ns);
        }
        if self.here.as_ref().is_some_and(|here| !here.is_idle()) {
            self.run_here();
        }
        if let Some(link) = self.mail.flush() {
            self.lost(link, "the fabric cannot take its message");
        }
        match &self.link {
            LinkState::Closed(error) => Err(error.clone()),
            _ => Ok(()),
        }
    }

    fn event(&mut self, event: Event) {
        match event {
            Event::Step(block, status) => {
                if let Some(here) = &mut self.here {
                    here.executor.completed(block, status);
                }
            }
            Event::Broken(link, status) => {
                let text = self.mail.port.trouble(link);
                self.lost(link, &text.unwrap_or_else(|| format!("{status:?}")));
            }
            Event::Message(link, header) if matches!(self.link, LinkState::Connected(up) if up == link) => {
                if let Err(text) = self.answered(header) {
                    let error = Error::with(ErrorCode::ProtocolViolation, text);
                    self.end_session(&error);
                }
            }
            Event::Message(..) => {}
        }
    }

    fn answered(&mut self, header: u32) -> Result<(), &'static str> {
        let header = Header::decode(header).map_err(|violation| violation.0)?;
        let reply = decode_reply(header.verb, &self.mail.message);
        let reply = reply.map_err(|violation| violation.0)?;
        if reply.output_bytes > self.output_bytes {
            return Err("more output than its region has space for");
        }
        let answered = self.window.reply(header).map_err(|violation| violation.0)?;
        let mut output = vec![0; reply.output_bytes as usize];
        let offset = u64::from(answered.slot) * u64::from(self.output_bytes);
        let arena = &self.room.region.arena;
        arena.read(offset, &mut output).map_err(|_| "output outside of its region")?;
        let waiting = self.waiting[usize::from(answered.slot)].take();
        if let Some(ticket) = waiting.and_then(|waiting| waiting.ticket) {
            self.ended.push_back((ticket, end_of(&reply, output)));
        }
        Ok(())
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Connected { link, reply } => match Welcome::decode(&reply) {
                Some(welcome) => self.welcome(link, welcome),
                None => {
                    let text = "the peer is not an executor of calls";
                    self.end_session(&Error::with(ErrorCode::ProtocolViolation, text));
                }
            },
            LinkEvent::Refused { reason, .. } => {
                let error = self.refused(&reason);
                self.end_session(&error);
            }
            // The executor may return; retried with backoff.
            LinkEvent::NotReached { .. } if self.welcomed => self.try_later(),
            LinkEvent::NotReached { link, why } => {
                let trouble = self.mail.port.trouble(link);
                let Error { code, detail, .. } = not_reached(why, trouble);
                self.end_session(&Error::with(code, format!("{}: {detail}", self.name)));
            }
            LinkEvent::Lost { link, .. } => self.lost(link, "its link was lost"),
            _ => {}
        }
    }

    fn welcome(&mut self, link: LinkId, welcome: Welcome) {
        if self.welcomed && !welcome.resumed {
            let text = "the executor was restarted or has closed this session; whether calls in \
                        progress ran is not known";
            self.end_session(&Error::with(ErrorCode::PeerLost, text));
            return;
        }
        self.link = LinkState::Connected(link);
        (self.away_since_ns, self.again) = (None, Backoff::default());
        self.message_bytes =
            welcome.message_bytes.min(self.options.parameter_bytes_max + Invocation::BYTES_MAX);
        self.output_bytes = self.options.output_bytes_max;
        self.regions = welcome.regions;
        if !std::mem::replace(&mut self.welcomed, true) {
            self.window = Window::new(usize::from(welcome.slots).min(self.waiting.len()));
            return;
        }
        let mut again = self.window.again().collect::<Vec<_>>();
        // The parts of an object are sent in order.
        again.sort_by_key(|header| self.waiting[usize::from(header.slot)].map(|of| of.ticket));
        for header in again {
            let place = usize::from(header.slot);
            if let Some(waiting) = self.waiting[place] {
                self.mail.send_again(link, header, place, waiting.bytes);
            }
        }
    }

    /// Returns the error of a refusal.
    fn refused(&self, reason: &[u8]) -> Error {
        match Refusal::decode(reason) {
            // The session expired and its slot was given to another caller.
            Some(Refusal { text, .. }) if self.welcomed => {
                let text = format!(
                    "the executor has closed this session, and {text}; whether calls in progress ran is \
                     not known"
                );
                Error::with(ErrorCode::PeerLost, text)
            }
            Some(Refusal { why, text }) => refusal_error(why, text),
            None => {
                let text = String::from_utf8_lossy(reason).into_owned();
                Error::with(ErrorCode::ChannelMismatch, text)
            }
        }
    }

    fn patience_ns(&self) -> u64 {
        let patience = self.options.patience;
        let given = patience.map(|time| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX));
        given.unwrap_or(self.fabric.lease_ns().saturating_mul(2))
    }

    fn lost(&mut self, link: LinkId, text: &str) {
        let current =
            matches!(self.link, LinkState::Connected(up) | LinkState::Connecting(up) if up == link);
        self.mail.forget(link);
        self.mail.port.close(link);
        if !current {
            return;
        }
        self.leave_here();
        if self.patience_ns() == 0 || !self.welcomed {
            let text = format!("{text}; whether calls in progress ran is not known");
            self.end_session(&Error::with(ErrorCode::PeerLost, text));
            return;
        }
        self.try_later();
    }

    /// Ends all local runs: their memory is disconnected.
    fn leave_here(&mut self) {
        let Some(mut here) = self.here.take() else { return };
        (0..here.tickets.len()).for_each(|at| here.executor.stop(at));
        self.global = here.executor.global.take();
        for ticket in here.tickets.into_iter().flatten() {
            let text = "the memory that it accesses is out of reach";
            self.ended.push_back((ticket, Err(Error::with(ErrorCode::PeerLost, text))));
        }
    }

    fn try_later(&mut self) {
        let now_ns = self.fabric.time_ns();
        let wait_ns = self.again.wait_ns();
        self.away_since_ns.get_or_insert(now_ns);
        self.link = LinkState::Disconnected { again_ns: now_ns.saturating_add(wait_ns) };
    }

    fn try_again(&mut self, again_ns: u64) {
        let now_ns = self.fabric.time_ns();
        let since_ns = self.away_since_ns.unwrap_or(now_ns);
        if now_ns.saturating_sub(since_ns) > self.patience_ns() {
            let text = "the executor was out of reach for too long; whether calls in progress ran is \
                        not known";
            self.end_session(&Error::with(ErrorCode::PeerLost, text));
        } else if again_ns <= now_ns {
            let called = self.call_up();
            if called.is_err() {
                self.try_later();
            }
        }
    }

    /// Closes the session: all calls in progress end, and none can begin.
    fn end_session(&mut self, error: &Error) {
        if let LinkState::Connected(link) | LinkState::Connecting(link) = self.link {
            self.mail.forget(link);
            self.mail.port.close(link);
        }
        self.link = LinkState::Closed(error.clone());
        self.leave_here();
        let waiting = self.waiting.iter_mut().filter_map(Option::take);
        for ticket in waiting.filter_map(|waiting| waiting.ticket) {
            self.ended.push_back((ticket, Err(error.clone())));
        }
        self.window.over();
    }

    /// Runs local calls as long as they progress. If a request completes when posted, as over shared memory, the
    /// next one follows in the same poll.
    fn run_here(&mut self) {
        let now_ns = self.fabric.time_ns();
        for _ in 0..ROUNDS_HERE {
            let posted = self.round_here(now_ns);
            if !posted || !self.take_events() {
                break;
            }
        }
    }

    /// Handles all events; returns whether there were any.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.mail.next() {
            self.event(event);
            any = true;
        }
        any
    }

    /// Runs a slice of each ready local call; returns whether requests were posted.
    fn round_here(&mut self, now_ns: u64) -> bool {
        let Some(here) = &mut self.here else { return false };
        if here.executor.watches() {
            here.executor.watch(now_ns);
        }
        while let Some(at) = here.executor.take_woken() {
            here.ready.push_back(at);
        }
        // Only the calls ready now, each for one slice.
        for _ in 0..here.ready.len() {
            let Some(at) = here.ready.pop_front() else { break };
            match here.executor.slice(at, now_ns) {
                SliceOutcome::Ready => here.ready.push_back(at),
                // Local objects are loaded synchronously.
                SliceOutcome::Waits | SliceOutcome::Loaded(..) => {}
                SliceOutcome::Over(end) => {
                    let output = std::mem::take(&mut here.executor.output);
                    if let Some(ticket) = here.tickets[at].take() {
                        here.running -= 1;
                        self.ended.push_back((ticket, end_here(end, output)));
                    }
                }
            }
        }
        here.executor.notifications.clear();
        self.mail.post_steps(&mut here.executor, here.scratch.region.id)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let LinkState::Connected(link) = self.link {
            // So that the executor does not keep the session. If this message is lost, it does, for its grace.
            self.mail.leave(link);
        }
        if let LinkState::Connected(link) | LinkState::Connecting(link) = self.link {
            self.mail.port.close(link);
        }
    }
}

fn is_stateless(program: &Program) -> Result<(), Error> {
    if program.keeps_state {
        let text = "it keeps state between calls, which is at its executor";
        return Err(Error::with(ErrorCode::NotHere, text));
    }
    Ok(())
}

fn fits(program: &Program, parameters: &[u8], most: usize) -> Result<(), Error> {
    let (needs, has) = (program.parameter_bytes as usize, parameters.len());
    if (needs..=most).contains(&has) {
        return Ok(());
    }
    let name = &program.name;
    let text = format!("`{name}` takes {needs} to {most} B of parameters, not {has}");
    Err(Error::with(ErrorCode::BadParameters, text))
}
