//! Requests: checked, executed and completed by the thread that posts them.
//!
//! | who | may do | when |
//! | --- | --- | --- |
//! | this port's thread | reach a peer's region as its access says | between [`start_work`] and [`end_work`], after the key on the owner's board was the import's |
//! | the owner of that region | reuse or unmap it | after it took the key away and found this port not at work |
//!
//! [`start_work`]: ShmPort::start_work
//! [`end_work`]: ShmPort::end_work
//!
//! Copies are ordered by fences: whoever sees what a link does next (a message, an atomic, a flag
//! in a later WRITE) also sees what it did before. On x86-64 these fences cost nothing.

use super::link::{Link, LinkSlot, State};
use super::{ImportTable, RegionCache, ShmPort};
use crate::barrier;
use crate::bell::ring;
use crate::options::{CAPABILITIES, SEND_BYTES_MAX};
use crate::queue::Finished;
use crate::ring::{Kind, NoPlace};
use farside_base::{
    Access, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation, RegionId, RemoteSlice,
    Source, Work,
};
use farside_fabric::{Arena, OutOfBounds, Parts, Posted, Stop};
use std::sync::atomic::{Ordering, fence};

/// Why a request did not run. Small, so that an outcome fits into registers.
#[derive(Clone, Copy)]
enum Refusal {
    /// It was not taken, and never can be.
    Invalid(Invalid),
    /// It was not taken, for want of a place at the receiver.
    NotReady,
    /// It was not taken, for want of a place for its completion.
    Full,
    /// It was not taken, unless the port learns this region.
    UnknownRegion(RegionId),
    /// It was taken and ended like this.
    Failed(CompletionStatus),
}

/// What cannot be right about a request.
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
}

impl Invalid {
    /// The name that callers know.
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
        }
    }
}

impl From<Invalid> for Refusal {
    fn from(what: Invalid) -> Self {
        Self::Invalid(what)
    }
}

impl From<CompletionStatus> for Refusal {
    fn from(status: CompletionStatus) -> Self {
        Self::Failed(status)
    }
}

impl From<NoPlace> for Refusal {
    fn from(reason: NoPlace) -> Self {
        match reason {
            NoPlace::Full => Self::NotReady,
            // Its counts are impossible: nothing sensible will come from this peer.
            NoPlace::Violation => Self::Failed(CompletionStatus::PeerLost),
        }
    }
}

/// What to do with a request that was not taken.
enum Again {
    /// Stop at it.
    No(Stop),
    /// Try it again: the port has learned what it lacked.
    Yes,
}

impl From<Stop> for Again {
    fn from(stop: Stop) -> Self {
        Self::No(stop)
    }
}

/// What a request did: its kind, and the bytes it moved.
type Done = Result<(CompletionKind, u32), Refusal>;

impl ShmPort {
    /// Marks this port as being at work, so that an owner who takes a region away waits for it.
    /// The count to end it with.
    #[inline(always)]
    pub(super) fn start_work(&mut self) -> u64 {
        let count = self.at_work + 1;
        self.work_word.store(count, Ordering::Release);
        if self.careful {
            barrier::full();
        } else {
            barrier::light();
        }
        count + 1
    }

    /// Everything that was posted has left the peers' regions.
    #[inline(always)]
    pub(super) fn end_work(&mut self, count: u64) {
        self.work_word.store(count, Ordering::Release);
        self.at_work = count;
    }

