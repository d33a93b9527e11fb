//! A hash table in one-sided memory: any number of clients, any number of memories, whose processors do nothing for it
//! (paper 000, section IV-B).
//!
//! ```
//! use farside::fabrics;
//! use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
//! use farside_apps::hashtable::{RemoteTable, TableOptions};
//! # let (name, second) = (format!("table-{}", std::process::id()), std::time::Duration::from_secs(10));
//! let fabric = fabrics::shared_memory()?;
//! let server = MemoryServer::lend(&fabric, &name, 4 << 20, &LendOptions::default())?;
//! let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
//! let memory = client.open(server.address(), second)?;
//!
//! let places = [memory.at(0)]; // one for each memory
//! let mut table = RemoteTable::create(&mut client, &places, &TableOptions::default(), second)?;
//! table.put(&mut client, b"key", b"value", second)?;
//! assert_eq!(table.get(&mut client, b"key", second)?.as_deref(), Some(&b"value"[..]));
//! assert!(table.delete(&mut client, b"key", second)?);
//! table.close(&mut client, second)?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Formats and protocols: see `docs/internals/hashtable.md`.

mod cold;
mod error;
mod frequency;
mod hot;
mod partition;
mod places;
#[cfg(test)]
mod simulation_tests;
mod slot;
#[cfg(test)]
mod tests;

pub use error::TableError;
pub use hot::HotOptions;

use cold::{ColdTable, TOGETHER};
use farside::ErrorCode;
use farside::onesided::{Deadline, HeapOptions, MemoryClient, RemoteAddress};
use farside::runtime::random;
use hot::{HotArea, HotCall};
use partition::{Partition, Shape};
use slot::ENTRY_HEADER;
use std::time::Duration;

/// The size and the timing of a [`RemoteTable`].
#[derive(Clone, Debug, Default)]
pub struct TableOptions {
    /// Of the space for entries in each memory; `bytes` are what the memory has, from the given address on.
    pub heap: HeapOptions,
}

/// A hash table in the memory of memory servers ([module](self)). One for each thread.
///
/// *Guarantees*: operations on a key are linearizable, over any number of clients. A client that dies within one leaves it
/// done or not done; a split of a segment that it has begun is completed by the next that comes to it. *Durability*: none,
/// as of its memories. *Cost*: `get` takes one round trip where this client knows the entry's place, else two, and one
/// for a key that is not there; `put` one, else three, or four for a new key, and a free for each replaced entry, 16
/// together.
pub struct RemoteTable {
    cold: ColdTable,
    /// With [`hold_hot_puts`](Self::hold_hot_puts).
    hot: Option<HotArea>,
}

impl RemoteTable {
    /// Creates a table over memories that are zero from these addresses on, and opens it.
    ///
    /// # Errors
    /// `Exists`; `Memory` with `BadConfiguration` or `OutOfBounds` for options that do not fit.
    pub fn create(
        client: &mut MemoryClient,
        places: &[RemoteAddress],
        options: &TableOptions,
        timeout: Duration,
    ) -> Result<Self, TableError> {
        let deadline = Deadline::after(timeout);
        let (seed, count) = (random(), places.len() as u64);
        let mut partitions = Vec::new();
        for (number, at) in (0..).zip(places) {
            let bytes = at.memory().bytes().saturating_sub(at.offset() + 64);
            let heap = options.heap.bytes(bytes);
            let shape = Shape { seed, number, count };
            partitions.push(Partition::create(client, *at, shape, &heap, &deadline)?);
        }
        Ok(Self { cold: ColdTable::with(partitions, seed)?, hot: None })
    }

    /// Opens the table over these memories, in the order of its creation.
    ///
    /// # Errors
    /// `NotATable`; `Memory`.
    pub fn open(
        client: &mut MemoryClient,
        places: &[RemoteAddress],
        timeout: Duration,
    ) -> Result<Self, TableError> {
        let deadline = Deadline::after(timeout);
        let (mut partitions, mut seed) = (Vec::new(), None);
        for (number, at) in (0..).zip(places) {
            let (partition, shape) = Partition::open(client, *at, &deadline)?;
            let expected =
                Shape { seed: *seed.get_or_insert(shape.seed), number, count: places.len() as u64 };
            if shape != expected {
                return Err(TableError::NotATable);
            }
            partitions.push(partition);
        }
        let cold = ColdTable::with(partitions, seed.unwrap_or_default())?;
        Ok(Self { cold, hot: None })
    }

