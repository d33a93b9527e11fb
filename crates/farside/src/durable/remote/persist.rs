//! Carries a plan out on a port.

use super::plan::{RemotePlan, RemoteRole, RemoteWay};
use super::wire::{self, StoreStatus};
use crate::canary;
use crate::{Error, ErrorCode};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, FlushScope, LinkId, LocalSlice, Operation,
    Receive, ReceiveQueueId, RemoteRegionId, RemoteSlice, Source, Work, WorkFlags, WorkId,
};
use farside_fabric::{Port, Region, Stop};
use std::collections::VecDeque;

/// Bytes of the buffer before what is sent: the bytes of a READ, and of an answer.
const STAGING: u64 = 128;
/// Offset of the answer in the buffer.
const ANSWER_AT: u64 = 64;
/// Work ids that a [`RemotePersist`] uses, from its first.
const IDS: u64 = 3;

/// Bytes, and where they go.
#[derive(Clone, Copy, Debug)]
pub struct PersistPiece<'a> {
    /// The bytes.
    pub bytes: &'a [u8],
    /// The first byte at the target. A program at the target takes the offset alone.
    pub to: RemoteSlice,
}

/// A word of 8 bytes that makes pieces valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct CommitWord {
    /// The word, at a multiple of 8.
    pub to: RemoteSlice,
    /// The value, in the byte order of the target.
    pub value: u64,
}

/// What a persistent write took.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct PersistCost {
    /// Work requests of this side, receives not included.
    pub work_requests: u32,
    /// Doorbells: calls of `post` that took a request.
    pub doorbells: u32,
    /// Waits for the target, one after the other.
    pub round_trips: u32,
}

/// Settings of a [`RemotePersist`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemotePersistOptions {
    /// Its work ids: this one and the next two.
    pub first_id: u64,
    /// Receive queue of the link, for answers of a program at the target; `None` without one.
    pub receives: Option<ReceiveQueueId>,
}

/// A work request to post.
#[derive(Clone, Copy, Debug)]
enum PersistRequest {
    Write { from: LocalSlice, to: RemoteSlice },
    Word { to: RemoteSlice, value: u64 },
    Flush { from: RemoteSlice, bytes: u64 },
    Read { from: RemoteSlice },
    Send { from: LocalSlice },
}

/// The progress of a write.
#[derive(Clone, PartialEq, Eq, Debug)]
enum PersistState {
    Idle,
    Running,
    Kept,
    Failed(Error),
}

/// Makes pieces persistent at a target, one write at a time, over one link.
///
/// *Guarantees*: once [`take_outcome`](Self::take_outcome) returns a cost, all pieces are in the target's persistence
/// domain, if the facts of the plan are true; a commit word was never there before all of its pieces. After an error,
/// any part of the write may be there, and the link is of no further use. *Blocks*: no call does. *Cost*: one copy into
/// the registered buffer (two for a message), some allocations, and the counts of [`PersistCost`].
///
/// *Source*: 002 §4.3 (H9); IBTA annex A19.
///
/// # Example
/// ```no_run
/// use farside::durable::remote::{PersistPiece, RemotePersist, RemotePersistOptions, RemotePlan};
/// use farside::fabrics::{Completion, LinkId, Port, Region, RemoteSlice};
///
/// fn persist(
///     port: &mut dyn Port, link: LinkId, buffer: Region, plan: &RemotePlan, bytes: &[u8], to: RemoteSlice,
/// ) -> Result<(), farside::Error> {
///     let options = RemotePersistOptions { first_id: 1, receives: None };
///     let mut persist = RemotePersist::new(link, buffer, options);
///     persist.start(port, plan, &[PersistPiece { bytes, to }], None)?;
///     loop {
///         let mut done = [Completion::BLANK; 4];
///         let count = port.poll(&mut done);
///         for completion in &done[..count] {
///             persist.on_completion(port, completion);
///         }
///         persist.post(port);
///         if let Some(outcome) = persist.take_outcome() {
///             println!("{:?}", outcome?);
///             return Ok(());
///         }
///     }
/// }
/// ```
#[derive(Debug)]
pub struct RemotePersist {
    link: LinkId,
    buffer: Region,
    options: RemotePersistOptions,
    number: u64,
    /// The requests of the step that runs, and of the following ones.
    steps: VecDeque<Vec<PersistRequest>>,
    /// Requests of the first step that the port has taken.
    posted: usize,
    cost: PersistCost,
    state: PersistState,
}

