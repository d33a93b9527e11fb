//! The ends of a channel under measurement: one writes messages, the other reads them, and both check
//! that each comes whole and in its turn.
//!
//! Message number n is filled with the byte n mod 16, so that its first and last byte tell both.

use crate::failure::Failure;
use farside::ErrorCode;
use farside::channel::{
    Buffer, Family, Incoming, Kind, Options, Receiver, Sender, Sent, Slice, Ticket,
};
use farside_fabric::Fabric;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Messages of one batch, and buffers that a stream sends from.
pub(crate) const BATCH: usize = 16;
/// From so many bytes on messages are sent from registered memory.
pub(crate) const GATHER_BYTES_MIN: u32 = 4096;
/// Memory for messages on their way between two ends: no more than stays in a cache.
const WINDOW_BYTES: u32 = 1 << 20;
/// Messages on their way between two ends: enough that neither waits for the other's news of each.
const WINDOW_MAX: u32 = 256;
/// After so long without any message a channel counts as stalled.
pub(super) const STALL: Duration = Duration::from_secs(5);
/// Memory that messages are copied into one after the other: more than caches hold. The log of 001
/// figure 4 has 8 GiB, which this machine may not have.
const LOG_BYTES: usize = 64 << 20;
/// What the two ends of a line are that the reader of an untouched message looks at.
const LINE: usize = 64;

/// Messages on their way at most.
pub(crate) fn window(message_bytes: u32) -> u32 {
    (WINDOW_BYTES / message_bytes.max(1)).clamp(8, WINDOW_MAX)
}

/// How a channel is set up for its measurement; equal at both ends.
pub(crate) fn options(kind: Kind, message_bytes: u32, peers: u16) -> Options {
    let window = window(message_bytes);
    let record = u64::from(message_bytes).next_multiple_of(8) + 16;
    Options::new(kind, message_bytes)
        .peers(peers)
        .slots(window.max(u32::from(peers)))
        .ring_bytes((record * u64::from(window)).next_power_of_two().max(4096))
}

/// Whether a message takes further steps of its sender after the call that sends it.
fn sender_goes_on(kind: Kind) -> bool {
    match kind.family() {
        Family::SendReceive | Family::Ring => false,
        Family::WriteSlot => kind == Kind::WriteSlotReserved,
        Family::SharedRing | Family::ReadSlot | Family::ReadRing => true,
    }
}

/// Whether messages are built in the channel's own memory and looked at there, which is where a program
/// that shares memory leaves long ones.
fn stays_in_place(kind: Kind, message_bytes: u32) -> bool {
    let offers = [Kind::ReadSlotDetached, Kind::ReadSlotInlined, Kind::ReadSlotNotify];
    offers.contains(&kind) && message_bytes >= GATHER_BYTES_MIN
}

/// Whether a processor reaches the memory of its peers over this fabric, and so looks at messages where
/// they lie.
pub(crate) fn reaches_peers(fabric: &dyn Fabric) -> bool {
    matches!(fabric.name(), "shm" | "mem")
}

/// Waiting without end is no measurement.
#[derive(Debug, Default)]
pub(crate) struct Watch {
    looks: u32,
    end: Option<Instant>,
}

impl Watch {
    /// After a look in vain; fails when there were too many. Asks the clock now and then only.
    #[inline]
    pub(crate) fn look(&mut self) -> Result<(), Failure> {
        self.looks = self.looks.wrapping_add(1);
        if self.looks.is_multiple_of(1 << 12) { self.check() } else { Ok(()) }
    }

    #[cold]
    fn check(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now < *self.end.get_or_insert(now + STALL) {
            return Ok(());
        }
        Err(Failure::check(format!("stalled: nothing moved for {} s", STALL.as_secs())))
    }

    /// Something moved.
    #[inline]
    pub(crate) fn moved(&mut self) {
        *self = Self::default();
    }
}

/// Whether the other end has merely gone, which ends every measurement.
pub(crate) fn is_end(failure: &Failure) -> bool {
    failure.is(ErrorCode::PeerLost)
}

