//! Space in lent memory, handed out to any number of clients (slabs: chunks of objects of one size).
//!
//! ```text
//! header   magic | bytes | bytes of a chunk | clients | lease | grace, 8 bytes each
//! clients  a lock each, whose lease says that the client lives
//! chunks   a word each: client + 1, 16 bits | token of its lock, 34 | size, 6; zero: free
//! chunk    bits of objects handed out, by its client | bits of objects freed, by any client | objects
//! ```
//! A client takes chunks by compare-and-swap and hands out their objects. A client that frees an object adds its bit; the
//! client of the chunk looks at these bits, and looks again a grace later: only then an object is handed out once more. A
//! chunk of a client whose lock is abandoned is taken over with its bits.

use super::Deadline;
use super::client::{MemoryClient, RemoteAddress};
use super::guard::RemoteGuard;
use super::header::MemoryHeader;
use super::lock::RemoteLock;
use crate::buffer::Buffer;
use crate::runtime::{Instant, pause};
use crate::setters::setters;
use crate::{Error, ErrorCode};
use std::time::Duration;

const MAGIC: u64 = u64::from_le_bytes(*b"FSHEAP\0\x01");
const HEADER: u64 = 64;
/// Bytes of a client's place.
const CLIENT: u64 = 64;
/// Words of each of the two bit maps of a chunk.
const WORDS: usize = 16;
const OBJECTS_MAX: u64 = 64 * WORDS as u64;
/// Sizes of objects.
const CLASSES: usize = OBJECTS_MAX.trailing_zeros() as usize + 1;
/// Bytes before the objects of a chunk.
const CHUNK_HEADER: u64 = 16 * WORDS as u64;
const CHUNK_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=16 << 20;
const CLIENTS_MAX: u32 = 4096;
/// Words of chunks that are read at a time.
const LOOK: u64 = 512;
/// The client of a chunk that was left by its client.
const ORPHAN: u64 = 0xfffe;
const CLIENT_SHIFT: u32 = 48;
const TOKEN_SHIFT: u32 = 14;
const TOKEN_MASK: u64 = (1 << 34) - 1;
const CLASS_MASK: u64 = 63;
/// Between attempts to find space.
const NAP: Duration = Duration::from_micros(200);

/// The size and the timing of a [`RemoteHeap`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct HeapOptions {
    /// Bytes of remote memory, with what the heap itself needs.
    pub bytes: u64,
    /// Bytes of a chunk: a power of two, 64 KiB to 16 MiB. Objects have up to 256 B less, and at least a 1,024th.
    pub chunk_bytes: u64,
    /// Most clients at a time, at most 4,096.
    pub clients: u32,
    /// After this time without a call of its client others may take its chunks over.
    pub lease: Duration,
    /// The shortest time from a free to the next use: within it READs of the object must have ended.
    pub grace: Duration,
}

setters!(HeapOptions {
    bytes: u64,
    chunk_bytes: u64,
    clients: u32,
    lease: Duration,
    grace: Duration
});

impl Default for HeapOptions {
    /// 64 MiB in chunks of 64 KiB, 64 clients, a lease of 2 s, a grace of 1 s.
    fn default() -> Self {
        Self {
            bytes: 64 << 20,
            chunk_bytes: 64 << 10,
            clients: 64,
            lease: Duration::from_secs(2),
            grace: Duration::from_secs(1),
        }
    }
}

impl HeapOptions {
    fn check(&self) -> Result<(), Error> {
        let wrong = |text: &str| Err(Error::with(ErrorCode::BadConfiguration, text));
        if !self.chunk_bytes.is_power_of_two() || !CHUNK_BYTES.contains(&self.chunk_bytes) {
            return wrong("a chunk of a heap has 64 KiB to 16 MiB, a power of two");
        }
        if !(1..=CLIENTS_MAX).contains(&self.clients) {
            return wrong("a heap has 1 to 4,096 clients");
        }
        if self.chunks() == 0 {
            return wrong("the heap has no room for a chunk");
        }
        Ok(())
    }

    const fn table_at(&self) -> u64 {
        HEADER + CLIENT * self.clients as u64
    }

