//! Allocations and frees in progress at their home, carried out in slices.
//!
//! An allocation zeroes previously used memory and sets the tag of each line; a free clears each tag and
//! recalls every copy of the line. Both take time in proportion to their lines. A poll of the engine
//! therefore does at most one [`Budget::SLICE`] for requests that arrive and one for a job in progress, in
//! round robin. Between two polls the node serves its peers and its other sessions.
//!
//! Invariants:
//! - The tag of an allocation's first line is set last and cleared first. An address is freed by its first
//!   line, so nothing can be freed before `alloc` has returned it, or twice.
//! - A free has at most [`RECALLS_MAX`] lines that wait for their holders.
//! - A block returns to the allocator when no line of it is held by any node.

use super::{FreedBlock, Homes};
use crate::ErrorCode;
use crate::engine::Engine;
use crate::engine::requester::Requester;
use crate::engine::state::AllocatedBlock;
use crate::hit::Lines;
use crate::operation::{home_number, home_operation};
use farside_base::{GlobalAddress, LineAddress, LineSize, NodeId, OperationId};
use farside_protocol::allocate::StateNeeds;
use farside_protocol::coherence::{CoherenceEvent, Extent, Here, Level};
use std::collections::{BTreeMap, VecDeque};

/// The work limit of one slice.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Budget {
    /// Lines whose tags change.
    pub(super) lines: u64,
    /// Bytes that are zeroed.
    pub(super) bytes: u64,
}

impl Budget {
    /// Some tens of microseconds.
    pub(super) const SLICE: Self = Self { lines: 256, bytes: 128 << 10 };
}

const _: () = assert!(Budget::SLICE.bytes >= LineSize::MAX.bytes() as u64);

/// Lines of one free that wait for acknowledgements at a time: enough to hide a round trip, few enough to
/// keep message queues short.
pub(super) const RECALLS_MAX: u64 = 128;

/// An allocation whose block is reserved.
#[derive(Clone, Copy, Debug)]
pub(super) struct Allocation {
    pub(super) start: LineAddress,
    pub(super) lines: u64,
    /// Requested bytes, in whole words.
    pub(super) bytes: u64,
    /// Offset in the home's memory up to which the block may contain bytes of earlier allocations.
    pub(super) stale_to: u64,
    /// The level of its lines at rest.
    pub(super) level: Level,
    /// The position of its record in the log of a home with state.
    pub(super) position: u64,
    /// Lines that are ready, from the front; the tag of the first is set when all are.
    pub(super) done: u64,
    pub(super) requester: Requester,
    pub(super) needs: StateNeeds,
}

impl Allocation {
    fn line_bytes(&self) -> u64 {
        self.start.line_size().bytes() as u64
    }

    fn stale_bytes(&self, from: u64) -> u64 {
        self.stale_to.saturating_sub(from)
    }

    /// Whether the rest of it fits into one budget.
    pub(super) fn fits(&self, budget: Budget) -> bool {
        let from = self.start.offset() + self.done * self.line_bytes();
        self.lines - self.done <= budget.lines && self.stale_bytes(from) <= budget.bytes
    }

    /// Prepares lines within the budget; true when all are ready.
    pub(super) fn advance(
        &mut self,
        lines: &Lines,
        budget: &mut Budget,
        touched: &mut Budget,
    ) -> bool {
        let line_bytes = self.line_bytes();
        let from = self.start.offset() + self.done * line_bytes;
        let mut count = (self.lines - self.done).min(budget.lines);
        let mut zeroed = self.stale_bytes(from).min(count * line_bytes);
        if zeroed > budget.bytes {
            count = budget.bytes / line_bytes;
            zeroed = count * line_bytes;
        }
        let done = lines.home().zero(from, zeroed as usize);
        debug_assert!(done.is_ok(), "the allocator stays within the memory");
        for number in self.done.max(1)..self.done + count {
            self.set_tag(lines, number);
        }
        self.done += count;
        for (budget, sign) in [(budget, -1_i64), (touched, 1)] {
            budget.lines = budget.lines.wrapping_add_signed(sign * count as i64);
            budget.bytes = budget.bytes.wrapping_add_signed(sign * zeroed as i64);
        }
        let ready = self.done == self.lines;
        if ready {
            self.set_tag(lines, 0);
        }
        ready
    }

