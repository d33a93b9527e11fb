//! The progress engine of a client: its connections, its requests, and the port.
//!
//! A request is in a slot from its call until its outcome is taken:
//!
//! ```text
//! Free -> Queued -> Posted -> Ended -> Free
//!           ^         |
//!           +---------+ its connection was lost, and it is repeated over the next one
//! ```
//! *Order*: requests of one memory are posted in the order of their calls, also after a reconnection, which
//! begins only when all posted ones have completed.

use super::hello::{LendReply, encode_hello};
use super::lists::{BATCH, ListState, ListWork, Staged};
use super::options::{MemoryClientOptions, MemoryClientStats};
use super::ranges::{RANGES_MAX, RangeList};
use super::request::{Action, RequestSpec};
use super::vector::{VectorCosts, VectorIo};
use crate::buffer::Buffer;
use crate::progress::{ConnectionEvent, EnginePort, Progress};
use crate::refusal::Refusal;
use crate::registered::control;
use crate::runtime::{Instant, random};
use crate::{Error, ErrorCode};
use farside_base::waiting::Backoff;
use farside_base::{
    Capabilities, Completion, CompletionStatus, LinkId, LocalSlice, ReceiveQueueId, RegionToken,
    RemoteRegionId, RemoteSlice, Work, WorkFlags, WorkId,
};
use farside_fabric::{Fabric, Posted, RunNow, Stop};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most requests of a client.
pub(super) const REQUESTS_MAX: usize = (1 << 20) - 1;
/// The smallest and the largest staging memory.
const STAGING_BYTES_MIN: u64 = 4096;
const STAGING_BYTES_MAX: u64 = 64 << 20;
/// A connection that has lasted for this long works.
const PROVEN: Duration = Duration::from_secs(1);
/// The longest time to connect again: for ever.
const RECONNECT_MAX: Duration = Duration::from_secs(1 << 30);
/// Most bytes of a request that is carried out within its call: longer ones would block their callers.
const IN_CALL_BYTES: u64 = 64 << 10;
/// The receive that an unexpected message takes.
const GUARD: WorkId = WorkId(u64::MAX);

/// A connection to a memory server.
enum Stage {
    /// Waits for the answer of the server.
    Connecting(LinkId),
    /// Waits for the import of the region.
    Importing(LinkId, RegionToken),
    Open(LinkId, RemoteRegionId),
    /// The link is lost: waits for the completions of what was posted, then connects again.
    Losing(LinkId),
    /// Connects again at this time.
    Waiting(Instant),
    /// Ended, for this reason.
    Ended(Error),
}

/// A remote memory.
pub(super) struct OpenMemory {
    address: String,
    stage: Stage,
    /// Of the server that was reached first; another one has other memory.
    first: Option<LendReply>,
    /// The error of the last attempt to connect.
    trouble: Option<Error>,
    /// Requests that wait for a connection, in order.
    held: VecDeque<u32>,
    /// Requests to be repeated, in order and before those.
    repeated: VecDeque<u32>,
    /// Requests posted whose completions are to come.
    posted: usize,
    /// By which the server knows the connection.
    connection: u64,
    /// Requests that have not ended.
    unfinished: usize,
    /// When it was opened last, and whether a request has completed since.
    opened: Option<Instant>,
    is_proven: bool,
    /// When attempts to connect again end.
    until: Option<Instant>,
    naps: Backoff,
    /// Connections after the first.
    pub(super) reconnections: u64,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum SlotStage {
    Free,
    Queued,
    Posted,
    Ended,
}

struct Slot {
    generation: u32,
    stage: SlotStage,
    memory: u32,
    action: Action,
    offset: u64,
    bytes: u64,
    local: LocalSlice,
    /// Keeps the local memory registered.
    buffer: Option<Buffer>,
    outcome: Result<u64, Error>,
    /// Of a request that moves a list of ranges.
    list: Option<Box<ListState>>,
    /// Nothing waits for the outcome: the slot is free at its end.
    is_forgotten: bool,
    /// The outcome is only taken by name.
    is_hidden: bool,
}

/// A request in its slot.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(super) struct SlotName {
    pub(super) slot: u32,
    pub(super) generation: u32,
}

