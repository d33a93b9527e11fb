//! Scheduling points of the calling thread, where a simulation runs one thread at a time
//! ([`programs`](crate::programs)).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How a thread lets its simulation run another one.
pub(crate) trait Scheduled {
    /// Lets the scheduler choose what runs next.
    fn yield_now(&self);

    /// Waits for a time, or until a permit is given, which it takes; whether it was.
    fn wait(&self, permit: &Arc<AtomicBool>, timeout: Option<Duration>) -> bool;
}

thread_local! {
    static SCHEDULED: RefCell<Option<Arc<dyn Scheduled>>> = const { RefCell::new(None) };
}

/// Makes the calling thread one that a simulation schedules.
pub(crate) fn enter(scheduled: Arc<dyn Scheduled>) {
    SCHEDULED.with_borrow_mut(|entered| *entered = Some(scheduled));
}

/// Returns the scheduler of the calling thread, if it has one: not while it unwinds.
fn entered() -> Option<Arc<dyn Scheduled>> {
    if std::thread::panicking() { None } else { SCHEDULED.with_borrow(Clone::clone) }
}

/// A scheduling point, of a thread that a simulation schedules.
pub(crate) fn yield_now() {
    if let Some(scheduled) = entered() {
        scheduled.yield_now();
    }
}

/// Waits as [`Scheduled::wait`], if a simulation schedules the calling thread.
pub(crate) fn wait(permit: &Arc<AtomicBool>, timeout: Option<Duration>) -> Option<bool> {
    entered().map(|scheduled| scheduled.wait(permit, timeout))
}
