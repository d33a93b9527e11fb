//! Requests: checked, executed and completed by the thread that posts them.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | this port's thread | access peers' regions | from [`start_work`] to [`end_work`], if its key is valid |
//! | the owner of that region | reuse or unmap it | after it removed the key and found this port not at work |
//!
//! [`start_work`]: ShmPort::start_work
//! [`end_work`]: ShmPort::end_work
//!
//! The check compares the key on the owner's board with the import's.
//!
//! Copies are ordered by fences: a thread that sees what a link does next (a message, an atomic, a flag
//! in a later WRITE) also sees what it did before. On x86-64 these fences cost nothing, and there the
//! bytes of one WRITE are seen in rising order too, as copies into an [`Arena`] promise; slices are
//! gathered in the order of their list.

use super::import::Import;
use super::link::{LinkHealth, LinkSlot, ShmLink};
use super::{ImportTable, RegionCache, ShmPort};
use crate::barrier;
use crate::bell::ring;
use crate::options::{CAPABILITIES, SEND_BYTES_MAX};
use crate::queue::{Finished, Room};
use crate::ring::{MessageSpace, NoPlace, RingMessageKind, SLOT_BYTES};
use farside_base::{
    Access, CompletionKind, CompletionStatus, FlushScope, LinkId, LocalSlice, Operation, RegionId,
    RemoteSlice, Source, Work,
};
use farside_fabric::{Arena, OutOfBounds, Parts, Posted, RunNow, Stop};
use std::sync::atomic::{Ordering, fence};

/// Most inline bytes whose arrival the target awaits that are left where another processor finds them
/// sooner. The poster has to fetch those lines again if it touches them, so other bytes are not treated
/// like this.
const AWAITED_BYTES_MAX: usize = 128;

/// Why a request did not run. Small, so that an outcome fits into registers.
#[derive(Clone, Copy)]
enum RequestRefusal {
    /// It was not taken, and never can be.
    Invalid(Invalid),
    /// It was not taken, for lack of a slot at the receiver.
    NotReady,
    /// It was not taken, for lack of an entry for its completion.
    Full,
    /// It was not taken, unless the port learns this region.
    UnknownRegion(RegionId),
    /// It was taken and ended like this.
    Failed(CompletionStatus),
}

/// Why a request is invalid.
#[derive(Clone, Copy)]
enum Invalid {
    Link,
    LocalBounds,
    RemoteRegion,
    AtomicSlice,
    TooManySlices,
    InlineTooLong,
    TransferTooLong,
    SendTooLong,
    LacksFlush,
}

impl Invalid {
    /// Returns the name that callers know.
    fn name(self) -> &'static str {
        match self {
            Self::Link => "link",
            Self::LocalBounds => "local bounds",
            Self::RemoteRegion => "remote region",
            Self::AtomicSlice => "atomic slice",
            Self::TooManySlices => "too many slices",
            Self::InlineTooLong => "inline too long",
            Self::TransferTooLong => "transfer too long",
            Self::SendTooLong => "send too long",
            Self::LacksFlush => "lacks flush",
        }
    }
}

impl From<Invalid> for RequestRefusal {
    fn from(what: Invalid) -> Self {
        Self::Invalid(what)
    }
}

impl From<CompletionStatus> for RequestRefusal {
    fn from(status: CompletionStatus) -> Self {
        Self::Failed(status)
    }
}

impl From<NoPlace> for RequestRefusal {
    fn from(reason: NoPlace) -> Self {
        match reason {
            NoPlace::Full => Self::NotReady,
            // Its counts are impossible: the peer violates the protocol.
            NoPlace::Violation => Self::Failed(CompletionStatus::PeerLost),
        }
    }
}

/// Whether a request that was not taken is tried again.
enum Again {
    /// Stop at it.
    No(Stop),
    /// Retry it: the port has learned what it lacked.
    Yes,
}

impl From<Stop> for Again {
    fn from(stop: Stop) -> Self {
        Self::No(stop)
    }
}

/// The result of a request: its kind, and the bytes it moved.
type Done = Result<(CompletionKind, u32), RequestRefusal>;

impl ShmPort {
    /// Marks this port as being at work, so that an owner who deregisters a region waits for it.
    #[inline(always)]
    pub(super) fn start_work(&self) {
        // Only this thread writes the word, and only while it is at work is it odd.
        let count = self.work_word.load(Ordering::Relaxed) | 1;
        self.work_word.store(count, Ordering::Release);
        if self.careful {
            barrier::full();
        } else {
            barrier::light();
        }
    }