/// Where messages are sent from.
enum Source {
    /// Sixteen messages of the program's own memory.
    Bytes(Vec<Vec<u8>>),
    /// Registered memory.
    Gather(Gather),
    /// The channel's own memory.
    Loan(Loan),
}

/// How much of a message in the channel's own memory is written.
struct Loan {
    template: Vec<u8>,
    look: Look,
}

impl Loan {
    #[inline]
    fn put(&mut self, sender: &mut Sender, number: usize) -> Result<bool, Failure> {
        let bytes = u32::try_from(self.template.len()).unwrap_or(u32::MAX);
        let Some(loan) = sender.loan(bytes)? else {
            return Ok(false);
        };
        if let [first, .., last] = &mut self.template[..] {
            let byte = (number % BATCH) as u8;
            (*first, *last) = (byte, byte);
        }
        match self.look {
            Look::All | Look::Seen | Look::Log => loan.write(0, &self.template)?,
            Look::Again => {}
            Look::Edges => {
                loan.write(0, &self.template[..1])?;
                loan.write(bytes - 1, &self.template[..1])?;
            }
        }
        Ok(sender.send_loan(loan, bytes)? != Sent::Full)
    }
}

struct Gather {
    buffer: Buffer,
    slices: Vec<Slice>,
    /// Of the messages whose memory is not free yet, the oldest first.
    tickets: VecDeque<Ticket>,
    /// What each message is written from; `None`: the same bytes are sent again.
    template: Option<Vec<u8>>,
}

/// The sending end.
pub(crate) struct Writer {
    pub(crate) sender: Sender,
    source: Source,
    number: usize,
    goes_on: bool,
    turns: u32,
}

impl Writer {
    /// Sends messages of so many bytes, for a reader that looks at them like this, from `buffers`
    /// places in turn.
    pub(crate) fn new(
        sender: Sender,
        message_bytes: u32,
        buffers: usize,
        look: Look,
    ) -> Result<Self, Failure> {
        let kind = sender.kind();
        let bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
        let gathers = message_bytes >= GATHER_BYTES_MIN && !kind.receiver_names_destination();
        let source = if stays_in_place(kind, message_bytes) {
            Source::Loan(Loan { template: vec![0; bytes], look })
        } else if gathers {
            let again = look == Look::Again;
            Source::Gather(Gather::new(&sender, message_bytes, buffers, again)?)
        } else {
            Source::Bytes((0..BATCH).map(|number| vec![number as u8; bytes]).collect())
        };
        let goes_on = sender_goes_on(kind);
        Ok(Self { sender, source, number: 0, goes_on, turns: 0 })
    }

    /// Sends one message; whether there was room.
    #[inline]
    pub(crate) fn put(&mut self) -> Result<bool, Failure> {
        let sent = match &mut self.source {
            Source::Bytes(messages) => {
                self.sender.send(&messages[self.number % BATCH])? != Sent::Full
            }
            Source::Gather(gather) => gather.put(&mut self.sender, self.number)?,
            Source::Loan(loan) => loan.put(&mut self.sender, self.number)?,
        };
        self.number += usize::from(sent);
        Ok(sent)
    }

    /// Sends a batch; how many there was room for.
    #[inline]
    pub(crate) fn put_batch(&mut self) -> Result<usize, Failure> {
        if let Source::Bytes(messages) = &self.source {
            let first = self.number;
            let batch = (0..BATCH).map(|at| &messages[(first + at) % BATCH][..]);
            let taken = self.sender.send_batch(batch)?;
            self.number += taken;
            return Ok(taken);
        }
        let mut taken = 0;
        while taken < BATCH && self.put()? {
            taken += 1;
        }
        Ok(taken)
    }

    /// Lets the sender go on with what it has, where a message takes several steps of it.
    #[inline]
    pub(crate) fn idle(&mut self) -> Result<(), Failure> {
        self.turns = self.turns.wrapping_add(1);
        if self.goes_on || self.turns.is_multiple_of(256) {
            self.sender.progress()?;
        }
        Ok(())
    }
}