pub(super) struct Engine {
    pub(super) port: EnginePort,
    queue: ReceiveQueueId,
    /// Takes messages, which no server sends.
    guard: LocalSlice,
    memories: Vec<OpenMemory>,
    slots: Vec<Slot>,
    free: Vec<u32>,
    /// Requests of open connections, in order.
    ready: VecDeque<u32>,
    /// Previous values of atomics, a word for each slot.
    words: Buffer,
    /// Requests that ended since they were last asked for, in order of their ends.
    pub(super) ended: VecDeque<SlotName>,
    /// Memories that are neither open nor ended.
    unsettled: usize,
    reconnect: Duration,
    has: Capabilities,
    costs: VectorCosts,
    runs_in_call: bool,
    fabric: Arc<dyn Fabric>,
    /// Staging memory that no list uses.
    staging: Vec<Buffer>,
    pub(super) counters: MemoryClientStats,
    /// Of the batch that is being posted.
    list_works: Vec<ListWork>,
    slices: Vec<LocalSlice>,
}

impl Engine {
    pub(super) fn new(
        fabric: &Arc<dyn Fabric>,
        options: &MemoryClientOptions,
    ) -> Result<Self, Error> {
        let MemoryClientOptions { requests_max, reconnect, .. } = *options;
        let mut port = EnginePort::open(&**fabric, None)?;
        let queue = port.create_receive_queue(1)?;
        let words = Buffer::new(fabric, u64::from(requests_max) * 8)?;
        let guard = words.local(0, 0);
        port.post_receive(GUARD, queue, guard);
        let slot = |_| Slot {
            generation: 0,
            stage: SlotStage::Free,
            memory: 0,
            action: Action::Read,
            offset: 0,
            bytes: 0,
            local: guard,
            buffer: None,
            outcome: Ok(0),
            list: None,
            is_forgotten: false,
            is_hidden: false,
        };
        Ok(Self {
            port,
            queue,
            guard,
            memories: Vec::new(),
            slots: (0..requests_max).map(slot).collect(),
            free: (0..requests_max).rev().collect(),
            ready: VecDeque::with_capacity(requests_max as usize),
            words,
            ended: VecDeque::with_capacity(requests_max as usize),
            unsettled: 0,
            reconnect,
            has: fabric.capabilities(),
            costs: options.vector_costs,
            runs_in_call: options.in_call,
            fabric: Arc::clone(fabric),
            staging: Vec::new(),
            counters: MemoryClientStats::default(),
            list_works: Vec::with_capacity(BATCH),
            slices: Vec::new(),
        })
    }

    /// Begins to connect to a memory server; returns the number of the memory.
    pub(super) fn open(&mut self, address: &str) -> Result<u32, Error> {
        let connection = random();
        let link = self.port.connect(address, &encode_hello(connection), self.queue)?;
        self.memories.push(OpenMemory {
            address: address.to_owned(),
            stage: Stage::Connecting(link),
            first: None,
            trouble: None,
            held: VecDeque::new(),
            repeated: VecDeque::new(),
            posted: 0,
            connection,
            unfinished: 0,
            opened: None,
            is_proven: false,
            until: None,
            naps: Backoff::REDIALS,
            reconnections: 0,
        });
        self.unsettled += 1;
        Ok(self.memories.len() as u32 - 1)
    }

    /// What the server lends, once the connection is open; the error of a memory that has ended.
    pub(super) fn opened(&self, memory: u32) -> Result<Option<LendReply>, Error> {
        let memory = self.memory(memory)?;
        match &memory.stage {
            Stage::Open(..) => Ok(memory.first),
            Stage::Ended(error) => Err(error.clone()),
            _ => Ok(None),
        }
    }

    pub(super) fn memory(&self, memory: u32) -> Result<&OpenMemory, Error> {
        let unknown = || Error::with(ErrorCode::BadForm, "the memory is one of another client");
        self.memories.get(memory as usize).ok_or_else(unknown)
    }

    /// Ends a memory at the request of the program.
    pub(super) fn close(&mut self, memory: u32) {
        if (memory as usize) < self.memories.len() {
            let text = "this client has closed the memory";
            self.end_memory(memory, Error::with(ErrorCode::PeerLost, text));
        }
    }

    /// Ends a memory that was never open, and forgets it if no later one has been opened.
    pub(super) fn give_up(&mut self, memory: u32) {
        self.close(memory);
        if memory as usize + 1 == self.memories.len() {
            self.memories.pop();
        }
    }

    /// Most bytes of a request.
    fn transfer_max(&self) -> u32 {
        u32::try_from(self.has.transfer_bytes_max).unwrap_or(u32::MAX)
    }

    pub(super) const fn capabilities(&self) -> &Capabilities {
        &self.has
    }

    /// Whether the port alone announces all progress: no connection waits for a time.
    pub(super) const fn is_settled(&self) -> bool {
        self.unsettled == 0
    }

