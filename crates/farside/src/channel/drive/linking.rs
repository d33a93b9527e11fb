//! Connections of an end: dialling, checks of the hello, and a half and a number for each peer.

use super::super::hello::{Hello, Reply, Role, Tokens};
use super::Drive;
use crate::progress::{ConnectionEvent, EnginePort};
use crate::refusal::Refusal;
use crate::{Error, ErrorCode};
use farside_base::{LinkId, RegionToken};
use farside_protocol::channel::{Half, Peer, PeerRegions};

/// Returns the role of a half, for the peer.
const fn role<H: Half>() -> Role {
    if H::SENDS { Role::Sender } else { Role::Receiver }
}

impl<H: Half> Drive<H> {
    pub(super) fn connect(&mut self, name: &str, connection: u64) -> Result<(), Error> {
        let unit = &self.units[0];
        let (kind, role, shape, tokens) =
            (self.kind, role::<H>(), self.shape, unit.memory.tokens());
        let value_bytes = self.value_bytes;
        let hello = Hello { kind, role, connection, value_bytes, shape, tokens }.encode();
        let link = self.port.connect(name, &hello, unit.queue)?;
        self.links.add(link, (0, unit.life), Peer::ONLY, connection);
        Ok(())
    }

    pub(super) fn link_event(&mut self, event: ConnectionEvent) {
        match event {
            ConnectionEvent::Requested(link, hello) => {
                if let Err(refusal) = self.check(&hello) {
                    let _ = self.port.refuse(link, &refusal.encode());
                } else if self.waits_for_number() {
                    self.early.push((link, hello));
                } else if let Err(refusal) = self.requested(link, &hello) {
                    let _ = self.port.refuse(link, &refusal.encode());
                }
            }
            ConnectionEvent::Connected(link, reply) => match Reply::decode(&reply) {
                Some(Reply { tokens, number }) => self.join(link, &tokens, number),
                None => {
                    let text = "the reply is not one of a channel";
                    self.fail(link, Error::with(ErrorCode::ProtocolViolation, text));
                }
            },
            ConnectionEvent::Refused(link, reason) => {
                let error = Error::from(Refusal::decode(&reason));
                self.refused = Some(error.clone());
                self.fail(link, error);
            }
            ConnectionEvent::NotReached(link, error) => self.fail(link, error),
            ConnectionEvent::Lost(link) => self.lose(link),
        }
    }

    /// Returns why a connecting end cannot be a peer of this channel.
    fn check(&self, hello: &[u8]) -> Result<(), Refusal> {
        let hello = Hello::decode(hello)?;
        hello.check(self.kind, role::<H>(), &self.shape, self.value_bytes)?;
        if self.links.not_closed().count() >= self.peers_max {
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
        self.links.add(link, (unit, self.units[unit].life), peer, hello.connection);
        self.step_unit(unit, None, |half, own, effects| half.prepare(peer, own, effects));
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
        let rests = |peer| self.links.rests(unit.life, Some(peer));
        let seats = (0_u16..).map(Peer).zip(&unit.links);
        seats.filter(|(_, link)| link.is_none()).map(|(peer, _)| peer).find(|peer| !rests(*peer))
    }

    /// Whether a peer can be added once the completions of closed links have been polled.
    fn waits_for_number(&self) -> bool {
        H::shares(self.kind)
            && !self.units[0].spent
            && self.links.is_resting()
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
        let Some(place) = self.links.get(link) else {
            return;
        };
        let import = |port: &mut EnginePort| -> Result<PeerRegions, Error> {
            let bells = port.import(link, &tokens.bells)?;
            let mut or_bells = |token: &Option<RegionToken>| match token {
                Some(token) => port.import(link, token),
                None => Ok(bells),
            };
            let (buffer, counters) = (or_bells(&tokens.buffer)?, or_bells(&tokens.counters)?);
            Ok(PeerRegions { buffer, bells, counters, number })
        };
        match import(&mut self.port) {
            Ok(regions) => {
                self.links.opened(link);
                let unit = &mut self.units[place.unit];
                unit.links[usize::from(place.peer.0)] = Some(link);
                unit.had_peer = true;
                if !H::SENDS && self.kind.receiver_names_destination() {
                    unit.reached = self.port.reach(link, regions.buffer);
                }
                self.step_unit(place.unit, Some(link), |half, own, effects| {
                    half.connected(place.peer, regions, own, effects)
                });
                self.post_unit(place.unit);
            }
            Err(error) => self.fail(link, error),
        }
    }
}
