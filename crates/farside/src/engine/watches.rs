//! The tasks that wait for a change of memory or of the membership.

use farside_base::LineAddress;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::Waker;

/// The change that a thread waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Watched {
    /// The copy of a line.
    Line(LineAddress),
    /// The membership.
    Members,
}

/// The tasks to wake when a line's copy or the membership changes.
#[derive(Debug, Default)]
pub(crate) struct Watches {
    lines: Vec<(LineAddress, Waker)>,
    members: Vec<Waker>,
    /// The number of steps of the membership machine; threads read it without the engine.
    member_steps: Arc<AtomicU64>,
}

impl Watches {
    /// Wakes the tasks that watch a line whose level changes.
    #[inline]
    pub(crate) fn wake_line(&self, line: LineAddress) {
        if !self.lines.is_empty() {
            self.lines
                .iter()
                .filter(|(of, _)| *of == line)
                .for_each(|(_, waker)| waker.wake_by_ref());
        }
    }

    /// Wakes the tasks that watch the membership.
    pub(crate) fn wake_members(&self) {
        self.member_steps.fetch_add(1, Ordering::SeqCst);
        self.members.iter().for_each(Waker::wake_by_ref);
    }

    /// Wakes all: this node is closed.
    pub(crate) fn wake_all(&self) {
        self.wake_members();
        self.lines.iter().for_each(|(_, waker)| waker.wake_by_ref());
    }

    /// The number of steps of the membership machine.
    pub(crate) fn member_steps(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.member_steps)
    }

    pub(crate) fn register(&mut self, watched: Watched, waker: &Waker) {
        match watched {
            Watched::Line(line) => self.lines.push((line, waker.clone())),
            Watched::Members => self.members.push(waker.clone()),
        }
    }

    pub(crate) fn forget(&mut self, waker: &Waker) {
        self.lines.retain(|(_, of)| !of.will_wake(waker));
        self.members.retain(|of| !of.will_wake(waker));
    }
}
