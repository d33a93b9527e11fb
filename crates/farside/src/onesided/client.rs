//! The using end: requests on memory that servers lend.

use super::engine::{Engine, REQUESTS_MAX, SlotName};
use super::hello::LendReply;
use super::options::{MemoryClientOptions, MemoryClientStats};
use super::ranges::RangeList;
use super::request::{Action, RequestSpec};
use crate::buffer::Buffer;
use crate::port_wait::{Awaited, Sleeper, Waits, wait, wait_async};
use crate::progress::{EnginePort, Progress};
use crate::runtime::{Instant, random};
use crate::topology::CpuSocket;
use crate::{Error, ErrorCode};
use farside_base::{Access, Capabilities, FlushScope};
use farside_fabric::Fabric;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Bytes that [`MemoryClient::read_bytes`] and [`MemoryClient::write_bytes`] move at a time.
const SCRATCH_BYTES: u64 = 256 * 1024;

/// Memory of a [`MemoryServer`](super::MemoryServer), as a client has opened it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteMemory {
    client: u64,
    number: u32,
    bytes: u64,
    access: Access,
    socket: Option<u16>,
    is_exclusive: bool,
}

impl RemoteMemory {
    /// Returns its length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Returns what the server permits.
    pub const fn access(&self) -> Access {
        self.access
    }

    /// Returns whether the server lends it to this client alone ([`LendOptions::exclusive`](super::LendOptions::exclusive)).
    pub const fn is_exclusive(&self) -> bool {
        self.is_exclusive
    }

    /// Returns the number of the socket of the server's machine next to which it is, if the server has named one
    /// ([`LendOptions::socket`](super::LendOptions::socket)).
    pub const fn socket(&self) -> Option<u16> {
        self.socket
    }

    /// Whether the client of this number has opened it.
    pub(super) const fn is_of(&self, client: u64) -> bool {
        self.client == client
    }

    /// Returns the address of its byte `offset`; requests check it.
    pub const fn at(&self, offset: u64) -> RemoteAddress {
        RemoteAddress { memory: *self, offset }
    }
}

/// A byte of a [`RemoteMemory`].
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct RemoteAddress {
    memory: RemoteMemory,
    offset: u64,
}

impl RemoteAddress {
    /// Returns its memory.
    pub const fn memory(&self) -> RemoteMemory {
        self.memory
    }

    /// Returns its offset.
    pub const fn offset(&self) -> u64 {
        self.offset
    }

    /// Checks that it is aligned and that the memory has this many bytes from it on, for words of `what`.
    ///
    /// # Errors
    /// `Misaligned`; `OutOfBounds`.
    pub(super) fn check_words(&self, bytes: u64, what: &str) -> Result<(), Error> {
        let text = || format!("{what} of {bytes} B at {}", self.offset);
        if !self.offset.is_multiple_of(8) {
            return Err(Error::with(ErrorCode::Misaligned, text()));
        }
        if self.offset.checked_add(bytes).is_none_or(|end| end > self.memory.bytes) {
            return Err(Error::with(ErrorCode::OutOfBounds, text()));
        }
        Ok(())
    }

    /// Returns the address this many bytes later; requests check it.
    pub const fn plus(self, bytes: u64) -> Self {
        Self { offset: self.offset.saturating_add(bytes), ..self }
    }
}

/// A request of a [`MemoryClient`], by which its outcome is taken.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct RequestId(pub(super) SlotName);

