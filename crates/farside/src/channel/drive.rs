//! The progress engine of a channel: polls the port, drives the half-machines and posts their requests. Halves of
//! one kind and role, one for each peer or one for all, share a port.

use super::hello::{Hello, Refusal, Reply, Role, Tokens};
use super::memory::Memory;
use super::options::Options;
use super::waiting::Sleeper;
use crate::registered::{control, not_reached};
use crate::{Error, ErrorCode};
use farside_base::{
    Completion, CompletionKind, CompletionStatus, LinkId, LocalSlice, Receive, ReceiveQueueId,
    RegionId, RegionToken, Work, WorkFlags, WorkId,
};
use farside_fabric::{Arena, Fabric, FabricError, LinkEvent, Port, PortSpec, Reached, Stop};
use farside_protocol::channel::{
    self, Arrival, Completed, Effects, Half, Kind, MemoryPlan, Name, Own, Peer, PeerRegions, Shape,
};
use farside_protocol::wire::Violation;
use std::collections::VecDeque;
use std::sync::Arc;

/// Most requests posted with one doorbell.
const BATCH: usize = 32;
/// Requests of most calls: a message and its bell.
const FEW: usize = 2;
/// A receive on a queue that expects no messages. Without it, an unexpected message would wait for ever and hide
/// the loss of its sender.
const GUARD: WorkId = WorkId(u64::MAX);
/// Completions polled at a time.
const COMPLETIONS: usize = 64;
/// Most errors of peers kept until they are reported.
const TROUBLES: usize = 64;

/// Returns the role of a half, for the peer.
const fn role<H: Half>() -> Role {
    if H::SENDS { Role::Sender } else { Role::Receiver }
}

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
}

/// The half of a link, and its number for the peer.
#[derive(Clone, Copy)]
struct LinkEntry {
    unit: usize,
    /// The life of that half, as another may have replaced it since.
    life: u64,
    peer: Peer,
    stage: LinkStage,
    /// The connection of which the link is one direction.
    connection: u64,
    /// Signaled requests of the link in flight.
    awaited: u32,
}

/// The state of a link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum LinkStage {
    Connecting,
    Open,
    /// Closed; completions from before may still be polled.
    Closed,
}

/// The engine and everything it drives.
pub(super) struct Drive<H> {
    fabric: Arc<dyn Fabric>,
    pub(super) port: Box<dyn Port>,
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
    /// By link number.
    places: Vec<Option<LinkEntry>>,
    completions: Box<[Completion; COMPLETIONS]>,
    events: Vec<LinkEvent>,
    /// Signaled requests in flight over all open links: while there are any, the port must be polled.
    awaited: u32,
    /// Peers connected since the start.
    connected: usize,
    /// Halves created since the start.
    lives: u64,
    /// Closed links whose completions may not all have been polled yet.
    resting: Vec<(LinkId, LinkEntry)>,
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
        let needs = kind.requirements(&shape);
        needs.check(&has).map_err(|missing| {
            let (name, fabric) = (missing.0, fabric.name());
            let text = match needs.amounts(missing, &has) {
                None => format!("{kind} needs `{name}`, which {fabric} lacks"),
                Some((needed, had)) if name == "device_bytes_max" => format!(
                    "{kind} with {} slots and {} peers needs `{name}` of {needed}, and {fabric} has {had}: lower \
                     slots or peers, or place fewer words at the adapter (device)",
                    shape.slots, shape.peers_max
                ),
                Some((needed, had)) => format!(
                    "{kind} with messages of {} bytes needs `{name}` of {needed}, and {fabric} has {had}: \
                     lower message_bytes_max, or choose a channel that needs less (farside channels)",
                    shape.message_bytes_max
                ),
            };
            Error::with(ErrorCode::FabricLacks, text)
        })?;
        shape.check(kind).map_err(|bad| {
            let text = format!("{}; the options are {shape:?}", bad.0);
            Error::with(ErrorCode::BadConfiguration, text)
        })?;
        let listen = listens.then(|| name.to_owned());
        let port = fabric.open(&PortSpec { listen }).map_err(|error| control(&error))?;
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
            places: Vec::new(),
            completions: Box::new([Completion::BLANK; COMPLETIONS]),
            events: Vec::new(),
            awaited: 0,
            connected: 0,
            lives: 0,
            resting: Vec::new(),
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

