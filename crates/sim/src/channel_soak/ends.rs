//! The two ends of a channel in a round: each performs a step per poll until it is done.

use super::content::{Contents, Tracker};
use super::round::Round;
use farside::channel::{
    Acknowledge, Buffer, Message, Offer, Receiver, Sender, Sent, Slice, Ticket,
};
use farside::{Error, ErrorCode};
use farside_base::Random;
use std::collections::VecDeque;

/// Maximum number of slots with messages in flight, and of offers being fetched.
const PLACES: usize = 4;
/// Bytes between two slices.
const GAP: u64 = 24;

/// Reason why an end stops before it is done.
#[derive(Debug)]
pub(super) enum SoakStop {
    /// The channel returned an error.
    Error(Error),
    /// A message differs from the one sent.
    Corrupt(String),
}

impl From<Error> for SoakStop {
    fn from(error: Error) -> Self {
        Self::Error(error)
    }
}

/// An end of a channel, driven by polls.
pub(super) trait ChannelEnd: Send {
    /// Performs a step. Returns whether it made progress.
    ///
    /// # Errors
    /// [`SoakStop`].
    fn progress(&mut self) -> Result<bool, SoakStop>;
    /// Whether its only remaining task is to serve its peers.
    fn is_done(&self) -> bool;
    /// Number of messages that it has sent or received.
    fn passed(&self) -> u64;
    /// Describes its progress, for failure messages.
    fn describe(&self) -> String;
}

/// Pauses, as numbers of skipped polls.
#[derive(Debug)]
struct Pauses {
    per_mille: u32,
    left: u64,
}

impl Pauses {
    const fn pauses(&mut self, random: &mut Random) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return true;
        }
        if self.per_mille > 0 && random.chance(self.per_mille) {
            self.left = random.below(if self.per_mille > 1 { 60 } else { 1_000 });
        }
        false
    }
}

/// Registered memory with slots for messages in slices.
struct Places {
    buffer: Buffer,
    step: u64,
    busy: [Option<Ticket>; PLACES],
}

/// A sender that sends messages from number zero on.
pub(super) struct SoakSource {
    pub(super) sender: Sender,
    origin: usize,
    next: u64,
    count: u64,
    drained: bool,
    /// Whether acknowledgements, which are carried by messages, may omit the last few messages if none follows.
    acks_incomplete: bool,
    contents: Contents,
    random: Random,
    pauses: Pauses,
    batch_max: usize,
    slices_max: usize,
    places: Option<Places>,
    bytes: Vec<u8>,
    batch: Vec<Vec<u8>>,
}

impl SoakSource {
    pub(super) fn new(
        sender: Sender,
        origin: usize,
        count: u64,
        round: &Round,
    ) -> Result<Self, Error> {
        let kind = round.options.kind;
        let step = u64::from(round.options.message_bytes_max) + 4 * GAP;
        let slices = round.slices_max > 0 && !kind.shares_sender() && !round.contents.integer;
        let places = if slices {
            let buffer = sender.register(step * PLACES as u64)?;
            Some(Places { buffer, step, busy: [None; PLACES] })
        } else {
            None
        };
        Ok(Self {
            sender,
            origin,
            next: 0,
            count,
            drained: false,
            acks_incomplete: round.acknowledge == Acknowledge::Message,
            contents: round.contents,
            random: Random::new(round.seed ^ 0x736f_7572_6365 ^ ((origin as u64) << 40)),
            pauses: Pauses { per_mille: round.pause_per_mille, left: 0 },
            batch_max: round.batch_max,
            slices_max: round.slices_max,
            places,
            bytes: Vec::new(),
            batch: Vec::new(),
        })
    }

    fn send(&mut self) -> Result<u64, Error> {
        match self.random.below(4) {
            0 if self.batch_max > 1 => return self.send_batch(),
            1 if self.places.is_some() => return self.send_slices(),
            2 => {
                if let Some(sent) = self.send_loan()? {
                    return Ok(sent);
                }
            }
            _ => {}
        }
        self.contents.write(self.origin, self.next, &mut self.bytes);
        self.sender.send(&self.bytes).map(|sent| u64::from(sent != Sent::Full))
    }

    fn send_batch(&mut self) -> Result<u64, Error> {
        let wanted = self.random.between(2, self.batch_max as u64).min(self.count - self.next);
        self.batch.resize(wanted as usize, Vec::new());
        for (number, message) in (self.next..).zip(&mut self.batch) {
            self.contents.write(self.origin, number, message);
        }
        let taken = self.sender.send_batch(self.batch.iter().map(Vec::as_slice))?;
        Ok(taken as u64)
    }

