//! Cooperative executor: calls in progress on one thread, each run in time slices and suspended while it waits.
//!
//! A slice ends when the call ends, waits, or has used its instructions or accesses. Accesses to local memory are
//! loads and stores; remote ones are work requests, completed asynchronously; misses of the global memory go
//! through a session. Blocked calls that no event announces are polled ([`blocked`]).

mod blocked;
mod global;
mod helpers;
pub(crate) mod loading;
mod native;
mod objects;
pub(crate) mod remote;
pub(crate) mod state;

use super::memory::AccessDenied;
use super::memory::chunked::{self, ChunkedAccess, WHOLE_BYTES};
use super::memory::global::{GlobalMemory, MissSession};
use super::memory::regions::TenantRegions;
use super::memory::remote::RemoteAccess;
use super::scheduling::time_slice::{QUIET, SliceLength};
use super::scheduling::verification_queue::VerificationQueue;
use blocked::{Awaited, BlockedCalls};
use farside_protocol::call::{Stopped, object_of};
use farside_rmc::helpers::status;
use farside_rmc::run::{
    AnswerError, Buffers, Lent, Machine, Near, Outcome, Reply, Request, StartError, Stop,
};
pub(crate) use helpers::Notification;
use helpers::{CallHelpers, Deferral, returns_status};
use loading::{LoadError, LoadedProgram};
use objects::{PendingLoad, RegisteredObject, states};
use remote::ScratchPool;
use state::{Erased, Holder};
use std::collections::BTreeMap;
use std::ops::ControlFlow::{self, Break, Continue};
use std::sync::Arc;

/// Time after which a held lock is reported as busy, so that deadlocked calls end.
const LOCK_WAIT_NS: u64 = 100_000_000;
/// Bytes of access buffers kept for later accesses.
const KEPT_BYTES: usize = 4096;
/// Machines kept for later calls.
const SPARE_MAX: usize = 64;

/// What a call in progress waits for.
#[derive(Debug)]
enum WaitState {
    /// Runnable.
    Runnable,
    /// A lock, until this time.
    Lock(u64),
    /// A change of a local word, until this time.
    Word(u64),
    /// Runnable, within an access with a long buffer.
    Chunked(Box<ChunkedAccess>),
    /// Scratch memory.
    ScratchBlock,
    /// The global memory, or a session of it.
    Global,
    /// Visibility of its writes; then it ends.
    Fence(CallEnd),
    /// Work requests in flight.
    Remote { access: RemoteAccess, block: usize, until_ns: Option<u64> },
}

impl WaitState {
    /// Returns what a call of this program waits for, if that must be polled.
    const fn awaited(&self, program: u64) -> Option<Awaited> {
        match self {
            Self::Word(_) => Some(Awaited::Word),
            Self::Lock(_) => Some(Awaited::Lock(program)),
            Self::ScratchBlock => Some(Awaited::Block),
            Self::Runnable | Self::Chunked(_) => None,
            Self::Remote { .. } | Self::Global | Self::Fence(_) => None,
        }
    }
}

/// A call in progress.
#[derive(Debug)]
pub(crate) struct ActiveCall {
    program: u64,
    session: u32,
    /// The tenant, which determines the memory it can access.
    tenant: usize,
    loaded: Arc<LoadedProgram>,
    machine: Machine,
    wait: WaitState,
    /// Instructions of its next slice: initialized from its program's last slices, then adapted.
    slice_length: SliceLength,
    /// Whether it has used up a slice before.
    long: bool,
    /// Its session of the global memory, while it has operations pending in the global memory.
    miss: Option<Box<MissSession>>,
    /// Once it has accessed the global memory: the node's write losses before.
    losses: Option<u64>,
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum CallEnd {
    Returned(u64),
    /// The reason, the slot, and a text for people.
    Stopped(Stopped, Option<u32>, String),
}

/// Outcome of a slice.
#[derive(Debug)]
pub(crate) enum SliceOutcome {
    Over(CallEnd),
    /// A registration has ended, with its programs or an error.
    Loaded(Arc<[u8]>, Result<Vec<Arc<LoadedProgram>>, LoadError>),
    Ready,
    Waits,
}

/// What calls access, besides their own memory.
#[derive(Debug, Default)]
pub(crate) struct CallResources {
    pub(crate) memory: TenantRegions,
    /// The global memory, if calls may access it.
    pub(crate) global: Option<GlobalMemory>,
    /// Notifications for subscribers.
    pub(crate) notifications: Vec<Notification>,
    /// Objects by number, with their state.
    objects: BTreeMap<u64, RegisteredObject>,
}

/// What a call uses during a slice.
struct SliceContext<'a> {
    machine: &'a mut Machine,
    loaded: &'a LoadedProgram,
    lent: Lent<'a>,
    helpers: CallHelpers<'a>,
}

