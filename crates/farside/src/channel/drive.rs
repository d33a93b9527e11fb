//! The progress engine of a channel: polls the port, drives the half-machines and posts their requests. Halves of
//! one kind and role, one for each peer or one for all, share a port.

mod linking;

use super::links::{ChannelLinks, LinkEntry, LinkStage};
use super::memory::Memory;
use super::options::Options;
use crate::port_wait::Sleeper;
use crate::progress::{ConnectionEvent, EnginePort, Progress};
use crate::{Error, ErrorCode};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, ReceiveQueueId, RegionId,
    Work, WorkFlags, WorkId,
};
use farside_fabric::{Arena, Fabric, Reached, Stop};
use farside_protocol::channel::{
    self, Arrival, Completed, Effects, Half, Kind, MemoryPlan, Name, Own, Peer, Shape,
};
use farside_protocol::wire::Violation;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most requests posted with one doorbell.
const BATCH: usize = 32;
/// A receive on a queue that expects no messages. Without it, an unexpected message would wait for ever and hide
/// the loss of its sender.
const GUARD: WorkId = WorkId(u64::MAX);
/// Most errors of peers kept until they are reported.
const TROUBLES: usize = 64;

/// A half with its memory and its peers.
pub(super) struct Unit<H> {
    pub(super) half: H,
    memory: Memory,
    queue: ReceiveQueueId,
    pub(super) effects: Effects,
    /// By peer number: the link, while connected.
    links: Vec<Option<LinkId>>,
    /// Distinguishes it from earlier units at the same index.
    pub(super) life: u64,
    /// The buffer of its only peer, if this processor can access it.
    pub(super) reached: Option<Reached>,
    /// Whether requests wait for space in the port.
    backlog: bool,
    /// Whether it ever had a peer.
    pub(super) had_peer: bool,
    /// Its peers are gone and its messages are consumed or invalid: it is no longer driven, and may be replaced.
    pub(super) spent: bool,
}

impl<H> Unit<H> {
    /// Returns the buffer of messages.
    pub(super) fn buffer(&self) -> &Arena {
        self.memory.buffer()
    }

    /// Borrows the half, its memory and its effects separately.
    #[inline]
    pub(super) fn parts(&mut self) -> (&mut H, Own<'_, Arena>, &mut Effects) {
        (&mut self.half, self.memory.own(), &mut self.effects)
    }

    /// Whether messages can be received from it: it had a peer and is not spent.
    #[inline]
    pub(super) const fn serves(&self) -> bool {
        self.had_peer && !self.spent
    }

    pub(super) fn has_peers(&self) -> bool {
        self.links.iter().any(Option::is_some)
    }

    #[inline]
    fn link(&self, peer: Peer) -> Option<LinkId> {
        self.links.get(usize::from(peer.0)).copied().flatten()
    }

    /// Returns the work request for a pending request; `None` if its peer is lost.
    #[inline]
    fn work(&self, at: usize) -> Option<Work<'_>> {
        let request = self.effects.requests().get(at)?;
        let (signalled, fence) = (request.signalled, request.fence);
        Some(Work {
            id: WorkId(u64::from(request.name.0)),
            link: self.link(request.peer)?,
            flags: WorkFlags { signalled, fence, awaited: false },
            operation: self.effects.operation(request),
        })
    }
}

/// The engine and everything it drives.
pub(super) struct Drive<H> {
    fabric: Arc<dyn Fabric>,
    pub(super) port: EnginePort,
    pub(super) kind: Kind,
    pub(super) shape: Shape,
    /// Bytes of a value of a typed channel; zero: messages are bytes.
    value_bytes: u32,
    listens: bool,
    inline_bytes_max: u32,
    /// Messages are fetched only to memory chosen by the program.
    pub(super) offers_only: bool,
    peers_max: usize,
    pub(super) units: Vec<Unit<H>>,
    links: ChannelLinks,
    /// Halves created since the start.
    lives: u64,
    /// Connection requests that wait for the number of a closed link.
    early: Vec<(LinkId, Vec<u8>)>,
    /// Errors of peers, each to be reported once.
    troubles: VecDeque<Error>,
    /// Why the listener refused this end.
    refused: Option<Error>,
    /// Wakes the tasks that await this end; started by the first one.
    pub(super) sleeper: Option<Sleeper>,
}