    /// Queues a request; [`post`](Progress::post) posts it.
    pub(super) fn request(&mut self, spec: RequestSpec<'_>) -> Result<SlotName, Error> {
        let memory = self.memory(spec.memory)?;
        let Some(LendReply { token, .. }) = memory.first else {
            return Err(memory.why_not_open());
        };
        if let Stage::Ended(error) = &memory.stage {
            return Err(error.clone());
        }
        spec.check(&token, self.transfer_max())?;
        let next = *self.free.last().ok_or(ErrorCode::TooManyRequests)?;
        if let Some(outcome) = self.run_now(next, &spec) {
            return Ok(self.end_now(spec.memory, outcome));
        }
        let list = match (spec.ranges, spec.local) {
            (Some(ranges), Some(local)) => Some(self.list(ranges, spec.action, local)?),
            _ => None,
        };
        let memory = self.memory(spec.memory)?;
        let is_open = matches!(memory.stage, Stage::Open(..));
        let number = self.free.pop().ok_or(ErrorCode::TooManyRequests)?;
        let words = &self.words;
        let slot = &mut self.slots[number as usize];
        slot.local = match spec.local {
            _ if let Some((_, local)) = list => local,
            Some((buffer, offset)) => buffer.local(offset, spec.bytes as u32),
            None => words.local(u64::from(number) * 8, 8),
        };
        slot.buffer = spec.local.map(|(buffer, _)| buffer.clone());
        slot.list = list.map(|(list, _)| Box::new(list));
        slot.stage = SlotStage::Queued;
        (slot.memory, slot.action) = (spec.memory, spec.action);
        (slot.offset, slot.bytes) = (spec.offset, spec.bytes);
        (slot.is_forgotten, slot.is_hidden) = (false, false);
        self.memories[spec.memory as usize].unfinished += 1;
        let slot = &self.slots[number as usize];
        let name = SlotName { slot: number, generation: slot.generation };
        if is_open {
            self.ready.push_back(number);
        } else {
            self.memories[spec.memory as usize].held.push_back(number);
        }
        Ok(name)
    }

    /// Carries out a request within the call, if the port can and no request waits to be posted. Returns its outcome.
    #[inline]
    fn run_now(&mut self, number: u32, spec: &RequestSpec<'_>) -> Option<Result<u64, Error>> {
        let RequestSpec { memory, action, offset, bytes, local, ranges } = *spec;
        if !self.runs_in_call || bytes > IN_CALL_BYTES || !self.ready.is_empty() {
            return None;
        }
        let Stage::Open(link, region) = self.memories.get(memory as usize)?.stage else {
            return None;
        };
        let port = &mut self.port;
        let mut run = |offset, local: LocalSlice| {
            let local = [local];
            let operation = action.operation(RemoteSlice { region, offset }, &local, bytes);
            port.run_now(&Work { id: GUARD, link, flags: WorkFlags::default(), operation })
        };
        let (mut count, mut ran) = (1, RunNow::NotRun);
        match (local, ranges) {
            (None, _) => ran = run(offset, self.words.local(u64::from(number) * 8, 8)),
            (Some((buffer, at)), None) => ran = run(offset, buffer.local(at, bytes as u32)),
            (Some((buffer, at)), Some(ranges)) if ranges.is_by_one() => {
                count = ranges.count() as u64;
                for range in ranges.iter() {
                    let local = buffer.local(at + range.local, range.bytes);
                    ran = run(offset + range.remote, local);
                    if !matches!(ran, RunNow::Done(_)) {
                        return None; // what has been moved is moved again when the list is posted
                    }
                }
            }
            _ => {}
        }
        match ran {
            RunNow::Done(_) => {
                self.counters.carried_out(count);
                Some(Ok(if action.has_value() { self.value(number) } else { 0 }))
            }
            RunNow::NotRun => None,
            RunNow::Unknown => {
                let text = "the memory server closed the connection within the request";
                Some(Err(Error::with(ErrorCode::Indeterminate, text)))
            }
        }
    }

    /// Ends the request of the next free slot, which was carried out within its call.
    #[inline]
    fn end_now(&mut self, memory: u32, outcome: Result<u64, Error>) -> SlotName {
        self.memories[memory as usize].is_proven |= outcome.is_ok();
        self.memories[memory as usize].unfinished += 1;
        let number = self.free.pop().unwrap_or_default();
        let slot = &mut self.slots[number as usize];
        slot.memory = memory;
        (slot.is_forgotten, slot.is_hidden) = (false, false);
        let name = SlotName { slot: number, generation: slot.generation };
        self.end_request(number, outcome);
        name
    }

    /// Takes the outcome of a request, if it has ended.
    pub(super) fn take(&mut self, name: SlotName) -> Result<Option<u64>, Error> {
        let slot = self.slot(name)?;
        if slot.stage != SlotStage::Ended {
            return Ok(None);
        }
        let outcome = std::mem::replace(&mut slot.outcome, Ok(0));
        self.free_slot(name.slot);
        outcome.map(Some)
    }

