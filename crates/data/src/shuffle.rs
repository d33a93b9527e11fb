//! The shuffle of record batches.
//!
//! A row is the row format of all columns. The first row of a sender in each inbox is its schema, as the table of
//! Arrow's IPC format.

use crate::DataError;
use crate::column_rows::ColumnRows;
use arrow_array::{RecordBatch, RecordBatchOptions};
use arrow_ipc::convert::{IpcSchemaEncoder, try_fb_to_schema};
use arrow_ipc::root_as_schema;
use arrow_schema::SchemaRef;
use farside::fabrics::Fabric;
use farside::onesided::Deadline;
use farside_apps::shuffle::{
    InboxOptions, Received, RowBatch, RowFormat, SenderOptions, SenderStats, ShuffleInbox,
    ShuffleSender, destination,
};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// A function that returns the number of the inbox of a row of a batch.
pub type RowDestination = Box<dyn Fn(&RecordBatch, usize) -> usize + Send>;

/// How a sender finds the inbox of a row.
#[non_exhaustive]
pub enum BatchRule {
    /// By the hash of the values of these columns. Rows of equal values, also null, have one inbox, for all senders.
    Hash(Vec<String>),
    /// By this function.
    Custom(RowDestination),
}

impl fmt::Debug for BatchRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Hash(columns) => write!(f, "Hash({columns:?})"),
            Self::Custom(_) => write!(f, "Custom"),
        }
    }
}

/// Options of a [`BatchInbox`]. Start from `BatchInboxOptions::default()` and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchInboxOptions {
    /// The number of senders; 1 by default.
    pub senders: u16,
    /// Most bytes of a batch, and so of a row; 256 KiB by default.
    pub batch_bytes: u32,
    /// Batches that the inbox holds for each sender; 4 by default.
    pub slots_each: u32,
}

impl Default for BatchInboxOptions {
    fn default() -> Self {
        Self { senders: 1, batch_bytes: 256 << 10, slots_each: 4 }
    }
}

/// The sending end of a shuffle of record batches, over a [`ShuffleSender`].
///
/// *Guarantees*: the rows of a sender that are for one inbox come in their order; each is written once. At most two
/// batches for each inbox are in its memory. Dropping it before its end fails the receivers.
#[derive(Debug)]
pub struct BatchSender {
    sender: ShuffleSender,
    schema: SchemaRef,
    rows: ColumnRows,
    rule: BatchRule,
    /// The columns that are hashed.
    keys: ColumnRows,
    inboxes: usize,
}

impl BatchSender {
    /// Connects to inboxes as the sender of this number, and sends the schema of its batches to each.
    ///
    /// *Blocks* and costs as [`ShuffleSender::connect`].
    ///
    /// # Errors
    /// `NoColumn`, `RepeatedColumn` for the columns of the rule; `ColumnType`; `RowTooLarge` if a batch has no room for
    /// the schema; `Shuffle`.
    pub fn connect(
        fabric: &Arc<dyn Fabric>,
        number: u16,
        inboxes: &[impl AsRef<str>],
        schema: &SchemaRef,
        rule: BatchRule,
        timeout: Duration,
    ) -> Result<Self, DataError> {
        let rows = ColumnRows::new(schema, (0..schema.fields().len()).collect())?;
        let keys = match &rule {
            BatchRule::Hash(names) => ColumnRows::named(schema, names)?,
            BatchRule::Custom(_) => ColumnRows::new(schema, Vec::new())?,
        };
        let deadline = Deadline::after(timeout);
        let options = SenderOptions::default();
        let mut sender = ShuffleSender::connect(fabric, number, inboxes, options, timeout)?;
        let message = IpcSchemaEncoder::new().schema_to_fb(schema);
        for to in 0..inboxes.len() {
            sender.push_to(to, message.finished_data(), deadline.left())?;
        }
        let (schema, inboxes) = (Arc::clone(schema), inboxes.len());
        Ok(Self { sender, schema, rows, rule, keys, inboxes })
    }

    /// Sends the rows of a batch, each to its inbox.
    ///
    /// *Blocks* while an inbox and both batches for it are full, each time up to `timeout`. *Cost*: the conversion of the
    /// batch to rows, and a copy and a hash of each; two round trips for each full batch of the shuffle, which are not
    /// waited for.
    ///
    /// # Errors
    /// `SchemaDiffers`; `RowTooLarge`; `Shuffle`, as [`ShuffleSender::push`]. After an error some rows may have been sent:
    /// drop the sender.
    pub fn push(&mut self, batch: &RecordBatch, timeout: Duration) -> Result<(), DataError> {
        check_schema(&self.schema, &batch.schema())?;
        let (rows, keys) = (self.rows.encode(batch)?, self.keys.encode(batch)?);
        for number in 0..batch.num_rows() {
            let to = match &self.rule {
                BatchRule::Hash(_) => destination(keys.row(number), self.inboxes),
                BatchRule::Custom(rule) => rule(batch, number),
            };
            self.sender.push_to(to, rows.row(number), timeout)?;
        }
        Ok(())
    }

    /// Sends all that was pushed, and the end.
    ///
    /// *Blocks* as [`ShuffleSender::finish`].
    ///
    /// # Errors
    /// `Shuffle`.
    pub fn finish(&mut self, timeout: Duration) -> Result<(), DataError> {
        Ok(self.sender.finish(timeout)?)
    }

