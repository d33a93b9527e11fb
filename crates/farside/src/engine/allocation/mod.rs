//! Allocations and frees: drives the allocator of this home, whose lines and bytes are processed in [`slices`].

mod slices;

use super::Engine;
use super::requester::Requester;
use super::state::AllocatedBlock;
use crate::config::Durability;
use crate::hit::WORD;
use crate::operation::OperationKind;
use crate::{Error, ErrorCode, GlobalAddress, NodeId};
use farside_base::{LineSize, NodeSet, OperationId, Ticket};
use farside_protocol::allocate::{
    AllocateFlags, AllocateMessage, Allocator, Block, Hint, Placement, StateNeeds,
};
use farside_protocol::coherence::Level;
use farside_protocol::wire::{BODY, Family, Violation};
use slices::{Allocation, Budget, Jobs};
use std::collections::BTreeMap;

/// Bytes of the first page of a directory of named roots.
pub(crate) const DIRECTORY_BYTES: u64 = 4096;
/// The line size of directories.
pub(crate) const DIRECTORY_LINE_SIZE: LineSize = LineSize::DEFAULT;

const _: () = assert!(DIRECTORY_BYTES <= Budget::SLICE.bytes);

/// A freed block that is to return to the allocator.
#[derive(Clone, Copy, Debug)]
struct FreedBlock {
    offset: u64,
    lines: u64,
    line_size: LineSize,
}

/// An allocation request of a peer. It may have to wait until this node is ready.
#[derive(Debug)]
struct PeerRequest {
    from: NodeId,
    ticket: Ticket,
    bytes: u64,
    line_size: LineSize,
    flags: AllocateFlags,
}

/// Drives the allocator of this home, and knows the free memory of other homes.
#[derive(Debug)]
pub(crate) struct Homes {
    allocator: Allocator,
    allocation_bytes_max: u64,
    placement: Placement,
    jobs: Jobs,
    asked: BTreeMap<Ticket, (OperationId, NodeId)>,
    /// Requests that arrived before this node was ready. Not every member knows its memory before then, so
    /// no address in it may exist.
    early: Vec<PeerRequest>,
    /// Free blocks that a removed node may still write; they return to the allocator later.
    quarantine: Vec<FreedBlock>,
    /// The directory of named roots, once any node has asked for it, and its number of lines.
    directory: Option<(GlobalAddress, u64)>,
    /// Of its record in the log of a home with state.
    directory_position: u64,
    next: u64,
    /// High-water mark: bytes from the start of the memory to the end of the last block ever reserved.
    /// Memory after it is zero, as the operating system provided it, and no allocation has touched it.
    used_to: u64,
}

impl Homes {
    pub(super) fn new(me: NodeId, bytes: u64, allocation_bytes_max: u64) -> Self {
        let allocator = Allocator::new(bytes);
        let placement = Placement::new(me, allocator.capacity_bytes());
        Self {
            allocator,
            allocation_bytes_max,
            placement,
            jobs: Jobs::new(),
            asked: BTreeMap::new(),
            early: Vec::new(),
            quarantine: Vec::new(),
            directory: None,
            directory_position: 0,
            next: 1,
            used_to: 0,
        }
    }

    pub(crate) fn free_bytes(&self) -> u64 {
        self.allocator.free_bytes()
    }

    /// Bytes of blocks in quarantine.
    pub(crate) fn quarantined_bytes(&self) -> u64 {
        self.quarantine.iter().map(|block| block.lines * block.line_size.bytes() as u64).sum()
    }

    /// Returns the blocks to the allocator: they can no longer be written.
    pub(crate) fn end_quarantine(&mut self) {
        for block in self.quarantine.drain(..) {
            let freed = self.allocator.free(block.offset, block.lines, block.line_size);
            debug_assert!(freed.is_ok(), "it was allocated, and freed once");
        }
    }

