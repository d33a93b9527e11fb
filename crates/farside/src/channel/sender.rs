//! The sending end of a channel.

use super::drive::Drive;
use super::ends::common_methods;
use super::memory::MessageMemory;
use super::options::Options;
use super::staging::Staging;
use crate::buffer::{Buffer, Slice};
use crate::port_wait::{Awaited, Sleeper, Waits, wait, wait_async};
use crate::progress::EnginePort;
use crate::{Error, ErrorCode};
use farside_base::LocalSlice;
use farside_protocol::channel::{self as machine, HalfRefusal, Kind, Payload, Sending};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

/// Most bytes that a channel adds to a message in its request: bells and padding.
const FRAMING_BYTES_MAX: u32 = 24;

/// Longest message that may be passed to the port directly.
const DIRECT_BYTES_MAX: usize = 1536;

/// Outcome of a send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[must_use]
pub enum Sent {
    /// The channel has accepted it.
    Taken(Ticket),
    /// No space until the receiver has released more, or no receiver is connected yet. Nothing happened; try again
    /// later.
    Full,
}

impl Sent {
    /// Returns the handle of an accepted message.
    pub const fn ticket(self) -> Option<Ticket> {
        match self {
            Self::Taken(ticket) => Some(ticket),
            Self::Full => None,
        }
    }
}

/// Handle of an accepted message, valid until its source may be reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Ticket {
    /// A half, or [`ALL_HALVES`].
    peer: usize,
    life: u64,
    /// The half's id for it, or the id of its copies.
    sending: Sending,
}

/// In place of a half: each half has a copy of the message.
const ALL_HALVES: usize = usize::MAX;

/// Messages copied to each half, until the sources of all copies may be reused. Copies are numbered from the
/// beginning; the id of a message is the end of its range of copies.
#[derive(Default)]
struct Copies {
    /// Number of the first copy kept; earlier ones were dropped.
    first: u64,
    /// The copies, oldest first.
    tickets: VecDeque<Ticket>,
    /// The end of each message's range of copies, oldest first.
    ends: VecDeque<u64>,
}

impl Copies {
    /// Ends a message that consists of the copies added since the last one; returns its id.
    fn end(&mut self) -> Sending {
        let end = self.first + self.tickets.len() as u64;
        self.ends.push_back(end);
        Sending(end)
    }

    /// Returns the copies of a message; none if they were dropped.
    fn of(&self, message: Sending) -> impl Iterator<Item = Ticket> {
        let at = self.ends.partition_point(|end| *end < message.0);
        let before = at.checked_sub(1).and_then(|at| self.ends.get(at)).copied();
        let from = before.unwrap_or(self.first) - self.first;
        // Clamped, as the message may be that of another sender.
        let to = message.0.saturating_sub(self.first).min(self.tickets.len() as u64).max(from);
        self.tickets.range(from as usize..to as usize).copied()
    }

    fn oldest(&self) -> Option<Sending> {
        self.ends.front().copied().map(Sending)
    }

    fn forget_oldest(&mut self) {
        if let Some(end) = self.ends.pop_front() {
            self.tickets.drain(..(end - self.first) as usize);
            self.first = end;
        }
    }
}

/// Memory of a channel, lent for one message.
#[derive(Debug)]
pub struct Loan {
    memory: MessageMemory,
    slice: LocalSlice,
}

impl Loan {
    /// Returns its length in bytes.
    pub const fn len(&self) -> u32 {
        self.slice.bytes
    }