impl CallResources {
    /// Returns what the call at a slot uses during a slice; `None` once its program was unregistered.
    #[inline]
    fn context<'a>(
        &'a mut self,
        at: usize,
        running: &'a mut ActiveCall,
        (now_ns, left): (u64, usize),
    ) -> Option<SliceContext<'a>> {
        let (own, shared) = states(&mut self.objects, running)?;
        let helpers = CallHelpers {
            memory: self.memory.of(running.tenant),
            own: &mut own.declared,
            shared: &mut shared.declared,
            now_ns,
            left,
            holder: holder(at),
            notifications: &mut self.notifications,
            global: self.global.as_mut(),
            miss: running.miss.as_deref_mut(),
            losses: &mut running.losses,
            deferral: None,
        };
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        Some(SliceContext { machine: &mut running.machine, loaded: &running.loaded, lent, helpers })
    }
}

/// The executor; see the module.
#[derive(Debug)]
pub(crate) struct Executor {
    pub(crate) resources: CallResources,
    calls: Vec<Option<Box<ActiveCall>>>,
    /// Whether there were no calls for a while, so that registrations may have longer slices.
    pub(crate) is_quiet: bool,
    /// Objects being loaded, by the slots of the requests that register them.
    loads: BTreeMap<usize, PendingLoad>,
    queue: VerificationQueue,
    #[expect(clippy::vec_box, reason = "moved to and from `calls` without copying the machine")]
    spare: Vec<Box<ActiveCall>>,
    /// State of erased objects, to be freed.
    erased: Erased,
    /// Numbers of objects, by content.
    numbers: BTreeMap<Arc<[u8]>, u64>,
    /// Scratch memory for remote accesses.
    pub(crate) scratch: ScratchPool,
    /// Blocked calls that are polled, and calls whose wait is over.
    blocked: BlockedCalls,
    /// Output of the call that has just ended.
    pub(crate) output: Vec<u8>,
    /// Empty between accesses; reused to avoid allocation.
    buffers: AccessBuffers,
    /// Buffer for a chunk of a long access; content arbitrary between chunks. Bounded by what a slice can move.
    chunk: Vec<u8>,
}

/// Input and output bytes of an access.
#[derive(Debug, Default)]
struct AccessBuffers {
    inputs: [Vec<u8>; 2],
    output: Vec<u8>,
}

impl AccessBuffers {
    /// Empties them; capacity beyond [`KEPT_BYTES`] is freed.
    fn clear(&mut self) {
        for bytes in self.inputs.iter_mut().chain([&mut self.output]) {
            bytes.clear();
            bytes.shrink_to(KEPT_BYTES);
        }
    }
}

impl Executor {
    /// Returns an executor without regions, with this memory for remote accesses. Verifies at most this many objects at
    /// once.
    pub(crate) fn new(scratch: ScratchPool, verifications: usize) -> Self {
        Self {
            resources: CallResources::default(),
            calls: Vec::new(),
            is_quiet: false,
            loads: BTreeMap::new(),
            queue: VerificationQueue::new(verifications),
            spare: Vec::new(),
            erased: Erased::default(),
            numbers: BTreeMap::new(),
            scratch,
            blocked: BlockedCalls::default(),
            output: Vec::new(),
            buffers: AccessBuffers::default(),
            chunk: Vec::new(),
        }
    }

