//! Completions of the adapter and of ending links, in the order for polling.

use super::link::{LinkState, RequestEntry, VerbsLink};
use super::receive_queues::{RECEIVE, ReceiveSlot};
use super::staged::{Frees, Staged};
use super::{POLL_BATCH, VerbsPort};
use crate::core::{Command, LEASE_TICKS};
use crate::ffi::WorkCompletion;
use crate::ffi::types::{IBV_WC_RECV_RDMA_WITH_IMM, IBV_WC_WITH_IMM};
use crate::intake;
use crate::status::{self, numbers};
use farside_base::{Completion, CompletionKind, CompletionStatus, LinkId};
use farside_fabric::{LinkEvent, Loss};
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A path slower than a megabyte a second counts as broken: a request has the lease, and the time that
/// its bytes take at this rate.
const SLOWEST_BYTES_PER_US: u64 = 1;

pub(super) fn ended(entry: &RequestEntry, link: LinkId, status: CompletionStatus) -> Completion {
    let bytes = if status == CompletionStatus::Success { entry.bytes } else { 0 };
    Completion { id: entry.id, link, bytes, immediate: None, kind: entry.kind, status }
}

impl VerbsPort {
    #[inline]
    pub(super) fn stage(&mut self, staged: Staged) {
        self.staged.push_back(staged);
        self.staged_total += 1;
    }

    #[inline]
    pub(super) fn poll_into(&mut self, out: &mut [Completion]) -> usize {
        if self.inbox.is_filled() {
            self.absorb();
        }
        let mut count = 0;
        while count < out.len() {
            if self.staged.is_empty() {
                self.gather();
            }
            let Some(staged) = self.staged.pop_front() else {
                self.look_at_deadlines();
                break;
            };
            match staged.frees {
                Frees::Room => {
                    if let Some(link) = self.links.find(staged.completion.link) {
                        link.unpolled -= 1;
                    }
                }
                Frees::Orphan => self.orphans -= 1,
                Frees::Receive(slot) => self.queues.give_back(slot),
                Frees::Nothing => {}
            }
            out[count] = staged.completion;
            count += 1;
        }
        self.polled_total += count as u64;
        count
    }

    /// Checks every source of events, for a port that is about to sleep.
    pub(super) fn look_again(&mut self) {
        if self.inbox.is_filled() {
            self.absorb();
        }
        self.gather();
        self.look_at_deadlines();
    }

    /// Takes all that the adapter has.
    pub(super) fn gather(&mut self) {
        loop {
            let count = match self.inbox.intake.take(&mut self.batch) {
                Ok(count) => count,
                Err(error) => {
                    return self.break_down(&format!("the completion queue is broken: {error}"));
                }
            };
            for at in 0..count {
                let completion = self.batch[at];
                if completion.wr_id & RECEIVE != 0 {
                    self.take_receive(&completion);
                } else {
                    self.take_sent(&completion);
                }
            }
            if count < POLL_BATCH {
                return;
            }
        }
    }

    /// Handles a message or immediate that took a receive.
    #[inline]
    fn take_receive(&mut self, done: &WorkCompletion) {
        if let Some(token) = intake::binds(done.wr_id) {
            return self.core.command(Command::Bound { token, status: done.status });
        }
        let slot = ReceiveSlot::of(done.wr_id);
        let Some(link) = self.pairs.get(&done.qp_num).copied() else {
            // Of a link that was closed before: the receive is as good as new.
            return self.queues.post_again(slot);
        };
        let status = match done.status {
            numbers::SUCCESS => CompletionStatus::Success,
            // Adapters differ in which of these they report to the receiver of too long a message.
            numbers::LOC_LEN_ERR | numbers::LOC_QP_OP_ERR | numbers::REM_INV_REQ_ERR => {
                CompletionStatus::LengthExceeded
            }
            // Its region was ended.
            numbers::LOC_PROT_ERR => CompletionStatus::Broken,
            numbers::LOC_ACCESS_ERR | numbers::REM_ACCESS_ERR => {
                // It was taken from the queue for a WRITE with immediate that was refused.
                self.queues.post_again(slot);
                return self.refuses(link, status::completion(done.status).to_string());
            }
            // It was taken from the queue for a request that failed, or by a link that broke.
            _ => return self.queues.post_again(slot),
        };
        let Some(id) = self.queues.name(slot) else {
            return;
        };
        let success = status == CompletionStatus::Success;
        let immediate = success && done.wc_flags & IBV_WC_WITH_IMM != 0;
        let written = success && done.opcode == IBV_WC_RECV_RDMA_WITH_IMM;
        let completion = Completion {
            id,
            link,
            bytes: if success { done.byte_len } else { 0 },
            immediate: immediate.then(|| u32::from_be(done.imm_data)),
            kind: match written {
                true => CompletionKind::ReceiveImmediate,
                false => CompletionKind::Receive,
            },
            status,
        };
        self.stage(Staged { completion, frees: Frees::Receive(slot) });
        if !success {
            self.refuses(link, status::completion(done.status).to_string());
        }
    }

