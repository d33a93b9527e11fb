//! The end that invokes calls.

mod share;
mod upload;

use super::across::BLOCK_BYTES;
use super::again::Again;
use super::ends::{end_here, end_of, not_loaded, refusal_error};
use super::executor::{Executor, Slice};
use super::global::Global;
use super::hello::{Hello, Purpose, Refusal, TENANT_BYTES_MAX, Welcome};
use super::mail::{BACKLOG_NAP, Event, Mail, Measures};
use super::memory::{Lent, Place};
use super::programs::Program;
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

/// Calls that this end runs itself at once.
const HERE_MAX: usize = 32;
/// Accesses of a call here that may follow each other within a turn: some microseconds.
const ROUNDS_HERE: usize = 64;

/// How a caller shall be. Start from [`CallerOptions::default`].
#[derive(Clone, Debug)]
pub struct CallerOptions {
    /// Calls that may be in progress at once, at most 256; an executor may allow fewer.
    pub slots: u16,
    /// Most bytes of parameters.
    pub parameter_bytes_max: u32,
    /// Most bytes of output of a call.
    pub output_bytes_max: u32,
    /// Whose quota it counts towards, at most 32 bytes.
    pub tenant: String,
    /// How long connecting and registering may take.
    pub timeout: Duration,
    /// How long an executor that is out of reach is called again before its session counts as over;
    /// `None`: twice the fabric's lease, so not at all where nobody is ever out of reach.
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

/// A call in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// What a call came to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Answer {
    /// What the program returned.
    pub result: u64,
    /// What it emitted.
    pub output: Vec<u8>,
}

/// Where a call runs.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Runs {
    /// At the executor that this caller is connected to: one round trip.
    There,
    /// Here, by one-sided requests to the executor's memory: a round trip for each access.
    Here,
}

#[derive(Clone, Copy, Debug)]
struct Waiting {
    /// Unless nobody asks for its end.
    ticket: Option<Ticket>,
    header: Header,
    /// Of its body.
    bytes: u32,
}

#[derive(Clone, Debug)]
enum Link {
    /// Being connected, since then.
    Coming(LinkId),
    Up(LinkId),
    /// To be tried again then.
    Down {
        again_ns: u64,
    },
    Over(Error),
}

/// Registers programs at an executor and invokes them.
///
/// *Guarantees.* A call runs at most once; it ends once, by an answer or an error. Where an error leaves
/// open whether it ran (`PeerLost`), that is said. Calls may end in any order.
/// Calls of the core never block: [`Caller::invoke`], [`Caller::turn`], [`Caller::poll`].
pub struct Caller {
    fabric: Arc<dyn Fabric>,
    name: String,
    mail: Mail,
    options: CallerOptions,
    id: SessionId,
    link: Link,
    /// It has had a session.
    welcomed: bool,
    /// Since when the executor is out of reach, while it is.
    away_since_ns: Option<u64>,
    again: Again,
    window: Window,
    waiting: Vec<Option<Waiting>>,
    /// Where outputs land. An executor that is stopped within a copy may still write there over a link that is closed
    /// here. It needs no quarantine: the memory serves this session alone, a slot is used again only when its call
    /// is answered, and the thread that welcomes the session again is the one that copies.
    room: Registered,
    message_bytes: u32,
    output_bytes: u32,
    /// Ends that were not asked for yet.
    ended: VecDeque<(Ticket, Result<Answer, Error>)>,
    tickets: u64,
    /// Of waits for ends.
    spins: Spins,
    events: Vec<LinkEvent>,
    regions: Vec<(u8, RegionToken)>,
    here: Option<Here>,
    /// The global memory for runs here, while there is no executor here.
    global: Option<Global>,
    /// The object that is being registered.
    upload: Option<Upload>,
    /// Objects by the numbers of their programs, for runs here.
    objects: BTreeMap<u64, Arc<[u8]>>,
}

/// What runs at this end.
struct Here {
    executor: Executor,
    scratch: Registered,
    /// By place in the executor.
    tickets: Vec<Option<Ticket>>,
    /// How many of them there are.
    running: usize,
    ready: VecDeque<usize>,
}

