//! The data side of the in-process fabric: one request from check to completion.

use super::state::{LinkState, MemLink, MemRegion, MemState, PortNumber, PortState};
use crate::{Parts, Stop};
use farside_base::{
    Capabilities, Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Operation,
    Receive, RegionToken, RemoteSlice, Work,
};
use std::sync::atomic::{Ordering, fence};

/// How an accepted request ended: bytes moved, or why not.
type Outcome = Result<u32, CompletionStatus>;

/// The link of a request, with both ends.
struct LinkEnds<'s> {
    here: &'s PortState,
    there: &'s PortState,
    link: &'s MemLink,
}

impl MemState {
    pub(super) fn post(
        &mut self,
        capabilities: &Capabilities,
        port: PortNumber,
        work: &Work<'_>,
    ) -> Result<(), Stop> {
        let parts = Parts::of(&work.operation);
        let state = self.check(capabilities, port, work.link, &parts)?;
        let outcome = match state {
            LinkState::Ready => self.execute(port, work, &parts)?,
            LinkState::Lost => Err(CompletionStatus::PeerLost),
            _ => Err(CompletionStatus::Flushed),
        };
        let port = self.port_mut(port);
        if outcome.is_err()
            && let Some(link) = port.links.get_mut(&work.link)
        {
            link.state = LinkState::Failed;
        }
        if work.flags.signalled || outcome.is_err() {
            port.finish(completion(work, parts.kind, outcome), None);
        }
        Ok(())
    }

    /// Checks a request as far as possible without the peer. Nothing has happened if it refuses.
    fn check(
        &self,
        capabilities: &Capabilities,
        port: PortNumber,
        link: LinkId,
        parts: &Parts<'_>,
    ) -> Result<LinkState, Stop> {
        let here = self.port(port);
        let state = here.state_of(link).ok_or(Stop::Invalid("link"))?;
        parts.check(capabilities)?;
        for slice in parts.local {
            self.check_slice(here.process, slice)?;
        }
        if let (Some(remote), Some(link)) = (parts.remote, here.links.get(&link))
            && !link.imports.contains_key(&remote.region)
        {
            return Err(Stop::Invalid("remote region"));
        }
        if here.requests_finished >= capabilities.outstanding_max as usize {
            return Err(Stop::QueueFull);
        }
        Ok(state)
    }

    /// Runs a checked request on a usable link.
    fn execute(
        &mut self,
        port: PortNumber,
        work: &Work<'_>,
        parts: &Parts<'_>,
    ) -> Result<Outcome, Stop> {
        let here = self.port(port);
        let Some(link) = here.links.get(&work.link) else {
            return Ok(Err(CompletionStatus::Flushed));
        };
        let there = match self.peer_of(link) {
            Some((there, end)) if end.state == LinkState::Ready => there,
            _ => return Ok(Err(CompletionStatus::PeerLost)),
        };
        let way = LinkEnds { here, there, link };
        if !parts.takes_receive() {
            return Ok(self.one_sided(&way, &work.operation, parts));
        }
        let receive = way.receive().ok_or(Stop::ReceiverNotReady)?;
        let (outcome, received) = self.message(&way, &work.operation, parts, &receive);
        if let Some((kind, status)) = received {
            let (peer, link) = link.peer;
            self.take_receive(peer, link, &receive, kind, parts, status);
        }
        Ok(outcome)
    }

    fn one_sided(
        &self,
        way: &LinkEnds<'_>,
        operation: &Operation<'_>,
        parts: &Parts<'_>,
    ) -> Outcome {
        let (Some(at), bytes) = (parts.remote, parts.bytes()) else {
            return Err(CompletionStatus::Flushed);
        };
        let region = self.remote(way, at, parts)?;
        // A thread that sees what follows also sees what came before on this link.
        fence(Ordering::AcqRel);
        match parts.kind {
            CompletionKind::Atomic => self.atomic(way, operation, parts, region, at.offset)?,
            // Everything before has been executed where all threads see it.
            CompletionKind::Flush => {}
            CompletionKind::AtomicWrite => store(operation, region, at.offset)?,
            CompletionKind::Read => self.scatter(way, parts.local, region, at.offset)?,
            _ => self.gather(way, parts, region, at.offset)?,
        }
        Ok(bytes as u32)
    }

    /// Executes a request that takes `receive` at the peer. Returns its outcome, and how the receive
    /// completes unless it stays posted.
    fn message(
        &self,
        way: &LinkEnds<'_>,
        operation: &Operation<'_>,
        parts: &Parts<'_>,
        receive: &Receive,
    ) -> (Outcome, Option<(CompletionKind, CompletionStatus)>) {
        if parts.kind == CompletionKind::Write {
            let outcome = self.one_sided(way, operation, parts);
            let taken = (CompletionKind::ReceiveImmediate, CompletionStatus::Success);
            return (outcome, outcome.is_ok().then_some(taken));
        }
        let bytes = parts.bytes();
        let outcome = match self.region(way.there.process, receive.into.region) {
            _ if bytes > u64::from(receive.into.bytes) => Err(CompletionStatus::LengthExceeded),
            Some(region) => self.gather(way, parts, region, receive.into.offset),
            // The receiver took its own memory away from under a posted receive.
            None => Err(CompletionStatus::RemoteAccess),
        };
        let status = outcome.err().unwrap_or(CompletionStatus::Success);
        (outcome.map(|()| bytes as u32), Some((CompletionKind::Receive, status)))
    }

