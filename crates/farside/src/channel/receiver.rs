//! The receiving end of a channel.

use super::drive::Drive;
use super::ends::common_methods;
use super::memory::{MemoryView, MessageMemory};
use super::options::Options;
use crate::buffer::{Buffer, Slice};
use crate::port_wait::{Awaited, Sleeper, Waits, wait, wait_async};
use crate::progress::EnginePort;
use crate::{Error, ErrorCode};
use farside_protocol::channel::{
    self as machine, Content, HalfRefusal, HeldMessage, Kind, Shape, Signal,
};
use std::sync::Arc;
use std::time::Duration;

/// The port is polled, for losses and completions, once per this many checks of the bells that find nothing.
const EMPTY_CHECKS_PER_POLL: u32 = 64;

/// A message that has arrived, in the channel's memory until [`Receiver::release`].
#[derive(Debug)]
#[must_use = "its memory is freed by Receiver::release"]
pub struct Message {
    unit: usize,
    life: u64,
    peer: u16,
    held: HeldMessage,
    content: Content,
    memory: MessageMemory,
}

impl Message {
    /// Returns its length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        length(self.content)
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the number of its sender, in the order of connecting; numbers of lost senders are reused.
    pub const fn from(&self) -> usize {
        // One half for all senders, or one half per sender.
        self.unit + self.peer as usize
    }

    /// Returns its offset in the channel's buffer; `None` for an integer.
    pub const fn place(&self) -> Option<u64> {
        match self.content {
            Content::Buffer { offset, .. } => Some(offset),
            Content::Integer(_) => None,
        }
    }

    /// Copies a part of it out.
    ///
    /// # Errors
    /// `OutOfBounds` if the part passes its end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        read(self.memory.view(), self.content, offset, out)
    }

    /// Returns a copy of it.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = vec![0; self.len()];
        let read = self.read(0, &mut out);
        debug_assert!(read.is_ok(), "a message is within its memory");
        out
    }
}

/// A message shown in place, before it is released.
#[derive(Clone, Copy, Debug)]
pub struct Incoming<'a> {
    memory: MemoryView<'a>,
    content: Content,
    from: usize,
}

impl Incoming<'_> {
    /// Returns its length in bytes.
    #[inline]
    pub const fn len(&self) -> usize {
        length(self.content)
    }

    /// Whether it is empty.
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
    /// `OutOfBounds` if the part passes its end; nothing is copied then.
    #[inline]
    pub fn read(&self, offset: usize, out: &mut [u8]) -> Result<(), Error> {
        read(self.memory, self.content, offset, out)
    }
}

#[inline]
const fn length(content: Content) -> usize {
    match content {
        Content::Buffer { bytes, .. } => bytes as usize,
        Content::Integer(_) => 4,
    }
}

/// Returns the offset of a part of a message in its memory.
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
fn read(
    memory: MemoryView<'_>,
    content: Content,
    offset: usize,
    out: &mut [u8],
) -> Result<(), Error> {
    let at = within(content, offset, out.len())?;
    match content {
        Content::Buffer { .. } => memory.read(at, out),
        Content::Integer(integer) => {
            let bytes = integer.to_le_bytes();
            out.copy_from_slice(bytes.get(offset..offset + out.len()).unwrap_or_default());
            Ok(())
        }
    }
}

/// A message that can be fetched into memory of the receiver's choice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Offer {
    unit: usize,
    life: u64,
    held: HeldMessage,
    bytes_max: u32,
    /// Its offset at the sender, if `bytes_max` is its exact length.
    place: Option<u64>,
}

impl Offer {
    /// Returns its maximum length in bytes.
    pub const fn bytes_max(&self) -> u32 {
        self.bytes_max
    }
}

