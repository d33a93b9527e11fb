//! Links from dial to close, and the events of the control thread about them.

use super::VerbsPort;
use super::link::{LinkState, VerbsLink};
use super::staged::Staged;
use crate::core::{Command, Dial};
use crate::facts::AtomicFact;
use crate::ffi::QueuePair;
use crate::ffi::types::{
    IBV_ACCESS_FLUSH_GLOBAL, IBV_ACCESS_FLUSH_PERSISTENT, IBV_ACCESS_REMOTE_ATOMIC,
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE,
};
use crate::inbox::{Inbound, PendingReply};
use crate::token::{Token, lock};
use crate::wire::QueuePairEnd;
use farside_base::{Completion, CompletionStatus, FlushScope, LinkId, ReceiveQueueId};
use farside_bootstrap::{Address, Endpoint};
use farside_fabric::{FabricError, HELLO_BYTES_MAX, LinkEvent};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// How long a peer's kernel may take to connect a queue pair.
const JOIN_TIME: Duration = Duration::from_secs(4);
/// Failed dials whose reason the port keeps.
const FAILED_DIALS_MAX: usize = 16;

impl VerbsPort {
    /// Returns the endpoints to search for a name, and the name.
    fn targets(&self, to: &str) -> Result<(Vec<Endpoint>, String), FabricError> {
        let none = FabricError::Unknown("address");
        if to.contains('/') {
            let address = Address::from_str(to).map_err(|_| none)?;
            return Ok((vec![address.endpoint], address.name));
        }
        Address::check_name(to).map_err(|_| none)?;
        let own = lock(&self.core.names).contains_key(to);
        let targets = match &self.core.listening {
            Some(here) if own => vec![here.own.into()],
            _ => self.core.options.hosts.clone(),
        };
        Ok((targets, to.to_owned()))
    }

    /// Returns a queue pair for a link, ready to be connected, and room for its completions.
    fn equip(
        &mut self,
        receives: ReceiveQueueId,
    ) -> Result<(QueuePair, QueuePairEnd), FabricError> {
        let system = |reason| FabricError::System("queue pair", reason);
        let queue = self.queues.find(receives).ok_or(FabricError::Unknown("receive queue"))?;
        let shared = Arc::clone(&queue.shared);
        let device = &self.core.device;
        let (requests, port) = (device.shape.requests, device.port);
        let access = access(self.core.capabilities.flush, device.facts.atomics);
        self.reserve(requests, "links_max")?;
        let device = &self.core.device;
        let made = QueuePair::new(&device.domain, &self.completions, &shared, &device.shape);
        let ready = made.and_then(|pair| {
            pair.handle().initialise(port, access)?;
            Ok(pair)
        });
        let end = ready.map_err(system).and_then(|pair| {
            let end = self.core.end(pair.number())?;
            Ok((pair, end))
        });
        if end.is_err() {
            self.completions_used -= requests;
        }
        end
    }

