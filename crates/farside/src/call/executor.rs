//! Cooperative executor: calls in progress on one thread, each run in time slices and suspended while it waits.
//!
//! A slice ends when the call ends, waits, or has used its instructions or accesses. Accesses to local memory are
//! loads and stores; remote ones are work requests, completed asynchronously; misses of the global memory go
//! through a session. Blocked calls that no event announces are polled ([`watching`]).

mod coherent;
mod loads;
mod objects;
mod watching;

use super::across::{Across, BLOCK_BYTES, Come, Step};
use super::beside::{Beside, Later, Notice};
use super::global::{Global, Seat};
use super::loaded::{Loaded, NotLoaded};
use super::memory::{Denied, Memories};
use super::pace::{Pace, QUIET};
use super::pieces::{self, Pieces, WHOLE_BYTES};
use super::state::{Erased, Holder};
use farside_base::CompletionStatus;
use farside_fabric::Arena;
use farside_protocol::call::{Stopped, object_of};
use farside_rmc::helpers::{Call, Helper, HelperEffect, status};
use farside_rmc::run::{
    AnswerError, Buffers, Lent, Machine, Near, Outcome, Reply, Request, StartError, Stop,
};
use loads::Loads;
use objects::{Load, Registered, states};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use watching::{Awaited, Watching};

/// Time after which a held lock is reported as busy, so that deadlocked calls end.
const LOCK_WAIT_NS: u64 = 100_000_000;
/// Bytes of access buffers kept for later accesses.
const KEPT_BYTES: usize = 4096;
/// Machines kept for later calls.
const SPARE_MAX: usize = 64;

/// What a call in progress waits for.
#[derive(Debug)]
enum Wait {
    /// Runnable.
    Turn,
    /// A lock, until this time.
    Lock(u64),
    /// A change of a local word, until this time.
    Word(u64),
    /// Runnable, within an access with a long buffer.
    Pieces(Box<Pieces>),
    /// Scratch memory.
    Block,
    /// The global memory, or a seat of it.
    Global,
    /// Visibility of its writes; then it ends.
    Fence(End),
    /// Work requests in flight.
    Across { across: Across, block: usize, until_ns: Option<u64> },
}

impl Wait {
    /// Returns what a call of this program waits for, if that must be polled.
    const fn awaited(&self, program: u64) -> Option<Awaited> {
        match self {
            Self::Word(_) => Some(Awaited::Word),
            Self::Lock(_) => Some(Awaited::Lock(program)),
            Self::Block => Some(Awaited::Block),
            Self::Turn | Self::Pieces(_) => None,
            Self::Across { .. } | Self::Global | Self::Fence(_) => None,
        }
    }
}

/// A call in progress.
#[derive(Debug)]
struct Running {
    program: u64,
    session: u32,
    /// The tenant, which determines the memory it can access.
    tenant: usize,
    loaded: Arc<Loaded>,
    machine: Machine,
    wait: Wait,
    /// Instructions of its next slice: initialized from its program's last slices, then adapted.
    pace: Pace,
    /// Whether it has used up a slice before.
    long: bool,
    /// Its seat, while it has operations pending in the global memory.
    seat: Option<Box<Seat>>,
}

/// Scratch memory of a remote access.
#[derive(Clone, Copy, Debug, Default)]
struct Block {
    /// Its requests in flight.
    awaited: u32,
    /// The call, unless it was stopped meanwhile.
    call: Option<usize>,
    failed: Option<CompletionStatus>,
}

/// How a call ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    Returned(u64),
    /// The reason, the slot, and a text for people.
    Stopped(Stopped, Option<u32>, String),
}

/// Outcome of a slice.
#[derive(Debug)]
pub(super) enum Slice {
    Over(End),
    /// A registration has ended, with its programs or an error.
    Loaded(Arc<[u8]>, Result<Vec<Arc<Loaded>>, NotLoaded>),
    Ready,
    Waits,
}