    const fn chunks(&self) -> u64 {
        self.bytes.saturating_sub(self.table_at() + 64) / (self.chunk_bytes + 8)
    }

    const fn chunks_at(&self) -> u64 {
        (self.table_at() + 8 * self.chunks()).next_multiple_of(64)
    }

    /// The smallest size.
    const fn size_min(&self) -> u64 {
        self.chunk_bytes / OBJECTS_MAX
    }

    /// Bytes of an object of a class: doubled from class to class, the last one fills a chunk.
    const fn size(&self, class: u64) -> u64 {
        let size = self.size_min() << class;
        let all = self.chunk_bytes - CHUNK_HEADER;
        if size > all { all } else { size }
    }

    const fn objects(&self, class: u64) -> u64 {
        (self.chunk_bytes - CHUNK_HEADER) / self.size(class)
    }

    fn class(&self, bytes: u64) -> Result<u64, Error> {
        if bytes == 0 {
            return Err(ErrorCode::ZeroSize.into());
        }
        let bytes_max = self.chunk_bytes - CHUNK_HEADER;
        if bytes > bytes_max {
            let text = format!("an object of {bytes} B; at most {bytes_max} B");
            return Err(Error::with(ErrorCode::TooLarge, text));
        }
        let steps = bytes.div_ceil(self.size_min()).next_power_of_two();
        Ok(u64::from(steps.trailing_zeros()))
    }
}

/// A chunk of this client.
struct Chunk {
    number: u64,
    class: u64,
    /// Bits of objects that are handed out.
    taken: [u64; WORDS],
    /// No object of it can be prepared.
    is_full: bool,
    /// Bits that were freed, and when this client has seen them.
    freed: Option<([u64; WORDS], Instant)>,
}

/// Space in lent memory that many clients share, each by a heap of its own.
///
/// ```
/// use farside::fabrics;
/// use farside::onesided::{HeapOptions, LendOptions, MemoryClient, MemoryClientOptions, MemoryServer, RemoteHeap};
/// # let (name, second) = (format!("heap-{}", std::process::id()), std::time::Duration::from_secs(10));
/// let fabric = fabrics::shared_memory()?;
/// let options = HeapOptions::default().bytes(1 << 20);
/// let server = MemoryServer::lend(&fabric, &name, options.bytes, &LendOptions::default())?;
/// let mut client = MemoryClient::new(&fabric, &MemoryClientOptions::default())?;
/// let memory = client.open(server.address(), second)?;
///
/// let mut heap = RemoteHeap::create(&mut client, memory.at(0), &options, second)?;
/// let object = heap.alloc(&mut client, 100, second)?; // 128 B, not zeroed
/// client.write_bytes(object, b"far away", second)?;
/// heap.free(&mut client, object, 100, second)?; // by any client
/// heap.close(&mut client, second)?;
/// # Ok::<(), farside::Error>(())
/// ```
///
/// *Guarantees*: an object belongs to the client that allocated it until some client frees it, also if the one that
/// allocated it ends. It is not handed out again before [`HeapOptions::grace`]. *Deaths*: of a client that ends without
/// [`close`](Self::close) others take over the chunks, with all objects; at most 64 objects of each size that it had
/// prepared and not handed out are lost, and those whose address was lost with it. *Clocks*: as [`RemoteLock`].
///
/// *Cost*: an allocation takes no round trip, one for each 64 objects of a size, and about five for a new chunk; a free takes
/// one. Sizes are powers of two.
pub struct RemoteHeap {
    at: RemoteAddress,
    options: HeapOptions,
    number: u32,
    guard: RemoteGuard,
    chunks: Vec<Chunk>,
    /// Objects that are marked as handed out, by class.
    ready: Vec<Vec<RemoteAddress>>,
    /// For headers of chunks, and for words of the table.
    buffer: Buffer,
    /// Where to look for a free chunk.
    next: u64,
    /// When freed objects of a class were looked for last.
    looked: [Option<Instant>; CLASSES],
}

