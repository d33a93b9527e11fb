//! The receiving end of a channel.

use super::awaiting::Ringer;
use super::buffer::{Buffer, Slice};
use super::drive::Drive;
use super::options::Options;
use crate::patience::Patience;
use crate::{Error, ErrorCode};
use farside_fabric::{Arena, Fabric, Port, Reached};
use farside_protocol::channel::{
    self as machine, Content, Held, Kind, ReceiveHalf, Refusal, Shape, Signal,
};
use std::sync::Arc;
use std::time::Duration;

/// A look at the port, for losses and completions, for each so many looks at bells in vain.
const LOOKS_PER_TURN: u32 = 64;

/// A message that has arrived and lies in the channel's memory until it is
/// [released](Receiver::release).
#[derive(Debug)]
#[must_use = "its memory is given back by Receiver::release"]
pub struct Message {
    unit: usize,
    life: u64,
    peer: u16,
    held: Held,
    content: Content,
    arena: Arena,
}

impl Message {
    /// Bytes of it.
    #[inline]
    pub const fn len(&self) -> usize {
        length(self.content)
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Which of the senders sent it: they are numbered as they connected, and numbers of those that
    /// are gone are given again.
    pub const fn from(&self) -> usize {
        // One half for all senders, or a half for each of them.
        self.unit + self.peer as usize
    }

    /// Where it lies in the channel's buffer; an integer lies nowhere.
    pub const fn place(&self) -> Option<u64> {
        match self.content {
            Content::Buffer { offset, .. } => Some(offset),
            Content::Integer(_) => None,
        }
    }

    /// Copies a part of it out.
    ///
    /// # Errors
    /// `OutOfBounds` when that passes its end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        read(&self.arena, self.content, offset, out)
    }

    /// A copy of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        let read = self.read(0, &mut out);
        debug_assert!(read.is_ok(), "a message lies in its memory");
        out
    }
}

/// A message that is looked at where it lies, before it is released.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    lies: Lies<'a>,
    content: Content,
    from: usize,
}

/// In whose memory a message is.
#[derive(Clone, Copy, Debug)]
enum Lies<'a> {
    Here(&'a Arena),
    AtSender(&'a Reached),
}

impl Incoming<'_> {
    /// Bytes of it.
    #[inline]
    pub const fn len(&self) -> usize {
        length(self.content)
    }

    /// Whether it has none.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// As [`Message::from`].
    pub const fn from(&self) -> usize {
        self.from
    }

    /// Copies a part of it out.
    ///
    /// # Errors
    /// `OutOfBounds` when that passes its end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        match self.lies {
            Lies::Here(arena) => read(arena, self.content, offset, out),
            Lies::AtSender(reached) => {
                let at = within(self.content, offset, out.len())?;
                reached.read(at, out).map_err(|_| ErrorCode::OutOfBounds.into())
            }
        }
    }
}

#[inline]
const fn length(content: Content) -> usize {
    match content {
        Content::Buffer { bytes, .. } => bytes as usize,
        Content::Integer(_) => 4,
    }
}

/// Where a part of a message begins in the memory that it lies in.
#[inline]
fn within(content: Content, offset: usize, bytes: usize) -> Result<u64, Error> {
    let fits = offset.checked_add(bytes).is_some_and(|end| end <= length(content));
    match content {
        Content::Buffer { offset: start, .. } if fits => Ok(start + offset as u64),
        Content::Integer(_) if fits => Ok(offset as u64),
        _ => Err(ErrorCode::OutOfBounds.into()),
    }
}

#[inline]
fn read(arena: &Arena, content: Content, offset: usize, out: &mut [u8]) -> Result<(), Error> {
    let at = within(content, offset, out.len())?;
    match content {
        Content::Buffer { .. } => arena.read(at, out).map_err(|_| ErrorCode::OutOfBounds.into()),
        Content::Integer(integer) => {
            let bytes = integer.to_le_bytes();
            out.copy_from_slice(bytes.get(offset..offset + out.len()).unwrap_or_default());
            Ok(())
        }
    }
}

/// A message that can be fetched to where the receiver likes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    unit: usize,
    life: u64,
    held: Held,
    bytes_max: u32,
    /// Where it lies at the sender, if it has just so many bytes.
    place: Option<u64>,
}

impl Offer {
    /// Most bytes that it has.
    pub const fn bytes_max(&self) -> u32 {
        self.bytes_max
    }
}