/// The executor; see the module.
#[derive(Debug)]
pub(super) struct Executor {
    pub(super) memory: Memories,
    /// The global memory, if calls may access it.
    pub(super) global: Option<Global>,
    calls: Vec<Option<Box<Running>>>,
    /// Whether there were no calls for a while, so that registrations may have longer slices.
    pub(super) is_quiet: bool,
    /// Objects being loaded, by the slots of the requests that register them.
    loads: BTreeMap<usize, Load>,
    queue: Loads,
    #[expect(clippy::vec_box, reason = "moved to and from `calls` without copying the machine")]
    spare: Vec<Box<Running>>,
    /// State of erased objects, to be freed.
    erased: Erased,
    /// Objects by number.
    objects: BTreeMap<u64, Registered>,
    /// Numbers of objects, by content.
    numbers: BTreeMap<Arc<[u8]>, u64>,
    /// Scratch memory for remote accesses, one arena per block.
    scratch: Box<[Arena]>,
    blocks: Vec<Block>,
    free: Vec<usize>,
    /// Requests to be posted, each with its block.
    posts: VecDeque<(Step, usize)>,
    /// Blocked calls that are polled, and calls whose wait is over.
    watching: Watching,
    /// Notifications for subscribers.
    pub(super) notices: Vec<Notice>,
    /// Output of the call that has just ended.
    pub(super) output: Vec<u8>,
    /// Empty between accesses; reused to avoid allocation.
    buffers: AccessBuffers,
    /// As `buffers`, for the requests of an access.
    steps: Vec<Step>,
    /// Buffer for a chunk of a long access; content arbitrary between chunks. Bounded by what a slice can move.
    piece: Vec<u8>,
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
    /// Returns an executor without regions. `scratch`, of a multiple of [`BLOCK_BYTES`] bytes, is for remote
    /// memory. Verifies at most this many objects at once.
    pub(super) fn new(scratch: Option<Arena>, verifications: usize) -> Self {
        let block = |at: u64| {
            let arena = scratch.as_ref()?;
            arena.part(at * BLOCK_BYTES, BLOCK_BYTES as usize).ok()
        };
        let scratch: Box<[_]> = (0..).map_while(block).collect();
        let blocks = scratch.len();
        Self {
            memory: Memories::default(),
            global: None,
            calls: Vec::new(),
            is_quiet: false,
            loads: BTreeMap::new(),
            queue: Loads::new(verifications),
            spare: Vec::new(),
            erased: Erased::default(),
            objects: BTreeMap::new(),
            numbers: BTreeMap::new(),
            scratch,
            blocks: vec![Block::default(); blocks],
            free: (0..blocks).rev().collect(),
            posts: VecDeque::new(),
            watching: Watching::default(),
            notices: Vec::new(),
            output: Vec::new(),
            buffers: AccessBuffers::default(),
            steps: Vec::new(),
            piece: Vec::new(),
        }
    }

    /// Starts a call at an unused slot of the caller's choice.
    pub(super) fn start(
        &mut self,
        at: usize,
        (session, tenant): (u32, usize),
        program: u64,
        parameters: &[u8],
    ) -> Result<(), StartError> {
        let Some(known) = self.known(program) else {
            return Ok(()); // the next slice returns the error
        };
        let (loaded, pace) = (Arc::clone(&known.loaded), known.pace);
        let mut running = match self.spare.pop() {
            Some(running) => running,
            None => Box::new(Running {
                program,
                session,
                tenant,
                loaded: Arc::clone(&loaded),
                machine: Machine::new(),
                wait: Wait::Turn,
                pace,
                long: false,
                seat: None,
            }),
        };
        let started = loaded.start(&mut running.machine, parameters);
        (running.program, running.session, running.loaded) = (program, session, loaded);
        (running.tenant, running.wait) = (tenant, Wait::Turn);
        (running.pace, running.long) = (pace, false);
        if self.calls.len() <= at {
            self.calls.resize_with(at + 1, || None);
        }
        match started {
            Ok(()) => self.calls[at] = Some(running),
            Err(_) => self.rest(running),
        }
        started
    }