    fn take_receive(
        &mut self,
        peer: PortNumber,
        link: LinkId,
        receive: &Receive,
        kind: CompletionKind,
        parts: &Parts<'_>,
        status: CompletionStatus,
    ) {
        let success = status == CompletionStatus::Success;
        let port = self.port_mut(peer);
        port.queue_mut(receive.queue).posted.pop_front();
        let completion = Completion {
            id: receive.id,
            link,
            bytes: if success { parts.bytes() as u32 } else { 0 },
            immediate: parts.immediate.filter(|_| success),
            kind,
            status,
        };
        port.finish(completion, Some(receive.queue));
    }

    /// Returns the region of an import, if its owner's record allows this request. Of the token only
    /// number and key count.
    fn remote(
        &self,
        way: &LinkEnds<'_>,
        at: RemoteSlice,
        parts: &Parts<'_>,
    ) -> Result<&MemRegion, CompletionStatus> {
        let refused = CompletionStatus::RemoteAccess;
        let token: &RegionToken = way.link.imports.get(&at.region).ok_or(refused)?;
        let region = self.region(way.there.process, token.region).ok_or(refused)?;
        if region.key != token.key || !region.access.allows(parts.access) {
            return Err(refused);
        }
        let bytes = usize::try_from(parts.reach()).map_err(|_| refused)?;
        region.arena.at(at.offset, bytes).map_err(|_| refused)?;
        if parts.is_word() && !at.offset.is_multiple_of(8) {
            return Err(CompletionStatus::RemoteAlignment);
        }
        Ok(region)
    }

    /// Puts the bytes of a WRITE or SEND at `offset` of a region of the peer.
    fn gather(
        &self,
        way: &LinkEnds<'_>,
        parts: &Parts<'_>,
        to: &MemRegion,
        offset: u64,
    ) -> Result<(), CompletionStatus> {
        let mut at = offset;
        if let Some(bytes) = parts.inline {
            to.arena.write(at, bytes).map_err(|_| CompletionStatus::RemoteAccess)?;
        }
        for slice in parts.local {
            let from = self.own(way, slice)?;
            let copied = to.arena.copy_from(at, &from.arena, slice.offset, slice.bytes as usize);
            copied.map_err(|_| CompletionStatus::RemoteAccess)?;
            at += u64::from(slice.bytes);
        }
        Ok(())
    }

    /// Fills the slices of a READ from `offset` of a region of the peer.
    fn scatter(
        &self,
        way: &LinkEnds<'_>,
        into: &[LocalSlice],
        from: &MemRegion,
        offset: u64,
    ) -> Result<(), CompletionStatus> {
        let mut at = offset;
        for slice in into {
            let to = self.own(way, slice)?;
            let copied = to.arena.copy_from(slice.offset, &from.arena, at, slice.bytes as usize);
            copied.map_err(|_| CompletionStatus::RemoteAccess)?;
            at += u64::from(slice.bytes);
        }
        Ok(())
    }

    fn atomic(
        &self,
        way: &LinkEnds<'_>,
        operation: &Operation<'_>,
        parts: &Parts<'_>,
        region: &MemRegion,
        at: u64,
    ) -> Result<(), CompletionStatus> {
        let arena = &region.arena;
        let before = match *operation {
            Operation::FetchAdd { add, .. } => arena.fetch_add(at, add),
            Operation::Swap { new, .. } => arena.swap(at, new),
            Operation::CompareSwap { expected, new, .. } => arena.compare_swap(at, expected, new),
            Operation::MaskedFetchAdd { add, boundaries, .. } => {
                arena.masked_fetch_add(at, add, boundaries)
            }
            Operation::MaskedCompareSwap { expected, compare_mask, new, swap_mask, .. } => {
                arena.masked_compare_swap(at, expected, compare_mask, new, swap_mask)
            }
            _ => return Err(CompletionStatus::Flushed),
        };
        let before = before.map_err(|_| CompletionStatus::RemoteAccess)?;
        for slice in parts.local {
            let to = self.own(way, slice)?;
            let stored = to.arena.write(slice.offset, &before.to_ne_bytes());
            stored.map_err(|_| CompletionStatus::RemoteAccess)?;
        }
        Ok(())
    }

    /// Returns a local region of the request, which `check` has found.
    fn own(&self, way: &LinkEnds<'_>, slice: &LocalSlice) -> Result<&MemRegion, CompletionStatus> {
        let region = self.region(way.here.process, slice.region);
        region.ok_or(CompletionStatus::Flushed)
    }
}

impl LinkEnds<'_> {
    /// Returns the receive that the next message of this link would take.
    fn receive(&self) -> Option<Receive> {
        let queue = self.there.links.get(&self.link.peer.1)?.queue?;
        self.there.queues.get(&queue)?.posted.front().copied()
    }
}

fn store(operation: &Operation<'_>, region: &MemRegion, at: u64) -> Result<(), CompletionStatus> {
    let Operation::AtomicWrite { value, .. } = *operation else {
        return Err(CompletionStatus::Flushed);
    };
    let stored = region.arena.store(at, value, Ordering::Release);
    stored.map_err(|_| CompletionStatus::RemoteAccess)
}

fn completion(work: &Work<'_>, kind: CompletionKind, outcome: Outcome) -> Completion {
    Completion {
        id: work.id,
        link: work.link,
        bytes: outcome.unwrap_or(0),
        immediate: None,
        kind,
        status: outcome.err().unwrap_or(CompletionStatus::Success),
    }
}