    /// Runs requests until one is not taken.
    #[inline(always)]
    pub(super) fn post_all(&mut self, list: &[Work<'_>]) -> Posted {
        let mut accepted = 0;
        while let Some(work) = list.get(accepted) {
            let mut way = Way {
                links: &mut self.links,
                memory: Memory { imports: &self.imports, regions: &self.regions },
            };
            let room = !self.completions.is_full();
            match way.run_if(room, work) {
                Ok((kind, bytes)) if work.flags.signalled => {
                    let status = CompletionStatus::Success;
                    self.completions.push(&finished(work, kind, bytes, status));
                }
                Ok(_) => {}
                Err(refusal) => match self.post_refused(work, refusal) {
                    Ok(()) => {}
                    Err(Again::No(stop)) => {
                        let stop = Some(stop);
                        return Posted { accepted, stop };
                    }
                    Err(Again::Yes) => continue,
                },
            }
            accepted += 1;
        }
        Posted { accepted, stop: None }
    }

    /// What becomes of a request that did not run: completed with an error, not taken, or to be
    /// tried again.
    #[cold]
    fn post_refused(&mut self, work: &Work<'_>, refusal: Refusal) -> Result<(), Again> {
        match self.links.get(work.link.0 as usize) {
            Some(LinkSlot::Open(link)) if link.state == State::Up => {}
            Some(LinkSlot::Open(_) | LinkSlot::Gone { .. }) => return self.post_when_over(work),
            _ => return Err(Again::No(Stop::Invalid("link"))),
        }
        match refusal {
            Refusal::Invalid(what) => Err(Again::No(Stop::Invalid(what.name()))),
            Refusal::NotReady => Err(Again::No(Stop::ReceiverNotReady)),
            // A request that cannot be right is told so even when it could not be taken now.
            Refusal::Full => {
                self.check_alone(work)?;
                Err(Again::No(Stop::QueueFull))
            }
            Refusal::UnknownRegion(region) => {
                self.learn(region)?;
                Err(Again::Yes)
            }
            Refusal::Failed(status) => {
                self.fail(work.link);
                self.fail_request(work, status);
                Ok(())
            }
        }
    }

    /// A request on a link that is not usable any more is taken and ends with an error.
    fn post_when_over(&mut self, work: &Work<'_>) -> Result<(), Again> {
        self.check_alone(work)?;
        if self.completions.is_full() {
            return Err(Again::No(Stop::QueueFull));
        }
        let flushed = CompletionStatus::Flushed;
        let status = match self.links.get_mut(work.link.0 as usize) {
            Some(LinkSlot::Open(link)) if link.state == State::Down => {
                link.state = State::Failed;
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
        self.completions.push(&finished(work, kind, 0, status));
    }

    /// All that can be said against a request without its link.
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

#[inline(always)]
fn finished(
    work: &Work<'_>,
    kind: CompletionKind,
    bytes: u32,
    status: CompletionStatus,
) -> Finished {
    Finished { id: work.id, link: work.link, bytes, kind, status }
}

/// What a request runs on.
struct Way<'p> {
    links: &'p mut [LinkSlot],
    memory: Memory<'p>,
}

/// The regions of this process and of its peers.
#[derive(Clone, Copy)]
struct Memory<'p> {
    imports: &'p ImportTable,
    regions: &'p RegionCache,
}

impl Way<'_> {
    /// Single slices, the common case, go straight; everything else goes by the general way. A
    /// region is imported on one link and unmapped when that is over, so whoever has found it needs
    /// no look at the link.
    #[inline(always)]
    fn run_if(&mut self, room: bool, work: &Work<'_>) -> Done {
        let link = work.link;
        match work.operation {
            _ if !room => Err(Refusal::Full),
            Operation::Write { source: Source::Gather([slice]), to, immediate: None } => {
                self.memory.write_one(link, slice, to)
            }
            Operation::Read { into: [slice], from } => self.memory.read_one(link, slice, from),
            Operation::FetchAdd { at, add, ref into } => {
                self.memory.atomic(link, at, into, |arena, at| arena.fetch_add(at, add))
            }
            Operation::CompareSwap { at, expected, new, ref into } => {
                self.memory
                    .atomic(link, at, into, |arena, at| arena.compare_swap(at, expected, new))
            }
            _ => self.run_generally(work),
        }
    }

    #[inline(never)]
    fn run_generally(&mut self, work: &Work<'_>) -> Done {
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
            Operation::Swap { at, new, ref into } => {
                self.memory.atomic(link, at, into, |arena, at| arena.swap(at, new))
            }
            Operation::MaskedCompareSwap {
                at,
                expected,
                compare_mask,
                new,
                swap_mask,
                ref into,
            } => self.memory.atomic(link, at, into, |arena, at| {
                arena.masked_compare_swap(at, expected, compare_mask, new, swap_mask)
            }),
            Operation::MaskedFetchAdd { at, add, boundaries, ref into } => {
                self.memory
                    .atomic(link, at, into, |arena, at| arena.masked_fetch_add(at, add, boundaries))
            }
            Operation::FetchAdd { at, add, ref into } => {
                self.memory.atomic(link, at, into, |arena, at| arena.fetch_add(at, add))
            }
            Operation::CompareSwap { at, expected, new, ref into } => {
                self.memory
                    .atomic(link, at, into, |arena, at| arena.compare_swap(at, expected, new))
            }
        }
    }