    fn rest(&mut self, running: Box<Running>) {
        if self.spare.len() < SPARE_MAX {
            self.spare.push(running);
        }
    }

    /// Stops a call or a registration and releases its resources.
    pub(super) fn stop(&mut self, at: usize) {
        self.end_loading(at);
        if let Some(running) = self.calls.get_mut(at).and_then(Option::take) {
            self.put_away(at, running);
        }
    }

    fn put_away(&mut self, at: usize, mut running: Box<Running>) {
        if let Wait::Across { block, .. } = std::mem::replace(&mut running.wait, Wait::Turn) {
            self.give_back(block);
        }
        self.leave_seat(at, &mut running);
        if !running.loaded.verified().program().states.is_empty() {
            self.release(at, &running);
        }
        self.watching.remove(at);
        self.rest(running);
    }

    /// Releases the locks that a call holds.
    fn release(&mut self, at: usize, running: &Running) {
        let holder = holder(at);
        let object = object_of(running.program);
        let Some(known) = self.objects.get_mut(&object) else { return };
        let shared = known.shared.declared.release(holder);
        let own = known.own.get_mut(&running.session);
        let own = own.is_some_and(|states| states.declared.release(holder));
        if own || shared {
            self.watching.wake_those(Awaited::Lock(object), usize::MAX);
        }
    }

    /// Runs a call until it ends, waits, or has used up its slice.
    pub(super) fn slice(&mut self, at: usize, now_ns: u64) -> Slice {
        let Some(mut running) = self.calls.get_mut(at).and_then(Option::take) else {
            return self.go_on_loading(at);
        };
        let slice = self.go_on(at, &mut running, now_ns);
        let slice = self.settled(at, &mut running, slice);
        if matches!(slice, Slice::Over(_)) {
            running.machine.output().clone_into(&mut self.output);
            self.put_away(at, running);
        } else {
            running.long |= matches!(slice, Slice::Ready);
            let awaited = running.wait.awaited(object_of(running.program));
            if let Some(awaited) = awaited.filter(|_| matches!(slice, Slice::Waits)) {
                self.watching.add(at, awaited);
            }
            self.calls[at] = Some(running);
        }
        slice
    }

    /// Whether a call has used up a slice before, or is a registration.
    pub(super) fn is_long(&self, at: usize) -> bool {
        let running = self.calls.get(at).and_then(Option::as_ref);
        running.map_or_else(|| self.loads.contains_key(&at), |running| running.long)
    }

    /// Records the duration of a used-up slice; adapts the slices of its program.
    pub(super) fn took(&mut self, at: usize, used_ns: u64) {
        if let Some(load) = self.loads.get_mut(&at) {
            return load.pace.took(if self.is_quiet { used_ns / QUIET } else { used_ns });
        }
        let Some(running) = self.calls.get_mut(at).and_then(Option::as_mut) else { return };
        running.pace.took(used_ns);
        let (program, pace) = (running.program, running.pace);
        let object = self.objects.get_mut(&object_of(program));
        let place = (program - object_of(program)) as usize;
        if let Some(known) = object.and_then(|object| object.programs.get_mut(place)) {
            known.pace = pace;
        }
    }

