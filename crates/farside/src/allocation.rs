//! Allocating and freeing global memory: the calls of a session and the home's side of them.

use crate::config::{AllocationHint, AllocationSpec};
use crate::engine::Engine;
use crate::hit::WORD;
use crate::memory::{Piece, Session};
use crate::operation::{Kind, home_number, home_operation};
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use farside_base::{LineAddress, LineSize, OperationId, Ticket};
use farside_protocol::allocate::{AllocateFlags, Allocator, Hint, Message, Placement};
use farside_protocol::coherence::{Event, Extent, Here, Level};
use farside_protocol::wire::{BODY, Family, Violation};
use std::collections::BTreeMap;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug)]
enum Asker {
    Operation(OperationId),
    Node(NodeId, Ticket),
}

/// An allocation that is being freed: each of its lines is recalled from everybody first (V13: memory
/// is not used again before nobody holds it any more).
#[derive(Clone, Copy, Debug)]
struct Freeing {
    start: LineAddress,
    lines: u64,
    left: u64,
    asker: Asker,
}

/// The home's side of allocation, and what this node knows of other homes.
#[derive(Debug)]
pub(crate) struct Homes {
    allocator: Allocator,
    pub(crate) placement: Placement,
    freeing: BTreeMap<u64, Freeing>,
    asked: BTreeMap<Ticket, (OperationId, NodeId)>,
    next: u64,
    /// Bytes from the start of the memory that were part of an allocation at some time; what lies
    /// behind is zero as the system gave it.
    used_to: u64,
}