    fn send(&mut self, link: LinkId, source: &Source<'_>, immediate: Option<u32>) -> Done {
        let bytes = self.memory.check_source(source, u64::from(SEND_BYTES_MAX))?;
        let link = usable(self.links, link)?;
        let place = link.producer.reserve(bytes)?;
        let into = link.producer.own();
        self.memory.gather(source, into, place.payload)?;
        let kind = match immediate {
            None => Kind::Send,
            Some(_) => Kind::SendImmediate,
        };
        let immediate = immediate.unwrap_or(0);
        link.producer.publish(&place, kind, bytes, immediate);
        ring(&link.bell);
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
        let target = self.memory.target_of(link, to, Access::WRITE, bytes)?;
        let link = usable(self.links, link)?;
        // Before the bytes, since nothing may have happened when there is no place.
        let place = link.producer.reserve(8)?;
        self.memory.gather(source, target, to.offset)?;
        let own = link.producer.own();
        let stored = own.store(place.payload, u64::from(bytes), Ordering::Relaxed);
        debug_assert!(stored.is_ok(), "rings compute places within their memory");
        link.producer.publish(&place, Kind::WriteImmediate, 8, immediate);
        ring(&link.bell);
        Ok((CompletionKind::Write, bytes))
    }
}

/// A link that may carry messages.
fn usable(links: &mut [LinkSlot], number: LinkId) -> Result<&mut Link, Refusal> {
    match links.get_mut(number.0 as usize) {
        Some(LinkSlot::Open(link)) if link.state == State::Up => Ok(link),
        _ => Err(Invalid::Link.into()),
    }
}

