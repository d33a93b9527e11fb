//! Client of remote memory calls: registers programs at an executor, invokes them and receives answers.
//!
//! A caller consists of a [connection](connection) with its session, a [window](window) of outstanding calls, and a
//! [runner](local) of local calls.

mod connection;
mod local;
mod options;
mod outcome;
mod placed_caller;
mod upload;
mod window;

pub use options::{CallOptions, CallerOptions, Site};
pub use placed_caller::{Placed, PlacedAnswer, PlacedProgram, PlacedTicket};

use super::transport::message_port::{MessagePort, PortEvent};
use super::transport::program_list::Program;
use crate::event_wait::EventWait;
use crate::progress::{EnginePort, Progress};
use crate::{Error, ErrorCode, Node};
use connection::{CallerConnection, SessionChange, SessionLink};
use farside_base::waiting::SPIN_ENGINE_POLLS;
use farside_base::{Access, Completion};
use farside_fabric::Fabric;
use local::LocalRunner;
use std::sync::Arc;
use std::time::{Duration, Instant};
use upload::Upload;
use window::OutstandingCalls;

/// Rounds of local runs per poll, if their requests complete at once: some microseconds.
const LOCAL_ROUNDS: usize = 64;

/// Handle of a call in progress.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(u64);

/// The answer to a call.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CallAnswer {
    /// What the program returned.
    pub result: u64,
    /// What it emitted.
    pub output: Vec<u8>,
}

/// Registers programs at an executor and invokes them.
///
/// *Guarantees.* A call runs at most once; it ends once, with an answer or an error. If an error leaves open
/// whether it ran (`PeerLost`), the text says so. Calls may end in any order. [`Caller::invoke`], [`Caller::progress`]
/// and [`Caller::poll`] never block.
pub struct Caller {
    connection: CallerConnection,
    calls: OutstandingCalls,
    local: LocalRunner,
    /// The object being registered.
    upload: Option<Upload>,
}

impl std::fmt::Debug for Caller {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Caller").field("to", &self.connection.name).finish_non_exhaustive()
    }
}

impl Caller {
    /// Connects to the executor at `name` and waits until it accepts.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// As [`Self::begin`]; `TimedOut`, `NoListener`; `OverQuota` if the tenant or the executor is at its limit
    /// of callers; `ChannelMismatch` if it is refused otherwise, with the reason.
    pub fn connect(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &CallerOptions,
    ) -> Result<Self, Error> {
        let mut caller = Self::begin(fabric, name, options)?;
        let mut wait = EventWait::new(options.timeout, SPIN_ENGINE_POLLS);
        loop {
            caller.progress()?;
            if caller.is_connected() {
                return Ok(caller);
            }
            caller.wait_for_event(&mut wait)?;
        }
    }

    /// Begins to connect; [`Self::progress`] continues.
    ///
    /// # Errors
    /// `NoListener` if that is known immediately, `FabricLacks`, `BadConfiguration`, `System`.
    pub fn begin(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &CallerOptions,
    ) -> Result<Self, Error> {
        let messages = MessagePort::open(fabric, None, &CallerConnection::sizes(options)?)?;
        Ok(Self {
            connection: CallerConnection::open(messages, name, options)?,
            calls: OutstandingCalls::new(usize::from(options.slots)),
            local: LocalRunner::new(),
            upload: None,
        })
    }

    /// Lets local runs access the global memory through a node, as
    /// [`CallServer::share`](crate::call::CallServer::share) does for an executor. The executor at which the
    /// programs are registered must be part of a node too.
    ///
    /// # Errors
    /// As [`CallServer::share`](crate::call::CallServer::share).
    pub fn share(&mut self, node: &Node) -> Result<(), Error> {
        self.local.share(node, &self.connection)
    }

    /// Whether the executor has accepted it and is connected.
    pub const fn is_connected(&self) -> bool {
        self.connection.link().is_some()
    }

    /// Returns how many remote calls could be begun now.
    pub fn room(&self) -> usize {
        if self.connection.is_open { self.calls.room() } else { 0 }
    }

    /// Returns how the executor is reached, and why so.
    pub fn path(&self) -> Option<String> {
        self.connection.link().map(|link| self.connection.messages.port.path(link))
    }

    /// Returns the regions that the executor lends: number, bytes and access rights.
    pub fn regions(&self) -> impl Iterator<Item = (u8, u64, Access)> {
        let regions = self.connection.regions.iter();
        regions.map(|(number, token)| (*number, token.bytes, token.access))
    }