    pub(super) fn set_tag(&self, lines: &Lines, number: u64) {
        let line_bytes = self.line_bytes();
        let left = self.bytes - number * line_bytes;
        let extent = Extent { first: number == 0, bytes: left.min(line_bytes) as u32 };
        if let Some(line) = self.start.checked_add(number) {
            lines.set_own(line, self.level, Some(extent));
        }
    }
}

/// An allocation that is being freed: each of its lines is recalled from all nodes first (V13: memory is
/// not reused while any node holds it).
#[derive(Clone, Copy, Debug)]
struct Freeing {
    start: LineAddress,
    /// Lines from the front whose recall has started.
    walked: u64,
    /// Of these, lines that wait for acknowledgements.
    outstanding: u64,
    /// The walk has reached the end of the allocation.
    at_end: bool,
    /// It is not runnable until recalls have ended.
    parked: bool,
    /// A removed node that may still write held one of its lines.
    quarantined: bool,
    requester: Requester,
}

#[derive(Clone, Copy, Debug)]
enum Job {
    Allocate(Allocation),
    Free(Freeing),
}

/// The allocations and frees in progress of one home.
#[derive(Debug)]
pub(super) struct Jobs {
    jobs: BTreeMap<u64, Job>,
    /// Jobs that a slice can advance, the next one first.
    runnable: VecDeque<u64>,
    /// The budget that requests may still use in this poll.
    pub(super) arriving: Budget,
    /// The work of all slices so far.
    pub(super) touched: Budget,
}

impl Jobs {
    pub(super) fn new() -> Self {
        Self {
            jobs: BTreeMap::new(),
            runnable: VecDeque::new(),
            arriving: Budget::SLICE,
            touched: Budget { lines: 0, bytes: 0 },
        }
    }

    pub(super) fn is_runnable(&self) -> bool {
        !self.runnable.is_empty()
    }

    /// Drops all jobs: the node has left, and its memory with it.
    pub(super) fn clear(&mut self) {
        self.jobs.clear();
        self.runnable.clear();
    }

    pub(super) fn add(&mut self, number: u64, allocation: Allocation) {
        self.jobs.insert(number, Job::Allocate(allocation));
        self.runnable.push_back(number);
    }

    /// Handles the death of a requester. Its frees continue; its allocations too, and are freed at their
    /// end.
    pub(super) fn node_dead(&mut self, node: NodeId) {
        for job in self.jobs.values_mut() {
            let (Job::Allocate(Allocation { requester, .. })
            | Job::Free(Freeing { requester, .. })) = job;
            if matches!(requester, Requester::Node(from, _) if *from == node) {
                *requester = Requester::Dead;
            }
        }
    }

    /// Notes that a removed node that may still write held a line of this free.
    fn quarantine(&mut self, number: u64) {
        if let Some(Job::Free(freeing)) = self.jobs.get_mut(&number) {
            freeing.quarantined = true;
        }
    }

    /// Notes that no node holds one line of a free any more.
    pub(super) fn retired(&mut self, number: u64) {
        let Some(Job::Free(freeing)) = self.jobs.get_mut(&number) else {
            return;
        };
        freeing.outstanding -= 1;
        let resumes =
            freeing.outstanding == 0 || (!freeing.at_end && freeing.outstanding <= RECALLS_MAX / 2);
        if freeing.parked && resumes {
            freeing.parked = false;
            self.runnable.push_back(number);
        }
    }

    /// The next line that a free recalls; none if enough are in flight or it has reached its end.
    fn next_line(&mut self, lines: &Lines, number: u64) -> Option<LineAddress> {
        let Some(Job::Free(freeing)) = self.jobs.get_mut(&number) else {
            return None;
        };
        if freeing.at_end || freeing.outstanding >= RECALLS_MAX {
            return None;
        }
        let continues = |line: &LineAddress| lines.here(*line).1.is_some_and(|here| !here.first);
        let next = freeing.start.checked_add(freeing.walked);
        let next = next.filter(|line| freeing.walked == 0 || continues(line));
        freeing.at_end = next.is_none();
        next.inspect(|_| {
            freeing.walked += 1;
            freeing.outstanding += 1;
        })
    }

    /// Queues a free after its slice, or parks it; removes it when it is complete.
    fn end_slice(&mut self, number: u64) -> Option<Freeing> {
        let Some(Job::Free(freeing)) = self.jobs.get_mut(&number) else {
            return None;
        };
        if freeing.at_end && freeing.outstanding == 0 {
            let complete = *freeing;
            self.jobs.remove(&number);
            return Some(complete);
        }
        freeing.parked = freeing.at_end || freeing.outstanding >= RECALLS_MAX;
        if !freeing.parked {
            self.runnable.push_back(number);
        }
        None
    }
}