    /// Whether it is empty.
    pub const fn is_empty(&self) -> bool {
        self.slice.bytes == 0
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// `OutOfBounds` if they pass its end; nothing is copied then.
    #[inline]
    pub fn write(&self, offset: u32, bytes: &[u8]) -> Result<(), Error> {
        if u64::from(offset) + bytes.len() as u64 > u64::from(self.slice.bytes) {
            return Err(ErrorCode::OutOfBounds.into());
        }
        self.memory.write(self.slice.offset + u64::from(offset), bytes)
    }
}

/// The sending end of a channel: to one receiver, or to all connected receivers (multicast).
///
/// *Order.* Messages are received in the order of sending, unless the channel states otherwise. *Threads.* Used by
/// one thread at a time; makes progress only within its calls.
pub struct Sender {
    pub(super) drive: Drive<machine::Sender>,
    staging: Option<Staging>,
    copies: Copies,
    /// Messages up to this length fit into their request with what the channel adds.
    inline_bytes_max: usize,
    /// Short messages of the only half, posted with the next request. Empty between calls.
    record: machine::InlineWrite,
}

impl Sender {
    /// Whether events of the port announce it.
    const fn announces(&self, awaited: Awaited) -> bool {
        matches!(awaited, Awaited::Peers)
    }

    /// The end that a progress engine drives.
    fn driven(drive: Drive<machine::Sender>) -> Result<Self, Error> {
        let request_bytes_max = drive.inline_bytes_max();
        let inline_bytes_max = request_bytes_max.saturating_sub(FRAMING_BYTES_MAX);
        let short = drive.shape.message_bytes_max <= inline_bytes_max;
        let staging = if short || drive.kind.stages() {
            None
        } else {
            Some(Staging::new(drive.fabric(), drive.shape.message_bytes_max)?)
        };
        let inline_bytes_max = inline_bytes_max as usize;
        let record = machine::InlineWrite::new(request_bytes_max as usize);
        Ok(Self { drive, staging, copies: Copies::default(), inline_bytes_max, record })
    }

    /// Sends a message of these bytes, which are copied before this returns.
    ///
    /// *Cost*: the requests of the channel (see its row in [`super`]); one copy if the message is too long to be
    /// sent inline. Never blocks or allocates; calls the kernel only where the fabric's port does.
    ///
    /// # Errors
    /// `TooLarge`; `BadForm` of a channel that sends integers; `PeerLost` if the only receiver is lost;
    /// `ProtocolViolation` if it violated the protocol; `ChannelMismatch`.
    #[inline]
    pub fn send(&mut self, message: &[u8]) -> Result<Sent, Error> {
        if let Some(ticket) = self.send_at_once(message) {
            self.drive.post_record(&mut self.record, true);
            return Ok(Sent::Taken(ticket));
        }
        let sent = self.take(message)?;
        if sent != Sent::Full {
            self.announce();
        }
        Ok(sent)
    }

    /// Appends a short message to the record, if it has one receiver and is part of a single request.
    #[inline]
    fn send_at_once(&mut self, message: &[u8]) -> Option<Ticket> {
        let [unit] = &mut self.drive.units[..] else {
            return None;
        };
        if message.len() > DIRECT_BYTES_MAX.min(self.inline_bytes_max) || !unit.effects.is_empty() {
            return None;
        }
        let life = unit.life;
        let (half, own, _) = unit.parts();
        let sending = half.send_at_once(message, own, &mut self.record)?;
        Some(Ticket { peer: 0, life, sending })
    }

    /// Posts the short messages in the record.
    #[inline]
    fn post_record(&mut self) {
        if !self.record.is_empty() {
            self.drive.post_record(&mut self.record, false);
        }
    }

    /// Sends messages with one announcement if the channel allows it; returns how many were accepted.
    ///
    /// # Errors
    /// As [`Self::send`]; the messages before the rejected one have been sent.
    pub fn send_batch<'a>(
        &mut self,
        messages: impl IntoIterator<Item = &'a [u8]>,
    ) -> Result<usize, Error> {
        let mut taken = 0;
        let mut end = Ok(());
        for message in messages {
            if self.send_at_once(message).is_some() {
                taken += 1;
                continue;
            }
            if !self.record.is_empty() {
                // The record is full, or this message is not contiguous with those in it.
                self.post_record();
                if self.send_at_once(message).is_some() {
                    taken += 1;
                    continue;
                }
            }
            match self.take(message) {
                Ok(Sent::Taken(_)) => taken += 1,
                Ok(Sent::Full) => break,
                Err(error) => {
                    end = Err(error);
                    break;
                }
            }
        }
        self.post_record();
        self.announce();
        end.map(|()| taken)
    }