impl Homes {
    pub(crate) fn new(me: NodeId, bytes: u64) -> Self {
        let allocator = Allocator::new(bytes);
        let placement = Placement::new(me, allocator.capacity_bytes());
        Self {
            allocator,
            placement,
            freeing: BTreeMap::new(),
            asked: BTreeMap::new(),
            next: 1,
            used_to: 0,
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.allocator.free_bytes()
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Engine {
    /// Starts an operation that is not about a line's bytes.
    pub(crate) fn control(
        &mut self,
        operation: OperationId,
        kind: Kind,
        address: Option<GlobalAddress>,
    ) {
        match kind {
            Kind::Allocate { node, bytes, class } => {
                self.start_allocate(operation, node, bytes, class)
            }
            Kind::Free => match address {
                Some(address) => self.start_free(operation, address),
                None => self.finish(operation, Err(ErrorCode::NotAnAllocation)),
            },
            Kind::Confirm => self.finish(operation, Ok(())),
            _ => self.finish(operation, Err(ErrorCode::NodeFailed)),
        }
    }

    fn start_allocate(&mut self, operation: OperationId, node: NodeId, bytes: u64, class: u8) {
        let Some(line_size) = LineSize::from_class(class) else {
            return self.finish(operation, Err(ErrorCode::BadLineSize));
        };
        if node == self.me() {
            match self.allocate_here(bytes, line_size) {
                Ok(address) => self.finish_with(operation, address.to_bits()),
                Err(code) => self.finish(operation, Err(code)),
            }
            return;
        }
        let flags = AllocateFlags { zeroed: true };
        self.ask(node, operation, |ticket| Message::Allocate { ticket, bytes, line_size, flags });
    }

    fn ask(
        &mut self,
        node: NodeId,
        operation: OperationId,
        message: impl FnOnce(Ticket) -> Message,
    ) {
        if let Some(code) = self.peers.refusal(node) {
            return self.finish(operation, Err(code));
        }
        let ticket = Ticket(self.homes.number());
        self.homes.asked.insert(ticket, (operation, node));
        self.send_allocate(node, &message(ticket));
    }

    fn send_allocate(&mut self, to: NodeId, message: &Message) {
        self.peers.push(to, message.class(), Family::Allocate, &message.encode());
    }

    fn allocate_here(
        &mut self,
        bytes: u64,
        line_size: LineSize,
    ) -> Result<GlobalAddress, ErrorCode> {
        if bytes > self.limits.allocation_bytes_max {
            return Err(ErrorCode::TooLarge);
        }
        let block = self.homes.allocator.allocate(bytes, line_size)?;
        let line_bytes = line_size.bytes() as u64;
        let address = GlobalAddress::new(self.me(), line_size, block.offset)
            .map_err(|_| ErrorCode::OutOfMemory)?;
        let end = block.offset + block.lines * line_bytes;
        let stale = self.homes.used_to.clamp(block.offset, end) - block.offset;
        let zeroed = self.lines.home().zero(block.offset, stale as usize);
        debug_assert!(zeroed.is_ok(), "the allocator stays within the memory");
        self.homes.used_to = self.homes.used_to.max(end);
        let rounded = bytes.next_multiple_of(WORD);
        for number in 0..block.lines {
            let left = rounded - number * line_bytes;
            let extent = Extent { first: number == 0, bytes: left.min(line_bytes) as u32 };
            if let Some(line) = address.line().checked_add(number) {
                self.lines.set_own(line, Level::Dirty, Some(extent));
            }
        }
        self.announce_free(None);
        Ok(address)
    }

    fn start_free(&mut self, operation: OperationId, address: GlobalAddress) {
        if address.home() == self.me() {
            return self.free_here(address, Asker::Operation(operation));
        }
        self.ask(address.home(), operation, |ticket| Message::Free { ticket, address });
    }

    /// Frees an allocation of this home once nobody holds a line of it any more.
    fn free_here(&mut self, address: GlobalAddress, asker: Asker) {
        let start = address.line();
        let is_first = |line| self.lines.here(line).1.map(|extent| extent.first);
        if address.offset_in_line() != 0 || is_first(start) != Some(true) {
            return self.answer_free(asker, Err(ErrorCode::NotAnAllocation));
        }
        let mut lines = 1;
        while start.checked_add(lines).and_then(is_first) == Some(false) {
            lines += 1;
        }
        let number = self.homes.number();
        let freeing = Freeing { start, lines, left: lines, asker };
        self.homes.freeing.insert(number, freeing);
        for index in 0..lines {
            if let Some(line) = start.checked_add(index) {
                self.lines.set_own(line, Level::Invalid, None);
            }
        }
        for index in 0..lines {
            if let Some(line) = start.checked_add(index) {
                let operation = home_operation(number);
                self.step_own(Event::Retire { operation, line, here: Here::default() });
                self.retire_locks(line);
            }
        }
    }

    /// One line of an allocation that is being freed is nobody's any more.
    pub(crate) fn retired(&mut self, operation: OperationId) {
        let number = home_number(operation);
        let Some(freeing) = self.homes.freeing.get_mut(&number) else {
            return;
        };
        freeing.left -= 1;
        if freeing.left > 0 {
            return;
        }
        let Some(freeing) = self.homes.freeing.remove(&number) else {
            return;
        };
        let line_size = freeing.start.line_size();
        for index in 0..freeing.lines {
            if let Some(line) = freeing.start.checked_add(index) {
                self.lines.set_own(line, Level::Invalid, None);
            }
        }
        let freed = self.homes.allocator.free(freeing.start.offset(), freeing.lines, line_size);
        self.announce_free(None);
        self.answer_free(freeing.asker, freed);
    }

    fn answer_free(&mut self, asker: Asker, outcome: Result<(), ErrorCode>) {
        match (asker, outcome) {
            (Asker::Operation(operation), outcome) => self.finish(operation, outcome),
            (Asker::Node(node, ticket), Ok(())) => {
                self.send_allocate(node, &Message::Freed { ticket })
            }
            (Asker::Node(node, ticket), Err(code)) => {
                self.send_allocate(node, &Message::Refused { ticket, code });
            }
        }
    }

    /// Tells others how much memory is free here: one node when it is new, all when it has changed
    /// by a sixteenth (004 §2.1: statistics that are synchronised now and then).
    pub(crate) fn announce_free(&mut self, only: Option<NodeId>) {
        let free = self.homes.free_bytes();
        let told = self.homes.placement.note_own(free);
        match (only, told) {
            (Some(node), _) => self.send_allocate(node, &Message::FreeBytes { bytes: free }),
            (None, Some(bytes)) => {
                let peers: Vec<NodeId> = self.peers.iter().collect();
                for node in peers {
                    self.send_allocate(node, &Message::FreeBytes { bytes });
                }
            }
            (None, None) => {}
        }
    }

    pub(crate) fn allocate_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        match Message::decode(body)? {
            Message::Allocate { ticket, bytes, line_size, .. } => {
                let answer = match self.allocate_here(bytes, line_size) {
                    Ok(address) => {
                        let lines = bytes.div_ceil(line_size.bytes() as u64);
                        Message::Allocated { ticket, address, lines }
                    }
                    Err(code) => Message::Refused { ticket, code },
                };
                self.send_allocate(from, &answer);
            }
            Message::Free { ticket, address } => {
                if address.home() != self.me() {
                    return Err(Violation("free at a node that is not the home"));
                }
                self.free_here(address, Asker::Node(from, ticket));
            }
            Message::Allocated { ticket, address, .. } => {
                let operation = self.asked(from, ticket)?;
                self.finish_with(operation, address.to_bits());
            }
            Message::Freed { ticket } => {
                let operation = self.asked(from, ticket)?;
                self.finish(operation, Ok(()));
            }
            Message::Refused { ticket, code } => {
                let operation = self.asked(from, ticket)?;
                self.finish(operation, Err(code));
            }
            Message::FreeBytes { bytes } => self.homes.placement.note(from, bytes),
        }
        Ok(())
    }

    fn asked(&mut self, from: NodeId, ticket: Ticket) -> Result<OperationId, Violation> {
        match self.homes.asked.remove(&ticket) {
            Some((operation, node)) if node == from => Ok(operation),
            _ => Err(Violation("answer to a question that was not asked")),
        }
    }

    /// A home is dead: what was asked of it fails, what it was freeing here is freed.
    pub(crate) fn home_dead(&mut self, node: NodeId) {
        self.homes.placement.remove(node);
        let lost: Vec<Ticket> = self
            .homes
            .asked
            .iter()
            .filter(|(_, (_, home))| *home == node)
            .map(|(ticket, _)| *ticket)
            .collect();
        for ticket in lost {
            if let Some((operation, _)) = self.homes.asked.remove(&ticket) {
                self.finish(operation, Err(ErrorCode::NodeLost));
            }
        }
    }
}

impl Session {
    /// Allocates zeroed memory, here if possible, in lines of the node's default size.
    ///
    /// *Guarantees*: zeroed; shares no line with any other allocation. *Units*: bytes, rounded up to a
    /// multiple of 8. *Blocks* for one round trip when it goes elsewhere. *Source*: 004 §2.1 `Malloc`.
    ///
    /// # Errors
    /// `ZeroSize`, `TooLarge`, `OutOfMemory`, `NodeClosed`.
    pub fn alloc(&mut self, bytes: u64) -> Result<GlobalAddress, Error> {
        self.alloc_with(bytes, AllocationSpec::default())
    }

    /// As [`alloc`](Self::alloc), at the home of `near`.
    ///
    /// # Errors
    /// As `alloc`, and `NodeLost` or `ForeignAddress` for the home of `near`.
    pub fn alloc_near(&mut self, bytes: u64, near: GlobalAddress) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::Near(near);
        self.alloc_with(bytes, AllocationSpec { hint, line_size: None })
    }

    /// As [`alloc`](Self::alloc), at `node`.
    ///
    /// # Errors
    /// As `alloc`, and `NodeLost` or `ForeignAddress` for `node`.
    pub fn alloc_on(&mut self, bytes: u64, node: NodeId) -> Result<GlobalAddress, Error> {
        let hint = AllocationHint::On(node);
        self.alloc_with(bytes, AllocationSpec { hint, line_size: None })
    }

    /// As [`alloc`](Self::alloc), with a hint where, and a line size.
    ///
    /// # Errors
    /// As `alloc_on`.
    pub fn alloc_with(&mut self, bytes: u64, spec: AllocationSpec) -> Result<GlobalAddress, Error> {
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.alloc_with_async(bytes, spec))
    }

