//! The completion queue of a port, from which its thread and the control thread take.
//!
//! The completion of a bind arrives in the queue pair's completion queue, which is the port's, and the
//! port's program may sleep. So while a bind is in flight the control thread polls the queue too: it
//! takes what there is, keeps the port's completions for the port in the order of arrival, and handles
//! the rest. Without windows the queue is the port's alone, and nothing is claimed.

use crate::ffi::{CompletionQueue, WorkCompletion};
use crate::token::{Token, lock};
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

/// Marks binds in `wr_id`, which are for the control thread. Requests of the program have neither bit,
/// receives the higher one.
const BIND: u64 = 3 << 62;
/// Completions that the control thread takes at a time.
const BATCH: usize = 32;
/// Loads of a claim before the processor is yielded.
const SPINS: u32 = 64;

/// Returns the `wr_id` of a bind for a link's peer. A link has at most one bind in flight.
pub(crate) fn bind_of(link: Token) -> u64 {
    BIND | link.0
}

/// Returns the link of a bind, by `wr_id`; `None` for other requests.
#[inline]
pub(crate) fn binds(id: u64) -> Option<Token> {
    (id & BIND == BIND).then_some(Token(id & !BIND))
}

pub(crate) struct Intake {
    completions: Arc<CompletionQueue>,
    /// The control thread takes from it too.
    shared: bool,
    /// A thread takes from the queue now.
    claimed: AtomicBool,
    /// Taken for the port, oldest first; older than all that is in the queue.
    kept: Mutex<VecDeque<WorkCompletion>>,
    /// Whether there are any. Changes under the claim.
    keeps: AtomicBool,
}

impl Intake {
    pub(crate) fn new(completions: &Arc<CompletionQueue>, shared: bool) -> Self {
        Self {
            completions: Arc::clone(completions),
            shared,
            claimed: AtomicBool::new(false),
            kept: Mutex::default(),
            keeps: AtomicBool::new(false),
        }
    }

    /// Claims the queue. Blocks at most while another thread takes a batch.
    #[inline]
    fn claim(&self) {
        let mut spins = 0;
        while self.claimed.swap(true, Ordering::Acquire) {
            spins += 1;
            match spins % SPINS {
                0 => std::thread::yield_now(),
                _ => std::hint::spin_loop(),
            }
        }
    }

    #[inline]
    fn release(&self) {
        self.claimed.store(false, Ordering::Release);
    }

    /// Takes completions for the port. Returns how many were written to the front of `out`. Binds are
    /// among them.
    ///
    /// # Errors
    /// When the queue is broken.
    #[inline]
    pub(crate) fn take(&self, out: &mut [WorkCompletion]) -> io::Result<usize> {
        if !self.shared {
            return self.completions.poll(out);
        }
        self.claim();
        let taken = match self.keeps.load(Ordering::Relaxed) {
            true => self.take_kept(out),
            false => self.completions.poll(out),
        };
        self.release();
        taken
    }

    #[cold]
    fn take_kept(&self, out: &mut [WorkCompletion]) -> io::Result<usize> {
        let mut kept = lock(&self.kept);
        let count = kept.len().min(out.len());
        for (place, done) in out.iter_mut().zip(kept.drain(..count)) {
            *place = done;
        }
        self.keeps.store(!kept.is_empty(), Ordering::Relaxed);
        // A batch that is not full shows that there is no more.
        match self.completions.poll(&mut out[count..]) {
            Ok(more) => Ok(count + more),
            Err(error) if count == 0 => Err(error),
            Err(_) => Ok(count),
        }
    }

    /// Takes what there is for the control thread: completions of binds, each with its status. Returns
    /// true if something is kept for the port, which must be woken.
    pub(crate) fn take_binds(&self, ends: &mut Vec<(Token, u32)>) -> bool {
        let mut batch = [WorkCompletion::default(); BATCH];
        let mut keeps = false;
        self.claim();
        // The port learns of a broken queue by itself.
        while let Ok(count @ 1..) = self.completions.poll(&mut batch) {
            for done in &batch[..count] {
                match binds(done.wr_id) {
                    Some(link) => ends.push((link, done.status)),
                    None => {
                        lock(&self.kept).push_back(*done);
                        keeps = true;
                    }
                }
            }
        }
        if keeps {
            self.keeps.store(true, Ordering::Relaxed);
        }
        self.release();
        keeps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn binds_are_told_from_requests_and_receives() {
        let link = Token((1 << 62) - 1);
        assert_eq!(binds(bind_of(link)), Some(link));
        for id in [0, u64::MAX >> 1, 1 << 63, 1 << 63 | 0x7fff_ffff_ffff] {
            assert_eq!(binds(id), None, "{id:#x}");
        }
    }
}
