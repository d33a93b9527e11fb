//! The sending end.

use super::layout::{HEAD, HEADER_WORDS, InboxLayout, SlotWord, TAIL};
use super::options::PREFIX;
use super::{RowFormat, Rule, SenderOptions, ShuffleError, destination};
use crate::naps::Naps;
use farside::ErrorCode;
use farside::fabrics::Fabric;
use farside::onesided::{
    Buffer, Deadline, MemoryClient, MemoryClientOptions, MemoryClientStats, RangeList,
    RemoteMemory, RequestId, TransferRange, VectorIo,
};
use farside::runtime::Instant;
use std::sync::Arc;
use std::time::Duration;

/// Rows after which batches that wait are looked after.
const PROGRESS_EVERY: u32 = 64;
/// Time between two READs of the head of a full inbox.
const CREDIT_INTERVAL: Duration = Duration::from_micros(20);
/// Most bytes of a key that is hashed without an allocation.
const KEY_BYTES: usize = 64;

/// What a sender has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct SenderStats {
    /// Rows that were pushed.
    pub rows: u64,
    /// Batches that were published.
    pub batches: u64,
    /// READs of heads, since an inbox looked full.
    pub credit_reads: u64,
    /// Requests, doorbells and copies of its client.
    pub client: MemoryClientStats,
}

/// The sending end of a shuffle ([module](super)): pushes rows to any number of inboxes. One thread at a time uses it.
///
/// *Guarantees*: rows of one inbox are received in the order of their pushes. It holds two batches for each inbox: one
/// that is filled, and one on its way. A reserved slot that is not written stops its inbox: in a long pause between
/// pushes call [`progress`](Self::progress), [`flush`](Self::flush) or [`finish`](Self::finish). Dropping it before its
/// end fails the receivers.
#[derive(Debug)]
pub struct ShuffleSender {
    client: MemoryClient,
    number: u16,
    rows: RowFormat,
    rule: Rule,
    batch_rows: u32,
    pairs: Vec<InboxPair>,
    /// The numbers of pairs with a batch on its way.
    active: Vec<usize>,
    /// Two batches and a word for each pair.
    staging: Buffer,
    /// Where rows are gathered from.
    input: Option<Buffer>,
    key: Vec<u8>,
    since_progress: u32,
    is_finished: bool,
    failed: Option<ShuffleError>,
    stats: SenderStats,
    /// Whether a word may be posted behind its batch.
    has_order: bool,
}

/// A sender's relation to one inbox.
#[derive(Debug)]
struct InboxPair {
    memory: RemoteMemory,
    layout: InboxLayout,
    /// The last known head of the inbox.
    head: u64,
    /// Offsets of the two staged batches, of which the first is filled next, and of the word.
    staged: [u64; 2],
    word: u64,
    filling: Filling,
    outgoing: Option<OutgoingBatch>,
    has_ended: bool,
}

/// A batch that is being filled.
#[derive(Debug, Default)]
struct Filling {
    bytes: u32,
    rows: u32,
    /// The rows in the input; none if they are staged.
    ranges: Vec<TransferRange>,
}

/// A batch on its way.
#[derive(Debug)]
struct OutgoingBatch {
    bytes: u32,
    is_last: bool,
    /// Where its rows are.
    rows: BatchRows,
    step: BatchStep,
}

#[derive(Debug)]
enum BatchRows {
    Staged(u64),
    Gathered(RangeList),
}

/// What is waited for.
#[derive(Clone, Copy, Debug)]
enum BatchStep {
    Reservation(RequestId),
    /// A free slot; the READ of the head.
    Credit {
        ticket: u64,
        read: Option<RequestId>,
        next: Option<Instant>,
    },
    /// The end of the WRITE, on a fabric without order, and its ticket.
    Written {
        ticket: u64,
        write: RequestId,
    },
    Published {
        write: Option<RequestId>,
        word: RequestId,
    },
}