impl RemotePersist {
    /// Creates one for a link, with a registered buffer that it alone uses.
    pub const fn new(link: LinkId, buffer: Region, options: RemotePersistOptions) -> Self {
        Self {
            link,
            buffer,
            options,
            number: 0,
            steps: VecDeque::new(),
            posted: 0,
            cost: PersistCost { work_requests: 0, doorbells: 0, round_trips: 0 },
            state: PersistState::Idle,
        }
    }

    /// Returns the bytes of buffer that a write of `bytes` bytes after padding, in `pieces` pieces, needs.
    pub const fn buffer_bytes(bytes: u64, pieces: u64) -> u64 {
        STAGING + bytes + 64 + 16 * (pieces + 2)
    }

    /// Begins a write by a plan. Pieces have as many bytes in all as the plan's write; those that are padded follow each
    /// other. A commit word needs a plan of the role [`CommitWord`](RemoteRole::CommitWord).
    ///
    /// # Errors
    /// Nothing was posted then: `Busy` until the outcome of the write before was taken; the error of a write that failed;
    /// `BadConfiguration` if pieces or word do not fit the plan, the plan is that of a lock, there are more than 63 parts
    /// with the word or no receives for answers, or the buffer is too short.
    pub fn start(
        &mut self,
        port: &mut dyn Port,
        plan: &RemotePlan,
        pieces: &[PersistPiece<'_>],
        word: Option<CommitWord>,
    ) -> Result<(), Error> {
        match &self.state {
            PersistState::Idle => {}
            PersistState::Failed(error) => return Err(error.clone()),
            PersistState::Running | PersistState::Kept => return Err(ErrorCode::Busy.into()),
        }
        if plan.way == RemoteWay::Volatile {
            let text = "the plan is that of a lock, which needs no persistence: use atomics on memory that is not persistent";
            return Err(Error::with(ErrorCode::BadConfiguration, text.to_owned()));
        }
        check(plan, pieces, word)?;
        self.steps = match plan.way {
            RemoteWay::Program => self.message(port, plan, pieces, word)?,
            RemoteWay::Flush | RemoteWay::Read | RemoteWay::Volatile => {
                self.one_sided(plan, pieces, word)?
            }
        };
        (self.posted, self.cost) = (0, PersistCost::default());
        self.state = PersistState::Running;
        self.post(port);
        Ok(())
    }

    /// Posts what the port did not take before. To be called after polls while a write runs.
    pub fn post(&mut self, port: &mut dyn Port) {
        let Some(step) = self.steps.front().filter(|_| self.state == PersistState::Running) else {
            return;
        };
        let rest = step.get(self.posted..).unwrap_or_default();
        if rest.is_empty() {
            return;
        }
        let landing = [LocalSlice { region: self.buffer.id, offset: 0, bytes: 8 }];
        let sources: Vec<_> = rest.iter().map(|request| request.source()).collect();
        let mut works = Vec::with_capacity(rest.len());
        for (at, (request, source)) in rest.iter().zip(&sources).enumerate() {
            let is_last = at + 1 == rest.len();
            works.push(Work {
                id: WorkId(self.options.first_id + u64::from(is_last)),
                link: self.link,
                flags: WorkFlags { signalled: is_last, ..WorkFlags::default() },
                operation: request.operation(source, &landing),
            });
        }
        let posted = port.post(&works);
        self.posted += posted.accepted;
        self.cost.work_requests += u32::try_from(posted.accepted).unwrap_or(u32::MAX);
        self.cost.doorbells += u32::from(posted.accepted > 0);
        if let Some(Stop::Invalid(what)) = posted.stop {
            let text = format!("persistent write: the fabric refuses a request: {what}");
            self.fail(Error::with(ErrorCode::FabricLacks, text));
        }
    }

    /// Handles a completion of the port. Returns whether it was of this write.
    pub fn on_completion(&mut self, port: &mut dyn Port, completion: &Completion) -> bool {
        let Some(id) = completion.id.0.checked_sub(self.options.first_id).filter(|id| *id < IDS)
        else {
            return false;
        };
        if completion.link != self.link || self.state != PersistState::Running {
            return completion.link == self.link;
        }
        if completion.status != CompletionStatus::Success {
            self.fail(failure(completion, port.trouble(self.link)));
            return true;
        }
        let is_end = match (id, completion.kind) {
            // A message ends with its answer, which may be polled before the completion of its SEND: that one must not
            // end a step of the next write.
            (1, CompletionKind::Send) => canary::mutant!(canary::nodes(), RemoteSendEndsStep),
            (1, _) => true,
            (2, CompletionKind::Receive) => self.answered(completion),
            _ => false,
        };
        if is_end && self.state == PersistState::Running {
            self.end_step();
        }
        self.post(port);
        true
    }

    /// Returns the outcome of a completed write. A cost is returned once, and the next write may begin; an error is
    /// returned by every later call.
    ///
    /// # Errors
    /// `FabricLacks` if the fabric refuses a request; `AccessDenied` outside of the target's memory;
    /// `PeerLost` if the link is closed; `System` if the port failed (`CompletionStatus::Broken`); `DeviceFailed` if the target's memory failed; `ProtocolViolation` by its program.
    pub fn take_outcome(&mut self) -> Option<Result<PersistCost, Error>> {
        match &self.state {
            PersistState::Idle | PersistState::Running => None,
            PersistState::Kept => {
                self.state = PersistState::Idle;
                Some(Ok(self.cost))
            }
            PersistState::Failed(error) => Some(Err(error.clone())),
        }
    }

    fn end_step(&mut self) {
        self.steps.pop_front();
        self.posted = 0;
        self.cost.round_trips += 1;
        if self.steps.is_empty() {
            self.state = PersistState::Kept;
        }
    }

    fn fail(&mut self, error: Error) {
        self.steps.clear();
        self.state = PersistState::Failed(error);
    }

    /// Handles an answer of the target's program. Returns whether everything is kept.
    fn answered(&mut self, completion: &Completion) -> bool {
        let mut bytes = vec![0; (completion.bytes as usize).min(wire::ANSWER + 1)];
        let read = self.buffer.memory().read(ANSWER_AT, &mut bytes);
        let answer = read.ok().and_then(|()| wire::decode_answer(&bytes));
        let error = match answer {
            Some((number, StoreStatus::Kept)) if number == self.number => return true,
            Some((number, StoreStatus::Refused)) if number == self.number => {
                Error::with(ErrorCode::AccessDenied, "the target's program refuses the bytes")
            }
            Some((number, StoreStatus::Failed)) if number == self.number => {
                Error::with(ErrorCode::DeviceFailed, "persistent memory of the target")
            }
            _ => Error::with(ErrorCode::ProtocolViolation, "the answer to a persistent write"),
        };
        self.fail(error);
        false
    }

    /// Copies bytes, and zeros up to `length`, into the buffer. Returns the slice.
    fn stage(&self, at: u64, bytes: &[u8], length: u64) -> Result<LocalSlice, Error> {
        let too_long = || {
            let text = format!(
                "persistent write: {length} B at {at} of a buffer of {} B",
                self.buffer.token.bytes
            );
            Error::with(ErrorCode::BadConfiguration, text)
        };
        let slice_bytes = u32::try_from(length).map_err(|_| too_long())?;
        let memory = self.buffer.memory();
        let padding = vec![0; (slice_bytes as usize).saturating_sub(bytes.len())];
        let written = memory.write(at, bytes);
        let end = at.saturating_add(bytes.len() as u64);
        written.and_then(|()| memory.write(end, &padding)).map_err(|_| too_long())?;
        Ok(LocalSlice { region: self.buffer.id, offset: at, bytes: slice_bytes })
    }

    /// Returns the steps of a write by WRITEs.
    fn one_sided(
        &self,
        plan: &RemotePlan,
        pieces: &[PersistPiece<'_>],
        word: Option<CommitWord>,
    ) -> Result<VecDeque<Vec<PersistRequest>>, Error> {
        let mut writes = Vec::new();
        let mut at = STAGING;
        for (number, piece) in pieces.iter().enumerate() {
            let is_last = number + 1 == pieces.len();
            let padding = if is_last { plan.padded_bytes - plan.write.bytes } else { 0 };
            let length = piece.bytes.len() as u64 + padding;
            writes.push(PersistRequest::Write {
                from: self.stage(at, piece.bytes, length)?,
                to: piece.to,
            });
            at += length;
        }
        let mut steps = VecDeque::new();
        let confirmed = |writes: Vec<_>, steps: &mut VecDeque<Vec<PersistRequest>>| {
            let confirms = confirmations(plan.way, &writes);
            if plan.is_one_doorbell {
                steps.push_back([writes, confirms].concat());
            } else {
                steps.push_back(writes);
                steps.push_back(confirms);
            }
        };
        confirmed(writes, &mut steps);
        if let Some(word) = word {
            let value = word.value.to_ne_bytes();
            let request = if plan.has_atomic_write {
                PersistRequest::Word { to: word.to, value: word.value }
            } else {
                let from = self.stage(at.next_multiple_of(8), &value, 8)?;
                PersistRequest::Write { from, to: word.to }
            };
            confirmed(vec![request], &mut steps);
        }
        steps.retain(|step| !step.is_empty());
        if plan.is_word_behind() {
            // ATOMIC WRITE begins after all requests before it have their effect.
            steps = VecDeque::from([steps.into_iter().flatten().collect()]);
        }
        Ok(steps)
    }

    /// Encodes the message of a write by the target's program, and posts the receive of its answer.
    fn message(
        &mut self,
        port: &mut dyn Port,
        plan: &RemotePlan,
        pieces: &[PersistPiece<'_>],
        word: Option<CommitWord>,
    ) -> Result<VecDeque<Vec<PersistRequest>>, Error> {
        let bad = |text: &str| Error::with(ErrorCode::BadConfiguration, text);
        let queue = self.options.receives;
        let queue = queue.ok_or_else(|| bad("persistent write: a receive queue for answers"))?;
        let padding = usize::try_from(plan.padded_bytes - plan.write.bytes).unwrap_or_default();
        let last = pieces.last().map_or_else(Vec::new, |piece| {
            let mut bytes = piece.bytes.to_vec();
            bytes.resize(bytes.len() + padding, 0);
            bytes
        });
        let value = word.map(|word| word.value.to_ne_bytes());
        let mut parts: Vec<_> = pieces.iter().map(|piece| (piece.to.offset, piece.bytes)).collect();
        if let Some(part) = parts.last_mut() {
            part.1 = &last;
        }
        if let (Some(word), Some(value)) = (word, &value) {
            parts.push((word.to.offset, value));
        }
        self.number += 1;
        let message = wire::encode(self.number, plan.stores, word.is_some(), &parts);
        let message = message.ok_or_else(|| bad("persistent write: at most 63 pieces"))?;
        let from = self.stage(STAGING, &message, message.len() as u64)?;
        let into = LocalSlice { region: self.buffer.id, offset: ANSWER_AT, bytes: 64 };
        let receive = Receive { id: WorkId(self.options.first_id + 2), queue, into };
        if let Some(stop) = port.post_receives(&[receive]).stop {
            let text = format!("persistent write: no receive for the answer: {stop:?}");
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        Ok(VecDeque::from([vec![PersistRequest::Send { from }]]))
    }
}

/// Checks that pieces and word are what was planned.
fn check(
    plan: &RemotePlan,
    pieces: &[PersistPiece<'_>],
    word: Option<CommitWord>,
) -> Result<(), Error> {
    let bad = |text: &str| Err(Error::with(ErrorCode::BadConfiguration, text));
    let bytes: u64 = pieces.iter().map(|piece| piece.bytes.len() as u64).sum();
    let (Some(first), true) = (pieces.first(), bytes == plan.write.bytes) else {
        return bad("persistent write: pieces with as many bytes as the plan");
    };
    if word.is_some() != (plan.write.role == RemoteRole::CommitWord) {
        return bad("persistent write: a commit word, if and only if the plan has one");
    }
    if word.is_some_and(|word| !word.to.offset.is_multiple_of(8)) {
        return bad("persistent write: a commit word at a multiple of 8");
    }
    let mut next = first.to;
    let is_contiguous = pieces.iter().all(|piece| {
        let is_next = piece.to == next;
        next.offset = next.offset.saturating_add(piece.bytes.len() as u64);
        is_next
    });
    if first.to.offset != plan.write.offset {
        return bad("persistent write: pieces from the offset of the plan on");
    }
    if plan.padded_bytes > bytes && !is_contiguous {
        return bad("persistent write: padded pieces that follow each other");
    }
    Ok(())
}

/// Returns the requests that confirm WRITEs: one for each region.
fn confirmations(way: RemoteWay, writes: &[PersistRequest]) -> Vec<PersistRequest> {
    let mut ranges: Vec<(RemoteRegionId, u64, u64)> = Vec::new();
    let mut is_word = false;
    for request in writes {
        let (to, bytes) = match request {
            PersistRequest::Write { from, to } => (to, u64::from(from.bytes)),
            PersistRequest::Word { to, .. } => (to, 8),
            _ => continue,
        };
        is_word |= matches!(request, PersistRequest::Word { .. });
        let end = to.offset.saturating_add(bytes);
        match ranges.iter_mut().find(|(region, ..)| *region == to.region) {
            Some((_, from, upto)) => (*from, *upto) = ((*from).min(to.offset), (*upto).max(end)),
            None => ranges.push((to.region, to.offset, end)),
        }
    }
    let leaves_out = match way {
        RemoteWay::Flush if is_word => canary::mutant!(canary::nodes(), RemoteWordNotFlushed),
        RemoteWay::Flush => canary::mutant!(canary::nodes(), RemoteNotFlushed),
        RemoteWay::Read => canary::mutant!(canary::nodes(), RemoteNotRead),
        RemoteWay::Program | RemoteWay::Volatile => true,
    };
    if leaves_out {
        return Vec::new();
    }
    let request = |(region, from, upto): (RemoteRegionId, u64, u64)| {
        let at = RemoteSlice { region, offset: from };
        match way {
            RemoteWay::Flush => PersistRequest::Flush { from: at, bytes: upto - from },
            _ => PersistRequest::Read { from: RemoteSlice { offset: from / 8 * 8, ..at } },
        }
    };
    ranges.into_iter().map(request).collect()
}

impl PersistRequest {
    /// The slices of its bytes.
    const fn source(&self) -> Option<[LocalSlice; 1]> {
        match self {
            Self::Write { from, .. } | Self::Send { from } => Some([*from]),
            Self::Word { .. } | Self::Flush { .. } | Self::Read { .. } => None,
        }
    }

    fn operation<'a>(
        &self,
        source: &'a Option<[LocalSlice; 1]>,
        landing: &'a [LocalSlice],
    ) -> Operation<'a> {
        let source = Source::Gather(source.as_ref().map_or(&[], |slices| slices.as_slice()));
        match *self {
            Self::Write { to, .. } => Operation::Write { source, to, immediate: None },
            Self::Send { .. } => Operation::Send { source, immediate: None },
            Self::Word { to, value } => Operation::AtomicWrite { to, value },
            Self::Flush { from, bytes } => {
                Operation::Flush { from, bytes, scope: FlushScope::Persistent }
            }
            Self::Read { from } => Operation::Read { into: landing, from },
        }
    }
}

/// The error of a request that failed.
fn failure(completion: &Completion, trouble: Option<String>) -> Error {
    let code = match completion.status {
        CompletionStatus::RemoteAccess | CompletionStatus::RemoteAlignment => {
            ErrorCode::AccessDenied
        }
        CompletionStatus::Broken => ErrorCode::System,
        _ => ErrorCode::PeerLost,
    };
    let text = format!("persistent write: {:?} {}", completion.status, trouble.unwrap_or_default());
    Error::with(code, text)
}
