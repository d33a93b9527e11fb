//! An executor: the shuffle of both inputs, and the join of its share.

use super::options::{JoinOptions, JoinSide};
use super::rows::Division;
use super::table::LocalJoin;
use crate::naps::Naps;
use crate::shuffle::{
    InboxOptions, Received, RowBatch, SenderOptions, ShuffleError, ShuffleInbox, ShuffleSender,
    destination,
};
use farside::fabrics::Fabric;
use farside::onesided::Deadline;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Rows that are pushed between two looks at the inbox.
const RECEIVE_EVERY: u64 = 1024;
/// Slots of an inbox for each executor.
const SLOTS_EACH: u32 = 8;

/// What an executor has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct JoinStats {
    /// Rows of its left and right input.
    pub input_rows: [u64; 2],
    /// Rows of its share, after the shuffle.
    pub share_rows: [u64; 2],
    /// Rows that it returned.
    pub output_rows: u64,
}

/// One of the executors of a join ([module](super)), on a thread of its own.
pub struct JoinExecutor {
    fabric: Arc<dyn Fabric>,
    number: u16,
    options: JoinOptions,
    left: ShuffleInbox,
    right: ShuffleInbox,
}

impl JoinExecutor {
    /// Lends the inboxes of the executor of this number, from 0 on, under two names that begin with `name`.
    ///
    /// # Errors
    /// `Options`; `Memory` as [`ShuffleInbox::lend`].
    pub fn lend(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        number: u16,
        options: &JoinOptions,
    ) -> Result<Self, ShuffleError> {
        options.check()?;
        if number >= options.executors {
            return Err(ShuffleError::Options("number: less than executors"));
        }
        let inbox = |end: &str, side: &JoinSide| {
            let options = InboxOptions {
                senders: options.executors,
                rows: side.rows,
                batch_bytes: options.batch_bytes,
                slots: SLOTS_EACH * u32::from(options.executors),
            };
            ShuffleInbox::lend(fabric, &format!("{name}-{end}"), &options)
        };
        let (left, right) = (inbox("left", &options.left)?, inbox("right", &options.right)?);
        Ok(Self { fabric: Arc::clone(fabric), number, options: options.clone(), left, right })
    }

    /// Returns the addresses of its inboxes, for all executors.
    pub fn addresses(&self) -> [String; 2] {
        [self.left.address().to_owned(), self.right.address().to_owned()]
    }

    /// Joins this executor's rows of both inputs with those of all executors, whose addresses are in the order of their
    /// numbers, and passes each row of its share to `out`: a left row, and the right row of a pair.
    ///
    /// *Guarantees*: together the executors return the join of all rows, each row of the result once, in no specified
    /// order. *Blocks* until all executors have pushed their rows; `timeout` is for each wait without any progress of
    /// others. *Memory*: its share of both inputs. *Cost*: [module](super).
    ///
    /// # Errors
    /// `SendersLost` or `Receiver` if another executor was lost, `SendersLate` or `ReceiversLate` if it made no
    /// progress: then rows may have been passed to `out`, and the join has failed. `RowSize` for a wrong row; `Options`;
    /// an error of an input, after which the other executors fail: [`Stopped`](ShuffleError::Stopped) says no more.
    pub fn run(
        self,
        peers: &[[String; 2]],
        left: impl Iterator<Item = Result<impl AsRef<[u8]>, ShuffleError>>,
        right: impl Iterator<Item = Result<impl AsRef<[u8]>, ShuffleError>>,
        timeout: Duration,
        mut out: impl FnMut(&[u8], Option<&[u8]>),
    ) -> Result<JoinStats, ShuffleError> {
        let Self { fabric, number, options, left: left_inbox, right: right_inbox } = self;
        if peers.len() != usize::from(options.executors) {
            return Err(ShuffleError::Options("peers: the addresses of all executors"));
        }
        let connect = |end: usize| {
            let addresses: Vec<_> = peers.iter().map(|peer| &peer[end]).collect();
            let sender_options =
                SenderOptions { batch_rows: options.batch_rows, ..SenderOptions::default() };
            ShuffleSender::connect(&fabric, number, &addresses, sender_options, timeout)
        };
        // All connections before any row: a peer that is missing is found first.
        let senders = (connect(0)?, connect(1)?);
        let mut join = LocalJoin::new(&options);
        let mut output_rows = 0;
        let mut out = |left: &[u8], right: Option<&[u8]>| {
            output_rows += 1;
            out(left, right);
        };
        let mut rights = Exchange::new(senders.1, right_inbox, &options.right, &join, timeout);
        rights.run(right, |_| {})?;
        let mut lefts = Exchange::new(senders.0, left_inbox, &options.left, &join, timeout);
        lefts.run(left, |row| {
            if options.kind.keeps_unmatched() {
                out(row, None);
            }
        })?;
        let input_rows = [lefts.input_rows, rights.input_rows];
        let share_rows = [lefts.share_rows, rights.share_rows];
        join.join((lefts.division, rights.division), 0, &mut out)?;
        Ok(JoinStats { input_rows, share_rows, output_rows })
    }
}

