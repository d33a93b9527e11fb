//! Counts into the shared table, and reads the counts.
//!
//! A word's entry in the table holds the address of its counter, eight bytes of global memory that all
//! workers add to. A worker keeps local sums, so that a frequent word costs one addition per flush of the
//! sums and not per occurrence.

use super::input::Input;
use super::words::{begins_without_word, words_of};
use crate::dht::{DhtError, Handle, KEY_BYTES_MAX, ScanReport, scramble};
use farside::{Error, GlobalAddress};
use std::collections::HashMap;
use std::{fmt, io};

/// Words after which the sums are added to the counters.
const SUM_WORDS: u64 = 1 << 20;
/// Distinct words with local sums at a worker.
const DISTINCT_WORDS_MAX: usize = 1 << 17;
/// Counters allocated at a time.
const COUNTERS: u64 = 64;

/// The key of the empty word. Keys of other words are letters only, or begin with `LONG`.
const EMPTY: u8 = 0xfe;
/// First byte of the key of a word that is too long for a key: its digest follows, and the word is in the
/// value.
const LONG: u8 = 0xff;

/// The errors of a count.
#[derive(Debug)]
#[non_exhaustive]
pub enum WordCountError {
    /// A file cannot be read; names it.
    Input(io::Error),
    /// The table refused.
    Table(DhtError),
    /// A counter could not be allocated or accessed.
    Memory(Error),
    /// The table holds other data than word counts: use a table for them alone.
    OtherTable,
    /// Counts were lost with a node: the rest would be too low.
    Lost(ScanReport),
}

impl fmt::Display for WordCountError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Input(error) => write!(f, "{error}"),
            Self::Table(error) => write!(f, "{error}"),
            Self::Memory(error) => write!(f, "{error}"),
            Self::OtherTable => {
                write!(f, "The table holds something else than word counts. Use a new one.")
            }
            Self::Lost(report) => write!(
                f,
                "A node died with {} buckets and {} records of the count. Count again.",
                report.lost_buckets, report.lost_records
            ),
        }
    }
}

impl std::error::Error for WordCountError {}

impl From<io::Error> for WordCountError {
    fn from(error: io::Error) -> Self {
        Self::Input(error)
    }
}

impl From<DhtError> for WordCountError {
    fn from(error: DhtError) -> Self {
        Self::Table(error)
    }
}

impl From<Error> for WordCountError {
    fn from(error: Error) -> Self {
        Self::Memory(error)
    }
}

/// Counts the words of worker `worker`'s share (of `workers`) of the input into the table; returns their
/// number. `progress` gets the bytes of the share completed since its last call.
///
/// Every worker of 0 to under `workers` must count its share, each once, into one table that holds
/// nothing else. *Blocks* on files and lines. *Source:* the word count of the shared-memory systems
/// that 004 §7.3 compares with.
///
/// # Errors
/// All of [`WordCountError`] except `Lost`; the table's counts are then invalid. `Input` also for a stream,
/// which has no shares: read it, and count its text.
pub fn count(
    table: &mut Handle<'_>,
    input: &Input,
    worker: u32,
    workers: u32,
    progress: impl FnMut(u64),
) -> Result<u64, WordCountError> {
    input.share(worker, workers)?;
    let mut sums = Sums::default();
    if worker == 0 && begins_without_word(input)? {
        sums.add(table, b"")?;
    }
    let mut words = 0;
    let each = |word: &[u8]| {
        words += 1;
        sums.add(table, word)
    };
    words_of(input, worker, workers, each, progress)?;
    sums.flush(table)?;
    Ok(words)
}

/// Returns all words with their counts, in byte order. Every worker must have finished.
///
/// *Cost:* reads the whole table and every counter.
///
/// # Errors
/// `Lost` if some of the counts were lost with a node; `Table`, `Memory`.
pub fn counts(table: &mut Handle<'_>) -> Result<Vec<(Vec<u8>, u64)>, WordCountError> {
    let mut entries = Vec::new();
    let mut other = false;
    let report = table.scan_all(|key, value| match parse(key, value) {
        Some(entry) => entries.push(entry),
        None => other = true,
    })?;
    if report.lost_buckets + report.lost_records > 0 {
        return Err(WordCountError::Lost(report));
    }
    if other {
        return Err(WordCountError::OtherTable);
    }
    let mut counts = Vec::with_capacity(entries.len());
    for (word, counter) in entries {
        counts.push((word, table.session().read_u64(counter)?));
    }
    counts.sort_unstable();
    Ok(counts)
}

