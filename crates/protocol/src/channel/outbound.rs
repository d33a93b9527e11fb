//! Senders of one receiver: the room that it has acknowledged, the sources in use, and the WRITE of a message with the
//! words around it.

use super::acknowledge::{ACKNOWLEDGEMENT, Progress};
use super::canary::{ChannelMutant, mutant};
use super::effects::{Effects, InlineWrite, Name, Notify, Peer};
use super::half::{
    Accepted, Arrival, Checked, Completed, HalfRefusal, Own, OwnRegions, Payload, PeerRegions,
    Sending, Step, WORD,
};
use super::shape::{Acknowledge, Shape};
use super::window::Window;
use farside_base::{LocalSlice, Memory, OutOfBounds, Planted, RemoteSlice};

/// The sender's bells: the receiver's progress in the first line, then the words gathered around messages: zeroes, a
/// one (in rings), and a word for each message in flight.
pub(super) const PROGRESS: u64 = 0;
const ZEROES: u64 = 64;
pub(super) const ONE: u64 = 80;
const WORDS: u64 = 128;

/// The size of these bells in bytes, with `step` bytes for each message.
pub(super) const fn staging_bytes(step: u64) -> u64 {
    WORDS + step * Window::MESSAGES as u64
}

/// The name of requests that are not messages; that of a message is its index in the window.
pub(super) const BELL: Name = Name(1 << 16);

/// A word next to a message in its WRITE.
#[derive(Clone, Copy)]
pub(super) enum FrameWord {
    Absent,
    Zero,
    One,
    Word(u64),
}

impl FrameWord {
    #[inline]
    const fn inline(self) -> ([u8; WORD as usize], usize) {
        match self {
            Self::Absent => ([0; 8], 0),
            Self::Zero => ([0; 8], 8),
            Self::One => (1_u64.to_le_bytes(), 8),
            Self::Word(word) => (word.to_le_bytes(), 8),
        }
    }
}

/// The words around a message: `before`, zeroes, the message, zeroes (only around bytes), `after`.
#[derive(Clone, Copy)]
pub(super) struct Frame {
    pub(super) before: FrameWord,
    pub(super) padding: u32,
    pub(super) trailing: u32,
    pub(super) after: FrameWord,
}

impl Frame {
    /// Nothing but the message.
    pub(super) const BARE: Self =
        Self { before: FrameWord::Absent, padding: 0, trailing: 0, after: FrameWord::Absent };
}

/// The size of the padding with which a message takes whole words.
#[inline]
pub(super) const fn padding(bytes: u32) -> u32 {
    bytes.next_multiple_of(8) - bytes
}

/// A sender's receiver, and its messages on their way there.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Outbound {
    pub(super) regions: OwnRegions,
    pub(super) peer: Option<PeerRegions>,
    pub(super) lost: bool,
    pub(super) shape: Shape,
    /// The bytes between the staged words of two messages.
    step: u64,
    /// The number or the position of the next message.
    pub(super) head: u64,
    pub(super) progress: Progress,
    pub(super) window: Window,
    pub(super) mutant: Planted<ChannelMutant>,
}

impl Outbound {
    /// Creates it without a receiver. Acknowledgements have steps of `unit`, staged words of `step` bytes.
    pub(super) fn new(
        shape: &Shape,
        regions: OwnRegions,
        way: Acknowledge,
        (unit, step): (u64, u64),
    ) -> Self {
        Self {
            regions,
            peer: None,
            lost: false,
            shape: *shape,
            step,
            head: 0,
            progress: Progress::new(way, Peer::ONLY, unit, PROGRESS),
            window: Window::default(),
            mutant: Planted::NONE,
        }
    }

    /// The receiver, unless it is gone.
    #[inline]
    pub(super) fn living(&self) -> Option<PeerRegions> {
        self.peer.filter(|_| !self.lost)
    }

    /// Connects the receiver.
    pub(super) fn connected(&mut self, regions: PeerRegions, effects: &mut Effects) {
        self.peer = Some(regions);
        self.progress.connected(&self.regions, effects);
    }

    /// Frees all sources: the receiver is gone.
    pub(super) const fn lost(&mut self) {
        self.lost = true;
        self.window.clear();
    }

    /// The receiver for a message, and its length, if it may be sent apart from room.
    #[inline]
    pub(super) fn check(&self, payload: Payload<'_>) -> Accepted<(PeerRegions, u32)> {
        let to = self.peer.ok_or(HalfRefusal::NotConnected)?;
        if self.lost {
            return Err(HalfRefusal::Lost);
        }
        match u32::try_from(payload.bytes()) {
            Ok(bytes) if bytes <= self.shape.message_bytes_max => Ok((to, bytes)),
            _ => Err(HalfRefusal::TooLong { bytes_max: self.shape.message_bytes_max }),
        }
    }

    /// Polls the acknowledged position.
    #[inline]
    pub(super) fn look<M: Memory>(&mut self, own: Own<'_, M>) -> Checked {
        self.progress.look(self.head, own)
    }

    /// READs the acknowledged position, if that is how it is known; the sender is full until then.
    pub(super) fn full(&mut self, to: &PeerRegions, effects: &mut Effects) -> HalfRefusal {
        self.progress.fetch(to, &self.regions, effects);
        HalfRefusal::Full
    }

    /// Adds a message to the window; a gathered source stays in use until its request has completed.
    #[inline]
    pub(super) const fn take(&mut self, payload: Payload<'_>) -> Sending {
        match payload {
            Payload::Bytes(_) => self.window.take_done(),
            Payload::Gather(_) => self.window.take(),
        }
    }

    /// The name of the next message.
    #[inline]
    pub(super) const fn name(&self) -> Name {
        Name(self.window.next_place())
    }