impl Homes {
    /// Whether a poll would advance an allocation or free.
    pub(crate) fn is_runnable(&self) -> bool {
        self.jobs.is_runnable()
    }

    /// Quarantines the frees in progress, whose lines a removed node that may still write may have held.
    pub(crate) fn quarantine_frees(&mut self) {
        for job in self.jobs.jobs.values_mut() {
            if let Job::Free(freeing) = job {
                freeing.quarantined = true;
            }
        }
    }

    /// Whether an allocation or a free is in progress.
    pub(crate) fn has_jobs(&self) -> bool {
        !self.jobs.jobs.is_empty()
    }

    /// Notes that no node holds one line of a free any more.
    pub(crate) fn retired(&mut self, operation: OperationId) {
        self.jobs.retired(home_number(operation));
    }
}

impl Engine {
    /// Runs one slice of the job that has waited longest; false when there is none.
    pub(crate) fn allocation_slice(&mut self) -> bool {
        self.homes.jobs.arriving = Budget::SLICE;
        let Some(number) = self.homes.jobs.runnable.pop_front() else {
            return false;
        };
        let mut budget = Budget::SLICE;
        match self.homes.jobs.jobs.get(&number).copied() {
            Some(Job::Allocate(mut allocation)) => {
                let touched = &mut self.homes.jobs.touched;
                if allocation.advance(&self.lines, &mut budget, touched) {
                    self.homes.jobs.jobs.remove(&number);
                    self.allocated(&allocation);
                } else {
                    self.homes.jobs.add(number, allocation);
                }
            }
            Some(Job::Free(_)) => self.free_slice(number, &mut budget),
            None => {}
        }
        true
    }

    /// Completes an allocation whose lines are all ready.
    pub(super) fn allocated(&mut self, allocation: &Allocation) {
        let address = allocation.start.address();
        match allocation.requester {
            Requester::Dead => self.free_here(address, Requester::Dead),
            requester => {
                let Allocation { lines, needs, position, .. } = *allocation;
                self.answer_durably(requester, AllocatedBlock { address, lines, needs }, position);
            }
        }
    }

    /// Frees an allocation of this home once no node holds a line of it any more.
    pub(in crate::engine) fn free_here(&mut self, address: GlobalAddress, requester: Requester) {
        let start = address.line();
        let is_first = self.lines.here(start).1.is_some_and(|extent| extent.first);
        let is_directory = self.homes.directory.is_some_and(|(start, _)| start == address);
        if address.offset_in_line() != 0 || !is_first || is_directory {
            return self.answer_free(requester, Err(ErrorCode::NotAnAllocation));
        }
        self.lines.set_own(start, Level::Invalid, None);
        let number = self.homes.number();
        let freeing = Freeing {
            start,
            walked: 0,
            outstanding: 0,
            at_end: false,
            parked: false,
            quarantined: false,
            requester,
        };
        self.homes.jobs.jobs.insert(number, Job::Free(freeing));
        let mut budget = self.homes.jobs.arriving;
        self.free_slice(number, &mut budget);
        self.homes.jobs.arriving = budget;
    }

    fn free_slice(&mut self, number: u64, budget: &mut Budget) {
        let operation = home_operation(number);
        while budget.lines > 0
            && let Some(line) = self.homes.jobs.next_line(&self.lines, number)
        {
            budget.lines -= 1;
            self.homes.jobs.touched.lines += 1;
            self.lines.set_own(line, Level::Invalid, None);
            if self.lookout.lingering_count() > 0 && self.coherence.machine().is_lost(line) {
                self.homes.jobs.quarantine(number);
            }
            self.step_own(CoherenceEvent::Retire { operation, line, here: Here::default() });
            self.retire_locks(line);
        }
        let Some(Freeing { start, walked, requester, quarantined, .. }) =
            self.homes.jobs.end_slice(number)
        else {
            return;
        };
        let (offset, line_size) = (start.offset(), start.line_size());
        let freed = match quarantined && self.lookout.lingering_count() > 0 {
            true => {
                self.homes.quarantine.push(FreedBlock { offset, lines: walked, line_size });
                Ok(())
            }
            false => self.homes.allocator.free(offset, walked, line_size),
        };
        self.announce_free(None);
        self.log_free(requester, offset, freed);
    }
}

#[cfg(test)]
#[path = "slices_tests.rs"]
mod tests;