    /// Starts a call at an unused slot of the caller's choice.
    pub(crate) fn start(
        &mut self,
        at: usize,
        (session, tenant): (u32, usize),
        program: u64,
        parameters: &[u8],
    ) -> Result<(), StartError> {
        let Some(known) = self.known(program) else {
            return Ok(()); // the next slice returns the error
        };
        let (loaded, slice_length) = (Arc::clone(&known.loaded), known.slice_length);
        let mut running = match self.spare.pop() {
            Some(running) => running,
            None => Box::new(ActiveCall {
                program,
                session,
                tenant,
                loaded: Arc::clone(&loaded),
                machine: Machine::new(),
                wait: WaitState::Runnable,
                slice_length,
                long: false,
                miss: None,
                losses: None,
            }),
        };
        let started = loaded.start(&mut running.machine, parameters);
        (running.program, running.session, running.loaded) = (program, session, loaded);
        (running.tenant, running.wait) = (tenant, WaitState::Runnable);
        (running.slice_length, running.long, running.losses) = (slice_length, false, None);
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, || None);
        }
        match started {
            Ok(()) => self.calls[at] = Some(running),
            Err(_) => self.recycle(running),
        }
        started
    }

    fn recycle(&mut self, running: Box<ActiveCall>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(running);
        }
    }

    /// Stops a call or a registration and releases its resources.
    pub(crate) fn stop(&mut self, at: usize) {
        self.end_loading(at);
        if let Some(running) = self.calls.get_mut(at).and_then(Option::take) {
            self.retire(at, running);
        }
    }

    fn retire(&mut self, at: usize, mut running: Box<ActiveCall>) {
        if let WaitState::Remote { block, .. } =
            std::mem::replace(&mut running.wait, WaitState::Runnable)
        {
            self.free_block(block);
        }
        self.return_session(at, &mut running);
        if !running.loaded.verified().program().states.is_empty() {
            self.release(at, &running);
        }
        self.blocked.remove(at);
        self.recycle(running);
    }

    /// Releases the locks that a call holds.
    fn release(&mut self, at: usize, running: &ActiveCall) {
        let holder = holder(at);
        let object = object_of(running.program);
        let Some(known) = self.resources.objects.get_mut(&object) else { return };
        let shared = known.shared.declared.release(holder);
        let own = known.own.get_mut(&running.session);
        let own = own.is_some_and(|states| states.declared.release(holder));
        if own || shared {
            self.blocked.wake_those(Awaited::Lock(object), usize::MAX);
        }
    }

    /// Runs a call until it ends, waits, or has used up its slice.
    pub(crate) fn slice(&mut self, at: usize, now_ns: u64) -> SliceOutcome {
        let Some(mut running) = self.calls.get_mut(at).and_then(Option::take) else {
            return self.continue_loading(at);
        };
        let slice = self.run_slice(at, &mut running, now_ns);
        let slice = self.settled(at, &mut running, slice);
        if matches!(slice, SliceOutcome::Over(_)) {
            running.machine.output().clone_into(&mut self.output);
            self.retire(at, running);
        } else {
            running.long |= matches!(slice, SliceOutcome::Ready);
            let awaited = running.wait.awaited(object_of(running.program));
            if let Some(awaited) = awaited.filter(|_| matches!(slice, SliceOutcome::Waits)) {
                self.blocked.add(at, awaited);
            }
            self.calls[at] = Some(running);
        }
        slice
    }

    /// Whether a call has used up a slice before, or is a registration.
    pub(crate) fn is_long(&self, at: usize) -> bool {
        let running = self.calls.get(at).and_then(Option::as_ref);
        running.map_or_else(|| self.loads.contains_key(&at), |running| running.long)
    }

    /// Records the duration of a used-up slice; adapts the slices of its program.
    pub(crate) fn took(&mut self, at: usize, used_ns: u64) {
        if let Some(load) = self.loads.get_mut(&at) {
            return load.slice_length.took(if self.is_quiet { used_ns / QUIET } else { used_ns });
        }
        let Some(running) = self.calls.get_mut(at).and_then(Option::as_mut) else { return };
        running.slice_length.took(used_ns);
        let (program, slice_length) = (running.program, running.slice_length);
        let object = self.resources.objects.get_mut(&object_of(program));
        let place = (program - object_of(program)) as usize;
        if let Some(known) = object.and_then(|object| object.programs.get_mut(place)) {
            known.slice_length = slice_length;
        }
    }

    fn run_slice(&mut self, at: usize, running: &mut ActiveCall, now_ns: u64) -> SliceOutcome {
        if let WaitState::Fence(_) = running.wait
            && let WaitState::Fence(end) = std::mem::replace(&mut running.wait, WaitState::Runnable)
        {
            return SliceOutcome::Over(end);
        }
        let slice_length = running.slice_length;
        let mut left = slice_length.accesses();
        loop {
            if let Some(request) = running.machine.pending().copied() {
                match self.answer(at, running, &request, now_ns, &mut left) {
                    Continue(()) => {}
                    Break(slice) => return slice,
                }
            }
            let Some(context) = self.resources.context(at, running, (now_ns, left)) else {
                return unregistered();
            };
            let SliceContext { machine, loaded, lent, mut helpers } = context;
            let words = helpers.memory.words();
            let outcome = loaded.run(machine, slice_length.work(), lent, words, &mut helpers);
            left = helpers.left;
            let deferral = helpers.deferral;
            if helpers.own.take_unlocked() | helpers.shared.take_unlocked() {
                self.blocked.wake_those(Awaited::Lock(object_of(running.program)), usize::MAX);
            }
            match outcome {
                Outcome::Returned(result) => return SliceOutcome::Over(CallEnd::Returned(result)),
                Outcome::Stopped(stop) => return SliceOutcome::Over(ended(&running.loaded, &stop)),
                Outcome::Paused => {
                    running.wait = WaitState::Runnable;
                    return SliceOutcome::Ready;
                }
                Outcome::Suspended(_) if deferral == Some(Deferral::Slice) => {
                    running.wait = WaitState::Runnable;
                    return SliceOutcome::Ready;
                }
                Outcome::Suspended(_) => {}
            }
        }
    }

    /// Answers the request that a call waits for, if it can be completed now.
    fn answer(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
    ) -> AccessOutcome {
        if running.miss.as_ref().is_some_and(|miss| miss.accesses()) {
            let buffers = Buffers { inputs: [&[], &[]], output: &mut [] };
            return self.poll_global(at, running, request, buffers);
        }
        if matches!(running.wait, WaitState::Runnable)
            && chunked::moved(request) > WHOLE_BYTES
            && self.resources.memory.of(running.tenant).is_local(request.arguments[0])
        {
            running.wait = WaitState::Chunked(Box::new(ChunkedAccess::of(request)));
        }
        if matches!(running.wait, WaitState::Chunked(_)) {
            return self.poll_chunked(at, running, request, left);
        }
        let mut buffers = std::mem::take(&mut self.buffers);
        let answered = self.answer_by(at, running, request, now_ns, left, &mut buffers);
        buffers.clear();
        self.buffers = buffers;
        answered
    }

    fn answer_by(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
        buffers: &mut AccessBuffers,
    ) -> AccessOutcome {
        let until = match running.wait {
            WaitState::Remote { .. } => {
                return self.poll_remote(running, request, now_ns, left, &mut buffers.output);
            }
            WaitState::Lock(until_ns) | WaitState::Word(until_ns) => Some(until_ns),
            WaitState::Runnable
            | WaitState::Chunked(_)
            | WaitState::ScratchBlock
            | WaitState::Global
            | WaitState::Fence(_) => None,
        };
        let Some(context) = self.resources.context(at, running, (now_ns, (*left).max(1))) else {
            return Break(unregistered());
        };
        let SliceContext { machine, loaded, lent, mut helpers } = context;
        let program = loaded.verified().program();
        let AccessBuffers { inputs, output } = buffers;
        for (input, span) in inputs.iter_mut().zip(request.inputs) {
            input.extend_from_slice(machine.bytes(program, &lent, span).unwrap_or_default());
        }
        let inputs = [&inputs[0][..], &inputs[1][..]];
        output.resize(request.output.map_or(0, |span| span.length as usize), 0);
        let reply = helpers.perform(request, Buffers { inputs, output: &mut output[..] });
        *left = helpers.left;
        let late = until.is_some_and(|until_ns| until_ns <= now_ns);
        let result = match (reply, helpers.deferral) {
            (Reply::Now(result), _) => result,
            (Reply::Refused, _) => return refuse(running),
            (Reply::Later, Some(Deferral::Lock)) if late => status::BUSY as u64,
            (Reply::Later, Some(Deferral::Word)) if late => status::TIMED_OUT as u64,
            (Reply::Later, Some(Deferral::Lock)) => {
                running.wait =
                    WaitState::Lock(until.unwrap_or(now_ns.saturating_add(LOCK_WAIT_NS)));
                return Break(SliceOutcome::Waits);
            }
            (Reply::Later, Some(Deferral::Word)) => {
                let until_ns = now_ns.saturating_add(request.arguments[3]);
                running.wait = WaitState::Word(until.unwrap_or(until_ns));
                return Break(SliceOutcome::Waits);
            }
            (Reply::Later, Some(Deferral::Global)) => {
                return self.poll_global(at, running, request, Buffers { inputs, output });
            }
            (Reply::Later, Some(Deferral::Remote)) => {
                let buffers = Buffers { inputs, output };
                return self.begin_remote(at, running, request, buffers, now_ns);
            }
            (Reply::Later, _) => return Break(SliceOutcome::Ready),
        };
        let output = if (result as i64) < 0 { &[][..] } else { &output[..] };
        let taken = take(machine, loaded, lent, result, output);
        running.wait = WaitState::Runnable;
        taken
    }

    /// Continues an access with a long buffer.
    fn poll_chunked(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        request: &Request,
        left: &mut usize,
    ) -> AccessOutcome {
        let WaitState::Chunked(mut chunks) =
            std::mem::replace(&mut running.wait, WaitState::Runnable)
        else {
            return Continue(());
        };
        let Some(context) = self.resources.context(at, running, (0, 0)) else {
            return Break(unregistered());
        };
        let SliceContext { machine, loaded, lent, helpers } = context;
        let (program, memory) = (loaded.verified().program(), helpers.memory);
        let bytes = |span| machine.bytes(program, &lent, span).unwrap_or_default();
        match chunks.step(request, request.inputs.map(bytes), memory, left, &mut self.chunk) {
            Ok(end) => {
                let (from, length) = chunks.read();
                let bytes = &self.chunk[..length];
                let lent_again = Lent { own: &mut *lent.own, shared: &mut *lent.shared };
                let brought = machine.bring(program, lent_again, from, bytes);
                let taken = match end {
                    Some(result) => {
                        brought.and_then(|()| machine.answer_brought(program, lent, result))
                    }
                    None => brought,
                };
                match (taken, end) {
                    (Err(error), _) => faulty(machine, &error),
                    (Ok(()), Some(_)) => Continue(()),
                    (Ok(()), None) => {
                        running.wait = WaitState::Chunked(chunks);
                        Break(SliceOutcome::Ready)
                    }
                }
            }
            Err(AccessDenied::NotPermitted) => self.denied(running, request, status::NOT_PERMITTED),
            Err(AccessDenied::NotLocal | AccessDenied::Lost) => {
                self.denied(running, request, status::PEER_LOST)
            }
        }
    }

    /// Passes an answer to a call.
    fn reply(&mut self, running: &mut ActiveCall, result: u64, bytes: &[u8]) -> AccessOutcome {
        let Some((own, shared)) = states(&mut self.resources.objects, running) else {
            return Break(unregistered());
        };
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        take(&mut running.machine, &running.loaded, lent, result, bytes)
    }

    /// Reports a failed access to the program as a status, or ends the call if its helper returns none.
    fn denied(&mut self, running: &mut ActiveCall, request: &Request, why: i64) -> AccessOutcome {
        if returns_status(request.call) {
            return self.reply(running, why as u64, &[]);
        }
        if why == status::NOT_PERMITTED {
            return refuse(running);
        }
        running.machine.cancel();
        let text = "the memory that it accesses is lost";
        Break(SliceOutcome::Over(stopped(Stopped::MemoryLost, None, text)))
    }

    /// Checks the next few blocked calls, round robin, for changed words and passed deadlines; [`Self::take_woken`]
    /// returns those whose wait is over.
    pub(crate) fn poll_blocked(&mut self, now_ns: u64) {
        self.check_blocked(false, now_ns);
    }

    /// Checks all blocked calls, for an otherwise idle thread; returns whether a wait is over.
    pub(crate) fn poll_all_blocked(&mut self, now_ns: u64) -> bool {
        self.check_blocked(true, now_ns);
        self.blocked.has_woken()
    }

    fn check_blocked(&mut self, all: bool, now_ns: u64) {
        let (calls, memory, scratch) = (&self.calls, &self.resources.memory, &self.scratch);
        self.blocked.check(all, |at| {
            let Some(running) = calls[at].as_ref() else { return false };
            match running.wait {
                WaitState::Word(until_ns) => until_ns <= now_ns || has_changed(memory, running),
                WaitState::Lock(until_ns) => until_ns <= now_ns,
                WaitState::ScratchBlock => scratch.has_free(),
                WaitState::Runnable | WaitState::Chunked(_) => false,
                WaitState::Remote { .. } | WaitState::Global | WaitState::Fence(_) => false,
            }
        });
    }

    /// Whether calls wait for a condition that must be polled, or were woken.
    pub(crate) fn has_blocked(&self) -> bool {
        !self.blocked.is_empty()
    }

    /// Whether there is work that no event of the port announces.
    pub(crate) fn has_silent_work(&self) -> bool {
        self.has_blocked() || self.resources.global.is_some() || !self.erased.is_empty()
    }

    /// Returns the next call whose wait is over.
    pub(crate) fn take_woken(&mut self) -> Option<usize> {
        self.take_completions();
        self.blocked.take()
    }
}

