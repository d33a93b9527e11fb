#![doc = include_str!("README.md")]

mod directory;
mod error;
pub(crate) mod hash;
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
pub(crate) mod tests;

pub use error::DhtError;
pub(crate) use hash::{hash, scramble};
pub use layout::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
pub use lookup::{LookupStats, Lookups};
pub use scan::ScanReport;

use farside::{Durability, GlobalAddress, LineSize, NodeId, Session};
use layout::TableShape;
use std::hash::{BuildHasher, Hasher};
use table::TableAccess;

/// Options for a table. Start from `DhtOptions::default()` and change fields.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DhtOptions {
    /// The nodes over which the buckets are spread, by the highest bits of the hash; empty for all buckets
    /// at the creator (or where memory is available if it is short there).
    pub nodes: Vec<NodeId>,
    /// Partitions of the hash, a power of two from 2 to 256; 0 for sixteen per node.
    pub partitions: u16,
    /// The line size of records that do not fit a smaller line. Records up to this size use one line and
    /// are changed in place; larger ones use several and are replaced.
    pub record_line: LineSize,
    /// Seed of the hash; 0 for a random one. A fixed seed makes runs comparable, and allows those who know
    /// it to choose keys that collide.
    pub seed: u64,
    /// `Logged`: the whole table is in memory of nodes with state, and stays whole when any of them, and any
    /// users, crash and return. What an operation has changed survives once the session was fenced after it.
    pub durability: Durability,
}

impl Default for DhtOptions {
    fn default() -> Self {
        Self {
            nodes: Vec::new(),
            partitions: 0,
            record_line: LineSize::DEFAULT,
            seed: 0,
            durability: Durability::Volatile,
        }
    }
}

impl DhtOptions {
    fn shape(&self) -> Result<TableShape, DhtError> {
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
        Ok(TableShape {
            table: random(),
            seed,
            partition_bits: partitions.ilog2(),
            record_line: self.record_line,
            logged: self.durability == Durability::Logged,
        })
    }
}

/// One user's access to a hash table in global memory: its root, a private cache of bucket addresses, and
/// spare blocks. One for each thread or task, next to its [`Session`]; cloning is the same as opening
/// again.
///
/// Dropping it leaves at most 64 spare blocks of each size allocated, and twice 64 that wait for its next fence;
/// [`Handle::close`] frees them.
#[derive(Debug)]
pub struct Dht {
    table: TableAccess,
}

impl Dht {
    /// Creates an empty table.
    ///
    /// *Errors:* `Options`; `Memory` with `OutOfMemory` (start nodes with more memory) or `NodeLost`
    /// (leave the dead node out of `nodes`), with an error of this session's earlier writes, or with `NoState` if
    /// a logged table finds no node with state. *Blocks* for one allocation and write per partition.
    /// *Source:* 004 §6.2.
    pub fn create(session: &mut Session, options: &DhtOptions) -> Result<Self, DhtError> {
        let shape = options.shape()?;
        let (root, first) = root::create_root(session, &shape, &options.nodes)?;
        Ok(Self { table: TableAccess::new(shape, root, first, random()) })
    }

    /// Opens the table with the given `root`.
    ///
    /// *Errors:* `NotATable`; `Memory` with `NodeLost` if the root's home died. *Cost:* two reads.
    pub fn open(session: &mut Session, root: GlobalAddress) -> Result<Self, DhtError> {
        let (shape, first) = root::read_root(session, root)?;
        Ok(Self { table: TableAccess::new(shape, root, first, random()) })
    }

    /// The address by which other users open the table.
    pub fn root(&self) -> GlobalAddress {
        self.table.root
    }

    /// The operations of the table, through `session`.
    pub fn with<'a>(&'a mut self, session: &'a mut Session) -> Handle<'a> {
        Handle { table: &mut self.table, session, lookups: None }
    }

    /// The same, with GETs by one remote memory call if `lookups` has an executor for the key's bucket.
    ///
    /// *Guarantees:* as without calls. If a call has no result, since the bucket is being changed or the
    /// executor is unreachable, the key is looked up without one, and that is counted ([`Lookups::stats`]).
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
/// *Guarantees:* each operation on a key takes effect atomically between its call and its return, for all
/// users on all nodes. *Errors* of all: `KeySize`, `ValueSize`; `Memory` with `NodeLost` or `LineLost` if
/// this key's bucket or record was lost with a node (other keys work; see [`Handle::forget_lost`]);
/// `Memory` with `OutOfMemory`; `Damaged` if another program wrote into the table. After an error a change
/// has not happened, unless its code is `NodeLost` or `LineLost`: then it may have. *Blocks* on cache
/// misses, never on another user.
///
/// *Durability* of a logged table: an operation survives once [`Session::fence`] has returned after it. A crash
/// leaves each of the others done or not done, and the table whole. `Memory` with `HomeAway`: a node of the
/// table did not return in time; the change has not happened. `Memory` with `WritesLost`: this change has not
/// happened, and those of this session since its last fence may be lost: repeat them.
#[derive(Debug)]
pub struct Handle<'a> {
    table: &'a mut TableAccess,
    session: &'a mut Session,
    lookups: Option<&'a mut Lookups>,
}

