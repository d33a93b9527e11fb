#![doc = include_str!("README.md")]

mod directory;
mod error;
mod hash;
mod layout;
mod lookup;
mod pool;
mod record;
mod root;
mod scan;
mod space;
mod split;
mod table;
#[cfg(test)]
mod tests;

pub use error::DhtError;
pub(crate) use hash::scramble;
pub use layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use lookup::{LookupStats, Lookups};
pub use scan::ScanReport;

use farside::{GlobalAddress, LineSize, NodeId, Session};
use layout::Shape;
use std::hash::{BuildHasher, Hasher};
use table::Table;

/// How a table shall be. Start from `DhtOptions::default()` and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DhtOptions {
    /// The nodes over which the buckets are spread, by the highest bits of the hash; empty for all
    /// buckets at the creator (or where memory is when it is short there).
    pub nodes: Vec<NodeId>,
    /// Partitions of the hash, a power of two from 2 to 256; 0 for sixteen a node.
    pub partitions: u16,
    /// The line size of records that do not fit a smaller line. Records up to this size lie in one
    /// line and are changed in place; larger ones lie in several and are replaced.
    pub record_line: LineSize,
    /// Seed of the hash; 0 for a random one. A fixed seed makes runs comparable, and lets whoever
    /// knows it choose keys that collide.
    pub seed: u64,
}

impl Default for DhtOptions {
    fn default() -> Self {
        Self { nodes: Vec::new(), partitions: 0, record_line: LineSize::DEFAULT, seed: 0 }
    }
}

impl DhtOptions {
    fn shape(&self) -> Result<Shape, DhtError> {
        let partitions = match usize::from(self.partitions) {
            0 => (self.nodes.len().max(1) * 16).next_power_of_two().min(256),
            given => given,
        };
        if !(2..=256).contains(&partitions) || !partitions.is_power_of_two() {
            return Err(DhtError::Options("partitions: a power of two from 2 to 256"));
        }
        if self.nodes.len() > partitions {
            return Err(DhtError::Options("nodes: at most one for each partition"));
        }
        let seed = if self.seed == 0 { random() } else { self.seed };
        Ok(Shape {
            table: random(),
            seed,
            partition_bits: partitions.ilog2(),
            record_line: self.record_line,
        })
    }
}

/// One user's access to a hash table in global memory: its root, a private memory of where buckets
/// are, and spare blocks. One for each thread or task, next to its [`Session`]; cloning is opening anew.
///
/// Dropping it leaves at most 64 spare blocks of each size allocated; [`Handle::close`] frees them.
#[derive(Debug)]
pub struct Dht {
    table: Table,
}

impl Dht {
    /// Makes an empty table.
    ///
    /// *Errors:* `Options`; `Memory` with `OutOfMemory` (start nodes with more memory) or `NodeLost`
    /// (leave the dead node out of `nodes`). *Blocks* for one allocation and write per partition.
    /// *Source:* 004 §6.2.
    pub fn create(session: &mut Session, options: &DhtOptions) -> Result<Self, DhtError> {
        let shape = options.shape()?;
        let (root, first) = root::create_root(session, &shape, &options.nodes)?;
        Ok(Self { table: Table::new(shape, root, first, random()) })
    }

    /// Opens the table whose creator tells `root`.
    ///
    /// *Errors:* `NotATable`; `Memory` with `NodeLost` when the root's home died. *Cost:* two reads.
    pub fn open(session: &mut Session, root: GlobalAddress) -> Result<Self, DhtError> {
        let (shape, first) = root::read_root(session, root)?;
        Ok(Self { table: Table::new(shape, root, first, random()) })
    }

    /// The address by which others open the table.
    pub fn root(&self) -> GlobalAddress {
        self.table.root
    }

    /// The operations, through `session`.
    pub fn with<'a>(&'a mut self, session: &'a mut Session) -> Handle<'a> {
        Handle { table: &mut self.table, session, lookups: None }
    }