impl<H: Half> Drive<H> {
    /// Opens a port for the halves of a channel: listening at `name`, or connecting to it.
    pub(super) fn open(
        fabric: Arc<dyn Fabric>,
        name: &str,
        options: &Options,
        listens: bool,
        connection: u64,
    ) -> Result<Self, Error> {
        let has = fabric.capabilities();
        let (kind, shape) = (options.kind, options.shape(&has));
        options.check(&shape, &has, fabric.name())?;
        let port = EnginePort::open(&*fabric, listens.then(|| name.to_owned()))?;
        let mut drive = Self {
            fabric,
            port,
            kind,
            shape,
            value_bytes: options.value_bytes,
            listens,
            inline_bytes_max: has.inline_bytes_max,
            offers_only: options.offers_only && !H::SENDS && kind.shares_sender(),
            peers_max: if listens { usize::from(options.peers.max(1)) } else { 1 },
            units: Vec::new(),
            links: ChannelLinks::default(),
            lives: 0,
            early: Vec::new(),
            troubles: VecDeque::new(),
            refused: None,
            sleeper: None,
        };
        if !listens || H::shares(kind) {
            let unit = drive.new_unit()?;
            drive.units.push(unit);
        }
        if !listens {
            drive.connect(name, connection)?;
        }
        Ok(drive)
    }

    /// Returns the number of peers that a half of this engine may have.
    fn peers_of_unit(&self) -> usize {
        if self.listens && H::shares(self.kind) { usize::from(self.shape.peers_max) } else { 1 }
    }

    fn new_unit(&mut self) -> Result<Unit<H>, Error> {
        let plan = H::plan(self.kind, &self.shape);
        let plan = if self.offers_only { MemoryPlan { buffer_bytes: 0, ..plan } } else { plan };
        let memory = Memory::new(&self.fabric, &plan)?;
        let peers = self.peers_of_unit();
        let depth = plan.receives as usize * if H::SENDS { peers } else { 1 };
        let queue = self.port.create_receive_queue(depth.max(1))?;
        if depth == 0 {
            guard(&mut self.port, queue, memory.regions().bells);
        }
        self.lives += 1;
        Ok(Unit {
            half: H::new(self.kind, &self.shape, memory.regions()),
            memory,
            queue,
            effects: Effects::new(self.inline_bytes_max),
            links: vec![None; peers],
            life: self.lives,
            reached: None,
            backlog: false,
            had_peer: false,
            spent: false,
        })
    }

    /// Polls the port, advances every half and posts their requests.
    pub(super) fn poll(&mut self) {
        self.links.begin_poll();
        self.poll_once();
    }

    /// Keeps an error until it is reported.
    fn trouble_with(&mut self, error: Error) {
        if self.troubles.len() < TROUBLES {
            self.troubles.push_back(error);
        }
    }