    /// Everything that was posted has left the peers' regions.
    #[inline(always)]
    pub(super) fn end_work(&self) {
        let count = self.work_word.load(Ordering::Relaxed).wrapping_add(1);
        self.work_word.store(count, Ordering::Release);
    }

    /// As `post`, if a link has ended or a region is gone.
    #[cold]
    #[inline(never)]
    pub(super) fn post_attending(&mut self, list: &[Work<'_>]) -> Posted {
        self.attend();
        self.post_at_work(list)
    }

    /// Runs requests, marked as being at work.
    #[inline(never)]
    pub(super) fn post_at_work(&mut self, list: &[Work<'_>]) -> Posted {
        self.start_work();
        let posted = match list {
            [only] if self.post_straight(only) => Posted { accepted: 1, stop: None },
            _ => self.post_all(list),
        };
        self.end_work();
        posted
    }

    /// Runs a valid one-sided request of a common kind without a completion.
    #[inline(always)]
    pub(super) fn run_at_work(&self, work: &Work<'_>) -> RunNow {
        self.start_work();
        let memory = RequestMemory { imports: &self.imports, regions: &self.regions };
        let done = memory.run_straight(work);
        self.end_work();
        match done {
            Some((_, bytes)) => RunNow::Done(bytes),
            None => self.why_not_run(&work.operation, work.link),
        }
    }

    /// An atomic may have had its effect before the peer closed the link.
    #[cold]
    fn why_not_run(&self, operation: &Operation<'_>, link: LinkId) -> RunNow {
        let parts = Parts::of(operation);
        let import = match parts.remote {
            Some(at) if parts.kind == CompletionKind::Atomic => self.imports.find(link, at.region),
            _ => None,
        };
        match import {
            Some(import) if !import.is_open() => RunNow::Unknown,
            _ => RunNow::NotRun,
        }
    }

    /// Runs a single SEND. On the fast path it reaches no peer's region, so no owner has to know of it.
    #[inline(never)]
    pub(super) fn post_send(&mut self, list: &[Work<'_>]) -> Posted {
        match list {
            [only] if self.post_line(only) => Posted { accepted: 1, stop: None },
            _ => self.post_send_generally(list),
        }
    }

    /// Runs a SEND of inline bytes that fill a slot, on the fast path. Returns whether it did.
    #[inline(always)]
    fn post_line(&mut self, work: &Work<'_>) -> bool {
        let Operation::Send { source: Source::Inline(bytes), immediate: None } = work.operation
        else {
            return false;
        };
        let Ok(bytes) = bytes.try_into() else { return false };
        let Some(room) = self.completions.room() else { return false };
        let Ok(link) = usable(&mut self.links, work.link) else { return false };
        if !link.producer.send_line(bytes) {
            return false;
        }
        link.heard = false;
        link.spoke = true;
        complete(work, room, CompletionKind::Send, SLOT_BYTES);
        ring(&link.bell);
        true
    }

    #[inline(never)]
    fn post_send_generally(&mut self, list: &[Work<'_>]) -> Posted {
        if let [only] = list
            && self.post_send_straight(only)
        {
            return Posted { accepted: 1, stop: None };
        }
        self.start_work();
        let posted = self.post_all(list);
        self.end_work();
        posted
    }

    /// Runs requests until one is not taken.
    #[inline(never)]
    pub(super) fn post_all(&mut self, list: &[Work<'_>]) -> Posted {
        for (accepted, work) in list.iter().enumerate() {
            if self.post_straight(work) {
                continue;
            }
            if let Some(stop) = self.post_generally(work) {
                return Posted { accepted, stop: Some(stop) };
            }
        }
        Posted { accepted: list.len(), stop: None }
    }

    /// Runs a valid request of a common kind on the fast path. Returns whether it did.
    #[inline(always)]
    pub(super) fn post_straight(&mut self, work: &Work<'_>) -> bool {
        if matches!(work.operation, Operation::Send { .. }) {
            return self.post_send_straight_apart(work);
        }
        let Some(room) = self.completions.room() else { return false };
        let memory = RequestMemory { imports: &self.imports, regions: &self.regions };
        let Some((kind, bytes)) = memory.run_straight(work) else { return false };
        complete(work, room, kind, bytes);
        true
    }

    /// Runs a valid SEND on the fast path. Returns whether it did.
    #[inline(always)]
    fn post_send_straight(&mut self, work: &Work<'_>) -> bool {
        let Operation::Send { ref source, immediate } = work.operation else { return false };
        let Some(room) = self.completions.room() else { return false };
        let memory = RequestMemory { imports: &self.imports, regions: &self.regions };
        let sent = memory.send_straight(&mut self.links, work.link, source, immediate);
        let Some(bytes) = sent else { return false };
        complete(work, room, CompletionKind::Send, bytes);
        true
    }

    /// Not inlined, since it needs more than one-sided requests do.
    #[inline(never)]
    fn post_send_straight_apart(&mut self, work: &Work<'_>) -> bool {
        self.post_send_straight(work)
    }

    /// Runs any request. Returns why it was not taken, if it was not.
    #[inline(never)]
    fn post_generally(&mut self, work: &Work<'_>) -> Option<Stop> {
        loop {
            let memory = RequestMemory { imports: &self.imports, regions: &self.regions };
            let mut way = RequestPath { links: &mut self.links, memory };
            let refusal = match self.completions.room().map(|room| (room, way.run(work))) {
                Some((room, Ok((kind, bytes)))) => {
                    complete(work, room, kind, bytes);
                    return None;
                }
                Some((_, Err(refusal))) => refusal,
                None => RequestRefusal::Full,
            };
            match self.post_refused(work, refusal) {
                Ok(()) => return None,
                Err(Again::No(stop)) => return Some(stop),
                Err(Again::Yes) => {}
            }
        }
    }

    /// Handles a request that did not run: completed with an error, not taken, or retried.
    #[cold]
    fn post_refused(&mut self, work: &Work<'_>, refusal: RequestRefusal) -> Result<(), Again> {
        match self.links.get(work.link.0 as usize) {
            Some(LinkSlot::Open(link)) if link.state == LinkHealth::Up => {}
            Some(LinkSlot::Open(_) | LinkSlot::Gone { .. }) => return self.post_when_over(work),
            _ => return Err(Again::No(Stop::Invalid("link"))),
        }
        match refusal {
            RequestRefusal::Invalid(what) => Err(Again::No(Stop::Invalid(what.name()))),
            RequestRefusal::NotReady => Err(Again::No(Stop::ReceiverNotReady)),
            // An invalid request is reported as such even if it could not be taken now.
            RequestRefusal::Full => {
                self.check_alone(work)?;
                Err(Again::No(Stop::QueueFull))
            }
            RequestRefusal::UnknownRegion(region) => {
                self.learn(region)?;
                Err(Again::Yes)
            }
            RequestRefusal::Failed(status) => {
                self.fail(work.link);
                self.fail_request(work, status);
                Ok(())
            }
        }
    }

    /// Handles a request on a link that is not usable any more: taken, and completed with an error.
    fn post_when_over(&mut self, work: &Work<'_>) -> Result<(), Again> {
        self.check_alone(work)?;
        if self.completions.is_full() {
            return Err(Again::No(Stop::QueueFull));
        }
        let flushed = CompletionStatus::Flushed;
        let status = match self.links.get_mut(work.link.0 as usize) {
            Some(LinkSlot::Open(link)) if link.state == LinkHealth::Down => {
                link.state = LinkHealth::Failed;
                CompletionStatus::PeerLost
            }
            Some(LinkSlot::Gone { status, .. }) => std::mem::replace(status, flushed),
            _ => flushed,
        };
        self.fail_request(work, status);
        Ok(())
    }

    fn fail_request(&mut self, work: &Work<'_>, status: CompletionStatus) {
        let kind = Parts::of(&work.operation).kind;
        let room = self.completions.room();
        debug_assert!(room.is_some(), "room for the completion was checked before");
        if let Some(room) = room {
            room.fill(&finished(work, kind, 0, status));
        }
    }

    /// Checks a request as far as possible without its link.
    fn check_alone(&mut self, work: &Work<'_>) -> Result<(), Stop> {
        let parts = Parts::of(&work.operation);
        parts.check(&CAPABILITIES)?;
        for slice in parts.local {
            if self.regions.find(slice.region).is_none() {
                self.learn(slice.region)?;
            }
            let arena = self.regions.find(slice.region);
            let arena = arena.ok_or(Stop::Invalid("local region"))?;
            arena
                .at(slice.offset, slice.bytes as usize)
                .map_err(|_| Stop::Invalid("local bounds"))?;
        }
        Ok(())
    }
}

/// Completes a successful request, if it is signaled.
#[inline(always)]
fn complete(work: &Work<'_>, room: Room<'_>, kind: CompletionKind, bytes: u32) {
    if work.flags.signalled {
        room.fill(&finished(work, kind, bytes, CompletionStatus::Success));
    }
}

#[inline(always)]
fn finished(
    work: &Work<'_>,
    kind: CompletionKind,
    bytes: u32,
    status: CompletionStatus,
) -> Finished {
    Finished { id: work.id, link: work.link, bytes, kind, status }
}

/// The parts of a port that a request runs on.
struct RequestPath<'p> {
    links: &'p mut [LinkSlot],
    memory: RequestMemory<'p>,
}

/// The regions of this process and of its peers.
#[derive(Clone, Copy)]
struct RequestMemory<'p> {
    imports: &'p ImportTable,
    regions: &'p RegionCache,
}

impl RequestPath<'_> {
    #[inline]
    fn run(&mut self, work: &Work<'_>) -> Done {
        let link = work.link;
        match work.operation {
            Operation::Send { ref source, immediate } => self.send(link, source, immediate),
            Operation::Write { ref source, to, immediate: None } => {
                self.memory.write(link, source, to)
            }
            Operation::Write { ref source, to, immediate: Some(immediate) } => {
                self.write_immediate(link, source, to, immediate)
            }
            Operation::Read { into, from } => self.memory.read(link, into, from),
            Operation::AtomicWrite { to, value } => self.memory.atomic_write(link, to, value),
            Operation::Flush { from, bytes, scope } => self.memory.flush(link, from, bytes, scope),
            _ => match self.memory.atomic_straight(link, &work.operation) {
                Some(done) => Ok(done),
                None => Err(self.memory.why_no_atomic(link, &work.operation)),
            },
        }
    }

    fn send(&mut self, link: LinkId, source: &Source<'_>, immediate: Option<u32>) -> Done {
        let bytes = self.memory.check_source(source, u64::from(SEND_BYTES_MAX))?;
        let link = usable(self.links, link)?;
        let place = link.producer.reserve(bytes)?;
        self.memory.gather(source, link.producer.own().arena(), place.payload)?;
        link.send_from(&place, bytes, immediate);
        Ok((CompletionKind::Send, bytes))
    }

    fn write_immediate(
        &mut self,
        link: LinkId,
        source: &Source<'_>,
        to: RemoteSlice,
        immediate: u32,
    ) -> Done {
        let bytes = self.memory.check_source(source, TRANSFER_BYTES_MAX)?;
        let target = self.memory.target_of(link, to, Access::WRITE, u64::from(bytes))?;
        let link = usable(self.links, link)?;
        // Before the bytes, since nothing may have happened if there is no slot.
        let place = link.producer.reserve(8)?;
        self.memory.gather(source, target, to.offset)?;
        let stored = link.producer.own().store(place.payload, u64::from(bytes), Ordering::Relaxed);
        debug_assert!(stored, "rings compute places within their memory");
        link.producer.publish(&place, RingMessageKind::WriteImmediate, 8, immediate);
        ring(&link.bell);
        Ok((CompletionKind::Write, bytes))
    }
}

impl ShmLink {
    /// Publishes a message whose bytes are in place.
    #[inline(always)]
    fn send_from(&mut self, place: &MessageSpace, bytes: u32, immediate: Option<u32>) {
        let (kind, immediate) = match immediate {
            None => (RingMessageKind::Send, 0),
            Some(immediate) => (RingMessageKind::SendImmediate, immediate),
        };
        self.producer.publish(place, kind, bytes, immediate);
        ring(&self.bell);
        self.producer.expect_more(place, bytes, std::mem::take(&mut self.heard));
        self.spoke = true;
    }
}

/// Returns a link that may carry messages.
#[inline(always)]
fn usable(links: &mut [LinkSlot], number: LinkId) -> Result<&mut ShmLink, RequestRefusal> {
    match links.get_mut(number.0 as usize) {
        Some(LinkSlot::Open(link)) if link.state == LinkHealth::Up => Ok(link),
        _ => Err(Invalid::Link.into()),
    }
}

/// The fast path, for valid requests of common kinds: `None` for any other, and then nothing has
/// happened. A region is imported on one link and unmapped when that ends, so finding it proves the
/// link open.
impl RequestMemory<'_> {
    #[inline(always)]
    fn run_straight(&self, work: &Work<'_>) -> Option<(CompletionKind, u32)> {
        let link = work.link;
        match work.operation {
            Operation::Write { ref source, to, immediate: None } => {
                self.write_straight(link, source, to, work.flags.awaited)
            }
            Operation::Read { into: [slice], from } => self.read_straight(link, slice, from),
            _ => self.atomic_straight(link, &work.operation),
        }
    }

    /// Runs a SEND on the fast path. Returns its bytes.
    #[inline(always)]
    fn send_straight(
        &self,
        links: &mut [LinkSlot],
        link: LinkId,
        source: &Source<'_>,
        immediate: Option<u32>,
    ) -> Option<u32> {
        let link = usable(links, link).ok()?;
        let most = SEND_BYTES_MAX as usize;
        let (place, bytes, copied) = match *source {
            Source::Gather([slice]) if slice.bytes as usize <= most => {
                let local = self.regions.find(slice.region)?;
                let place = link.producer.reserve(slice.bytes).ok()?;
                let (own, bytes) = (link.producer.own().arena(), slice.bytes as usize);
                (place, slice.bytes, own.copy_from(place.payload, local, slice.offset, bytes))
            }
            Source::Inline(bytes) if bytes.len() <= most => {
                let place = link.producer.reserve(bytes.len() as u32).ok()?;
                let own = link.producer.own().arena();
                (place, bytes.len() as u32, own.write(place.payload, bytes))
            }
            _ => return None,
        };
        copied.ok()?;
        link.send_from(&place, bytes, immediate);
        Some(bytes)
    }

    #[inline(always)]
    fn write_straight(
        &self,
        link: LinkId,
        source: &Source<'_>,
        to: RemoteSlice,
        awaited: bool,
    ) -> Option<(CompletionKind, u32)> {
        let target = self.target(link, to, Access::WRITE)?;
        let (bytes, written) = match *source {
            Source::Gather([slice]) => {
                let local = self.regions.find(slice.region)?;
                fence(Ordering::Release);
                let bytes = slice.bytes as usize;
                (slice.bytes, target.copy_from(to.offset, local, slice.offset, bytes))
            }
            Source::Inline(bytes) if bytes.len() <= CAPABILITIES.inline_bytes_max as usize => {
                fence(Ordering::Release);
                let written = target.write(to.offset, bytes);
                if awaited && bytes.len() <= AWAITED_BYTES_MAX {
                    target.expect_read_elsewhere(to.offset, bytes.len());
                }
                (bytes.len() as u32, written)
            }
            _ => return None,
        };
        written.ok().map(|()| (CompletionKind::Write, bytes))
    }

    #[inline(always)]
    fn read_straight(
        &self,
        link: LinkId,
        slice: &LocalSlice,
        from: RemoteSlice,
    ) -> Option<(CompletionKind, u32)> {
        let (import, target) = self.import(link, from, Access::READ)?;
        let local = self.regions.find(slice.region)?;
        let bytes = slice.bytes as usize;
        let copied = local.copy_from(slice.offset, target, from.offset, bytes);
        fence(Ordering::Acquire);
        (copied.is_ok() && import.is_open()).then_some((CompletionKind::Read, slice.bytes))
    }

    #[inline(always)]
    fn atomic_straight(
        &self,
        link: LinkId,
        operation: &Operation<'_>,
    ) -> Option<(CompletionKind, u32)> {
        match *operation {
            Operation::FetchAdd { at, add, ref into } => {
                self.change(link, at, into, |arena, at| arena.fetch_add(at, add))
            }
            Operation::CompareSwap { at, expected, new, ref into } => {
                self.change(link, at, into, |arena, at| arena.compare_swap(at, expected, new))
            }
            Operation::Swap { at, new, ref into } => {
                self.change(link, at, into, |arena, at| arena.swap(at, new))
            }
            Operation::MaskedCompareSwap {
                at,
                expected,
                compare_mask,
                new,
                swap_mask,
                ref into,
            } => self.change(link, at, into, |arena, at| {
                arena.masked_compare_swap(at, expected, compare_mask, new, swap_mask)
            }),
            Operation::MaskedFetchAdd { at, add, boundaries, ref into } => {
                self.change(link, at, into, |arena, at| arena.masked_fetch_add(at, add, boundaries))
            }
            _ => None,
        }
    }

    /// Changes a peer's word and keeps its former value.
    #[inline(always)]
    fn change(
        &self,
        link: LinkId,
        at: RemoteSlice,
        into: &LocalSlice,
        change: impl FnOnce(&Arena, u64) -> Result<u64, OutOfBounds>,
    ) -> Option<(CompletionKind, u32)> {
        if into.bytes != 8 {
            return None;
        }
        let local = self.regions.find(into.region)?.word(into.offset).ok()?;
        let (import, target) = self.import(link, at, Access::ATOMIC)?;
        let before = change(target, at.offset).ok()?;
        if !import.is_open() {
            return None;
        }
        local.store(before, Ordering::Release);
        Some((CompletionKind::Atomic, 8))
    }

    /// Returns a peer's region, if the owner's terms and key allow `need` now. Its bounds are left to the
    /// access.
    #[inline(always)]
    fn target(&self, link: LinkId, at: RemoteSlice, need: Access) -> Option<&Arena> {
        self.import(link, at, need).map(|(_, arena)| arena)
    }

    /// The same for requests that read it. They must check after the access whether the import is still
    /// open: the owner may have closed the link and freed its memory meanwhile, which then reads as
    /// zero.
    #[inline(always)]
    fn import(&self, link: LinkId, at: RemoteSlice, need: Access) -> Option<(&Import, &Arena)> {
        let import = self.imports.find(link, at.region)?;
        let arena = import.memory.allowed(need)?;
        import.is_open().then_some((import, arena))
    }
}

/// The general path, which checks in the order in which faults are reported.
impl RequestMemory<'_> {
    /// Returns why an atomic did not take the fast path.
    #[cold]
    fn why_no_atomic(&self, link: LinkId, operation: &Operation<'_>) -> RequestRefusal {
        let parts = Parts::of(operation);
        let ([into], Some(at)) = (parts.local, parts.remote) else {
            return Invalid::AtomicSlice.into();
        };
        if into.bytes != 8 || !into.offset.is_multiple_of(8) {
            return Invalid::AtomicSlice.into();
        }
        let reason = self.local(into).and_then(|_| self.target_of(link, at, Access::ATOMIC, 8));
        match reason {
            Err(refusal) => refusal,
            Ok(_) => CompletionStatus::RemoteAlignment.into(),
        }
    }