    /// Whether a memory has no request that has not ended.
    pub(super) fn is_idle(&self, memory: u32) -> bool {
        self.memories.get(memory as usize).is_none_or(|memory| memory.unfinished == 0)
    }

    /// Frees the slot of a request at its end, whatever the outcome.
    pub(super) fn forget(&mut self, name: SlotName) {
        if let Ok(slot) = self.slot(name) {
            slot.is_forgotten = true;
            if slot.stage == SlotStage::Ended {
                self.free_slot(name.slot);
            }
        }
    }

    /// Leaves the outcome of a request to those who have its name.
    pub(super) fn hide(&mut self, name: SlotName) {
        if let Ok(slot) = self.slot(name) {
            slot.is_hidden = true;
        }
    }

    fn slot(&mut self, name: SlotName) -> Result<&mut Slot, Error> {
        let slot = self.slots.get_mut(name.slot as usize);
        let slot = slot.filter(|slot| slot.generation == name.generation && slot.is_used());
        let text = "the outcome of the request was taken before, or it is one of another client";
        slot.ok_or_else(|| Error::with(ErrorCode::BadForm, text))
    }

    fn free_slot(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        slot.stage = SlotStage::Free;
        slot.generation = slot.generation.wrapping_add(1);
        slot.outcome = Ok(0);
        self.free.push(number);
    }

    fn end_request(&mut self, number: u32, outcome: Result<u64, Error>) {
        let slot = &mut self.slots[number as usize];
        (slot.buffer, slot.list) = (None, None);
        self.memories[slot.memory as usize].unfinished -= 1;
        slot.outcome = outcome;
        slot.stage = SlotStage::Ended;
        let name = SlotName { slot: number, generation: slot.generation };
        if slot.is_forgotten {
            return self.free_slot(number);
        }
        if slot.is_hidden {
            return;
        }
        // Names of outcomes that were taken by name are only removed here.
        if self.ended.len() == self.slots.len() {
            let (ended, slots) = (&mut self.ended, &self.slots);
            ended.retain(|name| slots[name.slot as usize].is(*name));
        }
        self.ended.push_back(name);
    }

    /// Whether a request has ended and its outcome was not taken.
    pub(super) fn has_ended(&self, name: SlotName) -> bool {
        self.slots.get(name.slot as usize).is_some_and(|slot| slot.is(name))
    }

    /// Ends a memory and all its requests.
    fn end_memory(&mut self, number: u32, error: Error) {
        let memory = &mut self.memories[number as usize];
        let link = match memory.stage {
            Stage::Ended(_) => return,
            Stage::Open(link, _) => Some(link),
            Stage::Connecting(link) | Stage::Importing(link, _) | Stage::Losing(link) => Some(link),
            Stage::Waiting(_) => None,
        };
        self.unsettled -= usize::from(!matches!(memory.stage, Stage::Open(..)));
        memory.stage = Stage::Ended(error.clone());
        memory.held.clear();
        memory.repeated.clear();
        if let Some(link) = link {
            self.port.close(link);
        }
        // A closed link completes nothing more for certain, and reaches no local memory.
        for slot in 0..self.slots.len() as u32 {
            let at = &self.slots[slot as usize];
            if at.memory == number && matches!(at.stage, SlotStage::Queued | SlotStage::Posted) {
                let is_unknown = at.stage == SlotStage::Posted && at.action.is_atomic();
                let error = if is_unknown { indeterminate(&error) } else { error.clone() };
                self.end_request(slot, Err(error));
            }
        }
        let (ready, slots) = (&mut self.ready, &self.slots);
        ready.retain(|slot| slots[*slot as usize].stage == SlotStage::Queued);
        self.memories[number as usize].posted = 0;
    }

    fn of_link(&self, link: LinkId) -> Option<u32> {
        let has = |memory: &OpenMemory| match memory.stage {
            Stage::Connecting(its) | Stage::Losing(its) => its == link,
            Stage::Importing(its, _) | Stage::Open(its, _) => its == link,
            Stage::Waiting(_) | Stage::Ended(_) => false,
        };
        self.memories.iter().position(has).map(|at| at as u32)
    }