/// Whether the awaited word has changed or is no longer accessible.
fn has_changed(memory: &TenantRegions, running: &ActiveCall) -> bool {
    let Some(request) = running.machine.pending() else { return true };
    let [region, offset, old, ..] = request.arguments;
    let memory = memory.of(running.tenant);
    let arena = memory.local(region, offset, 8, farside_base::Access::READ);
    let mut word = [0; 8];
    let read = arena.is_ok_and(|arena| arena.read(offset, &mut word).is_ok());
    !read || u64::from_le_bytes(word) != old
}

/// What follows a request of a call: the call continues, or its slice ends.
type AccessOutcome = ControlFlow<SliceOutcome>;

fn take(
    machine: &mut Machine,
    loaded: &LoadedProgram,
    lent: Lent<'_>,
    result: u64,
    bytes: &[u8],
) -> AccessOutcome {
    match machine.answer(loaded.verified().program(), lent, result, bytes) {
        Ok(()) => Continue(()),
        Err(error) => faulty(machine, &error),
    }
}

/// Ends a call whose machine rejects its answer.
fn faulty(machine: &mut Machine, error: &AnswerError) -> AccessOutcome {
    machine.cancel();
    Break(SliceOutcome::Over(stopped(Stopped::Fault, None, error)))
}

fn refuse(running: &mut ActiveCall) -> AccessOutcome {
    let stop = running.machine.refuse().unwrap_or(Stop::NotRunning);
    Break(SliceOutcome::Over(ended(&running.loaded, &stop)))
}

/// The end of a call whose program was unregistered.
fn unregistered() -> SliceOutcome {
    SliceOutcome::Over(stopped(Stopped::Cancelled, None, "its program was unregistered"))
}

fn stopped(why: Stopped, slot: Option<usize>, text: impl ToString) -> CallEnd {
    let slot = slot.and_then(|slot| u32::try_from(slot).ok());
    CallEnd::Stopped(why, slot, text.to_string())
}

fn ended(loaded: &LoadedProgram, stop: &Stop) -> CallEnd {
    let why = match stop {
        Stop::Budget { .. } => Stopped::Budget,
        Stop::Refused { .. } => Stopped::NotPermitted,
        Stop::Cancelled => Stopped::Cancelled,
        _ => Stopped::Fault,
    };
    let slot = stop.slot();
    let place = slot.map_or_else(|| loaded.name().to_owned(), |slot| loaded.place(slot));
    stopped(why, slot, format!("{place}: {stop}"))
}

/// Returns the lock holder of a call: unique, and never zero, which means free.
fn holder(at: usize) -> Holder {
    at as Holder + 1
}

#[cfg(test)]
mod tests;