    /// The awaitable twin of [`alloc_with`](Self::alloc_with).
    ///
    /// # Errors
    /// As `alloc_with`.
    pub async fn alloc_with_async(
        &mut self,
        bytes: u64,
        spec: AllocationSpec,
    ) -> Result<GlobalAddress, Error> {
        if bytes == 0 {
            return Err(Error::new(ErrorCode::ZeroSize));
        }
        if bytes > self.core.limits.allocation_bytes_max {
            return Err(Error::new(ErrorCode::TooLarge));
        }
        let line_size = spec.line_size.unwrap_or(self.core.line_size);
        let class = line_size.class();
        // Two tries: what is known of other nodes' memory may be out of date.
        let mut full = farside_base::NodeSet::EMPTY;
        loop {
            let node = self.choose_home(spec.hint, bytes, &full)?;
            let address = GlobalAddress::new(node, line_size, 0)
                .map_err(|_| Error::new(ErrorCode::BadLineSize))?;
            let piece = Piece { address, at: 0, bytes: 0 };
            match self.call(Kind::Allocate { node, bytes, class }, piece, &[]).await {
                Ok(bits) => {
                    return GlobalAddress::from_bits(bits)
                        .map_err(|_| Error::new(ErrorCode::ProtocolViolation));
                }
                Err(error)
                    if error.code == ErrorCode::OutOfMemory
                        && matches!(
                            spec.hint,
                            AllocationHint::Default | AllocationHint::Remote
                        )
                        && full.insert(node) => {}
                Err(error) => {
                    return Err(Error { address: None, ..error });
                }
            }
        }
    }