    fn link_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Requested(link, _) => self.port.close(link), // this end does not listen
            ConnectionEvent::Connected(link, reply) => {
                match (self.of_link(link), LendReply::decode(&reply)) {
                    (Some(memory), Some(reply)) => self.connected(memory, link, reply),
                    (Some(memory), None) => {
                        let text = "the reply is not one of a memory server";
                        self.end_memory(memory, Error::with(ErrorCode::ProtocolViolation, text));
                    }
                    (None, _) => self.port.close(link),
                }
            }
            ConnectionEvent::Refused(link, why) => {
                self.failed(link, Refusal::decode(&why).into());
            }
            ConnectionEvent::NotReached(link, error) => self.failed(link, error),
            ConnectionEvent::Lost(link) => {
                let trouble = self.port.trouble(link).unwrap_or_default();
                self.lost(link, Error::with(ErrorCode::PeerLost, trouble));
            }
        }
    }

    fn connected(&mut self, number: u32, link: LinkId, reply: LendReply) {
        let memory = &mut self.memories[number as usize];
        if memory.first.is_some_and(|first| first != reply) {
            let text = "the server has started again: its memory is new, open it again";
            return self.end_memory(number, Error::with(ErrorCode::PeerLost, text));
        }
        memory.first = Some(reply);
        memory.stage = Stage::Importing(link, reply.token);
        self.import(number, link, &reply.token);
    }

    fn import(&mut self, number: u32, link: LinkId, token: &RegionToken) {
        match self.port.try_import(link, token) {
            Ok(None) => {}
            Ok(Some(region)) => {
                let memory = &mut self.memories[number as usize];
                memory.stage = Stage::Open(link, region);
                memory.reconnections += u64::from(memory.opened.is_some());
                (memory.opened, memory.is_proven) = (Some(Instant::now()), false);
                self.ready.append(&mut memory.held);
                self.unsettled -= 1;
            }
            Err(error) => self.failed(link, control(&error)),
        }
    }

    /// A connection that did not come about.
    fn failed(&mut self, link: LinkId, error: Error) {
        if let Some(memory) = self.of_link(link) {
            self.port.close(link);
            self.retry_or_end(memory, error);
        }
    }

    /// A connection was lost.
    fn lost(&mut self, link: LinkId, error: Error) {
        let Some(number) = self.of_link(link) else {
            return self.port.close(link);
        };
        let memory = &mut self.memories[number as usize];
        if !matches!(memory.stage, Stage::Open(..)) {
            return if matches!(memory.stage, Stage::Losing(_)) {
                self.settle_losing(number);
            } else {
                self.failed(link, error);
            };
        }
        self.unsettled += 1;
        memory.stage = Stage::Losing(link);
        memory.trouble = Some(error);
        // A server that accepts and then drops every request does not begin the time again.
        let lasted = memory.opened.is_some_and(|opened| opened.elapsed() >= PROVEN);
        if memory.until.is_none() || memory.is_proven || lasted {
            memory.until = Some(Instant::now() + self.reconnect.min(RECONNECT_MAX));
            memory.naps = Backoff::REDIALS;
        }
        let slots = &self.slots;
        let (its, others) =
            self.ready.drain(..).partition(|slot| slots[*slot as usize].memory == number);
        self.ready = others;
        memory.held = its;
        // The first may be a list of which a part was posted: no completion would tell of its last requests.
        if let Some(first) = memory.held.front().copied()
            && let Some(list) = &mut self.slots[first as usize].list
        {
            list.give_up_tail();
            self.end_list(first); // if it has failed
        }
        self.settle_losing(number);
    }

    /// Closes a lost link once all that was posted over it has completed.
    fn settle_losing(&mut self, number: u32) {
        let memory = &mut self.memories[number as usize];
        if let Stage::Losing(link) = memory.stage
            && memory.posted == 0
        {
            self.port.close(link);
            memory.repeated.append(&mut memory.held);
            std::mem::swap(&mut memory.repeated, &mut memory.held);
            let error = memory.trouble.clone().unwrap_or_else(|| ErrorCode::PeerLost.into());
            self.retry_or_end(number, error);
        }
    }

    /// Connects again later, or ends a memory whose time for that is over.
    fn retry_or_end(&mut self, number: u32, error: Error) {
        let memory = &mut self.memories[number as usize];
        let now = Instant::now();
        match memory.until {
            Some(until) if now < until => {
                let nap = Duration::from_nanos(memory.naps.next_ns());
                memory.stage = Stage::Waiting(now + nap);
                memory.trouble = Some(error);
            }
            // Reached before, and not again in time.
            Some(_) => {
                let text = error.detail.clone();
                self.end_memory(number, Error::with(ErrorCode::PeerLost, text));
            }
            None => self.end_memory(number, error),
        }
    }

    /// Advances connections that wait for a time or an import; returns whether one did.
    fn advance(&mut self) -> bool {
        let mut any = false;
        for number in 0..self.memories.len() as u32 {
            match self.memories[number as usize].stage {
                Stage::Connecting(link) | Stage::Importing(link, _) if self.is_late(number) => {
                    let trouble = self.memories[number as usize].trouble.clone();
                    self.failed(link, trouble.unwrap_or_else(|| ErrorCode::PeerLost.into()));
                }
                Stage::Importing(link, token) => self.import(number, link, &token),
                Stage::Waiting(time) if time <= Instant::now() => {
                    any = true;
                    self.connect_again(number);
                }
                _ => {}
            }
        }
        any
    }

    /// Whether the time to connect again is over.
    fn is_late(&self, number: u32) -> bool {
        self.memories[number as usize].until.is_some_and(|until| until <= Instant::now())
    }

    fn connect_again(&mut self, number: u32) {
        let memory = &mut self.memories[number as usize];
        let hello = encode_hello(memory.connection);
        match self.port.connect(&memory.address, &hello, self.queue) {
            Ok(link) => memory.stage = Stage::Connecting(link),
            Err(error) => self.retry_or_end(number, error),
        }
    }

    /// Handles a completion that failed: repeats what may be repeated.
    fn failed_request(&mut self, number: u32, range: u32, completion: &Completion) {
        let slot = &mut self.slots[number as usize];
        let (memory, is_atomic) = (slot.memory, slot.action.is_atomic());
        let trouble = self.port.trouble(completion.link).unwrap_or_default();
        let code = match completion.status {
            CompletionStatus::RemoteAccess | CompletionStatus::RemoteAlignment => {
                ErrorCode::AccessDenied
            }
            CompletionStatus::Broken => ErrorCode::System,
            _ => ErrorCode::PeerLost,
        };
        let error = Error::with(code, trouble);
        let is_lost = code == ErrorCode::PeerLost;
        if let Some(list) = &mut slot.list {
            list.failed(range, &error, is_lost);
            // Else it waits to be posted already.
            if is_lost && slot.stage == SlotStage::Posted && list.failure.is_none() {
                slot.stage = SlotStage::Queued;
                self.memories[memory as usize].repeated.push_back(number);
            }
            self.end_list(number);
        } else if is_lost && !is_atomic {
            slot.stage = SlotStage::Queued;
            // Completions come in the order of the posts.
            self.memories[memory as usize].repeated.push_back(number);
        } else {
            let error = if is_lost { indeterminate(&error) } else { error.clone() };
            self.end_request(number, Err(error));
        }
        self.lost(completion.link, error);
    }

    /// The previous value that an atomic has stored.
    fn value(&self, number: u32) -> u64 {
        let mut bytes = [0; 8];
        // In bounds: a word for each slot.
        let _ = self.words.read(u64::from(number) * 8, &mut bytes);
        u64::from_le_bytes(bytes)
    }
}