    pub(super) fn call(
        &mut self,
        to: &str,
        hello: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<LinkId, FabricError> {
        let (targets, name) = self.targets(to)?;
        if hello.len() > HELLO_BYTES_MAX {
            return Err(FabricError::Limit("hello"));
        }
        if let Some(words) = &self.broken {
            let reason = std::io::Error::other(words.clone());
            return Err(FabricError::System("device", reason));
        }
        self.queues.find(receives).ok_or(FabricError::Unknown("receive queue"))?;
        let limit = u64::from(self.core.capabilities.links_max);
        if self.inbox.links.fetch_add(1, Ordering::AcqRel) >= limit {
            self.inbox.links.fetch_sub(1, Ordering::AcqRel);
            return Err(FabricError::Limit("links_max"));
        }
        let equipped = self.equip(receives);
        let (pair, end) = equipped.inspect_err(|_| {
            self.inbox.links.fetch_sub(1, Ordering::AcqRel);
        })?;
        let token = Token(self.core.number());
        let requests = self.core.device.shape.requests;
        let Some(link) = self.links.add(token, LinkState::Connecting) else {
            self.inbox.links.fetch_sub(1, Ordering::AcqRel);
            self.completions_used -= requests;
            return Err(FabricError::Limit("links_max"));
        };
        let (id, handle) = (link.id, pair.handle());
        link.own = Some(end);
        self.pairs.insert(pair.number(), id);
        link.equip(pair, receives, requests);
        if let Some(queue) = self.queues.find(receives) {
            queue.links += 1;
        }
        let (inbox, hello) = (Arc::clone(&self.inbox), hello.to_vec());
        let call = Dial { token, inbox, handle, end, targets, name, hello };
        self.core.command(Command::Connect(Box::new(call)));
        Ok(id)
    }

    pub(super) fn answer(
        &mut self,
        id: LinkId,
        reply: &[u8],
        receives: ReceiveQueueId,
    ) -> Result<(), FabricError> {
        if self.inbox.is_filled() {
            self.absorb();
        }
        if reply.len() > HELLO_BYTES_MAX {
            return Err(FabricError::Limit("hello"));
        }
        let link = self.links.find(id).ok_or(FabricError::Unknown("link"))?;
        let (token, peer) = match (link.state, link.peer) {
            (LinkState::Requested, Some(peer)) => (link.token, peer),
            (LinkState::Down { .. }, _) if link.pair.is_none() => {
                return Err(FabricError::PeerLost);
            }
            _ => return Err(FabricError::Unknown("link")),
        };
        let (pair, end) = self.equip(receives)?;
        let handle = pair.handle();
        let requests = self.core.device.shape.requests;
        self.pairs.insert(pair.number(), id);
        if let Some(queue) = self.queues.find(receives) {
            queue.links += 1;
        }
        let link = self.links.find(id).ok_or(FabricError::Unknown("link"))?;
        link.own = Some(end);
        link.equip(pair, receives, requests);
        let connected = match &self.core.manager {
            Some(_) => Ok(()),
            None => self.core.join(&handle, &end, &peer),
        };
        if let Err(reason) = connected {
            self.end(id);
            return Err(FabricError::System("queue pair cannot be connected", reason));
        }
        // The caller's fabric answers `Ready`: one round trip, without its program.
        let (done, reply) = (PendingReply::new(), reply.to_vec());
        let command = Command::Accept { token, handle, end, reply, done: Arc::clone(&done) };
        self.core.command(command);
        // The kernel may resolve this side's hardware address, twice.
        let given = done.wait(self.core.options.lease * 2 + JOIN_TIME);
        if let Err(error) = given.unwrap_or(Err(FabricError::PeerLost)) {
            self.end(id);
            return Err(error);
        }
        if let Some(link) = self.links.find(id) {
            link.state = LinkState::Up;
        }
        Ok(())
    }

    pub(super) fn turn_away(&mut self, id: LinkId, reason: &[u8]) -> Result<(), FabricError> {
        if self.inbox.is_filled() {
            self.absorb();
        }
        let link = self.links.find(id).ok_or(FabricError::Unknown("link"))?;
        if link.state != LinkState::Requested {
            return Err(FabricError::Unknown("link"));
        }
        let token = link.token;
        let reason = reason[..reason.len().min(HELLO_BYTES_MAX)].to_vec();
        self.core.command(Command::Refuse { token, reason });
        self.take_out(id);
        Ok(())
    }

    /// Closes a link.
    pub(super) fn end(&mut self, id: LinkId) {
        let Some(link) = self.links.find(id) else {
            return;
        };
        let token = link.token;
        if let Some(handle) = &link.handle {
            handle.close();
        }
        // Requests done, and messages received, before count.
        self.gather();
        if let Some(link) = self.take_out(id) {
            for entry in link.in_flight.iter().filter(|entry| !entry.probe) {
                self.orphans += 1;
                let completion = Completion {
                    id: entry.id,
                    link: id,
                    kind: entry.kind,
                    status: CompletionStatus::Flushed,
                    ..Completion::BLANK
                };
                self.stage(Staged::orphan(completion));
            }
        }
        self.events.retain(|(_, event)| event.link() != id);
        self.core.command(Command::Close { token });
    }

    /// Deallocates the windows of a link, before its queue pair is destroyed.
    pub(super) fn end_windows(&self, link: &VerbsLink) {
        if let Some(handle) = link.handle.as_ref().filter(|_| self.core.manner().windows) {
            handle.close();
            self.core.windows.end_link(link.token);
        }
    }

    /// Removes a link from every table; its queue pair is destroyed when this returns.
    fn take_out(&mut self, id: LinkId) -> Option<Box<VerbsLink>> {
        let mut link = self.links.remove(id)?;
        self.begun.retain(|begun| *begun != id);
        if let Some(pair) = link.pair.take() {
            self.end_windows(&link);
            drop(pair);
            // Messages that arrived up to that moment are this link's yet.
            self.gather();
            self.pairs.remove(&link.pair_number);
            self.completions_used -= self.core.device.shape.requests;
        }
        if let Some(queue) = link.queue.and_then(|queue| self.queues.find(queue)) {
            queue.links -= 1;
        }
        for at in 0..self.remotes.len() {
            if self.remotes[at].is_some_and(|remote| remote.link == id) {
                self.remotes[at] = None;
                self.remotes_free.push_back(at as u32);
            }
        }
        self.inbox.links.fetch_sub(1, Ordering::AcqRel);
        Some(link)
    }

    /// Keeps the reason of a failed dial for a while.
    fn remember(&mut self, link: LinkId, words: String) {
        if self.failed_dials.len() >= FAILED_DIALS_MAX {
            self.failed_dials.pop_front();
        }
        self.failed_dials.push_back((link, words));
    }

    /// Handles the events of the control thread.
    #[cold]
    pub(super) fn absorb(&mut self) {
        for item in self.inbox.take() {
            self.take_in(item);
        }
    }

    fn take_in(&mut self, item: Inbound) {
        match item {
            Inbound::Requested { token, peer, from, hello } => {
                let Some(link) = self.links.add(token, LinkState::Requested) else {
                    self.inbox.links.fetch_sub(1, Ordering::AcqRel);
                    return self.core.command(Command::Refuse { token, reason: Vec::new() });
                };
                link.peer = Some(peer);
                link.from = from;
                let event = LinkEvent::Requested { link: link.id, hello };
                self.events.push_back((0, event));
            }
            Inbound::Connected { token, peer, from, reply } => {
                if let Some(link) = self.links.by_token(token) {
                    link.state = LinkState::Up;
                    (link.peer, link.from) = (Some(peer), from);
                    let event = LinkEvent::Connected { link: link.id, reply };
                    self.events.push_back((0, event));
                }
            }
            Inbound::Refused { token, reason } => {
                if let Some(link) = self.links.by_token(token).map(|link| link.id) {
                    self.take_out(link);
                    self.events.push_back((0, LinkEvent::Refused { link, reason }));
                }
            }
            Inbound::NotReached { token, why, words } => {
                if let Some(link) = self.links.by_token(token).map(|link| link.id) {
                    self.take_out(link);
                    self.remember(link, words);
                    self.events.push_back((0, LinkEvent::NotReached { link, why }));
                }
            }
            Inbound::Lost { token, loss, status, words } => {
                if let Some(link) = self.links.by_token(token).map(|link| link.id) {
                    self.lose(link, loss, status, words);
                }
            }
            Inbound::Parted { token, why } => {
                if let Some(link) = self.links.by_token(token).map(|link| link.id) {
                    match self.confirms() {
                        true => self.part(link, why),
                        false => self.refused_there(link, why),
                    }
                }
            }
            Inbound::Fault { token, status, words } => {
                if let Some(link) = self.links.by_token(token).map(|link| link.id) {
                    // A failed completion of this side reports the cause better.
                    self.gather();
                    match status {
                        CompletionStatus::Flushed => self.refused_here(link, words),
                        // Of why the connection has ended, both sides' fabrics know more.
                        _ if self.confirms() => self.suspect(link, words),
                        _ => self.fail(link, status, Some(words)),
                    }
                }
            }
            Inbound::PortDown => self.port_is_down(),
            Inbound::Broken { queue, words } => {
                let own = |queue| queue == self.completions.address() || self.queues.has(queue);
                if queue.is_none_or(own) {
                    self.break_down(&words);
                }
            }
        }
    }

    pub(super) fn describe(&self, id: LinkId) -> String {
        let Some(link) = self.links.look(id) else {
            return "no such link".to_owned();
        };
        match (&link.own, &link.peer) {
            (Some(own), Some(peer)) => self.core.path(own, peer, &link.from),
            _ => "not yet connected".to_owned(),
        }
    }
}

/// Returns the access that queue pairs allow at all; regions allow less.
fn access(flush: FlushScope, atomics: AtomicFact) -> i32 {
    let mut access = IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_WRITE;
    if atomics != AtomicFact::None {
        access |= IBV_ACCESS_REMOTE_ATOMIC;
    }
    if flush >= FlushScope::Visible {
        access |= IBV_ACCESS_FLUSH_GLOBAL;
    }
    if flush >= FlushScope::Persistent {
        access |= IBV_ACCESS_FLUSH_PERSISTENT;
    }
    access
}