    fn write(&self, link: LinkId, source: &Source<'_>, to: RemoteSlice) -> Done {
        let bytes = self.check_source(source, TRANSFER_BYTES_MAX)?;
        let target = self.target_of(link, to, Access::WRITE, u64::from(bytes))?;
        fence(Ordering::Release);
        self.gather(source, target, to.offset)?;
        Ok((CompletionKind::Write, bytes))
    }

    fn read(&self, link: LinkId, into: &[LocalSlice], from: RemoteSlice) -> Done {
        let bytes = self.check_slices(into, TRANSFER_BYTES_MAX)?;
        let (import, target) = self.import_of(link, from, Access::READ, u64::from(bytes))?;
        let mut at = from.offset;
        for slice in into {
            let arena = self.local(slice)?;
            let copied = arena.copy_from(slice.offset, target, at, slice.bytes as usize);
            copied.map_err(|OutOfBounds| CompletionStatus::RemoteAccess)?;
            at += u64::from(slice.bytes);
        }
        fence(Ordering::Acquire);
        if !import.is_open() {
            return Err(import.refusal().into());
        }
        Ok((CompletionKind::Read, bytes))
    }

    fn atomic_write(&self, link: LinkId, to: RemoteSlice, value: u64) -> Done {
        let target = self.target_of(link, to, Access::WRITE, 8)?;
        let word = target.word(to.offset).map_err(|_| CompletionStatus::RemoteAlignment)?;
        word.store(value, Ordering::Release);
        Ok((CompletionKind::AtomicWrite, 0))
    }

