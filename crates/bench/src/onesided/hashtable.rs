//! The hash table in memory that is lent, compared with one in this process (paper 000, section IV-B).

use super::{Lent, TIMEOUT};
use crate::settings::BenchHashtable;
use crate::window::{Figure, measure};
use farside::onesided::{HeapOptions, MemoryClient};
use farside_apps::hashtable::{HotOptions, RemoteTable, TableError, TableOptions};
use farside_apps::ycsb::WorkloadRandom;
use farside_apps::ycsb::generator::{ZIPFIAN_CONSTANT, Zipfian, fnv_hash};
use farside_command::failure::Failure;
use farside_command::output::{Output, Table, time};
use serde::Serialize;
use std::collections::HashMap;
use std::sync::RwLock;

/// Keys of the table, each of 8 B, with values of 64 B.
const KEYS: u64 = 8192;
const VALUE: [u8; 64] = [7; 64];
/// Keys of skewed puts, which are repeated.
const SKEWED: usize = 1 << 16;
/// Entries of a block of hot keys.
const ENTRIES: usize = 16;
/// Keys that are read together.
const TOGETHER: usize = 64;
const BYTES: u64 = 64 << 20;
/// Parts of the map in this process, each with a lock.
const SHARDS: usize = 16;

/// The cost of an operation on a key.
#[derive(Debug, Serialize)]
struct TableFigure {
    operation: String,
    #[serde(flatten)]
    time: Figure,
    /// Work requests and doorbells.
    work_requests: f64,
    doorbells: f64,
    /// Times the cost in this process.
    ratio: f64,
}