    fn go_on(&mut self, at: usize, running: &mut Running, now_ns: u64) -> Slice {
        if let Wait::Fence(_) = running.wait
            && let Wait::Fence(end) = std::mem::replace(&mut running.wait, Wait::Turn)
        {
            return Slice::Over(end);
        }
        let pace = running.pace;
        let mut left = pace.accesses();
        loop {
            if let Some(request) = running.machine.pending().copied() {
                match self.answer(at, running, &request, now_ns, &mut left) {
                    Answered::GoesOn => {}
                    Answered::Slice(slice) => return slice,
                }
            }
            let Some((own, shared)) = states(&mut self.objects, running) else {
                let text = "its program was unregistered";
                return Slice::Over(stopped(Stopped::Cancelled, None, text));
            };
            let mut beside = Beside {
                memory: self.memory.of(running.tenant),
                own: &mut own.declared,
                shared: &mut shared.declared,
                now_ns,
                left,
                holder: holder(at),
                notices: &mut self.notices,
                global: self.global.as_mut(),
                seat: running.seat.as_deref_mut(),
                put_off: None,
            };
            let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
            let machine = &mut running.machine;
            let words = self.memory.of(running.tenant).words();
            let outcome = running.loaded.run(machine, pace.now(), lent, words, &mut beside);
            left = beside.left;
            if beside.own.take_unlocked() | beside.shared.take_unlocked() {
                self.watching.wake_those(Awaited::Lock(object_of(running.program)), usize::MAX);
            }
            match outcome {
                Outcome::Returned(result) => return Slice::Over(End::Returned(result)),
                Outcome::Stopped(stop) => return Slice::Over(ended(&running.loaded, &stop)),
                Outcome::Paused => {
                    running.wait = Wait::Turn;
                    return Slice::Ready;
                }
                Outcome::Suspended(_) if beside.put_off == Some(Later::Slice) => {
                    running.wait = Wait::Turn;
                    return Slice::Ready;
                }
                Outcome::Suspended(_) => {}
            }
        }
    }