    /// Stores are visible to all threads already, so a FLUSH only completes.
    fn flush(&self, link: LinkId, from: RemoteSlice, bytes: u64, scope: FlushScope) -> Done {
        if scope != FlushScope::Visible {
            return Err(Invalid::LacksFlush.into());
        }
        self.target_of(link, from, Access::FLUSH, bytes)?;
        fence(Ordering::SeqCst);
        Ok((CompletionKind::Flush, 0))
    }

    /// Returns a peer's region, if the owner's terms and key allow `need` now, for `bytes` whose source
    /// was checked.
    fn target_of(
        &self,
        link: LinkId,
        at: RemoteSlice,
        need: Access,
        bytes: u64,
    ) -> Result<&Arena, RequestRefusal> {
        self.import_of(link, at, need, bytes).map(|(_, arena)| arena)
    }

    /// The same for requests that read it, as [`import`](Self::import).
    #[inline(always)]
    fn import_of(
        &self,
        link: LinkId,
        at: RemoteSlice,
        need: Access,
        bytes: u64,
    ) -> Result<(&Import, &Arena), RequestRefusal> {
        let import = self.imports.find(link, at.region).ok_or(Invalid::RemoteRegion)?;
        let refused = CompletionStatus::RemoteAccess;
        let arena = import.memory.allowed(need).ok_or(refused)?;
        let bytes = usize::try_from(bytes).map_err(|_| refused)?;
        arena.at(at.offset, bytes).map_err(|OutOfBounds| refused)?;
        if !import.is_open() {
            return Err(import.refusal().into());
        }
        Ok((import, arena))
    }

