//! The ends of a measured channel: a writer of messages, and a reader that checks that they arrive whole and in
//! order.
//!
//! Every byte of message number n is n mod 16, so the first and last byte show a torn message and a wrong order.

use farside::ErrorCode;
use farside::channel::{
    Buffer, Family, Incoming, Kind, Options, Receiver, Sender, Sent, Slice, Ticket,
};
use farside_command::failure::Failure;
use farside_fabric::Fabric;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

/// Messages of one batch, and buffers that a stream sends from.
pub const BATCH: usize = 16;
/// Shortest message that is sent from registered memory.
pub const GATHER_BYTES_MIN: u32 = 4096;
/// Bytes of messages in flight between two ends: they fit in a cache.
const WINDOW_BYTES: u32 = 1 << 20;
/// Messages in flight between two ends: enough that no end waits for an acknowledgement of each.
const WINDOW_MAX: u32 = 256;
/// Time without any message after which a channel counts as stalled.
pub const STALL: Duration = Duration::from_secs(5);
/// Bytes of the log that messages are appended to: more than caches hold. The log of paper 001,
/// figure 4, has 8 GiB, which this machine may not have.
const LOG_BYTES: usize = 64 << 20;
/// Bytes of a cache line: how much a reader reads at the start and the end of a message.
const LINE: usize = 64;

/// Returns the most messages in flight.
pub fn window(message_bytes: u32) -> u32 {
    (WINDOW_BYTES / message_bytes.max(1)).clamp(8, WINDOW_MAX)
}

/// Returns the options of a measured channel; they are equal at both ends.
pub fn options(kind: Kind, message_bytes: u32, peers: u16) -> Options {
    let window = window(message_bytes);
    let record = u64::from(message_bytes).next_multiple_of(8) + 16;
    Options::new(kind, message_bytes)
        .peers(peers)
        .slots(window.max(u32::from(peers)))
        .ring_bytes((record * u64::from(window)).next_power_of_two().max(4096))
}

/// Returns whether the sender must make progress after the call that sends a message.
fn sender_needs_progress(kind: Kind) -> bool {
    match kind.family() {
        Family::SendReceive | Family::Ring => false,
        Family::WriteSlot => kind == Kind::WriteSlotReserved,
        Family::SharedRing | Family::ReadSlot | Family::ReadRing => true,
    }
}

/// Returns whether messages are built in the channel's memory and read there, as a program with shared memory
/// does with long messages.
fn stays_in_place(kind: Kind, message_bytes: u32) -> bool {
    let offers = [Kind::ReadSlotDetached, Kind::ReadSlotInlined, Kind::ReadSlotNotify];
    offers.contains(&kind) && message_bytes >= GATHER_BYTES_MIN
}

/// Returns whether a receiver can load from its peers' memory over this fabric, and so read messages in place.
pub fn reaches_peers(fabric: &dyn Fabric) -> bool {
    matches!(fabric.name(), "shm" | "mem")
}

/// Detects a stalled channel.
#[derive(Debug, Default)]
pub struct StallWatch {
    empty_polls: u32,
    end: Option<Instant>,
}

impl StallWatch {
    /// Counts an empty poll. Reads the clock every 4096 of them.
    ///
    /// # Errors
    /// No message for [`STALL`].
    #[inline]
    pub fn empty_poll(&mut self) -> Result<(), Failure> {
        self.empty_polls = self.empty_polls.wrapping_add(1);
        if self.empty_polls.is_multiple_of(1 << 12) { self.check() } else { Ok(()) }
    }

    #[cold]
    fn check(&mut self) -> Result<(), Failure> {
        let now = Instant::now();
        if now < *self.end.get_or_insert(now + STALL) {
            return Ok(());
        }
        Err(Failure::check(format!("stalled: no message for {} s", STALL.as_secs())))
    }

    /// Starts again after a message.
    #[inline]
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}

/// Returns whether the other end has closed, which is how every measurement ends.
pub fn is_peer_lost(failure: &Failure) -> bool {
    failure.is(ErrorCode::PeerLost)
}

/// Where messages are sent from.
enum Source {
    /// Sixteen messages in ordinary memory.
    Bytes(Vec<Vec<u8>>),
    /// Registered memory.
    Gather(Gather),
    /// Memory of the channel.
    Loan(Loan),
}