impl RemoteHeap {
    /// Creates a heap in memory from an aligned address on (64 B), which is zero, and opens it.
    ///
    /// # Errors
    /// `BadConfiguration`; `AddressTaken` if the memory is not zero there; as [`open`](Self::open).
    pub fn create(
        client: &mut MemoryClient,
        at: RemoteAddress,
        options: &HeapOptions,
        timeout: Duration,
    ) -> Result<Self, Error> {
        options.check()?;
        fits(at, options)?;
        let deadline = Deadline::after(timeout);
        let header = MemoryHeader::new(at, MAGIC);
        if !header.claim(client, &deadline)? {
            return Err(Error::with(ErrorCode::AddressTaken, "the memory of the heap is not zero"));
        }
        let times = [options.lease, options.grace].map(|time| time.as_nanos() as u64);
        let words =
            [options.bytes, options.chunk_bytes, options.clients.into(), times[0], times[1]];
        header.publish(client, &words, &deadline)?;
        Self::open(client, at, deadline.left())
    }

    /// Opens the heap at an address, as one more client.
    ///
    /// *Blocks* for a few round trips, or a lease if all places of clients look taken.
    ///
    /// # Errors
    /// `BadForm` if no heap is there; `TooManyRequests` if all clients live; as [`MemoryClient::wait`].
    pub fn open(
        client: &mut MemoryClient,
        at: RemoteAddress,
        timeout: Duration,
    ) -> Result<Self, Error> {
        let deadline = Deadline::after(timeout);
        let none = || Error::with(ErrorCode::BadForm, "no heap is at this address");
        let words = MemoryHeader::new(at, MAGIC).read(client, &deadline)?;
        let [bytes, chunk_bytes, clients, lease_ns, grace_ns] = words.ok_or_else(none)?;
        let clients = u32::try_from(clients).map_err(|_| none())?;
        let [lease, grace] = [lease_ns, grace_ns].map(Duration::from_nanos);
        let options = HeapOptions { bytes, chunk_bytes, clients, lease, grace };
        if options.check().is_err() || fits(at, &options).is_err() {
            return Err(none());
        }
        let (number, guard) = enter(client, at, &options, &deadline)?;
        let mut heap = Self {
            at,
            options,
            number,
            chunks: Vec::new(),
            ready: vec![Vec::new(); CLASSES],
            buffer: client.register(8 * LOOK)?,
            next: u64::from(number) * 7 % options.chunks(),
            looked: [None; CLASSES],
            guard,
        };
        // Of an earlier client of this number that has not closed its heap.
        heap.adopt(client, u64::from(number), &deadline)?;
        Ok(heap)
    }

    /// Returns its address.
    pub const fn address(&self) -> RemoteAddress {
        self.at
    }

    /// Returns the options with which it was created.
    pub const fn options(&self) -> &HeapOptions {
        &self.options
    }

    /// Returns how many chunks this client has.
    pub fn chunks(&self) -> usize {
        self.chunks.len()
    }

    /// Hands out an object of at least `bytes` bytes, at a multiple of 64. Its content is what was there.
    ///
    /// *Blocks* as described above; if the heap is full, until the deadline for objects that were freed.
    ///
    /// # Errors
    /// `ZeroSize`; `TooLarge`; `OutOfMemory`; as [`MemoryClient::wait`].
    pub fn alloc(
        &mut self,
        client: &mut MemoryClient,
        bytes: u64,
        timeout: Duration,
    ) -> Result<RemoteAddress, Error> {
        let class = self.options.class(bytes)?;
        let deadline = Deadline::after(timeout);
        loop {
            self.keep(client, &deadline)?;
            if let Some(object) = self.ready[class as usize].pop() {
                return Ok(object);
            }
            if self.prepare(client, class, &deadline)?
                || self.reclaim(client, Some(class), &deadline)?
                || self.take_chunk(client, class, &deadline)?
                || self.give_back(client, &deadline)?
                || self.adopt_orphans(client, &deadline)?
            {
                continue;
            }
            if deadline.is_over() || self.chunks.iter().all(|chunk| chunk.freed.is_none()) {
                let text = format!("no object of {} B is free", self.options.size(class));
                return Err(Error::with(ErrorCode::OutOfMemory, text));
            }
            pause(NAP);
        }
    }