    /// Ends allocations and frees in progress without an answer, because the node leaves.
    pub(crate) fn stop(&mut self) {
        self.jobs.clear();
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Engine {
    /// Starts an operation that is not an access to a line.
    pub(crate) fn control(
        &mut self,
        operation: OperationId,
        kind: OperationKind,
        address: Option<GlobalAddress>,
    ) {
        match kind {
            OperationKind::Allocate { node, bytes, class, needs, .. } => {
                self.start_allocate(operation, node, bytes, (class, needs))
            }
            OperationKind::Directory { node } => self.start_directory(operation, node),
            OperationKind::Free => match address {
                Some(address) => self.start_free(operation, address),
                None => self.finish(operation, Err(ErrorCode::NotAnAllocation)),
            },
            OperationKind::Gate => self.take_gate(operation),
            OperationKind::Confirm => self.finish(operation, Ok(())),
            OperationKind::Persist => self.start_persist(operation),
            OperationKind::AwaitHome => self.start_await_home(operation, address),
            _ => self.finish(operation, Err(ErrorCode::NodeFailed)),
        }
    }

    fn start_allocate(
        &mut self,
        operation: OperationId,
        node: NodeId,
        bytes: u64,
        (class, needs): (u8, StateNeeds),
    ) {
        let Some(line_size) = LineSize::from_class(class) else {
            return self.finish(operation, Err(ErrorCode::BadLineSize));
        };
        if node == self.me() {
            return self.allocate_here(bytes, (line_size, needs), Requester::Operation(operation));
        }
        let flags = AllocateFlags { zeroed: true, directory: false, needs };
        self.ask(node, operation, |ticket| AllocateMessage::Allocate {
            ticket,
            bytes,
            line_size,
            flags,
        });
    }

    fn start_directory(&mut self, operation: OperationId, node: NodeId) {
        if node == self.me() {
            return self.directory_here(Requester::Operation(operation));
        }
        let (bytes, line_size) = (DIRECTORY_BYTES, DIRECTORY_LINE_SIZE);
        let flags = AllocateFlags { zeroed: true, directory: true, needs: StateNeeds::default() };
        self.ask(node, operation, |ticket| AllocateMessage::Allocate {
            ticket,
            bytes,
            line_size,
            flags,
        });
    }

    /// Answers with the directory of named roots of this home, which the first request creates.
    fn directory_here(&mut self, requester: Requester) {
        let known = self.homes.directory;
        match known.map_or_else(|| self.create_directory(), Ok) {
            Ok(directory) => {
                let position = self.homes.directory_position;
                let ((address, lines), needs) = (directory, StateNeeds::default());
                self.answer_durably(requester, AllocatedBlock { address, lines, needs }, position);
            }
            Err(code) => self.answer_allocate(requester, Err(code)),
        }
    }

    fn create_directory(&mut self) -> Result<(GlobalAddress, u64), ErrorCode> {
        let form = (DIRECTORY_LINE_SIZE, StateNeeds::default());
        let mut allocation = self.reserve(DIRECTORY_BYTES, form, Requester::Dead)?;
        self.announce_free(None);
        let mut budget = Budget::SLICE;
        // Within one slice whatever else arrives in this poll, so that later requests find it complete.
        let ready = allocation.advance(&self.lines, &mut budget, &mut self.homes.jobs.touched);
        debug_assert!(ready, "the directory is smaller than a slice");
        let directory = (allocation.start.address(), allocation.lines);
        self.homes.directory_position = self.log_directory(directory.0, directory.1)?;
        self.homes.directory = Some(directory);
        Ok(directory)
    }

    /// Bytes of all allocations that this node is home of.
    pub(crate) fn used_bytes(&self) -> u64 {
        self.homes.allocator.used_bytes()
    }

    /// Free memory of a home, as last reported.
    pub(crate) fn free_bytes_of(&self, node: NodeId) -> u64 {
        self.homes.placement.free_bytes(node).unwrap_or(0)
    }

    /// Whether a poll would advance an allocation or free.
    pub(crate) fn has_slices(&self) -> bool {
        self.homes.is_runnable()
    }

    /// Chooses a home for an allocation, other than those that are `full`, and those whose state is not what it needs.
    ///
    /// # Errors
    /// `OutOfMemory`; `NoState` without a member with state where one is needed.
    pub(crate) fn choose_home(
        &self,
        (hint, durability): (Hint, Durability),
        bytes: u64,
        (full, not_kept): (&NodeSet, &NodeSet),
    ) -> Result<NodeId, ErrorCode> {
        let members = || self.links.peers().iter().chain([self.me()]);
        let unfit = |node: &NodeId| {
            self.has_state(*node) != (durability != Durability::Volatile)
                || self.away.is_leaving(*node)
        };
        let me = self.me();
        let may_be = |node| !(not_kept.contains(node) || hint == Hint::Remote && node == me);
        let mut fitting = *full;
        let refused = members().filter(|node| not_kept.contains(*node) || unfit(node));
        refused.for_each(|node| _ = fitting.insert(node));
        if fitting == *full && durability == Durability::Volatile {
            return self.choose_any_home(hint, bytes, full);
        }
        match (self.choose_any_home(hint, bytes, &fitting), durability) {
            (Err(ErrorCode::OutOfMemory), Durability::Volatile) => {
                self.choose_any_home(hint, bytes, full)
            }
            (Err(ErrorCode::OutOfMemory), _) if hint == Hint::Local => {
                Err(if self.keeps_state() { ErrorCode::OutOfMemory } else { ErrorCode::NoState })
            }
            (Err(ErrorCode::OutOfMemory), _)
                if !members().any(|node| {
                    self.has_state(node) && may_be(node) && !self.away.is_leaving(node)
                }) =>
            {
                // The allocation waits for its return.
                let is_left = |node: &NodeId| !full.contains(*node) && may_be(*node);
                let away = self.membership.machine().kept().find(is_left);
                away.ok_or(ErrorCode::NoState)
            }
            (chosen, _) => chosen,
        }
    }

    /// Whether this node is one with state.
    pub(crate) fn has_state(&self, node: NodeId) -> bool {
        match node == self.me() {
            true => self.keeps_state(),
            false => self.membership.machine().keeps(node),
        }
    }

    fn choose_any_home(&self, hint: Hint, bytes: u64, full: &NodeSet) -> Result<NodeId, ErrorCode> {
        match self.homes.placement.choose(hint, bytes, full) {
            // The known free memory of the others may be stale or missing: before this fails, each is asked
            // directly.
            Err(ErrorCode::OutOfMemory) if hint != Hint::Local => {
                let unasked = self.links.peers().iter().find(|node| !full.contains(*node));
                unasked.ok_or(ErrorCode::OutOfMemory)
            }
            chosen => chosen,
        }
    }

    /// Performs a request of a peer, which may be for the directory.
    fn allocate_for(&mut self, request: PeerRequest) {
        let PeerRequest { from, ticket, bytes, line_size, flags } = request;
        let requester = Requester::Node(from, ticket);
        match flags.directory {
            true => self.directory_here(requester),
            false => self.allocate_here(bytes, (line_size, flags.needs), requester),
        }
    }

    fn ask(
        &mut self,
        node: NodeId,
        operation: OperationId,
        message: impl FnOnce(Ticket) -> AllocateMessage,
    ) {
        if let Some(code) = self.refusal_of(node) {
            return self.finish(operation, Err(code));
        }
        let ticket = Ticket(self.homes.number());
        self.homes.asked.insert(ticket, (operation, node));
        self.send_allocate(node, &message(ticket));
    }

    fn send_allocate(&mut self, to: NodeId, message: &AllocateMessage) {
        self.links.push(to, message.class(), Family::Allocate, &message.encode());
    }

    /// Whether this node keeps its memory as an allocation needs it.
    pub(super) fn meets(&self, needs: StateNeeds) -> bool {
        let report = if needs.state { self.state_report() } else { return true };
        report.is_some_and(|state| state.meets(needs))
    }

    /// Reserves a block at this home and prepares its lines, at once if there are few.
    fn allocate_here(
        &mut self,
        bytes: u64,
        (line_size, needs): (LineSize, StateNeeds),
        requester: Requester,
    ) {
        if !self.meets(needs) {
            return self.answer_allocate(requester, Err(ErrorCode::NoState));
        }
        let mut allocation = match self.reserve(bytes, (line_size, needs), requester) {
            Ok(allocation) => allocation,
            Err(code) => return self.answer_allocate(requester, Err(code)),
        };
        self.announce_free(None);
        let jobs = &mut self.homes.jobs;
        if allocation.fits(jobs.arriving)
            && allocation.advance(&self.lines, &mut jobs.arriving, &mut jobs.touched)
        {
            return self.allocated(&allocation);
        }
        let number = self.homes.number();
        self.homes.jobs.add(number, allocation);
    }

    fn reserve(
        &mut self,
        bytes: u64,
        (line_size, needs): (LineSize, StateNeeds),
        requester: Requester,
    ) -> Result<Allocation, ErrorCode> {
        if bytes > self.homes.allocation_bytes_max {
            return Err(ErrorCode::TooLarge);
        }
        let block = self.homes.allocator.allocate(bytes, line_size)?;
        let memory = self.lines.memory().ok_or(ErrorCode::OutOfMemory)?;
        let address = GlobalAddress::new_in(memory, line_size, block.offset)
            .map_err(|_| ErrorCode::OutOfMemory)?;
        let whole_bytes = bytes.next_multiple_of(WORD);
        let position = self.log_allocation(address, block.lines, whole_bytes)?;
        let end = block.offset + block.lines * line_size.bytes() as u64;
        let stale_to = self.homes.used_to.clamp(block.offset, end);
        self.homes.used_to = self.homes.used_to.max(end);
        Ok(Allocation {
            start: address.line(),
            lines: block.lines,
            bytes: whole_bytes,
            stale_to,
            level: self.rest_level(),
            position,
            done: 0,
            requester,
            needs,
        })
    }

    /// The level of this home's own lines at rest.
    const fn rest_level(&self) -> Level {
        match self.state {
            Some(_) => Level::Shared,
            None => Level::Dirty,
        }
    }

    /// Takes over what was kept: contents, allocations, and the directory of named roots.
    ///
    /// # Errors
    /// `LogDamaged` if it is not what an earlier engine can have kept.
    pub(super) fn restore_memory(&mut self) -> Result<(), Error> {
        let Some(state) = &self.state else {
            return Ok(());
        };
        let damaged = |what: &str| Error::with(ErrorCode::LogDamaged, what.to_owned());
        let memory =
            self.lines.memory().ok_or_else(|| damaged("state of a node without memory"))?;
        for (offset, kept) in state.memory().allocations() {
            let size = LineSize::from_class(kept.class);
            let size = size.ok_or_else(|| damaged("an allocation in lines of an unknown size"))?;
            let block = Block { offset, lines: kept.lines };
            let restored = self.homes.allocator.restore(block, size);
            let start = GlobalAddress::new_in(memory, size, offset);
            let (Ok(()), Ok(start)) = (restored, start) else {
                return Err(damaged("two allocations of the same bytes"));
            };
            let (from, bytes) = (offset as usize, (kept.lines as usize) << size.log2());
            let image = state.memory().image().get(from..from + bytes);
            let written = image.map(|image| self.lines.home().write(offset, image));
            if !matches!(written, Some(Ok(()))) {
                return Err(damaged("an allocation outside the memory"));
            }
            self.homes.used_to = self.homes.used_to.max(offset + bytes as u64);
            let whole = Allocation {
                start: start.line(),
                lines: kept.lines,
                bytes: kept.bytes,
                stale_to: 0,
                level: Level::Shared,
                position: 0,
                done: 0,
                requester: Requester::Dead,
                needs: StateNeeds::default(),
            };
            (0..kept.lines).for_each(|number| whole.set_tag(&self.lines, number));
            if state.memory().directory().is_some_and(|(directory, _)| directory == offset) {
                self.homes.directory = Some((start, kept.lines));
            }
        }
        self.homes.placement.note_own(self.homes.allocator.free_bytes());
        Ok(())
    }

    fn start_free(&mut self, operation: OperationId, address: GlobalAddress) {
        if let Some(code) = self.refusal_at(address.line()) {
            // Not one that its home may have received already: that may have freed the memory.
            if code != ErrorCode::HomeAway || !self.wait_for_home(operation) {
                self.finish(operation, Err(code));
            }
            return;
        }
        if address.home() == self.me() {
            return self.free_here(address, Requester::Operation(operation));
        }
        self.ask(address.home(), operation, |ticket| AllocateMessage::Free { ticket, address });
    }

    pub(super) fn answer_allocate(
        &mut self,
        requester: Requester,
        outcome: Result<(GlobalAddress, u64), ErrorCode>,
    ) {
        match (requester, outcome) {
            (Requester::Operation(operation), Ok((address, _))) => {
                self.finish_with(operation, address.to_bits());
            }
            (Requester::Operation(operation), Err(code)) => self.finish(operation, Err(code)),
            (Requester::Node(node, ticket), Ok((address, lines))) => {
                self.send_allocate(node, &AllocateMessage::Allocated { ticket, address, lines });
            }
            (Requester::Node(node, ticket), Err(code)) => {
                self.send_allocate(node, &AllocateMessage::Refused { ticket, code });
            }
            (Requester::Dead, _) => {}
        }
    }

    pub(super) fn answer_free(&mut self, requester: Requester, outcome: Result<(), ErrorCode>) {
        match (requester, outcome) {
            (Requester::Operation(operation), outcome) => self.finish(operation, outcome),
            (Requester::Node(node, ticket), Ok(())) => {
                self.send_allocate(node, &AllocateMessage::Freed { ticket });
            }
            (Requester::Node(node, ticket), Err(code)) => {
                self.send_allocate(node, &AllocateMessage::Refused { ticket, code });
            }
            (Requester::Dead, _) => {}
        }
    }

    /// Announces this node's free memory: to one node if that is new, to all when it has changed by a
    /// sixteenth (004 §2.1: statistics synchronised from time to time).
    pub(crate) fn announce_free(&mut self, only: Option<NodeId>) {
        let free = if self.keeps_and_leaves() { 0 } else { self.homes.free_bytes() };
        let told = self.homes.placement.note_own(free);
        match (only, told) {
            (Some(node), _) => {
                self.send_allocate(node, &AllocateMessage::FreeBytes { bytes: free })
            }
            (None, Some(bytes)) => {
                let peers: Vec<NodeId> = self.links.peers().iter().collect();
                for node in peers {
                    self.send_allocate(node, &AllocateMessage::FreeBytes { bytes });
                }
            }
            (None, None) => {}
        }
    }

    /// Whether an allocation need not be at the home that was asked.
    fn may_be_elsewhere(&self, operation: OperationId) -> bool {
        let kind = self.sessions.request(operation).map(|(kind, _)| kind);
        matches!(kind, Some(OperationKind::Allocate { elsewhere: true, .. }))
    }

    /// Announces that this home allocates nothing any more: it leaves.
    pub(super) fn announce_full(&mut self) {
        let peers: Vec<NodeId> = self.links.peers().iter().collect();
        for node in peers {
            self.send_allocate(node, &AllocateMessage::FreeBytes { bytes: 0 });
        }
    }

    pub(crate) fn allocate_message(
        &mut self,
        from: NodeId,
        body: &[u8; BODY],
    ) -> Result<(), Violation> {
        match AllocateMessage::decode(body)? {
            AllocateMessage::Allocate { ticket, bytes, line_size, flags } => {
                let request = PeerRequest { from, ticket, bytes, line_size, flags };
                if self.keeps_and_leaves() {
                    let refused = Err(ErrorCode::HomeAway);
                    self.answer_allocate(Requester::Node(from, ticket), refused);
                    return Ok(());
                }
                match self.membership.is_ready() {
                    true => self.allocate_for(request),
                    false => self.homes.early.push(request),
                }
            }
            AllocateMessage::Free { ticket, address } => {
                if address.home() != self.me() {
                    return Err(Violation("free at a node that is not the home"));
                }
                self.check_generation(address.line())?;
                if self.keeps_and_leaves() {
                    let refused = Err(ErrorCode::HomeAway);
                    self.answer_free(Requester::Node(from, ticket), refused);
                    return Ok(());
                }
                self.free_here(address, Requester::Node(from, ticket));
            }
            AllocateMessage::Allocated { ticket, address, lines } => {
                self.check_allocated(from, ticket, (address, lines))?;
                let operation = self.asked(from, ticket)?;
                self.finish_with(operation, address.to_bits());
            }
            AllocateMessage::Freed { ticket } => {
                let operation = self.asked(from, ticket)?;
                self.finish(operation, Ok(()));
            }
            AllocateMessage::Refused { ticket, code } => {
                let operation = self.asked(from, ticket)?;
                if code == ErrorCode::HomeAway {
                    self.away.leaves(from);
                    if self.may_be_elsewhere(operation) {
                        self.finish(operation, Err(ErrorCode::OutOfMemory)); // the next home is asked
                        return Ok(());
                    }
                    if self.wait_for_home(operation) {
                        return Ok(()); // a free too: nothing was freed
                    }
                }
                self.finish(operation, Err(code));
            }
            AllocateMessage::FreeBytes { bytes } => self.homes.placement.note(from, bytes),
        }
        Ok(())
    }

    /// Whether this home leaves, will return, and no longer waits for its locks: what it would log now might not be answered.
    fn keeps_and_leaves(&self) -> bool {
        self.is_leaving() && self.will_return() && !self.awaits_unlocks()
    }

    /// Announces the free memory of this node, which is ready now, and performs the early requests.
    pub(crate) fn lend_memory(&mut self) {
        self.log_identity();
        let peers: Vec<NodeId> = self.links.peers().iter().collect();
        peers.into_iter().for_each(|node| self.announce_free(Some(node)));
        for request in std::mem::take(&mut self.homes.early) {
            self.allocate_for(request);
        }
    }

    /// The number of segments of this home.
    pub(crate) fn home_segments(&self) -> usize {
        self.homes.allocator.segments()
    }

    /// Returns the blocks of this home that start in a segment; some may be in the course of being allocated or freed.
    pub(crate) fn blocks_in(&self, segment: usize) -> Vec<(Block, LineSize)> {
        self.homes.allocator.blocks_in(segment)
    }

    /// The number of lines of this home that were lost with their owners, and not freed.
    pub(crate) fn lines_lost(&self) -> u64 {
        self.coherence.machine().lines_lost() as u64
    }

    /// Returns the offset and the lines of the directory of named roots, if this node is its home.
    pub(crate) fn directory_of_names(&self) -> Option<(u64, u64)> {
        let is_home = self.membership.machine().directory_home() == Some(self.me());
        let directory = self.homes.directory.filter(|_| is_home);
        directory.map(|(address, lines)| (address.offset(), lines))
    }

    /// Refuses an address outside the memory that its home lends, or that does not match the request.
    fn check_allocated(
        &self,
        from: NodeId,
        ticket: Ticket,
        (address, lines): (GlobalAddress, u64),
    ) -> Result<(), Violation> {
        let asked = self.homes.asked.get(&ticket).filter(|(_, node)| *node == from);
        let Some((operation, _)) = asked else {
            return Ok(()); // refused as an answer without a request
        };
        let (bytes, class) = match self.sessions.request(*operation) {
            Some((OperationKind::Allocate { bytes, class, .. }, _)) => (bytes, class),
            Some((OperationKind::Directory { .. }, _)) => {
                (DIRECTORY_BYTES, DIRECTORY_LINE_SIZE.class())
            }
            Some(_) => return Err(Violation("allocation in answer to a free")),
            None => return Ok(()),
        };
        let line_bytes = address.line_size().bytes() as u64;
        let room = self.links.peers().home_bytes(from);
        let end = lines.checked_mul(line_bytes).and_then(|b| address.offset().checked_add(b));
        let is_whole = address.offset_in_line() == 0
            && address.line_size().class() == class
            && lines == bytes.div_ceil(line_bytes);
        if !self.lends(address.memory()) || address.home() != from {
            return Err(Violation("allocation in memory that its home does not lend"));
        }
        if !is_whole || end.is_none_or(|end| end > room) {
            return Err(Violation("allocation that does not match its request"));
        }
        Ok(())
    }

    fn asked(&mut self, from: NodeId, ticket: Ticket) -> Result<OperationId, Violation> {
        match self.homes.asked.remove(&ticket) {
            Some((operation, node)) if node == from => Ok(operation),
            _ => Err(Violation("answer without a request")),
        }
    }

    /// Handles the death of a node: requests to it fail, and its requests here end without an answer.
    pub(crate) fn home_dead(&mut self, node: NodeId) {
        self.homes.placement.remove(node);
        self.homes.jobs.node_dead(node);
        self.requester_dead(node);
        self.homes.early.retain(|request| request.from != node);
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