/// Messages built in memory of the channel.
struct Loan {
    template: Vec<u8>,
    inspection: Inspection,
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
        match self.inspection {
            Inspection::Copied | Inspection::Seen | Inspection::Logged => {
                loan.write(0, &self.template)?
            }
            Inspection::Unwritten => {}
            Inspection::Untouched => {
                loan.write(0, &self.template[..1])?;
                loan.write(bytes - 1, &self.template[..1])?;
            }
        }
        Ok(sender.send_loan(loan, bytes)? != Sent::Full)
    }
}

/// Messages sent from registered memory.
struct Gather {
    buffer: Buffer,
    slices: Vec<Slice>,
    /// Of messages whose memory is still in use, oldest first.
    tickets: VecDeque<Ticket>,
    /// The bytes that each message is written from; `None` if messages are not written again.
    template: Option<Vec<u8>>,
}

/// The sending end.
pub struct Writer {
    /// The channel's sender.
    pub sender: Sender,
    source: Source,
    number: usize,
    needs_progress: bool,
    idle_calls: u32,
}

impl Writer {
    /// Creates a writer of messages of `message_bytes` for a reader with the same `inspection`. Registered memory
    /// has `buffers` message buffers, used round-robin.
    pub fn new(
        sender: Sender,
        message_bytes: u32,
        buffers: usize,
        inspection: Inspection,
    ) -> Result<Self, Failure> {
        let kind = sender.kind();
        let bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
        let gathers = message_bytes >= GATHER_BYTES_MIN && !kind.receiver_names_destination();
        let source = if stays_in_place(kind, message_bytes) {
            Source::Loan(Loan { template: vec![0; bytes], inspection })
        } else if gathers {
            let unwritten = inspection == Inspection::Unwritten;
            Source::Gather(Gather::new(&sender, message_bytes, buffers, unwritten)?)
        } else {
            Source::Bytes((0..BATCH).map(|number| vec![number as u8; bytes]).collect())
        };
        let needs_progress = sender_needs_progress(kind);
        Ok(Self { sender, source, number: 0, needs_progress, idle_calls: 0 })
    }

