//! Posting: requests are checked, recorded, and posted to the adapter with one doorbell a link.

use super::VerbsPort;
use super::confirm::{self, PROBE};
use super::link::{LinkState, RequestEntry};
use super::staged::Staged;
use crate::ffi::{LocalBytes, Slice, Verb, WorkRequest};
use crate::region::RegionAddress;
use crate::token::lock;
use farside_base::{
    AtomicScope, Completion, CompletionKind, CompletionStatus, FlushScope, LinkId, LocalSlice,
    Operation, RemoteSlice, Source, Work,
};
use farside_fabric::{Posted, Stop};
use std::sync::atomic::Ordering;

/// An operation as the adapter knows it.
struct PostPlan<'a> {
    verb: Verb,
    kind: CompletionKind,
    remote: Option<RemoteSlice>,
    from: From<'a>,
    /// It must be a word at a multiple of eight at the peer.
    word: bool,
    takes_receive: bool,
}

/// The destination of a request.
struct PostTarget {
    address: u64,
    key: u32,
    /// Eight bytes of the region, at no multiple of eight.
    odd_word: bool,
}

enum From<'a> {
    Slices(&'a [LocalSlice]),
    Inline(&'a [u8]),
    Word(LocalSlice),
    Nothing,
}

const fn kind_of(operation: &Operation<'_>) -> CompletionKind {
    match operation {
        Operation::Write { .. } => CompletionKind::Write,
        Operation::Read { .. } => CompletionKind::Read,
        Operation::FetchAdd { .. }
        | Operation::CompareSwap { .. }
        | Operation::Swap { .. }
        | Operation::MaskedCompareSwap { .. }
        | Operation::MaskedFetchAdd { .. } => CompletionKind::Atomic,
        Operation::AtomicWrite { .. } => CompletionKind::AtomicWrite,
        Operation::Flush { .. } => CompletionKind::Flush,
        Operation::Send { .. } => CompletionKind::Send,
    }
}

fn source<'a>(source: &Source<'a>) -> From<'a> {
    match source {
        Source::Gather(slices) => From::Slices(slices),
        Source::Inline(bytes) => From::Inline(bytes),
    }
}

impl VerbsPort {
    /// Forgets cached regions if one was deregistered since the last check. One load.
    #[inline]
    pub(super) fn forget_regions(&mut self) {
        let changes = self.core.region_changes.load(Ordering::Acquire);
        if changes != self.region_changes {
            self.region_changes = changes;
            self.regions.clear();
        }
    }

    /// Takes a region over from the fabric's table.
    #[cold]
    pub(super) fn learn(&mut self, slice: &LocalSlice) -> Result<RegionAddress, Stop> {
        let table = lock(&self.core.regions);
        self.regions.learn(&table, slice.region).ok_or(Stop::Invalid("local region"))
    }