    /// Sends a message from slices of registered memory, concatenated, without copies. The memory must not change
    /// until [`Self::is_done`].
    ///
    /// # Errors
    /// As [`Self::send`]; `BadForm` of a channel whose receivers fetch, and for slices of another fabric. Dropping
    /// a buffer while its message is in flight breaks the link to the peer.
    #[inline]
    pub fn send_slices(&mut self, slices: &[Slice]) -> Result<Sent, Error> {
        let mut all = [LocalSlice { region: farside_base::RegionId(0), offset: 0, bytes: 0 }; 14];
        let Some(list) = all.get_mut(..slices.len()) else {
            return Err(Error::with(ErrorCode::BadForm, "at most 14 slices"));
        };
        for (own, slice) in list.iter_mut().zip(slices) {
            *own = slice.over(self.drive.fabric())?;
        }
        let sent = self.dispatch(Payload::Gather(list))?;
        if sent != Sent::Full {
            self.announce();
        }
        Ok(sent)
    }

    #[inline]
    fn take(&mut self, message: &[u8]) -> Result<Sent, Error> {
        if message.len() <= self.inline_bytes_max || self.staging.is_none() {
            return self.dispatch(Payload::Bytes(message));
        }
        self.staged(message, |sender, payload| sender.dispatch(payload))
    }