    /// Sends one message; returns false if the channel is full.
    #[inline]
    pub fn put(&mut self) -> Result<bool, Failure> {
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

    /// Sends up to [`BATCH`] messages; returns how many the channel had room for.
    #[inline]
    pub fn put_batch(&mut self) -> Result<usize, Failure> {
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

    /// Lets the sender make progress: in each call if the kind needs it, otherwise in every 256th.
    #[inline]
    pub fn idle(&mut self) -> Result<(), Failure> {
        self.idle_calls = self.idle_calls.wrapping_add(1);
        if self.needs_progress || self.idle_calls.is_multiple_of(256) {
            self.sender.progress()?;
        }
        Ok(())
    }
}

impl Gather {
    fn new(sender: &Sender, bytes: u32, buffers: usize, unwritten: bool) -> Result<Self, Failure> {
        let stride = u64::from(bytes).next_multiple_of(LINE as u64);
        let buffer = sender.register(stride * buffers as u64)?;
        let template = vec![0; usize::try_from(bytes).unwrap_or(usize::MAX)];
        let mut slices = Vec::new();
        for at in (0..).map(|number| number * stride).take(buffers) {
            buffer.write(at, &template)?;
            slices.push(buffer.slice(at, bytes)?);
        }
        let template = (!unwritten).then_some(template);
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

/// How a reader inspects messages.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Inspection {
    /// Copies every byte out and checks the number.
    Copied,
    /// Copies every byte out; the bytes are always the same.
    Unwritten,
    /// Reads the first and last cache line in the memory of the sender, and checks the number.
    Untouched,
    /// Reads the first and last cache line of the received message, and checks the number.
    Seen,
    /// As `Seen`, and copies every byte into a log.
    Logged,
}

/// The receiving end.
pub struct Reader {
    /// The channel's receiver.
    pub receiver: Receiver,
    check: Check,
    in_place: bool,
}

/// Inspection of received messages.
struct Check {
    out: Vec<u8>,
    /// Messages of each sender.
    counts: Vec<usize>,
    inspection: Inspection,
    /// The log that messages are appended to; it wraps around.
    log: Vec<u8>,
    /// End of the last message in the log.
    end: usize,
}

impl Reader {
    /// Creates a reader. `reaches` is the result of [`reaches_peers`].
    pub fn new(
        receiver: Receiver,
        message_bytes: u32,
        inspection: Inspection,
        reaches: bool,
    ) -> Self {
        let bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
        let in_place = reaches && stays_in_place(receiver.kind(), message_bytes);
        // Filled with ones, so that every page is mapped.
        let log = match inspection {
            Inspection::Logged => vec![1; LOG_BYTES.max(bytes)],
            _ => Vec::new(),
        };
        let check = Check { out: vec![0; bytes], counts: Vec::new(), inspection, log, end: 0 };
        Self { receiver, check, in_place }
    }

    /// Inspects and releases up to `max` received messages, at most one in place; returns their number.
    #[inline]
    pub fn take(&mut self, max: usize) -> Result<usize, Failure> {
        if self.in_place {
            return self.take_in_place().map(usize::from);
        }
        let check = &mut self.check;
        let mut wrong = None;
        let taken = self.receiver.drain(max, |message| {
            if let Err(failure) = check.inspect(&message) {
                wrong.get_or_insert(failure);
            }
        })?;
        wrong.map_or(Ok(taken), Err)
    }

    /// Inspects the next message in the sender's memory and releases it; returns whether there was one.
    #[inline]
    fn take_in_place(&mut self) -> Result<bool, Failure> {
        let Some(offer) = self.receiver.offer()? else {
            return Ok(false);
        };
        let Some(message) = self.receiver.look_at(&offer) else {
            return Err(Failure::check("the memory of the sender cannot be reached".to_owned()));
        };
        self.check.inspect(&message)?;
        self.receiver.decline(offer)?;
        Ok(true)
    }
}

impl Check {
    #[inline]
    fn inspect(&mut self, message: &Incoming<'_>) -> Result<(), Failure> {
        match self.inspection {
            Inspection::Copied | Inspection::Unwritten => self.copied(message),
            Inspection::Untouched | Inspection::Seen => self.edges(message),
            Inspection::Logged => {
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
        self.check_length(message)?;
        message.read(0, &mut self.out)?;
        if self.inspection == Inspection::Copied {
            self.check_number(message.from())
        } else {
            Ok(())
        }
    }

    /// Copies the first and last cache line out.
    #[inline]
    fn edges(&mut self, message: &Incoming<'_>) -> Result<(), Failure> {
        self.check_length(message)?;
        let (bytes, edge) = (self.out.len(), LINE.min(self.out.len()));
        message.read(0, &mut self.out[..edge])?;
        message.read(bytes - edge, &mut self.out[bytes - edge..])?;
        self.check_number(message.from())
    }

    #[inline]
    fn check_length(&self, message: &Incoming<'_>) -> Result<(), Failure> {
        let (is, expected) = (message.len(), self.out.len());
        if is == expected {
            return Ok(());
        }
        Err(Failure::check(format!("received {is} B instead of {expected}")))
    }

    /// Checks that the first and last byte are those of the sender's next message.
    #[inline]
    fn check_number(&mut self, from: usize) -> Result<(), Failure> {
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
        Err(Failure::check(format!(
            "message {number} is torn or out of order: {ends:?} instead of {expected}"
        )))
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
        let writer = Writer::new(sender, message_bytes, buffers, Inspection::Copied).unwrap();
        (writer, Reader::new(receiver, message_bytes, Inspection::Copied, true))
    }

    #[test]
    fn batches_and_gathered_messages_arrive_in_order() {
        for (bytes, buffers) in [(8, BATCH), (2048, BATCH), (8192, BATCH), (8192, 1)] {
            let (mut writer, mut reader) = pair(bytes, buffers);
            let (mut sent, mut received) = (0, 0);
            let mut watch = StallWatch::default();
            while received < 1000 {
                sent += writer.put_batch().unwrap();
                received += reader.take(BATCH).unwrap();
                watch.empty_poll().unwrap();
            }
            assert!(sent >= received, "{bytes} B");
        }
    }

    #[test]
    fn message_out_of_order_is_detected() {
        let (mut writer, mut reader) = pair(8, 1);
        writer.number = 5;
        assert!(writer.put().unwrap());
        let failure = loop {
            match reader.take(1) {
                Ok(0) => {}
                other => break other.unwrap_err(),
            }
        };
        assert!(failure.to_string().contains("message 1 is torn or out of order"), "{failure}");
    }

    #[test]
    fn window_holds_several_messages_of_any_size() {
        assert_eq!([1, 64, 65_536, 1 << 23].map(window), [256, 256, 16, 8]);
        assert_eq!(options(Kind::RingInlined, 64, 1).ring_bytes, Some(32_768));
        assert_eq!(options(Kind::SendShared, 1 << 20, 12).slots, Some(12));
    }
}