/// Writes counts as `uniq -c` does.
///
/// # Errors
/// The writer's.
pub fn write_counts(counts: &[(Vec<u8>, u64)], mut out: impl io::Write) -> io::Result<()> {
    for (word, count) in counts {
        write!(out, "{count:7} ")?;
        out.write_all(word)?;
        out.write_all(b"\n")?;
    }
    out.flush()
}

/// The sums of one worker since it last added them to the counters.
#[derive(Default)]
struct Sums {
    words: HashMap<Vec<u8>, Sum>,
    added: u64,
    spare_counters: Vec<GlobalAddress>,
}

#[derive(Default)]
struct Sum {
    count: u64,
    counter: Option<GlobalAddress>,
}

impl Sums {
    fn add(&mut self, table: &mut Handle<'_>, word: &[u8]) -> Result<(), WordCountError> {
        match self.words.get_mut(word) {
            Some(sum) => sum.count += 1,
            None => {
                self.words.insert(word.to_vec(), Sum { count: 1, counter: None });
            }
        }
        self.added += 1;
        if self.added >= SUM_WORDS || self.words.len() >= DISTINCT_WORDS_MAX {
            self.flush(table)?;
        }
        Ok(())
    }

    fn flush(&mut self, table: &mut Handle<'_>) -> Result<(), WordCountError> {
        for (word, sum) in &mut self.words {
            if sum.count == 0 {
                continue;
            }
            let counter = match sum.counter {
                Some(counter) => counter,
                None => counter_of(table, word, &mut self.spare_counters)?,
            };
            table.session().fetch_add(counter, sum.count)?;
            *sum = Sum { count: 0, counter: Some(counter) };
        }
        self.added = 0;
        if self.words.len() >= DISTINCT_WORDS_MAX {
            self.words.clear();
        }
        Ok(())
    }
}

/// The counter of a word, which the first worker with the word adds to the table.
fn counter_of(
    table: &mut Handle<'_>,
    word: &[u8],
    spare: &mut Vec<GlobalAddress>,
) -> Result<GlobalAddress, WordCountError> {
    let mut value = Vec::new();
    let mut probe = 0;
    loop {
        let key = key_of(word, probe);
        if table.get(&key, &mut value)? {
            match parse(&key, &value) {
                Some((other, counter)) if other == word => return Ok(counter),
                // Another long word of the same digest.
                _ => probe += 1,
            }
            continue;
        }
        let counter = match spare.pop() {
            Some(counter) => counter,
            None => {
                allocate(table, spare)?;
                continue;
            }
        };
        value.clear();
        value.extend_from_slice(&counter.to_bits().to_le_bytes());
        if key[0] == LONG {
            value.extend_from_slice(word);
        }
        if table.put_if_absent(&key, &value)? {
            return Ok(counter);
        }
        spare.push(counter);
    }
}

/// Allocates some counters, all zero.
fn allocate(table: &mut Handle<'_>, spare: &mut Vec<GlobalAddress>) -> Result<(), WordCountError> {
    let session = table.session();
    let block = session.alloc(8 * COUNTERS)?;
    session.write(block, &[0; 8 * COUNTERS as usize])?;
    session.fence()?;
    spare.extend((0..COUNTERS).filter_map(|number| block.checked_add(8 * number)));
    Ok(())
}

fn key_of(word: &[u8], probe: u32) -> Vec<u8> {
    match word.len() {
        0 => vec![EMPTY],
        1..=KEY_BYTES_MAX => word.to_vec(),
        _ => {
            let mut key = vec![LONG];
            for seed in [1, 2_u64] {
                let digest =
                    word.iter().fold(seed, |state, byte| scramble(state ^ u64::from(*byte)));
                key.extend_from_slice(&digest.to_le_bytes());
            }
            key.extend_from_slice(&probe.to_le_bytes());
            key
        }
    }
}

/// Word and counter of an entry; `None` if it is invalid.
fn parse(key: &[u8], value: &[u8]) -> Option<(Vec<u8>, GlobalAddress)> {
    let (bits, rest) = value.split_first_chunk::<8>()?;
    let counter = GlobalAddress::from_bits(u64::from_le_bytes(*bits)).ok()?;
    let word = match *key.first()? {
        EMPTY => Vec::new(),
        LONG => rest.to_vec(),
        _ => key.to_vec(),
    };
    Some((word, counter))
}