    /// Answers the request that a call waits for, if it can be completed now.
    fn answer(
        &mut self,
        at: usize,
        running: &mut Running,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
    ) -> Answered {
        if running.seat.as_ref().is_some_and(|seat| seat.accesses()) {
            return self.reach(at, running, request, [&[], &[]]);
        }
        if matches!(running.wait, Wait::Turn)
            && pieces::moved(request) > WHOLE_BYTES
            && self.memory.of(running.tenant).is_here(request.arguments[0])
        {
            running.wait = Wait::Pieces(Box::new(Pieces::of(request)));
        }
        if matches!(running.wait, Wait::Pieces(_)) {
            return self.go_on_by_pieces(running, request, left);
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
        running: &mut Running,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
        buffers: &mut AccessBuffers,
    ) -> Answered {
        let until = match running.wait {
            Wait::Across { .. } => {
                return self.come(running, request, now_ns, left, &mut buffers.output);
            }
            Wait::Lock(until_ns) | Wait::Word(until_ns) => Some(until_ns),
            Wait::Turn | Wait::Pieces(_) | Wait::Block | Wait::Global | Wait::Fence(_) => None,
        };
        let Some((own, shared)) = states(&mut self.objects, running) else {
            return Answered::GoesOn; // `go_on` ends the call
        };
        let program = running.loaded.verified().program();
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        let AccessBuffers { inputs, output } = buffers;
        for (input, span) in inputs.iter_mut().zip(request.inputs) {
            let bytes = running.machine.bytes(program, &lent, span).unwrap_or_default();
            input.extend_from_slice(bytes);
        }
        let inputs = [&inputs[0][..], &inputs[1][..]];
        output.resize(request.output.map_or(0, |span| span.length as usize), 0);
        let mut beside = Beside {
            memory: self.memory.of(running.tenant),
            own: &mut own.declared,
            shared: &mut shared.declared,
            now_ns,
            left: (*left).max(1),
            holder: holder(at),
            notices: &mut self.notices,
            global: self.global.as_mut(),
            seat: running.seat.as_deref_mut(),
            put_off: None,
        };
        let reply = beside.perform(request, Buffers { inputs, output: &mut output[..] });
        *left = beside.left;
        let late = until.is_some_and(|until_ns| until_ns <= now_ns);
        let result = match (reply, beside.put_off) {
            (Reply::Now(result), _) => result,
            (Reply::Refused, _) => return refuse(running),
            (Reply::Later, Some(Later::Lock)) if late => status::BUSY as u64,
            (Reply::Later, Some(Later::Word)) if late => status::TIMED_OUT as u64,
            (Reply::Later, Some(Later::Lock)) => {
                running.wait = Wait::Lock(until.unwrap_or(now_ns.saturating_add(LOCK_WAIT_NS)));
                return Answered::Slice(Slice::Waits);
            }
            (Reply::Later, Some(Later::Word)) => {
                let until_ns = now_ns.saturating_add(request.arguments[3]);
                running.wait = Wait::Word(until.unwrap_or(until_ns));
                return Answered::Slice(Slice::Waits);
            }
            (Reply::Later, Some(Later::Global)) => return self.reach(at, running, request, inputs),
            (Reply::Later, Some(Later::Elsewhere)) => {
                return self.set_out(at, running, request, inputs, now_ns);
            }
            (Reply::Later, _) => return Answered::Slice(Slice::Ready),
        };
        running.wait = Wait::Turn;
        let output = if (result as i64) < 0 { &[][..] } else { &output[..] };
        take(&mut running.machine, &running.loaded, lent, result, output)
    }

    /// Continues an access with a long buffer.
    fn go_on_by_pieces(
        &mut self,
        running: &mut Running,
        request: &Request,
        left: &mut usize,
    ) -> Answered {
        let Wait::Pieces(mut pieces) = std::mem::replace(&mut running.wait, Wait::Turn) else {
            return Answered::GoesOn;
        };
        let Some((own, shared)) = states(&mut self.objects, running) else {
            return Answered::GoesOn; // `go_on` ends the call
        };
        let program = running.loaded.verified().program();
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        let bytes = |span| running.machine.bytes(program, &lent, span).unwrap_or_default();
        let memory = self.memory.of(running.tenant);
        match pieces.step(request, request.inputs.map(bytes), memory, left, &mut self.piece) {
            Ok(end) => {
                let (from, length) = pieces.read();
                let bytes = &self.piece[..length];
                let lent_again = Lent { own: &mut *lent.own, shared: &mut *lent.shared };
                let machine = &mut running.machine;
                let brought = machine.bring(program, lent_again, from, bytes);
                let taken = match end {
                    Some(result) => {
                        brought.and_then(|()| machine.answer_brought(program, lent, result))
                    }
                    None => brought,
                };
                match (taken, end) {
                    (Err(error), _) => faulty(machine, &error),
                    (Ok(()), Some(_)) => Answered::GoesOn,
                    (Ok(()), None) => {
                        running.wait = Wait::Pieces(pieces);
                        Answered::Slice(Slice::Ready)
                    }
                }
            }
            Err(Denied::NotPermitted) => self.denied(running, request, status::NOT_PERMITTED),
            Err(Denied::Elsewhere | Denied::Gone) => {
                self.denied(running, request, status::PEER_LOST)
            }
        }
    }

    /// Begins a remote access.
    fn set_out(
        &mut self,
        at: usize,
        running: &mut Running,
        request: &Request,
        inputs: [&[u8]; 2],
        now_ns: u64,
    ) -> Answered {
        let Some(block) = self.free.pop() else {
            running.wait = Wait::Block;
            return Answered::Slice(Slice::Waits);
        };
        let arena = &self.scratch[block];
        let memory = self.memory.of(running.tenant);
        match Across::begin(request, inputs, memory, arena, &mut self.steps) {
            Ok(across) => {
                let waits = request.call == Call::WaitWord;
                let until_ns = waits.then(|| now_ns.saturating_add(request.arguments[3]));
                self.blocks[block] = Block { awaited: 0, call: Some(at), failed: None };
                running.wait = Wait::Across { across, block, until_ns };
                if self.steps.is_empty() {
                    return Answered::GoesOn; // nothing to request
                }
                self.posts.extend(self.steps.drain(..).map(|step| (step, block)));
                Answered::Slice(Slice::Waits)
            }
            Err(denied) => {
                self.steps.clear();
                self.free.push(block);
                let why = match denied {
                    Denied::Gone => status::PEER_LOST,
                    Denied::NotPermitted | Denied::Elsewhere => status::NOT_PERMITTED,
                };
                self.denied(running, request, why)
            }
        }
    }

    /// Frees a block; it is reused once its requests have completed.
    fn give_back(&mut self, block: usize) {
        self.posts.retain(|(_, of)| *of != block);
        self.blocks[block].call = None;
        if self.blocks[block].awaited == 0 {
            self.free.push(block);
            self.watching.wake_those(Awaited::Block, 1);
        }
    }

    /// Continues a remote access: completes it, or adds further requests.
    fn come(
        &mut self,
        running: &mut Running,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
        bytes: &mut Vec<u8>,
    ) -> Answered {
        let Wait::Across { across, block, until_ns } = &mut running.wait else {
            return Answered::Slice(Slice::Waits);
        };
        let (block, late) = (*block, until_ns.is_some_and(|until_ns| until_ns <= now_ns));
        if self.blocks[block].awaited > 0 || self.posts.iter().any(|(_, of)| *of == block) {
            return Answered::Slice(Slice::Waits);
        }
        let arena = &self.scratch[block];
        let memory = self.memory.of(running.tenant);
        let come = match self.blocks[block].failed {
            None => across.come(memory, arena, left, bytes, &mut self.steps),
            Some(_) => Err(Denied::Elsewhere),
        };
        let result = match come {
            Ok(Come::Answer(result)) => result,
            Ok(Come::Slice) => return Answered::Slice(Slice::Ready),
            Ok(Come::Same) if late => status::TIMED_OUT as u64,
            Ok(Come::Same) => {
                let steps = &mut self.steps;
                if Across::begin(request, [&[], &[]], memory, arena, steps).is_err() {
                    self.steps.clear();
                    return self.failed(running, request, block);
                }
                self.posts.extend(self.steps.drain(..).map(|step| (step, block)));
                return Answered::Slice(Slice::Waits);
            }
            Ok(Come::More) => {
                self.posts.extend(self.steps.drain(..).map(|step| (step, block)));
                return Answered::Slice(Slice::Waits);
            }
            Err(_) => {
                self.steps.clear();
                return self.failed(running, request, block);
            }
        };
        running.wait = Wait::Turn;
        self.give_back(block);
        self.reply(running, result, bytes)
    }

    /// Passes an answer to a call.
    fn reply(&mut self, running: &mut Running, result: u64, bytes: &[u8]) -> Answered {
        let Some((own, shared)) = states(&mut self.objects, running) else {
            return Answered::GoesOn; // `go_on` ends the call
        };
        let lent = Lent { own: &mut own.variables, shared: &mut shared.variables };
        take(&mut running.machine, &running.loaded, lent, result, bytes)
    }

    fn failed(&mut self, running: &mut Running, request: &Request, block: usize) -> Answered {
        let failed = self.blocks[block].failed;
        running.wait = Wait::Turn;
        self.give_back(block);
        match failed {
            Some(CompletionStatus::RemoteAccess | CompletionStatus::RemoteAlignment) => {
                self.denied(running, request, status::NOT_PERMITTED)
            }
            _ => self.denied(running, request, status::PEER_LOST),
        }
    }

    /// Reports a failed access to the program as a status, or ends the call if its helper returns none.
    fn denied(&mut self, running: &mut Running, request: &Request, why: i64) -> Answered {
        let helper = Helper::with_number(request.call as u32);
        if helper.is_some_and(|helper| helper.effect == HelperEffect::Suspends) {
            return self.reply(running, why as u64, &[]);
        }
        if why == status::NOT_PERMITTED {
            return refuse(running);
        }
        running.machine.cancel();
        let text = "the memory that it accesses is lost";
        Answered::Slice(Slice::Over(stopped(Stopped::MemoryLost, None, text)))
    }

    /// Returns the oldest request to be posted, with its block, whose bytes begin at the block's number times
    /// [`BLOCK_BYTES`].
    pub(super) fn next_post(&self) -> Option<&(Step, usize)> {
        self.posts.front()
    }

    /// Records that the oldest request was posted.
    pub(super) fn posted(&mut self) {
        if let Some((_, block)) = self.posts.pop_front() {
            self.blocks[block].awaited += 1;
        }
    }

    /// Records that the oldest request can never be posted.
    pub(super) fn not_posted(&mut self) {
        if let Some((_, block)) = self.posts.pop_front() {
            self.blocks[block].failed = Some(CompletionStatus::PeerLost);
            self.blocks[block].call.into_iter().for_each(|at| self.watching.wake(at));
        }
    }

    /// Records the completion of a request of a block.
    pub(super) fn completed(&mut self, block: usize, status: CompletionStatus) {
        let Some(place) = self.blocks.get_mut(block).filter(|place| place.awaited > 0) else {
            return;
        };
        place.awaited -= 1;
        if status != CompletionStatus::Success && place.failed.is_none() {
            place.failed = Some(status);
        }
        if place.awaited > 0 {
            return;
        }
        match place.call {
            Some(at) => self.watching.wake(at),
            None => {
                self.free.push(block);
                self.watching.wake_those(Awaited::Block, 1);
            }
        }
    }

    /// Checks the next few blocked calls, round robin, for changed words and passed deadlines; [`Self::take_woken`]
    /// returns those whose wait is over.
    pub(super) fn watch(&mut self, now_ns: u64) {
        self.look(false, now_ns);
    }

    /// Checks all blocked calls, for an otherwise idle thread; returns whether a wait is over.
    pub(super) fn watch_all(&mut self, now_ns: u64) -> bool {
        self.look(true, now_ns);
        self.watching.has_woken()
    }

    fn look(&mut self, at_all: bool, now_ns: u64) {
        let (calls, memory, free) = (&self.calls, &self.memory, &self.free);
        self.watching.look(at_all, |at| {
            let Some(running) = calls[at].as_ref() else { return false };
            match running.wait {
                Wait::Word(until_ns) => until_ns <= now_ns || has_changed(memory, running),
                Wait::Lock(until_ns) => until_ns <= now_ns,
                Wait::Block => !free.is_empty(),
                Wait::Turn | Wait::Pieces(_) => false,
                Wait::Across { .. } | Wait::Global | Wait::Fence(_) => false,
            }
        });
    }

    /// Whether calls wait for a condition that must be polled, or were woken.
    pub(super) fn watches(&self) -> bool {
        !self.watching.is_empty()
    }

    /// Whether there is work that no event of the port announces.
    pub(super) fn looks_around(&self) -> bool {
        self.watches() || self.global.is_some() || !self.erased.is_empty()
    }

    /// Returns the next call whose wait is over.
    pub(super) fn take_woken(&mut self) -> Option<usize> {
        self.hear();
        self.watching.take()
    }
}

/// Whether the awaited word has changed or is no longer accessible.
fn has_changed(memory: &Memories, running: &Running) -> bool {
    let Some(request) = running.machine.pending() else { return true };
    let [region, offset, old, ..] = request.arguments;
    let memory = memory.of(running.tenant);
    let arena = memory.here(region, offset, 8, farside_base::Access::READ);
    let mut word = [0; 8];
    let read = arena.is_ok_and(|arena| arena.read(offset, &mut word).is_ok());
    !read || u64::from_le_bytes(word) != old
}

/// Outcome of a request that a call waited for.
enum Answered {
    GoesOn,
    Slice(Slice),
}

fn take(
    machine: &mut Machine,
    loaded: &Loaded,
    lent: Lent<'_>,
    result: u64,
    bytes: &[u8],
) -> Answered {
    match machine.answer(loaded.verified().program(), lent, result, bytes) {
        Ok(()) => Answered::GoesOn,
        Err(error) => faulty(machine, &error),
    }
}

/// Ends a call whose machine rejects its answer.
fn faulty(machine: &mut Machine, error: &AnswerError) -> Answered {
    machine.cancel();
    Answered::Slice(Slice::Over(stopped(Stopped::Fault, None, error)))
}

fn refuse(running: &mut Running) -> Answered {
    let stop = running.machine.refuse().unwrap_or(Stop::NotRunning);
    Answered::Slice(Slice::Over(ended(&running.loaded, &stop)))
}

fn stopped(why: Stopped, slot: Option<usize>, text: impl ToString) -> End {
    let slot = slot.and_then(|slot| u32::try_from(slot).ok());
    End::Stopped(why, slot, text.to_string())
}

fn ended(loaded: &Loaded, stop: &Stop) -> End {
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