    /// Unregisters a program, with all programs of its object, which share their state. Erases their state for this
    /// caller, and all of it with the last caller; their calls in progress end.
    ///
    /// *Blocks*, for at most [`CallerOptions::timeout`].
    ///
    /// # Errors
    /// `NoProgram`; `PeerLost`; `TimedOut`, in which case the executor unregisters it when it receives the request.
    pub fn unregister(&mut self, program: &Program) -> Result<(), Error> {
        let until = Instant::now() + self.connection.options.timeout;
        let mut wait = EventWait::new(self.connection.options.timeout, SPIN_ENGINE_POLLS);
        let ticket = loop {
            self.progress()?;
            if let Some(ticket) = self.calls.unregister(&mut self.connection, program.number)? {
                break ticket;
            }
            self.wait_for_event(&mut wait)?;
        };
        let left = until.saturating_duration_since(Instant::now());
        if let Err(error) = self.wait(ticket, left) {
            self.forget(ticket);
            return Err(error);
        }
        self.local.remove(program.number);
        Ok(())
    }

    /// Runs a program at the site of `options` and waits for its answer. At the executor that is one round trip.
    ///
    /// *Blocks*, as [`Self::wait`], for at most [`CallOptions::timeout`].
    ///
    /// # Errors
    /// As [`Self::invoke`] and [`Self::wait`]. After `TimedOut` the answer is dropped; the call itself may run on.
    pub fn call(
        &mut self,
        program: &Program,
        parameters: &[u8],
        options: CallOptions,
    ) -> Result<CallAnswer, Error> {
        let timeout = options.timeout.unwrap_or(self.connection.options.timeout);
        let mut wait = EventWait::new(timeout, SPIN_ENGINE_POLLS);
        loop {
            if let Some(ticket) = self.invoke(program, parameters, options)? {
                let end = self.wait(ticket, timeout);
                if end.is_err() {
                    // If it has not ended, its outcome is dropped.
                    self.forget(ticket);
                }
                return end;
            }
            let room = self.calls.room();
            self.progress()?;
            if self.calls.room() == room {
                self.wait_for_event(&mut wait)?;
            }
        }
    }

    /// Begins a call at the site of `options`; `None` if all slots of that site are in use. A remote call is sent by
    /// the next [`Self::progress`], so that calls begun between two polls share a doorbell.
    ///
    /// # Errors
    /// `BadParameters` if they are too short or too long, `PeerLost` once the session is closed. At
    /// [`Site::Local`]: `NoProgram` for a program of another caller; `ExecutorLacks` for a program with global
    /// addresses if this caller is not part of a node; `NotHere` for a program with state, which is at its
    /// executor, and for one that uses host memory if the executor lends none itself.
    pub fn invoke(
        &mut self,
        program: &Program,
        parameters: &[u8],
        options: CallOptions,
    ) -> Result<Option<Ticket>, Error> {
        let Self { connection, calls, local, .. } = self;
        if options.site == Site::Local {
            return local.begin(connection, calls, (program, parameters), &options);
        }
        if connection.is_open {
            check_parameters(program, parameters, connection.parameter_bytes_max())?;
        }
        calls.invoke(connection, (program.number, parameters), options.deadline_ns())
    }

    /// Checks whether local runs of a program are equivalent to remote ones. The first check loads the program
    /// locally; nothing is invoked.
    ///
    /// # Errors
    /// `NotHere`, `NoProgram` and `ExecutorLacks` as [`Self::invoke`]. `NotHere` also for a program that sends
    /// notifications: its subscribers are at the executor and do not receive notifications of local runs, which
    /// [`Self::invoke`] permits.
    pub fn check_local(&mut self, program: &Program) -> Result<(), Error> {
        self.local.check(&mut self.connection, program)
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
        self.calls.listen(&mut self.connection, topic)
    }

    /// Requests to stop a call. The answer to this request is 1 if the call was in progress, which then ends with
    /// `CallCancelled`; 0 if it had ended. `None` if no slot is free, or if a local run was stopped at once.
    ///
    /// # Errors
    /// `PeerLost`.
    pub fn cancel(&mut self, ticket: Ticket) -> Result<Option<Ticket>, Error> {
        if self.local.stop(ticket) {
            self.calls.end(ticket, Err(ErrorCode::CallCancelled.into()));
            return Ok(None);
        }
        self.calls.cancel(&mut self.connection, ticket)
    }

    /// Returns why no request can be sent, permanently or at present.
    fn unreachable(&self) -> Error {
        self.connection.unreachable()
    }

    /// Returns the outcome of a call that has ended, once. Does not poll the port: [`Self::progress`] does.
    pub fn poll(&mut self, ticket: Ticket) -> Option<Result<CallAnswer, Error>> {
        self.calls.poll(ticket)
    }

    /// Returns the earliest outcome that was not polled yet.
    pub fn poll_any(&mut self) -> Option<(Ticket, Result<CallAnswer, Error>)> {
        let Self { calls, upload, .. } = self;
        calls.poll_any(|ticket| !upload.as_ref().is_some_and(|upload| upload.awaits(ticket)))
    }