/// Bits of a slot and of its generation in the id of a request; the others are a range of a list.
const SLOT_BITS: u32 = 20;
const GENERATION_BITS: u32 = 20;
const GENERATION_MASK: u32 = (1 << GENERATION_BITS) - 1;
const _: () = assert!(REQUESTS_MAX <= 1 << SLOT_BITS);
const _: () = assert!(RANGES_MAX <= 1 << (64 - SLOT_BITS - GENERATION_BITS));

fn encode_id(number: u32, generation: u32, range: u32) -> WorkId {
    let high = u64::from(range) << GENERATION_BITS | u64::from(generation & GENERATION_MASK);
    WorkId(high << SLOT_BITS | u64::from(number))
}

/// Returns the slot, the low bits of its generation, and the range.
fn decode_id(id: WorkId) -> (u32, u32, u32) {
    let number = id.0 as u32 & ((1 << SLOT_BITS) - 1);
    let generation = (id.0 >> SLOT_BITS) as u32 & GENERATION_MASK;
    (number, generation, (id.0 >> (SLOT_BITS + GENERATION_BITS)) as u32)
}

/// The error of an atomic whose connection was lost.
fn indeterminate(error: &Error) -> Error {
    Error::with(ErrorCode::Indeterminate, error.detail.clone())
}

impl Slot {
    /// Returns its work request; `None` if its memory is not open.
    #[inline]
    fn work(&self, number: u32, memories: &[OpenMemory]) -> Option<Work<'_>> {
        let Stage::Open(link, region) = memories.get(self.memory as usize)?.stage else {
            return None;
        };
        let at = RemoteSlice { region, offset: self.offset };
        Some(Work {
            id: encode_id(number, self.generation, 0),
            link,
            flags: WorkFlags { signalled: true, ..WorkFlags::default() },
            operation: self.action.operation(at, std::slice::from_ref(&self.local), self.bytes),
        })
    }

    fn is_used(&self) -> bool {
        self.stage != SlotStage::Free
    }

    fn is(&self, name: SlotName) -> bool {
        self.stage == SlotStage::Ended && self.generation == name.generation
    }
}