impl ShuffleSender {
    /// Connects to inboxes as the sender of this number; their order is that of their numbers in rules.
    ///
    /// *Blocks* until each inbox exists. *Cost*: two round trips of the control path and three of memory for each.
    ///
    /// # Errors
    /// `Options` without inboxes; `NotAnInbox`; `SenderTaken`; `Receiver` as [`MemoryClient::open`].
    pub fn connect(
        fabric: &Arc<dyn Fabric>,
        number: u16,
        inboxes: &[impl AsRef<str>],
        options: SenderOptions,
        timeout: Duration,
    ) -> Result<Self, ShuffleError> {
        if inboxes.is_empty() {
            return Err(ShuffleError::Options("inboxes: 1 or more"));
        }
        if options.batch_rows == 0 {
            return Err(ShuffleError::Options("batch_rows: 1 or more"));
        }
        let deadline = Deadline::after(timeout);
        let requests_max = u32::try_from(4 * inboxes.len()).unwrap_or(u32::MAX);
        // A repeated WRITE could change a slot that is another sender's by then.
        let client_options =
            MemoryClientOptions::default().requests_max(requests_max).reconnect(Duration::ZERO);
        let mut client = MemoryClient::new(fabric, &client_options)?;
        let mut pairs: Vec<InboxPair> = Vec::with_capacity(inboxes.len());
        let mut staged = 0;
        for (receiver, address) in inboxes.iter().enumerate() {
            let address = address.as_ref();
            let (memory, layout) = attach(&mut client, (number, receiver), address, &deadline)?;
            if pairs.first().is_some_and(|first| first.layout.rows != layout.rows) {
                let why = "its rows have another form than those of the first inbox";
                return Err(ShuffleError::NotAnInbox(address.to_owned(), why));
            }
            let bytes = u64::from(layout.batch_bytes).next_multiple_of(64);
            pairs.push(InboxPair {
                memory,
                layout,
                head: 0,
                staged: [staged, staged + bytes],
                word: staged + 2 * bytes,
                filling: Filling::default(),
                outgoing: None,
                has_ended: false,
            });
            staged += 2 * bytes + 64;
        }
        let has = client.capabilities();
        let has_order = has.message_order;
        if !has_order && !has.completion_means_placed {
            let why = "message_order or completion_means_placed";
            return Err(farside::Error::with(ErrorCode::FabricLacks, why).into());
        }
        let staging = client.register(staged)?;
        Ok(Self {
            client,
            number,
            rows: pairs[0].layout.rows,
            rule: options.rule,
            batch_rows: options.batch_rows,
            active: Vec::with_capacity(pairs.len()),
            pairs,
            staging,
            input: None,
            key: Vec::new(),
            since_progress: 0,
            is_finished: false,
            failed: None,
            stats: SenderStats::default(),
            has_order,
        })
    }

    /// Registers memory from which rows are gathered, as [`MemoryClient::register`].
    ///
    /// # Errors
    /// `Memory` with `System`.
    pub fn register(&self, bytes: u64) -> Result<Buffer, ShuffleError> {
        Ok(self.client.register(bytes)?)
    }

    /// Returns what it has done.
    pub fn stats(&self) -> SenderStats {
        SenderStats { client: self.client.stats(), ..self.stats }
    }

    /// Copies a row into the batch of its inbox, by the rule.
    ///
    /// *Blocks* if the inbox is full and both batches for it as well. *Cost*: the hash and a copy; one row of each batch
    /// posts it.
    ///
    /// # Errors
    /// `RowSize`; `Destination`; `ReceiversLate` if the time is over, without effect: call again; `Receiver`; `Finished`.
    #[inline]
    pub fn push(&mut self, row: &[u8], timeout: Duration) -> Result<(), ShuffleError> {
        let to = self.rule_of(row)?;
        self.push_to(to, row, timeout)
    }

    /// As [`push`](Self::push), to the inbox of this number.
    ///
    /// # Errors
    /// As `push`.
    #[inline]
    pub fn push_to(
        &mut self,
        to: usize,
        row: &[u8],
        timeout: Duration,
    ) -> Result<(), ShuffleError> {
        if self.try_push_to(to, row)? {
            return Ok(());
        }
        self.wait_for_room(to, timeout)?;
        self.try_push_to(to, row).map(drop)
    }

    /// As [`push`](Self::push), without blocking; false, without effect, if the inbox and both batches are full.
    ///
    /// # Errors
    /// As `push`, without `ReceiversLate`.
    #[inline]
    pub fn try_push(&mut self, row: &[u8]) -> Result<bool, ShuffleError> {
        let to = self.rule_of(row)?;
        self.try_push_to(to, row)
    }

