//! Writes `orders.parquet` and `lineitem.parquet` in the manner of TPC-H (specification 4.2), by a seeded generator of its
//! own: `cargo run -p farside-data --example tpch -- FOLDER 150000`.
//!
//! Keys are sparse as in TPC-H, the first 8 of each 32. Unlike there an order has 0 to 7 lines instead of 1 to 7, so that
//! outer and anti joins have rows; and there are only some of the columns.
#![allow(dead_code, reason = "a test uses a part")]

use arrow_array::{
    Array, Date32Array, Decimal128Array, Int32Array, Int64Array, RecordBatch, StringArray,
};
use farside_data::{DataError, FileFormat, OutputFile};
use std::fs::File;
use std::io::BufWriter;
use std::path::Path;
use std::sync::Arc;

/// Orders of a batch.
const BATCH_ORDERS: u64 = 8_192;
const PRIORITIES: [&str; 5] = ["1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW"];
const WORDS: [&str; 8] =
    ["carefully", "ironic", "deposits", "sleep", "furiously", "packages", "above", "requests"];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [folder, orders] = arguments.as_slice() else {
        return Err("tpch FOLDER ORDERS".into());
    };
    Ok(generate(folder.as_ref(), orders.parse()?)?)
}

/// Writes both files for this number of orders, with about 3.5 lines each.
pub(crate) fn generate(folder: &Path, orders: u64) -> Result<(), DataError> {
    let mut random = TpchRandom(0x7463_7068);
    let mut files = [None, None];
    let mut first = 0;
    loop {
        let batch_orders = BATCH_ORDERS.min(orders - first);
        let batches = batches(&mut random, first, batch_orders)?;
        for ((file, batch), name) in files.iter_mut().zip(batches).zip(["orders", "lineitem"]) {
            let file = match file {
                Some(file) => file,
                None => {
                    let to = BufWriter::new(File::create(folder.join(format!("{name}.parquet")))?);
                    file.insert(OutputFile::new(FileFormat::Parquet, &batch.schema(), to)?)
                }
            };
            file.write(&batch)?;
        }
        first += batch_orders;
        if first == orders {
            break;
        }
    }
    files.into_iter().flatten().try_for_each(OutputFile::finish)
}

/// SplitMix64.
struct TpchRandom(u64);

impl TpchRandom {
    fn below(&mut self, bound: i64) -> i64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((u128::from(word ^ (word >> 31)) * bound.unsigned_abs() as u128) >> 64) as i64
    }

    fn comment(&mut self) -> String {
        let words = 2 + self.below(4);
        (0..words).map(|_| WORDS[self.below(8) as usize]).collect::<Vec<_>>().join(" ")
    }
}

fn money(cents: Vec<i128>) -> Result<Decimal128Array, DataError> {
    Ok(Decimal128Array::from(cents).with_precision_and_scale(15, 2)?)
}

/// Orders from `first` on, and their lines.
fn batches(random: &mut TpchRandom, first: u64, count: u64) -> Result<[RecordBatch; 2], DataError> {
    let (mut keys, mut customers, mut totals, mut days) = (vec![], vec![], vec![], vec![]);
    let (mut priorities, mut comments) = (vec![], vec![]);
    let (mut line_keys, mut parts, mut numbers) = (vec![], vec![], vec![]);
    let (mut quantities, mut prices, mut shipped, mut line_comments) =
        (vec![], vec![], vec![], vec![]);
    for at in first..first + count {
        let key = (at / 8 * 32 + at % 8 + 1) as i64;
        let day = 8_035 + random.below(2_405) as i32;
        let mut total = 0;
        for number in 1..=random.below(8) as i32 {
            let quantity = 1 + random.below(50);
            let price = quantity * (90_000 + random.below(110_000));
            total += i128::from(price);
            line_keys.push(key);
            parts.push(1 + random.below(200_000));
            numbers.push(number);
            quantities.push(i128::from(quantity * 100));
            prices.push(i128::from(price));
            shipped.push(day + 1 + random.below(121) as i32);
            line_comments.push(random.comment());
        }
        keys.push(key);
        // A third of the customers have no order; some orders have no customer, unlike in TPC-H.
        customers.push((random.below(100) != 0).then(|| 3 * random.below(50_000) + 1));
        totals.push(total);
        days.push(day);
        priorities.push(PRIORITIES[random.below(5) as usize]);
        comments.push(random.comment());
    }
    let column = |array: Arc<dyn Array>| array;
    let orders = [
        ("o_orderkey", column(Arc::new(Int64Array::from(keys)))),
        ("o_custkey", Arc::new(Int64Array::from(customers))),
        ("o_totalprice", Arc::new(money(totals)?)),
        ("o_orderdate", Arc::new(Date32Array::from(days))),
        ("o_orderpriority", Arc::new(StringArray::from(priorities))),
        ("o_comment", Arc::new(StringArray::from(comments))),
    ];
    let lines = [
        ("l_orderkey", column(Arc::new(Int64Array::from(line_keys)))),
        ("l_partkey", Arc::new(Int64Array::from(parts))),
        ("l_linenumber", Arc::new(Int32Array::from(numbers))),
        ("l_quantity", Arc::new(money(quantities)?)),
        ("l_extendedprice", Arc::new(money(prices)?)),
        ("l_shipdate", Arc::new(Date32Array::from(shipped))),
        ("l_comment", Arc::new(StringArray::from(line_comments))),
    ];
    let nullable = |columns: Vec<(&'static str, Arc<dyn Array>)>| {
        RecordBatch::try_from_iter_with_nullable(
            columns.into_iter().map(|(name, array)| (name, array, true)),
        )
    };
    Ok([nullable(orders.into())?, nullable(lines.into())?])
}