    /// The same, with GETs that go by one remote memory call where `lookups` has an executor for the
    /// key's bucket.
    ///
    /// *Guarantees:* as without calls. What a call cannot tell, since the bucket is in motion or the
    /// executor is out of reach, is looked up without one and counted ([`Lookups::stats`]).
    pub fn with_calls<'a>(
        &'a mut self,
        session: &'a mut Session,
        lookups: &'a mut Lookups,
    ) -> Handle<'a> {
        Handle { table: &mut self.table, session, lookups: Some(lookups) }
    }
}

/// The operations of a table.
///
/// *Guarantees:* each operation on a key is one step at some moment between its call and its return,
/// for all users on all nodes. *Errors* of all: `KeySize`, `ValueSize`; `Memory` with `NodeLost` or
/// `LineLost` when this key's bucket or record died with a node (others go on; see
/// [`Handle::forget_lost`]); `Memory` with `OutOfMemory`; `Damaged` when another program wrote into
/// the table. After an error a change has not happened, unless its code is `NodeLost` or `LineLost`:
/// then it may have. *Blocks* for the misses it meets, never for another user.
#[derive(Debug)]
pub struct Handle<'a> {
    table: &'a mut Table,
    session: &'a mut Session,
    lookups: Option<&'a mut Lookups>,
}

impl Handle<'_> {
    /// Puts the value of `key` into `out`; false, with `out` as it was, when there is none.
    ///
    /// *Cost* by call: one round trip. Else on cached lines: the hash, a read of the bucket, a read of the record and a copy of the
    /// value; no allocation once `out` has room.
    #[inline]
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DhtError> {
        match &mut self.lookups {
            None => self.table.get(self.session, key, out),
            Some(lookups) => lookups.get(self.table, self.session, key, out),
        }
    }

    /// Makes `value` the value of `key`; true when the key is new.
    ///
    /// *Cost:* in place, one atomic step, when the record lies in one line and the value fits; else a
    /// new record and one atomic step on the bucket.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, DhtError> {
        self.table.put(self.session, key, value, true)
    }

    /// Makes `value` the value of `key` when the key is new; true when it was.
    pub fn put_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, DhtError> {
        self.table.put(self.session, key, value, false)
    }

    /// Changes the value of `key` in one atomic step; false when there is none.
    ///
    /// `change` may run several times, each time on the value as it then is; only the last run
    /// counts. It must not wait: it may run while the record's line is held.
    pub fn update(
        &mut self,
        key: &[u8],
        change: impl FnMut(&mut Vec<u8>),
    ) -> Result<bool, DhtError> {
        self.table.update(self.session, key, change)
    }

    /// Takes `key` out; true when it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, DhtError> {
        self.table.delete(self.session, key)
    }

    /// Visits every record, in no particular order, while others go on.
    ///
    /// *Guarantees:* a key that is there all the time is visited exactly once, with a value that it
    /// had at some time during the scan; others at most once for each time they were put. What died
    /// with a node is counted in the report. *Cost:* reads the whole table.
    pub fn scan_all(&mut self, visit: impl FnMut(&[u8], &[u8])) -> Result<ScanReport, DhtError> {
        self.table.scan(self.session, visit)
    }

    /// About how many records there are, out of `samples` random buckets (1,000 give about 2 %).
    ///
    /// Lost buckets count as empty. *Cost:* one bucket read a sample.
    pub fn len_estimate(&mut self, samples: u32) -> Result<u64, DhtError> {
        self.table.len_estimate(self.session, samples)
    }

    /// Takes out the entries whose records died with a node, so that their keys can be put anew; how
    /// many. Until then their keys answer `NodeLost` or `LineLost`, since it cannot be known whether
    /// they were the keys asked for.
    ///
    /// *Cost:* reads the whole table.
    pub fn forget_lost(&mut self) -> Result<u64, DhtError> {
        self.table.forget_lost(self.session)
    }

    /// The session that the operations go through.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Gives the spare blocks back to the memory; the table stays.
    pub fn close(&mut self) {
        self.table.drain_pool(self.session);
    }

    /// Frees the table. Nobody else may use it any more, nor this user after it.
    ///
    /// *Errors:* as all; what could be freed is free then. *Cost:* reads the whole table.
    pub fn destroy(&mut self) -> Result<(), DhtError> {
        self.table.destroy(self.session)
    }
}

/// A random number, from the system's entropy by way of the standard library's hash keys.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() | 1
}