    /// Waits for a call to end.
    ///
    /// *Blocks.* Spins first and yields now and then, then sleeps.
    ///
    /// # Errors
    /// How it ended, `DeadlinePassed` if [`CallOptions::deadline`] passed; `TimedOut` if it has not ended; it may
    /// end later.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<CallAnswer, Error> {
        let mut wait = EventWait::new(timeout, SPIN_ENGINE_POLLS);
        loop {
            // An error of the session is also the outcome of its calls.
            let _ = self.progress();
            if let Some(end) = self.poll(ticket) {
                return end;
            }
            self.wait_for_event(&mut wait)?;
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
    ) -> Result<(Ticket, Result<CallAnswer, Error>), Error> {
        let mut wait = EventWait::new(timeout, SPIN_ENGINE_POLLS);
        loop {
            let open = self.progress();
            if let Some(ended) = self.poll_any() {
                return Ok(ended);
            }
            open?;
            self.wait_for_event(&mut wait)?;
        }
    }

    /// Drops the outcome of a call, present or future. A remote call continues at its executor; a local run is
    /// stopped.
    pub fn forget(&mut self, ticket: Ticket) {
        self.calls.forget(ticket);
        self.local.stop(ticket);
    }

    fn wait_for_event(&mut self, wait: &mut EventWait) -> Result<(), Error> {
        if self.is_ready() {
            return Ok(());
        }
        self.local.wait(&mut self.connection, wait)
    }

    /// Whether a local run could continue at the next poll. A program that polls a caller on its events polls it
    /// again at once.
    pub fn is_ready(&self) -> bool {
        self.local.is_ready()
    }

    /// Handles events and sends queued requests. Never blocks. Each ready local run has one slice;
    /// [`Self::is_ready`] returns whether one needs another.
    ///
    /// # Errors
    /// Why the session is closed, on this and all later calls.
    pub fn progress(&mut self) -> Result<(), Error> {
        self.poll_once();
        self.connection.check()
    }

    fn event(&mut self, event: PortEvent) {
        match event {
            PortEvent::AccessCompleted(block, status) => self.local.completed(block, status),
            PortEvent::LinkFailed(link, status) => {
                let text = self.connection.messages.port.trouble(link);
                let text = text.unwrap_or_else(|| format!("{status:?}"));
                let change = self.connection.lost(link, &text);
                self.apply(change);
            }
            PortEvent::Message(link, header) if self.connection.link() == Some(link) => {
                if let Err(text) = self.calls.reply(&self.connection, header) {
                    let error = Error::with(ErrorCode::ProtocolViolation, text);
                    let change = self.connection.close(error);
                    self.apply(Some(change));
                }
            }
            PortEvent::Message(..) => {}
        }
    }

    /// Applies a change of the session to its calls.
    fn apply(&mut self, change: Option<SessionChange>) {
        let Self { connection, calls, local, .. } = self;
        match change {
            None => {}
            Some(SessionChange::Opened(slots)) => calls.open(slots),
            Some(SessionChange::Resumed) => {
                if let Some(link) = connection.link() {
                    calls.resend(connection, link);
                }
            }
            Some(SessionChange::Interrupted) => local.disconnected(calls),
            Some(SessionChange::Closed(error)) => {
                local.disconnected(calls);
                calls.close(&error);
            }
        }
    }

    /// Runs local calls as long as they progress. If a request completes when posted, as over shared memory, the
    /// next one follows in the same poll.
    fn run_local(&mut self) {
        let now_ns = self.connection.messages.time_ns();
        for _ in 0..LOCAL_ROUNDS {
            let Self { connection, calls, local, .. } = self;
            let has_posted = local.run_slices(now_ns, connection, calls);
            if !has_posted || self.land(usize::MAX) == 0 {
                break;
            }
        }
    }
}

impl Progress for Caller {
    const POLLS_TO_EMPTY: bool = true;

    #[inline]
    fn port(&mut self) -> &mut EnginePort {
        &mut self.connection.messages.port
    }

    fn completed(&mut self, completion: &Completion) {
        if let Some(event) = self.connection.messages.decode(completion) {
            self.event(event);
        }
    }

    fn handle_links(&mut self, _landed: bool) -> bool {
        let events = self.connection.messages.port.connection_events();
        let any = !events.is_empty();
        for event in events {
            let change = self.connection.link_event(event);
            self.apply(change);
        }
        if matches!(self.connection.link, SessionLink::Disconnected { .. }) {
            let change = self.connection.redial();
            self.apply(change);
        }
        any
    }

    fn step(&mut self, _landed: usize, _linked: bool) -> bool {
        let is_idle = self.local.is_idle();
        if !is_idle {
            self.run_local();
        }
        !is_idle
    }

    fn post(&mut self) -> bool {
        if let Some(link) = self.connection.messages.flush() {
            let change = self.connection.lost(link, "the fabric cannot take its message");
            self.apply(change);
        }
        false
    }
}

fn check_parameters(program: &Program, parameters: &[u8], bytes_max: usize) -> Result<(), Error> {
    let (needs, has) = (program.parameter_bytes as usize, parameters.len());
    if (needs..=bytes_max).contains(&has) {
        return Ok(());
    }
    let name = &program.name;
    let text = format!("`{name}` takes {needs} to {bytes_max} B of parameters, not {has}");
    Err(Error::with(ErrorCode::BadParameters, text))
}