    /// Runs a step of a half; a violation closes the link to the peer.
    fn step_unit(
        &mut self,
        at: usize,
        link: Option<LinkId>,
        step: impl FnOnce(&mut H, Own<'_, Arena>, &mut Effects) -> Result<(), Violation>,
    ) {
        let Some(unit) = self.units.get_mut(at) else {
            return;
        };
        let (half, own, effects) = unit.parts();
        if let Err(violation) = step(half, own, effects) {
            self.violated(at, link, violation);
        }
    }

    /// Closes the link of a peer that violated the protocol, and records one error for it. Without a link, the half
    /// knows which of its peers it was; otherwise any of them may be responsible and the shared memory is invalid:
    /// all are disconnected and the half is spent.
    pub(super) fn violated(&mut self, at: usize, link: Option<LinkId>, violation: Violation) {
        let Some(unit) = self.units.get_mut(at) else {
            return;
        };
        let accused = if link.is_none() { unit.half.accused() } else { None };
        unit.spent |= link.is_none() && accused.is_none();
        let mut reported = false;
        for peer in 0..self.units[at].links.len() {
            let Some(open) = self.units[at].links[peer] else { continue };
            let is_accused = match (link, accused) {
                (Some(link), _) => link == open,
                (None, Some(accused)) => usize::from(accused.0) == peer,
                (None, None) => true,
            };
            if is_accused {
                if !std::mem::replace(&mut reported, true) {
                    self.trouble_with(Error::with(ErrorCode::ProtocolViolation, violation.0));
                }
                self.lose(open);
            }
        }
    }

    /// Keeps an error of a link and closes it.
    fn fail(&mut self, link: LinkId, error: Error) {
        self.trouble_with(error);
        self.lose(link);
    }

    /// Closes a link: after that nothing of it reaches memory, and the half is notified.
    fn lose(&mut self, link: LinkId) {
        self.port.close(link);
        let Some(place) = self.links.closed(link) else {
            return;
        };
        let unit = self.units.get_mut(place.unit).filter(|unit| unit.life == place.life);
        let Some(unit) = unit else {
            return;
        };
        if let Some(seat) = unit.links.get_mut(usize::from(place.peer.0)) {
            *seat = None;
        }
        unit.effects.forget(place.peer);
        unit.half.lost(place.peer);
        // The half of one sender may still hold messages, if it was ever connected.
        unit.spent |= !H::shares(self.kind) && (H::SENDS || !unit.had_peer);
    }

    pub(super) fn peers(&self) -> usize {
        self.links.open().count()
    }

    /// Polls; returns a value once the number of peers is `enough`.
    ///
    /// # Errors
    /// The next error of a peer; that of an end that connected and has no peer any more.
    pub(super) fn poll_for_peers(
        &mut self,
        enough: impl FnOnce(usize) -> bool,
    ) -> Result<Option<()>, Error> {
        self.poll();
        if let Some(error) = self.trouble() {
            return Err(error);
        }
        if enough(self.peers()) {
            return Ok(Some(()));
        }
        if !self.listens && self.is_lost() { Err(self.lost()) } else { Ok(None) }
    }

    /// Returns the connection of a peer of a half.
    pub(super) fn connection(&self, unit: usize, peer: Peer) -> Option<u64> {
        let mut open = self.links.open();
        open.find(|entry| entry.unit == unit && entry.peer == peer).map(|entry| entry.connection)
    }

    /// Returns the half that serves this connection.
    pub(super) fn unit_of(&self, connection: u64) -> Option<usize> {
        self.links.open().find(|entry| entry.connection == connection).map(|entry| entry.unit)
    }

    /// Whether all peers are lost and all their completions were polled.
    pub(super) fn is_lost(&self) -> bool {
        self.links.are_lost(self.listens)
    }

    /// Marks halves of lost peers as spent, once their messages are consumed.
    pub(super) fn settle(&mut self) {
        if H::shares(self.kind) {
            return;
        }
        for unit in &mut self.units {
            let rests = self.links.rests(unit.life, None);
            unit.spent |= unit.had_peer && !unit.has_peers() && !rests;
        }
    }

    /// Returns the error for an end without peers: lost, or refused by the listener.
    #[cold]
    pub(super) fn lost(&self) -> Error {
        self.refused.clone().unwrap_or_else(|| ErrorCode::PeerLost.into())
    }

    pub(super) fn trouble(&mut self) -> Option<Error> {
        self.troubles.pop_front()
    }

    /// Returns the bytes of registered memory, over all halves.
    pub(super) fn registered_bytes(&self) -> u64 {
        self.units.iter().map(|unit| unit.memory.bytes()).sum()
    }

    pub(super) fn path(&self) -> Vec<String> {
        let links = self.units.iter().flat_map(|unit| unit.links.iter().flatten());
        links.map(|link| self.port.path(*link)).collect()
    }

    /// Returns the maximum bytes of an inline request.
    pub(super) fn inline_bytes_max(&self) -> u32 {
        self.inline_bytes_max
    }

    pub(super) fn fabric(&self) -> &Arc<dyn Fabric> {
        &self.fabric
    }

    /// Posts the requests of a half as far as the port takes them; the rest waits for the next poll.
    #[inline]
    pub(super) fn post_unit(&mut self, at: usize) {
        let Some(unit) = self.units.get_mut(at) else {
            return;
        };
        if unit.effects.is_empty() {
            return;
        }
        if !unit.effects.postings().is_empty() {
            post_receives(&mut self.port, unit);
        }
        let left = self.post_requests(at);
        self.units[at].backlog = left;
    }

    /// Returns whether requests were left.
    #[inline]
    fn post_requests(&mut self, at: usize) -> bool {
        while let Some(unit) = self.units.get_mut(at)
            && !unit.effects.requests().is_empty()
        {
            let count = unit.effects.requests().len();
            let Some(posted) = self.port.post_batch::<BATCH>(count, |at| unit.work(at)) else {
                unit.effects.posted(1); // the first one is to a lost peer
                continue;
            };
            for request in unit.effects.requests().iter().take(posted.accepted) {
                if let (true, Some(link)) = (request.signalled, unit.link(request.peer)) {
                    self.links.posted_signalled(link);
                }
            }
            unit.effects.posted(posted.accepted);
            match posted.stop {
                None => {}
                Some(Stop::Invalid(why)) => {
                    let text = format!("{} rejected a request: {why}", self.fabric.name());
                    // Its message was accepted already, so the link is closed.
                    if let Some(link) = self.units[at].work(0).map(|work| work.link) {
                        self.fail(link, Error::with(ErrorCode::BadForm, text));
                    }
                }
                Some(_) => return true,
            }
        }
        false
    }

    /// Posts a record of the only half to its only peer and empties it; what the port does not take is queued.
    /// `awaited` if no further request is known to follow.
    #[inline]
    pub(super) fn post_record(&mut self, record: &mut channel::InlineWrite, awaited: bool) {
        self.post_record_as_it_is(record, awaited);
        record.clear();
    }

    #[inline]
    fn post_record_as_it_is(&mut self, record: &channel::InlineWrite, awaited: bool) {
        let [unit] = &mut self.units[..] else {
            return;
        };
        let Some(link) = unit.links.first().copied().flatten() else {
            return; // the peer is lost, and the messages with it
        };
        let flags = WorkFlags { signalled: false, fence: false, awaited };
        let work = Work { id: WorkId(0), link, flags, operation: record.operation() };
        if self.port.post(&[work]).accepted == 0 {
            unit.effects.keep(Peer::ONLY, record);
            unit.backlog = true;
        }
    }

    /// Whether completions are expected that no event announces.
    #[inline]
    pub(super) const fn awaits(&self) -> bool {
        self.links.awaits()
    }

    /// Whether nothing is pending that no event of the port announces.
    pub(super) fn is_quiet(&self) -> bool {
        !self.links.is_resting() && self.early.is_empty() && !self.has_backlog()
    }

    /// Whether requests wait for space in the port; nothing more should be sent then.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.units.iter().any(|unit| unit.backlog && !unit.spent)
    }
}