/// Runs `farside bench hashtable`.
///
/// # Errors
/// Those of the memory server and the table; that of output which cannot be written.
pub fn run(arguments: &BenchHashtable, output: Output) -> Result<(), Failure> {
    let windows = arguments.lent.windows;
    let lent = Lent::new(&arguments.lent, BYTES)?;
    let (mut client, memory) = lent.client()?;
    let options = TableOptions { heap: HeapOptions::default() };
    let mut table = RemoteTable::create(&mut client, &[memory.at(0)], &options, TIMEOUT)?;
    for number in 0..KEYS {
        table.put(&mut client, &key(number), &VALUE, TIMEOUT)?;
    }
    for number in 0..KEYS {
        // Splits have moved them meanwhile.
        table.get(&mut client, &key(number), TIMEOUT)?;
    }
    let [get_ns, put_ns] = local(windows)?;
    let mut other = RemoteTable::open(&mut client, &[memory.at(0)], TIMEOUT)?;
    let mut next = 0_u64;
    let mut figures = Vec::new();
    let bar = output.bar("figures", 6 + arguments.hot.len() as u64);
    for (operation, local_ns) in [
        ("get, place known", get_ns),
        ("get, 64 together", get_ns),
        ("put, place known", put_ns),
        ("put, delete", put_ns),
        ("get, absent", get_ns),
    ] {
        let keys = if operation == "get, 64 together" { TOGETHER as f64 } else { 1.0 };
        figures.push(figure(&mut client, (operation, keys, local_ns), windows, |client| {
            next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            operate(operation, (client, &mut table, &mut other), next >> 33)
        })?);
        bar.inc(1);
    }
    let keys = skewed();
    figures.push(puts(&mut client, &mut table, ("put, zipf", put_ns), &keys, windows)?);
    bar.inc(1);
    for share in &arguments.hot {
        let blocks = (KEYS as usize / *share as usize / ENTRIES).max(1);
        let mut holding = RemoteTable::open(&mut client, &[memory.at(0)], TIMEOUT)?;
        let theta = arguments.theta;
        let options = HotOptions { blocks, entries: ENTRIES, theta, ..HotOptions::default() };
        holding.hold_hot_puts(&options)?;
        for key in &keys {
            holding.put(&mut client, &key.to_le_bytes(), &VALUE, TIMEOUT)?;
        }
        let operation = format!("put, zipf, hot 1/{share}");
        figures.push(puts(&mut client, &mut holding, (&operation, put_ns), &keys, windows)?);
        holding.close(&mut client, TIMEOUT)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    print(&figures, output);
    output.line(format!(
        "{KEYS} keys of 8 B, values of 64 B, over {}; local: a map of {SHARDS} parts with a lock each, get {}, put {}",
        lent.fabric.name(),
        time(get_ns),
        time(put_ns)
    ));
    let skewed: Vec<_> =
        arguments.hot.iter().zip(&figures[figures.len() - arguments.hot.len()..]).collect();
    let labels = ["skewed puts, millions a second", "keys in the hot area, one of"];
    super::draw(arguments.lent.plot.as_deref(), labels, &skewed, |(share, one)| {
        let name = format!("held, {} puts a flush", arguments.theta);
        (name, f64::from(**share), 1e3 / one.time.median_ns)
    })?;
    output.value(&figures);
    Ok(())
}

/// Keys of puts with a skewed distribution.
fn skewed() -> Vec<u64> {
    let mut random = WorkloadRandom::new(1);
    let mut ranks = Zipfian::new(0, KEYS - 1, ZIPFIAN_CONSTANT);
    (0..SKEWED).map(|_| fnv_hash(ranks.next(&mut random)) % KEYS).collect()
}

/// Measures puts of these keys.
fn puts(
    client: &mut MemoryClient,
    table: &mut RemoteTable,
    (operation, local_ns): (&str, f64),
    keys: &[u64],
    windows: u32,
) -> Result<TableFigure, Failure> {
    let mut at = 0;
    let figure = figure(client, (operation, 1.0, local_ns), windows, |client| {
        at = (at + 1) % SKEWED;
        table.put(client, &keys[at].to_le_bytes(), &VALUE, TIMEOUT)
    })?;
    table.flush(client, TIMEOUT)?;
    Ok(figure)
}

/// Measures an operation, which is of that many keys, and counts its requests.
fn figure(
    client: &mut MemoryClient,
    (operation, keys, local_ns): (&str, f64, f64),
    windows: u32,
    mut operate: impl FnMut(&mut MemoryClient) -> Result<(), TableError>,
) -> Result<TableFigure, Failure> {
    let (before, mut done) = (client.stats(), 0);
    let time = measure(windows, |count| {
        for _ in 0..count {
            done += 1;
            operate(client)?;
        }
        Ok::<(), TableError>(())
    })?;
    let now = client.stats();
    let each = |count: u64| count as f64 / done as f64 / keys;
    let time = time.per(keys);
    Ok(TableFigure {
        operation: operation.to_owned(),
        time,
        work_requests: each(now.work_requests - before.work_requests),
        doorbells: each(now.doorbells - before.doorbells),
        ratio: time.median_ns / local_ns,
    })
}

fn key(number: u64) -> [u8; 8] {
    (number % KEYS).to_le_bytes()
}

/// One operation. The second table has not seen the keys of the first.
fn operate(
    operation: &str,
    (client, table, other): (&mut MemoryClient, &mut RemoteTable, &mut RemoteTable),
    number: u64,
) -> Result<(), TableError> {
    match operation {
        "get, place known" => table.get(client, &key(number), TIMEOUT).map(drop),
        "get, 64 together" => {
            let keys: [[u8; 8]; TOGETHER] = std::array::from_fn(|at| key(number + at as u64));
            let keys = keys.each_ref().map(<[u8; 8]>::as_slice);
            table.get_many(client, &keys, TIMEOUT).map(drop)
        }
        "put, place known" => table.put(client, &key(number), &VALUE, TIMEOUT),
        "put, delete" => {
            let new = (KEYS + number % KEYS).to_le_bytes();
            other.put(client, &new, &VALUE, TIMEOUT)?;
            other.delete(client, &new, TIMEOUT).map(drop)
        }
        _ => table.get(client, &(KEYS * 4 + number).to_le_bytes(), TIMEOUT).map(drop),
    }
}

fn print(figures: &[TableFigure], output: Output) {
    let heads = ["operation", "requests", "doorbells", "best", "median", "x local"];
    let mut rows = Table::new(heads).left(0);
    for one in figures {
        rows.row([
            one.operation.clone(),
            format!("{:.2}", one.work_requests),
            format!("{:.2}", one.doorbells),
            time(one.time.best_ns),
            time(one.time.median_ns),
            format!("{:.1}", one.ratio),
        ]);
    }
    output.line(rows.text());
}

/// The baseline: a map in this process, whose parts have locks; nanoseconds of a get and of a put.
fn local(windows: u32) -> Result<[f64; 2], Failure> {
    let shards: Vec<RwLock<HashMap<u64, Vec<u8>>>> =
        (0..SHARDS).map(|_| RwLock::default()).collect();
    let shard = |key: u64| &shards[(key.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60) as usize];
    let poisoned = || Failure::system("a thread of the benchmark panicked");
    for key in 0..KEYS {
        shard(key).write().map_err(|_| poisoned())?.insert(key, VALUE.to_vec());
    }
    let mut next = 0_u64;
    let mut key = || {
        next = next.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (next >> 33) % KEYS
    };
    let get = measure(windows, |count| {
        for _ in 0..count {
            let key = key();
            let map = shard(key).read().map_err(|_| poisoned())?;
            std::hint::black_box(map.get(&key).cloned());
        }
        Ok::<(), Failure>(())
    })?;
    let put = measure(windows, |count| {
        for _ in 0..count {
            let key = key();
            shard(key).write().map_err(|_| poisoned())?.insert(key, VALUE.to_vec());
        }
        Ok::<(), Failure>(())
    })?;
    Ok([get.median_ns, put.median_ns])
}