/// A client of memory servers: one queue of requests on any number of their memories ([module](super)).
///
/// One thread at a time uses it. A request is queued by its call, posted by [`submit`](Self::submit) or a call that
/// waits, and ends when [`progress`](Self::progress) or a call that waits finds its completion. Over shared memory a
/// request of at most 64 KiB has ended when its call returns, unless others wait to be posted
/// ([`MemoryClientOptions::in_call`]).
///
/// *Order.* Requests of one memory begin in the order of their calls. A WRITE or atomic takes effect after earlier
/// WRITEs of the memory, and a READ returns the bytes of earlier ones, where the fabric has `message_order`. A WRITE
/// may overtake an earlier READ or atomic that has not ended: wait for that first. Requests of different memories have
/// no order. *Visibility.* A WRITE that has ended is visible to all later requests of any client where the fabric has
/// `completion_means_placed`, else after a flush. *Atomicity.* Aligned words of 8 bytes are whole; longer transfers are not. Atomics are atomic to each other, and to accesses of
/// the server's processor only where the fabric has [`AtomicScope::System`](crate::fabrics::AtomicScope).
/// *Durability.* None: the memory ends with its server.
///
/// *Lost connections.* They are established again for [`MemoryClientOptions::reconnect`]. READs, WRITEs, stores of words
/// and flushes that had not ended are repeated, in order; the server first ends the earlier connection, so that none
/// of its requests takes effect later. A WRITE that is repeated may take effect twice before it ends: others may see it,
/// then bytes of an earlier WRITE that is repeated too, then it again. An atomic that was in flight ends with
/// `Indeterminate`; it is never repeated. A server that has started again has other memory, so all requests to it fail with `PeerLost`.
///
/// *Cost.* A request is one work request and one round trip, without a copy; up to 32 share a doorbell; none if it ends
/// within its call. A client allocates nothing per request. *Trust.* A client can change whatever it may write. A server checks nothing but the
/// access that it grants.
pub struct MemoryClient {
    engine: Engine,
    fabric: Arc<dyn Fabric>,
    number: u64,
    scratch: Option<Buffer>,
    sleeper: Option<Sleeper>,
}

impl MemoryClient {
    /// Opens a client of memory servers that this fabric reaches.
    ///
    /// # Errors
    /// `BadConfiguration` for no requests or too many; `System`.
    pub fn new(fabric: &Arc<dyn Fabric>, options: &MemoryClientOptions) -> Result<Self, Error> {
        if !(1..=REQUESTS_MAX).contains(&(options.requests_max as usize)) {
            let text = format!("requests_max is {}: 1 to {REQUESTS_MAX}", options.requests_max);
            return Err(Error::with(ErrorCode::BadConfiguration, text));
        }
        let number = random();
        let engine = Engine::new(fabric, options)?;
        Ok(Self { engine, fabric: Arc::clone(fabric), number, scratch: None, sleeper: None })
    }

    /// A random number of this client.
    pub(super) const fn number(&self) -> u64 {
        self.number
    }

    /// Registers memory for transfers without copies. Requests keep it registered until they end, so it may be
    /// dropped at any time.
    ///
    /// # Errors
    /// `System` if the memory is not available.
    pub fn register(&self, bytes: u64) -> Result<Buffer, Error> {
        Buffer::new(&self.fabric, bytes)
    }

    /// Registers memory next to a socket, as [`register`](Self::register) does anywhere: that of the thread that will
    /// use it, or that of the adapter.
    ///
    /// *Cost*: a thread, and a touch of each page.
    ///
    /// # Errors
    /// As `register`; `System` if the memory cannot be put there.
    pub fn register_next_to(&self, socket: &CpuSocket, bytes: u64) -> Result<Buffer, Error> {
        Buffer::next_to(socket, &self.fabric, bytes)
    }

    /// Connects to the memory server at an address ([`MemoryServer::address`](super::MemoryServer::address)).
    ///
    /// *Blocks* until the server's thread has accepted. *Cost*: two round trips of the control path.
    ///
    /// # Errors
    /// `NoListener`; `NotPermitted`; `ChannelMismatch` if another program or version listens there; `ChannelFull` with
    /// the limit of the server; `TimedOut`; `PeerLost`.
    pub fn open(&mut self, address: &str, timeout: Duration) -> Result<RemoteMemory, Error> {
        let number = self.engine.open(address)?;
        let opened = wait(self, Awaited::Peers, timeout, |client| client.poll_open(number));
        if opened.is_err() {
            self.engine.give_up(number);
        }
        opened
    }