    fn connect(&mut self, name: &str, connection: u64) -> Result<(), Error> {
        let unit = &self.units[0];
        let (kind, role, shape, tokens) =
            (self.kind, role::<H>(), self.shape, unit.memory.tokens());
        let value_bytes = self.value_bytes;
        let hello = Hello { kind, role, connection, value_bytes, shape, tokens }.encode();
        let link = self.port.connect(name, &hello, unit.queue).map_err(|error| control(&error))?;
        self.place(link, 0, Peer::ONLY, connection);
        Ok(())
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
        let queue =
            self.port.create_receive_queue(depth.max(1)).map_err(|error| control(&error))?;
        if depth == 0 {
            guard(&mut *self.port, queue, memory.regions().bells);
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

    fn place(&mut self, link: LinkId, unit: usize, peer: Peer, connection: u64) {
        let at = link.0 as usize;
        if self.places.len() <= at {
            self.places.resize(at + 1, None);
        }
        let life = self.units[unit].life;
        let stage = LinkStage::Connecting;
        self.places[at] = Some(LinkEntry { unit, life, peer, stage, connection, awaited: 0 });
    }

    /// Polls the port, advances every half and posts their requests.
    pub(super) fn poll(&mut self) {
        let rested = self.resting.len();
        loop {
            let count = self.port.poll(&mut self.completions[..]);
            for at in 0..count {
                let completion = self.completions[at];
                self.land(&completion);
            }
            if count < COMPLETIONS {
                break;
            }
        }
        if rested > 0 {
            // All completions of links closed before this poll have been polled: their numbers are free, unless a
            // preempted peer may still write.
            let (port, mut before) = (&mut self.port, rested);
            self.resting.retain(|(link, _)| {
                let closed_before = before > 0;
                before = before.saturating_sub(1);
                !closed_before || port.may_land(*link)
            });
        }
        self.port.link_events(&mut self.events);
        for (link, hello) in std::mem::take(&mut self.early) {
            self.link_event(LinkEvent::Requested { link, hello });
        }
        if !self.events.is_empty() {
            for event in std::mem::take(&mut self.events) {
                self.link_event(event);
            }
        }
        for at in 0..self.units.len() {
            if !self.units[at].spent {
                self.step(at, None, |half, own, effects| half.advance(own, effects));
                self.post(at);
            }
        }
    }

    /// Keeps an error until it is reported.
    fn trouble_with(&mut self, error: Error) {
        if self.troubles.len() < TROUBLES {
            self.troubles.push_back(error);
        }
    }

    /// Runs a step of a half; a violation closes the link to the peer.
    fn step(
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

    fn land(&mut self, completion: &Completion) {
        let link = completion.link;
        let received =
            matches!(completion.kind, CompletionKind::Receive | CompletionKind::ReceiveImmediate);
        let Some(Some(place)) = self.places.get(link.0 as usize).copied() else {
            return;
        };
        if !received {
            self.account_completion(link);
        }
        let LinkEntry { unit, life, peer, stage, .. } = place;
        if self.units.get(unit).is_none_or(|unit| unit.life != life) {
            return;
        }
        let name = Name(completion.id.0 as u32);
        if received && completion.id == GUARD {
            let of = &self.units[unit];
            guard(&mut *self.port, of.queue, of.memory.regions().bells);
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
                self.step(unit, Some(link), |half, own, effects| {
                    half.arrived(arrival, own, effects)
                });
            }
            false => {
                let completed = Completed { peer, name };
                self.step(unit, Some(link), |half, own, effects| {
                    half.completed(completed, own, effects)
                });
            }
        }
    }

    /// Accounts for the completion of a request; failed unsignaled requests complete too.
    fn account_completion(&mut self, link: LinkId) {
        if let Some(Some(place)) = self.places.get_mut(link.0 as usize)
            && place.awaited > 0
        {
            place.awaited -= 1;
            self.awaited -= 1;
        }
    }

    fn link_event(&mut self, event: LinkEvent) {
        match event {
            LinkEvent::Requested { link, hello } => {
                if let Err(refusal) = self.check(&hello) {
                    let _ = self.port.refuse(link, &refusal.encode());
                } else if self.waits_for_number() {
                    self.early.push((link, hello));
                } else if let Err(refusal) = self.requested(link, &hello) {
                    let _ = self.port.refuse(link, &refusal.encode());
                }
            }
            LinkEvent::Connected { link, reply } => match Reply::decode(&reply) {
                Some(Reply { tokens, number }) => self.join(link, &tokens, number),
                None => {
                    let text = "the reply is not one of a channel";
                    self.trouble_with(Error::with(ErrorCode::ProtocolViolation, text));
                    self.lose(link);
                }
            },
            LinkEvent::Refused { link, reason } => {
                let error = match Refusal::decode(&reason) {
                    Refusal::Mismatch(text) => Error::with(ErrorCode::ChannelMismatch, text),
                    Refusal::Full(text) => Error::with(ErrorCode::ChannelFull, text),
                };
                self.refused = Some(error.clone());
                self.trouble_with(error);
                self.lose(link);
            }
            LinkEvent::NotReached { link, why } => {
                let trouble = self.port.trouble(link);
                self.trouble_with(not_reached(why, trouble));
                self.lose(link);
            }
            LinkEvent::Lost { link, .. } => self.lose(link),
            _ => {}
        }
    }

    /// Returns why a connecting end cannot be a peer of this channel.
    fn check(&self, hello: &[u8]) -> Result<(), Refusal> {
        let hello = Hello::decode(hello)?;
        if hello.kind != self.kind {
            let text = format!("kind ({} there, {} here)", self.kind, hello.kind);
            return Err(Refusal::Mismatch(text));
        }
        if hello.role == role::<H>() {
            return Err("both ends have the same direction".into());
        }
        if hello.shape != self.shape {
            return Err(Refusal::Mismatch(hello.shape.differences(&self.shape)));
        }
        if hello.value_bytes != self.value_bytes {
            let text = format!(
                "bytes of a value ({} there, {} here; 0: the channel is not typed)",
                self.value_bytes, hello.value_bytes
            );
            return Err(Refusal::Mismatch(text));
        }
        if self.open_links() >= self.peers_max {
            let text = format!(
                "peers is {} at the listener, and all of them are connected",
                self.peers_max
            );
            return Err(Refusal::Full(text));
        }
        Ok(())
    }

    /// Accepts a connecting end, or returns why not.
    fn requested(&mut self, link: LinkId, hello: &[u8]) -> Result<(), Refusal> {
        let hello = Hello::decode(hello)?;
        let (unit, peer) = self
            .assign()
            .map_err(|error| Refusal::Full(format!("the listener cannot add a peer: {error}")))?;
        self.place(link, unit, peer, hello.connection);
        self.step(unit, None, |half, own, effects| half.prepare(peer, own, effects));
        let (tokens, queue) = (self.units[unit].memory.tokens(), self.units[unit].queue);
        let reply = Reply { tokens, number: peer }.encode();
        match self.port.accept(link, &reply, queue) {
            Ok(()) => self.join(link, &hello.tokens, Peer::ONLY),
            Err(_) => self.lose(link),
        }
        Ok(())
    }

    /// Returns a half and a number for a new peer.
    fn assign(&mut self) -> Result<(usize, Peer), Error> {
        if !H::shares(self.kind) {
            let spent = self.units.iter().position(|unit| unit.spent);
            let at = spent.unwrap_or(self.units.len());
            self.renew(at)?;
            return Ok((at, Peer::ONLY));
        }
        if self.units[0].spent {
            self.renew(0)?;
        }
        let free = self.unused_number();
        let free = free.ok_or(ErrorCode::ChannelFull)?;
        Ok((0, free))
    }

    /// Returns an unused number of the half that serves all peers.
    fn unused_number(&self) -> Option<Peer> {
        let unit = &self.units[0];
        let rests =
            |peer| self.resting.iter().any(|(_, at)| at.life == unit.life && at.peer == peer);
        let seats = (0_u16..).map(Peer).zip(&unit.links);
        seats.filter(|(_, link)| link.is_none()).map(|(peer, _)| peer).find(|peer| !rests(*peer))
    }

    /// Whether a peer can be added once the completions of closed links have been polled.
    fn waits_for_number(&self) -> bool {
        H::shares(self.kind)
            && !self.units[0].spent
            && !self.resting.is_empty()
            && self.unused_number().is_none()
    }

    /// Puts a new half at this index, replacing a spent one, or appends it.
    fn renew(&mut self, at: usize) -> Result<(), Error> {
        let fresh = self.new_unit()?;
        match self.units.get_mut(at) {
            Some(place) => {
                let before = std::mem::replace(place, fresh);
                // All its links are closed, so the queue is unused.
                let _ = self.port.destroy_receive_queue(before.queue);
            }
            None => self.units.push(fresh),
        }
        Ok(())
    }

    /// Completes a connection: imports the peer's regions and starts the half.
    fn join(&mut self, link: LinkId, tokens: &Tokens, number: Peer) {
        let Some(Some(place)) = self.places.get(link.0 as usize).copied() else {
            return;
        };
        let import = |port: &mut dyn Port| -> Result<PeerRegions, FabricError> {
            let bells = port.import(link, &tokens.bells)?;
            let mut or_bells = |token: &Option<RegionToken>| match token {
                Some(token) => port.import(link, token),
                None => Ok(bells),
            };
            let (buffer, counters) = (or_bells(&tokens.buffer)?, or_bells(&tokens.counters)?);
            Ok(PeerRegions { buffer, bells, counters, number })
        };
        match import(&mut *self.port) {
            Ok(regions) => {
                if let Some(Some(place)) = self.places.get_mut(link.0 as usize) {
                    place.stage = LinkStage::Open;
                }
                let unit = &mut self.units[place.unit];
                unit.links[usize::from(place.peer.0)] = Some(link);
                unit.had_peer = true;
                if !H::SENDS && self.kind.receiver_names_destination() {
                    unit.reached = self.port.reach(link, regions.buffer);
                }
                self.connected += 1;
                self.step(place.unit, Some(link), |half, own, effects| {
                    half.connected(place.peer, regions, own, effects)
                });
                self.post(place.unit);
            }
            Err(error) => {
                let text = error.to_string();
                self.trouble_with(Error::with(control(&error).code, text));
                self.lose(link);
            }
        }
    }

    /// Closes a link: after that nothing of it reaches memory, and the half is notified.
    fn lose(&mut self, link: LinkId) {
        self.port.close(link);
        let Some(Some(place)) = self.places.get_mut(link.0 as usize) else {
            return;
        };
        if std::mem::replace(&mut place.stage, LinkStage::Closed) == LinkStage::Closed {
            return;
        }
        self.awaited -= std::mem::take(&mut place.awaited);
        let place = *place;
        self.resting.push((link, place));
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

    fn open_links(&self) -> usize {
        self.places.iter().flatten().filter(|place| place.stage != LinkStage::Closed).count()
    }

    pub(super) fn peers(&self) -> usize {
        self.places.iter().flatten().filter(|place| place.stage == LinkStage::Open).count()
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
        let mut places = self.places.iter().flatten();
        let found = places.find(|place| {
            place.stage == LinkStage::Open && place.unit == unit && place.peer == peer
        });
        found.map(|place| place.connection)
    }

    /// Returns the half that serves this connection.
    pub(super) fn unit_of(&self, connection: u64) -> Option<usize> {
        let mut places = self.places.iter().flatten();
        let found =
            places.find(|place| place.stage == LinkStage::Open && place.connection == connection);
        found.map(|place| place.unit)
    }

    /// Whether all peers are lost and all their completions were polled.
    pub(super) fn is_lost(&self) -> bool {
        self.open_links() == 0 && self.resting.is_empty() && (self.connected > 0 || !self.listens)
    }

    /// Marks halves of lost peers as spent, once their messages are consumed.
    pub(super) fn settle(&mut self) {
        if H::shares(self.kind) {
            return;
        }
        for unit in &mut self.units {
            let rests = self.resting.iter().any(|(_, place)| place.life == unit.life);
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
    pub(super) fn post(&mut self, at: usize) {
        let Some(unit) = self.units.get_mut(at) else {
            return;
        };
        if unit.effects.is_empty() {
            return;
        }
        if !unit.effects.postings().is_empty() {
            post_receives(&mut *self.port, unit);
        }
        let left = self.post_requests(at);
        self.units[at].backlog = left;
    }

    /// Returns whether requests were left.
    #[inline]
    fn post_requests(&mut self, at: usize) -> bool {
        while let Some(unit) = self.units.get(at)
            && !unit.effects.requests().is_empty()
        {
            let (done, end) = post_some(&mut *self.port, unit);
            for request in unit.effects.requests().iter().take(done) {
                let link = unit.links.get(usize::from(request.peer.0)).copied().flatten();
                if let (true, Some(link)) = (request.signalled, link)
                    && let Some(Some(place)) = self.places.get_mut(link.0 as usize)
                {
                    place.awaited += 1;
                    self.awaited += 1;
                }
            }
            self.units[at].effects.posted(done);
            match end {
                PostEnd::Posted => {}
                PostEnd::Full => return true,
                PostEnd::Forbidden(link, why) => {
                    let text = format!("{} rejected a request: {why}", self.fabric.name());
                    self.trouble_with(Error::with(ErrorCode::BadForm, text));
                    self.lose(link);
                }
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
        self.awaited > 0
    }

    /// Whether nothing is pending that no event of the port announces.
    pub(super) fn is_quiet(&self) -> bool {
        self.resting.is_empty() && self.early.is_empty() && !self.has_backlog()
    }

    /// Whether requests wait for space in the port; nothing more should be sent then.
    #[inline]
    pub(super) fn has_backlog(&self) -> bool {
        self.units.iter().any(|unit| unit.backlog && !unit.spent)
    }
}

impl<H> Drop for Drive<H> {
    fn drop(&mut self) {
        let placed = self.places.iter().enumerate().filter_map(|(at, place)| {
            place.filter(|place| place.stage != LinkStage::Closed).map(|_| LinkId(at as u32))
        });
        for link in placed {
            self.port.close(link);
        }
        // Their memory must be deregistered before the port closes.
        self.units.clear();
    }
}

/// Posts a receive on a queue that expects no messages.
fn guard(port: &mut dyn Port, queue: ReceiveQueueId, region: RegionId) {
    let into = LocalSlice { region, offset: 0, bytes: 0 };
    let posted = port.post_receives(&[Receive { id: GUARD, queue, into }]);
    debug_assert!(posted.stop.is_none(), "{posted:?}");
}

fn post_receives<H>(port: &mut dyn Port, unit: &mut Unit<H>) {
    let queue = unit.queue;
    for posting in unit.effects.postings() {
        let id = WorkId(u64::from(posting.name.0));
        let receive = Receive { id, queue, into: posting.into };
        // The queue is as deep as the plan requires.
        let posted = port.post_receives(&[receive]);
        debug_assert!(posted.stop.is_none(), "{posted:?}");
    }
    unit.effects.receives_posted();
}

/// Outcome of a doorbell.
enum PostEnd {
    /// All were posted.
    Posted,
    /// The port takes no more at present.
    Full,
    /// The fabric rejects the next request. Its message was accepted already, so the link is closed.
    Forbidden(LinkId, &'static str),
}

/// Posts the first requests with one doorbell; returns how many are done.
#[inline]
fn post_some<H>(port: &mut dyn Port, unit: &Unit<H>) -> (usize, PostEnd) {
    let requests = unit.effects.requests();
    let work = |at: usize| -> Option<Work<'_>> {
        let request = &requests[at.min(requests.len() - 1)];
        let link = unit.links.get(usize::from(request.peer.0)).copied().flatten()?;
        Some(Work {
            id: WorkId(u64::from(request.name.0)),
            link,
            flags: WorkFlags { signalled: request.signalled, fence: request.fence, awaited: false },
            operation: unit.effects.operation(request),
        })
    };
    let Some(first) = work(0) else {
        return (1, PostEnd::Posted); // to a lost peer
    };
    let posted = if requests.len() == 1 {
        port.post(&[first])
    } else {
        // Up to the first request to a lost peer, which the next call drops.
        let living = (1..requests.len().min(BATCH)).find(|at| work(*at).is_none());
        let count = living.unwrap_or(requests.len().min(BATCH));
        if count <= FEW {
            let batch: [Work<'_>; FEW] =
                std::array::from_fn(|at| if at == 0 { first } else { work(at).unwrap_or(first) });
            port.post(&batch[..count])
        } else {
            let batch: [Work<'_>; BATCH] =
                std::array::from_fn(
                    |at| if at < count { work(at).unwrap_or(first) } else { first },
                );
            port.post(&batch[..count])
        }
    };
    let end = match posted.stop {
        None => PostEnd::Posted,
        Some(Stop::Invalid(why)) => {
            PostEnd::Forbidden(work(posted.accepted).map_or(first.link, |work| work.link), why)
        }
        Some(_) => PostEnd::Full,
    };
    (posted.accepted, end)
}