    /// Returns what it has done. A schema is a row of each inbox.
    pub fn stats(&self) -> SenderStats {
        self.sender.stats()
    }
}

/// Checks that the columns are the same; names the first that is not.
pub(crate) fn check_schema(expected: &SchemaRef, found: &SchemaRef) -> Result<(), DataError> {
    if Arc::ptr_eq(expected, found) {
        return Ok(());
    }
    let (one, other) = (expected.fields(), found.fields());
    for at in 0..one.len().max(other.len()) {
        match (one.get(at), other.get(at)) {
            (Some(one), Some(other))
                if one.name() == other.name() && one.data_type() == other.data_type() => {}
            (one, other) => {
                let name = other.or(one).map(|field| field.name().clone());
                return Err(DataError::SchemaDiffers(name.unwrap_or_default()));
            }
        }
    }
    Ok(())
}

/// What [`BatchInbox::try_receive`] found.
#[derive(Clone, PartialEq, Debug)]
pub enum BatchReceived {
    /// Rows of one sender, in their order.
    Batch(RecordBatch),
    /// No batch yet.
    Nothing,
    /// All senders have ended, and all batches were received.
    Ended,
}

/// The receiving end of a shuffle of record batches, over a [`ShuffleInbox`].
///
/// *Guarantees*: each row of a sender that has ended is received once, the rows of one sender in their order.
#[derive(Debug)]
pub struct BatchInbox {
    inbox: ShuffleInbox,
    /// Senders whose schema has come.
    known: Vec<bool>,
    rows: Option<(SchemaRef, ColumnRows)>,
    batch: RowBatch,
}

impl BatchInbox {
    /// Lends an inbox under a name.
    ///
    /// *Blocks* for the registration of the memory, `senders * slots_each * batch_bytes`.
    ///
    /// # Errors
    /// `Shuffle`, as [`ShuffleInbox::lend`].
    pub fn lend(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        options: &BatchInboxOptions,
    ) -> Result<Self, DataError> {
        let &BatchInboxOptions { senders, batch_bytes, slots_each } = options;
        let slots = slots_each.saturating_mul(senders.into());
        let rows = RowFormat::Variable;
        let inbox =
            ShuffleInbox::lend(fabric, name, &InboxOptions { senders, rows, batch_bytes, slots })?;
        let known = vec![false; senders.into()];
        Ok(Self { inbox, known, rows: None, batch: RowBatch::default() })
    }

    /// Returns the address to which senders connect.
    pub fn address(&self) -> &str {
        self.inbox.address()
    }

    /// Returns the schema of the batches, once it has come from a sender; always after the end.
    pub fn schema(&self) -> Option<&SchemaRef> {
        self.rows.as_ref().map(|(schema, _)| schema)
    }

    /// Takes the next batch, or waits until one comes; `None` after the end of all senders.
    ///
    /// *Blocks* as [`ShuffleInbox::receive`].
    ///
    /// # Errors
    /// `SchemaDiffers` if senders have different schemas; `Damaged`; `Shuffle`.
    pub fn receive(&mut self, timeout: Duration) -> Result<Option<RecordBatch>, DataError> {
        let deadline = Deadline::after(timeout);
        while self.inbox.receive(&mut self.batch, deadline.left())? {
            if let Some(batch) = self.decode()? {
                return Ok(Some(batch));
            }
        }
        Ok(None)
    }

    /// Takes the next batch, if there is one. Never blocks.
    ///
    /// # Errors
    /// As [`receive`](Self::receive).
    pub fn try_receive(&mut self) -> Result<BatchReceived, DataError> {
        loop {
            match self.inbox.try_receive(&mut self.batch)? {
                Received::Nothing => return Ok(BatchReceived::Nothing),
                Received::Ended => return Ok(BatchReceived::Ended),
                Received::Batch => {}
            }
            if let Some(batch) = self.decode()? {
                return Ok(BatchReceived::Batch(batch));
            }
        }
    }

    /// The rows of the batch that was received; `None` if it has but a schema.
    fn decode(&mut self) -> Result<Option<RecordBatch>, DataError> {
        let sender = self.batch.sender();
        let mut rows = self.batch.rows();
        if !std::mem::replace(&mut self.known[usize::from(sender)], true) {
            let message = rows.next().ok_or(DataError::Damaged(sender))?;
            let schema = root_as_schema(message).map_err(|_| DataError::Damaged(sender))?;
            let schema = try_fb_to_schema(schema).map_err(|_| DataError::Damaged(sender))?;
            let schema = Arc::new(schema);
            match &self.rows {
                Some((known, _)) => check_schema(known, &schema)?,
                None => {
                    let rows = ColumnRows::new(&schema, (0..schema.fields().len()).collect())?;
                    self.rows = Some((schema, rows));
                }
            }
        }
        let Some((schema, columns)) = &self.rows else { return Ok(None) };
        let count = rows.clone().count();
        if count == 0 {
            return Ok(None);
        }
        let arrays = columns.decode(rows).ok_or(DataError::Damaged(sender))?;
        let options = RecordBatchOptions::new().with_row_count(Some(count));
        RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)
            .map(Some)
            .map_err(|_| DataError::Damaged(sender))
    }
}