impl Here {
    /// Whether a turn has nothing to do here, so that whoever only waits for calls there pays nothing for it.
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
    /// Connects to the executor at `name` and waits for its welcome.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// As [`Self::begin`]; `TimedOut`, `NobodyListens`; `OverQuota` when the tenant has all its callers, or the
    /// executor; `ChannelMismatch` when it refuses otherwise, with its reason.
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

    /// Begins to connect; [`Self::turn`] goes on.
    ///
    /// # Errors
    /// `NobodyListens` where that is known at once, `FabricLacks`, `BadConfiguration`, `System`.
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
            let text = "a caller has 1 to 256 slots, room for output, less than 1 MiB of parameters \
                        and a tenant's name of at most 32 bytes";
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let measures = Measures {
            receives: slots,
            receive_bytes: 16,
            places: slots,
            send_bytes: options.parameter_bytes_max + Invocation::BYTES_MAX,
        };
        let mail = Mail::open(fabric, None, &measures)?;
        let bytes = u64::from(options.output_bytes_max) * slots as u64;
        let room = Registered::new(fabric, bytes, Access::WRITE, RegionKind::Memory)?;
        let draw = |salt: u64| u128::from(RandomState::new().hash_one((name, salt)));
        let mut caller = Self {
            fabric: Arc::clone(fabric),
            name: name.to_owned(),
            mail,
            options: options.clone(),
            id: SessionId(draw(1) << 64 | draw(2)),
            link: Link::Over(ErrorCode::PeerLost.into()),
            welcomed: false,
            away_since_ns: None,
            again: Again::default(),
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
        self.link = Link::Coming(link);
        Ok(())
    }

    /// Whether the executor has welcomed it and is in reach.
    pub const fn is_connected(&self) -> bool {
        matches!(self.link, Link::Up(_))
    }

    /// Calls that could be begun now.
    pub fn room(&self) -> usize {
        if self.welcomed { self.window.room() } else { 0 }
    }

    /// How the executor is reached, and why so.
    pub fn path(&self) -> Option<String> {
        match self.link {
            Link::Up(link) => Some(self.mail.port.path(link)),
            _ => None,
        }
    }

    /// Regions that the executor lends: number, bytes, and what may be done with them.
    pub fn regions(&self) -> impl Iterator<Item = (u8, u64, Access)> {
        self.regions.iter().map(|(number, token)| (*number, token.bytes, token.access))
    }

    /// Gives a program back, with all programs of its object, which share their state. What they keep for this
    /// caller is erased, and everything of them with the last caller; calls of them that are in progress end.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// `NoProgram`; `PeerLost`; `TimedOut`, where the executor gives it back when it takes the request.
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

    /// Begins a call; `None` while as many are in progress as may be. It goes with the next
    /// [`Self::turn`], so that those begun between two turns share a doorbell.
    ///
    /// # Errors
    /// `BadParameters` when they are too short or too long, `PeerLost` once the session is over.
    pub fn invoke(
        &mut self,
        program: &Program,
        parameters: &[u8],
    ) -> Result<Option<Ticket>, Error> {
        self.invoke_until(program, parameters, None)
    }

    /// The same for a call that is stopped when it takes longer than this, from its arrival.
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

    /// Begins a call that this end runs itself, by one-sided requests to the executor's memory; `None`
    /// while as many are in progress as may be.
    ///
    /// # Errors
    /// As [`Self::invoke`]; `NoProgram` for one of another caller, `ExecutorLacks` for one of global
    /// addresses where this caller is no node; `NotHere` for one that keeps state, which is where its
    /// executor is, and for one of host memory whose executor lends none itself.
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

    /// Whether calls of a program do the same when this end runs them: nothing where they do, and why not
    /// otherwise. The first time makes this end ready to run it; nothing is called.
    ///
    /// # Errors
    /// `NotHere`, `NoProgram` and `ExecutorLacks` as [`Self::invoke_here`]; `NotHere` also for one that
    /// notifies, whom [`Self::invoke_here`] runs: those who listen do so at the executor, and hear nothing
    /// of calls that run here.
    pub fn can_run_here(&mut self, program: &Program) -> Result<(), Error> {
        is_stateless(program)?;
        self.prepare_here(program)?;
        let here = self.here.as_ref();
        match here.and_then(|here| here.executor.loaded(program.number)) {
            Some(loaded) if loaded.notifies() => {
                let text =
                    "it notifies those who listen at its executor, who hear nothing from here";
                Err(Error::with(ErrorCode::NotHere, text))
            }
            _ => Ok(()),
        }
    }