/// The receiving end of a channel: from one sender, or from all connected senders (fan-in).
///
/// *Order.* Messages of one sender arrive in the order of sending, unless the channel states otherwise; those of
/// different senders in any order. *Threads.* Used by one thread at a time; makes progress only within its calls.
pub struct Receiver {
    pub(super) drive: Drive<machine::Receiver>,
    /// The half that is polled first.
    next: usize,
    /// Checks of the memory that found nothing since the port was polled.
    empty_checks: u32,
}

impl Receiver {
    /// Whether events of the port announce it.
    fn announces(&self, awaited: Awaited) -> bool {
        match awaited {
            Awaited::Peers => true,
            Awaited::Messages => self.arrives_by_completion(),
            Awaited::Words => false,
        }
    }

    /// The end that a progress engine drives.
    fn driven(drive: Drive<machine::Receiver>) -> Result<Self, Error> {
        Ok(Self { drive, next: 0, empty_checks: 0 })
    }

    /// Returns the next message, if one has arrived.
    ///
    /// *Cost*: if messages are written to this end and none has arrived, one load per sender. Never blocks or
    /// allocates; calls the kernel only where the fabric's port does.
    ///
    /// # Errors
    /// `PeerLost` if the only sender is lost and all its messages were received (a listening end continues with the
    /// next one); `ProtocolViolation` if a peer violated the protocol: it is disconnected, the others are not;
    /// `ChannelMismatch`; `BadForm` with [`Options::offers_only`].
    #[inline]
    pub fn poll(&mut self) -> Result<Option<Message>, Error> {
        if self.drive.offers_only {
            return Err(offers_only());
        }
        if self.drive.awaits() && !self.arrives_by_completion() {
            self.drive.poll();
        }
        if !self.arrives_by_completion() {
            if let Some(message) = self.poll_halves()? {
                return Ok(Some(message));
            }
            self.empty_checks += 1;
            if self.empty_checks < EMPTY_CHECKS_PER_POLL
                && !self.drive.kind.receiver_names_destination()
            {
                return Ok(None);
            }
        }
        self.empty_checks = 0;
        self.drive.poll();
        match self.poll_halves()? {
            Some(message) => Ok(Some(message)),
            None => self.nothing(),
        }
    }