/// The receiving end of a channel: of one sender, or of all that connected (N:1).
///
/// *Order.* Messages of one sender come in the order of sending, but for channels that say
/// otherwise; those of different senders in any. *Threads.* Used by one thread at a time; nothing
/// happens but in its calls.
pub struct Receiver {
    drive: Drive<machine::Receiver>,
    /// The half that is looked at first.
    next: usize,
    looks: u32,
    /// Wakes the task that awaits; made when one does for the first time.
    ringer: Option<Ringer>,
}

impl Receiver {
    /// Listens at `name` for senders, at most [`Options::peers`].
    ///
    /// # Errors
    /// `FabricLacks` names what the channel needs and the fabric has not; `BadConfiguration` names
    /// the bound that the options break; `AddressTaken`; `System`.
    pub fn listen(fabric: Arc<dyn Fabric>, name: &str, options: &Options) -> Result<Self, Error> {
        Self::open(fabric, name, options, true, 0)
    }

    /// Connects to the sender that listens at `name`.
    ///
    /// # Errors
    /// As [`Self::listen`]; `NobodyListens`. That the other end is another channel shows at the
    /// first call afterwards, as `ChannelMismatch`.
    pub fn connect(fabric: Arc<dyn Fabric>, name: &str, options: &Options) -> Result<Self, Error> {
        Self::open(fabric, name, options, false, 0)
    }

    /// Opens the end of a connection, or of a channel alone.
    pub(super) fn open(
        fabric: Arc<dyn Fabric>,
        name: &str,
        options: &Options,
        listens: bool,
        connection: u64,
    ) -> Result<Self, Error> {
        let drive = Drive::open(fabric, name, options, listens, connection)?;
        Ok(Self { drive, next: 0, looks: 0, ringer: None })
    }

    /// The next message, if one is here.
    ///
    /// *Cost*: where messages are written to this end, a look at one word for each sender when
    /// nothing is here. Never blocks or allocates; calls the kernel only where the fabric's
    /// port does.
    ///
    /// # Errors
    /// `PeerLost` when the only sender is gone and everything of it was received (an end that
    /// listens goes on with the next one); `ProtocolViolation` when a peer broke the protocol: it is
    /// cut off, the others are not; `ChannelMismatch`; `BadForm` with [`Options::offers_only`].
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Message>, Error> {
        if self.drive.offers_only {
            return Err(offers_only());
        }
        if self.drive.awaits() && !self.arrives_by_completion() {
            self.drive.turn();
        }
        if !self.arrives_by_completion() {
            if let Some(message) = self.look()? {
                return Ok(Some(message));
            }
            self.looks += 1;
            if self.looks < LOOKS_PER_TURN && !self.drive.kind.receiver_names_destination() {
                return Ok(None);
            }
        }
        self.looks = 0;
        self.drive.turn();
        match self.look()? {
            Some(message) => Ok(Some(message)),
            None => self.nothing(),
        }
    }