    /// As [`try_push`](Self::try_push), to the inbox of this number.
    ///
    /// # Errors
    /// As `try_push`.
    #[inline]
    pub fn try_push_to(&mut self, to: usize, row: &[u8]) -> Result<bool, ShuffleError> {
        let bytes = self.bytes_of(to, row.len())?;
        if !self.has_room(to, bytes, false)? {
            return Ok(false);
        }
        let InboxPair { staged, filling, .. } = &self.pairs[to];
        let mut at = staged[0] + u64::from(filling.bytes);
        if self.rows == RowFormat::Variable {
            self.staging.write(at, &(row.len() as u32).to_le_bytes())?;
            at += PREFIX as u64;
        }
        self.staging.write(at, row)?;
        self.added(to, bytes)
    }

    /// Sends what was pushed, and takes the rows of [`push_at`](Self::push_at) from this buffer from now on, which is of
    /// [`register`](Self::register) or a client of the same fabric.
    ///
    /// # Errors
    /// As [`flush`](Self::flush).
    pub fn gather_from(&mut self, input: &Buffer, timeout: Duration) -> Result<(), ShuffleError> {
        self.flush(timeout)?;
        self.input = Some(input.clone());
        Ok(())
    }

    /// Adds a row that is in the input buffer to the batch of its inbox, by the rule, without a copy. It is sent from there:
    /// leave it unchanged until [`flush`](Self::flush). A row of variable length is `bytes` after its length of 4 B, at
    /// `offset`.
    ///
    /// *Blocks* as [`push`](Self::push). *Cost*: a copy of the key, or of the row for a rule of the program.
    ///
    /// # Errors
    /// As `push`; `Options` without an input buffer; `RowSize` past its end.
    pub fn push_at(
        &mut self,
        offset: u64,
        bytes: u32,
        timeout: Duration,
    ) -> Result<(), ShuffleError> {
        let to = self.rule_at(offset, bytes)?;
        let bytes = self.bytes_of(to, bytes as usize)?;
        if !self.has_room(to, bytes, true)? {
            self.wait_for_room(to, timeout)?;
        }
        let filling = &mut self.pairs[to].filling;
        filling.ranges.push(TransferRange { local: offset, remote: filling.bytes.into(), bytes });
        self.added(to, bytes).map(drop)
    }

    /// The inbox of a row in the input.
    fn rule_at(&mut self, offset: u64, bytes: u32) -> Result<usize, ShuffleError> {
        let Some(input) = &self.input else {
            return Err(ShuffleError::Options("push_at: gather_from first"));
        };
        let prefix = if self.rows == RowFormat::Variable { PREFIX as u64 } else { 0 };
        let (end, length) = (offset.saturating_add(prefix + u64::from(bytes)), input.len() as u64);
        if end > length {
            let possible = length.saturating_sub(offset) as usize;
            return Err(ShuffleError::RowSize { bytes: bytes as usize, possible });
        }
        let part = match &self.rule {
            Rule::Hash(key) if key.start <= key.end && key.end <= bytes as usize => key.clone(),
            Rule::Hash(key) => {
                let possible = key.end;
                return Err(ShuffleError::RowSize { bytes: bytes as usize, possible });
            }
            Rule::Custom(_) => 0..bytes as usize,
        };
        let at = offset + prefix + part.start as u64;
        if part.len() <= KEY_BYTES && matches!(self.rule, Rule::Hash(_)) {
            let mut key = [0; KEY_BYTES];
            let key = &mut key[..part.len()];
            input.read(at, key)?;
            return Ok(destination(key, self.pairs.len()));
        }
        self.key.resize(part.len(), 0);
        input.read(at, &mut self.key)?;
        Ok(match &self.rule {
            Rule::Hash(_) => destination(&self.key, self.pairs.len()),
            Rule::Custom(rule) => rule(&self.key),
        })
    }

    #[inline]
    fn rule_of(&self, row: &[u8]) -> Result<usize, ShuffleError> {
        match &self.rule {
            Rule::Hash(key) => match row.get(key.clone()) {
                Some(key) => Ok(destination(key, self.pairs.len())),
                None => Err(ShuffleError::RowSize { bytes: row.len(), possible: key.end }),
            },
            Rule::Custom(rule) => Ok(rule(row)),
        }
    }

    /// The bytes of a row in a batch for this inbox.
    #[inline]
    fn bytes_of(&self, to: usize, bytes: usize) -> Result<u32, ShuffleError> {
        let Some(pair) = self.pairs.get(to) else {
            return Err(ShuffleError::Destination(to));
        };
        let possible = match self.rows {
            RowFormat::Fixed(fixed) if fixed as usize == bytes => return Ok(fixed),
            RowFormat::Fixed(fixed) => fixed as usize,
            RowFormat::Variable => pair.layout.batch_bytes as usize - PREFIX,
        };
        if self.rows == RowFormat::Variable && bytes <= possible {
            return Ok((bytes + PREFIX) as u32);
        }
        Err(ShuffleError::RowSize { bytes, possible })
    }