    /// Copies a message that is too long to be inline to staging memory, and sends it from there.
    fn staged(
        &mut self,
        message: &[u8],
        send: impl FnOnce(&mut Self, Payload<'_>) -> Result<Sent, Error>,
    ) -> Result<Sent, Error> {
        self.check_length(message.len() as u64)?;
        self.collect_staged();
        let Some(place) = self.staging.as_ref().and_then(|staging| staging.write(message)) else {
            self.progress()?;
            return Ok(Sent::Full);
        };
        let sent = send(self, Payload::Gather(&[place]))?;
        if let (Sent::Taken(ticket), Some(staging)) = (sent, self.staging.as_mut()) {
            staging.keep(ticket);
        }
        Ok(sent)
    }

    /// Sends bytes through `send`, inline or from staging memory.
    fn inline_or_staged(
        &mut self,
        message: &[u8],
        send: impl FnOnce(&mut Self, Payload<'_>) -> Result<Sent, Error>,
    ) -> Result<Sent, Error> {
        if message.len() <= self.inline_bytes_max || self.staging.is_none() {
            send(self, Payload::Bytes(message))
        } else {
            self.staged(message, send)
        }
    }

    fn collect_staged(&mut self) {
        while let Some(oldest) = self.staging.as_ref().and_then(Staging::oldest) {
            if !self.poll_done(oldest) {
                break;
            }
            if let Some(staging) = self.staging.as_mut() {
                staging.drop_oldest();
            }
        }
    }

    /// Lends memory for a message of at most this many bytes, from which the receivers will fetch it. Fill it and
    /// pass it to [`Self::send_loan`]; the sender then copies nothing. `None` if there is no space at present, and
    /// always for channels that send from any memory. A loan ends with the next message or loan.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn loan(&mut self, bytes: u32) -> Result<Option<Loan>, Error> {
        if !self.drive.kind.shares_sender() {
            return Ok(None);
        }
        self.progress()?;
        let Some(unit) = self.drive.units.first_mut() else {
            return Ok(None);
        };
        let (half, own, _) = unit.parts();
        let lent = half.loan(bytes, own);
        Ok(lent.map(|slice| Loan { memory: MessageMemory::of(unit.buffer()), slice }))
    }

    /// Sends the first `bytes` bytes of a loan.
    ///
    /// # Errors
    /// As [`Self::send`]; `BadForm` if the loan has ended, `TooLarge` if it is shorter.
    pub fn send_loan(&mut self, loan: Loan, bytes: u32) -> Result<Sent, Error> {
        if bytes > loan.slice.bytes {
            let text =
                format!("{bytes} bytes of a loan of {}: ask for a longer one", loan.slice.bytes);
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        let sent = self.dispatch(Payload::Gather(&[LocalSlice { bytes, ..loan.slice }]))?;
        if sent != Sent::Full {
            self.announce();
        }
        Ok(sent)
    }

    /// Sends a message into a mailbox of the caller's choice at the only receiver, for channels with mailboxes.
    /// Messages in chosen mailboxes may be received in any order.
    ///
    /// # Errors
    /// As [`Self::send`]; `NotHeld` if senders do not choose, or there is no such mailbox.
    pub fn send_to_slot(&mut self, slot: u32, message: &[u8]) -> Result<Sent, Error> {
        self.post_record();
        self.inline_or_staged(message, |sender, payload| {
            let Some(unit) = sender.drive.units.first_mut() else {
                return Ok(Sent::Full);
            };
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            match half.send_to(slot, payload, own, effects) {
                Ok(sending) => {
                    sender.announce();
                    Ok(Sent::Taken(Ticket { peer: 0, life, sending }))
                }
                Err(refusal) => sender.refused(refusal),
            }
        })
    }

    /// Sends a message to the receiver of one connection only.
    ///
    /// # Errors
    /// As [`Self::send`]; `BadForm` if all receivers read one shared memory.
    pub fn send_to(&mut self, connection: u64, message: &[u8]) -> Result<Sent, Error> {
        if self.drive.kind.shares_sender() {
            return Err(Error::with(
                ErrorCode::BadForm,
                "all receivers of this channel get a message",
            ));
        }
        self.check_length(message.len() as u64)?;
        self.post_record();
        let Some(at) = self.drive.unit_of(connection) else {
            self.drive.poll();
            let known = self.drive.unit_of(connection).is_some();
            return if known { Ok(Sent::Full) } else { Err(ErrorCode::PeerLost.into()) };
        };
        self.inline_or_staged(message, |sender, payload| {
            let unit = &mut sender.drive.units[at];
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            match half.send(payload, own, effects) {
                Ok(sending) => {
                    half.flush(own, effects);
                    sender.drive.post_unit(at);
                    Ok(Sent::Taken(Ticket { peer: at, life, sending }))
                }
                Err(refusal) => sender.refused(refusal),
            }
        })
    }

    /// Passes a message to every half: all accept it or none.
    #[inline]
    fn dispatch(&mut self, payload: Payload<'_>) -> Result<Sent, Error> {
        self.check_length(payload.bytes())?;
        self.post_record();
        if self.drive.has_backlog() {
            self.progress()?;
            if self.drive.has_backlog() {
                return Ok(Sent::Full);
            }
        }
        if let [unit] = &mut self.drive.units[..] {
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            return match half.send(payload, own, effects) {
                Ok(sending) => Ok(Sent::Taken(Ticket { peer: 0, life, sending })),
                Err(refusal) => self.refused(refusal),
            };
        }
        self.dispatch_to_all(payload)
    }

    /// Also checked while no receiver is connected, since no message of that length is ever accepted.
    #[inline]
    fn check_length(&self, bytes: u64) -> Result<(), Error> {
        let bytes_max = self.drive.shape.message_bytes_max;
        if bytes > u64::from(bytes_max) { Err(too_long(bytes, bytes_max)) } else { Ok(()) }
    }

    /// Sends to several receivers without common memory: each half must have space first.
    fn dispatch_to_all(&mut self, payload: Payload<'_>) -> Result<Sent, Error> {
        self.progress()?;
        let mut receivers = 0;
        let mut refused = None;
        for unit in self.drive.units.iter_mut().filter(|unit| !unit.spent) {
            let (half, own, effects) = unit.parts();
            match half.ready(payload, own, effects) {
                Ok(()) => receivers += 1,
                Err(refusal) => {
                    refused = Some(refusal);
                    break;
                }
            }
        }
        if receivers == 0 && refused.is_none() {
            refused = Some(HalfRefusal::NotConnected);
        }
        if let Some(refusal) = refused {
            return self.refused(refusal);
        }
        // Most sources become reusable in the order of sending.
        while self.copies.oldest().is_some_and(|oldest| self.are_done(oldest)) {
            self.copies.forget_oldest();
        }
        for (at, unit) in self.drive.units.iter_mut().enumerate().filter(|(_, unit)| !unit.spent) {
            let life = unit.life;
            let (half, own, effects) = unit.parts();
            let sent = half.send(payload, own, effects);
            debug_assert!(sent.is_ok(), "it was ready: {sent:?}");
            if let Ok(sending) = sent {
                self.copies.tickets.push_back(Ticket { peer: at, life, sending });
            }
        }
        let sending = self.copies.end();
        Ok(Sent::Taken(Ticket { peer: ALL_HALVES, life: 0, sending }))
    }

    #[cold]
    fn refused(&mut self, refusal: HalfRefusal) -> Result<Sent, Error> {
        match refusal {
            HalfRefusal::Full | HalfRefusal::NotConnected => {
                // Requests that the half needs before space becomes free are posted now.
                for at in 0..self.drive.units.len() {
                    self.drive.post_unit(at);
                }
                self.progress()?;
                Ok(Sent::Full)
            }
            HalfRefusal::Lost => {
                self.progress()?;
                Err(self.drive.lost())
            }
            HalfRefusal::TooLong { bytes_max } => Err(too_long_for(bytes_max)),
            HalfRefusal::Form(form) => Err(Error::with(ErrorCode::BadForm, form)),
            HalfRefusal::NoSuch(what) => Err(Error::with(ErrorCode::NotHeld, what)),
        }
    }

    /// Announces what was sent and posts it.
    #[inline]
    fn announce(&mut self) {
        for at in 0..self.drive.units.len() {
            let (half, own, effects) = self.drive.units[at].parts();
            half.flush(own, effects);
            self.drive.post_unit(at);
        }
    }

    /// Whether the source of a message was reusable at the last call. Does not imply that it was received.
    ///
    /// *Cost*: no poll; [`Self::progress`] and every waiting call update it.
    pub fn is_done(&self, ticket: Ticket) -> bool {
        if ticket.peer == ALL_HALVES {
            return self.are_done(ticket.sending);
        }
        let unit = self.drive.units.get(ticket.peer).filter(|unit| unit.life == ticket.life);
        unit.is_none_or(|unit| unit.half.is_done(ticket.sending))
    }

    fn are_done(&self, message: Sending) -> bool {
        self.copies.of(message).all(|copy| self.is_done(copy))
    }

    /// Polls if need be; returns whether the source of a message may be reused.
    fn poll_done(&mut self, ticket: Ticket) -> bool {
        if !self.is_done(ticket) {
            self.drive.poll();
        }
        self.is_done(ticket)
    }

    /// Waits until the source of a message may be reused.
    ///
    /// *Blocks*: spins at first, then sleeps between polls.
    ///
    /// # Errors
    /// `TimedOut`. A lost receiver is none: its messages use no source any more.
    pub fn wait_done(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), Error> {
        wait(self, Awaited::Words, timeout, |sender| Ok(sender.poll_done(ticket).then_some(())))
    }

    /// The same as [`Self::wait_done`], for any executor and without a timeout.
    ///
    /// # Errors
    /// `System` if the thread that wakes the task cannot be started.
    pub async fn wait_done_async(&mut self, ticket: Ticket) -> Result<(), Error> {
        wait_async(self, Awaited::Words, |sender| Ok(sender.poll_done(ticket).then_some(()))).await
    }

    /// Polls once; returns whether all messages have been received and released.
    ///
    /// For a thread with other work; [`Self::flush`] waits.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn try_flush(&mut self) -> Result<bool, Error> {
        self.progress()?;
        for at in 0..self.drive.units.len() {
            let unit = &mut self.drive.units[at];
            if !unit.half.is_drained() {
                unit.half.ask_progress(&mut unit.effects);
                self.drive.post_unit(at);
            }
        }
        Ok(self.drive.units.iter().all(|unit| unit.spent || unit.half.is_drained()))
    }

    /// Waits until all messages have been received and released by the receivers.
    ///
    /// *Guarantees*: the receivers have processed every message, except that with [`Acknowledge::Message`] the last
    /// releases may stay unacknowledged until more follow. A receiver acknowledges in batches: end it with
    /// [`Receiver::close`], or call [`Receiver::acknowledge`].
    /// *Blocks*: spins at first, then sleeps between polls.
    ///
    /// [`Acknowledge::Message`]: super::Acknowledge::Message
    /// [`Receiver::close`]: super::Receiver::close
    /// [`Receiver::acknowledge`]: super::Receiver::acknowledge
    ///
    /// # Errors
    /// As [`Self::send`]; `TimedOut`.
    pub fn flush(&mut self, timeout: Duration) -> Result<(), Error> {
        wait(self, Awaited::Words, timeout, |sender| Ok(sender.try_flush()?.then_some(())))
    }

    /// The same as [`Self::flush`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::send`]; `System` if the thread that wakes the task cannot be started.
    pub async fn flush_async(&mut self) -> Result<(), Error> {
        wait_async(self, Awaited::Words, |sender| Ok(sender.try_flush()?.then_some(()))).await
    }

    /// Flushes, then disconnects. The links are closed too if it fails.
    ///
    /// # Errors
    /// As [`Self::flush`].
    pub fn close(mut self, timeout: Duration) -> Result<(), Error> {
        self.flush(timeout)
    }

    /// The same as [`Self::close`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::flush_async`].
    pub async fn close_async(mut self) -> Result<(), Error> {
        self.flush_async().await
    }

    /// Polls the port and continues pending operations. Every call does this when needed. A program that rarely
    /// sends, or always finds space, should call it periodically, as losses and new receivers are detected here.
    ///
    /// # Errors
    /// As [`Self::send`].
    pub fn progress(&mut self) -> Result<(), Error> {
        self.drive.poll();
        match self.drive.trouble() {
            Some(error) => Err(error),
            None if self.drive.is_lost() => Err(self.drive.lost()),
            None => Ok(()),
        }
    }

    /// Sends a message, waiting for space as long as necessary.
    ///
    /// *Blocks*: spins at first, then sleeps between polls, until the receiver has released enough.
    ///
    /// # Errors
    /// As [`Self::send`]; `TimedOut`.
    pub fn send_wait(&mut self, message: &[u8], timeout: Duration) -> Result<Ticket, Error> {
        self.send_with(timeout, |sender| sender.send(message))
    }

    /// Sends a message, awaiting space for it.
    ///
    /// # Errors
    /// As [`Self::send`]; `System` if the thread that wakes the task cannot be started.
    pub async fn send_async(&mut self, message: &[u8]) -> Result<Ticket, Error> {
        self.send_with_async(|sender| sender.send(message)).await
    }

    /// Repeats a send of any form until it is accepted, waiting for space as long as necessary.
    ///
    /// ```
    /// # use farside::channel::{Kind, Options, Receiver, Sender};
    /// # use std::time::Duration;
    /// # fn main() -> Result<(), farside::Error> {
    /// # let fabric = farside::fabrics::shared_memory()?;
    /// # let name = format!("send-with-{}", std::process::id());
    /// # let second = Duration::from_secs(20);
    /// let options = Options::new(Kind::RingInlined, 4096);
    /// let mut receiver = Receiver::listen(fabric.clone(), &name, &options)?;
    /// let mut sender = Sender::connect(fabric, &name, &options)?;
    /// receiver.wait_for_peers(1, second)?;
    ///
    /// let buffer = sender.register(4096)?;
    /// buffer.write(0, b"from where it is")?;
    /// let slices = [buffer.slice(0, 16)?];
    /// let ticket = sender.send_with(second, |sender| sender.send_slices(&slices))?;
    /// sender.wait_done(ticket, second)?; // from here on the buffer may change
    ///
    /// let message = receiver.receive(second)?;
    /// assert_eq!(message.to_vec(), b"from where it is");
    /// receiver.release(message);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// *Blocks*, as [`Self::send_wait`].
    ///
    /// # Errors
    /// Those of the send; `TimedOut`.
    pub fn send_with(
        &mut self,
        timeout: Duration,
        mut send: impl FnMut(&mut Self) -> Result<Sent, Error>,
    ) -> Result<Ticket, Error> {
        wait(self, Awaited::Words, timeout, |sender| Ok(send(sender)?.ticket()))
    }

    /// The same as [`Self::send_with`], for any executor and without a timeout.
    ///
    /// # Errors
    /// Those of the send; `System` if the thread that wakes the task cannot be started.
    pub async fn send_with_async(
        &mut self,
        mut send: impl FnMut(&mut Self) -> Result<Sent, Error>,
    ) -> Result<Ticket, Error> {
        wait_async(self, Awaited::Words, |sender| Ok(send(sender)?.ticket())).await
    }

    /// Lends memory as [`Self::loan`], waiting for space as long as necessary.
    ///
    /// *Blocks*, as [`Self::send_wait`].
    ///
    /// # Errors
    /// As [`Self::loan`]; `BadForm` of a channel that lends no memory; `TimedOut`.
    pub fn loan_wait(&mut self, bytes: u32, timeout: Duration) -> Result<Loan, Error> {
        self.check_loans()?;
        wait(self, Awaited::Words, timeout, |sender| sender.loan(bytes))
    }

    /// The same as [`Self::loan_wait`], for any executor and without a timeout.
    ///
    /// # Errors
    /// As [`Self::loan_wait`]; `System` if the thread that wakes the task cannot be started.
    pub async fn loan_async(&mut self, bytes: u32) -> Result<Loan, Error> {
        self.check_loans()?;
        wait_async(self, Awaited::Words, |sender| sender.loan(bytes)).await
    }

    fn check_loans(&self) -> Result<(), Error> {
        if self.drive.kind.shares_sender() {
            return Ok(());
        }
        let text = format!("{} lends no memory: use send or send_slices", self.drive.kind);
        Err(Error::with(ErrorCode::BadForm, text))
    }

    /// Whether this end has no pending operations.
    pub(super) fn is_settled(&self) -> bool {
        !self.drive.has_backlog()
            && self.drive.units.iter().all(|unit| unit.spent || unit.half.is_drained())
    }
}

#[cold]
fn too_long(bytes: u64, bytes_max: u32) -> Error {
    let text = format!(
        "the message has {bytes} bytes, and message_bytes_max of this channel is {bytes_max}: split it, or \
         raise that at both ends"
    );
    Error::with(ErrorCode::TooLarge, text)
}

/// The error of a half, which knows only its own limit.
#[cold]
fn too_long_for(bytes_max: u32) -> Error {
    let text = format!("this channel takes at most {bytes_max} bytes here");
    Error::with(ErrorCode::TooLarge, text)
}

common_methods!(Sender, "receiver", "receivers");
