//! A port: links, one completion queue, receive queues. Its thread posts and polls; results of the
//! control thread arrive in the inbox.
//!
//! Work requests in flight are recorded in the order of posting, link by link, so one completion of the
//! adapter completes all before it. After the first failure of a link the port flushes the rest itself:
//! it does not depend on which of its flushes an adapter reports.

mod confirm;
mod connect;
mod link;
mod poll;
mod post;
mod receive;
mod receive_queues;
mod refusal;
mod staged;
#[cfg(test)]
mod theft_tests;

use crate::control::Control;
use crate::core::{Command, Core};
use crate::ffi::{Channel, CompletionQueue, Slice, WorkCompletion};
use crate::inbox::{Inbox, PendingReply, PortWaker};
use crate::intake::Intake;
use crate::region::RegionCache;
use crate::token::lock;
use crate::wire::NotImported;
use farside_base::{
    Completion, LinkId, Receive, ReceiveQueueId, RegionToken, RemoteRegionId, Work,
};
use farside_bootstrap::Address;
use farside_fabric::{FabricError, LinkEvent, Port, PortSpec, Posted, Reached, SharedWord, Waiter};
use link::{LinkState, Links};
use receive_queues::ReceiveQueues;
use staged::Staged;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Completions that the queue has room for at first.
const COMPLETIONS_FIRST: u32 = 2048;
/// Completions taken from the adapter at a time.
const POLL_BATCH: usize = 32;

/// An imported region.
#[derive(Clone, Copy)]
struct Remote {
    link: LinkId,
    address: u64,
    bytes: u64,
    key: u32,
}

pub(crate) struct VerbsPort {
    core: Arc<Core>,
    inbox: Arc<Inbox>,
    bell: Arc<PortWaker>,
    /// The address of this port, and its name there.
    name: Option<String>,
    links: Links,
    /// Which link a queue pair is of, by its number.
    pairs: HashMap<u32, LinkId>,
    queues: ReceiveQueues,
    remotes: Vec<Option<Remote>>,
    remotes_free: VecDeque<u32>,
    regions: RegionCache,
    /// How many regions had ended when the cache was last cleared.
    region_changes: u64,
    completions: Arc<CompletionQueue>,
    /// The most entries that links and receive queues may use of it.
    completions_used: u32,
    batch: [WorkCompletion; POLL_BATCH],
    /// For polling, oldest first.
    staged: VecDeque<Staged>,
    /// How many have been staged and polled since the beginning.
    staged_total: u64,
    polled_total: u64,
    /// Flushed requests of closed links, staged and not polled.
    orphans: u32,
    /// Link events, each with the number of completions before it.
    events: VecDeque<(u64, LinkEvent)>,
    /// Links with a list that is begun.
    begun: Vec<LinkId>,
    /// Slices of one request.
    slices: Vec<Slice>,
    /// When deadlines were last checked, in ticks.
    looked: u64,
    /// When the device's port was last reported down, in ticks.
    port_down: Option<u64>,
    /// Why the completion queue or the device is broken, if so.
    broken: Option<String>,
    /// Why dials failed; the last ones.
    failed_dials: VecDeque<(LinkId, String)>,
    /// Keeps the control thread; dropped last.
    _control: Arc<Control>,
}

