//! The memory windows of a fabric: which peer may access which region by which rkey.
//!
//! A region whose peers access it through windows grants no remote rights itself. When the peer of a
//! link imports it, a window with the region's rights is bound on that link's queue pair, and its rkey
//! is sent to that peer: the adapter refuses it on any other queue pair. A bind is a work request on
//! the queue pair and waits for those in flight there; the control thread posts it, under the
//! provider's lock of the queue, and takes its completion if the port's thread does not (`intake`).
//!
//! A window is deallocated before its queue pair and its region. All is under one lock, which no hot
//! path takes; the lock of the table of regions is taken inside it.

use crate::ffi::{MemoryWindow, OwnEnd, ProtectionDomain, QueuePairHandle};
use crate::intake;
use crate::random::random;
use crate::region::{RegionTable, rights};
use crate::token::{Token, lock};
use crate::wire::{Imported, NotImported};
use farside_base::{RegionId, RegionToken};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The answer to a peer that imports a region.
pub(crate) enum Grant {
    /// This, at once.
    Now(Result<Imported, NotImported>),
    /// Later: the result of `Windows::bound`, after the bind's completion.
    Later,
}

struct WindowEntry {
    /// Ends with this entry.
    _window: MemoryWindow,
    pair: QueuePairHandle,
    key: u32,
    bound: bool,
}

#[derive(Default)]
pub(crate) struct Windows {
    /// Of each link and region at most one.
    entries: Mutex<BTreeMap<(Token, RegionId), WindowEntry>>,
    /// A bind has ended.
    changed: Condvar,
}

impl Windows {
    /// Grants the peer of a link a region, through a window if the region requires it.
    pub(crate) fn grant(
        &self,
        domain: &Arc<ProtectionDomain>,
        regions: &Mutex<RegionTable>,
        (link, pair): (Token, &QueuePairHandle),
        token: &RegionToken,
    ) -> Grant {
        let mut entries = lock(&self.entries);
        let Some((imported, windowed)) = lock(regions).import(token) else {
            return Grant::Now(Err(NotImported::Unknown));
        };
        if !windowed {
            return Grant::Now(Ok(imported));
        }
        if let Some(entry) = entries.get(&(link, token.region)).filter(|entry| entry.bound) {
            return Grant::Now(Ok(Imported { key: entry.key, ..imported }));
        }
        let none_left = Grant::Now(Err(NotImported::NoWindow));
        let (Ok(mut window), Ok(tag)) = (MemoryWindow::new(domain), random()) else {
            return none_left;
        };
        // A link that has ended took its windows with it, and gets no more.
        if pair.own_end() != OwnEnd::None {
            return none_left;
        }
        let regions = lock(regions);
        let Some(memory) = regions.memory(token.region) else {
            return Grant::Now(Err(NotImported::Unknown));
        };
        let (id, rights) = (intake::bind_of(link), rights(imported.access));
        match window.bind(pair, memory, rights, tag.to_le_bytes()[0], id) {
            Ok(key) => {
                let entry = WindowEntry { _window: window, pair: pair.clone(), key, bound: false };
                entries.insert((link, token.region), entry);
                Grant::Later
            }
            Err(_) => none_left,
        }
    }

    /// Completes the bind of a window and returns the answer for the peer. If the bind failed, the
    /// queue pair is in the error state.
    pub(crate) fn bound(
        &self,
        regions: &Mutex<RegionTable>,
        link: Token,
        token: &RegionToken,
        success: bool,
    ) -> Result<Imported, NotImported> {
        let mut entries = lock(&self.entries);
        self.changed.notify_all();
        let place = (link, token.region);
        if !success {
            entries.remove(&place);
            return Err(NotImported::NoWindow);
        }
        // Both may be gone meanwhile, with the region.
        let found = entries.get_mut(&place);
        let imported = lock(regions).import(token);
        let (Some(entry), Some((imported, _))) = (found, imported) else {
            entries.remove(&place);
            return Err(NotImported::Unknown);
        };
        entry.bound = true;
        Ok(Imported { key: entry.key, ..imported })
    }

    /// Deallocates the windows of a link whose queue pair sends and receives nothing any more.
    pub(crate) fn end_link(&self, link: Token) {
        let mut entries = lock(&self.entries);
        entries.retain(|(of, _), _| *of != link);
        self.changed.notify_all();
    }

    /// Deallocates the windows of a region that was removed from the table. Waits for one that is being
    /// bound; if that takes too long, its link fails.
    pub(crate) fn end_region(&self, region: RegionId, most: Duration) {
        let until = Instant::now() + most;
        let mut entries = lock(&self.entries);
        loop {
            entries.retain(|(_, of), entry| *of != region || !entry.bound);
            let left = until.saturating_duration_since(Instant::now());
            let mut binding = entries.iter().filter(|((_, of), _)| *of == region).peekable();
            if binding.peek().is_none() {
                return;
            }
            if left.is_zero() {
                binding.for_each(|(_, entry)| entry.pair.fail());
                entries.retain(|(_, of), _| *of != region);
                return;
            }
            let waited = self.changed.wait_timeout(entries, left);
            (entries, _) = waited.unwrap_or_else(PoisonError::into_inner);
        }
    }
}
