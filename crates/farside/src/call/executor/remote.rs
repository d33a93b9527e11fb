//! Accesses to remote memory. A call that waits for one has a block of scratch memory, where its requests find and
//! put their bytes.

use super::blocked::Awaited;
use super::{AccessOutcome, ActiveCall, Executor, SliceOutcome, WaitState};
use crate::call::memory::AccessDenied;
use crate::call::memory::remote::{BLOCK_BYTES, MemoryRequest, RemoteAccess, RemoteProgress};
use farside_base::CompletionStatus;
use farside_fabric::Arena;
use farside_rmc::helpers::{Call, status};
use farside_rmc::run::{Buffers, Request};
use std::collections::VecDeque;
use std::ops::ControlFlow::{Break, Continue};

/// A block of scratch memory.
#[derive(Clone, Copy, Debug, Default)]
struct ScratchBlock {
    /// Its requests in flight.
    awaited: u32,
    /// The call, unless it was stopped meanwhile.
    call: Option<usize>,
    failed: Option<CompletionStatus>,
}

/// Scratch memory of remote accesses, and their requests.
#[derive(Debug)]
pub(crate) struct ScratchPool {
    /// By block.
    arenas: Box<[Arena]>,
    blocks: Vec<ScratchBlock>,
    free: Vec<usize>,
    /// Requests to be posted, each with its block.
    posts: VecDeque<(MemoryRequest, usize)>,
    /// Requests of the present access; empty between accesses, reused to avoid allocation.
    requests: Vec<MemoryRequest>,
}

impl ScratchPool {
    /// Returns the blocks of an arena of a multiple of [`BLOCK_BYTES`] bytes.
    pub(crate) fn new(scratch: Option<&Arena>) -> Self {
        let block = |at: u64| scratch?.part(at * BLOCK_BYTES, BLOCK_BYTES as usize).ok();
        let arenas: Box<[_]> = (0..).map_while(block).collect();
        let blocks = arenas.len();
        Self {
            arenas,
            blocks: vec![ScratchBlock::default(); blocks],
            free: (0..blocks).rev().collect(),
            posts: VecDeque::new(),
            requests: Vec::new(),
        }
    }

    pub(super) fn has_free(&self) -> bool {
        !self.free.is_empty()
    }

    /// Queues the requests of the present access.
    fn queue(&mut self, block: usize) {
        self.posts.extend(self.requests.drain(..).map(|request| (request, block)));
    }

    /// Returns the oldest request to be posted, with its block, whose bytes begin at the block's number times
    /// [`BLOCK_BYTES`].
    pub(crate) fn next_post(&self) -> Option<&(MemoryRequest, usize)> {
        self.posts.front()
    }

    /// Records that the oldest request was posted.
    pub(crate) fn posted(&mut self) {
        if let Some((_, block)) = self.posts.pop_front() {
            self.blocks[block].awaited += 1;
        }
    }
}

impl Executor {
    /// Records that the oldest request can never be posted.
    pub(crate) fn not_posted(&mut self) {
        if let Some((_, block)) = self.scratch.posts.pop_front() {
            let block = &mut self.scratch.blocks[block];
            block.failed = Some(CompletionStatus::PeerLost);
            block.call.into_iter().for_each(|at| self.blocked.wake(at));
        }
    }

    /// Records the completion of a request of a block.
    pub(crate) fn completed(&mut self, block: usize, status: CompletionStatus) {
        let blocks = &mut self.scratch.blocks;
        let Some(of) = blocks.get_mut(block).filter(|of| of.awaited > 0) else { return };
        of.awaited -= 1;
        if status != CompletionStatus::Success && of.failed.is_none() {
            of.failed = Some(status);
        }
        if of.awaited > 0 {
            return;
        }
        match of.call {
            Some(at) => self.blocked.wake(at),
            None => {
                self.scratch.free.push(block);
                self.blocked.wake_those(Awaited::Block, 1);
            }
        }
    }

    /// Frees a block; it is reused once its requests have completed.
    pub(super) fn free_block(&mut self, block: usize) {
        self.scratch.posts.retain(|(_, of)| *of != block);
        self.scratch.blocks[block].call = None;
        if self.scratch.blocks[block].awaited == 0 {
            self.scratch.free.push(block);
            self.blocked.wake_those(Awaited::Block, 1);
        }
    }

    /// Begins a remote access.
    pub(super) fn begin_remote(
        &mut self,
        at: usize,
        running: &mut ActiveCall,
        request: &Request,
        mut buffers: Buffers<'_>,
        now_ns: u64,
    ) -> AccessOutcome {
        let scratch = &mut self.scratch;
        let Some(block) = scratch.free.pop() else {
            running.wait = WaitState::ScratchBlock;
            return Break(SliceOutcome::Waits);
        };
        let (arena, requests) = (&scratch.arenas[block], &mut scratch.requests);
        let memory = self.resources.memory.of(running.tenant);
        match RemoteAccess::begin(request, &mut buffers, memory, arena, requests) {
            Ok(access) => {
                let waits = request.call == Call::WaitWord;
                let until_ns = waits.then(|| now_ns.saturating_add(request.arguments[3]));
                scratch.blocks[block] = ScratchBlock { awaited: 0, call: Some(at), failed: None };
                running.wait = WaitState::Remote { access, block, until_ns };
                if scratch.requests.is_empty() {
                    return Continue(()); // nothing to request
                }
                scratch.queue(block);
                Break(SliceOutcome::Waits)
            }
            Err(denied) => {
                scratch.requests.clear();
                scratch.free.push(block);
                let why = match denied {
                    AccessDenied::Lost => status::PEER_LOST,
                    AccessDenied::NotPermitted | AccessDenied::NotLocal => status::NOT_PERMITTED,
                };
                self.denied(running, request, why)
            }
        }
    }

    /// Continues a remote access: completes it, or adds further requests.
    pub(super) fn poll_remote(
        &mut self,
        running: &mut ActiveCall,
        request: &Request,
        now_ns: u64,
        left: &mut usize,
        bytes: &mut Vec<u8>,
    ) -> AccessOutcome {
        let WaitState::Remote { access, block, until_ns } = &mut running.wait else {
            return Break(SliceOutcome::Waits);
        };
        let scratch = &mut self.scratch;
        let (block, late) = (*block, until_ns.is_some_and(|until_ns| until_ns <= now_ns));
        let ScratchBlock { awaited, failed, .. } = scratch.blocks[block];
        if awaited > 0 || scratch.posts.iter().any(|(_, of)| *of == block) {
            return Break(SliceOutcome::Waits);
        }
        let (arena, requests) = (&scratch.arenas[block], &mut scratch.requests);
        let memory = self.resources.memory.of(running.tenant);
        let progress = match failed {
            None => access.poll((memory, arena), (left, late), bytes, requests),
            Some(_) => Err(AccessDenied::NotLocal),
        };
        match progress {
            Ok(RemoteProgress::Slice) => Break(SliceOutcome::Ready),
            Ok(RemoteProgress::More) => {
                scratch.queue(block);
                Break(SliceOutcome::Waits)
            }
            Ok(RemoteProgress::Answer(result)) => {
                running.wait = WaitState::Runnable;
                self.free_block(block);
                self.reply(running, result, bytes)
            }
            Err(_) => {
                scratch.requests.clear();
                running.wait = WaitState::Runnable;
                self.free_block(block);
                let why = match failed {
                    Some(CompletionStatus::RemoteAccess | CompletionStatus::RemoteAlignment) => {
                        status::NOT_PERMITTED
                    }
                    _ => status::PEER_LOST,
                };
                self.denied(running, request, why)
            }
        }
    }
}