    /// Frees an object of `bytes` bytes that any client has allocated. *Blocks* for a round trip.
    ///
    /// # Errors
    /// `OutOfBounds` or `Misaligned` for an address at which no such object can be; `Unallocated` if it is free already.
    /// `Indeterminate`: it may be lost until the heap is created again.
    pub fn free(
        &mut self,
        client: &mut MemoryClient,
        object: RemoteAddress,
        bytes: u64,
        timeout: Duration,
    ) -> Result<(), Error> {
        let class = self.options.class(bytes)?;
        let deadline = Deadline::after(timeout);
        let (chunk, place) = self.place(object, class)?;
        let word = self.chunk(chunk).plus(8 * (WORDS as u64 + place / 64));
        let bit = 1 << (place % 64);
        let began = Instant::now();
        let was = loop {
            let freed = client.fetch_add(word, bit)?;
            match deadline.wait(client, freed) {
                Err(error) if error.code == ErrorCode::Indeterminate => {
                    if deadline.read_word(client, word)? & bit != 0 {
                        return Ok(());
                    }
                    // Within the grace the bit would still be there.
                    if began.elapsed() >= self.options.grace {
                        return Err(error);
                    }
                }
                was => break was?,
            }
        };
        if was & bit != 0 {
            // A client that has seen the sum looks again before it uses the bits.
            let undone = client.fetch_add(word, bit.wrapping_neg())?;
            deadline.wait(client, undone)?;
            let text = format!("the object at {} is free already", object.offset());
            return Err(Error::with(ErrorCode::Unallocated, text));
        }
        Ok(())
    }

    /// Leaves the heap: its chunks are for others, with the objects in them.
    ///
    /// # Errors
    /// As [`MemoryClient::wait`]; others take the chunks over after a lease then.
    pub fn close(mut self, client: &mut MemoryClient, timeout: Duration) -> Result<(), Error> {
        let deadline = Deadline::after(timeout);
        self.keep(client, &deadline)?;
        self.unprepare()?;
        for at in 0..self.chunks.len() {
            self.store(client, at, &deadline)?;
            let Chunk { number, class, taken, .. } = self.chunks[at];
            let left = if taken == [0; WORDS] { 0 } else { word_of(ORPHAN, 0, class) };
            deadline.replace(client, self.table(number), (self.word(class), left))?;
        }
        self.guard.unlock(client, deadline.left())
    }