    /// Sends a message through memory that the receivers read, if the channel has it.
    fn send_loan(&mut self) -> Result<Option<u64>, Error> {
        self.contents.write(self.origin, self.next, &mut self.bytes);
        let bytes = self.bytes.len() as u32;
        // Sometimes borrowed at full size and used in part.
        let asked = if self.random.chance(300) { self.contents.bytes_max as u32 } else { bytes };
        let Some(loan) = self.sender.loan(asked)? else {
            return Ok(None);
        };
        loan.write(0, &self.bytes)?;
        let sent = self.sender.send_loan(loan, bytes)?;
        Ok(Some(u64::from(sent != Sent::Full)))
    }

    fn send_slices(&mut self) -> Result<u64, Error> {
        let Some(places) = &mut self.places else {
            return Ok(0);
        };
        let mut free = None;
        for (at, busy) in places.busy.iter_mut().enumerate() {
            if busy.is_none_or(|ticket| self.sender.is_done(ticket)) {
                (free, *busy) = (Some(at), None);
            }
        }
        let Some(at) = free else {
            self.sender.progress()?;
            return Ok(0);
        };
        self.contents.write(self.origin, self.next, &mut self.bytes);
        let slices = cut(places, at, &self.bytes, self.slices_max, &mut self.random)?;
        match self.sender.send_slices(&slices)? {
            Sent::Taken(ticket) => {
                places.busy[at] = Some(ticket);
                Ok(1)
            }
            Sent::Full => Ok(0),
        }
    }
}

/// Writes a message into a slot in at most `slices_max` slices, with gaps between them.
fn cut(
    places: &Places,
    at: usize,
    message: &[u8],
    slices_max: usize,
    random: &mut Random,
) -> Result<Vec<Slice>, Error> {
    let mut slices = Vec::new();
    let mut offset = places.step * at as u64 + random.below(GAP);
    let mut rest = message;
    for number in 1..=slices_max {
        let bytes = if number == slices_max { rest.len() } else { random.index(rest.len() + 1) };
        let (part, after) = rest.split_at(bytes);
        places.buffer.write(offset, part)?;
        slices.push(places.buffer.slice(offset, bytes as u32)?);
        offset += bytes as u64 + random.below(GAP);
        rest = after;
    }
    Ok(slices)
}

impl ChannelEnd for SoakSource {
    fn progress(&mut self) -> Result<bool, SoakStop> {
        if self.pauses.pauses(&mut self.random) {
            return Ok(false);
        }
        if self.next == self.count {
            let before = self.drained;
            self.drained = self.sender.try_flush()? || self.acks_incomplete;
            return Ok(self.drained != before);
        }
        let sent = self.send()?;
        self.next += sent;
        if sent == 0 || self.random.chance(100) {
            self.sender.progress()?;
        }
        Ok(sent > 0)
    }

    fn is_done(&self) -> bool {
        self.drained
    }

    fn passed(&self) -> u64 {
        self.next
    }

    fn describe(&self) -> String {
        format!("sender {}: {} of {}, drained {}", self.origin, self.next, self.count, self.drained)
    }
}

/// A message that the receiver holds.
struct HeldBack {
    message: Message,
    origin: usize,
    number: u64,
}

/// A receiver that checks received messages, holds them for a while and checks them again.
pub(super) struct Sink {
    pub(super) receiver: Receiver,
    trackers: Vec<Tracker>,
    /// Whether each sender is dead and will not send its remaining messages.
    pub(super) dead: Vec<bool>,
    held: Vec<HeldBack>,
    held_max: usize,
    random: Random,
    pauses: Pauses,
    into: Option<Into>,
    bytes: Vec<u8>,
}

/// Memory for messages of which the receiver chooses the destination.
struct Into {
    buffer: Buffer,
    step: u64,
    next: u64,
    /// Offers being fetched, oldest first, with their slots.
    fetching: VecDeque<(Offer, u64)>,
}