    /// Returns the region of a local slice, which is within it.
    #[inline(always)]
    fn local(&self, slice: &LocalSlice) -> Result<&Arena, RequestRefusal> {
        let arena = self.regions.find(slice.region);
        let arena = arena.ok_or(RequestRefusal::UnknownRegion(slice.region))?;
        match arena.at(slice.offset, slice.bytes as usize) {
            Ok(_) => Ok(arena),
            Err(OutOfBounds) => Err(Invalid::LocalBounds.into()),
        }
    }

    /// Returns the bytes of valid slices.
    #[inline]
    fn check_slices(&self, slices: &[LocalSlice], most: u64) -> Result<u32, RequestRefusal> {
        if slices.len() > CAPABILITIES.slices_max as usize {
            return Err(Invalid::TooManySlices.into());
        }
        let mut bytes = 0;
        for slice in slices {
            bytes += u64::from(slice.bytes);
        }
        if bytes > most {
            return Err(too_long(most));
        }
        for slice in slices {
            self.local(slice)?;
        }
        Ok(bytes as u32)
    }

    /// Returns the bytes of a valid source.
    #[inline]
    fn check_source(&self, source: &Source<'_>, most: u64) -> Result<u32, RequestRefusal> {
        match *source {
            Source::Gather(slices) => self.check_slices(slices, most),
            Source::Inline(bytes) if bytes.len() > CAPABILITIES.inline_bytes_max as usize => {
                Err(Invalid::InlineTooLong.into())
            }
            Source::Inline(bytes) => Ok(bytes.len() as u32),
        }
    }