    /// Whether the batch that is filled has room for a row, gathered or staged; sends it if it has not.
    #[inline]
    fn has_room(&mut self, to: usize, bytes: u32, gathered: bool) -> Result<bool, ShuffleError> {
        self.check()?;
        self.since_progress += 1;
        if self.since_progress >= PROGRESS_EVERY {
            self.progress()?;
        }
        let InboxPair { filling, layout, .. } = &self.pairs[to];
        let is_other = filling.rows > 0 && filling.ranges.is_empty() == gathered;
        let fits = filling.bytes <= layout.batch_bytes - bytes && filling.rows < self.batch_rows;
        if fits && !is_other {
            return Ok(true);
        }
        self.progress()?;
        self.send(to, false)
    }

    fn check(&self) -> Result<(), ShuffleError> {
        match &self.failed {
            Some(error) => Err(error.clone()),
            None if self.is_finished => Err(ShuffleError::Finished),
            None => Ok(()),
        }
    }

    /// Counts a row that was added, and sends the batch if it is full. Always true.
    #[inline]
    fn added(&mut self, to: usize, bytes: u32) -> Result<bool, ShuffleError> {
        self.stats.rows += 1;
        let InboxPair { filling, layout, .. } = &mut self.pairs[to];
        filling.bytes += bytes;
        filling.rows += 1;
        let room = layout.batch_bytes - filling.bytes;
        if room < self.rows.bytes_min() || filling.rows >= self.batch_rows {
            self.progress()?;
            self.send(to, false)?;
        }
        Ok(true)
    }

    /// Begins to send the batch that is filled; false if the one before is on its way still.
    fn send(&mut self, to: usize, is_last: bool) -> Result<bool, ShuffleError> {
        let pair = &mut self.pairs[to];
        if pair.outgoing.is_some() {
            return Ok(false);
        }
        let rows = if pair.filling.ranges.is_empty() {
            BatchRows::Staged(pair.staged[0])
        } else {
            BatchRows::Gathered(RangeList::explicit(&pair.filling.ranges)?.by(VectorIo::Gather))
        };
        let reserved = self.client.fetch_add(pair.memory.at(TAIL), 1);
        let step = BatchStep::Reservation(self.failed_at(to, reserved)?);
        let pair = &mut self.pairs[to];
        pair.outgoing = Some(OutgoingBatch { bytes: pair.filling.bytes, is_last, rows, step });
        pair.staged.swap(0, 1);
        pair.filling.ranges.clear();
        (pair.filling.bytes, pair.filling.rows) = (0, 0);
        pair.has_ended |= is_last;
        self.active.push(to);
        self.progress()?;
        Ok(true)
    }

