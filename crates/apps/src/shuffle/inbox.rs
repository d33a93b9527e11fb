//! The receiving end: memory of batch slots, and their reader.

use super::batch::RowBatch;
use super::layout::{HEAD, InboxLayout, SlotWord, TAIL};
use super::{InboxOptions, ShuffleError};
use crate::naps::Naps;
use farside::fabrics::Fabric;
use farside::onesided::{Deadline, LendOptions, MemoryServer};
use std::sync::Arc;
use std::time::Duration;

/// Attempts without a batch after which senders are looked for.
const CHECK_EVERY: u32 = 32;
/// How long an inbox lasts for senders that have ended.
const LINGER: Duration = Duration::from_secs(1);

/// What [`ShuffleInbox::try_receive`] found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Received {
    /// A batch.
    Batch,
    /// No batch yet.
    Nothing,
    /// All senders have ended, and all batches were received.
    Ended,
}

/// The receiving end of a shuffle ([module](super)): lends memory, into which senders write batches.
///
/// *Guarantees*: each row of a sender that has ended is received once, the rows of one sender in their order. A batch is
/// complete. *Cost*: one copy of each batch; senders need no instruction of this processor.
/// *Drop*: it fails senders that have not ended. After the end of all senders it *blocks* for up to 1 s until they have
/// disconnected, since a sender whose last request has taken effect may not have its completion yet.
#[derive(Debug)]
pub struct ShuffleInbox {
    server: MemoryServer,
    layout: InboxLayout,
    /// Slots that were received.
    head: u64,
    ended: Vec<bool>,
    /// Senders that have not ended.
    left: u16,
    idle: u32,
    failed: Option<ShuffleError>,
}

impl Drop for ShuffleInbox {
    fn drop(&mut self) {
        let (by, mut naps) = (Deadline::after(LINGER), Naps::new());
        while self.left == 0 && self.server.clients() > 0 && !by.is_over() {
            naps.pause();
        }
    }
}

impl ShuffleInbox {
    /// Lends an inbox of `slots * (batch_bytes + 8)` bytes, in whole cache lines, under a name.
    ///
    /// *Blocks* for the registration of the memory.
    ///
    /// # Errors
    /// `Options`; `Memory` as [`MemoryServer::lend`].
    pub fn lend(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &InboxOptions,
    ) -> Result<Self, ShuffleError> {
        let layout = InboxLayout::new(options)?;
        let server = MemoryServer::lend(fabric, name, layout.bytes(), &LendOptions::default())?;
        // The magic last: senders wait for it.
        for (at, word) in layout.encode().iter().enumerate().rev() {
            server.store_word(8 * at as u64, *word)?;
        }
        let ended = vec![false; layout.senders.into()];
        Ok(Self { server, layout, head: 0, ended, left: layout.senders, idle: 0, failed: None })
    }

    /// Returns the address to which senders connect.
    pub fn address(&self) -> &str {
        self.server.address()
    }

    /// Takes the next batch, or waits until one comes; returns false after the end of all senders.
    ///
    /// *Blocks*: yields the processor at first, then sleeps up to half a millisecond at a time.
    ///
    /// # Errors
    /// `SendersLate` if the time is over; `SendersLost`; `Damaged`.
    pub fn receive(
        &mut self,
        batch: &mut RowBatch,
        timeout: Duration,
    ) -> Result<bool, ShuffleError> {
        let mut waits: Option<(Deadline, Naps)> = None;
        loop {
            match self.try_receive(batch)? {
                Received::Batch => return Ok(true),
                Received::Ended => return Ok(false),
                Received::Nothing => {}
            }
            let (deadline, naps) =
                waits.get_or_insert_with(|| (Deadline::after(timeout), Naps::new()));
            if deadline.is_over() {
                return Err(self.late());
            }
            naps.pause();
        }
    }

    /// Takes the next batch, if there is one. Never blocks.
    ///
    /// # Errors
    /// `SendersLost`; `Damaged`.
    pub fn try_receive(&mut self, batch: &mut RowBatch) -> Result<Received, ShuffleError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let received = self.next(batch);
        if let Err(error) = &received {
            self.failed = Some(error.clone());
        }
        received
    }

    fn next(&mut self, batch: &mut RowBatch) -> Result<Received, ShuffleError> {
        while self.left > 0 {
            let ticket = self.head;
            let Some(word) = self.published(ticket)? else {
                self.idle += 1;
                if self.idle.is_multiple_of(CHECK_EVERY) {
                    self.check_senders()?;
                }
                return Ok(Received::Nothing);
            };
            self.idle = 0;
            self.take(ticket, word, batch)?;
            if word.bytes > 0 {
                return Ok(Received::Batch);
            }
        }
        Ok(Received::Ended)
    }

    /// The word of a reservation, if it was published.
    fn published(&self, ticket: u64) -> Result<Option<SlotWord>, ShuffleError> {
        let word = SlotWord::decode(self.server.load_word(self.layout.word(ticket))?);
        Ok((word.lap == self.layout.lap(ticket)).then_some(word))
    }

    fn take(
        &mut self,
        ticket: u64,
        word: SlotWord,
        batch: &mut RowBatch,
    ) -> Result<(), ShuffleError> {
        let damaged = Err(ShuffleError::Damaged(ticket));
        match self.ended.get_mut(usize::from(word.sender)) {
            Some(ended) if !*ended && word.bytes <= self.layout.batch_bytes => {
                *ended = word.is_last;
                self.left -= u16::from(word.is_last);
            }
            _ => return damaged,
        }
        let used = word.bytes as usize;
        if batch.memory.len() < used {
            batch.memory.resize(self.layout.batch_bytes as usize, 0);
        }
        self.server.read(self.layout.rows(ticket), &mut batch.memory[..used])?;
        (batch.used, batch.sender, batch.format) = (used, word.sender, self.layout.rows);
        // After the read: the slot is written again from here on.
        self.head = ticket + 1;
        self.server.store_word(HEAD, self.head)?;
        if batch.is_whole() { Ok(()) } else { damaged }
    }

    /// The error of a wait that is over.
    pub(crate) fn late(&self) -> ShuffleError {
        let has_more = self.server.load_word(TAIL).is_ok_and(|tail| tail != self.head);
        let reserved = has_more.then_some(self.head);
        ShuffleError::SendersLate { missing: self.missing(), reserved }
    }

    /// Senders that have not ended.
    fn missing(&self) -> Vec<u16> {
        (0..self.layout.senders).filter(|sender| !self.ended[usize::from(*sender)]).collect()
    }

    /// Fails if there are fewer connections than senders that have connected and not ended.
    ///
    /// A sender connects before it writes its word, and publishes its last batch before it disconnects, at once then. So the
    /// words are read before the number of connections, and the last batches after it.
    fn check_senders(&self) -> Result<(), ShuffleError> {
        let mut among = Vec::new();
        for sender in self.missing() {
            if self.server.load_word(InboxLayout::connected(sender))? != 0 {
                among.push(sender);
            }
        }
        let connections = self.server.clients();
        if among.len() <= connections {
            return Ok(());
        }
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        for ticket in self.head..self.head + self.layout.slots {
            if let Some(word) = self.published(ticket)?
                && word.is_last
            {
                among.retain(|sender| *sender != word.sender);
            }
        }
        match among.len().checked_sub(connections) {
            None | Some(0) => Ok(()),
            Some(lost) => Err(ShuffleError::SendersLost { among, lost }),
        }
    }
}
