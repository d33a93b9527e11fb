//! The turn of the calling thread, where a simulation runs one thread at a time ([`programs`](crate::programs)).

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// How a thread gives its turn to others.
pub(crate) trait Turns {
    /// Lets others run.
    fn point(&self);

    /// Waits for a time, or until a permit is given, which it takes; whether it was.
    fn wait(&self, permit: &Arc<AtomicBool>, timeout: Option<Duration>) -> bool;
}

thread_local! {
    static TURNS: RefCell<Option<Arc<dyn Turns>>> = const { RefCell::new(None) };
}

/// Makes the calling thread one that takes turns.
pub(crate) fn enter(turns: Arc<dyn Turns>) {
    TURNS.with_borrow_mut(|entered| *entered = Some(turns));
}

/// Returns the turns of the calling thread, if it takes them: not while it unwinds.
fn entered() -> Option<Arc<dyn Turns>> {
    if std::thread::panicking() { None } else { TURNS.with_borrow(Clone::clone) }
}

/// Lets others run, if the calling thread takes turns.
pub(crate) fn point() {
    if let Some(turns) = entered() {
        turns.point();
    }
}

/// Waits as [`Turns::wait`], if the calling thread takes turns.
pub(crate) fn wait(permit: &Arc<AtomicBool>, timeout: Option<Duration>) -> Option<bool> {
    entered().map(|turns| turns.wait(permit, timeout))
}