    fn choose_home(
        &self,
        hint: AllocationHint,
        bytes: u64,
        full: &farside_base::NodeSet,
    ) -> Result<NodeId, Error> {
        let hint = match hint {
            // Named nodes are asked themselves, whatever is known of their memory.
            AllocationHint::Near(address) => return Ok(address.home()),
            AllocationHint::On(node) => return Ok(node),
            AllocationHint::Default => Hint::Default,
            AllocationHint::Local => Hint::Local,
            AllocationHint::Remote => Hint::Remote,
        };
        let engine = self.core.engine();
        let chosen = engine.homes.placement.choose(hint, bytes, full);
        // What is known of the others' memory is old, or not told yet: before this fails, each is
        // asked itself.
        let unasked = || engine.peers.iter().find(|node| !full.contains(*node));
        match chosen {
            Err(ErrorCode::OutOfMemory) if hint != Hint::Local => {
                unasked().ok_or(ErrorCode::OutOfMemory.into())
            }
            chosen => Ok(chosen?),
        }
    }

    /// Frees an allocation.
    ///
    /// *Guarantees*: when it returns, every cached copy is gone and every access fails with
    /// `Unallocated`; the memory is used again only from then on. Earlier writes of this session are
    /// waited for. *Blocks* for the recall of all copies. *Cost*: one round trip to the home, and one
    /// from it to each holder of a line.
    ///
    /// # Errors
    /// `NotAnAllocation` for anything but a live address that `alloc` returned; `NodeLost`.
    pub fn free(&mut self, address: GlobalAddress) -> Result<(), Error> {
        let (core, parker, waker) = self.waiting();
        core.block_on(&parker, &waker, self.free_async(address))
    }

    /// The awaitable twin of [`free`](Self::free).
    ///
    /// # Errors
    /// As `free`.
    pub async fn free_async(&mut self, address: GlobalAddress) -> Result<(), Error> {
        self.fence_async().await?;
        let piece = Piece { address, at: 0, bytes: 0 };
        self.call(Kind::Free, piece, &[]).await.map(drop)
    }
}