impl Memory<'_> {
    #[inline(always)]
    fn write_one(&self, link: LinkId, slice: &LocalSlice, to: RemoteSlice) -> Done {
        let local = self.local_region(slice)?;
        let target = self.target(link, to, Access::WRITE, slice)?;
        fence(Ordering::Release);
        let copied = target.copy_from(to.offset, local, slice.offset, slice.bytes as usize);
        match copied {
            Ok(()) => Ok((CompletionKind::Write, slice.bytes)),
            Err(OutOfBounds) => Err(whose_bounds(local, slice)),
        }
    }

    #[inline(always)]
    fn read_one(&self, link: LinkId, slice: &LocalSlice, from: RemoteSlice) -> Done {
        let local = self.local_region(slice)?;
        let target = self.target(link, from, Access::READ, slice)?;
        let copied = local.copy_from(slice.offset, target, from.offset, slice.bytes as usize);
        fence(Ordering::Acquire);
        match copied {
            Ok(()) => Ok((CompletionKind::Read, slice.bytes)),
            Err(OutOfBounds) => Err(whose_bounds(local, slice)),
        }
    }

    #[inline(always)]
    fn atomic(
        &self,
        link: LinkId,
        at: RemoteSlice,
        into: &LocalSlice,
        change: impl FnOnce(&Arena, u64) -> Result<u64, OutOfBounds>,
    ) -> Done {
        if into.bytes != 8 || !into.offset.is_multiple_of(8) {
            return Err(Invalid::AtomicSlice.into());
        }
        let local = self.local(into)?;
        let target = self.target(link, at, Access::ATOMIC, into)?;
        let Ok(before) = change(target, at.offset) else {
            return Err(why_no_atomic(target, at));
        };
        match local.store(into.offset, before, Ordering::Release) {
            Ok(()) => Ok((CompletionKind::Atomic, 8)),
            Err(OutOfBounds) => Err(Invalid::LocalBounds.into()),
        }
    }

    fn write(&self, link: LinkId, source: &Source<'_>, to: RemoteSlice) -> Done {
        let bytes = self.check_source(source, TRANSFER_BYTES_MAX)?;
        let target = self.target_of(link, to, Access::WRITE, bytes)?;
        fence(Ordering::Release);
        self.gather(source, target, to.offset)?;
        Ok((CompletionKind::Write, bytes))
    }

    fn read(&self, link: LinkId, into: &[LocalSlice], from: RemoteSlice) -> Done {
        let bytes = self.check_slices(into, TRANSFER_BYTES_MAX)?;
        let target = self.target_of(link, from, Access::READ, bytes)?;
        let mut at = from.offset;
        for slice in into {
            let arena = self.local(slice)?;
            let copied = arena.copy_from(slice.offset, target, at, slice.bytes as usize);
            copied.map_err(|OutOfBounds| CompletionStatus::RemoteAccess)?;
            at += u64::from(slice.bytes);
        }
        fence(Ordering::Acquire);
        Ok((CompletionKind::Read, bytes))
    }

    /// A peer's region, if the owner's terms and key allow `need` now, for the bytes of a slice
    /// that has its region but was not checked yet. Its own bounds are left to the access.
    #[inline(always)]
    fn target(
        &self,
        link: LinkId,
        at: RemoteSlice,
        need: Access,
        slice: &LocalSlice,
    ) -> Result<&Arena, Refusal> {
        let Some(import) = self.imports.find(link, at.region) else {
            return Err(self.no_target(slice, Invalid::RemoteRegion.into()));
        };
        match import.memory.allowed(need) {
            Some(arena) if import.key_now.load(Ordering::Acquire) == import.key => Ok(arena),
            _ => Err(self.no_target(slice, CompletionStatus::RemoteAccess.into())),
        }
    }

    /// What is wrong at this side is said first.
    #[cold]
    fn no_target(&self, slice: &LocalSlice, reason: Refusal) -> Refusal {
        self.local(slice).err().unwrap_or(reason)
    }

    /// As [`target`](Self::target), for `bytes` whose source was checked.
    fn target_of(
        &self,
        link: LinkId,
        at: RemoteSlice,
        need: Access,
        bytes: u32,
    ) -> Result<&Arena, Refusal> {
        let import = self.imports.find(link, at.region).ok_or(Invalid::RemoteRegion)?;
        let refused = CompletionStatus::RemoteAccess;
        let arena = import.memory.allowed(need).ok_or(refused)?;
        arena.at(at.offset, bytes as usize).map_err(|OutOfBounds| refused)?;
        if import.key_now.load(Ordering::Acquire) != import.key {
            return Err(refused.into());
        }
        Ok(arena)
    }

    /// The region of a local slice.
    #[inline(always)]
    fn local_region(&self, slice: &LocalSlice) -> Result<&Arena, Refusal> {
        let arena = self.regions.find(slice.region);
        arena.ok_or(Refusal::UnknownRegion(slice.region))
    }

    /// The region of a local slice, which lies within it.
    #[inline(always)]
    fn local(&self, slice: &LocalSlice) -> Result<&Arena, Refusal> {
        let arena = self.regions.find(slice.region);
        let arena = arena.ok_or(Refusal::UnknownRegion(slice.region))?;
        match arena.at(slice.offset, slice.bytes as usize) {
            Ok(_) => Ok(arena),
            Err(OutOfBounds) => Err(Invalid::LocalBounds.into()),
        }
    }

    /// Bytes of slices that are all right.
    #[inline]
    fn check_slices(&self, slices: &[LocalSlice], most: u64) -> Result<u32, Refusal> {
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

    /// Bytes of a source that is all right.
    #[inline]
    fn check_source(&self, source: &Source<'_>, most: u64) -> Result<u32, Refusal> {
        match *source {
            Source::Gather(slices) => self.check_slices(slices, most),
            Source::Inline(bytes) if bytes.len() > CAPABILITIES.inline_bytes_max as usize => {
                Err(Invalid::InlineTooLong.into())
            }
            Source::Inline(bytes) => Ok(bytes.len() as u32),
        }
    }

    /// Copies a checked source to where there is room for it.
    #[inline]
    fn gather(&self, source: &Source<'_>, to: &Arena, offset: u64) -> Result<(), Refusal> {
        let past_the_end = |OutOfBounds| Refusal::Failed(CompletionStatus::RemoteAccess);
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

/// A copy passed the end of its local region or else of the peer's.
#[cold]
fn whose_bounds(local: &Arena, slice: &LocalSlice) -> Refusal {
    match local.at(slice.offset, slice.bytes as usize) {
        Ok(_) => CompletionStatus::RemoteAccess.into(),
        Err(OutOfBounds) => Invalid::LocalBounds.into(),
    }
}

/// A remote word is out of bounds or else misaligned.
#[cold]
fn why_no_atomic(target: &Arena, at: RemoteSlice) -> Refusal {
    match target.at(at.offset, 8) {
        Ok(_) => CompletionStatus::RemoteAlignment.into(),
        Err(OutOfBounds) => CompletionStatus::RemoteAccess.into(),
    }
}

fn too_long(most: u64) -> Refusal {
    if most == TRANSFER_BYTES_MAX {
        Invalid::TransferTooLong.into()
    } else {
        Invalid::SendTooLong.into()
    }
}