impl VerbsPort {
    pub(crate) fn open(control: &Arc<Control>, spec: &PortSpec) -> Result<Self, FabricError> {
        let core = Arc::clone(&control.core);
        let system = |what| move |reason: std::io::Error| FabricError::System(what, reason);
        let channel = Channel::new(&core.device.context).map_err(system("completion channel"))?;
        let facts = &core.device.facts;
        let first = if facts.trial.resizes { COMPLETIONS_FIRST } else { u32::MAX };
        let room = first.min(facts.completions);
        let completions =
            CompletionQueue::new(&channel, room).map_err(system("completion queue"))?;
        let bell = Arc::new(PortWaker::new(channel).map_err(system("eventfd"))?);
        let intake = Intake::new(&completions, core.manner().windows);
        let inbox = Arc::new(Inbox::new(core.number(), Arc::clone(&bell), intake));
        if let Some(name) = &spec.listen {
            listen(&core, name, &inbox)?;
        }
        lock(&core.ports).push(Arc::clone(&inbox));
        let region_changes = core.region_changes.load(Ordering::Acquire);
        Ok(Self {
            inbox,
            bell,
            name: spec.listen.clone(),
            links: Links::default(),
            pairs: HashMap::new(),
            queues: ReceiveQueues::default(),
            remotes: Vec::new(),
            remotes_free: VecDeque::new(),
            regions: RegionCache::default(),
            region_changes,
            completions,
            completions_used: 0,
            batch: [WorkCompletion::default(); POLL_BATCH],
            staged: VecDeque::with_capacity(1024),
            staged_total: 0,
            polled_total: 0,
            orphans: 0,
            events: VecDeque::new(),
            begun: Vec::with_capacity(64),
            slices: Vec::with_capacity(core.capabilities.slices_max as usize),
            looked: 0,
            port_down: None,
            broken: None,
            failed_dials: VecDeque::new(),
            core,
            _control: Arc::clone(control),
        })
    }

    /// Resizes the completion queue for what a link or receive queue may add to it.
    fn reserve(&mut self, more: u32, limit: &'static str) -> Result<(), FabricError> {
        let wanted = self.completions_used.saturating_add(more);
        if wanted > self.core.device.facts.completions {
            return Err(FabricError::Limit(limit));
        }
        if wanted > self.completions.entries() {
            let most = self.core.device.facts.completions;
            let roomy = wanted.checked_next_power_of_two().map_or(most, |more| more.min(most));
            let resized = self.completions.resize(roomy);
            resized.map_err(|_| FabricError::Limit(limit))?;
        }
        self.completions_used = wanted;
        Ok(())
    }
}

/// Takes a name.
fn listen(core: &Core, name: &str, inbox: &Arc<Inbox>) -> Result<(), FabricError> {
    Address::check_name(name).map_err(|_| FabricError::Unknown("name"))?;
    if core.listening.is_none() {
        return Err(FabricError::Lacks("Options::listen"));
    }
    let mut names = lock(&core.names);
    if names.contains_key(name) {
        return Err(FabricError::AddressInUse(name.to_owned()));
    }
    names.insert(name.to_owned(), Arc::clone(inbox));
    Ok(())
}

impl Drop for VerbsPort {
    fn drop(&mut self) {
        if let Some(name) = &self.name {
            lock(&self.core.names).remove(name);
        }
        lock(&self.core.ports).retain(|inbox| inbox.number != self.inbox.number);
        // Queue pairs first, so that peers reach nothing any more when they learn of it.
        let mut from = 0;
        while let Some((id, behind)) = self.links.next_from(from) {
            from = behind;
            if let Some(link) = self.links.remove(id) {
                self.end_windows(&link);
            }
        }
        self.core.command(Command::ClosePort { number: self.inbox.number });
        // Connections requested meanwhile have no port: the control thread ends them.
        self.inbox.take();
    }
}