impl fmt::Debug for JoinExecutor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "JoinExecutor({} of {})", self.number, self.options.executors)
    }
}

/// The shuffle of one input: pushes rows and receives others alternately, so that full inboxes do not block each other.
struct Exchange<'a> {
    sender: ShuffleSender,
    inbox: ShuffleInbox,
    side: &'a JoinSide,
    executors: usize,
    division: Division<'a>,
    batch: RowBatch,
    timeout: Duration,
    input_rows: u64,
    share_rows: u64,
}

impl<'a> Exchange<'a> {
    fn new(
        sender: ShuffleSender,
        inbox: ShuffleInbox,
        side: &'a JoinSide,
        join: &LocalJoin<'_>,
        timeout: Duration,
    ) -> Self {
        let division = Division::new(side, join.seed);
        let executors = join.options.executors.into();
        let (batch, input_rows, share_rows) = (RowBatch::default(), 0, 0);
        Self { sender, inbox, side, executors, division, batch, timeout, input_rows, share_rows }
    }

    /// Pushes all rows but those without a key, and receives those of this executor from all.
    fn run(
        &mut self,
        rows: impl Iterator<Item = Result<impl AsRef<[u8]>, ShuffleError>>,
        mut no_key: impl FnMut(&[u8]),
    ) -> Result<(), ShuffleError> {
        for row in rows {
            let row = row?;
            let row = row.as_ref();
            self.input_rows += 1;
            let Some(key) = self.side.key.of(row)? else {
                self.side.rows.check(row)?;
                no_key(row);
                continue;
            };
            let to = destination(key, self.executors);
            if self.input_rows.is_multiple_of(RECEIVE_EVERY) {
                self.receive()?;
            }
            if !self.sender.try_push_to(to, row)? {
                self.repeat(|sender| sender.try_push_to(to, row), |_, pushed| pushed)?;
            }
        }
        self.repeat(ShuffleSender::try_finish, |received, sent| sent && received == Received::Ended)
    }

    /// Receives, and repeats an attempt of the sender, until both are what `is_done` says.
    fn repeat(
        &mut self,
        mut attempt: impl FnMut(&mut ShuffleSender) -> Result<bool, ShuffleError>,
        is_done: impl Fn(Received, bool) -> bool,
    ) -> Result<(), ShuffleError> {
        let (mut deadline, mut naps) = (Deadline::after(self.timeout), Naps::new());
        loop {
            let before = self.share_rows;
            let received = self.receive()?;
            let has_progress = self.sender.progress()?;
            let done = attempt(&mut self.sender)?;
            if is_done(received, done) {
                return Ok(());
            }
            if has_progress || self.share_rows > before {
                (deadline, naps) = (Deadline::after(self.timeout), Naps::new());
            } else if deadline.is_over() {
                return Err(self.sender.late().unwrap_or_else(|| self.inbox.late()));
            }
            naps.pause();
        }
    }

    /// Takes the batches that are in the inbox.
    fn receive(&mut self) -> Result<Received, ShuffleError> {
        loop {
            match self.inbox.try_receive(&mut self.batch)? {
                Received::Batch => {}
                nothing => return Ok(nothing),
            }
            for row in self.batch.rows() {
                self.division.push(row)?;
                self.share_rows += 1;
            }
        }
    }
}