impl<H: Half> Progress for Drive<H> {
    #[inline]
    fn port(&mut self) -> &mut EnginePort {
        &mut self.port
    }

    fn completed(&mut self, completion: &Completion) {
        let link = completion.link;
        let received =
            matches!(completion.kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate);
        let Some(place) = self.links.get(link) else {
            return;
        };
        if !received {
            self.links.request_completed(link);
        }
        let LinkEntry { unit, life, peer, stage, .. } = place;
        if self.units.get(unit).is_none_or(|unit| unit.life != life) {
            return;
        }
        let name = Name(completion.id.0 as u32);
        if received && completion.id == GUARD {
            let of = &self.units[unit];
            guard(&mut self.port, of.queue, of.memory.regions().bells);
            self.violated(unit, Some(link), Violation("a message where none comes"));
            return;
        }
        if received && completion.status != CompletionStatus::Success {
            let unit = &mut self.units[unit];
            unit.half.wasted(peer, name, &mut unit.effects);
        }
        // Messages that arrived before their peer was lost are delivered; if peers share receives, such a message
        // has consumed one of them.
        let wanted = match stage {
            LinkStage::Connecting => false,
            LinkStage::Open => true,
            LinkStage::Closed => received && completion.status == CompletionStatus::Success,
        };
        if !wanted {
            return;
        }
        if completion.status != CompletionStatus::Success {
            // The first failure of a link carries the cause and closes the link.
            let text = self.port.trouble(link);
            let text = text.unwrap_or_else(|| format!("{:?}", completion.status));
            if !matches!(completion.status, CompletionStatus::PeerLost | CompletionStatus::Flushed)
            {
                self.trouble_with(Error::with(ErrorCode::PeerLost, text));
            }
            self.lose(link);
            return;
        }
        match received {
            true => {
                let (bytes, immediate) = (completion.bytes, completion.immediate);
                let arrival = Arrival { peer, name, bytes, immediate };
                self.step_unit(unit, Some(link), |half, own, effects| {
                    half.arrived(arrival, own, effects)
                });
            }
            false => {
                let completed = Completed { peer, name };
                self.step_unit(unit, Some(link), |half, own, effects| {
                    half.completed(completed, own, effects)
                });
            }
        }
    }

    fn handle_links(&mut self, _landed: bool) -> bool {
        let port = &mut self.port;
        self.links.release(|link| port.may_land(link));
        let early = std::mem::take(&mut self.early);
        let early = early.into_iter().map(|(link, hello)| ConnectionEvent::Requested(link, hello));
        let events = self.port.connection_events();
        let any = !events.is_empty();
        early.chain(events).for_each(|event| self.link_event(event));
        any
    }

    #[inline]
    fn step(&mut self, _landed: usize, _linked: bool) -> bool {
        for at in 0..self.units.len() {
            if !self.units[at].spent {
                self.step_unit(at, None, |half, own, effects| half.advance(own, effects));
            }
        }
        false
    }

    #[inline]
    fn post(&mut self) -> bool {
        for at in 0..self.units.len() {
            if !self.units[at].spent {
                self.post_unit(at);
            }
        }
        false
    }
}

impl<H> Drop for Drive<H> {
    fn drop(&mut self) {
        self.links.not_closed().for_each(|link| self.port.close(link));
        // Their memory must be deregistered before the port closes.
        self.units.clear();
    }
}

/// Posts a receive on a queue that expects no messages.
fn guard(port: &mut EnginePort, queue: ReceiveQueueId, region: RegionId) {
    port.post_receive(GUARD, queue, LocalSlice { region, offset: 0, bytes: 0 });
}

fn post_receives<H>(port: &mut EnginePort, unit: &mut Unit<H>) {
    for posting in unit.effects.postings() {
        port.post_receive(WorkId(u64::from(posting.name.0)), unit.queue, posting.into);
    }
    unit.effects.receives_posted();
}
