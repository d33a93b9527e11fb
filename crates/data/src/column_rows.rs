//! Columns as rows of bytes, and back: the row format of Arrow (`arrow_row`), in which equal values have equal bytes.

use crate::DataError;
use arrow_array::{Array, ArrayRef, RecordBatch, new_null_array};
use arrow_row::{RowConverter, Rows, SortField};
use arrow_schema::{DataType, Field, Schema};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Some columns of a schema.
#[derive(Debug)]
pub(crate) struct ColumnRows {
    /// The numbers of the columns.
    pub(crate) columns: Vec<usize>,
    types: Vec<DataType>,
    /// None without columns, whose rows have no bytes.
    converter: Option<RowConverter>,
}

/// The rows of a batch.
#[derive(Debug)]
pub(crate) struct EncodedRows(Option<Rows>);

impl EncodedRows {
    /// Returns the bytes of a row, which exists.
    #[inline]
    pub(crate) fn row(&self, number: usize) -> &[u8] {
        self.0.as_ref().map_or(&[], |rows| rows.row(number).data())
    }
}

impl ColumnRows {
    /// Returns the conversion of these columns, whose numbers are of the schema.
    ///
    /// # Errors
    /// `ColumnType`.
    pub(crate) fn new(schema: &Schema, columns: Vec<usize>) -> Result<Self, DataError> {
        let fields: Vec<&Field> = columns.iter().map(|at| schema.field(*at)).collect();
        if let Some(field) = fields.iter().find(|field| !is_supported(field.data_type())) {
            return Err(DataError::ColumnType(field.name().clone(), field.data_type().clone()));
        }
        let types: Vec<_> = fields.iter().map(|field| field.data_type().clone()).collect();
        let sorted = types.iter().cloned().map(SortField::new).collect();
        let converter = if types.is_empty() { None } else { Some(RowConverter::new(sorted)?) };
        Ok(Self { columns, types, converter })
    }

    /// Returns the conversion of the columns of these names.
    ///
    /// # Errors
    /// `NoColumn`; `RepeatedColumn`; `ColumnType`.
    pub(crate) fn named(schema: &Schema, names: &[impl AsRef<str>]) -> Result<Self, DataError> {
        let columns = names.iter().map(|name| column(schema, name.as_ref()));
        Self::new(schema, columns.collect::<Result<_, _>>()?)
    }

    /// Returns the rows of a batch of the schema.
    ///
    /// # Errors
    /// `Arrow`.
    pub(crate) fn encode(&self, batch: &RecordBatch) -> Result<EncodedRows, DataError> {
        let arrays: Vec<ArrayRef> =
            self.columns.iter().map(|at| ArrayRef::clone(batch.column(*at))).collect();
        let rows = self.converter.as_ref().map(|converter| converter.convert_columns(&arrays));
        Ok(EncodedRows(rows.transpose()?))
    }

    /// Returns for each row of a batch whether one of the columns is null.
    pub(crate) fn nulls(&self, batch: &RecordBatch) -> Vec<bool> {
        let mut nulls = vec![false; batch.num_rows()];
        for array in self.columns.iter().filter_map(|at| batch.column(*at).logical_nulls()) {
            nulls.iter_mut().zip(array.iter()).for_each(|(null, is_valid)| *null |= !is_valid);
        }
        nulls
    }

    /// Returns the row of which all values are null.
    ///
    /// # Errors
    /// `Arrow`.
    pub(crate) fn null_row(&self) -> Result<Vec<u8>, DataError> {
        let arrays: Vec<_> = self.types.iter().map(|one| new_null_array(one, 1)).collect();
        let rows = self.converter.as_ref().map(|converter| converter.convert_columns(&arrays));
        Ok(EncodedRows(rows.transpose()?).row(0).to_vec())
    }

    /// Returns the columns of rows; `None` if the bytes are not of such rows.
    ///
    /// Arrow checks the text of rows and panics at other bytes, which are possible only if another program wrote them.
    pub(crate) fn decode<'a>(&self, rows: impl Iterator<Item = &'a [u8]>) -> Option<Vec<ArrayRef>> {
        let Some(converter) = &self.converter else { return Some(Vec::new()) };
        let parser = converter.parser();
        let rows: Vec<_> = rows.map(|row| parser.parse(row)).collect();
        catch_unwind(AssertUnwindSafe(|| converter.convert_rows(rows))).ok()?.ok()
    }
}

/// Whether values of this type have rows that give the same type back.
fn is_supported(data_type: &DataType) -> bool {
    match data_type {
        DataType::Dictionary(..) | DataType::RunEndEncoded(..) | DataType::Union(..) => false,
        DataType::List(field) | DataType::LargeList(field) | DataType::FixedSizeList(field, _) => {
            is_supported(field.data_type())
        }
        DataType::Struct(fields) => fields.iter().all(|field| is_supported(field.data_type())),
        other => !other.is_nested(),
    }
}

/// Returns the number of the column of a name.
///
/// # Errors
/// `NoColumn`; `RepeatedColumn`.
pub(crate) fn column(schema: &Schema, name: &str) -> Result<usize, DataError> {
    let mut found = (0..).zip(schema.fields()).filter(|(_, field)| field.name() == name);
    match (found.next(), found.next()) {
        (Some((at, _)), None) => Ok(at),
        (Some(_), Some(_)) => Err(DataError::RepeatedColumn(name.to_owned())),
        (None, _) => {
            let columns = schema.fields().iter().map(|field| field.name().clone()).collect();
            Err(DataError::NoColumn(name.to_owned(), columns))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use arrow_array::{Int64Array, StringArray};
    use std::sync::Arc;

    #[test]
    fn rows_of_other_programs_are_refused() {
        let fields = [("number", DataType::Int64), ("text", DataType::Utf8)];
        let fields = fields.map(|(name, data_type)| Field::new(name, data_type, true));
        let schema = Arc::new(Schema::new(fields.to_vec()));
        let columns = ColumnRows::new(&schema, vec![1, 0]).unwrap();
        let arrays: Vec<ArrayRef> = vec![
            Arc::new(Int64Array::from(vec![Some(7), None])),
            Arc::new(StringArray::from(vec![Some("seven"), Some("nothing")])),
        ];
        let batch = RecordBatch::try_new(Arc::clone(&schema), arrays.clone()).unwrap();
        let rows = columns.encode(&batch).unwrap();
        let back = columns.decode((0..2).map(|number| rows.row(number))).unwrap();
        assert_eq!([&back[0], &back[1]], [&arrays[1], &arrays[0]]);
        // Bytes that are no row, among them text that is not UTF-8.
        for wrong in [&[][..], &[0xff], &rows.row(0)[..3], &[2, 0xff, 0xfe, 0xfd, 0, 0, 0, 0, 0, 3]]
        {
            assert!(columns.decode([rows.row(0), wrong].into_iter()).is_none(), "{wrong:?}");
        }
    }
}