    /// The awaitable twin of [`open`](Self::open). Dropping the future leaves an unused connection until the client is
    /// dropped.
    ///
    /// # Errors
    /// As `open`, without `TimedOut`.
    pub async fn open_async(&mut self, address: &str) -> Result<RemoteMemory, Error> {
        let number = self.engine.open(address)?;
        wait_async(self, Awaited::Peers, |client| client.poll_open(number)).await
    }

    fn poll_open(&mut self, number: u32) -> Result<Option<RemoteMemory>, Error> {
        self.engine.poll_once();
        let reply = self.engine.opened(number)?;
        Ok(reply.map(|LendReply { token, socket, is_exclusive, .. }| RemoteMemory {
            client: self.number,
            number,
            bytes: token.bytes,
            access: token.access,
            socket,
            is_exclusive,
        }))
    }

    /// Disconnects from a memory. Its requests that have not ended fail with `PeerLost`, atomics in flight with
    /// `Indeterminate`. WRITEs that were on their way may still take effect for a time.
    ///
    /// # Errors
    /// `BadForm` for a memory of another client.
    pub fn close(&mut self, memory: RemoteMemory) -> Result<(), Error> {
        self.own(memory)?;
        self.engine.close(memory.number);
        Ok(())
    }

    /// Returns how often the connection to a memory was lost and established again.
    ///
    /// # Errors
    /// `BadForm` for a memory of another client.
    pub fn reconnections(&self, memory: RemoteMemory) -> Result<u64, Error> {
        self.own(memory)?;
        Ok(self.engine.memory(memory.number)?.reconnections)
    }

    /// Whether it has opened a memory.
    pub(super) fn own(&self, memory: RemoteMemory) -> Result<(), Error> {
        if memory.client == self.number {
            return Ok(());
        }
        Err(Error::with(ErrorCode::BadForm, "the memory was opened by another client"))
    }

    /// Reads remote bytes into a part of a buffer.
    ///
    /// # Errors
    /// For a request that is wrong, at once and without any effect: `ZeroSize`, `TooLarge`, `OutOfBounds`,
    /// `AccessDenied`, `BadForm` for a buffer of another fabric or a memory of another client. `TooManyRequests`.
    /// The error of a memory that has ended.
    pub fn read(
        &mut self,
        from: RemoteAddress,
        into: &Buffer,
        range: Range<u64>,
    ) -> Result<RequestId, Error> {
        self.transfer(Action::Read, from, into, range)
    }