impl Gather {
    fn new(sender: &Sender, bytes: u32, buffers: usize, again: bool) -> Result<Self, Failure> {
        let stride = u64::from(bytes).next_multiple_of(LINE as u64);
        let buffer = sender.register(stride * buffers as u64)?;
        let template = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        let mut slices = Vec::new();
        for at in (0..).map(|number| number * stride).take(buffers) {
            buffer.write(at, &template)?;
            slices.push(buffer.slice(at, bytes)?);
        }
        let template = (!again).then_some(template);
        Ok(Self { buffer, slices, tickets: VecDeque::with_capacity(buffers), template })
    }

    #[inline]
    fn put(&mut self, sender: &mut Sender, number: usize) -> Result<bool, Failure> {
        if self.tickets.len() == self.slices.len() {
            let is_done =
                |sender: &Sender| self.tickets.front().is_none_or(|oldest| sender.is_done(*oldest));
            if !is_done(sender) {
                sender.progress()?;
            }
            if !is_done(sender) {
                return Ok(false);
            }
            self.tickets.pop_front();
        }
        let at = number % self.slices.len();
        if let Some(template) = &mut self.template {
            let byte = (number % BATCH) as u8;
            if let [first, .., last] = &mut template[..] {
                (*first, *last) = (byte, byte);
            }
            let stride = self.buffer.len() / self.slices.len();
            self.buffer.write((at * stride) as u64, template)?;
        }
        match sender.send_slices(&self.slices[at..=at])? {
            Sent::Taken(ticket) => {
                self.tickets.push_back(ticket);
                Ok(true)
            }
            Sent::Full => Ok(false),
        }
    }
}

/// What a reader looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    /// Copies every byte out and checks the number.
    All,
    /// Copies every byte out; they are always the same.
    Again,
    /// Looks at the first and last line where the message lies in the memory of its sender.
    Edges,
    /// Looks at the first and last line where the message has come.
    Seen,
    /// The same, and copies every byte into a log.
    Log,
}

/// The receiving end.
pub(crate) struct Reader {
    pub(crate) receiver: Receiver,
    check: Check,
    in_place: bool,
}

/// What is asked of the messages that come.
struct Check {
    out: Vec<u8>,
    /// Messages of each sender.
    counts: Vec<usize>,
    look: Look,
    /// Where messages are copied to, one after the other, and where the last one ends.
    log: Vec<u8>,
    end: usize,
}

impl Reader {
    /// `reaches`: whether the memory of senders is [reached](reaches_peers).
    pub(crate) fn new(receiver: Receiver, message_bytes: u32, look: Look, reaches: bool) -> Self {
        let bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
        let in_place = reaches && stays_in_place(receiver.kind(), message_bytes);
        // Each page is written once before, so that the log is memory and not a promise of it.
        let log = if look == Look::Log { vec![1; LOG_BYTES.max(bytes)] } else { Vec::new() };
        let check = Check { out: vec![0; bytes], counts: Vec::new(), look, log, end: 0 };
        Self { receiver, check, in_place }
    }

    /// Takes up to `max` messages that are here, and gives their memory back; how many there were.
    #[inline]
    pub(crate) fn take(&mut self, max: usize) -> Result<usize, Failure> {
        if self.in_place {
            return self.look_at().map(usize::from);
        }
        let check = &mut self.check;
        let mut wrong = None;
        let taken = self.receiver.drain(max, |message| {
            if let Err(failure) = check.look_at(&message) {
                wrong.get_or_insert(failure);
            }
        })?;
        wrong.map_or(Ok(taken), Err)
    }

    /// Looks at the next message where it lies, if one is here, and gives it back.
    #[inline]
    fn look_at(&mut self) -> Result<bool, Failure> {
        let Some(offer) = self.receiver.offer()? else {
            return Ok(false);
        };
        let Some(message) = self.receiver.look_at(&offer) else {
            return Err(Failure::check("the memory of the sender cannot be reached".to_owned()));
        };
        self.check.look_at(&message)?;
        self.receiver.decline(offer)?;
        Ok(true)
    }
}