impl Handle<'_> {
    /// Copies the value of `key` into `out`; false, with `out` unchanged, if there is none.
    ///
    /// *Cost* by call: one round trip. Otherwise on cached lines: the hash, a read of the bucket, a read of
    /// the record and a copy of the value; no allocation once `out` has room.
    #[inline]
    pub fn get(&mut self, key: &[u8], out: &mut Vec<u8>) -> Result<bool, DhtError> {
        match &mut self.lookups {
            None => self.table.get(self.session, key, out),
            Some(lookups) => lookups.get(self.table, self.session, key, out),
        }
    }

    /// Sets the value of `key`; true if the key is new.
    ///
    /// *Cost:* in place, one atomic step, if the record has one line and the value fits; otherwise a new
    /// record and one atomic step on the bucket.
    pub fn put(&mut self, key: &[u8], value: &[u8]) -> Result<bool, DhtError> {
        self.table.put(self.session, key, value, true)
    }

    /// Sets the value of `key` if the key is new; returns whether it was.
    pub fn put_if_absent(&mut self, key: &[u8], value: &[u8]) -> Result<bool, DhtError> {
        self.table.put(self.session, key, value, false)
    }

    /// Changes the value of `key` in one atomic step; false if there is none.
    ///
    /// `change` may run several times, each time on the current value; only the last run counts. It must
    /// not block: it may run while the record's line is claimed.
    pub fn update(
        &mut self,
        key: &[u8],
        change: impl FnMut(&mut Vec<u8>),
    ) -> Result<bool, DhtError> {
        self.table.update(self.session, key, change)
    }

    /// Removes `key`; returns whether it was there.
    pub fn delete(&mut self, key: &[u8]) -> Result<bool, DhtError> {
        self.table.delete(self.session, key)
    }

    /// Visits every record, in no particular order, concurrently with other operations.
    ///
    /// *Guarantees:* a key that exists throughout is visited exactly once, with a value that it had at some
    /// time during the scan; others at most once for each time they were put. Losses with a dead node are
    /// counted in the report. *Cost:* reads the whole table.
    pub fn scan_all(&mut self, visit: impl FnMut(&[u8], &[u8])) -> Result<ScanReport, DhtError> {
        self.table.scan(self.session, visit)
    }

    /// Estimates the number of records from `samples` random buckets (1,000 give about 2 %).
    ///
    /// Lost buckets count as empty. *Cost:* one bucket read per sample.
    pub fn len_estimate(&mut self, samples: u32) -> Result<u64, DhtError> {
        self.table.len_estimate(self.session, samples)
    }

    /// Removes the entries whose records were lost with a node, so that their keys can be put again;
    /// returns their number. Until then lookups that meet them fail with `NodeLost` or `LineLost`, since
    /// the entries may be of the requested key.
    ///
    /// After an error some may be removed. Records at nodes with state are not lost while their node is away.
    ///
    /// *Cost:* reads the whole table.
    pub fn forget_lost(&mut self) -> Result<u64, DhtError> {
        self.table.forget_lost(self.session)
    }

    /// The session of the operations.
    pub fn session(&mut self) -> &mut Session {
        self.session
    }

    /// Frees the spare blocks; the table stays.
    ///
    /// *Errors:* those of a fence, which also covers earlier writes of this session; spare blocks then stay allocated.
    pub fn close(&mut self) -> Result<(), DhtError> {
        self.table.drain_pool(self.session)
    }

    /// Frees the table. No user may access it any more.
    ///
    /// *Errors:* `NotATable` if it was destroyed before; those of a fence, with nothing freed; else the first error,
    /// and what could not be freed stays allocated. *Cost:* reads the whole table.
    pub fn destroy(&mut self) -> Result<(), DhtError> {
        self.table.destroy(self.session)
    }
}

/// A random number, from the system's entropy by way of the standard library's hash keys.
fn random() -> u64 {
    std::hash::RandomState::new().build_hasher().finish() | 1
}