    /// Renews the lease in its second half. After its end the client starts again, without chunks.
    fn keep(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<(), Error> {
        let left = self.guard.left();
        if left >= self.options.lease / 2 {
            return Ok(());
        }
        match self.guard.renew(client, deadline.left()) {
            Err(error) if error.code == ErrorCode::NotLocked => {}
            renewed => return renewed,
        }
        self.chunks.clear();
        self.ready.iter_mut().for_each(Vec::clear);
        (self.number, self.guard) = enter(client, self.at, &self.options, deadline)?;
        self.adopt(client, u64::from(self.number), deadline).map(drop)
    }

    fn chunk(&self, number: u64) -> RemoteAddress {
        self.at.plus(self.options.chunks_at() + number * self.options.chunk_bytes)
    }

    fn table(&self, number: u64) -> RemoteAddress {
        self.at.plus(self.options.table_at() + 8 * number)
    }

    /// The word of a chunk of this client.
    fn word(&self, class: u64) -> u64 {
        word_of(u64::from(self.number), self.guard.token(), class)
    }

    fn object(&self, chunk: u64, class: u64, place: u64) -> RemoteAddress {
        self.chunk(chunk).plus(CHUNK_HEADER + place * self.options.size(class))
    }

    /// Returns the chunk of an object and its place there.
    fn place(&self, object: RemoteAddress, class: u64) -> Result<(u64, u64), Error> {
        let HeapOptions { chunk_bytes, .. } = self.options;
        let begins = self.chunk(0).offset();
        let offset = object.offset().checked_sub(begins);
        let offset = offset.filter(|at| {
            object.memory() == self.at.memory() && at / chunk_bytes < self.options.chunks()
        });
        let text = || format!("no object of the heap is at {}", object.offset());
        let offset = offset.ok_or_else(|| Error::with(ErrorCode::OutOfBounds, text()))?;
        let within = (offset % chunk_bytes).checked_sub(CHUNK_HEADER);
        let size = self.options.size(class);
        let place =
            within.filter(|at| at.is_multiple_of(size) && at / size < self.options.objects(class));
        match place {
            Some(at) => Ok((offset / chunk_bytes, at / size)),
            None => Err(Error::with(ErrorCode::Misaligned, text())),
        }
    }

    /// Marks objects as handed out: those of one word of bits.
    fn prepare(
        &mut self,
        client: &mut MemoryClient,
        class: u64,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        let objects = self.options.objects(class);
        let valid = |word: usize| match objects.saturating_sub(64 * word as u64) {
            64.. => u64::MAX,
            bits => (1 << bits) - 1,
        };
        let found = self.chunks.iter_mut().enumerate().find_map(|(at, chunk)| {
            if chunk.class != class || chunk.is_full {
                return None;
            }
            let mut words = chunk.taken.iter().enumerate();
            let free = words.find(|(word, taken)| !**taken & valid(*word) != 0);
            chunk.is_full = free.is_none();
            free.map(|(word, _)| (at, word))
        });
        let Some((at, word)) = found else {
            return Ok(false);
        };
        let bits = !self.chunks[at].taken[word] & valid(word);
        self.chunks[at].taken[word] |= bits;
        self.store(client, at, deadline)?;
        let number = self.chunks[at].number;
        for bit in (0..64).rev().filter(|bit| bits >> bit & 1 == 1) {
            let object = self.object(number, class, 64 * word as u64 + bit);
            self.ready[class as usize].push(object);
        }
        Ok(true)
    }

    /// Takes back what is prepared and was not handed out, here: the bits are to be stored.
    fn unprepare(&mut self) -> Result<(), Error> {
        for class in 0..CLASSES {
            for object in std::mem::take(&mut self.ready[class]) {
                let (chunk, place) = self.place(object, class as u64)?;
                if let Some(chunk) = self.chunks.iter_mut().find(|one| one.number == chunk) {
                    chunk.taken[place as usize / 64] &= !(1 << (place % 64));
                    chunk.is_full = false;
                }
            }
        }
        Ok(())
    }

    /// Writes the bits of a chunk's objects that are handed out.
    fn store(
        &mut self,
        client: &mut MemoryClient,
        at: usize,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        let Chunk { number, taken, .. } = &self.chunks[at];
        let bytes: Vec<u8> = taken.iter().flat_map(|word| word.to_le_bytes()).collect();
        client.write_bytes(self.chunk(*number), &bytes, deadline.left())
    }

    /// Reads words of remote memory.
    fn read(
        &mut self,
        client: &mut MemoryClient,
        from: RemoteAddress,
        count: u64,
        deadline: &Deadline,
    ) -> Result<Vec<u64>, Error> {
        let mut bytes = vec![0; 8 * count as usize];
        let read = client.read(from, &self.buffer, 0..8 * count)?;
        if let Err(error) = deadline.wait(client, read) {
            // The request may still write to the buffer.
            self.buffer = client.register(8 * LOOK)?;
            return Err(error);
        }
        self.buffer.read(0, &mut bytes)?;
        let words = bytes.chunks_exact(8);
        Ok(words.map(|word| u64::from_le_bytes(std::array::from_fn(|at| word[at]))).collect())
    }

    /// Looks at the freed objects of chunks of a class, at most twice in a grace, or of all; returns whether any can be
    /// handed out now.
    fn reclaim(
        &mut self,
        client: &mut MemoryClient,
        class: Option<u64>,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        if let Some(class) = class {
            // Each look reads the bits of all these chunks.
            let looked = &mut self.looked[class as usize];
            if looked.is_some_and(|looked| looked.elapsed() < self.options.grace / 2) {
                return Ok(false);
            }
            *looked = Some(Instant::now());
        }
        let mut any = false;
        for at in 0..self.chunks.len() {
            let chunk = &self.chunks[at];
            let is_early =
                chunk.freed.is_some_and(|(_, since)| since.elapsed() < self.options.grace);
            if class.is_some_and(|class| chunk.class != class) || is_early {
                continue;
            }
            let from = self.chunk(chunk.number).plus(8 * WORDS as u64);
            let now = self.read(client, from, WORDS as u64, deadline)?;
            let now: [u64; WORDS] = std::array::from_fn(|word| now[word]);
            let (seen, _) = self.chunks[at].freed.take().unwrap_or(([0; WORDS], Instant::now()));
            // Bits that are no objects handed out are those of a program that frees what it does not have.
            let taken = self.chunks[at].taken;
            let over: [u64; WORDS] =
                std::array::from_fn(|word| seen[word] & now[word] & taken[word]);
            let later: [u64; WORDS] = std::array::from_fn(|word| now[word] & !over[word]);
            if over != [0; WORDS] {
                for (word, bits) in over.iter().enumerate().filter(|(_, bits)| **bits != 0) {
                    self.clear(client, from.plus(8 * word as u64), *bits, deadline)?;
                    self.chunks[at].taken[word] &= !bits;
                }
                self.chunks[at].is_full = false;
                self.store(client, at, deadline)?;
                any = true;
            }
            if later != [0; WORDS] {
                self.chunks[at].freed = Some((later, Instant::now()));
            }
        }
        Ok(any)
    }

    /// Clears bits that are set until this client clears them, so that a lost subtraction is resolved by reading.
    fn clear(
        &mut self,
        client: &mut MemoryClient,
        at: RemoteAddress,
        bits: u64,
        deadline: &Deadline,
    ) -> Result<(), Error> {
        loop {
            let cleared = client.fetch_add(at, bits.wrapping_neg())?;
            match deadline.wait(client, cleared) {
                Err(error) if error.code == ErrorCode::Indeterminate => {}
                done => return done.map(drop),
            }
            if deadline.read_word(client, at)? & bits == 0 {
                return Ok(());
            }
        }
    }

    /// Takes a chunk that is free.
    fn take_chunk(
        &mut self,
        client: &mut MemoryClient,
        class: u64,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        let own = self.word(class);
        let found = self.find(client, |word| word == 0, deadline)?;
        for (number, _) in found {
            if deadline.replace(client, self.table(number), (0, own))? != 0 {
                continue;
            }
            client.write_bytes(self.chunk(number), &[0; CHUNK_HEADER as usize], deadline.left())?;
            self.chunks.push(Chunk {
                number,
                class,
                taken: [0; WORDS],
                is_full: false,
                freed: None,
            });
            self.next = (number + 1) % self.options.chunks();
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns chunks whose words are such, beginning behind the one that was taken last: those of the first part of the
    /// table that has any.
    fn find(
        &mut self,
        client: &mut MemoryClient,
        is_such: impl Fn(u64) -> bool,
        deadline: &Deadline,
    ) -> Result<Vec<(u64, u64)>, Error> {
        let chunks = self.options.chunks();
        let mut left = chunks;
        let mut at = self.next;
        while left > 0 {
            let count = LOOK.min(chunks - at).min(left);
            let words = self.read(client, self.table(at), count, deadline)?;
            let found: Vec<(u64, u64)> =
                (at..).zip(words).filter(|(_, word)| is_such(*word)).collect();
            if !found.is_empty() {
                return Ok(found);
            }
            (left, at) = (left - count, (at + count) % chunks);
        }
        Ok(Vec::new())
    }

    /// Gives chunks without objects back, so that they can be taken for another size; returns whether anything is free
    /// now.
    fn give_back(&mut self, client: &mut MemoryClient, deadline: &Deadline) -> Result<bool, Error> {
        let reclaimed = self.reclaim(client, None, deadline)?;
        self.unprepare()?;
        let before = self.chunks.len();
        let mut at = 0;
        while at < self.chunks.len() {
            let Chunk { number, class, taken, .. } = self.chunks[at];
            if taken != [0; WORDS] {
                self.store(client, at, deadline)?;
                at += 1;
                continue;
            }
            deadline.replace(client, self.table(number), (self.word(class), 0))?;
            self.chunks.swap_remove(at);
        }
        Ok(reclaimed || self.chunks.len() < before)
    }

    /// Takes over chunks that clients have left, then those of a client that is dead; returns whether there were any.
    fn adopt_orphans(
        &mut self,
        client: &mut MemoryClient,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        if self.adopt(client, ORPHAN, deadline)? {
            return Ok(true);
        }
        let me = u64::from(self.number) + 1;
        let mut others: Vec<u64> = self
            .find(client, |word| word != 0 && word >> CLIENT_SHIFT != me, deadline)?
            .iter()
            .map(|(_, word)| (word >> CLIENT_SHIFT) - 1)
            .collect();
        others.sort_unstable();
        others.dedup();
        others.retain(|other| *other < u64::from(self.options.clients));
        if others.is_empty() {
            return Ok(false);
        }
        let lock = |other: &u64| lock(self.at, &self.options, *other as u32);
        let locks = others.iter().map(lock).collect::<Result<Vec<_>, _>>()?;
        let patience = (self.options.lease + self.options.lease / 4).min(deadline.left());
        match RemoteLock::lock_any(client, &locks, patience) {
            Ok((at, guard)) => {
                // Free or abandoned: no client of this number lives. This client's own lease may be over by now.
                self.keep(client, deadline)?;
                let adopted = self.adopt(client, others[at], deadline);
                guard.unlock(client, deadline.left())?;
                adopted
            }
            Err(error) if error.code == ErrorCode::TimedOut => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Takes over the chunks of a client that does not live, with their bits; returns whether it had any.
    fn adopt(
        &mut self,
        client: &mut MemoryClient,
        other: u64,
        deadline: &Deadline,
    ) -> Result<bool, Error> {
        let mut any = false;
        let own = (u64::from(self.number), self.guard.token());
        loop {
            let is_such = |word: u64| {
                let token = word >> TOKEN_SHIFT & TOKEN_MASK;
                word != 0 && (word >> CLIENT_SHIFT) - 1 == other && (other, token) != own
            };
            let found = self.find(client, is_such, deadline)?;
            if found.is_empty() {
                return Ok(any);
            }
            for (number, word) in found {
                let class = (word & CLASS_MASK).min(CLASSES as u64 - 1);
                let new = self.word(class);
                if deadline.replace(client, self.table(number), (word, new))? != word {
                    continue;
                }
                let taken = self.read(client, self.chunk(number), WORDS as u64, deadline)?;
                let taken = std::array::from_fn(|word| taken[word]);
                self.chunks.push(Chunk { number, class, taken, is_full: false, freed: None });
                any = true;
            }
        }
    }
}

impl std::fmt::Debug for RemoteHeap {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RemoteHeap(client {}, {} chunks)", self.number, self.chunks.len())
    }
}

const fn word_of(client: u64, token: u64, class: u64) -> u64 {
    (client + 1) << CLIENT_SHIFT | (token & TOKEN_MASK) << TOKEN_SHIFT | class
}

fn fits(at: RemoteAddress, options: &HeapOptions) -> Result<(), Error> {
    if !at.offset().is_multiple_of(64) {
        return Err(Error::with(ErrorCode::Misaligned, format!("a heap at {}", at.offset())));
    }
    if at.offset().checked_add(options.bytes).is_none_or(|end| end > at.memory().bytes()) {
        let text = format!("a heap of {} B at {}", options.bytes, at.offset());
        return Err(Error::with(ErrorCode::OutOfBounds, text));
    }
    Ok(())
}

fn lock(at: RemoteAddress, options: &HeapOptions, number: u32) -> Result<RemoteLock, Error> {
    RemoteLock::new(at.plus(HEADER + CLIENT * u64::from(number)), options.lease)
}

/// Takes a place of a client.
fn enter(
    client: &mut MemoryClient,
    at: RemoteAddress,
    options: &HeapOptions,
    deadline: &Deadline,
) -> Result<(u32, RemoteGuard), Error> {
    let locks = (0..options.clients).map(|number| lock(at, options, number));
    let locks = locks.collect::<Result<Vec<_>, _>>()?;
    let patience = (options.lease + options.lease / 4).min(deadline.left());
    if let Some((number, guard)) = RemoteLock::lock_any_within(client, &locks, patience, deadline)?
    {
        return Ok((number as u32, guard));
    }
    let text = format!("the heap has {} clients already", options.clients);
    Err(Error::with(ErrorCode::TooManyRequests, text))
}
