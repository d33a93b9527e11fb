//! Build and probe, in the cache.

use super::options::{JoinKind, JoinOptions};
use super::rows::{Division, RowSet};
use crate::dht::hash;
use crate::shuffle::ShuffleError;
use farside::{Error, ErrorCode};
use std::hash::{BuildHasher, RandomState};

/// Bytes of rows from which a table is built; more are divided.
const BUILD_BYTES: usize = 1 << 20;
/// Further divisions of a part: rows of one key remain together.
const DEPTH_MAX: u32 = 2;

/// Takes a left row, and the right row of a pair.
type RowOutput<'a> = dyn FnMut(&[u8], Option<&[u8]>) + 'a;

/// A chained hash table of the numbers of rows, from 1 on, so that zero is none. Used again for each part.
#[derive(Debug, Default)]
struct ChainTable {
    heads: Vec<u32>,
    next: Vec<u32>,
}

impl ChainTable {
    /// Builds the table of these rows.
    fn build(&mut self, rows: &RowSet, join: &LocalJoin<'_>) -> Result<(), ShuffleError> {
        let count = rows.count();
        let Ok(last) = u32::try_from(count) else {
            let text = format!("{count} rows of one key, or of keys with one hash");
            return Err(Error::with(ErrorCode::TooLarge, text).into());
        };
        self.heads.clear();
        self.heads.resize(count.next_power_of_two(), 0);
        self.next.clear();
        self.next.resize(count, 0);
        // The last row first: chains are in the order of the rows.
        for number in (1..=last).rev() {
            let at = number as usize - 1;
            if let Some(key) = join.options.right.key.of(rows.row(at))? {
                let head = self.head(hash(key, join.seed));
                self.next[at] = std::mem::replace(&mut self.heads[head], number);
            }
        }
        Ok(())
    }

    #[inline]
    fn head(&self, hash: u64) -> usize {
        hash as usize & (self.heads.len() - 1)
    }

    /// Returns the row numbers whose keys may be the one of this hash.
    #[inline]
    fn chain(&self, hash: u64) -> impl Iterator<Item = usize> + '_ {
        let mut number = self.heads[self.head(hash)];
        std::iter::from_fn(move || {
            let at = (number as usize).checked_sub(1)?;
            number = self.next[at];
            Some(at)
        })
    }
}

#[inline]
fn is_equal(one: &[u8], other: &[u8]) -> bool {
    match (one.first_chunk::<8>(), other.first_chunk::<8>()) {
        (Some(a), Some(b)) if one.len() == 8 => a == b,
        _ => one == other,
    }
}

/// A join of rows in the memory of this process.
pub(super) struct LocalJoin<'a> {
    pub(super) options: &'a JoinOptions,
    pub(super) seed: u64,
    table: ChainTable,
}

impl<'a> LocalJoin<'a> {
    pub(super) fn new(options: &'a JoinOptions) -> Self {
        let seed = RandomState::new().hash_one("join");
        Self { options, seed, table: ChainTable::default() }
    }

    /// Joins the parts of two divisions, which are of the same bits. Drops each part when it is done.
    pub(super) fn join(
        &mut self,
        (left, right): (Division<'_>, Division<'_>),
        depth: u32,
        out: &mut RowOutput<'_>,
    ) -> Result<(), ShuffleError> {
        for (left, right) in left.parts.into_iter().zip(right.parts) {
            if left.count() == 0 {
                continue;
            }
            if depth == DEPTH_MAX || right.bytes() <= BUILD_BYTES {
                self.probe((&left, &right), out)?;
                continue;
            }
            let sides = (&self.options.left, &self.options.right);
            let left = Division::divide(sides.0, self.seed, depth, &left)?;
            let right = Division::divide(sides.1, self.seed, depth, &right)?;
            self.join((left, right), depth + 1, out)?;
        }
        Ok(())
    }

    fn probe(
        &mut self,
        (left, right): (&RowSet, &RowSet),
        out: &mut RowOutput<'_>,
    ) -> Result<(), ShuffleError> {
        let mut table = std::mem::take(&mut self.table);
        table.build(right, self)?;
        let JoinOptions { kind, left: left_side, right: right_side, .. } = self.options;
        for row in left.iter() {
            let Some(key) = left_side.key.of(row)? else { continue };
            let mut is_matched = false;
            for at in table.chain(hash(key, self.seed)) {
                let other = right.row(at);
                if !right_side.key.of(other)?.is_some_and(|its_key| is_equal(key, its_key)) {
                    continue;
                }
                is_matched = true;
                match kind {
                    JoinKind::Inner | JoinKind::LeftOuter => out(row, Some(other)),
                    JoinKind::Semi | JoinKind::Anti => break,
                }
            }
            if match kind {
                JoinKind::Inner => false,
                JoinKind::Semi => is_matched,
                JoinKind::LeftOuter | JoinKind::Anti => !is_matched,
            } {
                out(row, None);
            }
        }
        self.table = table;
        Ok(())
    }
}

/// Joins two inputs in the memory of this process, by one thread: what [`JoinExecutor::run`](super::JoinExecutor::run)
/// does after the shuffle. The order of the output is not specified.
///
/// ```
/// use farside_apps::join::{JoinKind, JoinOptions, local_join};
///
/// let options = JoinOptions { kind: JoinKind::Anti, ..JoinOptions::default() };
/// let (left, right) = ([[1; 16], [2; 16]], [[2; 16]]);
/// let mut output = Vec::new();
/// local_join(&options, left.iter(), right.iter(), |row, _| output.push(row.to_vec()))?;
/// assert_eq!(output, [vec![1; 16]]);
/// # Ok::<(), farside_apps::shuffle::ShuffleError>(())
/// ```
///
/// # Errors
/// `Options`; `RowSize`.
pub fn local_join(
    options: &JoinOptions,
    left: impl Iterator<Item = impl AsRef<[u8]>>,
    right: impl Iterator<Item = impl AsRef<[u8]>>,
    mut out: impl FnMut(&[u8], Option<&[u8]>),
) -> Result<(), ShuffleError> {
    options.check()?;
    let mut join = LocalJoin::new(options);
    let mut rights = Division::new(&options.right, join.seed);
    for row in right {
        options.right.rows.check(row.as_ref())?;
        rights.push(row.as_ref())?;
    }
    let mut lefts = Division::new(&options.left, join.seed);
    for row in left {
        let row = row.as_ref();
        options.left.rows.check(row)?;
        match options.left.key.of(row)? {
            None if options.kind.keeps_unmatched() => out(row, None),
            _ => lefts.push(row)?,
        }
    }
    join.join((lefts, rights), 0, &mut out)
}