    /// Takes up to `max` messages, shows each to `see` where it lies and gives its memory back
    /// afterwards: the fastest way to receive. How many there were.
    ///
    /// *Cost*: as [`Self::poll`] and [`Self::release`], without anything that outlives the call.
    ///
    /// # Errors
    /// As [`Self::poll`], when there was no message.
    #[inline]
    pub fn drain(&mut self, max: usize, mut see: impl FnMut(Incoming<'_>)) -> Result<usize, Error> {
        if self.drive.offers_only {
            return Err(offers_only());
        }
        if self.drive.awaits() && !self.arrives_by_completion() {
            self.drive.turn();
        }
        if !self.arrives_by_completion() {
            let taken = self.take_some(max, &mut see);
            if taken > 0 {
                return Ok(taken);
            }
            self.looks += 1;
            if self.looks < LOOKS_PER_TURN && !self.drive.kind.receiver_names_destination() {
                return Ok(0);
            }
        }
        self.looks = 0;
        self.drive.turn();
        match self.take_some(max, &mut see) {
            0 if max > 0 => self.nothing().map(|_| 0),
            taken => Ok(taken),
        }
    }

    /// Takes messages of the halves in turn, without a look at the port.
    #[inline]
    fn take_some(&mut self, max: usize, see: &mut impl FnMut(Incoming<'_>)) -> usize {
        let mut taken = 0;
        let count = self.drive.units.len();
        // Each call begins with another half, so that none keeps the others waiting for ever.
        self.next = if self.next + 1 < count { self.next + 1 } else { 0 };
        for step in 0..count {
            let at =
                if self.next + step < count { self.next + step } else { self.next + step - count };
            let unit = &mut self.drive.units[at];
            if !unit.serves() {
                continue;
            }
            let (half, own, effects) = unit.parts();
            let (some, end) = half.drain(max - taken, own, effects, &mut |received| {
                let machine::Received { peer, content, .. } = received;
                let lies = Lies::Here(own.buffer);
                see(Incoming { lies, content, from: at + usize::from(peer.0) });
            });
            taken += some;
            if let Err(violation) = end {
                self.drive.violated(at, None, violation);
            }
            if !self.drive.units[at].effects.is_empty() {
                self.drive.post(at);
            }
        }
        taken
    }

    /// Whether messages show in the port before they show in memory.
    pub(super) fn arrives_by_completion(&self) -> bool {
        can_sleep(self.drive.kind, &self.drive.shape)
    }

    #[cold]
    fn nothing(&mut self) -> Result<Option<Message>, Error> {
        if let Some(error) = self.drive.trouble() {
            return Err(error);
        }
        self.drive.settle();
        if self.drive.is_lost() { Err(self.drive.lost()) } else { Ok(None) }
    }

    /// Asks each half once, beginning behind the one that had the last message.
    #[inline]
    fn look(&mut self) -> Result<Option<Message>, Error> {
        let count = self.drive.units.len();
        for step in 0..count {
            let at =
                if self.next + step < count { self.next + step } else { self.next + step - count };
            let Some(unit) = self.drive.units.get_mut(at).filter(|unit| unit.serves()) else {
                continue;
            };
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            let received = match half.receive(own, effects) {
                Ok(received) => received,
                Err(violation) => {
                    self.drive.violated(at, None, violation);
                    continue;
                }
            };
            if !unit.effects.is_empty() {
                self.drive.post(at);
            }
            if let Some(machine::Received { held, peer, content }) = received {
                self.next = if at + 1 < count { at + 1 } else { 0 };
                let arena = self.drive.units[at].buffer().clone();
                let message = Message { unit: at, life, peer: peer.0, held, content, arena };
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Gives the memory of a message back to its sender, in any order.
    #[inline]
    pub fn release(&mut self, message: Message) {
        let Some(unit) = self.drive.units.get_mut(message.unit) else {
            return;
        };
        if unit.life != message.life {
            return; // of a sender that is gone, whose memory went with it
        }
        let (half, own, effects) = unit.parts();
        let released = half.release(message.held, own, effects);
        debug_assert!(released.is_ok(), "a message is released once, since this takes it");
        if !unit.effects.is_empty() {
            self.drive.post(message.unit);
        }
    }

    /// Tells the senders now what has been released, instead of when it is much.
    pub fn acknowledge(&mut self) {
        for at in 0..self.drive.units.len() {
            let (half, own, effects) = self.drive.units[at].parts();
            half.acknowledge(own, effects);
            self.drive.post(at);
        }
    }

    /// A message that can be fetched to where the caller likes; of channels whose receiver fetches.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn offer(&mut self) -> Result<Option<Offer>, Error> {
        self.drive.turn();
        for at in 0..self.drive.units.len() {
            let unit = &mut self.drive.units[at];
            if !unit.serves() {
                continue;
            }
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            let offered = match half.offer(own, effects) {
                Ok(offered) => offered,
                Err(violation) => {
                    self.drive.violated(at, None, violation);
                    continue;
                }
            };
            self.drive.post(at);
            if let Some(machine::Offer { held, bytes_max, place, .. }) = offered {
                return Ok(Some(Offer { unit: at, life, held, bytes_max, place }));
            }
        }
        self.nothing().map(|_| None)
    }

    /// An offered message where it lies in its sender's memory: neither copied nor requested. `None`
    /// where the fabric must fetch it, and of channels whose offers do not tell the length.
    ///
    /// *Visibility*: whole, until [`Self::decline`] gives it back. *Trust*: its sender can change it
    /// meanwhile; copy what must not change before checking it.
    pub fn look_at(&self, offer: &Offer) -> Option<Incoming<'_>> {
        let unit = self.drive.units.get(offer.unit).filter(|unit| unit.life == offer.life)?;
        let reached = unit.reached.as_ref()?;
        let content = Content::Buffer { offset: offer.place?, bytes: offer.bytes_max };
        Some(Incoming { lies: Lies::AtSender(reached), content, from: offer.unit })
    }

    /// Gives an offered message back to its sender without fetching it: it was looked at in place, or
    /// is not wanted.
    ///
    /// # Errors
    /// `NotHeld` when it was fetched or declined before, and of channels whose offers do not tell
    /// the length: fetch those. `PeerLost`.
    pub fn decline(&mut self, offer: Offer) -> Result<(), Error> {
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let released = half.release(offer.held, own, effects);
        self.drive.post(offer.unit);
        released.map_err(|_| ErrorCode::NotHeld.into())
    }

    /// Fetches an offered message into `into`, which is to be left alone until
    /// [`Self::fetched`].
    ///
    /// # Errors
    /// `TooLarge` when it does not fit; `NotHeld` when it was fetched before; `BadForm` when the
    /// channel cannot reach that memory.
    pub fn receive_into(&mut self, offer: Offer, into: Slice) -> Result<(), Error> {
        let into = into.over(self.drive.fabric())?;
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let result = half.receive_into(offer.held, into, own, effects);
        self.drive.post(offer.unit);
        result.map_err(|refusal| match refusal {
            Refusal::TooLong { .. } => {
                let text = format!("the message may have {} bytes", offer.bytes_max);
                Error::with(ErrorCode::TooLarge, text)
            }
            Refusal::Form(form) => Error::with(ErrorCode::BadForm, form),
            Refusal::Lost | Refusal::NotConnected => ErrorCode::PeerLost.into(),
            Refusal::Full | Refusal::NoSuch(_) => ErrorCode::NotHeld.into(),
        })
    }

    /// Bytes of a message that is being fetched, once it is there. Its memory at the sender is given
    /// back with this.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn fetched(&mut self, offer: Offer) -> Result<Option<u32>, Error> {
        self.drive.turn();
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let fetched = half.fetched(offer.held, own, effects);
        self.drive.post(offer.unit);
        match fetched {
            Some(bytes) => Ok(Some(bytes)),
            None => self.nothing().map(|_| None),
        }
    }

    /// Waits for the next message.
    ///
    /// *Blocks*: spins at first. Then a channel whose messages come with events sleeps until one
    /// comes ([`can_sleep`]); any other naps between looks.
    ///
    /// # Errors
    /// As [`Self::poll`]; `TimedOut`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Message, Error> {
        let mut patience = Patience::new(timeout);
        loop {
            if let Some(message) = self.poll()? {
                return Ok(message);
            }
            if self.arrives_by_completion() {
                patience.wait_for_event(&mut *self.drive.port, None)?;
            } else {
                patience.wait()?;
            }
        }
    }

    /// The connection that a message came by, while its sender is there.
    pub(super) fn connection(&self, message: &Message) -> Option<u64> {
        self.drive.connection(message.unit, machine::Peer(message.peer))
    }

    /// Takes what has arrived but messages.
    pub(super) fn turn(&mut self) -> Result<(), Error> {
        self.drive.turn();
        self.drive.trouble().map_or(Ok(()), Err)
    }

    pub(super) fn peers_now(&self) -> usize {
        self.drive.peers()
    }

    /// Whether a sender of this connection is there.
    pub(super) fn knows(&self, connection: u64) -> bool {
        self.drive.unit_of(connection).is_some()
    }

    pub(super) const fn ringer(&self) -> Option<&Ringer> {
        self.ringer.as_ref()
    }

    pub(super) fn set_ringer(&mut self, ringer: Ringer) {
        self.ringer = Some(ringer);
    }

    pub(super) fn port(&mut self) -> &mut dyn Port {
        &mut *self.drive.port
    }

    /// Registered memory to receive into.
    ///
    /// # Errors
    /// `System` when it cannot be had.
    pub fn register(&self, bytes: u64) -> Result<Buffer, Error> {
        Buffer::new(self.drive.fabric(), bytes)
    }

    /// Senders that are connected.
    pub fn peers(&mut self) -> usize {
        self.drive.turn();
        self.drive.peers()
    }

    /// Which channel.
    pub const fn kind(&self) -> Kind {
        self.drive.kind
    }

    /// Bytes of memory that this end has registered, for all its peers.
    pub fn registered_bytes(&self) -> u64 {
        self.drive.registered_bytes()
    }

    /// Which path each link uses and why, for people.
    pub fn path(&self) -> Vec<String> {
        self.drive.path()
    }
}

#[cold]
fn offers_only() -> Error {
    Error::with(ErrorCode::BadForm, "this receiver takes offers only")
}

/// Whether a receiver of this channel can sleep until a message comes (001 Table 2, "blocking").
pub const fn can_sleep(kind: Kind, shape: &Shape) -> bool {
    match kind {
        Kind::Send
        | Kind::SendShared
        | Kind::SendBufferless
        | Kind::WriteSlotImmediate
        | Kind::RingImmediate
        | Kind::SharedRingImmediate => true,
        Kind::WriteSlotDetached
        | Kind::WriteSlotReserved
        | Kind::ReadSlotNotify
        | Kind::ReadSlotIndirect
        | Kind::ReadRingNotify => matches!(shape.signal, Signal::Message),
        _ => false,
    }
}

impl std::fmt::Debug for Receiver {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Receiver({}, {} peers)", self.drive.kind, self.drive.peers())
    }
}