    /// Carries the batches on their way further. Never blocks; returns whether there was progress.
    ///
    /// # Errors
    /// `Receiver`.
    pub fn progress(&mut self) -> Result<bool, ShuffleError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        self.since_progress = 0;
        let mut has_progress = false;
        // What is posted may complete at once.
        loop {
            if self.active.is_empty() {
                return Ok(has_progress);
            }
            self.client.submit();
            self.client.progress();
            let mut moved = false;
            let mut at = 0;
            while let Some(&to) = self.active.get(at) {
                let advanced = self.advance(to);
                moved |= self.failed_at(to, advanced)?;
                if self.pairs[to].outgoing.is_some() {
                    at += 1;
                } else {
                    self.active.swap_remove(at);
                }
            }
            if !moved {
                return Ok(has_progress);
            }
            has_progress = true;
        }
    }

    /// Remembers the failure of a request on an inbox.
    fn failed_at<T>(
        &mut self,
        to: usize,
        result: Result<T, farside::Error>,
    ) -> Result<T, ShuffleError> {
        result.map_err(|error| {
            let error = ShuffleError::Receiver(to, error);
            self.failed = Some(error.clone());
            error
        })
    }

    /// Takes one step of a batch on its way, if what it waits for is there.
    fn advance(&mut self, to: usize) -> Result<bool, farside::Error> {
        let (client, pair) = (&mut self.client, &mut self.pairs[to]);
        let Some(outgoing) = &mut pair.outgoing else { return Ok(false) };
        let next = match outgoing.step {
            BatchStep::Reservation(request) => match client.take(request)? {
                Some(ticket) => BatchStep::Credit { ticket, read: None, next: None },
                None => return Ok(false),
            },
            BatchStep::Credit { ticket, read: Some(request), .. } => match client.take(request)? {
                Some(head) => {
                    pair.head = head;
                    let next = Some(Instant::now() + CREDIT_INTERVAL);
                    BatchStep::Credit { ticket, read: None, next }
                }
                None => return Ok(false),
            },
            BatchStep::Credit { ticket, read: None, next } => {
                if ticket.wrapping_sub(pair.head) < pair.layout.slots {
                    return self.write(to, ticket).map(|()| true);
                }
                if next.is_some_and(|next| Instant::now() < next) {
                    return Ok(false);
                }
                self.stats.credit_reads += 1;
                BatchStep::Credit {
                    ticket,
                    read: Some(client.read_word(pair.memory.at(HEAD))?),
                    next,
                }
            }
            BatchStep::Written { ticket, write } => match client.take(write)? {
                Some(_) => return self.publish(to, ticket, None).map(|()| true),
                None => return Ok(false),
            },
            BatchStep::Published { write: Some(write), word } => match client.take(write)? {
                Some(_) => BatchStep::Published { write: None, word },
                None => return Ok(false),
            },
            BatchStep::Published { write: None, word } => {
                if client.take(word)?.is_some() {
                    self.stats.batches += 1;
                    // So that the connections of an inbox are those of senders that have not ended.
                    if outgoing.is_last {
                        client.close(pair.memory)?;
                    }
                    pair.outgoing = None;
                    return Ok(true);
                }
                return Ok(false);
            }
        };
        outgoing.step = next;
        Ok(true)
    }

    /// Writes the rows of a batch, and its word after them.
    fn write(&mut self, to: usize, ticket: u64) -> Result<(), farside::Error> {
        let (client, pair) = (&mut self.client, &mut self.pairs[to]);
        let Some(outgoing) = &mut pair.outgoing else { return Ok(()) };
        let at = pair.memory.at(pair.layout.rows(ticket));
        let write = match (&outgoing.rows, &self.input) {
            _ if outgoing.bytes == 0 => None,
            (BatchRows::Gathered(ranges), Some(input)) => {
                Some(client.write_ranges(at, input, 0, ranges)?)
            }
            (BatchRows::Staged(from), _) => {
                let rows = *from..from + u64::from(outgoing.bytes);
                Some(client.write(at, &self.staging, rows)?)
            }
            (BatchRows::Gathered(_), None) => None, // there is an input since rows were pushed from it
        };
        match write {
            Some(write) if !self.has_order => {
                outgoing.step = BatchStep::Written { ticket, write };
                Ok(())
            }
            write => self.publish(to, ticket, write),
        }
    }

    fn publish(
        &mut self,
        to: usize,
        ticket: u64,
        write: Option<RequestId>,
    ) -> Result<(), farside::Error> {
        let pair = &mut self.pairs[to];
        let Some(outgoing) = &mut pair.outgoing else { return Ok(()) };
        let (lap, sender) = (pair.layout.lap(ticket), self.number);
        let OutgoingBatch { bytes, is_last, .. } = *outgoing;
        let word = SlotWord { lap, sender, is_last, bytes }.encode();
        self.staging.write(pair.word, &word.to_le_bytes())?;
        let at = pair.memory.at(pair.layout.word(ticket));
        let word = self.client.write(at, &self.staging, pair.word..pair.word + 8)?;
        outgoing.step = BatchStep::Published { write, word };
        Ok(())
    }

    fn wait_for_room(&mut self, to: usize, timeout: Duration) -> Result<(), ShuffleError> {
        self.wait(timeout, |sender| sender.send(to, false))
    }

    /// Sends all that was pushed, also in batches that are not full, and waits until it is in the inboxes.
    ///
    /// *Blocks* for two round trips, and while inboxes are full.
    ///
    /// # Errors
    /// `ReceiversLate` if the time is over: call again; `Receiver`; `Finished`.
    pub fn flush(&mut self, timeout: Duration) -> Result<(), ShuffleError> {
        self.check()?;
        self.wait(timeout, |sender| sender.drain(false))
    }

    /// Sends all that was pushed, and the end. Afterwards it may be dropped.
    ///
    /// *Blocks* as [`flush`](Self::flush).
    ///
    /// # Errors
    /// As `flush`.
    pub fn finish(&mut self, timeout: Duration) -> Result<(), ShuffleError> {
        self.wait(timeout, Self::try_finish)
    }

    /// As [`finish`](Self::finish), without blocking; returns whether all is in the inboxes: otherwise call it again.
    ///
    /// # Errors
    /// As `finish`, without `ReceiversLate`.
    pub fn try_finish(&mut self) -> Result<bool, ShuffleError> {
        self.is_finished = true;
        self.drain(true)
    }

    /// Begins to send what was not sent, with the end if `is_last`; returns whether nothing is left.
    fn drain(&mut self, is_last: bool) -> Result<bool, ShuffleError> {
        self.progress()?;
        for to in 0..self.pairs.len() {
            let pair = &self.pairs[to];
            if pair.filling.rows > 0 || (is_last && !pair.has_ended) {
                self.send(to, is_last)?;
            }
        }
        let is_sent = |pair: &InboxPair| pair.filling.rows == 0 && (pair.has_ended || !is_last);
        Ok(self.active.is_empty() && self.pairs.iter().all(is_sent))
    }

    /// The error of a wait that is over, if it was for an inbox.
    pub(crate) fn late(&self) -> Option<ShuffleError> {
        let is_late = !self.active.is_empty();
        is_late.then(|| ShuffleError::ReceiversLate(self.active.clone()))
    }

    /// Repeats an attempt while batches are carried further.
    fn wait(
        &mut self,
        timeout: Duration,
        mut attempt: impl FnMut(&mut Self) -> Result<bool, ShuffleError>,
    ) -> Result<(), ShuffleError> {
        let mut waits: Option<(Deadline, Naps)> = None;
        loop {
            let batches = self.stats.batches;
            self.progress()?;
            if attempt(self)? {
                return Ok(());
            }
            let (deadline, naps) =
                waits.get_or_insert_with(|| (Deadline::after(timeout), Naps::new()));
            if deadline.is_over() {
                return Err(ShuffleError::ReceiversLate(self.active.clone()));
            }
            // Reads of an inbox that stays full are no progress.
            if self.stats.batches > batches {
                *naps = Naps::new();
            }
            naps.pause();
        }
    }
}