    /// Returns how many segments this client has split.
    pub fn splits(&self) -> u64 {
        self.cold.partitions.iter().map(|partition| partition.splits).sum()
    }

    /// Returns the value of a key.
    ///
    /// # Errors
    /// `Memory`; `Corrupt`.
    pub fn get(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        timeout: Duration,
    ) -> Result<Option<Vec<u8>>, TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.cold.lookup(key);
        if let Some(hot) = &mut self.hot
            && let Some(value) =
                hot.get(&mut HotCall::new(&mut self.cold, client, &deadline), lookup)?
        {
            return Ok(Some(value));
        }
        self.cold.get(client, lookup, &deadline)
    }

    /// Returns the values of keys, as many calls of [`get`](Self::get) would. The entries whose places are known are read
    /// together: two requests each, and a doorbell for each 32 requests.
    ///
    /// # Errors
    /// As `get`.
    pub fn get_many(
        &mut self,
        client: &mut MemoryClient,
        keys: &[&[u8]],
        timeout: Duration,
    ) -> Result<Vec<Option<Vec<u8>>>, TableError> {
        let deadline = Deadline::after(timeout);
        let mut values = vec![None; keys.len()];
        for (keys, values) in keys.chunks(TOGETHER).zip(values.chunks_mut(TOGETHER)) {
            if let Some(hot) = &mut self.hot {
                for (key, value) in keys.iter().zip(values.iter_mut()) {
                    let lookup = self.cold.lookup(key);
                    *value =
                        hot.get(&mut HotCall::new(&mut self.cold, client, &deadline), lookup)?;
                }
            }
            self.cold.get_together(client, keys, values, &deadline)?;
            for (key, value) in keys.iter().zip(values).filter(|(_, value)| value.is_none()) {
                *value = self.cold.get(client, self.cold.lookup(key), &deadline)?;
            }
        }
        Ok(values)
    }

    /// Puts a value for a key, new or not.
    ///
    /// # Errors
    /// `TooLarge`, `BucketFull`, `Memory` with `OutOfMemory`: nothing was put. `Memory` with `TimedOut`, `PeerLost` or
    /// `Indeterminate`: it was put or not.
    pub fn put(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        value: &[u8],
        timeout: Duration,
    ) -> Result<(), TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.cold.lookup(key);
        let partition = &self.cold.partitions[lookup.partition];
        let bytes = (ENTRY_HEADER + key.len() + value.len()) as u64;
        let bytes_max = partition.heap.options().chunk_bytes - 256;
        if bytes > bytes_max {
            let header = ENTRY_HEADER as u64;
            return Err(TableError::TooLarge(bytes - header, bytes_max - header));
        }
        if let Some(hot) = &mut self.hot
            && hot.put(&mut HotCall::new(&mut self.cold, client, &deadline), (lookup, value))?
        {
            return Ok(());
        }
        self.cold.free_replaced(client, &deadline)?;
        self.cold.put(client, lookup, value, None, &deadline).map(drop)
    }

    /// Removes a key; returns whether it was there.
    ///
    /// # Errors
    /// As [`put`](Self::put).
    pub fn delete(
        &mut self,
        client: &mut MemoryClient,
        key: &[u8],
        timeout: Duration,
    ) -> Result<bool, TableError> {
        let deadline = Deadline::after(timeout);
        let lookup = self.cold.lookup(key);
        if let Some(hot) = &mut self.hot {
            hot.leave(&mut HotCall::new(&mut self.cold, client, &deadline), lookup)?;
        }
        self.cold.delete(client, lookup, &deadline)
    }

    /// Holds puts of keys that this client puts often, and writes them together (paper 000, section IV-B: the hot area).
    ///
    /// Such a key moves into a block of this client. Its `put` returns at once, without a request; each `theta` puts of
    /// the block are one WRITE and one compare-and-swap.
    ///
    /// ```
    /// # use farside::fabrics;
    /// # use farside::onesided::{LendOptions, MemoryClient, MemoryClientOptions, MemoryServer};
    /// use farside_apps::hashtable::{HotOptions, RemoteTable, TableOptions};
    /// # let (name, second) = (format!("hot-table-{}", std::process::id()), std::time::Duration::from_secs(10));
    /// # let fabric = fabrics::shared_memory()?;
    /// # let server = MemoryServer::lend(&fabric, &name, 4 << 20, &LendOptions::default())?;
    /// # let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
    /// # let places = [client.open(server.address(), second)?.at(0)];
    /// let mut table = RemoteTable::create(&mut client, &places, &TableOptions::default(), second)?;
    /// table.hold_hot_puts(&HotOptions::default())?;
    /// for count in 0..100_u64 {
    ///     table.put(&mut client, b"count", &count.to_le_bytes(), second)?;
    /// }
    /// table.flush(&mut client, second)?; // seen by all clients from here on
    /// assert_eq!(table.pending(), 0);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// *Guarantees*: a held put takes effect, at once and as a whole, at some time until its flush ends; this client sees it
    /// before (a store buffer for each key: puts of a key keep their order, those of different keys may not). All else is
    /// linearizable. A flush ends after `theta` puts of the block, `timeout`, or [`flush`](Self::flush). *Durability*: a
    /// client that ends without [`close`](Self::close) loses what it holds: at most `theta` puts of a block, and those of
    /// the flush in flight; no client waits for it.
    ///
    /// *Cost*: of a put of a hot key no round trip until the flush; of a get, none while a put of it is held, else one.
    /// Another client that puts or deletes a key of a block takes four round trips, and ends that block: so this is for keys
    /// that mostly one client puts.
    ///
    /// # Errors
    /// `Memory` with `BadConfiguration` for options out of their limits, or if it was called before.
    pub fn hold_hot_puts(&mut self, options: &HotOptions) -> Result<(), TableError> {
        if self.hot.is_some() {
            return Err(TableError::Memory(ErrorCode::BadConfiguration.into()));
        }
        let chunks = self.cold.partitions.iter().map(|one| one.heap.options().chunk_bytes);
        self.hot = Some(HotArea::new(options, chunks.min().unwrap_or_default())?);
        Ok(())
    }

    /// Returns how many keys have puts that are held, or in a flush in flight.
    pub fn pending(&self) -> usize {
        self.hot.as_ref().map_or(0, HotArea::pending)
    }

    /// Returns how many keys are in blocks of this client.
    pub fn hot_keys(&self) -> usize {
        self.hot.as_ref().map_or(0, HotArea::keys)
    }

    /// Flushes all held puts, and waits until all clients see them. *Blocks* for a round trip if there are any; for each
    /// block that was revoked, for about five for each of its keys.
    ///
    /// # Errors
    /// `Memory`: the puts are still held, and the next call tries again.
    pub fn flush(
        &mut self,
        client: &mut MemoryClient,
        timeout: Duration,
    ) -> Result<(), TableError> {
        let deadline = Deadline::after(timeout);
        match &mut self.hot {
            Some(hot) => hot.flush(&mut HotCall::new(&mut self.cold, client, &deadline)),
            None => Ok(()),
        }
    }

    /// Leaves the table: flushes what is held, frees what was replaced, and leaves the heaps.
    ///
    /// # Errors
    /// `Memory`; the table is whole nevertheless.
    pub fn close(mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), TableError> {
        let deadline = Deadline::after(timeout);
        if let Some(hot) = &mut self.hot {
            hot.retire_all(&mut HotCall::new(&mut self.cold, client, &deadline))?;
        }
        self.cold.free_all(client, &deadline)?;
        for partition in self.cold.partitions {
            partition.heap.close(client, deadline.left())?;
        }
        Ok(())
    }
}

impl std::fmt::Debug for RemoteTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteTable({} memories)", self.cold.partitions.len())
    }
}