    /// Begins a call where it is told to.
    ///
    /// # Errors
    /// As [`Self::invoke`] and [`Self::invoke_here`].
    pub fn invoke_at(
        &mut self,
        runs: Runs,
        program: &Program,
        parameters: &[u8],
    ) -> Result<Option<Ticket>, Error> {
        match runs {
            Runs::There => self.invoke(program, parameters),
            Runs::Here => self.invoke_here(program, parameters),
        }
    }

    fn prepare_here(&mut self, program: &Program) -> Result<(), Error> {
        let Link::Up(link) = self.link else {
            return Err(self.over());
        };
        if self.here.is_none() {
            let scratch = Registered::own(&self.fabric, HERE_MAX as u64 * BLOCK_BYTES)?;
            let mut executor = Executor::new(Some(scratch.region.arena.clone()), 1);
            executor.memory.add(0);
            for (number, token) in &self.regions {
                let region = self.mail.port.import(link, token).map_err(|error| control(&error))?;
                let place = Place::There(link, region);
                let lent = Lent { place, bytes: token.bytes, access: token.access };
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
        // Each of its accesses would be refused, and it might take that for an answer.
        if let (true, Some(helper)) = (self.regions.is_empty(), loaded.memory_helper()) {
            let text = format!(
                "`{}` calls {helper}, and this executor lends no memory itself: where it was started with \
                 --beside, call the executor that stands there",
                loaded.name()
            );
            return Err(Error::with(ErrorCode::NotHere, text));
        }
        here.executor.keep(object, number, 0, &programs);
        Ok(())
    }

    /// Begins to wait for the next notification of a topic; `None` while no slot is free. The first time
    /// subscribes. The answer's output is what was sent, its result how many were lost before it.
    ///
    /// *Limits.* 16 notifications are kept while it does not listen. It subscribes to 64 topics: with
    /// another one, that which it has not listened to for the longest ends, of those on which nothing waits,
    /// with what was kept for it. Where something waits on all 64, the answer is `OverQuota` and nothing
    /// changes. *Cost.* A round trip and the wait; a notification costs its executor what its subscribers
    /// cost.
    ///
    /// # Errors
    /// `PeerLost`.
    pub fn listen(&mut self, topic: u64) -> Result<Option<Ticket>, Error> {
        self.ask(Verb::Listen, &topic.to_le_bytes(), &[])
    }

    /// Asks to stop a call. The answer to this is 1 when it was in progress, whose own end then is
    /// `CallCancelled`; 0 when it had ended. `None` while no slot is free, or where the call runs here
    /// and was stopped at once.
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

    /// Why nothing can be asked any more, or at present.
    pub(super) fn over(&self) -> Error {
        match &self.link {
            Link::Over(error) => error.clone(),
            _ => Error::with(ErrorCode::PeerLost, "the executor is out of reach at present"),
        }
    }

    fn ask(&mut self, verb: Verb, head: &[u8], rest: &[u8]) -> Result<Option<Ticket>, Error> {
        if let Link::Over(error) = &self.link {
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
        // Without a link it goes with all that is sent again over the next one.
        match self.link {
            Link::Up(link) => self.mail.send(link, header, place, [head, rest], None),
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

    /// How a call ended, if it has; asked for once each. Looks at nothing but what [`Self::turn`] found.
    pub fn poll(&mut self, ticket: Ticket) -> Option<Result<Answer, Error>> {
        let at = self.ended.iter().position(|(of, _)| *of == ticket)?;
        self.ended.remove(at).map(|(_, end)| end)
    }

    /// The call that ended first of those not asked for yet.
    pub fn poll_any(&mut self) -> Option<(Ticket, Result<Answer, Error>)> {
        let own = |ticket| self.upload.as_ref().is_some_and(|upload| upload.awaits(ticket));
        let at = self.ended.iter().position(|(ticket, _)| !own(*ticket))?;
        self.ended.remove(at)
    }

    /// Waits for a call to end.
    ///
    /// *Blocks.* Spins first, then sleeps; less where ends have taken long, which costs such waits some
    /// microseconds and leaves the processor to others.
    ///
    /// # Errors
    /// How it ended, `DeadlinePassed` where [`Self::invoke_until`] gave it too little time; `TimedOut` when it
    /// has not, and may yet.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<Answer, Error> {
        let mut patience = Patience::of_answer(timeout, self.spins);
        loop {
            // What is over is told with the calls themselves.
            let _ = self.turn();
            if let Some(end) = self.poll(ticket) {
                self.spins = self.spins.after(&patience);
                return end;
            }
            self.wait_a_little(&mut patience)?;
        }
    }

    /// Waits for any call to end: the one that ended first of those not asked for yet.
    ///
    /// *Blocks*, as [`Self::wait`].
    ///
    /// # Errors
    /// `TimedOut` when none has; why the session is over, once every end was asked for.
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

    /// Gives up what a call comes to: its end is dropped, now or when it comes. A call that runs at its
    /// executor goes on there; one that runs here is stopped.
    pub fn forget(&mut self, ticket: Ticket) {
        self.ended.retain(|(of, _)| *of != ticket);
        for waiting in self.waiting.iter_mut().flatten() {
            if waiting.ticket == Some(ticket) {
                waiting.ticket = None;
            }
        }
        self.stop_here(ticket);
    }

    /// Stops a call that runs here; whether there was one.
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

    /// Invokes a program and waits for its answer: one round trip.
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
        self.call_at(Runs::There, program, parameters, timeout)
    }

    /// The same where it is told to run.
    ///
    /// # Errors
    /// As [`Self::call`].
    pub fn call_at(
        &mut self,
        runs: Runs,
        program: &Program,
        parameters: &[u8],
        timeout: Duration,
    ) -> Result<Answer, Error> {
        let mut patience = Patience::of_turns(timeout);
        loop {
            if let Some(ticket) = self.invoke_at(runs, program, parameters)? {
                let end = self.wait(ticket, timeout);
                if end.is_err() {
                    // Where it has not ended, nobody asks any more.
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
            Link::Down { again_ns } => {
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

    /// Whether a call that runs here could go on at the next turn: whoever drives a caller by events of its own
    /// turns it again at once.
    pub fn is_ready(&self) -> bool {
        self.here.as_ref().is_some_and(|here| !here.ready.is_empty())
    }

    /// Takes what has come and sends what was begun. Never blocks; calls that run here have a slice each, and
    /// [`Self::is_ready`] says whether one of them wants the next.
    ///
    /// # Errors
    /// Why the session is over, from then on.
    pub fn turn(&mut self) -> Result<(), Error> {
        self.take_events();
        let mut events = std::mem::take(&mut self.events);
        self.mail.link_events(&mut events);
        events.drain(..).for_each(|event| self.link_event(event));
        self.events = events;
        if let Link::Down { again_ns } = self.link {
            self.try_again(again_ns);
        }
        if self.here.as_ref().is_some_and(|here| !here.is_idle()) {
            self.run_here();
        }
        if let Some(link) = self.mail.flush() {
            self.lost(link, "the fabric cannot take its message");
        }
        match &self.link {
            Link::Over(error) => Err(error.clone()),
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
            Event::Message(link, header) if matches!(self.link, Link::Up(up) if up == link) => {
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
            return Err("more output than there is room for");
        }
        let answered = self.window.reply(header).map_err(|violation| violation.0)?;
        let mut output = vec![0; reply.output_bytes as usize];
        let offset = u64::from(answered.slot) * u64::from(self.output_bytes);
        let arena = &self.room.region.arena;
        arena.read(offset, &mut output).map_err(|_| "output outside of its room")?;
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
                    let text = "what listens there is no executor of calls";
                    self.end_session(&Error::with(ErrorCode::ProtocolViolation, text));
                }
            },
            LinkEvent::Refused { reason, .. } => {
                let error = self.refused(&reason);
                self.end_session(&error);
            }
            // It may be back later.
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
            let text = "the executor has begun anew, or has given this caller up; whether calls in \
                        progress ran is not known";
            self.end_session(&Error::with(ErrorCode::PeerLost, text));
            return;
        }
        self.link = Link::Up(link);
        (self.away_since_ns, self.again) = (None, Again::default());
        self.message_bytes =
            welcome.message_bytes.min(self.options.parameter_bytes_max + Invocation::BYTES_MAX);
        self.output_bytes = self.options.output_bytes_max;
        self.regions = welcome.regions;
        if !std::mem::replace(&mut self.welcomed, true) {
            self.window = Window::new(usize::from(welcome.slots).min(self.waiting.len()));
            return;
        }
        let mut again = self.window.again().collect::<Vec<_>>();
        // Parts of an object go in their order.
        again.sort_by_key(|header| self.waiting[usize::from(header.slot)].map(|of| of.ticket));
        for header in again {
            let place = usize::from(header.slot);
            if let Some(waiting) = self.waiting[place] {
                self.mail.send_again(link, header, place, waiting.bytes);
            }
        }
    }

    /// What it means to be refused.
    fn refused(&self, reason: &[u8]) -> Error {
        match Refusal::decode(reason) {
            // Its place was given to somebody else while it was away.
            Some(Refusal { text, .. }) if self.welcomed => {
                let text = format!(
                    "the executor has given this caller up, and {text}; whether calls in progress ran is \
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
        let current = matches!(self.link, Link::Up(up) | Link::Coming(up) if up == link);
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

    /// Runs at this end have lost the memory that they work on.
    fn leave_here(&mut self) {
        let Some(mut here) = self.here.take() else { return };
        (0..here.tickets.len()).for_each(|at| here.executor.stop(at));
        self.global = here.executor.global.take();
        for ticket in here.tickets.into_iter().flatten() {
            let text = "the memory that it works on is out of reach";
            self.ended.push_back((ticket, Err(Error::with(ErrorCode::PeerLost, text))));
        }
    }

    fn try_later(&mut self) {
        let now_ns = self.fabric.time_ns();
        let wait_ns = self.again.wait_ns();
        self.away_since_ns.get_or_insert(now_ns);
        self.link = Link::Down { again_ns: now_ns.saturating_add(wait_ns) };
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

    /// Everything in progress ends, and nothing can be begun.
    fn end_session(&mut self, error: &Error) {
        if let Link::Up(link) | Link::Coming(link) = self.link {
            self.mail.forget(link);
            self.mail.port.close(link);
        }
        self.link = Link::Over(error.clone());
        self.leave_here();
        let waiting = self.waiting.iter_mut().filter_map(Option::take);
        for ticket in waiting.filter_map(|waiting| waiting.ticket) {
            self.ended.push_back((ticket, Err(error.clone())));
        }
        self.window.over();
    }

    /// Runs calls here as far as they come at once: where a request completes as it is posted, as over
    /// shared memory, the next one follows without a turn of its own.
    fn run_here(&mut self) {
        let now_ns = self.fabric.time_ns();
        for _ in 0..ROUNDS_HERE {
            let posted = self.round_here(now_ns);
            if !posted || !self.take_events() {
                break;
            }
        }
    }

    /// Takes what has come; whether anything has.
    fn take_events(&mut self) -> bool {
        let mut any = false;
        while let Some(event) = self.mail.next() {
            self.event(event);
            any = true;
        }
        any
    }

    /// A slice of each call that is ready here; whether requests of theirs were posted.
    fn round_here(&mut self, now_ns: u64) -> bool {
        let Some(here) = &mut self.here else { return false };
        if here.executor.watches() {
            here.executor.watch(now_ns);
        }
        while let Some(at) = here.executor.take_woken() {
            here.ready.push_back(at);
        }
        // Those that are ready now, each for one slice.
        for _ in 0..here.ready.len() {
            let Some(at) = here.ready.pop_front() else { break };
            match here.executor.slice(at, now_ns) {
                Slice::Ready => here.ready.push_back(at),
                // Here objects are loaded at once.
                Slice::Waits | Slice::Loaded(..) => {}
                Slice::Over(end) => {
                    let output = std::mem::take(&mut here.executor.output);
                    if let Some(ticket) = here.tickets[at].take() {
                        here.running -= 1;
                        self.ended.push_back((ticket, end_here(end, output)));
                    }
                }
            }
        }
        here.executor.notices.clear();
        self.mail.post_steps(&mut here.executor, here.scratch.region.id)
    }
}

impl Drop for Caller {
    fn drop(&mut self) {
        if let Link::Up(link) = self.link {
            // So that the executor need not wait whether it comes back. Where this is lost, it does.
            self.mail.leave(link);
        }
        if let Link::Up(link) | Link::Coming(link) = self.link {
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
