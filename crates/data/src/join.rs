//! The join of record batches.
//!
//! A row is its key, in the row format of the key columns after its length ([`JoinKey::Prefixed`]), and the row format of
//! the columns that are not keys and that the output has.

use crate::DataError;
use crate::column_rows::{ColumnRows, EncodedRows, column};
use crate::shuffle::check_schema;
use arrow_array::{ArrayRef, RecordBatch, RecordBatchOptions};
use arrow_schema::{Field, Schema, SchemaRef};
use farside::fabrics::Fabric;
use farside_apps::join::{JoinExecutor, JoinKey, JoinKind, JoinOptions, JoinSide, JoinStats};
use farside_apps::shuffle::{RowFormat, ShuffleError};
use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

/// Rows of a batch of the output.
const OUTPUT_ROWS: usize = 8192;

/// What is joined: the same at all executors.
///
/// The output has the columns of the left input, and for inner and left outer joins those of the right input that are not
/// keys; of a name that is taken, with `_right` after it. Keys are equal if all of their values are; null equals nothing,
/// NaN equals NaN, and 0.0 does not equal -0.0.
#[derive(Debug)]
pub struct BatchJoin {
    kind: JoinKind,
    left: BatchSide,
    right: BatchSide,
    schema: SchemaRef,
    /// The values of right columns that have no row.
    no_right: Vec<u8>,
}

/// One input.
#[derive(Debug)]
struct BatchSide {
    schema: SchemaRef,
    keys: ColumnRows,
    rest: ColumnRows,
}

impl BatchSide {
    /// `keeps`: whether the columns that are not keys are in the output.
    fn new(schema: &SchemaRef, names: &[&str], keeps: bool) -> Result<Self, DataError> {
        let keys = ColumnRows::named(schema, names)?;
        let mut rest: Vec<usize> = (0..schema.fields().len()).collect();
        rest.retain(|at| keeps && !keys.columns.contains(at));
        Ok(Self { schema: Arc::clone(schema), rest: ColumnRows::new(schema, rest)?, keys })
    }

    /// The rows of a batch.
    fn rows(&self, batch: &RecordBatch) -> Result<SideRows, DataError> {
        check_schema(&self.schema, &batch.schema())?;
        let (keys, rest) = (self.keys.encode(batch)?, self.rest.encode(batch)?);
        let nulls = self.keys.nulls(batch);
        Ok(SideRows { keys, rest, nulls, next: 0 })
    }
}

/// The rows of a batch, to be taken one after the other.
struct SideRows {
    keys: EncodedRows,
    rest: EncodedRows,
    nulls: Vec<bool>,
    next: usize,
}

impl SideRows {
    /// Writes the next row to `row`; false after the last.
    fn next_into(&mut self, row: &mut Vec<u8>) -> Result<bool, DataError> {
        let Some(is_null) = self.nulls.get(self.next) else { return Ok(false) };
        let (key, rest) = (self.keys.row(self.next), self.rest.row(self.next));
        self.next += 1;
        let Ok(bytes @ ..0x8000_0000) = u32::try_from(key.len()) else {
            return Err(DataError::RowTooLarge { bytes: key.len(), possible: 0x7fff_ffff });
        };
        row.clear();
        row.extend_from_slice(&JoinKey::prefix(bytes, *is_null));
        row.extend_from_slice(key);
        row.extend_from_slice(rest);
        Ok(true)
    }
}