    /// Writes a part of a buffer to remote bytes. The part must stay unchanged until the request ends.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn write(
        &mut self,
        to: RemoteAddress,
        from: &Buffer,
        range: Range<u64>,
    ) -> Result<RequestId, Error> {
        self.transfer(Action::Write, to, from, range)
    }

    fn transfer(
        &mut self,
        action: Action,
        at: RemoteAddress,
        buffer: &Buffer,
        range: Range<u64>,
    ) -> Result<RequestId, Error> {
        self.of_this_fabric(buffer)?;
        let bytes = range.end.saturating_sub(range.start);
        self.request(at, action, bytes, Some((buffer, range.start)))
    }

    /// Adds to a word of 8 bytes, wrapping; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Misaligned`.
    pub fn fetch_add(&mut self, at: RemoteAddress, add: u64) -> Result<RequestId, Error> {
        self.word(at, Action::FetchAdd(add))
    }

    /// Replaces a word of 8 bytes if it is `expected`; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add).
    pub fn compare_swap(
        &mut self,
        at: RemoteAddress,
        expected: u64,
        new: u64,
    ) -> Result<RequestId, Error> {
        self.word(at, Action::CompareSwap { expected, new })
    }

    /// Replaces a word of 8 bytes; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add); the request ends with `FabricLacks` on a fabric without
    /// `extended_atomics`, as those below.
    pub fn swap(&mut self, at: RemoteAddress, new: u64) -> Result<RequestId, Error> {
        self.word(at, Action::Swap(new))
    }

    /// Compares the bits of one mask and replaces those of another; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn masked_compare_swap(
        &mut self,
        at: RemoteAddress,
        [expected, compare_mask]: [u64; 2],
        [new, swap_mask]: [u64; 2],
    ) -> Result<RequestId, Error> {
        self.word(at, Action::MaskedCompareSwap { expected, compare_mask, new, swap_mask })
    }

    /// Adds within fields, whose top bits are `boundaries`; the outcome is the previous value.
    ///
    /// # Errors
    /// As [`swap`](Self::swap).
    pub fn masked_fetch_add(
        &mut self,
        at: RemoteAddress,
        add: u64,
        boundaries: u64,
    ) -> Result<RequestId, Error> {
        self.word(at, Action::MaskedFetchAdd { add, boundaries })
    }

    /// Stores a word of 8 bytes, whole, after earlier WRITEs of the memory where the fabric has `message_order`.
    ///
    /// # Errors
    /// As [`fetch_add`](Self::fetch_add); the request ends with `FabricLacks` on a fabric without `atomic_write`.
    pub fn atomic_write(&mut self, to: RemoteAddress, value: u64) -> Result<RequestId, Error> {
        self.word(to, Action::AtomicWrite(value))
    }

    /// Reads a word of 8 bytes, whole; the outcome is its value.
    ///
    /// # Errors
    /// As [`read`](Self::read); `Misaligned`.
    pub fn read_word(&mut self, at: RemoteAddress) -> Result<RequestId, Error> {
        self.word(at, Action::ReadWord)
    }

    fn word(&mut self, at: RemoteAddress, action: Action) -> Result<RequestId, Error> {
        self.request(at, action, 8, None)
    }

    /// Ends when earlier WRITEs and atomics of these bytes have reached `scope`; zero bytes: the whole memory.
    ///
    /// # Errors
    /// As [`read`](Self::read); the request ends with `FabricLacks` on a fabric without that scope.
    pub fn flush(
        &mut self,
        from: RemoteAddress,
        bytes: u64,
        scope: FlushScope,
    ) -> Result<RequestId, Error> {
        self.request(from, Action::Flush(scope), bytes, None)
    }

    pub(super) fn request(
        &mut self,
        at: RemoteAddress,
        action: Action,
        bytes: u64,
        local: Option<(&Buffer, u64)>,
    ) -> Result<RequestId, Error> {
        self.own(at.memory)?;
        let (memory, offset) = (at.memory.number, at.offset);
        let spec = RequestSpec { memory, action, offset, bytes, local, ranges: None };
        self.engine.request(spec).map(RequestId)
    }

    /// Reads the ranges of a list, which begin at `from`, into those of a buffer, which begin at `at`.
    ///
    /// One request with one outcome. [`RangeList::by`] says how: by a work request for each range, by lists of pieces, or
    /// through staging memory. There is no order between the ranges. *Cost*: an allocation, and a round trip for
    /// as many work requests as the fabric has in flight.
    ///
    /// # Errors
    /// As [`read`](Self::read); the text names the first range that is wrong, and nothing is moved then. The outcome's
    /// text names the first range that failed; any of the others may have been moved.
    pub fn read_ranges(
        &mut self,
        from: RemoteAddress,
        into: &Buffer,
        at: u64,
        ranges: &RangeList,
    ) -> Result<RequestId, Error> {
        self.transfer_ranges(Action::Read, from, (into, at), ranges)
    }

    /// Writes the ranges of a buffer, which begin at `at`, to those of the remote memory, which begin at `to`; see
    /// [`read_ranges`](Self::read_ranges).
    ///
    /// # Errors
    /// As `read_ranges`.
    pub fn write_ranges(
        &mut self,
        to: RemoteAddress,
        from: &Buffer,
        at: u64,
        ranges: &RangeList,
    ) -> Result<RequestId, Error> {
        self.transfer_ranges(Action::Write, to, (from, at), ranges)
    }

    fn transfer_ranges(
        &mut self,
        action: Action,
        RemoteAddress { memory, offset }: RemoteAddress,
        local: (&Buffer, u64),
        ranges: &RangeList,
    ) -> Result<RequestId, Error> {
        self.own(memory)?;
        self.of_this_fabric(local.0)?;
        let (bytes, local, ranges) = (ranges.bytes(), Some(local), Some(ranges));
        let spec = RequestSpec { memory: memory.number, action, offset, bytes, local, ranges };
        self.engine.request(spec).map(RequestId)
    }

    pub(super) fn of_this_fabric(&self, buffer: &Buffer) -> Result<(), Error> {
        if buffer.is_of(&self.fabric) {
            return Ok(());
        }
        Err(Error::with(ErrorCode::BadForm, "the buffer is of another fabric"))
    }

    /// Returns the capabilities of its fabric.
    pub const fn capabilities(&self) -> &Capabilities {
        self.engine.capabilities()
    }

    /// Returns what it has done since it was opened.
    pub const fn stats(&self) -> MemoryClientStats {
        self.engine.counters
    }

    /// Posts the queued requests: with one doorbell for up to 32, of all memories.
    ///
    /// Never blocks. What the fabric does not take now is posted by later calls.
    pub fn submit(&mut self) {
        self.engine.post();
    }

    /// Takes completions and posts queued requests, without blocking; returns whether there was work.
    pub fn progress(&mut self) -> bool {
        self.engine.poll_once()
    }

    /// Takes the outcome of a request, if it has ended: the previous value of an atomic, else zero.
    ///
    /// # Errors
    /// `PeerLost` if the connection was lost and not established again in time, or the server has started again;
    /// `Indeterminate` for an atomic whose connection was lost; `AccessDenied` if the server revoked the memory;
    /// `FabricLacks`; `BadForm` if the outcome was taken before.
    pub fn take(&mut self, request: RequestId) -> Result<Option<u64>, Error> {
        self.engine.take(request.0)
    }

    /// Returns whether a request has ended and its outcome was not taken. Makes no progress.
    pub fn has_ended(&self, request: RequestId) -> bool {
        self.engine.has_ended(request.0)
    }

    /// Takes the outcome of any request that has ended since the last call; those of one memory in the order of their
    /// ends. For programs that identify requests by their ids instead of waiting for each.
    pub fn take_next(&mut self) -> Option<(RequestId, Result<u64, Error>)> {
        while let Some(name) = self.engine.ended.pop_front() {
            if self.engine.has_ended(name) {
                let outcome = self.engine.take(name).map(Option::unwrap_or_default);
                return Some((RequestId(name), outcome));
            }
        }
        None
    }

    /// Discards the outcome of a request, now or when it ends. It is not cancelled.
    pub fn forget(&mut self, request: RequestId) {
        self.engine.forget(request.0);
    }

    /// Leaves the outcome of a request that was not submitted to its caller, not to [`take_next`](Self::take_next).
    pub(super) fn hide(&mut self, request: RequestId) {
        self.engine.hide(request.0);
    }

    /// Takes the outcome of a request. If it has not ended: submits, and waits for its end.
    ///
    /// *Blocks*: spins at first, then sleeps. After `TimedOut` the request is still in flight: wait again, or
    /// [`forget`](Self::forget) it.
    ///
    /// # Errors
    /// As [`take`](Self::take); `TimedOut`.
    pub fn wait(&mut self, request: RequestId, timeout: Duration) -> Result<u64, Error> {
        wait(self, Awaited::Messages, timeout, |client| client.poll_request(request))
    }

    /// The awaitable twin of [`wait`](Self::wait), for any executor: no thread polls meanwhile. Dropping the future,
    /// as a time-out of the executor does, leaves the request as `TimedOut` does.
    ///
    /// # Errors
    /// As [`take`](Self::take); `System` if the thread that wakes the task cannot be started.
    pub async fn wait_async(&mut self, request: RequestId) -> Result<u64, Error> {
        wait_async(self, Awaited::Messages, |client| client.poll_request(request)).await
    }

    /// Takes the outcome of a request; drives the engine if it has not ended.
    #[inline]
    pub(super) fn poll_request(&mut self, request: RequestId) -> Result<Option<u64>, Error> {
        if let Some(value) = self.engine.take(request.0)? {
            return Ok(Some(value));
        }
        self.drive();
        self.engine.take(request.0)
    }

    /// Polls once. Posts first: a request may complete at once.
    fn drive(&mut self) {
        self.engine.post();
        self.engine.poll_once();
    }

    /// Waits until all requests of a memory have ended. Their outcomes are left to be taken.
    ///
    /// # Errors
    /// `TimedOut`; `BadForm` for a memory of another client.
    pub fn wait_for_all(&mut self, memory: RemoteMemory, timeout: Duration) -> Result<(), Error> {
        self.own(memory)?;
        wait(self, Awaited::Messages, timeout, |client| {
            client.drive();
            Ok(client.engine.is_idle(memory.number).then_some(()))
        })
    }

    /// Copies remote bytes out, through registered memory of the client.
    ///
    /// *Blocks* for a round trip per 256 KiB. *Cost*: a copy more than [`read`](Self::read).
    ///
    /// # Errors
    /// As `read` and [`wait`](Self::wait).
    pub fn read_bytes(
        &mut self,
        from: RemoteAddress,
        out: &mut [u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut at = from;
        self.by_scratch(
            out.chunks_mut(SCRATCH_BYTES as usize),
            timeout,
            |client, scratch, part, left| {
                let bytes = part.len() as u64;
                let request = client.read(at, scratch, 0..bytes)?;
                client.wait_or_forget(request, left)?;
                at.offset += bytes;
                scratch.read(0, part)
            },
        )
    }

    /// Copies bytes to remote memory, through registered memory of the client. They are visible there when it returns,
    /// where the fabric has `completion_means_placed`.
    ///
    /// *Blocks* and costs as [`read_bytes`](Self::read_bytes).
    ///
    /// # Errors
    /// As [`write`](Self::write) and [`wait`](Self::wait).
    pub fn write_bytes(
        &mut self,
        to: RemoteAddress,
        bytes: &[u8],
        timeout: Duration,
    ) -> Result<(), Error> {
        let mut at = to;
        self.by_scratch(
            bytes.chunks(SCRATCH_BYTES as usize),
            timeout,
            |client, scratch, part, left| {
                scratch.write(0, part)?;
                let bytes = part.len() as u64;
                let request = client.write(at, scratch, 0..bytes)?;
                client.wait_or_forget(request, left)?;
                at.offset += bytes;
                Ok(())
            },
        )
    }

    /// Moves parts through the scratch buffer. After an error a request may still use that buffer, so that another
    /// one takes its place.
    fn by_scratch<P>(
        &mut self,
        parts: impl Iterator<Item = P>,
        timeout: Duration,
        mut each: impl FnMut(&mut Self, &Buffer, P, Duration) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let scratch = match self.scratch.take() {
            Some(scratch) => scratch,
            None => self.register(SCRATCH_BYTES)?,
        };
        let began = Instant::now();
        for part in parts {
            each(self, &scratch, part, timeout.saturating_sub(began.elapsed()))?;
        }
        self.scratch = Some(scratch);
        Ok(())
    }

    /// Waits for a request; discards its outcome after an error.
    pub(super) fn wait_or_forget(
        &mut self,
        request: RequestId,
        timeout: Duration,
    ) -> Result<u64, Error> {
        let outcome = self.wait(request, timeout);
        if outcome.is_err() {
            self.forget(request);
        }
        outcome
    }
}

impl fmt::Debug for MemoryClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "MemoryClient(over {})", self.fabric.name())
    }
}

impl Waits for MemoryClient {
    fn is_announced(&self, _awaited: Awaited) -> bool {
        true
    }

    fn is_quiet(&self) -> bool {
        self.engine.is_settled()
    }

    fn port(&mut self) -> &mut EnginePort {
        &mut self.engine.port
    }

    fn sleeper(&mut self) -> &mut Option<Sleeper> {
        &mut self.sleeper
    }
}