    /// Handles the completion of a request of this port, and of the unsignaled ones before it.
    #[inline]
    fn take_sent(&mut self, done: &WorkCompletion) {
        let id = LinkId((done.wr_id >> 32) as u32);
        // A link that is down was flushed already.
        let Some(link) = self.links.find(id).filter(|link| !link.is_down()) else {
            return;
        };
        let Some(older) = link.older_than(done.wr_id as u32) else {
            return;
        };
        if done.status == numbers::WR_FLUSH_ERR {
            // Something else broke the queue pair.
            return self.flushed(id);
        }
        if self.core.device.confirmation.is_some() {
            return self.take_confirmed(id, done, older);
        }
        for _ in 0..older {
            // Unsignaled ones before it are done too, or they would have completed before.
            link.pop();
        }
        if done.status != numbers::SUCCESS {
            let row = status::completion(done.status);
            let vendor = done.vendor_err;
            let words = format!("{row} (vendor's error {vendor:#x})");
            if row.status == CompletionStatus::Unreachable {
                return self.unanswered(id, words);
            }
            let status = link.in_flight.front().map_or(row.status, |entry| meant(entry, &row));
            return self.fail(id, status, Some(words));
        }
        let Some(entry) = link.pop() else {
            return;
        };
        link.since = self.core.ticks.load(Ordering::Relaxed);
        if entry.signalled {
            link.unpolled += 1;
            self.stage(Staged::of_link(ended(&entry, id, CompletionStatus::Success)));
        }
    }

    /// Takes a link down by its own failure: the oldest request reports the cause, the rest is flushed.
    #[cold]
    pub(super) fn fail(&mut self, id: LinkId, status: CompletionStatus, words: Option<String>) {
        self.take_link_down(id, status, words);
        if status == CompletionStatus::Unreachable {
            self.say_lost(id, Loss::Unreachable);
            if let Some(link) = self.links.find(id) {
                let token = link.token;
                self.core.command(Command::Close { token });
            }
        }
    }

    fn take_link_down(&mut self, id: LinkId, status: CompletionStatus, words: Option<String>) {
        let Some(link) = self.links.find(id).filter(|link| !link.is_down()) else {
            return;
        };
        if let Some(handle) = &link.handle {
            handle.fail();
        }
        link.trouble = words;
        let mut first = Some(status).filter(|status| *status != CompletionStatus::Flushed);
        let mut entries = std::mem::take(&mut link.in_flight);
        let real = entries.iter().filter(|entry| !entry.probe);
        for entry in real {
            let status = first.take().unwrap_or(CompletionStatus::Flushed);
            self.staged.push_back(Staged::of_link(ended(entry, id, status)));
            self.staged_total += 1;
            link.unpolled += 1;
        }
        entries.clear();
        link.in_flight = entries;
        (link.told, link.untold, link.asks) = (0, 0, 0);
        link.state = LinkState::Down { first };
    }

    /// Takes a link down because its peer or the path to it is gone.
    pub(super) fn lose(&mut self, id: LinkId, loss: Loss, status: CompletionStatus, words: String) {
        // Requests done, and messages received, before count.
        self.gather();
        self.take_link_down(id, status, Some(words));
        self.say_lost(id, loss);
    }