impl Sink {
    pub(super) fn new(
        receiver: Receiver,
        number: usize,
        counts: &[u64],
        round: &Round,
    ) -> Result<Self, Error> {
        let step = u64::from(round.options.message_bytes_max).next_multiple_of(8);
        let into = if round.into {
            let buffer = receiver.register(step * PLACES as u64)?;
            Some(Into { buffer, step, next: 0, fetching: VecDeque::new() })
        } else {
            None
        };
        let trackers = counts.iter().enumerate();
        let trackers =
            trackers.map(|(origin, count)| Tracker::new(round.contents, origin, *count)).collect();
        Ok(Self {
            receiver,
            trackers,
            dead: vec![false; counts.len()],
            held: Vec::new(),
            held_max: round.held_max,
            random: Random::new(round.seed ^ 0x7369_6e6b ^ ((number as u64) << 40)),
            pauses: Pauses { per_mille: round.pause_per_mille, left: 0 },
            into,
            bytes: Vec::new(),
        })
    }

    fn take(&mut self, message: Message) -> Result<(), SoakStop> {
        let origin = message.from();
        self.read(&message)?;
        let Some(tracker) = self.trackers.get_mut(origin) else {
            return Err(SoakStop::Corrupt(format!("a message of the unknown sender {origin}")));
        };
        let number = tracker.take(&self.bytes).map_err(SoakStop::Corrupt)?;
        self.held.push(HeldBack { message, origin, number });
        Ok(())
    }

    fn read(&mut self, message: &Message) -> Result<(), Error> {
        self.bytes.resize(message.len(), 0);
        message.read(0, &mut self.bytes)
    }

    fn release_one(&mut self) -> Result<bool, SoakStop> {
        if self.held.is_empty() {
            return Ok(false);
        }
        let HeldBack { message, origin, number } =
            self.held.swap_remove(self.random.index(self.held.len()));
        self.read(&message)?;
        let checked = self.trackers[origin].check(number, &self.bytes);
        checked.map_err(|what| SoakStop::Corrupt(format!("while it was held: {what}")))?;
        self.receiver.release(message);
        if self.random.chance(50) {
            self.receiver.acknowledge();
        }
        Ok(true)
    }

    /// Fetches offers to destinations that the receiver chooses.
    fn fetch(&mut self) -> Result<bool, SoakStop> {
        let Some(into) = &mut self.into else {
            return Ok(false);
        };
        let mut received = false;
        if let Some((offer, place)) = into.fetching.front().copied()
            && let Some(bytes) = self.receiver.fetched(offer)?
        {
            into.fetching.pop_front();
            self.bytes.resize(bytes as usize, 0);
            into.buffer.read(place, &mut self.bytes)?;
            self.trackers[0].take(&self.bytes).map_err(SoakStop::Corrupt)?;
            received = true;
        }
        if into.fetching.len() < PLACES
            && let Some(offer) = self.receiver.offer()?
        {
            let place = into.next % PLACES as u64 * into.step;
            into.next += 1;
            let slice = into.buffer.slice(place, into.step as u32)?;
            self.receiver.receive_into(offer, slice)?;
            into.fetching.push_back((offer, place));
            received = true;
        }
        Ok(received)
    }
}

impl ChannelEnd for Sink {
    fn progress(&mut self) -> Result<bool, SoakStop> {
        if self.pauses.pauses(&mut self.random) {
            return Ok(false);
        }
        if self.into.is_some() {
            let received = self.fetch()?;
            if !received {
                self.receiver.acknowledge();
            }
            return Ok(received);
        }
        match self.receiver.poll() {
            Ok(Some(message)) => {
                self.take(message)?;
                if self.held.len() > self.held_max || self.random.chance(200) {
                    self.release_one()?;
                }
                Ok(true)
            }
            Ok(None) => {
                // A receiver that holds all messages waits forever.
                let released = self.random.chance(250) && self.release_one()?;
                if !released && self.random.chance(100) {
                    self.receiver.acknowledge();
                }
                Ok(released)
            }
            Err(error) if error.code == ErrorCode::PeerLost => {
                while self.release_one()? {}
                Err(error.into())
            }
            Err(error) => Err(error.into()),
        }
    }

    fn is_done(&self) -> bool {
        let complete = self.trackers.iter().zip(&self.dead);
        self.held.is_empty()
            && complete.into_iter().all(|(tracker, dead)| *dead || tracker.is_complete())
    }

    fn passed(&self) -> u64 {
        self.trackers.iter().map(Tracker::received).sum()
    }

    fn describe(&self) -> String {
        let received: Vec<u64> = self.trackers.iter().map(Tracker::received).collect();
        format!("receiver: {received:?} received, {} held", self.held.len())
    }
}