    /// WRITEs a message with the words around it.
    #[inline]
    pub(super) fn write<M: Memory>(
        &self,
        name: Name,
        frame: Frame,
        payload: Payload<'_>,
        (to, immediate): (RemoteSlice, Option<u32>),
        step: &mut Step<'_, M>,
    ) -> Result<(), OutOfBounds> {
        match payload {
            Payload::Bytes(message) => {
                let (before, after) = (frame.before.inline(), frame.after.inline());
                let zeroes = ([0; WORD as usize], frame.padding as usize);
                let trailing = (zeroes.0, frame.trailing as usize);
                let [before, zeroes, trailing, after] = [&before, &zeroes, &trailing, &after]
                    .map(|(word, bytes)| word.get(..*bytes).unwrap_or_default());
                let parts = [before, zeroes, message, trailing, after];
                step.effects.write_inline(Peer::ONLY, name, Notify::No, &parts, to, immediate);
            }
            Payload::Gather(message) => {
                let before = [self.staged(name, frame.before, frame.padding, step.own)?];
                let after = [self.staged(name, frame.after, 0, step.own)?];
                let parts = [&before[..], message, &after];
                step.effects.write_gather(Peer::ONLY, name, Notify::Yes, &parts, to, immediate);
            }
        }
        Ok(())
    }

    /// A word and zeroes after it, as a slice of the sender's bells.
    fn staged<M: Memory>(
        &self,
        name: Name,
        word: FrameWord,
        padding: u32,
        own: Own<'_, M>,
    ) -> Result<LocalSlice, OutOfBounds> {
        let whole = WORD as u32 + padding;
        let (offset, bytes) = match word {
            FrameWord::Absent => (ZEROES, padding),
            FrameWord::Zero => (ZEROES, whole),
            FrameWord::One => (ONE, whole),
            FrameWord::Word(word) => {
                let offset = WORDS + self.step * u64::from(name.0);
                own.bells.store_word(offset, word)?;
                (offset, whole)
            }
        };
        Ok(LocalSlice { region: self.regions.bells, offset, bytes })
    }

    /// WRITEs a word into the receiver's bells.
    #[inline]
    pub(super) fn write_word(&self, to: &PeerRegions, offset: u64, word: u64, out: &mut Effects) {
        let place = RemoteSlice { region: to.bells, offset };
        let word = word.to_le_bytes();
        out.write_inline(Peer::ONLY, BELL, Notify::No, &[&word], place, None);
    }
}

/// A sender of one receiver.
pub(super) trait PushSender: Sized {
    /// The common part.
    fn outbound(&mut self) -> &mut Outbound;
    fn outbound_ref(&self) -> &Outbound;

    /// As [`Sender::send`](super::Sender::send).
    fn send<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted;

    /// As [`Sender::ready`](super::Sender::ready).
    fn ready<M: Memory>(&mut self, payload: Payload<'_>, step: &mut Step<'_, M>) -> Accepted<()>;

    #[cfg(canary)]
    fn with_mutant(mut self, mutant: ChannelMutant) -> Self {
        self.outbound().mutant = Planted::new(mutant);
        self
    }

    /// Continues after an acknowledgement.
    fn acknowledged(&mut self) {}

    fn connected(&mut self, _: Peer, to: PeerRegions, step: &mut Step<'_, impl Memory>) -> Checked {
        self.outbound().connected(to, step.effects);
        Ok(())
    }

    fn lost(&mut self, _: Peer) {
        self.outbound().lost();
    }

    fn advance<M: Memory>(&mut self, step: &mut Step<'_, M>) -> Checked {
        self.outbound().look(step.own)?;
        self.acknowledged();
        Ok(())
    }

    fn completed<M: Memory>(&mut self, completed: Completed, step: &mut Step<'_, M>) -> Checked {
        let outbound = self.outbound();
        match completed.name {
            ACKNOWLEDGEMENT => outbound.progress.fetched(outbound.head, step.own)?,
            BELL => return Ok(()),
            Name(place) => {
                outbound.window.done(place);
                return Ok(());
            }
        }
        self.acknowledged();
        Ok(())
    }

    fn arrived<M: Memory>(&mut self, arrival: Arrival, step: &mut Step<'_, M>) -> Checked {
        let Outbound { progress, head, regions, .. } = self.outbound();
        progress.arrived(*head, arrival.immediate, regions, step.effects)?;
        self.acknowledged();
        Ok(())
    }

    fn accused(&self) -> Option<Peer> {
        None
    }

    fn send_to<M: Memory>(&mut self, _: u32, _: Payload<'_>, _: &mut Step<'_, M>) -> Accepted {
        Err(HalfRefusal::NoSuch("slot to choose"))
    }

    fn send_at_once<M: Memory>(
        &mut self,
        _: &[u8],
        _: Own<'_, M>,
        _: &mut InlineWrite,
    ) -> Option<Sending> {
        None
    }

    fn loan<M: Memory>(&mut self, _: u32, _: Own<'_, M>) -> Option<LocalSlice> {
        None
    }

    fn flush<M: Memory>(&mut self, _: &mut Step<'_, M>) {}

    fn ask_progress(&mut self, effects: &mut Effects) {
        let outbound = self.outbound();
        let asks = !mutant!(outbound, TailNotAsked);
        if let Some(to) = outbound.living().filter(|_| asks) {
            outbound.progress.fetch(&to, &outbound.regions, effects);
        }
    }

    fn is_done(&self, sending: Sending) -> bool {
        self.outbound_ref().window.is_done(sending)
    }

    fn is_drained(&self) -> bool {
        let outbound = self.outbound_ref();
        outbound.window.is_empty() && outbound.progress.tail() == outbound.head
    }
}