impl Check {
    #[inline]
    fn look_at(&mut self, message: &Incoming<'_>) -> Result<(), Failure> {
        match self.look {
            Look::All | Look::Again => self.copied(message),
            Look::Edges | Look::Seen => self.edges(message),
            Look::Log => {
                let start = if self.end + message.len() > self.log.len() { 0 } else { self.end };
                self.end = start + message.len();
                if let Some(room) = self.log.get_mut(start..self.end) {
                    message.read(0, room)?;
                }
                self.edges(message)
            }
        }
    }

    /// Copies a message out.
    #[inline]
    fn copied(&mut self, message: &Incoming<'_>) -> Result<(), Failure> {
        self.length(message)?;
        message.read(0, &mut self.out)?;
        if self.look == Look::All { self.turn(message.from()) } else { Ok(()) }
    }

    /// Copies the first and last line out.
    #[inline]
    fn edges(&mut self, message: &Incoming<'_>) -> Result<(), Failure> {
        self.length(message)?;
        let (bytes, edge) = (self.out.len(), LINE.min(self.out.len()));
        message.read(0, &mut self.out[..edge])?;
        message.read(bytes - edge, &mut self.out[bytes - edge..])?;
        self.turn(message.from())
    }

    #[inline]
    fn length(&self, message: &Incoming<'_>) -> Result<(), Failure> {
        let (is, expected) = (message.len(), self.out.len());
        if is == expected {
            return Ok(());
        }
        Err(Failure::check(format!("{is} B came instead of {expected}")))
    }

    /// The first and last byte of what came from there must be those of its next message.
    #[inline]
    fn turn(&mut self, from: usize) -> Result<(), Failure> {
        if self.counts.len() <= from {
            self.counts.resize(from + 1, 0);
        }
        let expected = (self.counts[from] % BATCH) as u8;
        self.counts[from] += 1;
        let ends = [self.out.first(), self.out.last()];
        if ends == [Some(&expected); 2] {
            return Ok(());
        }
        let number = self.counts[from];
        Err(Failure::check(format!("message {number} came as {ends:?}, not as {expected}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use farside_fabric::MemFabric;
    use std::sync::Arc;

    fn pair(message_bytes: u32, buffers: usize) -> (Writer, Reader) {
        let fabric: Arc<dyn Fabric> = Arc::new(MemFabric::new());
        let options = options(Kind::RingImmediate, message_bytes, 1);
        let mut receiver = Receiver::listen(Arc::clone(&fabric), "ends", &options).unwrap();
        let mut sender = Sender::connect(fabric, "ends", &options).unwrap();
        receiver.wait_for_peers(1, STALL).unwrap();
        sender.wait_for_peers(1, STALL).unwrap();
        let writer = Writer::new(sender, message_bytes, buffers, Look::All).unwrap();
        (writer, Reader::new(receiver, message_bytes, Look::All, true))
    }

    #[test]
    fn batches_and_gathered_messages_arrive_in_turn() {
        for (bytes, buffers) in [(8, BATCH), (2048, BATCH), (8192, BATCH), (8192, 1)] {
            let (mut writer, mut reader) = pair(bytes, buffers);
            let (mut sent, mut received) = (0, 0);
            let mut watch = Watch::default();
            while received < 1000 {
                sent += writer.put_batch().unwrap();
                received += reader.take(BATCH).unwrap();
                watch.look().unwrap();
            }
            assert!(sent >= received, "{bytes} B");
        }
    }

    #[test]
    fn a_message_out_of_turn_is_noticed() {
        let (mut writer, mut reader) = pair(8, 1);
        writer.number = 5;
        assert!(writer.put().unwrap());
        let failure = loop {
            match reader.take(1) {
                Ok(0) => {}
                other => break other.unwrap_err(),
            }
        };
        assert!(failure.to_string().contains("message 1 came as"), "{failure}");
    }

    #[test]
    fn windows_hold_a_few_messages_of_any_size() {
        assert_eq!([1, 64, 65_536, 1 << 23].map(window), [256, 256, 16, 8]);
        assert_eq!(options(Kind::RingInlined, 64, 1).ring_bytes, Some(32_768));
        assert_eq!(options(Kind::SendShared, 1 << 20, 12).slots, Some(12));
    }
}