    /// Copies a checked source to a destination with room for it.
    #[inline]
    fn gather(&self, source: &Source<'_>, to: &Arena, offset: u64) -> Result<(), RequestRefusal> {
        let past_the_end = |OutOfBounds| RequestRefusal::Failed(CompletionStatus::RemoteAccess);
        let mut at = offset;
        match *source {
            Source::Inline(bytes) => to.write(at, bytes).map_err(past_the_end),
            Source::Gather(slices) => {
                for slice in slices {
                    let from = self.local(slice)?;
                    let copied = to.copy_from(at, from, slice.offset, slice.bytes as usize);
                    copied.map_err(past_the_end)?;
                    at += u64::from(slice.bytes);
                }
                Ok(())
            }
        }
    }
}

const TRANSFER_BYTES_MAX: u64 = CAPABILITIES.transfer_bytes_max;
// A single slice is never too long, and a completion can count all bytes.
const _: () = assert!(TRANSFER_BYTES_MAX == u32::MAX as u64);
const _: () = assert!(CAPABILITIES.inline_bytes_max <= SEND_BYTES_MAX);

fn too_long(most: u64) -> RequestRefusal {
    if most == TRANSFER_BYTES_MAX {
        Invalid::TransferTooLong.into()
    } else {
        Invalid::SendTooLong.into()
    }
}