    /// Receives up to `max` messages, passes each to `see` in place and releases it afterwards: the fastest way to
    /// receive. Returns how many there were.
    ///
    /// *Cost*: as [`Self::poll`] and [`Self::release`], without allocating a message.
    ///
    /// # Errors
    /// As [`Self::poll`], if there was no message.
    #[inline]
    pub fn drain(&mut self, max: usize, mut see: impl FnMut(Incoming<'_>)) -> Result<usize, Error> {
        if self.drive.offers_only {
            return Err(offers_only());
        }
        if self.drive.awaits() && !self.arrives_by_completion() {
            self.drive.poll();
        }
        if !self.arrives_by_completion() {
            let taken = self.take_some(max, &mut see);
            if taken > 0 {
                return Ok(taken);
            }
            self.empty_checks += 1;
            if self.empty_checks < EMPTY_CHECKS_PER_POLL
                && !self.drive.kind.receiver_names_destination()
            {
                return Ok(0);
            }
        }
        self.empty_checks = 0;
        self.drive.poll();
        match self.take_some(max, &mut see) {
            0 if max > 0 => self.nothing().map(|_| 0),
            taken => Ok(taken),
        }
    }

    /// Drains the halves round robin, without polling the port.
    #[inline]
    fn take_some(&mut self, max: usize, see: &mut impl FnMut(Incoming<'_>)) -> usize {
        let mut taken = 0;
        let count = self.drive.units.len();
        // Each call begins with another half, so that none starves.
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
                let memory = MemoryView::Own(own.buffer);
                see(Incoming { memory, content, from: at + usize::from(peer.0) });
            });
            taken += some;
            if let Err(violation) = end {
                self.drive.violated(at, None, violation);
            }
            if !self.drive.units[at].effects.is_empty() {
                self.drive.post_unit(at);
            }
        }
        taken
    }

    /// Whether messages appear in the port before they appear in memory.
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

    /// Polls each half once, beginning after the one with the last message.
    #[inline]
    fn poll_halves(&mut self) -> Result<Option<Message>, Error> {
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
                self.drive.post_unit(at);
            }
            if let Some(machine::Received { held, peer, content }) = received {
                self.next = if at + 1 < count { at + 1 } else { 0 };
                let memory = MessageMemory::of(self.drive.units[at].buffer());
                let message = Message { unit: at, life, peer: peer.0, held, content, memory };
                return Ok(Some(message));
            }
        }
        Ok(None)
    }

    /// Returns the memory of a message to its sender; in any order.
    #[inline]
    pub fn release(&mut self, message: Message) {
        let Some(unit) = self.drive.units.get_mut(message.unit) else {
            return;
        };
        if unit.life != message.life {
            return; // of a lost sender, whose memory was freed
        }
        let (half, own, effects) = unit.parts();
        let released = half.release(message.held, own, effects);
        debug_assert!(released.is_ok(), "a message is released once, since this takes it");
        if !unit.effects.is_empty() {
            self.drive.post_unit(message.unit);
        }
    }

    /// Acknowledges released messages now instead of batching the acknowledgement.
    pub fn acknowledge(&mut self) {
        for at in 0..self.drive.units.len() {
            let (half, own, effects) = self.drive.units[at].parts();
            half.acknowledge(own, effects);
            self.drive.post_unit(at);
        }
    }

    /// Returns a message that can be fetched into memory of the caller's choice, for channels whose receiver
    /// fetches.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn offer(&mut self) -> Result<Option<Offer>, Error> {
        self.drive.poll();
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
            self.drive.post_unit(at);
            if let Some(machine::Offer { held, bytes_max, place, .. }) = offered {
                return Ok(Some(Offer { unit: at, life, held, bytes_max, place }));
            }
        }
        self.nothing().map(|_| None)
    }

    /// Shows an offered message in its sender's memory, without copy or request. `None` if the fabric must fetch
    /// it, and for channels whose offers lack the length.
    ///
    /// *Visibility*: whole, until [`Self::decline`]. *Trust*: its sender can change it meanwhile; copy what must
    /// not change before checking it.
    pub fn look_at(&self, offer: &Offer) -> Option<Incoming<'_>> {
        let unit = self.drive.units.get(offer.unit).filter(|unit| unit.life == offer.life)?;
        let reached = unit.reached.as_ref()?;
        let content = Content::Buffer { offset: offer.place?, bytes: offer.bytes_max };
        Some(Incoming { memory: MemoryView::OfPeer(reached), content, from: offer.unit })
    }

    /// Returns an offered message to its sender without fetching it, because it was read in place or is not needed.
    ///
    /// # Errors
    /// `NotHeld` if it was fetched or declined before, and for channels whose offers lack the length: fetch those.
    /// `PeerLost`.
    pub fn decline(&mut self, offer: Offer) -> Result<(), Error> {
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let released = half.release(offer.held, own, effects);
        self.drive.post_unit(offer.unit);
        released.map_err(|_| ErrorCode::NotHeld.into())
    }

    /// Fetches an offered message into `into`, which must not be used until [`Self::fetched`].
    ///
    /// # Errors
    /// `TooLarge` if it does not fit; `NotHeld` if it was fetched before; `BadForm` if the channel cannot access
    /// that memory.
    pub fn receive_into(&mut self, offer: Offer, into: Slice) -> Result<(), Error> {
        let into = into.over(self.drive.fabric())?;
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let result = half.receive_into(offer.held, into, own, effects);
        self.drive.post_unit(offer.unit);
        result.map_err(|refusal| match refusal {
            HalfRefusal::TooLong { .. } => {
                let text =
                    format!("the message may have {} bytes: pass a longer slice", offer.bytes_max);
                Error::with(ErrorCode::TooLarge, text)
            }
            HalfRefusal::Form(form) => Error::with(ErrorCode::BadForm, form),
            HalfRefusal::Lost | HalfRefusal::NotConnected => ErrorCode::PeerLost.into(),
            HalfRefusal::Full | HalfRefusal::NoSuch(_) => ErrorCode::NotHeld.into(),
        })
    }

    /// Returns the length of a message being fetched, once it has arrived. Its memory at the sender is then
    /// released.
    ///
    /// # Errors
    /// As [`Self::poll`].
    pub fn fetched(&mut self, offer: Offer) -> Result<Option<u32>, Error> {
        self.drive.poll();
        let Some(unit) =
            self.drive.units.get_mut(offer.unit).filter(|unit| unit.life == offer.life)
        else {
            return Err(ErrorCode::PeerLost.into());
        };
        let (half, own, effects) = unit.parts();
        let fetched = half.fetched(offer.held, own, effects);
        self.drive.post_unit(offer.unit);
        match fetched {
            Some(bytes) => Ok(Some(bytes)),
            None => self.nothing().map(|_| None),
        }
    }

    /// Waits for the next message.
    ///
    /// *Blocks*: spins at first. Then a channel with events sleeps until one arrives ([`can_sleep`]); any other
    /// sleeps between polls.
    ///
    /// # Errors
    /// As [`Self::poll`]; `TimedOut`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Message, Error> {
        wait(self, Awaited::Messages, timeout, Self::poll)
    }

    /// Awaits the next message, on any executor. Dropping the future loses nothing.
    ///
    /// *Cost*: the thread of this end, started by the first suspended future, wakes the task: by an event for a
    /// channel with events ([`can_sleep`]), else at intervals that grow from 20 to 500 us.
    ///
    /// # Errors
    /// As [`Self::poll`]; `System` if that thread cannot be started.
    pub async fn receive_async(&mut self) -> Result<Message, Error> {
        self.receive_with_async(Self::poll).await
    }

    /// Repeats a receive of any form until it has a result, waiting as [`Self::receive`] does.
    ///
    /// ```
    /// # use farside::channel::{Kind, Options, Receiver, Sender};
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), farside::Error> {
    /// # let fabric = farside::fabrics::shared_memory()?;
    /// # let name = format!("receive-with-{}", std::process::id());
    /// # let second = Duration::from_secs(20);
    /// let options = Options::new(Kind::RingInlined, 64);
    /// let mut receiver = Receiver::listen(fabric.clone(), &name, &options)?;
    /// let mut sender = Sender::connect(fabric, &name, &options)?;
    /// receiver.wait_for_peers(1, second)?;
    /// sender.send_wait(b"shown in place", second)?;
    ///
    /// let mut bytes = [0; 14];
    /// let count = receiver.receive_with(second, |receiver| {
    ///     let count = receiver.drain(16, |message| message.read(0, &mut bytes).unwrap_or(()))?;
    ///     Ok((count > 0).then_some(count))
    /// })?;
    /// assert_eq!((count, &bytes), (1, b"shown in place"));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// Those of the attempt; `TimedOut`.
    pub fn receive_with<T>(
        &mut self,
        timeout: Duration,
        attempt: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        wait(self, Awaited::Messages, timeout, attempt)
    }

    /// The same as [`Self::receive_with`], for any executor and without a timeout.
    ///
    /// # Errors
    /// Those of the attempt; `System` if the thread that wakes the task cannot be started.
    pub async fn receive_with_async<T>(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<Option<T>, Error>,
    ) -> Result<T, Error> {
        wait_async(self, Awaited::Messages, |receiver| {
            // Attempts are rare: each one polls the port too.
            receiver.empty_checks = EMPTY_CHECKS_PER_POLL;
            attempt(receiver)
        })
        .await
    }

    /// Waits for an [`Offer`], for channels whose receiver fetches.
    ///
    /// *Blocks*, as [`Self::receive`].
    ///
    /// # Errors
    /// As [`Self::poll`]; `TimedOut`.
    pub fn offer_wait(&mut self, timeout: Duration) -> Result<Offer, Error> {
        self.receive_with(timeout, Self::offer)
    }

    /// The same as [`Self::offer_wait`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::poll`]; `System` if the thread that wakes the task cannot be started.
    pub async fn offer_async(&mut self) -> Result<Offer, Error> {
        self.receive_with_async(Self::offer).await
    }

    /// Fetches an offered message into `into` and waits until it has arrived; returns its length.
    ///
    /// *Blocks*: spins at first, then sleeps between polls.
    ///
    /// # Errors
    /// As [`Self::receive_into`] and [`Self::fetched`]; `TimedOut`.
    pub fn fetch(&mut self, offer: Offer, into: Slice, timeout: Duration) -> Result<u32, Error> {
        self.receive_into(offer, into)?;
        wait(self, Awaited::Words, timeout, |receiver| receiver.fetched(offer))
    }

    /// The same as [`Self::fetch`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::fetch`]; `System` if the thread that wakes the task cannot be started.
    pub async fn fetch_async(&mut self, offer: Offer, into: Slice) -> Result<u32, Error> {
        self.receive_into(offer, into)?;
        wait_async(self, Awaited::Words, |receiver| receiver.fetched(offer)).await
    }

    /// Acknowledges all released messages, waits until every sender has disconnected, and disconnects.
    ///
    /// [`Sender::close`] is its counterpart: it returns when all messages are acknowledged. Messages that have not
    /// been received by then are lost. The links are closed too if it fails.
    ///
    /// *Blocks*: spins at first, then sleeps until an event of the port.
    ///
    /// [`Sender::close`]: super::Sender::close
    ///
    /// # Errors
    /// As [`Self::progress`]; `TimedOut`.
    pub fn close(mut self, timeout: Duration) -> Result<(), Error> {
        wait(&mut self, Awaited::Peers, timeout, Self::poll_close)
    }

    /// The same as [`Self::close`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::progress`]; `System` if the thread that wakes the task cannot be started.
    pub async fn close_async(mut self) -> Result<(), Error> {
        wait_async(&mut self, Awaited::Peers, Self::poll_close).await
    }

    fn poll_close(&mut self) -> Result<Option<()>, Error> {
        self.acknowledge();
        match self.drive.poll_for_peers(|peers| peers == 0) {
            // A lost sender has disconnected too.
            Err(error) if error.code == ErrorCode::PeerLost => {
                Ok((self.peers() == 0).then_some(()))
            }
            polled => polled,
        }
    }

    /// Returns the connection of a message, while its sender is connected.
    pub(super) fn connection(&self, message: &Message) -> Option<u64> {
        self.drive.connection(message.unit, machine::Peer(message.peer))
    }

    /// Polls the port and continues pending operations, without receiving messages. Every call does this when needed.
    ///
    /// # Errors
    /// `ProtocolViolation` if a peer violated the protocol; `ChannelMismatch` and `ChannelFull` if the sender refused
    /// this end. A lost sender is reported by [`Self::poll`], after its messages.
    pub fn progress(&mut self) -> Result<(), Error> {
        self.drive.poll();
        self.drive.trouble().map_or(Ok(()), Err)
    }

    /// Whether a sender of this connection is connected.
    pub(super) fn is_connected(&self, connection: u64) -> bool {
        self.drive.unit_of(connection).is_some()
    }
}

#[cold]
fn offers_only() -> Error {
    Error::with(ErrorCode::BadForm, "this receiver takes offers only")
}

/// Whether a receiver of this channel can sleep until a message arrives (001 Table 2, "blocking").
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

common_methods!(Receiver, "sender", "senders");