impl BatchJoin {
    /// Returns the join of inputs of these schemas on pairs of columns, a left and a right one.
    ///
    /// # Errors
    /// `NoColumn`; `RepeatedColumn`, also if a column is named twice; `KeyTypes`; `ColumnType`.
    pub fn new(
        kind: JoinKind,
        left: &SchemaRef,
        right: &SchemaRef,
        on: &[(impl AsRef<str>, impl AsRef<str>)],
    ) -> Result<Self, DataError> {
        let lefts: Vec<_> = on.iter().map(|(left, _)| left.as_ref()).collect();
        let rights: Vec<_> = on.iter().map(|(_, right)| right.as_ref()).collect();
        for names in [&lefts, &rights] {
            let repeated = names.iter().enumerate().find(|(at, name)| names[..*at].contains(name));
            if let Some((_, name)) = repeated {
                return Err(DataError::RepeatedColumn((*name).to_owned()));
            }
        }
        for (left_name, right_name) in lefts.iter().zip(&rights) {
            let one = left.field(column(left, left_name)?).data_type();
            let other = right.field(column(right, right_name)?).data_type();
            if one != other {
                let names = [(*left_name).to_owned(), (*right_name).to_owned()];
                return Err(DataError::KeyTypes(names, Box::new([one.clone(), other.clone()])));
            }
        }
        let has_right = matches!(kind, JoinKind::Inner | JoinKind::LeftOuter);
        let left = BatchSide::new(left, &lefts, true)?;
        let right = BatchSide::new(right, &rights, has_right)?;
        let mut fields: Vec<Arc<Field>> = left.schema.fields().iter().cloned().collect();
        for at in &right.rest.columns {
            let field = right.schema.field(*at);
            let mut name = field.name().clone();
            while fields.iter().any(|field| *field.name() == name) {
                name.push_str("_right");
            }
            let is_nullable = field.is_nullable() || kind == JoinKind::LeftOuter;
            fields.push(Arc::new(field.clone().with_name(name).with_nullable(is_nullable)));
        }
        let no_right = right.rest.null_row()?;
        Ok(Self { kind, left, right, schema: Arc::new(Schema::new(fields)), no_right })
    }

    /// Returns the schema of the output.
    pub const fn schema(&self) -> &SchemaRef {
        &self.schema
    }
}

/// One of the executors of a join of record batches, over a [`JoinExecutor`].
#[derive(Debug)]
pub struct BatchJoinExecutor {
    executor: JoinExecutor,
    join: Arc<BatchJoin>,
}

impl BatchJoinExecutor {
    /// Lends the inboxes of the executor of this number, of that many in all, as [`JoinExecutor::lend`]. A row has at most
    /// `batch_bytes`.
    ///
    /// # Errors
    /// `Shuffle`.
    pub fn lend(
        fabric: &Arc<dyn Fabric>,
        name: &str,
        (number, executors): (u16, u16),
        join: &Arc<BatchJoin>,
        batch_bytes: u32,
    ) -> Result<Self, DataError> {
        let side = || JoinSide { rows: RowFormat::Variable, key: JoinKey::Prefixed };
        let (kind, left, right) = (join.kind, side(), side());
        let options =
            JoinOptions { kind, left, right, executors, batch_bytes, ..JoinOptions::default() };
        let executor = JoinExecutor::lend(fabric, name, number, &options)?;
        Ok(Self { executor, join: Arc::clone(join) })
    }

    /// Returns the addresses of its inboxes, for all executors.
    pub fn addresses(&self) -> [String; 2] {
        self.executor.addresses()
    }

    /// Joins this executor's batches of both inputs with those of all executors, and passes the output of its share of the
    /// keys to `out`, in batches. Guarantees, blocks and costs as [`JoinExecutor::run`].
    ///
    /// # Errors
    /// The first error of an input or of `out`, after which the other executors fail; `SchemaDiffers`; `RowTooLarge`;
    /// `Damaged`; `Shuffle`.
    pub fn run(
        self,
        peers: &[[String; 2]],
        left: impl Iterator<Item = Result<RecordBatch, DataError>>,
        right: impl Iterator<Item = Result<RecordBatch, DataError>>,
        timeout: Duration,
        out: impl FnMut(RecordBatch) -> Result<(), DataError>,
    ) -> Result<JoinStats, DataError> {
        let Self { executor, join } = self;
        let failed = RefCell::new(None);
        let mut output = JoinOutput::new(&join, out);
        let left = side_rows(&join.left, left, &failed);
        let right = side_rows(&join.right, right, &failed);
        let done = executor.run(peers, left, right, timeout, |left, right| {
            let mut failed = failed.borrow_mut();
            if failed.is_none() {
                *failed = output.add(left, right).err();
            }
        });
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        let stats = done?;
        output.flush()?;
        Ok(stats)
    }
}

/// The bytes of a row, whose memory is used again when it is dropped.
struct SharedRow(Rc<Vec<u8>>);