impl OpenMemory {
    /// The error of a request before the first connection.
    fn why_not_open(&self) -> Error {
        match &self.stage {
            Stage::Ended(error) => error.clone(),
            _ => Error::with(ErrorCode::BadForm, "the memory is not open yet"),
        }
    }
}

impl Progress for Engine {
    fn port(&mut self) -> &mut EnginePort {
        &mut self.port
    }

    #[inline]
    fn completed(&mut self, completion: &Completion) {
        if completion.id == GUARD {
            // A message, which no server sends.
            self.port.post_receive(GUARD, self.queue, self.guard);
            let text = "the memory server sent a message";
            if let Some(memory) = self.of_link(completion.link) {
                self.end_memory(memory, Error::with(ErrorCode::ProtocolViolation, text));
            }
            return;
        }
        let (number, generation, range) = decode_id(completion.id);
        let Some(slot) = self.slots.get_mut(number as usize) else {
            return;
        };
        // Else it is of a link that was closed, and the request has ended.
        let is_current = slot.generation & GENERATION_MASK == generation;
        let is_posted = slot.stage == SlotStage::Posted;
        if !is_current || !(is_posted || slot.list.is_some() && slot.stage == SlotStage::Queued) {
            return;
        }
        let memory = slot.memory;
        let is_counted = match &mut slot.list {
            Some(list) => match list.completed(range) {
                Some(is_signalled) => is_signalled,
                None => return,
            },
            None => true,
        };
        self.memories[memory as usize].posted -= usize::from(is_counted);
        if completion.status != CompletionStatus::Success {
            return self.failed_request(number, range, completion);
        }
        self.memories[memory as usize].is_proven = true;
        match &slot.list {
            Some(_) => self.end_list(number),
            None => {
                let value = if slot.action.has_value() { self.value(number) } else { 0 };
                self.end_request(number, Ok(value));
            }
        }
        self.settle_losing(memory);
    }

    #[inline]
    fn handle_links(&mut self, _landed: bool) -> bool {
        let events = self.port.connection_events();
        let any = !events.is_empty();
        events.into_iter().for_each(|event| self.link_event(event));
        any
    }

    #[inline]
    fn step(&mut self, _landed: usize, _linked: bool) -> bool {
        self.unsettled > 0 && self.advance()
    }

    fn post(&mut self) -> bool {
        let mut any = false;
        while let Some(first) = self.ready.front().copied() {
            let is_list = self.slots[first as usize].list.is_some();
            let posted = if is_list { self.post_list(first) } else { self.post_single() };
            let Some(Posted { accepted, stop }) = posted else {
                return any;
            };
            any |= accepted > 0;
            match stop {
                Some(Stop::Invalid(what)) => {
                    let Some(refused) = self.ready.pop_front() else {
                        return any;
                    };
                    let code = if what.starts_with("lacks") {
                        ErrorCode::FabricLacks
                    } else {
                        ErrorCode::BadForm
                    };
                    let error = Error::with(code, what);
                    match &mut self.slots[refused as usize].list {
                        Some(list) => {
                            list.give_up_tail(); // no completion would tell of them
                            list.failure = Some((error, 1));
                            self.end_list(refused);
                        }
                        None => self.end_request(refused, Err(error)),
                    }
                }
                Some(_) => return any, // posted again after the next poll
                None => {}
            }
        }
        any
    }
}

impl Engine {
    /// Posts requests at the front of the queue that are no lists.
    fn post_single(&mut self) -> Option<Posted> {
        let Self { port, memories, slots, ready, .. } = self;
        let work = |at: usize| {
            let number = *ready.get(at)?;
            let slot = &slots[number as usize];
            slot.list.is_none().then(|| slot.work(number, memories))?
        };
        let posted = port.post_batch::<BATCH>(ready.len().min(BATCH), work)?;
        for number in ready.drain(..posted.accepted) {
            let slot = &mut slots[number as usize];
            slot.stage = SlotStage::Posted;
            memories[slot.memory as usize].posted += 1;
        }
        self.counters.posted(posted.accepted);
        Some(posted)
    }