/// Opens an inbox, and takes the place of the sender of this number.
fn attach(
    client: &mut MemoryClient,
    (number, receiver): (u16, usize),
    address: &str,
    deadline: &Deadline,
) -> Result<(RemoteMemory, InboxLayout), ShuffleError> {
    let wrong = |why| ShuffleError::NotAnInbox(address.to_owned(), why);
    let failed = |error| ShuffleError::Receiver(receiver, error);
    let mut naps = Naps::new();
    let memory = loop {
        match client.open(address, deadline.left()) {
            Err(error) if error.code == ErrorCode::NoListener && !deadline.is_over() => {}
            opened => break opened.map_err(failed)?,
        }
        naps.pause();
    };
    if memory.bytes() < 8 * HEADER_WORDS as u64 {
        return Err(wrong("it is too short"));
    }
    // The magic is written last.
    loop {
        if deadline.read_word(client, memory.at(0)).map_err(failed)? != 0 {
            break;
        }
        if deadline.is_over() {
            return Err(wrong("its header is empty"));
        }
        naps.pause();
    }
    let mut bytes = [0; 8 * HEADER_WORDS];
    client.read_bytes(memory.at(0), &mut bytes, deadline.left()).map_err(failed)?;
    let mut words = [0; HEADER_WORDS];
    for (word, bytes) in words.iter_mut().zip(bytes.as_chunks().0) {
        *word = u64::from_le_bytes(*bytes);
    }
    let layout = InboxLayout::decode(words).map_err(wrong)?;
    if layout.bytes() > memory.bytes() {
        return Err(wrong("it is shorter than its header says"));
    }
    if number >= layout.senders {
        return Err(wrong("it has fewer senders than this sender's number"));
    }
    let connected = InboxLayout::connected(number);
    let taken = client.compare_swap(memory.at(connected), 0, 1).map_err(failed)?;
    match deadline.wait(client, taken).map_err(failed)? {
        0 => Ok((memory, layout)),
        _ => Err(ShuffleError::SenderTaken(number, receiver)),
    }
}