impl AsRef<[u8]> for SharedRow {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

/// The rows of batches; ends by `Stopped` at the first error, which is kept.
fn side_rows(
    side: &BatchSide,
    mut batches: impl Iterator<Item = Result<RecordBatch, DataError>>,
    failed: &RefCell<Option<DataError>>,
) -> impl Iterator<Item = Result<SharedRow, ShuffleError>> {
    let mut rows: Option<SideRows> = None;
    // Used again for each row, since the one before is dropped by then.
    let mut row = Rc::new(Vec::new());
    let mut next = move || -> Result<Option<SharedRow>, DataError> {
        loop {
            if let Some(rows) = &mut rows
                && rows.next_into(Rc::make_mut(&mut row))?
            {
                return Ok(Some(SharedRow(Rc::clone(&row))));
            }
            match batches.next() {
                Some(batch) => rows = Some(side.rows(&batch?)?),
                None => return Ok(None),
            }
        }
    };
    std::iter::from_fn(move || {
        if failed.borrow().is_some() {
            return Some(Err(ShuffleError::Stopped));
        }
        next().transpose().map(|row| {
            row.map_err(|error| {
                *failed.borrow_mut() = Some(error);
                ShuffleError::Stopped
            })
        })
    })
}

/// Rows of the output, until there are enough for a batch.
struct JoinOutput<'a, F> {
    join: &'a BatchJoin,
    lefts: Vec<u8>,
    rights: Vec<u8>,
    /// The ends of the left row and of the right one, of each pair.
    ends: Vec<[usize; 2]>,
    out: F,
}

impl<'a, F: FnMut(RecordBatch) -> Result<(), DataError>> JoinOutput<'a, F> {
    const fn new(join: &'a BatchJoin, out: F) -> Self {
        Self { join, lefts: Vec::new(), rights: Vec::new(), ends: Vec::new(), out }
    }

    fn add(&mut self, left: &[u8], right: Option<&[u8]>) -> Result<(), DataError> {
        self.lefts.extend_from_slice(left);
        let rest = match right {
            Some(right) => split(right).1,
            None => &self.join.no_right,
        };
        self.rights.extend_from_slice(rest);
        self.ends.push([self.lefts.len(), self.rights.len()]);
        if self.ends.len() >= OUTPUT_ROWS { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> Result<(), DataError> {
        if self.ends.is_empty() {
            return Ok(());
        }
        let batch = self.batch();
        self.lefts.clear();
        self.rights.clear();
        self.ends.clear();
        (self.out)(batch?)
    }

    fn batch(&self) -> Result<RecordBatch, DataError> {
        let BatchJoin { left, right, schema, .. } = self.join;
        let damaged = || DataError::Shuffle(ShuffleError::Damaged(0));
        let lefts = || parts(&self.lefts, self.ends.iter().map(|[end, _]| *end));
        let keys = left.keys.decode(lefts().map(|row| split(row).0)).ok_or_else(damaged)?;
        let rest = left.rest.decode(lefts().map(|row| split(row).1)).ok_or_else(damaged)?;
        let rights = parts(&self.rights, self.ends.iter().map(|[_, end]| *end));
        let rights = right.rest.decode(rights).ok_or_else(damaged)?;
        let at = left.keys.columns.iter().chain(&left.rest.columns);
        let mut columns: Vec<(usize, ArrayRef)> =
            at.copied().zip(keys.into_iter().chain(rest)).collect();
        columns.sort_unstable_by_key(|(at, _)| *at);
        let arrays = columns.into_iter().map(|(_, array)| array).chain(rights).collect();
        let options = RecordBatchOptions::new().with_row_count(Some(self.ends.len()));
        Ok(RecordBatch::try_new_with_options(Arc::clone(schema), arrays, &options)?)
    }
}

/// The key of a row of this process, and the rest.
fn split(row: &[u8]) -> (&[u8], &[u8]) {
    JoinKey::split(row).unwrap_or_default()
}

/// The parts of bytes that end here.
fn parts(bytes: &[u8], ends: impl Iterator<Item = usize>) -> impl Iterator<Item = &[u8]> {
    let mut start = 0;
    ends.map(move |end| &bytes[std::mem::replace(&mut start, end)..end])
}