    /// Reports a link as lost, once, after everything that came before.
    pub(super) fn say_lost(&mut self, id: LinkId, loss: Loss) {
        let before = self.staged_total;
        if let Some(link) = self.links.find(id)
            && !std::mem::replace(&mut link.lost, true)
        {
            self.events.push_back((before, LinkEvent::Lost { link: id, loss }));
        }
    }

    /// Ends all links: the adapter or one of its queues has failed.
    #[cold]
    pub(super) fn break_down(&mut self, words: &str) {
        if self.broken.is_some() {
            return;
        }
        self.broken = Some(words.to_owned());
        let mut from = 0;
        while let Some((id, behind)) = self.links.next_from(from) {
            from = behind;
            self.take_link_down(id, CompletionStatus::Broken, Some(words.to_owned()));
            self.say_lost(id, Loss::Unreachable);
        }
    }

    /// Once a tick: links on which nothing was done for too long.
    #[inline]
    fn look_at_deadlines(&mut self) {
        let ticks = self.core.ticks.load(Ordering::Acquire);
        if ticks != self.looked {
            self.looked = ticks;
            self.end_overdue(ticks);
        }
    }

    #[cold]
    fn end_overdue(&mut self, ticks: u64) {
        let mut from = 0;
        while let Some((id, behind)) = self.links.next_from(from) {
            from = behind;
            let Some(link) = self.links.find(id) else {
                continue;
            };
            if link.state != LinkState::Up || link.in_flight.is_empty() {
                continue;
            }
            if link.spoilt.as_ref().is_some_and(|spoilt| ticks > spoilt.since + 1) {
                self.end_spoilt(id);
                continue;
            }
            let age = ticks.saturating_sub(link.since);
            if link.told == 0 {
                if age > 0 {
                    self.probe(id, ticks);
                }
            } else if age > LEASE_TICKS {
                self.end_late(id, age);
            }
        }
    }

    /// Ends a link without progress for longer than the lease and the time of its bytes.
    fn end_late(&mut self, id: LinkId, age: u64) {
        let (lease, patience) = (self.core.options.lease, self.core.options.patience);
        let Some(link) = self.links.find(id) else {
            return;
        };
        let bytes: u64 = link.in_flight.iter().map(|entry| u64::from(entry.bytes)).sum();
        let moving = Duration::from_micros(bytes / SLOWEST_BYTES_PER_US);
        let waits = waits_for_a_receive(link) && !link.refused_there;
        let most = if waits { patience } else { lease } + moving;
        if lease.saturating_mul(u32::try_from(age).unwrap_or(u32::MAX)) <= most * LEASE_TICKS as u32
        {
            return;
        }
        if waits {
            let words = status::completion(numbers::RNR_RETRY_EXC_ERR).to_string();
            self.fail(id, CompletionStatus::ReceiverNotReady, Some(words));
        } else {
            let words = "a request was not done within the lease, though the peer's fabric lives: \
                         look at the path, its MTU and GID, and at both adapters";
            self.unanswered(id, words.to_owned());
        }
    }
}

fn waits_for_a_receive(link: &VerbsLink) -> bool {
    link.in_flight.iter().any(|entry| entry.takes_receive)
}

/// Returns the status of a request that an adapter refused, by its kind.
pub(super) fn meant(entry: &RequestEntry, row: &status::StatusRow) -> CompletionStatus {
    let refused = row.status == CompletionStatus::RemoteAccess;
    match (refused, row.number) {
        (true, _) if entry.misaligned => CompletionStatus::RemoteAlignment,
        (true, numbers::REM_INV_REQ_ERR) if entry.takes_receive => CompletionStatus::LengthExceeded,
        // Some adapters report this for a message longer than its receive.
        (_, numbers::REM_OP_ERR) if entry.takes_receive => CompletionStatus::LengthExceeded,
        // A request longer than the adapter's longest, which is refused before.
        (_, numbers::LOC_LEN_ERR) => CompletionStatus::Broken,
        _ => row.status,
    }
}
