//! Helpers of the tests of record batches.
#![allow(dead_code, reason = "each test file uses a part")]

use arrow_array::{Array, ArrayRef, Int64Array, RecordBatch, StringArray};
use farside_testkit::Random;
use std::sync::Arc;

/// A row of the test inputs: a number and a text, which may be null, and the number of the row.
pub(crate) type TestRow = (Option<i64>, Option<String>, i64);

/// A batch of rows in the columns `{name}_number`, `{name}_text` and `{name}_row`.
pub(crate) fn batch(name: &str, rows: &[TestRow]) -> RecordBatch {
    let numbers: Int64Array = rows.iter().map(|row| row.0).collect();
    let texts: StringArray = rows.iter().map(|row| row.1.as_deref()).collect();
    let ids = Int64Array::from_iter_values(rows.iter().map(|row| row.2));
    let columns: [(_, ArrayRef, _); 3] = [
        (format!("{name}_number"), Arc::new(numbers), true),
        (format!("{name}_text"), Arc::new(texts), true),
        (format!("{name}_row"), Arc::new(ids), true),
    ];
    RecordBatch::try_from_iter_with_nullable(columns).unwrap()
}

/// The rows of three such columns, from `first` on.
pub(crate) fn rows(batch: &RecordBatch, first: usize) -> Vec<Option<TestRow>> {
    let column = |at: usize| Arc::clone(batch.column(first + at));
    let (numbers, texts, ids) = (column(0), column(1), column(2));
    let numbers = numbers.as_any().downcast_ref::<Int64Array>().unwrap();
    let texts = texts.as_any().downcast_ref::<StringArray>().unwrap();
    let ids = ids.as_any().downcast_ref::<Int64Array>().unwrap();
    let row = |at: usize| {
        let number = numbers.is_valid(at).then(|| numbers.value(at));
        let text = texts.is_valid(at).then(|| texts.value(at).to_owned());
        ids.is_valid(at).then(|| (number, text, ids.value(at)))
    };
    (0..batch.num_rows()).map(row).collect()
}

/// Random rows with keys below `keys`, of which one in eight is null.
pub(crate) fn random_rows(random: &mut Random, count: usize, keys: u64) -> Vec<TestRow> {
    let row = |at: usize| {
        let number = (!random.one_in(8)).then(|| random.below(keys) as i64 - 2);
        let text = (!random.one_in(8)).then(|| "x".repeat(random.below(keys) as usize % 3));
        (number, text, at as i64)
    };
    (0..count).map(row).collect()
}
