//! The memory windows of a fabric: which peer may reach which region by which key.
//!
//! A region whose peers reach it through windows has no rights of its own. When the peer of a link
//! imports it, a window is bound on that link's queue pair with the region's rights, and its key goes to
//! that peer: on any other queue pair the adapter refuses it. Binding is a request on the queue pair,
//! behind what is under way there; the control thread posts it, by the provider's own lock of the queue,
//! and takes its completion where the port's thread does not (`intake`).
//!
//! A window ends before its queue pair and its region do. All is under one lock, which no hot path takes;
//! inside it is that of the table of regions.

use crate::core::random;
use crate::ffi::{Handle, OwnEnd, ProtectionDomain, Window};
use crate::inbox::{Token, lock};
use crate::intake;
use crate::region::{RegionTable, rights};
use crate::wire::{Imported, NotImported};
use farside_base::{RegionId, RegionToken};
use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// What a peer that asks for a region is told.
pub(crate) enum Grant {
    /// This, at once.
    Now(Result<Imported, NotImported>),
    /// What `Windows::bound` says, once the bind's completion is there.
    Later,
}

struct Entry {
    /// Ends with this entry.
    _window: Window,
    pair: Handle,
    key: u32,
    bound: bool,
}

#[derive(Default)]
pub(crate) struct Windows {
    /// Of each link and region at most one.
    entries: Mutex<BTreeMap<(Token, RegionId), Entry>>,
    /// A bind has ended.
    changed: Condvar,
}

impl Windows {
    /// Lets the peer of a link use a region, through a window where that is the region's way.
    pub(crate) fn grant(
        &self,
        domain: &Arc<ProtectionDomain>,
        regions: &Mutex<RegionTable>,
        (link, pair): (Token, &Handle),
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
        let (Ok(mut window), Ok(tag)) = (Window::new(domain), random()) else {
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
                let entry = Entry { _window: window, pair: pair.clone(), key, bound: false };
                entries.insert((link, token.region), entry);
                Grant::Later
            }
            Err(_) => none_left,
        }
    }

    /// A window of a link was bound, or was not: what the peer is told. Where it was not, the queue pair
    /// is broken.
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

    /// Ends the windows of a link, whose queue pair sends and takes nothing any more.
    pub(crate) fn end_link(&self, link: Token) {
        let mut entries = lock(&self.entries);
        entries.retain(|(of, _), _| *of != link);
        self.changed.notify_all();
    }

    /// Ends the windows of a region, which is out of the table. One that is being bound is waited for;
    /// where that takes too long its link fails.
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