impl Port for VerbsPort {
    fn post(&mut self, work: &[Work<'_>]) -> Posted {
        self.post_all(work)
    }

    fn post_receives(&mut self, receives: &[Receive]) -> Posted {
        self.post_all_receives(receives)
    }

    fn poll(&mut self, out: &mut [Completion]) -> usize {
        self.poll_into(out)
    }

    fn link_events(&mut self, out: &mut Vec<LinkEvent>) {
        if self.inbox.is_filled() {
            self.absorb();
        }
        let polled = self.polled_total;
        let mut at = 0;
        while at < self.events.len() {
            if self.events[at].0 > polled {
                at += 1;
            } else if let Some((_, event)) = self.events.remove(at) {
                out.push(event);
            }
        }
    }

    fn arm(&mut self) -> bool {
        self.bell.armed.store(true, Ordering::Relaxed);
        // Before the check below, as in `PortWaker::ring`: one of both sees the other's store.
        std::sync::atomic::fence(Ordering::SeqCst);
        self.completions.drain();
        if self.completions.arm().is_err() {
            self.break_down("the completion queue cannot be armed");
        }
        self.look_again();
        let in_flight = self.links.iter().any(|link| !link.in_flight.is_empty());
        let ticks = if in_flight { self.core.ticks.load(Ordering::Relaxed) } else { 0 };
        self.bell.watched_since.store(ticks, Ordering::Release);
        let polled = self.polled_total;
        !self.staged.is_empty() || self.events.iter().any(|(before, _)| *before <= polled)
    }

    fn disarm(&mut self) {
        self.bell.armed.store(false, Ordering::Relaxed);
        self.bell.watched_since.store(0, Ordering::Release);
        self.completions.drain();
    }

    fn waiter(&self) -> Arc<dyn Waiter> {
        Arc::clone(&self.bell) as Arc<dyn Waiter>
    }

    fn wake_also(&mut self, waiter: Arc<dyn Waiter>) {
        self.inbox.wake_also(waiter);
    }

    fn address(&self) -> Option<String> {
        let endpoint = self.core.listening.as_ref()?.endpoint.clone();
        Some(Address { endpoint, name: self.name.clone()? }.to_string())
    }

    fn create_receive_queue(&mut self, depth: usize) -> Result<ReceiveQueueId, FabricError> {
        self.add_receive_queue(depth)
    }

    fn destroy_receive_queue(&mut self, queue: ReceiveQueueId) -> Result<(), FabricError> {
        self.remove_receive_queue(queue)
    }

    fn connect(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        self.call(to, hello, receives)
    }

    fn accept(
        &mut self,
        link: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        self.answer(link, reply, receives)
    }

    fn refuse(&mut self, link: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        self.turn_away(link, reason)
    }

    fn import(&mut self, link: LinkId, token: &RegionToken) -> Result<RemoteRegionId, FabricError> {
        let unknown = FabricError::Unknown("link");
        let found = self.links.find(link).ok_or(unknown)?;
        match found.state {
            LinkState::Up => {}
            LinkState::Down { .. } => return Err(FabricError::PeerLost),
            LinkState::Connecting | LinkState::Requested => {
                return Err(FabricError::Unknown("link"));
            }
        }
        let (token_of_link, answer) = (found.token, PendingReply::new());
        let (region, copy) = (*token, Arc::clone(&answer));
        self.core.command(Command::Import { token: token_of_link, region, answer: copy });
        // The control thread answers within the lease, or loses the link.
        let given = answer.wait(self.core.options.lease * 2);
        let imported = given.unwrap_or(Err(FabricError::PeerLost))?;
        let imported = imported.map_err(|why| match why {
            NotImported::Unknown => FabricError::Unknown("token"),
            NotImported::NoWindow => FabricError::Limit("memory windows of the region's owner"),
        })?;
        let remote =
            Remote { link, address: imported.address, bytes: imported.bytes, key: imported.key };
        let at = match self.remotes_free.pop_front() {
            Some(at) => at,
            None => {
                self.remotes.push(None);
                (self.remotes.len() - 1) as u32
            }
        };
        self.remotes[at as usize] = Some(remote);
        Ok(RemoteRegionId(at))
    }

    /// Never: processors do not reach other hosts' memory.
    fn reach(&self, _link: LinkId, _region: RemoteRegionId) -> Option<Reached> {
        None
    }

    fn reach_word(
        &self,
        _link: LinkId,
        _region: RemoteRegionId,
        _offset: u64,
    ) -> Option<SharedWord> {
        None
    }

    fn close(&mut self, link: LinkId) {
        self.end(link);
    }

    fn path(&self, link: LinkId) -> String {
        self.describe(link)
    }

    fn trouble(&self, link: LinkId) -> Option<String> {
        let failed_dials = self.failed_dials.iter().find(|(known, _)| *known == link);
        if let Some((_, words)) = failed_dials {
            return Some(words.clone());
        }
        let found = self.links.look(link)?;
        found.trouble.clone().or_else(|| self.broken.clone())
    }
}