    /// Posts the next requests of the list at the front of the queue.
    fn post_list(&mut self, number: u32) -> Option<Posted> {
        let Self { port, memories, slots, ready, list_works, slices, has, .. } = self;
        let slot = &mut slots[number as usize];
        let memory = memories.get_mut(slot.memory as usize)?;
        let (Stage::Open(link, region), Some(list)) = (&memory.stage, &mut slot.list) else {
            return None;
        };
        list.next_works(slot.local, list_works, slices);
        // A completion tells of those before it too.
        let every = if has.message_order { has.outstanding_max as usize / 4 } else { 1 };
        let last = list_works.len().saturating_sub(1);
        let is_signalled = |at: usize| at == last || (at + 1).is_multiple_of(every.max(1));
        let (action, offset, generation) = (slot.action, slot.offset, slot.generation);
        let work = |number_in_batch: usize| {
            let one = list_works.get(number_in_batch)?;
            let at = RemoteSlice { region: *region, offset: offset + one.remote };
            Some(Work {
                id: encode_id(number, generation, one.first),
                link: *link,
                flags: WorkFlags {
                    signalled: is_signalled(number_in_batch),
                    ..WorkFlags::default()
                },
                operation: action.operation(at, &slices[one.slices.clone()], 0),
            })
        };
        let posted = port.post_batch::<BATCH>(list_works.len(), work)?;
        for (at, one) in list_works[..posted.accepted].iter().enumerate() {
            list.was_posted(one, is_signalled(at));
            memory.posted += usize::from(is_signalled(at));
        }
        self.counters.posted(posted.accepted);
        if list.is_posted() {
            slot.stage = SlotStage::Posted;
            ready.pop_front();
        }
        Some(posted)
    }

    /// Ends the request of a list if nothing of it is left.
    fn end_list(&mut self, number: u32) {
        let slot = &mut self.slots[number as usize];
        let Some(list) = slot.list.as_mut().filter(|list| list.is_idle()) else {
            return;
        };
        match list.failure.take() {
            Some((error, failed)) => {
                let more =
                    if failed > 1 { format!("; {failed} requests failed") } else { String::new() };
                let error = Error { detail: error.detail.clone() + &more, ..error };
                // It may wait to post its rest.
                let memory = &mut self.memories[slot.memory as usize];
                for queue in [&mut self.ready, &mut memory.held, &mut memory.repeated] {
                    queue.retain(|other| *other != number);
                }
                self.end_request(number, Err(error));
            }
            None if list.is_posted() && slot.stage == SlotStage::Posted => {
                let staged = list.staged.take();
                let outcome = match staged.as_ref().filter(|_| slot.action == Action::Read) {
                    Some(staged) => staged.scatter(&list.ranges),
                    None => Ok(()),
                };
                self.counters.copies += staged.as_ref().map_or(0, |_| list.ranges.count() as u64);
                self.staging.extend(staged.map(|staged| staged.memory));
                self.end_request(number, outcome.map(|()| 0));
            }
            None => {}
        }
    }

    /// Prepares to move a list to or from a buffer; returns its local memory too.
    fn list(
        &mut self,
        ranges: &RangeList,
        action: Action,
        (buffer, at): (&Buffer, u64),
    ) -> Result<(ListState, LocalSlice), Error> {
        let way = ranges.way(&self.has, &self.costs, STAGING_BYTES_MAX);
        let limits = |slices_max| (slices_max, self.transfer_max());
        match way {
            VectorIo::Doorbell => {
                Ok((ListState::new(ranges, limits(0), None), buffer.local(at, 0)))
            }
            VectorIo::Stage if ranges.bytes() > STAGING_BYTES_MAX => {
                let text =
                    format!("{} B; at most {STAGING_BYTES_MAX} B are staged", ranges.bytes());
                Err(Error::with(ErrorCode::TooLarge, text))
            }
            VectorIo::Stage => {
                let memory = self.staging_memory(ranges.bytes())?;
                let (packed, local) = (ranges.packed(), memory.local(0, 0));
                let staged = Staged::new(memory, (buffer, at), ranges);
                if action == Action::Write {
                    staged.gather(&packed)?;
                }
                Ok((ListState::new(&packed, (1, self.transfer_max()), Some(staged)), local))
            }
            _ => Ok((
                ListState::new(ranges, limits(self.has.slices_max.max(1)), None),
                buffer.local(at, 0),
            )),
        }
    }

    /// Takes staging memory of at least this length, the smallest that is free, or registers more.
    fn staging_memory(&mut self, bytes: u64) -> Result<Buffer, Error> {
        let fits = |memory: &&Buffer| memory.len() as u64 >= bytes;
        let smallest = self.staging.iter().filter(fits).min_by_key(|memory| memory.len());
        let place = smallest.map(|memory| memory.len());
        let found = self.staging.iter().position(|memory| Some(memory.len()) == place);
        match found {
            Some(found) => Ok(self.staging.swap_remove(found)),
            None => Buffer::new(&self.fabric, bytes.next_power_of_two().max(STAGING_BYTES_MIN)),
        }
    }
}