    pub(super) fn post_all(&mut self, work: &[Work<'_>]) -> Posted {
        if self.inbox.is_filled() {
            self.absorb();
        }
        self.forget_regions();
        let mut posted = Posted { accepted: 0, stop: None };
        for one in work {
            if let Err(stop) = self.take(one) {
                posted.stop = Some(stop);
                break;
            }
            posted.accepted += 1;
        }
        self.ring();
        posted
    }

    /// Rings one doorbell for each link with a list.
    #[inline]
    fn ring(&mut self) {
        while let Some(id) = self.begun.pop() {
            let Some(link) = self.links.find(id) else {
                continue;
            };
            link.begun = false;
            let confirmation = self.core.device.confirmation.as_ref();
            if let Some(own) = confirmation {
                confirm::ask(link, own, self.core.ticks.load(Ordering::Relaxed));
            }
            let rung = link.pair.as_mut().map_or(Ok(()), |pair| pair.ring());
            if let Err(error) = rung {
                if confirmation.is_some() {
                    // The connection has ended; the control thread reports why.
                    continue;
                }
                let words = format!("the adapter takes no requests: {error}");
                // Some providers check an atomic's alignment before they post it.
                let odd = link.in_flight.front().is_some_and(|entry| entry.misaligned);
                let status = match odd {
                    true => CompletionStatus::RemoteAlignment,
                    false => CompletionStatus::Broken,
                };
                self.fail(id, status, Some(words));
            }
        }
    }

    /// Checks and notes one request and puts it on its link's list.
    #[inline]
    fn take(&mut self, work: &Work<'_>) -> Result<(), Stop> {
        let outstanding_max = self.core.capabilities.outstanding_max;
        let Some(link) = self.links.find(work.link) else {
            return self.take_for_closed_link(work);
        };
        match link.state {
            LinkState::Up => {}
            LinkState::Down { .. } => return self.take_down(work),
            LinkState::Connecting | LinkState::Requested => return Err(Stop::Invalid("link")),
        }
        if !link.has_room(outstanding_max) {
            // Unsignaled requests are retired by completions since.
            self.ring();
            self.gather();
            let link = self.links.find(work.link).ok_or(Stop::Invalid("link"))?;
            match link.state {
                LinkState::Up if link.has_room(outstanding_max) => {}
                LinkState::Up => return Err(Stop::QueueFull),
                _ => return self.take_down(work),
            }
        }
        let plan = self.plan(&work.operation)?;
        self.give(work, &plan)
    }

    /// Handles a request of a closed link: taken, and flushed.
    #[cold]
    fn take_for_closed_link(&mut self, work: &Work<'_>) -> Result<(), Stop> {
        if !self.links.is_gone(work.link) {
            return Err(Stop::Invalid("link"));
        }
        if self.orphans >= self.core.capabilities.outstanding_max {
            return Err(Stop::QueueFull);
        }
        self.orphans += 1;
        let completion = Completion {
            id: work.id,
            link: work.link,
            kind: kind_of(&work.operation),
            status: CompletionStatus::Flushed,
            ..Completion::BLANK
        };
        self.stage(Staged::orphan(completion));
        Ok(())
    }

    /// Handles a request of a link that is down: taken, and flushed, except the first, which reports
    /// why.
    #[cold]
    fn take_down(&mut self, work: &Work<'_>) -> Result<(), Stop> {
        let outstanding_max = self.core.capabilities.outstanding_max;
        let link = self.links.find(work.link).ok_or(Stop::Invalid("link"))?;
        if !link.has_room(outstanding_max) {
            return Err(Stop::QueueFull);
        }
        let LinkState::Down { first } = &mut link.state else {
            return Err(Stop::Invalid("link"));
        };
        let status = first.take().unwrap_or(CompletionStatus::Flushed);
        link.unpolled += 1;
        let completion = Completion {
            id: work.id,
            link: work.link,
            kind: kind_of(&work.operation),
            status,
            ..Completion::BLANK
        };
        self.stage(Staged::of_link(completion));
        Ok(())
    }

    /// Returns the verb of an operation; operations that the device lacks are refused by name.
    #[inline]
    fn plan<'a>(&self, operation: &Operation<'a>) -> Result<PostPlan<'a>, Stop> {
        let has = &self.core.capabilities;
        let plain = |verb, remote, from| PostPlan {
            verb,
            kind: kind_of(operation),
            remote: Some(remote),
            from,
            word: false,
            takes_receive: false,
        };
        let lacks = |has: bool, name| if has { Ok(()) } else { Err(Stop::Invalid(name)) };
        Ok(match operation {
            Operation::Write { source: from, to, immediate: None } => {
                plain(Verb::Write, *to, source(from))
            }
            Operation::Write { source: from, to, immediate: Some(immediate) } => {
                lacks(has.immediate, "lacks immediate")?;
                let verb = Verb::WriteImmediate(*immediate);
                PostPlan { takes_receive: true, ..plain(verb, *to, source(from)) }
            }
            Operation::Read { into, from } => plain(Verb::Read, *from, From::Slices(into)),
            Operation::FetchAdd { at, add, into } => {
                lacks(has.atomics > AtomicScope::None, "lacks atomics")?;
                PostPlan { word: true, ..plain(Verb::FetchAdd(*add), *at, From::Word(*into)) }
            }
            Operation::CompareSwap { at, expected, new, into } => {
                lacks(has.atomics > AtomicScope::None, "lacks atomics")?;
                let verb = Verb::CompareSwap { expected: *expected, new: *new };
                PostPlan { word: true, ..plain(verb, *at, From::Word(*into)) }
            }
            Operation::Swap { .. }
            | Operation::MaskedCompareSwap { .. }
            | Operation::MaskedFetchAdd { .. } => {
                lacks(has.atomics > AtomicScope::None, "lacks atomics")?;
                return Err(Stop::Invalid("lacks extended_atomics"));
            }
            Operation::AtomicWrite { to, value } => {
                lacks(has.atomic_write, "lacks atomic_write")?;
                PostPlan { word: true, ..plain(Verb::AtomicWrite(*value), *to, From::Nothing) }
            }
            Operation::Flush { from, bytes, scope } => {
                let had = *scope > FlushScope::None && *scope <= has.flush;
                lacks(had, "lacks flush")?;
                plain(Verb::Flush { bytes: *bytes, scope: *scope }, *from, From::Nothing)
            }
            Operation::Send { source: from, immediate } => {
                lacks(immediate.is_none() || has.immediate, "lacks immediate")?;
                let verb = immediate.map_or(Verb::Send, Verb::SendImmediate);
                PostPlan {
                    verb,
                    kind: CompletionKind::Send,
                    remote: None,
                    from: source(from),
                    word: false,
                    takes_receive: true,
                }
            }
        })
    }

    /// Returns the address and rkey of a remote slice.
    #[inline]
    fn remote(&self, link: LinkId, slice: &RemoteSlice) -> Result<PostTarget, Stop> {
        let found = self.remotes.get(slice.region.0 as usize).copied().flatten();
        let found = found.filter(|remote| remote.link == link);
        let remote = found.ok_or(Stop::Invalid("remote region"))?;
        // Bytes past the end, or that wrap, are outside the region, and the peer's adapter reports
        // that.
        let within = slice.offset < remote.bytes && remote.bytes - slice.offset >= 8;
        Ok(PostTarget {
            address: remote.address.wrapping_add(slice.offset),
            key: remote.key,
            odd_word: within && !slice.offset.is_multiple_of(8),
        })
    }

    /// Resolves the local slices of a list into `self.slices`. Returns how many bytes they have. Empty
    /// slices are left out: the adapter treats a length of zero as the longest one.
    #[inline]
    fn resolve(&mut self, slices: &[LocalSlice]) -> Result<u64, Stop> {
        if slices.len() > self.core.capabilities.slices_max as usize {
            return Err(Stop::Invalid("too many slices"));
        }
        self.slices.clear();
        let mut bytes = 0;
        for slice in slices {
            let resolved = self.local(slice)?;
            bytes += u64::from(resolved.length);
            if resolved.length > 0 {
                self.slices.push(resolved);
            }
        }
        Ok(bytes)
    }

    /// Resolves the local bytes of a request. Returns how many there are.
    #[inline]
    fn collect(&mut self, plan: &PostPlan<'_>) -> Result<u64, Stop> {
        let has = &self.core.capabilities;
        match &plan.from {
            From::Slices(slices) => {
                let (most, name) = match plan.kind {
                    CompletionKind::Send => (u64::from(has.send_bytes_max), "send too long"),
                    _ => (has.transfer_bytes_max, "transfer too long"),
                };
                let bytes = self.resolve(slices)?;
                if bytes > most { Err(Stop::Invalid(name)) } else { Ok(bytes) }
            }
            From::Inline(bytes) if bytes.len() > has.inline_bytes_max as usize => {
                Err(Stop::Invalid("inline too long"))
            }
            From::Inline(bytes) => Ok(bytes.len() as u64),
            From::Word(into) => {
                if into.bytes != 8 || !into.offset.is_multiple_of(8) {
                    return Err(Stop::Invalid("atomic slice"));
                }
                self.resolve(&[*into])
            }
            From::Nothing => {
                self.slices.clear();
                Ok(0)
            }
        }
    }

    /// Notes a request and puts it on its link's list.
    #[inline]
    fn give(&mut self, work: &Work<'_>, plan: &PostPlan<'_>) -> Result<(), Stop> {
        let bytes = self.collect(plan)?;
        let mut target = match &plan.remote {
            Some(remote) => self.remote(work.link, remote)?,
            None => PostTarget { address: 0, key: 0, odd_word: false },
        };
        let ticks = self.core.ticks.load(Ordering::Relaxed);
        let confirms = self.confirms();
        let often = self.core.capabilities.outstanding_max / 4;
        let link = self.links.find(work.link).ok_or(Stop::Invalid("link"))?;
        if let Some(own) = &self.core.device.confirmation
            && plan.kind == CompletionKind::Read
            && self.slices.is_empty()
            && let Some(peer) = &link.peer
        {
            // Some adapters get a READ of no bytes wrong: a READ of one of the peer's words replaces
            // it.
            target = PostTarget { address: peer.word.address, key: peer.word.key, odd_word: false };
            self.slices.push(own.landing);
        }
        // An unsignaled request is signaled from time to time, so that its queue entries are freed.
        let told = (work.flags.signalled || link.untold >= often)
            && (!confirms || plan.kind == CompletionKind::Read);
        let request = WorkRequest {
            id: link.next_request(),
            signalled: told,
            // READs are answered in order by the peer, and need no fence.
            fence: work.flags.fence && !(confirms && plan.kind == CompletionKind::Read),
            verb: plan.verb,
            address: target.address,
            key: target.key,
            bytes: match &plan.from {
                From::Inline(bytes) => LocalBytes::Inline(bytes),
                From::Slices(_) | From::Word(_) | From::Nothing => LocalBytes::Slices(&self.slices),
            },
        };
        let Some(pair) = &mut link.pair else {
            return Err(Stop::Invalid("link"));
        };
        pair.push(&request);
        let entry = RequestEntry {
            id: work.id,
            bytes: bytes as u32,
            kind: plan.kind,
            signalled: work.flags.signalled,
            told,
            misaligned: plan.word && target.odd_word,
            takes_receive: plan.takes_receive,
            probe: false,
        };
        link.note(entry, ticks);
        if !std::mem::replace(&mut link.begun, true) {
            self.begun.push(work.link);
        }
        Ok(())
    }

    /// Posts a WRITE of no bytes that is signaled, if unsignaled requests are not covered by another
    /// completion.
    pub(super) fn probe(&mut self, id: LinkId, ticks: u64) {
        if self.confirms() {
            return self.confirm(id);
        }
        let Some(link) = self.links.find(id) else {
            return;
        };
        let request = WorkRequest {
            id: link.next_request(),
            signalled: true,
            fence: false,
            verb: Verb::Write,
            address: 0,
            key: 0,
            bytes: LocalBytes::Slices(&[] as &[Slice]),
        };
        let Some(pair) = &mut link.pair else {
            return;
        };
        pair.push(&request);
        link.since = ticks;
        link.note(PROBE, ticks);
        let rung = pair_ring(link);
        if let Err(words) = rung {
            self.fail(id, CompletionStatus::Broken, Some(words));
        }
    }
}

fn pair_ring(link: &mut super::link::VerbsLink) -> Result<(), String> {
    let pair = link.pair.as_mut();
    let rung = pair.map_or(Ok(()), |pair| pair.ring());
    rung.map_err(|error| format!("the adapter takes no requests: {error}"))
}
